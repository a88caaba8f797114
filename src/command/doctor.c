/* doctor.c: what this machine has, what this build has, and what is lost without each. */
#include "train/debug.h"
#include "device/device.h"
#include "graph/op.h"
#include <stdlib.h>
#include <unistd.h>

#ifndef CADRE_COMMIT
#define CADRE_COMMIT "unknown"
#endif

/* Instruction sets for which some operator has a kernel of its own. */
static uint32_t built_isa(void)
{
    uint32_t isa = 0;
    for (int i = 0; cdr_ops[i]; i++)
        for (const cdr_kernel *k = cdr_ops[i]->kernels; k && k->name; k++)
            if (k->device == CDR_DEV_CPU) isa |= k->needs;
    return isa;
}

static void isa_names(uint32_t isa, cdr_text *t, cdr_jw *w)
{
    static const struct { uint32_t bit; const char *name; } names[] = { { 0, "base" }, { CDR_ISA_AVX2, "avx2" }, { CDR_ISA_AVX512, "avx512" },
                                                                        { CDR_ISA_AVX512_BF16, "avx512_bf16" }, { CDR_ISA_AMX, "amx" } };
    for (int i = 0; i < CDR_COUNT(names); i++) {
        if (names[i].bit && !(isa & names[i].bit)) continue;
        cdr_text_printf(t, " %s", names[i].name);
        cdr_jw_str(w, NULL, names[i].name);
    }
}

cdr_status cdr_version(cdr_result *r, cdr_err *err)
{
    char plugin[600];
    cdr_text t = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    bool cuda = cdr_cuda_plugin_path(plugin, sizeof plugin);
    (void)err;
    cdr_jw_begin(&w, NULL, '{');
    cdr_jw_str(&w, "version", CDR_VERSION);
    cdr_jw_str(&w, "commit", CADRE_COMMIT);
    cdr_jw_str(&w, "compiler", __VERSION__);
    cdr_text_printf(&t, "cadre %s (commit %s, compiler %s; cpu", CDR_VERSION, CADRE_COMMIT, __VERSION__);
    cdr_jw_begin(&w, "cpu", '[');
    isa_names(built_isa(), &t, &w);
    cdr_jw_end(&w, ']');
    cdr_jw_begin(&w, "plugins", '[');
    if (cuda) cdr_jw_str(&w, NULL, "cuda");
    cdr_jw_end(&w, ']');
    cdr_jw_end(&w, '}');
    cdr_text_printf(&t, "; plug-ins %s)\n", cuda ? "cuda" : "none");
    r->json = json.s;
    r->text = t.s;
    return CDR_OK;
}

static bool in_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[700];
    while (path && *path) {
        size_t n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)CDR_MIN(n, (size_t)500), path, program);
        if (n > 0 && access(file, X_OK) == 0) return true;
        path += n + (path[n] == ':');
    }
    return false;
}

static void row(cdr_text *t, cdr_jw *w, const char *name, bool found, const char *what, const char *lost)
{
    cdr_text_printf(t, "  %-14s %-8s %s\n", name, found ? "found" : "missing", found ? what : lost);
    cdr_jw_begin(w, NULL, '{');
    cdr_jw_str(w, "name", name);
    cdr_jw_bool(w, "found", found);
    cdr_jw_str(w, "detail", found ? what : lost);
    cdr_jw_end(w, '}');
}

static void hardware(cdr_text *t, cdr_jw *w, uint32_t isa, const cdr_device *cpu, const cdr_device *gpu, const cdr_err *gpu_err)
{
    char bytes[32];
    cdr_format_bytes(bytes, cpu->memory_bytes[0]);
    cdr_text_printf(t, "cpu  %d cores, %s, %s (%s)\n", cdr_cpu_cores(), cdr_isa_name(isa), bytes, cpu->name);
    if (gpu) cdr_text_printf(t, "gpu  %s\n", gpu->name);
    else cdr_text_printf(t, "gpu  none: %s\n", gpu_err->text);
    cdr_jw_begin(w, "cpu", '{');
    cdr_jw_int(w, "cores", cdr_cpu_cores());
    cdr_jw_str(w, "isa", cdr_isa_name(isa));
    cdr_jw_str(w, "name", cpu->name);
    cdr_jw_int(w, "memory_bytes", cpu->memory_bytes[0]);
    cdr_jw_end(w, '}');
    cdr_jw_begin(w, "gpu", '{');
    cdr_jw_bool(w, "found", gpu != NULL);
    cdr_jw_str(w, "detail", gpu ? gpu->name : gpu_err->text);
    cdr_jw_end(w, '}');
}

static void switches(cdr_text *t, cdr_jw *w)
{
    static const struct { const char *name, *what; } env[] = {
        { "CADRE_ISA", "caps the kernels: base avx2 avx512 avx512_bf16 amx, sm80 sm90; one of each kind, comma" },
        { "OMP_NUM_THREADS", "threads of a rank under machine.threads: auto" },
    };
    cdr_text_printf(t, "switches\n");
    cdr_jw_begin(w, "switches", '[');
    for (int i = 0; i < CDR_COUNT(env); i++) {
        const char *value = getenv(env[i].name);
        cdr_text_printf(t, "  %-16s %-12s %s\n", env[i].name, value ? value : "(not set)", env[i].what);
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "name", env[i].name);
        cdr_jw_str(w, "value", value);
        cdr_jw_str(w, "what", env[i].what);
        cdr_jw_end(w, '}');
    }
    for (int i = 0; cdr__debug_table[i].name; i++) {
        const char *value = getenv("CADRE_DEBUG");
        bool on = value && strstr(value, cdr__debug_table[i].name);
        cdr_text_printf(t, "  CADRE_DEBUG=%-7s %-9s %s\n", cdr__debug_table[i].name, on ? "on" : "(off)", cdr__debug_table[i].what);
        cdr_jw_begin(w, NULL, '{');
        cdr_jw_str(w, "name", cdr__debug_table[i].name);
        cdr_jw_bool(w, "on", on);
        cdr_jw_str(w, "what", cdr__debug_table[i].what);
        cdr_jw_end(w, '}');
    }
    cdr_jw_end(w, ']');
}

cdr_status cdr_doctor(const cdr_doctor_args *a, cdr_result *r, cdr_err *err)
{
    cdr_device *cpu, *gpu = NULL;
    cdr_err isa_err = { 0 }, gpu_err = { 0 };
    char plugin[600];
    (void)a;
    uint32_t isa = cdr_cpu_isa(&isa_err);
    if (isa_err.status != CDR_OK) {
        if (err) *err = isa_err;
        return isa_err.status;
    }
    CDR_TRY(cdr_device_open(CDR_DEV_CPU, 0, 1, &cpu, err));
    if (cdr_device_open(CDR_DEV_CUDA, 0, 1, &gpu, &gpu_err) != CDR_OK) gpu = NULL;
    cdr_text t = { 0 }, json = { 0 };
    cdr_jw w = { .t = &json };
    bool built = cdr_cuda_plugin_path(plugin, sizeof plugin);
    cdr_jw_begin(&w, NULL, '{');
    hardware(&t, &w, isa, cpu, gpu, &gpu_err);
    cdr_text_printf(&t, "parts\n");
    cdr_jw_begin(&w, "parts", '[');
    row(&t, &w, "avx2", isa & CDR_ISA_AVX2, "fast kernels on 256 bits", "plain C kernels alone: several times slower");
    row(&t, &w, "avx512_bf16", isa & CDR_ISA_AVX512_BF16, "BF16 products in hardware", "precision.compute: auto is f32");
    row(&t, &w, "amx", isa & CDR_ISA_AMX, "BF16 products in tiles", "vectors do BF16 products, several times slower");
    row(&t, &w, "cuda plug-in", built, plugin, "machine.device=cuda: build with CADRE_CUDA=ON");
    row(&t, &w, "gpu driver", gpu != NULL, gpu ? gpu->name : "", "machine.device=cuda; plans for a GPU still work");
    row(&t, &w, "mpirun", in_path("mpirun"), "several hosts, in a later version", "nothing yet: transport mpi is reserved");
    cdr_jw_end(&w, ']');
    switches(&t, &w);
    cdr_jw_end(&w, '}');
    cpu->ops->close(cpu);
    if (gpu) gpu->ops->close(gpu);
    r->json = json.s;
    r->text = t.s;
    return CDR_OK;
}
