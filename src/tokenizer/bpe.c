/* bpe.c: tables of tokens and of pairs, and the merging of one piece.
 *
 * A piece of up to SHORT bytes is an array of ids with the rank of each pair of neighbours beside it: the lowest is found by looking at all of them, the
 * rest moves up. That is quadratic, and faster than anything else for so few. A longer piece is a linked list with a heap of (rank, place), so that 25,000
 * letters without a space cost 25,000 log 25,000; an entry of the heap whose pair has changed since is dropped when it comes up.
 * Tables are open addressing at most half full, of a power of two. A piece that is one token is found without merging.
 */
#include "tokenizer/bpe.h"

#include <string.h>

enum { SHORT = 128 };
static const uint32_t NO_RANK = UINT32_MAX;

typedef struct { uint32_t tag; int32_t id; } token_slot;                     /* id -1: free; tag: high half of the hash */
typedef struct { int32_t left, right; uint32_t rank; int32_t id; } pair_slot;        /* left -1: free */

struct cdr__bpe {
    cdr_pool *pool;
    const uint32_t *at; const char *text; int vocab;
    int32_t byte[256];
    token_slot *token; uint64_t token_mask;
    pair_slot *pair; uint64_t pair_mask; int64_t n_pairs;
    bool *whole;                           /* id: a piece with its bytes becomes it */
};

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t a = 0, b = 0;
    if (n > 16) return cdr_hash64(s, n, 0);
    if (n >= 8) {
        memcpy(&a, s, 8);
        memcpy(&b, s + n - 8, 8);
    } else if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        a = lo;
        b = hi;
    } else {
        a = (unsigned char)s[0];
        b = (uint64_t)(unsigned char)s[n / 2] << 8 | (unsigned char)s[n - 1];
    }
    uint64_t x = (a ^ (b << 31 | b >> 33) ^ n) * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x = (x ^ b) * 0xd6e8feb86659fd93u;
    return x ^ x >> 29;
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    uint64_t x = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

static uint64_t room_for(int64_t n)
{
    uint64_t k = 64;
    while (k < 2 * (uint64_t)n) k *= 2;
    return k;
}

cdr__bpe *cdr__bpe_new(cdr_pool *pool, const uint32_t *at, const char *text, int vocab)
{
    cdr__bpe *b = cdr_pool_alloc(pool, sizeof *b);
    b->pool = pool;
    b->at = at;
    b->text = text;
    b->vocab = vocab;
    b->token_mask = room_for(vocab) - 1;
    b->token = cdr_pool_alloc(pool, sizeof *b->token * (b->token_mask + 1));
    for (uint64_t i = 0; i <= b->token_mask; i++) b->token[i].id = -1;
    b->whole = cdr_pool_alloc(pool, sizeof *b->whole * (size_t)CDR_MAX(vocab, 1));
    return b;
}

static token_slot *token_at(const cdr__bpe *b, const char *s, size_t n)
{
    uint64_t h = hash_bytes(s, n), i = h & b->token_mask;
    uint32_t tag = (uint32_t)(h >> 32);
    for (; b->token[i].id >= 0; i = (i + 1) & b->token_mask) {
        int id = b->token[i].id;
        if (b->token[i].tag == tag && b->at[id + 1] - b->at[id] == n && memcmp(b->text + b->at[id], s, n) == 0) break;
    }
    return &b->token[i];
}

int cdr__bpe_token(cdr__bpe *b, int id)
{
    const char *s = b->text + b->at[id];
    size_t n = b->at[id + 1] - b->at[id];
    token_slot *slot = token_at(b, s, n);
    if (slot->id < 0) *slot = (token_slot){ (uint32_t)(hash_bytes(s, n) >> 32), id };
    return slot->id;
}

int cdr__bpe_find(const cdr__bpe *b, const char *s, size_t n)
{
    return n > 0 ? token_at(b, s, n)->id : -1;
}

int cdr__bpe_bytes(cdr__bpe *b)
{
    int missing = -1;
    for (int i = 255; i >= 0; i--) {
        char c = (char)(unsigned char)i;
        b->byte[i] = cdr__bpe_find(b, &c, 1);
        if (b->byte[i] < 0) missing = i;
    }
    return missing;
}

static pair_slot *pair_at(const cdr__bpe *b, int32_t left, int32_t right)
{
    uint64_t i = hash_pair(left, right) & b->pair_mask;
    while (b->pair[i].left >= 0 && (b->pair[i].left != left || b->pair[i].right != right)) i = (i + 1) & b->pair_mask;
    return &b->pair[i];
}

static void grow_pairs(cdr__bpe *b)
{
    pair_slot *old = b->pair;
    uint64_t n_old = old ? b->pair_mask + 1 : 0, n = n_old ? 2 * n_old : 1 << 12;
    b->pair = cdr_alloc(sizeof *b->pair * n);
    b->pair_mask = n - 1;
    for (uint64_t i = 0; i < n; i++) b->pair[i].left = -1;
    for (uint64_t i = 0; i < n_old; i++)
        if (old[i].left >= 0) *pair_at(b, old[i].left, old[i].right) = old[i];
    cdr_free(old);
}

bool cdr__bpe_pair(cdr__bpe *b, int left, int right, uint32_t rank, int id)
{
    if (!b->pair || (uint64_t)b->n_pairs * 2 > b->pair_mask) grow_pairs(b);
    pair_slot *slot = pair_at(b, left, right);
    if (slot->left >= 0) return false;
    *slot = (pair_slot){ left, right, rank, id };
    b->n_pairs++;
    return true;
}

/* ---- merging ---------------------------------------------------------------------------------------------- */

static inline uint32_t look(const cdr__bpe *b, int32_t left, int32_t right, int32_t *id)
{
    const pair_slot *p = pair_at(b, left, right);
    *id = p->id;
    return p->left < 0 ? NO_RANK : p->rank;
}

static int64_t merge_short(const cdr__bpe *b, const char *s, int n, int32_t *ids)
{
    uint32_t rank[SHORT];                  /* of (id i, id i + 1), and what it becomes */
    int32_t id[SHORT], into[SHORT];
    for (int i = 0; i < n; i++) id[i] = b->byte[(unsigned char)s[i]];
    for (int i = 0; i + 1 < n; i++) rank[i] = look(b, id[i], id[i + 1], &into[i]);
    while (n > 1) {
        uint32_t least = NO_RANK;
        int at = 0;
        for (int i = 0; i < n - 1; i++) least = CDR_MIN(least, rank[i]);
        if (least == NO_RANK) break;
        while (rank[at] != least) at++;
        id[at] = into[at];
        n--;
        size_t rest = (size_t)(n - at - 1);
        memmove(id + at + 1, id + at + 2, sizeof *id * rest);
        memmove(rank + at, rank + at + 1, sizeof *rank * rest);
        memmove(into + at, into + at + 1, sizeof *into * rest);
        if (at + 1 < n) rank[at] = look(b, id[at], id[at + 1], &into[at]);
        if (at > 0) rank[at - 1] = look(b, id[at - 1], id[at], &into[at - 1]);
    }
    memcpy(ids, id, sizeof *ids * (size_t)n);
    return n;
}

typedef struct { int32_t id, into; uint32_t rank; int32_t next, before; } link;        /* rank, into: with the next one; id -1: gone */
typedef struct { uint64_t *key; int64_t n; } heap;                           /* rank << 32 | place */

static void sift_down(heap *h, int64_t i)
{
    uint64_t key = h->key[i];
    for (int64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->key[child + 1] < h->key[child]) child++;
        if (h->key[child] >= key) break;
        h->key[i] = h->key[child];
    }
    h->key[i] = key;
}

static void push(heap *h, uint64_t key)
{
    int64_t i = h->n++;
    for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2) h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = key;
}

static void pair_of(const cdr__bpe *b, link *l, int32_t i, heap *h)
{
    l[i].rank = l[i].next < 0 ? NO_RANK : look(b, l[i].id, l[l[i].next].id, &l[i].into);
    if (l[i].rank != NO_RANK) push(h, (uint64_t)l[i].rank << 32 | (uint32_t)i);
}

static int64_t merge_long(const cdr__bpe *b, const char *s, int32_t n, int32_t *ids)
{
    link *l = cdr_alloc(sizeof *l * (size_t)n);
    heap h = { cdr_alloc(sizeof *h.key * 3 * (size_t)n), 0 };                /* a merge takes one entry and adds two at most */
    int64_t n_ids = 0;
    for (int32_t i = 0; i < n; i++) l[i] = (link){ .id = b->byte[(unsigned char)s[i]], .next = i + 1 < n ? i + 1 : -1, .before = i - 1 };
    for (int32_t i = 0; i < n; i++) pair_of(b, l, i, &h);
    while (h.n > 0) {
        uint32_t rank = (uint32_t)(h.key[0] >> 32);
        int32_t i = (int32_t)(h.key[0] & UINT32_MAX);
        h.key[0] = h.key[--h.n];
        if (h.n > 0) sift_down(&h, 0);
        if (l[i].id < 0 || l[i].rank != rank) continue;
        int32_t gone = l[i].next;
        l[i].id = l[i].into;
        l[i].next = l[gone].next;
        l[gone].id = -1;
        if (l[i].next >= 0) l[l[i].next].before = i;
        pair_of(b, l, i, &h);
        if (l[i].before >= 0) pair_of(b, l, l[i].before, &h);
    }
    for (int32_t i = 0; i >= 0; i = l[i].next) ids[n_ids++] = l[i].id;
    cdr_free(l);
    cdr_free(h.key);
    return n_ids;
}

void cdr__bpe_finish(cdr__bpe *b, bool whole)
{
    int32_t ids[CDR__MAX_TOKEN];
    if (!b->pair) grow_pairs(b);
    pair_slot *kept = cdr_pool_alloc(b->pool, sizeof *kept * (b->pair_mask + 1));
    memcpy(kept, b->pair, sizeof *kept * (b->pair_mask + 1));
    cdr_free(b->pair);
    b->pair = kept;
    for (int id = 0; id < b->vocab; id++) {
        const char *s = b->text + b->at[id];
        size_t n = b->at[id + 1] - b->at[id];
        if (n == 0 || cdr__bpe_find(b, s, n) != id) continue;
        b->whole[id] = whole;
        if (!whole) b->whole[id] = cdr__bpe_encode(b, s, n, ids) == 1 && ids[0] == id;
    }
}

int64_t cdr__bpe_encode(const cdr__bpe *b, const char *piece, size_t bytes, int32_t *ids)
{
    int64_t done = 0;
    if (bytes == 0) return 0;
    if (bytes <= CDR__MAX_TOKEN) {
        int id = cdr__bpe_find(b, piece, bytes);
        if (id >= 0 && b->whole[id]) {
            ids[0] = id;
            return 1;
        }
    }
    if (bytes <= SHORT) return merge_short(b, piece, (int)bytes, ids);
    /* places are 32 bits: a piece beyond that, which no text of language has, is cut */
    while (bytes > 0) {
        size_t n = CDR_MIN(bytes, (size_t)1 << 30);
        done += merge_long(b, piece, (int32_t)n, ids + done);
        piece += n;
        bytes -= n;
    }
    return done;
}
