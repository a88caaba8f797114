/* test_equal.c: ranks that no longer hold the same stop, and say which tensor of which rank: a bit is turned over in one
 * rank's memory, in a whole tensor, in a split one, in a moment; between steps by hand, and during a run from a thread. */
#include "ranks.h"
#include "train/session.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

static char dir[64];
enum { MAX_SET = 16 };

/* A recipe of small steps on 4 ranks; more: a further setting or NULL. */
static cdr_common settings(const char **set, const char *mesh, const char *more)
{
    static char out[160];
    snprintf(out, sizeof out, "output_dir=%s/run", dir);
    const char *base[] = { out, "data.train=test/test_equal.c", "eval.every=none", "data.eval_fraction=0", "generate.every=none", "train.steps=12", "machine.threads=1",
                           "checkpoint.every=5", "train.sequence_length=32", "train.micro_batch_tokens=32", "train.global_batch_tokens=128", mesh, more };
    int n = 0;
    for (int i = 0; i < CDR_COUNT(base); i++) if (base[i]) set[n++] = base[i];
    return (cdr_common){ .set = set, .n_set = n, .quiet = true };
}

static cdr_status open_session(cdr_session *s, const char *mesh, cdr_err *err)
{
    const char *set[MAX_SET];
    cdr_common c = settings(set, mesh, NULL);
    CDR_TRY(cdr__session_recipe(s, "tiny-test", &c, err));
    CDR_TRY(cdr__session_ranks(s, err));
    CDR_TRY(cdr__session_data(s, err));
    CDR_TRY(cdr__session_compile(s, err));
    CDR_TRY(cdr__session_device(s, err));
    return cdr_exec_init(s->exec, (uint64_t)s->r.seed, err);
}

/* The first trained matrix that is (not) split. */
static const cdr_param *param(const cdr_session *s, bool split)
{
    for (int32_t i = 0; i < s->bundle.n_params; i++)
        if ((s->bundle.params[i].split[0] >= 0) == split && s->bundle.params[i].train == CDR_FULL) return &s->bundle.params[i];
    return NULL;
}

static void turn_bit(cdr_session *s, cdr_val v, int64_t byte, int bit)
{
    unsigned char *p = cdr_exec_ptr(s->exec, CDR_PROG_STEP, v, 0);
    p[byte] = (unsigned char)(p[byte] ^ 1u << bit);
}

/* One line a rank: status, message. */
static void compare(cdr_session *s, int64_t step, int64_t agreed)
{
    cdr_err err = { .status = CDR_OK };
    int64_t n = 0;
    cdr_status st = cdr__same_tensors(s, (cdr__when){ step, agreed }, &n, &err);
    say("%d|%d|%s|%s\n", (int)st, n > 20, err.id, err.text);
}

/* On two replicas of two shards: equal; a whole tensor, of which four ranks hold copies; a split one, of which two do; both. */
static int two_by_two(void)
{
    cdr_session s;
    cdr_err err = { .status = CDR_OK };
    if (open_session(&s, "parallel.replicate=2", &err) != CDR_OK) return say("%s\n", err.text), 1;
    const cdr_param *whole = param(&s, false), *split = param(&s, true);
    compare(&s, 0, -1);
    if (s.rank == 2) turn_bit(&s, whole->shard, 5, 3);
    compare(&s, 20, 10);
    if (s.rank == 2) turn_bit(&s, whole->shard, 5, 3);
    compare(&s, 20, 10);
    if (s.rank == 3) turn_bit(&s, split->v, 1000, 7);
    compare(&s, 30, -1);
    if (s.rank == 0) turn_bit(&s, whole->m, 0, 0);
    if (s.rank == 1) turn_bit(&s, whole->v, 0, 0);
    compare(&s, 30, 20);
    cdr__session_close(&s);
    return 0;
}

static int four_replicas(void)
{
    cdr_session s;
    cdr_err err = { .status = CDR_OK };
    if (open_session(&s, "parallel.replicate=4", &err) != CDR_OK) return say("%s\n", err.text), 1;
    if (s.rank != 3) turn_bit(&s, param(&s, false)->shard, 0, 0);      /* three agree: the fourth is named, although it alone was left as it was */
    compare(&s, 7, 0);
    cdr__session_close(&s);
    return 0;
}

static int another_program(void)
{
    cdr_session s;
    cdr_err err = { .status = CDR_OK };
    const char *set[MAX_SET];
    cdr_common c = settings(set, "parallel.replicate=1", atoi(getenv("CADRE_RANK")) == 2 ? "optimizer.beta1=0.8" : NULL);
    cdr_status st = cdr__session_recipe(&s, "tiny-test", &c, &err);
    if (st == CDR_OK) st = cdr__session_ranks(&s, &err);
    if (st == CDR_OK) st = cdr__session_data(&s, &err);
    if (st == CDR_OK) st = cdr__session_compile(&s, &err);
    if (st == CDR_OK) st = cdr__session_device(&s, &err);
    say("%d|%s|%s\n", (int)st, err.id, err.text);
    cdr__session_close(&s);
    return 0;
}

/* ---- in a run ---- */
typedef struct { int64_t offset; int step; } fault;

/* Rank 2's own slab is the one mapping of such a file that it may write. Turns over bit 18 of the float at the offset after some steps. */
static void *fault_thread(void *arg)
{
    const fault *f = arg;
    unsigned long lo;
    char line[512], mode[8];
    while (cdr_here()->step < f->step) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "cadre-slab") && sscanf(line, "%lx-%*x %7s", &lo, mode) == 2 && mode[1] == 'w') ((unsigned char *)lo)[f->offset + 2] ^= 4;
    if (maps) fclose(maps);
    return NULL;
}

static fault f;

static int a_run(void)
{
    cdr_err err = { .status = CDR_OK };
    const char *set[MAX_SET];
    cdr_common c = settings(set, "parallel.replicate=2", "parallel.hash_every=1");
    if (atoi(getenv("CADRE_RANK")) == 2) {
        cdr_session s;
        if (cdr__session_recipe(&s, "tiny-test", &c, &err) != CDR_OK || cdr_recipe_resolve_ranks(&s.r, 4, &err) != CDR_OK) return 1;
        cdr__session_mesh(&s, 2, 4);
        if (cdr__session_compile(&s, &err) != CDR_OK) return 1;
        f = (fault){ s.bundle.shared[param(&s, false)->shard].offset, 7 };
        cdr__session_close(&s);
        pthread_t t;
        if (pthread_create(&t, NULL, fault_thread, &f)) return 1;
        pthread_detach(t);
    }
    cdr_train_args a = { .common = c, .recipe = "tiny-test" };
    cdr_result r = { 0 };
    cdr_status st = cdr_train(&a, &r, &err);
    say("%d|%s|%s\n", (int)st, err.id, err.text);
    return (int)st;
}

/* Lines of four ranks; the exit code of the launch. */
static int on_four(int (*f4)(void), char *said, size_t bytes)
{
    int rank, code = -1;
    cdr_err err = { 0 };
    if (pipe(to_parent)) return -1;
    cdr_status st = cdr_shm_launch(4, "none", NULL, &rank, &code, &err);
    if (rank >= 0) exit(f4());
    close(to_parent[1]);
    size_t have = 0;
    for (ssize_t got; have + 1 < bytes && (got = read(to_parent[0], said + have, bytes - 1 - have)) > 0;) have += (size_t)got;
    said[have] = 0;
    close(to_parent[0]);
    return st == CDR_OK ? code : -1;
}

static int count_of(const char *s, const char *what)
{
    int n = 0;
    for (; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

static char said[30000];

static void a_bit_is_named(void)
{
    T_CHECK(on_four(two_by_two, said, sizeof said) == 0);
    T_CHECK(count_of(said, "0|1||\n") == 8);                             /* equal: at the start, and once the bit is turned back */
    T_CHECK(count_of(said, "4|1|train.ranks-differ|rank 2: step 20: weight of ") == 4);
    T_CHECK(count_of(said, "differs from that of 3 of the 4 ranks that hold the same; memory or") == 4);
    T_CHECK(count_of(said, "All agreed after step 10: continue from a checkpoint of that step or before it") == 4);
    T_CHECK(count_of(said, "4|1|train.ranks-differ|rank 3: step 30: v of ") == 8);
    T_CHECK(count_of(said, "differs from that of rank 1, and either may be wrong; memory") == 4);
    T_CHECK(count_of(said, "Start all ranks from the same files") == 4);
    T_CHECK(count_of(said, "(2 more tensors differ)") == 4);             /* with rank 3's, which is still there */
    if (t_this_failed) fprintf(stderr, "%s", said);
}

static void the_most_are_right(void)
{
    T_CHECK(on_four(four_replicas, said, sizeof said) == 0);
    T_CHECK(count_of(said, "4|1|train.ranks-differ|rank 3: step 7: weight of ") == 4);
    T_HAS(said, "3 of the 4 ranks");
}

static void another_program_is_named(void)
{
    T_CHECK(on_four(another_program, said, sizeof said) == 0);
    T_CHECK(count_of(said, "4|comm.program-differs|rank 2 compiled another program than the others; ") == 4);
}

static void a_run_stops(void)
{
    char path[160], *text = NULL;
    size_t n;
    cdr_err err = { 0 };
    T_CHECK(on_four(a_run, said, sizeof said) == CDR_ENUMERIC);
    T_CHECK(count_of(said, "4|train.ranks-differ|rank 2: step ") == 4);
    snprintf(path, sizeof path, "%s/run/events.jsonl", dir);
    T_CHECK(cdr_file_read(path, 1 << 20, &text, &n, &err) == CDR_OK);
    if (!text) return;
    T_HAS(text, "\"type\":\"hash\"");
    T_CHECK(count_of(text, "\"equal\":true") >= 7 && count_of(text, "\"equal\":true") < 12 && count_of(text, "\"equal\":false") == 1);
    T_HAS(text, "\"exit_code\":4");
    T_CHECK(count_of(text, "\"type\":\"checkpoint\"") == 1);             /* step 5: nothing of what may be wrong was saved */
    free(text);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    const char *base = getenv("TMPDIR");
    cdr_err err = { 0 };
    snprintf(dir, sizeof dir, "%s/cadre-equal-XXXXXX", base && strlen(base) < 30 ? base : P_tmpdir);
    if (!mkdtemp(dir)) return 1;
    T_RUN(a_bit_is_named);
    T_RUN(the_most_are_right);
    T_RUN(another_program_is_named);
    T_RUN(a_run_stops);
    (void)cdr_remove_tree(dir, &err);
    return t_end();
}
