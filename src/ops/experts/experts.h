/* experts.h: the gated MLPs of a mixture, on rows sorted by expert, and the weighted sum of each token's experts.
 *
 *   cdr_experts_attr a = { .top_k = 4, .capacity = 0 };                                   // silu(gate) * up; .situ: SiTU-GLU
 *   cdr_dispatch(g, idx_TA, E, &perm, &offs, &pos);
 *   cdr_val u_TL = cdr_experts(g, x_TL, p_TA, perm, offs, pos, w1_EIL, w3_EIL, w2_ELI, CDR_NONE, NULL, &a, false);
 */
#ifndef CDR_OP_EXPERTS_H
#define CDR_OP_EXPERTS_H

#include "graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t top_k, situ;         /* A; 0: silu(gate) * up, 1: SiTU-GLU with beta and linear_beta */
    float beta, linear_beta;
    int64_t capacity;            /* routed rows worked on at a time, 0: all of them. Bounds scratch; changes no bit */
    float scale[3];              /* of the adapters of w1, w3, w2 */
    int32_t zero;                /* fills the struct */
} cdr_experts_attr;
_Static_assert(sizeof(cdr_experts_attr) == 40, "attributes are compared by bytes: no padding");

/* in: x_TL (F32 or BF16), p_TA F32, perm_R, offs_E1, pos_TA (dispatch.h; R = T A), w1_EIL, w3_EIL, w2_ELI (F32, BF16, or MXFP4: frozen),
 *     table_E3 I64, may be absent: byte offset of expert e's matrices from the three base pointers, whose rows are dense then,
 *     adapters A1_EKL, B1_EIK, A3_EKL, B3_EIK, A2_EKI, B2_ELK (F32 or BF16; in pairs, each pair may be absent and has a rank K of its own)
 *     A matrix that is one for all experts is multiplied outside, once a token: in place of A1, A3 stands h_TK = scale A x (dtype of x), and
 *     A2 without B2 gives v, which B2 is to be multiplied with. scale is not read there.
 * out: u_TL (dtype of x), gu_R2I (dtype of x), may be absent: gate | up in dispatch order, for the backward; v_TK (dtype of x), with A2 alone */
extern const cdr_op cdr_op_experts;
/* in: du_TL, then the forward's, then gu, which may be absent: gate and up are made again then; dv_TK, with A2 alone
 * out: dx_TL, dp_TA F32, dw1_EIL, dw3_EIL, dw2_ELI F32, in order of experts whatever the table says, gradients of the adapters F32, of
 *      h_TK in its place; any may be absent */
extern const cdr_op cdr_op_experts_bwd;

typedef struct { cdr_val a, b; } cdr_experts_adapter;        /* CDR_NONE both: none */
/* adapters: of w1, w3, w2, or what stands in their place; NULL: none. Returns u; with A2 alone, v is output 2 of the call. */
cdr_val cdr_experts(cdr_graph *g, cdr_val x, cdr_val p, cdr_val perm, cdr_val offs, cdr_val pos, cdr_val w1, cdr_val w3, cdr_val w2,
                    cdr_val table, const cdr_experts_adapter adapters[3], const cdr_experts_attr *a, bool keep_gate_up);

/* Experts over the ranks of an expert group (size of them, a power of two): rank j holds the stacks of experts
 * [j E / size, (j + 1) E / size). The shard hook of experts puts it in place of experts, and its gradient is experts_ep_bwd. Both are
 * collectives: rows travel to the rank that has their expert and back, in as many rounds as the fullest rank needs. coll.order FREE: the
 * gradient of a stack is one chain over all rows, whichever rank they came from; balanced placement does not read it. */
typedef struct {
    cdr_coll coll;
    cdr_experts_attr experts;    /* capacity is not read: cap is */
    int32_t size, n_experts;     /* ranks of the group; E, all of them */
    int32_t balanced, zero;      /* redundant experts (ep_balance.c). 0: none. 1: even to a row, cap at least T A; gives no gradients of
                                  * stacks. 2: an (expert, source) moves as a whole, cap at least T A + T. zero fills the struct */
    int64_t cap;                 /* rows that a rank works on in a round: at least T, so that every (expert, source) fits */
} cdr_experts_ep_attr;
_Static_assert(sizeof(cdr_experts_ep_attr) == sizeof(cdr_coll) + 64, "attributes are compared by bytes: no padding");

/* in: those of experts, with offs [size, E + 1] of all ranks, and local stacks, [E / size, ..]
 * out: u_TL; recv [cap, L], back [T A, L] (dtype of x): rows on their way, L + K wide with A2 alone; slots, like the stacks w1, w3, w2,
 *      A1 .. B2: redundant experts; v_TK. back may be absent where one round always suffices, slots where placement is not balanced, or with
 *      their stack. */
extern const cdr_op cdr_op_experts_ep;
/* in: du_TL, then the forward's, then dv_TK
 * out: those of experts_bwd, with gradients of the local stacks, summed over the group's tokens; recv [cap, L], recv_dp F32 [cap],
 *      back [T A, L], wider by the columns of each h_TK; slots, nodes F32: sums of gradients on their way home, for dw1, dw3, dw2, dA1 .. dB2.
 *      Gradients may be absent, recv and back where there is neither dx nor a dh, recv_dp with dp, nodes with their gradient or where
 *      balanced is not 2. */
extern const cdr_op cdr_op_experts_ep_bwd;

/* ---- inside of the folder ------------------------------------------------------------------------------------------ */
enum { CDR__EX_X, CDR__EX_P, CDR__EX_PERM, CDR__EX_OFFS, CDR__EX_POS, CDR__EX_W1, CDR__EX_W3, CDR__EX_W2, CDR__EX_TABLE,
       CDR__EX_A1, CDR__EX_B1, CDR__EX_A3, CDR__EX_B3, CDR__EX_A2, CDR__EX_B2, CDR__EX_N };
enum { CDR__EX_OUT_U, CDR__EX_OUT_GU, CDR__EX_OUT_V, CDR__EX_N_OUT };
/* of the backward: du, then the forward's inputs, then gu and dv */
enum { CDR__EXB_DU, CDR__EXB_X, CDR__EXB_GU = CDR__EXB_X + CDR__EX_N, CDR__EXB_DV, CDR__EXB_N };
enum { CDR__EXB_DX, CDR__EXB_DP, CDR__EXB_DW1, CDR__EXB_DW3, CDR__EXB_DW2,
       CDR__EXB_DA1, CDR__EXB_DB1, CDR__EXB_DA3, CDR__EXB_DB3, CDR__EXB_DA2, CDR__EXB_DB2, CDR__EXB_N_OUT };
/* of the exchange: du, then the forward's inputs, then dv */
enum { CDR__EPB_DV = CDR__EXB_GU, CDR__EPB_N };
enum { CDR__EP_N_STACKS = 9 };           /* W1, W3, W2, A1 .. B2 */
enum { CDR__EP_OUT_U, CDR__EP_OUT_RECV, CDR__EP_OUT_BACK, CDR__EP_OUT_SLOTS, CDR__EP_OUT_V = CDR__EP_OUT_SLOTS + CDR__EP_N_STACKS, CDR__EP_N_OUT };
enum { CDR__EPB_OUT_RECV = CDR__EXB_N_OUT, CDR__EPB_OUT_DP, CDR__EPB_OUT_BACK, CDR__EPB_OUT_SLOTS, CDR__EPB_OUT_NODES = CDR__EPB_OUT_SLOTS + CDR__EP_N_STACKS,
       CDR__EPB_N_OUT = CDR__EPB_OUT_NODES + CDR__EP_N_STACKS };
/* Stack k of the forward's operands: the adapters stand behind the table. */
static inline int cdr__ep_stack(int k) { return k < 3 ? CDR__EX_W1 + k : CDR__EX_A1 + k - 3; }
/* t: of the forward's operands. A stack, which is there and has a matrix for each expert: not h_TK, in place of A1 or A3 */
static inline bool cdr__ex_is_stack(const cdr_type *t, int operand) { return !cdr_absent(&t[operand]) && t[operand].n_dim == 3; }
/* Matrix m (0: w1, 1: w3, 2: w2) has an adapter of its own for each expert, and is formed with it */
static inline bool cdr__ex_fused(const cdr_type *t, int m) { return cdr__ex_is_stack(t, CDR__EX_A1 + 2 * m) && !cdr_absent(&t[CDR__EX_B1 + 2 * m]); }
/* Columns of h_TK of w1 or w3 (m: 0, 1), and of v_TK; 0: there is none. Of a row on its way to its expert, and home, in elements */
static inline int64_t cdr__ex_low_in(const cdr_type *t, int m)
{
    const cdr_type *a = &t[CDR__EX_A1 + 2 * m];
    return !cdr_absent(a) && a->n_dim == 2 ? a->n[1] : 0;
}
static inline int64_t cdr__ex_low_out(const cdr_type *t) { return cdr__ex_is_stack(t, CDR__EX_A2) && cdr_absent(&t[CDR__EX_B2]) ? t[CDR__EX_A2].n[1] : 0; }
static inline int64_t cdr__ex_row_in(const cdr_type *t) { return t[CDR__EX_X].n[1] + cdr__ex_low_in(t, 0) + cdr__ex_low_in(t, 1); }
static inline int64_t cdr__ex_row_out(const cdr_type *t) { return t[CDR__EX_X].n[1] + cdr__ex_low_out(t); }

cdr_status cdr__experts_may_train(const cdr_graph *g, const cdr_call *c, const bool *want, cdr_err *e);     /* refuses packed weights that want a gradient */
/* Why the products of BF16 do not take these operands; NULL: they do */
const char *cdr__experts_reject(const void *attr, int n_in, int n_out, const cdr_type *t);
const char *cdr__experts_bwd_reject(const void *attr, int n_in, int n_out, const cdr_type *t);
void cdr__experts_ref(const cdr_ref_args *a);
void cdr__experts_bwd_ref(const cdr_ref_args *a);
size_t cdr__experts_work_base(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_base(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__experts_fwd_base(const cdr_args *a);
cdr_status cdr__experts_bwd_base(const cdr_args *a);
size_t cdr__experts_work_avx2(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_avx2(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__experts_fwd_avx2(const cdr_args *a);
cdr_status cdr__experts_bwd_avx2(const cdr_args *a);
size_t cdr__experts_work_avx512(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_avx512(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__experts_fwd_avx512(const cdr_args *a);
cdr_status cdr__experts_bwd_avx512(const cdr_args *a);
size_t cdr__experts_work_avx512_bf16(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_avx512_bf16(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__experts_fwd_avx512_bf16(const cdr_args *a);
cdr_status cdr__experts_bwd_avx512_bf16(const cdr_args *a);
size_t cdr__experts_work_amx(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
size_t cdr__experts_bwd_work_amx(const void *attr, int n_in, int n_out, const cdr_type *t, int n_threads);
cdr_status cdr__experts_fwd_amx(const cdr_args *a);
cdr_status cdr__experts_bwd_amx(const cdr_args *a);
extern const cdr_kernel cdr__experts_ep_kernels[], cdr__experts_ep_bwd_kernels[];
cdr_status cdr__experts_ep_infer(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
cdr_status cdr__experts_ep_infer_bwd(const void *attr, int n_in, const cdr_type *in, int *n_out, cdr_type *out, cdr_err *e);
cdr_status cdr__experts_ep_grad(cdr_graph *g, const cdr_call *c, const cdr_val *dout, const bool *want, cdr_val *din, cdr_err *e);
cdr_status cdr__experts_shard(cdr_graph *g, const cdr_call *c, const cdr_mesh *m, const cdr_shard_opts *o, cdr_val *out, cdr_err *e);
int cdr__experts_maps(const cdr_type *fwd, int m);          /* CDR_MAPPED where weight m (0: w1, 1: w3, 2: w2) may stay in a mapped file, else CDR_ROWS */
int cdr__experts_ep_layout(const cdr_kernel *k, int i, const cdr_type *t);
cdr_cost cdr__experts_ep_cost(const void *attr, int n_in, int n_out, const cdr_type *t);
cdr_cost cdr__experts_ep_cost_bwd(const void *attr, int n_in, int n_out, const cdr_type *t);

#ifdef __cplusplus
}
#endif
#endif
