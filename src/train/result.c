/* result.c: what a command gives back. */
#include "base/base.h"
#include <stdlib.h>

void cdr_result_free(cdr_result *r)
{
    free(r->json);
    free(r->text);
    free(r->warnings);
    *r = (cdr_result){ 0 };
}
