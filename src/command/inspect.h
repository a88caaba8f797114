/* inspect.h: what a path is, from headers alone. Internal to src/command.
 *
 *   cdr__names a;
 *   CDR_TRY(cdr__names_audit(model, hf, pool, &a, err));            // which parameter each tensor of the directory belongs to, by name
 *   printf("unknown %lld, missing %lld\n", a.n_unknown, a.n_missing);
 */
#ifndef CDR_INSPECT_H
#define CDR_INSPECT_H

#include "io/hf.h"
#include "models/models.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__NAMES_LISTED = 8, CDR__NAMES_FORMATS = 24 };
typedef enum { CDR__ROLE_PLAIN, CDR__ROLE_PACKED, CDR__ROLE_SCALE, CDR__ROLE_INVERSE, CDR__ROLES } cdr__file_role;

typedef struct {
    int64_t n_used, n_carried, n_unknown, n_missing;          /* tensors; missing: parameters that are not filled, or not in whole */
    const char *unknown[CDR__NAMES_LISTED], *missing[CDR__NAMES_LISTED];
    int64_t n_packed, n_fp8;                                  /* parameters that the directory holds as MXFP4, as FP8 with block scales */
    int64_t *of;                                              /* by tensor of the directory: its (first) parameter; -1: carried, -2: unknown */
    uint8_t *role;                                            /* by tensor: cdr__file_role */
} cdr__names;
cdr_status cdr__names_audit(const cdr_model *m, const cdr_hf *d, cdr_pool *pool, cdr__names *a, cdr_err *err);

typedef struct { int64_t tensors, bytes; } cdr__format_count;
/* Counts by row of the safetensors format table, of the shards that are there; opens each of them. */
cdr_status cdr__count_formats(cdr_hf *d, cdr__format_count count[CDR__NAMES_FORMATS], int64_t *bytes, cdr_err *err);

typedef struct { const char *path, *tensors; bool config; } cdr__inspect_opts;
/* Appends lines for a person to text and writes one object into w. */
cdr_status cdr__inspect_checkpoint(const cdr__inspect_opts *o, cdr_text *text, cdr_jw *w, cdr_err *err);
/* A .json file told by its keys. *is: it was said; *tokenizer: it holds one, which is for cdr__inspect_tokenizer to say. Broken JSON is an error. */
cdr_status cdr__inspect_json(const cdr__inspect_opts *o, bool *is, bool *tokenizer, cdr_text *text, cdr_jw *w, cdr_err *err);
/* '*' is any text; without one, any name that holds the pattern. */
bool cdr__name_fits(const char *pattern, const char *name);
void cdr__tensor_line(const cdr_st_tensor *t, const char *file, cdr_text *text, cdr_jw *w);
const char *cdr__quirks(const cdr_model *m, cdr_pool *pool, cdr_jw *w);       /* "one-based layer lists, A_log stored 128 (96 live)"; w: an open array */

/* What a data file is. Appends to text; w: an object. false: it is no data. */
bool cdr__inspect_data(const char *path, cdr_text *text, cdr_jw *w);
/* What an adapter directory holds, from its headers. */
cdr_status cdr__inspect_adapter(const char *path, cdr_text *text, cdr_jw *json, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
