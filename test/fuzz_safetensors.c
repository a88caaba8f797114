/* fuzz_safetensors.c: libFuzzer target over whole files in memory. What is accepted must keep the format's promises.
 *   clang -fsanitize=fuzzer,address,undefined .. test/fuzz_safetensors.c src/io/st_*.c src/base/... -lxxhash
 */
#include "io/io.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const cdr_st *st, size_t bytes)
{
    size_t end = 0;
    for (int64_t i = 0; i < cdr_st_count(st); i++) {
        const cdr_st_tensor *t = cdr_st_at(st, i);
        if (t->begin != end || t->end < t->begin) abort();
        end = t->end;
        if (cdr_st_find(st, t->name) != t) abort();   /* no name twice */
        const uint8_t *p = cdr_st_data(st, t);
        if (t->end > t->begin && p[0] + p[t->end - t->begin - 1] < 0) abort();        /* first and last byte are readable */
    }
    if (end > bytes) abort();
    for (int64_t i = 0; i < cdr_st_meta_count(st); i++)
        if (!cdr_st_meta(st, cdr_st_meta_key(st, i))) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cdr_st *st = NULL;
    cdr_err err = { 0 };
    /* an exact copy, so that one byte too far is seen */
    uint8_t *tight = malloc(bytes ? bytes : 1);
    if (!tight) return 0;
    memcpy(tight, data, bytes);
    if (cdr_st_open_memory("fuzz", tight, bytes, &st, &err) == CDR_OK) {
        check(st, bytes);
        cdr_st_close(st);
    } else if (err.status != CDR_EDATA || !err.text[0]) abort();
    free(tight);
    return 0;
}
