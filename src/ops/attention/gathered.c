/* attention, gathered core for any CPU (gathered.inc), and the scratch of it on every CPU. */
#define GATHERED_WORK
#include "ops/attention/gathered.inc"

cdr_status cdr__attention_fwd_gathered(const cdr_args *a) { return fwd(a); }
cdr_status cdr__attention_bwd_gathered(const cdr_args *a) { return bwd(a); }
