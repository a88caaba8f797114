/* tokenizer.c: the tokenizer that a recipe means by data.tokenizer, and what inspect says of one. */
#include "train/session.h"

#include <string.h>

enum { PADDING = 1024 };                   /* rows that an embedding may have beyond its tokenizer, filled up to a round number */

static const char *where_said(const cdr_session *s)
{
    return cdr__recipe_at(&s->r, cdr_recipe_key("data.tokenizer"));
}

/* The model's own: the file that the description names, or what lies in the directory instead. */
static cdr_status own_tokenizer(cdr_session *s, const cdr_model_text *t, cdr_tokenizer_spec *spec, cdr_err *err)
{
    *spec = (cdr_tokenizer_spec){ .type = t->type, .dir = t->dir, .file = t->file, .base = t->base, .special = t->special, .pattern = t->pattern };
    if (strcmp(t->type, "byte") == 0) return CDR_OK;
    if (!t->dir)
        CDR_FAIL_ID(err, CDR_EUSER, "tokenizer.no-file", "data.tokenizer: %s has a tokenizer of type %s, and no directory with its file. Set data.tokenizer to one, "
                    "or model.path to a checkpoint's directory", s->info->name, t->type);
    if (t->file && cdr_exists(cdr_pool_printf(s->pool, "%s/%s", t->dir, t->file))) return CDR_OK;
    if (!cdr_tokenizer_find(t->dir, t->type, s->pool, spec))
        CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.no-file", "%s: holds no %s, and no other tokenizer. Copy it there, or set data.tokenizer to its place", t->dir,
                    t->file ? t->file : "tiktoken.model or tokenizer.json");
    return CDR_OK;
}

/* data.tokenizer as a path. */
static cdr_status other_tokenizer(cdr_session *s, const cdr_model_text *t, const char *path, cdr_tokenizer_spec *spec, cdr_err *err)
{
    *spec = (cdr_tokenizer_spec){ .pattern = strcmp(t->type, "tiktoken") == 0 ? t->pattern : NULL };
    if (!cdr_tokenizer_find(path, t->type, s->pool, spec))
        CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.no-file", "%s: data.tokenizer is %s, which is neither a file nor a directory with tiktoken.model or tokenizer.json",
                    where_said(s), path);
    return CDR_OK;
}

/* Rows beyond a tokenizer.json's tokens are padding that no text reaches; anything else is another model's tokenizer. */
static cdr_status same_vocab(cdr_session *s, const cdr_tokenizer_spec *spec, const cdr_model_text *t, bool own, cdr_err *err)
{
    int64_t have = cdr_tokenizer_vocab(s->tok), want = s->info->vocab;
    bool padded = strcmp(spec->type, "hf_bpe") == 0 && have <= want && (own || want - have < PADDING);
    char a[32], b[32];
    if (have == want || padded) return CDR_OK;
    cdr_format_count(a, have);
    cdr_format_count(b, want);
    const char *name = spec->file ? spec->file : spec->type;
    if (own) CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.vocab-mismatch", "%s: %s tokens, the model has %s; ids would not match. %s holds files of two models", name, a, b,
                         spec->dir ? spec->dir : "The description");
    const char *file = t->dir && t->file ? t->file : strcmp(t->type, "byte") == 0 ? "byte tokenizer" : t->type;
    CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.vocab-mismatch", "%s: %s tokens, the model has %s; ids would not match. Remove data.tokenizer (%s) to use the model's own %s",
                name, a, b, where_said(s), file);
}

cdr_status cdr__session_tokenizer(cdr_session *s, cdr_err *err)
{
    const char *said = s->r.data.tokenizer;
    bool own = strcmp(said, "model") == 0;
    cdr_model_text t = cdr_model_get_text(s->model);
    cdr_tokenizer_spec spec = { .type = "byte" };
    if (s->tok) return CDR_OK;
    if (own) CDR_TRY(own_tokenizer(s, &t, &spec, err));
    else if (strcmp(said, "byte") != 0) CDR_TRY(other_tokenizer(s, &t, said, &spec, err));
    CDR_TRY(cdr_tokenizer_open(&spec, &s->tok, err));
    return same_vocab(s, &spec, &t, own, err);
}

/* ---- inspect --------------------------------------------------------------------------------------------------- */

static void say(const cdr_tokenizer *tok, cdr_text *line, cdr_jw *w)
{
    int named = 0, special = 0, vocab = cdr_tokenizer_vocab(tok);
    size_t longest = 0, n;
    char text[2][32];
    for (int id = 0; id < vocab; id++) {
        const char *name = cdr_tokenizer_special_name(tok, id);
        (void)cdr_tokenizer_bytes(tok, id, &n);
        longest = CDR_MAX(longest, n);
        special += n == 0;
        named += name && n == 0 && strncmp(name, "<|reserved_token_", 17) != 0;
    }
    cdr_format_count(text[0], vocab - special);
    cdr_format_count(text[1], special);
    cdr_text_printf(line, "tokenizer, %s: %s tokens + %s special ids (%d named), longest token %zu bytes; hash %016llx", cdr_tokenizer_type(tok), text[0], text[1],
                    named, longest, (unsigned long long)cdr_tokenizer_hash(tok));
    if (!w) return;
    cdr_jw_str(w, "type", cdr_tokenizer_type(tok));
    cdr_jw_int(w, "vocab", vocab);
    cdr_jw_int(w, "tokens", vocab - special);
    cdr_jw_int(w, "special", special);
    cdr_jw_int(w, "named", named);
    cdr_jw_int(w, "longest_bytes", (int64_t)longest);
    cdr_jw_u64hex(w, "hash", cdr_tokenizer_hash(tok));
}

cdr_status cdr__inspect_tokenizer(const char *path, bool *is, cdr_text *line, cdr_jw *w, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_tokenizer_spec spec = { 0 };
    cdr_tokenizer *tok = NULL;
    *is = cdr_tokenizer_find(path, NULL, pool, &spec);
    cdr_status st = *is ? cdr_tokenizer_open(&spec, &tok, err) : CDR_OK;
    if (tok) say(tok, line, w);
    cdr_tokenizer_close(tok);
    cdr_pool_free(pool);
    return st;
}
