/* hf_parts.h: what the files hf*.c share.
 *
 *   size_t offset;
 *   cdr__hf_shard *s = &d->shards[i_shard];
 *   CDR_TRY(cdr__hf_open_shard(d, i_shard, err));     // its header, once
 */
#ifndef CDR_HF_PARTS_H
#define CDR_HF_PARTS_H

#include "io/hf.h"
#include "io/internal.h"
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;                 /* a plain file name */
    const char *path;
    cdr_st *st;                       /* NULL: not opened yet */
    int fd; bool direct;              /* for reads; -1: not opened. direct: past the page cache */
    bool owned;                       /* the kernel tells which pages are in the cache only to whoever may write the file */
} cdr__hf_shard;

struct cdr_hf {
    cdr_pool *pool;
    const char *dir, *index_path;     /* index_path NULL: one file, or none */
    const cdr_json *config;
    cdr__hf_shard *shards; int n_shards;
    const char **names; int32_t *shard_of; int64_t n;      /* by name, ascending */
    int32_t *slots; size_t n_slots;   /* open addressing over names, made with the first look-up */
    int64_t total_bytes;              /* as the index says; -1: it does not */
    pthread_mutex_t lock;             /* of what is made when first asked for */
    void *bounce[64]; int n_bounce;   /* aligned buffers that no read holds */
};

cdr_status cdr__hf_open_shard(cdr_hf *d, int i_shard, cdr_err *err);
void cdr__hf_close_reads(cdr_hf *d);
/* Names into byte order, shard_of with them. Linear in their bytes but for the last sorts of small groups. */
void cdr__hf_sort(const char **names, int32_t *shard_of, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
