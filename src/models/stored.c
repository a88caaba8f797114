/* stored.c: what a model says of its files: rows as a checkpoint has them, what is carried, the tokenizer, what adapters bind.
 *
 *   carry: [vision_tower.*, "model.layers.{mtp}.*"]       patterns over tensor names; * is any text. {SIZE}: each of the SIZE layers
 *                                                       behind the last one (multi-token prediction)
 * Of a slice of the stack, the tensors of the other layers are carried too.
 */
#include "models/config_parts.h"
#include "models/model_parts.h"
#include <stdlib.h>

cdr_model_row cdr_model_stored(const cdr_model *m, int64_t i_param)
{
    CDR_CHECK(i_param >= 0 && i_param < m->n_tensors);
    return m->tensor[i_param].row;
}

/* '*' is any text, also none. Two positions to go back to are enough: linear for one star, bounded by lengths multiplied. */
static bool matches(const char *pattern, const char *s)
{
    const char *star = NULL, *back = NULL;
    while (*s) {
        if (*pattern == '*') star = pattern++, back = s;
        else if (*pattern == *s) pattern++, s++;
        else if (star) pattern = star + 1, s = ++back;
        else return false;
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

/* The decimal number at s; its digits. -1: none. */
static int64_t layer_at(const char *s, size_t *digits)
{
    size_t n = strspn(s, "0123456789");
    *digits = n;
    return n == 0 || n > 9 || (s[0] == '0' && n > 1) ? -1 : strtoll(s, NULL, 10);
}

/* "model.layers.{mtp}.*": the number there is from n_all on, and below n_all + mtp. */
static bool matches_behind(const cdr_model *m, const char *pattern, const char *tensor)
{
    const char *open = strchr(pattern, '{'), *close = open ? strchr(open, '}') : NULL;
    size_t digits, n = open ? (size_t)(open - pattern) : 0;
    if (!close || strncmp(pattern, tensor, n) != 0) return false;
    char *name = cdr_pool_strndup(m->d.pool, open + 1, (size_t)(close - open - 1));
    const cdr__size *z = cdr__size_find(&m->d, NULL, name);
    int64_t layer = layer_at(tensor + n, &digits), more = z && !z->list && !z->real ? z->i : 0;
    return layer >= m->n_all && layer < m->n_all + more && matches(close + 1, tensor + n + digits);
}

/* A tensor of a layer that the slice leaves out. */
static bool other_layer(const cdr_model *m, const char *tensor)
{
    const char *hole = m->layer_prefix ? strstr(m->layer_prefix, "{layer}") : NULL;
    size_t n = hole ? (size_t)(hole - m->layer_prefix) : 0, digits;
    if (!hole || m->info.n_layers == m->n_all || strncmp(m->layer_prefix, tensor, n) != 0) return false;
    int64_t layer = layer_at(tensor + n, &digits);
    if (layer < 0 || layer >= m->n_all || strncmp(tensor + n + digits, hole + 7, strlen(hole + 7)) != 0) return false;
    for (int i = 0; i < m->info.n_layers; i++) if (m->layer[i].index == layer) return false;
    return true;
}

bool cdr_model_carries(const cdr_model *m, const char *tensor)
{
    const cdr_yaml *carry = cdr_yaml_get(m->d.root, "carry");
    for (int i = 0; carry && i < carry->n; i++) {
        const char *pattern = carry->items[i].text;
        if (strchr(pattern, '{') ? matches_behind(m, pattern, tensor) : matches(pattern, tensor)) return true;
    }
    return other_layer(m, tensor);
}

const char *cdr_model_dir(const cdr_model *m) { return m->source && m->source->weights && !m->random ? m->source->dir : NULL; }

int cdr_model_notes(const cdr_model *m, const char *const **note)
{
    *note = m->d.note;
    return (int)m->d.n_notes;
}

int cdr_model_index_base(const cdr_model *m)
{
    const char *base = cdr__attr_word(m->d.root, "index_base");
    return base && base[0] == '1' ? 1 : 0;
}

int64_t cdr_model_sizes(const cdr_model *m) { return m->d.n_sizes; }

const char *cdr_model_size(const cdr_model *m, int64_t i, const char **value, const char **from)
{
    CDR_CHECK(i >= 0 && i < m->d.n_sizes);
    const cdr__size *z = &m->d.size[i];
    const char *s = "[";
    for (int k = 0; z->list && k < z->n; k++) s = cdr_pool_printf(m->d.pool, "%s%s%lld", s, k ? ", " : "", (long long)z->items[k]);
    *value = z->list ? cdr_pool_printf(m->d.pool, "%s]", s) : z->real ? cdr_pool_printf(m->d.pool, "%.9g", z->d) : cdr_pool_printf(m->d.pool, "%lld", (long long)z->i);
    *from = z->from;
    return z->name;
}

static int small_number(const char *text) { return text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 9 ? atoi(text) : 0; }

cdr_model_text cdr_model_get_text(const cdr_model *m)
{
    const cdr_yaml *tok = cdr_yaml_get(m->d.root, "tokenizer");
    int special = tok ? small_number(cdr__attr_word(tok, "special")) : 0;
    cdr_model_text t = { .type = m->info.tokenizer, .chat = m->info.chat, .dir = m->source ? m->source->dir : NULL, .special = special };
    t.file = tok ? cdr__attr_word(tok, "file") : NULL;
    t.pattern = tok ? cdr__attr_word(tok, "pattern") : NULL;
    t.base = special > 0 && special < m->info.vocab ? (int)m->info.vocab - special : 0;
    return t;
}

int cdr_model_serves(const cdr_model *m, const char *consumer, const char *leaf)
{
    const cdr_yaml *serve = cdr_yaml_get(m->d.root, "serve"), *list = serve ? cdr_yaml_get(serve, consumer) : NULL;
    if (!list) return -1;
    for (int i = 0; i < list->n; i++) if (strcmp(list->items[i].text, leaf) == 0) return 1;
    return 0;
}
