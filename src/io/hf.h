/* hf.h: a directory in Hugging Face layout: config.json, one model.safetensors or shards with model.safetensors.index.json, side files.
 * Headers of shards are read when a tensor of theirs is asked for; an index of 500,000 tensors opens in well under a second.
 *
 *   cdr_hf *d;
 *   CDR_TRY(cdr_hf_open("checkpoints/k3", &d, err));
 *   int64_t i = cdr_hf_find(d, "language_model.model.norm.weight");
 *   cdr_hf_tensor t;
 *   CDR_TRY(cdr_hf_tensor_at(d, i, &t, err));                   // opens its shard's header
 *   const void *p = t.data;                                     // mapped; or cdr_hf_read for what is copied anyway
 *   cdr_hf_close(d);
 *
 * The index is untrusted: a shard's name is a plain file name in the directory. Messages: spec/interface.md, 8 (2, 9).
 */
#ifndef CDR_HF_H
#define CDR_HF_H

#include "io/io.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cdr_hf cdr_hf;
typedef struct { const cdr_st_tensor *t; const void *data; /* mapped, may be unaligned */ const char *shard; int i_shard; } cdr_hf_tensor;

cdr_status cdr_hf_open(const char *dir, cdr_hf **d, cdr_err *err);        /* also without weights: cdr_hf_count is 0 then */
void cdr_hf_close(cdr_hf *d);
const char *cdr_hf_dir(const cdr_hf *d);
const cdr_json *cdr_hf_config(const cdr_hf *d);                          /* config.json; NULL: none */
int cdr_hf_shards(const cdr_hf *d);
const char *cdr_hf_shard_name(const cdr_hf *d, int i_shard);
bool cdr_hf_shard_there(const cdr_hf *d, int i_shard);
/* Tensors by name, ascending (byte order). Nothing is opened. */
int64_t cdr_hf_count(const cdr_hf *d);
const char *cdr_hf_name(const cdr_hf *d, int64_t i);
int cdr_hf_shard_of(const cdr_hf *d, int64_t i);
int64_t cdr_hf_find(const cdr_hf *d, const char *name);                  /* -1: not there */
/* Header of tensor i; a missing or broken shard, and a shard whose header lacks a tensor that the index puts there, are errors. */
cdr_status cdr_hf_tensor_at(cdr_hf *d, int64_t i, cdr_hf_tensor *t, cdr_err *err);
/* Bytes [first, first + bytes) of tensor i into dst, past the page cache where the file system takes O_DIRECT, else through it. A file that
 * shrinks while it is read is an error, never a crash. Several threads may read at once. */
cdr_status cdr_hf_read(cdr_hf *d, int64_t i, size_t first, size_t bytes, void *dst, cdr_err *err);
/* The shards that were opened still have the size and the time of change that they had then. Whoever keeps mapped data asks now and then:
 * a file that was cut inside its last page reads as zeros there. */
cdr_status cdr_hf_unchanged(const cdr_hf *d, cdr_err *err);
/* Every header against the index, both ways, and the total size. */
cdr_status cdr_hf_check(cdr_hf *d, cdr_err *err);

/* Writes a directory that does not exist yet, or is empty: tensors are cut into shards in the order given, as huggingface_hub cuts, names and
 * indexes them, byte for byte (one file, without index, where all fits). Everything is written beside it and takes its name at once in
 * finish; a failure leaves nothing. Bytes are appended tensor by tensor, in the order that the writer tells. */
typedef struct { cdr_st_spec spec; int shard; /* row of layout.shard */ } cdr_hf_out_tensor;
typedef struct {
    const cdr_hf_out_tensor *t; int64_t n;      /* borrowed until finish */
    int64_t shard_bytes;                        /* at most, but for one tensor that is larger; 0: 5 GB, as there */
    /* Another layout, that of a release: names of the shards, with an index but where it is one model.safetensors. copy, where not NULL: by
     * shard, a file that is that shard already, byte for byte, or NULL; its tensors are not asked for. index: the same of the index. */
    const char *const *shard; int n_shards;
    const char *const *copy, *index;
} cdr_hf_layout;
typedef struct cdr_hf_writer cdr_hf_writer;
cdr_status cdr_hf_create(const char *dir, const cdr_hf_layout *layout, cdr_hf_writer **w, cdr_err *err);
int64_t cdr_hf_writer_count(const cdr_hf_writer *w);                     /* tensors to be appended: all but those of copied shards */
int64_t cdr_hf_writer_order(const cdr_hf_writer *w, int64_t i);          /* index in layout.t of the i-th to be appended */
cdr_status cdr_hf_append(cdr_hf_writer *w, const void *data, size_t bytes, cdr_err *err);       /* any part of what comes next */
cdr_status cdr_hf_side_file(cdr_hf_writer *w, const char *name, const void *data, size_t bytes, cdr_err *err);      /* config.json, tokenizer files */
cdr_status cdr_hf_side_copy(cdr_hf_writer *w, const char *name, const char *from, cdr_err *err);
typedef struct { int64_t tensors, shards, bytes; /* of the shards' files */ } cdr_hf_written;
cdr_status cdr_hf_finish(cdr_hf_writer *w, cdr_hf_written *stat, cdr_err *err);     /* frees w, also on failure; stat may be NULL */
void cdr_hf_abort(cdr_hf_writer *w);

#ifdef __cplusplus
}
#endif
#endif
