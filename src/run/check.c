/* check.c: derives an operator's checks from its table of cases (src/ops/<op>/test.c).
 *
 * For each case: inputs are drawn by rule and rounded to the operand's dtype; the double reference is run on the rounded
 * values; then every CPU kernel that this machine can run and that does not reject the shapes, in every variant:
 *   rows dense, or with a pitch of cols + 8 and a start that is 8 elements off (unless infer refuses a pitch: the report
 *   says "dense only") · outputs in the inferred dtype, or F32 where the operator can add to them · no add bit, all, each
 *   alone · 1 thread and n_threads. An input lies in panels, or mapped at odd addresses, where the case's type says so.
 * Each run has 4 KiB canaries around every buffer (scratch too, which has exactly work_bytes), canaries between the
 * columns and the pitch, outputs and scratch pre-filled with NaN, and inputs that are compared afterwards.
 * Value: relative Frobenius distance to the reference <= the case's tolerance; 0 means bit-equal to the rounded reference.
 * Gradient: op->grad builds the backward calls, the oracle evaluates them in double, and they are compared with finite
 * differences of the reference at sampled elements. The backward operators' kernels have value cases of their own.
 * That this harness finds each kind of fault is itself tested: test/test_ops.c. */
#include "run/check.h"
#include <fnmatch.h>
#include <math.h>

enum { CANARY_BYTES = CDR_CHECK_MARGIN, CANARY = 0xC5, PITCH_PAD = 8, MAX_FAULT_LINES = 12, MAX_KERNELS = 16 };

/* bytes at p, canaries on both sides. aside: codes and scales that a mapped input has the addresses of */
typedef struct { unsigned char *block, *p; size_t bytes; uint8_t **aside; int64_t n_aside; } guarded;

typedef enum { F_VALUE, F_GRAD, F_CANARY, F_THREADS, F_BITS, F_OTHER, N_FAULTS } fault_kind;

/* The state of one operator's check. */
typedef struct {
    const cdr_check_target *on;              /* NULL: this CPU */
    uint32_t isa; bool quick, dense_only; int n_threads;
    int n_cases, n_failed_cases, n_grad_cases, n_runs, n_refused;
    int n_faults[N_FAULTS], n_lines;
    double worst_value, worst_grad;
    cdr_text faults;
    const char *case_name;
} checker;

/* One case, made concrete. types: n_in inputs, then n_out outputs as inferred (dense). */
typedef struct {
    const cdr_case *c; const cdr_op *op;
    int n_out; cdr_type type[CDR_MAX_OPERANDS];
    double *value[CDR_MAX_OPERANDS];     /* rounded inputs; reference outputs */
    double *before[CDR_MAX_OPERANDS];    /* of outputs: what an rmw or added output holds beforehand */
    cdr_rng_key key;
} instance;

typedef struct { bool pitched, wide; uint32_t add; char name[80]; } variant;

static void fault(checker *k, fault_kind kind, const char *fmt, ...) CDR_PRINTF(3, 4);
static void fault(checker *k, fault_kind kind, const char *fmt, ...)
{
    k->n_faults[kind]++;
    if (k->n_lines++ >= MAX_FAULT_LINES) return;
    char text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cdr_text_printf(&k->faults, "          \"%s\": %s\n", k->case_name, text);
}

static int n_faults(const checker *k)
{
    int n = 0;
    for (int i = 0; i < N_FAULTS; i++) n += k->n_faults[i];
    return n;
}

static double *doubles(int64_t n)
{
    double *p = cdr_alloc((size_t)CDR_MAX(n, 1) * sizeof(double));
    memset(p, 0, (size_t)CDR_MAX(n, 1) * sizeof(double));
    return p;
}

static int64_t pitch_pad(const cdr_type *t) { return CDR_MAX(PITCH_PAD, cdr_dtype_row(t->dtype)->block_elems); }     /* elements: whole blocks */

/* ---- inputs and reference ---------------------------------------------------------------------------------------- */
static void round_through(int dtype, double *x, int64_t n)
{
    void *bytes = cdr_alloc((size_t)CDR_MAX(cdr_dtype_bytes(dtype, n), 1));
    cdr_from_f64(dtype, x, bytes, n);
    cdr_to_f64(dtype, bytes, x, n);
    cdr_free(bytes);
}

static double drawn(const cdr_fill *f, cdr_rng_key key, int64_t i)
{
    switch (f->kind) {
    case 'n': return f->a * (double)cdr_rng_normal(key, (uint64_t)i);
    case 'u': return f->a + (f->b - f->a) * (double)cdr_rng_uniform(key, (uint64_t)i);
    case 'i': return f->a + (double)(cdr_rng_u64(key, (uint64_t)i) % (uint64_t)(f->b - f->a + 1));
    case 'c': return f->a;
    default: return 0;
    }
}

static void draw_inputs(instance *s)
{
    const cdr_case *c = s->c;
    for (int i = 0; i < c->n_in; i++) {
        if (cdr_absent(&s->type[i])) continue;
        int64_t n = cdr_type_elems(&s->type[i]);
        cdr_rng_key key = { s->key.seed, (uint64_t)i, 0 };
        s->value[i] = doubles(n);
        for (int64_t j = 0; j < n; j++) s->value[i][j] = drawn(&c->fill[i], key, j);
        round_through(s->type[i].dtype, s->value[i], n);
    }
    if (c->make) c->make(s->value, s->type, s->key);
    for (int i = 0; i < c->n_in; i++)
        if (s->value[i] && c->fill[i].kind == 'f') round_through(s->type[i].dtype, s->value[i], cdr_type_elems(&s->type[i]));
}

static void run_reference(const instance *s, double *const *value, double *const *out)
{
    cdr_ref_args a = { .attr = s->c->attr, .n_in = s->c->n_in, .n_out = s->n_out, .type = s->type,
                       .in = (const double *const *)value, .out = out };
    s->op->ref(&a);
}

static double rms(const double *x, int64_t n)
{
    double ss = 0;
    for (int64_t i = 0; i < n; i++) ss += x[i] * x[i];
    return n > 0 ? sqrt(ss / (double)n) : 0;
}

/* Fills s; false after a fault. Outputs that are read first begin with uniform values in [0, 1), at home in any state. */
static bool make_instance(checker *k, instance *s, const cdr_case *c)
{
    *s = (instance){ .c = c, .op = c->op };
    s->key.seed = cdr_hash64(c->name, strlen(c->name), cdr_hash64(c->op->name, strlen(c->op->name), 0));
    for (int i = 0; i < c->n_in; i++) {
        s->type[i] = c->in[i];
        if ((c->absent >> i) & 1u) s->type[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
    }
    cdr_err e = { CDR_OK, "", "" };
    if (c->op->infer(c->attr, c->n_in, s->type, &s->n_out, s->type + c->n_in, &e) != CDR_OK) {
        fault(k, F_OTHER, "infer refuses the case: %s", e.text);
        return false;
    }
    draw_inputs(s);
    for (int o = 0; o < s->n_out; o++) {
        int i = c->n_in + o;
        if (cdr_absent(&s->type[i])) continue;
        if ((c->skip_out >> o) & 1u) {
            if (!((c->op->optional >> o) & 1u)) fault(k, F_OTHER, "output %d is left away, but is not optional", o);
            s->type[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
            continue;
        }
        int64_t n = cdr_type_elems(&s->type[i]);
        cdr_rng_key key = { s->key.seed, 1000 + (uint64_t)o, 0 };
        s->value[i] = doubles(n);
        s->before[i] = doubles(n);
        for (int64_t j = 0; j < n; j++) s->before[i][j] = (double)cdr_rng_uniform(key, (uint64_t)j);
        round_through(s->type[i].dtype, s->before[i], n);
        if ((c->op->rmw >> o) & 1u) memcpy(s->value[i], s->before[i], (size_t)n * sizeof(double));
    }
    run_reference(s, s->value, s->value + c->n_in);
    for (int i = c->n_in; i < c->n_in + s->n_out; i++) {
        int64_t n = s->value[i] ? cdr_type_elems(&s->type[i]) : 0;
        for (int64_t j = 0; j < n; j++)
            if (!isfinite(s->value[i][j])) {
                fault(k, F_OTHER, "the reference's output %d is not finite at element %lld", i - c->n_in, (long long)j);
                return false;
            }
    }
    return true;
}

static void free_instance(instance *s)
{
    for (int i = 0; i < CDR_MAX_OPERANDS; i++) {
        cdr_free(s->value[i]);
        cdr_free(s->before[i]);
    }
}

/* ---- guarded buffers ---------------------------------------------------------------------------------------------- */
/* off: bytes past a 64-byte boundary */
static guarded guard_new(size_t bytes, size_t off)
{
    guarded b = { .bytes = bytes };
    b.block = cdr_alloc(2 * CANARY_BYTES + bytes + 128 + off);
    memset(b.block, CANARY, 2 * CANARY_BYTES + bytes + 128 + off);
    uintptr_t p = (uintptr_t)b.block + CANARY_BYTES;
    b.p = b.block + CANARY_BYTES + (cdr_align_up((size_t)p, 64) - (size_t)p) + off;
    return b;
}

/* Offset from p of the first byte outside of the buffer that was written; 0: none. (p itself is inside.) */
static int64_t guard_broken(const guarded *b)
{
    for (int64_t i = 1; i <= CANARY_BYTES; i++) if (b->p[-i] != CANARY) return -i;
    for (int64_t i = 0; i < CANARY_BYTES; i++) if (b->p[(int64_t)b->bytes + i] != CANARY) return (int64_t)b->bytes + i;
    return 0;
}

/* An input in panels. */
static void guard_fill_panels(guarded *b, const cdr_type *t, const double *x)
{
    const int64_t n = cdr_type_elems(t);
    void *rows = cdr_alloc((size_t)cdr_dtype_bytes(t->dtype, CDR_MAX(n, (int64_t)1)));
    cdr_from_f64(t->dtype, x, rows, n);
    cdr_panels_put(t, 0, cdr_type_rows(t), rows, b->p);
    cdr_free(rows);
}

/* A mapped input: each array has a block of its own, from which a sanitizer sees a read that goes too far. */
static void guard_fill_mapped(guarded *b, const cdr_type *t, const double *x)
{
    const int64_t E = t->n[0], n = t->n[1] * t->n[2];
    cdr_mapped *table = (cdr_mapped *)(void *)b->p;
    float *wide = cdr_alloc(sizeof *wide * (size_t)n);
    b->n_aside = 2 * E;
    b->aside = cdr_alloc(sizeof *b->aside * (size_t)b->n_aside);
    for (int64_t e = 0; e < E; e++) {
        uint8_t *codes = cdr_alloc((size_t)n / 2 + 1), *scales = cdr_alloc((size_t)n / 32 + 1);
        for (int64_t i = 0; i < n; i++) wide[i] = (float)x[e * n + i];
        cdr_mxfp4_encode(wide, codes + 1, scales + 1, n);
        table[e] = (cdr_mapped){ codes + 1, scales + 1 };
        b->aside[2 * e] = codes;
        b->aside[2 * e + 1] = scales;
    }
    cdr_free(wide);
}

/* Rows of x into a guarded buffer of type t; x NULL: NaN. Elements between the columns and the pitch keep the canary. */
static void guard_fill(guarded *b, const cdr_type *t, const double *x)
{
    int64_t rows = cdr_type_rows(t), cols = cdr_type_cols(t);
    size_t row_bytes = (size_t)cdr_dtype_bytes(t->dtype, cols), step = (size_t)cdr_dtype_bytes(t->dtype, cdr_type_pitch(t));
    if (t->layout != CDR_ROWS) {
        CDR_CHECK(x);                                      /* outputs lie in rows */
        if (t->layout == CDR_MAPPED) guard_fill_mapped(b, t, x);
        else guard_fill_panels(b, t, x);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        unsigned char *row = b->p + (size_t)r * step;
        if (x) cdr_from_f64(t->dtype, x + r * cols, row, cols);
        else memset(row, 0xff, row_bytes);
    }
}

/* -1, or a row after which the gap up to the pitch was written */
static int64_t gap_broken(const guarded *b, const cdr_type *t)
{
    int64_t rows = cdr_type_rows(t);
    size_t row_bytes = (size_t)cdr_dtype_bytes(t->dtype, cdr_type_cols(t)), step = (size_t)cdr_dtype_bytes(t->dtype, cdr_type_pitch(t));
    for (int64_t r = 0; r + 1 < rows; r++)
        for (size_t i = row_bytes; i < step; i++) if (b->p[(size_t)r * step + i] != CANARY) return r;
    return -1;
}

/* ---- one run of one kernel ----------------------------------------------------------------------------------------- */
typedef struct { guarded buf[CDR_MAX_OPERANDS]; guarded saved[CDR_MAX_OPERANDS]; guarded work; } buffers;

static void variant_types(const instance *s, const variant *v, cdr_type *t)
{
    int n = s->c->n_in + s->n_out;
    for (int i = 0; i < n; i++) {
        t[i] = s->type[i];
        if (cdr_absent(&t[i])) continue;
        int o = i - s->c->n_in;
        if (v->wide && o >= 0 && ((s->op->add_ok >> o) & 1u)) t[i].dtype = CDR_F32;
        if (v->pitched && t[i].n_dim >= 2 && t[i].layout == CDR_ROWS) t[i].pitch = cdr_type_cols(&t[i]) + pitch_pad(&t[i]);
    }
}

static void fill_buffers(const instance *s, const variant *v, const cdr_type *t, buffers *b)
{
    int n_in = s->c->n_in;
    for (int i = 0; i < n_in + s->n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        size_t off = t[i].pitch ? (size_t)cdr_dtype_bytes(t[i].dtype, pitch_pad(&t[i])) : 0;
        b->buf[i] = guard_new(cdr_type_bytes(&t[i]), off);
        int o = i - n_in;
        bool kept = o < 0 || ((v->add >> o) & 1u) || ((s->op->rmw >> o) & 1u);
        guard_fill(&b->buf[i], &t[i], !kept ? NULL : o < 0 ? s->value[i] : s->before[i]);
        if (o >= 0) continue;
        b->saved[i] = guard_new(b->buf[i].bytes, 0);
        memcpy(b->saved[i].p, b->buf[i].p, b->buf[i].bytes);
    }
}

static void free_buffers(buffers *b)
{
    for (int i = 0; i < CDR_MAX_OPERANDS; i++) {
        for (int64_t k = 0; k < b->buf[i].n_aside; k++) cdr_free(b->buf[i].aside[k]);
        cdr_free(b->buf[i].aside);
        cdr_free(b->buf[i].block);
        cdr_free(b->saved[i].block);
    }
    cdr_free(b->work.block);
}

static void check_guards(checker *k, const instance *s, const cdr_type *t, const buffers *b, const char *where)
{
    int n_in = s->c->n_in;
    for (int i = 0; i < n_in + s->n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        int64_t at = guard_broken(&b->buf[i]);
        const char *what = i < n_in ? "input" : "output";
        int no = i < n_in ? i : i - n_in;
        if (at) fault(k, F_CANARY, "%s: wrote outside of %s %d, at byte %lld of %zu", where, what, no, (long long)at, b->buf[i].bytes);
        if (i < n_in) {
            if (memcmp(b->buf[i].p, b->saved[i].p, b->buf[i].bytes) != 0) fault(k, F_CANARY, "%s: wrote into input %d", where, i);
        } else if (t[i].pitch && gap_broken(&b->buf[i], &t[i]) >= 0) {
            fault(k, F_CANARY, "%s: wrote between the columns and the pitch of output %d, row %lld", where, no,
                  (long long)gap_broken(&b->buf[i], &t[i]));
        }
    }
    if (b->work.block && guard_broken(&b->work))
        fault(k, F_CANARY, "%s: wrote outside of its scratch, at byte %lld of %zu", where, (long long)guard_broken(&b->work), b->work.bytes);
}

/* Runs; leaves the buffers to the caller. */
static void run_kernel(checker *k, const instance *s, const cdr_kernel *kern, const variant *v, int n_threads, buffers *b)
{
    cdr_type t[CDR_MAX_OPERANDS];
    void *ptr[CDR_MAX_OPERANDS] = { NULL };
    int n = s->c->n_in + s->n_out;
    char where[200];
    snprintf(where, sizeof where, "kernel %s, %s, %d thread%s", kern->name, v->name, n_threads, n_threads > 1 ? "s" : "");
    variant_types(s, v, t);
    fill_buffers(s, v, t, b);
    for (int i = 0; i < n; i++) ptr[i] = b->buf[i].p;
    size_t work = kern->work_bytes ? kern->work_bytes(s->c->attr, s->c->n_in, s->n_out, t, n_threads) : 0;
    if (work > 0) {
        b->work = guard_new(work, 0);
        memset(b->work.p, 0xff, work);
    }
    cdr_lane lane = { .n_threads = n_threads };
    cdr_args a = { .attr = s->c->attr, .type = t, .ptr = ptr, .n_in = s->c->n_in, .n_out = s->n_out, .add = v->add,
                   .work = work > 0 ? b->work.p : NULL, .lane = &lane };
    k->n_runs++;
    cdr_status st = k->on ? k->on->run(k->on, kern, &a, work) : kern->run(&a);
    if (st != CDR_OK) fault(k, F_OTHER, "%s: returned status %d", where, (int)st);
    check_guards(k, s, t, b, where);
    if (s->c->property && !k->on && !v->pitched && !v->wide && !v->add) {
        const char *bad = s->c->property(&a);
        if (bad) fault(k, F_OTHER, "%s: property does not hold: %s", where, bad);
    }
}

/* Largest relative rounding of a format: 2^-9 for BF16; 0 for integers. */
static double unit_roundoff(int dtype)
{
    if (!cdr_dtype_row(dtype)->floating) return 0;
    for (int bits = 1; bits < 60; bits++) {
        double x = 1 + ldexp(1, -bits);
        round_through(dtype, &x, 1);
        if (x <= 1 || x > 1 + ldexp(1, -bits)) return ldexp(1, -bits);
    }
    return 0;
}

static void check_output(checker *k, const instance *s, const variant *v, const cdr_type *t, const guarded *buf, int o, const char *where)
{
    int i = s->c->n_in + o;
    int64_t rows = cdr_type_rows(t), cols = cdr_type_cols(t), n = rows * cols, step = cdr_dtype_bytes(t->dtype, cdr_type_pitch(t));
    bool added = ((v->add >> o) & 1u) != 0;
    double *got = doubles(n), *want = doubles(n), diff = 0, norm = 0;
    for (int64_t r = 0; r < rows; r++) cdr_to_f64(t->dtype, buf->p + r * step, got + r * cols, cols);
    for (int64_t j = 0; j < n; j++) want[j] = s->value[i][j] + (added ? s->before[i][j] : 0);
    double tol = s->c->tol;
    if (added && cdr_dtype_row(t->dtype)->floating) tol = CDR_MAX(tol, 2 * unit_roundoff(t->dtype));    /* the sum is rounded as well */
    if (tol <= 0) round_through(t->dtype, want, n);
    int64_t unwritten = 0, first = -1;
    for (int64_t j = 0; j < n; j++) {
        unwritten += isnan(got[j]) ? 1 : 0;
        if (first < 0 && !(got[j] == want[j])) first = j;
        diff += (got[j] - want[j]) * (got[j] - want[j]);
        norm += want[j] * want[j];
    }
    double error = norm > 0 ? sqrt(diff / norm) : diff > 0 ? INFINITY : 0;
    if (unwritten > 0) {
        fault(k, F_VALUE, "%s: output %d has %lld elements of %lld that are NaN (not written?)", where, o, (long long)unwritten, (long long)n);
    } else if (!(error <= tol)) {
        fault(k, F_VALUE, "%s: output %d differs by %.2g, allowed %.2g; first at element %lld: %.9g, expected %.9g", where, o, error, tol,
              (long long)first, got[first], want[first]);
    }
    if (isfinite(error)) k->worst_value = CDR_MAX(k->worst_value, error);
    cdr_free(got);
    cdr_free(want);
}

/* Bytes of two runs with the same types; -1, or the first output that differs. */
static int first_difference(const instance *s, const cdr_type *t, const buffers *a, const buffers *b)
{
    for (int o = 0; o < s->n_out; o++) {
        int i = s->c->n_in + o;
        if (!cdr_absent(&t[i]) && memcmp(a->buf[i].p, b->buf[i].p, a->buf[i].bytes) != 0) return o;
    }
    return -1;
}

/* ---- all kernels in one variant ------------------------------------------------------------------------------------- */
/* Kernels of another device that are interpreted: all outputs added at once, bits repeated in the plain variant only. */
static bool short_run(const checker *k) { return k->on && k->quick; }

static void check_variant(checker *k, const instance *s, const variant *v)
{
    cdr_type t[CDR_MAX_OPERANDS];
    variant_types(s, v, t);
    buffers first[MAX_KERNELS];                            /* of each kernel that ran, with one thread */
    const cdr_kernel *ran[MAX_KERNELS];
    int n_ran = 0;
    int device = k->on ? k->on->device : CDR_DEV_CPU;
    for (const cdr_kernel *kern = cdr_op_kernels(s->op, device); kern->name; kern++) {
        if (kern->device != device || (kern->needs & ~k->isa)) continue;
        if (kern->reject && kern->reject(s->c->attr, s->c->n_in, s->n_out, t)) continue;
        CDR_CHECK(n_ran < MAX_KERNELS);
        char where[160];
        snprintf(where, sizeof where, "kernel %s, %s", kern->name, v->name);
        memset(&first[n_ran], 0, sizeof first[0]);
        run_kernel(k, s, kern, v, 1, &first[n_ran]);
        for (int o = 0; o < s->n_out; o++) {
            int i = s->c->n_in + o;
            if (!cdr_absent(&t[i])) check_output(k, s, v, &t[i], &first[n_ran].buf[i], o, where);
        }
        if (k->n_threads > 1 && !(short_run(k) && (v->pitched || v->wide))) {
            buffers more = { 0 };
            run_kernel(k, s, kern, v, k->n_threads, &more);
            int o = first_difference(s, t, &first[n_ran], &more);
            if (o >= 0) fault(k, F_THREADS, "%s: output %d has other bits with %d threads than with 1", where, o, k->n_threads);
            free_buffers(&more);
        }
        for (int j = 0; j < n_ran; j++) {
            if (strcmp(ran[j]->bits, kern->bits) != 0) continue;
            int o = first_difference(s, t, &first[j], &first[n_ran]);
            if (o >= 0) fault(k, F_BITS, "%s: output %d has other bits than kernel %s of the same class %s", where, o, ran[j]->name, kern->bits);
            break;
        }
        ran[n_ran++] = kern;
    }
    if (n_ran == 0 && k->on) k->n_refused++;               /* another device's kernels may refuse what the CPU takes */
    else if (n_ran == 0) fault(k, F_OTHER, "%s: no kernel takes it", v->name);
    for (int j = 0; j < n_ran; j++) free_buffers(&first[j]);
}

/* infer is the only validator: where it takes a pitch, every kernel that does not reject it must honour it. */
static bool takes_pitch(const instance *s)
{
    cdr_type t[CDR_MAX_OPERANDS], out[CDR_MAX_OPERANDS];
    int n_out = 0;
    variant_types(s, &(variant){ .pitched = true }, t);
    return s->op->infer(s->c->attr, s->c->n_in, t, &n_out, out, NULL) == CDR_OK;
}

static void check_values(checker *k, const instance *s)
{
    uint32_t can_add = 0;
    bool has_rows = false, narrow = false;
    for (int i = 0; i < s->c->n_in + s->n_out; i++) {
        int o = i - s->c->n_in;
        if (cdr_absent(&s->type[i])) continue;
        if (s->type[i].n_dim >= 2) has_rows = true;
        if (o < 0 || !((s->op->add_ok >> o) & 1u)) continue;
        can_add |= 1u << o;
        if (s->type[i].dtype != CDR_F32) narrow = true;
    }
    if (has_rows && !takes_pitch(s)) {
        has_rows = false;
        k->dense_only = true;
    }
    for (int pitched = 0; pitched <= (has_rows ? 1 : 0); pitched++)
        for (int wide = 0; wide <= (narrow ? 1 : 0); wide++) {
            uint32_t masks[34] = { 0, can_add };
            int n_masks = can_add ? 2 : 1;
            for (uint32_t o = 0; o < 32 && !short_run(k); o++) if (((can_add >> o) & 1u) && can_add != 1u << o) masks[n_masks++] = 1u << o;
            for (int m = 0; m < n_masks; m++) {
                variant v = { .pitched = pitched != 0, .wide = wide != 0, .add = masks[m] };
                snprintf(v.name, sizeof v.name, "%s%s%s", pitched ? "pitched" : "dense", wide ? ", F32 outputs" : "", masks[m] ? ", added" : "");
                check_variant(k, s, &v);
            }
        }
}

/* ---- gradient ------------------------------------------------------------------------------------------------------- */
/* A graph of values only, and the call under test beside it: it need not be in the registry. */
typedef struct { cdr_pool *pool; cdr_bundle bundle; cdr_graph *g; cdr_call call; cdr_val dout[CDR_MAX_OPERANDS]; double *seed[CDR_MAX_OPERANDS]; } tape;

static void tape_begin(tape *tp, const instance *s, cdr_err *e)
{
    int n = s->c->n_in + s->n_out;
    *tp = (tape){ .pool = cdr_pool_new() };
    cdr_graph *g = tp->g = cdr_graph_new(tp->pool, &tp->bundle, "check", e);
    cdr_graph_list(g, "check");
    cdr_val ids[CDR_MAX_OPERANDS];
    for (int i = 0; i < n; i++) {
        if (cdr_absent(&s->type[i])) ids[i] = CDR_NONE;
        else ids[i] = cdr_graph_value(g, s->type[i], CDR_TURN, CDR_C_ACT, i < s->c->n_in ? "in" : "out");
    }
    while (g->n_attrs % 16 != 0) *CDR_PUSH(g->pool, g->attrs, g->n_attrs, g->cap_attrs) = 0;
    tp->call = (cdr_call){ .n_in = (uint8_t)s->c->n_in, .n_out = (uint8_t)s->n_out, .arg = (uint32_t)g->n_operands, .pred = CDR_NONE,
                           .work = CDR_NONE, .attr = (uint32_t)g->n_attrs, .layer = -1 };
    for (size_t i = 0; s->c->attr && i < s->op->attr_bytes; i++)
        *CDR_PUSH(g->pool, g->attrs, g->n_attrs, g->cap_attrs) = ((const unsigned char *)s->c->attr)[i];
    for (int i = 0; i < n; i++) *CDR_PUSH(g->pool, g->operands, g->n_operands, g->cap_operands) = ids[i];
    for (int o = 0; o < s->n_out; o++) {
        const cdr_type *t = &s->type[s->c->n_in + o];
        tp->dout[o] = CDR_NONE;
        if (cdr_absent(t) || !cdr_dtype_row(t->dtype)->floating || ((s->op->optional >> o) & 1u)) continue;
        cdr_type td = *t;
        td.dtype = CDR_F32;
        tp->dout[o] = cdr_graph_value(g, td, CDR_TURN, CDR_C_ACT, "dout");
        int64_t m = cdr_type_elems(t);
        tp->seed[o] = doubles(m);
        for (int64_t j = 0; j < m; j++) tp->seed[o][j] = (double)cdr_rng_normal((cdr_rng_key){ s->key.seed, 2000 + (uint64_t)o, 0 }, (uint64_t)j);
    }
}

static void tape_end(tape *tp)
{
    for (int i = 0; i < CDR_MAX_OPERANDS; i++) cdr_free(tp->seed[i]);
    cdr_pool_free(tp->pool);
}

/* d (sum dout out) / d in[i][j], by the four-point formula (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h: error h^4. */
static double difference_quotient(const instance *s, const tape *tp, int i, int64_t j, double h)
{
    double *out[4][CDR_MAX_OPERANDS] = { { NULL } }, x = s->value[i][j], sum = 0;
    static const double at[4] = { 1, -1, 2, -2 };
    for (int q = 0; q < 4; q++) {
        for (int o = 0; o < s->n_out; o++) {
            const cdr_type *t = &s->type[s->c->n_in + o];
            if (!cdr_absent(t)) out[q][o] = doubles(cdr_type_elems(t));
        }
        s->value[i][j] = x + at[q] * h;
        run_reference(s, s->value, out[q]);
    }
    s->value[i][j] = x;
    for (int o = 0; o < s->n_out; o++) {
        if (!tp->seed[o]) continue;
        int64_t n = cdr_type_elems(&s->type[s->c->n_in + o]);
        for (int64_t m = 0; m < n; m++)
            sum += tp->seed[o][m] * (8 * (out[0][o][m] - out[1][o][m]) - (out[2][o][m] - out[3][o][m])) / (12 * h);
    }
    for (int q = 0; q < 4; q++) for (int o = 0; o < s->n_out; o++) cdr_free(out[q][o]);
    return sum;
}

static void compare_gradient(checker *k, const instance *s, const tape *tp, int i, const double *din)
{
    int64_t n = cdr_type_elems(&s->type[i]), largest = 0;
    double scale = rms(din, n), tol = s->c->tol_grad > 0 ? s->c->tol_grad : 1e-6, h = 1e-4 * rms(s->value[i], n);
    if (h <= 0) h = 1e-4;
    for (int64_t j = 0; j < n; j++) if (fabs(din[j]) > fabs(din[largest])) largest = j;
    if (!(scale > 0)) scale = 1;
    int samples = k->quick ? 6 : 24;
    for (int q = 0; q <= samples; q++) {
        int64_t j = q == 0 ? largest : (int64_t)(cdr_rng_u64((cdr_rng_key){ s->key.seed, 3000 + (uint64_t)i, 0 }, (uint64_t)q) % (uint64_t)n);
        double fd = difference_quotient(s, tp, i, j, h), error = fabs(fd - din[j]) / scale;
        if (isfinite(error)) k->worst_grad = CDR_MAX(k->worst_grad, error);
        if (error <= tol) continue;
        fault(k, F_GRAD, "gradient of input %d at element %lld is %.9g, finite differences give %.9g (error %.2g of its scale, allowed %.2g)", i,
              (long long)j, din[j], fd, error, tol);
        return;
    }
}

static void check_gradient(checker *k, const instance *s)
{
    cdr_err e = { CDR_OK, "", "" };
    tape tp;
    bool want[CDR_MAX_OPERANDS] = { false };
    cdr_val din[CDR_MAX_OPERANDS];
    tape_begin(&tp, s, &e);
    for (int i = 0; i < s->c->n_in; i++) {
        din[i] = CDR_NONE;
        want[i] = ((s->c->grad >> i) & 1u) != 0;
    }
    k->n_grad_cases++;
    cdr_status st = s->op->grad(tp.g, &tp.call, tp.dout, want, din, &e);
    cdr_oracle *o = cdr_oracle_new(tp.g);
    if (st == CDR_OK && !tp.g->failed) {
        for (int i = 0; i < s->c->n_in + s->n_out; i++) {
            cdr_val v = tp.g->operands[tp.call.arg + (uint32_t)i];
            if (v != CDR_NONE) cdr_oracle_put(o, v, s->value[i]);
        }
        for (int q = 0; q < s->n_out; q++) if (tp.seed[q]) cdr_oracle_put(o, tp.dout[q], tp.seed[q]);
        st = cdr_oracle_run(o, tp.g->lists[0].calls, tp.g->lists[0].n, &e);
    }
    if (st != CDR_OK || tp.g->failed) fault(k, F_GRAD, "grad fails: %s", e.text);
    for (int i = 0; i < s->c->n_in && st == CDR_OK && !tp.g->failed; i++) {
        if (!want[i]) continue;
        int64_t n = cdr_type_elems(&s->type[i]);
        if (din[i] < 0 || cdr_type_elems(cdr_graph_type(tp.g, din[i])) != n) {
            fault(k, F_GRAD, "grad leaves input %d without a gradient of its size", i);
            continue;
        }
        double *d = doubles(n);
        cdr_oracle_get(o, din[i], d);
        compare_gradient(k, s, &tp, i, d);
        cdr_free(d);
    }
    cdr_oracle_free(o);
    tape_end(&tp);
}

/* ---- cases, operators, report ------------------------------------------------------------------------------------- */
static void check_case(checker *k, const cdr_case *c)
{
    int before = n_faults(k);
    instance s;
    k->case_name = c->name;
    k->n_cases++;
    if (make_instance(k, &s, c)) {
        check_values(k, &s);
        if (c->grad && !c->op->grad) fault(k, F_GRAD, "asks for gradients, but the operator has none");
        if (c->grad && c->op->grad && !k->on) check_gradient(k, &s);
    }
    free_instance(&s);
    if (n_faults(k) > before) k->n_failed_cases++;
}

static const char *verdict(const checker *k, fault_kind kind) { return k->n_faults[kind] ? "FAILED" : "ok"; }

static void report_op(const checker *k, const cdr_op *op, int64_t ns, cdr_text *r)
{
    cdr_text_printf(r, "%-9s %d cases: value %s (worst %.1e)", op->name, k->n_cases, verdict(k, F_VALUE), k->worst_value);
    if (k->n_grad_cases > 0 || k->n_faults[F_GRAD]) cdr_text_printf(r, ", gradient %s (worst %.1e)", verdict(k, F_GRAD), k->worst_grad);
    cdr_text_printf(r, ", canaries %s", verdict(k, F_CANARY));
    if (k->on) cdr_text_printf(r, ", repeated %s, %d variants refused", k->n_faults[F_THREADS] ? "FAILED" : "bit-equal", k->n_refused);
    else if (k->n_threads > 1) cdr_text_printf(r, ", 1 = %d threads %s", k->n_threads, k->n_faults[F_THREADS] ? "FAILED" : "bit-equal");
    if (k->n_faults[F_BITS]) cdr_text_printf(r, ", kernels of one class FAILED");
    if (k->dense_only) cdr_text_printf(r, ", dense only");
    if (k->n_faults[F_OTHER]) cdr_text_printf(r, ", other faults %d", k->n_faults[F_OTHER]);
    cdr_text_printf(r, "   %.1f s\n", (double)ns / 1e9);
    if (k->faults.n > 0) cdr_text_append(r, k->faults.s, k->faults.n);
    if (k->n_lines > MAX_FAULT_LINES) cdr_text_printf(r, "          and %d more\n", k->n_lines - MAX_FAULT_LINES);
}

/* All cases of op in tables (ends with NULL). An operator that cannot be checked is a fault, not a silence;
 * one without a kernel for the device at hand is named. */
static void check_operator(const cdr_op *op, const cdr_case *const *tables, checker k, cdr_check_sum *sum, cdr_text *r)
{
    int64_t t0 = cdr_now_ns();
    if (op->flags & (CDR_OP_COLLECTIVE | CDR_OP_VIEW)) {
        sum->n_skipped++;
        cdr_text_printf(r, "%-9s not run here: %s\n", op->name,
                        op->flags & CDR_OP_VIEW ? "a view, has no kernel" : "a collective, checked over ranks by the tests of comm");
        return;
    }
    if (k.on && !cdr_op_kernels(op, k.on->device)->name) {
        sum->n_skipped++;
        cdr_text_printf(r, "%-9s not run here: has no kernel for this device\n", op->name);
        return;
    }
    k.case_name = op->name;
    for (int i = 0; op->ref && tables[i]; i++) for (const cdr_case *c = tables[i]; c->name; c++) if (c->op == op) check_case(&k, c);
    if (!op->ref) fault(&k, F_OTHER, "has no double reference");
    else if (k.n_cases == 0) fault(&k, F_OTHER, "has no test case");
    else if (k.on && k.n_runs == 0) fault(&k, F_OTHER, "no kernel of the device ran");
    else if (op->grad && !k.on && k.n_grad_cases == 0) fault(&k, F_GRAD, "has a gradient, but no case checks it");
    report_op(&k, op, cdr_now_ns() - t0, r);
    sum->n_cases += k.n_cases;
    sum->n_failed += k.n_cases == 0 || (n_faults(&k) > 0 && k.n_failed_cases == 0) ? 1 : k.n_failed_cases;
    sum->worst_value = CDR_MAX(sum->worst_value, k.worst_value);
    sum->worst_grad = CDR_MAX(sum->worst_grad, k.worst_grad);
    cdr_text_free(&k.faults);
}

static cdr_status verdict_of(const cdr_check_sum *sum, cdr_err *err)
{
    if (sum->n_failed == 0) return CDR_OK;
    CDR_FAIL_ID(err, CDR_EUSER, "check.fault", "check: %d of %d cases failed; the report names each", sum->n_failed, sum->n_cases);
}

cdr_status cdr_check_cases(const cdr_case *cases, uint32_t isa, bool quick, int n_threads, cdr_check_sum *sum, cdr_text *report, cdr_err *err)
{
    const cdr_case *const tables[] = { cases, NULL };
    *sum = (cdr_check_sum){ 0 };
    for (const cdr_case *c = cases; c->name; c++) {
        bool seen = false;                                 /* each operator once, at its first case */
        for (const cdr_case *d = cases; d < c; d++) seen = seen || d->op == c->op;
        if (!seen) check_operator(c->op, tables, (checker){ .isa = isa, .quick = quick, .n_threads = n_threads }, sum, report);
    }
    return verdict_of(sum, err);
}

/* "" takes all; a plain name takes that operator and all of its folder's table; else a glob over names. */
static bool selected(const char *pattern, const cdr_op *op)
{
    if (!*pattern || fnmatch(pattern, op->name, 0) == 0) return true;
    for (int i = 0; cdr_cases[i]; i++) {
        bool has_op = false, has_name = false;
        for (const cdr_case *c = cdr_cases[i]; c->name; c++) {
            has_op = has_op || c->op == op;
            has_name = has_name || strcmp(c->op->name, pattern) == 0;
        }
        if (has_op && has_name) return true;
    }
    return false;
}

static cdr_status check_ops(const char *op, checker k, cdr_check_sum *sum, cdr_text *report, cdr_err *err)
{
    *sum = (cdr_check_sum){ 0 };
    int n = 0;
    for (int i = 0; cdr_ops[i]; i++) {
        if (!selected(op ? op : "", cdr_ops[i])) continue;
        check_operator(cdr_ops[i], cdr_cases, k, sum, report);
        n++;
    }
    if (n > 0) return verdict_of(sum, err);
    const char *names[256];
    int n_names = 0;
    for (int i = 0; cdr_ops[i] && n_names < CDR_COUNT(names); i++) names[n_names++] = cdr_ops[i]->name;
    cdr_pool *pool = cdr_pool_new();
    cdr_status st = cdr_fail(err, CDR_EUSER, "check.unknown-op", "check: no operator is named %s.%s", op, cdr_nearest(pool, op, names, n_names));
    cdr_pool_free(pool);
    return st;
}

cdr_status cdr_check_op(const char *op, uint32_t isa, bool quick, int n_threads, cdr_check_sum *sum, cdr_text *report, cdr_err *err)
{
    return check_ops(op, (checker){ .isa = isa, .quick = quick, .n_threads = n_threads }, sum, report, err);
}

cdr_status cdr_check_on(const cdr_check_target *t, const char *op, bool quick, cdr_check_sum *sum, cdr_text *report, cdr_err *err)
{
    return check_ops(op, (checker){ .on = t, .isa = t->isa, .quick = quick, .n_threads = 2 }, sum, report, err);
}
