/* split.c: what a model said, where reasoning stands between <think> and </think> at its beginning: marks that are ids of
 * their own, or text. White space around the reasoning and in front of the content belongs to the marks.
 */
#include "chat/internal.h"

#include <string.h>

static bool begins_with(const char *s, size_t n, const char *mark) { return n >= strlen(mark) && memcmp(s, mark, strlen(mark)) == 0; }

static size_t skip_space(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", s[i])) i++;
    return i;
}

static const char *find_text(const char *s, size_t n, const char *mark)
{
    return n ? memmem(s, n, mark, strlen(mark)) : NULL;
}

void cdr__split_think(const cdr_tokenizer *tok, const int32_t *ids, int64_t n, cdr__think t, cdr_text *content, cdr_text *reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    cdr_text all = { 0 };
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] == t.begin && t.begin >= 0) cdr_text_append(&all, open, sizeof open - 1);
        else if (ids[i] == t.end && t.end >= 0) cdr_text_append(&all, close, sizeof close - 1);
        else (void)cdr_tokenizer_decode(tok, &ids[i], 1, true, &all);
    }
    const char *s = all.s, *stop = all.s + all.n;
    bool inside = t.inside;
    if (all.n) {
        size_t space = skip_space(s, all.n);
        if (begins_with(s + space, all.n - space, open)) {
            inside = true;
            s += space + sizeof open - 1;
        }
    }
    if (inside && s) {
        const char *end = find_text(s, (size_t)(stop - s), close);
        size_t lead = skip_space(s, (size_t)((end ? end : stop) - s)), len = (size_t)((end ? end : stop) - s) - lead;
        s += lead;
        if (end)
            while (len > 0 && strchr(" \t\r\n", s[len - 1])) len--;
        cdr_text_append(reasoning, s, len);
        s = end ? end + sizeof close - 1 : stop;
        s += skip_space(s, (size_t)(stop - s));
    }
    if (s) cdr_text_append(content, s, (size_t)(stop - s));
    cdr_text_free(&all);
}
