/* lora_check.h: what the tests of adapters compare: two runs of lora_rig.h, `got` with `ref`, and the adapters that a recipe's section asks for.
 *
 *   T_CHECK(lora_go(&c, ref) == 0);
 *   c.shard = 2;
 *   same(c, "two shards");                                    // to the bit
 *   T_CHECK(adapters_of("lora: {rank: 8}\n") == 86 && s.opts.adapters[0].rank == 8);
 *   close_session();
 */
#ifndef CADRE_TEST_LORA_CHECK_H
#define CADRE_TEST_LORA_CHECK_H
#include "lora_rig.h"
#include "train/session.h"

static lora_result *ref, *got;

static inline void open_results(void)
{
    ref = lora_shared();
    got = lora_shared();
}

/* ---- runs ---- */
/* How far elements [from, from + n) of a parameter are apart. */
static inline double moved(const lora_param *p, int64_t from, int64_t n)
{
    double s = 0;
    for (int64_t i = from; i < from + n; i++) s += fabs((double)got->data[p->at + i] - (double)ref->data[p->at + i]);
    return s;
}

static inline int layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    return at ? atoi(at + 7) : -1;
}

/* Losses, norms, weights and states to the bit. */
static inline void same(lora_run c, const char *what)
{
    const int code = lora_go(&c, got);
    const bool equal = code == 0 && lora_equal(ref, got);
    if (code == 0 && !equal) fprintf(stderr, "  %s: losses %.9g %.9g against %.9g %.9g\n", what, got->loss[0], got->loss[1], ref->loss[0], ref->loss[1]);
    for (int i = 0, n = 0; code == 0 && !equal && i < ref->n_params && n < 3; i++)
        if (memcmp(ref->data + ref->param[i].at, got->data + ref->param[i].at, sizeof(float) * 3 * (size_t)ref->param[i].n) != 0 && ++n > 0)
            fprintf(stderr, "  %s: %s differs\n", what, ref->param[i].name);
    T_CHECK(equal);
}

/* ---- gradients ---- */
/* Relative Frobenius distance of m = 0.1 g (one step, no clipping) of a parameter to want. */
static inline double distance(const lora_param *p, const double *want)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double x = 10 * (double)got->data[p->at + p->n + i];
        d += (x - want[i]) * (x - want[i]);
        s += want[i] * want[i];
    }
    return s > 0 ? sqrt(d / s) : d > 0 ? INFINITY : 0;
}

/* w: a matrix of ref, a run with W' = W + s B A in its place, or a stack of one for each expert, and G its gradient: dA = s B^T G, dB = s G A^T; a
 * factor that all experts share (gate and up: A, down: B) has the sum over experts. false: no adapter is of this matrix. */
static inline bool check_pair(const lora_run *c, cdr_pool *pool, const lora_param *w)
{
    const bool expert = strstr(w->name, "{expert}") != NULL, down = strstr(w->name, ".w2.") != NULL, shared_a = c->outer && expert && !down, shared_b = c->outer && down;
    const char *na = lora_name(pool, w->name, "A"), *nb = lora_name(pool, w->name, "B");
    if (shared_a) na = lora_shared_name(pool, na);
    if (shared_b) nb = lora_shared_name(pool, nb);
    const lora_param *pa = lora_find(got, na), *pb = lora_find(got, nb);
    if (!pa || !pb) return false;
    const int64_t E = expert ? LORA_EXPERTS : 1, r = expert ? c->expert_rank : c->rank, a_of = !shared_a, b_of = !shared_b;       /* 1: one for each expert */
    const int64_t K = pa->n / r / (a_of ? E : 1), N = pb->n / r / (b_of ? E : 1);
    T_CHECK(N * K * E == w->n);
    double *da = calloc((size_t)pa->n, sizeof *da), *db = calloc((size_t)pb->n, sizeof *db);
    for (int64_t e = 0; e < E; e++)
        for (int64_t i = 0; i < N; i++)
            for (int64_t j = 0; j < K; j++) {
                double g = (double)c->scale * 10 * (double)ref->data[w->at + w->n + (e * N + i) * K + j];
                for (int64_t h = 0; h < r; h++) {
                    db[(b_of * e * N + i) * r + h] += g * (double)lora_a(na, K, (a_of * e * r + h) * K + j);
                    da[(a_of * e * r + h) * K + j] += g * (double)lora_b(nb, (b_of * e * N + i) * r + h);
                }
            }
    const double d[] = { distance(pa, da), distance(pb, db) };
    for (int k = 0; k < 2; k++) {
        if (!(d[k] < 1e-4)) fprintf(stderr, "  d%c of %s: relative distance %.3g\n", k ? 'B' : 'A', w->name, d[k]);
        T_CHECK(d[k] < 1e-4 && d[k] > 0);
    }
    free(da);
    free(db);
    return true;
}

/* ---- recipes ---- */
static cdr_session s;
static cdr_err err;

/* The status of a recipe's adapters; s is open. */
static inline cdr_status resolve(const char *text)
{
    s = (cdr_session){ .pool = cdr_pool_new() };
    err = (cdr_err){ 0 };
    cdr_recipe_text t = { text, strlen(text), "r.yaml", "r" };
    cdr_status st = cdr_recipe_parse(&t, NULL, s.pool, &s.r, &err);
    if (st == CDR_OK) st = cdr__session_model(&s, &err);
    if (st == CDR_OK) st = cdr_recipe_resolve_ranks(&s.r, 1, &err);
    if (st == CDR_OK) cdr__session_mesh(&s, 0, 1);
    if (st == CDR_OK) st = cdr__session_opts(&s, CDR_DEV_CPU, cdr_cpu_isa(NULL), 1, &err);
    return st;
}

static inline void close_session(void) { cdr_pool_free(s.pool); }

/* The same of a lora section, which begins in line 4, on tiny-k31. */
static inline cdr_status resolve_section(const char *lora)
{
    char recipe[900];
    snprintf(recipe, sizeof recipe, "model: {path: tiny-k31}\ndata: {train: data/none.txt}\n"
                                    "train: {steps: 1, sequence_length: 64, micro_batch_tokens: 64, global_batch_tokens: 64}\n%s", lora);
    return resolve(recipe);
}

/* Their number; all of the model is frozen. */
static inline int adapters_of(const char *lora)
{
    T_CHECK(resolve_section(lora) == CDR_OK);
    if (err.status) fprintf(stderr, "  %s\n", err.text);
    T_CHECK(s.opts.n_freeze == cdr_model_params(s.model));
    return s.opts.n_adapters;
}

static inline void refused(const char *lora, const char *id, const char *text)
{
    T_CHECK(resolve_section(lora) == CDR_EUSER);
    T_STR(err.id, id);
    T_HAS(err.text, text);
    close_session();
}

/* The adapter of the parameter whose name ends so; NULL: there is none. */
static inline const cdr_adapter *find_adapter(const char *end)
{
    for (int i = 0; i < s.opts.n_adapters; i++) {
        const size_t n = strlen(s.opts.adapters[i].param), k = strlen(end);
        if (n > k && strcmp(s.opts.adapters[i].param + n - k, end) == 0) return &s.opts.adapters[i];
    }
    return NULL;
}
#endif
