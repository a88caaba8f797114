/* hash.c: XXH3-64 of libxxhash, at once and streamed. Both give the same value for the same bytes. */
#include "base/base.h"
#include <string.h>
#include <sys/auxv.h>
#include <xxhash.h>

uint64_t cdr_hash64(const void *data, size_t bytes, uint64_t seed) { return XXH3_64bits_withSeed(data, bytes, seed); }

uint64_t cdr_hash_secret(void)
{
    uint64_t seed = 0;
    const void *secret = (const void *)(uintptr_t)getauxval(AT_RANDOM);     /* 16 bytes that the kernel drew for the process */
    if (secret) memcpy(&seed, secret, sizeof seed);
    return seed;
}

/* cdr_hasher is the library's own state: an incomplete type here, so that xxhash.h stays out of base.h. */
cdr_hasher *cdr_hasher_new(void)
{
    XXH3_state_t *s = XXH3_createState();
    CDR_CHECK(s != NULL);
    XXH3_64bits_reset(s);
    return (cdr_hasher *)s;
}

void cdr_hasher_add(cdr_hasher *h, const void *data, size_t bytes)
{
    if (bytes) XXH3_64bits_update((XXH3_state_t *)(void *)h, data, bytes);
}

uint64_t cdr_hasher_end(cdr_hasher *h)
{
    XXH3_state_t *s = (XXH3_state_t *)(void *)h;
    uint64_t x = XXH3_64bits_digest(s);
    XXH3_freeState(s);
    return x;
}
