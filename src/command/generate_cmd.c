/* generate_cmd.c: generate: prompts continued, or answered where the model has a chat format and was trained on conversations.
 * Raw (text continued as it stands): --raw, a format none, a run that was trained on text.
 */
#include "command/model_open.h"
#include "train/generate.h"
#include <stdlib.h>

typedef struct { const char *prompt; cdr_text text, reasoning; int64_t n; double seconds; } answer;

static void free_answer(answer *x)
{
    cdr_text_free(&x->text);
    cdr_text_free(&x->reasoning);
}

/* Ends an answer at the first of generate.stop that it holds; reasoning is no answer yet. */
typedef struct { const cdr_chat *chat; const cdr_strings *stop; const int32_t *ids; int64_t n; } watched;

static bool watch(void *ctx, int32_t id)
{
    watched *w = ctx;
    cdr_text content = { 0 }, reasoning = { 0 };
    (void)id;
    w->n++;
    if (w->stop->n == 0) return true;
    cdr_chat_split(w->chat, w->ids, w->n, &content, &reasoning);
    const bool found = cdr__cut_at_stop(w->stop, &content, 0);
    cdr_text_free(&content);
    cdr_text_free(&reasoning);
    return !found;
}

/* The prompt as a user's message, what the model answers split as the format says. */
static cdr_status answer_chat(cdr_session *s, const cdr_chat *chat, const cdr_sample_opts *o, answer *x, cdr_err *err)
{
    cdr_chat_message m = { .role = "user", .content = x->prompt };
    cdr_chat_tokens t = { 0 };
    int32_t stop[16];
    CDR_TRY(cdr_chat_render(chat, &(cdr_conversation){ .message = &m, .n = 1 }, true, &t, err));
    int32_t *ids = cdr_alloc(sizeof *ids * (size_t)(t.n + s->opts.gen_S + 1));
    for (int64_t i = 0; i < t.n; i++) ids[i] = t.t[i].id;
    watched w = { .chat = chat, .stop = o->stop, .ids = ids + t.n };
    cdr_said said = { .ids = ids, .n = t.n, .stop = stop, .n_stop = cdr_chat_stops(chat, stop, CDR_COUNT(stop)), .said = watch, .ctx = &w };
    cdr_status st = cdr__model_say(s, o, &said, err);
    x->n = said.n - t.n;
    if (st == CDR_OK) cdr_chat_split(chat, ids + t.n, x->n, &x->text, &x->reasoning);
    cdr__cut_at_stop(o->stop, &x->text, 0);
    cdr_free(ids);
    cdr_chat_tokens_free(&t);
    return st;
}

static void print_answer(const cdr_chat *chat, const answer *x, cdr_text *text, cdr_jw *w)
{
    cdr_text_printf(text, "%s%s\n", chat ? "" : x->prompt, x->text.s ? x->text.s : "");
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "prompt", x->prompt);
    cdr_jw_str(w, "text", x->text.s ? x->text.s : "");
    if (x->reasoning.n) cdr_jw_str(w, "reasoning", x->reasoning.s);
    cdr_jw_int(w, "tokens", x->n);
    cdr_jw_real(w, "seconds", x->seconds);
    cdr_jw_end(w, '}');
}

static cdr_status generate_all(cdr__opened *m, const cdr_chat *chat, const cdr_generate_args *a, cdr_text *text, cdr_jw *w, cdr_err *err)
{
    static const char *const none[] = { "" };
    cdr_session *s = &m->s;
    cdr_sample_opts o = cdr__sample_opts(&s->r);
    const char *const *prompts = a->n_prompts > 0 ? a->prompts : none;
    cdr_jw_begin(w, NULL, '[');
    for (int i = 0; i < CDR_MAX(a->n_prompts, 1); i++) {
        answer x = { .prompt = prompts[i] };
        int64_t t0 = cdr_now_ns();
        cdr_status st = chat ? answer_chat(s, chat, &o, &x, err) : cdr__sample(s, &o, x.prompt, &x.text, &x.n, err);
        x.seconds = (double)(cdr_now_ns() - t0) * 1e-9;
        if (st == CDR_OK) print_answer(chat, &x, text, w);
        if (st == CDR_OK && s->rank == 0 && !a->common.quiet && !a->common.json)
            fprintf(stderr, "[%lld tokens, %.0f tokens/s, %s, seed %llu%s%s]\n", (long long)x.n, (double)x.n / CDR_MAX(x.seconds, 1e-9), s->r.name,
                    (unsigned long long)o.seed, chat ? ", " : "", chat ? cdr__session_chat(s).format : "");
        free_answer(&x);
        CDR_TRY(st);
    }
    cdr_jw_end(w, ']');
    return CDR_OK;
}

cdr_status cdr_generate(const cdr_generate_args *a, cdr_result *r, cdr_err *err)
{
    cdr__opened m;
    cdr_chat *chat = NULL;
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_status st = cdr__model_open(&m, a->model, &a->common, err);
    if (st == CDR_OK && !a->raw && !cdr__model_is_raw(&m)) st = cdr__model_chat(&m, &chat, err);
    if (st == CDR_OK) st = cdr__model_layout(&m, err);
    if (st == CDR_OK) st = cdr__model_load(&m, a->adapter, err);
    if (st == CDR_OK) st = generate_all(&m, chat, a, &text, &w, err);
    if (st == CDR_OK && m.s.rank == 0) {
        r->text = text.s;
        r->json = json.s;
    } else {
        cdr_text_free(&text);
        cdr_text_free(&json);
    }
    cdr_chat_close(chat);
    cdr__model_close(&m);
    return st;
}
