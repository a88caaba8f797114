/* isa.c: which instruction sets the processor has and the operating system saves (CPUID, XGETBV).
 *   avx2         x86-64-v3: AVX, AVX2, FMA, F16C, BMI1, BMI2, LZCNT, MOVBE
 *   avx512       x86-64-v4: also AVX-512 F, CD, BW, DQ, VL
 *   avx512_bf16  also AVX-512 BF16 and VNNI
 *   amx          also AMX-TILE and AMX-BF16, and the kernel lets this process use them: it is asked here (Linux, Documentation/arch/x86/xstate)
 * A level is what the files of that name are compiled for (CMakeLists.txt), so it must not miss one of its flags.
 * In a build with CADRE_EMULATE those files are compiled for AVX2: a processor with AVX2 has all levels then.
 * Source: Intel SDM volume 2 (CPUID), volume 1 chapter 13 (XCR0); the levels: System V x86-64 ABI.
 */
#include "device/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool all_of(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* The tiles' 8 KiB are saved for processes alone that asked; asking again changes nothing. */
static bool may_use_tiles(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return (xcr0() & 0x60000) == 0x60000 && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

uint32_t cdr__cpu_has(void)
{
    uint32_t a, b, c, d, ext_c;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    uint32_t v3_c = 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29;       /* FMA MOVBE OSXSAVE AVX F16C */
    if (!all_of(c, v3_c) || (xcr0() & 0x6) != 0x6) return 0;                    /* XMM and YMM are saved */
    if (!__get_cpuid(0x80000001u, &a, &b, &ext_c, &d) || !(ext_c & 1u << 5)) return 0;      /* LZCNT */
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    uint32_t sub_leaves = a;
    if (!all_of(b, 1u << 3 | 1u << 5 | 1u << 8)) return 0;                      /* BMI1 AVX2 BMI2 */
    uint32_t isa = CDR_ISA_AVX2;
#ifdef CADRE_EMULATE
    return isa | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 | CDR_ISA_AMX;
#endif
    uint32_t v4_b = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;       /* F DQ CD BW VL */
    if (!all_of(b, v4_b) || (xcr0() & 0xe6) != 0xe6) return isa;                /* opmask and ZMM are saved */
    isa |= CDR_ISA_AVX512;
    const bool vnni = c & 1u << 11, tiles = all_of(d, 1u << 22 | 1u << 24);     /* AMX-BF16, AMX-TILE */
    if (sub_leaves < 1 || !vnni || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5)) return isa;
    isa |= CDR_ISA_AVX512_BF16;
    if (tiles && may_use_tiles()) isa |= CDR_ISA_AMX;
    return isa;
}

void cdr__cpu_name(char *out, size_t n)
{
    uint32_t w[13] = { 0 };
    bool known = true;
    for (uint32_t i = 0; i < 3; i++)
        known = known && __get_cpuid(0x80000002u + i, &w[4 * i], &w[4 * i + 1], &w[4 * i + 2], &w[4 * i + 3]);
    const char *name = (const char *)w;
    while (*name == ' ') name++;
    snprintf(out, n, "%s", known && *name ? name : "x86-64 processor");
#ifdef CADRE_EMULATE
    snprintf(out, n, "emulated AVX-512");
#endif
    for (size_t len = strlen(out); len > 0 && out[len - 1] == ' ';) out[--len] = 0;
}

#else

uint32_t cdr__cpu_has(void) { return 0; }
void cdr__cpu_name(char *out, size_t n) { snprintf(out, n, "processor"); }

#endif
