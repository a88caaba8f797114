/* attention_simd.h: the fast attention kernels, one source for AVX2 and AVX-512: cpu_avx2.c and cpu_avx512.c define the vector
 * (V_LANES lanes, v_load, v_fma, ..) and the register tile (MR rows x NV vectors, tile()), then include this file.
 *
 * Everything is one micro-kernel: an MR x NB tile of C (+)= A B with A broadcast and B in rows of vectors, F32:
 *   forward   S = Q K^T (A = Q, B = K^T in panels), O += P V (A = P, B = V)
 *   backward  S, dP = dO V^T, dV += P^T dO and dK += dS^T Q (A read down its columns), dQ += dS K
 * Bits (class "fma"): an element is one chain of fused multiply-adds in ascending order (d in S and dP; s in O within a
 * tile and in dQ; t in dV and dK), continued through memory from tile to tile. So the bits know neither MR, NB, V_LANES, the
 * blocking of rows nor the number of threads. What they know is the border of a key tile in the forward, where O is
 * rescaled: tiles of 64 keys are counted from start_t, hence from the document. Row sums (of p, of do o) are sixteen partial
 * sums merged as a tree. In O and dQ a row takes exactly the keys start_t .. pos_t: a later key never enters, not even with
 * p = 0, so an infinite or NaN later key changes nothing. (dV and dK take up to MR - 1 earlier rows with p = 0.)
 * With a sel, what is not selected gets p = 0 in the same chains; groups of MR rows that select nothing of a tile skip it.
 * Softmax in base 2: q is scaled by scale * log2(e), p = 2^(s - m).
 * Precision: F32; v_exp2 is within 8.1e-08.
 *
 * Speed: bound by FMA. Floor at T = 1024, one document, H = 4, 32 + 32, v = 64 (causal half, 0.54 and 1.34 GFLOP): 5.5 and
 * 13.8 ms at the 97.5 GFLOP/s of FMA that one Zen 3 core reaches. AVX2, bf16, CPU time of one thread: 9.1 ms
 * forward (60 % of the floor's rate), 19.8 ms backward (70 %); 128 + 64, v = 128: 70 % and 68 %. Threads take (head, rows)
 * and (head, document): a pack of one document keeps no more threads busy in the backward than it has heads.
 * 128 + 64, v = 128, bf16, GFLOP/s, best of many short calls: T 512 72.6 forward and 77.5 backward, T 1024 73.7 and 72.4, T 256 70.4 backward.
 * Tried, GFLOP/s forward and backward (same case): without groups of rows and odd pitches 71.0, 73.8 (T 512), 71.3, 73.3 (T 1024), 57.3
 * backward (T 256); accumulators in an array, which gcc 12 moves through the stack around
 * the loop, and conversions by the dtype table: 51.8, 56.9; without both 54.9, 63.9. Tasks of 96 rows and tiles of 64 keys in
 * the backward were that; 192 rows and 128 keys, which convert half as often: 58.3, 68.0.
 */
#include "ops/attention/attention_rows.h"

enum { NB = NV * V_LANES,
       KEYS = CDR__ATT_KEYS, ROWS = 192,                        /* forward: keys of a tile, query rows of a task */
       BKEYS = 128, BROWS = 96,                                 /* backward; these know no bits */
       BKEYS_UP = 132,                                          /* BKEYS up to a multiple of MR: rows of dK and dV */
       P_LD = 144,                                              /* pitch of P and dS: an odd number of lines of cache, as all pitches here */
       GROUP = 24 };                                            /* rows that go over a panel of B together, so that it is read from L1 */
_Static_assert(ROWS % GROUP == 0 && BROWS % GROUP == 0 && GROUP % MR == 0 && BKEYS_UP % MR == 0 && KEYS % NB == 0 && BKEYS % NB == 0 && 16 % V_LANES == 0,
               "the register tile divides the blocks");

/* ---- vectors ---------------------------------------------------------------------------------------------------- */
/* A in rows; starts at 0 */
static __attribute__((noinline)) void tile_new(int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row, float *c, int64_t c_row)
{
    tile(k, a, a_row, 1, b, b_row, c, c_row, false);
}
/* A in rows; adds */
static __attribute__((noinline)) void tile_add(int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row, float *c, int64_t c_row)
{
    tile(k, a, a_row, 1, b, b_row, c, c_row, true);
}
/* A in columns (a tile of A^T, k rows of P_LD); adds */
static __attribute__((noinline)) void tile_add_t(int64_t k, const float *a, const float *b, int64_t b_row, float *c, int64_t c_row)
{
    tile(k, a, 1, P_LD, b, b_row, c, c_row, true);
}
/* y[0..n) += x a, n a multiple of V_LANES */
static inline void axpy(float a, const float *CDR_RESTRICT x, float *CDR_RESTRICT y, int64_t n)
{
    vf av = v_set(a);
    for (int64_t i = 0; i < n; i += V_LANES) v_store(y + i, v_fma(av, v_load(x + i), v_load(y + i)));
}
/* dst[i][j] = src[j][i], 8 x 8 */
static inline void transpose_8x8(const float *src, int64_t src_pitch, float *dst, int64_t dst_pitch)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(src + i * src_pitch);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * dst_pitch, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * dst_pitch, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* panels[p][i][j] = rows[p * NB + j][i], for n_rows (a multiple of NB) rows of n (a multiple of 8) numbers */
static void transpose_panels(const float *rows, int64_t pitch, int64_t n_rows, int64_t n, float *panels)
{
    for (int64_t s = 0; s < n_rows; s += 8) {
        float *dst = panels + s / NB * NB * n + s % NB;
        for (int64_t i = 0; i < n; i += 8) transpose_8x8(rows + s * pitch + i, pitch, dst + i * NB, NB);
    }
}

/* ---- operands ----------------------------------------------------------------------------------------------------- */
typedef struct {
    const cdr_attention_attr *at;
    int64_t H, nope, ext, v, dk, dk_up, v_up;      /* _up: rounded up to NB; the rest is 0 */
    int64_t dk_ld, v_ld;                           /* pitch of rows in scratch: lines of cache in an odd number, so that a column of them spreads over all sets */
    cdr__att_mat q, kv, kr;
    const int32_t *start, *pos;
    cdr__att_sel sel;
} frame;

static void widths(frame *f)
{
    f->dk_up = up(f->dk, NB);
    f->v_up = up(f->v, NB);
    f->dk_ld = odd_lines(f->dk_up);
    f->v_ld = odd_lines(f->v_up);
}
static frame frame_of(const cdr_args *a, int first, int sel)      /* operands q and sel */
{
    const cdr_attention_attr *at = a->attr;
    int64_t dk = (int64_t)at->nope + at->ext;
    frame f = { .at = at, .H = at->heads, .nope = at->nope, .ext = at->ext, .v = at->v, .dk = dk, .q = cdr__att_operand(a, first),
                .kv = cdr__att_operand(a, first + 1), .kr = cdr__att_operand(a, first + 2), .start = a->ptr[first + 3], .pos = a->ptr[first + 4],
                .sel = cdr__att_mask(a, sel) };
    widths(&f);
    return f;
}
/* Eight numbers at a time, by dtype: the table's conversions (tensor.h) are compiled for any x86 and cost 15 % here. */
static void widen_f32(const char *src, int64_t n, float *dst)
{
    for (int64_t j = 0; j < n; j += 8) _mm256_storeu_ps(dst + j, _mm256_loadu_ps((const float *)(const void *)src + j));
}
static void widen_bf16(const char *src, int64_t n, float *dst)
{
    for (int64_t j = 0; j < n; j += 8) {
        __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(src + 2 * j)));
        _mm256_storeu_ps(dst + j, _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
    }
}
static void (*const widen[CDR_N_DTYPES])(const char *src, int64_t n, float *dst) = { [CDR_F32] = widen_f32, [CDR_BF16] = widen_bf16 };

/* n_rows rows of an operand, columns [col, col + n), into rows of pitch n_up */
static void load_rows(const cdr__att_mat *m, int64_t row, int64_t n_rows, int64_t col, int64_t n, float *dst, int64_t n_up)
{
    const char *src = m->p + (row * m->pitch + col) * m->bytes;
    for (int64_t i = 0; i < n_rows; i++, src += m->pitch * m->bytes) widen[m->dtype](src, n, dst + i * n_up);
}
/* The columns behind n, once per task: nothing else writes them. */
static void zero_behind(float *x, int64_t n_rows, int64_t n, int64_t n_up)
{
    for (int64_t i = 0; i < n_rows && n < n_up; i++) memset(x + i * n_up + n, 0, sizeof(float) * (size_t)(n_up - n));
}
/* keys [s0, s0 + n) of head h as rows, zeros up to a multiple of NB rows; and transposed */
static void load_keys(const frame *f, int64_t h, int64_t s0, int64_t n, float *k, float *kt)
{
    load_rows(&f->kv, s0, n, h * (f->nope + f->v), f->nope, k, f->dk_ld);
    if (f->ext) load_rows(&f->kr, s0, n, 0, f->ext, k + f->nope, f->dk_ld);
    memset(k + n * f->dk_ld, 0, sizeof(float) * (size_t)((up(n, NB) - n) * f->dk_ld));
    transpose_panels(k, f->dk_ld, up(n, NB), f->dk, kt);
}
static void load_queries(const frame *f, int64_t h, int64_t t, int64_t n, float *q)
{
    load_rows(&f->q, t, n, h * f->dk, f->dk, q, f->dk_ld);
    scale_row(q, f->at->scale * LOG2E, n * f->dk_ld);
}
/* ---- forward ------------------------------------------------------------------------------------------------------ */
enum { S_LD = KEYS + 16 };
typedef struct { float *q, *k, *kt, *v, *s, *o, *m, *l; } fwd_work;

static fwd_work fwd_take(const frame *f, scratch *m)
{
    fwd_work w = { take(m, ROWS * f->dk_ld), take(m, KEYS * f->dk_ld), take(m, KEYS * f->dk_up), take(m, KEYS * f->v_ld),
                   take(m, GROUP * S_LD), take(m, ROWS * f->v_ld), take(m, ROWS), take(m, ROWS) };
    return w;
}
static size_t fwd_bytes(const cdr_attention_attr *a)
{
    frame f = { .dk = (int64_t)a->nope + a->ext, .v = a->v };
    widths(&f);
    scratch m = { NULL, 0 };
    fwd_take(&f, &m);
    return m.used;
}

/* GROUP rows (n of them real) from row i on, against a tile of keys; seen[r]: how many of them row r may see, ascending;
 * bits[r]: which of those it takes */
static void fwd_tile(const frame *f, const fwd_work *w, int64_t i, int64_t n, const int64_t *seen, const uint64_t *bits)
{
    float *s = w->s, *o = w->o + i * f->v_ld, *m = w->m + i, *l = w->l + i, new_m[32] = { 0 }, c[32] = { 0 };
    int64_t most[GROUP];                                   /* of the MR rows that begin with r: keys that one of them sees, if one takes any */
    for (int64_t r = 0; r < n; r += MR) {
        uint64_t any = 0;
        for (int64_t x = r; x < CDR_MIN(r + MR, n); x++) any |= bits[x];
        most[r] = any ? seen[CDR_MIN(r + MR, n) - 1] : 0;
    }
    for (int64_t j = 0; j < seen[n - 1]; j += NB)
        for (int64_t r = 0; r < n; r += MR)
            if (most[r] > j)
                tile_new(f->dk, w->q + (i + r) * f->dk_ld, f->dk_ld, w->kt + j * f->dk, NB, s + r * S_LD + j, S_LD);
    for (int64_t r = 0; r < n; r++) {
        if (f->sel.p) mask_row(s + r * S_LD, seen[r], bits[r], bits[r] ? -INFINITY : 0.0f);       /* none taken: p = 0 */
        new_m[r] = bits[r] ? row_max(s + r * S_LD, seen[r], m[r]) : m[r];
        c[r] = bits[r] ? m[r] - new_m[r] : 0.0f;
    }
    for (int j = 0; j < GROUP; j += V_LANES) v_store(c + j, v_exp2(v_load(c + j)));
    for (int64_t r = 0; r < n; r++) {
        if (!bits[r]) continue;
        float sum = row_exp(s + r * S_LD, seen[r], new_m[r]);
        l[r] = l[r] * c[r] + sum;
        m[r] = new_m[r];
        if (c[r] != 1.0f) scale_row(o + r * f->v_ld, c[r], f->v_up);
    }
    for (int64_t j = 0; j < f->v_up; j += NB)
        for (int64_t r = 0; r < n; r += MR)
            if (most[r] > 0 && seen[r] > 0) tile_add(seen[r], s + r * S_LD, S_LD, w->v + j, f->v_ld, o + r * f->v_ld + j, f->v_ld);
    for (int64_t r = 0; r < n; r++)
        for (int64_t k = seen[r / MR * MR]; k < seen[r] && bits[r]; k++) axpy(s[r * S_LD + k], w->v + k * f->v_ld, o + r * f->v_ld, f->v_up);
}

static void fwd_out(const cdr_args *a, const frame *f, const fwd_work *w, int64_t h, int64_t t, int64_t n)
{
    cdr__att_mat o = cdr__att_operand(a, CDR__ATT_O), o32 = cdr__att_operand(a, CDR__ATT_O32), lse = cdr__att_operand(a, CDR__ATT_LSE);
    for (int64_t i = 0; i < n; i++) {
        bool idle = f->start[t + i] > f->pos[t + i];
        float *x = w->o + i * f->v_ld, stat = idle ? 0.0f : w->m[i] * LN2 + logf(w->l[i]);
        if (!idle) scale_row(x, 1.0f / w->l[i], f->v_up);
        cdr__att_store(&o, t + i, h * f->v, f->v, x, NULL);
        if (o32.p) cdr__att_store(&o32, t + i, h * f->v, f->v, x, NULL);
        if (lse.p) cdr__att_store(&lse, t + i, h, 1, &stat, NULL);
    }
}

/* rows [a0, b0) of head h, at most ROWS: one run, or one idle row */
static void fwd_run(const cdr_args *a, const frame *f, const fwd_work *w, int64_t h, int64_t a0, int64_t b0)
{
    int64_t first = f->start[a0], last = f->pos[b0 - 1], n = b0 - a0;
    memset(w->o, 0, sizeof(float) * (size_t)(up(n, MR) * f->v_ld));
    zero_behind(w->q, ROWS, f->dk, f->dk_ld);
    zero_behind(w->k, KEYS, f->dk, f->dk_ld);
    zero_behind(w->v, KEYS, f->v, f->v_ld);
    for (int64_t i = 0; i < n; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0;
    }
    if (first <= last) load_queries(f, h, a0, n, w->q);
    for (int64_t s0 = first; s0 <= last; s0 += KEYS) {
        int64_t n_keys = CDR_MIN((int64_t)KEYS, last + 1 - s0);
        load_keys(f, h, s0, n_keys, w->k, w->kt);
        load_rows(&f->kv, s0, n_keys, h * (f->nope + f->v) + f->nope, f->v, w->v, f->v_ld);
        for (int64_t i = 0; i < n; i += GROUP) {
            int64_t seen[GROUP], n_real = CDR_MIN(n - i, (int64_t)GROUP);
            uint64_t bits[GROUP], any = 0;
            for (int64_t r = 0; r < n_real; r++) {
                seen[r] = clamp_keys(f->pos[a0 + i + r] + 1 - s0, n_keys);
                bits[r] = cdr__att_bits(&f->sel, cdr__att_mask_row(&f->sel, a0 + i + r), s0, seen[r]);
                any |= bits[r];
            }
            if (any) fwd_tile(f, w, i, n_real, seen, bits);
        }
    }
    fwd_out(a, f, w, h, a0, n);
}

static cdr_status fwd(const cdr_args *a)
{
    const frame f = frame_of(a, CDR__ATT_Q, CDR__ATT_SEL);
    int64_t T = a->type[CDR__ATT_Q].n[0], n_blocks = cdr_ceil_div(T, ROWS);
    size_t bytes = fwd_bytes(a->attr);
    assert(f.nope % 8 == 0 && f.ext % 8 == 0 && f.v % 8 == 0);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < f.H * n_blocks; i++) {
        scratch m = { (char *)a->work + (size_t)omp_get_thread_num() * bytes, 0 };
        fwd_work w = fwd_take(&f, &m);
        int64_t h = i % f.H, t = (n_blocks - 1 - i / f.H) * ROWS, end = CDR_MIN(T, t + ROWS);       /* the longest first, so that all end together */
        while (t < end) {
            bool idle = f.start[t] > f.pos[t];
            int64_t b = idle ? t + 1 : cdr__att_run_end(f.start, f.pos, t, end);
            assert(idle || (f.start[t] >= 0 && f.pos[b - 1] < a->type[CDR__ATT_KV].n[0]));
            fwd_run(a, &f, &w, h, t, b);
            t = b;
        }
    }
    return CDR_OK;
}

/* ---- backward ----------------------------------------------------------------------------------------------------- */
typedef struct { float *q, *dout, *k, *kt, *v, *vt, *p, *ds, *dk, *dv, *lse, *delta, *dq, *old; } bwd_work;

static bwd_work bwd_take(const frame *f, int64_t T, scratch *m)
{
    bwd_work w = { take(m, BROWS * f->dk_ld), take(m, BROWS * f->v_ld), take(m, BKEYS * f->dk_ld), take(m, BKEYS * f->dk_up),
                   take(m, BKEYS * f->v_ld), take(m, BKEYS * f->v_up), take(m, BROWS * P_LD), take(m, BROWS * P_LD),
                   take(m, BKEYS_UP * f->dk_ld), take(m, BKEYS_UP * f->v_ld), take(m, T), take(m, T), take(m, (T + MR) * f->dk_ld),
                   take(m, CDR_MAX(f->dk_ld, f->v_ld)) };
    return w;
}
static size_t bwd_bytes(const cdr_attention_attr *a, int64_t T)
{
    frame f = { .dk = (int64_t)a->nope + a->ext, .v = a->v };
    widths(&f);
    scratch m = { NULL, 0 };
    bwd_take(&f, T, &m);
    return m.used;
}

/* lse in base 2 and delta of the document's rows */
static void bwd_stats(const cdr_args *a, const frame *f, const bwd_work *w, int64_t h, int64_t a0, int64_t b0)
{
    cdr__att_mat dout = cdr__att_operand(a, CDR__ATB_DO), o = cdr__att_operand(a, CDR__ATB_O), lse = cdr__att_operand(a, CDR__ATB_LSE);
    for (int64_t t = a0; t < b0; t++) {
        float *x = w->dout, *y = w->v;
        vf sum[16 / V_LANES];
        load_rows(&dout, t, 1, h * f->v, f->v, x, f->v_ld);
        load_rows(&o, t, 1, h * f->v, f->v, y, f->v_ld);
        for (int g = 0; g < 16 / V_LANES; g++) sum[g] = v_set(0.0f);
        for (int64_t j = 0; j < f->v_up; j += 16)
            for (int g = 0; g < 16 / V_LANES; g++) sum[g] = v_fma(v_load(x + j + g * V_LANES), v_load(y + j + g * V_LANES), sum[g]);
        cdr__att_load(&lse, t, h, 1, &w->lse[t - a0]);
        w->lse[t - a0] *= LOG2E;
        w->delta[t - a0] = v_hsum16(sum);
    }
}

/* p and ds of one row: n keys, then zeros up to the tile's last key; zeros where bits (of 128 keys; NULL: all) are not set */
static inline void bwd_row(float *s, float *dp, int64_t n, int64_t n_keys, const uint64_t *bits, float lse, float delta)
{
    vf l = v_set(lse), d = v_set(delta), zero = v_set(0.0f);
    for (int64_t j = 0; j < n_keys; j += V_LANES) {
        if (j < n) {
            vf p = v_first(v_exp2(v_sub(v_load(s + j), l)), n - j, zero), x = v_first(v_mul(p, v_sub(v_load(dp + j), d)), n - j, zero);
            if (bits) {
                uint32_t take = (uint32_t)(bits[j / 64] >> (j % 64));
                p = v_pick(take, p, zero);
                x = v_pick(take, x, zero);
            }
            v_store(dp + j, x);
            v_store(s + j, p);
        } else {
            v_store(s + j, zero);
            v_store(dp + j, zero);
        }
    }
}

/* bits of MR rows (n real) from row t on, of the keys from s0 on; returns whether there are any */
static bool bwd_bits(const frame *f, int64_t t, int64_t n, int64_t s0, int64_t n_keys, uint64_t bits[MR][BKEYS / 64])
{
    uint64_t any = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < BKEYS / 64; j++) {
            bits[r][j] = cdr__att_bits(&f->sel, cdr__att_mask_row(&f->sel, t + r), s0 + 64 * j, clamp_keys(CDR_MIN(n_keys, t + r + 1 - s0) - 64 * j, 64));
            any |= bits[r][j];
        }
    return any != 0;
}

/* Rows [t, t + n), at most GROUP, against the keys [s0, s0 + n_keys), t >= s0: P, dS, and dQ; i: their place in the block.
 * a0: the document's first row. */
static void bwd_scores(const frame *f, const bwd_work *w, int64_t a0, int64_t t, int64_t n, int64_t i, int64_t s0, int64_t n_keys)
{
    uint64_t bits[GROUP / MR][MR][BKEYS / 64];
    int64_t most[GROUP / MR];                              /* keys that MR rows see, 0 where they take none */
    float *p = w->p + i * P_LD, *ds = w->ds + i * P_LD, *dq = w->dq + (t - a0) * f->dk_ld;
    for (int64_t r = 0; r < n; r += MR) {
        int64_t n_real = CDR_MIN(n - r, (int64_t)MR);
        bool any = f->sel.p == NULL || bwd_bits(f, t + r, n_real, s0, n_keys, bits[r / MR]);
        most[r / MR] = any ? CDR_MIN(n_keys, t + r + n_real - s0) : 0;
        for (int64_t x = r; x < r + n_real && !any; x++) {
            memset(p + x * P_LD, 0, sizeof(float) * (size_t)up(n_keys, V_LANES));
            memset(ds + x * P_LD, 0, sizeof(float) * (size_t)up(n_keys, V_LANES));
        }
    }
    for (int64_t j = 0; j < n_keys; j += NB)
        for (int64_t r = 0; r < n; r += MR)
            if (most[r / MR] > j) tile_new(f->dk, w->q + (i + r) * f->dk_ld, f->dk_ld, w->kt + j * f->dk, NB, p + r * P_LD + j, P_LD);
    for (int64_t j = 0; j < n_keys; j += NB)
        for (int64_t r = 0; r < n; r += MR)
            if (most[r / MR] > j) tile_new(f->v, w->dout + (i + r) * f->v_ld, f->v_ld, w->vt + j * f->v, NB, ds + r * P_LD + j, P_LD);
    for (int64_t r = 0; r < n; r++)
        if (most[r / MR] > 0)
            bwd_row(p + r * P_LD, ds + r * P_LD, CDR_MIN(n_keys, t + r + 1 - s0), n_keys, f->sel.p ? bits[r / MR][r % MR] : NULL, w->lse[t + r - a0],
                    w->delta[t + r - a0]);
    for (int64_t j = 0; j < f->dk_up; j += NB)
        for (int64_t r = 0; r < n; r += MR)
            if (most[r / MR] > 0) tile_add(CDR_MIN(n_keys, t + r + 1 - s0), ds + r * P_LD, P_LD, w->k + j, f->dk_ld, dq + r * f->dk_ld + j, f->dk_ld);
    for (int64_t r = 0; r < n; r++)
        for (int64_t k = CDR_MIN(n_keys, t + r / MR * MR + 1 - s0); k < CDR_MIN(n_keys, t + r + 1 - s0) && most[r / MR] > 0; k++)
            axpy(ds[r * P_LD + k], w->k + k * f->dk_ld, dq + r * f->dk_ld, f->dk_up);
}

/* dV += P^T dO, dK += dS^T Q over these rows; keys that no row before `from` sees start there */
static void bwd_keys(const frame *f, const bwd_work *w, int64_t t, int64_t n, int64_t s0, int64_t n_keys)
{
    for (int64_t g = 0; g < n_keys && s0 + g < t + n; g += GROUP) {
        for (int64_t j = 0; j < f->v_up; j += NB)
            for (int64_t k = g; k < CDR_MIN(g + GROUP, n_keys); k += MR) {
                int64_t from = CDR_MAX(0, s0 + k - t);
                if (from < n) tile_add_t(n - from, w->p + from * P_LD + k, w->dout + from * f->v_ld + j, f->v_ld, w->dv + k * f->v_ld + j, f->v_ld);
            }
        for (int64_t j = 0; j < f->dk_up; j += NB)
            for (int64_t k = g; k < CDR_MIN(g + GROUP, n_keys); k += MR) {
                int64_t from = CDR_MAX(0, s0 + k - t);
                if (from < n) tile_add_t(n - from, w->ds + from * P_LD + k, w->q + from * f->dk_ld + j, f->dk_ld, w->dk + k * f->dk_ld + j, f->dk_ld);
            }
    }
}

/* writes dkv of key rows [s0, s0 + n), and the head's part of dkr */
static void bwd_keys_out(const cdr_args *a, const frame *f, const bwd_work *w, int64_t h, int64_t s0, int64_t n, float *dkr_part)
{
    cdr__att_mat dkv = cdr__att_operand(a, CDR__ATB_DKV);
    int64_t S = a->type[CDR__ATB_KV].n[0];
    float *old = (a->add >> 1) & 1u ? w->old : NULL;
    scale_row(w->dk, LN2, n * f->dk_ld);                  /* q holds scale * log2(e), dk asks for scale */
    for (int64_t s = 0; s < n; s++) {
        float *dk = w->dk + s * f->dk_ld;
        if (f->ext) memcpy(dkr_part + (h * S + s0 + s) * f->ext, dk + f->nope, sizeof(float) * (size_t)f->ext);
        if (!dkv.p) continue;
        cdr__att_store(&dkv, s0 + s, h * (f->nope + f->v), f->nope, dk, old);
        cdr__att_store(&dkv, s0 + s, h * (f->nope + f->v) + f->nope, f->v, w->dv + s * f->v_ld, old);
    }
}

/* document [a0, b0) of head h */
static void bwd_doc(const cdr_args *a, const frame *f, const bwd_work *w, int64_t h, int64_t a0, int64_t b0, float *dkr_part)
{
    cdr__att_mat dout = cdr__att_operand(a, CDR__ATB_DO), dq = cdr__att_operand(a, CDR__ATB_DQ);
    bool idle = f->start[a0] > f->pos[a0];
    memset(w->dq, 0, sizeof(float) * (size_t)((b0 - a0) * f->dk_ld));
    zero_behind(w->q, BROWS, f->dk, f->dk_ld);
    zero_behind(w->k, BKEYS, f->dk, f->dk_ld);
    zero_behind(w->v, BKEYS, f->v, f->v_ld);
    zero_behind(w->dout, BROWS, f->v, f->v_ld);
    if (!idle) bwd_stats(a, f, w, h, a0, b0);
    for (int64_t s0 = a0; s0 < b0; s0 += BKEYS) {
        int64_t n_keys = CDR_MIN((int64_t)BKEYS, b0 - s0), n;
        memset(w->dk, 0, sizeof(float) * (size_t)(up(n_keys, MR) * f->dk_ld));
        memset(w->dv, 0, sizeof(float) * (size_t)(up(n_keys, MR) * f->v_ld));
        if (!idle) {
            load_keys(f, h, s0, n_keys, w->k, w->kt);
            load_rows(&f->kv, s0, n_keys, h * (f->nope + f->v) + f->nope, f->v, w->v, f->v_ld);
            memset(w->v + n_keys * f->v_ld, 0, sizeof(float) * (size_t)((up(n_keys, NB) - n_keys) * f->v_ld));
            transpose_panels(w->v, f->v_ld, up(n_keys, NB), f->v, w->vt);
        }
        for (int64_t t = s0; t < b0 && !idle; t += n) {
            n = CDR_MIN((int64_t)BROWS, b0 - t);
            load_queries(f, h, t, n, w->q);
            load_rows(&dout, t, n, h * f->v, f->v, w->dout, f->v_ld);
            for (int64_t i = 0; i < n; i += GROUP) bwd_scores(f, w, a0, t + i, CDR_MIN(n - i, (int64_t)GROUP), i, s0, n_keys);
            bwd_keys(f, w, t, n, s0, n_keys);
        }
        bwd_keys_out(a, f, w, h, s0, n_keys, dkr_part);
    }
    if (!dq.p) return;
    scale_row(w->dq, f->at->scale, (b0 - a0) * f->dk_ld);
    for (int64_t t = a0; t < b0; t++) cdr__att_store(&dq, t, h * f->dk, f->dk, w->dq + (t - a0) * f->dk_ld, a->add & 1u ? w->old : NULL);
}

/* scratch: documents, the heads' parts of dkr, then each thread's own */
static size_t bwd_work_bytes(const cdr_attention_attr *a, const cdr_type *t, int n_threads)
{
    int64_t T = t[CDR__ATB_Q].n[0];
    return cdr_align_up((size_t)(T + 1) * 4, 64) + cdr_align_up((size_t)((int64_t)a->heads * T * a->ext) * 4, 64) + (size_t)n_threads * bwd_bytes(a, T);
}

static cdr_status bwd(const cdr_args *a)
{
    const frame f = frame_of(a, CDR__ATB_Q, CDR__ATB_SEL);
    int64_t T = a->type[CDR__ATB_Q].n[0];
    scratch shared = { a->work, 0 };
    int32_t *doc = (int32_t *)(void *)take(&shared, T + 1);
    float *dkr_part = take(&shared, f.H * T * f.ext);
    int64_t n_docs = cdr__attention_docs(f.start, f.pos, T, doc);
    size_t bytes = bwd_bytes(a->attr, T);
    assert(f.nope % 8 == 0 && f.ext % 8 == 0 && f.v % 8 == 0);
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < f.H * n_docs; i++) {
        scratch m = { shared.base + shared.used + (size_t)omp_get_thread_num() * bytes, 0 };
        bwd_work w = bwd_take(&f, T, &m);
        int64_t h = i / n_docs, d = i % n_docs;
        bwd_doc(a, &f, &w, h, doc[d], doc[d + 1], dkr_part);
    }
    if (a->ptr[CDR__ATB_DKR]) cdr__attention_dkr(a, dkr_part);
    return CDR_OK;
}
