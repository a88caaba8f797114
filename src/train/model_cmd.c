/* model_cmd.c: eval: held-out loss of a model from a run, a checkpoint or a directory. */
#include "train/model_open.h"
#include <stdlib.h>

static cdr_status eval_one(const cdr_eval_args *a, const char *model, const char *adapter, cdr_eval_sum *sum, int *rank, cdr_err *err)
{
    cdr__opened m;
    cdr_session *s = &m.s;
    cdr_status st = cdr__model_open(&m, model, &a->common, err);
    if (st == CDR_OK && !a->data && !m.ck)
        st = cdr_fail(err, CDR_EUSER, "eval.no-data", "cadre eval %s: a directory of weights has no held-out data of its own. Name a file with --data", model);
    if (st == CDR_OK && a->data) {
        cdr_source *src = cdr_pool_alloc(s->pool, sizeof *src);
        *src = (cdr_source){ .path = a->data, .name = a->data, .format = CDR_FORMAT_AUTO, .weight = 1, .max_samples = CDR_UNSET };
        s->r.data.train = s->r.data.eval = (cdr_sources){ src, 1, false };
        s->r.data.eval_fraction = 0;
    }
    if (st == CDR_OK) st = cdr__model_layout(&m, err);
    if (st == CDR_OK) st = cdr__session_data(s, err);
    if (st == CDR_OK) st = cdr__model_load(&m, adapter, err);
    if (st == CDR_OK) st = cdr__evaluate(s, a->n_tokens > 0 ? a->n_tokens : CDR_ALL, sum, err);
    *rank = s->rank;
    cdr__model_close(&m);
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

