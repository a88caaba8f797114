/* export_hf.h: whole models as Hugging Face directories: what `toy` and `export --format hf` share. Internal to src/command.
 *
 *   CDR_TRY(cdr__run_rows(ck, model, i_param, first, n, rows, err));        // rows of a run's checkpoint, in F32
 */
#ifndef CDR_EXPORT_HF_H
#define CDR_EXPORT_HF_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "bf16", "mxfp4", "fp8", NULL: as it is (-1). */
cdr_status cdr__experts_word(const char *word, int *experts, cdr_err *err);
cdr_status cdr__shard_size(const char *word, int64_t *bytes, cdr_err *err);
/* Files of the source that were left there: one line, where there are any; members of an open object. */
void cdr__left_text(const cdr_weights_out_stat *stat, const char *source, cdr_text *t);
void cdr__left_json(const cdr_weights_out_stat *stat, cdr_jw *w);
/* Does the checkpoint hold the parameter (of experts: the first of them)? */
bool cdr__ckpt_has(const cdr_ckpt *ck, const cdr_model *m, int64_t i_param);
/* Rows first .. first + n - 1 (all but the last axis, flattened), whatever dtype they have there. A tensor that is not there: an error. */
cdr_status cdr__run_rows(cdr_ckpt *ck, const cdr_model *m, int64_t i_param, int64_t first, int64_t n, float *dst, cdr_err *err);
/* `toy` of the family of the run's own model. */
cdr_status cdr__export_run(const cdr_toy_args *a, cdr_result *r, cdr_err *err);
cdr_status cdr__export_hf(const cdr_export_args *a, cdr_result *r, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
