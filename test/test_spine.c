/* test_spine.c: the promises of spec/spine.md, section 4, on a small dense model, to the bit. */
#include "tiny.h"

static tiny_result *ref, *got;

static tiny_run ref_of;                  /* what ref holds; all zero: nothing yet */

static void reference(tiny_run c)
{
    if (memcmp(&c, &ref_of, sizeof c) == 0) return;
    T_CHECK(tiny_go(&c, ref) == 0);
    ref_of = c;
}

static void same_as_reference(tiny_run c, const char *what)
{
    int code = tiny_go(&c, got);
    if (code != 0 || !tiny_equal(ref, got)) {
        fprintf(stderr, "  %s: exit %d, losses %.9g %.9g %.9g against %.9g %.9g %.9g\n", what, code, got->loss[0], got->loss[1], got->loss[2],
                ref->loss[0], ref->loss[1], ref->loss[2]);
        int64_t n = 0, first = -1;
        for (int64_t i = 0; i < CDR_MIN(ref->n_weights, TINY_MAX_WEIGHTS); i++)
            if (memcmp(&ref->weights[i], &got->weights[i], 4) != 0 && n++ == 0) first = i;
        fprintf(stderr, "  %lld of %lld weights and states differ, first at %lld\n", (long long)n, (long long)ref->n_weights, (long long)first);
    }
    T_CHECK(code == 0);
    T_CHECK(tiny_equal(ref, got));
}

static void loss_falls_and_is_finite(void)
{
    tiny_run c = tiny_default();
    reference(c);
    T_CHECK(ref->loss[0] > 6.9 && ref->loss[0] < 8.0);        /* ln 1024 = 6.93, and logits of variance one add a half */
    T_CHECK(ref->loss[2] < ref->loss[0]);
    T_CHECK(ref->n_weights > 3 * 131072 && ref->n_weights <= TINY_MAX_WEIGHTS);
    T_CHECK(ref->slab_bytes == ref->planned_bytes);
    double sum = 0;
    for (int64_t i = 0; i < ref->n_weights; i++) sum += fabs((double)ref->weights[i]);
    T_CHECK(isfinite(sum) && sum > 0);
}

/* 8 turns on one rank = 2 x 4 = 4 x 2 = 8 x 1, for every split into replicate and shard */
static void same_bits_on_every_layout(void)
{
    reference(tiny_default());
    static const int layout[][3] = { { 1, 2, 4 }, { 2, 1, 4 }, { 1, 4, 2 }, { 2, 2, 2 }, { 4, 1, 2 }, { 1, 8, 1 }, { 2, 4, 1 }, { 4, 2, 1 }, { 8, 1, 1 } };
    for (int i = 0; i < CDR_COUNT(layout); i++) {
        if (t_quick() && layout[i][0] * layout[i][1] != 4) continue;
        tiny_run c = tiny_default();
        c.replicate = layout[i][0];
        c.shard = layout[i][1];
        c.n_micro = layout[i][2];
        char what[64];
        snprintf(what, sizeof what, "replicate %d shard %d micro %d", c.replicate, c.shard, c.n_micro);
        same_as_reference(c, what);
    }
}

static void same_bits_for_threads_policies_and_prefetch(void)
{
    reference(tiny_default());
    tiny_run c = tiny_default();
    c.n_threads = 2;
    same_as_reference(c, "two threads");
    c = tiny_default();
    c.policy = CDR_POLICY_RECOMPUTE;
    if (!t_quick()) same_as_reference(c, "recompute");
    c.poison = true;
    same_as_reference(c, "recompute, poisoned memory");
    c.policy = CDR_POLICY_KEEP;
    if (!t_quick()) same_as_reference(c, "poisoned memory");
    c = tiny_default();
    c.shard = 2;
    c.n_micro = 4;
    c.poison = true;
    for (c.prefetch = 0; c.prefetch < 3; c.prefetch += t_quick() ? 2 : 1) same_as_reference(c, "prefetch");
    c.prefetch = 1;
    c.reshard = CDR_RESHARD_NEVER;
    same_as_reference(c, "no second gather");
    c.reshard = CDR_RESHARD_ALWAYS;
    c.policy = CDR_POLICY_RECOMPUTE;
    same_as_reference(c, "recompute and second gather");
}

static void random_legal_order_is_program_order(void)
{
    reference(tiny_default());
    for (uint64_t seed = 1; seed <= (t_quick() ? 2 : 4); seed++) {
        tiny_run c = tiny_default();
        c.shard = 2;
        c.n_micro = 4;
        c.random_order = seed * 100;
        c.prefetch = (int)(seed % 3);
        c.poison = true;
        same_as_reference(c, "random order");
    }
}

static void layer_major_is_batch_major(void)
{
    tiny_run c = tiny_default();
    c.n_micro = 2;
    reference(c);
    c.split = true;
    same_as_reference(c, "f0 b0 f1 b1");
    c.layer_major = true;
    c.poison = true;
    same_as_reference(c, "f0 f1 b1 b0");
    c.n_micro = 4;
    c.split = c.layer_major = c.poison = false;
    reference(c);
    c.split = c.layer_major = true;
    same_as_reference(c, "f0 .. f3 b3 .. b0");
}

static void evaluation_and_generation_change_no_bit(void)
{
    reference(tiny_default());
    tiny_run c = tiny_default();
    c.eval_between = c.generate_between = c.poison = true;
    same_as_reference(c, "evaluation and generation between steps");
    double eval = got->eval[1];
    T_CHECK(eval > 0 && isfinite(eval));
    c.shard = 2;
    c.n_micro = 4;
    same_as_reference(c, "the same on two ranks");
    T_CHECK(got->eval[1] > eval);                              /* two shards are summed, not one */
}

static void planted_nan_is_skipped_sticky_and_named(void)
{
    tiny_run c = tiny_default();
    c.nan_at_step = 2;
    T_CHECK(tiny_go(&c, got) == 0);
    T_CHECK(got->ok[0] == 1 && got->ok[1] == 0 && got->ok[2] == 0);
    T_CHECK(isfinite(got->loss[0]) && !isfinite(got->loss[1]));
    T_STR(got->nonfinite, "layers.1.glu.linear layer 1");
    tiny_run one = tiny_default();                              /* the poisoned steps changed nothing but the planted element */
    one.n_steps = 1;
    reference(one);
    int64_t differ = 0;
    for (int64_t i = 0; i < ref->n_weights; i++) differ += memcmp(&ref->weights[i], &got->weights[i], 4) != 0;
    T_CHECK(differ == 1);
}

static void this_machines_kernels_keep_the_bits(void)
{
    for (int dtype = CDR_F32; dtype <= CDR_BF16; dtype++) {
        tiny_run c = tiny_default();
        c.isa = cdr_cpu_isa(NULL);
        c.compute = dtype;
        reference(c);
        c.n_threads = 2;
        c.policy = CDR_POLICY_RECOMPUTE;
        c.shard = 2;
        c.replicate = 2;
        c.n_micro = 2;
        c.poison = true;
        same_as_reference(c, "4 ranks of two threads, recompute");
    }
}

static void bf16_trains_and_layouts_agree(void)
{
    tiny_run c = tiny_default();
    c.compute = CDR_BF16;
    reference(c);
    T_CHECK(ref->loss[2] < ref->loss[0]);
    c.policy = CDR_POLICY_RECOMPUTE;
    same_as_reference(c, "bf16, recompute");
    c.shard = 4;
    c.n_micro = 2;
    c.poison = true;
    same_as_reference(c, "bf16, recompute, 4 shards");
}

/* ---- compile alone ---- */
static cdr_status compile(const tiny_run *c, int rank, cdr_pool *pool, cdr_bundle *b, cdr_err *err)
{
    cdr_model *model;
    cdr_model_spec spec = { .path = "tiny-test" };
    CDR_TRY(cdr_model_parse(&spec, tiny_yaml, strlen(tiny_yaml), "tiny.h", pool, &model, err));
    cdr_builder builder = cdr_model_builder(model);
    cdr_compile_opts o = tiny_opts(c, rank);
    return cdr_compile(&o, &builder, pool, b, err);
}

static void every_wait_is_needed(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_bundle b;
    tiny_run c = tiny_default();
    c.shard = 2;
    c.policy = CDR_POLICY_RECOMPUTE;
    T_CHECK(compile(&c, 0, pool, &b, &err) == CDR_OK);
    int n = 0, missed = 0;
    for (int q = 0; q < b.n_progs; q++) {
        cdr_program *p = &b.progs[q];
        if (q == CDR_PROG_PROBE) continue;
        for (int32_t i = 0; i < p->n_calls; i++)
            for (int w = 0; w < p->calls[i].n_wait; w++) {
                cdr_call keep = p->calls[i];
                int32_t *ws = &p->waits[keep.wait], gone = ws[w];
                ws[w] = ws[keep.n_wait - 1];
                ws[keep.n_wait - 1] = gone;
                p->calls[i].n_wait--;
                cdr_err e = { CDR_OK, "", "" };
                n++;
                bool paces = strcmp(cdr_ops[keep.op]->name, "gather") == 0;          /* bounds how far it runs ahead, whether bytes were shared for it or not */
                if (cdr_verify(&b, &e) == CDR_OK && !paces) {
                    missed++;
                    fprintf(stderr, "  program %s call %d (%s): wait for %d is not needed\n", p->name, i, p->strings + keep.origin, gone);
                }
                ws[keep.n_wait - 1] = ws[w];
                ws[w] = gone;
                p->calls[i] = keep;
            }
    }
    T_CHECK(n >= 20);
    T_CHECK(missed == 0);
    T_CHECK(cdr_verify(&b, &err) == CDR_OK);
    cdr_pool_free(pool);
}

static void verify_sees_overlap_and_wrong_order(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_bundle b;
    tiny_run c = tiny_default();
    T_CHECK(compile(&c, 0, pool, &b, &err) == CDR_OK);
    cdr_program *p = &b.progs[CDR_PROG_STEP];
    int caught = 0, tried = 0;
    for (int32_t v = 0; v + 1 < p->n_vals; v++) {               /* move each saved value onto another live one */
        if (p->vals[v].cls != CDR_C_SAVED || p->vals[v].alias != CDR_NONE || p->vals[v].offset < 0) continue;
        int64_t keep = p->vals[v].offset;
        for (int32_t w = 0; w < p->n_vals; w++)
            if (w != v && p->vals[w].cls == CDR_C_SAVED && p->vals[w].alias == CDR_NONE && p->vals[w].offset >= 0 && p->vals[w].offset != keep) {
                p->vals[v].offset = p->vals[w].offset;
                break;
            }
        cdr_err e = { CDR_OK, "", "" };
        tried++;
        caught += cdr_verify(&b, &e) != CDR_OK;
        p->vals[v].offset = keep;
    }
    T_CHECK(tried > 10);
    T_CHECK(caught == tried);
    cdr_pool_free(pool);
}

static void verify_sees_ranks_that_would_not_meet(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    cdr_bundle b[4];
    const cdr_bundle *ptr[4] = { &b[0], &b[1], &b[2], &b[3] };
    tiny_run c = tiny_default();
    c.shard = 2;
    c.replicate = 2;
    for (int r = 0; r < 4; r++) T_CHECK(compile(&c, r, pool, &b[r], &err) == CDR_OK);
    T_CHECK(cdr_verify_ranks(ptr, 4, &err) == CDR_OK);
    T_CHECK(b[0].run_bytes[0] == b[3].run_bytes[0] && b[0].exec_bytes[0] == b[3].exec_bytes[0]);
    c.prefetch = 0;                                             /* the same collectives in another order */
    T_CHECK(compile(&c, 3, pool, &b[3], &err) == CDR_OK);
    T_CHECK(cdr_verify_ranks(ptr, 4, &err) == CDR_EBUG);
    cdr_pool_free(pool);
}

static void budget_chooses_the_fewest_recomputed_layers(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { CDR_OK, "", "" };
    tiny_run c = tiny_default();
    cdr_model *model;
    cdr_model_spec spec = { .path = "tiny-test" };
    T_CHECK(cdr_model_parse(&spec, tiny_yaml, strlen(tiny_yaml), "tiny.h", pool, &model, &err) == CDR_OK);
    cdr_builder builder = cdr_model_builder(model);
    cdr_compile_opts o = tiny_opts(&c, 0);
    o.T = 4096;
    o.loss_chunk_tokens = 64;
    cdr_bundle keep, lean, mid;
    T_CHECK(cdr_compile(&o, &builder, pool, &keep, &err) == CDR_OK);
    o.policy = CDR_POLICY_RECOMPUTE;
    T_CHECK(cdr_compile(&o, &builder, pool, &lean, &err) == CDR_OK);
    T_CHECK(lean.exec_bytes[0] < keep.exec_bytes[0]);
    o.policy = CDR_POLICY_AUTO;
    o.budget_bytes = keep.run_bytes[0] + (keep.exec_bytes[0] + lean.exec_bytes[0]) / 2;
    T_CHECK(cdr_compile(&o, &builder, pool, &mid, &err) == CDR_OK);
    T_CHECK(mid.run_bytes[0] + mid.exec_bytes[0] <= o.budget_bytes);
    T_CHECK(mid.exec_bytes[0] > lean.exec_bytes[0]);
    T_CHECK(keep.exec_bytes[0] + keep.run_bytes[0] <= keep.lower_bound[0] + keep.lower_bound[0] * 3 / 100);
    T_CHECK(lean.exec_bytes[0] + lean.run_bytes[0] <= lean.lower_bound[0] + lean.lower_bound[0] * 3 / 100);
    cdr_pool_free(pool);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    ref = tiny_shared();
    got = tiny_shared();
    T_RUN(loss_falls_and_is_finite);
    T_RUN(same_bits_on_every_layout);
    T_RUN(same_bits_for_threads_policies_and_prefetch);
    T_RUN(random_legal_order_is_program_order);
    T_RUN(layer_major_is_batch_major);
    T_RUN(evaluation_and_generation_change_no_bit);
    T_RUN(planted_nan_is_skipped_sticky_and_named);
    T_RUN(this_machines_kernels_keep_the_bits);
    T_RUN(bf16_trains_and_layouts_agree);
    T_RUN(every_wait_is_needed);
    T_RUN(verify_sees_overlap_and_wrong_order);
    T_RUN(verify_sees_ranks_that_would_not_meet);
    T_RUN(budget_chooses_the_fewest_recomputed_layers);
    return t_end();
}
