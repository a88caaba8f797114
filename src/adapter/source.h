/* source.h: tensors of an adapter, from a file or a checkpoint, to be bound. Internal to src/adapter.
 *
 *   cdr__lora_source s = { .where = path, .tensor = t, .n = n, .read = read_st, .ctx = st, .fit = fit_config, .config = &c };
 *   CDR_TRY(cdr__lora_bind(&s, m, pool, set, err));
 */
#ifndef CDR_ADAPTER_SOURCE_H
#define CDR_ADAPTER_SOURCE_H

#include "adapter/adapter.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct { const char *name; int dtype, n_dim; int64_t n[CDR_ST_MAX_DIM]; } cdr__lora_raw;
typedef struct cdr__lora_source cdr__lora_source;
struct cdr__lora_source {
    const char *where;
    const cdr__lora_raw *tensor; int64_t n;
    cdr_status (*read)(void *ctx, int64_t i, float *dst, cdr_err *err);      /* all of tensor i as F32 */
    /* Scale of a pair whose values are there, and whether its rank is what the configuration says. */
    cdr_status (*fit)(const cdr__lora_source *s, const cdr__lora_names *names, const cdr_model *m, cdr_lora_pair *p, cdr_err *err);
    void *ctx;
    const cdr__lora_config *config;      /* of a directory; NULL: a run */
};
cdr_status cdr__lora_bind(const cdr__lora_source *src, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
