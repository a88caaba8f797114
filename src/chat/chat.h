/* chat.h: conversations to ids, segment by segment, with what each id is for, so that a loss mask falls out of the rendering.
 * A format is one file: k3_xtml.c, kimi_k2.c, chatml.c, jinja*.c (the template of a checkpoint, in the subset that doc/formats.md lists).
 *
 *   cdr_chat *chat;
 *   CDR_TRY(cdr_chat_open(&(cdr_chat_spec){ .format = "k3_xtml", .tokenizer = tok }, &chat, err));
 *   cdr_chat_tokens out = { 0 };
 *   CDR_TRY(cdr_chat_render(chat, &conversation, false, &out, err));
 *   for (int64_t i = 0; i < out.n; i++) use(out.t[i].id, out.t[i].message, out.t[i].part);
 *   cdr_chat_tokens_free(&out);
 *   cdr_chat_close(chat);
 *
 * Source of formats: spec/formats.md, 2.4 and 2.5; spec/model.md, 6.2.
 */
#ifndef CDR_CHAT_H
#define CDR_CHAT_H

#include "tokenizer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *id, *name;             /* call_0, get_weather */
    const char *arguments;             /* text of a JSON object; text that is no JSON is legal, and rendered as the format says */
} cdr_chat_call;

typedef struct {
    const char *role;                  /* system, user, assistant, tool */
    const char *content;               /* NULL: none (legal beside calls) */
    const char *reasoning;             /* NULL: none */
    const char *name;                  /* of a user, or of the tool that answers; NULL: none */
    const char *call_id;               /* tool: which call this answers */
    const cdr_chat_call *calls; int n_calls;
} cdr_chat_message;

typedef struct {
    const cdr_chat_message *message; int n;
    const cdr_json *tools;             /* array of OpenAI tool declarations; NULL: none */
    const cdr_json *record;            /* of the whole sample, for a jinja template; NULL: it is made from the messages */
} cdr_conversation;

typedef enum { CDR_EFFORT_NONE, CDR_EFFORT_LOW, CDR_EFFORT_MEDIUM, CDR_EFFORT_HIGH, CDR_EFFORT_MAX } cdr_chat_effort;
typedef struct {
    const char *format;                /* k3_xtml, kimi_k2, chatml, jinja */
    const cdr_tokenizer *tokenizer;    /* borrowed */
    const char *dir;                   /* of the checkpoint: chat_template.jinja or tokenizer_config.json's chat_template, texts of k3_xtml; NULL: none */
    bool thinking; int effort;         /* cdr_chat_effort; NONE: nothing about it is rendered */
    const char *system;                /* put in front of conversations that have no system message; NULL: nothing */
    bool drop_tools;                   /* declarations and calls are left out */
} cdr_chat_spec;

/* What an id is for. Loss masks: assistant's BODY, THINK, CALLS and END are what a model is to say; OPEN and everything of other roles is given. */
typedef enum { CDR_PART_OPEN, CDR_PART_THINK, CDR_PART_BODY, CDR_PART_CALLS, CDR_PART_END, CDR_PART_INPUT /* within an assistant's message, but given */ } cdr_chat_part;
typedef struct { int32_t id; int32_t message; /* index; -1: none of them (declarations, options, generation prompt) */ uint8_t part; } cdr_chat_token;
typedef struct { cdr_chat_token *t; int64_t n, cap; } cdr_chat_tokens;

typedef struct cdr_chat cdr_chat;
cdr_status cdr_chat_open(const cdr_chat_spec *s, cdr_chat **chat, cdr_err *err);
void cdr_chat_close(cdr_chat *chat);
/* Appends to out (zero it before the first use). generate: end with the prompt under which the assistant answers. Thread-safe on one cdr_chat.
 * A message that the format cannot render is an error (CDR_EDATA) that names the message by its index and says why; WHERE is left to the caller. */
cdr_status cdr_chat_render(const cdr_chat *chat, const cdr_conversation *c, bool generate, cdr_chat_tokens *out, cdr_err *err);
void cdr_chat_tokens_free(cdr_chat_tokens *t);
/* The ids that end an assistant's message: generation stops at the first of them. Returns their number, at most max. */
int cdr_chat_stops(const cdr_chat *chat, int32_t *ids, int max);
/* JSON as the renderers of released checkpoints write it (", " and ": ", characters as they are): for the arguments of a call that a
 * file holds as an object. false: a whole number beyond 64 bits, whose digits the reader does not keep. */
bool cdr_chat_json(cdr_text *out, const cdr_json *j);
/* Of the format, the options and the files that were read: with the tokenizer's hash, what ids of a conversation depend on. */
uint64_t cdr_chat_hash(const cdr_chat *chat);
/* Splits what a model said (without its stop id) into content and reasoning, to be put into the history as a message. Appends. */
void cdr_chat_split(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning);

#ifdef __cplusplus
}
#endif
#endif
