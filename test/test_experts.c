/* test_experts.c: properties of dispatch and experts that no single case shows: nothing depends on the capacity, on the threads, on
 * whether gate and up are kept, on where a matrix lies or on other tokens, bit for bit; renaming experts changes roundings alone;
 * byte offsets beyond 2^32. Every CPU kernel of this machine is held to each. */
#include "ops/cpu.h"
#include "ops/dispatch/dispatch.h"
#include "ops/experts/experts.h"
#include "test.h"
#include <sys/mman.h>

enum { MAX_T = 1300, MAX_A = 16 };

/* weights: as x, or of values that MXFP4 has, packed or in F32; these are frozen. rank: of the adapters of w1, w3, w2, 0: none */
typedef enum { AS_X, PACKED, UNPACKED } weights;
typedef struct { int64_t T, A, E, L, I; int dtype; cdr_experts_attr at; weights w; int64_t rank[3]; } shape;

/* The operands of a forward and of a backward, and where their bytes lie. */
typedef struct {
    shape z;
    cdr_type t[CDR__EX_N + CDR__EX_N_OUT], tb[CDR__EXB_N + CDR__EXB_N_OUT];
    void *p[CDR__EX_N + CDR__EX_N_OUT], *pb[CDR__EXB_N + CDR__EXB_N_OUT];
    int32_t *idx;
} layer;

static void *bytes_of(const cdr_type *t)
{
    void *p = NULL;
    if (cdr_absent(t)) return NULL;
    if (posix_memalign(&p, 64, cdr_type_bytes(t) + 64) != 0) abort();
    memset(p, 0xff, cdr_type_bytes(t));                    /* NaN */
    return p;
}

static void fill(void *p, const cdr_type *t, uint64_t stream, float scale)
{
    const int64_t n = cdr_type_elems(t);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = scale * cdr_rng_normal((cdr_rng_key){ 5, stream, 0 }, (uint64_t)i);
    cdr_from_f32(t->dtype, x, p, n);
    free(x);
}

/* The same values whatever format they lie in */
static void fill_weights(void *p, const cdr_type *t, uint64_t stream, weights w)
{
    cdr_type packed = *t;
    packed.dtype = CDR_MXFP4;
    void *bytes = w == UNPACKED ? bytes_of(&packed) : p;
    fill(bytes, w == UNPACKED ? &packed : t, stream, 0.2f);
    if (w != UNPACKED) return;
    cdr_to_f32(CDR_MXFP4, bytes, p, cdr_type_elems(t));
    free(bytes);
}

/* Distinct experts of each token, ascending; token i is idle where i % 9 == 5, and experts 1 and E - 2 get nobody. */
static void draw_routes(const shape *z, int32_t *idx)
{
    for (int64_t i = 0; i < z->T; i++) {
        int64_t left = z->A, slot = 0, n = z->E - 2;
        for (int64_t e = 0; e < z->E; e++) {
            if (e == 1 || e == z->E - 2) continue;
            const bool take = (int64_t)(cdr_rng_u64((cdr_rng_key){ 6, 0, 0 }, (uint64_t)(i * z->E + e)) % (uint64_t)n) < left;
            n--;
            if (!take) continue;
            idx[i * z->A + slot++] = i % 9 == 5 ? -1 : (int32_t)e;
            left--;
        }
    }
}

static cdr_status run_dispatch(layer *y, int n_threads)
{
    const cdr_dispatch_attr at = { (int32_t)y->z.E };
    const cdr_type t[] = { y->t[CDR__EX_POS], y->t[CDR__EX_PERM], y->t[CDR__EX_OFFS], y->t[CDR__EX_POS] };
    void *const p[] = { y->idx, y->p[CDR__EX_PERM], y->p[CDR__EX_OFFS], y->p[CDR__EX_POS] };
    const cdr_lane lane = { .n_threads = n_threads };
    void *work = malloc(cdr__dispatch_work(&at, 1, 3, t, n_threads));
    const cdr_status st = cdr__dispatch_base(&(cdr_args){ .attr = &at, .type = t, .ptr = p, .n_in = 1, .n_out = 3, .work = work, .lane = &lane });
    free(work);
    return st;
}

static layer layer_new(shape z)
{
    layer y = { .z = z };
    int n = 0;
    y.z.at.top_k = (int32_t)z.A;
    cdr_type *t = y.t;
    t[CDR__EX_X] = cdr_type_2d(z.dtype, z.T, z.L);
    t[CDR__EX_P] = cdr_type_2d(CDR_F32, z.T, z.A);
    t[CDR__EX_PERM] = cdr_type_1d(CDR_I32, z.T * z.A);
    t[CDR__EX_OFFS] = cdr_type_1d(CDR_I32, z.E + 1);
    t[CDR__EX_POS] = cdr_type_2d(CDR_I32, z.T, z.A);
    const int w = z.w == PACKED ? CDR_MXFP4 : z.w == UNPACKED ? CDR_F32 : z.dtype;
    t[CDR__EX_W1] = t[CDR__EX_W3] = cdr_type_3d(w, z.E, z.I, z.L);
    t[CDR__EX_W2] = cdr_type_3d(w, z.E, z.L, z.I);
    for (int i = CDR__EX_TABLE; i < CDR__EX_N; i++) t[i] = (cdr_type){ .dtype = CDR_N_DTYPES };
    for (int m = 0; m < 3; m++) {
        if (z.rank[m] == 0) continue;
        t[CDR__EX_A1 + 2 * m] = cdr_type_3d(z.dtype, z.E, z.rank[m], m == 2 ? z.I : z.L);
        t[CDR__EX_B1 + 2 * m] = cdr_type_3d(z.dtype, z.E, m == 2 ? z.L : z.I, z.rank[m]);
        y.z.at.scale[m] = 0.3f + (float)m;
    }
    T_CHECK(cdr_op_experts.infer(&y.z.at, CDR__EX_N, t, &n, t + CDR__EX_N, NULL) == CDR_OK);
    for (int i = 0; i < CDR__EX_N + CDR__EX_N_OUT; i++) y.p[i] = bytes_of(&t[i]);
    fill(y.p[CDR__EX_X], &t[CDR__EX_X], 1, 1.0f);
    fill(y.p[CDR__EX_P], &t[CDR__EX_P], 2, 0.5f);
    for (int i = CDR__EX_W1; i <= CDR__EX_W2; i++) fill_weights(y.p[i], &t[i], (uint64_t)(3 + i), z.w);
    for (int i = CDR__EX_A1; i < CDR__EX_N; i++) if (y.p[i]) fill(y.p[i], &t[i], (uint64_t)(30 + i), 0.2f);
    y.idx = calloc((size_t)(z.T * z.A), sizeof *y.idx);
    draw_routes(&z, y.idx);
    T_CHECK(run_dispatch(&y, 2) == CDR_OK);
    y.tb[CDR__EXB_DU] = t[CDR__EX_X];
    memcpy(y.tb + CDR__EXB_X, t, CDR__EX_N * sizeof *t);
    y.tb[CDR__EXB_GU] = t[CDR__EX_N + CDR__EX_OUT_GU];
    y.tb[CDR__EXB_DV] = (cdr_type){ .dtype = CDR_N_DTYPES };
    T_CHECK(cdr_op_experts_bwd.infer(&y.z.at, CDR__EXB_N, y.tb, &n, y.tb + CDR__EXB_N, NULL) == CDR_OK);
    for (int i = CDR__EXB_N + CDR__EXB_DW1; i <= CDR__EXB_N + CDR__EXB_DW2 && z.w != AS_X; i++) y.tb[i].dtype = CDR_N_DTYPES;
    memcpy(y.pb + CDR__EXB_X, y.p, CDR__EX_N * sizeof *y.p);
    y.pb[CDR__EXB_DU] = bytes_of(&y.tb[CDR__EXB_DU]);
    fill(y.pb[CDR__EXB_DU], &y.tb[CDR__EXB_DU], 20, 1.0f);
    for (int i = CDR__EXB_N; i < CDR__EXB_N + CDR__EXB_N_OUT; i++) y.pb[i] = bytes_of(&y.tb[i]);
    return y;
}

static void layer_free(layer *y)
{
    for (int i = 0; i < CDR__EX_N + CDR__EX_N_OUT; i++) free(y->p[i]);
    free(y->pb[CDR__EXB_DU]);
    for (int i = CDR__EXB_N; i < CDR__EXB_N + CDR__EXB_N_OUT; i++) free(y->pb[i]);
    free(y->idx);
}

/* What a run is made of. keep: gu is written and read. */
typedef struct { const char *kernel; int n_threads; int64_t capacity; bool keep; } how;

static const cdr_kernel *named(const cdr_kernel *k, const char *name)
{
    while (k->name && strcmp(k->name, name) != 0) k++;
    return k->name ? k : NULL;
}

static void call(const cdr_op *op, const layer *y, const how *h, int n_in, int n_out, const cdr_type *t, void *const *p)
{
    const cdr_kernel *k = named(op->kernels, h->kernel);
    cdr_experts_attr at = y->z.at;
    at.capacity = h->capacity;
    const cdr_lane lane = { .n_threads = h->n_threads };
    const size_t n = k->work_bytes(&at, n_in, n_out, t, h->n_threads);
    void *work = NULL;
    if (posix_memalign(&work, 64, n + 64) != 0) abort();
    memset(work, 0xff, n);
    T_CHECK(k->run(&(cdr_args){ .attr = &at, .type = t, .ptr = p, .n_in = n_in, .n_out = n_out, .work = work, .lane = &lane }) == CDR_OK);
    free(work);
}

static void run(layer *y, const how *h)
{
    cdr_type none = { .dtype = CDR_N_DTYPES }, t[CDR__EX_N + CDR__EX_N_OUT], tb[CDR__EXB_N + CDR__EXB_N_OUT];
    void *p[CDR__EX_N + CDR__EX_N_OUT], *pb[CDR__EXB_N + CDR__EXB_N_OUT];
    memcpy(t, y->t, sizeof t), memcpy(tb, y->tb, sizeof tb), memcpy(p, y->p, sizeof p), memcpy(pb, y->pb, sizeof pb);
    for (int i = 0; i < CDR__EX_N; i++) pb[CDR__EXB_X + i] = p[i], tb[CDR__EXB_X + i] = t[i];
    pb[CDR__EXB_GU] = p[CDR__EX_N + 1];
    if (!h->keep) t[CDR__EX_N + 1] = tb[CDR__EXB_GU] = none, p[CDR__EX_N + 1] = pb[CDR__EXB_GU] = NULL;
    for (int i = CDR__EX_N; i < CDR__EX_N + CDR__EX_N_OUT; i++) if (p[i]) memset(p[i], 0xff, cdr_type_bytes(&t[i]));
    for (int i = CDR__EXB_N; i < CDR__EXB_N + CDR__EXB_N_OUT; i++) if (pb[i]) memset(pb[i], 0xff, cdr_type_bytes(&tb[i]));
    call(&cdr_op_experts, y, h, CDR__EX_N, CDR__EX_N_OUT, t, p);
    call(&cdr_op_experts_bwd, y, h, CDR__EXB_N, CDR__EXB_N_OUT, tb, pb);
}

/* All outputs but gu of a run, one after the other, with a hash of them. */
static uint64_t outputs(const layer *y)
{
    uint64_t h = cdr_hash64(y->p[CDR__EX_N], cdr_type_bytes(&y->t[CDR__EX_N]), 0);
    for (int i = CDR__EXB_N; i < CDR__EXB_N + CDR__EXB_N_OUT; i++)
        if (y->pb[i]) h = cdr_hash64(y->pb[i], cdr_type_bytes(&y->tb[i]), h);
    return h;
}

static uint64_t outputs_of(layer *y, how h)
{
    run(y, &h);
    return outputs(y);
}

/* Kernels of this machine */
enum { N_NAMES = 8 };

static int kernels(const char *name[N_NAMES])
{
    const uint32_t isa = cdr_cpu_isa(NULL);
    int n = 0;
    for (const cdr_kernel *k = cdr_op_experts.kernels; k->name; k++)
        if ((k->needs & isa) == k->needs && n < N_NAMES) name[n++] = k->name;
    T_CHECK(n >= 1 && n < N_NAMES);
    return n;
}

static const shape small = { .T = 150, .A = 4, .E = 9, .L = 48, .I = 40, .dtype = CDR_F32 },
    half = { .T = 150, .A = 4, .E = 9, .L = 44, .I = 72, .dtype = CDR_BF16, .at = { .situ = 1, .beta = 4, .linear_beta = 25 } },
    long_ = { .T = MAX_T, .A = 4, .E = 7, .L = 40, .I = 24, .dtype = CDR_F32 },          /* several chunks of the backward */
    wide = { .T = 20, .A = MAX_A, .E = 60, .L = 20, .I = 12, .dtype = CDR_F32 },
    adapted = { .T = 150, .A = 4, .E = 9, .L = 48, .I = 40, .dtype = CDR_F32, .rank = { 1, 3, 8 } },
    adapted_half = { .T = 130, .A = 2, .E = 5, .L = 160, .I = 140, .dtype = CDR_BF16, .rank = { 8, 0, 5 }, .at = { .situ = 1, .beta = 4, .linear_beta = 25 } },
    streamed = { .T = 12, .A = 2, .E = 5, .L = 832, .I = 640, .dtype = CDR_BF16, .rank = { 3, 4, 5 } },          /* matrices too large to be packed whole */
    packed = { .T = 60, .A = 2, .E = 7, .L = 160, .I = 96, .dtype = CDR_F32, .w = PACKED },
    packed_half = { .T = 60, .A = 4, .E = 9, .L = 64, .I = 160, .dtype = CDR_BF16, .w = PACKED, .rank = { 3, 3, 20 } };
static const shape *const shapes[] = { &small, &half, &long_, &wide, &adapted, &adapted_half, &packed, &packed_half };

static double element(const void *p, const cdr_type *t, int64_t i)
{
    double x;
    cdr_to_f64(t->dtype, (const char *)p + cdr_dtype_bytes(t->dtype, i), &x, 1);
    return x;
}

/* ---- what changes no bit ---------------------------------------------------------------------------------------------- */
static void any_capacity_gives_the_same_bits(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < CDR_COUNT(shapes); s++) {
        layer y = layer_new(*shapes[s]);
        const int64_t R = y.z.T * y.z.A, caps[] = { R / 16, R / 3, 13, R - 1, R };
        for (int k = 0; k < n; k++) {
            const uint64_t all = outputs_of(&y, (how){ name[k], 2, 0, false });
            for (int c = 0; c < CDR_COUNT(caps); c++) T_CHECK(outputs_of(&y, (how){ name[k], 2, caps[c], c % 2 == 0 }) == all);
            if (s == 0) T_CHECK(outputs_of(&y, (how){ name[k], 2, 1, false }) == all);
        }
        layer_free(&y);
    }
}

static void a_capacity_bounds_the_scratch(void)
{
    layer y = layer_new((shape){ .T = MAX_T, .A = 8, .E = 16, .L = 64, .I = 32, .dtype = CDR_BF16 });
    const int64_t R = y.z.T * y.z.A;
    for (int b = 0; b < 2; b++) {
        const cdr_kernel *k = named(b ? cdr_op_experts_bwd.kernels : cdr_op_experts.kernels, "base");
        size_t bytes[3];
        for (int c = 0; c < 3; c++) {
            cdr_experts_attr at = y.z.at;
            at.capacity = c == 0 ? 0 : c == 1 ? R / 4 : R / 16;
            bytes[c] = b ? k->work_bytes(&at, CDR__EXB_N, CDR__EXB_N_OUT, y.tb, 2) : k->work_bytes(&at, CDR__EX_N, CDR__EX_N_OUT, y.t, 2);
        }
        const size_t row = 2 * 64, sums = (size_t)(y.z.T * 64 * 4);      /* of a round; accumulators of several rounds */
        T_CHECK(bytes[0] + sums >= bytes[1] + row * (size_t)(R - R / 4));
        T_CHECK(bytes[1] >= bytes[2] + row * (size_t)(R / 4 - R / 16));
        T_CHECK(bytes[0] >= row * (size_t)R);
    }
    layer_free(&y);
}

static void kept_gate_and_up_give_the_same_bits(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < CDR_COUNT(shapes); s++) {
        layer y = layer_new(*shapes[s]);
        for (int k = 0; k < n; k++)
            T_CHECK(outputs_of(&y, (how){ name[k], 2, 0, true }) == outputs_of(&y, (how){ name[k], 2, 0, false }));
        layer_free(&y);
    }
}

static void threads_change_no_bit(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < CDR_COUNT(shapes); s++) {
        layer y = layer_new(*shapes[s]);
        for (int k = 0; k < n; k++) {
            const uint64_t one = outputs_of(&y, (how){ name[k], 1, 0, false });
            T_CHECK(outputs_of(&y, (how){ name[k], 2, 0, false }) == one);
            T_CHECK(outputs_of(&y, (how){ name[k], 5, 100, false }) == one);
        }
        layer_free(&y);
    }
}

static bool rounds_to_bf16(const char *name)
{
    const char *bits = named(cdr_op_experts.kernels, name)->bits;
    return strstr(bits, "bf16dot") || strstr(bits, "amx");
}

/* Relative Frobenius distance of an output of two runs */
static double distance(const void *x, const void *want, const cdr_type *t)
{
    double d = 0, n = 0;
    for (int64_t j = 0; j < cdr_type_elems(t); j++) {
        const double w = element(want, t, j), e = element(x, t, j) - w;
        d += e * e;
        n += w * w;
    }
    return sqrt(d / n);
}

/* Kernels of one class to the bit, and others within their rounding */
static void kernels_agree(void)
{
    const shape *const of[] = { &small, &adapted, &half, &adapted_half, &streamed };       /* those in F32 are for kernels that do not round */
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < CDR_COUNT(of); s++) {
        layer y = layer_new(*of[s]), o = layer_new(*of[s]);
        for (int k = 0; k + 1 < n; k++) {
            const bool same = strcmp(named(cdr_op_experts.kernels, name[k])->bits, named(cdr_op_experts.kernels, name[k + 1])->bits) == 0;
            const bool rounds = rounds_to_bf16(name[k]) || rounds_to_bf16(name[k + 1]);
            if (rounds && y.z.dtype == CDR_F32) continue;
            run(&y, &(how){ name[k], 2, 0, false });
            run(&o, &(how){ name[k + 1], 2, 0, false });
            if (same) T_CHECK(outputs(&y) == outputs(&o));
            for (int i = CDR__EXB_N; i < CDR__EXB_N + CDR__EXB_N_OUT; i++)
                if (y.pb[i]) T_CHECK(distance(y.pb[i], o.pb[i], &y.tb[i]) < (y.z.dtype == CDR_F32 ? 1e-5 : 1e-2));
        }
        layer_free(&y);
        layer_free(&o);
    }
}

/* Expert e's matrices lie elsewhere; the table says where. dW stays in order of experts. */
static void a_table_moves_matrices_and_no_bit(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    const shape *const of[] = { &small, &half, &adapted, &packed_half };        /* experts that 2 does not divide */
    for (int s = 0; s < CDR_COUNT(of); s++) {
        layer y = layer_new(*of[s]), o = layer_new(*of[s]);
        o.t[CDR__EX_TABLE] = cdr_type_2d(CDR_I64, o.z.E, 3);
        int64_t *table = o.p[CDR__EX_TABLE] = bytes_of(&o.t[CDR__EX_TABLE]);
        for (int m = 0; m < 3; m++) {
            const int64_t bytes = cdr_dtype_bytes(o.t[CDR__EX_W1].dtype, o.z.L * o.z.I);
            for (int64_t e = 0; e < o.z.E; e++) {
                table[e * 3 + m] = (e * 2 + m + 1) % o.z.E * bytes;        /* 2 and 9 have no common factor: a permutation */
                memcpy((char *)o.p[CDR__EX_W1 + m] + table[e * 3 + m], (char *)y.p[CDR__EX_W1 + m] + e * bytes, (size_t)bytes);
            }
        }
        for (int k = 0; k < n; k++)
            T_CHECK(outputs_of(&o, (how){ name[k], 2, 0, false }) == outputs_of(&y, (how){ name[k], 2, 0, false }));
        layer_free(&y);
        layer_free(&o);
    }
}

/* B = 0: u, dx, dp and dW are those without adapters, dA is zero, dB is not. */
static void adapters_of_zero_b_change_no_bit(void)
{
    const shape *const of[] = { &adapted, &adapted_half, &streamed, &packed_half };
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < CDR_COUNT(of); s++) {
        shape base = *of[s];
        memset(base.rank, 0, sizeof base.rank);
        layer y = layer_new(*of[s]), o = layer_new(base);
        for (int m = 0; m < 3; m++)
            if (y.p[CDR__EX_B1 + 2 * m]) memset(y.p[CDR__EX_B1 + 2 * m], 0, cdr_type_bytes(&y.t[CDR__EX_B1 + 2 * m]));
        for (int k = 0; k < n; k++) {
            run(&y, &(how){ name[k], 2, 0, false });
            run(&o, &(how){ name[k], 2, 0, false });
            T_CHECK(memcmp(y.p[CDR__EX_N], o.p[CDR__EX_N], cdr_type_bytes(&y.t[CDR__EX_N])) == 0);
            for (int i = CDR__EXB_N; i <= CDR__EXB_N + CDR__EXB_DW2; i++)
                if (y.pb[i]) T_CHECK(memcmp(y.pb[i], o.pb[i], cdr_type_bytes(&y.tb[i])) == 0);
            for (int i = CDR__EXB_N + CDR__EXB_DA1; i < CDR__EXB_N + CDR__EXB_N_OUT; i++) {
                double norm = 0;
                for (int64_t j = 0; y.pb[i] && j < cdr_type_elems(&y.tb[i]); j++) norm += fabs(element(y.pb[i], &y.tb[i], j));
                if (y.pb[i]) T_CHECK((norm == 0) == ((i - CDR__EXB_N - CDR__EXB_DA1) % 2 == 0));
            }
        }
        layer_free(&y);
        layer_free(&o);
    }
}

/* W2 = 0: what is left is the adapter of w2, whose product is of F32 and of the whole h on every kernel. So a kernel of BF16 gives the base kernel's u but for
 * sums in another order, which round differently now and then: h that counts twice what rounding left of it moves every third element. */
static void an_adapter_takes_h_once(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    layer y = layer_new((shape){ .T = 200, .A = 1, .E = 6, .L = 96, .I = 40, .dtype = CDR_BF16, .rank = { 0, 0, 8 } });
    const cdr_type *t = &y.t[CDR__EX_N];
    const size_t bytes = cdr_type_bytes(t);
    uint16_t *want = malloc(bytes);
    memset(y.p[CDR__EX_W2], 0, cdr_type_bytes(&y.t[CDR__EX_W2]));
    run(&y, &(how){ "base", 2, 0, false });
    memcpy(want, y.p[CDR__EX_N], bytes);
    for (int k = 0; k < n; k++) {
        int64_t other = 0;
        run(&y, &(how){ name[k], 2, 0, false });
        for (int64_t i = 0; i < cdr_type_elems(t); i++) other += ((const uint16_t *)y.p[CDR__EX_N])[i] != want[i];
        T_CHECK(other < cdr_type_elems(t) / 20);
    }
    free(want);
    layer_free(&y);
}

/* Packed weights against the same values in F32: everything that is computed, with adapters and without. */
static void packed_weights_are_their_values(void)
{
    const shape *const of[] = { &packed, &packed_half };
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < CDR_COUNT(of); s++)
        for (int adapters = 0; adapters < 2; adapters++) {
            shape a = *of[s];
            for (int m = 0; m < 3; m++) a.rank[m] = adapters ? 2 + m : 0;
            shape b = a;
            b.w = UNPACKED;
            layer y = layer_new(a), o = layer_new(b);
            T_CHECK(cdr_type_bytes(&y.t[CDR__EX_W2]) * 32 * 4 == cdr_type_bytes(&o.t[CDR__EX_W2]) * 17);
            for (int k = 0; k < n; k++) T_CHECK(outputs_of(&y, (how){ name[k], 2, 0, k == 0 }) == outputs_of(&o, (how){ name[k], 2, 0, k == 0 }));
            layer_free(&y);
            layer_free(&o);
        }
}

/* Tokens of the first half keep their bits when the others are idle; an idle token's row is exactly zero. */
static void a_token_depends_on_itself_alone(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < 2; s++) {
        layer y = layer_new(*shapes[s]), o = layer_new(*shapes[s]);
        const int64_t half_T = y.z.T / 2;
        for (int64_t i = half_T * o.z.A; i < o.z.T * o.z.A; i++) o.idx[i] = -1;
        T_CHECK(run_dispatch(&o, 2) == CDR_OK);
        for (int k = 0; k < n; k++) {
            run(&y, &(how){ name[k], 2, 0, false });
            run(&o, &(how){ name[k], 2, 50, false });
            const size_t bytes = (size_t)cdr_dtype_bytes(y.z.dtype, half_T * y.z.L);
            T_CHECK(memcmp(y.p[CDR__EX_N], o.p[CDR__EX_N], bytes) == 0);
            T_CHECK(memcmp(y.pb[CDR__EXB_N + CDR__EXB_DX], o.pb[CDR__EXB_N + CDR__EXB_DX], bytes) == 0);
            T_CHECK(memcmp(y.pb[CDR__EXB_N + CDR__EXB_DP], o.pb[CDR__EXB_N + CDR__EXB_DP], (size_t)(half_T * y.z.A) * 4) == 0);
            for (int64_t j = half_T * y.z.L; j < y.z.T * y.z.L; j++) T_CHECK(element(o.p[CDR__EX_N], &o.t[CDR__EX_N], j) == 0);
            for (int64_t j = half_T * y.z.A; j < y.z.T * y.z.A; j++)
                T_CHECK(element(o.pb[CDR__EXB_N + CDR__EXB_DP], &o.tb[CDR__EXB_N + CDR__EXB_DP], j) == 0);
        }
        layer_free(&y);
        layer_free(&o);
    }
}

/* ---- what it means ------------------------------------------------------------------------------------------------------ */
static void every_pair_has_one_row(void)
{
    for (int s = 0; s < CDR_COUNT(shapes); s++) {
        layer y = layer_new(*shapes[s]);
        const int32_t *perm = y.p[CDR__EX_PERM], *offs = y.p[CDR__EX_OFFS], *pos = y.p[CDR__EX_POS];
        int64_t pairs = 0, rows = 0;
        for (int64_t q = 0; q < y.z.T * y.z.A; q++) {
            pairs += y.idx[q] >= 0 ? 1 : 0;
            if (y.idx[q] < 0) T_CHECK(pos[q] == -1);
            else T_CHECK(perm[pos[q]] == q && pos[q] >= offs[y.idx[q]] && pos[q] < offs[y.idx[q] + 1]);
        }
        for (int64_t e = 0; e < y.z.E; e++) {
            rows += offs[e + 1] - offs[e];
            for (int64_t r = offs[e] + 1; r < offs[e + 1]; r++) T_CHECK(perm[r - 1] < perm[r]);
        }
        T_CHECK(rows == pairs && offs[y.z.E] == pairs && pairs < y.z.T * y.z.A);
        layer_free(&y);
    }
}

/* Where all experts are one expert, u depends on the sum of a token's weights alone, and is linear in it. */
static void weights_combine(void)
{
    layer y = layer_new(small), o = layer_new(small);
    const int64_t A = y.z.A, L = y.z.L;
    const cdr_type *tu = &y.t[CDR__EX_N];
    float *p = y.p[CDR__EX_P], *one = o.p[CDR__EX_P];
    layer *const both[] = { &y, &o };
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < 3; m++) {
            const size_t bytes = (size_t)cdr_dtype_bytes(y.z.dtype, L * y.z.I);
            for (int64_t e = 1; e < y.z.E; e++) memcpy((char *)both[i]->p[CDR__EX_W1 + m] + (size_t)e * bytes, both[i]->p[CDR__EX_W1 + m], bytes);
        }
    for (int64_t t = 0; t < y.z.T; t++)
        for (int64_t s = 0; s < A; s++) {
            p[t * A + s] = (float)(s + 1) / 5.0f;          /* sum 2 */
            one[t * A + s] = s == t % A ? 1.0f : 0.0f;
        }
    run(&y, &(how){ "base", 2, 0, false });
    run(&o, &(how){ "base", 2, 0, false });
    double norm = 0;
    for (int64_t j = 0; j < y.z.T * L; j++) {
        T_NEAR(element(y.p[CDR__EX_N], tu, j), 2 * element(o.p[CDR__EX_N], tu, j), 2e-5);
        norm += fabs(element(o.p[CDR__EX_N], tu, j));
    }
    T_CHECK(norm > 0.1 * (double)(y.z.T * L));
    layer_free(&y);
    layer_free(&o);
}

/* Expert e is called (5 e + 3) mod 9 and its matrices lie there; slots are sorted again, weights with them. */
static void names_of_experts_mean_nothing(void)
{
    layer y = layer_new(small), o = layer_new(small);
    const int64_t A = y.z.A, E = y.z.E;
    const float *p = y.p[CDR__EX_P];
    float *po = o.p[CDR__EX_P];
    int64_t slot_of[MAX_T][MAX_A];                         /* slot of y that became slot s of o */
    for (int m = 0; m < 3; m++) {
        const size_t bytes = (size_t)cdr_dtype_bytes(y.z.dtype, y.z.L * y.z.I);
        for (int64_t e = 0; e < E; e++)
            memcpy((char *)o.p[CDR__EX_W1 + m] + (size_t)((5 * e + 3) % E) * bytes, (char *)y.p[CDR__EX_W1 + m] + (size_t)e * bytes, bytes);
    }
    for (int64_t t = 0; t < y.z.T; t++) {
        int64_t n = 0;
        for (int64_t e = 0; e < E; e++)
            for (int64_t s = 0; s < A; s++)
                if (y.idx[t * A + s] >= 0 && (5 * y.idx[t * A + s] + 3) % E == e) {
                    slot_of[t][n] = s;
                    po[t * A + n] = p[t * A + s];
                    o.idx[t * A + n++] = (int32_t)e;
                }
    }
    T_CHECK(run_dispatch(&o, 2) == CDR_OK);
    run(&y, &(how){ "base", 2, 0, false });
    run(&o, &(how){ "base", 2, 0, false });
    for (int64_t j = 0; j < y.z.T * y.z.L; j++) {
        T_NEAR(element(y.p[CDR__EX_N], &y.t[CDR__EX_N], j), element(o.p[CDR__EX_N], &o.t[CDR__EX_N], j), 2e-5);
        T_NEAR(element(y.pb[CDR__EXB_N], &y.tb[CDR__EXB_N], j), element(o.pb[CDR__EXB_N], &o.tb[CDR__EXB_N], j), 2e-5);
    }
    const cdr_type *tp = &y.tb[CDR__EXB_N + CDR__EXB_DP];
    for (int64_t q = 0; q < y.z.T * A; q++)
        if (y.idx[q] >= 0) T_CHECK(element(o.pb[CDR__EXB_N + CDR__EXB_DP], tp, q) == element(y.pb[CDR__EXB_N + CDR__EXB_DP], tp, q / A * A + slot_of[q / A][q % A]));
    for (int m = CDR__EXB_N + CDR__EXB_DW1; m <= CDR__EXB_N + CDR__EXB_DW2; m++) {
        const size_t bytes = (size_t)(y.z.L * y.z.I) * 4;
        for (int64_t e = 0; e < E; e++)                    /* an expert's own chain of rows is the same: equal bits */
            T_CHECK(memcmp((char *)o.pb[m] + (size_t)((5 * e + 3) % E) * bytes, (char *)y.pb[m] + (size_t)e * bytes, bytes) == 0);
    }
    layer_free(&y);
    layer_free(&o);
}

static void nobody_gives_zeros(void)
{
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int s = 0; s < 2; s++) {
        layer y = layer_new(*shapes[s]);
        for (int k = 0; k < n; k++) {
            run(&y, &(how){ name[k], 2, 0, false });       /* experts 1 and E - 2 have nobody */
            for (int m = CDR__EXB_N + CDR__EXB_DW1; m <= CDR__EXB_N + CDR__EXB_DW2; m++)
                for (int64_t j = 0; j < y.z.L * y.z.I; j++) {
                    T_CHECK(element(y.pb[m], &y.tb[m], y.z.L * y.z.I + j) == 0);
                    T_CHECK(element(y.pb[m], &y.tb[m], (y.z.E - 2) * y.z.L * y.z.I + j) == 0);
                }
        }
        for (int64_t q = 0; q < y.z.T * y.z.A; q++) y.idx[q] = -1;
        T_CHECK(run_dispatch(&y, 2) == CDR_OK);
        for (int k = 0; k < n; k++) {
            run(&y, &(how){ name[k], 2, k * 100, true });
            for (int i = CDR__EX_N; i < CDR__EX_N + CDR__EX_N_OUT; i++)
                for (int64_t j = 0; y.p[i] && j < cdr_type_elems(&y.t[i]); j++) T_CHECK(element(y.p[i], &y.t[i], j) == 0);
            for (int i = CDR__EXB_N; i < CDR__EXB_N + CDR__EXB_N_OUT; i++)
                for (int64_t j = 0; y.pb[i] && j < cdr_type_elems(&y.tb[i]); j++) T_CHECK(element(y.pb[i], &y.tb[i], j) == 0);
        }
        layer_free(&y);
    }
}

/* ---- offsets beyond 32 bits ------------------------------------------------------------------------------------------------ */
static void *sparse(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    T_CHECK(p != MAP_FAILED);
    return p == MAP_FAILED ? NULL : p;
}

static void move_rows(void *dst, int64_t dst_pitch, const void *src, int64_t src_pitch, int64_t rows, int64_t cols, int dtype)
{
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)dst + cdr_dtype_bytes(dtype, r * dst_pitch), (const char *)src + cdr_dtype_bytes(dtype, r * src_pitch),
               (size_t)cdr_dtype_bytes(dtype, cols));
}

/* The last expert's matrices lie 5 GiB behind the first one's, found by the table. */
static void a_table_reaches_beyond_32_bits(void)
{
    const int64_t far = 5LL << 30;
    const char *name[N_NAMES];
    const int n = kernels(name);
    layer y = layer_new(small), o = layer_new(small);
    const int64_t bytes = cdr_dtype_bytes(y.z.dtype, y.z.L * y.z.I), E = y.z.E;
    char *map[3] = { NULL };
    o.t[CDR__EX_TABLE] = cdr_type_2d(CDR_I64, E, 3);
    int64_t *table = o.p[CDR__EX_TABLE] = bytes_of(&o.t[CDR__EX_TABLE]);
    for (int m = 0; m < 3; m++) {
        if (!(map[m] = sparse((size_t)(far + bytes)))) return;
        for (int64_t e = 0; e < E; e++) {
            table[e * 3 + m] = e == E - 1 ? far : e * bytes;
            memcpy(map[m] + table[e * 3 + m], (char *)y.p[CDR__EX_W1 + m] + e * bytes, (size_t)bytes);
        }
        free(o.p[CDR__EX_W1 + m]);
        o.p[CDR__EX_W1 + m] = map[m];
    }
    for (int k = 0; k < n; k++) T_CHECK(outputs_of(&o, (how){ name[k], 2, 0, false }) == outputs_of(&y, (how){ name[k], 2, 0, false }));
    for (int m = 0; m < 3; m++) {
        munmap(map[m], (size_t)(far + bytes));
        o.p[CDR__EX_W1 + m] = NULL;
    }
    layer_free(&y);
    layer_free(&o);
}

/* Rows 2^29 elements apart: the last rows of weights and of their gradients lie more than 2^32 elements from the first. */
static void strides_reach_beyond_32_bits(void)
{
    const shape z = { .T = 12, .A = 2, .E = 5, .L = 4, .I = 3, .dtype = CDR_BF16 };
    const int64_t pitch = 1LL << 29;
    const char *name[N_NAMES];
    const int n = kernels(name);
    for (int k = 0; k < n; k++) {
        layer y = layer_new(z), o = layer_new(z);
        const how h = { name[k], 2, 0, false };
        cdr_type tb[CDR__EXB_N + CDR__EXB_N_OUT], t[CDR__EX_N + CDR__EX_N_OUT];
        void *pb[CDR__EXB_N + CDR__EXB_N_OUT], *p[CDR__EX_N + CDR__EX_N_OUT];
        run(&y, &h);
        memcpy(t, o.t, sizeof t), memcpy(tb, o.tb, sizeof tb), memcpy(p, o.p, sizeof p), memcpy(pb, o.pb, sizeof pb);
        for (int m = 0; m < 3; m++) {
            cdr_type *w = &t[CDR__EX_W1 + m], *dw = &tb[CDR__EXB_N + CDR__EXB_DW1 + m];
            w->pitch = dw->pitch = pitch;
            if (!(p[CDR__EX_W1 + m] = sparse(cdr_type_bytes(w)))) return;
            if (!(pb[CDR__EXB_N + CDR__EXB_DW1 + m] = sparse(cdr_type_bytes(dw)))) return;
            T_CHECK(cdr_type_rows(w) * pitch > 1LL << 32);
            move_rows(p[CDR__EX_W1 + m], pitch, y.p[CDR__EX_W1 + m], cdr_type_cols(w), cdr_type_rows(w), cdr_type_cols(w), w->dtype);
        }
        t[CDR__EX_N + 1] = tb[CDR__EXB_GU] = (cdr_type){ .dtype = CDR_N_DTYPES };
        p[CDR__EX_N + 1] = pb[CDR__EXB_GU] = NULL;
        memcpy(tb + CDR__EXB_X, t, CDR__EX_N * sizeof *t);
        memcpy(pb + CDR__EXB_X, p, CDR__EX_N * sizeof *p);
        call(&cdr_op_experts, &o, &h, CDR__EX_N, CDR__EX_N_OUT, t, p);
        call(&cdr_op_experts_bwd, &o, &h, CDR__EXB_N, CDR__EXB_N_OUT, tb, pb);
        for (int m = 0; m < 3; m++) {
            const int i = CDR__EXB_N + CDR__EXB_DW1 + m;
            move_rows(o.pb[i], cdr_type_cols(&tb[i]), pb[i], pitch, cdr_type_rows(&tb[i]), cdr_type_cols(&tb[i]), CDR_F32);
            munmap(pb[i], cdr_type_bytes(&tb[i]));
            munmap(p[CDR__EX_W1 + m], cdr_type_bytes(&t[CDR__EX_W1 + m]));
        }
        T_CHECK(outputs(&o) == outputs(&y));
        layer_free(&y);
        layer_free(&o);
    }
}

/* ---- what is refused --------------------------------------------------------------------------------------------------------- */
static void refused(const cdr_experts_attr *at, const cdr_type *t, const char *why)
{
    cdr_type out[2];
    cdr_err e = { CDR_OK, "", "" };
    int n;
    T_CHECK(cdr_op_experts.infer(at, CDR__EX_N, t, &n, out, &e) == CDR_EINVAL);
    T_HAS(e.text, why);
}

static void wrong_operands_are_refused(void)
{
    layer y = layer_new(small);
    cdr_type t[CDR__EX_N];
    memcpy(t, y.t, sizeof t);
    t[CDR__EX_W2].n[1]++;
    refused(&y.z.at, t, "w2 is f32[9,49,40]");
    memcpy(t, y.t, sizeof t);
    t[CDR__EX_OFFS].n[0]--;
    refused(&y.z.at, t, "offs is i32[9]");
    memcpy(t, y.t, sizeof t);
    t[CDR__EX_TABLE] = cdr_type_2d(CDR_I64, y.z.E, 3);
    t[CDR__EX_W3].pitch = y.z.L + 8;
    refused(&y.z.at, t, "with a table, rows of weights must be dense");
    memcpy(t, y.t, sizeof t);
    t[CDR__EX_A3] = cdr_type_3d(CDR_F32, y.z.E, 4, y.z.L);
    refused(&y.z.at, t, "A3 without B3");
    t[CDR__EX_B3] = cdr_type_3d(CDR_F32, y.z.E, y.z.I, 5);
    refused(&y.z.at, t, "B3 is f32[9,40,5]; it must be f32[9,40,4]");
    memcpy(t, y.t, sizeof t);
    t[CDR__EX_W2].dtype = CDR_MXFP4;
    refused(&y.z.at, t, "w2 has rows of 40, 40 apart; MXFP4 packs 32");
    cdr_experts_attr at = y.z.at;
    at.top_k = 65;
    refused(&at, y.t, "65 experts a token");
    at = y.z.at;
    at.situ = 1;
    refused(&at, y.t, "must be above 0");
    layer_free(&y);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(any_capacity_gives_the_same_bits);
    T_RUN(a_capacity_bounds_the_scratch);
    T_RUN(kept_gate_and_up_give_the_same_bits);
    T_RUN(threads_change_no_bit);
    T_RUN(kernels_agree);
    T_RUN(a_table_moves_matrices_and_no_bit);
    T_RUN(adapters_of_zero_b_change_no_bit);
    T_RUN(an_adapter_takes_h_once);
    T_RUN(packed_weights_are_their_values);
    T_RUN(a_token_depends_on_itself_alone);
    T_RUN(every_pair_has_one_row);
    T_RUN(weights_combine);
    T_RUN(names_of_experts_mean_nothing);
    T_RUN(nobody_gives_zeros);
    T_RUN(a_table_reaches_beyond_32_bits);
    T_RUN(strides_reach_beyond_32_bits);
    T_RUN(wrong_operands_are_refused);
    return t_end();
}
