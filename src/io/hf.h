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
/* Every header against the index, both ways, and the total size. */
cdr_status cdr_hf_check(cdr_hf *d, cdr_err *err);

/* Writes a directory: tensors are cut into shards of at most shard_bytes in the order given, index and names as the reference libraries have them
 * (one file, without index, where all fits). All files appear under their names when finish has written the last one; a failure leaves nothing. */
typedef struct { cdr_st_spec spec; int shard; /* >= 0: the shard this tensor must lie in (layout of a release kept); -1: by size */ } cdr_hf_out_tensor;
typedef struct cdr_hf_writer cdr_hf_writer;
cdr_status cdr_hf_create(const char *dir, const cdr_hf_out_tensor *t, int64_t n, int64_t shard_bytes, cdr_hf_writer **w, cdr_err *err);
int64_t cdr_hf_writer_order(const cdr_hf_writer *w, int64_t i);          /* index in t of the i-th to be written */
cdr_status cdr_hf_append(cdr_hf_writer *w, const void *data, size_t bytes, cdr_err *err);
cdr_status cdr_hf_side_file(cdr_hf_writer *w, const char *name, const void *data, size_t bytes, cdr_err *err);      /* config.json, tokenizer files */
cdr_status cdr_hf_finish(cdr_hf_writer *w, int64_t *bytes, cdr_err *err);       /* frees w, also on failure */
void cdr_hf_abort(cdr_hf_writer *w);

#ifdef __cplusplus
}
#endif
#endif
