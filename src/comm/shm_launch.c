/* shm_launch: starts the ranks of one machine, looks after them, and ends with all of them.
 *
 * Each rank is a fork of the caller, made before any OpenMP region (a child forked after one hangs in its first). It is
 * its own process group, so that a terminal's Ctrl-C reaches the launcher alone, which passes it on once: a rank that
 * got it twice would take the second for "exit now". It dies with its launcher (PR_SET_PDEATHSIG).
 *
 *   signal              launcher
 *   SIGINT              first: passed on; second: all ranks are killed, exit code 130
 *   SIGTERM HUP USR1 2  passed on
 *   SIGTSTP             ranks stop, the launcher stops; both go on together
 *   SIGCHLD             reaps; a rank that was killed, or ended without closing its communicator, is marked lost
 *
 * Exit code: of the rank that was lost first, else of the first that failed. A rank that was killed counts as
 * CDR_ERANK, one that aborted (SIGABRT) as CDR_EBUG. Once a rank is lost the rest has 3 s to write what it has; one that
 * is lost because it was silent is killed as soon as the first peer has ended.
 */
#include "comm/shm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GRACE_LOST_MS = 3000, GRACE_FAILED_MS = 60000 };

typedef struct {
    cdr_shm_view *view;
    int n, alive, exit_code;
    bool failed, cause_known, interrupted;
    bool said_itself;                          /* the lost rank ended before it opened a communicator: its own business */
    int64_t kill_at_ns;                        /* 0: not yet */
    pid_t pid[CDR_SHM_MAX_RANKS];              /* 0: has ended */
    bool killed[CDR_SHM_MAX_RANKS];            /* by us */
} launch;

/* ---- in the child -------------------------------------------------------------------------------------------------- */
static void set_env_int(const char *name, int x)
{
    char s[16];
    snprintf(s, sizeof s, "%d", x);
    setenv(name, s, 1);
}

/* Cores of rank r: an equal block of those allowed; where there are more ranks than cores, one core. */
static void bind_rank(const cpu_set_t *allowed, int r, int n)
{
    int cores = CPU_COUNT(allowed);
    int lo = n <= cores ? (int)((int64_t)cores * r / n) : r % cores, hi = n <= cores ? (int)((int64_t)cores * (r + 1) / n) : lo + 1;
    cpu_set_t own;
    CPU_ZERO(&own);
    int k = 0;
    for (size_t c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, allowed)) continue;
        if (k >= lo && k < hi) CPU_SET(c, &own);
        k++;
    }
    sched_setaffinity(0, sizeof own, &own);    /* a wish: a rank that is not bound is only slower */
}

static bool open_outputs(const char *log_dir, int r)
{
    int in = open("/dev/null", O_RDONLY), out = -1;
    char path[4096];
    if (in < 0) return false;
    if (r > 0 || isatty(0)) dup2(in, 0);       /* a terminal belongs to the launcher's group */
    if (in > 2) close(in);
    if (r == 0) return true;
    snprintf(path, sizeof path, "%s/rank-%d.log", log_dir ? log_dir : "", r);
    out = open(log_dir ? path : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0666);     /* a job in the same folder may be writing it */
    if (out < 0) return false;
    dup2(out, 1);
    if (log_dir) dup2(out, 2);
    if (out > 2) close(out);
    return true;
}

typedef struct { const char *bind, *log_dir; cpu_set_t allowed; sigset_t mask; pid_t parent; } child_plan;

static void become_rank(const child_plan *p, const cdr_shm_view *v, int r)
{
    int n = v->ctl->n;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != p->parent) _exit(CDR_ERANK);           /* it died before the request was in place */
    setpgid(0, 0);
    set_env_int("CADRE_RANK", r);
    set_env_int("CADRE_LOCAL_RANK", r);
    set_env_int("CADRE_WORLD", n);
    set_env_int("CADRE_SHM", v->fd);
    if (!getenv("OMP_NUM_THREADS")) set_env_int("OMP_NUM_THREADS", CDR_MAX(1, CPU_COUNT(&p->allowed) / n));
    if (!strcmp(p->bind, "core")) bind_rank(&p->allowed, r, n);
    if (!open_outputs(p->log_dir, r)) {
        fprintf(stderr, "error: launch: rank %d cannot write %s/rank-%d.log: %s [launch.log]\n", r, p->log_dir ? p->log_dir : "", r, strerror(errno));
        _exit(CDR_EUSER);
    }
    sigprocmask(SIG_SETMASK, &p->mask, NULL);
}

/* ---- in the launcher ------------------------------------------------------------------------------------------------ */
static void send_one(launch *l, int r, int sig)
{
    if (!l->pid[r]) return;
    if (sig == SIGKILL) l->killed[r] = true;
    if (kill(-l->pid[r], sig)) kill(l->pid[r], sig);         /* before its setpgid there is no such group */
}

static void send_all(launch *l, int sig)
{
    for (int r = 0; r < l->n; r++) send_one(l, r, sig);
}

static int lost_rank(const launch *l) { return (int)(atomic_load(&l->view->ctl->lost) & 0xffff) - 1; }

/* Takes down how rank r ended. */
static void rank_ended(launch *l, int r, int how)
{
    int32_t state = atomic_load(&l->view->rank[r].state);
    bool open = state == CDR_SHM_OPEN;
    int code = WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how) == SIGABRT ? (int)CDR_EBUG : (int)CDR_ERANK;
    l->pid[r] = 0;
    l->alive--;
    if (WIFSIGNALED(how) && !l->killed[r]) cdr__shm_blame(l->view, r, CDR_SHM_KILLED, WTERMSIG(how));
    else if (WIFEXITED(how) && (open || (state == CDR_SHM_STARTED && code))) cdr__shm_blame(l->view, r, CDR_SHM_EXITED, code);
    if (WIFEXITED(how) && !open && lost_rank(l) == r) l->said_itself = true;
    atomic_store(&l->view->rank[r].state, CDR_SHM_ENDED);
    cdr__shm_wake_all(l->view);
    if (open && !code) code = CDR_ERANK;                     /* it went away in the middle, whatever it says */
    if (!code || l->killed[r]) return;
    if (!l->cause_known) {                                   /* the lost rank's own code beats those of its victims */
        l->cause_known = lost_rank(l) == r;
        if (!l->failed || l->cause_known) l->exit_code = code;
    }
    l->failed = true;
}

static void reap(launch *l)
{
    for (int r = 0; r < l->n; r++) {
        int how;
        if (l->pid[r] && waitpid(l->pid[r], &how, WNOHANG) == l->pid[r]) rank_ended(l, r, how);
    }
    int lost = lost_rank(l);
    if (!l->failed && lost < 0) return;
    int64_t grace = lost >= 0 ? GRACE_LOST_MS : GRACE_FAILED_MS, at = cdr_now_ns() + grace * 1000000;
    if (!l->kill_at_ns || at < l->kill_at_ns) l->kill_at_ns = at;
    bool silent = (atomic_load(&l->view->ctl->lost) >> 16 & 0xf) == CDR_SHM_SILENT;
    if (lost >= 0 && silent && l->failed) send_one(l, lost, SIGKILL);
}

static void on_signal(launch *l, int sig)
{
    switch (sig) {
    case SIGINT:
        send_all(l, l->interrupted ? SIGKILL : SIGINT);
        if (l->interrupted) l->exit_code = CDR_EINTERRUPT, l->failed = l->cause_known = true;
        l->interrupted = true;
        break;
    case SIGTSTP:
        send_all(l, SIGSTOP);
        raise(SIGSTOP);
        send_all(l, SIGCONT);
        break;
    case SIGCHLD:
        break;
    default:
        send_all(l, sig);
    }
}

static void look_after(launch *l, const sigset_t *set)
{
    const struct timespec tick = { .tv_sec = 0, .tv_nsec = 100000000 };
    for (reap(l); l->alive; reap(l)) {
        int sig = sigtimedwait(set, NULL, &tick);
        if (sig > 0) on_signal(l, sig);
        if (l->kill_at_ns && cdr_now_ns() > l->kill_at_ns) send_all(l, SIGKILL);
    }
}

/* The job's error, where no rank has shown one to whoever looks at stderr. */
static void leave_error(const launch *l, cdr_err *err)
{
    const cdr_shm_ctl *ctl = l->view->ctl;
    int by = atomic_load(&ctl->claimed) - 1;
    bool lost = atomic_load(&ctl->lost) != 0 && l->failed && l->exit_code != CDR_EINTERRUPT;
    if (by < 0 && lost && !l->said_itself) cdr__shm_lost(l->view, err);
    if (by > 0 && ctl->logs && atomic_load_explicit(&ctl->error_set, memory_order_acquire))
        cdr_fail(err, ctl->error.status, ctl->error.id, "%s", ctl->error.text);
}

/* The thread sanitizer has a thread of its own. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

/* Threads of this process; 1 where that cannot be told. */
static int count_threads(void)
{
#if !defined(__SANITIZE_THREAD__)
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    for (struct dirent *e; tasks && (e = readdir(tasks));) n += e->d_name[0] != '.';
    if (tasks) closedir(tasks);
    return CDR_MAX(1, n);
#else
    return 1;
#endif
}

cdr_status cdr_shm_launch_check(int n, const char *bind, cdr_err *err)
{
    int threads = count_threads();
    if (!bind) bind = "none";
    if (n < 1 || n > CDR_SHM_MAX_RANKS) CDR_FAIL_ID(err, CDR_EUSAGE, "launch.ranks", "launch: -n %d; there can be 1 to %d ranks", n, CDR_SHM_MAX_RANKS);
    if (strcmp(bind, "core") != 0 && strcmp(bind, "none") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "launch.bind", "launch: --bind %s; there are core and none", bind);
    if (getenv("CADRE_SHM")) CDR_FAIL_ID(err, CDR_EUSAGE, "launch.nested", "launch: this is a rank of another launch already");
    if (threads > 1) CDR_FAIL_ID(err, CDR_EBUG, "launch.threads", "launch: the process has %d threads already; ranks are forked before any OpenMP region", threads);
    return CDR_OK;
}

static cdr_status prepare(int n, const char *bind, const char *log_dir, cdr_err *err)
{
    struct rlimit files;
    CDR_TRY(cdr_shm_launch_check(n, bind, err));
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < (rlim_t)n + 64) {
        files.rlim_cur = CDR_MIN(files.rlim_max, (rlim_t)n + 64);
        setrlimit(RLIMIT_NOFILE, &files);
    }
    return log_dir ? cdr_make_dirs(log_dir, err) : CDR_OK;
}

cdr_status cdr_shm_launch(int n, const char *bind, const char *log_dir, int *rank, int *exit_code, cdr_err *err)
{
    child_plan plan = { .bind = bind ? bind : "none", .log_dir = log_dir, .parent = getpid() };
    cdr_shm_view *v;
    sigset_t set;
    *rank = -1;
    *exit_code = 0;
    CDR_TRY(prepare(n, plan.bind, log_dir, err));
    CDR_TRY(cdr__shm_create(n, &v, err));
    CPU_ZERO(&plan.allowed);
    if (sched_getaffinity(0, sizeof plan.allowed, &plan.allowed) || !CPU_COUNT(&plan.allowed)) CPU_SET(0, &plan.allowed);
    v->ctl->spin = n <= CPU_COUNT(&plan.allowed);
    v->ctl->logs = log_dir != NULL;
    launch *l = cdr_alloc(sizeof *l);
    *l = (launch){ .view = v, .n = n };

    sigemptyset(&set);
    static const int caught[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP };
    for (int i = 0; i < CDR_COUNT(caught); i++) sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &plan.mask);
    struct sigaction reset = { .sa_handler = SIG_DFL }, old_chld;
    sigaction(SIGCHLD, &reset, &old_chld);                   /* an inherited SIG_IGN would reap behind our back */
    fflush(NULL);                                            /* or each child writes what is buffered again */
    cdr_status st = CDR_OK;
    for (int r = 0; r < n && st == CDR_OK; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            sigaction(SIGCHLD, &old_chld, NULL);
            become_rank(&plan, v, r);
            v->inherited = true;                             /* its descriptors stay open for cdr_comm_open */
            cdr__shm_view_free(v);
            cdr_free(l);
            *rank = r;
            return CDR_OK;
        }
        if (pid < 0) {
            st = cdr_fail(err, CDR_EUSER, "launch.fork", "launch: rank %d of %d cannot be started: %s", r, n, strerror(errno));
            send_all(l, SIGKILL);
            break;
        }
        l->pid[r] = pid;
        l->alive++;
        atomic_store_explicit(&v->rank[r].pid, (int32_t)pid, memory_order_relaxed);
    }
    look_after(l, &set);
    if (st == CDR_OK) {
        *exit_code = l->exit_code;
        leave_error(l, err);
    }
    sigaction(SIGCHLD, &old_chld, NULL);
    sigprocmask(SIG_SETMASK, &plan.mask, NULL);
    cdr__shm_view_free(v);
    cdr_free(l);
    return st;
}
