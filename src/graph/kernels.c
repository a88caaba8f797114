/* kernels.c: which kernels an operator has on a device. The CPU's rows belong to the operator's record; those of other
 * devices lie in tables that the build generates from the folders, so that choosing needs neither plug-in nor driver. */
#include "graph/op.h"

static const cdr_kernel no_kernels[] = { { .name = NULL } };

const cdr_kernel *cdr_op_kernels(const cdr_op *op, int device)
{
    if (device == CDR_DEV_CPU) return op->kernels ? op->kernels : no_kernels;
    if (device == CDR_DEV_CUDA)
        for (const cdr_device_kernels *k = cdr_cuda_kernels; k->op; k++)
            if (k->op == op) return k->kernels;
    return no_kernels;
}
