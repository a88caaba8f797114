/* weights.c: an expert's matrices as the B operand of a product, packed by blocks of columns, and what they are made of where they do not
 * lie in memory as they are used: with an adapter, an element is
 *   w_ij = W_ij + sum over k, ascending, of (scale B_ik) A_kj                                                      (1)
 * in F32, one chain that begins with the base's value, so that B = 0 leaves the base's bits, and the same chain whichever way the
 * matrix is read. Packed weights (MXFP4) are unpacked. Such values are made in a block of the matrix that stays in cache, never for more
 * than the panel. */
#include "ops/experts/kernel.h"

enum { BLOCK_ROWS = 64, BLOCK_COLS = 128 };      /* of the matrix, as it lies: multiples of every nr */

static int64_t round_up(int64_t x, int64_t to) { return cdr_ceil_div(x, to) * to; }

static bool adapted(const experts *x, int operand)
{
    return operand <= CDR__EX_W2 && cdr__experts_rank(x, operand - CDR__EX_W1) > 0;
}

static bool made(const experts *x, int operand) { return adapted(x, operand) || !cdr_is_real(&x->t[operand]); }

cdr__experts_block cdr__experts_block_take(const experts *x, bump *b)
{
    cdr__experts_block k = { NULL, NULL, NULL };
    int64_t rank = 0;
    bool any = false;
    for (int m = 0; m < 3; m++) {
        any = any || made(x, CDR__EX_W1 + m);
        rank = CDR_MAX(rank, cdr__experts_rank(x, m));
    }
    if (!any) return k;
    k.values = bump_floats(b, BLOCK_ROWS * BLOCK_COLS);
    if (rank == 0) return k;
    k.factor = bump_floats(b, BLOCK_ROWS * rank);
    k.adapter = bump_take(b, (size_t)(BLOCK_COLS * rank) * 4);
    return k;
}

panels cdr__experts_panels(const experts *x, int operand, bool transposed, const cdr__experts_block *block, bump *b)
{
    const cdr_type *t = &x->t[operand];
    panels w = { .operand = operand, .transposed = transposed, .k = t->n[transposed ? 2 : 1], .n = t->n[transposed ? 1 : 2], .expert = -1, .block = *block };
    w.cols = CDR_MIN(round_up(w.n, x->isa->gemm->nr), CDR_MAX(PANEL_UNITS / w.k / BLOCK_ROWS, 1) * BLOCK_ROWS);
    w.b = bump_take(b, (size_t)(w.cols * w.k) * 4);
    return w;
}

/* First byte of row i of expert e's matrix of an operand; only w1, w3, w2 are in the table */
static char *row_at(const experts *x, int operand, int64_t e, int64_t i)
{
    const cdr_type *t = &x->t[operand], *table = &x->t[CDR__EX_TABLE];
    const int64_t *at = operand <= CDR__EX_W2 ? x->ptr[CDR__EX_TABLE] : NULL, row = i * cdr_type_pitch(t);
    if (e >= x->E_home) return (char *)x->slots[operand - CDR__EX_W1] + cdr_dtype_bytes(t->dtype, ((e - x->E_home) * t->n[1] + i) * t->n[2]);
    if (!at) return (char *)x->ptr[operand] + cdr_dtype_bytes(t->dtype, e * t->n[1] * cdr_type_pitch(t) + row);
    return (char *)x->ptr[operand] + at[e * cdr_type_pitch(table) + operand - CDR__EX_W1] + cdr_dtype_bytes(t->dtype, row);
}

/* Adds (1)'s sum to rows i .. of the block, whose columns are those that block.adapter holds. */
static void add_adapter(const experts *x, const panels *w, int64_t i, int64_t rows, int64_t cols)
{
    const int m = w->operand - CDR__EX_W1;
    const cdr_type *t = &x->t[CDR__EX_B1 + 2 * m];
    const int64_t rank = t->n[2];
    for (int64_t r = 0; r < rows; r++) {
        float *f = w->block.factor + r * rank;
        cdr_to_f32(t->dtype, row_at(x, CDR__EX_B1 + 2 * m, w->expert, i + r), f, rank);
        for (int64_t k = 0; k < rank; k++) f[k] *= x->at->scale[m];
    }
    cdr__experts_product(x->isa->gemm, &(cdr__product){ .m = rows, .k = rank, .n = cols, .a = w->block.factor, .a_row = rank, .a_col = 1,
        .a_group = x->isa->gemm->mr * rank, .b = w->block.adapter, .c = w->block.values, .ldc = BLOCK_COLS });
}

static void pack_adapter(const experts *x, const panels *w, int64_t col, int64_t cols)
{
    const int operand = CDR__EX_A1 + 2 * (w->operand - CDR__EX_W1);
    const cdr_type *t = &x->t[operand];
    x->isa->gemm->pack_b[t->dtype][0](&(cdr__pack){ .src = row_at(x, operand, w->expert, 0) + cdr_dtype_bytes(t->dtype, col), .pitch = cdr_type_pitch(t),
        .n_i = cols, .n_p = t->n[1], .dst = w->block.adapter, .ld = x->isa->gemm->nr * t->n[1] });
}

/* Columns j .. of B, from values that are made block by block. Where the matrix is read transposed, its rows are the columns of B. */
static void pack_made(const experts *x, const panels *w, int64_t j, int64_t n)
{
    const cdr_type *t = &x->t[w->operand];
    const int64_t nr = x->isa->gemm->nr, row0 = w->transposed ? j : 0, row1 = w->transposed ? j + n : w->k;
    const int64_t col0 = w->transposed ? 0 : j, col1 = w->transposed ? w->k : j + n;
    for (int64_t c = col0; c < col1; c += BLOCK_COLS) {
        const int64_t cols = CDR_MIN(col1 - c, BLOCK_COLS);
        if (adapted(x, w->operand)) pack_adapter(x, w, c, cols);
        for (int64_t i = row0; i < row1; i += BLOCK_ROWS) {
            const int64_t rows = CDR_MIN(row1 - i, BLOCK_ROWS);
            for (int64_t r = 0; r < rows; r++)
                cdr_to_f32(t->dtype, row_at(x, w->operand, w->expert, i + r) + cdr_dtype_bytes(t->dtype, c), w->block.values + r * BLOCK_COLS, cols);
            if (adapted(x, w->operand)) add_adapter(x, w, i, rows, cols);
            cdr__pack p = { .src = w->block.values, .pitch = BLOCK_COLS, .n_i = cols, .n_p = rows, .dst = w->b + (c - j) * w->k + i * nr, .ld = nr * w->k };
            if (w->transposed) p.n_i = rows, p.n_p = cols, p.dst = w->b + (i - j) * w->k + c * nr;
            x->isa->gemm->pack_b[CDR_F32][w->transposed](&p);
        }
    }
}

static void pack(const experts *x, panels *w, int64_t e, int64_t j, int64_t cols)
{
    const cdr_type *t = &x->t[w->operand];
    const int64_t pitch = cdr_type_pitch(t);
    w->expert = e;
    if (made(x, w->operand)) pack_made(x, w, j, cols);
    else x->isa->gemm->pack_b[t->dtype][w->transposed](&(cdr__pack){ .src = row_at(x, w->operand, e, 0) + cdr_dtype_bytes(t->dtype, w->transposed ? j * pitch : j),
        .pitch = pitch, .n_i = cols, .n_p = w->k, .dst = w->b, .ld = x->isa->gemm->nr * w->k });
    if (cols != w->n) w->expert = -1;            /* a part of the columns is packed again for every tile */
}

void cdr__experts_mul(const experts *x, panels *w, int64_t e, cdr__product p)
{
    p.k = w->k;
    p.b = w->b;
    p.a_col = 1;
    p.a_group = x->isa->gemm->mr * p.a_row;
    p.padded = true;
    float *c = p.c;
    for (int64_t j = 0; j < w->n; j += w->cols) {
        p.n = CDR_MIN(w->n - j, w->cols);
        p.c = c + j;
        if (w->expert != e) pack(x, w, e, j, p.n);
        cdr__experts_product(x->isa->gemm, &p);
    }
}
