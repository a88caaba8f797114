/* plan_cmd.c: the real compile of every rank, without a device, and what it costs. */
#include "plan/account.h"
#include "train/fit.h"
#include <stdlib.h>

typedef struct {
    cdr_session s; cdr_account a; cdr_basis basis; double step_s; int64_t limit; bool fits;
    cdr_fix fix[CDR_MAX_FIXES]; int n_fixes;        /* where it does not fit */
    bool *layer;                                    /* --layers: those that are printed; NULL: all */
} plan;

/* The machine decides kernels: a CPU machine file has this machine's instruction sets, capped by the file's arch. */
static cdr_status target(plan *p, int *kind, uint32_t *isa, int *n_threads, cdr_err *err)
{
    const cdr_machine *m = &p->s.machine;
    bool cuda = p->s.r.machine.device == CDR_USE_CUDA || strcmp(m->kind, "cuda") == 0;
    *kind = cuda ? CDR_DEV_CUDA : CDR_DEV_CPU;
    if (!cuda && strcmp(m->kind, "cpu") != 0)
        CDR_FAIL_ID(err, CDR_EUSER, "plan.no-backend", "machine.file: %s is of kind %s, for which this version has no kernel tables. Use a cpu or cuda machine",
                    m->name, m->kind);
    *isa = cuda ? CDR_ISA_SM80 | CDR_ISA_SM90 : cdr_cpu_isa(err);
    if (err->status != CDR_OK) return err->status;
    *n_threads = cuda && p->s.r.machine.threads <= 0 ? 1 : cdr__session_threads(&p->s, (int)m->cores, strcmp(m->name, "auto") == 0);
    return CDR_OK;
}

static cdr_status compile_all(plan *p, int rank, cdr_err *err)
{
    cdr_session *s = &p->s;
    int kind = CDR_DEV_CPU, n_threads = 1, n = s->n_ranks;
    uint32_t isa = 0;
    CDR_TRY(target(p, &kind, &isa, &n_threads, err));
    cdr_bundle *all = cdr_pool_alloc(s->pool, sizeof *all * (size_t)n);
    const cdr_bundle **ptr = cdr_pool_alloc(s->pool, sizeof *ptr * (size_t)n);
    int64_t t0 = cdr_now_ns();
    for (int r = 0; r < n; r++) {
        cdr__session_mesh(s, r, n);
        CDR_TRY(cdr__session_opts(s, kind, isa, n_threads, err));
        CDR_TRY(cdr_compile(&s->opts, &s->builder, s->pool, &all[r], err));
        ptr[r] = &all[r];
    }
    CDR_TRY(cdr_verify_ranks(ptr, n, err));
    s->compile_s = (double)(cdr_now_ns() - t0) * 1e-9;
    if (rank < 0 || rank >= n) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.rank", "--rank %d: there are ranks 0 to %d", rank, n - 1);
    s->bundle = all[rank];
    cdr_account_bundle(&s->bundle, &p->a);
    p->limit = s->opts.budget_bytes;
    p->fits = p->limit <= 0 || p->a.total_bytes <= p->limit;
    if (!p->fits) p->n_fixes = cdr__fixes(s, p->fix);
    p->step_s = cdr_account_step_s(&p->a, &s->machine, s->opts.compute, &p->basis);
    return CDR_OK;
}

static double mb(int64_t x) { return (double)x * 1e-6; }

static void to_text(const plan *p, cdr_text *t)
{
    const cdr_session *s = &p->s;
    const cdr_account *a = &p->a;
    char n[32], limit[32], off[32];
    cdr_text_printf(t, "model     %s\n", cdr__summary(s));
    cdr_format_count(n, s->info->n_params);
    cdr_format_count(limit, s->info->n_active);
    cdr_format_count(off, cdr__trained_params(s));
    if (s->info->n_params >= 1000000) cdr_text_printf(t, "          %s parameters, %s active, %s trained\n", n, limit, off);     /* the line above rounds */
    cdr_text_printf(t, "mesh      %s; %lld micro-batch%s of %lld tokens a rank; %d rank%s compiled in %.2f s\n", cdr__mesh_text(s),
                    (long long)s->r.ranks.n_micro, s->r.ranks.n_micro == 1 ? "" : "es", (long long)s->opts.T,
                    s->n_ranks, s->n_ranks == 1 ? "" : "s", s->compile_s);
    cdr_text_printf(t, "per device, MB:");
    for (int c = 0, first = 1; c < CDR_N_CLASSES; c++)
        if (a->by_class[c] > 0) {
            cdr_text_printf(t, "%s %s %.2f", first ? "" : " |", cdr_class_name[c], mb(a->by_class[c]));
            first = 0;
        }
    cdr_text_printf(t, "\n");
    cdr_format_count(n, a->total_bytes);
    cdr_text_printf(t, "          %s bytes", n);
    cdr_format_count(limit, p->limit);
    cdr_format_count(off, llabs(p->limit - a->total_bytes));
    if (p->limit > 0) cdr_text_printf(t, p->fits ? " of %s: fits, %s free" : " of %s: does not fit, short by %s", limit, off);
    cdr_text_printf(t, "; peak at %s %s; placement %.4f x its lower bound\n", a->peak_prog, a->peak_at,
                    (double)a->total_bytes / (double)CDR_MAX(a->lower_bound_bytes, 1));
    for (int i = 0; i < p->n_fixes; i++) {
        cdr_text_printf(t, i ? "          " : "fits with ");
        cdr__fix_text(t, &p->fix[i]);
        cdr_text_append(t, "\n", 1);
    }
    cdr_text_printf(t, "traffic  ");
    for (int i = 0; i < a->n_colls; i++)
        cdr_text_printf(t, "%s %s %.2f MB (%lld calls)", i ? "," : "", a->coll[i].name, mb(a->coll[i].bytes), (long long)a->coll[i].calls);
    cdr_text_printf(t, "%s a step and rank\n", a->n_colls ? "" : " none");
    if (p->step_s > 0)
        cdr_text_printf(t, "time      %.4g s a step, %.4g tokens/s by roofline (%s figures of machine %s)\n", p->step_s,
                        (double)s->r.train.global_batch_tokens / p->step_s, cdr_basis_name[p->basis], s->machine.name);
    else cdr_text_printf(t, "time      unknown: machine %s has no measured GEMM rate (cadre bench --write-machine FILE)\n", s->machine.name);
    cdr_text_printf(t, "verified  ordering, overlap and in-place of every program; same collective order on all %d ranks; program hash %016llx\n", s->n_ranks,
                    (unsigned long long)s->bundle.hash);
}

static void to_json(const plan *p, cdr_jw *w)
{
    const cdr_session *s = &p->s;
    const cdr_account *a = &p->a;
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_bool(w, "fits", p->fits);
    cdr_jw_int(w, "short_bytes", p->fits ? 0 : a->total_bytes - p->limit);
    cdr_jw_real(w, "compile_s", s->compile_s);
    cdr_jw_u64hex(w, "program_hash", s->bundle.hash);
    cdr_jw_begin(w, "parameters", '{');
    cdr_jw_int(w, "text", s->info->n_params);
    cdr_jw_int(w, "total", s->info->n_params);
    cdr_jw_int(w, "active", s->info->n_active);
    cdr_jw_int(w, "trained", cdr__trained_params(s));
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "rank_classes", '[');
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_int(w, "ranks", s->n_ranks);
    cdr_jw_begin(w, "tiers", '{');
    cdr_jw_begin(w, s->bundle.tiers[0].name, '{');
    cdr_jw_int(w, "limit_bytes", p->limit);
    cdr_jw_int(w, "total_bytes", a->total_bytes);
    cdr_jw_int(w, "run_bytes", a->run_bytes);
    cdr_jw_int(w, "exec_bytes", a->exec_bytes);
    cdr_jw_int(w, "lower_bound_bytes", a->lower_bound_bytes);
    cdr_jw_str(w, "peak_at", a->peak_at);
    cdr_jw_begin(w, "by_class", '{');
    for (int c = 0; c < CDR_N_CLASSES; c++) cdr_jw_int(w, cdr_class_name[c], a->by_class[c]);
    cdr_jw_int(w, "unused", a->unused_bytes);
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
    cdr_jw_end(w, ']');
    cdr_jw_begin(w, "comm", '[');
    for (int i = 0; i < a->n_colls; i++) {
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "kind", a->coll[i].name);
        cdr_jw_int(w, "bytes_per_step", a->coll[i].bytes);
        cdr_jw_int(w, "calls", a->coll[i].calls);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
    cdr_jw_begin(w, "predicted", '{');
    if (p->step_s > 0) cdr_jw_real(w, "step_s", p->step_s);
    else cdr_jw_null(w, "step_s");
    cdr_jw_real(w, "flop", a->flop);
    cdr_jw_bool(w, "calibrated", p->basis == CDR_BASIS_MEASURED);
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "fixes", '[');
    for (int i = 0; i < p->n_fixes; i++) {
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_begin(w, "set", '{');
        for (int k = 0; k < p->fix[i].n_keys; k++) cdr_jw_str(w, p->fix[i].key[k], p->fix[i].value[k]);
        cdr_jw_end(w, '}');
        cdr_jw_int(w, "total_bytes", p->fix[i].total_bytes);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
}

/* --layers: of what --print prints, the lines that name no layer or one of these. */
static void keep_layers(const plan *p, const char *lines, cdr_text *out)
{
    for (const char *line = lines; *line;) {
        size_t n = strcspn(line, "\n");
        const char *at = memmem(line, n, "layers.", 7);
        int layer = at ? atoi(at + 7) : -1;
        if (layer < 0 || (layer < p->s.info->n_layers && p->layer[layer])) cdr_text_append(out, line, n + (line[n] == '\n'));
        line += n + (line[n] == '\n');
    }
}

static cdr_status read_layers(plan *p, const char *set, cdr_err *err)
{
    int n = p->s.info->n_layers;
    if (!set) return CDR_OK;
    if (strcmp(p->s.r.model.layers, "all") != 0)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--layers: counts the layers of the whole model. Leave model.layers (%s) away, or --layers", p->s.r.model.layers);
    p->layer = cdr_pool_alloc(p->s.pool, (size_t)n);
    if (!cdr__layer_set(set, n, p->layer))
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "--layers: \"%s\" is no layer set of %d layers: all, 3, 0-7, 0-3,8,last or every 4 from 3", set, n);
    return CDR_OK;
}

static cdr_status extra(const plan *p, const char *what, cdr_text *t, cdr_err *err)
{
    const cdr_session *s = &p->s;
    if (strcmp(what, "program") == 0) {
        for (int q = 0; q < s->bundle.n_progs; q++) if (q != CDR_PROG_PROBE) cdr_program_print(t, &s->bundle, &s->bundle.progs[q]);
    } else if (strcmp(what, "memory") == 0) cdr_account_memory(t, &s->bundle, CDR_PROG_STEP);
    else if (strcmp(what, "why") == 0) cdr_compile_why(t, &s->opts, &s->bundle);
    else if (strcmp(what, "comm") == 0) cdr_account_comm(t, &s->bundle);
    else if (strcmp(what, "timeline") == 0) cdr_account_timeline(t, &s->bundle, &s->machine, s->opts.compute);
    else CDR_FAIL_ID(err, CDR_EUSAGE, "usage.print", "--print %s: unknown. Use program, memory, why, comm or timeline", what);
    return CDR_OK;
}

static cdr_status run(plan *p, const cdr_plan_args *a, cdr_text *text, cdr_text *json, cdr_err *err)
{
    cdr_session *s = &p->s;
    CDR_TRY(cdr__session_recipe(s, a->recipe, &a->common, err));
    int64_t n = s->r.machine.devices > 0 ? s->r.machine.devices : s->r.parallel.shard > 0 ? s->r.parallel.shard * s->r.parallel.replicate : s->r.parallel.replicate;
    CDR_TRY(cdr_recipe_resolve_ranks(&s->r, (int)n, err));
    cdr__session_mesh(s, 0, (int)n);
    CDR_TRY(compile_all(p, a->rank, err));
    CDR_TRY(read_layers(p, a->layers, err));
    for (int i = 0; i < a->n_print; i++) {
        cdr_text lines = { 0 };
        cdr_status st = extra(p, a->print[i], &lines, err);
        if (lines.s && p->layer) keep_layers(p, lines.s, text);
        else if (lines.s) cdr_text_append(text, lines.s, lines.n);
        cdr_text_free(&lines);
        CDR_TRY(st);
    }
    to_text(p, text);
    cdr_jw w = { .t = json };
    to_json(p, &w);
    return a->require_fit && !p->fits ? cdr__does_not_fit(s, err) : CDR_OK;
}

cdr_status cdr_plan(const cdr_plan_args *a, cdr_result *r, cdr_err *err)
{
    plan p = { .fits = false };
    cdr_text text = { 0 }, json = { 0 };
    cdr_status st = run(&p, a, &text, &json, err);
    cdr__session_close(&p.s);
    if (st != CDR_OK) {
        cdr_text_free(&text);
        cdr_text_free(&json);
        return st;
    }
    r->text = text.s;
    r->json = json.s;
    return CDR_OK;
}
