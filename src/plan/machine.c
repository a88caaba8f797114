/* machine.c: machine files, strict, and this machine as one. Every quantity is any subset of {nominal, measured, planned};
 * a bare figure is nominal. A plan takes planned, else measured, else 0.8 x nominal: a figure that nobody measured is not
 * met in full. Source of the format: spec/interface.md, 5.
 */
#include "plan/plan.h"
#include "device/device.h"
#include "recipe/recipe.h"

const char *const cdr_basis_name[] = { "none", "nominal", "measured", "planned" };

typedef struct { cdr_pool *pool; const char *where; cdr_err *err; } reader;

double cdr_quantity_value(const cdr_quantity *q, cdr_basis *basis)
{
    cdr_basis b = q->planned > 0 ? CDR_BASIS_PLANNED : q->measured > 0 ? CDR_BASIS_MEASURED : q->nominal > 0 ? CDR_BASIS_NOMINAL : CDR_BASIS_NONE;
    if (basis) *basis = b;
    return b == CDR_BASIS_PLANNED ? q->planned : b == CDR_BASIS_MEASURED ? q->measured : b == CDR_BASIS_NOMINAL ? 0.8 * q->nominal : 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

static cdr_status bad(const reader *r, const cdr_yaml *e, const char *want)
{
    CDR_FAIL_ID(r->err, CDR_EUSER, "machine.bad-value", "%s:%d:%d: %s: expected %s", r->where, e->line, e->col, e->key ? e->key : "entry", want);
}

static cdr_status unknown(const reader *r, const cdr_yaml *e, const char *const *names, int n)
{
    CDR_FAIL_ID(r->err, CDR_EUSER, "machine.unknown-key", "%s:%d:%d: unknown key %s.%s", r->where, e->key_line, e->key_col, e->key,
                cdr_nearest(r->pool, e->key, names, n));
}

static int index_of(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++) if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static cdr_status read_rate(const reader *r, const cdr_yaml *e, double *x)
{
    bool ok = e->kind == CDR_YAML_SCALAR && cdr_parse_rate(e->text, x) && *x >= 1e3 && *x < 1e17;
    return ok ? CDR_OK : bad(r, e, "a rate from 1e3 to 1e17, as 50GB/s or 989TFLOP/s");
}

static cdr_status read_quantity(const reader *r, const cdr_yaml *e, cdr_quantity *q)
{
    static const char *const names[] = { "nominal", "measured", "planned" };
    double *to[] = { &q->nominal, &q->measured, &q->planned };
    if (e->kind == CDR_YAML_SCALAR) return read_rate(r, e, &q->nominal);
    if (e->kind != CDR_YAML_MAP) return bad(r, e, "a rate, or {nominal, measured, planned}");
    for (int i = 0; i < e->n; i++) {
        int k = index_of(names, CDR_COUNT(names), e->items[i].key);
        if (k < 0) return unknown(r, &e->items[i], names, CDR_COUNT(names));
        CDR_TRY(read_rate(r, &e->items[i], to[k]));
    }
    return CDR_OK;
}

static cdr_status read_bytes(const reader *r, const cdr_yaml *e, int64_t *x)
{
    return e->kind == CDR_YAML_SCALAR && cdr_parse_bytes(e->text, x) && *x >= 0 ? CDR_OK : bad(r, e, "a size, as 40GiB, 64GB or bytes");
}

static cdr_status read_count(const reader *r, const cdr_yaml *e, int64_t *x)
{
    *x = 0;
    if (e->kind != CDR_YAML_SCALAR || !*e->text || strlen(e->text) > 9 || strspn(e->text, "0123456789") != strlen(e->text)) return bad(r, e, "an integer of at least 1");
    for (const char *p = e->text; *p; p++) *x = *x * 10 + (*p - '0');
    return *x >= 1 ? CDR_OK : bad(r, e, "an integer of at least 1");
}

/* Latencies are short: us and ns beside the units of a recipe. */
static cdr_status read_latency(const reader *r, const cdr_yaml *e, double *x)
{
    char number[32], scaled[40];
    size_t n = e->kind == CDR_YAML_SCALAR ? strlen(e->text) : 0;
    bool us = n > 2 && n < sizeof number && strcmp(e->text + n - 2, "us") == 0, ns = n > 2 && n < sizeof number && strcmp(e->text + n - 2, "ns") == 0;
    if (us || ns) {
        snprintf(number, sizeof number, "%.*s", (int)n - 2, e->text);
        snprintf(scaled, sizeof scaled, "%ss", number);
        if (!cdr_parse_duration(scaled, x)) return bad(r, e, "a latency, as 5us");
        *x *= us ? 1e-6 : 1e-9;
        return CDR_OK;
    }
    return n > 0 && cdr_parse_duration(e->text, x) ? CDR_OK : bad(r, e, "a latency, as 5us");
}

static cdr_status read_word(const reader *r, const cdr_yaml *e, const char **to)
{
    if (e->kind != CDR_YAML_SCALAR || !*e->text) return bad(r, e, "a word");
    *to = cdr_pool_strdup(r->pool, e->text);
    return CDR_OK;
}

static cdr_status read_choice(const reader *r, const cdr_yaml *e, const char *zero, const char *one, bool *is_one)
{
    const char *s = e->kind == CDR_YAML_SCALAR ? e->text : "";
    *is_one = strcmp(s, one) == 0;
    return *is_one || strcmp(s, zero) == 0 ? CDR_OK : bad(r, e, cdr_pool_printf(r->pool, "%s or %s", zero, one));
}

static cdr_status read_tier(const reader *r, const cdr_yaml *e, cdr_machine_tier *t)
{
    static const char *const names[] = { "of", "bytes", "read", "write", "copy", "reserve", "pinned", "path" };
    if (e->kind != CDR_YAML_MAP) return bad(r, e, "a map of a tier's figures");
    t->name = cdr_pool_strdup(r->pool, e->key);
    for (int i = 0; i < e->n; i++) {
        const cdr_yaml *m = &e->items[i];
        switch (index_of(names, CDR_COUNT(names), m->key)) {
        case 0: CDR_TRY(read_choice(r, m, "device", "node", &t->per_node)); break;
        case 1: CDR_TRY(read_bytes(r, m, &t->bytes)); break;
        case 2: CDR_TRY(read_quantity(r, m, &t->read)); break;
        case 3: CDR_TRY(read_quantity(r, m, &t->write)); break;
        case 4: CDR_TRY(read_quantity(r, m, &t->copy)); break;
        case 5: CDR_TRY(read_bytes(r, m, &t->reserve)); break;
        case 6: CDR_TRY(read_bytes(r, m, &t->pinned)); break;
        case 7: CDR_TRY(read_word(r, m, &t->path)); break;
        default: return unknown(r, m, names, CDR_COUNT(names));
        }
    }
    if (t->bytes <= 0 || !cdr_yaml_get(e, "of")) return bad(r, e, "of and bytes");
    return t->reserve < t->bytes ? CDR_OK : bad(r, e, "a reserve below bytes");
}

static cdr_status read_all(const reader *r, const cdr_yaml *e, cdr_machine_link *l)
{
    static const char *const names[] = { "in", "out" };
    if (e->kind != CDR_YAML_MAP) return bad(r, e, "{in, out}");
    for (int i = 0; i < e->n; i++) {
        int k = index_of(names, 2, e->items[i].key);
        if (k < 0) return unknown(r, &e->items[i], names, 2);
        CDR_TRY(read_quantity(r, &e->items[i], k ? &l->all_out : &l->all_in));
    }
    return CDR_OK;
}

static cdr_status read_all_to_all(const reader *r, const cdr_yaml *e, cdr_machine_link *l)
{
    if (e->kind != CDR_YAML_MAP || e->n > CDR_MACHINE_SIZES) return bad(r, e, "a map of at most 8 sizes: rates, as {16MiB: 177GB/s}");
    for (int i = 0; i < e->n; i++) {
        if (!cdr_parse_bytes(e->items[i].key, &l->all_to_all[i].bytes)) return bad(r, &e->items[i], "sizes as keys");
        CDR_TRY(read_rate(r, &e->items[i], &l->all_to_all[i].bps));
    }
    l->n_sizes = e->n;
    return CDR_OK;
}

static cdr_status read_joins(const reader *r, const cdr_yaml *e, uint8_t *joins)
{
    static const char *const names[] = { "device-device", "device-host", "node-node" };
    int k = e->kind == CDR_YAML_SCALAR ? index_of(names, CDR_COUNT(names), e->text) : -1;
    if (k < 0) return bad(r, e, "device-device, device-host or node-node");
    *joins = (uint8_t)k;
    return CDR_OK;
}

static cdr_status read_link(const reader *r, const cdr_yaml *e, cdr_machine_link *l)
{
    static const char *const names[] = { "joins", "within", "per", "bandwidth", "latency", "all_to_all", "addressable", "in", "out", "all" };
    if (e->kind != CDR_YAML_MAP) return bad(r, e, "a map of a link's figures");
    l->name = cdr_pool_strdup(r->pool, e->key);
    for (int i = 0; i < e->n; i++) {
        const cdr_yaml *m = &e->items[i];
        switch (index_of(names, CDR_COUNT(names), m->key)) {
        case 0: CDR_TRY(read_joins(r, m, &l->joins)); break;
        case 1: CDR_TRY(read_choice(r, m, "node", "all", &l->within_all)); break;
        case 2: CDR_TRY(read_choice(r, m, "device", "node", &l->per_node)); break;
        case 3: CDR_TRY(read_quantity(r, m, &l->bandwidth)); break;
        case 4: CDR_TRY(read_latency(r, m, &l->latency_s)); break;
        case 5: CDR_TRY(read_all_to_all(r, m, l)); break;
        case 6: CDR_TRY(read_choice(r, m, "false", "true", &l->addressable)); break;
        case 7: CDR_TRY(read_quantity(r, m, &l->in)); break;
        case 8: CDR_TRY(read_quantity(r, m, &l->out)); break;
        case 9: CDR_TRY(read_all(r, m, l)); break;
        default: return unknown(r, m, names, CDR_COUNT(names));
        }
    }
    return cdr_yaml_get(e, "joins") ? CDR_OK : bad(r, e, "joins");
}

static cdr_status read_machine(const reader *r, const cdr_yaml *e, cdr_machine *m)
{
    static const char *const names[] = { "version", "name", "quick" };
    int64_t version = 0;
    for (int i = 0; i < e->n; i++) {
        switch (index_of(names, CDR_COUNT(names), e->items[i].key)) {
        case 0: CDR_TRY(read_count(r, &e->items[i], &version)); break;
        case 1: CDR_TRY(read_word(r, &e->items[i], &m->name)); break;
        case 2: CDR_TRY(read_choice(r, &e->items[i], "false", "true", &m->quick)); break;
        default: return unknown(r, &e->items[i], names, CDR_COUNT(names));
        }
    }
    return version == 1 && m->name ? CDR_OK : bad(r, e, "{version: 1, name}");
}

static cdr_status read_node(const reader *r, const cdr_yaml *e, cdr_machine *m)
{
    static const char *const names[] = { "count", "devices", "kind", "arch", "cores" }, *const kinds[] = { "cpu", "cuda", "ascend", "rocm" };
    m->nodes = m->devices = m->cores = 1;
    for (int i = 0; i < e->n; i++) {
        const cdr_yaml *x = &e->items[i];
        switch (index_of(names, CDR_COUNT(names), x->key)) {
        case 0: CDR_TRY(read_count(r, x, &m->nodes)); break;
        case 1: CDR_TRY(read_count(r, x, &m->devices)); break;
        case 2: CDR_TRY(read_word(r, x, &m->kind)); break;
        case 3: CDR_TRY(read_word(r, x, &m->arch)); break;
        case 4: CDR_TRY(read_count(r, x, &m->cores)); break;
        default: return unknown(r, x, names, CDR_COUNT(names));
        }
    }
    if (!m->kind || index_of(kinds, CDR_COUNT(kinds), m->kind) < 0) return bad(r, e, "kind: cpu, cuda, ascend or rocm");
    m->runnable = strcmp(m->kind, "cpu") == 0 || strcmp(m->kind, "cuda") == 0;
    return CDR_OK;
}

static cdr_status read_peak(const reader *r, const cdr_yaml *e, cdr_machine *m)
{
    static const char *const names[] = { "bf16", "f32", "fp8", "fp4" };
    cdr_quantity *to[] = { &m->bf16, &m->f32, &m->fp8, &m->fp4 };
    for (int i = 0; i < e->n; i++) {
        int k = index_of(names, CDR_COUNT(names), e->items[i].key);
        if (k < 0) return unknown(r, &e->items[i], names, CDR_COUNT(names));
        CDR_TRY(read_quantity(r, &e->items[i], to[k]));
    }
    return CDR_OK;
}

static cdr_status read_section(const reader *r, const cdr_yaml *e, cdr_machine *m)
{
    static const char *const names[] = { "machine", "node", "peak", "tiers", "links" };
    int section = index_of(names, CDR_COUNT(names), e->key);
    if (section < 0) return unknown(r, e, names, CDR_COUNT(names));
    if (e->kind != CDR_YAML_MAP) return bad(r, e, "a map");
    if (section == 0) return read_machine(r, e, m);
    if (section == 1) return read_node(r, e, m);
    if (section == 2) return read_peak(r, e, m);
    if (section == 3 && e->n > CDR_MACHINE_TIERS) return bad(r, e, "at most 4 tiers");
    if (section == 4 && e->n > CDR_MACHINE_LINKS) return bad(r, e, "at most 6 links");
    for (int i = 0; i < e->n; i++) {
        if (section == 3) CDR_TRY(read_tier(r, &e->items[i], &m->tier[m->n_tiers++]));
        else CDR_TRY(read_link(r, &e->items[i], &m->link[m->n_links++]));
    }
    return CDR_OK;
}

cdr_status cdr_machine_parse(const char *text, size_t bytes, const char *where, cdr_pool *pool, cdr_machine *m, cdr_err *err)
{
    reader r = { pool, where, err };
    cdr_yaml *root;
    *m = (cdr_machine){ 0 };
    CDR_TRY(cdr_yaml_parse(pool, text, bytes, where, &root, err));
    if (root->kind != CDR_YAML_MAP) CDR_FAIL_ID(err, CDR_EUSER, "machine.not-a-map", "%s: a machine file is a map of sections", where);
    for (int i = 0; i < root->n; i++) CDR_TRY(read_section(&r, &root->items[i], m));
    if (!m->name || !m->kind || m->n_tiers == 0)
        CDR_FAIL_ID(err, CDR_EUSER, "machine.missing-section", "%s: a machine file has machine, node and tiers", where);
    return CDR_OK;
}

/* ---- this machine -------------------------------------------------------------------------------------------------------- */

/* Cores, memory and instruction set as the process sees them; no ceilings, so it is marked quick. A quarter of the memory,
 * at most 1 GiB, is left to the rest of the machine. */
static cdr_status this_machine(cdr_machine *m, cdr_err *err)
{
    cdr_device *d;
    cdr_err isa_err = { 0 };
    uint32_t isa = cdr_cpu_isa(&isa_err);
    if (isa_err.status != CDR_OK) {
        if (err) *err = isa_err;
        return isa_err.status;
    }
    CDR_TRY(cdr_device_open(CDR_DEV_CPU, 0, 1, &d, err));
    int64_t bytes = d->memory_bytes[0];
    d->ops->close(d);
    *m = (cdr_machine){ .name = "auto", .kind = "cpu", .arch = cdr_isa_name(isa), .nodes = 1, .devices = 1, .cores = cdr_cpu_cores(), .runnable = true, .quick = true,
                        .n_tiers = 1, .n_links = 1 };
    m->tier[0] = (cdr_machine_tier){ .name = "ddr", .per_node = true, .bytes = bytes, .reserve = CDR_MIN((int64_t)1 << 30, bytes / 4) };
    m->link[0] = (cdr_machine_link){ .name = "shm", .joins = CDR_JOINS_DEVICE, .per_node = true, .addressable = true };
    return CDR_OK;
}

cdr_status cdr_machine_load(const char *name, cdr_pool *pool, cdr_machine *m, cdr_err *err)
{
    const char *text, *where;
    size_t bytes;
    if (strcmp(name, "auto") == 0) return this_machine(m, err);
    CDR_TRY(cdr_builtin_or_file("machines", name, pool, &text, &bytes, &where, err));
    return cdr_machine_parse(text, bytes, where, pool, m, err);
}

const cdr_machine_link *cdr_machine_link_find(const cdr_machine *m, cdr_joins joins)
{
    for (int i = 0; i < m->n_links; i++) if (m->link[i].joins == joins) return &m->link[i];
    return NULL;
}

/* ---- writing ---------------------------------------------------------------------------------------------------------------- */

/* A rate in the largest unit in which it is short; GB/s or TFLOP/s. Six digits: more was never measured. */
static void put_rate(cdr_text *t, double x, const char *unit)
{
    static const struct { double scale; const char *prefix; } units[] = { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" } };
    bool flops = strcmp(unit, "FLOP/s") == 0;
    int k = x >= 1e14 || (flops && x >= 1e12) ? 0 : x >= 1e9 ? 1 : 2;
    cdr_text_printf(t, "%.6g%s%s", x / units[k].scale, units[k].prefix, unit);
}

static void put_quantity(cdr_text *t, const char *key, const cdr_quantity *q, const char *unit)
{
    const double x[] = { q->nominal, q->measured, q->planned };
    const char *sep = "";
    if (x[0] <= 0 && x[1] <= 0 && x[2] <= 0) return;
    cdr_text_printf(t, ", %s: {", key);
    for (int i = 0; i < 3; i++) {
        if (x[i] <= 0) continue;
        cdr_text_printf(t, "%s%s: ", sep, cdr_basis_name[i + 1]);
        put_rate(t, x[i], unit);
        sep = ", ";
    }
    cdr_text_append(t, "}", 1);
}

static void put_tier(cdr_text *t, const cdr_machine_tier *x)
{
    cdr_text_printf(t, "  %s: {of: %s, bytes: %lld", x->name, x->per_node ? "node" : "device", (long long)x->bytes);
    put_quantity(t, "read", &x->read, "B/s");
    put_quantity(t, "write", &x->write, "B/s");
    put_quantity(t, "copy", &x->copy, "B/s");
    if (x->pinned > 0) cdr_text_printf(t, ", pinned: %lld", (long long)x->pinned);
    if (x->reserve > 0) cdr_text_printf(t, ", reserve: %lld", (long long)x->reserve);
    if (x->path) {
        cdr_text_append(t, ", path: ", 8);
        cdr__yaml_quote(t, x->path);
    }
    cdr_text_append(t, "}\n", 2);
}

static void put_link(cdr_text *t, const cdr_machine_link *x)
{
    static const char *const joins[] = { "device-device", "device-host", "node-node" };
    cdr_text_printf(t, "  %s: {joins: %s, per: %s", x->name, joins[x->joins], x->per_node ? "node" : "device");
    if (x->within_all) cdr_text_append(t, ", within: all", 13);
    put_quantity(t, "bandwidth", &x->bandwidth, "B/s");
    put_quantity(t, "in", &x->in, "B/s");
    put_quantity(t, "out", &x->out, "B/s");
    if (x->latency_s > 0) cdr_text_printf(t, ", latency: %.6gus", x->latency_s * 1e6);
    if (x->addressable) cdr_text_append(t, ", addressable: true", 19);
    for (int i = 0; i < x->n_sizes; i++) {
        cdr_text_printf(t, "%s%lld: ", i ? ", " : ", all_to_all: {", (long long)x->all_to_all[i].bytes);
        put_rate(t, x->all_to_all[i].bps, "B/s");
    }
    if (x->n_sizes) cdr_text_append(t, "}", 1);
    cdr_quantity none = { 0 };
    if (memcmp(&x->all_in, &none, sizeof none) != 0 || memcmp(&x->all_out, &none, sizeof none) != 0) {
        cdr_text all = { 0 };
        put_quantity(&all, "in", &x->all_in, "B/s");
        put_quantity(&all, "out", &x->all_out, "B/s");
        cdr_text_printf(t, ", all: {%s}", all.s + 2);
        cdr_text_free(&all);
    }
    cdr_text_append(t, "}\n", 2);
}

char *cdr_machine_yaml(const cdr_machine *m, cdr_pool *pool)
{
    cdr_text t = { 0 }, peak = { 0 };
    cdr_text_printf(&t, "machine: {version: 1, name: %s%s}\nnode: {count: %lld, devices: %lld, kind: %s, arch: %s, cores: %lld}\n", m->name,
                    m->quick ? ", quick: true" : "", (long long)m->nodes, (long long)m->devices, m->kind, m->arch ? m->arch : "any", (long long)m->cores);
    put_quantity(&peak, "bf16", &m->bf16, "FLOP/s");
    put_quantity(&peak, "f32", &m->f32, "FLOP/s");
    put_quantity(&peak, "fp8", &m->fp8, "FLOP/s");
    put_quantity(&peak, "fp4", &m->fp4, "FLOP/s");
    if (peak.n > 2) cdr_text_printf(&t, "peak: {%s}\n", peak.s + 2);
    cdr_text_append(&t, "tiers:\n", 7);
    for (int i = 0; i < m->n_tiers; i++) put_tier(&t, &m->tier[i]);
    if (m->n_links) cdr_text_append(&t, "links:\n", 7);
    for (int i = 0; i < m->n_links; i++) put_link(&t, &m->link[i]);
    char *s = cdr_pool_strndup(pool, t.s, t.n);
    cdr_text_free(&peak);
    cdr_text_free(&t);
    return s;
}
