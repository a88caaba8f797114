/* gemm.c: blocking, threads and scratch of the matrix product; gemm.h says what it computes, gemm_isa.h what an ISA adds.
 *
 *   for each block of n columns: pack B, all of k                          (panels [k][nr]; unless B is read in pieces)
 *     for each block of rows, for each block of kc along k: pack A         (what L2 holds)
 *       for each panel of nr columns, for each piece of kb along k         (what L1 holds: read by all rows of A's block)
 *         for each mr rows: kernel
 * An F32 accumulator that waits for its next piece lies in a tile of scratch; storing and reloading it is exact, so the blocking
 * changes no bit. Structure: Goto & van de Geijn 2008.
 *
 * A piece of B comes from one of four places:
 *   PACKED   B packed in scratch                              many rows: packing is paid once for all of them
 *   PANELS   the matrix itself, which lies in the path's panels          nothing is packed
 *   WIDEN    the same, but BF16 where the path computes in F32: the first tile of rows widens a piece on its way into L1
 *   PIECES   packed into L1 and used at once                  rows that fit one block: a panel is never written to memory
 *
 * Tried: threads that share a packed B and split the rows, two barriers a block (Emerald Rapids, two cores, F32 at 2048 cubed: 278 GFLOP/s at
 * best against 294); a 2 MiB share of packed B for a thread (AMX: 15 % slower than 4, A is packed twice as often).
 *
 * Threads form a grid: each has rows and columns of its own, packs what it needs and waits for nobody. Neither changes a bit.
 * Scratch of a thread: its packed B, 4 MiB or one panel; its block of A, a_units of the ISA; accumulators. */
#include "ops/linear/gemm_isa.h"
#include <assert.h>
#include <math.h>

static const cdr__gemm_isa *const isas[CDR__N_GEMM] = { &cdr__gemm_base, &cdr__gemm_avx2, &cdr__gemm_avx512, &cdr__gemm_avx512_bf16,
                                                        &cdr__gemm_amx };

enum { A_PAD = 16 };                                             /* units: one line of cache */
enum { NC_MAX = 1024 };                                          /* columns of a packed B; a multiple of every nr */
enum { GROUP = 8 };                                              /* most panels of a piece */
enum { KC_ALIGN = 64 };                                          /* blocks of k begin at whole panels of W (b_across) */
static const int64_t b_own_bytes = 4 << 20;                      /* of a thread's packed B, unless one panel takes more: a part of L3 */
static const int64_t one_thread_cycles = 1 << 14;                /* a fork and join costs 1 to 7 us, which is what less takes */

typedef enum { PACKED, PANELS, WIDEN, PIECES } source;

/* Sizes in 32-bit units. rows, cols: what one thread's block may hold. */
typedef struct {
    const cdr__gemm_isa *isa; const cdr__gemm_args *g;
    source from;
    int64_t units;                       /* of all of k, in whole steps */
    int64_t mc, kc, nc, a_ld;
    int64_t kb, group;                   /* units and columns of a piece of B */
    int64_t acc_at, piece_at, b_at;      /* in a thread's own scratch, behind its block of A */
    int64_t row_teams, col_teams;
    bool wait;                           /* accumulators wait between blocks of k */
    bool a_direct;                       /* A lies as its packed form would, F32 rows along k: it is read where it is */
    bool a_rows;                         /* the block of A is rows, else panels */
} plan;

static int64_t round_up(int64_t x, int64_t to) { return cdr_ceil_div(x, to) * to; }

static int64_t units_of(const cdr__gemm_isa *isa, int64_t k) { return round_up(cdr_ceil_div(k, isa->pair), isa->step); }

static int64_t own_cols(const cdr__gemm_isa *isa, int64_t n, int64_t units)
{
    const int64_t fit = b_own_bytes / (4 * CDR_MAX(units, 1)) / isa->nr * isa->nr;
    return CDR_MIN(CDR_MIN(CDR_MAX(fit, isa->nr), NC_MAX), round_up(n, isa->nr));
}

/* ---- scratch: bounds that hold for every smaller product ------------------------------------------------------------ */
/* Rows of packed A are A_PAD units further apart than they are long, so that mr of them do not fall into one set of L1. */
static int64_t block_rows(const cdr__gemm_isa *isa, int64_t m, int64_t kc)
{
    const int64_t fit = CDR_MIN(CDR_MAX(isa->a_units / (kc + A_PAD) / isa->mr * isa->mr, isa->mr), isa->mc);
    return CDR_MIN(fit, round_up(m, isa->mr));
}

static int64_t a_block_units(const cdr__gemm_isa *isa, int64_t m, int64_t units)
{
    const int64_t row = CDR_MIN(units, isa->kc) + A_PAD;
    return round_up(CDR_MIN(CDR_MIN(round_up(m, isa->mr), isa->mc) * row, CDR_MAX(isa->a_units, isa->mr * row)), 16);
}

static int64_t acc_units(const cdr__gemm_isa *isa, int64_t m, int64_t n, int64_t units)
{
    const int64_t cols = units > isa->kc_min ? NC_MAX : GROUP * isa->nr;
    return round_up(CDR_MIN(round_up(m, isa->mr), isa->mc) * CDR_MIN(round_up(n, isa->nr), cols), 16);
}

int cdr__gemm_layout(int path) { return isas[path]->layout; }

/* Of packed B: what own_cols gives, or less where there are fewer columns. */
static int64_t b_units(const cdr__gemm_isa *isa, int64_t n, int64_t units)
{
    return CDR_MIN(round_up(n, isa->nr) * units, CDR_MAX(b_own_bytes / 4, isa->nr * units));
}

static int64_t thread_units(const cdr__gemm_isa *isa, int64_t m, int64_t n, int64_t units)
{
    return a_block_units(isa, m, units) + acc_units(isa, m, n, units) + isa->kb * isa->nr + round_up(b_units(isa, n, units), 16);
}

size_t cdr__gemm_work_bytes(int path, int64_t m, int64_t n, int64_t k, int n_threads)
{
    const cdr__gemm_isa *isa = isas[path];
    return 4 * (size_t)n_threads * (size_t)thread_units(isa, m, n, units_of(isa, k));
}

/* ---- B ------------------------------------------------------------------------------------------------------------- */
static const void *at(const cdr__mat *x, int64_t i, int64_t j)
{
    return (const char *)x->p + cdr_dtype_bytes(x->dtype, i * x->row + j * x->col);
}

/* Element B[kk][j] of panels, wherever it lies. */
static int64_t panel_at(const cdr__gemm_args *g, int64_t kk, int64_t j)
{
    return g->b_across ? cdr__panel_elem(g->b_layout, g->n, kk, j) : cdr__panel_elem(g->b_layout, g->k, j, kk);
}

/* Panels of a layout that the path was not made for: unit by unit. */
static void pack_foreign(const plan *p, int64_t j, int64_t cols, int64_t u0, int64_t n_u, uint32_t *b)
{
    const cdr__gemm_args *g = p->g;
    const int pair = p->isa->pair, nr = p->isa->nr;
    for (int64_t u = 0; u < n_u; u++)
        for (int64_t i = 0; i < nr; i++) {
            const int64_t kk = (u0 + u) * pair;
            uint32_t x = 0;
            if (i < cols && pair == 1) x = cdr__bits(cdr__load(g->b.dtype, g->b.p, panel_at(g, kk, j + i)));
            else if (i < cols) {
                x = cdr__load_bf16(g->b.dtype, g->b.p, panel_at(g, kk, j + i));
                if (kk + 1 < g->k) x |= cdr__load_bf16(g->b.dtype, g->b.p, panel_at(g, kk + 1, j + i)) << 16;
            }
            b[u * nr + i] = x;
        }
}

/* B = W, W in the path's own panels: a panel of W has k contiguous, R at a time. u0 is a multiple of R's units. */
static void pack_across(const plan *p, int64_t j, int64_t cols, int64_t u0, int64_t n_u, uint32_t *b)
{
    const cdr__gemm_args *g = p->g;
    const int64_t pair = p->isa->pair, R = p->isa->nr, last = CDR_MIN(g->k, (u0 + n_u) * pair);
    for (int64_t kk = u0 * pair; kk < last; kk += R) {
        const cdr__pack s = { .src = (const char *)g->b.p + cdr_dtype_bytes(g->b.dtype, panel_at(g, kk, j)), .pitch = R, .n_i = cols,
                              .n_p = CDR_MIN(last - kk, R), .dst = b + (kk / pair - u0) * R, .ld = 0 };
        if (pair == 2) p->isa->pack_across(&s);
        else p->isa->pack_b[g->b.dtype][true](&s);
    }
}

/* Columns j .. j + cols (a panel; of rows, any number of panels) and units u0 .. u0 + n_u, to panels ld units apart. */
static void pack_b(const plan *p, int64_t j, int64_t cols, int64_t u0, int64_t n_u, uint32_t *b, int64_t ld)
{
    const cdr__mat *x = &p->g->b;
    const int64_t nr = p->isa->nr, pair = p->isa->pair, there = CDR_MIN(n_u, cdr_ceil_div(p->g->k, pair) - u0);
    if (p->g->b_layout == CDR_ROWS) {
        const bool k_contig = x->row == 1 && x->col != 1;
        p->isa->pack_b[x->dtype][k_contig](&(cdr__pack){ .src = at(x, u0 * pair, j), .pitch = k_contig ? x->col : x->row,
            .n_i = cols, .n_p = CDR_MIN(p->g->k - u0 * pair, n_u * pair), .dst = b, .ld = ld });
    } else {
        assert(cols <= nr);
        if (p->g->b_layout == p->isa->layout && p->g->b_across) pack_across(p, j, cols, u0, there, b);
        else pack_foreign(p, j, cols, u0, there, b);
    }
    if (there < n_u)                     /* a step that k does not fill */
        for (int64_t i = 0; i < cols; i += nr) memset(b + i / nr * ld + there * nr, 0, (size_t)((n_u - there) * nr) * 4);
}

/* Columns j0 .. j0 + n_cols, all of k. */
static void pack_panels(const plan *p, int64_t j0, int64_t n_cols, uint32_t *b)
{
    const int64_t nr = p->isa->nr, step = p->g->b_layout == CDR_ROWS ? n_cols : nr;
    for (int64_t j = 0; j < n_cols; j += step)
        pack_b(p, j0 + j, CDR_MIN(n_cols - j, step), 0, p->units, b + j * p->units, nr * p->units);
}

/* ---- one block of A against all columns ---------------------------------------------------------------------------- */
/* Rows i0 .. i0 + n_rows, columns j0 .. j0 + n_cols, units u0 .. u0 + n_u. b: PACKED only. */
typedef struct { int64_t i0, n_rows, j0, n_cols, u0, n_u; const uint32_t *a, *b; float *acc; uint32_t *piece; } block;
/* Of a panel of columns, the part along k that L1 holds: units u .. u + n_u of the block. next: what follows it, or NULL. */
typedef struct { int64_t j, cols, u, n_u; const uint32_t *b; const uint16_t *narrow; const char *next; int64_t acc; } piece;

static void run_tiles(const plan *p, const block *k, const piece *q)
{
    const cdr__gemm_isa *isa = p->isa;
    const cdr__gemm_args *g = p->g;
    const bool first = k->u0 + q->u == 0, last = k->u0 + q->u + q->n_u == p->units;
    const bool direct = last && g->c_dtype == CDR_F32 && !g->add && q->cols == isa->nr;
    const int64_t lines = CDR_MAX(isa->nr * (q->narrow ? 2 : 4) / 64, 1);
    cdr__tile t = { .a_row = p->a_rows ? p->a_ld : 1, .a_col = p->a_rows ? 1 : isa->mr, .b = q->b, .k = q->n_u, .first = first };
    for (int64_t i = 0, tile = 0; i < k->n_rows; i += isa->mr, tile++) {
        if (g->upper && k->j0 + q->j + isa->nr <= k->i0 + i) break;
        const int64_t at_c = (k->i0 + i) * g->c_pitch + k->j0 + q->j;
        t.rows = (int)CDR_MIN(k->n_rows - i, isa->mr);
        t.a = k->a + i * p->a_ld + q->u * (p->a_rows ? 1 : isa->mr);
        t.ahead = q->next && tile < lines ? q->next + tile * q->n_u * 64 : (const char *)q->b;
        t.old = k->acc + q->acc + i * isa->nr;
        t.c = direct ? (float *)g->c + at_c : k->acc + q->acc + i * isa->nr;
        t.ldc = direct ? g->c_pitch : isa->nr;
        if (q->narrow && i == 0) {
            t.narrow = q->narrow;
            t.wide = k->piece;
            isa->kernel_widen(&t);
        } else isa->kernel(&t);
        if (last && !direct)
            isa->finish[g->c_dtype](&(cdr__finish){ .acc = t.c, .rows = t.rows, .cols = (int)q->cols,
                .c = (char *)g->c + cdr_dtype_bytes(g->c_dtype, at_c), .pitch = g->c_pitch, .add = g->add });
    }
}

/* Columns j .. j + cols of a block, at most p->group of them, units u .. u + n_u: makes the pieces and runs them. */
static void run_pieces(const plan *p, const block *k, int64_t j, int64_t cols, int64_t u, int64_t n_u)
{
    const cdr__gemm_isa *isa = p->isa;
    const cdr__gemm_args *g = p->g;
    const int64_t nr = isa->nr, from_u = k->u0 + u, whole = cdr_ceil_div(g->k, isa->pair);
    const bool padded = p->from == PANELS && from_u + n_u > whole;                   /* the matrix ends within the last step */
    if (p->from == PIECES) pack_b(p, k->j0 + j, cols, from_u, n_u, k->piece, nr * n_u);
    for (int64_t jj = 0; jj < cols; jj += nr) {
        piece q = { .j = j + jj, .cols = CDR_MIN(cols - jj, nr), .u = u, .n_u = n_u, .b = k->piece + jj * n_u };
        q.acc = (p->wait ? j + jj : jj) * p->mc;
        const int64_t unit_bytes = p->from == WIDEN ? 2 : 4;
        const char *src = p->from == PACKED ? (const char *)(k->b + (j + jj) * p->units) : (const char *)g->b.p + (k->j0 + j + jj) * whole * unit_bytes;
        if (p->from == PACKED || p->from == PANELS) q.b = (const uint32_t *)(const void *)(src + from_u * nr * 4);
        if (p->from == WIDEN) q.narrow = (const uint16_t *)(const void *)(src + from_u * nr * 2);
        if (p->from != PIECES) q.next = src + (from_u + n_u) * nr * unit_bytes;
        if (padded) {
            memcpy(k->piece, q.b, (size_t)((whole - from_u) * nr) * 4);
            memset(k->piece + (whole - from_u) * nr, 0, (size_t)((from_u + n_u - whole) * nr) * 4);
            q.b = k->piece;
        }
        run_tiles(p, k, &q);
    }
}

/* Of n_u units from u on: a matrix that is read in place ends within the last step, which is then a piece of its own and is copied. */
static int64_t piece_units(const plan *p, int64_t u, int64_t n_u)
{
    const int64_t step = p->isa->step, whole = cdr_ceil_div(p->g->k, p->isa->pair);
    if (p->from != PANELS || u + n_u <= whole) return n_u;
    return CDR_MAX((whole - u) / step * step, step);
}

/* Rows i_first .. i_last - 1 against columns j0 .. j0 + n_cols. own: this thread's A block, accumulators, piece of B, packed B. */
static void run_rows(const plan *p, int64_t i_first, int64_t i_last, int64_t j0, int64_t n_cols, uint32_t *own)
{
    const cdr__mat *x = &p->g->a;
    const bool k_contig = x->col == 1;
    const int pair = p->isa->pair;
    if (p->isa->begin) p->isa->begin();
    block k = { .j0 = j0, .n_cols = n_cols, .a = own, .b = own + p->b_at, .acc = (float *)(own + p->acc_at), .piece = own + p->piece_at };
    for (k.i0 = i_first; k.i0 < i_last; k.i0 += k.n_rows) {
        k.n_rows = CDR_MIN(i_last - k.i0, p->mc);
        k.u0 = 0;
        do {                             /* once where k = 0: the kernel stores zeros */
            k.n_u = CDR_MIN(p->units - k.u0, p->kc);
            if (p->a_direct) k.a = (const uint32_t *)x->p + k.i0 * x->row + k.u0;
            else p->isa->pack_a[x->dtype][k_contig](&(cdr__pack){ .src = at(x, k.i0, k.u0 * pair), .pitch = k_contig ? x->row : x->col,
                .n_i = k.n_rows, .n_p = CDR_MIN(p->g->k - k.u0 * pair, k.n_u * pair), .dst = own, .ld = p->a_ld });
            for (int64_t j = 0; j < n_cols; j += p->group) {
                int64_t u = 0;
                do {
                    const int64_t n_u = piece_units(p, k.u0 + u, CDR_MIN(k.n_u - u, p->kb));
                    run_pieces(p, &k, j, CDR_MIN(n_cols - j, p->group), u, n_u);
                    u += n_u;
                } while (u < k.n_u);
            }
            k.u0 += k.n_u;
        } while (k.u0 < p->units);
    }
    if (p->isa->end) p->isa->end();
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */
/* Part r of n of x things, in whole multiples of unit. */
static int64_t cut(int64_t x, int64_t unit, int64_t r, int64_t n) { return CDR_MIN(x, cdr_ceil_div(x, unit) * r / n * unit); }

/* Thread r of a grid of teams: rows and columns of its own, B packed by itself; no thread waits for another. */
static void run_part(const plan *p, int64_t r, uint32_t *own)
{
    const cdr__gemm_args *g = p->g;
    const int64_t of_rows = r / p->col_teams, of_cols = r % p->col_teams;
    const int64_t i0 = cut(g->m, p->isa->mr, of_rows, p->row_teams), i1 = cut(g->m, p->isa->mr, of_rows + 1, p->row_teams);
    const int64_t j0 = cut(g->n, p->isa->nr, of_cols, p->col_teams), j1 = cut(g->n, p->isa->nr, of_cols + 1, p->col_teams);
    if (i0 == i1) return;
    for (int64_t j = j0; j < j1; j += p->nc) {
        const int64_t n_cols = CDR_MIN(j1 - j, p->nc);
        if (p->from == PACKED) pack_panels(p, j, n_cols, own + p->b_at);
        run_rows(p, i0, i1, j, n_cols, own);
    }
}

/* ---- the plan ----------------------------------------------------------------------------------------------------------- */
/* The grid of at most n_threads teams whose largest part takes the least, in cycles for each element along k: multiply-adds, and what
 * packing an element of A or of B costs. */
static void plan_grid(plan *p, int n_threads)
{
    const cdr__gemm_isa *isa = p->isa;
    const int64_t tiles = cdr_ceil_div(p->g->m, isa->mr), panels = cdr_ceil_div(p->g->n, isa->nr);
    double least = INFINITY;
    for (int64_t cols = 1; cols <= CDR_MIN(n_threads, panels); cols++) {
        const int64_t rows = CDR_MIN(n_threads / cols, tiles);
        const double m = (double)(cdr_ceil_div(tiles, rows) * isa->mr), n = (double)(cdr_ceil_div(panels, cols) * isa->nr);
        const double cost = m * n / isa->mac + m + 2 * n;
        if (cost < least) {
            least = cost;
            p->row_teams = rows;
            p->col_teams = cols;
        }
    }
}

/* Where B comes from. rows: the most that a thread has. */
static source source_of(const cdr__gemm_isa *isa, const cdr__gemm_args *g, int64_t rows)
{
    const bool own = g->b_layout == isa->layout && !g->b_across && g->b_layout != CDR_ROWS;
    if (own && isa->pair == 2 && g->b.dtype == CDR_BF16) return PANELS;
    if (own && isa->pair == 1) return g->b.dtype == CDR_F32 ? PANELS : WIDEN;
    return rows <= isa->few ? PIECES : PACKED;
}

/* Blocks along k that are about even: all of k, or so much that a block of all wanted rows of A stays in L2. */
static void plan_k(plan *p, int64_t rows)
{
    const cdr__gemm_isa *isa = p->isa;
    int64_t most = isa->kc;
    if (p->from != PACKED) most = CDR_MIN(most, CDR_MAX(isa->a_units / round_up(CDR_MIN(rows, isa->mc), isa->mr) - A_PAD, isa->kc_min));
    p->wait = p->units > most;
    p->kc = p->wait ? round_up(cdr_ceil_div(p->units, cdr_ceil_div(p->units, most)), KC_ALIGN) : p->units;
    p->wait = p->units > p->kc;
    const bool wide = p->from == PIECES && p->g->b_layout == CDR_ROWS && p->g->b.col == 1;      /* k is strided: short and wide pieces */
    const bool made = p->from == PIECES || p->from == WIDEN;
    p->kb = wide ? CDR_MAX(isa->kb / GROUP, 32) : made ? isa->kb : isa->kb_in_place;
    p->group = wide ? isa->kb / p->kb * isa->nr : isa->nr;
}

void cdr__gemm(int path, const cdr__gemm_args *g, void *work, int n_threads)
{
    assert(path >= 0 && path < CDR__N_GEMM);
    assert(g->a.row == 1 || g->a.col == 1);
    assert(g->b_layout != CDR_ROWS || g->b.row == 1 || g->b.col == 1);
    assert(g->a.dtype <= CDR_BF16 && g->b.dtype <= CDR_BF16 && g->c_dtype <= CDR_BF16);
    if (g->m == 0 || g->n == 0) return;
    const cdr__gemm_isa *isa = isas[path];
    plan p = { .isa = isa, .g = g, .units = units_of(isa, g->k), .a_rows = g->a.col == 1 && !isa->a_panels };
    const bool alone = (double)g->m * (double)g->n * (double)g->k < (double)one_thread_cycles * isa->mac;
    plan_grid(&p, alone ? 1 : n_threads);
    const int64_t rows = cdr_ceil_div(cdr_ceil_div(g->m, isa->mr), p.row_teams) * isa->mr;
    p.from = source_of(isa, g, rows);
    plan_k(&p, rows);
    /* rows much further apart than k would share sets of L2 */
    p.a_direct = p.from == PACKED && p.a_rows && isa->pair == 1 && g->a.dtype == CDR_F32 && g->a.row <= g->k + g->k / 8;
    p.a_ld = p.a_direct ? g->a.row : p.kc + A_PAD;
    p.mc = block_rows(isa, rows, p.kc);
    p.nc = p.from == PACKED ? own_cols(isa, g->n, p.units) : p.wait ? NC_MAX : round_up(g->n, isa->nr);
    p.acc_at = a_block_units(isa, g->m, p.units);
    p.piece_at = p.acc_at + acc_units(isa, g->m, g->n, p.units);
    p.b_at = p.piece_at + isa->kb * isa->nr;
    const int64_t own = thread_units(isa, g->m, g->n, p.units), n_team = p.row_teams * p.col_teams;
    if (n_team == 1) {
        run_part(&p, 0, work);
        return;
    }
    #pragma omp parallel for num_threads((int)n_team) schedule(static)
    for (int64_t r = 0; r < n_team; r++) run_part(&p, r, (uint32_t *)work + r * own);
}
