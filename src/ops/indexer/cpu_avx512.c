/* indexer, inner loops for AVX-512: the same source and the same bits as those of any CPU. */
#include "ops/indexer/math.inc"

const cdr__indexer_math cdr__indexer_math_avx512 = { product, relu_sum, add_exp, exp_of, count_from, signs, take_signs, transpose,
    { [CDR_F32] = widen_f32, [CDR_BF16] = widen_bf16 } };
