/* type.c: shapes and their sizes in memory. A type is plain data; all sizes here are of one rank, and a product that
 * overflows is a bug of the caller: sizes from a file are checked where the file is read.
 */
#include "tensor/tensor.h"

static const cdr_layout_info layout_rows[CDR_N_LAYOUTS] = {
    [CDR_ROWS]    = { "rows", "row-major, with a pitch between rows", 0, 1 },
    [CDR_VNNI64]  = { "vnni64", "[n/64][k/2][64][2] panels of a [n][k] matrix, for products of BF16 pairs", 64, 2 },
    [CDR_PANEL16] = { "panel16", "[n/16][k][16] panels of a [n][k] matrix, for AVX2", 16, 1 },
    [CDR_PANEL64] = { "panel64", "[n/64][k][64] panels of a [n][k] matrix, for AVX-512 in F32", 64, 1 },
    [CDR_MAPPED]  = { "mapped", "addresses of packed matrices in a mapped file", 0, 1 },
};

const cdr_layout_info *cdr_layout_row(int layout)
{
    CDR_CHECK(layout >= 0 && layout < CDR_N_LAYOUTS);
    return &layout_rows[layout];
}

static int64_t mul(int64_t a, int64_t b)
{
    int64_t x;
    CDR_CHECK(!__builtin_mul_overflow(a, b, &x));
    return x;
}

static cdr_type type_of(int dtype, int n_dim, const int64_t *n)
{
    cdr_type t = { .dtype = (uint8_t)dtype, .layout = CDR_ROWS, .n_dim = (uint8_t)n_dim };
    CDR_CHECK(dtype >= 0 && dtype < CDR_N_DTYPES);
    for (int i = 0; i < n_dim; i++) t.n[i] = n[i];
    return t;
}

cdr_type cdr_type_1d(int dtype, int64_t n) { return type_of(dtype, 1, (int64_t[]){ n }); }
cdr_type cdr_type_2d(int dtype, int64_t rows, int64_t cols) { return type_of(dtype, 2, (int64_t[]){ rows, cols }); }
cdr_type cdr_type_3d(int dtype, int64_t a, int64_t b, int64_t c) { return type_of(dtype, 3, (int64_t[]){ a, b, c }); }

int64_t cdr_type_cols(const cdr_type *t) { return t->n_dim == 0 ? 1 : t->n[t->n_dim - 1]; }

int64_t cdr_type_rows(const cdr_type *t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->n_dim; i++) rows = mul(rows, t->n[i]);
    return rows;
}

int64_t cdr_type_elems(const cdr_type *t) { return mul(cdr_type_rows(t), cdr_type_cols(t)); }

/* A dense matrix without columns still has a pitch of 1: it is divided by. */
int64_t cdr_type_pitch(const cdr_type *t) { return t->pitch > 0 ? t->pitch : CDR_MAX(cdr_type_cols(t), (int64_t)1); }

size_t cdr_type_bytes(const cdr_type *t)
{
    int64_t rows = cdr_type_rows(t), cols = cdr_type_cols(t);
    if (rows == 0 || cols == 0) return 0;
    if (t->layout != CDR_ROWS) return (size_t)mul(rows / t->n[t->n_dim - 2], (int64_t)cdr_matrix_bytes(t));
    int64_t pitch = cdr_type_pitch(t);
    CDR_CHECK(pitch >= cols);
    int64_t before;                             /* elements before the last row's end */
    CDR_CHECK(!__builtin_add_overflow(mul(rows - 1, pitch), cols, &before));
    return (size_t)cdr_dtype_bytes(t->dtype, before);
}

size_t cdr_matrix_bytes(const cdr_type *t)
{
    const cdr_layout_info *l = cdr_layout_row(t->layout);
    CDR_CHECK(t->n_dim >= 2);
    int64_t n = t->n[t->n_dim - 2], k = t->n[t->n_dim - 1];
    if (t->layout == CDR_MAPPED) return sizeof(cdr_mapped);
    if (l->rows > 0) n = mul(cdr_ceil_div(n, l->rows), l->rows), k = mul(cdr_ceil_div(k, l->pair), l->pair);
    return (size_t)cdr_dtype_bytes(t->dtype, mul(n, k));
}

size_t cdr_mapped_bytes(const cdr_type *t)
{
    cdr_type rows = *t;
    rows.layout = CDR_ROWS;
    return t->layout == CDR_MAPPED ? cdr_type_bytes(&rows) : 0;
}

bool cdr_type_same(const cdr_type *a, const cdr_type *b)
{
    if (a->dtype != b->dtype || a->layout != b->layout || a->n_dim != b->n_dim) return false;
    for (int i = 0; i < a->n_dim; i++)
        if (a->n[i] != b->n[i]) return false;
    return true;
}

void cdr_type_print(char out[64], const cdr_type *t)
{
    char shape[CDR_MAX_DIM * 24], pitch[32] = "";
    int at = 0;
    shape[0] = 0;
    for (int i = 0; i < t->n_dim; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", i ? "," : "", (long long)t->n[i]);
    if (t->pitch > 0 && t->pitch != cdr_type_cols(t)) snprintf(pitch, sizeof pitch, " pitch %lld", (long long)t->pitch);
    bool plain = t->layout == CDR_ROWS;
    const char *name = t->dtype < CDR_N_DTYPES ? cdr_dtype_row(t->dtype)->name : "none";
    snprintf(out, 64, "%s[%s%s]%s%s", name, shape, pitch, plain ? "" : " ", plain ? "" : cdr_layout_row(t->layout)->name);
}

int64_t cdr_dtype_bytes(int dtype, int64_t n)
{
    const cdr_dtype_info *d = cdr_dtype_row(dtype);
    CDR_CHECK(n >= 0 && n % d->block_elems == 0);
    return mul(n / d->block_elems, d->block_bytes);
}
