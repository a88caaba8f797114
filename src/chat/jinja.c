/* jinja.c: the format of a checkpoint that brings its own template: chat_template.jinja, or chat_template in tokenizer_config.json.
 *
 * What a template is given is what transformers gives it: messages, tools, documents (none), add_generation_prompt, the special
 * tokens of tokenizer_config.json (bos_token ...), and of the options thinking and enable_thinking, reasoning_effort and
 * thinking_effort. Arguments of calls are given as text, as OpenAI has them, unless the template turns text into quoted text;
 * then as a mapping (found out once, by a conversation with a call).
 *
 * Ids: names of special ids are those ids where the template wrote every byte of the name; what came in as data never is one.
 * What lies between is encoded as one text. A role is the template's own text: it is one of four words.
 *
 * Parts: {% generation %} blocks are what an assistant says. A template without them is rendered again for every assistant's
 * message: with the messages before it and the generation prompt, whose end is where the message begins, and with the messages
 * up to it, whose end is where it ends. Where one of these is no beginning of the whole, the template writes what is past
 * differently (it drops reasoning, say), no mask can be right for all turns, and the conversation is refused.
 * Within a message reasoning and calls are known by the data that they are, and </think> of the template ends the reasoning.
 *
 * Source: transformers, apply_chat_template and its assistant masks; spec/formats.md, 2.4 and 2.5.
 */
#include "chat/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_MAX = 1 << 20, CONFIG_MAX = 64 << 20 };

typedef struct { const char *name; size_t n; int32_t id; } special;
typedef struct { const char *name, *value; } token_name;
typedef struct {
    cdr__jtemplate *t, *with_tools;          /* with_tools: of conversations that declare tools; often NULL */
    special *specials; int n_special;        /* by name, longest first where one begins another */
    int first[257];                          /* specials whose name begins with byte b: first[b] .. first[b + 1] */
    token_name *names; int64_t n_names;      /* bos_token and the like */
    bool mapping_arguments;
    int32_t think, think_end;
    bool prompt_opens_think;
} jinja;

/* ---- what a template is given ---------------------------------------------------------------------------------------------- */
static uint8_t tag_of(const char *key)
{
    if (strcmp(key, "reasoning_content") == 0 || strcmp(key, "reasoning") == 0 || strcmp(key, "thinking") == 0) return CDR__TAG_THINK;
    if (strcmp(key, "tool_calls") == 0) return CDR__TAG_CALLS;
    return strcmp(key, "role") == 0 ? CDR__TAG_TEMPLATE : CDR__TAG_DATA;
}

static bool tagged_text(cdr__jx *x, const char *s, uint8_t tag, cdr__jv *out)
{
    size_t n = strlen(s);
    uint8_t *tags = cdr__jx_alloc(x, n + 1);
    if (!tags) return false;
    memset(tags, tag, n);
    return cdr__jv_string(x, s, tag ? tags : NULL, n, out);
}

static bool put(cdr__jx *x, cdr__jv *dict, const char *key, cdr__jv v)
{
    cdr__jv k;
    return cdr__jv_text(x, key, &k) && cdr__jdict_put(x, dict->u.d, &k, &v);
}

static bool put_text(cdr__jx *x, cdr__jv *dict, const char *key, const char *s)
{
    cdr__jv v;
    return tagged_text(x, s, tag_of(key), &v) && put(x, dict, key, v);
}

/* Arguments as the template wants them: text that is a JSON object becomes a mapping. */
static bool arguments_of(cdr__jx *x, cdr_pool *pool, bool mapping, const char *s, cdr__jv *out)
{
    const cdr_json *j = NULL;
    cdr_err ignored = { 0 };
    if (mapping && cdr_json_parse(pool, s, strlen(s), "arguments", &j, &ignored) == CDR_OK && cdr_json_type(j) == CDR_JSON_OBJECT)
        return cdr__jv_of_json(x, j, CDR__TAG_CALLS, out);
    return tagged_text(x, s, CDR__TAG_CALLS, out);
}

static bool made_calls(cdr__jx *x, cdr_pool *pool, bool mapping, const cdr_chat_message *m, cdr__jv *out)
{
    cdr__jlist *l;
    if (!cdr__jv_list(x, m->n_calls, CDR__J_LIST, &l, out)) return false;
    for (int i = 0; i < m->n_calls; i++) {
        const cdr_chat_call *c = &m->calls[i];
        cdr__jv function, arguments, name, id, type;
        if (!cdr__jv_dict(x, 4, &l->v[i]) || !cdr__jv_dict(x, 2, &function)) return false;
        if (!tagged_text(x, c->name, CDR__TAG_CALLS, &name) || !arguments_of(x, pool, mapping, c->arguments ? c->arguments : "{}", &arguments)) return false;
        if (!put(x, &function, "name", name) || !put(x, &function, "arguments", arguments) || !cdr__jv_text(x, "function", &type)) return false;
        if (c->id && (!tagged_text(x, c->id, CDR__TAG_CALLS, &id) || !put(x, &l->v[i], "id", id))) return false;
        if (!put(x, &l->v[i], "type", type) || !put(x, &l->v[i], "function", function)) return false;
    }
    return true;
}

static bool made_message(cdr__jx *x, cdr_pool *pool, bool mapping, const cdr_chat_message *m, cdr__jv *out)
{
    cdr__jv calls;
    if (!cdr__jv_dict(x, 6, out) || !put_text(x, out, "role", m->role)) return false;
    if (m->content ? !put_text(x, out, "content", m->content) : !put(x, out, "content", cdr__jv_none())) return false;
    if (m->reasoning && !put_text(x, out, "reasoning_content", m->reasoning)) return false;
    if (m->name && !put_text(x, out, "name", m->name)) return false;
    if (m->call_id && !put_text(x, out, "tool_call_id", m->call_id)) return false;
    if (m->n_calls == 0) return true;
    return made_calls(x, pool, mapping, m, &calls) && put(x, out, "tool_calls", calls);
}

/* Calls of a record keep what they hold beside name and arguments. */
static bool mend_arguments(cdr__jx *x, cdr_pool *pool, cdr__jv *calls)
{
    for (int64_t i = 0; cdr__jv_is_list(calls) && i < calls->u.l->n; i++) {
        cdr__jv *c = &calls->u.l->v[i];
        const cdr__jv *f = c->kind == CDR__J_DICT ? cdr__jdict_name(c->u.d, "function") : NULL;
        const cdr__jv *a = f && f->kind == CDR__J_DICT ? cdr__jdict_name(f->u.d, "arguments") : NULL;
        cdr__jv v;
        if (!a || a->kind != CDR__J_STRING) continue;
        if (!arguments_of(x, pool, true, a->u.s->s, &v) || !put(x, &(cdr__jv){ .kind = CDR__J_DICT, .u.d = f->u.d }, "arguments", v)) return false;
    }
    return true;
}

/* One of the words that chat.c lets through: text that a template may make a name of a special id with. */
static bool is_role(const cdr_json *j)
{
    const char *s = cdr_json_str(j, "");
    return strcmp(s, "system") == 0 || strcmp(s, "user") == 0 || strcmp(s, "assistant") == 0 || strcmp(s, "tool") == 0;
}

static bool recorded_message(cdr__jx *x, cdr_pool *pool, bool mapping, bool drop_tools, const cdr_json *j, cdr__jv *out)
{
    if (!cdr__jv_dict(x, cdr_json_count(j), out)) return false;
    for (int64_t i = 0; i < cdr_json_count(j); i++) {
        const char *key = cdr_json_key(j, i);
        cdr__jv v;
        if (drop_tools && strcmp(key, "tool_calls") == 0) continue;
        if (!cdr__jv_of_json(x, cdr_json_at(j, i), strcmp(key, "role") == 0 && !is_role(cdr_json_at(j, i)) ? CDR__TAG_DATA : tag_of(key), &v)) return false;
        if (mapping && strcmp(key, "tool_calls") == 0 && !mend_arguments(x, pool, &v)) return false;
        if (!put(x, out, key, v)) return false;
    }
    return true;
}

/* Messages of the record, where it has one for each of ours. */
static const cdr_json *recorded(const cdr__view *v)
{
    const cdr_json *list = v->c->record ? cdr_json_get(v->c->record, "messages") : NULL;
    return list && cdr_json_type(list) == CDR_JSON_ARRAY && cdr_json_count(list) == v->c->n ? list : NULL;
}

static bool give_messages(cdr__jx *x, const cdr_chat *chat, const cdr__view *v, int n)
{
    const jinja *g = chat->state;
    const cdr_json *record = recorded(v);
    cdr__jlist *l;
    cdr__jv list;
    if (!cdr__jv_list(x, n, CDR__J_LIST, &l, &list)) return false;
    for (int i = 0; i < n; i++) {
        const cdr__turn *t = &v->turn[i];
        const cdr_json *j = record && t->index >= 0 ? cdr_json_at(record, t->index) : NULL;
        bool ok = j && cdr_json_type(j) == CDR_JSON_OBJECT ? recorded_message(x, v->pool, g->mapping_arguments, chat->s.drop_tools, j, &l->v[i])
                                                           : made_message(x, v->pool, g->mapping_arguments, t->m, &l->v[i]);
        if (!ok) return false;
    }
    cdr__jinja_set(x, "messages", list);
    return true;
}

static bool give(cdr__jx *x, const cdr_chat *chat, const cdr__view *v, int n, bool generate)
{
    static const char *const efforts[] = { "none", "low", "medium", "high", "max" };
    const jinja *g = chat->state;
    cdr__jv tools = cdr__jv_none(), text;
    for (int64_t i = 0; i < g->n_names; i++) {
        if (!cdr__jv_text(x, g->names[i].value, &text)) return false;
        cdr__jinja_set(x, g->names[i].name, text);
    }
    if (v->tools && !cdr__jv_of_json(x, v->tools, CDR__TAG_DATA, &tools)) return false;
    cdr__jinja_set(x, "tools", tools);
    cdr__jinja_set(x, "documents", cdr__jv_none());
    cdr__jinja_set(x, "add_generation_prompt", cdr__jv_bool(generate));
    cdr__jinja_set(x, "thinking", cdr__jv_bool(chat->s.thinking));
    cdr__jinja_set(x, "enable_thinking", cdr__jv_bool(chat->s.thinking));
    if (chat->s.effort != CDR_EFFORT_NONE) {
        if (!cdr__jv_text(x, efforts[chat->s.effort], &text)) return false;
        cdr__jinja_set(x, "reasoning_effort", text);
        cdr__jinja_set(x, "thinking_effort", text);
    }
    return give_messages(x, chat, v, n);
}

static size_t bytes_of(const cdr__view *v)
{
    size_t n = 0;
    for (int i = 0; i < v->n; i++) {
        const cdr_chat_message *m = v->turn[i].m;
        n += (m->content ? strlen(m->content) : 0) + (m->reasoning ? strlen(m->reasoning) : 0) + 64;
        for (int k = 0; k < m->n_calls; k++) n += strlen(m->calls[k].name) + (m->calls[k].arguments ? strlen(m->calls[k].arguments) : 0) + 64;
    }
    return n + (size_t)(v->tools ? cdr_json_count(v->tools) : 0) * 4096;
}

/* The first n messages as text. x holds it until cdr__jinja_end, also where this fails. */
static bool render_text(const cdr_chat *chat, const cdr__view *v, int n, bool generate, cdr__jx *x, cdr_err *err)
{
    const jinja *g = chat->state;
    cdr__jinja_begin(x, v->tools && g->with_tools ? g->with_tools : g->t, bytes_of(v), err);
    return give(x, chat, v, n, generate) && cdr__jinja_run(x);
}

/* ---- special ids in what the template wrote ----------------------------------------------------------------------------------- */
static const special *special_at(const jinja *g, const cdr__jout *o, size_t at)
{
    unsigned char c = (unsigned char)o->s.s[at];
    for (int i = g->first[c]; i < g->first[c + 1]; i++) {
        const special *s = &g->specials[i];
        if (s->n > o->s.n - at || memcmp(o->s.s + at, s->name, s->n) != 0) continue;
        size_t k = 0;
        while (k < s->n && ((uint8_t)o->tag.s[at + k] & CDR__TAG_KIND) == 0) k++;
        if (k == s->n) return s;
    }
    return NULL;
}

/* ---- where messages begin and end ------------------------------------------------------------------------------------------------ */
typedef struct { size_t start, end; int turn; } said;                   /* what an assistant says in the text: bytes [start, end) */
typedef struct { size_t end; int32_t message; uint8_t part; } region;    /* bytes up to end */
typedef struct {
    const cdr_chat *chat;
    const cdr__view *v;
    const cdr__jout *o;                      /* the whole */
    said *said; int n_said;
    size_t *end;                             /* [v->n]: where a message ends; SIZE_MAX: not known */
} layout;

static bool is_data(const cdr__jout *o, size_t at) { return ((uint8_t)o->tag.s[at] & CDR__TAG_KIND) != 0; }

static size_t common(const cdr__jout *a, const cdr__jout *b)
{
    size_t n = 0, max = CDR_MIN(a->s.n, b->s.n);
    while (n < max && a->s.s[n] == b->s.s[n]) n++;
    return n;
}

static cdr_status rewrites(const layout *l, int i, const char *what)
{
    return cdr__turn_fail(l->v, i, "chat.rewrites", "the template writes %s differently in a longer conversation than in a shorter one, so that what is "
                          "trained would not be what the model is prompted with. Cut the conversation there, take another chat_format (k3_xtml, kimi_k2, chatml), "
                          "or a template with {%% generation %%}", what);
}

/* Bytes of a prefix of the conversation, and how many of them the whole begins with. refused: the template fails on it. */
static void measure(const layout *l, int n, bool generate, size_t *shared, size_t *bytes, bool *refused)
{
    cdr__jx x;
    cdr_err why = { 0 };
    bool ok = render_text(l->chat, l->v, n, generate, &x, &why);
    *refused = !ok;
    *bytes = x.whole.s.n;
    *shared = ok ? common(&x.whole, l->o) : 0;
    cdr__jinja_end(&x);
}

static cdr_status find_ends(layout *l)
{
    for (int i = 0; i < l->v->n; i++) {
        size_t shared, bytes;
        bool refused, must = strcmp(l->v->turn[i].m->role, "assistant") == 0;
        l->end[i] = i + 1 == l->v->n ? l->o->s.n : SIZE_MAX;
        if (i + 1 == l->v->n) break;
        measure(l, i + 1, false, &shared, &bytes, &refused);
        if (!refused && shared == bytes) l->end[i] = bytes;
        else if (must) return rewrites(l, i, "this message");
    }
    return CDR_OK;
}

static size_t end_before(const layout *l, int i)
{
    for (; i > 0; i--)
        if (l->end[i - 1] != SIZE_MAX) return l->end[i - 1];
    return 0;
}

/* Behind the last special id that ends in (from, to] and was written by the template; SIZE_MAX: there is none. */
static size_t last_special_end(const layout *l, size_t from, size_t to)
{
    size_t found = SIZE_MAX;
    for (size_t at = from; at < to;) {
        const special *s = special_at(l->chat->state, l->o, at);
        at += s ? s->n : 1;
        if (s && at <= to) found = at;
    }
    return found;
}

static cdr_status find_start(layout *l, int i, size_t *start)
{
    size_t shared, bytes, before = end_before(l, i), data = before;
    bool refused;
    measure(l, i, true, &shared, &bytes, &refused);
    if (refused) return cdr__turn_fail(l->v, i, "chat.rewrites", "the template refuses the conversation in front of this message, so that no prompt of it is known");
    while (data < l->end[i] && !is_data(l->o, data)) data++;
    *start = CDR_MIN(bytes, data);
    if (shared == bytes && bytes >= before) return CDR_OK;
    *start = data == before ? before : last_special_end(l, before, CDR_MIN(shared, data));
    return *start == SIZE_MAX ? rewrites(l, i, "the beginning of this message") : CDR_OK;
}

static cdr_status find_said_by_prefixes(layout *l)
{
    CDR_TRY(find_ends(l));
    for (int i = 0; i < l->v->n; i++) {
        if (strcmp(l->v->turn[i].m->role, "assistant") != 0) continue;
        said *s = &l->said[l->n_said++];
        *s = (said){ .end = l->end[i], .turn = i };
        CDR_TRY(find_start(l, i, &s->start));
    }
    return CDR_OK;
}

static cdr_status find_said_by_blocks(layout *l)
{
    int n_runs = 0, n_assistant = 0, turn = 0;
    size_t at = 0;
    for (int i = 0; i < l->v->n; i++) {
        n_assistant += strcmp(l->v->turn[i].m->role, "assistant") == 0;
        l->end[i] = i + 1 == l->v->n ? l->o->s.n : SIZE_MAX;
    }
    while (at < l->o->s.n) {
        size_t from = at;
        bool in = ((uint8_t)l->o->tag.s[at] & CDR__TAG_GENERATED) != 0;
        while (at < l->o->s.n && (((uint8_t)l->o->tag.s[at] & CDR__TAG_GENERATED) != 0) == in) at++;
        if (!in) continue;
        while (turn < l->v->n && strcmp(l->v->turn[turn].m->role, "assistant") != 0) turn++;
        if (turn < l->v->n) l->said[l->n_said++] = (said){ .start = from, .end = at, .turn = turn++ };
        n_runs++;
    }
    if (n_runs == n_assistant) return CDR_OK;
    CDR_FAIL_ID(l->v->err, CDR_EDATA, "chat.generation", "%s: %d {%% generation %%} blocks wrote something for %d messages of the assistant; which is whose is not known",
                ((const jinja *)l->chat->state)->t->where, n_runs, n_assistant);
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------------- */
typedef struct { region *r; int64_t n, cap; cdr_pool *pool; } regions;

static void add_region(regions *r, size_t end, int32_t message, int part)
{
    if (r->n && r->r[r->n - 1].end >= end) return;
    *CDR_PUSH(r->pool, r->r, r->n, r->cap) = (region){ .end = end, .message = message, .part = (uint8_t)part };
}

static int part_of_tag(uint8_t tag)
{
    uint8_t kind = tag & CDR__TAG_KIND;
    return kind == CDR__TAG_THINK ? CDR_PART_THINK : kind == CDR__TAG_CALLS ? CDR_PART_CALLS : CDR_PART_BODY;
}

/* Behind a </think> that the template wrote in [from, to), and the white space that follows it; from: there is none. */
static size_t think_end(const cdr__jout *o, size_t from, size_t to)
{
    static const char mark[] = "</think>";
    size_t n = sizeof mark - 1;
    for (size_t at = from; at + n <= to; at++) {
        if (memcmp(o->s.s + at, mark, n) != 0 || is_data(o, at) || is_data(o, at + n - 1)) continue;
        at += n;
        while (at < to && !is_data(o, at) && strchr(" \t\r\n", o->s.s[at])) at++;
        return at;
    }
    return from;
}

/* Where the id that ends a message begins in [from, to), in *end where it ends; to: there is none. */
static size_t stop_in(const layout *l, size_t from, size_t to, size_t *end)
{
    for (size_t at = from; at < to;) {
        const special *s = special_at(l->chat->state, l->o, at);
        for (int i = 0; s && i < l->chat->n_stop; i++) {
            if (l->chat->stop[i] != s->id) continue;
            *end = at + s->n;
            return at;
        }
        at += s ? s->n : 1;
    }
    *end = to;
    return to;
}

/* What an assistant says, [s->start, s->end): reasoning, text, calls by their data; behind the last data the end. */
static void parts_of_said(const layout *l, const said *s, bool blocks, regions *r)
{
    const cdr__jout *o = l->o;
    int32_t index = l->v->turn[s->turn].index;
    size_t last = s->end, stop_end, at = think_end(o, s->start, s->end);
    while (last > at && !is_data(o, last - 1)) last--;
    if (at > s->start) add_region(r, at, index, CDR_PART_THINK);
    int before = -1;
    while (at < last) {
        size_t from = at;
        while (at < last && !is_data(o, at)) at++;
        int part = part_of_tag((uint8_t)o->tag.s[at]);
        if (at > from) add_region(r, at, index, before == CDR_PART_THINK ? CDR_PART_THINK : part == CDR_PART_CALLS ? CDR_PART_CALLS : before < 0 ? part : CDR_PART_BODY);
        while (at < last && is_data(o, at) && part_of_tag((uint8_t)o->tag.s[at]) == part) at++;
        add_region(r, at, index, part);
        before = part;
    }
    size_t stop = stop_in(l, at, s->end, &stop_end);
    if (stop == s->end) stop = at;                      /* no id ends it: all that follows does */
    add_region(r, stop, index, before == CDR_PART_CALLS ? CDR_PART_CALLS : CDR_PART_BODY);
    add_region(r, stop_end, index, CDR_PART_END);
    add_region(r, s->end, index, blocks ? CDR_PART_END : CDR_PART_INPUT);
}

/* Bytes [from, to) of a message that nobody says: opening, data, the rest. */
static void parts_of_given(const layout *l, size_t from, size_t to, int32_t index, regions *r)
{
    size_t first = from, last = to, stop_end;
    while (first < to && !is_data(l->o, first)) first++;
    while (last > first && !is_data(l->o, last - 1)) last--;
    add_region(r, first == to ? to : first, index, CDR_PART_OPEN);
    if (first == to) return;
    add_region(r, last, index, CDR_PART_BODY);
    size_t stop = stop_in(l, last, to, &stop_end);
    if (stop < to) add_region(r, stop_end, index, CDR_PART_END);
    add_region(r, to, index, CDR_PART_INPUT);
}

static void make_regions(const layout *l, bool blocks, regions *r)
{
    size_t at = 0;
    int k = 0;
    for (int i = 0; i < l->v->n; i++) {
        bool assistant = strcmp(l->v->turn[i].m->role, "assistant") == 0;
        int32_t index = l->v->turn[i].index;
        if (assistant) {
            const said *s = &l->said[k++];
            add_region(r, s->start, blocks ? -1 : index, CDR_PART_OPEN);
            parts_of_said(l, s, blocks, r);
            at = s->end;
        } else if (l->end[i] != SIZE_MAX && l->end[i] > at) {
            parts_of_given(l, at, l->end[i], blocks ? -1 : index, r);
            at = l->end[i];
        }
    }
    add_region(r, l->o->s.n, -1, CDR_PART_OPEN);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------------- */
static void emit(const jinja *g, const cdr__jout *o, const regions *r, cdr__emit *e)
{
    int64_t k = 0;
    size_t at = 0;
    while (at < o->s.n) {
        while (k + 1 < r->n && r->r[k].end <= at) k++;
        cdr__emit_at(e, r->r[k].message, r->r[k].part);
        const special *s = special_at(g, o, at);
        if (s) {
            cdr__emit_special(e, s->id);
            at += s->n;
            continue;
        }
        size_t to = at + 1;
        while (to < o->s.n && to < r->r[k].end && g->first[(unsigned char)o->s.s[to]] == g->first[(unsigned char)o->s.s[to] + 1]) to++;
        cdr__emit_text(e, o->s.s + at, to - at);
        at = to;
    }
}

static cdr_status emit_whole(const cdr_chat *chat, const cdr__view *v, const cdr__jx *x, cdr__emit *e)
{
    const jinja *g = chat->state;
    bool blocks = x->t->has_generation;
    layout l = { .chat = chat, .v = v, .o = &x->whole };
    regions r = { .pool = v->pool };
    if (v->generate) {
        add_region(&r, SIZE_MAX, -1, CDR_PART_OPEN);
    } else {
        l.said = cdr_pool_alloc(v->pool, sizeof *l.said * (size_t)(v->n + 1));
        l.end = cdr_pool_alloc(v->pool, sizeof *l.end * (size_t)(v->n + 1));
        CDR_TRY(blocks ? find_said_by_blocks(&l) : find_said_by_prefixes(&l));
        make_regions(&l, blocks, &r);
    }
    if (r.n) emit(g, &x->whole, &r, e);
    return CDR_OK;
}

static cdr_status render(const cdr_chat *chat, const cdr__view *v, cdr__emit *e)
{
    cdr__jx x;
    bool ok = render_text(chat, v, v->n, v->generate, &x, v->err);
    cdr_status st = ok ? emit_whole(chat, v, &x, e) : CDR_EDATA;
    cdr__jinja_end(&x);
    return st;
}

/* ---- opening --------------------------------------------------------------------------------------------------------------------------- */
static int by_first(const void *a, const void *b)
{
    const special *x = a, *y = b;
    int order = (int)(unsigned char)x->name[0] - (int)(unsigned char)y->name[0];
    if (order) return order;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : strcmp(x->name, y->name);
}

static void list_specials(cdr_chat *chat, jinja *g)
{
    const cdr_tokenizer *tok = chat->s.tokenizer;
    int64_t n = 0, cap = 0;
    for (int id = 0; id < cdr_tokenizer_vocab(tok); id++) {
        const char *name = cdr_tokenizer_special_name(tok, id);
        if (name && name[0]) *CDR_PUSH(chat->pool, g->specials, n, cap) = (special){ .name = name, .n = strlen(name), .id = id };
    }
    g->n_special = (int)n;
    if (n) qsort(g->specials, (size_t)n, sizeof *g->specials, by_first);
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < g->n_special && (int)(unsigned char)g->specials[i].name[0] < b) i++;
        g->first[b] = i;
    }
    g->think = cdr_tokenizer_special(tok, "<think>");
    g->think_end = cdr_tokenizer_special(tok, "</think>");
}

static cdr_status parse_template(cdr_chat *chat, const char *s, size_t n, const char *where, cdr__jtemplate **t, cdr_err *err)
{
    cdr__chat_mix(chat, s, n);
    return cdr__jinja_parse(s, n, where, t, err);
}

/* tokenizer_config.json: a text, or a list of {name, template} of which default and tool_use are known. */
static cdr_status template_of_config(cdr_chat *chat, jinja *g, const cdr_json *config, cdr_err *err)
{
    const cdr_json *t = cdr_json_get(config, "chat_template");
    const char *s = cdr_json_str(t, NULL);
    if (s) return parse_template(chat, s, strlen(s), "chat_template", &g->t, err);
    for (int64_t i = 0; t && cdr_json_type(t) == CDR_JSON_ARRAY && i < cdr_json_count(t); i++) {
        const char *name = cdr_json_str(cdr_json_get(cdr_json_at(t, i), "name"), ""), *text = cdr_json_str(cdr_json_get(cdr_json_at(t, i), "template"), NULL);
        if (text && strcmp(name, "default") == 0 && !g->t) CDR_TRY(parse_template(chat, text, strlen(text), "chat_template default", &g->t, err));
        if (text && strcmp(name, "tool_use") == 0 && !g->with_tools) CDR_TRY(parse_template(chat, text, strlen(text), "chat_template tool_use", &g->with_tools, err));
    }
    if (g->t) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EDATA, "chat.no-template", "%s: neither chat_template.jinja nor a chat_template in tokenizer_config.json is there. Set data.chat_format to "
        "k3_xtml, kimi_k2, "
                "chatml or none", chat->s.dir);
}

static cdr_status read_json(cdr_chat *chat, const char *path, const cdr_json **j, cdr_err *err)
{
    char *data;
    size_t bytes;
    CDR_TRY(cdr_file_read(path, CONFIG_MAX, &data, &bytes, err));
    cdr_status st = cdr_json_parse(chat->pool, data, bytes, path, j, err);
    cdr_free(data);
    return st;
}

/* Every NAME_token of the file, a text or {"content": text}: variables of the template, and part of what ids depend on. */
static void token_names(cdr_chat *chat, jinja *g, const cdr_json *config)
{
    int64_t cap = 0;
    for (int64_t i = 0; i < cdr_json_count(config); i++) {
        const char *key = cdr_json_key(config, i);
        const cdr_json *v = cdr_json_at(config, i);
        const char *s = cdr_json_str(cdr_json_type(v) == CDR_JSON_OBJECT ? cdr_json_get(v, "content") : v, NULL);
        size_t n = strlen(key);
        if (!s || n < 7 || strcmp(key + n - 6, "_token") != 0) continue;
        *CDR_PUSH(chat->pool, g->names, g->n_names, cap) = (token_name){ .name = key, .value = s };
        cdr__chat_mix(chat, key, n);
        cdr__chat_mix(chat, s, strlen(s));
        if (strcmp(key, "eos_token") == 0) cdr__chat_stop(chat, cdr_tokenizer_special(chat->s.tokenizer, s));
    }
}

/* ---- what a template is like, found out by conversations of our own ------------------------------------------------------------------------ */
static const cdr_chat_call PROBE_CALL = { .id = "call00000", .name = "f", .arguments = "{\"a\": \"b\"}" };
static const cdr_chat_message PROBE[] = {
    { .role = "user", .content = "x" }, { .role = "assistant", .content = "y" },
    { .role = "user", .content = "x" }, { .role = "assistant", .content = "", .calls = &PROBE_CALL, .n_calls = 1 },
};

static bool probe(const cdr_chat *chat, int from, int n, bool generate, cdr_pool *pool, cdr__jx *x)
{
    cdr_err ignored = { 0 };
    cdr__turn turn[2];
    cdr_conversation c = { .message = PROBE + from, .n = n };
    for (int i = 0; i < n; i++) turn[i] = (cdr__turn){ .m = &PROBE[from + i], .index = i };
    cdr__view v = { .pool = pool, .c = &c, .turn = turn, .n = n, .err = &ignored };
    return render_text(chat, &v, n, generate, x, &ignored);
}

static bool holds(const cdr__jx *x, const char *s) { return x->whole.s.n > 0 && memmem(x->whole.s.s, x->whole.s.n, s, strlen(s)) != NULL; }

/* The first special id behind what the assistant says ends its messages. */
static void probe_stop(cdr_chat *chat, cdr_pool *pool)
{
    cdr__jx x;
    if (probe(chat, 0, 2, false, pool, &x)) {
        size_t at = x.whole.s.n;
        while (at > 0 && !is_data(&x.whole, at - 1)) at--;
        for (const special *s = NULL; at < x.whole.s.n && !s; at++) {
            s = special_at(chat->state, &x.whole, at);
            if (s) cdr__chat_stop(chat, s->id);
        }
    }
    cdr__jinja_end(&x);
}

/* Text arguments that come out with escaped quotes, or not at all, are wanted as a mapping. */
static void probe_arguments(cdr_chat *chat, jinja *g, cdr_pool *pool)
{
    cdr__jx x;
    bool ok = probe(chat, 2, 2, false, pool, &x), plain = ok && holds(&x, PROBE_CALL.arguments);
    cdr__jinja_end(&x);
    if (plain) return;
    g->mapping_arguments = true;
    ok = probe(chat, 2, 2, false, pool, &x) && holds(&x, "b");
    cdr__jinja_end(&x);
    if (!ok) g->mapping_arguments = false;
}

static void probe_prompt(cdr_chat *chat, jinja *g, cdr_pool *pool)
{
    cdr__jx x;
    if (probe(chat, 0, 1, true, pool, &x)) {
        size_t n = x.whole.s.n;
        while (n > 0 && strchr(" \t\r\n", x.whole.s.s[n - 1])) n--;
        g->prompt_opens_think = n >= 7 && memcmp(x.whole.s.s + n - 7, "<think>", 7) == 0;
    }
    cdr__jinja_end(&x);
}

static cdr_status open_jinja(cdr_chat *chat, cdr_err *err)
{
    jinja *g = cdr_pool_alloc(chat->pool, sizeof *g);
    const cdr_json *config = NULL;
    chat->state = g;
    if (!chat->s.dir)
        CDR_FAIL_ID(err, CDR_EUSER, "chat.no-template", "chat format jinja is the template of a checkpoint, and the model is no directory. Set data.chat_format to "
            "k3_xtml, kimi_k2, chatml or none");
    const char *file = cdr_pool_printf(chat->pool, "%s/chat_template.jinja", chat->s.dir), *json = cdr_pool_printf(chat->pool, "%s/tokenizer_config.json", chat->s.dir);
    if (cdr_exists(json)) CDR_TRY(read_json(chat, json, &config, err));
    if (cdr_exists(file)) {
        char *data;
        size_t bytes;
        CDR_TRY(cdr_file_read(file, SOURCE_MAX, &data, &bytes, err));
        cdr_status st = parse_template(chat, data, bytes, "chat_template.jinja", &g->t, err);
        cdr_free(data);
        CDR_TRY(st);
    } else {
        CDR_TRY(template_of_config(chat, g, config, err));
    }
    list_specials(chat, g);
    if (config && cdr_json_type(config) == CDR_JSON_OBJECT) token_names(chat, g, config);
    cdr_pool *pool = cdr_pool_new();
    probe_stop(chat, pool);
    probe_arguments(chat, g, pool);
    probe_prompt(chat, g, pool);
    cdr_pool_free(pool);
    return CDR_OK;
}

static void close_jinja(cdr_chat *chat)
{
    jinja *g = chat->state;
    if (!g) return;
    cdr__jinja_free(g->t);
    cdr__jinja_free(g->with_tools);
}

static void split(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning)
{
    const jinja *g = chat->state;
    cdr__split_think(chat->s.tokenizer, ids, n, (cdr__think){ .begin = g->think, .end = g->think_end, .inside = g->prompt_opens_think }, content, reasoning);
}

const cdr__format cdr__chat_jinja = { .name = "jinja", .open = open_jinja, .render = render, .split = split, .close = close_jinja };
