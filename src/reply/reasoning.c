/*
 * reasoning.c - what models think before they answer: the marks around it, and what a chat template
 * shows of them.
 *
 * Called by serve and answer.c. Must not: read answers.
 */
#include "reply/tool.h"

#include <string.h>

static const struct sv_think_syntax syntax[] = {
    [SV_THINK_NONE] = {"none", NULL, NULL},
    [SV_THINK_TAG] = {"think", "<think>", "</think>"},
    [SV_THINK_BRACKET] = {"mistral", "[THINK]", "[/THINK]"},
    [SV_THINK_SEED] = {"seed_oss", "<seed:think>", "</seed:think>"},
    [SV_THINK_HARMONY] = {"harmony", "<|channel|>analysis<|message|>", "<|end|>"},
};

const struct sv_think_syntax *sv_think_syntax(enum sv_think_format f)
{
    return &syntax[f];
}

const char *sv_think_format_name(enum sv_think_format f)
{
    return syntax[f].name;
}

int sv_think_format_named(const char *name)
{
    static const struct {
        const char *name;
        enum sv_think_format f;
    } names[] = {{"none", SV_THINK_NONE},         {"think", SV_THINK_TAG},
                 {"qwen3", SV_THINK_TAG},         {"qwen3-thinking", SV_THINK_TAG},
                 {"deepseek_r1", SV_THINK_TAG},   {"deepseek-r1", SV_THINK_TAG},
                 {"deepseek_v3", SV_THINK_TAG},   {"deepseek-v3", SV_THINK_TAG},
                 {"glm45", SV_THINK_TAG},         {"mistral", SV_THINK_BRACKET},
                 {"magistral", SV_THINK_BRACKET}, {"seed_oss", SV_THINK_SEED},
                 {"harmony", SV_THINK_HARMONY},   {"openai_gptoss", SV_THINK_HARMONY},
                 {"gpt-oss", SV_THINK_HARMONY}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i].name) == 0)
            return (int)names[i].f;
    return -1;
}

/* By the end: templates that only take reasoning out of earlier messages say that alone. Harmony's
 * end is that of any message, also in other formats. */
enum sv_think_format sv_think_format_of(const char *template)
{
    if (sv_tool_format_of(template) == SV_TOOL_HARMONY)
        return SV_THINK_HARMONY;
    for (int f = SV_THINK_TAG; f <= SV_THINK_SEED; f++)
        if (strstr(template, syntax[f].close))
            return (enum sv_think_format)f;
    return SV_THINK_NONE;
}

const char *sv_think_marker(enum sv_think_format f, size_t i)
{
    if (i > 1 && f == SV_THINK_HARMONY) /* the single tokens */
        return sv_tool_marker(SV_TOOL_HARMONY, i - 2);
    return f == SV_THINK_NONE || i > 1 ? NULL : i ? syntax[f].close : syntax[f].open;
}

bool sv_think_is_open(enum sv_think_format f, const char *text, size_t n)
{
    const char *open = syntax[f].open;
    size_t k = open ? strlen(open) : 0;

    while (n && sv_is_space(text[n - 1]))
        n--;
    return k && n >= k && memcmp(text + n - k, open, k) == 0;
}
