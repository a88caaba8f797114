/* limits.c: how many cores and how much memory this process may use: the affinity mask (one per physical core), and
 * the control groups, of either version, from the process's own group up to the root.
 */
#include "device/cpu/cpu.h"
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_CPUS = 8192 };

/* One line of a small file of /proc or /sys, without the newline. */
static bool read_line(const char *path, char *out, size_t n)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool got = fgets(out, (int)n, f) != NULL;
    fclose(f);
    if (got) out[strcspn(out, "\n")] = 0;
    return got;
}

/* The lowest CPU that shares a core with this one; itself where the kernel does not say. */
static int core_of(int cpu)
{
    char path[96], list[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_line(path, list, sizeof list)) return cpu;
    long first = strtol(list, NULL, 10);
    return first >= 0 && first < MAX_CPUS ? (int)first : cpu;
}

static int cores_of_affinity(void)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    unsigned char seen[MAX_CPUS] = { 0 };
    int n = 0;
    if (set && sched_getaffinity(0, bytes, set) == 0) {
        for (size_t cpu = 0; cpu < MAX_CPUS; cpu++) {
            if (!CPU_ISSET_S(cpu, bytes, set)) continue;
            int core = core_of((int)cpu);
            n += !seen[core];
            seen[core] = 1;
        }
    }
    CPU_FREE(set);
    if (n > 0) return n;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < MAX_CPUS ? (int)online : 1;
}

/* Calls visit for the folder of each group that the process is in, with its parents. controller: "cpu", "memory". */
static void each_group(const char *controller, void (*visit)(const char *dir, bool v2, void *at), void *at)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX + 256];
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':');
        char *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        names++;
        bool v2 = names[0] == 0, mine = v2;
        char list[128], *save = NULL;
        snprintf(list, sizeof list, "%s", names);
        for (char *name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save))
            mine = mine || strcmp(name, controller) == 0;
        if (!mine) continue;
        char dir[PATH_MAX + 512];
        int base = snprintf(dir, sizeof dir, "/sys/fs/cgroup%s%s", v2 ? "" : "/", names);
        snprintf(dir + base, sizeof dir - (size_t)base, "%s", path);
        for (;;) {                              /* each turn takes one component away */
            visit(dir, v2, at);
            char *slash = strrchr(dir + base, '/');
            if (!slash) break;
            *slash = 0;
        }
    }
    if (f) fclose(f);
}

static bool read_in(const char *dir, const char *file, char *out, size_t n)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return read_line(path, out, n);
}

static void visit_quota(const char *dir, bool v2, void *at)
{
    double *least = at, quota = 0, period = 0;
    char a[64], b[64];
    if (v2) {
        if (!read_in(dir, "cpu.max", a, sizeof a) || sscanf(a, "%lf %lf", &quota, &period) != 2) return;   /* "max" */
    } else {
        if (!read_in(dir, "cpu.cfs_quota_us", a, sizeof a) || !read_in(dir, "cpu.cfs_period_us", b, sizeof b)) return;
        quota = strtod(a, NULL);
        period = strtod(b, NULL);
    }
    if (quota > 0 && period > 0) *least = CDR_MIN(*least, quota / period);
}

static void visit_memory(const char *dir, bool v2, void *at)
{
    int64_t *least = at;
    char a[64];
    if (!read_in(dir, v2 ? "memory.max" : "memory.limit_in_bytes", a, sizeof a)) return;
    char *end;
    long long bytes = strtoll(a, &end, 10);
    if (end != a && bytes > 0) *least = CDR_MIN(*least, (int64_t)bytes);
}

/* A fraction of a core is left unused: a team whose last thread is throttled waits for it at every barrier. */
int cdr_cpu_cores(void)
{
    double quota = MAX_CPUS;
    each_group("cpu", visit_quota, &quota);
    int whole = (int)(quota + 1e-6), cores = cores_of_affinity();
    return CDR_MAX(CDR_MIN(cores, whole), 1);
}

int64_t cdr__cpu_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t bytes = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    if (bytes > 0) each_group("memory", visit_memory, &bytes);
    return bytes;
}
