/* shm_watch: finds out which rank is lost, says so once, and stops the others.
 *
 * Who notices what:
 *   launcher   a rank was killed, or ended with a communicator open (SIGCHLD): at once
 *   a waiter   a rank that others wait for has closed its communicator, or is silent, or all wait in a circle: it looks
 *              every twentieth of timeout_s
 * The culprit need not be a member of the waiter's communicator: the search goes from the members that have not come
 * to the barrier, through those that wait elsewhere, to ranks that do not wait at all.
 *
 * Silence: a rank gives a sign of life with each note and each collective. One that gives none for 80 % of timeout_s,
 * counted from when the others began to wait, is lost, so that all has stopped when timeout_s is over. Its processor
 * time counts as a sign of life too, as do waiting for a disk or for a processor (/proc/PID/stat), so that a long call
 * or a slow file does not end a run; but not beyond six times timeout_s. A waiter that was itself stopped (SIGSTOP, a
 * suspended machine) begins its count anew.
 */
#include "comm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 6 };

int cdr__futex_wait(CDR_ATOMIC(uint32_t) *word, uint32_t value, int64_t timeout_ns)
{
    struct timespec ts = { .tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000 };
    return syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, NULL, 0) ? errno : 0;
}

void cdr__futex_wake(CDR_ATOMIC(uint32_t) *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int64_t cdr__shm_slice_ns(double timeout_s) { return (int64_t)(timeout_s * 5e7); }
static int64_t limit_ns(double timeout_s) { return (int64_t)(timeout_s * 0.8e9); }

void cdr__shm_wake_all(cdr_shm_view *v)
{
    for (int i = 0; i < v->ctl->n_slots; i++)
        if (atomic_load(&v->slot[i].sleepers)) cdr__futex_wake(&v->slot[i].gen);
}

void cdr__shm_blame(cdr_shm_view *v, int rank, cdr_shm_loss kind, int code)
{
    int64_t ms = (cdr_now_ns() - atomic_load_explicit(&v->rank[rank].beat_ns, memory_order_relaxed)) / 1000000;
    ms = CDR_MAX((int64_t)0, CDR_MIN(ms, (int64_t)UINT32_MAX));
    uint64_t none = 0, lost = (uint64_t)(rank + 1) | (uint64_t)kind << 16 | (uint64_t)(code & 0xfff) << 20 | (uint64_t)ms << 32;
    if (!atomic_compare_exchange_strong(&v->ctl->lost, &none, lost)) return;
    for (int i = 0; i < v->ctl->n_slots; i++) {
        atomic_fetch_or(&v->slot[i].gen, 1u);
        cdr__futex_wake(&v->slot[i].gen);
    }
}

/* ---- the culprit ------------------------------------------------------------------------------------------------ */
typedef enum { MEMBER_RUNS, MEMBER_WAITS, MEMBER_LEFT } member_state;

/* slot, gen: what it waits for, where it waits */
static member_state state_of(const cdr_shm_view *v, int r, int *i_slot, uint32_t *gen)
{
    uint64_t at = atomic_load_explicit(&v->rank[r].at, memory_order_acquire);
    int32_t state = atomic_load(&v->rank[r].state);
    if (state == CDR_SHM_CLOSED || state == CDR_SHM_ENDED) return MEMBER_LEFT;
    if (!at) return MEMBER_RUNS;
    *i_slot = (int)(at >> 32) - 1;
    *gen = (uint32_t)at;
    /* a rank that was stopped may still show a barrier that is over */
    return (atomic_load_explicit(&v->slot[*i_slot].gen, memory_order_acquire) & ~1u) == *gen ? MEMBER_WAITS : MEMBER_RUNS;
}

/* State and processor time of a process: false when there is none. Fields 3, 14, 15 of /proc/PID/stat. */
static bool process_at_work(int pid, char *state, uint64_t *ticks)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char *p = strrchr(text, ')');                     /* the name may hold blanks and brackets */
    unsigned long long user, sys;
    if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", state, &user, &sys) != 3) return false;
    *ticks = user + sys;
    return true;
}

/* Nanoseconds since the last sign of life of r, as far as it counts for a waiter that began at start_ns. */
static int64_t silence_ns(const cdr_shm_view *v, cdr_shm_watcher *w, int r, int64_t start_ns, int64_t now, char *state)
{
    int64_t since = CDR_MAX(start_ns, atomic_load_explicit(&v->rank[r].beat_ns, memory_order_relaxed));
    uint64_t ticks = 0;
    int pid = atomic_load_explicit(&v->rank[r].pid, memory_order_relaxed);
    *state = 'S';
    if (pid > 0 && process_at_work(pid, state, &ticks)) {
        if (*state == 'R' || *state == 'D' || ticks != w->cpu[r]) w->alive_ns[r] = now;
        w->cpu[r] = ticks;
    }
    if (now - since > PATIENCE * limit_ns(w->timeout_s)) return now - since;
    return now - CDR_MAX(since, w->alive_ns[r]);
}

/* Adds the members of a slot that have not come to generation gen to the queue. */
static int add_missing(const cdr_shm_view *v, cdr_shm_watcher *w, int i_slot, uint32_t gen, int n_queue)
{
    int size = CDR_MIN(atomic_load(&v->slot[i_slot].size), v->ctl->n);
    uint64_t here = (uint64_t)(i_slot + 1) << 32 | gen;
    for (int k = 0; k < size; k++) {
        int r = atomic_load_explicit(&v->member[(size_t)i_slot * (size_t)v->ctl->n + (size_t)k], memory_order_relaxed);
        if (w->seen[r] || atomic_load_explicit(&v->rank[r].at, memory_order_acquire) == here) continue;
        w->seen[r] = 1;
        w->queue[n_queue++] = (uint16_t)r;
    }
    return n_queue;
}

/* A waiter looks around: CDR_ERANK when the job is lost, by others' word or by what it sees. */
cdr_status cdr__shm_watch(cdr_shm_view *v, cdr_shm_watcher *w, int i_slot, uint32_t gen, cdr_shm_wait *wait)
{
    if (atomic_load(&v->ctl->lost)) return CDR_ERANK;
    int64_t now = cdr_now_ns();
    if (now - wait->last_ns > 2 * cdr__shm_slice_ns(w->timeout_s) + 1000000000) wait->start_ns = now;   /* this process was stopped */
    wait->last_ns = now;

    memset(w->seen, 0, (size_t)v->ctl->n);
    int n_queue = add_missing(v, w, i_slot, gen, 0), first = n_queue ? w->queue[0] : -1, guilty = -1, code = 0;
    cdr_shm_loss kind = CDR_SHM_DEADLOCK;
    bool circle = n_queue > 0 && now - wait->start_ns > limit_ns(w->timeout_s);
    for (int q = 0; q < n_queue && guilty < 0; q++) {
        int r = w->queue[q], their_slot = 0;
        uint32_t their_gen = 0;
        char state = 'S';
        switch (state_of(v, r, &their_slot, &their_gen)) {
        case MEMBER_LEFT:
            guilty = r, kind = CDR_SHM_LEFT;
            break;
        case MEMBER_RUNS:
            circle = false;
            if (silence_ns(v, w, r, wait->start_ns, now, &state) > limit_ns(w->timeout_s)) guilty = r, kind = CDR_SHM_SILENT, code = state;
            break;
        case MEMBER_WAITS:
            if (now - atomic_load_explicit(&v->rank[r].beat_ns, memory_order_relaxed) < limit_ns(w->timeout_s)) circle = false;
            n_queue = add_missing(v, w, their_slot, their_gen, n_queue);
            break;
        }
    }
    if (guilty < 0 && circle) guilty = first;
    if (guilty < 0) return CDR_OK;
    if (atomic_load_explicit(&v->slot[i_slot].gen, memory_order_acquire) != gen) return CDR_OK;   /* over in the meantime */
    cdr__shm_blame(v, guilty, kind, code);
    return CDR_ERANK;
}

/* ---- the message -------------------------------------------------------------------------------------------------- */
static void how_text(char *out, size_t bytes, cdr_shm_loss kind, int code)
{
    switch (kind) {
    case CDR_SHM_KILLED: snprintf(out, bytes, "killed by signal %d", code); break;
    case CDR_SHM_EXITED: snprintf(out, bytes, "ended with exit code %d", code); break;
    case CDR_SHM_SILENT:
        snprintf(out, bytes, "silent (%s)", code == 'T' ? "stopped" : code == 'R' ? "running" : code == 'D' ? "waiting for a disk" : "sleeping");
        break;
    case CDR_SHM_LEFT: snprintf(out, bytes, "left while others wait for it"); break;
    case CDR_SHM_DEADLOCK: snprintf(out, bytes, "waits in another collective than its peers"); break;
    case CDR_SHM_MISMATCH: snprintf(out, bytes, "calls another collective, or other shapes, than its peers"); break;
    }
}

void cdr__shm_lost(const cdr_shm_view *v, cdr_err *err)
{
    uint64_t lost = atomic_load(&v->ctl->lost), word[CDR_SHM_WHAT / 8];
    char how[96], where[160], what[CDR_SHM_WHAT + 1] = { 0 };
    if (!lost) {
        cdr_fail(err, CDR_ERANK, "comm.rank-lost", "ranks: none of %d is lost", v->ctl->n);
        return;
    }
    int r = (int)(lost & 0xffff) - 1, code = (int)(lost >> 20 & 0xfff);
    const cdr_shm_rank *k = &v->rank[r];
    int64_t step = atomic_load_explicit(&k->step, memory_order_relaxed);
    int layer = atomic_load_explicit(&k->layer, memory_order_relaxed);
    for (int i = 0; i < CDR_COUNT(word); i++) word[i] = atomic_load_explicit(&k->what[i], memory_order_relaxed);
    memcpy(what, word, sizeof word);
    how_text(how, sizeof how, (cdr_shm_loss)(lost >> 16 & 0xf), code);
    if (step < 0 && !what[0]) snprintf(where, sizeof where, "before its first step");
    else if (step < 0) snprintf(where, sizeof where, "before the first step, before %s", what);
    else if (!what[0]) snprintf(where, sizeof where, "in step %lld", (long long)step);
    else if (layer < 0) snprintf(where, sizeof where, "in step %lld, before %s", (long long)step, what);
    else snprintf(where, sizeof where, "in step %lld, before %s of layer %d", (long long)step, what, layer);
    cdr_fail(err, CDR_ERANK, "comm.rank-lost",
             "rank %d (host %s, pid %d): %s %s; seen after %.1f s. Start again to continue from the last checkpoint",
             r, v->ctl->host, atomic_load_explicit(&k->pid, memory_order_relaxed), how, where, (double)(lost >> 32) / 1e3);
}
