/* test_tokens.c: weights of turns; token files of ours and of others; text by way of words; threads and the cache. */
#include "talk_rig.h"

/* ---- weights of turns ------------------------------------------------------------------------------------------------------------ */

static void weighted_turns(void)
{
    put("w.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"weight\": 0.5}, {\"role\": \"user\", "
        "\"content\": \"R\"}, "
                   "{\"role\": \"assistant\", \"content\": \"B\", \"loss_scale\": 3}, {\"role\": \"user\", \"content\": \"R\"}, {\"role\": \"assistant\", "
                       "\"content\": \"C\"}]}");
    cdr_data_source src = { .path = in_dir("w.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    static int32_t tokens[1024], targets[1024], start[1024], pos[1024];
    static float weights[1024];
    int64_t n_trained, n_rows, n[3] = { 0 };
    T_STR(view(d, false, 0), USER("Q") BOT("A") USER("R") BOT("B") USER("R") BOT("C"));
    T_CHECK(cdr_data_weighted(d));
    cdr_data_shard(d, 0, 0, 1, tokens, targets, start, pos, weights, &n_trained, &n_rows);
    for (int t = 0; t < 1024; t++) {
        if (targets[t] < 0) T_CHECK(weights[t] == 1);
        else n[weights[t] == 0.5f ? 0 : weights[t] == 3 ? 1 : 2]++;
        if (targets[t] == 'A') T_CHECK(weights[t] == 0.5f);
        if (targets[t] == 'B') T_CHECK(weights[t] == 3);
        if (targets[t] == 'C') T_CHECK(weights[t] == 1);
    }
    T_CHECK(n[0] == n[1] && n[1] == n[2] && n[0] * 3 == n_trained);
    uint64_t one = cdr_data_fingerprint(d);
    cdr_data_close(d);
    put("w.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"weight\": 0.25}, {\"role\": \"user\", "
        "\"content\": \"R\"}, "
                   "{\"role\": \"assistant\", \"content\": \"B\", \"loss_scale\": 3}, {\"role\": \"user\", \"content\": \"R\"}, {\"role\": \"assistant\", "
                       "\"content\": \"C\"}]}");
    d = open_or_fail(&o);
    T_CHECK(cdr_data_fingerprint(d) != one);
    cdr_data_close(d);
    put("w.jsonl", TWO_TURNS);
    d = open_or_fail(&o);
    T_CHECK(!cdr_data_weighted(d));
    cdr_data_close(d);
    cdr_text large = { 0 };                           /* over several jobs, which meet the weights in another order */
    for (int i = 0; i < 6000; i++)
        cdr_text_printf(&large, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"%c\", \"weight\": 0.%d}]}\n",
                        i < 3000 ? 'A' + i % 4 : 'D' - i % 4, i < 3000 ? 1 + i % 4 : 4 - i % 4);
    put("w.jsonl", large.s);
    cdr_text_free(&large);
    o.threads = 2;
    d = open_or_fail(&o);
    int64_t n_seen = 0;
    for (int64_t step = 0; step < cdr_data_stats(d)->rows_epoch0; step++) {
        cdr_data_shard(d, step, 0, 1, tokens, targets, start, pos, weights, &n_trained, &n_rows);
        for (int t = 0; t < 1024; t++)
            if (targets[t] >= 'A' && targets[t] <= 'D') {
                T_CHECK(fabsf(weights[t] - 0.1f * (float)(targets[t] - 'A' + 1)) < 1e-6f);
                n_seen++;
            }
    }
    T_CHECK(n_seen == 6000);
    cdr_data_close(d);
    refused("w.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"A\", \"weight\": -1}]}", NULL, "data.field", "messages[0].weight");
    cdr_text many = { 0 };                            /* more different ones than a table holds */
    for (int i = 0; i < 130; i++)
        cdr_text_printf(&many, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"weight\": 2.%d}]}\n", i + 100);
    refused("w.jsonl", many.s, NULL, "data.weight", "different weights");
    cdr_text_free(&many);
}

/* ---- token files -------------------------------------------------------------------------------------------------------------------- */

static void same_rows(cdr_data *a, cdr_data *b, int64_t steps)
{
    for (int64_t step = 0; step < steps; step++) {
        shard x = *get(a, step, 0, 1);
        T_CHECK(memcmp(&x, get(b, step, 0, 1), sizeof x) == 0);
    }
}

static void packed_and_read_again(void)
{
    put("p.txt", "Some text\nof two lines.");
    cdr_data_source src[2] = { { .path = in_dir("talks.jsonl") }, { .path = in_dir("p.txt"), .weight = 2 } };
    put("w.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"weight\": 0.5}]}\n" TWO_TURNS);
    cdr_data_opts o = opts_of(src, 2);
    o.sequence_length = S;
    o.micro_batch_tokens = MICRO;
    o.eval_fraction = 0.2;
    cdr_data *d = open_or_fail(&o);
    static const char *const NAMES[] = { "talks", "p" };
    cdr_data_packed out[3];
    cdr_err err = { 0 };
    cdr_pool *pool = cdr_pool_new();
    int n = 0;
    T_CHECK(cdr_data_write(d, in_dir("packed"), NAMES, pool, out, &n, &err) == CDR_OK && n == 3);
    T_CHECK(out[0].n_documents + out[1].n_documents == cdr_data_docs(d, false) && out[2].n_documents == cdr_data_docs(d, true));
    cdr_data_source again[2] = { { .path = out[0].path }, { .path = out[1].path, .weight = 2, .format = "tokens" } }, held = { .path = out[2].path };
    cdr_data_opts p = opts_of(again, 2);
    p.sequence_length = S;
    p.micro_batch_tokens = MICRO;
    p.eval = &held;
    p.n_eval = 1;
    cdr_data *e = open_or_fail(&p);
    same_rows(d, e, 30);
    T_CHECK(cdr_data_stats(e)->eval_trained == cdr_data_stats(d)->eval_trained && cdr_data_stats(e)->eval_predicted_bytes == cdr_data_stats(d)->eval_predicted_bytes);
    T_CHECK(cdr_data_stats(e)->n_conversations == out[0].n_documents);
    cdr_data_look look;
    T_CHECK(cdr_data_sniff(out[0].path, pool, &look) && look.n_records == out[0].n_documents && look.n_trained == out[0].n_trained && look.n_tokens == out[0].n_tokens);
    cdr_data_close(d);
    cdr_data_close(e);
    /* weights survive; another tokenizer's file is refused; so is a file that was changed */
    src[0].path = in_dir("w.jsonl");
    o = opts_of(src, 1);
    d = open_or_fail(&o);
    T_CHECK(cdr_data_write(d, in_dir("packed2"), NAMES, pool, out, &n, &err) == CDR_OK && n == 1);
    again[0].path = out[0].path;
    p = opts_of(again, 1);
    e = open_or_fail(&p);
    T_CHECK(cdr_data_weighted(e));
    static int32_t tokens[1024], targets[1024], start[1024], pos[1024];
    static float weights[2][1024];
    int64_t n_trained, n_rows;
    cdr_data_shard(d, 0, 0, 1, tokens, targets, start, pos, weights[0], &n_trained, &n_rows);
    cdr_data_shard(e, 0, 0, 1, tokens, targets, start, pos, weights[1], &n_trained, &n_rows);
    T_CHECK(memcmp(weights[0], weights[1], sizeof weights[0]) == 0);
    cdr_data_close(d);
    cdr_data_close(e);
    char *bytes;
    size_t size;
    T_CHECK(cdr_file_read(out[0].path, 1 << 20, &bytes, &size, &err) == CDR_OK);
    for (int k = 0; k < 5; k++) {                     /* 8192: where the words begin */
        char *copy = malloc(size);
        memcpy(copy, bytes, size);
        size_t len = size;
        if (k == 0) memset(copy + 8192 + 8, 0x7f, 4);                 /* an id beyond the vocabulary */
        if (k == 1) copy[8192 + 3] = (char)0x80;                      /* the first token a target */
        if (k == 2) copy[8192 + 11] = (char)(copy[8192 + 11] ^ 0x80); /* one target more or less than the row says */
        if (k == 3) len -= 40;
        if (k == 4) *strstr(copy + 8, "\"tokenizer\":\"") = '_';
        put_file(in_dir("packed2/bad.tokens"), copy, len);
        cdr_data_source bad = { .path = in_dir("packed2/bad.tokens") };
        p = opts_of(&bad, 1);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_data_open(&p, &e, &err) == CDR_EDATA);
        T_HAS(err.text, "bad.tokens");
        free(copy);
    }
    cdr_free(bytes);
    cdr_pool_free(pool);
}

static void put_u64(cdr_text *t, uint64_t x) { cdr_text_append(t, (const char *)&x, 8); }

/* Three sequences in two documents, as Megatron-LM's builder lays them out. type 8: u16, 4: i32 */
static void put_megatron(const char *stem, int type, int64_t shift)
{
    cdr_text idx = { 0 }, bin = { 0 };
    static const int32_t LENGTHS[] = { 3, 2, 4 };
    static const uint64_t DOCUMENTS[] = { 0, 2, 3 };
    char name[64];
    cdr_text_append(&idx, "MMIDIDX\0\0", 9);
    put_u64(&idx, 1);
    cdr_text_append(&idx, &(char){ (char)type }, 1);
    put_u64(&idx, 3);
    put_u64(&idx, 3);
    cdr_text_append(&idx, (const char *)LENGTHS, sizeof LENGTHS);
    for (uint64_t i = 0, at = 0; i < 3; at += (uint64_t)LENGTHS[i++] * (type == 8 ? 2 : 4)) put_u64(&idx, at + (uint64_t)(i == 2 ? shift : 0));
    for (int i = 0; i < 3; i++) put_u64(&idx, DOCUMENTS[i]);
    for (int32_t i = 0; i < 9; i++) {
        int32_t id = 'a' + i;
        cdr_text_append(&bin, (const char *)&id, type == 8 ? 2 : 4);
    }
    (void)snprintf(name, sizeof name, "%s.idx", stem);
    put_file(in_dir(name), idx.s, idx.n);
    (void)snprintf(name, sizeof name, "%s.bin", stem);
    put_file(in_dir(name), bin.s, bin.n);
    cdr_text_free(&idx);
    cdr_text_free(&bin);
}

static void put_llmc(const char *name, int32_t magic, int32_t version, int32_t n, int32_t said)
{
    int32_t header[256] = { magic, version, said };
    cdr_text t = { 0 };
    cdr_text_append(&t, (const char *)header, sizeof header);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = '0' + i;
        cdr_text_append(&t, (const char *)&id, magic == 20240801 ? 4 : 2);
    }
    put_file(in_dir(name), t.s, t.n);
    cdr_text_free(&t);
}

/* Words that are checked at the opening and changed after it: arrays hold ids of the vocabulary, and who asks is told, once. */
static void changed_while_it_is_read(void)
{
    static const struct { const char *name; int64_t at; uint32_t is; int size; const char *text; } CASE[] = {
        { "packed3/text.tokens", 8192, 0x007fffff, 4, "text.tokens (document of line 1): now holds id 8388607, of a vocabulary of 512;" },
        { "packed3/text.tokens", 8192, 0x7f000041, 4, "text.tokens (document of line 1): now holds a weight that its table has not;" },
        { "tok/m.bin", 4, 0x01000041, 4, "m.bin (document of line 1): now holds id 16777281" },
        { "l.bin", 1024 + 2, 0xfffe, 2, "l.bin: now holds id 65534" } };
    static int32_t a[4][1024];
    static float weights[1024];
    static const char *const NAMES[] = { "text" };
    cdr_pool *pool = cdr_pool_new();
    cdr_err err = { 0 };
    int64_t n_trained, n_rows;
    put("plain.txt", "a text of some length");
    cdr_data_source src = { .path = in_dir("plain.txt") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    cdr_data_packed out[2];
    int n;
    T_CHECK(cdr_data_write(d, in_dir("packed3"), NAMES, pool, out, &n, &err) == CDR_OK && cdr_make_dirs(in_dir("tok"), &err) == CDR_OK);
    cdr_data_close(d);
    put_megatron("tok/m", 4, 0);
    put_llmc("l.bin", 20240520, 1, 9, 9);
    for (int i = 0; i < CDR_COUNT(CASE); i++) {
        src.path = in_dir(CASE[i].name);
        o = opts_of(&src, 1);
        cdr_data_source held = { .path = src.path };
        o.eval = &held;
        o.n_eval = 1;
        d = open_or_fail(&o);
        FILE *f = fopen(src.path, "r+b");
        uint32_t old = 0;
        T_CHECK(f && fseek(f, CASE[i].at, SEEK_SET) == 0 && fread(&old, (size_t)CASE[i].size, 1, f) == 1);
        T_CHECK(cdr_data_fault(d, &err) == CDR_OK);
        T_CHECK(f && fseek(f, CASE[i].at, SEEK_SET) == 0 && fwrite(&CASE[i].is, (size_t)CASE[i].size, 1, f) == 1 && fflush(f) == 0);
        for (int k = 0; k < 2; k++) {
            err = (cdr_err){ 0 };
            if (k == 0) cdr_data_shard(d, 0, 0, 1, a[0], a[1], a[2], a[3], weights, &n_trained, &n_rows);
            else cdr_data_eval_shard(d, 0, a[0], a[1], a[2], a[3], &n_trained, &n_rows);
            const int vocab = cdr_tokenizer_vocab(tok);
            for (int t = 0; t < 1024; t++) T_CHECK(a[0][t] >= 0 && a[0][t] < vocab && a[1][t] < vocab && weights[t] == 1);
            T_CHECK(cdr_data_fault(d, &err) == CDR_EDATA);
            T_STR(err.id, "data.changed");
            T_HAS(err.text, CASE[i].text);
            T_CHECK(cdr_data_fault(d, &err) == CDR_OK);
        }
        T_CHECK(f && fseek(f, CASE[i].at, SEEK_SET) == 0 && fwrite(&old, (size_t)CASE[i].size, 1, f) == 1 && fclose(f) == 0);
        cdr_data_shard(d, 0, 0, 1, a[0], a[1], a[2], a[3], weights, &n_trained, &n_rows);
        T_CHECK(cdr_data_fault(d, &err) == CDR_OK);
        cdr_data_close(d);
    }
    cdr_pool_free(pool);
}

/* Rows that are no I64 are shorter than they would be read: no token file of ours. */
static void tables_of_another_type_are_not_looked_into(void)
{
    static const char *const type[] = { "I64", "U8" };
    static const int bytes[] = { 128, 16 };
    cdr_pool *pool = cdr_pool_new();
    for (int i = 0; i < 2; i++) {
        char file[512] = { 0 };
        uint64_t n = 256;
        cdr_data_look look;
        memset(file + 8, ' ', 256);
        memcpy(file, &n, sizeof n);
        n = (uint64_t)snprintf(file + 8, 256, "{\"__metadata__\":{\"format\":\"cadre-tokens\",\"version\":\"1\"},\"words\":{\"dtype\":\"U32\",\"shape\":[2],"
                               "\"data_offsets\":[0,8]},\"rows\":{\"dtype\":\"%s\",\"shape\":[4,4],\"data_offsets\":[8,%d]}}", type[i], 8 + bytes[i]);
        file[8 + n] = ' ';
        put_file(in_dir("look.tokens"), file, (size_t)(8 + 256 + 8 + bytes[i]));
        T_CHECK(cdr_data_sniff(in_dir("look.tokens"), pool, &look) && (look.n_records == 4) == (i == 0) && (look.n_tokens == 2) == (i == 0));
    }
    cdr_pool_free(pool);
}

static void token_files_of_others(void)
{
    cdr_err err = { 0 };
    T_CHECK(cdr_make_dirs(in_dir("tok"), &err) == CDR_OK);
    for (int type = 4; type <= 8; type += 4) {
        put_megatron("tok/m", type, 0);
        static const char *const PATHS[] = { "tok/m.bin", "tok/m.idx", "tok" };
        for (int k = 0; k < 3; k++) {
            cdr_data_source src = { .path = in_dir(PATHS[k]) };
            cdr_data_opts o = opts_of(&src, 1);
            cdr_data *d = open_or_fail(&o);
            T_CHECK(cdr_data_docs(d, false) == 2);
            T_STR(view(d, false, 0), "a[bcde]");
            T_STR(view(d, false, 1), "f[ghi]");
            cdr_data_close(d);
        }
    }
    for (int k = 0; k < 2; k++) {
        put_llmc("l.bin", k ? 20240801 : 20240520, k ? 7 : 1, 9, 9);
        cdr_data_source src = { .path = in_dir("l.bin") };
        cdr_data_opts o = opts_of(&src, 1);
        o.sequence_length = o.micro_batch_tokens = 4; /* one document, cut at multiples of the row */
        cdr_data *d = open_or_fail(&o);
        T_STR(view(d, false, 0), "0[12345678]");
        T_CHECK(cdr_data_stats(d)->epoch_samples == 2 && cdr_data_stats(d)->epoch_trained == 8);
        cdr_data_close(d);
    }
    static const struct { int32_t magic, version, n, said; } BAD[] = { { 20240520, 2, 9, 9 }, { 20240520, 1, 9, 10 }, { 20240801, 7, 9, 1 << 30 }, { 20240520, 1, 9, -1 },
                                                                       { 20240520, 1, 900, 900 } };
    for (int i = 0; i < CDR_COUNT(BAD); i++) {
        put_llmc("l.bin", BAD[i].magic, BAD[i].version, BAD[i].n, BAD[i].said);
        cdr_data_source src = { .path = in_dir("l.bin") };
        cdr_data_opts o = opts_of(&src, 1);
        cdr_data *d;
        err = (cdr_err){ 0 };
        T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EDATA);
        T_STR(err.id, i == 4 ? "tokenizer.vocab-mismatch" : "data.tokens");
    }
    static const int64_t SHIFTS[] = { 2, -4, INT64_MAX / 2, -INT64_MAX };
    for (int i = 0; i < CDR_COUNT(SHIFTS); i++) {     /* pointers that lead elsewhere */
        put_megatron("tok/m", 4, SHIFTS[i] == 2 ? 16 : SHIFTS[i]);
        cdr_data_source src = { .path = in_dir("tok/m.bin") };
        cdr_data_opts o = opts_of(&src, 1);
        cdr_data *d;
        err = (cdr_err){ 0 };
        bool ok = cdr_data_open(&o, &d, &err) == CDR_OK;
        T_CHECK(ok == (SHIFTS[i] == -4));             /* a document may begin anywhere inside */
        if (ok) cdr_data_close(d);
        else T_STR(err.id, "data.tokens");
    }
    put_file(in_dir("tok/m.idx"), "MMIDIDX\0\0\1\0\0\0\0\0\0\0\4\377\377\377\377\377\377\377\177\3\0\0\0\0\0\0\0", 34);
    cdr_data_source src = { .path = in_dir("tok/m.bin") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EDATA);
    T_STR(err.id, "data.tokens");
    T_HAS(err.text, "its header describes more");
    put("x.bin", "no tokens");
    refused("x.bin", "no tokens", &(cdr_data_source){ .format = "tokens" }, "data.tokens", "is no file of tokens");
}

/* ---- a tokenizer of longer tokens: the same rows by way of words; the cache; threads ---------------------------------------------------- */

static int n_files(const char *path, const char *end)
{
    char command[1200];
    (void)snprintf(command, sizeof command, "ls '%s' 2>/dev/null | grep -c '%s$'", path, end);
    FILE *f = popen(command, "r");
    int n = -1;
    if (f && fscanf(f, "%d", &n) != 1) n = -1;
    if (f) (void)pclose(f);
    return n;
}

static void text_as_words(void)
{
    cdr_tokenizer *bpe = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr_make_dirs(in_dir("bpe"), &err) == CDR_OK && cdr_tokenizer_write_tiktoken(tok, in_dir("bpe"), "tiktoken.model", &err) == CDR_OK);
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "tiktoken", .dir = in_dir("bpe"), .file = "tiktoken.model", .base = 256, .special = 256 }, &bpe,
        &err) == CDR_OK);
    if (!bpe) return;
    size_t size = 3 << 20;                            /* over several parts, lines of all kinds */
    char *text = malloc(size + 1);
    for (size_t i = 0; i < size; i++) text[i] = draw(i) % 50 == 0 ? '\n' : draw(i) % 7 == 0 ? ' ' : (char)('A' + draw(i) % 58);
    text[size] = 0;
    put("big.txt", text);
    free(text);
    cdr_data_source src[2] = { { .path = in_dir("big.txt") }, { .path = in_dir("p.txt") } };
    cdr_data_opts o = opts_of(src, 2), p = o;
    o.eval_fraction = p.eval_fraction = 0.1;
    p.tokenizer = bpe;
    p.threads = 2;
    cdr_data *d = open_or_fail(&o);
    p.cache = in_dir("cache");
    for (int k = 0; k < 3; k++) {                     /* made, read from the cache, without one */
        if (k == 2) p.cache = NULL;
        cdr_data *e = open_or_fail(&p);
        T_CHECK(cdr_data_stats(e)->epoch_trained == cdr_data_stats(d)->epoch_trained && cdr_data_stats(e)->eval_trained == cdr_data_stats(d)->eval_trained);
        T_CHECK(cdr_data_stats(e)->eval_predicted_bytes == cdr_data_stats(d)->eval_predicted_bytes && cdr_data_stats(e)->train_bytes == cdr_data_stats(d)->train_bytes);
        static int32_t a[8][1024];
        int64_t n_trained[2], n_rows[2];
        for (int64_t step = 0; step < 200; step += 7) {
            cdr_data_shard(d, step, 0, 1, a[0], a[1], a[2], a[3], NULL, &n_trained[0], &n_rows[0]);
            cdr_data_shard(e, step, 0, 1, a[4], a[5], a[6], a[7], NULL, &n_trained[1], &n_rows[1]);
            T_CHECK(memcmp(a[0], a[4], sizeof a / 2) == 0 && n_trained[0] == n_trained[1] && n_rows[0] == n_rows[1]);
        }
        cdr_data_close(e);
        T_CHECK(n_files(in_dir("cache/tokens"), ".tokens") == 1 && n_files(in_dir("cache/tokens"), "lock") == 0);       /* the others are small */
    }
    cdr_data_close(d);
    cdr_tokenizer_close(bpe);
}

/* parts.json: a tokenizer.json with this instead of its pre-tokenizer. */
static void put_parts_json(const char *from, const char *pre_tokenizer)
{
    char *text;
    cdr_err err = { 0 };
    cdr_text out = { 0 };
    T_CHECK(cdr_file_read(from, 1 << 20, &text, NULL, &err) == CDR_OK);
    char *at = strstr(text, "\"pre_tokenizer\":"), *behind = strstr(text, ",\"post_processor\":");
    T_CHECK(at && behind && at < behind);
    cdr_text_printf(&out, "%.*s\"pre_tokenizer\":%s%s", (int)(at - text), text, pre_tokenizer, behind);
    put("parts.json", out.s);
    cdr_text_free(&out);
    cdr_free(text);
}

/* The one document of a file has the ids of its text in one piece, and [EOS]. */
static void same_as_in_one_piece(const char *file, const char *text, size_t size, const cdr_tokenizer_spec *spec)
{
    cdr_err err = { 0 };
    cdr_tokenizer *t = NULL;
    T_CHECK(cdr_tokenizer_open(spec, &t, &err) == CDR_OK);
    T_STR(err.text, "");
    if (!t) return;
    cdr_data_source src = { .path = in_dir(file) };
    cdr_data_opts o = opts_of(&src, 1);
    o.tokenizer = t;
    o.threads = 2;
    int32_t *want = malloc(sizeof *want * (size_t)(cdr_tokenizer_room(t, size) + 1)), *ids = malloc(sizeof *ids * (size_t)(cdr_tokenizer_room(t, size) + 1));
    bool *trained = malloc((size_t)cdr_tokenizer_room(t, size) + 1);
    int64_t n = cdr_tokenizer_encode(t, text, size, want);
    if (cdr_tokenizer_eos(t) >= 0) want[n++] = cdr_tokenizer_eos(t);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 1 && cdr_data_doc_at(d, false, 0).n == n);
    if (cdr_data_doc_at(d, false, 0).n == n) {
        cdr_data_doc_tokens(d, false, 0, 0, n, ids, trained);
        T_CHECK(memcmp(ids, want, sizeof *want * (size_t)n) == 0);
    }
    cdr_data_close(d);
    cdr_tokenizer_close(t);
    free(want);
    free(ids);
    free(trained);
}

/* A text that is cut for several threads: blank lines in front of words, where GPT-2's pattern looks ahead; words over each place where the pattern kimi counts
 * 400,000 characters; a tokenizer that knows no place. */
static void parts_of_a_text(void)
{
    static const char *const words[] = { " the", " of", "word", "\n", " \n\n", "  ", ", ", "'ll", " 12", " \xe4\xbd\xa0\xe5\xa5\xbd", "\n\nThe", "(x)" };
    static const char *const pre[] = { "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
                                       "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}" };
    cdr_text text = { 0 };
    for (uint64_t i = 0; text.n < 9 << 18; i++) cdr_text_printf(&text, "%s", words[draw(i) % CDR_COUNT(words)]);
    put("parts.txt", text.s);
    for (int i = 0; i < 2; i++)
        same_as_in_one_piece("parts.txt", text.s, text.n, &(cdr_tokenizer_spec){ .type = "tiktoken", .dir = "test/golden/tokenizer", .file = "tiktoken.model",
                                                                                 .pattern = i ? "cl100k" : "kimi" });
    for (int i = 0; i < CDR_COUNT(pre); i++) {
        put_parts_json("test/golden/tokenizer/digits.json", pre[i]);
        same_as_in_one_piece("parts.txt", text.s, text.n, &(cdr_tokenizer_spec){ .type = "hf_bpe", .dir = dir, .file = "parts.json" });
    }
    cdr_text_free(&text);
}

/* A large file of conversations: the same words whatever the threads, from the cache too; another option is another entry; an error is the first
 * of the file. */
static void cache_and_threads(void)
{
    enum { COPIES = 20 };
    static char one[1 << 18];
    size_t n = make_talks(one, sizeof one), all = 0;
    cdr_text t = { 0 };
    for (int i = 0; i < COPIES; i++) cdr_text_append(&t, one, n), all += n;
    T_CHECK(all > (1 << 20));
    put_file(in_dir("large.jsonl"), t.s, t.n);
    cdr_data_source src = { .path = in_dir("large.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    uint64_t want = 0;
    char cache[1024];
    (void)snprintf(cache, sizeof cache, "%s", in_dir("cache2"));
    for (int k = 0; k < 6; k++) {
        o.threads = k == 1 ? 4 : 1;
        o.cache = k == 0 || k == 1 ? NULL : cache;
        o.train_on = k == 4 ? CDR_LOSS_LAST : CDR_LOSS_AUTO;
        o.tokenizer = tok;
        cdr_data *d = open_or_fail(&o);
        if (k == 0) want = cdr_data_fingerprint(d);
        T_CHECK((cdr_data_fingerprint(d) == want) == (k != 4));
        T_CHECK(cdr_data_docs(d, false) == COPIES * N_TALKS);
        for (int64_t i = 0; i < COPIES * N_TALKS; i += 397) T_CHECK(cdr_data_doc_at(d, false, i).line == i + 1);
        cdr_data_close(d);
        if (k >= 2) T_CHECK(n_files(in_dir("cache2/tokens"), ".tokens") == (k >= 4 ? 2 : 1));
    }
    char command[1200];                               /* a damaged entry is made anew */
    (void)snprintf(command, sizeof command, "for f in '%s'/tokens/*.tokens; do truncate -s 9000 \"$f\"; done", cache);
    T_CHECK(system(command) == 0);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_fingerprint(d) == want);
    cdr_data_close(d);
    char *line = t.s;
    for (int i = 0; i < 1000; i++) line = strchr(line, '\n') + 1;
    *line = '[';                                      /* lines 1,001 and 2,001 */
    char *second = line;
    for (int i = 0; i < 1000; i++) second = strchr(second, '\n') + 1;
    *second = '<';
    put_file(in_dir("large.jsonl"), t.s, t.n);
    for (int threads = 1; threads <= 4; threads += 3) {
        cdr_err err = { 0 };
        o.threads = threads;
        o.cache = NULL;
        T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EDATA);
        T_HAS(err.text, "large.jsonl:1001:");
    }
    cdr_text_free(&t);
}

int main(int argc, char **argv)
{
    static char text[1 << 18];
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!rig_open("tokens")) return 1;
    put_file(in_dir("talks.jsonl"), text, make_talks(text, sizeof text));
    put("p.txt", "Some text\nof two lines.");
    T_RUN(weighted_turns);
    T_RUN(packed_and_read_again);
    T_RUN(tables_of_another_type_are_not_looked_into);
    T_RUN(token_files_of_others);
    T_RUN(changed_while_it_is_read);
    T_RUN(text_as_words);
    T_RUN(parts_of_a_text);
    T_RUN(cache_and_threads);
    rig_close();
    return t_end();
}
