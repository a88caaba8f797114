/* gguf.c: an adapter as llama.cpp loads it: one GGUF file, version 3, little endian.
 *
 *   "GGUF"  u32 version  u64 tensors  u64 pairs   { string key, u32 type, value }   { string name, u32 axes, u64 axis[], u32 type, u64 offset }   data
 *   string: u64 length, bytes. Axes go from the fastest on: lora_a [K, r], lora_b [r, N], of routed experts one axis E more, the slowest.
 *   Data and each tensor in it begin at multiples of 32 bytes. Values are F32.
 *   general.type adapter, general.architecture the base's, adapter.type lora, adapter.lora.alpha: llama.cpp scales by alpha / rank of the tensor.
 * A shared factor is repeated for every expert: ggml_mul_mat_id needs all of them.
 * Sources: llama.cpp docs/gguf.md (ggml), src/llama-adapter.cpp, convert_lora_to_gguf.py, gguf-py/gguf/constants.py.
 */
#include "adapter/adapter.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { ALIGN = 32, TYPE_U32 = 4, TYPE_F32 = 6, TYPE_STRING = 8, GGML_F32 = 0, MAX_PAIRS = 256 };

static const struct { const char *family, *arch; } ARCH[] = { { "kimi_linear", "kimi-linear" }, { "kimi_k3", "kimi-k3" }, { "deepseek_v3", "deepseek2" },
                                                              { "deepseek_v2", "deepseek2" } };

/* Name below blk.N. of a module's leaf path. kda: 'k' in layers with KDA alone, 'm' in others. */
static const struct { const char *module, *gguf; char kda; } NAMES[] = {
    { "self_attn.q_proj", "attn_q", 0 }, { "self_attn.k_proj", "attn_k", 0 }, { "self_attn.v_proj", "attn_v", 0 }, { "self_attn.o_proj", "attn_output", 0 },
    { "self_attn.q_a_proj", "attn_q_a", 0 }, { "self_attn.q_b_proj", "attn_q_b", 0 }, { "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", 0 },
    { "self_attn.f_a_proj", "ssm_f_a", 0 }, { "self_attn.f_b_proj", "ssm_f_b", 0 }, { "self_attn.b_proj", "ssm_beta", 0 }, { "self_attn.g_a_proj", "ssm_g_a", 0 },
    { "self_attn.g_b_proj", "ssm_g_b", 0 }, { "self_attn.g_proj", "ssm_g", 'k' }, { "self_attn.g_proj", "attn_gate", 'm' },
    { "mlp.gate_proj", "ffn_gate", 0 }, { "mlp.up_proj", "ffn_up", 0 }, { "mlp.down_proj", "ffn_down", 0 },
    { "mlp.shared_experts.gate_proj", "ffn_gate_shexp", 0 }, { "mlp.shared_experts.up_proj", "ffn_up_shexp", 0 }, { "mlp.shared_experts.down_proj", "ffn_down_shexp", 0 },
    { "mlp.routed_expert_down_proj", "ffn_routed_down", 0 }, { "mlp.routed_expert_up_proj", "ffn_routed_up", 0 },
};

const char *cdr__lora_gguf_arch(const cdr_model *m)
{
    for (int i = 0; i < CDR_COUNT(ARCH); i++) if (strcmp(ARCH[i].family, cdr_model_get_info(m)->family) == 0) return ARCH[i].arch;
    return NULL;
}

const char *cdr__lora_gguf_name(const cdr_model *m, const cdr__lora_names *names, int64_t i_param, cdr_pool *pool)
{
    static const char *const expert[] = { "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps" };
    const char *module = cdr__lora_module(names, i_param), *layer = module ? strstr(module, "layers.") : NULL;
    int l = cdr_model_param_part(m, i_param).layer;
    if (!layer || l < 0) return NULL;
    const char *tail = strchr(layer + strlen("layers."), '.');
    cdr__role role = cdr__lora_role(m, i_param);
    if (tail && cdr_model_param_part(m, i_param).top_k > 0 && role != CDR__ROLE_NONE) return cdr_pool_printf(pool, "blk.%d.%s.weight", l, expert[role]);
    for (int i = 0; tail && i < CDR_COUNT(NAMES); i++) {
        if (strcmp(NAMES[i].module, tail + 1) != 0 || (NAMES[i].kda && (NAMES[i].kda == 'k') != cdr__lora_has_kda(m, l))) continue;
        return cdr_pool_printf(pool, "blk.%d.%s.weight", l, NAMES[i].gguf);
    }
    return NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------------------- */

static void put_le(cdr_text *t, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        char c = (char)(x >> (8 * i) & 0xff);
        cdr_text_append(t, &c, 1);
    }
}

static void put_string(cdr_text *t, const char *s)
{
    put_le(t, strlen(s), 8);
    cdr_text_append(t, s, strlen(s));
}

static void put_pair(cdr_text *t, const char *key, const char *value)
{
    put_string(t, key);
    put_le(t, TYPE_STRING, 4);
    put_string(t, value);
}

static int put_pairs(cdr_text *t, const cdr_lora_out *o, double alpha)
{
    float f = (float)alpha;
    uint32_t bits;
    int n = 4;
    memcpy(&bits, &f, 4);
    put_pair(t, "general.architecture", cdr__lora_gguf_arch(o->model));
    put_pair(t, "general.type", "adapter");
    put_pair(t, "adapter.type", "lora");
    put_string(t, "adapter.lora.alpha");
    put_le(t, TYPE_F32, 4);
    put_le(t, bits, 4);
    if (o->base_name && *o->base_name) {
        put_pair(t, "general.base_model.0.name", o->base_name);
        n++;
    }
    if (o->has_hash) {
        char hash[20];
        (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)o->base_hash);
        put_pair(t, "cadre.base_hash", hash);
        n++;
    }
    return n;
}

static void pad(cdr_text *t)
{
    static const char zero[ALIGN];
    cdr_text_append(t, zero, cdr_align_up(t->n, ALIGN) - t->n);
}

static cdr_text header(const cdr_lora_out *o, const cdr__lora_tensor *t, int64_t n, double alpha)
{
    cdr_text pairs = { 0 }, h = { 0 };
    int n_pairs = put_pairs(&pairs, o, alpha);
    uint64_t offset = 0;
    cdr_text_append(&h, "GGUF", 4);
    put_le(&h, 3, 4);
    put_le(&h, (uint64_t)n, 8);
    put_le(&h, (uint64_t)n_pairs, 8);
    cdr_text_append(&h, pairs.s, pairs.n);
    cdr_text_free(&pairs);
    for (int64_t i = 0; i < n; i++) {
        put_string(&h, t[i].name);
        put_le(&h, (uint64_t)t[i].n_dim, 4);
        for (int d = t[i].n_dim - 1; d >= 0; d--) put_le(&h, (uint64_t)t[i].n[d], 8);
        put_le(&h, GGML_F32, 4);
        put_le(&h, offset, 8);
        offset += cdr_align_up(sizeof(float) * (size_t)cdr__lora_elems(&t[i]), ALIGN);
    }
    pad(&h);
    return h;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *p = data;
    while (bytes > 0) {
        ssize_t k = write(fd, p, bytes);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        p += k;
        bytes -= (size_t)k;
    }
    return true;
}

cdr_status cdr__lora_gguf_write(const char *path, const cdr_lora_out *o, const cdr__lora_tensor *t, int64_t n, double alpha, int64_t *bytes, cdr_err *err)
{
    static const char zero[ALIGN];
    cdr_text h = header(o, t, n, alpha);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    bool ok = fd >= 0 && write_all(fd, h.s, h.n);
    *bytes = (int64_t)h.n;
    cdr_text_free(&h);
    for (int64_t i = 0; i < n && ok; i++) {
        size_t size = sizeof(float) * (size_t)cdr__lora_elems(&t[i]), whole = cdr_align_up(size, ALIGN);
        float *x = cdr_alloc(size + 1);
        cdr__lora_fill(&t[i], x);
        ok = write_all(fd, x, size) && write_all(fd, zero, whole - size);
        *bytes += (int64_t)whole;
        cdr_free(x);
    }
    ok = ok && fsync(fd) == 0;
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (!ok) CDR_FAIL_ID(err, CDR_ERANK, "io.write", "%s: cannot write: %s. Free some space, or check the disk", path, strerror(why));
    return CDR_OK;
}

/* ---- reading, of what was written ------------------------------------------------------------------------------------------------------ */

typedef struct { const uint8_t *p; size_t n, at; bool failed; } reader;

static uint64_t get_le(reader *r, int bytes)
{
    uint64_t x = 0;
    if (r->n - r->at < (size_t)bytes) r->failed = true;
    for (int i = 0; i < bytes && !r->failed; i++) x |= (uint64_t)r->p[r->at + (size_t)i] << (8 * i);
    if (!r->failed) r->at += (size_t)bytes;
    return x;
}

static const char *get_string(reader *r, cdr_pool *pool)
{
    uint64_t n = get_le(r, 8);
    if (r->failed || n > r->n - r->at || n > (1u << 20)) {
        r->failed = true;
        return "";
    }
    const char *s = cdr_pool_strndup(pool, (const char *)r->p + r->at, (size_t)n);
    r->at += (size_t)n;
    return s;
}

static void get_pairs(reader *r, uint64_t n, cdr_pool *pool, double *alpha, const char **arch)
{
    for (uint64_t i = 0; i < n && !r->failed; i++) {
        const char *key = get_string(r, pool);
        uint64_t type = get_le(r, 4);
        if (type == TYPE_STRING) {
            const char *s = get_string(r, pool);
            if (strcmp(key, "general.architecture") == 0) *arch = s;
        } else if (type == TYPE_F32) {
            uint32_t bits = (uint32_t)get_le(r, 4);
            float f;
            memcpy(&f, &bits, 4);
            if (strcmp(key, "adapter.lora.alpha") == 0) *alpha = (double)f;
        } else if (type == TYPE_U32) {
            (void)get_le(r, 4);
        } else {
            r->failed = true;                        /* arrays and the rest: no adapter of ours has them */
        }
    }
}

static void get_tensors(reader *r, cdr__gguf_tensor *t, uint64_t n, uint64_t *offset, cdr_pool *pool)
{
    for (uint64_t i = 0; i < n && !r->failed; i++) {
        t[i].name = get_string(r, pool);
        uint64_t n_dim = get_le(r, 4);
        if (n_dim < 1 || n_dim > 4) r->failed = true;
        t[i].n_dim = (int)(n_dim & 7);
        for (int d = 0; d < t[i].n_dim && !r->failed; d++) t[i].n[d] = get_le(r, 8);
        t[i].type = (int)(get_le(r, 4) & 0xff);
        offset[i] = get_le(r, 8);
    }
}

/* Data of each lies in the file, at a multiple of 32. */
static bool place(const reader *r, cdr__gguf_tensor *t, uint64_t n, const uint64_t *offset)
{
    size_t base = cdr_align_up(r->at, ALIGN);
    for (uint64_t i = 0; i < n; i++) {
        size_t bytes = sizeof(float), end;
        for (int d = 0; d < t[i].n_dim; d++) if (!cdr_mul_size(bytes, (size_t)t[i].n[d], &bytes)) return false;
        if (t[i].type != GGML_F32 || offset[i] % ALIGN != 0 || offset[i] > r->n || !cdr_add_size(base + (size_t)offset[i], bytes, &end) || end > r->n) return false;
        t[i].data = r->p + base + offset[i];
    }
    return true;
}

static bool parse(reader *r, cdr_pool *pool, cdr__gguf_tensor **t, int64_t *n, double *alpha, const char **arch)
{
    if (get_le(r, 4) != 0x46554747u || get_le(r, 4) != 3) return false;
    uint64_t n_tensors = get_le(r, 8), n_pairs = get_le(r, 8);
    if (r->failed || n_tensors > r->n / 24 || n_pairs > MAX_PAIRS) return false;
    get_pairs(r, n_pairs, pool, alpha, arch);
    *t = cdr_pool_alloc(pool, sizeof **t * (size_t)(n_tensors + 1));
    uint64_t *offset = cdr_pool_alloc(pool, sizeof *offset * (size_t)(n_tensors + 1));
    get_tensors(r, *t, n_tensors, offset, pool);
    *n = (int64_t)n_tensors;
    return !r->failed && place(r, *t, n_tensors, offset);
}

cdr_status cdr__lora_gguf_parse(const char *where, const uint8_t *data, size_t bytes, cdr_pool *pool, cdr__gguf_tensor **t, int64_t *n, double *alpha,
                                const char **arch, cdr_err *err)
{
    reader r = { .p = data, .n = bytes };
    if (!parse(&r, pool, t, n, alpha, arch)) CDR_FAIL_ID(err, CDR_EDATA, "adapter.gguf", "%s: is no GGUF adapter of F32 tensors, or is cut off at byte %zu", where, r.at);
    return CDR_OK;
}

cdr_status cdr__lora_gguf_read(const char *path, cdr_pool *pool, cdr__gguf_tensor **t, int64_t *n, double *alpha, const char **arch, cdr_err *err)
{
    char *data = NULL;
    size_t bytes;
    CDR_TRY(cdr_file_read(path, (size_t)1 << 40, &data, &bytes, err));
    uint8_t *copy = cdr_pool_alloc(pool, bytes + 1);
    memcpy(copy, data, bytes);
    cdr_free(data);
    return cdr__lora_gguf_parse(path, copy, bytes, pool, t, n, alpha, arch, err);
}
