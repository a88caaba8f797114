/* session_data.c: from a recipe's data section to an open cdr_data. */
#include "train/session.h"

static const char *word_of(const char *key, int i, cdr_pool *pool)
{
    const char *w = cdr_recipe_schema(&(int){ 0 })[cdr_recipe_key(key)].words;
    for (; i > 0; i--) w += strcspn(w, "|") + 1;
    return cdr_pool_strndup(pool, w, strcspn(w, "|"));
}

static cdr_data_source *sources(cdr_session *s, const cdr_sources *in)
{
    cdr_data_source *out = cdr_pool_alloc(s->pool, sizeof *out * (size_t)CDR_MAX(in->n, 1));
    for (int i = 0; i < in->n; i++) {
        const cdr_source *from = &in->s[i];
        int format = from->format == CDR_FORMAT_AUTO ? s->r.data.format : from->format;
        cdr_data_column *columns = cdr_pool_alloc(s->pool, sizeof *columns * (size_t)CDR_MAX(from->columns.n, 1));
        for (int k = 0; k < from->columns.n; k++) columns[k] = (cdr_data_column){ from->columns.p[k].name, from->columns.p[k].text };
        out[i] = (cdr_data_source){ .path = from->path, .format = word_of("data.format", format, s->pool), .weight = from->weight,
                                    .max_samples = from->max_samples < 0 ? 0 : from->max_samples, .train_on = from->train_on,
                                    .columns = columns, .n_columns = from->columns.n };
    }
    return out;
}

cdr_chat_spec cdr__session_chat(const cdr_session *s)
{
    const cdr_recipe *r = &s->r;
    bool own = strcmp(word_of("data.chat_format", r->data.chat_format, s->pool), "auto") == 0;
    return (cdr_chat_spec){ .format = own ? s->info->chat : word_of("data.chat_format", r->data.chat_format, s->pool), .tokenizer = s->tok,
                            .dir = cdr_model_get_text(s->model).dir, .thinking = r->data.chat_thinking, .effort = r->data.chat_thinking_effort,
                            .system = strcmp(r->data.chat_system, "none") == 0 ? NULL : r->data.chat_system, .drop_tools = r->data.chat_tools == 1 };
}

static const char *cache_dir(const cdr_session *s)
{
    char path[1100];
    const char *said = s->r.data.cache;
    if (strcmp(said, "none") == 0) return NULL;
    if (strcmp(said, "auto") != 0) return said;
    return cdr__cache_path(path, sizeof path, "") ? cdr_pool_strdup(s->pool, path) : NULL;
}

cdr_status cdr__session_data_opts(cdr_session *s, cdr_data_opts *o, cdr_err *err)
{
    const cdr_recipe *r = &s->r;
    CDR_TRY(cdr__session_tokenizer(s, err));
    cdr_chat_spec *chat = cdr_pool_alloc(s->pool, sizeof *chat);
    *chat = cdr__session_chat(s);
    *o = (cdr_data_opts){ .train = sources(s, &r->data.train), .n_train = r->data.train.n, .eval = sources(s, &r->data.eval),
                          .n_eval = r->data.eval.none ? 0 : r->data.eval.n, .eval_fraction = r->data.eval_fraction, .tokenizer = s->tok, .chat = chat,
                          .train_on = r->data.train_on, .train_eos = r->data.train_eos, .mask_think = r->data.mask_think, .drop_untrained = r->data.untrained == 1,
                          .threads = (int)r->data.threads, .cache = cache_dir(s), .seed = (uint64_t)r->seed, .sequence_length = r->train.sequence_length,
                          .micro_batch_tokens = r->train.micro_batch_tokens, .max_docs = r->data.max_docs < 0 ? 0 : r->data.max_docs,
                          .pack_window = r->data.pack_window, .no_pack = !r->data.pack, .no_shuffle = !r->data.shuffle,
                          .long_samples = (cdr_long_samples)r->data.long_samples, .eval_tokens = 0 };
    return CDR_OK;
}

cdr_status cdr__session_data(cdr_session *s, cdr_err *err)
{
    cdr_data_opts o;
    CDR_TRY(cdr__session_data_opts(s, &o, err));
    CDR_TRY(cdr_data_open(&o, &s->data, err));
    int64_t n_shards = s->r.train.global_batch_tokens / s->r.train.micro_batch_tokens;
    int64_t epochs = s->r.train.epochs > 0 ? cdr_data_steps(s->data, s->r.train.epochs, n_shards) : 0;
    return cdr_recipe_resolve_steps(&s->r, epochs, err);
}
