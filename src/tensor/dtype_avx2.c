/* dtype_avx2.c: the loops of convert.h, compiled for x86-64-v3. */
#include "tensor/convert.h"

const cdr__convert cdr__convert_avx2 = CDR__CONVERT_ROW;
