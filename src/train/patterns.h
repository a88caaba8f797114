/* patterns.h: which parameters of a model a pattern of a recipe means: groups, leaf names, globs, regular expressions. Internal to src/train.
 *
 *   bool in[n_params] = { 0 };
 *   int64_t n;
 *   CDR_TRY(cdr__pattern_mark(s, "o_proj", "lora.targets", in, &n, err));        // in: o_proj of every layer; n: how many
 */
#ifndef CDR_PATTERNS_H
#define CDR_PATTERNS_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* in[i] |= the pattern matches parameter i of the model; *n: how many it matches. key: for messages. */
cdr_status cdr__pattern_mark(const cdr_session *s, const char *pattern, const char *key, bool *in, int64_t *n, cdr_err *err);
/* All of them; each must match. */
cdr_status cdr__patterns_mark(const cdr_session *s, const cdr_strings *patterns, const char *key, bool *in, cdr_err *err);
/* The last part of a module's name: o_proj of model.layers.3.self_attn.o_proj.weight. */
const char *cdr__leaf(cdr_pool *pool, const char *name);

#ifdef __cplusplus
}
#endif
#endif
