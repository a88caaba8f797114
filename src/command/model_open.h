/* model_open.h: a model to read from, without optimizer states: what eval, generate and chat open alike. Internal to src/command.
 *
 *   cdr__opened m;
 *   cdr_status st = cdr__model_open(&m, "runs/tiny-k31", &common, err);       // recipe, model, tokenizer, ranks
 *   if (st == CDR_OK) st = cdr__model_load(&m, adapter, err);                 // program, device, weights
 *   cdr__model_close(&m);                                                     // also behind a failure
 */
#ifndef CDR_MODEL_OPEN_H
#define CDR_MODEL_OPEN_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    cdr_session s;
    cdr_ckpt *ck;                      /* NULL: path is a directory of weights that no run of ours wrote */
    const char *path;
} cdr__opened;

/* What is there may be read. */
cdr_status cdr__readable(const char *path, cdr_err *err);
/* Nothing at path, or nothing that may be read: an error that says what may be there. */
cdr_status cdr__model_there(const char *path, cdr_err *err);
/* path: a run directory (its newest complete checkpoint), one checkpoint, or a directory with config.json. */
cdr_status cdr__model_open(cdr__opened *m, const char *path, const cdr_common *c, cdr_err *err);
/* Ranks of this command, whatever the run had: all of them shard, and hold as many experts each as they can. */
cdr_status cdr__model_layout(cdr__opened *m, cdr_err *err);
cdr_status cdr__model_load(cdr__opened *m, const char *adapter, cdr_err *err);      /* adapter: of a file, or NULL */
void cdr__model_close(cdr__opened *m);

/* The chat format that a model is prompted with; *chat NULL: none. raw: of a run that was trained on text, or a format none. */
cdr_status cdr__model_chat(const cdr__opened *m, cdr_chat **chat, cdr_err *err);
bool cdr__model_is_raw(const cdr__opened *m);

#ifdef __cplusplus
}
#endif
#endif
