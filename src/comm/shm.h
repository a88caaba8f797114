/* shm.h: the control block of a job of ranks on one machine, as the transport (shm.c, shm_watch.c), the launcher
 * (shm_launch.c) and the thread-sanitizer test see it.
 *
 *   cdr_shm_view *v;
 *   cdr__shm_create(n, &v, err);              // before the fork: control block and one slab file per rank
 *   ... fork; in child r, or thread r:
 *   cdr__shm_attach(v, r, timeout_s, &world, err);
 *
 * The control block is one memory file that all ranks map. Its descriptor's number is in CADRE_SHM, so that a rank may
 * also be another program (exec). Layout, each part 64-byte aligned:
 *   cdr_shm_ctl | rank[n] | slot[n_slots] | member[n_slots][n] u16 | mail[n][64 KiB]
 */
#ifndef CDR_COMM_SHM_H
#define CDR_COMM_SHM_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#define CDR_ATOMIC(t) t
#else
#define CDR_ATOMIC(t) _Atomic(t)
#endif
#define CDR_LINE __attribute__((aligned(64)))

enum { CDR_SHM_MAX_RANKS = 1024, CDR_SHM_PIECES = 32, CDR_SHM_MAIL = 65536, CDR_SHM_WHAT = 48 };
typedef enum { CDR_SHM_STARTED, CDR_SHM_OPEN, CDR_SHM_CLOSED, CDR_SHM_ENDED } cdr_shm_state;

/* How a rank was lost. Kept in one word, so that the first who sees it wins as a whole:
 * rank + 1 (16 bits) | kind (4) | code (12): signal, exit code or process state | silence in ms (32). 0: none is lost. */
typedef enum { CDR_SHM_KILLED = 1, CDR_SHM_EXITED, CDR_SHM_SILENT, CDR_SHM_LEFT, CDR_SHM_DEADLOCK, CDR_SHM_MISMATCH } cdr_shm_loss;

typedef struct CDR_LINE {
    uint64_t magic;
    int64_t bytes, start_ns;
    int32_t n, n_slots, spin, logs;            /* spin: ranks have a core each; logs: ranks 1.. write to files */
    CDR_ATOMIC(uint64_t) lost;
    CDR_ATOMIC(int32_t) claimed, error_set;    /* claimed: 1 + the rank that prints the job's error; error_set: its text is below */
    char host[64];
    cdr_err error;
} cdr_shm_ctl;

typedef struct CDR_LINE {                      /* written by its rank; state, pid also by the launcher */
    CDR_ATOMIC(uint64_t) at;                   /* (slot + 1) << 32 | generation whose end it waits for; 0: it runs */
    CDR_ATOMIC(int64_t) beat_ns;               /* last sign of life */
    CDR_ATOMIC(int32_t) state, pid;
    CDR_ATOMIC(int64_t) step;                  /* note: step, layer, what; -1: none */
    CDR_ATOMIC(int32_t) layer;
    int32_t slab_fd;
    CDR_ATOMIC(uint64_t) what[CDR_SHM_WHAT / 8];
    CDR_ATOMIC(uint64_t) n_coll, signature;    /* collectives begun; of the current one: kind, shapes */
    CDR_ATOMIC(uint64_t) slab_bytes;
    CDR_ATOMIC(uint64_t) operand[2 * CDR_SHM_PIECES];   /* offsets in its slab: sources, destinations */
} cdr_shm_rank;

typedef struct CDR_LINE {                      /* barrier of a communicator */
    CDR_ATOMIC(uint32_t) gen;                  /* futex. Bit 0: the job is lost; + 2 with each barrier */
    CDR_ATOMIC(uint32_t) count, sleepers;      /* ranks that have arrived; that sleep on gen */
    CDR_ATOMIC(int32_t) refs;                  /* members that hold it open; 0: free */
    CDR_ATOMIC(int32_t) size;
} cdr_shm_slot;

typedef struct {                               /* one process's (or one test's, of threads) view of a job */
    cdr_shm_ctl *ctl;
    int fd;
    bool inherited;                            /* from the environment: the descriptors belong to the process */
    cdr_shm_rank *rank;
    cdr_shm_slot *slot;
    CDR_ATOMIC(uint16_t) *member;
    char *mail;
    CDR_ATOMIC(char *) *slab;                  /* [n]: where each rank's slab is mapped; NULL: not yet */
    size_t *mapped;                            /* [n]: bytes mapped there */
} cdr_shm_view;

typedef struct { int64_t start_ns, last_ns; } cdr_shm_wait;      /* one wait: when it began; when it last looked */
typedef struct {                               /* what a rank remembers about its peers while it waits */
    double timeout_s;
    int64_t *alive_ns;                         /* [n]: last time that its process was seen at work */
    uint64_t *cpu;                             /* [n]: its processor time then, in ticks */
    uint8_t *seen;                             /* [n] scratch of the search for the culprit */
    uint16_t *queue;                           /* [n] scratch */
} cdr_shm_watcher;

cdr_status cdr__shm_create(int n, cdr_shm_view **v, cdr_err *err);
void cdr__shm_view_free(cdr_shm_view *v);
cdr_status cdr__shm_attach(cdr_shm_view *v, int rank, double timeout_s, cdr_comm **world, cdr_err *err);
bool cdr__shm_first_error(const cdr_err *err);

/* shm_watch.c. blame: the first call in a job decides; every waiter is woken and returns CDR_ERANK. */
void cdr__shm_blame(cdr_shm_view *v, int rank, cdr_shm_loss kind, int code);
void cdr__shm_wake_all(cdr_shm_view *v);
cdr_status cdr__shm_watch(cdr_shm_view *v, cdr_shm_watcher *w, int i_slot, uint32_t gen, cdr_shm_wait *wait);
void cdr__shm_lost(const cdr_shm_view *v, cdr_err *err);
int64_t cdr__shm_slice_ns(double timeout_s);   /* between two looks of a waiter */
int cdr__futex_wait(CDR_ATOMIC(uint32_t) *word, uint32_t value, int64_t timeout_ns);
void cdr__futex_wake(CDR_ATOMIC(uint32_t) *word);

#ifdef __cplusplus
}
#endif
#endif
