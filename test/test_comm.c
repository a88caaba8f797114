/* The transports single and shm, and the collective operators: values against a serial tree, bit for bit, on 1 to 128
 * ranks. What happens when a rank is lost: test_ranks.c.
 *
 *   test_comm              all tests
 *   test_comm splits       those whose name contains "splits"
 *   test_comm --bench      start, barrier and bandwidth at 2, 4, 8, 128 ranks
 *
 * Threads can be ranks too (cdr__shm_attach): that is what a thread sanitizer sees into.
 */
#include "comm/shm.h"
#include "ops/count/count.h"
#include "ops/gather/gather.h"
#include "ops/replicate/replicate.h"
#include "ranks.h"

#include <pthread.h>

/* ---- values ------------------------------------------------------------------------------------------------------- */
/* Element i of piece p on rank r: magnitudes over 2^24, so that another order of sums shows. */
static double value_of(int r, int p, int64_t i)
{
    uint64_t u = draw((uint64_t)(r * 64 + p), (uint64_t)i);
    return ldexp((double)(int32_t)(u >> 32), -31 + (int)(u % 24));
}

/* Below 2^23, of either sign: 128 of them fit in 32 bits, and taken for floats their sums would be others. */
static int32_t count_of(int r, int p, int64_t i) { return (int32_t)(draw((uint64_t)(r * 64 + p), (uint64_t)i) >> 32) / 256; }

static int32_t serial_sum_i32(const int *ranks, int n, int p, int64_t i)
{
    int32_t sum = 0;
    for (int r = n - 1; r >= 0; r--) sum += count_of(ranks[r], p, i);       /* another order than the tree's */
    return sum;
}

static float serial_tree_f32(const int *ranks, int n, int p, int64_t i)
{
    float v[CDR_SHM_MAX_RANKS];
    for (int r = 0; r < n; r++) v[r] = (float)value_of(ranks[r], p, i);
    for (; n > 1; n = (n + 1) / 2)
        for (int r = 0; r < (n + 1) / 2; r++) v[r] = 2 * r + 1 < n ? v[2 * r] + v[2 * r + 1] : v[2 * r];
    return v[0];
}

static double serial_tree_f64(const int *ranks, int n, int p, int64_t i)
{
    double v[CDR_SHM_MAX_RANKS];
    for (int r = 0; r < n; r++) v[r] = value_of(ranks[r], p, i);
    for (; n > 1; n = (n + 1) / 2)
        for (int r = 0; r < (n + 1) / 2; r++) v[r] = 2 * r + 1 < n ? v[2 * r] + v[2 * r + 1] : v[2 * r];
    return v[0];
}

enum { PIECES = 37, GUARD = 64 };      /* more pieces than the control block takes at once */

typedef struct { cdr_piece p[PIECES]; int n; char *end; } plan;

/* Pieces with random rows and widths laid out in the slab, with guard bytes around; every rank makes the same. */
static plan make_plan(char *at, int n, uint64_t seed, int64_t max_rows, int size)
{
    plan l = { .n = n };
    for (int k = 0; k < n; k++) {
        uint64_t u = draw(seed, (uint64_t)k);
        int dtype = u % 5 == 0 ? CDR_F64 : u % 5 == 1 ? CDR_I32 : CDR_F32;
        size_t e = dtype == CDR_F64 ? 8 : 4;
        cdr_piece p = { .rows = 1 + (int64_t)(u >> 8) % max_rows, .row_bytes = e * (1 + (u >> 40) % 9), .dtype = dtype };
        size_t local = cdr_align_up((size_t)cdr_ceil_div(p.rows, size) * p.row_bytes, 64), full = cdr_align_up((size_t)p.rows * p.row_bytes, 64);
        p.local = at + GUARD;
        p.full = at + GUARD + local + GUARD;
        at += GUARD + local + GUARD + full + GUARD;
        l.p[k] = p;
    }
    l.end = at;
    return l;
}

static int64_t elems_of(const cdr_piece *p) { return (int64_t)((size_t)p->rows * p->row_bytes / (p->dtype == CDR_F64 ? 8 : 4)); }
static void put(const cdr_piece *p, void *at, int64_t i, int me, int k)
{
    if (p->dtype == CDR_F64) ((double *)at)[i] = value_of(me, k, i);
    else if (p->dtype == CDR_I32) ((int32_t *)at)[i] = count_of(me, k, i);
    else ((float *)at)[i] = (float)value_of(me, k, i);
}

static bool is_own(const cdr_piece *p, const void *at, int64_t i, int me, int k)
{
    if (p->dtype == CDR_F64) return ((const double *)at)[i] == value_of(me, k, i);
    if (p->dtype == CDR_I32) return ((const int32_t *)at)[i] == count_of(me, k, i);
    return ((const float *)at)[i] == (float)value_of(me, k, i);
}

static void fill_full(const plan *l, int me)
{
    for (int k = 0; k < l->n; k++)
        for (int64_t i = 0; i < elems_of(&l->p[k]); i++) put(&l->p[k], l->p[k].full, i, me, k);
}

static bool is_sum(const cdr_piece *p, const void *at, int64_t at_i, const int *ranks, int n, int k, int64_t i)
{
    if (p->dtype == CDR_F64) {
        double want = serial_tree_f64(ranks, n, k, i);
        return !memcmp((const double *)at + at_i, &want, 8);
    }
    if (p->dtype == CDR_I32) return ((const int32_t *)at)[at_i] == serial_sum_i32(ranks, n, k, i);
    float want = serial_tree_f32(ranks, n, k, i);
    return !memcmp((const float *)at + at_i, &want, 4);
}

/* Many ranks check every 61st element only: the serial tree costs as many draws as there are ranks. */
static int64_t check_step(int n) { return n > 16 ? 61 : 1; }

/* reduce_scatter, gather of the result, all_reduce in place and into another buffer; every element, every tail byte and
 * every guard byte. ranks: world ranks of c, in its order. */
static int all_collectives(cdr_comm *w, cdr_comm *c, const int *ranks, char *slab, size_t slab_bytes, int n_pieces, uint64_t seed, int64_t max_rows)
{
    int size = cdr_comm_size(c), me = cdr_comm_rank(c);
    int64_t step = check_step(size);
    memset(slab, 0xa5, slab_bytes);
    plan l = make_plan(slab, n_pieces, seed, max_rows, size);
    EXPECT(l.end <= slab + slab_bytes);
    fill_full(&l, ranks[me]);
    EXPECT_OK(cdr_comm_reduce_scatter(c, l.p, l.n));
    for (int k = 0; k < l.n; k++) {
        const cdr_piece *p = &l.p[k];
        int64_t lo = p->rows * me / size, hi = p->rows * (me + 1) / size, width = elems_of(p) / p->rows;
        for (int64_t i = lo * width; i < hi * width; i++) EXPECT(is_sum(p, p->local, i - lo * width, ranks, size, k, i));
        for (size_t b = (size_t)(hi - lo) * p->row_bytes; b < (size_t)cdr_ceil_div(p->rows, size) * p->row_bytes; b++) EXPECT(((char *)p->local)[b] == 0);
    }
    EXPECT_OK(cdr_comm_gather(c, l.p, l.n));
    for (int k = 0; k < l.n; k++)
        for (int64_t i = (me + k) % step; i < elems_of(&l.p[k]); i += step) EXPECT(is_sum(&l.p[k], l.p[k].full, i, ranks, size, k, i));
    fill_full(&l, ranks[me]);
    cdr_piece in_place[PIECES];
    for (int k = 0; k < l.n; k++) {
        in_place[k] = l.p[k];
        in_place[k].local = NULL;
    }
    EXPECT_OK(cdr_comm_all_reduce(c, in_place, l.n));
    for (int k = 0; k < l.n; k++)
        for (int64_t i = (me + k) % step; i < elems_of(&l.p[k]); i += step) EXPECT(is_sum(&l.p[k], l.p[k].full, i, ranks, size, k, i));
    for (int k = 0; k < l.n; k++)
        for (int b = 1; b <= GUARD; b++) {
            EXPECT((unsigned char)((char *)l.p[k].local)[-b] == 0xa5);
            EXPECT((unsigned char)((char *)l.p[k].full)[-b] == 0xa5);
            EXPECT((unsigned char)((char *)l.p[k].full)[cdr_align_up((size_t)l.p[k].rows * l.p[k].row_bytes, 64) - 1 + (size_t)b] == 0xa5);
        }

    /* into another buffer: the sources stay */
    cdr_piece to = l.p[0];
    if ((size_t)(l.end - slab) + (size_t)to.rows * to.row_bytes + GUARD > slab_bytes) return 0;
    to.local = l.end + GUARD;
    fill_full(&l, ranks[me]);
    EXPECT_OK(cdr_comm_all_reduce(c, &to, 1));
    for (int64_t i = 0; i < elems_of(&to); i++) {
        EXPECT(is_sum(&to, to.local, i, ranks, size, 0, i));
        EXPECT(is_own(&to, to.full, i, ranks[me], 0));
    }
    return 0;
}

static int world_collectives(cdr_comm *w, int rounds)
{
    cdr_err err = { 0 };
    size_t bytes = 1 << 20;
    int ranks[CDR_SHM_MAX_RANKS], n = cdr_comm_size(w);
    for (int r = 0; r < n; r++) ranks[r] = r;
    char *slab = cdr_comm_slab(w, bytes, &err);
    EXPECT(slab && (uintptr_t)slab % 4096 == 0);
    for (size_t i = 0; i < bytes; i++) EXPECT(slab[i] == 0);
    for (int k = 0; k < rounds; k++) {
        int code = all_collectives(w, w, ranks, slab, bytes, k == 0 ? PIECES : 1 + k % 5, 1000 + (uint64_t)k, n > 16 ? 300 : 1 + 60 * k);
        if (code) return code;
    }
    return 0;
}

static void tree_sums_on_1_to_128_ranks(void)
{
    static const int sizes[] = { 1, 2, 3, 4, 5, 6, 7, 8, 13, 16 };
    for (int i = 0; i < CDR_COUNT(sizes); i++)
        if (!t_quick() || sizes[i] <= 4 || sizes[i] == 13) T_CHECK(run_quiet(sizes[i], world_collectives, t_quick() ? 2 : 6) == 0);
    T_CHECK(run_quiet(128, world_collectives, t_quick() ? 1 : 2) == 0);
}

static void one_rank_without_launcher(void)
{
    cdr_comm *w;
    cdr_err err = { 0 };
    T_CHECK(cdr_comm_open(&(cdr_comm_spec){ .transport = "auto", .timeout_s = 10 }, &w, &err) == CDR_OK);
    T_STR(cdr_comm_transport(w), "single");
    T_STR(cdr_comm_source(w), "none");
    T_CHECK(cdr_comm_rank(w) == 0 && cdr_comm_size(w) == 1);
    T_CHECK(world_collectives(w, 3) == 0);
    const void *ptr[2] = { &err, NULL };
    T_CHECK(cdr_comm_expose(w, ptr, 2, 5) == CDR_OK && cdr_comm_peer(w, 0, 0) == &err && cdr_comm_peer(w, 0, 1) == NULL);
    T_CHECK(cdr_comm_barrier(w) == CDR_OK);
    cdr_comm *s = cdr_comm_split(w, 3, 5, &err);
    int64_t x = 5;
    T_CHECK(s && cdr_comm_size(s) == 1 && cdr_comm_sum_i64(s, &x, 1) == CDR_OK && x == 5);
    T_CHECK(cdr_comm_first_error(NULL));
    cdr_comm_close(w);
}

/* ---- small collectives, splits ------------------------------------------------------------------------------------- */
static int small_ones(cdr_comm *w, int arg)
{
    int n = cdr_comm_size(w), me = cdr_comm_rank(w);
    int64_t x[64], big = INT64_MAX / 2;
    for (int round = 0; round < arg; round++) {
        for (int i = 0; i < 64; i++) x[i] = (int64_t)(me + 1) * (i - 5) + (i == 63 && me == 0 ? big : 0);
        EXPECT_OK(cdr_comm_sum_i64(w, x, 64));
        for (int i = 0; i < 64; i++) EXPECT(x[i] == (int64_t)n * (n + 1) / 2 * (i - 5) + (i == 63 ? big : 0));
        size_t bytes = round == 0 ? 65536 : (size_t)(draw(5, (uint64_t)round) % 700);
        unsigned char *src = malloc(bytes + 1), *all = malloc(bytes * (size_t)n + 1);
        EXPECT(src && all);
        memset(src, me + round, bytes);
        EXPECT_OK(cdr_comm_all_gather(w, src, all, bytes));
        for (int r = 0; r < n; r++)
            for (size_t b = 0; b < bytes; b++) EXPECT(all[(size_t)r * bytes + b] == (unsigned char)(r + round));
        free(src);
        free(all);
        int root = round % n;
        size_t many = round == 0 ? 1300001 : (size_t)(draw(6, (uint64_t)round) % 100000);
        unsigned char *cast = malloc(many + 1);
        EXPECT(cast);
        for (size_t b = 0; b < many; b++) cast[b] = me == root ? (unsigned char)(b * 31 + (size_t)root) : 0;
        EXPECT_OK(cdr_comm_broadcast(w, cast, many, root));
        for (size_t b = 0; b < many; b++) EXPECT(cast[b] == (unsigned char)(b * 31 + (size_t)root));
        free(cast);
        EXPECT_OK(cdr_comm_barrier(w));
    }
    return 0;
}

static void small_collectives(void)
{
    T_CHECK(run_quiet(1, small_ones, 4) == 0);
    T_CHECK(run_quiet(2, small_ones, 20) == 0);
    T_CHECK(run_quiet(5, small_ones, 20) == 0);
    T_CHECK(run_quiet(32, small_ones, 3) == 0);
}

/* replicate x shard, both ways of cutting; ranks reversed by key; more rounds than there are slots; a split of a split */
static int splits(cdr_comm *w, int n_shard)
{
    cdr_err err = { 0 };
    int n = cdr_comm_size(w), me = cdr_comm_rank(w), ranks[CDR_SHM_MAX_RANKS];
    size_t bytes = 1 << 18;
    char *slab = cdr_comm_slab(w, bytes, &err);
    EXPECT(slab);
    for (int round = 0; round < 5 * n + 30; round++) {
        cdr_comm *shard = cdr_comm_split(w, me / n_shard, me % n_shard, &err);
        cdr_comm *replica = cdr_comm_split(w, me % n_shard, -me, &err);      /* descending */
        EXPECT(shard && replica);
        EXPECT(cdr_comm_size(shard) == n_shard && cdr_comm_rank(shard) == me % n_shard);
        EXPECT(cdr_comm_size(replica) == n / n_shard && cdr_comm_rank(replica) == n / n_shard - 1 - me / n_shard);
        if (round < 3) {
            for (int r = 0; r < n_shard; r++) ranks[r] = me / n_shard * n_shard + r;
            if (all_collectives(w, shard, ranks, slab, bytes, 3, (uint64_t)round, 90)) return 1;
            for (int r = 0; r < n / n_shard; r++) ranks[r] = (n / n_shard - 1 - r) * n_shard + me % n_shard;
            if (all_collectives(w, replica, ranks, slab, bytes, 3, (uint64_t)round, 90)) return 1;
            cdr_comm *half = cdr_comm_split(shard, cdr_comm_rank(shard) * 2 / n_shard, 0, &err);
            int64_t x = me;
            EXPECT(half);
            EXPECT_OK(cdr_comm_sum_i64(half, &x, 1));
        }
        if (round % 2) cdr_comm_close(shard);
        else cdr_comm_close(replica);
        cdr_comm_close(round % 2 ? replica : shard);
    }
    EXPECT(cdr_comm_split(w, 0, 0, &err));     /* left to cdr_comm_close(world) */
    return 0;
}

static void splits_of_every_shape(void)
{
    for (int shard = 1; shard <= 8; shard *= 2) T_CHECK(run_quiet(8, splits, shard) == 0);
    T_CHECK(run_quiet(6, splits, 3) == 0);
}

/* 10,000 collectives of random kind on the world and on pairs */
static int soak(cdr_comm *w, int n_coll)
{
    cdr_err err = { 0 };
    int me = cdr_comm_rank(w), n = cdr_comm_size(w);
    float *slab = cdr_comm_slab(w, 1 << 16, &err), *full = slab, *local = slab + 4096;
    cdr_comm *pair = cdr_comm_split(w, me / 2, me, &err);
    EXPECT(slab && pair);
    for (int i = 0; i < n_coll; i++) {
        uint64_t u = draw(77, (uint64_t)i);
        cdr_comm *c = u & 8 ? pair : w;
        int size = cdr_comm_size(c), first = c == w ? 0 : me / 2 * 2;
        int64_t rows = 1 + (int64_t)(u >> 8) % 800, x = me, sum = (int64_t)size * first + (int64_t)size * (size - 1) / 2;
        int64_t lo = rows * cdr_comm_rank(c) / size, mine = rows * (cdr_comm_rank(c) + 1) / size - lo;
        cdr_piece p = { .local = local, .full = full, .rows = rows, .row_bytes = 4, .dtype = CDR_F32 };
        cdr_comm_note(c, i, (int)(u % 5), "soak");
        switch (u % 5) {
        case 0:
            for (int64_t k = 0; k < rows; k++) full[k] = (float)(me + k);
            EXPECT_OK(cdr_comm_reduce_scatter(c, &p, 1));
            for (int64_t k = 0; k < mine; k++) EXPECT(local[k] == (float)(sum + size * (lo + k)));
            break;
        case 1:
            for (int64_t k = 0; k < mine; k++) local[k] = (float)(lo + k + i % 100);
            EXPECT_OK(cdr_comm_gather(c, &p, 1));
            for (int64_t k = 0; k < rows; k++) EXPECT(full[k] == (float)(k + i % 100));
            break;
        case 2:
            p.local = NULL;
            for (int64_t k = 0; k < rows; k++) full[k] = (float)(me + k);
            EXPECT_OK(cdr_comm_all_reduce(c, &p, 1));
            for (int64_t k = 0; k < rows; k++) EXPECT(full[k] == (float)(sum + size * k));
            break;
        case 3:
            EXPECT_OK(cdr_comm_sum_i64(c, &x, 1));
            EXPECT(x == sum);
            break;
        default:
            EXPECT_OK(cdr_comm_barrier(c));
        }
    }
    EXPECT(n % 2 == 0);
    return 0;
}

static void ten_thousand_collectives(void)
{
    int n = t_quick() ? 2000 : 10000;
    T_CHECK(run_quiet(2, soak, n) == 0);
    T_CHECK(run_quiet(4, soak, n) == 0);
    T_CHECK(run_quiet(128, soak, n / 50) == 0);
}

/* Every rank reads words of every other, out of two operands of its slab; one is named by odd ranks alone. begin and end have work of
 * their own between them, of a length that differs by rank; many rounds, on the world and on a split, one after the other. */
static int exposes(cdr_comm *w, int rounds)
{
    cdr_err err = { 0 };
    enum { WORDS = 500 };
    int me = cdr_comm_rank(w);
    int64_t *slab = cdr_comm_slab(w, 3 * WORDS * sizeof(int64_t), &err);
    cdr_comm *half = cdr_comm_split(w, me % 2, me, &err);
    EXPECT(slab && half);
    for (int round = 0; round < rounds; round++) {
        cdr_comm *c = round % 3 == 2 ? half : w;
        int size = cdr_comm_size(c), n = 1 + round % 2;
        const void *ptr[2] = { slab + round % 3 * WORDS, me % 2 ? slab : NULL };
        int64_t *own = slab + round % 3 * WORDS, busy = 0;
        for (int i = 0; i < WORDS; i++) own[i] = (int64_t)me * 100000000 + round * 1000 + i;
        if (round % 4 == 0) {
            EXPECT_OK(cdr_comm_expose(c, ptr, n, (uint64_t)round));
        } else {
            EXPECT_OK(cdr_comm_expose_begin(c, ptr, n, (uint64_t)round));
            for (int64_t i = 0; i < (int64_t)(draw(9, (uint64_t)(round * 64 + me)) % 20000); i++) busy += own[i % WORDS] % 7;
            EXPECT(busy >= 0);
            EXPECT_OK(cdr_comm_expose_end(c));
        }
        for (int r = 0; r < size; r++) {
            int who = c == w ? r : r * 2 + me % 2;
            const int64_t *theirs = cdr_comm_peer(c, r, 0);
            for (int i = 0; i < WORDS; i++) EXPECT(theirs[i] == (int64_t)who * 100000000 + round * 1000 + i);
            if (n == 2) EXPECT((cdr_comm_peer(c, r, 1) != NULL) == (who % 2 == 1));
            if (n == 2 && who % 2) EXPECT(who == me ? cdr_comm_peer(c, r, 1) == slab : *(const int64_t *)cdr_comm_peer(c, r, 1) / 100000000 == who);
        }
        EXPECT_OK(cdr_comm_barrier(c));
    }
    return 0;
}

static void peers_read_what_is_exposed(void)
{
    int n = t_quick() ? 200 : 2000;
    T_CHECK(run_quiet(1, exposes, n) == 0);
    T_CHECK(run_quiet(2, exposes, n) == 0);
    T_CHECK(run_quiet(8, exposes, n / 4) == 0);
    T_CHECK(run_quiet(64, exposes, n / 50) == 0);
}

/* ---- operators -------------------------------------------------------------------------------------------------------- */
/* Types from infer, operands in the slab, the kernel as the executor calls it. */
static int run_op(cdr_comm *w, const cdr_op *op, const void *attr, int n_in, const cdr_type *in, void *const *ptr)
{
    cdr_err err = { 0 };
    cdr_type type[2 * CDR_GATHER_MAX];
    int n_out = 0;
    cdr_comm *comms[CDR_N_COMMS] = { w, w, w };
    cdr_lane lane = { .n_threads = 1, .comms = comms };
    memcpy(type, in, sizeof *in * (size_t)n_in);
    EXPECT_OK(op->infer(attr, n_in, in, &n_out, type + n_in, &err));
    cdr_args a = { .attr = attr, .type = type, .ptr = ptr, .n_in = n_in, .n_out = n_out, .lane = &lane };
    EXPECT_OK(op->kernels[0].run(&a));
    return 0;
}

static int operators(cdr_comm *w, int arg)
{
    cdr_err err = { 0 };
    int n = cdr_comm_size(w), me = cdr_comm_rank(w), ranks[CDR_SHM_MAX_RANKS];
    int64_t rows = 21 + arg, cols = 5, cap = cdr_ceil_div(rows, n), lo = rows * me / n, mine = rows * (me + 1) / n - lo;
    for (int r = 0; r < n; r++) ranks[r] = r;
    char *slab = cdr_comm_slab(w, 1 << 16, &err);
    EXPECT(slab);
    float *full = (float *)slab, *shard = full + 1024, *sum = full + 2048;
    uint16_t *b_shard = (uint16_t *)(full + 4096), *b_full = b_shard + 1024;

    for (int64_t i = 0; i < rows * cols; i++) full[i] = (float)value_of(me, 0, i);
    cdr_gather_attr a = { .coll = { .comm = CDR_COMM_SHARD }, .n = 1, .size = n, .rows = { rows, rows } };
    cdr_type whole = cdr_type_2d(CDR_F32, rows, cols), part = cdr_type_2d(CDR_F32, cap, cols), parts[] = { part, cdr_type_2d(CDR_BF16, cap, cols) };
    if (run_op(w, &cdr_op_reduce_scatter, &a, 1, &whole, (void *[]){ full, shard })) return 1;
    for (int64_t i = 0; i < mine * cols; i++) EXPECT(shard[i] == serial_tree_f32(ranks, n, 0, i + lo * cols));
    for (int64_t i = mine * cols; i < cap * cols; i++) EXPECT(shard[i] == 0.0f);
    if (run_op(w, &cdr_op_all_reduce, &a, 1, &whole, (void *[]){ full, sum })) return 1;
    for (int64_t i = 0; i < rows * cols; i++) EXPECT(sum[i] == serial_tree_f32(ranks, n, 0, i) && full[i] == (float)value_of(me, 0, i));
    if (run_op(w, &cdr_op_all_reduce, &a, 1, &whole, (void *[]){ full, full })) return 1;
    EXPECT(!memcmp(full, sum, (size_t)(rows * cols) * 4));

    int32_t *count = (int32_t *)(full + 3072);
    cdr_type counts = cdr_type_2d(CDR_I32, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) count[i] = count_of(me, 0, i);
    if (run_op(w, &cdr_op_all_reduce, &a, 1, &counts, (void *[]){ count, count })) return 1;
    for (int64_t i = 0; i < rows * cols; i++) EXPECT(count[i] == serial_sum_i32(ranks, n, 0, i));

    for (int64_t i = 0; i < mine * cols; i++) b_shard[i] = (uint16_t)(i + lo * cols);
    memset(full, 0, 4096);
    a.n = 2;
    if (run_op(w, &cdr_op_gather, &a, 2, parts, (void *[]){ shard, b_shard, full, b_full })) return 1;
    EXPECT(!memcmp(full, sum, (size_t)(rows * cols) * 4));
    for (int64_t i = 0; i < rows * cols; i++) EXPECT(b_full[i] == (uint16_t)i);

    cdr_count_attr ca = { .coll = { .comm = CDR_COMM_WORLD }, .size = n };
    cdr_type words = cdr_type_1d(CDR_I64, CDR_COUNT_WORDS);
    int64_t total[CDR_COUNT_WORDS] = { [CDR_COUNT_TRAINED] = 100 + me, me == 1, 0, -me, [CDR_COUNT_ROWS] = 200 + me };
    float scale = -1, scale_rows = -1;
    void *operand[] = { total, total, &scale, &scale_rows };
    if (run_op(w, &cdr_op_count, &ca, 1, &words, operand)) return 1;
    EXPECT(total[0] == 100 * n + n * (n - 1) / 2 && total[1] == (n > 1) && total[2] == 0 && total[3] == -n * (n - 1) / 2);
    EXPECT(total[CDR_COUNT_ROWS] == 200 * n + n * (n - 1) / 2);
    EXPECT(scale == (float)(1.0 / (double)total[CDR_COUNT_TRAINED]) && scale_rows == (float)(1.0 / (double)total[CDR_COUNT_ROWS]));
    memset(total, 0, sizeof total);
    if (run_op(w, &cdr_op_count, &ca, 1, &words, operand)) return 1;
    EXPECT(scale == 1.0f && scale_rows == 1.0f && total[0] == 0);
    return 0;
}

static void operators_on_1_2_4_8_ranks(void)
{
    for (int n = 1; n <= 8; n *= 2) T_CHECK(run_quiet(n, operators, n) == 0);
    T_CHECK(run_quiet(128, operators, 0) == 0);          /* fewer rows than ranks: most shards are a tail */
}

/* What a builder appends: types, bytes on the wire, and the gradient as a collective of its own. */
static void operators_in_a_graph(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { 0 };
    cdr_bundle *b = cdr_pool_alloc(pool, sizeof *b);
    cdr_graph *g = cdr_graph_new(pool, b, "test", &err);
    cdr_graph_list(g, "micro");
    cdr_val shard[2] = { cdr_graph_value(g, cdr_type_2d(CDR_BF16, 3, 8), CDR_TURN, CDR_C_WEIGHT, "a"),
                         cdr_graph_value(g, cdr_type_1d(CDR_F32, 2), CDR_TURN, CDR_C_WEIGHT, "b") };
    cdr_val full[2] = { CDR_NEW, CDR_NEW }, din[2] = { CDR_NONE, CDR_NONE };
    int64_t rows[2] = { 10, 6 };
    bool want[2] = { true, true };
    T_CHECK(cdr_gather(g, CDR_COMM_SHARD, 4, 2, shard, rows, full) == CDR_OK);
    T_CHECK(cdr_graph_type(g, full[0])->n[0] == 10 && cdr_graph_type(g, full[0])->dtype == CDR_BF16 && cdr_graph_type(g, full[1])->n[0] == 6);
    cdr_call *c = &g->calls[g->n_calls - 1];
    const cdr_gather_attr *a = cdr_graph_attr(g, c);
    T_CHECK(c->stream == CDR_S_COMM && a->coll.wire_bytes == (10 - 2) * 16 + (6 - 1) * 4);
    cdr_val dout[2] = { cdr_graph_value(g, cdr_type_2d(CDR_F32, 10, 8), CDR_TURN, CDR_C_GRAD, "da"), CDR_NONE };
    T_CHECK(cdr_op_gather.grad(g, &g->calls[0], dout, want, din, &err) == CDR_OK);
    T_CHECK(din[0] >= 0 && din[1] == CDR_NONE && cdr_graph_type(g, din[0])->n[0] == 3 && cdr_graph_type(g, din[0])->dtype == CDR_F32);
    a = cdr_graph_attr(g, &g->calls[1]);
    T_CHECK(g->n_calls == 2 && a->coll.kind == CDR_COLL_REDUCE_SCATTER && a->coll.order == CDR_ORDER_TREE && a->coll.wire_bytes == 3 * 3 * 32);

    cdr_val w[1] = { shard[1] }, view[1] = { CDR_NEW }, dview[1] = { cdr_graph_value(g, cdr_type_1d(CDR_F32, 2), CDR_TURN, CDR_C_GRAD, "db") };
    T_CHECK(cdr_replicate(g, CDR_COMM_SHARD, 4, 1, w, view) == CDR_OK && cdr_graph_at(g, view[0])->alias == w[0]);
    T_CHECK(cdr_op_replicate.grad(g, &g->calls[2], dview, want, din, &err) == CDR_OK && din[0] >= 0 && din[0] != dview[0]);
    a = cdr_graph_attr(g, &g->calls[3]);
    T_CHECK(g->n_calls == 4 && a->coll.kind == CDR_COLL_ALL_REDUCE && a->size == 4);

    cdr_val bad[1] = { full[0] }, out[1] = { CDR_NEW };                  /* BF16 is not summed */
    T_CHECK(cdr_all_reduce(g, CDR_COMM_SHARD, 4, 1, bad, out) != CDR_OK);
    T_HAS(err.text, "F32, F64 or I32");
    cdr_pool_free(pool);
}

/* ---- threads as ranks -------------------------------------------------------------------------------------------------- */
static void threads_run(int n, body f, int arg) { T_CHECK(run_threads(n, f, arg, 10) == 0); }

static void threads_as_ranks(void)
{
    static const int sizes[] = { 2, 4, 5, 8 };
    for (int i = 0; i < CDR_COUNT(sizes); i++) {
        threads_run(sizes[i], world_collectives, 4);
        threads_run(sizes[i], small_ones, 5);
    }
    threads_run(8, splits, 4);
    threads_run(8, exposes, 100);
    threads_run(8, operators, 8);
    threads_run(4, soak, 1000);
}

/* ---- bench --------------------------------------------------------------------------------------------------------------- */
static double best_ms(cdr_comm *w, cdr_status (*f)(cdr_comm *, const cdr_piece *, int), const cdr_piece *p, int reps)
{
    double best = 1e9;
    for (int window = 0; window < 5; window++) {
        cdr_comm_barrier(w);
        int64_t t0 = cdr_now_ns();
        for (int i = 0; i < reps; i++) {
            if (f) f(w, p, 1);
            else cdr_comm_barrier(w);
        }
        best = fmin(best, (double)(cdr_now_ns() - t0) / 1e6 / reps);
    }
    return best;
}

static int64_t bench_t0;

/* The floor of a gather: each rank copies as many bytes out of its own memory. */
static cdr_status plain_copy(cdr_comm *w, const cdr_piece *p, int n)
{
    (void)w, (void)n;
    memcpy(p->full, p->local, (size_t)p->rows * p->row_bytes);
    return CDR_OK;
}

static int bench_start(cdr_comm *w, int arg)
{
    (void)arg;
    if (cdr_comm_rank(w) == 0) say("%.3f\n", (double)(cdr_now_ns() - bench_t0) / 1e6);
    return 0;
}

static int bench_rank(cdr_comm *w, int mb)
{
    int n = cdr_comm_size(w), reps = n > 16 ? 3 : 10;
    size_t full = (size_t)mb << 20, local = full;
    char *slab = cdr_comm_slab(w, full + local, NULL);
    cdr_piece p = { .full = slab, .local = slab + full, .rows = (int64_t)full / 4, .row_bytes = 4, .dtype = CDR_F32 }, in_place = p;
    in_place.local = NULL;
    memset(slab, 0, full + local);
    double barrier = best_ms(w, NULL, NULL, n > 16 ? 50 : 1000);
    double copy = best_ms(w, plain_copy, &p, reps);
    double gather = best_ms(w, cdr_comm_gather, &p, reps), scatter = best_ms(w, cdr_comm_reduce_scatter, &p, reps);
    double all = best_ms(w, cdr_comm_all_reduce, &in_place, reps);
    p.rows = 1024;
    double small = best_ms(w, cdr_comm_all_reduce, &p, 20);
    double gb = (double)full * n / 1e6;                      /* bytes of all ranks' results (operands), per ms */
    if (cdr_comm_rank(w) == 0)
        printf("barrier %8.4f ms   all_reduce 4 KiB %7.3f ms   %d MiB a rank: plain copy %8.2f ms   gather %8.2f ms (%.2f GB/s written)   "
               "reduce_scatter %8.2f ms (%.2f GB/s read)   all_reduce %8.2f ms\n", barrier, small, mb, copy, gather, gb / gather, scatter, gb / scatter, all);
    return 0;
}

static int bench(void)
{
    static const int sizes[] = { 2, 4, 8, 128 };
    for (int i = 0; i < CDR_COUNT(sizes); i++) {
        double best = 1e9;
        char said[64];
        for (int k = 0; k < 10; k++) {
            bench_t0 = cdr_now_ns();
            if (run_ranks(sizes[i], bench_start, 0, 10, said, sizeof said, NULL)) return 1;
            best = fmin(best, atof(said));
        }
        printf("%4d ranks   start + first barrier %7.2f ms   ", sizes[i], best);
        fflush(stdout);
        if (run_quiet(sizes[i], bench_rank, sizes[i] > 16 ? 1 : 64)) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--bench")) return bench();
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(one_rank_without_launcher);
    T_RUN(tree_sums_on_1_to_128_ranks);
    T_RUN(small_collectives);
    T_RUN(splits_of_every_shape);
    T_RUN(peers_read_what_is_exposed);
    T_RUN(operators_on_1_2_4_8_ranks);
    T_RUN(operators_in_a_graph);
    T_RUN(ten_thousand_collectives);
    T_RUN(threads_as_ranks);
    return t_end();
}
