/* pack.c: the rows of an epoch, from document lengths, seed and epoch alone.
 *
 * A document of n inputs gives ceil(n / S) samples, cut at multiples of S. An epoch takes each sample as often as its
 * source's weight says: w = c + f gives c copies of all, and round(f n) of them once more, chosen by a permutation keyed by
 * (seed, source, epoch). Position i of the epoch is slot perm(i); rows are filled first-fit, each window of pack_window
 * positions by itself: a sample goes to the first open row of its window with room for it and fewer than max_docs pieces.
 * Rows keep the order in which they were opened.
 *
 * First fit by a tournament tree over the rows of the window (a node holds the largest room below it): O(log window) a sample.
 * Nothing is allocated after open: an epoch has at most n_slots rows, and always exactly n_slots samples.
 */
#include "data/internal.h"

#include <math.h>

static const uint64_t STREAM_ORDER = 0x6f72646572, STREAM_EXTRA = 0x6578747261;         /* streams of the random keys: "order", "extra" */

enum { HINT = 8 };                      /* samples for one entry of doc_hint: a search of few steps instead of log(documents) */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;      /* finaliser of splitmix64 (Steele, Lea, Flood 2014) */
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

cdr__perm cdr__perm_make(cdr_rng_key key, uint64_t n)
{
    cdr__perm p = { .n = n, .half_bits = 1 };
    while (p.half_bits < 31 && ((uint64_t)1 << (2 * p.half_bits)) < n) p.half_bits++;
    for (uint64_t r = 0; r < CDR_COUNT(p.key); r++) p.key[r] = cdr_rng_u64(key, r);
    return p;
}

uint64_t cdr__perm_at(const cdr__perm *p, uint64_t i)
{
    uint64_t mask = ((uint64_t)1 << p->half_bits) - 1;
    do {                                              /* a cycle of the network through i comes back inside; four tries on average at most */
        uint64_t left = i >> p->half_bits, right = i & mask;
        for (int r = 0; r < CDR_COUNT(p->key); r++) {
            uint64_t next = left ^ (mix(right + p->key[r]) & mask);
            left = right;
            right = next;
        }
        i = left << p->half_bits | right;
    } while (i >= p->n);
    return i;
}

static int64_t samples_of(const cdr__doc *d, int64_t S)
{
    return cdr_ceil_div(d->n_in, S);
}

static cdr_status set_slots(cdr_pool *pool, const cdr_data_opts *o, const cdr__corpus *c, cdr__packer *p, cdr_err *err)
{
    size_t n = (size_t)o->n_train + 1;
    p->n_sources = o->n_train;
    p->source_first = cdr_pool_alloc(pool, n * sizeof *p->source_first);
    p->copies = cdr_pool_alloc(pool, n * sizeof *p->copies);
    p->extra = cdr_pool_alloc(pool, n * sizeof *p->extra);
    p->extra_perm = cdr_pool_alloc(pool, n * sizeof *p->extra_perm);
    int64_t first_doc = 0;
    double slots = 0;
    for (int i = 0; i < o->n_train; i++) {
        double w = o->train[i].weight != 0 ? o->train[i].weight : 1.0;
        if (!(w > 0 && w <= 1e6)) CDR_FAIL_ID(err, CDR_EUSER, "data.weight", "%s: a weight of %g; it must be above 0 and at most 1e6", o->train[i].path, w);
        p->source_first[i + 1] = p->first_sample[c->source_end[i]];
        int64_t count = p->source_first[i + 1] - p->source_first[i], n_short = 0;
        for (int64_t d = first_doc; d < c->source_end[i]; d++) n_short += c->train.docs[d].n_in % p->sequence_length != 0;
        p->copies[i] = (int64_t)floor(w);
        p->extra[i] = llround((w - floor(w)) * (double)count);
        p->n_short += n_short * (p->copies[i] + (p->extra[i] > 0));
        p->n_slots += p->copies[i] * count + p->extra[i];
        slots += w * (double)count;
        first_doc = c->source_end[i];
    }
    if (p->n_samples >= UINT32_MAX || slots >= (double)UINT32_MAX)
        CDR_FAIL_ID(err, CDR_EUSER, "data.too-many", "an epoch has %.0f samples; at most %u are handled. Use a longer train.sequence_length, or fewer files",
                    slots, UINT32_MAX - 1);
    if (p->n_slots == 0) CDR_FAIL_ID(err, CDR_EUSER, "data.weight", "the weights of data.train leave no sample in an epoch");
    return CDR_OK;
}

cdr_status cdr__packer_open(cdr_pool *pool, const cdr_data_opts *o, const cdr__corpus *c, int64_t max_docs, cdr__packer *p, cdr_err *err)
{
    *p = (cdr__packer){ .docs = c->train.docs, .n_docs = c->train.n, .sequence_length = o->sequence_length, .max_docs = max_docs,
                        .seed = o->seed, .shuffle = !o->no_shuffle };
    p->first_sample = cdr_pool_alloc(pool, ((size_t)p->n_docs + 1) * sizeof *p->first_sample);
    for (int64_t d = 0; d < p->n_docs; d++) p->first_sample[d + 1] = p->first_sample[d] + samples_of(&p->docs[d], p->sequence_length);
    p->n_samples = p->first_sample[p->n_docs];
    p->doc_hint = cdr_pool_alloc(pool, ((size_t)p->n_samples / HINT + 2) * sizeof *p->doc_hint);
    int64_t doc = 0;
    for (int64_t i = 0; i <= p->n_samples / HINT; i++) {
        while (doc + 1 < p->n_docs && p->first_sample[doc + 1] <= i * HINT) doc++;
        p->doc_hint[i] = doc;
    }
    p->doc_hint[p->n_samples / HINT + 1] = p->n_docs - 1;
    CDR_TRY(set_slots(pool, o, c, p, err));
    p->window = CDR_MIN(o->pack_window > 0 ? o->pack_window : DEFAULT_WINDOW, p->n_slots);
    p->n_leaves = 1;
    while (p->n_leaves < p->window) p->n_leaves *= 2;
    p->tree = cdr_pool_alloc(pool, 2 * (size_t)p->n_leaves * sizeof *p->tree);
    p->used = cdr_pool_alloc(pool, (size_t)p->window * sizeof *p->used);
    p->count = cdr_pool_alloc(pool, ((size_t)p->window + 1) * sizeof *p->count);
    p->row_of = cdr_pool_alloc(pool, (size_t)p->window * sizeof *p->row_of);
    p->in = cdr_pool_alloc(pool, (size_t)p->window * sizeof *p->in);
    return CDR_OK;
}

void cdr__epoch_alloc(cdr_pool *pool, const cdr__packer *p, cdr__epoch *e)
{
    e->epoch = -1;
    e->row_first = cdr_pool_alloc(pool, ((size_t)p->n_slots + 1) * sizeof *e->row_first);
    e->item = cdr_pool_alloc(pool, (size_t)p->n_slots * sizeof *e->item);
}

cdr__piece cdr__packer_piece(const cdr__packer *p, uint32_t sample)
{
    int64_t lo = p->doc_hint[sample / HINT], hi = p->doc_hint[sample / HINT + 1], S = p->sequence_length;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (p->first_sample[mid] <= (int64_t)sample) lo = mid;
        else hi = mid - 1;
    }
    int64_t first = ((int64_t)sample - p->first_sample[lo]) * S;
    return (cdr__piece){ lo, first, CDR_MIN(S, p->docs[lo].n_in - first) };
}

static uint32_t sample_of_slot(const cdr__packer *p, int64_t slot)
{
    for (int64_t i = 0; i < p->n_sources; i++) {
        int64_t first = p->source_first[i], count = p->source_first[i + 1] - first, whole = p->copies[i] * count;
        if (slot < whole) return (uint32_t)(first + slot % count);
        slot -= whole;
        if (slot < p->extra[i]) return (uint32_t)(first + (int64_t)cdr__perm_at(&p->extra_perm[i], (uint64_t)slot));
        slot -= p->extra[i];
    }
    cdr_check_failed("slot < n_slots", __FILE__, __LINE__);
}

static void set_room(cdr__packer *p, int64_t row, int32_t room)
{
    int64_t k = p->n_leaves + row;
    for (p->tree[k] = room; k > 1; k /= 2) p->tree[k / 2] = CDR_MAX(p->tree[k], p->tree[k ^ 1]);
}

/* First row with room for n; -1: none. */
static int64_t first_fit(const cdr__packer *p, int64_t n)
{
    if (p->tree[1] < n) return -1;
    int64_t k = 1;
    while (k < p->n_leaves) k = p->tree[2 * k] >= n ? 2 * k : 2 * k + 1;
    return k - p->n_leaves;
}

/* One window: n samples in `in`; rows are added to e, its items written at row_first[e->n_rows]. */
static void pack_window(cdr__packer *p, const uint32_t *in, int64_t n, uint32_t *sorted, cdr__epoch *e)
{
    int64_t n_rows = 0;
    memset(p->tree, 0, 2 * (size_t)p->n_leaves * sizeof *p->tree);
    for (int64_t i = 0; i < n; i++) {
        int32_t len = (int32_t)cdr__packer_piece(p, in[i]).n;
        int64_t row = first_fit(p, len);
        if (row < 0) {
            row = n_rows++;
            p->used[row] = 0;
            p->count[row] = 0;
        }
        p->used[row] += len;
        p->count[row]++;
        p->row_of[i] = (int32_t)row;
        set_room(p, row, p->count[row] < p->max_docs ? (int32_t)p->sequence_length - p->used[row] : 0);
    }
    uint32_t at = e->row_first[e->n_rows];
    for (int64_t r = 0; r < n_rows; r++) {            /* counting sort by row, stable */
        e->row_first[e->n_rows + r] = at;
        at += (uint32_t)p->count[r];
        p->count[r] = (int32_t)(at - (uint32_t)p->count[r] - e->row_first[e->n_rows]);
    }
    e->row_first[e->n_rows + n_rows] = at;
    for (int64_t i = 0; i < n; i++) sorted[p->count[p->row_of[i]]++] = in[i];
    e->n_rows += n_rows;
}

void cdr__epoch_pack(cdr__packer *p, int64_t epoch, cdr__epoch *e)
{
    cdr__perm perm = cdr__perm_make((cdr_rng_key){ p->seed, STREAM_ORDER, (uint64_t)epoch }, (uint64_t)p->n_slots);
    e->epoch = epoch;
    e->n_rows = 0;
    e->row_first[0] = 0;
    for (int64_t i = 0; i < p->n_sources; i++)
        p->extra_perm[i] = cdr__perm_make((cdr_rng_key){ p->seed, STREAM_EXTRA + (uint64_t)i, (uint64_t)epoch },
                                          (uint64_t)(p->source_first[i + 1] - p->source_first[i]));
    for (int64_t i = 0; i < p->n_slots; i++)
        e->item[i] = sample_of_slot(p, p->shuffle ? (int64_t)cdr__perm_at(&perm, (uint64_t)i) : i);
    for (int64_t i = 0; i < p->n_slots; i += p->window) {
        int64_t n = CDR_MIN(p->window, p->n_slots - i);
        memcpy(p->in, e->item + i, (size_t)n * sizeof *p->in);
        pack_window(p, p->in, n, e->item + i, e);
    }
}
