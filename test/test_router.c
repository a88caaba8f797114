/* test_router.c: the map of expert load in the terminal: marks at their bounds, dead experts, groups of experts, width. */
#include "test.h"

#include "train/router.h"

static void marks(void)
{
    static const struct { double ratio; const char *utf8, *ascii; } want[] = {
        { 0, "x", "x" }, { 1e-9, "▁", "." }, { 0.2499, "▁", "." }, { 0.25, "▂", ":" }, { 0.5, "▃", "-" },
        { 0.75, "▄", "=" }, { 1, "▄", "=" }, { 1.2499, "▄", "=" },
        { 1.25, "▅", "+" }, { 1.5, "▆", "*" }, { 2, "▇", "#" }, { 3, "█", "@" }, { 1e9, "█", "@" } };
    for (int i = 0; i < CDR_COUNT(want); i++) {
        T_STR(cdr__router_mark(want[i].ratio, true), want[i].utf8);
        T_STR(cdr__router_mark(want[i].ratio, false), want[i].ascii);
    }
}

/* Characters of the longest line, where a UTF-8 sequence is one. */
static int widest(const char *s)
{
    int most = 0, n = 0;
    for (; *s; s++) {
        if (*s == '\n') n = 0;
        else if (((unsigned char)*s & 0xc0) != 0x80) n++;
        most = CDR_MAX(most, n);
    }
    return most;
}

static void small_map(void)
{
    int64_t a[4] = { 10, 0, 20, 10 }, b[4] = { 0, 0, 0, 0 }, none[4] = { 0 };
    cdr_router_layer l[2] = { { .layer = 1, .experts = 4, .sum = { a, b } }, { .layer = 12, .experts = 4, .sum = { none, b } } };
    cdr_router r = { .n = 2, .layer = l, .steps = { 3, 25 } };
    cdr_text t = { 0 };
    cdr__router_map(&r, false, &t);
    T_STR(t.s, "load      layers x experts over the last 28 steps; after a line: max / mean\n"
               "layer   1  =x#=  2.00\n"
               "layer  12  xxxx  0.00\n"
               "of mean   x none  . <0.25  : <0.5  - <0.75  = <1.25  + <1.5  * <2  # <3  @ more\n");
    T_CHECK(widest(t.s) <= CDR_MAP_COLUMNS);
    cdr_text_free(&t);
    cdr__router_map(&r, true, &t);
    T_HAS(t.s, "layer   1  ▄x▇▄  2.00\n");
    T_CHECK(widest(t.s) <= CDR_MAP_COLUMNS);
    cdr_text_free(&t);
    b[1] = 40;                               /* both halves count */
    cdr__router_map(&r, false, &t);
    T_HAS(t.s, "layer   1  -#=-  2.00\n");
    cdr_text_free(&t);
    r.n = 0;
    cdr__router_map(&r, false, &t);
    T_CHECK(t.n == 0);                       /* a dense model has no map */
    cdr_text_free(&t);
}

/* K3's 896 experts in 62 columns: 15 a character, the last one of 11; a group is dead only where all of it is. */
static void wide_map(void)
{
    static int64_t a[896], b[896];
    for (int e = 0; e < 896; e++) a[e] = e < 15 ? 0 : e < 30 && e != 20 ? 0 : 100;
    cdr_router_layer l = { .layer = 92, .experts = 896, .sum = { a, b } };
    cdr_router r = { .n = 1, .layer = &l, .steps = { 1, 0 } };
    cdr_text t = { 0 };
    cdr__router_map(&r, true, &t);
    T_HAS(t.s, "one character for 15 experts, their mean\n");
    T_HAS(t.s, "layer  92  x▁▄▄");
    T_CHECK(widest(t.s) <= CDR_MAP_COLUMNS);
    const char *line = strstr(t.s, "layer  92");
    int n = 0;
    for (const char *p = line + 11; *p != ' '; p++) n += ((unsigned char)*p & 0xc0) != 0x80;
    T_CHECK(n == 60);
    cdr_text_free(&t);
}

/* Said of the most uneven layer, once a half window is full, and only above three times the mean. */
static void uneven_load(void)
{
    int64_t a[4] = { 10, 10, 10, 10 }, b[4] = { 31, 1, 8, 0 }, c[4] = { 40, 0, 0, 0 }, none[4] = { 0 };
    cdr_router_layer l[3] = { { .layer = 1, .experts = 4, .sum = { a, none } }, { .layer = 4, .experts = 4, .sum = { b, none } },
                              { .layer = 7, .experts = 4, .sum = { c, none } } };
    cdr_router r = { .n = 1, .layer = l, .steps = { CDR_ROUTER_WINDOW, 0 } };
    int layer = 0, dead = 0;
    double ratio = 0;
    T_CHECK(!cdr__router_uneven(&r, &layer, &ratio, &dead));
    r.n = 2;
    T_CHECK(cdr__router_uneven(&r, &layer, &ratio, &dead) && layer == 4 && dead == 1);
    T_NEAR(ratio, 3.1, 1e-12);
    r.n = 3;
    T_CHECK(cdr__router_uneven(&r, &layer, &ratio, &dead) && layer == 7 && dead == 3 && ratio == 4);
    r.steps[0]--;
    T_CHECK(!cdr__router_uneven(&r, &layer, &ratio, &dead));
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(marks);
    T_RUN(small_map);
    T_RUN(wide_map);
    T_RUN(uneven_load);
    return t_end();
}
