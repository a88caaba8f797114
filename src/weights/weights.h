/* weights.h: a model's parameters in a checkpoint of somebody else: which tensor fills which part, read and written.
 * The table is the description's `tensors` section (models.h, cdr_model_stored); nothing here knows a family.
 *
 *   cdr_weights *w;
 *   CDR_TRY(cdr_weights_open(model, hf, &w, err));                 // the audit: every tensor used or carried, every part filled
 *   CDR_TRY(cdr_weights_read(w, i_param, first_row, n_rows, CDR_BF16, dst, err));
 *   cdr_weights_close(w);
 *
 * A row of a parameter: all but the last axis flattened, as in cdr_exec_get_rows; of stacked experts [E, N, K], row e N + n.
 */
#ifndef CDR_WEIGHTS_H
#define CDR_WEIGHTS_H

#include "io/hf.h"
#include "models/models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_weights cdr_weights;
typedef struct {
    int64_t n_tensors, n_used, n_carried;               /* of the directory: all = used + carried once the audit has passed */
    int64_t n_params, n_absent;                         /* parts filled from it; optional parts that it lacks */
    struct { char name[16]; int64_t tensors, bytes; } format[16]; int n_formats;       /* as stored: BF16, F32, MXFP4, FP8_128 */
    int experts;                                        /* cdr_dtype that routed experts are stored in (CDR_MXFP4 packed); -1: none */
} cdr_weights_stat;

/* Borrows model and d. Errors list what is unknown, missing, of another shape, narrower than an F32 row, or padded with something else. Of a slice
 * of layers (model.layers), tensors of the other layers are carried. Reads headers only, except paddings. */
cdr_status cdr_weights_open(const cdr_model *m, cdr_hf *d, cdr_weights **w, cdr_err *err);
void cdr_weights_close(cdr_weights *w);
const cdr_weights_stat *cdr_weights_get_stat(const cdr_weights *w);
/* cdr_dtype that parameter i is stored in (MXFP4: packed; FP8_128: BF16, as it is expanded); -1: absent from the directory. */
int cdr_weights_dtype(const cdr_weights *w, int64_t i_param);
bool cdr_weights_fp8(const cdr_weights *w, int64_t i_param);                            /* stored as FP8_128 */
/* A matrix [N, K] as it is read after it was written as FP8_128; had: the scales of its blocks before, which it keeps where it can (fp8.c); NULL: none. */
void cdr_weights_round_fp8(int64_t N, int64_t K, const float *had, float *x);
int64_t cdr_weights_fp8_blocks(int64_t N, int64_t K);                                   /* scales of a matrix */
cdr_status cdr_weights_fp8_scales(cdr_weights *w, int64_t i_param, int64_t expert, float *scales, cdr_err *err);
/* Rows as dtype, exact or rounded to nearest even; paddings and extra axes taken off. MXFP4 asked of a wider one packs it (rule of numerics.md). */
cdr_status cdr_weights_read(cdr_weights *w, int64_t i_param, int64_t first_row, int64_t n_rows, int dtype, void *dst, cdr_err *err);
/* A packed expert where it lies in its mapped file: codes [N, K / 2] and scales [N, K / 32]. Scales outside 2 .. 252 are an error that names the tensor. */
cdr_status cdr_weights_packed(cdr_weights *w, int64_t i_param, int64_t expert, const uint8_t **codes, const uint8_t **scales, cdr_err *err);
/* Elements first .. first + n - 1 of the flattened parameter, whole blocks: what a rank holds of a vector that is cut. */
cdr_status cdr_weights_read_elems(cdr_weights *w, int64_t i_param, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err);
double cdr_weights_pack_error(const cdr_weights *w);         /* mean relative error of what was packed while it was read: sum |x - q| / sum |x|; 0: nothing was */
/* XXH3 over the sorted (name, dtype, shape, hash of bytes) of what the model uses, and the values that say how it uses them (rope's theta, eps): the base
 * hash that adapters carry. Reads everything once;
 * kept in cache_dir (NULL: not kept) by path, size and time of each shard. */
cdr_status cdr_weights_hash(cdr_weights *w, const char *cache_dir, uint64_t *hash, cdr_err *err);

/* Rows packed as blocks with the scales that the directory has for them (the parameter is packed there): unchanged values get their codes back. */
cdr_status cdr_weights_repack(cdr_weights *w, int64_t i_param, int64_t first_row, int64_t n_rows, const float *rows, void *dst, cdr_err *err);

/* Where values to be written come from: rows of parameter i as dtype: as they are stored; CDR_F32 where they are packed anew; CDR_MXFP4 blocks
 * (16 bytes of codes, a scale) where they were packed in the source and stay so: cdr_weights_repack, or anything better. */
typedef cdr_status cdr_rows_fn(void *ctx, int64_t i_param, int64_t first_row, int64_t n_rows, int dtype, void *dst, cdr_err *err);
typedef struct { const char *name; const void *data; size_t bytes; } cdr_side_file;
typedef struct {
    const cdr_model *model;
    cdr_hf *source;               /* the directory that this one came from: untouched tensors, carried ones and the side files of a loader are copied byte for
                                   * byte; NULL: none */
    const bool *touched;          /* by parameter: written from rows; NULL: all. Without a source all are */
    cdr_rows_fn *rows; void *ctx;
    int experts;                  /* routed experts as: -1 as the source (else the description's first format), CDR_BF16, CDR_MXFP4, CDR_F8_E4M3 (FP8_128) */
    int64_t shard_bytes;          /* 0: the source's shards, else 5 GB */
    bool layer_shards;            /* one layer a shard, as K3's release; without a source */
    cdr_pool *pool;               /* of the names in the stat; NULL: only counted */
    const cdr_side_file *side; int n_side;      /* written beside the weights; one named as a file of the source replaces it. config.json is made where absent */
} cdr_weights_out;
typedef struct {
    int64_t tensors, shards, bytes, copied; double pack_error; /* mean relative error of what was packed anew; 0: nothing */
    const char *const *left; int64_t n_left, left_bytes;       /* other files of the source, which no loader needs: they stay there */
} cdr_weights_out_stat;
/* Writes the directory whole or not at all: weights, index, config.json, side files. */
cdr_status cdr_weights_write(const char *dir, const cdr_weights_out *o, cdr_weights_out_stat *stat, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
