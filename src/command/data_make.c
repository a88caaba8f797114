/* data_make.c: `data make dictionary`: a dictd dictionary as a text corpus, or as conversations: "Define: HEADWORD" and the definition.
 *
 * A definition is the entry without its headword, pronunciation and part of speech; lines of a paragraph of prose are joined, those of verse (all
 * indented) stay lines; {links} and _emphasis_ lose their marks. The split into training and held-out data goes by the hash of the entry's bytes:
 * headwords that share an entry stay together, and a later edition of the dictionary keeps its old entries where they were.
 */
#include "io/io.h"
#include <stdlib.h>

typedef struct { cdr_text train, eval; int64_t n_train, n_eval, n_about, n_empty, n_foreign, n_again; } made;

static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_alnum(char c) { return is_upper(c) || is_lower(c) || (c >= '0' && c <= '9') || (unsigned char)c >= 0x80; }
static char to_lower(char c) { return is_upper(c) ? (char)(c + 32) : c; }
static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static bool valid_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = cdr_utf8_length(s + i, n - i);
        if (len == 0 || s[i] == 0) return false;
        i += (size_t)len;
    }
    return true;
}

/* ---- the head of an entry --------------------------------------------------------------------------------------------------- */

/* Bytes of the entry's beginning that spell the word, whatever case and punctuation; 0: it begins otherwise. */
static size_t spelled(const char *s, size_t n, const char *word, size_t n_word)
{
    size_t i = 0, k = 0;
    for (; k < n_word; k++) {
        if (!is_alnum(word[k])) continue;
        while (i < n && !is_alnum(s[i]) && s[i] != '\n') i++;
        if (i >= n || to_lower(s[i]) != to_lower(word[k])) return 0;
        i++;
    }
    return i < n && is_alnum(s[i]) ? 0 : i;
}

/* Bytes of a part of speech ("n.", "v.t."), 0: none. */
static size_t part_of_speech(const char *s, size_t n)
{
    static const char *const PARTS[] = { "n.pl.", "n.", "v.t.", "v.i.", "vt.", "vi.", "v.", "adj.", "adv.", "a.", "pp.", "p.p.", "pron.", "pro.", "prep.",
                                         "conj.", "interj.", "pl.", "x.", "excl." };
    for (int i = 0; i < CDR_COUNT(PARTS); i++) {
        size_t k = strlen(PARTS[i]);
        if (n >= k && memcmp(s, PARTS[i], k) == 0 && (n == k || !is_alnum(s[k]))) return k;
    }
    return 0;
}

/* "and n.", "& n.": one more of them. */
static size_t and_part(const char *s, size_t n)
{
    size_t k = n > 4 && memcmp(s, "and ", 4) == 0 ? 4 : n > 2 && memcmp(s, "& ", 2) == 0 ? 2 : 0, more = k ? part_of_speech(s + k, n - k) : 0;
    return more ? k + more : 0;
}

/* Another spelling in capitals before a comma: "CONFIDANT, CONFIDANTE, n.", "BABE or BABY, n." */
static size_t capitals(const char *s, size_t n)
{
    size_t i = n > 3 && memcmp(s, "or ", 3) == 0 ? 3 : 0, first = i;
    for (; i < n && (is_upper(s[i]) || s[i] == ' ' || s[i] == '-' || s[i] == '\''); i++)
        if (n - i > 4 && memcmp(s + i, " or ", 4) == 0) i += 3;
    return i >= first + 2 && i < n && s[i] == ',' && is_upper(s[first]) && is_upper(s[first + 1]) ? i : 0;
}

static size_t skip_head(const char *s, size_t n, size_t from)
{
    size_t i = from, k;
    for (;;) {
        while (i < n && (is_blank(s[i]) || s[i] == ',' || s[i] == ';' || s[i] == ':' || (s[i] == '.' && i == from))) {
            if (s[i] == '\n' && i + 1 < n && s[i + 1] == '\n') return i;
            i++;
        }
        const char *close = i < n && s[i] == '/' ? memchr(s + i + 1, '/', CDR_MIN(n - i - 1, (size_t)80)) : NULL;
        if (close) i = (size_t)(close - s) + 1;
        else if ((k = part_of_speech(s + i, n - i)) > 0 || (k = and_part(s + i, n - i)) > 0) i += k;
        else if ((k = capitals(s + i, n - i)) > 0) i += k;
        else return i;
    }
}

/* ---- the definition ------------------------------------------------------------------------------------------------------------ */

/* One line without marks and spaces around it; runs of spaces become one. */
static void put_line(cdr_text *t, const char *s, size_t n)
{
    while (n > 0 && is_blank(s[0])) s++, n--;
    while (n > 0 && is_blank(s[n - 1])) n--;
    for (size_t i = 0; i < n; i++) {
        bool mark = s[i] == '{' || s[i] == '}' || (s[i] == '_' && (i == 0 || i + 1 == n || !is_alnum(s[i - 1]) || !is_alnum(s[i + 1])));
        if (mark || (is_blank(s[i]) && i > 0 && is_blank(s[i - 1]))) continue;
        cdr_text_append(t, is_blank(s[i]) ? " " : s + i, 1);
    }
}

/* A paragraph; verse where all of its lines stand behind the margin (a line alone is prose). */
static void put_paragraph(cdr_text *t, const char *s, size_t n, size_t margin)
{
    bool verse = memchr(s, '\n', n) != NULL, first = true;
    for (size_t i = 0; i < n;) {
        const char *eol = memchr(s + i, '\n', n - i);
        size_t end = eol ? (size_t)(eol - s) : n, indent = 0;
        while (i + indent < end && s[i + indent] == ' ') indent++;
        verse = verse && indent > margin;
        i = end + 1;
    }
    if (t->n > 0) cdr_text_append(t, "\n\n", 2);
    for (size_t i = 0; i < n;) {
        const char *eol = memchr(s + i, '\n', n - i);
        size_t end = eol ? (size_t)(eol - s) : n;
        if (!first) cdr_text_append(t, verse ? "\n" : " ", 1);
        put_line(t, s + i, end - i);
        first = false;
        i = end + 1;
    }
}

static size_t margin_of(const char *s, size_t n)
{
    size_t least = n;
    for (size_t i = 0; i < n;) {
        const char *eol = memchr(s + i, '\n', n - i);
        size_t end = eol ? (size_t)(eol - s) : n, indent = 0;
        while (i + indent < end && s[i + indent] == ' ') indent++;
        if (i + indent < end && i > 0) least = CDR_MIN(least, indent);         /* not of the first line, from which the head was taken */
        i = end + 1;
    }
    return least == n ? 0 : least;
}

static void put_definition(cdr_text *t, const char *s, size_t n)
{
    size_t margin = margin_of(s, n);
    for (size_t i = 0; i < n;) {
        while (i < n && s[i] == '\n') i++;
        size_t end = i;
        while (end < n) {                             /* up to a line without text */
            const char *eol = memchr(s + end, '\n', n - end);
            size_t line = eol ? (size_t)(eol - s) : n, k = end;
            while (k < line && is_blank(s[k])) k++;
            if (k == line) break;
            end = CDR_MIN(line + 1, n);
        }
        size_t len = end - i;
        while (len > 0 && is_blank(s[i + len - 1])) len--;
        if (len > 0) put_paragraph(t, s + i, len, margin);
        while (end < n && s[end] != '\n') end++;
        i = end + 1;
    }
}

/* ---- entries --------------------------------------------------------------------------------------------------------------------- */

/* The word as the entry writes it, in small letters where that is all capitals; else as the index has it. */
static char *headword(cdr_pool *pool, const cdr_dictionary_entry *e, size_t n_spelled)
{
    char *word = n_spelled ? cdr_pool_strndup(pool, e->text, n_spelled) : cdr_pool_strndup(pool, e->word, e->word_bytes);
    bool small = false;
    for (const char *c = word; *c; c++) small |= is_lower(*c);
    for (char *c = word; *c && !small; c++) *c = to_lower(*c);
    return word;
}

static bool held_out(const cdr_dictionary_entry *e, double fraction)
{
    return (double)(cdr_hash64(e->text, e->bytes, 0) >> 11) * 0x1p-53 < fraction;
}

static void put_message(cdr_jw *w, const char *role, const char *content)
{
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "role", role);
    cdr_jw_str(w, "content", content);
    cdr_jw_end(w, '}');
}

static void put_conversation(cdr_text *out, const char *word, const char *definition)
{
    cdr_jw w = { .t = out };
    cdr_text question = { 0 };
    cdr_text_printf(&question, "Define: %s", word);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_begin(&w, "messages", '[');
    put_message(&w, "user", question.s);
    put_message(&w, "assistant", definition);
    cdr_jw_end(&w, ']');
    cdr_jw_end(&w, '}');
    cdr_text_append(out, "\n", 1);
    cdr_text_free(&question);
}

static void make_conversation(const cdr_dictionary_entry *e, double fraction, made *m)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_text definition = { 0 };
    size_t skip = 0;
    while (skip < e->bytes && is_blank(e->text[skip])) skip++;
    cdr_dictionary_entry in = *e;
    in.text += skip;
    in.bytes -= skip;
    size_t k = spelled(in.text, in.bytes, e->word, e->word_bytes);
    if (valid_utf8(in.text, in.bytes) && valid_utf8(e->word, e->word_bytes)) {
        size_t from = skip_head(in.text, in.bytes, k);
        put_definition(&definition, in.text + from, in.bytes - from);
        cdr_text_append(&definition, "", 1);
        bool held = held_out(e, fraction);
        if (definition.n <= 1) m->n_empty++;
        else {
            put_conversation(held ? &m->eval : &m->train, headword(pool, &in, k), definition.s);
            *(held ? &m->n_eval : &m->n_train) += 1;
        }
    } else m->n_foreign++;
    cdr_text_free(&definition);
    cdr_pool_free(pool);
}

/* The entry as it stands, blank lines around it left away. */
static void make_text(const cdr_dictionary_entry *e, double fraction, made *m)
{
    bool held = held_out(e, fraction);
    cdr_text *to = held ? &m->eval : &m->train;
    const char *s = e->text;
    size_t n = e->bytes;
    while (n > 0 && is_blank(s[n - 1])) n--;
    while (n > 0 && (s[0] == '\n' || s[0] == '\r')) s++, n--;
    if (n == 0) {
        m->n_empty++;
        return;
    }
    if (to->n > 0) cdr_text_append(to, "\n", 1);
    cdr_text_append(to, s, n);
    cdr_text_append(to, "\n", 1);
    *(held ? &m->n_eval : &m->n_train) += 1;
}

static bool same_entry(const cdr_dictionary_entry *a, const cdr_dictionary_entry *b, bool talk)
{
    bool place = a->text == b->text && a->bytes == b->bytes;
    return talk ? place && a->word_bytes == b->word_bytes && memcmp(a->word, b->word, a->word_bytes) == 0 : place;
}

static void make_all(const cdr_dictionary *d, bool talk, double fraction, made *m)
{
    const char *done = NULL;                          /* end of the entries so far: text inside of another entry is no second text */
    for (int64_t i = 0; i < cdr_dictionary_count(d); i++) {
        cdr_dictionary_entry e = cdr_dictionary_at(d, i), before = i > 0 ? cdr_dictionary_at(d, i - 1) : (cdr_dictionary_entry){ 0 };
        bool again = i > 0 && (same_entry(&e, &before, talk) || (!talk && e.text + e.bytes <= done));
        if (!talk && !again && done && e.text < done) {
            e.bytes -= (size_t)(done - e.text);
            e.text = done;
        }
        if (e.about) m->n_about++;
        else if (again) m->n_again++;
        else if (talk) make_conversation(&e, fraction, m);
        else make_text(&e, fraction, m);
        if (!done || e.text + e.bytes > done) done = e.text + e.bytes;
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------------------------- */

/* X.jsonl -> X-eval.jsonl */
static char *eval_name(cdr_pool *pool, const char *out)
{
    const char *slash = strrchr(out, '/'), *dot = strrchr(out, '.');
    size_t n = dot && (!slash || dot > slash + 1) && dot != out ? (size_t)(dot - out) : strlen(out);
    return cdr_pool_printf(pool, "%.*s-eval%s", (int)n, out, out + n);
}

static void report_file(cdr_text *t, cdr_jw *w, const char *path, const char *use, const cdr_text *text, int64_t n)
{
    char n_entries[32], n_bytes[32];
    cdr_format_count(n_entries, n);
    cdr_format_count(n_bytes, (int64_t)text->n);
    cdr_text_printf(t, "wrote %s: %s entries, %s bytes\n", path, n_entries, n_bytes);
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "path", path);
    cdr_jw_str(w, "use", use);
    cdr_jw_int(w, "entries", n);
    cdr_jw_int(w, "size_bytes", (int64_t)text->n);
    cdr_jw_end(w, '}');
}

static void report(cdr_pool *pool, const cdr_data_make_args *a, const made *m, cdr_result *r)
{
    cdr_text t = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    const struct { const char *name, *why; int64_t n; } DROPS[] = {
        { "about_the_database", "about the database", m->n_about }, { "again", "the same entry again", m->n_again }, { "empty", "empty", m->n_empty },
        { "not_utf8", "not UTF-8", m->n_foreign } };
    int64_t dropped = 0;
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "path", a->out);
    cdr_jw_int(&w, "size_bytes", (int64_t)m->train.n);
    cdr_jw_int(&w, "entries", m->n_train + m->n_eval);
    cdr_jw_begin(&w, "files", '[');
    report_file(&t, &w, a->out, "train", &m->train, m->n_train);
    if (a->eval_fraction > 0) report_file(&t, &w, eval_name(pool, a->out), "eval", &m->eval, m->n_eval);
    cdr_jw_end(&w, ']');
    for (int i = 0; i < CDR_COUNT(DROPS); i++) dropped += DROPS[i].n;
    cdr_jw_int(&w, "dropped", dropped);
    cdr_jw_begin(&w, "dropped_why", '{');
    cdr_text_printf(&t, "dropped %lld", (long long)dropped);
    for (int i = 0, some = 0; i < CDR_COUNT(DROPS); i++) {
        cdr_jw_int(&w, DROPS[i].name, DROPS[i].n);
        if (DROPS[i].n > 0) cdr_text_printf(&t, "%s%s %lld", some++ ? ", " : ": ", DROPS[i].why, (long long)DROPS[i].n);
    }
    cdr_text_append(&t, "\n", 1);
    cdr_jw_end(&w, '}');
    cdr_jw_end(&w, '}');
    r->text = t.s;
    r->json = json.s;
}

static cdr_status make(cdr_pool *pool, const cdr_data_make_args *a, made *m, cdr_err *err)
{
    bool talk = a->as && strcmp(a->as, "messages") == 0;
    cdr_dictionary *d;
    if (a->as && !talk && strcmp(a->as, "text") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre data make: --as %s: text and messages are known", a->as);
    if (!(a->eval_fraction >= 0 && a->eval_fraction <= 0.5))
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre data make: --eval-fraction %g: from 0 to 0.5", a->eval_fraction);
    CDR_TRY(cdr_dictionary_open(a->file, &d, err));
    make_all(d, talk, a->eval_fraction, m);
    cdr_dictionary_close(d);
    if (m->n_train == 0) CDR_FAIL_ID(err, CDR_EDATA, "dictionary.index", "%s: no entry to write", a->file);
    CDR_TRY(cdr_file_write(a->out, m->train.s, m->train.n, err));
    return a->eval_fraction > 0 ? cdr_file_write(eval_name(pool, a->out), m->eval.s ? m->eval.s : "", m->eval.n, err) : CDR_OK;
}

cdr_status cdr_data_make(const cdr_data_make_args *a, cdr_result *r, cdr_err *err)
{
    cdr_pool *pool = cdr_pool_new();
    made m = { 0 };
    cdr_status st = make(pool, a, &m, err);
    if (st == CDR_OK) report(pool, a, &m, r);
    cdr_text_free(&m.train);
    cdr_text_free(&m.eval);
    cdr_pool_free(pool);
    return st;
}
