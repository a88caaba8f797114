/* unicode.h: what tokenizers know about characters: general category, the script Han, canonical composition (NFC). Unicode 16.0.
 *
 *   for (size_t i = 0; i < n; i += k) { uint32_t c = cdr__utf8(s + i, n - i, &k); ... }       // a byte that is no UTF-8: CDR__NO_UTF8, k = 1
 *   if (!cdr__nfc_is(text, n)) cdr__nfc(text, n, &out);
 */
#ifndef CDR_TOKENIZER_UNICODE_H
#define CDR_TOKENIZER_UNICODE_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CDR__N_CODE = 0x110000, CDR__NO_UTF8 = 0x110000 };

/* unicode_table.c: runs of code points, first code << 8 | category (its place in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So
 * Zs Zl Zp Cc Cf Cs Co Cn") | 32 for Han; the same for combining classes; decompositions sorted by code; compositions sorted by b, then a. */
typedef struct { uint32_t code, a, b; int composes; } cdr__unicode_pair;        /* b 0: a alone; composes: a b become code again */
typedef struct { uint32_t b, a, code; } cdr__unicode_join;
extern const uint32_t cdr__unicode_gc[], cdr__unicode_ccc[];
extern const cdr__unicode_pair cdr__unicode_pairs[];
extern const cdr__unicode_join cdr__unicode_joins[];
extern const int cdr__unicode_n_gc, cdr__unicode_n_ccc, cdr__unicode_n_pairs, cdr__unicode_n_joins;

/* The code point at s, of which left >= 1 bytes are there, and its length. */
static inline uint32_t cdr__utf8(const char *s, size_t left, size_t *k)
{
    const unsigned char *u = (const unsigned char *)s;
    *k = 1;
    if (u[0] < 0x80) return u[0];
    /* most of what is not ASCII: three bytes, neither overlong nor a surrogate */
    if (left >= 3 && u[0] > 0xe0 && u[0] < 0xf0 && u[0] != 0xed && (u[1] & 0xc0) == 0x80 && (u[2] & 0xc0) == 0x80) {
        *k = 3;
        return (uint32_t)(u[0] & 15) << 12 | (uint32_t)(u[1] & 63) << 6 | (u[2] & 63u);
    }
    int n = cdr_utf8_length(s, left);
    if (n == 0) return CDR__NO_UTF8;
    *k = (size_t)n;
    uint32_t c = u[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) c = c << 6 | (u[i] & 0x3fu);
    return c;
}

bool cdr__nfc_is(const char *text, size_t bytes);                       /* quick: true means that NFC leaves text as it is; false: it may not */
void cdr__nfc(const char *text, size_t bytes, cdr_text *out);           /* appends; bytes that are no UTF-8 stay, and nothing moves across them */

#ifdef __cplusplus
}
#endif
#endif
