/* fuzz_manifest.c: libFuzzer target over the text of a checkpoint's manifest.json.
 *   clang -fsanitize=fuzzer,address,undefined .. test/fuzz_manifest.c src/io/ckpt_manifest.c src/io/st_read.c src/base/... -lxxhash
 */
#include "io/io.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cdr_err err = { 0 };
    char *text = malloc(bytes ? bytes : 1);
    if (!text) return 0;
    memcpy(text, data, bytes);
    if (cdr_ckpt_check_manifest("fuzz", text, bytes, &err) != CDR_OK && (err.status != CDR_EDATA || !err.text[0] || !err.id[0])) abort();
    free(text);
    return 0;
}
