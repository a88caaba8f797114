/* classes.c: rank classes. Two ranks are of one class where their bundles take the same bytes at the same places for the same calls, and
 * differ only in what names a rank: its own index and peers in attributes, and where a view of a whole tensor begins (alias_at).
 *
 * What a rank is, the passes read as its place in the mesh, and that reaches nothing but such attributes and views: every rank of an axis has
 * the same capacity, ceil(rows / n), whether its last row is data or not (comm.h), and select and place look at types alone. So the first
 * and the last rank of all axes at once are compiled and compared here, value by value and call by call; where they differ in anything, every
 * rank is compiled (plan_cmd.c). place reads what is compared and nothing else, so one of the two need not be placed. test_plan_scale
 * compiles and compares all ranks of small meshes, with rows that do not divide. */
#include "plan/account.h"

static const char *same_values(const cdr_value *a, const cdr_value *b, int32_t n, bool placed)
{
    for (int32_t i = 0; i < n; i++) {
        const cdr_value *x = &a[i], *y = &b[i];
        bool own = x->alias == CDR_NONE;          /* a view lies where its root and alias_at say */
        if (memcmp(&x->t, &y->t, sizeof x->t) != 0) return "types";
        if (x->cls != y->cls || x->scope != y->scope || x->tier != y->tier || x->flags != y->flags || x->alias != y->alias || x->live != y->live ||
            x->param != y->param || x->name != y->name || x->n_inst != y->n_inst || (placed && (x->stride != y->stride || (own && x->offset != y->offset))))
            return "places of values";
    }
    return NULL;
}

static const char *same_program(const cdr_program *p, const cdr_program *q, bool placed)
{
    if (p->n_vals != q->n_vals || p->n_calls != q->n_calls || p->n_operands != q->n_operands || p->n_attrs != q->n_attrs || p->n_waits != q->n_waits ||
        p->n_strings != q->n_strings || p->n_segs != q->n_segs || p->n_turns != q->n_turns)
        return "numbers of values or calls";
    if (p->n_calls == 0) return NULL;
    if (memcmp(p->operands, q->operands, sizeof *p->operands * (size_t)p->n_operands) != 0) return "operands";
    if (p->n_waits && memcmp(p->waits, q->waits, sizeof *p->waits * (size_t)p->n_waits) != 0) return "waits";
    if (memcmp(p->strings, q->strings, (size_t)p->n_strings) != 0) return "names";
    for (int32_t i = 0; i < p->n_calls; i++) {
        const cdr_call *c = &p->calls[i], *d = &q->calls[i];
        if (c->op != d->op || c->kernel != d->kernel || c->flags != d->flags || c->stream != d->stream || c->phase != d->phase || c->layer != d->layer ||
            c->n_in != d->n_in || c->n_out != d->n_out || c->arg != d->arg || c->add != d->add || c->attr != d->attr || c->pred != d->pred ||
            c->work != d->work || c->wait != d->wait || c->n_wait != d->n_wait)
            return "calls";
    }
    return same_values(p->vals, q->vals, p->n_vals, placed);
}

const char *cdr_account_class(const cdr_bundle *a, const cdr_bundle *b)
{
    if (a->n_params != b->n_params || a->n_shared != b->n_shared || a->n_progs != b->n_progs) return "numbers of parameters";
    const bool placed = a->n_tiers > 0 && b->n_tiers > 0;
    if (placed && (memcmp(a->run_bytes, b->run_bytes, sizeof a->run_bytes) != 0 || memcmp(a->exec_bytes, b->exec_bytes, sizeof a->exec_bytes) != 0 ||
        a->peak_call != b->peak_call || a->peak_prog != b->peak_prog))
        return "bytes";
    const char *no = same_values(a->shared, b->shared, a->n_shared, placed);
    for (int32_t q = 0; q < a->n_progs && !no; q++) no = same_program(&a->progs[q], &b->progs[q], placed);
    return no;
}
