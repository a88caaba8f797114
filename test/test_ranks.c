/* Ranks that are killed, stopped, silent or in the wrong collective, and the launcher: exit codes, messages, signals,
 * logs, nobody left behind. Values: test_comm.c. */
#include "ranks.h"
#include "train/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static void pause_ms(int ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

/* ---- loss -------------------------------------------------------------------------------------------------------------- */
enum { BYTES = 1 << 18 };

static cdr_status reduce_forever(cdr_comm *w, int stop_at, void (*fate)(int i))
{
    float *slab = cdr_comm_slab(w, 2 * BYTES, NULL);
    cdr_piece p = { .full = slab, .rows = BYTES / 4, .row_bytes = 4, .dtype = CDR_F32 };
    cdr_status st = CDR_OK;
    for (int i = 0; i < 100000 && st == CDR_OK; i++) {
        cdr_comm_note(w, 7, 3, "reduce_scatter");
        if (i == stop_at && fate) fate(i);
        st = cdr_comm_all_reduce(w, &p, 1);
    }
    return st;
}

/* fate: between the halves of an expose, where the rank has arrived and its peers go on; or before it. */
static cdr_status expose_forever(cdr_comm *w, int stop_at, void (*fate)(int i), bool inside)
{
    const void *ptr[1] = { cdr_comm_slab(w, BYTES, NULL) };
    cdr_status st = CDR_OK;
    for (int i = 0; i < 100000 && st == CDR_OK; i++) {
        cdr_comm_note(w, 7, 3, "reduce_scatter");
        if (i == stop_at && fate && !inside) fate(i);
        st = cdr_comm_expose_begin(w, ptr, 1, 1);
        if (i == stop_at && fate && inside) fate(i);
        cdr_status end = cdr_comm_expose_end(w);
        if (st == CDR_OK) st = end;
        if (st == CDR_OK) st = cdr_comm_barrier(w);
    }
    return st;
}

static void die_by_kill(int i) { (void)i; kill(getpid(), SIGKILL); }
static void die_by_exit_0(int i) { (void)i; _exit(0); }
static void die_by_exit_3(int i) { (void)i; _exit(3); }
static void die_by_abort(int i) { (void)i; signal(SIGABRT, SIG_DFL); abort(); }
static void sleep_long(int i) { (void)i; pause_ms(60000); }
static void stop_self(int i) { (void)i; raise(SIGSTOP); }

static int killed(cdr_comm *w, int who) { return (int)reduce_forever(w, 50, cdr_comm_rank(w) == who ? die_by_kill : NULL); }
static int exits_0(cdr_comm *w, int who) { return (int)reduce_forever(w, 50, cdr_comm_rank(w) == who ? die_by_exit_0 : NULL); }
static int exits_3(cdr_comm *w, int who) { return (int)reduce_forever(w, 50, cdr_comm_rank(w) == who ? die_by_exit_3 : NULL); }
static int aborts(cdr_comm *w, int who) { return (int)reduce_forever(w, 50, cdr_comm_rank(w) == who ? die_by_abort : NULL); }
static int sleeps(cdr_comm *w, int who) { return (int)reduce_forever(w, 50, cdr_comm_rank(w) == who ? sleep_long : NULL); }
static int stops(cdr_comm *w, int who) { return (int)reduce_forever(w, 50, cdr_comm_rank(w) == who ? stop_self : NULL); }

static int killed_exposing(cdr_comm *w, int who) { return (int)expose_forever(w, 50, cdr_comm_rank(w) == who ? die_by_kill : NULL, true); }
static int killed_before(cdr_comm *w, int who) { return (int)expose_forever(w, 50, cdr_comm_rank(w) == who ? die_by_kill : NULL, false); }
static int sleeps_exposing(cdr_comm *w, int who) { return (int)expose_forever(w, 50, cdr_comm_rank(w) == who ? sleep_long : NULL, true); }

/* Killed from outside after so many microseconds, wherever it is then. */
static int killed_anywhere(cdr_comm *w, int after_us)
{
    if (cdr_comm_rank(w) == 1) {
        pid_t victim = getpid();
        if (fork() == 0) {
            nanosleep(&(struct timespec){ .tv_nsec = after_us * 1000 }, NULL);
            kill(victim, SIGKILL);
            _exit(0);
        }
    }
    return (int)reduce_forever(w, -1, NULL);
}

static int count_of(const char *s, const char *what)
{
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

/* All survivors said that rank `who` is lost, one of them first; and all is over within ten seconds. A death must be
 * noticed as such: silence would need timeout_s, which is 60 in those cases. */
static void check_loss(int n, body f, int who, double timeout_s, int want_code, const char *how)
{
    static char said[200000];
    double ms = 0;
    char rank[32];
    T_CHECK(run_ranks(n, f, who, timeout_s, said, sizeof said, &ms) == want_code);
    snprintf(rank, sizeof rank, "rank %d (host ", who);
    T_CHECK(count_of(said, rank) == n - 1);
    T_CHECK(count_of(said, "first|") == 1);
    T_HAS(said, how);
    T_HAS(said, "in step 7, before reduce_scatter of layer 3");
    T_CHECK(ms < 10000);
    const char *seen = strstr(said, "seen after ");
    T_CHECK(seen && atof(seen + 11) < 9.0);
    errno = 0;
    T_CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);          /* nobody is left behind */
}

static void loss_killed(void)
{
    check_loss(2, killed, 1, 60, CDR_ERANK, "killed by signal 9");
    check_loss(4, killed, 0, 60, CDR_ERANK, "killed by signal 9");
    check_loss(8, killed, 5, 60, CDR_ERANK, "killed by signal 9");
    check_loss(4, killed_exposing, 2, 60, CDR_ERANK, "killed by signal 9");
    check_loss(4, killed_before, 2, 60, CDR_ERANK, "killed by signal 9");
}

static void loss_killed_at_fifty_points(void)
{
    static char said[4000];
    for (int i = 0; i < 50; i++) {
        double ms;
        T_CHECK(run_ranks(3, killed_anywhere, (int)(draw(9, (uint64_t)i) % 30000), 60, said, sizeof said, &ms) == CDR_ERANK);
        T_HAS(said, "rank 1 (host ");
        T_CHECK(ms < 10000);
    }
}

static void loss_ended(void)
{
    check_loss(4, exits_0, 2, 60, CDR_ERANK, "ended with exit code 0");
    check_loss(4, exits_3, 2, 60, 3, "ended with exit code 3");
    check_loss(4, aborts, 2, 60, CDR_EBUG, "killed by signal 6");
}

static void loss_silent(void)
{
    check_loss(4, sleeps, 2, 1, CDR_ERANK, "silent (sleeping)");
    check_loss(2, stops, 0, 1, CDR_ERANK, "silent (stopped)");
    check_loss(4, sleeps_exposing, 1, 1, CDR_ERANK, "silent (sleeping)");
}

/* It still has something to write when its peers have ended: its own exit code must come through. */
static void linger(void) { pause_ms(300); }

static int closes_early(cdr_comm *w, int who)
{
    if (cdr_comm_rank(w) == who) {
        atexit(linger);
        return 4;
    }
    cdr_status st = cdr_comm_barrier(w);
    return (int)(st == CDR_OK ? cdr_comm_barrier(w) : st);
}

static int wrong_call(cdr_comm *w, int who)
{
    float *slab = cdr_comm_slab(w, BYTES, NULL);
    cdr_piece p = { .full = slab, .local = slab + 1024, .rows = 64, .row_bytes = 4, .dtype = CDR_F32 };
    if (cdr_comm_rank(w) == who) return (int)cdr_comm_gather(w, &p, 1);
    return (int)cdr_comm_reduce_scatter(w, &p, 1);
}

/* Other shapes; or a plain collective where others expose */
static int wrong_expose(cdr_comm *w, int who)
{
    float *slab = cdr_comm_slab(w, BYTES, NULL);
    const void *ptr[2] = { slab, slab };
    cdr_piece p = { .full = slab, .local = slab + 1024, .rows = 64, .row_bytes = 4, .dtype = CDR_F32 };
    if (cdr_comm_rank(w) == who % 3 && who >= 3) return (int)cdr_comm_gather(w, &p, 1);
    return (int)cdr_comm_expose(w, ptr, 2, cdr_comm_rank(w) == who ? 8 : 7);
}

/* 0 waits for 1 in the first pair, 1 for 2 in the second, 2 for 0 in the third */
static int circle(cdr_comm *w, int arg)
{
    int me = cdr_comm_rank(w);
    cdr_comm *c[3];
    for (int i = 0; i < 3; i++) {
        bool in = me == i || me == (i + 1) % 3;
        c[i] = cdr_comm_split(w, in, 0, NULL);
        EXPECT(c[i]);
    }
    (void)arg;
    return (int)cdr_comm_barrier(c[me]);
}

static int one_computes(cdr_comm *w, int ms)
{
    int64_t end = cdr_now_ns() + (int64_t)ms * 1000000;
    if (cdr_comm_rank(w) == 0)
        while (cdr_now_ns() < end) continue;
    EXPECT_OK(cdr_comm_barrier(w));
    return 0;
}

static void loss_of_order(void)
{
    static char said[20000];
    double ms;
    T_CHECK(run_ranks(3, closes_early, 1, 60, said, sizeof said, &ms) == 4);
    T_HAS(said, "rank 1 (host ");
    T_HAS(said, "left while others wait");
    T_CHECK(ms < 10000);
    T_CHECK(run_ranks(3, wrong_call, 1, 60, said, sizeof said, &ms) == CDR_ERANK);
    T_HAS(said, "another collective");
    T_CHECK(ms < 10000);
    for (int who = 0; who < 6; who++) {
        T_CHECK(run_ranks(3, wrong_expose, who, 60, said, sizeof said, &ms) == CDR_ERANK);
        T_HAS(said, "another collective");
        T_CHECK(ms < 10000);
    }
    T_CHECK(run_ranks(3, circle, 0, 1, said, sizeof said, &ms) == CDR_ERANK);
    T_HAS(said, "waits in another collective");
    T_CHECK(ms < 10000);
}

static void work_is_no_silence(void)
{
    T_CHECK(run_ranks(2, one_computes, 1200, 0.5, NULL, 0, NULL) == 0);
}

/* ---- the launcher ------------------------------------------------------------------------------------------------------- */
static volatile sig_atomic_t got_signal;
static void on_signal(int sig) { got_signal = sig; }

static int until_signal(cdr_comm *w, int ignore)
{
    signal(SIGTERM, ignore ? SIG_IGN : on_signal);
    signal(SIGINT, ignore ? SIG_IGN : on_signal);
    signal(SIGUSR1, on_signal);
    say("up\n");
    for (int i = 0; i < 2000 && !(got_signal && got_signal != SIGUSR1); i++) {
        pause_ms(5);
        if (got_signal == SIGUSR1) say("usr1\n"), got_signal = 0;
    }
    EXPECT(got_signal);
    say("got %d\n", (int)got_signal);
    return CDR_ESAVED;
}

/* A launcher of n ranks in a process of its own; returns once all ranks are up. */
static pid_t start_launcher(int n, body f, int arg)
{
    if (pipe(to_parent)) return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int rank, code;
        close(to_parent[0]);
        cdr_status st = cdr_shm_launch(n, "core", NULL, &rank, &code, NULL);
        if (rank >= 0) _exit(as_rank(f, arg, 10));
        _exit(st == CDR_OK ? code : 99);
    }
    close(to_parent[1]);
    char s[3];
    for (int i = 0; i < n; i++) T_CHECK(read(to_parent[0], s, 3) == 3 && !memcmp(s, "up\n", 3));
    return pid;
}

/* What ranks said until the last of them has ended: the pipe has no writer then. */
static void rest_of_pipe(char *said, size_t bytes)
{
    size_t have = 0;
    ssize_t got;
    while (have + 1 < bytes && (got = read(to_parent[0], said + have, bytes - 1 - have)) > 0) have += (size_t)got;
    said[have] = 0;
    close(to_parent[0]);
}

static void signals_are_passed_on(void)
{
    char said[1000];
    int how;
    pid_t pid = start_launcher(3, until_signal, 0);
    kill(pid, SIGUSR1);
    pause_ms(100);
    kill(pid, SIGTERM);
    T_CHECK(waitpid(pid, &how, 0) == pid && WIFEXITED(how) && WEXITSTATUS(how) == CDR_ESAVED);
    rest_of_pipe(said, sizeof said);
    T_CHECK(count_of(said, "usr1") == 3 && count_of(said, "got 15") == 3);

    pid = start_launcher(2, until_signal, 0);
    kill(pid, SIGINT);
    T_CHECK(waitpid(pid, &how, 0) == pid && WIFEXITED(how) && WEXITSTATUS(how) == CDR_ESAVED);
    rest_of_pipe(said, sizeof said);
    T_CHECK(count_of(said, "got 2") == 2);

    pid = start_launcher(2, until_signal, 1);               /* ranks that do not listen */
    kill(pid, SIGINT);
    pause_ms(100);
    T_CHECK(waitpid(pid, &how, WNOHANG) == 0);
    kill(pid, SIGINT);
    T_CHECK(waitpid(pid, &how, 0) == pid && WIFEXITED(how) && WEXITSTATUS(how) == CDR_EINTERRUPT);
    rest_of_pipe(said, sizeof said);
}

static void no_rank_outlives_its_launcher(void)
{
    char said[1000];
    int how;
    pid_t pid = start_launcher(4, until_signal, 1);
    int64_t t0 = cdr_now_ns();
    kill(pid, SIGKILL);
    T_CHECK(waitpid(pid, &how, 0) == pid && WIFSIGNALED(how));
    rest_of_pipe(said, sizeof said);
    T_CHECK(cdr_now_ns() - t0 < 5000000000);
}

static int speaks(cdr_comm *w, int arg)
{
    (void)arg;
    const char *s = getenv("CADRE_LOCAL_RANK");
    printf("output of rank %d\n", cdr_comm_rank(w));
    EXPECT(s && atoi(s) == cdr_comm_rank(w) && getenv("OMP_NUM_THREADS"));
    T_STR(cdr_comm_transport(w), "shm");
    T_STR(cdr_comm_source(w), "cadre launch");
    if (cdr_comm_rank(w) == 2) {
        cdr_err err = { 0 };
        cdr_fail(&err, CDR_EDATA, "data.test", "rank 2: a page is missing");
        if (cdr_comm_first_error(&err)) fprintf(stderr, "error: %s\n", err.text);
        return CDR_EDATA;
    }
    return 0;
}

/* A new folder under $TMPDIR, or where the system keeps such. */
static bool new_folder(char *path, size_t bytes)
{
    const char *base = getenv("TMPDIR");
    snprintf(path, bytes, "%s/cadre-ranks-XXXXXX", base ? base : P_tmpdir);
    return mkdtemp(path) != NULL;
}

static void logs_and_error_of_a_rank(void)
{
    char dir[2000], path[2100], *text;
    size_t bytes;
    int rank, code;
    cdr_err err = { 0 };
    T_CHECK(new_folder(dir, sizeof dir));
    cdr_status st = cdr_shm_launch(3, "none", dir, &rank, &code, &err);
    if (rank >= 0) {
        code = rank == 0 ? 0 : as_rank(speaks, 0, 10);
        fflush(NULL);
        _exit(code);
    }
    /* rank 0 left before the others could open: they are told so, and the launch fails */
    T_CHECK(st == CDR_OK && code == CDR_ERANK);
    T_HAS(err.text, "rank 0");
    memset(&err, 0, sizeof err);
    if (pipe(to_parent)) return;
    st = cdr_shm_launch(3, "none", dir, &rank, &code, &err);
    if (rank >= 0) {
        if (rank == 0) dup2(open("/dev/null", O_WRONLY), 1);
        code = as_rank(speaks, 0, 10);
        fflush(NULL);
        _exit(code);
    }
    close(to_parent[0]), close(to_parent[1]);
    T_CHECK(st == CDR_OK && code == CDR_EDATA);
    T_STR(err.text, "rank 2: a page is missing");           /* said in its log only, so the launcher has it too */
    T_STR(err.id, "data.test");
    for (rank = 1; rank < 3; rank++) {
        snprintf(path, sizeof path, "%s/rank-%d.log", dir, rank);
        T_CHECK(cdr_file_read(path, 10000, &text, &bytes, &err) == CDR_OK);
        T_HAS(text, rank == 1 ? "output of rank 1" : "output of rank 2");
        free(text);
    }
    T_CHECK(cdr_remove_tree(dir, &err) == CDR_OK);
}

static void refusals(void)
{
    static const struct { const char *rank, *world, *name; } other[] = {
        { "RANK", "WORLD_SIZE", "torchrun" }, { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI" },
        { "PMI_RANK", "PMI_SIZE", "PMI" }, { "SLURM_PROCID", "SLURM_NTASKS", "Slurm" } };
    cdr_comm *w;
    for (int i = 0; i < CDR_COUNT(other); i++) {
        cdr_err err = { 0 };
        setenv(other[i].rank, "1", 1), setenv(other[i].world, "4", 1);
        T_CHECK(cdr_comm_open(&(cdr_comm_spec){ .transport = "auto" }, &w, &err) == CDR_EUSER && !w);
        T_HAS(err.text, other[i].name);
        T_HAS(err.text, "mpi and nccl are not there yet");
        T_HAS(err.text, "cadre launch -n 4");
        setenv(other[i].rank, "0", 1), setenv(other[i].world, "1", 1);
        T_CHECK(cdr_comm_open(&(cdr_comm_spec){ .transport = "auto" }, &w, &err) == CDR_OK);
        cdr_comm_close(w);
        setenv(other[i].world, "four", 1);
        memset(&err, 0, sizeof err);
        T_CHECK(cdr_comm_open(&(cdr_comm_spec){ .transport = "auto" }, &w, &err) == CDR_EUSER);
        T_HAS(err.text, "\"four\"");
        unsetenv(other[i].rank), unsetenv(other[i].world);
    }
    static const char *const bad[] = { "mpi", "nccl", "shm", "carrier-pigeon" };
    for (int i = 0; i < CDR_COUNT(bad); i++) {
        cdr_err err = { 0 };
        T_CHECK(cdr_comm_open(&(cdr_comm_spec){ .transport = bad[i] }, &w, &err) == CDR_EUSER && !w);
        T_HAS(err.text, i < 3 ? "cadre launch -n N" : "auto, single, shm");
    }
    int rank, code;
    T_CHECK(cdr_shm_launch(0, "none", NULL, &rank, &code, NULL) == CDR_EUSAGE && rank == -1);
    T_CHECK(cdr_shm_launch(1 << 20, "none", NULL, &rank, &code, NULL) == CDR_EUSAGE);
    T_CHECK(cdr_shm_launch(2, "socket", NULL, &rank, &code, NULL) == CDR_EUSAGE);
    setenv("CADRE_RANK", "0", 1), setenv("CADRE_WORLD", "2", 1), setenv("CADRE_SHM", "0", 1);
    cdr_err err = { 0 };
    T_CHECK(cdr_comm_open(&(cdr_comm_spec){ .transport = "auto" }, &w, &err) == CDR_EUSER);
    T_HAS(err.text, "control block");
    T_CHECK(cdr_shm_launch(2, "none", NULL, &rank, &code, NULL) == CDR_EUSAGE);
    unsetenv("CADRE_RANK"), unsetenv("CADRE_WORLD"), unsetenv("CADRE_SHM");
}

/* cdr_launch in a process of its own: what it wrote to stdout, its exit code, its error. */
static int launch_in_child(const cdr_launch_args *a, char *out, size_t bytes)
{
    int how;
    if (pipe(to_parent)) return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        cdr_err err = { 0 };
        dup2(to_parent[1], 1);
        int code = (int)cdr_launch(a, NULL, &err);
        if (err.text[0]) printf("error: %s\n", err.text);
        exit(code);
    }
    close(to_parent[1]);
    rest_of_pipe(out, bytes);
    return waitpid(pid, &how, 0) == pid && WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

static int fake_main(int argc, char **argv)
{
    cdr_comm *w;
    cdr_err err = { 0 };
    if (cdr_comm_open(&(cdr_comm_spec){ .transport = "auto" }, &w, &err) != CDR_OK) return 99;
    int64_t x = 1;
    cdr_status st = cdr_comm_sum_i64(w, &x, 1);
    printf("%s %s by %lld ranks, argc %d%s\n", argv[0], argv[1], (long long)x, argc, argv[argc] ? "?" : "");
    cdr_comm_close(w);
    return st == CDR_OK ? 0 : 98;
}

static void launch_command(void)
{
    char out[6000], dir[2000], path[2100], *text = NULL;
    size_t bytes;
    cdr_err err = { 0 };
    T_CHECK(new_folder(dir, sizeof dir));
    char *train[] = { "train", "tiny" }, *shell[] = { "sh", "-c", "echo program; exit $((CADRE_RANK * 3))" }, *typo[] = { "trian" },
         *ignored[] = { "sh", "-c", "exit 0" };
    cdr_launch_args a = { .n_ranks = 3, .log_dir = dir, .argc = 2, .argv = train };
    cdr_launch_set_main(fake_main);
    T_CHECK(launch_in_child(&a, out, sizeof out) == 0);
    T_HAS(out, "launch    3 ranks on 1 host, transport shm (from: cadre launch), ");
    T_HAS(out, "; logs of ranks 1-2 in ");
    T_HAS(out, dir);
    T_HAS(out, "train tiny by 3 ranks, argc 2\n");
    snprintf(path, sizeof path, "%s/rank-2.log", dir);
    T_CHECK(cdr_file_read(path, 10000, &text, &bytes, &err) == CDR_OK);
    T_STR(text, "train tiny by 3 ranks, argc 2\n");
    free(text);
    T_CHECK(cdr_remove_tree(dir, &err) == CDR_OK);

    a = (cdr_launch_args){ .n_ranks = 2, .argc = 3, .argv = shell };
    T_CHECK(launch_in_child(&a, out, sizeof out) == 3);
    T_HAS(out, "output of rank 1 is not kept\nprogram\n");
    a.argv = ignored;
    a.common.json = true;
    T_CHECK(launch_in_child(&a, out, sizeof out) == 0 && !out[0]);
    a = (cdr_launch_args){ .n_ranks = 2, .argc = 1, .argv = typo };
    T_CHECK(launch_in_child(&a, out, sizeof out) == CDR_EUSAGE);
    T_HAS(out, "\"trian\"");
    T_HAS(out, "Did you mean train?");
    a = (cdr_launch_args){ .n_ranks = 0, .argc = 2, .argv = train };
    T_CHECK(launch_in_child(&a, out, sizeof out) == CDR_EUSAGE);
    T_HAS(out, "-n 0");
}

/* `train A B`: rank 0 reads recipe A, rank 1 recipe B, as ranks do that see other files. `eval RUN ADAPTER`: rank 1 alone is to take the adapter. */
static int train_main(int argc, char **argv)
{
    cdr_err err = { 0 };
    cdr_result r = { 0 };
    const char *rank = getenv("CADRE_RANK");
    const bool second = rank && rank[0] == '1';
    const cdr_common quiet = { .quiet = true };
    int code = strcmp(argv[0], "eval") == 0 ? (int)cdr_eval(&(cdr_eval_args){ .common = quiet, .model = argv[1], .adapter = second ? argv[2] : NULL }, &r, &err)
                                            : (int)cdr_train(&(cdr_train_args){ .common = quiet, .recipe = argv[second && argc > 2 ? 2 : 1] }, &r, &err);
    printf("status %d: %s\n", code, err.text);
    cdr_result_free(&r);
    return code;
}

/* What one rank alone cannot read, or hold, is the error of all: at once, with its message and exit code, whichever rank it is. */
static void an_error_of_one_rank_is_everybodys(void)
{
    static const struct { const char *data, *more, *text; int code; } bad[] = {
        { "none.txt", "", "none.txt", CDR_EDATA },
        { "text.txt", "memory: {device_limit: 64KiB}\n", "short by", CDR_EUSER },
    };
    char dir[1000], path[3][1100], out[6000], more[3][3000], *log = NULL;
    size_t bytes;
    cdr_err err = { 0 };
    T_CHECK(new_folder(dir, sizeof dir));
    for (int k = 0; k < 3; k++) {
        (void)snprintf(path[k], sizeof path[k], "%s/%d.yaml", dir, k);
        (void)snprintf(more[k], sizeof more[k], "version: 1\nname: apart\nmodel: {path: tiny-dense}\ndata: {train: %s/%s, tokenizer: byte, eval_fraction: "
                    "0.3}\noutput_dir: %s/run\n"
                       "train: {steps: 1, sequence_length: 32, micro_batch_tokens: 32, global_batch_tokens: 64}\nparallel: {timeout: 30s}\n%s", dir,
                       k < 2 ? bad[k].data : "text.txt", dir, k < 2 ? bad[k].more : "");
        T_CHECK(cdr_file_write(path[k], more[k], strlen(more[k]), &err) == CDR_OK);
    }
    (void)snprintf(out, sizeof out, "%s/text.txt", dir);
    T_CHECK(cdr_file_write(out, more[2], strlen(more[2]), &err) == CDR_OK);
    cdr_launch_set_main(train_main);
    for (int k = 0; k < 4; k++) {
        int wrong = k / 2;
        char *argv[] = { "train", path[k % 2 ? 2 : wrong], path[k % 2 ? wrong : 2] };
        int64_t t0 = cdr_now_ns();
        T_CHECK(launch_in_child(&(cdr_launch_args){ .n_ranks = 2, .log_dir = dir, .argc = 3, .argv = argv }, out, sizeof out) == bad[wrong].code);
        T_CHECK(cdr_now_ns() - t0 < 15000000000);
        T_HAS(out, bad[wrong].text);
        T_CHECK(!strstr(out, "left while"));
        (void)snprintf(out, sizeof out, "%s/rank-1.log", dir);
        T_CHECK(cdr_file_read(out, 10000, &log, &bytes, &err) == CDR_OK);
        T_HAS(log, bad[wrong].text);
        cdr_free(log);
        T_CHECK(remove(out) == 0);
    }
    char *train[] = { "train", path[2], path[2] }, *eval[] = { "eval", out, path[0] };
    T_CHECK(launch_in_child(&(cdr_launch_args){ .n_ranks = 2, .log_dir = dir, .argc = 3, .argv = train }, more[0], sizeof more[0]) == 0);
    (void)snprintf(out, sizeof out, "%s/run", dir);
    (void)snprintf(path[0], sizeof path[0], "%s/nowhere", dir);
    T_CHECK(launch_in_child(&(cdr_launch_args){ .n_ranks = 2, .log_dir = dir, .argc = 3, .argv = eval }, more[0], sizeof more[0]) == CDR_EDATA);
    T_HAS(more[0], "nowhere");
    T_CHECK(cdr_remove_tree(dir, &err) == CDR_OK);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(loss_killed);
    T_RUN(loss_killed_at_fifty_points);
    T_RUN(loss_ended);
    T_RUN(loss_silent);
    T_RUN(loss_of_order);
    T_RUN(work_is_no_silence);
    T_RUN(signals_are_passed_on);
    T_RUN(no_rank_outlives_its_launcher);
    T_RUN(logs_and_error_of_a_rank);
    T_RUN(refusals);
    T_RUN(launch_command);
    T_RUN(an_error_of_one_rank_is_everybodys);
    return t_end();
}
