/* exec.c: walks a bundle's programs. One allocation per tier; pointers are base + offset + copy * stride.
 *
 * A device whose slab the host sees (the CPU) runs calls as it walks, in list order, which every stream order allows;
 * the test executor picks a random legal order instead. Another device gets the calls on its streams, with events for
 * the waits and a join of all streams at the start of each turn: no host wait inside a step. The host waits at the end
 * of a run, where a fault of the device becomes an error of the step. */
#include "run/exec.h"
#include <math.h>
#include <stdlib.h>

static size_t elem_bytes(const cdr_value *v) { return cdr_type_bytes(&v->t); }

static void *address(const cdr_exec *x, const cdr_program *p, cdr_val v, int mb)
{
    const cdr_value *val = cdr_value_at(x->b, p, v);
    return x->slab + val->offset + (mb % val->n_inst) * val->stride;
}

void *cdr_exec_ptr(cdr_exec *x, cdr_prog_id prog, cdr_val v, int mb) { return address(x, &x->b->progs[prog], v, mb); }
cdr_comm *cdr_exec_comm(const cdr_exec *x, cdr_comm_id c) { return x->comms[c]; }
size_t cdr_exec_slab_bytes(const cdr_exec *x, int tier) { return tier == 0 ? x->slab_bytes : 0; }
void cdr_exec_set_step(cdr_exec *x, int64_t step)
{
    x->step = step;
    cdr_here()->step = step;
}
void cdr_exec_profile(cdr_exec *x, bool on) { x->profile = on; }
void cdr_exec_check_finite(cdr_exec *x, bool on) { x->o.check_finite = on; }

/* ---- open ---- */
static cdr_status prepare(cdr_exec *x, cdr_prog_id q, cdr_err *err)
{
    const cdr_program *p = &x->b->progs[q];
    prepared *r = &x->prep[q];
    r->types = cdr_pool_alloc(x->pool, sizeof *r->types * (size_t)CDR_MAX(p->n_operands, 1));
    for (int32_t i = 0; i < p->n_operands; i++) {
        if (p->operands[i] == CDR_NONE) r->types[i].dtype = CDR_N_DTYPES;
        else r->types[i] = cdr_value_at(x->b, p, p->operands[i])->t;
    }
    r->run = cdr_pool_alloc(x->pool, sizeof *r->run * (size_t)CDR_MAX(p->n_calls, 1));
    r->event = cdr_pool_alloc(x->pool, sizeof *r->event * (size_t)CDR_MAX(p->n_calls, 1));
    r->ns = cdr_pool_alloc(x->pool, sizeof *r->ns * (size_t)CDR_MAX(p->n_calls, 1));
    r->n_runs = cdr_pool_alloc(x->pool, sizeof *r->n_runs * (size_t)CDR_MAX(p->n_calls, 1));
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_op *op = cdr_ops[p->calls[i].op];
        r->event[i] = -1;
        if (op->flags & CDR_OP_VIEW) continue;
        const cdr_kernel *k = &cdr_op_kernels(op, x->d->kind)[p->calls[i].kernel];
        r->run[i] = k->run ? k->run : x->d->ops->kernel(x->d, k->symbol);
        if (!r->run[i]) CDR_FAIL_ID(err, CDR_EUSER, "device.kernel", "%s: the plug-in has no %s; it was built from another version. Build it again",
                                    op->name, k->symbol);
    }
    for (int32_t i = 0; i < p->n_calls; i++)
        for (int w = 0; w < p->calls[i].n_wait; w++) {
            int32_t on = p->waits[p->calls[i].wait + (uint32_t)w];
            if (r->event[on] < 0) r->event[on] = x->n_events++;
        }
    for (int32_t v = 0; v < p->n_vals; v++) {
        if (p->vals[v].scope != CDR_STEP) continue;
        named *n = CDR_PUSH(x->pool, r->names, r->n_names, r->cap_names);
        *n = (named){ cdr_value_name(x->b, p, x->b->n_shared + v), x->b->n_shared + v };
    }
    return CDR_OK;
}

static cdr_status open_comms(cdr_exec *x, cdr_err *err)
{
    x->comms[CDR_COMM_WORLD] = x->o.world;
    x->lane_comms[CDR_COMM_WORLD] = x->o.world;
    if (!x->o.world) return CDR_OK;
    const cdr_mesh *m = x->o.mesh;
    const int replica = m->rank[CDR_AXIS_REPLICATE], shard = m->rank[CDR_AXIS_SHARD], n_shard = m->size[CDR_AXIS_SHARD], ep = cdr_mesh_expert(m);
    const int color[CDR_N_COMMS] = { 0, replica, shard, replica * n_shard + shard / ep, replica * n_shard + shard % ep };
    for (int c = CDR_COMM_SHARD; c < (ep > 1 ? CDR_N_COMMS : CDR_COMM_EXPERT); c++) {
        x->comms[c] = cdr_comm_split(x->o.world, color[c], m->world_rank, err);
        if (!x->comms[c]) return err->status;
        x->lane_comms[c] = x->comms[c];
    }
    return CDR_OK;
}

cdr_status cdr_exec_open(const cdr_exec_opts *o, cdr_exec **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_exec *x = cdr_pool_alloc(pool, sizeof *x);
    x->pool = pool;
    x->o = *o;
    x->b = o->bundle;
    x->d = o->device;
    x->bad.mb = -1;
    x->slab_bytes = (size_t)(x->b->run_bytes[0] + x->b->exec_bytes[0]);
    cdr_status st = open_comms(x, err);
    if (st == CDR_OK) {
        x->slab = x->d->host_sees && o->world ? cdr_comm_slab(o->world, x->slab_bytes, err) : x->d->ops->alloc(x->d, 0, x->slab_bytes, err);
        st = x->slab ? CDR_OK : err->status;
    }
    for (int q = 0; q < x->b->n_progs && st == CDR_OK; q++) st = prepare(x, (cdr_prog_id)q, err);
    if (st == CDR_OK) {
        x->join_event = x->n_events;
        st = x->d->ops->events(x->d, x->n_events + CDR_N_STREAMS);
    }
    if (st == CDR_OK) {
        int32_t ok = 1;
        cdr_val v = cdr_program_find(x->b, &x->b->progs[CDR_PROG_STEP], "ok");
        if (v != CDR_NONE) cdr_exec_put_run(x, v, &ok, sizeof ok);
        *out = x;
        return CDR_OK;
    }
    cdr_exec_close(x);
    return st;
}

void cdr_exec_close(cdr_exec *x)
{
    if (!x) return;
    if (x->slab && !(x->d->host_sees && x->o.world)) x->d->ops->free(x->d, 0, x->slab);
    cdr_pool_free(x->pool);
}

/* ---- one call ---- */
static void first_nonfinite(cdr_exec *x, cdr_prog_id q, int32_t i, int mb)
{
    const cdr_program *p = &x->b->progs[q];
    const cdr_call *c = &p->calls[i];
    for (int k = c->n_in; k < c->n_in + c->n_out && x->bad.mb < 0; k++) {
        cdr_val v = p->operands[c->arg + (uint32_t)k];
        if (v == CDR_NONE) continue;
        const cdr_type *t = &cdr_value_at(x->b, p, v)->t;
        if (!cdr_dtype_row(t->dtype)->floating) continue;
        int64_t rows = cdr_type_rows(t), cols = cdr_type_cols(t), pitch = cdr_type_pitch(t);
        size_t row_bytes = (size_t)cdr_dtype_bytes(t->dtype, cols);
        char *row = malloc(row_bytes);
        double *wide = malloc(sizeof *wide * (size_t)cols);
        CDR_CHECK(row && wide);
        for (int64_t r = 0; r < rows && x->bad.mb < 0; r++) {
            const char *src = (const char *)address(x, p, v, mb) + cdr_dtype_bytes(t->dtype, r * pitch);
            x->d->ops->copy(x->d, CDR_S_COMPUTE, row, src, row_bytes);
            cdr_err e = { CDR_OK, "", "" };
            if (!x->d->host_sees) x->d->ops->sync(x->d, &e);
            cdr_to_f64(t->dtype, row, wide, cols);
            for (int64_t j = 0; j < cols; j++)
                if (!isfinite(wide[j])) {
                    x->bad = (cdr_nonfinite){ p->strings + c->origin, cdr_ops[c->op]->name, cdr_value_name(x->b, p, v), c->layer, c->phase, mb, r };
                    break;
                }
        }
        free(row);
        free(wide);
    }
}

bool cdr_exec_nonfinite(const cdr_exec *x, cdr_nonfinite *where)
{
    if (x->bad.mb >= 0 && where) *where = x->bad;
    return x->bad.mb >= 0;
}

static cdr_status run_call(cdr_exec *x, cdr_prog_id q, int32_t i, int mb, cdr_err *err)
{
    const cdr_program *p = &x->b->progs[q];
    const cdr_call *c = &p->calls[i];
    prepared *r = &x->prep[q];
    if (!r->run[i]) return CDR_OK;
    bool host = x->d->host_sees;
    const int32_t *pred = c->pred == CDR_NONE ? NULL : address(x, p, c->pred, mb);
    if (host && pred && *pred == 0) return CDR_OK;
    void *ptr[CDR_MAX_OPERANDS];
    for (int k = 0; k < c->n_in + c->n_out; k++) {
        cdr_val v = p->operands[c->arg + (uint32_t)k];
        ptr[k] = v == CDR_NONE ? NULL : address(x, p, v, mb);
    }
    cdr_lane lane = { .n_threads = x->d->n_threads, .comms = x->lane_comms, .stream = x->d->ops->stream(x->d, c->stream), .device = x->d };
    cdr_args a = { .attr = p->attrs + c->attr, .type = r->types + c->arg, .ptr = ptr, .n_in = c->n_in, .n_out = c->n_out, .add = c->add,
                   .work = c->work == CDR_NONE ? NULL : address(x, p, c->work, mb), .pred = host ? NULL : pred, .lane = &lane };
    cdr_where *here = cdr_here();
    here->call = i;
    here->op = cdr_ops[c->op]->name;
    here->origin = p->strings + c->origin;
    if ((cdr_ops[c->op]->flags & CDR_OP_COLLECTIVE) && x->o.world) cdr_comm_note(x->o.world, x->step, c->layer, here->origin);
    cdr_status st = CDR_OK;
    for (int w = 0; w < c->n_wait && !host && st == CDR_OK; w++) st = x->d->ops->wait(x->d, c->stream, r->event[p->waits[c->wait + (uint32_t)w]]);
    if (x->o.trace) fprintf(stderr, "%s %d %s %s mb %d\n", p->name, i, here->origin, here->op, mb);
    int64_t t0 = x->profile ? cdr_now_ns() : 0;
    cdr__mapped_ahead(x, q, i);
    if (st == CDR_OK) st = r->run[i](&a);
    if (st == CDR_OK && !host && r->event[i] >= 0) st = x->d->ops->record(x->d, c->stream, r->event[i]);
    if (x->o.sync && st == CDR_OK) st = x->d->ops->sync(x->d, err);
    if (x->profile) {
        if (!host) x->d->ops->sync(x->d, err);
        r->ns[i] += cdr_now_ns() - t0;
        r->n_runs[i]++;
    }
    if (st == CDR_ERANK && x->o.world) {
        cdr_comm_lost(x->o.world, err);
        return st;
    }
    if (st != CDR_OK) CDR_FAIL_ID(err, st, "device.call", "step %lld: %s (%s) failed", (long long)x->step, p->strings + c->origin, cdr_ops[c->op]->name);
    if (x->o.check_finite && x->bad.mb < 0) first_nonfinite(x, q, i, mb);
    return CDR_OK;
}

/* ---- one turn ---- */
/* Picks, at random, a stream whose next call's waits are over. */
static cdr_status random_order(cdr_exec *x, cdr_prog_id q, const cdr_segment *s, int mb, cdr_err *err)
{
    const cdr_program *p = &x->b->progs[q];
    int32_t next[CDR_N_STREAMS];
    int32_t left = s->n;
    bool *over = calloc((size_t)CDR_MAX(p->n_calls, 1), 1);
    CDR_CHECK(over);
    for (int st = 0; st < CDR_N_STREAMS; st++) next[st] = s->first;
    cdr_status status = CDR_OK;
    while (left > 0 && status == CDR_OK) {
        int ready[CDR_N_STREAMS], n = 0;
        for (int st = 0; st < CDR_N_STREAMS; st++) {
            while (next[st] < s->first + s->n && p->calls[next[st]].stream != st) next[st]++;
            if (next[st] >= s->first + s->n) continue;
            const cdr_call *c = &p->calls[next[st]];
            bool go = true;
            for (int w = 0; w < c->n_wait; w++) go = go && over[p->waits[c->wait + (uint32_t)w]];
            if (go) ready[n++] = st;
        }
        CDR_CHECK(n > 0);
        cdr_rng_key key = { x->o.random_order, 7, 0 };
        int st = ready[cdr_rng_u64(key, x->n_random++) % (uint64_t)n];
        status = run_call(x, q, next[st], mb, err);
        over[next[st]++] = true;
        left--;
    }
    free(over);
    return status;
}

static cdr_status join_streams(cdr_exec *x)
{
    for (int s = 0; s < CDR_N_STREAMS; s++) CDR_TRY(x->d->ops->record(x->d, s, x->join_event + s));
    for (int s = 0; s < CDR_N_STREAMS; s++)
        for (int r = 0; r < CDR_N_STREAMS; r++) if (r != s) CDR_TRY(x->d->ops->wait(x->d, s, x->join_event + r));
    return CDR_OK;
}

static cdr_status run_turn(cdr_exec *x, cdr_prog_id q, int segment, int mb, cdr_err *err)
{
    const cdr_segment *s = &x->b->progs[q].segs[segment];
    if (x->o.random_order && x->d->host_sees) return random_order(x, q, s, mb, err);
    if (!x->d->host_sees && join_streams(x) != CDR_OK) CDR_FAIL_ID(err, CDR_ERANK, "device.event", "step %lld: the device refused an event", (long long)x->step);
    for (int32_t i = s->first; i < s->first + s->n; i++) CDR_TRY(run_call(x, q, i, mb, err));
    return CDR_OK;
}

static void poison(cdr_exec *x, cdr_prog_id q)
{
    const cdr_program *p = &x->b->progs[q];
    for (int32_t v = 0; v < p->n_vals; v++) {
        const cdr_value *val = &p->vals[v];
        if (val->scope != CDR_TURN || val->alias != CDR_NONE || val->offset < 0) continue;
        for (int i = 0; i < val->n_inst; i++)
            x->d->ops->fill(x->d, CDR_S_COMPUTE, x->slab + val->offset + i * val->stride, 0xff, elem_bytes(val));
    }
}

cdr_status cdr_exec_run(cdr_exec *x, cdr_prog_id q, cdr_err *err)
{
    const cdr_program *p = &x->b->progs[q];
    cdr_where *here = cdr_here();
    here->step = x->step;
    here->rank = x->o.world ? cdr_comm_rank(x->o.world) : 0;
    x->bad.mb = -1;
    if (x->o.poison) poison(x, q);
    cdr__mapped_ready(x);
    cdr_alloc_freeze(!x->o.check_finite);
    cdr_status st = CDR_OK;
    for (int32_t t = 0; t < p->n_turns && st == CDR_OK; t++) st = run_turn(x, q, p->turns[t].segment, p->turns[t].mb, err);
    cdr_alloc_freeze(false);
    return st == CDR_OK && !x->d->host_sees ? x->d->ops->sync(x->d, err) : st;
}

/* ---- values by name ---- */
static cdr_val find(const cdr_exec *x, cdr_prog_id q, const char *name)
{
    const prepared *r = &x->prep[q];
    for (int64_t i = 0; i < r->n_names; i++) if (strcmp(r->names[i].name, name) == 0) return r->names[i].v;
    fprintf(stderr, "program %s has no step value %s\n", x->b->progs[q].name, name);
    bool step_value_is_known = false;
    CDR_CHECK(step_value_is_known);
    return CDR_NONE;
}

/* Between runs the device is idle, so any stream will do. */
static void move(cdr_exec *x, void *dst, const void *src, size_t bytes)
{
    CDR_CHECK(x->d->ops->copy(x->d, CDR_S_COMPUTE, dst, src, bytes) == CDR_OK);
    cdr_err e = { CDR_OK, "", "" };
    if (!x->d->host_sees) CDR_CHECK(x->d->ops->sync(x->d, &e) == CDR_OK);
}

void cdr_exec_put(cdr_exec *x, cdr_prog_id q, const char *name, int inst, const void *src, size_t bytes)
{
    cdr_val v = find(x, q, name);
    CDR_CHECK(bytes <= elem_bytes(cdr_value_at(x->b, &x->b->progs[q], v)));
    move(x, address(x, &x->b->progs[q], v, inst), src, bytes);
}

void cdr_exec_get(cdr_exec *x, cdr_prog_id q, const char *name, int inst, void *dst, size_t bytes)
{
    cdr_val v = find(x, q, name);
    CDR_CHECK(bytes <= elem_bytes(cdr_value_at(x->b, &x->b->progs[q], v)));
    move(x, dst, address(x, &x->b->progs[q], v, inst), bytes);
}

/* Values in panels, or mapped, are the CPU's: the slab is host memory. Rows are independent, so any cut among threads gives the same bytes. */
enum { PANEL_ROWS = 64 };

static void move_rows(cdr_exec *x, const cdr_type *t, char *panels, int64_t first, int64_t n, char *rows, bool put)
{
    const int64_t row_bytes = cdr_dtype_bytes(t->dtype, cdr_type_cols(t)), n_blocks = cdr_ceil_div(n, PANEL_ROWS);
    CDR_CHECK(x->d->host_sees);
#pragma omp parallel for num_threads(x->d->n_threads) schedule(static)
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t i = b * PANEL_ROWS, m = CDR_MIN(n - i, (int64_t)PANEL_ROWS);
        if (t->layout == CDR_MAPPED) cdr_mapped_get(t, first + i, m, panels, rows + i * row_bytes);
        else if (put) cdr_panels_put(t, first + i, m, rows + i * row_bytes, panels);
        else cdr_panels_get(t, first + i, m, panels, rows + i * row_bytes);
    }
}

void cdr_exec_put_run(cdr_exec *x, cdr_val v, const void *src, size_t bytes)
{
    CDR_CHECK(v >= 0 && v < x->b->n_shared);
    const cdr_value *val = &x->b->shared[v];
    CDR_CHECK(bytes <= cdr_exec_run_bytes(x, v) && val->t.layout != CDR_MAPPED);
    if (val->t.layout == CDR_ROWS) move(x, x->slab + val->offset, src, bytes);
    else {
        CDR_CHECK(bytes == cdr_exec_run_bytes(x, v));
        move_rows(x, &val->t, x->slab + val->offset, 0, cdr_type_rows(&val->t), (char *)(uintptr_t)src, true);
    }
}

void cdr_exec_put_rows(cdr_exec *x, cdr_val v, int64_t first, int64_t n, const void *src)
{
    CDR_CHECK(v >= 0 && v < x->b->n_shared);
    const cdr_type *t = &x->b->shared[v].t;
    char *at = x->slab + x->b->shared[v].offset;
    const int64_t row_bytes = cdr_dtype_bytes(t->dtype, cdr_type_cols(t));
    CDR_CHECK(first >= 0 && n >= 0 && first + n <= cdr_type_rows(t) && (t->pitch == 0 || t->pitch == cdr_type_cols(t)) && t->layout != CDR_MAPPED);
    if (t->layout == CDR_ROWS) move(x, at + first * row_bytes, src, (size_t)(n * row_bytes));
    else move_rows(x, t, at, first, n, (char *)(uintptr_t)src, true);
}

size_t cdr_exec_run_bytes(const cdr_exec *x, cdr_val v)
{
    cdr_type t = x->b->shared[v].t;
    t.layout = CDR_ROWS;
    return cdr_type_bytes(&t);
}

void cdr_exec_get_run(cdr_exec *x, cdr_val v, void *dst, size_t bytes)
{
    CDR_CHECK(v >= 0 && v < x->b->n_shared && bytes <= cdr_exec_run_bytes(x, v));
    const cdr_value *val = &x->b->shared[v];
    if (val->t.layout == CDR_ROWS) move(x, dst, x->slab + val->offset, bytes);
    else {
        CDR_CHECK(bytes == cdr_exec_run_bytes(x, v));
        cdr_exec_get_rows(x, v, 0, cdr_type_rows(&val->t), dst);
    }
}

void cdr_exec_get_rows(cdr_exec *x, cdr_val v, int64_t first, int64_t n, void *dst)
{
    CDR_CHECK(v >= 0 && v < x->b->n_shared && x->d->host_sees);
    const cdr_type *t = &x->b->shared[v].t;
    char *at = x->slab + x->b->shared[v].offset;
    const int64_t row_bytes = cdr_dtype_bytes(t->dtype, cdr_type_cols(t));
    CDR_CHECK(first >= 0 && n >= 0 && first + n <= cdr_type_rows(t) && (t->pitch == 0 || t->pitch == cdr_type_cols(t)));
    if (t->layout != CDR_ROWS) move_rows(x, t, at, first, n, dst, false);
    else memcpy(dst, at + first * row_bytes, (size_t)(n * row_bytes));
}

int cdr_exec_profile_rows(cdr_exec *x, cdr_profile_row *rows, int max)
{
    int n = 0;
    for (int q = 0; q < x->b->n_progs; q++) {
        const cdr_program *p = &x->b->progs[q];
        for (int32_t i = 0; i < p->n_calls; i++) {
            if (x->prep[q].n_runs[i] == 0) continue;
            const cdr_call *c = &p->calls[i];
            const cdr_op *op = cdr_ops[c->op];
            const char *kernel = cdr_op_kernels(op, x->d->kind)[c->kernel].name;
            int r = 0;
            while (r < n && (strcmp(rows[r].op, op->name) != 0 || strcmp(rows[r].kernel, kernel) != 0)) r++;
            if (r == n) {
                if (n == max) continue;
                rows[n++] = (cdr_profile_row){ op->name, kernel, 0, 0, 0 };
            }
            rows[r].n += x->prep[q].n_runs[i];
            rows[r].ns += x->prep[q].ns[i];
            rows[r].flop += (double)x->prep[q].n_runs[i] *
                            cdr_op_cost(op, p->attrs + c->attr, c->n_in, c->n_out, x->prep[q].types + c->arg).flop;
        }
    }
    return n;
}
