/* chat_cmd.c: chat: a conversation, line by line, from a terminal or a pipe. A line is a user's message; /reset forgets the
 * conversation, /tokens says how long it is, /quit (or the end of the input) ends. Ctrl-C ends the answer that is being written,
 * what was said of it stays said; between answers it ends the command.
 *
 * Answers go to stdout as they come, whole characters at a time, reasoning in brackets before; all else goes to stderr. The
 * history is rendered anew for every turn; where its ids begin with those that the cache holds, only the rest is fed.
 */
#include "adapter/adapter.h"
#include "command/model_open.h"
#include "train/generate.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1 << 20 };
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* SA_RESTART: a write of the answer that waits for its reader goes on; 0: reading a line at the prompt ends. */
static void take_signals(int flags)
{
    struct sigaction now = { .sa_handler = on_interrupt, .sa_flags = flags };
    sigemptyset(&now.sa_mask);
    sigaction(SIGINT, &now, NULL);
}

typedef struct {
    cdr__opened m;
    cdr_chat *chat;
    const cdr_chat_args *a;
    cdr_pool *pool;                          /* of the messages */
    cdr_chat_message *message; int64_t n, cap;
    int32_t *ids; int64_t n_ids, n_fed;      /* what the cache was fed with, and how much of it it holds */
    cdr_jw w;                                /* --json: turns */
    bool terminal;
} talk;

/* ---- an answer as it comes ------------------------------------------------------------------------------------------------- */
typedef struct { talk *t; const cdr_strings *stop; const int32_t *ids; int64_t n_prompt, n; size_t shown, thought; bool opened; } speaking;

/* Bytes up to the end of the last whole character. */
static size_t whole_characters(const char *s, size_t n)
{
    size_t at = n;
    while (at > 0 && n - at < 3 && ((unsigned char)s[at - 1] & 0xc0) == 0x80) at--;
    if (at == 0) return n;
    unsigned char lead = (unsigned char)s[at - 1];
    size_t need = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    return n - (at - 1) < need ? at - 1 : n;
}

/* What may yet turn out to begin a stop text is not shown. */
static size_t held_back(const cdr_strings *stop)
{
    size_t longest = 1;
    for (int i = 0; i < stop->n; i++) longest = CDR_MAX(longest, strlen(stop->s[i]));
    return longest - 1;
}

static void show(const cdr_text *text, size_t hold, size_t *shown)
{
    if (text->n <= hold) return;
    size_t n = whole_characters(text->s, text->n - hold);
    if (n <= *shown) return;
    fwrite(text->s + *shown, 1, n - *shown, stdout);
    fflush(stdout);
    *shown = n;
}

static bool speak(void *ctx, int32_t id)
{
    speaking *x = ctx;
    cdr_text content = { 0 }, reasoning = { 0 };
    (void)id;
    x->n++;
    cdr_chat_split(x->t->chat, x->ids + x->n_prompt, x->n, &content, &reasoning);
    const bool found = cdr__cut_at_stop(x->stop, &content, 0);
    if (!x->t->a->common.json) {
        if (reasoning.n > x->thought && !x->opened) {
            fputs("[", stdout);
            x->opened = true;
        }
        show(&reasoning, 0, &x->thought);
        if (content.n > 0 && x->opened && x->shown == 0) {
            fputs("]\n", stdout);
            x->opened = false;
        }
        show(&content, found ? 0 : held_back(x->stop), &x->shown);
    }
    cdr_text_free(&content);
    cdr_text_free(&reasoning);
    return !found && !interrupted;
}

/* ---- turns --------------------------------------------------------------------------------------------------------------------- */
static void add_message(talk *t, const char *role, const char *content, const char *reasoning)
{
    *CDR_PUSH(t->pool, t->message, t->n, t->cap) = (cdr_chat_message){ .role = role, .content = content, .reasoning = reasoning };
}

static cdr_status render(const talk *t, bool generate, cdr_chat_tokens *out, cdr_err *err)
{
    return cdr_chat_render(t->chat, &(cdr_conversation){ .message = t->message, .n = (int)t->n }, generate, out, err);
}

/* The cache goes on where the new ids begin with all that it holds; else it begins anew. */
static void take_prompt(talk *t, const cdr_chat_tokens *p)
{
    int64_t same = 0;
    while (same < t->n_fed && same < p->n && t->ids[same] == p->t[same].id) same++;
    if (same < t->n_fed || same == p->n) t->n_fed = 0;
    for (int64_t i = 0; i < p->n; i++) t->ids[i] = p->t[i].id;
    t->n_ids = p->n;
}

static void turn_json(talk *t, const char *said, const cdr_text *content, const cdr_text *reasoning, int64_t n, double seconds)
{
    cdr_jw_begin(&t->w, NULL, '{');
    cdr_jw_str(&t->w, "user", said);
    cdr_jw_str(&t->w, "text", content->s ? content->s : "");
    if (reasoning->n) cdr_jw_str(&t->w, "reasoning", reasoning->s);
    cdr_jw_int(&t->w, "tokens", n);
    cdr_jw_real(&t->w, "seconds", seconds);
    cdr_jw_bool(&t->w, "interrupted", interrupted != 0);
    cdr_jw_end(&t->w, '}');
}

static cdr_status say(talk *t, const char *said, cdr_err *err)
{
    cdr_session *s = &t->m.s;
    cdr_sample_opts o = cdr__sample_opts(&s->r);
    int32_t stop[16];
    int64_t n_prompt = t->n_ids, t0 = cdr_now_ns();
    speaking x = { .t = t, .stop = o.stop, .ids = t->ids, .n_prompt = n_prompt };
    cdr_said g = { .ids = t->ids, .n = n_prompt, .n_fed = t->n_fed, .stop = stop, .n_stop = cdr_chat_stops(t->chat, stop, CDR_COUNT(stop)), .said = speak, .ctx = &x };
    interrupted = 0;
    CDR_TRY(cdr__model_say(s, &o, &g, err));
    t->n_ids = g.n;
    t->n_fed = g.n_fed;
    cdr_text content = { 0 }, reasoning = { 0 };
    cdr_chat_split(t->chat, t->ids + n_prompt, g.n - n_prompt, &content, &reasoning);
    cdr__cut_at_stop(o.stop, &content, 0);
    double seconds = (double)(cdr_now_ns() - t0) * 1e-9;
    if (t->a->common.json) turn_json(t, said, &content, &reasoning, g.n - n_prompt, seconds);
    else printf("%s%s%s\n", content.n > x.shown ? content.s + x.shown : "", x.opened ? "]" : "", interrupted ? " [stopped]" : "");
    fflush(stdout);
    if (!t->a->common.json && !t->a->common.quiet && t->terminal)
        fprintf(stderr, "[%lld tokens, %.0f tokens/s]\n", (long long)(g.n - n_prompt), (double)(g.n - n_prompt) / CDR_MAX(seconds, 1e-9));
    add_message(t, "assistant", cdr_pool_strndup(t->pool, content.s ? content.s : "", content.n), reasoning.n ? cdr_pool_strndup(t->pool, reasoning.s, reasoning.n)
        : NULL);
    cdr_text_free(&content);
    cdr_text_free(&reasoning);
    return CDR_OK;
}

/* A message that does not fit is said to be so, and is not part of the conversation. */
static cdr_status answer(talk *t, const char *said, cdr_err *err)
{
    cdr_chat_tokens p = { 0 };
    int64_t room = t->m.s.opts.gen_S;
    add_message(t, "user", cdr_pool_strdup(t->pool, said), NULL);
    cdr_status st = render(t, true, &p, err);
    if (st == CDR_OK && p.n >= room) {
        fprintf(stderr, "note: the conversation has %lld tokens with this message, the cache holds %lld (train.sequence_length). It was left out; /reset begins anew\n",
                (long long)p.n, (long long)room);
        t->n--;
    } else if (st == CDR_OK) {
        take_prompt(t, &p);
        take_signals(SA_RESTART);
        st = say(t, said, err);
        take_signals(0);
    }
    cdr_chat_tokens_free(&p);
    return st;
}

static cdr_status count_tokens(talk *t, cdr_err *err)
{
    cdr_chat_tokens p = { 0 };
    CDR_TRY(render(t, true, &p, err));
    fprintf(stderr, "%lld messages, %lld tokens of %lld\n", (long long)t->n, (long long)p.n, (long long)t->m.s.opts.gen_S);
    cdr_chat_tokens_free(&p);
    return CDR_OK;
}

/* ---- the input -------------------------------------------------------------------------------------------------------------------- */
/* A line without its end; false: the input has ended. */
static bool read_line(talk *t, char **line, size_t *cap, cdr_status *st, cdr_err *err)
{
    if (t->terminal && !t->a->common.quiet) {
        fputs("> ", stderr);
        fflush(stderr);
    }
    ssize_t n = getline(line, cap, stdin);
    if (n < 0) return false;
    while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r')) n--;
    bool nul = memchr(*line, 0, (size_t)n) != NULL;
    (*line)[n] = 0;
    if (n <= LINE_MAX_BYTES && !nul) return true;
    *st = cdr_fail(err, CDR_EUSER, "chat.stdin", "cadre chat: a line %s", nul ? "holds a zero byte, so it is no text" : "is over 1 MiB");
    return false;
}

static cdr_status converse(talk *t, cdr_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    cdr_status st = CDR_OK;
    while (st == CDR_OK && read_line(t, &line, &cap, &st, err)) {
        if (line[0] == 0) continue;
        if (strcmp(line, "/quit") == 0) break;
        if (strcmp(line, "/reset") == 0) {
            t->n = 0;
        } else if (strcmp(line, "/tokens") == 0) {
            st = count_tokens(t, err);
        } else if (line[0] == '/') {
            fprintf(stderr, "note: %.40s is no command; /reset, /tokens and /quit are\n", line);
        } else {
            st = answer(t, line, err);
        }
    }
    free(line);
    return st;
}

/* Ctrl-C is a flag while answers are written; one at the prompt ends the command. */
static cdr_status with_signals(talk *t, cdr_err *err)
{
    struct sigaction before;
    sigaction(SIGINT, NULL, &before);
    take_signals(0);
    cdr_status st = converse(t, err);
    sigaction(SIGINT, &before, NULL);
    if (st == CDR_OK && interrupted && ferror(stdin) && errno == EINTR) st = cdr_fail(err, CDR_EINTERRUPT, "chat.interrupted", "cadre chat: interrupted");
    return st;
}

/* " + devil (LoRA r 16, step 300)" */
static void put_adapter(const cdr_lora_set *set, const char *path, cdr_text *text)
{
    int32_t least = INT32_MAX, most = 0;
    for (int i = 0; i < set->n; i++) least = CDR_MIN(least, set->pair[i].rank), most = CDR_MAX(most, set->pair[i].rank);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    const char *slash = memrchr(path, '/', n - 1), *name = slash ? slash + 1 : path;
    cdr_text_printf(text, " + %.*s (LoRA r ", (int)(path + n - name), name);
    if (least < most) cdr_text_printf(text, "%d to ", (int)least);
    cdr_text_printf(text, "%d", (int)most);
    if (set->step >= 0) cdr_text_printf(text, ", step %lld", (long long)set->step);
    cdr_text_printf(text, ")");
}

static void banner(const talk *t)
{
    const cdr_session *s = &t->m.s;
    cdr_chat_spec spec = cdr__session_chat(s);
    cdr_text text = { 0 };
    if (t->a->common.quiet || t->a->common.json) return;
    cdr_text_printf(&text, "%s (%s%s)", s->r.name, s->info->family, s->opts.experts_dtype == CDR_MXFP4 ? ", experts MXFP4" : "");
    if (s->adapter) put_adapter(s->adapter, t->a->adapter, &text);
    fprintf(stderr, "%s; format %s, thinking %s%s\n", text.s, spec.format, spec.thinking ? "on" : "off", t->terminal ? "; /reset /tokens /quit" : "");
    cdr_text_free(&text);
}

static cdr_status open_talk(talk *t, cdr_err *err)
{
    const cdr_chat_args *a = t->a;
    cdr_session *s = &t->m.s;
    CDR_TRY(cdr__model_open(&t->m, a->model, &a->common, err));
    if (a->thinking >= 0) s->r.data.chat_thinking = a->thinking != 0;
    if (a->system) s->r.data.chat_system = a->system;
    CDR_TRY(cdr__model_chat(&t->m, &t->chat, err));
    if (!t->chat)
        CDR_FAIL_ID(err, CDR_EUSER, "chat.no-format", "cadre chat %s: the model has no chat format. Name one with --set data.chat_format=..., or continue text with "
            "cadre generate",
                    a->model);
    CDR_TRY(cdr__model_layout(&t->m, err));
    if (s->n_ranks > 1) CDR_FAIL_ID(err, CDR_EUSER, "chat.ranks", "cadre chat: %d ranks; a conversation has one input. Start it without launch", s->n_ranks);
    CDR_TRY(cdr__model_load(&t->m, a->adapter, err));
    t->ids = cdr_alloc(sizeof *t->ids * (size_t)(s->opts.gen_S + 1));
    t->pool = cdr_pool_new();
    return CDR_OK;
}

cdr_status cdr_chat_command(const cdr_chat_args *a, cdr_result *r, cdr_err *err)
{
    talk t = { .a = a, .terminal = isatty(0) && isatty(1) };
    cdr_text json = { 0 };
    t.w.t = &json;
    cdr_jw_begin(&t.w, NULL, '[');
    cdr_status st = open_talk(&t, err);
    if (st == CDR_OK) {
        banner(&t);
        st = with_signals(&t, err);
    }
    cdr_jw_end(&t.w, ']');
    r->json = json.s;
    cdr_chat_close(t.chat);
    cdr_free(t.ids);
    if (t.pool) cdr_pool_free(t.pool);
    cdr__model_close(&t.m);
    return st;
}
