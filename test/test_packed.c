/* test_packed.c: a whole model whose frozen experts lie in memory as MXFP4: the curve and the weights of the same values in F32, to the bit;
 * the same bits on any layout of ranks; the bytes; what is refused. */
#include "spread_rig.h"
#include "test.h"

static setup frozen(int experts_dtype)
{
    setup s = small();
    s.freeze[0] = "*experts*";
    s.n_freeze = 1;
    s.no_generate = true;
    s.experts_dtype = experts_dtype;
    return s;
}

static bool is_stack(const cdr_param *q) { return q->place == CDR_PLACE_EXPERT && q->global.n_dim == 3; }

/* Experts of `to`, in F32, become the values that those of `from` have. */
static int unpack(rig *from, rig *to)
{
    int n = 0;
    for (int32_t i = 0; i < from->b.n_params; i++) {
        const cdr_param *q = &from->b.params[i];
        if (!is_stack(q)) continue;
        const cdr_type *t = &from->b.shared[q->shard].t;
        const int64_t elems = cdr_type_elems(t);
        float *x = malloc((size_t)elems * sizeof *x);
        cdr_to_f32(t->dtype, cdr_exec_ptr(from->x, CDR_PROG_STEP, q->shard, 0), x, elems);      /* MXFP4 lies in rows */
        T_CHECK(t->dtype == CDR_MXFP4 && to->b.shared[to->b.params[i].shard].t.dtype == CDR_F32);
        cdr_exec_put_run(to->x, to->b.params[i].shard, x, (size_t)elems * sizeof *x);
        free(x);
        n++;
    }
    return n;
}

static void packed_trains_as_its_values_do(void)
{
    const setup sp = frozen(CDR_MXFP4), sf = frozen(-1);
    rig p, f;
    must_open(&sp, &p);
    must_open(&sf, &f);
    double drawn = 0;
    for (int step = 0; step < 3; step++) {
        const batch b = pack((uint64_t)step);
        if (step == 0) drawn = evaluate(&f, &b, NULL);
        if (step == 0) T_CHECK(unpack(&p, &f) == 9);                 /* three layers of w1, w3, w2 */
        if (step == 0) T_CHECK(evaluate(&f, &b, NULL) != drawn);     /* packing did change them */
        const double a = must_step(&p, step, &b, 0.01), c = must_step(&f, step, &b, 0.01);
        T_CHECK(a == c && evaluate(&p, &b, NULL) == evaluate(&f, &b, NULL));
    }
    for (int32_t i = 0; i < p.b.n_params; i++) {
        const cdr_param *q = &p.b.params[i], *o = &f.b.params[i];
        const size_t bytes = cdr_type_bytes(&p.b.shared[q->shard].t);
        if (!is_stack(q)) T_CHECK(memcmp(cdr_exec_ptr(p.x, CDR_PROG_STEP, q->shard, 0), cdr_exec_ptr(f.x, CDR_PROG_STEP, o->shard, 0), bytes) == 0);
    }
    close_rig(&p);
    close_rig(&f);
}

/* Packed stacks are split over expert groups, and gathered where ranks of a shard axis share them. */
static void layouts_agree(bool adapters)
{
    static const struct { const char *name; int shard, expert; } layout[] = { { "shard 2", 2, 1 }, { "shard 4, ep 2", 4, 2 }, { "shard 4, ep 4", 4, 4 } };
    spread_result *one = spread_shared(), *got = spread_shared();
    spread c = spread_default();
    c.steps = 2;
    c.s.experts_dtype = CDR_MXFP4;
    c.s.freeze[0] = "*experts*";
    c.s.n_freeze = 1;
    if (adapters) c.s.lora[0] = "experts";
    T_CHECK(spread_go(&c, one));
    for (int i = 0; i < CDR_COUNT(layout); i++) {
        c.s.shard = layout[i].shard;
        c.s.expert = layout[i].expert;
        T_CHECK(spread_go(&c, got) && spread_equal(layout[i].name, one, got));
    }
    munmap(one, sizeof *one);
    munmap(got, sizeof *got);
}

static void layouts_agree_on_packed_experts(void) { layouts_agree(false); }
static void layouts_agree_on_adapters_of_packed_experts(void) { layouts_agree(true); }

/* 4.25 bits for each weight, and nothing else of RUN changes. */
static void packed_takes_its_bytes(void)
{
    cdr_err e = { CDR_OK, "", "" };
    const setup sp = frozen(CDR_MXFP4), sf = frozen(-1), sh = frozen(CDR_BF16);
    rig p, f, h;
    T_CHECK(compile_rig(&sp, 0, &p, &e) == CDR_OK && compile_rig(&sf, 0, &f, &e) == CDR_OK && compile_rig(&sh, 0, &h, &e) == CDR_OK);
    const int64_t n = 3 * 3 * 8 * 32 * 32;
    const cdr_bundle *of[] = { &p.b, &f.b, &h.b };
    int64_t values[3] = { 0 }, bytes[3] = { 0 };                                /* bytes: with the padding of panels (AVX-512 pads to 64 rows) */
    for (int32_t i = 0; i < p.b.n_params; i++) {
        if (!is_stack(&p.b.params[i])) continue;
        for (int k = 0; k < 3; k++) {
            const cdr_type *t = &of[k]->shared[of[k]->params[i].shard].t;
            values[k] += cdr_dtype_bytes(t->dtype, cdr_type_elems(t));
            bytes[k] += (int64_t)cdr_type_bytes(t);
        }
        T_CHECK(p.b.params[i].global.dtype == f.b.params[i].global.dtype);      /* what it is stays */
    }
    T_CHECK(values[0] == n * 17 / 32 && values[1] == n * 4 && values[2] == n * 2 && bytes[0] == values[0]);
    T_CHECK(f.b.run_bytes[0] - p.b.run_bytes[0] == bytes[1] - bytes[0]);
    cdr_pool_free(p.pool);
    cdr_pool_free(f.pool);
    cdr_pool_free(h.pool);
}

static void refused(const setup *s, const char *why)
{
    rig r;
    cdr_err e = { CDR_OK, "", "" };
    T_CHECK(compile_rig(s, 0, &r, &e) == CDR_EUSER);
    T_STR(e.id, "precision.experts");
    T_HAS(e.text, why);
    cdr_pool_free(r.pool);
}

static void what_cannot_be_packed_is_refused(void)
{
    setup s = frozen(CDR_MXFP4);
    s.n_freeze = 0;
    refused(&s, "trains, and a packed weight has no room for an update");
    s = frozen(CDR_MXFP4);
    s.path = "tiny-dense";
    s.sizes = (cdr_pairs){ NULL, 0 };
    s.n_freeze = 0;
    refused(&s, "has no routed experts");
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(layouts_agree_on_packed_experts);            /* first: ranks are forked before any OpenMP region */
    T_RUN(layouts_agree_on_adapters_of_packed_experts);
    T_RUN(packed_trains_as_its_values_do);
    T_RUN(packed_takes_its_bytes);
    T_RUN(what_cannot_be_packed_is_refused);
    return t_end();
}
