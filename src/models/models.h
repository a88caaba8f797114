/* models.h: a model description (models/NAME.yaml) becomes a forward graph. Descriptions recombine a fixed vocabulary of
 * blocks; a block is C in block_*.c, written for one device, in forward form.
 *
 *   cdr_model *m;
 *   cdr_model_spec s = { .path = r.model.path, .sizes = &r.model.sizes, .layers = r.model.layers };
 *   CDR_TRY(cdr_model_load(&s, pool, &m, err));
 *   cdr_builder b = cdr_model_builder(m);                      // for cdr_compile
 *   printf("%s\n", cdr_model_summary(m, pool));                // "tiny-dense: 4 layers (4 MLA), 1.90 M parameters, all trained"
 *
 * Source of the file format: spec/interface.md, section 4; of the mathematics: spec/model.md, 3.0, 3.1, 3.4.
 */
#ifndef CDR_MODELS_H
#define CDR_MODELS_H

#include "compile/compile.h"
#include "recipe/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_model cdr_model;

typedef struct {
    const char *path;             /* bare name of a built-in model, or a path ending in .yaml */
    const cdr_pairs *sizes;       /* overrides of sizes ("hidden" = "64"); NULL: none */
    const char *layers;           /* layer set: a slice of the stack, each layer keeps its index and kind; NULL: all */
} cdr_model_spec;
cdr_status cdr_model_load(const cdr_model_spec *s, cdr_pool *pool, cdr_model **m, cdr_err *err);
/* The same from text. where: as messages name it. */
cdr_status cdr_model_parse(const cdr_model_spec *s, const char *text, size_t bytes, const char *where, cdr_pool *pool, cdr_model **m, cdr_err *err);

cdr_builder cdr_model_builder(const cdr_model *m);      /* borrows m */

typedef struct { const char *kind; int n; } cdr_layer_count;       /* "MLA", 4 */
typedef struct {
    const char *name, *family;    /* family: the name unless given */
    int n_layers;
    int64_t hidden, vocab;
    int64_t n_params, n_active;   /* elements, exact; active: those that one token multiplies with (all but the input embedding) */
    int n_tensors;
    double matmul_params;         /* elements of matrices that every token multiplies with: 6 FLOPs each and trained token */
    int n_kinds; cdr_layer_count kind[8];
    const char *tokenizer;        /* "byte", "tiktoken", "hf_bpe" */
    const char *chat;             /* "none", "k3_xtml", ... */
    uint64_t hash;                /* of the description as resolved: sizes, layers, names, shapes */
} cdr_model_info;
const cdr_model_info *cdr_model_get_info(const cdr_model *m);
char *cdr_model_summary(const cdr_model *m, cdr_pool *pool);
char *cdr_model_print(const cdr_model *m, cdr_pool *pool);         /* one line a parameter: name, shape, elements */
/* FLOPs of attention products for one query-key pair, forward, summed over layers: 2 H (nope + ext + v) each. */
double cdr_model_pair_flop(const cdr_model *m);

#ifdef __cplusplus
}
#endif
#endif
