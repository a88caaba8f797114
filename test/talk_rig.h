/* talk_rig.h: what the tests of conversations share: files in a directory of their own, the view of a sample, a set of conversations, shards.
 *
 *   rig_open("name");                                    // temporary directory, byte tokenizer, k3_xtml
 *   put("a.jsonl", "{\"text\": \"ab\"}");
 *   T_STR(view_of("a.jsonl", text, NULL, NULL), "a[b[EOS]]");
 *   rig_close();
 */
#ifndef CADRE_TEST_TALK_RIG_H
#define CADRE_TEST_TALK_RIG_H

#include "data/data.h"
#include "files.h"

static cdr_tokenizer *tok;
static cdr_chat_spec chat = { .format = "k3_xtml" };

static inline cdr_data_opts opts_of(const cdr_data_source *sources, int n)
{
    chat.tokenizer = tok;
    return (cdr_data_opts){ .train = sources, .n_train = n, .tokenizer = tok, .chat = &chat, .seed = 5, .sequence_length = 1024, .micro_batch_tokens = 1024,
                            .max_docs = 100 };
}

static inline cdr_data *open_or_fail(const cdr_data_opts *o)
{
    cdr_data *d = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr_data_open(o, &d, &err) == CDR_OK);
    if (!d) {
        fprintf(stderr, "  %s\n", err.text);
        exit(1);
    }
    return d;
}

/* ---- the view: text, with what carries loss in [ ] ------------------------------------------------------------------------ */

static const struct { const char *from, *to; } SHORT[] = { { "<|open|>", "<" }, { "<|close|>", "</" }, { "<|sep|>", ">" }, { "<|end_of_msg|>", "$" } };

static inline void shorten(char *s)
{
    for (int k = 0; k < CDR_COUNT(SHORT); k++)
        for (char *at; (at = strstr(s, SHORT[k].from)) != NULL;) {
            size_t n = strlen(SHORT[k].from), m = strlen(SHORT[k].to);
            memcpy(at, SHORT[k].to, m);
            memmove(at + m, at + n, strlen(at + n) + 1);
        }
}

static inline const char *view(const cdr_data *d, bool held_out, int64_t i)
{
    static char out[1 << 16];
    static int32_t ids[1 << 15];
    static bool trained[1 << 15];
    cdr_data_doc doc = cdr_data_doc_at(d, held_out, i);
    cdr_text t = { 0 };
    int64_t n_trained = 0;
    cdr_data_doc_tokens(d, held_out, i, 0, doc.n, ids, trained);
    for (int64_t k = 0; k < doc.n; k++) {
        if (trained[k] && (k == 0 || !trained[k - 1])) cdr_text_append(&t, "[", 1);
        if (!trained[k] && k > 0 && trained[k - 1]) cdr_text_append(&t, "]", 1);
        T_CHECK(cdr_tokenizer_decode(tok, &ids[k], 1, true, &t));
        n_trained += trained[k];
    }
    if (doc.n > 0 && trained[doc.n - 1]) cdr_text_append(&t, "]", 1);
    T_CHECK(n_trained == doc.n_trained);
    (void)snprintf(out, sizeof out, "%s", t.s);
    cdr_text_free(&t);
    shorten(out);
    return out;
}

enum { N_TALKS = 300, S = 400, MICRO = 800 };

static inline uint64_t draw(uint64_t i)
{
    return cdr_rng_u64((cdr_rng_key){ 78, 2, 0 }, i);
}

/* N_TALKS conversations of one to four turns, of different lengths; a few without an answer that trains, a few too long. */
static inline size_t make_talks(char *out, size_t room)
{
    size_t n = 0;
    for (uint64_t i = 0; i < N_TALKS; i++) {
        n += (size_t)snprintf(out + n, room - n, "{\"messages\": [{\"role\": \"user\", \"content\": \"ask %llu\"}", (unsigned long long)i);
        for (uint64_t t = 0; t <= draw(i) % 3; t++) {
            uint64_t len = draw(1000 + 10 * i + t) % 40;
            n += (size_t)snprintf(out + n, room - n, ", {\"role\": \"assistant\", \"content\": \"reply %llu.%llu ", (unsigned long long)i, (unsigned long long)t);
            for (uint64_t k = 0; k < len; k++) out[n++] = (char)('a' + draw(i * 777 + t * 99 + k) % 26);
            n += (size_t)snprintf(out + n, room - n, "\"}, {\"role\": \"user\", \"content\": \"again %llu\"}", (unsigned long long)t);
        }
        n += (size_t)snprintf(out + n, room - n, "]}\n");
    }
    return n;
}

typedef struct { int32_t tokens[MICRO], targets[MICRO], start[MICRO], pos[MICRO]; int64_t n_trained, n_rows; } shard;

static inline const shard *get(cdr_data *d, int64_t step, int64_t id, int64_t n)
{
    static shard s[4];
    static int k;
    shard *x = &s[k = (k + 1) % 4];
    memset(x, 0x55, sizeof *x);
    cdr_data_shard(d, step, id, n, x->tokens, x->targets, x->start, x->pos, NULL, &x->n_trained, &x->n_rows);
    return x;
}

/* The view of the only sample of a file made of `text`; o NULL: defaults. */
static inline const char *view_of(const char *name, const char *text, const cdr_data_opts *options, const cdr_data_source *source)
{
    cdr_data_source s = source ? *source : (cdr_data_source){ 0 };
    s.path = in_dir(name);
    cdr_data_opts o = options ? *options : opts_of(&s, 1);
    o.train = &s;
    o.n_train = 1;
    put(name, text);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 1);
    const char *v = view(d, false, 0);
    cdr_data_close(d);
    return v;
}

static inline void refused(const char *name, const char *text, const cdr_data_source *source, const char *id, const char *has)
{
    cdr_data_source s = source ? *source : (cdr_data_source){ 0 };
    s.path = in_dir(name);
    cdr_data_opts o = opts_of(&s, 1);
    cdr_data *d = NULL;
    cdr_err err = { 0 };
    put(name, text);
    T_CHECK(cdr_data_open(&o, &d, &err) != CDR_OK);
    T_STR(err.id, id);
    T_HAS(err.text, has);
    if (d) cdr_data_close(d);
}

#define SYS(x) "<message role=\"system\">" x "</message>$"
#define USER(x) "<message role=\"user\">" x "</message>$"
#define BOT(x) "<message role=\"assistant\">[<response>" x "</response></message>$]"

#define TWO_TURNS "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"user\", \"content\": \"R\"}, " \
                  "{\"role\": \"assistant\", \"content\": \"B\"}]}"

static inline bool rig_open(const char *name)
{
    cdr_err err = { 0 };
    return files_open(name) && cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) == CDR_OK;
}

static inline void rig_close(void)
{
    cdr_tokenizer_close(tok);
    files_close();
}
#endif
