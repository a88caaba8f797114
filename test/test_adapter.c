/* test_adapter.c: adapter files. Every layout is written and read again and gives the same scale B A; what lies in a file is checked against
 * the layouts' own formulas (expert-major rows, rank-major columns, padding, folded scales); what is wrong is refused; what a consumer would drop is
 * said. GGUF bytes: test/golden/adapter.gguf, made by the PyPI package gguf (tools/peers/adapter_golden.py). */
#include "adapter/adapter.h"
#include "files.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char KIMI_LINEAR[] =
    "extends: kimi_linear\nname: toy\nfamily: kimi_linear\n"
    "sizes:\n  {hidden: 32, vocab: 512, n_layers: 3, full_layers: [3], kda: {heads: 2, dim: 16}, mla: {heads: 2, kv_lora: 16, nope: 16, ext: 8, v: 24},\n"
    "   glu: {width: 48}, moe: {experts: 4, top_k: 2, width: 24, shared: 1}}\n";
static const char KIMI_K3[] =
    "extends: kimi_k3\nname: toy\nfamily: kimi_k3\n"
    "sizes:\n  {hidden: 32, vocab: 512, n_layers: 3, full_layers: [3], attn_block: 2, kda: {heads: 2, dim: 16},\n"
    "   mla: {heads: 2, q_lora: 16, kv_lora: 16, nope: 16, ext: 8, v: 16},\n"
    "   glu: {width: 48}, moe: {experts: 4, top_k: 2, latent: 32, width: 64, shared: 1}}\n";
static const char DEEPSEEK[] =
    "extends: deepseek_v32\nname: toy\nfamily: deepseek_v32\n"
    "sizes:\n  {hidden: 32, vocab: 512, n_layers: 3, first_dense: 1, mla: {heads: 2, q_lora: 16, kv_lora: 16, nope: 16, ext: 8, v: 16},\n"
    "   index: {heads: 2, dim: 16, top_k: 8}, glu: {width: 48}, moe: {experts: 4, top_k: 2, width: 24, shared: 1, groups: 2, top_groups: 1}}\n";

static cdr_model *model_of(const char *text, cdr_pool *pool)
{
    cdr_model *m = NULL;
    cdr_err err = { 0 };
    if (cdr_model_parse(&(cdr_model_spec){ 0 }, text, strlen(text), "toy.yaml", pool, &m, &err) != CDR_OK) {
        fprintf(stderr, "  %s\n", err.text);
        T_CHECK(false);
    }
    return m;
}

static float value(uint64_t stream, int64_t i)      /* exact in BF16, also times a power of two */
{
    uint64_t k = (uint64_t)i;
    return (float)((int)((k * k * 7 + k * 101 + stream * 37) % 251) - 125) / 64;
}

/* which: 'e' experts, 'l' linears, 'a' both. Ranks 4 and, of experts, 2; scales 2 and, of experts, 0.5. */
typedef struct { char which; bool shared, uneven; } recipe;

static cdr_lora_set make_set(const cdr_model *m, cdr_pool *pool, recipe c)
{
    cdr_lora_set s = { .source = "test", .step = 7, .base = "bases/toy", .base_hash = 0x91c4e0d7a2b35f18u, .has_hash = true };
    const cdr__lora_names *names;
    cdr_err err = { 0 };
    T_CHECK(cdr__lora_names_make(m, pool, &names, &err) == CDR_OK);
    s.pair = cdr_pool_alloc(pool, sizeof *s.pair * (size_t)cdr_model_params(m));
    const float *shared_a[64] = { NULL };
    for (int64_t i = 0; i < cdr_model_params(m); i++) {
        int64_t E, N, K;
        if (!cdr__lora_shape(m, i, &E, &N, &K) || (E > 0 && c.which == 'l') || (E == 0 && c.which == 'e')) continue;
        cdr_lora_pair *p = &s.pair[s.n];
        int layer = cdr_model_param_part(m, i).layer;
        cdr__role role = cdr__lora_role(m, i);
        *p = (cdr_lora_pair){ .i_param = i, .rank = E > 0 ? 2 : 4, .scale = E > 0 ? 0.5f : 2.0f, .experts = E, .N = N, .K = K, .n_keys = 2 };
        if (c.uneven && s.n % 5 == 1) p->rank = 3;
        if (c.uneven && s.n % 7 == 2) p->scale = 4.0f;
        p->n_a = E == 0 || (c.shared && role != CDR__ROLE_DOWN) ? 1 : E;
        p->n_b = E == 0 || (c.shared && role == CDR__ROLE_DOWN) ? 1 : E;
        float *a = cdr_pool_alloc(pool, sizeof *a * (size_t)(p->n_a * p->rank * K)), *b = cdr_pool_alloc(pool, sizeof *b * (size_t)(p->n_b * N * p->rank));
        for (int64_t k = 0; k < p->n_a * p->rank * K; k++) a[k] = value((uint64_t)i * 2, k);
        for (int64_t k = 0; k < p->n_b * N * p->rank; k++) b[k] = value((uint64_t)i * 2 + 1, k);
        p->a = a;
        p->b = b;
        if (c.shared && E > 0 && role != CDR__ROLE_DOWN) {
            if (!shared_a[layer]) shared_a[layer] = a;
            p->a = shared_a[layer];
        }
        s.n++;
    }
    return s;
}

static const cdr_lora_pair *find_pair(const cdr_lora_set *s, int64_t i_param)
{
    for (int i = 0; i < s->n; i++) if (s->pair[i].i_param == i_param) return &s->pair[i];
    return NULL;
}

/* All of scale B A, by the definition. */
static double delta(const cdr_lora_pair *p, int64_t e, int64_t n, int64_t k)
{
    double s = 0;
    for (int64_t h = 0; h < p->rank; h++)
        s += (double)p->b[((p->n_b == 1 ? 0 : e) * p->N + n) * p->rank + h] * (double)p->a[((p->n_a == 1 ? 0 : e) * p->rank + h) * p->K + k];
    return s * (double)p->scale;
}

static void check_same(const cdr_lora_set *got, const cdr_lora_set *want, const cdr_model *m, double tolerance)
{
    for (int i = 0; i < want->n; i++) {
        const cdr_lora_pair *y = &want->pair[i], *x = find_pair(got, y->i_param);
        double worst = 0;
        if (!x) {
            fprintf(stderr, "  %s is missing\n", cdr_model_param(m, y->i_param));
            T_CHECK(x != NULL);
            continue;
        }
        for (int64_t e = 0; e < CDR_MAX(y->experts, (int64_t)1); e++)
            for (int64_t n = 0; n < y->N; n++)
                for (int64_t k = 0; k < y->K; k++) worst = fmax(worst, fabs(delta(x, e, n, k) - delta(y, e, n, k)));
        if (worst > tolerance) fprintf(stderr, "  %s: %g\n", cdr_model_param(m, y->i_param), worst);
        T_CHECK(worst <= tolerance);
    }
}

static cdr_status write_set(const char *format, const cdr_model *m, const cdr_lora_set *s, bool allow, const char *name, cdr_lora_report *rep, cdr_err *err)
{
    cdr_lora_out o = { .format = format, .set = s, .model = m, .allow_drop = allow, .base_name = s->base, .base_hash = s->base_hash, .has_hash = s->has_hash };
    *err = (cdr_err){ 0 };
    return cdr_lora_write(in_dir(name), &o, rep, err);
}

/* Written and read again: scale B A is the same to the last bit, as all values and scales are exact. */
static void round_trip(const char *text, const char *format, recipe c)
{
    static int k;
    char name[40];
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(text, pool);
    cdr_lora_set want = make_set(m, pool, c), got;
    cdr_lora_report rep = { 0 };
    cdr_err err = { 0 };
    (void)snprintf(name, sizeof name, "trip%d", k++);
    cdr_status st = write_set(format, m, &want, true, name, &rep, &err);
    if (st != CDR_OK) fprintf(stderr, "  %s: %s\n", format, err.text);
    T_CHECK(st == CDR_OK);
    if (st == CDR_OK && strcmp(format, "gguf") != 0) {
        st = cdr_lora_read(in_dir(name), m, pool, &got, &err);
        if (st != CDR_OK) fprintf(stderr, "  %s: %s\n", format, err.text);
        T_CHECK(st == CDR_OK && got.has_hash && got.base_hash == want.base_hash && got.step == -1);
        T_STR(got.base, "bases/toy");
        if (st == CDR_OK && rep.dropped == 0) check_same(&got, &want, m, 0);
        if (st == CDR_OK) for (int i = 0; i < got.n; i++) T_CHECK(!got.pair[i].untargeted);
    }
    T_CHECK(rep.bytes > 0 && !cdr_exists(cdr_pool_printf(pool, "%s.partial", in_dir(name))));
    cdr_pool_free(pool);
}

static void layouts_round_trip(void)
{
    static const char *const text[] = { KIMI_LINEAR, KIMI_K3, DEEPSEEK };
    static const recipe what[] = { { 'a', false, false }, { 'a', true, false }, { 'a', false, true }, { 'e', false, false }, { 'e', true, true }, { 'l', false, true } };
    for (int t = 0; t < CDR_COUNT(text); t++)
        for (int i = 0; i < CDR_COUNT(what); i++) {
            round_trip(text[t], "peft", what[i]);
            if (t != 1) round_trip(text[t], "peft-stacked", what[i]);
            round_trip(text[t], "sglang", what[i]);
            round_trip(text[t], "vllm", what[i]);
            if (t == 0) round_trip(text[t], "gguf", what[i]);
        }
}

/* ---- what lies in a file -------------------------------------------------------------------------------------------------------------- */

static cdr_st *open_st(const char *name)
{
    cdr_st *st = NULL;
    cdr_err err = { 0 };
    char path[1300];
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", in_dir(name));
    T_CHECK(cdr_st_open(path, &st, &err) == CDR_OK);
    return st;
}

static float *tensor(cdr_st *st, cdr_pool *pool, const char *name, int64_t n0, int64_t n1, int64_t n2)
{
    const cdr_st_tensor *t = cdr_st_find(st, name);
    int64_t n[] = { n0, n1, n2 }, all = 1, dims = n2 > 0 ? 3 : 2;
    if (!t) fprintf(stderr, "  no %s\n", name);
    T_CHECK(t != NULL);
    if (!t) return NULL;
    T_CHECK(t->n_dim == dims);
    for (int d = 0; d < dims; d++) {
        T_CHECK(t->n[d] == n[d]);
        all *= n[d];
    }
    float *x = cdr_pool_alloc(pool, sizeof *x * (size_t)all);
    cdr_to_f32(t->dtype, cdr_st_data(st, t), x, all);
    return x;
}

static int64_t param(const cdr_model *m, const char *name)
{
    for (int64_t i = 0; i < cdr_model_params(m); i++) if (strcmp(cdr_model_param(m, i), name) == 0) return i;
    fprintf(stderr, "  no %s\n", name);
    T_CHECK(false);
    return 0;
}

/* PEFT's formula on the raw file: delta[e, o, i] = s sum_r B[o, r E + e] A[e R + r, i], gate first, then up. */
static void wrapper_is_peft_s(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    for (int shared = 0; shared < 2; shared++) {
        cdr_lora_set set = make_set(m, pool, (recipe){ 'e', shared, false });
        cdr_lora_report rep;
        cdr_err err;
        const char *name = shared ? "wrap1" : "wrap0";
        T_CHECK(write_set("peft-stacked", m, &set, false, name, &rep, &err) == CDR_OK);
        cdr_st *st = open_st(name);
        if (!st) break;
        int64_t E = 4, K = 32, F = 24, R = shared ? 2 : 4;
        const char *at = "base_model.model.model.layers.1.mlp.experts";
        float *ga = tensor(st, pool, cdr_pool_printf(pool, "%s.base_layer.lora_A.weight", at), R * E, K, 0);
        float *gb = tensor(st, pool, cdr_pool_printf(pool, "%s.base_layer.lora_B.weight", at), 2 * F, R * E, 0);
        float *da = tensor(st, pool, cdr_pool_printf(pool, "%s.lora_A.weight", at), 2 * E, F, 0);
        float *db = tensor(st, pool, cdr_pool_printf(pool, "%s.lora_B.weight", at), K, 2 * E, 0);
        const cdr_lora_pair *w1 = find_pair(&set, param(m, "model.layers.1.block_sparse_moe.experts.{expert}.w1.weight"));
        const cdr_lora_pair *w3 = find_pair(&set, param(m, "model.layers.1.block_sparse_moe.experts.{expert}.w3.weight"));
        const cdr_lora_pair *w2 = find_pair(&set, param(m, "model.layers.1.block_sparse_moe.experts.{expert}.w2.weight"));
        for (int64_t e = 0; e < E && ga && gb && da && db; e++)
            for (int64_t o = 0; o < 2 * F; o++)
                for (int64_t i = 0; i < K; i++) {
                    double x = 0, y = 0;
                    for (int64_t r = 0; r < R; r++) x += 0.5 * (double)gb[o * R * E + r * E + e] * (double)ga[(e * R + r) * K + i];
                    T_CHECK(x == (o < F ? delta(w1, e, o, i) : delta(w3, e, o - F, i)));
                    if (o >= K || i >= F) continue;
                    for (int64_t r = 0; r < 2; r++) y += 0.5 * (double)db[o * 2 * E + r * E + e] * (double)da[(e * 2 + r) * F + i];
                    T_CHECK(y == delta(w2, e, o, i));
                }
        cdr_st_close(st);
    }
    cdr_pool_free(pool);
}

static char *file_text(cdr_pool *pool, const char *name, const char *file)
{
    char *text = NULL, path[1300];
    size_t n;
    cdr_err err = { 0 };
    (void)snprintf(path, sizeof path, "%s/%s", in_dir(name), file);
    if (cdr_file_read(path, 1 << 22, &text, &n, &err) != CDR_OK) return cdr_pool_strdup(pool, "");
    char *out = cdr_pool_strdup(pool, text);
    cdr_free(text);
    return out;
}

/* SGLang: outer factors once, [1, r, K] and [1, N, r]; one rank, one scale; a missing sibling as zeros. */
static void sglang_layout(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_K3, pool);
    cdr_lora_set set = make_set(m, pool, (recipe){ 'a', true, true });
    cdr_lora_report rep;
    cdr_err err;
    int64_t up = param(m, "language_model.model.layers.0.mlp.up_proj.weight");
    for (int i = 0; i < set.n; i++) if (set.pair[i].i_param == up) set.pair[i] = set.pair[--set.n];
    T_CHECK(write_set("sglang", m, &set, false, "sg", &rep, &err) == CDR_EUSER);
    T_STR(err.id, "adapter.drop");
    T_HAS(err.text, "self_attn.g_proj (6)");
    T_HAS(err.text, "no LoRA module of that name");
    T_CHECK(!cdr_exists(in_dir("sg")));
    T_CHECK(write_set("sglang", m, &set, true, "sg", &rep, &err) == CDR_OK);
    T_CHECK(rep.rank == 4 && rep.padded > 0 && rep.folded > 0 && rep.dropped > 0 && rep.filled == 2);
    cdr_st *st = open_st("sg");
    if (st) {
        const char *at = "base_model.model.language_model.model.layers.1.block_sparse_moe.experts";
        float *a1 = tensor(st, pool, cdr_pool_printf(pool, "%s.w1.lora_A.weight", at), 1, 4, 32), *a3 = tensor(st, pool, cdr_pool_printf(pool, "%s.w3.lora_A.weight",
            at), 1, 4, 32);
        tensor(st, pool, cdr_pool_printf(pool, "%s.w1.lora_B.weight", at), 4, 64, 4);
        tensor(st, pool, cdr_pool_printf(pool, "%s.w2.lora_A.weight", at), 4, 4, 64);
        tensor(st, pool, cdr_pool_printf(pool, "%s.w2.lora_B.weight", at), 1, 32, 4);
        T_CHECK(a1 && a3 && memcmp(a1, a3, sizeof *a1 * 2 * 32) == 0);
        float *z = tensor(st, pool, "base_model.model.language_model.model.layers.0.mlp.up_proj.lora_B.weight", 48, 4, 0);
        for (int i = 0; z && i < 48 * 4; i++) T_CHECK(z[i] == 0);
        T_CHECK(cdr_st_find(st, "base_model.model.language_model.model.layers.0.self_attn.g_proj.lora_A.weight") == NULL);
        T_STR(cdr_st_meta(st, "format"), "pt");
        T_STR(cdr_st_meta(st, "cadre.base_hash"), "91c4e0d7a2b35f18");
        cdr_st_close(st);
    }
    char *config = file_text(pool, "sg", "adapter_config.json");
    T_HAS(config, "\"r\": 4,");
    T_HAS(config, "\"rank_pattern\": {},");
    T_HAS(config, "\"alpha_pattern\": {},");
    T_HAS(config, "\"target_modules\": [\n");
    T_HAS(config, "\"kv_a_proj_with_mqa\"");
    cdr_pool_free(pool);
}

/* vLLM: ranks of its list, 2-D for every expert; the same outputs as the ranks and scales that were trained. */
static void uniform_equals_own(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    cdr_lora_set want = make_set(m, pool, (recipe){ 'e', false, true }), got;
    cdr_lora_report rep;
    cdr_err err;
    T_CHECK(write_set("vllm", m, &want, false, "vl", &rep, &err) == CDR_OK);
    T_CHECK(rep.rank == 8 && rep.padded == want.n && rep.folded > 0 && rep.tensors == want.n * 4 * 2);
    T_CHECK(cdr_lora_read(in_dir("vl"), m, pool, &got, &err) == CDR_OK);
    check_same(&got, &want, m, 0);
    for (int i = 0; i < got.n; i++) T_CHECK(got.pair[i].rank == 8 && got.pair[i].scale == got.pair[0].scale);
    cdr_lora_out o = { .format = "vllm", .set = &want, .model = m, .rank = 12 };
    T_CHECK(cdr_lora_write(in_dir("vl12"), &o, &rep, &err) == CDR_EUSER);
    T_HAS(err.text, "rank 12 is none that vLLM takes");
    err = (cdr_err){ 0 };
    o.rank = 1;
    T_CHECK(cdr_lora_write(in_dir("vl1"), &o, &rep, &err) == CDR_EUSER);
    T_HAS(err.text, "never cut");
    err = (cdr_err){ 0 };
    o = (cdr_lora_out){ .format = "peft", .set = &want, .model = m, .rank = 6, .allow_drop = true };
    T_CHECK(cdr_lora_write(in_dir("pf6"), &o, &rep, &err) == CDR_OK && rep.rank == 6);
    T_CHECK(cdr_lora_read(in_dir("pf6"), m, pool, &got, &err) == CDR_OK);
    check_same(&got, &want, m, 0);
    cdr_pool_free(pool);
}

/* Ranks and alphas of kinds that differ come back through patterns; rsLoRA of others is read. */
static void patterns(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    cdr_lora_set want = make_set(m, pool, (recipe){ 'a', false, false }), got;
    cdr_lora_report rep;
    cdr_err err;
    T_CHECK(write_set("peft", m, &want, true, "pat", &rep, &err) == CDR_OK);
    char *config = file_text(pool, "pat", "adapter_config.json");
    T_HAS(config, "\"block_sparse_moe\\\\.experts\\\\.\\\\d+\\\\.w1\": 2");
    T_HAS(config, "\"lora_alpha\": 8,");
    T_HAS(config, "\"peft_type\": \"LORA\"");
    T_CHECK(strlen(config) < 4000 && config[0] == '{' && config[strlen(config) - 1] == '}');
    /* the same tensors under rsLoRA: alpha / sqrt(rank) */
    char *at = strstr(config, "\"use_rslora\": false");
    if (at) memcpy(at, "\"use_rslora\": true ", 19);
    char path[1300];
    (void)snprintf(path, sizeof path, "%s/adapter_config.json", in_dir("pat"));
    put_text(path, config);
    T_CHECK(cdr_lora_read(in_dir("pat"), m, pool, &got, &err) == CDR_OK && got.rslora);
    const cdr_lora_pair *o = find_pair(&got, param(m, "model.layers.0.self_attn.o_proj.weight")), *w1 = find_pair(&got, param(m,
        "model.layers.1.block_sparse_moe.experts.{expert}.w1.weight"));
    T_CHECK(o && o->scale == 4.0f);
    T_CHECK(w1 && w1->scale == (float)(1.0 / sqrt(2.0)));
    T_CHECK(cdr__lora_alpha(2.0f, 16) == 32 && cdr__lora_alpha((float)(10.0 / 3), 3) == 10 && cdr__lora_alpha((float)(0.3 / 7), 7) == 0.3);
    cdr_pool_free(pool);
}

/* ---- what is refused -------------------------------------------------------------------------------------------------------------------- */

typedef struct { const char *name; int64_t n[3]; int dims, format; } spec;

static void make_dir(const char *name, const char *config, const spec *s, int n, float fill)
{
    cdr_st_spec specs[8] = { { 0 } };
    cdr_st_writer *w = NULL;
    cdr_err err = { 0 };
    static float zero[65536];
    static uint16_t raw[65536];
    (void)mkdir(in_dir(name), 0755);
    char path[1300];
    (void)snprintf(path, sizeof path, "%s/adapter_config.json", in_dir(name));
    put_text(path, config);
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", in_dir(name));
    for (int i = 0; i < n; i++) {
        specs[i] = (cdr_st_spec){ .name = s[i].name, .format = cdr_st_format_by_name(s[i].format ? "I64" : "F32"), .n_dim = s[i].dims };
        memcpy(specs[i].n, s[i].n, sizeof s[i].n);
    }
    for (int i = 0; i < 65536; i++) zero[i] = fill;
    (void)raw;
    T_CHECK(cdr_st_create(path, specs, n, NULL, 0, &w, &err) == CDR_OK);
    for (int i = 0; i < n && w; i++) {
        const spec *t = &s[cdr_st_writer_order(w, i)];
        int64_t all = 1;
        for (int d = 0; d < t->dims; d++) all *= t->n[d];
        T_CHECK(cdr_st_append(w, zero, (size_t)all * (t->format ? 8 : 4), &err) == CDR_OK);
    }
    if (w) T_CHECK(cdr_st_finish(w, NULL, NULL, &err) == CDR_OK);
}

static void refused(const char *config, const spec *s, int n, float fill, const char *id, const char *text)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    cdr_lora_set set;
    cdr_err err = { 0 };
    make_dir("bad", config, s, n, fill);
    cdr_status st = cdr_lora_read(in_dir("bad"), m, pool, &set, &err);
    T_CHECK(st == CDR_EDATA);
    T_STR(err.id, id);
    T_HAS(err.text, text);
    cdr_pool_free(pool);
}

#define O "base_model.model.model.layers.0.self_attn.o_proj"
#define X "base_model.model.model.layers.1.mlp.experts"
static const char GOOD[] = "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": [\"o_proj\", \"w1\"]}";

static void wrong_tensors_are_refused(void)
{
    const spec a = { O ".lora_A.weight", { 4, 32 }, 2, 0 }, b = { O ".lora_B.weight", { 32, 4 }, 2, 0 };
    refused(GOOD, (spec[]){ a }, 1, 1, "adapter.half", "has lora_A and no lora_B");
    refused(GOOD, (spec[]){ a, { O ".lora_B.weight", { 4, 32 }, 2, 0 } }, 2, 1, "adapter.shape", "o_proj.lora_B.weight is [4, 32]");
    refused(GOOD, (spec[]){ { O ".lora_A.weight", { 4, 33 }, 2, 0 }, b }, 2, 1, "adapter.shape", "needs [rank, 32]");
    refused(GOOD, (spec[]){ { O ".lora_A.weight", { 3, 32 }, 2, 0 }, b }, 2, 1, "adapter.rank", "need one rank");
    refused(GOOD, (spec[]){ { O ".lora_A.weight", { 2, 32 }, 2, 0 }, { O ".lora_B.weight", { 32, 2 }, 2, 0 } }, 2, 1, "adapter.rank", "says rank 4");
    refused(GOOD, (spec[]){ a, b, { "base_model.model.model.layers.0.self_attn.out_proj.lora_A.weight", { 4, 32 }, 2, 0 } }, 3, 1, "adapter.unknown-key",
            "1 of 3 keys bind to nothing of toy: base_model.model.model.layers.0.self_attn.out_proj.lora_A.weight");
    refused(GOOD, (spec[]){ a, b, { "model.layers.0.self_attn.o_proj.lora_A.weight", { 4, 32 }, 2, 0 } }, 3, 1, "adapter.twice", "is there twice");
    refused(GOOD, (spec[]){ a, b, { O ".lora_magnitude_vector", { 32, 1 }, 2, 0 } }, 3, 1, "adapter.unknown-key", "lora_magnitude_vector");
    refused(GOOD, (spec[]){ a, { O ".lora_B.weight", { 32, 4 }, 2, 1 } }, 2, 1, "adapter.dtype", "F32, BF16 or F16");
    refused(GOOD, (spec[]){ a, b }, 2, NAN, "adapter.nonfinite", "is NaN");
    refused(GOOD, (spec[]){ { X ".0.w1.lora_A.weight", { 4, 32 }, 2, 0 }, { X ".0.w1.lora_B.weight", { 24, 4 }, 2, 0 } }, 2, 1, "adapter.experts",
            "3 of 4 experts have no adapter");
    refused(GOOD, (spec[]){ { X ".4.w1.lora_A.weight", { 4, 32 }, 2, 0 } }, 1, 1, "adapter.unknown-key", "the model has 4 experts");
    refused(GOOD, (spec[]){ { X ".01.w1.lora_A.weight", { 4, 32 }, 2, 0 } }, 1, 1, "adapter.unknown-key", "experts.01.w1");
    refused(GOOD, (spec[]){ { X ".{expert}.w1.lora_A.weight", { 4, 32 }, 2, 0 } }, 1, 1, "adapter.unknown-key", "{expert}");
    refused(GOOD, (spec[]){ { X ".0.gate_proj.lora_A.weight", { 4, 32 }, 2, 0 } }, 1, 1, "adapter.unknown-key", "experts.0.gate_proj");      /* no name of this index */
    refused(GOOD, (spec[]){ { X ".w1.lora_A.weight", { 3, 4, 32 }, 3, 0 } }, 1, 1, "adapter.shape", "[1 or 4, rank, 32]");
    refused(GOOD, (spec[]){ { X ".lora_A.weight", { 16, 32 }, 2, 0 } }, 1, 1, "adapter.unknown-key", "experts.lora_A");          /* no target_parameters */
    refused(GOOD, NULL, 0, 1, "adapter.empty", "no tensors");
}

static void wrong_configurations_are_refused(void)
{
    const spec s[] = { { O ".lora_A.weight", { 4, 32 }, 2, 0 }, { O ".lora_B.weight", { 32, 4 }, 2, 0 } };
    static const struct { const char *more, *id, *text; } rows[] = {
        { "\"use_dora\": true", "adapter.unsupported", "DoRA" }, { "\"modules_to_save\": [\"lm_head\"]", "adapter.unsupported", "modules_to_save" },
        { "\"bias\": \"all\"", "adapter.unsupported", "bias" }, { "\"lora_bias\": true", "adapter.unsupported", "lora_bias" },
        { "\"lora_dropout\": 0.05", "adapter.unsupported", "lora_dropout" }, { "\"init_lora_weights\": \"pissa_niter_16\"", "adapter.unsupported", "changed the base" },
        { "\"fan_in_fan_out\": true", "adapter.unsupported", "transposed" }, { "\"layer_replication\": [[0, 2]]", "adapter.unsupported", "layers" },
        { "\"rank_pattern\": {\"a{1,1000}\": 4}", "adapter.pattern", "a{1,1000}" }, { "\"rank_pattern\": {\"(a)\\\\1\": 4}", "adapter.pattern", "no expression" },
        { "\"rank_pattern\": {\"o_proj\": 0}", "adapter.config", "rank_pattern" }, { "\"rank_pattern\": {\"o_proj\": 2.5}", "adapter.config", "whole number" },
        { "\"alpha_pattern\": [1]", "adapter.config", "alpha_pattern" }, { "\"target_modules\": 3", "adapter.config", "target_modules" },
        { "\"target_modules\": [\"o_proj\", 3]", "adapter.config", "target_modules[1]" },
    };
    for (int i = 0; i < CDR_COUNT(rows); i++) {
        char config[300];
        (void)snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, %s}", rows[i].more);
        refused(config, s, 2, 1, rows[i].id, rows[i].text);
    }
    char deep[400] = "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": \"";          /* what regcomp would recurse over */
    for (int i = 0; i < 40; i++) (void)strcat(deep, "(");
    (void)strcat(deep, "a");
    for (int i = 0; i < 40; i++) (void)strcat(deep, ")");
    (void)strcat(deep, "\"}");
    refused(deep, s, 2, 1, "adapter.pattern", "nested up to 32");
    refused("{\"peft_type\": \"LOHA\", \"r\": 4, \"lora_alpha\": 8}", s, 2, 1, "adapter.config", "LOHA");
    refused("{\"peft_type\": \"LORA\", \"lora_alpha\": 8}", s, 2, 1, "adapter.config", "r is missing");
    refused("{\"peft_type\": \"LORA\", \"r\": 4}", s, 2, 1, "adapter.config", "lora_alpha is missing");
    refused("[]", s, 2, 1, "adapter.config", "no object");
}

/* ---- consumers -------------------------------------------------------------------------------------------------------------------------- */

static void serve(const cdr_model *m, const cdr_lora_set *s, const char *consumer, int64_t dropped, const char *what)
{
    cdr_lora_serve r;
    cdr_err err = { 0 };
    T_CHECK(cdr_lora_serve_set(s, m, consumer, &r, &err) == CDR_OK);
    if (r.dropped != dropped) fprintf(stderr, "  %s: drops %lld: %s\n", consumer, (long long)r.dropped, r.what);
    T_CHECK(r.dropped == dropped && r.bound + r.dropped == r.keys);
    T_HAS(r.what, what);
}

static void consumers_say_what_they_drop(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    cdr_lora_set set = make_set(m, pool, (recipe){ 'l', false, false }), got;
    cdr_lora_report rep;
    cdr_err err = { 0 };
    for (int i = set.n - 1; i >= 0; i--) if (!strstr(cdr_model_param(m, set.pair[i].i_param), "o_proj")) set.pair[i] = set.pair[--set.n];
    T_CHECK(set.n == 3);
    serve(m, &set, "peft", 0, "");
    serve(m, &set, "sglang", 0, "");
    serve(m, &set, "gguf", 4, "self_attn.o_proj (4): llama.cpp's graph multiplies without adapters here");          /* of KDA; MLA's is applied */
    cdr_lora_set all = make_set(m, pool, (recipe){ 'e', false, true });
    T_CHECK(write_set("peft", m, &all, false, "c1", &rep, &err) == CDR_EUSER);
    T_HAS(err.text, "drop 48 of 48 keys: experts.w1 (16), experts.w3 (16), experts.w2 (16)");
    T_CHECK(write_set("peft", m, &all, true, "c1", &rep, &err) == CDR_OK);
    T_CHECK(cdr_lora_read(in_dir("c1"), m, pool, &got, &err) == CDR_OK);
    serve(m, &got, "peft", 6 * 4 * 2, "export as peft-stacked");            /* one by one is not what the fused class has */
    serve(m, &got, "vllm", 2 * 4 * 2, "rank_pattern and alpha_pattern are not read");
    T_CHECK(write_set("peft-stacked", m, &all, false, "c2", &rep, &err) == CDR_OK);
    T_CHECK(cdr_lora_read(in_dir("c2"), m, pool, &got, &err) == CDR_OK);
    serve(m, &got, "peft", 0, "");
    serve(m, &got, "vllm", 8, "target_parameters are not read");
    T_CHECK(write_set("sglang", m, &all, false, "c3", &rep, &err) == CDR_OK);
    T_CHECK(cdr_lora_read(in_dir("c3"), m, pool, &got, &err) == CDR_OK);
    serve(m, &got, "sglang", 0, "");
    serve(m, &got, "peft", 12, "3-D expert stacks are no PEFT layout");
    cdr_lora_serve r;
    T_CHECK(cdr_lora_serve_set(&got, m, "tgi", &r, &err) == CDR_EUSAGE);
    cdr_pool_free(pool);
}

/* A module that target_modules does not name gets no adapter in PEFT, whatever the file holds. */
static void untargeted_modules_are_told(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    cdr_lora_set got;
    cdr_err err = { 0 };
    const spec s[] = { { O ".lora_A.weight", { 4, 32 }, 2, 0 }, { O ".lora_B.weight", { 32, 4 }, 2, 0 } };
    static const struct { const char *target; bool named; } rows[] = {
        { "[\"o_proj\"]", true }, { "[\"proj\"]", false }, { "[\"self_attn.o_proj\"]", true }, { "[\"layers.1.self_attn.o_proj\", \"q_proj\"]", false },
        { "\"all-linear\"", true }, { "\".*\\\\.o_proj\"", true }, { "\"o_proj\"", false }, { "\"model\\\\.layers\\\\.\\\\d+\\\\.self_attn\\\\.(?:q|o)_proj\"", true },
            { "null", false },
    };
    for (int i = 0; i < CDR_COUNT(rows); i++) {
        char config[300];
        (void)snprintf(config, sizeof config, "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": %s}", rows[i].target);
        make_dir("tm", config, s, 2, 1);
        T_CHECK(cdr_lora_read(in_dir("tm"), m, pool, &got, &err) == CDR_OK && got.n == 1);
        T_CHECK(got.pair[0].untargeted == !rows[i].named);
        serve(m, &got, "peft", rows[i].named ? 0 : 2, rows[i].named ? "" : "not among target_modules");
    }
    cdr_pool_free(pool);
}

/* ---- GGUF -------------------------------------------------------------------------------------------------------------------------------- */

static void gguf_bytes(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    static const struct { const char *name; int32_t rank; float scale; bool one_a, one_b; uint64_t stream; } rows[] = {
        { "self_attn.o_proj", 4, 2.0f, true, true, 1 }, { "block_sparse_moe.experts.{expert}.w1", 2, 0.5f, true, false, 3 },
        { "block_sparse_moe.experts.{expert}.w3", 2, 0.5f, true, false, 3 }, { "block_sparse_moe.experts.{expert}.w2", 3, 4.0f, false, true, 7 },
    };
    cdr_lora_set all = make_set(m, pool, (recipe){ 'a', true, true }), set = all;
    cdr_lora_report rep;
    cdr_err err;
    set.pair = cdr_pool_alloc(pool, sizeof *set.pair * CDR_COUNT(rows));
    set.n = CDR_COUNT(rows);
    for (int i = 0; i < set.n; i++) {
        cdr_lora_pair *p = &set.pair[i];
        *p = (cdr_lora_pair){ .i_param = param(m, cdr_pool_printf(pool, "model.layers.2.%s.weight", rows[i].name)), .rank = rows[i].rank, .scale = rows[i].scale,
                              .n_keys = 2 };
        T_CHECK(cdr__lora_shape(m, p->i_param, &p->experts, &p->N, &p->K));
        p->n_a = rows[i].one_a ? 1 : p->experts;
        p->n_b = rows[i].one_b ? 1 : p->experts;
        float *x = cdr_pool_alloc(pool, sizeof *x * (size_t)(p->n_a * p->rank * p->K)), *y = cdr_pool_alloc(pool, sizeof *y * (size_t)(p->n_b * p->N * p->rank));
        for (int64_t k = 0; k < p->n_a * p->rank * p->K; k++) x[k] = value(rows[i].stream, k);
        for (int64_t k = 0; k < p->n_b * p->N * p->rank; k++) y[k] = value(rows[i].stream + 100 + (uint64_t)i, k);
        p->a = x;
        p->b = y;
    }
    T_CHECK(write_set("gguf", m, &set, false, "gg", &rep, &err) == CDR_OK);
    char *ours = NULL, *theirs = NULL, path[1300];
    size_t n = 0, k = 0;
    (void)snprintf(path, sizeof path, "%s/adapter.gguf", in_dir("gg"));
    T_CHECK(cdr_file_read(path, 1 << 24, &ours, &n, &err) == CDR_OK);
    T_CHECK(cdr_file_read("test/golden/adapter.gguf", 1 << 24, &theirs, &k, &err) == CDR_OK);
    T_CHECK(n == k && n > 1000 && memcmp(ours, theirs, n) == 0);
    /* cut off anywhere: an error, never a crash */
    cdr__gguf_tensor *t;
    int64_t count;
    double alpha;
    const char *arch;
    for (size_t cut = 0; cut < n; cut += cut < 700 ? 1 : 97) {
        FILE *f = fopen(in_dir("cut.gguf"), "wb");
        T_CHECK(f && fwrite(ours, 1, cut, f) == cut);
        if (f) (void)fclose(f);
        err = (cdr_err){ 0 };
        T_CHECK(cdr__lora_gguf_read(in_dir("cut.gguf"), pool, &t, &count, &alpha, &arch, &err) == CDR_EDATA);
    }
    cdr_free(ours);
    cdr_free(theirs);
    err = (cdr_err){ 0 };
    T_CHECK(write_set("gguf", m, &all, false, "gg2", &rep, &err) == CDR_EUSER);
    T_HAS(err.text, "llama.cpp splits this matrix in two");
    signal(SIGXFSZ, SIG_IGN);                                   /* a file that may not grow: what a full disk does */
    struct rlimit was, small;
    T_CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = (struct rlimit){ .rlim_cur = n - 100, .rlim_max = was.rlim_max };
    T_CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    err = (cdr_err){ 0 };
    T_CHECK(write_set("gguf", m, &set, false, "gg4", &rep, &err) == CDR_ERANK);
    T_STR(err.id, "io.write");
    T_CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0 && !cdr_exists(in_dir("gg4")) && !cdr_exists(in_dir("gg4.partial")));
    err = (cdr_err){ 0 };
    cdr_model *k31 = model_of("extends: kimi_k31\nname: t\nfamily: kimi_k31\n", pool);
    cdr_lora_set one = { .n = 0 };
    T_CHECK(write_set("gguf", k31, &one, false, "gg3", &rep, &err) == CDR_EUSER);
    T_HAS(err.text, "no architecture");
    cdr_pool_free(pool);
}

/* A file that others wrote, with every layout in it: values, ranks and scales as its formula has them. */
static void foreign_file(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_LINEAR, pool);
    char *data = NULL;
    size_t n = 0;
    cdr_lora_set set;
    cdr_err err = { 0 };
    T_CHECK(cdr_file_read("test/golden/adapter_seed.bin", 1 << 20, &data, &n, &err) == CDR_OK);
    size_t k = strlen(data) + 1;
    cdr__lora_bytes b = { "seed", data, k - 1, data + k, n - k };
    T_CHECK(cdr__lora_read_bytes(&b, m, pool, &set, &err) == CDR_OK && set.n == 6 && set.base_hash == 0x91c4e0d7a2b35f18u);
    const cdr_lora_pair *o = find_pair(&set, param(m, "model.layers.0.self_attn.o_proj.weight"));
    const cdr_lora_pair *up = find_pair(&set, param(m, "model.layers.1.block_sparse_moe.experts.{expert}.w3.weight"));
    const cdr_lora_pair *down = find_pair(&set, param(m, "model.layers.1.block_sparse_moe.experts.{expert}.w2.weight"));
    const cdr_lora_pair *w1 = find_pair(&set, param(m, "model.layers.2.block_sparse_moe.experts.{expert}.w1.weight"));
    const cdr_lora_pair *w3 = find_pair(&set, param(m, "model.layers.2.block_sparse_moe.experts.{expert}.w3.weight"));
    T_CHECK(o && o->rank == 2 && o->scale == 1.75f && o->b[5] == value(2, 5));
    T_CHECK(up && up->rank == 1 && up->scale == 4.0f && up->a[3 * 32 + 7] == value(3, 3 * 32 + 7) && up->b[2 * 24 + 5] == value(4, (24 + 5) * 4 + 2));
    T_CHECK(down && down->rank == 2 && down->scale == 2.0f && down->a[(3 * 2 + 1) * 24 + 5] == value(5, (3 * 2 + 1) * 24 + 5));
    T_CHECK(down && down->b[(3 * 32 + 9) * 2 + 1] == value(6, 9 * 8 + 1 * 4 + 3));
    T_CHECK(w1 && w1->n_a == 1 && w1->n_b == 4 && w1->b[(2 * 24 + 1) * 2 + 1] == value(8, (2 * 24 + 1) * 2 + 1));
    T_CHECK(w3 && w3->n_a == 4 && w3->a[2 * 2 * 32 + 33] == value(11, 33) && w3->b[3 * 24 * 2 + 7] == value(22, 7));
    for (size_t cut = k; cut < n; cut += 101) {
        b.tensors_bytes = cut - k;
        err = (cdr_err){ 0 };
        T_CHECK(cdr__lora_read_bytes(&b, m, pool, &set, &err) == CDR_EDATA);
    }
    cdr_free(data);
    cdr_pool_free(pool);
}

/* ---- packed --------------------------------------------------------------------------------------------------------------------------------- */

/* With the source's scales: no delta, the same codes; a large one survives, a tiny one vanishes. */
static void repacking(void)
{
    enum { N = 32 * 64 };
    static float w[N], x[N], q[N];
    static uint8_t codes[N / 2], scales[N / 32], again[N / 2];
    for (int i = 0; i < N; i++) w[i] = cdr_rng_normal((cdr_rng_key){ 3, 1, 0 }, (uint64_t)i);
    cdr_mxfp4_encode(w, codes, scales, N);
    cdr_mxfp4_decode(codes, scales, w, N);
    cdr_lora_energy e = { 0 };
    cdr_lora_repack(w, w, scales, N, again, &e);
    T_CHECK(memcmp(codes, again, sizeof codes) == 0 && e.delta == 0 && e.lost == 0 && cdr_lora_survival(&e) == 1);
    static const float tie[32] = { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 6, -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5, -6, 4, 0 };
    uint8_t by_encode[16], by_repack[16], scale;
    cdr_mxfp4_encode(tie, by_encode, &scale, 32);              /* halfway values go to the even code, as in a first packing */
    cdr_lora_repack(tie, tie, &scale, 32, by_repack, &e);
    T_CHECK(scale == 127 && memcmp(by_encode, by_repack, 16) == 0);
    static const struct { uint8_t is, becomes; } limits[] = { { 0, 2 }, { 1, 2 }, { 2, 2 }, { 252, 252 }, { 253, 252 }, { 255, 252 } };
    for (int i = 0; i < CDR_COUNT(limits); i++) {               /* a block of zeros may have any scale; what comes to it has one that a reader takes */
        float zero[32] = { 0 }, to[32] = { 0 }, back[32];
        uint8_t becomes = cdr_lora_repack_scale(limits[i].is);
        T_CHECK(becomes == limits[i].becomes);
        for (int k = 0; k < 8; k++) to[k] = tie[k] < 1 ? 0 : ldexpf(tie[k], becomes - 127);
        e = (cdr_lora_energy){ 0 };
        cdr_lora_repack(zero, to, &limits[i].is, 32, by_repack, &e);
        cdr_mxfp4_encode_as(to, &becomes, by_encode, 32);
        cdr_mxfp4_decode(by_repack, &becomes, back, 32);
        T_CHECK(memcmp(by_encode, by_repack, 16) == 0 && back[7] == to[7]);
        T_CHECK(isfinite(e.delta) && (becomes == 252 || cdr_lora_survival(&e) > 0.9));
    }
    static const struct { float size; double least, most; } rows[] = { { 0.001f, 0, 0.01 }, { 0.01f, 0, 0.02 }, { 0.1f, 0.62, 0.75 }, { 1.0f, 0.9, 1 } };
    for (int r = 0; r < CDR_COUNT(rows); r++) {
        e = (cdr_lora_energy){ 0 };
        for (int i = 0; i < N; i++) x[i] = w[i] + rows[r].size * cdr_rng_normal((cdr_rng_key){ 3, 2, 0 }, (uint64_t)i);
        cdr_lora_repack(w, x, scales, N, again, &e);
        double share = cdr_lora_survival(&e), delta = 0, kept = 0, lost = 0;
        cdr_mxfp4_decode(again, scales, q, N);                   /* the same from what was stored */
        for (int i = 0; i < N; i++) {
            delta += pow((double)x[i] - (double)w[i], 2);
            kept += ((double)q[i] - (double)w[i]) * ((double)x[i] - (double)w[i]);
            lost += pow((double)q[i] - (double)x[i], 2);
            for (int c = 0; c < 16; c++) {                       /* no code is nearer */
                uint8_t one[16] = { (uint8_t)c };
                float v[32];
                cdr_mxfp4_decode(one, &scales[i / 32], v, 32);
                T_CHECK(fabsf(v[0] - x[i]) >= fabsf(q[i] - x[i]));
            }
        }
        if (share < rows[r].least || share > rows[r].most) fprintf(stderr, "  delta %g: %g\n", (double)rows[r].size, share);
        T_CHECK(share >= rows[r].least && share <= rows[r].most);
        T_NEAR(e.delta, delta, 1e-9 * delta);
        T_NEAR(e.kept, kept, 1e-9 * delta);
        T_NEAR(e.lost, lost, 1e-9 * delta + 1e-9 * lost);
    }
}

static void adding_is_the_definition(void)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_model *m = model_of(KIMI_K3, pool);
    cdr_lora_set s = make_set(m, pool, (recipe){ 'a', true, true });
    for (int i = 0; i < s.n; i++) {
        const cdr_lora_pair *p = &s.pair[i];
        int64_t rows = CDR_MAX(p->experts, (int64_t)1) * p->N, first = rows / 3, n = CDR_MIN((int64_t)5, rows - first);
        float *w = cdr_pool_alloc(pool, sizeof *w * (size_t)(n * p->K));
        for (int64_t k = 0; k < n * p->K; k++) w[k] = 0.25f;
        cdr_lora_add(p, first, n, w);
        float none[5] = { 0 }, minus[5] = { -0.0f, -0.0f, -0.0f, -0.0f, -0.0f };           /* a delta of zeros changes no bit, not even of -0 */
        cdr_lora_pair zero = { .rank = 1, .N = 1, .K = 5, .n_a = 1, .n_b = 1, .scale = 1, .a = none, .b = none };
        cdr_lora_add(&zero, 0, 1, minus);
        for (int k = 0; k < 5; k++) T_CHECK(minus[k] == 0 && signbit(minus[k]));
        for (int64_t k = 0; k < n * p->K; k++) T_CHECK(w[k] == (float)(0.25 + delta(p, (first + k / p->K) / p->N, (first + k / p->K) % p->N, k % p->K)));
    }
    cdr_pool_free(pool);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("adapter")) return 99;
    cdr_log_set_level(CDR_LOG_ERROR);
    T_RUN(layouts_round_trip);
    T_RUN(wrapper_is_peft_s);
    T_RUN(sglang_layout);
    T_RUN(uniform_equals_own);
    T_RUN(patterns);
    T_RUN(wrong_tensors_are_refused);
    T_RUN(wrong_configurations_are_refused);
    T_RUN(consumers_say_what_they_drop);
    T_RUN(untargeted_modules_are_told);
    T_RUN(gguf_bytes);
    T_RUN(foreign_file);
    T_RUN(repacking);
    T_RUN(adding_is_the_definition);
    files_close();
    return t_end();
}
