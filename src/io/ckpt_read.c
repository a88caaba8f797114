/* ckpt_read.c: opens a checkpoint and reads rows of its tensors, whatever ranks wrote it. Opening checks the manifest, each
 * file's size, and that each file's header names exactly the pieces that the manifest puts there, with their formats and
 * shapes. A piece's hash is checked when the piece is first read (at most 64 MiB, but for single larger rows).
 */
#include "io/io.h"
#include "io/internal.h"

#include <stdlib.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };
static const size_t MANIFEST_MAX = (size_t)1 << 30, TEXT_MAX = (size_t)16 << 20;

struct cdr_ckpt {
    cdr_pool *pool;
    const char *dir;
    cdr__manifest m;                   /* entries by key */
    cdr_st **st;                       /* by file; NULL: not a safetensors file */
    char *manifest, *state, *recipe;   /* malloc */
};

static int by_entry_key(const void *a, const void *b)
{
    return strcmp(((const cdr__ckpt_entry *)a)->t.key, ((const cdr__ckpt_entry *)b)->t.key);
}

static cdr__ckpt_entry *find(const cdr_ckpt *ck, const char *name, const char *cls)
{
    if (!cdr__ckpt_class_known(cls)) return NULL;
    cdr_pool *pool = cdr_pool_new();
    cdr__ckpt_entry probe = { .t = { .key = cdr__ckpt_key(pool, name, cls) } };
    cdr__ckpt_entry *e = bsearch(&probe, ck->m.entries, (size_t)ck->m.n_entries, sizeof probe, by_entry_key);
    cdr_pool_free(pool);
    return e && strcmp(e->t.cls, cls) == 0 ? e : NULL;
}

/* Directory of the checkpoint that path means: itself, or the newest complete one below it. */
static cdr_status resolve(cdr_pool *pool, const char *path, const char **dir, cdr_err *err)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *trimmed = cdr_pool_strndup(pool, path, n), *slash = strrchr(trimmed, '/'), *base = slash ? slash + 1 : trimmed;
    if (base[0] == '.' && strstr(base, "step-"))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.partial", "%s: was never completed. Take a directory called step-NNNNNNNNN", path);
    if (cdr_exists(cdr_pool_printf(pool, "%s/manifest.json", trimmed))) {
        *dir = trimmed;
        return CDR_OK;
    }
    if (cdr__ckpt_parse_dir(base) >= 0)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.partial", "%s: %s", path,
                    cdr_is_dir(trimmed) ? "has no manifest.json, so it is no complete checkpoint" : "no such checkpoint");
    int count = cdr_ckpt_list(trimmed, NULL, 0);
    if (count == 0)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.none", "%s: %s. Name a run directory, or one checkpoint of it", path,
                    cdr_exists(trimmed) ? "holds no complete checkpoint" : "not there");
    int64_t *steps = cdr_pool_alloc(pool, (size_t)count * sizeof *steps);
    count = CDR_MIN(cdr_ckpt_list(trimmed, steps, count), count);
    char newest[PATH_BYTES];
    cdr_ckpt_path(newest, sizeof newest, trimmed, steps[count - 1]);
    *dir = cdr_pool_strdup(pool, newest);
    return CDR_OK;
}

/* The header of each file against the pieces that the manifest puts into it: all are there, and nothing else. */
static cdr_status check_headers(const cdr_ckpt *ck, cdr_err *err)
{
    int64_t n_tensors = 0;
    for (int64_t i = 0; i < ck->m.n_entries; i++) {
        const cdr__ckpt_entry *e = &ck->m.entries[i];
        for (int64_t k = 0; k < e->n_pieces; k++) {
            const cdr__ckpt_piece *p = &e->pieces[k];
            const char *file = ck->m.files[p->file].name;
            const cdr_st_tensor *t = ck->st[p->file] ? cdr_st_find(ck->st[p->file], p->key) : NULL;
            if (!t) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.tensor", "%s/%s: holds no %s, but the manifest puts it there", ck->dir, file, p->key);
            bool same = t->dtype == e->t.dtype && t->n_dim == e->t.n_dim && (t->n_dim == 0 || t->n[0] == p->n_rows);
            for (int d = 1; d < t->n_dim && same; d++) same = t->n[d] == e->t.n[d];
            if (!same) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.tensor", "%s/%s: %s has another dtype or shape than in the manifest", ck->dir, file, p->key);
        }
    }
    for (int i = 0; i < ck->m.n_files; i++) n_tensors += ck->st[i] ? cdr_st_count(ck->st[i]) : 0;
    if (n_tensors != ck->m.n_pieces)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.tensor", "%s: its files hold %lld tensors, the manifest names %lld", ck->dir, (long long)n_tensors,
                    (long long)ck->m.n_pieces);
    return CDR_OK;
}

static cdr_status open_files(cdr_ckpt *ck, cdr_err *err)
{
    ck->st = cdr_pool_alloc(ck->pool, ((size_t)ck->m.n_files + 1) * sizeof(cdr_st *));
    for (int i = 0; i < ck->m.n_files; i++) {
        const cdr__ckpt_file *f = &ck->m.files[i];
        const char *path = cdr_pool_printf(ck->pool, "%s/%s", ck->dir, f->name);
        struct stat s;
        size_t n = strlen(f->name);
        if (stat(path, &s) != 0)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.missing-file", "%s: not there, but the manifest lists it. Copy the checkpoint again, or remove it "
                        "to go on from an older one", path);
        bool tensors = n > 12 && strcmp(f->name + n - 12, ".safetensors") == 0;
        if (tensors) CDR_TRY(cdr_st_open(path, &ck->st[i], err));         /* a short file: says which tensor is cut */
        if (s.st_size != f->bytes)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.size", "%s: %lld bytes, the manifest says %lld. Copy the checkpoint again, or remove it to go on "
                        "from an older one", path, (long long)s.st_size, (long long)f->bytes);
    }
    return CDR_OK;
}

/* A text file that the manifest lists, hash checked. */
static cdr_status read_text(const cdr_ckpt *ck, const char *name, char **text, cdr_err *err)
{
    const char *path = cdr_pool_printf(ck->pool, "%s/%s", ck->dir, name);
    for (int i = 0; i < ck->m.n_files; i++) {
        const cdr__ckpt_file *f = &ck->m.files[i];
        size_t bytes;
        if (strcmp(f->name, name) != 0) continue;
        CDR_TRY(cdr_file_read(path, TEXT_MAX, text, &bytes, err));
        if (cdr_hash64(*text, bytes, 0) != f->xxh3)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.hash", "%s: its content is not what was written (xxh3)", path);
        return CDR_OK;
    }
    CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.missing-file", "%s: not in the manifest", path);
}

static cdr_status open_checkpoint(cdr_ckpt *ck, const char *path, cdr_err *err)
{
    size_t bytes;
    CDR_TRY(resolve(ck->pool, path, &ck->dir, err));
    const char *where = cdr_pool_printf(ck->pool, "%s/manifest.json", ck->dir);
    CDR_TRY(cdr_file_read(where, MANIFEST_MAX, &ck->manifest, &bytes, err));
    CDR_TRY(cdr__manifest_parse(ck->pool, where, ck->manifest, bytes, &ck->m, err));
    if (ck->m.n_entries > 1) qsort(ck->m.entries, (size_t)ck->m.n_entries, sizeof *ck->m.entries, by_entry_key);
    CDR_TRY(open_files(ck, err));
    CDR_TRY(check_headers(ck, err));
    CDR_TRY(read_text(ck, "state.json", &ck->state, err));
    return read_text(ck, "recipe.yaml", &ck->recipe, err);
}

cdr_status cdr_ckpt_open(const char *path, cdr_ckpt **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_ckpt *ck = cdr_pool_alloc(pool, sizeof *ck);
    ck->pool = pool;
    cdr_status status = open_checkpoint(ck, path, err);
    if (status != CDR_OK) cdr_ckpt_close(ck);
    else *out = ck;
    return status;
}

void cdr_ckpt_close(cdr_ckpt *ck)
{
    if (!ck) return;
    for (int i = 0; ck->st && i < ck->m.n_files; i++) cdr_st_close(ck->st[i]);
    free(ck->manifest);
    free(ck->state);
    free(ck->recipe);
    cdr_pool_free(ck->pool);
}

int64_t cdr_ckpt_count(const cdr_ckpt *ck)
{
    return ck->m.n_entries;
}

const cdr_ckpt_tensor *cdr_ckpt_at(const cdr_ckpt *ck, int64_t i)
{
    return i >= 0 && i < ck->m.n_entries ? &ck->m.entries[i].t : NULL;
}

const cdr_ckpt_tensor *cdr_ckpt_find(const cdr_ckpt *ck, const char *name, const char *cls)
{
    const cdr__ckpt_entry *e = find(ck, name, cls);
    return e ? &e->t : NULL;
}

static cdr_status check_piece(const cdr_ckpt *ck, const cdr_st_tensor *t, cdr__ckpt_piece *p, cdr_err *err)
{
    if (p->checked) return CDR_OK;
    if (cdr_hash64(cdr_st_data(ck->st[p->file], t), t->end - t->begin, 0) != p->xxh3)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.hash", "%s/%s: the bytes of %s are not what was written (xxh3). Copy the checkpoint again, or remove "
                    "it to go on from an older one", ck->dir, ck->m.files[p->file].name, p->key);
    p->checked = true;
    return CDR_OK;
}

/* Index of the piece that holds row. */
static int64_t piece_of_row(const cdr__ckpt_entry *e, int64_t row)
{
    int64_t lo = 0, hi = e->n_pieces - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (e->pieces[mid].first_row <= row) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

cdr_status cdr_ckpt_read(cdr_ckpt *ck, const char *name, const char *cls, int dtype, int64_t first_row, int64_t n_rows,
                         void *dst, cdr_err *err)
{
    cdr__ckpt_entry *e = find(ck, name, cls);
    size_t row_bytes;
    if (!e) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.tensor", "%s: holds no %s of class %s", ck->dir, name, cls);
    if (e->t.dtype != dtype)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.tensor", "%s: %s is %s, expected %s", ck->dir, e->t.key, cdr_dtype_row(e->t.dtype)->name,
                    cdr_dtype_row(dtype)->name);
    int64_t rows = cdr__ckpt_rows(e->t.n_dim, e->t.n);
    if (first_row < 0 || n_rows < 0 || n_rows > rows || first_row > rows - n_rows)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.tensor", "%s: %s has %lld rows, asked for %lld from row %lld", ck->dir, e->t.key, (long long)rows,
                    (long long)n_rows, (long long)first_row);
    CDR_CHECK(cdr__ckpt_row_bytes(dtype, e->t.n_dim, e->t.n, &row_bytes));
    char *to = dst;
    int64_t row = first_row, end = first_row + n_rows;
    for (int64_t k = piece_of_row(e, row); row < end; k++) {
        cdr__ckpt_piece *p = &e->pieces[k];
        const cdr_st_tensor *t = cdr_st_find(ck->st[p->file], p->key);
        CDR_TRY(check_piece(ck, t, p, err));
        int64_t n = CDR_MIN(end, p->first_row + p->n_rows) - row;
        size_t bytes = (size_t)n * row_bytes;
        memcpy(to, (const char *)cdr_st_data(ck->st[p->file], t) + (size_t)(row - p->first_row) * row_bytes, bytes);
        to += bytes;
        row += n;
    }
    return CDR_OK;
}

cdr_status cdr_ckpt_verify(cdr_ckpt *ck, cdr_err *err)
{
    for (int i = 0; i < ck->m.n_files; i++) {
        cdr_map map;
        const char *path = cdr_pool_printf(ck->pool, "%s/%s", ck->dir, ck->m.files[i].name);
        CDR_TRY(cdr_map_open(path, &map, err));
        uint64_t h = cdr_hash64(map.data, map.bytes, 0);
        cdr_map_close(&map);
        if (h != ck->m.files[i].xxh3)
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.hash", "%s: its content is not what was written (xxh3)", path);
    }
    return CDR_OK;
}

const char *cdr_ckpt_dir(const cdr_ckpt *ck) { return ck->dir; }
int64_t cdr_ckpt_step(const cdr_ckpt *ck) { return ck->m.step; }
int cdr_ckpt_ranks(const cdr_ckpt *ck) { return ck->m.n_ranks; }
uint64_t cdr_ckpt_recipe_hash(const cdr_ckpt *ck) { return ck->m.recipe_hash; }
uint64_t cdr_ckpt_description_hash(const cdr_ckpt *ck) { return ck->m.description_hash; }
const char *cdr_ckpt_state(const cdr_ckpt *ck) { return ck->state; }
const char *cdr_ckpt_recipe(const cdr_ckpt *ck) { return ck->recipe; }
const cdr_json *cdr_ckpt_manifest(const cdr_ckpt *ck) { return ck->m.root; }
