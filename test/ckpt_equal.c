/* ckpt_equal.c: are two checkpoints the same tensors, byte for byte, whatever ranks wrote them?
 *
 *   ckpt_equal runs/a/checkpoints/step-000000013 runs/b/checkpoints/step-000000013      "123 tensors, 456 bytes, written by 4 and 1 ranks"
 *
 * Exit code 1 and the first tensor that differs where they are not; 2 where one cannot be read.
 */
#include "io/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t elems_of(const cdr_ckpt_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dim; d++) n *= t->n[d];
    return n;
}

static unsigned char *whole(cdr_ckpt *ck, const cdr_ckpt_tensor *t, size_t bytes)
{
    cdr_err err = { CDR_OK, "", "" };
    unsigned char *x = calloc(1, bytes + 1);
    if (x && cdr_ckpt_read(ck, t->name, t->cls, t->dtype, 0, t->n_dim > 0 ? t->n[0] : 1, x, &err) == CDR_OK) return x;
    fprintf(stderr, "%s (%s): %s\n", t->name, t->cls, x ? err.text : "no memory");
    exit(2);
}

/* 0: the same bytes. */
static int compare(cdr_ckpt *a, cdr_ckpt *b, const cdr_ckpt_tensor *s, int64_t *total)
{
    const cdr_ckpt_tensor *t = cdr_ckpt_find(b, s->name, s->cls);
    if (!t || t->dtype != s->dtype || t->n_dim != s->n_dim || memcmp(t->n, s->n, sizeof *s->n * (size_t)s->n_dim) != 0) {
        printf("%s (%s): %s\n", s->name, s->cls, t ? "another shape" : "in the first alone");
        return 1;
    }
    const size_t bytes = (size_t)cdr_dtype_bytes(s->dtype, elems_of(s));
    unsigned char *x = whole(a, s, bytes), *y = whole(b, t, bytes);
    const int differ = memcmp(x, y, bytes) != 0;
    if (differ) printf("%s (%s): the bytes differ\n", s->name, s->cls);
    *total += (int64_t)bytes;
    free(x);
    free(y);
    return differ;
}

int main(int argc, char **argv)
{
    cdr_ckpt *ck[2] = { NULL, NULL };
    cdr_err err = { CDR_OK, "", "" };
    int64_t bytes = 0;
    for (int k = 0; k < 2; k++)
        if (argc != 3 || cdr_ckpt_open(argv[k + 1], &ck[k], &err) != CDR_OK || cdr_ckpt_verify(ck[k], &err) != CDR_OK) {
            fprintf(stderr, "ckpt_equal: %s\n", argc != 3 ? "takes two checkpoints" : err.text);
            return 2;
        }
    const int64_t n = cdr_ckpt_count(ck[0]);
    int differ = n == 0 || n != cdr_ckpt_count(ck[1]);
    if (differ) printf("%lld tensors and %lld\n", (long long)n, (long long)cdr_ckpt_count(ck[1]));
    for (int64_t i = 0; i < n && !differ; i++) differ = compare(ck[0], ck[1], cdr_ckpt_at(ck[0], i), &bytes);
    if (!differ) printf("%lld tensors, %lld bytes, written by %d and %d ranks\n", (long long)n, (long long)bytes, cdr_ckpt_ranks(ck[0]), cdr_ckpt_ranks(ck[1]));
    for (int k = 0; k < 2; k++) cdr_ckpt_close(ck[k]);
    return differ;
}
