/* test_golden_lora.c: what tools/golden_lora.py made with PyTorch in float64 and its autograd: the loss of tokens that have weights, in all
 * its forms; routed experts with shared-outer adapters against folded matrices; with the gradients that the operators' records build, in
 * double. */
#include "golden_rig.h"
#include "ops/add/add.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/scale/scale.h"

/* Chunks change no equation. loss with its backward; loss_frozen whose dh is there; loss_frozen by the long way */
static void golden_loss_weights(void)
{
    static const int64_t chunk[][2] = { { 0, 0 }, { 3, 4 } };
    for (int i = 0; i < 6; i++) {
        rig r;
        rig_open(&r);
        golden gd = golden_open("loss_weights");
        const int64_t *c = chunk[i % 2];
        cdr_val din[CDR_MAX_OPERANDS], h = put(&r, &gd, "h", CDR_F32), w = put(&r, &gd, "w", CDR_F32), y = put(&r, &gd, "targets", CDR_I32);
        cdr_val weights = put(&r, &gd, "weights", CDR_F32), scale = put(&r, &gd, "scale", CDR_F32), again = put(&r, &gd, "scale", CDR_F32), loss;
        if (i < 2) {
            loss = cdr_loss(r.g, h, w, y, weights, c[0], c[1]);
            cdr_val lse = out_of_last(&r, 1);
            grad_of(&r, 0, 0, scale, 1u << CDR__LOSS_WEIGHTS, din);
            run_all(&r);
            expect(&r, lse, &gd, "lse", TOL);
            expect(&r, din[1], &gd, "dw", TOL);
        } else {
            const cdr_val in[5] = { h, w, y, scale, weights };
            loss = cdr_loss_frozen(r.g, in, c[0], c[1]);
            cdr_val dh = out_of_last(&r, 1);
            grad_of(&r, 0, 0, i < 4 ? scale : again, 2u | 1u << CDR__LSF_SCALE | 1u << CDR__LSF_WEIGHTS, din);
            T_CHECK((din[0] == dh) == (i < 4));
            run_all(&r);
        }
        expect(&r, loss, &gd, "loss", TOL);
        expect(&r, din[0], &gd, "dh", TOL);
        golden_close(&gd);
        rig_close(&r);
    }
}

static void weights_are_refused_where_they_do_not_fit(void)
{
    rig r;
    rig_open(&r);
    golden gd = golden_open("loss_weights");
    cdr_err e = { CDR_OK, "", "" };
    cdr_type in[4] = { cdr_type_2d(CDR_F32, 9, 5), cdr_type_2d(CDR_F32, 13, 5), cdr_type_1d(CDR_I32, 9), cdr_type_1d(CDR_F32, 8) }, out[2];
    cdr_loss_attr at = { 0, 0 };
    int n;
    T_CHECK(cdr_op_loss.infer(&at, 4, in, &n, out, &e) == CDR_EINVAL);
    T_HAS(e.text, "weights must be f32 with one entry for each of 9 rows");
    in[3] = cdr_type_1d(CDR_BF16, 9);
    T_CHECK(cdr_op_loss.infer(&at, 4, in, &n, out, &e) == CDR_EINVAL);
    in[3] = cdr_type_1d(CDR_F32, 9);
    T_CHECK(cdr_op_loss.infer(&at, 4, in, &n, out, &e) == CDR_OK);
    e = (cdr_err){ CDR_OK, "", "" };
    cdr_val din[CDR_MAX_OPERANDS], dout[2] = { put(&r, &gd, "scale", CDR_F32), CDR_NONE };
    cdr_loss(r.g, put(&r, &gd, "h", CDR_F32), put(&r, &gd, "w", CDR_F32), put(&r, &gd, "targets", CDR_I32), put(&r, &gd, "weights", CDR_F32), 0, 0);
    const cdr_call c = r.g->calls[r.g->n_calls - 1];
    const bool want[4] = { true, true, false, true };
    T_CHECK(cdr_op_loss.grad(r.g, &c, dout, want, din, &e) == CDR_EINVAL);
    T_HAS(e.text, "weights have no gradient");
    for (const cdr_kernel *k = cdr_op_kernels(&cdr_op_loss, CDR_DEV_CUDA); k->name; k++) {
        const cdr_type t[6] = { in[0], in[1], in[2], in[3], out[0], out[1] };
        T_CHECK(k->reject && strstr(k->reject(&at, 4, 2, t), "weights"));
    }
    golden_close(&gd);
    rig_close(&r);
}

/* ---- experts ---- */
/* Gradients of call i, whose outputs have those of dout */
static void gradients(rig *r, int64_t i, const cdr_val *dout, cdr_val *din)
{
    bool want[CDR_MAX_OPERANDS];
    const cdr_call c = r->g->calls[i];
    for (int k = 0; k < c.n_in; k++) {
        cdr_val v = cdr_graph_in(r->g, &c, k);
        want[k] = v != CDR_NONE && cdr_dtype_row(cdr_graph_type(r->g, v)->dtype)->floating;
        din[k] = CDR_NONE;
    }
    T_CHECK(cdr_ops[c.op]->grad(r->g, &c, dout, want, din, &r->err) == CDR_OK);
}

/* s A x as two calls; call: the first one's */
static cdr_val low(rig *r, cdr_val x, cdr_val a, float s, int64_t *call)
{
    *call = r->g->n_calls;
    return cdr_scale(r->g, cdr_linear(r->g, x, a), s);
}

/* Back through them: *da, and what of the input's gradient comes this way */
static cdr_val low_back(rig *r, int64_t call, cdr_val dout, cdr_val *da)
{
    cdr_val through[CDR_MAX_OPERANDS], din[CDR_MAX_OPERANDS];
    gradients(r, call + 1, &dout, through);
    gradients(r, call, through, din);
    *da = din[1];
    return din[0];
}

static void outer(const char *file)
{
    rig r;
    rig_open(&r);
    golden gd = golden_open(file);
    static const char *const name[] = { "x", "p", "w1", "w3", "w2", "a1", "b1", "a3", "b3", "a2", "b2" };
    cdr_val v[11], perm, offs, pos, din[CDR_MAX_OPERANDS], dup[CDR_MAX_OPERANDS], dsum[CDR_MAX_OPERANDS], dv, da1, da3;
    for (int i = 0; i < 11; i++) v[i] = put(&r, &gd, name[i], CDR_F32);
    const bool situ = strstr(file, "situ") != NULL;
    const cdr_experts_attr at = { .top_k = (int32_t)cdr_graph_type(r.g, v[1])->n[1], .situ = situ, .beta = 4, .linear_beta = 25 };
    cdr_dispatch(r.g, put(&r, &gd, "idx", CDR_I32), (int)cdr_graph_type(r.g, v[2])->n[0], &perm, &offs, &pos);
    int64_t call1, call3, call2;
    const cdr_experts_adapter adapters[3] = { { low(&r, v[0], v[5], 0.5f, &call1), v[6] }, { low(&r, v[0], v[7], 1.5f, &call3), v[8] }, { v[9], CDR_NONE } };
    cdr_val u = cdr_experts(r.g, v[0], v[1], perm, offs, pos, v[2], v[3], v[4], CDR_NONE, adapters, &at, false);
    const int64_t experts = call_of(&r, &cdr_op_experts);
    cdr_val low_v = cdr_scale(r.g, cdr_graph_out(r.g, &r.g->calls[experts], CDR__EX_OUT_V), -0.75f), up = cdr_linear(r.g, low_v, v[10]);
    call2 = r.g->n_calls - 2;
    cdr_val y = cdr_add(r.g, u, up), dy = put(&r, &gd, "dy", CDR_F32);
    gradients(&r, r.g->n_calls - 1, &dy, dsum);
    gradients(&r, call2 + 1, &dsum[1], dup);                    /* B2 */
    gradients(&r, call2, &dup[0], din);
    dv = din[0];
    const cdr_val dout[CDR__EX_N_OUT] = { dsum[0], CDR_NONE, dv };
    gradients(&r, experts, dout, din);
    cdr_val dx1 = low_back(&r, call1, din[CDR__EX_A1], &da1), dx3 = low_back(&r, call3, din[CDR__EX_A3], &da3);
    cdr_val dx = cdr_add(r.g, cdr_add(r.g, din[CDR__EX_X], dx1), dx3);
    T_CHECK(!r.g->failed);
    run_all(&r);
    expect(&r, y, &gd, "y", TOL);
    const cdr_val got[] = { dx, din[CDR__EX_P], din[CDR__EX_W1], din[CDR__EX_W3], din[CDR__EX_W2], da1, din[CDR__EX_B1], da3, din[CDR__EX_B3], din[CDR__EX_A2], dup[1] };
    static const char *const dname[] = { "dx", "dp", "dw1", "dw3", "dw2", "da1", "db1", "da3", "db3", "da2", "db2" };
    for (int i = 0; i < 11; i++) expect(&r, got[i], &gd, dname[i], TOL);
    golden_close(&gd);
    rig_close(&r);
}

static void golden_experts_outer(void)
{
    outer("experts_outer_silu");
    outer("experts_outer_situ");
}

int main(void)
{
    T_RUN(golden_experts_outer);
    T_RUN(golden_loss_weights);
    T_RUN(weights_are_refused_where_they_do_not_fit);
    return t_end();
}
