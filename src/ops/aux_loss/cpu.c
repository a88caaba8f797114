/* aux_loss, CPU kernels: counts of each packed row (small, in order), then a loop over tokens. Bound: the exponentials, E a token. The
 * backward counts again rather than keep E numbers a row. */
#include "ops/aux_loss/rows.inc"

static const cdr__aux_rows base = { value, backward };
cdr_status cdr__aux_loss_fwd_base(const cdr_args *a) { return cdr__aux_loss_fwd(a, &base); }
cdr_status cdr__aux_loss_bwd_base(const cdr_args *a) { return cdr__aux_loss_bwd(a, &base); }

/* The operands that both share, from the logits on. */
typedef struct { const cdr_type *tx, *ti; void *x, *idx; const int32_t *start_T, *pos_T; int64_t T, E, k, n_rows; } operands;

static operands operands_at(const cdr_args *a, int first)
{
    const cdr_aux_loss_attr *at = a->attr;
    const cdr_type *t = &a->type[first];
    void *const *p = &a->ptr[first];
    return (operands){ .tx = &t[CDR__AUX_LOGITS], .ti = &t[CDR__AUX_IDX], .x = p[CDR__AUX_LOGITS], .idx = p[CDR__AUX_IDX], .start_T = p[CDR__AUX_START],
                       .pos_T = p[CDR__AUX_POS], .T = t[0].n[0], .E = t[0].n[1], .k = at->top_k, .n_rows = t[0].n[0] / at->row };
}

/* (2) for every packed row; counts below 2^24 are exact in F32 */
static void weights_of_rows(const cdr_aux_loss_attr *at, const operands *o, float *f_RE)
{
    for (int64_t r = 0; r < o->n_rows; r++) {
        float *f_E = f_RE + r * o->E;
        int64_t n = 0;
        memset(f_E, 0, (size_t)o->E * sizeof *f_E);
        for (int64_t t = r * at->row; t < (r + 1) * at->row; t++) {
            if (o->start_T[t] > o->pos_T[t]) continue;
            const int32_t *idx_k = cdr_row(o->idx, o->ti, t);
            n++;
            for (int64_t j = 0; j < o->k; j++) {
                CDR_CHECK(idx_k[j] >= 0 && idx_k[j] < o->E);        /* data, not shapes: it would write outside of the counts */
                f_E[idx_k[j]] += 1.0f;
            }
        }
        if (n == 0) continue;
        double c = (double)at->coef * (double)o->E / ((double)o->k * (double)n);
        for (int64_t e = 0; e < o->E; e++) f_E[e] = (float)(c * (double)f_E[e]);
    }
}

/* F64 terms of tokens; f of each packed row; per thread: scores of a token */
size_t cdr__aux_loss_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    int64_t T = t[0].n[0], E = t[0].n[1], n_rows = T / ((const cdr_aux_loss_attr *)attr)->row;
    return (size_t)T * sizeof(double) + (size_t)((n_rows + n_threads) * E) * sizeof(float);
}

cdr_status cdr__aux_loss_fwd(const cdr_args *a, const cdr__aux_rows *rows)
{
    const cdr_aux_loss_attr *at = a->attr;
    operands o = operands_at(a, 0);
    double *term_T = a->work, sum = 0;
    float *f_RE = (float *)(term_T + o.T);
    weights_of_rows(at, &o, f_RE);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < o.T; t++) {
        float *s_E = cdr_thread_part(f_RE + o.n_rows * o.E, o.E);
        bool idle = o.start_T[t] > o.pos_T[t];
        term_T[t] = idle ? 0.0 : (double)rows->value(cdr_row(o.x, o.tx, t), f_RE + t / at->row * o.E, o.E, at->softmax != 0, s_E);
    }
    for (int64_t t = 0; t < o.T; t++) sum += term_T[t];                                                             /* (3) */
    *(double *)a->ptr[CDR__AUX_SUM] = sum;
    return CDR_OK;
}

/* f of each packed row; per thread: scores of a token */
size_t cdr__aux_loss_bwd_work(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads)
{
    (void)n_in, (void)n_out;
    int64_t T = t[1].n[0], E = t[1].n[1], n_rows = T / ((const cdr_aux_loss_attr *)attr)->row;
    return (size_t)((n_rows + n_threads) * E) * sizeof(float);
}

cdr_status cdr__aux_loss_bwd(const cdr_args *a, const cdr__aux_rows *rows)
{
    const cdr_aux_loss_attr *at = a->attr;
    operands o = operands_at(a, 1);
    float *f_RE = a->work, scale = *(const float *)a->ptr[0];
    bool add = (a->add & 1) != 0;
    weights_of_rows(at, &o, f_RE);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static)
    for (int64_t t = 0; t < o.T; t++) {
        float *s_E = cdr_thread_part(f_RE + o.n_rows * o.E, o.E), *dx_E = cdr_row(a->ptr[1 + CDR__AUX_N_IN], &a->type[1 + CDR__AUX_N_IN], t);
        if (o.start_T[t] <= o.pos_T[t]) rows->backward(cdr_row(o.x, o.tx, t), f_RE + t / at->row * o.E, o.E, at->softmax != 0, scale, s_E, add, dx_E);
        else if (!add) memset(dx_E, 0, (size_t)o.E * sizeof *dx_E);
    }
    return CDR_OK;
}
