/* pool.c: memory that lives as long as its pool, and the few checked ways to take any other.
 * A pool is a list of chunks from calloc; a piece is cut from the newest chunk. A chunk is twice as large as the one
 * before, up to 1 MiB, and a piece that is larger gets its own.
 */
#include "base/base.h"
#include <stdlib.h>
#include <string.h>

enum { PIECE_ALIGN = 64, CHUNK_MIN = 8 << 10, CHUNK_MAX = 1 << 20 };

typedef struct chunk { struct chunk *next; char *at; size_t left; } chunk;
struct cdr_pool { chunk *head; size_t next_bytes, bytes; };          /* bytes: handed out */

/* Per thread: while the thread that runs the steps is frozen, a reader or a checkpoint writer is not. */
static _Thread_local bool alloc_frozen;

CDR_NORETURN static void out_of_memory(size_t bytes)
{
    fprintf(stderr, "error: memory: %zu bytes could not be allocated, the machine is out of memory [machine.memory]\n", bytes);
    abort();
}

static void *must(void *p, size_t bytes)
{
    if (!p) out_of_memory(bytes);
    return p;
}

cdr_pool *cdr_pool_new(void)
{
    CDR_CHECK(!alloc_frozen);
    cdr_pool *p = must(calloc(1, sizeof *p), sizeof *p);
    p->next_bytes = CHUNK_MIN;
    return p;
}

void cdr_pool_free(cdr_pool *p)
{
    if (!p) return;
    for (chunk *c = p->head; c;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(p);
}

static chunk *chunk_new(size_t bytes)
{
    size_t whole;
    if (!cdr_add_size(bytes, sizeof(chunk) + PIECE_ALIGN, &whole)) out_of_memory(bytes);
    chunk *c = must(calloc(1, whole), whole);
    char *first = (char *)(c + 1);
    size_t skip = (size_t)(-(uintptr_t)first & (PIECE_ALIGN - 1));
    c->at = first + skip;
    c->left = bytes;
    return c;
}

size_t cdr_pool_bytes(const cdr_pool *p) { return p->bytes; }

void *cdr_pool_alloc(cdr_pool *p, size_t bytes)
{
    CDR_CHECK(!alloc_frozen);
    if (bytes > SIZE_MAX / 2) out_of_memory(bytes);
    size_t want = cdr_align_up(bytes ? bytes : 1, PIECE_ALIGN);
    p->bytes += want;
    if (!p->head || p->head->left < want) {
        bool own = want > CHUNK_MAX / 4;
        chunk *c = chunk_new(own ? want : CDR_MAX(p->next_bytes, want));
        if (!own) p->next_bytes = CDR_MIN(p->next_bytes * 2, (size_t)CHUNK_MAX);
        if (own && p->head) {                   /* behind the head: the rest of the head stays in use */
            c->next = p->head->next;
            p->head->next = c;
            return c->at;
        }
        c->next = p->head;
        p->head = c;
    }
    void *piece = p->head->at;
    p->head->at += want;
    p->head->left -= want;
    return piece;
}

char *cdr_pool_strndup(cdr_pool *p, const char *s, size_t n)
{
    char *t = cdr_pool_alloc(p, n + 1);
    if (n) memcpy(t, s, n);
    return t;
}

char *cdr_pool_strdup(cdr_pool *p, const char *s) { return cdr_pool_strndup(p, s, strlen(s)); }

char *cdr_pool_printf(cdr_pool *p, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    CDR_CHECK(n >= 0);
    char *s = cdr_pool_alloc(p, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

void *cdr_pool_grow(cdr_pool *p, void *old, size_t elem_bytes, int64_t n, int64_t *cap)
{
    CDR_CHECK(n >= 0 && n <= *cap);
    if (n < *cap) return old;
    int64_t more = *cap ? *cap * 2 : 8;
    size_t bytes;
    if (!cdr_mul_size((size_t)more, elem_bytes, &bytes)) out_of_memory(SIZE_MAX);
    void *grown = cdr_pool_alloc(p, bytes);
    if (n) memcpy(grown, old, (size_t)n * elem_bytes);
    *cap = more;
    return grown;
}

void *cdr_alloc(size_t bytes)
{
    CDR_CHECK(!alloc_frozen);
    return must(malloc(bytes ? bytes : 1), bytes);
}

void cdr_free(void *p) { free(p); }

void cdr_alloc_freeze(bool frozen) { alloc_frozen = frozen; }

bool cdr_mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }
bool cdr_add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
