/* rng.c: counter-based random numbers. A draw is a pure function of (seed, stream, step, i); nothing is kept, so any
 * rank, thread or device draws any element.
 *
 *   Philox4x32-10: ten rounds of (hi, lo) = M0 * c0, (hi', lo') = M1 * c2,
 *                  c = (hi' ^ c1 ^ k0, lo', hi ^ c3 ^ k1, lo);  k += (W0, W1) between rounds                    (1)
 *   key            k = mix(mix(seed) + stream),  counter = (i, step), 64 bits each                             (2)
 *   uniform        u = (w0 >> 8) 2^-24                                                                         (3)
 *   normal         z = sqrt(-2 ln u1) cos(2 pi u2),  u1 in (0, 1], u2 in [0, 1), 53 bits each, in double       (4)
 * Sources: (1) Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, with the
 * known-answer vectors of its Random123 library in test_base.c; (2) mix is the finaliser of SplitMix64 (Steele, Lea,
 * Flood 2014); (4) Box and Muller 1958.
 */
#include "base/base.h"
#include <math.h>

void cdr_philox(const uint32_t key[2], const uint32_t ctr[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xD2511F53u * c0, q = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint64_t mix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static void draw(cdr_rng_key k, uint64_t i, uint64_t out[2])
{
    uint64_t key64 = mix64(mix64(k.seed) + k.stream);
    uint32_t key[2] = { (uint32_t)key64, (uint32_t)(key64 >> 32) };
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)k.step, (uint32_t)(k.step >> 32) };
    uint32_t w[4];
    cdr_philox(key, ctr, w);
    out[0] = (uint64_t)w[0] << 32 | w[1];
    out[1] = (uint64_t)w[2] << 32 | w[3];
}

float cdr_rng_uniform(cdr_rng_key k, uint64_t i)
{
    uint64_t w[2];
    draw(k, i, w);
    return (float)(w[0] >> 40) * 0x1p-24f;
}

float cdr_rng_normal(cdr_rng_key k, uint64_t i)
{
    uint64_t w[2];
    draw(k, i, w);
    double u1 = (double)((w[0] >> 11) + 1) * 0x1p-53, u2 = (double)(w[1] >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u1)) * cos(6.283185307179586476925 * u2));
}

uint64_t cdr_rng_u64(cdr_rng_key k, uint64_t i)
{
    uint64_t w[2];
    draw(k, i, w);
    return w[0];
}
