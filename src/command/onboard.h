/* onboard.h: a directory in, a description, a recipe, a plan and a card out: what the files of the command share. Internal to src/command.
 *
 *   cdr__onboard o = { .dir = "toy-k3", .out = "work" };
 *   cdr__card_put(&o, CDR__ITEM_PLAN, CDR__VERIFIED, (cdr__finding){ .figure = 4.1e6, .unit = "bytes", .detail = "fits" });
 *
 * An item of the card is a claim: it is verified by a figure, failed, or unverified with the command that would verify it.
 */
#ifndef CDR_ONBOARD_H
#define CDR_ONBOARD_H

#include "train/session.h"
#include "command/inspect.h"
#include "weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CDR__UNVERIFIED, CDR__VERIFIED, CDR__FAILED, CDR__UNSUPPORTED, CDR__NOT_APPLICABLE, CDR__STATUSES } cdr__status;
typedef enum {
    CDR__ITEM_CONFIG_KEYS, CDR__ITEM_TENSORS_MATCHED, CDR__ITEM_PARAMETERS, CDR__ITEM_DTYPES, CDR__ITEM_QUIRKS, CDR__ITEM_TOKENIZER, CDR__ITEM_CHAT,
    CDR__ITEM_TINY_PARITY, CDR__ITEM_REFERENCE, CDR__ITEM_REFERENCE_FORCED, CDR__ITEM_LAYERS, CDR__ITEM_LORA_ZERO, CDR__ITEM_FIRST_LOSS, CDR__ITEM_EXPORT,
    CDR__ITEM_PLAN, CDR__ITEMS
} cdr__item;
typedef struct { double figure; const char *unit, *expected, *detail, *command; } cdr__finding;      /* unit NULL: no figure */

typedef struct {
    const char *dir, *out, *verify;
    const cdr_common *common;
    const char *machine; int64_t devices;
    cdr_pool *pool;
    cdr_hf *d; cdr_model *m; cdr_weights *w;
    cdr_model_match match;
    cdr_session text;                 /* of the recipe, for its tokenizer */
    cdr_tokenizer *tok;               /* borrowed from it; NULL: none */
    const char *recipe;               /* WORK/recipe.yaml */
    int64_t sequence;                 /* its sequence_length */
    bool fits;                        /* its plan does */
    struct { cdr__status status; cdr__finding f; } item[CDR__ITEMS];
} cdr__onboard;

void cdr__card_put(cdr__onboard *o, cdr__item item, cdr__status status, cdr__finding f);
/* What a failed call says becomes the item's detail, and the call's error is cleared: the card goes on. */
void cdr__card_error(cdr__onboard *o, cdr__item item, cdr__status status, cdr_err *e);
cdr_status cdr__card_write(cdr__onboard *o, cdr_err *err);
int cdr__card_count(const cdr__onboard *o, cdr__status status);

cdr_status cdr__onboard_files(cdr__onboard *o, cdr_err *err);          /* model.yaml, recipe.yaml */
void cdr__onboard_text(cdr__onboard *o);                               /* tokenizer, chat */
void cdr__onboard_export(cdr__onboard *o);                             /* written again and compared byte by byte */
void cdr__onboard_lora(cdr__onboard *o);                               /* B = 0, first loss */
void cdr__onboard_tiny(cdr__onboard *o);                               /* the family at toy size against the interpreter in double precision */
void cdr__onboard_verify(cdr__onboard *o);                             /* against a reference dump */

/* An open model that evaluates T tokens: the recipe's with changes; infer_only. */
typedef struct { const char *recipe; const char *const *set; int n_set; cdr_probe probe; int64_t T; } cdr__eval_spec;
cdr_status cdr__eval_open(const cdr__eval_spec *e, const cdr_common *c, cdr_session *s, cdr_err *err);
/* Ids of one document, the rest idle; targets: the next ids. Returns the loss sum. */
cdr_status cdr__eval_ids(cdr_session *s, const int32_t *ids, int64_t n, double *loss, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
