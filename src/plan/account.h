/* account.h: what a bundle costs: bytes by class at the peak, traffic by communicator and link, FLOPs, a predicted step time.
 *
 *   cdr_account a;
 *   cdr_account_bundle(&bundle, &a);                       // exact: the same numbers that the run allocates
 *   cdr_account_traffic(&bundle, &mesh, &machine, &a);     // a.comm: what travels on which link
 *   cdr_account_time(&bundle, &mesh, &machine, CDR_BF16, &a);
 *   a.time.step_s, a.time.basis
 */
#ifndef CDR_ACCOUNT_H
#define CDR_ACCOUNT_H

#include "compile/compile.h"
#include "plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What one collective operator moves over one communicator and one link in a step: bytes that a rank receives, calls. */
enum { CDR_ACCOUNT_COMMS = 48 };
typedef struct { const char *comm, *kind, *link; int64_t bytes, calls; } cdr_account_flow;
/* step_s: the step program on streams that run beside each other; 0: unknown, as the machine has no GEMM rate for the dtype. */
typedef struct { double step_s, compute_s, comm_s; cdr_basis basis, link_basis; bool no_link; } cdr_account_times;
typedef struct {
    int64_t total_bytes, run_bytes, exec_bytes, lower_bound_bytes;
    int64_t by_class[CDR_N_CLASSES];        /* RUN values; STEP values and live TURN values of the largest program at its peak. Gathered units are `comm` */
    int64_t mapped_bytes;                   /* beside the total: of files that stay mapped, whose pages the system may drop and read again */
    int64_t unused_bytes;                   /* total minus the sum by class: what placement leaves between values */
    const char *peak_prog, *peak_at;        /* program and call of the peak */
    double flop, memory_bytes;              /* one step: FLOPs executed, bytes of device memory moved */
    int64_t wire_bytes;                     /* what a rank receives in a step */
    int n_comms; cdr_account_flow comm[CDR_ACCOUNT_COMMS];
    cdr_account_times time;
} cdr_account;

void cdr_account_bundle(const cdr_bundle *b, cdr_account *a);
/* Ranks of a node are consecutive, as many as the largest power of two of its devices (64 of 72); a machine without a node-node link is one node. */
int cdr_account_node_ranks(const cdr_machine *m, int world);
void cdr_account_traffic(const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, cdr_account *a);
void cdr_account_time(const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, int dtype, cdr_account *a);
/* Are two ranks of one class? NULL: yes; else what differs. */
const char *cdr_account_class(const cdr_bundle *a, const cdr_bundle *b);
void cdr_account_memory(cdr_text *out, const cdr_bundle *b, int program);        /* --print memory: every value with its place */
void cdr_account_comm(cdr_text *out, const cdr_bundle *b);                       /* --print comm: collectives in order */
/* --print timeline: calls with predicted starts and times */
void cdr_account_timeline(cdr_text *out, const cdr_bundle *b, const cdr_mesh *mesh, const cdr_machine *m, int dtype);

#ifdef __cplusplus
}
#endif
#endif
