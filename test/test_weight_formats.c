/* test_weight_formats.c: packed and narrow weights of other makers: MXFP4 code by code, scales, FP8 blocks, integers, fused tensors, as they are read and as they
 * are written again. */
#include "weights_rig.h"

static void packed_codes_are_exact(void)
{
    static const double VALUE[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    int64_t wrong = 0;
    for (int s = 2; s <= 252; s++)
        for (int code = 0; code < 256; code++) {
            uint8_t codes[16], scale = (uint8_t)s, again[16];
            float x[32];
            memset(codes, code, sizeof codes);
            cdr_mxfp4_decode(codes, &scale, x, 32);
            for (int half = 0; half < 2; half++) {
                int nibble = half ? code >> 4 : code & 15;
                double exact = ldexp(VALUE[nibble & 7] * (nibble & 8 ? -1 : 1), s - 127);
                uint16_t b = cdr_f32_to_bf16(x[half]);
                wrong += (double)x[half] != exact || (double)cdr_bf16_to_f32(b) != exact || (signbit(x[half]) != 0) != (nibble >= 8);
            }
            cdr_mxfp4_encode_as(x, &scale, again, 32);
            wrong += memcmp(codes, again, 16) != 0;
        }
    T_CHECK(wrong == 0);
}

/* A block of zeros may have a scale that is too small, as zero is zero; one that is too large is none. What is packed has scales from 2 on. */
static void scales_of_zeros_and_of_what_is_small(void)
{
    static const struct { uint8_t code, scale; bool ok; } BLOCK[] = {
        { 0, 0, true }, { 0x88, 1, true }, { 0x08, 0, true }, { 1, 0, false }, { 0x70, 1, false }, { 0, 252, true }, { 0, 253, false }, { 0x88, 255, false },
        { 0x77, 2, true } };
    uint8_t codes[32] = { 0 }, scales[2] = { 127, 0 };
    for (int i = 0; i < CDR_COUNT(BLOCK); i++) {
        cdr_err err = { 0 };
        codes[16 + i] = BLOCK[i].code;
        scales[1] = BLOCK[i].scale;
        T_CHECK((cdr__check_scales("t", codes, scales, 2, &err) == CDR_OK) == BLOCK[i].ok);
        if (!BLOCK[i].ok) T_HAS(err.text, "tensor t: block 1 has the scale 2^(");
        codes[16 + i] = 0;
    }
    float x[64] = { 0 }, back[64];
    double error = 0, sum = 0;
    x[3] = 0x1p-126f, x[4] = -0x1p-128f, x[40] = 1;        /* half of the smallest step, which is 2^-126, is a tie: to the even code */
    T_CHECK(cdr__pack(x, codes, scales, 64, &error, &sum) && scales[0] == 2 && scales[1] == 125);
    cdr_mxfp4_decode(codes, scales, back, 64);
    T_CHECK(back[3] == 0x1p-126f && back[4] == 0 && back[40] == 1 && error == 0x1p-128 && sum == 1 + 0x1p-126 + 0x1p-128);
    x[5] = INFINITY;
    T_CHECK(!cdr__pack(x, codes, scales, 64, &error, &sum));
}

static void scales_are_checked(void)
{
    char keep[1024], path[1024];
    static const struct { int byte; bool ok; } SCALE[] = { { 0, false }, { 1, false }, { 2, true }, { 252, true }, { 253, false }, { 254, false }, { 255, false } };
    (void)snprintf(keep, sizeof keep, "%s", in_dir("k3-scales"));
    (void)snprintf(path, sizeof path, "%s", in_dir("k3-scale"));
    write_single("tiny-k3", keep, -1);
    for (int i = 0; i < CDR_COUNT(SCALE); i++) {
        opened o;
        cdr_err err = { 0 };
        const change c = { BYTE, EXPERT "_scale", NULL, 5, SCALE[i].byte };
        const uint8_t *codes, *scales;
        edit(keep, path, &c);
        T_CHECK(open_toy(path, &o, &err) == CDR_OK);
        int64_t p = 0;
        while (o.m && p < cdr_model_params(o.m) && strcmp(cdr_model_param(o.m, p), K3 "layers.1.block_sparse_moe.experts.{expert}.w1.weight") != 0) p++;
        T_CHECK(o.m && p < cdr_model_params(o.m) && cdr_weights_dtype(o.w, p) == CDR_MXFP4);
        if (!o.w) continue;
        T_CHECK((cdr_weights_packed(o.w, p, 3, &codes, &scales, &err) == CDR_OK) == SCALE[i].ok);
        if (!SCALE[i].ok) T_HAS(err.text, EXPERT "_scale");
        cdr_model_part part = cdr_model_param_part(o.m, p);
        void *rows = cdr_alloc((size_t)(part.n[1] * part.n[2]) * 4);
        err = (cdr_err){ 0 };
        T_CHECK((cdr_weights_read(o.w, p, 3 * part.n[1], part.n[1], CDR_BF16, rows, &err) == CDR_OK) == SCALE[i].ok);
        err = (cdr_err){ 0 };
        T_CHECK((cdr_weights_read(o.w, p, 3 * part.n[1], part.n[1], CDR_MXFP4, rows, &err) == CDR_OK) == SCALE[i].ok);
        if (SCALE[i].ok) {                                   /* packed again, each block has the scale that it had */
            const int64_t n = part.n[1] * part.n[2];
            float *x = cdr_alloc((size_t)n * 4);
            uint8_t *again = cdr_alloc((size_t)n);
            T_CHECK(cdr_weights_read(o.w, p, 3 * part.n[1], part.n[1], CDR_F32, x, &err) == CDR_OK);
            T_CHECK(cdr_weights_repack(o.w, p, 3 * part.n[1], part.n[1], x, again, &err) == CDR_OK && memcmp(rows, again, (size_t)n / 32 * 17) == 0);
            cdr_free(x);
            cdr_free(again);
        }
        T_CHECK(cdr_weights_read(o.w, p, 0, part.n[1], CDR_MXFP4, rows, NULL) == CDR_OK);            /* another expert */
        cdr_free(rows);
        close_toy(&o);
        (void)cdr_remove_tree(path, NULL);
    }
}

/* Packed in the file: blocks, mapped codes and expanded values are the same numbers; unchanged values are packed to the same bytes. */
static void packed_experts_come_back(void)
{
    char keep[1024];
    opened o;
    cdr_err err = { 0 };
    cdr_weights_out_stat stat;
    (void)snprintf(keep, sizeof keep, "%s", in_dir("k31-packed"));
    write_toy("tiny-k31", keep, CDR_MXFP4, &stat);
    T_CHECK(stat.pack_error > 0.02 && stat.pack_error < 0.2);
    T_CHECK(open_toy(keep, &o, &err) == CDR_OK);
    if (!o.w) return;
    T_CHECK(cdr_weights_get_stat(o.w)->experts == CDR_MXFP4);
    int64_t packed = 0, wrong = 0;
    for (int64_t p = 0; p < cdr_model_params(o.m); p++) {
        if (cdr_weights_dtype(o.w, p) != CDR_MXFP4) continue;
        cdr_model_part part = cdr_model_param_part(o.m, p);
        const int64_t n = part.n[1] * part.n[2], e = part.n[0] - 1;
        float *x = cdr_alloc((size_t)n * 8), *y = x + n;
        uint8_t *blocks = cdr_alloc((size_t)n), *again = cdr_alloc((size_t)n);
        const uint8_t *codes, *scales;
        T_CHECK(cdr_weights_packed(o.w, p, e, &codes, &scales, &err) == CDR_OK);
        T_CHECK(cdr_weights_read(o.w, p, e * part.n[1], part.n[1], CDR_F32, x, &err) == CDR_OK);
        T_CHECK(cdr_weights_read(o.w, p, e * part.n[1], part.n[1], CDR_MXFP4, blocks, &err) == CDR_OK);
        T_CHECK(cdr_weights_repack(o.w, p, e * part.n[1], part.n[1], x, again, &err) == CDR_OK);
        cdr_mxfp4_decode(codes, scales, y, n);
        for (int64_t b = 0; b < n / 32; b++) wrong += memcmp(blocks + 17 * b, codes + 16 * b, 16) != 0 || blocks[17 * b + 16] != scales[b];
        wrong += memcmp(x, y, sizeof *x * (size_t)n) != 0 || memcmp(blocks, again, (size_t)n / 32 * 17) != 0;
        for (int64_t i = 0; i < n; i++) wrong += fabsf(x[i] - value(p, e * n + i)) > 0.51f;      /* half a step at 2 to 4 */
        packed++;
        cdr_free(x);
        cdr_free(blocks);
        cdr_free(again);
    }
    T_CHECK(packed > 0 && wrong == 0);
    /* expanded on export: exactly those values, and a config.json that says so */
    cdr_weights_out e = { .model = o.m, .source = o.d, .touched = calloc((size_t)cdr_model_params(o.m), 1), .experts = CDR_BF16 };
    char wide[1024];
    (void)snprintf(wide, sizeof wide, "%s", in_dir("k31-wide"));
    T_CHECK(cdr_weights_write(wide, &e, &stat, &err) == CDR_OK && stat.pack_error == 0 && stat.copied > 0);
    opened q;
    T_CHECK(open_toy(wide, &q, &err) == CDR_OK);
    T_STR(err.text, "");
    if (q.w) {
        T_CHECK(cdr_weights_get_stat(q.w)->experts == CDR_BF16 && !cdr_json_get(cdr_hf_config(q.d), "quantization_config"));
        for (int64_t p = 0; p < cdr_model_params(o.m); p++) {
            cdr_model_part part = cdr_model_param_part(o.m, p);
            if (part.top_k == 0) continue;
            const int64_t n = part.n[0] * part.n[1] * part.n[2];
            float *x = cdr_alloc((size_t)n * 8), *y = x + n;
            T_CHECK(cdr_weights_read(o.w, p, 0, part.n[0] * part.n[1], CDR_F32, x, &err) == CDR_OK);
            T_CHECK(cdr_weights_read(q.w, p, 0, part.n[0] * part.n[1], CDR_F32, y, &err) == CDR_OK);
            T_CHECK(memcmp(x, y, sizeof *x * (size_t)n) == 0);
            cdr_free(x);
        }
    }
    free((void *)(uintptr_t)e.touched);
    close_toy(&q);
    close_toy(&o);
}

/* Blocks whose scale no reader would take are not written; experts of one stack have one format. */
static cdr_status broken_rows(void *ctx, int64_t p, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    const cdr_model *m = ctx;
    (void)first;
    (void)err;
    CDR_CHECK(dtype == CDR_MXFP4);
    memset(dst, 0xff, (size_t)(n * cdr_model_param_part(m, p).n[2] / 32 * 17));
    return CDR_OK;
}

static void broken_and_mixed_stacks(void)
{
    char to[1024], keep[1024];
    opened o;
    cdr_err err = { 0 };
    cdr_weights_out_stat stat;
    (void)snprintf(to, sizeof to, "%s", in_dir("broken"));
    T_CHECK(open_toy(in_dir("k31-packed"), &o, &err) == CDR_OK);
    if (!o.w) return;
    bool *touched = cdr_pool_alloc(pool, (size_t)cdr_model_params(o.m));
    int64_t p = 0;
    while (cdr_weights_dtype(o.w, p) != CDR_MXFP4) p++;
    touched[p] = true;
    cdr_weights_out e = { .model = o.m, .source = o.d, .touched = touched, .rows = broken_rows, .ctx = o.m, .experts = -1 };
    T_CHECK(cdr_weights_write(to, &e, &stat, &err) == CDR_EDATA && !cdr_exists(to));
    T_STR(err.id, "checkpoint.scale");
    close_toy(&o);
    (void)snprintf(keep, sizeof keep, "%s", in_dir("v3-wide"));
    write_single("tiny-v3", keep, CDR_BF16);
    edit(keep, to, &(change){ WIDEN, "model.layers.1.mlp.experts.1.gate_proj.weight", NULL, 0, 0 });
    err = (cdr_err){ 0 };
    T_CHECK(open_toy(to, &o, &err) == CDR_EDATA);
    T_HAS(err.text, "1 of another form: model.layers.1.mlp.experts.1.gate_proj.weight (is of another format than the first expert's)");
    close_toy(&o);
    edit(keep, to, &(change){ WIDEN, "model.norm.weight", NULL, 0, 0 });            /* wider than it need be: read */
    T_CHECK(open_toy(to, &o, &err) == CDR_OK);
    close_toy(&o);
}

static void integers_are_refused(void)
{
    char keep[1024], path[1024];
    opened o;
    cdr_err err = { 0 };
    (void)snprintf(keep, sizeof keep, "%s", in_dir("v3-int4"));
    (void)snprintf(path, sizeof path, "%s", in_dir("v3-int4-changed"));
    write_single("tiny-v3", keep, CDR_BF16);
    char two[1040];
    (void)snprintf(two, sizeof two, "%s-two", path);
    edit(keep, two, &(change){ DROP, "model.layers.1.mlp.experts.0.gate_proj.weight", NULL, 0, 0 });
    edit(two, path, &(change){ ADD, "I32", "model.layers.1.mlp.experts.0.gate_proj.weight_packed", 0, 0 });
    T_CHECK(open_toy(path, &o, &err) == CDR_EDATA);
    T_STR(err.id, "checkpoint.int4");
    T_HAS(err.text, "gate_proj.weight_packed");
    close_toy(&o);
}

/* FP8 with a scale for 128 x 128, also where the matrix ends within a block: values are those of the formula, rounded to BF16. */
static void fp8_blocks(void)
{
    cdr_pair size[] = { { "hidden", "192" }, { "moe.width", "160" } };
    const cdr_pairs sizes = { size, 2 };
    cdr_model_spec spec = { .path = "tiny-v3", .sizes = &sizes };
    cdr_model *m = NULL;
    cdr_err err = { 0 };
    cdr_weights_out_stat stat;
    char path[1024];
    opened o;
    (void)snprintf(path, sizeof path, "%s", in_dir("v3-fp8"));
    T_CHECK(cdr_model_load(&spec, pool, &m, &err) == CDR_OK);
    cdr_weights_out w = { .model = m, .rows = rows_of_values, .ctx = m, .experts = CDR_F8_E4M3 };
    T_CHECK(m && cdr_weights_write(path, &w, &stat, &err) == CDR_OK);
    T_STR(err.text, "");
    T_CHECK(open_toy(path, &o, &err) == CDR_OK);
    T_STR(err.text, "");
    if (!o.w) return;
    int64_t stacks = 0, wrong = 0;
    for (int64_t p = 0; p < cdr_model_params(o.m); p++) {
        cdr_model_part part = cdr_model_param_part(o.m, p);
        if (part.top_k == 0) continue;
        const int64_t N = part.n[1], K = part.n[2], e = 2;
        float *x = cdr_alloc((size_t)(N * K) * 4);
        char name[300];
        cdr_hf_tensor c = { 0 }, s = { 0 };
        const char *stored = cdr_model_stored(o.m, p).name, *mark = strstr(stored, "{expert}");
        (void)snprintf(name, sizeof name, "%.*s%lld%s", (int)(mark - stored), stored, (long long)e, mark + 8);
        T_CHECK(cdr_hf_tensor_at(o.d, cdr_hf_find(o.d, name), &c, &err) == CDR_OK);
        (void)strcat(name, "_scale_inv");
        T_CHECK(cdr_hf_tensor_at(o.d, cdr_hf_find(o.d, name), &s, &err) == CDR_OK);
        T_CHECK(cdr_weights_dtype(o.w, p) == CDR_BF16 && cdr_weights_read(o.w, p, e * N, N, CDR_F32, x, &err) == CDR_OK);
        const int64_t blocks = (K + 127) / 128;
        for (int64_t i = 0; i < N * K; i++) {
            float code, scale;
            cdr_to_f32(CDR_F8_E4M3, (const uint8_t *)c.data + i, &code, 1);
            memcpy(&scale, (const char *)s.data + 4 * (i / K / 128 * blocks + i % K / 128), 4);
            wrong += x[i] != cdr_bf16_to_f32(cdr_f32_to_bf16(code * scale)) || fabsf(x[i] - value(p, e * N * K + i)) > 0.08f;
        }
        stacks++;
        cdr_free(x);
    }
    T_CHECK(stacks > 0 && wrong == 0);
    close_toy(&o);
    char changed[1100];
    (void)snprintf(changed, sizeof changed, "%s-shape", path);
    edit(path, changed, &(change){ SHAPE, "model.layers.1.mlp.experts.1.gate_proj.weight_scale_inv", NULL, 0, 0 });
    T_CHECK(open_toy(changed, &o, &err) == CDR_EDATA);
    T_HAS(err.text, "gate_proj.weight_scale_inv (is F32 [2, 2, 1], the model needs F32 [2, 2])");
    close_toy(&o);
    /* a largest value that BF16 rounded up, beyond 448 scales, still has its block's scale */
    float x[128] = { 0 }, scale = 1.0f, top = 448;
    uint8_t codes[128];
    for (int k = 0; k < 64 && top <= 448 * scale; k++) scale = 1 + (float)k / 64 + 0x1p-10f, top = cdr_bf16_to_f32(cdr_f32_to_bf16(448 * scale));
    x[7] = top;
    const float had = scale;
    cdr__fp8_encode(x, 1, 128, codes, &scale);
    T_CHECK(top > 448 * had && scale == had && codes[7] == 0x7e && codes[6] == 0);
}

/* The values of an FP8 directory again, but for two elements of its first expert: one that fits its block, one that outgrows it. */
typedef struct { cdr_weights *w; int64_t param, at[2]; float x[2]; } two_changed;

static cdr_status rows_but_two(void *ctx, int64_t p, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    two_changed *c = ctx;
    const int64_t cols = 192;
    CDR_CHECK(p == c->param && dtype == CDR_F32);
    CDR_TRY(cdr_weights_read(c->w, p, first, n, dtype, dst, err));
    for (int k = 0; k < 2; k++)
        if (c->at[k] >= first * cols && c->at[k] < (first + n) * cols) ((float *)dst)[c->at[k] - first * cols] = c->x[k];
    return CDR_OK;
}

static const uint8_t *bytes_of(const opened *o, const char *name, cdr_hf_tensor *x)
{
    T_CHECK(cdr_hf_tensor_at(o->d, cdr_hf_find(o->d, name), x, NULL) == CDR_OK);
    return x->data;
}

/* Written again from FP8, a block keeps its scale and every code whose value did not change; a block that outgrows its scale gets a new one, a power of two
 * where it was one. What is measured beforehand is what is read afterwards. */
static void fp8_keeps_scales(void)
{
    static const char NAME[] = "model.layers.1.mlp.experts.0.gate_proj.weight", SCALE[] = "model.layers.1.mlp.experts.0.gate_proj.weight_scale_inv";
    char from[1024], to[1100];
    opened a, b;
    cdr_err err = { 0 };
    cdr_weights_out_stat stat;
    (void)snprintf(from, sizeof from, "%s", in_dir("v3-fp8"));
    for (int two = 0; two < 2; two++) {                    /* two: scales that are powers of two */
        cdr_hf_tensor x, y;
        (void)snprintf(to, sizeof to, "%s-again%d", from, two);
        if (two) {
            char file[1200];
            T_CHECK(open_toy(from, &a, &err) == CDR_OK);
            (void)bytes_of(&a, SCALE, &x);
            (void)snprintf(file, sizeof file, "%s/%s", from, x.shard);
            const float scale[4] = { 0x1p-7f, 0x1p-8f, 0x1p-7f, 0x1p-7f };
            uint64_t header = 0;
            int fd = open(file, O_RDWR);
            T_CHECK(pread(fd, &header, 8, 0) == 8 && pwrite(fd, scale, sizeof scale, (off_t)(8 + header + x.t->begin)) == (ssize_t)sizeof scale);
            (void)close(fd);
            close_toy(&a);
        }
        T_CHECK(open_toy(from, &a, &err) == CDR_OK);
        two_changed c = { .w = a.w, .at = { 3 * 192 + 5, 130 * 192 + 190 }, .x = { 0.25f, 9.0f } };
        while (strncmp(cdr_model_stored(a.m, c.param).name, "model.layers.1.mlp.experts.{expert}.gate", 40) != 0) c.param++;
        bool *touched = cdr_pool_alloc(pool, (size_t)cdr_model_params(a.m));
        touched[c.param] = true;
        cdr_weights_out o = { .model = a.m, .source = a.d, .touched = touched, .rows = rows_but_two, .ctx = &c, .experts = -1 };
        T_CHECK(cdr_weights_write(to, &o, &stat, &err) == CDR_OK);
        T_STR(err.text, "");
        T_CHECK(open_toy(to, &b, &err) == CDR_OK);
        const uint8_t *was = bytes_of(&a, NAME, &x), *is = bytes_of(&b, NAME, &y);
        int64_t differ = 0, outside = 0, grown = 0;
        for (int64_t i = 0; i < 160 * 192; i++) {
            bool last = i / 192 >= 128 && i % 192 >= 128;
            differ += was[i] != is[i];
            outside += was[i] != is[i] && !last && i != c.at[0];
            grown += was[i] != is[i] && last;
        }
        T_CHECK(differ > 2 && outside == 0 && grown > 1 && was[c.at[0]] != is[c.at[0]]);
        float old[4], new[4], z[160 * 192], want[160 * 192];
        memcpy(old, bytes_of(&a, SCALE, &x), sizeof old);
        memcpy(new, bytes_of(&b, SCALE, &x), sizeof new);
        T_CHECK(memcmp(old, new, 12) == 0 && new[3] == (two ? 0x1p-5f : 9.0f / 448));
        T_CHECK(cdr_weights_read(a.w, c.param, 0, 160, CDR_F32, want, &err) == CDR_OK && cdr_weights_read(b.w, c.param, 0, 160, CDR_F32, z, &err) == CDR_OK);
        for (int k = 0; k < 2; k++) want[c.at[k]] = c.x[k];
        cdr_weights_round_fp8(160, 192, old, want);
        T_CHECK(memcmp(want, z, sizeof z) == 0);
        close_toy(&a);
        close_toy(&b);
    }
}

/* Parts of a fused tensor: the file has gate and up in one; one of them may change alone. */
static const char FUSED[] =
    "extends: tiny-v3\n"
    "name: fused\n"
    "tensors:\n"
    "  glu: {\"gate|up\": none, gate: [gate_up_proj.weight, [width, hidden], BF16, {split: [0, 2, 0]}],\n"
    "        up: [gate_up_proj.weight, [width, hidden], BF16, {split: [0, 2, 1]}], down: [down_proj.weight, [hidden, width]]}\n";

typedef struct { cdr_model *m; int64_t changed; } other_values;

static cdr_status rows_with_one_changed(void *ctx, int64_t p, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    other_values *o = ctx;
    return rows_of_values(o->m, p, first + (p == o->changed), n, dtype, dst, err);        /* the row after it */
}

static void fused_tensors(void)
{
    cdr_model *m = NULL;
    cdr_hf *d = NULL;
    cdr_weights *w = NULL;
    cdr_err err = { 0 };
    cdr_weights_out_stat stat;
    char path[1024], next[1040];
    (void)snprintf(path, sizeof path, "%s", in_dir("fused"));
    (void)snprintf(next, sizeof next, "%s-next", path);
    cdr_model_spec spec = { .path = "fused.yaml" };
    T_CHECK(cdr_model_parse(&spec, FUSED, sizeof FUSED - 1, "fused.yaml", pool, &m, &err) == CDR_OK);
    T_STR(err.text, "");
    if (!m) return;
    cdr_weights_out o = { .model = m, .rows = rows_of_values, .ctx = m, .experts = CDR_BF16 };
    T_CHECK(cdr_weights_write(path, &o, &stat, &err) == CDR_OK);
    T_STR(err.text, "");
    T_CHECK(cdr_hf_open(path, &d, &err) == CDR_OK && cdr_weights_open(m, d, &w, &err) == CDR_OK);
    T_STR(err.text, "");
    if (!w) return;
    bool touched[4096] = { false };
    other_values v = { m, -1 };
    int fused = 0;
    for (int64_t p = 0; p < cdr_model_params(m); p++) {
        cdr_model_row row = cdr_model_stored(m, p);
        cdr_model_part part = cdr_model_param_part(m, p);
        if (row.split_n != 2) continue;
        float *x = cdr_alloc((size_t)(part.n[0] * part.n[1]) * 4);
        cdr_hf_tensor t = { 0 };
        int64_t wrong = 0;
        T_CHECK(cdr_weights_read(w, p, 0, part.n[0], CDR_F32, x, &err) == CDR_OK);
        for (int64_t i = 0; i < part.n[0] * part.n[1]; i++) wrong += x[i] != value(p, i);
        T_CHECK(cdr_hf_tensor_at(d, cdr_hf_find(d, row.name), &t, &err) == CDR_OK && t.t->n[0] == 2 * part.n[0]);
        uint16_t at_begin;
        memcpy(&at_begin, (const char *)t.data + row.split_i * part.n[0] * part.n[1] * 2, 2);
        T_CHECK(wrong == 0 && cdr_bf16_to_f32(at_begin) == value(p, 0));
        cdr_free(x);
        if (row.split_i == 1) v.changed = p;
        fused++;
    }
    T_CHECK(fused == 2);                                       /* one dense layer */
    touched[v.changed] = true;                                 /* up alone: gate comes from the source */
    o = (cdr_weights_out){ .model = m, .source = d, .touched = touched, .rows = rows_with_one_changed, .ctx = &v, .experts = -1 };
    T_CHECK(cdr_weights_write(next, &o, &stat, &err) == CDR_OK && stat.copied == stat.tensors - 1);
    cdr_hf *d2 = NULL;
    cdr_weights *w2 = NULL;
    T_CHECK(cdr_hf_open(next, &d2, &err) == CDR_OK && cdr_weights_open(m, d2, &w2, &err) == CDR_OK);
    for (int64_t p = 0; w2 && p < cdr_model_params(m); p++) {
        cdr_model_part part = cdr_model_param_part(m, p);
        float x[4096];
        const int64_t cols = part.n[part.n_dim - 1], off = p == v.changed ? cols : 0;
        if (cdr_model_stored(m, p).split_n != 2) continue;
        T_CHECK(cdr_weights_read(w2, p, 0, 1, CDR_F32, x, &err) == CDR_OK && x[0] == value(p, off) && x[cols - 1] == value(p, off + cols - 1));
    }
    cdr_weights_close(w2);
    cdr_hf_close(d2);
    cdr_weights_close(w);
    cdr_hf_close(d);
    /* a description that leaves a part of it */
    static const char LEFT[] = "extends: tiny-v3\nname: left\ntensors:\n  glu: {\"gate|up\": none,\n"
                               "        gate: [gate_up_proj.weight, [width, hidden], BF16, {split: [0, 2, 0]}],\n"
                               "        up: [up_proj.weight, [width, hidden]], down: [down_proj.weight, [hidden, width]]}\n";
    w = NULL;
    T_CHECK(cdr_model_parse(&spec, LEFT, sizeof LEFT - 1, "left.yaml", pool, &m, &err) == CDR_OK && cdr_hf_open(path, &d, &err) == CDR_OK);
    T_CHECK(cdr_weights_open(m, d, &w, &err) == CDR_EDATA);
    T_HAS(err.text, "1 missing: model.layers.0.mlp.up_proj.weight; 1 of another form: model.layers.0.mlp.gate_up_proj.weight (only a part of it is used)");
    cdr_weights_close(w);
    cdr_hf_close(d);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("weight-formats")) return 1;
    pool = cdr_pool_new();
    T_RUN(packed_codes_are_exact);
    T_RUN(scales_of_zeros_and_of_what_is_small);
    T_RUN(scales_are_checked);
    T_RUN(packed_experts_come_back);
    T_RUN(broken_and_mixed_stacks);
    T_RUN(integers_are_refused);
    T_RUN(fp8_blocks);
    T_RUN(fp8_keeps_scales);
    T_RUN(fused_tensors);
    cdr_pool_free(pool);
    files_close();
    return t_end();
}
