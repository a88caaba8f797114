/* graph.c: the builder. Calls and values are appended; passes rewrite the lists that order them.
 * Errors are sticky: model code reads like the paper and is checked once, at the end. */
#include "graph/op.h"
#include <stdio.h>
#include <stdlib.h>

const char *const cdr_comm_name[CDR_N_COMMS] = { "world", "shard", "replicate", "expert", "efsdp" };
const char *const cdr_class_name[CDR_N_CLASSES] = { "weights", "frozen", "gradients", "optimizer", "activations", "saved",
                                                    "workspace", "comm", "inputs", "state" };

cdr_graph *cdr_graph_new(cdr_pool *pool, cdr_bundle *b, const char *prog_name, cdr_err *err)
{
    cdr_graph *g = cdr_pool_alloc(pool, sizeof *g);
    g->pool = pool;
    g->err = err;
    g->b = b;
    g->layer = -1;
    g->cur = -1;
    g->scope = CDR_TURN;
    g->prefix = "";
    g->prog_name = prog_name;
    CDR_PUSH(pool, g->strings, g->n_strings, g->cap_strings);      /* offset 0: the empty string */
    return g;
}

cdr_status cdr_graph_fail(cdr_graph *g, cdr_status st, const char *fmt, ...)
{
    if (g->failed) return st;
    g->failed = true;
    char text[1000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return cdr_fail(g->err, st, "model.build", "%s%s%s", g->prefix, *g->prefix ? ": " : "", text);
}

int cdr_graph_list(cdr_graph *g, const char *name)
{
    cdr_list *lists = cdr_pool_alloc(g->pool, sizeof *lists * (size_t)(g->n_lists + 1));
    if (g->n_lists > 0) memcpy(lists, g->lists, sizeof *lists * (size_t)g->n_lists);
    lists[g->n_lists].name = cdr_pool_strdup(g->pool, name);
    g->lists = lists;
    g->cur = g->n_lists;
    return g->n_lists++;
}

cdr_value *cdr_graph_at(const cdr_graph *g, cdr_val v)
{
    if (v < CDR_LOCAL0) {
        CDR_CHECK(v >= 0 && v < g->b->n_shared);
        return &g->b->shared[v];
    }
    CDR_CHECK(v - CDR_LOCAL0 < g->n_vals);
    return &g->vals[v - CDR_LOCAL0];
}

const cdr_type *cdr_graph_type(const cdr_graph *g, cdr_val v) { return &cdr_graph_at(g, v)->t; }

static int32_t add_string(cdr_graph *g, const char *s)
{
    int64_t at = g->n_strings;
    for (size_t i = 0; i <= strlen(s); i++) *CDR_PUSH(g->pool, g->strings, g->n_strings, g->cap_strings) = s[i];
    return (int32_t)at;
}

static int32_t add_shared_string(cdr_graph *g, const char *s)
{
    /* shared names live in one block, in the order of the values: the last one's end is the block's */
    cdr_bundle *b = g->b;
    size_t old = 1;                                        /* offset 0: the empty string */
    if (b->n_shared > 0) old = (size_t)b->shared[b->n_shared - 1].name + strlen(b->shared_strings + b->shared[b->n_shared - 1].name) + 1;
    size_t len = strlen(s) + 1, cap = 4096;
    while (cap < old + len) cap *= 2;
    size_t have = 0;
    if (b->shared_strings) for (have = 4096; have < old; have *= 2) {}
    if (have < cap) {
        char *block = cdr_pool_alloc(g->pool, cap);
        if (b->shared_strings) memcpy(block, b->shared_strings, old);
        b->shared_strings = block;
    }
    memcpy(b->shared_strings + old, s, len);
    return (int32_t)old;
}

/* Arrays of the bundle grow by doubling at powers of two, so that no capacity needs to be kept beside them. */
static void *grow_pow2(cdr_pool *pool, void *old, size_t elem, int32_t n)
{
    if (n >= 16 && (n & (n - 1)) != 0) return old;
    if (n > 0 && n < 16) return old;
    void *p = cdr_pool_alloc(pool, elem * (size_t)(n == 0 ? 16 : 2 * n));
    if (n > 0) memcpy(p, old, elem * (size_t)n);
    return p;
}

cdr_val cdr_graph_value(cdr_graph *g, cdr_type t, cdr_scope scope, cdr_class cls, const char *name)
{
    if (g->failed) return CDR_NONE;
    cdr_value v = { .t = t, .cls = (uint8_t)cls, .scope = (uint8_t)scope, .alias = CDR_NONE, .live = CDR_NONE, .param = -1, .n_inst = 1,
                    .offset = -1 };
    const char *full = *g->prefix ? cdr_pool_printf(g->pool, "%s.%s", g->prefix, name) : name;
    if (scope == CDR_RUN) {
        cdr_bundle *b = g->b;
        v.name = add_shared_string(g, full);
        b->shared = grow_pow2(g->pool, b->shared, sizeof *b->shared, b->n_shared);
        b->shared[b->n_shared] = v;
        return b->n_shared++;
    }
    v.name = add_string(g, full);
    *CDR_PUSH(g->pool, g->vals, g->n_vals, g->cap_vals) = v;
    return CDR_LOCAL0 + (cdr_val)(g->n_vals - 1);
}

cdr_val cdr_graph_view(cdr_graph *g, cdr_val of, int64_t at_bytes, cdr_type t, const char *name)
{
    if (g->failed || of == CDR_NONE) return CDR_NONE;
    cdr_value base = *cdr_graph_at(g, of);
    if (base.scope == CDR_RUN && base.param >= 0) {
        cdr_graph_fail(g, CDR_EINVAL, "view %s of a parameter: a rank may hold a part of its rows only. Take a view of what is made of it", name);
        return CDR_NONE;
    }
    if (at_bytes < 0 || (size_t)at_bytes + cdr_type_bytes(&t) > cdr_type_bytes(&base.t)) {
        cdr_graph_fail(g, CDR_EINVAL, "view %s reaches past the end of its value", name);
        return CDR_NONE;
    }
    cdr_scope scope = base.scope == CDR_RUN ? CDR_STEP : (cdr_scope)base.scope;
    cdr_val v = cdr_graph_value(g, t, scope, (cdr_class)base.cls, name);
    cdr_value *p = cdr_graph_at(g, v);
    p->alias = of;
    p->alias_at = at_bytes;
    p->n_inst = base.n_inst;
    p->tier = base.tier;
    p->param = base.param;
    return v;
}

const void *cdr_graph_attr(const cdr_graph *g, const cdr_call *c) { return g->attrs + c->attr; }

static uint32_t add_attr(cdr_graph *g, const void *attr, size_t bytes)
{
    while (g->n_attrs % 16 != 0) *CDR_PUSH(g->pool, g->attrs, g->n_attrs, g->cap_attrs) = 0;
    uint32_t at = (uint32_t)g->n_attrs;
    for (size_t i = 0; i < bytes; i++) *CDR_PUSH(g->pool, g->attrs, g->n_attrs, g->cap_attrs) = ((const unsigned char *)attr)[i];
    return at;
}

int32_t cdr_graph_call(cdr_graph *g, const cdr_op *op, const void *attr, int n_in, const cdr_val *in, int n_out, cdr_val *out)
{
    if (g->failed) return -1;
    CDR_CHECK(g->cur >= 0 && n_in + n_out <= CDR_MAX_OPERANDS && n_out <= 32);
    cdr_type ti[CDR_MAX_OPERANDS] = { { 0 } }, to[CDR_MAX_OPERANDS] = { { 0 } };
    for (int i = 0; i < n_in; i++) {
        if (in[i] == CDR_NONE) ti[i].dtype = CDR_N_DTYPES;
        else ti[i] = *cdr_graph_type(g, in[i]);
    }
    int n = 0;
    cdr_err e = { CDR_OK, "", "" };
    if (op->infer(attr, n_in, ti, &n, to, &e) != CDR_OK) {
        cdr_graph_fail(g, e.status, "%s", e.text);
        return -1;
    }
    CDR_CHECK(n == n_out);
    for (int k = 0; k < n_out; k++) {
        if (out[k] == CDR_NONE) {
            CDR_CHECK(((op->optional >> k) & 1u) || cdr_absent(&to[k]));
        } else if (out[k] == CDR_NEW) {
            CDR_CHECK(!cdr_absent(&to[k]));
            char name[64];
            if (k == 0) snprintf(name, sizeof name, "%s", op->name);
            else snprintf(name, sizeof name, "%s.%d", op->name, k);
            out[k] = cdr_graph_value(g, to[k], (cdr_scope)g->scope, CDR_C_ACT, name);
            if (op->flags & CDR_OP_VIEW) {
                cdr_value *v = cdr_graph_at(g, out[k]);
                v->alias = in[k];
                v->cls = cdr_graph_at(g, in[k])->cls;
            }
        } else {
            const cdr_type *have = cdr_graph_type(g, out[k]);
            if (cdr_type_elems(have) != cdr_type_elems(&to[k])) {
                char a[64], b[64];
                cdr_type_print(a, have);
                cdr_type_print(b, &to[k]);
                cdr_graph_fail(g, CDR_EINVAL, "%s: output %d is %s, the operator makes %s", op->name, k, a, b);
                return -1;
            }
        }
    }
    cdr_call c = { .op = (uint16_t)cdr_op_index(op), .stream = g->stream, .phase = g->phase, .layer = g->layer, .n_in = (uint8_t)n_in,
                   .n_out = (uint8_t)n_out, .arg = (uint32_t)g->n_operands, .pred = CDR_NONE, .work = CDR_NONE };
    if (op->flags & CDR_OP_EFFECT) c.flags |= CDR_K_EFFECT;
    if ((op->flags & CDR_OP_COLLECTIVE) && !(op->flags & CDR_OP_COMPUTES)) c.stream = CDR_S_COMM;
    c.attr = add_attr(g, attr, attr ? op->attr_bytes : 0);
    c.origin = add_string(g, *g->prefix ? cdr_pool_printf(g->pool, "%s.%s", g->prefix, op->name) : op->name);
    for (int i = 0; i < n_in; i++) *CDR_PUSH(g->pool, g->operands, g->n_operands, g->cap_operands) = in[i];
    for (int k = 0; k < n_out; k++) *CDR_PUSH(g->pool, g->operands, g->n_operands, g->cap_operands) = out[k];
    *CDR_PUSH(g->pool, g->calls, g->n_calls, g->cap_calls) = c;
    cdr_list *l = &g->lists[g->cur];
    *CDR_PUSH(g->pool, l->calls, l->n, l->cap) = (int32_t)(g->n_calls - 1);
    return (int32_t)(g->n_calls - 1);
}

cdr_val cdr_graph_call1(cdr_graph *g, const cdr_op *op, const void *attr, int n_in, const cdr_val *in)
{
    cdr_val out = CDR_NEW;
    return cdr_graph_call(g, op, attr, n_in, in, 1, &out) < 0 ? CDR_NONE : out;
}

/* The slot of a name, or the empty one where it would go. Linear probing; the table is at most half full. */
static int32_t *param_slot(const cdr_bundle *b, const char *name)
{
    uint32_t at = (uint32_t)cdr_hash64(name, strlen(name), 0);
    for (;; at++) {
        int32_t *slot = &b->param_slot[at & (uint32_t)(b->n_slots - 1)];
        if (*slot == 0 || strcmp(b->params[*slot - 1].name, name) == 0) return slot;
    }
}

static void remember_param(cdr_graph *g, int32_t i)
{
    cdr_bundle *b = g->b;
    if (2 * b->n_params > b->n_slots) {
        b->n_slots = CDR_MAX(64, 4 * b->n_slots);
        b->param_slot = cdr_pool_alloc(g->pool, sizeof *b->param_slot * (size_t)b->n_slots);
        for (int32_t k = 0; k < i; k++) *param_slot(b, b->params[k].name) = k + 1;
    }
    *param_slot(b, b->params[i].name) = i + 1;
}

int32_t cdr_param_find(const cdr_bundle *b, const char *name)
{
    return b->n_slots == 0 ? -1 : *param_slot(b, name) - 1;
}

void cdr_param_rows(const cdr_param *q, const cdr_mesh *m, int64_t *first, int64_t *n)
{
    int64_t R = q->global.n[0], r = m->rank[CDR_AXIS_SHARD], size = m->size[CDR_AXIS_SHARD], ep = cdr_mesh_expert(m);
    bool split = q->split[0] == CDR_AXIS_SHARD || q->split[0] == CDR_AXIS_EXPERT;
    if (q->mapped) r = r % ep, size = ep;       /* nothing is gathered: a file is mapped by all */
    else if (q->split[0] == CDR_AXIS_EXPERT) r = r % ep * (size / ep) + r / ep;      /* place in the order of experts (struct cdr_mesh) */
    *first = split ? r * R / size : 0;
    *n = split ? (r + 1) * R / size - *first : R;
}

int32_t cdr_graph_declare(cdr_graph *g, cdr_param p)
{
    if (g->failed) return -1;
    cdr_bundle *b = g->b;
    if (cdr_param_find(b, p.name) >= 0) {
        cdr_graph_fail(g, CDR_EINVAL, "parameter %s is declared twice", p.name);
        return -1;
    }
    p.name = cdr_pool_strdup(g->pool, p.name);
    p.shard = p.grad = p.master = p.m = p.v = CDR_NONE;
    for (int d = 0; d < CDR_MAX_DIM; d++) p.split[d] = -1;
    if (p.lr_scale == 0.0f) p.lr_scale = 1.0f;
    b->params = grow_pow2(g->pool, b->params, sizeof *b->params, b->n_params);
    b->params[b->n_params] = p;
    const char *keep = g->prefix;
    g->prefix = "";
    cdr_type t = p.global;
    cdr_val v = cdr_graph_value(g, t, CDR_RUN, p.train == CDR_FROZEN ? CDR_C_FROZEN : CDR_C_WEIGHT, p.name);
    g->prefix = keep;
    b->params[b->n_params].shard = v;
    b->shared[v].param = b->n_params++;
    remember_param(g, b->n_params - 1);
    return b->n_params - 1;
}

cdr_val cdr_graph_param(cdr_graph *g, const char *fmt, ...)
{
    char name[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    if (g->failed) return CDR_NONE;
    int32_t i = cdr_param_find(g->b, name);
    if (i < 0) {
        cdr_graph_fail(g, CDR_EINVAL, "no parameter %s is declared", name);
        return CDR_NONE;
    }
    return g->b->params[i].shard;
}

void cdr_graph_enter(cdr_graph *g, int layer, const char *fmt, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    g->prefix = cdr_pool_strdup(g->pool, name);
    g->layer = (int16_t)layer;
}

int cdr_op_index(const cdr_op *op)
{
    for (int i = 0; cdr_ops[i]; i++) if (cdr_ops[i] == op) return i;
    bool in_the_operator_table = false;
    CDR_CHECK(in_the_operator_table);
    return -1;
}

const cdr_op *cdr_op_by_name(const char *name)
{
    for (int i = 0; cdr_ops[i]; i++) if (strcmp(cdr_ops[i]->name, name) == 0) return cdr_ops[i];
    return NULL;
}

cdr_cost cdr_op_cost(const cdr_op *op, const void *attr, int n_in, int n_out, const cdr_type *t)
{
    if (op->cost) return op->cost(attr, n_in, n_out, t);
    cdr_cost c = { 0 };
    for (int i = 0; i < n_in + n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        double bytes = (double)cdr_dtype_bytes(t[i].dtype, cdr_type_elems(&t[i]));
        if (i < n_in) c.read += bytes;
        else c.write += bytes;
    }
    return c;
}
