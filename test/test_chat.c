/* test_chat.c: conversations become exactly the tokens that an independent renderer gives (test/golden/chat.json, written by
 * tools/peers/chat.py as pieces of text, so that any tokenizer can be put behind them), with the message and the part of every
 * token; what a format has no form for is refused; what a model says is split into content and reasoning.
 */
#include "test.h"
#include "chat_rig.h"

typedef struct { cdr_pool *pool; const cdr_json *root; cdr_tokenizer *bytes; char *data; } golden;

static golden open_golden(const char *path)
{
    golden g = { .pool = cdr_pool_new() };
    size_t n;
    cdr_err err = { 0 };
    if (cdr_file_read(path, 4 << 20, &g.data, &n, &err) != CDR_OK || cdr_json_parse(g.pool, g.data, n, path, &g.root, &err) != CDR_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    T_CHECK(cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &g.bytes, &err) == CDR_OK);
    return g;
}

static void close_golden(golden *g)
{
    cdr_tokenizer_close(g->bytes);
    cdr_free(g->data);
    cdr_pool_free(g->pool);
}

static int part_of(const cdr_json *piece) { return (int)cdr_json_int(cdr_json_at(piece, 3), -1); }

/* What the pieces of a case are as tokens. A stretch with several spans has them cut at their borders by the tokenizers here. */
static void expect_pieces(const cdr_json *pieces, const cdr_tokenizer *tok, cdr_chat_tokens *out)
{
    int64_t cap = 0;
    for (int64_t i = 0; i < cdr_json_count(pieces); i++) cap += cdr_tokenizer_room(tok, strlen(cdr_json_str(cdr_json_at(cdr_json_at(pieces, i), 1), ""))) + 1;
    out->t = cdr_alloc(sizeof *out->t * (size_t)(cap + 1));
    int32_t *ids = cdr_alloc(sizeof *ids * (size_t)(cap + 1));
    for (int64_t i = 0; i < cdr_json_count(pieces); i++) {
        const cdr_json *p = cdr_json_at(pieces, i);
        const char *s = cdr_json_str(cdr_json_at(p, 1), "");
        int64_t n = 1;
        if (cdr_json_int(cdr_json_at(p, 0), -1) == 0) ids[0] = cdr_tokenizer_special(tok, s);
        else n = cdr_tokenizer_encode(tok, s, strlen(s), ids);
        for (int64_t k = 0; k < n; k++)
            out->t[out->n++] = (cdr_chat_token){ .id = ids[k], .message = (int32_t)cdr_json_int(cdr_json_at(p, 2), -2), .part = (uint8_t)part_of(p) };
    }
    cdr_free(ids);
}

static bool same_tokens(const cdr_chat_tokens *a, const cdr_chat_tokens *b)
{
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++)
        if (a->t[i].id != b->t[i].id || a->t[i].message != b->t[i].message || a->t[i].part != b->t[i].part) return false;
    return true;
}

static void check_case(golden *g, const cdr_json *j, const cdr_tokenizer *tok)
{
    cdr_chat_tokens got = { 0 }, want = { 0 };
    cdr_err err = { 0 };
    const char *name = cdr_json_str(cdr_json_get(j, "name"), ""), *refused = cdr_json_str(cdr_json_get(j, "error"), NULL);
    cdr_status st = rig_render(g->pool, j, tok, &got, &err);
    bool ok = refused ? st != CDR_OK && strcmp(err.id, refused) == 0 && got.n == 0 : st == CDR_OK;
    if (ok && !refused) {
        expect_pieces(cdr_json_get(j, "pieces"), tok, &want);
        ok = same_tokens(&got, &want);
    }
    if (!ok) fprintf(stderr, "  case \"%s\": %s\n", name, st == CDR_OK ? "other tokens, messages or parts" : err.text);
    T_CHECK(ok);
    cdr_chat_tokens_free(&got);
    cdr_chat_tokens_free(&want);
}

static void k3_gives_the_tokens_of_a_second_renderer(void)
{
    golden g = open_golden("test/golden/chat.json");
    const cdr_json *cases = cdr_json_get(g.root, "cases");
    int n = 0;
    for (int64_t i = 0; i < cdr_json_count(cases); i++) {
        const cdr_json *j = cdr_json_at(cases, i);
        if (strcmp(cdr_json_str(cdr_json_get(j, "format"), ""), "k3_xtml") != 0 || cdr_json_get(j, "texts")) continue;
        check_case(&g, j, g.bytes);
        n++;
    }
    T_CHECK(n > 25);
    close_golden(&g);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(k3_gives_the_tokens_of_a_second_renderer);
    return t_end();
}
