/* bench.c: times the operators' kernels against their floors (bench.h says what a floor is).
 * A time is the fastest of the runs that fit a window (0.5 s; quick 0.1 s), at least two after one that warms up. The
 * median is in the JSON beside it: on a machine that nobody else uses the two agree within a few per cent. */
#include "run/bench.h"
#include <fnmatch.h>
#include <stdlib.h>

enum { MAX_RUNS = 1000, PERIOD = 65521,       /* inputs repeat after so many drawn elements: a prime, so no two rows are equal */
       LARGE = 1 << 24, PIECE = 4096 };      /* elements of operands that are made piece by piece; of a piece: whole blocks */

typedef struct { double best, median; int n; } timing;      /* seconds */

/* One shape, made concrete: operands as kernels see them. */
typedef struct {
    const cdr_case *c;
    int n_out;
    cdr_type type[CDR_MAX_OPERANDS];
    void *ptr[CDR_MAX_OPERANDS], *block[CDR_MAX_OPERANDS];      /* ptr: into block, on a 64-byte boundary, as in a slab */
    cdr_cost cost;
    bool bf16;                           /* some operand is BF16: the BF16 ceiling applies */
} instance;

typedef struct {
    bool quick; uint32_t isa; int n_threads;
    cdr_ceilings top;
    cdr_text *report; cdr_jw *json;
    int n_rows, width;                   /* width: of the column of names */
} bench;

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

static void fill(double *x, int64_t n, const cdr_fill *f, uint64_t stream)
{
    const cdr_rng_key key = { 1, stream, 0 };
    for (int64_t i = 0; i < n; i++) x[i] = i < PERIOD ? drawn(f, key, i) : x[i - PERIOD];
}

static void *aligned(size_t bytes, void **block)
{
    *block = cdr_alloc(bytes + 64);
    return (char *)*block + (cdr_align_up((size_t)(uintptr_t)*block, 64) - (size_t)(uintptr_t)*block);
}

static void free_instance(instance *s)
{
    for (int i = 0; i < CDR_MAX_OPERANDS; i++) cdr_free(s->block[i]);
}

/* Types of the case's operands. */
static cdr_status make_types(instance *s, const cdr_case *c, cdr_err *err)
{
    *s = (instance){ .c = c };
    for (int i = 0; i < c->n_in; i++) {
        s->type[i] = c->in[i];
        if ((c->absent >> i) & 1u) s->type[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
    }
    CDR_TRY(c->op->infer(c->attr, c->n_in, s->type, &s->n_out, s->type + c->n_in, err));
    for (int o = 0; o < s->n_out; o++)
        if ((c->skip_out >> o) & 1u) s->type[c->n_in + o] = (cdr_type){ .dtype = CDR_N_DTYPES };
    return CDR_OK;
}

/* Packed rows as a file has them, behind the table, at addresses that are not aligned. */
static void lay_mapped(const cdr_type *t, const uint8_t *rows, void *to)
{
    const int64_t n_blocks = t->n[1] * t->n[2] / 32, step = cdr_dtype_bytes(CDR_MXFP4, 32);
    cdr_mapped *table = to;
    uint8_t *at = (uint8_t *)to + cdr_type_bytes(t) + 1;
    for (int64_t e = 0; e < t->n[0]; e++, at += n_blocks * step) {
        table[e] = (cdr_mapped){ at, at + n_blocks * (step - 1) };
        for (int64_t b = 0; b < n_blocks; b++, rows += step) {
            memcpy(at + b * (step - 1), rows, (size_t)step - 1);
            at[n_blocks * (step - 1) + b] = rows[step - 1];
        }
    }
}

/* The operand's values in its dtype and layout. value: all of them, or NULL: those that the rule draws, which are made piece by piece */
static void store(const double *value, const cdr_fill *f, uint64_t stream, const cdr_type *t, void *to)
{
    const int64_t n = cdr_type_elems(t);
    void *rows = t->layout == CDR_ROWS ? to : cdr_alloc((size_t)cdr_dtype_bytes(t->dtype, n));
    if (value) cdr_from_f64(t->dtype, value, rows, n);
    else {
        double *drawn_once = cdr_alloc(PERIOD * sizeof *drawn_once), piece[PIECE];
        fill(drawn_once, PERIOD, f, stream);
        for (int64_t at = 0; at < n; at += PIECE) {
            const int64_t m = CDR_MIN(n - at, (int64_t)PIECE);
            for (int64_t i = 0; i < m; i++) piece[i] = drawn_once[(at + i) % PERIOD];
            cdr_from_f64(t->dtype, piece, (char *)rows + cdr_dtype_bytes(t->dtype, at), m);
        }
        cdr_free(drawn_once);
    }
    if (t->layout == CDR_MAPPED) lay_mapped(t, rows, to);
    else if (t->layout != CDR_ROWS) cdr_panels_put(t, 0, cdr_type_rows(t), rows, to);
    if (rows != to) cdr_free(rows);
}

/* Dense operands, inputs drawn by the case's rules; outputs uniform in [0, 1), at home in any state that is read. */
static void make_values(instance *s)
{
    static const cdr_fill unit = { 'u', 0, 1 };
    const cdr_case *c = s->c;
    double *value[CDR_MAX_OPERANDS] = { NULL };
    const int n = c->n_in + s->n_out;
    for (int i = 0; i < n; i++) {
        if (cdr_absent(&s->type[i])) continue;
        const int64_t elems = cdr_type_elems(&s->type[i]);
        s->bf16 = s->bf16 || s->type[i].dtype == CDR_BF16;
        if (elems > LARGE && i < c->n_in && c->fill[i].kind != 'f') continue;
        value[i] = cdr_alloc((size_t)CDR_MAX(elems, 1) * sizeof(double));
        fill(value[i], elems, i < c->n_in ? &c->fill[i] : &unit, (uint64_t)i);
    }
    if (c->make) c->make(value, s->type, (cdr_rng_key){ 1, 0, 0 });
    for (int i = 0; i < n; i++) {
        if (cdr_absent(&s->type[i])) continue;
        s->ptr[i] = aligned(cdr_type_bytes(&s->type[i]) + cdr_mapped_bytes(&s->type[i]) + 1, &s->block[i]);
        store(value[i], i < c->n_in ? &c->fill[i] : &unit, (uint64_t)i, &s->type[i], s->ptr[i]);
        cdr_free(value[i]);
    }
    s->cost = cdr_op_cost(c->op, c->attr, c->n_in, s->n_out, s->type);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static cdr_status time_kernel(const instance *s, const cdr_kernel *k, double window_s, int n_threads, timing *t)
{
    const cdr_case *c = s->c;
    const size_t bytes = k->work_bytes ? k->work_bytes(c->attr, c->n_in, s->n_out, s->type, n_threads) : 0;
    const cdr_lane lane = { .n_threads = n_threads };
    void *work = NULL;
    const cdr_args a = { .attr = c->attr, .type = s->type, .ptr = s->ptr, .n_in = c->n_in, .n_out = s->n_out,
                         .work = bytes > 0 ? aligned(bytes, &work) : NULL, .lane = &lane };
    double seconds[MAX_RUNS];
    const int64_t begin = cdr_now_ns();
    cdr_status st = k->run(&a);
    int n = 0;
    while (st == CDR_OK && n < MAX_RUNS && (n < 2 || (double)(cdr_now_ns() - begin) * 1e-9 < window_s)) {
        const int64_t t0 = cdr_now_ns();
        st = k->run(&a);
        seconds[n++] = (double)CDR_MAX(cdr_now_ns() - t0, 1) * 1e-9;
    }
    cdr_free(work);
    if (st != CDR_OK) return st;
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    *t = (timing){ .best = seconds[0], .median = seconds[n / 2], .n = n };
    return CDR_OK;
}

static bool takes(const instance *s, const cdr_kernel *k, uint32_t isa)
{
    return k->device == CDR_DEV_CPU && k->run && !(k->needs & ~isa) && !(k->reject && k->reject(s->c->attr, s->c->n_in, s->n_out, s->type));
}

/* Lays weights as k reads them without packing; says whether that changed any. */
static bool lay_panels(instance *s, const cdr_kernel *k)
{
    bool any = false;
    for (int i = 0; s->c->op->layout && i < s->c->n_in; i++) {
        if (cdr_absent(&s->type[i]) || s->type[i].n_dim < 2) continue;
        const int layout = s->c->op->layout(k, i, s->type);
        if (layout == CDR_ROWS || !cdr_layout_takes(layout, &s->type[i])) continue;
        s->type[i].layout = (uint8_t)layout;
        any = true;
    }
    return any;
}

cdr_status cdr__bench_one(const cdr_case *c, int kind, bool panels, double window_s, uint32_t isa, int n_threads, cdr__bench_time *t, cdr_err *err)
{
    instance s;
    timing x;
    *t = (cdr__bench_time){ 0 };
    CDR_TRY(make_types(&s, c, err));
    for (const cdr_kernel *k = c->op->kernels; k && k->name && !t->kernel; k++) {
        const bool wanted = kind == CDR__BENCH_BEST || (kind == CDR__BENCH_BASE ? k->needs == 0 : k->needs == CDR_ISA_AVX2);
        if (wanted && takes(&s, k, isa)) t->kernel = k;
    }
    if (!t->kernel) return CDR_OK;
    t->panels = panels && lay_panels(&s, t->kernel);
    make_values(&s);
    const cdr_status st = time_kernel(&s, t->kernel, window_s, n_threads, &x);
    free_instance(&s);
    if (st != CDR_OK) return cdr_fail(err, st, "bench.failed", "bench: %s, %s: kernel %s failed", c->op->name, c->name, t->kernel->name);
    t->best = x.best;
    t->median = x.median;
    t->n = x.n;
    t->cost = s.cost;
    return CDR_OK;
}

static double floor_seconds(const bench *b, const instance *s)
{
    const double flops = s->bf16 ? b->top.bf16 : b->top.f32, bytes = CDR_MAX(b->top.read, b->top.copy);
    return CDR_MAX(s->cost.flop / flops, (s->cost.read + s->cost.write) / bytes);
}

static void print_ms(char out[32], double seconds)
{
    const double ms = seconds * 1e3;
    snprintf(out, 32, ms >= 100 ? "%.0f ms" : ms >= 10 ? "%.1f ms" : ms >= 0.1 ? "%.2f ms" : "%.4f ms", ms);
}

static void print_row(bench *b, const instance *s, const cdr_kernel *k, const timing *t)
{
    const double floor_s = floor_seconds(b, s);
    const bool product = strncmp(s->c->op->name, "linear", 6) == 0;
    const char *name = strcmp(s->c->op->name, "linear") == 0 ? "gemm" : s->c->op->name;
    if (b->report) {
        char lo[32], at[32];
        print_ms(lo, floor_s);
        print_ms(at, t->best);
        cdr_text_printf(b->report, "%-*s %-26s floor %-8s  %-8s %3.0f %%   %s", b->width, name, s->c->name, lo, at, 100 * floor_s / t->best, k->name);
        if (product) cdr_text_printf(b->report, "   %.1f GFLOP/s", s->cost.flop / t->best * 1e-9);
        cdr_text_printf(b->report, "\n");
    }
    if (b->json) {
        cdr_jw_begin(b->json, NULL, '{');
        cdr_jw_str(b->json, "op", s->c->op->name);
        cdr_jw_str(b->json, "shape", s->c->name);
        cdr_jw_str(b->json, "kernel", k->name);
        cdr_jw_real(b->json, "flop", s->cost.flop);
        cdr_jw_real(b->json, "bytes", s->cost.read + s->cost.write);
        cdr_jw_real(b->json, "floor_s", floor_s);
        cdr_jw_real(b->json, "best_s", t->best);
        cdr_jw_real(b->json, "median_s", t->median);
        cdr_jw_int(b->json, "runs", t->n);
        cdr_jw_end(b->json, '}');
    }
    b->n_rows++;
}

/* All kernels of the CPU that may run it, best first; quick: the first. */
static cdr_status bench_case(bench *b, const cdr_case *c, cdr_err *err)
{
    instance s;
    const int before = b->n_rows;
    cdr_status st = make_types(&s, c, err);
    if (st == CDR_OK) make_values(&s);
    for (const cdr_kernel *k = c->op->kernels; st == CDR_OK && k && k->name; k++) {
        if (!takes(&s, k, b->isa)) continue;
        timing t;
        st = time_kernel(&s, k, b->quick ? 0.1 : 0.5, b->n_threads, &t);
        if (st != CDR_OK) cdr_fail(err, st, "bench.failed", "bench: %s, %s: kernel %s failed", c->op->name, c->name, k->name);
        else print_row(b, &s, k, &t);
        if (b->quick || (st == CDR_OK && t.best > 1)) break;         /* a shape of seconds: its best kernel alone */
    }
    if (st == CDR_OK && b->n_rows == before && b->report)
        cdr_text_printf(b->report, "%-*s %-26s no kernel of this machine takes it\n", b->width, c->op->name, c->name);
    free_instance(&s);
    return st;
}

/* Where bench has no shape of its own: the test case that takes longest by its cost. NULL: there is none. */
static const cdr_case *largest_case(const bench *b, const cdr_op *op)
{
    const cdr_case *best = NULL;
    double most = -1;
    for (int i = 0; cdr_cases[i]; i++)
        for (const cdr_case *c = cdr_cases[i]; c->name; c++) {
            cdr_type t[CDR_MAX_OPERANDS];
            int n_out = 0;
            if (c->op != op) continue;
            for (int j = 0; j < c->n_in; j++) t[j] = (c->absent >> j) & 1u ? (cdr_type){ .dtype = CDR_N_DTYPES } : c->in[j];
            if (op->infer(c->attr, c->n_in, t, &n_out, t + c->n_in, NULL) != CDR_OK) continue;
            const cdr_cost cost = cdr_op_cost(op, c->attr, c->n_in, n_out, t);
            const double s = CDR_MAX(cost.flop / b->top.f32, (cost.read + cost.write) / b->top.read);
            if (s <= most) continue;
            most = s;
            best = c;
        }
    return best;
}

static cdr_status bench_op(bench *b, const cdr_op *op, cdr_err *err)
{
    const char *why = op->flags & CDR_OP_COLLECTIVE ? "a collective: needs ranks" : op->flags & CDR_OP_VIEW ? "a view: has no kernel" : NULL;
    int n = 0;
    for (const cdr_case *c = cdr__bench_shapes; !why && c->name; c++) {
        if (c->op != op || (b->quick && n > 0)) continue;
        CDR_TRY(bench_case(b, c, err));
        n++;
    }
    if (why || n > 0) {
        if (why && b->report) cdr_text_printf(b->report, "%-*s not timed: %s\n", b->width, op->name, why);
        return CDR_OK;
    }
    const cdr_case *c = largest_case(b, op);
    if (c) return bench_case(b, c, err);
    if (b->report) cdr_text_printf(b->report, "%-*s not timed: no shape, no test case\n", b->width, op->name);
    return CDR_OK;
}

/* "" takes all, gemm the products, else a name or a glob; an operator's gradients (name_...) come with its name. */
static bool selected(const char *pattern, const cdr_op *op)
{
    const char *p = strcmp(pattern, "gemm") == 0 ? "linear" : pattern;
    const size_t n = strlen(p);
    if (n == 0 || fnmatch(p, op->name, 0) == 0) return true;
    return strncmp(op->name, p, n) == 0 && op->name[n] == '_';
}

void cdr__bench_print_ceilings(const cdr_ceilings *c, uint32_t isa, int n_threads, int width, cdr_text *report, cdr_jw *json)
{
    if (report)
        cdr_text_printf(report, "%-*s bf16 GEMM %.0f GFLOP/s, f32 GEMM %.0f, memory %.1f GB/s read, %.1f copy       %d core%s, %s\n", width, "ceilings",
                        c->bf16 * 1e-9, c->f32 * 1e-9, c->read * 1e-9, c->copy * 1e-9, n_threads, n_threads > 1 ? "s" : "", cdr_isa_name(isa));
    if (!json) return;
    cdr_jw_begin(json, "ceilings", '{');
    cdr_jw_real(json, "bf16_flop_per_s", c->bf16);
    cdr_jw_real(json, "f32_flop_per_s", c->f32);
    cdr_jw_real(json, "memory_read_bytes_per_s", c->read);
    cdr_jw_real(json, "memory_copy_bytes_per_s", c->copy);
    cdr_jw_int(json, "threads", n_threads);
    cdr_jw_str(json, "isa", cdr_isa_name(isa));
    cdr_jw_begin(json, "registers_flop_per_s", '{');
    for (int i = 0; i < CDR_N_PEAKS; i++)
        if (c->peak[i] > 0) cdr_jw_real(json, cdr__bench_class_name(i), c->peak[i]);
    cdr_jw_end(json, '}');
    cdr_jw_end(json, '}');
}

cdr_status cdr_bench_run(const char *pattern, bool quick, uint32_t isa, int n_threads, cdr_text *report, cdr_jw *json, cdr_err *err)
{
    const char *names[256] = { "gemm" }, *p = pattern ? pattern : "";
    int n_names = 1, n_selected = 0, width = 9;
    for (int i = 0; cdr_ops[i]; i++) {
        if (n_names < CDR_COUNT(names)) names[n_names++] = cdr_ops[i]->name;
        if (!selected(p, cdr_ops[i])) continue;
        n_selected++;
        width = CDR_MAX(width, (int)strlen(cdr_ops[i]->name));
    }
    if (n_selected == 0) {
        cdr_pool *pool = cdr_pool_new();
        cdr_status st = cdr_fail(err, CDR_EUSER, "bench.unknown-op", "bench: no operator is named %s.%s", p, cdr_nearest(pool, p, names, n_names));
        cdr_pool_free(pool);
        return st;
    }
    bench b = { .quick = quick, .isa = isa, .n_threads = n_threads, .report = report, .json = json, .width = width };
    cdr_bench_ceilings(isa, n_threads, quick, &b.top);
    cdr__bench_print_ceilings(&b.top, isa, n_threads, width, report, json);
    if (json) cdr_jw_begin(json, "rows", '[');
    cdr_status st = CDR_OK;
    for (int i = 0; cdr_ops[i] && st == CDR_OK; i++)
        if (selected(p, cdr_ops[i])) st = bench_op(&b, cdr_ops[i], err);
    if (json) cdr_jw_end(json, ']');
    return st;
}
