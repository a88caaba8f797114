/* side.c: which files of a source go into a new directory beside its weights: what whoever loads that directory reads, and what says under which terms.
 *
 *   config, generation_config, *_config.json, configuration.json      tokenizer, vocabulary, merges, chat template
 *   modeling code (.py), model.yaml                                    licences, notices, README
 *
 * All else stays where it is, and is named: weights in other formats or that no index names (.bin, .gguf, gigabytes), training states, pictures,
 * folders, hidden files; an adapter_config.json, by which others would take the directory for an adapter. The list is made, and what cannot be copied
 * is refused, before the first byte is written.
 */
#include "weights/parts.h"

#include <dirent.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t SIDE_MAX = 256 << 20;       /* bytes of a file that goes by its ending; a tokenizer has some ten million */

static bool begins(const char *s, const char *with) { return strncasecmp(s, with, strlen(with)) == 0; }

static bool ends(const char *s, const char *with)
{
    const size_t n = strlen(s), k = strlen(with);
    return n > k && strcmp(s + n - k, with) == 0;
}

static bool given(const cdr_weights_out *o, const char *name)
{
    for (int i = 0; i < o->n_side; i++)
        if (strcmp(o->side[i].name, name) == 0) return true;
    return false;
}

/* The index and its shards; a .safetensors that it does not name is a file like others. */
static bool is_weights(const cdr_hf *d, const char *name)
{
    for (int i = 0; i < cdr_hf_shards(d); i++) if (strcmp(name, cdr_hf_shard_name(d, i)) == 0) return true;
    return strcmp(name, "model.safetensors.index.json") == 0;
}

/* What a loader asks for by this very name. */
static bool by_name(const cdr_weights_out *o, const char *name)
{
    static const char *const NAMES[] = { "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                         "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.json", "chat_texts.json", "model.yaml" };
    const char *file = cdr_model_get_text(o->model).file;
    for (int i = 0; i < CDR_COUNT(NAMES); i++) if (strcmp(name, NAMES[i]) == 0) return true;
    return file && strcmp(name, file) == 0;
}

static bool by_kind(const char *name)
{
    static const char *const ENDS[] = { ".py", ".jinja", ".model", ".tiktoken", "_config.json" }, *const BEGINS[] = { "LICENSE", "LICENCE", "COPYING", "NOTICE",
                                        "README", "USE_POLICY", "THIRD_PARTY", "ThirdParty" };
    bool yes = strcmp(name, "configuration.json") == 0;
    for (int i = 0; i < CDR_COUNT(ENDS); i++) yes = yes || ends(name, ENDS[i]);
    for (int i = 0; i < CDR_COUNT(BEGINS); i++) yes = yes || begins(name, BEGINS[i]);
    return yes && strcmp(name, "adapter_config.json") != 0;
}

static char *printable(cdr_pool *pool, const char *name)
{
    char *s = cdr_pool_strdup(pool, name);
    for (char *c = s; *c; c++) if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return s;
}

static cdr_status take(const char *dir, const char *name, const char *path, const struct stat *st, cdr_err *err)
{
    if (!cdr_plain_name(name))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.side-file", "%s: holds \"%s\", which has no plain file name. Rename it", dir, name);
    if (!st || !S_ISREG(st->st_mode))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.side-file", "%s: %s, and who loads the new directory would look for it there. Put the file there, or remove it", path,
                    st ? "is no regular file" : "leads nowhere");
    if (access(path, R_OK) != 0) CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.side-file", "%s: cannot be read. Check its permissions", path);
    return CDR_OK;
}

static cdr_status sort_out(const cdr_weights_out *o, const char *name, cdr_pool *pool, cdr__sides *s, cdr_err *err)
{
    struct stat st;
    const char *path = cdr_pool_printf(pool, "%s/%s", cdr_hf_dir(o->source), name);
    const bool there = stat(path, &st) == 0, folder = there && S_ISDIR(st.st_mode), named = by_name(o, name);
    if (!folder && (named || (by_kind(name) && (!there || st.st_size <= SIDE_MAX)))) {
        CDR_TRY(take(cdr_hf_dir(o->source), name, path, there ? &st : NULL, err));
        *CDR_PUSH(pool, s->name, s->n, s->cap) = cdr_pool_strdup(pool, name);
        return CDR_OK;
    }
    *CDR_PUSH(pool, s->left, s->n_left, s->cap_left) = cdr_pool_printf(pool, "%s%s", printable(pool, name), folder ? "/" : "");
    s->left_bytes += there && S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0;
    return CDR_OK;
}

cdr_status cdr__sides_list(const cdr_weights_out *o, bool config, cdr_pool *pool, cdr__sides *s, cdr_err *err)
{
    const char *dir = cdr_hf_dir(o->source);
    struct dirent **e;
    int n = scandir(dir, &e, NULL, alphasort);
    cdr_status st = n < 0 ? cdr_fail(err, CDR_EDATA, "file.io", "%s: cannot be listed. Check its permissions", dir) : CDR_OK;
    for (int i = 0; i < n; i++) {
        const char *name = e[i]->d_name;
        bool self = strcmp(name, ".") == 0 || strcmp(name, "..") == 0, mine = given(o, name) || (!config && strcmp(name, "config.json") == 0);
        if (st == CDR_OK && !self && !mine && !is_weights(o->source, name)) st = sort_out(o, name, pool, s, err);
        free(e[i]);
    }
    if (n >= 0) free(e);
    return st;
}
