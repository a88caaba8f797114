/* plan_text.c: a plan as text and as JSON (spec/interface.md, 2.4 and 7.3). Exact figures are bytes; GB and MB are decimal. */
#include "train/overhead.h"
#include "command/plan_cmd.h"
#include <stdlib.h>

enum { LARGE = 1000000000 };          /* from 10 of these on, bytes are printed in GB */

typedef struct { double scale; const char *name; } unit;

static unit unit_of(int64_t bytes) { return bytes >= 10LL * LARGE ? (unit){ 1e-9, "GB" } : (unit){ 1e-6, "MB" }; }

static int64_t reserve_of(const plan *p)
{
    const cdr_machine *m = &p->s.machine;
    return p->s.r.memory.device_limit > 0 || m->n_tiers == 0 ? 0 : m->tier[0].reserve / (m->tier[0].per_node ? CDR_MAX(p->s.n_ranks, 1) : 1);
}

/* Trained weights are adapters where nothing else is trained. */
static const char *class_name(const plan *p, int c) { return c == CDR_C_WEIGHT && p->s.r.lora.on ? "adapters" : cdr_class_name[c]; }

static void bytes_text(const plan *p, const plan_class *k, cdr_text *t)
{
    const cdr_account *a = &k->a;
    unit u = unit_of(a->total_bytes);
    char total[32], limit[32], off[32];
    cdr_text_printf(t, "per device, %s:", u.name);
    for (int c = 0, first = 1; c < CDR_N_CLASSES; c++)
        if (a->by_class[c] > 0) {
            cdr_text_printf(t, "%s %s %.2f", first ? "" : " |", class_name(p, c), (double)a->by_class[c] * u.scale);
            first = 0;
        }
    if (reserve_of(p) > 0) cdr_text_printf(t, "; beside it reserve %.2f", (double)reserve_of(p) * u.scale);
    if (p->n_classes > 1) cdr_text_printf(t, " (%d rank%s)", k->ranks, k->ranks == 1 ? "" : "s");
    cdr_format_count(total, a->total_bytes);
    cdr_format_count(limit, p->limit);
    cdr_format_count(off, llabs(p->limit - a->total_bytes));
    cdr_text_printf(t, "\n          %s bytes", total);
    if (p->limit > 0) cdr_text_printf(t, a->total_bytes <= p->limit ? " of %s: fits, %s free" : " of %s: does not fit, short by %s", limit, off);
    cdr_text_printf(t, "; peak at %s %s; placement %.4f x its lower bound\n", a->peak_prog, a->peak_at,
                    (double)a->total_bytes / (double)CDR_MAX(a->lower_bound_bytes, 1));
}

/* What a process takes beside the slab; of a device, the process is on the host. */
static void beside_text(const plan *p, const cdr_account *a, cdr_text *t)
{
    cdr__overhead_item item[CDR__OVERHEAD];
    const int n = cdr__overhead(&p->s, item);
    char total[32];
    if (a->mapped_bytes > 0) {
        const unit u = unit_of(a->mapped_bytes);
        cdr_text_printf(t, "mapped    %.2f %s of packed experts, read where their files have them: pages that the system may drop and read again; no part of the limit\n",
                        (double)a->mapped_bytes * u.scale, u.name);
    }
    cdr_text_printf(t, "overhead  %.1f MB of a process beside that:", (double)cdr__overhead_bytes(&p->s) * 1e-6);
    for (int i = 0; i < n; i++) cdr_text_printf(t, "%s %s %.1f (%s)", i ? "," : "", item[i].name, (double)item[i].bytes * 1e-6, item[i].what);
    if (p->kind == CDR_DEV_CPU) {
        cdr_format_count(total, a->total_bytes + a->mapped_bytes + cdr__overhead_bytes(&p->s));
        cdr_text_printf(t, "; %s bytes resident at most", total);
    }
    cdr_text_printf(t, "\n");
}

static void traffic_text(const plan *p, const cdr_account *a, cdr_text *t)
{
    int node = cdr_account_node_ranks(&p->s.machine, p->s.mesh.world);
    if (a->n_comms == 0) {
        cdr_text_printf(t, "traffic   none\n");
        return;
    }
    unit u = unit_of(a->wire_bytes);
    cdr_text_printf(t, "traffic   %.2f %s a step and rank", (double)a->wire_bytes * u.scale, u.name);
    if (node < p->s.mesh.world) cdr_text_printf(t, "; %d ranks a node", node);
    cdr_text_printf(t, "\n");
    for (int i = 0; i < a->n_comms; i++) {
        const cdr_account_flow *c = &a->comm[i];
        u = unit_of(c->bytes);
        cdr_text_printf(t, "          %-9s %-18s %10.2f %s on %s (%lld calls)\n", c->comm, c->kind, (double)c->bytes * u.scale, u.name, c->link, (long long)c->calls);
    }
}

/* Shares of the nominal peak: of FLOPs without recompute, of FLOPs executed. 0: the machine file has no nominal peak. */
static void shares(const plan *p, const cdr_account *a, double *mfu, double *hfu)
{
    const cdr_machine *m = &p->s.machine;
    double peak = p->s.opts.compute == CDR_BF16 ? m->bf16.nominal : m->f32.nominal, s = a->time.step_s;
    double useful = cdr__flops_per_token(&p->s) * (double)p->s.r.train.global_batch_tokens / p->s.n_ranks;
    *mfu = peak > 0 && s > 0 ? useful / s / peak : 0;
    *hfu = peak > 0 && s > 0 ? a->flop / s / peak : 0;
}

static void time_text(const plan *p, const cdr_account *a, cdr_text *t)
{
    const cdr_session *s = &p->s;
    double mfu, hfu;
    if (a->time.step_s <= 0) {
        cdr_text_printf(t, "time      unknown: machine %s has no GEMM rate for this precision (cadre bench --write-machine FILE)\n", s->machine.name);
        return;
    }
    shares(p, a, &mfu, &hfu);
    cdr_text_printf(t, "time      %.4g s a step, %.4g tokens/s", a->time.step_s, (double)s->r.train.global_batch_tokens / a->time.step_s);
    if (mfu > 0) cdr_text_printf(t, ", HFU %.1f %%, MFU %.1f %% of the nominal peak", 100 * hfu, 100 * mfu);
    cdr_text_printf(t, " by roofline (%s figures of machine %s): compute %.4g s, links %.4g s (%s), %.4g s of them not hidden\n",
                    cdr_basis_name[a->time.basis], s->machine.name, a->time.compute_s, a->time.comm_s,
                    a->time.no_link ? "no rate: left out" : cdr_basis_name[a->time.link_basis], CDR_MAX(0.0, a->time.step_s - a->time.compute_s));
}

void cdr__plan_text(const plan *p, cdr_text *t)
{
    const cdr_session *s = &p->s;
    const cdr_account *a = &p->classes[p->worst].a;
    char n[32], active[32], trained[32];
    cdr_text_printf(t, "model     %s\n", cdr__summary(s));
    cdr_format_count(n, s->info->n_params);
    cdr_format_count(active, s->info->n_active);
    cdr_format_count(trained, cdr__trained_params(s));
    if (s->info->n_params >= 1000000) cdr_text_printf(t, "          %s parameters, %s active, %s trained\n", n, active, trained);     /* the line above rounds */
    cdr_text_printf(t, "mesh      %s; %lld micro-batch%s of %lld tokens a rank; ", cdr__mesh_text(s), (long long)s->r.ranks.n_micro,
                    s->r.ranks.n_micro == 1 ? "" : "es", (long long)s->opts.T);
    if (s->n_ranks == 1) cdr_text_printf(t, "1 rank compiled in %.2f s\n", s->compile_s);
    else cdr_text_printf(t, "%d ranks in %d class%s compiled in %.2f s\n", s->n_ranks, p->n_classes, p->n_classes == 1 ? "" : "es", s->compile_s);
    for (int k = 0; k < p->n_classes; k++) if (k == p->worst || p->n_classes <= 4) bytes_text(p, &p->classes[k], t);
    if (p->stand_ins.stand_in > 0)
        cdr_text_printf(t, "          workspace of %lld of %lld calls is that of the CPU kernels: this device has none yet\n", (long long)p->stand_ins.stand_in,
                        (long long)p->stand_ins.calls);
    for (int i = 0; i < p->n_fixes; i++) {
        cdr_text_printf(t, i ? "          " : "fits with ");
        cdr__fix_text(t, &p->fix[i]);
        cdr_text_append(t, "\n", 1);
    }
    beside_text(p, a, t);
    traffic_text(p, a, t);
    time_text(p, a, t);
    cdr_text_printf(t, "verified  ordering, overlap and in-place of every program; same collective order on all %d ranks; program hash %016llx\n", s->n_ranks,
                    (unsigned long long)s->bundle.hash);
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------- */

static void class_json(const plan *p, const plan_class *k, cdr_jw *w)
{
    const cdr_account *a = &k->a;
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_int(w, "ranks", k->ranks);
    cdr_jw_begin(w, "tiers", '{');
    cdr_jw_begin(w, p->s.bundle.tiers[0].name, '{');
    cdr_jw_int(w, "limit_bytes", p->limit);
    cdr_jw_int(w, "reserve_bytes", reserve_of(p));
    cdr_jw_int(w, "total_bytes", a->total_bytes);
    cdr_jw_int(w, "mapped_bytes", a->mapped_bytes);
    cdr_jw_int(w, "overhead_bytes", cdr__overhead_bytes(&p->s));
    cdr_jw_int(w, "run_bytes", a->run_bytes);
    cdr_jw_int(w, "exec_bytes", a->exec_bytes);
    cdr_jw_int(w, "lower_bound_bytes", a->lower_bound_bytes);
    cdr_jw_str(w, "peak_at", a->peak_at);
    cdr_jw_begin(w, "by_class", '{');
    for (int c = 0; c < CDR_N_CLASSES; c++) cdr_jw_int(w, class_name(p, c), a->by_class[c]);
    cdr_jw_int(w, "unused", a->unused_bytes);
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "overhead", '{');
    cdr__overhead_item item[CDR__OVERHEAD];
    for (int i = 0, n = cdr__overhead(&p->s, item); i < n; i++) cdr_jw_int(w, item[i].name, item[i].bytes);
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
    cdr_jw_end(w, '}');
}

static void fixes_json(const plan *p, cdr_jw *w)
{
    cdr_jw_begin(w, "fixes", '[');
    for (int i = 0; i < p->n_fixes; i++) {
        const cdr_fix *f = &p->fix[i];
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_begin(w, "set", '{');
        for (int k = 0; k < f->n_keys; k++) cdr_jw_str(w, f->key[k], f->value[k]);
        cdr_jw_end(w, '}');
        cdr_jw_int(w, "total_bytes", f->total_bytes);
        if (f->step_s > 0) cdr_jw_real(w, "step_s", f->step_s);
        else cdr_jw_null(w, "step_s");
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
}

static void predicted_json(const plan *p, const cdr_account *a, cdr_jw *w)
{
    double mfu, hfu, s = a->time.step_s;
    shares(p, a, &mfu, &hfu);
    const struct { const char *key; double x; } figure[] = {
        { "step_s", s }, { "tokens_per_s", s > 0 ? (double)p->s.r.train.global_batch_tokens / s : 0 }, { "mfu", mfu }, { "hfu", hfu },
    };
    cdr_jw_begin(w, "predicted", '{');
    for (int i = 0; i < CDR_COUNT(figure); i++) {
        if (figure[i].x > 0) cdr_jw_real(w, figure[i].key, figure[i].x);
        else cdr_jw_null(w, figure[i].key);
    }
    cdr_jw_real(w, "compute_s", a->time.compute_s);
    cdr_jw_real(w, "comm_s", a->time.comm_s);
    cdr_jw_real(w, "flop", a->flop);
    cdr_jw_bool(w, "calibrated", a->time.basis == CDR_BASIS_MEASURED);
    cdr_jw_end(w, '}');
}

void cdr__plan_json(const plan *p, cdr_jw *w)
{
    const cdr_session *s = &p->s;
    const cdr_account *a = &p->classes[p->worst].a;
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_bool(w, "fits", p->fits);
    cdr_jw_int(w, "short_bytes", p->fits ? 0 : a->total_bytes - p->limit);
    cdr_jw_real(w, "compile_s", s->compile_s);
    cdr_jw_u64hex(w, "program_hash", s->bundle.hash);
    cdr_jw_begin(w, "mesh", '{');
    cdr__mesh_json(&s->mesh, w);
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "parameters", '{');
    cdr_jw_int(w, "text", s->info->n_params);
    cdr_jw_int(w, "total", s->info->n_params);
    cdr_jw_int(w, "active", s->info->n_active);
    cdr_jw_int(w, "trained", cdr__trained_params(s));
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "rank_classes", '[');
    for (int k = 0; k < p->n_classes; k++) class_json(p, &p->classes[k], w);
    cdr_jw_end(w, ']');
    cdr_jw_begin(w, "kernels", '{');
    cdr_jw_int(w, "calls", p->stand_ins.calls);
    cdr_jw_int(w, "stand_in", p->stand_ins.stand_in);
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "comm", '[');
    for (int i = 0; i < a->n_comms; i++) {
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "name", a->comm[i].comm);
        cdr_jw_str(w, "kind", a->comm[i].kind);
        cdr_jw_str(w, "link", a->comm[i].link);
        cdr_jw_int(w, "bytes_per_step", a->comm[i].bytes);
        cdr_jw_int(w, "calls", a->comm[i].calls);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
    predicted_json(p, a, w);
    fixes_json(p, w);
    cdr_jw_end(w, '}');
}
