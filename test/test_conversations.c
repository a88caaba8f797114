/* test_conversations.c: conversations of every form as tokens and labels, token by token; what is refused and where; order, ranks and
 * resume of packed conversations. */
#include "talk_rig.h"

#include <zlib.h>
#include <zstd.h>

/* ---- forms ------------------------------------------------------------------------------------------------------------- */

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
    T_HAS(view_of("b.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"Q\"}, {\"from\": \"function_call\", \"value\": "
                             "\"[{\\\"name\\\": \\\"f\\\"}, {\\\"name\\\": \\\"g\\\"}]\"}, {\"from\": \"observation\", \"value\": \"R\"}, "
                             "{\"from\": \"observation\", \"value\": \"T\"}]}", NULL, NULL),
          "<message role=\"tool\" tool=\"f\" index=\"1\">R</message>$<message role=\"tool\" tool=\"g\" index=\"2\">T</message>$");
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

/* ---- what is refused, and where; what is dropped -------------------------------------------------------------------------- */

static void broken_records(void)
{
    refused("e.jsonl", TWO_TURNS "\n\n{\"messages\": [}\n", NULL, "json.syntax", "e.jsonl:3:15:");
    refused("e.jsonl", TWO_TURNS "\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"cut", NULL, "json.syntax", "e.jsonl:3:");
    refused("e.json", "[" TWO_TURNS ",\n  {\"messages\": [}]\n", NULL, "json.syntax", "e.json:2:17:");
    refused("e.json", "[" TWO_TURNS "\n" TWO_TURNS "]", NULL, "json.syntax", "e.json:2:1: ',' or ']' is expected");
    refused("e.json", "[" TWO_TURNS, NULL, "json.syntax", "cut off");
    refused("e.json", "[" TWO_TURNS ",", NULL, "json.syntax", "cut off");
    refused("e.json", "[" TWO_TURNS "] x", NULL, "json.syntax", "one file holds one array");
    refused("e.json", "[{\n\"text\": \"a\"},{\"text\": \"b\"} {", NULL, "json.syntax", "e.json:2:28:");
    refused("e.json", "{\"messages\":\n [1,\n 2}\n", NULL, "json.syntax", "e.json:3:3:");
    refused("e.jsonl", "{\"mesages\": [], \"id\": 1}\n", NULL, "data.format", "e.jsonl:1: no known form of record (it has mesages, id)");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}", NULL, "json.nul", "e.jsonl:1:");
    refused("e.jsonl", TWO_TURNS "\n[1]\n", NULL, "data.field", "e.jsonl:2: the record is no object");
    refused("e.jsonl", TWO_TURNS "\n{\"messages\": \"x\"}\n", NULL, "data.field", "e.jsonl:2: messages: is no list");
    refused("e.jsonl", TWO_TURNS "\n{\"messages\": []}\n", NULL, "data.field", "e.jsonl:2: messages: is no list of messages, or is empty");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"alien\", \"content\": \"x\"}]}", NULL, "data.role", "e.jsonl:1: messages[0]: its role is alien");
    refused("e.jsonl", "{\"messages\": [{\"content\": \"x\"}]}", NULL, "data.role", "messages[0]: its role is missing");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"user\"}]}", NULL, "data.field", "messages[0]: has no content");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", NULL, "data.field", "messages[0].content: is no text");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"a.png\"}}]}]}", NULL, "data.image",
            "e.jsonl:1: messages[0].content[0]: a part of type image_url; this version trains on text only");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"<image>\"}], \"images\": [\"a.png\"]}", NULL, "data.image", "images: this version");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"tool_calls\": [{\"name\": \"f\"}]}]}", NULL, "data.role",
            "only an assistant calls tools");
    refused("e.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\"}]}]}", NULL, "data.field",
            "messages[0].tool_calls[0]: has no name");
    refused("e.jsonl", "{\"conversations\": [{\"from\": \"human\", \"value\": \"x\"}, {\"from\": \"narrator\", \"value\": \"y\"}]}", NULL, "data.role",
            "conversations[1]: it is from narrator");
    refused("e.jsonl", "{\"conversations\": [{\"from\": \"function_call\", \"value\": \"f(x)\"}]}", NULL, "json.syntax", "conversations[0]");
    refused("e.jsonl", "{\"instruction\": \"I\"}", NULL, "data.field", "output: is missing");
    refused("e.jsonl", "{\"instruction\": \"I\", \"output\": \"A\", \"history\": [[\"q\"]]}", NULL, "data.field", "history[0]: is no pair");
    static const cdr_data_column TYPO[] = { { "mesages", "x" } };
    refused("e.jsonl", TWO_TURNS, &(cdr_data_source){ .columns = TYPO, .n_columns = 1 }, "data.columns", "Did you mean messages");
    refused("e.parquet", "PAR1", NULL, "data.format", "to_json");
    refused("e.jsonl", "", NULL, "data.empty", "e.jsonl");
    const char *none = chat.format;
    chat.format = "none";
    refused("e.jsonl", TWO_TURNS, NULL, "data.no-chat", "e.jsonl:1: a conversation, but");
    T_STR(view_of("e2.jsonl", "{\"prompt\": \"P\", \"completion\": \"C\"}", NULL, NULL), "P[C[EOS]]");       /* text needs no chat format */
    chat.format = none;
}

static void samples_without_a_trained_token(void)
{
    const char *text = TWO_TURNS "\n{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"Q\"}]}\n" TWO_TURNS "\n"
                       "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\", \"train\": false}]}\n";
    refused("f.jsonl", text, NULL, "data.nothing-trained", "f.jsonl:2: 0 of 66 tokens are trained (data.train_on assistant; roles here: system, user). "
            "Mend the sample, or data.untrained=drop");
    cdr_data_source src = { .path = in_dir("f.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    const cdr_data_drop *drops = NULL;
    o.drop_untrained = true;
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 2 && cdr_data_stats(d)->n_documents == 2 && cdr_data_stats(d)->n_dropped == 2 && cdr_data_drops(d, &drops) == 2);
    T_CHECK(drops[0].line == 2 && drops[1].line == 4 && drops[0].reason == CDR_DROP_UNTRAINED && drops[0].n == 66 && !drops[0].held_out);
    T_CHECK(cdr_data_doc_at(d, false, 1).line == 3);
    cdr_data_close(d);
    put("f.jsonl", "{\"text\": \"\"}\n{\"text\": \"ab\"}\n");        /* nothing is no fault */
    d = open_or_fail(&(cdr_data_opts){ .train = &src, .n_train = 1, .tokenizer = tok, .sequence_length = 64, .micro_batch_tokens = 64 });
    T_CHECK(cdr_data_docs(d, false) == 1 && cdr_data_drops(d, &drops) == 1 && drops[0].line == 1 && drops[0].reason == CDR_DROP_EMPTY);
    cdr_data_close(d);
}

static void long_conversations(void)
{
    cdr_data_source src = { .path = in_dir("g.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    const cdr_data_drop *drops = NULL;
    cdr_err err = { 0 };
    char line[4000], word[1001];
    memset(word, 'x', 1000);
    word[1000] = 0;
    (void)snprintf(line, sizeof line, TWO_TURNS "\n{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}\n", word);
    put("g.jsonl", line);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 1 && cdr_data_drops(d, &drops) == 1 && drops[0].line == 2 && drops[0].reason == CDR_DROP_LONG && drops[0].n > 1024);
    cdr_data_close(d);
    o.long_samples = CDR_LONG_SPLIT;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 2 && cdr_data_stats(d)->epoch_samples == 3);
    int64_t all = cdr_data_stats(d)->epoch_trained;
    cdr_data_close(d);
    o.long_samples = CDR_LONG_ERROR;
    T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EDATA);
    T_STR(err.id, "data.too-long");
    T_HAS(err.text, "g.jsonl:2:");
    o.long_samples = CDR_LONG_TRUNCATE;               /* the answer stands behind the cut */
    err = (cdr_err){ 0 };
    T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EDATA);
    T_STR(err.id, "data.nothing-trained");
    T_HAS(err.text, "g.jsonl:2:");
    o.drop_untrained = true;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 1 && cdr_data_drops(d, &drops) == 1 && drops[0].reason == CDR_DROP_UNTRAINED && drops[0].line == 2);
    T_CHECK(cdr_data_stats(d)->epoch_trained < all);
    cdr_data_close(d);
    (void)snprintf(line, sizeof line, "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"%s%s\"}]}\n", word, word);
    put("g.jsonl", line);
    d = open_or_fail(&o);                             /* cut within the answer: what is left is trained */
    T_CHECK(cdr_data_docs(d, false) == 1 && cdr_data_doc_at(d, false, 0).n_in == 1024);
    T_CHECK(cdr_data_doc_at(d, false, 0).n_trained == cdr_data_stats(d)->epoch_trained && cdr_data_stats(d)->epoch_trained < 1024);
    cdr_data_close(d);
}

/* ---- layouts and packed files ----------------------------------------------------------------------------------------------- */

static void put_gz(const char *name, const char *text, size_t n)
{
    gzFile z = gzopen(in_dir(name), "wb");
    T_CHECK(gzwrite(z, text, (unsigned)n) == (int)n && gzclose(z) == Z_OK);
}

static void put_zst(const char *name, const char *text, size_t n)
{
    size_t room = ZSTD_compressBound(n), k;
    char *out = malloc(room);
    k = ZSTD_compress(out, room, text, n, 3);
    T_CHECK(!ZSTD_isError(k));
    put_file(in_dir(name), out, k);
    free(out);
}

/* The same three records, however the file is laid out and packed. */
static void layouts(void)
{
    static const char ONE[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a { \\\" \\\\ } ] b\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}";
    char text[6][1000];
    int64_t line_of[6][3] = { { 1, 2, 3 }, { 2, 4, 6 }, { 1, 2, 2 }, { 1, 4, 6 }, { 1, 2, 3 }, { 2, 3, 4 } };
    (void)snprintf(text[0], 1000, "%s\n%s\n%s", ONE, ONE, ONE);
    (void)snprintf(text[1], 1000, "\n%s\r\n\r\n%s\r\n  \r\n  %s\r\n", ONE, ONE, ONE);
    (void)snprintf(text[2], 1000, "[%s,\n%s ,  %s]\n", ONE, ONE, ONE);
    (void)snprintf(text[3], 1000, "{\n\"a\": 1, %s\n\n%s\n\n%s\n", ONE + 1, ONE, ONE);          /* the first one goes over two lines */
    (void)snprintf(text[4], 1000, "\xef\xbb\xbf%s\n%s\n%s\n", ONE, ONE, ONE);
    (void)snprintf(text[5], 1000, "[\n%s\n,%s\n,%s\n]", ONE, ONE, ONE);
    static const char *const NAMES[] = { "h.jsonl", "h.json", "h.jsonl.gz", "h.json.gz", "h.jsonl.zst", "h.json.zst" };
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < CDR_COUNT(NAMES); k++) {
            if (k / 2 == 0) put(NAMES[k], text[i]);
            else if (k / 2 == 1) put_gz(NAMES[k], text[i], strlen(text[i]));
            else put_zst(NAMES[k], text[i], strlen(text[i]));
            cdr_data_source src = { .path = in_dir(NAMES[k]) };
            cdr_data_opts o = opts_of(&src, 1);
            cdr_data *d = open_or_fail(&o);
            T_CHECK(cdr_data_docs(d, false) == 3);
            for (int64_t n = 0; n < cdr_data_docs(d, false); n++) {
                T_STR(view(d, false, n), USER("a { \" \\ } ] b") BOT("A"));
                T_CHECK(cdr_data_doc_at(d, false, n).line == line_of[i][n]);
            }
            cdr_data_close(d);
        }
    refused("h.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]\n", NULL, "json.syntax", "h.json:");
}

static void sources_together(void)
{
    cdr_err err = { 0 };
    T_CHECK(cdr_make_dirs(in_dir("many"), &err) == CDR_OK);
    put("many/a.jsonl", TWO_TURNS "\n" TWO_TURNS "\n");
    put("many/b.json", "[{\"instruction\": \"I\", \"output\": \"O\"}]");
    put("many/c.txt", "text of its own");
    put("many/d.jsonl", "{\"text\": \"t\"}");
    cdr_data_source src[2] = { { .path = in_dir("many") }, { .path = in_dir("many/a.jsonl"), .max_samples = 1, .train_on = CDR_LOSS_LAST, .weight = 2 } };
    cdr_data_opts o = opts_of(src, 2);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_docs(d, false) == 6 && cdr_data_stats(d)->n_conversations == 4 && cdr_data_stats(d)->epoch_samples == 7);
    T_STR(view(d, false, 2), USER("I") BOT("O"));
    T_STR(view(d, false, 3), "t[ext of its own[EOS]]");
    T_STR(view(d, false, 5), USER("Q") HUSH("A") USER("R") BOT("B"));
    T_STR(cdr_data_form(d), "text and text records and messages and alpaca");
    cdr_data_close(d);
}

/* ---- order, ranks, resume ------------------------------------------------------------------------------------------------------ */

/* A row's pieces against the documents: each piece is a whole conversation, its labels those of the document; seen counts them by line. */
static int64_t check_row(const cdr_data *d, const shard *x, int64_t r, int *seen)
{
    static int32_t ids[4096];
    static bool trained[4096];
    int64_t t = r * S, end = t + S, n_pieces = 0, n_trained = 0;
    while (t < end && x->start[t] <= t) {
        int64_t u = t, found = -1;
        while (u < end && x->start[u] == t) u++;
        for (int64_t i = 0; i < cdr_data_docs(d, false) && found < 0; i++) {
            cdr_data_doc doc = cdr_data_doc_at(d, false, i);
            if (doc.n_in != u - t) continue;
            cdr_data_doc_tokens(d, false, i, 0, doc.n, ids, trained);
            bool same = true;
            for (int64_t k = 0; k < doc.n_in && same; k++)
                same = x->tokens[t + k] == ids[k] && x->targets[t + k] == (trained[k + 1] ? ids[k + 1] : -1);
            if (same) found = doc.line;
        }
        T_CHECK(found > 0);
        if (found > 0) seen[found]++;
        for (int64_t k = t; k < u; k++) n_trained += x->targets[k] >= 0;
        n_pieces++;
        t = u;
    }
    for (; t < end; t++) T_CHECK(x->targets[t] == -1 && x->start[t] == t + 1);
    T_CHECK(n_pieces >= 1);
    return n_trained;
}

static void packed_rows_of_conversations(void)
{
    static char text[1 << 18];
    put_file(in_dir("talks.jsonl"), text, make_talks(text, sizeof text));
    cdr_data_source src = { .path = in_dir("talks.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    o.sequence_length = S;
    o.micro_batch_tokens = MICRO;
    o.pack_window = 40;
    cdr_data *d = open_or_fail(&o);
    const cdr_data_stat *st = cdr_data_stats(d);
    T_CHECK(st->n_documents > 150 && st->n_dropped > 20 && st->n_documents + st->n_dropped == N_TALKS);
    static shard first[64];
    int64_t row = 0, trained = 0;
    for (int epoch = 0; epoch < 2; epoch++) {         /* each conversation once an epoch, whole, with its own labels; epochs in another order */
        int seen[N_TALKS + 1] = { 0 };
        int64_t n = 0;
        for (; n < st->n_documents && row < 2 * N_TALKS; row++) {
            const shard *x = get(d, row / 2, 0, 1);
            if (row % 2 == 0 && row / 2 < 64) first[row / 2] = *x;
            if (epoch == 1 && row % 2 == 0 && row / 2 < 64) T_CHECK(memcmp(&first[0], x, sizeof first[0]) != 0);
            int before = 0, after = 0;
            for (int i = 1; i <= N_TALKS; i++) before += seen[i];
            trained += check_row(d, x, row % 2, seen);
            for (int i = 1; i <= N_TALKS; i++) after += seen[i];
            n += after - before;
        }
        for (int i = 1; i <= N_TALKS; i++) T_CHECK(seen[i] <= 1);
        if (epoch == 0) T_CHECK(row == st->rows_epoch0 && trained == st->epoch_trained);
    }
    T_CHECK(trained == 2 * st->epoch_trained && st->epoch_trained < st->epoch_places && st->epoch_places < st->epoch_tokens);
    /* ranks, and a process that begins at any step, see the same */
    enum { STEPS = 12, N = 4 };
    static shard all[STEPS][N];
    for (int step = 0; step < STEPS; step++)
        for (int id = 0; id < N; id++) all[step][id] = *get(d, step, id, N);
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (int rank = 0; rank < ranks; rank++) {
            cdr_data *e = open_or_fail(&o);
            for (int step = rank; step < STEPS; step += 3)
                for (int id = rank; id < N; id += ranks) T_CHECK(memcmp(get(e, step, id, N), &all[step][id], sizeof(shard)) == 0);
            cdr_data_close(e);
        }
    /* where a token stands */
    char where[1100], want[1100];
    const shard *x = get(d, 0, 0, 1);
    int seen[N_TALKS + 1] = { 0 };
    (void)check_row(d, x, 0, seen);
    cdr_data_locate(d, 0, 0, 1, 0, where, sizeof where);
    int64_t line = atoll(strrchr(where, ':') + 1);
    T_CHECK(line >= 1 && line <= N_TALKS && seen[line] == 1);
    (void)snprintf(want, sizeof want, "%s:%lld", in_dir("talks.jsonl"), (long long)line);
    T_STR(where, want);
    cdr_data_close(d);
}

/* What words depend on is in the fingerprint. */
static void fingerprint_and_threads(void)
{
    cdr_data_source src = { .path = in_dir("talks.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    o.sequence_length = S;
    o.micro_batch_tokens = MICRO;
    cdr_data *d = open_or_fail(&o);
    uint64_t want = cdr_data_fingerprint(d);
    cdr_data_close(d);
    for (int k = 0; k < 6; k++) {
        cdr_data_opts p = o;
        if (k == 0) p.train_on = CDR_LOSS_LAST;
        if (k == 1) p.train_eos = CDR_EOS_NONE;
        if (k == 2) chat.thinking = true;
        if (k == 3) p.eval_fraction = 0.2;
        if (k == 4) p.threads = 3;
        if (k == 5) chat.system = "S";
        d = open_or_fail(&p);
        T_CHECK((cdr_data_fingerprint(d) == want) == (k == 4));
        cdr_data_close(d);
        chat.thinking = false;
        chat.system = NULL;
    }
}

static void held_out_by_hash(void)
{
    cdr_data_source src = { .path = in_dir("talks.jsonl") };
    cdr_data_opts o = opts_of(&src, 1);
    o.eval_fraction = 0.25;
    cdr_data *d = open_or_fail(&o);
    int64_t n = cdr_data_docs(d, false), k = cdr_data_docs(d, true);
    T_CHECK(n + k == N_TALKS && k > N_TALKS / 8 && k < N_TALKS / 2);
    bool held[N_TALKS + 1] = { false };
    for (int64_t i = 0; i < k; i++) held[cdr_data_doc_at(d, true, i).line] = true;
    for (int64_t i = 0; i < n; i++) T_CHECK(!held[cdr_data_doc_at(d, false, i).line]);
    /* held-out rows: answers only, each whole; bytes are those of the answers */
    int64_t trained = 0, bytes = 0, want = 0, want_bytes = 0;
    static int32_t a[1024], b[1024], c[1024], e[1024];
    for (int64_t i = 0; i < cdr_data_stats(d)->eval_shards; i++) {
        int64_t n_trained, n_bytes, cut = 0;
        cdr_data_eval_shard(d, i, a, b, c, e, &n_trained, &n_bytes);
        for (int t = 0; t < 1024; t++) want_bytes += b[t] >= 0 && b[t] < 256, cut += c[t] <= t && b[t] >= 0;
        T_CHECK(cut == n_trained);
        for (int t = 0; t < 1024; t++) {              /* no conversation is cut: each piece begins one, and ends at the mark */
            bool first = c[t] == t, last = t == 1023 || c[t + 1] != c[t];
            if (first) T_CHECK(a[t] == 259);
            if (last && c[t] <= t) T_CHECK(a[t] == 261);
        }
        trained += n_trained;
        bytes += n_bytes;
    }
    for (int64_t i = 0; i < k; i++) want += cdr_data_doc_at(d, true, i).n_trained;
    T_CHECK(trained == want && bytes == want_bytes && bytes < trained && trained == cdr_data_stats(d)->eval_trained && bytes == cdr_data_stats(d)->eval_predicted_bytes);
    cdr_data_close(d);
    char *text = NULL;                                /* a sample stays on its side whatever else is in the file */
    size_t size;
    cdr_err err = { 0 };
    T_CHECK(cdr_file_read(in_dir("talks.jsonl"), 1 << 20, &text, &size, &err) == CDR_OK);
    char *second = strchr(text, '\n') + 1;
    put("fewer.jsonl", second);
    cdr_free(text);
    src.path = in_dir("fewer.jsonl");
    d = open_or_fail(&o);
    for (int64_t i = 0; i < cdr_data_docs(d, true); i++) T_CHECK(held[cdr_data_doc_at(d, true, i).line + 1]);
    T_CHECK(cdr_data_docs(d, true) == k - held[1]);
    cdr_data_close(d);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!rig_open("talk")) return 1;
    T_RUN(openai_messages);
    T_RUN(other_forms);
    T_RUN(train_on_and_eos);
    T_RUN(a_message_decides);
    T_RUN(reasoning);
    T_RUN(broken_records);
    T_RUN(samples_without_a_trained_token);
    T_RUN(long_conversations);
    T_RUN(layouts);
    T_RUN(sources_together);
    T_RUN(packed_rows_of_conversations);
    T_RUN(fingerprint_and_threads);
    T_RUN(held_out_by_hash);
    rig_close();
    return t_end();
}
