/* merge_cmd.c: merge: W + scale B A as a directory of weights (spec/interface.md, 2.2; spec/model.md, 4.2).
 *
 * First every delta is added and rounded as it will be stored, and what survives is measured; below the threshold nothing is written. Then the
 * directory is written from the base's: tensors without an adapter are copied byte for byte. Packed experts are packed again with the scales
 * that they were packed with (--experts stored), or expanded to BF16 (--experts bf16); FP8 blocks keep their scales where they can. Rows are made when the writer
 * asks: no model in memory.
 */
#include "train/adapter.h"
#include "command/export_hf.h"
#include <math.h>
#include <stdlib.h>

typedef struct { int64_t tensors; cdr_lora_energy all; double worst; char where[160]; } tally;      /* of one stored format */
typedef struct {
    cdr_pool *pool;
    cdr_model *m; cdr_lora_set set;
    cdr_hf *hf; cdr_weights *w;
    const cdr_lora_pair **of;      /* by parameter; NULL: untouched */
    bool *touched;
    bool bf16;                     /* experts are expanded */
    tally plain, fp8, packed;
} work;

static bool is_packed(const work *w, int64_t i_param) { return cdr_weights_dtype(w->w, i_param) == CDR_MXFP4 && !w->bf16; }

/* Written as FP8: --experts bf16 expands routed experts only. */
static bool is_fp8(const work *w, const cdr_lora_pair *p) { return cdr_weights_fp8(w->w, p->i_param) && !(w->bf16 && p->experts > 0); }

/* ---- what survives ---------------------------------------------------------------------------------------------------------------------- */

static void count(tally *t, const cdr_model *m, const cdr_lora_pair *p, int64_t e, const cdr_lora_energy *x)
{
    double s = cdr_lora_survival(x);
    t->tensors++;
    t->all.delta += x->delta;
    t->all.kept += x->kept;
    t->all.lost += x->lost;
    if (t->where[0] && s >= t->worst) return;
    const char *name = cdr_model_param(m, p->i_param), *mark = strstr(name, "{expert}");
    t->worst = s;
    if (mark) (void)snprintf(t->where, sizeof t->where, "%.*s%lld%s", (int)(mark - name), name, (long long)e, mark + strlen("{expert}"));
    else (void)snprintf(t->where, sizeof t->where, "%s", name);
}

/* dtype: what the merged values are rounded to; fp8: to FP8 instead, where blocks had these scales. */
static void add_rounded(int dtype, const float *fp8, const float *w, const float *merged, int64_t N, int64_t K, cdr_lora_energy *x)
{
    const int64_t n = N * K;
    char *raw = cdr_alloc((size_t)cdr_dtype_bytes(dtype, n) + 1);
    float *q = cdr_alloc(sizeof *q * (size_t)n);
    if (fp8) {
        memcpy(q, merged, sizeof *q * (size_t)n);
        cdr_weights_round_fp8(N, K, fp8, q);
    } else {
        cdr_from_f32(dtype, merged, raw, n);
        cdr_to_f32(dtype, raw, q, n);
    }
    for (int64_t i = 0; i < n; i++) {
        double delta = (double)merged[i] - (double)w[i], lost = (double)q[i] - (double)merged[i];
        x->delta += delta * delta;
        x->kept += ((double)q[i] - (double)w[i]) * delta;
        x->lost += lost * lost;
    }
    cdr_free(raw);
    cdr_free(q);
}

static int stored_as(const work *w, int64_t i_param)
{
    int dtype = cdr_weights_dtype(w->w, i_param);
    return dtype == CDR_MXFP4 ? CDR_BF16 : dtype;
}

/* Matrix e of pair p: its delta as it will be stored. */
static cdr_status measure(work *w, const cdr_lora_pair *p, int64_t e, float *base, float *merged, cdr_err *err)
{
    int64_t n = p->N * p->K;
    cdr_lora_energy x = { 0 };
    bool packed = is_packed(w, p->i_param), fp8 = is_fp8(w, p);
    CDR_TRY(cdr_weights_read(w->w, p->i_param, e * p->N, p->N, CDR_F32, base, err));
    memcpy(merged, base, sizeof *base * (size_t)n);
    cdr_lora_add(p, e * p->N, p->N, merged);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(merged[i])) CDR_FAIL_ID(err, CDR_EDATA, "merge.nonfinite", "%s: with its delta an element overflows; the adapter is broken", cdr_model_param(w->m,
            p->i_param));
    if (packed) {
        const uint8_t *codes, *scales;
        uint8_t *again = cdr_alloc((size_t)n / 2 + 1);
        cdr_status st = cdr_weights_packed(w->w, p->i_param, e, &codes, &scales, err);
        if (st == CDR_OK) cdr_lora_repack(base, merged, scales, n, again, &x);
        cdr_free(again);
        CDR_TRY(st);
    } else {
        float *had = fp8 ? cdr_alloc(sizeof *had * (size_t)cdr_weights_fp8_blocks(p->N, p->K)) : NULL;
        cdr_status st = fp8 ? cdr_weights_fp8_scales(w->w, p->i_param, e, had, err) : CDR_OK;
        if (st == CDR_OK) add_rounded(stored_as(w, p->i_param), had, base, merged, p->N, p->K, &x);
        cdr_free(had);
        CDR_TRY(st);
    }
    count(packed ? &w->packed : fp8 ? &w->fp8 : &w->plain, w->m, p, e, &x);
    return CDR_OK;
}

static cdr_status measure_all(work *w, cdr_err *err)
{
    for (int i = 0; i < w->set.n; i++) {
        const cdr_lora_pair *p = &w->set.pair[i];
        float *base = cdr_alloc(sizeof *base * (size_t)(p->N * p->K) * 2);
        cdr_status st = CDR_OK;
        for (int64_t e = 0; e < CDR_MAX(p->experts, (int64_t)1) && st == CDR_OK; e++) st = measure(w, p, e, base, base + p->N * p->K, err);
        cdr_free(base);
        CDR_TRY(st);
    }
    return CDR_OK;
}

/* ---- the rows that are written ------------------------------------------------------------------------------------------------------------ */

/* Packed rows lie as CDR_MXFP4 has them: 16 code bytes and their scale's byte a block. */
static cdr_status packed_rows(work *w, const cdr_lora_pair *p, int64_t first, int64_t n, const float *base, const float *merged, uint8_t *dst, cdr_err *err)
{
    int64_t blocks = p->K / 32, current = -1;
    const uint8_t *codes, *scales = NULL;
    uint8_t *code = cdr_alloc((size_t)p->K / 2);
    cdr_lora_energy x = { 0 };
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < n && st == CDR_OK; i++) {
        int64_t e = (first + i) / p->N, row = (first + i) % p->N;
        if (e != current) st = cdr_weights_packed(w->w, p->i_param, e, &codes, &scales, err);         /* which looks at all of its scales */
        if (st != CDR_OK) break;
        current = e;
        cdr_lora_repack(base + i * p->K, merged + i * p->K, scales + row * blocks, p->K, code, &x);
        for (int64_t b = 0; b < blocks; b++, dst += 17) {
            memcpy(dst, code + b * 16, 16);
            dst[16] = cdr_lora_repack_scale(scales[row * blocks + b]);
        }
    }
    cdr_free(code);
    return st;
}

static cdr_status rows(void *ctx, int64_t i_param, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    work *w = ctx;
    const cdr_lora_pair *p = w->of[i_param];
    if (!p) return cdr_weights_read(w->w, i_param, first, n, dtype, dst, err);
    float *base = cdr_alloc(sizeof *base * (size_t)(n * p->K) * 2), *merged = base + n * p->K;
    cdr_status st = cdr_weights_read(w->w, i_param, first, n, CDR_F32, base, err);
    if (st == CDR_OK) {
        memcpy(merged, base, sizeof *base * (size_t)(n * p->K));
        cdr_lora_add(p, first, n, merged);
        if (dtype != CDR_MXFP4) cdr_from_f32(dtype, merged, dst, n * p->K);
        else if (cdr_weights_dtype(w->w, i_param) == CDR_MXFP4) st = packed_rows(w, p, first, n, base, merged, dst, err);
        else cdr_from_f32(dtype, merged, dst, n * p->K);
    }
    cdr_free(base);
    return st;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------------------ */

static void tally_text(cdr_text *t, const work *w, const char *what, const tally *x)
{
    char n[32];
    (void)w;
    if (x->tensors == 0) return;
    cdr_format_count(n, x->tensors);
    cdr_text_printf(t, "%s%s %s: survival %.3f (worst %s %.3f)", t->n ? "; " : "", n, what, cdr_lora_survival(&x->all), x->where, x->worst);
}

static void tally_json(cdr_jw *w, const char *key, const tally *x)
{
    cdr_jw_begin(w, key, '{');
    cdr_jw_int(w, "tensors", x->tensors);
    cdr_jw_real(w, "survival", x->tensors ? cdr_lora_survival(&x->all) : 1);
    cdr_jw_real(w, "worst", x->tensors ? x->worst : 1);
    cdr_jw_str(w, "worst_tensor", x->where);
    cdr_jw_real(w, "error", x->all.delta > 0 ? x->all.lost / x->all.delta : 0);
    cdr_jw_end(w, '}');
}

static cdr_status open_all(work *w, const cdr_merge_args *a, cdr_err *err)
{
    CDR_TRY(cdr__model_at(a->base, w->pool, &w->m, err));
    if (!cdr_model_dir(w->m)) CDR_FAIL_ID(err, CDR_EDATA, "merge.no-weights", "%s: is no directory of weights. A run's: cadre export %s --format hf --out DIR",
                                          a->base, a->base);
    CDR_TRY(cdr_lora_read(a->adapter, w->m, w->pool, &w->set, err));
    CDR_TRY(cdr__base_agrees(w->m, &w->set, "merge", err));
    CDR_TRY(cdr_hf_open(cdr_model_dir(w->m), &w->hf, err));
    CDR_TRY(cdr_weights_open(w->m, w->hf, &w->w, err));
    size_t n = (size_t)cdr_model_params(w->m) + 1;
    w->of = cdr_pool_alloc(w->pool, sizeof *w->of * n);
    w->touched = cdr_pool_alloc(w->pool, n);
    for (int i = 0; i < w->set.n; i++) {
        w->of[w->set.pair[i].i_param] = &w->set.pair[i];
        w->touched[w->set.pair[i].i_param] = true;
        if (cdr_weights_dtype(w->w, w->set.pair[i].i_param) < 0)
            CDR_FAIL_ID(err, CDR_EDATA, "merge.absent", "%s: has no %s, which the adapter is for", a->base, cdr_model_param(w->m, w->set.pair[i].i_param));
    }
    return CDR_OK;
}

static cdr_status write_all(work *w, const cdr_merge_args *a, cdr_weights_out_stat *stat, cdr_err *err)
{
    cdr_weights_out o = { .model = w->m, .source = w->hf, .touched = w->touched, .rows = rows, .ctx = w, .experts = w->bf16 ? CDR_BF16 : -1,
                          .pool = w->pool };
    if (cdr_exists(a->out)) CDR_FAIL_ID(err, CDR_EUSER, "merge.exists", "%s: exists already. Take another --out", a->out);
    return cdr_weights_write(a->out, &o, stat, err);
}

static cdr_status merge_in(work *w, const cdr_merge_args *a, cdr_result *r, cdr_err *err)
{
    cdr_weights_out_stat stat = { 0 };
    if (a->experts && strcmp(a->experts, "stored") != 0 && strcmp(a->experts, "bf16") != 0)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre merge: --experts %s: is none of stored, bf16", a->experts);
    w->bf16 = a->experts && strcmp(a->experts, "bf16") == 0;
    CDR_TRY(open_all(w, a, err));
    CDR_TRY(measure_all(w, err));
    const tally *of[] = { &w->plain, &w->fp8, &w->packed }, *last = of[0];
    for (int i = 0; i < CDR_COUNT(of); i++)
        if (of[i]->tensors && (!last->tensors || of[i]->worst < last->worst)) last = of[i];
    double worst = last->tensors ? last->worst : 1;
    bool low = worst < a->min_survival, write = !low || a->force;
    if (write) CDR_TRY(write_all(w, a, &stat, err));
    cdr_text text = { 0 }, json = { 0 };
    cdr_jw j = { .t = &json };
    tally_text(&text, w, "BF16 tensors", &w->plain);
    tally_text(&text, w, "FP8", &w->fp8);
    tally_text(&text, w, "packed", &w->packed);
    if (low) cdr_text_printf(&text, ", below %.2f%s", a->min_survival, write ? "" : ": nothing written");
    cdr_text_printf(&text, "\n");
    if (write) cdr_text_printf(&text, "wrote     %s: %lld tensors in %lld shard%s, %lld of them copied byte for byte\n", a->out, (long long)stat.tensors,
                               (long long)stat.shards, stat.shards == 1 ? "" : "s", (long long)stat.copied);
    if (write) cdr__left_text(&stat, cdr_hf_dir(w->hf), &text);
    cdr_jw_begin(&j, NULL, '{');
    tally_json(&j, "bf16", &w->plain);
    tally_json(&j, "fp8", &w->fp8);
    tally_json(&j, "packed", &w->packed);
    cdr_jw_real(&j, "min_survival", a->min_survival);
    cdr_jw_bool(&j, "written", write);
    if (write) {
        cdr_jw_str(&j, "path", a->out);
        cdr_jw_int(&j, "tensors", stat.tensors);
        cdr_jw_int(&j, "copied", stat.copied);
        cdr_jw_int(&j, "size_bytes", stat.bytes);
        cdr__left_json(&stat, &j);
    }
    cdr_jw_end(&j, '}');
    r->text = text.s;
    r->json = json.s;
    if (!write)
        CDR_FAIL_ID(err, CDR_EUSER, "merge.survival",
                    "%s: %.3f of the delta of %s would survive, below --min-survival %.2f. Take --experts bf16, serve the adapter unmerged, "
                    "or say --force", a->out, worst, last->where, a->min_survival);
    return CDR_OK;
}

cdr_status cdr_merge(const cdr_merge_args *a, cdr_result *r, cdr_err *err)
{
    work w = { .pool = cdr_pool_new() };
    cdr_status st = merge_in(&w, a, r, err);
    if (w.w) cdr_weights_close(w.w);
    if (w.hf) cdr_hf_close(w.hf);
    cdr_pool_free(w.pool);
    return st;
}
