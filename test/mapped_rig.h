/* mapped_rig.h: packed experts of a model in a file, mapped, for tests: what cdr_exec_init draws for a stack that is copied, as a checkpoint has
 * it, at addresses that are not aligned.
 *
 *   CDR_TRY(cdr_exec_init(x, seed, err));
 *   int64_t n = mapped_fill(x, &bundle, &mesh, seed);              // stacks that stay in the file; it is gone with the process
 */
#ifndef CADRE_MAPPED_RIG_H
#define CADRE_MAPPED_RIG_H
#include "run/run.h"
#include <sys/mman.h>
#include <unistd.h>

/* A new file of these bytes, mapped read only */
static inline const uint8_t *mapped_file(const uint8_t *data, size_t bytes)
{
    FILE *f = tmpfile();
    CDR_CHECK(f && fwrite(data, 1, bytes, f) == bytes && fflush(f) == 0);
    const void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fileno(f), 0);
    CDR_CHECK(p != MAP_FAILED);
    fclose(f);
    return p;
}

static inline void mapped_stack(cdr_exec *x, const cdr_param *q, const cdr_mesh *m, uint64_t seed)
{
    const int64_t n = q->global.n[1] * q->global.n[2], each = n / 2 + n / 32 + 3;        /* an odd byte before each array */
    int64_t first, rows;
    cdr_param_rows(q, m, &first, &rows);
    float *wide = cdr_alloc(sizeof *wide * (size_t)n);
    uint8_t *data = cdr_alloc((size_t)(rows * each + 1));
    for (int64_t e = 0; e < rows; e++) {
        cdr_param_draw(q, seed, (first + e) * n, n, wide, 1);
        cdr_mxfp4_encode(wide, data + e * each + 1, data + e * each + 2 + n / 2, n);
    }
    const uint8_t *file = mapped_file(data, (size_t)(rows * each + 1));
    for (int64_t e = 0; e < rows; e++) cdr_exec_map(x, q->shard, e, file + e * each + 1, file + e * each + 2 + n / 2);
    cdr_free(wide);
    cdr_free(data);
}

static inline int64_t mapped_fill(cdr_exec *x, const cdr_bundle *b, const cdr_mesh *m, uint64_t seed)
{
    int64_t n = 0;
    for (int32_t i = 0; i < b->n_params; i++) {
        if (!b->params[i].mapped) continue;
        mapped_stack(x, &b->params[i], m, seed);
        n++;
    }
    return n;
}
#endif
