/* experts, reference: equations (1) to (6) of op.c in double, row by row. Nothing is rounded. */
#include "ops/experts/experts.h"
#include <math.h>

typedef struct {
    const cdr_experts_attr *at;
    int64_t T, L, I, E, A;
    const double *x, *p, *perm, *offs, *w1, *w3, *w2, *table;
    int64_t matrix_bytes[3];                     /* of w1, w3, w2: the table counts bytes of whole matrices */
    const double *a[3], *b[3];   /* adapters of w1, w3, w2 */
    int64_t rank[3], low[3];     /* of each; of what is one for all experts: columns of h1, h3, v, in place of rank */
} sizes;

static sizes sizes_of(const void *attr, const cdr_type *t, const double *const *in)
{
    sizes z = { .at = attr, .T = t[CDR__EX_X].n[0], .L = t[CDR__EX_X].n[1], .I = t[CDR__EX_W1].n[1], .E = t[CDR__EX_W1].n[0],
                .x = in[CDR__EX_X], .p = in[CDR__EX_P], .perm = in[CDR__EX_PERM], .offs = in[CDR__EX_OFFS],
                .w1 = in[CDR__EX_W1], .w3 = in[CDR__EX_W3], .w2 = in[CDR__EX_W2], .table = in[CDR__EX_TABLE] };
    z.A = z.at->top_k;
    for (int i = 0; i < 3; i++) {
        z.matrix_bytes[i] = (int64_t)cdr_matrix_bytes(&t[CDR__EX_W1 + i]);
        z.a[i] = in[CDR__EX_A1 + 2 * i];
        z.b[i] = in[CDR__EX_B1 + 2 * i];
        z.rank[i] = cdr__ex_fused(t, i) ? t[CDR__EX_A1 + 2 * i].n[1] : 0;
        z.low[i] = i < 2 ? cdr__ex_low_in(t, i) : cdr__ex_low_out(t);
    }
    return z;
}

static int64_t rows_of(const sizes *z, int m) { return m == 2 ? z->L : z->I; }
static int64_t cols_of(const sizes *z, int m) { return m == 2 ? z->I : z->L; }
static double a_at(const sizes *z, int m, int64_t e, int64_t k, int64_t j) { return z->a[m][(e * z->rank[m] + k) * cols_of(z, m) + j]; }
static double b_at(const sizes *z, int m, int64_t e, int64_t i, int64_t k) { return z->b[m][(e * rows_of(z, m) + i) * z->rank[m] + k]; }

/* Element (i, j) of matrix m (0: w1, 1: w3, 2: w2) of expert e, with its adapter */
static double weight(const sizes *z, int m, int64_t e, int64_t i, int64_t j)
{
    const double *w = m == 0 ? z->w1 : m == 1 ? z->w3 : z->w2;
    const int64_t matrix = z->table ? (int64_t)z->table[e * 3 + m] / z->matrix_bytes[m] : e, first = matrix * z->I * z->L;
    double sum = w[first + i * cols_of(z, m) + j];
    for (int64_t k = 0; k < z->rank[m]; k++) sum += (double)z->at->scale[m] * b_at(z, m, e, i, k) * a_at(z, m, e, k, j);
    return sum;
}

/* (2a): element i of B_e h_t of w1 or w3; element k of A2_e's row, at i */
static double low_in(const sizes *z, int m, int64_t e, int64_t t, int64_t i)
{
    double sum = 0;
    for (int64_t k = 0; k < z->low[m]; k++) sum += z->b[m][(e * z->I + i) * z->low[m] + k] * z->a[m][t * z->low[m] + k];
    return sum;
}
static double a2_at(const sizes *z, int64_t e, int64_t k, int64_t i) { return z->a[2][(e * z->low[2] + k) * z->I + i]; }

static double act(const sizes *z, double g, double c)
{
    const double s = 1 / (1 + exp(-g)), b1 = (double)z->at->beta, b2 = (double)z->at->linear_beta;
    return z->at->situ ? b1 * tanh(g / b1) * s * b2 * tanh(c / b2) : g * s * c;
}

static void act_grad(const sizes *z, double g, double c, double *dg, double *dc)
{
    const double s = 1 / (1 + exp(-g)), b1 = (double)z->at->beta, b2 = (double)z->at->linear_beta;
    if (z->at->situ) {
        const double t1 = tanh(g / b1), t2 = tanh(c / b2);
        *dg = ((1 - t1 * t1) * s + b1 * t1 * s * (1 - s)) * b2 * t2;
        *dc = b1 * t1 * s * (1 - t2 * t2);
    } else {
        *dg = c * s * (1 + g * (1 - s));
        *dc = g * s;
    }
}

static void gate_up(const sizes *z, int64_t e, int64_t t, int64_t i, double *g, double *c)
{
    *g = low_in(z, 0, e, t, i);
    *c = low_in(z, 1, e, t, i);
    for (int64_t l = 0; l < z->L; l++) {
        *g += weight(z, 0, e, i, l) * z->x[t * z->L + l];
        *c += weight(z, 1, e, i, l) * z->x[t * z->L + l];
    }
}

static void zero(double *p, int64_t n) { for (int64_t i = 0; p && i < n; i++) p[i] = 0; }

void cdr__experts_ref(const cdr_ref_args *a)
{
    const sizes z = sizes_of(a->attr, a->type, a->in);
    double *u = a->out[CDR__EX_OUT_U], *gu = a->out[CDR__EX_OUT_GU], *v = z.low[2] > 0 ? a->out[CDR__EX_OUT_V] : NULL;
    zero(v, z.T * z.low[2]);
    zero(u, z.T * z.L);
    zero(gu, z.T * z.A * 2 * z.I);
    for (int64_t e = 0; e < z.E; e++)
        for (int64_t r = (int64_t)z.offs[e]; r < (int64_t)z.offs[e + 1]; r++) {
            const int64_t q = (int64_t)z.perm[r], t = q / z.A;
            for (int64_t i = 0; i < z.I; i++) {
                double g, c;
                gate_up(&z, e, t, i, &g, &c);
                if (gu) gu[r * 2 * z.I + i] = g;
                if (gu) gu[r * 2 * z.I + z.I + i] = c;
                for (int64_t l = 0; l < z.L; l++) u[t * z.L + l] += z.p[q] * weight(&z, 2, e, l, i) * act(&z, g, c);
                for (int64_t k = 0; k < z.low[2]; k++) v[t * z.low[2] + k] += z.p[q] * a2_at(&z, e, k, i) * act(&z, g, c);
            }
        }
}

/* What element `row` of the inner width gives to (6) of w1 or w3: dout is dg_i or dc_i, `in` is x_t. */
static void add_adapter_in(const cdr_ref_args *a, const sizes *z, int m, int64_t e, int64_t row, double dout, const double *in)
{
    double *da = a->out[CDR__EXB_DA1 + 2 * m], *db = a->out[CDR__EXB_DB1 + 2 * m];
    const double s = (double)z->at->scale[m];
    for (int64_t k = 0; k < z->rank[m]; k++)
        for (int64_t l = 0; l < z->L; l++) {
            if (da) da[(e * z->rank[m] + k) * z->L + l] += s * b_at(z, m, e, row, k) * dout * in[l];
            if (db) db[(e * z->I + row) * z->rank[m] + k] += s * dout * a_at(z, m, e, k, l) * in[l];
        }
}

/* The same of w2: du and p give dout, h is element i of what W2 reads. */
static void add_adapter_out(const cdr_ref_args *a, const sizes *z, int64_t e, int64_t i, double p, const double *du, double h)
{
    double *da = a->out[CDR__EXB_DA2], *db = a->out[CDR__EXB_DB2];
    const double s = (double)z->at->scale[2];
    for (int64_t k = 0; k < z->rank[2]; k++)
        for (int64_t l = 0; l < z->L; l++) {
            if (da) da[(e * z->rank[2] + k) * z->I + i] += s * b_at(z, 2, e, l, k) * p * du[l] * h;
            if (db) db[(e * z->L + l) * z->rank[2] + k] += s * p * du[l] * a_at(z, 2, e, k, i) * h;
        }
}

/* (6a) of w1 or w3 */
static void add_low_in(const cdr_ref_args *a, const sizes *z, int m, int64_t e, int64_t t, int64_t i, double dout)
{
    double *dh = a->out[CDR__EXB_DA1 + 2 * m], *db = a->out[CDR__EXB_DB1 + 2 * m];
    const int64_t K = z->low[m];
    for (int64_t k = 0; k < K; k++) {
        if (dh) dh[t * K + k] += z->b[m][(e * z->I + i) * K + k] * dout;
        if (db) db[(e * z->I + i) * K + k] += dout * z->a[m][t * K + k];
    }
}

/* Adds what one inner element i of row r, of expert e, gives to each gradient. */
static void add_gradients(const cdr_ref_args *a, const sizes *z, int64_t e, int64_t r, int64_t i)
{
    const double *du = a->in[CDR__EXB_DU], *gu = a->in[CDR__EXB_GU];
    double *dx = a->out[CDR__EXB_DX], *dp = a->out[CDR__EXB_DP], *dw1 = a->out[CDR__EXB_DW1], *dw3 = a->out[CDR__EXB_DW3], *dw2 = a->out[CDR__EXB_DW2];
    const int64_t q = (int64_t)z->perm[r], t = q / z->A, L = z->L, I = z->I;
    double g, c, dg, dc, back = 0;
    gate_up(z, e, t, i, &g, &c);
    if (gu) g = gu[r * 2 * I + i];
    if (gu) c = gu[r * 2 * I + I + i];
    const double h = act(z, g, c);
    act_grad(z, g, c, &dg, &dc);
    for (int64_t l = 0; l < L; l++) back += weight(z, 2, e, l, i) * du[t * L + l];
    for (int64_t k = 0; k < z->low[2]; k++) back += a2_at(z, e, k, i) * a->in[CDR__EXB_DV][t * z->low[2] + k];
    dg *= z->p[q] * back;
    dc *= z->p[q] * back;
    if (dp) dp[q] += back * h;
    for (int64_t l = 0; l < L; l++) {
        if (dx) dx[t * L + l] += weight(z, 0, e, i, l) * dg + weight(z, 1, e, i, l) * dc;
        if (dw1) dw1[(e * I + i) * L + l] += dg * z->x[t * L + l];
        if (dw3) dw3[(e * I + i) * L + l] += dc * z->x[t * L + l];
        if (dw2) dw2[(e * L + l) * I + i] += z->p[q] * du[t * L + l] * h;
    }
    for (int64_t k = 0; k < z->low[2] && a->out[CDR__EXB_DA2]; k++)
        a->out[CDR__EXB_DA2][(e * z->low[2] + k) * I + i] += z->p[q] * a->in[CDR__EXB_DV][t * z->low[2] + k] * h;
    add_low_in(a, z, 0, e, t, i, dg);
    add_low_in(a, z, 1, e, t, i, dc);
    add_adapter_in(a, z, 0, e, i, dg, z->x + t * L);
    add_adapter_in(a, z, 1, e, i, dc, z->x + t * L);
    add_adapter_out(a, z, e, i, z->p[q], du + t * L, h);
}

void cdr__experts_bwd_ref(const cdr_ref_args *a)
{
    const sizes z = sizes_of(a->attr, a->type + CDR__EXB_X, a->in + CDR__EXB_X);
    zero(a->out[CDR__EXB_DX], z.T * z.L);
    zero(a->out[CDR__EXB_DP], z.T * z.A);
    for (int m = 0; m < 3; m++) {
        zero(a->out[CDR__EXB_DW1 + m], z.E * z.I * z.L);
        for (int k = 0; k < 2; k++) {
            const cdr_type *t = &a->type[CDR__EXB_N + CDR__EXB_DA1 + 2 * m + k];
            if (!cdr_absent(t)) zero(a->out[CDR__EXB_DA1 + 2 * m + k], cdr_type_elems(t));
        }
    }
    for (int64_t e = 0; e < z.E; e++)
        for (int64_t r = (int64_t)z.offs[e]; r < (int64_t)z.offs[e + 1]; r++)
            for (int64_t i = 0; i < z.I; i++) add_gradients(a, &z, e, r, i);
}
