/* test_weights.c: other makers' checkpoints: each tensor used once, each parameter filled once, paddings, the base's hash, side files, and directories that come
 * back byte for byte. */
#include "weights_rig.h"

static const char *const FAMILY[] = { "tiny-k3", "tiny-k31", "tiny-linear", "tiny-v3", "tiny-v32", "tiny-v2", "tiny-glm" };

/* Every family: written, audited, read back, and exported again byte for byte. */
static void families_come_back(void)
{
    for (int k = 0; k < CDR_COUNT(FAMILY); k++) {
        char to[1100], again[1200], anew[1200];
        cdr_err err = { 0 };
        cdr_weights_out_stat stat = { 0 };
        opened o;
        (void)snprintf(to, sizeof to, "%s", in_dir(FAMILY[k]));
        (void)snprintf(again, sizeof again, "%s-again", to);
        (void)snprintf(anew, sizeof anew, "%s-anew", to);
        cdr_model *m = write_toy(FAMILY[k], to, CDR_BF16, &stat);
        T_CHECK(stat.pack_error == 0);
        bool ok = open_toy(to, &o, &err) == CDR_OK;
        if (!ok) fprintf(stderr, "  %s: %s\n", FAMILY[k], err.text);
        T_CHECK(ok);
        if (!ok || !m) continue;
        const cdr_weights_stat *s = cdr_weights_get_stat(o.w);
        T_CHECK(s->n_tensors == s->n_used + s->n_carried && s->n_carried == 0 && s->n_tensors == stat.tensors && s->n_params == cdr_model_params(o.m));
        T_CHECK(cdr_model_params(m) == cdr_model_params(o.m) && s->experts == CDR_BF16);
        int64_t wrong = 0;
        for (int64_t p = 0; p < cdr_model_params(o.m); p++) {
            cdr_model_part part = cdr_model_param_part(o.m, p);
            int64_t cols = part.n[part.n_dim - 1], rows = 1;
            for (int i = 0; i < part.n_dim - 1; i++) rows *= part.n[i];
            float *x = cdr_alloc(sizeof *x * (size_t)(rows * cols));
            T_CHECK(cdr_weights_read(o.w, p, 0, rows, CDR_F32, x, &err) == CDR_OK);
            for (int64_t i = 0; i < rows * cols; i++) wrong += x[i] != value(p, i);
            T_CHECK(cdr_weights_read(o.w, p, rows - 1, 1, CDR_F32, x, &err) == CDR_OK && x[cols - 1] == value(p, rows * cols - 1));
            cdr_free(x);
        }
        T_CHECK(wrong == 0);
        const bool none[4096] = { false };
        cdr_weights_out e = { .model = o.m, .source = o.d, .touched = none, .experts = -1 };
        T_CHECK(cdr_model_params(o.m) < CDR_COUNT(none) && cdr_weights_write(again, &e, &stat, &err) == CDR_OK);
        T_CHECK(stat.copied == stat.tensors && same_dirs(to, again));
        /* all of them written anew into the same layout */
        e.touched = NULL;
        e.rows = rows_of_values;
        e.ctx = o.m;
        T_CHECK(cdr_weights_write(anew, &e, &stat, &err) == CDR_OK && stat.copied == 0);
        T_CHECK(same_dirs(to, anew));
        close_toy(&o);
    }
}

static void what_does_not_fit(void)
{
    static const struct { change c; const char *id, *says[2]; } CASE[] = {
        { { DROP, K3 "norm.weight", NULL, 0, 0 }, "checkpoint.tensors", { "1 missing: " K3 "norm.weight", "not those of" } },
        { { DROP, EXPERT "_scale", NULL, 0, 0 }, "checkpoint.tensors", { "1 missing: " EXPERT "_scale", "" } },
        { { DROP, EXPERT "_packed", NULL, 0, 0 }, "checkpoint.tensors", { "1 missing: " EXPERT, "1 unknown: " EXPERT "_scale" } },
        { { RENAME, K3 "norm.weight", K3 "norms.weight", 0, 0 }, "checkpoint.tensors", { "1 missing: " K3 "norm.weight", "1 unknown: " K3 "norms.weight" } },
        { { ADD, "BF16", "language_model.more.weight", 0, 0 }, "checkpoint.tensors", { "1 unknown: language_model.more.weight", "" } },
        { { ADD, "BF16", "vision_tower.blocks.0.weight", 0, 0 }, NULL, { "", "" } },                        /* carried */
        { { NARROW, K3 "layers.1.block_sparse_moe.gate.e_score_correction_bias", NULL, 0, 0 }, "checkpoint.tensors",
          { "gate.e_score_correction_bias (is BF16, narrower than the F32 that it needs)", "1 of another form" } },
        { { NARROW, K3 "layers.0.self_attn.A_log", NULL, 0, 0 }, "checkpoint.tensors", { "A_log (is BF16, narrower than the F32", "" } },
        { { NARROW, K3 "layers.0.self_attn.o_norm.weight", NULL, 0, 0 }, "checkpoint.tensors", { "o_norm.weight (is BF16, narrower", "" } },
        { { NARROW, K3 "layers.0.self_attn.q_conv1d.weight", NULL, 0, 0 }, "checkpoint.tensors", { "q_conv1d.weight (is BF16, narrower", "" } },
        { { NARROW, K3 "layers.0.self_attn.dt_bias", NULL, 0, 0 }, "checkpoint.tensors", { "dt_bias (is BF16, narrower", "" } },
        { { SHAPE, K3 "norm.weight", NULL, 0, 0 }, "checkpoint.tensors", { "1 of another form: " K3 "norm.weight (is BF16 [", "], the model needs BF16 [" } },
        { { SHAPE, EXPERT "_scale", NULL, 0, 0 }, "checkpoint.tensors", { "1 of another form: " EXPERT "_scale (is U8 [", "], the model needs U8 [" } },
        { { FORMAT, K3 "norm.weight", "F16", 0, 0 }, "checkpoint.tensors", { "1 of another form: " K3 "norm.weight (is F16, the model reads BF16)", "" } },
        { { FORMAT, EXPERT "_packed", "I8", 0, 0 }, "checkpoint.tensors", { EXPERT "_packed (is I8, the model reads ", "" } },
        { { FORMAT, EXPERT "_scale", "I8", 0, 0 }, "checkpoint.tensors", { "1 of another form: " EXPERT "_scale (is not U8)", "" } },
        { { BYTE, K3 "layers.0.self_attn.A_log", NULL, 4 * 100 + 3, 0x3f }, "checkpoint.tensors", { "A_log (element 100 pads it and is 0.5, not 0)", "" } },
        { { RENAME, K3 "layers.1.block_sparse_moe.latent", "x", 0, 0 }, NULL, { NULL, NULL } },              /* ends the list */
    };
    const char *from = in_dir("k3-one");
    char keep[1024];
    (void)snprintf(keep, sizeof keep, "%s", from);
    write_single("tiny-k3", keep, -1);
    for (int i = 0; CASE[i].c.kind != RENAME || CASE[i].says[0]; i++) {
        opened o;
        cdr_err err = { 0 };
        const char *to = in_dir("edited");
        char path[1024];
        (void)snprintf(path, sizeof path, "%s", to);
        edit(keep, path, &CASE[i].c);
        cdr_status st = open_toy(path, &o, &err);
        T_CHECK(st == (CASE[i].id ? CDR_EDATA : CDR_OK));
        if (CASE[i].id) {
            T_STR(err.id, CASE[i].id);
            T_HAS(err.text, CASE[i].says[0]);
            T_HAS(err.text, CASE[i].says[1]);
        } else {
            if (st != CDR_OK) fprintf(stderr, "  %s\n", err.text);
            T_CHECK(o.w && cdr_weights_get_stat(o.w)->n_carried == 1);
        }
        close_toy(&o);
        (void)cdr_remove_tree(path, NULL);
    }
}

/* More than ten: ten are named, all are counted. */
static void many_are_counted(void)
{
    cdr_err err = { 0 };
    opened o;
    write_single("tiny-v3", in_dir("v3-one"), CDR_BF16);
    char path[1024];
    (void)snprintf(path, sizeof path, "%s", in_dir("v3-one/config.json"));
    cdr_st *st = NULL;
    T_CHECK(cdr_st_open(in_dir("v3-one/model.safetensors"), &st, NULL) == CDR_OK);
    int64_t n = st ? cdr_st_count(st) : 0;
    cdr_st_close(st);
    cdr_st_writer *w = NULL;
    const cdr_st_spec one = { .name = "lm_head.weight", .format = cdr_st_format_by_name("BF16"), .n_dim = 0 };
    T_CHECK(cdr_st_create(in_dir("v3-one/model.safetensors"), &one, 1, NULL, 0, &w, NULL) == CDR_OK && cdr_st_append(w, "ab", 2, NULL) == CDR_OK &&
            cdr_st_finish(w, NULL, NULL, NULL) == CDR_OK);
    T_CHECK(open_toy(in_dir("v3-one"), &o, &err) == CDR_EDATA);
    char want[64];
    (void)snprintf(want, sizeof want, ": %lld missing: ", (long long)n - 1);
    T_HAS(err.text, want);
    int commas = 0;
    const char *from = strstr(err.text, want), *end = strstr(err.text, ", ...;");
    for (const char *c = from; from && end && c < end; c++) commas += *c == ',';
    T_CHECK(commas == 9);
    T_HAS(err.text, ", ...; 1 of another form: lm_head.weight (is BF16 [], the model needs BF16 [512, 64])");
    close_toy(&o);
}

/* ---- the base's hash --------------------------------------------------------------------------------------------------------- */
static uint64_t hash_of(const char *path, const char *cache)
{
    opened o;
    cdr_err err = { 0 };
    uint64_t h = 0;
    if (open_toy(path, &o, &err) == CDR_OK) T_CHECK(cdr_weights_hash(o.w, cache, &h, &err) == CDR_OK);
    T_STR(err.text, "");
    close_toy(&o);
    return h;
}

static void hash_is_of_what_is_used(void)
{
    char one[1024], other[1024], cut[1024], cache[1024];
    cdr_weights_out_stat stat;
    (void)snprintf(one, sizeof one, "%s", in_dir("hash-one"));
    (void)snprintf(other, sizeof other, "%s", in_dir("hash-other"));
    (void)snprintf(cut, sizeof cut, "%s", in_dir("hash-cut"));
    (void)snprintf(cache, sizeof cache, "%s", in_dir("cache"));
    write_single("tiny-k3", one, -1);
    write_toy("tiny-k3", cut, -1, &stat);
    uint64_t h = hash_of(one, NULL);
    T_CHECK(h != 0 && hash_of(cut, NULL) == h);                   /* however it is cut */
    edit(one, other, &(change){ ADD, "BF16", "vision_tower.x", 0, 0 });
    T_CHECK(hash_of(other, NULL) == h);                           /* what is carried is not the base */
    T_CHECK(hash_of(one, cache) == h && hash_of(one, cache) == h);
    static const char *const NO_HASH[] = { "", "0123\\n", "0123456789abcdef", "0123456789abcde\\n", "0123456789abcdeg\\n", "0123456789abcdef " };
    for (int i = 0; i < CDR_COUNT(NO_HASH); i++) {                /* what is kept is not believed where it is no hash */
        char file[1400];
        (void)snprintf(file, sizeof file, "for f in %s/base/*; do printf '%s' > $f; done", cache, NO_HASH[i]);
        T_CHECK(system(file) == 0 && files_in(in_dir("cache/base")) == 1);
        T_CHECK(hash_of(one, cache) == h);
    }
    edit(one, other, &(change){ BYTE, EXPERT "_packed", NULL, 7, 0x21 });
    T_CHECK(hash_of(other, cache) != h);
    edit(one, other, &(change){ BYTE, K3 "norm.weight", NULL, 0, 0x77 });
    T_CHECK(hash_of(other, cache) != h && hash_of(other, cache) == hash_of(other, NULL));
}

static void put_side(const char *folder, const char *name, const char *text)
{
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    T_CHECK(cdr_file_write(path, text, strlen(text), NULL) == CDR_OK);
}

/* What config.json says of how the tensors are used is part of the base, however the number is written; what else it says is not. */
static void hash_is_of_the_function_too(void)
{
    static const struct { const char *was, *is; bool same; } edits[] = {
        { "\"rope_theta\": 10000,", "\"rope_theta\": 1.0e4,", true }, { "\"rope_theta\": 10000,", "\"rope_theta\": 50000,", false },
        { "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05", false }, { "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 2.0", false },
        { "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 3", false }, { "\"factor\": 40", "\"factor\": 20", false },
        { "\"max_position_embeddings\": 163840", "\"max_position_embeddings\": 4096", true }, { "\"use_cache\": true", "\"use_cache\": false", true },
    };
    char path[1200], cache[1024], folder[1024], *text = NULL;
    size_t n = 0;
    cdr_err err = { 0 };
    (void)snprintf(folder, sizeof folder, "%s", in_dir("function"));
    (void)snprintf(cache, sizeof cache, "%s", in_dir("cache"));
    write_single("tiny-v3", folder, -1);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    T_CHECK(cdr_file_read(path, 1 << 20, &text, &n, &err) == CDR_OK);
    uint64_t h = hash_of(folder, cache);
    for (int i = 0; text && i < CDR_COUNT(edits); i++) {
        const char *at = strstr(text, edits[i].was);
        T_CHECK(at != NULL);
        if (!at) continue;
        cdr_text t = { 0 };
        cdr_text_append(&t, text, (size_t)(at - text));
        cdr_text_printf(&t, "%s%s", edits[i].is, at + strlen(edits[i].was));
        put_text(path, t.s);
        cdr_text_free(&t);
        uint64_t now = hash_of(folder, cache);
        if ((now == h) != edits[i].same) T_STR(edits[i].is, edits[i].same ? "the same base" : "another base");
        T_CHECK(now == hash_of(folder, NULL));
    }
    put_text(path, text);
    T_CHECK(hash_of(folder, cache) == h);
    cdr_free(text);
}

static int n_asked;

static cdr_status rows_counted(void *ctx, int64_t p, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    n_asked++;
    return rows_of_values(ctx, p, first, n, dtype, dst, err);
}

/* Of a source's other files those go along that a loader reads, and licences; all else is named. What could not be copied is refused before anything is
 * written. */
static void side_files_are_chosen(void)
{
    static const char *const along[] = { "modeling_x.py", "generation_config.json", "tokenizer.json", "chat_template.jinja", "tiktoken.model", "preprocessor_config.json",
                                         "License-MODEL.txt", "NOTICE", "readme.md", "merges.txt" },
        *const stay[] = { ".hidden", "adapter_config.json", "consolidated.safetensors", "huge.model", "images/", "model.gguf", "modeling_y.pyc",
                          "pytorch_model.bin", "pytorch_model.bin.index.json", "trainer_state.json" };
    char from[1024], to[1024], path[1200];
    cdr_weights_out_stat stat;
    cdr_err err = { 0 };
    (void)snprintf(from, sizeof from, "%s", in_dir("sides"));
    (void)snprintf(to, sizeof to, "%s", in_dir("sides-out"));
    if (!write_toy("tiny-v2", from, -1, &stat)) return;
    T_CHECK(stat.n_left == 0);
    for (int i = 0; i < CDR_COUNT(along); i++) put_side(from, along[i], along[i]);
    for (int i = 0; i < CDR_COUNT(stay); i++) if (i != 4) put_side(from, stay[i], "0123456789");
    (void)snprintf(path, sizeof path, "%s/%s", from, stay[3]);
    T_CHECK(truncate(path, (256 << 20) + 1) == 0);                /* a tokenizer is no quarter of a GiB */
    (void)snprintf(path, sizeof path, "%s/images", from);
    T_CHECK(mkdir(path, 0777) == 0);
    opened o;
    T_CHECK(open_toy(from, &o, &err) == CDR_OK);
    bool *none = cdr_pool_alloc(pool, (size_t)cdr_model_params(o.m) + 1);
    none[0] = true;
    cdr_weights_out e = { .model = o.m, .source = o.d, .touched = none, .experts = -1, .rows = rows_counted, .ctx = o.m, .pool = pool };
    T_CHECK(cdr_weights_write(to, &e, &stat, &err) == CDR_OK && n_asked > 0 && stat.n_left == CDR_COUNT(stay) &&
            stat.left_bytes == 10 * (CDR_COUNT(stay) - 2) + (256 << 20) + 1);
    for (int i = 0; i < CDR_COUNT(stay) && i < stat.n_left; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", to, stay[i]);
        T_STR(stat.left[i], stay[i]);
        T_CHECK(!cdr_exists(path));
    }
    for (int i = 0; i < CDR_COUNT(along); i++) {
        char *text = NULL;
        size_t n = 0;
        (void)snprintf(path, sizeof path, "%s/%s", to, along[i]);
        T_CHECK(cdr_file_read(path, 100, &text, &n, &err) == CDR_OK && n == strlen(along[i]) && memcmp(text, along[i], n) == 0);
        cdr_free(text);
    }
    (void)snprintf(path, sizeof path, "%s/LICENSE", from);
    for (int k = 0; k < 3; k++) {                        /* a link to nothing, a pipe, one that nobody asks for */
        T_CHECK(k == 1 ? mkfifo(path, 0666) == 0 : symlink("nowhere", path) == 0);
        T_CHECK(cdr_remove_tree(to, &err) == CDR_OK);
        err = (cdr_err){ 0 };
        n_asked = 0;
        cdr_status st = cdr_weights_write(to, &e, &stat, &err);
        T_CHECK((n_asked == 0) == (k < 2));
        if (k == 2) T_CHECK(st == CDR_OK && stat.n_left == CDR_COUNT(stay) + 1);
        else T_CHECK(st == CDR_EDATA && strcmp(err.id, "checkpoint.side-file") == 0 && strstr(err.text, "LICENSE") && !cdr_exists(to));
        T_CHECK(remove(path) == 0);
        if (k == 1) (void)snprintf(path, sizeof path, "%s/figure.png", from);
    }
    cdr_weights_close(o.w);
    cdr_hf_close(o.d);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("weights")) return 1;
    pool = cdr_pool_new();
    T_RUN(families_come_back);
    T_RUN(what_does_not_fit);
    T_RUN(many_are_counted);
    T_RUN(hash_is_of_what_is_used);
    T_RUN(hash_is_of_the_function_too);
    T_RUN(side_files_are_chosen);
    cdr_pool_free(pool);
    files_close();
    return t_end();
}
