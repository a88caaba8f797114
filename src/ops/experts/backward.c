/* backward.c: equations (1), (2a), (3) to (6a) of op.c. A round (capacity: rows of dx) goes by chunks (F32 operands of (5), which should stay
 * in cache): the chunk's rows by tiles, then weight gradients by (expert, matrix, block of rows of the matrix), each of which goes on
 * with the chain that earlier chunks left. After the round, the sums of each token's rows.
 *
 * Rows that come from several ranks (ep_backward.c) have a chain for each (expert, source), merged by the binary tree over sources (unless
 * any order will do: then a chain for each expert, as where one rank has all rows): block
 * by block, through a binary counter whose largest sum is dW itself. A chunk ends where an expert ends, unless the expert alone is too
 * long: then its counter is kept, whole, until it ends.
 *
 * Scratch: a round's rows of dx, (2 L + 3 I) floats for each row of a chunk, accumulators of dx where a round is not the only one, and
 * a thread's packed operands. Several sources: for each level of the tree a block for each thread, and one set of gradients of an expert. */
#include "ops/experts/backward.h"

enum { GATE, UP, BACK, DX_GATE, DX_UP, N_W };
enum { BLOCK_M = 96, BLOCK_K = 256 };            /* of (5): rows of dW of one block; routed rows whose B is packed at a time */
static const int64_t chunk_bytes = 4 << 20;
static const int64_t chunk_rows_per_thread = 512;        /* at least: each phase has work for all */

/* a, b: adapters; again: B of (2a); t, dx, dh [tile]; packed B of (5), (6); partial sums of a block, see counter */
typedef struct { panels w[N_W], a[3], b[3], again[2]; float *t, *dx, *dh; uint32_t *outer_b; float *partial; } thread;
typedef cdr__bwd_scratch scratch;

static void *output(const cdr__bwd *b, int k) { return b->out[k]; }
static const cdr_type *output_type(const cdr__bwd *b, int k) { return &b->out_t[k]; }

/* Levels of the tree over sources: the largest partial sum is in dW, the others and the newest in as many buffers. */
static int levels(const experts *x)
{
    int n = 0;
    while (((int64_t)1 << n) < x->n_chains) n++;
    return n;
}

/* Buffers of a counter: with subtrees that are merged elsewhere, dW has no part in it. */
static int n_buffers(const experts *x) { return x->moves ? 2 * levels(x) + 1 : levels(x); }

int64_t cdr__experts_subtree(int64_t a, int64_t b)
{
    int64_t n = 1;
    while (a % (2 * n) == 0 && a + 2 * n <= b) n *= 2;
    return n;
}

int cdr__experts_subtrees(int64_t a, int64_t b)
{
    int n = 0;
    for (; a < b; a += cdr__experts_subtree(a, b)) n++;
    return n;
}

/* Elements of a row of the widest gradient that is wanted */
static int64_t widest_outer(const experts *x, const cdr_type *out_t)
{
    int64_t n = 0;
    for (int k = 0; k < CDR__EXB_N_OUTER; k++) if (cdr__bwd_is_outer(x, out_t, k)) n = CDR_MAX(n, out_t[CDR__EXB_DW1 + k].n[2]);
    return n;
}

/* Columns of (6)'s or (6a)'s narrow factors of w1, w3 or w2 */
static int64_t narrow(const experts *x, int m) { return x->low[m] > 0 ? x->low[m] : cdr__experts_rank(x, m); }

static size_t lay_thread(const experts *x, const cdr_type *out_t, void *base, thread *th)
{
    const cdr__gemm_isa *isa = x->isa->wide;
    bump b = { base, 0 };
    const cdr__experts_block block = cdr__experts_block_take(x, &b);
    th->w[GATE] = cdr__experts_panels(x, CDR__EX_W1, true, &block, &b);
    th->w[UP] = cdr__experts_panels(x, CDR__EX_W3, true, &block, &b);
    th->w[BACK] = cdr__experts_panels(x, CDR__EX_W2, false, &block, &b);
    th->w[DX_GATE] = cdr__experts_panels(x, CDR__EX_W1, false, &block, &b);
    th->w[DX_UP] = cdr__experts_panels(x, CDR__EX_W3, false, &block, &b);
    th->t = bump_floats(&b, x->tile * x->ld_I);
    th->dx = bump_floats(&b, x->tile * x->ld_L);
    th->partial = bump_floats(&b, n_buffers(x) * BLOCK_M * widest_outer(x, out_t));
    int64_t widest = CDR_MAX(x->L, x->I);
    for (int m = 0; m < 3; m++) {
        if (narrow(x, m) == 0) continue;
        widest = CDR_MAX(widest, narrow(x, m));
        if (x->low[m] == 0 || m == 2) th->a[m] = cdr__experts_panels(x, CDR__EX_A1 + 2 * m, x->low[m] == 0, &block, &b);
        if (x->low[m] == 0 || m < 2) th->b[m] = cdr__experts_panels(x, CDR__EX_B1 + 2 * m, false, &block, &b);
        if (x->low[m] > 0 && m < 2) th->again[m] = cdr__experts_panels(x, CDR__EX_B1 + 2 * m, true, &block, &b);
    }
    th->dh = bump_floats(&b, x->tile * CDR_MAX(x->ld_low[0], x->ld_low[1]));
    th->outer_b = bump_take(&b, (size_t)(4 * cdr_ceil_div(widest, isa->nr) * isa->nr * BLOCK_K));
    return b.at;
}

size_t cdr__experts_bwd_lay(const experts *x, const cdr_type *out_t, void *base, cdr__bwd_scratch *s)
{
    const int64_t row_bytes = 4 * (2 * x->ld_L + 3 * x->ld_I);
    thread th;
    bump b = { base, 0 };
    s->chunk = CDR_MIN(x->cap, CDR_MAX(chunk_bytes / row_bytes, chunk_rows_per_thread * x->n_threads));
    s->x = bump_floats(&b, s->chunk * x->ld_L);
    s->du = bump_floats(&b, s->chunk * x->ld_L);
    s->h = bump_floats(&b, s->chunk * x->ld_I);
    s->gate = bump_floats(&b, s->chunk * x->ld_I);
    s->up = bump_floats(&b, s->chunk * x->ld_I);
    for (int m = 0; m < 3; m++) {
        const int64_t rank = narrow(x, m);
        s->ld_k[m] = cdr__experts_ld(x->isa, rank);
        s->low_a[m] = rank > 0 ? bump_floats(&b, s->chunk * s->ld_k[m]) : NULL;
        s->low_b[m] = rank > 0 ? bump_floats(&b, s->chunk * s->ld_k[m]) : NULL;
    }
    for (int i = 0; i < CDR__EXB_N_OUTER; i++) {            /* no chunk cuts an expert whose rows all fit, but the end of a round may */
        const cdr_type *t = &out_t[CDR__EXB_DW1 + i];
        const bool opens = cdr__bwd_is_outer(x, out_t, i) && x->n_chains > 1 && x->S * x->T * CDR_MIN(x->A, x->E) > s->chunk;
        s->open[i] = opens ? bump_floats(&b, n_buffers(x) * t->n[1] * t->n[2]) : NULL;
    }
    s->list = bump_take(&b, (size_t)cdr__experts_max_tiles(x, s->chunk) * sizeof(tile));
    s->segments = bump_take(&b, (size_t)CDR_MIN(x->E, s->chunk) * sizeof(tile));
    s->thread_bytes = lay_thread(x, out_t, NULL, &th);
    s->threads = bump_take(&b, s->thread_bytes * (size_t)x->n_threads);
    return b.at;
}

/* What the rows of one rank need beside that */
typedef struct { char *dx; float *acc, *sums; } local;

static size_t lay(const experts *x, const cdr_type *out_t, void *base, scratch *s, local *own)
{
    bump b = { base, cdr__experts_bwd_lay(x, out_t, base, s) };
    own->dx = bump_take(&b, (size_t)cdr_dtype_bytes(x->t[CDR__EX_X].dtype, x->cap * x->W_in));
    own->acc = x->cap < x->R ? bump_floats(&b, x->T * x->W_in) : NULL;
    own->sums = bump_floats(&b, 3 * x->W_in * x->n_threads);
    return b.at;
}

size_t cdr__experts_bwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads)
{
    const experts x = cdr__experts_open(isa, attr, t + CDR__EXB_X, NULL, n_threads);
    scratch s;
    local own;
    return lay(&x, t + CDR__EXB_N, NULL, &s, &own);
}

void cdr__experts_bwd_wants(cdr__bwd *b)
{
    b->wants_dx = output(b, CDR__EXB_DX) != NULL;
    b->wants_dp = output(b, CDR__EXB_DP) != NULL;
    for (int m = 0; m < 2; m++) b->wants_dh[m] = b->x.low[m] > 0 && output(b, CDR__EXB_DA1 + 2 * m);
    for (int i = 0; i < CDR__EXB_N_OUTER; i++) b->wants_dw = b->wants_dw || cdr__bwd_is_outer(&b->x, b->out_t, i);
}

void cdr__experts_parts_in(const cdr__bwd *b, bool add, cdr__part *part)
{
    const experts *x = &b->x;
    part[0] = (cdr__part){ .n = x->L, .out = output(b, CDR__EXB_DX), .out_t = output_type(b, CDR__EXB_DX), .add = add };
    for (int m = 0; m < 2; m++)
        part[1 + m] = (cdr__part){ .at = x->L + m * x->low[0], .n = x->low[m], .out = b->wants_dh[m] ? output(b, CDR__EXB_DA1 + 2 * m) : NULL,
                                   .out_t = output_type(b, CDR__EXB_DA1 + 2 * m) };
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */
/* g_r and c_r of a tile, at place `at` of the chunk: kept ones, or (1) and (2a) again */
static void gate_up(const cdr__bwd *b, thread *th, const tile *k, int64_t at, float *gate, float *up)
{
    const experts *x = &b->x;
    const int64_t m = k->end - k->first, I = x->I;
    void *gu = b->gu;
    const cdr_type *t = b->gu_t;
    for (int64_t i = 0; i < m && gu; i++) {
        const char *row = cdr_row(gu, t, k->first + i);
        cdr_to_f32(t->dtype, row, gate + i * x->ld_I, I);
        cdr_to_f32(t->dtype, row + cdr_dtype_bytes(t->dtype, I), up + i * x->ld_I, I);
    }
    if (gu) return;
    cdr__product p = { .m = m, .a = cdr__units(b->s.x + at * x->ld_L), .a_row = x->ld_L, .c = gate, .ldc = x->ld_I, .first = true };
    cdr__experts_mul(x, &th->w[GATE], k->expert, p);
    p.c = up;
    p.a_packed = true;
    cdr__experts_mul(x, &th->w[UP], k->expert, p);
    for (int w = 0; w < 2; w++) {
        const int64_t ld = b->s.ld_k[w];
        if (x->low[w] == 0) continue;
        cdr__experts_mul(x, &th->again[w], k->expert,
                         (cdr__product){ .m = m, .a = cdr__units(b->s.low_a[w] + at * ld), .a_row = ld, .c = w == 0 ? gate : up, .ldc = x->ld_I });
    }
    for (int64_t i = 0; i < m; i++) cdr__experts_round_gu(x, NULL, NULL, k->first + i, gate + i * x->ld_I, up + i * x->ld_I);
}

static void store_dp(const cdr__bwd *b, int64_t r, int64_t r0, int64_t pair, float v)
{
    const int64_t A = b->x.A;
    if (b->dp_rows) b->dp_rows[r - r0] = v;
    else ((float *)output(b, CDR__EXB_DP))[pair / A * cdr_type_pitch(output_type(b, CDR__EXB_DP)) + pair % A] = v;
}

/* (3) for row r of the round from r0 on: t becomes dh, gate and up become dg and dc, h is made, du becomes p du. */
static void act_row(const cdr__bwd *b, int64_t r, int64_t r0, float *t, float *gate, float *up, float *h, float *du, float *dv)
{
    const experts *x = &b->x;
    const route q = route_of(x, r);
    const int64_t I = x->I, L = x->L;
    const float p = weight_of(x, q);
    memcpy(h, up, (size_t)I * sizeof(float));
    if (x->at->situ) x->isa->situ->forward(gate, h, I, &x->situ);
    else x->isa->silu(gate, h, I);
    if (b->wants_dp) store_dp(b, r, r0, q.pair, cdr_dot(t, h, I));
    for (int64_t i = 0; i < I; i++) t[i] *= p;
    if (x->at->situ) x->isa->situ->backward(t, gate, up, I, &x->situ);
    else x->isa->silu_bwd(t, gate, up, I);
    for (int64_t l = 0; l < L; l++) du[l] *= p;
    for (int64_t j = 0; j < x->low[2]; j++) dv[j] *= p;
}

/* What W_m reads of the chunk's rows, and the gradient of what it gives */
typedef struct { float *in, *dout; int64_t ld_in, ld_dout, n_in, n_dout; } sides;
static sides sides_of(const cdr__bwd *b, int m)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    if (m == 2) return (sides){ s->h, s->du, x->ld_I, x->ld_L, x->I, x->L };
    return (sides){ s->x, m == 0 ? s->gate : s->up, x->ld_L, x->ld_I, x->L, x->I };
}

/* (6)'s narrow factors for the tile at place `at` of the chunk */
static void low_rank(const cdr__bwd *b, thread *th, const tile *k, int64_t at)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    const int64_t rows = k->end - k->first;
    for (int m = 0; m < 3; m++) {
        const sides of = sides_of(b, m);
        const int64_t rank = cdr__experts_rank(x, m), ld = s->ld_k[m];
        const float scale = x->at->scale[m];
        if (rank == 0) continue;
        float *a = s->low_a[m] + at * ld, *c = s->low_b[m] + at * ld;
        if (output(b, CDR__EXB_DB1 + 2 * m)) {
            cdr__experts_mul(x, &th->a[m], k->expert,
                             (cdr__product){ .m = rows, .a = cdr__units(of.in + at * of.ld_in), .a_row = of.ld_in, .c = a, .ldc = ld, .first = true });
            for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < rank; j++) a[i * ld + j] *= scale;
        }
        if (output(b, CDR__EXB_DA1 + 2 * m)) {
            cdr__experts_mul(x, &th->b[m], k->expert,
                             (cdr__product){ .m = rows, .a = cdr__units(of.dout + at * of.ld_dout), .a_row = of.ld_dout, .c = c, .ldc = ld, .first = true });
            for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < rank; j++) c[i * ld + j] *= scale;
        }
    }
}

/* h1, h3 and dv of the tile, at place `at` of the chunk */
static void gather_low(const cdr__bwd *b, const tile *k, int64_t at)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    for (int m = 0; m < 2; m++)
        if (x->low[m] > 0)
            cdr__experts_gather(x, m == 0 ? CDR__ROWS_H1 : CDR__ROWS_H3, &x->t[CDR__EX_A1 + 2 * m], k, s->low_a[m] + at * s->ld_k[m], s->ld_k[m]);
    if (x->low[2] > 0) cdr__experts_gather(x, CDR__ROWS_DV, b->dv_t, k, s->low_b[2] + at * s->ld_k[2], s->ld_k[2]);
}

/* t_r = W2^T du, + A2^T dv (6a) */
static void back(const cdr__bwd *b, thread *th, const tile *k, int64_t at)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    cdr__product p = { .m = k->end - k->first, .a = cdr__units(s->du + at * x->ld_L), .a_row = x->ld_L, .c = th->t, .ldc = x->ld_I, .first = true };
    cdr__experts_mul(x, &th->w[BACK], k->expert, p);
    p.a = cdr__units(s->low_b[2] + at * s->ld_k[2]);
    p.a_row = s->ld_k[2];
    p.first = false;
    if (x->low[2] > 0) cdr__experts_mul(x, &th->a[2], k->expert, p);
}

/* The tile's rows of dx, dh1 and dh3, rounded, to where they are summed from. dout: dg and dc */
static void store_rows(const cdr__bwd *b, thread *th, const tile *k, int64_t r0, float *const dout[2])
{
    const experts *x = &b->x;
    const int64_t m = k->end - k->first;
    const int dtype = x->t[CDR__EX_X].dtype;
    char *rows = b->dx_rows + cdr_dtype_bytes(dtype, (k->first - r0) * x->W_in);
    cdr__product p = { .m = m, .a = cdr__units(dout[0]), .a_row = x->ld_I, .c = th->dx, .ldc = x->ld_L, .first = true };
    if (b->wants_dx) {
        cdr__experts_mul(x, &th->w[DX_GATE], k->expert, p);
        p.a = cdr__units(dout[1]);
        p.first = false;
        cdr__experts_mul(x, &th->w[DX_UP], k->expert, p);
        for (int64_t i = 0; i < m; i++) cdr_from_f32(dtype, th->dx + i * x->ld_L, rows + cdr_dtype_bytes(dtype, i * x->W_in), x->L);
    }
    for (int w = 0; w < 2; w++) {
        const int64_t at = x->L + (w == 1 ? x->low[0] : 0);
        if (!b->wants_dh[w]) continue;
        cdr__experts_mul(x, &th->b[w], k->expert,
                         (cdr__product){ .m = m, .a = cdr__units(dout[w]), .a_row = x->ld_I, .c = th->dh, .ldc = x->ld_low[w], .first = true });
        for (int64_t i = 0; i < m; i++) cdr_from_f32(dtype, th->dh + i * x->ld_low[w], rows + cdr_dtype_bytes(dtype, i * x->W_in + at), x->low[w]);
    }
}

/* r_chunk: the routed row in the chunk's first place; r0: in the round's */
static void run_tile(const cdr__bwd *b, thread *th, const tile *k, int64_t r_chunk, int64_t r0)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    const int64_t m = k->end - k->first, at = k->first - r_chunk;
    float *du = s->du + at * x->ld_L, *h = s->h + at * x->ld_I, *gate = s->gate + at * x->ld_I, *up = s->up + at * x->ld_I;
    float *dv = x->low[2] > 0 ? s->low_b[2] + at * s->ld_k[2] : NULL;
    cdr__experts_gather(x, CDR__ROWS_X, &x->t[CDR__EX_X], k, s->x + at * x->ld_L, x->ld_L);
    cdr__experts_gather(x, CDR__ROWS_DU, b->du_t, k, du, x->ld_L);
    gather_low(b, k, at);
    gate_up(b, th, k, at, gate, up);
    back(b, th, k, at);
    for (int64_t i = 0; i < m; i++)
        act_row(b, k->first + i, r0, th->t + i * x->ld_I, gate + i * x->ld_I, up + i * x->ld_I, h + i * x->ld_I, du + i * x->ld_L, dv ? dv + i * s->ld_k[2] : NULL);
    low_rank(b, th, k, at);
    store_rows(b, th, k, r0, (float *const[2]){ gate, up });
}

/* ---- weight gradients -------------------------------------------------------------------------------------------------- */
/* (5), (6): dW (+)= A^T B over rows: [n_a][n_b]; rows of A and B are ld floats apart. */
typedef struct { const float *a, *b; int64_t n_a, ld_a, n_b, ld_b; void *dw; const cdr_type *t; } outer;
typedef struct { int64_t first, end, r_chunk; bool starts; float *c; int64_t ldc; } chain;     /* rows of one chain; starts: C is not read */

/* Of gradient CDR__EXB_DW1 + which: dW_m = dout^T in (5), dA_m = b^T in, dB_m = dout^T a (6), (6a) */
static outer outer_of(const cdr__bwd *b, int which)
{
    const int m = which < 3 ? which : (which - 3) / 2;
    const bool is_a = which >= 3 && (which - 3) % 2 == 0, is_b = which >= 3 && !is_a;
    const int64_t rank = narrow(&b->x, m);
    const sides of = sides_of(b, m);
    return (outer){ .a = is_a ? b->s.low_b[m] : of.dout, .n_a = is_a ? rank : of.n_dout, .ld_a = is_a ? b->s.ld_k[m] : of.ld_dout,
                    .b = is_b ? b->s.low_a[m] : of.in, .n_b = is_b ? rank : of.n_in, .ld_b = is_b ? b->s.ld_k[m] : of.ld_in,
                    .dw = cdr__bwd_is_outer(&b->x, b->out_t, which) ? output(b, CDR__EXB_DW1 + which) : NULL, .t = output_type(b, CDR__EXB_DW1 + which) };
}

/* C (+)= rows i0 .. of A^T B over rows first .. end - 1. A is read where it lies, across its rows: packing it first was not faster. */
static void add_rows(const cdr__bwd *b, thread *th, const outer *o, int64_t i0, const chain *q)
{
    const cdr__gemm_isa *isa = b->x.isa->wide;
    const int64_t m = CDR_MIN(BLOCK_M, o->n_a - i0);
    for (int64_t r = q->first; r < q->end; r += BLOCK_K) {
        const int64_t k = CDR_MIN(BLOCK_K, q->end - r), at = r - q->r_chunk;
        isa->pack_b[CDR_F32][0](&(cdr__pack){ .src = o->b + at * o->ld_b, .pitch = o->ld_b, .n_i = o->n_b, .n_p = k, .dst = th->outer_b, .ld = isa->nr * k });
        cdr__experts_product(isa, &(cdr__product){ .m = m, .k = k, .n = o->n_b, .a = cdr__units(o->a + at * o->ld_a + i0), .a_row = 1, .a_col = o->ld_a,
            .a_group = isa->mr, .b = th->outer_b, .b_ld = isa->nr * k, .c = q->c, .ldc = q->ldc, .first = q->starts && r == q->first });
    }
}

/* The binary counter over an expert's sources (ops/grad_push, equation (1)), from source `from` on: slot 0 is the block in dW, slot j > 0
 * buffer j - 1; without dw, slot j is buffer j. The last buffer takes a partial that will be merged at once. */
typedef struct { float *dw, *buffer; int64_t pitch, ld, stride, m, n, from, end; int last; } counter;
enum { LAST = -1 };
static float *slot(const counter *c, int j, int64_t row)
{
    if (j == 0 && c->dw) return c->dw + row * c->pitch;
    return c->buffer + (j == LAST ? c->last : c->dw ? j - 1 : j) * c->stride + row * c->ld;
}

static counter counter_of(const cdr__bwd *b, thread *th, const outer *o, int which, const tile *seg, int64_t i0)
{
    const experts *x = &b->x;
    const bool whole = seg->first == row_offset(x, seg->expert) && seg->end == row_offset(x, seg->expert + 1);
    counter c = { .pitch = cdr_type_pitch(o->t), .ld = o->n_b, .m = CDR_MIN(BLOCK_M, o->n_a - i0), .n = o->n_b, .end = x->n_chains, .last = n_buffers(x) - 1 };
    if (x->sources) c.from = x->sources[2 * seg->expert], c.end = x->sources[2 * seg->expert + 1];
    if (seg->expert < x->E_home && c.from == 0 && c.end == x->n_chains) c.dw = (float *)o->dw + (seg->expert * o->n_a + i0) * c.pitch;
    c.buffer = whole || n_buffers(x) == 0 ? th->partial : b->s.open[which] + i0 * o->n_b;
    c.stride = whole ? BLOCK_M * o->n_b : o->n_a * o->n_b;
    return c;
}

/* Chain s of expert e begins there: its rows from source s, or all. s = n_chains: the next expert's first */
static int64_t chain_offset(const experts *x, int64_t e, int64_t s) { return x->n_chains == 1 ? row_offset(x, e + s) : group_offset(x, e, s); }

/* How many sums source s completes with its own */
static int merges(const counter *c, int64_t s)
{
    int z = 0;
    while ((s + 1) % ((int64_t)2 << z) == 0 && s + 1 - ((int64_t)2 << z) >= c->from) z++;
    return z;
}

/* Partial of source s: where it is formed, and its merging once it is complete */
static int partial_slot(const counter *c, int64_t s) { return merges(c, s) > 0 ? LAST : cdr__experts_subtrees(c->from, s); }
static void push(const counter *c, int64_t s)
{
    const int p = cdr__experts_subtrees(c->from, s), z = merges(c, s);
    for (int64_t row = 0; row < c->m && z > 0; row++) {
        float *carry = slot(c, LAST, row);
        for (int j = p - 1; j >= p - z; j--) {
            float *sum = slot(c, j, row), *to = j == p - z ? sum : carry;
            for (int64_t l = 0; l < c->n; l++) to[l] = sum[l] + carry[l];
        }
    }
}

/* The block's sums of subtrees, to where the expert's home reads them */
static void hand_over(const cdr__bwd *b, const counter *c, const outer *o, int which, int64_t expert, int64_t i0)
{
    for (int j = 0; j < cdr__experts_subtrees(c->from, c->end); j++)
        for (int64_t row = 0; row < c->m; row++)
            memcpy(b->nodes[which] + ((b->first_node[expert] + j) * o->n_a + i0 + row) * o->n_b, slot(c, j, row), (size_t)o->n_b * sizeof(float));
}

/* Rows i0 .. of the segment's expert's dW, over the segment's rows of the chunk: source by source. A source without rows gives +0, in the
 * segment that has the row before which it would stand. */
static void run_block(const cdr__bwd *b, thread *th, const outer *o, int which, const tile *seg, int64_t r_chunk, int64_t i0)
{
    const experts *x = &b->x;
    const counter c = counter_of(b, th, o, which, seg, i0);
    const int64_t expert_end = row_offset(x, seg->expert + 1);
    for (int64_t s = c.from; s < c.end; s++) {
        const int64_t g0 = chain_offset(x, seg->expert, s), g1 = chain_offset(x, seg->expert, s + 1);
        const int to = partial_slot(&c, s);
        if (g0 == g1) {
            if (g0 < seg->first || (g0 >= seg->end && (g0 < expert_end || seg->end < expert_end))) continue;
            for (int64_t row = 0; row < c.m; row++) memset(slot(&c, to, row), 0, (size_t)c.n * sizeof(float));
        } else {
            const chain q = { .first = CDR_MAX(g0, seg->first), .end = CDR_MIN(g1, seg->end), .r_chunk = r_chunk, .starts = g0 >= seg->first,
                              .c = slot(&c, to, 0), .ldc = to == 0 && c.dw ? c.pitch : c.ld };
            if (q.first >= q.end) continue;
            add_rows(b, th, o, i0, &q);
            if (q.end < g1) continue;
        }
        push(&c, s);
    }
    if (!c.dw && seg->end == expert_end) hand_over(b, &c, o, which, seg->expert, i0);
}

static int64_t blocks_of(const outer *o) { return o->dw ? cdr_ceil_div(o->n_a, BLOCK_M) : 0; }

/* Called by every thread of a team. */
static void run_weights(const cdr__bwd *b, thread *th, int64_t n_segments, int64_t r_chunk)
{
    outer o[CDR__EXB_N_OUTER];
    int64_t n = 0;
    for (int i = 0; i < CDR__EXB_N_OUTER; i++) {
        o[i] = outer_of(b, i);
        n += blocks_of(&o[i]);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n_segments * n; i++) {
        int64_t block = i % n, which = 0;
        for (; block >= blocks_of(&o[which]); which++) block -= blocks_of(&o[which]);
        run_block(b, th, &o[which], (int)which, &b->s.segments[i / n], r_chunk, block * BLOCK_M);
    }
}

/* An expert's rows r0 .. r1 - 1, for each expert that has some */
static int64_t segments(const experts *x, int64_t r0, int64_t r1, tile *list)
{
    int64_t n = 0;
    for (int64_t e = 0; e < x->E; e++) {
        const int64_t first = CDR_MAX(row_offset(x, e), r0), end = CDR_MIN(row_offset(x, e + 1), r1);
        if (first < end) list[n++] = (tile){ e, first, end };
    }
    return n;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */
/* dp of pairs without a row, gradients of experts without rows */
void cdr__experts_bwd_clear(const cdr__bwd *b)
{
    const experts *x = &b->x;
    const int32_t *pos = x->ptr[CDR__EX_POS];
    const int64_t pos_pitch = cdr_type_pitch(&x->t[CDR__EX_POS]);
    float *dp = output(b, CDR__EXB_DP);
    for (int64_t t = 0; t < x->T && dp; t++)
        for (int64_t s = 0; s < x->A; s++)
            if (pos[t * pos_pitch + s] < 0) dp[t * cdr_type_pitch(output_type(b, CDR__EXB_DP)) + s] = 0.0f;
    for (int64_t e = 0; e < x->E_home; e++) {
        if (row_offset(x, e) < row_offset(x, e + 1)) continue;
        for (int which = 0; which < CDR__EXB_N_OUTER; which++) {
            const cdr_type *t = output_type(b, CDR__EXB_DW1 + which);
            void *dw = output(b, CDR__EXB_DW1 + which);
            const bool is_outer = cdr__bwd_is_outer(x, b->out_t, which);
            for (int64_t i = 0; dw && is_outer && i < t->n[1]; i++) memset(cdr_row(dw, t, e * t->n[1] + i), 0, (size_t)t->n[2] * sizeof(float));
        }
    }
}

/* Rows r_chunk .. r_end - 1, of the round that begins at r0 */
static void run_chunk(const cdr__bwd *b, int64_t r_chunk, int64_t r_end, int64_t r0)
{
    const experts *x = &b->x;
    const int64_t n = cdr__experts_tiles(x, r_chunk, r_end, b->s.list), n_segments = segments(x, r_chunk, r_end, b->s.segments);
#pragma omp parallel num_threads(x->n_threads)
    {
        int64_t first, last;
        thread th;
        lay_thread(x, b->out_t, b->s.threads + (size_t)omp_get_thread_num() * b->s.thread_bytes, &th);
        cdr__experts_share(b->s.list, n, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        if (x->isa->gemm->begin) x->isa->gemm->begin();
        for (int64_t i = first; i < last; i++) run_tile(b, &th, &b->s.list[i], r_chunk, r0);
        if (x->isa->gemm->end) x->isa->gemm->end();
#pragma omp barrier
        if (b->wants_dw) run_weights(b, &th, n_segments, r_chunk);
    }
}

/* Where the gradients of several sources are merged, a chunk is whole experts, or a part of one: then one expert at most is open. */
static int64_t chunk_end(const cdr__bwd *b, int64_t r, int64_t r1)
{
    const experts *x = &b->x;
    const int64_t limit = CDR_MIN(r + b->s.chunk, r1);
    int64_t e = 0, end = r;
    if (x->n_chains == 1 || !b->wants_dw) return limit;
    while (row_offset(x, e + 1) <= r) e++;
    if (row_offset(x, e) < r) return CDR_MIN(limit, row_offset(x, e + 1));
    for (int64_t d = e; d < x->E && row_offset(x, d + 1) <= limit; d++) end = row_offset(x, d + 1);
    return end > r ? end : limit;
}

/* Small matrices whose experts are spread evenly over threads: an expert is one thread's, tile after tile, the tile's part of (5) as soon as
 * its rows are there, in L2; no barrier, and no chunk that is written to L3 and read again. The chains are the same. */
static bool by_expert(const cdr__bwd *b, int64_t n_segments, int64_t rows)
{
    enum { SMALL = 128 * 128 };
    const experts *x = &b->x;
    if (!b->wants_dw || x->n_chains > 1 || x->moves || x->L * x->I > SMALL || b->s.chunk / x->n_threads < x->tile) return false;
    for (int me = 0; me < x->n_threads; me++) {
        int64_t first, last, own = 0;
        cdr__experts_share(b->s.segments, n_segments, me, x->n_threads, &first, &last);
        for (int64_t i = first; i < last; i++) own += b->s.segments[i].end - b->s.segments[i].first;
        if (own * x->n_threads > rows * 5 / 4) return false;
    }
    return true;
}

static void run_expert(const cdr__bwd *b, thread *th, const tile *seg, int64_t at, int64_t r0)
{
    const int64_t step = cdr__experts_tile_rows(&b->x, seg->end - seg->first);
    for (int64_t r = seg->first; r < seg->end; r += step) {
        const tile k = { seg->expert, r, CDR_MIN(r + step, seg->end) };
        run_tile(b, th, &k, r - at, r0);
        for (int which = 0; which < CDR__EXB_N_OUTER; which++) {
            const outer o = outer_of(b, which);
            for (int64_t i = 0; i < blocks_of(&o); i++) run_block(b, th, &o, which, &k, r - at, i * BLOCK_M);
        }
    }
}

static void run_experts(const cdr__bwd *b, int64_t n_segments, int64_t r0)
{
    const experts *x = &b->x;
#pragma omp parallel num_threads(x->n_threads)
    {
        int64_t first, last;
        thread th;
        const int me = omp_get_thread_num(), n = omp_get_num_threads();
        lay_thread(x, b->out_t, b->s.threads + (size_t)me * b->s.thread_bytes, &th);
        cdr__experts_share(b->s.segments, n_segments, me, n, &first, &last);
        if (x->isa->gemm->begin) x->isa->gemm->begin();
        for (int64_t i = first; i < last; i++) run_expert(b, &th, &b->s.segments[i], b->s.chunk / x->n_threads * me, r0);
        if (x->isa->gemm->end) x->isa->gemm->end();
    }
}

void cdr__experts_bwd_round(const cdr__bwd *b, int64_t r0, int64_t r1)
{
    const int64_t n = b->x.E <= b->s.chunk ? segments(&b->x, r0, r1, b->s.segments) : 0;
    if (n > 0 && by_expert(b, n, r1 - r0)) {
        run_experts(b, n, r0);
        return;
    }
    for (int64_t r = r0, end; r < r1; r = end) {
        end = chunk_end(b, r, r1);
        run_chunk(b, r, end, r0);
    }
}

cdr_status cdr__experts_bwd(const cdr_args *a, const cdr__experts_isa *isa)
{
    cdr__bwd b = { .x = cdr__experts_open(isa, a->attr, a->type + CDR__EXB_X, a->ptr + CDR__EXB_X, a->lane->n_threads),
                   .out = a->ptr + CDR__EXB_N, .out_t = a->type + CDR__EXB_N, .du_t = &a->type[CDR__EXB_DU], .dv_t = &a->type[CDR__EXB_DV],
                   .gu = a->ptr[CDR__EXB_GU], .gu_t = &a->type[CDR__EXB_GU] };
    const experts *x = &b.x;
    const int64_t rows = row_offset(x, x->E);
    local own;
    lay(x, b.out_t, a->work, &b.s, &own);
    b.x.own.du = a->ptr[CDR__EXB_DU];
    b.x.own.dv = a->ptr[CDR__EXB_DV];
    b.dx_rows = own.dx;
    cdr__experts_bwd_wants(&b);
    assert(rows <= x->R);
    cdr__experts_bwd_clear(&b);
    int64_t r0 = 0;
    do {
        const int64_t r1 = CDR_MIN(r0 + x->cap, rows);
        cdr__experts_bwd_round(&b, r0, r1);
        combine c = { .rows = own.dx, .row_t = cdr_type_2d(x->t[CDR__EX_X].dtype, x->cap, x->W_in), .r0 = r0, .r1 = r1, .first = r0 == 0,
                      .last = r1 == rows, .acc = own.acc, .scratch = own.sums };
        cdr__experts_parts_in(&b, (a->add & 1u) != 0, c.part);
        if (cdr__bwd_wants_rows(&b)) {
#pragma omp parallel num_threads(x->n_threads)
            cdr__experts_combine(x, &c);
        }
        r0 = r1;
    } while (r0 < rows);
    return CDR_OK;
}
