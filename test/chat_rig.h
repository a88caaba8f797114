/* chat_rig.h: a case of the chat tests as a JSON object, shared by test_chat.c and the program that tools/peers/chat.py drives:
 *
 *   {"format": "k3_xtml", "dir": PATH, "options": {"thinking": true, "effort": "low", "system": TEXT, "drop_tools": true},
 *    "generate": true, "conversation": {"messages": [...], "tools": [...]}}
 */
#ifndef CADRE_CHAT_RIG_H
#define CADRE_CHAT_RIG_H
#include "chat/chat.h"
#include <string.h>

static const char *rig_arguments(cdr_pool *pool, const cdr_json *j)
{
    if (!j || cdr_json_type(j) == CDR_JSON_NULL) return NULL;
    if (cdr_json_type(j) == CDR_JSON_STRING) return cdr_json_str(j, NULL);
    cdr_text t = { 0 };
    (void)cdr_chat_json(&t, j);
    const char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&t);
    return s;
}

static void rig_message(cdr_pool *pool, const cdr_json *j, cdr_chat_message *m)
{
    const cdr_json *calls = cdr_json_get(j, "tool_calls");
    m->role = cdr_json_str(cdr_json_get(j, "role"), NULL);
    m->content = cdr_json_str(cdr_json_get(j, "content"), NULL);
    m->reasoning = cdr_json_str(cdr_json_get(j, "reasoning_content"), NULL);
    m->name = cdr_json_str(cdr_json_get(j, "name"), NULL);
    m->call_id = cdr_json_str(cdr_json_get(j, "tool_call_id"), NULL);
    int n = calls && cdr_json_type(calls) == CDR_JSON_ARRAY ? (int)cdr_json_count(calls) : 0;
    cdr_chat_call *c = cdr_pool_alloc(pool, sizeof *c * (size_t)(n + 1));
    for (int i = 0; i < n; i++) {
        const cdr_json *one = cdr_json_at(calls, i), *f = cdr_json_get(one, "function");
        c[i] = (cdr_chat_call){ .id = cdr_json_str(cdr_json_get(one, "id"), NULL), .name = cdr_json_str(cdr_json_get(f, "name"), NULL),
                                .arguments = rig_arguments(pool, cdr_json_get(f, "arguments")) };
    }
    m->calls = c;
    m->n_calls = n;
}

static cdr_conversation rig_conversation(cdr_pool *pool, const cdr_json *j, bool with_record)
{
    const cdr_json *list = cdr_json_get(j, "messages"), *tools = cdr_json_get(j, "tools");
    int n = list ? (int)cdr_json_count(list) : 0;
    cdr_chat_message *m = cdr_pool_alloc(pool, sizeof *m * (size_t)(n + 1));
    for (int i = 0; i < n; i++) rig_message(pool, cdr_json_at(list, i), &m[i]);
    return (cdr_conversation){ .message = m, .n = n, .tools = tools && cdr_json_type(tools) != CDR_JSON_NULL ? tools : NULL, .record = with_record ? j : NULL };
}

static cdr_chat_spec rig_spec(const cdr_json *j, const cdr_tokenizer *tok)
{
    static const char *const efforts[] = { "none", "low", "medium", "high", "max" };
    const cdr_json *o = cdr_json_get(j, "options");
    const char *effort = cdr_json_str(cdr_json_get(o, "effort"), "none");
    cdr_chat_spec s = { .format = cdr_json_str(cdr_json_get(j, "format"), NULL), .tokenizer = tok, .dir = cdr_json_str(cdr_json_get(j, "dir"), NULL) };
    s.thinking = cdr_json_bool(cdr_json_get(o, "thinking"), false);
    s.drop_tools = cdr_json_bool(cdr_json_get(o, "drop_tools"), false);
    s.system = cdr_json_str(cdr_json_get(o, "system"), NULL);
    for (int i = 0; i < CDR_COUNT(efforts); i++)
        if (strcmp(efforts[i], effort) == 0) s.effort = i;
    return s;
}

/* Opens, renders, closes. dir: in place of the case's, or NULL. */
static cdr_status rig_render(cdr_pool *pool, const cdr_json *j, const cdr_tokenizer *tok, const char *dir, cdr_chat_tokens *out, cdr_err *err)
{
    cdr_chat_spec s = rig_spec(j, tok);
    if (dir) s.dir = dir;
    cdr_conversation c = rig_conversation(pool, cdr_json_get(j, "conversation"), cdr_json_bool(cdr_json_get(j, "record"), false));
    cdr_chat *chat;
    CDR_TRY(cdr_chat_open(&s, &chat, err));
    cdr_status st = cdr_chat_render(chat, &c, cdr_json_bool(cdr_json_get(j, "generate"), false), out, err);
    cdr_chat_close(chat);
    return st;
}
#endif
