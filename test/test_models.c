/* test_models.c: descriptions: exact parameter counts by hand, names, schedules, expressions; everything unknown or not in
 * this version is refused by a message that says so; the forward of each mode builds with the right shapes and parameters.
 * The released families are in test_families.c. */
#include "models/model_parts.h"
#include "test.h"

static cdr_pool *pool;
static cdr_err err;
static cdr_model *m;

static const char *const dense =
    "description: 1\nname: t\nindex_base: 1\n"
    "sizes: {hidden: 8, vocab: 16, n_layers: 6, eps: 1.0e-5, picks: [2, 5], few: 2, mla: {heads: 2, kv_lora: 4, nope: 2, ext: 2, v: 3}, glu: {width: 5}}\n"
    "layers: {mixer: {mla: rest}, ffn: {dense: first few, wide: rest}, residual: prenorm}\n"
    "blocks:\n  mla: {type: mla, position: {rope: half, theta: 100}}\n  dense: {type: glu}\n  wide: {type: glu, width: \"2*few + round_up(few, 8)\"}\n"
    "prefix: lm.\nunder: {layer: \"model.layers.{layer}.\", mla: self_attn., glu: mlp.}\n"
    "tensors:\n"
    "  model: {embed: [embed.weight, [vocab, hidden]], head: [head.weight, [vocab, hidden]], norm: [norm.weight, [hidden]]}\n"
    "  layer: {\"norm.input|post_attention\": [\"{}_layernorm.weight\", [hidden]]}\n"
    "  mla: {q: [q.weight, [heads*(nope+ext), hidden]], kv_a: [kv_a.weight, [kv_lora+ext, hidden]], kv_a_norm: [kv_n.weight, [kv_lora]],\n"
    "        kv_b: [kv_b.weight, [heads*(nope+v), kv_lora]], o: [o.weight, [hidden, heads*v]]}\n"
    "  glu: {\"gate|up\": [\"{}_proj.weight\", [width, hidden]], down: [down_proj.weight, [hidden, width]]}\n"
    "tokenizer: {type: byte}\n";

static const char *edit(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    T_CHECK(at != NULL);
    if (!at) return text;
    return cdr_pool_printf(pool, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static cdr_status load_text(const char *text, const cdr_pairs *sizes, const char *layers)
{
    cdr_model_spec s = { .path = "t.yaml", .sizes = sizes, .layers = layers };
    err = (cdr_err){ 0 };
    return cdr_model_parse(&s, text, strlen(text), "t.yaml", pool, &m, &err);
}

static void refused(const char *from, const char *to, const char *id, const char *words)
{
    T_CHECK(load_text(edit(dense, from, to), NULL, NULL) != CDR_OK);
    T_STR(err.id, id);
    T_HAS(err.text, words);
}

static const cdr__tensor *tensor(const char *name)
{
    for (int64_t i = 0; i < m->n_tensors; i++) if (strcmp(m->tensor[i].name, name) == 0) return &m->tensor[i];
    T_STR("no tensor", name);
    return &m->tensor[0];
}

/* ---- counts and names ---------------------------------------------------------------------------------------------------- */

static void built_in_models_have_their_exact_counts(void)
{
    /* tiny-dense: embedding and head 2 x 512 x 128, last norm 128; a layer: norms 2 x 128, q 2 (32 + 32) x 128, kv_a (64 + 32) x 128,
     * its norm 64, kv_b 2 (32 + 64) x 64, o 128 x 2 x 64, glu 3 x 384 x 128 */
    int64_t layer = 256 + 128 * 128 + 96 * 128 + 64 + 192 * 64 + 128 * 128 + 3 * 384 * 128;
    cdr_model_spec s = { .path = "tiny-dense" };
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    const cdr_model_info *f = cdr_model_get_info(m);
    T_CHECK(f->n_params == 2 * 512 * 128 + 128 + 4 * layer);
    T_CHECK(f->n_active == f->n_params - 512 * 128);
    T_CHECK(f->matmul_params == (double)(512 * 128 + 4 * (layer - 256 - 64)));
    T_CHECK(f->n_layers == 4 && f->n_kinds == 1 && f->kind[0].n == 4 && f->n_tensors == 3 + 4 * 10);
    T_STR(f->tokenizer, "byte");
    T_HAS(cdr_model_summary(m, pool), "tiny-dense: 4 layers (4 MLA), 951,680 parameters (886,144 active)");
    T_CHECK(cdr_model_pair_flop(m) == 4.0 * 2 * 2 * (32 + 32 + 64));
    s.path = "tiny-test";
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    f = cdr_model_get_info(m);
    /* 2 x 512 x 128, 128; both layers: 256, kv_a 48 x 128, 32, kv_b 64 x 32, o 128 x 32, glu 3 x 512 x 128; low: q_a 48 x 128, 48, q_b 64 x 48; mla: q 64 x 128 */
    T_CHECK(f->n_params == 2 * 65536 + 128 + 2 * (256 + 48 * 128 + 32 + 64 * 32 + 128 * 32 + 3 * 65536) + 48 * 128 + 48 + 64 * 48 + 64 * 128);
}

static void names_shapes_units(void)
{
    T_CHECK(load_text(dense, NULL, NULL) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    const cdr__tensor *t = tensor("lm.model.layers.3.self_attn.kv_b.weight");
    T_CHECK(t->need->n[0] == 10 && t->need->n[1] == 4 && t->stored == 40 && t->need->block_rows == 5 && t->unit == 4 && t->layer == 3 && t->dtype == CDR_BF16);
    T_CHECK(tensor("lm.embed.weight")->unit == 0 && tensor("lm.head.weight")->unit == 7 && tensor("lm.norm.weight")->unit == 7);
    T_CHECK(tensor("lm.model.layers.0.input_layernorm.weight")->need->n[0] == 8);
    T_CHECK(tensor("lm.model.layers.1.mlp.up_proj.weight")->need->n[0] == 5);      /* dense: the size glu.width */
    T_CHECK(tensor("lm.model.layers.2.mlp.up_proj.weight")->need->n[0] == 12);     /* wide: its own attribute */
    int64_t per_layer = 16 + 8 * 8 + 6 * 8 + 4 + 10 * 4 + 8 * 6;
    T_CHECK(m->info.n_params == 2 * 16 * 8 + 8 + 6 * per_layer + 2 * 3 * 5 * 8 + 4 * 3 * 12 * 8);
}

static void schedules(void)
{
    T_CHECK(load_text(edit(dense, "{dense: first few, wide: rest}", "{wide: every 2 from 1, dense: rest}"), NULL, NULL) == CDR_OK);
    for (int i = 0; i < 6; i++) T_STR(m->block[m->layer[i].ffn].name, i % 2 ? "wide" : "dense");
    T_CHECK(load_text(edit(dense, "{dense: first few, wide: rest}", "{wide: picks, dense: rest}"), NULL, NULL) == CDR_OK);
    for (int i = 0; i < 6; i++) T_STR(m->block[m->layer[i].ffn].name, i == 1 || i == 4 ? "wide" : "dense");         /* one-based list */
    T_CHECK(load_text(edit(dense, "{dense: first few, wide: rest}", "{wide: [1, n_layers], dense: rest}"), NULL, NULL) == CDR_OK);
    T_STR(m->block[m->layer[0].ffn].name, "wide");
    T_STR(m->block[m->layer[5].ffn].name, "wide");
    refused("{dense: first few, wide: rest}", "{dense: first few}", "model.bad-layer", "layer 2 has no ffn");
    refused("{dense: first few, wide: rest}", "{dense: first 3, wide: every 2 from 0}", "model.bad-layer", "layer 0 has two blocks, dense and wide");
    refused("{dense: first few, wide: rest}", "{dense: [0, 1], wide: rest}", "model.bad-layer", "layer 0 of the list is not among 6 layers (index_base 1)");
    refused("{dense: first few, wide: rest}", "{mla: rest}", "model.unknown-block", "mla is no ffn block");
    refused("{dense: first few, wide: rest}", "{dense: rest, wide: rest}", "model.bad-value", "two blocks take the rest");
    refused("{dense: first few, wide: rest}", "{dense: sometimes, wide: rest}", "model.bad-value", "is no layer rule");
}

static void slices_keep_their_indices(void)
{
    T_CHECK(load_text(dense, NULL, "1-2,last") == CDR_OK);
    T_CHECK(m->info.n_layers == 3 && m->layer[0].index == 1 && m->layer[2].index == 5);
    T_CHECK(tensor("lm.model.layers.5.self_attn.o.weight")->unit == 3);
    T_CHECK(load_text(dense, NULL, "0-9") == CDR_EUSER);
    T_HAS(err.text, "no layer set of 6 layers");
    bool in[8];
    T_CHECK(cdr__layer_set("every 4 from 3", 8, in) && in[3] && in[7] && !in[0] && !in[4]);
    T_CHECK(cdr__layer_set("0-3,5,last", 8, in) && in[0] && in[3] && !in[4] && in[5] && in[7]);
    T_CHECK(cdr__layer_set("all", 8, in) && in[0] && in[7]);
    const char *const bad[] = { "", "8", "3-1", "a", "0,,1", "every 0 from 1", "every 2", "-1", "1-", "last-0" };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) if (cdr__layer_set(bad[i], 8, in)) T_STR("taken", bad[i]);
}

static void expressions(void)
{
    T_CHECK(load_text(dense, NULL, NULL) == CDR_OK);
    struct { const char *text; int64_t x; } good[] = { { "2+3*4", 14 }, { "(2+3)*4", 20 }, { "hidden//3", 2 }, { "round_up(hidden+1, 4*2)", 16 }, { "10-4-3", 3 },
                                                      { "mla.heads*(mla.nope+mla.ext)", 8 }, { " 7 ", 7 }, { "((1))", 1 }, { "2*round_up(3,2)//4", 2 } };
    for (int i = 0; i < (int)(sizeof good / sizeof *good); i++) {
        int64_t x = -1;
        err = (cdr_err){ 0 };
        T_CHECK(cdr__expr(&m->d, NULL, good[i].text, "here", &x, &err) == CDR_OK);
        T_NEAR(x, good[i].x, 0);
    }
    const char *const bad[] = { "", "1+", "*2", "(1", "1)", "1 2", "round_up(1)", "round_up 3", "1//0", "nosuch", "eps",
                                "picks", "9223372036854775807+1", "99999999999999999999", "1,2", "-1", "2(3)", "(1,2)" };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        int64_t x;
        err = (cdr_err){ 0 };
        if (cdr__expr(&m->d, NULL, bad[i], "here", &x, &err) == CDR_OK) T_STR("taken", bad[i]);
        T_HAS(err.text, "here");
    }
}

static void sizes_may_be_overridden(void)
{
    cdr_pair p[] = { { "hidden", "16" }, { "glu.width", "7" }, { "picks", "[1]" } }, unknown[] = { { "hiden", "16" } }, kind[] = { { "picks", "3" } };
    cdr_pairs all = { p, 3 }, bad = { unknown, 1 }, wrong = { kind, 1 };
    T_CHECK(load_text(dense, &all, NULL) == CDR_OK && m->info.hidden == 16);
    T_CHECK(tensor("lm.model.layers.0.mlp.gate_proj.weight")->need->n[0] == 7);
    uint64_t h = m->info.hash;
    T_CHECK(load_text(dense, NULL, NULL) == CDR_OK && m->info.hash != h);
    h = m->info.hash;
    T_CHECK(load_text(dense, NULL, NULL) == CDR_OK && m->info.hash == h);
    T_CHECK(load_text(dense, &bad, NULL) == CDR_EUSER);
    T_HAS(err.text, "has no size hiden. Did you mean hidden?");
    T_CHECK(load_text(dense, &wrong, NULL) == CDR_EUSER);
    T_HAS(err.text, "expected a list");
}

/* ---- strict ------------------------------------------------------------------------------------------------------------------ */

static void unknown_things_are_refused(void)
{
    refused("prefix: lm.", "prefixx: lm.", "model.unknown-key", "unknown section prefixx. Did you mean prefix?");
    refused("{type: glu}", "{type: glu, widht: 3}", "model.unknown-key", "have no attribute widht. Did you mean width?");
    refused("{type: glu}", "{type: gluu}", "model.unknown-block", "unknown type gluu. Did you mean glu?");
    refused("q: [q.weight", "qq: [q.weight", "model.unknown-part", "qq is no part of mla");
    refused("  layer: {", "  player: {", "model.unknown-block", "tensors.player");
    refused("residual: prenorm", "residul: prenorm", "model.unknown-key", "layers.residul");
    refused("description: 1", "description: 2", "model.version", "format 1");
    refused("hidden: 8,", "", "model.bad-size", "size hidden is missing");
    refused("heads: 2,", "", "model.missing-attribute", "has no heads. Give it here, or as size mla.heads");
    refused("name: t\n", "", "model.missing-section", "name is missing");
    refused("{type: byte}", "{type: bytes}", "model.bad-value", "tokenizer type");
    refused("hidden: 8,", "hidden: eight,", "model.bad-size", "size hidden");
    refused("hidden: 8,", "hidden: 8, hiden: 16,", "model.unknown-size", "nothing reads size hiden. Did you mean hidden");
    refused("prefix: lm.", "prefix: [lm.]", "model.bad-value", "prefix is a text");
    refused("tokenizer: {type: byte}\n", "tokenizer: {type: byte}\nchat: {format: k3xtml}\n", "model.bad-value",
            "not among none, k3_xtml, kimi_k2, chatml, jinja. Did you mean k3_xtml?");
    refused("under: {", "under: {gluu: x., ", "model.unknown-block", "under.gluu");
}

static void rows_and_parts_must_meet(void)
{
    refused("down: [down_proj.weight, [hidden, width]]", "\"down\": [up_proj.weight, [hidden, width]]", "model.bad-row", "two parts have the tensor name");
    refused(", down: [down_proj.weight, [hidden, width]]", "", "model.missing-part", "part down of block dense has no row in tensors.glu");
    refused("down: [down_proj.weight, [hidden, width]]", "down: [down_proj.weight, [width, hidden]]", "model.bad-shape",
            "down of block dense is [5, 8] here, the block needs [8, 5]");
    refused("norm: [norm.weight, [hidden]]", "norm: [norm.weight, [hidden, 1]]", "model.bad-shape", "is [8, 1] here, the block needs [8]");
    refused("norm: [norm.weight, [hidden]]", "norm: [norm.weight]", "model.bad-row", "a tensor row is [name, [shape]");
    refused("\"gate|up\": [\"{}_proj.weight\"", "\"gate|up\": [\"proj.weight\"", "model.bad-row", "alternatives need a {}");
    refused("o: [o.weight", "o: [\"{expert}.weight\"", "model.bad-row", "o of block mla is no expert's");
    refused("o: [o.weight", "o: [\"{head}.weight\"", "model.bad-row", "only {layer}, {expert} and {}");
    refused("heads*(nope+ext), hidden]", "heads*(nop+ext), hidden]", "model.unknown-size", "t.yaml:15:9: nop is no size of this description. Did you mean nope");
}

static void formats_and_options(void)
{
    const char *row = "norm: [norm.weight, [hidden]]";
    struct { const char *format; int trains; } ok[] = { { "F32", CDR_F32 }, { "BF16", CDR_BF16 }, { "F16", CDR_F16 }, { "BF16|MXFP4", CDR_BF16 },
                                                        { "F32|BF16", CDR_F32 }, { "BF16|FP8_128", CDR_BF16 }, { "FP8_128", CDR_BF16 } };
    for (int i = 0; i < (int)(sizeof ok / sizeof *ok); i++) {
        const char *from = i == 3 ? "down: [down_proj.weight, [hidden, width]]" : row;
        const char *to = i == 3 ? "down: [down_proj.weight, [hidden, width], BF16|MXFP4]" : cdr_pool_printf(pool, "norm: [norm.weight, [hidden], %s]", ok[i].format);
        const char *text = i == 3 ? edit(dense, "glu: {width: 5}", "glu: {width: 32}") : dense;
        T_CHECK(load_text(edit(text, from, to), NULL, i == 3 ? "0" : NULL) == CDR_OK);
        if (err.status) T_STR(err.text, ok[i].format);
        T_CHECK(tensor(i == 3 ? "lm.model.layers.0.mlp.down_proj.weight" : "lm.norm.weight")->dtype == ok[i].trains);
    }
    refused(row, "norm: [norm.weight, [hidden], F31]", "model.bad-value", "dtype \"F31\" is not F32");
    refused(row, "norm: [norm.weight, [hidden], \"BF16|\"]", "model.bad-value", "is not F32");
    refused(row, "norm: [norm.weight, [hidden], U8]", "model.not-in-version", "dtype \"U8\" is not in this version for a trained tensor");
    refused("down: [down_proj.weight, [hidden, width]]", "down: [down_proj.weight, [hidden, width], BF16|MXFP4]", "model.bad-shape", "MXFP4 packs 32 at a time");
    /* as stored: padding and further axes count, the parameter stays */
    T_CHECK(load_text(dense, NULL, NULL) == CDR_OK);
    int64_t bare = m->info.n_params;
    T_CHECK(load_text(edit(dense, row, "norm: [norm.weight, [hidden], F32, {stored: [1, \"round_up(hidden, 128)\"], fill: 0}]"), NULL, NULL) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    T_CHECK(m->info.n_params == bare + 120 && tensor("lm.norm.weight")->stored == 128 && tensor("lm.norm.weight")->need->n[0] == 8);
    T_CHECK(load_text(edit(dense, row, "norm: [norm.weight, [hidden], BF16, {place: replicate}]"), NULL, NULL) == CDR_OK);
    T_CHECK(tensor("lm.norm.weight")->place == CDR_PLACE_REPLICATE && tensor("lm.head.weight")->place == CDR_PLACE_SHARD);
    T_CHECK(load_text(edit(dense, "\"gate|up\": [\"{}_proj.weight\", [width, hidden]]",
                           "gate: [gu.weight, [width, hidden], BF16, {split: [0, 2, 0]}], "
                           "up: [gu.weight, [width, hidden], BF16, {split: [0, 2, 1]}]"), NULL, NULL) == CDR_OK);
    T_CHECK(tensor("lm.model.layers.0.mlp.gu.weight#1")->need->n[0] == 5);
    refused(row, "norm: [norm.weight, [hidden], BF16, {stord: [8]}]", "model.unknown-key", "a tensor row has no stord. Did you mean stored?");
    refused(row, "norm: [norm.weight, [hidden], BF16, {stored: [4]}]", "model.bad-shape", "is stored as [4], which does not hold [8]");
    refused(row, "norm: [norm.weight, [hidden], BF16, {fill: 0}]", "model.bad-row", "fill is the number that pads");
    refused(row, "norm: [norm.weight, [hidden], BF16, {optional: x}]", "model.bad-row", "optional is the number");
    refused(row, "norm: [norm.weight, [hidden], BF16, {optional: 1}]", "model.bad-row", "cannot be absent");
    refused(row, "norm: [norm.weight, [hidden], BF16, {place: somewhere}]", "model.bad-row", "place is shard, replicate or expert");
    refused(row, "norm: [norm.weight, [hidden], BF16, {place: expert}]", "model.bad-row", "rows with {expert}");
    refused(row, "norm: [norm.weight, [hidden], BF16, {split: [0, 2]}]", "model.bad-row", "split is [axis, n, i]");
    refused(row, "norm: [norm.weight, [hidden], BF16, {split: [1, 2, 0]}]", "model.bad-row", "split is [axis, n, i]");
    refused(row, "norm: [norm.weight, [hidden], BF16, {split: [0, 2, 2]}]", "model.bad-row", "split is [axis, n, i]");
}

/* What only a directory uses is known and its form is checked; a default of config is a size. */
static void sections_of_a_directory(void)
{
    const char *good = "match: {architectures: [A], model_type: [a]}\ncarry: [v.*]\nserve: {sglang: [o]}\n"
                       "config: {hidden: hidden_size | d_model, glu.width: \"ffn = 7\", rope_theta: rope_theta = 100}\nprefix: lm.";
    T_CHECK(load_text(edit(edit(dense, "prefix: lm.", good), "theta: 100", "theta: rope_theta"), NULL, NULL) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    T_CHECK(tensor("lm.model.layers.0.mlp.up_proj.weight")->need->n[0] == 5);                /* sizes win over a default */
    refused("prefix: lm.", "match: {architecture: [A]}", "model.unknown-key", "Did you mean architectures?");
    refused("prefix: lm.", "match: {architectures: A}", "model.bad-value", "match.architectures is a list");
    refused("prefix: lm.", "carry: v.*", "model.bad-value", "carry is a list");
    refused("prefix: lm.", "serve: {sglang: o}", "model.bad-value", "serve.sglang is a list");
    refused("prefix: lm.", "config: {hidden: hidden_size |}", "model.bad-value", "is not \"key | alias = default\"");
    refused("prefix: lm.", "config: {hidden: \"= 5\"}", "model.bad-value", "is not \"key | alias = default\"");
    refused("prefix: lm.", "config: {hidden: hidden_size = wide}", "model.bad-value", "is no number of at least 0");
    refused("{type: byte}", "{type: byte, files: x}", "model.unknown-key", "tokenizer has no files. Did you mean file?");
}

static void what_is_not_here_yet_says_so(void)
{
    refused("{type: glu}", "{type: glu, activation: gelu}", "model.bad-value", "activation of block dense is silu, or {type: situ");
    refused("{type: glu}", "{type: glu, activation: {type: situ, bta: 4.0}}", "model.unknown-key", "activation has no bta. Did you mean beta?");
    refused("{type: glu}", "{type: glu, activation: {type: situ, beta: 0}}", "model.bad-value", "above 0");
    refused("theta: 100}}", "theta: 100}, output_gate: maybe}", "model.bad-value", "output_gate of block mla is true or false");
    refused("theta: 100}}", "theta: 100}, output_gate: true}", "model.missing-part", "part g of block mla has no row");
    refused("theta: 100}}", "theta: 100}, indexer: {heads: 2}}", "model.missing-attribute", "block mla has no index.dim. Give it there, or as size index.dim");
    refused("theta: 100}}", "theta: 100}, indexer: {heads: 2, dim: 4, top_k: 2}}", "model.bad-value", "q_lora is none");
    refused("theta: 100}}", "theta: 100}, indexer: {heads: 2, layers: [1]}}", "model.not-in-version", "indexer.layers");
    refused("theta: 100}}", "theta: 100}, indexer: yes}", "model.bad-value", "indexer is none, or {heads");
    refused("theta: 100}", "theta: 100, scaling: {factor: 4}}", "model.bad-value", "scaling is none, or {type: yarn");
    refused("theta: 100}", "theta: 100, scaling: {type: yarn, factor: 4, original: 0}}", "model.bad-value", "original at least 1 token");
    refused("theta: 100}", "theta: 100, scaling: {type: yarn, factor: 4}}", "model.missing-attribute", "has no original");
    refused("theta: 100}", "theta: 100, scalling: none}", "model.unknown-key", "position has no scalling. Did you mean scaling?");
    refused("theta: 100}", "theta: 0.5}", "model.bad-value", "theta is above 1");
    refused("residual: prenorm", "residual: postnorm", "model.bad-value", "residual is prenorm or {type: attn_res, block}");
    refused("residual: prenorm", "residual: {type: attn_res}", "model.missing-attribute", "attn_res needs block");
    refused("residual: prenorm", "residual: {type: attn_res, block: 0}", "model.bad-size", "from 1 layer");
    refused("residual: prenorm", "residual: {type: attn_res, blok: 3}", "model.unknown-key", "Did you mean block?");
    refused("residual: prenorm", "residual: {type: attn_res, block: 2}", "model.missing-part", "part res.proj of block model has no row");
    refused("dense: {type: glu}", "dense: {type: glu}\n  model: {type: model, tie: true}", "model.not-in-version", "tie");
    refused("dense: {type: glu}", "dense: {type: glu}\n  model: {type: model, vision: {type: moonvit2}}", "model.not-in-version", "vision");
    refused("prefix: lm.", "weights_from: dir", "model.no-config", "dir: the directory has no config.json");
    refused("prefix: lm.", "weights_from: [dir]", "model.bad-value", "weights_from is a directory");
    refused("ext: 2,", "ext: 3,", "model.bad-size", "even ext");
    cdr_model_spec s = { .path = "test" };
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_EDATA);
    T_HAS(err.text, "test: the directory has no config.json");
    s.path = "tiny-dens";
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_EUSER);
    T_HAS(err.text, "Did you mean tiny-dense?");
    /* a block that no layer has may be of any known type */
    T_CHECK(load_text(edit(dense, "dense: {type: glu}", "dense: {type: glu}\n  later: {type: kda, heads: 2}"), NULL, NULL) == CDR_OK);
}

static void extends_merges_and_removes(void)
{
    const char *over = "extends: tiny-dense\nname: small\nsizes: {hidden: 64, n_layers: 1, mla: {heads: 1, v: 8, ext: 0}}\nblocks: {mla: {position: none}}\n"
                       "tensors: {glu: {down: [out.weight, [hidden, width]]}}\nchat: none\n";
    T_CHECK(load_text(over, NULL, NULL) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    T_CHECK(m->info.hidden == 64 && m->info.n_layers == 1 && m->info.vocab == 512);
    T_CHECK(tensor("model.layers.0.mlp.out.weight")->need->n[1] == 384);
    T_CHECK(tensor("model.layers.0.self_attn.kv_a_proj_with_mqa.weight")->need->n[0] == 64);
    T_CHECK(load_text("extends: tiny-dense\nname: x\nsizes: {glu: {width: none}}\n", NULL, NULL) == CDR_EUSER);
    T_STR(err.id, "model.missing-attribute");
    T_HAS(err.text, "tiny-dense:");                      /* the place is in the file that is extended */
    T_CHECK(load_text("extends: nosuch\nname: x\n", NULL, NULL) == CDR_EUSER);
}

/* ---- the graph -------------------------------------------------------------------------------------------------------------------- */

static cdr_io make_io(cdr_graph *g, cdr_mode mode, int64_t T, int64_t S)
{
    cdr_io io = { .mode = mode, .T = T, .S = S, .compute = CDR_BF16, .weights_T = CDR_NONE, .dense_1 = CDR_NONE, .micro_1 = CDR_NONE, .scale_rows_1 = CDR_NONE,
                  .targets_T = CDR_NONE, .scale_1 = CDR_NONE, .n_live_1 = CDR_NONE, .loss_1 = CDR_NONE,
                  .logits_TW = CDR_NONE };
    io.tokens_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "tokens");
    io.start_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "start");
    io.pos_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "pos");
    if (mode == CDR_MODE_GENERATE) io.n_live_1 = cdr_graph_value(g, cdr_type_1d(CDR_I32, 1), CDR_STEP, CDR_C_INPUT, "n_live");
    else io.targets_T = cdr_graph_value(g, cdr_type_1d(CDR_I32, T), CDR_STEP, CDR_C_INPUT, "targets");
    return io;
}

static int count_calls(const cdr_graph *g, const char *op)
{
    int n = 0;
    for (int64_t i = 0; i < g->n_calls; i++) n += strcmp(cdr_ops[g->calls[i].op]->name, op) == 0;
    return n;
}

static bool uses_every_parameter(const cdr_graph *g)
{
    for (int32_t p = 0; p < g->b->n_params; p++) {
        bool used = false;
        for (int64_t i = 0; i < g->n_operands; i++) used = used || g->operands[i] == g->b->params[p].shard;
        if (!used) return false;
    }
    return true;
}

static void forward_builds_in_every_mode(void)
{
    cdr_model_spec s = { .path = "tiny-test" };
    err = (cdr_err){ 0 };
    T_CHECK(cdr_model_load(&s, pool, &m, &err) == CDR_OK);
    cdr_builder b = cdr_model_builder(m);
    cdr_bundle bundle = { 0 };
    cdr_graph *g = cdr_graph_new(pool, &bundle, "step", &err);
    T_CHECK(b.declare(b.model, g, &err) == CDR_OK && bundle.n_params == m->info.n_tensors);
    for (int32_t i = 0; i < bundle.n_params; i++) {
        const cdr_param *p = &bundle.params[i];
        bool matrix = p->global.n_dim == 2, out = strstr(p->name, "o_proj") || strstr(p->name, "down_proj");
        T_CHECK(p->rule == (matrix && p->unit > 0 && p->unit < 3 ? CDR_RULE_MUON : CDR_RULE_ADAMW));
        T_CHECK(p->decay == matrix && p->train == CDR_FULL && p->rng == cdr_hash64(p->name, strlen(p->name), 0));
        T_CHECK(p->init == (matrix ? CDR_INIT_NORMAL : CDR_INIT_ONES));
        double fan_in = 1 / sqrt((double)p->global.n[1]);             /* out: / sqrt(2 x 2 layers) */
        if (matrix) T_NEAR(p->init_std, strstr(p->name, "embed") ? 1.0 : out ? fan_in / 2 : fan_in, 1e-7);
        bundle.shared[p->shard].t.dtype = CDR_BF16;
    }
    static const cdr_mode modes[] = { CDR_MODE_TRAIN, CDR_MODE_EVAL, CDR_MODE_GENERATE };
    for (int i = 0; i < 3; i++) {
        if (i > 0) g = cdr_graph_new(pool, &bundle, "other", &err);
        cdr_graph_list(g, "micro");
        cdr_io io = make_io(g, modes[i], 16, modes[i] == CDR_MODE_GENERATE ? 40 : 16);
        T_CHECK(b.forward(b.model, g, &io, &err) == CDR_OK);
        if (err.status) T_STR(err.text, "");
        T_CHECK(uses_every_parameter(g));
        T_CHECK(count_calls(g, "attention") == 2 && count_calls(g, "rope") == 4 && count_calls(g, "swiglu") == 2 && count_calls(g, "add") == 4);
        T_CHECK(count_calls(g, "cache_write") == (modes[i] == CDR_MODE_GENERATE ? 4 : 0));      /* c and kr of each layer */
        if (modes[i] == CDR_MODE_GENERATE) {
            const cdr_type *t = cdr_graph_type(g, io.logits_TW);
            T_CHECK(t->dtype == CDR_F32 && t->n[0] == 16 && t->n[1] == 512 && io.loss_1 == CDR_NONE);
            int caches = 0;
            for (int64_t k = 0; k < g->n_vals; k++)
                if (g->vals[k].cls == CDR_C_STATE) {
                    caches++;
                    T_CHECK(g->vals[k].scope == CDR_STEP && g->vals[k].t.n[0] == 40);
                }
            T_CHECK(caches == 4);
        } else {
            T_CHECK(cdr_graph_type(g, io.loss_1)->dtype == CDR_F64 && io.logits_TW == CDR_NONE);
        }
    }
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    pool = cdr_pool_new();
    T_RUN(built_in_models_have_their_exact_counts);
    T_RUN(names_shapes_units);
    T_RUN(schedules);
    T_RUN(slices_keep_their_indices);
    T_RUN(expressions);
    T_RUN(sizes_may_be_overridden);
    T_RUN(unknown_things_are_refused);
    T_RUN(rows_and_parts_must_meet);
    T_RUN(formats_and_options);
    T_RUN(sections_of_a_directory);
    T_RUN(what_is_not_here_yet_says_so);
    T_RUN(extends_merges_and_removes);
    T_RUN(forward_builds_in_every_mode);
    cdr_pool_free(pool);
    return t_end();
}
