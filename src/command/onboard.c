/* onboard.c: a checkpoint directory in; its description, a ready recipe, the plan and a card of what was checked out.
 *
 *   config.json and tensors against the description, by name, shape and dtype; parameters counted; the text side; LoRA and loss by running it;
 *   the family at toy size; a reference dump, where one is given; the directory written again.
 * A check that fails does not stop the others: the card has them all, and the exit code is 1. Source: spec/interface.md, 2.4, 7.4.
 */
#include "command/onboard.h"
#include "command/model_open.h"
#include "plan/plan.h"

/* A wrong name of a reference is refused before anything is written. */
static cdr_status can_be_opened(const char *reference, cdr_err *err)
{
    cdr_st *st = NULL;
    if (!cdr_exists(reference))
        CDR_FAIL_ID(err, CDR_EDATA, "onboard.reference", "--verify %s: there is no such file. Take a dump of the reference, a .safetensors; doc/onboarding.md "
                    "says what is in it", reference);
    CDR_TRY(cdr_st_open(reference, &st, err));
    cdr_st_close(st);
    return CDR_OK;
}

enum { N_REFERENCE = 3 };         /* claims that need a dump */

static cdr_status read_directory(cdr__onboard *o, cdr_err *err)
{
    if (!cdr_is_dir(o->dir))
        CDR_FAIL_ID(err, CDR_EDATA, "onboard.no-directory", "%s: %s. Name the directory of a checkpoint in Hugging Face layout, that is with config.json and "
                    "*.safetensors",
                    o->dir, cdr_exists(o->dir) ? "is a file, a directory is expected" : "there is no such directory");
    CDR_TRY(cdr__readable(o->dir, err));
    if (o->verify) CDR_TRY(can_be_opened(o->verify, err));
    CDR_TRY(cdr_hf_open(o->dir, &o->d, err));
    cdr_model_spec spec = { .path = o->dir, .hf = o->d };
    const cdr_json *config = cdr_hf_config(o->d);
    if (config && !cdr_exists(cdr_pool_printf(o->pool, "%s/model.yaml", o->dir))) CDR_TRY(cdr_model_match_config(config, o->pool, &o->match, err));
    CDR_TRY(cdr_model_load(&spec, o->pool, &o->m, err));
    if (cdr_hf_count(o->d) == 0) CDR_FAIL_ID(err, CDR_EDATA, "onboard.no-weights", "%s: has a config.json and no weights (*.safetensors)", o->dir);
    return CDR_OK;
}

static void config_item(cdr__onboard *o)
{
    const char *const *note, *detail = "";
    int n = cdr_model_notes(o->m, &note), read = 0;
    for (int i = 0; i < n; i++) detail = cdr_pool_printf(o->pool, "%s%s%s", detail, i ? "; " : "", note[i]);
    for (int64_t i = 0; i < cdr_model_sizes(o->m); i++) {
        const char *value, *from;
        cdr_model_size(o->m, i, &value, &from);
        read += from && strcmp(from, "default") != 0;
    }
    cdr__card_put(o, CDR__ITEM_CONFIG_KEYS, CDR__VERIFIED, (cdr__finding){ .figure = read, .unit = "sizes read", .detail = detail });
}

/* Elements in the files, of tensors that are used: packed codes are two elements a byte, scales none. */
static int64_t count_elements(cdr__onboard *o, const cdr__names *a, cdr_err *err)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < cdr_hf_count(o->d); i++) {
        cdr_hf_tensor t;
        if (a->of[i] < 0 || a->role[i] == CDR__ROLE_SCALE || a->role[i] == CDR__ROLE_INVERSE) continue;
        if (cdr_hf_tensor_at(o->d, i, &t, err)) return -1;
        int64_t n = a->role[i] == CDR__ROLE_PACKED ? 2 : 1;
        for (int k = 0; k < t.t->n_dim; k++) n *= t.t->n[k];
        sum += n;
    }
    return sum;
}

/* Claims that cannot be looked at where the tensors are not the description's. */
static void leave_open(cdr__onboard *o, cdr__item first, cdr__item last)
{
    for (int i = (int)first; i <= (int)last; i++) cdr__card_put(o, (cdr__item)i, CDR__UNVERIFIED, (cdr__finding){ .detail = "tensors do not match" });
}

static void tensor_items(cdr__onboard *o)
{
    cdr_err err = { 0 };
    cdr__names a;
    if (cdr_weights_open(o->m, o->d, &o->w, &err)) {
        o->w = NULL;
        cdr__card_error(o, CDR__ITEM_TENSORS_MATCHED, CDR__FAILED, &err);
        leave_open(o, CDR__ITEM_PARAMETERS, CDR__ITEM_QUIRKS);
        return;
    }
    const cdr_weights_stat *s = cdr_weights_get_stat(o->w);
    cdr__card_put(o, CDR__ITEM_TENSORS_MATCHED, CDR__VERIFIED,
                  (cdr__finding){ .figure = (double)s->n_tensors, .unit = "tensors",
                                  .detail = cdr_pool_printf(o->pool, "%lld used, %lld carried, %lld optional parts absent", (long long)s->n_used,
                                                            (long long)s->n_carried, (long long)s->n_absent) });
    int64_t want = cdr_model_get_info(o->m)->n_params, have = cdr__names_audit(o->m, o->d, o->pool, &a, &err) == CDR_OK ? count_elements(o, &a, &err) : -1;
    cdr__card_put(o, CDR__ITEM_PARAMETERS, have == want ? CDR__VERIFIED : CDR__FAILED,
                  (cdr__finding){ .figure = (double)have, .unit = "elements", .expected = cdr_pool_printf(o->pool, "%lld", (long long)want),
                                  .detail = have < 0 ? cdr_pool_strdup(o->pool, err.text) : "as stored, padding too" });
    const char *detail = "";
    for (int i = 0; i < s->n_formats; i++)
        detail = cdr_pool_printf(o->pool, "%s%s%lld %s", detail, i ? ", " : "", (long long)s->format[i].tensors, s->format[i].name);
    cdr__card_put(o, CDR__ITEM_DTYPES, CDR__VERIFIED, (cdr__finding){ .figure = s->n_formats, .unit = "formats", .detail = detail });
    cdr_text scratch = { 0 };
    cdr_jw w = { .t = &scratch };
    cdr_jw_begin(&w, NULL, '[');
    const char *quirks = cdr__quirks(o->m, o->pool, &w);
    cdr_text_free(&scratch);
    cdr__card_put(o, CDR__ITEM_QUIRKS, CDR__VERIFIED, (cdr__finding){ .detail = *quirks ? quirks : "none" });
}

static cdr_status plan_item(cdr__onboard *o, cdr_err *err)
{
    cdr_result r = { 0 };
    cdr_plan_args a = { .common = { .quiet = true }, .recipe = o->recipe };
    cdr_err e = { 0 };
    const char *command = cdr_pool_printf(o->pool, "cadre plan %s", o->recipe);
    cdr_status st = cdr_plan(&a, &r, &e), wrote = CDR_OK;
    if (st != CDR_OK) {
        cdr__card_error(o, CDR__ITEM_PLAN, CDR__FAILED, &e);
    } else {
        const cdr_json *root, *fits = NULL;
        if (cdr_json_parse(o->pool, r.json, strlen(r.json), "plan", &root, &e) == CDR_OK) fits = cdr_json_get(root, "fits");
        o->fits = cdr_json_bool(fits, false);
        const char *detail = o->fits ? "fits" : "compiles, and does not fit: plan.json has what would";
        cdr__card_put(o, CDR__ITEM_PLAN, o->fits ? CDR__VERIFIED : CDR__UNVERIFIED, (cdr__finding){ .detail = detail });
        wrote = cdr_file_write(cdr_pool_printf(o->pool, "%s/plan.json", o->out), r.json, strlen(r.json), err);
    }
    o->item[CDR__ITEM_PLAN].f.command = command;
    cdr_result_free(&r);
    return wrote;
}

/* ---- what it says -------------------------------------------------------------------------------------------------------------------- */

/* What was checked, one figure each. */
static void say_checked(const cdr__onboard *o, cdr_text *t)
{
    const char *sep = "";
    cdr_text_printf(t, "checked   ");
    if (o->item[CDR__ITEM_TOKENIZER].status == CDR__VERIFIED) cdr_text_printf(t, "tokenizer round trip 10,000 strings"), sep = ", ";
    if (o->item[CDR__ITEM_CHAT].status == CDR__VERIFIED) cdr_text_printf(t, "%schat %.0f cases", sep, o->item[CDR__ITEM_CHAT].f.figure), sep = ", ";
    if (o->item[CDR__ITEM_EXPORT].status == CDR__VERIFIED) cdr_text_printf(t, "%sround-trip export byte-equal", sep), sep = ", ";
    if (o->item[CDR__ITEM_LORA_ZERO].status == CDR__VERIFIED) cdr_text_printf(t, "%sLoRA B = 0 bit-equal", sep), sep = ", ";
    if (o->item[CDR__ITEM_TINY_PARITY].status == CDR__VERIFIED) cdr_text_printf(t, "%stiny parity %.1e", sep, o->item[CDR__ITEM_TINY_PARITY].f.figure), sep = ", ";
    if (o->item[CDR__ITEM_FIRST_LOSS].f.unit) cdr_text_printf(t, "%sfirst-step loss %.4f", sep, o->item[CDR__ITEM_FIRST_LOSS].f.figure), sep = ", ";
    cdr_text_printf(t, "%s\n", *sep ? "" : "nothing that can be run");
    const cdr__finding *natural = &o->item[CDR__ITEM_REFERENCE].f;
    if (o->verify && natural->unit)
        cdr_text_printf(t, "reference logits %.1e (%s); routes given %.1e, worst layer %.1e\n", natural->figure, natural->detail,
                        o->item[CDR__ITEM_REFERENCE_FORCED].f.figure, o->item[CDR__ITEM_LAYERS].f.figure);
}

static void say(const cdr__onboard *o, cdr_text *t)
{
    const cdr_model_info *f = cdr_model_get_info(o->m);
    char n[32], p[32];
    cdr_format_count(n, cdr_hf_count(o->d));
    cdr_format_count(p, f->n_params);
    bool matched = o->item[CDR__ITEM_TENSORS_MATCHED].status == CDR__VERIFIED;
    cdr_text_printf(t, "matched   %s by %s; ", f->name, o->match.name ? o->match.by : "model.yaml");
    if (matched) cdr_text_printf(t, "%s of %s tensors, each once; %s parameters\n", n, n, p);
    else cdr_text_printf(t, "%s tensors do not match the description\n", n);
    say_checked(o, t);
    int open = cdr__card_count(o, CDR__UNVERIFIED), failed = cdr__card_count(o, CDR__FAILED);
    cdr_text_printf(t, "wrote     %s/model.yaml recipe.yaml plan.json card.json (%d verified, %d unverified", o->out, cdr__card_count(o, CDR__VERIFIED), open);
    if (failed > 0) cdr_text_printf(t, ", %d FAILED", failed);
    int others = open - (o->verify ? 0 : N_REFERENCE);                     /* without a dump three are open anyway */
    cdr_text_printf(t, "%s%s)\n", o->verify ? "" : ": reference parity, pass --verify", others > 0 ? "; card.json says why the others are" : "");
}

static void tell(const cdr__onboard *o, cdr_text *json)
{
    const cdr_model_info *f = cdr_model_get_info(o->m);
    cdr_jw w = { .t = json };
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "model", f->name);
    cdr_jw_str(&w, "family", f->family);
    cdr_jw_str(&w, "matched_by", o->match.name ? o->match.by : "model.yaml");
    cdr_jw_int(&w, "tensors", cdr_hf_count(o->d));
    cdr_jw_int(&w, "parameters", f->n_params);
    cdr_jw_str(&w, "out", o->out);
    cdr_jw_str(&w, "card", cdr_pool_printf(o->pool, "%s/card.json", o->out));
    cdr_jw_int(&w, "verified", cdr__card_count(o, CDR__VERIFIED));
    cdr_jw_int(&w, "unverified", cdr__card_count(o, CDR__UNVERIFIED));
    cdr_jw_int(&w, "failed", cdr__card_count(o, CDR__FAILED));
    cdr_jw_bool(&w, "fits", o->fits);
    cdr_jw_end(&w, '}');
}

static cdr_status run(cdr__onboard *o, cdr_text *text, cdr_text *json, cdr_err *err)
{
    cdr_machine machine;
    CDR_TRY(read_directory(o, err));
    if (o->machine) CDR_TRY(cdr_machine_load(o->machine, o->pool, &machine, err));      /* a wrong name is refused before anything is written */
    CDR_TRY(cdr_make_dirs(o->out, err));
    CDR_TRY(cdr__onboard_files(o, err));
    config_item(o);
    tensor_items(o);
    cdr__onboard_text(o);
    CDR_TRY(plan_item(o, err));
    cdr__onboard_tiny(o);
    if (o->w) {
        cdr__onboard_lora(o);
        cdr__onboard_export(o);
        cdr__onboard_verify(o);
    } else leave_open(o, CDR__ITEM_REFERENCE, CDR__ITEM_EXPORT);
    CDR_TRY(cdr__card_write(o, err));
    say(o, text);
    tell(o, json);
    int failed = cdr__card_count(o, CDR__FAILED);
    if (failed > 0)
        CDR_FAIL_ID(err, CDR_EUSER, "onboard.failed", "%s: %d of %d claims failed; %s/card.json has each with its figure", o->dir, failed, (int)CDR__ITEMS, o->out);
    return CDR_OK;
}

cdr_status cdr_onboard(const cdr_onboard_args *a, cdr_result *r, cdr_err *err)
{
    cdr__onboard o = { .dir = a->dir, .out = a->out, .verify = a->verify, .common = &a->common, .machine = a->machine, .devices = a->devices,
                       .pool = cdr_pool_new() };
    cdr_text text = { 0 }, json = { 0 };
    cdr_status st = run(&o, &text, &json, err);
    r->text = text.s;
    r->json = json.s;
    if (o.w) cdr_weights_close(o.w);
    cdr__session_close(&o.text);
    if (o.d) cdr_hf_close(o.d);
    cdr_pool_free(o.pool);
    return st;
}
