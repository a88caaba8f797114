/* test_order.c: train.reduce: free. One layout gives the same bits in each run; gradients are those of the tree but for rounding; the
 * binary counter's buffers are not in the plan. Source: spec/spine.md, 5. */
#include "spread_rig.h"
#include "ops/grad_push/grad_push.h"

static const int layouts[][3] = { { 1, 1, 1 }, { 1, 2, 2 }, { 2, 2, 2 } };      /* replicate, shard, expert */

static spread run_of(int layout, bool any_order, const char *const lora[2])
{
    spread c = spread_default();
    c.s.replicate = layouts[layout][0];
    c.s.shard = layouts[layout][1];
    c.s.expert = layouts[layout][2];
    c.s.any_order = any_order;
    c.gradients = true;
    c.steps = 1;
    for (int k = 0; k < 2; k++) c.s.lora[k] = lora[k];
    c.s.indexer_frozen = lora[0] != NULL;
    return c;
}

/* The largest distance of a gradient, over its own largest element; n: how many have other bits */
static double farthest(const spread_result *a, const spread_result *b, int *n)
{
    enum { GRADIENT = 4 };
    double worst = 0;
    *n = 0;
    T_CHECK(a->n_params == b->n_params && a->n_params > 0);
    for (int i = 0; i < a->n_params; i++) {
        const double d = spread_distance(a, b, i, GRADIENT);
        *n += d > 0;
        worst = fmax(worst, d);
    }
    return worst;
}

static double relative(double a, double b) { return fabs(a - b) / fabs(b); }

static void free_is_the_tree_but_for_rounding(void)
{
    static const char *const trained[][2] = { { NULL }, { "all_linear", "experts" } };
    spread_result *tree = spread_shared(), *any = spread_shared(), *again = spread_shared();
    for (int what = 0; what < 2; what++)
        for (int l = 0; l < CDR_COUNT(layouts); l++) {
            spread c = run_of(l, false, trained[what]);
            T_CHECK(spread_go(&c, tree));
            c.s.any_order = true;
            T_CHECK(spread_go(&c, any));
            T_CHECK(spread_go(&c, again));
            T_CHECK(spread_equal("the same run again", any, again));
            int n = 0;
            const double d = farthest(tree, any, &n);
            printf("      %d x %d, ep %d, %s: %d of %d gradients have other bits, at most %.1e away\n", layouts[l][0], layouts[l][1], layouts[l][2],
                   what ? "adapters" : "all", n, tree->n_params, d);
            T_CHECK(n > 0 && d <= 1e-6);
            T_CHECK(relative(any->loss[0], tree->loss[0]) <= 1e-12 && relative(any->norm[0], tree->norm[0]) <= 1e-6);
        }
}

/* Bytes of the step's gradients and of their counters */
static int64_t gradient_bytes(const rig *r)
{
    const cdr_program *p = &r->b.progs[CDR_PROG_STEP];
    int64_t n = 0;
    for (int32_t v = 0; v < p->n_vals; v++)
        if (p->vals[v].scope == CDR_STEP && p->vals[v].cls == CDR_C_GRAD && p->vals[v].alias == CDR_NONE) n += (int64_t)cdr_type_bytes(&p->vals[v].t);
    return n;
}

static void the_counters_buffers_are_saved(void)
{
    for (int n_micro = 1; n_micro <= 8; n_micro *= 2) {
        int64_t bytes[2], all[2];
        for (int k = 0; k < 2; k++) {
            spread c = run_of(0, k == 1, (const char *const[2]){ NULL });
            cdr_err err = { CDR_OK, "", "" };
            rig r;
            c.s.n_micro = n_micro;
            T_CHECK(compile_rig(&c.s, 0, &r, &err) == CDR_OK);
            bytes[k] = gradient_bytes(&r);
            all[k] = r.b.exec_bytes[0];
            cdr_pool_free(r.pool);
        }
        T_CHECK(bytes[1] > 0 && bytes[0] == bytes[1] * cdr_grad_push_depth(n_micro));
        T_CHECK(n_micro <= 2 ? all[0] == all[1] : all[0] - all[1] >= (bytes[0] - bytes[1]) * 9 / 10);
    }
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(the_counters_buffers_are_saved);
    T_RUN(free_is_the_tree_but_for_rounding);
    return t_end();
}
