/* emit.c: stretches of text become tokens, and every token gets the message and the part that its bytes belong to.
 *
 * A stretch is what lies between two control tokens, or between two cuts; it is encoded as a whole, as a tokenizer does
 * with the text between special ids. A stretch may hold several spans (a role's name that the template wrote, then what
 * the user wrote), and a token may lie across their border. Such a token gets the first of its spans that an assistant
 * says (think, body, calls, end), else its first: the rule of Hugging Face's assistant masks, which count a token as
 * generated where one character of it is.
 *
 * Bytes of a stretch and bytes of its tokens are the same, unless the tokenizer normalises (NFC). Then the spans are
 * encoded one by one to learn their lengths after normalising; where these do not add up the stretch is refused, as a
 * mask of it would be a guess.
 */
#include "chat/internal.h"

#include <string.h>

void cdr__emit_at(cdr__emit *e, int32_t message, int part)
{
    e->message = message;
    e->part = (uint8_t)part;
}

static void push(cdr__emit *e, int32_t id, int32_t message, uint8_t part)
{
    cdr_chat_tokens *t = e->out;
    if (t->n == t->cap) {
        int64_t cap = CDR_MAX((int64_t)256, t->cap * 2);
        cdr_chat_token *more = cdr_alloc(sizeof *more * (size_t)cap);
        if (t->n) memcpy(more, t->t, sizeof *more * (size_t)t->n);
        cdr_free(t->t);
        t->t = more;
        t->cap = cap;
    }
    t->t[t->n++] = (cdr_chat_token){ .id = id, .message = message, .part = part };
}

void cdr__emit_special(cdr__emit *e, int32_t id)
{
    cdr__emit_cut(e);
    push(e, id, e->message, e->part);
}

void cdr__emit_text(cdr__emit *e, const char *s, size_t n)
{
    if (n == 0) return;
    cdr_text_append(&e->text, s, n);
    cdr__span *last = e->n_span ? &e->span[e->n_span - 1] : NULL;
    if (last && last->message == e->message && last->part == e->part) {
        last->end = e->text.n;
        return;
    }
    if (e->n_span == e->cap_span) {
        int64_t cap = CDR_MAX((int64_t)16, e->cap_span * 2);
        cdr__span *more = cdr_alloc(sizeof *more * (size_t)cap);
        if (e->n_span) memcpy(more, e->span, sizeof *more * (size_t)e->n_span);
        cdr_free(e->span);
        e->span = more;
        e->cap_span = cap;
    }
    e->span[e->n_span++] = (cdr__span){ .end = e->text.n, .message = e->message, .part = e->part };
}

void cdr__emit_str(cdr__emit *e, const char *s) { cdr__emit_text(e, s, strlen(s)); }

/* Bytes that n ids stand for. */
static size_t bytes_of(const cdr_tokenizer *tok, const int32_t *ids, int64_t n)
{
    size_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        (void)cdr_tokenizer_bytes(tok, ids[i], &bytes);
        sum += bytes;
    }
    return sum;
}

/* Ends of the spans in the bytes of the tokens, where a normaliser changed the text. Encodes each span alone. */
static bool measure_spans(cdr__emit *e, int32_t *room, size_t whole)
{
    size_t from = 0, end = 0;
    for (int64_t i = 0; i < e->n_span; i++) {
        int64_t n = cdr_tokenizer_encode(e->tokenizer, e->text.s + from, e->span[i].end - from, room);
        from = e->span[i].end;
        end += bytes_of(e->tokenizer, room, n);
        e->span[i].end = end;
    }
    return end == whole;
}

static bool is_said(const cdr__span *s)
{
    return s->part == CDR_PART_THINK || s->part == CDR_PART_BODY || s->part == CDR_PART_CALLS || s->part == CDR_PART_END;
}

static void place_tokens(cdr__emit *e, const int32_t *ids, int64_t n)
{
    size_t at = 0;
    int64_t first = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t bytes = 0;
        (void)cdr_tokenizer_bytes(e->tokenizer, ids[i], &bytes);
        while (first + 1 < e->n_span && e->span[first].end <= at) first++;
        int64_t take = first;
        while (!is_said(&e->span[take]) && take + 1 < e->n_span && e->span[take].end < at + bytes) take++;
        if (!is_said(&e->span[take])) take = first;
        push(e, ids[i], e->span[take].message, e->span[take].part);
        at += bytes;
    }
}

void cdr__emit_cut(cdr__emit *e)
{
    if (e->text.n == 0 || e->status != CDR_OK) return;
    size_t room = (size_t)cdr_tokenizer_room(e->tokenizer, e->text.n);
    int32_t *ids = cdr_alloc(sizeof *ids * room * 2);
    int64_t n = cdr_tokenizer_encode(e->tokenizer, e->text.s, e->text.n, ids);
    size_t whole = bytes_of(e->tokenizer, ids, n);
    if (e->n_span > 1 && whole != e->text.n && !measure_spans(e, ids + room, whole))
        e->status = cdr_fail(e->err, CDR_EDATA, "chat.normalized", "message %d: the tokenizer's normaliser joins characters across a border of parts, "
                             "so that no token can be said to belong to one; write the text in NFC", (int)e->span[0].message);
    else
        place_tokens(e, ids, n);
    cdr_free(ids);
    e->text.n = 0;
    e->n_span = 0;
}

cdr_status cdr__emit_end(cdr__emit *e)
{
    cdr__emit_cut(e);
    cdr_text_free(&e->text);
    cdr_free(e->span);
    e->span = NULL;
    return e->status;
}
