/* jinja_lex.c: a template as tokens, with the white space that the tags take away.
 *
 * As transformers sets Jinja up: trim_blocks (the line end behind a block or a comment goes) and lstrip_blocks (blanks in front
 * of a block or a comment that begins its line go), neither of which touches {{ }}. "-" at a tag takes all white space on its
 * side, "+" keeps it. Line ends are \n, and one at the end of the template goes. Tags end at %} or }} only where brackets are
 * closed. Numbers, strings and their escapes are those of Jinja 3.1.
 * Source: Jinja's template designer documentation (white space control, literals); its lexer's rules, checked by
 * tools/peers/chat.py.
 */
#include "chat/jinja.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_MAX = 256 };                     /* brackets in one tag */

typedef struct {
    cdr__jtokens *t;
    const char *s;
    size_t n, at;
    int line;
    char open[OPEN_MAX];
    int n_open;
    bool line_starting;                     /* what was read last ended with a line end */
} lexer;

cdr_status cdr__jinja_fail(const char *where, int line, cdr_err *err, const char *id, const char *fmt, ...)
{
    char what[900];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return cdr_fail(err, CDR_EDATA, id, "%s:%d: %s", where, line, what);
}

#define LEX_FAIL(l, ...) return cdr__jinja_fail((l)->t->where, (l)->line, (l)->t->err, "jinja.syntax", __VA_ARGS__)

static cdr__jtoken *push(lexer *l, int kind)
{
    cdr__jtokens *t = l->t;
    cdr__jtoken *k = CDR_PUSH(t->pool, t->token, t->n, t->cap);
    *k = (cdr__jtoken){ .kind = (uint8_t)kind, .line = l->line };
    return k;
}

static bool at_text(const lexer *l, size_t at, const char *s) { return l->n - at >= strlen(s) && memcmp(l->s + at, s, strlen(s)) == 0; }

static void count_lines(lexer *l, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) l->line += l->s[i] == '\n';
}

static size_t skip_space(const lexer *l, size_t at)
{
    while (at < l->n) {
        size_t k = cdr__j_space(l->s + at, l->n - at);
        if (k == 0) break;
        at += k;
    }
    return at;
}

/* ---- text between tags ------------------------------------------------------------------------------------------------- */
static void put_data(lexer *l, size_t from, size_t to)
{
    if (to == from) return;
    cdr__jtoken *k = push(l, CDR__T_DATA);
    k->s = l->s + from;
    k->n = to - from;
}

/* Where text[from .. to) ends in front of a tag with this sign. */
static size_t strip_before(const lexer *l, size_t from, size_t to, char sign, bool variable)
{
    if (sign == '-') {
        size_t end = from;
        for (size_t i = from; i < to;) {
            size_t space = cdr__j_space(l->s + i, to - i);
            i += space ? space : 1;
            if (!space) end = i;
        }
        return end;
    }
    if (sign == '+' || variable) return to;
    size_t line = to;
    while (line > from && l->s[line - 1] != '\n') line--;
    if (line == from && !l->line_starting) return to;
    size_t at = line;
    while (at < to && cdr__j_space(l->s + at, to - at)) at += cdr__j_space(l->s + at, to - at);
    return at == to ? line : to;
}

static char sign_at(const lexer *l, size_t at) { return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0; }

/* Behind a tag's end: "-" takes all white space, a block or comment without a sign takes one line end. */
static void after_tag(lexer *l, size_t end, char sign, bool block)
{
    size_t to = end;
    if (sign == '-') to = skip_space(l, end);
    else if (block && sign != '+' && end < l->n && l->s[end] == '\n') to = end + 1;
    count_lines(l, l->at, to);
    l->line_starting = to > l->at && l->s[to - 1] == '\n';
    l->at = to;
}

static cdr_status comment(lexer *l, size_t at)
{
    for (size_t i = at; i + 1 < l->n; i++) {
        if (l->s[i] != '#' || l->s[i + 1] != '}') continue;
        char sign = i > at ? sign_at(l, i - 1) : 0;
        count_lines(l, l->at, i + 2);
        l->at = i + 2;
        after_tag(l, i + 2, sign, true);
        return CDR_OK;
    }
    LEX_FAIL(l, "a comment {# without its end #}");
}

/* {% raw %} at: text up to {% endraw %} is data. Returns 0 where the block is no raw block. */
static size_t raw_begin(const lexer *l, size_t at)
{
    size_t i = at + 2;
    if (sign_at(l, i)) i++;
    i = skip_space(l, i);
    if (!at_text(l, i, "raw")) return 0;
    i = skip_space(l, i + 3);
    if (at_text(l, i, "-%}")) return skip_space(l, i + 3);
    return at_text(l, i, "%}") ? i + 2 : 0;
}

static cdr_status raw(lexer *l, size_t body)
{
    for (size_t i = body; i + 1 < l->n; i++) {
        if (!at_text(l, i, "{%")) continue;
        char sign = sign_at(l, i + 2);
        size_t k = skip_space(l, i + 2 + (sign != 0));
        if (!at_text(l, k, "endraw")) continue;
        k = skip_space(l, k + 6);
        char behind = sign_at(l, k);
        if (!at_text(l, k + (behind != 0), "%}")) continue;
        l->line_starting = body > 0 && l->s[body - 1] == '\n';
        put_data(l, body, strip_before(l, body, i, sign, false));
        k += (behind != 0) + 2u;
        count_lines(l, l->at, k);
        l->at = k;
        after_tag(l, k, behind, true);
        return CDR_OK;
    }
    LEX_FAIL(l, "{%% raw %%} without {%% endraw %%}");
}

/* ---- tokens of a tag ------------------------------------------------------------------------------------------------------- */
static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

static size_t digits(const lexer *l, size_t at)
{
    size_t i = at;
    while (i < l->n && (isdigit((unsigned char)l->s[i]) || (l->s[i] == '_' && i > at && i + 1 < l->n && isdigit((unsigned char)l->s[i + 1])))) i++;
    return i;
}

static size_t without_underscores(const lexer *l, size_t from, size_t to, char out[64])
{
    size_t n = 0;
    for (size_t i = from; i < to && n < 63; i++)
        if (l->s[i] != '_') out[n++] = l->s[i];
    out[n] = 0;
    return n;
}

static cdr_status whole(lexer *l, size_t from, size_t to, int base)
{
    int64_t x = 0;
    for (size_t i = from; i < to; i++) {
        if (l->s[i] == '_') continue;
        int d = digit_of(l->s[i]);
        if (x > (INT64_MAX - d) / base) LEX_FAIL(l, "a number beyond 64 bits");
        x = x * base + d;
    }
    push(l, CDR__T_INT)->i = x;
    return CDR_OK;
}

static cdr_status number(lexer *l)
{
    size_t at = l->at, end = digits(l, at);
    int base = 10;
    if (l->s[at] == '0' && at + 1 < l->n) {
        char c = (char)tolower((unsigned char)l->s[at + 1]);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (base != 10) {
            size_t i = at + 2;
            while (i < l->n && (digit_of(l->s[i]) < base || (l->s[i] == '_' && i + 1 < l->n && digit_of(l->s[i + 1]) < base))) i++;
            if (i == at + 2) LEX_FAIL(l, "a number without digits");
            CDR_TRY(whole(l, at + 2, i, base));
            l->at = i;
            return CDR_OK;
        }
    }
    size_t fraction = end + 1 < l->n && l->s[end] == '.' && isdigit((unsigned char)l->s[end + 1]) ? digits(l, end + 1) : end, exponent = fraction;
    if (fraction < l->n && (l->s[fraction] == 'e' || l->s[fraction] == 'E')) {
        size_t i = fraction + 1;
        if (i < l->n && (l->s[i] == '+' || l->s[i] == '-')) i++;
        if (i < l->n && isdigit((unsigned char)l->s[i])) exponent = digits(l, i);
    }
    if (at > 0 && l->s[at - 1] == '.') exponent = end;              /* x.0.1: two subscripts */
    if (exponent == end) {
        if (l->s[at] == '0' && strspn(l->s + at, "0_") < end - at) LEX_FAIL(l, "a number that begins with 0");
        CDR_TRY(whole(l, at, end, 10));
    } else {
        char text[64];
        if (without_underscores(l, at, exponent, text) >= 63) LEX_FAIL(l, "a number of more than 62 characters");
        push(l, CDR__T_FLOAT)->f = strtod(text, NULL);
    }
    l->at = exponent;
    return CDR_OK;
}

static size_t put_utf8(char *to, uint32_t c)
{
    static const unsigned char lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(n == 1 ? c : lead[n] | c);
    return n;
}

/* l->s[*at] is the character behind a backslash, which is inside of [*at, end). */
static cdr_status escape(lexer *l, size_t *at, size_t end, char **to)
{
    static const char from[] = "\\'\"abfnrtv", into[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->s[*at];
    const char *simple = c ? strchr(from, c) : NULL;
    int n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (c == '\n') {
        *at += 1;
    } else if (simple) {
        *(*to)++ = into[simple - from];
        *at += 1;
    } else if (n) {
        for (int i = 1; i <= n; i++) {
            int d = *at + (size_t)i < end ? digit_of(l->s[*at + (size_t)i]) : 99;
            if (d > 15) LEX_FAIL(l, "\\%c in a string needs %d hexadecimal digits", c, n);
            code = code << 4 | (uint32_t)d;
        }
        if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) LEX_FAIL(l, "\\%c in a string is no character", c);
        *to += put_utf8(*to, code);
        *at += (size_t)n + 1;
    } else if (c >= '0' && c <= '7') {
        for (int i = 0; i < 3 && *at < end && l->s[*at] >= '0' && l->s[*at] <= '7'; i++, *at += 1) code = code * 8 + (uint32_t)(l->s[*at] - '0');
        *to += put_utf8(*to, code);
    } else if (c == 'N') {
        LEX_FAIL(l, "\\N{NAME} in a string is not supported; write the character");
    } else {
        *(*to)++ = '\\';
    }
    return CDR_OK;
}

static cdr_status string(lexer *l)
{
    char quote = l->s[l->at];
    size_t end = l->at + 1;
    while (end < l->n && l->s[end] != quote) end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n) LEX_FAIL(l, "a string without its end");
    char *text = cdr_pool_alloc(l->t->pool, end - l->at + 1), *to = text;
    for (size_t i = l->at + 1; i < end;) {
        if (l->s[i] != '\\') *to++ = l->s[i++];
        else {
            i++;
            CDR_TRY(escape(l, &i, end, &to));
        }
    }
    cdr__jtoken *k = push(l, CDR__T_STRING);
    k->s = text;
    k->n = (size_t)(to - text);
    count_lines(l, l->at, end + 1);
    l->at = end + 1;
    return CDR_OK;
}

static cdr_status name(lexer *l)
{
    size_t end = l->at;
    while (end < l->n && (isalnum((unsigned char)l->s[end]) || l->s[end] == '_')) end++;
    if (end < l->n && (unsigned char)l->s[end] >= 0x80) LEX_FAIL(l, "a name with a character beyond ASCII is not supported");
    cdr__jtoken *k = push(l, CDR__T_NAME);
    k->s = cdr_pool_strndup(l->t->pool, l->s + l->at, end - l->at);
    k->n = end - l->at;
    l->at = end;
    return CDR_OK;
}

static const struct { const char *s; int kind; } OPERATORS[] = {
    { "//", CDR__T_FLOORDIV }, { "**", CDR__T_POW }, { "==", CDR__T_EQ }, { "!=", CDR__T_NE }, { "<=", CDR__T_LE }, { ">=", CDR__T_GE },
    { "+", CDR__T_ADD }, { "-", CDR__T_SUB }, { "*", CDR__T_MUL }, { "/", CDR__T_DIV }, { "%", CDR__T_MOD }, { "~", CDR__T_TILDE }, { "<", CDR__T_LT },
    { ">", CDR__T_GT },
    { "=", CDR__T_ASSIGN }, { ".", CDR__T_DOT }, { ":", CDR__T_COLON }, { ",", CDR__T_COMMA }, { "|", CDR__T_PIPE },
    { "(", CDR__T_LPAREN }, { ")", CDR__T_RPAREN }, { "[", CDR__T_LBRACKET }, { "]", CDR__T_RBRACKET }, { "{", CDR__T_LBRACE }, { "}", CDR__T_RBRACE },
};

static cdr_status operator_(lexer *l)
{
    for (int i = 0; i < CDR_COUNT(OPERATORS); i++) {
        if (!at_text(l, l->at, OPERATORS[i].s)) continue;
        char c = OPERATORS[i].s[0];
        if (c == '(' || c == '[' || c == '{') {
            if (l->n_open == OPEN_MAX) LEX_FAIL(l, "more than %d open brackets", (int)OPEN_MAX);
            l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (l->n_open == 0 || l->open[l->n_open - 1] != c) LEX_FAIL(l, "'%c' closes nothing that is open", c);
            l->n_open--;
        }
        push(l, OPERATORS[i].kind);
        l->at += strlen(OPERATORS[i].s);
        return CDR_OK;
    }
    unsigned char c = (unsigned char)l->s[l->at];
    if (c >= 0x80) LEX_FAIL(l, "a name with a character beyond ASCII is not supported");
    if (c >= 0x20 && c < 0x7f) LEX_FAIL(l, "'%c' is no part of an expression", c);
    LEX_FAIL(l, "byte 0x%02x is no part of an expression", c);
}

/* Inside of {{ or {%, up to its end. */
static cdr_status tag(lexer *l, bool variable)
{
    const char *end = variable ? "}}" : "%}";
    l->n_open = 0;
    while (l->at < l->n) {
        size_t to = skip_space(l, l->at);
        count_lines(l, l->at, to);
        l->at = to;
        if (to == l->n) break;
        char sign = sign_at(l, to);
        if (variable && sign == '+') sign = 0;
        if (l->n_open == 0 && at_text(l, to + (sign != 0), end)) {
            push(l, variable ? CDR__T_VAR_END : CDR__T_BLOCK_END);
            l->at = to + (sign != 0) + 2;
            l->line_starting = false;
            after_tag(l, l->at, sign, !variable);
            return CDR_OK;
        }
        char c = l->s[to];
        if (isdigit((unsigned char)c)) CDR_TRY(number(l));
        else if (c == '"' || c == '\'') CDR_TRY(string(l));
        else if (isalpha((unsigned char)c) || c == '_') CDR_TRY(name(l));
        else CDR_TRY(operator_(l));
    }
    LEX_FAIL(l, "a tag without its end %s", end);
}

/* The next "{{", "{%" or "{#" from at on; n: none. */
static size_t next_tag(const lexer *l, size_t at)
{
    for (; at + 1 < l->n; at++)
        if (l->s[at] == '{' && (l->s[at + 1] == '{' || l->s[at + 1] == '%' || l->s[at + 1] == '#')) return at;
    return l->n;
}

/* Line ends become \n; one at the end goes. */
static void normalize(lexer *l, const char *source, size_t bytes)
{
    char *s = cdr_pool_alloc(l->t->pool, bytes + 1);
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n') continue;
        s[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n > 0 && s[n - 1] == '\n') n--;
    s[n] = 0;
    l->s = s;
    l->n = n;
}

cdr_status cdr__jinja_lex(cdr__jtokens *t, const char *source, size_t bytes)
{
    lexer *l = &(lexer){ .t = t, .line = 1, .line_starting = true };
    normalize(l, source, bytes);
    while (l->at < l->n) {
        size_t at = next_tag(l, l->at);
        if (at == l->n) {
            put_data(l, l->at, l->n);
            count_lines(l, l->at, l->n);
            break;
        }
        bool variable = l->s[at + 1] == '{';
        char sign = sign_at(l, at + 2);
        put_data(l, l->at, strip_before(l, l->at, at, sign, variable));
        size_t body = l->s[at + 1] == '%' ? raw_begin(l, at) : 0;
        count_lines(l, l->at, at);
        l->at = at;
        if (body) CDR_TRY(raw(l, body));
        else if (l->s[at + 1] == '#') CDR_TRY(comment(l, at + 2 + (sign != 0)));
        else {
            push(l, variable ? CDR__T_VAR_BEGIN : CDR__T_BLOCK_BEGIN);
            l->at = at + 2 + (sign != 0);
            CDR_TRY(tag(l, variable));
        }
    }
    push(l, CDR__T_END);
    return CDR_OK;
}
