/* embedding, test cases: the harness (run/check.c) derives the checks from this table. Repeated tokens, rows of the table
 * that no token names (their gradient is zero), features at the first, the last and other rows, a feature's dtype other
 * than the table's, every optional output alone. */
#include "ops/embedding/embedding.h"

/* Distinct places, first and last row among them: f * (T - 1) / (F - 1). */
static void spread(double *place_F, int64_t F, int64_t T)
{
    for (int64_t f = 0; f < F; f++) place_F[f] = (double)(F > 1 ? f * (T - 1) / (F - 1) : T - 1);
}
static void places(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    spread(in[3], t[3].n[0], t[0].n[0]);
}
static void places_bwd(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    spread(in[2], t[2].n[0], t[0].n[0]);
}

#define X(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define I(n_) { .dtype = CDR_I32, .n_dim = 1, .n = { n_ } }
/* highest token: W - 2, so that the last row of the table is named by none */
#define FWD(nm, wt, T, W, D) { .name = nm, .op = &cdr_op_embedding, .n_in = 4, .in = { I(T), X(wt, W, D) }, .absent = 12, \
    .fill = { { 'i', 0, W - 2 }, { 'n', 1, 0 } }, .grad = 2 }
#define FEAT(nm, wt, ft, T, W, D, F, tl) { .name = nm, .op = &cdr_op_embedding, .n_in = 4, .in = { I(T), X(wt, W, D), X(ft, F, D), I(F) }, \
    .fill = { { 'i', 0, W - 2 }, { 'n', 1, 0 }, { 'n', 1, 0 }, { 'f', 0, 0 } }, .grad = 6, .tol = tl, .make = places }
#define BWD(nm, gt, wt, T, W, D, F, ab, skip, tl) { .name = nm, .op = &cdr_op_embedding_bwd, .n_in = 3, \
    .attr = &(const cdr_embedding_bwd_attr){ .table_rows = W, .feat_dtype = wt }, \
    .in = { X(gt, T, D), I(T), I(F) }, .absent = ab, .skip_out = skip, \
    .fill = { { 'n', 1, 0 }, { 'i', 0, W - 2 }, { 'f', 0, 0 } }, .tol = tl, .make = (ab) ? NULL : places_bwd }

/* Forward copies: tolerance 0, except where a feature is rounded (half an ulp of BF16: 1.7e-3 in the root mean square). */
const cdr_case cdr_cases_embedding[] = {
    FWD("T130 W40 D64 f32", CDR_F32, 130, 40, 64),
    FWD("T130 W40 D64 bf16", CDR_BF16, 130, 40, 64),
    FWD("T1 W3 D5 bf16 one row", CDR_BF16, 1, 3, 5),
    FWD("T9 W600 D257 f32 tail", CDR_F32, 9, 600, 257),
    FEAT("T50 W20 D33 f32, 7 features", CDR_F32, CDR_F32, 50, 20, 33, 7, 0),
    FEAT("T50 W20 D96 bf16, 1 feature", CDR_BF16, CDR_BF16, 50, 20, 96, 1, 0),
    FEAT("T20 W20 D70 bf16, 20 features f32: all rows", CDR_BF16, CDR_F32, 20, 20, 70, 20, 3e-3),
    FEAT("T20 W20 D70 f32, 5 features bf16", CDR_F32, CDR_BF16, 20, 20, 70, 5, 0),
    BWD("T1300 W40 D70 f32", CDR_F32, CDR_F32, 1300, 40, 70, 0, 4, 2, 1e-6),
    BWD("T1300 W40 D130 bf16", CDR_BF16, CDR_BF16, 1300, 40, 130, 0, 4, 2, 1e-6),
    BWD("T50 W20 D33 f32, 7 features", CDR_F32, CDR_F32, 50, 20, 33, 7, 0, 0, 1e-6),
    BWD("T50 W20 D33 bf16, dy f32, 7 features", CDR_F32, CDR_BF16, 50, 20, 33, 7, 0, 0, 3e-3),
    BWD("T50 W20 D33 bf16, 7 features, dw only", CDR_BF16, CDR_BF16, 50, 20, 33, 7, 0, 2, 1e-6),
    BWD("T50 W20 D33 bf16, 7 features, dfeat only", CDR_BF16, CDR_BF16, 50, 20, 33, 7, 0, 1, 0),
    { .name = NULL }
};
