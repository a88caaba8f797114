/* base.h: what every folder stands on, and what knows no tensors: errors, log, memory, hash, random numbers,
 * files, clock, JSON, YAML.
 *
 *   cdr_pool *pool = cdr_pool_new();                     // everything below is freed at once
 *   char *name = cdr_pool_printf(pool, "layers.%d", 3);
 *   if (n != D) CDR_FAIL(err, CDR_EINVAL, "rmsnorm: gain has %lld elements, x has D = %lld", ...);
 *   cdr_pool_free(pool);
 */
#ifndef CDR_BASE_H
#define CDR_BASE_H

#include "cadre.h"
#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CDR_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define CDR_RESTRICT __restrict__
#define CDR_NORETURN __attribute__((noreturn))
#else
#define CDR_PRINTF(a, b)
#define CDR_RESTRICT
#define CDR_NORETURN
#endif
#define CDR_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define CDR_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CDR_MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- errors (error.c) ---------------------------------------------------------------------------------- */
/* Fills err (may be NULL) and returns status. id: stable, "area.case"; NULL: by status. First error wins. */
cdr_status cdr_fail(cdr_err *err, cdr_status status, const char *id, const char *fmt, ...) CDR_PRINTF(4, 5);
#define CDR_FAIL(err, status, ...) return cdr_fail((err), (status), NULL, __VA_ARGS__)
#define CDR_FAIL_ID(err, status, id, ...) return cdr_fail((err), (status), (id), __VA_ARGS__)
#define CDR_TRY(expr) do { cdr_status cdr_st_ = (expr); if (cdr_st_ != CDR_OK) return cdr_st_; } while (0)

/* Where a broken invariant is reported from: the executor keeps it current (one per process). */
typedef struct { int rank; int64_t step; int call; const char *op, *origin; } cdr_where;
cdr_where *cdr_here(void);
CDR_NORETURN void cdr_check_failed(const char *expr, const char *file, int line);
#define CDR_CHECK(x) do { if (!(x)) cdr_check_failed(#x, __FILE__, __LINE__); } while (0)

/* ---- log (log.c): stderr, one line, "warning: " or "note: " in front ---------------------------------- */
typedef enum { CDR_LOG_ERROR, CDR_LOG_WARNING, CDR_LOG_INFO, CDR_LOG_DEBUG } cdr_log_level;
void cdr_log_set_level(cdr_log_level level);
cdr_log_level cdr_log_get_level(void);
void cdr_log(cdr_log_level level, const char *fmt, ...) CDR_PRINTF(2, 3);

/* ---- memory (pool.c) ------------------------------------------------------------------------------------ */
/* A pool: grows, never frees one piece, freed at once. Zeroed memory, 64-byte aligned pieces. Aborts when the
 * machine is out of memory. Not thread-safe. Used before the first step; a step allocates nothing. */
typedef struct cdr_pool cdr_pool;
cdr_pool *cdr_pool_new(void);
void cdr_pool_free(cdr_pool *p);
size_t cdr_pool_bytes(const cdr_pool *p);                /* of all pieces */
void *cdr_pool_alloc(cdr_pool *p, size_t bytes);
char *cdr_pool_strdup(cdr_pool *p, const char *s);
char *cdr_pool_strndup(cdr_pool *p, const char *s, size_t n);
char *cdr_pool_printf(cdr_pool *p, const char *fmt, ...) CDR_PRINTF(2, 3);
/* Growable array in a pool: makes room for one more element. cap and n are the caller's. */
void *cdr_pool_grow(cdr_pool *p, void *old, size_t elem_bytes, int64_t n, int64_t *cap);
#define CDR_PUSH(pool, arr, n, cap) ((arr) = cdr_pool_grow((pool), (arr), sizeof(*(arr)), (n), &(cap)), &(arr)[(n)++])

/* malloc that aborts on failure, and aborts while frozen (a step allocates nothing; the executor freezes). */
void *cdr_alloc(size_t bytes);
void cdr_free(void *p);
void cdr_alloc_freeze(bool frozen);
/* checked arithmetic for sizes that come from a file; false on overflow */
bool cdr_mul_size(size_t a, size_t b, size_t *out);
bool cdr_add_size(size_t a, size_t b, size_t *out);
static inline size_t cdr_align_up(size_t x, size_t a) { return (x + a - 1) / a * a; }
static inline int64_t cdr_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* A growing text buffer (malloc, not pool). */
typedef struct { char *s; size_t n, cap; } cdr_text;
void cdr_text_printf(cdr_text *t, const char *fmt, ...) CDR_PRINTF(2, 3);
void cdr_text_append(cdr_text *t, const char *s, size_t n);
void cdr_text_free(cdr_text *t);
/* Bytes of the UTF-8 character at s, of which left >= 1 bytes are there; 0: overlong, surrogate, too large, cut off. */
int cdr_utf8_length(const char *s, size_t left);

/* ---- hash, random numbers, clock (hash.c, rng.c, clock.c) ----------------------------------------------- */
uint64_t cdr_hash64(const void *data, size_t bytes, uint64_t seed);    /* XXH3-64 */
uint64_t cdr_hash_secret(void);       /* of this process: seed of tables over names that a file brings, so that it cannot make them collide */
typedef struct cdr_hasher cdr_hasher;                                  /* streaming XXH3-64 */
cdr_hasher *cdr_hasher_new(void);
void cdr_hasher_add(cdr_hasher *h, const void *data, size_t bytes);
uint64_t cdr_hasher_end(cdr_hasher *h);                                /* frees h */

/* Philox4x32-10 (Salmon et al. 2011): four 32-bit words, a pure function of key and counter. */
void cdr_philox(const uint32_t key[2], const uint32_t ctr[4], uint32_t out[4]);
/* Uniform in [0, 1) with 24 bits, and standard normal (Box-Muller in double), of element i of a stream.
 * key = (seed, stream, step); every random draw of a run goes through one of these. */
typedef struct { uint64_t seed, stream, step; } cdr_rng_key;
float cdr_rng_uniform(cdr_rng_key k, uint64_t i);
float cdr_rng_normal(cdr_rng_key k, uint64_t i);
uint64_t cdr_rng_u64(cdr_rng_key k, uint64_t i);

int64_t cdr_now_ns(void);                                /* CLOCK_MONOTONIC */
void cdr_time_rfc3339(char out[32]);                     /* UTC, ms */

/* ---- files (file.c) -------------------------------------------------------------------------------------- */
/* Whole file, NUL-terminated, malloc. max_bytes bounds it. */
cdr_status cdr_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, cdr_err *err);
/* Temporary name, fsync, rename, fsync of the directory. */
cdr_status cdr_file_write(const char *path, const void *data, size_t bytes, cdr_err *err);
cdr_status cdr_make_dirs(const char *path, cdr_err *err);
cdr_status cdr_sync_dir(const char *path, cdr_err *err);
cdr_status cdr_remove_tree(const char *path, cdr_err *err);
bool cdr_exists(const char *path);
bool cdr_is_dir(const char *path);
/* true where name is one plain path component: not empty, no '/', not "." or "..", no control characters */
bool cdr_plain_name(const char *name);
/* Read-only mappings (map.c). A file that becomes shorter under its reader ends the process with the one error line and code 3. */
typedef struct { const char *data; size_t bytes; int64_t changed_ns; uint64_t device, inode; } cdr_map;
cdr_status cdr_map_open(const char *path, cdr_map *m, cdr_err *err);
/* Still of the size and time of change that it had when it was opened? A cut inside the last page reads as zeros: this says so. */
cdr_status cdr_map_check(const char *path, const cdr_map *m, cdr_err *err);
bool cdr_map_is(const cdr_map *m, int fd);       /* fd, opened by the same name later, is still the file that is mapped */
void cdr_map_close(cdr_map *m);

/* ---- JSON (json.c, json_write.c): a strict reader, and a writer ------------------------------------------ */
/* Limits: depth 64, duplicate keys and \u0000 refused, valid UTF-8, nothing after the document. Integers are exact in
 * int64; a larger one is read as a real number where a double holds it exactly, and refused otherwise. */
typedef struct cdr_json cdr_json;       /* a node; opaque */
typedef enum { CDR_JSON_NULL, CDR_JSON_BOOL, CDR_JSON_INT, CDR_JSON_REAL, CDR_JSON_STRING, CDR_JSON_ARRAY, CDR_JSON_OBJECT } cdr_json_kind;
/* where: name for messages. The document lives in pool. Linear time; objects are indexed by hash. */
cdr_status cdr_json_parse(cdr_pool *pool, const char *text, size_t bytes, const char *where, const cdr_json **root, cdr_err *err);
/* The same of a part of a file: line and column at which text begins there (from 1), for messages. */
typedef struct { const char *where; int64_t line, col; } cdr_json_place;
cdr_status cdr_json_parse_at(cdr_pool *pool, const char *text, size_t bytes, cdr_json_place at, const cdr_json **root, cdr_err *err);
cdr_json_kind cdr_json_type(const cdr_json *j);
const cdr_json *cdr_json_get(const cdr_json *obj, const char *key);      /* NULL: absent, or not an object */
int64_t cdr_json_count(const cdr_json *j);                               /* members of an array or object */
const cdr_json *cdr_json_at(const cdr_json *j, int64_t i);               /* i-th member */
const char *cdr_json_key(const cdr_json *obj, int64_t i);
const char *cdr_json_str(const cdr_json *j, const char *otherwise);
int64_t cdr_json_int(const cdr_json *j, int64_t otherwise);
double cdr_json_real(const cdr_json *j, double otherwise);
bool cdr_json_bool(const cdr_json *j, bool otherwise);

/* Writer: compact JSON into a cdr_text. Commas are placed by the writer. Key NULL inside arrays. */
typedef struct { cdr_text *t; int depth; uint64_t has_item; } cdr_jw;    /* bit d: level d has an item already */
void cdr_jw_begin(cdr_jw *w, const char *key, char kind);                /* kind '{' or '[' */
void cdr_jw_end(cdr_jw *w, char kind);                                   /* kind '}' or ']' */
void cdr_jw_str(cdr_jw *w, const char *key, const char *s);              /* NULL writes null */
void cdr_jw_int(cdr_jw *w, const char *key, int64_t x);
void cdr_jw_u64hex(cdr_jw *w, const char *key, uint64_t x);              /* 16 hexadecimal digits, a string */
void cdr_jw_real(cdr_jw *w, const char *key, double x);                  /* shortest form that reads back equal; non-finite: null */
void cdr_jw_bool(cdr_jw *w, const char *key, bool x);
void cdr_jw_null(cdr_jw *w, const char *key);

/* ---- YAML (yaml.c): strict reader over libyaml's events -------------------------------------------------- */
/* One document, 1 MiB, depth 16; duplicate keys, tags, anchors, aliases and merge keys are refused.
 * Scalars stay text (typed by whoever reads them); quoted says that they were quoted. */
typedef enum { CDR_YAML_SCALAR, CDR_YAML_LIST, CDR_YAML_MAP } cdr_yaml_kind;
typedef struct cdr_yaml {
    cdr_yaml_kind kind;
    int line, col;                       /* from 1 */
    bool quoted;
    const char *text;                    /* SCALAR */
    const char *key;                     /* where this node is a map's member */
    int key_line, key_col;
    int n; struct cdr_yaml *items;       /* LIST, MAP: members in file order */
} cdr_yaml;
cdr_status cdr_yaml_parse(cdr_pool *pool, const char *text, size_t bytes, const char *where, cdr_yaml **root, cdr_err *err);
const cdr_yaml *cdr_yaml_get(const cdr_yaml *map, const char *key);

/* Nearest names by edit distance: indices in cand of at most three, nearest first, and their number;
 * " Did you mean a, b or c?" or "" (for messages). */
int cdr_nearest_of(const char *word, const char *const *cand, int n_cand, int at_most[3]);
const char *cdr_nearest(cdr_pool *pool, const char *word, const char *const *cand, int n_cand);

/* sizes and rates: "40GiB", "64GB", "1048576"; false where malformed */
bool cdr_parse_bytes(const char *s, int64_t *bytes);
bool cdr_parse_rate(const char *s, double *per_second);        /* "50GB/s", "989TFLOP/s" */
bool cdr_parse_duration(const char *s, double *seconds);       /* "250ms", "90s", "3min", "2h" */
void cdr_format_count(char out[32], int64_t x);                /* 1,276,515 */
void cdr_format_bytes(char out[32], int64_t x);                /* "177.4 MiB" */

#ifdef __cplusplus
}
#endif
#endif
