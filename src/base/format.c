/* format.c: sizes, rates and durations as a recipe writes them, and numbers as the step line writes them.
 *   size      digits, or a decimal number with KB MB GB TB (10^3n) or KiB MiB GiB TiB (2^10n)
 *   rate      a size unit with /s, or FLOP/s KFLOP/s ... PFLOP/s; a plain number is per second
 *   duration  ms, s, min, h
 * Whole numbers may be grouped with underscores. Nothing is negative, and no space stands before a unit.
 */
#include "base/base.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *name; double scale; } unit;

/* Reads digits with optional fraction; returns what follows, NULL where there is no number. whole: the exact integer
 * part; *whole is -1 where it does not fit. The value is read digit by digit, so it does not depend on the locale. */
static const char *read_number(const char *s, double *value, int64_t *whole, bool *fraction)
{
    const char *c = s;
    int64_t w = 0;
    char digits[64];
    int n = 0;
    bool fits = true;
    for (; (*c >= '0' && *c <= '9') || (*c == '_' && c > s && c[-1] != '_'); c++) {
        if (*c == '_') continue;
        if (n >= 40) return NULL;
        digits[n++] = *c;
        if (fits && (__builtin_mul_overflow(w, 10, &w) || __builtin_add_overflow(w, *c - '0', &w))) fits = false;
    }
    if (n == 0 || c[-1] == '_') return NULL;
    double x = 0, place = 1;
    for (int i = 0; i < n; i++) x = x * 10 + (digits[i] - '0');
    *fraction = false;
    if (*c == '.') {
        double f = 0;
        const char *first = ++c;
        for (; *c >= '0' && *c <= '9'; c++) {
            if (c - first >= 15) return NULL;   /* more digits than a double holds */
            f = f * 10 + (*c - '0');
            place *= 10;
        }
        if (c == first) return NULL;
        x += f / place;
        *fraction = f != 0;
    }
    *value = x;
    *whole = fits ? w : -1;
    return c;
}

static double unit_scale(const char *name, const unit *table, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, table[i].name) == 0) return table[i].scale;
    return 0;
}

static const unit size_units[] = {
    { "", 1 },           { "KB", 1e3 },       { "MB", 1e6 },       { "GB", 1e9 },       { "TB", 1e12 },
    { "KiB", 0x1p10 },   { "MiB", 0x1p20 },   { "GiB", 0x1p30 },   { "TiB", 0x1p40 },
};
static const unit rate_units[] = {
    { "", 1 },           { "B/s", 1 },        { "KB/s", 1e3 },     { "MB/s", 1e6 },     { "GB/s", 1e9 },
    { "TB/s", 1e12 },    { "KiB/s", 0x1p10 }, { "MiB/s", 0x1p20 }, { "GiB/s", 0x1p30 }, { "TiB/s", 0x1p40 },
    { "FLOP/s", 1 },     { "KFLOP/s", 1e3 },  { "MFLOP/s", 1e6 },  { "GFLOP/s", 1e9 },  { "TFLOP/s", 1e12 },
    { "PFLOP/s", 1e15 },
};
static const unit time_units[] = { { "ms", 1e-3 }, { "s", 1 }, { "min", 60 }, { "h", 3600 } };

/* Exact for whole numbers; a fraction ("1.5GiB") is rounded to the nearest byte. */
bool cdr_parse_bytes(const char *s, int64_t *bytes)
{
    double x;
    int64_t whole;
    bool fraction;
    const char *rest = read_number(s, &x, &whole, &fraction);
    if (!rest) return false;
    double scale = unit_scale(rest, size_units, CDR_COUNT(size_units));
    if (scale == 0 || (scale == 1 && strchr(s, '.'))) return false;
    if (!fraction) return whole >= 0 && !__builtin_mul_overflow(whole, (int64_t)scale, bytes);
    if (!(x * scale < 0x1p63)) return false;
    *bytes = llrint(x * scale);
    return true;
}

bool cdr_parse_rate(const char *s, double *per_second)
{
    double x;
    int64_t whole;
    bool fraction;
    const char *rest = read_number(s, &x, &whole, &fraction);
    if (!rest) return false;
    double scale = unit_scale(rest, rate_units, CDR_COUNT(rate_units));
    if (scale == 0) return false;
    *per_second = x * scale;
    return true;
}

bool cdr_parse_duration(const char *s, double *seconds)
{
    double x;
    int64_t whole;
    bool fraction;
    const char *rest = read_number(s, &x, &whole, &fraction);
    if (!rest) return false;
    double scale = unit_scale(rest, time_units, CDR_COUNT(time_units));
    if (scale == 0) return false;
    *seconds = x * scale;
    return true;
}

void cdr_format_count(char out[32], int64_t x)
{
    char digits[24], *at = out;
    int n = snprintf(digits, sizeof digits, "%llu", x < 0 ? 0ull - (unsigned long long)x : (unsigned long long)x);
    if (x < 0) *at++ = '-';
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) *at++ = ',';
        *at++ = digits[i];
    }
    *at = 0;
}

void cdr_format_bytes(char out[32], int64_t x)
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    if (x > -1024 && x < 1024) {
        snprintf(out, 32, "%d B", (int)x);
        return;
    }
    double v = (double)x / 1024;
    int u = 0;
    /* 1023.95 would print as "1024.0" */
    while (fabs(v) >= 1023.95 && u + 1 < CDR_COUNT(units)) {
        v /= 1024;
        u++;
    }
    snprintf(out, 32, "%.1f %s", v, units[u]);
}
