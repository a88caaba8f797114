/* mask.c: which tokens of a sample carry loss.
 *
 * A conversation's tokens come from the renderer with (message, part). A token is a target that carries loss where its message trains and its part
 * is one that the assistant says: BODY, CALLS, THINK unless mask_think says no, END (the end-of-message) unless train_eos says no.
 *   train_on assistant   messages of role assistant            last   the last one of them
 *            all         every token, opening marks and declarations too
 *   a message's own train, loss or weight wins over train_on; a weight other than 0 and 1 scales the loss of its tokens
 *   train_eos  turn  END of every message that trains    last  of the last one    none
 *   mask_think none    all: no THINK    empty: no THINK of a message without reasoning
 * Text: all tokens and [EOS]; of prompt and text, those of the text.
 */
#include "data/internal.h"

#include <stdlib.h>

uint32_t *cdr__words_room(cdr__words *w, int64_t n)
{
    if (w->n + n > w->cap) {
        w->cap = CDR_MAX(w->cap * 2, w->n + n + 4096);
        w->w = realloc(w->w, (size_t)w->cap * sizeof *w->w);             /* large blocks move by page table, not by copy */
        CDR_CHECK(w->w);
    }
    return w->w + w->n;
}

const char *cdr__train_on_name(int train_on, bool chat)
{
    static const char *const NAMES[] = { "auto", "assistant", "last", "all" };
    return train_on == CDR_LOSS_AUTO ? chat ? "assistant" : "all" : NAMES[train_on];
}

int cdr__weight_row(cdr__weights *t, float w)
{
    if (t->n == 0) t->w[t->n++] = 1;
    for (int i = 0; i < t->n; i++)
        if (t->w[i] == w) return i;
    if (t->n == CDR__WEIGHTS) return -1;
    t->w[t->n] = w;
    return t->n++;
}

/* ---- text --------------------------------------------------------------------------------------------------------- */

static void put_text(const cdr__masking *m, const char *text, bool trained, cdr__words *out)
{
    size_t bytes = strlen(text);
    if (bytes == 0) return;
    uint32_t *w = cdr__words_room(out, cdr_tokenizer_room(m->tok, bytes));
    int64_t n = cdr_tokenizer_encode(m->tok, text, bytes, (int32_t *)(void *)w);         /* an id is below 2^31 */
    for (int64_t i = 0; i < n && trained; i++) w[i] |= CDR__TRAINED;
    out->n += n;
}

static void mask_text(const cdr__masking *m, const cdr__sample *s, cdr__words *out)
{
    bool prompt = s->prompt && *s->prompt;
    if (prompt) put_text(m, s->prompt, m->train_on == CDR_LOSS_ALL, out);
    put_text(m, s->text, true, out);
    if (m->eos >= 0) *cdr__words_room(out, 1) = (uint32_t)m->eos | (m->train_eos == CDR_EOS_NONE && prompt ? 0 : CDR__TRAINED), out->n++;
}

/* ---- conversations ------------------------------------------------------------------------------------------------ */

typedef struct { bool trains, own, empty_think; uint32_t weight; /* row, in its place of a word */ } turn;

static bool is_empty(const char *s)
{
    return !s || s[strspn(s, " \t\r\n")] == 0;
}

/* *last: the last message that trains, -1: none. */
static cdr_status set_turns(const cdr__masking *m, const cdr__sample *s, cdr__weights *weights, turn *turns, int *last, cdr_err *err)
{
    int last_assistant = -1;
    for (int i = 0; i < s->talk.n; i++)
        if (strcmp(s->talk.message[i].role, "assistant") == 0) last_assistant = i;
    *last = -1;
    for (int i = 0; i < s->talk.n; i++) {
        bool assistant = strcmp(s->talk.message[i].role, "assistant") == 0;
        turns[i].own = s->own[i].set;
        turns[i].trains = s->own[i].set ? s->own[i].weight > 0 : m->train_on == CDR_LOSS_ALL || (assistant && (m->train_on != CDR_LOSS_LAST || i == last_assistant));
        turns[i].empty_think = is_empty(s->talk.message[i].reasoning);
        if (turns[i].trains) *last = i;
        int row = turns[i].trains && s->own[i].set ? cdr__weight_row(weights, (float)s->own[i].weight) : 0;
        if (row < 0) CDR_FAIL_ID(err, CDR_EDATA, "data.weight", "messages[%d].weight: one more than %d different weights. Round them", i, CDR__WEIGHTS - 1);
        turns[i].weight = (uint32_t)row << CDR__ID_BITS;
    }
    return CDR_OK;
}

static bool carries_loss(const cdr__masking *m, const turn *turns, int last, const cdr_chat_token *t)
{
    bool all = m->train_on == CDR_LOSS_ALL;
    if (t->message < 0) return all;
    const turn *of = &turns[t->message];
    if (!of->trains) return false;
    switch ((cdr_chat_part)t->part) {
    case CDR_PART_OPEN: case CDR_PART_INPUT: return all && !of->own;
    case CDR_PART_THINK: return m->mask_think == CDR_THINK_NONE || (m->mask_think == CDR_THINK_EMPTY && !of->empty_think);
    case CDR_PART_END: return m->train_eos == CDR_EOS_TURN || (m->train_eos == CDR_EOS_LAST && t->message == last);
    case CDR_PART_BODY: case CDR_PART_CALLS: return true;
    }
    return false;
}

static cdr_status mask_talk(const cdr__masking *m, const cdr__sample *s, cdr__weights *weights, cdr__words *out, cdr_err *err)
{
    if (!m->chat)
        CDR_FAIL_ID(err, CDR_EUSER, "data.no-chat", "a conversation, but the model's description names no chat format. Set data.chat_format");
    cdr_chat_tokens tokens = { 0 };
    cdr_status st = cdr_chat_render(m->chat, &s->talk, false, &tokens, err);
    if (st == CDR_OK) {
        turn *turns = cdr_alloc((size_t)(s->talk.n + 1) * sizeof *turns);
        int last;
        st = set_turns(m, s, weights, turns, &last, err);
        uint32_t *w = cdr__words_room(out, tokens.n);
        for (int64_t i = 0; st == CDR_OK && i < tokens.n; i++) {
            const cdr_chat_token *t = &tokens.t[i];
            CDR_CHECK(t->message < s->talk.n && t->id >= 0);
            bool trained = carries_loss(m, turns, last, t);
            w[i] = (uint32_t)t->id | (trained ? CDR__TRAINED | (t->message >= 0 ? turns[t->message].weight : 0) : 0);
        }
        out->n += tokens.n;
        cdr_free(turns);
    }
    cdr_chat_tokens_free(&tokens);
    return st;
}

cdr_status cdr__mask_sample(const cdr__masking *m, const cdr__sample *s, cdr__weights *weights, cdr__words *out, int64_t *n_trained, cdr_err *err)
{
    int64_t first = out->n;
    *n_trained = 0;
    if (s->chat) CDR_TRY(mask_talk(m, s, weights, out, err));
    else mask_text(m, s, out);
    if (out->n > first) out->w[first] = (uint32_t)cdr__word_id(out->w[first]);
    for (int64_t i = first; i < out->n; i++) *n_trained += out->w[i] >= CDR__TRAINED;
    return CDR_OK;
}
