/* model_cmd.c: eval: held-out loss of a model from a run, a checkpoint or a directory. */
#include "command/answers.h"
#include <math.h>
#include <stdlib.h>

typedef struct { cdr_answers n; cdr_text text; } eval_extra;       /* of --answers: figures, and the lines that say them */

/* What a model said first, quoted in one line. */
static void quote(cdr_text *t, const char *label, const char *s)
{
    cdr_text_printf(t, "%s", label);
    for (int64_t i = 0; s[i] && i < 400; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '\n') cdr_text_printf(t, "\\n");
        else if (c >= 32 && c != 127) cdr_text_append(t, s + i, 1);
    }
    cdr_text_printf(t, "\n");
}

static void answers_text(cdr_text *t, const cdr_answers *w)
{
    cdr_text_printf(t, "answers   %lld greedy, %lld word for word, overlap of words (F1) %.3f, %.1f s\n", (long long)w->n, (long long)w->exact, w->f1, w->seconds);
    quote(t, "asked     ", w->prompt);
    quote(t, "said      ", w->said);
    quote(t, "given     ", w->given);
}

static void answers_json(cdr_jw *w, const cdr_answers *x)
{
    cdr_jw_begin(w, "answers", '{');
    cdr_jw_int(w, "n", x->n);
    cdr_jw_int(w, "exact", x->exact);
    cdr_jw_real(w, "word_f1", x->f1);
    cdr_jw_real(w, "seconds", x->seconds);
    cdr_jw_end(w, '}');
}

static cdr_status eval_one(const cdr_eval_args *a, const char *model, const char *adapter, cdr_eval_sum *sum, eval_extra *more, int *rank, cdr_err *err)
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
    if (st == CDR_OK) st = cdr__agree(s, cdr__session_data(s, err), err);
    if (st == CDR_OK) st = cdr__model_load(&m, adapter, err);
    if (st == CDR_OK) st = cdr__evaluate(s, a->n_tokens > 0 ? a->n_tokens : CDR_ALL, sum, err);
    if (st == CDR_OK && !isfinite(sum->loss))
        st = cdr_fail(err, CDR_ENUMERIC, "eval.nonfinite", "cadre eval %s: the loss is not finite: a weight is not, or a sum overflows in %s. Try "
                      "precision.compute=f32; if that changes nothing, take the weights from their source again", model, cdr_dtype_row(s->opts.compute)->name);
    if (st == CDR_OK && a->n_answers > 0) {
        cdr_answers said;
        st = cdr__answers(&m, a->n_answers, &said, err);
        if (st == CDR_OK) answers_text(&more->text, &said);
        said.prompt = said.said = said.given = NULL;              /* of the pool that goes */
        if (st == CDR_OK) more->n = said;
    }
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

static void eval_json(cdr_jw *w, const char *key, const cdr_eval_sum *e, const cdr_answers *said)
{
    cdr_jw_begin(w, key, '{');
    cdr_jw_real(w, "loss", e->loss);
    cdr_jw_real(w, "perplexity", e->perplexity);
    cdr_jw_real(w, "bits_per_byte", e->bits_per_byte);
    cdr_jw_int(w, "tokens", e->tokens);
    cdr_jw_int(w, "bytes", e->bytes);
    cdr_jw_real(w, "seconds", e->seconds);
    if (said->n > 0) answers_json(w, said);
    cdr_jw_end(w, '}');
}

cdr_status cdr_eval(const cdr_eval_args *a, cdr_result *r, cdr_err *err)
{
    cdr_eval_sum one, two = { 0 };
    int rank;
    eval_extra of_one = { 0 }, of_two = { 0 };
    cdr_status st = eval_one(a, a->model, a->adapter, &one, &of_one, &rank, err);
    if (st == CDR_OK && a->compare) st = eval_one(a, a->compare, NULL, &two, &of_two, &rank, err);
    if (st != CDR_OK || rank != 0) {
        cdr_text_free(&of_one.text);
        cdr_text_free(&of_two.text);
        return st;
    }
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    eval_text(&text, &one);
    if (of_one.text.n) cdr_text_append(&text, of_one.text.s, of_one.text.n);
    if (!a->compare) {
        eval_json(&w, NULL, &one, &of_one.n);
    } else {
        eval_text(&text, &two);
        if (of_two.text.n) cdr_text_append(&text, of_two.text.s, of_two.text.n);
        cdr_text_printf(&text, "difference %+.4f nats/token, %+.4f bits/byte (second minus first)\n", two.loss - one.loss, two.bits_per_byte - one.bits_per_byte);
        cdr_jw_begin(&w, NULL, '{');
        eval_json(&w, "model", &one, &of_one.n);
        eval_json(&w, "compare", &two, &of_two.n);
        cdr_jw_end(&w, '}');
    }
    cdr_text_free(&of_one.text);
    cdr_text_free(&of_two.text);
    r->text = text.s;
    r->json = json.s;
    return CDR_OK;
}

