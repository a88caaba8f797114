/* test_dsa.c: DeepSeek sparse attention as a whole: selection, both cores of the attention over it, and the loss that trains the
 * selection. Properties that join several calls, on every CPU kernel of this machine; single kernels against the double reference are in
 * the folders' tables of cases. Source of the list: spec/operators.md, 1.10. */
#include "base/base.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/indexer/indexer.h"
#include "test.h"

/* ---- tensors and calls ------------------------------------------------------------------------------------------- */
typedef struct { cdr_type t; void *p; } tensor;
static const tensor absent = { .t = { .dtype = CDR_N_DTYPES } };

static tensor tensor_new(int dtype, int64_t rows, int64_t cols)
{
    tensor x = { .t = cols > 0 ? cdr_type_2d(dtype, rows, cols) : cdr_type_1d(dtype, rows) };
    x.p = cdr_alloc(cdr_type_bytes(&x.t) + 64);
    memset(x.p, 0xff, cdr_type_bytes(&x.t));
    return x;
}
static bool same(const tensor *a, const tensor *b) { return memcmp(a->p, b->p, cdr_type_bytes(&a->t)) == 0; }
static bool same_row(const tensor *a, int64_t i, const tensor *b, int64_t j)
{
    size_t n = (size_t)cdr_dtype_bytes(a->t.dtype, cdr_type_cols(&a->t));
    return memcmp((char *)a->p + (size_t)i * n, (char *)b->p + (size_t)j * n, n) == 0;
}
static float *row_f32(const tensor *a, int64_t t) { return (float *)a->p + t * cdr_type_cols(&a->t); }
static int32_t *ints(const tensor *a) { return a->p; }
static bool has_bit(const tensor *sel, int64_t t, int64_t s) { return (((const uint32_t *)sel->p)[t * sel->t.n[1] + s / 32] >> (s % 32) & 1u) != 0; }

/* The k-th kernel of op that runs here and takes the call, NULL after the last. */
static const cdr_kernel *kernel_at(const cdr_op *op, const void *attr, int n_in, int n_out, const cdr_type *t, int k)
{
    uint32_t isa = cdr_cpu_isa(NULL);
    for (const cdr_kernel *q = op->kernels; q->name; q++) {
        if (q->device != CDR_DEV_CPU || (q->needs & ~isa) || (q->reject && q->reject(attr, n_in, n_out, t))) continue;
        if (k-- == 0) return q;
    }
    return NULL;
}
/* Runs the k-th kernel; makes the outputs, of the inferred types. False: there is no such kernel. */
static bool call(const cdr_op *op, int k, const void *attr, int n_in, const tensor *in, tensor *out, int n_threads)
{
    cdr_type t[32];
    void *p[32];
    int n_out = 0;
    cdr_err e = { CDR_OK, "", "" };
    for (int i = 0; i < n_in; i++) t[i] = in[i].t, p[i] = in[i].p;
    if (op->infer(attr, n_in, t, &n_out, t + n_in, &e) != CDR_OK) {
        fprintf(stderr, "  %s\n", e.text);
        T_CHECK(e.status == CDR_OK);
        return false;
    }
    const cdr_kernel *q = kernel_at(op, attr, n_in, n_out, t, k);
    if (!q) return false;
    for (int o = 0; o < n_out; o++) {
        out[o] = cdr_absent(&t[n_in + o]) ? absent : tensor_new(t[n_in + o].dtype, t[n_in + o].n[0], t[n_in + o].n_dim == 2 ? t[n_in + o].n[1] : 0);
        p[n_in + o] = out[o].p;
    }
    size_t bytes = q->work_bytes ? q->work_bytes(attr, n_in, n_out, t, n_threads) : 0;
    void *work = cdr_alloc(bytes + 64);
    memset(work, 0xff, bytes);
    cdr_lane lane = { .n_threads = n_threads };
    cdr_args a = { .attr = attr, .type = t, .ptr = p, .n_in = n_in, .n_out = n_out, .work = work, .lane = &lane };
    T_CHECK(q->run(&a) == CDR_OK);
    cdr_free(work);
    return true;
}
static void drop(tensor *x, int n)
{
    for (int i = 0; i < n; i++) cdr_free(x[i].p);
}

/* ---- a model's one layer -------------------------------------------------------------------------------------------- */
enum { HI = 3, DI = 16, H = 2, NOPE = 8, EXT = 8, V = 16 };
enum { QI, KI, W, Q, KV, KR, START, POS, DENSE, N_FIELDS };
typedef struct { int64_t T; tensor f[N_FIELDS]; } layer;
static const cdr_attention_attr att[2] = {
    { .heads = H, .nope = NOPE, .ext = EXT, .v = V, .scale = 0.25f },
    { .heads = H, .nope = NOPE, .ext = EXT, .v = V, .scale = 0.25f, .core = CDR_ATT_GATHERED } };
static const cdr_indexer_loss_attr loss_attr = { .heads = HI, .dim = DI, .main_heads = H, .nope = NOPE, .ext = EXT, .v = V, .scale = 0.25f, .coef = 0.5f };

static cdr_indexer_attr top(int k) { return (cdr_indexer_attr){ .heads = HI, .dim = DI, .top_k = k }; }

/* Row t of `as` in every field that has a row for each token, drawn by the number `as`. integers: small ones, so that scores are exact. */
static void draw_row(layer *l, int64_t t, int64_t as, bool integers)
{
    for (int i = QI; i <= KR; i++) {
        int64_t n = cdr_type_cols(&l->f[i].t);
        for (int64_t j = 0; j < n; j++) {
            cdr_rng_key key = { 4242, (uint64_t)i, 0 };
            uint64_t at = (uint64_t)(as * n + j);
            row_f32(&l->f[i], t)[j] = integers && i <= W ? (float)(cdr_rng_u64(key, at) % 7) - 3.0f : (float)cdr_rng_normal(key, at);
        }
    }
}
/* Documents of these lengths in this order, a negative length: so many idle rows. The numbers are those of the row counted over live rows. */
static layer layer_new(const int *len, int n_len, bool integers)
{
    static const int64_t cols[] = { HI * DI, DI, HI, H * (NOPE + EXT), H * (NOPE + V), EXT };
    layer l = { 0 };
    for (int i = 0; i < n_len; i++) l.T += len[i] < 0 ? -len[i] : len[i];
    for (int i = QI; i <= KR; i++) l.f[i] = tensor_new(CDR_F32, l.T, cols[i]);
    for (int i = START; i <= DENSE; i++) l.f[i] = tensor_new(CDR_I32, i == DENSE ? 1 : l.T, 0);
    ints(&l.f[DENSE])[0] = 0;
    int64_t t = 0, live = 0;
    for (int i = 0; i < n_len; i++) {
        int64_t first = t;
        for (; t < first + (len[i] < 0 ? -len[i] : len[i]); t++) {
            draw_row(&l, t, len[i] < 0 ? 100000 + t : live++, integers);
            ints(&l.f[START])[t] = (int32_t)(len[i] < 0 ? t + 1 : first);
            ints(&l.f[POS])[t] = (int32_t)t;
        }
    }
    return l;
}
static void layer_free(layer *l) { drop(l->f, N_FIELDS); }

static bool select_keys(const layer *l, int k, int top_k, int n_threads, tensor *sel)
{
    const cdr_indexer_attr a = top(top_k);
    tensor in[] = { l->f[QI], l->f[KI], l->f[W], l->f[START], l->f[POS], l->f[DENSE] };
    return call(&cdr_op_indexer, k, &a, 6, in, sel, n_threads);
}
/* out: o, nothing (o is its own o32), lse */
static bool attend(const layer *l, int k, int core, tensor sel, tensor *out)
{
    cdr_attention_attr a = att[core];
    a.o_f32 = 1;
    tensor in[] = { l->f[Q], l->f[KV], l->f[KR], l->f[START], l->f[POS], sel };
    return call(&cdr_op_attention, k, &a, 6, in, out, 2);
}
/* out: dq, dkv, dkr. The gradient of o is q's first columns, cut: any numbers do. */
static bool attend_bwd(const layer *l, int k, int core, tensor sel, const tensor *o, tensor *out)
{
    tensor dout = tensor_new(CDR_F32, l->T, H * V);
    for (int64_t t = 0; t < l->T; t++) for (int64_t j = 0; j < H * V; j++) row_f32(&dout, t)[j] = row_f32(&l->f[KV], t)[j] * 0.5f;
    tensor in[] = { dout, l->f[Q], l->f[KV], l->f[KR], l->f[START], l->f[POS], o[0], o[2], sel };
    bool ran = call(&cdr_op_attention_bwd, k, &att[core], 9, in, out, 2);
    drop(&dout, 1);
    return ran;
}
static void loss_inputs(const layer *l, tensor lse, tensor sel, tensor *in)
{
    tensor all[] = { l->f[QI], l->f[KI], l->f[W], l->f[Q], l->f[KV], l->f[KR], lse, sel, l->f[START], l->f[POS] };
    memcpy(in, all, sizeof all);
}
/* kl, and dqI, dkI, dw (g) with scale 1 / rows */
static bool loss_of(const layer *l, int k, tensor lse, tensor sel, float scale, int n_threads, double *kl, tensor *g)
{
    tensor in[11], out, one = tensor_new(CDR_F32, 1, 0);
    ((float *)one.p)[0] = scale;
    loss_inputs(l, lse, sel, in);
    in[10] = one;
    bool ran = call(&cdr_op_indexer_loss, k, &loss_attr, 10, in, &out, n_threads);
    if (ran) {
        *kl = ((double *)out.p)[0];
        drop(&out, 1);
        T_CHECK(call(&cdr_op_indexer_loss_bwd, k, &loss_attr, 11, in, g, n_threads));
    }
    drop(&one, 1);
    return ran;
}

/* ---- selection ----------------------------------------------------------------------------------------------------- */
typedef struct { double score; int64_t s; } scored;
static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->s < y->s ? -1 : x->s > y->s;
}
/* Row t's selection, by a sort. */
static bool is_sorted_choice(const layer *l, const tensor *sel, int64_t t, int top_k, bool dense)
{
    int64_t first = ints(&l->f[START])[t], last = ints(&l->f[POS])[t], n = 0, S = cdr_type_rows(&l->f[KI].t);
    scored *all = cdr_alloc(sizeof(scored) * (size_t)(S + 1));
    bool *taken = cdr_alloc((size_t)(S + 1)), ok = true;
    memset(taken, 0, (size_t)S + 1);
    for (int64_t s = first; s <= last; s++) {
        double sum = 0;
        for (int j = 0; j < HI; j++) {
            double x = 0;
            for (int d = 0; d < DI; d++) x += (double)row_f32(&l->f[QI], t)[j * DI + d] * (double)row_f32(&l->f[KI], s)[d];
            sum += (double)row_f32(&l->f[W], t)[j] * (x > 0 ? x : 0);
        }
        all[n++] = (scored){ sum, s };
    }
    qsort(all, (size_t)n, sizeof *all, by_score);
    for (int64_t i = 0; i < n && (i < top_k || dense); i++) taken[all[i].s] = true;
    for (int64_t s = 0; s < 32 * sel->t.n[1]; s++) ok = ok && has_bit(sel, t, s) == (s < S && taken[s]);
    cdr_free(all);
    cdr_free(taken);
    return ok;
}

static void selection_is_that_of_a_sort(void)
{
    static const int top_k[] = { 1, 7, 64, 200 };          /* documents below, at and above */
    const int len[] = { 1, 6, 7, 8, -3, 63, 64, 65, 150, -1, 200, 90 };
    layer l = layer_new(len, CDR_COUNT(len), true);
    for (int i = 0; i < CDR_COUNT(top_k); i++)
        for (int dense = 0; dense < 2; dense++) {
            tensor sel;
            ints(&l.f[DENSE])[0] = dense ? 5 : 0;
            for (int k = 0; select_keys(&l, k, top_k[i], 2, &sel); k++) {
                int64_t bad = 0;
                for (int64_t t = 0; t < l.T; t++) bad += is_sorted_choice(&l, &sel, t, top_k[i], dense) ? 0 : 1;
                T_CHECK(bad == 0);
                drop(&sel, 1);
            }
        }
    layer_free(&l);
}

/* All scores equal (w = 0): the lowest keys. Zeros of both signs are equal. A NaN is taken, so that it is seen. */
static void ties_and_special_scores(void)
{
    const int len[] = { 40 };
    layer l = layer_new(len, 1, true);
    tensor sel;
    for (int64_t t = 0; t < 40; t++) for (int j = 0; j < HI; j++) row_f32(&l.f[W], t)[j] = j == 0 && t % 2 ? -0.0f : 0.0f;
    for (int64_t j = 0; j < DI; j++) row_f32(&l.f[KI], 20)[j] = NAN;
    for (int k = 0; select_keys(&l, k, 10, 1, &sel); k++) {
        for (int64_t t = 10; t < 40; t++)
            for (int64_t s = 0; s <= t; s++) T_CHECK(has_bit(&sel, t, s) == (t >= 20 ? s < 9 || s == 20 : s < 10));
        drop(&sel, 1);
    }
    layer_free(&l);
}

/* A row from a cache, alone or in any order, selects what it selected in training; so does a document that lies elsewhere; and
 * later rows change nothing. */
static void selection_knows_its_document_alone(void)
{
    const int len[] = { 30, 100, -2, 75 }, alone[] = { 100 };
    layer l = layer_new(len, CDR_COUNT(len), false), d = layer_new(alone, 1, false), later = layer_new(len, CDR_COUNT(len), false), gen = layer_new(alone, 1, false);
    tensor sel, part, after, cache;
    for (int64_t t = 0; t < 100; t++) draw_row(&d, t, 30 + t, false);
    for (int64_t t = 90; t < l.T; t++) draw_row(&later, t, 5000 + t, false);
    for (int64_t t = 0; t < 100; t++) draw_row(&gen, t, 30 + t, false);
    for (int k = 0; select_keys(&l, k, 12, 2, &sel); k++) {
        T_CHECK(select_keys(&d, k, 12, 1, &part) && select_keys(&later, k, 12, 1, &after));
        for (int64_t t = 0; t < 100; t++)
            for (int64_t s = 0; s < 100; s++) T_CHECK(has_bit(&part, t, s) == has_bit(&sel, t + 30, s + 30));
        for (int64_t t = 0; t < 90; t++) T_CHECK(same_row(&sel, t, &after, t));
        for (int64_t first = 0; first < 100; first += 7) {                    /* turns of up to 3 rows of the cache, one of them idle */
            layer g = gen;
            for (int i = 0; i < N_FIELDS; i++) {
                if (i == KI || i == KV || i == KR || i == DENSE) continue;
                g.f[i] = tensor_new(gen.f[i].t.dtype, 3, gen.f[i].t.n_dim == 2 ? gen.f[i].t.n[1] : 0);
            }
            const int64_t rows[3] = { first, 99 - first, 99 - first };
            for (int r = 0; r < 3; r++) {
                memcpy(row_f32(&g.f[QI], r), row_f32(&gen.f[QI], rows[r]), sizeof(float) * HI * DI);
                memcpy(row_f32(&g.f[W], r), row_f32(&gen.f[W], rows[r]), sizeof(float) * HI);
                ints(&g.f[START])[r] = r == 2 ? (int32_t)rows[r] + 1 : 0;
                ints(&g.f[POS])[r] = (int32_t)rows[r];
            }
            T_CHECK(select_keys(&g, k, 12, 1, &cache));
            for (int r = 0; r < 2; r++) T_CHECK(same_row(&cache, r, &part, rows[r]));
            for (int64_t s = 0; s < 100; s++) T_CHECK(!has_bit(&cache, 2, s));
            drop(&cache, 1);
            for (int i = 0; i < N_FIELDS; i++) if (g.f[i].p != gen.f[i].p) cdr_free(g.f[i].p);
        }
        drop(&sel, 1), drop(&part, 1), drop(&after, 1);
    }
    layer_free(&l), layer_free(&d), layer_free(&later), layer_free(&gen);
}

/* ---- attention over a selection ------------------------------------------------------------------------------------ */
static void no_more_keys_than_top_k_is_dense_attention(void)
{
    const int len[] = { 100, 40, -3, 64, 1 };
    layer l = layer_new(len, CDR_COUNT(len), false);
    tensor sel, o[3], with[3], g[3], g_with[3];
    T_CHECK(select_keys(&l, 0, 100, 2, &sel));
    for (int core = 0; core < 2; core++) {
        int k = 0;
        for (; attend(&l, k, core, absent, o); k++) {
            T_CHECK(attend(&l, k, core, sel, with) && attend_bwd(&l, k, core, absent, o, g) && attend_bwd(&l, k, core, sel, with, g_with));
            T_CHECK(same(&o[0], &with[0]) && same(&o[2], &with[2]));
            for (int i = 0; i < 3; i++) T_CHECK(same(&g[i], &g_with[i]));
            drop(o, 3), drop(with, 3), drop(g, 3), drop(g_with, 3);
        }
        T_CHECK(k > 0);
    }
    drop(&sel, 1);
    layer_free(&l);
}

static double distance(const tensor *a, const tensor *b)
{
    int64_t n = cdr_type_elems(&a->t);
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = (double)((float *)a->p)[i], y = (double)((float *)b->p)[i];
        diff += (x - y) * (x - y);
        norm += y * y;
    }
    return sqrt(diff / norm);
}

static void both_cores_agree(void)
{
    const int len[] = { 300, 90, -2, 17 };
    layer l = layer_new(len, CDR_COUNT(len), false);
    tensor sel, masked[3], o[3], g_masked[3], g[3];
    T_CHECK(select_keys(&l, 0, 40, 2, &sel));
    for (int k = 0; attend(&l, k, CDR_ATT_DENSE, sel, masked); k++) {
        T_CHECK(attend(&l, 0, CDR_ATT_GATHERED, sel, o));
        T_CHECK(attend_bwd(&l, k, CDR_ATT_DENSE, sel, masked, g_masked) && attend_bwd(&l, 0, CDR_ATT_GATHERED, sel, o, g));
        T_CHECK(distance(&masked[0], &o[0]) < 1e-6 && distance(&masked[2], &o[2]) < 1e-6);
        for (int i = 0; i < 3; i++) T_CHECK(distance(&g_masked[i], &g[i]) < 2e-6);
        T_CHECK(!same(&masked[0], &o[0]));                  /* the two are told apart by the attribute alone, and differ in bits */
        drop(masked, 3), drop(o, 3), drop(g_masked, 3), drop(g, 3);
    }
    drop(&sel, 1);
    layer_free(&l);
}

/* softmax over an explicit list, in double, written once more */
static void attention_over_an_explicit_list(void)
{
    const int len[] = { 80, 33 };
    layer l = layer_new(len, 2, false);
    tensor sel, o[3];
    T_CHECK(select_keys(&l, 0, 9, 1, &sel));
    for (int core = 0; core < 2; core++)
        for (int k = 0; attend(&l, k, core, sel, o); k++) {
            double worst = 0;
            for (int64_t t = 0; t < l.T; t++)
                for (int h = 0; h < H; h++) {
                    double sum = 0, out[V] = { 0 };
                    for (int64_t s = 0; s < l.T; s++) {
                        const float *q = row_f32(&l.f[Q], t) + h * (NOPE + EXT), *kv = row_f32(&l.f[KV], s) + h * (NOPE + V);
                        double x = 0;
                        if (!has_bit(&sel, t, s)) continue;
                        for (int d = 0; d < NOPE; d++) x += (double)q[d] * (double)kv[d];
                        for (int d = 0; d < EXT; d++) x += (double)q[NOPE + d] * (double)row_f32(&l.f[KR], s)[d];
                        sum += exp(0.25 * x);
                        for (int d = 0; d < V; d++) out[d] += exp(0.25 * x) * (double)kv[NOPE + d];
                    }
                    for (int d = 0; d < V; d++) worst = fmax(worst, fabs(out[d] / sum - (double)row_f32(&o[0], t)[h * V + d]));
                    worst = fmax(worst, fabs(log(sum) - (double)row_f32(&o[2], t)[h]));
                }
            T_CHECK(worst < 3e-6);
            drop(o, 3);
        }
    drop(&sel, 1);
    layer_free(&l);
}

/* ---- the loss -------------------------------------------------------------------------------------------------------- */
/* Omega and lse of the layer, by the first kernels. */
static void selection_and_lse(const layer *l, int top_k, tensor *sel, tensor *lse)
{
    tensor o[3];
    T_CHECK(select_keys(l, 0, top_k, 1, sel) && attend(l, 0, CDR_ATT_DENSE, *sel, o));
    *lse = o[2];
    drop(o, 2);
}

static double loss_in_double(const layer *l, tensor lse, tensor sel, int field, int64_t at, double delta)
{
    tensor in[10];
    cdr_type t[11];
    double *x[10], kl = 0, *out = &kl;
    loss_inputs(l, lse, sel, in);
    for (int i = 0; i < 10; i++) {
        int64_t n = cdr_type_elems(&in[i].t);
        t[i] = in[i].t;
        x[i] = cdr_alloc(sizeof(double) * (size_t)n);
        cdr_to_f64(t[i].dtype, in[i].p, x[i], n);
    }
    x[field][at] += delta;
    cdr_ref_args a = { &loss_attr, 10, 1, t, (const double *const *)x, &out };
    cdr_op_indexer_loss.ref(&a);
    for (int i = 0; i < 10; i++) cdr_free(x[i]);
    return kl;
}

/* Is every product of the indexer, of the pairs that are selected, farther than `margin` from the relu's corner? */
static double least_product(const layer *l, const tensor *sel)
{
    double least = INFINITY;
    for (int64_t t = 0; t < l->T; t++)
        for (int64_t s = 0; s < l->T; s++)
            for (int j = 0; j < HI && has_bit(sel, t, s); j++) {
                double x = 0;
                for (int d = 0; d < DI; d++) x += (double)row_f32(&l->f[QI], t)[j * DI + d] * (double)row_f32(&l->f[KI], s)[d];
                least = fmin(least, fabs(x));
            }
    return least;
}

static void gradient_is_that_of_finite_differences(void)
{
    const int len[] = { 14, -1, 9 };
    layer l = layer_new(len, CDR_COUNT(len), false);
    tensor sel, lse, g[3];
    double kl;
    selection_and_lse(&l, 6, &sel, &lse);
    double h = 1e-6;
    T_CHECK(least_product(&l, &sel) > 10 * h);             /* no step crosses a corner */
    for (int k = 0; loss_of(&l, k, lse, sel, 1.0f, 2, &kl, g); k++) {
        T_NEAR(kl, loss_in_double(&l, lse, sel, 0, 0, 0), 1e-5);
        for (int field = 0; field < 3; field++) {
            int64_t n = cdr_type_elems(&l.f[field].t);
            double worst = 0, size = 0;
            for (int64_t i = 0; i < n; i++) {
                double fd = (loss_in_double(&l, lse, sel, field, i, h) - loss_in_double(&l, lse, sel, field, i, -h)) / (2 * h), got = (double)((float *)g[field].p)[i];
                worst = fmax(worst, fabs(fd - got));
                size = fmax(size, fabs(fd));
            }
            T_CHECK(size > 1e-3 && worst < 2e-5 * size + 1e-7);
        }
        drop(g, 3);
    }
    drop(&sel, 1), drop(&lse, 1);
    layer_free(&l);
}

/* One key: the two distributions are one. */
static void a_row_of_one_key_gives_nothing(void)
{
    const int len[] = { 20, 1, 5 };
    layer l = layer_new(len, CDR_COUNT(len), false);
    tensor sel, lse, g[3];
    double kl;
    selection_and_lse(&l, 1, &sel, &lse);
    for (int k = 0; loss_of(&l, k, lse, sel, 1.0f, 2, &kl, g); k++) {
        T_CHECK(kl == 0);
        for (int i = 0; i < 3; i++)
            for (int64_t j = 0; j < cdr_type_elems(&g[i].t); j++) T_CHECK(((float *)g[i].p)[j] == 0.0f);
        drop(g, 3);
    }
    drop(&sel, 1), drop(&lse, 1);
    layer_free(&l);
}

/* The live rows' numbers, wherever the idle rows are, whatever is in those, and whichever documents lie beside. */
static void idle_rows_and_neighbours_change_no_bit(void)
{
    const int packs[][7] = { { 70, 41, 9, -7, 0 }, { -7, 70, 41, 9, 0 }, { 70, -2, 41, -4, 9, -1, 0 } };
    layer l[3];
    tensor sel[3], lse[3], g[3][3];
    double kl[3];
    for (int i = 0; i < 3; i++) {
        int n = 0;
        while (packs[i][n] != 0) n++;
        l[i] = layer_new(packs[i], n, false);
        selection_and_lse(&l[i], 11, &sel[i], &lse[i]);
    }
    const int first[] = { 70 };                            /* and the first document as a pack of its own */
    layer d = layer_new(first, 1, false);
    tensor d_sel, d_lse, d_g[3];
    double d_kl;
    selection_and_lse(&d, 11, &d_sel, &d_lse);
    for (int k = 0; loss_of(&l[0], k, lse[0], sel[0], 0.125f, 1, &kl[0], g[0]); k++) {
        for (int i = 1; i < 3; i++) T_CHECK(loss_of(&l[i], k, lse[i], sel[i], 0.125f, 3, &kl[i], g[i]) && kl[i] == kl[0]);
        T_CHECK(loss_of(&d, k, d_lse, d_sel, 0.125f, 2, &d_kl, d_g));
        for (int i = 0; i < 3; i++)
            for (int64_t t = 0, a = 0; t < l[i].T; t++) {
                bool idle = ints(&l[i].f[START])[t] > ints(&l[i].f[POS])[t];
                for (int f = 0; f < 3; f++) {
                    if (!idle) T_CHECK(same_row(&g[i][f], t, &g[0][f], a));
                    if (!idle && a < 70) T_CHECK(same_row(&g[i][f], t, &d_g[f], a));
                    for (int64_t j = 0; idle && j < cdr_type_cols(&g[i][f].t); j++) T_CHECK(row_f32(&g[i][f], t)[j] == 0.0f);
                }
                a += idle ? 0 : 1;
            }
        for (int i = 0; i < 3; i++) drop(g[i], 3);
        drop(d_g, 3);
    }
    for (int i = 0; i < 3; i++) drop(&sel[i], 1), drop(&lse[i], 1), layer_free(&l[i]);
    drop(&d_sel, 1), drop(&d_lse, 1), layer_free(&d);
}

static void threads_change_no_bit(void)
{
    const int len[] = { 5, 260, -3, 64 };
    layer l = layer_new(len, CDR_COUNT(len), false);
    tensor sel, lse, more, g[3], g_more[3];
    double kl, kl_more;
    selection_and_lse(&l, 30, &sel, &lse);
    for (int k = 0; loss_of(&l, k, lse, sel, 1.0f, 1, &kl, g); k++) {
        for (int n = 2; n <= 5; n++) {
            T_CHECK(select_keys(&l, k, 30, n, &more) && same(&more, &sel));
            T_CHECK(loss_of(&l, k, lse, sel, 1.0f, n, &kl_more, g_more) && kl == kl_more);
            for (int i = 0; i < 3; i++) T_CHECK(same(&g[i], &g_more[i]));
            drop(&more, 1), drop(g_more, 3);
        }
        drop(g, 3);
    }
    drop(&sel, 1), drop(&lse, 1);
    layer_free(&l);
}

/* ---- the graph ------------------------------------------------------------------------------------------------------- */
/* grad of the loss leaves nothing for the main attention, though it is asked for it; lse comes from the call that made o. */
static void nothing_flows_to_the_main_attention(void)
{
    cdr_err e = { CDR_OK, "", "" };
    cdr_bundle b = { 0 };
    cdr_pool *pool = cdr_pool_new();
    cdr_graph *g = cdr_graph_new(pool, &b, "dsa", &e);
    const int64_t T = 40, cols[] = { HI * DI, DI, HI, H * (NOPE + EXT), H * (NOPE + V), EXT };
    const cdr_indexer_attr ia = top(8);
    cdr_val v[N_FIELDS];
    cdr_graph_list(g, "forward");
    for (int i = QI; i <= KR; i++) v[i] = cdr_graph_value(g, cdr_type_2d(i == W ? CDR_F32 : CDR_BF16, T, cols[i]), CDR_TURN, CDR_C_ACT, "x");
    for (int i = START; i <= DENSE; i++) v[i] = cdr_graph_value(g, cdr_type_1d(CDR_I32, i == DENSE ? 1 : T), CDR_TURN, CDR_C_INPUT, "i");
    cdr_val sel = cdr_indexer(g, v[QI], v[KI], v[W], v[START], v[POS], v[DENSE], &ia);
    cdr_attention_attr a = att[CDR_ATT_GATHERED];
    a.o_f32 = 1;
    cdr_val o = cdr_attention_sel(g, v[Q], v[KV], v[KR], sel, v[START], v[POS], &a), lse = cdr_attention_lse(g, o);
    cdr_val kl = cdr_indexer_loss(g, v[QI], v[KI], v[W], v[Q], v[KV], v[KR], lse, sel, v[START], v[POS], &loss_attr);
    T_CHECK(!g->failed && sel >= 0 && o >= 0 && lse >= 0 && kl >= 0);
    T_CHECK(cdr_graph_type(g, o)->dtype == CDR_F32 && cdr_graph_type(g, lse)->n[1] == H && cdr_graph_type(g, kl)->dtype == CDR_F64);
    T_CHECK((cdr_op_indexer.flags & CDR_OP_KEEP) != 0 && cdr_op_indexer.grad == NULL);
    cdr_call c = g->calls[g->n_calls - 1];
    cdr_val dout[1] = { cdr_graph_value(g, cdr_type_1d(CDR_F32, 1), CDR_TURN, CDR_C_ACT, "scale") }, din[10];
    bool want[10];
    for (int i = 0; i < 10; i++) want[i] = true, din[i] = 7;
    T_CHECK(cdr_op_indexer_loss.grad(g, &c, dout, want, din, &e) == CDR_OK && !g->failed);
    for (int i = 0; i < 3; i++) T_CHECK(din[i] >= CDR_LOCAL0);
    for (int i = 3; i < 10; i++) T_CHECK(din[i] == CDR_NONE);
    T_CHECK(cdr_attention_lse(g, sel) == CDR_NONE && g->failed);
    T_HAS(e.text, "no call of it made this value");
    cdr_pool_free(pool);
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    T_RUN(selection_is_that_of_a_sort);
    T_RUN(ties_and_special_scores);
    T_RUN(selection_knows_its_document_alone);
    T_RUN(no_more_keys_than_top_k_is_dense_attention);
    T_RUN(both_cores_agree);
    T_RUN(attention_over_an_explicit_list);
    T_RUN(gradient_is_that_of_finite_differences);
    T_RUN(a_row_of_one_key_gives_nothing);
    T_RUN(idle_rows_and_neighbours_change_no_bit);
    T_RUN(threads_change_no_bit);
    T_RUN(nothing_flows_to_the_main_attention);
    return t_end();
}
