/* internal.h: what the files of this folder share and nobody else sees.
 *
 *   size_t bytes;
 *   if (!cdr__st_bytes(format, n_dim, n, &bytes)) ...       // overflow, or a part of a byte
 */
#ifndef CDR_IO_INTERNAL_H
#define CDR_IO_INTERNAL_H

#include "io/io.h"

#ifdef __cplusplus
extern "C" {
#endif

int cdr__st_dtype(int format);             /* cdr_dtype stored in this format; -1: none */
bool cdr__st_is(const cdr_st *st, int fd);         /* fd is the mapped file, not one that has taken its name since */
bool cdr__st_bytes(int format, int n_dim, const int64_t *n, size_t *bytes);

/* The manifest, parsed and checked (ckpt_manifest.c). Everything lives in the pool that was given. */
typedef struct { const char *name; int64_t bytes; uint64_t xxh3; } cdr__ckpt_file;
typedef struct { int file; const char *key; int64_t first_row, n_rows; uint64_t xxh3; bool checked; } cdr__ckpt_piece;
typedef struct {
    cdr_ckpt_tensor t;
    cdr__ckpt_piece *pieces; int64_t n_pieces;         /* by first_row, tiling [0, rows) */
} cdr__ckpt_entry;
typedef struct {
    int64_t step;
    int n_ranks;
    uint64_t recipe_hash, description_hash;
    cdr__ckpt_file *files; int n_files;
    cdr__ckpt_entry *entries; int64_t n_entries;
    int64_t n_pieces;                                  /* of all tensors */
    const cdr_json *root;
} cdr__manifest;
cdr_status cdr__manifest_parse(cdr_pool *pool, const char *where, const char *text, size_t bytes, cdr__manifest *m, cdr_err *err);
/* The tables of files and tensors that a manifest and a rank's part have in common. */
cdr_status cdr__tables_parse(cdr_pool *pool, const char *where, const cdr_json *root, cdr__manifest *m, cdr_err *err);
/* Sorts each tensor's pieces by row and refuses holes and overlaps. */
cdr_status cdr__tables_check_tiling(const char *where, cdr__manifest *m, cdr_err *err);

bool cdr__ckpt_class_known(const char *cls);
/* Manifest key of a tensor: NAME, or NAME.CLASS for optimizer state. */
char *cdr__ckpt_key(cdr_pool *pool, const char *name, const char *cls);
/* Key of a piece in its file: the tensor's key where the piece is all of it, else KEY#first_row,0,0. */
char *cdr__ckpt_piece_key(cdr_pool *pool, const cdr_ckpt_tensor *t, int64_t first_row, int64_t n_rows);
int64_t cdr__ckpt_rows(int n_dim, const int64_t *n);
bool cdr__ckpt_row_bytes(int dtype, int n_dim, const int64_t *n, size_t *bytes);
/* "step-000000600" -> 600; -1: no such name */
int64_t cdr__ckpt_parse_dir(const char *name);
void cdr__ckpt_partial_path(char *out, size_t bytes, const char *run_dir, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
