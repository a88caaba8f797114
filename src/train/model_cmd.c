/* model_cmd.c: eval and generate: a model from a run directory or one of its checkpoints, without optimizer states. */
#include "train/adapter.h"
#include <stdlib.h>
#include <unistd.h>

/* The recipe that the checkpoint holds, with this command's flags on top. */
static cdr_status open_checkpoint(cdr_session *s, const char *path, const cdr_common *c, cdr_ckpt **ck, cdr_err *err)
{
    memset(s, 0, sizeof *s);
    s->pool = cdr_pool_new();
    cdr_log_set_level(c->quiet ? CDR_LOG_ERROR : c->verbose ? CDR_LOG_DEBUG : CDR_LOG_INFO);
    CDR_TRY(cdr_ckpt_open(path, ck, err));
    const char *text = cdr_ckpt_recipe(*ck);
    cdr_recipe_text rt = { text, strlen(text), cdr_pool_printf(s->pool, "%s/recipe.yaml", cdr_ckpt_dir(*ck)), "run" };
    CDR_TRY(cdr_recipe_parse(&rt, c, s->pool, &s->r, err));
    CDR_TRY(cdr__session_model(s, err));
    return cdr__session_tokenizer(s, err);
}

/* Ranks of this command, whatever the run had: all of them shard, and hold as many experts each as they can. */
static cdr_status layout(cdr_session *s, cdr_err *err)
{
    cdr_comm_spec spec = { "auto", s->r.parallel.timeout };
    CDR_TRY(cdr_comm_open(&spec, &s->world, err));
    s->r.parallel.replicate = 1;
    s->r.parallel.shard = cdr_comm_size(s->world);
    while (s->r.parallel.shard % s->r.parallel.expert != 0) s->r.parallel.expert /= 2;
    s->r.ranks.n_micro = 1;
    cdr__session_mesh(s, cdr_comm_rank(s->world), cdr_comm_size(s->world));
    return CDR_OK;
}

static cdr_status open_model(cdr_session *s, cdr_ckpt *ck, const char *adapter, cdr_err *err)
{
    int kind = s->r.machine.device == CDR_USE_CUDA ? CDR_DEV_CUDA : CDR_DEV_CPU;
    int n_threads = cdr__session_threads(s, cdr_cpu_cores(), true);
    CDR_TRY(cdr_device_open(kind, kind == CDR_DEV_CUDA ? s->rank : 0, n_threads, &s->device, err));
    if (adapter) CDR_TRY(cdr__adapter_attach(s, adapter, err));
    CDR_TRY(cdr__session_opts(s, kind, s->device->isa, n_threads, err));
    s->opts.infer_only = true;
    s->opts.n_micro = 1;
    CDR_TRY(cdr_compile(&s->opts, &s->builder, s->pool, &s->bundle, err));
    CDR_TRY(cdr__session_device(s, err));
    cdr_restored at = { 0 };
    CDR_TRY(cdr__restore(s, ck, (cdr_restore_opts){ .states = false }, &at, err));
    return cdr__adapter_put(s, err);
}

/* ---- eval ---- */
static cdr_status eval_one(const cdr_eval_args *a, const char *model, const char *adapter, cdr_eval_sum *sum, int *rank, cdr_err *err)
{
    cdr_session s;
    cdr_ckpt *ck = NULL;
    cdr_status st = open_checkpoint(&s, model, &a->common, &ck, err);
    if (st == CDR_OK && a->data) {
        cdr_source *src = cdr_pool_alloc(s.pool, sizeof *src);
        *src = (cdr_source){ .path = a->data, .name = a->data, .format = CDR_FORMAT_AUTO, .weight = 1, .max_samples = CDR_UNSET };
        s.r.data.train = s.r.data.eval = (cdr_sources){ src, 1, false };
        s.r.data.eval_fraction = 0;
    }
    if (st == CDR_OK) st = layout(&s, err);
    if (st == CDR_OK) st = cdr__session_data(&s, err);
    if (st == CDR_OK) st = open_model(&s, ck, adapter, err);
    if (st == CDR_OK) st = cdr__evaluate(&s, a->n_tokens > 0 ? a->n_tokens : CDR_ALL, sum, err);
    *rank = s.rank;
    if (ck) cdr_ckpt_close(ck);
    cdr__session_close(&s);
    return st;
}

static void eval_text(cdr_text *t, const cdr_eval_sum *e)
{
    char n[32], b[32], bits[32] = "-";
    if (e->bytes > 0) snprintf(bits, sizeof bits, "%.3f", e->bits_per_byte);
    cdr_format_count(n, e->tokens);
    cdr_format_count(b, e->bytes);
    cdr_text_printf(t, "loss %.4f nats/token   perplexity %.3f   %s bits/byte   %s tokens, %s bytes, %.1f s\n", e->loss, e->perplexity, bits,
                    n, b, e->seconds);
}

static void eval_json(cdr_jw *w, const char *key, const cdr_eval_sum *e)
{
    cdr_jw_begin(w, key, '{');
    cdr_jw_real(w, "loss", e->loss);
    cdr_jw_real(w, "perplexity", e->perplexity);
    cdr_jw_real(w, "bits_per_byte", e->bits_per_byte);
    cdr_jw_int(w, "tokens", e->tokens);
    cdr_jw_int(w, "bytes", e->bytes);
    cdr_jw_real(w, "seconds", e->seconds);
    cdr_jw_end(w, '}');
}

cdr_status cdr_eval(const cdr_eval_args *a, cdr_result *r, cdr_err *err)
{
    cdr_eval_sum one, two = { 0 };
    int rank;
    CDR_TRY(eval_one(a, a->model, a->adapter, &one, &rank, err));
    if (a->compare) CDR_TRY(eval_one(a, a->compare, NULL, &two, &rank, err));
    if (rank != 0) return CDR_OK;
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    eval_text(&text, &one);
    if (!a->compare) {
        eval_json(&w, NULL, &one);
    } else {
        eval_text(&text, &two);
        cdr_text_printf(&text, "difference %+.4f nats/token, %+.4f bits/byte (second minus first)\n", two.loss - one.loss, two.bits_per_byte - one.bits_per_byte);
        cdr_jw_begin(&w, NULL, '{');
        eval_json(&w, "model", &one);
        eval_json(&w, "compare", &two);
        cdr_jw_end(&w, '}');
    }
    r->text = text.s;
    r->json = json.s;
    return CDR_OK;
}

/* ---- generate ---- */
static char *read_stdin(cdr_pool *pool)
{
    cdr_text t = { 0 };
    char block[4096];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0 && t.n < (1u << 20)) cdr_text_append(&t, block, n);
    char *out = cdr_pool_strdup(pool, t.s ? t.s : "");
    cdr_text_free(&t);
    return out;
}

static cdr_status generate_all(cdr_session *s, const cdr_generate_args *a, cdr_text *text, cdr_jw *w, cdr_err *err)
{
    cdr_sample_opts o = cdr__sample_opts(&s->r);
    static const char *const none[] = { "" };
    const char *const *prompts = a->n_prompts > 0 ? a->prompts : none;
    cdr_jw_begin(w, NULL, '[');
    for (int i = 0; i < CDR_MAX(a->n_prompts, 1); i++) {
        const char *prompt = strcmp(prompts[i], "-") == 0 ? read_stdin(s->pool) : prompts[i];
        cdr_text out = { 0 };
        int64_t n = 0, t0 = cdr_now_ns();
        CDR_TRY(cdr__sample(s, &o, prompt, &out, &n, err));
        double seconds = (double)(cdr_now_ns() - t0) * 1e-9;
        cdr_text_printf(text, "%s%s\n", prompt, out.s ? out.s : "");
        if (s->rank == 0 && !a->common.quiet && !a->common.json)
            fprintf(stderr, "[%lld tokens, %.0f tokens/s, %s, seed %llu]\n", (long long)n, (double)n / CDR_MAX(seconds, 1e-9), s->r.name,
                    (unsigned long long)o.seed);
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "prompt", prompt);
        cdr_jw_str(w, "text", out.s ? out.s : "");
        cdr_jw_int(w, "tokens", n);
        cdr_jw_real(w, "seconds", seconds);
        cdr_jw_end(w, '}');
        cdr_text_free(&out);
    }
    cdr_jw_end(w, ']');
    return CDR_OK;
}

cdr_status cdr_generate(const cdr_generate_args *a, cdr_result *r, cdr_err *err)
{
    cdr_session s;
    cdr_ckpt *ck = NULL;
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_status st = open_checkpoint(&s, a->model, &a->common, &ck, err);
    if (st == CDR_OK) st = layout(&s, err);
    if (st == CDR_OK) st = open_model(&s, ck, a->adapter, err);
    if (st == CDR_OK) st = generate_all(&s, a, &text, &w, err);
    if (st == CDR_OK && s.rank == 0) {
        r->text = text.s;
        r->json = json.s;
    } else {
        cdr_text_free(&text);
        cdr_text_free(&json);
    }
    if (ck) cdr_ckpt_close(ck);
    cdr__session_close(&s);
    return st;
}
