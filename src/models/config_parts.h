/* config_parts.h: a directory's config.json as the folder's files share it. config_read.c makes sizes of it and checks the rest,
 * config_match.c finds its description, config_write.c writes one.
 *
 *   cdr__source *src;
 *   CDR_TRY(cdr__source_open("checkpoints/k3", pool, &src, err));
 *   const cdr_json *heads = cdr__source_get(src, "linear_attn_config.num_heads");        // below text_config where there is one
 */
#ifndef CDR_CONFIG_PARTS_H
#define CDR_CONFIG_PARTS_H

#include "io/hf.h"
#include "models/models.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__MAX_KEYS = 12 };

struct cdr__source {
    const char *dir, *where;          /* where: "DIR/config.json" */
    const cdr_json *root, *text;      /* text: its text_config; NULL: none */
    const char *bytes; size_t n_bytes;
    bool weights;                     /* the directory holds *.safetensors */
    cdr_hf *hf; bool own_hf;          /* during a load only */
};

typedef struct {                      /* "a | b | c = d" */
    const char *word[CDR__MAX_KEYS]; int n;
    const char *otherwise;            /* d; NULL: none */
} cdr__words;

cdr_status cdr__source_open(const char *dir, cdr_pool *pool, cdr__source **src, cdr_err *err);
/* A dotted key, below text_config first, then at the top. NULL: absent or null. */
const cdr_json *cdr__source_get(const cdr__source *src, const char *key);
const cdr_json *cdr__json_path(cdr_pool *pool, const cdr_json *obj, const char *key);
bool cdr__words_read(cdr_pool *pool, const char *text, cdr__words *w);         /* false: no such form */
bool cdr__config_harmless(const char *key);                                    /* says nothing about the text model's mathematics */
/* Sizes from config.json; every key is one that is read, expected, or harmless. only_absent: sizes of the file itself win, not those that it extends. */
cdr_status cdr__config_apply(cdr__desc *d, const cdr__source *src, bool only_absent, cdr_err *err);
cdr_status cdr__config_check(cdr__desc *d, const cdr__source *src, cdr_err *err);
/* How many of the keys that a description needs a config.json has, and which it lacks, at most 8 names (for messages). */
typedef struct { int needed, there; const char *lacks; } cdr__fit;
cdr__fit cdr__config_fit(cdr__desc *d, const cdr__source *src);
const char *cdr__config_unknown(cdr__desc *d, const cdr__source *src, int max, int *n);        /* names of keys that nothing reads */
bool cdr__size_set(cdr__desc *d, const char *name, cdr__size z);               /* false: it was new */
bool cdr__size_parse(cdr_pool *pool, const cdr_json *j, cdr__size *z);
/* Is a tensor of this name in the directory? src may be NULL. Opens its index the first time; cdr__source_release closes that. */
cdr_status cdr__source_has(cdr__source *src, const char *tensor, bool *has, cdr_err *err);
void cdr__source_release(cdr__source *src);
/* One condition on a value: a word of a description against JSON; absent is NULL. */
bool cdr__expect_met(const cdr__desc *d, const cdr_json *j, const char *word);
bool cdr__desc_has_format(const cdr__desc *d, const char *format);             /* some row may be stored so */

#ifdef __cplusplus
}
#endif
#endif
