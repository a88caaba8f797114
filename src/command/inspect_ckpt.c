/* inspect_ckpt.c: a directory in Hugging Face layout: family, shards, tensors by dtype, what the description makes of it.
 *
 * Headers of all shards are read where there are at most 200,000 tensors. Above that (K3 has 497,220) only those that --tensors asks for:
 * the counts by dtype are then the description's, by name, and said to be so.
 */
#include "command/inspect.h"

enum { MAX_HEADERS = 200000, MAX_LINES = 1000 };

bool cdr__name_fits(const char *pattern, const char *name)
{
    const char *star = NULL, *back = NULL;
    if (!strchr(pattern, '*')) return strstr(name, pattern) != NULL;
    while (*name) {
        if (*pattern == '*') star = pattern++, back = name;
        else if (*pattern == *name) pattern++, name++;
        else if (star) pattern = star + 1, name = ++back;
        else return false;
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

void cdr__tensor_line(const cdr_st_tensor *t, const char *file, cdr_text *text, cdr_jw *w)
{
    char shape[160] = "[", bytes[32];
    size_t at = 1;
    for (int i = 0; i < t->n_dim; i++) at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", i ? ", " : "", (long long)t->n[i]);
    snprintf(shape + at, sizeof shape - at, "]");
    cdr_format_bytes(bytes, (int64_t)(t->end - t->begin));
    cdr_text_printf(text, "%-8s %-20s %10s  %s%s%s\n", cdr_st_format_row(t->format)->name, shape, bytes, t->name, file ? "  " : "", file ? file : "");
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "name", t->name);
    cdr_jw_str(w, "dtype", cdr_st_format_row(t->format)->name);
    cdr_jw_begin(w, "shape", '[');
    for (int i = 0; i < t->n_dim; i++) cdr_jw_int(w, NULL, t->n[i]);
    cdr_jw_end(w, ']');
    cdr_jw_int(w, "size_bytes", (int64_t)(t->end - t->begin));
    if (file) cdr_jw_str(w, "file", file);
    cdr_jw_end(w, '}');
}

/* ---- one directory -------------------------------------------------------------------------------------------------------------- */

typedef struct {
    const cdr__inspect_opts *o;
    cdr_pool *pool;
    cdr_text *text;
    cdr_jw *w;
    cdr_hf *d;
    cdr_model *m;                     /* NULL: no description fits */
    cdr_err why;                      /* then */
    cdr_model_match match;
    cdr__names names;
    cdr__format_count format[CDR__NAMES_FORMATS];
    int64_t bytes;
    bool counted;                     /* formats are of headers */
    int there;                        /* shards */
} look;

static void count_by_name(look *k)
{
    int u8 = cdr_st_format_by_name("U8"), f8 = cdr_st_format_by_name("F8_E4M3"), f32 = cdr_st_format_by_name("F32");
    for (int64_t i = 0; i < cdr_hf_count(k->d); i++) {
        int format = -1;
        if (k->names.of[i] < 0) continue;                  /* what is not read is not known */
        cdr_model_row row = cdr_model_stored(k->m, k->names.of[i]);
        switch ((cdr__file_role)k->names.role[i]) {
        case CDR__ROLE_PACKED: case CDR__ROLE_SCALE: format = u8; break;
        case CDR__ROLE_INVERSE: format = f32; break;
        default: format = k->names.n_fp8 > 0 && row.n_formats > 1 && strcmp(row.format[1], "FP8_128") == 0 ? f8 : cdr_st_format_by_name(row.format[row.n_formats - 1]);
        }
        if (format >= 0) k->format[format].tensors++;
    }
}

static cdr_status open_all(look *k, cdr_err *err)
{
    cdr_model_spec spec = { .path = k->o->path };
    CDR_TRY(cdr_hf_open(k->o->path, &k->d, err));
    spec.hf = k->d;
    const cdr_json *config = cdr_hf_config(k->d);
    for (int i = 0; i < cdr_hf_shards(k->d); i++) k->there += cdr_hf_shard_there(k->d, i);
    if (!config) cdr_fail(&k->why, CDR_EDATA, "model.no-config", "no config.json: the family is not known");
    else if (cdr_model_load(&spec, k->pool, &k->m, &k->why)) k->m = NULL;
    cdr_err none = { 0 };
    if (config && cdr_model_match_config(config, k->pool, &k->match, &none)) k->match.name = NULL;
    if (k->m) CDR_TRY(cdr__names_audit(k->m, k->d, k->pool, &k->names, err));
    k->counted = cdr_hf_count(k->d) <= MAX_HEADERS;
    if (k->counted) return cdr__count_formats(k->d, k->format, &k->bytes, err);
    if (k->m) count_by_name(k);
    return CDR_OK;
}

static void first_line(look *k)
{
    char n[32];
    cdr_text *t = k->text;
    const char *family = k->m ? cdr_model_get_info(k->m)->name : "no known family";
    cdr_text_printf(t, "checkpoint, Hugging Face layout, %s: ", family);
    if (cdr_hf_count(k->d) == 0) {
        cdr_text_printf(t, "no weights\n");
        return;
    }
    cdr_text_printf(t, "%d shard%s", cdr_hf_shards(k->d), cdr_hf_shards(k->d) == 1 ? "" : "s");
    if (k->there < cdr_hf_shards(k->d)) cdr_text_printf(t, " (%d present)", k->there);
    cdr_format_count(n, cdr_hf_count(k->d));
    cdr_text_printf(t, ", %s tensors", n);
    if (k->counted) {
        cdr_format_bytes(n, k->bytes);
        cdr_text_printf(t, ", %s", n);
    }
    const char *sep = ": ";
    for (int i = 0; i < CDR__NAMES_FORMATS; i++) {
        if (k->format[i].tensors == 0) continue;
        const char *name = cdr_st_format_row(i)->name;
        cdr_format_count(n, k->format[i].tensors);
        cdr_text_printf(t, "%s%s %s%s", sep, n, name, strcmp(name, "U8") == 0 && k->names.n_packed > 0 ? " (MXFP4 experts)" : "");
        sep = ", ";
    }
    cdr_text_printf(t, "%s\n", k->counted ? "" : k->m ? " (dtypes by name, headers not read)" : " (headers not read)");
}

const char *cdr__quirks(const cdr_model *m, cdr_pool *pool, cdr_jw *w)
{
    const char *list = "", *sep = "";
    int64_t last = -1;
    if (cdr_model_index_base(m) == 1) {
        list = "one-based layer lists";
        sep = ", ";
        cdr_jw_str(w, NULL, list);
    }
    for (int64_t i = 0; i < cdr_model_params(m) && last < 0; i++) {
        cdr_model_row r = cdr_model_stored(m, i);
        if (!r.padded) continue;
        const char *leaf = strrchr(r.name, '.');
        cdr_model_part p = cdr_model_param_part(m, i);
        const char *q = cdr_pool_printf(pool, "%s stored %lld (%lld live)", leaf ? leaf + 1 : r.name, (long long)r.n[0], (long long)p.n[0]);
        list = cdr_pool_printf(pool, "%s%s%s", list, sep, q);
        cdr_jw_str(w, NULL, q);
        last = i;
    }
    return list;
}

static void second_line(look *k)
{
    const cdr_model_info *f = cdr_model_get_info(k->m);
    cdr_model_text x = cdr_model_get_text(k->m);
    cdr_text *t = k->text;
    cdr_text_printf(t, "%d layers (", f->n_layers);
    for (int i = 0; i < f->n_kinds; i++) cdr_text_printf(t, "%s%d %s", i ? ", " : "", f->kind[i].n, f->kind[i].kind);
    cdr_text_printf(t, ")");
    if (f->moe.n > 0) cdr_text_printf(t, ", %d experts top-%d", f->moe.experts, f->moe.top_k);
    cdr_text_printf(t, "; %s", x.type);
    if (x.base > 0) cdr_text_printf(t, " %d + %d", x.base, x.special);
    cdr_text_printf(t, "; %s", x.chat);
    cdr_jw_begin(k->w, "quirks", '[');
    const char *quirks = cdr__quirks(k->m, k->pool, k->w);
    cdr_jw_end(k->w, ']');
    if (*quirks) cdr_text_printf(t, "; %s", quirks);
    if (cdr_hf_count(k->d) > 0) cdr_text_printf(t, "; unknown %lld, missing %lld", (long long)k->names.n_unknown, (long long)k->names.n_missing);
    cdr_text_printf(t, "\n");
    const char *const *note;
    for (int i = 0; i < cdr_model_notes(k->m, &note); i++) cdr_text_printf(t, "%s\n", note[i]);
}

static void list_names(look *k, const char *what, int64_t n, const char *const *names)
{
    if (n == 0 || cdr_hf_count(k->d) == 0) return;
    cdr_text_printf(k->text, "%s: ", what);
    for (int i = 0; i < CDR_MIN(n, CDR__NAMES_LISTED); i++) cdr_text_printf(k->text, "%s%s", i ? ", " : "", names[i]);
    cdr_text_printf(k->text, "%s\n", n > CDR__NAMES_LISTED ? ", ..." : "");
}

static void json_counts(look *k)
{
    cdr_jw *w = k->w;
    cdr_jw_int(w, "shards", cdr_hf_shards(k->d));
    cdr_jw_int(w, "shards_present", k->there);
    cdr_jw_int(w, "tensors", cdr_hf_count(k->d));
    if (k->counted) cdr_jw_int(w, "size_bytes", k->bytes);
    cdr_jw_bool(w, "headers_read", k->counted);
    cdr_jw_begin(w, "dtypes", '{');
    for (int i = 0; i < CDR__NAMES_FORMATS; i++) if (k->format[i].tensors) cdr_jw_int(w, cdr_st_format_row(i)->name, k->format[i].tensors);
    cdr_jw_end(w, '}');
}

static void json_names(look *k, const char *key, int64_t n, const char *const *names)
{
    cdr_jw_int(k->w, key, n);
    cdr_jw_begin(k->w, cdr_pool_printf(k->pool, "%s_names", key), '[');
    for (int i = 0; i < CDR_MIN(n, CDR__NAMES_LISTED); i++) cdr_jw_str(k->w, NULL, names[i]);
    cdr_jw_end(k->w, ']');
}

static void json_model(look *k)
{
    const cdr_model_info *f = cdr_model_get_info(k->m);
    cdr_model_text x = cdr_model_get_text(k->m);
    cdr_jw *w = k->w;
    const char *const *note;
    int n = cdr_model_notes(k->m, &note);
    cdr_jw_str(w, "model", f->name);
    cdr_jw_str(w, "family", f->family);
    cdr_jw_str(w, "matched_by", k->match.name ? k->match.by : "model.yaml");
    cdr_jw_int(w, "parameters", f->n_params);
    cdr_jw_int(w, "active_parameters", f->n_active);
    cdr_jw_u64hex(w, "description_hash", f->hash);
    cdr_jw_begin(w, "layers", '{');
    for (int i = 0; i < f->n_kinds; i++) cdr_jw_int(w, f->kind[i].kind, f->kind[i].n);
    cdr_jw_end(w, '}');
    cdr_jw_int(w, "experts", f->moe.experts);
    cdr_jw_int(w, "top_k", f->moe.top_k);
    cdr_jw_str(w, "experts_as", k->names.n_packed ? "MXFP4" : k->names.n_fp8 ? "FP8_128" : "BF16");
    cdr_jw_begin(w, "tokenizer", '{');
    cdr_jw_str(w, "type", x.type);
    cdr_jw_int(w, "base", x.base);
    cdr_jw_int(w, "special", x.special);
    cdr_jw_end(w, '}');
    cdr_jw_str(w, "chat", x.chat);
    cdr_jw_begin(w, "notes", '[');
    for (int i = 0; i < n; i++) cdr_jw_str(w, NULL, note[i]);
    cdr_jw_end(w, ']');
    cdr_jw_int(w, "used", k->names.n_used);
    cdr_jw_int(w, "carried", k->names.n_carried);
    json_names(k, "unknown", k->names.n_unknown, k->names.unknown);
    json_names(k, "missing", cdr_hf_count(k->d) ? k->names.n_missing : 0, k->names.missing);
}

static cdr_status list_tensors(look *k, cdr_err *err)
{
    int64_t n = 0;
    cdr_jw_begin(k->w, "listed", '[');
    for (int64_t i = 0; i < cdr_hf_count(k->d); i++) {
        cdr_hf_tensor t;
        if (!cdr__name_fits(k->o->tensors, cdr_hf_name(k->d, i)) || ++n > MAX_LINES) continue;
        CDR_TRY(cdr_hf_tensor_at(k->d, i, &t, err));
        cdr__tensor_line(t.t, t.shard, k->text, k->w);
    }
    cdr_jw_end(k->w, ']');
    cdr_jw_int(k->w, "matching", n);
    if (n == 0) CDR_FAIL_ID(err, CDR_EUSER, "inspect.no-match", "--tensors: \"%s\" matches none of the %lld tensors of %s. * stands for any text; without one, any "
        "name that holds it",
                            k->o->tensors, (long long)cdr_hf_count(k->d), k->o->path);
    if (n > MAX_LINES) cdr_text_printf(k->text, "and %lld more\n", (long long)(n - MAX_LINES));
    return CDR_OK;
}

static void show_config(look *k)
{
    cdr_jw_begin(k->w, "sizes", '{');
    for (int64_t i = 0; i < cdr_model_sizes(k->m); i++) {
        const char *from, *value, *name = cdr_model_size(k->m, i, &value, &from);
        cdr_text_printf(k->text, "%-18s %-24s %s\n", name, value, from ? from : "");
        cdr_jw_str(k->w, name, value);
    }
    cdr_jw_end(k->w, '}');
}

static cdr_status write_look(look *k, cdr_err *err)
{
    first_line(k);
    cdr_jw_begin(k->w, NULL, '{');
    cdr_jw_str(k->w, "kind", "checkpoint");
    cdr_jw_str(k->w, "path", k->o->path);
    json_counts(k);
    if (k->m) {
        second_line(k);
        json_model(k);
        list_names(k, "unknown", k->names.n_unknown, k->names.unknown);
        list_names(k, "missing", k->names.n_missing, k->names.missing);
        if (k->o->config) show_config(k);
    } else {
        cdr_text_printf(k->text, "%s\n", k->why.text);
        cdr_jw_str(k->w, "model", NULL);
        cdr_jw_str(k->w, "why", k->why.text);
        cdr_jw_str(k->w, "nearest", k->match.nearest);
    }
    cdr_status st = k->o->tensors ? list_tensors(k, err) : CDR_OK;
    if (st == CDR_OK) cdr_jw_end(k->w, '}');
    return st;
}

cdr_status cdr__inspect_checkpoint(const cdr__inspect_opts *o, cdr_text *text, cdr_jw *w, cdr_err *err)
{
    look k = { .o = o, .pool = cdr_pool_new(), .text = text, .w = w };
    cdr_status st = open_all(&k, err);
    if (st == CDR_OK) st = write_look(&k, err);
    if (k.d) cdr_hf_close(k.d);
    cdr_pool_free(k.pool);
    return st;
}
