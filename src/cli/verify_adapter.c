/* verify-adapter: parsing; what binds and what is dropped is cdr_verify_adapter. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--for", "LIST", false, "consumers, comma separated: peft,vllm,sglang,gguf (default: all)" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    cdr_verify_adapter_args v = { .common = a->common, .adapter = a->pos[0], .base = a->pos[1], .consumers = cli_value(a, "--for") };
    return cdr_verify_adapter(&v, r, err);
}

const cli_command cli_verify_adapter = {
    .name = "verify-adapter", .args = "ADAPTER BASE", .min_args = 2, .max_args = 2, .options = options, .run = run,
    .what = "which base tensor every key of an adapter binds to, and what each server would drop",
    .more = "ADAPTER: an adapter directory, or a LoRA run. BASE: a directory of weights, a run, a description or a built-in model.\n"
            "Exit code 1 where a named consumer drops a key, B is zero everywhere, or the base is another.",
    .example = "cadre verify-adapter runs/devil toy-k3 --for peft,sglang",
};
