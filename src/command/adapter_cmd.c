/* adapter_cmd.c: export and verify-adapter: an adapter for a consumer, and what a consumer makes of it (spec/interface.md, 2.2, 2.4). */
#include "train/adapter.h"
#include "command/export_hf.h"

/* ---- export ------------------------------------------------------------------------------------------------------------------------------ */

static void export_text(cdr_text *t, const cdr_export_args *a, const cdr_lora_out *o, const cdr_lora_report *r)
{
    cdr_text_printf(t, "adapter   %s", a->format);
    if (r->rank > 0) cdr_text_printf(t, ", uniform rank %d", r->rank);
    if (r->padded > 0 || r->folded > 0) {
        cdr_text_printf(t, " (");
        if (r->padded > 0) cdr_text_printf(t, "%lld modules padded", (long long)r->padded);
        if (r->folded > 0) cdr_text_printf(t, "%s%lld scales folded into B", r->padded > 0 ? ", " : "", (long long)r->folded);
        cdr_text_printf(t, ")");
    }
    cdr_text_printf(t, ", %lld tensors", (long long)r->tensors);
    if (r->filled > 0) cdr_text_printf(t, " (%lld of zeros for fused siblings)", (long long)r->filled);
    if (o->has_hash) cdr_text_printf(t, "; base hash %016llx", (unsigned long long)o->base_hash);
    else cdr_text_printf(t, "; base hash unknown");
    cdr_text_printf(t, "; re-read: %lld bind\n", (long long)r->tensors);
    if (r->dropped > 0) cdr_text_printf(t, "dropped   %lld keys: %s\n", (long long)r->dropped, r->dropped_what);
    if (strcmp(a->format, "gguf") == 0 && strncmp(cdr_model_get_info(o->model)->family, "kimi_k3", 7) == 0)
        cdr_text_printf(t, "note      GGUF adapters of Kimi K3 are experimental: names as llama.cpp's kimi-k3 has them, not tried against it\n");
}

static void export_json(cdr_text *t, const cdr_export_args *a, const cdr_lora_out *o, const cdr_lora_report *r)
{
    cdr_jw w = { .t = t };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "path", a->out);
    cdr_jw_str(&w, "format", a->format);
    cdr_jw_int(&w, "tensors", r->tensors);
    cdr_jw_int(&w, "rank", r->rank);
    cdr_jw_int(&w, "padded", r->padded);
    cdr_jw_int(&w, "folded", r->folded);
    cdr_jw_int(&w, "filled", r->filled);
    cdr_jw_int(&w, "dropped", r->dropped);
    cdr_jw_str(&w, "dropped_what", r->dropped_what);
    cdr_jw_int(&w, "size_bytes", r->bytes);
    if (o->has_hash) cdr_jw_u64hex(&w, "base_hash", o->base_hash);
    else cdr_jw_null(&w, "base_hash");
    cdr_jw_end(&w, '}');
}

static cdr_status export_in(cdr_pool *pool, const cdr_export_args *a, cdr_result *r, cdr_err *err)
{
    cdr_model *m;
    cdr_lora_set set;
    cdr_lora_report rep;
    CDR_TRY(cdr__adapter_open(a->source, a->base, pool, &m, &set, err));
    cdr_lora_out o = { .format = a->format, .set = &set, .model = m, .rank = a->rank, .allow_drop = a->allow_drop, .base_hash = set.base_hash, .has_hash = set.has_hash };
    o.base_name = cdr_model_dir(m) ? cdr_model_dir(m) : set.base ? set.base : cdr_model_get_info(m)->name;
    if (a->base) {                                       /* the user says which base: its hash must be the adapter's, and is passed on */
        bool known;
        CDR_TRY(cdr__base_agrees(m, &set, "--base", err));
        if (!o.has_hash) {
            CDR_TRY(cdr__base_hash(m, &o.base_hash, &known, err));
            o.has_hash = known;
        }
    }
    CDR_TRY(cdr_lora_write(a->out, &o, &rep, err));
    cdr_text text = { 0 }, json = { 0 };
    export_text(&text, a, &o, &rep);
    export_json(&json, a, &o, &rep);
    r->text = text.s;
    r->json = json.s;
    return CDR_OK;
}

cdr_status cdr_export(const cdr_export_args *a, cdr_result *r, cdr_err *err)
{
    if (strcmp(a->format, "hf") == 0) return cdr__export_hf(a, r, err);
    if (a->experts) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--experts: is of --format hf; an adapter of experts is written as it is");
    cdr_pool *pool = cdr_pool_new();
    cdr_status st = export_in(pool, a, r, err);
    cdr_pool_free(pool);
    return st;
}

/* ---- verify-adapter -------------------------------------------------------------------------------------------------------------------- */

enum { MAX_CONSUMERS = 16 };
typedef struct {
    int64_t keys, halves, nonzero;                     /* B: how many tensors, and how many of them hold another value than 0 */
    bool has_hash, known, agrees; uint64_t hash, base_hash;
    cdr_lora_serve serve[MAX_CONSUMERS]; int n;
} findings;

static bool any(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) if (x[i] != 0) return true;
    return false;
}

static void count_b(const cdr_lora_set *set, findings *f)
{
    for (int i = 0; i < set->n; i++) {
        const cdr_lora_pair *p = &set->pair[i];
        int64_t each = p->N * p->rank, n = p->layout == CDR_LORA_EXPERTS || p->layout == CDR_LORA_RUN ? p->n_b : p->n_keys > 0;
        f->keys += p->n_keys;
        f->halves += n;
        if (n == 1 || p->n_b == 1) f->nonzero += n * any(p->b, p->n_b * each);
        else for (int64_t k = 0; k < n; k++) f->nonzero += any(p->b + k * each, each);
    }
}

static cdr_status consumers(const cdr_verify_adapter_args *a, const cdr_lora_set *set, const cdr_model *m, cdr_pool *pool, findings *f, cdr_err *err)
{
    int n_all;
    const char *const *all = cdr_lora_consumers(&n_all);
    if (!a->consumers) {
        for (; f->n < n_all; f->n++) CDR_TRY(cdr_lora_serve_set(set, m, all[f->n], &f->serve[f->n], err));
        return CDR_OK;
    }
    char *list = cdr_pool_strdup(pool, a->consumers), *save = NULL;
    for (char *s = strtok_r(list, ",", &save); s && f->n < MAX_CONSUMERS; s = strtok_r(NULL, ",", &save), f->n++)
        CDR_TRY(cdr_lora_serve_set(set, m, s, &f->serve[f->n], err));
    if (f->n == 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre verify-adapter: --for names no consumer. Name some, comma separated: peft,vllm,sglang,gguf");
    return CDR_OK;
}

static void verify_text(cdr_text *t, const findings *f)
{
    char keys[32], halves[32], nonzero[32];
    cdr_format_count(keys, f->keys);
    cdr_format_count(halves, f->halves);
    cdr_format_count(nonzero, f->nonzero);
    cdr_text_printf(t, "%s of %s keys bind to base tensors, shapes agree, B non-zero in %s of %s, base hash %s\n", keys, keys, nonzero, halves,
                    !f->has_hash ? "unknown (the adapter does not say)" : !f->known ? "unknown (the base holds no weights)" : f->agrees ? "agrees" : "DIFFERS");
    for (int i = 0; i < f->n; i++) {
        const cdr_lora_serve *s = &f->serve[i];
        cdr_text_printf(t, "%s: binds %lld", s->consumer, (long long)s->bound);
        if (s->unknown > 0) cdr_text_printf(t, " (%lld of them unconfirmed)", (long long)s->unknown);
        if (s->dropped > 0) cdr_text_printf(t, ", DROPS %lld (%s)", (long long)s->dropped, s->what);
        cdr_text_printf(t, "\n");
    }
}

static void verify_json(cdr_text *t, const findings *f, const cdr_lora_set *set, const cdr_model *m)
{
    cdr_jw w = { .t = t };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_int(&w, "keys", f->keys);
    cdr_jw_int(&w, "bound", f->keys);
    cdr_jw_int(&w, "b_tensors", f->halves);
    cdr_jw_int(&w, "b_nonzero", f->nonzero);
    cdr_jw_begin(&w, "base_hash", '{');
    if (f->has_hash) cdr_jw_u64hex(&w, "adapter", f->hash);
    else cdr_jw_null(&w, "adapter");
    if (f->known) cdr_jw_u64hex(&w, "base", f->base_hash);
    else cdr_jw_null(&w, "base");
    cdr_jw_bool(&w, "agrees", f->agrees);
    cdr_jw_end(&w, '}');
    cdr_jw_begin(&w, "consumers", '[');
    for (int i = 0; i < f->n; i++) {
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "consumer", f->serve[i].consumer);
        cdr_jw_int(&w, "bound", f->serve[i].bound);
        cdr_jw_int(&w, "dropped", f->serve[i].dropped);
        cdr_jw_int(&w, "unconfirmed", f->serve[i].unknown);
        cdr_jw_str(&w, "what", f->serve[i].what);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, ']');
    cdr_jw_begin(&w, "modules", '[');
    for (int i = 0; i < set->n; i++) {
        const cdr_lora_pair *p = &set->pair[i];
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "tensor", cdr_model_param(m, p->i_param));
        cdr_jw_int(&w, "keys", p->n_keys);
        cdr_jw_int(&w, "rank", p->rank);
        cdr_jw_real(&w, "scale", (double)p->scale);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, ']');
    cdr_jw_end(&w, '}');
}

/* What is found wrong is a result, and then an error: exit 1. */
static cdr_status verdict(const cdr_verify_adapter_args *a, const findings *f, cdr_err *err)
{
    if (f->has_hash && f->known && !f->agrees)
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.other-base", "%s: was not trained on the weights of %s (hash %016llx) but on others (hash %016llx), and a "
                    "difference of weights fits "
                    "only its own base. Name the base that it was trained on", a->adapter, a->base, (unsigned long long)f->base_hash, (unsigned long long)f->hash);
    if (f->nonzero == 0) CDR_FAIL_ID(err, CDR_EUSER, "adapter.zero", "%s: B is zero everywhere: the adapter does nothing. Train it for at least one step", a->adapter);
    for (int i = 0; i < f->n; i++)
        if (f->serve[i].dropped > 0)
            CDR_FAIL_ID(err, CDR_EUSER, "adapter.drop", "%s: %s drops %lld of %lld keys. Export for it, leave them out of lora.targets, or merge", a->adapter,
                        f->serve[i].consumer, (long long)f->serve[i].dropped, (long long)f->serve[i].keys);
    return CDR_OK;
}

static cdr_status verify_in(cdr_pool *pool, const cdr_verify_adapter_args *a, cdr_result *r, cdr_err *err)
{
    cdr_model *m;
    cdr_lora_set set;
    findings f = { .keys = 0 };
    CDR_TRY(cdr__adapter_open(a->adapter, a->base, pool, &m, &set, err));
    count_b(&set, &f);
    f.has_hash = set.has_hash;
    f.hash = set.base_hash;
    CDR_TRY(cdr__base_hash(m, &f.base_hash, &f.known, err));
    f.agrees = f.has_hash && f.known && f.hash == f.base_hash;
    CDR_TRY(consumers(a, &set, m, pool, &f, err));
    cdr_text text = { 0 }, json = { 0 };
    verify_text(&text, &f);
    verify_json(&json, &f, &set, m);
    r->text = text.s;
    r->json = json.s;
    return verdict(a, &f, err);
}

cdr_status cdr_verify_adapter(const cdr_verify_adapter_args *a, cdr_result *r, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_status st = verify_in(pool, a, r, err);
    cdr_pool_free(pool);
    return st;
}
