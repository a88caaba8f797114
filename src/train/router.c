/* router.c: expert load of a step, per layer: load_e tokens of expert e, mean = sum / E.
 *
 *   max over mean, min over mean, dead = #(load_e = 0), entropy = - sum p log p, p_e = load_e / sum        (nats)
 * The map shows the last 25 to 50 steps: two half windows are summed, the older one is dropped when the newer is full.
 */
#include "train/router.h"
#include <math.h>

/* Layer of "layers.3.moe.load"; -1: another value. */
static int layer_of_load(const char *name)
{
    int layer, at = 0;
    size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 5, ".load") != 0) return -1;
    return sscanf(name, "layers.%9d.%n", &layer, &at) == 1 && at > 0 ? layer : -1;
}

/* The selection bias of a layer: the one parameter of it that a rule of its own changes. */
static cdr_val find_bias(const cdr_bundle *b, int layer, int experts)
{
    char mark[40];
    snprintf(mark, sizeof mark, "layers.%d.", layer);
    for (int32_t i = 0; i < b->n_params; i++) {
        const cdr_param *q = &b->params[i];
        const char *at = strstr(q->name, mark);
        if (at && (at == q->name || at[-1] == '.') && q->train == CDR_STATE && cdr_type_elems(&q->global) == experts &&
            b->shared[q->shard].t.dtype == CDR_F32) return q->shard;
    }
    return CDR_NONE;
}

void cdr__router_open(cdr_router *r, const cdr_session *s)
{
    const cdr_program *p = &s->bundle.progs[CDR_PROG_STEP];
    *r = (cdr_router){ .layer = cdr_pool_alloc(s->pool, sizeof *r->layer * (size_t)(p->n_vals + 1)) };
    for (int32_t v = 0; v < p->n_vals; v++) {
        const cdr_value *x = &p->vals[v];
        const char *name = p->strings + x->name;
        int layer = layer_of_load(name);
        if (layer < 0 || x->t.dtype != CDR_I32 || x->scope != CDR_STEP || x->alias != CDR_NONE) continue;
        cdr_router_layer *l = &r->layer[r->n++];
        size_t n = (size_t)cdr_type_elems(&x->t);
        *l = (cdr_router_layer){ .layer = layer, .experts = (int)n, .value = name, .bias = find_bias(&s->bundle, layer, (int)n) };
        l->load = cdr_pool_alloc(s->pool, sizeof *l->load * n);
        for (int k = 0; k < 2; k++) l->sum[k] = cdr_pool_alloc(s->pool, sizeof *l->sum[k] * n);
        for (cdr_router_layer *at = l; at > r->layer && at[-1].layer > at->layer; at--) {       /* by layer; few, and nearly sorted */
            cdr_router_layer swap = at[-1];
            at[-1] = *at;
            *at = swap;
        }
    }
}

static void read_bias(cdr_router_layer *l, const cdr_session *s)
{
    l->bias_min = l->bias_max = 0;
    if (l->bias == CDR_NONE) return;
    float *b = cdr_alloc(sizeof *b * (size_t)l->experts);
    cdr_exec_get_run(s->exec, l->bias, b, sizeof *b * (size_t)l->experts);
    l->bias_min = l->bias_max = b[0];
    for (int e = 1; e < l->experts; e++) {
        l->bias_min = CDR_MIN(l->bias_min, (double)b[e]);
        l->bias_max = CDR_MAX(l->bias_max, (double)b[e]);
    }
    cdr_free(b);
}

static void measure(cdr_router_layer *l)
{
    int64_t sum = 0, most = 0, least = INT64_MAX;
    l->dead = 0;
    l->entropy = 0;
    for (int e = 0; e < l->experts; e++) {
        sum += l->load[e];
        most = CDR_MAX(most, (int64_t)l->load[e]);
        least = CDR_MIN(least, (int64_t)l->load[e]);
        l->dead += l->load[e] == 0;
        l->sum[0][e] += l->load[e];
    }
    double mean = (double)sum / l->experts;
    l->max_mean = sum > 0 ? (double)most / mean : 0;
    l->min_mean = sum > 0 ? (double)least / mean : 0;
    for (int e = 0; e < l->experts && sum > 0; e++) {
        double q = (double)l->load[e] / (double)sum;
        if (q > 0) l->entropy -= q * log(q);
    }
}

void cdr__router_read(cdr_router *r, const cdr_session *s)
{
    bool turn = r->steps[0] == CDR_ROUTER_WINDOW;
    r->worst = 0;
    r->dead = 0;
    r->worst_layer = -1;
    for (int i = 0; i < r->n; i++) {
        cdr_router_layer *l = &r->layer[i];
        if (turn) {
            int64_t *old = l->sum[1];
            l->sum[1] = l->sum[0];
            l->sum[0] = old;
            memset(old, 0, sizeof *old * (size_t)l->experts);
        }
        cdr_exec_get(s->exec, CDR_PROG_STEP, l->value, 0, l->load, sizeof *l->load * (size_t)l->experts);
        measure(l);
        read_bias(l, s);
        r->dead += l->dead;
        if (l->max_mean > r->worst) {
            r->worst = l->max_mean;
            r->worst_layer = l->layer;
        }
    }
    if (turn) {
        r->steps[1] = r->steps[0];
        r->steps[0] = 0;
    }
    r->steps[0]++;
}

bool cdr__router_uneven(const cdr_router *r, int *layer, double *ratio, int *dead)
{
    *ratio = CDR_UNEVEN;
    *layer = -1;
    for (int i = 0; i < r->n && r->steps[0] == CDR_ROUTER_WINDOW; i++) {
        const cdr_router_layer *l = &r->layer[i];
        int64_t sum = 0, most = 0;
        int none = 0;
        for (int e = 0; e < l->experts; e++) {
            sum += l->sum[0][e];
            most = CDR_MAX(most, l->sum[0][e]);
            none += l->sum[0][e] == 0;
        }
        double x = sum > 0 ? (double)most * l->experts / (double)sum : 0;
        if (x <= *ratio) continue;
        *ratio = x;
        *layer = l->layer;
        *dead = none;
    }
    return *layer >= 0;
}

/* ---- the map ---- */
static const struct { double below; const char *utf8, *ascii; } marks[] = {
    { 0.25, "▁", "." }, { 0.5, "▂", ":" }, { 0.75, "▃", "-" }, { 1.25, "▄", "=" },
    { 1.5, "▅", "+" }, { 2, "▆", "*" }, { 3, "▇", "#" }, { INFINITY, "█", "@" },
};

const char *cdr__router_mark(double ratio, bool utf8)
{
    int i = 0;
    if (ratio <= 0) return "x";
    while (i < CDR_COUNT(marks) - 1 && !(ratio < marks[i].below)) i++;
    return utf8 ? marks[i].utf8 : marks[i].ascii;
}

static void map_line(const cdr_router_layer *l, int group, bool utf8, cdr_text *out)
{
    int64_t sum = 0, most = 0;
    for (int e = 0; e < l->experts; e++) {
        sum += l->sum[0][e] + l->sum[1][e];
        most = CDR_MAX(most, l->sum[0][e] + l->sum[1][e]);
    }
    double mean = CDR_MAX((double)sum, 1.0) / l->experts;
    cdr_text_printf(out, "layer %3d  ", l->layer);
    for (int e = 0; e < l->experts; e += group) {
        int n = CDR_MIN(group, l->experts - e);
        int64_t part = 0;
        for (int k = e; k < e + n; k++) part += l->sum[0][k] + l->sum[1][k];
        cdr_text_printf(out, "%s", cdr__router_mark((double)part / n / mean, utf8));
    }
    cdr_text_printf(out, "  %.2f\n", (double)most / mean);
}

void cdr__router_map(const cdr_router *r, bool utf8, cdr_text *out)
{
    enum { BESIDE = 18 };                        /* "layer 000  ", "  00.00" */
    int experts = 0;
    if (r->n == 0) return;
    for (int i = 0; i < r->n; i++) experts = CDR_MAX(experts, r->layer[i].experts);
    int group = (int)cdr_ceil_div(experts, CDR_MAP_COLUMNS - BESIDE);
    cdr_text_printf(out, "load      layers x experts over the last %lld step%s; after a line: max / mean", (long long)(r->steps[0] + r->steps[1]),
                    r->steps[0] + r->steps[1] == 1 ? "" : "s");
    if (group > 1) cdr_text_printf(out, "\n          one character for %d experts, their mean", group);
    cdr_text_printf(out, "\n");
    for (int i = 0; i < r->n; i++) map_line(&r->layer[i], group, utf8, out);
    cdr_text_printf(out, "of mean   x none");
    for (int i = 0; i < CDR_COUNT(marks); i++) {
        const char *mark = utf8 ? marks[i].utf8 : marks[i].ascii;
        if (i + 1 < CDR_COUNT(marks)) cdr_text_printf(out, "  %s <%g", mark, marks[i].below);
        else cdr_text_printf(out, "  %s more", mark);
    }
    cdr_text_printf(out, "\n");
}

/* ---- further losses ---- */
/* Which is which: by the forward calls that make them, in the order of the program. */
void cdr__extra_open(cdr_extra *x, const cdr_session *s)
{
    const cdr_bundle *b = &s->bundle;
    const cdr_program *p = &b->progs[CDR_PROG_STEP];
    cdr_val v = cdr_program_find(b, p, "extra");
    int n = 0;
    *x = (cdr_extra){ 0 };
    if (v == CDR_NONE) return;
    x->n = (int)cdr_type_elems(&cdr_value_at(b, p, v)->t);
    x->is_kl = cdr_pool_alloc(s->pool, (size_t)x->n);
    x->sum = cdr_pool_alloc(s->pool, sizeof *x->sum * (size_t)x->n);
    for (int32_t i = 0; i < p->n_calls; i++) {
        const char *op = cdr_ops[p->calls[i].op]->name;
        bool kl = strcmp(op, "indexer_loss") == 0;
        if (p->calls[i].phase != CDR_P_FWD || (!kl && strcmp(op, "aux_loss") != 0)) continue;
        CDR_CHECK(n < x->n);
        x->is_kl[n++] = kl;
        x->has_kl = x->has_kl || kl;
        x->has_aux = x->has_aux || !kl;
    }
    CDR_CHECK(n == x->n);
}

void cdr__extra_read(cdr_extra *x, const cdr_session *s, int64_t rows)
{
    x->kl = x->aux = 0;
    if (x->n == 0) return;
    cdr_exec_get(s->exec, CDR_PROG_STEP, "extra", 0, x->sum, sizeof *x->sum * (size_t)x->n);
    for (int i = 0; i < x->n; i++) *(x->is_kl[i] ? &x->kl : &x->aux) += x->sum[i] / (double)CDR_MAX(rows, (int64_t)1);
}
