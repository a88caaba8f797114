/* check.h: where check.c runs an operator's kernels, when that is not this CPU. The cases, the variants and the judgement
 * are the same; a target takes host buffers and leaves in them what its kernel made.
 *
 *   cdr_check_target t = { .device = CDR_DEV_CUDA, .isa = d->isa, .run = my_run, .ctx = &mine };
 *   cdr_check_on(&t, "", quick, &sum, &report, err);
 */
#ifndef CDR_RUN_CHECK_H
#define CDR_RUN_CHECK_H

#include "run/run.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR_CHECK_MARGIN = 4096 };        /* readable and writable bytes on both sides of every buffer, filled with canaries */

typedef struct cdr_check_target cdr_check_target;
struct cdr_check_target {
    int device; uint32_t isa;
    /* Runs k as a describes, on copies of a's buffers with their margins, and copies all of it back. */
    cdr_status (*run)(const cdr_check_target *t, const cdr_kernel *k, const cdr_args *a, size_t work_bytes);
    void *ctx;
};

/* As cdr_check_op, values only: gradients are graphs, which know no device. Each kernel runs twice and must repeat its bits. */
cdr_status cdr_check_on(const cdr_check_target *t, const char *op, bool quick, cdr_check_sum *sum, cdr_text *report, cdr_err *err);
/* On CUDA device `index`, kernels of the plug-in (check_cuda.c). CDR_EUSER where there is no device. */
cdr_status cdr_check_cuda(int index, const char *op, bool quick, cdr_check_sum *sum, cdr_text *report, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
