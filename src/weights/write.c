/* write.c: a checkpoint directory from rows of parameters, or from another directory of which some parameters changed.
 *
 * With a source its layout is kept: names and shards; a shard in which nothing changed is copied as a file, a tensor that did not change is
 * copied byte for byte, so are carried ones, side files (side.c: which), and the index where no tensor got another form. Packed experts that changed come packed, with
 * the source's scales (a value that was decoded with them gets its code back); packed anew: by the rule of tensor/mxfp4.c, never with a scale
 * that a reader refuses. FP8_128: fp8.c; blocks keep the source's scales where they can.
 * Without a source tensors lie in the order of the model's parameters, as a state dictionary would have them.
 */
#include "weights/parts.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { COPY, VALUES, CODES, SCALES, FP8, FP8_SCALES };                /* what a tensor of the file is */
enum { BLOCK_BYTES = 8 << 20, ROW_ELEMS = 1 << 20, NAME_BYTES = 1000 };

typedef struct { int what; int64_t param, file, source; } origin;     /* source: tensor of the directory, -1 */
typedef struct { int kind, dtype; } form;                             /* that a parameter is written in */

typedef struct {
    cdr_pool *pool;
    const cdr_weights_out *o;
    cdr_weights *from;                 /* the source, audited; NULL: none */
    cdr__part *part; int64_t n_parts;
    form *form;
    cdr_hf_out_tensor *t; origin *at; int64_t n, cap_t, n_at, cap_at;
    cdr_hf_writer *w;
    struct { int64_t param, file; uint8_t *codes, *scales; } made;    /* what was packed last: its two tensors follow each other */
    cdr__sides sides; cdr_text config; /* made where it is not copied */
    double error, sum;
    int64_t copied;
} job;

/* ---- what is written ---------------------------------------------------------------------------------------------------- */
static form first_format(const cdr_model_row *row)
{
    const char *f = row->n_formats > 0 ? row->format[0] : "BF16";
    if (strcmp(f, "MXFP4") == 0) return (form){ CDR__MXFP4, CDR_MXFP4 };
    if (strcmp(f, "FP8_128") == 0) return (form){ CDR__FP8_128, CDR_BF16 };
    return (form){ CDR__PLAIN, cdr_dtype_by_name(f) };
}

static cdr_status choose_form(const job *j, int64_t i, form *f, cdr_err *err)
{
    const cdr__part *p = &j->part[i];
    const int want = p->top_k > 0 ? j->o->experts : -1;
    if (want < 0) {
        *f = j->from && p->kind != CDR__ABSENT ? (form){ p->kind, p->dtype } : first_format(&p->row);
        return CDR_OK;
    }
    *f = want == CDR_MXFP4 ? (form){ CDR__MXFP4, CDR_MXFP4 } : want == CDR_F8_E4M3 ? (form){ CDR__FP8_128, CDR_BF16 } : (form){ CDR__PLAIN, want };
    bool fits = f->kind == CDR__MXFP4 ? p->cols % CDR__MX == 0 && p->row.split_n <= 1 && !p->row.padded
              : f->kind == CDR__FP8_128 ? p->row.n_dim == 2 && p->row.split_n <= 1 && !p->row.padded : true;
    const char *word = f->kind == CDR__MXFP4 ? "MXFP4" : f->kind == CDR__FP8_128 ? "FP8_128" : cdr_dtype_row(f->dtype)->safetensors;
    if (!fits || !cdr__row_takes(&p->row, word))
        CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.experts", "experts of %s cannot be written as %s: %s", cdr_model_get_info(j->o->model)->name, word,
                    fits ? "its description does not read them so. Take a format of its rows, or add it there" : "their rows are no whole blocks of it");
    return CDR_OK;
}

static bool same_form(const job *j, int64_t i) { return j->form[i].kind == j->part[i].kind && j->form[i].dtype == j->part[i].dtype; }

static bool touched(const job *j, int64_t i) { return !j->from || !j->o->touched || j->o->touched[i]; }

static void add(job *j, const char *name, int format, int n_dim, const int64_t *n, int shard, origin at)
{
    cdr_hf_out_tensor *t = CDR_PUSH(j->pool, j->t, j->n, j->cap_t);
    *t = (cdr_hf_out_tensor){ .spec = { .name = cdr_pool_strdup(j->pool, name), .format = format, .n_dim = n_dim }, .shard = shard };
    memcpy(t->spec.n, n, sizeof *n * (size_t)n_dim);
    *CDR_PUSH(j->pool, j->at, j->n_at, j->cap_at) = at;
}

/* The one or two tensors of one file of a parameter, in the form that it is written in. */
static cdr_status add_file(job *j, int64_t i, int64_t f, int shard, cdr_err *err)
{
    static const char *const TAIL[][2] = { [CDR__PLAIN] = { "", NULL }, [CDR__MXFP4] = { "_packed", "_scale" }, [CDR__FP8_128] = { "", "_scale_inv" } };
    const cdr__part *p = &j->part[i];
    const int kind = j->form[i].kind, u8 = cdr_st_format_by_name("U8"), last = p->row.n_dim - 1;
    int64_t n[CDR_STORED_DIM], scale[CDR_STORED_DIM];
    char name[NAME_BYTES], second[NAME_BYTES];
    if (!cdr__part_name(&p->row, f, TAIL[kind][0], name, sizeof name) || !cdr__part_name(&p->row, f, TAIL[kind][1] ? TAIL[kind][1] : "", second, sizeof second))
        CDR_FAIL_ID(err, CDR_EUSER, "model.bad-row", "%.200s...: the name of a tensor has more than %d bytes", p->row.name, NAME_BYTES - 12);
    memcpy(n, p->row.n, sizeof n);
    memcpy(scale, n, sizeof scale);
    if (kind == CDR__PLAIN) {
        add(j, name, cdr_st_format_of(j->form[i].dtype), p->row.n_dim, n, shard, (origin){ VALUES, i, f, -1 });
    } else if (kind == CDR__MXFP4) {
        n[last] /= 2;
        scale[last] /= CDR__MX;
        add(j, name, u8, p->row.n_dim, n, shard, (origin){ CODES, i, f, -1 });
        add(j, second, u8, p->row.n_dim, scale, shard, (origin){ SCALES, i, f, -1 });
    } else {
        for (int k = 0; k < 2; k++) scale[k] = cdr_ceil_div(n[k], CDR__FP8_BLOCK);
        add(j, name, cdr_st_format_by_name("F8_E4M3"), 2, n, shard, (origin){ FP8, i, f, -1 });
        add(j, second, cdr_st_format_by_name("F32"), 2, scale, shard, (origin){ FP8_SCALES, i, f, -1 });
    }
    return CDR_OK;
}

static cdr_status list_model(job *j, cdr_err *err)
{
    const int stack = cdr_model_stack(j->o->model);
    for (int64_t i = 0; i < j->n_parts; i++) {
        const cdr__part *p = &j->part[i];
        int layer = cdr_model_param_part(j->o->model, i).layer;
        if (p->row.split_n > 1 && p->row.split_i > 0) continue;       /* the first part stands for the fused tensor */
        for (int64_t f = 0; f < p->n_files; f++) CDR_TRY(add_file(j, i, f, layer >= 0 ? layer : stack, err));
    }
    return CDR_OK;
}

/* A fused tensor changes with any of its parts. */
static bool tensor_touched(const job *j, int64_t i)
{
    const cdr__part *p = &j->part[i];
    if (p->row.split_n <= 1) return touched(j, i) || !same_form(j, i);
    for (int64_t k = 0; k < j->n_parts; k++)
        if (j->part[k].row.split_n > 1 && strcmp(j->part[k].row.name, p->row.name) == 0 && (touched(j, k) || !same_form(j, k))) return true;
    return false;
}

static void add_copy(job *j, const cdr_hf_tensor *x, int64_t tensor)
{
    add(j, x->t->name, x->t->format, x->t->n_dim, x->t->n, x->i_shard, (origin){ COPY, -1, -1, tensor });
}

static cdr_status list_source(job *j, cdr_err *err)
{
    cdr_hf *d = j->o->source;
    const int64_t n = cdr_hf_count(d);
    int64_t *owner = cdr_pool_alloc(j->pool, sizeof *owner * (size_t)(n + 1)), *file = cdr_pool_alloc(j->pool, sizeof *file * (size_t)(n + 1));
    bool *change = cdr_pool_alloc(j->pool, (size_t)j->n_parts + 1);
    memset(owner, 0xff, sizeof *owner * (size_t)n);
    for (int64_t i = 0; i < j->n_parts; i++) {
        const cdr__part *p = &j->part[i];
        change[i] = tensor_touched(j, i);
        for (int64_t f = 0; p->kind != CDR__ABSENT && f < p->n_files; f++) {
            owner[p->data[f]] = i;
            file[p->data[f]] = f;
            if (p->scale[f] < 0) continue;
            owner[p->scale[f]] = i;
            file[p->scale[f]] = -1;                                   /* comes with its codes */
        }
    }
    for (int64_t k = 0; k < n; k++) {
        cdr_hf_tensor x = { 0 };
        int64_t i = owner[k];
        if (i >= 0 && change[i] && file[k] < 0) continue;
        if (i >= 0 && change[i]) CDR_TRY(add_file(j, i, file[k], cdr_hf_shard_of(d, k), err));
        else {
            CDR_TRY(cdr_hf_tensor_at(d, k, &x, err));
            add_copy(j, &x, k);
        }
    }
    return CDR_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------------------------- */
static cdr_status rows_of(job *j, int64_t i, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    if (touched(j, i)) return j->o->rows(j->o->ctx, i, first, n, dtype, dst, err);
    return cdr_weights_read(j->from, i, first, n, dtype, dst, err);
}

/* Rows [first, first + n) of parameter i, in pieces, into the file. */
static cdr_status put_rows(job *j, int64_t i, int64_t first, int64_t n, int dtype, cdr_err *err)
{
    const int64_t cols = j->part[i].cols, step = CDR_MAX((int64_t)1, ROW_ELEMS / CDR_MAX(cols, (int64_t)1));
    char *block = cdr_alloc((size_t)cdr_dtype_bytes(dtype, step * cols) + 1);
    cdr_status st = CDR_OK;
    for (int64_t at = 0; at < n && st == CDR_OK; at += step) {
        int64_t k = CDR_MIN(step, n - at);
        st = rows_of(j, i, first + at, k, dtype, block, err);
        if (st == CDR_OK) st = cdr_hf_append(j->w, block, (size_t)cdr_dtype_bytes(dtype, k * cols), err);
    }
    cdr_free(block);
    return st;
}

/* A fused tensor: outer index by outer index, the parts' pieces of the split axis in a row. */
static cdr_status put_fused(job *j, int64_t i, cdr_err *err)
{
    const cdr_model_row *r = &j->part[i].row;
    int64_t outer = 1, inner = r->n[r->split_axis] / r->split_n, *of = cdr_pool_alloc(j->pool, sizeof *of * (size_t)r->split_n);
    for (int k = 0; k < r->split_axis; k++) outer *= r->n[k];
    for (int k = r->split_axis + 1; k < r->n_dim; k++) inner *= r->n[k];
    for (int64_t k = 0; k < j->n_parts; k++)
        if (j->part[k].row.split_n > 1 && strcmp(j->part[k].row.name, r->name) == 0) of[j->part[k].row.split_i] = k;
    const int64_t cols = j->part[i].cols;
    if (inner % cols != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.fused", "%s is cut within its rows; such a tensor is copied, but not written anew in this version", r->name);
    for (int64_t o = 0; o < outer; o++)
        for (int s = 0; s < r->split_n; s++) CDR_TRY(put_rows(j, of[s], o * (inner / cols), inner / cols, j->form[i].dtype, err));
    return CDR_OK;
}

static cdr_status put_values(job *j, int64_t i, int64_t f, cdr_err *err)
{
    const cdr__part *p = &j->part[i];
    if (p->row.split_n > 1) return put_fused(j, i, err);
    const int64_t rows = p->file_elems / CDR_MAX(p->cols, (int64_t)1);
    CDR_TRY(put_rows(j, i, f * rows, rows, j->form[i].dtype, err));
    if (!p->row.padded) return CDR_OK;
    int64_t all = 1;
    for (int k = 0; k < p->row.n_dim; k++) all *= p->row.n[k];
    for (int64_t k = p->file_elems; k < all; k++) {
        char x[8];
        float v = (float)p->row.fill;
        cdr_from_f32(j->form[i].dtype, &v, x, 1);
        CDR_TRY(cdr_hf_append(j->w, x, (size_t)cdr_dtype_bytes(j->form[i].dtype, 1), err));
    }
    return CDR_OK;
}

/* Packed in the source, and still: its rows come packed. */
static bool repacked(const job *j, int64_t i) { return j->from && j->part[i].kind == CDR__MXFP4 && j->form[i].kind == CDR__MXFP4; }

static cdr_status pack_rows(job *j, int64_t i, int64_t f, int64_t row, int64_t n, const float *x, cdr_err *err)
{
    const cdr__part *p = &j->part[i];
    const int64_t at = row * p->cols, k = n * p->cols;
    uint8_t *codes = j->made.codes + at / 2, *scales = j->made.scales + at / CDR__MX;
    if (j->form[i].kind == CDR__FP8_128) {
        cdr__fp8_encode(x, n, p->cols, j->made.codes + at, (float *)(void *)j->made.scales + row / CDR__FP8_BLOCK * cdr_ceil_div(p->cols, CDR__FP8_BLOCK));
        return CDR_OK;
    }
    if (repacked(j, i)) {                      /* x: blocks of codes and a scale */
        const uint8_t *block = (const uint8_t *)x;
        for (int64_t b = 0; b < k / CDR__MX; b++, block += CDR__MX_BYTES) {
            memcpy(codes + b * (CDR__MX / 2), block, CDR__MX / 2);
            scales[b] = block[CDR__MX / 2];
        }
        return cdr__check_scales(p->row.name, codes, scales, k / CDR__MX, err);
    }
    if (!cdr__pack(x, codes, scales, k, &j->error, &j->sum))
        CDR_FAIL_ID(err, CDR_ENUMERIC, "checkpoint.nonfinite", "%s, expert %lld: a value is not finite; it cannot be packed to MXFP4", p->row.name, (long long)f);
    return CDR_OK;
}

/* Both tensors of a packed matrix, into j->made, unless they are there. */
static cdr_status make_packed(job *j, int64_t i, int64_t f, cdr_err *err)
{
    const cdr__part *p = &j->part[i];
    if (j->made.codes && j->made.param == i && j->made.file == f) return CDR_OK;
    cdr_free(j->made.codes);
    cdr_free(j->made.scales);
    j->made.param = i;
    j->made.file = f;
    j->made.codes = cdr_alloc((size_t)p->file_elems + 1);
    j->made.scales = cdr_alloc((size_t)p->file_elems / 8 + 16);       /* 1 byte for 32, or 4 for a ragged 128 x 128 */
    const int64_t rows = p->file_elems / p->cols, fit = CDR_MAX((int64_t)1, ROW_ELEMS / p->cols);
    const int64_t step = j->form[i].kind == CDR__FP8_128 ? CDR__FP8_BLOCK : fit;
    float *x = cdr_alloc(sizeof *x * (size_t)(CDR_MIN(step, rows) * p->cols) + 1);
    cdr_status st = CDR_OK;
    memset(j->made.scales, 0, (size_t)p->file_elems / 8 + 16);
    if (j->from && p->kind == CDR__FP8_128 && j->form[i].kind == CDR__FP8_128)        /* the scales that its blocks had */
        st = cdr_weights_fp8_scales(j->from, i, f, (float *)(void *)j->made.scales, err);
    for (int64_t at = 0; at < rows && st == CDR_OK; at += step) {
        int64_t k = CDR_MIN(step, rows - at);
        st = rows_of(j, i, f * rows + at, k, repacked(j, i) ? CDR_MXFP4 : CDR_F32, x, err);
        if (st == CDR_OK) st = pack_rows(j, i, f, at, k, x, err);
    }
    cdr_free(x);
    return st;
}

static cdr_status put_copy(job *j, int64_t tensor, cdr_err *err)
{
    cdr_hf_tensor x = { 0 };
    CDR_TRY(cdr_hf_tensor_at(j->o->source, tensor, &x, err));
    const size_t bytes = x.t->end - x.t->begin;
    char *block = cdr_alloc(CDR_MIN(bytes, (size_t)BLOCK_BYTES) + 1);
    cdr_status st = CDR_OK;
    for (size_t at = 0; at < bytes && st == CDR_OK; at += BLOCK_BYTES) {
        size_t k = CDR_MIN((size_t)BLOCK_BYTES, bytes - at);
        st = cdr_hf_read(j->o->source, tensor, at, k, block, err);
        if (st == CDR_OK) st = cdr_hf_append(j->w, block, k, err);
    }
    cdr_free(block);
    return st;
}

static cdr_status put_tensor(job *j, const origin *a, cdr_err *err)
{
    if (a->what == COPY) return put_copy(j, a->source, err);
    if (a->what == VALUES) return put_values(j, a->param, a->file, err);
    const cdr__part *p = &j->part[a->param];
    CDR_TRY(make_packed(j, a->param, a->file, err));
    size_t n = (size_t)p->file_elems;
    size_t blocks = a->what == FP8_SCALES ? (size_t)(cdr_ceil_div(p->row.n[0], CDR__FP8_BLOCK) * cdr_ceil_div(p->row.n[1], CDR__FP8_BLOCK)) : 0;
    switch (a->what) {
    case CODES: return cdr_hf_append(j->w, j->made.codes, n / 2, err);
    case SCALES: return cdr_hf_append(j->w, j->made.scales, n / CDR__MX, err);
    case FP8: return cdr_hf_append(j->w, j->made.codes, n, err);
    default: return cdr_hf_append(j->w, j->made.scales, blocks * 4, err);
    }
}

/* ---- side files -------------------------------------------------------------------------------------------------------------- */
/* What lies beside the weights, before anything is written. */
static cdr_status plan_sides(job *j, cdr_err *err)
{
    bool changed = false;
    for (int64_t i = 0; i < j->n_parts && j->from; i++) changed = changed || (j->part[i].kind != CDR__ABSENT && !same_form(j, i));
    const bool keep = j->from && !changed && cdr_hf_config(j->o->source);
    if (j->from) CDR_TRY(cdr__sides_list(j->o, keep, j->pool, &j->sides, err));
    bool given = keep;
    for (int i = 0; i < j->o->n_side; i++) given = given || strcmp(j->o->side[i].name, "config.json") == 0;
    return given ? CDR_OK : cdr_model_config(j->o->model, j->o->experts, &j->config, err);
}

static cdr_status put_sides(job *j, cdr_err *err)
{
    for (int64_t i = 0; i < j->sides.n; i++)
        CDR_TRY(cdr_hf_side_copy(j->w, j->sides.name[i], cdr_pool_printf(j->pool, "%s/%s", cdr_hf_dir(j->o->source), j->sides.name[i]), err));
    for (int i = 0; i < j->o->n_side; i++) CDR_TRY(cdr_hf_side_file(j->w, j->o->side[i].name, j->o->side[i].data, j->o->side[i].bytes, err));
    return j->config.s ? cdr_hf_side_file(j->w, "config.json", j->config.s, j->config.n, err) : CDR_OK;
}

/* ---- the directory ------------------------------------------------------------------------------------------------------------- */
/* Shards of a source: their names, and the files in which nothing changed. */
static void source_layout(job *j, cdr_hf_layout *l)
{
    cdr_hf *d = j->o->source;
    const int n = cdr_hf_shards(d);
    const char **name = cdr_pool_alloc(j->pool, sizeof *name * (size_t)(n + 1)), **copy = cdr_pool_alloc(j->pool, sizeof *copy * (size_t)(n + 1));
    bool same = true;                  /* the same tensors in the same shards: the index is right as it is */
    for (int64_t i = 0; i < j->n_parts; i++) same = same && (j->part[i].kind == CDR__ABSENT || same_form(j, i));
    for (int k = 0; k < n; k++) {
        name[k] = cdr_hf_shard_name(d, k);
        copy[k] = cdr_pool_printf(j->pool, "%s/%s", cdr_hf_dir(d), name[k]);
    }
    for (int64_t i = 0; i < j->n; i++)
        if (j->at[i].what != COPY) copy[j->t[i].shard] = NULL;
    const char *index = cdr_pool_printf(j->pool, "%s/model.safetensors.index.json", cdr_hf_dir(d));
    l->shard = name;
    l->n_shards = n;
    l->copy = copy;
    l->index = same && cdr_exists(index) ? index : NULL;
}

static void layer_layout(job *j, cdr_hf_layout *l)
{
    const int n = cdr_model_stack(j->o->model) + 1;
    const char **name = cdr_pool_alloc(j->pool, sizeof *name * (size_t)n);
    for (int k = 0; k < n; k++) name[k] = cdr_pool_printf(j->pool, "model-%05d-of-%06d.safetensors", k + 1, n);
    l->shard = name;
    l->n_shards = n;
}

static cdr_status write_dir(job *j, const char *dir, cdr_weights_out_stat *stat, cdr_err *err)
{
    if (j->o->source) CDR_TRY(cdr_weights_open(j->o->model, j->o->source, &j->from, err));
    j->n_parts = cdr_model_params(j->o->model);
    j->part = cdr_pool_alloc(j->pool, sizeof *j->part * (size_t)(j->n_parts + 1));
    j->form = cdr_pool_alloc(j->pool, sizeof *j->form * (size_t)(j->n_parts + 1));
    for (int64_t i = 0; i < j->n_parts; i++) {
        if (j->from) j->part[i] = j->from->part[i];
        else cdr__part_open(j->o->model, i, &j->part[i]);
        CDR_TRY(choose_form(j, i, &j->form[i], err));
    }
    CDR_TRY(j->from ? list_source(j, err) : list_model(j, err));
    CDR_TRY(plan_sides(j, err));
    cdr_hf_layout l = { .t = j->t, .n = j->n, .shard_bytes = j->o->shard_bytes };
    if (j->from && j->o->shard_bytes == 0) source_layout(j, &l);
    else if (!j->from && j->o->layer_shards) layer_layout(j, &l);
    CDR_TRY(cdr_hf_create(dir, &l, &j->w, err));
    for (int64_t i = 0; i < j->n; i++) j->copied += j->at[i].what == COPY;
    for (int64_t i = 0; i < cdr_hf_writer_count(j->w); i++) CDR_TRY(put_tensor(j, &j->at[cdr_hf_writer_order(j->w, i)], err));
    CDR_TRY(put_sides(j, err));
    if (j->from) CDR_TRY(cdr_hf_unchanged(j->o->source, err));
    cdr_hf_writer *w = j->w;
    cdr_hf_written out = { 0 };
    j->w = NULL;
    CDR_TRY(cdr_hf_finish(w, &out, err));
    *stat = (cdr_weights_out_stat){ .tensors = out.tensors, .shards = out.shards, .bytes = out.bytes, .copied = j->copied, .n_left = j->sides.n_left,
                                    .left_bytes = j->sides.left_bytes, .pack_error = j->sum > 0 ? j->error / j->sum : 0 };
    if (!j->o->pool) return CDR_OK;
    const char **left = cdr_pool_alloc(j->o->pool, sizeof *left * (size_t)(stat->n_left + 1));
    for (int64_t i = 0; i < stat->n_left; i++) left[i] = cdr_pool_strdup(j->o->pool, j->sides.left[i]);
    stat->left = left;
    return CDR_OK;
}

cdr_status cdr_weights_write(const char *dir, const cdr_weights_out *o, cdr_weights_out_stat *stat, cdr_err *err)
{
    job j = { .pool = cdr_pool_new(), .o = o };
    cdr_status st = write_dir(&j, dir, stat, err);
    cdr_hf_abort(j.w);
    cdr_free(j.made.codes);
    cdr_free(j.made.scales);
    cdr_text_free(&j.config);
    cdr_weights_close(j.from);
    cdr_pool_free(j.pool);
    return st;
}
