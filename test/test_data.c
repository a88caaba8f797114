/* test_data.c: what each epoch trains on, against a plain re-count of the corpus; layouts, resuming, held-out text. */
#include "data/data.h"
#include "files.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static cdr_tokenizer *tok;
enum { S = 64, MICRO = 128, EOS = 257, PAD = 511, N_DOCS = 200 };

static uint64_t draw(uint64_t i)
{
    return cdr_rng_u64((cdr_rng_key){ 77, 1, 0 }, i);
}

/* ---- a corpus of documents, and what its samples are -------------------------------------------------------- */

typedef struct { int64_t n; uint8_t *bytes; } doc;
static doc docs[N_DOCS];

/* Lengths 1 to 3 S, a few at the borders; letters and lines. */
static void make_docs(void)
{
    cdr_err err = { 0 };
    T_CHECK(cdr_make_dirs(in_dir("docs"), &err) == CDR_OK);
    for (int i = 0; i < N_DOCS; i++) {
        static const int64_t BORDERS[] = { 1, 2, S - 1, S, S + 1, 2 * S, 2 * S + 1, 3 * S };
        docs[i].n = i < CDR_COUNT(BORDERS) ? BORDERS[i] : 1 + (int64_t)(draw((uint64_t)i) % (3 * S));
        docs[i].bytes = malloc((size_t)docs[i].n);
        for (int64_t k = 0; k < docs[i].n; k++)
            docs[i].bytes[k] = (uint8_t)(draw((uint64_t)(i * 1000 + k)) % 9 == 0 ? '\n' : 'a' + draw((uint64_t)(i * 1000 + k)) % 26);
        char name[64];
        (void)snprintf(name, sizeof name, "docs/%03d.txt", i);
        put_file(in_dir(name), docs[i].bytes, (size_t)docs[i].n);
    }
}

/* A sample's identity: hash of its inputs and targets. */
static uint64_t sample_hash(const int32_t *tokens, const int32_t *targets, int64_t n)
{
    uint64_t h = cdr_hash64(tokens, (size_t)n * sizeof *tokens, 1);
    return cdr_hash64(targets, (size_t)n * sizeof *targets, h);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Hashes of all samples of documents [from, to), each `copies` times; returns how many. */
static int64_t expected_samples(int from, int to, int copies, uint64_t *out)
{
    int64_t n = 0;
    for (int c = 0; c < copies; c++)
        for (int i = from; i < to; i++)
            for (int64_t first = 0; first < docs[i].n; first += S) {
                int32_t tokens[S], targets[S];
                int64_t len = CDR_MIN((int64_t)S, docs[i].n - first);
                for (int64_t k = 0; k < len; k++) {
                    tokens[k] = docs[i].bytes[first + k];
                    targets[k] = first + k + 1 < docs[i].n ? docs[i].bytes[first + k + 1] : EOS;
                }
                out[n++] = sample_hash(tokens, targets, len);
            }
    return n;
}

typedef struct { int32_t tokens[MICRO], targets[MICRO], start[MICRO], pos[MICRO]; int64_t n_trained, n_rows; } shard;

static shard *get(cdr_data *d, int64_t step, int64_t id, int64_t n)
{
    static shard s[4];
    static int k;
    shard *x = &s[k = (k + 1) % 4];
    memset(x, 0x55, sizeof *x);
    cdr_data_shard(d, step, id, n, x->tokens, x->targets, x->start, x->pos, NULL, &x->n_trained, &x->n_rows);
    return x;
}

/* Samples of row r of a shard, read back through `start` and -1 alone; also checks the arrays' rules: padding is idle, its
 * start above its pos, so that no token sees it and it sees none. */
static int64_t samples_of_row(const shard *x, int64_t r, uint64_t *out, int64_t *n_pad)
{
    int64_t n = 0, t = r * S, end = t + S;
    while (t < end && x->targets[t] >= 0) {
        int64_t u = t;
        T_CHECK(x->start[t] == t);
        while (u < end && x->start[u] == t && x->targets[u] >= 0) u++;
        out[n++] = sample_hash(x->tokens + t, x->targets + t, u - t);
        t = u;
    }
    *n_pad = end - t;
    for (int64_t u = t; u < end; u++) T_CHECK(x->tokens[u] == PAD && x->targets[u] == -1 && x->start[u] == u + 1);
    for (int64_t u = r * S; u < end; u++) T_CHECK(x->pos[u] == u);
    return n;
}

static cdr_data_opts opts_of(const cdr_data_source *sources, int n)
{
    return (cdr_data_opts){ .train = sources, .n_train = n, .tokenizer = tok, .seed = 5, .sequence_length = S, .micro_batch_tokens = MICRO,
                            .max_docs = 6, .pack_window = 50 };
}

static cdr_data *open_or_fail(const cdr_data_opts *o)
{
    cdr_data *d = NULL;
    cdr_err err = { 0 };
    T_CHECK(cdr_data_open(o, &d, &err) == CDR_OK);
    if (!d) {
        fprintf(stderr, "  %s\n", err.text);
        exit(1);
    }
    return d;
}

/* ---- training ------------------------------------------------------------------------------------------------ */

static void every_sample_once_an_epoch(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    uint64_t want[1024], got[1024], order[2][16] = { { 0 } };
    int64_t n_want = expected_samples(0, N_DOCS, 1, want), row = 0, trained = 0, total = 0;
    for (int i = 0; i < N_DOCS; i++) total += docs[i].n;
    qsort(want, (size_t)n_want, sizeof *want, by_value);
    T_CHECK(cdr_data_stats(d)->epoch_samples == n_want && cdr_data_stats(d)->epoch_trained == total && cdr_data_stats(d)->n_documents == N_DOCS);
    for (int epoch = 0; epoch < 3; epoch++) {
        int64_t n_got = 0, first_row = row, pad = 0;
        while (n_got < n_want) {
            const shard *x = get(d, row / 2, 0, 1);
            int64_t n_pad, n = samples_of_row(x, row % 2, got + n_got, &n_pad);
            T_CHECK(n >= 1 && n <= 6);
            n_got += n;
            pad += n_pad;
            trained += S - n_pad;
            row++;
        }
        T_CHECK(n_got == n_want);                     /* an epoch ends at a row's end */
        if (epoch < 2) memcpy(order[epoch], got, sizeof order[epoch]);
        qsort(got, (size_t)n_got, sizeof *got, by_value);
        T_CHECK(memcmp(got, want, (size_t)n_want * sizeof *got) == 0);
        T_CHECK((double)pad < 0.12 * (double)(S * (row - first_row)));
        if (epoch == 0) T_CHECK(row == cdr_data_stats(d)->rows_epoch0);
    }
    T_CHECK(trained == 3 * total);
    T_CHECK(memcmp(order[0], order[1], sizeof order[0]) != 0);
    cdr_data_close(d);
}

static void same_samples_on_every_layout(void)
{
    enum { STEPS = 40, N = 4 };
    static shard all[STEPS][N];
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    for (int step = 0; step < STEPS; step++)
        for (int id = 0; id < N; id++) all[step][id] = *get(d, step, id, N);
    cdr_data_close(d);
    int64_t trained = 0;
    for (int step = 0; step < STEPS; step++)
        for (int id = 0; id < N; id++) {
            int64_t n = 0;
            for (int t = 0; t < MICRO; t++) n += all[step][id].targets[t] >= 0;
            T_CHECK(n == all[step][id].n_trained && n == all[step][id].n_rows);
            trained += n;
        }
    T_CHECK(trained > STEPS * N * MICRO * 8 / 10);
    for (int ranks = 1; ranks <= 4; ranks *= 2)       /* each rank its own process's view, its ids only */
        for (int rank = 0; rank < ranks; rank++) {
            cdr_data *e = open_or_fail(&o);
            for (int step = 0; step < STEPS; step++)
                for (int id = rank; id < N; id += ranks) T_CHECK(memcmp(get(e, step, id, N), &all[step][id], sizeof(shard)) == 0);
            cdr_data_close(e);
        }
    cdr_data *e = open_or_fail(&o);                   /* any order of calls, on one handle and on fresh ones */
    for (uint64_t i = 0; i < 100; i++) {
        int64_t step = (int64_t)(draw(i) % STEPS), id = (int64_t)(draw(1000 + i) % N);
        T_CHECK(memcmp(get(e, step, id, N), &all[step][id], sizeof(shard)) == 0);
        if (i % 10 != 0) continue;
        cdr_data *f = open_or_fail(&o);
        T_CHECK(memcmp(get(f, step, id, N), &all[step][id], sizeof(shard)) == 0);
        cdr_data_close(f);
    }
    T_CHECK(memcmp(get(e, 3, 1, 8), &all[6][1], sizeof(shard)) == 0);        /* ids count through: 3 * 8 + 1 = 6 * 4 + 1 */
    cdr_data_close(e);
    o.seed = 6;
    e = open_or_fail(&o);
    T_CHECK(memcmp(get(e, 0, 0, N), &all[0][0], sizeof(shard)) != 0);
    cdr_data_close(e);
}

static void max_docs_and_packing_off(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    uint64_t h[S];
    int64_t n_pad, rows[3];
    int most = 0;
    for (int k = 0; k < 3; k++) {
        o.max_docs = k == 0 ? 2 : 1000;
        o.no_pack = k == 2;
        cdr_data *d = open_or_fail(&o);
        for (int64_t row = 0; row < cdr_data_stats(d)->rows_epoch0; row++) {
            int64_t n = samples_of_row(get(d, row / 2, 0, 1), row % 2, h, &n_pad);
            T_CHECK(n <= (k == 0 ? 2 : k == 1 ? 1000 : 1));
            if (k == 1) most = CDR_MAX(most, (int)n);
        }
        rows[k] = cdr_data_stats(d)->rows_epoch0;
        if (k == 2) T_CHECK(rows[k] == cdr_data_stats(d)->epoch_samples);
        cdr_data_close(d);
    }
    T_CHECK(most > 2 && rows[1] < rows[0] && rows[0] < rows[2]);
    o = opts_of(&src, 1);
    o.max_docs = 0;
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->max_docs == 1);        /* sequence_length / 64 */
    cdr_data_close(d);
}

static void shuffle_off_keeps_the_order(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    uint64_t want[1024], got[1024];
    int64_t n_want = expected_samples(0, N_DOCS, 1, want), n = 0, n_pad;
    o.no_shuffle = o.no_pack = true;
    cdr_data *d = open_or_fail(&o);
    for (int64_t row = 0; row < 2 * n_want; row++) n += samples_of_row(get(d, row / 2, 0, 1), row % 2, got + n % n_want, &n_pad);
    T_CHECK(n == 2 * n_want && memcmp(got, want, (size_t)n_want * sizeof *got) == 0);
    cdr_data_close(d);
}

/* Weight 2.5: two copies of all samples and half of them a third time, other ones in the next epoch. */
static void weights_mix_sources(void)
{
    cdr_data_source src[2] = { { .path = in_dir("docs"), .max_samples = 40, .weight = 2.5 }, { .path = in_dir("one.txt") } };
    char one[300];
    memset(one, '#', sizeof one);
    put_file(in_dir("one.txt"), one, sizeof one);
    cdr_data_opts o = opts_of(src, 2);
    cdr_data *d = open_or_fail(&o);
    uint64_t want[2048], got[4096];
    int64_t n_one = expected_samples(0, 40, 1, want), n_slots = 2 * n_one + (n_one + 1) / 2 + 5;
    qsort(want, (size_t)n_one, sizeof *want, by_value);
    T_CHECK(llabs(cdr_data_stats(d)->epoch_samples - n_slots) <= 1);
    int64_t thrice[2][1024] = { { 0 } }, n_hash = 0, row = 0, n_pad;
    n_slots = cdr_data_stats(d)->epoch_samples;
    for (int epoch = 0; epoch < 2; epoch++) {
        int64_t n = 0, count[1024] = { 0 };
        while (n < n_slots) {
            n += samples_of_row(get(d, row / 2, 0, 1), row % 2, got + n, &n_pad);
            row++;
        }
        T_CHECK(n == n_slots);
        for (int64_t i = 0; i < n; i++) {
            uint64_t *at = bsearch(&got[i], want, (size_t)n_one, sizeof *want, by_value);
            if (at) count[at - want]++;
            else n_hash++;
        }
        for (int64_t i = 0; i < n_one; i++) {
            bool twin = (i > 0 && want[i] == want[i - 1]) || (i + 1 < n_one && want[i] == want[i + 1]);
            T_CHECK(twin || count[i] == 2 || count[i] == 3);
            thrice[epoch][i] = count[i];
        }
    }
    T_CHECK(n_hash == 2 * 5);
    T_CHECK(memcmp(thrice[0], thrice[1], sizeof thrice[0]) != 0);
    cdr_data_close(d);
}

static void long_samples_modes(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = NULL;
    cdr_err err = { 0 };
    int64_t n_short = 0, kept = 0, cut = 0;
    for (int i = 0; i < N_DOCS; i++) {
        n_short += docs[i].n <= S;
        kept += docs[i].n <= S ? docs[i].n : 0;
        cut += CDR_MIN(docs[i].n, (int64_t)S);
    }
    o.long_samples = CDR_LONG_DROP;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->n_documents == n_short && cdr_data_stats(d)->n_dropped == N_DOCS - n_short);
    T_CHECK(cdr_data_stats(d)->epoch_trained == kept);
    cdr_data_close(d);
    o.long_samples = CDR_LONG_TRUNCATE;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->n_documents == N_DOCS && cdr_data_stats(d)->epoch_trained == cut && cdr_data_stats(d)->epoch_samples == N_DOCS);
    cdr_data_close(d);
    o.long_samples = CDR_LONG_ERROR;
    T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EDATA);
    T_STR(err.id, "data.too-long");
    T_HAS(err.text, "004.txt");                       /* the first of more than S bytes */
}

static void epochs_and_steps(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    int64_t rows = cdr_data_stats(d)->rows_epoch0;
    T_NEAR(cdr_data_epoch(d, 0, 4), 0, 0);
    T_NEAR(cdr_data_epoch(d, 1, 4), 8.0 / (double)rows, 1e-12);
    T_CHECK(cdr_data_steps(d, 1, 4) == cdr_ceil_div(rows, 8));
    T_CHECK(cdr_data_steps(d, 0.5, 1) == cdr_ceil_div((int64_t)ceil((double)rows / 2), 2));
    for (int epochs = 1; epochs <= 7; epochs += 2) {
        int64_t steps = cdr_data_steps(d, epochs, 4);
        T_CHECK(cdr_data_epoch(d, steps, 4) >= epochs && cdr_data_epoch(d, steps - 1, 4) < epochs);
    }
    cdr_data_close(d);
}

/* One long text: all rows are full but one, and the epoch follows by division. */
static void one_long_text(void)
{
    enum { N = 20 * S + 10 };
    char text[N];
    int64_t count[N] = { 0 };
    for (int i = 0; i < N; i++) text[i] = (char)(i % 251);
    put_file(in_dir("long.txt"), text, N);
    cdr_data_source src = { .path = in_dir("long.txt") };
    cdr_data_opts o = opts_of(&src, 1);
    o.micro_batch_tokens = S;
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->rows_epoch0 == 21);
    shard *x;
    int64_t n_eos = 0, n_predicted = 0;
    for (int row = 0; row < 42; row++) {              /* two epochs; a place of the text is known by its value and the row's length */
        x = get(d, row, 0, 1);
        for (int t = 0; t < x->n_trained; t++) {
            n_eos += x->targets[t] == EOS;
            n_predicted += x->targets[t] == (x->tokens[t] + 1) % 251;
            count[x->tokens[t]]++;
        }
    }
    T_CHECK(n_eos == 2 && n_predicted == 2 * (N - 1));
    for (int v = 0; v < 251; v++) T_CHECK(count[v] == 2 * (N / 251 + (v < N % 251)));
    shard far = *get(d, 21000000000, 0, 1), again = *get(d, 21000000000, 0, 1);
    T_CHECK(memcmp(&far, &again, sizeof far) == 0 && far.n_trained >= 10);
    cdr_data_close(d);
}

/* ---- held-out text --------------------------------------------------------------------------------------------- */

/* Runs through the held-out rows; their inputs and targets one after another. */
static int64_t eval_stream(cdr_data *d, int64_t micro, int32_t *tokens, int32_t *targets, int64_t *n_bytes)
{
    int64_t n = 0;
    *n_bytes = 0;
    for (int64_t i = 0; i < cdr_data_stats(d)->eval_shards; i++) {
        shard x;
        int64_t trained, bytes;
        cdr_data_eval_shard(d, i, x.tokens, x.targets, x.start, x.pos, &trained, &bytes);
        *n_bytes += bytes;
        for (int64_t t = 0; t < micro; t++) {
            T_CHECK(x.pos[t] == t && x.start[t] >= t / S * S && (x.start[t] <= t) == (x.tokens[t] != PAD) && x.start[t] <= t + 1);
            if (x.targets[t] < 0) continue;
            tokens[n] = x.tokens[t];
            targets[n++] = x.targets[t];
            trained--;
        }
        T_CHECK(trained == 0);
    }
    return n;
}

static void eval_is_the_tail(void)
{
    enum { N = 5000, CUT = 4500 };
    char text[N];
    static int32_t tokens[N], targets[N];
    int64_t n_bytes;
    for (int i = 0; i < N; i++) text[i] = (char)('a' + draw((uint64_t)i) % 26);
    put_file(in_dir("tail.txt"), text, N);
    cdr_data_source src = { .path = in_dir("tail.txt") };
    cdr_data_opts o = opts_of(&src, 1);
    o.eval_fraction = 0.1;
    cdr_data *d = open_or_fail(&o);
    const cdr_data_stat *st = cdr_data_stats(d);
    T_CHECK(st->train_bytes == CUT && st->eval_bytes == N - CUT);
    T_CHECK(st->epoch_trained == CUT - 1);            /* the last one's successor is held out */
    int64_t n = eval_stream(d, MICRO, tokens, targets, &n_bytes);
    T_CHECK(n == N - CUT && n == st->eval_trained && n_bytes == N - CUT - 1 && n_bytes == st->eval_predicted_bytes);
    for (int64_t i = 0; i < n; i++) T_CHECK(tokens[i] == text[CUT + i] && targets[i] == (i + 1 < n ? text[CUT + i + 1] : EOS));
    for (int64_t row = 0; row < st->rows_epoch0; row++) {
        const shard *x = get(d, row / 2, 0, 1);
        for (int64_t t = row % 2 * S; t < (row % 2 + 1) * S; t++) T_CHECK(x->targets[t] != EOS);
    }
    cdr_data_close(d);
    o.eval_tokens = 100;                              /* always the same first ones */
    d = open_or_fail(&o);
    n = eval_stream(d, MICRO, tokens, targets, &n_bytes);
    T_CHECK(n == 100 && n_bytes == 100 && cdr_data_stats(d)->eval_shards == 1);
    for (int64_t i = 0; i < n; i++) T_CHECK(tokens[i] == text[CUT + i] && targets[i] == text[CUT + i + 1]);
    cdr_data_close(d);
    text[CUT - 1] = (char)0xe2;                       /* a character of three bytes across the cut stays whole */
    text[CUT] = (char)0x80;
    text[CUT + 1] = (char)0x99;
    put_file(in_dir("tail.txt"), text, N);
    o.eval_tokens = 0;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->train_bytes == CUT + 2 && cdr_data_stats(d)->eval_bytes == N - CUT - 2);
    cdr_data_close(d);
}

/* The tail of a directory: whole documents from some document on, and a part of that one; training and held-out text together
 * are all of it, and no document continues another. */
static void eval_of_many_documents(void)
{
    static int32_t tokens[N_DOCS * 3 * S], targets[N_DOCS * 3 * S];
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    int64_t total = 0, n_bytes, n_eval_docs = 0;
    for (int i = 0; i < N_DOCS; i++) total += docs[i].n;
    o.eval_fraction = 0.3;
    cdr_data *d = open_or_fail(&o);
    const cdr_data_stat *st = cdr_data_stats(d);
    T_CHECK(st->eval_bytes == (int64_t)((double)total * 0.3));
    int64_t n = eval_stream(d, MICRO, tokens, targets, &n_bytes), at = n;
    T_CHECK(n == st->eval_bytes);
    for (int i = N_DOCS - 1; i >= 0 && at > 0; i--) {
        int64_t k = CDR_MIN(docs[i].n, at);
        at -= k;
        for (int64_t j = 0; j < k; j++) {
            T_CHECK(tokens[at + j] == docs[i].bytes[docs[i].n - k + j]);
            T_CHECK(targets[at + j] == (j + 1 < k ? docs[i].bytes[docs[i].n - k + j + 1] : EOS));
        }
        n_eval_docs++;
    }
    T_CHECK(n_bytes == n - n_eval_docs);
    cdr_data_close(d);
    cdr_data_source eval = { .path = in_dir("tail.txt") };
    o.eval = &eval;
    o.n_eval = 1;
    cdr_err err = { 0 };
    T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EUSER);           /* both */
    o.eval_fraction = 0;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->eval_trained == 5000 && cdr_data_stats(d)->epoch_trained == total);
    cdr_data_close(d);
}

/* ---- sources, places, state --------------------------------------------------------------------------------------- */

static void locate_names_file_and_line(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    char where[1024], want[1024];
    int n_pad = 0, n_found = 0;
    for (int64_t step = 0; step < 30; step++) {
        const shard *x = get(d, step, 1, 2);
        for (int64_t t = 0; t < MICRO; t += 5) {
            cdr_data_locate(d, step, 1, 2, t, where, sizeof where);
            if (x->targets[t] < 0) {
                T_STR(where, "padding");
                n_pad++;
                continue;
            }
            int i = atoi(strrchr(where, '/') + 1);    /* 004.txt: the document; the line must hold the piece at this place */
            int64_t line = 1, k = 0, from = x->start[t], hits = 0;
            for (; k < docs[i].n; k++) {              /* every place where the piece up to t could stand */
                int64_t j = 0;
                while (k + j < docs[i].n && from + j <= t && docs[i].bytes[k + j] == x->tokens[from + j]) j++;
                if (from + j > t && k % S == 0) {
                    int64_t l = line;
                    for (j = 0; from + j < t; j++) l += docs[i].bytes[k + j] == '\n';
                    (void)snprintf(want, sizeof want, "%s/%03d.txt:%lld", in_dir("docs"), i, (long long)l);
                    hits += strcmp(want, where) == 0;
                }
                line += docs[i].bytes[k] == '\n';
            }
            T_CHECK(hits >= 1);
            n_found++;
        }
    }
    T_CHECK(n_found > 500 && n_pad > 5);
    cdr_data_close(d);
}

static void sources_packed_linked_refused(void)
{
    cdr_err err = { 0 };
    cdr_data *d = NULL, *e;
    T_CHECK(cdr_make_dirs(in_dir("mix/sub"), &err) == CDR_OK);
    put_file(in_dir("mix/a.txt"), "hello world", 11);
    put_file(in_dir("mix/.hidden"), "no", 2);
    put_file(in_dir("mix/empty.txt"), "", 0);
    T_CHECK(symlink("a.txt", in_dir("mix/b-link.txt")) == 0);
    cdr_data_source src = { .path = in_dir("mix") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_log_set_level(CDR_LOG_ERROR);                 /* a warning about mix/sub is right here */
    d = open_or_fail(&o);
    cdr_log_set_level(CDR_LOG_INFO);
    T_CHECK(cdr_data_stats(d)->n_documents == 1 && cdr_data_stats(d)->n_dropped == 2 && cdr_data_stats(d)->train_bytes == 11);
    cdr_data_close(d);
    src.path = in_dir("docs/199.txt");                /* the same text packed: the same shards, the same fingerprint */
    gzFile z = gzopen(in_dir("199.gz"), "wb");
    T_CHECK(gzwrite(z, docs[199].bytes, (unsigned)docs[199].n) == (int)docs[199].n && gzclose(z) == Z_OK);
    cdr_data_source gz = { .path = in_dir("199.gz") };
    d = open_or_fail(&o);
    o.train = &gz;
    e = open_or_fail(&o);
    T_CHECK(cdr_data_fingerprint(d) == cdr_data_fingerprint(e));
    T_CHECK(memcmp(get(d, 3, 0, 1), get(e, 3, 0, 1), sizeof(shard)) == 0);
    cdr_data_close(d);
    cdr_data_close(e);
    put_file(in_dir("c.jsonl"), "{}\n", 3);
    static const struct { const char *path, *format, *id; } BAD[] = {
        { "c.jsonl", NULL, "data.format" }, { "c.jsonl", "auto", "data.format" }, { "docs/001.txt", "messages", "json.syntax" }, { "absent.txt", NULL, "data.missing" },
        { "mix/empty.txt", NULL, "data.empty" }, { "mix/sub", NULL, "data.empty" },
    };
    for (int i = 0; i < CDR_COUNT(BAD); i++) {
        cdr_data_source bad = { .path = in_dir(BAD[i].path), .format = BAD[i].format };
        o.train = &bad;
        err = (cdr_err){ 0 };
        T_CHECK(cdr_data_open(&o, &d, &err) != CDR_OK);
        T_STR(err.id, BAD[i].id);
    }
    cdr_data_source text = { .path = in_dir("c.jsonl"), .format = "text" };
    o.train = &text;
    d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->epoch_trained == 3);
    cdr_data_close(d);
    o.micro_batch_tokens = S + 8;
    err = (cdr_err){ 0 };
    T_CHECK(cdr_data_open(&o, &d, &err) == CDR_EUSER);
    T_STR(err.id, "config.range");
}

/* A corpus of many small files needs no descriptor for each of them. */
static void many_small_files(void)
{
    enum { N = 1500 };
    struct rlimit was, few;
    cdr_err err = { 0 };
    char path[1200], text[64];
    int64_t total = 0;
    T_CHECK(cdr_make_dirs(in_dir("many"), &err) == CDR_OK);
    for (int i = 0; i < N; i++) {
        (void)snprintf(path, sizeof path, "%s/%04d.txt", in_dir("many"), i);
        (void)snprintf(text, sizeof text, "file %d of many\n", i);
        put_file(path, text, strlen(text));
        total += (int64_t)strlen(text);
    }
    T_CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
    few = (struct rlimit){ .rlim_cur = 256, .rlim_max = was.rlim_max };
    T_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    cdr_data_source src = { .path = in_dir("many") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    T_CHECK(cdr_data_stats(d)->n_documents == N && cdr_data_stats(d)->train_bytes == total);
    shard *x = get(d, 0, 0, 1);
    T_CHECK(x->n_trained > 0 && x->tokens[0] == 'f' && x->tokens[1] == 'i');
    cdr_data_close(d);
    T_CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
    T_CHECK(cdr_remove_tree(in_dir("many"), &err) == CDR_OK);
}

static void state_is_checked(void)
{
    cdr_data_source src = { .path = in_dir("docs") };
    cdr_data_opts o = opts_of(&src, 1);
    cdr_data *d = open_or_fail(&o);
    cdr_text t = { 0 };
    cdr_jw w = { .t = &t };
    cdr_err err = { 0 };
    cdr_pool *pool = cdr_pool_new();
    const cdr_json *root, *state;
    cdr_jw_begin(&w, NULL, '{');
    cdr_data_state(d, &w, 7, 4);
    cdr_jw_end(&w, '}');
    T_HAS(t.s, "\"cursor\":56");
    T_CHECK(cdr_json_parse(pool, t.s, t.n, "state.json", &root, &err) == CDR_OK);
    state = cdr_json_get(root, "data");
    T_CHECK(cdr_data_check_state(d, state, 7, 4, &err) == CDR_OK);
    T_CHECK(cdr_data_check_state(d, state, 14, 2, &err) == CDR_OK);
    T_CHECK(cdr_data_check_state(d, state, 8, 4, &err) == CDR_EDATA);
    T_STR(err.id, "resume.cursor");
    for (int k = 0; k < 5; k++) {                     /* whatever the order depends on is in the fingerprint */
        cdr_data_opts p = o;
        if (k == 0) p.seed++;
        if (k == 1) p.max_docs++;
        if (k == 2) p.pack_window++;
        if (k == 3) p.no_shuffle = true;
        if (k == 4) p.eval_fraction = 0.1;
        cdr_data *e = open_or_fail(&p);
        err = (cdr_err){ 0 };
        T_CHECK(cdr_data_check_state(e, state, 7, 4, &err) == CDR_EDATA);
        T_STR(err.id, "resume.data-changed");
        cdr_data_close(e);
    }
    docs[50].bytes[docs[50].n - 1] ^= 1;              /* one bit of one document */
    put_file(in_dir("docs/050.txt"), docs[50].bytes, (size_t)docs[50].n);
    cdr_data *e = open_or_fail(&o);
    T_CHECK(cdr_data_fingerprint(e) != cdr_data_fingerprint(d));
    cdr_data_close(e);
    cdr_data_close(d);
    cdr_text_free(&t);
    cdr_pool_free(pool);
}

int main(int argc, char **argv)
{
    cdr_err err = { 0 };
    t_filter = argc > 1 ? argv[1] : NULL;
    if (!files_open("data") || cdr_tokenizer_open(&(cdr_tokenizer_spec){ .type = "byte" }, &tok, &err) != CDR_OK) return 1;
    make_docs();
    T_RUN(every_sample_once_an_epoch);
    T_RUN(same_samples_on_every_layout);
    T_RUN(max_docs_and_packing_off);
    T_RUN(shuffle_off_keeps_the_order);
    T_RUN(weights_mix_sources);
    T_RUN(long_samples_modes);
    T_RUN(epochs_and_steps);
    T_RUN(one_long_text);
    T_RUN(eval_is_the_tail);
    T_RUN(eval_of_many_documents);
    T_RUN(locate_names_file_and_line);
    T_RUN(sources_packed_linked_refused);
    T_RUN(many_small_files);
    T_RUN(state_is_checked);
    for (int i = 0; i < N_DOCS; i++) free(docs[i].bytes);
    files_close();
    return t_end();
}
