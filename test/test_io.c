/* test_io.c: safetensors against the reference implementation's bytes, checkpoints across ranks and under kill -9,
 * packed text, dictionaries. */
#include "files.h"
#include "io/io.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

/* ---- safetensors ------------------------------------------------------------------------------------------ */

/* The tensors of tools/make_safetensors.py, in that order; byte i of tensor k is (7 i + k) mod 256. */
static const struct { const char *name, *format; int n_dim; int64_t n[5]; } REFERENCE[] = {
    { "z.weight", "BF16", 2, { 3, 5 } }, { "a.weight", "BF16", 2, { 2, 2 } }, { "scalar", "F32", 0, { 0 } }, { "empty", "F32", 2, { 0, 7 } },
    { "ids", "I64", 1, { 4 } }, { "unsigned", "U64", 1, { 1 } }, { "codes", "U8", 1, { 3 } }, { "scales", "F8_E8M0", 1, { 5 } },
    { "fp8", "F8_E4M3", 2, { 2, 3 } }, { "mask", "BOOL", 1, { 3 } }, { "half", "F16", 5, { 1, 1, 1, 1, 2 } }, { "double", "F64", 1, { 2 } },
    { "signed", "I32", 1, { 2 } }, { "layers.10.w", "F32", 1, { 2 } }, { "layers.2.w", "F32", 1, { 1 } },
    { "quote\"back\\slash\ttab\x01", "F32", 1, { 1 } }, { "gr\xc3\xb6\xc3\x9f" "e.\xe9\x87\x8d\xe3\x81\xbf", "F32", 1, { 1 } },
};

static void st_reads_the_reference(void)
{
    cdr_st *st = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr_st_open("test/golden/reference.safetensors", &st, &err) == CDR_OK);
    if (!st) return;
    T_CHECK(cdr_st_count(st) == CDR_COUNT(REFERENCE));
    T_CHECK(cdr_st_meta_count(st) == 1);
    T_STR(cdr_st_meta(st, "format"), "pt");
    for (int k = 0; k < CDR_COUNT(REFERENCE); k++) {
        const cdr_st_tensor *t = cdr_st_find(st, REFERENCE[k].name);
        T_CHECK(t != NULL);
        if (!t) continue;
        T_STR(cdr_st_format_row(t->format)->name, REFERENCE[k].format);
        T_CHECK(t->n_dim == REFERENCE[k].n_dim);
        for (int i = 0; i < t->n_dim; i++) T_CHECK(t->n[i] == REFERENCE[k].n[i]);
        const uint8_t *p = cdr_st_data(st, t);
        for (size_t i = 0; i < t->end - t->begin; i++) T_CHECK(p[i] == (uint8_t)(i * 7 + (size_t)k));
    }
    T_CHECK(cdr_st_find(st, "a.weigh") == NULL);
    T_CHECK(cdr_st_find(st, "a.weight")->dtype == CDR_BF16);
    T_CHECK(cdr_st_find(st, "unsigned")->dtype == -1);
    cdr_st_close(st);
}

static void st_writes_the_reference(void)
{
    cdr_st_spec specs[CDR_COUNT(REFERENCE)] = { { 0 } };
    cdr_st_writer *w = NULL;
    cdr_err err = { 0 };
    for (int k = 0; k < CDR_COUNT(REFERENCE); k++) {
        specs[k] = (cdr_st_spec){ .name = REFERENCE[k].name, .format = cdr_st_format_by_name(REFERENCE[k].format), .n_dim = REFERENCE[k].n_dim };
        memcpy(specs[k].n, REFERENCE[k].n, sizeof REFERENCE[k].n);
    }
    const char *path = in_dir("ours.safetensors");
    const cdr_st_pair meta = { "format", "pt" };
    T_CHECK(cdr_st_create(path, specs, CDR_COUNT(REFERENCE), &meta, 1, &w, &err) == CDR_OK);
    if (!w) return;
    for (int i = 0; i < CDR_COUNT(REFERENCE); i++) {
        int k = (int)cdr_st_writer_order(w, i);
        size_t bytes = (size_t)cdr_st_format_row(specs[k].format)->bits / 8;
        for (int d = 0; d < specs[k].n_dim; d++) bytes *= (size_t)specs[k].n[d];
        for (size_t b = 0; b < bytes; b++) {
            uint8_t x = (uint8_t)(b * 7 + (size_t)k);
            T_CHECK(cdr_st_append(w, &x, 1, &err) == CDR_OK);
        }
    }
    T_CHECK(!cdr_exists(path));                       /* no name before it is whole */
    int64_t bytes = 0;
    uint64_t hash = 0;
    T_CHECK(cdr_st_finish(w, &bytes, &hash, &err) == CDR_OK);
    char *a = NULL, *b = NULL;
    size_t n_a = 0, n_b = 0;
    T_CHECK(cdr_file_read(path, 1 << 20, &a, &n_a, &err) == CDR_OK);
    T_CHECK(cdr_file_read("test/golden/reference.safetensors", 1 << 20, &b, &n_b, &err) == CDR_OK);
    T_CHECK(n_a == n_b && n_a == (size_t)bytes && a && b && memcmp(a, b, n_a) == 0);
    T_CHECK(a && cdr_hash64(a, n_a, 0) == hash);
    free(a);
    free(b);
}

static cdr_status open_bytes(const char *header, size_t buffer_bytes, cdr_err *err)
{
    static char file[1 << 16];
    uint64_t n = strlen(header);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    cdr_st *st = NULL;
    *err = (cdr_err){ 0 };
    cdr_status s = cdr_st_open_memory("x.safetensors", file, 8 + n + buffer_bytes, &st, err);
    if (s == CDR_OK) cdr_st_close(st);
    return s;
}

static void st_refuses(void)
{
    static const struct { const char *header; size_t buffer; const char *id; } BAD[] = {
        { "[]", 0, "safetensors.header" },
        { "", 0, "safetensors.header" },
        { " {}", 0, "safetensors.header" },
        { "{}\n", 0, "safetensors.header" },
        { "{\"a\":1}", 0, "safetensors.header" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "safetensors.header" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "safetensors.header" },
        { "{\"__metadata__\":[]}", 0, "safetensors.header" },
        { "{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "safetensors.dtype" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "safetensors.shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "safetensors.shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "safetensors.shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "safetensors.shape" },
        { "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "safetensors.shape" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,5]}}", 5, "safetensors.offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "safetensors.offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "safetensors.offsets" },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "safetensors.offsets" },                   /* hole in front */
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[5,7]}}", 7, "safetensors.offsets" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}", 5, "safetensors.offsets" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5, "safetensors.trailing" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "safetensors.truncated" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 4, NULL },
        { "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, NULL },
    };
    cdr_err err;
    for (int i = 0; i < CDR_COUNT(BAD); i++) {
        T_CHECK(open_bytes(BAD[i].header, BAD[i].buffer, &err) == CDR_EDATA);
        if (BAD[i].id) T_STR(err.id, BAD[i].id);
        T_HAS(err.text, "x.safetensors");
    }
    T_CHECK(open_bytes("{}", 0, &err) == CDR_OK);
    T_CHECK(open_bytes("{}      ", 0, &err) == CDR_OK);
    T_CHECK(open_bytes("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, &err) == CDR_OK);
    T_CHECK(open_bytes("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                       "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 6, &err) == CDR_OK);
    cdr_st *st = NULL;
    static const char LONG_HEADER[8] = { 1, (char)0xe1, (char)0xf5, 5, 0, 0, 0, 0 };         /* 100,000,001 */
    err = (cdr_err){ 0 };
    T_CHECK(cdr_st_open_memory("x.safetensors", LONG_HEADER, 8, &st, &err) == CDR_EDATA);
    T_STR(err.id, "safetensors.header");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_st_open_memory("x.safetensors", LONG_HEADER, 7, &st, &err) == CDR_EDATA);
    T_STR(err.id, "safetensors.truncated");
}

static void st_says_where_a_file_is_cut(void)
{
    char header[512];
    cdr_err err;
    (void)snprintf(header, sizeof header, "{\"layers.0.w\":{\"dtype\":\"F32\",\"shape\":[250],\"data_offsets\":[0,1000]},"
                   "\"layers.1.w\":{\"dtype\":\"F32\",\"shape\":[250],\"data_offsets\":[1000,2000]}}");
    size_t whole = 8 + strlen(header) + 2000, have = whole * 3 / 4;
    T_CHECK(open_bytes(header, have - 8 - strlen(header), &err) == CDR_EDATA);
    T_STR(err.id, "safetensors.truncated");
    char want[256], a[32], b[32];
    cdr_format_count(a, (int64_t)have);
    cdr_format_count(b, (int64_t)whole);
    (void)snprintf(want, sizeof want, "x.safetensors: %s bytes, its header describes %s (%d %%); first tensor cut: layers.1.w. Copy the file again", a, b,
                   (int)(100.0 * (double)have / (double)whole));
    T_STR(err.text, want);
}

/* Time to write and open a file of n one-byte tensors. */
static double many(int64_t n)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_st_spec *specs = cdr_pool_alloc(pool, (size_t)n * sizeof *specs);
    cdr_st_writer *w = NULL;
    cdr_st *st = NULL;
    cdr_err err = { 0 };
    for (int64_t i = 0; i < n; i++)
        specs[i] = (cdr_st_spec){ .name = cdr_pool_printf(pool, "model.layers.%lld.experts.%lld.w", (long long)(i / 900), (long long)(i % 900)),
                                  .format = cdr_st_format_by_name("U8"), .n_dim = 1, .n = { 1 } };
    int64_t t0 = cdr_now_ns();
    T_CHECK(cdr_st_create(in_dir("many.safetensors"), specs, n, NULL, 0, &w, &err) == CDR_OK);
    char *zeros = cdr_pool_alloc(pool, (size_t)n);
    T_CHECK(cdr_st_append(w, zeros, (size_t)n, &err) == CDR_OK);
    T_CHECK(cdr_st_finish(w, NULL, NULL, &err) == CDR_OK);
    T_CHECK(cdr_st_open(in_dir("many.safetensors"), &st, &err) == CDR_OK);
    for (int64_t i = 0; st && i < n; i += 7) T_CHECK(cdr_st_find(st, specs[i].name) != NULL);
    cdr_st_close(st);
    cdr_pool_free(pool);
    return (double)(cdr_now_ns() - t0) * 1e-9;
}

/* Eight times the entries take about eight times as long; a quadratic step would take 64 times. */
static void st_half_a_million_entries(void)
{
    int64_t n = t_quick() ? 10000 : 62500;
    double few = CDR_MIN(many(n), many(n)), all = many(8 * n);
    for (int i = 0; i < 4 && !(all < 30 * few); i++) all = CDR_MIN(all, many(8 * n));     /* something else ran meanwhile */
    T_CHECK(all < 30 * few);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------- */

enum { N_TENSORS = 5 };
typedef struct { const char *name, *cls; int dtype, n_dim; int64_t n[CDR_MAX_DIM]; } model_tensor;
static const model_tensor MODEL[N_TENSORS] = {
    { "embed.weight", "weight", CDR_BF16, 2, { 37, 6 } }, { "embed.weight", "master", CDR_F32, 2, { 37, 6 } },
    { "norm.weight", "weight", CDR_F32, 1, { 11 } },      { "experts.w1", "weight", CDR_BF16, 3, { 7, 3, 4 } },
    { "temperature", "bias", CDR_F32, 0, { 0 } },
};

static int64_t rows_of(const model_tensor *t)
{
    return t->n_dim ? t->n[0] : 1;
}

static size_t row_bytes_of(const model_tensor *t)
{
    size_t b = (size_t)cdr_dtype_row(t->dtype)->block_bytes;
    for (int i = 1; i < t->n_dim; i++) b *= (size_t)t->n[i];
    return b;
}

static uint8_t content(int64_t step, int tensor, size_t byte)
{
    return (uint8_t)cdr_hash64(&(uint64_t[3]){ (uint64_t)step, (uint64_t)tensor, byte }, 24, 1);
}

static uint8_t *bytes_of(int64_t step, int tensor)
{
    size_t n = row_bytes_of(&MODEL[tensor]) * (size_t)rows_of(&MODEL[tensor]);
    uint8_t *p = malloc(n);
    for (size_t i = 0; i < n; i++) p[i] = content(step, tensor, i);
    return p;
}

/* Rank's rows of tensor t: even parts, the scalar on the last rank. */
static void part_of(const model_tensor *t, int rank, int n_ranks, int64_t *first, int64_t *n)
{
    int64_t rows = rows_of(t), per = cdr_ceil_div(rows, n_ranks);
    *first = CDR_MIN(per * rank, rows);
    *n = CDR_MIN(per * (rank + 1), rows) - *first;
}

static cdr_ckpt_meta meta_of(int64_t step, int n_ranks)
{
    return (cdr_ckpt_meta){ .step = step, .n_ranks = n_ranks, .recipe_hash = 0x123456789abcdef0ull, .description_hash = 7,
                            .mesh_json = "{\"replicate\":1,\"shard\":2}", .state_json = "{\"tokens\":12}", .recipe_yaml = "name: x\n" };
}

static cdr_status save(const char *run, int64_t step, int n_ranks, cdr_err *err)
{
    cdr_text part[8] = { { 0 } };
    const char *texts[8];
    uint8_t *data[N_TENSORS];
    cdr_status status = CDR_OK;
    for (int t = 0; t < N_TENSORS; t++) data[t] = bytes_of(step, t);
    for (int r = 0; r < n_ranks && status == CDR_OK; r++) {
        cdr_ckpt_piece pieces[N_TENSORS];
        for (int t = 0; t < N_TENSORS; t++) {
            const model_tensor *m = &MODEL[t];
            pieces[t] = (cdr_ckpt_piece){ .name = m->name, .cls = m->cls, .dtype = m->dtype, .n_dim = m->n_dim };
            memcpy(pieces[t].n, m->n, sizeof m->n);
            part_of(m, r, n_ranks, &pieces[t].first_row, &pieces[t].n_rows);
            pieces[t].data = data[t] + (size_t)pieces[t].first_row * row_bytes_of(m);
        }
        status = cdr_ckpt_write_part(run, step, r, n_ranks, pieces, N_TENSORS, &part[r], err);
        texts[r] = part[r].s;
    }
    cdr_ckpt_meta meta = meta_of(step, n_ranks);
    if (status == CDR_OK) status = cdr_ckpt_finish(run, &meta, texts, n_ranks, NULL, err);
    for (int t = 0; t < N_TENSORS; t++) free(data[t]);
    for (int r = 0; r < n_ranks; r++) cdr_text_free(&part[r]);
    return status;
}

/* Every row range of every tensor is what `content` says; counts differing bytes. */
static int64_t wrong_bytes(cdr_ckpt *ck, int64_t step)
{
    int64_t wrong = 0;
    cdr_err err = { 0 };
    for (int t = 0; t < N_TENSORS; t++) {
        const model_tensor *m = &MODEL[t];
        size_t row = row_bytes_of(m);
        uint8_t *got = malloc(row * (size_t)rows_of(m) + 1);
        for (int64_t first = 0; first < rows_of(m); first++)
            for (int64_t n = 0; n <= rows_of(m) - first; n++) {
                got[row * (size_t)n] = 0xee;
                if (cdr_ckpt_read(ck, m->name, m->cls, m->dtype, first, n, got, &err) != CDR_OK) wrong++;
                for (size_t i = 0; i < row * (size_t)n; i++) wrong += got[i] != content(step, t, row * (size_t)first + i);
                wrong += got[row * (size_t)n] != 0xee;
            }
        free(got);
    }
    return wrong;
}

static void ckpt_any_ranks_read_what_any_wrote(void)
{
    const char *run = in_dir("run-a");
    for (int n_ranks = 1; n_ranks <= 8; n_ranks = n_ranks == 4 ? 5 : n_ranks == 5 ? 8 : n_ranks * 2) {
        cdr_err err = { 0 };
        cdr_ckpt *ck = NULL;
        T_CHECK(save(run, 100 + n_ranks, n_ranks, &err) == CDR_OK);
        T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_OK);
        if (!ck) continue;
        T_CHECK(cdr_ckpt_step(ck) == 100 + n_ranks && cdr_ckpt_ranks(ck) == n_ranks && cdr_ckpt_count(ck) == N_TENSORS);
        T_CHECK(cdr_ckpt_recipe_hash(ck) == 0x123456789abcdef0ull && cdr_ckpt_description_hash(ck) == 7);
        T_STR(cdr_ckpt_state(ck), "{\"tokens\":12}");
        T_STR(cdr_ckpt_recipe(ck), "name: x\n");
        T_CHECK(wrong_bytes(ck, 100 + n_ranks) == 0);
        T_CHECK(cdr_ckpt_verify(ck, &err) == CDR_OK);
        T_CHECK(cdr_json_int(cdr_json_get(cdr_json_get(cdr_ckpt_manifest(ck), "mesh"), "shard"), 0) == 2);
        const cdr_ckpt_tensor *t = cdr_ckpt_find(ck, "embed.weight", "master");
        T_CHECK(t && t->dtype == CDR_F32 && t->n[1] == 6 && strcmp(t->key, "embed.weight.master") == 0);
        T_CHECK(cdr_ckpt_find(ck, "embed.weight", "m") == NULL && cdr_ckpt_find(ck, "embed.weight.master", "weight") == NULL);
        char row[64];
        T_CHECK(cdr_ckpt_read(ck, "embed.weight", "weight", CDR_F32, 0, 1, row, &err) == CDR_EDATA);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_ckpt_read(ck, "embed.weight", "weight", CDR_BF16, 37, 1, row, &err) == CDR_EDATA);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_ckpt_read(ck, "absent", "weight", CDR_BF16, 0, 1, row, &err) == CDR_EDATA);
        T_HAS(err.text, "absent");
        cdr_ckpt_close(ck);
    }
}

/* Two tables whose rows do not tile, or that disagree, are refused before anything is renamed. */
static void ckpt_refuses_holes_and_overlaps(void)
{
    static const struct { int64_t first[2], n[2]; int64_t cols[2]; cdr_status status; const char *id; } CASES[] = {
        { { 0, 4 }, { 4, 4 }, { 3, 3 }, CDR_OK, "" },
        { { 4, 0 }, { 4, 4 }, { 3, 3 }, CDR_OK, "" },
        { { 0, 5 }, { 4, 3 }, { 3, 3 }, CDR_EDATA, "checkpoint.hole" },
        { { 0, 4 }, { 4, 3 }, { 3, 3 }, CDR_EDATA, "checkpoint.hole" },
        { { 1, 4 }, { 3, 4 }, { 3, 3 }, CDR_EDATA, "checkpoint.hole" },
        { { 0, 3 }, { 4, 5 }, { 3, 3 }, CDR_EDATA, "checkpoint.overlap" },
        { { 0, 0 }, { 8, 8 }, { 3, 3 }, CDR_EDATA, "checkpoint.overlap" },
        { { 0, 4 }, { 4, 4 }, { 3, 2 }, CDR_EBUG, "checkpoint.write" },
    };
    const char *run = in_dir("run-holes");
    float data[64] = { 0 };
    for (int i = 0; i < CDR_COUNT(CASES); i++) {
        cdr_text part[2] = { { 0 } };
        cdr_err err = { 0 };
        for (int r = 0; r < 2; r++) {
            cdr_ckpt_piece p = { .name = "w", .cls = "weight", .dtype = CDR_F32, .n_dim = 2, .n = { 8, CASES[i].cols[r] },
                                 .first_row = CASES[i].first[r], .n_rows = CASES[i].n[r], .data = data };
            T_CHECK(cdr_ckpt_write_part(run, i, r, 2, &p, 1, &part[r], &err) == CDR_OK);
        }
        cdr_ckpt_meta meta = meta_of(i, 2);
        T_CHECK(cdr_ckpt_finish(run, &meta, (const char *[]){ part[0].s, part[1].s }, 2, NULL, &err) == CASES[i].status);
        T_STR(err.id, CASES[i].id);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_ckpt_finish(run, &meta, (const char *[]){ part[0].s, part[0].s }, 2, NULL, &err) != CDR_OK);     /* a rank twice */
        for (int r = 0; r < 2; r++) cdr_text_free(&part[r]);
    }
    int64_t steps[8];
    T_CHECK(cdr_ckpt_list(run, steps, 8) == 2 && steps[0] == 0 && steps[1] == 1);
}

static void ckpt_blocks_of_64_mib(void)
{
    const char *run = in_dir("run-blocks");
    const int64_t rows = 70, cols = 1 << 18;          /* F32: 1 MiB a row */
    float *data = calloc((size_t)(rows * cols), sizeof *data);
    for (int64_t r = 0; r < rows; r++) data[r * cols + r] = (float)r + 0.5f;
    cdr_ckpt_piece p = { .name = "big", .cls = "m", .dtype = CDR_F32, .n_dim = 2, .n = { rows, cols }, .n_rows = rows, .data = data };
    cdr_text part = { 0 };
    cdr_err err = { 0 };
    cdr_ckpt *ck = NULL;
    cdr_ckpt_meta meta = meta_of(1, 1);
    T_CHECK(cdr_ckpt_write_part(run, 1, 0, 1, &p, 1, &part, &err) == CDR_OK);
    T_HAS(part.s, "\"key\":\"big.m#0,0\",\"start\":[0,0],\"shape\":[64,262144]");
    T_HAS(part.s, "\"key\":\"big.m#64,0\",\"start\":[64,0],\"shape\":[6,262144]");
    T_CHECK(cdr_ckpt_finish(run, &meta, (const char *[]){ part.s }, 1, NULL, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_OK);
    float *two = malloc(2 * (size_t)cols * sizeof *two);
    T_CHECK(ck && cdr_ckpt_read(ck, "big", "m", CDR_F32, 63, 2, two, &err) == CDR_OK);
    T_CHECK(two[63] == 63.5f && two[cols + 64] == 64.5f && two[64] == 0);
    cdr_ckpt_close(ck);
    cdr_text_free(&part);
    free(two);
    free(data);
    T_CHECK(cdr_remove_tree(run, &err) == CDR_OK);
}

static void flip_byte(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    T_CHECK(f != NULL);
    if (!f) return;
    (void)fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    (void)fseek(f, -1, SEEK_CUR);
    (void)fputc(c ^ 1, f);
    (void)fclose(f);
}

static void ckpt_sees_damage(void)
{
    const char *run = in_dir("run-damage");
    cdr_err err = { 0 };
    cdr_ckpt *ck = NULL;
    char file[1024], row[256];
    T_CHECK(save(run, 5, 2, &err) == CDR_OK);
    (void)snprintf(file, sizeof file, "%s/checkpoints/step-000000005/optimizer-00001-of-00002.safetensors", run);
    flip_byte(file, -1);
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_read(ck, "embed.weight", "weight", CDR_BF16, 36, 1, row, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_read(ck, "embed.weight", "master", CDR_F32, 0, 1, row, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_read(ck, "embed.weight", "master", CDR_F32, 36, 1, row, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.hash");
    T_HAS(err.text, "embed.weight.master#19,0");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_ckpt_verify(ck, &err) == CDR_EDATA);
    cdr_ckpt_close(ck);
    T_CHECK(truncate(file, 100) == 0);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_EDATA);
    T_STR(err.id, "safetensors.truncated");
    T_CHECK(unlink(file) == 0);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.missing-file");
    T_HAS(err.text, "optimizer-00001-of-00002.safetensors");
    err = (cdr_err){ 0 };
    T_CHECK(save(run, 6, 1, &err) == CDR_OK);         /* a newer one works again */
    (void)snprintf(file, sizeof file, "%s/checkpoints/step-000000006/state.json", run);
    flip_byte(file, 2);
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.hash");
}

/* Each edit of the manifest's text is refused: (text, replacement, what the message holds). */
static void ckpt_refuses_edited_manifests(void)
{
    static const char *const EDITS[][3] = {
        { "cadre-checkpoint", "other-checkpoint", "format" },
        { "\"version\":1", "\"version\":2", "version 2" },
        { "\"step\":9", "\"step\":-9", "step" },
        { "\"file\":\"model-00000-of-00002.safetensors\"", "\"file\":\"model-00009-of-00002.safetensors\"", "not among the files" },
        { "\"name\":\"model-00000-of-00002.safetensors\"", "\"name\":\"../model-00000-of-00002.safetensors\"", "plain file name" },
        { "embed.weight#0,0", "embed.other#0,0", "foreign name" },
        { "\"start\":[19,0],\"shape\":[18,6]", "\"start\":[20,0],\"shape\":[17,6]", "foreign name" },
        { "\"shape\":[37,6]", "\"shape\":[38,6]", "of 38 rows" },
        { "\"shape\":[37,6]", "\"shape\":[36,6]", "outside" },
        { "\"shape\":[37,6]", "\"shape\":[37,7]", "whole rows" },
        { "\"class\":\"master\"", "\"class\":\"moster\"", "class" },
        { "\"class\":\"master\"", "\"class\":\"m\"", "must end in .m" },
        { "\"dtype\":\"F32\"", "\"dtype\":\"U64\"", "dtype" },
        { "\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "another dtype" },
        { "\"norm.weight\":{", "\"norm.foreign\":{", "foreign name" },
        { "\"recipe_hash\":\"1", "\"recipe_hash\":\"x", "recipe_hash" },
    };
    const char *run = in_dir("run-edited");
    char path[1024], *text = NULL;
    size_t bytes;
    cdr_err err = { 0 };
    cdr_ckpt *ck = NULL;
    T_CHECK(save(run, 9, 2, &err) == CDR_OK);
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-000000009/manifest.json", run);
    T_CHECK(cdr_file_read(path, 1 << 20, &text, &bytes, &err) == CDR_OK);
    for (int i = 0; text && i < CDR_COUNT(EDITS); i++) {
        const char *at = strstr(text, EDITS[i][0]);
        T_CHECK(at != NULL);
        if (!at) continue;
        cdr_text t = { 0 };
        cdr_text_append(&t, text, (size_t)(at - text));
        cdr_text_printf(&t, "%s%s", EDITS[i][1], at + strlen(EDITS[i][0]));
        put_file(path, t.s, t.n);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_EDATA);
        T_HAS(err.text, EDITS[i][2]);
        cdr_text_free(&t);
    }
    put_file(path, text, bytes);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_OK);
    cdr_ckpt_close(ck);
    free(text);
}

static void ckpt_list_clean_prune(void)
{
    const char *run = in_dir("run-prune");
    char path[1024];
    cdr_err err = { 0 };
    cdr_ckpt *ck = NULL;
    int64_t steps[8];
    T_CHECK(cdr_ckpt_clean(run, &err) == CDR_OK);     /* of a run that has none */
    T_CHECK(cdr_ckpt_list(run, steps, 8) == 0);
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.none");
    err = (cdr_err){ 0 };
    for (int64_t step = 10; step <= 50; step += 10) T_CHECK(save(run, step, 1, &err) == CDR_OK);
    /* not complete: no manifest; a left-over of an interrupted writer; a name that is no step */
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-000000060", run);
    T_CHECK(cdr_make_dirs(path, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_open(path, &ck, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.partial");
    err = (cdr_err){ 0 };
    cdr_text part = { 0 };
    float x = 1;
    cdr_ckpt_piece p = { .name = "w", .cls = "weight", .dtype = CDR_F32, .n_rows = 1, .data = &x };
    T_CHECK(cdr_ckpt_write_part(run, 70, 3, 4, &p, 1, &part, &err) == CDR_OK);
    (void)snprintf(path, sizeof path, "%s/checkpoints/.partial-step-000000070", run);
    T_CHECK(cdr_exists(path));
    put_file(in_dir("run-prune/checkpoints/.partial-step-000000070/manifest.json"), "{}", 2);
    T_CHECK(cdr_ckpt_open(path, &ck, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.partial");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_ckpt_list(run, steps, 8) == 5 && steps[4] == 50);
    T_CHECK(cdr_ckpt_clean(run, &err) == CDR_OK && !cdr_exists(path));
    T_CHECK(cdr_ckpt_prune(run, 2, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_list(run, steps, 8) == 2 && steps[0] == 40 && steps[1] == 50);
    T_CHECK(cdr_ckpt_prune(run, 0, &err) == CDR_OK && cdr_ckpt_list(run, steps, 8) == 2);
    /* a step that is there already, and files of another number of ranks in its way */
    T_CHECK(cdr_ckpt_write_part(run, 50, 7, 8, &p, 1, &part, &err) == CDR_OK);
    T_CHECK(save(run, 50, 2, &err) == CDR_OK);
    T_CHECK(cdr_ckpt_open(run, &ck, &err) == CDR_OK);
    T_CHECK(ck && cdr_ckpt_step(ck) == 50 && cdr_ckpt_ranks(ck) == 2 && wrong_bytes(ck, 50) == 0);
    cdr_ckpt_close(ck);
    T_CHECK(!cdr_exists(in_dir("run-prune/checkpoints/step-000000050/model-00007-of-00008.safetensors")));
    T_CHECK(!cdr_exists(in_dir("run-prune/checkpoints/.partial-step-000000050")));
    cdr_text_free(&part);
}

/* A writer that saves, prunes and is killed at a random moment, fifty times: whatever is left opens and is right, and
 * never goes back. A writer that was killed before it pruned leaves one more than it found; the next may be killed there
 * too. On a busy machine there are more rounds, with longer lives, until some have got somewhere. */
static void ckpt_kill_at_any_moment(void)
{
    const char *run = in_dir("run-kill");
    int64_t last = 0, n_advanced = 0;
    cdr_err err = { 0 };
    const int rounds = t_quick() ? 15 : 50;
    for (int round = 0, before = 0; round < rounds || (n_advanced <= 5 && round < 8 * rounds); round++) {
        pid_t pid = fork();
        if (pid == 0) {
            cdr_err e = { 0 };
            for (int64_t step = last + 1; ; step++)
                if (save(run, step, 1 + (int)(step % 3), &e) != CDR_OK || cdr_ckpt_prune(run, 2, &e) != CDR_OK) _exit(9);
        }
        (void)usleep((useconds_t)(1000 + cdr_rng_u64((cdr_rng_key){ 1, 2, 3 }, (uint64_t)round) % (200000 * (uint64_t)(1 + round / rounds))));
        int status = 0;
        (void)kill(pid, SIGKILL);
        T_CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        int64_t steps[512];
        int n = cdr_ckpt_list(run, steps, CDR_COUNT(steps));
        T_CHECK(n <= CDR_MAX(before, 2) + 1);         /* those that are kept, or were found, and one that was not pruned yet */
        before = n;
        for (int i = 0; i < n; i++) {
            char path[1024];
            cdr_ckpt *ck = NULL;
            cdr_ckpt_path(path, sizeof path, run, steps[i]);
            T_CHECK(cdr_ckpt_open(path, &ck, &err) == CDR_OK);
            if (!ck) continue;
            T_CHECK(cdr_ckpt_verify(ck, &err) == CDR_OK);
            T_CHECK(i > 0 || wrong_bytes(ck, steps[i]) == 0);
            cdr_ckpt_close(ck);
        }
        if (n > 0) {
            T_CHECK(steps[n - 1] >= last);
            n_advanced += steps[n - 1] > last;
            last = steps[n - 1];
        } else T_CHECK(last == 0);
        T_CHECK(cdr_ckpt_clean(run, &err) == CDR_OK);
    }
    T_CHECK(n_advanced > 5);                          /* the kills did hit a writer that gets somewhere */
}

/* ---- text, dictionary ---------------------------------------------------------------------------------------- */

static void same_text(const char *path, const char *want, size_t n)
{
    cdr_textfile t;
    cdr_err err = { 0 };
    T_CHECK(cdr_textfile_open(path, (size_t)1 << 30, &t, &err) == CDR_OK);
    T_CHECK(t.bytes == n && (n == 0 || memcmp(t.data, want, n) == 0));
    cdr_textfile_close(&t);
}

static void text_plain_gzip_zstd(void)
{
    enum { N = 3000000 };                             /* more than the first output buffer */
    char *text = malloc(N), *packed = malloc(2 * ZSTD_compressBound(N));
    cdr_textfile t;
    cdr_err err = { 0 };
    for (size_t i = 0; i < N; i++) text[i] = (char)('a' + cdr_rng_u64((cdr_rng_key){ 4, 0, 0 }, i / 3) % 26);
    put_file(in_dir("a.txt"), text, N);
    same_text(in_dir("a.txt"), text, N);
    put_file(in_dir("empty.txt"), text, 0);
    same_text(in_dir("empty.txt"), text, 0);
    gzFile z = gzopen(in_dir("a.gz"), "wb");          /* two members */
    T_CHECK(gzwrite(z, text, N / 2) == N / 2 && gzclose(z) == Z_OK);
    z = gzopen(in_dir("a.gz"), "ab");
    T_CHECK(gzwrite(z, text + N / 2, N - N / 2) == N - N / 2 && gzclose(z) == Z_OK);
    same_text(in_dir("a.gz"), text, N);
    size_t n1 = ZSTD_compress(packed, ZSTD_compressBound(N), text, N / 3, 1);         /* two frames */
    size_t n2 = ZSTD_compress(packed + n1, ZSTD_compressBound(N), text + N / 3, N - N / 3, 1);
    put_file(in_dir("a.zst"), packed, n1 + n2);
    same_text(in_dir("a.zst"), text, N);
    T_CHECK(cdr_textfile_open(in_dir("a.zst"), 1000, &t, &err) == CDR_EDATA);
    T_STR(err.id, "text.size");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_textfile_open(in_dir("a.gz"), 1000, &t, &err) == CDR_EDATA);
    T_STR(err.id, "text.size");
    put_file(in_dir("cut.zst"), packed, n1 + n2 - 5);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_textfile_open(in_dir("cut.zst"), 1 << 30, &t, &err) == CDR_EDATA);
    T_STR(err.id, "text.zstd");
    char *gz = NULL;
    size_t n_gz;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_file_read(in_dir("a.gz"), 1 << 30, &gz, &n_gz, &err) == CDR_OK);
    put_file(in_dir("cut.gz"), gz, n_gz - 20);
    T_CHECK(cdr_textfile_open(in_dir("cut.gz"), 1 << 30, &t, &err) == CDR_EDATA);
    T_STR(err.id, "text.gzip");
    free(gz);
    free(packed);
    free(text);
}

static void dictionary_becomes_text(void)
{
    static const char DICT[] = "\n00-database-info\nabout\n\nalpha\n first entry.\n\n  more\n\nbeta\n second\n\n\n";
    /* offsets: about 1 to 25, alpha to 54 (also as "first"), beta to 69 */
    static const char INDEX[] = "00-database-info\tB\tY\nalpha\tZ\td\nbeta\t2\tP\nfirst\tZ\td\tPLACE\n";
    cdr_text out = { 0 };
    cdr_err err = { 0 };
    cdr_dictionary_stat stat;
    gzFile z = gzopen(in_dir("d.dict.dz"), "wb");
    T_CHECK(gzwrite(z, DICT, sizeof DICT - 1) == (int)sizeof DICT - 1 && gzclose(z) == Z_OK);
    T_CHECK(cdr_dictionary_to_text(in_dir("d.dict.dz"), &out, &stat, &err) == CDR_EDATA);         /* no index */
    T_HAS(err.text, "d.index");
    put_file(in_dir("d.index"), INDEX, sizeof INDEX - 1);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_dictionary_to_text(in_dir("d.dict.dz"), &out, &stat, &err) == CDR_OK);
    T_CHECK(stat.n_entries == 2 && stat.n_dropped == 1);
    T_STR(out.s, "alpha\n first entry.\n\n  more\n\nbeta\n second\n");
    cdr_text_free(&out);
    put_file(in_dir("d.index"), "alpha\tZ\tBAA\n", 12);                                          /* 4096 bytes: outside */
    T_CHECK(cdr_dictionary_to_text(in_dir("d.dict.dz"), &out, &stat, &err) == CDR_EDATA);
    T_HAS(err.text, "d.index:1");
    put_file(in_dir("d.index"), "alpha Z B\n", 10);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_dictionary_to_text(in_dir("d.dict.dz"), &out, &stat, &err) == CDR_EDATA);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_dictionary_to_text(in_dir("d.txt"), &out, &stat, &err) == CDR_EUSER);
    cdr_text_free(&out);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("io")) return 1;
    T_RUN(st_reads_the_reference);
    T_RUN(st_writes_the_reference);
    T_RUN(st_refuses);
    T_RUN(st_says_where_a_file_is_cut);
    T_RUN(st_half_a_million_entries);
    T_RUN(ckpt_any_ranks_read_what_any_wrote);
    T_RUN(ckpt_refuses_holes_and_overlaps);
    T_RUN(ckpt_blocks_of_64_mib);
    T_RUN(ckpt_sees_damage);
    T_RUN(ckpt_refuses_edited_manifests);
    T_RUN(ckpt_list_clean_prune);
    T_RUN(ckpt_kill_at_any_moment);
    T_RUN(text_plain_gzip_zstd);
    T_RUN(dictionary_becomes_text);
    files_close();
    return t_end();
}
