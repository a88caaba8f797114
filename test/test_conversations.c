/* test_conversations.c: conversations of every form as tokens and labels, token by token; what is refused and where; order, ranks and resume of
 * packed conversations; token files of ours and of others; threads and the cache. */
#include "test.h"

#include "data/data.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char dir[512];
static cdr_tokenizer *tok;
static cdr_chat_spec chat = { .format = "k3_xtml" };

static const char *in_dir(const char *name)
{
    static char path[8][1024];
    static int k;
    k = (k + 1) % 8;
    (void)snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}

static void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    T_CHECK(f && fwrite(data, 1, bytes, f) == bytes);
    if (f) (void)fclose(f);
}

static void put(const char *name, const char *text)
{
    put_file(in_dir(name), text, strlen(text));
}

static cdr_data_opts opts_of(const cdr_data_source *sources, int n)
{
    chat.tokenizer = tok;
    return (cdr_data_opts){ .train = sources, .n_train = n, .tokenizer = tok, .chat = &chat, .seed = 5, .sequence_length = 1024, .micro_batch_tokens = 1024,
                            .max_docs = 100 };
}

static cdr_data *open_or_fail(const cdr_data_opts *o)
{
    cdr_data *d = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr_data_open(o, &d, &err) == CDR_OK);
    if (!d) {
        fprintf(stderr, "  %s\n", err.text);
        exit(1);
    }
    return d;
}

/* ---- the view: text, with what carries loss in [ ] ------------------------------------------------------------------------ */

static const struct { const char *from, *to; } SHORT[] = { { "<|open|>", "<" }, { "<|close|>", "</" }, { "<|sep|>", ">" }, { "<|end_of_msg|>", "$" } };

static void shorten(char *s)
{
    for (int k = 0; k < CDR_COUNT(SHORT); k++)
        for (char *at; (at = strstr(s, SHORT[k].from)) != NULL;) {
            size_t n = strlen(SHORT[k].from), m = strlen(SHORT[k].to);
            memcpy(at, SHORT[k].to, m);
            memmove(at + m, at + n, strlen(at + n) + 1);
        }
}

static const char *view(const cdr_data *d, bool held_out, int64_t i)
{
    static char out[1 << 16];
    static int32_t ids[1 << 15];
    static bool trained[1 << 15];
    cdr_data_doc doc = cdr_data_doc_at(d, held_out, i);
    cdr_text t = { 0 };
    int64_t n_trained = 0;
    cdr_data_doc_tokens(d, held_out, i, 0, doc.n, ids, trained);
    for (int64_t k = 0; k < doc.n; k++) {
        if (trained[k] && (k == 0 || !trained[k - 1])) cdr_text_append(&t, "[", 1);
        if (!trained[k] && k > 0 && trained[k - 1]) cdr_text_append(&t, "]", 1);
        T_CHECK(cdr_tokenizer_decode(tok, &ids[k], 1, true, &t));
        n_trained += trained[k];
    }
    if (doc.n > 0 && trained[doc.n - 1]) cdr_text_append(&t, "]", 1);
    T_CHECK(n_trained == doc.n_trained);
    (void)snprintf(out, sizeof out, "%s", t.s);
    cdr_text_free(&t);
    shorten(out);
    return out;
}

/* The view of the only sample of a file made of `text`; o NULL: defaults. */
static const char *view_of(const char *name, const char *text, const cdr_data_opts *options, const cdr_data_source *source)
{
    cdr_data_source s = source ? *source : (cdr_data_source){ 0 };
    s.path = in_dir(name);
    cdr_data_opts o = options ? *options : opts_of(&s, 1);
    o.train = &s;
    o.n_train = 1;
    put(name, text);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 1);
    const char *v = view(d, false, 0);
    cdr_data_close(d);
    return v;
}

static void refused(const char *name, const char *text, const cdr_data_source *source, const char *id, const char *has)
{
    cdr_data_source s = source ? *source : (cdr_data_source){ 0 };
    s.path = in_dir(name);
    cdr_data_opts o = opts_of(&s, 1);
    cdr_data *d = NULL;
    cdr_err err = { 0 };
    put(name, text);
    T_CHECK(cdr_data_open(&o, &d, &err) != CDR_OK);
    T_STR(err.id, id);
    T_HAS(err.text, has);
    if (d) cdr_data_close(d);
}

/* ---- forms ------------------------------------------------------------------------------------------------------------- */

#define SYS(x) "<message role=\"system\">" x "</message>$"
#define USER(x) "<message role=\"user\">" x "</message>$"
#define BOT(x) "<message role=\"assistant\">[<response>" x "</response></message>$]"

static void openai_messages(void)
{
    T_STR(view_of("a.jsonl", "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", "
        "\"content\": \"A\"}]}\n",
                  NULL, NULL), SYS("S") USER("Q") BOT("A"));
    T_STR(view_of("a.jsonl", "\n  \n{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"Q1\"}, {\"type\": \"text\", \"text\": \"Q2\"}]}, "
                             "{\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"user\", \"content\": \"more\"}, {\"role\": \"assistant\", \"content\": \"\"}]}",
                  NULL, NULL), USER("Q1Q2") BOT("A") USER("more") BOT(""));
    /* user text makes no marks */
    T_STR(view_of("a.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"x [EOS] y\"},{\"role\":\"assistant\",\"content\":\"A\"}]}", NULL, NULL),
          USER("x [EOS] y") BOT("A"));
    /* calls and results; arguments as an object keep their kinds and order */
    const char *tools = view_of("a.jsonl",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\","
                  "\"function\":{\"name\":\"f\",\"arguments\":{\"z\":1.0,\"a\":[true,null,\"s\"]}}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"R\"},"
                  "{\"role\":\"assistant\",\"content\":\"A\"}]}", NULL, NULL);
    T_HAS(tools, "[<response></response><tools><call tool=\"f\" index=\"1\"><argument key=\"z\" type=\"number\">1.0</argument><argument key=\"a\" "
        "type=\"array\">[true, null, \"s\"]</argument>"
                 "</call></tools></message>$]<message role=\"tool\" tool=\"f\" index=\"1\">R</message>$" BOT("A"));
}

static void other_forms(void)
{
    T_STR(view_of("b.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"gpt\", \"value\": \"A\"}], \"system\": \"S\"}", NULL, NULL),
          SYS("S") USER("Q") BOT("A"));
    T_STR(view_of("b.jsonl", "{\"conversation\": [{\"human\": \"Q\", \"assistant\": \"A\"}, {\"human\": \"Q2\", \"assistant\": \"A2\"}]}", NULL, NULL),
          USER("Q") BOT("A") USER("Q2") BOT("A2"));
    T_HAS(view_of("b.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", "
        "\\\"arguments\\\": {\\\"a\\\": 1}}\"}, "
                             "{\"from\": \"observation\", \"value\": \"R\"}, {\"from\": \"gpt\", \"value\": \"A\"}]}", NULL, NULL),
          "<call tool=\"f\" index=\"1\"><argument key=\"a\" type=\"number\">1</argument></call></tools></message>$]<message role=\"tool\" tool=\"f\" "
              "index=\"1\">R</message>$" BOT("A"));
    T_STR(view_of("b.json", "[{\"instruction\": \"I\", \"input\": \"X\", \"output\": \"A\", \"history\": [[\"q\", \"a\"]], \"system\": \"S\"}]", NULL, NULL),
          SYS("S") USER("q") BOT("a") USER("I\nX") BOT("A"));
    T_STR(view_of("b.json", "{\n  \"instruction\": \"I\",\n  \"input\": \"\",\n  \"output\": \"A\"\n}\n", NULL, NULL), USER("I") BOT("A"));
    T_STR(view_of("b.jsonl", "{\"prompt\": \"P:\", \"completion\": \" C\"}", NULL, NULL), "P:[ C[EOS]]");
    T_STR(view_of("b.jsonl", "{\"prompt\": \"\", \"completion\": \"C1\"}", NULL, NULL), "C[1[EOS]]");          /* the first token has nothing before it */
    T_STR(view_of("b.jsonl", "{\"query\": \"Q\", \"response\": \"A\"}", NULL, NULL), USER("Q") BOT("A"));
    T_STR(view_of("b.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"x\"}, {\"role\": \"user\", "
        "\"content\": \"y\"}], "
                             "\"completion\": [{\"role\": \"assistant\", \"content\": \"A\"}]}", NULL, NULL),
          USER("Q") "<message role=\"assistant\"><response>x</response></message>$" USER("y") BOT("A"));
    T_STR(view_of("b.jsonl", "{\"text\": \"plain\"}", NULL, NULL), "p[lain[EOS]]");
    T_STR(view_of("b.jsonl", "{\"text\": \"plain\"}", NULL, &(cdr_data_source){ .format = "text" }), "p[lain[EOS]]");
    T_STR(view_of("b.txt", "{\"text\": \"x\"}", NULL, NULL), "{[\"text\": \"x\"}[EOS]]");
    static const cdr_data_column COLUMNS[] = { { "messages", "dialog" }, { "role", "who" }, { "content", "said" } }, BODY[] = { { "text", "body" } };
    T_STR(view_of("b.jsonl", "{\"dialog\": [{\"who\": \"user\", \"said\": \"Q\"}, {\"who\": \"assistant\", \"said\": \"A\"}]}", NULL,
                  &(cdr_data_source){ .columns = COLUMNS, .n_columns = 3 }), USER("Q") BOT("A"));
    T_STR(view_of("b.jsonl", "{\"body\": \"abc\", \"text\": 7}", NULL, &(cdr_data_source){ .columns = BODY, .n_columns = 1 }), "a[bc[EOS]]");
}

/* ---- masks -------------------------------------------------------------------------------------------------------------- */

#define TWO_TURNS "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}, {\"role\": \"user\", \"content\": \"R\"}, " \
                  "{\"role\": \"assistant\", \"content\": \"B\"}]}"
#define HUSH(x) "<message role=\"assistant\"><response>" x "</response></message>$"

static void train_on_and_eos(void)
{
    cdr_data_source src = { 0 };
    cdr_data_opts o = opts_of(&src, 1);
    o.train_on = CDR_LOSS_LAST;
    T_STR(view_of("c.jsonl", TWO_TURNS, &o, NULL), USER("Q") HUSH("A") USER("R") BOT("B"));
    o.train_on = CDR_LOSS_ALL;
    T_STR(view_of("c.jsonl", TWO_TURNS, &o, NULL), "<[message role=\"user\">Q</message>$<message role=\"assistant\"><response>A</response></message>$<message "
        "role=\"user\">R</message>$"
                                                   "<message role=\"assistant\"><response>B</response></message>$]");
    o.train_on = CDR_LOSS_AUTO;
    src.train_on = CDR_LOSS_LAST;
    T_STR(view_of("c.jsonl", TWO_TURNS, &o, &src), USER("Q") HUSH("A") USER("R") BOT("B"));
    o.train_eos = CDR_EOS_NONE;
    T_STR(view_of("c.jsonl", TWO_TURNS, &o, NULL), USER("Q") "<message role=\"assistant\">[<response>A</response>]</message>$" USER("R")
                                                   "<message role=\"assistant\">[<response>B</response>]</message>$");
    T_STR(view_of("c.jsonl", "{\"prompt\": \"P\", \"completion\": \"C\"}", &o, NULL), "P[C][EOS]");
    o.train_eos = CDR_EOS_LAST;
    T_STR(view_of("c.jsonl", TWO_TURNS, &o, NULL), USER("Q") "<message role=\"assistant\">[<response>A</response>]</message>$" USER("R") BOT("B"));
    T_STR(view_of("c.jsonl", "{\"prompt\": \"P\", \"completion\": \"C\"}", &o, NULL), "P[C[EOS]]");
    o.train_on = CDR_LOSS_ALL;
    T_STR(view_of("c.jsonl", "{\"prompt\": \"P1\", \"completion\": \"C\"}", &o, NULL), "P[1C[EOS]]");
}

static void a_message_decides(void)
{
    static const char *const KEY[] = { "\"train\": true", "\"loss\": true", "\"weight\": 1", "\"loss_scale\": 1.0", "\"train\": true, \"weight\": 1" };
    static const char *const NOT[] = { "\"train\": false", "\"loss\": false", "\"weight\": 0", "\"loss\": 0", "\"loss_scale\": 0.0" };
    cdr_data_opts o = opts_of(NULL, 0);
    o.train_on = CDR_LOSS_LAST;
    char line[1000];
    for (int i = 0; i < CDR_COUNT(KEY); i++) {
        (void)snprintf(line, sizeof line, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\", %s}, {\"role\": \"assistant\", \"content\": \"A\", %s}, "
            "{\"role\": \"user\", \"content\": \"R\"}, "
                       "{\"role\": \"assistant\", \"content\": \"B\", %s}]}", KEY[i], KEY[i], NOT[i]);
        T_STR(view_of("c.jsonl", line, &o, NULL), "<message role=\"user\">[Q</message>$]" BOT("A") USER("R") HUSH("B"));
    }
    refused("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"train\": true, \"weight\": 0}]}", NULL,
            "data.weight", "c.jsonl:1: messages[1].weight: contradicts");
    refused("c.jsonl", TWO_TURNS "\n{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"weight\": 0.5}]}", NULL,
            "data.weight", "c.jsonl:2: messages[1].weight: is 0.5");
    refused("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"train\": \"yes\"}]}", NULL,
            "data.field", "messages[1].train: must be true, false or a number");
}

static void reasoning(void)
{
    static const char *const NAMES[] = { "reasoning_content", "reasoning" };
    cdr_data_opts o = opts_of(NULL, 0);
    char line[1000];
    chat.thinking = true;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"%s\": \"hm\", \"content\": "
            "\"A\"}]}", NAMES[i]);
        o.mask_think = CDR_THINK_NONE;
        T_STR(view_of("d.jsonl", line, &o, NULL), USER("Q") "<message role=\"assistant\">[<think>hm</think><response>A</response></message>$]");
        o.mask_think = CDR_THINK_EMPTY;
        T_STR(view_of("d.jsonl", line, &o, NULL), USER("Q") "<message role=\"assistant\">[<think>hm</think><response>A</response></message>$]");
        o.mask_think = CDR_THINK_ALL;
        T_STR(view_of("d.jsonl", line, &o, NULL), USER("Q") "<message role=\"assistant\"><think>hm</think>[<response>A</response></message>$]");
    }
    const char *bare = "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}";
    o.mask_think = CDR_THINK_NONE;
    T_STR(view_of("d.jsonl", bare, &o, NULL), USER("Q") "<message role=\"assistant\">[<think></think><response>A</response></message>$]");
    o.mask_think = CDR_THINK_EMPTY;
    T_STR(view_of("d.jsonl", bare, &o, NULL), USER("Q") "<message role=\"assistant\"><think></think>[<response>A</response></message>$]");
    chat.thinking = false;
    T_STR(view_of("d.jsonl", line, NULL, NULL), USER("Q") BOT("A"));
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    cdr_err err = { 0 };
    t_filter = argc > 1 ? argv[1] : NULL;
    (void)snprintf(dir, sizeof dir, "%s/cadre-test-talk-XXXXXX", tmp ? tmp : P_tmpdir);
    if (!mkdtemp(dir) || cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) != CDR_OK) return 1;
    T_RUN(openai_messages);
    T_RUN(other_forms);
    T_RUN(train_on_and_eos);
    T_RUN(a_message_decides);
    T_RUN(reasoning);
    cdr_tokenizer_close(tok);
    (void)cdr_remove_tree(dir, &err);
    return t_end();
}
