/* bits_hash.c: one line of hash per thing that must have the same bits whatever compiler built the library: each base kernel
 * over its operator's table of cases, and a small model that is trained, evaluated and sampled with base kernels alone.
 * test/test_compilers.sh compares what the builds of gcc and clang print. */
#include "run/check.h"
#include "tiny.h"

enum { MAX_KERNELS = 256 };
typedef struct { uint64_t hash; int64_t n; } sum;
typedef struct { const cdr_kernel *kernel; sum s; } row;

static void add(sum *s, const void *p, size_t bytes)
{
    s->hash = cdr_hash64(p, bytes, s->hash);
    s->n += (int64_t)bytes;
}

static sum *sum_of(row *table, const cdr_kernel *k)
{
    int i = 0;
    while (i < MAX_KERNELS && table[i].kernel && table[i].kernel != k) i++;
    CDR_CHECK(i < MAX_KERNELS);
    table[i].kernel = k;
    return &table[i].s;
}

/* The kernel, then its outputs into its hash: data only, not what lies between columns and pitch. */
static cdr_status run(const cdr_check_target *t, const cdr_kernel *k, const cdr_args *a, size_t work_bytes)
{
    (void)work_bytes;
    cdr_status st = k->run(a);
    for (int i = a->n_in; i < a->n_in + a->n_out; i++) {
        const cdr_type *y = &a->type[i];
        if (cdr_absent(y)) continue;
        int64_t step = cdr_dtype_bytes(y->dtype, cdr_type_pitch(y));
        for (int64_t r = 0; r < cdr_type_rows(y); r++)
            add(sum_of(t->ctx, k), (const char *)a->ptr[i] + r * step, (size_t)cdr_dtype_bytes(y->dtype, cdr_type_cols(y)));
    }
    return st;
}

static int kernels(void)
{
    static row table[MAX_KERNELS];
    const cdr_check_target t = { .device = CDR_DEV_CPU, .isa = 0, .run = run, .ctx = table };
    cdr_check_sum checked;
    cdr_text report = { 0 };
    cdr_err err = { CDR_OK, "", "" };
    cdr_status st = cdr_check_on(&t, "", true, &checked, &report, &err);
    if (st != CDR_OK) fprintf(stderr, "%s%s\n", report.s ? report.s : "", err.text);
    cdr_text_free(&report);
    for (int i = 0; cdr_ops[i]; i++)
        for (const cdr_kernel *k = cdr_op_kernels(cdr_ops[i], CDR_DEV_CPU); k->name; k++) {
            const sum *s = sum_of(table, k);
            if (s->n > 0) printf("%s, kernel %s: %016llx of %lld bytes\n", cdr_ops[i]->name, k->name, (unsigned long long)s->hash, (long long)s->n);
        }
    return st != CDR_OK || !table[0].kernel;
}

static int model(int dtype)
{
    tiny_run c = tiny_default();
    tiny_result *r = tiny_shared();
    c.compute = dtype;
    c.isa = 0;
    c.eval_between = c.generate_between = true;
    if (tiny_go(&c, r) != 0 || r->n_weights <= 0 || r->n_weights > TINY_MAX_WEIGHTS) {
        fprintf(stderr, "the small model does not train: %s\n", r->text);
        return 1;
    }
    sum state = { 0 }, said = { 0 };
    add(&state, r->weights, sizeof(float) * (size_t)r->n_weights);
    add(&said, r->loss, sizeof r->loss);
    add(&said, r->norm, sizeof r->norm);
    add(&said, r->eval, sizeof r->eval);
    add(&said, r->logits, sizeof r->logits);
    printf("model %s: weights and states %016llx, losses, norms and logits %016llx, last loss %a\n", cdr_dtype_row(dtype)->name,
           (unsigned long long)state.hash, (unsigned long long)said.hash, r->loss[TINY_STEPS - 1]);
    return 0;
}

int main(void)
{
    int n_bad = model(CDR_F32) + model(CDR_BF16);              /* first: a child forked after an OpenMP region hangs */
    n_bad += kernels();
    return n_bad != 0;
}
