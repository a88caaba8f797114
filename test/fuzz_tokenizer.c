/* fuzz_tokenizer.c: any bytes as a list of ranks, as tokenizer.json, as tokenizer_config.json, as a regular expression (short ones), and as text for one of the
 * tokenizers of test/golden/tokenizer (by the length). What is refused has a message and a stable id; what is accepted gives ids that fit the room and the
 * vocabulary, and that decode; user text never gets a special id; where a text may be cut, its parts have the ids, and the borders, of the whole.
 */
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char SAMPLE[] = "Hello, world! it's 12345\r\n\n  \xe4\xbd\xa0\xe5\xa5\xbd e\xcc\x81 \xff\xc3 <|sep|>[EOS]<x>";

static void use(const cdr_tokenizer *tok, const char *text, size_t n)
{
    for (int trusted = 0; trusted < 2; trusted++) {
        int64_t room = cdr_tokenizer_room(tok, n);
        int32_t *ids = cdr_alloc(sizeof *ids * (size_t)(room > 0 ? room : 1));
        int64_t k = trusted ? cdr_tokenizer_encode_trusted(tok, text, n, ids) : cdr_tokenizer_encode(tok, text, n, ids);
        cdr_text back = { 0 };
        CDR_CHECK(k >= 0 && k <= room);
        for (int64_t i = 0; i < k; i++) {
            size_t bytes;
            CDR_CHECK(ids[i] >= 0 && ids[i] < cdr_tokenizer_vocab(tok) && cdr_tokenizer_bytes(tok, ids[i], &bytes));
            CDR_CHECK(trusted || bytes > 0);
        }
        CDR_CHECK(cdr_tokenizer_decode(tok, ids, k, true, &back));
        if (!trusted && strcmp(cdr_tokenizer_type(tok), "hf_bpe") != 0) CDR_CHECK(back.n == n && (n == 0 || memcmp(back.s, text, n) == 0));
        cdr_text_free(&back);
        cdr_free(ids);
    }
}

static void cut(const cdr_tokenizer *tok, const char *text, size_t n)
{
    size_t at = n > 1 ? cdr_tokenizer_cut(tok, text, n, n / 3 + 1) : n;
    if (at >= n) return;
    int32_t *whole = cdr_alloc(sizeof *whole * (size_t)cdr_tokenizer_room(tok, n)), *parts = cdr_alloc(sizeof *parts * (size_t)(cdr_tokenizer_room(tok, n) + 32));
    int64_t k = cdr_tokenizer_encode(tok, text, n, whole), m = cdr_tokenizer_encode(tok, text, at, parts);
    m += cdr_tokenizer_encode(tok, text + at, n - at, parts + m);
    CDR_CHECK(m == k && memcmp(whole, parts, sizeof *whole * (size_t)k) == 0);
    cdr_free(whole);
    cdr_free(parts);
}

static char dir[64];

static void put(const char *name, const char *data, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    CDR_CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

static void open_it(const char *type, const char *file)
{
    cdr_err err = { 0 };
    cdr_tokenizer *tok = NULL;
    cdr_status st = cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = type, .dir = dir, .file = file }, &tok, &err);
    if (st == CDR_OK) {
        use(tok, SAMPLE, sizeof SAMPLE - 1);
        cut(tok, SAMPLE, sizeof SAMPLE - 1);
    } else CDR_CHECK(err.status == st && err.id[0] && err.text[0] && !tok);
    cdr_tokenizer_close(tok);
}

/* The 256 bytes as ranks, whose special ids the fuzzed file names. */
static void make_dir(void)
{
    cdr_err err = { 0 };
    cdr_tokenizer *byte = NULL;
    if (dir[0]) return;
    snprintf(dir, sizeof dir, "/tmp/cadre-fuzz-tokenizer-%d", (int)getpid());
    cdr_log_set_level(CDR_LOG_ERROR);
    CDR_CHECK(cdr_make_dirs(dir, &err) == CDR_OK);
    CDR_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &byte, &err) == CDR_OK);
    CDR_CHECK(cdr_tokenizer_write_tiktoken(byte, dir, "bytes.model", &err) == CDR_OK);
    cdr_tokenizer_close(byte);
    put("tokenizer_config.json", "{}", 2);
}

enum { N_SAMPLE = sizeof SAMPLE - 1 };

/* begins[i]: a piece of text[from] .. text[to - 1] begins at i. */
static void borders(const cdr__pattern *p, size_t from, size_t to, bool begins[N_SAMPLE])
{
    for (size_t i = from, k; i < to; i += k) {
        k = cdr__pattern_piece(p, SAMPLE + i, to - i);
        CDR_CHECK(k > 0 && k <= to - i);
        begins[i] = true;
    }
}

static void cuts(const cdr__pattern *p)
{
    bool whole[N_SAMPLE] = { 0 };
    borders(p, 0, N_SAMPLE, whole);
    for (size_t at = 1; at < N_SAMPLE; at++) {
        bool parts[N_SAMPLE] = { 0 };
        int kind = (signed char)SAMPLE[at - 1] < 0 ? CDR__CUT_NONE : cdr__pattern_cut(p, SAMPLE, at, N_SAMPLE);
        if (kind == CDR__CUT_NONE) continue;
        borders(p, 0, at, parts);
        borders(p, at, N_SAMPLE, parts);
        if (kind == CDR__CUT_INSIDE) parts[at] = whole[at];
        CDR_CHECK(memcmp(whole, parts, sizeof whole) == 0);
    }
}

static void pattern(const char *data, size_t n)
{
    cdr_pool *pool = cdr_pool_new();
    const cdr__pattern *p = NULL;
    cdr_err err = { 0 };
    char *regex = cdr_pool_strndup(pool, data, n);
    if (cdr__pattern_compile(regex, "fuzz", pool, &p, &err) == CDR_OK) cuts(p);
    else if (err.status != CDR_OK) CDR_CHECK(err.id[0] && err.text[0]);
    cdr_pool_free(pool);
}

/* What is composed is composed already. */
static void compose(const char *text, size_t n)
{
    cdr_text once = { 0 }, twice = { 0 };
    cdr__nfc(text, n, &once);
    CDR_CHECK(once.n <= 3 * n);
    cdr__nfc(once.s, once.n, &twice);
    CDR_CHECK(once.n == twice.n && (once.n == 0 || memcmp(once.s, twice.s, once.n) == 0));
    cdr_text_free(&once);
    cdr_text_free(&twice);
}

static void text(const char *data, size_t n)
{
    static const char *const file[] = { "tiktoken.model", "deepseek.json", "llama3.json", "qwen2.json", "gpt4o.json", "digits.json", "digit_runs.json" };
    static cdr_tokenizer *tok[CDR_COUNT(file)];
    cdr_err err = { 0 };
    int i = (int)(n % CDR_COUNT(file));
    cdr_tokenizer_spec s = { .type = i ? "hf_bpe" : "tiktoken", .dir = "test/golden/tokenizer", .file = file[i] };
    if (!tok[i]) CDR_CHECK(cdr_tokenizer_open(&s, &tok[i], &err) == CDR_OK);
    use(tok[i], data, n);
    cut(tok[i], data, n);
    compose(data, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = cdr_alloc(size);                      /* exactly as long: a read beyond its end is seen */
    if (size) memcpy(copy, data, size);
    make_dir();
    if (size && copy[0] == '{') {
        put("tokenizer.json", copy, size);
        open_it("hf_bpe", "tokenizer.json");
        if (memmem(copy, size, "_decoder", 8)) {
            put("tokenizer_config.json", copy, size);
            open_it("tiktoken", "bytes.model");
            put("tokenizer_config.json", "{}", 2);
        }
    } else {
        put("tiktoken.model", copy, size);
        open_it("tiktoken", "tiktoken.model");
    }
    if (size < 200) pattern(copy, size);
    text(copy, size);
    cdr_free(copy);
    return 0;
}
