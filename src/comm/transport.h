/* transport.h: what a transport is to comm.c, and nobody else's business. A new transport is one file with one
 * `const cdr_transport` record, and one line in comm.c's table.
 *
 *   struct cdr_comm comes first in the transport's own struct, so that a cdr_comm * is cast to it:
 *   typedef struct { cdr_comm base; int fd; } shm_comm;
 */
#ifndef CDR_COMM_TRANSPORT_H
#define CDR_COMM_TRANSPORT_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {                     /* who started this process, and as what */
    const char *launcher;            /* "cadre launch", "none", "torchrun", ... */
    int rank, world;                 /* 0 of 1 where nobody did */
} cdr_ranks;

typedef struct {
    const char *name;
    cdr_status (*open)(const cdr_comm_spec *s, const cdr_ranks *r, cdr_comm **world, cdr_err *err);
    cdr_comm *(*split)(cdr_comm *c, int color, int key, cdr_err *err);
    void (*close)(cdr_comm *c);                        /* this one only; comm.c closes the splits first */
    void *(*slab)(cdr_comm *world, size_t bytes, cdr_err *err);
    cdr_status (*gather)(cdr_comm *c, const cdr_piece *p, int n);
    cdr_status (*reduce_scatter)(cdr_comm *c, const cdr_piece *p, int n);
    cdr_status (*all_reduce)(cdr_comm *c, const cdr_piece *p, int n);
    cdr_status (*sum_i64)(cdr_comm *c, int64_t *x, int n);
    cdr_status (*all_gather)(cdr_comm *c, const void *src, void *dst, size_t bytes);
    cdr_status (*broadcast)(cdr_comm *c, void *x, size_t bytes, int root);
    cdr_status (*barrier)(cdr_comm *c);
    cdr_status (*expose_begin)(cdr_comm *c, const void *const *ptr, int n, uint64_t signature);   /* the operands of all in c->peer ... */
    cdr_status (*expose_end)(cdr_comm *c);                                                        /* ... once this has returned */
    void (*note)(cdr_comm *c, int64_t step, int layer, const char *what);
    void (*lost)(cdr_comm *c, cdr_err *err);
} cdr_transport;
extern const cdr_transport cdr_transport_single, cdr_transport_shm;

struct cdr_comm {
    const cdr_transport *t;
    const char *source;
    int rank, size;
    cdr_comm *parent, *first, *next;     /* first: its splits, a list by next */
    const void **peer;                   /* [size][CDR_EXPOSE_MAX]: operands that ranks expose */
    int n_exposed; bool exposing;        /* exposing: between the halves */
    int64_t read_bytes;                  /* of peers */
};

/* What every transport does for a communicator of one rank: copies (single.c). */
cdr_status cdr__comm_local_gather(const cdr_piece *p, int n);
cdr_status cdr__comm_local_reduce_scatter(const cdr_piece *p, int n);
cdr_status cdr__comm_local_all_reduce(const cdr_piece *p, int n);

/* Rows [lo, hi) that rank r of n owns. */
static inline int64_t cdr__comm_lo(int64_t rows, int r, int n) { return rows * r / n; }

#ifdef __cplusplus
}
#endif
#endif
