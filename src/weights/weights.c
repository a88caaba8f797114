/* weights.c: the audit. Every tensor of the directory fills exactly one part of the model or is carried, every part is filled exactly once, with
 * the shape that its row says and in a format that its row takes:
 *
 *   format of a row    in the file                                           becomes
 *   BF16 F16 F32       X, in that dtype; F32 also for the narrower ones      its values
 *   MXFP4              X_packed U8 [n, k / 2], X_scale U8 [n, k / 32]        packed, or its exact values
 *   FP8_128            X F8_E4M3 [n, k], X_scale_inv F32, one for 128 x 128  x * scale_inv rounded to BF16
 *
 * A tensor that a row lists as F32 and that is narrower in the file was rounded by whoever wrote it (selection biases, A_log): an error.
 * Whatever does not fit is counted and named, ten of each kind, before anything is loaded. Headers are read, and paddings.
 */
#include "weights/parts.h"

#include <stdlib.h>

enum { NAMED = 10, NAME_MAX_BYTES = 1000 };

typedef struct { int64_t n; cdr_text t; } list;                      /* of complaints */
typedef struct { list missing, unknown, wrong, twice; } findings;

static void complain(list *l, const char *name, const char *why)
{
    if (l->n++ < NAMED && l->t.n < 700) cdr_text_printf(&l->t, "%s%s%s%s%s", l->t.n ? ", " : "", name, *why ? " (" : "", why, *why ? ")" : "");
}

bool cdr__part_name(const cdr_model_row *row, int64_t expert, const char *tail, char *out, size_t bytes)
{
    static const char MARK[] = "{expert}";
    const char *at = strstr(row->name, MARK);
    int n = at ? snprintf(out, bytes, "%.*s%lld%s%s", (int)(at - row->name), row->name, (long long)expert, at + strlen(MARK), tail)
               : snprintf(out, bytes, "%s%s", row->name, tail);
    return n >= 0 && (size_t)n < bytes;
}

bool cdr__row_takes(const cdr_model_row *row, const char *format)
{
    for (int i = 0; i < row->n_formats; i++)
        if (strcmp(row->format[i], format) == 0) return true;
    return false;
}

void cdr__part_open(const cdr_model *m, int64_t i_param, cdr__part *p)
{
    cdr_model_part x = cdr_model_param_part(m, i_param);
    *p = (cdr__part){ .row = cdr_model_stored(m, i_param), .n_dim = x.n_dim, .elems = 1, .top_k = x.top_k, .kind = CDR__ABSENT };
    memcpy(p->n, x.n, sizeof p->n);
    for (int k = 0; k < x.n_dim; k++) p->elems *= x.n[k];
    p->cols = x.n_dim > 0 ? x.n[x.n_dim - 1] : 1;
    p->expert = strstr(p->row.name, "{expert}") != NULL;
    p->n_files = p->expert ? x.n[0] : 1;
    p->file_elems = p->n_files > 0 ? p->elems / p->n_files : 0;
}

static void shape_text(char out[200], int format, int n_dim, const int64_t *n)
{
    int at = snprintf(out, 200, "%s [", cdr_st_format_row(format)->name);
    for (int i = 0; i < n_dim && at < 180; i++) at += snprintf(out + at, 200 - (size_t)at, i ? ", %lld" : "%lld", (long long)n[i]);
    (void)snprintf(out + at, 200 - (size_t)at, "]");
}

/* Is the tensor of this format and shape? n_dim and n: as they must be. Otherwise a complaint. */
static bool same_shape(const cdr_st_tensor *t, int n_dim, const int64_t *n, findings *f)
{
    bool same = t->n_dim == n_dim;
    for (int i = 0; i < n_dim && same; i++) same = t->n[i] == n[i];
    if (same) return true;
    char is[200], needs[200], why[450];
    shape_text(is, t->format, t->n_dim, t->n);
    shape_text(needs, t->format, n_dim, n);
    (void)snprintf(why, sizeof why, "is %s, the model needs %s", is, needs);
    complain(&f->wrong, t->name, why);
    return false;
}

static bool is_format(const cdr_st_tensor *t, const char *format)
{
    return strcmp(cdr_st_format_row(t->format)->name, format) == 0;
}

static void wrong_format(const cdr_st_tensor *t, const cdr_model_row *row, findings *f)
{
    char why[200], formats[80] = "";
    for (int i = 0, at = 0; i < row->n_formats && at < 70; i++) at += snprintf(formats + at, sizeof formats - (size_t)at, i ? " or %s" : "%s", row->format[i]);
    bool f32 = row->n_formats == 1 && strcmp(row->format[0], "F32") == 0 && t->dtype >= 0 && cdr_dtype_row(t->dtype)->floating;
    (void)snprintf(why, sizeof why, f32 ? "is %s, narrower than the %s that it needs" : "is %s, the model reads %s", cdr_st_format_row(t->format)->name, formats);
    complain(&f->wrong, t->name, why);
}

static void take(cdr_weights *w, int64_t tensor, const cdr__part *p, findings *f)
{
    int most = p->row.split_n > 0 ? p->row.split_n : 1;
    if (w->used[tensor] < UINT8_MAX) w->used[tensor]++;
    if (w->used[tensor] > most) complain(&f->twice, cdr_hf_name(w->d, tensor), "");
}

/* Format of the part as the first file shows it; all of them must agree. */
static void set_kind(cdr__part *p, int64_t file, int kind, int dtype, const cdr_st_tensor *t, findings *f)
{
    if (file == 0) {
        p->kind = kind;
        p->dtype = dtype;
    } else if (p->kind != kind || p->dtype != dtype) complain(&f->wrong, t->name, "is of another format than the first expert's");
}

/* The tensor of scales beside a file of the part, which is taken; scale[file] < 0: it is missing. */
static cdr_status find_scale(cdr_weights *w, cdr__part *p, int64_t file, const char *suffix, cdr_hf_tensor *x, findings *f, cdr_err *err)
{
    char name[NAME_MAX_BYTES];
    (void)cdr__part_name(&p->row, file, suffix, name, sizeof name);
    p->scale[file] = cdr_hf_find(w->d, name);
    if (p->scale[file] < 0) {
        complain(&f->missing, name, "");
        return CDR_OK;
    }
    CDR_TRY(cdr_hf_tensor_at(w->d, p->scale[file], x, err));
    take(w, p->scale[file], p, f);
    return CDR_OK;
}

/* A tensor of plain numbers, or FP8 with its scales. */
static cdr_status audit_plain(cdr_weights *w, cdr__part *p, int64_t file, const char *name, int64_t at, findings *f, cdr_err *err)
{
    cdr_hf_tensor x = { 0 };
    CDR_TRY(cdr_hf_tensor_at(w->d, at, &x, err));
    take(w, at, p, f);
    p->data[file] = at;
    if (!same_shape(x.t, p->row.n_dim, p->row.n, f)) return CDR_OK;
    const char *format = cdr_st_format_row(x.t->format)->name;
    bool fp8 = is_format(x.t, "F8_E4M3") && cdr__row_takes(&p->row, "FP8_128");
    bool wider = is_format(x.t, "F32") && (cdr__row_takes(&p->row, "BF16") || cdr__row_takes(&p->row, "F16"));
    if (!fp8) {
        if (!cdr__row_takes(&p->row, format) && !wider) wrong_format(x.t, &p->row, f);
        else set_kind(p, file, CDR__PLAIN, x.t->dtype, x.t, f);
        return CDR_OK;
    }
    if (p->row.split_n > 1 || p->row.padded || x.t->n_dim != 2) {
        complain(&f->wrong, name, "is FP8 with scales, which is not read in parts");
        return CDR_OK;
    }
    CDR_TRY(find_scale(w, p, file, "_scale_inv", &x, f, err));
    if (p->scale[file] < 0) return CDR_OK;
    if (!is_format(x.t, "F32")) complain(&f->wrong, x.t->name, "is not F32");
    else if (same_shape(x.t, 2, (int64_t[]){ cdr_ceil_div(p->row.n[0], CDR__FP8_BLOCK), cdr_ceil_div(p->row.n[1], CDR__FP8_BLOCK) }, f))
        set_kind(p, file, CDR__FP8_128, CDR_BF16, x.t, f);
    return CDR_OK;
}

static cdr_status audit_packed(cdr_weights *w, cdr__part *p, int64_t file, int64_t at, findings *f, cdr_err *err)
{
    cdr_hf_tensor x = { 0 };
    CDR_TRY(cdr_hf_tensor_at(w->d, at, &x, err));
    if (is_format(x.t, "I32"))
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.int4", "%s: tensor %s holds packed integers (INT4, eight in an I32), which this version does not read. Take the model's "
                    "BF16, FP8 or MXFP4 release", cdr_hf_dir(w->d), x.t->name);
    take(w, at, p, f);
    p->data[file] = at;
    if (!is_format(x.t, "U8") || !cdr__row_takes(&p->row, "MXFP4") || p->row.split_n > 1 || p->row.padded) {
        wrong_format(x.t, &p->row, f);
        return CDR_OK;
    }
    int64_t n[CDR_STORED_DIM];
    int last = p->row.n_dim - 1;
    memcpy(n, p->row.n, sizeof n);
    n[last] = p->row.n[last] / 2;
    bool ok = same_shape(x.t, p->row.n_dim, n, f);
    CDR_TRY(find_scale(w, p, file, "_scale", &x, f, err));
    if (p->scale[file] < 0) return CDR_OK;
    n[last] = p->row.n[last] / CDR__MX;
    if (!is_format(x.t, "U8") && !is_format(x.t, "F8_E8M0")) complain(&f->wrong, x.t->name, "is not U8");
    else if (same_shape(x.t, p->row.n_dim, n, f) && ok) set_kind(p, file, CDR__MXFP4, CDR_MXFP4, x.t, f);
    return CDR_OK;
}

static cdr_status audit_part(cdr_weights *w, cdr__part *p, findings *f, cdr_err *err)
{
    p->data = cdr_pool_alloc(w->pool, sizeof *p->data * (size_t)(p->n_files + 1));
    p->scale = cdr_pool_alloc(w->pool, sizeof *p->scale * (size_t)(p->n_files + 1));
    int64_t gone = 0;
    for (int64_t e = 0; e < p->n_files; e++) {
        char name[NAME_MAX_BYTES], packed[NAME_MAX_BYTES];
        if (!cdr__part_name(&p->row, e, "", name, sizeof name) || !cdr__part_name(&p->row, e, "_packed", packed, sizeof packed))
            CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%.200s...: the name of a tensor has more than %d bytes", p->row.name, NAME_MAX_BYTES - 12);
        int64_t at = cdr_hf_find(w->d, name);
        p->data[e] = p->scale[e] = -1;
        if (at >= 0) {
            CDR_TRY(audit_plain(w, p, e, name, at, f, err));
            continue;
        }
        at = cdr_hf_find(w->d, packed);
        if (at >= 0) CDR_TRY(audit_packed(w, p, e, at, f, err));
        else if (p->row.optional) gone++;
        else complain(&f->missing, name, "");
    }
    if (gone > 0 && gone < p->n_files) complain(&f->missing, p->row.name, "of some experts");
    return CDR_OK;
}

/* What the file has beyond the part is the row's fill. */
static cdr_status check_padding(cdr_weights *w, const cdr__part *p, findings *f, cdr_err *err)
{
    int64_t all = 1;
    for (int i = 0; i < p->row.n_dim; i++) all *= p->row.n[i];
    for (int64_t e = 0; e < p->n_files; e++) {
        cdr_hf_tensor x = { 0 };
        CDR_TRY(cdr_hf_tensor_at(w->d, p->data[e], &x, err));
        for (int64_t i = p->file_elems; i < all; i++) {
            float v;
            char why[120];
            cdr_to_f32(p->dtype, (const char *)x.data + cdr_dtype_bytes(p->dtype, i), &v, 1);
            if (v == (float)p->row.fill) continue;
            (void)snprintf(why, sizeof why, "element %lld pads it and is %g, not %g", (long long)i, (double)v, p->row.fill);
            complain(&f->wrong, x.t->name, why);
            break;
        }
    }
    return CDR_OK;
}

/* Tensors that no part took: carried, or unknown; fused ones of which not all parts were taken. */
static void check_rest(cdr_weights *w, findings *f)
{
    for (int64_t i = 0; i < cdr_hf_count(w->d); i++) {
        const char *name = cdr_hf_name(w->d, i);
        if (w->used[i] > 0) w->stat.n_used++;
        else if (cdr_model_carries(w->m, name)) w->stat.n_carried++;
        else complain(&f->unknown, name, "");
    }
    for (int64_t i = 0; i < w->n_parts; i++) {
        const cdr__part *p = &w->part[i];
        if (p->row.split_n > 1 && p->row.split_i == 0 && p->kind != CDR__ABSENT && w->used[p->data[0]] < p->row.split_n)
            complain(&f->wrong, cdr_hf_name(w->d, p->data[0]), "only a part of it is used");
    }
}

static void count_format(cdr_weights *w, const char *name, int64_t tensors, int64_t bytes)
{
    int i = 0;
    while (i < w->stat.n_formats && strcmp(w->stat.format[i].name, name) != 0) i++;
    if (i == CDR_COUNT(w->stat.format)) return;
    if (i == w->stat.n_formats) (void)snprintf(w->stat.format[w->stat.n_formats++].name, sizeof w->stat.format[i].name, "%s", name);
    w->stat.format[i].tensors += tensors;
    w->stat.format[i].bytes += bytes;
}

static void count(cdr_weights *w)
{
    w->stat.n_tensors = cdr_hf_count(w->d);
    w->stat.experts = -1;
    for (int64_t i = 0; i < w->n_parts; i++) {
        const cdr__part *p = &w->part[i];
        if (p->kind == CDR__ABSENT) {
            w->stat.n_absent++;
            continue;
        }
        w->stat.n_params++;
        int64_t all = p->n_files, two = p->kind == CDR__PLAIN ? 1 : 2, bytes;
        for (int k = 0; k < p->row.n_dim; k++) all *= p->row.n[k];
        if (p->kind == CDR__FP8_128)
            bytes = all + 4 * p->n_files * cdr_ceil_div(p->row.n[0], CDR__FP8_BLOCK) * cdr_ceil_div(p->row.n[1], CDR__FP8_BLOCK);
        else bytes = cdr_dtype_bytes(p->dtype, all);
        const char *name = p->kind == CDR__MXFP4 ? "MXFP4" : p->kind == CDR__FP8_128 ? "FP8_128" : cdr_dtype_row(p->dtype)->safetensors;
        if (p->row.split_n <= 1 || p->row.split_i == 0) count_format(w, name, two * p->n_files, bytes);
        if (p->top_k > 0 && w->stat.experts < 0) w->stat.experts = p->dtype;
    }
}

static void say(cdr_text *t, const list *l, const char *what)
{
    if (l->n == 0) return;
    char n[32];
    cdr_format_count(n, l->n);
    cdr_text_printf(t, "%s%s %s: %s%s", t->n ? "; " : "", n, what, l->t.s, l->n > NAMED ? ", ..." : "");
}

static cdr_status report(const cdr_weights *w, const findings *f, cdr_err *err)
{
    if (f->missing.n + f->unknown.n + f->wrong.n + f->twice.n == 0) return CDR_OK;
    cdr_text t = { 0 };
    say(&t, &f->missing, "missing");
    say(&t, &f->wrong, "of another form");
    say(&t, &f->unknown, "unknown");
    say(&t, &f->twice, "used twice");
    cdr_status st = cdr_fail(err, CDR_EDATA, "checkpoint.tensors", "%s: its tensors are not those of %s: %.900s. Take weights and config.json of one make, or mend the "
                             "description's rows", cdr_hf_dir(w->d), cdr_model_get_info(w->m)->name, t.s);
    cdr_text_free(&t);
    return st;
}

static cdr_status audit(cdr_weights *w, findings *f, cdr_err *err)
{
    if (cdr_hf_count(w->d) == 0)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.no-weights", "%s: holds no model.safetensors and no model.safetensors.index.json. Fetch the weights, or start from "
                    "random ones: --set model.weights=random", cdr_hf_dir(w->d));
    w->n_parts = cdr_model_params(w->m);
    w->part = cdr_pool_alloc(w->pool, sizeof *w->part * (size_t)(w->n_parts + 1));
    w->used = cdr_pool_alloc(w->pool, (size_t)cdr_hf_count(w->d) + 1);
    for (int64_t i = 0; i < w->n_parts; i++) {
        cdr__part_open(w->m, i, &w->part[i]);
        CDR_TRY(audit_part(w, &w->part[i], f, err));
    }
    check_rest(w, f);
    if (f->missing.n == 0 && f->wrong.n == 0)
        for (int64_t i = 0; i < w->n_parts; i++)
            if (w->part[i].row.padded && w->part[i].kind != CDR__ABSENT) CDR_TRY(check_padding(w, &w->part[i], f, err));
    CDR_TRY(report(w, f, err));
    count(w);
    return CDR_OK;
}

cdr_status cdr_weights_open(const cdr_model *m, cdr_hf *d, cdr_weights **out, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_weights *w = cdr_pool_alloc(pool, sizeof *w);
    *w = (cdr_weights){ .pool = pool, .m = m, .d = d };
    pthread_mutex_init(&w->lock, NULL);
    findings f = { 0 };
    cdr_status status = audit(w, &f, err);
    cdr_text_free(&f.missing.t);
    cdr_text_free(&f.unknown.t);
    cdr_text_free(&f.wrong.t);
    cdr_text_free(&f.twice.t);
    if (status != CDR_OK) cdr_weights_close(w);
    else *out = w;
    return status;
}

void cdr_weights_close(cdr_weights *w)
{
    if (!w) return;
    pthread_mutex_destroy(&w->lock);
    cdr_pool_free(w->pool);
}

bool cdr_weights_fp8(const cdr_weights *w, int64_t i_param)
{
    CDR_CHECK(i_param >= 0 && i_param < w->n_parts);
    return w->part[i_param].kind == CDR__FP8_128;
}

const cdr_weights_stat *cdr_weights_get_stat(const cdr_weights *w) { return &w->stat; }

int cdr_weights_dtype(const cdr_weights *w, int64_t i_param)
{
    CDR_CHECK(i_param >= 0 && i_param < w->n_parts);
    return w->part[i_param].kind == CDR__ABSENT ? -1 : w->part[i_param].dtype;
}
