/* train.c: the training loop. A step is: fill the inputs of this rank's micro-batches, run the step program, read four
 * numbers. What stops or saves is agreed by all ranks inside the step's one integer all-reduce, so that no rank leaves
 * alone: count = { trained tokens, save and exit, save, time is up, rows that are not idle,
 * ranks whose data cannot be read any more }. */
#include "train/adapter.h"
#include "train/events.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

enum { COUNT_TRAINED, COUNT_EXIT, COUNT_SAVE, COUNT_TIME, COUNT_ROWS, COUNT_BROKEN, N_COUNT = 8, MAX_SKIPPED = 3 };

/* ---- signals: flags only; acted on at a step boundary ---- */
static volatile sig_atomic_t asked_save, asked_exit;       /* the signal's number */

static void on_save(int sig) { asked_save = sig; }

static void on_exit_signal(int sig)
{
    if (asked_exit && sig == SIGINT) _exit(CDR_EINTERRUPT);
    asked_exit = sig;
}

static const struct { const char *name; int sig; } signals[] = { { "INT", SIGINT }, { "TERM", SIGTERM }, { "HUP", SIGHUP },
                                                                 { "USR1", SIGUSR1 }, { "USR2", SIGUSR2 }, { "CONT", SIGCONT } };

static int signal_number(const char *name)
{
    if (strncmp(name, "SIG", 3) == 0) name += 3;
    for (int i = 0; i < CDR_COUNT(signals); i++) if (strcmp(signals[i].name, name) == 0) return signals[i].sig;
    return -1;
}

/* Who asked, for the log: a signal that this rank saw, a control file, else a signal that only another rank saw. */
static const char *asked_by(int sig, bool file)
{
    for (int i = 0; i < CDR_COUNT(signals); i++) if (signals[i].sig == sig) return signals[i].name;
    return file ? "file" : "another rank";
}

static cdr_status take_signals(const cdr_strings *names, void (*handler)(int), cdr_err *err)
{
    for (int i = 0; i < names->n; i++) {
        int sig = signal_number(names->s[i]);
        if (sig < 0) CDR_FAIL_ID(err, CDR_EUSER, "config.signal", "checkpoint.signals: unknown signal %s. Use INT, TERM, HUP, USR1, USR2 or CONT", names->s[i]);
        struct sigaction a = { .sa_handler = handler, .sa_flags = SA_RESTART };
        sigaction(sig, &a, NULL);
    }
    return CDR_OK;
}

/* ---- learning rate ---- */
/* Linear warm-up, then the schedule over the horizon; step counts from 0. */
static double learning_rate(const cdr_recipe *r, int64_t step)
{
    double peak = r->optimizer.learning_rate, floor_lr = r->schedule.min_lr_ratio * peak;
    int64_t warm = CDR_MAX(r->schedule.warmup_steps, 0), horizon = r->schedule.horizon > 0 ? r->schedule.horizon : r->train.steps;
    if (step < warm) return peak * (double)(step + 1) / (double)warm;
    double span = (double)CDR_MAX(horizon - warm, 1), at = CDR_MIN(1.0, (double)(step - warm) / span), x;
    switch (r->schedule.name) {
    case CDR_SCHED_CONSTANT: return peak;
    case CDR_SCHED_LINEAR: return floor_lr + (peak - floor_lr) * (1 - at);
    case CDR_SCHED_COSINE: return floor_lr + (peak - floor_lr) * 0.5 * (1 + cos(3.14159265358979323846 * at));
    default: break;
    }
    double decay = r->schedule.decay_ratio * (double)horizon, left = (double)(horizon - step);
    if (decay <= 0 || left >= decay) return peak;
    x = CDR_MAX(left, 0.0) / decay;
    if (r->schedule.decay_shape == CDR_DECAY_COSINE) x = 0.5 * (1 - cos(3.14159265358979323846 * x));
    if (r->schedule.decay_shape == CDR_DECAY_SQRT) x = 1 - sqrt(1 - x);
    return floor_lr + (peak - floor_lr) * x;
}

/* ---- the run directory ---- */
typedef struct {
    cdr_session s; cdr_events e;
    const cdr_train_args *args;
    int lock;
    int64_t step, tokens, trained; double best_eval;
    int64_t t0, last_save_ns, last_save_step, agreed_step; double data_s;
    int64_t count[N_COUNT], own_count[N_COUNT];              /* over all ranks; this rank's */
    int n_skipped;
    int sig_save, sig_exit; bool file_save, file_exit;      /* what this rank saw of them before this step */
    double step_s;                /* smoothed */
    cdr_router router; cdr_extra extra; bool uneven_said;
} run;

static cdr_status own_directory(run *t, cdr_err *err)
{
    const cdr_recipe *r = &t->s.r;
    t->lock = -1;
    if (t->s.rank != 0) return CDR_OK;
    CDR_TRY(cdr_make_dirs(r->output_dir, err));
    char path[1200];
    snprintf(path, sizeof path, "%s/.lock", r->output_dir);
    t->lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    if (t->lock < 0) CDR_FAIL_ID(err, CDR_EUSER, "run.output", "output_dir: cannot write %s: %s. Take another --out", path, strerror(errno));
    if (flock(t->lock, LOCK_EX | LOCK_NB) != 0) {
        close(t->lock);                          /* so that nothing is written there: the directory is another's */
        t->lock = -1;
        CDR_FAIL_ID(err, CDR_EUSER, "run.locked", "output_dir: %s is in use by another run. Wait for it, or take another --out", r->output_dir);
    }
    return cdr_ckpt_clean(r->output_dir, err);
}

static cdr_status write_recipes(run *t, cdr_err *err)
{
    if (t->s.rank != 0) return CDR_OK;
    char path[1200];
    char *yaml = cdr_recipe_yaml(&t->s.r, t->s.pool);
    snprintf(path, sizeof path, "%s/recipe.yaml", t->s.r.output_dir);
    CDR_TRY(cdr_file_write(path, yaml, strlen(yaml), err));
    snprintf(path, sizeof path, "%s/recipe.source.yaml", t->s.r.output_dir);
    return cdr_file_write(path, t->s.r.source, t->s.r.source_bytes, err);
}

/* ---- resume ---- */
static cdr_status check_recipe(run *t, const cdr_train_args *a, cdr_ckpt *ck, cdr_recipe_diff *d, cdr_err *err)
{
    cdr_recipe old;
    cdr_common none = { 0 };
    const char *text = cdr_ckpt_recipe(ck);
    cdr_recipe_text rt = { text, strlen(text), "checkpoint recipe.yaml", t->s.r.name };
    CDR_TRY(cdr_recipe_parse(&rt, &none, t->s.pool, &old, err));
    cdr_resume_spec spec = { t->s.r.output_dir, cdr_ckpt_step(ck), a->allow_change, a->n_allow_change };
    return cdr_recipe_compare(&t->s.r, &old, &spec, d, err);
}

/* *how: for the banner. Weights are drawn anew where there is no checkpoint. */
static cdr_status start_or_resume(run *t, const cdr_train_args *a, cdr_restored *restored, cdr_recipe_diff *d, bool *resumed, cdr_err *err)
{
    const char *mode = t->s.r.checkpoint.resume, *from = t->s.r.output_dir;
    bool path = strcmp(mode, "auto") != 0 && strcmp(mode, "never") != 0 && strcmp(mode, "must") != 0;
    int64_t have = path ? 1 : cdr_ckpt_list(from, NULL, 0);
    *resumed = false;
    if (strcmp(mode, "never") == 0 && have > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "run.used", "output_dir: %s holds a run already and checkpoint.resume is never. Take another --out", from);
    if (strcmp(mode, "must") == 0 && have == 0)
        CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.none", "output_dir: %s holds no complete checkpoint and checkpoint.resume is must", from);
    if (have == 0) {
        CDR_TRY(cdr__session_weights(&t->s, err));
        return cdr__adapter_start(&t->s, err);
    }
    cdr_ckpt *ck;
    CDR_TRY(cdr_ckpt_open(path ? mode : from, &ck, err));
    cdr_status st = check_recipe(t, a, ck, d, err);
    cdr_restore_opts o = { .states = true };
    for (int i = 0; st == CDR_OK && i < d->n; i++) o.other_data = o.other_data || d->c[i].allowed;
    if (st == CDR_OK) st = cdr__restore(&t->s, ck, o, restored, err);
    cdr_ckpt_close(ck);
    CDR_TRY(st);
    t->step = restored->step;
    t->tokens = restored->tokens;
    t->trained = restored->trained;
    t->best_eval = restored->best_eval;
    *resumed = true;
    return CDR_OK;
}

/* Every rank has read the directory for itself: all are at one step, or none goes on. One rank's error is everybody's. */
static cdr_status agree_on_start(run *t, cdr_status st, cdr_err *err)
{
    cdr_session *s = &t->s;
    int64_t *all = cdr_pool_alloc(s->pool, sizeof t->step * (size_t)s->n_ranks);
    CDR_TRY(cdr__agree(s, st, err));
    if (cdr_comm_all_gather(s->world, &t->step, all, sizeof t->step) != CDR_OK) {
        cdr_comm_lost(s->world, err);
        return CDR_ERANK;
    }
    for (int r = 1; r < s->n_ranks; r++)
        if (all[r] != all[0])
            CDR_FAIL_ID(err, CDR_EDATA, "checkpoint.ranks-differ", "rank %d found step %lld in %s, rank 0 step %lld: the ranks do not see the same files. "
                        "Start all with one output_dir", r, (long long)all[r], s->r.output_dir, (long long)all[0]);
    return CDR_OK;
}

/* ---- one step ---- */
/* An error is this rank's own: it goes into the step with the others, who learn of it there. */
static cdr_status fill_inputs(run *t, cdr_err *err)
{
    cdr_session *s = &t->s;
    int64_t trained, rows, t0 = cdr_now_ns();
    cdr_status st = cdr__put_batch(s, t->step, &trained, &rows, err);
    cdr__put_dense(s, t->step);
    const cdr_recipe *r = &s->r;
    double n = (double)(t->step + 1);
    float hyper[CDR_N_HYPER] = { 0 };
    hyper[CDR_HYPER_LR] = (float)learning_rate(r, t->step);
    hyper[CDR_HYPER_BC1] = (float)(1 / (1 - pow(r->optimizer.beta1, n)));
    hyper[CDR_HYPER_BC2] = (float)(1 / (1 - pow(r->optimizer.beta2, n)));
    cdr_exec_put(s->exec, CDR_PROG_STEP, "hyper", 0, hyper, sizeof hyper);
    bool time_up = s->rank == 0 && r->train.max_time > 0 && (double)(cdr_now_ns() - t->t0) * 1e-9 + t->step_s > r->train.max_time;
    char path[1200];
    snprintf(path, sizeof path, "%s/stop", r->output_dir);
    t->file_exit = s->rank == 0 && access(path, F_OK) == 0 && unlink(path) == 0;
    snprintf(path, sizeof path, "%s/save", r->output_dir);
    t->file_save = s->rank == 0 && access(path, F_OK) == 0 && unlink(path) == 0;
    t->sig_exit = asked_exit;
    t->sig_save = asked_save;
    if (t->sig_save) asked_save = 0;                             /* one that comes between the two lines is not lost */
    int64_t count[N_COUNT] = { trained, t->sig_exit || t->file_exit, t->sig_save || t->file_save, time_up, rows, st != CDR_OK };
    memcpy(t->own_count, count, sizeof count);
    cdr_exec_put(s->exec, CDR_PROG_STEP, "count", 0, count, sizeof count);
    t->data_s = (double)(cdr_now_ns() - t0) * 1e-9;
    return st;
}

/* Layer and value of "layers.3.mla.attention": 3, "mla.attention"; -1 where it is in no layer. */
static int layer_of(const char *value, const char **rest)
{
    int layer = -1, n = 0;
    *rest = value;
    if (sscanf(value, "layers.%9d.%n", &layer, &n) != 1 || n == 0) return -1;
    *rest = value + n;
    return layer;
}

static const char *number(char out[32], double x)
{
    if (isnan(x)) return "NaN";
    snprintf(out, 32, "%.6g", x);
    return out;
}

/* Message 7 of spec/interface.md, 8, on the rank that saw the value. what: "loss is NaN"; then: checkpoint and advice. */
static cdr_status nonfinite_error(run *t, const cdr_nonfinite *at, const char *what, const char *then, cdr_err *err)
{
    static const char *const phase[] = { "forward", "backward", "recompute", "update" };
    cdr_session *s = &t->s;
    char sample[600], in[32] = "";
    const char *value;
    int layer = layer_of(at->value, &value);
    if (layer >= 0) snprintf(in, sizeof in, " of layer %d", layer);
    cdr_data_locate(s->data, t->step, cdr__shard_id(s, at->mb), s->r.ranks.n_micro * s->n_ranks, CDR_MIN(at->row, s->T - 1), sample, sizeof sample);
    CDR_FAIL_ID(err, CDR_ENUMERIC, "train.nonfinite", "step %lld: %s; first non-finite value in %s%s (%s, %s, rank %d, row %lld, sample %s). %s",
                (long long)t->step + 1, what, value, in, at->op, phase[at->phase], s->rank, (long long)at->row, sample, then);
}

/* Repeats the step with a check after every call and says where the first non-finite value is. */
static cdr_status name_nonfinite(run *t, double loss, double norm, cdr_err *err)
{
    cdr_session *s = &t->s;
    cdr_nonfinite at = { 0 };
    cdr_exec_check_finite(s->exec, true);
    cdr_exec_put(s->exec, CDR_PROG_PROBE, "count", 0, t->own_count, sizeof t->own_count);      /* the step has put the sum in its place */
    cdr_status st = cdr_exec_run(s->exec, CDR_PROG_PROBE, err);
    cdr_exec_check_finite(s->exec, false);
    CDR_TRY(st);
    int64_t mine = cdr_exec_nonfinite(s->exec, &at), *all = cdr_pool_alloc(s->pool, sizeof mine * (size_t)s->n_ranks);
    CDR_TRY(cdr_comm_all_gather(s->world, &mine, all, sizeof mine));
    int first = 0;
    while (first < s->n_ranks && !all[first]) first++;
    char what[96], then[200], intact[64] = "No checkpoint was written yet", n1[32];
    bool skipping = s->r.train.on_nonfinite == CDR_NONFINITE_SKIP;
    if (t->last_save_step >= 0) snprintf(intact, sizeof intact, "Checkpoint step %lld is intact", (long long)t->last_save_step);
    snprintf(what, sizeof what, "%s is %s", isfinite(loss) ? "gradient norm" : "loss", number(n1, isfinite(loss) ? norm : loss));
    if (skipping) snprintf(then, sizeof then, "%d steps in a row were skipped. %s; try a lower optimizer.learning_rate", MAX_SKIPPED, intact);
    else snprintf(then, sizeof then, "%s; try a lower optimizer.learning_rate or train.on_nonfinite=skip", intact);
    if (first == s->n_ranks)
        CDR_FAIL_ID(err, CDR_ENUMERIC, "train.nonfinite", "step %lld: %s, but a repetition of the step shows no non-finite value: the sum overflowed. %s",
                    (long long)t->step + 1, what, then);
    return cdr__share_error(s, first, s->rank == first ? nonfinite_error(t, &at, what, then, err) : CDR_OK, err);
}

/* Said once a run. */
static void watch_load(run *t)
{
    int layer, dead;
    double ratio;
    if (t->uneven_said || !cdr__router_uneven(&t->router, &layer, &ratio, &dead)) return;
    cdr__events_uneven(&t->e, layer, ratio, dead);
    t->uneven_said = true;
}

static cdr_status one_step(run *t, cdr_step_record *rec, cdr_err *err)
{
    cdr_session *s = &t->s;
    int64_t t0 = cdr_now_ns();
    cdr_exec_set_step(s->exec, t->step + 1);
    cdr_status own = fill_inputs(t, err);
    CDR_TRY(cdr_exec_run(s->exec, CDR_PROG_STEP, err));
    double m[CDR_N_METRIC];
    cdr_exec_get(s->exec, CDR_PROG_STEP, "metrics", 0, m, sizeof m);
    cdr_exec_get(s->exec, CDR_PROG_STEP, "count", 0, t->count, sizeof t->count);
    if (t->count[COUNT_BROKEN] > 0) return cdr__agree(s, own, err);
    bool ok = m[CDR_METRIC_OK] != 0;
    cdr__router_read(&t->router, s);
    watch_load(t);
    cdr__extra_read(&t->extra, s, t->count[COUNT_ROWS]);
    double loss = t->count[COUNT_TRAINED] > 0 ? m[CDR_METRIC_LOSS] / (double)t->count[COUNT_TRAINED] : 0;
    if (!ok && (s->r.train.on_nonfinite == CDR_NONFINITE_STOP || ++t->n_skipped > MAX_SKIPPED)) return name_nonfinite(t, loss, m[CDR_METRIC_NORM], err);
    if (!ok) {
        int32_t one = 1;
        cdr_exec_put_run(s->exec, cdr_program_find(&s->bundle, &s->bundle.progs[CDR_PROG_STEP], "ok"), &one, sizeof one);
    } else {
        t->n_skipped = 0;
    }
    double step_s = (double)(cdr_now_ns() - t0) * 1e-9;
    t->step_s = t->step_s > 0 ? 0.9 * t->step_s + 0.1 * step_s : step_s;
    *rec = (cdr_step_record){ .step = t->step + 1, .steps = s->r.train.steps, .step_trained = t->count[COUNT_TRAINED], .loss = loss,
                              .grad_norm = m[CDR_METRIC_NORM], .lr = learning_rate(&s->r, t->step), .step_s = step_s, .data_s = t->data_s, .skipped = !ok,
                              .router = &t->router, .extra = &t->extra };
    t->step++;
    cdr__put_dense(s, t->step);           /* what comes between the steps sees what the next step sees */
    t->tokens += s->r.train.global_batch_tokens;
    t->trained += t->count[COUNT_TRAINED];
    rec->tokens = t->tokens;
    rec->trained = t->trained;
    rec->epoch = cdr_data_epoch(s->data, t->step, s->r.ranks.n_micro * s->n_ranks);
    rec->eta_s = t->step_s * (double)(s->r.train.steps - t->step);
    if (s->r.train.max_time > 0) rec->eta_s = CDR_MIN(rec->eta_s, CDR_MAX(0.0, s->r.train.max_time - (double)(cdr_now_ns() - t->t0) * 1e-9));
    return CDR_OK;
}

/* ---- between steps ---- */
/* Ranks that must hold the same do; else none of them goes on, nor saves what may be wrong. */
static cdr_status compare_ranks(run *t, cdr_err *err)
{
    int64_t n = 0;
    if (t->s.n_ranks == 1) return CDR_OK;
    cdr_status st = cdr__same_tensors(&t->s, (cdr__when){ t->step, t->agreed_step }, &n, err);
    if (st == CDR_OK || st == CDR_ENUMERIC) cdr__events_hash(&t->e, t->step, n, st == CDR_OK);
    if (st == CDR_OK) t->agreed_step = t->step;
    return st;
}

static cdr_status save(run *t, const char *reason, cdr_err *err)
{
    int64_t t0 = cdr_now_ns(), bytes = 0;
    if (t->last_save_step == t->step) return CDR_OK;
    CDR_TRY(cdr__save(&t->s, t->step, t->tokens, t->trained, t->best_eval, &bytes, err));
    t->last_save_ns = cdr_now_ns();
    t->last_save_step = t->step;
    cdr__events_saved(&t->e, t->step, bytes, (double)(t->last_save_ns - t0) * 1e-9, reason);
    return CDR_OK;
}

static cdr_status evaluate(run *t, cdr_err *err)
{
    cdr_eval_sum sum;
    if (cdr_data_stats(t->s.data)->eval_shards == 0) return CDR_OK;
    CDR_TRY(cdr__evaluate(&t->s, t->s.r.eval.tokens, &sum, err));
    if (t->best_eval == 0 || sum.loss < t->best_eval) t->best_eval = sum.loss;
    cdr__events_eval(&t->e, t->step, t->s.r.train.steps, &sum);
    return CDR_OK;
}

static cdr_status samples(run *t, cdr_err *err)
{
    cdr_sample_opts o = cdr__sample_opts(&t->s.r);
    for (int i = 0; i < t->s.r.generate.prompts.n; i++) {
        cdr_text text = { 0 };
        int64_t n = 0;
        cdr_status st = cdr__sample(&t->s, &o, t->s.r.generate.prompts.s[i], &text, &n, err);
        if (st == CDR_OK) cdr__events_sample(&t->e, t->step, t->s.r.generate.prompts.s[i], text.s ? text.s : "", n, o.seed);
        cdr_text_free(&text);
        CDR_TRY(st);
    }
    return CDR_OK;
}

/* Is something due that is asked for every so many steps? Durations are rank 0's clock, agreed through `save`. */
static bool due(const cdr_every *e, int64_t step) { return e->steps > 0 && step % e->steps == 0; }

static cdr_status between(run *t, bool last, cdr_err *err)
{
    const cdr_recipe *r = &t->s.r;
    bool leaves = t->count[COUNT_EXIT] && !last;                 /* whoever sent the signal does not wait for an evaluation */
    if (last || (due(&r->eval.every, t->step) && !leaves)) CDR_TRY(evaluate(t, err));
    if (last || (due(&r->generate.every, t->step) && !leaves)) CDR_TRY(samples(t, err));
    bool timed = r->checkpoint.every.seconds > 0 && (double)(cdr_now_ns() - t->last_save_ns) * 1e-9 > r->checkpoint.every.seconds;
    int64_t want = timed;
    if (r->checkpoint.every.seconds > 0 && cdr_comm_broadcast(t->s.world, &want, sizeof want, 0) != CDR_OK) {
        cdr_comm_lost(t->s.world, err);
        return CDR_ERANK;
    }
    if (t->count[COUNT_EXIT]) {
        cdr__events_signal(&t->e, asked_by(t->sig_exit, t->file_exit), "save_exit");
        return save(t, !t->sig_exit && t->file_exit ? "file" : "signal", err);
    }
    if (t->count[COUNT_SAVE]) {
        cdr__events_signal(&t->e, asked_by(t->sig_save, t->file_save), "save");
        return save(t, !t->sig_save && t->file_save ? "file" : "signal", err);
    }
    if (due(&r->checkpoint.every, t->step) || want) return save(t, "every", err);
    if (last && r->checkpoint.at_end) return save(t, "end", err);
    return CDR_OK;
}

static cdr_status loop(run *t, const char **status, cdr_err *err)
{
    const cdr_recipe *r = &t->s.r;
    *status = "done";
    CDR_TRY(compare_ranks(t, err));
    if (r->eval.at_start && t->step == 0) CDR_TRY(evaluate(t, err));
    while (t->step < r->train.steps) {
        cdr_step_record rec;
        CDR_TRY(one_step(t, &rec, err));
        bool last = t->step >= r->train.steps || t->count[COUNT_TIME];
        if (t->step == 1 || last || t->step % r->log.every == 0) cdr__events_step(&t->e, &rec);
        if (r->log.router_every > 0 && (last || t->step % r->log.router_every == 0)) cdr__events_router(&t->e, t->step, &t->router);
        if (r->parallel.hash_every > 0 && t->step % r->parallel.hash_every == 0) CDR_TRY(compare_ranks(t, err));
        CDR_TRY(between(t, last, err));
        if (t->count[COUNT_EXIT] && !last) {
            *status = "signal";
            return cdr_fail(err, CDR_ESAVED, "train.signal", "%s: saved step %lld. Start again to continue", t->file_exit ? "stop" : "signal", (long long)t->step);
        }
        if (t->count[COUNT_TIME]) {
            *status = "time";
            break;
        }
    }
    return CDR_OK;
}

/* final/ of a LoRA run that has come to its end, for others to load. */
static cdr_status leave_final(run *t, cdr_err *err)
{
    const cdr_recipe *r = &t->s.r;
    cdr_lora_report rep = { 0 };
    const char *format = "";
    if (!r->lora.on || r->checkpoint.final == CDR_FINAL_NONE) return CDR_OK;
    if (t->last_save_step != t->step) {
        if (t->s.rank == 0) cdr_log(CDR_LOG_WARNING, "checkpoint.final: nothing is written, as there is no checkpoint of step %lld (checkpoint.at_end)",
            (long long)t->step);
        return CDR_OK;
    }
    cdr_status st = t->s.rank == 0 ? cdr__adapter_final(&t->s, &rep, &format, err) : CDR_OK;
    CDR_TRY(cdr__share_error(&t->s, 0, st, err));
    if (t->e.out) fprintf(t->e.out, "final     %s, %lld tensors -> %s/final\n", format, (long long)rep.tensors, r->output_dir);
    if (t->s.rank == 0 && rep.dropped > 0) cdr_log(CDR_LOG_WARNING, "checkpoint.final: PEFT would drop %lld keys: %s", (long long)rep.dropped, rep.dropped_what);
    return CDR_OK;
}

/* Message 6 is made where nothing is known of checkpoints; here it names the step that a new start continues from. */
static void name_checkpoint(const run *t, cdr_err *err)
{
    char *at = strstr(err->text, "to continue from the last checkpoint");
    if (strcmp(err->id, "comm.rank-lost") != 0 || !at) return;
    size_t left = sizeof err->text - (size_t)(at - err->text);
    if (t->last_save_step >= 0) snprintf(at, left, "to continue from step %lld", (long long)t->last_save_step);
    else snprintf(at, left, "from the beginning, as no checkpoint was written yet");
}

static cdr_status open_all(run *t, const cdr_train_args *a, cdr_err *err)
{
    CDR_TRY(cdr__session_recipe(&t->s, a->recipe, &a->common, err));
    CDR_TRY(take_signals(&t->s.r.checkpoint.signals_save, on_save, err));
    CDR_TRY(take_signals(&t->s.r.checkpoint.signals_save_exit, on_exit_signal, err));
    if (t->s.r.checkpoint.final == CDR_FINAL_PEFT && !t->s.r.lora.on)
        CDR_FAIL_ID(err, CDR_EUSER, "checkpoint.final", "%s: checkpoint.final is peft, but there is no lora section, so no adapter. Set it to auto",
                    cdr__recipe_at(&t->s.r, cdr_recipe_key("checkpoint.final")));
    CDR_TRY(cdr__session_ranks(&t->s, err));
    cdr_status st = cdr__session_data(&t->s, err);
    if (st == CDR_OK) st = cdr__session_compile(&t->s, err);
    CDR_TRY(cdr__agree(&t->s, st, err));                 /* what one rank cannot read or hold ends all, before they meet in the program */
    st = own_directory(t, err);
    CDR_TRY(cdr__share_error(&t->s, 0, st, err));        /* no rank resumes while another starts anew */
    return cdr__session_device(&t->s, err);
}

/* The event log begins with the first thing to say: the base that is being loaded, or what the run starts with. A start that is refused before leaves the
 * directory's log as it was. */
static cdr_status open_events(run *t, cdr_err *err)
{
    if (t->e.s) return CDR_OK;
    CDR_TRY(cdr__events_open(&t->e, &t->s, t->args->common.json, t->args->common.quiet, err));
    cdr__events_run(&t->e);
    return CDR_OK;
}

static cdr_status on_load(void *ctx, const cdr_load *load, cdr_err *err)
{
    run *t = ctx;
    CDR_TRY(open_events(t, err));
    cdr__events_load(&t->e, load);
    return CDR_OK;
}

static cdr_status start(run *t, cdr_err *err)
{
    cdr_restored restored = { 0 };
    cdr_recipe_diff diff = { .bit_equal = true };
    bool resumed = false;
    char how[64] = "new";
    t->s.on_load = on_load;
    t->s.on_load_ctx = t;
    CDR_TRY(agree_on_start(t, start_or_resume(t, t->args, &restored, &diff, &resumed, err), err));
    if (resumed) t->last_save_step = t->step;
    cdr_status st = open_events(t, err);
    if (st == CDR_OK) st = write_recipes(t, err);
    CDR_TRY(cdr__share_error(&t->s, 0, st, err));
    if (resumed) snprintf(how, sizeof how, "resumed at step %lld", (long long)t->step);
    cdr__events_banner(&t->e, how);
    cdr__events_lora(&t->e);
    if (resumed) cdr__events_resume(&t->e, &restored, &diff);
    return CDR_OK;
}

static cdr_status train(run *t, cdr_err *err)
{
    const char *status = "error";
    t->t0 = t->last_save_ns = cdr_now_ns();
    t->last_save_step = t->agreed_step = -1;
    CDR_TRY(open_all(t, t->args, err));
    cdr_status st = start(t, err);
    if (st == CDR_OK && t->step >= t->s.r.train.steps) {
        if (t->e.out) fprintf(t->e.out, "done      all %lld steps are done; a larger train.steps continues\n", (long long)t->step);
        cdr__events_end(&t->e, "done", CDR_OK, t->step, t->tokens, (double)(cdr_now_ns() - t->t0) * 1e-9, t->best_eval);
        return CDR_OK;
    }
    if (st == CDR_OK) {
        cdr__router_open(&t->router, &t->s);
        cdr__extra_open(&t->extra, &t->s);
        st = loop(t, &status, err);
        if (st == CDR_OK) st = leave_final(t, err);
        if (st == CDR_OK || st == CDR_ESAVED) cdr__events_map(&t->e, &t->router);
    }
    if (st != CDR_OK && st != CDR_ESAVED) {
        name_checkpoint(t, err);
        cdr__events_error(&t->e, err);
        status = "error";
    }
    cdr__events_end(&t->e, status, (int)st, t->step, t->tokens, (double)(cdr_now_ns() - t->t0) * 1e-9, t->best_eval);
    return st;
}

cdr_status cdr_train(const cdr_train_args *a, cdr_result *r, cdr_err *err)
{
    run t = { .lock = -1, .args = a };
    (void)r;
    cdr_status st = train(&t, err);
    if (st != CDR_OK && a->common.json && t.s.rank == 0 && !t.e.log) cdr__events_print_error(err);
    if (st != CDR_OK && st != CDR_ESAVED && t.s.rank == 0 && t.lock >= 0) {
        char path[1200];
        cdr_text text = { 0 };
        cdr_jw w = { .t = &text };
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "id", err->id);
        cdr_jw_str(&w, "message", err->text);
        cdr_jw_int(&w, "exit_code", (int64_t)st);
        cdr_jw_end(&w, '}');
        snprintf(path, sizeof path, "%s/failure.json", t.s.r.output_dir);
        cdr_file_write(path, text.s, text.n, NULL);
        cdr_text_free(&text);
    }
    cdr__events_close(&t.e);
    cdr__session_close(&t.s);
    if (t.lock >= 0) close(t.lock);
    return st;
}
