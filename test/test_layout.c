/* test_layout.c: weights that nobody writes lie in panels, where all that read them take those; a layout changes no bit of a run, the host
 * sees rows whatever it is, and what a plan counts is what is allocated, padding included.
 */
#include "lora_rig.h"
#include "ops/linear/gemm.h"

static lora_result *panels, *rows;

/* What linears of this machine wish for, in F32. */
static int wished(void)
{
    const uint32_t isa = cdr_cpu_isa(NULL);
    return isa & CDR_ISA_AVX512 ? cdr__gemm_layout(CDR__GEMM_AVX512) : isa & CDR_ISA_AVX2 ? cdr__gemm_layout(CDR__GEMM_AVX2) : CDR_ROWS;
}

static void both_ways(lora_run c, const char *what)
{
    c.rows_only = false;
    T_CHECK(lora_go(&c, panels) == 0);
    c.rows_only = true;
    T_CHECK(lora_go(&c, rows) == 0);
    const bool same = lora_equal(panels, rows);
    if (!same) fprintf(stderr, "  %s: other bits in panels\n", what);
    T_CHECK(same && rows->n_panels == 0 && panels->loss[0] > 0);
    T_CHECK((panels->n_panels > 0) == (wished() != CDR_ROWS));
    T_CHECK(panels->slab_bytes == panels->planned_bytes && rows->slab_bytes == rows->planned_bytes);
}

static void panels_change_no_bit(void)
{
    lora_run c = lora_default();
    c.filled = true;
    both_ways(c, "f32");
    c.n_threads = 2;
    c.policy = CDR_POLICY_RECOMPUTE;
    both_ways(c, "two threads, recomputed");
    c = lora_default();
    c.filled = c.wide = true;
    c.compute = CDR_BF16;
    both_ways(c, "bf16");
    c = lora_default();
    c.filled = true;
    c.shard = 2;
    c.n_micro = 2;
    both_ways(c, "two ranks");
    c.expert = 2;
    both_ways(c, "two ranks, an expert group");
    c.experts = false;                                     /* stacks without adapters, exchanged rows; then on one rank */
    both_ways(c, "two ranks, an expert group, no adapters on experts");
    c = lora_default();
    c.filled = true;
    c.experts = false;
    both_ways(c, "no adapters on experts");
    c.packed = true;
    both_ways(c, "packed experts");
}

/* The bundle of the small K3.1 for one rank; none: all of it trains. */
static void compiled(lora_run c, bool infer_only, uint32_t isa, cdr_pool *pool, cdr_bundle *b)
{
    cdr_err err = { CDR_OK, "", "" };
    cdr_model *model;
    memcpy(lora_wide_sizes, lora_sizes, sizeof lora_sizes);
    for (int i = 0; i < CDR_COUNT(lora_wide_sizes); i++) if (strcmp(lora_wide_sizes[i].name, "glu.width") == 0) lora_wide_sizes[i].text = "4096";
    cdr_pairs sizes = { lora_wide_sizes, CDR_COUNT(lora_wide_sizes) };
    cdr_model_spec spec = { .path = "tiny-k31", .sizes = &sizes };
    T_CHECK(cdr_model_load(&spec, pool, &model, &err) == CDR_OK);
    cdr_builder builder = cdr_model_builder(model);
    cdr_compile_opts o = lora_opts(&c, 0);
    lora_choose(&c, model, pool, &o);
    o.infer_only = infer_only;
    o.isa = isa;
    T_CHECK(cdr_compile(&o, &builder, pool, b, &err) == CDR_OK);
    if (err.status != CDR_OK) fprintf(stderr, "  %s\n", err.text);
}

static const cdr_param *find(const cdr_bundle *b, const char *part)
{
    for (int32_t i = 0; i < b->n_params; i++) if (strstr(b->params[i].name, part) && !b->params[i].adapter) return &b->params[i];
    fprintf(stderr, "  no parameter %s\n", part);
    abort();
}

static int n_panels(const cdr_bundle *b)
{
    int n = 0;
    for (int32_t i = 0; i < b->n_params; i++) {
        n += b->params[i].layout != CDR_ROWS;
        T_CHECK(b->shared[b->params[i].shard].t.layout == b->params[i].layout && b->params[i].layout_why != NULL);
    }
    return n;
}

static void who_reads_decides(void)
{
    const uint32_t isa = cdr_cpu_isa(NULL);
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    lora_run c = lora_default();
    compiled(c, false, isa, pool, &b);
    const cdr_param *o = find(&b, "layers.0.self_attn.o_proj.weight"), *embed = find(&b, "embed_tokens");
    T_CHECK(o->layout == wished() && b.shared[o->shard].t.layout == wished());
    T_CHECK(embed->layout == CDR_ROWS && strcmp(embed->layout_why, "embedding reads rows") == 0);
    for (int32_t i = 0; i < b.n_params; i++) if (b.params[i].adapter) T_CHECK(b.params[i].layout == CDR_ROWS);      /* they train */
    /* every reader has the type that the value has */
    for (int q = 0; q < b.n_progs; q++)
        for (int32_t i = 0; i < b.progs[q].n_calls; i++)
            for (int k = 0; k < b.progs[q].calls[i].n_in; k++) {
                const cdr_val v = b.progs[q].operands[b.progs[q].calls[i].arg + (uint32_t)k];
                if (v != CDR_NONE && cdr_value_root(&b, &b.progs[q], v, NULL) == o->shard) T_CHECK(cdr_value_at(&b, &b.progs[q], v)->t.layout == o->layout);
            }
    compiled(c, false, 0, pool, &b);                                      /* the base kernels read rows alone */
    T_CHECK(n_panels(&b) == 0 && strcmp(find(&b, "layers.0.self_attn.o_proj.weight")->layout_why, "linear reads rows") == 0);
    c.none = c.indexer_train = true;                                      /* all of it trains */
    compiled(c, false, isa, pool, &b);
    T_CHECK(n_panels(&b) == 0 && strstr(find(&b, "layers.0.self_attn.o_proj.weight")->layout_why, "writes it") != NULL);
    compiled(c, true, isa, pool, &b);                                     /* but not where it is evaluated */
    T_CHECK((n_panels(&b) > 0) == (wished() != CDR_ROWS) && find(&b, "layers.0.self_attn.o_proj.weight")->layout == wished());
    c = lora_default();
    c.shard = 2;                                                          /* FSDP splits the wide MLP's matrices: gathered rows */
    compiled(c, false, isa, pool, &b);
    const cdr_param *wide = find(&b, "layers.0.mlp.gate_proj.weight");
    T_CHECK(wide->split[0] == CDR_AXIS_SHARD && wide->layout == CDR_ROWS && strcmp(wide->layout_why, "gather reads rows") == 0);
    T_CHECK(find(&b, "layers.0.self_attn.o_proj.weight")->layout == wished());          /* replicated: read through a view */
    cdr_pool_free(pool);
}

/* The host puts and gets rows; memory has panels, each byte of padding zero. */
static void the_host_sees_rows(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    cdr_err err = { CDR_OK, "", "" };
    cdr_comm *world;
    cdr_device *d;
    cdr_exec *x;
    lora_run c = lora_default();
    compiled(c, false, cdr_cpu_isa(NULL), pool, &b);
    T_CHECK(cdr_comm_open(&(cdr_comm_spec){ "single", 10 }, &world, &err) == CDR_OK);
    T_CHECK(cdr_device_open(CDR_DEV_CPU, 0, 2, &d, &err) == CDR_OK);
    const cdr_mesh mesh = { .size = { 1, 1, 1 }, .world = 1 };
    cdr_exec_opts eo = { .bundle = &b, .device = d, .world = world, .mesh = &mesh, .poison = true };
    T_CHECK(cdr_exec_open(&eo, &x, &err) == CDR_OK);
    T_CHECK(cdr_exec_init(x, LORA_SEED, &err) == CDR_OK);
    int n = 0;
    for (int32_t i = 0; i < b.n_params; i++) {
        const cdr_param *q = &b.params[i];
        const cdr_type *t = &b.shared[q->shard].t;
        if (q->layout == CDR_ROWS) continue;
        cdr_type dense = *t;
        dense.layout = CDR_ROWS;
        const size_t bytes = cdr_type_bytes(&dense), lies = cdr_type_bytes(t), row = bytes / (size_t)cdr_type_rows(t);
        char *put = malloc(bytes), *got = malloc(bytes), *want = calloc(1, lies);
        T_CHECK(cdr_exec_run_bytes(x, q->shard) == bytes && lies >= bytes);
        for (size_t k = 0; k < bytes; k++) put[k] = (char)(k * 2654435761u >> 7);
        cdr_panels_put(t, 0, cdr_type_rows(t), put, want);
        cdr_exec_put_run(x, q->shard, put, bytes);
        cdr_exec_get_run(x, q->shard, got, bytes);
        T_CHECK(memcmp(cdr_exec_ptr(x, CDR_PROG_STEP, q->shard, 0), want, lies) == 0 && memcmp(put, got, bytes) == 0);
        const int64_t first = cdr_type_rows(t) / 3, some = cdr_type_rows(t) - first;
        memset(got, 0, bytes);
        cdr_exec_get_rows(x, q->shard, first, some, got);
        T_CHECK(memcmp(got, put + (size_t)first * row, (size_t)some * row) == 0);
        free(put), free(got), free(want);
        n++;
    }
    T_CHECK((n > 0) == (wished() != CDR_ROWS));
    cdr_exec_close(x);
    d->ops->close(d);
    cdr_comm_close(world);
    cdr_pool_free(pool);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    panels = lora_shared();
    rows = lora_shared();
    T_RUN(panels_change_no_bit);                           /* ranks are forked before this process has threads */
    T_RUN(who_reads_decides);
    T_RUN(the_host_sees_rows);
    return t_end();
}
