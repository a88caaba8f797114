/* fuzz_adapter.c: libFuzzer target over adapter files: an input that begins with GGUF is one; else an adapter_config.json, a zero byte, a safetensors
 * file, bound to a small Kimi-Linear. What is read is asked what consumers would drop of it.
 */
#include "adapter/adapter.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char TOY[] =
    "extends: kimi_linear\nname: toy\nfamily: kimi_linear\n"
    "sizes:\n  {hidden: 32, vocab: 512, n_layers: 3, full_layers: [3], kda: {heads: 2, dim: 16}, mla: {heads: 2, kv_lora: 16, nope: 16, ext: 8, v: 24},\n"
    "   glu: {width: 48}, moe: {experts: 4, top_k: 2, width: 24, shared: 1}}\n";

static const cdr_model *toy(void)
{
    static cdr_model *m;
    cdr_err err = { 0 };
    cdr_log_set_level(CDR_LOG_ERROR);
    if (!m && cdr_model_parse(&(cdr_model_spec){ 0 }, TOY, sizeof TOY - 1, "toy.yaml", cdr_pool_new(), &m, &err) != CDR_OK) abort();
    return m;
}

static cdr_status read_peft(const char *text, const uint8_t *zero, size_t left, cdr_pool *pool, cdr_err *err)
{
    cdr_lora_set set;
    cdr__lora_bytes b = { .where = "fuzz", .config = text, .config_bytes = (size_t)(zero - (const uint8_t *)text), .tensors = zero + 1, .tensors_bytes = left };
    CDR_TRY(cdr__lora_read_bytes(&b, toy(), pool, &set, err));
    int n;
    const char *const *consumer = cdr_lora_consumers(&n);
    for (int i = 0; i < n; i++) {
        cdr_lora_serve s;
        CDR_TRY(cdr_lora_serve_set(&set, toy(), consumer[i], &s, err));
    }
    return CDR_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cdr_err err = { 0 };
    cdr_pool *pool = cdr_pool_new();
    uint8_t *copy = malloc(bytes + 1);              /* exactly as long as the input is, but for an end of text */
    if (!copy) return 0;
    memcpy(copy, data, bytes);
    copy[bytes] = 0;
    uint8_t *zero = memchr(copy, 0, bytes);
    cdr_status st;
    if (bytes >= 4 && memcmp(copy, "GGUF", 4) == 0) {
        cdr__gguf_tensor *t;
        int64_t n;
        double alpha = 0;
        const char *arch = "";
        st = cdr__lora_gguf_parse("fuzz", copy, bytes, pool, &t, &n, &alpha, &arch, &err);
    } else {
        st = zero ? read_peft((const char *)copy, zero, bytes - (size_t)(zero - copy) - 1, pool, &err) : CDR_OK;
    }
    if (st != CDR_OK && (!err.text[0] || !err.id[0] || strchr(err.text, '\n'))) abort();
    cdr_pool_free(pool);
    free(copy);
    return 0;
}
