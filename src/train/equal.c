/* equal.c: do ranks hold what they must hold alike? Before the first step the compiled programs; at step 0 and every
 * parallel.hash_every steps the tensors that live from step to step (weight, master, moments, bias of each parameter):
 *
 *   whole on every rank                                        equal on all ranks
 *   split over the shard axis, or over expert groups           equal on the ranks of one shard, one in each replica
 *
 * A rank hashes its bytes (XXH3-64) and sends two numbers, one for each kind. Only where those differ does it send the hash
 * of each tensor, so that all ranks find the same first difference, name it alike, and stop together. Where more than two
 * ranks should agree, those that are not with the most are named.
 */
#include "train/session.h"

enum { WHOLE, SPLIT, N_KINDS, MAX_HASHES = 65536 / sizeof(uint64_t) };      /* of one all_gather */
enum { HASH_BYTES = 1 << 20 };        /* rows of a value in panels that are hashed at a time */

typedef struct { const char *name, *cls; uint64_t hash; uint8_t kind; } tensor;

static cdr_status share(cdr_session *s, const void *mine, void *all, size_t bytes, cdr_err *err)
{
    if (cdr_comm_all_gather(s->world, mine, all, bytes) == CDR_OK) return CDR_OK;
    cdr_comm_lost(s->world, err);
    return CDR_ERANK;
}

/* Of n numbers, stride apart: the one that most are; of equally many the first. *n_most: how many. */
static uint64_t most_common(const uint64_t *x, int n, int stride, int *n_most)
{
    int best = 0;
    *n_most = 0;
    for (int i = 0; i < n && *n_most < n; i++) {
        int same = 0;
        for (int k = 0; k < n; k++) same += x[k * stride] == x[i * stride];
        if (same <= *n_most) continue;
        *n_most = same;
        best = i;
    }
    return x[best * stride];
}

/* "rank 3", "ranks 3, 5, 6", "ranks 1, 2, 3, 4 and 120 more": those of n whose number is not `most`. */
static const char *names_of(const uint64_t *x, int n, int stride, uint64_t most, char out[96])
{
    enum { SHOWN = 4 };
    int n_odd = 0;
    size_t at = 0;
    for (int i = 0; i < n; i++) n_odd += x[i * stride] != most;
    at += (size_t)snprintf(out, 96, "rank%s", n_odd == 1 ? "" : "s");
    for (int i = 0, k = 0; i < n && k < SHOWN; i++)
        if (x[i * stride] != most) at += (size_t)snprintf(out + at, 96 - at, "%s %d", k++ ? "," : "", i * stride);
    if (n_odd > SHOWN) snprintf(out + at, 96 - at, " and %d more", n_odd - SHOWN);
    return out;
}

cdr_status cdr__same_program(cdr_session *s, cdr_err *err)
{
    if (s->n_ranks == 1) return CDR_OK;
    const uint64_t mine[2] = { s->bundle.hash, cdr_recipe_hash(&s->r) };
    const uint64_t both = cdr_hash64(mine, sizeof mine, 0);
    uint64_t *all = cdr_pool_alloc(s->pool, sizeof both * (size_t)s->n_ranks);
    char names[96];
    int n_most;
    CDR_TRY(share(s, &both, all, sizeof both, err));
    uint64_t most = most_common(all, s->n_ranks, 1, &n_most);
    if (n_most == s->n_ranks) return CDR_OK;
    CDR_FAIL_ID(err, CDR_ENUMERIC, "comm.program-differs", "%s compiled another program than %s; the ranks see different recipes, models or machines. Start all "
                "from the same files", names_of(all, s->n_ranks, 1, most, names), n_most > 1 ? "the others" : "rank 0");
}

/* ---- tensors ---- */
static int64_t list_tensors(const cdr_session *s, tensor *t)
{
    int64_t n = 0;
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        const cdr_param *q = &s->bundle.params[i];
        cdr_kept x[CDR_MAX_KEPT];
        if (q->mapped) continue;                             /* a file, which no rank writes */
        for (int k = 0, n_kept = cdr__kept_values(q, x); k < n_kept; k++, n++)
            if (t) t[n] = (tensor){ q->name, x[k].cls, (uint64_t)x[k].v, q->split[0] < 0 ? WHOLE : SPLIT };
    }
    return n;
}

/* Of a value in panels, by its rows: so that ranks agree whose kernels wish for other layouts. */
static uint64_t hash_rows(cdr_session *s, cdr_val v)
{
    const cdr_type *t = &s->bundle.shared[v].t;
    const int64_t row_bytes = cdr_dtype_bytes(t->dtype, cdr_type_cols(t)), n_rows = cdr_type_rows(t);
    const int64_t step = CDR_MAX((int64_t)HASH_BYTES / CDR_MAX(row_bytes, (int64_t)1) / 64 * 64, (int64_t)64);
    char *rows = cdr_alloc((size_t)(CDR_MIN(step, n_rows) * row_bytes) + 1);
    cdr_hasher *h = cdr_hasher_new();
    for (int64_t i = 0; i < n_rows; i += step) {
        const int64_t n = CDR_MIN(step, n_rows - i);
        cdr_exec_get_rows(s->exec, v, i, n, rows);
        cdr_hasher_add(h, rows, (size_t)(n * row_bytes));
    }
    cdr_free(rows);
    return cdr_hasher_end(h);
}

/* t[i].hash: the value, becomes the hash of its bytes. */
static void hash_tensors(cdr_session *s, tensor *t, int64_t n, uint64_t sum[N_KINDS])
{
    size_t most = 0;
    for (int64_t i = 0; i < n; i++) most = CDR_MAX(most, cdr_type_bytes(&s->bundle.shared[t[i].hash].t));
    char *copy = s->device->host_sees ? NULL : cdr_alloc(most);
    memset(sum, 0, sizeof *sum * N_KINDS);
    for (int64_t i = 0; i < n; i++) {
        cdr_val v = (cdr_val)t[i].hash;
        size_t bytes = cdr_exec_run_bytes(s->exec, v);
        if (copy) cdr_exec_get_run(s->exec, v, copy, bytes);
        if (!copy && s->bundle.shared[v].t.layout != CDR_ROWS) t[i].hash = hash_rows(s, v);
        else t[i].hash = cdr_hash64(copy ? copy : cdr_exec_ptr(s->exec, CDR_PROG_STEP, v, 0), bytes, 0);
        sum[t[i].kind] = cdr_hash64(&t[i].hash, sizeof t[i].hash, sum[t[i].kind]);
    }
    cdr_free(copy);
}

/* The ranks that must agree on a tensor of this kind with rank `first`: first + k * *stride; their number. */
static int group_of(const cdr_session *s, int kind, int *stride)
{
    *stride = kind == WHOLE ? 1 : s->mesh.size[CDR_AXIS_SHARD];
    return s->n_ranks / *stride;
}

/* True where rank x + k * stride all hold the same; else at: the first that does not, and what it differs from. */
typedef struct { int rank, n, n_most, other; } difference;

static bool group_equal(const uint64_t *x, int first, int n, int stride, difference *d)
{
    int n_most;
    uint64_t most = most_common(x + first, n, stride, &n_most);
    if (n_most == n) return true;
    *d = (difference){ .rank = -1, .n = n, .n_most = n_most, .other = -1 };
    for (int k = 0; k < n; k++) {
        int r = first + k * stride;
        if (x[r] != most && d->rank < 0) d->rank = r;
        if (x[r] == most && d->other < 0) d->other = r;
    }
    return false;
}

static bool all_equal(const cdr_session *s, const uint64_t *x, int kind, difference *d)
{
    int stride, n = group_of(s, kind, &stride);
    for (int first = 0; first < stride; first++)
        if (!group_equal(x, first, n, stride, d)) return false;
    return true;
}

static cdr_status name_difference(cdr_session *s, const tensor *t, int64_t n, cdr__when when, cdr_err *err)
{
    uint64_t *mine = cdr_alloc(sizeof *mine * MAX_HASHES), *all = cdr_alloc(sizeof *all * MAX_HASHES * (size_t)s->n_ranks);
    uint64_t *x = cdr_alloc(sizeof *x * (size_t)s->n_ranks);
    difference first = { 0 }, d;
    int64_t i_first = -1, n_differ = 0;
    cdr_status st = CDR_OK;
    for (int64_t at = 0; at < n && st == CDR_OK; at += MAX_HASHES) {
        int64_t part = CDR_MIN(n - at, (int64_t)MAX_HASHES);
        for (int64_t i = 0; i < part; i++) mine[i] = t[at + i].hash;
        st = share(s, mine, all, sizeof *mine * (size_t)part, err);
        for (int64_t i = 0; i < part && st == CDR_OK; i++) {
            for (int r = 0; r < s->n_ranks; r++) x[r] = all[r * part + i];
            if (all_equal(s, x, t[at + i].kind, &d)) continue;
            if (n_differ++ == 0) first = d, i_first = at + i;
        }
    }
    cdr_free(mine);
    cdr_free(all);
    cdr_free(x);
    CDR_TRY(st);
    CDR_CHECK(i_first >= 0);
    char others[80], more[64] = "", back[96];
    if (first.n_most > first.n - first.n_most) snprintf(others, sizeof others, "%d of the %d ranks that hold the same", first.n_most, first.n);
    else snprintf(others, sizeof others, "rank %d, and either may be wrong", first.other);
    if (n_differ > 1) snprintf(more, sizeof more, " (%lld more tensors differ)", (long long)n_differ - 1);
    if (when.agreed < 0) snprintf(back, sizeof back, "Start all ranks from the same files");
    else snprintf(back, sizeof back, "All agreed after step %lld: continue from a checkpoint of that step or before it", (long long)when.agreed);
    CDR_FAIL_ID(err, CDR_ENUMERIC, "train.ranks-differ", "rank %d: step %lld: %s of %s differs from that of %s%s; memory or a transfer is at fault, or a kernel "
                "that is not deterministic. %s", first.rank, (long long)when.step, t[i_first].cls, t[i_first].name, others, more, back);
}

cdr_status cdr__same_tensors(cdr_session *s, cdr__when when, int64_t *n_tensors, cdr_err *err)
{
    *n_tensors = list_tensors(s, NULL);
    if (s->n_ranks == 1) return CDR_OK;
    tensor *t = cdr_alloc(sizeof *t * (size_t)CDR_MAX(*n_tensors, (int64_t)1));
    uint64_t mine[N_KINDS], *all = cdr_alloc(sizeof mine * (size_t)s->n_ranks), *x = cdr_alloc(sizeof *x * (size_t)s->n_ranks);
    list_tensors(s, t);
    hash_tensors(s, t, *n_tensors, mine);
    cdr_status st = share(s, mine, all, sizeof mine, err);
    bool equal = true;
    difference d;
    for (int kind = 0; kind < N_KINDS && st == CDR_OK && equal; kind++) {
        for (int r = 0; r < s->n_ranks; r++) x[r] = all[r * N_KINDS + kind];
        equal = all_equal(s, x, kind, &d);
    }
    if (st == CDR_OK && !equal) st = name_difference(s, t, *n_tensors, when, err);
    cdr_free(t);
    cdr_free(all);
    cdr_free(x);
    return st;
}
