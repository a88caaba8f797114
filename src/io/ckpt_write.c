/* ckpt_write.c: writes a checkpoint, in two halves.
 *
 * Every rank writes its own rows, in blocks of at most 64 MiB (or of one row where a row is larger), to its own files in
 * .partial-step-NNN, and makes a table of them (a "part", JSON). The caller brings the parts to rank 0, which joins them,
 * checks that the rows of every tensor are there exactly once, writes state.json and recipe.yaml, writes manifest.json
 * last, and renames the directory. Each file and directory is synced before the next thing relies on it, so a process
 * or machine that dies at any moment leaves either the whole checkpoint or none of that name.
 */
#include "io/io.h"
#include "io/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* Which file of a rank a class goes to. */
static const struct { const char *file; const char *classes[4]; } GROUPS[] = {
    { "model", { "weight", "bias" } },
    { "adapter", { "adapter" } },
    { "optimizer", { "master", "m", "v", "momentum" } },
};

static bool in_group(int group, const char *cls)
{
    for (int i = 0; i < 4 && GROUPS[group].classes[i]; i++)
        if (strcmp(GROUPS[group].classes[i], cls) == 0) return true;
    return false;
}

typedef struct {
    const cdr_ckpt_piece *piece;
    int64_t first_row, n_rows;
    const char *key;
    const void *data; size_t bytes;
    uint64_t xxh3;
    const char *file;
} block;

typedef struct { block *b; int64_t n, cap; } blocks;

static cdr_ckpt_tensor tensor_of(cdr_pool *pool, const cdr_ckpt_piece *p)
{
    cdr_ckpt_tensor t = { .name = p->name, .cls = p->cls, .key = cdr__ckpt_key(pool, p->name, p->cls), .dtype = p->dtype, .n_dim = p->n_dim };
    memcpy(t.n, p->n, sizeof t.n);
    return t;
}

static cdr_status cut(cdr_pool *pool, const cdr_ckpt_piece *p, blocks *out, cdr_err *err)
{
    size_t row_bytes, bytes;
    int64_t rows = cdr__ckpt_rows(p->n_dim, p->n);
    if (strchr(p->name, '#')) CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.write", "tensor %s: a name cannot hold a #", p->name);
    CDR_CHECK(cdr__ckpt_class_known(p->cls) && p->n_dim >= 0 && p->n_dim <= CDR_MAX_DIM);
    CDR_CHECK(p->first_row >= 0 && p->n_rows >= 0 && p->first_row <= rows - p->n_rows);
    if (!cdr__ckpt_row_bytes(p->dtype, p->n_dim, p->n, &row_bytes) || !cdr_mul_size(row_bytes, (size_t)p->n_rows, &bytes))
        CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.write", "tensor %s: a dtype that a checkpoint cannot hold, or a size that overflows", p->name);
    if (p->n_rows == 0 && rows > 0) return CDR_OK;
    cdr_ckpt_tensor t = tensor_of(pool, p);
    int64_t step = row_bytes ? CDR_MAX((int64_t)((size_t)CDR_CKPT_BLOCK_BYTES / row_bytes), 1) : CDR_MAX(p->n_rows, 1);
    int64_t row = p->first_row, end = p->first_row + p->n_rows;
    do {
        int64_t n = CDR_MIN(step, end - row);
        block b = { .piece = p, .first_row = row, .n_rows = n, .key = cdr__ckpt_piece_key(pool, &t, row, n),
                    .data = (const char *)p->data + (size_t)(row - p->first_row) * row_bytes, .bytes = (size_t)n * row_bytes };
        b.xxh3 = cdr_hash64(b.data, b.bytes, 0);
        *CDR_PUSH(pool, out->b, out->n, out->cap) = b;
        row += n;
    } while (row < end);
    return CDR_OK;
}

/* One file of one group; its row of the table of files goes to jw. */
static cdr_status write_group(cdr_pool *pool, const char *dir, const char *name, block *b, int64_t n, cdr_jw *jw, cdr_err *err)
{
    cdr_st_spec *specs = cdr_pool_alloc(pool, (size_t)n * sizeof *specs);
    cdr_st_writer *w;
    int64_t bytes;
    uint64_t xxh3;
    for (int64_t i = 0; i < n; i++) {
        const cdr_ckpt_piece *p = b[i].piece;
        specs[i] = (cdr_st_spec){ .name = b[i].key, .format = cdr_st_format_of(p->dtype), .n_dim = p->n_dim };
        for (int d = 0; d < p->n_dim; d++) specs[i].n[d] = d == 0 ? b[i].n_rows : p->n[d];
        b[i].file = name;
    }
    CDR_TRY(cdr_st_create(cdr_pool_printf(pool, "%s/%s", dir, name), specs, n, NULL, 0, &w, err));
    for (int64_t i = 0; i < n; i++) {
        const block *x = &b[cdr_st_writer_order(w, i)];
        cdr_status status = cdr_st_append(w, x->data, x->bytes, err);
        if (status != CDR_OK) {
            cdr_st_abort(w);
            return status;
        }
    }
    CDR_TRY(cdr_st_finish(w, &bytes, &xxh3, err));
    cdr_jw_begin(jw, NULL, '{');
    cdr_jw_str(jw, "name", name);
    cdr_jw_int(jw, "bytes", bytes);
    cdr_jw_u64hex(jw, "xxh3", xxh3);
    cdr_jw_end(jw, '}');
    return CDR_OK;
}

static void put_sizes(cdr_jw *w, const char *key, int n_dim, const int64_t *n, int64_t first)
{
    cdr_jw_begin(w, key, '[');
    for (int i = 0; i < n_dim; i++) cdr_jw_int(w, NULL, i == 0 ? first : n ? n[i] : 0);
    cdr_jw_end(w, ']');
}

static void put_piece(cdr_jw *w, const char *file, const char *key, const cdr_ckpt_tensor *t, int64_t first_row, int64_t n_rows, uint64_t xxh3)
{
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "file", file);
    cdr_jw_str(w, "key", key);
    put_sizes(w, "start", t->n_dim, NULL, first_row);
    put_sizes(w, "shape", t->n_dim, t->n, n_rows);
    cdr_jw_u64hex(w, "xxh3", xxh3);
    cdr_jw_end(w, '}');
}

static void begin_tensor(cdr_jw *w, const cdr_ckpt_tensor *t)
{
    cdr_jw_begin(w, t->key, '{');
    cdr_jw_str(w, "dtype", cdr_st_format_row(cdr_st_format_of(t->dtype))->name);
    put_sizes(w, "shape", t->n_dim, t->n, t->n_dim ? t->n[0] : 0);
    cdr_jw_str(w, "class", t->cls);
    cdr_jw_begin(w, "pieces", '[');
}

static void end_tensor(cdr_jw *w)
{
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
}

/* Blocks of one tensor follow each other in the table, also where the caller handed a tensor over in several pieces. */
static int by_tensor(const void *a, const void *b)
{
    const block *x = *(const block *const *)a, *y = *(const block *const *)b;
    int c = strcmp(x->piece->name, y->piece->name);
    if (c == 0) c = strcmp(x->piece->cls, y->piece->cls);
    if (c == 0) c = x->first_row < y->first_row ? -1 : x->first_row > y->first_row;
    return c;
}

static void put_tensors(cdr_pool *pool, cdr_jw *w, const block *b, int64_t n)
{
    const block **order = cdr_pool_alloc(pool, ((size_t)n + 1) * sizeof *order);
    for (int64_t i = 0; i < n; i++) order[i] = &b[i];
    qsort(order, (size_t)n, sizeof *order, by_tensor);
    cdr_jw_begin(w, "tensors", '{');
    for (int64_t i = 0; i < n; i++) {
        const cdr_ckpt_piece *p = order[i]->piece;
        cdr_ckpt_tensor t = tensor_of(pool, p);
        bool first = i == 0 || strcmp(order[i - 1]->piece->name, p->name) != 0 || strcmp(order[i - 1]->piece->cls, p->cls) != 0;
        if (first && i > 0) end_tensor(w);
        if (first) begin_tensor(w, &t);
        put_piece(w, order[i]->file, order[i]->key, &t, order[i]->first_row, order[i]->n_rows, order[i]->xxh3);
    }
    if (n > 0) end_tensor(w);
    cdr_jw_end(w, '}');
}

static cdr_status write_part(cdr_pool *pool, const char *dir, int rank, int n_ranks, const cdr_ckpt_piece *pieces, int64_t n,
                             cdr_jw *jw, cdr_err *err)
{
    blocks all = { 0 };
    cdr_jw_begin(jw, "files", '[');
    for (int g = 0; g < CDR_COUNT(GROUPS); g++) {
        int64_t first = all.n;
        for (int64_t i = 0; i < n; i++)
            if (in_group(g, pieces[i].cls)) CDR_TRY(cut(pool, &pieces[i], &all, err));
        if (all.n == first) continue;
        const char *name = cdr_pool_printf(pool, "%s-%05d-of-%05d.safetensors", GROUPS[g].file, rank, n_ranks);
        CDR_TRY(write_group(pool, dir, name, all.b + first, all.n - first, jw, err));
    }
    cdr_jw_end(jw, ']');
    put_tensors(pool, jw, all.b, all.n);
    return CDR_OK;
}

cdr_status cdr_ckpt_write_part(const char *run_dir, int64_t step, int rank, int n_ranks,
                               const cdr_ckpt_piece *pieces, int64_t n, cdr_text *part, cdr_err *err)
{
    char dir[PATH_BYTES];
    cdr__ckpt_partial_path(dir, sizeof dir, run_dir, step);
    for (int64_t i = 0; i < n; i++) CDR_CHECK(cdr__ckpt_class_known(pieces[i].cls));
    CDR_TRY(cdr_make_dirs(dir, err));
    cdr_pool *pool = cdr_pool_new();
    cdr_jw jw = { .t = part };
    cdr_jw_begin(&jw, NULL, '{');
    cdr_jw_int(&jw, "step", step);
    cdr_jw_int(&jw, "rank", rank);
    cdr_jw_int(&jw, "ranks", n_ranks);
    cdr_status status = write_part(pool, dir, rank, n_ranks, pieces, n, &jw, err);
    cdr_jw_end(&jw, '}');
    cdr_pool_free(pool);
    return status;
}

/* ---- the second half: rank 0 ---------------------------------------------------------------------------- */

static int by_entry_key(const void *a, const void *b)
{
    return strcmp(((const cdr__ckpt_entry *)a)->t.key, ((const cdr__ckpt_entry *)b)->t.key);
}

static bool same_tensor(const cdr_ckpt_tensor *a, const cdr_ckpt_tensor *b)
{
    return strcmp(a->cls, b->cls) == 0 && a->dtype == b->dtype && a->n_dim == b->n_dim && memcmp(a->n, b->n, sizeof a->n) == 0;
}

/* Entries of one key, from several ranks, become one with all their pieces. Sorted input. */
static cdr_status join_entries(cdr_pool *pool, cdr__manifest *m, cdr_err *err)
{
    int64_t n = 0, end;
    for (int64_t i = 0; i < m->n_entries; i = end) {
        cdr__ckpt_entry joined = { .t = m->entries[i].t };
        for (end = i; end < m->n_entries && strcmp(m->entries[end].t.key, joined.t.key) == 0; end++) {
            if (!same_tensor(&m->entries[end].t, &joined.t))
                CDR_FAIL_ID(err, CDR_EBUG, "checkpoint.write", "tensor %s: ranks do not agree on its class, dtype or shape", joined.t.key);
            joined.n_pieces += m->entries[end].n_pieces;
        }
        joined.pieces = cdr_pool_alloc(pool, ((size_t)joined.n_pieces + 1) * sizeof *joined.pieces);
        cdr__ckpt_piece *to = joined.pieces;
        for (int64_t k = i; k < end; k++) {
            memcpy(to, m->entries[k].pieces, (size_t)m->entries[k].n_pieces * sizeof *to);
            to += m->entries[k].n_pieces;
        }
        m->entries[n++] = joined;
    }
    m->n_entries = n;
    return CDR_OK;
}

static cdr_status join_parts(cdr_pool *pool, const cdr_ckpt_meta *meta, const char *const *parts, int n_parts, cdr__manifest *m, cdr_err *err)
{
    int64_t cap_entries = 0, cap_files = 0, n_files = 0;
    bool *seen = cdr_pool_alloc(pool, (size_t)n_parts + 1);
    for (int i = 0; i < n_parts; i++) {
        cdr__manifest part = { 0 };
        const cdr_json *root;
        const char *where = cdr_pool_printf(pool, "part %d", i);
        CDR_TRY(cdr_json_parse(pool, parts[i], strlen(parts[i]), where, &root, err));
        CDR_TRY(cdr__tables_parse(pool, where, root, &part, err));
        int64_t rank = cdr_json_int(cdr_json_get(root, "rank"), -1);
        if (cdr_json_int(cdr_json_get(root, "step"), -1) != meta->step || cdr_json_int(cdr_json_get(root, "ranks"), -1) != n_parts ||
            rank < 0 || rank >= n_parts || seen[rank])
            CDR_FAIL_ID(err, CDR_EBUG, "checkpoint.write", "%s: belongs to another step or layout, or is there twice", where);
        seen[rank] = true;
        for (int64_t k = 0; k < part.n_entries; k++) {
            cdr__ckpt_entry *e = &part.entries[k];
            for (int64_t j = 0; j < e->n_pieces; j++) e->pieces[j].file += (int)n_files;
            *CDR_PUSH(pool, m->entries, m->n_entries, cap_entries) = *e;
        }
        for (int k = 0; k < part.n_files; k++) *CDR_PUSH(pool, m->files, n_files, cap_files) = part.files[k];
    }
    m->n_files = (int)n_files;
    if (m->n_entries > 1) qsort(m->entries, (size_t)m->n_entries, sizeof *m->entries, by_entry_key);
    CDR_TRY(join_entries(pool, m, err));
    return cdr__tables_check_tiling("checkpoint to write", m, err);
}

static void put_file(cdr_jw *w, const char *name, int64_t bytes, uint64_t xxh3)
{
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "name", name);
    cdr_jw_int(w, "bytes", bytes);
    cdr_jw_u64hex(w, "xxh3", xxh3);
    cdr_jw_end(w, '}');
}

/* The mesh's members are numbers and texts; nothing is nested. */
static cdr_status put_mesh(cdr_pool *pool, cdr_jw *w, const char *text, cdr_err *err)
{
    const cdr_json *mesh;
    CDR_TRY(cdr_json_parse(pool, text ? text : "{}", text ? strlen(text) : 2, "mesh", &mesh, err));
    cdr_jw_begin(w, "mesh", '{');
    for (int64_t i = 0; i < cdr_json_count(mesh); i++) {
        const cdr_json *x = cdr_json_at(mesh, i);
        CDR_CHECK(cdr_json_type(x) == CDR_JSON_INT || cdr_json_type(x) == CDR_JSON_STRING);
        if (cdr_json_type(x) == CDR_JSON_INT) cdr_jw_int(w, cdr_json_key(mesh, i), cdr_json_int(x, 0));
        else cdr_jw_str(w, cdr_json_key(mesh, i), cdr_json_str(x, ""));
    }
    cdr_jw_end(w, '}');
    return CDR_OK;
}

static cdr_status put_manifest(cdr_pool *pool, const cdr_ckpt_meta *meta, const cdr__manifest *m, cdr_text *out, cdr_err *err)
{
    cdr_jw w = { .t = out };
    char now[32];
    cdr_time_rfc3339(now);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "format", "cadre-checkpoint");
    cdr_jw_int(&w, "version", 1);
    cdr_jw_int(&w, "step", meta->step);
    cdr_jw_str(&w, "time", now);
    cdr_jw_u64hex(&w, "recipe_hash", meta->recipe_hash);
    cdr_jw_u64hex(&w, "description_hash", meta->description_hash);
    if (meta->base_path) {
        cdr_jw_begin(&w, "base", '{');
        cdr_jw_str(&w, "path", meta->base_path);
        cdr_jw_u64hex(&w, "hash", meta->base_hash);
        cdr_jw_end(&w, '}');
    } else cdr_jw_null(&w, "base");
    cdr_jw_int(&w, "ranks", meta->n_ranks);
    CDR_TRY(put_mesh(pool, &w, meta->mesh_json, err));
    cdr_jw_begin(&w, "files", '[');
    for (int i = 0; i < m->n_files; i++) put_file(&w, m->files[i].name, m->files[i].bytes, m->files[i].xxh3);
    put_file(&w, "state.json", (int64_t)strlen(meta->state_json), cdr_hash64(meta->state_json, strlen(meta->state_json), 0));
    put_file(&w, "recipe.yaml", (int64_t)strlen(meta->recipe_yaml), cdr_hash64(meta->recipe_yaml, strlen(meta->recipe_yaml), 0));
    cdr_jw_end(&w, ']');
    cdr_jw_begin(&w, "tensors", '{');
    for (int64_t i = 0; i < m->n_entries; i++) {
        const cdr__ckpt_entry *e = &m->entries[i];
        begin_tensor(&w, &e->t);
        for (int64_t k = 0; k < e->n_pieces; k++)
            put_piece(&w, m->files[e->pieces[k].file].name, e->pieces[k].key, &e->t, e->pieces[k].first_row, e->pieces[k].n_rows,
                      e->pieces[k].xxh3);
        end_tensor(&w);
    }
    cdr_jw_end(&w, '}');
    cdr_jw_end(&w, '}');
    return CDR_OK;
}

/* The files that the parts name are there in full; whatever else lies in the directory (an interrupted writer's, on
 * another number of ranks) goes. */
static cdr_status check_files(cdr_pool *pool, const char *dir, const cdr__manifest *m, int64_t *total, cdr_err *err)
{
    for (int i = 0; i < m->n_files; i++) {
        struct stat st;
        const char *path = cdr_pool_printf(pool, "%s/%s", dir, m->files[i].name);
        if (stat(path, &st) != 0 || st.st_size != m->files[i].bytes)
            CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: not there, or not of %lld bytes; do all ranks see the same file system?", path,
                        (long long)m->files[i].bytes);
        *total += m->files[i].bytes;
    }
    DIR *d = opendir(dir);
    if (!d) CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot read the directory: %s", dir, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        bool ours = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        for (int i = 0; i < m->n_files && !ours; i++) ours = strcmp(m->files[i].name, e->d_name) == 0;
        if (!ours) (void)unlinkat(dirfd(d), e->d_name, 0);
    }
    (void)closedir(d);
    return CDR_OK;
}

/* One rename; where the name is taken (the step was saved before), the two change places in one step. */
static cdr_status give_final_name(const char *run_dir, int64_t step, const char *partial, cdr_err *err)
{
    char final[PATH_BYTES], parent[PATH_BYTES];
    cdr_ckpt_path(final, sizeof final, run_dir, step);
    (void)snprintf(parent, sizeof parent, "%s/checkpoints", run_dir);
    bool replaced = false;
    if (cdr_exists(final)) {
        replaced = true;
        if (renameat2(AT_FDCWD, partial, AT_FDCWD, final, RENAME_EXCHANGE) != 0)
            CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: there already, and cannot be replaced: %s. Remove it", final, strerror(errno));
    } else if (rename(partial, final) != 0)
        CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot rename: %s", partial, strerror(errno));
    CDR_TRY(cdr_sync_dir(parent, err));
    CDR_TRY(cdr_sync_dir(run_dir, err));              /* checkpoints/ itself may be new */
    return replaced ? cdr_remove_tree(partial, err) : CDR_OK;
}

static cdr_status finish(cdr_pool *pool, const char *run_dir, const cdr_ckpt_meta *meta, const char *const *parts, int n_parts,
                         cdr_text *text, int64_t *bytes, cdr_err *err)
{
    cdr__manifest m = { 0 };
    char dir[PATH_BYTES];
    int64_t total = 0;
    cdr__ckpt_partial_path(dir, sizeof dir, run_dir, meta->step);
    if (n_parts != meta->n_ranks)
        CDR_FAIL_ID(err, CDR_EBUG, "checkpoint.write", "%d parts of %d ranks", n_parts, meta->n_ranks);
    CDR_TRY(join_parts(pool, meta, parts, n_parts, &m, err));
    CDR_TRY(check_files(pool, dir, &m, &total, err));
    CDR_TRY(cdr_file_write(cdr_pool_printf(pool, "%s/state.json", dir), meta->state_json, strlen(meta->state_json), err));
    CDR_TRY(cdr_file_write(cdr_pool_printf(pool, "%s/recipe.yaml", dir), meta->recipe_yaml, strlen(meta->recipe_yaml), err));
    CDR_TRY(put_manifest(pool, meta, &m, text, err));
    CDR_TRY(cdr_ckpt_check_manifest("manifest to write", text->s, text->n, err));      /* what is written can be read */
    CDR_TRY(cdr_file_write(cdr_pool_printf(pool, "%s/manifest.json", dir), text->s, text->n, err));
    total += (int64_t)(text->n + strlen(meta->state_json) + strlen(meta->recipe_yaml));
    if (bytes) *bytes = total;
    return give_final_name(run_dir, meta->step, dir, err);
}

cdr_status cdr_ckpt_finish(const char *run_dir, const cdr_ckpt_meta *meta, const char *const *parts, int n_parts,
                           int64_t *bytes, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_text text = { 0 };
    cdr_status status = finish(pool, run_dir, meta, parts, n_parts, &text, bytes, err);
    cdr_text_free(&text);
    cdr_pool_free(pool);
    return status;
}
