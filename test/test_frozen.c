/* test_frozen.c: what a LoRA step keeps and makes for a frozen model with packed experts: of a layer's routed experts their input and the routes
 * alone, no gate and up, no gradient of a frozen weight, and dh of a frozen head in the forward. Bytes are counted by hand.
 */
#include "plan/account.h"
#include "sparse_rig.h"
#include "test.h"

/* sizes of small() */
enum { LATENT = 32, INNER = 32, TOP_K = 2, N_EXPERTS = 8, N_MOE = 3, ALIGN = 256 };

static setup lora(int policy, bool map)
{
    setup s = small();
    s.lora[0] = "attention";
    s.experts_dtype = CDR_MXFP4;
    s.policy = policy;
    s.keep_gate_up = policy == CDR_POLICY_KEEP;
    s.map = map;
    s.balance = CDR_BALANCE_NONE;
    s.indexer_frozen = true;
    return s;
}

static void compiled(const setup *s, rig *r)
{
    cdr_err e = { CDR_OK, "", "" };
    T_CHECK(compile_rig(s, 0, r, &e) == CDR_OK);
    if (e.status != CDR_OK) fprintf(stderr, "  %s\n", e.text);
}

static bool is_op(const cdr_call *c, const char *name) { return strcmp(cdr_ops[c->op]->name, name) == 0; }
static int64_t aligned(int64_t bytes) { return (int64_t)cdr_align_up((size_t)bytes, ALIGN); }

/* First call that writes a value of the program */
static int32_t writer(const rig *r, const cdr_program *p, cdr_val v)
{
    for (int32_t i = 0; i < p->n_calls; i++)
        for (int k = p->calls[i].n_in; k < p->calls[i].n_in + p->calls[i].n_out; k++) {
            const cdr_val o = p->operands[p->calls[i].arg + (uint32_t)k];
            if (o != CDR_NONE && cdr_value_root(&r->b, p, o, NULL) == v) return i;
        }
    return -1;
}

/* Bytes that experts_bwd reads of what the forward made: of what is kept, not of what is made again */
static int64_t kept_for(const rig *r, const cdr_program *p, int32_t call)
{
    const cdr_call *c = &p->calls[call];
    int64_t n = 0;
    for (int k = 0; k < c->n_in; k++) {
        const cdr_val v = p->operands[c->arg + (uint32_t)k];
        const cdr_val root = v == CDR_NONE ? CDR_NONE : cdr_value_root(&r->b, p, v, NULL);
        if (root == CDR_NONE || root < r->b.n_shared) continue;              /* weights */
        const cdr_value *x = cdr_value_at(&r->b, p, root);
        const int32_t by = writer(r, p, root);
        T_CHECK(by >= 0);
        if (p->calls[by].phase != CDR_P_FWD) continue;                       /* du */
        T_CHECK(x->scope == CDR_TURN && x->cls == CDR_C_SAVED);
        n += x->stride;
    }
    return n;
}

/* x, p, perm, offs, pos */
static int64_t by_hand(void)
{
    return aligned(T * LATENT * 4) + aligned(T * TOP_K * 4) + aligned(T * TOP_K * 4) + aligned((N_EXPERTS + 1) * 4) + aligned(T * TOP_K * 4);
}

static void only_the_input_of_experts_is_kept(void)
{
    static const int policy[] = { CDR_POLICY_AUTO, CDR_POLICY_KEEP };
    for (int i = 0; i < 4; i++) {
        const setup s = lora(policy[i / 2], i % 2 == 1);
        rig r;
        compiled(&s, &r);
        const cdr_program *p = &r.b.progs[CDR_PROG_STEP];
        const int64_t gate_up = aligned((int64_t)T * TOP_K * 2 * INNER * 4);
        int n_fwd = 0, n_bwd = 0;
        for (int32_t c = 0; c < p->n_calls; c++) {
            if (is_op(&p->calls[c], "experts")) n_fwd++;
            if (!is_op(&p->calls[c], "experts_bwd")) continue;
            n_bwd++;
            T_CHECK(kept_for(&r, p, c) == by_hand() + (s.keep_gate_up ? gate_up : 0));
        }
        T_CHECK(n_fwd == N_MOE && n_bwd == N_MOE);
        cdr_pool_free(r.pool);
    }
}

/* `recompute` keeps even less: the experts' input is made again, the routes never are. */
static void recompute_keeps_routes(void)
{
    const setup s = lora(CDR_POLICY_RECOMPUTE, true);
    rig r;
    compiled(&s, &r);
    const cdr_program *p = &r.b.progs[CDR_PROG_STEP];
    int n = 0;
    for (int32_t c = 0; c < p->n_calls; c++) {
        if (!is_op(&p->calls[c], "experts_bwd")) continue;
        T_CHECK(kept_for(&r, p, c) == by_hand() - aligned(T * LATENT * 4));
        n++;
    }
    T_CHECK(n == N_MOE);
    cdr_pool_free(r.pool);
}

static void frozen_weights_have_no_gradient(void)
{
    const setup s = lora(CDR_POLICY_AUTO, true);
    rig r;
    compiled(&s, &r);
    const cdr_program *p = &r.b.progs[CDR_PROG_STEP];
    int64_t n_frozen = 0, adapters = 0, grads = 0;
    for (int32_t i = 0; i < r.b.n_params; i++) {
        const cdr_param *q = &r.b.params[i];
        if (q->train == CDR_FULL) {
            T_CHECK(q->adapter && q->grad != CDR_NONE);
            adapters += cdr_type_elems(&q->global);
            continue;
        }
        n_frozen++;
        T_CHECK(q->grad == CDR_NONE && q->m == CDR_NONE && q->v == CDR_NONE && (q->master == CDR_NONE || q->master == q->shard));
    }
    T_CHECK(n_frozen > 50 && adapters > 0);
    /* an operator that makes gradients of parameters makes those of adapters alone */
    for (int32_t c = 0; c < p->n_calls; c++) {
        const cdr_call *x = &p->calls[c];
        T_CHECK(!is_op(x, "loss_bwd") && !is_op(x, "loss"));
        if (is_op(x, "linear_dw")) grads += cdr_type_elems(&cdr_value_at(&r.b, p, p->operands[x->arg + x->n_in])->t);
        else if (is_op(x, "experts_bwd") || is_op(x, "rmsnorm_bwd"))
            for (int k = is_op(x, "experts_bwd") ? 2 : 1; k < x->n_out; k++) T_CHECK(p->operands[x->arg + x->n_in + (uint32_t)k] == CDR_NONE);
    }
    T_CHECK(grads == adapters);
    cdr_pool_free(r.pool);
}

/* dh of a frozen head is made where the loss is: one call, in the forward */
static void a_frozen_head_makes_dh_in_the_forward(void)
{
    const setup s = lora(CDR_POLICY_AUTO, false);
    rig r;
    compiled(&s, &r);
    const cdr_program *p = &r.b.progs[CDR_PROG_STEP];
    int n = 0;
    for (int32_t c = 0; c < p->n_calls; c++) {
        if (!is_op(&p->calls[c], "loss_frozen")) continue;
        T_CHECK(p->calls[c].phase == CDR_P_FWD);
        n++;
    }
    T_CHECK(n == 1);
    cdr_pool_free(r.pool);
}

/* The plan's list has these values with these bytes. */
static void the_plan_shows_them(void)
{
    const setup s = lora(CDR_POLICY_AUTO, true);
    rig r;
    cdr_account a;
    cdr_text t = { 0 };
    int n = 0;
    compiled(&s, &r);
    cdr_account_bundle(&r.b, &a);
    T_CHECK(a.mapped_bytes == (int64_t)N_MOE * 3 * N_EXPERTS * INNER * LATENT * 17 / 32);
    T_CHECK(a.total_bytes == r.b.run_bytes[0] + r.b.exec_bytes[0]);
    cdr_account_memory(&t, &r.b, CDR_PROG_STEP);
    for (char *line = strtok(t.s, "\n"); line; line = strtok(NULL, "\n")) {
        char cls[16], scope[16], calls[32], name[128], type[64];
        long long at, bytes, inst;
        if (sscanf(line, "%lld %lld %lld %15s %15s %31s %127s %63s", &at, &bytes, &inst, cls, scope, calls, name, type) != 8) continue;
        T_CHECK(!strstr(name, ".moe.experts.1"));                            /* gate and up */
        if (strstr(name, ".moe.dispatch")) T_CHECK(strcmp(cls, "saved") == 0 && bytes == (strstr(name, ".dispatch.1") ? ALIGN : aligned(T * TOP_K * 4)));
        if (strstr(name, ".moe.dispatch")) n++;
    }
    T_CHECK(n == 3 * N_MOE);
    cdr_text_free(&t);
    cdr_pool_free(r.pool);
}

int main(void)
{
    T_RUN(only_the_input_of_experts_is_kept);
    T_RUN(recompute_keeps_routes);
    T_RUN(frozen_weights_have_no_gradient);
    T_RUN(a_frozen_head_makes_dh_in_the_forward);
    T_RUN(the_plan_shows_them);
    return t_end();
}
