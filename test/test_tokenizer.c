/* test_tokenizer.c: ids of every kind of tokenizer, specials, and files that lie. */
#include "files.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pattern.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

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
    pieces("\\s|\\S+", "a\xc2\x85\xe2\x80\x8b\xe3\x80\x80", "a|\xc2\x85|\xe2\x80\x8b|\xe3\x80\x80");        /* U+0085 and U+3000 are white space, U+200B is none */
    pieces("a(?=b)|b+", "aabb", "a|a|bb");
    pieces("a(?!b)|[ab]{2}", "aaab", "a|a|ab");
    pieces("(?:(?!x)|a)[a-z]", "axb", "a|x|b");                   /* an assertion before the other way on */
    pieces("\\p{N}{1,3}", "12345678x9", "123|456|78|x|9");
    pieces("a{2}|a{4,}", "aaaaaa", "aa|aa|aa");
    pieces("a{4,}|a", "aaaaaaxaaa", "aaaaaa|x|a|a|a");
    pieces("(a|b){2,3}", "ababab", "aba|bab");
    pieces("[\\p{L}&&[^\\p{Han}]]+|\\p{Han}+", "ab\xe4\xb8\xadk\xc3\xa9", "ab|\xe4\xb8\xad|k\xc3\xa9");
    pieces("(?i:'s|'k)|.", "'S'\xc5\xbf'\xe2\x84\xaa's'x", "'S|'\xc5\xbf|'\xe2\x84\xaa|'s|'|x");
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
        { "(?<n>a)", "\"(?<n\"" }, { "(?<!a)b", "\"(?<!\"" }, { "(?!ab)c", "\"(?!ab\"" }, { "[a", "a class without an end" },
        { "(a", "a ( has no )" }, { "a)", "no ( before it" },
        { "[z-a]", "no range" }, { "a{2", "\"{2\"" }, { "a{3,2}", "no {n}" }, { "a**", "doubled" }, { "[[:alpha:]]", "POSIX" }, { "a*", "nothing at all" },
        { "", "nothing at all" },
        { "(?i:\\p{L})", "without regard to case" }, { "(?:(?:a{100}){100}){100}", "longer than patterns" }, { "\\p{L", "no }" }, { "\\", "nothing follows" },
        { "((((((((((((((((a))))))))))))))))", "nested too deeply" }, { "[[[[[[[[[[[[[[[[[a]]]]]]]]]]]]]]]]]", "nested too deeply" },
        { "*a", "nothing that it belongs to" },
    };
    for (int i = 0; i < CDR_COUNT(table); i++) pattern_refused(table[i][0], table[i][1]);
    char loop[1200] = "(?:";               /* lookaheads in a loop: each leads to all of them */
    for (int i = 0; i < 80; i++) snprintf(loop + strlen(loop), sizeof loop - strlen(loop), "%s(?!%c)", i ? "|" : "", i < 26 ? 'a' + i : i < 52 ? 'A' + i - 26 : '!');
    (void)strcat(loop, ")+");
    pattern_refused(loop, "lookaheads");
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
    put_file(in_dir(name), t.s, t.n);
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
    for (int round = 0; round < 16; round++) {
        int n = 100 + round * 60, m = n;
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
    static const char *const more[] = { "aa", "  ", " a" };
    char *text = malloc(N);
    int32_t *ids = malloc(sizeof *ids * N);
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    ranks_file("cut.model", more, 3, NULL);
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
    T_CHECK(cdr_tokenizer_encode(tok, text, 25002, ids) == 12500 + 1);                     /* the space beyond the cut goes with the "a" */
    for (int i = 0; i < 40001; i++) text[i] = i % 2 ? ' ' : 'a';
    T_CHECK(cdr_tokenizer_encode(tok, text, 40001, ids) == 20001);                         /* no run is long, so nothing is cut: "a", then " a" */
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
    put("empty.model", "\n\r\n");
    T_CHECK(open_at("tiktoken", "empty.model", 0, 0, &tok, &err) == CDR_EDATA);
    T_HAS(err.text, "holds no token");
    put("one.model", "YQ== 0\n");
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
    put("tokenizer_config.json", config);
    T_CHECK(open_at("tiktoken", "r.model", 261, 16, &tok, &err) == CDR_EDATA && !tok);
    T_HAS(err.text, said);
}

static void names_of_slots(void)
{
    static const char good[] = "{\"added_tokens_decoder\": {\"262\": {\"content\": \"<|im_end|>\"}, \"261\": {\"content\": \"[BOS]\"}}}";
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    put("tokenizer_config.json", good);
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

/* ---- tokenizer.json ---------------------------------------------------------------------------------------- */

/* A file with the 256 bytes as vocabulary (ids by byte), and the parts given. %s in order: more vocabulary, merges, more of the model; then the rest. */
typedef struct { const char *vocab, *merges, *model, *normalizer, *pre, *decoder, *added, *more; } parts;

static void put_json(const char *name, const parts *p)
{
    cdr_text t = { 0 };
    int next = 256;
    cdr_text_printf(&t, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":%s,\"added_tokens\":%s,%s"
                    "\"model\":{\"type\":\"BPE\",%s\"merges\":%s,\"vocab\":{", p->normalizer ? p->normalizer : "null",
                    p->pre ? p->pre : "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}", p->decoder ? p->decoder : "{\"type\":\"ByteLevel\"}",
                    p->added ? p->added : "[]", p->more ? p->more : "", p->model ? p->model : "", p->merges ? p->merges : "[]");
    for (int b = 0; b < 256; b++) {
        bool self = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        cdr_text_printf(&t, "%s\"\\u%04x\":%d", b ? "," : "", self ? b : next++, b);
    }
    cdr_text_printf(&t, "%s}}}", p->vocab ? p->vocab : "");
    put_file(in_dir(name), t.s, t.n);
    cdr_text_free(&t);
}

static void json_refused(const parts *p, const char *id, const char *said)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    put_json("bad.json", p);
    T_CHECK(open_at("hf_bpe", "bad.json", 0, 0, &tok, &err) == CDR_EDATA && !tok);
    T_STR(err.id, id);
    T_HAS(err.text, "bad.json: ");
    T_HAS(err.text, said);
    cdr_tokenizer_close(tok);
}

/* The last ids and the last rank that may be: the entry of their pair is not taken for a free place. One merge more is refused. */
static void the_last_rank(void)
{
    enum { LAST_ID = CDR__MAX_VOCAB - 1, LAST = CDR__MAX_RANKS - 1 };
    static const uint32_t at[2] = { 0, 1 };
    cdr_pool *pool = cdr_pool_new();
    cdr__bpe *b = cdr__bpe_new(pool, at, "x", 1, CDR__MAX_RANKS);
    T_CHECK(cdr__bpe_pair(b, LAST_ID, LAST_ID, LAST, 0) && !cdr__bpe_pair(b, LAST_ID, LAST_ID, 5, 0));
    cdr__bpe_finish(b, false);
    cdr_pool_free(pool);
    char *merges = malloc(2 * CDR__MAX_RANKS + 8);
    for (int i = 0; i <= CDR__MAX_RANKS; i++) memcpy(merges + 2 * i, i ? ",0" : "[0", 2);
    memcpy(merges + 2 * CDR__MAX_RANKS + 2, "]", 2);
    json_refused(&(parts){ .merges = merges }, "tokenizer.bad-file", "model.merges has 4194304 merges, more than 4194303");
    free(merges);
}

static void what_json_cannot_say(void)
{
    static const char no[] = "tokenizer.not-in-version", bad[] = "tokenizer.bad-file";
    json_refused(&(parts){ .normalizer = "{\"type\":\"NFKC\"}" }, no, "normalizer is NFKC");
    json_refused(&(parts){ .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}" }, no, "normalizer is Lowercase");
    json_refused(&(parts){ .normalizer = "{\"type\":\"NFC\",\"how\":1}" }, no, "the field \"how\"");
    json_refused(&(parts){ .pre = "{\"type\":\"Metaspace\"}" }, no, "pre_tokenizer is Metaspace");
    json_refused(&(parts){ .pre = "null" }, no, "pre_tokenizer is none");
    json_refused(&(parts){ .pre = "{\"type\":\"ByteLevel\"}" }, no, "add_prefix_space of ByteLevel is true");
    json_refused(&(parts){ .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[]}" }, no, "without ByteLevel");
    json_refused(&(parts){ .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"Digits\"}]}" }, no,
                 "behind ByteLevel is Digits");
    json_refused(&(parts){ .pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Removed\"}" }, no, "behavior of a Split is Removed");
    json_refused(&(parts){ .pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Isolated\",\"invert\":true}" }, no, "invert of a Split is true");
    json_refused(&(parts){ .pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a+?\"},\"behavior\":\"Isolated\"}" }, "tokenizer.pattern", "\"+?\"");
    json_refused(&(parts){ .pre = "{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}" }, bad, "no pattern");
    json_refused(&(parts){ .decoder = "{\"type\":\"WordPiece\"}" }, no, "decoder is WordPiece");
    json_refused(&(parts){ .decoder = "null" }, no, "decoder is none");
    json_refused(&(parts){ .more = "\"fancy\":1," }, no, "the field \"fancy\"");
    json_refused(&(parts){ .model = "\"dropout\":0.1," }, no, "model.dropout");
    json_refused(&(parts){ .model = "\"byte_fallback\":true," }, no, "model.byte_fallback is true");
    json_refused(&(parts){ .model = "\"end_of_word_suffix\":\"</w>\"," }, no, "end_of_word_suffix is </w>");
    json_refused(&(parts){ .model = "\"odd\":1," }, no, "the field \"odd\"");
    json_refused(&(parts){ .vocab = ",\"ab\":99999999999" }, bad, "has the id 99999999999");
    json_refused(&(parts){ .vocab = ",\"ab\":-1" }, bad, "has the id -1");
    json_refused(&(parts){ .vocab = ",\"ab\":\"1\"" }, bad, "no number for \"ab\"");
    json_refused(&(parts){ .vocab = ",\"ab\":97" }, bad, "id 97 is both");
    json_refused(&(parts){ .vocab = ",\"\":256" }, bad, "empty string");
    json_refused(&(parts){ .vocab = ",\"ab\":256", .merges = "[\"a b\",[\"a\",\"b\"]]" }, bad, "model.merges[1] stands there a second time");
    json_refused(&(parts){ .vocab = ",\"ab\":256", .merges = "[\"a bc\"]" }, bad, "model.merges[0] has a token that is not in model.vocab");
    json_refused(&(parts){ .merges = "[\"a b\"]" }, bad, "model.merges[0] gives a token that is not in model.vocab");
    json_refused(&(parts){ .merges = "[\"a b c\"]" }, bad, "model.merges[0] is no pair");
    json_refused(&(parts){ .merges = "[\"ab\"]" }, bad, "model.merges[0] is no pair");
    json_refused(&(parts){ .merges = "[[\"a\",\"b\",\"c\"]]" }, bad, "model.merges[0] is no pair");
    json_refused(&(parts){ .merges = "[7]" }, bad, "model.merges[0] is no pair");
    json_refused(&(parts){ .merges = "{}" }, bad, "model.merges is no list");
    json_refused(&(parts){ .added = "[{\"id\":256,\"content\":\"<x>\"},{\"id\":257,\"content\":\"<x>\"}]" }, bad, "the name <x> stands for two ids");
    json_refused(&(parts){ .added = "[{\"id\":97,\"content\":\"<x>\"}]" }, bad, "id 97 is both");
    json_refused(&(parts){ .vocab = ",\"<x>\":256", .added = "[{\"id\":257,\"content\":\"<x>\"}]" }, bad, "two ids to \"<x>\"");
    json_refused(&(parts){ .vocab = ",\"\xe2\x96\x81x\":256", .added = "[{\"id\":257,\"content\":\"\xe2\x96\x81x\"}]" }, bad, "two ids to");
    json_refused(&(parts){ .added = "[{\"id\":256}]" }, bad, "has no content");
    json_refused(&(parts){ .added = "[{\"id\":256,\"content\":\"x\",\"odd\":true}]" }, no, "the field \"odd\"");
    json_refused(&(parts){ .vocab = ",\"<x>\":256,\"<x>a\":257", .merges = "[\"<x> a\"]", .added = "[{\"id\":256,\"content\":\"<x>\"}]" }, bad, "or is a control token");
    put("bad.json", "[]");
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    T_CHECK(open_at("hf_bpe", "bad.json", 0, 0, &tok, &err) == CDR_EDATA);
    put("bad.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
             "\"decoder\":{\"type\":\"ByteLevel\"}}");
    T_CHECK(open_at("hf_bpe", "bad.json", 0, 0, &tok, &err) == CDR_EDATA);
    T_HAS(err.text, "the byte 0x00 alone");
}

/* White space that was added is text, found in user text too; a string outside of the byte map is decoded as it stands. */
static void added_and_odd_tokens(void)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err;
    int32_t ids[64];
    put_json("odd.json", &(parts){ .vocab = ",\"ab\":256,\"\xe2\x96\x81\":257,\"<s>\":258", .merges = "[\"a b\"]",
                                   .added = "[{\"id\":258,\"content\":\"<s>\",\"special\":false},{\"id\":300,\"content\":\"   \",\"special\":false}]" });
    put("tokenizer_config.json", "{\"eos_token\":{\"content\":\"<s>\"},\"pad_token\":\"<none>\",\"bos_token\":null}");
    T_CHECK(open_at("hf_bpe", "odd.json", 0, 0, &tok, &err) == CDR_OK);
    T_STR(err.text, "");
    if (!tok) return;
    T_CHECK(cdr_tokenizer_vocab(tok) == 301 && cdr_tokenizer_eos(tok) == 258 && cdr_tokenizer_bos(tok) == -1 && cdr_tokenizer_pad(tok) == -1);
    ids_of(tok, "ab<s>", (const int32_t[]){ 256, '<', 's', '>' }, 4);
    ids_of(tok, "a    b", (const int32_t[]){ 'a', 300, ' ', 'b' }, 4);
    T_CHECK(cdr_tokenizer_encode_trusted(tok, "ab<s>   ab", 10, ids) == 4 && ids[0] == 256 && ids[1] == 258 && ids[2] == 300 && ids[3] == 256);
    ids_of(tok, "\xe2\x96\x81\xff", (const int32_t[]){ 0xe2, 0x96, 0x81, 0xff }, 4);
    cdr_text out = { 0 };
    T_CHECK(cdr_tokenizer_decode(tok, (const int32_t[]){ 256, 257, 258, 299, 300 }, 5, false, &out));
    T_CHECK(out.n == 8 && memcmp(out.s, "ab\xe2\x96\x81   ", 8) == 0);
    cdr_text_free(&out);
    T_CHECK(cdr_tokenizer_write_tiktoken(tok, dir, "no.model", &err) == CDR_EUSER);
    T_STR(err.id, "tokenizer.not-ranks");
    cdr_tokenizer_close(tok);
    (void)remove(in_dir("tokenizer_config.json"));
}

/* Composition: marks of one class in their order, blocked ones stay, Hangul by arithmetic, what is no UTF-8 stays where it is. */
static void canonical_composition(void)
{
    static const char *const table[][2] = {
        { "a\xcc\x81", "\xc3\xa1" },                                             /* a U+0301 */
        { "a\xcc\x85\xcc\x81", "a\xcc\x85\xcc\x81" },                        /* U+0305 has the class of U+0301 and blocks it */
        { "a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81" },                    /* U+0323 has a lower class, goes first and composes */
        { "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81" },      /* U+1100 U+1161 U+11A8 */
        { "\xe2\x84\xa6", "\xce\xa9" },                                         /* U+2126 is U+03A9 */
        { "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc" },                     /* U+0958 is never composed */
        { "e\xff\xcc\x81", "e\xff\xcc\x81" }, { "", "" }, { "abc", "abc" },
    };
    for (int i = 0; i < CDR_COUNT(table); i++) {
        cdr_text t = { 0 };
        size_t n = strlen(table[i][0]), want = strlen(table[i][1]);
        cdr__nfc(table[i][0], n, &t);
        T_CHECK(t.n == want && (want == 0 || memcmp(t.s, table[i][1], want) == 0));
        T_CHECK(!cdr__nfc_is(table[i][0], n) || strcmp(table[i][0], table[i][1]) == 0);
        cdr_text_free(&t);
    }
}

/* ---- cuts that change nothing ------------------------------------------------------------------------------------- */

/* Letters of which every pair is a token, so that hardly a border moves without another id. */
static const char LETTERS[] = "aB \n1,'s";
enum { N_LETTERS = sizeof LETTERS - 1 };

static const char *mapped(char c)
{
    static char text[8][8];
    static int k;
    char *s = text[k = (k + 1) % 8];
    (void)snprintf(s, 8, "%s%c", c == ' ' || c == '\n' ? "\xc4" : "", c == ' ' ? 0xa0 : c == '\n' ? 0x8a : c);
    return s;
}

/* tokenizer.json of these pairs with a list of pre-tokenizers in front of ByteLevel. */
static void pairs_json(const char *name, const char *normalizer, const char *pre, const char *added)
{
    cdr_text vocab = { 0 }, merges = { 0 }, list = { 0 };
    for (int i = 0; i < N_LETTERS * N_LETTERS; i++) {
        const char *a = mapped(LETTERS[i / N_LETTERS]), *b = mapped(LETTERS[i % N_LETTERS]);
        cdr_text_printf(&vocab, ",\"%s%s\":%d", a, b, 256 + i);
        cdr_text_printf(&merges, "%s[\"%s\",\"%s\"]", i ? "," : "[", a, b);
    }
    cdr_text_printf(&merges, "]");
    cdr_text_printf(&list, "{\"type\":\"Sequence\",\"pretokenizers\":[%s{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}", pre);
    put_json(name, &(parts){ .vocab = vocab.s, .merges = merges.s, .normalizer = normalizer, .pre = list.s, .added = added });
    cdr_text_free(&vocab);
    cdr_text_free(&merges);
    cdr_text_free(&list);
}

static void pairs_ranks(const char *name)
{
    static char pair[N_LETTERS * N_LETTERS][3];
    const char *more[N_LETTERS * N_LETTERS];
    for (int i = 0; i < N_LETTERS * N_LETTERS; i++) {
        pair[i][0] = LETTERS[i / N_LETTERS];
        pair[i][1] = LETTERS[i % N_LETTERS];
        more[i] = pair[i];
    }
    ranks_file(name, more, N_LETTERS * N_LETTERS, NULL);
}

#define SPLIT(regex) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"},"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+"
#define LINES "\\\\p{L}+|\\\\s*[\\\\r\\\\n]+|\\\\s+"

/* Wherever the tokenizer says that a text can be cut: the ids of the whole are those of its parts. places: how many it finds, at least. */
static void cuts_of(cdr_tokenizer *tok, const char *name, int places)
{
    static const char *const more[] = { "\xe4\xbd\xa0", "\xcc\x81", "\xc3\xa9", "\xe3\x80\x80", "\xff", "\xe4\xbd", "   ", "\n\n" };
    enum { N = 500, ROUNDS = 12 };
    int32_t whole[4 * N], part[4 * N];
    int n_places = 0, bad = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char text[N + 8];
        size_t n = 0;
        for (int i = 0; n < N; i++) {
            uint64_t x = cdr_rng_u64((cdr_rng_key){ 7, (uint64_t)round, 0 }, (uint64_t)i);
            const char *s = x % 8 == 0 ? more[x / 8 % CDR_COUNT(more)] : (const char[]){ LETTERS[x / 8 % N_LETTERS], 0 };
            for (; *s; s++) text[n++] = *s;
        }
        int64_t k = cdr_tokenizer_encode(tok, text, n, whole);
        for (size_t at = 1; (at = cdr_tokenizer_cut(tok, text, n, at)) < n; at++, n_places++) {
            int64_t a = cdr_tokenizer_encode(tok, text, at, part), b = cdr_tokenizer_encode(tok, text + at, n - at, part + a);
            bad += a + b != k || memcmp(whole, part, sizeof *part * (size_t)k) != 0;
        }
    }
    if (bad || n_places < places) fprintf(stderr, "  %s: %d of %d cuts change the ids\n", name, bad, n_places);
    T_CHECK(bad == 0 && n_places >= places && (places > 0 || n_places == 0));
}

static void a_cut_leaves_ids_as_they_are(void)
{
    static const char *const patterns[] = { "o200k", "cl100k" }, *const golden[] = { "deepseek", "digit_runs", "digits", "gpt4o", "llama3", "qwen2" };
    static const struct { const char *name, *normalizer, *pre, *added; int places; } pairs[] = {
        { "no split", NULL, "", NULL, 0 },
        { "gpt2", NULL, SPLIT(GPT2), NULL, 600 },
        { "nfc", "{\"type\":\"NFC\"}", SPLIT(GPT2), NULL, 500 },
        { "digits alone", NULL, "{\"type\":\"Digits\",\"individual_digits\":true},", NULL, 400 },
        { "digits, then gpt2", NULL, "{\"type\":\"Digits\",\"individual_digits\":true}," SPLIT(GPT2), NULL, 900 },
        { "holes", NULL, SPLIT("a+B") SPLIT("1 ?"), NULL, 60 },
        { "a run of spaces that was added", NULL, SPLIT(" ") SPLIT("[aB1]"), "[{\"id\":400,\"content\":\"   \",\"special\":false}]", 60 },
        { "added beside words", NULL, SPLIT(LINES), "[{\"id\":400,\"content\":\"\\n\\n\",\"special\":false,\"single_word\":true}]", 0 },
    };
    cdr_tokenizer *tok = NULL;
    cdr_err err = { 0 };
    pairs_ranks("pairs.model");
    for (int i = 0; i < CDR_COUNT(patterns); i++) {
        cdr_tokenizer_spec s = { .type = "tiktoken", .dir = dir, .file = "pairs.model", .pattern = patterns[i] };
        T_CHECK(cdr_tokenizer_open(&s, &tok, &err) == CDR_OK);
        cuts_of(tok, patterns[i], 600);
        cdr_tokenizer_close(tok);
    }
    for (int i = 0; i < CDR_COUNT(pairs); i++) {
        pairs_json("pairs.json", pairs[i].normalizer, pairs[i].pre, pairs[i].added);
        T_CHECK(open_at("hf_bpe", "pairs.json", 0, 0, &tok, &err) == CDR_OK);
        T_STR(err.text, "");
        if (tok) cuts_of(tok, pairs[i].name, pairs[i].places);
        cdr_tokenizer_close(tok);
    }
    for (int i = 0; i < CDR_COUNT(golden); i++) {
        char file[40];
        (void)snprintf(file, sizeof file, "%s.json", golden[i]);
        T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "hf_bpe", .dir = "test/golden/tokenizer", .file = file }, &tok, &err) == CDR_OK);
        cuts_of(tok, golden[i], 500);
        cdr_tokenizer_close(tok);
    }
}

/* ---- what tiktoken and tokenizers say (tools/peers/tokenizers.py golden) --------------------------------------- */

static void one_case(const cdr_json *j, cdr_tokenizer **tok, cdr_text *file)
{
    const char *name = cdr_json_str(cdr_json_at(j, 0), ""), *pattern = cdr_json_str(cdr_json_at(j, 1), ""), *text = cdr_json_str(cdr_json_at(j, 3), "");
    const cdr_json *want = cdr_json_at(j, 4);
    bool trusted = cdr_json_bool(cdr_json_at(j, 2), false), same = true;
    size_t n = strlen(text);
    char key[128];
    snprintf(key, sizeof key, "%s %s", name, pattern);
    if (!*tok || !file->s || strcmp(file->s, key) != 0) {
        cdr_err err = { 0 };
        cdr_tokenizer_close(*tok);
        *tok = NULL;
        file->n = 0;
        cdr_text_printf(file, "%s", key);
        cdr_tokenizer_spec s = { .type = strstr(name, ".json") ? "hf_bpe" : "tiktoken", .dir = "test/golden/tokenizer", .file = name, .pattern = pattern };
        T_CHECK(cdr_tokenizer_open(&s, tok, &err) == CDR_OK);
        T_STR(err.text, "");
    }
    if (!*tok) return;
    int32_t *ids = malloc(sizeof *ids * ((size_t)cdr_tokenizer_room(*tok, n) + 1));
    int64_t k = trusted ? cdr_tokenizer_encode_trusted(*tok, text, n, ids) : cdr_tokenizer_encode(*tok, text, n, ids);
    for (int64_t i = 0; i < k; i++) {
        same = same && ids[i] == cdr_json_int(cdr_json_at(want, i), -1);
        if (!trusted) T_CHECK(!cdr_tokenizer_special_name(*tok, ids[i]));
    }
    if (k != cdr_json_count(want) || !same) fprintf(stderr, "  %s%s: ids of \"%s\"\n", key, trusted ? ", trusted" : "", text);
    T_CHECK(k == cdr_json_count(want) && same);
    cdr_text back = { 0 };
    T_CHECK(cdr_tokenizer_decode(*tok, ids, k, true, &back));
    if (!trusted && !strstr(name, "qwen2")) T_CHECK(back.n == n && (n == 0 || memcmp(back.s, text, n) == 0));
    cdr_text_free(&back);
    free(ids);
}

static int golden_part(const char *path)
{
    char *text;
    size_t bytes;
    int n = 0;
    cdr_err err = { 0 };
    cdr_tokenizer *tok = NULL;
    cdr_text file = { 0 };
    T_CHECK(cdr_file_read(path, (size_t)1 << 24, &text, &bytes, &err) == CDR_OK);
    for (char *line = text, *end; *line; line = end + 1, n++) {
        cdr_pool *pool = cdr_pool_new();
        const cdr_json *j = NULL;
        end = strchr(line, '\n');
        T_CHECK(cdr_json_parse(pool, line, (size_t)(end - line), path, &j, &err) == CDR_OK);
        one_case(j, &tok, &file);
        cdr_pool_free(pool);
    }
    cdr_tokenizer_close(tok);
    cdr_text_free(&file);
    cdr_free(text);
    return n;
}

static void ids_of_the_packages(void)
{
    T_CHECK(golden_part("test/golden/tokenizer/cases0.jsonl") + golden_part("test/golden/tokenizer/cases1.jsonl") > 1500);
}

int main(int argc, char **argv)
{
    if (argc > 1) t_filter = argv[1];
    if (!files_open("tokenizer")) return 1;
    cdr_log_set_level(CDR_LOG_ERROR);
    T_RUN(bytes_and_specials);
    T_RUN(trusted_text);
    T_RUN(pattern_meaning);
    T_RUN(patterns_that_are_not_known);
    T_RUN(byte_written_as_ranks);
    T_RUN(lowest_rank_first);
    T_RUN(long_pieces_as_defined);
    T_RUN(the_last_rank);
    T_RUN(cuts_of_long_texts);
    T_RUN(files_that_lie);
    T_RUN(names_of_slots);
    T_RUN(what_json_cannot_say);
    T_RUN(added_and_odd_tokens);
    T_RUN(canonical_composition);
    T_RUN(a_cut_leaves_ids_as_they_are);
    T_RUN(ids_of_the_packages);
    files_close();
    return t_end();
}
