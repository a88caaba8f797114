/* answers.c: greedy answers to held-out prompts, and their overlap with the given ones.
 *
 *   F1 = 2 P R / (P + R),  P = |said and given| / |said|,  R = |said and given| / |given|,  words as multisets        (1)
 * Source: (1) the evaluation of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250), without its rules for English articles.
 */
#include "command/answers.h"
#include "train/generate.h"
#include <stdlib.h>

typedef struct { const char *s; size_t n; } word;
typedef struct { word *w; int64_t n, cap; } words;

static bool in_word(unsigned char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c > 127; }

static char *lower(cdr_pool *pool, const char *s)
{
    char *out = cdr_pool_strdup(pool, s);
    for (char *p = out; *p; p++) if (*p >= 'A' && *p <= 'Z') *p = (char)(*p + 32);
    return out;
}

static int by_text(const void *a, const void *b)
{
    const word *x = a, *y = b;
    int c = memcmp(x->s, y->s, CDR_MIN(x->n, y->n));
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static words sorted_words(cdr_pool *pool, const char *text)
{
    words out = { 0 };
    for (const char *p = lower(pool, text); *p;) {
        size_t n = 0;
        while (p[n] && in_word((unsigned char)p[n])) n++;
        if (n > 0) *CDR_PUSH(pool, out.w, out.n, out.cap) = (word){ p, n };
        p += n + (p[n] != 0);
    }
    if (out.n > 0) qsort(out.w, (size_t)out.n, sizeof *out.w, by_text);
    return out;
}

double cdr__word_f1(const char *said, const char *given)
{
    cdr_pool *pool = cdr_pool_new();
    const words a = sorted_words(pool, said), b = sorted_words(pool, given);
    int64_t both = 0;
    for (int64_t i = 0, j = 0; i < a.n && j < b.n;) {
        const int c = by_text(&a.w[i], &b.w[j]);
        both += c == 0;
        i += c <= 0;
        j += c >= 0;
    }
    const double f1 = a.n + b.n == 0 ? 1 : 2.0 * (double)both / (double)(a.n + b.n);          /* (1), with P and R put in */
    cdr_pool_free(pool);
    return f1;
}

typedef struct { int64_t T; const int32_t *tokens, *targets, *start, *pos; } shard;
typedef struct { const int32_t *prompt, *given; int64_t n_prompt, n_given; } sample;        /* in a shard's arrays */

/* The document that begins at row t: up to its first trained token, and the trained stretch that begins there. Returns its end. */
static int64_t sample_at(const shard *s, int64_t t, sample *x)
{
    int64_t end = t, first = t, after;
    while (end < s->T && s->start[end] == (int32_t)t && s->start[end] <= s->pos[end]) end++;
    while (first < end && s->targets[first] < 0) first++;
    for (after = first; after < end && s->targets[after] >= 0;) after++;
    if (first < end) *x = (sample){ s->tokens + t, s->targets + first, first - t + 1, after - first };
    return CDR_MAX(end, t + 1);
}

/* Text of what an assistant says, without the marks of its format and the id that ends it. */
static const char *text_of(cdr_session *s, const cdr_chat *chat, const int32_t *ids, int64_t n, const int32_t *stop, int n_stop, const cdr_strings *cut)
{
    cdr_text content = { 0 }, reasoning = { 0 };
    for (int i = 0; i < n_stop && n > 0; i++) if (ids[n - 1] == stop[i]) n--;
    if (chat) cdr_chat_split(chat, ids, n, &content, &reasoning);
    else cdr_tokenizer_decode(s->tok, ids, n, false, &content);
    if (cut) cdr__cut_at_stop(cut, &content, 0);
    const char *out = cdr_pool_strndup(s->pool, content.s ? content.s : "", content.n);
    cdr_text_free(&content);
    cdr_text_free(&reasoning);
    return out;
}

static cdr_status ask(cdr__opened *m, const cdr_chat *chat, const sample *x, int32_t *room, cdr_answers *sum, cdr_err *err)
{
    cdr_session *s = &m->s;
    cdr_sample_opts o = cdr__sample_opts(&s->r);
    o.temperature = 0;
    int32_t stop[8];
    const int n_stop = chat ? cdr_chat_stops(chat, stop, CDR_COUNT(stop)) : 0;
    cdr_said said = { .ids = room, .n = x->n_prompt, .stop = stop, .n_stop = n_stop };
    memcpy(room, x->prompt, sizeof *room * (size_t)x->n_prompt);
    const char *given = text_of(s, chat, x->given, x->n_given, stop, n_stop, NULL);
    cdr_text prompt = { 0 };
    if (sum->n == 0) cdr_tokenizer_decode(s->tok, x->prompt, x->n_prompt, true, &prompt);
    if (sum->n == 0) sum->prompt = cdr_pool_strdup(s->pool, prompt.s ? prompt.s : "");
    cdr_text_free(&prompt);
    CDR_TRY(cdr__model_say(s, &o, &said, err));
    const char *text = text_of(s, chat, room + x->n_prompt, said.n - x->n_prompt, stop, n_stop, o.stop);
    if (sum->n == 0) {
        sum->said = text;
        sum->given = given;
    }
    sum->n++;
    sum->exact += strcmp(text, given) == 0;
    sum->f1 += cdr__word_f1(text, given);
    return CDR_OK;
}

cdr_status cdr__answers(cdr__opened *m, int64_t n, cdr_answers *sum, cdr_err *err)
{
    cdr_session *s = &m->s;
    cdr_chat *chat = NULL;
    *sum = (cdr_answers){ 0 };
    CDR_TRY(cdr__model_chat(m, &chat, err));
    const int64_t T = s->T, n_shards = cdr_data_stats(s->data)->eval_shards, t0 = cdr_now_ns();
    int32_t *room = cdr_alloc(sizeof *room * (size_t)(s->opts.gen_S + 1)), *a = cdr_alloc(sizeof *a * (size_t)(4 * T));
    const shard x = { T, a, a + T, a + 2 * T, a + 3 * T };
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < n_shards && sum->n < n && st == CDR_OK; i++) {
        int64_t trained, bytes;
        cdr_data_eval_shard(s->data, i, a, a + T, a + 2 * T, a + 3 * T, &trained, &bytes);
        st = cdr__agree(s, cdr_data_fault(s->data, err), err);
        for (int64_t t = 0; t < T && sum->n < n && st == CDR_OK;) {
            sample y = { 0 };
            t = x.start[t] > x.pos[t] ? t + 1 : sample_at(&x, t, &y);
            if (y.n_prompt > 0 && y.n_prompt < s->opts.gen_S) st = ask(m, chat, &y, room, sum, err);
        }
    }
    cdr_free(room);
    cdr_free(a);
    if (chat) cdr_chat_close(chat);
    CDR_TRY(st);
    if (sum->n == 0) CDR_FAIL_ID(err, CDR_EDATA, "data.no-eval", "--answers: no held-out sample has a trained stretch behind a prompt that fits %lld tokens",
                                 (long long)s->opts.gen_S);
    sum->f1 /= (double)sum->n;
    sum->seconds = (double)(cdr_now_ns() - t0) * 1e-9;
    return CDR_OK;
}
