/* weights.c: an expert's matrices as the B operand of a product, packed by blocks of columns, and what they are made of where they do not
 * lie in memory as they are used: with an adapter, an element is
 *   w_ij = W_ij + sum over k, ascending, of (scale B_ik) A_kj                                                      (1)
 * in F32, one chain that begins with the base's value, so that B = 0 leaves the base's bits, and the same chain whichever way the
 * matrix is read. Such values are made in a block of the matrix that stays in cache, never for more than the panel. A product of BF16 would
 * round them: there the base's product is followed by the factors' own, (x A^T)(scale B)^T, in F32, which adds 0 where B = 0. Packed weights
 * (MXFP4) are unpacked into panels (unpack.h), from rows in memory or from a mapped file (tensor.h), to the same bits.
 *
 * A small matrix is packed once for all tiles of its expert. Of a large one, pieces of COLS columns and some of k are packed into what L1 and
 * L2 hold and used at once for all rows of the tile, while what the next piece is made of is fetched.
 *
 * A matrix in panels (tensor.h) is read as it lies by the forward of the kernel that it was laid for, BF16 widened on its way into L1 where
 * products are of F32; across its rows, or by another kernel, it is packed like any other. */
#include "ops/experts/kernel.h"

enum { BLOCK_ROWS = 64, BLOCK_COLS = 128 };      /* of the matrix, as it lies: multiples of every nr */
enum { COLS = 64 };                              /* of a piece: a multiple of every nr, and of MXFP4's blocks */
enum { MX = 32 };                                /* elements of a block of MXFP4 */

static int64_t round_up(int64_t x, int64_t to) { return cdr_ceil_div(x, to) * to; }

static int64_t rank_of(const experts *x, int operand) { return operand <= CDR__EX_W2 ? cdr__experts_rank(x, operand - CDR__EX_W1) : 0; }

/* Are values of the matrix made, (1)? Else its adapter, if it has one, is a product of its own. */
static bool made(const experts *x, const panels *w) { return w->isa->pair == 1 && rank_of(x, w->operand) > 0; }

/* Units between rows of a packed A: a line more than they are long, so that they do not fall into one set of L1. */
static int64_t a_units(const cdr__gemm_isa *isa, int64_t k)
{
    return round_up(cdr_ceil_div(k, isa->pair), CDR_MAX(isa->step, 16)) + 16;
}

cdr__experts_block cdr__experts_block_take(const experts *x, bump *b)
{
    const cdr__gemm_isa *isa = x->isa->gemm;
    cdr__experts_block k = { NULL, NULL, NULL, NULL, NULL };
    int64_t rank = 0;
    int64_t widest = CDR_MAX(x->L, x->I);
    for (int m = 0; m < 3; m++) {
        rank = CDR_MAX(rank, cdr__experts_rank(x, m));
        widest = CDR_MAX(widest, x->low[m]);
    }
    if (x->streams) k.piece = bump_take(b, (size_t)CDR_MAX(COLS * isa->kb, isa->nr * isa->kb_in_place) * 4);
    if (isa->pair == 2) k.a = bump_take(b, (size_t)(round_up(x->tile, isa->mr) * a_units(isa, widest)) * 4);
    if (rank == 0 || isa->pair == 2) return k;
    k.values = bump_floats(b, BLOCK_ROWS * BLOCK_COLS);
    k.factor = bump_floats(b, BLOCK_ROWS * rank);
    k.adapter = bump_take(b, (size_t)(BLOCK_COLS * rank) * 4);
    return k;
}

panels cdr__experts_panels(const experts *x, int operand, bool transposed, const cdr__experts_block *block, bump *b)
{
    const cdr_type *t = &x->t[operand];
    const bool own = operand <= CDR__EX_W2;
    const cdr__gemm_isa *isa = own || !cdr__ex_fused(x->t, (operand - CDR__EX_A1) / 2) ? x->isa->gemm : x->isa->wide;
    panels w = { .isa = isa, .operand = operand, .transposed = transposed, .k = t->n[transposed ? 2 : 1], .n = t->n[transposed ? 1 : 2], .expert = -1, .block = *block };
    w.units = round_up(cdr_ceil_div(w.k, isa->pair), isa->step);
    w.whole = !x->streams || !own;
    w.b = w.whole ? bump_take(b, (size_t)(round_up(w.n, isa->nr) * w.units) * 4) : block->piece;
    if (isa->pair == 2 && rank_of(x, operand) > 0) {
        const int a = CDR__EX_A1 + 2 * (operand - CDR__EX_W1);
        const panels first = cdr__experts_panels(x, transposed ? a : a + 1, transposed, block, b);
        const panels second = cdr__experts_panels(x, transposed ? a + 1 : a, transposed, block, b);
        w.ld_low = cdr__experts_ld(x->isa, first.n);
        w.low_y = bump_floats(b, x->tile * w.ld_low);
        w.low = bump_take(b, 2 * sizeof first);
        if (w.low) w.low[0] = first, w.low[1] = second;
    }
    return w;
}

/* First byte of row i of expert e's matrix of an operand, or of the matrix, i = 0, in panels, or of its addresses where they are mapped;
 * only w1, w3, w2 are in the table */
static char *row_at(const experts *x, int operand, int64_t e, int64_t i)
{
    const cdr_type *t = &x->t[operand], *table = &x->t[CDR__EX_TABLE];
    const int64_t *at = operand <= CDR__EX_W2 ? x->ptr[CDR__EX_TABLE] : NULL, row = i * cdr_type_pitch(t);
    assert(t->layout == CDR_ROWS || (i == 0 && e < x->E_home));
    if (e >= x->E_home) return (char *)x->slots[operand - CDR__EX_W1] + cdr_dtype_bytes(t->dtype, ((e - x->E_home) * t->n[1] + i) * t->n[2]);
    if (at) return (char *)x->ptr[operand] + at[e * cdr_type_pitch(table) + operand - CDR__EX_W1] + cdr_dtype_bytes(t->dtype, row);
    if (t->layout != CDR_ROWS) return (char *)x->ptr[operand] + (size_t)e * cdr_matrix_bytes(t);
    return (char *)x->ptr[operand] + cdr_dtype_bytes(t->dtype, e * t->n[1] * cdr_type_pitch(t) + row);
}

/* Packed rows from (row, col) on: where they lie, in memory or in a mapped file */
static cdr__packed packed_at(const experts *x, int operand, int64_t e, int64_t row, int64_t col)
{
    const cdr_type *t = &x->t[operand];
    assert(t->dtype == CDR_MXFP4 && col % MX == 0);
    if (t->layout != CDR_MAPPED) {
        const int64_t step = cdr_dtype_bytes(CDR_MXFP4, MX), pitch = cdr_dtype_bytes(CDR_MXFP4, cdr_type_pitch(t));
        const uint8_t *at = (const uint8_t *)row_at(x, operand, e, row) + col / MX * step;
        return (cdr__packed){ .codes = at, .scales = at + MX / 2, .code_row = pitch, .code_step = step, .scale_row = pitch, .scale_step = step };
    }
    const cdr_mapped *m = (const cdr_mapped *)(const void *)row_at(x, operand, e, 0);
    const int64_t n = cdr_type_cols(t) / MX, at = row * n + col / MX;
    return (cdr__packed){ .codes = m->codes + at * (MX / 2), .scales = m->scales + at, .code_row = n * (MX / 2), .code_step = MX / 2, .scale_row = n, .scale_step = 1 };
}

/* n elements from (row, col) on, of the base, as F32 */
static void base_values(const experts *x, const panels *w, int64_t row, int64_t col, float *dst, int64_t n)
{
    const cdr_type *t = &x->t[w->operand];
    if (t->layout != CDR_MAPPED) {
        cdr_to_f32(t->dtype, row_at(x, w->operand, w->expert, row) + cdr_dtype_bytes(t->dtype, col), dst, n);
        return;
    }
    const cdr__packed s = packed_at(x, w->operand, w->expert, row, col);
    const int64_t step = cdr_dtype_bytes(CDR_MXFP4, MX);
    uint8_t blocks[BLOCK_COLS];                      /* as rows in memory have them, whose conversion is the fast one */
    for (int64_t b = 0; b < n / MX; b++) {
        memcpy(blocks + b * step, s.codes + b * s.code_step, MX / 2);
        blocks[b * step + MX / 2] = s.scales[b * s.scale_step];
    }
    cdr_to_f32(CDR_MXFP4, blocks, dst, n);
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
    const cdr__gemm_isa *isa = x->isa->wide;
    cdr__experts_product(isa, &(cdr__product){ .m = rows, .k = rank, .n = cols, .a = (const uint32_t *)(const void *)w->block.factor, .a_row = rank, .a_col = 1,
        .a_group = isa->mr * rank, .b = w->block.adapter, .b_ld = isa->nr * rank, .c = w->block.values, .ldc = BLOCK_COLS });
}

static void pack_adapter(const experts *x, const panels *w, int64_t col, int64_t cols)
{
    const int operand = CDR__EX_A1 + 2 * (w->operand - CDR__EX_W1);
    const cdr_type *t = &x->t[operand];
    x->isa->wide->pack_b[t->dtype][0](&(cdr__pack){ .src = row_at(x, operand, w->expert, 0) + cdr_dtype_bytes(t->dtype, col), .pitch = cdr_type_pitch(t),
        .n_i = cols, .n_p = t->n[1], .dst = w->block.adapter, .ld = x->isa->wide->nr * t->n[1] });
}

/* A part of B: columns j .. j + cols, elements k0 .. k0 + k along k, to panels ld units apart */
typedef struct { int64_t j, cols, k0, k; uint32_t *b; int64_t ld; } part;

/* From values that are made block by block. Where the matrix is read transposed, its rows are the columns of B. */
static void pack_made(const experts *x, const panels *w, const part *q)
{
    const cdr__gemm_isa *isa = w->isa;
    const bool tr = w->transposed;
    const int64_t row0 = tr ? q->j : q->k0, rows = tr ? q->cols : q->k, col0 = tr ? q->k0 : q->j, cols = tr ? q->k : q->cols;
    for (int64_t c = 0; c < cols; c += BLOCK_COLS) {
        const int64_t n_c = CDR_MIN(cols - c, BLOCK_COLS);
        pack_adapter(x, w, col0 + c, n_c);
        for (int64_t i = 0; i < rows; i += BLOCK_ROWS) {
            const int64_t n_r = CDR_MIN(rows - i, BLOCK_ROWS);
            for (int64_t r = 0; r < n_r; r++) base_values(x, w, row0 + i + r, col0 + c, w->block.values + r * BLOCK_COLS, n_c);
            add_adapter(x, w, row0 + i, n_r, n_c);
            cdr__pack p = { .src = w->block.values, .pitch = BLOCK_COLS, .n_i = n_c, .n_p = n_r, .dst = q->b + c / isa->nr * q->ld + i * isa->nr, .ld = q->ld };
            if (tr) p.n_i = n_r, p.n_p = n_c, p.dst = q->b + i / isa->nr * q->ld + c * isa->nr;
            isa->pack_b[CDR_F32][tr](&p);
        }
    }
}

/* Element (i, p) of a matrix in panels, in elements from the first */
static int64_t panel_at(const cdr_type *t, int64_t i, int64_t p)
{
    return cdr__panel_elem(t->layout, t->n[2], i, p);
}

static uint32_t unit_at(const cdr_type *t, int pair, const char *base, int64_t i, int64_t p)
{
    return pair == 1 ? cdr__bits(cdr__load(t->dtype, base, panel_at(t, i, p))) : cdr__load_bf16(t->dtype, base, panel_at(t, i, p));
}

/* From panels, unit by unit. Panels of the kernel's own that are read across have k contiguous, R rows of the matrix at a time. */
static void pack_panels(const experts *x, const panels *w, const part *q)
{
    const cdr__gemm_isa *isa = w->isa;
    const cdr_type *t = &x->t[w->operand];
    const char *base = row_at(x, w->operand, w->expert, 0);
    const int64_t nr = isa->nr, pair = isa->pair;
    if (!w->transposed && t->layout == isa->layout && q->k0 % nr == 0) {
        for (int64_t k = 0; k < q->k; k += nr)
            for (int64_t j = 0; j < q->cols; j += nr) {
                const cdr__pack s = { .src = base + cdr_dtype_bytes(t->dtype, panel_at(t, q->k0 + k, q->j + j)), .pitch = nr, .n_i = CDR_MIN(q->cols - j, nr),
                                      .n_p = CDR_MIN(q->k - k, nr), .dst = q->b + j / nr * q->ld + k / pair * nr, .ld = q->ld };
                if (pair == 2) isa->pack_across(&s);
                else isa->pack_b[t->dtype][1](&s);
            }
        return;
    }
    for (int64_t j = 0; j < round_up(q->cols, nr); j++)
        for (int64_t k = 0; k < q->k; k += pair) {
            uint32_t u = 0;
            for (int64_t h = 0; h < pair && k + h < q->k && j < q->cols; h++)
                u |= unit_at(t, isa->pair, base, w->transposed ? q->j + j : q->k0 + k + h, w->transposed ? q->k0 + k + h : q->j + j) << 16 * h;
            q->b[j / nr * q->ld + k / pair * nr + j % nr] = u;
        }
}

static void pack(const experts *x, const panels *w, const part *q)
{
    const cdr__gemm_isa *isa = w->isa;
    const cdr_type *t = &x->t[w->operand];
    const int64_t there = cdr_ceil_div(q->k, isa->pair), all = round_up(there, isa->step);
    const int64_t row = w->transposed ? q->j : q->k0, col = w->transposed ? q->k0 : q->j;
    if (made(x, w)) pack_made(x, w, q);
    else if (t->dtype == CDR_MXFP4) {
        cdr__packed p = packed_at(x, w->operand, w->expert, row, col);
        p.n_i = q->cols, p.n_p = q->k, p.dst = q->b, p.ld = q->ld;
        x->isa->unpack[w->transposed](&p);
    } else if (t->layout != CDR_ROWS) pack_panels(x, w, q);
    else {
        const cdr__pack p = { .src = row_at(x, w->operand, w->expert, row) + cdr_dtype_bytes(t->dtype, col), .pitch = cdr_type_pitch(t), .n_i = q->cols,
                              .n_p = q->k, .dst = q->b, .ld = q->ld };
        isa->pack_b[t->dtype][w->transposed](&p);
    }
    for (int64_t i = 0; i < q->cols && there < all; i += isa->nr)            /* a step that k does not fill */
        memset(q->b + i / isa->nr * q->ld + there * isa->nr, 0, (size_t)((all - there) * isa->nr) * 4);
}

/* The matrix lies as the product reads it. */
static bool in_place(const experts *x, const panels *w)
{
    const cdr__gemm_isa *isa = w->isa;
    const cdr_type *t = &x->t[w->operand];
    if (t->layout == CDR_ROWS || t->layout != isa->layout || !w->transposed) return false;
    return isa->pair == 1 || (t->dtype == CDR_BF16 && w->units == cdr_ceil_div(w->k, isa->pair));
}

/* The bytes of the matrix that a piece is made of; *scales: those of a mapped one, which lie elsewhere */
static cdr__fetch fetch_of(const experts *x, const panels *w, const part *q, cdr__fetch *scales)
{
    const cdr_type *t = &x->t[w->operand];
    const int64_t row = w->transposed ? q->j : q->k0, col = w->transposed ? q->k0 : q->j;
    const int64_t rows = w->transposed ? q->cols : q->k, cols = w->transposed ? q->k : q->cols;
    if (t->layout == CDR_MAPPED) {
        const cdr__packed s = packed_at(x, w->operand, w->expert, row, col);
        *scales = (cdr__fetch){ .p = (const char *)s.scales, .pitch = s.scale_row, .lines = cols / MX / 64 + 1 };
        cdr__fetch codes = { .p = (const char *)s.codes, .pitch = s.code_row, .lines = cols / 2 / 64 + 1, .then = scales };
        scales->n = rows * scales->lines;
        codes.n = rows * codes.lines;
        return codes;
    }
    cdr__fetch f = { .p = row_at(x, w->operand, w->expert, row) + cdr_dtype_bytes(t->dtype, col), .pitch = cdr_dtype_bytes(t->dtype, cdr_type_pitch(t)),
                .lines = cdr_dtype_bytes(t->dtype, cols) / 64 + 1 };
    f.n = rows * f.lines;
    return f;
}

/* The piece that follows q: along the block of k from c0 on, then the next columns, then the next block; k = 0: none */
static part next_piece(const panels *w, const part *q, int64_t c0, int64_t kc, int64_t kb)
{
    part n = { .j = q->j, .k0 = q->k0 + kb };
    if (n.k0 >= CDR_MIN(c0 + kc, w->k)) n.k0 = c0, n.j += COLS;
    if (n.j >= w->n) n.j = 0, n.k0 = c0 = c0 + kc;
    n.cols = CDR_MIN(w->n - n.j, COLS);
    n.k = n.k0 < w->k ? CDR_MIN(CDR_MIN(w->k, c0 + kc) - n.k0, kb) : 0;
    return n;
}

static void mul_pieces(const experts *x, panels *w, const cdr__product *p)
{
    const cdr__gemm_isa *isa = w->isa;
    const int64_t kb = isa->kb * isa->pair, kc = cdr__experts_block_k(isa, p->m, w->units) * isa->pair;
    const int64_t tiles = cdr_ceil_div(p->m, isa->mr);
    const int layout = x->t[w->operand].layout;
    part q = { .b = w->b, .cols = CDR_MIN(w->n, COLS), .k = CDR_MIN(CDR_MIN(kc, kb), w->k) };
    for (int64_t c0 = 0; q.k > 0; c0 = q.k0) {
        while (q.k > 0 && q.k0 < c0 + kc) {
            const part n = next_piece(w, &q, c0, kc, kb);
            q.ld = round_up(cdr_ceil_div(q.k, isa->pair), isa->step) * isa->nr;
            cdr__fetch next = { 0 }, scales = { 0 };
            if (n.k > 0 && (layout == CDR_ROWS || layout == CDR_MAPPED)) next = fetch_of(x, w, &n, &scales);
            pack(x, w, &q);
            cdr__product r = *p;
            r.n = q.cols;
            r.k = q.ld / isa->nr;
            r.a = p->a + q.k0 / isa->pair * p->a_col;
            r.b = q.b;
            r.b_ld = q.ld;
            r.c = p->c + q.j;
            r.first = p->first && q.k0 == 0;
            r.fetch = &next;         /* fetched beside the tiles, so that packing finds it in cache */
            r.some = cdr_ceil_div(next.n + scales.n, tiles * cdr_ceil_div(q.cols, isa->nr));
            cdr__experts_product(isa, &r);
            q.j = n.j, q.cols = n.cols, q.k0 = n.k0, q.k = n.k;
        }
    }
}

/* A's rows as the products read them: F32 where they lie, BF16 rounded to the nearest. */
static void pack_rows(const panels *w, cdr__product *p)
{
    const cdr__gemm_isa *isa = w->isa;
    const int64_t ld = isa->pair == 2 ? a_units(isa, w->k) : p->a_row;
    if (isa->pair == 2) {
        if (!p->a_packed) isa->pack_a[CDR_F32][1](&(cdr__pack){ .src = p->a, .pitch = p->a_row, .n_i = p->m, .n_p = w->k, .dst = w->block.a, .ld = ld });
        p->a = w->block.a;
        p->a_row = isa->a_panels ? 1 : ld;
    }
    p->a_col = isa->a_panels ? isa->mr : 1;
    p->a_group = isa->mr * ld;
}

static void mul_base(const experts *x, panels *w, int64_t e, cdr__product p)
{
    const cdr__gemm_isa *isa = w->isa;
    const bool packed = w->whole && w->expert == e, placed = in_place(x, w);
    pack_rows(w, &p);
    p.padded = true;
    w->expert = e;
    if (!w->whole && !placed) {
        mul_pieces(x, w, &p);
        return;
    }
    p.n = w->n;
    p.k = w->units;
    p.b = w->b;
    p.b_ld = w->units * isa->nr;
    p.kb = placed ? isa->kb_in_place : isa->kb;
    if (placed && isa->pair == 1 && x->t[w->operand].dtype == CDR_BF16) {
        p.narrow = (const uint16_t *)(const void *)row_at(x, w->operand, e, 0);
        p.wide = w->b;
    } else if (placed) p.b = (const uint32_t *)(const void *)row_at(x, w->operand, e, 0);
    else if (!packed) pack(x, w, &(part){ .cols = w->n, .k = w->k, .b = w->b, .ld = p.b_ld });
    cdr__experts_product(isa, &p);
}

void cdr__experts_mul(const experts *x, panels *w, int64_t e, cdr__product p)
{
    mul_base(x, w, e, p);
    if (!w->low || p.base_only) return;
    const float scale = x->at->scale[w->operand - CDR__EX_W1];
    mul_base(x, &w->low[0], e, (cdr__product){ .m = p.m, .a = p.a, .a_row = p.a_row, .c = w->low_y, .ldc = w->ld_low, .first = true });
    for (int64_t i = 0; i < p.m; i++) for (int64_t j = 0; j < w->low[0].n; j++) w->low_y[i * w->ld_low + j] *= scale;
    mul_base(x, &w->low[1], e, (cdr__product){ .m = p.m, .a = cdr__units(w->low_y), .a_row = w->ld_low, .c = p.c, .ldc = p.ldc });
}
