/* data: `make dictionary FILE --out FILE` turns a .dict or .dict.dz dictionary into a text corpus; check and pack are
 * reserved. */
#include "cli/cli.h"
#include "io/io.h"

static const cli_option options[] = {
    { "--out", "FILE", false, "where the text is written" },
    { "--as", "FORM", false, "text (default); messages is reserved" },
    { "--eval-fraction", "F", true, "a held-out part of its own" },
    { NULL, NULL, false, NULL },
};

static cdr_status make_dictionary(const cli_args *a, cdr_result *r, cdr_err *err)
{
    const char *out = cli_value(a, "--out"), *as = cli_value(a, "--as");
    if (a->n_pos < 3) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre data make dictionary: FILE is missing. See cadre data --help");
    if (!out) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre data make dictionary: --out FILE is missing. See cadre data --help");
    if (as && strcmp(as, "text") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.reserved", "cadre data make --as %s: reserved: not in this version; text is", as);
    cdr_text text = { 0 }, json = { 0 }, line = { 0 };
    cdr_dictionary_stat stat = { 0 };
    cdr_status st = cdr_dictionary_to_text(a->pos[2], &text, &stat, err);
    size_t bytes = text.n;
    if (st == CDR_OK) st = cdr_file_write(out, text.s ? text.s : "", text.n, err);
    cdr_text_free(&text);
    if (st != CDR_OK) return st;
    cdr_jw w = { .t = &json };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "path", out);
    cdr_jw_int(&w, "size_bytes", (int64_t)bytes);
    cdr_jw_int(&w, "entries", stat.n_entries);
    cdr_jw_int(&w, "dropped", stat.n_dropped);
    cdr_jw_end(&w, '}');
    char n_entries[32], n_bytes[32];
    cdr_format_count(n_entries, stat.n_entries);
    cdr_format_count(n_bytes, (int64_t)bytes);
    cdr_text_printf(&line, "wrote %s: %s entries, %s bytes, %lld dropped\n", out, n_entries, n_bytes, (long long)stat.n_dropped);
    r->json = json.s;
    r->text = line.s;
    return CDR_OK;
}

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    static const char *const names[] = { "make", "check", "pack" };
    const char *verb = a->pos[0], *kind = a->n_pos > 1 ? a->pos[1] : "";
    if (strcmp(verb, "check") == 0 || strcmp(verb, "pack") == 0)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.reserved", "cadre data %s: reserved: not in this version", verb);
    if (strcmp(verb, "make") != 0)
        CDR_FAIL_ID(err, CDR_EUSAGE, "usage.command", "cadre data %s: unknown.%s", verb, cdr_nearest(a->pool, verb, names, CDR_COUNT(names)));
    if (strcmp(kind, "dictionary") != 0) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.argument", "cadre data make %s: only dictionary FILE can be made", kind);
    return make_dictionary(a, r, err);
}

const cli_command cli_data = {
    .name = "data", .args = "make dictionary FILE", .min_args = 1, .max_args = 3, .options = options, .run = run,
    .what = "a text corpus from a .dict or .dict.dz dictionary",
    .example = "cadre data make dictionary /usr/share/dictd/jargon.dict.dz --out data/jargon.txt",
};
