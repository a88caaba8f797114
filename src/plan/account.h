/* account.h: what a bundle costs: bytes by class at the peak, traffic, FLOPs, a predicted step time.
 *
 *   cdr_account a;
 *   cdr_account_bundle(&bundle, &a);                  // exact: the same numbers that the run allocates
 *   double s = cdr_account_step_s(&a, &machine, CDR_BF16, &basis);
 */
#ifndef CDR_ACCOUNT_H
#define CDR_ACCOUNT_H

#include "compile/compile.h"
#include "plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_ACCOUNT_COLLS = 8 };
typedef struct { const char *name; int64_t bytes, calls; } cdr_account_coll;     /* bytes one rank receives in a step */
typedef struct {
    int64_t total_bytes, run_bytes, exec_bytes, lower_bound_bytes;
    int64_t by_class[CDR_N_CLASSES];        /* RUN values; STEP values and live TURN values of the largest program at its peak */
    int64_t unused_bytes;                   /* total minus the sum by class: what placement leaves between values */
    const char *peak_prog, *peak_at;        /* program and call of the peak */
    double flop, memory_bytes;              /* one step: FLOPs executed, bytes of device memory moved */
    int n_colls; cdr_account_coll coll[CDR_ACCOUNT_COLLS];
    int64_t wire_bytes;
} cdr_account;

void cdr_account_bundle(const cdr_bundle *b, cdr_account *a);
/* Roofline: the larger of FLOPs over the GEMM rate and bytes over the memory rate, plus traffic over the link. 0: unknown. */
double cdr_account_step_s(const cdr_account *a, const cdr_machine *m, int dtype, cdr_basis *basis);
void cdr_account_memory(cdr_text *out, const cdr_bundle *b, int program);        /* --print memory: every value with its place */
void cdr_account_comm(cdr_text *out, const cdr_bundle *b);                       /* --print comm: collectives in order */
void cdr_account_timeline(cdr_text *out, const cdr_bundle *b, const cdr_machine *m, int dtype);   /* --print timeline: calls with predicted times */

#ifdef __cplusplus
}
#endif
#endif
