/* bpe.c: tables of tokens and of pairs, and the merging of one piece.
 *
 * A piece of up to SHORT bytes is an array of ids with the rank of each pair of neighbours beside it: the lowest is found by looking at all of them, the
 * rest moves up. That is quadratic, and faster than anything else for so few. A longer piece is a linked list with a heap of (rank, place), so that 25,000
 * letters without a space cost 25,000 log 25,000; an entry of the heap whose pair has changed since is dropped when it comes up.
 * Tables are open addressing, of a power of two, and small, since every look is a cache miss where they are not: a token of up to 8 bytes is its own key, so
 * that finding it reads one line of memory; a pair is one 64-bit word. A piece that is one token is found without merging.
 */
#include "tokenizer/bpe.h"

#include <string.h>

enum { SHORT = 128, RANK_BITS = 22, ID_BITS = 21 };
_Static_assert(CDR__MAX_VOCAB <= 1 << ID_BITS && CDR__MAX_RANKS < 1 << RANK_BITS, "an entry of the pairs has 64 bits, and is never FREE");
static const uint32_t NO_RANK = UINT32_MAX;
static const uint64_t FREE = UINT64_MAX;

typedef struct { uint64_t key; int32_t id; uint32_t n; } token_slot;         /* key: the bytes, or the hash of more than 8; n 0: free */

struct cdr__bpe {
    cdr_pool *pool;
    const uint32_t *at; const char *text; int vocab;
    int32_t byte[256];
    token_slot *token; uint64_t token_mask;
    uint64_t *pair; uint64_t pair_mask; int64_t n_pairs;                     /* left << 43 | right << 22 | rank, or FREE, which no rank below CDR__MAX_RANKS makes */
    int32_t *made;                         /* rank: the id that its pair becomes */
    bool *whole;                           /* id: a piece with its bytes becomes it */
};

static inline uint64_t mix(uint64_t x)
{
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* n <= 8 bytes as a number, two loads that may overlap instead of a loop. Differs for each text of n bytes. */
static inline uint64_t short_key(const char *s, size_t n)
{
    uint64_t key = 0;
    if (n == 8) {
        memcpy(&key, s, 8);
    } else if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        key = (uint64_t)hi << 32 | lo;
    } else {
        key = (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << 8 | (uint64_t)(unsigned char)s[n - 1] << 16;
    }
    return key;
}

static inline uint64_t pair_hash(int32_t left, int32_t right)
{
    return mix((uint64_t)(uint32_t)left << ID_BITS | (uint32_t)right);
}

static uint64_t room_for(int64_t n)
{
    uint64_t k = 64;
    while (k < 2 * (uint64_t)n) k *= 2;
    return k;
}

cdr__bpe *cdr__bpe_new(cdr_pool *pool, const uint32_t *at, const char *text, int vocab, int64_t n_ranks)
{
    CDR_CHECK(vocab <= CDR__MAX_VOCAB && n_ranks <= CDR__MAX_RANKS);
    cdr__bpe *b = cdr_pool_alloc(pool, sizeof *b);
    b->pool = pool;
    b->at = at;
    b->text = text;
    b->vocab = vocab;
    b->token_mask = room_for(vocab) - 1;
    b->token = cdr_pool_alloc(pool, sizeof *b->token * (b->token_mask + 1));
    b->whole = cdr_pool_alloc(pool, sizeof *b->whole * (size_t)CDR_MAX(vocab, 1));
    b->made = cdr_pool_alloc(pool, sizeof *b->made * (size_t)CDR_MAX(n_ranks, 1));
    return b;
}

/* The slot of a token, or the free one where it would be. */
static inline token_slot *token_at(const cdr__bpe *b, const char *s, size_t n)
{
    uint64_t key = n <= 8 ? short_key(s, n) : cdr_hash64(s, n, 0), i = mix(key ^ n) & b->token_mask;
    for (token_slot *t; (t = &b->token[i])->n; i = (i + 1) & b->token_mask)
        if (t->key == key && t->n == n && (n <= 8 || memcmp(b->text + b->at[t->id], s, n) == 0)) break;
    return &b->token[i];
}

int cdr__bpe_token(cdr__bpe *b, int id)
{
    const char *s = b->text + b->at[id];
    size_t n = b->at[id + 1] - b->at[id];
    token_slot *slot = token_at(b, s, n);
    if (slot->n == 0) *slot = (token_slot){ n <= 8 ? short_key(s, n) : cdr_hash64(s, n, 0), id, (uint32_t)n };
    return slot->id;
}

int cdr__bpe_find(const cdr__bpe *b, const char *s, size_t n)
{
    if (n == 0 || n > CDR__MAX_TOKEN) return -1;
    const token_slot *t = token_at(b, s, n);
    return t->n ? t->id : -1;
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

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << (ID_BITS + RANK_BITS) | (uint64_t)(uint32_t)right << RANK_BITS;
}

static inline uint64_t *pair_at(const cdr__bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right), i = pair_hash(left, right) & b->pair_mask;
    while (b->pair[i] != FREE && (b->pair[i] ^ key) >> RANK_BITS) i = (i + 1) & b->pair_mask;
    return &b->pair[i];
}

static void grow_pairs(cdr__bpe *b)
{
    uint64_t *old = b->pair, n_old = old ? b->pair_mask + 1 : 0, n = n_old ? 2 * n_old : 1 << 12, mask = ((uint64_t)1 << ID_BITS) - 1;
    b->pair = cdr_alloc(sizeof *b->pair * n);
    b->pair_mask = n - 1;
    memset(b->pair, 0xff, sizeof *b->pair * n);
    for (uint64_t i = 0; i < n_old; i++)
        if (old[i] != FREE) *pair_at(b, (int32_t)(old[i] >> (ID_BITS + RANK_BITS)), (int32_t)(old[i] >> RANK_BITS & mask)) = old[i];
    cdr_free(old);
}

bool cdr__bpe_pair(cdr__bpe *b, int left, int right, uint32_t rank, int id)
{
    if (!b->pair || (uint64_t)b->n_pairs * 3 > b->pair_mask * 2) grow_pairs(b);
    uint64_t *slot = pair_at(b, left, right);
    if (*slot != FREE) return false;
    *slot = pair_key(left, right) | rank;
    b->made[rank] = id;
    b->n_pairs++;
    return true;
}

/* ---- merging ---------------------------------------------------------------------------------------------- */

static inline uint32_t look(const cdr__bpe *b, int32_t left, int32_t right)
{
    uint64_t p = *pair_at(b, left, right);
    return p == FREE ? NO_RANK : (uint32_t)p & ((1u << RANK_BITS) - 1);
}

static int64_t merge_short(const cdr__bpe *b, const char *s, int n, int32_t *ids)
{
    uint32_t rank[SHORT];                  /* of (id i, id i + 1) */
    int32_t id[SHORT];
    for (int i = 0; i < n; i++) id[i] = b->byte[(unsigned char)s[i]];
    for (int i = 0; i + 1 < n; i++) rank[i] = look(b, id[i], id[i + 1]);
    while (n > 1) {
        uint32_t least = NO_RANK;
        int at = 0;
        for (int i = 0; i < n - 1; i++) least = CDR_MIN(least, rank[i]);
        if (least == NO_RANK) break;
        while (rank[at] != least) at++;
        id[at] = b->made[least];
        n--;
        size_t rest = (size_t)(n - at - 1);
        memmove(id + at + 1, id + at + 2, sizeof *id * rest);
        memmove(rank + at, rank + at + 1, sizeof *rank * rest);
        if (at + 1 < n) rank[at] = look(b, id[at], id[at + 1]);
        if (at > 0) rank[at - 1] = look(b, id[at - 1], id[at]);
    }
    memcpy(ids, id, sizeof *ids * (size_t)n);
    return n;
}

typedef struct { int32_t id; uint32_t rank; int32_t next, before; } link;    /* rank: with the next one; id -1: gone */
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
    l[i].rank = l[i].next < 0 ? NO_RANK : look(b, l[i].id, l[l[i].next].id);
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
        l[i].id = b->made[rank];
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
    uint64_t *kept = cdr_pool_alloc(b->pool, sizeof *kept * (b->pair_mask + 1));
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
    int id = cdr__bpe_find(b, piece, bytes);
    if (id >= 0 && b->whole[id]) {
        ids[0] = id;
        return 1;
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
