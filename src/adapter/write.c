/* write.c: an adapter into a directory for one consumer: written beside, opened again, every key bound and compared, then renamed.
 * Values are BF16 where all of them are (folding may need more), else F32; GGUF is F32.
 * adapter_model.safetensors has metadata format=pt as PEFT's, and cadre.base_hash; cadre.json beside it says the same and where it came from,
 * as PEFT drops keys of adapter_config.json that it does not know.
 */
#include "adapter/adapter.h"
#include <math.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

int64_t cdr__lora_elems(const cdr__lora_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dim; d++) n *= t->n[d];
    return n;
}

/* ---- values -------------------------------------------------------------------------------------------------------------------------- */

/* One matrix of a half, padded to rank: A [rank, K], B [N, rank]. e: which; a shared factor has one. */
static void put_matrix(const cdr_lora_pair *p, char half, int64_t e, int32_t rank, float fold, float *dst)
{
    int64_t r = p->rank, N = p->N, K = p->K;
    if (!p->a) {                                                /* a sibling of zeros */
        memset(dst, 0, sizeof *dst * (size_t)(half == 'A' ? rank * K : N * rank));
        return;
    }
    if (half == 'A') {
        memcpy(dst, p->a + (p->n_a == 1 ? 0 : e) * r * K, sizeof *dst * (size_t)(r * K));
        memset(dst + r * K, 0, sizeof *dst * (size_t)((rank - r) * K));
        return;
    }
    const float *b = p->b + (p->n_b == 1 ? 0 : e) * N * r;
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < rank; k++) dst[n * rank + k] = k < r ? b[n * r + k] * fold : 0;
}

/* Rows of a wrapper's A: e rank + first + k. */
static void wrap_a(const cdr__lora_tensor *t, const cdr_lora_pair *p, int64_t first, float *dst)
{
    for (int64_t e = 0; e < t->experts; e++)
        memcpy(dst + (e * t->rank + first) * p->K, p->a + (p->n_a == 1 ? 0 : e) * p->rank * p->K, sizeof *dst * (size_t)(p->rank * p->K));
}

/* Columns of a wrapper's B: (first + k) E + e, in rows from `row` on. */
static void wrap_b(const cdr__lora_tensor *t, const cdr_lora_pair *p, int64_t row, int64_t first, float fold, float *dst)
{
    int64_t E = t->experts, wide = t->rank * E;
    for (int64_t e = 0; e < E; e++) {
        const float *b = p->b + (p->n_b == 1 ? 0 : e) * p->N * p->rank;
        for (int64_t n = 0; n < p->N; n++)
            for (int64_t k = 0; k < p->rank; k++) dst[(row + n) * wide + (first + k) * E + e] = b[n * p->rank + k] * fold;
    }
}

void cdr__lora_fill(const cdr__lora_tensor *t, float *dst)
{
    int64_t n = cdr__lora_elems(t);
    if (t->layout == CDR_LORA_STACK && t->p) {
        int64_t one = n / t->n[0];
        for (int64_t e = 0; e < t->n[0]; e++) put_matrix(t->p, t->half, e, t->rank, t->fold, dst + e * one);
        return;
    }
    if (t->layout != CDR_LORA_FUSED && t->p) {
        put_matrix(t->p, t->half, t->layout == CDR_LORA_EXPERTS ? t->expert : 0, t->rank, t->fold, dst);
        return;
    }
    memset(dst, 0, sizeof *dst * (size_t)n);
    if (t->layout != CDR_LORA_FUSED) return;
    if (t->half == 'A') {
        if (t->p) wrap_a(t, t->p, 0, dst);
        if (t->p2) wrap_a(t, t->p2, t->from, dst);
        return;
    }
    if (t->p) wrap_b(t, t->p, 0, 0, t->fold, dst);
    if (t->p2) wrap_b(t, t->p2, t->N, t->from, t->fold2, dst);
}

static float *room_for(const cdr__lora_plan *p)
{
    int64_t most = 0;
    for (int64_t i = 0; i < p->n; i++) most = CDR_MAX(most, cdr__lora_elems(&p->t[i]));
    return cdr_alloc(sizeof(float) * (size_t)(most + 1));
}

static bool all_bf16(const cdr__lora_plan *p, float *x)
{
    for (int64_t i = 0; i < p->n; i++) {
        cdr__lora_fill(&p->t[i], x);
        for (int64_t k = 0, n = cdr__lora_elems(&p->t[i]); k < n; k++) {
            uint32_t u;
            memcpy(&u, &x[k], 4);
            if (u & 0xffff) return false;
        }
    }
    return true;
}

/* ---- files --------------------------------------------------------------------------------------------------------------------------- */

static cdr_status write_tensors(const char *path, const cdr_lora_out *o, const cdr__lora_plan *p, cdr_pool *pool, int64_t *bytes, cdr_err *err)
{
    cdr_st_spec *spec = cdr_pool_alloc(pool, sizeof *spec * (size_t)(p->n + 1));
    char hash[20];
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)o->base_hash);
    const cdr_st_pair meta[] = { { "cadre.base_hash", hash }, { "format", "pt" } };
    float *x = room_for(p);
    char *raw = (char *)room_for(p);
    int dtype = all_bf16(p, x) ? CDR_BF16 : CDR_F32;
    for (int64_t i = 0; i < p->n; i++) {
        spec[i] = (cdr_st_spec){ .name = p->t[i].name, .format = cdr_st_format_of(dtype), .n_dim = p->t[i].n_dim };
        memcpy(spec[i].n, p->t[i].n, sizeof p->t[i].n);
    }
    cdr_st_writer *w = NULL;
    cdr_status st = cdr_st_create(path, spec, p->n, o->has_hash ? meta : meta + 1, o->has_hash ? 2 : 1, &w, err);
    for (int64_t i = 0; i < p->n && st == CDR_OK; i++) {
        const cdr__lora_tensor *t = &p->t[cdr_st_writer_order(w, i)];
        int64_t n = cdr__lora_elems(t);
        cdr__lora_fill(t, x);
        cdr_from_f32(dtype, x, raw, n);
        st = cdr_st_append(w, raw, (size_t)cdr_dtype_bytes(dtype, n), err);
    }
    if (w && st == CDR_OK) st = cdr_st_finish(w, bytes, NULL, err);
    else if (w) cdr_st_abort(w);
    cdr_free(x);
    cdr_free(raw);
    return st;
}

static cdr_status write_text(const char *dir, const char *name, const cdr_text *t, cdr_pool *pool, cdr_err *err)
{
    return cdr_file_write(cdr_pool_printf(pool, "%s/%s", dir, name), t->s, t->n, err);
}

static cdr_status write_sheet(const char *dir, const cdr_lora_out *o, cdr_pool *pool, cdr_err *err)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "format", "cadre-adapter");
    cdr_jw_int(&w, "version", 1);
    cdr_jw_str(&w, "layout", o->format);
    cdr_jw_str(&w, "base", o->base_name ? o->base_name : o->set->base);
    if (o->has_hash) cdr_jw_u64hex(&w, "base_hash", o->base_hash);
    else cdr_jw_null(&w, "base_hash");
    cdr_jw_str(&w, "family", cdr_model_get_info(o->model)->family);
    if (o->set->step >= 0) cdr_jw_int(&w, "step", o->set->step);
    cdr_jw_end(&w, '}');
    cdr_text_append(&t, "\n", 1);
    cdr_status st = write_text(dir, "cadre.json", &t, pool, err);
    cdr_text_free(&t);
    return st;
}

static bool is_gguf(const cdr_lora_out *o) { return strcmp(o->format, "gguf") == 0; }

static cdr_status write_files(const char *dir, const cdr_lora_out *o, cdr__lora_plan *p, cdr_pool *pool, cdr_err *err)
{
    CDR_TRY(write_sheet(dir, o, pool, err));
    if (is_gguf(o)) return cdr__lora_gguf_write(cdr_pool_printf(pool, "%s/adapter.gguf", dir), o, p->t, p->n, p->alpha, &p->rep.bytes, err);
    cdr_text t = { 0 };
    cdr__lora_config_write(&p->config, &t);
    cdr_status st = write_text(dir, "adapter_config.json", &t, pool, err);
    cdr_text_free(&t);
    if (st == CDR_OK) st = write_tensors(cdr_pool_printf(pool, "%s/adapter_model.safetensors", dir), o, p, pool, &p->rep.bytes, err);
    return st;
}

/* ---- opened again ---------------------------------------------------------------------------------------------------------------------- */

static cdr_status differs(const char *dir, const char *what, cdr_err *err)
{
    CDR_FAIL_ID(err, CDR_EBUG, "adapter.reread", "%s: what was written reads back as another adapter: %s", dir, what);
}

static cdr_status reread_gguf(const char *dir, const cdr_lora_out *o, const cdr__lora_plan *p, cdr_pool *pool, cdr_err *err)
{
    cdr__gguf_tensor *t;
    int64_t n;
    double alpha = 0;
    const char *arch = "";
    CDR_TRY(cdr__lora_gguf_read(cdr_pool_printf(pool, "%s/adapter.gguf", dir), pool, &t, &n, &alpha, &arch, err));
    if (n != p->n || (float)alpha != (float)p->alpha || strcmp(arch, cdr__lora_gguf_arch(o->model)) != 0) return differs(dir, "header", err);
    float *x = room_for(p);
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < n && st == CDR_OK; i++) {
        const cdr__lora_tensor *w = &p->t[i];
        bool same = strcmp(t[i].name, w->name) == 0 && t[i].n_dim == w->n_dim;
        for (int d = 0; d < w->n_dim && same; d++) same = t[i].n[d] == (uint64_t)w->n[w->n_dim - 1 - d];
        cdr__lora_fill(w, x);
        if (!same || memcmp(t[i].data, x, sizeof *x * (size_t)cdr__lora_elems(w)) != 0) st = differs(dir, w->name, err);
    }
    cdr_free(x);
    return st;
}

static const cdr_lora_pair *of_param(const cdr_lora_set *s, int64_t i_param)
{
    for (int i = 0; i < s->n; i++) if (s->pair[i].i_param == i_param) return &s->pair[i];
    return NULL;
}

/* Row 0 and the last row of scale B A, at both ends of K: of what was read and of what was to be written. */
static bool same_delta(const cdr_lora_pair *x, const cdr_lora_pair *y)
{
    int64_t rows[] = { 0, CDR_MAX(y->experts, (int64_t)1) * y->N - 1 };
    bool same = true;
    float *a = cdr_alloc(sizeof *a * (size_t)y->K * 2), *b = a + y->K;
    for (int i = 0; i < 2; i++) {
        memset(a, 0, sizeof *a * (size_t)y->K * 2);
        cdr_lora_add(x, rows[i], 1, a);
        cdr_lora_add(y, rows[i], 1, b);
        for (int64_t k = 0; k < y->K; k++) same = same && fabsf(a[k] - b[k]) <= 1e-5f * (fabsf(a[k]) + fabsf(b[k])) + 1e-7f;
    }
    cdr_free(a);
    return same;
}

static cdr_status reread_peft(const char *dir, const cdr_lora_out *o, const cdr__lora_plan *p, cdr_pool *pool, cdr_err *err)
{
    cdr_lora_set got;
    cdr_lora_serve s;
    CDR_TRY(cdr_lora_read(dir, o->model, pool, &got, err));
    CDR_TRY(cdr_lora_serve_set(&got, o->model, strncmp(o->format, "peft", 4) == 0 ? "peft" : o->format, &s, err));
    if (s.dropped > 0 && !o->allow_drop) return differs(dir, s.what, err);
    int64_t keys = 0;
    for (int i = 0; i < got.n; i++) {
        const cdr_lora_pair *want = of_param(o->set, got.pair[i].i_param);
        keys += got.pair[i].n_keys;
        if (want && !same_delta(&got.pair[i], want)) return differs(dir, cdr_model_param(o->model, want->i_param), err);
    }
    return keys == p->n ? CDR_OK : differs(dir, "number of tensors", err);
}

static cdr_status fresh(const char *dir, cdr_err *err)
{
    if (cdr_exists(dir) && rmdir(dir) != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "adapter.exists", "%s: exists already, and is not empty. Take another --out, or remove it", dir);
    return CDR_OK;
}

cdr_status cdr_lora_write(const char *dir, const cdr_lora_out *o, cdr_lora_report *rep, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr__lora_plan p;
    const char *part = cdr_pool_printf(pool, "%s.partial", dir);
    cdr_status st = cdr__lora_plan_make(o, pool, &p, err);
    if (st == CDR_OK) st = fresh(dir, err);
    bool begun = st == CDR_OK;
    if (st == CDR_OK && cdr_exists(part)) st = cdr_remove_tree(part, err);
    if (st == CDR_OK) st = cdr_make_dirs(part, err);
    if (st == CDR_OK) st = write_files(part, o, &p, pool, err);
    if (st == CDR_OK) st = is_gguf(o) ? reread_gguf(part, o, &p, pool, err) : reread_peft(part, o, &p, pool, err);
    if (st == CDR_OK) st = cdr_sync_dir(part, err);
    if (st == CDR_OK && rename(part, dir) != 0) st = cdr_fail(err, CDR_EUSER, "file.write", "%s: cannot be renamed to %s: %s", part, dir, strerror(errno));
    if (st != CDR_OK && begun) (void)cdr_remove_tree(part, NULL);
    if (st == CDR_OK) *rep = p.rep;
    cdr_pool_free(pool);
    return st;
}
