/* tiles.c: tiles of routed rows, products, sums of a token's rows; kernel.h says what each is for.
 * The micro-kernels are those of the matrix product (ops/linear/gemm_isa.h). */
#include "ops/experts/kernel.h"

static int64_t round_up(int64_t x, int64_t to) { return cdr_ceil_div(x, to) * to; }

experts cdr__experts_open(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, void *const *ptr, int n_threads)
{
    const cdr_experts_attr *at = attr;
    experts x = { .isa = isa, .at = at, .situ = { at->beta, at->linear_beta }, .t = t, .ptr = ptr, .n_threads = n_threads,
                  .T = t[CDR__EX_X].n[0], .L = t[CDR__EX_X].n[1], .I = t[CDR__EX_W1].n[1], .E = t[CDR__EX_W1].n[0], .A = at->top_k, .S = 1, .n_chains = 1,
                  .E_home = t[CDR__EX_W1].n[0] };
    x.streams = x.L * x.I > PACKED_UNITS;
    x.tile = round_up(x.streams ? LONG_TILE : TILE, cdr__experts_tile_unit(isa));
    for (int m = 0; m < 3; m++) {
        x.low[m] = m < 2 ? cdr__ex_low_in(t, m) : cdr__ex_low_out(t);
        x.ld_low[m] = cdr__experts_ld(isa, x.low[m]);
    }
    x.W_in = cdr__ex_row_in(t);
    x.W_out = cdr__ex_row_out(t);
    if (ptr) x.own = (origin){ .x = ptr[CDR__EX_X], .p = ptr[CDR__EX_P], .perm = ptr[CDR__EX_PERM] };
    for (int m = 0; m < 2 && ptr; m++) x.own.h[m] = x.low[m] > 0 ? ptr[CDR__EX_A1 + 2 * m] : NULL;
    x.R = x.T * x.A;
    x.cap = at->capacity > 0 ? CDR_MIN(at->capacity, x.R) : x.R;
    x.ld_L = cdr__experts_ld(isa, x.L);
    x.ld_I = cdr__experts_ld(isa, x.I);
    return x;
}

enum { EDGE = 32 * 64 };                  /* floats of the largest tile of a product */

/* ---- products -------------------------------------------------------------------------------------------------------- */
static void fetch_some(cdr__fetch *f, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (f->at == f->n && f->then) *f = *f->then;
        if (f->at >= f->n) return;
        __builtin_prefetch(f->p + f->line * 64, 0, 2);
        if (++f->line == f->lines) f->line = 0, f->p += f->pitch;
        f->at++;
    }
}

/* Part of a panel: through a tile of its own, into C without what lies beyond its columns. */
static void edge_tile(const cdr__gemm_isa *isa, cdr__tile t, float *c, int64_t ldc, int64_t cols)
{
    _Alignas(64) float edge[EDGE];
    for (int r = 0; r < t.rows && !t.first; r++) {
        for (int64_t j = 0; j < isa->nr; j++) edge[r * isa->nr + j] = j < cols ? c[r * ldc + j] : 0.0f;
    }
    t.c = edge;
    t.ldc = isa->nr;
    isa->kernel(&t);
    for (int r = 0; r < t.rows; r++) memcpy(c + r * ldc, edge + r * isa->nr, (size_t)cols * sizeof(float));
}

/* Columns j .., units u .. u + n_u - 1 of k: where they lie in B, in units, and where what follows them does */
typedef struct { int64_t j, u, n_u, at, next; } block;

static void run_rows(const cdr__gemm_isa *isa, const cdr__product *p, const block *k)
{
    const int64_t j = k->j, u = k->u, n_u = k->n_u, at = k->at, next = k->next;
    const bool whole = p->padded || p->n - j >= isa->nr;
    const int64_t lines = p->narrow ? CDR_MAX(isa->nr * 2 / 64, 1) : 0;
    cdr__tile t = { .a = p->a + u * p->a_col, .a_row = p->a_row, .a_col = p->a_col, .b = p->narrow ? p->wide : p->b + at, .c = p->c + j, .ldc = p->ldc, .k = n_u,
                    .first = p->first && u == 0 };
    assert(isa->mr * isa->nr <= EDGE && (whole || !p->narrow));
    for (int64_t i = 0, n = 0; i < p->m; i += isa->mr, n++) {
        t.rows = (int)CDR_MIN(p->m - i, isa->mr);
        if (p->narrow) t.ahead = n < lines ? (const char *)(p->narrow + next) + n * n_u * 64 : (const char *)p->wide;
        else t.ahead = (const char *)(i + isa->mr < p->m ? t.b : p->b + next);
        if (p->narrow && i == 0) {
            t.narrow = p->narrow + at;
            t.wide = p->wide;
            isa->kernel_widen(&t);
        } else if (whole) isa->kernel(&t);
        else edge_tile(isa, t, t.c, p->ldc, p->n - j);
        t.a += p->a_group;
        t.c += isa->mr * p->ldc;
        if (p->fetch) fetch_some(p->fetch, p->some);
    }
}

int64_t cdr__experts_block_k(const cdr__gemm_isa *isa, int64_t m, int64_t units)
{
    const int64_t l2 = isa->nr < 64 ? isa->a_units : 2 * isa->a_units;               /* machines with AVX-512 have 1 MiB and more */
    const int64_t most = CDR_MAX(l2 / CDR_MAX(round_up(m, isa->mr), 1) / isa->kb, 1) * isa->kb;
    return units <= most ? units : round_up(cdr_ceil_div(units, cdr_ceil_div(units, most)), isa->kb);
}

void cdr__experts_product(const cdr__gemm_isa *isa, const cdr__product *p)
{
    const int64_t kc = cdr__experts_block_k(isa, p->m, p->k), kb = p->kb > 0 ? p->kb : isa->kb;
    for (int64_t u0 = 0; u0 < p->k; u0 += kc) {
        const int64_t end = CDR_MIN(u0 + kc, p->k);
        for (int64_t j = 0, b = 0; j < p->n; j += isa->nr, b += p->b_ld)
            for (int64_t u = u0; u < end; u += kb) {
                block k = { .j = j, .u = u, .n_u = CDR_MIN(end - u, kb), .at = b + u * isa->nr };
                k.next = u + k.n_u < end ? k.at + k.n_u * isa->nr : j + isa->nr < p->n ? b + p->b_ld + u0 * isa->nr : end * isa->nr;
                run_rows(isa, p, &k);
            }
    }
}

/* ---- tiles ---------------------------------------------------------------------------------------------------------- */
int64_t cdr__experts_max_tiles(const experts *x, int64_t rows) { return rows / x->tile + CDR_MIN(x->E, rows) + 1; }

int64_t cdr__experts_tile_rows(const experts *x, int64_t rows)
{
    return round_up(cdr_ceil_div(rows, cdr_ceil_div(rows, x->tile)), cdr__experts_tile_unit(x->isa));
}

int64_t cdr__experts_cut(const experts *x, int64_t e, int64_t first, int64_t end, tile *list)
{
    int64_t n = 0;
    if (first >= end) return 0;
    const int64_t rows = cdr__experts_tile_rows(x, end - first);
    for (int64_t r = first; r < end; r += rows) list[n++] = (tile){ e, r, CDR_MIN(r + rows, end) };
    return n;
}

int64_t cdr__experts_tiles(const experts *x, int64_t r0, int64_t r1, tile *list)
{
    int64_t n = 0;
    for (int64_t e = 0; e < x->E; e++) {
        const int64_t first = CDR_MAX(row_offset(x, e), r0), end = CDR_MIN(row_offset(x, e + 1), r1);
        assert(row_offset(x, e) <= row_offset(x, e + 1));
        n += cdr__experts_cut(x, e, first, end, list + n);
    }
    return n;
}

void cdr__experts_share(const tile *list, int64_t n, int me, int n_threads, int64_t *first, int64_t *last)
{
    enum { FIXED = 12 };                 /* of a tile, in rows: about what packing costs */
    int64_t total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) total += list[i].end - list[i].first + FIXED;
    *first = *last = n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t rows = list[i].end - list[i].first + FIXED;
        const int64_t owner = (2 * sum + rows) * n_threads / (2 * total);        /* where its middle lies */
        if (owner >= me && *first == n) *first = i;
        if (owner > me) {
            *last = i;
            break;
        }
        sum += rows;
    }
}

/* Tokens of an expert lie apart: no hardware prefetcher sees the next row. */
static void prefetch_row(const char *row, int64_t bytes)
{
    for (int64_t at = 0; at < CDR_MIN(bytes, 1024); at += 64) __builtin_prefetch(row + at);
}

static const char *token_row(const experts *x, cdr__rows_of what, int64_t r, int64_t stride)
{
    const route q = route_of(x, r);
    const origin *o = origin_of(x, q.source);
    const void *const of[] = { o->x, o->du, o->h[0], o->h[1], o->dv };
    return (const char *)of[what] + q.pair / x->A * stride;
}

void cdr__experts_gather(const experts *x, cdr__rows_of what, const cdr_type *t, const tile *k, float *dst, int64_t ld)
{
    enum { AHEAD = 8 };
    const int64_t m = k->end - k->first, n = cdr_type_cols(t);
    const int64_t stride = cdr_dtype_bytes(t->dtype, cdr_type_pitch(t)), bytes = cdr_dtype_bytes(t->dtype, n);
    void (*const widen)(const void *, float *, int64_t) = cdr_dtype_row(t->dtype)->to_f32;
    for (int64_t i = 0; i < CDR_MIN(m, AHEAD); i++) prefetch_row(token_row(x, what, k->first + i, stride), bytes);
    for (int64_t i = 0; i < m; i++) {
        if (i + AHEAD < m) prefetch_row(token_row(x, what, k->first + i + AHEAD, stride), bytes);
        widen(token_row(x, what, k->first + i, stride), dst + i * ld, n);
    }
}

void cdr__experts_round_gu(const experts *x, void *gu, const cdr_type *t, int64_t r, float *gate_I, float *up_I)
{
    const int dtype = x->t[CDR__EX_X].dtype;
    const int64_t I = x->I;
    if (x->isa->round[dtype]) {
        x->isa->round[dtype](gate_I, I);
        x->isa->round[dtype](up_I, I);
    }
    if (!gu) return;
    char *row = cdr_row(gu, t, r);
    cdr_from_f32(dtype, gate_I, row, I);
    cdr_from_f32(dtype, up_I, row + cdr_dtype_bytes(dtype, I), I);
}

/* ---- sums of a token's rows ------------------------------------------------------------------------------------------ */
/* Rows of token t, ascending, which is the order of experts; slots are so already unless the routes were not sorted. */
static int64_t rows_of(const experts *x, int64_t t, int64_t row[64])
{
    const int32_t *pos = (const int32_t *)x->ptr[CDR__EX_POS] + t * cdr_type_pitch(&x->t[CDR__EX_POS]);
    int64_t n = 0;
    for (int64_t s = 0; s < x->A; s++) {
        if (pos[s] < 0) continue;
        int64_t i = n++;
        for (; i > 0 && row[i - 1] > pos[s]; i--) row[i] = row[i - 1];
        row[i] = pos[s];
    }
    return n;
}

static void prefetch_rows(const experts *x, const combine *c, int64_t t)
{
    const int32_t *pos = (const int32_t *)x->ptr[CDR__EX_POS] + t * cdr_type_pitch(&x->t[CDR__EX_POS]);
    const int64_t bytes = cdr_dtype_bytes(c->row_t.dtype, cdr_type_pitch(&c->row_t));
    for (int64_t s = 0; s < x->A; s++)
        if (pos[s] >= c->r0 && pos[s] < c->r1) prefetch_row(c->at ? c->at[pos[s]] : (const char *)c->rows + (pos[s] - c->r0) * bytes, bytes);
}

static void combine_part(const experts *x, const combine *c, const cdr__part *p, int64_t t, float *sum, float *row_L)
{
    int64_t row[64];
    const int64_t n = rows_of(x, t, row), at = cdr_dtype_bytes(c->row_t.dtype, p->at), bytes = cdr_dtype_bytes(c->row_t.dtype, c->row_t.n[1]);
    float *acc = c->first && c->last ? sum : c->acc + t * c->row_t.n[1] + p->at;
    if (c->first) memset(acc, 0, (size_t)p->n * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (row[i] < c->r0 || row[i] >= c->r1) continue;
        cdr_to_f32(c->row_t.dtype, (c->at ? (const char *)c->at[row[i]] : (const char *)c->rows + (row[i] - c->r0) * bytes) + at, row_L, p->n);
        for (int64_t l = 0; l < p->n; l++) acc[l] += row_L[l];
    }
    if (!c->last) return;
    if (p->add) cdr_row_add(acc, p->out, p->out_t, t, row_L);
    else cdr_row_store(acc, p->out, p->out_t, t);
}

void cdr__experts_parts_out(const experts *x, void *const *out, const cdr_type *out_t, int i_v, cdr__part *part)
{
    part[0] = (cdr__part){ .n = x->L, .out = out[0], .out_t = &out_t[0] };
    if (x->low[2] > 0) part[1] = (cdr__part){ .at = x->L, .n = x->low[2], .out = out[i_v], .out_t = &out_t[i_v] };
}

void cdr__experts_combine(const experts *x, const combine *c)
{
#pragma omp for schedule(static)
    for (int64_t t = 0; t < x->T; t++) {
        const int64_t width = c->row_t.n[1];
        float *sum = c->scratch + omp_get_thread_num() * 3 * width;
        if (t + 2 < x->T) prefetch_rows(x, c, t + 2);
        for (int i = 0; i < CDR__EX_PARTS; i++) if (c->part[i].out) combine_part(x, c, &c->part[i], t, sum, sum + width);
    }
}
