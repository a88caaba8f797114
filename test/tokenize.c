/* tokenize.c: ids of texts by one tokenizer, for a script that compares them with another program's, and for the clock.
 *
 *   tokenize tiktoken DIR/tiktoken.model [PATTERN]     standard input: records of u32 flags (1: trusted), u32 bytes, the bytes; output: u32 n, n times i32
 *   tokenize hf_bpe DIR/tokenizer.json --speed FILE    megabytes a second of one core's time, the best and the median of five passes over FILE
 */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of this thread: what other programs do on the core does not count. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int speed(const cdr_tokenizer *tok, const char *path)
{
    char *text;
    size_t bytes;
    cdr_err err = { 0 };
    double s[5];
    int64_t n = 0;
    if (cdr_file_read(path, (size_t)1 << 30, &text, &bytes, &err) != CDR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int32_t *ids = cdr_alloc(sizeof *ids * ((size_t)cdr_tokenizer_room(tok, bytes) + 1));
    for (int i = 0; i < 5; i++) {
        double t = cpu_s();
        n = cdr_tokenizer_encode(tok, text, bytes, ids);
        s[i] = cpu_s() - t;
    }
    qsort(s, 5, sizeof *s, by_value);
    printf("%s: %zu bytes, %lld ids, %.2f bytes an id; %.1f MB/s (best of 5), %.1f (median)\n", path, bytes, (long long)n, (double)bytes / (double)(n ? n : 1),
           (double)bytes / s[0] * 1e-6, (double)bytes / s[2] * 1e-6);
    cdr_free(ids);
    cdr_free(text);
    return 0;
}

static int serve(const cdr_tokenizer *tok)
{
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        char *text = cdr_alloc(head[1] + 1u);
        int32_t *ids = cdr_alloc(sizeof *ids * ((size_t)cdr_tokenizer_room(tok, head[1]) + 1));
        if (head[1] && fread(text, head[1], 1, stdin) != 1) return 1;
        int64_t n = head[0] & 1 ? cdr_tokenizer_encode_trusted(tok, text, head[1], ids) : cdr_tokenizer_encode(tok, text, head[1], ids);
        uint32_t count = (uint32_t)n;
        if (fwrite(&count, sizeof count, 1, stdout) != 1 || (n && fwrite(ids, sizeof *ids, (size_t)n, stdout) != (size_t)n)) return 1;
        cdr_free(ids);
        cdr_free(text);
    }
    return fflush(stdout) != 0;
}

int main(int argc, char **argv)
{
    cdr_tokenizer *tok = NULL;
    cdr_err err = { 0 };
    bool clock = argc == 5 && strcmp(argv[3], "--speed") == 0;
    if (argc < 3) {
        fprintf(stderr, "tokenize TYPE FILE [PATTERN | --speed TEXT]\n");
        return 2;
    }
    cdr_tokenizer_spec s = { .type = argv[1], .file = argv[2], .pattern = argc > 3 && !clock ? argv[3] : NULL };
    double t = cpu_s();
    if (cdr_tokenizer_open(&s, &tok, &err) != CDR_OK) {
        fprintf(stderr, "%s [%s]\n", err.text, err.id);
        return 1;
    }
    if (clock) printf("opened in %.3f s; ", cpu_s() - t);
    int rc = clock ? speed(tok, argv[4]) : serve(tok);
    cdr_tokenizer_close(tok);
    return rc;
}
