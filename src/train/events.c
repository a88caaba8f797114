/* events.c: banner, step lines, event log. Forms: spec/interface.md, 7.1 to 7.3. */
#include "train/adapter.h"
#include "train/events.h"
#include "train/overhead.h"
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

int64_t cdr__resident_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(f);
    return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

/* ---- records ---- */
static cdr_jw begin(cdr_events *e, cdr_text *t, const char *type)
{
    cdr_jw w = { .t = t };
    char now[32];
    cdr_time_rfc3339(now);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "type", type);
    cdr_jw_str(&w, "time", now);
    cdr_jw_str(&w, "run", e->run);
    return w;
}

static void end(cdr_events *e, cdr_jw *w)
{
    cdr_jw_end(w, '}');
    cdr_text_append(w->t, "\n", 1);
    if (e->log && (fwrite(w->t->s, 1, w->t->n, e->log) != w->t->n || fflush(e->log) != 0) && !e->full) {
        e->full = true;
        cdr_log(CDR_LOG_WARNING, "%s/events.jsonl: cannot be written: %s; it lacks records from here on. Free some space", e->s->r.output_dir, strerror(errno));
    }
    if (e->json && e->log) {
        fwrite(w->t->s, 1, w->t->n, stdout);
        fflush(stdout);
    }
    cdr_text_free(w->t);
}

cdr_status cdr__events_open(cdr_events *e, const cdr_session *s, bool json, bool quiet, cdr_err *err)
{
    *e = (cdr_events){ .s = s, .json = json };
    if (s->rank != 0) return CDR_OK;
    char path[1200];
    snprintf(path, sizeof path, "%s/events.jsonl", s->r.output_dir);
    e->log = fopen(path, "a");
    if (!e->log) CDR_FAIL_ID(err, CDR_EUSER, "run.output", "output_dir: cannot write %s. Take another --out", path);
    e->out = quiet || json ? NULL : stdout;
    uint64_t id[2] = { (uint64_t)cdr_now_ns(), (uint64_t)getpid() };
    snprintf(e->run, sizeof e->run, "%08x", (unsigned)cdr_hash64(id, sizeof id, 0));
    e->gemm_peak = cdr__gemm_ceiling(s->device, s->opts.compute) * s->n_ranks;
    if (s->device->kind == CDR_DEV_CPU) e->gemm_peak *= CDR_MIN(1.0, (double)cdr_cpu_cores() / (s->n_ranks * s->device->n_threads));     /* ranks may share cores */
    return CDR_OK;
}

void cdr__events_close(cdr_events *e)
{
    if (e->log) fclose(e->log);
    e->log = NULL;
}

static double mib(int64_t bytes) { return (double)bytes / 1048576.0; }

/* bytes of a class in the plan: RUN values, and the step program's own at their peak */
static int64_t run_class(const cdr_bundle *b, int cls)
{
    int64_t sum = 0;
    for (int32_t v = 0; v < b->n_shared; v++)
        if (b->shared[v].cls == cls && b->shared[v].alias == CDR_NONE) sum += b->shared[v].stride * b->shared[v].n_inst;
    return sum;
}

/* Text: its bytes. Conversations: samples, tokens, share that is trained, and what was dropped. */
static void data_text(const cdr_session *s, char train[240], char held[64])
{
    const cdr_data_stat *d = cdr_data_stats(s->data);
    char n[32], m[32], dropped[64] = "";
    if (d->n_conversations == 0) {
        cdr_format_count(n, d->train_bytes);
        (void)snprintf(train, 240, "%s bytes", n);
        cdr_format_count(n, d->eval_bytes);
        (void)snprintf(held, 64, "%s", n);
        return;
    }
    cdr_format_count(n, d->n_documents);
    cdr_format_count(m, d->train_tokens);
    if (d->n_dropped > 0) (void)snprintf(dropped, sizeof dropped, ", %lld dropped (cadre data check)", (long long)d->n_dropped);
    (void)snprintf(train, 240, "%s samples (%s), %s tokens, %.1f %% trained%s", n, cdr_data_form(s->data), m,
                   100 * (double)d->epoch_trained / (double)CDR_MAX(d->epoch_places, (int64_t)1), dropped);
    cdr_format_count(n, d->n_eval_documents);
    (void)snprintf(held, 64, "%s", n);
}

/* Of a base's packed experts: what stays in its files, and what was converted to another format while it was loaded */
static void experts_text(cdr_events *e)
{
    const cdr_session *s = e->s;
    int64_t mapped = 0, copied = 0, converted = 0;
    for (int64_t i = 0; s->base && i < cdr_model_params(s->model); i++) {
        const int32_t at = cdr_param_find(&s->bundle, cdr_model_param(s->model, i));
        if (at < 0 || cdr_weights_dtype(s->base, i) != CDR_MXFP4) continue;
        const cdr_param *q = &s->bundle.params[at];
        const cdr_type *t = &s->bundle.shared[q->shard].t;
        if (q->mapped) mapped += (int64_t)cdr_mapped_bytes(t);
        else if (t->dtype == CDR_MXFP4) copied += (int64_t)cdr_type_bytes(t);
        else converted += (int64_t)cdr_type_bytes(t);
    }
    if (mapped + copied + converted > 0) fprintf(e->out, "; packed experts mapped %.1f, copied %.1f, converted %.1f", mib(mapped), mib(copied), mib(converted));
}

static void banner_lines(cdr_events *e, const char *how)
{
    const cdr_session *s = e->s;
    const cdr_bundle *b = &s->bundle;
    char n1[240], n2[64], n3[32], n4[32];
    fprintf(e->out, "cadre %s  train %s -> %s (%s, run %s)\n", CDR_VERSION, s->r.name, s->r.output_dir, how, e->run);
    fprintf(e->out, "model     %s, %s\n", cdr__summary(s), strcmp(how, "new") == 0 || s->r.lora.on ? cdr__session_weights_text(s) : "weights of the checkpoint");
    if (s->r.lora.on) {
        cdr_text lora = { 0 };
        cdr__lora_table(s, &lora);
        fputs(lora.s, e->out);
        cdr_text_free(&lora);
    }
    char ceiling[64] = "unknown";
    if (e->gemm_peak > 0) snprintf(ceiling, sizeof ceiling, "%.0f GFLOP/s %s (measured)", e->gemm_peak * 1e-9, cdr_dtype_row(s->opts.compute)->name);
    int64_t total = b->run_bytes[0] + b->exec_bytes[0];
    data_text(s, n1, n2);
    cdr_format_count(n3, s->r.train.global_batch_tokens);
    cdr_format_count(n4, s->r.train.micro_batch_tokens);
    fprintf(e->out, "data      %s: %s to train, %s held out; %s tokens a step = %lld micro-batch%s x %s x %d rank%s\n",
            s->r.data.train.n == 1 ? s->r.data.train.s[0].name : "mixture", n1, n2, n3, (long long)s->r.ranks.n_micro,
            s->r.ranks.n_micro == 1 ? "" : "es", n4, s->n_ranks, s->n_ranks == 1 ? "" : "s");
    fprintf(e->out, "machine   %d thread%s a rank, %s, %s; GEMM ceiling %s; transport %s; reduce %s\n", s->device->n_threads,
            s->device->n_threads == 1 ? "" : "s", s->device->kind == CDR_DEV_CPU ? "cpu" : s->device->name, cdr_isa_name(s->device->isa),
            ceiling, cdr_comm_transport(s->world),
            s->r.train.reduce == CDR_REDUCE_TREE ? "tree" : "free");
    if (s->n_ranks > 1) fprintf(e->out, "mesh      %s\n", cdr__mesh_text(s));
    fprintf(e->out, "memory    %.1f MiB planned (%.3f x its lower bound): weights %.1f, optimizer %.1f, step %.1f; beside it overhead %.1f", mib(total),
            (double)total / (double)CDR_MAX(b->lower_bound[0], 1), mib(run_class(b, CDR_C_WEIGHT)), mib(run_class(b, CDR_C_OPTIM)), mib(b->exec_bytes[0]),
            mib(cdr__overhead_bytes(s)));
    experts_text(e);
    fputc('\n', e->out);
    for (int i = 0; i < s->r.n_notes; i++) fprintf(e->out, "note      %s\n", s->r.notes[i]);
    fflush(e->out);
}

void cdr__events_load(cdr_events *e, const cdr_load *load)
{
    if (!e->log) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "load");
    cdr_jw_int(&w, "bytes_done", load->done);
    cdr_jw_int(&w, "bytes_total", load->total);
    cdr_jw_real(&w, "bytes_per_s", (double)load->done / CDR_MAX(load->seconds, 1e-9));
    end(e, &w);
}

void cdr__events_banner(cdr_events *e, const char *how)
{
    if (e->log && e->out) banner_lines(e, how);
}

void cdr__events_run(cdr_events *e)
{
    const cdr_session *s = e->s;
    if (!e->log) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "run");
    cdr_jw_str(&w, "cadre", CDR_VERSION);
    cdr_jw_str(&w, "command", "train");
    cdr_jw_str(&w, "name", s->r.name);
    cdr_jw_int(&w, "seed", s->r.seed);
    cdr_jw_u64hex(&w, "recipe_hash", cdr_recipe_hash(&s->r));
    cdr_jw_u64hex(&w, "program_hash", s->bundle.hash);
    cdr_jw_str(&w, "reduce", s->r.train.reduce == CDR_REDUCE_TREE ? "tree" : "free");
    cdr_jw_int(&w, "ranks", s->n_ranks);
    cdr_jw_begin(&w, "mesh", '{');
    cdr__mesh_json(&s->mesh, &w);
    cdr_jw_end(&w, '}');
    cdr_jw_str(&w, "transport", cdr_comm_transport(s->world));
    cdr_jw_str(&w, "launcher", cdr_comm_source(s->world));
    cdr_jw_int(&w, "pid", getpid());
    cdr_jw_begin(&w, "machine", '{');
    cdr_jw_str(&w, "name", s->machine.name);
    cdr_jw_int(&w, "devices", s->n_ranks);
    cdr_jw_real(&w, "gemm_peak", e->gemm_peak);
    cdr_jw_bool(&w, "quick", true);
    cdr_jw_end(&w, '}');
    cdr_jw_begin(&w, "model", '{');
    cdr_jw_str(&w, "name", s->info->name);
    cdr_jw_u64hex(&w, "description_hash", s->info->hash);
    if (s->base_hash) cdr_jw_u64hex(&w, "base_hash", s->base_hash);
    cdr_jw_begin(&w, "parameters", '{');
    cdr_jw_int(&w, "text", s->info->n_params);
    cdr_jw_int(&w, "total", s->info->n_params);
    cdr_jw_int(&w, "active", s->info->n_active);
    cdr_jw_int(&w, "trained", cdr__trained_params(s));
    cdr_jw_end(&w, '}');
    cdr_jw_begin(&w, "layers", '{');
    for (int i = 0; i < s->info->n_kinds; i++) cdr_jw_int(&w, s->info->kind[i].kind, s->info->kind[i].n);
    cdr_jw_end(&w, '}');
    cdr_jw_end(&w, '}');
    cdr_jw_begin(&w, "flops_per_token", '{');
    cdr_jw_real(&w, "useful", cdr__flops_per_token(s));
    cdr_jw_end(&w, '}');
    end(e, &w);
}

/* Which modules have adapters (spec/interface.md, 7.3); consumers are checked where adapters are exported. */
void cdr__events_lora(cdr_events *e)
{
    cdr_lora_kind kind[CDR_LORA_KINDS];
    if (!e->log || !e->s->r.lora.on) return;
    int n = cdr__lora_kinds(e->s, kind, CDR_LORA_KINDS);
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "lora");
    cdr_jw_begin(&w, "kinds", '[');
    for (int i = 0; i < n; i++) {
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "kind", kind[i].kind);
        cdr_jw_int(&w, "matched", kind[i].matched);
        cdr_jw_int(&w, "expected", kind[i].expected);
        cdr_jw_int(&w, "rank", kind[i].rank);
        cdr_jw_int(&w, "parameters", kind[i].parameters);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, ']');
    cdr_jw_begin(&w, "serve", '{');
    for (int i = 0; i < e->s->r.lora.serve_with.n; i++) {
        cdr_lora_serve x;
        if (cdr__serve_count(e->s, e->s->r.lora.serve_with.s[i], &x, NULL) != CDR_OK) continue;        /* checked before the compile */
        cdr_jw_begin(&w, x.consumer, '{');
        cdr_jw_int(&w, "bound", x.bound);
        cdr_jw_int(&w, "dropped", x.dropped);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, '}');
    end(e, &w);
}

void cdr__events_resume(cdr_events *e, const cdr_restored *r, const cdr_recipe_diff *d)
{
    if (!e->log) return;
    if (e->out) {
        bool free_keys = false;                  /* a schedule, a number of steps: they take effect with the next step */
        for (int i = 0; i < d->n; i++) free_keys = free_keys || cdr_recipe_schema(NULL)[d->c[i].row].resume == 'C';
        fprintf(e->out, "resume    from %s, written by %d rank%s%s", r->path, r->from_ranks, r->from_ranks == 1 ? "" : "s",
                d->n == 0 ? "" : !d->bit_equal ? "; changed, not bit-equal from here on:" : free_keys ? "; changed from the next step on:" : "; changed, same bits:");
        for (int i = 0; i < d->n; i++)
            fprintf(e->out, " %s %s -> %s", cdr_recipe_schema(NULL)[d->c[i].row].key, d->c[i].old_value, d->c[i].new_value);
        fprintf(e->out, "\n");
    }
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "resume");
    cdr_jw_int(&w, "step", r->step);
    cdr_jw_str(&w, "path", r->path);
    cdr_jw_int(&w, "from_ranks", r->from_ranks);
    cdr_jw_int(&w, "to_ranks", e->s->n_ranks);
    cdr_jw_bool(&w, "bit_equal", d->bit_equal);
    cdr_jw_begin(&w, "changed", '[');
    for (int i = 0; i < d->n; i++) {
        const cdr_key *k = &cdr_recipe_schema(NULL)[d->c[i].row];
        char cls[2] = { k->resume, 0 };
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "key", k->key);
        cdr_jw_str(&w, "class", cls);
        cdr_jw_str(&w, "old", d->c[i].old_value);
        cdr_jw_str(&w, "new", d->c[i].new_value);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, ']');
    end(e, &w);
}

static void short_count(char out[16], double x)
{
    if (x >= 1e6) snprintf(out, 16, "%.2fM", x * 1e-6);
    else if (x >= 1e3) snprintf(out, 16, "%.1fk", x * 1e-3);
    else snprintf(out, 16, "%.0f", x);
}

static void short_time(char out[24], double s)
{
    if (s >= 5400) snprintf(out, 24, "%dh%02dm", (int)(s / 3600), (int)(s / 60) % 60);
    else if (s >= 60) snprintf(out, 24, "%dm%02ds", (int)(s / 60), (int)s % 60);
    else snprintf(out, 24, "%.0fs", s);
}

void cdr__events_step(cdr_events *e, const cdr_step_record *r)
{
    const cdr_session *s = e->s;
    if (!e->log) return;
    double rate = (double)s->r.train.global_batch_tokens / CDR_MAX(r->step_s, 1e-9);
    double useful = (double)r->step_trained * cdr__flops_per_token(s) / CDR_MAX(r->step_s, 1e-9);
    double share = e->gemm_peak > 0 ? useful / e->gemm_peak : 0;
    int64_t planned = (int64_t)cdr_exec_slab_bytes(s->exec, 0), resident = cdr__resident_bytes();
    if (e->out) {
        char tok[16], eta[24], gemm[16] = "-", norm[32] = "NaN";
        if (!isnan(r->grad_norm)) snprintf(norm, sizeof norm, "%.3f", r->grad_norm);
        if (e->gemm_peak > 0) snprintf(gemm, sizeof gemm, "%.0f%%", 100 * share);
        short_count(tok, rate);
        short_time(eta, r->eta_s);
        fprintf(e->out, "step  %*lld/%lld  loss %.4f  gnorm %s  lr %.2e  %s tok/s  gemm %s  mem %.0f/%.0f MiB", 5, (long long)r->step,
                (long long)r->steps, r->loss, norm, r->lr, tok, gemm, mib(planned), mib(resident));
        if (r->router->n > 0) fprintf(e->out, "  load %.2f", r->router->worst);
        fprintf(e->out, "  eta %s", eta);
        if (r->router->dead > 0) fprintf(e->out, "  dead %d", r->router->dead);
        if (r->extra->has_kl) fprintf(e->out, "  kl %.4f", r->extra->kl);
        if (r->extra->has_aux) fprintf(e->out, "  aux %.4f", r->extra->aux);
        if (r->data_s > 0.01 * r->step_s) fprintf(e->out, "  wait %.0f%%", 100 * r->data_s / r->step_s);
        fprintf(e->out, "%s\n", r->skipped ? "  skipped" : "");
        fflush(e->out);
    }
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "step");
    cdr_jw_int(&w, "step", r->step);
    cdr_jw_real(&w, "loss", r->loss);
    cdr_jw_real(&w, "loss_total", r->loss + r->extra->kl + r->extra->aux);
    if (r->extra->has_kl) cdr_jw_real(&w, "indexer_kl", r->extra->kl);
    if (r->extra->has_aux) cdr_jw_real(&w, "aux_loss", r->extra->aux);
    cdr_jw_real(&w, "grad_norm", r->grad_norm);
    cdr_jw_real(&w, "lr", r->lr);
    cdr_jw_int(&w, "tokens", r->tokens);
    cdr_jw_int(&w, "trained_tokens", r->step_trained);
    cdr_jw_real(&w, "epoch", r->epoch);
    cdr_jw_int(&w, "skipped", r->skipped);
    cdr_jw_real(&w, "step_s", r->step_s);
    cdr_jw_real(&w, "data_wait_s", r->data_s);
    cdr_jw_real(&w, "eta_s", r->eta_s);
    cdr_jw_real(&w, "tokens_per_s", rate);
    cdr_jw_real(&w, "tokens_per_s_device", rate / s->n_ranks);
    if (e->gemm_peak > 0) cdr_jw_real(&w, "gemm_useful", share);
    else cdr_jw_null(&w, "gemm_useful");
    cdr_jw_null(&w, "mfu");
    cdr_jw_null(&w, "hfu");
    cdr_jw_int(&w, "mem_planned_bytes", planned);
    cdr_jw_int(&w, "mem_resident_bytes", resident);
    if (r->router->n > 0) {
        cdr_jw_real(&w, "load_max_mean", r->router->worst);
        cdr_jw_int(&w, "dead_experts", r->router->dead);
    }
    end(e, &w);
}

/* One byte an expert, min(255, round(32 load / mean)), as base64 (RFC 4648). */
static void load_base64(const cdr_router_layer *l, cdr_text *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int64_t sum = 0;
    for (int e = 0; e < l->experts; e++) sum += l->load[e];
    double mean = CDR_MAX((double)sum, 1.0) / l->experts;
    for (int e = 0; e < l->experts; e += 3) {
        uint32_t x = 0;
        int n = CDR_MIN(3, l->experts - e);
        for (int k = 0; k < 3; k++) x = x << 8 | (k < n ? (uint32_t)CDR_MIN(255.0, floor(32 * (double)l->load[e + k] / mean + 0.5)) : 0);
        char s[4] = { digit[x >> 18], digit[x >> 12 & 63], n > 1 ? digit[x >> 6 & 63] : '=', n > 2 ? digit[x & 63] : '=' };
        cdr_text_append(out, s, sizeof s);
    }
}

void cdr__events_router(cdr_events *e, int64_t step, const cdr_router *r)
{
    if (!e->log || r->n == 0) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "router");
    cdr_jw_int(&w, "step", step);
    cdr_jw_begin(&w, "layers", '[');
    for (int i = 0; i < r->n; i++) {
        const cdr_router_layer *l = &r->layer[i];
        cdr_text load = { 0 };
        load_base64(l, &load);
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_int(&w, "layer", l->layer);
        cdr_jw_real(&w, "load_max_mean", l->max_mean);
        cdr_jw_real(&w, "load_min_mean", l->min_mean);
        cdr_jw_int(&w, "dead", l->dead);
        cdr_jw_real(&w, "entropy", l->entropy);
        cdr_jw_real(&w, "bias_min", l->bias_min);
        cdr_jw_real(&w, "bias_max", l->bias_max);
        cdr_jw_str(&w, "load", load.s);
        cdr_jw_end(&w, '}');
        cdr_text_free(&load);
    }
    cdr_jw_end(&w, ']');
    end(e, &w);
}

void cdr__events_uneven(cdr_events *e, int layer, double ratio, int dead)
{
    static const char id[] = "router.uneven";
    if (!e->log) return;
    char *message = cdr_pool_printf(e->s->pool, "layer %d: over %d steps its busiest expert got %.2f times the mean, and %d got no token", layer,
                                    CDR_ROUTER_WINDOW, ratio, dead);
    const char *fix = e->s->r.lora.on ? "LoRA freezes routers and their biases; try a lower optimizer.learning_rate, or train.balance=aux"
                    : e->s->r.train.balance == CDR_BAL_NONE ? "Take train.balance=quantile"
                                                            : "Look at the router records of events.jsonl; try a lower optimizer.learning_rate";
    cdr_log(CDR_LOG_WARNING, "%s. %s [%s]", message, fix, id);
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "warning");
    cdr_jw_str(&w, "id", id);
    cdr_jw_str(&w, "message", message);
    cdr_jw_str(&w, "where", "train.balance");
    cdr_jw_str(&w, "fix", fix);
    cdr_jw_int(&w, "layer", layer);
    end(e, &w);
}

/* Does the terminal show UTF-8? A pipe or a file gets plain ASCII. */
static bool shows_utf8(FILE *out)
{
    locale_t own = isatty(fileno(out)) ? newlocale(LC_CTYPE_MASK, "", (locale_t)0) : (locale_t)0;
    if (!own) return false;
    bool utf8 = strcmp(nl_langinfo_l(CODESET, own), "UTF-8") == 0;
    freelocale(own);
    return utf8;
}

void cdr__events_map(cdr_events *e, const cdr_router *r)
{
    if (!e->out || r->n == 0) return;
    cdr_text t = { 0 };
    cdr__router_map(r, shows_utf8(e->out), &t);
    fputs(t.s, e->out);
    fflush(e->out);
    cdr_text_free(&t);
}

void cdr__events_eval(cdr_events *e, int64_t step, int64_t steps, const cdr_eval_sum *sum)
{
    if (!e->log) return;
    char n[32], bits[32] = "-";
    cdr_format_count(n, sum->tokens);
    if (sum->bytes > 0) snprintf(bits, sizeof bits, "%.3f", sum->bits_per_byte);
    if (e->out) {
        fprintf(e->out, "eval  %*lld/%lld  loss %.4f  %s bits/byte  %s tokens  %.1f s\n", 5, (long long)step, (long long)steps, sum->loss, bits, n,
                sum->seconds);
        fflush(e->out);
    }
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "eval");
    cdr_jw_int(&w, "step", step);
    cdr_jw_real(&w, "loss", sum->loss);
    cdr_jw_real(&w, "perplexity", sum->perplexity);
    cdr_jw_real(&w, "bits_per_byte", sum->bits_per_byte);
    cdr_jw_int(&w, "tokens", sum->tokens);
    end(e, &w);
}

void cdr__events_sample(cdr_events *e, int64_t step, const char *prompt, const char *text, int64_t n, uint64_t seed)
{
    if (!e->log) return;
    if (e->out) {
        fprintf(e->out, "sample  step %lld:  %s%s\n", (long long)step, prompt, text);
        fflush(e->out);
    }
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "sample");
    cdr_jw_int(&w, "step", step);
    cdr_jw_str(&w, "prompt", prompt);
    cdr_jw_str(&w, "text", text);
    cdr_jw_int(&w, "tokens", n);
    cdr_jw_int(&w, "seed", (int64_t)seed);
    end(e, &w);
}

void cdr__events_saved(cdr_events *e, int64_t step, int64_t bytes, double seconds, const char *reason)
{
    if (!e->log) return;
    char dir[1200];
    cdr_ckpt_path(dir, sizeof dir, e->s->r.output_dir, step);
    if (e->out) {
        fprintf(e->out, "saved  step %lld -> checkpoints/step-%09lld (%.1f MB in %.2f s, step delayed %.2f s)\n", (long long)step, (long long)step,
                (double)bytes * 1e-6, seconds, seconds);
        fflush(e->out);
    }
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "checkpoint");
    cdr_jw_int(&w, "step", step);
    cdr_jw_str(&w, "path", dir);
    cdr_jw_int(&w, "bytes", bytes);
    cdr_jw_real(&w, "write_s", seconds);
    cdr_jw_real(&w, "delay_s", seconds);
    cdr_jw_str(&w, "reason", reason);
    int64_t kept[64];
    int n = cdr_ckpt_list(e->s->r.output_dir, kept, CDR_COUNT(kept));
    cdr_jw_begin(&w, "kept", '[');
    for (int i = 0; i < CDR_MIN(n, CDR_COUNT(kept)); i++) cdr_jw_int(&w, NULL, kept[i]);
    cdr_jw_end(&w, ']');
    end(e, &w);
}

void cdr__events_hash(cdr_events *e, int64_t step, int64_t tensors, bool equal)
{
    if (!e->log) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "hash");
    cdr_jw_int(&w, "step", step);
    cdr_jw_int(&w, "tensors", tensors);
    cdr_jw_bool(&w, "equal", equal);
    end(e, &w);
}

void cdr__events_signal(cdr_events *e, const char *name, const char *action)
{
    if (!e->log) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "signal");
    cdr_jw_str(&w, "name", name);
    cdr_jw_str(&w, "action", action);
    end(e, &w);
}

void cdr__events_print_error(const cdr_err *err)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    char now[32];
    cdr_time_rfc3339(now);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "type", "error");
    cdr_jw_str(&w, "time", now);
    cdr_jw_null(&w, "run");
    cdr_jw_str(&w, "id", err->id);
    cdr_jw_str(&w, "message", err->text);
    cdr_jw_int(&w, "exit_code", err->status);
    cdr_jw_end(&w, '}');
    printf("%s\n", t.s);
    fflush(stdout);
    cdr_text_free(&t);
}

void cdr__events_error(cdr_events *e, const cdr_err *err)
{
    if (!e->log) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "error");
    cdr_jw_str(&w, "id", err->id);
    cdr_jw_str(&w, "message", err->text);
    cdr_jw_int(&w, "rank", e->s->rank);
    end(e, &w);
}

void cdr__events_end(cdr_events *e, const char *status, int code, int64_t step, int64_t tokens, double wall_s, double best_eval)
{
    if (!e->log) return;
    cdr_text t = { 0 };
    cdr_jw w = begin(e, &t, "end");
    cdr_jw_str(&w, "status", status);
    cdr_jw_int(&w, "exit_code", code);
    cdr_jw_int(&w, "step", step);
    cdr_jw_int(&w, "tokens", tokens);
    cdr_jw_real(&w, "wall_s", wall_s);
    cdr_jw_real(&w, "best_eval", best_eval);
    end(e, &w);
}
