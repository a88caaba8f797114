/* check_cmd.c: what this machine can prove about itself: the operators' cases, and that one rank and two ranks train the
 * same bits.
 *
 * The ranks come first, since they are forks and a fork after the first OpenMP region hangs. Both runs are those of
 * cdr_train, on a text that the program holds (the help of the recipe's keys); their checkpoints are compared tensor by
 * tensor, weights and optimizer states.
 */
#include "comm/comm.h"
#include "device/device.h"
#include "io/io.h"
#include "recipe/recipe.h"
#include "run/check.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANK_STEPS = 3 };

/* ---- one rank = two ranks ------------------------------------------------------------------------------------------------ */

static cdr_status write_corpus(const char *path, cdr_err *err)
{
    int n;
    const cdr_key *k = cdr_recipe_schema(&n);
    cdr_text t = { 0 };
    for (int i = 0; i < n; i++) cdr_text_printf(&t, "%s: %s\n\n", k[i].key, k[i].help);
    cdr_status st = cdr_file_write(path, t.s, t.n, err);
    cdr_text_free(&t);
    return st;
}

/* In a child: trains and leaves. */
CDR_NORETURN static void train_and_exit(const char *dir, int n_ranks)
{
    cdr_err err = { 0 };
    cdr_result r = { 0 };
    char out[600], data[600], steps[32];
    snprintf(out, sizeof out, "output_dir=%s/ranks-%d", dir, n_ranks);
    snprintf(data, sizeof data, "data.train=%s/corpus.txt", dir);
    snprintf(steps, sizeof steps, "train.steps=%d", RANK_STEPS);
    const char *set[] = { out, data, steps, "eval.every=none", "generate.every=none", "generate.prompts=[]", "checkpoint.every=none", "checkpoint.at_end=true",
                          "data.eval_fraction=0", "machine.device=cpu" };
    cdr_train_args a = { .common = { .set = set, .n_set = CDR_COUNT(set), .quiet = true }, .recipe = "tiny-test" };
    cdr_status st = cdr_train(&a, &r, &err);
    if (st != CDR_OK && cdr_comm_first_error(&err)) fprintf(stderr, "error: %s [%s]\n", err.text, err.id);
    fflush(NULL);
    _exit((int)st);
}

static cdr_status run_ranks(const char *dir, int n, cdr_err *err)
{
    int rank = -1, code = 0;
    fflush(NULL);
    CDR_TRY(cdr_shm_launch(n, "none", NULL, &rank, &code, err));
    if (rank >= 0) train_and_exit(dir, n);
    if (code != 0) return cdr_fail(err, (cdr_status)code, "check.ranks", "check: a training run of %d ranks ended with exit code %d", n, code);
    return CDR_OK;
}

static cdr_status same_tensor(cdr_ckpt *a, cdr_ckpt *b, const cdr_ckpt_tensor *t, bool *same, cdr_err *err)
{
    const cdr_ckpt_tensor *u = cdr_ckpt_find(b, t->name, t->cls);
    *same = false;
    if (!u || u->dtype != t->dtype || u->n_dim != t->n_dim) return CDR_OK;
    int64_t elems = 1, rows = t->n_dim > 0 ? t->n[0] : 1;
    for (int d = 0; d < t->n_dim; d++) {
        if (u->n[d] != t->n[d]) return CDR_OK;
        elems *= t->n[d];
    }
    size_t bytes = (size_t)cdr_dtype_bytes(t->dtype, elems);
    char *x = cdr_alloc(bytes), *y = cdr_alloc(bytes);
    cdr_status st = cdr_ckpt_read(a, t->name, t->cls, t->dtype, 0, rows, x, err);
    if (st == CDR_OK) st = cdr_ckpt_read(b, t->name, t->cls, t->dtype, 0, rows, y, err);
    *same = st == CDR_OK && memcmp(x, y, bytes) == 0;
    cdr_free(x);
    cdr_free(y);
    return st;
}

typedef struct { int64_t n, n_different; char first[200]; double seconds; } rank_sum;

static cdr_status compare(const char *dir, rank_sum *sum, cdr_err *err)
{
    char one[600], two[600];
    cdr_ckpt *a = NULL, *b = NULL;
    snprintf(one, sizeof one, "%s/ranks-1", dir);
    snprintf(two, sizeof two, "%s/ranks-2", dir);
    cdr_status st = cdr_ckpt_open(one, &a, err);
    if (st == CDR_OK) st = cdr_ckpt_open(two, &b, err);
    if (st == CDR_OK && (cdr_ckpt_count(a) != cdr_ckpt_count(b) || cdr_ckpt_count(a) == 0))
        st = cdr_fail(err, CDR_EUSER, "check.ranks", "check: checkpoints of 1 and 2 ranks hold %lld and %lld tensors", (long long)cdr_ckpt_count(a),
                      (long long)cdr_ckpt_count(b));
    for (int64_t i = 0; st == CDR_OK && i < cdr_ckpt_count(a); i++) {
        const cdr_ckpt_tensor *t = cdr_ckpt_at(a, i);
        bool same;
        st = same_tensor(a, b, t, &same, err);
        sum->n++;
        if (!same && sum->n_different++ == 0) snprintf(sum->first, sizeof sum->first, "%s", t->name);
    }
    if (a) cdr_ckpt_close(a);
    if (b) cdr_ckpt_close(b);
    return st;
}

static cdr_status check_ranks(rank_sum *sum, cdr_err *err)
{
    const char *tmp = getenv("TMPDIR");
    char dir[300], corpus[400];
    int64_t t0 = cdr_now_ns();
    snprintf(dir, sizeof dir, "%.200s/cadre-check-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) CDR_FAIL_ID(err, CDR_EUSER, "check.ranks", "check: cannot make a folder %s", dir);
    snprintf(corpus, sizeof corpus, "%s/corpus.txt", dir);
    cdr_status st = write_corpus(corpus, err);
    if (st == CDR_OK) st = run_ranks(dir, 1, err);
    if (st == CDR_OK) st = run_ranks(dir, 2, err);
    if (st == CDR_OK) st = compare(dir, sum, err);
    cdr_remove_tree(dir, NULL);
    sum->seconds = (double)(cdr_now_ns() - t0) * 1e-9;
    return st;
}

/* ---- the command ----------------------------------------------------------------------------------------------------------- */

static cdr_status check_operators(const cdr_check_args *a, bool cuda, cdr_check_sum *sum, cdr_text *report, cdr_err *err)
{
    const char *pattern = a->pattern ? a->pattern : "";
    cdr_err isa_err = { 0 };
    if (cuda) return cdr_check_cuda(0, pattern, a->quick, sum, report, err);
    uint32_t isa = cdr_cpu_isa(&isa_err);
    if (isa_err.status != CDR_OK) return cdr_fail(err, isa_err.status, isa_err.id, "%s", isa_err.text);
    return cdr_check_op(pattern, isa, a->quick, cdr_cpu_cores(), sum, report, err);
}

static void to_json(cdr_text *json, const cdr_check_sum *ops, const rank_sum *ranks, bool with_ops, bool with_ranks)
{
    cdr_jw w = { .t = json };
    cdr_jw_begin(&w, NULL, '{');
    if (with_ranks) {
        cdr_jw_begin(&w, "ranks", '{');
        cdr_jw_int(&w, "tensors", ranks->n);
        cdr_jw_int(&w, "different", ranks->n_different);
        cdr_jw_real(&w, "wall_s", ranks->seconds);
        cdr_jw_end(&w, '}');
    }
    if (with_ops) {
        cdr_jw_begin(&w, "operators", '{');
        cdr_jw_int(&w, "cases", ops->n_cases);
        cdr_jw_int(&w, "failed", ops->n_failed);
        cdr_jw_real(&w, "worst_value", ops->worst_value);
        cdr_jw_real(&w, "worst_gradient", ops->worst_grad);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, '}');
}

static cdr_status run(const cdr_check_args *a, cdr_text *text, cdr_text *json, cdr_err *err)
{
    cdr_check_sum ops = { 0 };
    rank_sum ranks = { 0 };
    bool cuda = a->device && strcmp(a->device, "cuda") == 0, all = !a->pattern || !*a->pattern;
    if (a->device && !cuda && strcmp(a->device, "cpu") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--device: %s is neither cpu nor cuda", a->device);
    bool with_ranks = !cuda && (all || fnmatch(a->pattern, "ranks", 0) == 0), with_ops = all || strcmp(a->pattern, "ranks") != 0;
    if (with_ranks) {
        CDR_TRY(check_ranks(&ranks, err));
        cdr_text_printf(text, "%-13s 1 = 2 ranks: %lld of %lld tensors bit-equal after %d steps%s%s   %.1f s\n", "ranks", (long long)(ranks.n - ranks.n_different),
                        (long long)ranks.n, RANK_STEPS, ranks.n_different ? ", first different: " : "", ranks.first, ranks.seconds);
    }
    cdr_status st = with_ops ? check_operators(a, cuda, &ops, text, err) : CDR_OK;       /* an error where a case failed */
    to_json(json, &ops, &ranks, with_ops, with_ranks);
    if (st != CDR_OK) return st;
    if (ranks.n_different > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "check.failed", "check: 1 and 2 ranks differ in %lld of %lld tensors, first in %s", (long long)ranks.n_different,
                    (long long)ranks.n, ranks.first);
    return CDR_OK;
}

cdr_status cdr_check(const cdr_check_args *a, cdr_result *r, cdr_err *err)
{
    cdr_text text = { 0 }, json = { 0 };
    cdr_status st = run(a, &text, &json, err);
    r->text = text.s;
    r->json = json.s;
    return st;
}
