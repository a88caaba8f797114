/* function.c: a number for what a model computes from its tensors: rope's theta, eps, scales, the choice of experts. Two directories with the same tensors
 * and another such value are two bases.
 *
 *   sum over sizes of h(name, value) + sum over layers of h(index, mixer, ffn) + sum over attributes of a layer's blocks of h(type, path, value)
 *
 * Sums: the order in which a file has them says nothing. A name of a size that stands for an attribute counts as its value, so that a description that gives
 * the number itself is the same. Left out is what changes no output: names, shapes and formats of tensors (the hash of weights has them), and the rule that
 * balances experts in training. The recipe's own changes (a slice of layers, an indexer added) are no part of a base.
 */
#include "models/model_parts.h"

enum { MAX_NODES = 4096, PATH_BYTES = 400 };

typedef struct { const cdr_yaml *node; char path[PATH_BYTES]; } place;

static uint64_t hash_of(const char *what, const char *name, const char *value)
{
    cdr_text t = { 0 };
    cdr_text_printf(&t, "%s %s %s", what, name, value);
    uint64_t h = cdr_hash64(t.s, t.n, 0);
    cdr_text_free(&t);
    return h;
}

static void size_text(const cdr__size *z, cdr_text *t)
{
    t->n = 0;
    if (!z->list) cdr_text_printf(t, "%.17g", z->real ? z->d : (double)z->i);
    for (int k = 0; z->list && k < z->n; k++) cdr_text_printf(t, "%lld,", (long long)z->items[k]);
}

/* The value of an attribute: of the size that it names (its block's own first), else the number or the word that it is. */
static void value_text(const cdr__desc *d, const char *type, const char *text, cdr_text *t)
{
    const cdr__size *found = NULL;
    const size_t n = strlen(type);
    cdr__size number = { 0 };
    for (int64_t i = 0; i < d->n_sizes; i++) {
        const char *s = d->size[i].name;
        bool own = strncmp(s, type, n) == 0 && s[n] == '.' && strcmp(s + n + 1, text) == 0;
        if (own || (!found && strcmp(s, text) == 0)) found = &d->size[i];
        if (own) break;
    }
    t->n = 0;
    if (found) size_text(found, t);
    else if (cdr__size_text(text, &number)) size_text(&number, t);
    else cdr_text_printf(t, "%s", text);
}

/* Attributes of one block, as its node has them. */
static uint64_t block_hash(const cdr__desc *d, const cdr__block *b, const cdr_yaml *node)
{
    const char *type = b->type->type;
    place *stack = cdr_alloc(sizeof *stack * MAX_NODES);
    cdr_text value = { 0 };
    uint64_t sum = 0;
    int n = 1;
    stack[0] = (place){ .node = node };
    while (n > 0) {
        const place at = stack[--n];
        if (at.node->kind == CDR_YAML_SCALAR) {
            value_text(d, type, at.node->text, &value);
            sum += hash_of(type, at.path, value.s);
        }
        for (int k = 0; k < at.node->n && n < MAX_NODES; k++) {
            const cdr_yaml *e = &at.node->items[k];
            if (e->key && strcmp(e->key, "balance") == 0) continue;
            stack[n].node = e;
            (void)snprintf(stack[n++].path, PATH_BYTES, "%.300s.%.90s", at.path, e->key ? e->key : "");
        }
    }
    cdr_text_free(&value);
    cdr_free(stack);
    return sum;
}

uint64_t cdr__model_function(const cdr_model *m)
{
    const cdr__desc *d = &m->d;
    cdr_text t = { 0 };
    uint64_t sum = 0, *block = cdr_alloc(sizeof *block * (size_t)(m->n_blocks + 1));
    for (int i = 0; i < m->n_blocks; i++) block[i] = block_hash(d, &m->block[i], m->block_node[i]);
    for (int64_t i = 0; i < d->n_sizes; i++) {
        size_text(&d->size[i], &t);
        sum += hash_of("size", d->size[i].name, t.s);
    }
    for (int i = 0; i < m->info.n_layers; i++) {
        const cdr__layer *l = &m->layer[i];
        const uint64_t one[3] = { (uint64_t)l->index, block[l->mixer], block[l->ffn] };
        sum += cdr_hash64(one, sizeof one, 0);
    }
    cdr_free(block);
    t.n = 0;
    cdr_text_printf(&t, "attn_res %d eps %.17g", m->attn_block, m->eps);
    sum += cdr_hash64(t.s, t.n, 0);
    cdr_text_free(&t);
    return sum;
}
