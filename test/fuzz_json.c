/* fuzz_json.c: any bytes. The reader never crashes; what it accepts can be written, and reads back equal; what it
 * refuses has a message and a stable id.
 */
#include "json_copy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cdr_err err = { 0 };
    cdr_pool *pool = cdr_pool_new();
    const cdr_json *root, *again;
    char *text = cdr_alloc(size);               /* exactly as long: a read beyond its end is seen */
    if (size) memcpy(text, data, size);
    cdr_status status = cdr_json_parse(pool, text, size, "fuzz", &root, &err);
    cdr_free(text);
    if (status == CDR_OK) {
        cdr_text t = { 0 };
        json_write(&t, root);
        CDR_CHECK(cdr_json_parse(pool, t.s, t.n, "written", &again, &err) == CDR_OK);
        CDR_CHECK(json_equal(root, again));
        cdr_text_free(&t);
    } else {
        CDR_CHECK(err.status == status && err.id[0] && err.text[0] && !root);
    }
    cdr_pool_free(pool);
    return 0;
}
