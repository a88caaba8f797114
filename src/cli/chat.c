/* chat: parsing; the conversation is cdr_chat_command. */
#include "cli/cli.h"

static const cli_option options[] = {
    { "--adapter", "ADAPTER", false, "LoRA adapter on top of the model" },
    { "--system", "TEXT", false, "system message of the conversation" },
    { "--thinking", "on|off", false, "whether the model is prompted to reason first" },
    { NULL, NULL, false, NULL },
};

static cdr_status run(const cli_args *a, cdr_result *r, cdr_err *err)
{
    const char *thinking = cli_value(a, "--thinking");
    cdr_chat_args c = { .common = a->common, .model = a->pos[0], .adapter = cli_value(a, "--adapter"), .system = cli_value(a, "--system"), .thinking = -1 };
    if (thinking && strcmp(thinking, "on") == 0) c.thinking = 1;
    else if (thinking && strcmp(thinking, "off") == 0) c.thinking = 0;
    else if (thinking) CDR_FAIL_ID(err, CDR_EUSAGE, "usage.value", "cadre chat: --thinking %s; it is on or off", thinking);
    return cdr_chat_command(&c, r, err);
}

const cli_command cli_chat = {
    .name = "chat", .args = "MODEL", .min_args = 1, .max_args = 1, .keys = true, .options = options, .run = run,
    .what = "a conversation with a model, line by line",
    .more = "MODEL: a run directory, one checkpoint of it, or a directory with config.json. Inside: /reset /tokens /quit.",
    .example = "cadre chat runs/devil --system \"Be brief.\"",
};
