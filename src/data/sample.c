/* sample.c: a record as a sample: text as it stands, or a conversation. Alpaca and the forms of two columns are here.
 *
 * Alpaca: instruction, or instruction, a line break and input, is what the user says; output is the answer; system; history is a list of pairs before it.
 * completion: prompt and completion are text as it stands, the prompt without loss; as lists of messages they are a conversation whose first part
 * carries no loss. query and response (or prompt and response) are a user's and an assistant's turn, with system and history.
 * Source: LLaMA-Factory's data/README, TRL's dataset formats, ms-swift's custom dataset page; spec/formats.md, 3.
 */
#include "data/internal.h"

static cdr_status history(cdr__talk *t, const cdr_json *record)
{
    const cdr_json *list = cdr__field(t->columns, record, "history");
    if (list && cdr_json_type(list) != CDR_JSON_ARRAY) return cdr_fail(t->err, CDR_EDATA, "data.field", "history: is no list of [question, answer]");
    for (int64_t i = 0; i < cdr_json_count(list); i++) {
        const cdr_json *pair = cdr_json_at(list, i);
        const char *question = cdr_json_str(cdr_json_at(pair, 0), NULL), *answer = cdr_json_str(cdr_json_at(pair, 1), NULL);
        if (cdr_json_count(pair) != 2 || !question || !answer)
            return cdr_fail(t->err, CDR_EDATA, "data.field", "history[%lld]: is no pair [question, answer] of texts", (long long)i);
        cdr__say(t, "user", question);
        cdr__say(t, "assistant", answer);
    }
    return CDR_OK;
}

static cdr_status field_text(cdr__talk *t, const cdr_json *record, const char *ours, bool needed, const char **out)
{
    const cdr_json *j = cdr__field(t->columns, record, ours);
    const char *name = cdr__column(t->columns, ours);
    *out = NULL;
    if (!j && needed) return cdr_fail(t->err, CDR_EDATA, "data.field", "%s: is missing. Add it, or name its field in columns", name);
    return cdr__want_text(t, j, name, out);
}

static cdr_status start(cdr__talk *t, const cdr_json *record)
{
    const char *system;
    CDR_TRY(field_text(t, record, "system", false, &system));
    if (system && *system) cdr__say(t, "system", system);
    return history(t, record);
}

static cdr_status read_alpaca(cdr__talk *t, const cdr_json *record)
{
    const char *instruction, *input, *output;
    CDR_TRY(start(t, record));
    CDR_TRY(field_text(t, record, "instruction", true, &instruction));
    CDR_TRY(field_text(t, record, "input", false, &input));
    CDR_TRY(field_text(t, record, "output", true, &output));
    cdr__say(t, "user", input && *input ? cdr_pool_printf(t->pool, "%s\n%s", instruction, input) : instruction);
    cdr__say(t, "assistant", output);
    return CDR_OK;
}

static cdr_status read_completion(cdr__talk *t, const cdr_json *record, cdr__sample *s)
{
    const cdr_json *prompt = cdr__field(t->columns, record, "prompt"), *completion = cdr__field(t->columns, record, "completion");
    if (cdr_json_type(prompt) == CDR_JSON_ARRAY || cdr_json_type(completion) == CDR_JSON_ARRAY) {
        s->chat = true;
        CDR_TRY(cdr__read_messages(t, prompt, cdr__column(t->columns, "prompt")));
        for (int64_t i = 0; i < t->n; i++) t->own[i] = (cdr__own){ true, 0 };
        return cdr__read_messages(t, completion, cdr__column(t->columns, "completion"));
    }
    if (completion) {
        CDR_TRY(field_text(t, record, "prompt", true, &s->prompt));
        return field_text(t, record, "completion", true, &s->text);
    }
    const char *question, *answer;
    s->chat = true;
    CDR_TRY(start(t, record));
    CDR_TRY(field_text(t, record, cdr__field(t->columns, record, "query") ? "query" : "prompt", true, &question));
    CDR_TRY(field_text(t, record, "response", true, &answer));
    cdr__say(t, "user", question);
    cdr__say(t, "assistant", answer);
    return CDR_OK;
}

static cdr_status check_pictures(cdr__talk *t, const cdr_json *record)
{
    static const char *const COLUMNS[] = { "images", "image", "videos", "audios" };
    for (int i = 0; i < CDR_COUNT(COLUMNS); i++) {
        const cdr_json *j = cdr_json_get(record, COLUMNS[i]);
        bool some = cdr_json_type(j) == CDR_JSON_STRING ? *cdr_json_str(j, "") != 0 : cdr_json_count(j) > 0;
        if (some) return cdr_fail(t->err, CDR_EDATA, "data.image", "%s: this version trains on text only. Leave such samples out", COLUMNS[i]);
    }
    return CDR_OK;
}

cdr_status cdr__sample_read(cdr_pool *pool, cdr__format f, const cdr__columns *c, const cdr_json *record, cdr__sample *s, cdr_err *err)
{
    cdr__talk t = { .pool = pool, .columns = c, .err = err };
    *s = (cdr__sample){ .chat = f == CDR__MESSAGES || f == CDR__SHAREGPT || f == CDR__ALPACA };
    if (cdr_json_type(record) != CDR_JSON_OBJECT) CDR_FAIL_ID(err, CDR_EDATA, "data.field", "the record is no object {...}");
    if (f == CDR__RECORDS) return field_text(&t, record, "text", true, &s->text);
    CDR_TRY(check_pictures(&t, record));
    if (f == CDR__MESSAGES) {
        const char *name = cdr__field(c, record, "messages") ? "messages" : cdr__field(c, record, "conversations") ? "conversations" : "messages";
        CDR_TRY(cdr__read_messages(&t, cdr__field(c, record, name), cdr__column(c, name)));
        if (c->n == 0 && strcmp(name, "messages") == 0) s->talk.record = record;
    } else if (f == CDR__SHAREGPT) CDR_TRY(cdr__read_sharegpt(&t, record));
    else if (f == CDR__ALPACA) CDR_TRY(read_alpaca(&t, record));
    else CDR_TRY(read_completion(&t, record, s));
    if (!s->chat) return CDR_OK;
    CDR_TRY(cdr__read_tools(&t, record, &s->talk.tools));
    if (t.n > 100000) CDR_FAIL_ID(err, CDR_EDATA, "data.field", "%lld messages in one conversation; at most 100,000 are read", (long long)t.n);
    s->talk.message = t.m;
    s->talk.n = (int)t.n;
    s->own = t.own;
    return CDR_OK;
}
