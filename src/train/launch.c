/* launch: says what it starts, starts the ranks (comm/shm_launch.c), and ends with the job's exit code.
 *
 * COMMAND is one of Cadre's own (it runs inside the forked process, so that 128 ranks start in milliseconds) or another
 * program (exec), which finds its rank in CADRE_RANK, CADRE_WORLD, CADRE_LOCAL_RANK and may open libcadre's
 * communicator. Ranks 1.. of `train` write to OUTPUT_DIR/ranks/rank-N.log unless --log-dir names another folder. */
#include "train/launch.h"
#include "train/events.h"
#include "comm/comm.h"
#include "device/device.h"
#include "recipe/recipe.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int (*run_command)(int argc, char **argv);     /* the one thing that main tells the library */
static const char *const own_commands[] = { "train", "eval", "generate", "plan" };

void cdr_launch_set_main(int (*run)(int argc, char **argv)) { run_command = run; }

static bool is_own(const char *name)
{
    for (int i = 0; i < CDR_COUNT(own_commands); i++)
        if (!strcmp(name, own_commands[i])) return true;
    return false;
}

/* A program that exec would find: as execvp looks for it. */
static bool is_program(const char *name)
{
    char path[4096];
    if (strchr(name, '/')) return access(name, X_OK) == 0;
    for (const char *p = getenv("PATH"); p && *p;) {
        size_t n = strcspn(p, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)CDR_MIN(n, (size_t)2048), n ? p : ".", name);
        if (access(path, X_OK) == 0) return true;
        p += n + (p[n] == ':');
    }
    return false;
}

/* The value of a flag that takes one: "--out DIR" or "--out=DIR"; *i moves past it. NULL: this is not the flag. */
static const char *flag_value(const char *name, int argc, char **argv, int *i)
{
    size_t n = strlen(name);
    if (!strncmp(argv[*i], name, n) && argv[*i][n] == '=') return argv[*i] + n + 1;
    if (!strcmp(argv[*i], name) && *i + 1 < argc) return argv[++*i];
    return NULL;
}

/* Where `train RECIPE ...` will write: its recipe, read as the ranks will read it. NULL when it does not load; the ranks
 * say why. */
static const char *train_log_dir(const cdr_launch_args *a, cdr_pool *pool)
{
    static const char *const bare[] = { "--json", "-q", "--quiet", "-v", "--verbose", "-h", "--help", "--dry-run" };
    const char **set = cdr_pool_alloc(pool, sizeof *set * (size_t)a->argc), *recipe = NULL, *x;
    int n_set = 0;
    for (int i = 1; i < a->argc; i++) {
        bool takes_none = false;
        if (a->argv[i][0] != '-') {
            recipe = recipe ? recipe : a->argv[i];
            continue;
        }
        for (int k = 0; k < CDR_COUNT(bare); k++) takes_none = takes_none || !strcmp(a->argv[i], bare[k]);
        if (!strcmp(a->argv[i], "--dry-run")) return NULL;                  /* a plan writes nothing */
        if ((x = flag_value("--out", a->argc, a->argv, &i)) || (x = flag_value("-o", a->argc, a->argv, &i))) set[n_set++] = cdr_pool_printf(pool, "output_dir=%s", x);
        else if ((x = flag_value("--set", a->argc, a->argv, &i))) set[n_set++] = x;
        else if (!takes_none && !strchr(a->argv[i], '=')) i++;
    }
    cdr_common common = { .set = set, .n_set = n_set };
    cdr_recipe r;
    cdr_err ignored = { 0 };
    if (!recipe || cdr_recipe_load(recipe, &common, pool, &r, &ignored) != CDR_OK || !r.output_dir) return NULL;
    return cdr_pool_printf(pool, "%s/ranks", r.output_dir);
}

static bool rank_flag(const cdr_launch_args *a, const char *flag, const char *other)
{
    for (int i = 1; i < a->argc && strcmp(a->argv[i], "--") != 0; i++)
        if (strcmp(a->argv[i], flag) == 0 || strcmp(a->argv[i], other) == 0) return true;
    return false;
}

static void print_start(const cdr_launch_args *a, const char *log_dir)
{
    int cores = cdr_cpu_cores(), n = a->n_ranks, each = CDR_MAX(1, cores / n);
    char share[64], ranks[32], logs[4200] = "";
    if (n > cores) snprintf(share, sizeof share, "%d core%s shared", cores, cores == 1 ? "" : "s");
    else snprintf(share, sizeof share, "%d core%s each", each, each == 1 ? "" : "s");
    if (n == 2) snprintf(ranks, sizeof ranks, "rank 1");
    else snprintf(ranks, sizeof ranks, "ranks 1-%d", n - 1);
    if (n > 1 && log_dir) snprintf(logs, sizeof logs, "; log%s of %s in %s/", n == 2 ? "" : "s", ranks, log_dir);
    else if (n > 1) snprintf(logs, sizeof logs, "; output of %s is not kept", ranks);
    printf("launch    %d rank%s on 1 host, transport shm (from: cadre launch), %s%s\n", n, n == 1 ? "" : "s", share, logs);
    fflush(stdout);
}

/* Threads of a rank: an equal part of the cores that this job may use, a quota included. */
static void share_cores(int n)
{
    char threads[16];
    snprintf(threads, sizeof threads, "%d", CDR_MAX(1, cdr_cpu_cores() / CDR_MAX(1, n)));
    setenv("OMP_NUM_THREADS", threads, 0);
}

/* `launch --json COMMAND` is `launch COMMAND --json`: right behind its name, so that a "--" in it keeps its meaning. */
static void run_rank(const cdr_launch_args *a)
{
    static char json[] = "--json";
    char **argv = cdr_alloc(sizeof *argv * ((size_t)a->argc + 2));
    int n = 0;
    for (int i = 0; i < a->argc; i++) {
        argv[n++] = a->argv[i];
        if (i == 0 && a->common.json && is_own(argv[0])) argv[n++] = json;
    }
    argv[n] = NULL;
    if (is_own(argv[0])) exit(run_command(n, argv));
    execvp(argv[0], argv);
    fprintf(stderr, "error: launch: cannot run %s: %s [launch.command]\n", argv[0], strerror(errno));
    _exit(CDR_EUSER);
}

static cdr_status launch(const cdr_launch_args *a, bool json, cdr_err *err)
{
    int rank, code = 0;
    if (a->argc < 1) CDR_FAIL_ID(err, CDR_EUSAGE, "launch.command", "launch: no command. Example: cadre launch -n 2 train tiny-k31");
    const char *name = a->argv[0];
    if (is_own(name) && !run_command)
        CDR_FAIL_ID(err, CDR_EUSER, "launch.command", "launch: %s runs only from the cadre program; call cdr_shm_launch and cdr_%s instead", name, name);
    cdr_pool *pool = cdr_pool_new();
    if (!is_own(name) && !is_program(name)) {
        cdr_fail(err, CDR_EUSAGE, "launch.command", "launch: \"%s\" is neither train, eval, generate or plan nor a program.%s", name,
                 cdr_nearest(pool, name, own_commands, CDR_COUNT(own_commands)));
        cdr_pool_free(pool);
        return CDR_EUSAGE;
    }
    const char *log_dir = a->log_dir ? a->log_dir : a->n_ranks > 1 && !strcmp(name, "train") ? train_log_dir(a, pool) : NULL;
    bool quiet = a->common.quiet || (is_own(name) && rank_flag(a, "-q", "--quiet"));
    cdr_status st = cdr_shm_launch_check(a->n_ranks, a->bind, err);
    if (st == CDR_OK && !json && !quiet) print_start(a, log_dir);
    if (st == CDR_OK) share_cores(a->n_ranks);
    rank = -1;
    if (st == CDR_OK) st = cdr_shm_launch(a->n_ranks, a->bind, log_dir, &rank, &code, err);
    if (rank >= 0) run_rank(a);
    cdr_pool_free(pool);
    return st == CDR_OK ? (cdr_status)code : st;
}

cdr_status cdr_launch(const cdr_launch_args *a, cdr_result *r, cdr_err *err)
{
    (void)r;                                             /* what the ranks print is the result */
    bool json = a->common.json || (a->argc > 0 && is_own(a->argv[0]) && rank_flag(a, "--json", "--json"));
    cdr_status st = launch(a, json, err);
    if (st != CDR_OK && json && err->text[0]) cdr__events_print_error(err);      /* no rank has said it */
    return st;
}
