/* test_machine.c: machine files: figures read and written, what a plan reckons with, strictness, this machine. */
#include "plan/plan.h"
#include "recipe/recipe.h"
#include "test.h"

static cdr_pool *pool;
static cdr_err err;
static cdr_machine m;

static const char *const small =
    "machine: {version: 1, name: x}\nnode: {kind: cpu, cores: 4}\npeak: {bf16: 2TFLOP/s}\ntiers:\n  ddr: {of: node, bytes: 1GiB, read: 40GB/s, reserve: 1MiB}\n"
    "links:\n  shm: {joins: device-device, per: node, bandwidth: {measured: 8GB/s}, latency: 5us}\n";

static cdr_status parse(const char *text)
{
    err = (cdr_err){ 0 };
    return cdr_machine_parse(text, strlen(text), "m.yaml", pool, &m, &err);
}

static void refused(const char *from, const char *to, const char *words)
{
    const char *at = strstr(small, from);
    T_CHECK(at != NULL);
    T_CHECK(parse(cdr_pool_printf(pool, "%.*s%s%s", (int)(at - small), small, to, at + strlen(from))) == CDR_EUSER);
    T_HAS(err.text, words);
}

static void presets(void)
{
    err = (cdr_err){ 0 };
    T_CHECK(cdr_machine_load("hgx-h200", pool, &m, &err) == CDR_OK);
    if (err.status) T_STR(err.text, "");
    T_CHECK(m.devices == 8 && m.nodes == 1 && m.cores == 128 && m.runnable && m.n_tiers == 3 && m.n_links == 3);
    T_CHECK(m.tier[0].bytes == 150754820096 && m.tier[0].reserve == 6000000000 && !m.tier[0].per_node && m.tier[1].per_node);
    T_CHECK(m.bf16.nominal == 989e12 && m.bf16.measured == 790e12 && m.tier[2].read.planned == 56e9);
    T_STR(m.tier[2].path, "/scratch");
    T_CHECK(m.link[0].n_sizes == 3 && m.link[0].all_to_all[1].bytes == 256LL << 20 && m.link[0].all_to_all[1].bps == 300e9 && m.link[0].addressable);
    T_CHECK(m.link[1].all_in.measured == 46.1e9 && m.link[1].out.nominal == 64e9 && cdr_machine_link_find(&m, CDR_JOINS_NODE) == &m.link[2]);
    T_NEAR(m.link[0].latency_s, 3e-6, 1e-12);
    T_CHECK(cdr_machine_load("ascend-910c", pool, &m, &err) == CDR_OK && !m.runnable && m.nodes * m.devices == 128 && m.link[0].within_all);
    T_CHECK(cdr_machine_load("ascend-910c-die", pool, &m, &err) == CDR_OK && m.nodes * m.devices == 256);
    T_CHECK(cdr_machine_load("cpu-2core", pool, &m, &err) == CDR_OK && m.f32.measured == 233e9);
    T_CHECK(cdr_machine_load("cpu-3core", pool, &m, &err) == CDR_EUSER);
    T_HAS(err.text, "Did you mean cpu-2core");
}

/* Every row of the table of spec/planner.md, 2.2: TFLOP/s, bytes, GB/s, devices that a fast link joins. 0: the table has none. */
static void presets_are_the_table(void)
{
    static const struct { const char *name, *kind; double bf16, fp8, fp4; int64_t bytes; double read, fast, network, host; int devices; } row[] = {
        { "hgx-h100", "cuda", 989, 1978, 0, 80LL << 30, 3350, 450, 50, 64, 8 },
        { "hgx-h200", "cuda", 989, 1978, 0, 143771LL << 20, 4800, 450, 50, 64, 8 },
        { "hgx-b200", "cuda", 2250, 4500, 9000, 180LL << 30, 7700, 900, 50, 64, 8 },
        { "hgx-b300", "cuda", 2250, 4500, 14000, 275040LL << 20, 7750, 900, 100, 128, 8 },
        { "gb200-nvl72", "cuda", 2500, 5000, 10000, 189471LL << 20, 8000, 900, 100, 450, 72 },
        { "gb300-nvl72", "cuda", 2500, 5000, 15000, 284208LL << 20, 8000, 900, 100, 450, 72 },
        { "ascend-910c", "ascend", 752, 0, 0, 128000000000, 3200, 392, 50, 0, 8 },
        { "ascend-910c-die", "ascend", 376, 0, 0, 64000000000, 1600, 196, 25, 0, 16 },
        { "mi300x", "rocm", 1307, 2615, 0, 192000000000, 5300, 448, 50, 64, 8 },
        { "mi355x", "rocm", 2500, 5000, 10000, 288000000000, 8000, 537.6, 50, 64, 8 },
    };
    for (int i = 0; i < CDR_COUNT(row); i++) {
        err = (cdr_err){ 0 };
        T_CHECK(cdr_machine_load(row[i].name, pool, &m, &err) == CDR_OK);
        if (err.status) T_STR(err.text, row[i].name);
        const cdr_machine_link *fast = cdr_machine_link_find(&m, CDR_JOINS_DEVICE), *host = cdr_machine_link_find(&m, CDR_JOINS_HOST),
                               *network = cdr_machine_link_find(&m, CDR_JOINS_NODE);
        T_CHECK(fast && host && network);
        if (!fast || !host || !network) continue;
        T_STR(m.name, row[i].name);
        T_STR(m.kind, row[i].kind);
        T_CHECK(m.runnable == (strcmp(row[i].kind, "cuda") == 0));
        T_NEAR(m.bf16.nominal, row[i].bf16 * 1e12, 1);
        T_NEAR(m.fp8.nominal, row[i].fp8 * 1e12, 1);
        T_NEAR(m.fp4.nominal, row[i].fp4 * 1e12, 1);
        T_CHECK(m.tier[0].bytes == row[i].bytes && !m.tier[0].per_node && m.tier[0].reserve >= 2000000000);
        T_NEAR(m.tier[0].read.nominal, row[i].read * 1e9, 1);
        T_NEAR(fast->bandwidth.nominal, row[i].fast * 1e9, 1);
        T_NEAR(network->bandwidth.nominal, row[i].network * 1e9, 1);
        T_NEAR(host->in.nominal, row[i].host * 1e9, 1);
        T_NEAR(host->out.nominal, row[i].host * 1e9, 1);
        T_CHECK(m.devices == row[i].devices && fast->within_all == (strcmp(row[i].kind, "ascend") == 0));
    }
    int n;
    cdr_builtin_names("machines", pool, &n);
    T_CHECK(n == CDR_COUNT(row) + 1);                   /* a machine without a row would not be checked; cpu-2core has measured figures alone */
}

static void written_files_read_back(void)
{
    int n;
    const char *const *names = cdr_builtin_names("machines", pool, &n);
    for (int i = 0; i < n; i++) {
        err = (cdr_err){ 0 };
        T_CHECK(cdr_machine_load(names[i], pool, &m, &err) == CDR_OK);
        char *once = cdr_machine_yaml(&m, pool);
        cdr_machine first = m;
        T_CHECK(parse(once) == CDR_OK);
        if (err.status) T_STR(err.text, once);
        T_STR(cdr_machine_yaml(&m, pool), once);
        for (int k = 0; k < m.n_tiers; k++) T_CHECK(m.tier[k].bytes == first.tier[k].bytes && m.tier[k].read.measured == first.tier[k].read.measured);
        for (int k = 0; k < m.n_links; k++) T_CHECK(m.link[k].bandwidth.nominal == first.link[k].bandwidth.nominal && m.link[k].n_sizes == first.link[k].n_sizes);
    }
}

static void planned_then_measured_then_less_than_nominal(void)
{
    cdr_basis b;
    cdr_quantity q = { .nominal = 100, .measured = 70, .planned = 50 };
    T_CHECK(cdr_quantity_value(&q, &b) == 50 && b == CDR_BASIS_PLANNED);
    q.planned = 0;
    T_CHECK(cdr_quantity_value(&q, &b) == 70 && b == CDR_BASIS_MEASURED);
    q.measured = 0;
    T_CHECK(cdr_quantity_value(&q, &b) == 80 && b == CDR_BASIS_NOMINAL);
    q.nominal = 0;
    T_CHECK(cdr_quantity_value(&q, &b) == 0 && b == CDR_BASIS_NONE);
    T_CHECK(parse(small) == CDR_OK && m.bf16.nominal == 2e12 && m.devices == 1);     /* a bare figure is nominal */
}

static void strict(void)
{
    refused("cores: 4", "core: 4", "m.yaml:2:19: unknown key core. Did you mean cores?");
    refused("read: 40GB/s", "read: forty", "expected a rate from 1e3 to 1e17");
    refused("read: 40GB/s", "read: {typical: 40GB/s}", "unknown key typical");
    refused("bytes: 1GiB", "bytes: 1Gi", "expected a size");
    refused("reserve: 1MiB", "reserve: 1GiB", "a reserve below bytes");
    refused("of: node, ", "", "expected of and bytes");
    refused("kind: cpu", "kind: tpu", "cpu, cuda, ascend or rocm");
    refused("version: 1", "version: 2", "version: 1");
    refused("joins: device-device", "joins: device", "device-device, device-host or node-node");
    refused("latency: 5us", "latency: five", "a latency");
    refused("tiers:", "tears:", "Did you mean tiers?");
    refused("cores: 4", "cores: 0", "an integer of at least 1");
}

static void this_machine(void)
{
    err = (cdr_err){ 0 };
    T_CHECK(cdr_machine_load("auto", pool, &m, &err) == CDR_OK);
    T_CHECK(m.cores >= 1 && m.tier[0].bytes > 1 << 26 && m.tier[0].reserve < m.tier[0].bytes && m.runnable && m.quick);
    T_STR(m.kind, "cpu");
    T_CHECK(cdr_quantity_value(&m.bf16, NULL) == 0);           /* nothing is claimed that nobody measured */
}

int main(int argc, char **argv)
{
    t_filter = argc > 1 ? argv[1] : NULL;
    pool = cdr_pool_new();
    T_RUN(presets);
    T_RUN(presets_are_the_table);
    T_RUN(written_files_read_back);
    T_RUN(planned_then_measured_then_less_than_nominal);
    T_RUN(strict);
    T_RUN(this_machine);
    cdr_pool_free(pool);
    return t_end();
}
