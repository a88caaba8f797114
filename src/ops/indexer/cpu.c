/* indexer, the tables of inner loops for any CPU (math.inc), and the kernels of every instruction set by their names. */
#include "ops/indexer/math.inc"

const cdr__indexer_math cdr__indexer_math_base = { product, relu_sum, add_exp, exp_of, count_from, signs, take_signs, transpose,
    { [CDR_F32] = widen_f32, [CDR_BF16] = widen_bf16 } };

cdr_status cdr__indexer_base(const cdr_args *a) { return cdr__indexer_run(a, &cdr__indexer_math_base); }
cdr_status cdr__indexer_avx2(const cdr_args *a) { return cdr__indexer_run(a, &cdr__indexer_math_avx2); }
cdr_status cdr__indexer_avx512(const cdr_args *a) { return cdr__indexer_run(a, &cdr__indexer_math_avx512); }
cdr_status cdr__indexer_loss_base(const cdr_args *a) { return cdr__indexer_loss_run(a, &cdr__indexer_math_base); }
cdr_status cdr__indexer_loss_avx2(const cdr_args *a) { return cdr__indexer_loss_run(a, &cdr__indexer_math_avx2); }
cdr_status cdr__indexer_loss_avx512(const cdr_args *a) { return cdr__indexer_loss_run(a, &cdr__indexer_math_avx512); }
cdr_status cdr__indexer_loss_bwd_base(const cdr_args *a) { return cdr__indexer_loss_bwd_run(a, &cdr__indexer_math_base); }
cdr_status cdr__indexer_loss_bwd_avx2(const cdr_args *a) { return cdr__indexer_loss_bwd_run(a, &cdr__indexer_math_avx2); }
cdr_status cdr__indexer_loss_bwd_avx512(const cdr_args *a) { return cdr__indexer_loss_bwd_run(a, &cdr__indexer_math_avx512); }
