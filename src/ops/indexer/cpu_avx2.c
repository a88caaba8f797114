/* indexer, inner loops for AVX2: the same source and the same bits as those of any CPU. */
#include <immintrin.h>
#include <stdint.h>

#define EIGHT_POSITIVE(x) ((uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_setzero_ps(), _CMP_GT_OQ)))
#include "ops/indexer/math.inc"

const cdr__indexer_math cdr__indexer_math_avx2 = { product, relu_sum, add_exp, exp_of, count_from, signs, take_signs, transpose,
    { [CDR_F32] = widen_f32, [CDR_BF16] = widen_bf16 } };
