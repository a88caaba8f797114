/* plan_cmd.c: the real compile of every rank class, without a device, and what it costs. What is printed: plan_text.c. */
#include "command/plan_cmd.h"
#include <stdlib.h>

/* A kind without a backend has no kernels of its own; its programs are BF16, as its machines are. */
static cdr_status no_backend(plan *p, cdr_err *err)
{
    static const char *const key[] = { "precision.compute", "precision.params" };
    for (int i = 0; i < 2; i++)
        if ((i ? p->s.r.precision.params : p->s.r.precision.compute) == CDR_PREC_AUTO)
            CDR_TRY(cdr_recipe_derive(&p->s.r, key[i], i == 0 || p->s.r.precision.compute == CDR_PREC_BF16 ? "bf16" : "f32", p->s.machine.name, err));
    return CDR_OK;
}

/* The machine decides kernels. A CPU machine file has this machine's instruction sets; of no other plan are they a part. */
static cdr_status target(plan *p, cdr_err *err)
{
    const cdr_machine *m = &p->s.machine;
    bool cuda = p->s.r.machine.device == CDR_USE_CUDA || (p->s.r.machine.device == CDR_USE_AUTO && strcmp(m->kind, "cuda") == 0);
    bool cpu = !cuda && (p->s.r.machine.device == CDR_USE_CPU || strcmp(m->kind, "cpu") == 0);
    p->kind = cuda ? CDR_DEV_CUDA : cpu ? CDR_DEV_CPU : CDR_N_DEVICES;
    p->isa = cuda ? CDR_ISA_SM80 | CDR_ISA_SM90 : cpu ? cdr_cpu_isa(err) : 0;
    if (err->status != CDR_OK) return err->status;
    p->n_threads = cpu || p->s.r.machine.threads > 0 ? cdr__session_threads(&p->s, (int)m->cores, strcmp(m->name, "auto") == 0) : 1;
    return cuda || cpu ? CDR_OK : no_backend(p, err);
}

static cdr_status compile_rank(plan *p, int rank, bool placed, cdr_bundle *b, cdr_err *err)
{
    cdr_session *s = &p->s;
    cdr__session_mesh(s, rank, s->n_ranks);
    CDR_TRY(cdr__session_opts(s, p->kind, p->isa, p->n_threads, err));
    s->opts.plan_kernels = p->kind != CDR_DEV_CPU;
    s->opts.unplaced = !placed && s->opts.policy != CDR_POLICY_AUTO;
    cdr_status st = cdr_compile(&s->opts, &s->builder, s->pool, b, err);
    s->opts.unplaced = false;
    if (s->compile_bytes == 0) s->compile_bytes = (int64_t)cdr_pool_bytes(s->pool);       /* a rank compiles once */
    return st;
}

/* The first and the last rank stand for all where they are of one class (plan/classes.c); else every rank is compiled. */
static cdr_status compile_all(plan *p, int rank, cdr_err *err)
{
    cdr_session *s = &p->s;
    int n = s->n_ranks;
    if (rank < 0 || rank >= n) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.rank", "--rank %d: there are ranks 0 to %d", rank, n - 1);
    CDR_TRY(target(p, err));
    const cdr_bundle **of = cdr_pool_alloc(s->pool, sizeof *of * (size_t)n);       /* by rank: the bundle of its class */
    p->classes = cdr_pool_alloc(s->pool, sizeof *p->classes * (size_t)n);
    int64_t t0 = cdr_now_ns();
    cdr_bundle *first = cdr_pool_alloc(s->pool, sizeof *first), *last = cdr_pool_alloc(s->pool, sizeof *last), *mine = first;
    CDR_TRY(compile_rank(p, 0, true, first, err));
    if (n > 1) CDR_TRY(compile_rank(p, n - 1, false, last, err));
    p->n_classes = 1;
    p->classes[0] = (plan_class){ .bundle = first, .ranks = n };
    for (int r = 0; r < n; r++) of[r] = first;
    if (n > 1 && cdr_account_class(first, last)) {
        p->classes[0].ranks = 1;
        for (int r = 1; r < n; r++) {
            cdr_bundle *b = cdr_pool_alloc(s->pool, sizeof *b);
            CDR_TRY(compile_rank(p, r, true, b, err));
            int k = 0;
            while (k < p->n_classes && cdr_account_class(p->classes[k].bundle, b)) k++;
            if (k == p->n_classes) p->classes[p->n_classes++] = (plan_class){ .bundle = b };
            p->classes[k].ranks++;
            of[r] = b;
        }
    }
    CDR_TRY(cdr_verify_ranks(of, n, err));
    s->compile_s = (double)(cdr_now_ns() - t0) * 1e-9;
    if (rank > 0 && of[rank] == first) {
        mine = cdr_pool_alloc(s->pool, sizeof *mine);
        CDR_TRY(compile_rank(p, rank, true, mine, err));
    }
    s->bundle = rank > 0 && of[rank] != first ? *of[rank] : *mine;
    cdr__session_mesh(s, rank, n);
    s->opts.mesh = s->mesh;
    return CDR_OK;
}

static void reckon(plan *p)
{
    cdr_session *s = &p->s;
    for (int k = 0; k < p->n_classes; k++) cdr_account_bundle(p->classes[k].bundle, &p->classes[k].a);
    p->limit = s->opts.budget_bytes;
    p->fits = true;
    for (int k = 0; k < p->n_classes; k++) {
        p->fits = p->fits && (p->limit <= 0 || p->classes[k].a.total_bytes <= p->limit);
        if (p->classes[k].a.total_bytes > p->classes[p->worst].a.total_bytes) p->worst = k;
    }
    cdr_account *a = &p->classes[p->worst].a;
    cdr_account_traffic(p->classes[p->worst].bundle, &s->mesh, &s->machine, a);
    cdr_account_time(p->classes[p->worst].bundle, &s->mesh, &s->machine, s->opts.compute, a);
    p->stand_ins = cdr_compile_stand_ins(p->classes[p->worst].bundle);
    if (!p->fits) p->n_fixes = cdr__fixes(s, p->fix);
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
    else if (strcmp(what, "timeline") == 0) cdr_account_timeline(t, &s->bundle, &s->mesh, &s->machine, s->opts.compute);
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
    reckon(p);
    CDR_TRY(read_layers(p, a->layers, err));
    for (int i = 0; i < a->n_print; i++) {
        cdr_text lines = { 0 };
        cdr_status st = extra(p, a->print[i], &lines, err);
        if (lines.s && p->layer) keep_layers(p, lines.s, text);
        else if (lines.s) cdr_text_append(text, lines.s, lines.n);
        cdr_text_free(&lines);
        CDR_TRY(st);
    }
    cdr__plan_text(p, text);
    cdr_jw w = { .t = json };
    cdr__plan_json(p, &w);
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
