/* find.c: which tokenizer lies at a path, and which of its special ids begin, end and fill texts. */
#include "tokenizer/internal.h"

#include <string.h>

static const struct { const char *file, *type; } FILES[] = { { "tiktoken.model", "tiktoken" }, { "tokenizer.json", "hf_bpe" } };
static const size_t MAX_CONFIG = (size_t)16 << 20;

bool cdr_tokenizer_find(const char *path, const char *prefer, cdr_pool *pool, cdr_tokenizer_spec *s)
{
    size_t n = strlen(path);
    if (!cdr_is_dir(path)) {
        s->type = n > 5 && strcmp(path + n - 5, ".json") == 0 ? "hf_bpe" : "tiktoken";
        s->dir = NULL;
        s->file = path;
        return cdr_exists(path);
    }
    for (int turn = 0; turn < 2; turn++)                /* the preferred type first */
        for (int i = 0; i < CDR_COUNT(FILES); i++) {
            if ((turn == 0) != (prefer && strcmp(prefer, FILES[i].type) == 0)) continue;
            if (!cdr_exists(cdr_pool_printf(pool, "%s/%s", path, FILES[i].file))) continue;
            s->type = FILES[i].type;
            s->dir = path;
            s->file = FILES[i].file;
            return true;
        }
    return false;
}

cdr_status cdr__tokenizer_config(cdr_pool *pool, const char *path, const cdr_json **root, const char **config, cdr_err *err)
{
    const char *slash = strrchr(path, '/');
    char *text;
    size_t bytes;
    *root = NULL;
    *config = cdr_pool_printf(pool, "%.*stokenizer_config.json", slash ? (int)(slash + 1 - path) : 0, path);
    if (!cdr_exists(*config)) return CDR_OK;
    CDR_TRY(cdr_file_read(*config, MAX_CONFIG, &text, &bytes, err));
    cdr_status st = cdr_json_parse(pool, text, bytes, *config, root, err);
    cdr_free(text);
    return st;
}

/* A role is a name, or an object with its content. */
static int32_t role(const cdr_tokenizer *tok, const cdr_json *config, const char *key, const char *otherwise)
{
    const cdr_json *j = cdr_json_get(config, key);
    const char *name = cdr_json_str(cdr_json_get(j, "content"), cdr_json_str(j, NULL));
    int id = name ? cdr_tokenizer_special(tok, name) : -1;
    return id >= 0 ? id : cdr_tokenizer_special(tok, otherwise);
}

void cdr__tokenizer_roles(cdr_tokenizer *tok, const cdr_json *config)
{
    tok->bos = role(tok, config, "bos_token", "[BOS]");
    tok->eos = role(tok, config, "eos_token", "[EOS]");
    tok->pad = role(tok, config, "pad_token", "[PAD]");
}

int cdr_tokenizer_bos(const cdr_tokenizer *tok) { return tok->bos; }
int cdr_tokenizer_eos(const cdr_tokenizer *tok) { return tok->eos; }
int cdr_tokenizer_pad(const cdr_tokenizer *tok) { return tok->pad; }
