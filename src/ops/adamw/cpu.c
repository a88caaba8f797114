/* adamw, CPU kernels: the loop over blocks, which all instruction sets share, and the base block. Bound: memory.
 * A thread takes runs of 1024 elements, so that w is still in L1 when the copy is rounded from it. In cache, one thread of Zen 3: 0.65 ns an
 * element with AVX2 and 1.3 in base; a scalar loop, to which a compiler's test for overlap leads where updates are in place, 3.6. The memory's
 * share of two threads is 1.6. Tried: stores past the caches: with four streams 1.5 to 3 times slower. */
#include "ops/adamw/rows.inc"

enum { RUN_ELEMS = 1024 };

cdr_status cdr__adamw_base(const cdr_args *a) { return cdr__adamw_run(a, block); }

cdr_status cdr__adamw_run(const cdr_args *a, cdr__adamw_block *one)
{
    int64_t n = cdr_type_elems(&a->type[0]);
    const float *grad = a->ptr[0], *clip = a->ptr[1], *w0 = a->ptr[3], *m0 = a->ptr[4], *v0 = a->ptr[5];
    float *w = a->ptr[7], *m = a->ptr[8], *v = a->ptr[9];
    char *weight = a->ptr[10];
    int dtype = a->type[10].dtype;
    size_t elem = weight ? (size_t)cdr_dtype_bytes(dtype, 1) : 0;
#pragma omp parallel for num_threads(a->lane->n_threads) schedule(static) if (n > 16384)
    for (int64_t b = 0; b < n; b += RUN_ELEMS) {
        const cdr__adamw_at at = { .grad = grad + b, .hyper = a->ptr[2], .clip = *clip, .w0 = w0 + b, .m0 = m0 + b, .v0 = v0 + b, .w = w + b, .m = m + b,
                                   .v = v + b, .weight = weight ? weight + (size_t)b * elem : NULL, .dtype = dtype };
        one(a->attr, CDR_MIN(n - b, (int64_t)RUN_ELEMS), &at);
    }
    return CDR_OK;
}
