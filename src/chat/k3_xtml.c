/* k3_xtml.c: the format of Kimi K3, in which a conversation is a list of segments.
 *
 *   element:  <|open|>tag key="value"<|sep|> ... <|close|>tag<|sep|>
 *   message:  <|open|>message role="user"<|sep|>TEXT<|close|>message<|sep|><|end_of_msg|>
 *   order:    tool-declare, thinking-effort, the messages, and where an answer is wanted
 *             <|open|>message role="assistant"<|sep|><|open|>think<|sep|>     (response where thinking is off)
 *
 * Only the four marks are special ids. Every other piece (`message`, ` role`, `="`, `user`, `"`, a text) is a segment that
 * is encoded alone: a segment's end is a token boundary, so joining the text first would give other ids. Empty segments
 * are nothing. Values of attributes escape & and " only.
 * Assistant: think (thinking mode only, there even when empty; reasoning of white space is empty), response, tools.
 * Arguments of a call are typed elements, strings raw, others as Python writes JSON; blank arguments are none; arguments
 * that are no JSON stand as they are in a json element, which is given and never learnt; JSON that is no object is refused.
 * Results are put in the order of the calls where every result of a run names one; otherwise the run stays as it is. The
 * number of a result counts from 1 behind each assistant message.
 *
 * The sentence of thinking-effort belongs to the release: chat_texts.json beside the checkpoint's tokenizer holds it,
 *   {"thinking_effort": "... {effort} ...", "tool_declare": "... {tools} ..."}
 * and a conversation that needs what is not there is refused. tool_declare has a default: the sentence that the release was trained
 * with, a constant of the protocol as the names of special ids are; chat_texts.json overrides it.
 * Source: Kimi K3 technical report, appendix F; spec/formats.md, 2.4; spec/model.md, 6.2; details that these leave open
 * (blank arguments, empty segments, numbering) as three independent public ports of the release's encoder agree on them.
 */
#include "chat/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t open, close, sep, end;
    const char *effort[2], *tools[2];      /* text before and behind the placeholder; effort[0] NULL: not known */
} k3;

typedef struct { const k3 *k; cdr__emit *e; const cdr__view *v; } writer;

/* ---- segments ------------------------------------------------------------------------------------------------------- */
static void text(writer *w, const char *s)
{
    cdr__emit_str(w->e, s);
    cdr__emit_cut(w->e);
}

static void begin_open(writer *w, const char *tag)
{
    cdr__emit_special(w->e, w->k->open);
    text(w, tag);
}

static void attribute(writer *w, const char *key, const char *value)
{
    cdr__emit_str(w->e, " ");
    text(w, key);
    text(w, "=\"");
    for (const char *c = value; *c; c++) {
        if (*c == '&') cdr__emit_str(w->e, "&amp;");
        else if (*c == '"') cdr__emit_str(w->e, "&quot;");
        else cdr__emit_text(w->e, c, 1);
    }
    cdr__emit_cut(w->e);
    text(w, "\"");
}

static void end_open(writer *w) { cdr__emit_special(w->e, w->k->sep); }

static void open_tag(writer *w, const char *tag)
{
    begin_open(w, tag);
    end_open(w);
}

static void close_tag(writer *w, const char *tag)
{
    cdr__emit_special(w->e, w->k->close);
    text(w, tag);
    cdr__emit_special(w->e, w->k->sep);
}

static void end_message(writer *w)
{
    cdr__emit_at(w->e, w->e->message, CDR_PART_END);
    close_tag(w, "message");
    cdr__emit_special(w->e, w->k->end);
}

/* ---- messages of the system that nobody wrote ------------------------------------------------------------------------ */
static void internal(writer *w, const char *type, const char *const around[2], const char *inside)
{
    cdr_text body = { 0 };
    cdr_text_printf(&body, "%s%s%s", around[0], inside, around[1]);
    cdr__emit_at(w->e, -1, CDR_PART_OPEN);
    begin_open(w, "message");
    attribute(w, "role", "system");
    attribute(w, "type", type);
    end_open(w);
    cdr__emit_at(w->e, -1, CDR_PART_BODY);
    text(w, body.s);
    end_message(w);
    cdr_text_free(&body);
}

static cdr_status declare_tools(writer *w)
{
    const cdr__py_style style = { .item = ",", .key = ":", .sort = true };
    cdr_text json = { 0 };
    bool ok = cdr__py_json(&json, w->v->tools, &style);
    if (ok) internal(w, "tool-declare", w->k->tools, json.s);
    cdr_text_free(&json);
    if (ok) return CDR_OK;
    CDR_FAIL_ID(w->v->err, CDR_EDATA, "chat.number", "tools: a whole number beyond 64 bits, whose digits are not kept; write it as a string");
}

/* ---- calls ------------------------------------------------------------------------------------------------------------ */
static const char *type_of(const cdr_json *j)
{
    static const char *const names[] = { "null", "boolean", "number", "number", "string", "array", "object" };
    return names[cdr_json_type(j)];
}

static bool is_blank(const char *s) { return !s || s[strspn(s, " \t\r\n\f\v")] == 0; }

/* Python reads these as numbers, our reader does not: refused rather than taken for text that is no JSON. */
static bool names_no_number(const char *s)
{
    bool quoted = false;
    for (; *s; s++) {
        if (*s == '\\' && quoted && s[1]) s++;
        else if (*s == '"') quoted = !quoted;
        else if (!quoted && (strncmp(s, "NaN", 3) == 0 || strncmp(s, "Infinity", 8) == 0)) return true;
    }
    return false;
}

static cdr_status argument(writer *w, int turn, const char *key, const cdr_json *value)
{
    begin_open(w, "argument");
    attribute(w, "key", key);
    attribute(w, "type", type_of(value));
    end_open(w);
    cdr_text json = { 0 };
    bool is_string = cdr_json_type(value) == CDR_JSON_STRING;
    bool ok = is_string || cdr__py_json(&json, value, &cdr__py_default);
    if (ok) text(w, is_string ? cdr_json_str(value, "") : json.s);
    cdr_text_free(&json);
    if (!ok)
        return cdr__turn_fail(w->v, turn, "chat.number", "argument %.80s of a call has a whole number beyond 64 bits, whose digits are not kept; "
                              "write it as a string", key);
    close_tag(w, "argument");
    return CDR_OK;
}

static cdr_status arguments(writer *w, int turn, const cdr_chat_call *call)
{
    const cdr_json *root = NULL;
    cdr_err why = { 0 };
    if (is_blank(call->arguments)) return CDR_OK;
    if (cdr_json_parse(w->v->pool, call->arguments, strlen(call->arguments), "arguments", &root, &why) != CDR_OK) {
        if (strcmp(why.id, "json.syntax") != 0 || names_no_number(call->arguments))
            return cdr__turn_fail(w->v, turn, "chat.arguments", "arguments of the call of %.80s: %.400s", call->name,
                                  strcmp(why.id, "json.syntax") != 0 ? why.text : "NaN and Infinity are no JSON; write them as strings");
        uint8_t part = w->e->part;
        cdr__emit_at(w->e, w->e->message, CDR_PART_INPUT);
        begin_open(w, "json");
        attribute(w, "type", "object");
        end_open(w);
        text(w, call->arguments);
        close_tag(w, "json");
        cdr__emit_at(w->e, w->e->message, part);
        return CDR_OK;
    }
    if (cdr_json_type(root) != CDR_JSON_OBJECT)
        return cdr__turn_fail(w->v, turn, "chat.arguments", "arguments of the call of %.80s are JSON, but no object; the format has no form for them. "
                              "Write {\"NAME\": VALUE}", call->name);
    for (int64_t i = 0; i < cdr_json_count(root); i++) CDR_TRY(argument(w, turn, cdr_json_key(root, i), cdr_json_at(root, i)));
    return CDR_OK;
}

static cdr_status calls(writer *w, int turn, const cdr_chat_message *m)
{
    cdr__emit_at(w->e, w->e->message, CDR_PART_CALLS);
    open_tag(w, "tools");
    for (int i = 0; i < m->n_calls; i++) {
        char number[16];
        (void)snprintf(number, sizeof number, "%d", i + 1);
        begin_open(w, "call");
        attribute(w, "tool", m->calls[i].name);
        attribute(w, "index", number);
        end_open(w);
        CDR_TRY(arguments(w, turn, &m->calls[i]));
        close_tag(w, "call");
    }
    close_tag(w, "tools");
    return CDR_OK;
}

/* ---- messages ----------------------------------------------------------------------------------------------------------- */
static cdr_status assistant(writer *w, int turn, const cdr_chat_message *m, bool thinking)
{
    if (thinking) {
        cdr__emit_at(w->e, w->e->message, CDR_PART_THINK);
        open_tag(w, "think");
        if (!is_blank(m->reasoning)) text(w, m->reasoning);
        close_tag(w, "think");
    }
    cdr__emit_at(w->e, w->e->message, CDR_PART_BODY);
    open_tag(w, "response");
    if (m->content) text(w, m->content);
    close_tag(w, "response");
    return m->n_calls > 0 ? calls(w, turn, m) : CDR_OK;
}

/* A turn as it is to be rendered. Of a result: whose calls it answers, and its own call, where that is known. */
typedef struct { int turn, place; const char *tool; const cdr_chat_message *caller; } slot;
typedef struct { const char *id; int place; } named;

static int by_id(const void *a, const void *b)
{
    const named *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

static int by_place(const void *a, const void *b)
{
    const slot *x = a, *y = b;
    int order = (x->place > y->place) - (x->place < y->place);
    return order ? order : (x->turn > y->turn) - (x->turn < y->turn);
}

/* First call of that id; -1: none. index is sorted by (id, place). */
static int find_call(const named *index, int n, const char *id)
{
    int low = 0, high = n;
    if (!id) return -1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (strcmp(index[middle].id, id) < 0) low = middle + 1;
        else high = middle;
    }
    return low < n && strcmp(index[low].id, id) == 0 ? index[low].place : -1;
}

/* Results slots[0 .. n), which one message's calls asked for: in order of the calls where each names one. */
static void sort_results(const cdr__view *v, slot *slots, int n, const cdr_chat_message *caller)
{
    int n_index = 0;
    named *index = cdr_pool_alloc(v->pool, sizeof *index * (size_t)(caller ? caller->n_calls + 1 : 1));
    for (int k = 0; caller && k < caller->n_calls; k++)
        if (caller->calls[k].id) index[n_index++] = (named){ .id = caller->calls[k].id, .place = k };
    qsort(index, (size_t)n_index, sizeof *index, by_id);
    bool all = true;
    for (int i = 0; i < n; i++) {
        slots[i].caller = caller;
        slots[i].place = find_call(index, n_index, v->turn[slots[i].turn].m->call_id);
        all = all && slots[i].place >= 0;
    }
    if (!all) return;
    for (int i = 0; i < n; i++) slots[i].tool = caller->calls[slots[i].place].name;
    qsort(slots, (size_t)n, sizeof *slots, by_place);
}

static bool has_role(const cdr__view *v, int i, const char *role) { return i < v->n && strcmp(v->turn[i].m->role, role) == 0; }

static slot *order_turns(const cdr__view *v)
{
    slot *slots = cdr_pool_alloc(v->pool, sizeof *slots * (size_t)(v->n + 1));
    const cdr_chat_message *caller = NULL;
    for (int i = 0; i < v->n; i++) slots[i].turn = i;
    for (int i = 0; i < v->n;) {
        int from = i;
        while (has_role(v, i, "tool")) i++;
        if (i > from) sort_results(v, slots + from, i - from, caller);
        if (has_role(v, i, "assistant")) caller = v->turn[i].m;
        i++;
    }
    return slots;
}

static cdr_status result_attributes(writer *w, const slot *s, int number)
{
    const char *tool = s->tool ? s->tool : w->v->turn[s->turn].m->name;
    char text_of[16];
    if (!tool && s->caller && number <= s->caller->n_calls) tool = s->caller->calls[number - 1].name;
    if (!tool)
        return cdr__turn_fail(w->v, s->turn, "chat.tool-name", "a result of no known tool: it has no name, and its tool_call_id is that of no call before it. "
                              "Give it a name");
    (void)snprintf(text_of, sizeof text_of, "%d", number);
    attribute(w, "tool", tool);
    attribute(w, "index", text_of);
    return CDR_OK;
}

static cdr_status message(writer *w, const slot *s, bool thinking, int number)
{
    const cdr__turn *t = &w->v->turn[s->turn];
    const cdr_chat_message *m = t->m;
    bool tool = strcmp(m->role, "tool") == 0;
    cdr__emit_at(w->e, t->index, CDR_PART_OPEN);
    begin_open(w, "message");
    attribute(w, "role", m->role);
    if (tool) CDR_TRY(result_attributes(w, s, number));
    else if (m->name && m->name[0]) attribute(w, "name", m->name);
    end_open(w);
    cdr__emit_at(w->e, t->index, CDR_PART_BODY);
    if (strcmp(m->role, "assistant") == 0) CDR_TRY(assistant(w, s->turn, m, thinking));
    else if (m->content) text(w, m->content);
    end_message(w);
    return CDR_OK;
}

static void generation_prompt(writer *w, bool thinking)
{
    cdr__emit_at(w->e, -1, CDR_PART_OPEN);
    begin_open(w, "message");
    attribute(w, "role", "assistant");
    end_open(w);
    open_tag(w, thinking ? "think" : "response");
}

static cdr_status render(const cdr_chat *chat, const cdr__view *v, cdr__emit *e)
{
    static const char *const efforts[] = { "none", "low", "medium", "high", "max" };
    writer w = { .k = chat->state, .e = e, .v = v };
    if (v->tools) CDR_TRY(declare_tools(&w));
    if (chat->s.effort != CDR_EFFORT_NONE) internal(&w, "thinking-effort", w.k->effort, efforts[chat->s.effort]);
    slot *slots = order_turns(v);
    int number = 0;
    for (int i = 0; i < v->n; i++) {
        if (has_role(v, slots[i].turn, "assistant")) number = 0;
        if (has_role(v, slots[i].turn, "tool")) number++;
        CDR_TRY(message(&w, &slots[i], chat->s.thinking, number));
    }
    if (v->generate) generation_prompt(&w, chat->s.thinking);
    return CDR_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------------- */
static cdr_status split_text(cdr_pool *pool, const char *path, const char *key, const char *s, const char *placeholder, const char *out[2], cdr_err *err)
{
    const char *at = s ? strstr(s, placeholder) : NULL;
    if (!at || strstr(at + 1, placeholder))
        CDR_FAIL_ID(err, CDR_EDATA, "chat.texts", "%s: %s is no text that holds %s once; the place where it belongs is not known. Correct it there",
                    path, key, placeholder);
    const char *begin = s + strspn(s, " \t\r\n\f\v"), *end = s + strlen(s);
    while (end > at + strlen(placeholder) && strchr(" \t\r\n\f\v", end[-1])) end--;
    const char *behind = at + strlen(placeholder);
    out[0] = cdr_pool_strndup(pool, begin, (size_t)(at - CDR_MIN(begin, at)));
    out[1] = cdr_pool_strndup(pool, behind, (size_t)(end - behind));
    return CDR_OK;
}

static cdr_status read_texts(cdr_chat *chat, k3 *k, const char *path, cdr_err *err)
{
    char *data;
    size_t bytes;
    const cdr_json *root = NULL;
    CDR_TRY(cdr_file_read(path, 1 << 20, &data, &bytes, err));
    cdr__chat_mix(chat, data, bytes);
    cdr_status st = cdr_json_parse(chat->pool, data, bytes, path, &root, err);
    cdr_free(data);
    CDR_TRY(st);
    if (cdr_json_type(root) != CDR_JSON_OBJECT) CDR_FAIL_ID(err, CDR_EDATA, "chat.texts", "%s: no JSON object", path);
    for (int64_t i = 0; i < cdr_json_count(root); i++) {
        const char *key = cdr_json_key(root, i), *s = cdr_json_str(cdr_json_at(root, i), NULL);
        bool effort = strcmp(key, "thinking_effort") == 0;
        if (!effort && strcmp(key, "tool_declare") != 0)
            CDR_FAIL_ID(err, CDR_EDATA, "chat.texts", "%s: unknown key %.80s; it may hold thinking_effort and tool_declare", path, key);
        CDR_TRY(split_text(chat->pool, path, key, s, effort ? "{effort}" : "{tools}", effort ? k->effort : k->tools, err));
    }
    return CDR_OK;
}

static cdr_status open_k3(cdr_chat *chat, cdr_err *err)
{
    k3 *k = cdr_pool_alloc(chat->pool, sizeof *k);
    chat->state = k;
    /* A constant of the protocol, like the name of a special id: other words would be another format. Source: the ports named above. */
    k->tools[0] = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
    k->tools[1] = "\n```";
    CDR_TRY(cdr__chat_special(chat, "<|open|>", &k->open, err));
    CDR_TRY(cdr__chat_special(chat, "<|close|>", &k->close, err));
    CDR_TRY(cdr__chat_special(chat, "<|sep|>", &k->sep, err));
    CDR_TRY(cdr__chat_special(chat, "<|end_of_msg|>", &k->end, err));
    cdr__chat_stop(chat, k->end);
    const char *path = cdr_pool_printf(chat->pool, "%s/chat_texts.json", chat->s.dir ? chat->s.dir : ".");
    if (chat->s.dir && cdr_exists(path)) CDR_TRY(read_texts(chat, k, path, err));
    if (chat->s.effort != CDR_EFFORT_NONE && !k->effort[0])
        CDR_FAIL_ID(err, CDR_EDATA, "chat.texts", "%s is not there, and data.chat_options asks for a thinking_effort; the sentence that announces it "
                    "belongs to the release. Put it there as {\"thinking_effort\": \"... {effort} ...\"}, or set thinking_effort: none", path);
    return CDR_OK;
}

/* ---- what a model said -------------------------------------------------------------------------------------------------------- */
/* An answer begins inside the element that the generation prompt opened. Elements other than think and response (calls)
 * go into the content as they stand, marks by name. */
static void split(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning)
{
    const k3 *k = chat->state;
    const cdr_tokenizer *tok = chat->s.tokenizer;
    cdr_text tag = { 0 };
    enum { OUTSIDE, THINK, RESPONSE, OTHER } place = chat->s.thinking ? THINK : RESPONSE;
    enum { BODY, OPENING, CLOSING } state = BODY;
    for (int64_t i = 0; i < n; i++) {
        bool mark = ids[i] == k->open || ids[i] == k->close || ids[i] == k->sep;
        if (place == OTHER) (void)cdr_tokenizer_decode(tok, &ids[i], 1, mark, content);
        if (ids[i] == k->open || ids[i] == k->close) {
            state = ids[i] == k->open ? OPENING : CLOSING;
            tag.n = 0;
        } else if (ids[i] == k->sep && state != BODY) {
            bool is_tools = tag.n > 0 && strcmp(tag.s, "tools") == 0;
            if (state == CLOSING && (place != OTHER || is_tools)) place = OUTSIDE;
            else if (state == OPENING && place == OUTSIDE) {
                place = tag.n > 0 && strcmp(tag.s, "think") == 0 ? THINK : tag.n > 0 && strcmp(tag.s, "response") == 0 ? RESPONSE : OTHER;
                if (place == OTHER) cdr_text_printf(content, "<|open|>%s<|sep|>", tag.n > 0 ? tag.s : "");
            }
            state = BODY;
        } else if (state != BODY) {
            (void)cdr_tokenizer_decode(tok, &ids[i], 1, false, &tag);
        } else if (place != OTHER && place != OUTSIDE) {
            (void)cdr_tokenizer_decode(tok, &ids[i], 1, false, place == THINK ? reasoning : content);
        }
    }
    cdr_text_free(&tag);
}

const cdr__format cdr__chat_k3_xtml = { .name = "k3_xtml", .open = open_k3, .render = render, .split = split };
