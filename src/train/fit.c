/* fit.c: what to do where a plan does not fit: up to three changes of the recipe, each compiled with this session's model
 * and options and found to fit. Tried in order of what they cost: layers recomputed, the loss in chunks, a smaller
 * micro-batch (the same global batch), a shorter sequence, more ranks. Message 5 of spec/interface.md, 8.
 */
#include "train/fit.h"
#include "plan/account.h"

/* Bytes of rank 0 under o, for the largest of its programs; 0: it does not compile, or does not fit. */
static int64_t fitting_bytes(const cdr_session *s, const cdr_compile_opts *o)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_bundle b;
    cdr_err err = { .status = CDR_OK };
    int64_t total = 0;
    if (cdr_compile(o, &s->builder, pool, &b, &err) == CDR_OK) total = b.run_bytes[0] + b.exec_bytes[0];
    cdr_pool_free(pool);
    return total <= o->budget_bytes ? total : 0;
}

static void set_key(cdr_fix *f, const char *key, const char *value)
{
    f->key[f->n_keys] = key;
    snprintf(f->value[f->n_keys++], sizeof f->value[0], "%s", value);
}

static void set_number(cdr_fix *f, const char *key, int64_t x)
{
    char value[24];
    snprintf(value, sizeof value, "%lld", (long long)x);
    set_key(f, key, value);
}

static bool try_policy(const cdr_session *s, cdr_fix *f)
{
    cdr_compile_opts o = s->opts;
    if (o.policy != CDR_POLICY_KEEP) return false;
    o.policy = CDR_POLICY_AUTO;
    set_key(f, "memory.policy", "auto");
    return (f->total_bytes = fitting_bytes(s, &o)) > 0;
}

static bool try_loss_chunk(const cdr_session *s, cdr_fix *f)
{
    cdr_compile_opts o = s->opts;
    int64_t now = o.loss_chunk_tokens > 0 ? CDR_MIN(o.loss_chunk_tokens, o.T) : o.T;
    for (int64_t chunk = now / 2; chunk >= CDR_MAX(now / 16, 16); chunk /= 2) {
        o.loss_chunk_tokens = chunk;
        if ((f->total_bytes = fitting_bytes(s, &o)) == 0) continue;
        set_number(f, "memory.loss_chunk_tokens", chunk);
        return true;
    }
    return false;
}

/* The largest micro-batch below the present one; with a shorter sequence where one sequence is too much. */
static bool try_micro_batch(const cdr_session *s, cdr_fix *f, bool shorter)
{
    int64_t sequence = s->r.train.sequence_length, T = s->opts.T;
    for (int64_t t = (shorter ? CDR_MIN(sequence, T) : T) / 2; t >= (shorter ? 8 : sequence); t /= 2) {
        if (T % t != 0 || t % 8 != 0 || (!shorter && t % sequence != 0)) return false;
        cdr_compile_opts o = s->opts;
        o.T = t;
        o.n_micro = (int)(o.n_micro * (T / t));
        if (shorter) o.gen_S = CDR_MAX((int64_t)64, t);
        if ((f->total_bytes = fitting_bytes(s, &o)) == 0) continue;
        if (shorter) set_number(f, "train.sequence_length", t);
        set_number(f, "train.micro_batch_tokens", t);
        return true;
    }
    return false;
}

static bool try_ranks(const cdr_session *s, cdr_fix *f)
{
    bool per_node = s->r.memory.device_limit <= 0 && s->machine.n_tiers > 0 && s->machine.tier[0].per_node;
    for (int by = 2; by <= s->opts.n_micro; by *= 2) {
        cdr_compile_opts o = s->opts;
        if (s->bundle.run_bytes[0] / by > o.budget_bytes / (per_node ? by : 1)) continue;      /* fewer bytes than a by-th of it no rank has */
        int width = o.mesh.size[CDR_AXIS_SHARD] * by, world = o.mesh.world * by;
        o.n_micro /= by;
        o.mesh = (cdr_mesh){ .size = { o.mesh.size[CDR_AXIS_REPLICATE], width, 1 }, .world = world };
        if (per_node) o.budget_bytes /= by;
        if (s->r.machine.threads <= 0) o.n_threads = CDR_MAX(1, o.n_threads / by);
        if ((f->total_bytes = fitting_bytes(s, &o)) == 0) continue;
        set_number(f, "machine.devices", world);
        set_number(f, "parallel.shard", width);
        return true;
    }
    return false;
}

int cdr__fixes(const cdr_session *s, cdr_fix fix[CDR_MAX_FIXES])
{
    int n = 0;
    memset(fix, 0, sizeof *fix * CDR_MAX_FIXES);
    if (s->opts.budget_bytes <= 0) return 0;
    if (s->bundle.run_bytes[0] > s->opts.budget_bytes) return try_ranks(s, &fix[0]) ? 1 : 0;      /* nothing else makes what lives all run smaller */
    if (try_policy(s, &fix[n])) n++;
    else fix[n] = (cdr_fix){ 0 };
    if (try_loss_chunk(s, &fix[n])) n++;
    if (n < CDR_MAX_FIXES && (try_micro_batch(s, &fix[n], false) || try_micro_batch(s, &fix[n], true))) n++;
    if (n < CDR_MAX_FIXES && try_ranks(s, &fix[n])) n++;
    return n;
}

void cdr__fix_text(cdr_text *t, const cdr_fix *f)
{
    char bytes[32];
    for (int i = 0; i < f->n_keys; i++) cdr_text_printf(t, "%s%s=%s", i ? " " : "", f->key[i], f->value[i]);
    cdr_format_count(bytes, f->total_bytes);
    cdr_text_printf(t, " -> %s bytes", bytes);
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
