/* panels.c: the layouts that a matrix product reads without packing: rows of a matrix [n][k] to panels and back.
 *
 * A layout with `rows` = R and `pair` = P holds element (i, p) of a matrix at [i / R][p / P][i % R][p % P]. Rows of the last panel from n
 * on and, for P = 2, the element after an odd k are zeros. A stack is one padded matrix after the other. The unit of a copy is the P
 * elements of a row that lie side by side: 2 or 4 bytes. Rows are taken UNITS units at a time, so that the lines of the panel that a
 * tile of rows writes stay in L1 until they are full.
 */
#include "tensor/tensor.h"

enum { UNITS = 64 };

/* One matrix of a type: rows, units of a row, whole units of a row (the last is half padding where k is odd), bytes of a unit. */
typedef struct { int64_t n, units, full; size_t unit, row; const cdr_layout_info *l; } shape;

static shape shape_of(const cdr_type *t)
{
    const cdr_layout_info *l = cdr_layout_row(t->layout);
    const size_t elem = (size_t)cdr_dtype_row(t->dtype)->block_bytes;
    const int64_t k = cdr_type_cols(t);
    CDR_CHECK(cdr_layout_takes(t->layout, t) && l->rows > 0);
    const shape s = { .n = t->n[t->n_dim - 2], .units = cdr_ceil_div(k, l->pair), .full = k / l->pair, .unit = elem * (size_t)l->pair,
                      .row = elem * (size_t)k, .l = l };
    return s;
}

bool cdr_layout_takes(int layout, const cdr_type *t)
{
    const cdr_layout_info *l = cdr_layout_row(layout);
    const cdr_dtype_info *d = cdr_dtype_row(t->dtype);
    if (layout == CDR_MAPPED) return t->dtype == CDR_MXFP4 && t->n_dim == 3 && cdr_type_pitch(t) == cdr_type_cols(t) && cdr_type_cols(t) % d->block_elems == 0;
    if (l->rows == 0) return true;
    if (t->n_dim < 2 || d->block_elems != 1 || (t->pitch != 0 && t->pitch != cdr_type_cols(t))) return false;
    return d->block_bytes * l->pair == 4 || (l->pair == 1 && d->block_bytes == 2);
}

/* Units u .. u + n - 1 of one row: src dense, dst `step` units apart; and the reverse. */
static void spread(const char *src, char *dst, int64_t n, int64_t step, size_t unit)
{
    if (unit == 4) for (int64_t u = 0; u < n; u++) memcpy(dst + 4 * u * step, src + 4 * u, 4);
    else for (int64_t u = 0; u < n; u++) memcpy(dst + 2 * u * step, src + 2 * u, 2);
}

static void collect(const char *src, char *dst, int64_t n, int64_t step, size_t unit)
{
    if (unit == 4) for (int64_t u = 0; u < n; u++) memcpy(dst + 4 * u, src + 4 * u * step, 4);
    else for (int64_t u = 0; u < n; u++) memcpy(dst + 2 * u, src + 2 * u * step, 2);
}

/* Zeros behind the matrix's last row: rows r .. R - 1 of its last panel. */
static void pad(const shape *s, int64_t r, char *panel)
{
    const int64_t R = s->l->rows;
    for (int64_t u = 0; r < R && u < s->units; u++) memset(panel + (size_t)(u * R + r) * s->unit, 0, (size_t)(R - r) * s->unit);
}

/* Rows i .. i + n - 1 of one panel (of row i - i % R), from or to dense rows. */
static void one_panel(const shape *s, int64_t i, int64_t n, char *rows, char *panel, bool put)
{
    const int64_t R = s->l->rows, r = i % R;
    const size_t half = s->unit / 2;
    for (int64_t u = 0; u < s->full; u += UNITS) {
        const int64_t m = CDR_MIN(s->full - u, UNITS);
        for (int64_t j = 0; j < n; j++) {
            char *row = rows + (size_t)j * s->row + (size_t)u * s->unit, *at = panel + (size_t)(u * R + r + j) * s->unit;
            if (put) spread(row, at, m, R, s->unit);
            else collect(at, row, m, R, s->unit);
        }
    }
    for (int64_t j = 0; s->full < s->units && j < n; j++) {
        char *row = rows + (size_t)(j + 1) * s->row - half, *at = panel + (size_t)(s->full * R + r + j) * s->unit;
        memcpy(put ? at : row, put ? row : at, half);
        if (put) memset(at + half, 0, half);
    }
    if (put && i + n == s->n) pad(s, (s->n - 1) % R + 1, panel);
}

static void move(const cdr_type *t, int64_t first, int64_t n, char *rows, char *panels, bool put)
{
    const shape s = shape_of(t);
    const int64_t R = s.l->rows;
    const size_t matrix = cdr_matrix_bytes(t), panel = (size_t)(R * s.units) * s.unit;
    CDR_CHECK(first >= 0 && n >= 0 && first + n <= cdr_type_rows(t));
    for (int64_t done = 0, m; done < n; done += m) {
        const int64_t e = (first + done) / s.n, i = (first + done) % s.n;
        m = CDR_MIN(CDR_MIN(R - i % R, s.n - i), n - done);
        one_panel(&s, i, m, rows + (size_t)done * s.row, panels + (size_t)e * matrix + (size_t)(i / R) * panel, put);
    }
}

void cdr_panels_put(const cdr_type *t, int64_t first, int64_t n, const void *rows, void *panels)
{
    move(t, first, n, (char *)(uintptr_t)rows, panels, true);
}

void cdr_panels_get(const cdr_type *t, int64_t first, int64_t n, const void *panels, void *rows)
{
    move(t, first, n, rows, (char *)(uintptr_t)panels, false);
}
