/* test_chat_cmd.c: `generate` in chat form and `chat` as a user sees them: what goes to stdout and stderr, /reset /tokens /quit, JSON, Ctrl-C.
 * A model that learnt one answer by heart is asked. Runs the `cadre` program that was built beside this test.
 */
#include "program.h"
#include "command/model_open.h"
#include "train/generate.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>

static cdr_err err;

static int on_run(const char *command, const char *flags, const char *input)
{
    return run_with(cdr_pool_printf(texts, "%s %s/run --temperature 0 --max-new-tokens 60 %s", command, dir, flags), input);
}

static void train(void)
{
    cdr_text t = { 0 };
    for (int i = 0; i < 8; i++)
        cdr_text_printf(&t, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"yo there!\"}]}\n");
    put("t.jsonl", t.s);
    cdr_text_free(&t);
    put("r.yaml", cdr_pool_printf(texts, "name: talk\nmodel: {path: tiny-test}\n"
                                        "data: {train: %s/t.jsonl, eval: none, tokenizer: byte, chat_format: k3_xtml, chat_options: {system: none}}\n"
                                        "train: {steps: 50, sequence_length: 512, micro_batch_tokens: 512, global_batch_tokens: 512}\n"
                                        "optimizer: {learning_rate: 1.0e-2}\nprecision: {compute: f32, params: f32}\n", dir));
    T_NEAR(runf("train %s/r.yaml -q --out %s/run", dir, dir), 0, 0);
    if (errors[0]) fprintf(stderr, "  %s", errors);
}

static void generate_answers_in_the_chat_format(void)
{
    T_NEAR(on_run("generate", "--prompt hi", ""), 0, 0);
    T_STR(out, "yo there!\n");
    T_HAS(errors, "tokens/s, talk, seed 1, k3_xtml]");
    T_NEAR(on_run("generate", "--prompt hi --json", ""), 0, 0);
    T_HAS(out, "\"result\":[{\"prompt\":\"hi\",\"text\":\"yo there!\",\"tokens\":");
    T_NEAR(on_run("generate", "--prompt hi --raw -q", ""), 0, 0);
    T_CHECK(strncmp(out, "hi", 2) == 0 && strstr(out, "yo there!\n") != out);
    T_NEAR(on_run("generate", "--prompt hi -q --set 'generate.stop=[\"re!\"]'", ""), 0, 0);
    T_STR(out, "yo the\n");
}

static void stop_texts_end_greedy_answers_too(void)
{
    T_NEAR(runf("eval %s/run --data %s/t.jsonl --answers 1", dir, dir), 0, 0);
    T_HAS(out, "1 greedy, 1 word for word");
    T_NEAR(runf("eval %s/run --data %s/t.jsonl --answers 1 --set 'generate.stop=[\"re!\"]'", dir, dir), 0, 0);
    T_HAS(out, "1 greedy, 0 word for word");
    T_HAS(out, "said      yo the\n");
}

/* At a temperature where every id is as likely, one answer in ten begins with a special id, which is no text yet. */
static void stop_texts_are_looked_for_where_there_is_text(void)
{
    const char *prompts = "";
    for (int i = 0; i < 40; i++) prompts = cdr_pool_printf(texts, "%s --prompt %d", prompts, i);
    T_NEAR(runf("generate %s/run --temperature 1000 --max-new-tokens 1 -q --set 'generate.stop=[\"none\"]' %s", dir, prompts), 0, 0);
}

static void what_is_not_finite_is_no_answer(void)
{
    T_NEAR(runf("toy kimi_k3 --out %s/toy -q", dir), 0, 0);
    T_NEAR(runf("generate %s/toy --prompt hi --max-new-tokens 2 -q", dir), 0, 0);
    FILE *f = fopen(in_dir("toy/model-00005-of-000005.safetensors"), "r+b");
    T_CHECK(f && fseek(f, -2, SEEK_END) == 0 && fwrite("\xc0\x7f", 1, 2, f) == 2 && fclose(f) == 0);         /* a norm of BF16 ends in NaN */
    T_NEAR(runf("generate %s/toy --prompt hi --max-new-tokens 2 -q", dir), 4, 0);
    T_STR(out, "");
    T_HAS(errors, "[generate.nonfinite]");
    T_NEAR(runf("eval %s/toy --data %s/t.jsonl", dir, dir), 4, 0);
    T_STR(out, "");
    T_HAS(errors, "[eval.nonfinite]");
}

static void a_conversation_goes_through_a_pipe(void)
{
    T_NEAR(on_run("chat", "", "hi\n\n/tokens\n/what\nhi\n/reset\n/tokens\nhi\n/quit\nhi\n"), 0, 0);
    T_CHECK(strncmp(out, "yo there!\n", 10) == 0 && strlen(out) > 20);
    T_STR(out + strlen(out) - 10, "yo there!\n");
    int lines = 0;
    for (const char *c = out; *c; c++) lines += *c == '\n';
    T_NEAR(lines, 3, 0);
    T_STR(errors, "talk (tiny-test); format k3_xtml, thinking off\n2 messages, 134 tokens of 512\nnote: /what is no command; /reset, /tokens and /quit are\n"
                  "0 messages, 36 tokens of 512\n");
    T_NEAR(on_run("chat", "-q --set 'generate.stop=[\"re!\"]'", "hi\n/quit\n"), 0, 0);
    T_STR(out, "yo the\n");
    T_NEAR(on_run("chat", "-q --set 'generate.stop=[\"rex\"]'", "hi\n/quit\n"), 0, 0);
    T_STR(out, "yo there!\n");
    T_NEAR(on_run("chat", "--json", "hi\n"), 0, 0);
    T_HAS(out, "\"command\":\"chat\",\"ok\":true,\"warnings\":[],\"result\":[{\"user\":\"hi\",\"text\":\"yo there!\",\"tokens\":");
    T_HAS(out, "\"interrupted\":false}]}");
    T_NEAR(on_run("chat", "-q", ""), 0, 0);
    T_STR(out, "");
    T_STR(errors, "");
}

static void the_first_line_says_who_speaks(void)
{
    T_NEAR(runf("toy kimi_k3 --out %s/packed -q", dir), 0, 0);
    put("l.yaml", cdr_pool_printf(texts, "name: small\nmodel: {path: %s/packed}\ndata: {train: %s/t.jsonl, eval: none}\n"
                                        "train: {steps: 1, sequence_length: 256, micro_batch_tokens: 256, global_batch_tokens: 256}\n"
                                        "lora: {rank: 4, targets: [attention, dense_mlp], rank_pattern: {q_b_proj: 8}}\n", dir, dir));
    T_NEAR(runf("train %s/l.yaml -q --out %s/small", dir, dir), 0, 0);
    if (errors[0]) fprintf(stderr, "  %s", errors);
    T_NEAR(run_with(cdr_pool_printf(texts, "chat %s/packed --adapter %s/small/", dir, dir), ""), 0, 0);
    T_STR(errors, "packed (kimi_k3, experts MXFP4) + small (LoRA r 4 to 8, step 1); format k3_xtml, thinking off\n");
}

static void what_does_not_fit_is_left_out(void)
{
    char *line = cdr_pool_alloc(texts, 700);
    memset(line, 'x', 600);
    T_NEAR(on_run("chat", "-q", cdr_pool_printf(texts, "%s\nhi\n", line)), 0, 0);
    T_STR(out, "yo there!\n");
    T_HAS(errors, "note: the conversation has 667 tokens with this message, the cache holds 512");
    T_NEAR(on_run("chat", "-q --system 'Be brief.'", "/tokens\n"), 0, 0);
    T_HAS(errors, "0 messages, 78 tokens of 512");
}

static void what_cannot_be_is_refused(void)
{
    T_NEAR(on_run("chat", "--set data.chat_format=none", "hi\n"), 1, 0);
    T_HAS(errors, "the model has no chat format");
    T_NEAR(on_run("chat", "--set data.chat_format=kimi_k2", "hi\n"), 3, 0);
    T_HAS(errors, "[chat.no-special]");
    T_NEAR(on_run("chat", "--thinking maybe", ""), 2, 0);
    T_HAS(errors, "--thinking maybe; it is on or off");
    T_NEAR(on_run("chat", "--set data.chat_options.thinking_effort=low", ""), 1, 0);
    T_HAS(errors, "[chat.effort]");
    T_NEAR(runf("chat %s/nothing", dir), 3, 0);
    T_NEAR(runf("chat %s/run extra", dir), 2, 0);
}

static bool open_run(cdr__opened *m)
{
    static const cdr_common c = { .quiet = true };
    err = (cdr_err){ 0 };
    cdr_status st = cdr__model_open(m, cdr_pool_printf(texts, "%s/run", dir), &c, &err);
    if (st == CDR_OK) st = cdr__model_layout(m, &err);
    if (st == CDR_OK) st = cdr__model_load(m, NULL, &err);
    T_CHECK(st == CDR_OK);
    return st == CDR_OK;
}

/* Appends the answer to these messages, with nothing in the cache. */
static void answer(cdr__opened *m, double temperature, int most, cdr_chat_message *message, int *n)
{
    cdr_chat *chat = NULL;
    cdr_chat_tokens t = { 0 };
    cdr_text content = { 0 }, reasoning = { 0 };
    cdr_sample_opts o = cdr__sample_opts(&m->s.r);
    int32_t ids[512], stop[8];
    o.temperature = temperature;
    o.max_new_tokens = most;
    T_CHECK(cdr__model_chat(m, &chat, &err) == CDR_OK && cdr_chat_render(chat, &(cdr_conversation){ .message = message, .n = *n }, true, &t, &err) == CDR_OK);
    for (int64_t i = 0; i < t.n; i++) ids[i] = t.t[i].id;
    cdr_said x = { .ids = ids, .n = t.n, .stop = stop, .n_stop = cdr_chat_stops(chat, stop, CDR_COUNT(stop)) };
    T_CHECK(cdr__model_say(&m->s, &o, &x, &err) == CDR_OK);
    cdr_chat_split(chat, ids + t.n, x.n - t.n, &content, &reasoning);
    message[(*n)++] = (cdr_chat_message){ .role = "assistant", .content = cdr_pool_strdup(texts, content.s ? content.s : "") };
    cdr_text_free(&content);
    cdr_text_free(&reasoning);
    cdr_chat_tokens_free(&t);
    cdr_chat_close(chat);
}

/* A question that the model has not learnt is answered by what was said before it: all of that, and nothing that was forgotten. An answer that is cut leaves an id
 * that the cache does not hold; sampling shows it. */
static void a_turn_sees_the_whole_conversation(void)
{
    static const struct { const char *odd; double temperature; int most; } rows[] = { { "zzzz qqqq", 0, 60 }, { "hi zzzz", 3, 3 }, { "hi hi hi 9876 9876", 3, 3 } };
    cdr__opened m;
    bool is_open = open_run(&m);
    for (int i = 0; i < CDR_COUNT(rows) && is_open; i++) {
        cdr_chat_message with[4] = { { .role = "user", .content = "hi" } }, alone[2] = { { .role = "user", .content = rows[i].odd } };
        int n = 1, n_alone = 1;
        answer(&m, rows[i].temperature, rows[i].most, with, &n);
        with[n++] = alone[0];
        answer(&m, rows[i].temperature, rows[i].most, with, &n);
        answer(&m, rows[i].temperature, rows[i].most, alone, &n_alone);
        T_NEAR(run_with(cdr_pool_printf(texts, "chat %s/run -q --temperature %g --max-new-tokens %d", dir, rows[i].temperature, rows[i].most),
                        cdr_pool_printf(texts, "hi\n%s\n/reset\n%s\n", rows[i].odd, rows[i].odd)), 0, 0);
        T_STR(out, cdr_pool_printf(texts, "%s\n%s\n%s\n", with[1].content, with[3].content, alone[1].content));
    }
    cdr__model_close(&m);
}

/* Ids that the cache holds are not fed again: what is said is the same. */
static void a_conversation_goes_on_in_the_cache(void)
{
    cdr__opened m;
    if (open_run(&m)) {
        cdr_sample_opts o = { .max_new_tokens = 9, .temperature = 0 };
        int32_t one[512], two[512], end = -1;
        cdr_said x = { .ids = one, .stop = &end, .n_stop = 1 }, y = { .ids = two, .stop = &end, .n_stop = 1 };
        for (int i = 0; i < 37; i++) one[x.n++] = (int32_t)"a conversation that the model knows not"[i];
        T_CHECK(cdr__model_say(&m.s, &o, &x, &err) == CDR_OK && x.n == 46 && x.n_fed == 45);
        for (int i = 0; i < 21; i++) one[x.n++] = 'b' + i % 3;
        for (int64_t i = 0; i < x.n; i++) two[i] = one[i];
        y.n = x.n;
        T_CHECK(cdr__model_say(&m.s, &o, &x, &err) == CDR_OK && x.n == 76);
        T_CHECK(cdr__model_say(&m.s, &o, &y, &err) == CDR_OK && y.n == 76);
        T_CHECK(memcmp(one, two, sizeof *one * 76) == 0);
    }
    cdr__model_close(&m);
}

static int in_pipe(int fd)
{
    int n = 0;
    T_CHECK(ioctl(fd, FIONREAD, &n) == 0);
    return n;
}

/* Ctrl-C ends the answer, not the conversation: the input that follows is read, and answered. stdout takes 8 bytes and then waits, so that the answer is under
 * way; no byte of it is lost: /tokens counts them, and 125 that are around "hi" and an answer. */
static void ctrl_c_ends_an_answer(void)
{
    enum { PIPE = 4096, ROOM = 8 };
    static char text[3 * PIPE];
    int in[2], from[2], st, n = 0, before, n_tokens = 0;
    memset(text, '.', PIPE);
    T_CHECK(pipe(in) == 0 && pipe(from) == 0 && fcntl(from[1], F_SETPIPE_SZ, PIPE) == PIPE);
    T_CHECK(write(from[1], text, PIPE - ROOM) == PIPE - ROOM && write(in[1], "hi\n/tokens\nhi\n", 14) == 14);
    pid_t child = fork();
    if (child == 0) {
        dup2(in[0], 0);
        dup2(from[1], 1);
        dup2(open(cdr_pool_printf(texts, "%s/err", dir), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
        close(in[1]);
        close(from[0]);
        execl(program, program, "chat", cdr_pool_printf(texts, "%s/run", dir), "-q", "--temperature", "1000", "--set", "generate.seed=3",
              "--max-new-tokens", "400", (char *)NULL);
        _exit(99);
    }
    close(in[0]);
    close(from[1]);
    do {                               /* until a byte is there and no more come */
        before = in_pipe(from[0]);
        usleep(50000);
    } while ((in_pipe(from[0]) != before || before == PIPE - ROOM) && waitpid(child, &st, WNOHANG) == 0);
    T_CHECK(in_pipe(from[0]) > PIPE - ROOM && kill(child, SIGINT) == 0);
    close(in[1]);
    for (ssize_t more; n < (int)sizeof text && (more = read(from[0], text + n, sizeof text - (size_t)n)) > 0;) n += (int)more;
    const char *said = text + PIPE - ROOM, *stopped = memmem(text, (size_t)n, " [stopped]\n", 11);
    T_CHECK(stopped && stopped > said && stopped - said < 2 * ROOM && stopped + 11 < text + n &&
            !memmem(stopped + 11, (size_t)(text + n - stopped - 11), " [stopped]", 10));
    T_CHECK(waitpid(child, &st, 0) == child && WIFEXITED(st) && WEXITSTATUS(st) == 0);
    T_CHECK(sscanf(slurp("err", NULL), "2 messages, %d tokens", &n_tokens) == 1 && stopped && stopped - said == n_tokens - 125);
    close(from[0]);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!program_open("chat-cmd")) return 1;
    train();
    T_RUN(generate_answers_in_the_chat_format);
    T_RUN(stop_texts_are_looked_for_where_there_is_text);
    T_RUN(stop_texts_end_greedy_answers_too);
    T_RUN(what_is_not_finite_is_no_answer);
    T_RUN(a_conversation_goes_through_a_pipe);
    T_RUN(the_first_line_says_who_speaks);
    T_RUN(what_does_not_fit_is_left_out);
    T_RUN(what_cannot_be_is_refused);
    T_RUN(a_turn_sees_the_whole_conversation);
    T_RUN(a_conversation_goes_on_in_the_cache);
    T_RUN(ctrl_c_ends_an_answer);
    program_close();
    return t_end();
}
