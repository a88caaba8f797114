/* test_tokenizer.c: ids of every kind of tokenizer, specials, and files that lie. */
#include "test.h"

#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"

static char dir[] = "/tmp/cadre-test-tokenizer-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static int k;
    k = (k + 1) % 4;
    snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}

static void put_file(const char *name, const char *text, size_t n)
{
    cdr_err err = { 0 };
    T_CHECK(cdr_file_write(in_dir(name), text, n, &err) == CDR_OK);
}

static void bytes_and_specials(void)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err = { 0 };
    char text[256];
    int32_t ids[256];
    size_t n;
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "gpt2" }, &tok, &err) == CDR_EUSER && !tok);
    T_STR(err.id, "tokenizer.unknown");
    err = (cdr_err){ 0 };
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_vocab(tok) == 512 && cdr_tokenizer_room(tok, 7) == 7);
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    T_CHECK(cdr_tokenizer_encode(tok, text, 256, ids) == 256);
    for (int i = 0; i < 256; i++) {
        const char *b = cdr_tokenizer_bytes(tok, i, &n);
        T_CHECK(ids[i] == i && n == 1 && *b == (char)i);
    }
    static const struct { const char *name; int id; } K3[] = {
        { "[BOS]", 256 }, { "[EOS]", 257 }, { "<|end_of_msg|>", 258 }, { "<|open|>", 259 }, { "<|close|>", 260 }, { "<|sep|>", 261 },
        { "[EOT]", 265 }, { "<|media_pad|>", 277 }, { "<osagent_mode>", 321 }, { "[UNK]", 510 }, { "[PAD]", 511 },
        { "<|reserved_token_264|>", 264 },
    };
    for (int i = 0; i < CDR_COUNT(K3); i++) {
        T_CHECK(cdr_tokenizer_special(tok, K3[i].name) == K3[i].id);
        T_STR(cdr_tokenizer_special_name(tok, K3[i].id), K3[i].name);
        cdr_tokenizer_bytes(tok, K3[i].id, &n);
        T_CHECK(n == 0);
    }
    T_CHECK(cdr_tokenizer_special(tok, "[CLS]") == -1 && !cdr_tokenizer_special_name(tok, 255) && !cdr_tokenizer_special_name(tok, 512));
    T_CHECK(!cdr_tokenizer_bytes(tok, -1, &n) && !cdr_tokenizer_bytes(tok, 512, &n));
    cdr_text out = { 0 };
    T_CHECK(cdr_tokenizer_decode(tok, (const int32_t[]){ 'a', 257, 'b' }, 3, false, &out));
    T_CHECK(cdr_tokenizer_decode(tok, (const int32_t[]){ 257 }, 1, true, &out));
    T_CHECK(out.n == 7 && memcmp(out.s, "ab[EOS]", 7) == 0);
    T_CHECK(!cdr_tokenizer_decode(tok, (const int32_t[]){ 512 }, 1, true, &out) && !cdr_tokenizer_decode(tok, (const int32_t[]){ -1 }, 1, true, &out));
    cdr_text_free(&out);
    cdr_tokenizer_close(tok);
}

/* Names become ids in a template's text alone. */
static void trusted_text(void)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err = { 0 };
    int32_t ids[64];
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_encode(tok, "[EOS]", 5, ids) == 5 && ids[0] == '[');
    T_CHECK(cdr_tokenizer_encode_trusted(tok, "[EOS]", 5, ids) == 1 && ids[0] == 257);
    static const char text[] = "<|open|a<|open|>b<|sep|><|reserved_token_300|><|reserved_token_300";
    static const int32_t want[] = { '<', '|', 'o', 'p', 'e', 'n', '|', 'a', 259, 'b', 261, 300, '<', '|', 'r', 'e', 's' };
    int64_t n = cdr_tokenizer_encode_trusted(tok, text, sizeof text - 1, ids);
    T_CHECK(n == 12 + 20 && memcmp(ids, want, sizeof want) == 0);
    T_CHECK(cdr_tokenizer_encode_trusted(tok, text, 0, ids) == 0);
    cdr_tokenizer_close(tok);
}

/* ---- patterns --------------------------------------------------------------------------------------------- */

/* The pieces of text by a pattern, with | between them. */
static void pieces(const char *regex, const char *text, const char *want)
{
    cdr_pool *pool = cdr_pool_new();
    const cdr__pattern *p = NULL;
    cdr_err err = { 0 };
    char got[256];
    size_t n = strlen(text), k = 0;
    if (cdr__pattern_compile(regex, "test", pool, &p, &err) != CDR_OK) {
        T_STR(err.text, want);
    } else {
        for (size_t i = 0, m; i < n; i += m) {
            m = cdr__pattern_piece(p, text + i, n - i);
            T_CHECK(m > 0 && m <= n - i);
            if (i > 0) got[k++] = '|';
            memcpy(got + k, text + i, m);
            k += m;
        }
        got[k] = 0;
        T_STR(got, want);
    }
    cdr_pool_free(pool);
}

static void pattern_meaning(void)
{
    pieces("a|ab|c", "abcab", "a|b|c|a|b");                       /* the first alternative, not the longest */
    pieces("ab|a|c", "abcab", "ab|c|ab");
    pieces("(?:a|ab)(?:c|bcd)", "abcd", "abcd");                   /* what a backtracking matcher finds second */
    pieces("x*y|x", "xxxyxx", "xxxy|x|x");
    pieces("\\s+(?!\\S)|\\s+|\\S+", "a   b  ", "a|  | |b|  ");
    pieces("a(?=b)|b+", "aabb", "a|a|bb");
    pieces("a(?!b)|[ab]{2}", "aaab", "a|a|ab");
    pieces("(?:(?!x)|a)[a-z]", "axb", "a|x|b");                   /* an assertion before the other way on */
    pieces("\\p{N}{1,3}", "12345678x9", "123|456|78|x|9");
    pieces("a{2}|a{4,}", "aaaaaa", "aa|aa|aa");
    pieces("a{4,}|a", "aaaaaaxaaa", "aaaaaa|x|a|a|a");
    pieces("(a|b){2,3}", "ababab", "aba|bab");
    pieces("[\\p{L}&&[^\\p{Han}]]+|\\p{Han}+", "ab\xe4\xb8\xadk\xc3\xa9", "ab|\xe4\xb8\xad|k\xc3\xa9");
    pieces("(?i:'s|k)", "'S'\xc5\xbf\xe2\x84\xaa's", "'S|'\xc5\xbf|\xe2\x84\xaa|'s");
    pieces("[^a\\-z]+", "a-bz", "a-|b|z");
    pieces("[+--]+", "a+,-b", "a|+,-|b");
    pieces(".+|\n", "ab\ncd", "ab|\n|cd");
    pieces("\\pL+|\\P{^Nd}", "ab12", "ab|1|2");
    pieces("[^\\s\\p{L}]+", "a\xff\xfe b", "a|\xff\xfe| b");            /* bytes that are no UTF-8: a symbol */
}

static void pattern_refused(const char *regex, const char *quoted)
{
    cdr_pool *pool = cdr_pool_new();
    const cdr__pattern *p = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr__pattern_compile(regex, "test.json", pool, &p, &err) == CDR_EDATA);
    T_STR(err.id, "tokenizer.pattern");
    T_HAS(err.text, "test.json: ");
    T_HAS(err.text, quoted);
    cdr_pool_free(pool);
}

static void patterns_that_are_not_known(void)
{
    static const char *const table[][2] = {
        { "a*?", "\"*?\"" }, { "a++", "\"++\"" }, { "^a", "\"^\"" }, { "a$", "\"$\"" }, { "\\b", "\"\\b\"" }, { "\\w+", "\"\\w\"" }, { "\\p{Greek}", "\"\\p{Greek}\"" },
        { "(?<n>a)", "\"(?<n\"" }, { "(?<!a)b", "\"(?<!\"" }, { "(?!ab)c", "\"(?!ab\"" }, { "[a", "a class without an end" }, { "(a", "a ( has no )" }, { "a)", "no ( before it" },
        { "[z-a]", "no range" }, { "a{2", "\"{2\"" }, { "a{3,2}", "no {n}" }, { "a**", "doubled" }, { "[[:alpha:]]", "POSIX" }, { "a*", "nothing at all" }, { "", "nothing at all" },
        { "(?i:\\p{L})", "without regard to case" }, { "(?:(?:a{100}){100}){100}", "longer than patterns" }, { "\\p{L", "no }" }, { "\\", "nothing follows" },
        { "((((((((((((((((a))))))))))))))))", "nested too deeply" }, { "[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]", "nested too deeply" }, { "*a", "nothing that it belongs to" },
    };
    for (int i = 0; i < CDR_COUNT(table); i++) pattern_refused(table[i][0], table[i][1]);
}

/* ---- tiktoken ---------------------------------------------------------------------------------------------- */

static cdr_status open_at(const char *type, const char *file, int base, int special, cdr_tokenizer **tok, cdr_err *err)
{
    *err = (cdr_err){ 0 };
    return cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = type, .dir = dir, .file = file, .base = base, .special = special }, tok, err);
}

static void byte_written_as_ranks(void)
{
    cdr_tokenizer *byte = NULL, *tok = NULL;
    cdr_err err = { 0 };
    char text[512];
    int32_t a[512], b[512];
    T_CHECK(open_at("byte", NULL, 0, 0, &byte, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_write_tiktoken(byte, dir, "tiktoken.model", &err) == CDR_OK);
    T_CHECK(open_at("tiktoken", NULL, 256, 256, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_vocab(tok) == 512);
    T_STR(cdr_tokenizer_type(tok), "tiktoken");
    T_CHECK(cdr_tokenizer_hash(tok) != cdr_tokenizer_hash(byte));
    for (int i = 0; i < 512; i++) {
        const char *x = cdr_tokenizer_special_name(byte, i), *y = cdr_tokenizer_special_name(tok, i);
        T_CHECK(!x == !y && (!x || strcmp(x, y) == 0));
        text[i] = (char)(i * 7);
    }
    T_CHECK(cdr_tokenizer_encode(byte, text, 512, a) == 512 && cdr_tokenizer_encode(tok, text, 512, b) == 512 && memcmp(a, b, sizeof a) == 0);
    T_CHECK(cdr_tokenizer_encode_trusted(tok, "a<|sep|>", 8, a) == 2 && a[0] == 'a' && a[1] == 261);
    T_CHECK(cdr_tokenizer_encode(tok, "a<|sep|>", 8, a) == 8);
    uint64_t hash = cdr_tokenizer_hash(tok);
    T_CHECK(cdr_tokenizer_write_tiktoken(tok, dir, "again.model", &err) == CDR_OK);
    cdr_tokenizer_close(tok);
    T_CHECK(open_at("tiktoken", "again.model", 0, 0, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_hash(tok) == hash);
    cdr_tokenizer_close(tok);
    cdr_tokenizer_close(byte);
    (void)remove(in_dir("tokenizer_config.json"));
}

/* The 256 bytes, then what is given: "abc" has the next rank. */
static void ranks_file(const char *name, const char *const *more, int n_more, const char *last)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    cdr_text t = { 0 };
    for (int i = 0; i < 256; i++) cdr_text_printf(&t, "%c%c== %d\n", digit[i >> 2], digit[(i & 3) << 4], i);
    for (int i = 0; i < n_more; i++) {
        unsigned char s[4] = { 0 };
        size_t n = strlen(more[i]);
        memcpy(s, more[i], n);                /* at most three bytes */
        uint32_t x = (uint32_t)s[0] << 16 | (uint32_t)s[1] << 8 | s[2];
        cdr_text_printf(&t, "%c%c%c%c %d\n", digit[x >> 18], digit[x >> 12 & 63], n > 1 ? digit[x >> 6 & 63] : '=', n > 2 ? digit[x & 63] : '=', 256 + i);
    }
    if (last) cdr_text_printf(&t, "%s", last);
    put_file(name, t.s, t.n);
    cdr_text_free(&t);
}

static void ids_of(const cdr_tokenizer *tok, const char *text, const int32_t *want, int n_want)
{
    int32_t ids[256];
    int64_t n = cdr_tokenizer_encode(tok, text, strlen(text), ids);
    T_CHECK(n == n_want && memcmp(ids, want, sizeof *want * (size_t)n_want) == 0);
}

static void lowest_rank_first(void)
{
    static const char *const more[] = { "bc", "ab", "aa", "abc", "cab" };
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    ranks_file("r.model", more, 5, NULL);
    T_CHECK(open_at("tiktoken", "r.model", 261, 256, &tok, &err) == CDR_OK);
    ids_of(tok, "abc", (const int32_t[]){ 259 }, 1);                  /* a piece that is a token */
    ids_of(tok, "abcd", (const int32_t[]){ 259, 'd' }, 2);            /* bc before ab, then a + bc */
    ids_of(tok, "aaa", (const int32_t[]){ 258, 'a' }, 2);             /* of equal ranks the left one */
    ids_of(tok, "cabab", (const int32_t[]){ 260, 257 }, 2);           /* ab and ab, then c + ab */
    cdr_tokenizer_close(tok);
}

/* A long piece is merged through a heap: the same ids as the definition, slowly. */
static void long_pieces_as_defined(void)
{
    static const char *const more[] = { "ab", "ba", "aba", "bb", "abb", "aa", "bab" };
    enum { N = 3000 };
    char text[N];
    int32_t ids[N], want[N];
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    ranks_file("long.model", more, 7, NULL);
    T_CHECK(open_at("tiktoken", "long.model", 0, 0, &tok, &err) == CDR_OK);
    for (int round = 0; round < 40; round++) {
        int n = 100 + round * 70, m = n;
        for (int i = 0; i < n; i++) want[i] = text[i] = (char)('a' + cdr_rng_u64((cdr_rng_key){ 1, (uint64_t)round, 0 }, (uint64_t)i) % 2);
        for (;;) {
            int at = -1, best = 263;
            for (int i = 0; i + 1 < m; i++) {
                char pair[16] = "";
                for (int k = i; k < i + 2; k++) {
                    char one[2] = { (char)want[k], 0 };
                    strcat(pair, want[k] < 256 ? one : more[want[k] - 256]);
                }
                for (int k = 0; k < 7; k++)
                    if (strcmp(more[k], pair) == 0 && 256 + k < best) {
                        best = 256 + k;
                        at = i;
                    }
            }
            if (at < 0) break;
            want[at] = best;
            memmove(want + at + 1, want + at + 2, sizeof *want * (size_t)(m - at - 2));
            m--;
        }
        T_CHECK(cdr_tokenizer_encode(tok, text, (size_t)n, ids) == m && memcmp(ids, want, sizeof *want * (size_t)m) == 0);
    }
    cdr_tokenizer_close(tok);
}

/* Every 25,000 letters a cut, and every 400,000 characters; a heap, so that this ends at once. */
static void cuts_of_long_texts(void)
{
    enum { N = 900001 };
    static const char *const more[] = { "aa", "  " };
    char *text = malloc(N);
    int32_t *ids = malloc(sizeof *ids * N);
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    ranks_file("cut.model", more, 2, NULL);
    T_CHECK(open_at("tiktoken", "cut.model", 0, 0, &tok, &err) == CDR_OK);
    memset(text, 'a', N);
    T_CHECK(cdr_tokenizer_encode(tok, text, 25000, ids) == 12500);
    T_CHECK(cdr_tokenizer_encode(tok, text, 25001, ids) == 12501 && ids[12499] == 256 && ids[12500] == 'a');
    T_CHECK(cdr_tokenizer_encode(tok, text + 1, 50003, ids) == 25002);                     /* 12500, 12500, 2 */
    memcpy(text + 24999, "<|sep|>", 7);
    T_CHECK(cdr_tokenizer_encode_trusted(tok, text, 30000, ids) == 12499 + 1 + 1 + 6 + 2497);       /* the name is cut, so it is text */
    memset(text, 'a', N);
    for (int i = 0; i < N; i += 20001) text[i] = ' ';                /* no run is long: 400,000 characters alone cut */
    int64_t n = cdr_tokenizer_encode(tok, text, N, ids), want = 0;
    for (int from = 0; from < N; from += 400000) want += cdr_tokenizer_encode(tok, text + from, (size_t)CDR_MIN(400000, N - from), ids);
    T_CHECK(n == want && n > N / 2);
    memset(text, ' ', 25001);
    text[25001] = 'a';
    T_CHECK(cdr_tokenizer_encode(tok, text, 25002, ids) == 12500 + 1 + 1);                 /* the space beyond the cut stands alone, "a" apart from it */
    cdr_tokenizer_close(tok);
    free(ids);
    free(text);
}

static void tiktoken_refused(const char *last, const char *said)
{
    static const char *const more[] = { "ab" };
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    ranks_file("bad.model", more, 1, last);
    T_CHECK(open_at("tiktoken", "bad.model", 0, 0, &tok, &err) == CDR_EDATA && !tok);
    T_STR(err.id, "tokenizer.bad-file");
    T_HAS(err.text, "bad.model");
    T_HAS(err.text, said);
}

static void files_that_lie(void)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    tiktoken_refused("YWM= 256\n", "rank 256 stands twice");
    tiktoken_refused("YWI= 257\n", "ranks 256 and 257 are the same token");
    tiktoken_refused("YWM= 258\n", "none has rank 257");
    tiktoken_refused("YWM= 99999999999999999999\n", "bad.model:258: a rank above");
    tiktoken_refused("YWM= -1\n", "the rank is no number");
    tiktoken_refused("YWM= \n", "no rank");
    tiktoken_refused("YWM=\n", "no space");
    tiktoken_refused("YW= 257\n", "no base64");
    tiktoken_refused("YW\xc3\xa9= 257\n", "no base64");
    tiktoken_refused("Y=M= 257\n", "no base64");
    tiktoken_refused("YWN= 257\n", "no base64");                  /* bits beyond the last byte */
    tiktoken_refused(" 257\n", "no base64");
    char *long_line = malloc(3000);
    memset(long_line, 'A', 2999);
    memcpy(long_line + 2984, " 257\n", 6);
    tiktoken_refused(long_line, "more than 1,024 bytes");
    free(long_line);
    put_file("empty.model", "\n\r\n", 3);
    T_CHECK(open_at("tiktoken", "empty.model", 0, 0, &tok, &err) == CDR_EDATA);
    T_HAS(err.text, "holds no token");
    put_file("one.model", "YQ== 0\n", 7);
    T_CHECK(open_at("tiktoken", "one.model", 0, 0, &tok, &err) == CDR_EDATA);
    T_HAS(err.text, "the byte 0x00 alone");
    T_CHECK(open_at("tiktoken", "r.model", 163584, 256, &tok, &err) == CDR_EDATA);
    T_HAS(err.text, "261 tokens, the model has 163584");
    T_CHECK(open_at("tiktoken", "absent.model", 0, 0, &tok, &err) != CDR_OK && !tok);
    err = (cdr_err){ 0 };
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "tiktoken", .dir = dir, .file = "r.model", .pattern = "gpt2" }, &tok, &err) == CDR_EUSER);
    T_HAS(err.text, "kimi, o200k and cl100k");
}

static void names_refused(const char *config, const char *said)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    put_file("tokenizer_config.json", config, strlen(config));
    T_CHECK(open_at("tiktoken", "r.model", 261, 16, &tok, &err) == CDR_EDATA && !tok);
    T_HAS(err.text, said);
}

static void names_of_slots(void)
{
    static const char good[] = "{\"added_tokens_decoder\": {\"262\": {\"content\": \"<|im_end|>\"}, \"261\": {\"content\": \"[BOS]\"}}}";
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    put_file("tokenizer_config.json", good, sizeof good - 1);
    T_CHECK(open_at("tiktoken", "r.model", 261, 16, &tok, &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_vocab(tok) == 277 && cdr_tokenizer_special(tok, "<|im_end|>") == 262);
    T_STR(cdr_tokenizer_special_name(tok, 263), "<|reserved_token_263|>");
    cdr_tokenizer_close(tok);
    names_refused("{\"added_tokens_decoder\": {\"260\": {\"content\": \"x\"}}}", "names id 260, but special slots are 261 to 276");
    names_refused("{\"added_tokens_decoder\": {\"277\": {\"content\": \"x\"}}}", "names id 277");
    names_refused("{\"added_tokens_decoder\": {\"9999999999999999999\": {\"content\": \"x\"}}}", "which is no id");
    names_refused("{\"added_tokens_decoder\": {\"\": {\"content\": \"x\"}}}", "which is no id");
    names_refused("{\"added_tokens_decoder\": {\"261\": {}}}", "261 has no content");
    names_refused("{\"added_tokens_decoder\": {\"261\": {\"content\": \"x\"}, \"262\": {\"content\": \"x\"}}}", "the name x stands for two ids");
    names_refused("{\"added_tokens_decoder\": {\"261\": {\"content\": \"<|reserved_token_262|>\"}}}", "stands for two ids");
    names_refused("{", "tokenizer_config.json");
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    names_refused(deep, "tokenizer_config.json");
    free(deep);
    (void)remove(in_dir("tokenizer_config.json"));
}

int main(int argc, char **argv)
{
    cdr_err err = { 0 };
    if (argc > 1) t_filter = argv[1];
    if (!mkdtemp(dir)) return 1;
    cdr_log_set_level(CDR_LOG_ERROR);
    T_RUN(bytes_and_specials);
    T_RUN(trusted_text);
    T_RUN(pattern_meaning);
    T_RUN(patterns_that_are_not_known);
    T_RUN(byte_written_as_ranks);
    T_RUN(lowest_rank_first);
    T_RUN(long_pieces_as_defined);
    T_RUN(cuts_of_long_texts);
    T_RUN(files_that_lie);
    T_RUN(names_of_slots);
    (void)cdr_remove_tree(dir, &err);
    return t_end();
}
