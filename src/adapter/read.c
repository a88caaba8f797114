/* read.c: an adapter's tensors become pairs (A, B) of the model's parameters, whatever layout they lie in. Two passes: every key is bound and its
 * shape checked, then the values are copied as F32.
 *
 *   2-D              A [r, K], B [N, r]; of routed experts one such pair for each
 *   3-D              A [1 or E, r, K], B [1 or E, N, r]
 *   PEFT's wrapper   A [r E, K], row e r + k; B [N, r E], column k E + e; gate and up are one parameter of 2 N rows, gate first, so both have one A
 * Source: spec/formats.md, 1.6; PEFT 0.21.2, ParamWrapper.get_delta_weight ("o r e, e r i -> e o i").
 */
#include "adapter/adapter.h"
#include "adapter/source.h"
#include <math.h>
#include <stdlib.h>

enum { SHOWN = 6 };

typedef struct { const char *name; cdr__lora_key k; int role; /* FUSED: CDR__ROLE_GATE (and up) or CDR__ROLE_DOWN */ } bound;
typedef struct {                      /* of a parameter while it is put together */
    cdr_lora_pair p;
    uint8_t *seen;                    /* by expert (one of a matrix, a stack): 1 A, 2 B */
    float *a, *b;
    cdr_lora_layout layout_of[2];     /* of A, of B */
    bool on, shares_a;
} build;
typedef struct {
    const cdr__lora_source *src; const cdr_model *m; const cdr__lora_names *names;
    cdr_pool *pool;
    bound *key; build *of;            /* by tensor; by parameter */
} work;

/* ---- keys -------------------------------------------------------------------------------------------------------------------------- */

/* Which parameter a wrapper is of: with both targeted, down_proj is the outer one. */
static bool fused_role(const work *w, bound *b)
{
    const char *module = cdr__lora_module(w->names, b->k.i_param), *end = strstr(module, ".{expert}");
    bool has[2];
    static const char *const leaf[] = { "gate_up_proj", "down_proj" };
    for (int i = 0; i < 2; i++) {
        const char *form[] = { cdr_pool_printf(w->pool, "%.*s.%s", (int)(end - module), module, leaf[i]) };
        has[i] = w->src->config && cdr__lora_config_fit(w->src->config, form, 1, true).targeted;
    }
    if (b->k.depth > (has[0] && has[1])) return false;
    b->role = has[1] && b->k.depth == 0 ? CDR__ROLE_DOWN : CDR__ROLE_GATE;
    if (b->role == CDR__ROLE_GATE && !has[0]) return false;
    if (b->role == CDR__ROLE_DOWN) b->k.i_param = cdr__lora_sibling(w->names, b->k.i_param, CDR__ROLE_DOWN);
    return b->k.i_param >= 0 && (b->role == CDR__ROLE_DOWN || cdr__lora_sibling(w->names, b->k.i_param, CDR__ROLE_UP) >= 0);
}

static cdr_status bind_keys(work *w, cdr_err *err)
{
    char unknown[900] = "";
    int64_t n_unknown = 0;
    cdr_pool *scratch = cdr_pool_new();
    for (int64_t i = 0; i < w->src->n; i++) {
        bound *b = &w->key[i];
        b->name = w->src->tensor[i].name;
        if (cdr__lora_key_parse(w->names, b->name, scratch, &b->k) && (b->k.layout != CDR_LORA_FUSED || fused_role(w, b))) continue;
        b->k.i_param = -1;
        if (n_unknown++ < SHOWN) snprintf(unknown + strlen(unknown), sizeof unknown - strlen(unknown), "%s%.140s", n_unknown > 1 ? ", " : "", b->name);
    }
    cdr_pool_free(scratch);
    if (n_unknown > 0)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.unknown-key", "%s: %lld of %lld keys bind to nothing of %s: %s%s. Take the base that the adapter was trained on",
                    w->src->where,
                    (long long)n_unknown, (long long)w->src->n, cdr_model_get_info(w->m)->name, unknown, n_unknown > SHOWN ? ", .." : "");
    return CDR_OK;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------------ */

static cdr_status wrong_shape(const work *w, int64_t i, const char *want, cdr_err *err)
{
    const cdr__lora_raw *t = &w->src->tensor[i];
    char shape[120] = "";
    for (int d = 0; d < t->n_dim; d++) snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%lld", d ? ", " : "", (long long)t->n[d]);
    CDR_FAIL_ID(err, CDR_EDATA, "adapter.shape", "%s: %s is [%s], %s of %s needs %s", w->src->where, t->name, shape,
                cdr_model_param(w->m, w->key[i].k.i_param), cdr_model_get_info(w->m)->name, want);
}

/* Rank and number of matrices of tensor i, of the size that its parameter has. */
static cdr_status shape_of(const work *w, int64_t i, int64_t *rank, int64_t *count, cdr_err *err)
{
    const cdr__lora_raw *t = &w->src->tensor[i];
    const bound *b = &w->key[i];
    int64_t E, N, K, wide = b->role == CDR__ROLE_GATE && b->k.layout == CDR_LORA_FUSED ? 2 : 1;
    CDR_CHECK(cdr__lora_shape(w->m, b->k.i_param, &E, &N, &K));
    bool a = b->k.half == 'A', one = b->k.layout == CDR_LORA_STACK && !w->src->config && t->n_dim == 2;      /* a run's factor of all experts */
    bool stack = b->k.layout == CDR_LORA_STACK && !one, fused = b->k.layout == CDR_LORA_FUSED;
    char want[120];
    int d = stack ? 1 : 0;
    if (stack) snprintf(want, sizeof want, a ? "[1 or %lld, rank, %lld]" : "[1 or %lld, %lld, rank]", (long long)E, (long long)(a ? K : N));
    else if (fused && a) snprintf(want, sizeof want, "[rank x %lld, %lld]", (long long)E, (long long)K);
    else if (fused) snprintf(want, sizeof want, "[%lld, rank x %lld]", (long long)(wide * N), (long long)E);
    else snprintf(want, sizeof want, a ? "[rank, %lld]" : "[%lld, rank]", (long long)(a ? K : N));
    bool ok = t->n_dim == 2 + d && t->n[d + (a ? 1 : 0)] == (a ? K : wide * N) && t->n[d + (a ? 0 : 1)] > 0;
    if (ok && stack) ok = t->n[0] == 1 || t->n[0] == E;
    *rank = ok ? t->n[d + (a ? 0 : 1)] : 0;
    *count = ok && stack ? t->n[0] : one || b->k.layout == CDR_LORA_MATRIX ? 1 : E;
    if (ok && fused) {
        ok = *rank % E == 0;
        *rank /= E;
    }
    if (ok && b->k.layout == CDR_LORA_EXPERTS && b->k.expert >= E)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.unknown-key", "%s: %s: the model has %lld experts", w->src->where, t->name, (long long)E);
    return ok ? CDR_OK : wrong_shape(w, i, want, err);
}

/* The tensor of one role that a wrapper's rows are of too. */
static int64_t partner(const work *w, const bound *b)
{
    return b->k.layout == CDR_LORA_FUSED && b->role == CDR__ROLE_GATE ? cdr__lora_sibling(w->names, b->k.i_param, CDR__ROLE_UP) : -1;
}

static cdr_status note_shape(work *w, int64_t i, int64_t i_param, int64_t rank, int64_t count, cdr_err *err)
{
    const bound *b = &w->key[i];
    build *x = &w->of[i_param];
    int64_t E, N, K;
    CDR_CHECK(cdr__lora_shape(w->m, i_param, &E, &N, &K));
    bool a = b->k.half == 'A';
    if (!x->on) {
        x->on = true;
        x->p = (cdr_lora_pair){ .i_param = i_param, .rank = (int32_t)rank, .experts = E, .N = N, .K = K, .layout = b->k.layout };
        x->seen = cdr_pool_alloc(w->pool, (size_t)CDR_MAX(E, (int64_t)1));
    }
    if (x->p.layout != b->k.layout) x->p.layout = CDR_LORA_STACK;          /* one factor for all experts, the other one by one */
    if (w->src->config && x->layout_of[a] != b->k.layout && x->seen[b->k.layout == CDR_LORA_EXPERTS ? b->k.expert : 0])
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.mixed", "%s: %s: %s has adapters in two layouts", w->src->where, b->name, cdr_model_param(w->m, i_param));
    x->layout_of[a ? 0 : 1] = b->k.layout;
    if (x->p.rank != rank)
        CDR_FAIL_ID(err, CDR_EDATA, "adapter.rank", "%s: %s: rank %lld, but another tensor of %s has %d; all of a module and its experts need one rank", w->src->where,
                    b->name,
                    (long long)rank, cdr_model_param(w->m, i_param), x->p.rank);
    int64_t first = b->k.layout == CDR_LORA_EXPERTS ? b->k.expert : 0, last = b->k.layout == CDR_LORA_EXPERTS ? first : CDR_MAX(E, (int64_t)1) - 1;
    uint8_t bit = a ? 1 : 2;
    for (int64_t e = first; e <= last; e++) {
        if (x->seen[e] & bit) CDR_FAIL_ID(err, CDR_EDATA, "adapter.twice", "%s: %s: is there twice, under two names", w->src->where, b->name);
        x->seen[e] |= bit;
    }
    if (a) x->p.n_a = count;
    else x->p.n_b = count;
    return CDR_OK;
}

static cdr_status note_shapes(work *w, cdr_err *err)
{
    for (int64_t i = 0; i < w->src->n; i++) {
        int64_t rank, count, other = partner(w, &w->key[i]);
        int dtype = w->src->tensor[i].dtype;
        if (dtype != CDR_F32 && dtype != CDR_BF16 && dtype != CDR_F16)
            CDR_FAIL_ID(err, CDR_EDATA, "adapter.dtype", "%s: %s: adapters are F32, BF16 or F16", w->src->where, w->src->tensor[i].name);
        CDR_TRY(shape_of(w, i, &rank, &count, err));
        if (rank > 65536) return wrong_shape(w, i, "a rank up to 65,536", err);
        CDR_TRY(note_shape(w, i, w->key[i].k.i_param, rank, count, err));
        w->of[w->key[i].k.i_param].p.n_keys++;
        if (other >= 0) CDR_TRY(note_shape(w, i, other, rank, count, err));
    }
    return CDR_OK;
}

/* Both halves, of every expert. */
static cdr_status check_complete(const work *w, cdr_err *err)
{
    for (int64_t i = 0; i < cdr_model_params(w->m); i++) {
        const build *x = &w->of[i];
        if (!x->on) continue;
        int64_t n = CDR_MAX(x->p.experts, (int64_t)1), missing = 0, first = -1;
        for (int64_t e = 0; e < n; e++) {
            if (x->seen[e] == 1 || x->seen[e] == 2)
                CDR_FAIL_ID(err, CDR_EDATA, "adapter.half", "%s: %s%s has lora_%c and no lora_%c", w->src->where, cdr_model_param(w->m, i),
                            n > 1 ? cdr_pool_printf(w->pool, " (expert %lld)", (long long)e) : "", x->seen[e] == 1 ? 'A' : 'B', x->seen[e] == 1 ? 'B' : 'A');
            if (x->seen[e]) continue;
            missing++;
            first = first < 0 ? e : first;
        }
        if (missing > 0)
            CDR_FAIL_ID(err, CDR_EDATA, "adapter.experts", "%s: %s: %lld of %lld experts have no adapter (the first: %lld); a stack is read whole", w->src->where,
                        cdr_model_param(w->m, i), (long long)missing, (long long)n, (long long)first);
    }
    return CDR_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------------ */

static float *room(const work *w, int64_t n, int64_t rows, int64_t cols) { return cdr_pool_alloc(w->pool, sizeof(float) * (size_t)(n * rows * cols)); }

static void allocate(work *w)
{
    for (int64_t i = 0; i < cdr_model_params(w->m); i++) {
        build *x = &w->of[i];
        if (!x->on) continue;
        int64_t r = x->p.rank;
        int64_t other = x->p.layout == CDR_LORA_FUSED && cdr__lora_role(w->m, i) == CDR__ROLE_UP ? cdr__lora_sibling(w->names, i, CDR__ROLE_GATE) : -1;
        build *gate = other >= 0 ? &w->of[other] : NULL;
        x->shares_a = gate && gate->on && gate->p.layout == CDR_LORA_FUSED;
        if (x->shares_a) gate->a = gate->a ? gate->a : room(w, gate->p.n_a, r, gate->p.K);
        x->a = x->shares_a ? gate->a : x->a ? x->a : room(w, x->p.n_a, r, x->p.K);
        x->b = room(w, x->p.n_b, x->p.N, r);
    }
}

/* Rows of B from a wrapper's columns: dst [E, N, r] from rows first .. of src [.., r E]. */
static void unwrap_b(const build *x, const float *src, int64_t first)
{
    int64_t E = x->p.experts, r = x->p.rank;
    for (int64_t e = 0; e < E; e++)
        for (int64_t n = 0; n < x->p.N; n++)
            for (int64_t k = 0; k < r; k++) x->b[(e * x->p.N + n) * r + k] = src[(first + n) * r * E + k * E + e];
}

static cdr_status fill(work *w, cdr_err *err)
{
    allocate(w);
    int64_t most = 0;
    for (int64_t i = 0; i < w->src->n; i++) {
        const cdr__lora_raw *t = &w->src->tensor[i];
        int64_t n = 1;
        for (int d = 0; d < t->n_dim; d++) n *= t->n[d];
        most = CDR_MAX(most, n);
    }
    float *x = cdr_alloc(sizeof *x * (size_t)(most + 1));
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < w->src->n && st == CDR_OK; i++) {
        const bound *b = &w->key[i];
        const cdr__lora_raw *t = &w->src->tensor[i];
        build *of = &w->of[b->k.i_param];
        int64_t n = 1, at = b->k.layout == CDR_LORA_EXPERTS ? b->k.expert : 0, other = partner(w, b);
        for (int d = 0; d < t->n_dim; d++) n *= t->n[d];
        st = w->src->read(w->src->ctx, i, x, err);
        for (int64_t k = 0; k < n && st == CDR_OK; k++)
            if (!isfinite(x[k])) st = cdr_fail(err, CDR_EDATA, "adapter.nonfinite", "%s: %s: value %lld is %s", w->src->where, t->name, (long long)k,
                                               isnan(x[k]) ? "NaN" : "infinite");
        if (st != CDR_OK) break;
        if (b->k.half == 'A') memcpy(of->a + at * of->p.rank * of->p.K, x, sizeof *x * (size_t)n);
        else if (b->k.layout != CDR_LORA_FUSED) memcpy(of->b + at * of->p.N * of->p.rank, x, sizeof *x * (size_t)n);
        else unwrap_b(of, x, 0);
        if (b->k.half == 'B' && other >= 0) unwrap_b(&w->of[other], x, of->p.N);
    }
    cdr_free(x);
    return st;
}

cdr_status cdr__lora_bind(const cdr__lora_source *src, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err)
{
    work w = { .src = src, .m = m, .pool = pool };
    CDR_TRY(cdr__lora_names_make(m, pool, &w.names, err));
    w.key = cdr_pool_alloc(pool, sizeof *w.key * (size_t)(src->n + 1));
    w.of = cdr_pool_alloc(pool, sizeof *w.of * (size_t)(cdr_model_params(m) + 1));
    if (src->n == 0) CDR_FAIL_ID(err, CDR_EDATA, "adapter.empty", "%s: holds no tensors", src->where);
    CDR_TRY(bind_keys(&w, err));
    CDR_TRY(note_shapes(&w, err));
    CDR_TRY(check_complete(&w, err));
    CDR_TRY(fill(&w, err));
    set->n = 0;
    set->pair = cdr_pool_alloc(pool, sizeof *set->pair * (size_t)(cdr_model_params(m) + 1));
    for (int64_t i = 0; i < cdr_model_params(m); i++) {
        if (!w.of[i].on) continue;
        cdr_lora_pair *p = &set->pair[set->n++];
        *p = w.of[i].p;
        p->a = w.of[i].a;
        p->b = w.of[i].b;
        CDR_TRY(src->fit(src, w.names, m, p, err));
    }
    return CDR_OK;
}
