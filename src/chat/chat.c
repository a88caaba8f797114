/* chat.c: opens a format, applies the options of a recipe to a conversation, and checks what every format relies on.
 *
 * Options, in this order: tools dropped (declarations, calls, the results, and an assistant's message of which nothing is
 * left); the system text in front of a conversation that does not begin with a system message.
 */
#include "chat/internal.h"

#include <string.h>

static const cdr__format *const FORMATS[] = { &cdr__chat_k3_xtml, &cdr__chat_kimi_k2, &cdr__chat_chatml, &cdr__chat_jinja };

static const cdr__format *find_format(const char *name)
{
    for (int i = 0; i < CDR_COUNT(FORMATS); i++)
        if (strcmp(FORMATS[i]->name, name) == 0) return FORMATS[i];
    return NULL;
}

cdr_status cdr__chat_special(const cdr_chat *chat, const char *name, int32_t *id, cdr_err *err)
{
    *id = cdr_tokenizer_special(chat->s.tokenizer, name);
    if (*id >= 0) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EDATA, "chat.no-special", "chat format %s: the tokenizer has no special id %s; its text would be ordinary text to the model. "
                "Set data.chat_format to the format that belongs to this tokenizer, or to none", chat->format->name, name);
}

void cdr__chat_mix(cdr_chat *chat, const void *data, size_t bytes) { chat->hash = cdr_hash64(data, bytes, chat->hash); }

uint64_t cdr_chat_hash(const cdr_chat *chat) { return chat->hash; }

void cdr__chat_stop(cdr_chat *chat, int32_t id)
{
    for (int i = 0; i < chat->n_stop; i++)
        if (chat->stop[i] == id) return;
    if (id >= 0 && chat->n_stop < CDR__STOPS_MAX) chat->stop[chat->n_stop++] = id;
}

static void copy_spec(cdr_chat *c, const cdr_chat_spec *s)
{
    c->s = *s;
    c->s.format = c->format->name;
    if (s->dir) c->s.dir = cdr_pool_strdup(c->pool, s->dir);
    if (s->system) c->s.system = cdr_pool_strdup(c->pool, s->system);
    int options[] = { s->thinking, s->effort, s->drop_tools, s->system != NULL };
    cdr__chat_mix(c, c->format->name, strlen(c->format->name));
    cdr__chat_mix(c, options, sizeof options);
    if (s->system) cdr__chat_mix(c, s->system, strlen(s->system));
}

cdr_status cdr_chat_open(const cdr_chat_spec *s, cdr_chat **chat, cdr_err *err)
{
    const cdr__format *f = s->format ? find_format(s->format) : NULL;
    if (!f) {
        const char *names[CDR_COUNT(FORMATS)];
        cdr_pool *pool = cdr_pool_new();
        for (int i = 0; i < CDR_COUNT(FORMATS); i++) names[i] = FORMATS[i]->name;
        cdr_status st = cdr_fail(err, CDR_EUSER, "chat.format", "chat format %s is not known.%s Formats: k3_xtml, kimi_k2, chatml, jinja, none",
                                 s->format ? s->format : "(none given)", cdr_nearest(pool, s->format ? s->format : "", names, CDR_COUNT(FORMATS)));
        cdr_pool_free(pool);
        return st;
    }
    if (s->effort < CDR_EFFORT_NONE || s->effort > CDR_EFFORT_MAX)
        CDR_FAIL_ID(err, CDR_EUSER, "chat.effort", "thinking effort %d is none of none, low, medium, high, max", s->effort);
    if (s->effort != CDR_EFFORT_NONE && !s->thinking)
        CDR_FAIL_ID(err, CDR_EUSER, "chat.effort", "data.chat_options: thinking_effort is set and thinking is false; the effort is that of thinking. "
                    "Set thinking: true, or thinking_effort: none");
    cdr_pool *pool = cdr_pool_new();
    cdr_chat *c = cdr_pool_alloc(pool, sizeof *c);
    c->pool = pool;
    c->format = f;
    copy_spec(c, s);
    cdr_status st = f->open(c, err);
    if (st != CDR_OK) {
        cdr_chat_close(c);
        return st;
    }
    cdr__chat_stop(c, cdr_tokenizer_eos(s->tokenizer));        /* whatever a format's own end is, the id that ends texts ends what is said */
    *chat = c;
    return CDR_OK;
}

void cdr_chat_close(cdr_chat *c)
{
    if (!c) return;
    if (c->format->close) c->format->close(c);
    cdr_pool_free(c->pool);
}

/* ---- conversations ------------------------------------------------------------------------------------------------- */
cdr_status cdr__turn_fail(const cdr__view *v, int i, const char *id, const char *fmt, ...)
{
    char what[900];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return cdr_fail(v->err, CDR_EDATA, id, "message %d (%.20s): %s", (int)v->turn[i].index, v->turn[i].m->role, what);
}

static bool is_role(const char *role, const char *is) { return role && strcmp(role, is) == 0; }

static cdr_status check_message(const cdr_chat_message *m, int i, cdr_err *err)
{
    if (!m->role) CDR_FAIL_ID(err, CDR_EDATA, "chat.role", "message %d has no role", i);
    bool assistant = is_role(m->role, "assistant");
    if (!assistant && !is_role(m->role, "system") && !is_role(m->role, "user") && !is_role(m->role, "tool"))
        CDR_FAIL_ID(err, CDR_EDATA, "chat.role", "message %d: role \"%.40s\" is none of system, user, assistant, tool", i, m->role);
    if (!assistant && m->n_calls > 0) CDR_FAIL_ID(err, CDR_EDATA, "chat.role", "message %d (%s): only an assistant calls tools", i, m->role);
    for (int k = 0; k < m->n_calls; k++)
        if (!m->calls[k].name || !m->calls[k].name[0]) CDR_FAIL_ID(err, CDR_EDATA, "chat.call", "message %d: tool call %d has no name", i, k);
    return CDR_OK;
}

static bool is_dropped(const cdr_chat_message *m)
{
    if (is_role(m->role, "tool")) return true;
    return m->n_calls > 0 && !(m->content && m->content[0]) && !(m->reasoning && m->reasoning[0]);
}

static cdr_status make_view(const cdr_chat *chat, cdr__view *v)
{
    const cdr_conversation *c = v->c;
    cdr__turn *turn = cdr_pool_alloc(v->pool, sizeof *turn * (size_t)(c->n + 1));
    for (int i = 0; i < c->n; i++) CDR_TRY(check_message(&c->message[i], i, v->err));
    if (chat->s.system && (c->n == 0 || !is_role(c->message[0].role, "system"))) {
        cdr_chat_message *m = cdr_pool_alloc(v->pool, sizeof *m);
        *m = (cdr_chat_message){ .role = "system", .content = chat->s.system };
        turn[v->n++] = (cdr__turn){ .m = m, .index = -1 };
    }
    for (int i = 0; i < c->n; i++) {
        const cdr_chat_message *m = &c->message[i];
        if (chat->s.drop_tools && is_dropped(m)) continue;
        if (chat->s.drop_tools && m->n_calls > 0) {
            cdr_chat_message *bare = cdr_pool_alloc(v->pool, sizeof *bare);
            *bare = *m;
            bare->calls = NULL;
            bare->n_calls = 0;
            m = bare;
        }
        turn[v->n++] = (cdr__turn){ .m = m, .index = i };
    }
    v->turn = turn;
    if (c->tools && !chat->s.drop_tools) {
        if (cdr_json_type(c->tools) != CDR_JSON_ARRAY) CDR_FAIL_ID(v->err, CDR_EDATA, "chat.tools", "tools is no array of declarations");
        if (cdr_json_count(c->tools) > 0) v->tools = c->tools;
    }
    return CDR_OK;
}

cdr_status cdr_chat_render(const cdr_chat *chat, const cdr_conversation *c, bool generate, cdr_chat_tokens *out, cdr_err *err)
{
    int64_t n_before = out->n;
    cdr__view v = { .pool = cdr_pool_new(), .c = c, .generate = generate, .err = err };
    cdr__emit e = { .tokenizer = chat->s.tokenizer, .out = out, .message = -1, .part = CDR_PART_OPEN, .err = err };
    cdr_status st = make_view(chat, &v);
    if (st == CDR_OK) st = chat->format->render(chat, &v, &e);
    cdr_status ended = cdr__emit_end(&e);
    if (st == CDR_OK) st = ended;
    cdr_pool_free(v.pool);
    if (st != CDR_OK) out->n = n_before;
    return st;
}

void cdr_chat_tokens_free(cdr_chat_tokens *t)
{
    cdr_free(t->t);
    *t = (cdr_chat_tokens){ 0 };
}

int cdr_chat_stops(const cdr_chat *chat, int32_t *ids, int max)
{
    int n = CDR_MIN(max, chat->n_stop);
    for (int i = 0; i < n; i++) ids[i] = chat->stop[i];
    return n;
}

void cdr_chat_split(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning)
{
    chat->format->split(chat, ids, n, content, reasoning);
}
