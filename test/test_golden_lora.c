/* test_golden_lora.c: what tools/golden_lora.py made with PyTorch in float64 and its autograd: the loss of tokens that have weights, in all
 * its forms, with the gradients that the operators' records build, in double. */
#include "golden_rig.h"
#include "ops/loss/loss.h"

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

int main(void)
{
    T_RUN(golden_loss_weights);
    T_RUN(weights_are_refused_where_they_do_not_fit);
    return t_end();
}
