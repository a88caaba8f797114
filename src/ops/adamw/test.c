/* Cases of adamw: with and without the rounded copy, with decay, a size that no vector width divides. */
#include "ops/adamw/adamw.h"

static const cdr_adamw_attr plain = { 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f };
static const cdr_adamw_attr decay = { 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f };

#define STATE { 'n', 1, 0 }, { 'n', 0.1, 0 }, { 'u', 0, 0.1 }
static void hyper(double *const *in, const cdr_type *t, cdr_rng_key key)
{
    (void)t; (void)key;
    for (int i = 0; i < 8; i++) in[2][i] = 0;
    in[2][0] = 0.001;
    in[2][1] = 3.6900369;
    in[2][2] = 7.0113416;
}

const cdr_case cdr_cases_adamw[] = {
    { .name = "n1000 f32", .op = &cdr_op_adamw, .attr = &plain, .n_in = 7, .absent = 1u << 6, .skip_out = 8,
      .in = { { CDR_F32, 0, 1, { 1000 }, 0 }, { CDR_F32, 0, 1, { 1 }, 0 }, { CDR_F32, 0, 1, { 8 }, 0 }, { CDR_F32, 0, 1, { 1000 }, 0 },
              { CDR_F32, 0, 1, { 1000 }, 0 }, { CDR_F32, 0, 1, { 1000 }, 0 }, { CDR_F32, 0, 1, { 1000 }, 0 } },
      .fill = { { 'n', 1, 0 }, { 'c', 0.7, 0 }, { 'f', 0, 0 }, STATE, { 'c', 0, 0 } }, .make = hyper, .tol = 1e-6 },
    { .name = "20x3001 bf16 copy, decay", .op = &cdr_op_adamw, .attr = &decay, .n_in = 7,
      .in = { { CDR_F32, 0, 2, { 20, 3001 }, 0 }, { CDR_F32, 0, 1, { 1 }, 0 }, { CDR_F32, 0, 1, { 8 }, 0 }, { CDR_F32, 0, 2, { 20, 3001 }, 0 },
              { CDR_F32, 0, 2, { 20, 3001 }, 0 }, { CDR_F32, 0, 2, { 20, 3001 }, 0 }, { CDR_BF16, 0, 2, { 20, 3001 }, 0 } },
      .fill = { { 'n', 1, 0 }, { 'c', 0.7, 0 }, { 'f', 0, 0 }, STATE, { 'c', 0, 0 } }, .make = hyper, .tol = 4e-3 },
    { .name = NULL }
};
