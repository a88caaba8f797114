/* tiktoken.c: rank BPE of a tiktoken.model. Lines are base64(bytes of the token), a space, the rank; the rank is the id. Special slots follow the ranks; their
 * names stand in tokenizer_config.json's added_tokens_decoder, a slot without a name is <|reserved_token_ID|>.
 *
 * What is merged: the pair of neighbours whose joined bytes have the lowest rank. Each way to cut a token in two tokens is therefore a pair of the table in
 * bpe.c, with the token's rank; a text's parts are tokens at every moment, so nothing else can occur.
 *
 * With the pattern kimi, text is first cut into chunks of 400,000 characters, and each where a run of white space, or of anything else, passes 25,000, as the
 * models' own tokenizer does before it asks tiktoken: ids differ at such cuts alone. White space is Python's there: Unicode's, and U+001C to U+001F.
 * Source: spec/formats.md 2.1, 2.2; patterns of cl100k_base and o200k_base: tiktoken_ext/openai_public.py of tiktoken 0.5 (later ones say the same with
 * possessive repetition). Bytes that are no UTF-8 count as a symbol (U+FFFD) where text is cut, and are encoded byte by byte.
 */
#include "tokenizer/bpe.h"
#include "tokenizer/internal.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

#include <string.h>

enum { CHUNK = 400000, RUN = 25000, MAX_SPECIAL = 65536 };
static const size_t MAX_FILE = (size_t)256 << 20;

#define WORD_HEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SPACE "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct { const char *name, *regex; bool chunks; } PATTERNS[] = {
    { "kimi", "[\\p{Han}]+|" WORD_HEAD KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTION "?|" WORD_HEAD KIMI_UPPER "+" KIMI_LOWER "*" CONTRACTION "?|"
              "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACE, true },
    { "o200k", WORD_HEAD UPPER "*" LOWER "+" CONTRACTION "?|" WORD_HEAD UPPER "+" LOWER "*" CONTRACTION "?|"
               "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACE, false },
    { "cl100k", CONTRACTION "|" WORD_HEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACE, false },
};

typedef struct { const cdr__bpe *bpe; const cdr__pattern *pattern; bool chunks; } own;
typedef struct { const char *path; cdr_err *err; cdr_pool *pool; int n; char *bytes; size_t n_bytes; uint32_t *length, *rank; int64_t line; } reader;

/* ---- file -------------------------------------------------------------------------------------------------- */

static int digit(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Bytes written; -1: no base64 with its padding. */
static int64_t base64(const char *s, size_t n, char *out)
{
    int64_t k = 0;
    if (n == 0 || n % 4 != 0) return -1;
    for (size_t i = 0; i < n; i += 4) {
        int d[4], pad = 0;
        for (int j = 0; j < 4; j++) {
            d[j] = digit(s[i + (size_t)j]);
            if (d[j] >= 0 && pad == 0) continue;
            if (s[i + (size_t)j] != '=' || j < 2 || i + 4 != n) return -1;
            d[j] = 0;
            pad++;
        }
        uint32_t x = (uint32_t)(d[0] << 18 | d[1] << 12 | d[2] << 6 | d[3]);
        if ((pad == 1 && (x & 0xff)) || (pad == 2 && (x & 0xffff))) return -1;
        out[k++] = (char)(x >> 16 & 0xff);
        if (pad < 2) out[k++] = (char)(x >> 8 & 0xff);
        if (pad < 1) out[k++] = (char)(x & 0xff);
    }
    return k;
}

static cdr_status bad_line(reader *r, const char *why)
{
    CDR_FAIL_ID(r->err, CDR_EDATA, "tokenizer.bad-file", "%s:%lld: %s. A line is base64 of a token, one space, its rank. Copy the file again", r->path,
                (long long)r->line, why);
}

static cdr_status read_line(reader *r, const char *s, size_t n)
{
    const char *space = memchr(s, ' ', n);
    int64_t k = space ? base64(s, (size_t)(space - s), r->bytes + r->n_bytes) : -1;
    uint64_t rank = 0;
    if (!space) return bad_line(r, "no space");
    if (k < 0) return bad_line(r, "no base64");
    if (k > CDR__MAX_TOKEN) return bad_line(r, "a token of more than 1,024 bytes, which no vocabulary has");
    const char *d = space + 1, *end = s + n;
    if (d == end) return bad_line(r, "no rank");
    for (; d < end; d++) {
        if (*d < '0' || *d > '9') return bad_line(r, "the rank is no number");
        rank = rank * 10 + (uint64_t)(*d - '0');
        if (rank >= CDR__MAX_VOCAB) return bad_line(r, "a rank above 2,097,151, which no vocabulary has");
    }
    r->length[r->n] = (uint32_t)k;
    r->rank[r->n++] = (uint32_t)rank;
    r->n_bytes += (size_t)k;
    return CDR_OK;
}

static cdr_status read_lines(reader *r, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const char *end = memchr(s + i, '\n', n - i);
        size_t stop = end ? (size_t)(end - s) : n, k = stop - i;
        r->line++;
        if (k > 0 && s[stop - 1] == '\r') k--;
        if (k > 0) {
            if (r->n == CDR__MAX_VOCAB) return bad_line(r, "more than 2,097,152 tokens");
            CDR_TRY(read_line(r, s + i, k));
        }
        i = stop + 1;
    }
    return CDR_OK;
}

/* Tokens in the order of their ranks, each rank once. */
static cdr_status by_rank(reader *r, int special, const char **text, uint32_t **at_out)
{
    int n = r->n;
    size_t from = 0, *start = cdr_alloc(sizeof *start * (size_t)CDR_MAX(n, 1));
    uint32_t *at = cdr_pool_alloc(r->pool, sizeof *at * (size_t)(n + special + 1)), to = 0;
    char *sorted = cdr_pool_alloc(r->pool, CDR_MAX(r->n_bytes, (size_t)1));
    cdr_status st = CDR_OK;
    int *line = cdr_alloc(sizeof *line * (size_t)CDR_MAX(n, 1));
    for (int i = 0; i < n; i++) line[i] = -1;
    for (int i = 0; i < n && st == CDR_OK; from += r->length[i++]) {
        start[i] = from;
        if (r->rank[i] < (uint32_t)n && line[r->rank[i]] < 0) line[r->rank[i]] = i;
        else if (r->rank[i] < (uint32_t)n) st = cdr_fail(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: rank %u stands twice. Copy the file again", r->path, r->rank[i]);
    }
    for (int i = 0; i < n && st == CDR_OK; i++) {
        int k = line[i];
        if (k < 0) {
            st = cdr_fail(r->err, CDR_EDATA, "tokenizer.bad-file", "%s: %d tokens, but none has rank %d: ranks are 0 to %d, each once. Copy the file again", r->path,
                          n, i, n - 1);
            break;
        }
        memcpy(sorted + to, r->bytes + start[k], r->length[k]);
        at[i] = to;
        to += r->length[k];
    }
    for (int i = n; i <= n + special && st == CDR_OK; i++) at[i] = to;
    cdr_free(start);
    cdr_free(line);
    *text = sorted;
    *at_out = at;
    return st;
}

/* ---- special slots ------------------------------------------------------------------------------------------ */

static cdr_status slot_number(const char *path, const char *key, int base, int special, int64_t *id, cdr_err *err)
{
    int64_t x = 0;
    size_t n = strlen(key);
    for (size_t i = 0; i < n && x <= CDR__MAX_VOCAB; i++) x = key[i] >= '0' && key[i] <= '9' ? x * 10 + (key[i] - '0') : INT32_MAX;
    if (n == 0 || x > CDR__MAX_VOCAB) CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: added_tokens_decoder has the key \"%s\", which is no id", path, key);
    if (x < base || (special > 0 && x >= base + special) || x >= base + MAX_SPECIAL)
        CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: added_tokens_decoder names id %lld, but special slots are %d to %d. These files do not belong together",
                    path, (long long)x, base, base + (special > 0 ? special : MAX_SPECIAL) - 1);
    *id = x;
    return CDR_OK;
}

/* names[slot]; *special 0 becomes what the file needs, 256 at least. */
static cdr_status read_names(const cdr_json *root, const char *path, int base, int *special, const char **names, cdr_err *err)
{
    if (!root) {
        if (*special == 0) *special = 256;
        cdr_log(CDR_LOG_WARNING, "%s: not there, so special ids have no names but <|reserved_token_ID|>, and chat formats find none", path);
        return CDR_OK;
    }
    const cdr_json *decoder = cdr_json_get(root, "added_tokens_decoder");
    int64_t most = 255;
    for (int64_t i = 0; i < cdr_json_count(decoder); i++) {
        int64_t id = 0;
        const char *name = cdr_json_str(cdr_json_get(cdr_json_at(decoder, i), "content"), NULL);
        CDR_TRY(slot_number(path, cdr_json_key(decoder, i), base, *special, &id, err));
        if (!name || !*name) CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: added_tokens_decoder.%lld has no content", path, (long long)id);
        names[id - base] = name;
        most = CDR_MAX(most, id - base);
    }
    if (*special == 0) *special = (int)most + 1;
    return CDR_OK;
}

static cdr_status find_pattern(const cdr_tokenizer_spec *s, int *row, cdr_err *err)
{
    const char *name = s->pattern && *s->pattern ? s->pattern : "kimi";
    for (int i = 0; i < CDR_COUNT(PATTERNS); i++)
        if (strcmp(PATTERNS[i].name, name) == 0) {
            *row = i;
            return CDR_OK;
        }
    CDR_FAIL_ID(err, CDR_EUSER, "tokenizer.pattern", "tokenizer.pattern: \"%s\" is not known. There are kimi, o200k and cl100k", name);
}

/* ---- tables -------------------------------------------------------------------------------------------------- */

static cdr_status make_bpe(cdr_tokenizer *tok, int base, const char *path, const cdr__bpe **out, cdr_err *err)
{
    cdr__bpe *b = cdr__bpe_new(tok->pool, tok->at, tok->text, base, base);
    for (int id = 0; id < base; id++) {
        int first = cdr__bpe_token(b, id);
        if (first != id) CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: ranks %d and %d are the same token. Copy the file again", path, first, id);
    }
    int missing = cdr__bpe_bytes(b);
    if (missing >= 0)
        CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: no token is the byte 0x%02x alone, so not every text has ids. Copy the file again", path,
                    (unsigned)missing);
    for (int id = 0; id < base; id++) {
        const char *s = tok->text + tok->at[id];
        size_t n = tok->at[id + 1] - tok->at[id];
        for (size_t k = 1; k < n; k++) {
            int left = cdr__bpe_find(b, s, k), right = left >= 0 ? cdr__bpe_find(b, s + k, n - k) : -1;
            if (right >= 0) (void)cdr__bpe_pair(b, left, right, (uint32_t)id, id);
        }
    }
    cdr__bpe_finish(b, true);
    *out = b;
    return CDR_OK;
}

typedef struct { const cdr_json *root; const char *path; const char **names; } config;

static cdr_status read_model(cdr_tokenizer *tok, const cdr_tokenizer_spec *s, const char *path, const config *c, int *base, int *special, cdr_err *err)
{
    char *data;
    size_t bytes;
    CDR_TRY(cdr_file_read(path, MAX_FILE, &data, &bytes, err));
    int64_t lines = 1;
    for (size_t i = 0; i < bytes; i++) lines += data[i] == '\n';
    lines = CDR_MIN(lines, (int64_t)CDR__MAX_VOCAB);
    reader r = { .path = path, .err = err, .pool = tok->pool, .bytes = cdr_alloc(bytes + 1), .length = cdr_alloc(sizeof *r.length * (size_t)lines),
                 .rank = cdr_alloc(sizeof *r.rank * (size_t)lines) };
    cdr_status st = read_lines(&r, data, bytes);
    cdr_free(data);
    *base = r.n;
    *special = s->special;
    if (st == CDR_OK && r.n == 0) st = cdr_fail(err, CDR_EDATA, "tokenizer.bad-file", "%s: holds no token. Copy the file again", path);
    if (st == CDR_OK && s->base > 0 && r.n != s->base)
        st = cdr_fail(err, CDR_EDATA, "tokenizer.bad-file", "%s: %d tokens, the model has %d beside its special ids. This file belongs to another model", path, r.n,
                      s->base);
    if (st == CDR_OK) st = read_names(c->root, c->path, r.n, special, c->names, err);
    uint32_t *at = NULL;
    if (st == CDR_OK) st = by_rank(&r, *special, &tok->text, &at);
    tok->at = at;
    cdr_free(r.bytes);
    cdr_free(r.length);
    cdr_free(r.rank);
    return st;
}

static cdr_status tiktoken_open(const cdr_tokenizer_spec *s, cdr_tokenizer *tok, cdr_err *err)
{
    int row = 0, base, n;
    CDR_TRY(find_pattern(s, &row, err));
    if (s->base < 0 || s->base > CDR__MAX_VOCAB || s->special < 0 || s->special > MAX_SPECIAL)
        CDR_FAIL_ID(err, CDR_EUSER, "tokenizer.bad-value", "tokenizer: base %d and special %d are no numbers of ids", s->base, s->special);
    const char *path = cdr__tokenizer_path(tok->pool, s, "tiktoken.model");
    config c = { .names = cdr_pool_alloc(tok->pool, sizeof *c.names * MAX_SPECIAL) };
    CDR_TRY(cdr__tokenizer_config(tok->pool, path, &c.root, &c.path, err));
    CDR_TRY(read_model(tok, s, path, &c, &base, &n, err));
    cdr__special *special = cdr_pool_alloc(tok->pool, sizeof *special * (size_t)CDR_MAX(n, 1));
    for (int i = 0; i < n; i++) {
        const char *name = c.names[i] ? c.names[i] : cdr_pool_printf(tok->pool, "<|reserved_token_%d|>", base + i);
        special[i] = (cdr__special){ .name = name, .n = (uint32_t)strlen(name), .id = base + i };
    }
    own *o = cdr_pool_alloc(tok->pool, sizeof *o);
    o->chunks = PATTERNS[row].chunks;
    tok->own = o;
    tok->vocab = base + n;
    tok->growth = 1;
    CDR_TRY(cdr__pattern_compile(PATTERNS[row].regex, path, tok->pool, &o->pattern, err));
    CDR_TRY(make_bpe(tok, base, path, &o->bpe, err));
    CDR_TRY(cdr__tokenizer_finish(tok, special, n, PATTERNS[row].name, strlen(PATTERNS[row].name), path, err));
    cdr__tokenizer_roles(tok, c.root);
    return CDR_OK;
}

/* ---- text ---------------------------------------------------------------------------------------------------- */

static int64_t encode_chunk(const cdr_tokenizer *tok, const char *s, size_t n, int32_t *ids)
{
    const own *o = tok->own;
    int64_t done = 0;
    for (size_t i = 0, k; i < n; i += k) {
        k = cdr__pattern_piece(o->pattern, s + i, n - i);
        done += cdr__bpe_encode(o->bpe, s + i, k, ids + done);
    }
    return done;
}

static inline bool python_space(uint32_t c)
{
    if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Bytes of the next chunk; *chars: characters since the last cut at CHUNK. */
static size_t next_chunk(const char *s, size_t n, int64_t *chars)
{
    int run = 0;
    bool space = false;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t c = cdr__utf8(s + i, n - i, &k);
        if (*chars == CHUNK) {
            *chars = 0;
            return i;
        }
        bool now = python_space(c);
        run = run > 0 && now == space ? run + 1 : 1;
        space = now;
        if (run > RUN) return i;
        (*chars)++;
    }
    return n;
}

/* trusted: names of special ids become them, within a chunk, as the models' own tokenizer does. */
static int64_t encode_cut(const cdr_tokenizer *tok, const char *s, size_t n, int32_t *ids,
                          int64_t (*encode)(const cdr_tokenizer *, const char *, size_t, int32_t *))
{
    int64_t done = 0, chars = 0;
    /* fewer bytes than a run that is cut has characters: nothing to look for */
    if (!((const own *)tok->own)->chunks || n <= RUN) return encode(tok, s, n, ids);
    for (size_t i = 0, k; i < n; i += k) {
        k = next_chunk(s + i, n - i, &chars);
        done += encode(tok, s + i, k, ids + done);
    }
    return done;
}

static int64_t tiktoken_encode(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return encode_cut(tok, text, bytes, ids, encode_chunk);
}

static int64_t trusted_chunk(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return cdr__encode_names(tok, text, bytes, ids, encode_chunk);
}

static int64_t tiktoken_encode_trusted(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return encode_cut(tok, text, bytes, ids, trusted_chunk);
}

/* Chunks are counted from the text's beginning, so only where one of CHUNK characters ends. */
static size_t chunk_end(const char *s, size_t n, size_t from)
{
    int64_t chars = 0;
    for (size_t i = 0, k; i < n; i += k, chars++) {
        (void)cdr__utf8(s + i, n - i, &k);
        if (chars < CHUNK) continue;
        if (i >= from) return i;
        chars = 0;
    }
    return n;
}

static size_t tiktoken_cut(const cdr_tokenizer *tok, const char *text, size_t bytes, size_t from)
{
    const own *o = tok->own;
    if (o->chunks) return chunk_end(text, bytes, from);
    while (from < bytes && ((signed char)text[from - 1] < 0 || cdr__pattern_cut(o->pattern, text, from, bytes) != CDR__CUT_BORDER)) from++;
    return from;
}

const cdr__tokenizer_kind cdr__tokenizer_tiktoken = { "tiktoken", tiktoken_open, tiktoken_encode, tiktoken_encode_trusted, tiktoken_cut };
