/* attention: per head h, with q_th = [nope | ext] and k_sh = [kv's key part of head h | kr_s]:
 *   s_ts = scale q_th . k_sh,  s in Omega_t = { start_t <= s <= pos_t, and bit s of sel_t where there is a sel }  (1)
 *   lse_th = log sum_s exp(s_ts),  p_ts = exp(s_ts - lse_th),  o_th = sum_s p_ts v_sh                            (2)
 * backward, with delta_th = do_th . o_th (o in F32):
 *   dv_sh = sum_t p_ts do_th                                                                                     (3)
 *   ds_ts = p_ts (do_th . v_sh - delta_th)                                                                       (4)
 *   dq_th = scale sum_s ds_ts k_sh,  dk_sh = scale sum_t ds_ts q_th,  dkr_s = sum_h of dk_sh's ext part          (5)
 * Sources: spec/model.md, 3.4 (K3's technical report, 2.1.2: o kept in F32 for delta); (3)-(5) Dao 2022, derived again
 * here and checked by finite differences.
 * Precision: scores, statistics and sums in F32; p and ds are never rounded, but for p in the
 * forward on products of BF16 (pair.inc: 1.7e-3), which o in F32 does not take. delta from a BF16 o costs 7e-4 to 1.2e-2 in
 * dq and dk (spec/numerics.md, 4.7), so o32 is kept beside o; where o is F32 it is its own o32.
 * sel carries no gradient. The mask must be the one that the forward had: it is an operand, never made again.
 */
#include "ops/attention/attention.h"

static cdr_status dims(const cdr_attention_attr *a, cdr_err *e)
{
    if (a->heads < 1 || a->nope < 0 || a->ext < 0 || a->nope + a->ext < 1 || a->v < 1)
        CDR_FAIL(e, CDR_EINVAL, "attention: %d heads with key parts %d + %d and value width %d; each must be positive (one key part may be 0)",
                 a->heads, a->nope, a->ext, a->v);
    if (a->core != CDR_ATT_DENSE && a->core != CDR_ATT_GATHERED) CDR_FAIL(e, CDR_EINVAL, "attention: there is no core %d", a->core);
    if (!(a->scale > 0.0f)) CDR_FAIL(e, CDR_EINVAL, "attention: scale %g is not positive", (double)a->scale);
    return CDR_OK;
}

/* A 2-D operand of F32 or BF16 with these rows and columns. rows 0: any. */
static cdr_status rows_of(const char *what, const cdr_type *t, int64_t rows, int64_t cols, cdr_err *e)
{
    char s[64];
    cdr_type_print(s, t);
    if (t->dtype != CDR_F32 && t->dtype != CDR_BF16) CDR_FAIL(e, CDR_EINVAL, "attention: %s is %s; it must be f32 or bf16", what, s);
    if (t->layout != CDR_ROWS || t->n_dim != 2) CDR_FAIL(e, CDR_EINVAL, "attention: %s is %s; it must be a matrix in rows", what, s);
    if (t->n[1] != cols || (rows > 0 && t->n[0] != rows))
        CDR_FAIL(e, CDR_EINVAL, "attention: %s is %s; the heads ask for [%lld, %lld]", what, s, (long long)(rows > 0 ? rows : t->n[0]), (long long)cols);
    return CDR_OK;
}

static cdr_status index_of(const char *what, const cdr_type *t, int64_t T, cdr_err *e)
{
    char s[64];
    cdr_type_print(s, t);
    if (t->dtype != CDR_I32 || cdr_type_elems(t) != T)
        CDR_FAIL(e, CDR_EINVAL, "attention: %s is %s; it must be i32 with one entry for each of %lld rows", what, s, (long long)T);
    return CDR_OK;
}

/* bits of S keys for each of T rows, or absent */
static cdr_status mask_of(const cdr_type *t, int64_t T, int64_t S, cdr_err *e)
{
    char s[64];
    if (cdr_absent(t)) return CDR_OK;
    cdr_type_print(s, t);
    if (t->dtype != CDR_I32 || t->layout != CDR_ROWS || t->n_dim != 2 || t->n[0] != T || t->n[1] != cdr_ceil_div(S, 32))
        CDR_FAIL(e, CDR_EINVAL, "attention: sel is %s; it must be i32 [%lld, %lld], a bit for each of %lld keys", s, (long long)T,
                 (long long)cdr_ceil_div(S, 32), (long long)S);
    return CDR_OK;
}

/* q, kv, kr, start, pos */
static cdr_status inputs(const cdr_attention_attr *a, const cdr_type *in, cdr_err *e)
{
    int64_t H = a->heads, T = in[0].n[0], S = in[1].n[0];
    CDR_TRY(rows_of("q", &in[0], 0, H * (a->nope + a->ext), e));
    CDR_TRY(rows_of("kv", &in[1], 0, H * (a->nope + a->v), e));
    if (a->ext == 0) {
        if (!cdr_absent(&in[2])) CDR_FAIL(e, CDR_EINVAL, "attention: kr is given, but the shared key part has width 0; leave it away");
    } else {
        if (cdr_absent(&in[2])) CDR_FAIL(e, CDR_EINVAL, "attention: kr is missing; the shared key part has width %d", a->ext);
        CDR_TRY(rows_of("kr", &in[2], S, a->ext, e));
    }
    CDR_TRY(index_of("start", &in[3], T, e));
    return index_of("pos", &in[4], T, e);
}

static cdr_status attention_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_attention_attr *a = attr;
    if (n_in != 6) CDR_FAIL(e, CDR_EINVAL, "attention: takes q, kv, kr, start, pos and sel (or none), got %d operands", n_in);
    CDR_TRY(dims(a, e));
    CDR_TRY(inputs(a, in, e));
    CDR_TRY(mask_of(&in[CDR__ATT_SEL], in[0].n[0], in[1].n[0], e));
    *n_out = 3;
    out[0] = cdr_type_2d(a->o_f32 ? CDR_F32 : in[0].dtype, in[0].n[0], (int64_t)a->heads * a->v);
    out[1] = cdr_type_2d(CDR_F32, in[0].n[0], (int64_t)a->heads * a->v);
    out[2] = cdr_type_2d(CDR_F32, in[0].n[0], a->heads);
    return CDR_OK;
}

static cdr_status attention_bwd_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e)
{
    const cdr_attention_attr *a = attr;
    if (n_in != 9) CDR_FAIL(e, CDR_EINVAL, "attention_bwd: takes do, q, kv, kr, start, pos, o, lse and sel (or none), got %d operands", n_in);
    CDR_TRY(dims(a, e));
    CDR_TRY(inputs(a, in + 1, e));
    int64_t T = in[CDR__ATB_Q].n[0], V = (int64_t)a->heads * a->v;
    if (in[CDR__ATB_KV].n[0] != T)
        CDR_FAIL(e, CDR_EINVAL, "attention_bwd: %lld queries, %lld keys; a cache has no gradient", (long long)T, (long long)in[CDR__ATB_KV].n[0]);
    CDR_TRY(rows_of("do", &in[CDR__ATB_DO], T, V, e));
    CDR_TRY(rows_of("o", &in[CDR__ATB_O], T, V, e));
    CDR_TRY(rows_of("lse", &in[CDR__ATB_LSE], T, a->heads, e));
    CDR_TRY(mask_of(&in[CDR__ATB_SEL], T, T, e));
    if (in[CDR__ATB_O].dtype != CDR_F32 || in[CDR__ATB_LSE].dtype != CDR_F32) CDR_FAIL(e, CDR_EINVAL, "attention_bwd: o and lse must be f32");
    *n_out = 3;
    out[0] = cdr_type_2d(in[CDR__ATB_Q].dtype, T, in[CDR__ATB_Q].n[1]);
    out[1] = cdr_type_2d(in[CDR__ATB_KV].dtype, T, in[CDR__ATB_KV].n[1]);
    out[2] = in[CDR__ATB_KR];
    if (!cdr_absent(&out[2])) out[2] = cdr_type_2d(in[CDR__ATB_KR].dtype, T, a->ext);
    return CDR_OK;
}

/* dout: of o alone. o32 and lse are for this backward; a model that reads them has no gradient and is told so. */
static cdr_status attention_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e)
{
    cdr_attention_attr a = *(const cdr_attention_attr *)cdr_graph_attr(g, c);
    cdr_val in[9] = { dout[0] };
    din[CDR__ATT_SEL] = CDR_NONE;
    in[CDR__ATB_SEL] = cdr_graph_in(g, c, CDR__ATT_SEL);
    for (int i = 0; i < 5; i++) {
        in[1 + i] = cdr_graph_in(g, c, i);
        din[i] = CDR_NONE;
    }
    if (dout[1] != CDR_NONE || dout[2] != CDR_NONE) CDR_FAIL(e, CDR_EINVAL, "attention: only its first output has a gradient");
    if (dout[0] == CDR_NONE || !(want[0] || want[1] || want[2])) return CDR_OK;
    cdr_val o = cdr_graph_out(g, c, 0), o32 = cdr_graph_out(g, c, 1);
    in[CDR__ATB_O] = o32 != CDR_NONE ? o32 : o;
    in[CDR__ATB_LSE] = cdr_graph_out(g, c, 2);
    if (in[CDR__ATB_LSE] == CDR_NONE || cdr_graph_type(g, in[CDR__ATB_O])->dtype != CDR_F32)
        CDR_FAIL(e, CDR_EINVAL, "attention: its backward needs lse and o in f32, and this call makes none; ask for outputs 1 and 2");
    cdr_val out[3];
    for (int i = 0; i < 3; i++) out[i] = want[i] && in[1 + i] != CDR_NONE ? CDR_NEW : CDR_NONE;
    if (cdr_graph_call(g, &cdr_op_attention_bwd, &a, 9, in, 3, out) < 0) return CDR_EINVAL;
    for (int i = 0; i < 3; i++) din[i] = out[i];
    return CDR_OK;
}

/* Pairs that a row may see: shapes do not know the documents, so this is one document (training), the whole cache (else). */
static double pairs(int64_t T, int64_t S) { return T == S ? 0.5 * (double)T * ((double)T + 1) : (double)T * (double)S; }

static void add_bytes(cdr_cost *c, int n_in, int n_out, const cdr_type *t)
{
    for (int i = 0; i < n_in + n_out; i++) {
        if (cdr_absent(&t[i])) continue;
        if (i < n_in) c->read += (double)cdr_type_bytes(&t[i]);
        else c->write += (double)cdr_type_bytes(&t[i]);
    }
}

static cdr_cost attention_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_attention_attr *a = attr;
    cdr_cost c = { 2.0 * a->heads * (a->nope + a->ext + a->v) * pairs(t[0].n[0], t[1].n[0]), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}

/* scores and dp again, then dv, dq, dk: 3 products of the key's width, 2 of the value's */
static cdr_cost attention_bwd_cost(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_attention_attr *a = attr;
    int64_t T = t[CDR__ATB_Q].n[0];
    cdr_cost c = { 2.0 * a->heads * (3.0 * (a->nope + a->ext) + 2.0 * a->v) * pairs(T, T), 0, 0, 0 };
    add_bytes(&c, n_in, n_out, t);
    return c;
}

/* Keep o32 and lse; or neither, and run the forward again. */
static int attention_saves(const void *attr, int n_in, const cdr_type *in, cdr_save *alt, int max)
{
    const cdr_attention_attr *a = attr;
    (void)n_in;
    int n = 0;
    if (n < max) alt[n++] = (cdr_save){ .keep = 6u, .again_flop = 0 };
    if (n < max) alt[n++] = (cdr_save){ .keep = 0, .again_flop = 2.0 * a->heads * (a->nope + a->ext + a->v) * pairs(in[0].n[0], in[1].n[0]) };
    return n;
}

static const char *reject_gathered(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_attention_attr *a = attr;
    (void)n_in, (void)n_out, (void)t;
    return a->core == CDR_ATT_GATHERED ? "it goes over all keys; the core is gathered" : NULL;
}
static const char *reject_dense(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_attention_attr *a = attr;
    (void)n_in, (void)n_out, (void)t;
    return a->core == CDR_ATT_GATHERED ? NULL : "it goes from list to list of keys; the core is dense";
}

/* The fast kernels load eight numbers at a time from every part of a head. */
static const char *reject_not_8(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    const cdr_attention_attr *a = attr;
    if (reject_gathered(attr, n_in, n_out, t)) return reject_gathered(attr, n_in, n_out, t);
    if (a->nope % 8 != 0 || a->ext % 8 != 0 || a->v % 8 != 0) return "a part of a head is not a multiple of 8 wide";
    if (a->nope + a->ext > 1024 || a->v > 1024) return "a head is wider than 1024";
    return NULL;
}

static const char *reject_f32(const void *attr, int n_in, int n_out, const cdr_type *t)
{
    if (t[CDR__ATT_Q].dtype != CDR_BF16 || t[CDR__ATT_KV].dtype != CDR_BF16 || (!cdr_absent(&t[CDR__ATT_KR]) && t[CDR__ATT_KR].dtype != CDR_BF16))
        return "q or a key is not bf16; it would be rounded";
    if (t[n_in].dtype != CDR_BF16) return "o is asked for in f32; p would be rounded to bf16";
    return reject_not_8(attr, n_in, n_out, t);
}

void cdr__attention_ref(const cdr_ref_args *a);
void cdr__attention_bwd_ref(const cdr_ref_args *a);

static const cdr_kernel attention_kernels[] = {
    { "amx", "amx", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 | CDR_ISA_AMX, reject_f32, cdr__attention_fwd_amx_work, NULL, cdr__attention_fwd_amx },
    { "avx512", "fma", CDR_DEV_CPU, CDR_ISA_AVX512, reject_not_8, cdr__attention_fwd_avx512_work, NULL, cdr__attention_fwd_avx512 },
    /* behind avx512: 153 against 86 ms on a Xeon, its only measurement (pair.inc); not measured on a Zen 4 */
    { "avx512_bf16", "bf16dot", CDR_DEV_CPU, CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16, reject_f32, cdr__attention_fwd_avx512_bf16_work, NULL,
      cdr__attention_fwd_avx512_bf16 },
    { "avx2", "fma", CDR_DEV_CPU, CDR_ISA_AVX2, reject_not_8, cdr__attention_fwd_avx2_work, NULL, cdr__attention_fwd_avx2 },
    { "gathered_avx512", "gathered", CDR_DEV_CPU, CDR_ISA_AVX512, reject_dense, cdr__attention_fwd_gathered_work, NULL, cdr__attention_fwd_gathered_avx512 },
    { "gathered_avx2", "gathered", CDR_DEV_CPU, CDR_ISA_AVX2, reject_dense, cdr__attention_fwd_gathered_work, NULL, cdr__attention_fwd_gathered_avx2 },
    { "gathered", "gathered", CDR_DEV_CPU, 0, reject_dense, cdr__attention_fwd_gathered_work, NULL, cdr__attention_fwd_gathered },
    { "base", "base", CDR_DEV_CPU, 0, reject_gathered, cdr__attention_fwd_base_work, NULL, cdr__attention_fwd_base },
    { .name = NULL }
};
static const cdr_kernel attention_bwd_kernels[] = {
    { "avx512", "fma", CDR_DEV_CPU, CDR_ISA_AVX512, reject_not_8, cdr__attention_bwd_avx512_work, NULL, cdr__attention_bwd_avx512 },
    { "avx2", "fma", CDR_DEV_CPU, CDR_ISA_AVX2, reject_not_8, cdr__attention_bwd_avx2_work, NULL, cdr__attention_bwd_avx2 },
    { "gathered_avx512", "gathered", CDR_DEV_CPU, CDR_ISA_AVX512, reject_dense, cdr__attention_bwd_gathered_work, NULL, cdr__attention_bwd_gathered_avx512 },
    { "gathered_avx2", "gathered", CDR_DEV_CPU, CDR_ISA_AVX2, reject_dense, cdr__attention_bwd_gathered_work, NULL, cdr__attention_bwd_gathered_avx2 },
    { "gathered", "gathered", CDR_DEV_CPU, 0, reject_dense, cdr__attention_bwd_gathered_work, NULL, cdr__attention_bwd_gathered },
    { "base", "base", CDR_DEV_CPU, 0, reject_gathered, cdr__attention_bwd_base_work, NULL, cdr__attention_bwd_base },
    { .name = NULL }
};

const cdr_op cdr_op_attention = {
    .name = "attention", .attr_bytes = sizeof(cdr_attention_attr), .optional = 6u, .infer = attention_infer, .grad = attention_grad,
    .saves = attention_saves, .cost = attention_cost, .ref = cdr__attention_ref, .kernels = attention_kernels
};
const cdr_op cdr_op_attention_bwd = {
    .name = "attention_bwd", .attr_bytes = sizeof(cdr_attention_attr), .optional = 7u, .add_ok = 7u, .infer = attention_bwd_infer,
    .cost = attention_bwd_cost, .ref = cdr__attention_bwd_ref, .kernels = attention_bwd_kernels
};

cdr_val cdr_attention(cdr_graph *g, cdr_val q, cdr_val kv, cdr_val kr, cdr_val start_T, cdr_val pos_T, const cdr_attention_attr *a)
{
    return cdr_attention_sel(g, q, kv, kr, CDR_NONE, start_T, pos_T, a);
}

cdr_val cdr_attention_sel(cdr_graph *g, cdr_val q, cdr_val kv, cdr_val kr, cdr_val sel_TB, cdr_val start_T, cdr_val pos_T, const cdr_attention_attr *a)
{
    cdr_val in[] = { q, kv, kr, start_T, pos_T, sel_TB }, out[] = { CDR_NEW, CDR_NEW, CDR_NEW };
    if (a->o_f32 || (q != CDR_NONE && cdr_graph_type(g, q)->dtype == CDR_F32)) out[1] = CDR_NONE;
    return cdr_graph_call(g, &cdr_op_attention, a, 6, in, 3, out) < 0 ? CDR_NONE : out[0];
}

cdr_val cdr_attention_lse(cdr_graph *g, cdr_val o_T_HV)
{
    if (g->failed) return CDR_NONE;
    for (int64_t i = g->n_calls - 1; i >= 0; i--) {
        const cdr_call *c = &g->calls[i];
        if (cdr_ops[c->op] == &cdr_op_attention && cdr_graph_out(g, c, 0) == o_T_HV) return cdr_graph_out(g, c, 2);
    }
    cdr_graph_fail(g, CDR_EINVAL, "attention: no call of it made this value; its lse is asked for");
    return CDR_NONE;
}
