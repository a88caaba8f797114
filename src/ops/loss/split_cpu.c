/* loss over a split head, CPU kernels: op.c's equations with chunks.inc's functions, hence loss's bits. Against loss the loops are turned
 * round, so that each piece of the head is read once a pass, and every rank takes the same pieces whatever tokens it has:
 *
 *   for each piece of the vocabulary, read from its owners         (all ranks in step)
 *     for each chunk of tokens with a target                       logits; forward: (max, sum) of each token goes on
 *                                                                  backward: d; dh of each token goes on; the piece's dw goes on
 *     backward: dw is summed over ranks
 * Each token's max, sum and dh, and each row of dw, see the same operands in the same order as in loss. What loss has room for by chunk
 * of tokens (max, sum, dh in F32) is there for all tokens.
 *
 * The sum of dw, piece k (split.c has the slices). Between two barriers every rank does one line:
 *   own dw of piece k -> stage.dw[k & 1]
 *   --- barrier ---
 *   slice of piece k: tree over the peers' stage.dw[k & 1] -> stage.slice[k & 1];  own rows of piece k - 1 out of the peers' slices;  dw of piece k + 1
 *   --- barrier ---
 * One barrier a piece: stage.dw[k & 1] is written again for piece k + 2, after the barrier that every rank reaches with its slice of k
 * summed; a slice is written again after the barrier that its readers reach with their rows copied.
 * Weights do not change during the call, so reading them needs the first barrier and the last alone.
 */
#include "comm/comm.h"
#include "ops/loss/chunks.inc"

enum { BLOCK = 1024, LEVELS = 16 };       /* floats of a partial sum; of a tree over up to 2^15 ranks */

/* The ranks of a call. One rank: no communicator is needed, the shard is the head, and dw is its gradient. */
typedef struct {
    cdr_comm *comm; int size, me;
    int64_t W;
    cdr__loss_stage at;
    char *stage;
    const char **peer;                    /* [size][2]: shard, stage of each rank */
    float *levels;                        /* [threads][LEVELS][BLOCK] */
} ranks;

static int64_t first_row(int64_t rows, int r, int size) { return r * rows / size; }

static size_t ranks_work(const cdr_loss_pieces_attr *at, int n_threads)
{
    if (at->size == 1) return 0;
    return part(2 * (size_t)at->size, sizeof(char *)) + (at->dw ? part((size_t)n_threads * LEVELS * BLOCK, 4) : 0);
}

/* All ranks meet. The peers' addresses hold for the whole call; what may be read there, the barriers say. */
static cdr_status ranks_open(const cdr_args *a, ranks *k, char **at)
{
    const cdr_loss_pieces_attr *p = a->attr;
    const cdr_type *wt = &a->type[CDR__LOSS_W];
    *k = (ranks){ .size = p->size, .W = p->rows, .at = cdr__loss_stage_of(p, wt), .stage = output(a, CDR__LOSS_STAGE) };
    if (p->size == 1) return CDR_OK;
    k->comm = a->lane->comms[p->coll.comm];
    assert(k->comm && cdr_comm_size(k->comm) == p->size);
    k->me = cdr_comm_rank(k->comm);
    k->peer = take(at, 2 * (size_t)p->size, sizeof(char *));
    if (p->dw) k->levels = take(at, (size_t)a->lane->n_threads * LEVELS * BLOCK, 4);
    const void *own[2] = { a->ptr[CDR__LOSS_W], k->stage };
    const int64_t shape[] = { p->rows, wt->n[1], wt->dtype, p->chunks.chunk_vocab, p->dw, a->n_in };
    CDR_TRY(cdr_comm_expose(k->comm, own, 2, cdr_hash64(shape, sizeof shape, 0)));
    for (int r = 0; r < p->size; r++)
        for (int i = 0; i < 2; i++) {
            k->peer[2 * r + i] = cdr_comm_peer(k->comm, r, i);
            CDR_CHECK(k->peer[2 * r + i]);              /* a transport that cannot address peers has a kernel of its own */
        }
    return CDR_OK;
}

/* Nobody leaves while another reads. */
static cdr_status ranks_close(const ranks *k) { return k->size == 1 ? CDR_OK : cdr_comm_barrier(k->comm); }

/* Rows [v0, ..) of the head: in place where they are this rank's own, else out of their owners' shards. */
static piece fetch(const cdr_args *a, const sizes *z, const ranks *k, int64_t v0)
{
    if (k->size == 1) return piece_at(a, z, v0);
    const cdr_type *wt = &a->type[CDR__LOSS_W];
    piece w = { .p = k->stage + k->at.w, .dtype = wt->dtype, .pitch = z->D, .v0 = v0, .n = CDR_MIN(z->cv, z->W - v0) };
    size_t row = (size_t)cdr_dtype_bytes(wt->dtype, z->D);
    int64_t lo = first_row(k->W, k->me, k->size), hi = first_row(k->W, k->me + 1, k->size);
    if (v0 >= lo && v0 + w.n <= hi) {
        w.p = k->peer[2 * k->me] + (size_t)(v0 - lo) * row;
        return w;
    }
    cdr_comm_count_read(k->comm, (w.n - CDR_MAX(0, CDR_MIN(hi, v0 + w.n) - CDR_MAX(lo, v0))) * (int64_t)row);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (w.n * z->D > FORK)
    for (int64_t i = 0; i < w.n; i++) {
        int owner = (int)(((v0 + i + 1) * k->size - 1) / k->W);            /* the last rank whose first row is not beyond */
        memcpy(k->stage + k->at.w + (size_t)i * row, k->peer[2 * owner] + (size_t)(v0 + i - first_row(k->W, owner, k->size)) * row, row);
    }
    return w;
}

/* ---- the sum of dw ------------------------------------------------------------------------------------------------------ */
/* y = sum of x_r, n <= BLOCK floats, x_r at `from` bytes in r's stage: ((0 + 1) + (2 + 3)) + .., an odd last one goes up as it is. top[l] is
 * the sum of 2^l ranks that waits for its right neighbour; it lies in level l, or in the stage itself. */
static void tree_block(const ranks *k, int64_t from, int64_t n, float *levels, float *y)
{
    const float *top[LEVELS] = { NULL };
    float *going = levels;                                                 /* level 0 needs no room of its own */
    for (int r = 0; r < k->size; r++) {
        const float *x = (const float *)(const void *)(k->peer[2 * r + 1] + from);
        int l = 0;
        for (; (r >> l) & 1; l++) {
            float *to = (r >> (l + 1)) & 1 ? going : levels + (l + 1) * BLOCK;
            for (int64_t i = 0; i < n; i++) to[i] = top[l][i] + x[i];
            x = to;
        }
        top[l] = x;
    }
    const float *x = NULL;
    for (int l = 0; l < LEVELS; l++) {
        if (!((k->size >> l) & 1)) continue;
        for (int64_t i = 0; i < n && x; i++) going[i] = top[l][i] + x[i];
        x = x ? going : top[l];
    }
    memcpy(y, x, (size_t)n * sizeof *y);
}

static void sum_slice(const cdr_args *a, const sizes *z, const ranks *k, int64_t i_piece)
{
    int64_t v0 = i_piece * z->cv, rows = CDR_MIN(z->cv, z->W - v0), lo = first_row(rows, k->me, k->size), n = (first_row(rows, k->me + 1, k->size) - lo) * z->D;
    float *slice = (float *)(void *)(k->stage + k->at.slice[i_piece & 1]);
    cdr_comm_count_read(k->comm, n * 4 * (k->size - 1));
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (n * k->size > FORK)
    for (int64_t i = 0; i < n; i += BLOCK)
        tree_block(k, k->at.dw[i_piece & 1] + (lo * z->D + i) * 4, CDR_MIN(BLOCK, n - i), cdr_thread_part(k->levels, LEVELS * BLOCK), slice + i);
}

/* This rank's rows of a piece out of the slices. */
static void own_rows(const cdr_args *a, const sizes *z, const ranks *k, int64_t i_piece)
{
    const cdr_type *t = output_type(a, CDR__LSB_DW);
    bool add = (a->add >> 1) & 1u;
    int64_t v0 = i_piece * z->cv, rows = CDR_MIN(z->cv, z->W - v0), own = first_row(k->W, k->me, k->size), end = first_row(k->W, k->me + 1, k->size);
    for (int r = 0; r < k->size; r++) {
        int64_t from = v0 + first_row(rows, r, k->size), lo = CDR_MAX(own, from), hi = CDR_MIN(end, v0 + first_row(rows, r + 1, k->size));
        const float *slice = (const float *)(const void *)(k->peer[2 * r + 1] + k->at.slice[i_piece & 1]);
        if (r != k->me) cdr_comm_count_read(k->comm, CDR_MAX(0, hi - lo) * z->D * 4);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if ((hi - lo) * z->D > FORK)
        for (int64_t v = lo; v < hi; v++) {
            const float *x = slice + (v - from) * z->D;
            float *y = cdr_row(output(a, CDR__LSB_DW), t, v - own);
            for (int64_t i = 0; i < z->D; i++) y[i] = add ? y[i] + x[i] : x[i];
        }
    }
}

/* ---- passes over the head ------------------------------------------------------------------------------------------------- */
/* m, s, at_y and what else there is of the chunk that begins with trained token i. */
static chunk of_tokens(const cdr_args *a, const chunk *all, int64_t i, int64_t D)
{
    chunk x = *all;
    x.m = all->m + i;
    x.s = all->s + i;
    x.at_y = all->at_y + i;
    x.rest = all->rest ? all->rest + i : NULL;
    x.dh = all->dh ? all->dh + i * D : NULL;
    x.w_y = all->w_y ? all->w_y + cdr_dtype_bytes(a->type[CDR__LOSS_W].dtype, i * D) : NULL;
    return x;
}

/* (1) and (2) of all tokens; lse by token or NULL. */
static double forward_pass(const cdr_args *a, const sizes *z, const ranks *k, chunk *all, int path, const cdr__loss_rows *rows, float *lse)
{
    double sum = 0;
    if (lse) memset(lse, 0, sizeof *lse * (size_t)z->T);
    for (int64_t v0 = 0; v0 < z->W; v0 += z->cv) {
        piece w = fetch(a, z, k, v0);
        for (int64_t t = 0, i = 0; chunk_next(a, z, all, &t); i += all->n) {
            chunk c = of_tokens(a, all, i, z->D);
            if (v0 == 0) chunk_begin(&c);
            chunk_logits(a, z, &c, path, &w, c.logits);
            chunk_stats(a, z, &c, rows, &w, c.logits);
        }
    }
    for (int64_t t = 0, i = 0; chunk_next(a, z, all, &t); i += all->n) {
        chunk c = of_tokens(a, all, i, z->D);
        sum = chunk_loss(&c, sum, lse);
    }
    return sum;
}

/* (3) and (4) of one piece; dw (or NULL): [w.n][D], rows dw_pitch apart, overwritten unless dw_add. */
static void backward_piece(const cdr_args *a, const sizes *z, chunk *all, int path, const cdr__loss_rows *rows, const piece *w, const float *lse, float scale,
                           void *dw, int64_t dw_pitch, bool dw_add)
{
    for (int64_t t = 0, i = 0; chunk_next(a, z, all, &t); i += all->n, dw_add = true) {
        chunk c = of_tokens(a, all, i, z->D);
        chunk_logits(a, z, &c, path, w, c.logits);
        chunk_grad(a, z, &c, rows, w, c.logits, lse, scale);
        if (c.dh) chunk_dh(a, z, &c, path, w, c.logits);
        if (dw) chunk_dw(a, z, &c, path, w, dw, dw_pitch, dw_add);
    }
    for (int64_t v = 0; v < w->n && dw && !dw_add; v++) memset((float *)dw + v * dw_pitch, 0, sizeof(float) * (size_t)z->D);     /* no token had a target */
}

static void store_dh(const cdr_args *a, const sizes *z, chunk *all, int k, bool add)
{
    if (!add) zero_masked(a, z, k);
    for (int64_t t = 0, i = 0; chunk_next(a, z, all, &t); i += all->n) {
        chunk c = of_tokens(a, all, i, z->D);
        chunk_store(a, z, &c, k, add);
    }
}

/* ---- the operators --------------------------------------------------------------------------------------------------------- */
static sizes split_sizes(const void *attr, const cdr_type *t)
{
    const cdr_loss_pieces_attr *p = attr;
    return sizes_of(&p->chunks, t, p->rows);
}

static cdr_status fwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = split_sizes(a->attr, a->type);
    char *at = a->work;
    ranks k;
    CDR_TRY(ranks_open(a, &k, &at));
    chunk all = chunk_take(&z, &a->type[CDR__LOSS_H], z.T, &at);
    all.weight = weights_of(a, CDR__LOSS_WEIGHTS);
    all.gemm = at;
    *(double *)output(a, CDR__LOSS_SUM) = forward_pass(a, &z, &k, &all, path, rows, output(a, CDR__LOSS_LSE));
    return ranks_close(&k);
}

static size_t fwd_work(int path, const void *attr, int n_in, const cdr_type *t, int n_threads)
{
    (void)n_in;
    const sizes z = split_sizes(attr, t);
    return ranks_work(attr, n_threads) + chunk_bytes(&z, &t[CDR__LOSS_H], z.T) + cdr__gemm_work_bytes(path, z.ct, z.cv, z.D, n_threads);
}

static cdr_status bwd(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = split_sizes(a->attr, a->type);
    const cdr_type *dwt = output_type(a, CDR__LSB_DW);
    const float *lse = a->ptr[CDR__LSB_LSE], scale = *(const float *)a->ptr[CDR__LSB_SCALE];
    void *dh = output(a, CDR__LSB_DH), *dw = output(a, CDR__LSB_DW);
    const bool dh_add = a->add & 1u, dw_add = (a->add >> 1) & 1u;
    const int64_t n_pieces = cdr_ceil_div(z.W, z.cv);
    char *at = a->work;
    ranks k;
    CDR_TRY(ranks_open(a, &k, &at));
    chunk all = chunk_take(&z, &a->type[CDR__LOSS_H], z.T, &at);
    all.weight = weights_of(a, CDR__LSB_WEIGHTS);
    if (dh) all.dh = take(&at, (size_t)(z.T * z.D), 4);
    all.old = take(&at, (size_t)(z.D * a->lane->n_threads), 4);
    all.gemm = at;
    for (int64_t i = 0; i < n_pieces; i++) {
        piece w = fetch(a, &z, &k, i * z.cv);
        if (k.size == 1) {
            backward_piece(a, &z, &all, path, rows, &w, lse, scale, dw ? cdr_row(dw, dwt, w.v0) : NULL, dw ? cdr_type_pitch(dwt) : 0, dw_add);
            continue;
        }
        backward_piece(a, &z, &all, path, rows, &w, lse, scale, dw ? k.stage + k.at.dw[i & 1] : NULL, z.D, false);
        if (!dw) continue;
        CDR_TRY(cdr_comm_barrier(k.comm));
        sum_slice(a, &z, &k, i);
        if (i > 0) own_rows(a, &z, &k, i - 1);
    }
    if (dw && k.size > 1) {
        CDR_TRY(cdr_comm_barrier(k.comm));
        own_rows(a, &z, &k, n_pieces - 1);
        int64_t own = first_row(k.W, k.me + 1, k.size) - first_row(k.W, k.me, k.size);
        for (int64_t v = own; v < dwt->n[0] && !dw_add; v++) zero_row(a, CDR__LSB_DW, v);
    }
    if (dh) store_dh(a, &z, &all, CDR__LSB_DH, dh_add);
    return ranks_close(&k);
}

static size_t bwd_work(int path, const void *attr, int n_in, const cdr_type *t, int n_threads)
{
    const sizes z = split_sizes(attr, t);
    return ranks_work(attr, n_threads) + chunk_bytes(&z, &t[CDR__LOSS_H], z.T) + (cdr_absent(&t[n_in + CDR__LSB_DH]) ? 0 : part((size_t)(z.T * z.D), 4)) +
           part((size_t)(z.D * n_threads), 4) + products_work(path, &z, n_threads);
}

/* Rows of w that targets name, which a rank keeps while their pieces are there, take T D elements. */
static cdr_status frozen(const cdr_args *a, int path, const cdr__loss_rows *rows)
{
    const sizes z = split_sizes(a->attr, a->type);
    const float scale = *(const float *)a->ptr[CDR__LSF_SCALE];
    double sum = 0;
    char *at = a->work;
    ranks k;
    CDR_TRY(ranks_open(a, &k, &at));
    chunk all = chunk_take(&z, &a->type[CDR__LOSS_H], z.T, &at);
    all.weight = weights_of(a, CDR__LSF_WEIGHTS);
    if (!output(a, CDR__LSF_DH)) {
        all.gemm = at;
        *(double *)output(a, CDR__LSF_SUM) = forward_pass(a, &z, &k, &all, path, rows, NULL);
        return ranks_close(&k);
    }
    all.rest = take(&at, (size_t)z.T, 4);
    all.dh = take(&at, (size_t)(z.T * z.D), 4);
    all.old = take(&at, (size_t)(z.D * a->lane->n_threads), 4);
    all.w_y = take(&at, (size_t)(z.T * z.D), (size_t)cdr_dtype_bytes(a->type[CDR__LOSS_W].dtype, 1));
    all.gemm = at;
    for (int64_t v0 = 0; v0 < z.W; v0 += z.cv) {
        piece w = fetch(a, &z, &k, v0);
        for (int64_t t = 0, i = 0; chunk_next(a, &z, &all, &t); i += all.n) {
            chunk c = of_tokens(a, &all, i, z.D);
            if (v0 == 0) chunk_begin(&c);
            chunk_logits(a, &z, &c, path, &w, c.logits);
            chunk_online(a, &z, &c, rows, &w, c.logits);
            chunk_dh(a, &z, &c, path, &w, c.logits);
        }
    }
    zero_masked(a, &z, CDR__LSF_DH);
    for (int64_t t = 0, i = 0; chunk_next(a, &z, &all, &t); i += all.n) {
        chunk c = of_tokens(a, &all, i, z.D);
        sum = chunk_loss(&c, sum, NULL);
        chunk_finish(a, &z, &c, scale);
        chunk_store(a, &z, &c, CDR__LSF_DH, false);
    }
    *(double *)output(a, CDR__LSF_SUM) = sum;
    return ranks_close(&k);
}

static size_t frozen_work(int path, const void *attr, int n_in, const cdr_type *t, int n_threads)
{
    const sizes z = split_sizes(attr, t);
    const size_t n = (size_t)(z.T * z.D);
    if (cdr_absent(&t[n_in + CDR__LSF_DH])) return fwd_work(path, attr, n_in, t, n_threads);
    return ranks_work(attr, n_threads) + chunk_bytes(&z, &t[CDR__LOSS_H], z.T) + part((size_t)z.T, 4) + part(n, 4) + part((size_t)(z.D * n_threads), 4) +
           part(n, (size_t)cdr_dtype_bytes(t[CDR__LOSS_W].dtype, 1)) + products_work(path, &z, n_threads);
}

/* ---- tables: the rows of loss ------------------------------------------------------------------------------------------------ */
#define KERNEL(NAME, WHICH, PATH, ROWS) \
    static cdr_status NAME(const cdr_args *a) { return WHICH(a, PATH, &ROWS); }
#define WORK(NAME, WHICH, PATH) static size_t NAME(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads) \
    { (void)n_out; return WHICH(PATH, attr, n_in, t, n_threads); }
KERNEL(fwd_base, fwd, CDR__GEMM_BASE, cdr__loss_rows_base)
KERNEL(fwd_avx2, fwd, CDR__GEMM_AVX2, cdr__loss_rows_avx2)
KERNEL(fwd_avx512, fwd, CDR__GEMM_AVX512, cdr__loss_rows_avx512)
KERNEL(fwd_avx512_bf16, fwd, CDR__GEMM_AVX512_BF16, cdr__loss_rows_avx512)
KERNEL(fwd_amx, fwd, CDR__GEMM_AMX, cdr__loss_rows_avx512)
KERNEL(bwd_base, bwd, CDR__GEMM_BASE, cdr__loss_rows_base)
KERNEL(bwd_avx2, bwd, CDR__GEMM_AVX2, cdr__loss_rows_avx2)
KERNEL(bwd_avx512, bwd, CDR__GEMM_AVX512, cdr__loss_rows_avx512)
KERNEL(bwd_avx512_bf16, bwd, CDR__GEMM_AVX512_BF16, cdr__loss_rows_avx512)
KERNEL(bwd_amx, bwd, CDR__GEMM_AMX, cdr__loss_rows_avx512)
KERNEL(frozen_base, frozen, CDR__GEMM_BASE, cdr__loss_rows_base)
KERNEL(frozen_avx2, frozen, CDR__GEMM_AVX2, cdr__loss_rows_avx2)
KERNEL(frozen_avx512, frozen, CDR__GEMM_AVX512, cdr__loss_rows_avx512)
KERNEL(frozen_avx512_bf16, frozen, CDR__GEMM_AVX512_BF16, cdr__loss_rows_avx512)
KERNEL(frozen_amx, frozen, CDR__GEMM_AMX, cdr__loss_rows_avx512)
WORK(fwd_base_work, fwd_work, CDR__GEMM_BASE)
WORK(fwd_avx2_work, fwd_work, CDR__GEMM_AVX2)
WORK(fwd_avx512_work, fwd_work, CDR__GEMM_AVX512)
WORK(fwd_avx512_bf16_work, fwd_work, CDR__GEMM_AVX512_BF16)
WORK(fwd_amx_work, fwd_work, CDR__GEMM_AMX)
WORK(bwd_base_work, bwd_work, CDR__GEMM_BASE)
WORK(bwd_avx2_work, bwd_work, CDR__GEMM_AVX2)
WORK(bwd_avx512_work, bwd_work, CDR__GEMM_AVX512)
WORK(bwd_avx512_bf16_work, bwd_work, CDR__GEMM_AVX512_BF16)
WORK(bwd_amx_work, bwd_work, CDR__GEMM_AMX)
WORK(frozen_base_work, frozen_work, CDR__GEMM_BASE)
WORK(frozen_avx2_work, frozen_work, CDR__GEMM_AVX2)
WORK(frozen_avx512_work, frozen_work, CDR__GEMM_AVX512)
WORK(frozen_avx512_bf16_work, frozen_work, CDR__GEMM_AVX512_BF16)
WORK(frozen_amx_work, frozen_work, CDR__GEMM_AMX)

/* Products of BF16 round F32 sources: taken only where h and w are BF16 anyway. */
static const char *reject_f32(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    (void)attr, (void)n_in, (void)n_out;
    return t[0].dtype != CDR_BF16 || t[1].dtype != CDR_BF16 ? "h or w is not bf16; it would be rounded" : NULL;
}

#define ROW_AMX(RUN, BYTES) { "amx", "amx", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AMX, reject_f32, BYTES, NULL, RUN }
#define ROW_512B(RUN, BYTES) { "avx512_bf16", "bf16dot", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16, reject_f32, BYTES, NULL, RUN }
#define ROW_512(RUN, BYTES) { "avx512", "fma", CDR_DEV_CPU, CDR_ISA_AVX512, NULL, BYTES, NULL, RUN }
#define ROW_2(RUN, BYTES) { "avx2", "fma", CDR_DEV_CPU, CDR_ISA_AVX2, NULL, BYTES, NULL, RUN }
#define ROW_BASE(RUN, BYTES) { "base", "base", CDR_DEV_CPU, 0, NULL, BYTES, NULL, RUN }
const cdr_kernel cdr__loss_pieces_kernels[] = {
    ROW_AMX(fwd_amx, fwd_amx_work), ROW_512B(fwd_avx512_bf16, fwd_avx512_bf16_work),
    ROW_512(fwd_avx512, fwd_avx512_work), ROW_2(fwd_avx2, fwd_avx2_work), ROW_BASE(fwd_base, fwd_base_work),
    { .name = NULL }
};
const cdr_kernel cdr__loss_pieces_bwd_kernels[] = {
    ROW_AMX(bwd_amx, bwd_amx_work), ROW_512B(bwd_avx512_bf16, bwd_avx512_bf16_work),
    ROW_512(bwd_avx512, bwd_avx512_work), ROW_2(bwd_avx2, bwd_avx2_work), ROW_BASE(bwd_base, bwd_base_work),
    { .name = NULL }
};
const cdr_kernel cdr__loss_frozen_pieces_kernels[] = {
    ROW_AMX(frozen_amx, frozen_amx_work), ROW_512B(frozen_avx512_bf16, frozen_avx512_bf16_work),
    ROW_512(frozen_avx512, frozen_avx512_work), ROW_2(frozen_avx2, frozen_avx2_work), ROW_BASE(frozen_base, frozen_base_work),
    { .name = NULL }
};
