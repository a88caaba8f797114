/* attention, test cases. Documents of 1, 2, 63, 64, 65, .. rows (tile borders), one long document, idle rows, caches that
 * are longer than the queries with rows in any order, odd widths (base alone), wide heads, no shared part, pitch by
 * width; masks of selected keys, with both cores. Properties, bit for bit: a document alone = the document in a pack; later keys change no earlier row; rows one
 * at a time or in chunks against the keys as a cache = the whole. (The harness compares numbers of threads.) */
#include "ops/attention/attention.h"
#include <math.h>
#include <stdlib.h>

/* ---- inputs ----------------------------------------------------------------------------------------------------- */
static void fill_docs(double *start, double *pos, int64_t T, const int *len, int n_len)
{
    int64_t first = 0;
    for (int64_t t = 0, i = 0; t < T; t++) {
        if (t - first == len[i % n_len]) {
            first = t;
            i++;
        }
        start[t] = (double)first;
        pos[t] = (double)t;
    }
}
static void docs_mixed(double *start, double *pos, int64_t T)
{
    static const int len[] = { 1, 2, 63, 64, 65, 7, 128, 33, 1, 1, 96, 5 };
    fill_docs(start, pos, T, len, CDR_COUNT(len));
}
static void make_mixed(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    docs_mixed(in[3], in[4], t[0].n[0]);
}
static void make_one(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int T = (int)t[0].n[0];
    (void)key;
    fill_docs(in[3], in[4], T, &T, 1);
}
/* every third row sees nothing, the other pairs are documents */
static void make_idle(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[0].n[0]; i++) {
        in[3][i] = (double)(i % 3 == 2 ? i + 1 : i - i % 3);
        in[4][i] = (double)i;
    }
}
/* documents of 10 rows, an idle row behind each */
static void make_idle_11(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[0].n[0]; i++) {
        in[3][i] = (double)(i % 11 == 10 ? i + 1 : i - i % 11);
        in[4][i] = (double)i;
    }
}
/* queries of a cache: rows in no order, some idle */
static void make_cache(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t S = t[1].n[0];
    for (int64_t i = 0; i < t[0].n[0]; i++) {
        in[4][i] = (double)(cdr_rng_u64(key, (uint64_t)i) % (uint64_t)S);
        in[3][i] = i % 5 == 4 ? in[4][i] + 1 : floor(in[4][i] / (double)(1 + i % 3));
    }
}
/* a prefill of consecutive rows that starts in the middle of the cache */
static void make_prefill(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t T = t[0].n[0], S = t[1].n[0];
    (void)key;
    for (int64_t i = 0; i < T; i++) {
        in[4][i] = (double)(S - T + i);
        in[3][i] = 3;
    }
}

/* A mask: about every third key of what a row may see, whole tiles of some rows empty, at least one; and bits where a row must not
 * look, before its document and behind its own place. */
static void add_mask(double *mask_TB, const double *start, const double *pos, int64_t T, int64_t S, cdr_rng_key key)
{
    int64_t words = cdr_ceil_div(S, 32);
    cdr_rng_key own = { key.seed, 77, 0 };
    for (int64_t t = 0; t < T; t++) {
        uint32_t any = 0, row[64] = { 0 };
        CDR_CHECK(words <= 64);
        for (int64_t s = 0; s < S; s++) {
            bool seen = (double)s >= start[t] && (double)s <= pos[t], outside = !seen && (s + t) % 4 == 0;
            bool taken = seen && cdr_rng_u64(own, (uint64_t)(t * S + s)) % 3 == 0 && (s / 70 + t / 5) % 3 != 1;
            if (taken) any = 1;
            if (taken || outside) row[s / 32] |= (uint32_t)1 << (s % 32);
        }
        int64_t last = (int64_t)pos[t];
        if (!any && start[t] <= pos[t]) row[last / 32] |= (uint32_t)1 << (last % 32);
        for (int64_t w = 0; w < words; w++) mask_TB[t * words + w] = (double)(int32_t)row[w];
    }
}
#define MASKED(NAME, DOCS) static void NAME(double *const *in, const cdr_type *t, cdr_rng_key key) \
    { DOCS(in, t, key); add_mask(in[CDR__ATT_SEL], in[3], in[4], t[0].n[0], t[1].n[0], key); }
MASKED(mask_mixed, make_mixed)
MASKED(mask_one, make_one)
MASKED(mask_idle, make_idle_11)
MASKED(mask_cache, make_cache)
MASKED(mask_prefill, make_prefill)

/* o and lse of the backward's inputs by the reference forward */
static void make_saved(double *const *in, const cdr_type *t, const cdr_attention_attr *a)
{
    const double *fin[6] = { in[1], in[2], in[3], in[4], in[5], in[8] };
    size_t n = (size_t)(t[1].n[0] * a->heads * a->v);
    double *o = malloc(n * sizeof(double));
    double *out[3] = { o, in[6], in[7] };
    cdr_type ft[6] = { t[1], t[2], t[3], t[4], t[5], t[8] };
    cdr_ref_args r = { a, 6, 3, ft, fin, out };
    CDR_CHECK(o);
    cdr_op_attention.ref(&r);
    free(o);
}

#define AT(H, N, E, V, s) { .heads = H, .nope = N, .ext = E, .v = V, .scale = s }
#define GATHERED(H, N, E, V, s) { .heads = H, .nope = N, .ext = E, .v = V, .scale = s, .core = CDR_ATT_GATHERED }
static const cdr_attention_attr
    a_small = AT(2, 8, 8, 16, 0.25f), a_odd = AT(3, 5, 3, 7, 0.35f), a_nope = AT(2, 16, 0, 24, 0.25f), a_rope = AT(2, 0, 16, 8, 0.25f),
    a_mla = AT(2, 128, 64, 128, 0.0721687836f), a_sharp = AT(2, 32, 32, 64, 2.0f), a_one = AT(1, 8, 0, 8, 0.35f), a_256 = AT(1, 192, 64, 256, 0.0625f),
    a_small_g = GATHERED(2, 8, 8, 16, 0.25f), a_odd_g = GATHERED(3, 5, 3, 7, 0.35f), a_nope_g = GATHERED(2, 16, 0, 24, 0.25f),
    a_mla_g = GATHERED(2, 128, 64, 128, 0.0721687836f),
    a_small_o32 = { .heads = 2, .nope = 8, .ext = 8, .v = 16, .scale = 0.25f, .o_f32 = 1 },
    a_mla_g_o32 = { .heads = 2, .nope = 128, .ext = 64, .v = 128, .scale = 0.0721687836f, .core = CDR_ATT_GATHERED, .o_f32 = 1 };

#define SAVED(NAME, DOCS) static void NAME(double *const *in, const cdr_type *t, cdr_rng_key key) \
    { DOCS(in + 1, t + 1, key); make_saved(in, t, saved_attr(t)); }
/* the attribute that belongs to these shapes: q, kv and kr tell heads apart in the table below */
static const cdr_attention_attr *saved_attr(const cdr_type *t)
{
    static const cdr_attention_attr *const all[] = { &a_small, &a_odd, &a_nope, &a_rope, &a_mla, &a_sharp, &a_one, &a_256 };
    int64_t ext = t[3].n_dim == 2 ? t[3].n[1] : 0;
    for (int i = 0; i < CDR_COUNT(all); i++) {
        const cdr_attention_attr *a = all[i];
        if (t[1].n[1] == (int64_t)a->heads * (a->nope + a->ext) && t[0].n[1] == (int64_t)a->heads * a->v && ext == a->ext) return a;
    }
    cdr_check_failed("no attribute has these shapes", __FILE__, __LINE__);
}
SAVED(saved_mixed, make_mixed)
SAVED(saved_one, make_one)
SAVED(saved_idle, make_idle)
#define SAVED_MASK(NAME, DOCS) static void NAME(double *const *in, const cdr_type *t, cdr_rng_key key) \
    { DOCS(in + 1, t + 1, key); add_mask(in[CDR__ATB_SEL], in[4], in[5], t[1].n[0], t[1].n[0], key); make_saved(in, t, saved_attr(t)); }
SAVED_MASK(saved_mask_mixed, make_mixed)
SAVED_MASK(saved_mask_one, make_one)
SAVED_MASK(saved_mask_idle, make_idle_11)

/* ---- properties ------------------------------------------------------------------------------------------------- */
static uint32_t usable_isa(const cdr_args *a) { return a->lane->device ? a->lane->device->isa : cdr_cpu_isa(NULL); }

/* Runs a kernel on operands of its own scratch. */
static void run_kernel(const cdr_kernel *k, const cdr_args *like, const cdr_type *type, void *const *ptr, int n_threads)
{
    cdr_lane lane = { .n_threads = n_threads };
    size_t bytes = k->work_bytes ? k->work_bytes(like->attr, like->n_in, like->n_out, type, n_threads) : 0;
    void *work = aligned_alloc(64, cdr_align_up(bytes + 1, 64));
    CDR_CHECK(work);
    cdr_args a = { .attr = like->attr, .type = type, .ptr = ptr, .n_in = like->n_in, .n_out = like->n_out, .work = work, .lane = &lane };
    CDR_CHECK(k->run(&a) == CDR_OK);
    free(work);
}

typedef struct { const cdr_args *a; const cdr_kernel *k; cdr_type type[16]; void *ptr[16]; int n; } trial;

/* A copy of all operands, outputs filled with NaN. */
static trial trial_new(const cdr_args *a, const cdr_kernel *k)
{
    trial r = { .a = a, .k = k, .n = a->n_in + a->n_out };
    for (int i = 0; i < r.n; i++) {
        r.type[i] = a->type[i];
        if (!a->ptr[i]) continue;
        size_t bytes = cdr_type_bytes(&a->type[i]);
        r.ptr[i] = malloc(bytes + 1);
        CDR_CHECK(r.ptr[i]);
        if (i < a->n_in) memcpy(r.ptr[i], a->ptr[i], bytes);
        else memset(r.ptr[i], 0xff, bytes);
    }
    return r;
}
static void trial_free(trial *r)
{
    for (int i = 0; i < r->n; i++) free(r->ptr[i]);
}
static void trial_run(trial *r, int n_threads) { run_kernel(r->k, r->a, r->type, r->ptr, n_threads); }
static size_t row_bytes(const cdr_type *t) { return (size_t)cdr_dtype_bytes(t->dtype, t->n_dim == 1 ? 1 : cdr_type_pitch(t)); }
static char *row_at(const trial *r, int i, int64_t row) { return (char *)r->ptr[i] + (size_t)row * row_bytes(&r->type[i]); }
static bool same_rows(const trial *x, int64_t x_row, const trial *y, int64_t y_row, int64_t n)
{
    for (int i = x->a->n_in; i < x->n; i++) {
        if (!x->ptr[i]) continue;
        size_t used = (size_t)cdr_dtype_bytes(x->type[i].dtype, cdr_type_cols(&x->type[i]));
        for (int64_t t = 0; t < n; t++)
            if (memcmp(row_at(x, i, x_row + t), row_at(y, i, y_row + t), used) != 0) return false;
    }
    return true;
}

/* Row `row` of the mask y, whose key s is key s + a0 of row `x_row` of the mask x. */
static void shift_bits(const void *x, const cdr_type *tx, int64_t x_row, int64_t a0, void *y, const cdr_type *ty, int64_t row)
{
    const uint32_t *from = (const uint32_t *)x + x_row * tx->n[1];
    uint32_t *to = (uint32_t *)y + row * ty->n[1];
    memset(to, 0, (size_t)ty->n[1] * sizeof(uint32_t));
    for (int64_t s = 0; s < 32 * ty->n[1]; s++)
        if (s + a0 < 32 * tx->n[1] && (from[(s + a0) / 32] >> ((s + a0) % 32) & 1u) != 0) to[s / 32] |= (uint32_t)1 << (s % 32);
}

/* Rows [a0, b0) of all operands as a pack of their own; start_at: index of the operand start. */
static bool alone_equals(trial *whole, int start_at, int64_t a0, int64_t b0)
{
    trial part = trial_new(whole->a, whole->k);
    int sel = start_at == CDR__ATT_START ? CDR__ATT_SEL : CDR__ATB_SEL;
    for (int i = 0; i < part.n; i++) {
        if (!part.ptr[i]) continue;
        part.type[i].n[0] = b0 - a0;
        if (i == sel) part.type[i].n[1] = cdr_ceil_div(b0 - a0, 32);
        else if (i < part.a->n_in) memmove(part.ptr[i], row_at(&part, i, a0), cdr_type_bytes(&part.type[i]));
    }
    for (int64_t t = 0; t < b0 - a0; t++) {
        ((int32_t *)part.ptr[start_at])[t] -= (int32_t)a0;
        ((int32_t *)part.ptr[start_at + 1])[t] -= (int32_t)a0;
        if (part.ptr[sel]) shift_bits(whole->ptr[sel], &whole->type[sel], a0 + t, a0, part.ptr[sel], &part.type[sel], t);
    }
    trial_run(&part, 1);
    bool same = same_rows(&part, 0, whole, a0, b0 - a0);
    trial_free(&part);
    return same;
}
static bool packs(trial *whole, int start_at)
{
    const int32_t *start = whole->ptr[start_at];
    int64_t T = whole->type[start_at].n[0];
    for (int64_t a0 = 0, b0; a0 < T; a0 = b0) {
        for (b0 = a0 + 1; b0 < T && start[b0] == start[a0]; b0++) {}
        if (!alone_equals(whole, start_at, a0, b0)) return false;
    }
    return true;
}

/* Keys from row s on are replaced by NaN: rows before s keep their bits. */
static bool is_causal(trial *whole, int64_t s)
{
    trial r = trial_new(whole->a, whole->k);
    int64_t T = whole->type[CDR__ATT_KV].n[0];
    for (int i = CDR__ATT_KV; i <= CDR__ATT_KR; i++)
        if (r.ptr[i]) memset(row_at(&r, i, s), 0xff, cdr_type_bytes(&r.type[i]) - (size_t)s * row_bytes(&r.type[i]));
    trial_run(&r, 1);
    bool same = same_rows(&r, 0, whole, 0, CDR_MIN(s, T));
    trial_free(&r);
    return same;
}

/* n query rows from row t0 on, against all keys as a cache */
static bool decode_equals(trial *whole, int64_t t0, int64_t n)
{
    trial r = trial_new(whole->a, whole->k);
    for (int i = 0; i < r.n; i++) {
        if (!r.ptr[i] || i == CDR__ATT_KV || i == CDR__ATT_KR) continue;
        r.type[i].n[0] = n;
        if (i < r.a->n_in) memmove(r.ptr[i], row_at(&r, i, t0), cdr_type_bytes(&r.type[i]));
    }
    trial_run(&r, 1);
    bool same = same_rows(&r, 0, whole, t0, n);
    trial_free(&r);
    return same;
}

static const char *fwd_holds(trial *whole, bool training)
{
    int64_t T = whole->type[0].n[0];
    for (int64_t t = 0, n; t < T; t += 2 * n + 5) {                          /* single rows, chunks of 7, the last rows */
        n = CDR_MIN(T - t, t % 2 == 0 ? 1 : 7);
        if (!decode_equals(whole, t, n) || !decode_equals(whole, T - n, n)) return "rows against the keys as a cache differ from the whole";
    }
    if (!training) return NULL;
    for (int64_t s = 1; s < T; s += 1 + T / 6)
        if (!is_causal(whole, s)) return "a later key changes an earlier row";
    return packs(whole, CDR__ATT_START) ? NULL : "a document alone differs from the document in the pack";
}

static const char *bwd_holds(trial *whole)
{
    return packs(whole, CDR__ATB_START) ? NULL : "a document alone differs from the document in the pack";
}

/* Both properties go over every CPU kernel that this machine runs and that takes the case. */
static const char *over_kernels(const cdr_args *a, const cdr_op *op, bool training)
{
    const char *bad = NULL;
    for (const cdr_kernel *k = op->kernels; k->name && !bad; k++) {
        if (k->device != CDR_DEV_CPU || (k->needs & ~usable_isa(a)) != 0) continue;
        if (k->reject && k->reject(a->attr, a->n_in, a->n_out, a->type)) continue;
        trial whole = trial_new(a, k);
        trial_run(&whole, 1);
        bad = op == &cdr_op_attention ? fwd_holds(&whole, training) : bwd_holds(&whole);
        trial_free(&whole);
    }
    return bad;
}
static const char *fwd_training(const cdr_args *a) { return over_kernels(a, &cdr_op_attention, true); }
static const char *fwd_cache(const cdr_args *a) { return over_kernels(a, &cdr_op_attention, false); }
static const char *bwd_training(const cdr_args *a) { return over_kernels(a, &cdr_op_attention_bwd, true); }

/* ---- the tables ------------------------------------------------------------------------------------------------- */
#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
enum { NO_SEL = 1 << CDR__ATT_SEL, NO_SEL_BWD = 1 << CDR__ATB_SEL };
#define I(n_) { .dtype = CDR_I32, .n_dim = 1, .n = { n_ } }
#define FWD(nm, dt, T, S, at, H, N, E, V, no, mk, pr, gr, tl) { .name = nm, .op = &cdr_op_attention, .attr = &(at), .n_in = 6, \
    .in = { M(dt, T, (H) * ((N) + (E))), M(dt, S, (H) * ((N) + (V))), M(dt, S, E), I(T), I(T) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .absent = (no) | NO_SEL, .grad = gr, .tol = tl, .make = mk, .property = pr }
#define BWD(nm, dt, gt, T, at, H, N, E, V, no, sk, mk, pr, tl) { .name = nm, .op = &cdr_op_attention_bwd, .attr = &(at), .n_in = 9, \
    .in = { M(gt, T, (H) * (V)), M(dt, T, (H) * ((N) + (E))), M(dt, T, (H) * ((N) + (V))), M(dt, T, E), I(T), I(T), M(CDR_F32, T, (H) * (V)), M(CDR_F32, T, H) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, \
    .absent = (no) | NO_SEL_BWD, .skip_out = sk, .tol = tl, .make = mk, .property = pr }

/* with a mask */
#define FWS(nm, dt, T, S, at, H, N, E, V, no, mk, pr, gr, tl) { .name = nm, .op = &cdr_op_attention, .attr = &(at), .n_in = 6, \
    .in = { M(dt, T, (H) * ((N) + (E))), M(dt, S, (H) * ((N) + (V))), M(dt, S, E), I(T), I(T), M(CDR_I32, T, ((S) + 31) / 32) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, \
    .absent = no, .grad = gr, .tol = tl, .make = mk, .property = pr }
#define BWS(nm, dt, gt, T, at, H, N, E, V, no, sk, mk, pr, tl) { .name = nm, .op = &cdr_op_attention_bwd, .attr = &(at), .n_in = 9, \
    .in = { M(gt, T, (H) * (V)), M(dt, T, (H) * ((N) + (E))), M(dt, T, (H) * ((N) + (V))), M(dt, T, E), I(T), I(T), M(CDR_F32, T, (H) * (V)), M(CDR_F32, T, H), \
            M(CDR_I32, T, ((T) + 31) / 32) }, .absent = no, .skip_out = sk, .tol = tl, .make = mk, .property = pr, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } } }

/* Tolerances: F32 sums of up to 200 terms 2e-6; a BF16 output adds half an ulp, 1.7e-3 in the root mean square. */
const cdr_case cdr_cases_attention[] = {
    FWD("T40 H2 8+8 v16 f32 one document", CDR_F32, 40, 40, a_small, 2, 8, 8, 16, 0, make_one, fwd_training, 7, 2e-6),
    FWD("T300 H2 8+8 v16 f32 documents", CDR_F32, 300, 300, a_small, 2, 8, 8, 16, 0, make_mixed, fwd_training, 0, 2e-6),
    FWD("T300 H2 8+8 v16 bf16 documents", CDR_BF16, 300, 300, a_small, 2, 8, 8, 16, 0, make_mixed, fwd_training, 0, 3e-3),
    FWD("T200 H3 5+3 v7 f32 odd widths", CDR_F32, 200, 200, a_odd, 3, 5, 3, 7, 0, make_mixed, fwd_training, 0, 2e-6),
    FWD("T20 H3 5+3 v7 f32 odd widths, gradient", CDR_F32, 20, 20, a_odd, 3, 5, 3, 7, 0, make_mixed, NULL, 7, 2e-6),
    FWD("T137 H2 16+0 v24 bf16 no shared part", CDR_BF16, 137, 137, a_nope, 2, 16, 0, 24, 4, make_mixed, fwd_training, 0, 3e-3),
    FWD("T21 H2 16+0 v24 f32 no shared part, gradient", CDR_F32, 21, 21, a_nope, 2, 16, 0, 24, 4, make_one, NULL, 3, 2e-6),
    FWD("T137 H2 0+16 v8 f32 shared part alone", CDR_F32, 137, 137, a_rope, 2, 0, 16, 8, 0, make_mixed, fwd_training, 0, 2e-6),
    FWD("T250 H2 128+64 v128 bf16", CDR_BF16, 250, 250, a_mla, 2, 128, 64, 128, 0, make_one, fwd_training, 0, 3e-3),
    FWD("T90 H1 192+64 v256 f32", CDR_F32, 90, 90, a_256, 1, 192, 64, 256, 0, make_mixed, fwd_training, 0, 2e-6),
    FWD("T200 H2 32+32 v64 f32 peaked", CDR_F32, 200, 200, a_sharp, 2, 32, 32, 64, 0, make_one, fwd_training, 0, 1e-5),
    FWD("T31 H2 8+8 v16 f32 idle rows", CDR_F32, 31, 31, a_small, 2, 8, 8, 16, 0, make_idle, fwd_training, 7, 2e-6),
    FWD("T1 H1 8+0 v8 f32 one row", CDR_F32, 1, 1, a_one, 1, 8, 0, 8, 4, make_one, fwd_training, 3, 2e-6),
    FWD("T16 S300 H2 8+8 v16 bf16 cache, any order", CDR_BF16, 16, 300, a_small, 2, 8, 8, 16, 0, make_cache, fwd_cache, 0, 3e-3),
    FWD("T70 S300 H2 32+32 v64 f32 prefill", CDR_F32, 70, 300, a_sharp, 2, 32, 32, 64, 0, make_prefill, fwd_cache, 0, 1e-5),
    { .name = "T40 q f32, keys bf16, o alone", .op = &cdr_op_attention, .attr = &a_small, .n_in = 6, .absent = NO_SEL,
      .in = { M(CDR_F32, 40, 32), M(CDR_BF16, 40, 48), M(CDR_BF16, 40, 8), I(40), I(40) }, .skip_out = 6,
      .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .tol = 2e-6, .make = make_mixed },
    { .name = "T40 operands with a pitch", .op = &cdr_op_attention, .attr = &a_small, .n_in = 6, .absent = NO_SEL,
      .in = { { .dtype = CDR_BF16, .n_dim = 2, .n = { 40, 32 }, .pitch = 45 }, { .dtype = CDR_BF16, .n_dim = 2, .n = { 40, 48 }, .pitch = 64 },
              { .dtype = CDR_BF16, .n_dim = 2, .n = { 40, 8 }, .pitch = 9 }, I(40), I(40) },
      .fill = { { 'n', 1, 0 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .tol = 3e-3, .make = make_mixed, .property = fwd_training },
    FWS("T40 H2 8+8 v16 f32 mask", CDR_F32, 40, 40, a_small, 2, 8, 8, 16, 0, mask_one, fwd_training, 7, 2e-6),
    FWS("T300 H2 8+8 v16 f32 mask, documents", CDR_F32, 300, 300, a_small, 2, 8, 8, 16, 0, mask_mixed, fwd_training, 0, 2e-6),
    FWS("T410 H2 8+8 v16 bf16 mask", CDR_BF16, 410, 410, a_small, 2, 8, 8, 16, 0, mask_one, fwd_training, 0, 3e-3),
    FWS("T200 H3 5+3 v7 f32 mask, odd widths", CDR_F32, 200, 200, a_odd, 3, 5, 3, 7, 0, mask_mixed, fwd_training, 0, 2e-6),
    FWS("T61 H2 8+8 v16 f32 mask, idle rows", CDR_F32, 61, 61, a_small, 2, 8, 8, 16, 0, mask_idle, fwd_training, 7, 2e-6),
    FWS("T16 S300 H2 8+8 v16 bf16 mask, cache", CDR_BF16, 16, 300, a_small, 2, 8, 8, 16, 0, mask_cache, fwd_cache, 0, 3e-3),
    FWS("T70 S300 H2 128+64 v128 f32 mask, prefill", CDR_F32, 70, 300, a_mla, 2, 128, 64, 128, 0, mask_prefill, fwd_cache, 0, 2e-6),
    FWS("T100 H2 8+8 v16 bf16 mask, o f32", CDR_BF16, 100, 100, a_small_o32, 2, 8, 8, 16, 0, mask_mixed, fwd_training, 0, 2e-6),
    FWD("T100 H2 8+8 v16 bf16 o f32", CDR_BF16, 100, 100, a_small_o32, 2, 8, 8, 16, 0, make_mixed, fwd_training, 0, 2e-6),
    FWD("T300 H2 8+8 v16 f32 gathered, all keys", CDR_F32, 300, 300, a_small_g, 2, 8, 8, 16, 0, make_mixed, fwd_training, 0, 2e-6),
    FWS("T40 H2 8+8 v16 f32 gathered", CDR_F32, 40, 40, a_small_g, 2, 8, 8, 16, 0, mask_one, fwd_training, 7, 2e-6),
    FWS("T300 H2 8+8 v16 bf16 gathered, documents", CDR_BF16, 300, 300, a_small_g, 2, 8, 8, 16, 0, mask_mixed, fwd_training, 0, 3e-3),
    FWS("T200 H3 5+3 v7 f32 gathered, odd widths", CDR_F32, 200, 200, a_odd_g, 3, 5, 3, 7, 0, mask_mixed, fwd_training, 0, 2e-6),
    FWS("T137 H2 16+0 v24 f32 gathered, no shared part", CDR_F32, 137, 137, a_nope_g, 2, 16, 0, 24, 4, mask_mixed, fwd_training, 0, 2e-6),
    FWS("T61 H2 8+8 v16 f32 gathered, idle rows", CDR_F32, 61, 61, a_small_g, 2, 8, 8, 16, 0, mask_idle, fwd_training, 7, 2e-6),
    FWS("T16 S300 H2 8+8 v16 bf16 gathered, cache", CDR_BF16, 16, 300, a_small_g, 2, 8, 8, 16, 0, mask_cache, fwd_cache, 0, 3e-3),
    FWS("T70 S300 H2 128+64 v128 bf16 gathered, prefill, o f32", CDR_BF16, 70, 300, a_mla_g_o32, 2, 128, 64, 128, 0, mask_prefill, fwd_cache, 0, 2e-6),
    BWS("T300 H2 8+8 v16 f32 mask, documents", CDR_F32, CDR_F32, 300, a_small, 2, 8, 8, 16, 0, 0, saved_mask_mixed, bwd_training, 5e-6),
    BWS("T410 H2 8+8 v16 bf16 mask", CDR_BF16, CDR_BF16, 410, a_small, 2, 8, 8, 16, 0, 0, saved_mask_one, bwd_training, 3e-3),
    BWS("T200 H3 5+3 v7 f32 mask, odd widths", CDR_F32, CDR_F32, 200, a_odd, 3, 5, 3, 7, 0, 0, saved_mask_mixed, bwd_training, 5e-6),
    BWS("T61 H2 8+8 v16 f32 mask, idle rows", CDR_F32, CDR_F32, 61, a_small, 2, 8, 8, 16, 0, 0, saved_mask_idle, bwd_training, 5e-6),
    BWS("T250 H2 128+64 v128 f32 mask", CDR_F32, CDR_F32, 250, a_mla, 2, 128, 64, 128, 0, 0, saved_mask_one, bwd_training, 5e-6),
    BWS("T300 H2 8+8 v16 f32 gathered, documents", CDR_F32, CDR_F32, 300, a_small_g, 2, 8, 8, 16, 0, 0, saved_mask_mixed, bwd_training, 5e-6),
    BWS("T131 H2 8+8 v16 bf16 gathered, do f32", CDR_BF16, CDR_F32, 131, a_small_g, 2, 8, 8, 16, 0, 0, saved_mask_mixed, bwd_training, 3e-3),
    BWS("T200 H3 5+3 v7 f32 gathered, odd widths", CDR_F32, CDR_F32, 200, a_odd_g, 3, 5, 3, 7, 0, 0, saved_mask_mixed, bwd_training, 5e-6),
    BWS("T137 H2 16+0 v24 f32 gathered, no shared part", CDR_F32, CDR_F32, 137, a_nope_g, 2, 16, 0, 24, 8, 4, saved_mask_mixed, bwd_training, 5e-6),
    BWS("T61 H2 8+8 v16 f32 gathered, idle rows", CDR_F32, CDR_F32, 61, a_small_g, 2, 8, 8, 16, 0, 0, saved_mask_idle, bwd_training, 5e-6),
    BWS("T250 H2 128+64 v128 bf16 gathered", CDR_BF16, CDR_BF16, 250, a_mla_g, 2, 128, 64, 128, 0, 0, saved_mask_one, bwd_training, 3e-3),
    BWS("T100 H2 8+8 v16 f32 gathered, dkr alone", CDR_F32, CDR_F32, 100, a_small_g, 2, 8, 8, 16, 0, 3, saved_mask_one, NULL, 5e-6),
    BWD("T300 H2 8+8 v16 f32 documents", CDR_F32, CDR_F32, 300, a_small, 2, 8, 8, 16, 0, 0, saved_mixed, bwd_training, 5e-6),
    BWD("T300 H2 8+8 v16 bf16 documents", CDR_BF16, CDR_BF16, 300, a_small, 2, 8, 8, 16, 0, 0, saved_mixed, bwd_training, 3e-3),
    BWD("T131 H2 8+8 v16 bf16, do f32", CDR_BF16, CDR_F32, 131, a_small, 2, 8, 8, 16, 0, 0, saved_mixed, bwd_training, 3e-3),
    BWD("T200 H3 5+3 v7 f32 odd widths", CDR_F32, CDR_F32, 200, a_odd, 3, 5, 3, 7, 0, 0, saved_mixed, bwd_training, 5e-6),
    BWD("T137 H2 16+0 v24 f32 no shared part", CDR_F32, CDR_F32, 137, a_nope, 2, 16, 0, 24, 8, 4, saved_mixed, bwd_training, 5e-6),
    BWD("T137 H2 0+16 v8 f32 shared part alone", CDR_F32, CDR_F32, 137, a_rope, 2, 0, 16, 8, 0, 0, saved_one, bwd_training, 5e-6),
    BWD("T250 H2 128+64 v128 bf16", CDR_BF16, CDR_BF16, 250, a_mla, 2, 128, 64, 128, 0, 0, saved_one, bwd_training, 3e-3),
    BWD("T90 H1 192+64 v256 f32", CDR_F32, CDR_F32, 90, a_256, 1, 192, 64, 256, 0, 0, saved_mixed, bwd_training, 5e-6),
    BWD("T200 H2 32+32 v64 f32 peaked", CDR_F32, CDR_F32, 200, a_sharp, 2, 32, 32, 64, 0, 0, saved_one, bwd_training, 2e-5),
    BWD("T31 H2 8+8 v16 f32 idle rows", CDR_F32, CDR_F32, 31, a_small, 2, 8, 8, 16, 0, 0, saved_idle, bwd_training, 5e-6),
    BWD("T1 H1 8+0 v8 f32 one row, dq is 0", CDR_F32, CDR_F32, 1, a_one, 1, 8, 0, 8, 8, 5, saved_one, bwd_training, 5e-6),
    BWD("T100 H2 8+8 v16 f32 dq alone", CDR_F32, CDR_F32, 100, a_small, 2, 8, 8, 16, 0, 6, saved_one, NULL, 5e-6),
    BWD("T100 H2 8+8 v16 f32 dkr alone", CDR_F32, CDR_F32, 100, a_small, 2, 8, 8, 16, 0, 3, saved_one, NULL, 5e-6),
    { .name = NULL }
};
