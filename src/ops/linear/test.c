/* linear, test cases: the harness (run/check.c) derives the checks from this table. Shapes: whole tiles of every ISA, one
 * row, tails in each of the three directions, more than one block of columns (1024) and of k (2048 units), both ways of
 * splitting over threads; every mix of F32 and BF16; weights in panels.
 * Property, beside the harness's: rows of the product have the same bits alone as among all. */
#include "ops/linear/linear.h"
#include <stdlib.h>

static const cdr_linear_attr same = { .out_dtype = -1 }, f32 = { .out_dtype = CDR_F32 }, bf16 = { .out_dtype = CDR_BF16 };

/* Rows first .. first + n of output 0, dense, by kernel k, into y. rows_of_0: they follow from the same rows of input 0
 * (linear, linear_dx), else from its columns (linear_dw). */
static bool run_rows(const cdr_kernel *k, const cdr_args *a, bool rows_of_0, int64_t first, int64_t n, int n_threads, void *y)
{
    cdr_type t[3] = { a->type[0], a->type[1], a->type[2] };
    const int64_t step = rows_of_0 ? cdr_type_pitch(&t[0]) : 1;
    for (int i = 0; i < 3; i++) t[i].pitch = cdr_type_pitch(&a->type[i]);
    t[0].n[rows_of_0 ? 0 : 1] = n;
    t[2].n[0] = n;
    void *const ptr[3] = { (char *)a->ptr[0] + cdr_dtype_bytes(t[0].dtype, first * step), a->ptr[1], y };
    cdr_lane lane = *a->lane;
    lane.n_threads = n_threads;
    void *work = aligned_alloc(64, cdr_align_up(k->work_bytes(a->attr, 2, 1, t, n_threads) + 1, 64));
    if (!work) return false;
    const cdr_status st = k->run(&(cdr_args){ .attr = a->attr, .type = t, .ptr = ptr, .n_in = 2, .n_out = 1, .work = work, .lane = &lane });
    free(work);
    return st == CDR_OK;
}

/* The kernel under test is not named: every kernel that gives a's output must give it row by row as well. */
static const char *rows_alone(const cdr_op *op, bool rows_of_0, const cdr_args *a)
{
    const int64_t rows = a->type[2].n[0], row_bytes = cdr_dtype_bytes(a->type[2].dtype, cdr_type_cols(&a->type[2]));
    const int64_t part[][2] = { { 0, 1 }, { rows - 1, 1 }, { rows / 2, 1 }, { rows / 3, rows / 3 + 1 } };
    const uint32_t isa = cdr_cpu_isa(NULL);
    char *y = malloc((size_t)(rows * row_bytes) + 1);
    const char *bad = y ? "no kernel gives these bits again" : "out of memory";
    for (const cdr_kernel *k = op->kernels; y && k->name; k++) {
        if ((k->needs & ~isa) || (k->reject && k->reject(a->attr, 2, 1, a->type))) continue;
        if (!run_rows(k, a, rows_of_0, 0, rows, 2, y) || memcmp(y, a->ptr[2], (size_t)(rows * row_bytes)) != 0) continue;
        bad = NULL;
        for (int i = 0; i < CDR_COUNT(part) && !bad; i++)
            if (!run_rows(k, a, rows_of_0, part[i][0], part[i][1], 1, y) ||
                memcmp(y, (const char *)a->ptr[2] + part[i][0] * row_bytes, (size_t)(part[i][1] * row_bytes)) != 0)
                bad = "rows have other bits alone than among all";
        if (bad) break;
    }
    free(y);
    return bad;
}

static const char *linear_rows_alone(const cdr_args *a) { return rows_alone(&cdr_op_linear, true, a); }
static const char *dx_rows_alone(const cdr_args *a) { return rows_alone(&cdr_op_linear_dx, true, a); }
static const char *dw_rows_alone(const cdr_args *a) { return rows_alone(&cdr_op_linear_dw, false, a); }

/* The kernel that gave a's output from a weight in panels gives the same bits from its rows. */
static const char *as_from_rows(const cdr_op *op, const cdr_args *a)
{
    const int64_t rows = a->type[2].n[0], row_bytes = cdr_dtype_bytes(a->type[2].dtype, cdr_type_cols(&a->type[2]));
    const uint32_t isa = cdr_cpu_isa(NULL);
    cdr_type t[3] = { a->type[0], a->type[1], a->type[2] };
    t[1].layout = CDR_ROWS;
    char *y = malloc((size_t)(rows * row_bytes) + 1), *w = malloc(cdr_type_bytes(&t[1]) + 1);
    const char *bad = y && w ? "no kernel gives these bits from rows" : "out of memory";
    if (w) cdr_panels_get(&a->type[1], 0, t[1].n[0], a->ptr[1], w);
    void *ptr[3] = { a->ptr[0], w, NULL };
    const cdr_args from_rows = { .attr = a->attr, .type = t, .ptr = ptr, .n_in = 2, .n_out = 1, .lane = a->lane };
    for (const cdr_kernel *k = op->kernels; y && w && bad && k->name; k++) {
        if ((k->needs & ~isa) || (k->reject && k->reject(a->attr, 2, 1, t))) continue;
        if (run_rows(k, a, true, 0, rows, 2, y) && memcmp(y, a->ptr[2], (size_t)(rows * row_bytes)) == 0 && run_rows(k, &from_rows, true, 0, rows, 2, y) &&
            memcmp(y, a->ptr[2], (size_t)(rows * row_bytes)) == 0)
            bad = NULL;
    }
    free(y), free(w);
    return bad;
}

static const char *linear_panels(const cdr_args *a)
{
    const char *bad = linear_rows_alone(a);
    return bad ? bad : as_from_rows(&cdr_op_linear, a);
}

static const char *dx_panels(const cdr_args *a)
{
    const char *bad = dx_rows_alone(a);
    return bad ? bad : as_from_rows(&cdr_op_linear_dx, a);
}

#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define FWD(nm, at, xt, wt, T, N, K, tl) { .name = nm, .op = &cdr_op_linear, .attr = &(at), .n_in = 2, .in = { M(xt, T, K), M(wt, N, K) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 } }, .grad = 3, .tol = tl, .property = linear_rows_alone }
#define VAL(nm, at, xt, wt, T, N, K, tl) { .name = nm, .op = &cdr_op_linear, .attr = &(at), .n_in = 2, .in = { M(xt, T, K), M(wt, N, K) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 } }, .tol = tl, .property = linear_rows_alone }
#define DX(nm, gt, wt, T, N, K, tl) { .name = nm, .op = &cdr_op_linear_dx, .n_in = 2, .in = { M(gt, T, N), M(wt, N, K) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 } }, .tol = tl, .property = dx_rows_alone }
#define DW(nm, gt, xt, T, N, K, tl) { .name = nm, .op = &cdr_op_linear_dw, .n_in = 2, .in = { M(gt, T, N), M(xt, T, K) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 } }, .tol = tl, .property = dw_rows_alone }
#define W(dt, lay, r, c) { .dtype = dt, .layout = lay, .n_dim = 2, .n = { r, c } }
#define VALP(nm, at, xt, wt, lay, T, N, K, tl) { .name = nm, .op = &cdr_op_linear, .attr = &(at), .n_in = 2, .in = { M(xt, T, K), W(wt, lay, N, K) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 } }, .tol = tl, .property = linear_panels }
#define DXP(nm, gt, wt, lay, T, N, K, tl) { .name = nm, .op = &cdr_op_linear_dx, .n_in = 2, .in = { M(gt, T, N), W(wt, lay, N, K) }, \
    .fill = { { 'n', 1, 0 }, { 'n', 1, 0 } }, .tol = tl, .property = dx_panels }

/* A chain of k F32 additions is off by about 2^-24 sqrt(k) / 2: 1.4e-6 at k = 2100. BF16: half an ulp is at most 2^-9 of a
 * value, 1.7e-3 in the root mean square; an F32 gradient that bf16dot rounds costs as much. */
const cdr_case cdr_cases_linear[] = {
    FWD("T96 N128 K64 f32", same, CDR_F32, CDR_F32, 96, 128, 64, 1e-6),
    FWD("T130 N67 K45 f32 tails", same, CDR_F32, CDR_F32, 130, 67, 45, 1e-6),
    FWD("T1 N33 K7 f32 one row", same, CDR_F32, CDR_F32, 1, 33, 7, 1e-6),
    FWD("T11 N1 K1 f32", same, CDR_F32, CDR_F32, 11, 1, 1, 1e-6),
    FWD("T96 N128 K64 bf16", same, CDR_BF16, CDR_BF16, 96, 128, 64, 3e-3),
    FWD("T130 N67 K45 bf16 tails", same, CDR_BF16, CDR_BF16, 130, 67, 45, 3e-3),
    FWD("T17 N64 K1 bf16", same, CDR_BF16, CDR_BF16, 17, 64, 1, 3e-3),
    FWD("T130 N67 K45 bf16 to f32", f32, CDR_BF16, CDR_BF16, 130, 67, 45, 1e-6),
    FWD("T13 N81 K50 f32 to bf16", bf16, CDR_F32, CDR_F32, 13, 81, 50, 3e-3),
    FWD("T13 N81 K50 bf16, w f32", same, CDR_BF16, CDR_F32, 13, 81, 50, 3e-3),
    FWD("T13 N81 K50 f32, w bf16", same, CDR_F32, CDR_BF16, 13, 81, 50, 1e-6),
    VAL("T5 N1100 K129 f32 split by columns", same, CDR_F32, CDR_F32, 5, 1100, 129, 1e-6),
    VAL("T70 N1100 K63 bf16 two blocks of columns", same, CDR_BF16, CDR_BF16, 70, 1100, 63, 3e-3),
    VAL("T29 N21 K2101 f32 two blocks of k", same, CDR_F32, CDR_F32, 29, 21, 2101, 5e-6),
    VAL("T31 N70 K4197 bf16 three blocks of k", same, CDR_BF16, CDR_BF16, 31, 70, 4197, 3e-3),
    VAL("T3 N140 K4197 bf16 to f32, blocks of k by columns", f32, CDR_BF16, CDR_BF16, 3, 140, 4197, 5e-6),
    DX("T130 N67 K45 f32", CDR_F32, CDR_F32, 130, 67, 45, 1e-6),
    DX("T130 N67 K45 bf16", CDR_BF16, CDR_BF16, 130, 67, 45, 3e-3),
    DX("T96 N64 K128 bf16, dy f32", CDR_F32, CDR_BF16, 96, 64, 128, 4e-3),
    DX("T1 N5 K130 bf16, dy f32", CDR_F32, CDR_BF16, 1, 5, 130, 4e-3),
    DX("T77 N2177 K18 f32 two blocks of k", CDR_F32, CDR_F32, 77, 2177, 18, 5e-6),
    DX("T6 N97 K1201 bf16 split by columns", CDR_BF16, CDR_BF16, 6, 97, 1201, 3e-3),
    VALP("T130 N67 K45 f32 panel16", same, CDR_F32, CDR_F32, CDR_PANEL16, 130, 67, 45, 1e-6),
    VALP("T130 N67 K45 f32 panel64", same, CDR_F32, CDR_F32, CDR_PANEL64, 130, 67, 45, 1e-6),
    VALP("T3 N140 K2101 f32 panel16, blocks of k", same, CDR_F32, CDR_F32, CDR_PANEL16, 3, 140, 2101, 5e-6),
    VALP("T1 N5 K7 f32, w bf16 panel16", same, CDR_F32, CDR_BF16, CDR_PANEL16, 1, 5, 7, 1e-6),
    VALP("T70 N200 K301 bf16 panel16", same, CDR_BF16, CDR_BF16, CDR_PANEL16, 70, 200, 301, 3e-3),
    VALP("T31 N70 K301 bf16 panel64", same, CDR_BF16, CDR_BF16, CDR_PANEL64, 31, 70, 301, 3e-3),
    VALP("T130 N67 K45 bf16 vnni64", same, CDR_BF16, CDR_BF16, CDR_VNNI64, 130, 67, 45, 3e-3),
    VALP("T1 N130 K64 bf16 vnni64 to f32", f32, CDR_BF16, CDR_BF16, CDR_VNNI64, 1, 130, 64, 1e-6),
    VALP("T70 N1100 K4197 bf16 vnni64, blocks of k", same, CDR_BF16, CDR_BF16, CDR_VNNI64, 70, 1100, 4197, 3e-3),
    DXP("T130 N67 K45 f32 panel16", CDR_F32, CDR_F32, CDR_PANEL16, 130, 67, 45, 1e-6),
    DXP("T6 N97 K1201 bf16 panel16", CDR_BF16, CDR_BF16, CDR_PANEL16, 6, 97, 1201, 3e-3),
    DXP("T77 N2177 K18 f32 panel64", CDR_F32, CDR_F32, CDR_PANEL64, 77, 2177, 18, 5e-6),
    DXP("T70 N67 K45 bf16 vnni64, dy f32", CDR_F32, CDR_BF16, CDR_VNNI64, 70, 67, 45, 4e-3),
    DXP("T130 N129 K64 bf16 vnni64", CDR_BF16, CDR_BF16, CDR_VNNI64, 130, 129, 64, 3e-3),
    DW("T130 N67 K45 f32", CDR_F32, CDR_F32, 130, 67, 45, 1e-6),
    DW("T130 N67 K45 bf16", CDR_BF16, CDR_BF16, 130, 67, 45, 1e-6),
    DW("T129 N96 K64 bf16, dy f32", CDR_F32, CDR_BF16, 129, 96, 64, 3e-3),
    DW("T2100 N70 K37 f32 two blocks of tokens", CDR_F32, CDR_F32, 2100, 70, 37, 5e-6),
    DW("T4197 N7 K130 bf16 three blocks of tokens", CDR_BF16, CDR_BF16, 4197, 7, 130, 5e-6),
    DW("T1 N19 K23 bf16 one token", CDR_BF16, CDR_BF16, 1, 19, 23, 1e-6),
    { .name = NULL }
};
