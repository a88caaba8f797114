/* parity_dump.c: what tools/peers/parity.py compares with transformers (no test):
 *
 *   parity_dump toy FAMILY DIR EXPERTS       a toy with the weights of parity_rig.h
 *   parity_dump run DIR OUT T                  its forward over T ids and one gradient, as safetensors: the names of a reference dump
 *                                              (src/train/onboard_verify.c), and loss F64 [1], grad/NAME of each parameter
 */
#include "parity_rig.h"

typedef struct { cdr_st_spec *spec; const void **data; int64_t n, n_cap; cdr_pool *pool; } dump;

static void add(dump *o, const char *name, const char *format, const void *data, int n_dim, const int64_t *n)
{
    if (!data) return;
    if (o->n == o->n_cap) {
        fprintf(stderr, "error: more tensors than %lld\n", (long long)o->n_cap);
        exit(1);
    }
    o->data[o->n] = data;
    cdr_st_spec *s = &o->spec[o->n++];
    *s = (cdr_st_spec){ .name = cdr_pool_strdup(o->pool, name), .format = cdr_st_format_by_name(format), .n_dim = n_dim };
    memcpy(s->n, n, sizeof *n * (size_t)n_dim);
}

static void add_probe(dump *o, parity *p, const char *probe, const char *name, const char *format)
{
    int64_t cols = 0;
    void *x = parity_get(p, probe, &cols);
    add(o, name, format, x, 2, (int64_t[]){ p->T, cols });
}

static void collect(dump *o, parity *p)
{
    int64_t one = 1;
    parity_eval(p);
    add(o, "input_ids", "I32", p->ids, 1, &p->T);
    add_probe(o, p, "head.logits", "logits", "F32");
    for (int l = 0; l < p->info->n_layers; l++) {
        add_probe(o, p, cdr_pool_printf(o->pool, "layers.%d.hidden", l), cdr_pool_printf(o->pool, "hidden_states.%d", l), "F32");
        add_probe(o, p, cdr_pool_printf(o->pool, "layers.%d.moe.idx", l), cdr_pool_printf(o->pool, "router.%d.indices", l), "I32");
        add_probe(o, p, cdr_pool_printf(o->pool, "layers.%d.moe.p", l), cdr_pool_printf(o->pool, "router.%d.weights", l), "F32");
    }
    parity_step(p);
    add(o, "loss", "F64", &p->loss, 1, &one);
    for (int32_t i = 0; i < p->b.n_params; i++) {
        const cdr_param *q = &p->b.params[i];
        if (q->grad == CDR_NONE) continue;
        add(o, cdr_pool_printf(o->pool, "grad/%s", q->name), "F32", cdr_exec_ptr(p->x, CDR_PROG_STEP, q->grad, 0), q->global.n_dim, q->global.n);
    }
}

static void write_out(const dump *o, const char *path)
{
    cdr_err err = { 0 };
    cdr_st_writer *w = NULL;
    parity_stop(cdr_st_create(path, o->spec, o->n, NULL, 0, &w, &err), &err);
    for (int64_t i = 0; i < o->n; i++) {
        int64_t k = cdr_st_writer_order(w, i);
        size_t bytes = (size_t)cdr_st_format_row(o->spec[k].format)->bits / 8;
        for (int d = 0; d < o->spec[k].n_dim; d++) bytes *= (size_t)o->spec[k].n[d];
        parity_stop(cdr_st_append(w, o->data[k], bytes, &err), &err);
    }
    parity_stop(cdr_st_finish(w, NULL, NULL, &err), &err);
}

int main(int argc, char **argv)
{
    cdr_log_set_level(CDR_LOG_ERROR);
    if (argc == 5 && strcmp(argv[1], "toy") == 0) {
        parity_toy(argv[2], argv[3], argv[4]);
        return 0;
    }
    int64_t T = argc == 5 && strcmp(argv[1], "run") == 0 ? atoi(argv[4]) : 0;
    if (T < 2 || T > 4096) {
        fprintf(stderr, "parity_dump toy FAMILY DIR EXPERTS | parity_dump run DIR OUT T\n");
        return 2;
    }
    parity p;
    parity_open(&p, argv[2], T);
    dump o = { .pool = p.pool, .n_cap = 1000 };
    o.spec = cdr_pool_alloc(o.pool, sizeof *o.spec * (size_t)o.n_cap);
    o.data = cdr_pool_alloc(o.pool, sizeof *o.data * (size_t)o.n_cap);
    collect(&o, &p);
    write_out(&o, argv[3]);
    parity_close(&p);
    return 0;
}
