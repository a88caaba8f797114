/* onboard_verify.c: a model against a reference dump, layer by layer, in F32. The dump is one safetensors file; B, S: batch and length; names:
 *
 *   input_ids                    I32|I64 [S] or [B, S]
 *   logits                       [S, vocab] or [B, S, vocab]
 *   hidden_states.{layer}        [.., hidden]: the residual stream behind layer `layer` (from 0), before the last norm; any subset of layers
 *   router.{layer}.indices       I32|I64 [.., top_k] in any order;  router.{layer}.weights [.., top_k] in the order of the indices
 * Float tensors are F32, F64, BF16 or F16. tools/peers/models.py makes such files from transformers.
 *
 * Twice: with the model's own routing, and with the dump's routes given, which takes away what a score that is a rounding away changes. Every row
 * of a batch is a document of its own. An error is a root mean square of differences over the root mean square of the reference.
 */
#include "command/onboard.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_TOKENS = 8192 };
static const double NEAR_ROUTES = 0.98, NEAR_LOGITS = 0.2;      /* natural routing, where a route differs */

typedef struct { double sum_d2, sum_r2, max_d; } distance;
typedef struct {
    cdr__onboard *o;
    cdr_st *st;
    int64_t B, S, T;                  /* T: rows of the program, B S and idle ones */
    int32_t *ids;
    double limit;                     /* by the dump's own precision */
    bool routes;                      /* it has router.{layer}.indices */
} verify;
typedef struct { double logits, worst, weights; int worst_layer, n_layers; int64_t top1, routes, equal_routes; } outcome;

static double root(const distance *d) { return d->sum_r2 > 0 ? sqrt(d->sum_d2 / d->sum_r2) : sqrt(d->sum_d2); }

/* ---- reading the dump ---------------------------------------------------------------------------------------------------------------- */

static cdr_status int_at(const cdr_st *st, const cdr_st_tensor *t, int64_t i, int64_t *x)
{
    const char *p = cdr_st_data(st, t);
    int32_t narrow;
    if (t->dtype == CDR_I64) memcpy(x, p + i * 8, 8);
    else if (t->dtype == CDR_I32) memcpy(&narrow, p + i * 4, 4), *x = narrow;
    else return CDR_EDATA;
    return CDR_OK;
}

/* The tensor as [rows, cols] with rows = B S. */
static cdr_status find(const verify *v, const char *name, int64_t cols, const cdr_st_tensor **t, cdr_err *err)
{
    *t = cdr_st_find(v->st, name);
    if (!*t) return CDR_OK;
    int64_t n = 1;
    for (int i = 0; i < (*t)->n_dim; i++) n *= (*t)->n[i];
    bool real = (*t)->dtype == CDR_F32 || (*t)->dtype == CDR_F64 || (*t)->dtype == CDR_BF16 || (*t)->dtype == CDR_F16;
    bool index = strstr(name, ".indices") != NULL, whole = index && ((*t)->dtype == CDR_I32 || (*t)->dtype == CDR_I64);
    if ((*t)->n_dim < 2 || (*t)->n[(*t)->n_dim - 1] != cols || n != v->B * v->S * cols || !(real || whole))
        CDR_FAIL_ID(err, CDR_EDATA, "onboard.reference", "%s: %s must be a tensor of %s, [.., %lld] with %lld rows", v->o->verify, name,
                    index ? "integers or floats" : "floats", (long long)cols, (long long)(v->B * v->S));
    return CDR_OK;
}

static void row_of(const verify *v, const cdr_st_tensor *t, int64_t row, int64_t cols, float *out)
{
    const char *p = cdr_st_data(v->st, t);
    size_t width = (size_t)cdr_st_format_row(t->format)->bits / 8;
    char *copy = cdr_alloc((size_t)cols * width);
    memcpy(copy, p + (size_t)row * (size_t)cols * width, (size_t)cols * width);
    if (t->dtype == CDR_F64) for (int64_t i = 0; i < cols; i++) { double x; memcpy(&x, copy + i * 8, 8); out[i] = (float)x; }
    else cdr_to_f32(t->dtype, copy, out, cols);
    cdr_free(copy);
}

static cdr_status read_dump(verify *v, cdr_err *err)
{
    CDR_TRY(cdr_st_open(v->o->verify, &v->st, err));
    const cdr_st_tensor *ids = cdr_st_find(v->st, "input_ids"), *logits = cdr_st_find(v->st, "logits");
    if (!ids || !logits || ids->n_dim < 1 || ids->n_dim > 2 || (ids->dtype != CDR_I32 && ids->dtype != CDR_I64))
        CDR_FAIL_ID(err, CDR_EDATA, "onboard.reference", "%s: a reference dump has input_ids (I32 or I64, [S] or [B, S]) and logits; doc/onboarding.md has the "
                    "names", v->o->verify);
    v->B = ids->n_dim == 2 ? ids->n[0] : 1;
    v->S = ids->n[ids->n_dim - 1];
    if (v->B < 1 || v->S < 2 || v->B > MAX_TOKENS || v->S > MAX_TOKENS || v->B * v->S > MAX_TOKENS)
        CDR_FAIL_ID(err, CDR_EDATA, "onboard.reference", "%s: input_ids has %lld x %lld ids; from 2 to %d of them are compared", v->o->verify,
                    (long long)v->B, (long long)v->S, MAX_TOKENS);
    v->T = (v->B * v->S + 7) / 8 * 8;
    v->ids = cdr_pool_alloc(v->o->pool, sizeof *v->ids * (size_t)v->T);
    for (int64_t i = 0; i < v->B * v->S; i++) {
        int64_t x = -1;
        if (int_at(v->st, ids, i, &x) || x < 0 || x >= cdr_model_get_info(v->o->m)->vocab)
            CDR_FAIL_ID(err, CDR_EDATA, "onboard.reference", "%s: input_ids[%lld] is %lld, outside of the vocabulary", v->o->verify, (long long)i, (long long)x);
        v->ids[i] = (int32_t)x;
    }
    v->limit = logits->dtype == CDR_F32 || logits->dtype == CDR_F64 ? 5e-4 : 3e-2;
    return CDR_OK;
}

/* ---- running it ------------------------------------------------------------------------------------------------------------------------- */

static const char *value(const verify *v, int layer, const char *name) { return cdr_pool_printf(v->o->pool, "layers.%d.%s", layer, name); }

static bool has_value(const cdr_session *s, const char *name) { return cdr_program_find(&s->bundle, &s->bundle.progs[CDR_PROG_EVAL], name) != CDR_NONE; }

static int64_t columns(const cdr_session *s, const char *name)
{
    const cdr_program *p = &s->bundle.progs[CDR_PROG_EVAL];
    cdr_val v = cdr_program_find(&s->bundle, p, name);
    return cdr_type_cols(v < s->bundle.n_shared ? &s->bundle.shared[v].t : &p->vals[v - s->bundle.n_shared].t);
}

static cdr_status give_routes(const verify *v, cdr_session *s, int layer, cdr_err *err)
{
    const cdr_st_tensor *t;
    int64_t k = columns(s, value(v, layer, "moe.idx")), E = columns(s, value(v, layer, "moe.logits"));
    CDR_TRY(find(v, cdr_pool_printf(v->o->pool, "router.%d.indices", layer), k, &t, err));
    if (!t) CDR_FAIL_ID(err, CDR_EDATA, "onboard.reference", "%s: router.%d.indices is missing, and layer %d has a router", v->o->verify, layer, layer);
    int32_t *given = cdr_alloc(sizeof *given * (size_t)(v->T * k));
    memset(given, 0, sizeof *given * (size_t)(v->T * k));
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < v->B * v->S * k && st == CDR_OK; i++) {
        int64_t x = -1;
        if (int_at(v->st, t, i, &x) || x < 0 || x >= E)
            st = cdr_fail(err, CDR_EDATA, "onboard.reference", "%s: router.%d.indices holds %lld; there are %lld experts", v->o->verify, layer, (long long)x,
                          (long long)E);
        given[i] = (int32_t)x;
    }
    if (st == CDR_OK) cdr_exec_put(s->exec, CDR_PROG_EVAL, value(v, layer, "moe.given"), 0, given, sizeof *given * (size_t)(v->T * k));
    cdr_free(given);
    return st;
}

static void put_rows(const verify *v, cdr_session *s)
{
    size_t bytes = sizeof *s->tokens * (size_t)v->T;
    int64_t n = v->B * v->S;
    for (int64_t t = 0; t < v->T; t++) {
        s->tokens[t] = t < n ? v->ids[t] : 0;
        s->targets[t] = t < n && (t + 1) % v->S ? v->ids[t + 1] : -1;
        s->start[t] = t < n ? (int32_t)(t / v->S * v->S) : (int32_t)t + 1;
        s->pos[t] = (int32_t)t;
    }
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "tokens", 0, s->tokens, bytes);
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "targets", 0, s->targets, bytes);
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "start", 0, s->start, bytes);
    cdr_exec_put(s->exec, CDR_PROG_EVAL, "pos", 0, s->pos, bytes);
}

/* ---- comparing ---------------------------------------------------------------------------------------------------------------------------- */

static int64_t largest(const float *x, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 1; i < n; i++) if (x[i] > x[at]) at = i;
    return at;
}

static double compare(const verify *v, cdr_session *s, const char *mine, const cdr_st_tensor *t, int64_t cols, int64_t *top1)
{
    float *a = cdr_alloc(sizeof *a * (size_t)(v->T * cols)), *b = cdr_alloc(sizeof *b * (size_t)cols);
    distance d = { 0 };
    cdr_exec_get(s->exec, CDR_PROG_EVAL, mine, 0, a, sizeof *a * (size_t)(v->T * cols));
    for (int64_t r = 0; r < v->B * v->S; r++) {
        row_of(v, t, r, cols, b);
        for (int64_t i = 0; i < cols; i++) {
            double e = (double)a[r * cols + i] - (double)b[i];
            d.sum_d2 += e * e;
            d.sum_r2 += (double)b[i] * (double)b[i];
        }
        if (top1) *top1 += largest(a + r * cols, cols) == largest(b, cols);
    }
    cdr_free(a);
    cdr_free(b);
    double x = root(&d);
    return x - x == 0 ? x : INFINITY;
}

/* Tokens whose set of experts is the reference's; both lists are sets of distinct ids. */
static cdr_status compare_routes(const verify *v, cdr_session *s, int layer, outcome *r, cdr_err *err)
{
    const cdr_st_tensor *t;
    const char *idx = value(v, layer, "moe.idx");
    int64_t k = columns(s, idx);
    CDR_TRY(find(v, cdr_pool_printf(v->o->pool, "router.%d.indices", layer), k, &t, err));
    if (!t) return CDR_OK;
    int32_t *mine = cdr_alloc(sizeof *mine * (size_t)(v->T * k));
    cdr_exec_get(s->exec, CDR_PROG_EVAL, idx, 0, mine, sizeof *mine * (size_t)(v->T * k));
    for (int64_t row = 0; row < v->B * v->S; row++) {
        int64_t same = 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t x = -1;
            if (int_at(v->st, t, row * k + j, &x)) x = -1;
            for (int64_t i = 0; i < k; i++) same += mine[row * k + i] == x;
        }
        r->routes++;
        r->equal_routes += same == k;
    }
    cdr_free(mine);
    return CDR_OK;
}

static cdr_status compare_layers(const verify *v, cdr_session *s, outcome *r, cdr_err *err)
{
    int64_t D = s->info->hidden, W = s->info->vocab;
    const cdr_st_tensor *t;
    CDR_TRY(find(v, "logits", W, &t, err));
    r->logits = compare(v, s, "head.logits", t, W, &r->top1);
    for (int l = 0; l < cdr_model_stack(s->model); l++) {
        if (has_value(s, value(v, l, "moe.idx"))) CDR_TRY(compare_routes(v, s, l, r, err));
        CDR_TRY(find(v, cdr_pool_printf(v->o->pool, "hidden_states.%d", l), D, &t, err));
        if (!t || !has_value(s, value(v, l, "hidden"))) continue;
        double x = compare(v, s, value(v, l, "hidden"), t, D, NULL);
        if (r->n_layers++ == 0 || x > r->worst) {
            r->worst = x;
            r->worst_layer = l;
        }
    }
    return CDR_OK;
}

static cdr_status run(const verify *v, bool forced, outcome *r, cdr_err *err)
{
    static const char *const set[] = { "lora=none", "precision.compute=f32", "precision.params=f32", "machine.device=cpu", "machine.devices=1", "machine.file=auto" };
    cdr__eval_spec e = { .recipe = v->o->recipe, .set = set, .n_set = CDR_COUNT(set), .probe = forced ? CDR_PROBE_FORCED : CDR_PROBE_NATURAL, .T = v->T };
    cdr_session s;
    memset(&s, 0, sizeof s);
    *r = (outcome){ .worst_layer = -1 };
    cdr_status st = cdr__eval_open(&e, v->o->common, &s, err);
    for (int l = 0; forced && st == CDR_OK && l < cdr_model_stack(s.model); l++)
        if (has_value(&s, value(v, l, "moe.given"))) st = give_routes(v, &s, l, err);
    if (st == CDR_OK) {
        put_rows(v, &s);
        st = cdr_exec_run(s.exec, CDR_PROG_EVAL, err);
    }
    if (st == CDR_OK) st = compare_layers(v, &s, r, err);
    cdr__session_close(&s);
    return st;
}

static void put_outcome(cdr__onboard *o, const verify *v, const outcome *r, bool forced)
{
    const char *limit = cdr_pool_printf(o->pool, "below %g", v->limit), *rule = limit;
    const char *detail = cdr_pool_printf(o->pool, "top-1 equal in %lld of %lld tokens; routes equal in %lld of %lld", (long long)r->top1, (long long)(v->B * v->S),
                                         (long long)r->equal_routes, (long long)r->routes);
    /* one route that differs by a rounding changes all tokens behind it: then the given routes decide, and few may differ */
    bool near = r->logits < v->limit || (r->equal_routes < r->routes && (double)r->equal_routes >= NEAR_ROUTES * (double)r->routes && r->logits < NEAR_LOGITS);
    if (!forced && r->routes > 0)
        rule = cdr_pool_printf(o->pool, "%s; where routes differ, at least %g %% of them equal and below %g", limit, 100 * NEAR_ROUTES, NEAR_LOGITS);
    cdr__card_put(o, forced ? CDR__ITEM_REFERENCE_FORCED : CDR__ITEM_REFERENCE, (forced ? r->logits < v->limit : near) ? CDR__VERIFIED : CDR__FAILED,
                  (cdr__finding){ .figure = r->logits, .unit = "relative rms of logits", .expected = rule, .detail = detail });
    if (!forced) return;
    if (r->n_layers == 0) {
        cdr__card_put(o, CDR__ITEM_LAYERS, CDR__UNVERIFIED, (cdr__finding){ .detail = "the dump has no hidden_states.{layer}" });
        return;
    }
    cdr__card_put(o, CDR__ITEM_LAYERS, r->worst < v->limit ? CDR__VERIFIED : CDR__FAILED,
                  (cdr__finding){ .figure = r->worst, .unit = "relative rms, worst layer", .expected = limit,
                                  .detail = cdr_pool_printf(o->pool, "%d layers, worst: layer %d", r->n_layers, r->worst_layer) });
}

static cdr_status compare_all(verify *v, cdr_err *err)
{
    cdr__onboard *o = v->o;
    outcome natural, forced;
    CDR_TRY(read_dump(v, err));
    for (int l = 0; l < cdr_model_stack(o->m); l++) v->routes = v->routes || cdr_st_find(v->st, cdr_pool_printf(o->pool, "router.%d.indices", l));
    CDR_TRY(run(v, false, &natural, err));
    put_outcome(o, v, &natural, false);
    if (!v->routes && cdr_model_get_info(o->m)->moe.n > 0) {
        cdr__finding none = { .detail = "the dump has no router.{layer}.indices" };
        cdr__card_put(o, CDR__ITEM_REFERENCE_FORCED, CDR__UNVERIFIED, none);
        cdr__card_put(o, CDR__ITEM_LAYERS, CDR__UNVERIFIED, none);
        return CDR_OK;
    }
    CDR_TRY(run(v, true, &forced, err));
    put_outcome(o, v, &forced, true);
    return CDR_OK;
}

void cdr__onboard_verify(cdr__onboard *o)
{
    static const cdr__item all[] = { CDR__ITEM_REFERENCE, CDR__ITEM_REFERENCE_FORCED, CDR__ITEM_LAYERS };
    const char *command = cdr_pool_printf(o->pool, "cadre onboard %s --out %s --verify %s", o->dir, o->out, o->verify ? o->verify : "REF.safetensors");
    cdr_err err = { 0 };
    if (!o->verify) {
        for (int i = 0; i < CDR_COUNT(all); i++) cdr__card_put(o, all[i], CDR__UNVERIFIED, (cdr__finding){ .detail = "pass --verify", .command = command });
        return;
    }
    verify v = { .o = o };
    cdr_status st = compare_all(&v, &err);
    cdr_st_close(v.st);
    for (int i = 0; i < CDR_COUNT(all); i++) {
        cdr_err again = err;
        cdr__status as = strcmp(err.id, "onboard.does-not-fit") == 0 ? CDR__UNVERIFIED : CDR__FAILED;
        if (st != CDR_OK && !o->item[all[i]].f.detail) cdr__card_error(o, all[i], as, &again);
        o->item[all[i]].f.command = command;
    }
}
