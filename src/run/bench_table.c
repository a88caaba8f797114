/* bench_table.c: the table of targets (`cadre bench --table`): each row a measured share of a ceiling of the same machine and run, or a
 * ratio of two kernels, beside what it should be at least and the goal.
 *   share of a peak    FLOPs / (time x the register-only rate of the instructions that the kernel is made of)
 *   share of copying   bytes that must move / (time x the rate of a copy in memory)
 *   ratio              time of another kernel or format on the same shape / time
 * A row of several calls adds their floors and their times. FLOPs are the operators' own count (`cost`: what must be computed), but for
 * KDA, which is counted as 6 d^2 + 3 C d + C^2 a token and head forward, 2.3 times that backward.
 * Weights in panels lie as the compiler lays frozen ones for that kernel; where a kernel reads no panels the row says "rows".
 * The times are the fastest of a window, as everywhere in bench. */
#include "ops/attention/attention.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "ops/kda/kda.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/router/router.h"
#include "run/bench.h"

enum { PEAK, COPY, RATIO };
typedef struct {
    const char *name;
    int kind;
    double least, goal;
    const cdr_case *call[4];         /* RATIO: what is measured, what it is compared with, one call or two each; else the calls whose times add up, NULL: none */
    bool panels[4];
    double flop[2];                  /* 0: the operator's count */
} row;

/* ---- the calls ------------------------------------------------------------------------------------------------------ */
static const cdr_linear_attr same = { .out_dtype = -1 };
static const cdr_kda_attr kda128 = { .heads = 4, .dim = 128, .chunk = 64, .lower_bound = -5, .norm_eps = 1e-5f };
static const cdr_attention_attr mla8 = { .heads = 8, .nope = 128, .ext = 64, .v = 128, .scale = 0.0721687836f };
static const cdr_router_attr top16 = { .top_k = 16, .renormalize = 1, .scale = 1.0f };
static const cdr_dispatch_attr of_896 = { .experts = 896 };
static const cdr_loss_attr chunks = { .chunk_tokens = 1024, .chunk_vocab = 4096 };
static const cdr_experts_attr one_expert = { .top_k = 1, .situ = 1, .beta = 4, .linear_beta = 25 };

static void one_document(double *start_T, double *pos_T, int64_t T)
{
    for (int64_t t = 0; t < T; t++) {
        start_T[t] = 0;
        pos_T[t] = (double)t;
    }
}
static void rows_of_attention(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[3], in[4], t[3].n[0]); }
static void rows_of_attention_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[4], in[5], t[4].n[0]); }
static void rows_of_kda(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[9], in[10], t[9].n[0]); }
static void rows_of_kda_bwd(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[10], in[11], t[10].n[0]); }
static void rows_of_router(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; one_document(in[2], in[3], t[2].n[0]); }
/* Sixteen different experts a token, ascending, evenly drawn. */
static void routes(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    const int64_t T = t[0].n[0], A = t[0].n[1], step = of_896.experts / A;
    for (int64_t q = 0; q < T * A; q++) in[0][q] = (double)(q % A * step + (int64_t)(cdr_rng_u64(key, (uint64_t)q) % (uint64_t)step));
}
/* Rows to E experts evenly, in order; in: from perm on. */
static void even_rows(double *const *in, int64_t T, int64_t E)
{
    for (int64_t e = 0; e <= E; e++) in[1][e] = (double)(T * e / E);
    for (int64_t t = 0; t < T; t++) in[0][t] = in[2][t] = (double)t;
}
static void rows_of_experts(double *const *in, const cdr_type *t, cdr_rng_key key) { (void)key; even_rows(in + CDR__EX_PERM, t[0].n[0], t[CDR__EX_W1].n[0]); }
static void rows_of_experts_bwd(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)key;
    even_rows(in + CDR__EXB_X + CDR__EX_PERM, t[0].n[0], t[CDR__EXB_X + CDR__EX_W1].n[0]);
}

#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define V(dt, n_) { .dtype = dt, .n_dim = 1, .n = { n_ } }
#define C3(dt, a, b, c) { .dtype = dt, .n_dim = 3, .n = { a, b, c } }
#define NORMAL { 'n', 1, 0 }
#define MADE { 'f', 0, 0 }
#define WEIGHT { 'n', 0.1, 0 }
#define LINEAR(T, N, K, dt) &(const cdr_case){ .name = #T "x" #N "x" #K, .op = &cdr_op_linear, .attr = &same, .n_in = 2, .in = { M(dt, T, K), M(dt, N, K) }, \
    .fill = { NORMAL, NORMAL } }
#define KDA_IN(dt, T, H, D) M(dt, T, (H) * (D)), M(dt, T, (H) * (D)), M(dt, T, (H) * (D)), M(dt, T, (H) * (D)), M(dt, T, H), M(dt, T, (H) * (D)), \
    V(CDR_F32, H), V(CDR_F32, (H) * (D)), V(CDR_F32, D), V(CDR_I32, T), V(CDR_I32, T)
#define KDA_FILL NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, { 'c', 0, 0 }, { 'c', -4, 0 }, { 'c', 1, 0 }, MADE, MADE
/* E experts of inner width 3,072 on rows of 3,584, m rows in all. Frozen: no gradient of a weight. */
#define EXPERTS_IN(dt, E, m) M(CDR_BF16, m, 3584), M(CDR_F32, m, 1), V(CDR_I32, m), V(CDR_I32, (E) + 1), M(CDR_I32, m, 1), \
    C3(dt, E, 3072, 3584), C3(dt, E, 3072, 3584), C3(dt, E, 3584, 3072), M(CDR_I64, 0, 3)
#define EXPERTS_FILL NORMAL, { 'c', 1, 0 }, MADE, MADE, MADE, WEIGHT, WEIGHT, WEIGHT, { 0 }
enum { NO_ADAPTERS = 0x3f };
#define EXPERTS(E, m, dt) &(const cdr_case){ .name = #E " experts", .op = &cdr_op_experts, .attr = &one_expert, .n_in = CDR__EX_N, .in = { EXPERTS_IN(dt, E, m) }, \
    .absent = 1u << CDR__EX_TABLE | NO_ADAPTERS << CDR__EX_A1, .fill = { EXPERTS_FILL }, .make = rows_of_experts, .skip_out = 2 }
#define EXPERTS_BWD(E, m, dt) &(const cdr_case){ .name = #E " experts", .op = &cdr_op_experts_bwd, .attr = &one_expert, .n_in = CDR__EXB_N, \
    .in = { M(CDR_BF16, m, 3584), EXPERTS_IN(dt, E, m), [CDR__EXB_GU] = M(CDR_BF16, m, 6144) }, \
    .absent = 1u << (CDR__EXB_X + CDR__EX_TABLE) | NO_ADAPTERS << (CDR__EXB_X + CDR__EX_A1) | 1u << CDR__EXB_DV, \
    .fill = { NORMAL, EXPERTS_FILL, [CDR__EXB_GU] = NORMAL }, .make = rows_of_experts_bwd, \
    .skip_out = 1u << CDR__EXB_DW1 | 1u << CDR__EXB_DW3 | 1u << CDR__EXB_DW2 | NO_ADAPTERS << CDR__EXB_DA1 }

static const cdr_case kda_fwd = { .name = "T4096 4 heads of 128", .op = &cdr_op_kda, .attr = &kda128, .n_in = 11, .in = { KDA_IN(CDR_BF16, 4096, 4, 128) },
    .fill = { KDA_FILL }, .make = rows_of_kda, .skip_out = 2 };
static const cdr_case kda_bwd = { .name = "T4096 4 heads of 128", .op = &cdr_op_kda_bwd, .attr = &kda128, .n_in = 12,
    .in = { M(CDR_BF16, 4096, 512), KDA_IN(CDR_BF16, 4096, 4, 128) }, .fill = { NORMAL, KDA_FILL }, .make = rows_of_kda_bwd };
#define KDA_FLOP (4096.0 * 4 * (6.0 * 128 * 128 + 3.0 * 64 * 128 + 64.0 * 64))
static const cdr_case mla_fwd = { .name = "T2048 8 heads of 192", .op = &cdr_op_attention, .attr = &mla8, .n_in = 6, .absent = 32, .make = rows_of_attention,
    .in = { M(CDR_BF16, 2048, 1536), M(CDR_BF16, 2048, 2048), M(CDR_BF16, 2048, 64), V(CDR_I32, 2048), V(CDR_I32, 2048) },
    .fill = { NORMAL, NORMAL, NORMAL, MADE, MADE } };
static const cdr_case mla_bwd = { .name = "T2048 8 heads of 192", .op = &cdr_op_attention_bwd, .attr = &mla8, .n_in = 9, .absent = 256,
    .make = rows_of_attention_bwd, .in = { M(CDR_BF16, 2048, 1024), M(CDR_BF16, 2048, 1536), M(CDR_BF16, 2048, 2048), M(CDR_BF16, 2048, 64),
    V(CDR_I32, 2048), V(CDR_I32, 2048), M(CDR_F32, 2048, 1024), M(CDR_F32, 2048, 8) }, .fill = { NORMAL, NORMAL, NORMAL, NORMAL, MADE, MADE, NORMAL, { 'c', 12, 0 } } };
static const cdr_case router = { .name = "T4096 16 of 896", .op = &cdr_op_router, .attr = &top16, .n_in = 4, .make = rows_of_router,
    .in = { M(CDR_F32, 4096, 896), V(CDR_F32, 896), V(CDR_I32, 4096), V(CDR_I32, 4096) }, .fill = { NORMAL, { 'n', 0.1, 0 }, MADE, MADE }, .skip_out = 4 };
static const cdr_case dispatch = { .name = "T4096 16 of 896", .op = &cdr_op_dispatch, .attr = &of_896, .n_in = 1, .make = routes,
    .in = { M(CDR_I32, 4096, 16) }, .fill = { MADE } };
static const cdr_case loss = { .name = "T512 W163840 D2304", .op = &cdr_op_loss_frozen, .attr = &chunks, .n_in = 4,
    .in = { M(CDR_BF16, 512, 2304), M(CDR_BF16, 163840, 2304), V(CDR_I32, 512), V(CDR_F32, 1) },
    .fill = { NORMAL, { 'n', 0.03, 0 }, { 'i', 0, 163839 }, { 'c', 0.001, 0 } } };

#define MXFP4_FWD(m, least_) { "MXFP4 expert 3072x3584, " #m " rows, forward", RATIO, least_, 0, \
    { EXPERTS(1, m, CDR_MXFP4), EXPERTS(1, m, CDR_BF16) }, { false, true }, { 0 } }
#define MXFP4_BWD(m, least_) { "  the same, backward", RATIO, least_, 0, { EXPERTS_BWD(1, m, CDR_MXFP4), EXPERTS_BWD(1, m, CDR_BF16) }, { false, true }, { 0 } }
#define MXFP4_FEW(m) { "MXFP4 expert 3072x3584, " #m " rows, forward", RATIO, 1.3, 0, \
    { EXPERTS(1, m, CDR_MXFP4), EXPERTS(1, m, CDR_BF16) }, { false, false }, { 0 } }
/* What a LoRA step does with a frozen layer of experts: forward without what it might keep, backward that makes gate and up again */
#define BWD_AGAIN(E, m, dt) &(const cdr_case){ .name = #E " experts", .op = &cdr_op_experts_bwd, .attr = &one_expert, .n_in = CDR__EXB_N, \
    .in = { M(CDR_BF16, m, 3584), EXPERTS_IN(dt, E, m) }, .fill = { NORMAL, EXPERTS_FILL }, .make = rows_of_experts_bwd, \
    .absent = 1u << (CDR__EXB_X + CDR__EX_TABLE) | NO_ADAPTERS << (CDR__EXB_X + CDR__EX_A1) | 1u << CDR__EXB_GU | 1u << CDR__EXB_DV, \
    .skip_out = 1u << CDR__EXB_DW1 | 1u << CDR__EXB_DW3 | 1u << CDR__EXB_DW2 | NO_ADAPTERS << CDR__EXB_DA1 }
#define MAPPED_STEP(m, rows_, least_) { "8 mapped MXFP4 experts, " #rows_ " rows each, forward and backward", RATIO, least_, 0, \
    { EXPERTS(8, m, CDR_MXFP4), BWD_AGAIN(8, m, CDR_MXFP4), EXPERTS(8, m, CDR_BF16), BWD_AGAIN(8, m, CDR_BF16) }, { true, true, true, true }, { 0 } }
static const row rows[] = {
    { "product 2048x2048x2048 bf16", PEAK, 0.90, 0.95, { LINEAR(2048, 2048, 2048, CDR_BF16) }, { false }, { 0 } },
    { "product 2048x2048x2048 f32", PEAK, 0.88, 0.95, { LINEAR(2048, 2048, 2048, CDR_F32) }, { false }, { 0 } },
    { "expert product 16x3072x3584 bf16, panels", PEAK, 0.85, 0, { LINEAR(16, 3072, 3584, CDR_BF16) }, { true }, { 0 } },
    { "expert product 64x3072x3584 bf16, panels", PEAK, 0.90, 0, { LINEAR(64, 3072, 3584, CDR_BF16) }, { true }, { 0 } },
    { "expert product 256x3072x3584 bf16, panels", PEAK, 0.92, 0, { LINEAR(256, 3072, 3584, CDR_BF16) }, { true }, { 0 } },
    MXFP4_FWD(64, 0.80), MXFP4_BWD(64, 0.80),
    MXFP4_FWD(128, 0.90), MXFP4_BWD(128, 0.90),
    MXFP4_FWD(256, 0.95), MXFP4_BWD(256, 0.95),
    MAPPED_STEP(512, 64, 0.80), MAPPED_STEP(1024, 128, 0.90),
    MXFP4_FEW(16), MXFP4_FEW(4), MXFP4_FEW(1),
    { "KDA H4 T4096 D128, forward", PEAK, 0.35, 0.42, { &kda_fwd }, { false }, { KDA_FLOP } },
    { "KDA H4 T4096 D128, with backward", PEAK, 0.28, 0.35, { &kda_fwd, &kda_bwd }, { false }, { KDA_FLOP, 2.3 * KDA_FLOP } },
    { "attention MLA 192/128 T2048, forward", PEAK, 0.45, 0, { &mla_fwd }, { false }, { 0 } },
    { "attention MLA 192/128 T2048, with backward", PEAK, 0.40, 0, { &mla_fwd, &mla_bwd }, { false }, { 0 } },
    { "router and sort, 4096 tokens, 16 of 896", COPY, 0.60, 0, { &router, &dispatch }, { false }, { 0 } },
    { "loss, vocabulary 163840, frozen head", PEAK, 0.80, 0, { &loss }, { false }, { 0 } },
};

/* ---- measuring and printing --------------------------------------------------------------------------------------------- */
enum { NAME_WIDTH = 58 };

void cdr_bench_print_line(const cdr_bench_line *l, cdr_text *report, cdr_jw *json)
{
    char value[32], least[32] = "", goal[32] = "";
    const char *form = l->multiple ? "%.2fx" : "%.0f %%";
    const double unit = l->multiple ? 1 : 100;
    snprintf(value, sizeof value, form, unit * l->value);
    if (l->least > 0) snprintf(least, sizeof least, form, unit * l->least);
    if (l->goal > 0) snprintf(goal, sizeof goal, form, unit * l->goal);
    if (report)
        cdr_text_printf(report, "%-*s %8s  %-8s %-6s %-5s %9.3f ms   of %s; %s\n", NAME_WIDTH, l->name, value, least, goal,
                        l->least <= 0 ? "" : l->value >= l->least ? "ok" : "open", l->seconds * 1e3, l->measure, l->kernel);
    if (!json) return;
    cdr_jw_begin(json, NULL, '{');
    cdr_jw_str(json, "name", l->name);
    cdr_jw_real(json, "value", l->value);
    cdr_jw_str(json, "of", l->measure);
    if (l->least > 0) cdr_jw_real(json, "least", l->least);
    else cdr_jw_null(json, "least");
    if (l->goal > 0) cdr_jw_real(json, "goal", l->goal);
    else cdr_jw_null(json, "goal");
    cdr_jw_real(json, "best_s", l->seconds);
    cdr_jw_str(json, "kernel", l->kernel);
    cdr_jw_end(json, '}');
}

typedef struct { cdr_ceilings top; double window_s; uint32_t isa; int n_threads; cdr_text *report; cdr_jw *json; } table;

static void not_timed(const table *b, const char *name)
{
    if (b->report) cdr_text_printf(b->report, "%-*s no kernel of this machine takes it\n", NAME_WIDTH, name);
}

static cdr_status measure(table *b, const row *r, cdr_err *err)
{
    cdr__bench_time t[4] = { { 0 } };
    double floor_s = 0, bytes = 0, seconds = 0;
    char of[96], kernels[96];
    const int n = r->call[2] ? 4 : 2, other = n / 2;
    for (int i = 0; i < n && r->call[i]; i++) {
        CDR_TRY(cdr__bench_one(r->call[i], CDR__BENCH_BEST, r->panels[i], b->window_s, b->isa, b->n_threads, &t[i], err));
        if (!t[i].kernel) {
            not_timed(b, r->name);
            return CDR_OK;
        }
        const int cls = cdr__bench_class(t[i].kernel);
        b->top.peak[cls] = CDR_MAX(b->top.peak[cls], cdr__bench_quick_peak(cls, b->n_threads));      /* again: the first may have been disturbed */
        floor_s += (i < 2 && r->flop[i] > 0 ? r->flop[i] : t[i].cost.flop) / b->top.peak[cls];
        bytes += t[i].cost.read + t[i].cost.write;
        seconds += t[i].best;
    }
    cdr_bench_line l = { .name = r->name, .measure = of, .kernel = kernels, .least = r->least, .goal = r->goal, .seconds = seconds };
    const char *lie = t[0].panels ? " in panels" : r->panels[0] ? " in rows" : "";
    if (r->kind == RATIO) lie = "";
    if (t[1].kernel && strcmp(t[0].kernel->name, t[1].kernel->name) != 0) snprintf(kernels, sizeof kernels, "%s, %s", t[0].kernel->name, t[1].kernel->name);
    else snprintf(kernels, sizeof kernels, "%s%s", t[0].kernel->name, lie);
    switch (r->kind) {
    case PEAK:
        l.value = floor_s / seconds;
        snprintf(of, sizeof of, "%s, %.0f GFLOP/s", cdr__bench_class_name(cdr__bench_class(t[0].kernel)), b->top.peak[cdr__bench_class(t[0].kernel)] * 1e-9);
        break;
    case COPY:
        l.value = bytes / b->top.copy / seconds;
        snprintf(of, sizeof of, "copying, %.1f GB/s", b->top.copy * 1e-9);
        break;
    default:
        l.seconds = t[0].best + (n == 4 ? t[1].best : 0);
        l.value = (seconds - l.seconds) / l.seconds;
        l.multiple = true;
        snprintf(of, sizeof of, "bf16 in %s, %.3f ms", t[other].panels ? "panels" : "rows", (seconds - l.seconds) * 1e3);
    }
    cdr_bench_print_line(&l, b->report, b->json);
    return CDR_OK;
}

/* Of bench's shapes of an operator, the one that takes least by its cost: base kernels take long. NULL: it has none. */
static const cdr_case *smallest_shape(const cdr_op *op)
{
    const cdr_case *best = NULL;
    double least = 0;
    for (const cdr_case *c = cdr__bench_shapes; c->name; c++) {
        cdr_type t[CDR_MAX_OPERANDS];
        int n_out = 0;
        if (c->op != op) continue;
        for (int j = 0; j < c->n_in; j++) t[j] = (c->absent >> j) & 1u ? (cdr_type){ .dtype = CDR_N_DTYPES } : c->in[j];
        if (op->infer(c->attr, c->n_in, t, &n_out, t + c->n_in, NULL) != CDR_OK) continue;
        const cdr_cost cost = cdr_op_cost(op, c->attr, c->n_in, n_out, t);
        const double x = cost.flop + 8 * (cost.read + cost.write);
        if (best && x >= least) continue;
        best = c;
        least = x;
    }
    return best;
}

/* Every operator that has a shape and a kernel for AVX2: how much faster that is than the portable one. Where memory bounds both,
 * the share of the copy rate is beside it. */
static cdr_status against_base(const table *b, cdr_err *err)
{
    for (int i = 0; cdr_ops[i]; i++) {
        const cdr_case *c = smallest_shape(cdr_ops[i]);
        cdr__bench_time fast, base = { 0 };
        char name[96], of[96];
        if (!c) continue;
        CDR_TRY(cdr__bench_one(c, CDR__BENCH_AVX2, false, CDR_MIN(b->window_s, 0.2), b->isa, b->n_threads, &fast, err));
        if (fast.kernel) CDR_TRY(cdr__bench_one(c, CDR__BENCH_BASE, false, CDR_MIN(b->window_s, 0.2), b->isa, b->n_threads, &base, err));
        if (!base.kernel) continue;
        snprintf(name, sizeof name, "AVX2: %s, %s", cdr_ops[i]->name, c->name);
        snprintf(of, sizeof of, "base, %.3f ms; %.0f %% of the copy rate", base.best * 1e3, 100 * (fast.cost.read + fast.cost.write) / b->top.copy / fast.best);
        const cdr_bench_line l = { .name = name, .measure = of, .kernel = fast.kernel->name, .value = base.best / fast.best, .least = 2,
                                   .seconds = fast.best, .multiple = true };
        cdr_bench_print_line(&l, b->report, b->json);
    }
    return CDR_OK;
}

cdr_status cdr_bench_table(bool quick, uint32_t isa, int n_threads, cdr_text *report, cdr_jw *json, cdr_err *err)
{
    table b = { .window_s = quick ? 0.1 : 0.5, .isa = isa, .n_threads = n_threads, .report = report, .json = json };
    cdr_bench_ceilings(isa, n_threads, quick, &b.top);
    cdr__bench_print_ceilings(&b.top, isa, n_threads, 9, report, json);
    if (report) {
        cdr_text_printf(report, "registers");
        for (int i = 0; i < CDR_N_PEAKS; i++)
            if (b.top.peak[i] > 0) cdr_text_printf(report, "%s %s %.0f GFLOP/s", i > 0 ? "," : "", cdr__bench_class_name(i), b.top.peak[i] * 1e-9);
        cdr_text_printf(report, "\n%-*s %8s  %-8s %-6s %-5s %12s\n", NAME_WIDTH, "", "reached", "at least", "goal", "", "time");
    }
    if (json) cdr_jw_begin(json, "table", '[');
    for (int i = 0; i < CDR_COUNT(rows); i++) CDR_TRY(measure(&b, &rows[i], err));
    return against_base(&b, err);
}
