/* adapter.h: adapters of files beside a session's model: which model they belong to, compiled with it, put into its executor; what a run
 * leaves for others. Internal to src/train.
 *
 *   CDR_TRY(cdr__adapter_attach(&s, "adapter", err));      // before the compile: s.adapter, and opts of the compile
 *   CDR_TRY(cdr__session_compile(&s, err)); ...
 *   CDR_TRY(cdr__adapter_base(&s, err));                   // after cdr__session_device, before weights are read
 *   CDR_TRY(cdr__adapter_put(&s, err));                    // A and B, once the base's weights are there
 */
#ifndef CDR_TRAIN_ADAPTER_H
#define CDR_TRAIN_ADAPTER_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models and adapters by path ---- */
/* What a path of a model means to commands that run nothing: a directory of weights, a run (the model of its recipe), a description, a built-in. */
cdr_status cdr__model_at(const char *path, cdr_pool *pool, cdr_model **m, cdr_err *err);
/* An adapter and the model that it is bound to. base NULL: the run's own model, or the directory that adapter_config.json names. */
cdr_status cdr__adapter_open(const char *path, const char *base, cdr_pool *pool, cdr_model **m, cdr_lora_set *set, cdr_err *err);
/* The base hash of the weights that m was loaded from; *known false where it has none (random weights). Reads all of them. */
cdr_status cdr__base_hash(const cdr_model *m, uint64_t *hash, bool *known, cdr_err *err);
/* An error where the base's hash and the adapter's are known and differ: reads the weights that m was loaded from. at: who asks, for the message. */
cdr_status cdr__base_agrees(const cdr_model *m, const cdr_lora_set *set, const char *at, cdr_err *err);

/* ---- in a session ---- */
cdr_status cdr__adapter_attach(cdr_session *s, const char *path, cdr_err *err);
/* The same for the set that was attached, by the hash that the session has after cdr__session_device: nothing is read, and all ranks say the same. */
cdr_status cdr__adapter_base(const cdr_session *s, cdr_err *err);
cdr_status cdr__adapter_opts(const cdr_session *s, cdr_compile_opts *o, cdr_err *err);      /* all parameters frozen, the set's adapters */
cdr_status cdr__adapter_put(cdr_session *s, cdr_err *err);
/* lora.adapter of a new run: read and checked against the compiled adapters, then put, into the master weights too. */
cdr_status cdr__adapter_start(cdr_session *s, cdr_err *err);
/* lora.serve_with: refuses what a named consumer would drop. Of one consumer: keys bound and dropped. */
cdr_status cdr__serve_check(const cdr_session *s, const cdr_compile_opts *o, cdr_err *err);
cdr_status cdr__serve_count(const cdr_session *s, const char *consumer, cdr_lora_serve *serve, cdr_err *err);
/* Members of state.json that say how the checkpoint's adapters are scaled. */
void cdr__adapter_state(const cdr_session *s, cdr_jw *w);
/* final/ of a LoRA run, from its newest checkpoint: PEFT's layout (stacked where the model's class is). Rank 0. */
cdr_status cdr__adapter_final(cdr_session *s, cdr_lora_report *rep, const char **format, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
