/* bits_hash.c: one line of hash per thing that must have the same bits whatever compiler built the library, and whether vector
 * instructions are the processor's or emulated.
 *   bits_hash            each base kernel over its operator's table of cases, and a small model that is trained, evaluated and
 *                        sampled with base kernels alone
 *   bits_hash kernels    each kernel of this machine, capped by CADRE_ISA, over its operator's cases
 *   bits_hash products   the matrix product by each path of this machine on numbers of all sizes: also where products and sums
 *                        are subnormal. A path's class fixes these bits; test/golden/products.txt has them from a processor
 * test/test_compilers.sh and tools/emulate.sh compare what different builds print. */
#include "ops/linear/gemm.h"
#include "run/check.h"
#include "tiny.h"

enum { MAX_KERNELS = 256 };
typedef struct { uint64_t hash; int64_t n; } sum;
typedef struct { const cdr_kernel *kernel; sum s; } row;

static void add(sum *s, const void *p, size_t bytes)
{
    s->hash = cdr_hash64(p, bytes, s->hash);
    s->n += (int64_t)bytes;
}

static sum *sum_of(row *table, const cdr_kernel *k)
{
    int i = 0;
    while (i < MAX_KERNELS && table[i].kernel && table[i].kernel != k) i++;
    CDR_CHECK(i < MAX_KERNELS);
    table[i].kernel = k;
    return &table[i].s;
}

/* The kernel, then its outputs into its hash: data only, not what lies between columns and pitch. */
static cdr_status run(const cdr_check_target *t, const cdr_kernel *k, const cdr_args *a, size_t work_bytes)
{
    (void)work_bytes;
    cdr_status st = k->run(a);
    for (int i = a->n_in; i < a->n_in + a->n_out; i++) {
        const cdr_type *y = &a->type[i];
        if (cdr_absent(y)) continue;
        int64_t step = cdr_dtype_bytes(y->dtype, cdr_type_pitch(y));
        for (int64_t r = 0; r < cdr_type_rows(y); r++)
            add(sum_of(t->ctx, k), (const char *)a->ptr[i] + r * step, (size_t)cdr_dtype_bytes(y->dtype, cdr_type_cols(y)));
    }
    return st;
}

static int kernels(uint32_t isa)
{
    static row table[MAX_KERNELS];
    const cdr_check_target t = { .device = CDR_DEV_CPU, .isa = isa, .run = run, .ctx = table };
    cdr_check_sum checked;
    cdr_text report = { 0 };
    cdr_err err = { CDR_OK, "", "" };
    cdr_status st = cdr_check_on(&t, "", true, &checked, &report, &err);
    if (st != CDR_OK) fprintf(stderr, "%s%s\n", report.s ? report.s : "", err.text);
    cdr_text_free(&report);
    for (int i = 0; cdr_ops[i]; i++)
        for (const cdr_kernel *k = cdr_op_kernels(cdr_ops[i], CDR_DEV_CPU); k->name; k++) {
            const sum *s = sum_of(table, k);
            if (s->n > 0) printf("%s, kernel %s: %016llx of %lld bytes\n", cdr_ops[i]->name, k->name, (unsigned long long)s->hash, (long long)s->n);
        }
    return st != CDR_OK || !table[0].kernel;
}

/* BF16 of any sign and fraction, the exponent field evenly drawn from lo .. hi; 0 is a subnormal or zero. */
static void draw_bf16(uint16_t *x, int64_t n, uint64_t stream, unsigned lo, unsigned hi)
{
    const cdr_rng_key key = { 7, stream, 0 };
    for (int64_t i = 0; i < n; i++) {
        const uint64_t u = cdr_rng_u64(key, (uint64_t)i);
        x[i] = (uint16_t)((u & 0x807f) | (lo + (u >> 32) % (hi - lo + 1)) << 7);
    }
}

/* y_MN = a_MK b_NK^T, BF16 operands, F32 result; the sums stay far below infinity */
static int products(uint32_t isa)
{
    static const struct { const char *name; uint32_t needs; } path[] = {
        { "base", 0 }, { "avx2", CDR_ISA_AVX2 }, { "avx512", CDR_ISA_AVX2 | CDR_ISA_AVX512 },
        { "avx512_bf16", CDR_ISA_AVX2 | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 },
        { "amx", CDR_ISA_AVX2 | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 | CDR_ISA_AMX },
    };
    static const struct { const char *name; unsigned a_lo, a_hi, b_lo, b_hi; } sizes[] = {
        { "near 1", 117, 137, 117, 137 }, { "subnormal products and sums", 50, 75, 50, 75 }, { "of all sizes", 0, 150, 0, 150 },
        { "subnormal times large", 0, 3, 200, 230 },
    };
    static const int64_t shape[][3] = { { 1, 64, 2 }, { 7, 70, 131 }, { 33, 129, 64 }, { 65, 33, 521 }, { 16, 16, 32 } };
    static uint16_t a[65 * 521], b[129 * 521];
    static float y[65 * 129];
    _Static_assert(CDR_COUNT(path) == CDR__N_GEMM, "a name for each path");
    for (int p = 0; p < CDR__N_GEMM; p++)
        for (int k = 0; k < CDR_COUNT(sizes) && !(path[p].needs & ~isa); k++) {
            sum s = { 0 };
            for (int i = 0; i < CDR_COUNT(shape); i++) {
                const int64_t M = shape[i][0], N = shape[i][1], K = shape[i][2];
                draw_bf16(a, M * K, 2 * (uint64_t)i, sizes[k].a_lo, sizes[k].a_hi);
                draw_bf16(b, N * K, 2 * (uint64_t)i + 1, sizes[k].b_lo, sizes[k].b_hi);
                char *block = cdr_alloc(cdr__gemm_work_bytes(p, M, N, K, 1) + 64);
                cdr__gemm(p, &(cdr__gemm_args){ .m = M, .n = N, .k = K, .a = cdr__rows(CDR_BF16, a, K), .b = cdr__cols(CDR_BF16, b, K),
                          .c = y, .c_dtype = CDR_F32, .c_pitch = N }, (void *)(((uintptr_t)block + 63) / 64 * 64), 1);
                add(&s, y, (size_t)(M * N) * sizeof *y);
                cdr_free(block);
            }
            printf("product by %s, numbers %s: %016llx of %lld bytes\n", path[p].name, sizes[k].name, (unsigned long long)s.hash, (long long)s.n);
        }
    return 0;
}

static int model(int dtype)
{
    tiny_run c = tiny_default();
    tiny_result *r = tiny_shared();
    c.compute = dtype;
    c.isa = 0;
    c.eval_between = c.generate_between = true;
    if (tiny_go(&c, r) != 0 || r->n_weights <= 0 || r->n_weights > TINY_MAX_WEIGHTS) {
        fprintf(stderr, "the small model does not train\n");
        return 1;
    }
    sum state = { 0 }, said = { 0 };
    add(&state, r->weights, sizeof(float) * (size_t)r->n_weights);
    add(&said, r->loss, sizeof r->loss);
    add(&said, r->norm, sizeof r->norm);
    add(&said, r->eval, sizeof r->eval);
    add(&said, r->logits, sizeof r->logits);
    printf("model %s: weights and states %016llx, losses, norms and logits %016llx, last loss %a\n", cdr_dtype_row(dtype)->name,
           (unsigned long long)state.hash, (unsigned long long)said.hash, r->loss[TINY_STEPS - 1]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        cdr_err err = { CDR_OK, "", "" };
        const uint32_t isa = cdr_cpu_isa(&err);
        if (err.status != CDR_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 2;
        }
        printf("level %s\n", cdr_isa_name(isa));
        if (strcmp(argv[1], "kernels") == 0) return kernels(isa);
        if (strcmp(argv[1], "products") == 0) return products(isa);
        fprintf(stderr, "bits_hash [kernels | products]\n");
        return 2;
    }
    int n_bad = model(CDR_F32) + model(CDR_BF16);              /* first: a child forked after an OpenMP region hangs */
    n_bad += kernels(0);
    return n_bad != 0;
}
