/* records.c: a file of JSON records, one at a time, and what form a record has.
 *
 * Three layouts, told by the first characters: one value a line (JSON Lines), one array of values, values one after another
 * that go over several lines. Of the last two the end of a value is found by counting braces outside of strings; the JSON
 * reader then checks all of it. Each byte is looked at once by the reader, whatever the length of a record.
 */
#include "data/internal.h"

static const char *const NAMES[] = { "auto", "text", "text records", "messages", "sharegpt", "alpaca", "completion", "tokens" };

const char *cdr__format_name(cdr__format f)
{
    return NAMES[f];
}

/* ---- records of a file ------------------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Behind the value that begins at s: a '{' or '[' with its partner, a string, else up to a comma, a bracket or a space.
 * *broken: where a line ends within a string, or the text within the value. */
static const char *value_end(const char *s, const char *end, bool *broken)
{
    int64_t depth = 0;
    *broken = false;
    for (; s < end; s++) {
        if (*s == '"') {
            for (s++; s < end && *s != '"' && *s != '\n'; s++)
                if (*s == '\\' && s + 1 < end) s++;
            if (s >= end || *s == '\n') break;
        } else if (*s == '{' || *s == '[') {
            depth++;
            continue;
        } else if (*s == '}' || *s == ']') {
            if (--depth < 0) return s;
        } else if (depth > 0 || !(is_space(*s) || *s == ',')) {
            continue;
        } else {
            return s;
        }
        if (depth == 0) return s + 1;
    }
    *broken = true;
    return s < end ? s : end;
}

static void skip_space(cdr__reader *r)
{
    for (; r->at < r->end && is_space(*r->at); r->at++)
        if (*r->at == '\n') {
            r->line++;
            r->line_start = r->at + 1;
        }
}

void cdr__reader_open(const char *path, const char *text, size_t bytes, cdr__reader *r)
{
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, bytes -= 3;            /* a mark of some editors */
    *r = (cdr__reader){ .path = path, .line_start = text, .at = text, .end = text + bytes, .line = 1, .layout = CDR__LINES, .first = true };
    skip_space(r);
    if (r->at == r->end) return;
    if (*r->at == '[') {
        r->layout = CDR__ARRAY;
        r->at++;
        return;
    }
    bool broken;
    const char *to = value_end(r->at, r->end, &broken);
    bool in_string = broken && to < r->end;           /* a line that ends within a string is a broken line */
    if (!in_string && *r->at == '{' && memchr(r->at, '\n', (size_t)(to - r->at))) r->layout = CDR__STREAM;
}

static cdr_status fail_at(const cdr__reader *r, const char *what, cdr_err *err)
{
    CDR_FAIL_ID(err, CDR_EDATA, "json.syntax", "%s:%lld:%lld: %s", r->path, (long long)r->line, (long long)(r->at - r->line_start) + 1, what);
}

static cdr_status next_line(cdr__reader *r, cdr__record *rec, bool *more)
{
    *more = false;
    for (;;) {
        skip_space(r);
        if (r->at == r->end) return CDR_OK;
        const char *eol = memchr(r->at, '\n', (size_t)(r->end - r->at));
        if (!eol) eol = r->end;
        *rec = (cdr__record){ r->at, (size_t)(eol - r->at), r->line, r->at - r->line_start + 1 };
        while (rec->n > 0 && is_space(rec->s[rec->n - 1])) rec->n--;
        r->at = eol;
        *more = true;
        return CDR_OK;
    }
}

/* What stands between two values of an array. */
static cdr_status next_in_array(cdr__reader *r, bool *more, cdr_err *err)
{
    *more = true;
    if (r->at < r->end && *r->at == ']') {
        r->at++;
        skip_space(r);
        *more = false;
        return r->at == r->end ? CDR_OK : fail_at(r, "the array of records ends before this; one file holds one array. Remove what follows it", err);
    }
    if (!r->first) {
        if (r->at == r->end || *r->at != ',')
            return fail_at(r, r->at == r->end ? "the array of records is cut off: ']' is missing. Copy the file again" : "',' or ']' is expected between records", err);
        r->at++;
        skip_space(r);
    }
    if (r->at == r->end) return fail_at(r, "the array of records is cut off. Copy the file again", err);
    return CDR_OK;
}

cdr_status cdr__reader_next(cdr__reader *r, cdr__record *rec, bool *more, cdr_err *err)
{
    if (r->layout == CDR__LINES) return next_line(r, rec, more);
    skip_space(r);
    *more = r->at < r->end;
    if (r->layout == CDR__ARRAY) CDR_TRY(next_in_array(r, more, err));
    if (!*more) return CDR_OK;
    bool broken;
    const char *to = value_end(r->at, r->end, &broken);
    if (broken) to = r->end;                          /* the JSON reader says where and why */
    if (to == r->at) return fail_at(r, "a record is expected here. Correct it there", err);
    *rec = (cdr__record){ r->at, (size_t)(to - r->at), r->line, r->at - r->line_start + 1 };
    for (const char *nl = r->at; (nl = memchr(nl, '\n', (size_t)(to - nl))) != NULL;) {
        r->line++;
        r->line_start = ++nl;
    }
    r->at = to;
    r->first = false;
    return CDR_OK;
}

/* ---- columns and forms --------------------------------------------------------------------------------------------- */

/* Fields of a record, then those of its messages. */
static const char *const FIELDS[] = { "messages", "tools", "conversations", "system", "instruction", "input", "output", "history", "prompt", "completion",
                                      "query", "response", "text", "role", "content", "from", "value", "reasoning_content", "tool_calls", "tool_call_id",
                                      "name", "train", "loss", "weight" };

cdr_status cdr__columns_check(const char *where, const cdr__columns *c, cdr_err *err)
{
    for (int i = 0; i < c->n; i++) {
        bool known = false;
        for (int k = 0; k < CDR_COUNT(FIELDS); k++) known |= strcmp(FIELDS[k], c->c[i].ours) == 0;
        if (known) continue;
        cdr_pool *pool = cdr_pool_new();
        cdr_fail(err, CDR_EUSER, "data.columns", "%s: columns: \"%s\" is no field of ours.%s The left side is our name, the right side that of the file", where,
                 c->c[i].ours, cdr_nearest(pool, c->c[i].ours, FIELDS, CDR_COUNT(FIELDS)));
        cdr_pool_free(pool);
        return CDR_EUSER;
    }
    return CDR_OK;
}

const char *cdr__column(const cdr__columns *c, const char *ours)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->c[i].ours, ours) == 0) return c->c[i].theirs;
    return ours;
}

const cdr_json *cdr__field(const cdr__columns *c, const cdr_json *record, const char *ours)
{
    const cdr_json *j = cdr_json_get(record, cdr__column(c, ours));
    return j && cdr_json_type(j) != CDR_JSON_NULL ? j : NULL;
}

cdr__format cdr__detect(const cdr__columns *c, const cdr_json *record)
{
    if (cdr_json_type(record) != CDR_JSON_OBJECT) return CDR__AUTO;
    const cdr_json *talk = cdr__field(c, record, "messages");
    if (cdr_json_type(talk) == CDR_JSON_ARRAY) return CDR__MESSAGES;
    talk = cdr__field(c, record, "conversations");
    if (!talk) talk = cdr_json_get(record, "conversation");
    if (cdr_json_type(talk) == CDR_JSON_ARRAY) return cdr__field(c, cdr_json_at(talk, 0), "role") ? CDR__MESSAGES : CDR__SHAREGPT;
    if (cdr__field(c, record, "instruction")) return CDR__ALPACA;
    bool asks = cdr__field(c, record, "prompt") || cdr__field(c, record, "query");
    if (asks && (cdr__field(c, record, "completion") || cdr__field(c, record, "response"))) return CDR__COMPLETION;
    if (cdr_json_type(cdr__field(c, record, "text")) == CDR_JSON_STRING) return CDR__RECORDS;
    return CDR__AUTO;
}
