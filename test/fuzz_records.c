/* fuzz_records.c: any bytes as a file of records, read in every form. The readers never crash; records lie in the file, one behind the other; what is
 * accepted gives words of known ids, of which the first is no target and as many are targets as was said; what is refused has a message and an id.
 */
#include "data/internal.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_in_form(const cdr__masking *mask, cdr__format form, const cdr_json *record)
{
    static const cdr_data_column COLUMNS[] = { { "messages", "conversations" }, { "role", "from" }, { "content", "value" } };
    cdr_pool *pool = cdr_pool_new();
    for (int n = 0; n <= 3; n += 3) {
        cdr__columns columns = { COLUMNS, n };
        cdr__sample s;
        cdr__words words = { 0 };
        cdr__weights weights = { { 1 }, 1 };
        cdr_err err = { 0 };
        int64_t n_trained = 0, count = 0;
        cdr_status st = cdr__sample_read(pool, form, &columns, record, &s, &err);
        if (st == CDR_OK) st = cdr__mask_sample(mask, &s, &weights, &words, &n_trained, &err);
        CDR_CHECK(st == CDR_OK ? !err.text[0] : err.status == st && err.id[0] && err.text[0]);
        for (int64_t i = 0; st == CDR_OK && i < words.n; i++) {
            CDR_CHECK(cdr__word_id(words.w[i]) < cdr_tokenizer_vocab(mask->tok) && cdr__word_weight(words.w[i]) < weights.n);
            CDR_CHECK(i > 0 || words.w[i] < CDR__TRAINED);
            count += words.w[i] >= CDR__TRAINED;
        }
        CDR_CHECK(st != CDR_OK || count == n_trained);
        free(words.w);
    }
    cdr_pool_free(pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cdr_tokenizer *tok;
    static cdr_chat *chat;
    cdr_err err = { 0 };
    if (!tok) {
        CDR_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) == CDR_OK);
        CDR_CHECK(cdr_chat_open(&(cdr_chat_spec){ .format = "k3_xtml", .tokenizer = tok, .thinking = true }, &chat, &err) == CDR_OK);
    }
    cdr__masking mask = { .tok = tok, .chat = chat, .train_on = size % 4, .train_eos = size / 4 % 3, .mask_think = size / 12 % 3, .eos = cdr_tokenizer_eos(tok) };
    char *text = cdr_alloc(size);                     /* exactly as long: a read beyond its end is seen */
    if (size) memcpy(text, data, size);
    cdr__reader r;
    cdr__record rec;
    bool more = true;
    const char *before = text;
    cdr__reader_open("fuzz", text, size, &r);
    while (cdr__reader_next(&r, &rec, &more, &err) == CDR_OK && more) {
        CDR_CHECK(rec.s >= before && rec.n > 0 && rec.s + rec.n <= text + size && rec.line >= 1 && rec.col >= 1);
        before = rec.s + rec.n;
        cdr_pool *pool = cdr_pool_new();
        const cdr_json *root;
        cdr_err ignored = { 0 };
        if (cdr_json_parse_at(pool, rec.s, rec.n, (cdr_json_place){ "fuzz", rec.line, rec.col }, &root, &ignored) == CDR_OK) {
            (void)cdr__detect(&(cdr__columns){ NULL, 0 }, root);
            for (int f = CDR__RECORDS; f <= CDR__COMPLETION; f++) read_in_form(&mask, (cdr__format)f, root);
        }
        cdr_pool_free(pool);
    }
    CDR_CHECK(!more || (err.id[0] && err.text[0]));
    cdr_free(text);
    return 0;
}
