/* tree.c: the sum over ranks.
 *
 * Binary tree, elementwise. Level by level, neighbours are added, and an odd last one goes up as it is:
 * n = 8: ((0+1)+(2+3)) + ((4+5)+(6+7));  n = 7: ((0+1)+(2+3)) + ((4+5)+6);  n = 3: (0+1)+2. F32 sums in F32, F64 in F64;
 * I32 sums are exact, modulo 2^32.
 */
#include "comm/tree.h"
#include <assert.h>

typedef struct {
    void (*add2)(void *CDR_RESTRICT y, const void *a, const void *b, int64_t n);
    void (*add4)(void *CDR_RESTRICT y, const void *const *x, int64_t n);       /* (x0 + x1) + (x2 + x3) */
    size_t bytes;
} tree_type;

static void add2_f32(void *CDR_RESTRICT y, const void *a, const void *b, int64_t n)
{
    float *CDR_RESTRICT d = y;
    const float *p = a, *q = b;
    for (int64_t i = 0; i < n; i++) d[i] = p[i] + q[i];
}

static void add4_f32(void *CDR_RESTRICT y, const void *const *x, int64_t n)
{
    float *CDR_RESTRICT d = y;
    const float *p = x[0], *q = x[1], *r = x[2], *s = x[3];
    for (int64_t i = 0; i < n; i++) d[i] = (p[i] + q[i]) + (r[i] + s[i]);
}

static void add2_f64(void *CDR_RESTRICT y, const void *a, const void *b, int64_t n)
{
    double *CDR_RESTRICT d = y;
    const double *p = a, *q = b;
    for (int64_t i = 0; i < n; i++) d[i] = p[i] + q[i];
}

static void add4_f64(void *CDR_RESTRICT y, const void *const *x, int64_t n)
{
    double *CDR_RESTRICT d = y;
    const double *p = x[0], *q = x[1], *r = x[2], *s = x[3];
    for (int64_t i = 0; i < n; i++) d[i] = (p[i] + q[i]) + (r[i] + s[i]);
}

/* unsigned: an overflow wraps instead of being undefined */
static void add2_i32(void *CDR_RESTRICT y, const void *a, const void *b, int64_t n)
{
    uint32_t *CDR_RESTRICT d = y;
    const uint32_t *p = a, *q = b;
    for (int64_t i = 0; i < n; i++) d[i] = p[i] + q[i];
}

static void add4_i32(void *CDR_RESTRICT y, const void *const *x, int64_t n)
{
    uint32_t *CDR_RESTRICT d = y;
    const uint32_t *p = x[0], *q = x[1], *r = x[2], *s = x[3];
    for (int64_t i = 0; i < n; i++) d[i] = p[i] + q[i] + r[i] + s[i];
}

static const tree_type tree_f32 = { add2_f32, add4_f32, sizeof(float) }, tree_f64 = { add2_f64, add4_f64, sizeof(double) };
static const tree_type tree_i32 = { add2_i32, add4_i32, sizeof(uint32_t) };
static const tree_type *tree_of(int dtype) { return dtype == CDR_F64 ? &tree_f64 : dtype == CDR_I32 ? &tree_i32 : &tree_f32; }

size_t cdr__tree_elem_bytes(int dtype) { return tree_of(dtype)->bytes; }

/* A stack of pending sums, one per level: a new sum of a level that is pending already joins it and goes one level up. Two buffers a level, so that a sum
 * never lands on what it reads. */
void cdr__tree_block(char *stack, int dtype, const void *const *src, int n, void *dst, size_t bytes)
{
    const tree_type *t = tree_of(dtype);
    const int64_t k = (int64_t)(bytes / t->bytes);
    assert(bytes <= CDR__TREE_BLOCK && n > 0 && n <= 1 << CDR__TREE_LEVELS);
    uint32_t pending = 0;
    char *last = NULL;
    for (int r = 0; r < n;) {
        int level = n - r >= 4 ? 2 : n - r >= 2 ? 1 : 0, width = 1 << level;
        char *y = stack + (size_t)(2 * level + (int)(pending >> level & 1u)) * CDR__TREE_BLOCK;
        if (width == 4) t->add4(y, &src[r], k);
        else if (width == 2) t->add2(y, src[r], src[r + 1], k);
        else memcpy(y, src[r], (size_t)k * t->bytes);
        r += width;
        while (pending >> level & 1u) {
            pending &= ~(1u << level);
            const char *a = stack + (size_t)(2 * level) * CDR__TREE_BLOCK;
            level++;
            char *up = stack + (size_t)(2 * level + (int)(pending >> level & 1u)) * CDR__TREE_BLOCK;
            t->add2(up, a, y, k);
            y = up;
        }
        pending |= 1u << level;
        last = y;
    }
    /* n is no power of two: the odd ones join from the right */
    uint32_t rest = pending & (pending - 1);
    for (int level = 0; level < CDR__TREE_LEVELS && rest; level++) {
        if (!(rest >> level & 1u)) continue;
        const char *a = stack + (size_t)(2 * level) * CDR__TREE_BLOCK;
        char *y = stack + (size_t)(2 * level + 1) * CDR__TREE_BLOCK;
        t->add2(y, a, last, k);
        last = y;
        rest &= rest - 1;
    }
    memcpy(dst, last, (size_t)k * t->bytes);
}
