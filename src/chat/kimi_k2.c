/* kimi_k2.c: the markers of Kimi-K2, Kimi-Linear and Moonlight.
 *
 *   <|im_system|>tool_declare<|im_middle|>JSON<|im_end|>              where tools are declared, first
 *   <|im_user|>user<|im_middle|>TEXT<|im_end|>                        <|im_system|>, <|im_assistant|> alike; a name replaces the role's
 *   calls, behind the text: <|tool_calls_section_begin|> { <|tool_call_begin|>ID<|tool_call_argument_begin|>JSON<|tool_call_end|> }
 *                           <|tool_calls_section_end|>
 *   results: <|im_system|>tool<|im_middle|>## Return of ID\nTEXT<|im_end|>
 *   thinking: <think>REASONING</think> in front of an assistant's text; reasoning before the last user message is left out, as
 *             the templates of these models do, the empty pair stays. The model itself says <think> behind the prompt.
 *
 * What lies between two markers is encoded as one text, as the tokenizers of these models do. No system text is added: the
 * templates' default is a sentence of theirs; data.chat_options.system sets one, and format jinja takes the template as it is.
 * Source: spec/formats.md, 2.4; the chat templates of Kimi-K2-Instruct and Kimi-K2-Thinking.
 */
#include "chat/internal.h"

#include <string.h>

typedef struct {
    int32_t system, user, assistant, middle, end;
    int32_t section_begin, section_end, call_begin, call_argument, call_end;      /* -1: the tokenizer has none */
    int32_t think, think_end;                                                     /* -1: they are text */
} k2;

static void mark(cdr__emit *e, int32_t id, const char *text)
{
    if (id >= 0) cdr__emit_special(e, id);
    else cdr__emit_str(e, text);
}

static cdr_status no_tools(const cdr__view *v, const char *what)
{
    CDR_FAIL_ID(v->err, CDR_EDATA, "chat.no-special", "chat format kimi_k2: %s, and the tokenizer has no <|tool_calls_section_begin|> and the other marks of calls. "
                "Set data.chat_options.tools to drop, or take the tokenizer of a model that calls tools", what);
}

static cdr_status calls(const k2 *k, const cdr__view *v, int i, cdr__emit *e)
{
    const cdr_chat_message *m = v->turn[i].m;
    if (m->n_calls == 0) return CDR_OK;
    if (k->section_begin < 0) return no_tools(v, "a message has tool calls");
    cdr__emit_at(e, v->turn[i].index, CDR_PART_CALLS);
    cdr__emit_special(e, k->section_begin);
    for (int c = 0; c < m->n_calls; c++) {
        if (!m->calls[c].id || !m->calls[c].id[0])
            return cdr__turn_fail(v, i, "chat.call", "the call of %.80s has no id; the format names a call by it. Give it one, functions.%.80s:%d as these models do",
                                  m->calls[c].name, m->calls[c].name, c);
        cdr__emit_special(e, k->call_begin);
        cdr__emit_str(e, m->calls[c].id);
        cdr__emit_special(e, k->call_argument);
        cdr__emit_str(e, m->calls[c].arguments ? m->calls[c].arguments : "{}");
        cdr__emit_special(e, k->call_end);
    }
    cdr__emit_special(e, k->section_end);
    return CDR_OK;
}

static cdr_status message(const cdr_chat *chat, const cdr__view *v, int i, bool keep_reasoning, cdr__emit *e)
{
    const k2 *k = chat->state;
    const cdr_chat_message *m = v->turn[i].m;
    bool assistant = strcmp(m->role, "assistant") == 0, tool = strcmp(m->role, "tool") == 0;
    cdr__emit_at(e, v->turn[i].index, CDR_PART_OPEN);
    cdr__emit_special(e, assistant ? k->assistant : strcmp(m->role, "user") == 0 ? k->user : k->system);
    cdr__emit_str(e, m->name && m->name[0] ? m->name : m->role);
    cdr__emit_special(e, k->middle);
    if (assistant && chat->s.thinking) {
        cdr__emit_at(e, v->turn[i].index, CDR_PART_THINK);
        mark(e, k->think, "<think>");
        if (m->reasoning && keep_reasoning) cdr__emit_str(e, m->reasoning);
        mark(e, k->think_end, "</think>");
    }
    cdr__emit_at(e, v->turn[i].index, CDR_PART_BODY);
    if (tool) {
        if (!m->call_id || !m->call_id[0])
            return cdr__turn_fail(v, i, "chat.call", "a result without tool_call_id; the format names the call by it. Give it the id of its call");
        cdr__emit_str(e, "## Return of ");
        cdr__emit_str(e, m->call_id);
        cdr__emit_str(e, "\n");
    }
    if (m->content) cdr__emit_str(e, m->content);
    CDR_TRY(calls(k, v, i, e));
    cdr__emit_at(e, v->turn[i].index, CDR_PART_END);
    cdr__emit_special(e, k->end);
    return CDR_OK;
}

static cdr_status declare_tools(const k2 *k, const cdr__view *v, cdr__emit *e)
{
    cdr_text json = { 0 };
    if (k->section_begin < 0) return no_tools(v, "the conversation declares tools");
    bool ok = cdr__py_json(&json, v->tools, &cdr__py_default);
    cdr__emit_at(e, -1, CDR_PART_OPEN);
    cdr__emit_special(e, k->system);
    cdr__emit_str(e, "tool_declare");
    cdr__emit_special(e, k->middle);
    cdr__emit_at(e, -1, CDR_PART_BODY);
    if (ok) cdr__emit_str(e, json.s);
    cdr_text_free(&json);
    cdr__emit_at(e, -1, CDR_PART_END);
    cdr__emit_special(e, k->end);
    if (ok) return CDR_OK;
    CDR_FAIL_ID(v->err, CDR_EDATA, "chat.number", "tools: a whole number beyond 64 bits, whose digits are not kept; write it as a string");
}

static cdr_status render(const cdr_chat *chat, const cdr__view *v, cdr__emit *e)
{
    const k2 *k = chat->state;
    int last_user = -1;
    for (int i = 0; i < v->n; i++)
        if (strcmp(v->turn[i].m->role, "user") == 0) last_user = i;
    if (v->tools) CDR_TRY(declare_tools(k, v, e));
    for (int i = 0; i < v->n; i++) CDR_TRY(message(chat, v, i, i > last_user, e));
    if (!v->generate) return CDR_OK;
    cdr__emit_at(e, -1, CDR_PART_OPEN);
    cdr__emit_special(e, k->assistant);
    cdr__emit_str(e, "assistant");
    cdr__emit_special(e, k->middle);
    return CDR_OK;
}

static cdr_status open_k2(cdr_chat *chat, cdr_err *err)
{
    const cdr_tokenizer *tok = chat->s.tokenizer;
    k2 *k = cdr_pool_alloc(chat->pool, sizeof *k);
    chat->state = k;
    if (chat->s.effort != CDR_EFFORT_NONE) CDR_FAIL_ID(err, CDR_EUSER, "chat.effort", "chat format kimi_k2 has no thinking_effort. Set it to none");
    CDR_TRY(cdr__chat_special(chat, "<|im_system|>", &k->system, err));
    CDR_TRY(cdr__chat_special(chat, "<|im_user|>", &k->user, err));
    CDR_TRY(cdr__chat_special(chat, "<|im_assistant|>", &k->assistant, err));
    CDR_TRY(cdr__chat_special(chat, "<|im_middle|>", &k->middle, err));
    CDR_TRY(cdr__chat_special(chat, "<|im_end|>", &k->end, err));
    k->section_begin = cdr_tokenizer_special(tok, "<|tool_calls_section_begin|>");
    if (k->section_begin >= 0) {
        CDR_TRY(cdr__chat_special(chat, "<|tool_calls_section_end|>", &k->section_end, err));
        CDR_TRY(cdr__chat_special(chat, "<|tool_call_begin|>", &k->call_begin, err));
        CDR_TRY(cdr__chat_special(chat, "<|tool_call_argument_begin|>", &k->call_argument, err));
        CDR_TRY(cdr__chat_special(chat, "<|tool_call_end|>", &k->call_end, err));
    }
    k->think = cdr_tokenizer_special(tok, "<think>");
    k->think_end = cdr_tokenizer_special(tok, "</think>");
    cdr__chat_stop(chat, k->end);
    return CDR_OK;
}

static void split(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning)
{
    const k2 *k = chat->state;
    cdr__split_think(chat->s.tokenizer, ids, n, (cdr__think){ .begin = k->think, .end = k->think_end, .inside = false }, content, reasoning);
}

const cdr__format cdr__chat_kimi_k2 = { .name = "kimi_k2", .open = open_k2, .render = render, .split = split };
