/* inspect_names.c: which parameter a tensor of a directory belongs to, by its name alone: nothing is opened. A name is looked up as it
 * stands, then with each of its numbers in turn as {expert}; the table of names holds one entry for a row, whatever the number of experts,
 * so 500,000 tensors take a few look-ups each in a table that stays in the cache. Shapes and dtypes are the audit's (src/weights).
 */
#include "command/inspect.h"

typedef struct { const char *name; int64_t param; int role; } entry;      /* param: first of the parameters that share the tensor */
typedef struct {
    cdr_pool *pool;
    const cdr_model *m;
    entry *e; int64_t n, cap;
    int32_t *slot; size_t n_slots;
    int64_t *next;                    /* by parameter: the next one of the same fused tensor, -1 */
    int64_t *count[CDR__ROLES];       /* by parameter */
} table;

static int32_t *slot_of(table *t, const char *name, size_t n)
{
    size_t s = cdr_hash64(name, n, cdr_hash_secret()) & (t->n_slots - 1);
    while (t->slot[s] && !(strncmp(t->e[t->slot[s] - 1].name, name, n) == 0 && t->e[t->slot[s] - 1].name[n] == 0)) s = (s + 1) & (t->n_slots - 1);
    return &t->slot[s];
}

static void add(table *t, const char *name, int64_t param, int role)
{
    int32_t *s = slot_of(t, name, strlen(name));
    if (*s) {                                              /* another part of a fused tensor */
        int64_t at = t->e[*s - 1].param;
        while (t->next[at] >= 0) at = t->next[at];
        if (at != param) t->next[at] = param;
        return;
    }
    *CDR_PUSH(t->pool, t->e, t->n, t->cap) = (entry){ name, param, role };
    *s = (int32_t)t->n;
}

static void fill(table *t)
{
    int64_t n = cdr_model_params(t->m);
    t->n_slots = 64;
    while (t->n_slots < (size_t)n * 10) t->n_slots *= 2;
    t->slot = cdr_pool_alloc(t->pool, sizeof *t->slot * t->n_slots);
    t->next = cdr_pool_alloc(t->pool, sizeof *t->next * (size_t)(n + 1));
    for (int r = 0; r < CDR__ROLES; r++) t->count[r] = cdr_pool_alloc(t->pool, sizeof(int64_t) * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        cdr_model_row row = cdr_model_stored(t->m, i);
        t->next[i] = -1;
        for (int f = 0; f < row.n_formats; f++) {
            bool packed = strcmp(row.format[f], "MXFP4") == 0, fp8 = strcmp(row.format[f], "FP8_128") == 0;
            if (!packed) add(t, row.name, i, CDR__ROLE_PLAIN);
            if (packed) add(t, cdr_pool_printf(t->pool, "%s_packed", row.name), i, CDR__ROLE_PACKED);
            if (packed) add(t, cdr_pool_printf(t->pool, "%s_scale", row.name), i, CDR__ROLE_SCALE);
            if (fp8) add(t, cdr_pool_printf(t->pool, "%s_scale_inv", row.name), i, CDR__ROLE_INVERSE);
        }
    }
}

static int64_t experts_of(const cdr_model *m, int64_t i)
{
    cdr_model_part p = cdr_model_param_part(m, i);
    return p.top_k > 0 && strstr(cdr_model_stored(m, i).name, "{expert}") ? p.n[0] : 1;
}

/* The entry of a name, -1: none. Names of a directory are distinct, and so are then the experts counted. */
static int32_t find(table *t, const char *name)
{
    static const char HOLE[] = "{expert}";
    char with[1024];
    size_t n = strlen(name);
    int32_t at = *slot_of(t, name, n);
    if (at) return at - 1;
    for (size_t i = 0; i < n; i++) {
        if (name[i] < '0' || name[i] > '9' || (i > 0 && name[i - 1] != '.')) continue;
        size_t digits = strspn(name + i, "0123456789"), rest = n - i - digits, bytes = i + sizeof HOLE - 1 + rest;
        if (digits > 9 || (digits > 1 && name[i] == '0') || bytes >= sizeof with) continue;
        memcpy(with, name, i);
        memcpy(with + i, HOLE, sizeof HOLE - 1);
        memcpy(with + i + sizeof HOLE - 1, name + i + digits, rest);
        at = *slot_of(t, with, bytes);
        int64_t expert = 0;
        for (size_t k = 0; k < digits; k++) expert = expert * 10 + (name[i + k] - '0');
        if (at && expert < experts_of(t->m, t->e[at - 1].param)) return at - 1;
    }
    return -1;
}

/* What a parameter lacks: "" where it is whole, else a word for messages. */
static bool whole(const table *t, int64_t i, cdr__names *a)
{
    int64_t n = experts_of(t->m, i), plain = t->count[CDR__ROLE_PLAIN][i], packed = t->count[CDR__ROLE_PACKED][i], scale = t->count[CDR__ROLE_SCALE][i],
            inverse = t->count[CDR__ROLE_INVERSE][i];
    a->n_packed += packed > 0;
    a->n_fp8 += inverse > 0;
    if (packed > 0 || scale > 0) return packed == n && scale == n && plain == 0 && inverse == 0;
    return plain == n && (inverse == 0 || inverse == n);
}

cdr_status cdr__names_audit(const cdr_model *m, const cdr_hf *d, cdr_pool *pool, cdr__names *a, cdr_err *err)
{
    table t = { .pool = pool, .m = m };
    int64_t n = cdr_hf_count(d);
    (void)err;
    *a = (cdr__names){ .of = cdr_pool_alloc(pool, sizeof *a->of * (size_t)(n + 1)), .role = cdr_pool_alloc(pool, (size_t)n + 1) };
    fill(&t);
    for (int64_t i = 0; i < n; i++) {
        const char *name = cdr_hf_name(d, i);
        int32_t at = find(&t, name);
        if (at >= 0) {
            a->of[i] = t.e[at].param;
            a->role[i] = (uint8_t)t.e[at].role;
            for (int64_t p = t.e[at].param; p >= 0; p = t.next[p]) t.count[t.e[at].role][p]++;
            a->n_used++;
        } else if (cdr_model_carries(m, name)) {
            a->of[i] = -1;
            a->n_carried++;
        } else {
            a->of[i] = -2;
            if (a->n_unknown < CDR__NAMES_LISTED) a->unknown[a->n_unknown] = name;
            a->n_unknown++;
        }
    }
    for (int64_t i = 0; i < cdr_model_params(m); i++) {
        if (whole(&t, i, a)) continue;
        if (a->n_missing < CDR__NAMES_LISTED) a->missing[a->n_missing] = cdr_model_param(m, i);
        a->n_missing++;
    }
    return CDR_OK;
}

cdr_status cdr__count_formats(cdr_hf *d, cdr__format_count count[CDR__NAMES_FORMATS], int64_t *bytes, cdr_err *err)
{
    *bytes = 0;
    for (int64_t i = 0; i < cdr_hf_count(d); i++) {
        cdr_hf_tensor t;
        if (!cdr_hf_shard_there(d, cdr_hf_shard_of(d, i))) continue;
        CDR_TRY(cdr_hf_tensor_at(d, i, &t, err));
        CDR_CHECK(t.t->format >= 0 && t.t->format < CDR__NAMES_FORMATS);
        count[t.t->format].tensors++;
        count[t.t->format].bytes += (int64_t)(t.t->end - t.t->begin);
        *bytes += (int64_t)(t.t->end - t.t->begin);
    }
    return CDR_OK;
}
