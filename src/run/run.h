/* run.h: executes a bundle on a device. One allocation per tier, before the first step; a step allocates nothing.
 *
 *   cdr_exec *x;
 *   CDR_TRY(cdr_exec_open(&(cdr_exec_opts){ .bundle = b, .device = d, .world = world }, &x, err));
 *   cdr_exec_put(x, CDR_PROG_STEP, "tokens", mb, tokens, bytes);
 *   CDR_TRY(cdr_exec_run(x, CDR_PROG_STEP, err));            // all turns of the schedule
 *   cdr_exec_get(x, CDR_PROG_STEP, "metrics", 0, metrics, sizeof metrics);
 *   cdr_exec_close(x);
 */
#ifndef CDR_RUN_H
#define CDR_RUN_H

#include "comm/comm.h"
#include "compile/compile.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_exec cdr_exec;
typedef struct {
    const cdr_bundle *bundle; cdr_device *device; cdr_comm *world;   /* borrows all three */
    const cdr_mesh *mesh;
    uint64_t random_order;       /* not 0: the test executor; a random legal order over streams, keyed by this */
    bool check_finite;           /* after every call: the first non-finite output is recorded (probe) */
    bool sync, trace;            /* diagnostics: wait for the device after every call; print every call to stderr */
    bool poison;                 /* TURN memory is filled with NaN before each run of a program (diagnostic, tests) */
} cdr_exec_opts;
cdr_status cdr_exec_open(const cdr_exec_opts *o, cdr_exec **x, cdr_err *err);
void cdr_exec_close(cdr_exec *x);
/* All turns of the schedule; the device is idle afterwards. */
cdr_status cdr_exec_run(cdr_exec *x, cdr_prog_id prog, cdr_err *err);
/* Values by name, copy inst, between runs. Unknown names are a broken invariant. */
void cdr_exec_put(cdr_exec *x, cdr_prog_id prog, const char *name, int inst, const void *src, size_t bytes);
void cdr_exec_get(cdr_exec *x, cdr_prog_id prog, const char *name, int inst, void *dst, size_t bytes);
/* RUN values by id (parameters): dense rows of this rank's part, in whatever layout the value lies. bytes: at most run_bytes, and all of
 * them where it lies in panels. */
void cdr_exec_put_run(cdr_exec *x, cdr_val shared, const void *src, size_t bytes);
void cdr_exec_get_run(cdr_exec *x, cdr_val shared, void *dst, size_t bytes);
size_t cdr_exec_run_bytes(const cdr_exec *x, cdr_val shared);
/* Its rows first .. first + n - 1 (all but the last axis, flattened), so that whoever fills or reads a large one needs no copy of it. Of a
 * CPU's value several threads may put rows at once. get: where the host sees the device's memory. */
void cdr_exec_put_rows(cdr_exec *x, cdr_val shared, int64_t first, int64_t n, const void *src);
void cdr_exec_get_rows(cdr_exec *x, cdr_val shared, int64_t first, int64_t n, void *dst);
/* A packed stack that stays in its file (cdr_param.mapped): where expert `local` of this rank's part has its codes [N, K / 2] and scales
 * [N, K / 32]. All of them before the first run; the file stays mapped until close. Such values are got as any other, but cannot be put. */
void cdr_exec_map(cdr_exec *x, cdr_val shared, int64_t local, const uint8_t *codes, const uint8_t *scales);
int64_t cdr_exec_mapped_bytes(const cdr_exec *x);                         /* of files, by all such values */
/* Address; host-visible on CPU only; panels, or the table of a mapped value, where it lies so */
void *cdr_exec_ptr(cdr_exec *x, cdr_prog_id prog, cdr_val v, int mb);
size_t cdr_exec_slab_bytes(const cdr_exec *x, int tier);
/* Fills every parameter by its init rule, keyed by (seed, parameter's stream, global element index). */
cdr_status cdr_exec_init(cdr_exec *x, uint64_t seed, cdr_err *err);
void cdr_exec_init_param(cdr_exec *x, int32_t i_param, uint64_t seed);
/* What it fills in, in F32: elements first .. first + n - 1 of the whole parameter. */
void cdr_param_draw(const cdr_param *q, uint64_t seed, int64_t first, int64_t n, float *dst, int n_threads);
struct cdr_comm *cdr_exec_comm(const cdr_exec *x, cdr_comm_id c);        /* NULL: this mesh has none */
void cdr_exec_set_step(cdr_exec *x, int64_t step);                        /* for messages and comm notes */
void cdr_exec_check_finite(cdr_exec *x, bool on);                         /* records the first non-finite output; runs on, as peers wait */
/* After a run with check_finite: which call, which output. */
typedef struct { const char *origin, *op, *value; int layer, phase, mb; int64_t row; } cdr_nonfinite;
bool cdr_exec_nonfinite(const cdr_exec *x, cdr_nonfinite *where);

/* Profile: time per call of the last runs, when switched on. */
void cdr_exec_profile(cdr_exec *x, bool on);
typedef struct { const char *op, *kernel; int64_t n, ns; double flop; } cdr_profile_row;
int cdr_exec_profile_rows(cdr_exec *x, cdr_profile_row *rows, int max);

/* check.c: runs the tables of cases. One operator folder or all ("" or a glob); what `cadre check` and the tests call. */
typedef struct { int n_cases, n_failed; double worst_value, worst_grad; int n_skipped; /* collectives and views: checked elsewhere */ } cdr_check_sum;
cdr_status cdr_check_op(const char *op, uint32_t isa, bool quick, int n_threads, cdr_check_sum *sum, cdr_text *report, cdr_err *err);
/* The same for one table of cases that need not be in the registry: the tests of the harness itself. */
cdr_status cdr_check_cases(const cdr_case *cases, uint32_t isa, bool quick, int n_threads, cdr_check_sum *sum, cdr_text *report, cdr_err *err);

/* oracle.c: evaluates a graph under construction call by call with the operators' double references. Views and pitches
 * are honoured; values that were never written are NaN. put and get take dense arrays. */
typedef struct cdr_oracle cdr_oracle;
cdr_oracle *cdr_oracle_new(const cdr_graph *g);      /* borrows g, which may grow later */
void cdr_oracle_free(cdr_oracle *o);
void cdr_oracle_put(cdr_oracle *o, cdr_val v, const double *dense);
void cdr_oracle_get(cdr_oracle *o, cdr_val v, double *dense);
cdr_status cdr_oracle_call(cdr_oracle *o, const cdr_op *op, const cdr_call *c, cdr_err *err);
cdr_status cdr_oracle_run(cdr_oracle *o, const int32_t *calls, int64_t n, cdr_err *err);     /* ids of g->calls, in order */

#ifdef __cplusplus
}
#endif
#endif
