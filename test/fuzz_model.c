/* fuzz_model.c: any bytes as a model description. cdr_model_parse never crashes: what it refuses has a message and a stable id,
 * and of what it accepts every number and text can be asked for. The three ways to take indexers go by the length. */
#include "models/models.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const cdr_model *m, cdr_pool *pool)
{
    const cdr_model_info *info = cdr_model_get_info(m);
    int n_groups = 0;
    const char *const *group = cdr_model_groups(&n_groups);
    int64_t n = cdr_model_params(m);
    CDR_CHECK(info->name && info->family && info->n_layers >= 1 && info->hidden >= 1 && info->vocab >= 1 && info->n_tensors == n);
    CDR_CHECK(info->n_params >= info->n_active && info->n_active >= 0 && n_groups > 0);
    CDR_CHECK(cdr_model_pair_flop(m) >= 0 && cdr_model_token_flop(m) >= 0);
    CDR_CHECK(cdr_model_summary(m, pool)[0] && cdr_model_print(m, pool));
    for (int64_t i = 0; i < n; i++) {
        CDR_CHECK(cdr_model_param(m, i)[0]);
        for (int g = 0; g < n_groups; g++) cdr_model_in_group(m, i, group[g]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cdr_err err = { 0 };
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = NULL;
    cdr_model_spec s = { .path = "fuzz.yaml", .indexer = (int)(size % 3) };
    char *text = cdr_alloc(size);               /* exactly as long: a read beyond its end is seen */
    if (size) memcpy(text, data, size);
    cdr_status status = cdr_model_parse(&s, text, size, "fuzz", pool, &m, &err);
    cdr_free(text);
    if (status == CDR_OK) ask(m, pool);
    else CDR_CHECK(err.status == status && err.id[0] && err.text[0] && !m);
    cdr_pool_free(pool);
    return 0;
}
