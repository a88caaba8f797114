/* generate.h: text from a model that is loaded (generate.c). Internal.
 *
 *   cdr_said x = { .ids = ids, .n = n_prompt, .stop = &eot, .n_stop = 1 };        // ids has room for opts.gen_S
 *   cdr_status st = cdr__model_say(&session, &opts, &x, err);                     // x.ids[n_prompt .. x.n - 1] is what was said
 */
#ifndef CDR_TRAIN_GENERATE_H
#define CDR_TRAIN_GENERATE_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ids that grow: the prompt first. */
typedef struct {
    int32_t *ids;                      /* room for opts.gen_S */
    int64_t n;                         /* in: ids of the prompt; out: with what was said, without the id that ended it */
    int64_t n_fed;                     /* in: of these, as many as the cache holds already (0: begin anew); out: as the cache holds now */
    const int32_t *stop; int n_stop;   /* ids that end what is said; [EOS] does where there is none */
    bool (*said)(void *ctx, int32_t id);       /* after each id; false: stop. NULL: nothing */
    void *ctx;
} cdr_said;
/* Cuts text, from byte `from` on, before the first of the texts of generate.stop that it holds; false: it holds none. */
bool cdr__cut_at_stop(const cdr_strings *stop, cdr_text *text, size_t from);
cdr_status cdr__model_say(cdr_session *s, const cdr_sample_opts *o, cdr_said *x, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
