/* weights_rig.h: directories of small models of known values for the tests of src/weights: written, opened, changed in one tensor.
 *
 *   cdr_model *m = write_toy("tiny-k3", in_dir("toy"), -1, &stat);             // value(p, i) everywhere
 *   edit(in_dir("toy"), in_dir("other"), &(change){ DROP, "lm_head.weight", NULL, 0, 0 });       // of one file (write_single)
 */
#ifndef CADRE_TEST_WEIGHTS_RIG_H
#define CADRE_TEST_WEIGHTS_RIG_H
#include "files.h"
#include "models/models.h"
#include "weights/parts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static cdr_pool *pool;

/* Value of element i of parameter p: small, of both signs, exact in BF16. */
static inline float value(int64_t p, int64_t i)
{
    uint64_t x = (uint64_t)(p * 1000003 + i) * 0x9e3779b97f4a7c15u;
    return (float)((int)(x >> 56) - 128) / 64.0f;
}

static inline cdr_status rows_of_values(void *ctx, int64_t p, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    (void)err;
    const cdr_model *m = ctx;
    cdr_model_part part = cdr_model_param_part(m, p);
    int64_t cols = part.n[part.n_dim - 1];
    float *x = cdr_alloc(sizeof *x * (size_t)(n * cols + 1));
    for (int64_t i = 0; i < n * cols; i++) x[i] = value(p, first * cols + i);
    cdr_from_f32(dtype, x, dst, n * cols);
    cdr_free(x);
    return CDR_OK;
}

static inline cdr_model *load(const char *path)
{
    cdr_model *m = NULL;
    cdr_err err = { 0 };
    cdr_model_spec s = { .path = path };
    if (cdr_model_load(&s, pool, &m, &err) != CDR_OK) fprintf(stderr, "  %s: %s\n", path, err.text);
    T_CHECK(m != NULL);
    return m;
}

/* A directory of the model's family with the values above. */
static inline cdr_model *write_toy(const char *name, const char *to, int experts, cdr_weights_out_stat *stat)
{
    cdr_model *m = load(name);
    cdr_err err = { 0 };
    cdr_weights_out o = { .model = m, .rows = rows_of_values, .ctx = m, .experts = experts, .layer_shards = true };
    if (!m) return NULL;
    if (cdr_weights_write(to, &o, stat, &err) != CDR_OK) fprintf(stderr, "  %s: %s\n", name, err.text);
    T_CHECK(err.status == CDR_OK);
    return m;
}

typedef struct { cdr_model *m; cdr_hf *d; cdr_weights *w; } opened;

static inline cdr_status open_toy(const char *path, opened *o, cdr_err *err)
{
    cdr_model_spec s = { .path = path };
    *o = (opened){ 0 };
    CDR_TRY(cdr_model_load(&s, pool, &o->m, err));
    CDR_TRY(cdr_hf_open(path, &o->d, err));
    return cdr_weights_open(o->m, o->d, &o->w, err);
}

static inline void close_toy(opened *o)
{
    cdr_weights_close(o->w);
    cdr_hf_close(o->d);
    *o = (opened){ 0 };
}

/* ---- changed directories ------------------------------------------------------------------------------------------------- */
typedef enum { DROP, RENAME, ADD, NARROW, WIDEN, FORMAT, SHAPE, BYTE } change_kind;
typedef struct { change_kind kind; const char *tensor, *name; int64_t at; int byte; } change;

/* from, one file, written again as `to` with one change: a tensor left out, renamed, added (4 bytes), rounded to BF16, widened from
 * it, called another format (name), of another shape, of another byte. */
static inline void edit(const char *from, const char *to, const change *c)
{
    char path[1200];
    cdr_st *st = NULL;
    cdr_st_writer *w = NULL;
    (void)mkdir(to, 0777);
    char *config;
    size_t bytes;
    (void)snprintf(path, sizeof path, "%s/config.json", from);
    T_CHECK(cdr_file_read(path, 1 << 20, &config, &bytes, NULL) == CDR_OK);
    (void)snprintf(path, sizeof path, "%s/config.json", to);
    T_CHECK(cdr_file_write(path, config, bytes, NULL) == CDR_OK);
    cdr_free(config);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", from);
    T_CHECK(cdr_st_open(path, &st, NULL) == CDR_OK);
    if (!st) return;
    int64_t n = 0, found = 0;
    cdr_st_spec *spec = calloc((size_t)cdr_st_count(st) + 1, sizeof *spec);
    const cdr_st_tensor **of = calloc((size_t)cdr_st_count(st) + 1, sizeof *of);
    for (int64_t i = 0; i < cdr_st_count(st); i++) {
        const cdr_st_tensor *t = cdr_st_at(st, i);
        bool it = strcmp(t->name, c->tensor) == 0;
        found += it;
        if (it && c->kind == DROP) continue;
        of[n] = t;
        spec[n] = (cdr_st_spec){ .name = it && c->kind == RENAME ? c->name : t->name, .format = t->format, .n_dim = t->n_dim };
        memcpy(spec[n].n, t->n, sizeof spec[n].n);
        if (it && c->kind == NARROW) spec[n].format = cdr_st_format_by_name("BF16");
        if (it && c->kind == WIDEN) spec[n].format = cdr_st_format_by_name("F32");
        if (it && c->kind == FORMAT) spec[n].format = cdr_st_format_by_name(c->name);
        if (it && c->kind == SHAPE) spec[n].n[spec[n].n_dim++] = 1;
        n++;
    }
    if (c->kind == ADD) spec[n++] = (cdr_st_spec){ .name = c->name, .format = cdr_st_format_by_name(c->tensor), .n_dim = 1, .n = { 4 } };
    else T_CHECK(found == 1);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", to);
    T_CHECK(cdr_st_create(path, spec, n, NULL, 0, &w, NULL) == CDR_OK);
    for (int64_t i = 0; w && i < n; i++) {
        int64_t k = cdr_st_writer_order(w, i);
        if (!of[k]) {
            T_CHECK(cdr_st_append(w, "0123456789abcdef", (size_t)cdr_st_format_row(spec[k].format)->bits / 2, NULL) == CDR_OK);
            continue;
        }
        size_t size = of[k]->end - of[k]->begin;
        uint8_t *data = calloc(2, size + 1);
        memcpy(data, cdr_st_data(st, of[k]), size);
        bool it = strcmp(of[k]->name, c->tensor) == 0;
        if (it && c->kind == BYTE) data[c->at] = (uint8_t)c->byte;
        if (it && c->kind == NARROW) for (size_t b = 0; b < size / 4; b++) memmove(data + 2 * b, data + 4 * b + 2, 2);
        if (it && c->kind == WIDEN) for (size_t b = size / 2; b-- > 0;) memcpy(data + 4 * b + 2, data + 2 * b, 2), memset(data + 4 * b, 0, 2);
        T_CHECK(cdr_st_append(w, data, it && c->kind == NARROW ? size / 2 : it && c->kind == WIDEN ? size * 2 : size, NULL) == CDR_OK);
        free(data);
    }
    if (w) T_CHECK(cdr_st_finish(w, NULL, NULL, NULL) == CDR_OK);
    free(spec);
    free(of);
    cdr_st_close(st);
}

/* A toy in one file. */
static inline void write_single(const char *name, const char *to, int experts)
{
    cdr_err err = { 0 };
    cdr_model *m = load(name);
    cdr_weights_out o = { .model = m, .rows = rows_of_values, .ctx = m, .experts = experts };
    cdr_weights_out_stat stat;
    if (m) T_CHECK(cdr_weights_write(to, &o, &stat, &err) == CDR_OK);
    if (err.status != CDR_OK) fprintf(stderr, "  %s\n", err.text);
}

#define K3 "language_model.model."
#define EXPERT K3 "layers.1.block_sparse_moe.experts.3.w1.weight"
#endif
