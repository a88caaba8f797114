/* answers.h: what a model says to held-out prompts, beside what stands there. Internal to src/command.
 *
 *   cdr_answers sum;
 *   CDR_TRY(cdr__answers(&m, 20, &sum, err));              // behind cdr__model_load, with data open
 *   printf("%lld of %lld exact, word F1 %.3f", sum.exact, sum.n, sum.f1);
 */
#ifndef CDR_TRAIN_ANSWERS_H
#define CDR_TRAIN_ANSWERS_H

#include "command/model_open.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t n, exact;                  /* held-out samples asked; those answered word for word */
    double f1, seconds;                /* mean overlap of words, 0 to 1 */
    const char *prompt, *said, *given; /* of the first, in the session's pool */
} cdr_answers;
/* The first n held-out samples, in order. Each is asked up to its first trained token and answered greedily; what it says is compared with the
 * trained stretch that begins there. generate.max_new_tokens bounds an answer. Collective: every rank says the same. */
cdr_status cdr__answers(cdr__opened *m, int64_t n, cdr_answers *sum, cdr_err *err);

/* Overlap of words as multisets, 2 P R / (P + R); words are runs of letters, digits and bytes above 127, in lower case. Both without a word: 1. */
double cdr__word_f1(const char *said, const char *given);

#ifdef __cplusplus
}
#endif
#endif
