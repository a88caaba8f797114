/* data_cmd.c: `data check`: tokens and labels made visible, and what was dropped and why; `data pack`: token files; what `inspect` says of a data file.
 *
 * check reads as a run would, but goes on where a run stops at a sample without a trained token, so that all of them are named; then it fails as
 * the run would, unless data.untrained=drop. Lengths count tokens of each sample, also of those that are too long.
 */
#include "command/inspect.h"
#include "train/session.h"
#include <stdlib.h>

enum { SHOW_TOKENS = 1000, LINES_NAMED = 8, BARS = 12, BAR_WIDTH = 40 };

/* ---- the recipe ---------------------------------------------------------------------------------------------------------- */

static bool is_recipe(const char *arg)
{
    size_t n = strlen(arg);
    return (n > 5 && strcmp(arg + n - 5, ".yaml") == 0) || (!cdr_exists(arg) && cdr_builtin("configs", arg));
}

/* A recipe, or one made for a data file: the model's defaults for everything. */
static cdr_status open_recipe(cdr_session *s, const char *arg, const char *model, const cdr_common *c, cdr_err *err)
{
    memset(s, 0, sizeof *s);
    s->pool = cdr_pool_new();
    const char **set = cdr_pool_alloc(s->pool, sizeof *set * (size_t)(c->n_set + 1));
    cdr_common with = *c;
    with.set = set;
    with.n_set = 0;
    if (model) set[with.n_set++] = cdr_pool_printf(s->pool, "model.path=%s", model);
    for (int i = 0; i < c->n_set; i++) set[with.n_set++] = c->set[i];
    if (is_recipe(arg)) CDR_TRY(cdr_recipe_load(arg, &with, s->pool, &s->r, err));
    else {
        cdr_text t = { 0 };
        cdr_text_printf(&t, "model: {path: tiny-k31}\ntrain: {steps: 1}\ndata: {train: [{path: ");
        cdr__yaml_quote(&t, arg);
        cdr_text_printf(&t, "}]}\n");
        cdr_recipe_text text = { cdr_pool_strndup(s->pool, t.s, t.n), t.n, "data check", "data" };
        cdr_text_free(&t);
        CDR_TRY(cdr_recipe_parse(&text, &with, s->pool, &s->r, err));
    }
    return cdr__session_model(s, err);
}

/* all_named: samples without a trained token are dropped and listed, whatever data.untrained says. */
static cdr_status open_data(cdr_session *s, bool all_named, cdr_err *err)
{
    cdr_data_opts o;
    cdr_err first = { 0 };
    CDR_TRY(cdr__session_data_opts(s, &o, err));
    bool said = o.drop_untrained;
    o.drop_untrained |= all_named;
    cdr_status st = cdr_data_open(&o, &s->data, &first);
    if (st != CDR_OK && !said && strcmp(first.id, "data.empty") == 0) {         /* nothing is left: a run's error says why */
        o.drop_untrained = false;
        first = (cdr_err){ 0 };
        st = cdr_data_open(&o, &s->data, &first);
    }
    if (st != CDR_OK) *err = first;
    return st;
}

/* ---- figures ------------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t *lengths, n;               /* of all samples that were read, ascending */
    int64_t n_kept, n_tokens, n_trained, n_held;
    int64_t dropped[CDR_N_DROPS];
    bool one_file;
} figures;

static int by_length(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void count(cdr_session *s, figures *f)
{
    const cdr_data_drop *drops;
    int64_t n_drops = cdr_data_drops(s->data, &drops);
    const char *path = NULL;
    *f = (figures){ .n_kept = cdr_data_docs(s->data, false), .n_held = cdr_data_docs(s->data, true), .one_file = true };
    f->lengths = cdr_pool_alloc(s->pool, (size_t)(f->n_kept + f->n_held + n_drops + 1) * sizeof *f->lengths);
    for (int held = 0; held < 2; held++)
        for (int64_t i = 0; i < cdr_data_docs(s->data, held); i++) {
            cdr_data_doc doc = cdr_data_doc_at(s->data, held, i);
            f->lengths[f->n++] = doc.n;
            f->one_file = f->one_file && (!path || strcmp(path, doc.path) == 0);
            path = doc.path;
            if (held) continue;
            f->n_tokens += doc.n;
            f->n_trained += doc.n_trained;
        }
    for (int64_t i = 0; i < n_drops; i++) {
        f->dropped[drops[i].reason]++;
        f->one_file = f->one_file && (!path || strcmp(path, drops[i].path) == 0);
        path = drops[i].path;
        if (drops[i].n > 0) f->lengths[f->n++] = drops[i].n;
    }
    if (f->n > 1) qsort(f->lengths, (size_t)f->n, sizeof *f->lengths, by_length);
}

/* The smallest length that so many of them do not exceed. */
static int64_t quantile(const figures *f, double q)
{
    int64_t i = (int64_t)(q * (double)f->n + 0.9999999) - 1;
    return f->n > 0 ? f->lengths[CDR_MIN(CDR_MAX(i, (int64_t)0), f->n - 1)] : 0;
}

/* Bars of one width, a power of two, from the shortest to the longest. */
typedef struct { int64_t width, first, n, count[BARS]; } histogram;         /* bar i: lengths (first + i) width + 1 to (first + i + 1) width */

static histogram make_histogram(const figures *f)
{
    histogram h = { .width = 1, .n = 1 };
    int64_t shortest = f->n > 0 ? CDR_MAX(f->lengths[0], (int64_t)1) : 1, longest = f->n > 0 ? CDR_MAX(f->lengths[f->n - 1], (int64_t)1) : 1;
    while ((longest - 1) / h.width - (shortest - 1) / h.width >= BARS) h.width *= 2;
    h.first = (shortest - 1) / h.width;
    h.n = (longest - 1) / h.width - h.first + 1;
    for (int64_t i = 0; i < f->n; i++) h.count[(CDR_MAX(f->lengths[i], (int64_t)1) - 1) / h.width - h.first]++;
    return h;
}

static void put_histogram(cdr_text *t, const histogram *h)
{
    int64_t most = 1;
    for (int64_t i = 0; i < h->n; i++) most = CDR_MAX(most, h->count[i]);
    for (int64_t i = 0; i < h->n; i++) {
        int bar = (int)cdr_ceil_div(h->count[i] * BAR_WIDTH, most);
        cdr_text_printf(t, "%-9s %7lld-%-7lld %8lld  ", i ? "" : "length", (long long)((h->first + i) * h->width + 1),
                        (long long)((h->first + i + 1) * h->width), (long long)h->count[i]);
        for (int k = 0; k < bar; k++) cdr_text_append(t, "#", 1);
        while (t->n > 0 && t->s[t->n - 1] == ' ') t->n--;
        cdr_text_append(t, "\n", 1);
    }
}

static void put_place(cdr_text *t, const figures *f, const char *path, int64_t line)
{
    if (line > 0 && f->one_file) cdr_text_printf(t, "%lld", (long long)line);
    else if (line > 0) cdr_text_printf(t, "%s:%lld", path, (long long)line);
    else cdr_text_printf(t, "%s", path);
}

/* "over 512 tokens: lines 88, 640" */
static void put_drops(cdr_text *t, const cdr_session *s, const figures *f, cdr_data_reason reason)
{
    const cdr_data_drop *drops;
    int64_t n_drops = cdr_data_drops(s->data, &drops), named = 0;
    if (reason == CDR_DROP_LONG) cdr_text_printf(t, "over %lld tokens: ", (long long)s->r.train.sequence_length);
    else cdr_text_printf(t, "%s: ", cdr_data_reason_text(reason));
    for (int64_t i = 0; i < n_drops; i++) {
        if (drops[i].reason != reason) continue;
        if (named == 0 && drops[i].line > 0 && f->one_file) cdr_text_printf(t, f->dropped[reason] > 1 ? "lines " : "line ");
        if (named < LINES_NAMED) {
            if (named > 0) cdr_text_append(t, ", ", 2);
            put_place(t, f, drops[i].path, drops[i].line);
        }
        named++;
    }
    if (named > LINES_NAMED) cdr_text_printf(t, " and %lld more", (long long)(named - LINES_NAMED));
}

static const char *word_of(const cdr_session *s, const char *key)
{
    return cdr_recipe_value(&s->r, cdr_recipe_key(key), s->pool);
}

static void put_summary(cdr_text *t, const cdr_session *s, const figures *f)
{
    char n[32], m[32];
    int64_t n_dropped = 0;
    cdr_format_count(n, f->n_kept);
    cdr_format_count(m, f->n_tokens);
    cdr_text_printf(t, "%s, %s sample%s, %s tokens, %.1f %% trained; length p50 %lld, p95 %lld, max %lld", cdr_data_form(s->data), n, f->n_kept == 1 ? "" : "s", m,
                    100 * (double)f->n_trained / (double)CDR_MAX(f->n_tokens, (int64_t)1), (long long)quantile(f, 0.5), (long long)quantile(f, 0.95),
                    (long long)quantile(f, 1));
    for (int r = 0; r < CDR_N_DROPS; r++) n_dropped += f->dropped[r];
    if (n_dropped > 0) {
        cdr_format_count(n, n_dropped);
        cdr_text_printf(t, "; dropped %s (", n);
        for (int r = 0, some = 0; r < CDR_N_DROPS; r++) {
            if (f->dropped[r] == 0) continue;
            if (some++) cdr_text_append(t, "; ", 2);
            put_drops(t, s, f, (cdr_data_reason)r);
        }
        cdr_text_append(t, ")", 1);
    }
    cdr_text_append(t, "\n", 1);
    if (f->n_held > 0) {
        cdr_format_count(n, f->n_held);
        cdr_text_printf(t, "held out  %s samples (data.eval_fraction, data.eval)\n", n);
    }
}

static void put_chat(cdr_text *t, cdr_session *s)
{
    cdr_chat_spec c = cdr__session_chat(s);
    const char *system = c.system ? cdr_pool_printf(s->pool, ", system \"%s\"", c.system) : "";
    cdr_text_printf(t, "chat      %s, thinking %s, effort %s, tools %s%s; train_on %s, train_eos %s, mask_think %s; long_samples %s, sequence_length %lld\n", c.format,
                    c.thinking ? "on" : "off", word_of(s, "data.chat_options.thinking_effort"), word_of(s, "data.chat_options.tools"), system,
                    s->r.data.train_on == CDR_TRAIN_ON_AUTO ? "assistant (text: all)" : word_of(s, "data.train_on"), word_of(s, "data.train_eos"),
                    word_of(s, "data.mask_think"), word_of(s, "data.long_samples"), (long long)s->r.train.sequence_length);
    cdr_text_printf(t, "tokens    %s, %d ids; model %s\n", cdr_tokenizer_type(s->tok), cdr_tokenizer_vocab(s->tok), s->info->name);
}

/* ---- the view ---------------------------------------------------------------------------------------------------------------- */

/* Text on one line: line breaks and controls as \n, \t, \xNN; so is what is no UTF-8. */
static void put_visible(cdr_text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        int len = cdr_utf8_length(s + i, n - i);
        if (c == '\n') cdr_text_append(t, "\\n", 2);
        else if (c == '\t') cdr_text_append(t, "\\t", 2);
        else if (len == 0 || c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)s[i + 1] < 0xa0)) {
            for (int k = 0; k < CDR_MAX(len, 1); k++) cdr_text_printf(t, "\\x%02x", (unsigned char)s[i + (size_t)k]);
        } else cdr_text_append(t, s + i, (size_t)len);
        i += (size_t)CDR_MAX(len, 1);
    }
}

typedef struct { bool held; int64_t i, n; int32_t *ids; bool *trained; cdr_data_doc doc; } sample;

static sample take_sample(cdr_session *s, bool held, int64_t i, bool whole)
{
    sample x = { .held = held, .i = i, .doc = cdr_data_doc_at(s->data, held, i) };
    x.n = whole ? x.doc.n : CDR_MIN(x.doc.n, (int64_t)SHOW_TOKENS);
    x.ids = cdr_pool_alloc(s->pool, (size_t)x.n * sizeof *x.ids);
    x.trained = cdr_pool_alloc(s->pool, (size_t)x.n);
    cdr_data_doc_tokens(s->data, held, i, 0, x.n, x.ids, x.trained);
    return x;
}

static void put_sample(cdr_text *t, const cdr_session *s, const sample *x, bool colour, bool one_file)
{
    cdr_text place = { 0 }, run = { 0 };
    if (x->doc.line > 0 && one_file) cdr_text_printf(&place, "line %lld", (long long)x->doc.line);
    else if (x->doc.line > 0) cdr_text_printf(&place, "%s:%lld", x->doc.path, (long long)x->doc.line);
    else cdr_text_printf(&place, "%s", x->doc.path);
    cdr_text_printf(t, "%-9s ", place.s);
    for (int64_t i = 0; i < x->n;) {
        int64_t end = i;
        while (end < x->n && x->trained[end] == x->trained[i]) end++;
        run.n = 0;
        (void)cdr_tokenizer_decode(s->tok, x->ids + i, end - i, true, &run);
        if (x->trained[i]) cdr_text_printf(t, colour ? "\x1b[32m" : "[");
        put_visible(t, run.s ? run.s : "", run.n);
        if (x->trained[i]) cdr_text_printf(t, colour ? "\x1b[0m" : "]");
        i = end;
    }
    if (x->n < x->doc.n) cdr_text_printf(t, " ... %lld more tokens", (long long)(x->doc.n - x->n));
    cdr_text_printf(t, "   (%s trained: %lld of %lld tokens)\n", colour ? "green" : "[..]", (long long)x->doc.n_trained, (long long)x->doc.n);
    cdr_text_free(&place);
    cdr_text_free(&run);
}

static void json_sample(cdr_jw *w, const cdr_session *s, const sample *x)
{
    cdr_text piece = { 0 }, visible = { 0 };
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "path", x->doc.path);
    cdr_jw_int(w, "line", x->doc.line);
    cdr_jw_bool(w, "held_out", x->held);
    cdr_jw_int(w, "tokens", x->doc.n);
    cdr_jw_int(w, "trained_tokens", x->doc.n_trained);
    cdr_jw_begin(w, "ids", '[');
    for (int64_t i = 0; i < x->n; i++) cdr_jw_int(w, NULL, x->ids[i]);
    cdr_jw_end(w, ']');
    cdr_jw_begin(w, "labels", '[');                   /* as Hugging Face: -100 carries no loss */
    for (int64_t i = 0; i < x->n; i++) cdr_jw_int(w, NULL, x->trained[i] ? x->ids[i] : -100);
    cdr_jw_end(w, ']');
    cdr_jw_begin(w, "text", '[');
    for (int64_t i = 0; i < x->n; i++) {
        piece.n = visible.n = 0;
        (void)cdr_tokenizer_decode(s->tok, &x->ids[i], 1, true, &piece);
        put_visible(&visible, piece.s ? piece.s : "", piece.n);
        cdr_text_append(&visible, "", 1);
        cdr_jw_str(w, NULL, visible.s);
    }
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
    cdr_text_free(&piece);
    cdr_text_free(&visible);
}

/* Samples to show: the first n, or those of a line. */
static cdr_status choose(cdr_session *s, const cdr_data_check_args *a, sample **out, int *n, cdr_err *err)
{
    int64_t docs = cdr_data_docs(s->data, false), cap = 0, found = 0;
    *out = NULL;
    *n = 0;
    if (a->line <= 0) {
        for (int64_t i = 0; i < docs && i < a->show; i++) *CDR_PUSH(s->pool, *out, found, cap) = take_sample(s, false, i, false);
        *n = (int)found;
        return CDR_OK;
    }
    for (int held = 0; held < 2; held++)
        for (int64_t i = 0; i < cdr_data_docs(s->data, held); i++)
            if (cdr_data_doc_at(s->data, held, i).line == a->line) *CDR_PUSH(s->pool, *out, found, cap) = take_sample(s, held, i, true);
    const cdr_data_drop *drops;
    int64_t n_drops = cdr_data_drops(s->data, &drops);
    for (int64_t i = 0; i < n_drops && found == 0; i++)
        if (drops[i].line == a->line)
            CDR_FAIL_ID(err, CDR_EUSER, "data.no-line", "%s:%lld: was dropped: %s, %lld tokens", drops[i].path, (long long)a->line, cdr_data_reason_text(drops[i].reason),
                        (long long)drops[i].n);
    if (found == 0) CDR_FAIL_ID(err, CDR_EUSER, "data.no-line", "--line %lld: no sample begins at this line", (long long)a->line);
    *n = (int)found;
    return CDR_OK;
}

/* ---- check ---------------------------------------------------------------------------------------------------------------------- */

static void json_drops(cdr_jw *w, const cdr_session *s, const figures *f)
{
    const cdr_data_drop *drops;
    int64_t n_drops = cdr_data_drops(s->data, &drops);
    cdr_jw_begin(w, "dropped", '[');
    for (int r = 0; r < CDR_N_DROPS; r++) {
        if (f->dropped[r] == 0) continue;
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "reason", cdr_data_reason_text((cdr_data_reason)r));
        cdr_jw_int(w, "count", f->dropped[r]);
        cdr_jw_begin(w, "samples", '[');
        for (int64_t i = 0; i < n_drops; i++) {
            if ((int)drops[i].reason != r) continue;
            cdr_jw_begin(w, NULL, '{');
            cdr_jw_str(w, "path", drops[i].path);
            cdr_jw_int(w, "line", drops[i].line);
            cdr_jw_int(w, "tokens", drops[i].n);
            cdr_jw_end(w, '}');
        }
        cdr_jw_end(w, ']');
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
}

static void json_length(cdr_jw *w, const figures *f)
{
    histogram h = make_histogram(f);
    cdr_jw_begin(w, "length_tokens", '{');
    cdr_jw_int(w, "p50", quantile(f, 0.5));
    cdr_jw_int(w, "p95", quantile(f, 0.95));
    cdr_jw_int(w, "max", quantile(f, 1));
    cdr_jw_begin(w, "histogram", '[');
    for (int64_t i = 0; i < h.n; i++) {
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_int(w, "up_to", (h.first + i + 1) * h.width);
        cdr_jw_int(w, "count", h.count[i]);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
}

static void json_check(cdr_jw *w, cdr_session *s, const figures *f, const sample *shown, int n_shown)
{
    cdr_chat_spec c = cdr__session_chat(s);
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "format", cdr_data_form(s->data));
    cdr_jw_int(w, "samples", f->n_kept);
    cdr_jw_int(w, "held_out_samples", f->n_held);
    cdr_jw_int(w, "tokens", f->n_tokens);
    cdr_jw_int(w, "trained_tokens", f->n_trained);
    cdr_jw_real(w, "trained_share", (double)f->n_trained / (double)CDR_MAX(f->n_tokens, (int64_t)1));
    json_length(w, f);
    json_drops(w, s, f);
    cdr_jw_begin(w, "chat", '{');
    cdr_jw_str(w, "format", c.format);
    cdr_jw_bool(w, "thinking", c.thinking);
    cdr_jw_str(w, "thinking_effort", word_of(s, "data.chat_options.thinking_effort"));
    cdr_jw_str(w, "tools", word_of(s, "data.chat_options.tools"));
    cdr_jw_str(w, "system", c.system);
    cdr_jw_str(w, "train_on", s->r.data.train_on == CDR_TRAIN_ON_AUTO ? "assistant" : word_of(s, "data.train_on"));
    cdr_jw_str(w, "train_eos", word_of(s, "data.train_eos"));
    cdr_jw_str(w, "mask_think", word_of(s, "data.mask_think"));
    cdr_jw_end(w, '}');
    cdr_jw_str(w, "tokenizer", cdr_tokenizer_type(s->tok));
    cdr_jw_int(w, "sequence_length_tokens", s->r.train.sequence_length);
    cdr_jw_begin(w, "shown", '[');
    for (int i = 0; i < n_shown; i++) json_sample(w, s, &shown[i]);
    cdr_jw_end(w, ']');
    cdr_jw_end(w, '}');
}

/* What a run would say. */
static cdr_status fail_untrained(const cdr_session *s, const figures *f, cdr_err *err)
{
    const cdr_data_drop *drops;
    int64_t n_drops = cdr_data_drops(s->data, &drops);
    if (f->dropped[CDR_DROP_UNTRAINED] == 0 || s->r.data.untrained == 1) return CDR_OK;
    for (int64_t i = 0; i < n_drops; i++)
        if (drops[i].reason == CDR_DROP_UNTRAINED)
            CDR_FAIL_ID(err, CDR_EDATA, "data.nothing-trained", "%s:%lld: 0 of %lld tokens are trained (%lld such sample%s); a run would stop here. Mend the samples, or "
                        "data.untrained=drop", drops[i].path, (long long)drops[i].line, (long long)drops[i].n, (long long)f->dropped[CDR_DROP_UNTRAINED],
                        f->dropped[CDR_DROP_UNTRAINED] == 1 ? "" : "s");
    return CDR_OK;
}

static cdr_status check(cdr_session *s, const cdr_data_check_args *a, cdr_result *r, cdr_err *err)
{
    figures f;
    sample *shown;
    int n_shown;
    cdr_text t = { 0 }, json = { 0 };
    CDR_TRY(open_data(s, true, err));
    count(s, &f);
    CDR_TRY(choose(s, a, &shown, &n_shown, err));
    histogram h = make_histogram(&f);
    put_summary(&t, s, &f);
    put_chat(&t, s);
    if (f.n > 1) put_histogram(&t, &h);
    for (int i = 0; i < n_shown; i++) put_sample(&t, s, &shown[i], a->colour, f.one_file);
    json_check(&(cdr_jw){ .t = &json }, s, &f, shown, n_shown);
    r->text = t.s;
    r->json = json.s;
    return fail_untrained(s, &f, err);
}

cdr_status cdr_data_check(const cdr_data_check_args *a, cdr_result *r, cdr_err *err)
{
    cdr_session s;
    cdr_status st = open_recipe(&s, a->file, a->model, &a->common, err);
    if (st == CDR_OK) st = check(&s, a, r, err);
    cdr__session_close(&s);
    return st;
}

/* ---- pack ------------------------------------------------------------------------------------------------------------------------- */

/* A name a source, none twice, none "eval". */
static const char **pack_names(cdr_session *s)
{
    int n = s->r.data.train.n;
    const char **names = cdr_pool_alloc(s->pool, sizeof *names * (size_t)n);
    for (int i = 0; i < n; i++) {
        const char *name = s->r.data.train.s[i].name;
        bool taken = strcmp(name, "eval") == 0 || !cdr_plain_name(name);
        for (int k = 0; k < i; k++) taken |= strcmp(names[k], name) == 0;
        names[i] = taken ? cdr_pool_printf(s->pool, "train-%d", i) : name;
    }
    return names;
}

static cdr_status pack(cdr_session *s, const cdr_data_pack_args *a, cdr_result *r, cdr_err *err)
{
    CDR_TRY(open_data(s, false, err));
    int n_train = s->r.data.train.n, n;
    cdr_data_packed *files = cdr_pool_alloc(s->pool, sizeof *files * (size_t)(n_train + 1));
    CDR_TRY(cdr_data_write(s->data, a->out, pack_names(s), s->pool, files, &n, err));
    cdr_text t = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_int(&w, "dropped", cdr_data_stats(s->data)->n_dropped);
    cdr_jw_begin(&w, "files", '[');
    for (int i = 0; i < n; i++) {
        char docs[32], tokens[32], bytes[32];
        cdr_format_count(docs, files[i].n_documents);
        cdr_format_count(tokens, files[i].n_tokens);
        cdr_format_bytes(bytes, files[i].bytes);
        cdr_text_printf(&t, "wrote %s: %s documents, %s tokens, %.1f %% trained, %s%s\n", files[i].path, docs, tokens,
                        100 * (double)files[i].n_trained / (double)CDR_MAX(files[i].n_tokens, (int64_t)1), bytes, i < n_train ? "" : " (held out: data.eval)");
        cdr_jw_begin(&w, NULL, '{');
        cdr_jw_str(&w, "path", files[i].path);
        cdr_jw_str(&w, "use", i < n_train ? "train" : "eval");
        if (i < n_train) cdr_jw_real(&w, "weight", s->r.data.train.s[i].weight);
        cdr_jw_int(&w, "documents", files[i].n_documents);
        cdr_jw_int(&w, "tokens", files[i].n_tokens);
        cdr_jw_int(&w, "trained_tokens", files[i].n_trained);
        cdr_jw_int(&w, "size_bytes", files[i].bytes);
        cdr_jw_end(&w, '}');
    }
    cdr_jw_end(&w, ']');
    cdr_jw_end(&w, '}');
    if (cdr_data_stats(s->data)->n_dropped > 0) cdr_text_printf(&t, "dropped %lld (cadre data check says which)\n", (long long)cdr_data_stats(s->data)->n_dropped);
    r->text = t.s;
    r->json = json.s;
    return CDR_OK;
}

cdr_status cdr_data_pack(const cdr_data_pack_args *a, cdr_result *r, cdr_err *err)
{
    cdr_session s;
    cdr_status st = open_recipe(&s, a->recipe, NULL, &a->common, err);
    if (st == CDR_OK) st = pack(&s, a, r, err);
    cdr__session_close(&s);
    return st;
}

/* ---- inspect -------------------------------------------------------------------------------------------------------------------- */

bool cdr__inspect_data(const char *path, cdr_text *text, cdr_jw *w)
{
    cdr_pool *pool = cdr_pool_new();
    cdr_data_look look;
    char n[32];
    bool ok = cdr_data_sniff(path, pool, &look);
    if (ok) {
        cdr_format_bytes(n, look.bytes);
        cdr_text_printf(text, "data, %s, %s: %s", look.form, look.layout, n);
        cdr_format_count(n, look.n_records);
        if (look.n_records >= 0) cdr_text_printf(text, ", %s records", n);
        cdr_format_count(n, look.n_tokens);
        if (look.n_tokens >= 0) cdr_text_printf(text, ", %s tokens, %.1f %% trained", n, 100 * (double)look.n_trained / (double)CDR_MAX(look.n_tokens, (int64_t)1));
        cdr_text_append(text, "\n", 1);
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "kind", "data");
        cdr_jw_str(w, "format", look.form);
        cdr_jw_str(w, "layout", look.layout);
        cdr_jw_int(w, "size_bytes", look.bytes);
        if (look.n_records >= 0) cdr_jw_int(w, "records", look.n_records);
        if (look.n_tokens >= 0) cdr_jw_int(w, "tokens", look.n_tokens);
        if (look.n_trained >= 0) cdr_jw_int(w, "trained_tokens", look.n_trained);
        cdr_jw_end(w, '}');
    }
    cdr_pool_free(pool);
    return ok;
}
