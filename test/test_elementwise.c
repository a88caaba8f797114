/* test_elementwise.c: what the cases of operators bound by memory are too small or too tame for: outputs that are written past the caches,
 * aligned and not, equal the same rows in parts; conversions to BF16 of numbers of every kind, NaN among them; e^x and tanh in vectors equal
 * the scalar ones. Every kernel of this machine. */
#include "ops/copy/copy.h"
#include "ops/embedding/embedding.h"
#include "ops/layernorm/layernorm.h"
#include "ops/add/add.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include "ops/situ/situ.h"
#include "ops/swiglu/swiglu.h"
#include "ops/vector_simd.h"
#include "test.h"

enum { MAX_PTR = 16, SLACK = 64 };
static const cdr_lane lane = { .n_threads = 2 };

typedef struct { const char *name; const cdr_op *op; const void *attr; int n_in; cdr_type in[6]; uint32_t skip_out; } big_case;
typedef struct { const cdr_op *op; const void *attr; int n_in, n_out; cdr_type type[MAX_PTR]; void *ptr[MAX_PTR], *block[MAX_PTR]; } call;

static uint32_t isa_here(void)
{
    cdr_err e = { 0 };
    return cdr_cpu_isa(&e);
}

static void run(const call *c, const cdr_kernel *k, const cdr_type *type, void *const *ptr)
{
    const size_t bytes = k->work_bytes ? k->work_bytes(c->attr, c->n_in, c->n_out, type, lane.n_threads) : 0;
    void *work = cdr_alloc(bytes + 1);
    const cdr_args a = { .attr = c->attr, .type = type, .ptr = ptr, .n_in = c->n_in, .n_out = c->n_out, .work = work, .lane = &lane };
    T_CHECK(k->run(&a) == CDR_OK);
    cdr_free(work);
}

/* Outputs start `off` bytes after a multiple of 64. Inputs: numbers in [-2, 2); integers below 3000. */
static void fill(call *c, const big_case *b, size_t off)
{
    *c = (call){ .op = b->op, .attr = b->attr, .n_in = b->n_in };
    cdr_err e = { 0 };
    memcpy(c->type, b->in, sizeof b->in);
    T_CHECK(b->op->infer(b->attr, b->n_in, c->type, &c->n_out, c->type + b->n_in, &e) == CDR_OK);
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        if (i >= c->n_in && (b->skip_out >> (i - c->n_in) & 1u)) c->type[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
        if (cdr_absent(&c->type[i])) continue;
        const int64_t n = cdr_type_elems(&c->type[i]);
        c->block[i] = cdr_alloc((size_t)cdr_type_bytes(&c->type[i]) + 2 * SLACK);
        c->ptr[i] = (char *)c->block[i] + (SLACK - (uintptr_t)c->block[i] % SLACK) + (i < c->n_in ? 0 : off);
        uint32_t s = 12345u + (uint32_t)i;
        for (int64_t j = 0; j < n; j++) {
            s = s * 1664525u + 1013904223u;
            const float x = (float)(s >> 8) * 0x1p-22f - 2.0f;
            if (c->type[i].dtype == CDR_I32) ((int32_t *)c->ptr[i])[j] = (int32_t)(s >> 8) % 3000;
            else if (c->type[i].dtype == CDR_BF16) ((uint16_t *)c->ptr[i])[j] = cdr_f32_to_bf16(x);
            else ((float *)c->ptr[i])[j] = x;
        }
    }
}
static void release(call *c)
{
    for (int i = 0; i < MAX_PTR; i++) cdr_free(c->block[i]);
}

/* The same rows in four parts, each below the size that is written past the caches */
static void compare_parts(call *c, const cdr_kernel *k, const char *name)
{
    enum { PARTS = 4 };
    void *whole[MAX_PTR] = { NULL };
    const int64_t T = c->type[0].n[0];
    run(c, k, c->type, c->ptr);
    for (int o = c->n_in; o < c->n_in + c->n_out; o++) {
        if (!c->ptr[o]) continue;
        const size_t bytes = (size_t)cdr_type_bytes(&c->type[o]);
        whole[o] = cdr_alloc(bytes);
        memcpy(whole[o], c->ptr[o], bytes);
        memset(c->ptr[o], 0xff, bytes);
    }
    for (int p = 0; p < PARTS; p++) {
        cdr_type type[MAX_PTR];
        void *ptr[MAX_PTR];
        for (int i = 0; i < c->n_in + c->n_out; i++) {
            type[i] = c->type[i];
            ptr[i] = c->ptr[i];
            if (cdr_absent(&type[i]) || type[i].n[0] != T) continue;
            type[i].n[0] = T / PARTS;
            ptr[i] = (char *)c->ptr[i] + (size_t)p * (size_t)cdr_type_bytes(&type[i]);
        }
        T_CHECK(!cdr_streams(&type[c->n_in]));
        run(c, k, type, ptr);
    }
    for (int o = c->n_in; o < c->n_in + c->n_out; o++) {
        const bool large_equals_parts = !whole[o] || memcmp(whole[o], c->ptr[o], (size_t)cdr_type_bytes(&c->type[o])) == 0;
        if (!large_equals_parts) printf("  %s, kernel %s, output %d\n", name, k->name, o - c->n_in);
        T_CHECK(large_equals_parts);
        cdr_free(whole[o]);
    }
}

#define M(dt, r, c) { .dtype = dt, .n_dim = 2, .n = { r, c } }
#define V(dt, n_) { .dtype = dt, .n_dim = 1, .n = { n_ } }
#define NONE { .dtype = CDR_N_DTYPES }
enum { ROWS = 6400, COLS = 2052 };   /* no multiple of a vector; parts stay aligned to 8 bytes at least */

static void large_outputs(void)
{
    static const cdr_rmsnorm_attr eps = { .eps = 1e-5f };
    static const cdr_layernorm_attr ln = { .eps = 1e-5f };
    static const cdr_situ_attr situ = { .beta = 4, .linear_beta = 25 };
    static const cdr_copy_attr to_bf16 = { .dtype = CDR_BF16 }, to_f32 = { .dtype = CDR_F32 };
    static const cdr_scale_attr half = { .factor = 0.3f };
    static const cdr_rope_attr rope = { .heads = 12, .nope = 107, .ext = 64, .theta = 10000.0f };
    static const big_case cases[] = {
        { "add", &cdr_op_add, NULL, 2, { M(CDR_BF16, ROWS, COLS), M(CDR_F32, ROWS, COLS) }, 0 },
        { "copy to bf16", &cdr_op_copy, &to_bf16, 1, { M(CDR_F32, ROWS, COLS) }, 0 },
        { "copy to f32", &cdr_op_copy, &to_f32, 1, { M(CDR_BF16, ROWS, COLS) }, 0 },
        { "scale", &cdr_op_scale, &half, 1, { M(CDR_F32, ROWS, COLS) }, 0 },
        { "rmsnorm bf16", &cdr_op_rmsnorm, &eps, 2, { M(CDR_BF16, ROWS, COLS), V(CDR_BF16, COLS) }, 0 },
        { "rmsnorm f32", &cdr_op_rmsnorm, &eps, 2, { M(CDR_F32, ROWS, COLS), V(CDR_F32, COLS) }, 0 },
        { "rmsnorm_bwd", &cdr_op_rmsnorm_bwd, &eps, 4, { M(CDR_F32, ROWS, COLS), M(CDR_BF16, ROWS, COLS), V(CDR_BF16, COLS), V(CDR_F32, ROWS) }, 2 },
        { "layernorm", &cdr_op_layernorm, &ln, 3, { M(CDR_BF16, ROWS, COLS), V(CDR_BF16, COLS), NONE }, 0 },
        { "swiglu", &cdr_op_swiglu, NULL, 2, { M(CDR_BF16, ROWS, COLS), M(CDR_BF16, ROWS, COLS) }, 0 },
        { "situ", &cdr_op_situ, &situ, 2, { M(CDR_BF16, ROWS, COLS), M(CDR_F32, ROWS, COLS) }, 0 },
        { "rope", &cdr_op_rope, &rope, 3, { M(CDR_BF16, ROWS, COLS), V(CDR_I32, ROWS), V(CDR_I32, ROWS) }, 0 },
        { "embedding", &cdr_op_embedding, NULL, 4, { V(CDR_I32, ROWS), M(CDR_BF16, 3000, COLS), NONE, NONE }, 0 } };
    const uint32_t isa = isa_here();
    for (int i = 0; i < CDR_COUNT(cases); i++)
        for (size_t off = 0; off <= 4; off += 4) {
            call c;
            fill(&c, &cases[i], off);
            T_CHECK(cdr_streams(&c.type[c.n_in]));
            for (const cdr_kernel *k = c.op->kernels; k->name; k++) if (!(k->needs & ~isa)) compare_parts(&c, k, cases[i].name);
            release(&c);
            if (t_quick()) break;
        }
}

/* Each row of the table's gradient is the sum of its tokens in their order. */
static void large_table(void)
{
    enum { W = 3100, D = 2052, T = 70 };
    static const cdr_embedding_bwd_attr attr = { .table_rows = W, .feat_dtype = CDR_BF16 };
    static const big_case b = { "embedding_bwd", &cdr_op_embedding_bwd, &attr, 3, { M(CDR_F32, T, D), V(CDR_I32, T), NONE }, 2 };
    const uint32_t isa = isa_here();
    call c;
    fill(&c, &b, 0);
    T_CHECK(cdr_streams(&c.type[3]));
    int32_t *tokens = c.ptr[1];
    for (int t = 0; t < T; t++) tokens[t] %= 9;
    tokens[3] = W - 1;
    float *want = cdr_alloc((size_t)W * D * sizeof *want);
    memset(want, 0, (size_t)W * D * sizeof *want);
    for (int t = 0; t < T; t++) for (int d = 0; d < D; d++) want[(int64_t)tokens[t] * D + d] += ((const float *)c.ptr[0])[(int64_t)t * D + d];
    for (const cdr_kernel *k = c.op->kernels; k->name; k++) {
        if (k->needs & ~isa) continue;
        memset(c.ptr[3], 0xff, (size_t)W * D * sizeof *want);
        run(&c, k, c.type, c.ptr);
        T_CHECK(memcmp(want, c.ptr[3], (size_t)W * D * sizeof *want) == 0);
    }
    cdr_free(want);
    release(&c);
}

/* Every sign, exponent and upper mantissa, on both sides of each rounding bound; in rows that no vector divides. */
static void bf16_of_every_kind(void)
{
    static const uint32_t low[] = { 0, 1, 0x7fff, 0x8000, 0x8001, 0xffff };
    static const cdr_copy_attr to_bf16 = { .dtype = CDR_BF16 }, to_f32 = { .dtype = CDR_F32 };
    enum { N = 6 * 65536, C = 131, R = N / C };
    const cdr_type wide = M(CDR_F32, R, C), narrow = M(CDR_BF16, R, C), down[] = { wide, narrow }, up[] = { narrow, wide };
    uint32_t *x = cdr_alloc(N * sizeof *x), *back = cdr_alloc(N * sizeof *back);
    uint16_t *y = cdr_alloc(N * sizeof *y);
    const uint32_t isa = isa_here();
    for (uint32_t i = 0; i < N; i++) x[i] = (i * 40503u % 65536u) << 16 | low[i / 65536u];
    for (const cdr_kernel *k = cdr_op_copy.kernels; k->name; k++) {
        if (k->needs & ~isa) continue;
        const call c = { .op = &cdr_op_copy, .attr = &to_bf16, .n_in = 1, .n_out = 1 }, d = { .op = &cdr_op_copy, .attr = &to_f32, .n_in = 1, .n_out = 1 };
        run(&c, k, down, (void *const[]){ x, y });
        run(&d, k, up, (void *const[]){ y, back });
        int wrong = 0;
        for (int i = 0; i < R * C; i++) {
            float f;
            memcpy(&f, &x[i], 4);
            wrong += y[i] != cdr_f32_to_bf16(f) || back[i] != (uint32_t)y[i] << 16;
        }
        T_CHECK(wrong == 0);
    }
    cdr_free(x);
    cdr_free(y);
    cdr_free(back);
}

static bool same(float a, float b)
{
    return (a != a && b != b) || memcmp(&a, &b, 4) == 0;
}

/* silu and situ of floats of every kind, by each kernel, against the scalar functions of ops/cpu.h */
static void elementary_functions(void)
{
    enum { N = 1 << 20 };
    static const cdr_situ_attr situ = { .beta = 4, .linear_beta = 25 };
    const cdr_type row = M(CDR_F32, 1, N), types[] = { row, row, row };
    float *x = cdr_alloc(N * sizeof *x), *one = cdr_alloc(N * sizeof *one), *y = cdr_alloc(N * sizeof *y);
    const uint32_t isa = isa_here();
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t bits = i % 2 ? i * 4099u : (i * 2654435761u & 0x87ffffffu) | 0x38000000u;   /* all floats; those around 1 */
        memcpy(&x[i], &bits, 4);
        one[i] = 1.0f;
    }
    for (int which = 0; which < 2; which++) {
        const call c = { .op = which ? &cdr_op_situ : &cdr_op_swiglu, .attr = which ? &situ : NULL, .n_in = 2, .n_out = 1 };
        for (const cdr_kernel *k = c.op->kernels; k->name; k++) {
            if (k->needs & ~isa) continue;
            run(&c, k, types, (void *const[]){ x, one, y });
            int wrong = 0;
            for (int i = 0; i < N; i++) {
                const float e = 1.0f + cdr_exp(-x[i]), up = 25.0f * cdr_tanh(1.0f * (1.0f / 25.0f));
                wrong += !same(y[i], which ? 4.0f * cdr_tanh(x[i] * 0.25f) / e * up : x[i] / e);
            }
            T_CHECK(wrong == 0);
        }
    }
    cdr_free(x);
    cdr_free(one);
    cdr_free(y);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(large_outputs);
    T_RUN(large_table);
    T_RUN(bf16_of_every_kind);
    T_RUN(elementary_functions);
    return t_end();
}
