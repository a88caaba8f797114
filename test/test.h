/* test.h: the whole test harness. A test program has functions and a main:
 *
 *   static void philox_known_answer(void) { T_CHECK(out[0] == 0x6627e8d5u); }
 *   int main(int argc, char **argv) { T_RUN(philox_known_answer); return t_end(); }
 *
 * T_CHECK counts, prints on failure and goes on. An argument given on the command line runs only tests whose name
 * contains it.
 */
#ifndef CADRE_TEST_H
#define CADRE_TEST_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int t_n_failed, t_n_passed;
static bool t_this_failed __attribute__((unused));
static const char *t_filter __attribute__((unused));
#define T_CHECK(x) do { if (!(x)) { t_this_failed = true; fprintf(stderr, "  %s:%d: %s\n", __FILE__, __LINE__, #x); } } while (0)
/* one more value in the message: T_NEAR(got, want, 1e-6) */
#define T_NEAR(a, b, tol) do { double ta_ = (double)(a), tb_ = (double)(b); if (!(fabs(ta_ - tb_) <= (tol))) { t_this_failed = true; \
    fprintf(stderr, "  %s:%d: %s = %.9g, expected %.9g within %g\n", __FILE__, __LINE__, #a, ta_, tb_, (double)(tol)); } } while (0)
#define T_STR(a, b) do { const char *ta_ = (a), *tb_ = (b); if (!ta_ || strcmp(ta_, tb_) != 0) { t_this_failed = true; \
    fprintf(stderr, "  %s:%d: %s = \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #a, ta_ ? ta_ : "(null)", tb_); } } while (0)
#define T_HAS(a, b) do { const char *ta_ = (a), *tb_ = (b); if (!ta_ || !strstr(ta_, tb_)) { t_this_failed = true; \
    fprintf(stderr, "  %s:%d: %s = \"%s\", expected to hold \"%s\"\n", __FILE__, __LINE__, #a, ta_ ? ta_ : "(null)", tb_); } } while (0)
#define T_RUN(f) do { if (!t_filter || strstr(#f, t_filter)) { t_this_failed = false; f(); \
    if (t_this_failed) { t_n_failed++; printf("FAIL  %s\n", #f); } else { t_n_passed++; printf("ok    %s\n", #f); } fflush(stdout); } } while (0)
/* CADRE_QUICK is set, as under sanitizers: a slow test does less, every kind of thing still once. */
static inline bool t_quick(void) { return getenv("CADRE_QUICK") != NULL; }
static inline int t_end(void)
{
    printf("%d passed, %d failed\n", t_n_passed, t_n_failed);
    return t_n_failed != 0;
}
#endif
