/* onboard_card.c: card.json: every claim about an onboarded model with its status, figure, and the command that checks it again.
 * Source of format and items: spec/interface.md, 7.4; the idea of verification cards: NVIDIA Megatron-Bridge (spec/formats.md, 6.1).
 */
#include "command/onboard.h"

static const struct { const char *id, *title; } items[CDR__ITEMS] = {
    [CDR__ITEM_CONFIG_KEYS] = { "config_keys", "every key of config.json is read, expected or harmless" },
    [CDR__ITEM_TENSORS_MATCHED] = { "tensors_matched", "every tensor is used once or carried, every part is filled once" },
    [CDR__ITEM_PARAMETERS] = { "parameters", "the description's parameters are those of the files" },
    [CDR__ITEM_DTYPES] = { "dtypes", "stored dtypes are those of the description, none narrower" },
    [CDR__ITEM_QUIRKS] = { "quirks", "paddings, extra axes and one-based lists are as described" },
    [CDR__ITEM_TOKENIZER] = { "tokenizer_roundtrip", "text becomes ids and the same text again, never a special id" },
    [CDR__ITEM_CHAT] = { "chat_render", "conversations render, and a user's text stays text" },
    [CDR__ITEM_TINY_PARITY] = { "tiny_parity", "the family at toy size agrees with the interpreter in double precision" },
    [CDR__ITEM_REFERENCE] = { "reference_parity", "logits agree with a reference, natural routing" },
    [CDR__ITEM_REFERENCE_FORCED] = { "reference_parity_forced", "logits agree with a reference, its routes given" },
    [CDR__ITEM_LAYERS] = { "layer_parity", "the residual stream behind every layer agrees with a reference, its routes given" },
    [CDR__ITEM_LORA_ZERO] = { "lora_zero", "LoRA with B = 0 has the base's bits" },
    [CDR__ITEM_FIRST_LOSS] = { "first_step_loss", "loss on English text before the first step" },
    [CDR__ITEM_EXPORT] = { "roundtrip_export", "written again, every file has the bytes that it had" },
    [CDR__ITEM_PLAN] = { "plan", "the recipe compiles and fits the machine" },
};
static const char *const words[CDR__STATUSES] = { "unverified", "verified", "failed", "unsupported", "not_applicable" };

void cdr__card_put(cdr__onboard *o, cdr__item item, cdr__status status, cdr__finding f)
{
    o->item[item].status = status;
    o->item[item].f = f;
    if (status == CDR__FAILED) cdr_log(CDR_LOG_WARNING, "%s: %s", items[item].id, f.detail ? f.detail : "failed");
}

void cdr__card_error(cdr__onboard *o, cdr__item item, cdr__status status, cdr_err *e)
{
    cdr__card_put(o, item, status, (cdr__finding){ .detail = cdr_pool_printf(o->pool, "%s [%s]", e->text, e->id) });
    *e = (cdr_err){ 0 };
}

int cdr__card_count(const cdr__onboard *o, cdr__status status)
{
    int n = 0;
    for (int i = 0; i < CDR__ITEMS; i++) n += o->item[i].status == status;
    return n;
}

static void write_model(const cdr__onboard *o, cdr_jw *w)
{
    const cdr_model_info *f = cdr_model_get_info(o->m);
    uint64_t hash = 0;
    cdr_err err = { 0 };
    cdr_jw_begin(w, "model", '{');
    cdr_jw_str(w, "name", f->name);
    cdr_jw_str(w, "family", f->family);
    cdr_jw_str(w, "source", o->dir);
    if (o->w && cdr_weights_hash(o->w, NULL, &hash, &err) == CDR_OK) cdr_jw_u64hex(w, "base_hash", hash);
    else cdr_jw_null(w, "base_hash");
    cdr_jw_u64hex(w, "description_hash", f->hash);
    cdr_jw_int(w, "parameters", f->n_params);
    cdr_jw_end(w, '}');
}

static void write_item(const cdr__onboard *o, int i, cdr_jw *w)
{
    const cdr__finding *f = &o->item[i].f;
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "id", items[i].id);
    cdr_jw_str(w, "title", items[i].title);
    cdr_jw_str(w, "status", words[o->item[i].status]);
    cdr_jw_str(w, "command", f->command ? f->command : cdr_pool_printf(o->pool, "cadre onboard %s --out %s", o->dir, o->out));
    if (f->unit) cdr_jw_real(w, "figure", f->figure);
    else cdr_jw_null(w, "figure");
    cdr_jw_str(w, "unit", f->unit);
    cdr_jw_str(w, "expected", f->expected);
    cdr_jw_str(w, "detail", f->detail);
    cdr_jw_end(w, '}');
}

cdr_status cdr__card_write(cdr__onboard *o, cdr_err *err)
{
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    char now[32];
    cdr_time_rfc3339(now);
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "format", "cadre-card");
    cdr_jw_int(&w, "version", 1);
    write_model(o, &w);
    cdr_jw_str(&w, "cadre", CDR_VERSION);
    cdr_jw_str(&w, "time", now);
    cdr_jw_begin(&w, "items", '[');
    for (int i = 0; i < CDR__ITEMS; i++) write_item(o, i, &w);
    cdr_jw_end(&w, ']');
    cdr_jw_begin(&w, "summary", '{');
    for (int s = 0; s < CDR__STATUSES; s++) cdr_jw_int(&w, words[s], cdr__card_count(o, (cdr__status)s));
    cdr_jw_end(&w, '}');
    cdr_jw_end(&w, '}');
    cdr_text_append(&t, "\n", 1);
    cdr_status st = cdr_file_write(cdr_pool_printf(o->pool, "%s/card.json", o->out), t.s, t.n, err);
    cdr_text_free(&t);
    return st;
}
