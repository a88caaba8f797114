/* hf_read.c: a tokenizer.json of Hugging Face's tokenizers, as far as byte-level BPE goes. Every field that decides ids is read or refused by its name.
 *
 * normalizer     none, NFC, a Sequence of these (an empty one too)
 * pre_tokenizer  ByteLevel, or a Sequence of Split (Regex or String, Isolated), Digits and at last ByteLevel
 * model          BPE: vocab, merges as "a b" or ["a", "b"], ignore_merges; every byte has a token
 * decoder        ByteLevel
 * added_tokens   id, content and flags. All of them are control tokens, whatever their flag `special` says, but for those of white space alone: models flag
 *                their turn markers as not special (DeepSeek's User and Assistant, K3's open and close), and user text must never become one.
 * truncation, padding and post_processor decide what is put around a text, not its ids: they are not read.
 *
 * Strings of vocab stand for bytes by GPT-2's map: the printable ones of Latin-1 are themselves, the others are U+0100 and up in their order. A string with
 * another character can be no text's token (it is decoded as it stands).
 * Source: serialization of the tokenizers crate 0.21 to 0.23, its ByteLevel and BPE.
 */
#include "tokenizer/hf_bpe.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef struct {
    const cdr_json *root;
    const char *path;
    cdr_tokenizer *tok;
    cdr__hf *hf;
    cdr_err *err;
    int16_t byte_of[512];                 /* code point of the map: byte; -1: none */
    int64_t n_ids;                        /* room of the two: beyond the largest id that may be */
    const char **string; bool *mapped;    /* id: its string in the file, NULL none; every character of it is in the map */
} reader;

static cdr_status refuse(reader *r, const char *where, const char *what)
{
    CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.not-in-version", "%s: %s is %s, which this version cannot do exactly, so ids would differ", r->path, where, what);
}

static cdr_status bad(reader *r, const char *why)
{
    CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: %s. Take the file from its source again", r->path, why);
}

static cdr_status bad_text(reader *r, const char *why, const char *text)
{
    CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: %s \"%.60s\". Take the file from its source again", r->path, why, text);
}

static bool is(const cdr_json *j, cdr_json_kind kind)
{
    return j && cdr_json_type(j) == kind;
}

static bool absent(const cdr_json *j)
{
    return !j || cdr_json_type(j) == CDR_JSON_NULL;
}

/* Every key of the object is one of `known` ("a b c"). */
static cdr_status known_keys(reader *r, const cdr_json *j, const char *where, const char *known)
{
    for (int64_t i = 0; i < cdr_json_count(j); i++) {
        const char *key = cdr_json_key(j, i), *at = known;
        size_t n = key ? strlen(key) : 0;
        if (!key) return bad_text(r, "no object:", where);
        while (at && (strncmp(at, key, n) != 0 || (at[n] != ' ' && at[n]))) at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
        if (!at || n == 0)
            CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.not-in-version", "%s: %s has the field \"%.60s\", which this version does not know", r->path, where, key);
    }
    return CDR_OK;
}

static const char *type_of(const cdr_json *j)
{
    return cdr_json_str(cdr_json_get(j, "type"), "nothing with a type");
}

/* ---- normalizer, pre-tokenizer, decoder ------------------------------------------------------------------- */

static cdr_status one_normalizer(reader *r, const cdr_json *j)
{
    if (strcmp(type_of(j), "NFC") != 0) return refuse(r, "normalizer", type_of(j));
    r->hf->nfc = true;
    return known_keys(r, j, "normalizer", "type");
}

static cdr_status read_normalizer(reader *r)
{
    const cdr_json *j = cdr_json_get(r->root, "normalizer"), *list = cdr_json_get(j, "normalizers");
    if (absent(j)) return CDR_OK;
    if (strcmp(type_of(j), "Sequence") != 0) return one_normalizer(r, j);
    CDR_TRY(known_keys(r, j, "normalizer", "type normalizers"));
    if (!is(list, CDR_JSON_ARRAY)) return bad(r, "normalizer has no list of normalizers");
    for (int64_t i = 0; i < cdr_json_count(list); i++) CDR_TRY(one_normalizer(r, cdr_json_at(list, i)));
    return CDR_OK;
}

static cdr_status add_level(reader *r, const char *regex)
{
    cdr__hf *hf = r->hf;
    if (hf->n_levels == CDR__HF_LEVELS) return refuse(r, "pre_tokenizer", "longer than 16 steps");
    hf->regex[hf->n_levels] = cdr_pool_strdup(r->tok->pool, regex);
    return cdr__pattern_compile(regex, r->path, r->tok->pool, &hf->level[hf->n_levels++], r->err);
}

/* A literal text as a regular expression. */
static const char *literally(cdr_pool *pool, const char *text)
{
    cdr_text t = { 0 };
    for (const char *s = text; *s; s++) {
        bool word = (unsigned char)*s >= 0x80 || (*s >= '0' && *s <= '9') || ((*s | 32) >= 'a' && (*s | 32) <= 'z') || (unsigned char)*s <= ' ' || *s == 127;
        cdr_text_printf(&t, "%s%c", word ? "" : "\\", *s);
    }
    char *out = cdr_pool_strdup(pool, t.s ? t.s : "");
    cdr_text_free(&t);
    return out;
}

static cdr_status split(reader *r, const cdr_json *j)
{
    const cdr_json *pattern = cdr_json_get(j, "pattern");
    const char *regex = cdr_json_str(cdr_json_get(pattern, "Regex"), NULL), *text = cdr_json_str(cdr_json_get(pattern, "String"), NULL);
    const char *behavior = cdr_json_str(cdr_json_get(j, "behavior"), "none");
    CDR_TRY(known_keys(r, j, "pre_tokenizer Split", "type pattern behavior invert"));
    if (strcmp(behavior, "Isolated") != 0) return refuse(r, "behavior of a Split", behavior);
    if (cdr_json_bool(cdr_json_get(j, "invert"), false)) return refuse(r, "invert of a Split", "true");
    if (!regex == !text) return bad(r, "a Split has no pattern, Regex or String");
    return add_level(r, regex ? regex : literally(r->tok->pool, text));
}

static cdr_status one_pre_tokenizer(reader *r, const cdr_json *j, bool *bytes)
{
    const char *type = type_of(j);
    if (*bytes) return refuse(r, "pre_tokenizer behind ByteLevel", type);
    if (strcmp(type, "Split") == 0) return split(r, j);
    if (strcmp(type, "Digits") == 0) {
        CDR_TRY(known_keys(r, j, "pre_tokenizer Digits", "type individual_digits"));
        return add_level(r, cdr_json_bool(cdr_json_get(j, "individual_digits"), false) ? "\\p{N}" : "\\p{N}+");
    }
    if (strcmp(type, "ByteLevel") != 0) return refuse(r, "pre_tokenizer", type);
    CDR_TRY(known_keys(r, j, "pre_tokenizer ByteLevel", "type add_prefix_space trim_offsets use_regex"));
    if (cdr_json_bool(cdr_json_get(j, "add_prefix_space"), true)) return refuse(r, "add_prefix_space of ByteLevel", "true");
    *bytes = true;
    return cdr_json_bool(cdr_json_get(j, "use_regex"), true) ? add_level(r, GPT2) : CDR_OK;
}

static cdr_status read_pre_tokenizer(reader *r)
{
    const cdr_json *j = cdr_json_get(r->root, "pre_tokenizer"), *list = cdr_json_get(j, "pretokenizers"), *decoder = cdr_json_get(r->root, "decoder");
    bool bytes = false, sequence = !absent(j) && strcmp(type_of(j), "Sequence") == 0;
    if (absent(j)) return refuse(r, "pre_tokenizer", "none");
    if (sequence) {
        CDR_TRY(known_keys(r, j, "pre_tokenizer", "type pretokenizers"));
        if (!is(list, CDR_JSON_ARRAY)) return bad(r, "pre_tokenizer has no list of pretokenizers");
        for (int64_t i = 0; i < cdr_json_count(list); i++) CDR_TRY(one_pre_tokenizer(r, cdr_json_at(list, i), &bytes));
    } else CDR_TRY(one_pre_tokenizer(r, j, &bytes));
    if (!bytes) return refuse(r, "pre_tokenizer", "without ByteLevel");
    if (absent(decoder) || strcmp(type_of(decoder), "ByteLevel") != 0) return refuse(r, "decoder", absent(decoder) ? "none" : type_of(decoder));
    return CDR_OK;
}

/* ---- vocabulary ---------------------------------------------------------------------------------------------- */

static void make_map(reader *r)
{
    int next = 256;
    for (int i = 0; i < 512; i++) r->byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        r->byte_of[self ? b : next++] = (int16_t)b;
    }
}

/* Bytes that a string of the vocabulary stands for, into out; -1: a character is not in the map. */
static int64_t unmap(const reader *r, const char *s, size_t n, char *out)
{
    int64_t k = 0;
    size_t step;
    for (size_t i = 0; i < n; i += step) {
        uint32_t c = cdr__utf8(s + i, n - i, &step);
        if (c >= 512 || r->byte_of[c] < 0) return -1;
        out[k++] = (char)(unsigned char)r->byte_of[c];
    }
    return k;
}

static cdr_status take_string(reader *r, const char *what, const char *s, int64_t id)
{
    if (id < 0 || id >= r->n_ids)
        CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: %s \"%.60s\" has the id %lld; ids are 0 to %d here", r->path, what, s, (long long)id,
                    CDR__MAX_VOCAB - 1);
    if (!*s) return bad(r, "a token is the empty string");
    if (strlen(s) > 2 * CDR__MAX_TOKEN) return bad_text(r, "a token of more than 1,024 bytes, which no vocabulary has:", s);
    if (r->string[id] && strcmp(r->string[id], s) != 0)
        CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: id %lld is both \"%.60s\" and \"%.60s\". Take the file from its source again", r->path, (long long)id,
                    r->string[id], s);
    r->string[id] = s;
    r->tok->vocab = CDR_MAX(r->tok->vocab, (int)id + 1);
    return CDR_OK;
}

static cdr_status read_vocab(reader *r, const cdr_json *model)
{
    const cdr_json *vocab = cdr_json_get(model, "vocab");
    if (!is(vocab, CDR_JSON_OBJECT) || cdr_json_count(vocab) == 0) return bad(r, "model.vocab is no object with tokens");
    for (int64_t i = 0; i < cdr_json_count(vocab); i++) {
        const cdr_json *id = cdr_json_at(vocab, i);
        if (!is(id, CDR_JSON_INT)) return bad_text(r, "model.vocab gives no number for", cdr_json_key(vocab, i));
        CDR_TRY(take_string(r, "the token", cdr_json_key(vocab, i), cdr_json_int(id, -1)));
    }
    return CDR_OK;
}

static bool white(const char *s)
{
    return *s && strspn(s, " \t\n\r") == strlen(s);
}

static cdr_status one_added(reader *r, const cdr_json *j)
{
    static const struct { const char *key; uint32_t flag; } flags[] = {
        { "single_word", CDR__SPECIAL_WORD }, { "lstrip", CDR__SPECIAL_LEFT }, { "rstrip", CDR__SPECIAL_RIGHT }, { "normalized", CDR__SPECIAL_NORMALIZED },
    };
    cdr__hf *hf = r->hf;
    const char *content = cdr_json_str(cdr_json_get(j, "content"), NULL);
    int64_t id = cdr_json_int(cdr_json_get(j, "id"), -1);
    CDR_TRY(known_keys(r, j, "an entry of added_tokens", "id content single_word lstrip rstrip normalized special"));
    if (!content) return bad(r, "an entry of added_tokens has no content");
    CDR_TRY(take_string(r, "the added token", content, id));
    cdr__special *s = &hf->special[hf->n_special++];
    *s = (cdr__special){ .name = content, .n = (uint32_t)strlen(content), .id = (int32_t)id };
    for (int i = 0; i < CDR_COUNT(flags); i++)
        if (cdr_json_bool(cdr_json_get(j, flags[i].key), false)) s->flags |= flags[i].flag;
    if (!cdr_json_bool(cdr_json_get(j, "special"), false) && white(content)) s->flags |= CDR__SPECIAL_TEXT;
    hf->has_text = hf->has_text || s->flags & CDR__SPECIAL_TEXT;
    hf->has_text_words = hf->has_text_words || (s->flags & CDR__SPECIAL_TEXT && s->flags & CDR__SPECIAL_WORD);
    hf->has_normalized = hf->has_normalized || s->flags & CDR__SPECIAL_NORMALIZED;
    if (s->flags & CDR__SPECIAL_NORMALIZED && hf->nfc && !cdr__nfc_is(content, s->n)) {
        cdr_text t = { 0 };
        cdr__nfc(content, s->n, &t);
        s->name = cdr_pool_strndup(r->tok->pool, t.s, t.n);
        s->n = (uint32_t)t.n;
        cdr_text_free(&t);
    }
    return CDR_OK;
}

/* Characters of words as the regular expression \w has them: letters, marks, digits, connecting punctuation, joiners, and what Unicode calls alphabetic beside
 * these (numerals that are letters, encircled letters). */
static void make_words(reader *r)
{
    static const char *const property[] = { "L", "M", "Nd", "Nl", "Pc" };
    static const cdr__range more[] = { { 0x200c, 0x200d }, { 0x24b6, 0x24e9 }, { 0x1f130, 0x1f149 }, { 0x1f150, 0x1f169 }, { 0x1f170, 0x1f189 } };
    for (int i = 0; i < CDR_COUNT(property); i++) (void)cdr__set_property(r->tok->pool, &r->hf->word, property[i], strlen(property[i]));
    for (int i = 0; i < CDR_COUNT(more); i++) cdr__set_add(r->tok->pool, &r->hf->word, more[i].lo, more[i].hi);
    cdr__set_sort(&r->hf->word);
}

static cdr_status read_added(reader *r)
{
    const cdr_json *list = cdr_json_get(r->root, "added_tokens");
    uint32_t any = 0;
    if (absent(list)) return CDR_OK;
    if (!is(list, CDR_JSON_ARRAY)) return bad(r, "added_tokens is no list");
    r->hf->special = cdr_pool_alloc(r->tok->pool, sizeof *r->hf->special * (size_t)CDR_MAX(cdr_json_count(list), 1));
    for (int64_t i = 0; i < cdr_json_count(list); i++) CDR_TRY(one_added(r, cdr_json_at(list, i)));
    for (int i = 0; i < r->hf->n_special; i++) any |= r->hf->special[i].flags;
    if (any & CDR__SPECIAL_WORD) make_words(r);
    return CDR_OK;
}

/* Bytes of all ids: nothing for control tokens, the text for the others. */
static void make_bytes(reader *r)
{
    cdr_tokenizer *tok = r->tok;
    size_t total = 0;
    uint32_t to = 0, *at = cdr_pool_alloc(tok->pool, sizeof *at * ((size_t)tok->vocab + 1));
    bool *control = cdr_alloc((size_t)tok->vocab), *as_is = cdr_alloc((size_t)tok->vocab);
    memset(control, 0, (size_t)tok->vocab);
    memset(as_is, 0, (size_t)tok->vocab);
    for (int i = 0; i < r->hf->n_special; i++) (r->hf->special[i].flags & CDR__SPECIAL_TEXT ? as_is : control)[r->hf->special[i].id] = true;
    for (int i = 0; i < tok->vocab; i++) total += r->string[i] ? strlen(r->string[i]) : 0;
    char *text = cdr_pool_alloc(tok->pool, CDR_MAX(total, (size_t)1));
    for (int id = 0; id < tok->vocab; id++) {
        const char *s = r->string[id];
        at[id] = to;
        if (!s || control[id]) continue;
        size_t n = strlen(s);
        int64_t k = as_is[id] ? -1 : unmap(r, s, n, text + to);
        r->mapped[id] = k >= 0;
        if (k < 0) memcpy(text + to, s, n);
        to += k < 0 ? (uint32_t)n : (uint32_t)k;
    }
    at[tok->vocab] = to;
    tok->at = at;
    tok->text = text;
    cdr_free(control);
    cdr_free(as_is);
}

/* ---- merges -------------------------------------------------------------------------------------------------- */

/* The two strings of a merge, in either form. */
static bool two_strings(const cdr_json *j, const char *s[2], size_t n[2])
{
    if (is(j, CDR_JSON_STRING)) {
        const char *text = cdr_json_str(j, ""), *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        s[0] = text;
        n[0] = (size_t)(space - text);
        s[1] = space + 1;
        n[1] = strlen(space + 1);
        return n[0] > 0 && n[1] > 0;
    }
    for (int i = 0; i < 2; i++) {
        s[i] = cdr_json_str(cdr_json_at(j, i), NULL);
        n[i] = s[i] ? strlen(s[i]) : 0;
    }
    return is(j, CDR_JSON_ARRAY) && cdr_json_count(j) == 2 && n[0] > 0 && n[1] > 0;
}

static cdr_status bad_merge(reader *r, int64_t i, const char *why)
{
    CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: model.merges[%lld] %s. Take the file from its source again", r->path, (long long)i, why);
}

static cdr_status one_merge(reader *r, cdr__bpe *b, const cdr_json *j, int64_t i, cdr_hasher *h)
{
    char both[2 * CDR__MAX_TOKEN];
    const char *s[2];
    size_t n[2];
    int id[3], at = 0;
    if (!two_strings(j, s, n)) return bad_merge(r, i, "is no pair of tokens");
    for (int k = 0; k < 2; k++) {
        if (n[k] > 2 * CDR__MAX_TOKEN) return bad_merge(r, i, "has a token of more than 1,024 bytes");
        char part[2 * CDR__MAX_TOKEN];
        int64_t m = unmap(r, s[k], n[k], part);
        id[k] = m > 0 ? cdr__bpe_find(b, part, (size_t)m) : -1;
        if (id[k] < 0) return bad_merge(r, i, "has a token that is not in model.vocab, or is a control token");
        memcpy(both + at, part, (size_t)m);
        at += (int)m;
    }
    id[2] = cdr__bpe_find(b, both, (size_t)at);
    if (id[2] < 0) return bad_merge(r, i, "gives a token that is not in model.vocab, or is a control token");
    if (!cdr__bpe_pair(b, id[0], id[1], (uint32_t)i, id[2])) return bad_merge(r, i, "stands there a second time");
    cdr_hasher_add(h, id, sizeof id);
    return CDR_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* An added token that the vocabulary has too has the vocabulary's id: tokenizers takes that one, whatever the added token says. */
static cdr_status one_id_each(reader *r, const cdr__bpe *b)
{
    const char **other = cdr_alloc(sizeof *other * (size_t)r->tok->vocab), *twice = NULL;        /* strings that stand for no bytes */
    size_t n = 0;
    for (int id = 0; id < r->tok->vocab; id++)
        if (r->string[id] && !r->mapped[id] && r->tok->at[id + 1] > r->tok->at[id]) other[n++] = r->string[id];
    if (n > 1) qsort(other, n, sizeof *other, by_text);
    for (int i = 0; i < r->hf->n_special && !twice; i++) {
        const char *name = r->string[r->hf->special[i].id];
        char bytes[2 * CDR__MAX_TOKEN];
        int64_t k = unmap(r, name, strlen(name), bytes);
        bool text = r->hf->special[i].flags & CDR__SPECIAL_TEXT;
        if (k < 0 ? !text && n > 0 && bsearch(&name, other, n, sizeof *other, by_text) : cdr__bpe_find(b, bytes, (size_t)k) >= 0) twice = name;
    }
    cdr_free(other);
    return twice ? bad_text(r, "model.vocab and added_tokens give two ids to", twice) : CDR_OK;
}

static cdr_status read_merges(reader *r, const cdr_json *model)
{
    const cdr_json *list = cdr_json_get(model, "merges");
    if (!is(list, CDR_JSON_ARRAY)) return bad(r, "model.merges is no list");
    if (cdr_json_count(list) > CDR__MAX_RANKS)
        CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: model.merges has %lld merges, more than %d, which no vocabulary has. Take the file from its "
                    "source again",
                    r->path, (long long)cdr_json_count(list), CDR__MAX_RANKS);
    cdr__bpe *b = cdr__bpe_new(r->tok->pool, r->tok->at, r->tok->text, r->tok->vocab, cdr_json_count(list));
    for (int id = 0; id < r->tok->vocab; id++) {
        size_t n = r->tok->at[id + 1] - r->tok->at[id];
        if (!r->mapped[id]) continue;
        if (n > CDR__MAX_TOKEN) return bad_text(r, "a token of more than 1,024 bytes, which no vocabulary has:", r->string[id]);
        if (cdr__bpe_token(b, id) != id) return bad_text(r, "two ids are the token", r->string[id]);
    }
    int missing = cdr__bpe_bytes(b);
    if (missing >= 0)
        CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: no token is the byte 0x%02x alone, so not every text has ids. Take the file from its source again",
                    r->path, (unsigned)missing);
    CDR_TRY(one_id_each(r, b));
    cdr_hasher *h = cdr_hasher_new();
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < cdr_json_count(list) && st == CDR_OK; i++) st = one_merge(r, b, cdr_json_at(list, i), i, h);
    r->hf->merges = cdr_hasher_end(h);
    cdr__bpe_finish(b, r->hf->ignore_merges);
    r->hf->bpe = b;
    return st;
}

static cdr_status read_model(reader *r, const cdr_json *model)
{
    static const char *const empty[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const cdr_json *dropout = cdr_json_get(model, "dropout");
    if (!is(model, CDR_JSON_OBJECT)) return bad(r, "no model");
    if (strcmp(cdr_json_str(cdr_json_get(model, "type"), "BPE"), "BPE") != 0) return refuse(r, "model.type", type_of(model));
    CDR_TRY(known_keys(r, model, "model",
                       "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab merges"));
    if (!absent(dropout) && cdr_json_real(dropout, 1) != 0) return refuse(r, "model.dropout", "more than 0");
    if (cdr_json_bool(cdr_json_get(model, "byte_fallback"), false)) return refuse(r, "model.byte_fallback", "true");
    for (int i = 0; i < 2; i++) {
        const char *s = cdr_json_str(cdr_json_get(model, empty[i]), "");
        if (*s) return refuse(r, empty[i], s);
    }
    r->hf->ignore_merges = cdr_json_bool(cdr_json_get(model, "ignore_merges"), false);
    CDR_TRY(read_vocab(r, model));
    CDR_TRY(read_added(r));
    make_bytes(r);
    return read_merges(r, model);
}

/* One more than the largest id of the file that is a possible one. */
static int64_t count_ids(const cdr_json *root)
{
    const cdr_json *vocab = cdr_json_get(cdr_json_get(root, "model"), "vocab"), *added = cdr_json_get(root, "added_tokens");
    int64_t most = 0;
    for (int pass = 0; pass < 2; pass++) {
        const cdr_json *list = pass ? added : vocab;
        for (int64_t i = 0; i < cdr_json_count(list); i++) {
            const cdr_json *j = cdr_json_at(list, i);
            int64_t id = cdr_json_int(pass ? cdr_json_get(j, "id") : j, -1);
            if (id < CDR__MAX_VOCAB) most = CDR_MAX(most, id);
        }
    }
    return most + 1;
}

cdr_status cdr__hf_read(const cdr_json *root, const char *path, cdr_tokenizer *tok, cdr__hf *hf, cdr_err *err)
{
    reader r = { .root = root, .path = path, .tok = tok, .hf = hf, .err = err };
    if (!is(root, CDR_JSON_OBJECT)) return bad(&r, "no object");
    make_map(&r);
    CDR_TRY(known_keys(&r, root, "the file", "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model"));
    CDR_TRY(read_normalizer(&r));
    r.n_ids = count_ids(root);
    r.string = cdr_alloc(sizeof *r.string * (size_t)r.n_ids);
    r.mapped = cdr_alloc(sizeof *r.mapped * (size_t)r.n_ids);
    memset(r.string, 0, sizeof *r.string * (size_t)r.n_ids);
    memset(r.mapped, 0, sizeof *r.mapped * (size_t)r.n_ids);
    cdr_status st = read_model(&r, cdr_json_get(root, "model"));
    cdr_free(r.string);
    cdr_free(r.mapped);
    return st == CDR_OK ? read_pre_tokenizer(&r) : st;
}
