/* test_gemm.c: the matrix product (ops/linear/gemm.h) on every path of this machine, bit for bit:
 * against the chain of its class, written out; panels of each layout against rows, both ways across; the same bits for rows alone, other
 * threads and other numbers of columns. Shapes: ragged in each direction, odd k, one row to 40, more than one block of each kind.
 */
#include "test.h"
#include "device/device.h"
#include "ops/linear/gemm.h"

static const struct { int path; uint32_t needs; const char *name; bool bf16_only; } paths[] = {
    { CDR__GEMM_BASE, 0, "base", false },
    { CDR__GEMM_AVX2, CDR_ISA_AVX2, "avx2", false },
    { CDR__GEMM_AVX512, CDR_ISA_AVX512, "avx512", false },
    { CDR__GEMM_AVX512_BF16, CDR_ISA_AVX512_BF16, "avx512_bf16", true },
    { CDR__GEMM_AMX, CDR_ISA_AMX, "amx", true },
};
_Static_assert(CDR_COUNT(paths) == CDR__N_GEMM, "a path is not tested");

static void *aligned(size_t bytes)
{
    void *p = aligned_alloc(64, cdr_align_up(bytes + 64, 64));
    CDR_CHECK(p);
    memset(p, 0xff, cdr_align_up(bytes + 64, 64));           /* NaN in either dtype: what is read and is not there shows */
    return p;
}

static uint32_t random_bits(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

/* Values in (-1, 1), exact in BF16 where that is the dtype; dense [rows][cols]. */
static void *matrix(int dtype, int64_t rows, int64_t cols, uint32_t *state)
{
    void *p = aligned((size_t)cdr_dtype_bytes(dtype, rows * cols));
    for (int64_t i = 0; i < rows * cols; i++) {
        const float x = (float)((int32_t)random_bits(state) >> 8) * 0x1p-23f;
        if (dtype == CDR_F32) ((float *)p)[i] = x;
        else ((uint16_t *)p)[i] = cdr_f32_to_bf16(x);
    }
    return p;
}

static float value(int dtype, const void *p, int64_t i) { return dtype == CDR_F32 ? ((const float *)p)[i] : cdr_bf16_to_f32(((const uint16_t *)p)[i]); }

typedef struct { int64_t m, n, k; int at, bt, ct; bool a_cols, b_cols, add, upper; } shape;      /* _cols: stored transposed */

/* C of shape s, F32 or BF16, dense; W: stored matrix of B, or its panels. */
static void run(int path, const shape *s, const void *a, const void *b, int layout, int n_threads, void *c)
{
    const cdr__gemm_args g = {
        .m = s->m, .n = s->n, .k = s->k, .a = s->a_cols ? cdr__cols(s->at, a, s->m) : cdr__rows(s->at, a, s->k),
        .b = s->b_cols ? cdr__cols(s->bt, b, s->k) : cdr__rows(s->bt, b, s->n), .b_layout = layout, .b_across = !s->b_cols,
        .c = c, .c_dtype = s->ct, .c_pitch = s->n, .add = s->add, .upper = s->upper
    };
    const size_t bytes = cdr__gemm_work_bytes(path, s->m, s->n, s->k, n_threads);
    char *work = aligned(bytes + 64);
    cdr__gemm(path, &g, work, n_threads);
    for (int i = 0; i < 64; i++) if ((uint8_t)work[bytes + (size_t)i] != 0xff) T_CHECK(false && "writes behind its scratch");
    free(work);
}

static void *start_of_c(const shape *s) { uint32_t state = 77; return matrix(s->ct, s->m, s->n, &state); }

static bool same_bits(const char *what, const char *path, const shape *s, const void *got, const void *want)
{
    const size_t bytes = (size_t)cdr_dtype_bytes(s->ct, s->m * s->n);
    if (memcmp(got, want, bytes) == 0) return true;
    fprintf(stderr, "  %s, %s: m %lld n %lld k %lld, dtypes %d %d %d, a %s, b %s%s\n", path, what, (long long)s->m, (long long)s->n, (long long)s->k,
            s->at, s->bt, s->ct, s->a_cols ? "transposed" : "rows", s->b_cols ? "transposed" : "rows", s->add ? ", added" : "");
    return false;
}

/* The classes "base" and "fma" (gemm.h). */
static void by_definition(int path, const shape *s, const void *a, const void *b, void *c)
{
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            float acc = 0;
            for (int64_t p = 0; p < s->k; p++) {
                const float x = value(s->at, a, s->a_cols ? p * s->m + i : i * s->k + p), y = value(s->bt, b, s->b_cols ? j * s->k + p : p * s->n + j);
                if (path == CDR__GEMM_BASE) {
                    const float product = x * y;
                    acc = acc + product;
                } else acc = fmaf(x, y, acc);
            }
            if (s->add) acc = value(s->ct, c, i * s->n + j) + acc;
            if (s->ct == CDR_F32) ((float *)c)[i * s->n + j] = acc;
            else ((uint16_t *)c)[i * s->n + j] = cdr_f32_to_bf16(acc);
        }
}

/* B's matrix W is stored [n][k] (b_cols) or [k][n]. */
static void check_panels(int i_path, const shape *s, const void *a, const void *b, const void *want)
{
    static const int layouts[] = { CDR_VNNI64, CDR_PANEL16, CDR_PANEL64 };
    for (int l = 0; l < CDR_COUNT(layouts); l++) {
        cdr_type t = s->b_cols ? cdr_type_2d(s->bt, s->n, s->k) : cdr_type_2d(s->bt, s->k, s->n);
        if (!cdr_layout_takes(layouts[l], &t)) continue;
        t.layout = (uint8_t)layouts[l];
        void *panels = aligned(cdr_type_bytes(&t)), *c = start_of_c(s);
        cdr_panels_put(&t, 0, t.n[0], b, panels);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            free(c);
            c = start_of_c(s);
            run(paths[i_path].path, s, a, panels, layouts[l], n_threads, c);
            if (!same_bits(cdr_layout_row(layouts[l])->name, paths[i_path].name, s, c, want)) T_CHECK(false && "panels give other bits than rows");
        }
        free(panels);
        free(c);
    }
}

static void check(int i_path, const shape *s)
{
    uint32_t state = (uint32_t)(s->m * 31 + s->n * 7 + s->k);
    void *a = s->a_cols ? matrix(s->at, s->k, s->m, &state) : matrix(s->at, s->m, s->k, &state);
    void *b = s->b_cols ? matrix(s->bt, s->n, s->k, &state) : matrix(s->bt, s->k, s->n, &state);
    void *c = start_of_c(s), *again = start_of_c(s);
    const int path = paths[i_path].path;
    run(path, s, a, b, CDR_ROWS, 2, c);
    if (!paths[i_path].bf16_only) {
        by_definition(path, s, a, b, again);
        if (!same_bits("the chain", paths[i_path].name, s, c, again)) T_CHECK(false && "other bits than its class");
    }
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        free(again);
        again = start_of_c(s);
        run(path, s, a, b, CDR_ROWS, n_threads, again);
        if (!same_bits("threads", paths[i_path].name, s, again, c)) T_CHECK(false && "other bits with other threads");
    }
    check_panels(i_path, s, a, b, c);
    if (!s->a_cols && !s->upper && s->m > 0)         /* the last row alone, with the columns of a smaller n */
        for (int64_t n = s->n; n > 0; n = n > 3 ? n / 3 : 0) {
            shape one = *s;
            one.m = 1;
            one.n = s->b_cols ? n : s->n;            /* rows of B have its pitch */
            void *y = aligned((size_t)cdr_dtype_bytes(s->ct, one.n));
            const int64_t last = s->m - 1;
            void *first_c = start_of_c(s);
            memcpy(y, (char *)first_c + cdr_dtype_bytes(s->ct, last * s->n), (size_t)cdr_dtype_bytes(s->ct, one.n));
            run(path, &one, (const char *)a + cdr_dtype_bytes(s->at, last * s->k), b, CDR_ROWS, 1, y);
            if (!same_bits("a row alone", paths[i_path].name, &one, y, (const char *)c + cdr_dtype_bytes(s->ct, last * s->n)))
                T_CHECK(false && "a row has other bits alone");
            free(first_c);
            free(y);
        }
    free(a);
    free(b);
    free(c);
    free(again);
}

static bool have(int i_path) { return (paths[i_path].needs & ~cdr_cpu_isa(NULL)) == 0; }

/* Every mix of dtypes and orientations of one size, with and without add. */
static void all_kinds(int64_t m, int64_t n, int64_t k)
{
    for (int i = 0; i < CDR_COUNT(paths); i++)
        for (int kind = 0; kind < 64 && have(i); kind++) {
            const shape s = { m, n, k, kind & 1, kind >> 1 & 1, kind >> 2 & 1, (kind >> 3 & 1) != 0, (kind >> 4 & 1) != 0, (kind >> 5 & 1) != 0, false };
            check(i, &s);
        }
}

/* A model's kind: BF16 weights stored [n][k], read forward and backward. */
static void weights(int64_t m, int64_t n, int64_t k)
{
    for (int i = 0; i < CDR_COUNT(paths); i++)
        for (int kind = 0; kind < 4 && have(i); kind++) {
            const shape s = { m, n, k, CDR_BF16, (kind & 2) != 0 && !paths[i].bf16_only ? CDR_F32 : CDR_BF16, CDR_BF16, false, (kind & 1) != 0, false, false };
            check(i, &s);
        }
}

static void rows_1_to_40(void)
{
    for (int64_t m = 1; m <= 40; m += t_quick() ? 13 : 1) weights(m, 67 + m, 131 + 3 * m);
}

static void ragged(void)
{
    static const int64_t n[] = { 1, 15, 16, 17, 63, 64, 65, 130 }, k[] = { 1, 2, 31, 32, 33, 65 };
    for (int i = 0; i < CDR_COUNT(n); i += t_quick() ? 3 : 1)
        for (int j = 0; j < CDR_COUNT(k); j++) weights(1 + 5 * (i + j), n[i], k[j]);
}

static void kinds(void)
{
    all_kinds(7, 33, 35);
    all_kinds(37, 81, 50);
}

static void empty(void)
{
    all_kinds(5, 17, 0);
    all_kinds(0, 17, 5);
    all_kinds(5, 0, 5);
}

/* More pieces, blocks of k, blocks of rows and of columns than one. */
static void blocks(void)
{
    weights(3, 200, 4400);
    weights(20, 70, 2600);
    weights(150, 1100, 70);
    if (!t_quick()) weights(300, 130, 4400);
}

static void upper(void)
{
    for (int i = 0; i < CDR_COUNT(paths); i++)
        for (int64_t n = 30; n <= 200 && have(i); n += 85) {
            const shape s = { n, n, 40, CDR_BF16, CDR_BF16, CDR_F32, false, true, false, false };
            shape half = s;
            half.upper = true;
            uint32_t state = 5;
            void *a = matrix(s.at, n, s.k, &state), *b = matrix(s.bt, n, s.k, &state);
            float *all = start_of_c(&s), *c = start_of_c(&s);
            run(paths[i].path, &s, a, b, CDR_ROWS, 2, all);
            run(paths[i].path, &half, a, b, CDR_ROWS, 2, c);
            for (int64_t r = 0; r < n; r++) T_CHECK(memcmp(c + r * n + r, all + r * n + r, (size_t)(n - r) * sizeof *c) == 0);
            free(a);
            free(b);
            free(c);
            free(all);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1) t_filter = argv[1];
    T_RUN(rows_1_to_40);
    T_RUN(ragged);
    T_RUN(kinds);
    T_RUN(empty);
    T_RUN(blocks);
    T_RUN(upper);
    return t_end();
}
