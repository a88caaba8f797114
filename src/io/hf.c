/* hf.c: a directory in Hugging Face layout, opened: config.json, and which tensor lies in which shard.
 *     model.safetensors.index.json = {"metadata": {"total_size": bytes}, "weight_map": {tensor: shard}}, or one model.safetensors
 * Source of the layout: huggingface_hub (serialization) and the releases themselves.
 *
 * The index is believed about names only: a shard is a plain file name that ends in .safetensors, in the directory itself (a symbolic
 * link is followed, as the hub's own cache is made of them), and what the index says about a tensor is compared with the shard's header
 * when that is read, which is when a tensor of it is asked for. An index of 500,000 names opens in 0.26 s (Zen 3; parsing is 0.2 of it).
 */
#include "io/hf_parts.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t CONFIG_MAX = 64 << 20;

static bool is_shard_name(const char *name)
{
    static const char END[] = ".safetensors";
    size_t n = strlen(name);
    return cdr_plain_name(name) && n > strlen(END) && strcmp(name + n - strlen(END), END) == 0;
}

static cdr_status read_config(cdr_hf *d, cdr_err *err)
{
    char *path = cdr_pool_printf(d->pool, "%s/config.json", d->dir), *text;
    size_t bytes;
    if (!cdr_exists(path)) return CDR_OK;
    CDR_TRY(cdr_file_read(path, CONFIG_MAX, &text, &bytes, err));
    cdr_status status = cdr_json_parse(d->pool, text, bytes, path, &d->config, err);
    cdr_free(text);
    CDR_TRY(status);
    if (cdr_json_type(d->config) != CDR_JSON_OBJECT) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.config", "%s: is no JSON object. Copy the file again", path);
    return CDR_OK;
}

/* Row of a shard by its name; new names are appended. slots: open addressing over shards, twice as many as tensors. */
static int32_t shard_row(cdr_hf *d, int32_t *slots, size_t n_slots, int64_t *cap, const char *name)
{
    size_t s = cdr_hash64(name, strlen(name), cdr_hash_secret()) & (n_slots - 1);
    for (; slots[s]; s = (s + 1) & (n_slots - 1))
        if (strcmp(d->shards[slots[s] - 1].name, name) == 0) return slots[s] - 1;
    int64_t n = d->n_shards;
    *CDR_PUSH(d->pool, d->shards, n, *cap) = (cdr__hf_shard){ .name = name, .path = cdr_pool_printf(d->pool, "%s/%s", d->dir, name), .fd = -1 };
    d->n_shards = (int)n;
    slots[s] = (int32_t)n;
    return (int32_t)n - 1;
}

static int by_shard_name(const void *a, const void *b)
{
    return strcmp(((const cdr__hf_shard *)a)->name, ((const cdr__hf_shard *)b)->name);
}

/* Shards by name, whatever the order in which the index meets them: their numbers are then those of the files. */
static void sort_shards(cdr_hf *d)
{
    int32_t *to = cdr_alloc(sizeof *to * ((size_t)d->n_shards + 1));
    for (int i = 0; i < d->n_shards; i++) d->shards[i].fd = i;         /* lent for the old row */
    qsort(d->shards, (size_t)d->n_shards, sizeof *d->shards, by_shard_name);
    for (int i = 0; i < d->n_shards; i++) {
        to[d->shards[i].fd] = i;
        d->shards[i].fd = -1;
    }
    for (int64_t i = 0; i < d->n; i++) d->shard_of[i] = to[d->shard_of[i]];
    cdr_free(to);
}

static cdr_status read_weight_map(cdr_hf *d, const cdr_json *map, cdr_err *err)
{
    int64_t n = cdr_json_count(map), cap = 0;
    if (cdr_json_type(map) != CDR_JSON_OBJECT)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.index", "%s: has no weight_map; it is no index of safetensors shards. Copy the file again", d->index_path);
    d->names = cdr_pool_alloc(d->pool, ((size_t)n + 1) * sizeof *d->names);
    d->shard_of = cdr_pool_alloc(d->pool, ((size_t)n + 1) * sizeof *d->shard_of);
    size_t n_slots = 16;
    while (n_slots < (size_t)n * 2) n_slots *= 2;
    int32_t *slots = cdr_alloc(n_slots * sizeof *slots);
    memset(slots, 0, n_slots * sizeof *slots);
    cdr_status status = CDR_OK;
    const char *last = NULL;
    for (int64_t i = 0; i < n && status == CDR_OK; i++) {
        const char *shard = cdr_json_str(cdr_json_at(map, i), NULL);
        d->names[i] = cdr_json_key(map, i);
        bool again = shard && last && strcmp(last, shard) == 0;
        if (again) d->shard_of[i] = d->shard_of[i - 1];
        else if (!shard || !is_shard_name(shard))
            status = cdr_fail(err, CDR_EDATA, "checkpoint.index", "%s: puts tensor %.200s into \"%.200s\", which is no name of a .safetensors file in this directory. "
                              "Take the index from its maker again", d->index_path, d->names[i], shard ? shard : "(no text)");
        else d->shard_of[i] = shard_row(d, slots, n_slots, &cap, shard);
        last = shard;
    }
    cdr_free(slots);
    d->n = n;
    return status;
}

static cdr_status read_index(cdr_hf *d, cdr_err *err)
{
    cdr_map m;
    const cdr_json *root;
    CDR_TRY(cdr_map_open(d->index_path, &m, err));
    cdr_status status = cdr_json_parse(d->pool, m.data, m.bytes, d->index_path, &root, err);
    cdr_map_close(&m);
    CDR_TRY(status);
    CDR_TRY(read_weight_map(d, cdr_json_get(root, "weight_map"), err));
    d->total_bytes = cdr_json_int(cdr_json_get(cdr_json_get(root, "metadata"), "total_size"), -1);
    sort_shards(d);
    cdr__hf_sort(d->names, d->shard_of, d->n);
    return CDR_OK;
}

static cdr_status read_single(cdr_hf *d, cdr_err *err)
{
    d->shards = cdr_pool_alloc(d->pool, sizeof *d->shards);
    d->shards[0] = (cdr__hf_shard){ .name = "model.safetensors", .path = cdr_pool_printf(d->pool, "%s/model.safetensors", d->dir), .fd = -1 };
    d->n_shards = 1;
    CDR_TRY(cdr__hf_open_shard(d, 0, err));
    d->n = cdr_st_count(d->shards[0].st);
    d->names = cdr_pool_alloc(d->pool, ((size_t)d->n + 1) * sizeof *d->names);
    d->shard_of = cdr_pool_alloc(d->pool, ((size_t)d->n + 1) * sizeof *d->shard_of);
    for (int64_t i = 0; i < d->n; i++) d->names[i] = cdr_st_at(d->shards[0].st, i)->name;
    cdr__hf_sort(d->names, d->shard_of, d->n);
    return CDR_OK;
}

/* Weights in a form that is not read get said, where there are no others. */
static cdr_status other_weights(const cdr_hf *d, cdr_err *err)
{
    static const struct { const char *file, *what; } OTHER[] = {
        { ".metadata", "a checkpoint of torch.distributed (DCP). Convert it with the trainer that wrote it (torchtitan and torch.distributed.checkpoint write "
                       "Hugging Face safetensors), then take that directory" },
        { "pytorch_model.bin", "weights as a Python pickle, which is not read. Save the model with safe_serialization=True and take that directory" },
        { "pytorch_model.bin.index.json", "weights as Python pickles, which are not read. Save the model with safe_serialization=True and take that directory" },
    };
    for (int i = 0; i < CDR_COUNT(OTHER); i++)
        if (cdr_exists(cdr_pool_printf(d->pool, "%s/%s", d->dir, OTHER[i].file)))
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.format", "%s: holds %s", d->dir, OTHER[i].what);
    return CDR_OK;
}

static cdr_status open_dir(cdr_hf *d, cdr_err *err)
{
    if (!cdr_is_dir(d->dir)) CDR_FAIL_ID(err, CDR_EUSER, "file.missing", "%s: there is no such directory. Check the path", d->dir);
    CDR_TRY(read_config(d, err));
    const char *index = cdr_pool_printf(d->pool, "%s/model.safetensors.index.json", d->dir);
    bool single = cdr_exists(cdr_pool_printf(d->pool, "%s/model.safetensors", d->dir));
    if (!cdr_exists(index)) return single ? read_single(d, err) : other_weights(d, err);
    d->index_path = index;
    CDR_TRY(read_index(d, err));
    bool named = false;
    for (int i = 0; i < d->n_shards; i++) named = named || strcmp(d->shards[i].name, "model.safetensors") == 0;
    if (single && !named)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.index", "%s: has a model.safetensors and an index that does not name it; either may be meant. Remove one of them",
                    d->dir);
    return CDR_OK;
}

cdr_status cdr_hf_open(const char *dir, cdr_hf **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_hf *d = cdr_pool_alloc(pool, sizeof *d);
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    d->pool = pool;
    d->dir = cdr_pool_strndup(pool, dir, n);
    d->total_bytes = -1;
    pthread_mutex_init(&d->lock, NULL);
    cdr_status status = open_dir(d, err);
    if (status != CDR_OK) cdr_hf_close(d);
    else *out = d;
    return status;
}

void cdr_hf_close(cdr_hf *d)
{
    if (!d) return;
    cdr__hf_close_reads(d);
    for (int i = 0; i < d->n_shards; i++) cdr_st_close(d->shards[i].st);
    pthread_mutex_destroy(&d->lock);
    cdr_pool_free(d->pool);
}

/* ---- what is there --------------------------------------------------------------------------------------------- */
const char *cdr_hf_dir(const cdr_hf *d) { return d->dir; }

const cdr_json *cdr_hf_config(const cdr_hf *d) { return d->config; }

int cdr_hf_shards(const cdr_hf *d) { return d->n_shards; }

const char *cdr_hf_shard_name(const cdr_hf *d, int i_shard)
{
    CDR_CHECK(i_shard >= 0 && i_shard < d->n_shards);
    return d->shards[i_shard].name;
}

bool cdr_hf_shard_there(const cdr_hf *d, int i_shard)
{
    CDR_CHECK(i_shard >= 0 && i_shard < d->n_shards);
    return cdr_exists(d->shards[i_shard].path);
}

int64_t cdr_hf_count(const cdr_hf *d) { return d->n; }

const char *cdr_hf_name(const cdr_hf *d, int64_t i)
{
    CDR_CHECK(i >= 0 && i < d->n);
    return d->names[i];
}

int cdr_hf_shard_of(const cdr_hf *d, int64_t i)
{
    CDR_CHECK(i >= 0 && i < d->n);
    return d->shard_of[i];
}

static void index_names(cdr_hf *d)
{
    d->n_slots = 16;
    while (d->n_slots < (size_t)d->n * 2) d->n_slots *= 2;
    int32_t *slots = cdr_pool_alloc(d->pool, d->n_slots * sizeof *slots);
    for (int64_t i = 0; i < d->n; i++) {
        size_t s = cdr_hash64(d->names[i], strlen(d->names[i]), cdr_hash_secret()) & (d->n_slots - 1);
        while (slots[s]) s = (s + 1) & (d->n_slots - 1);
        slots[s] = (int32_t)i + 1;
    }
    d->slots = slots;
}

int64_t cdr_hf_find(const cdr_hf *d, const char *name)
{
    cdr_hf *own = (cdr_hf *)(uintptr_t)d;           /* the table of names is made with the first look-up */
    pthread_mutex_lock(&own->lock);
    if (!own->slots) index_names(own);
    pthread_mutex_unlock(&own->lock);
    size_t s = cdr_hash64(name, strlen(name), cdr_hash_secret()) & (d->n_slots - 1);
    for (; d->slots[s]; s = (s + 1) & (d->n_slots - 1))
        if (strcmp(d->names[d->slots[s] - 1], name) == 0) return d->slots[s] - 1;
    return -1;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */
/* Number after "layers." in a tensor's name; -1: none. */
static int layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    if (!at || at[7] < '0' || at[7] > '9') return -1;
    return (int)CDR_MIN(strtol(at + 7, NULL, 10), 1000000L);
}

/* Which layers a missing shard holds, and up to which layer all shards are there: what a slice could still load. */
static cdr_status fail_missing(const cdr_hf *d, int i_shard, cdr_err *err)
{
    int64_t count = 0;
    int lo = 1 << 30, hi = -1, first_gone = 1 << 30, there = 0;
    bool outside = false, *gone = cdr_alloc((size_t)d->n_shards);
    for (int i = 0; i < d->n_shards; i++) {
        gone[i] = !cdr_hf_shard_there(d, i);
        there += !gone[i];
    }
    for (int64_t i = 0; i < d->n; i++) {
        if (!gone[d->shard_of[i]]) continue;
        int layer = layer_of(d->names[i]);
        if (layer < 0) outside = true;
        else first_gone = CDR_MIN(first_gone, layer);
        if (d->shard_of[i] != i_shard) continue;
        count++;
        if (layer >= 0) lo = CDR_MIN(lo, layer), hi = CDR_MAX(hi, layer);
    }
    cdr_free(gone);
    char n[32], layers[64] = "", slice[80] = "";
    cdr_format_count(n, count);
    if (hi >= 0) (void)snprintf(layers, sizeof layers, lo == hi ? " (layer %d)" : " (layers %d to %d)", lo, hi);
    if (!outside && first_gone > 0 && first_gone < 1 << 30) (void)snprintf(slice, sizeof slice, ", or take a slice: --set model.layers=0-%d", first_gone - 1);
    CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.missing-shard", "%s: not in %s, but the index puts %s tensor%s%s there; %d of %d shards are present. Fetch it%s",
                d->shards[i_shard].name, d->dir, n, count == 1 ? "" : "s", layers, there, d->n_shards, slice);
}

cdr_status cdr__hf_open_shard(cdr_hf *d, int i_shard, cdr_err *err)
{
    cdr__hf_shard *s = &d->shards[i_shard];
    cdr_status status = CDR_OK;
    pthread_mutex_lock(&d->lock);
    if (!s->st) {
        if (!cdr_exists(s->path)) status = fail_missing(d, i_shard, err);
        else {
            status = cdr_st_open(s->path, &s->st, err);
            if (status == CDR_EUSER && err) err->status = status = CDR_EDATA;          /* a folder or a pipe under a shard's name */
        }
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

cdr_status cdr_hf_tensor_at(cdr_hf *d, int64_t i, cdr_hf_tensor *t, cdr_err *err)
{
    CDR_CHECK(i >= 0 && i < d->n);
    int k = d->shard_of[i];
    CDR_TRY(cdr__hf_open_shard(d, k, err));
    const cdr_st *st = d->shards[k].st;
    const cdr_st_tensor *x = cdr_st_find(st, d->names[i]);
    if (!x)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.index", "%s: the index puts tensor %s there, its header has no such tensor. Index and shards are of different makes; "
                    "fetch both again", d->shards[k].path, d->names[i]);
    *t = (cdr_hf_tensor){ .t = x, .data = cdr_st_data(st, x), .shard = d->shards[k].name, .i_shard = k };
    return CDR_OK;
}

cdr_status cdr_hf_check(cdr_hf *d, cdr_err *err)
{
    int64_t *count = cdr_pool_alloc(d->pool, sizeof *count * ((size_t)d->n_shards + 1)), total = 0;
    for (int64_t i = 0; i < d->n; i++) {
        cdr_hf_tensor t = { 0 };
        CDR_TRY(cdr_hf_tensor_at(d, i, &t, err));
        count[t.i_shard]++;
        total += (int64_t)(t.t->end - t.t->begin);
    }
    for (int k = 0; k < d->n_shards; k++) {
        const cdr_st *st = d->shards[k].st;
        if (cdr_st_count(st) == count[k]) continue;
        for (int64_t i = 0; i < cdr_st_count(st); i++) {
            const char *name = cdr_st_at(st, i)->name;
            int64_t at = cdr_hf_find(d, name);
            if (at >= 0 && d->shard_of[at] == k) continue;
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.index", "%s: holds tensor %s, which the index %s. Index and shards are of different makes; fetch both again",
                        d->shards[k].path, name, at < 0 ? "does not name" : "puts elsewhere");
        }
    }
    if (d->total_bytes >= 0 && d->total_bytes != total)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.index", "%s: says total_size %lld, its shards hold %lld bytes of tensors. Index and shards are of different makes; "
                    "fetch both again", d->index_path, (long long)d->total_bytes, (long long)total);
    return CDR_OK;
}

cdr_status cdr_hf_unchanged(const cdr_hf *d, cdr_err *err)
{
    for (int i = 0; i < d->n_shards; i++)
        if (d->shards[i].st) CDR_TRY(cdr_st_check(d->shards[i].st, err));
    return CDR_OK;
}
