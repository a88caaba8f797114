/* main.c: finds the command, prints its result or its error, and returns the status as exit code.
 *
 * stdout: results (or, with --json, one document {"cadre", "command", "ok", "warnings", "result" | "error"}; of `train` and
 * `launch` records, one a line, the last of them an `error` where they fail).
 * stderr: progress, notes, `error: WHERE: WHAT; WHY. FIX [id]`. A job of several ranks prints one error: the first.
 */
#include "cli/cli.h"
#include "comm/comm.h"
#include "train/events.h"
#include "train/launch.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

const cli_command *const cli_commands[] = { &cli_train, &cli_generate, &cli_chat, &cli_eval, &cli_plan, &cli_bench, &cli_check, &cli_config, &cli_data, &cli_toy,
                                            &cli_export, &cli_verify_adapter, &cli_merge, &cli_launch, &cli_doctor, &cli_version, &cli_inspect, &cli_onboard, NULL };
static const char *const reserved[] = { "board", "mcp", "report" };

static void json_error(cdr_jw *w, const cdr_err *err)
{
    cdr_jw_begin(w, "error", '{');
    cdr_jw_str(w, "id", err->id);
    cdr_jw_str(w, "message", err->text);
    cdr_jw_int(w, "exit_code", err->status);
    cdr_jw_end(w, '}');
}

static void print_document(const char *command, cdr_status st, const cdr_result *r, const cdr_err *err)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "cadre", CDR_VERSION);
    cdr_jw_str(&w, "command", command);
    cdr_jw_bool(&w, "ok", st == CDR_OK);
    cdr_text_printf(&t, ",\"warnings\":%s", r->warnings ? r->warnings : "[]");
    if (r->json) cdr_text_printf(&t, ",\"result\":%s", r->json);
    if (st != CDR_OK) json_error(&w, err);
    else if (!r->json) cdr_text_printf(&t, ",\"result\":{}");
    cdr_jw_end(&w, '}');
    printf("%s\n", t.s);
    cdr_text_free(&t);
}

/* A shard that is read keeps a descriptor: as many as this process may have, where a shell gives fewer at first. */
static void raise_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

/* An error that a command reports without a message is a fault of ours; it still has an exit code and a line. */
static void complete_error(const char *command, cdr_status st, cdr_err *err)
{
    if (err->text[0]) return;
    *err = (cdr_err){ .status = st };
    snprintf(err->id, sizeof err->id, "internal.no-message");
    snprintf(err->text, sizeof err->text, "cadre %s: failed with status %d", command, st);
}

static int finish(const cli_command *c, const cli_args *a, cdr_status st, cdr_result *r, cdr_err *err)
{
    /* The result may say what was found wrong (check): it is printed before the error. */
    if (a->common.json && (!c->streams || cli_has(a, "--dry-run"))) {
        if (st != CDR_OK) complete_error(c->name, st, err);
        print_document(c->name, st, r, err);
    } else if (r->text && !a->common.json) {
        fputs(r->text, stdout);
    }
    fflush(stdout);
    bool said = c->streams && !err->text[0];         /* launch: a rank has printed the job's error */
    if (st != CDR_OK && !said) {
        complete_error(c->name, st, err);
        if (cdr_comm_first_error(err)) fprintf(stderr, "error: %s [%s]\n", err->text, err->id);
    }
    cdr_result_free(r);
    return (int)st;
}

/* --json holds wherever it stands, also behind what could not be parsed. */
static bool asks_json(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

static int usage(const char *command, bool json, bool streams, const cdr_err *err)
{
    cdr_result none = { 0 };
    if (json && streams) cdr__events_print_error(err);
    else if (json) print_document(command, err->status, &none, err);
    if (cdr_comm_first_error(err)) fprintf(stderr, "error: %s [%s]\n", err->text, err->id);
    return (int)err->status;
}

static int no_such_command(cdr_pool *pool, const char *name, bool json)
{
    const char *names[32];
    int n = 0;
    cdr_err err = { 0 };
    for (int i = 0; i < CDR_COUNT(reserved); i++) {
        if (strcmp(reserved[i], name) == 0) {
            cdr_fail(&err, CDR_EUSAGE, "usage.reserved", "cadre %s: reserved: not in this version", name);
            return usage(name, json, false, &err);
        }
        names[n++] = reserved[i];
    }
    for (int i = 0; cli_commands[i] && n < CDR_COUNT(names); i++) names[n++] = cli_commands[i]->name;
    cdr_fail(&err, CDR_EUSAGE, "usage.command", "cadre %s: unknown command.%s cadre --help lists all", name, cdr_nearest(pool, name, names, n));
    return usage(name, json, false, &err);
}

static int run_command(const cli_command *c, cdr_pool *pool, int argc, char **argv)
{
    cdr_err err = { 0 };
    cdr_result r = { 0 };
    cli_args a = { .pool = pool };
    cdr_status st = cli_parse(c, argc, argv, &a, &err);
    if (st != CDR_OK) return usage(c->name, asks_json(argc, argv), c->streams, &err);
    if (a.help) {
        cdr_text t = { 0 };
        cli_help(c, pool, &t);
        fputs(t.s, stdout);
        cdr_text_free(&t);
        return CDR_OK;
    }
    cdr_log_set_level(a.common.quiet ? CDR_LOG_ERROR : a.common.verbose ? CDR_LOG_DEBUG : CDR_LOG_INFO);
    st = c->run(&a, &r, &err);
    return finish(c, &a, st, &r, &err);
}

static int dispatch(cdr_pool *pool, int argc, char **argv)      /* argv: the words behind "cadre" */
{
    const char *name = argc > 0 ? argv[0] : "";
    bool help = strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0;
    bool json = asks_json(argc, argv);
    if ((!*name || strcmp(name, "--json") == 0) && json) {
        cdr_err err = { 0 };
        cdr_fail(&err, CDR_EUSAGE, "usage.command", "cadre: a command is missing; cadre --help lists all");
        return usage("", true, false, &err);
    }
    if (!*name || help) {
        cdr_text t = { 0 };
        cli_overview(&t);
        fputs(t.s, help ? stdout : stderr);
        cdr_text_free(&t);
        return help ? CDR_OK : CDR_EUSAGE;
    }
    if (strcmp(name, "--version") == 0) name = "version";
    for (int i = 0; cli_commands[i]; i++)
        if (strcmp(cli_commands[i]->name, name) == 0) return run_command(cli_commands[i], pool, argc - 1, argv + 1);
    return no_such_command(pool, name, json);
}

/* A whole command line: main's, or that of a rank which `launch` has forked. */
static int run_words(int argc, char **argv)
{
    cdr_pool *pool = cdr_pool_new();
    int code = dispatch(pool, argc, argv);
    cdr_pool_free(pool);
    return code;
}

/* Idle OpenMP threads sleep instead of spinning: on cores that are shared the demo's step takes 127 ms instead of 200 to
 * 2,200; on free cores the difference is within the noise. libgomp reads its environment before main, so the program starts itself once more
 * (2 ms). A user's own setting wins; where the start fails, threads spin. */
static void wait_passively(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    wait_passively(argv);
    signal(SIGPIPE, SIG_DFL);                /* `cadre config schema | head` ends quietly */
    signal(SIGXFSZ, SIG_IGN);                /* a file over the limit is an error of the write, with a message */
    raise_files();
    cdr_launch_set_main(run_words);
    return run_words(argc - 1, argv + 1);
}
