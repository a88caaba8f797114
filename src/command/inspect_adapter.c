/* inspect_adapter.c: what an adapter directory holds, from its headers: layout, ranks, size, base. No model is needed, nothing is bound. */
#include "command/inspect.h"
#include "train/adapter.h"

typedef struct { int64_t tensors, bytes, experts_2d, experts_3d, wrapped, shared, other; int dtype; bool mixed; } counts;

/* experts.17.w1.lora_A, experts.w1.lora_A, experts.lora_A or experts.base_layer.lora_A. */
static void count_one(const cdr_st_tensor *t, counts *c)
{
    const char *at = strstr(t->name, ".experts.");
    const char *rest = at ? at + strlen(".experts.") : "";
    c->tensors++;
    c->bytes += (int64_t)(t->end - t->begin);
    c->mixed = c->mixed || (c->tensors > 1 && c->dtype != t->dtype);
    c->dtype = t->dtype;
    if (!strstr(t->name, ".lora_")) c->other++;
    else if (!at) return;
    else if (*rest >= '0' && *rest <= '9') c->experts_2d++;
    else if (strncmp(rest, "lora_", 5) == 0 || strncmp(rest, "base_layer.", 11) == 0) c->wrapped++;
    else {
        c->experts_3d++;
        c->shared += t->n_dim == 3 && t->n[0] == 1;
    }
}

static const char *layout_of(const counts *c)
{
    return c->wrapped ? "PEFT, experts stacked (target_parameters)" : c->shared ? "3-D experts, outer factors shared" : c->experts_3d ? "3-D experts"
           : c->experts_2d ? "PEFT, one pair for each expert" : "PEFT";
}

static void print(const char *path, const counts *c, const cdr__lora_config *cfg, const char *hash, cdr_text *text, cdr_jw *w)
{
    char tensors[32], bytes[32];
    const char *dtype = c->mixed ? "mixed dtypes" : c->dtype >= 0 ? cdr_dtype_row(c->dtype)->safetensors : "unknown dtype";
    cdr_format_count(tensors, c->tensors);
    cdr_format_bytes(bytes, c->bytes);
    cdr_text_printf(text, "adapter, %s layout: %s tensors, %s, %s; rank %.0f, alpha %g%s%s\n", layout_of(c), tensors, bytes, dtype, cfg->r, cfg->alpha,
                    cfg->rslora ? ", rsLoRA" : "", cfg->n_rank + cfg->n_alphas > 0 ? ", others by pattern" : "");
    cdr_text_printf(text, "base %s, hash %s; %lld tensors that are no LoRA factor\n", cfg->base ? cfg->base : "not named", hash ? hash : "unknown", (long long)c->other);
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "kind", "adapter");
    cdr_jw_str(w, "path", path);
    cdr_jw_str(w, "layout", layout_of(c));
    cdr_jw_int(w, "tensors", c->tensors);
    cdr_jw_int(w, "size_bytes", c->bytes);
    cdr_jw_str(w, "dtype", dtype);
    cdr_jw_real(w, "rank", cfg->r);
    cdr_jw_real(w, "alpha", cfg->alpha);
    cdr_jw_bool(w, "rslora", cfg->rslora);
    cdr_jw_int(w, "patterns", cfg->n_rank + cfg->n_alphas);
    cdr_jw_str(w, "base", cfg->base);
    cdr_jw_str(w, "base_hash", hash);
    cdr_jw_int(w, "unknown", c->other);
    cdr_jw_begin(w, "target_modules", '[');
    for (int64_t i = 0; i < CDR_MIN(cfg->n_target, (int64_t)64); i++) cdr_jw_str(w, NULL, cfg->target[i]);
    if (cfg->target_regex) cdr_jw_str(w, NULL, cfg->target_regex);
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
}

static cdr_status inspect(cdr_pool *pool, const char *path, cdr_text *text, cdr_jw *w, cdr_err *err)
{
    char *config = NULL;
    size_t bytes;
    cdr__lora_config cfg;
    cdr_st *st = NULL;
    counts c = { .dtype = -1 };
    const char *file = cdr_pool_printf(pool, "%s/adapter_config.json", path);
    CDR_TRY(cdr_file_read(file, 64 << 20, &config, &bytes, err));
    cdr_status s = cdr__lora_config_parse(file, config, bytes, pool, &cfg, err);
    cdr_free(config);
    CDR_TRY(s);
    s = cdr_st_open(cdr_pool_printf(pool, "%s/adapter_model.safetensors", path), &st, err);
    for (int64_t i = 0; s == CDR_OK && i < cdr_st_count(st); i++) count_one(cdr_st_at(st, i), &c);
    if (s == CDR_OK) print(path, &c, &cfg, cdr_st_meta(st, "cadre.base_hash"), text, w);
    cdr_st_close(st);
    cdr__lora_config_close(&cfg);
    return s;
}

cdr_status cdr__inspect_adapter(const char *path, cdr_text *text, cdr_jw *json, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_status st = inspect(pool, path, text, json, err);
    cdr_pool_free(pool);
    return st;
}
