/* cpu.h: what device.c needs of the CPU device.
 *
 *   uint32_t isa = cdr__cpu_has();            // CDR_ISA_* of the machine, before the cap CADRE_ISA
 *   cdr__cpu_open(0, n_threads, &d, err);
 */
#ifndef CDR_DEVICE_CPU_H
#define CDR_DEVICE_CPU_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

uint32_t cdr__cpu_has(void);
void cdr__cpu_name(char *out, size_t n);           /* "AMD EPYC 7763 64-Core Processor" */
int64_t cdr__cpu_memory_bytes(void);               /* of the machine, or the least limit of the process's control groups */
cdr_status cdr__cpu_open(int index, int n_threads, cdr_device **d, cdr_err *err);

#ifdef __cplusplus
}
#endif
#endif
