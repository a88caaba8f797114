/* plan.h: machines as data. A machine file (machines/NAME.yaml) says what a node has; the plan adds up bytes and times with
 * it, no device needed.
 *
 *   cdr_machine m;
 *   CDR_TRY(cdr_machine_load("hgx-h200", pool, &m, err));     // built-in name, path, or "auto": this machine
 *   double bps = cdr_quantity_value(&m.tier[0].read, &basis);  // planned, else measured, else 0.8 x nominal
 *
 * Source of the format: spec/interface.md, section 5.
 */
#ifndef CDR_PLAN_H
#define CDR_PLAN_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A quantity is any subset of three figures; 0: not given. */
typedef struct { double nominal, measured, planned; } cdr_quantity;
typedef enum { CDR_BASIS_NONE, CDR_BASIS_NOMINAL, CDR_BASIS_MEASURED, CDR_BASIS_PLANNED } cdr_basis;
extern const char *const cdr_basis_name[];
double cdr_quantity_value(const cdr_quantity *q, cdr_basis *basis);      /* what a plan reckons with; basis may be NULL */

enum { CDR_MACHINE_TIERS = 4, CDR_MACHINE_LINKS = 6, CDR_MACHINE_SIZES = 8 };

typedef struct {
    const char *name;                 /* "hbm", "ddr", "nvme" */
    bool per_node;                    /* of: node; else of: device */
    int64_t bytes, reserve, pinned;
    cdr_quantity read, write, copy;   /* bytes/s */
    const char *path;                 /* file tiers; else NULL */
} cdr_machine_tier;

typedef enum { CDR_JOINS_DEVICE, CDR_JOINS_HOST, CDR_JOINS_NODE } cdr_joins;    /* device-device, device-host, node-node */
typedef struct {
    const char *name;                 /* "nvlink", "pcie", "network", "shm" */
    uint8_t joins;
    bool within_all;                  /* within: all; else node */
    bool per_node;                    /* per: node; else device. One direction */
    bool addressable;
    cdr_quantity bandwidth, in, out, all_in, all_out;     /* bytes/s; all_*: four devices at once */
    double latency_s;
    int n_sizes;                      /* all_to_all: rate by bytes of a rank */
    struct { int64_t bytes; double bps; } all_to_all[CDR_MACHINE_SIZES];
} cdr_machine_link;

typedef struct {
    const char *name, *kind, *arch;   /* kind: "cpu", "cuda", "ascend", "rocm" */
    int64_t nodes, devices, cores;    /* devices: of one node, which a fast link joins */
    bool runnable;                    /* there is a backend for the kind; else it can only be planned for */
    bool quick;                       /* ceilings come from a short probe, or there are none */
    cdr_quantity bf16, f32, fp8, fp4; /* FLOP/s, dense, one device */
    int n_tiers; cdr_machine_tier tier[CDR_MACHINE_TIERS];      /* first: the device's own memory */
    int n_links; cdr_machine_link link[CDR_MACHINE_LINKS];
} cdr_machine;

cdr_status cdr_machine_load(const char *name, cdr_pool *pool, cdr_machine *m, cdr_err *err);
cdr_status cdr_machine_parse(const char *text, size_t bytes, const char *where, cdr_pool *pool, cdr_machine *m, cdr_err *err);
char *cdr_machine_yaml(const cdr_machine *m, cdr_pool *pool);            /* as a machine file; reads back equal */
const cdr_machine_link *cdr_machine_link_find(const cdr_machine *m, cdr_joins joins);   /* first of that kind, NULL: none */

#ifdef __cplusplus
}
#endif
#endif
