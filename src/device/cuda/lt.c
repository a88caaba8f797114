/* lt.c: cuBLASLt through dlopen, a small table of its functions, and a fixed table of algorithms by shape.
 *
 * The first product of a shape asks for the heuristic's first algorithm and keeps it; every later one takes it from the
 * table, so a shape's bits do not change within a run, nor between runs on the same chip and library. Split-K may reduce
 * only in the compute type, in a separate ordered pass; schemes that add into the output are excluded.
 * Workspace: 32 MiB on the compute stream, none on the others (algorithms are chosen for what they will get).
 * cuBLASLt is column-major: a row-major C[m][n] = A B is C^T = B^T A^T there, so B is its first operand.
 */
#include "device/cuda/plugin.h"
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SLOTS = 1024, N_PROBE = 16 };
#define WORKSPACE_BYTES ((size_t)32 << 20)

/* one line a function; the types come from the header, so a changed signature does not compile */
#define LT_FUNCTIONS(X) \
    X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtMatmul) X(cublasLtMatmulAlgoGetHeuristic) \
    X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) \
    X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) \
    X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute)
#define LT_FIELD(f) __typeof__(&f) f;
typedef struct { LT_FUNCTIONS(LT_FIELD) } functions;

typedef struct {                       /* all that the choice depends on; no padding: compared by bytes */
    int64_t m, n, k, lda, ldb, ldc;
    int32_t align_a, align_b, align_c;
    uint8_t a_t, b_t, add, workspace, a_dtype, b_dtype, c_dtype, used;
} key;
_Static_assert(sizeof(key) == 6 * 8 + 3 * 4 + 8 + 4, "a key has only its tail as padding, which is zeroed");

typedef struct {
    key k;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, result;
    cublasLtMatmulAlgo_t algo;
    bool none;                         /* cuBLASLt takes no such product */
} slot;

struct cdr__lt {
    void *library; functions f;
    cublasLtHandle_t handle;
    void *workspace;
    slot slots[N_SLOTS];
};

static void *open_library(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so" };
    for (int i = 0; i < CDR_COUNT(names); i++) {
        void *l = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (l) return l;
    }
    return NULL;
}

static bool load(cdr__lt *lt, char *why, size_t n)
{
#define LT_LOAD(fn) do { \
        void *p_ = dlsym(lt->library, #fn); \
        if (!p_) { snprintf(why, n, "libcublasLt has no %s", #fn); return false; } \
        memcpy(&lt->f.fn, &p_, sizeof p_); \
    } while (0);
    LT_FUNCTIONS(LT_LOAD)
    return true;
}

cdr__lt *cdr__lt_open(char *why, size_t n)
{
    cdr__lt *lt = calloc(1, sizeof *lt);
    if (!lt) {
        snprintf(why, n, "out of host memory for the table of cuBLASLt");
        return NULL;
    }
    lt->library = open_library();
    if (!lt->library) snprintf(why, n, "libcublasLt.so.13 was not found (%s)", dlerror());
    else if (load(lt, why, n)) {
        cublasStatus_t st = lt->f.cublasLtCreate(&lt->handle);
        if (st != CUBLAS_STATUS_SUCCESS) snprintf(why, n, "cublasLtCreate returned %d", (int)st);
        else if (cudaMalloc(&lt->workspace, WORKSPACE_BYTES) == cudaSuccess) return lt;
        else snprintf(why, n, "no memory for the workspace of cuBLASLt");
    }
    cdr__lt_close(lt);
    return NULL;
}

static void clear(cdr__lt *lt, slot *s)
{
    if (s->desc) lt->f.cublasLtMatmulDescDestroy(s->desc);
    if (s->first) lt->f.cublasLtMatrixLayoutDestroy(s->first);
    if (s->second) lt->f.cublasLtMatrixLayoutDestroy(s->second);
    if (s->result) lt->f.cublasLtMatrixLayoutDestroy(s->result);
    memset(s, 0, sizeof *s);
}

void cdr__lt_close(cdr__lt *lt)
{
    if (!lt) return;
    for (int i = 0; i < N_SLOTS; i++) clear(lt, &lt->slots[i]);
    if (lt->handle) lt->f.cublasLtDestroy(lt->handle);
    cudaFree(lt->workspace);
    if (lt->library) dlclose(lt->library);
    free(lt);
}

/* largest power of two up to 256 that divides both the address and the pitch in bytes */
static int32_t alignment(const void *p, int64_t ld, int dtype)
{
    uint64_t bits = (uint64_t)(uintptr_t)p | (uint64_t)ld * (dtype == CDR_F32 ? 4u : 2u) | 256u;
    return (int32_t)(bits & (~bits + 1u));
}

static key key_of(const cdr_cuda_gemm *g, bool workspace)
{
    key k;
    memset(&k, 0, sizeof k);
    k.m = g->m; k.n = g->n; k.k = g->k;
    k.lda = g->lda; k.ldb = g->ldb; k.ldc = g->ldc;
    k.align_a = alignment(g->a, g->lda, g->a_dtype);
    k.align_b = alignment(g->b, g->ldb, g->b_dtype);
    k.align_c = alignment(g->c, g->ldc, g->c_dtype);
    k.a_t = g->a_t; k.b_t = g->b_t; k.add = g->add; k.workspace = workspace;
    k.a_dtype = g->a_dtype; k.b_dtype = g->b_dtype; k.c_dtype = g->c_dtype;
    k.used = 1;
    return k;
}

static cudaDataType_t type_of(int dtype) { return dtype == CDR_F32 ? CUDA_R_32F : CUDA_R_16BF; }

/* a row-major [rows][cols] with pitch ld, as column-major cols x rows */
static bool layout(cdr__lt *lt, cublasLtMatrixLayout_t *l, int dtype, int64_t rows, int64_t cols, int64_t ld)
{
    return lt->f.cublasLtMatrixLayoutCreate(l, type_of(dtype), (uint64_t)cols, (uint64_t)rows, ld) == CUBLAS_STATUS_SUCCESS;
}

static bool describe(cdr__lt *lt, slot *s)
{
    const key *k = &s->k;
    cublasOperation_t t = CUBLAS_OP_T, n = CUBLAS_OP_N;
    if (lt->f.cublasLtMatmulDescCreate(&s->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return false;
    if (lt->f.cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_TRANSA, k->b_t ? &t : &n, sizeof t) != CUBLAS_STATUS_SUCCESS) return false;
    if (lt->f.cublasLtMatmulDescSetAttribute(s->desc, CUBLASLT_MATMUL_DESC_TRANSB, k->a_t ? &t : &n, sizeof t) != CUBLAS_STATUS_SUCCESS) return false;
    return layout(lt, &s->first, k->b_dtype, k->b_t ? k->n : k->k, k->b_t ? k->k : k->n, k->ldb)
        && layout(lt, &s->second, k->a_dtype, k->a_t ? k->k : k->m, k->a_t ? k->m : k->k, k->lda)
        && layout(lt, &s->result, k->c_dtype, k->m, k->n, k->ldc);
}

static bool choose(cdr__lt *lt, slot *s)
{
    if (!describe(lt, s)) return false;
    cublasLtMatmulPreference_t p = NULL;
    size_t bytes = s->k.workspace ? WORKSPACE_BYTES : 0;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t align_first = (uint32_t)s->k.align_b, align_second = (uint32_t)s->k.align_a, align_result = (uint32_t)s->k.align_c;
    cublasLtMatmulHeuristicResult_t result;
    int n = 0;
    if (lt->f.cublasLtMatmulPreferenceCreate(&p) != CUBLAS_STATUS_SUCCESS) return false;
    const struct { cublasLtMatmulPreferenceAttributes_t attr; const void *value; size_t bytes; } set[] = {
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes },
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_first, sizeof align_first },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_second, sizeof align_second },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_result, sizeof align_result },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_result, sizeof align_result },
    };
    bool ok = true;
    for (int i = 0; ok && i < CDR_COUNT(set); i++)
        ok = lt->f.cublasLtMatmulPreferenceSetAttribute(p, set[i].attr, set[i].value, set[i].bytes) == CUBLAS_STATUS_SUCCESS;
    ok = ok && lt->f.cublasLtMatmulAlgoGetHeuristic(lt->handle, s->desc, s->first, s->second, s->result, s->result, p, 1, &result, &n)
                   == CUBLAS_STATUS_SUCCESS && n == 1 && result.state == CUBLAS_STATUS_SUCCESS;
    lt->f.cublasLtMatmulPreferenceDestroy(p);
    if (ok) s->algo = result.algo;
    return ok;
}

/* The shape's row; a new one is made at first use. A full neighbourhood gives up its first row, which is made again
 * when it is needed: the choice is a function of the key alone. */
static slot *find(cdr__lt *lt, const key *k)
{
    uint64_t h = 1469598103934665603u;                          /* FNV-1a */
    for (size_t i = 0; i < sizeof *k; i++) h = (h ^ ((const unsigned char *)k)[i]) * 1099511628211u;
    slot *home = &lt->slots[h % N_SLOTS], *s = home;
    for (int i = 0; i < N_PROBE; i++) {
        s = &lt->slots[(h + (uint64_t)i) % N_SLOTS];
        if (memcmp(&s->k, k, sizeof *k) == 0) return s;
        if (!s->k.used) break;
        if (i == N_PROBE - 1) s = home;
    }
    clear(lt, s);
    s->k = *k;
    s->none = !choose(lt, s);
    return s;
}

static bool takes(const cdr_cuda_gemm *g)
{
    if (g->a_dtype != g->b_dtype) return false;
    return g->a_dtype == CDR_BF16 ? g->c_dtype == CDR_BF16 || g->c_dtype == CDR_F32 : g->a_dtype == CDR_F32 && g->c_dtype == CDR_F32;
}

bool cdr__lt_run(cdr__lt *lt, void *stream, bool with_workspace, const cdr_cuda_gemm *g, cdr_status *st)
{
    if (!takes(g)) return false;
    key k = key_of(g, with_workspace);
    const slot *s = find(lt, &k);
    if (s->none) return false;
    float one = 1.0f, beta = g->add ? 1.0f : 0.0f;
    cublasStatus_t r = lt->f.cublasLtMatmul(lt->handle, s->desc, &one, g->b, s->first, g->a, s->second, &beta, g->c, s->result, g->c, s->result,
                                            &s->algo, with_workspace ? lt->workspace : NULL, with_workspace ? WORKSPACE_BYTES : 0, (cudaStream_t)stream);
    *st = r == CUBLAS_STATUS_SUCCESS ? CDR_OK : CDR_ERANK;
    return true;
}
