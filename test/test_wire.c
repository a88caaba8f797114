/* Bytes on the wire: what ranks read of each other in a step is what the plan says, communicator by communicator. */
#include "test.h"
#include "ranks.h"
#include "spread_rig.h"

typedef struct { int64_t planned[CDR_N_COMMS], read[CDR_N_COMMS], rows; } traffic;
static traffic *seen;                                  /* [8], shared with the ranks */

/* Bytes that the step program's collectives say, by communicator; all_reduce apart, as its shares are whole cache lines. */
static void plan_of(const rig *r, int64_t planned[CDR_N_COMMS], int64_t *lines)
{
    const cdr_program *p = &r->b.progs[CDR_PROG_STEP];
    *lines = 0;
    for (int32_t t = 0; t < p->n_turns; t++) {
        const cdr_segment *s = &p->segs[p->turns[t].segment];
        for (int32_t i = s->first; i < s->first + s->n; i++) {
            if (!(cdr_ops[p->calls[i].op]->flags & CDR_OP_COLLECTIVE)) continue;
            const cdr_coll *c = (const void *)(p->attrs + p->calls[i].attr);
            if (c->kind == CDR_COLL_COUNT) continue;   /* 64 bytes by mail */
            planned[c->comm] += c->wire_bytes;
            if (c->kind == CDR_COLL_ALL_REDUCE) *lines += 2 * 64 * (int64_t)p->calls[i].n_in * r->o.mesh.world;
        }
    }
}

static int rank_body(cdr_comm *w, int arg)
{
    rig r;
    cdr_err err = { CDR_OK, "", "" };
    const spread *c = &spread_job;
    (void)arg;
    EXPECT_OK(open_on(&c->s, w, &r, &err));
    spread_prepare(c, &r);
    const cdr_mesh *m = &r.o.mesh;
    traffic *t = &seen[m->world_rank];
    int64_t before[CDR_N_COMMS] = { 0 }, lines;
    batch b[SHARDS];
    double loss;
    for (int k = 0; k < r.o.n_micro; k++) {
        b[k] = spread_batch(0, (m->rank[0] * r.o.n_micro + k) * m->size[1] + m->rank[1]);
        t->rows += b[k].rows;
    }
    for (int k = 0; k < CDR_N_COMMS; k++)
        if (cdr_exec_comm(r.x, (cdr_comm_id)k)) before[k] = cdr_comm_read_bytes(cdr_exec_comm(r.x, (cdr_comm_id)k));
    EXPECT_OK(run_step(&r, 0, b, 0.01, &loss, &err));
    for (int k = 0; k < CDR_N_COMMS; k++)
        if (cdr_exec_comm(r.x, (cdr_comm_id)k)) t->read[k] = cdr_comm_read_bytes(cdr_exec_comm(r.x, (cdr_comm_id)k)) - before[k];
    plan_of(&r, t->planned, &lines);
    int bad = 0;
    for (int k = 0; k < CDR_N_COMMS; k++) {
        if (k == CDR_COMM_EXPERT || llabs(t->planned[k] - t->read[k]) <= lines) continue;
        fprintf(stderr, "  rank %d, %s: planned %lld bytes, read %lld\n", m->world_rank, cdr_comm_name[k], (long long)t->planned[k], (long long)t->read[k]);
        bad = 1;
    }
    close_rig(&r);
    return bad;
}

static void go(int replicate, int shard, int expert, int head)
{
    char said[2048];
    spread c = spread_default();
    c.s.replicate = replicate;
    c.s.shard = shard;
    c.s.expert = expert;
    c.s.head = head;
    c.s.n_micro = SHARDS / (replicate * shard);
    c.routes = ROUTES_ONE_RANK;                        /* so that each token that is not idle has rows for the first rank of its group alone */
    spread_job = c;
    memset(seen, 0, sizeof *seen * 8);
    T_CHECK(run_ranks(replicate * shard, rank_body, 0, 60, said, sizeof said, NULL) == 0);
    int64_t planned = 0, read = 0, rows = 0;
    for (int r = 0; r < replicate * shard; r++) {
        planned += seen[r].planned[CDR_COMM_EXPERT];
        read += seen[r].read[CDR_COMM_EXPERT];
        rows += seen[r].rows;
    }
    printf("  %d x %d, ep %d: read by rank 0: shard %lld, replicate %lld, expert %lld, efsdp %lld bytes\n", replicate, shard, expert,
           (long long)seen[0].read[CDR_COMM_SHARD], (long long)seen[0].read[CDR_COMM_REPLICATE],
           (long long)seen[0].read[CDR_COMM_EXPERT], (long long)seen[0].read[CDR_COMM_EFSDP]);
    if (expert == 1) return;
    /* Counts of routes are gathered, E + 1 integers from each; the rest are rows. The plan is for rows that are all live and evenly spread
     * over ranks; the sum over ranks does not depend on the spread here: of expert - 1 ranks all rows travel. Forward and backward of
     * a token differ in bytes, but all tokens are in both. */
    int64_t counts = (int64_t)replicate * shard * c.s.n_micro * (LAYERS - 1) * (expert - 1) * (EXPERTS + 1) * 4;
    int64_t live = 0, all = (int64_t)SHARDS * T;
    for (int r = 0; r < replicate * shard; r++) live += r % expert == 0 ? 0 : seen[r].rows;
    T_CHECK(rows > 0 && planned > counts);
    double expected = (double)(planned - counts) * (double)live / ((double)all * (expert - 1) / expert);
    T_CHECK(fabs((double)(read - counts) - expected) <= 1e-9 * expected);
}

static void ranks_read_what_the_plan_says(void)
{
    go(1, 2, 1, CDR_HEAD_GATHER);
    go(1, 4, 1, CDR_HEAD_PIECES);
    go(2, 2, 1, CDR_HEAD_GATHER);
    go(1, 2, 2, CDR_HEAD_PIECES);
    go(1, 4, 2, CDR_HEAD_GATHER);
    go(2, 4, 4, CDR_HEAD_PIECES);
}

int main(void)
{
    seen = mmap(NULL, sizeof *seen * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CDR_CHECK(seen != MAP_FAILED);
    T_RUN(ranks_read_what_the_plan_says);
    return t_end();
}
