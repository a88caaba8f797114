/* messages.c: conversations of other people's files as messages: OpenAI's `messages`, and ShareGPT's turns.
 *
 * OpenAI: {"messages": [{role, content, reasoning_content | reasoning, tool_calls, tool_call_id, name, train | loss | weight | loss_scale}], "tools"};
 * content is text, null beside calls, or parts {"type": "text", "text"}, which are put together. A call is {id, function: {name, arguments}} or
 * {id, name, arguments}; arguments are a JSON object or its text.
 * ShareGPT: {"conversations": [{from, value}], system, tools}, or {"conversation": [{human, assistant}]}. An observation answers the function
 * calls before it, in their order.
 * What would change the training and is not read (pictures, other parts) is refused; other fields are left alone.
 * Sources: OpenAI's fine-tuning guide; LLaMA-Factory's data/README; spec/formats.md, 3.
 */
#include "data/internal.h"

#include <math.h>

#define REFUSE(t, id, ...) return cdr_fail((t)->err, CDR_EDATA, (id), __VA_ARGS__)

cdr_status cdr__want_text(cdr__talk *t, const cdr_json *j, const char *name, const char **out)
{
    if (!j) return CDR_OK;
    if (cdr_json_type(j) != CDR_JSON_STRING) REFUSE(t, "data.field", "%s: is no text. Write a string", name);
    *out = cdr_json_str(j, "");
    return CDR_OK;
}

cdr_chat_message *cdr__say(cdr__talk *t, const char *role, const char *content)
{
    int64_t n = t->n;
    *CDR_PUSH(t->pool, t->own, n, t->cap_own) = (cdr__own){ false, 1 };
    cdr_chat_message *m = CDR_PUSH(t->pool, t->m, t->n, t->cap);
    *m = (cdr_chat_message){ .role = role, .content = content };
    return m;
}

cdr_status cdr__read_tools(cdr__talk *t, const cdr_json *record, const cdr_json **tools)
{
    const cdr_json *j = cdr__field(t->columns, record, "tools");
    const char *text = cdr_json_str(j, NULL);
    if (text && *text) CDR_TRY(cdr_json_parse(t->pool, text, strlen(text), "tools", &j, t->err));        /* many sets keep them as text */
    else if (text) j = NULL;
    if (j && cdr_json_type(j) != CDR_JSON_ARRAY) REFUSE(t, "data.field", "tools: is no list of tool declarations. Write an array, or its text");
    *tools = cdr_json_count(j) > 0 ? j : NULL;
    return CDR_OK;
}

/* ---- what a message says about loss --------------------------------------------------------------------------------- */

static cdr_status read_weight(cdr__talk *t, const cdr_json *j, const char *name, cdr__own *own)
{
    if (!j) return CDR_OK;
    bool flag = cdr_json_type(j) == CDR_JSON_BOOL, number = cdr_json_type(j) == CDR_JSON_INT || cdr_json_type(j) == CDR_JSON_REAL;
    double w = flag ? (double)cdr_json_bool(j, false) : cdr_json_real(j, -1);
    if ((!flag && !number) || !(w >= 0) || w > 1e6) REFUSE(t, "data.field", "%s: must be true, false or a number from 0 on", name);
    if (own->set && own->weight != w) REFUSE(t, "data.weight", "%s: contradicts another of train, loss and weight of this message. Keep one", name);
    *own = (cdr__own){ true, w };
    return CDR_OK;
}

static cdr_status read_own(cdr__talk *t, const cdr_json *message, const char *at)
{
    static const char *const KEYS[] = { "train", "loss", "weight" };
    cdr__own *own = &t->own[t->n - 1];
    for (int i = 0; i < CDR_COUNT(KEYS); i++)
        CDR_TRY(read_weight(t, cdr__field(t->columns, message, KEYS[i]), cdr_pool_printf(t->pool, "%s.%s", at, cdr__column(t->columns, KEYS[i])), own));
    return read_weight(t, cdr_json_get(message, "loss_scale"), cdr_pool_printf(t->pool, "%s.loss_scale", at), own);
}

/* ---- OpenAI ------------------------------------------------------------------------------------------------------------ */

static const char *role_of(const char *role)
{
    static const char *const ROLES[][2] = { { "system", "system" }, { "developer", "system" }, { "user", "user" }, { "human", "user" },
                                            { "assistant", "assistant" }, { "gpt", "assistant" }, { "model", "assistant" }, { "bot", "assistant" },
                                            { "tool", "tool" }, { "function", "tool" }, { "observation", "tool" }, { "tool_response", "tool" },
                                            { "function_call", "call" }, { "tool_call", "call" } };
    for (int i = 0; i < CDR_COUNT(ROLES); i++)
        if (strcmp(ROLES[i][0], role) == 0) return ROLES[i][1];
    return NULL;
}

/* Text of a content: a string, or parts put together. */
static cdr_status read_content(cdr__talk *t, const cdr_json *j, const char *at, const char **out)
{
    if (!j) return CDR_OK;
    if (cdr_json_type(j) != CDR_JSON_ARRAY) return cdr__want_text(t, j, at, out);
    cdr_text all = { 0 };
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < cdr_json_count(j) && st == CDR_OK; i++) {
        const cdr_json *part = cdr_json_at(j, i);
        const char *type = cdr_json_str(cdr_json_get(part, "type"), NULL), *text = cdr_json_str(cdr_json_get(part, "text"), NULL);
        if (type && (strncmp(type, "image", 5) == 0 || strncmp(type, "video", 5) == 0 || strncmp(type, "audio", 5) == 0))
            st = cdr_fail(t->err, CDR_EDATA, "data.image", "%s[%lld]: a part of type %.40s; this version trains on text only. Leave such samples out", at,
                          (long long)i, type);
        else if (!type || strcmp(type, "text") != 0 || !text)
            st = cdr_fail(t->err, CDR_EDATA, "data.field", "%s[%lld]: is no part of type text with a text. Parts are {\"type\": \"text\", \"text\": ...}", at,
                (long long)i);
        else if (cdr_json_get(part, "train"))
            st = cdr_fail(t->err, CDR_EDATA, "data.field", "%s[%lld].train: loss by part is not read, only by message. Put train into the message", at, (long long)i);
        else cdr_text_append(&all, text, strlen(text));
    }
    if (st == CDR_OK) *out = cdr_pool_strndup(t->pool, all.s ? all.s : "", all.n);
    cdr_text_free(&all);
    return st;
}

static cdr_status read_call(cdr__talk *t, const cdr_json *j, const char *at, cdr_chat_call *call)
{
    const cdr_json *f = cdr_json_get(j, "function");
    if (cdr_json_type(f) != CDR_JSON_OBJECT) f = j;
    const cdr_json *arguments = cdr_json_get(f, "arguments");
    *call = (cdr_chat_call){ .id = cdr_json_str(cdr_json_get(j, "id"), NULL), .name = cdr_json_str(cdr_json_get(f, "name"), NULL),
                             .arguments = cdr_json_str(arguments, NULL) };
    if (!call->name || !*call->name) REFUSE(t, "data.field", "%s: has no name. A call is {\"function\": {\"name\": ..., \"arguments\": ...}}", at);
    if (call->arguments) return CDR_OK;
    if (arguments && cdr_json_type(arguments) != CDR_JSON_OBJECT && cdr_json_type(arguments) != CDR_JSON_NULL)
        REFUSE(t, "data.field", "%s.arguments: is no object and no text", at);
    cdr_text text = { 0 };
    if (cdr_json_type(arguments) == CDR_JSON_OBJECT && !cdr_chat_json(&text, arguments)) {
        cdr_text_free(&text);
        REFUSE(t, "data.field", "%s.arguments: a whole number beyond 64 bits, whose digits are not kept. Write it as a string", at);
    }
    call->arguments = text.n ? cdr_pool_strndup(t->pool, text.s, text.n) : "{}";
    cdr_text_free(&text);
    return CDR_OK;
}

/* One call, or a list of them. */
static cdr_status read_calls(cdr__talk *t, const cdr_json *j, const char *at, cdr_chat_message *m)
{
    if (!j) return CDR_OK;
    bool list = cdr_json_type(j) == CDR_JSON_ARRAY;
    int64_t n = list ? cdr_json_count(j) : 1;
    if (n > 1000) REFUSE(t, "data.field", "%s: %lld calls in one message; at most 1,000 are read", at, (long long)n);
    cdr_chat_call *calls = cdr_pool_alloc(t->pool, (size_t)(n + 1) * sizeof *calls);
    for (int64_t i = 0; i < n; i++)
        CDR_TRY(read_call(t, list ? cdr_json_at(j, i) : j, list ? cdr_pool_printf(t->pool, "%s[%lld]", at, (long long)i) : at, &calls[i]));
    m->calls = calls;
    m->n_calls = (int)n;
    return CDR_OK;
}

static cdr_status read_message(cdr__talk *t, const cdr_json *j, const char *at)
{
    const cdr__columns *c = t->columns;
    const char *role = cdr_json_str(cdr__field(c, j, "role"), NULL), *ours = role ? role_of(role) : NULL;
    if (!ours || strcmp(ours, "call") == 0)
        REFUSE(t, "data.role", "%s: its role is %s%.40s; known are system, user, assistant and tool. Mend it, or name its field in columns", at,
               role ? "" : "missing", role ? role : "");
    const cdr_json *calls = cdr__field(c, j, "tool_calls"), *why = cdr__field(c, j, "reasoning_content");
    if (!why) why = cdr_json_get(j, "reasoning");
    if (why && cdr_json_type(why) == CDR_JSON_NULL) why = NULL;
    if (!calls) calls = cdr_json_get(j, "function_call");              /* the form before tool_calls */
    if (cdr_json_type(calls) == CDR_JSON_NULL) calls = NULL;
    cdr_chat_message *m = cdr__say(t, ours, NULL);
    CDR_TRY(read_content(t, cdr__field(c, j, "content"), cdr_pool_printf(t->pool, "%s.%s", at, cdr__column(c, "content")), &m->content));
    CDR_TRY(cdr__want_text(t, why, cdr_pool_printf(t->pool, "%s.reasoning_content", at), &m->reasoning));
    CDR_TRY(cdr__want_text(t, cdr__field(c, j, "name"), cdr_pool_printf(t->pool, "%s.name", at), &m->name));
    CDR_TRY(cdr__want_text(t, cdr__field(c, j, "tool_call_id"), cdr_pool_printf(t->pool, "%s.tool_call_id", at), &m->call_id));
    CDR_TRY(read_calls(t, calls, cdr_pool_printf(t->pool, "%s.tool_calls", at), m));
    bool assistant = strcmp(ours, "assistant") == 0;
    if (m->n_calls > 0 && !assistant) REFUSE(t, "data.role", "%s: calls in a message of role %s; only an assistant calls tools", at, ours);
    if (!m->content && m->n_calls == 0 && !(assistant && m->reasoning))
        REFUSE(t, "data.field", "%s: has no content. Write a text (\"\" is one), or name its field in columns", at);
    return read_own(t, j, at);
}

cdr_status cdr__read_messages(cdr__talk *t, const cdr_json *list, const char *name)
{
    if (cdr_json_type(list) != CDR_JSON_ARRAY || cdr_json_count(list) == 0) REFUSE(t, "data.field", "%s: is no list of messages, or is empty", name);
    for (int64_t i = 0; i < cdr_json_count(list); i++)
        CDR_TRY(read_message(t, cdr_json_at(list, i), cdr_pool_printf(t->pool, "%s[%lld]", name, (long long)i)));
    return CDR_OK;
}

/* ---- ShareGPT ------------------------------------------------------------------------------------------------------------ */

/* Calls wait for their observations in order: the k-th observation behind them answers call k. */
typedef struct { int64_t message; int next, made; } pending;

static cdr_status say_call(cdr__talk *t, const char *value, const char *at, pending *p)
{
    const cdr_json *j;
    CDR_TRY(cdr_json_parse(t->pool, value, strlen(value), at, &j, t->err));
    if (cdr_json_type(j) != CDR_JSON_OBJECT && cdr_json_type(j) != CDR_JSON_ARRAY) REFUSE(t, "data.field", "%s: is no call {\"name\", \"arguments\"}", at);
    cdr_chat_message *m = cdr__say(t, "assistant", NULL);
    CDR_TRY(read_calls(t, j, at, m));
    cdr_chat_call *calls = cdr_pool_alloc(t->pool, (size_t)(m->n_calls + 1) * sizeof *calls);
    for (int i = 0; i < m->n_calls; i++) {
        calls[i] = m->calls[i];
        if (!calls[i].id) calls[i].id = cdr_pool_printf(t->pool, "call_%d", p->made++);
    }
    m->calls = calls;
    *p = (pending){ t->n - 1, 0, p->made };
    return CDR_OK;
}

static void say_observation(cdr__talk *t, const char *value, pending *p)
{
    cdr_chat_message *m = cdr__say(t, "tool", value);
    if (p->message < 0 || p->next >= t->m[p->message].n_calls) return;
    const cdr_chat_call *call = &t->m[p->message].calls[p->next++];
    m->name = call->name;
    m->call_id = call->id;
}

static cdr_status read_turn(cdr__talk *t, const cdr_json *j, const char *at, pending *p)
{
    const char *from = cdr_json_str(cdr__field(t->columns, j, "from"), NULL), *role = from ? role_of(from) : NULL, *value = NULL;
    CDR_TRY(cdr__want_text(t, cdr__field(t->columns, j, "value"), cdr_pool_printf(t->pool, "%s.%s", at, cdr__column(t->columns, "value")), &value));
    if (!role)
        REFUSE(t, "data.role", "%s: it is from %s%.40s; known are human, gpt, system, observation and function_call. Mend it, or name its field in columns", at,
               from ? "" : "nobody", from ? from : "");
    if (!value) REFUSE(t, "data.field", "%s: has no value. Write a text, or name its field in columns", at);
    if (strcmp(role, "call") == 0) CDR_TRY(say_call(t, value, at, p));
    else if (strcmp(role, "tool") == 0) say_observation(t, value, p);
    else cdr__say(t, role, value);
    return read_own(t, j, at);
}

/* {"human": ..., "assistant": ...}: two turns. */
static cdr_status read_pair(cdr__talk *t, const cdr_json *j, const char *at)
{
    const cdr_json *ask = cdr_json_get(j, "human"), *reply = cdr_json_get(j, "assistant");
    const char *question = NULL, *answer = NULL;
    if (!ask) ask = cdr_json_get(j, "user");
    if (!ask || !reply) REFUSE(t, "data.field", "%s: needs human and assistant", at);
    CDR_TRY(cdr__want_text(t, ask, at, &question));
    CDR_TRY(cdr__want_text(t, reply, at, &answer));
    cdr__say(t, "user", question);
    cdr__say(t, "assistant", answer);
    return CDR_OK;
}

cdr_status cdr__read_sharegpt(cdr__talk *t, const cdr_json *record)
{
    const char *name = cdr__column(t->columns, "conversations");
    const cdr_json *list = cdr__field(t->columns, record, "conversations");
    if (!list) list = cdr_json_get(record, name = "conversation");
    if (cdr_json_type(list) != CDR_JSON_ARRAY || cdr_json_count(list) == 0) REFUSE(t, "data.field", "%s: is no list of turns, or is empty", name);
    const char *system = NULL;
    CDR_TRY(cdr__want_text(t, cdr__field(t->columns, record, "system"), "system", &system));
    if (system && *system) cdr__say(t, "system", system);
    pending p = { -1, 0, 0 };
    for (int64_t i = 0; i < cdr_json_count(list); i++) {
        const cdr_json *j = cdr_json_at(list, i);
        const char *at = cdr_pool_printf(t->pool, "%s[%lld]", name, (long long)i);
        bool pair = !cdr__field(t->columns, j, "from") && cdr_json_get(j, "assistant");
        CDR_TRY(pair ? read_pair(t, j, at) : read_turn(t, j, at, &p));
    }
    return CDR_OK;
}
