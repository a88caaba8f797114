/* onboard_files.c: what onboard writes for the user: model.yaml (the family with this directory's sizes) and recipe.yaml (a LoRA recipe that
 * runs as it stands, once data.train names a file); and the directory written again, to be compared byte by byte.
 */
#include "command/onboard.h"
#include <dirent.h>
#include <stdlib.h>

static void sizes_yaml(const cdr_model *m, cdr_text *t)
{
    for (int64_t i = 0; i < cdr_model_sizes(m); i++) {
        const char *value, *from, *name = cdr_model_size(m, i, &value, &from);
        if (!from || strcmp(from, "default") == 0) continue;
        cdr_text_printf(t, "#   %-18s %-28s %s\n", name, value, from);
    }
}

/* A path as YAML: a quote in it is doubled. */
static const char *quoted(cdr_pool *pool, const char *path)
{
    cdr_text t = { 0 };
    for (const char *p = path; *p; p++) cdr_text_printf(&t, *p == '\'' ? "''" : "%c", *p);
    const char *out = cdr_pool_printf(pool, "'%.*s'", (int)t.n, t.s ? t.s : "");
    cdr_text_free(&t);
    return out;
}

/* A relative path is the working directory's, as all paths of recipes. */
static cdr_status write_model_yaml(cdr__onboard *o, cdr_err *err)
{
    const cdr_model_info *f = cdr_model_get_info(o->m);
    cdr_text t = { 0 };
    cdr_text_printf(&t, "# %s, read from its config.json by description %s. Sizes come from there; what this file adds (ignore, tensors, blocks, serve)\n"
                    "# is laid on top. To be used: model.path %s/model.yaml, or copied into the directory itself\n", o->dir, f->name, o->out);
    cdr_text_printf(&t, "extends: %s\nname: %s\nweights_from: %s\n# sizes, and the keys that gave them:\n", f->name, f->name, quoted(o->pool, o->dir));
    sizes_yaml(o->m, &t);
    cdr_status st = cdr_file_write(cdr_pool_printf(o->pool, "%s/model.yaml", o->out), t.s, t.n, err);
    cdr_text_free(&t);
    return st;
}

static bool has_group(const cdr_model *m, const char *group)
{
    for (int64_t i = 0; i < cdr_model_params(m); i++) if (cdr_model_in_group(m, i, group)) return true;
    return false;
}

/* Letters, digits, . _ - of the directory's own name. */
static const char *run_name(cdr__onboard *o)
{
    const char *slash = strrchr(o->dir, '/'), *from = slash && slash[1] ? slash + 1 : o->dir;
    char *name = cdr_pool_strdup(o->pool, from);
    for (char *p = name; *p; p++) {
        if (*p >= 'A' && *p <= 'Z') *p = (char)(*p - 'A' + 'a');
        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '.' || *p == '_' || *p == '-')) *p = '-';
    }
    return cdr_pool_printf(o->pool, "%s-lora", *name && *name != '.' ? name : "model");
}

static cdr_status write_recipe(cdr__onboard *o, cdr_err *err)
{
    static const char *const groups[] = { "attention", "dense_mlp", "shared_experts" };
    const cdr_model_info *f = cdr_model_get_info(o->m);
    const char *name = run_name(o), *targets = "";
    cdr_text t = { 0 };
    o->sequence = f->n_params > 1000000000 ? 4096 : 512;
    for (int i = 0; i < CDR_COUNT(groups); i++)
        if (has_group(o->m, groups[i])) targets = cdr_pool_printf(o->pool, "%s%s%s", targets, *targets ? ", " : "", groups[i]);
    cdr_text_printf(&t, "# LoRA on %s (%s). data.train: your conversations, JSON lines with `messages`\n", o->dir, f->name);
    cdr_text_printf(&t, "version: 1\nname: %s\nmodel: {path: %s}\n", name, quoted(o->pool, o->dir));
    cdr_text_printf(&t, "data: {train: data/conversations.jsonl, eval_fraction: 0.02%s}\n", strcmp(f->chat, "none") == 0 ? "" : ", train_on: assistant");
    cdr_text_printf(&t, "train: {epochs: 2, sequence_length: %lld, micro_batch_tokens: %lld}\n", (long long)o->sequence, (long long)o->sequence);
    cdr_text_printf(&t, "optimizer: {learning_rate: 2.0e-4}\n");
    cdr_text_printf(&t, "lora: {rank: 16, alpha: 32, targets: [%s]}\ncheckpoint: {every: 100}\n", targets);
    if (o->machine || o->devices > 0) cdr_text_printf(&t, "machine: {");
    if (o->machine) cdr_text_printf(&t, "file: %s", quoted(o->pool, o->machine));
    if (o->devices > 0) cdr_text_printf(&t, "%sdevices: %lld", o->machine ? ", " : "", (long long)o->devices);
    if (o->machine || o->devices > 0) cdr_text_printf(&t, "}\n");
    o->recipe = cdr_pool_printf(o->pool, "%s/recipe.yaml", o->out);
    cdr_status st = cdr_file_write(o->recipe, t.s, t.n, err);
    cdr_text_free(&t);
    return st;
}

cdr_status cdr__onboard_files(cdr__onboard *o, cdr_err *err)
{
    CDR_TRY(write_model_yaml(o, err));
    return write_recipe(o, err);
}

/* ---- written again ---------------------------------------------------------------------------------------------------------------- */

enum { MAX_EXPORT = 2 };          /* GiB that are copied for the proof */

static int64_t file_bytes(const char *path)
{
    cdr_map m;
    cdr_err err = { 0 };
    if (cdr_map_open(path, &m, &err)) return -1;
    int64_t n = (int64_t)m.bytes;
    cdr_map_close(&m);
    return n;
}

static bool same_file(const char *a, const char *b)
{
    cdr_map x, y;
    cdr_err err = { 0 };
    if (cdr_map_open(a, &x, &err)) return false;
    bool same = false;
    if (cdr_map_open(b, &y, &err) == CDR_OK) {
        same = x.bytes == y.bytes && (x.bytes == 0 || memcmp(x.data, y.data, x.bytes) == 0);
        cdr_map_close(&y);
    }
    cdr_map_close(&x);
    return same;
}

static bool is_left(const cdr_weights_out_stat *stat, const char *name)
{
    for (int64_t i = 0; i < stat->n_left; i++) if (strcmp(stat->left[i], name) == 0) return true;
    return false;
}

/* Files of the directory that the copy lacks or has with other bytes, but for those that are left out on purpose. */
static int differing(cdr__onboard *o, const char *copy, const cdr_weights_out_stat *stat, int *n_files, const char **first)
{
    DIR *d = opendir(o->dir);
    int bad = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *from = cdr_pool_printf(o->pool, "%s/%s", o->dir, e->d_name);
        if (e->d_name[0] == '.' || cdr_is_dir(from) || strcmp(e->d_name, "model.yaml") == 0 || is_left(stat, e->d_name)) continue;
        ++*n_files;
        if (same_file(from, cdr_pool_printf(o->pool, "%s/%s", copy, e->d_name))) continue;
        if (bad++ == 0) *first = cdr_pool_strdup(o->pool, e->d_name);
    }
    if (d) closedir(d);
    return bad;
}

void cdr__onboard_export(cdr__onboard *o)
{
    cdr_err err = { 0 }, none = { 0 };
    int64_t total = 0;
    for (int i = 0; i < cdr_hf_shards(o->d); i++) total += CDR_MAX(file_bytes(cdr_pool_printf(o->pool, "%s/%s", o->dir, cdr_hf_shard_name(o->d, i))), (int64_t)0);
    const char *copy = cdr_pool_printf(o->pool, "%s/export", o->out), *first = NULL;
    if (total > (int64_t)MAX_EXPORT << 30) {
        const char *detail = cdr_pool_printf(o->pool, "%.0f GB; onboard copies at most %d GiB", (double)total * 1e-9, MAX_EXPORT);
        const char *command = cdr_pool_printf(o->pool, "cadre export %s --format hf --out %s", o->dir, copy);
        cdr__card_put(o, CDR__ITEM_EXPORT, CDR__UNVERIFIED, (cdr__finding){ .detail = detail, .command = command });
        return;
    }
    bool *touched = cdr_pool_alloc(o->pool, (size_t)cdr_model_params(o->m) + 1);
    cdr_weights_out out = { .model = o->m, .source = o->d, .touched = touched, .experts = -1, .pool = o->pool };
    cdr_weights_out_stat stat = { 0 };
    int n_files = 0, bad = 0;
    cdr_remove_tree(copy, &none);
    if (cdr_weights_write(copy, &out, &stat, &err)) {
        bool disk = err.status == CDR_ERANK;                       /* no room for the copy says nothing about the checkpoint */
        cdr__card_error(o, CDR__ITEM_EXPORT, disk ? CDR__UNVERIFIED : CDR__FAILED, &err);
        return;
    }
    bad = differing(o, copy, &stat, &n_files, &first);
    cdr_remove_tree(copy, &none);
    const char *detail = bad ? cdr_pool_printf(o->pool, "%s differs", first)
                             : cdr_pool_printf(o->pool, "%lld tensors in %lld shards", (long long)stat.tensors, (long long)stat.shards);
    cdr__card_put(o, CDR__ITEM_EXPORT, bad ? CDR__FAILED : CDR__VERIFIED,
                  (cdr__finding){ .figure = n_files - bad, .unit = "files equal", .expected = cdr_pool_printf(o->pool, "%d", n_files), .detail = detail });
}
