/* feed.h: rows of one document into the generate program, for tests: n of them, at positions first, first + 1, ..; its 16 rows take the rest as idle.
 *
 *   for (int32_t t = 0; t < 10; t++) feed(m.x, ids, t, 1, logits, W);          // logits[t][W]
 */
#ifndef CADRE_TEST_FEED_H
#define CADRE_TEST_FEED_H
#include "run/run.h"
#include "test.h"

static inline void feed(cdr_exec *x, const int32_t *ids, int32_t first, int32_t n, float *logits, int64_t W)
{
    int32_t tok[16] = { 0 }, start[16], pos[16];
    cdr_err err = { CDR_OK, "", "" };
    for (int32_t t = 0; t < 16; t++) {
        if (t < n) tok[t] = ids[first + t];
        start[t] = t < n ? 0 : 1;
        pos[t] = t < n ? first + t : 0;
    }
    cdr_exec_put(x, CDR_PROG_GENERATE, "tokens", 0, tok, sizeof tok);
    cdr_exec_put(x, CDR_PROG_GENERATE, "start", 0, start, sizeof start);
    cdr_exec_put(x, CDR_PROG_GENERATE, "pos", 0, pos, sizeof pos);
    cdr_exec_put(x, CDR_PROG_GENERATE, "n_live", 0, &n, sizeof n);
    T_CHECK(cdr_exec_run(x, CDR_PROG_GENERATE, &err) == CDR_OK);
    float *all = malloc(sizeof *all * (size_t)(16 * W));
    cdr_exec_get(x, CDR_PROG_GENERATE, "logits", 0, all, sizeof *all * (size_t)(16 * W));
    memcpy(logits + first * W, all, sizeof *all * (size_t)(n * W));
    free(all);
}
#endif
