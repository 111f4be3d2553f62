/*
 * tool_formats.c - how models write calls of tools: names, markers, and what of them a chat
 * template shows.
 *
 * Called by serve (which format a model has) and by the files that read answers. Must not: read
 * answers.
 */
#include "reply/tool.h"

#include <string.h>

static const struct sv_tool_syntax syntax[] = {
    [SV_TOOL_NONE] = {.name = "none"},
    [SV_TOOL_HERMES] = {.name = "hermes", .open = {"<tool_call>"}, .close = {"</tool_call>"}},
    [SV_TOOL_XML] = {.name = "qwen3_coder",
                     .open = {"<tool_call>", "<function="},
                     .close = {"</tool_call>"}},
    [SV_TOOL_LLAMA] = {.name = "llama3_json",
                       .open = {"<|python_tag|>"},
                       .close = {";"},
                       .bare = true},
    [SV_TOOL_MISTRAL] = {.name = "mistral",
                         .open = {"[TOOL_CALLS]"},
                         .inner = {"[CALL_ID]", "[ARGS]"}},
    [SV_TOOL_DEEPSEEK] = {.name = "deepseek_v3",
                          .open = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
                          .close = {"```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"},
                          .inner = {"<｜tool▁sep｜>"}},
    /* The markers of all messages; which of them are calls is harmony.c's affair. */
    [SV_TOOL_HARMONY] = {.name = "harmony",
                         .inner = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                   "<|end|>", "<|call|>", "<|return|>"}},
};

const struct sv_tool_syntax *sv_tool_syntax(enum sv_tool_format f)
{
    return &syntax[f];
}

const char *sv_tool_format_name(enum sv_tool_format f)
{
    return syntax[f].name;
}

int sv_tool_format_named(const char *name)
{
    static const struct {
        const char *name;
        enum sv_tool_format f;
    } names[] = {{"none", SV_TOOL_NONE},
                 {"hermes", SV_TOOL_HERMES},
                 {"qwen", SV_TOOL_HERMES},
                 {"qwen25", SV_TOOL_HERMES},
                 {"qwen3", SV_TOOL_HERMES},
                 {"qwen3_coder", SV_TOOL_XML},
                 {"qwen3_xml", SV_TOOL_XML},
                 {"llama3", SV_TOOL_LLAMA},
                 {"llama3_json", SV_TOOL_LLAMA},
                 {"llama4_json", SV_TOOL_LLAMA},
                 {"mistral", SV_TOOL_MISTRAL},
                 {"deepseek_v3", SV_TOOL_DEEPSEEK},
                 {"deepseek_v31", SV_TOOL_DEEPSEEK},
                 {"deepseekv3", SV_TOOL_DEEPSEEK},
                 {"deepseekv31", SV_TOOL_DEEPSEEK},
                 {"harmony", SV_TOOL_HARMONY},
                 {"openai", SV_TOOL_HARMONY},
                 {"gpt-oss", SV_TOOL_HARMONY}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i].name) == 0)
            return (int)names[i].f;
    return -1;
}

/* The first that is found counts. What only looks alike is named here too, so that it is not taken
 * for what it is not. */
enum sv_tool_format sv_tool_format_of(const char *template)
{
    static const struct {
        const char *text;
        enum sv_tool_format f;
    } signs[] = {{"<|channel|>analysis", SV_TOOL_HARMONY},
                 {"<arg_key>", SV_TOOL_NONE}, /* GLM's */
                 {"<|tool_calls_section_begin|>", SV_TOOL_NONE},
                 {"<function=", SV_TOOL_XML},
                 {"<tool_call>", SV_TOOL_HERMES},
                 {"[TOOL_CALLS]", SV_TOOL_MISTRAL},
                 {"<｜tool▁call▁begin｜>", SV_TOOL_DEEPSEEK},
                 {"<|python_tag|>", SV_TOOL_LLAMA}};

    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (strstr(template, signs[i].text))
            return signs[i].f;
    return SV_TOOL_NONE;
}

const char *sv_tool_marker(enum sv_tool_format f, size_t i)
{
    const struct sv_tool_syntax *s = &syntax[f];
    const char *const *lists[] = {s->open, s->close, s->inner};

    for (int k = 0; k < 3; k++)
        for (const char *const *at = lists[k]; *at; at++)
            if (!i--)
                return *at;
    return NULL;
}
