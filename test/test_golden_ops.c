/* test_golden_ops.c: the operators of sparse models, their double references and the gradients that their records build, against
 * vectors that tools/golden_ops.py made from the equations alone: AttnRes, output gate, SiTU, LayerNorm, short convolution, KDA
 * with both decays, router and experts as one function, the loss of a frozen head, ten Muon steps. */
#include "golden_rig.h"
#include "ops/attn_res/attn_res.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "ops/gate/gate.h"
#include "ops/kda/kda.h"
#include "ops/layernorm/layernorm.h"
#include "ops/loss/loss.h"
#include "ops/muon/muon.h"
#include "ops/router/router.h"
#include "ops/short_conv/short_conv.h"
#include "ops/situ/situ.h"

/* put and expect of a tensor of one of a file's problems: "q" of "bounded" is q_bounded */
static const char *of(const char *name, const char *form)
{
    static char text[4][48];
    static int next;
    char *s = text[next++ % 4];
    snprintf(s, sizeof text[0], "%s%s%s", name, *form ? "_" : "", form);
    return s;
}

static void golden_attn_res(void)
{
    for (int n = 1; n <= 4; n += 3) {
        rig r;
        golden_rig_open(&r, "attn_res");
        const char *form = n == 1 ? "n1" : "n4";
        static const char *const v[] = { "v0", "v1", "v2", "v3" }, *const dv[] = { "dv0", "dv1", "dv2", "dv3" };
        cdr_val rows[4], din[CDR_MAX_OPERANDS];
        for (int i = 0; i < n; i++) rows[i] = f32(&r, of(v[i], form));
        cdr_val h = cdr_attn_res(r.g, rows, n, f32(&r, of("proj", form)), f32(&r, of("norm", form)), 1e-5f);
        grad_of_last(&r, f32(&r, of("dh", form)), din);
        run_all(&r);
        has(&r, h, of("h", form));
        for (int i = 0; i < n; i++) has(&r, din[i], of(dv[i], form));
        has(&r, din[n], of("dproj", form));
        has(&r, din[n + 1], of("dnorm", form));
        golden_rig_close(&r);
    }
}

static void golden_gate(void)
{
    rig r;
    golden_rig_open(&r, "gate");
    cdr_val y = cdr_gate(r.g, f32(&r, "o"), f32(&r, "logit"));
    expect_op(&r, y, "y", "dy", GRADS("do", "dlogit"));
    golden_rig_close(&r);
}

static void golden_situ(void)
{
    rig r;
    golden_rig_open(&r, "situ");
    cdr_val y = cdr_situ(r.g, f32(&r, "gate"), f32(&r, "up"), 4.0f, 25.0f);
    expect_op(&r, y, "y", "dy", GRADS("dgate", "dup"));
    golden_rig_close(&r);
}

static void golden_layernorm(void)
{
    for (int bias = 0; bias < 2; bias++) {
        rig r;
        golden_rig_open(&r, "layernorm");
        cdr_val y = cdr_layernorm(r.g, f32(&r, "x"), f32(&r, "w"), bias ? f32(&r, "b") : CDR_NONE, 1e-5f);
        expect_op(&r, y, bias ? "y" : "y_plain", "dy", GRADS("dx", "dw", bias ? "db" : NULL));
        golden_rig_close(&r);
    }
}

static void golden_short_conv_packed(void)
{
    rig r;
    golden_rig_open(&r, "short_conv");
    cdr_val y = cdr_short_conv(r.g, f32(&r, "x"), f32(&r, "w"), i32(&r, "start"), i32(&r, "pos"), CDR_NONE);
    expect_op(&r, y, "y", "dy", GRADS("dx", "dw"));
    golden_rig_close(&r);
}

static void golden_short_conv_history(void)
{
    rig r;
    golden_rig_open(&r, "short_conv");
    cdr_val hist = f32(&r, "hist_gen");
    cdr_val y = cdr_short_conv(r.g, f32(&r, "x_gen"), f32(&r, "w"), i32(&r, "start_gen"),
                               i32(&r, "pos_gen"), hist);
    run_all(&r);
    has(&r, y, "y_gen");
    has(&r, hist, "hist_new");
    golden_rig_close(&r);
}

static const char *const kda_in[] = { "q", "k", "v", "z", "beta", "gate", "A_log", "dt_bias", "o_norm" };
static const char *const kda_din[] = { "dq", "dk", "dv", "dz", "dbeta", "dgate", "dA_log", "ddt_bias", "do_norm" };

static void golden_kda_packed(void)
{
    for (int softplus = 0; softplus < 2; softplus++) {
        rig r;
        golden_rig_open(&r, "kda");
        const char *form = softplus ? "softplus" : "bounded";
        cdr_kda_attr at = { .heads = 2, .dim = 16, .chunk = 16, .softplus = softplus, .lower_bound = -5.0f, .norm_eps = 1e-5f };
        cdr_val in[11], din[CDR_MAX_OPERANDS];
        for (int i = 0; i < 9; i++) in[i] = f32(&r, of(kda_in[i], form));
        in[9] = i32(&r, "start");
        in[10] = i32(&r, "pos");
        cdr_val y = cdr_kda(r.g, in, CDR_NONE, &at);
        grad_of_last(&r, f32(&r, of("dy", form)), din);
        run_all(&r);
        has(&r, y, of("y", form));
        for (int i = 0; i < 9; i++) expect(&r, din[i], &r.gd, of(kda_din[i], form), 1e-11);
        golden_rig_close(&r);
    }
}

static void golden_kda_state(void)
{
    rig r;
    golden_rig_open(&r, "kda");
    cdr_kda_attr at = { .heads = 2, .dim = 16, .chunk = 16, .lower_bound = -5.0f, .norm_eps = 1e-5f };
    cdr_val in[11], state = f32(&r, "state_gen");
    for (int i = 0; i < 9; i++) in[i] = f32(&r, of(kda_in[i], i < 6 ? "gen" : "bounded"));
    in[9] = i32(&r, "start_gen");
    in[10] = i32(&r, "pos_gen");
    cdr_val y = cdr_kda(r.g, in, state, &at);
    run_all(&r);
    has(&r, y, "y_gen");
    has(&r, state, "state_new");
    golden_rig_close(&r);
}

static void moe(int softmax, bool keep_gate_up)
{
    rig r;
    golden_rig_open(&r, "moe");
    const char *form = softmax ? "softmax" : "sigmoid";
    cdr_router_attr ra = { .top_k = softmax ? 2 : 3, .softmax = softmax, .groups = softmax ? 4 : 1, .top_groups = softmax ? 2 : 1,
                           .renormalize = !softmax, .scale = softmax ? 1.5f : 2.446f };
    cdr_experts_attr ea = { .top_k = ra.top_k, .situ = softmax, .beta = 4.0f, .linear_beta = 25.0f };
    cdr_val idx, p, alpha = CDR_NEW, perm, offs, pos, din[CDR_MAX_OPERANDS], dlogits[CDR_MAX_OPERANDS];
    cdr_val x = f32(&r, of("x", form)), w1 = f32(&r, of("w1", form));
    cdr_val w3 = f32(&r, of("w3", form)), w2 = f32(&r, of("w2", form));
    cdr_router(r.g, f32(&r, of("logits", form)), f32(&r, of("bias", form)), i32(&r, "start"),
               i32(&r, "pos"), &ra, &idx, &p, &alpha);
    cdr_dispatch(r.g, idx, 8, &perm, &offs, &pos);
    cdr_val u = cdr_experts(r.g, x, p, perm, offs, pos, w1, w3, w2, CDR_NONE, NULL, &ea, keep_gate_up);
    if (r.g->failed) fprintf(stderr, "  %s\n", r.err.text);
    T_CHECK(!r.g->failed);
    grad_of(&r, call_of(&r, &cdr_op_experts), 0, f32(&r, of("du", form)), 0, din);
    grad_of(&r, call_of(&r, &cdr_op_router), 1, din[CDR__EX_P], 1u << CDR__ROUTER_BIAS, dlogits);
    run_all(&r);
    expect(&r, idx, &r.gd, of("idx", form), 0);
    has(&r, p, of("p", form));
    has(&r, alpha, of("alpha", form));
    has(&r, u, of("u", form));
    has(&r, din[CDR__EX_X], of("dx", form));
    has(&r, din[CDR__EX_W1], of("dw1", form));
    has(&r, din[CDR__EX_W3], of("dw3", form));
    has(&r, din[CDR__EX_W2], of("dw2", form));
    has(&r, dlogits[CDR__ROUTER_LOGITS], of("dlogits", form));
    golden_rig_close(&r);
}

static void golden_moe(void)
{
    for (int softmax = 0; softmax < 2; softmax++) for (int keep = 0; keep < 2; keep++) moe(softmax, keep);
}

static void golden_experts_lora(void)
{
    static const char *const name[] = { "x", "p", "w1", "w3", "w2", "a1", "b1", "a3", "b3", "a2", "b2" },
        *const dname[] = { "dx", "dp", "dw1", "dw3", "dw2", "da1", "db1", "da3", "db3", "da2", "db2" };
    static const int operand[] = { CDR__EX_X, CDR__EX_P, CDR__EX_W1, CDR__EX_W3, CDR__EX_W2, CDR__EX_A1, CDR__EX_B1, CDR__EX_A3, CDR__EX_B3, CDR__EX_A2, CDR__EX_B2 };
    for (int situ = 0; situ < 2; situ++) {
        rig r;
        golden_rig_open(&r, "experts_lora");
        const char *form = situ ? "situ" : "swiglu";
        cdr_experts_attr at = { .top_k = 2, .situ = situ, .beta = 4.0f, .linear_beta = 25.0f };
        for (int m = 0; m < 3; m++) at.scale[m] = (float)golden_get(&r.gd, of("scale", form))->x[m];
        cdr_val v[11], perm, offs, pos, din[CDR_MAX_OPERANDS];
        for (int i = 0; i < 11; i++) v[i] = f32(&r, of(name[i], form));
        cdr_dispatch(r.g, i32(&r, of("idx", form)), 5, &perm, &offs, &pos);
        const cdr_experts_adapter adapters[3] = { { v[5], v[6] }, { v[7], v[8] }, { v[9], v[10] } };
        cdr_val u = cdr_experts(r.g, v[0], v[1], perm, offs, pos, v[2], v[3], v[4], CDR_NONE, adapters, &at, false);
        grad_of(&r, call_of(&r, &cdr_op_experts), 0, f32(&r, of("du", form)), 0, din);
        run_all(&r);
        has(&r, u, of("u", form));
        for (int i = 0; i < 11; i++) has(&r, din[operand[i]], of(dname[i], form));
        golden_rig_close(&r);
    }
}

/* dh comes out of the forward where the gradient is the scale that it was made with, by the long way elsewhere; a head that trains is refused. */
static void golden_loss_frozen(void)
{
    for (int other = 0; other < 2; other++) {
        rig r;
        golden_rig_open(&r, "loss");
        cdr_val din[CDR_MAX_OPERANDS], scale = f32(&r, "scale"), again = f32(&r, "scale");
        const cdr_val in[5] = { f32(&r, "h"), f32(&r, "w"), i32(&r, "targets"), scale, CDR_NONE };
        cdr_val y = cdr_loss_frozen(r.g, in, 3, 4);
        cdr_val dh = out_of_last(&r, 1);
        grad_of(&r, 0, 0, other ? again : scale, 2u | 1u << CDR__LSF_SCALE, din);
        T_CHECK((din[0] == dh) == (other == 0));
        run_all(&r);
        has(&r, y, "loss");
        has(&r, din[0], "dh");
        bool want[4] = { true, true, false, false };
        cdr_call c = r.g->calls[0];
        cdr_err e = { CDR_OK, "", "" };
        cdr_val dout[2] = { scale, CDR_NONE };
        T_CHECK(cdr_op_loss_frozen.grad(r.g, &c, dout, want, din, &e) == CDR_EINVAL);
        T_HAS(e.text, "the head needs a gradient");
        golden_rig_close(&r);
    }
}

static void muon_steps(const char *form, int32_t block_rows, int32_t nesterov)
{
    rig r;
    golden_rig_open(&r, "muon");
    const double *at = golden_get(&r.gd, "attr")->x, *clips = golden_get(&r.gd, "clip")->x;
    const golden_tensor *grads = golden_get(&r.gd, of("grads", form)), *trace = golden_get(&r.gd, of("trace", form));
    double hyper[8] = { golden_get(&r.gd, "lr")->x[0] };
    int64_t n = grads->n[1] * grads->n[2];
    double *got = calloc((size_t)n, sizeof *got);
    cdr_muon_attr attr = { .block_rows = block_rows, .momentum = (float)at[0], .nesterov = nesterov, .iterations = 5, .scale = (float)at[1],
                           .weight_decay = (float)at[2], .lr_scale = 1 };
    cdr_type t = cdr_type_2d(CDR_F32, grads->n[1], grads->n[2]);
    cdr_val w = f32(&r, of("w", form)), m = cdr_graph_value(r.g, t, CDR_TURN, CDR_C_OPTIM, "m");
    cdr_val grad = cdr_graph_value(r.g, t, CDR_TURN, CDR_C_GRAD, "grad"), clip = cdr_graph_value(r.g, cdr_type_1d(CDR_F32, 1), CDR_TURN, CDR_C_ACT, "clip");
    cdr_val hyper_8 = cdr_graph_value(r.g, cdr_type_1d(CDR_F32, 8), CDR_TURN, CDR_C_INPUT, "hyper");
    T_CHECK(cdr_muon(r.g, grad, clip, hyper_8, w, m, CDR_NONE, &attr) >= 0);
    cdr_oracle_put(r.o, m, got);
    cdr_oracle_put(r.o, hyper_8, hyper);
    for (int s = 0; s < 10; s++) {
        cdr_oracle_put(r.o, grad, grads->x + s * n);
        cdr_oracle_put(r.o, clip, clips + s);
        run_all(&r);
        for (int k = 0; k < 2; k++) {
            cdr_oracle_get(r.o, k ? m : w, got);
            for (int64_t i = 0; i < n; i++) T_NEAR(got[i], trace->x[(2 * s + k) * n + i], 1e-12);
        }
    }
    free(got);
    golden_rig_close(&r);
}

static void golden_muon(void)
{
    muon_steps("heads", 4, 1);
    muon_steps("tall", 0, 0);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(golden_attn_res);
    T_RUN(golden_gate);
    T_RUN(golden_situ);
    T_RUN(golden_layernorm);
    T_RUN(golden_short_conv_packed);
    T_RUN(golden_short_conv_history);
    T_RUN(golden_kda_packed);
    T_RUN(golden_kda_state);
    T_RUN(golden_moe);
    T_RUN(golden_experts_lora);
    T_RUN(golden_loss_frozen);
    T_RUN(golden_muon);
    return t_end();
}
