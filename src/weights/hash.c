/* hash.c: the identity of a base, as adapters and checkpoints carry it: XXH3-64 over the model's tensors in name order, each as
 *   name 0 | format 0 | axes, sizes (int64) | XXH3-64 of its bytes
 * and behind them the number for the values of config.json and of the description that change what the tensors compute (models/function.c).
 * Carried tensors are not in it (another vision tower is the same base), nor how tensors are cut into shards. All bytes are read once, by all
 * cores; the result is kept in the cache folder under the names, sizes and times of change of the shards, and the model's description.
 */
#include "weights/parts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { BLOCK_BYTES = 8 << 20 };

static cdr_status hash_tensor(cdr_weights *w, int64_t i, uint64_t *hash, cdr_err *err)
{
    cdr_hf_tensor t = { 0 };
    CDR_TRY(cdr_hf_tensor_at(w->d, i, &t, err));
    size_t bytes = t.t->end - t.t->begin;
    cdr_hasher *h = cdr_hasher_new();
    char *block = cdr_alloc(CDR_MIN(bytes, (size_t)BLOCK_BYTES) + 1);
    cdr_status st = CDR_OK;
    for (size_t at = 0; at < bytes && st == CDR_OK; at += BLOCK_BYTES) {
        size_t k = CDR_MIN((size_t)BLOCK_BYTES, bytes - at);
        st = cdr_hf_read(w->d, i, at, k, block, err);
        if (st == CDR_OK) cdr_hasher_add(h, block, k);
    }
    cdr_free(block);
    *hash = cdr_hasher_end(h);
    return st;
}

static cdr_status hash_all(cdr_weights *w, uint64_t *hash, cdr_err *err)
{
    const int64_t n = cdr_hf_count(w->d);
    uint64_t *one = cdr_alloc(sizeof *one * (size_t)(n + 1));
    _Atomic(int) failed = 0;
    cdr_err first = { 0 };
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t i = 0; i < n; i++) {
        cdr_err own = { 0 };
        if (w->used[i] == 0 || failed || hash_tensor(w, i, &one[i], &own) == CDR_OK) continue;
        if (atomic_exchange(&failed, 1) == 0) first = own;
    }
    cdr_status st = first.status;
    if (st != CDR_OK && err) *err = first;
    cdr_hasher *h = cdr_hasher_new();
    for (int64_t i = 0; i < n && st == CDR_OK; i++) {
        cdr_hf_tensor t = { 0 };
        if (w->used[i] == 0) continue;
        st = cdr_hf_tensor_at(w->d, i, &t, err);
        if (st != CDR_OK) break;
        const char *format = cdr_st_format_row(t.t->format)->name;
        int64_t axes = t.t->n_dim;
        cdr_hasher_add(h, t.t->name, strlen(t.t->name) + 1);
        cdr_hasher_add(h, format, strlen(format) + 1);
        cdr_hasher_add(h, &axes, sizeof axes);
        cdr_hasher_add(h, t.t->n, sizeof *t.t->n * (size_t)t.t->n_dim);
        cdr_hasher_add(h, &one[i], sizeof one[i]);
    }
    const uint64_t function = cdr_model_get_info(w->m)->function;
    cdr_hasher_add(h, &function, sizeof function);
    *hash = cdr_hasher_end(h);
    cdr_free(one);
    return st == CDR_OK ? cdr_hf_unchanged(w->d, err) : st;
}

/* What the cache knows a directory by; false: a shard that is used cannot be examined. */
static bool cache_key(const cdr_weights *w, uint64_t *key)
{
    cdr_hasher *h = cdr_hasher_new();
    char *real = realpath(cdr_hf_dir(w->d), NULL);
    bool ok = real != NULL, *needed = cdr_alloc((size_t)cdr_hf_shards(w->d) + 1);
    uint64_t description[2] = { cdr_model_get_info(w->m)->hash, cdr_model_get_info(w->m)->function };
    memset(needed, 0, (size_t)cdr_hf_shards(w->d) + 1);
    for (int64_t i = 0; i < cdr_hf_count(w->d); i++) needed[cdr_hf_shard_of(w->d, i)] |= w->used[i] > 0;
    if (real) cdr_hasher_add(h, real, strlen(real) + 1);
    cdr_hasher_add(h, description, sizeof description);
    for (int k = 0; k < cdr_hf_shards(w->d) && ok; k++) {
        struct stat st;
        char path[4096];
        const char *name = cdr_hf_shard_name(w->d, k);
        if (!needed[k]) continue;
        ok = snprintf(path, sizeof path, "%s/%s", cdr_hf_dir(w->d), name) < (int)sizeof path && stat(path, &st) == 0;
        if (!ok) break;
        int64_t x[5] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, st.st_ctim.tv_sec, st.st_ctim.tv_nsec };
        cdr_hasher_add(h, name, strlen(name) + 1);
        cdr_hasher_add(h, x, sizeof x);
    }
    *key = cdr_hasher_end(h);
    cdr_free(needed);
    free(real);
    return ok;
}

static bool cached(const char *path, uint64_t *hash)
{
    char *text, *end;
    size_t bytes;
    if (cdr_file_read(path, 64, &text, &bytes, NULL) != CDR_OK) return false;
    *hash = strtoull(text, &end, 16);
    bool ok = bytes == 17 && end == text + 16 && *end == '\n';
    cdr_free(text);
    return ok;
}

cdr_status cdr_weights_hash(cdr_weights *w, const char *cache_dir, uint64_t *hash, cdr_err *err)
{
    char folder[4096], path[4200], text[32];
    uint64_t key;
    bool keep = cache_dir && cache_key(w, &key) && snprintf(folder, sizeof folder, "%s/base", cache_dir) < (int)sizeof folder;
    if (keep) {
        (void)snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)key);
        if (cached(path, hash)) return CDR_OK;
    }
    CDR_TRY(hash_all(w, hash, err));
    (void)snprintf(text, sizeof text, "%016llx\n", (unsigned long long)*hash);
    /* a cache that cannot be written is no error */
    if (keep && cdr_make_dirs(folder, NULL) == CDR_OK) (void)cdr_file_write(path, text, 17, NULL);
    return CDR_OK;
}
