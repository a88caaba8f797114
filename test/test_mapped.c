/* test_mapped.c: packed experts that stay in their mapped file: the bits of those that are copied, in training, evaluation and generation, on
 * any layout of ranks; what is not mapped and why; the bytes; which ranges of a file are read ahead of which call.
 */
#include "lora_rig.h"
#include "run/exec.h"
#include "spread_rig.h"
#include <sys/mman.h>
#include <sys/syscall.h>

static lora_result *mapped, *copied;

/* n: stacks that must be mapped */
static void both_ways(lora_run c, int n, const char *what)
{
    c.packed = true;
    c.map = true;
    T_CHECK(lora_go(&c, mapped) == 0);
    c.map = false;
    T_CHECK(lora_go(&c, copied) == 0);
    const bool same = lora_equal(mapped, copied);
    if (!same) fprintf(stderr, "  %s: other bits where experts are mapped\n", what);
    T_CHECK(same && copied->n_mapped == 0 && mapped->n_mapped == n && mapped->loss[0] > 0);
    if (mapped->n_mapped != n) fprintf(stderr, "  %s: %lld stacks are mapped\n", what, (long long)mapped->n_mapped);
    T_CHECK(mapped->slab_bytes == mapped->planned_bytes && mapped->slab_bytes < copied->slab_bytes);
}

static void mapping_changes_no_bit(void)
{
    lora_run c = lora_default();
    c.filled = true;
    both_ways(c, 9, "adapters on experts");
    c.experts = false;
    both_ways(c, 9, "no adapters on experts");
    c.n_threads = 2;
    c.policy = CDR_POLICY_RECOMPUTE;
    both_ways(c, 9, "two threads, recomputed");
    c.compute = CDR_BF16;
    both_ways(c, 9, "bf16");
}

static void no_rank_gathers_what_it_maps(void)
{
    lora_run c = lora_default();
    c.filled = true;
    c.shard = 2;
    c.n_micro = 2;
    both_ways(c, 9, "two shards");
    c.experts = false;
    c.expert = 2;
    both_ways(c, 9, "two ranks, an expert group");
    c.shard = 4;
    c.n_micro = 1;
    both_ways(c, 9, "four ranks, two expert groups");
    c.experts = true;
    both_ways(c, 9, "four ranks, two expert groups, adapters on experts");
}

/* One rank and four have the same bits where experts are mapped, as they have where they are copied. */
static void ranks_agree(void)
{
    spread_result *one = spread_shared(), *got = spread_shared();
    spread c = spread_default();
    c.steps = 2;
    c.s.experts_dtype = CDR_MXFP4;
    c.s.map = true;
    c.s.freeze[0] = "*experts*";
    c.s.n_freeze = 1;
    T_CHECK(spread_go(&c, one));
    c.s.shard = 4;
    T_CHECK(spread_go(&c, got) && spread_equal("shard 4", one, got));
    c.s.expert = 4;
    T_CHECK(spread_go(&c, got) && spread_equal("shard 4, ep 4", one, got));
    c.s.balanced = true;                                    /* copied */
    T_CHECK(spread_go(&c, got) && spread_equal("shard 4, ep 4, balanced", one, got));
    munmap(one, sizeof *one);
    munmap(got, sizeof *got);
}

static setup frozen(void)
{
    setup s = small();
    s.freeze[0] = "*experts*";
    s.n_freeze = 1;
    s.experts_dtype = CDR_MXFP4;
    s.map = true;
    return s;
}

static bool is_stack(const cdr_param *q) { return q->place == CDR_PLACE_EXPERT && q->global.n_dim == 3; }

static void compiled(setup s, rig *r, const char *why)
{
    cdr_err e = { CDR_OK, "", "" };
    cdr_text t = { 0 };
    int n = 0;
    T_CHECK(compile_rig(&s, 0, r, &e) == CDR_OK);
    for (int32_t i = 0; i < r->b.n_params; i++) {
        const cdr_param *q = &r->b.params[i];
        if (!is_stack(q)) T_CHECK(!q->mapped);
        else T_STR(q->layout_why, why);
        n += is_stack(q);
        T_CHECK((q->layout == CDR_MAPPED) == q->mapped && r->b.shared[q->shard].t.layout == q->layout);
    }
    T_CHECK(n == 9);
    cdr_compile_why(&t, &r->o, &r->b);
    T_HAS(t.s, why);
    cdr_text_free(&t);
}

static void what_is_not_mapped_says_why(void)
{
    rig r;
    setup s = frozen();
    compiled(s, &r, "experts alone read it, where its file has it");
    cdr_pool_free(r.pool);
    s.shard = s.expert = 2;
    compiled(s, &r, "experts alone read it, where its file has it");
    cdr_pool_free(r.pool);
    s.balanced = true;
    compiled(s, &r, "copied: balanced placement moves experts between ranks");
    cdr_pool_free(r.pool);
    s = frozen();
    s.map = false;
    compiled(s, &r, "packed");
    cdr_pool_free(r.pool);
}

/* In the slab lie 16 bytes an expert instead of its matrix; the plan says what is mapped. */
static void the_slab_holds_addresses(void)
{
    rig m, c;
    setup s = frozen();
    compiled(s, &m, "experts alone read it, where its file has it");
    s.map = false;
    compiled(s, &c, "packed");
    int64_t in_file = 0, in_slab = 0;
    for (int32_t i = 0; i < m.b.n_params; i++) {
        const cdr_param *q = &m.b.params[i];
        if (!is_stack(q)) continue;
        const cdr_type *t = &m.b.shared[q->shard].t;
        T_CHECK(cdr_type_bytes(t) == 8 * sizeof(cdr_mapped) && cdr_mapped_bytes(t) == 8 * 32 * 32 * 17 / 32);
        T_CHECK(cdr_mapped_bytes(&c.b.shared[c.b.params[i].shard].t) == 0);
        in_file += (int64_t)cdr_mapped_bytes(t);
        in_slab += (int64_t)cdr_align_up(cdr_type_bytes(t), 256);
    }
    T_CHECK(in_file == 9 * 8 * 32 * 32 * 17 / 32);
    T_CHECK(c.b.run_bytes[0] - m.b.run_bytes[0] == in_file - in_slab);
    cdr_pool_free(m.pool);
    cdr_pool_free(c.pool);
}

/* Rows that the host gets are those of the copied form, whole or in part. */
static void the_host_sees_rows(void)
{
    rig m, c;
    setup s = frozen();
    must_open(&s, &m);
    T_CHECK(cdr_exec_mapped_bytes(m.x) == 9 * 8 * 32 * 32 * 17 / 32);
    s.map = false;
    must_open(&s, &c);
    for (int32_t i = 0; i < m.b.n_params; i++) {
        const cdr_val v = m.b.params[i].shard, w = c.b.params[i].shard;
        if (!is_stack(&m.b.params[i])) continue;
        const size_t bytes = cdr_exec_run_bytes(m.x, v);
        char *x = malloc(bytes), *y = malloc(bytes);
        T_CHECK(bytes == cdr_exec_run_bytes(c.x, w) && bytes == 8 * 32 * 17);
        cdr_exec_get_run(m.x, v, x, bytes);
        cdr_exec_get_run(c.x, w, y, bytes);
        T_CHECK(memcmp(x, y, bytes) == 0);
        cdr_exec_get_rows(m.x, v, 33, 70, x);
        T_CHECK(memcmp(x, y + 33 * 17, 70 * 17) == 0);
        free(x);
        free(y);
    }
    close_rig(&m);
    close_rig(&c);
}

/* ---- read-ahead -------------------------------------------------------------------------------------------------------------- */
static bool in_range(const cdr__mapped_set *s, const void *at, size_t bytes)
{
    for (int64_t i = 0; i < s->n_ranges; i++) {
        const uintptr_t a = (uintptr_t)s->range[i].at;
        if (a <= (uintptr_t)at && (uintptr_t)at + bytes <= a + s->range[i].bytes) return a % (uintptr_t)sysconf(_SC_PAGESIZE) == 0;
    }
    return false;
}

/* Mapped values that a call reads, in a set */
static bool reads(const rig *r, const cdr_program *p, const cdr_call *c, const cdr__mapped_set *s)
{
    int n = 0;
    for (int k = 0; k < c->n_in; k++) {
        const cdr_val v = p->operands[c->arg + (uint32_t)k];
        if (v == CDR_NONE) continue;
        const cdr_val root = cdr_value_root(&r->b, p, v, NULL);
        for (int i = 0; root < r->b.n_shared && i < s->n_vals; i++) n += s->val[i] == root;
    }
    return n == 3;
}

static bool maps(const rig *r, const cdr_program *p, const cdr_call *c)
{
    for (int k = 0; k < c->n_in; k++) {
        const cdr_val v = p->operands[c->arg + (uint32_t)k];
        if (v != CDR_NONE && cdr_value_at(&r->b, p, v)->t.layout == CDR_MAPPED) return true;
    }
    return false;
}

/* Before `call`, what `next` reads is asked for, unless it reads the same. */
static bool looks_at(const rig *r, int q, int32_t call, int32_t next)
{
    const cdr_program *p = &r->b.progs[q];
    const int32_t set = r->x->prep[q].ahead[call];
    bool same = false;
    for (int64_t i = 0; i < r->x->n_sets; i++) same = same || (reads(r, p, &p->calls[call], &r->x->sets[i]) && reads(r, p, &p->calls[next], &r->x->sets[i]));
    T_CHECK(same ? set == -1 : set >= 0 && reads(r, p, &p->calls[next], &r->x->sets[set]));
    return !same;
}

static int64_t n_asked;

/* In place of the C library's: requests to read ahead are counted. */
int madvise(void *at, size_t bytes, int advice)
{
    n_asked += advice == MADV_WILLNEED;
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

/* Before a call that reads mapped experts, what the next such call reads is asked for; the last looks at the first. */
static void the_next_layer_is_read_ahead(void)
{
    rig r;
    setup s = frozen();
    must_open(&s, &r);
    cdr__mapped_ready(r.x);
    T_CHECK(r.x->n_sets == 3);                                            /* a layer's w1, w3, w2 are one */
    for (int64_t i = 0; i < r.x->n_sets; i++)
        for (int k = 0; k < 3; k++) {
            const cdr_value *v = &r.b.shared[r.x->sets[i].val[k]];
            const cdr_mapped *m = cdr_exec_ptr(r.x, CDR_PROG_STEP, r.x->sets[i].val[k], 0);
            for (int64_t e = 0; e < 8; e++) T_CHECK(in_range(&r.x->sets[i], m[e].codes, (size_t)(v->t.n[1] * v->t.n[2] / 2)) && in_range(&r.x->sets[i], m[e].scales, 32));
        }
    for (int q = 0; q < CDR_N_PROGS; q++) {
        const cdr_program *p = &r.b.progs[q];
        int n = 0, told = 0;
        for (int g = 0; g < p->n_segs; g++) {
            int32_t first = -1, last = -1;
            for (int32_t i = p->segs[g].first; i < p->segs[g].first + p->segs[g].n; i++) {
                if (!maps(&r, p, &p->calls[i])) T_CHECK(r.x->prep[q].ahead[i] == -1);
                else {
                    if (last >= 0) told += looks_at(&r, q, last, i);
                    first = first < 0 ? i : first;
                    last = i;
                    n++;
                }
            }
            if (last >= 0) told += looks_at(&r, q, last, first);
        }
        T_CHECK(p->n_calls == 0 || q == CDR_PROG_SNAPSHOT || (n >= (q == CDR_PROG_STEP ? 6 : 3) && told >= 3));
    }
    for (int q = 0; q < CDR_N_PROGS; q++)                                 /* what is told, and that a token is not: it wants few experts of a layer */
        for (int32_t i = 0; i < r.b.progs[q].n_calls; i++) {
            const int32_t set = r.x->prep[q].ahead[i];
            n_asked = 0;
            cdr__mapped_ahead(r.x, (cdr_prog_id)q, i);
            T_CHECK(n_asked == (set < 0 || q == CDR_PROG_GENERATE ? 0 : r.x->sets[set].n_ranges));
        }
    close_rig(&r);
}

/* Arrays that lie less than 256 KiB apart are asked for as one range, whatever lies between; those further apart are not. */
static void neighbours_are_one_range(void)
{
    enum { STEP = 160 << 10, FAR = 2 << 20, ALL = 64 << 20 };
    rig r;
    setup s = frozen();
    uint8_t *file = mmap(NULL, ALL, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    T_CHECK(file != MAP_FAILED);
    must_open(&s, &r);
    for (cdr_val v = 0; v < r.b.n_shared && file != MAP_FAILED; v++)
        for (int64_t e = 0; r.b.shared[v].t.layout == CDR_MAPPED && e < r.b.shared[v].t.n[0]; e++) {
            uint8_t *at = file + e * 2 * STEP + (e >= 4 ? FAR : 0);
            cdr_exec_map(r.x, v, e, at, at + STEP);
        }
    cdr__mapped_ready(r.x);
    T_CHECK(r.x->n_sets > 0);
    for (int64_t i = 0; i < r.x->n_sets; i++) {
        const cdr__mapped_set *x = &r.x->sets[i];
        T_CHECK(x->n_ranges == 2 && x->range[0].at == (void *)file && x->range[1].at == (void *)(file + 8 * STEP + FAR));
        T_CHECK(x->range[0].bytes > 7 * STEP && x->range[0].bytes < 8 * STEP && x->range[0].bytes == x->range[1].bytes);
    }
    close_rig(&r);
    (void)munmap(file, ALL);
}

/* Addresses of arrays at the end of a file, of one expert and one block. */
static void rows_of_the_smallest_stack(void)
{
    cdr_type t = cdr_type_3d(CDR_MXFP4, 2, 1, 32);
    uint8_t raw[2 * 18], rows[2 * 17], want[2 * 17];
    for (int i = 0; i < CDR_COUNT(raw); i++) raw[i] = (uint8_t)(i * 37 + 1);
    const cdr_mapped m[2] = { { raw + 1, raw }, { raw + 18, raw + 34 } };
    memcpy(want, raw + 1, 16);
    want[16] = raw[0];
    memcpy(want + 17, raw + 18, 16);
    want[33] = raw[34];
    t.layout = CDR_MAPPED;
    cdr_mapped_get(&t, 0, 2, m, rows);
    T_CHECK(memcmp(rows, want, sizeof want) == 0);
    memset(rows, 0, sizeof rows);
    cdr_mapped_get(&t, 1, 1, m, rows);
    T_CHECK(memcmp(rows, want + 17, 17) == 0);
    T_CHECK(cdr_layout_takes(CDR_MAPPED, &t) && cdr_type_bytes(&t) == 2 * sizeof(cdr_mapped) && cdr_mapped_bytes(&t) == 34);
    t.dtype = CDR_BF16;
    T_CHECK(!cdr_layout_takes(CDR_MAPPED, &t));
    t = cdr_type_2d(CDR_MXFP4, 2, 32);
    T_CHECK(!cdr_layout_takes(CDR_MAPPED, &t));
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    mapped = lora_shared();
    copied = lora_shared();
    T_RUN(mapping_changes_no_bit);                         /* these fork: before threads of OpenMP are there */
    T_RUN(no_rank_gathers_what_it_maps);
    T_RUN(ranks_agree);
    T_RUN(rows_of_the_smallest_stack);
    T_RUN(what_is_not_mapped_says_why);
    T_RUN(the_slab_holds_addresses);
    T_RUN(the_host_sees_rows);
    T_RUN(the_next_layer_is_read_ahead);
    T_RUN(neighbours_are_one_range);
    return t_end();
}
