/* fit.c: what to do where a plan does not fit: up to three changes of the recipe, each compiled with this session's model and options and
 * found to fit, cheapest predicted step first. Message 5 of spec/interface.md, 8.
 *
 * A change is a list of moves: layers recomputed where they were kept, frozen experts packed, the loss in smaller chunks, smaller
 * micro-batches (the same global batch), parameters and experts over more ranks of the same machine (a larger shard, a smaller replicate),
 * larger expert groups; then a shorter sequence, and more ranks. The search goes through the table of changes in order of what they mostly
 * cost and ends with the third that fits. */
#include "train/fit.h"
#include "plan/account.h"

typedef struct { cdr_compile_opts o; cdr_fix f; int64_t run_bytes, exec_bytes; } trial;
typedef bool move(const cdr_session *s, trial *t);      /* false: cannot be done (any more) */

static void set_key(cdr_fix *f, const char *key, const char *value)
{
    int k = 0;
    while (k < f->n_keys && strcmp(f->key[k], key) != 0) k++;
    CDR_CHECK(k < CDR_FIX_KEYS);
    f->n_keys = CDR_MAX(f->n_keys, k + 1);
    f->key[k] = key;
    snprintf(f->value[k], sizeof f->value[k], "%s", value);
}

static void set_number(cdr_fix *f, const char *key, int64_t x)
{
    char value[24];
    snprintf(value, sizeof value, "%lld", (long long)x);
    set_key(f, key, value);
}

/* Compiles rank 0, whose largest program counts; true: it fits. */
static bool fits(const cdr_session *s, trial *t)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    cdr_err err = { .status = CDR_OK };
    bool ok = cdr_compile(&t->o, &s->builder, pool, &b, &err) == CDR_OK;
    t->run_bytes = ok ? b.run_bytes[0] : INT64_MAX / 2;
    t->exec_bytes = ok ? b.exec_bytes[0] : 0;
    t->f.total_bytes = t->run_bytes + t->exec_bytes;
    ok = ok && t->f.total_bytes <= t->o.budget_bytes;
    if (ok) {
        cdr_account a = { 0 };
        cdr_account_time(&b, &t->o.mesh, &s->machine, t->o.compute, &a);
        t->f.step_s = a.time.step_s;
    }
    cdr_pool_free(pool);
    return ok;
}

/* ---- moves -------------------------------------------------------------------------------------------------------------- */

static bool recompute(const cdr_session *s, trial *t)
{
    (void)s;
    if (t->o.policy != CDR_POLICY_KEEP) return false;
    t->o.policy = CDR_POLICY_AUTO;
    set_key(&t->f, "memory.policy", "auto");
    return true;
}

/* Stacks of experts that are frozen and not packed. */
static bool pack(const cdr_session *s, trial *t)
{
    bool any = false;
    for (int32_t i = 0; i < s->bundle.n_params; i++) {
        const cdr_param *q = &s->bundle.params[i];
        bool stack = q->place == CDR_PLACE_EXPERT && q->train == CDR_FROZEN && q->global.n_dim == 3;
        any = any || (stack && s->bundle.shared[q->shard].t.dtype != CDR_MXFP4);
    }
    if (!any || t->o.experts_dtype == CDR_MXFP4) return false;
    t->o.experts_dtype = CDR_MXFP4;
    set_key(&t->f, "precision.experts", "mxfp4");
    return true;
}

static bool chunk_loss(const cdr_session *s, trial *t)
{
    (void)s;
    int64_t now = t->o.loss_chunk_tokens > 0 ? CDR_MIN(t->o.loss_chunk_tokens, t->o.T) : t->o.T;
    if (now / 2 < 16) return false;
    t->o.loss_chunk_tokens = now / 2;
    set_number(&t->f, "memory.loss_chunk_tokens", now / 2);
    return true;
}

static bool halve(trial *t)
{
    if (t->o.T % 16 != 0 || t->o.n_micro > 8192) return false;
    t->o.T /= 2;
    t->o.n_micro *= 2;
    return true;
}

/* As many more of them; a multiple of the sequence. */
static bool halve_micro(const cdr_session *s, trial *t)
{
    if (t->o.T % (2 * s->r.train.sequence_length) != 0 || !halve(t)) return false;
    set_number(&t->f, "train.micro_batch_tokens", t->o.T);
    return true;
}

static bool shorten(const cdr_session *s, trial *t)
{
    if (halve_micro(s, t)) return true;
    if (!halve(t)) return false;
    t->o.sequence = t->o.T;
    t->o.gen_S = CDR_MAX((int64_t)64, t->o.T);
    set_number(&t->f, "train.sequence_length", t->o.T);
    set_number(&t->f, "train.micro_batch_tokens", t->o.T);
    return true;
}

static bool widen(const cdr_session *s, trial *t)
{
    (void)s;
    cdr_mesh *m = &t->o.mesh;
    if (m->size[CDR_AXIS_REPLICATE] == 1) return false;
    m->size[CDR_AXIS_SHARD] *= m->size[CDR_AXIS_REPLICATE];
    m->size[CDR_AXIS_REPLICATE] = 1;
    set_number(&t->f, "parallel.replicate", 1);
    set_number(&t->f, "parallel.shard", m->size[CDR_AXIS_SHARD]);
    return true;
}

static bool spread_experts(const cdr_session *s, trial *t)
{
    int ep = 2 * cdr_mesh_expert(&t->o.mesh);
    if (s->info->moe.experts <= 0 || ep > t->o.mesh.size[CDR_AXIS_SHARD] || s->info->moe.experts % ep != 0) return false;
    t->o.mesh.expert = ep;
    set_number(&t->f, "parallel.expert", ep);
    return true;
}

static bool more_ranks(const cdr_session *s, trial *t)
{
    bool per_node = s->r.memory.device_limit <= 0 && s->machine.n_tiers > 0 && s->machine.tier[0].per_node;
    if (t->o.n_micro % 2 != 0) return false;
    t->o.n_micro /= 2;
    t->o.mesh.size[CDR_AXIS_SHARD] *= 2;
    t->o.mesh.world *= 2;
    if (per_node) t->o.budget_bytes /= 2;
    if (s->r.machine.threads <= 0) t->o.n_threads = CDR_MAX(1, t->o.n_threads / 2);
    set_number(&t->f, "machine.devices", t->o.mesh.world);
    set_number(&t->f, "parallel.shard", t->o.mesh.size[CDR_AXIS_SHARD]);
    return true;
}

/* ---- search ------------------------------------------------------------------------------------------------------------- */

/* first: done once each, and compiled; then: once more each time, until it fits. run: makes what lives all run smaller, or adds ranks. */
typedef struct { move *first[2], *then; bool run; } change;
static const change changes[] = {
    { { recompute, NULL }, NULL, false },
    { { pack, NULL }, halve_micro, true },
    { { NULL, NULL }, chunk_loss, false },
    { { NULL, NULL }, halve_micro, false },
    { { widen, NULL }, halve_micro, true },
    { { spread_experts, NULL }, halve_micro, true },
    { { widen, spread_experts }, halve_micro, true },
    { { NULL, NULL }, shorten, false },
    { { NULL, NULL }, more_ranks, true },
};

static bool try_change(const cdr_session *s, const change *c, trial *t)
{
    *t = (trial){ .o = s->opts, .run_bytes = s->bundle.run_bytes[0], .exec_bytes = s->bundle.exec_bytes[0] };
    memset(t->o.mesh.rank, 0, sizeof t->o.mesh.rank);
    t->o.mesh.world_rank = 0;
    if (!c->run && t->run_bytes > t->o.budget_bytes) return false;
    for (int i = 0; i < 2 && c->first[i]; i++) if (!c->first[i](s, t)) return false;
    if (c->first[0] && fits(s, t)) return true;
    int64_t run = t->run_bytes, exec = t->exec_bytes, parts = 1;
    while (c->then && c->then(s, t)) {
        parts *= 2;
        /* no program has fewer bytes than these: with half the tokens half of what comes and goes, on twice the ranks half of all */
        int64_t least = c->then == more_ranks ? (run + exec) / parts : c->then == chunk_loss ? run : run + exec / parts;
        if (least <= t->o.budget_bytes && fits(s, t)) return true;
    }
    return false;
}

int cdr__fixes(const cdr_session *s, cdr_fix fix[CDR_MAX_FIXES])
{
    int n = 0;
    memset(fix, 0, sizeof *fix * CDR_MAX_FIXES);
    if (s->opts.budget_bytes <= 0) return 0;
    for (int i = 0; i < CDR_COUNT(changes) && n < CDR_MAX_FIXES; i++) {
        trial t;
        if (!try_change(s, &changes[i], &t)) continue;
        int k = n++;
        for (; k > 0 && t.f.step_s > 0 && fix[k - 1].step_s > t.f.step_s; k--) fix[k] = fix[k - 1];
        fix[k] = t.f;
    }
    return n;
}

void cdr__fix_text(cdr_text *t, const cdr_fix *f)
{
    char bytes[32];
    for (int i = 0; i < f->n_keys; i++) cdr_text_printf(t, "%s%s=%s", i ? " " : "", f->key[i], f->value[i]);
    cdr_format_count(bytes, f->total_bytes);
    cdr_text_printf(t, " -> %s bytes", bytes);
    if (f->step_s > 0) cdr_text_printf(t, ", %.4g s a step", f->step_s);
}

cdr_status cdr__does_not_fit(const cdr_session *s, cdr_err *err)
{
    cdr_account a;
    cdr_fix fix[CDR_MAX_FIXES];
    char need[32], have[32], missing[32], who[120];
    cdr_text t = { 0 };
    cdr_account_bundle(&s->bundle, &a);
    cdr_format_count(need, a.total_bytes);
    cdr_format_count(have, s->opts.budget_bytes);
    cdr_format_count(missing, a.total_bytes - s->opts.budget_bytes);
    int n = cdr__fixes(s, fix);
    for (int i = 0; i < n; i++) {
        cdr_text_printf(&t, "%s", i ? "; " : "");
        cdr__fix_text(&t, &fix[i]);
    }
    if (s->n_ranks > 1) snprintf(who, sizeof who, "all %d ranks need %s bytes each, have %s", s->n_ranks, need, have);
    else snprintf(who, sizeof who, "the rank needs %s bytes, has %s", need, have);
    bool keep = s->opts.policy == CDR_POLICY_KEEP;
    cdr_status st = cdr_fail(err, CDR_EUSER, "plan.does-not-fit", "%s: %s: short by %s at %s %s%s. %s%s", s->bundle.tiers[0].name, who, missing, a.peak_prog,
                             a.peak_at, keep ? "" : ", with every layer recomputed",
                             n ? "Changes that fit, each compiled: " : "No smaller micro-batch and no more ranks fit; take a smaller model", t.s ? t.s : "");
    cdr_text_free(&t);
    return st;
}
