/* forward.c: equations (1), (2), (2a) of op.c. A round: its rows by tiles, then the sums of each token's rows. */
#include "ops/experts/kernel.h"
#include <math.h>

enum { GATE, UP, DOWN, N_W };

/* One thread's scratch; [tile] rows each. low: B1, B3, A2 of (2a); h1, h3, v */
typedef struct { panels w[N_W], low_w[3]; float *x, *gate, *up, *y, *low[3]; } thread;
typedef struct { char *rows; float *acc, *sums; tile *list; char *threads; } scratch;

static size_t lay_thread(const experts *x, void *base, thread *th)
{
    bump b = { base, 0 };
    const cdr__experts_block block = cdr__experts_block_take(x, &b);
    th->w[GATE] = cdr__experts_panels(x, CDR__EX_W1, true, &block, &b);
    th->w[UP] = cdr__experts_panels(x, CDR__EX_W3, true, &block, &b);
    th->w[DOWN] = cdr__experts_panels(x, CDR__EX_W2, true, &block, &b);
    th->x = bump_floats(&b, x->tile * x->ld_L);
    th->gate = bump_floats(&b, x->tile * x->ld_I);
    th->up = bump_floats(&b, x->tile * x->ld_I);
    th->y = bump_floats(&b, x->tile * x->ld_L);
    for (int m = 0; m < 3; m++) {
        if (x->low[m] == 0) continue;
        th->low_w[m] = cdr__experts_panels(x, m < 2 ? CDR__EX_B1 + 2 * m : CDR__EX_A2, true, &block, &b);
        th->low[m] = bump_floats(&b, x->tile * x->ld_low[m]);
    }
    return b.at;
}

static size_t lay(const experts *x, void *base, scratch *s)
{
    bump b = { base, 0 };
    s->rows = bump_take(&b, (size_t)cdr_dtype_bytes(x->t[CDR__EX_X].dtype, x->cap * x->W_out));
    s->acc = x->cap < x->R ? bump_floats(&b, x->T * x->W_out) : NULL;
    s->sums = bump_floats(&b, 3 * x->W_out * x->n_threads);
    s->list = bump_take(&b, (size_t)cdr__experts_max_tiles(x, x->cap) * sizeof(tile));
    s->threads = bump_take(&b, cdr__experts_fwd_thread_bytes(x) * (size_t)x->n_threads);
    return b.at;
}

size_t cdr__experts_fwd_bytes(const cdr__experts_isa *isa, const void *attr, const cdr_type *t, int n_threads)
{
    const experts x = cdr__experts_open(isa, attr, t, NULL, n_threads);
    scratch s;
    return lay(&x, NULL, &s);
}

static void down_once(const experts *x, thread *th, int64_t e, cdr__product p)
{
    cdr__experts_mul(x, &th->w[DOWN], e, p);
    p.c = th->low[2];
    p.ldc = x->ld_low[2];
    p.a_packed = true;
    if (x->low[2] > 0) cdr__experts_mul(x, &th->low_w[2], e, p);
}

/* W2 h, and A2 h where that is wanted: h is packed once for both. A product of BF16 takes h as the sum of two, its nearest and what that
 * leaves: h itself is not rounded in (2), and rounding it took "T29 k2 E5 L18 I9" of the cases to a distance of 4.3e-3, of 4e-3 that are
 * allowed. Costs a third more in all. An expert's own adapter took the whole h with the first of the two. */
static void down(const experts *x, thread *th, int64_t e, int64_t m)
{
    cdr__product p = { .m = m, .a = cdr__units(th->up), .a_row = x->ld_I, .c = th->y, .ldc = x->ld_L, .first = true };
    down_once(x, th, e, p);
    if (x->isa->gemm->pair == 1) return;
    for (int64_t i = 0; i < m; i++) {
        float *nearest = th->gate + i * x->ld_I, *h = th->up + i * x->ld_I;
        memcpy(nearest, h, (size_t)x->I * sizeof(float));
        x->isa->round[CDR_BF16](nearest, x->I);
        for (int64_t l = 0; l < x->I; l++) h[l] = isfinite(nearest[l]) ? h[l] - nearest[l] : 0.0f;      /* inf - inf would make NaN of inf */
    }
    p.first = false;
    p.base_only = true;
    down_once(x, th, e, p);
}

/* B_e h of w1 or w3, added to what W_e x gave (2a) */
static void add_low(const experts *x, thread *th, int m, const tile *k, float *c)
{
    const cdr__rows_of what = m == 0 ? CDR__ROWS_H1 : CDR__ROWS_H3;
    if (x->low[m] == 0) return;
    cdr__experts_gather(x, what, &x->t[CDR__EX_A1 + 2 * m], k, th->low[m], x->ld_low[m]);
    cdr__experts_mul(x, &th->low_w[m], k->expert,
                     (cdr__product){ .m = k->end - k->first, .a = cdr__units(th->low[m]), .a_row = x->ld_low[m], .c = c, .ldc = x->ld_I });
}

static void run_tile(const experts *x, thread *th, const tile *k, const cdr__fwd_rows *y)
{
    const int64_t m = k->end - k->first, L = x->L, I = x->I;
    const cdr_type *tx = &x->t[CDR__EX_X];
    cdr__experts_gather(x, CDR__ROWS_X, tx, k, th->x, x->ld_L);
    const cdr__product in = { .m = m, .a = cdr__units(th->x), .a_row = x->ld_L, .ldc = x->ld_I, .first = true };
    cdr__product p = in;
    p.c = th->gate;
    cdr__experts_mul(x, &th->w[GATE], k->expert, p);
    p.c = th->up;
    p.a_packed = true;
    cdr__experts_mul(x, &th->w[UP], k->expert, p);
    add_low(x, th, 0, k, th->gate);
    add_low(x, th, 1, k, th->up);
    for (int64_t i = 0; i < m; i++) {
        float *gate = th->gate + i * x->ld_I, *up = th->up + i * x->ld_I;
        cdr__experts_round_gu(x, y->gu, y->gu_t, k->first + i, gate, up);
        if (x->at->situ) x->isa->situ->forward(gate, up, I, &x->situ);
        else x->isa->silu(gate, up, I);
    }
    down(x, th, k->expert, m);
    for (int64_t i = 0; i < m; i++) {
        const int64_t r = k->first + i;
        const float w = weight_of(x, route_of(x, r));
        float *y_L = th->y + i * x->ld_L, *v_K = x->low[2] > 0 ? th->low[2] + i * x->ld_low[2] : NULL;
        char *row = y->rows + cdr_dtype_bytes(tx->dtype, (r - y->r0) * x->W_out);
        for (int64_t l = 0; l < L; l++) y_L[l] *= w;
        cdr_from_f32(tx->dtype, y_L, row, L);
        for (int64_t j = 0; j < x->low[2]; j++) v_K[j] *= w;
        if (x->low[2] > 0) cdr_from_f32(tx->dtype, v_K, row + cdr_dtype_bytes(tx->dtype, L), x->low[2]);
    }
}

size_t cdr__experts_fwd_thread_bytes(const experts *x)
{
    thread th;
    return lay_thread(x, NULL, &th);
}

void cdr__experts_fwd_tiles(const experts *x, char *threads, const tile *list, int64_t n, const cdr__fwd_rows *y)
{
    int64_t first, last;
    thread th;
    lay_thread(x, threads + (size_t)omp_get_thread_num() * cdr__experts_fwd_thread_bytes(x), &th);
    cdr__experts_share(list, n, omp_get_thread_num(), omp_get_num_threads(), &first, &last);
    if (x->isa->gemm->begin) x->isa->gemm->begin();
    for (int64_t i = first; i < last; i++) run_tile(x, &th, &list[i], y);
    if (x->isa->gemm->end) x->isa->gemm->end();
}

/* Rows that do not exist hold zeros in gu. */
static void clear_unused(const experts *x, const cdr_args *a)
{
    const cdr_type *t = &a->type[CDR__EX_N + 1];
    if (!a->ptr[CDR__EX_N + 1]) return;
#pragma omp for schedule(static)
    for (int64_t r = row_offset(x, x->E); r < x->R; r++)
        memset(cdr_row(a->ptr[CDR__EX_N + 1], t, r), 0, (size_t)cdr_dtype_bytes(t->dtype, 2 * x->I));
}

cdr_status cdr__experts_fwd(const cdr_args *a, const cdr__experts_isa *isa)
{
    const experts x = cdr__experts_open(isa, a->attr, a->type, a->ptr, a->lane->n_threads);
    const int64_t rows = row_offset(&x, x.E);
    scratch s;
    lay(&x, a->work, &s);
    assert(rows <= x.R);
    int64_t r0 = 0;
    do {
        const int64_t r1 = CDR_MIN(r0 + x.cap, rows), n = cdr__experts_tiles(&x, r0, r1, s.list);
        combine c = { .rows = s.rows, .row_t = cdr_type_2d(x.t[CDR__EX_X].dtype, x.cap, x.W_out), .r0 = r0, .r1 = r1, .first = r0 == 0,
                      .last = r1 == rows, .acc = s.acc, .scratch = s.sums };
        cdr__experts_parts_out(&x, a->ptr + CDR__EX_N, a->type + CDR__EX_N, CDR__EX_OUT_V, c.part);
        const cdr__fwd_rows y = { .rows = s.rows, .r0 = r0, .gu = a->ptr[CDR__EX_N + 1], .gu_t = &a->type[CDR__EX_N + 1] };
#pragma omp parallel num_threads(x.n_threads)
        {
            cdr__experts_fwd_tiles(&x, s.threads, s.list, n, &y);
            if (c.last) clear_unused(&x, a);
#pragma omp barrier
            cdr__experts_combine(&x, &c);
        }
        r0 = r1;
    } while (r0 < rows);
    return CDR_OK;
}
