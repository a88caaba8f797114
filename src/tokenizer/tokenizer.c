/* tokenizer.c: the table of kinds, and all that is the same for each of them: questions about ids, decoding, names in trusted text.
 *
 * Names in trusted text are found from left to right, the longest first where several begin at one place. They are sorted, so the names that
 * agree with the text so far are a range, which one more byte narrows: at most log2(names) steps for each byte of a name, none for other text.
 */
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

static const cdr__tokenizer_kind *const KINDS[] = { &cdr__tokenizer_byte, &cdr__tokenizer_tiktoken, &cdr__tokenizer_hf_bpe };

cdr_status cdr_tokenizer_open(const cdr_tokenizer_spec *s, cdr_tokenizer **tok, cdr_err *err)
{
    const cdr__tokenizer_kind *kind = NULL;
    *tok = NULL;
    for (int i = 0; i < CDR_COUNT(KINDS); i++)
        if (strcmp(KINDS[i]->name, s->type) == 0) kind = KINDS[i];
    if (!kind) CDR_FAIL_ID(err, CDR_EUSER, "tokenizer.unknown", "data.tokenizer: \"%s\" is not known. There are byte, tiktoken and hf_bpe", s->type);
    cdr_pool *pool = cdr_pool_new();
    cdr_tokenizer *t = cdr_pool_alloc(pool, sizeof *t);
    t->kind = kind;
    t->pool = pool;
    cdr_status st = kind->open(s, t, err);
    if (st != CDR_OK) {
        cdr_pool_free(pool);
        return st;
    }
    *tok = t;
    return CDR_OK;
}

void cdr_tokenizer_close(cdr_tokenizer *tok)
{
    if (tok) cdr_pool_free(tok->pool);
}

static int by_id(const void *pa, const void *pb)
{
    const cdr__special *a = pa, *b = pb;
    return (a->id > b->id) - (a->id < b->id);
}

static int by_name(const void *pa, const void *pb)
{
    const cdr__special *a = pa, *b = pb;
    int c = memcmp(a->name, b->name, CDR_MIN(a->n, b->n));
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

static uint64_t hash_of(const cdr_tokenizer *tok, const void *rules, size_t rules_bytes)
{
    cdr_hasher *h = cdr_hasher_new();
    cdr_hasher_add(h, tok->kind->name, strlen(tok->kind->name) + 1);
    cdr_hasher_add(h, &tok->vocab, sizeof tok->vocab);
    cdr_hasher_add(h, tok->at, sizeof *tok->at * ((size_t)tok->vocab + 1));
    cdr_hasher_add(h, tok->text, tok->at[tok->vocab]);
    for (int i = 0; i < tok->n_special; i++) {
        const cdr__special *s = &tok->by_id[i];
        const int32_t number[] = { s->id, (int32_t)s->flags, (int32_t)s->n };
        cdr_hasher_add(h, number, sizeof number);
        cdr_hasher_add(h, s->name, s->n);
    }
    if (rules_bytes) cdr_hasher_add(h, rules, rules_bytes);
    return cdr_hasher_end(h);
}

cdr_status cdr__tokenizer_finish(cdr_tokenizer *tok, const cdr__special *special, int n, const void *rules, size_t rules_bytes, const char *where, cdr_err *err)
{
    size_t bytes = sizeof *special * (size_t)CDR_MAX(n, 1);
    cdr__special *id = cdr_pool_alloc(tok->pool, bytes), *name = cdr_pool_alloc(tok->pool, bytes);
    if (n > 0) {
        memcpy(id, special, sizeof *special * (size_t)n);
        memcpy(name, special, sizeof *special * (size_t)n);
        qsort(id, (size_t)n, sizeof *id, by_id);
        qsort(name, (size_t)n, sizeof *name, by_name);
    }
    for (int i = 1; i < n; i++) {
        if (id[i].id == id[i - 1].id)
            CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: id %d has two names, %s and %s. Take the files from their source again", where, id[i].id,
                        id[i - 1].name, id[i].name);
        if (by_name(&name[i], &name[i - 1]) == 0)
            CDR_FAIL_ID(err, CDR_EDATA, "tokenizer.bad-file", "%s: the name %s stands for two ids, %d and %d. Take the files from their source again", where,
                        name[i].name, name[i - 1].id, name[i].id);
    }
    tok->n_special = n;
    tok->by_id = id;
    tok->by_name = name;
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < n && (unsigned char)name[i].name[0] < b) i++;
        tok->first[b] = i;
    }
    tok->hash = hash_of(tok, rules, rules_bytes);
    return CDR_OK;
}

const char *cdr_tokenizer_type(const cdr_tokenizer *tok)
{
    return tok->kind->name;
}

int cdr_tokenizer_vocab(const cdr_tokenizer *tok)
{
    return tok->vocab;
}

uint64_t cdr_tokenizer_hash(const cdr_tokenizer *tok)
{
    return tok->hash;
}

int cdr_tokenizer_special(const cdr_tokenizer *tok, const char *name)
{
    size_t n = strlen(name);
    cdr__special key = { .name = name, .n = (uint32_t)CDR_MIN(n, (size_t)UINT32_MAX) };
    const cdr__special *s = tok->n_special > 0 && n > 0 ? bsearch(&key, tok->by_name, (size_t)tok->n_special, sizeof key, by_name) : NULL;
    return s ? s->id : -1;
}

const char *cdr_tokenizer_special_name(const cdr_tokenizer *tok, int id)
{
    cdr__special key = { .id = id };
    const cdr__special *s = tok->n_special > 0 ? bsearch(&key, tok->by_id, (size_t)tok->n_special, sizeof key, by_id) : NULL;
    return s ? s->name : NULL;
}

int64_t cdr_tokenizer_room(const cdr_tokenizer *tok, size_t bytes)
{
    return (int64_t)bytes * tok->growth;
}

int64_t cdr_tokenizer_encode(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    return tok->kind->encode(tok, text, bytes, ids);
}

/* First of by_name[lo] .. by_name[hi] (all longer than d, or ending there) whose byte d is at least c. */
static int first_with(const cdr_tokenizer *tok, int lo, int hi, uint32_t d, int c)
{
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const cdr__special *s = &tok->by_name[mid];
        int have = d < s->n ? (unsigned char)s->name[d] : -1;
        if (have < c) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

const cdr__special *cdr__special_at(const cdr_tokenizer *tok, const char *text, size_t bytes, uint32_t mask, uint32_t value)
{
    const cdr__special *found = NULL;
    if (bytes == 0) return NULL;
    int c = (unsigned char)text[0], lo = tok->first[c], hi = tok->first[c + 1];
    for (uint32_t d = 1; lo < hi; d++) {
        if (tok->by_name[lo].n == d && (tok->by_name[lo].flags & mask) == value) found = &tok->by_name[lo];
        if (d == bytes) break;
        c = (unsigned char)text[d];
        lo = first_with(tok, lo, hi, d, c);
        hi = first_with(tok, lo, hi, d, c + 1);
    }
    return found;
}

int64_t cdr__encode_names(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids,
                          int64_t (*encode)(const cdr_tokenizer *, const char *, size_t, int32_t *))
{
    int64_t n = 0;
    size_t from = 0;
    for (size_t i = 0; i < bytes;) {
        const cdr__special *s = cdr__special_at(tok, text + i, bytes - i, 0, 0);
        if (!s) {
            i++;
            continue;
        }
        n += encode(tok, text + from, i - from, ids + n);
        ids[n++] = s->id;
        from = i += s->n;
    }
    return n + encode(tok, text + from, bytes - from, ids + n);
}

int64_t cdr_tokenizer_encode_trusted(const cdr_tokenizer *tok, const char *text, size_t bytes, int32_t *ids)
{
    if (tok->kind->encode_trusted) return tok->kind->encode_trusted(tok, text, bytes, ids);
    return cdr__encode_names(tok, text, bytes, ids, tok->kind->encode);
}

size_t cdr_tokenizer_cut(const cdr_tokenizer *tok, const char *text, size_t bytes, size_t from)
{
    return from < bytes ? tok->kind->cut(tok, text, bytes, from) : bytes;
}

const char *cdr__tokenizer_path(cdr_pool *pool, const cdr_tokenizer_spec *s, const char *file)
{
    const char *name = s->file && *s->file ? s->file : file;
    return s->dir && *s->dir ? cdr_pool_printf(pool, "%s/%s", s->dir, name) : cdr_pool_strdup(pool, name);
}

const char *cdr_tokenizer_bytes(const cdr_tokenizer *tok, int id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= tok->vocab) return NULL;
    *n = tok->at[id + 1] - tok->at[id];
    return tok->text + tok->at[id];
}

bool cdr_tokenizer_decode(const cdr_tokenizer *tok, const int32_t *ids, int64_t n, bool specials, cdr_text *out)
{
    for (int64_t i = 0; i < n; i++) {
        size_t k;
        const char *s = cdr_tokenizer_bytes(tok, ids[i], &k);
        if (!s) return false;
        if (k > 0) cdr_text_append(out, s, k);
        else if (specials && (s = cdr_tokenizer_special_name(tok, ids[i]))) cdr_text_append(out, s, strlen(s));
    }
    return true;
}
