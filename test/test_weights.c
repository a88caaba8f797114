/* test_weights.c: other makers' checkpoints: each tensor used once, each parameter filled once, formats, paddings, packed experts, the base's
 * hash, and directories that come back byte for byte. */
#include "test.h"

#include "models/models.h"
#include "weights/weights.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[512];                  /* a fresh directory of this process */
static cdr_pool *pool;

static const char *in_dir(const char *name)
{
    static char path[8][1024];
    static int k;
    k = (k + 1) % 8;
    (void)snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}

/* Value of element i of parameter p: small, of both signs, exact in BF16. */
static float value(int64_t p, int64_t i)
{
    uint64_t x = (uint64_t)(p * 1000003 + i) * 0x9e3779b97f4a7c15u;
    return (float)((int)(x >> 56) - 128) / 64.0f;
}

static cdr_status rows_of_values(void *ctx, int64_t p, int64_t first, int64_t n, int dtype, void *dst, cdr_err *err)
{
    (void)err;
    const cdr_model *m = ctx;
    cdr_model_part part = cdr_model_param_part(m, p);
    int64_t cols = part.n[part.n_dim - 1];
    float *x = cdr_alloc(sizeof *x * (size_t)(n * cols + 1));
    for (int64_t i = 0; i < n * cols; i++) x[i] = value(p, first * cols + i);
    cdr_from_f32(dtype, x, dst, n * cols);
    cdr_free(x);
    return CDR_OK;
}

static cdr_model *load(const char *path)
{
    cdr_model *m = NULL;
    cdr_err err = { 0 };
    cdr_model_spec s = { .path = path };
    if (cdr_model_load(&s, pool, &m, &err) != CDR_OK) fprintf(stderr, "  %s: %s\n", path, err.text);
    T_CHECK(m != NULL);
    return m;
}

/* A directory of the model's family with the values above. */
static cdr_model *write_toy(const char *name, const char *to, int experts, cdr_weights_out_stat *stat)
{
    cdr_model *m = load(name);
    cdr_err err = { 0 };
    cdr_weights_out o = { .model = m, .rows = rows_of_values, .ctx = m, .experts = experts, .layer_shards = true };
    if (!m) return NULL;
    if (cdr_weights_write(to, &o, stat, &err) != CDR_OK) fprintf(stderr, "  %s: %s\n", name, err.text);
    T_CHECK(err.status == CDR_OK);
    return m;
}

typedef struct { cdr_model *m; cdr_hf *d; cdr_weights *w; } opened;

static cdr_status open_toy(const char *path, opened *o, cdr_err *err)
{
    cdr_model_spec s = { .path = path };
    *o = (opened){ 0 };
    CDR_TRY(cdr_model_load(&s, pool, &o->m, err));
    CDR_TRY(cdr_hf_open(path, &o->d, err));
    return cdr_weights_open(o->m, o->d, &o->w, err);
}

static void close_toy(opened *o)
{
    cdr_weights_close(o->w);
    cdr_hf_close(o->d);
    *o = (opened){ 0 };
}

static bool same_file(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    size_t nx = 0, ny = 0;
    bool same = cdr_file_read(a, 1 << 28, &x, &nx, NULL) == CDR_OK && cdr_file_read(b, 1 << 28, &y, &ny, NULL) == CDR_OK && nx == ny && memcmp(x, y, nx) == 0;
    cdr_free(x);
    cdr_free(y);
    return same;
}

/* Same names of files and the same bytes. */
static bool same_dirs(const char *a, const char *b)
{
    int n[2] = { 0 };
    bool same = true;
    for (int k = 0; k < 2; k++) {
        DIR *d = opendir(k ? b : a);
        for (const struct dirent *e; d && (e = readdir(d));) {
            char x[2048], y[2048];
            if (e->d_name[0] == '.') continue;
            n[k]++;
            (void)snprintf(x, sizeof x, "%s/%s", a, e->d_name);
            (void)snprintf(y, sizeof y, "%s/%s", b, e->d_name);
            if (k == 0 && !same_file(x, y)) fprintf(stderr, "  %s differs\n", e->d_name), same = false;
        }
        if (d) closedir(d);
    }
    return same && n[0] > 0 && n[0] == n[1];
}

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

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    (void)snprintf(dir, sizeof dir, "%s/cadre-test-weights-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(dir)) return 1;
    pool = cdr_pool_new();
    T_RUN(families_come_back);
    cdr_pool_free(pool);
    (void)cdr_remove_tree(dir, NULL);
    return t_end();
}
