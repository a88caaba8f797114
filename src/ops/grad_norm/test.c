/* Cases of norm_parts and norm_total: shards of whole parts, rows that 128 does not divide, fewer rows than parts. */
#include "ops/grad_norm/grad_norm.h"

static const cdr_norm_parts_attr one = { .n = 1, .n_shard = 1, .rows = { 130 } };
static const cdr_norm_parts_attr two = { .n = 2, .n_shard = 2, .shard = 1, .rows = { 512, 256 } };
static const cdr_norm_parts_attr three_d = { .n = 2, .n_shard = 2, .shard = 1, .rows = { 4 * 96, 256 } };       /* experts [4, 96, 40] and a matrix */
static const cdr_norm_parts_attr few = { .n = 1, .n_shard = 1, .rows = { 5 } };
static const cdr_norm_total_attr t2 = { .n_shard = 4, .expert = 2, .n = { 3, 2, 1 }, .max_norm = 1.0 };
static const cdr_norm_total_attr free_norm = { .n_shard = 1, .expert = 1, .n = { 0, 1, 0 }, .max_norm = 0.0 };

const cdr_case cdr_cases_grad_norm[] = {
    { .name = "R130 1 shard", .op = &cdr_op_norm_parts, .attr = &one, .n_in = 1, .in = { { CDR_F32, 0, 2, { 130, 64 }, 0 } },
      .fill = { { 'n', 1, 0 } }, .tol = 1e-12 },
    { .name = "two, shard 1 of 2", .op = &cdr_op_norm_parts, .attr = &two, .n_in = 2,
      .in = { { CDR_F32, 0, 2, { 256, 48 }, 0 }, { CDR_F32, 0, 2, { 128, 17 }, 0 } }, .fill = { { 'n', 1, 0 }, { 'n', 100, 0 } }, .tol = 1e-12 },
    { .name = "experts on three axes, shard 1 of 2", .op = &cdr_op_norm_parts, .attr = &three_d, .n_in = 2,
      .in = { { CDR_F32, 0, 3, { 2, 96, 40 }, 0 }, { CDR_F32, 0, 2, { 128, 17 }, 0 } }, .fill = { { 'n', 1, 0 }, { 'n', 100, 0 } }, .tol = 1e-12 },
    { .name = "fewer rows than parts", .op = &cdr_op_norm_parts, .attr = &few, .n_in = 1, .in = { { CDR_F32, 0, 1, { 5 }, 0 } },
      .fill = { { 'n', 1, 0 } }, .tol = 1e-12 },
    { .name = "clipped", .op = &cdr_op_norm_total, .attr = &t2, .n_in = 5,
      .in = { { CDR_F64, 0, 2, { 4, 96 }, 0 }, { CDR_F64, 0, 1, { 256 }, 0 }, { CDR_F64, 0, 2, { 4, 32 }, 0 }, { CDR_F64, 0, 1, { 1 }, 0 }, { CDR_I32, 0, 1, { 1 }, 0 } },
      .fill = { { 'u', 0, 1 }, { 'u', 0, 1 }, { 'u', 0, 1 }, { 'c', 2.5, 0 }, { 'c', 1, 0 } }, .tol = 1e-6 },
    { .name = "no clipping, already stopped", .op = &cdr_op_norm_total, .attr = &free_norm, .n_in = 5, .absent = 5,
      .in = { { CDR_F64, 0, 1, { 1 }, 0 }, { CDR_F64, 0, 1, { 128 }, 0 }, { CDR_F64, 0, 1, { 1 }, 0 }, { CDR_F64, 0, 1, { 1 }, 0 }, { CDR_I32, 0, 1, { 1 }, 0 } },
      .fill = { { 'c', 0, 0 }, { 'u', 0, 1 }, { 'c', 0, 0 }, { 'c', 2.5, 0 }, { 'c', 0, 0 } }, .tol = 1e-6 },
    { .name = NULL }
};
