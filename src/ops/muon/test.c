/* muon, test cases. W = 0, decay 0 and lr = 1 leave -scale sqrt(max) O in the master, so that the orthogonalised matrix itself is
 * compared. Wide, tall, square, blocks (heads, stacked experts on three axes), a zero gradient, a row, a column, no momentum. */
#include "ops/cpu.h"
#include "ops/muon/muon.h"
#include <math.h>

#define AT(rows, mu, nest, wd) { .block_rows = rows, .momentum = mu, .nesterov = nest, .iterations = 5, .scale = 0.2f, .weight_decay = wd, .lr_scale = 1 }
static const cdr_muon_attr whole = AT(0, 0.95f, 1, 0), plain = AT(0, 0.95f, 0, 0), decay = AT(0, 0.95f, 1, 0.1f), no_m = AT(0, 0, 1, 0);
static const cdr_muon_attr of_8 = AT(8, 0.95f, 1, 0), of_16 = AT(16, 0.95f, 1, 0.1f), of_48 = AT(48, 0.95f, 1, 0);
static const cdr_muon_attr half_lr = { .block_rows = 0, .momentum = 0.9f, .nesterov = 1, .iterations = 3, .scale = 1.0f, .weight_decay = 0.1f, .lr_scale = 0.5f };

/* the learning rate is the first; the others must not matter */
static void hyper(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)t;
    for (int i = 0; i < 8; i++) in[CDR__MU_HYPER][i] = 1000.0 + (double)(cdr_rng_u64(key, (uint64_t)i) % 7);
    in[CDR__MU_HYPER][0] = 1;
}

static const char *zero_holds(const cdr_args *a)
{
    const float *w = a->ptr[CDR__MU_MASTER_OUT];
    for (int64_t i = 0; i < cdr_type_elems(&a->type[0]); i++) if (w[i] != 0) return "a zero gradient moves a zero weight";
    return NULL;
}

#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define E(dt, e, r, c) { .dtype = dt, .n_dim = 3, .n = { e, r, c } }
#define V(n_) { .dtype = CDR_F32, .n_dim = 1, .n = { n_ } }
#define N(sd) { 'n', sd, 0 }
#define C(x) { 'c', x, 0 }
#define MU(nm, at, type, wtype, gs, ms, ws, ab, tl) { .name = nm, .op = &cdr_op_muon, .attr = &(at), .n_in = 6, \
    .in = { type, V(1), V(8), type, type, wtype }, .fill = { gs, C(0.7), { 'f', 0, 0 }, ws, ms, C(0) }, \
    .absent = (ab) << 5, .skip_out = (ab) << 2, .make = hyper, .tol = tl }

/* The iteration magnifies a small singular value by up to 3.4445^5 = 485, and its rounding with it: square matrices have such. */
const cdr_case cdr_cases_muon[] = {
    MU("20x70 wide", whole, M(CDR_F32, 20, 70), M(CDR_F32, 20, 70), N(1), N(0.3), C(0), 1u, 5e-6),
    MU("70x20 tall", whole, M(CDR_F32, 70, 20), M(CDR_F32, 70, 20), N(1), N(0.3), C(0), 1u, 5e-6),
    MU("64x64 square", whole, M(CDR_F32, 64, 64), M(CDR_F32, 64, 64), N(1), N(0.3), C(0), 1u, 3e-5),
    MU("200x230 strips", whole, M(CDR_F32, 200, 230), M(CDR_F32, 200, 230), N(1), N(0.3), C(0), 1u, 3e-5),
    MU("100x128 shared", whole, M(CDR_F32, 100, 128), M(CDR_F32, 100, 128), N(1), N(0.3), C(0), 1u, 1e-5),
    MU("270x127 tall, odd", whole, M(CDR_F32, 270, 127), M(CDR_F32, 270, 127), N(1), N(0.3), C(0), 1u, 5e-6),
    MU("90x520 longer than small", whole, M(CDR_F32, 90, 520), M(CDR_F32, 90, 520), N(1), N(0.3), C(0), 1u, 5e-6),
    MU("33x90 plain momentum", plain, M(CDR_F32, 33, 90), M(CDR_F32, 33, 90), N(1), N(2), C(0), 1u, 5e-6),
    MU("33x90 no momentum", no_m, M(CDR_F32, 33, 90), M(CDR_F32, 33, 90), N(1), N(2), C(0), 1u, 5e-6),
    MU("40x24 bf16 copy, decay", decay, M(CDR_F32, 40, 24), M(CDR_BF16, 40, 24), N(1), N(0.3), N(3), 0u, 2.5e-3),
    MU("30x50 three iterations, half the rate", half_lr, M(CDR_F32, 30, 50), M(CDR_F32, 30, 50), N(1), N(0.3), N(3), 1u, 5e-6),
    MU("4 heads of 8x40", of_8, M(CDR_F32, 32, 40), M(CDR_F32, 32, 40), N(1), N(0.3), C(0), 1u, 5e-6),
    MU("3 heads of 48x20", of_48, M(CDR_F32, 144, 20), M(CDR_F32, 144, 20), N(1), N(0.3), C(0), 1u, 5e-6),
    MU("experts [9,16,24]", of_16, E(CDR_F32, 9, 16, 24), E(CDR_BF16, 9, 16, 24), N(1), N(0.3), N(1), 0u, 2.5e-3),
    MU("1x30 a row", whole, M(CDR_F32, 1, 30), M(CDR_F32, 1, 30), N(1), N(1), C(0), 1u, 1e-6),
    MU("30x1 a column", whole, M(CDR_F32, 30, 1), M(CDR_F32, 30, 1), N(1), N(1), C(0), 1u, 1e-6),
    MU("40x30 tiny gradients", no_m, M(CDR_F32, 40, 30), M(CDR_F32, 40, 30), N(1e-9), C(0), C(0), 1u, 3e-5),
    { .name = "4 heads of 8x40 zero", .op = &cdr_op_muon, .attr = &of_8, .n_in = 6,
      .in = { M(CDR_F32, 32, 40), V(1), V(8), M(CDR_F32, 32, 40), M(CDR_F32, 32, 40), M(CDR_F32, 32, 40) },
      .fill = { C(0), C(0.7), { 'f', 0, 0 }, C(0), C(0), C(0) }, .make = hyper, .tol = 0, .property = zero_holds },
    { .name = NULL }
};
