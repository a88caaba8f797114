/* test_kda.c: properties of Kimi delta attention and its short convolution, on every kernel that this machine runs. The case tables
 * of the operators compare values and gradients; here is what must hold between runs: chunk sizes and the recurrence agree whatever
 * the gate; packed documents equal separate ones, later rows change nothing earlier, to the bit; a turn after a turn is one forward. */
#include "ops/kda/kda.h"
#include "ops/short_conv/short_conv.h"
#include "test.h"

enum { N_IN = CDR__KDA_N_IN, N_OUT = CDR__KDA_START, MAX_T = 700 };
static const char *const out_name[N_OUT] = { "dq", "dk", "dv", "dz", "dbeta", "dgate", "dA_log", "ddt_bias", "do_norm" };

/* in[0]: dy, then kda's inputs; out: y, then the backward's. F32, dense. */
typedef struct {
    cdr_kda_attr at; int64_t T;
    cdr_type t[1 + N_IN + N_OUT]; float *in[1 + N_IN], *y, *grad[N_OUT];
    float *state;                    /* NULL: none */
} problem;

static float *floats(int64_t n) { return cdr_alloc((size_t)n * sizeof(float)); }

/* z of row t: the gate's regime */
typedef enum { INIT, SLOW, NEAR0, SATURATED, MIXED, CHANNELS, N_REGIMES } regime;
static const char *const regime_name[N_REGIMES] = { "init", "slow", "near 0", "saturated", "mixed", "channels" };
static float decay_logit(regime g, int64_t t, int64_t c, float x)
{
    switch (g) {
    case SLOW: return -4.6f + 0.1f * x;                    /* bounded: g about -0.05 */
    case NEAR0: return -30.0f + x;
    case SATURATED: return 30.0f + x;
    case MIXED: return t % 3 == 0 ? 6 * x : t % 7 == 0 ? 25.0f : 2 * x - 3;
    case CHANNELS: return c % 2 ? 30.0f + x : -30.0f + x;
    default: return x - 3;
    }
}

static problem problem_new(cdr_kda_attr at, int64_t T, regime g, uint64_t seed)
{
    problem p = { .at = at, .T = T };
    int64_t P = (int64_t)at.heads * at.dim;
    for (int i = 0; i <= CDR__KDA_GATE; i++) p.t[1 + i] = cdr_type_2d(CDR_F32, T, i == CDR__KDA_BETA ? at.heads : P);
    p.t[0] = p.t[1];
    p.t[1 + CDR__KDA_A_LOG] = cdr_type_1d(CDR_F32, at.heads);
    p.t[1 + CDR__KDA_DT_BIAS] = cdr_type_1d(CDR_F32, P);
    p.t[1 + CDR__KDA_O_NORM] = cdr_type_1d(CDR_F32, at.dim);
    p.t[1 + CDR__KDA_START] = p.t[1 + CDR__KDA_POS] = cdr_type_1d(CDR_I32, T);
    for (int i = 0; i < 1 + N_IN; i++) {
        int64_t n = cdr_type_elems(&p.t[i]);
        p.in[i] = floats(n);
        for (int64_t j = 0; j < n; j++) {
            float x = cdr_rng_normal((cdr_rng_key){ seed, (uint64_t)i, 0 }, (uint64_t)j);
            if (i == 1 + CDR__KDA_Z) x = decay_logit(g, j / P, j % P, x);
            if (i == 1 + CDR__KDA_A_LOG) x = at.softplus ? 0.7f : 0.1f * x;
            if (i == 1 + CDR__KDA_DT_BIAS) x = 0.1f * x;
            if (i == 1 + CDR__KDA_O_NORM) x = 1 + 0.2f * x;
            p.in[i][j] = x;
        }
    }
    for (int64_t t = 0; t < T; t++) ((int32_t *)p.in[1 + CDR__KDA_START])[t] = 0, ((int32_t *)p.in[1 + CDR__KDA_POS])[t] = (int32_t)t;
    p.y = floats(T * P);
    int n_out = 0;
    cdr_err e = { CDR_OK, "", "" };
    T_CHECK(cdr_op_kda_bwd.infer(&p.at, 1 + N_IN, p.t, &n_out, p.t + 1 + N_IN, &e) == CDR_OK && n_out == N_OUT);
    for (int o = 0; o < N_OUT; o++) p.grad[o] = floats(cdr_type_elems(&p.t[1 + N_IN + o]));
    return p;
}
static void problem_free(problem *p)
{
    for (int i = 0; i < 1 + N_IN; i++) cdr_free(p->in[i]);
    for (int o = 0; o < N_OUT; o++) cdr_free(p->grad[o]);
    cdr_free(p->y);
}
/* Documents one after the other; a length of 0 is an idle row. */
static void set_documents(problem *p, const int *length, int n)
{
    int32_t *start = (int32_t *)p->in[1 + CDR__KDA_START], *pos = (int32_t *)p->in[1 + CDR__KDA_POS], t = 0;
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < length[i]; k++) start[t + k] = t, pos[t + k] = t + k;
        if (length[i] == 0) start[t] = 1, pos[t] = 0;
        t += length[i] ? length[i] : 1;
    }
    T_CHECK(t == p->T);
}

static uint32_t isa(void)
{
    cdr_err e = { CDR_OK, "", "" };
    return cdr_cpu_isa(&e);
}
static bool can_run(const cdr_kernel *k) { return k->device == CDR_DEV_CPU && (k->needs & ~isa()) == 0; }

static void run(const cdr_kernel *k, const cdr_args *a)
{
    size_t n = k->work_bytes ? k->work_bytes(a->attr, a->n_in, a->n_out, a->type, a->lane->n_threads) : 0;
    cdr_args b = *a;
    b.work = cdr_alloc(n + 64);
    memset(b.work, 0xff, n);                               /* NaN: nothing may depend on what scratch held */
    T_CHECK(k->run(&b) == CDR_OK);
    cdr_free(b.work);
}
static void run_forward(problem *p, int kernel, int n_threads)
{
    cdr_type t[N_IN + 2];
    void *ptr[N_IN + 2];
    memcpy(t, p->t + 1, N_IN * sizeof t[0]);
    for (int i = 0; i < N_IN; i++) ptr[i] = p->in[1 + i];
    t[N_IN] = p->t[1];
    t[N_IN + 1] = cdr_type_3d(CDR_F32, p->at.heads, p->at.dim, p->at.dim);
    if (!p->state) t[N_IN + 1].dtype = CDR_N_DTYPES;
    ptr[N_IN] = p->y;
    ptr[N_IN + 1] = p->state;
    cdr_lane lane = { .n_threads = n_threads };
    run(&cdr_op_kda.kernels[kernel], &(cdr_args){ .attr = &p->at, .type = t, .ptr = ptr, .n_in = N_IN, .n_out = 2, .lane = &lane });
}
static void run_backward(problem *p, int kernel, int n_threads)
{
    void *ptr[1 + N_IN + N_OUT];
    for (int i = 0; i < 1 + N_IN; i++) ptr[i] = p->in[i];
    for (int o = 0; o < N_OUT; o++) ptr[1 + N_IN + o] = p->grad[o];
    cdr_lane lane = { .n_threads = n_threads };
    run(&cdr_op_kda_bwd.kernels[kernel], &(cdr_args){ .attr = &p->at, .type = p->t, .ptr = ptr, .n_in = 1 + N_IN, .n_out = N_OUT, .lane = &lane });
}

/* The recurrence in double: y, then the gradients. */
typedef struct { double *in[1 + N_IN], *y, *grad[N_OUT]; } oracle;
static oracle oracle_run(const problem *p)
{
    oracle o;
    for (int i = 0; i < 1 + N_IN; i++) {
        int64_t n = cdr_type_elems(&p->t[i]);
        o.in[i] = cdr_alloc((size_t)n * sizeof(double));
        cdr_to_f64(p->t[i].dtype, p->in[i], o.in[i], n);
    }
    o.y = cdr_alloc((size_t)cdr_type_elems(&p->t[1]) * sizeof(double));
    for (int k = 0; k < N_OUT; k++) o.grad[k] = cdr_alloc((size_t)cdr_type_elems(&p->t[1 + N_IN + k]) * sizeof(double));
    double *out[2] = { o.y, NULL };
    cdr_op_kda.ref(&(cdr_ref_args){ &p->at, N_IN, 2, p->t + 1, (const double *const *)o.in + 1, out });
    cdr_op_kda_bwd.ref(&(cdr_ref_args){ &p->at, 1 + N_IN, N_OUT, p->t, (const double *const *)o.in, o.grad });
    return o;
}
static void oracle_free(oracle *o)
{
    for (int i = 0; i < 1 + N_IN; i++) cdr_free(o->in[i]);
    for (int k = 0; k < N_OUT; k++) cdr_free(o->grad[k]);
    cdr_free(o->y);
}
static double distance(const float *x, const double *want, int64_t n)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
        norm += want[i] * want[i];
    }
    return diff == 0 ? 0 : sqrt(diff / norm);              /* NaN and infinity fail every comparison below */
}

/* Value and gradients of every kernel against the recurrence. */
static void compare(problem *p, const char *what, double tol_y, double tol_grad, double tol_decay)
{
    oracle o = oracle_run(p);
    for (int k = 0; cdr_op_kda.kernels[k].name; k++) {
        if (!can_run(&cdr_op_kda.kernels[k])) continue;
        run_forward(p, k, 2);
        run_backward(p, k, 2);
        double err = distance(p->y, o.y, cdr_type_elems(&p->t[1]));
        if (!(err <= tol_y)) {
            fprintf(stderr, "  %s, %s: y differs by %.2g, allowed %.2g\n", what, cdr_op_kda.kernels[k].name, err, tol_y);
            t_this_failed = true;
        }
        for (int g = 0; g < N_OUT; g++) {
            double tol = g == CDR__KDA_Z || g == CDR__KDA_DT_BIAS ? tol_decay : tol_grad;
            if (g == CDR__KDA_A_LOG) tol = 30 * tol_decay; /* one number a head, a sum over rows and channels of either sign */
            err = distance(p->grad[g], o.grad[g], cdr_type_elems(&p->t[1 + N_IN + g]));
            if (err <= tol) continue;
            fprintf(stderr, "  %s, %s: %s differs by %.2g, allowed %.2g\n", what, cdr_op_kda.kernels[k].name, out_name[g], err, tol);
            t_this_failed = true;
        }
    }
    oracle_free(&o);
}

static cdr_kda_attr attr_of(int heads, int dim, int chunk, int softplus)
{
    return (cdr_kda_attr){ .heads = heads, .dim = dim, .chunk = chunk, .softplus = softplus, .lower_bound = -5, .norm_eps = 1e-5f };
}

/* ---- chunks against the recurrence ---------------------------------------------------------------------------------- */
static void chunks_agree_with_the_recurrence_in_every_gate_regime(void)
{
    static const int length[] = { 1, 100, 33, 66 };
    for (int g = 0; g < N_REGIMES; g++)
        for (int chunk = 16; chunk <= 64; chunk *= 2)
            for (int softplus = 0; softplus < 2; softplus++) {
                char what[80];
                snprintf(what, sizeof what, "%s, chunk %d, %s", regime_name[g], chunk, softplus ? "softplus" : "bounded");
                problem p = problem_new(attr_of(2, 32, chunk, softplus), 200, (regime)g, 7);
                set_documents(&p, length, 4);
                compare(&p, what, 3e-6, 5e-6, 5e-6);
                problem_free(&p);
            }
}

static void every_length_from_1_to_130(void)
{
    for (int T = 1; T <= 130; T += t_quick() ? 7 : 1)
        for (int chunk = 16; chunk <= 64; chunk *= 2) {
            char what[80];
            snprintf(what, sizeof what, "length %d, chunk %d", T, chunk);
            problem p = problem_new(attr_of(1, 16, chunk, T % 2), T, MIXED, (uint64_t)T);
            compare(&p, what, 3e-6, T == 1 ? 2e-4 : 1e-5, 1e-5);   /* one row: the norm takes the scale of q away, little of dq is left */
            problem_free(&p);
        }
}

/* softplus gates far below -50 beside gates near 0: e^(-G) of a tile would be infinite */
static void an_unbounded_gate_gives_no_nan(void)
{
    for (int chunk = 16; chunk <= 64; chunk *= 2) {
        problem p = problem_new(attr_of(1, 16, chunk, 1), 130, INIT, 3);
        float *z = p.in[1 + CDR__KDA_Z];
        for (int64_t i = 0; i < 130 * 16; i++) z[i] = i % 5 == 0 ? 400.0f : i % 7 == 0 ? 30.0f : -6.0f;
        p.in[1 + CDR__KDA_A_LOG][0] = 2.7f;                /* A about 15: gates of -6000, -450 and -0.04 */
        compare(&p, "gates of -6000", 3e-6, 1e-5, 1e-5);
        problem_free(&p);
    }
}

/* runs of equal keys, beta near 1, no decay: where an approximate inverse fails (spec/numerics.md, 4.5) */
static void equal_keys_without_decay(void)
{
    problem p = problem_new(attr_of(1, 64, 64, 0), 256, NEAR0, 5);
    for (int64_t t = 1; t < 256; t++) if (t % 20) memcpy(p.in[1 + CDR__KDA_K] + t * 64, p.in[1 + CDR__KDA_K] + (t - 1) * 64, 64 * sizeof(float));
    for (int64_t t = 0; t < 256; t++) p.in[1 + CDR__KDA_BETA][t] = 7;
    compare(&p, "equal keys", 3e-6, 1e-5, 1e-5);
    problem_free(&p);
}

/* ---- documents ------------------------------------------------------------------------------------------------------- */
static void one_token_documents(void)
{
    problem p = problem_new(attr_of(2, 16, 64, 0), 300, INIT, 11);
    static int length[300];
    for (int i = 0; i < 300; i++) length[i] = 1;
    set_documents(&p, length, 300);
    compare(&p, "documents of one token", 3e-6, 5e-6, 0);
    for (int k = 0; cdr_op_kda.kernels[k].name; k++) {     /* nothing straddles a gate: its gradient is 0, not small */
        if (!can_run(&cdr_op_kda.kernels[k])) continue;
        run_backward(&p, k, 1);
        int64_t n_not_zero = 0;
        for (int64_t i = 0; i < 300 * 32; i++) n_not_zero += p.grad[CDR__KDA_Z][i] != 0;
        T_CHECK(n_not_zero == 0);
        for (int64_t i = 0; i < 32; i++) T_CHECK(p.grad[CDR__KDA_DT_BIAS][i] == 0);
        T_CHECK(p.grad[CDR__KDA_A_LOG][0] == 0 && p.grad[CDR__KDA_A_LOG][1] == 0);
    }
    problem_free(&p);
}

/* dst: rows of src, as a document of its own */
static problem cut(const problem *src, int64_t first, int64_t n)
{
    problem p = problem_new(src->at, n, INIT, 1);
    for (int i = 0; i <= 1 + CDR__KDA_O_NORM; i++) {
        int64_t cols = cdr_type_cols(&src->t[i]);
        if (i <= 1 + CDR__KDA_GATE) memcpy(p.in[i], src->in[i] + first * cols, (size_t)(n * cols) * sizeof(float));
        else memcpy(p.in[i], src->in[i], (size_t)cols * sizeof(float));
    }
    return p;
}

/* Slow decay, so that a state which leaked would be seen. */
static void packed_documents_equal_separate_ones_bit_for_bit(void)
{
    static const int length[] = { 130, 1, 0, 64, 17, 0, 0, 200, 3, 283 };
    for (int softplus = 0; softplus < 2; softplus++)
        for (int k = 0; cdr_op_kda.kernels[k].name; k++) {
            if (!can_run(&cdr_op_kda.kernels[k])) continue;
            problem p = problem_new(attr_of(2, 16, softplus ? 32 : 64, softplus), MAX_T + 1, SLOW, 21);
            set_documents(&p, length, CDR_COUNT(length));
            run_forward(&p, k, 2);
            run_backward(&p, k, 2);
            int64_t t = 0;
            for (int i = 0; i < CDR_COUNT(length); t += length[i] ? length[i] : 1, i++) {
                for (int64_t c = 0; length[i] == 0 && c < 32; c++)
                    T_CHECK(p.y[t * 32 + c] == 0 && p.grad[CDR__KDA_Q][t * 32 + c] == 0 && p.grad[CDR__KDA_Z][t * 32 + c] == 0);
                if (length[i] == 0) continue;
                problem q = cut(&p, t, length[i]);
                run_forward(&q, k, 1);
                run_backward(&q, k, 1);
                T_CHECK(memcmp(q.y, p.y + t * 32, (size_t)length[i] * 32 * sizeof(float)) == 0);
                for (int g = 0; g <= CDR__KDA_GATE; g++) {
                    int64_t cols = cdr_type_cols(&p.t[1 + N_IN + g]);
                    T_CHECK(memcmp(q.grad[g], p.grad[g] + t * cols, (size_t)(length[i] * cols) * sizeof(float)) == 0);
                }
                problem_free(&q);
            }
            problem_free(&p);
        }
}

/* All later inputs change, also to infinities and NaN: no bit of an earlier output does. */
static void later_rows_change_no_earlier_output(void)
{
    for (int softplus = 0; softplus < 2; softplus++)
        for (int k = 0; cdr_op_kda.kernels[k].name; k++) {
            if (!can_run(&cdr_op_kda.kernels[k])) continue;
            for (int64_t from = 1; from < 100; from += 1 + from / 20) {
                problem p = problem_new(attr_of(2, 16, 32, softplus), 100, MIXED, 31), q = problem_new(attr_of(2, 16, 32, softplus), 100, MIXED, 31);
                run_forward(&p, k, 1);
                for (int i = 1; i <= 1 + CDR__KDA_GATE; i++) {
                    int64_t cols = cdr_type_cols(&q.t[i]);
                    for (int64_t j = from * cols; j < 100 * cols; j++) q.in[i][j] = from % 3 == 0 ? -3 * q.in[i][j] : from % 3 == 1 ? NAN : INFINITY;
                }
                run_forward(&q, k, 1);
                T_CHECK(memcmp(p.y, q.y, (size_t)from * 32 * sizeof(float)) == 0);
                problem_free(&p);
                problem_free(&q);
            }
        }
}

static void threads_change_no_bit(void)
{
    static const int length[] = { 130, 1, 0, 64, 17, 0, 0, 200, 3, 283 };
    for (int k = 0; cdr_op_kda.kernels[k].name; k++) {
        if (!can_run(&cdr_op_kda.kernels[k])) continue;
        problem p = problem_new(attr_of(3, 16, 64, 0), MAX_T + 1, INIT, 41), q = problem_new(attr_of(3, 16, 64, 0), MAX_T + 1, INIT, 41);
        set_documents(&p, length, CDR_COUNT(length));
        set_documents(&q, length, CDR_COUNT(length));
        run_forward(&p, k, 1);
        run_backward(&p, k, 1);
        run_forward(&q, k, 5);
        run_backward(&q, k, 2);
        T_CHECK(memcmp(p.y, q.y, cdr_type_bytes(&p.t[1])) == 0);
        for (int g = 0; g < N_OUT; g++) T_CHECK(memcmp(p.grad[g], q.grad[g], cdr_type_bytes(&p.t[1 + N_IN + g])) == 0);
        problem_free(&p);
        problem_free(&q);
    }
}

/* ---- generate -------------------------------------------------------------------------------------------------------- */
/* One turn: rows first .. first+n-1 of all's document in a pack of `room` rows, the others idle. y is copied out. */
static void turn(const problem *all, int64_t first, int64_t n, int64_t room, float *state, int kernel, float *y)
{
    problem p = problem_new(all->at, room, INIT, 1);
    int32_t *start = (int32_t *)p.in[1 + CDR__KDA_START], *pos = (int32_t *)p.in[1 + CDR__KDA_POS];
    int64_t P = cdr_type_cols(&all->t[1]);
    for (int i = 0; i <= 1 + CDR__KDA_O_NORM; i++) {
        int64_t cols = cdr_type_cols(&all->t[i]);
        if (i <= 1 + CDR__KDA_GATE) memcpy(p.in[i], all->in[i] + first * cols, (size_t)(n * cols) * sizeof(float));
        else memcpy(p.in[i], all->in[i], (size_t)cols * sizeof(float));
    }
    for (int64_t t = 0; t < room; t++) start[t] = t < n ? 0 : 1, pos[t] = t < n ? (int32_t)(first + t) : 0;
    p.state = state;
    run_forward(&p, kernel, 2);
    memcpy(y + first * P, p.y, (size_t)(n * P) * sizeof(float));
    int64_t n_not_zero = 0;                                /* in idle rows */
    for (int64_t i = n * P; i < room * P; i++) n_not_zero += p.y[i] != 0;
    T_CHECK(n_not_zero == 0);
    problem_free(&p);
}

/* To 1e-6: chunks begin at a turn's first row, so that sums are cut elsewhere. */
static void prefill_and_decode_equal_one_forward(void)
{
    static const int turns[] = { 70, 16, 1, 1, 1, 40, 0, 1, 3 };
    for (int softplus = 0; softplus < 2; softplus++)
        for (int k = 0; cdr_op_kda.kernels[k].name; k++) {
            if (!can_run(&cdr_op_kda.kernels[k])) continue;
            problem all = problem_new(attr_of(2, 32, 64, softplus), 133, SLOW, 51);
            float *state = floats(2 * 32 * 32), *y = floats(133 * 64);
            for (int64_t i = 0; i < 2 * 32 * 32; i++) state[i] = 1e3f;      /* of another document: must not be read */
            run_forward(&all, k, 1);
            int64_t t = 0;
            for (int i = 0; i < CDR_COUNT(turns); t += turns[i], i++) turn(&all, t, turns[i], 72, state, k, y);
            T_CHECK(t == 133);
            double diff = 0, norm = 0;
            for (int64_t i = 0; i < 133 * 64; i++) diff += pow((double)y[i] - (double)all.y[i], 2), norm += pow((double)all.y[i], 2);
            T_NEAR(sqrt(diff / norm), 0, 1e-6);
            cdr_free(state);
            cdr_free(y);
            problem_free(&all);
        }
}

/* ---- short_conv ------------------------------------------------------------------------------------------------------ */
typedef struct { int64_t T, P; cdr_type t[7]; float *x, *w, *y, *dy, *dx, *dw, *hist; int32_t *start, *pos; } conv;
static conv conv_new(int64_t T, int64_t P, uint64_t seed)
{
    conv c = { .T = T, .P = P, .x = floats(T * P), .w = floats(P * 4), .y = floats(T * P), .dy = floats(T * P), .dx = floats(T * P), .dw = floats(P * 4),
               .start = cdr_alloc((size_t)T * 4), .pos = cdr_alloc((size_t)T * 4) };
    for (int64_t i = 0; i < T * P; i++) {
        c.x[i] = cdr_rng_normal((cdr_rng_key){ seed, 1, 0 }, (uint64_t)i);
        c.dy[i] = cdr_rng_normal((cdr_rng_key){ seed, 2, 0 }, (uint64_t)i);
    }
    for (int64_t i = 0; i < P * 4; i++) c.w[i] = cdr_rng_normal((cdr_rng_key){ 1, 3, 0 }, (uint64_t)i);
    for (int64_t t = 0; t < T; t++) c.start[t] = 0, c.pos[t] = (int32_t)t;
    return c;
}
static void conv_free(conv *c)
{
    void *const all[] = { c->x, c->w, c->y, c->dy, c->dx, c->dw, c->start, c->pos };
    for (int i = 0; i < CDR_COUNT(all); i++) cdr_free(all[i]);
}
static void conv_run(conv *c, int kernel, bool backward)
{
    cdr_type x = cdr_type_2d(CDR_F32, c->T, c->P), w = cdr_type_3d(CDR_F32, c->P, 1, 4), i = cdr_type_1d(CDR_I32, c->T), h = cdr_type_2d(CDR_F32, 3, c->P);
    cdr_lane lane = { .n_threads = 2 };
    if (!c->hist) h.dtype = CDR_N_DTYPES;
    if (backward) {
        cdr_type t[] = { x, x, w, i, i, x, w };
        void *ptr[] = { c->dy, c->x, c->w, c->start, c->pos, c->dx, c->dw };
        run(&cdr_op_short_conv_bwd.kernels[kernel], &(cdr_args){ .type = t, .ptr = ptr, .n_in = 5, .n_out = 2, .lane = &lane });
    } else {
        cdr_type t[] = { x, w, i, i, x, h };
        void *ptr[] = { c->x, c->w, c->start, c->pos, c->y, c->hist };
        run(&cdr_op_short_conv.kernels[kernel], &(cdr_args){ .type = t, .ptr = ptr, .n_in = 4, .n_out = 2, .lane = &lane });
    }
}

static void the_convolution_stays_in_its_document_and_carries_its_history(void)
{
    static const int length[] = { 2, 1, 90, 3, 4 };
    enum { T = 100, P = 24 };
    for (int k = 0; cdr_op_short_conv.kernels[k].name; k++) {
        if (!can_run(&cdr_op_short_conv.kernels[k])) continue;
        conv c = conv_new(T, P, 5);
        int32_t t = 0;
        for (int i = 0; i < CDR_COUNT(length); t += length[i], i++) for (int j = 0; j < length[i]; j++) c.start[t + j] = t;
        conv_run(&c, k, false);
        conv_run(&c, k, true);
        t = 0;
        for (int i = 0; i < CDR_COUNT(length); t += length[i], i++) {      /* packed = separate, forward and gradient */
            conv d = conv_new(length[i], P, 1);
            memcpy(d.x, c.x + t * P, (size_t)(length[i] * P) * sizeof(float));
            memcpy(d.dy, c.dy + t * P, (size_t)(length[i] * P) * sizeof(float));
            conv_run(&d, k, false);
            conv_run(&d, k, true);
            T_CHECK(memcmp(d.y, c.y + t * P, (size_t)(length[i] * P) * sizeof(float)) == 0);
            T_CHECK(memcmp(d.dx, c.dx + t * P, (size_t)(length[i] * P) * sizeof(float)) == 0);
            conv_free(&d);
        }
        for (int64_t r = 0; r < T; r++) c.start[r] = 0;
        conv_run(&c, k, false);
        float hist[3 * P], y[T * P];                       /* turns of 40, 2, 1, .. rows = one forward, to the bit */
        memset(hist, 0xff, sizeof hist);
        static const int turns[] = { 40, 2, 1, 1, 56 };
        t = 0;
        for (int i = 0; i < CDR_COUNT(turns); t += turns[i], i++) {
            conv d = conv_new(60, P, 1);
            memcpy(d.x, c.x + t * P, (size_t)(turns[i] * P) * sizeof(float));
            for (int r = 0; r < 60; r++) d.start[r] = r < turns[i] ? 0 : 1, d.pos[r] = r < turns[i] ? t + r : 0;
            d.hist = hist;
            conv_run(&d, k, false);
            memcpy(y + t * P, d.y, (size_t)(turns[i] * P) * sizeof(float));
            conv_free(&d);
        }
        T_CHECK(memcmp(y, c.y, sizeof y) == 0);
        conv_free(&c);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) t_filter = argv[1];
    T_RUN(chunks_agree_with_the_recurrence_in_every_gate_regime);
    T_RUN(every_length_from_1_to_130);
    T_RUN(an_unbounded_gate_gives_no_nan);
    T_RUN(equal_keys_without_decay);
    T_RUN(one_token_documents);
    T_RUN(packed_documents_equal_separate_ones_bit_for_bit);
    T_RUN(later_rows_change_no_earlier_output);
    T_RUN(threads_change_no_bit);
    T_RUN(prefill_and_decode_equal_one_forward);
    T_RUN(the_convolution_stays_in_its_document_and_carries_its_history);
    return t_end();
}
