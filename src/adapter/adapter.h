/* adapter.h: LoRA adapters as files: read from a PEFT directory or a run, written for each consumer, verified against a base, merged into it.
 * A consumer's layout is one row of the table in formats.c.
 *
 *   cdr_lora_set set;
 *   CDR_TRY(cdr_lora_read("runs/devil", model, pool, &set, err));            // every key bound to a parameter of the model, shapes checked
 *   cdr_lora_report rep;
 *   CDR_TRY(cdr_lora_write("adapter", &(cdr_lora_out){ .format = "sglang", .set = &set, .model = model }, &rep, err));
 *
 * y = W x + scale B (A x). Source of layouts: spec/formats.md, 1.6 to 1.8; of the mathematics: spec/operators.md, 4.3.
 */
#ifndef CDR_ADAPTER_H
#define CDR_ADAPTER_H

#include "weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {                  /* one matrix's, or one stack's */
    int64_t i_param;              /* of the model */
    int32_t rank; float scale;    /* alpha / rank, or alpha / sqrt(rank) */
    int64_t experts, N, K;        /* experts 0: one matrix [N, K] */
    int64_t n_a, n_b;             /* matrices of A and of B: 1 or experts. Shared-outer: w1 and w3 share A, w2 shares B */
    const float *a, *b;           /* [n_a, rank, K], [n_b, N, rank]; in the pool */
} cdr_lora_pair;

typedef struct {
    cdr_lora_pair *pair; int n;
    const char *source, *base;    /* path it came from; base_model_name_or_path as the file says; NULL: unknown */
    uint64_t base_hash; bool has_hash;
    int32_t rank; double alpha; bool rslora;      /* the configuration's own */
    int64_t step;                 /* of a run; -1: a directory */
} cdr_lora_set;

/* path: PEFT directory in any layout that we write, or a run directory of a LoRA run (its newest complete checkpoint), or one checkpoint. A key that binds
 * to nothing is an error that lists such keys. pool holds what the set points to. */
cdr_status cdr_lora_read(const char *path, const cdr_model *m, cdr_pool *pool, cdr_lora_set *set, cdr_err *err);

typedef struct {
    int64_t tensors, padded, folded, bytes, dropped;
    int32_t rank;
    char dropped_what[400];       /* "self_attn.g_proj (16), self_attn.f_a_proj (6)" */
} cdr_lora_report;
typedef struct {
    const char *format;           /* peft, peft-stacked, sglang, vllm, gguf */
    const cdr_lora_set *set; const cdr_model *model;
    int32_t rank;                 /* uniform rank by zero padding; 0: the largest where the consumer needs one rank, else as they are */
    bool allow_drop;              /* else a key that the consumer would drop is an error */
    const char *base_name; uint64_t base_hash; bool has_hash;
} cdr_lora_out;
/* Writes, opens again and binds every key; nothing is left behind on failure. */
cdr_status cdr_lora_write(const char *dir, const cdr_lora_out *o, cdr_lora_report *rep, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
