/* bench_ceilings.c: this machine's arithmetic and memory ceilings, measured in this process.
 * Arithmetic: all threads run the ISA's peak loop (bench_<isa>.c) at once; best of several windows of about 5 ms. A window
 * that another process disturbed is slower, never faster, so the best is the ceiling.
 * Memory: 256 MiB (quick: 64 MiB) in equal parts, one a thread; best of several passes. */
#include "run/bench.h"
#include <omp.h>

/* The base ISA: product and sum are two instructions, 4 lanes. 6 chains of each. */
static float mul_add_f32_base(int64_t rounds)
{
    typedef float v4 __attribute__((vector_size(16)));
    const volatile float a = 0.999f;           /* volatile: no operand is known when compiled, no two chains are equal */
    const v4 x = { a, a, a, a };
    v4 m0 = x * a, m1 = x * a, m2 = x * a, m3 = x * a, m4 = x * a, m5 = x * a;
    v4 s0 = x * a, s1 = x * a, s2 = x * a, s3 = x * a, s4 = x * a, s5 = x * a;
    for (int64_t i = 0; i < rounds; i++) {
        s0 += x;
        m0 *= x;
        s1 += x;
        m1 *= x;
        s2 += x;
        m2 *= x;
        s3 += x;
        m3 *= x;
        s4 += x;
        m4 *= x;
        s5 += x;
        m5 *= x;
        /* subnormal products would be slow: start again every 1024 rounds (x^1024 = 0.36) */
        if ((i & 1023) == 1023) {
            m0 = x * a;
            m1 = x * a;
            m2 = x * a;
            m3 = x * a;
            m4 = x * a;
            m5 = x * a;
        }
    }
    const v4 s = m0 + m1 + m2 + m3 + m4 + m5 + s0 + s1 + s2 + s3 + s4 + s5;
    return s[0] + s[1] + s[2] + s[3];
}

const cdr__peak cdr__peak_base = { "base", 12 * 4, mul_add_f32_base };

/* by CDR_PEAK_* */
static const struct { const cdr__peak *loop; uint32_t needs; } peaks[CDR_N_PEAKS] = {
    { &cdr__peak_base, 0 }, { &cdr__peak_avx2, CDR_ISA_AVX2 }, { &cdr__peak_avx512, CDR_ISA_AVX512 },
    { &cdr__peak_avx512_bf16, CDR_ISA_AVX512_BF16 }, { &cdr__peak_amx, CDR_ISA_AMX },
};

const char *cdr__bench_class_name(int cls) { return peaks[cls].loop->name; }

int cdr__bench_class(const cdr_kernel *k)
{
    if (strstr(k->bits, "amx")) return CDR_PEAK_AMX;
    if (strstr(k->bits, "bf16dot")) return CDR_PEAK_AVX512_BF16;
    return k->needs & CDR_ISA_AVX512 ? CDR_PEAK_AVX512 : k->needs & CDR_ISA_AVX2 ? CDR_PEAK_AVX2 : CDR_PEAK_BASE;
}

/* The best class for products with inputs of this dtype. */
static int class_of(int dtype, uint32_t isa)
{
    if (dtype == CDR_BF16 && (isa & CDR_ISA_AMX)) return CDR_PEAK_AMX;
    if (isa & CDR_ISA_AVX512) return dtype == CDR_BF16 && (isa & CDR_ISA_AVX512_BF16) ? CDR_PEAK_AVX512_BF16 : CDR_PEAK_AVX512;
    return isa & CDR_ISA_AVX2 ? CDR_PEAK_AVX2 : CDR_PEAK_BASE;
}

/* FLOP/s of n_threads threads together over one window of so many rounds each. */
static double window(const cdr__peak *p, int n_threads, int64_t rounds)
{
    volatile float keep = 0;
    int team = 1;
    const int64_t t0 = cdr_now_ns();
    #pragma omp parallel num_threads(n_threads)
    {
        const float x = p->run(rounds);
        #pragma omp critical
        keep = keep + x;
        #pragma omp master
        team = omp_get_num_threads();
    }
    return p->flop_a_round * (double)rounds * team / ((double)CDR_MAX(cdr_now_ns() - t0, 1) * 1e-9);
}

/* How many rounds fill a window is found on one thread, from the fastest of three: a thread that lost its core in one of
 * them must not make the windows too short for a fork and join. */
static double arithmetic(const cdr__peak *p, int n_threads, double window_s, int windows)
{
    volatile float keep = 0;
    int64_t rounds = 1000;
    double best = 0, s = 0;
    for (int i = 0; i < 24 && s < window_s / 2; i++) {
        if (i > 0) rounds *= s < window_s / 16 ? 8 : 2;
        s = window_s;
        for (int j = 0; j < 3; j++) {
            const int64_t t0 = cdr_now_ns();
            keep = keep + p->run(rounds);
            s = CDR_MIN(s, (double)(cdr_now_ns() - t0) * 1e-9);
        }
    }
    for (int i = 0; i < windows; i++) best = CDR_MAX(best, window(p, n_threads, rounds));
    return best;
}

double cdr__bench_quick_peak(int cls, int n_threads) { return arithmetic(peaks[cls].loop, n_threads, 1.5e-3, 5); }
double cdr_bench_quick_gemm(int dtype, uint32_t isa, int n_threads) { return cdr__bench_quick_peak(class_of(dtype, isa), n_threads); }

/* Both in place in a buffer of n words, in parts per thread: sums of the words; first half to second half. */
static uint64_t read_words(const uint64_t *p, int64_t n)
{
    uint64_t s[8] = { 0 };
    for (int64_t i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) s[j] += p[i + j];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void memory(int n_threads, bool quick, cdr_ceilings *c)
{
    const int64_t n = (int64_t)(quick ? 64 : 256) << 17;
    uint64_t *p = cdr_alloc((size_t)n * 8);
    volatile uint64_t keep = 0;
    for (int pass = 0; pass < (quick ? 4 : 9); pass++) {           /* pass 0 touches the pages */
        int64_t t0 = cdr_now_ns();
        #pragma omp parallel num_threads(n_threads)
        {
            const int64_t r = omp_get_thread_num(), team = omp_get_num_threads(), first = n * r / team, last = n * (r + 1) / team;
            if (pass == 0) {
                for (int64_t i = first; i < last; i++) p[i] = (uint64_t)i;
            } else {
                const uint64_t x = read_words(p + first, last - first);
                #pragma omp critical
                keep = keep + x;
            }
        }
        if (pass > 0) c->read = CDR_MAX(c->read, (double)n * 8e9 / (double)CDR_MAX(cdr_now_ns() - t0, 1));
        t0 = cdr_now_ns();
        #pragma omp parallel num_threads(n_threads)
        {
            const int64_t r = omp_get_thread_num(), team = omp_get_num_threads(), h = n / 2, first = h * r / team, last = h * (r + 1) / team;
            memcpy(p + h + first, p + first, (size_t)(last - first) * 8);
        }
        if (pass > 0) c->copy = CDR_MAX(c->copy, (double)n * 8e9 / (double)CDR_MAX(cdr_now_ns() - t0, 1));
    }
    cdr_free(p);
}

void cdr_bench_ceilings(uint32_t isa, int n_threads, bool quick, cdr_ceilings *c)
{
    *c = (cdr_ceilings){ 0 };
    for (int i = 0; i < CDR_N_PEAKS; i++)
        if (!(peaks[i].needs & ~isa)) c->peak[i] = arithmetic(peaks[i].loop, n_threads, 5e-3, quick ? 6 : 30);
    c->f32 = c->peak[class_of(CDR_F32, isa)];
    c->bf16 = c->peak[class_of(CDR_BF16, isa)];
    memory(n_threads, quick, c);
}
