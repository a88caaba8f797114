/* backward.c: equations (1), (3) to (5) of op.c. A round (capacity: rows of dx) goes by chunks (F32 operands of (5), which should stay
 * in cache): the chunk's rows by tiles, then weight gradients by (expert, matrix, block of rows of the matrix), each of which goes on
 * with the chain that earlier chunks left. After the round, the sums of each token's rows.
 *
 * Scratch: a round's rows of dx, (2 L + 3 I) floats for each row of a chunk, accumulators of dx where a round is not the only one, and
 * a thread's packed operands. */
#include "ops/experts/kernel.h"

enum { GATE, UP, BACK, DX_GATE, DX_UP, N_W };
enum { BLOCK_M = 96, BLOCK_K = 256 };            /* of (5): rows of dW of one block; routed rows whose B is packed at a time */
static const int64_t chunk_bytes = 4 << 20;
static const int64_t chunk_rows_per_thread = 512;        /* at least: each phase has work for all */

typedef struct { panels w[N_W]; float *t; uint32_t *b; } thread;         /* t [TILE]; packed B of (5) */
typedef struct {
    int64_t chunk;                               /* rows */
    float *x, *du, *h, *gate, *up;               /* [chunk]; gate and up become dg and dc, du becomes p du */
    float *dx;                                   /* [cap], row_L floats each */
    float *acc, *sums; tile *list, *segments; char *threads; size_t thread_bytes;
} scratch;

/* The call: the forward's operands in x, the rest here. */
typedef struct { experts x; const cdr_args *a; scratch s; bool wants_dx, wants_dw; } bwd;

static void *output(const bwd *b, int k) { return b->a->ptr[CDR__EXB_N + k]; }
static const cdr_type *output_type(const bwd *b, int k) { return &b->a->type[CDR__EXB_N + k]; }

static size_t lay_thread(const experts *x, void *base, thread *th)
{
    const cdr__gemm_isa *isa = x->isa->gemm;
    bump b = { base, 0 };
    th->w[GATE] = cdr__experts_panels(x, 0, true, &b);
    th->w[UP] = cdr__experts_panels(x, 1, true, &b);
    th->w[BACK] = cdr__experts_panels(x, 2, false, &b);
    th->w[DX_GATE] = cdr__experts_panels(x, 0, false, &b);
    th->w[DX_UP] = cdr__experts_panels(x, 1, false, &b);
    th->t = bump_floats(&b, TILE * x->ld_I);
    th->b = bump_take(&b, (size_t)(4 * cdr_ceil_div(CDR_MAX(x->L, x->I), isa->nr) * isa->nr * BLOCK_K));
    return b.at;
}

static size_t lay(const experts *x, void *base, scratch *s)
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
    s->dx = bump_floats(&b, x->cap * x->row_L);
    s->acc = x->cap < x->R ? bump_floats(&b, x->T * x->L) : NULL;
    s->sums = bump_floats(&b, 3 * x->L * x->n_threads);
    s->list = bump_take(&b, (size_t)cdr__experts_max_tiles(x, s->chunk) * sizeof(tile));
    s->segments = bump_take(&b, (size_t)CDR_MIN(x->E, s->chunk) * sizeof(tile));
    s->thread_bytes = lay_thread(x, NULL, &th);
    s->threads = bump_take(&b, s->thread_bytes * (size_t)x->n_threads);
    return b.at;
}

size_t cdr__experts_bwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads)
{
    const experts x = cdr__experts_open(isa, attr, t + CDR__EXB_X, NULL, n_threads);
    scratch s;
    return lay(&x, NULL, &s);
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */
/* g_r and c_r of a tile: kept ones, or (1) again */
static void gate_up(const bwd *b, thread *th, const tile *k, const float *x_mL, float *gate, float *up)
{
    const experts *x = &b->x;
    const int64_t m = k->end - k->first, I = x->I;
    void *gu = b->a->ptr[CDR__EXB_GU];
    const cdr_type *t = &b->a->type[CDR__EXB_GU];
    for (int64_t i = 0; i < m && gu; i++) {
        const char *row = cdr_row(gu, t, k->first + i);
        cdr_to_f32(t->dtype, row, gate + i * x->ld_I, I);
        cdr_to_f32(t->dtype, row + cdr_dtype_bytes(t->dtype, I), up + i * x->ld_I, I);
    }
    if (gu) return;
    cdr__product p = { .m = m, .a = x_mL, .a_row = x->ld_L, .c = gate, .ldc = x->ld_I, .first = true };
    cdr__experts_mul(x, &th->w[GATE], k->expert, p);
    p.c = up;
    cdr__experts_mul(x, &th->w[UP], k->expert, p);
    for (int64_t i = 0; i < m; i++) cdr__experts_round_gu(x, NULL, NULL, k->first + i, gate + i * x->ld_I, up + i * x->ld_I);
}

/* (3) for one row: t becomes dh, gate and up become dg and dc, h is made, du becomes p du. */
static void act_row(const bwd *b, int64_t r, float *t, float *gate, float *up, float *h, float *du)
{
    const experts *x = &b->x;
    const int64_t q = pair_of(x, r), I = x->I, L = x->L;
    const float p = weight_of(x, q);
    memcpy(h, up, (size_t)I * sizeof(float));
    if (x->at->situ) x->isa->situ->forward(gate, h, I, &x->situ);
    else x->isa->silu(gate, h, I);
    if (output(b, CDR__EXB_DP)) {
        float *dp = output(b, CDR__EXB_DP);
        dp[q / x->A * cdr_type_pitch(output_type(b, CDR__EXB_DP)) + q % x->A] = cdr_dot(t, h, I);
    }
    for (int64_t i = 0; i < I; i++) t[i] *= p;
    if (x->at->situ) x->isa->situ->backward(t, gate, up, I, &x->situ);
    else x->isa->silu_bwd(t, gate, up, I);
    for (int64_t l = 0; l < L; l++) du[l] *= p;
}

/* r_chunk: the routed row in the chunk's first place; r0: in the round's */
static void run_tile(const bwd *b, thread *th, const tile *k, int64_t r_chunk, int64_t r0)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    const int64_t m = k->end - k->first, at = k->first - r_chunk;
    float *x_mL = s->x + at * x->ld_L, *du = s->du + at * x->ld_L, *h = s->h + at * x->ld_I;
    float *gate = s->gate + at * x->ld_I, *up = s->up + at * x->ld_I;
    cdr__experts_gather(x, x->ptr[CDR__EX_X], &x->t[CDR__EX_X], k, x_mL, x->ld_L);
    cdr__experts_gather(x, b->a->ptr[CDR__EXB_DU], &b->a->type[CDR__EXB_DU], k, du, x->ld_L);
    gate_up(b, th, k, x_mL, gate, up);
    cdr__experts_mul(x, &th->w[BACK], k->expert, (cdr__product){ .m = m, .a = du, .a_row = x->ld_L, .c = th->t, .ldc = x->ld_I, .first = true });
    for (int64_t i = 0; i < m; i++)
        act_row(b, k->first + i, th->t + i * x->ld_I, gate + i * x->ld_I, up + i * x->ld_I, h + i * x->ld_I, du + i * x->ld_L);
    if (!b->wants_dx) return;
    cdr__product p = { .m = m, .a = gate, .a_row = x->ld_I, .c = s->dx + (k->first - r0) * x->row_L, .ldc = x->row_L, .first = true };
    cdr__experts_mul(x, &th->w[DX_GATE], k->expert, p);
    p.a = up;
    p.first = false;
    cdr__experts_mul(x, &th->w[DX_UP], k->expert, p);
}

/* ---- weight gradients -------------------------------------------------------------------------------------------------- */
/* dW (+)= A^T B over rows: [n_a][n_b]; rows of A and B are ld floats apart. */
typedef struct { const float *a, *b; int64_t n_a, ld_a, n_b, ld_b; void *dw; const cdr_type *t; } outer;

static outer outer_of(const bwd *b, int which)
{
    const experts *x = &b->x;
    const scratch *s = &b->s;
    outer o = { .dw = output(b, CDR__EXB_DW1 + which), .t = output_type(b, CDR__EXB_DW1 + which) };
    if (which == 2) {
        o.a = s->du, o.n_a = x->L, o.ld_a = x->ld_L;
        o.b = s->h, o.n_b = x->I, o.ld_b = x->ld_I;
    } else {
        o.a = which == 0 ? s->gate : s->up, o.n_a = x->I, o.ld_a = x->ld_I;
        o.b = s->x, o.n_b = x->L, o.ld_b = x->ld_L;
    }
    return o;
}

/* Rows i0 .. of the segment's expert's dW, over the segment's rows of the chunk. A is read where it lies, across its rows: packing it
 * first was not faster. starts: no chunk before had rows of this expert. */
static void run_block(const bwd *b, thread *th, const outer *o, const tile *seg, int64_t r_chunk, int64_t i0)
{
    const cdr__gemm_isa *isa = b->x.isa->gemm;
    const bool starts = seg->first == row_offset(&b->x, seg->expert);
    const int64_t m = CDR_MIN(BLOCK_M, o->n_a - i0), pitch = cdr_type_pitch(o->t);
    float *c = (float *)o->dw + (seg->expert * o->n_a + i0) * pitch;
    for (int64_t r = seg->first; r < seg->end; r += BLOCK_K) {
        const int64_t k = CDR_MIN(BLOCK_K, seg->end - r), at = r - r_chunk;
        isa->pack_b[CDR_F32][0](&(cdr__pack){ .src = o->b + at * o->ld_b, .pitch = o->ld_b, .n_i = o->n_b, .n_p = k, .dst = th->b, .ld = isa->nr * k });
        cdr__experts_product(isa, &(cdr__product){ .m = m, .k = k, .n = o->n_b, .a = o->a + at * o->ld_a + i0, .a_row = 1, .a_col = o->ld_a,
            .a_group = isa->mr, .b = th->b, .c = c, .ldc = pitch, .first = starts && r == seg->first });
    }
}

static int64_t blocks_of(const outer *o) { return o->dw ? cdr_ceil_div(o->n_a, BLOCK_M) : 0; }

/* Called by every thread of a team. */
static void run_weights(const bwd *b, thread *th, int64_t n_segments, int64_t r_chunk)
{
    const outer o[3] = { outer_of(b, 0), outer_of(b, 1), outer_of(b, 2) };
    const int64_t n = blocks_of(&o[0]) + blocks_of(&o[1]) + blocks_of(&o[2]);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < n_segments * n; i++) {
        int64_t block = i % n, which = 0;
        for (; block >= blocks_of(&o[which]); which++) block -= blocks_of(&o[which]);
        run_block(b, th, &o[which], &b->s.segments[i / n], r_chunk, block * BLOCK_M);
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
/* What no row reaches: dp of pairs without a row, dW of experts without rows. */
static void clear(const bwd *b)
{
    const experts *x = &b->x;
    const int32_t *pos = x->ptr[CDR__EX_POS];
    const int64_t pos_pitch = cdr_type_pitch(&x->t[CDR__EX_POS]);
    float *dp = output(b, CDR__EXB_DP);
    for (int64_t t = 0; t < x->T && dp; t++)
        for (int64_t s = 0; s < x->A; s++)
            if (pos[t * pos_pitch + s] < 0) dp[t * cdr_type_pitch(output_type(b, CDR__EXB_DP)) + s] = 0.0f;
    for (int64_t e = 0; e < x->E; e++) {
        if (row_offset(x, e) < row_offset(x, e + 1)) continue;
        for (int which = 0; which < 3; which++) {
            const cdr_type *t = output_type(b, CDR__EXB_DW1 + which);
            void *dw = output(b, CDR__EXB_DW1 + which);
            for (int64_t i = 0; dw && i < t->n[1]; i++) memset(cdr_row(dw, t, e * t->n[1] + i), 0, (size_t)t->n[2] * sizeof(float));
        }
    }
}

/* Rows r_chunk .. r_end - 1, of the round that begins at r0 */
static void run_chunk(const bwd *b, int64_t r_chunk, int64_t r_end, int64_t r0)
{
    const experts *x = &b->x;
    const int64_t n = cdr__experts_tiles(x, r_chunk, r_end, b->s.list), n_segments = segments(x, r_chunk, r_end, b->s.segments);
#pragma omp parallel num_threads(x->n_threads)
    {
        int64_t first, last;
        thread th;
        lay_thread(x, b->s.threads + (size_t)omp_get_thread_num() * b->s.thread_bytes, &th);
        cdr__experts_share(b->s.list, n, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
        for (int64_t i = first; i < last; i++) run_tile(b, &th, &b->s.list[i], r_chunk, r0);
#pragma omp barrier
        if (b->wants_dw) run_weights(b, &th, n_segments, r_chunk);
    }
}

cdr_status cdr__experts_bwd(const cdr_args *a, const cdr__experts_isa *isa)
{
    bwd b = { .x = cdr__experts_open(isa, a->attr, a->type + CDR__EXB_X, a->ptr + CDR__EXB_X, a->lane->n_threads), .a = a };
    const experts *x = &b.x;
    const int64_t rows = row_offset(x, x->E);
    lay(x, a->work, &b.s);
    b.wants_dx = output(&b, CDR__EXB_DX) != NULL;
    b.wants_dw = output(&b, CDR__EXB_DW1) || output(&b, CDR__EXB_DW3) || output(&b, CDR__EXB_DW2);
    assert(rows <= x->R);
    clear(&b);
    int64_t r0 = 0;
    do {
        const int64_t r1 = CDR_MIN(r0 + x->cap, rows);
        for (int64_t r = r0; r < r1; r += b.s.chunk) run_chunk(&b, r, CDR_MIN(r + b.s.chunk, r1), r0);
        combine c = { .rows = b.s.dx, .row_t = cdr_type_2d(CDR_F32, x->cap, x->L), .r0 = r0, .r1 = r1, .first = r0 == 0, .last = r1 == rows,
                      .add = (a->add & 1u) != 0, .acc = b.s.acc, .out = output(&b, CDR__EXB_DX), .out_t = output_type(&b, CDR__EXB_DX),
                      .scratch = b.s.sums, .per_thread = 3 * x->L };
        c.row_t.pitch = x->row_L;
        if (b.wants_dx) {
#pragma omp parallel num_threads(x->n_threads)
            cdr__experts_combine(x, &c);
        }
        r0 = r1;
    } while (r0 < rows);
    return CDR_OK;
}
