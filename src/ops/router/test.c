/* router, test cases: sigmoid and softmax, with and without bias, groups, renormalisation; one expert, all experts, one row, idle rows, a width
 * that no vector divides, exact ties. Gradients are finite differences of the whole forward, away from changes of route. What a case cannot say
 * (NaN, bias and weights, load) is in test/test_routing.c. */
#include "ops/router/router.h"

static const cdr_router_attr kimi_k3 = { .top_k = 16, .renormalize = 1, .scale = 1.0f };
static const cdr_router_attr kimi_linear = { .top_k = 8, .groups = 1, .top_groups = 1, .renormalize = 1, .scale = 2.446f };
static const cdr_router_attr deepseek = { .top_k = 8, .groups = 8, .top_groups = 4, .renormalize = 1, .scale = 2.5f };
static const cdr_router_attr grouped_softmax = { .top_k = 3, .softmax = 1, .groups = 4, .top_groups = 2, .scale = 16.0f };
static const cdr_router_attr exact_groups = { .top_k = 6, .groups = 4, .top_groups = 2, .renormalize = 1, .scale = 1.0f };
static const cdr_router_attr top_4 = { .top_k = 4, .renormalize = 1, .scale = 1.0f }, top_4_plain = { .top_k = 4, .scale = 0.7f };
static const cdr_router_attr soft_4 = { .top_k = 4, .softmax = 1, .renormalize = 1, .scale = 1.5f }, soft_1 = { .top_k = 1, .softmax = 1, .scale = 1.0f };
static const cdr_router_attr top_1 = { .top_k = 1, .renormalize = 1, .scale = 1.0f };

/* Rows t = 3 mod 5 are idle, in two ways: never begun, and long over. */
static void make_rows(double *start, double *pos, int64_t T)
{
    for (int64_t t = 0; t < T; t++) {
        pos[t] = (double)t;
        start[t] = t % 5 != 3 ? (double)(t / 7 * 7) : t % 2 ? (double)(t + 1) : 1e9;
    }
}
static void make_fwd(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    make_rows(in[2], in[3], t[0].n[0]);
}

/* idx and p by the reference forward, without a bias */
static void saved(const cdr_router_attr *a, double *const *in, const cdr_type *t)
{
    make_rows(in[4], in[5], t[1].n[0]);
    const double *fin[4] = { in[1], NULL, in[4], in[5] };
    double *out[3] = { in[2], in[3], NULL };
    cdr_type type[1] = { t[1] };
    cdr_op_router.ref(&(cdr_ref_args){ .attr = a, .n_in = 4, .n_out = 3, .type = type, .in = fin, .out = out });
}
static void saved_kimi_k3(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&kimi_k3, in, t); }
static void saved_deepseek(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&deepseek, in, t); }
static void saved_top_4(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&top_4, in, t); }
static void saved_top_4_plain(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&top_4_plain, in, t); }
static void saved_soft_4(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&soft_4, in, t); }
static void saved_grouped_softmax(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&grouped_softmax, in, t); }
static void saved_top_1(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; saved(&top_1, in, t); }

/* Ids ascend strictly in live rows and are -1 in idle ones; live weights add up to the scale where they are renormalised. */
static const char *ordered(const cdr_args *a)
{
    const cdr_router_attr *at = a->attr;
    const int32_t *idx_Tk = a->ptr[4], *start_T = a->ptr[2], *pos_T = a->ptr[3];
    const float *p_Tk = a->ptr[5];
    for (int64_t t = 0; t < a->type[0].n[0]; t++) {
        double sum = 0;
        for (int j = 0; j < at->top_k; j++) {
            int32_t e = idx_Tk[t * at->top_k + j], before = j ? idx_Tk[t * at->top_k + j - 1] : -1;
            if (start_T[t] > pos_T[t] ? e != -1 : e <= before || e >= a->type[0].n[1]) return "ids do not ascend within a live row, or an idle row has one";
            sum += (double)p_Tk[t * at->top_k + j];
        }
        double want = start_T[t] > pos_T[t] ? 0 : (double)at->scale;
        if (at->renormalize && !(sum > want - 4e-7 * want && sum < want + 4e-7 * want) && !(want == 0 && sum == 0)) return "weights do not add up to the scale";
    }
    return NULL;
}

#define M(dt, T, C) { .dtype = dt, .n_dim = 2, .n = { T, C } }
#define V(dt, T) { .dtype = dt, .n_dim = 1, .n = { T } }
#define FWD(nm, at, T, E, logits, bias, ...) { .name = nm, .op = &cdr_op_router, .attr = &(at), .n_in = 4, \
    .in = { M(CDR_F32, T, E), V(CDR_F32, E), V(CDR_I32, T), V(CDR_I32, T) }, .fill = { logits, bias, { 'f', 0, 0 }, { 'f', 0, 0 } }, \
    .make = make_fwd, .property = ordered, .tol = 4e-7, __VA_ARGS__ }
#define BWD(nm, at, T, E, k, sd) { .name = nm, .op = &cdr_op_router_bwd, .attr = &(at), .n_in = 6, \
    .in = { M(CDR_F32, T, k), M(CDR_F32, T, E), M(CDR_I32, T, k), M(CDR_F32, T, k), V(CDR_I32, T), V(CDR_I32, T) }, \
    .fill = { { 'n', 1, 0 }, { 'n', sd, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 }, { 'f', 0, 0 } }, .make = saved_##at, .tol = 2e-6 }
#define N(sd) { 'n', sd, 0 }
#define U(b) { 'u', -(b), b }
#define INTS(m) { 'i', -(m), m }
#define RANGE(lo, hi) { 'u', lo, hi }
#define ALL(x) { 'c', x, 0 }

const cdr_case cdr_cases_router[] = {
    FWD("T40 E896 k16, kimi k3", kimi_k3, 40, 896, N(1), U(0.2), .grad = 1),
    FWD("T33 E256 k8 scale 2.446, kimi linear", kimi_linear, 33, 256, N(1.5), U(0.1), .grad = 1),
    FWD("T21 E256 k8, 4 of 8 groups, deepseek v3", deepseek, 21, 256, N(1), U(0.1), .grad = 1),
    FWD("T37 E24 k3, softmax, 2 of 4 groups", grouped_softmax, 37, 24, N(1), U(0.02), .grad = 1),
    FWD("T19 E12 k6, groups give exactly k", exact_groups, 19, 12, N(1), U(0.1), .grad = 1),
    FWD("T130 E32 k4", top_4, 130, 32, N(1), U(0.1), .grad = 1),
    FWD("T130 E32 k4, no bias", top_4, 130, 32, N(1), ALL(0), .absent = 2, .grad = 1),
    FWD("T40 E37 k4, not renormalised", top_4_plain, 40, 37, N(2), U(0.1), .grad = 1),
    FWD("T40 E37 k4, softmax, renormalised", soft_4, 40, 37, N(1), U(0.01), .grad = 1),
    FWD("T9 E5 k1, softmax", soft_1, 9, 5, N(1), U(0.1), .grad = 1),
    FWD("T11 E4 k4, all experts", top_4, 11, 4, N(1), U(0.1), .grad = 1),
    FWD("T3 E1 k1, one expert", top_1, 3, 1, N(1), ALL(0), .grad = 0),
    FWD("T1 E17 k1, one row", top_1, 1, 17, N(1), ALL(0), .grad = 1),
    FWD("T60 E64 k4, ties", top_4, 60, 64, INTS(2), ALL(0.25), .grad = 0),
    FWD("T60 E64 k8, ties in groups", deepseek, 60, 64, INTS(1), ALL(0), .grad = 0),
    FWD("T60 E301 k4, ties among many", top_4, 60, 301, INTS(2), ALL(0.25), .grad = 0),
    FWD("T60 E256 k8, ties in large groups", deepseek, 60, 256, INTS(1), ALL(0), .grad = 0),
    FWD("T50 E333 k4, no multiple of a vector", top_4, 50, 333, N(1), U(0.1), .grad = 0),
    FWD("T12 E896 k16, all scores equal", kimi_k3, 12, 896, ALL(0), ALL(0), .grad = 0),
    FWD("T12 E48 k4, softmax, all scores equal", soft_4, 12, 48, ALL(3), ALL(0), .grad = 0),
    FWD("T30 E16 k4, scores down to 1e-34", top_4, 30, 16, RANGE(-78, 2), ALL(0), .absent = 2, .grad = 0),
    FWD("T20 E32 k4, without alpha", top_4, 20, 32, N(1), U(0.1), .skip_out = 4),
    BWD("T40 E896 k16", kimi_k3, 40, 896, 16, 1),
    BWD("T21 E256 k8, groups", deepseek, 21, 256, 8, 1),
    BWD("T130 E32 k4", top_4, 130, 32, 4, 1),
    BWD("T40 E37 k4, not renormalised", top_4_plain, 40, 37, 4, 2),
    BWD("T40 E37 k4, softmax", soft_4, 40, 37, 4, 1),
    BWD("T37 E24 k3, softmax, groups, not renormalised", grouped_softmax, 37, 24, 3, 1),
    BWD("T5 E1 k1: exactly zero but for rounding", top_1, 5, 9, 1, 1),
    { .name = NULL }
};
