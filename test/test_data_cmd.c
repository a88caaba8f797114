/* test_data_cmd.c: `data check`, `data pack`, `data make dictionary`, and what inspect says of data files: their text and JSON, exit codes, and that
 * training goes on from what they write. */
#include "files.h"
#include "command/inspect.h"
#include "train/session.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

static cdr_result r;
static cdr_err err;

static char *read_all(const char *name)
{
    char *text = NULL;
    T_CHECK(cdr_file_read(in_dir(name), 1 << 20, &text, NULL, &err) == CDR_OK);
    return text;
}

static void clear(void)
{
    cdr_result_free(&r);
    r = (cdr_result){ 0 };
    err = (cdr_err){ 0 };
}

static bool colour;
static cdr_status check(const char *file, int64_t show, int64_t line, const char *const *set, int n_set)
{
    cdr_data_check_args a = { .common = { .set = set, .n_set = n_set, .quiet = true }, .file = in_dir(file), .show = show, .line = line, .colour = colour };
    clear();
    return cdr_data_check(&a, &r, &err);
}

#define GOOD(q, a) "{\"messages\": [{\"role\": \"user\", \"content\": \"" q "\"}, {\"role\": \"assistant\", \"content\": \"" a "\"}]}\n"
#define WROTE(q, a) "{\"messages\":[{\"role\":\"user\",\"content\":\"Define: " q "\"},{\"role\":\"assistant\",\"content\":\"" a "\"}]}\n"
#define NONE "{\"messages\": [{\"role\": \"user\", \"content\": \"only asked\"}]}\n"

static void check_shows_tokens_and_labels(void)
{
    static const char *const set[] = { "train.sequence_length=128", "data.untrained=drop" };
    put("a.jsonl", GOOD("Q\\n\\u00e9", "A") GOOD("second", "a much longer answer than the others have, so that it does not fit into the row") NONE GOOD("Q", "third"));
    T_CHECK(check("a.jsonl", 2, 0, set, 2) == CDR_OK);
    T_HAS(r.text, "messages, 2 samples, 185 tokens, 35.7 % trained; length p50 92, p95 172, max 172; dropped 2 (no trained token: line 3; over 128 tokens: line 2)\n");
    T_HAS(r.text, "chat      k3_xtml, thinking off, effort none, tools keep; train_on assistant (text: all), train_eos turn, mask_think none");
    T_HAS(r.text, "tokens    byte, 512 ids; model tiny-k31\n");
    T_HAS(r.text, "line 1    <|open|>message role=\"user\"<|sep|>Q\\n\xc3\xa9<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"assistant\"<|sep|>"
                  "[<|open|>response<|sep|>A<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>]   ([..] trained: 31 of 92 tokens)\n");
    T_HAS(r.text, "\nline 4    ");
    T_CHECK(!strstr(r.text, "\nline 2 ") && !strstr(r.text, "\x1b["));
    cdr_pool *pool = cdr_pool_new();
    const cdr_json *root;
    T_CHECK(cdr_json_parse(pool, r.json, strlen(r.json), "json", &root, &err) == CDR_OK);
    T_CHECK(cdr_json_int(cdr_json_get(root, "samples"), 0) == 2 && cdr_json_int(cdr_json_get(root, "tokens"), 0) == 185);
    T_NEAR(cdr_json_real(cdr_json_get(root, "trained_share"), 0), 66.0 / 185, 1e-12);
    const cdr_json *shown = cdr_json_at(cdr_json_get(root, "shown"), 0), *ids = cdr_json_get(shown, "ids"), *labels = cdr_json_get(shown, "labels");
    T_CHECK(cdr_json_count(ids) == 92 && cdr_json_count(labels) == 92 && cdr_json_count(cdr_json_get(shown, "text")) == 92);
    int64_t n = 0;
    for (int64_t i = 0; i < 92; i++) {
        int64_t label = cdr_json_int(cdr_json_at(labels, i), 0);
        T_CHECK(label == -100 || label == cdr_json_int(cdr_json_at(ids, i), -1));
        n += label != -100;
    }
    T_CHECK(n == 31 && cdr_json_count(cdr_json_get(root, "dropped")) == 2);
    const cdr_json *lost = cdr_json_at(cdr_json_get(cdr_json_at(cdr_json_get(root, "dropped"), 0), "samples"), 0);
    T_CHECK(cdr_json_int(cdr_json_get(lost, "line"), 0) == 3);
    cdr_pool_free(pool);
    colour = true;
    T_CHECK(check("a.jsonl", 1, 0, NULL, 0) == CDR_EDATA);        /* as a run would say, after the view */
    T_STR(err.id, "data.nothing-trained");
    T_HAS(err.text, "a.jsonl:3: 0 of 41 tokens are trained");
    T_HAS(r.text, "\x1b[32m<|open|>response");
    colour = false;
}

static void check_by_line(void)
{
    static const char *const set[] = { "train.sequence_length=128", "data.untrained=drop" };
    T_CHECK(check("a.jsonl", 1, 4, set, 2) == CDR_OK);
    T_HAS(r.text, "line 4    <|open|>message role=\"user\"<|sep|>Q<|close|>");
    T_CHECK(!strstr(r.text, "line 1 "));
    T_CHECK(check("a.jsonl", 1, 3, set, 2) == CDR_EUSER);
    T_HAS(err.text, "a.jsonl:3: was dropped: no trained token");
    T_CHECK(check("a.jsonl", 1, 9, set, 2) == CDR_EUSER);
    T_STR(err.id, "data.no-line");
    T_CHECK(check("absent.jsonl", 1, 0, set, 2) == CDR_EDATA);
    put("none.jsonl", NONE NONE);                     /* nothing is left: the run's own message */
    T_CHECK(check("none.jsonl", 1, 0, NULL, 0) == CDR_EDATA);
    T_STR(err.id, "data.nothing-trained");
    T_HAS(err.text, "none.jsonl:1: 0 of 41 tokens are trained (data.train_on assistant; roles here: user)");
}

static void check_of_a_recipe(void)
{
    char recipe[2000];
    (void)snprintf(recipe, sizeof recipe, "model: {path: tiny-k31}\ntrain: {steps: 1, sequence_length: 256}\ndata:\n  train: [{path: %s, columns: {messages: talk}}]\n"
                   "  chat_options: {thinking: true}\n  mask_think: all\n", in_dir("b.jsonl"));
    put("b.jsonl", "{\"talk\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"reasoning\": \"hm\"}]}\n");
    put("r.yaml", recipe);
    T_CHECK(check("r.yaml", 1, 0, NULL, 0) == CDR_OK);
    T_HAS(r.text, "thinking on");
    T_HAS(r.text, "<|open|>think<|sep|>hm<|close|>think<|sep|>[<|open|>response<|sep|>A");
    T_HAS(r.text, "sequence_length 256");
}

static void pack_then_check(void)
{
    char recipe[2000];
    (void)snprintf(recipe, sizeof recipe, "model: {path: tiny-k31}\ntrain: {steps: 1, sequence_length: 128}\ndata: {train: [{path: %s, weight: 2}], untrained: "
        "drop}\n", in_dir("a.jsonl"));
    put("p.yaml", recipe);
    clear();
    T_CHECK(cdr_data_pack(&(cdr_data_pack_args){ .common = { .quiet = true }, .recipe = in_dir("p.yaml"), .out = in_dir("packed") }, &r, &err) == CDR_OK);
    T_HAS(r.text, "packed/a.tokens: 2 documents, 185 tokens, 35.7 % trained");
    T_HAS(r.text, "dropped 2");
    T_HAS(r.json, "\"use\":\"train\",\"weight\":2.0,\"documents\":2");
    T_CHECK(check("packed/a.tokens", 1, 0, NULL, 0) == CDR_OK);
    T_HAS(r.text, "tokens, 2 samples, 185 tokens, 35.7 % trained");
}

/* No room for the second of two files: neither is left, nor a folder that was not there before. */
static void pack_on_a_full_disk(void)
{
    char recipe[3000];
    cdr_text big = { 0 };
    for (int i = 0; i < 400; i++) cdr_text_printf(&big, "%s", GOOD("Question", "Answer"));
    T_CHECK(cdr_file_write(in_dir("big.jsonl"), big.s, big.n, &err) == CDR_OK);
    cdr_text_free(&big);
    (void)snprintf(recipe, sizeof recipe, "model: {path: tiny-k31}\ntrain: {steps: 1, sequence_length: 128}\ndata: {train: [%s, %s], untrained: drop, cache: none}\n",
                   in_dir("a.jsonl"), in_dir("big.jsonl"));
    put("f.yaml", recipe);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit was, small;
    T_CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = (struct rlimit){ .rlim_cur = 16384, .rlim_max = was.rlim_max };
    for (int there = 0; there < 2; there++) {
        cdr_data_pack_args a = { .common = { .quiet = true }, .recipe = in_dir("f.yaml"), .out = in_dir("full") };
        if (there) T_CHECK(cdr_make_dirs(a.out, &err) == CDR_OK);
        clear();
        T_CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
        T_CHECK(cdr_data_pack(&a, &r, &err) != CDR_OK);
        T_CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
        T_HAS(err.text, "big.tokens");
        T_CHECK(cdr_exists(a.out) == there && !cdr_exists(in_dir("full/a.tokens")));
    }
}

/* Nothing but blank lines is no text: no record, and said so. */
static void blank_lines(void)
{
    put("blank.jsonl", "\n\n   \n");
    T_CHECK(check("blank.jsonl", 1, 0, NULL, 0) == CDR_EDATA);
    T_HAS(err.text, "blank.jsonl");
}

/* ---- dictionaries ---------------------------------------------------------------------------------------------------------------- */

static void put_index(cdr_text *t, const char *word, size_t at, size_t n)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    cdr_text_printf(t, "%s\t%c%c\t%c%c\n", word, DIGITS[at / 64], DIGITS[at % 64], DIGITS[n / 64], DIGITS[n % 64]);
}

static void make_dictionary(void)
{
    static const struct { const char *word, *text; } ENTRIES[] = {
        { "00databaseinfo", "00-database-info\nAbout it.\n\n" },
        { "abasement", "ABASEMENT, n.  A decent and  customary mental _attitude_\nin the presence of wealth.\n\n    First line of verse,\n      the second.\n\nMore "
            "prose,\ntwo lines.\n\n" },
        { "confidant", "CONFIDANT, CONFIDANTE, n.  One entrusted by A.\n\n" },
        { "lowbred", "LOW-BRED, adj.  \"Raised\" instead of {brought\nup}.\n\n" },
        { "beta", "beta\n /bay't@/, n.\n\n    Mostly working, but\n    still under test.\n\n" },
        { "empty", "EMPTY, n.\n\n" },
    };
    cdr_text dict = { 0 }, index = { 0 };
    for (int i = 0; i < CDR_COUNT(ENTRIES); i++) {
        put_index(&index, ENTRIES[i].word, dict.n, strlen(ENTRIES[i].text));
        if (i == 2) put_index(&index, "confidante", dict.n, strlen(ENTRIES[i].text));
        cdr_text_append(&dict, ENTRIES[i].text, strlen(ENTRIES[i].text));
    }
    T_CHECK(cdr_file_write(in_dir("d.dict"), dict.s, dict.n, &err) == CDR_OK && cdr_file_write(in_dir("d.index"), index.s, index.n, &err) == CDR_OK);
    clear();
    cdr_data_make_args a = { .file = in_dir("d.dict"), .out = in_dir("d.jsonl"), .as = "messages" };
    T_CHECK(cdr_data_make(&a, &r, &err) == CDR_OK);
    char *text = read_all("d.jsonl");
    T_STR(text, WROTE("abasement", "A decent and customary mental attitude in the presence of wealth.\\n\\nFirst line of verse,\\nthe second.\\n\\nMore "
        "prose, two lines.")
                WROTE("confidant", "One entrusted by A.") WROTE("confidante", "One entrusted by A.")
                WROTE("low-bred", "\\\"Raised\\\" instead of brought up.") WROTE("beta", "Mostly working, but still under test."));
    cdr_free(text);
    T_HAS(r.text, "5 entries");
    T_HAS(r.text, "dropped 2: about the database 1, empty 1\n");
    /* both parts together are all of it; twins stay together; the same entry is on the same side again */
    a.eval_fraction = 0.5;
    clear();
    T_CHECK(cdr_data_make(&a, &r, &err) == CDR_OK);
    char *train = read_all("d.jsonl"), *eval = read_all("d-eval.jsonl");
    int n = 0;
    for (const char *s = train; *s; s++) n += *s == '\n';
    for (const char *s = eval; *s; s++) n += *s == '\n';
    T_CHECK(n == 5 && !strstr(train, "confidant\"") == !strstr(train, "confidante\"") && strlen(train) > 0 && strlen(eval) > 0);
    cdr_free(train);
    cdr_free(eval);
    a = (cdr_data_make_args){ .file = in_dir("d.dict"), .out = in_dir("d.txt"), .as = "text" };
    clear();
    T_CHECK(cdr_data_make(&a, &r, &err) == CDR_OK);
    cdr_text want = { 0 };
    T_CHECK(cdr_dictionary_to_text(in_dir("d.dict"), &want, NULL, &err) == CDR_OK);
    text = read_all("d.txt");
    T_CHECK(strlen(text) == want.n && memcmp(text, want.s, want.n) == 0);
    cdr_free(text);
    cdr_text_free(&want);
    cdr_text_free(&dict);
    cdr_text_free(&index);
    a.as = "poems";
    clear();
    T_CHECK(cdr_data_make(&a, &r, &err) == CDR_EUSAGE);
}

static void inspect(void)
{
    static const struct { const char *name, *has; } FILES[] = { { "a.jsonl", "data, messages, JSON Lines: " }, { "d.txt", "data, text, plain text: " },
                                                                { "packed/a.tokens", "2 records, 185 tokens, 35.7 % trained" } };
    for (int i = 0; i < CDR_COUNT(FILES); i++) {
        cdr_text t = { 0 }, json = { 0 };
        T_CHECK(cdr__inspect_data(in_dir(FILES[i].name), &t, &(cdr_jw){ .t = &json }));
        T_HAS(t.s, FILES[i].has);
        T_HAS(json.s, "{\"kind\":\"data\"");
        cdr_text_free(&t);
        cdr_text_free(&json);
    }
    cdr_text t = { 0 }, json = { 0 };
    T_CHECK(cdr_file_write(in_dir("z"), "\0\1\2", 3, &err) == CDR_OK);
    T_CHECK(!cdr__inspect_data(in_dir("z"), &t, &(cdr_jw){ .t = &json }) && !cdr__inspect_data(dir, &t, &(cdr_jw){ .t = &json }));
    T_CHECK(t.n == 0 && json.n == 0);
}

/* A run on conversations with a weighted turn: the loss is that of the labels, and goes down. */
static void train_on_conversations(void)
{
    cdr_text t = { 0 };
    for (int i = 0; i < 40; i++)
        cdr_text_printf(&t, "{\"messages\": [{\"role\": \"user\", \"content\": \"Count %d\"}, {\"role\": \"assistant\", \"content\": \"yes yes\", \"weight\": "
            "%s}]}\n", i, i % 2 ? "0.5" : "1");
    T_CHECK(cdr_file_write(in_dir("t.jsonl"), t.s, t.n, &err) == CDR_OK);
    cdr_text_free(&t);
    char out[700], data[700];
    (void)snprintf(out, sizeof out, "output_dir=%s", in_dir("run"));
    (void)snprintf(data, sizeof data, "data.train=%s", in_dir("t.jsonl"));
    const char *set[] = { out, data, "train.steps=6", "train.sequence_length=256", "train.micro_batch_tokens=256", "train.global_batch_tokens=512", "eval.every=none",
                          "generate.every=none", "generate.prompts=[]", "checkpoint.every=none", "checkpoint.at_end=false", "data.eval_fraction=0.2",
                              "machine.device=cpu",
                          "eval.at_start=false", "data.chat_format=k3_xtml", "optimizer.learning_rate=0.003", "schedule.warmup_steps=0" };
    clear();
    T_CHECK(cdr_train(&(cdr_train_args){ .common = { .set = set, .n_set = CDR_COUNT(set), .quiet = true }, .recipe = "tiny-test" }, &r, &err) == CDR_OK);
    if (err.text[0]) fprintf(stderr, "  %s\n", err.text);
    char *events = read_all("run/events.jsonl"), *at = events;
    double first = 0, loss = 0;
    int n = 0;
    while (events && (at = strstr(at, "\"type\":\"step\"")) != NULL) {
        loss = atof(strstr(at, "\"loss\":") + 7);
        if (n++ == 0) first = loss;
        T_CHECK(strstr(at, "\"trained_tokens\":") != NULL);
        at++;
    }
    T_CHECK(n == 6 && first > 2 && loss < first);
    cdr_free(events);
}

/* One step on two answers with these weights: its loss and gradient norm. */
static double weighted_step(const char *a, const char *b, double *norm)
{
    static int k;
    char out[700], data[700], text[1000];
    (void)snprintf(text, sizeof text, "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"first\", \"weight\": %s}]}\n"
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"two\"}, {\"role\": \"assistant\", \"content\": \"OTHER\", \"weight\": %s}]}\n", a, b);
    put("w.jsonl", text);
    (void)snprintf(out, sizeof out, "output_dir=%s-%d", in_dir("weights"), k);
    (void)snprintf(data, sizeof data, "data.train=%s", in_dir("w.jsonl"));
    const char *set[] = { out, data, "train.steps=1", "train.sequence_length=256", "train.micro_batch_tokens=256", "train.global_batch_tokens=256", "eval.every=none",
                          "generate.every=none", "generate.prompts=[]", "checkpoint.every=none", "checkpoint.at_end=false", "machine.device=cpu", "data.eval_fraction=0",
                          "eval.at_start=false", "data.chat_format=k3_xtml", "data.cache=none", "precision.compute=f32" };
    clear();
    T_CHECK(cdr_train(&(cdr_train_args){ .common = { .set = set, .n_set = CDR_COUNT(set), .quiet = true }, .recipe = "tiny-test" }, &r, &err) == CDR_OK);
    if (err.text[0]) fprintf(stderr, "  %s\n", err.text);
    (void)snprintf(text, sizeof text, "weights-%d/events.jsonl", k++);
    char *events = read_all(text), *at = events ? strstr(events, "\"type\":\"step\"") : NULL;
    const double loss = at ? atof(strstr(at, "\"loss\":") + 7) : -1;
    *norm = at ? atof(strstr(at, "\"grad_norm\":") + 12) : -1;
    T_HAS(at, "\"trained_tokens\":70,");
    cdr_free(events);
    return loss;
}

/* Turn weights reach loss and gradient: both are linear in them, and the sum is divided by the trained tokens whatever they weigh. */
static void weights_of_turns_in_a_step(void)
{
    double n[4], even = weighted_step("1", "1", &n[0]), half = weighted_step("0.5", "0.5", &n[1]), first = weighted_step("2", "1", &n[2]),
           second = weighted_step("1", "2", &n[3]);
    T_CHECK(even > 3 && fabs(first - second) > 1e-4);
    T_NEAR(half, even / 2, 1e-6 * even);
    T_NEAR(first + second, 3 * even, 1e-6 * even);
    T_CHECK(n[0] > 0);
    T_NEAR(n[1], n[0] / 2, 1e-4 * n[0]);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("datacmd") || setenv("CADRE_CACHE", in_dir("cache"), 1) != 0) return 1;
    T_RUN(check_shows_tokens_and_labels);
    T_RUN(check_by_line);
    T_RUN(check_of_a_recipe);
    T_RUN(pack_then_check);
    T_RUN(pack_on_a_full_disk);
    T_RUN(blank_lines);
    T_RUN(make_dictionary);
    T_RUN(inspect);
    T_RUN(train_on_conversations);
    T_RUN(weights_of_turns_in_a_step);
    clear();
    files_close();
    return t_end();
}
