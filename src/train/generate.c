/* generate.c: text from the model: ids are fed to the generate program, and the next one is picked from its logits. It runs between
 * steps, in the memory that a step leaves free, and changes no bit of what trains.
 */
#include "train/generate.h"
#include <math.h>
#include <stdlib.h>

cdr_sample_opts cdr__sample_opts(const cdr_recipe *r)
{
    return (cdr_sample_opts){ r->generate.max_new_tokens, r->generate.temperature, r->generate.top_p, r->generate.top_k, (uint64_t)r->generate.seed, &r->generate.stop };
}

typedef struct { float logit; int32_t id; } candidate;

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Greedy at temperature 0; else top-k, then top-p, then a draw keyed by (seed, position). Ties: lower id first. */
static int32_t pick(const cdr_sample_opts *o, const float *logits, int64_t n, candidate *c, int64_t position)
{
    for (int64_t i = 0; i < n; i++) c[i] = (candidate){ logits[i], (int32_t)i };
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (o->temperature <= 0) return c[0].id;
    int64_t k = o->top_k > 0 ? CDR_MIN(o->top_k, n) : n;
    double total = 0, kept = 0;
    for (int64_t i = 0; i < k; i++) total += exp(((double)c[i].logit - (double)c[0].logit) / o->temperature);
    int64_t m = 0;
    while (m < k && (m == 0 || kept < o->top_p * total)) kept += exp(((double)c[m++].logit - (double)c[0].logit) / o->temperature);
    double u = (double)cdr_rng_uniform((cdr_rng_key){ o->seed, 0x73616d706c65, 0 }, (uint64_t)position) * kept, at = 0;
    for (int64_t i = 0; i < m; i++) {
        at += exp(((double)c[i].logit - (double)c[0].logit) / o->temperature);
        if (u < at) return c[i].id;
    }
    return c[m - 1].id;
}

/* ids[first, first + n) at positions first..: one turn of the generate program; logits of the last row */
static cdr_status feed(cdr_session *s, const int32_t *ids, int64_t first, int32_t n, float *logits, cdr_err *err)
{
    int64_t T = s->opts.gen_T;
    for (int64_t t = 0; t < T; t++) {
        bool live = t < n;
        s->tokens[t] = live ? ids[first + t] : 0;
        s->start[t] = live ? 0 : 1;              /* start > pos: an idle row */
        s->pos[t] = live ? (int32_t)(first + t) : 0;
    }
    size_t bytes = sizeof *ids * (size_t)T;
    cdr_exec_put(s->exec, CDR_PROG_GENERATE, "tokens", 0, s->tokens, bytes);
    cdr_exec_put(s->exec, CDR_PROG_GENERATE, "start", 0, s->start, bytes);
    cdr_exec_put(s->exec, CDR_PROG_GENERATE, "pos", 0, s->pos, bytes);
    cdr_exec_put(s->exec, CDR_PROG_GENERATE, "n_live", 0, &n, sizeof n);
    CDR_TRY(cdr_exec_run(s->exec, CDR_PROG_GENERATE, err));
    cdr_exec_get(s->exec, CDR_PROG_GENERATE, "logits", 0, logits, sizeof *logits * (size_t)(T * s->info->vocab));
    return CDR_OK;
}

/* Some are greater than all others, or an order of them means nothing. */
static cdr_status check_logits(const cdr_session *s, const float *logits, int64_t position, cdr_err *err)
{
    float top = -INFINITY;
    bool broken = false;
    for (int64_t i = 0; i < s->info->vocab; i++) {
        broken = broken || isnan(logits[i]);
        top = fmaxf(top, logits[i]);
    }
    if (!broken && isfinite(top)) return CDR_OK;
    CDR_FAIL_ID(err, CDR_ENUMERIC, "generate.nonfinite", "logits of token %lld are not finite, so none can be picked: a weight is not, or a sum overflows in %s. Try "
                "precision.compute=f32; if that changes nothing, take the weights from their source again", (long long)position, cdr_dtype_row(s->opts.compute)->name);
}

bool cdr__cut_at_stop(const cdr_strings *stop, cdr_text *text, size_t from)
{
    size_t cut = text->n;
    for (int i = 0; stop && i < stop->n; i++) {
        size_t n = strlen(stop->s[i]);
        const char *at = n > 0 && text->n > from ? memmem(text->s + from, text->n - from, stop->s[i], n) : NULL;
        if (at) cut = CDR_MIN(cut, (size_t)(at - text->s));
    }
    bool found = cut < text->n;
    if (found) text->s[text->n = cut] = 0;
    return found;
}

static bool ends(const cdr_session *s, const cdr_said *x, int32_t id)
{
    for (int i = 0; i < x->n_stop; i++)
        if (x->stop[i] == id) return true;
    return x->n_stop == 0 && id == cdr_tokenizer_eos(s->tok);
}

cdr_status cdr__model_say(cdr_session *s, const cdr_sample_opts *o, cdr_said *x, cdr_err *err)
{
    int64_t W = s->info->vocab, S = s->opts.gen_S, T = s->opts.gen_T, n_new = 0;
    if (x->n >= S)
        CDR_FAIL_ID(err, CDR_EUSER, "generate.too-long", "--prompt: %lld tokens, the cache holds %lld (train.sequence_length). Shorten the prompt",
                    (long long)x->n, (long long)S);
    float *logits = cdr_alloc(sizeof *logits * (size_t)(T * W));
    candidate *c = cdr_alloc(sizeof *c * (size_t)W);
    cdr_status st = CDR_OK;
    while (st == CDR_OK && n_new < o->max_new_tokens && x->n < S) {
        int32_t k = (int32_t)CDR_MIN(T, x->n - x->n_fed);
        st = feed(s, x->ids, x->n_fed, k, logits, err);
        x->n_fed += k;
        if (st != CDR_OK || x->n_fed < x->n) continue;
        st = check_logits(s, logits + (k - 1) * W, x->n, err);
        if (st != CDR_OK) break;
        int32_t id = pick(o, logits + (k - 1) * W, W, c, x->n);
        if (ends(s, x, id)) break;
        x->ids[x->n++] = id;
        n_new++;
        if (x->said && !x->said(x->ctx, id)) break;
    }
    cdr_free(logits);
    cdr_free(c);
    return st;
}

typedef struct { const cdr_session *s; const cdr_sample_opts *o; cdr_text *text; size_t from; } sampled;

static bool add_text(void *ctx, int32_t id)
{
    sampled *x = ctx;
    cdr_tokenizer_decode(x->s->tok, &id, 1, false, x->text);
    return !cdr__cut_at_stop(x->o->stop, x->text, x->from);
}

cdr_status cdr__sample(cdr_session *s, const cdr_sample_opts *o, const char *prompt, cdr_text *text, int64_t *n_new, cdr_err *err)
{
    size_t n_bytes = strlen(prompt);
    int32_t *ids = cdr_alloc(sizeof *ids * ((size_t)cdr_tokenizer_room(s->tok, n_bytes) + (size_t)s->opts.gen_S + 2));
    sampled to = { s, o, text, text->n };
    cdr_said x = { .ids = ids, .n = cdr_tokenizer_encode(s->tok, prompt, n_bytes, ids), .said = add_text, .ctx = &to };
    if (x.n == 0) x.n = cdr_tokenizer_encode(s->tok, "\n", 1, ids);
    int64_t n_prompt = x.n;
    cdr_status st = cdr__model_say(s, o, &x, err);
    *n_new = x.n - n_prompt;
    cdr_free(ids);
    return st;
}
