/* weights.c: a base that somebody else trained, in the session: found, audited, read into the executor's parameters, and named in checkpoints.
 *
 * Each rank reads the rows that it holds, in pieces of a few MiB, by several threads at once (disks want several requests in flight), past the
 * page cache; a piece is read, converted to the value's dtype and put where it belongs, so that the model is in memory once. Parameters that the
 * directory does not have (adapters, indexers that were added) are drawn from the seed.
 * What trains is in checkpoints; what is frozen is not, so a run whose parameters are not all trained names its base by path and hash, and
 * another base is refused where it is continued.
 */
#include "train/session.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { PIECE_BYTES = 4 << 20, MIN_READERS = 4, MAX_READERS = 16 };

/* Local rows of the value; a vector's elements; of a mapped stack an expert. */
typedef struct { int32_t param; int64_t i_model, first, n; } piece;
typedef struct {
    cdr_session *s;
    piece *pieces; int64_t n, cap;
    _Atomic(int64_t) next, bytes;
    _Atomic(int) failed, running;
    pthread_mutex_t lock;                 /* of err; of a device whose memory the host does not see */
    cdr_err err;
    int64_t total;
} loading;

/* ---- the base ------------------------------------------------------------------------------------------------------------ */
cdr_status cdr__session_base(cdr_session *s, cdr_err *err)
{
    const char *dir = cdr_model_dir(s->model);
    if (!dir || s->base) return CDR_OK;
    if (!s->hf) CDR_TRY(cdr_hf_open(dir, &s->hf, err));
    return cdr_weights_open(s->model, s->hf, &s->base, err);
}

int cdr__session_experts(cdr_session *s, cdr_err *err)
{
    if (cdr__session_base(s, err) != CDR_OK) return -2;
    int stored = s->base ? cdr_weights_get_stat(s->base)->experts : -1;
    return stored < 0 ? -1 : stored == CDR_MXFP4 ? CDR_MXFP4 : s->opts.compute;
}

static bool any_frozen(const cdr_session *s)
{
    for (int32_t i = 0; i < s->bundle.n_params; i++)
        if (s->bundle.params[i].train == CDR_FROZEN) return true;
    return false;
}

/* Rank 0 reads for all; where nothing is frozen nobody asks. */
cdr_status cdr__session_base_hash(cdr_session *s, cdr_err *err)
{
    if (!s->base || s->unasked || !any_frozen(s)) return CDR_OK;
    char folder[1200];
    cdr_status st = CDR_OK;
    if (s->rank == 0) st = cdr_weights_hash(s->base, cdr__cache_path(folder, sizeof folder, "") ? folder : NULL, &s->base_hash, err);
    CDR_TRY(cdr__share_error(s, 0, st, err));
    if (cdr_comm_broadcast(s->world, &s->base_hash, sizeof s->base_hash, 0) == CDR_OK) return CDR_OK;
    cdr_comm_lost(s->world, err);
    return CDR_ERANK;
}

cdr_status cdr__session_same_base(cdr_session *s, const cdr_ckpt *ck, cdr_err *err)
{
    if (!any_frozen(s)) return CDR_OK;
    const cdr_json *base = cdr_json_get(cdr_ckpt_manifest(ck), "base");
    const char *was = cdr_json_str(cdr_json_get(base, "hash"), NULL), *path = cdr_json_str(cdr_json_get(base, "path"), "?");
    if (!s->base && !was) return CDR_OK;
    char is[32];
    (void)snprintf(is, sizeof is, "%016llx", (unsigned long long)s->base_hash);
    if (s->base && was && strcmp(was, is) == 0) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.other-base", "%s: was trained on the base %s (hash %s), this is %s (hash %s); frozen weights would be others. Take the base "
                "that it was trained on: --set model.path=DIR", cdr_ckpt_dir(ck), was ? path : "of random weights", was ? was : "-",
                s->base ? cdr_hf_dir(s->hf) : "random weights", s->base ? is : "-");
}

cdr_status cdr__session_base_meta(cdr_session *s, const char **path, uint64_t *hash, cdr_err *err)
{
    *path = NULL;
    *hash = s->base_hash;
    if (!s->base || !any_frozen(s)) return CDR_OK;
    char *real = realpath(cdr_hf_dir(s->hf), NULL);
    *path = cdr_pool_strdup(s->pool, real ? real : cdr_hf_dir(s->hf));
    free(real);
    return cdr_hf_unchanged(s->hf, err);
}

/* ---- pieces ---------------------------------------------------------------------------------------------------------------- */
/* The model's parameter of that name, -1: none of the directory's. *from: where the last one was, as both are in the same order. */
static int64_t model_param(const cdr_session *s, const char *name, int64_t *from)
{
    const int64_t n = cdr_model_params(s->model);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = (*from + k) % n;
        if (strcmp(cdr_model_param(s->model, i), name) != 0) continue;
        *from = i + 1;
        return i;
    }
    return -1;
}

/* Elements of one row of the first axis; of a row of the value, which a vector is as a whole. */
static int64_t inner(const cdr_param *q) { return cdr_type_elems(&q->global) / q->global.n[0]; }

static int64_t row_elems(const cdr_param *q) { return q->global.n_dim > 1 ? cdr_type_cols(&q->global) : 1; }

static void cut(loading *l, int32_t i, int64_t i_model)
{
    const cdr_param *q = &l->s->bundle.params[i];
    int64_t first, n, row = row_elems(q);
    cdr_param_rows(q, &l->s->mesh, &first, &n);
    int64_t rows = n * inner(q) / row, step = CDR_MAX((int64_t)1, PIECE_BYTES / CDR_MAX(row * 4, (int64_t)1));
    if (q->mapped) row = inner(q), rows = n, step = 1;
    if (q->global.n_dim == 1) step = CDR_MAX(rows, (int64_t)1);
    for (int64_t at = 0; at < rows; at += step) {
        *CDR_PUSH(l->s->pool, l->pieces, l->n, l->cap) = (piece){ i, i_model, at, CDR_MIN(step, rows - at) };
        l->total += CDR_MIN(step, rows - at) * row * 4;
    }
}

static void put(loading *l, cdr_val v, bool vector, const piece *p, const void *src, size_t bytes)
{
    const bool locked = !l->s->device->host_sees;
    if (locked) pthread_mutex_lock(&l->lock);
    if (vector) cdr_exec_put_run(l->s->exec, v, src, bytes);
    else cdr_exec_put_rows(l->s->exec, v, p->first, p->n, src);
    if (locked) pthread_mutex_unlock(&l->lock);
}

/* A packed expert stays in its file; its scales are looked at. */
static cdr_status map_piece(loading *l, const piece *p, int64_t first, cdr_err *err)
{
    const uint8_t *codes, *scales;
    const cdr_param *q = &l->s->bundle.params[p->param];
    if (cdr_weights_dtype(l->s->base, p->i_model) != CDR_MXFP4)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.mixed-experts", "%s: %s is not packed, other routed experts of the model are. Set precision.experts=bf16, "
                    "which expands them",
                    cdr_hf_dir(l->s->hf), q->name);
    CDR_TRY(cdr_weights_packed(l->s->base, p->i_model, first + p->first, &codes, &scales, err));
    cdr_exec_map(l->s->exec, q->shard, p->first, codes, scales);
    l->bytes += inner(q) * 4;
    return CDR_OK;
}

static cdr_status load_piece(loading *l, const piece *p, cdr_err *err)
{
    cdr_session *s = l->s;
    const cdr_param *q = &s->bundle.params[p->param];
    const int dtype = s->bundle.shared[q->shard].t.dtype;
    const bool vector = q->global.n_dim == 1, master = q->master != CDR_NONE && q->master != q->shard;
    const int64_t row = row_elems(q), n = p->n * row;
    int64_t first, rows;
    cdr_param_rows(q, &s->mesh, &first, &rows);
    if (q->mapped) return map_piece(l, p, first, err);
    const int64_t at = first * inner(q) + p->first * row;
    const size_t bytes = (size_t)cdr_dtype_bytes(dtype, n);
    char *to = cdr_alloc(bytes + (master ? sizeof(float) * (size_t)n : 0) + 64);
    float *wide = (float *)(void *)(to + cdr_align_up(bytes, 16));
    cdr_status st = cdr_weights_read_elems(s->base, p->i_model, at, n, master ? CDR_F32 : dtype, master ? (void *)wide : to, err);
    if (st == CDR_OK && master) {
        cdr_from_f32(dtype, wide, to, n);
        put(l, q->master, vector, p, wide, sizeof *wide * (size_t)n);
    }
    if (st == CDR_OK) put(l, q->shard, vector, p, to, bytes);
    cdr_free(to);
    l->bytes += n * 4;
    return st;
}

/* The first is kept; readers stop at their next piece. */
static void note_failure(loading *l, const cdr_err *own)
{
    pthread_mutex_lock(&l->lock);
    if (!l->failed) l->err = *own;
    l->failed = 1;
    pthread_mutex_unlock(&l->lock);
}

static void *read_pieces(void *ctx)
{
    loading *l = ctx;
    for (int64_t i; !l->failed && (i = l->next++) < l->n;) {
        cdr_err own = { 0 };
        if (load_piece(l, &l->pieces[i], &own) != CDR_OK) note_failure(l, &own);
    }
    l->running--;
    return NULL;
}

/* ---- progress -------------------------------------------------------------------------------------------------------------- */
static int64_t file_bytes(const cdr_session *s)
{
    const cdr_weights_stat *w = cdr_weights_get_stat(s->base);
    int64_t sum = 0;
    for (int i = 0; i < w->n_formats; i++) sum += w->format[i].bytes;
    return sum;
}

/* Of all ranks: they read alike, so rank 0's share of its own is taken for theirs. */
static cdr_load loaded(const loading *l, int64_t since)
{
    cdr_load x = { .total = file_bytes(l->s), .seconds = (double)(cdr_now_ns() - since) * 1e-9 };
    x.done = l->bytes >= l->total ? x.total : (int64_t)((double)l->bytes / (double)l->total * (double)x.total);
    return x;
}

static void progress(cdr_load x)
{
    char done[32], all[32];
    cdr_format_bytes(done, x.done);
    cdr_format_bytes(all, x.total);
    fprintf(stderr, "load      %s of %s, %.2f GB/s, %.0f s left\n", done, all, (double)x.done * 1e-9 / x.seconds,
            x.done > 0 ? x.seconds * (double)(x.total - x.done) / (double)x.done : 0);
}

static cdr_status say(const loading *l, int64_t since, cdr_err *err)
{
    const cdr_session *s = l->s;
    const cdr_load x = loaded(l, since);
    return s->rank == 0 && s->on_load ? s->on_load(s->on_load_ctx, &x, err) : CDR_OK;
}

/* Waits for the readers, and says how far they are. */
static void watch(loading *l, int64_t t0)
{
    const bool shows = l->s->rank == 0 && cdr_log_get_level() >= CDR_LOG_INFO;
    for (int64_t said = t0; l->running > 0;) {
        const struct timespec nap = { 0, 5000000 };
        cdr_err own = { 0 };
        (void)nanosleep(&nap, NULL);
        if (l->failed || cdr_now_ns() - said < 1000000000) continue;
        said = cdr_now_ns();
        if (shows) progress(loaded(l, t0));
        if (say(l, t0, &own) != CDR_OK) note_failure(l, &own);
    }
}

static cdr_status run_readers(loading *l, cdr_err *err)
{
    pthread_t thread[MAX_READERS];
    int n = CDR_MIN(CDR_MAX(l->s->device->n_threads, (int)MIN_READERS), (int)MAX_READERS), started = 0;
    const int64_t t0 = cdr_now_ns();
    CDR_TRY(say(l, t0, err));
    pthread_mutex_init(&l->lock, NULL);
    l->running = n;
    for (; started < n; started++) if (pthread_create(&thread[started], NULL, read_pieces, l) != 0) break;
    l->running -= n - started;
    if (started == 0) {
        l->running++;
        (void)read_pieces(l);
    }
    watch(l, t0);
    for (int i = 0; i < started; i++) (void)pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&l->lock);
    if (!l->failed) return say(l, t0, err);
    if (err) *err = l->err;
    return l->err.status;
}

cdr_status cdr__session_weights(cdr_session *s, cdr_err *err)
{
    if (!cdr_model_dir(s->model)) return cdr_exec_init(s->exec, (uint64_t)s->r.seed, err);
    CDR_TRY(cdr__session_base(s, err));
    loading l = { .s = s };
    int64_t from = 0;
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        int64_t k = model_param(s, s->bundle.params[i].name, &from);
        if (k < 0 || cdr_weights_dtype(s->base, k) < 0) cdr_exec_init_param(s->exec, i, (uint64_t)s->r.seed);
        else cut(&l, i, k);
    }
    CDR_TRY(run_readers(&l, err));
    double packed = cdr_weights_pack_error(s->base);
    if (packed > 0 && s->rank == 0)
        cdr_log(CDR_LOG_INFO, "experts packed to MXFP4: mean relative error %.3f (precision.experts)", packed);
    return cdr_hf_unchanged(s->hf, err);
}

const char *cdr__session_weights_text(const cdr_session *s)
{
    if (!s->base) return "random weights";
    const cdr_weights_stat *w = cdr_weights_get_stat(s->base);
    const char *experts = w->experts == CDR_MXFP4 ? ", experts MXFP4" : "";
    return cdr_pool_printf(s->pool, "weights of %s (%lld tensors%s)", cdr_hf_dir(s->hf), (long long)w->n_used, experts);
}
