/* evaluate.c: held-out loss, and text from the model. Both run programs of the step's bundle, between steps, in the
 * memory that a step's gradients and activations leave free; they change no bit of what trains. */
#include "train/session.h"
#include <math.h>
#include <stdlib.h>

/* Shards are summed by the host in shard order, so the figure has the same bits on every number of ranks. */
cdr_status cdr__evaluate(cdr_session *s, int64_t tokens, cdr_eval_sum *sum, cdr_err *err)
{
    memset(sum, 0, sizeof *sum);
    const cdr_data_stat *stat = cdr_data_stats(s->data);
    if (stat->eval_shards == 0)
        CDR_FAIL_ID(err, CDR_EDATA, "data.no-eval", "data.eval: there is no held-out data. Set data.eval_fraction, or name a file with --data");
    int64_t t0 = cdr_now_ns(), n = stat->eval_shards, bytes = sizeof(int32_t) * (size_t)s->T > 0 ? (int64_t)sizeof(int32_t) * s->T : 0;
    if (tokens > 0) n = CDR_MIN(n, cdr_ceil_div(tokens, s->T));
    double *losses = cdr_alloc(sizeof *losses * (size_t)s->n_ranks), loss = 0;
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < n && st == CDR_OK; i += s->n_ranks) {
        int64_t mine = CDR_MIN(i + s->rank, n - 1), trained, text_bytes;
        cdr_data_eval_shard(s->data, mine, s->tokens, s->targets, s->start, s->pos, &trained, &text_bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "tokens", 0, s->tokens, (size_t)bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "targets", 0, s->targets, (size_t)bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "start", 0, s->start, (size_t)bytes);
        for (int64_t t = 0; s->opts.loss_weights && t < s->T; t++) s->weights[t] = 1;        /* held-out loss is that of the tokens, whatever a turn weighs */
        if (s->opts.loss_weights) cdr_exec_put(s->exec, CDR_PROG_EVAL, "weights", 0, s->weights, (size_t)bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "pos", 0, s->pos, (size_t)bytes);
        st = cdr_exec_run(s->exec, CDR_PROG_EVAL, err);
        if (st != CDR_OK) break;
        cdr_exec_get(s->exec, CDR_PROG_EVAL, "sums", 0, losses, sizeof *losses * (size_t)s->n_ranks);
        for (int64_t r = 0; r < s->n_ranks && i + r < n; r++) {
            loss += losses[r];
            cdr_data_eval_shard(s->data, i + r, s->tokens, s->targets, s->start, s->pos, &trained, &text_bytes);
            sum->tokens += trained;
            sum->bytes += text_bytes;
        }
    }
    cdr_free(losses);
    CDR_TRY(st);
    sum->loss = sum->tokens > 0 ? loss / (double)sum->tokens : 0;
    sum->perplexity = exp(sum->loss);
    sum->bits_per_byte = sum->bytes > 0 ? loss / log(2.0) / (double)sum->bytes : NAN;      /* one byte: nothing of it is predicted */
    sum->seconds = (double)(cdr_now_ns() - t0) * 1e-9;
    return CDR_OK;
}

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

/* Cuts text, from `from` on, before the first of the stop texts that it holds. */
static bool stops(const cdr_strings *stop, cdr_text *text, size_t from)
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

cdr_status cdr__sample(cdr_session *s, const cdr_sample_opts *o, const char *prompt, cdr_text *text, int64_t *n_new, cdr_err *err)
{
    int64_t W = s->info->vocab, S = s->opts.gen_S, T = s->opts.gen_T, n_prompt = 0;
    size_t n_bytes = strlen(prompt), from = text->n;
    int32_t *ids = cdr_alloc(sizeof *ids * ((size_t)cdr_tokenizer_room(s->tok, n_bytes) + (size_t)S + 2));
    float *logits = cdr_alloc(sizeof *logits * (size_t)(T * W));
    candidate *c = cdr_alloc(sizeof *c * (size_t)W);
    n_prompt = cdr_tokenizer_encode(s->tok, prompt, n_bytes, ids);
    cdr_status st = CDR_OK;
    *n_new = 0;
    if (n_prompt == 0) ids[n_prompt++] = '\n';
    if (n_prompt >= S)
        st = cdr_fail(err, CDR_EUSER, "generate.too-long", "--prompt: %lld tokens, the cache holds %lld (train.sequence_length). Shorten the prompt",
                      (long long)n_prompt, (long long)S);
    int64_t done = 0, n = n_prompt, end_id = cdr_tokenizer_eos(s->tok);
    while (st == CDR_OK && *n_new < o->max_new_tokens && n < S) {
        int32_t k = (int32_t)CDR_MIN(T, n - done);
        st = feed(s, ids, done, k, logits, err);
        done += k;
        if (st != CDR_OK || done < n) continue;
        ids[n] = pick(o, logits + (k - 1) * W, W, c, n);
        if (ids[n] == end_id) break;
        (*n_new)++;
        cdr_tokenizer_decode(s->tok, ids + n++, 1, false, text);
        if (stops(o->stop, text, from)) break;
    }
    cdr_free(ids);
    cdr_free(logits);
    cdr_free(c);
    return st;
}
