/* loss, test cases: chunks that divide nothing, one token, no token, targets at the borders of a vocabulary chunk, p_y near
 * 1, large logits, weights. Properties: chunked equals whole within 1e-6; masked rows of h are never read and get exact zeros; no
 * bit knows the number of threads; weights of 1 are no weights, and twice the weight is twice the gradient, to the bit. */
#include "ops/cpu.h"
#include "ops/loss/loss.h"
#include <math.h>
#include <stdlib.h>

static const cdr_loss_attr whole = { 0, 0 }, by_7_13 = { 7, 13 }, by_16_64 = { 16, 64 }, tokens_5 = { 5, 0 }, vocab_1 = { 0, 1 }, large = { 4096, 1 << 20 };

/* ---- inputs ----------------------------------------------------------------------------------------------------- */
/* a third of the targets masked, in runs and alone; 0 and W - 1 occur */
static void make_targets(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t T = t[0].n[0], W = t[1].n[0];
    for (int64_t i = 0; i < T; i++) {
        uint64_t r = cdr_rng_u64(key, (uint64_t)i);
        in[2][i] = r % 3 == 0 || i % 20 < 3 ? -1.0 : i % 7 == 0 ? 0.0 : i % 7 == 1 ? (double)(W - 1) : (double)((r >> 8) % (uint64_t)W);
    }
}
static void make_all(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    for (int64_t i = 0; i < t[0].n[0]; i++) in[2][i] = (double)(cdr_rng_u64(key, (uint64_t)i) % (uint64_t)t[1].n[0]);
}
static void make_none(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    for (int64_t i = 0; i < t[0].n[0]; i++) in[2][i] = -1.0 - (double)(i % 3) * 50;
}
/* h_t = a w_y: 1 - p_y is about 3e-3 at D = 64, W = 100 */
static void make_sure(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    int64_t D = t[0].n[1];
    make_all(in, t, key);
    for (int64_t i = 0; i < t[0].n[0]; i++)
        for (int64_t d = 0; d < D; d++)
            in[0][i * D + d] = (double)cdr_bf16_to_f32(cdr_f32_to_bf16((float)(0.18 * in[1][(int64_t)in[2][i] * D + d])));
}

/* lse of the backward's inputs by the reference forward */
static void make_lse(double *const *in, const cdr_type *t)
{
    const double *fin[3] = { in[0], in[1], in[2] };
    double sum, *out[2] = { &sum, in[3] };
    cdr_ref_args r = { &whole, 3, 2, t, fin, out };
    cdr_op_loss.ref(&r);
}
static void saved_targets(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_targets(in, t, key);
    make_lse(in, t);
}
static void saved_all(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_all(in, t, key);
    make_lse(in, t);
}
static void saved_none(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_none(in, t, key);
    make_lse(in, t);
}
static void saved_sure(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_sure(in, t, key);
    make_lse(in, t);
}

static void fill_weights(double *w, int64_t n, cdr_rng_key key)
{
    for (int64_t i = 0; i < n; i++) w[i] = i % 5 == 1 ? 0 : (double)(float)(0.05 + 2 * (double)(cdr_rng_u64(key, (uint64_t)(1000 + i)) % 1000) / 1000);
}
static void weighted_targets(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_targets(in, t, key);
    fill_weights(in[CDR__LOSS_WEIGHTS], t[0].n[0], key);
}
static void weighted_frozen(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    make_targets(in, t, key);
    fill_weights(in[CDR__LSF_WEIGHTS], t[0].n[0], key);
}
static void weighted_saved(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    saved_targets(in, t, key);
    fill_weights(in[CDR__LSB_WEIGHTS], t[0].n[0], key);
}

/* ---- properties ------------------------------------------------------------------------------------------------- */
typedef struct { const cdr_args *like; void *ptr[9]; } outputs;

static void *buffer(size_t bytes)
{
    void *p = aligned_alloc(64, cdr_align_up(bytes + 64, 64));
    CDR_CHECK(p);
    memset(p, 0xff, bytes + 64);
    return p;
}
/* h, and weights where there are some: instead of the call's own */
static outputs run_weighted(const cdr_args *a, const cdr_kernel *k, const cdr_loss_attr *attr, void *h, int n_threads, void *weights)
{
    outputs o = { .like = a };
    for (int i = 0; i < a->n_in + a->n_out; i++) {
        if (i < a->n_in || !a->ptr[i]) o.ptr[i] = a->ptr[i];
        else o.ptr[i] = buffer(cdr_type_bytes(&a->type[i]));
    }
    o.ptr[0] = h;
    if (weights) o.ptr[a->n_in - 1] = weights;
    cdr_lane lane = { .n_threads = n_threads };
    size_t bytes = k->work_bytes(attr, a->n_in, a->n_out, a->type, n_threads);
    cdr_args b = { .attr = attr, .type = a->type, .ptr = o.ptr, .n_in = a->n_in, .n_out = a->n_out, .work = buffer(bytes), .lane = &lane };
    CDR_CHECK(k->run(&b) == CDR_OK);
    free(b.work);
    return o;
}
static outputs run_with(const cdr_args *a, const cdr_kernel *k, const cdr_loss_attr *attr, void *h, int n_threads)
{
    return run_weighted(a, k, attr, h, n_threads, NULL);
}
static void outputs_free(outputs *o)
{
    for (int i = o->like->n_in; i < o->like->n_in + o->like->n_out; i++)
        if (o->ptr[i]) free(o->ptr[i]);
}
/* largest relative Frobenius distance of an output; 0 only where the bytes are equal */
static double distance(const outputs *x, const outputs *y)
{
    double worst = 0;
    for (int i = x->like->n_in; i < x->like->n_in + x->like->n_out; i++) {
        const cdr_type *t = &x->like->type[i];
        if (!x->ptr[i] || memcmp(x->ptr[i], y->ptr[i], cdr_type_bytes(t)) == 0) continue;
        int64_t n = cdr_type_elems(t);
        double *u = buffer((size_t)n * 8), *v = buffer((size_t)n * 8), d = 0, s = 0;
        cdr_to_f64(t->dtype, x->ptr[i], u, n);
        cdr_to_f64(t->dtype, y->ptr[i], v, n);
        for (int64_t j = 0; j < n; j++) {
            d += (u[j] - v[j]) * (u[j] - v[j]);
            s += v[j] * v[j];
        }
        worst = !(d <= 0) ? fmax(worst, sqrt(d / s)) : fmax(worst, 1e-300);
        if (isnan(d)) worst = INFINITY;
        free(u);
        free(v);
    }
    return worst;
}

/* NaN in the rows of h that have no target */
static void *poisoned(const cdr_args *a)
{
    const cdr_type *t = &a->type[0];
    const int32_t *y = a->ptr[2];
    void *h = buffer(cdr_type_bytes(t));
    memcpy(h, a->ptr[0], cdr_type_bytes(t));
    for (int64_t i = 0; i < t->n[0]; i++)
        if (y[i] < 0) memset(cdr_row(h, t, i), 0xff, (size_t)cdr_dtype_bytes(t->dtype, t->n[1]));
    return h;
}

static const char *kernel_holds(const cdr_args *a, const cdr_kernel *k, double limit)
{
    void *bad_h = poisoned(a);
    outputs own = run_with(a, k, a->attr, a->ptr[0], 1), threads = run_with(a, k, a->attr, a->ptr[0], 3);
    outputs masked = run_with(a, k, a->attr, bad_h, 2), all = run_with(a, k, &whole, a->ptr[0], 1);
    const char *bad = distance(&own, &threads) > 0 ? "the number of threads changes bits"
                    : distance(&own, &masked) > 0 ? "a token without a target is read"
                    : !(distance(&own, &all) <= limit) ? "chunked differs from whole" : NULL;
    outputs_free(&own);
    outputs_free(&threads);
    outputs_free(&masked);
    outputs_free(&all);
    free(bad_h);
    return bad;
}

/* The same call without its last operand */
static outputs run_plain(const cdr_args *a, const cdr_kernel *k)
{
    cdr_type t[9];
    void *ptr[9];
    const int n = a->n_in - 1;
    for (int i = 0; i < n + a->n_out; i++) {
        t[i] = a->type[i < n ? i : i + 1];
        ptr[i] = a->ptr[i < n ? i : i + 1];
    }
    const cdr_args plain = { .attr = a->attr, .type = t, .ptr = ptr, .n_in = n, .n_out = a->n_out, .lane = a->lane };
    outputs o = run_with(&plain, k, a->attr, a->ptr[0], 1), moved = { .like = a };
    for (int i = n; i < n + a->n_out; i++) moved.ptr[i + 1] = o.ptr[i];
    return moved;
}

/* Weights of 1 are none; twice each weight doubles gradients and the loss, exactly: 2 x has x's bits. */
static const char *weights_hold(const cdr_args *a, const cdr_kernel *k)
{
    const int i = a->n_in - 1;
    const int64_t T = a->type[0].n[0];
    float *w = buffer((size_t)T * 4), *own = a->ptr[i];
    for (int64_t t = 0; t < T; t++) w[t] = 1;
    outputs plain = run_plain(a, k), ones = run_weighted(a, k, a->attr, a->ptr[0], 1, w);
    for (int64_t t = 0; t < T; t++) w[t] = 2 * own[t];
    outputs once = run_with(a, k, a->attr, a->ptr[0], 1), twice = run_weighted(a, k, a->attr, a->ptr[0], 1, w);
    const char *bad = distance(&plain, &ones) > 0 ? "weights of 1 change bits" : NULL;
    for (int o = a->n_in; o < a->n_in + a->n_out && !bad; o++) {
        const cdr_type *t = &a->type[o];
        const bool is_lse = t->dtype == CDR_F32 && t->n_dim == 1;
        if (!a->ptr[o] || t->dtype == CDR_BF16) continue;
        int64_t n = cdr_type_elems(t);
        double *x = buffer((size_t)n * 8), *y = buffer((size_t)n * 8);
        cdr_to_f64(t->dtype, once.ptr[o], x, n);
        cdr_to_f64(t->dtype, twice.ptr[o], y, n);
        for (int64_t j = 0; j < n && !bad; j++)
            if (y[j] != (is_lse ? 1 : 2) * x[j]) bad = "twice the weights is not twice the result";
        free(x);
        free(y);
    }
    outputs_free(&plain);
    outputs_free(&ones);
    outputs_free(&once);
    outputs_free(&twice);
    free(w);
    return bad;
}

/* n_plain: inputs without weights */
static const char *over_kernels(const cdr_args *a, const cdr_op *op, int n_plain, double limit)
{
    uint32_t isa = a->lane->device ? a->lane->device->isa : cdr_cpu_isa(NULL);
    const char *bad = NULL;
    for (const cdr_kernel *k = op->kernels; k->name && !bad; k++) {
        if (k->device != CDR_DEV_CPU || (k->needs & ~isa) != 0) continue;
        if (k->reject && k->reject(a->attr, a->n_in, a->n_out, a->type)) continue;
        bad = kernel_holds(a, k, limit);
        if (!bad && a->n_in > n_plain) bad = weights_hold(a, k);
    }
    return bad;
}
static const char *fwd_holds(const cdr_args *a) { return over_kernels(a, &cdr_op_loss, 3, 1e-6); }
/* lse - logit is of size 3e-3 there, and s = 1 + 3e-3 in F32 */
static const char *fwd_sure_holds(const cdr_args *a) { return over_kernels(a, &cdr_op_loss, 3, 1e-5); }
/* a dh in BF16 may be a rounding apart */
static const char *bwd_holds(const cdr_args *a)
{
    const cdr_type *dh = &a->type[a->n_in + CDR__LSB_DH];
    return over_kernels(a, &cdr_op_loss_bwd, 5, !cdr_absent(dh) && dh->dtype == CDR_BF16 ? 4e-3 : 1e-6);
}

/* The bits of loss on the same path and with the same chunks of the vocabulary; dh within limit of loss_bwd's with that lse. */
static const char *frozen_of_kernel(const cdr_args *a, int k, const cdr_loss_attr *attr, double limit)
{
    const cdr_kernel *fwd = &cdr_op_loss.kernels[k], *bwd = &cdr_op_loss_bwd.kernels[k];
    const int w = a->n_in - 4, i_dh = a->n_in + CDR__LSF_DH;         /* w: there are weights */
    const cdr_type lse_t = cdr_type_1d(CDR_F32, a->type[0].n[0]);
    cdr_type t[7] = { a->type[0], a->type[1], a->type[2], a->type[CDR__LSF_WEIGHTS] };
    double sum = 0;
    const char *bad = NULL;
    void *lse = buffer(cdr_type_bytes(&lse_t)), *ptr[7] = { a->ptr[0], a->ptr[1], a->ptr[2], a->ptr[CDR__LSF_WEIGHTS] };
    t[3 + w] = cdr_type_1d(CDR_F64, 1);
    t[4 + w] = lse_t;
    ptr[3 + w] = &sum;
    ptr[4 + w] = lse;
    void *work = buffer(fwd->work_bytes(attr, 3 + w, 2, t, 1));
    cdr_lane lane = { .n_threads = 1 };
    CDR_CHECK(fwd->run(&(cdr_args){ .attr = attr, .type = t, .ptr = ptr, .n_in = 3 + w, .n_out = 2, .work = work, .lane = &lane }) == CDR_OK);
    free(work);
    outputs own = run_with(a, &cdr_op_loss_frozen.kernels[k], attr, a->ptr[0], 1);
    if (memcmp(&sum, own.ptr[a->n_in + CDR__LSF_SUM], sizeof sum) != 0) bad = "the loss has other bits than loss";
    if (a->ptr[i_dh]) {
        cdr_type tb[8] = { t[0], t[1], t[2], lse_t, a->type[CDR__LSF_SCALE], a->type[CDR__LSF_WEIGHTS] };
        void *dh = buffer(cdr_type_bytes(&a->type[i_dh])), *pb[8] = { a->ptr[0], a->ptr[1], a->ptr[2], lse, a->ptr[CDR__LSF_SCALE], a->ptr[CDR__LSF_WEIGHTS] };
        tb[5 + w] = a->type[i_dh];
        tb[6 + w] = (cdr_type){ .dtype = CDR_N_DTYPES };
        pb[5 + w] = dh;
        pb[6 + w] = NULL;
        work = buffer(bwd->work_bytes(attr, 5 + w, 2, tb, 1));
        CDR_CHECK(bwd->run(&(cdr_args){ .attr = attr, .type = tb, .ptr = pb, .n_in = 5 + w, .n_out = 2, .work = work, .lane = &lane }) == CDR_OK);
        outputs long_way = { .like = &(cdr_args){ .n_in = i_dh, .n_out = 1, .type = own.like->type } };
        long_way.ptr[i_dh] = dh;
        if (!(distance(&long_way, &own) <= limit)) bad = "dh differs from loss_bwd's";
        free(work);
        free(dh);
    }
    outputs_free(&own);
    free(lse);
    return bad;
}

static const char *frozen_within(const cdr_args *a, double limit)
{
    const char *bad = over_kernels(a, &cdr_op_loss_frozen, 4, limit);
    uint32_t isa = a->lane->device ? a->lane->device->isa : cdr_cpu_isa(NULL);
    for (int k = 0; cdr_op_loss_frozen.kernels[k].name && !bad; k++) {
        const cdr_kernel *kern = &cdr_op_loss_frozen.kernels[k];
        CDR_CHECK(strcmp(kern->name, cdr_op_loss.kernels[k].name) == 0 && strcmp(kern->name, cdr_op_loss_bwd.kernels[k].name) == 0);
        bool runs = (kern->needs & ~isa) == 0 && !(kern->reject && kern->reject(a->attr, a->n_in, a->n_out, a->type));
        if (runs) bad = frozen_of_kernel(a, k, &whole, limit);
        if (runs && !bad) bad = frozen_of_kernel(a, k, a->attr, limit);
    }
    return bad;
}

static const char *frozen_holds(const cdr_args *a) { return frozen_within(a, a->type[0].dtype == CDR_BF16 ? 4e-3 : 1e-6); }
/* an lse of size 12 that is one rounding apart is 3e-4 of p_y - 1 */
static const char *frozen_sure_holds(const cdr_args *a) { return frozen_within(a, 4e-3); }

/* ---- the table -------------------------------------------------------------------------------------------------- */
#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define V(dt, n_) { .dtype = dt, .n_dim = 1, .n = { n_ } }
#define FWD(nm, hd, wd, T, D, W, at, hf, mk, gr, tl) { .name = nm, .op = &cdr_op_loss, .attr = &(at), .n_in = 3, \
    .in = { M(hd, T, D), M(wd, W, D), V(CDR_I32, T) }, .fill = { hf, { 'n', 1, 0 }, { 'f', 0, 0 } }, \
    .grad = gr, .tol = tl, .make = mk, .property = fwd_holds }
#define BWD(nm, hd, wd, T, D, W, at, hf, sc, sk, mk, tl) { .name = nm, .op = &cdr_op_loss_bwd, .attr = &(at), .n_in = 5, \
    .in = { M(hd, T, D), M(wd, W, D), V(CDR_I32, T), V(CDR_F32, T), V(CDR_F32, 1) }, \
    .fill = { hf, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'c', sc, 0 } }, .skip_out = sk, .tol = tl, .make = mk, .property = bwd_holds }
#define FRO(nm, hd, wd, T, D, W, at, hf, sc, sk, mk, gr, tl) { .name = nm, .op = &cdr_op_loss_frozen, .attr = &(at), .n_in = 4, \
    .in = { M(hd, T, D), M(wd, W, D), V(CDR_I32, T), V(CDR_F32, 1) }, .fill = { hf, { 'n', 1, 0 }, { 'f', 0, 0 }, { 'c', sc, 0 } }, \
    .skip_out = sk, .grad = gr, .tol = tl, .make = mk, .property = frozen_holds }
#define N(sd) { 'n', sd, 0 }
/* with weights, some of them 0 (made with the targets), behind the other inputs */
#define FWD_W(nm, hd, wd, T, D, W, at, gr, tl) { .name = nm, .op = &cdr_op_loss, .attr = &(at), .n_in = 4, \
    .in = { M(hd, T, D), M(wd, W, D), V(CDR_I32, T), V(CDR_F32, T) }, .fill = { N(0.5), N(1), BY_MAKE, BY_MAKE }, .grad = gr, .tol = tl, \
    .make = weighted_targets, .property = fwd_holds }
#define BWD_W(nm, hd, wd, T, D, W, at, sc, tl) { .name = nm, .op = &cdr_op_loss_bwd, .attr = &(at), .n_in = 6, \
    .in = { M(hd, T, D), M(wd, W, D), V(CDR_I32, T), V(CDR_F32, T), V(CDR_F32, 1), V(CDR_F32, T) }, .fill = { N(0.5), N(1), BY_MAKE, BY_MAKE, { 'c', sc, 0 }, BY_MAKE }, \
    .tol = tl, .make = weighted_saved, .property = bwd_holds }
#define FRO_W(nm, hd, wd, T, D, W, at, sc, sk, gr, tl) { .name = nm, .op = &cdr_op_loss_frozen, .attr = &(at), .n_in = 5, \
    .in = { M(hd, T, D), M(wd, W, D), V(CDR_I32, T), V(CDR_F32, 1), V(CDR_F32, T) }, .fill = { N(0.5), N(1), BY_MAKE, { 'c', sc, 0 }, BY_MAKE }, \
    .skip_out = sk, .grad = gr, .tol = tl, .make = weighted_frozen, .property = frozen_holds }
#define BY_MAKE { 'f', 0, 0 }

/* Tolerances: F32 logits of size z are good to about z 2^-24 sqrt(D), and that is the relative error of p. dh in BF16 adds
 * half an ulp. The bf16dot kernels round d to BF16: 2e-3. p_y near 1: d_y = p_y - 1 is of size 3e-3, and lse of size 12 is
 * good to 1e-6: 3e-4 where it matters; a p that is rounded to BF16 before the subtraction is 100 % off. */
const cdr_case cdr_cases_loss[] = {
    FWD("T40 D24 W50 f32 whole", CDR_F32, CDR_F32, 40, 24, 50, whole, N(0.5), make_targets, 3, 1e-6),
    FWD("T40 D24 W50 f32 chunks 7 x 13", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, N(0.5), make_targets, 3, 1e-6),
    FWD("T130 D64 W256 bf16 chunks 16 x 64", CDR_BF16, CDR_BF16, 130, 64, 256, by_16_64, N(0.3), make_targets, 0, 1e-6),
    FWD("T33 D17 W29 h f32, w bf16, chunks 5 x all", CDR_F32, CDR_BF16, 33, 17, 29, tokens_5, N(1), make_targets, 3, 1e-6),
    FWD("T9 D8 W5 f32 vocabulary one by one", CDR_F32, CDR_F32, 9, 8, 5, vocab_1, N(1), make_all, 3, 1e-6),
    { .name = "T50 D64 W100 f32 p near 1", .op = &cdr_op_loss, .attr = &by_16_64, .n_in = 3,
      .in = { M(CDR_F32, 50, 64), M(CDR_F32, 100, 64), V(CDR_I32, 50) }, .fill = { BY_MAKE, { 'n', 1, 0 }, BY_MAKE },
      .tol = 1e-5, .make = make_sure, .property = fwd_sure_holds },
    FWD("T30 D64 W200 f32 large logits", CDR_F32, CDR_F32, 30, 64, 200, by_7_13, N(30), make_all, 0, 1e-6),
    FWD("T20 D8 W30 f32 no targets", CDR_F32, CDR_F32, 20, 8, 30, by_7_13, N(1), make_none, 3, 0),
    FWD("T1 D8 W1 f32 one token, one word", CDR_F32, CDR_F32, 1, 8, 1, whole, N(1), make_all, 0, 1e-6),
    FWD("T1 D64 W300 bf16 one token", CDR_BF16, CDR_BF16, 1, 64, 300, by_16_64, N(0.3), make_all, 0, 1e-6),
    FWD("T12 D16 W40 f32 chunks larger than all", CDR_F32, CDR_F32, 12, 16, 40, large, N(1), make_targets, 3, 1e-6),
    BWD("T40 D24 W50 f32 whole", CDR_F32, CDR_F32, 40, 24, 50, whole, N(0.5), 0.03125, 0, saved_targets, 3e-6),
    BWD("T40 D24 W50 f32 chunks 7 x 13", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, N(0.5), 0.03125, 0, saved_targets, 3e-6),
    BWD("T130 D64 W256 bf16 chunks 16 x 64", CDR_BF16, CDR_BF16, 130, 64, 256, by_16_64, N(0.3), 1e-4, 0, saved_targets, 4e-3),
    BWD("T33 D17 W29 h f32, w bf16, chunks 5 x all", CDR_F32, CDR_BF16, 33, 17, 29, tokens_5, N(1), 1, 0, saved_targets, 5e-6),
    BWD("T9 D8 W5 f32 vocabulary one by one", CDR_F32, CDR_F32, 9, 8, 5, vocab_1, N(1), 1, 0, saved_all, 3e-6),
    BWD("T50 D64 W100 f32 p near 1", CDR_F32, CDR_F32, 50, 64, 100, by_16_64, BY_MAKE, 1, 0, saved_sure, 1e-3),
    BWD("T50 D64 W100 bf16 p near 1", CDR_BF16, CDR_BF16, 50, 64, 100, by_16_64, BY_MAKE, 1, 0, saved_sure, 4e-3),
    BWD("T20 D8 W30 f32 no targets", CDR_F32, CDR_F32, 20, 8, 30, by_7_13, N(1), 1, 0, saved_none, 0),
    BWD("T1 D64 W300 bf16 one token", CDR_BF16, CDR_BF16, 1, 64, 300, by_16_64, N(0.3), 1, 0, saved_all, 4e-3),
    BWD("T40 D24 W50 f32 dh alone", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, N(0.5), 1, 2, saved_targets, 3e-6),
    BWD("T40 D24 W50 f32 dw alone", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, N(0.5), 1, 1, saved_targets, 3e-6),
    FRO("T40 D24 W50 f32 whole", CDR_F32, CDR_F32, 40, 24, 50, whole, N(0.5), 0.03125, 0, make_targets, 1, 3e-6),
    FRO("T50 D24 W50 f32 chunks 7 x 13", CDR_F32, CDR_F32, 50, 24, 50, by_7_13, N(0.5), 0.03125, 0, make_targets, 1, 3e-6),
    FRO("T60 D64 W256 bf16 chunks 16 x 64", CDR_BF16, CDR_BF16, 60, 64, 256, by_16_64, N(0.3), 1e-4, 0, make_targets, 0, 4e-3),
    FRO("T33 D17 W29 h f32, w bf16, chunks 5 x all", CDR_F32, CDR_BF16, 33, 17, 29, tokens_5, N(1), 1, 0, make_all, 1, 5e-6),
    { .name = "T50 D64 W100 f32 p near 1", .op = &cdr_op_loss_frozen, .attr = &by_16_64, .n_in = 4,
      .in = { M(CDR_F32, 50, 64), M(CDR_F32, 100, 64), V(CDR_I32, 50), V(CDR_F32, 1) }, .fill = { BY_MAKE, { 'n', 1, 0 }, BY_MAKE, { 'c', 1, 0 } },
      .tol = 1e-3, .make = make_sure, .property = frozen_sure_holds },
    FRO("T50 D64 W100 bf16 p near 1", CDR_BF16, CDR_BF16, 50, 64, 100, by_16_64, BY_MAKE, 1, 0, make_sure, 0, 4e-3),
    FRO("T20 D8 W30 f32 no targets", CDR_F32, CDR_F32, 20, 8, 30, by_7_13, N(1), 1, 0, make_none, 1, 0),
    FRO("T1 D8 W1 f32 one token, one word", CDR_F32, CDR_F32, 1, 8, 1, whole, N(1), 1, 0, make_all, 0, 1e-6),
    FWD_W("T40 D24 W50 f32 weights, chunks 7 x 13", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, 3, 1e-6),
    FWD_W("T70 D64 W256 bf16 weights, chunks 16 x 64", CDR_BF16, CDR_BF16, 70, 64, 256, by_16_64, 0, 1e-6),
    BWD_W("T40 D24 W50 f32 weights, chunks 7 x 13", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, 0.03125, 3e-6),
    BWD_W("T70 D64 W256 bf16 weights, chunks 16 x 64", CDR_BF16, CDR_BF16, 70, 64, 256, by_16_64, 1e-4, 4e-3),
    FRO_W("T40 D24 W50 f32 weights, chunks 7 x 13", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, 0.03125, 0, 1, 3e-6),
    FRO_W("T60 D64 W256 bf16 weights, chunks 16 x 64", CDR_BF16, CDR_BF16, 60, 64, 256, by_16_64, 1e-4, 0, 0, 4e-3),
    FRO_W("T40 D24 W50 f32 weights, loss alone", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, 1, 2, 0, 1e-6),
    FRO("T40 D24 W50 f32 loss alone", CDR_F32, CDR_F32, 40, 24, 50, by_7_13, N(0.5), 1, 2, make_targets, 0, 1e-6),
    { .name = NULL }
};
