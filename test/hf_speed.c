/* hf_speed.c: what a checkpoint directory costs to open and to read on this machine (no test): hf_speed DIR [threads] [block MiB].
 *
 *   open      index or header; find: every name once        read      all tensors past the page cache, each thread a part, a block a request
 * Compare with, over the same file (sudo sh -c 'echo 1 > /proc/sys/vm/drop_caches' first; the cache is used where it is warm):
 *   fio --name=r --filename=DIR/model.safetensors --rw=read --direct=1 --bs=4M --ioengine=psync --numjobs=T --offset_increment=X --size=X --group_reporting
 */
#include "io/hf.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct { cdr_hf *d; int index, n; size_t block; int64_t bytes; cdr_err err; } reader;

/* Thread k takes the k-th part of all tensors. */
static void *work(void *ctx)
{
    reader *r = ctx;
    char *dst = malloc(r->block);
    const int64_t n = cdr_hf_count(r->d), end = n * (r->index + 1) / r->n;
    for (int64_t i = n * r->index / r->n; dst && i < end; i++) {
        cdr_hf_tensor t = { 0 };
        if (cdr_hf_tensor_at(r->d, i, &t, &r->err) != CDR_OK) break;
        size_t bytes = t.t->end - t.t->begin;
        for (size_t at = 0; at < bytes; at += r->block) {
            size_t k = CDR_MIN(r->block, bytes - at);
            if (cdr_hf_read(r->d, i, at, k, dst, &r->err) != CDR_OK) break;
            r->bytes += (int64_t)k;
        }
    }
    free(dst);
    return NULL;
}

int main(int argc, char **argv)
{
    cdr_err err = { 0 };
    cdr_hf *d = NULL;
    int n = argc > 2 ? atoi(argv[2]) : 4;
    size_t block = (size_t)(argc > 3 ? atoi(argv[3]) : 4) << 20;
    if (argc < 2 || n < 1 || n > 64 || block == 0) {
        fprintf(stderr, "hf_speed DIR [threads] [block MiB]\n");
        return 2;
    }
    int64_t t0 = cdr_now_ns();
    if (cdr_hf_open(argv[1], &d, &err) != CDR_OK) {
        fprintf(stderr, "error: %s\n", err.text);
        return 3;
    }
    int64_t t1 = cdr_now_ns(), wrong = 0;
    for (int64_t i = 0; i < cdr_hf_count(d); i++) wrong += cdr_hf_find(d, cdr_hf_name(d, i)) != i;
    int64_t t2 = cdr_now_ns();
    printf("open  %.3f s, %lld tensors in %d shards; find  %.3f s, %lld wrong\n", (double)(t1 - t0) * 1e-9, (long long)cdr_hf_count(d), cdr_hf_shards(d),
           (double)(t2 - t1) * 1e-9, (long long)wrong);
    reader r[64];
    pthread_t thread[64];
    int64_t bytes = 0;
    t1 = cdr_now_ns();
    for (int i = 0; i < n; i++) {
        r[i] = (reader){ .d = d, .index = i, .n = n, .block = block };
        if (pthread_create(&thread[i], NULL, work, &r[i]) != 0) return 1;
    }
    for (int i = 0; i < n; i++) {
        (void)pthread_join(thread[i], NULL);
        bytes += r[i].bytes;
        if (r[i].err.status != CDR_OK) {
            fprintf(stderr, "error: %s\n", r[i].err.text);
            return 3;
        }
    }
    double s = (double)(cdr_now_ns() - t1) * 1e-9;
    printf("read  %.3f s, %.3f GB, %.3f GB/s with %d threads\n", s, (double)bytes * 1e-9, (double)bytes * 1e-9 / s, n);
    cdr_hf_close(d);
    return 0;
}
