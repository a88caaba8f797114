/* comm.h: ranks and what they say to each other. One table of functions, one file per transport:
 * single (one rank), shm (many ranks of one machine: fork, shared memory, futex); later mpi, nccl.
 *
 *   cdr_comm *world;
 *   cdr_comm_open(&(cdr_comm_spec){ .transport = "auto", .timeout_s = 10 }, &world, err);
 *   cdr_comm *shard = cdr_comm_split(world, replica, shard_rank, err);   // collective
 *   float *slab = cdr_comm_slab(world, bytes, err);                      // peers can read it; operands lie in it
 *   cdr_comm_note(world, step, layer, "reduce_scatter");                 // for the message about a lost rank
 *   cdr_comm_gather(shard, pieces, n);
 *   cdr_comm_close(world);
 *
 * Rows are split as FSDP splits them: rank r of n owns rows [r * rows / n, (r + 1) * rows / n) of a tensor (integer
 * division), so shards differ by at most one row. A shard's buffer has capacity ceil(rows / n); its tail is zeroed.
 * Sums across ranks are a binary tree over the ranks of the communicator: ((0+1)+(2+3))+..., elementwise, so the
 * order costs no bytes: all-to-all of slices, then an ordered local sum. Ranks of a communicator call the same
 * sequence. A rank that dies, or is silent for timeout_s, ends all: see cdr_comm_lost.
 */
#ifndef CDR_COMM_H
#define CDR_COMM_H

#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_comm cdr_comm;

typedef struct {
    const char *transport;     /* "auto", "single", "shm" ("mpi", "nccl": reserved, an error that says so) */
    double timeout_s;          /* silence of a rank that counts as lost */
} cdr_comm_spec;

/* A tensor taken part in by all ranks. local: this rank's rows (capacity ceil(rows/n)); full: all rows. */
typedef struct { void *local; void *full; int64_t rows; size_t row_bytes; int dtype; } cdr_piece;

/* rank and size come from the launcher's variables (CADRE_RANK ..., set by cdr_shm_launch). */
cdr_status cdr_comm_open(const cdr_comm_spec *spec, cdr_comm **world, cdr_err *err);
cdr_comm *cdr_comm_split(cdr_comm *c, int color, int key, cdr_err *err);      /* NULL on error. Same color = same new comm, ordered by key */
void cdr_comm_close(cdr_comm *c);                                             /* also of its splits' own memory */
int cdr_comm_rank(const cdr_comm *c);
int cdr_comm_size(const cdr_comm *c);
const char *cdr_comm_transport(const cdr_comm *c);
const char *cdr_comm_source(const cdr_comm *c);                               /* which launcher: "cadre launch", "none" */

/* The memory that this rank's operands lie in (once, by the world communicator); zeroed, 4096-aligned, readable by peers. */
void *cdr_comm_slab(cdr_comm *world, size_t bytes, cdr_err *err);

cdr_status cdr_comm_gather(cdr_comm *c, const cdr_piece *p, int n);           /* local -> full on every rank */
cdr_status cdr_comm_reduce_scatter(cdr_comm *c, const cdr_piece *p, int n);   /* full -> local, tree sum; F32, F64 or I32; tail zeroed */
cdr_status cdr_comm_all_reduce(cdr_comm *c, const cdr_piece *p, int n);       /* full -> full, tree sum; F32, F64 or I32; local unused; in place or
                                                                                 local = destination where local is not NULL */
cdr_status cdr_comm_sum_i64(cdr_comm *c, int64_t *x, int n);                  /* exact; n at most 64 */
cdr_status cdr_comm_all_gather(cdr_comm *c, const void *src, void *dst, size_t bytes);   /* equal bytes each; any memory; bytes <= 64 KiB */
cdr_status cdr_comm_broadcast(cdr_comm *c, void *x, size_t bytes, int root);  /* any memory, any size (chunked) */
cdr_status cdr_comm_barrier(cdr_comm *c);

/* Reading peers where their operands lie, for operators that exchange rows whose number is data. Each rank names n operands in its slab
 * (NULL: none), the same n on all. peer: operand k of a rank of c, after expose has returned and until the last barrier of c that the
 * ranks have agreed on has been begun by this rank; NULL where the transport cannot address it (or none was named); any thread of the rank
 * may ask. An operand may be read once its owner is known to have written it: before expose, or before a barrier since. signature: of kind
 * and shapes, as they must agree. Until that last barrier a rank calls nothing but barriers of c, one at least.
 *   cdr_comm_expose(c, ptr, 3, sig);  ... read cdr_comm_peer(c, r, k) ...  cdr_comm_barrier(c);
 * expose_begin + expose_end: the same in halves, with work between them that touches no peer. */
enum { CDR_EXPOSE_MAX = 28 };      /* operands */
cdr_status cdr_comm_expose(cdr_comm *c, const void *const *ptr, int n, uint64_t signature);
cdr_status cdr_comm_expose_begin(cdr_comm *c, const void *const *ptr, int n, uint64_t signature);
cdr_status cdr_comm_expose_end(cdr_comm *c);
const void *cdr_comm_peer(cdr_comm *c, int rank, int k);

/* Bytes that this rank has read of its peers over c: by gather, reduce_scatter and all_reduce, and what operators have read through peer,
 * as they say. A plan's wire_bytes are compared with it. */
int64_t cdr_comm_read_bytes(const cdr_comm *c);
void cdr_comm_count_read(cdr_comm *c, int64_t bytes);

/* What this rank is about to do: kept in shared memory, so that whoever sees a loss can name it. Cheap: three stores. */
void cdr_comm_note(cdr_comm *c, int64_t step, int layer, const char *what);
/* After a collective returned CDR_ERANK: message 6 of spec/interface.md, 8 (rank, pid, signal, step, layer, what, seconds). */
void cdr_comm_lost(cdr_comm *c, cdr_err *err);
/* One error a job: true for the first rank that asks (always, where there is one rank). Whoever prints an error line
 * and exits asks first. Needs no communicator. */
bool cdr_comm_first_error(const cdr_err *err);

/* Starts n ranks of the calling program (fork, before any OpenMP region): returns in each child with *rank set, and in
 * the parent once all have ended, with *rank = -1 and the exit code of the first that failed. The parent forwards
 * SIGINT and SIGTERM, watches its children, and on a death marks it in shared memory, so that peers stop at once.
 * log_dir: files rank-N.log for ranks 1.. (NULL: their output goes to /dev/null, errors to stderr). bind: "core" or "none".
 * Parent, CDR_OK: err holds the job's error line where no rank has printed one on stderr, else it is left alone. */
cdr_status cdr_shm_launch(int n, const char *bind, const char *log_dir, int *rank, int *exit_code, cdr_err *err);
cdr_status cdr_shm_launch_check(int n, const char *bind, cdr_err *err);        /* would it be refused? */

#ifdef __cplusplus
}
#endif
#endif
