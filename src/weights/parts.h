/* parts.h: what the files of this folder share: how each parameter lies in the directory.
 *
 *   const cdr__part *p = &w->part[i_param];
 *   cdr_hf_tensor_at(w->d, p->data[expert], &t, err);
 */
#ifndef CDR_WEIGHTS_PARTS_H
#define CDR_WEIGHTS_PARTS_H

#include "weights/weights.h"
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__PLAIN, CDR__MXFP4, CDR__FP8_128, CDR__ABSENT };
enum { CDR__MX = 32, CDR__MX_BYTES = 17, CDR__FP8_BLOCK = 128, CDR__SCALE_MIN = 2, CDR__SCALE_MAX = 252 };

typedef struct {
    cdr_model_row row;
    int n_dim; int64_t n[3];           /* of the parameter, without what the file pads it with */
    int64_t elems, cols;               /* all of it; of its last axis */
    int64_t n_files, file_elems;       /* tensors that it is stored in, one an expert where the name has {expert}; its elements in each */
    bool expert;                       /* named by {expert} */
    int64_t top_k;                     /* stacked experts; 0: none */
    int kind, dtype;                   /* dtype of PLAIN ones in the file */
    int64_t *data, *scale;             /* by file: tensors of the directory; codes and scales where it is packed */
} cdr__part;

struct cdr_weights {
    cdr_pool *pool;
    const cdr_model *m;
    cdr_hf *d;
    cdr__part *part; int64_t n_parts;
    uint8_t *used;                     /* by tensor of the directory: parts that it fills */
    cdr_weights_stat stat;
    pthread_mutex_t lock;              /* of the two sums */
    double pack_error, pack_sum;
};

/* Name of a part's tensor: {expert} put in, with what follows ("_packed"). false: too long. */
bool cdr__part_name(const cdr_model_row *row, int64_t expert, const char *tail, char *out, size_t bytes);
void cdr__part_open(const cdr_model *m, int64_t i_param, cdr__part *p);
bool cdr__row_takes(const cdr_model_row *row, const char *format);
/* Elements [at, at + n) of file f of a part as F32, whatever it is stored as: expanded, FP8 rounded to BF16. */
cdr_status cdr__part_f32(cdr_weights *w, const cdr__part *p, int64_t f, int64_t at, int64_t n, float *dst, cdr_err *err);
/* The files of the source that go along, and those that do not (named for a person, folders with a slash); what cannot be copied is refused. config:
 * its config.json goes along. */
typedef struct { const char **name; int64_t n, cap; const char **left; int64_t n_left, cap_left, left_bytes; } cdr__sides;
cdr_status cdr__sides_list(const cdr_weights_out *o, bool config, cdr_pool *pool, cdr__sides *s, cdr_err *err);
/* Refuses scales outside of 2 .. 252, but for blocks of nothing but zeros. */
cdr_status cdr__check_scales(const char *tensor, const uint8_t *codes, const uint8_t *scales, int64_t n_blocks, cdr_err *err);
/* n rows of blocks (128, fewer at the end), K columns, as FP8_128. scales: those that the blocks had, 0: none; on return those of the codes. */
void cdr__fp8_encode(const float *x, int64_t n, int64_t K, uint8_t *codes, float *scales);
/* Packs n values so that cdr__check_scales takes them; error and sum grow by |x - q| and |x|. false: not finite. */
bool cdr__pack(const float *x, uint8_t *codes, uint8_t *scales, int64_t n, double *error, double *sum);

#ifdef __cplusplus
}
#endif
#endif
