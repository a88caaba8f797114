/* hf_bpe.c: ids by a tokenizer.json. Text is cut at added tokens that are looked for in it as it is, what remains is normalized and cut at those that are
 * looked for after that, what remains then goes through the pre-tokenizers one after the other, and each piece is merged.
 *
 * User text is cut at no control token. In trusted text they are found as tokenizers finds them: the longest of those that begin leftmost, with their flags.
 * Bytes that are no UTF-8, which tokenizers cannot be given, count as a symbol (U+FFFD) where text is cut, and are encoded byte by byte.
 */
#include "tokenizer/hf_bpe.h"
#include "tokenizer/unicode.h"

#include <string.h>

static const size_t MAX_FILE = (size_t)256 << 20;

typedef int64_t (*encoder)(const cdr_tokenizer *tok, const char *s, size_t n, bool trusted, int32_t *ids);

/* ---- pieces -------------------------------------------------------------------------------------------------- */

static int64_t encode_pieces(const cdr_tokenizer *tok, const char *s, size_t n, bool trusted, int32_t *ids)
{
    const cdr__hf *hf = tok->own;
    size_t end[CDR__HF_LEVELS + 1] = { n }, at = 0;
    int64_t done = 0;
    (void)trusted;
    for (int d = 0; d >= 0;) {
        if (at == end[d]) d--;
        else if (d == hf->n_levels) {
            done += cdr__bpe_encode(hf->bpe, s + at, end[d] - at, ids + done);
            at = end[d--];
        } else {
            end[d + 1] = at + cdr__pattern_piece(hf->level[d], s + at, end[d] - at);
            d++;
        }
    }
    return done;
}

/* ---- added tokens -------------------------------------------------------------------------------------------- */

static size_t spaces_before(const cdr__set *space, const char *s, size_t at, size_t least)
{
    while (at > least) {
        size_t i = at - 1, k;
        while (i > least && at - i < 4 && ((unsigned char)s[i] & 0xc0) == 0x80) i--;
        uint32_t c = cdr__utf8(s + i, at - i, &k);
        if (c == CDR__NO_UTF8 || i + k != at || !cdr__set_has(space, c)) break;
        at = i;
    }
    return at;
}

static size_t spaces_after(const cdr__set *space, const char *s, size_t at, size_t n)
{
    for (size_t k; at < n; at += k) {
        uint32_t c = cdr__utf8(s + at, n - at, &k);
        if (c == CDR__NO_UTF8 || !cdr__set_has(space, c)) break;
    }
    return at;
}

/* Is a character of a word right before `at`, or at it? */
static bool in_word(const cdr__set *word, const char *s, size_t at, size_t n, bool before)
{
    size_t i = at, k;
    if (before ? at == 0 : at == n) return false;
    if (before) {
        i--;
        while (i > 0 && at - i < 4 && ((unsigned char)s[i] & 0xc0) == 0x80) i--;
    }
    uint32_t c = cdr__utf8(s + i, (before ? at : n) - i, &k);
    return c != CDR__NO_UTF8 && (!before || i + k == at) && cdr__set_has(word, c);
}

/* Cuts at the added tokens that are wanted: those with (flags & mask) == value. `next` is for what lies between. */
static int64_t cut(const cdr_tokenizer *tok, const char *s, size_t n, bool trusted, uint32_t value, encoder next, int32_t *ids)
{
    const cdr__hf *hf = tok->own;
    uint32_t mask = CDR__SPECIAL_NORMALIZED | (trusted ? 0 : CDR__SPECIAL_TEXT);
    int64_t done = 0;
    size_t from = 0;
    if (!trusted) value |= CDR__SPECIAL_TEXT;
    for (size_t i = 0; i < n;) {
        const cdr__special *x = cdr__special_at(tok, s + i, n - i, mask, value);
        size_t start = i, stop = i + (x ? x->n : 1);
        i = stop;
        if (!x || (x->flags & CDR__SPECIAL_WORD && (in_word(&hf->word, s, start, n, true) || in_word(&hf->word, s, stop, n, false)))) continue;
        if (x->flags & CDR__SPECIAL_LEFT) start = spaces_before(&hf->space, s, start, from);
        if (x->flags & CDR__SPECIAL_RIGHT) stop = spaces_after(&hf->space, s, stop, n);
        if (start > from) done += next(tok, s + from, start - from, trusted, ids + done);
        ids[done++] = x->id;
        i = from = stop;
    }
    return from < n ? done + next(tok, s + from, n - from, trusted, ids + done) : done;
}

static int64_t encode_normalized(const cdr_tokenizer *tok, const char *s, size_t n, bool trusted, int32_t *ids)
{
    const cdr__hf *hf = tok->own;
    if (hf->has_normalized && (trusted || hf->has_text)) return cut(tok, s, n, trusted, CDR__SPECIAL_NORMALIZED, encode_pieces, ids);
    return encode_pieces(tok, s, n, trusted, ids);
}

static int64_t encode_raw(const cdr_tokenizer *tok, const char *s, size_t n, bool trusted, int32_t *ids)
{
    const cdr__hf *hf = tok->own;
    if (!hf->nfc || cdr__nfc_is(s, n)) return encode_normalized(tok, s, n, trusted, ids);
    cdr_text t = { 0 };
    cdr__nfc(s, n, &t);
    int64_t done = encode_normalized(tok, t.s, t.n, trusted, ids);
    cdr_text_free(&t);
    return done;
}

static int64_t hf_encode(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return ((const cdr__hf *)tok->own)->has_text ? cut(tok, text, bytes, false, 0, encode_raw, ids) : encode_raw(tok, text, bytes, false, ids);
}

static int64_t hf_encode_trusted(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return cut(tok, text, bytes, true, 0, encode_raw, ids);
}

/* ---- cuts ------------------------------------------------------------------------------------------------------ */

/* Is a cut at `at` without effect? ASCII before it, so that a character begins there; with NFC behind it too, since ASCII composes with nothing before it.
 * Added tokens in text are white space: none reaches across another character. Pre-tokenizers one after the other: one that has a border there ends the
 * question, one that cuts a piece there hands two pieces to the next. Without any, the text is one piece. */
static bool can_cut(const cdr__hf *hf, const char *s, size_t at, size_t n)
{
    size_t k;
    uint32_t c = cdr__utf8(s + at, n - at, &k);
    if ((signed char)s[at - 1] < 0 || (hf->nfc && c > 0x7f) || (hf->has_text && cdr__set_has(&hf->space, c))) return false;
    for (int d = 0; d < hf->n_levels; d++) {
        int cut = cdr__pattern_cut(hf->level[d], s, at, n);
        if (cut != CDR__CUT_INSIDE) return cut == CDR__CUT_BORDER;
    }
    return false;
}

static size_t hf_cut(const cdr_tokenizer *tok, const char *text, size_t bytes, size_t from)
{
    const cdr__hf *hf = tok->own;
    if (hf->has_text_words) return bytes;
    while (from < bytes && !can_cut(hf, text, from, bytes)) from++;
    return from;
}

/* ---- open ---------------------------------------------------------------------------------------------------- */

static cdr_status read_file(cdr_pool *pool, const char *path, cdr_tokenizer *tok, cdr__hf *hf, cdr_err *err)
{
    const cdr_json *root;
    char *text;
    size_t bytes;
    CDR_TRY(cdr_file_read(path, MAX_FILE, &text, &bytes, err));
    cdr_status st = cdr_json_parse(pool, text, bytes, path, &root, err);
    cdr_free(text);
    CDR_TRY(st);
    CDR_TRY(cdr__hf_read(root, path, tok, hf, err));
    for (int i = 0; i < hf->n_special; i++) hf->special[i].name = cdr_pool_strdup(tok->pool, hf->special[i].name);
    return CDR_OK;
}

static cdr_status finish(const char *path, cdr_tokenizer *tok, cdr__hf *hf, const cdr_json *config, cdr_err *err)
{
    (void)cdr__set_property(tok->pool, &hf->space, "s", 1);
    cdr__set_sort(&hf->space);
    tok->own = hf;
    tok->growth = hf->nfc ? 3 : 1;                     /* composition of three bytes can have nine (Unicode Annex 15, 2.1) */
    cdr_text rules = { 0 };
    cdr_text_printf(&rules, "%d %d %016llx", hf->nfc, hf->ignore_merges, (unsigned long long)hf->merges);
    for (int i = 0; i < hf->n_levels; i++) cdr_text_printf(&rules, "\n%s", hf->regex[i]);
    cdr_status st = cdr__tokenizer_finish(tok, hf->special, hf->n_special, rules.s, rules.n, path, err);
    cdr_text_free(&rules);
    if (st == CDR_OK) cdr__tokenizer_roles(tok, config);
    return st;
}

static cdr_status hf_open(const cdr_tokenizer_spec *s, cdr_tokenizer *tok, cdr_err *err)
{
    const char *path = cdr__tokenizer_path(tok->pool, s, "tokenizer.json"), *where;
    cdr_pool *pool = cdr_pool_new();                   /* of the files' trees, which are gone when the tokenizer is open */
    cdr__hf *hf = cdr_pool_alloc(tok->pool, sizeof *hf);
    const cdr_json *config = NULL;
    cdr_status st = read_file(pool, path, tok, hf, err);
    if (st == CDR_OK) st = cdr__tokenizer_config(pool, path, &config, &where, err);
    if (st == CDR_OK) st = finish(path, tok, hf, config, err);
    cdr_pool_free(pool);
    return st;
}

const cdr__tokenizer_kind cdr__tokenizer_hf_bpe = { "hf_bpe", hf_open, hf_encode, hf_encode_trusted, hf_cut };
