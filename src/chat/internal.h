/* internal.h: what the formats of this folder share: an emitter that joins text into stretches and gives every token its
 * (message, part), JSON as Python writes it, and the row of a format.
 *
 *   cdr__emit_at(e, 3, CDR_PART_BODY);
 *   cdr__emit_special(e, c->id_open);                 // a control token: a stretch ends before it
 *   cdr__emit_text(e, text, n);                       // text: never makes a special id
 *   cdr__emit_cut(e);                                 // a token boundary, where the format says that there is one
 */
#ifndef CDR_CHAT_INTERNAL_H
#define CDR_CHAT_INTERNAL_H

#include "chat/chat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- emit.c ------------------------------------------------------------------------------------------------- */
typedef struct { size_t end; int32_t message; uint8_t part; } cdr__span;     /* bytes of a stretch up to end */
typedef struct {
    const cdr_tokenizer *tokenizer;
    cdr_chat_tokens *out;
    cdr_text text;                          /* the stretch that is not encoded yet */
    cdr__span *span; int64_t n_span, cap_span;
    int32_t message; uint8_t part;          /* of what comes next */
    cdr_status status;                      /* the first failure is kept in err */
    cdr_err *err;
} cdr__emit;
void cdr__emit_at(cdr__emit *e, int32_t message, int part);
void cdr__emit_special(cdr__emit *e, int32_t id);
void cdr__emit_text(cdr__emit *e, const char *s, size_t n);
void cdr__emit_str(cdr__emit *e, const char *s);
void cdr__emit_cut(cdr__emit *e);
cdr_status cdr__emit_end(cdr__emit *e);      /* cuts, frees what e owns, returns the status */

/* ---- pyjson.c: as json.dumps of Python writes ------------------------------------------------------------------- */
typedef struct { const char *item, *key; bool sort; } cdr__py_style;            /* separators; members in order of their keys' bytes */
extern const cdr__py_style cdr__py_default;                                     /* ", " and ": " */
void cdr__py_string(cdr_text *t, const char *s, size_t n, bool ascii);           /* with quotes; ascii: the rest as \uXXXX */
void cdr__py_real(cdr_text *t, double x);                                       /* repr */
/* false: a number whose digits the reader did not keep (a whole number beyond 64 bits). */
bool cdr__py_json(cdr_text *t, const cdr_json *j, const cdr__py_style *style);

/* ---- chat.c ------------------------------------------------------------------------------------------------------ */
/* A conversation after the options of the spec: what a format renders. */
typedef struct { const cdr_chat_message *m; int32_t index; /* in the conversation; -1: the option's system text */ } cdr__turn;
typedef struct {
    cdr_pool *pool;                         /* of this rendering */
    const cdr_conversation *c;
    const cdr__turn *turn; int n;
    const cdr_json *tools;                  /* NULL or not empty */
    bool generate;
    cdr_err *err;
} cdr__view;
/* Message of turn i: "message 3 (tool): ..." */
cdr_status cdr__turn_fail(const cdr__view *v, int i, const char *id, const char *fmt, ...) CDR_PRINTF(4, 5);

typedef struct {
    const char *name;
    cdr_status (*open)(cdr_chat *chat, cdr_err *err);
    cdr_status (*render)(const cdr_chat *chat, const cdr__view *v, cdr__emit *e);
    void (*split)(const cdr_chat *chat, const int32_t *ids, int64_t n, cdr_text *content, cdr_text *reasoning);
    void (*close)(cdr_chat *chat);          /* NULL: nothing to free */
} cdr__format;
extern const cdr__format cdr__chat_k3_xtml, cdr__chat_kimi_k2, cdr__chat_chatml, cdr__chat_jinja;

enum { CDR__STOPS_MAX = 16 };
struct cdr_chat {
    const cdr__format *format;
    cdr_pool *pool;
    cdr_chat_spec s;                        /* texts are in pool; borrows the tokenizer */
    int32_t stop[CDR__STOPS_MAX]; int n_stop;
    uint64_t hash;                          /* of everything that decides ids, but the tokenizer */
    void *state;                            /* of the format */
};
/* A special id that the format needs; message [chat.no-special] where the tokenizer has none of that name. */
cdr_status cdr__chat_special(const cdr_chat *chat, const char *name, int32_t *id, cdr_err *err);
void cdr__chat_mix(cdr_chat *chat, const void *data, size_t bytes);             /* into the hash */
void cdr__chat_stop(cdr_chat *chat, int32_t id);                                /* adds a stop id once; -1: nothing */


/* ---- split.c: reasoning between <think> and </think>, ids (-1: none) or text. inside: the prompt opened it. ------------ */
typedef struct { int32_t begin, end; bool inside; } cdr__think;
void cdr__split_think(const cdr_tokenizer *tok, const int32_t *ids, int64_t n, cdr__think t, cdr_text *content, cdr_text *reasoning);

#ifdef __cplusplus
}
#endif
#endif
