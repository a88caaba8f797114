/* device.c: opens a device. The CPU is compiled in; CUDA is a shared object with one entry, looked for beside the
 * executable, in the folders where a build and an installation put it, and then by the loader.
 */
#include "device/device.h"
#include "device/cpu/cpu.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <unistd.h>

typedef cdr_status cuda_open_fn(int index, cdr_device **d, cdr_err *err);

static const char plugin_name[] = "libcadre_cuda.so";

/* ---- names and the cap ------------------------------------------------------------------------------------------ */
/* A level includes those above it of the same kind. */
static const struct { const char *name; uint32_t kind, allows; } isa_rows[] = {
    { "base",        0, 0 },
    { "avx2",        0, CDR_ISA_AVX2 },
    { "avx512",      0, CDR_ISA_AVX2 | CDR_ISA_AVX512 },
    { "avx512_bf16", 0, CDR_ISA_AVX2 | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 },
    { "amx",         0, CDR_ISA_AVX2 | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 | CDR_ISA_AMX },
    { "sm80",        1, CDR_ISA_SM80 },
    { "sm90",        1, CDR_ISA_SM80 | CDR_ISA_SM90 },
};

cdr_status cdr_isa_cap(uint32_t *allowed, cdr_err *err)
{
    uint32_t mask[2] = { UINT32_MAX, UINT32_MAX };
    bool given[2] = { false, false };
    const char *at = getenv("CADRE_ISA");
    *allowed = UINT32_MAX;
    while (at && *at) {
        size_t n = strcspn(at, ",");
        int row = -1;
        for (int i = 0; i < CDR_COUNT(isa_rows); i++)
            if (strlen(isa_rows[i].name) == n && memcmp(isa_rows[i].name, at, n) == 0) row = i;
        if (row < 0)
            CDR_FAIL_ID(err, CDR_EUSER, "machine.isa", "CADRE_ISA: unknown value \"%.*s\"; it caps the instruction set. "
                        "Take one of base, avx2, avx512, avx512_bf16, amx, and one of sm80, sm90, with a comma between", (int)CDR_MIN(n, (size_t)40), at);
        uint32_t kind = isa_rows[row].kind;
        if (given[kind])
            CDR_FAIL_ID(err, CDR_EUSER, "machine.isa", "CADRE_ISA: \"%s\" is the second value for the %s; one of each kind is allowed. "
                        "Remove one", isa_rows[row].name, kind ? "GPU" : "CPU");
        given[kind] = true;
        mask[kind] = isa_rows[row].allows;
        at += n;
        if (*at == ',') at++;
    }
    *allowed = (mask[0] & (CDR_ISA_AVX2 | CDR_ISA_AVX512 | CDR_ISA_AVX512_BF16 | CDR_ISA_AMX)) | (mask[1] & (CDR_ISA_SM80 | CDR_ISA_SM90));
    return CDR_OK;
}

const char *cdr_isa_name(uint32_t isa)
{
    if (isa & CDR_ISA_SM90) return "sm90";
    if (isa & CDR_ISA_SM80) return "sm80";
    if (isa & CDR_ISA_AMX) return "amx";
    if (isa & CDR_ISA_AVX512_BF16) return "avx512_bf16";
    if (isa & CDR_ISA_AVX512) return "avx512";
    if (isa & CDR_ISA_AVX2) return "avx2";
    return "base";
}

uint32_t cdr_cpu_isa(cdr_err *err)
{
    uint32_t allowed;
    if (cdr_isa_cap(&allowed, err) != CDR_OK) return 0;
    return cdr__cpu_has() & allowed;
}

/* ---- the CUDA plug-in --------------------------------------------------------------------------------------------- */
bool cdr_cuda_plugin_path(char *out, size_t n)
{
    static const char *const beside[] = { "", "src/device/cuda/", "../lib/", "../lib/cadre/" };
    char exe[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (len > 0) {
        exe[len] = 0;
        char *slash = strrchr(exe, '/');
        if (slash) slash[1] = 0;
        for (int i = 0; i < CDR_COUNT(beside); i++) {
            int m = snprintf(out, n, "%s%s%s", exe, beside[i], plugin_name);
            if (m > 0 && (size_t)m < n && cdr_exists(out)) return true;
        }
    }
    void *lib = dlopen(plugin_name, RTLD_LAZY | RTLD_LOCAL);
    if (!lib) return false;
    struct link_map *map = NULL;
    bool found = dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0 && map && snprintf(out, n, "%s", map->l_name) < (int)n;
    dlclose(lib);
    return found;
}

static cdr_status fail_no_cuda(cdr_err *err, const char *why, const char *fix)
{
    return cdr_fail(err, CDR_EUSER, "machine.no-device", "machine.device=cuda: no device, as %s. Use machine.device=cpu, or %s; "
                    "cadre doctor shows what is there", why, fix);
}

/* The plug-in stays loaded until the process ends: the driver's threads and exit handlers are in it. */
static cdr_status open_cuda(int index, cdr_device **d, cdr_err *err)
{
    char path[PATH_MAX], why[600];
    uint32_t allowed;
    CDR_TRY(cdr_isa_cap(&allowed, err));
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) return fail_no_cuda(err, "libcuda.so.1 was not found", "install the driver");
    dlclose(driver);
    if (!cdr_cuda_plugin_path(path, sizeof path))
        return fail_no_cuda(err, "the plug-in libcadre_cuda.so was not found", "build it with -DCADRE_CUDA=ON");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *said = dlerror();
        snprintf(why, sizeof why, "the plug-in %.200s cannot be loaded: %.300s", path, said ? said : "no reason given");
        return fail_no_cuda(err, why, "install what is missing");
    }
    /* POSIX wants a function pointer read through an object pointer; ISO C has no cast for it */
    cuda_open_fn *open_fn;
    *(void **)&open_fn = dlsym(lib, "cdr_cuda_open");
    if (!open_fn) {
        snprintf(why, sizeof why, "%.200s has no entry cdr_cuda_open", path);
        dlclose(lib);
        return fail_no_cuda(err, why, "build plug-in and executable from the same sources");
    }
    CDR_TRY(open_fn(index, d, err));
    (*d)->isa &= allowed;
    return CDR_OK;
}

cdr_status cdr_device_open(int kind, int index, int n_threads, cdr_device **d, cdr_err *err)
{
    CDR_CHECK(kind >= 0 && kind < CDR_N_DEVICES);
    *d = NULL;
    int threads = n_threads > 0 ? n_threads : cdr_cpu_cores();
    if (kind == CDR_DEV_CPU) return cdr__cpu_open(index, threads, d, err);
    CDR_TRY(open_cuda(index, d, err));
    (*d)->n_threads = threads;
    return CDR_OK;
}
