/* router.h: how evenly tokens are spread over experts: read after each step, for the step line, the `router` record and
 * the heat map at the end. Rank 0 reads; the counts are those of all ranks. Internal to src/train.
 *
 *   cdr_router r;
 *   cdr__router_open(&r, s);                        // finds the layers that have routed experts; none: r.n = 0
 *   cdr__router_read(&r, s);                        // after a step
 *   r.worst, r.dead ...
 *   cdr__router_map(&r, utf8, &text);               // lines of layers x experts
 */
#ifndef CDR_ROUTER_H
#define CDR_ROUTER_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_ROUTER_WINDOW = 25, CDR_MAP_COLUMNS = 80, CDR_UNEVEN = 3 };       /* steps of one half of the map's window; widest line; times the mean */

typedef struct {
    int layer, experts;
    cdr_val bias;                /* selection bias, a RUN value; CDR_NONE: none */
    int32_t *load;               /* of the last step, by expert */
    int64_t *sum[2];             /* of the steps since the window's half began; of the half before */
    double max_mean, min_mean, entropy, bias_min, bias_max; int dead;
    const char *value;           /* "layers.3.moe.load" */
} cdr_router_layer;

typedef struct {
    int n; cdr_router_layer *layer;
    double worst; int worst_layer, dead;     /* of the last step: largest max over mean; experts without a token, all layers */
    int64_t steps[2];                        /* of the two halves */
} cdr_router;

void cdr__router_open(cdr_router *r, const cdr_session *s);
void cdr__router_read(cdr_router *r, const cdr_session *s);
/* After each full half window: the layer whose busiest expert got more than CDR_UNEVEN times the mean of that half, the most
 * uneven one. false: none, or the half is not full. */
bool cdr__router_uneven(const cdr_router *r, int *layer, double *ratio, int *dead);
/* Load of an expert over the mean as one character: ratio 0 is an expert without a token. */
const char *cdr__router_mark(double ratio, bool utf8);
void cdr__router_map(const cdr_router *r, bool utf8, cdr_text *out);

/* Further losses of a step, means over its rows that are not idle: the indexers' KL and the auxiliary balance loss. */
typedef struct { int n; uint8_t *is_kl; double *sum; bool has_kl, has_aux; double kl, aux; } cdr_extra;
void cdr__extra_open(cdr_extra *x, const cdr_session *s);
void cdr__extra_read(cdr_extra *x, const cdr_session *s, int64_t rows);

#ifdef __cplusplus
}
#endif
#endif
