/* model_parts.h: the model as its files share it. model.c makes layers, tensors.c the tensors, forward.c the graph.
 *
 *   cdr__layer *l = &m->layer[i];
 *   m->block[l->mixer].type->forward(g, &m->block[l->mixer], l->mixer_name, io, h_TD);
 */
#ifndef CDR_MODEL_PARTS_H
#define CDR_MODEL_PARTS_H

#include "models/config_parts.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {                      /* one parameter */
    const char *name;                 /* as in a checkpoint; {expert} stays where experts are stacked; NAME#i: part i of a fused tensor */
    const cdr__need *need;
    int dtype;                        /* that it trains in */
    bool packed;                      /* stored as MXFP4 first of all */
    int64_t stored;                   /* elements in a checkpoint, padding too */
    cdr_place place;
    int16_t unit; int layer;          /* layer: its index in the full stack, -1: outside of it */
    cdr_model_row row;                /* as in a checkpoint */
} cdr__tensor;

typedef struct {
    int index;                        /* in the full stack: names and messages */
    int mixer, ffn;                   /* blocks */
    const char **mixer_name, **ffn_name, **own_name;      /* tensor names, by need of the block */
} cdr__layer;

struct cdr_model {
    cdr__desc d;
    cdr_model_info info;
    double eps;
    int attn_block;                   /* Block AttnRes: layers of a block; 0: pre-norm residuals */
    int n_all;                        /* layers of the full stack; info.n_layers: of the slice */
    cdr__block self, layer_block;     /* parts outside of the layers; parts of every layer beside its blocks */
    cdr__block *block; const cdr_yaml **block_node; int n_blocks;
    cdr__layer *layer;
    const char **self_name;
    cdr__tensor *tensor; int64_t n_tensors, cap_tensors;
    cdr__source *source;              /* NULL: no directory */
    const char *layer_prefix;         /* what names of a layer's tensors begin with, {layer} in it */
    bool random;
    cdr_probe probe;
};

extern const cdr__block_type cdr__block_model, cdr__block_layer;

cdr_status cdr__model_tensors(cdr_model *m, cdr_err *err);        /* names and shapes; fills the info's counts */
uint64_t cdr__model_function(const cdr_model *m);                 /* of values that change what the tensors compute (function.c) */
cdr_status cdr__model_build(const cdr_model_spec *s, const cdr__input *in, cdr_pool *pool, cdr_model **out, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
