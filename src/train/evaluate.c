/* evaluate.c: held-out loss. Runs a program of the step's bundle, between steps, in the memory that a step's gradients and
 * activations leave free; it changes no bit of what trains. */
#include "train/session.h"
#include <math.h>
#include <stdlib.h>

/* Shards are summed by the host in shard order, so the figure has the same bits on every number of ranks. */
cdr_status cdr__evaluate(cdr_session *s, int64_t tokens, cdr_eval_sum *sum, cdr_err *err)
{
    memset(sum, 0, sizeof *sum);
    const cdr_data_stat *stat = cdr_data_stats(s->data);
    if (stat->eval_shards == 0)
        CDR_FAIL_ID(err, CDR_EDATA, "data.no-eval", "data.eval: there is no held-out data. Set data.eval_fraction, or name a file with --data");
    int64_t t0 = cdr_now_ns(), n = stat->eval_shards, bytes = sizeof(int32_t) * (size_t)s->T > 0 ? (int64_t)sizeof(int32_t) * s->T : 0;
    if (tokens > 0) n = CDR_MIN(n, cdr_ceil_div(tokens, s->T));
    double *losses = cdr_alloc(sizeof *losses * (size_t)s->n_ranks), loss = 0;
    cdr_status st = CDR_OK;
    for (int64_t i = 0; i < n && st == CDR_OK; i += s->n_ranks) {
        int64_t mine = CDR_MIN(i + s->rank, n - 1), trained, text_bytes;
        cdr_data_eval_shard(s->data, mine, s->tokens, s->targets, s->start, s->pos, &trained, &text_bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "tokens", 0, s->tokens, (size_t)bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "targets", 0, s->targets, (size_t)bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "start", 0, s->start, (size_t)bytes);
        for (int64_t t = 0; s->opts.loss_weights && t < s->T; t++) s->weights[t] = 1;        /* held-out loss is that of the tokens, whatever a turn weighs */
        if (s->opts.loss_weights) cdr_exec_put(s->exec, CDR_PROG_EVAL, "weights", 0, s->weights, (size_t)bytes);
        cdr_exec_put(s->exec, CDR_PROG_EVAL, "pos", 0, s->pos, (size_t)bytes);
        st = cdr_exec_run(s->exec, CDR_PROG_EVAL, err);
        if (st != CDR_OK) break;
        cdr_exec_get(s->exec, CDR_PROG_EVAL, "sums", 0, losses, sizeof *losses * (size_t)s->n_ranks);
        for (int64_t r = 0; r < s->n_ranks && i + r < n; r++) {
            loss += losses[r];
            cdr_data_eval_shard(s->data, i + r, s->tokens, s->targets, s->start, s->pos, &trained, &text_bytes);
            sum->tokens += trained;
            sum->bytes += text_bytes;
        }
    }
    cdr_free(losses);
    CDR_TRY(st);
    CDR_TRY(cdr__agree(s, cdr_data_fault(s->data, err), err));
    sum->loss = sum->tokens > 0 ? loss / (double)sum->tokens : 0;
    sum->perplexity = exp(sum->loss);
    sum->bits_per_byte = sum->bytes > 0 ? loss / log(2.0) / (double)sum->bytes : NAN;      /* one byte: nothing of it is predicted */
    sum->seconds = (double)(cdr_now_ns() - t0) * 1e-9;
    return CDR_OK;
}
