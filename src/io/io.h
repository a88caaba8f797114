/* io.h: files that outlive a run: safetensors, checkpoints, compressed text, dictionaries. All input is
 * untrusted: every reader checks before it believes, in time linear in the file, and no name leaves its directory.
 *
 *   cdr_ckpt *ck;
 *   CDR_TRY(cdr_ckpt_open("runs/tiny", &ck, err));                  // the newest complete checkpoint of a run
 *   CDR_TRY(cdr_ckpt_read(ck, "embed.weight", "master", CDR_F32, row0, n_rows, dst, err));
 *   cdr_ckpt_close(ck);
 */
#ifndef CDR_IO_H
#define CDR_IO_H

#include "base/base.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- safetensors (st_read.c, st_write.c) ---------------------------------------------------------------- */
enum { CDR_ST_MAX_DIM = 8 };

/* Formats that a file may name, in the order in which a writer sorts (the last comes first in a file). */
typedef struct { const char *name; int bits; } cdr_st_format;
const cdr_st_format *cdr_st_format_row(int i);                 /* NULL past the end */
int cdr_st_format_by_name(const char *name);                   /* "BF16"; -1 */
int cdr_st_format_of(int dtype);                               /* of a cdr_dtype; MXFP4 is stored as U8 codes: -1 */

typedef struct {
    const char *name;
    int format;                        /* row of the format table */
    int dtype;                         /* cdr_dtype, -1: a format that the engine does not compute with */
    int n_dim;
    int64_t n[CDR_ST_MAX_DIM];
    size_t begin, end;                 /* bytes in the file's buffer */
} cdr_st_tensor;

typedef struct cdr_st cdr_st;
/* Maps the file and checks all of it but the values. A file that is shorter than its header says: message
 * [safetensors.truncated], with the first tensor that is cut. */
cdr_status cdr_st_open(const char *path, cdr_st **st, cdr_err *err);
/* The same checks on bytes in memory, which are borrowed until close. where: name for messages. */
cdr_status cdr_st_open_memory(const char *where, const void *data, size_t bytes, cdr_st **st, cdr_err *err);
void cdr_st_close(cdr_st *st);
int64_t cdr_st_count(const cdr_st *st);
const cdr_st_tensor *cdr_st_at(const cdr_st *st, int64_t i);                 /* in the order of the buffer */
const cdr_st_tensor *cdr_st_find(const cdr_st *st, const char *name);        /* NULL: not there */
const void *cdr_st_data(const cdr_st *st, const cdr_st_tensor *t);           /* may be unaligned: memcpy */
size_t cdr_st_data_start(const cdr_st *st);                                  /* where the buffer begins in the file */
cdr_status cdr_st_check(const cdr_st *st, cdr_err *err);                     /* the file is still what it was when it was opened */
int64_t cdr_st_meta_count(const cdr_st *st);
const char *cdr_st_meta_key(const cdr_st *st, int64_t i);
const char *cdr_st_meta(const cdr_st *st, const char *key);                  /* NULL: not there */

/* Writer: the header first, then the tensors' bytes in file order (format descending, then name), as the reference
 * implementation lays a file out, byte for byte. Writes PATH.partial; finish syncs and renames. */
typedef struct { const char *name; int format; int n_dim; int64_t n[CDR_ST_MAX_DIM]; } cdr_st_spec;
typedef struct { const char *key, *value; } cdr_st_pair;
typedef struct cdr_st_writer cdr_st_writer;
cdr_status cdr_st_create(const char *path, const cdr_st_spec *specs, int64_t n, const cdr_st_pair *meta, int n_meta,
                         cdr_st_writer **w, cdr_err *err);                   /* specs are borrowed until finish */
int64_t cdr_st_writer_order(const cdr_st_writer *w, int64_t i);              /* index in specs of the i-th in the file */
cdr_status cdr_st_append(cdr_st_writer *w, const void *data, size_t bytes, cdr_err *err);
/* Frees w, also on failure. bytes, xxh3 (of the whole file) may be NULL. */
cdr_status cdr_st_finish(cdr_st_writer *w, int64_t *bytes, uint64_t *xxh3, cdr_err *err);
void cdr_st_abort(cdr_st_writer *w);                                         /* removes the partial file */

/* ---- checkpoints (ckpt_write.c, ckpt_read.c, ckpt_dir.c) --------------------------------------------------- */
/* A checkpoint holds global tensors by (name, class), cut into row blocks, whatever the ranks that wrote it.
 * Rows: the first axis; a tensor without axes is one row. Key in the manifest: the name for class weight, adapter
 * and bias, NAME.CLASS for the others. */
enum { CDR_CKPT_BLOCK_BYTES = 64 << 20 };

typedef struct {
    const char *name, *cls;            /* class: weight adapter bias master m v momentum */
    int dtype, n_dim;
    int64_t n[CDR_MAX_DIM];            /* global shape */
    int64_t first_row, n_rows;         /* what this rank hands over; each row of a tensor comes from exactly one rank */
    const void *data;                  /* dense rows, borrowed for the call */
} cdr_ckpt_piece;

/* Rank 0, under the run's lock, before any rank writes: removes what an interrupted writer or prune left. */
cdr_status cdr_ckpt_clean(const char *run_dir, cdr_err *err);
/* Every rank: its files into checkpoints/.partial-step-NNN (made where absent), synced. part: this rank's table (JSON,
 * malloc, free with cdr_text_free), for rank 0. The files of n_ranks ranks may be written at the same time. */
cdr_status cdr_ckpt_write_part(const char *run_dir, int64_t step, int rank, int n_ranks,
                               const cdr_ckpt_piece *pieces, int64_t n, cdr_text *part, cdr_err *err);
typedef struct {
    int64_t step;
    int n_ranks;
    uint64_t recipe_hash, description_hash;
    const char *base_path; uint64_t base_hash;        /* NULL: trained from scratch */
    const char *mesh_json;                            /* an object */
    const char *state_json, *recipe_yaml;             /* the two text files */
} cdr_ckpt_meta;
/* Rank 0, after all parts are there: joins the tables, refuses holes, overlaps and disagreements, writes the text files,
 * the manifest last, renames the directory to its final name. Until the rename nothing takes it for a checkpoint. */
cdr_status cdr_ckpt_finish(const char *run_dir, const cdr_ckpt_meta *meta, const char *const *parts, int n_parts,
                           int64_t *bytes, cdr_err *err);
/* Keeps the last `keep` complete ones (0: all), removes older ones. */
cdr_status cdr_ckpt_prune(const char *run_dir, int keep, cdr_err *err);
/* Steps of the complete ones, ascending; returns how many there are, fills at most max. */
int cdr_ckpt_list(const char *run_dir, int64_t *steps, int max);
void cdr_ckpt_path(char *out, size_t bytes, const char *run_dir, int64_t step);

typedef struct cdr_ckpt cdr_ckpt;
typedef struct { const char *name, *cls, *key; int dtype, n_dim; int64_t n[CDR_MAX_DIM]; } cdr_ckpt_tensor;
/* path: a checkpoint, or a run directory: its newest complete one. Checks the manifest, that pieces tile each tensor,
 * and every file's size and header; hashes are checked as pieces are read. */
cdr_status cdr_ckpt_open(const char *path, cdr_ckpt **ck, cdr_err *err);
void cdr_ckpt_close(cdr_ckpt *ck);
int64_t cdr_ckpt_count(const cdr_ckpt *ck);
const cdr_ckpt_tensor *cdr_ckpt_at(const cdr_ckpt *ck, int64_t i);
const cdr_ckpt_tensor *cdr_ckpt_find(const cdr_ckpt *ck, const char *name, const char *cls);     /* NULL: not there */
/* Rows [first_row, first_row + n_rows) into dst, dense. Missing tensor, another dtype, rows outside: errors. */
cdr_status cdr_ckpt_read(cdr_ckpt *ck, const char *name, const char *cls, int dtype, int64_t first_row, int64_t n_rows,
                         void *dst, cdr_err *err);
/* Every byte of every file against its hash. */
cdr_status cdr_ckpt_verify(cdr_ckpt *ck, cdr_err *err);
const char *cdr_ckpt_dir(const cdr_ckpt *ck);
int64_t cdr_ckpt_step(const cdr_ckpt *ck);
int cdr_ckpt_ranks(const cdr_ckpt *ck);                        /* that wrote it */
uint64_t cdr_ckpt_recipe_hash(const cdr_ckpt *ck);
uint64_t cdr_ckpt_description_hash(const cdr_ckpt *ck);
const char *cdr_ckpt_state(const cdr_ckpt *ck);                /* text of state.json, of recipe.yaml: owned by ck */
const char *cdr_ckpt_recipe(const cdr_ckpt *ck);
const cdr_json *cdr_ckpt_manifest(const cdr_ckpt *ck);
/* The manifest's own rules, without files: what the fuzzer calls. */
cdr_status cdr_ckpt_check_manifest(const char *where, const char *text, size_t bytes, cdr_err *err);

/* ---- text files and dictionaries (textfile.c, dictionary.c) -------------------------------------------------- */
/* A text file's bytes: mapped, or unpacked where the content is gzip or zstd (several members or frames too). */
typedef struct { const char *data; size_t bytes; cdr_map map; void *owned; } cdr_textfile;
cdr_status cdr_textfile_open(const char *path, size_t max_bytes, cdr_textfile *t, cdr_err *err);
void cdr_textfile_close(cdr_textfile *t);

/* A dictd dictionary (X.dict or X.dict.dz, with its X.index beside it) as plain text: entries in the order of the file,
 * one blank line between two, the database's own 00-database entries left out. */
typedef struct { int64_t n_entries, n_dropped; } cdr_dictionary_stat;
typedef struct cdr_dictionary cdr_dictionary;
/* Lines of the index, in the order of their entries in the file; about: describes the database. Texts are the dictionary's. */
typedef struct { const char *word; size_t word_bytes; const char *text; size_t bytes; bool about; } cdr_dictionary_entry;
cdr_status cdr_dictionary_open(const char *path, cdr_dictionary **d, cdr_err *err);
int64_t cdr_dictionary_count(const cdr_dictionary *d);
cdr_dictionary_entry cdr_dictionary_at(const cdr_dictionary *d, int64_t i);
void cdr_dictionary_close(cdr_dictionary *d);
cdr_status cdr_dictionary_to_text(const char *path, cdr_text *out, cdr_dictionary_stat *stat, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
