/* gemm.c: blocking, threads and scratch of the matrix product; gemm.h says what it computes, gemm_isa.h what an ISA adds.
 *
 *   for each block of n columns: pack B, all of k                          (panels [k][nr], read by all rows)
 *     for each block of rows, for each block of kc along k: pack A         (what L2 holds beside one panel of B)
 *       for each panel of nr columns, for each mr rows: kernel             (a panel of B is read once for mr rows of A)
 * An F32 accumulator that waits for its next block of k lies in C itself (F32, full panel, no add) or in a tile of
 * scratch; storing and reloading it is exact, so the blocking changes no bit. Structure: Goto & van de Geijn 2008.
 *
 * Tried: kc = 256 with B's panel in L1, as BLIS does: 5 to 10 % slower here than all of k at once, with A's block and one
 * panel of B in L2, and the next panel prefetched. Packing F32 rows of A that are dense already: 2 to 5 % slower.
 *
 * Threads share the packed B and split the rows where there are enough of them; else each takes columns of its own and
 * packs its own B. Neither changes a bit. A call under 2^18 multiply-adds runs on one thread: a fork and join costs
 * 1 to 7 us, which is what such a call takes.
 * Scratch: the shared B at most max(4 MiB, 64 k units); a thread's A at most 384 KiB (AVX2), its accumulators under 200 KiB where
 * k is over kc. */
#include "ops/linear/gemm_isa.h"
#include <assert.h>
#include <omp.h>

static const cdr__gemm_isa *const isas[CDR__N_GEMM] = { &cdr__gemm_base, &cdr__gemm_avx2, &cdr__gemm_avx512, &cdr__gemm_avx512_bf16 };

enum { A_PAD = 16 };                                             /* units: one line of cache */
enum { NC_MAX = 1024, NC_MIN = 64 };                             /* columns of a shared packed B; multiples of every nr */
static const int64_t b_shared_bytes = 4 << 20;                   /* of it, unless NC_MIN columns take more: a part of L3 */
static const int64_t b_own_bytes = 256 << 10;                    /* of one thread's own B: half of L2 */
static const int64_t one_thread_mac = 1 << 18;

/* Sizes in 32-bit units. rows, cols: what one thread's block may hold. */
typedef struct {
    const cdr__gemm_isa *isa; const cdr__gemm_args *g;
    int64_t units;                       /* of all of k */
    int64_t mc, kc, nc, a_ld, acc_at;    /* acc_at: accumulators in a thread's own scratch, behind its block of A */
    bool wait;                           /* accumulators wait between blocks of k */
    bool a_direct;                       /* A lies as its packed form would, F32 rows along k: it is read where it is */
} plan;

static int64_t round_up(int64_t x, int64_t to) { return cdr_ceil_div(x, to) * to; }

static int64_t shared_cols(const cdr__gemm_isa *isa, int64_t n, int64_t units)
{
    const int64_t fit = b_shared_bytes / (4 * CDR_MAX(units, 1)) / NC_MIN * NC_MIN;
    return CDR_MIN(CDR_MIN(CDR_MAX(fit, NC_MIN), NC_MAX), round_up(n, isa->nr));
}

static int64_t own_cols(const cdr__gemm_isa *isa, int64_t n, int64_t units)
{
    const int64_t fit = b_own_bytes / (4 * CDR_MAX(units, 1)) / isa->nr * isa->nr;
    return CDR_MIN(CDR_MIN(CDR_MAX(fit, isa->nr), NC_MAX), round_up(n, isa->nr));
}

/* Rows of packed A are A_PAD units further apart than they are long, so that mr of them do not fall into one set of L1. */
static int64_t block_rows(const cdr__gemm_isa *isa, int64_t m, int64_t units)
{
    const int64_t fit = isa->a_units / (CDR_MIN(units, isa->kc) + A_PAD) / isa->mr * isa->mr;
    return CDR_MIN(CDR_MIN(CDR_MAX(fit, isa->mr), isa->mc), round_up(m, isa->mr));
}

static int64_t a_block_units(const cdr__gemm_isa *isa, int64_t m, int64_t units)
{
    const int64_t row = CDR_MIN(units, isa->kc) + A_PAD;
    return round_up(CDR_MIN(CDR_MIN(round_up(m, isa->mr), isa->mc) * row, CDR_MAX(isa->a_units, isa->mr * row)), 16);
}

static int64_t acc_units(const cdr__gemm_isa *isa, int64_t m, int64_t n, int64_t units)
{
    if (units <= isa->kc) return 0;
    return round_up(block_rows(isa, m, units) * CDR_MIN(round_up(n, isa->nr), NC_MAX), 16);
}

size_t cdr__gemm_work_bytes(int path, int64_t m, int64_t n, int64_t k, int n_threads)
{
    const cdr__gemm_isa *isa = isas[path];
    const int64_t units = cdr_ceil_div(k, isa->pair), all = round_up(n, isa->nr) * units;
    const int64_t shared = CDR_MIN(all, CDR_MAX(b_shared_bytes / 4, NC_MIN * units));
    const int64_t panels = cdr_ceil_div(n, isa->nr), n_team = CDR_MIN(panels, n_threads);
    const int64_t own = CDR_MIN((panels + n_team) * isa->nr * units, n_team * CDR_MAX(b_own_bytes / 4, isa->nr * units));
    const int64_t thread = a_block_units(isa, m, units) + acc_units(isa, m, n, units);
    return 4 * (size_t)(round_up(CDR_MAX(shared, own), 16) + n_threads * thread);
}

static const void *at(const cdr__mat *x, int64_t i, int64_t j)
{
    return (const char *)x->p + cdr_dtype_bytes(x->dtype, i * x->row + j * x->col);
}

/* Panels first .. last - 1 of the columns from j0 on. */
static void pack_b(const plan *p, int64_t j0, int64_t n_cols, int64_t first, int64_t last, uint32_t *b)
{
    const cdr__mat *x = &p->g->b;
    const bool k_contig = x->row == 1 && x->col != 1;
    const int64_t j = first * p->isa->nr;
    if (first == last) return;
    p->isa->pack_b[x->dtype][k_contig](&(cdr__pack){ .src = at(x, 0, j0 + j), .pitch = k_contig ? x->col : x->row,
        .n_i = CDR_MIN(n_cols, last * p->isa->nr) - j, .n_p = p->g->k, .dst = b + j * p->units, .ld = p->isa->nr * p->units });
}

/* One block of A against all columns of a packed B: rows i0 .. i0 + n_rows, columns j0 .. j0 + n_cols, units u0 .. u0 + n_u. */
typedef struct { int64_t i0, n_rows, j0, n_cols, u0, n_u; const uint32_t *a, *b; float *acc; } block;

static void run_tiles(const plan *p, const block *k)
{
    const cdr__gemm_isa *isa = p->isa;
    const cdr__gemm_args *g = p->g;
    const bool a_rows = g->a.col == 1, last = k->u0 + k->n_u == p->units;
    const int64_t panel_a = a_rows ? isa->mr * p->a_ld : isa->mr * k->n_u;
    _Alignas(64) float edge[6 * 64];
    cdr__tile t = { .a_row = a_rows ? p->a_ld : 1, .a_col = a_rows ? 1 : isa->mr, .k = k->n_u, .first = k->u0 == 0 };
    for (int64_t j = 0; j < k->n_cols; j += isa->nr) {
        const int64_t cols = CDR_MIN(k->n_cols - j, isa->nr);
        const bool direct = g->c_dtype == CDR_F32 && !g->add && cols == isa->nr;
        t.b = k->b + j * p->units + k->u0 * isa->nr;
        for (int64_t i = 0; i < k->n_rows; i += isa->mr) {
            if (g->upper && k->j0 + j + isa->nr <= k->i0 + i) break;
            const int64_t at_c = (k->i0 + i) * g->c_pitch + k->j0 + j;
            t.rows = (int)CDR_MIN(k->n_rows - i, isa->mr);
            t.a = k->a + i / isa->mr * panel_a;
            t.ahead = (const char *)(i + isa->mr < k->n_rows ? t.b : t.b + isa->nr * p->units);
            t.c = direct ? (float *)g->c + at_c : p->wait ? k->acc + j * p->mc + i * isa->nr : edge;
            t.ldc = direct ? g->c_pitch : isa->nr;
            isa->kernel(&t);
            if (last && !direct)
                isa->finish[g->c_dtype](&(cdr__finish){ .acc = t.c, .rows = t.rows, .cols = (int)cols,
                    .c = (char *)g->c + cdr_dtype_bytes(g->c_dtype, at_c), .pitch = g->c_pitch, .add = g->add });
        }
    }
}

/* Rows i_first .. i_last - 1 against a packed B of columns j0 .. j0 + n_cols. own: this thread's A block, then accumulators. */
static void run_rows(const plan *p, int64_t i_first, int64_t i_last, int64_t j0, int64_t n_cols, const uint32_t *b, uint32_t *own)
{
    const cdr__mat *x = &p->g->a;
    const bool a_rows = x->col == 1;
    const int pair = p->isa->pair;
    block k = { .j0 = j0, .n_cols = n_cols, .a = own, .b = b, .acc = (float *)(own + p->acc_at) };
    for (k.i0 = i_first; k.i0 < i_last; k.i0 += k.n_rows) {
        k.n_rows = CDR_MIN(i_last - k.i0, p->mc);
        k.u0 = 0;
        do {                             /* once where k = 0: the kernel stores zeros */
            k.n_u = CDR_MIN(p->units - k.u0, p->kc);
            if (p->a_direct) k.a = (const uint32_t *)x->p + k.i0 * x->row + k.u0;
            else p->isa->pack_a[x->dtype][a_rows](&(cdr__pack){ .src = at(x, k.i0, k.u0 * pair), .pitch = a_rows ? x->row : x->col,
                .n_i = k.n_rows, .n_p = CDR_MIN(p->g->k - k.u0 * pair, k.n_u * pair), .dst = own, .ld = p->a_ld });
            run_tiles(p, &k);
            k.u0 += k.n_u;
        } while (k.u0 < p->units);
    }
}

/* Part r of n of x things, in whole multiples of unit. */
static int64_t cut(int64_t x, int64_t unit, int64_t r, int64_t n) { return CDR_MIN(x, cdr_ceil_div(x, unit) * r / n * unit); }

/* Each thread: columns of its own, all rows. */
static void run_by_columns(const plan *p, int64_t r, int64_t n_threads, uint32_t *b, uint32_t *own)
{
    const int64_t first = cut(p->g->n, p->isa->nr, r, n_threads), last = cut(p->g->n, p->isa->nr, r + 1, n_threads);
    for (int64_t j = first; j < last; j += p->nc) {
        const int64_t n_cols = CDR_MIN(last - j, p->nc);
        pack_b(p, j, n_cols, 0, cdr_ceil_div(n_cols, p->isa->nr), b);
        run_rows(p, 0, p->g->m, j, n_cols, b, own);
    }
}

/* Each thread: rows of its own; B is packed by all of them. Called by every thread of a team of n_threads. */
static void run_by_rows(const plan *p, int64_t r, int64_t n_threads, uint32_t *b, uint32_t *own)
{
    const int64_t first = cut(p->g->m, p->isa->mr, r, n_threads), last = cut(p->g->m, p->isa->mr, r + 1, n_threads);
    for (int64_t j = 0; j < p->g->n; j += p->nc) {
        const int64_t n_cols = CDR_MIN(p->g->n - j, p->nc), panels = cdr_ceil_div(n_cols, p->isa->nr);
        pack_b(p, j, n_cols, panels * r / n_threads, panels * (r + 1) / n_threads, b);
        if (n_threads > 1) {
            #pragma omp barrier
        }
        run_rows(p, first, last, j, n_cols, b, own);
        if (n_threads > 1) {
            #pragma omp barrier
        }
    }
}

void cdr__gemm(int path, const cdr__gemm_args *g, void *work, int n_threads)
{
    assert(path >= 0 && path < CDR__N_GEMM);
    assert(g->a.row == 1 || g->a.col == 1);
    assert(g->b.row == 1 || g->b.col == 1);
    assert(g->b_layout == CDR_ROWS);
    assert(g->a.dtype <= CDR_BF16 && g->b.dtype <= CDR_BF16 && g->c_dtype <= CDR_BF16);
    if (g->m == 0 || g->n == 0) return;
    const cdr__gemm_isa *isa = isas[path];
    plan p = { .isa = isa, .g = g, .units = cdr_ceil_div(g->k, isa->pair) };
    const double mac = (double)g->m * (double)g->n * (double)g->k;
    const bool by_rows = g->m >= 2 * (int64_t)n_threads * isa->mr;
    int n_team = mac < (double)one_thread_mac ? 1 : n_threads;
    if (!by_rows) n_team = (int)CDR_MIN(n_team, cdr_ceil_div(g->n, isa->nr));
    p.wait = p.units > isa->kc;
    p.kc = p.wait ? cdr_ceil_div(p.units, cdr_ceil_div(p.units, isa->kc)) : p.units;      /* even blocks */
    /* rows much further apart than k would share sets of L2 */
    p.a_direct = isa->pair == 1 && g->a.dtype == CDR_F32 && g->a.col == 1 && g->a.row <= g->k + g->k / 8;
    p.a_ld = p.a_direct ? g->a.row : p.kc + A_PAD;
    p.mc = block_rows(isa, g->m, p.units);
    p.nc = by_rows ? shared_cols(isa, g->n, p.units) : own_cols(isa, cdr_ceil_div(g->n, n_team), p.units);
    uint32_t *const b = work;
    const int64_t b_own = by_rows ? 0 : p.nc * p.units;
    const int64_t b_units = round_up(by_rows ? p.nc * p.units : n_team * b_own, 16);
    p.acc_at = a_block_units(isa, g->m, p.units);
    const int64_t own = p.acc_at + acc_units(isa, g->m, g->n, p.units);
    if (n_team == 1) {
        if (by_rows) run_by_rows(&p, 0, 1, b, b + b_units);
        else run_by_columns(&p, 0, 1, b, b + b_units);
        return;
    }
    #pragma omp parallel num_threads(n_team)
    {
        const int r = omp_get_thread_num(), n = omp_get_num_threads();
        uint32_t *mine = b + b_units + r * own;
        if (by_rows) run_by_rows(&p, r, n, b, mine);
        else run_by_columns(&p, r, n, b + r * b_own, mine);
    }
}
