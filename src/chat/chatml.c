/* chatml.c: <|im_start|>ROLE\nTEXT<|im_end|>\n, for every message, and <|im_start|>assistant\n where an answer is wanted.
 *
 * Thinking: <think>\nREASONING\n</think>\n\n in front of an assistant's text. Markers need ids of their own in the tokenizer;
 * <think> is an id where the tokenizer has it, else text. The line end behind <|im_end|> belongs to nobody: it is given.
 * The format has no form for tools and names of users: a conversation that has them is refused (format jinja takes them as
 * the checkpoint's template does).
 * Source: OpenAI's ChatML as Qwen and others use it.
 */
#include "chat/internal.h"

#include <string.h>

typedef struct { int32_t start, end, think, think_end; } chatml;

static void mark(cdr__emit *e, int32_t id, const char *text)
{
    if (id >= 0) cdr__emit_special(e, id);
    else cdr__emit_str(e, text);
}

static cdr_status message(const cdr_chat *chat, const cdr__view *v, int i, cdr__emit *e)
{
    const chatml *c = chat->state;
    const cdr_chat_message *m = v->turn[i].m;
    if (m->n_calls > 0 || strcmp(m->role, "tool") == 0)
        return cdr__turn_fail(v, i, "chat.tools", "chat format chatml has no form for tool calls and results. Take format jinja, or set data.chat_options.tools to drop");
    if (m->name && m->name[0]) return cdr__turn_fail(v, i, "chat.name", "chat format chatml has no place for a name (%.80s). Remove it, or take format jinja", m->name);
    cdr__emit_at(e, v->turn[i].index, CDR_PART_OPEN);
    cdr__emit_special(e, c->start);
    cdr__emit_str(e, m->role);
    cdr__emit_str(e, "\n");
    if (chat->s.thinking && strcmp(m->role, "assistant") == 0) {
        cdr__emit_at(e, v->turn[i].index, CDR_PART_THINK);
        mark(e, c->think, "<think>");
        cdr__emit_str(e, "\n");
        if (m->reasoning) cdr__emit_str(e, m->reasoning);
        cdr__emit_str(e, "\n");
        mark(e, c->think_end, "</think>");
        cdr__emit_str(e, "\n\n");
    }
    cdr__emit_at(e, v->turn[i].index, CDR_PART_BODY);
    if (m->content) cdr__emit_str(e, m->content);
    cdr__emit_at(e, v->turn[i].index, CDR_PART_END);
    cdr__emit_special(e, c->end);
    cdr__emit_at(e, v->turn[i].index, CDR_PART_INPUT);
    cdr__emit_str(e, "\n");
    return CDR_OK;
}

static cdr_status render(const cdr_chat *chat, const cdr__view *v, cdr__emit *e)
{
    const chatml *c = chat->state;
    if (v->tools)
        CDR_FAIL_ID(v->err, CDR_EDATA, "chat.tools", "chat format chatml has no form for declarations of tools. Take format jinja, or set "
                    "data.chat_options.tools to drop");
    for (int i = 0; i < v->n; i++) CDR_TRY(message(chat, v, i, e));
    if (!v->generate) return CDR_OK;
    cdr__emit_at(e, -1, CDR_PART_OPEN);
    cdr__emit_special(e, c->start);
    cdr__emit_str(e, "assistant\n");
    return CDR_OK;
}

static cdr_status open_chatml(cdr_chat *chat, cdr_err *err)
{
    const cdr_tokenizer *tok = chat->s.tokenizer;
    chatml *c = cdr_pool_alloc(chat->pool, sizeof *c);
    chat->state = c;
    if (chat->s.effort != CDR_EFFORT_NONE) CDR_FAIL_ID(err, CDR_EUSER, "chat.effort", "chat format chatml has no thinking_effort. Set it to none");
    CDR_TRY(cdr__chat_special(chat, "<|im_start|>", &c->start, err));
    CDR_TRY(cdr__chat_special(chat, "<|im_end|>", &c->end, err));
    c->think = cdr_tokenizer_special(tok, "<think>");
    c->think_end = cdr_tokenizer_special(tok, "</think>");
    cdr__chat_stop(chat, c->end);
    cdr__chat_stop(chat, cdr_tokenizer_special(tok, "<|endoftext|>"));
    return CDR_OK;
}

static void split(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning)
{
    const chatml *c = chat->state;
    cdr__split_think(chat->s.tokenizer, ids, n, (cdr__think){ .begin = c->think, .end = c->think_end, .inside = false }, content, reasoning);
}

const cdr__format cdr__chat_chatml = { .name = "chatml", .open = open_chatml, .render = render, .split = split };
