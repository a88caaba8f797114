/* bench_cmd.c: ceilings, operators against their floors, a step of a recipe against the measured ceiling, the table of targets, and
 * this machine's file. Figures are the best of several windows: another process can only make one slower.
 */
#include "ops/count/count.h"
#include "run/bench.h"
#include "train/session.h"
#include <math.h>
#include <stdlib.h>

enum { WARM_STEPS = 2, MAX_STEPS = 50, MAX_ROWS = 64 };

/* ---- a step --------------------------------------------------------------------------------------------------------------- */

static cdr_status put_inputs(cdr_session *s, int64_t step, cdr_err *err)
{
    float hyper[CDR_N_HYPER] = { 0 };
    int64_t count[CDR_COUNT_WORDS] = { 0 };
    CDR_TRY(cdr__put_batch(s, step, &count[CDR_COUNT_TRAINED], &count[CDR_COUNT_ROWS], err));
    hyper[CDR_HYPER_LR] = (float)s->r.optimizer.learning_rate;
    hyper[CDR_HYPER_BC1] = (float)(1 / (1 - pow(s->r.optimizer.beta1, (double)(step + 1))));
    hyper[CDR_HYPER_BC2] = (float)(1 / (1 - pow(s->r.optimizer.beta2, (double)(step + 1))));
    cdr_exec_put(s->exec, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    cdr_exec_put(s->exec, CDR_PROG_STEP, "count", 0, count, sizeof count);
    return CDR_OK;
}

static cdr_status timed_step(cdr_session *s, int64_t step, double *seconds, cdr_err *err)
{
    double metrics[CDR_N_METRIC];
    CDR_TRY(put_inputs(s, step, err));
    int64_t t0 = cdr_now_ns();
    CDR_TRY(cdr_exec_run(s->exec, CDR_PROG_STEP, err));
    cdr_exec_get(s->exec, CDR_PROG_STEP, "metrics", 0, metrics, sizeof metrics);
    *seconds = (double)(cdr_now_ns() - t0) * 1e-9;
    return CDR_OK;
}

/* Best of the steps that fit into window_s, at least three. */
static cdr_status time_steps(cdr_session *s, double window_s, double *best, int *n, cdr_err *err)
{
    double x, sum = 0;
    for (int i = 0; i < WARM_STEPS; i++) CDR_TRY(timed_step(s, i, &x, err));
    *best = 0;
    for (*n = 0; *n < MAX_STEPS && (*n < 3 || sum < window_s); ++*n) {
        CDR_TRY(timed_step(s, WARM_STEPS + *n, &x, err));
        sum += x;
        if (*n == 0 || x < *best) *best = x;
    }
    return CDR_OK;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = ((const cdr_profile_row *)a)->ns, y = ((const cdr_profile_row *)b)->ns;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void print_profile(cdr_session *s, cdr_text *t, cdr_jw *w)
{
    cdr_profile_row rows[MAX_ROWS];
    int n = cdr_exec_profile_rows(s->exec, rows, MAX_ROWS);
    double total = 0;
    for (int i = 0; i < n; i++) total += (double)rows[i].ns;
    qsort(rows, (size_t)n, sizeof *rows, by_time);
    cdr_jw_begin(w, "operators", '[');
    for (int i = 0; i < n; i++) {
        double seconds = (double)rows[i].ns * 1e-9, gflops = rows[i].ns > 0 ? rows[i].flop / (double)rows[i].ns : 0;
        cdr_text_printf(t, "  %-18s %-14s %5lld calls %9.2f ms %5.1f %% %8.1f GFLOP/s\n", rows[i].op, rows[i].kernel, (long long)rows[i].n, seconds * 1e3,
                        total > 0 ? 100 * (double)rows[i].ns / total : 0, gflops);
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "op", rows[i].op);
        cdr_jw_str(w, "kernel", rows[i].kernel);
        cdr_jw_int(w, "calls", rows[i].n);
        cdr_jw_real(w, "wall_s", seconds);
        cdr_jw_real(w, "flop", rows[i].flop);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
}

static void print_step(cdr_session *s, double best, int n, cdr_text *t, cdr_jw *w)
{
    double tokens = (double)s->r.train.global_batch_tokens, flop = cdr__flops_per_token(s) * tokens / s->n_ranks;
    double peak = s->device->kind == CDR_DEV_CPU ? cdr_bench_quick_gemm(s->opts.compute, s->device->isa, s->device->n_threads) : 0;
    const char *dtype = cdr_dtype_row(s->opts.compute)->name;
    char count[32];
    cdr_format_count(count, s->r.train.global_batch_tokens);
    cdr_text_printf(t, "step      %s: %s tokens in %.1f ms (best of %d): %.1f k tokens/s, %.1f GFLOP/s useful", s->r.name, count, best * 1e3, n, tokens / best / 1e3,
                    flop / best / 1e9);
    if (peak > 0) cdr_text_printf(t, ", %.0f %% of the measured %s ceiling %.0f GFLOP/s (floor %.1f ms)", 100 * flop / best / peak, dtype, peak / 1e9, flop / peak * 1e3);
    cdr_text_append(t, "\n", 1);
    cdr_jw_begin(w, "step", '{');
    cdr_jw_str(w, "recipe", s->r.name);
    cdr_jw_int(w, "tokens", s->r.train.global_batch_tokens);
    cdr_jw_real(w, "step_s", best);
    cdr_jw_int(w, "steps", n);
    cdr_jw_real(w, "tokens_per_s", tokens / best);
    cdr_jw_real(w, "useful_flop", flop);
    if (peak > 0) cdr_jw_real(w, "gemm_useful", flop / best / peak);
    else cdr_jw_null(w, "gemm_useful");
}

/* After the recipe: what is left before a step, and the best of some. */
static cdr_status start_and_time(cdr_session *s, double window_s, double *best, int *n, cdr_err *err)
{
    CDR_TRY(cdr__session_ranks(s, err));
    CDR_TRY(cdr__session_data(s, err));
    CDR_TRY(cdr__session_compile(s, err));
    CDR_TRY(cdr__session_device(s, err));
    CDR_TRY(cdr_exec_init(s->exec, (uint64_t)s->r.seed, err));
    return time_steps(s, window_s, best, n, err);
}

static cdr_status bench_step(const cdr_bench_args *a, cdr_session *s, cdr_text *t, cdr_jw *w, cdr_err *err)
{
    int n;
    double best;
    CDR_TRY(cdr__session_recipe(s, a->step_recipe, &a->common, err));
    if (a->device) CDR_TRY(cdr_recipe_derive(&s->r, "machine.device", a->device, "--device", err));
    CDR_TRY(start_and_time(s, a->quick ? 1 : 5, &best, &n, err));
    print_step(s, best, n, t, w);
    cdr_exec_profile(s->exec, true);
    double x;
    CDR_TRY(timed_step(s, WARM_STEPS + n, &x, err));
    cdr_exec_profile(s->exec, false);
    cdr_text_printf(t, "one step with every call timed:\n");
    print_profile(s, t, w);
    cdr_jw_end(w, '}');
    return CDR_OK;
}

/* The last row of the table of targets: a whole step. With the data of the recipe, or where that is not here, says so. */
static cdr_status table_step(const cdr_bench_args *a, cdr_session *s, cdr_text *t, cdr_jw *w, cdr_err *err)
{
    static const char recipe[] = "tiny-k31", tokens[] = "4096";
    int n;
    double best;
    char of[96], name[96];
    CDR_TRY(cdr__session_recipe(s, recipe, &a->common, err));
    CDR_TRY(cdr_recipe_derive(&s->r, "machine.device", "cpu", "--table", err));
    CDR_TRY(cdr_recipe_derive(&s->r, "train.global_batch_tokens", tokens, "--table", err));
    if (s->r.data.train.n > 0 && !cdr_exists(s->r.data.train.s[0].path)) {
        cdr_text_printf(t, "a whole step of %s: not timed, there is no %s here (make demo writes it)\n", recipe, s->r.data.train.s[0].path);
        return CDR_OK;
    }
    CDR_TRY(start_and_time(s, a->quick ? 1 : 5, &best, &n, err));
    const double flop = cdr__flops_per_token(s) * (double)s->r.train.global_batch_tokens / s->n_ranks;
    const double peak = cdr_bench_quick_gemm(s->opts.compute, s->device->isa, s->device->n_threads);
    snprintf(name, sizeof name, "a whole step of %s, %s tokens", recipe, tokens);
    snprintf(of, sizeof of, "GEMM in %s, %.0f GFLOP/s", cdr_dtype_row(s->opts.compute)->name, peak * 1e-9);
    const cdr_bench_line l = { .name = name, .measure = of, .kernel = "useful FLOPs alone", .value = flop / best / peak, .least = 0.20, .goal = 0.30, .seconds = best };
    cdr_bench_print_line(&l, t, w);
    return CDR_OK;
}

static cdr_status bench_table(const cdr_bench_args *a, uint32_t isa, int n_threads, cdr_text *t, cdr_jw *w, cdr_err *err)
{
    cdr_session s = { 0 };
    CDR_TRY(cdr_bench_table(a->quick, isa, n_threads, t, w, err));
    cdr_status st = table_step(a, &s, t, w, err);
    cdr__session_close(&s);
    cdr_jw_end(w, ']');
    return st;
}

/* ---- this machine's file ------------------------------------------------------------------------------------------------------ */

static cdr_status write_machine(const char *path, uint32_t isa, int n_threads, bool quick, cdr_text *t, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_machine m;
    cdr_ceilings c;
    cdr_status st = cdr_machine_load("auto", pool, &m, err);
    if (st == CDR_OK) {
        cdr_bench_ceilings(isa, n_threads, quick, &c);
        m.name = "this-machine";
        m.quick = quick;
        m.bf16.measured = c.bf16;
        m.f32.measured = c.f32;
        m.tier[0].read.measured = c.read;
        m.tier[0].copy.measured = c.copy;
        char *yaml = cdr_machine_yaml(&m, pool);
        st = cdr_file_write(path, yaml, strlen(yaml), err);
        if (st == CDR_OK) cdr_text_printf(t, "wrote     %s (use it with --machine %s)\n", path, path);
    }
    cdr_pool_free(pool);
    return st;
}

/* ---- the command ---------------------------------------------------------------------------------------------------------------- */

static cdr_status run(const cdr_bench_args *a, cdr_text *t, cdr_jw *w, cdr_err *err)
{
    cdr_err isa_err = { 0 };
    bool cuda = a->device && strcmp(a->device, "cuda") == 0;
    int n_threads = cdr_cpu_cores();
    if (a->device && !cuda && strcmp(a->device, "cpu") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--device: %s is neither cpu nor cuda", a->device);
    uint32_t isa = cdr_cpu_isa(&isa_err);
    if (isa_err.status != CDR_OK) return cdr_fail(err, isa_err.status, isa_err.id, "%s", isa_err.text);
    if (a->table && (a->step_recipe || a->pattern || cuda))
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--table times its own rows on the CPU: it takes no PATTERN, no --step and no --device cuda");
    if (a->table) CDR_TRY(bench_table(a, isa, n_threads, t, w, err));
    if (a->step_recipe) {
        cdr_session s = { 0 };
        cdr_status st = bench_step(a, &s, t, w, err);
        cdr__session_close(&s);
        CDR_TRY(st);
    } else if (cuda) {
        CDR_FAIL_ID(err, CDR_EUSER, "bench.device", "--device cuda: single operators are timed on the CPU in this version; --step RECIPE --device cuda times a step");
    }
    if (!a->step_recipe && !a->table && (a->pattern || !a->write_machine)) CDR_TRY(cdr_bench_run(a->pattern ? a->pattern : "", a->quick, isa, n_threads, t, w, err));
    return a->write_machine ? write_machine(a->write_machine, isa, n_threads, a->quick, t, err) : CDR_OK;
}

cdr_status cdr_bench(const cdr_bench_args *a, cdr_result *r, cdr_err *err)
{
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_jw_begin(&w, NULL, '{');
    cdr_status st = run(a, &text, &w, err);
    if (st == CDR_OK) cdr_jw_end(&w, '}');
    r->text = text.s;
    if (st == CDR_OK) r->json = json.s;
    else cdr_text_free(&json);
    return st;
}
