/*
 * tools.h - tool calling and reasoning: options, a chat's fields, and how the model writes both.
 *
 * Called by serve.c, params.c, prompt.c and call.c.
 */
#ifndef SV_SERVE_CORE_TOOLS_H
#define SV_SERVE_CORE_TOOLS_H

#include "serve/core/error.h"
#include "serve/core/params.h"

struct sv_grammar;
struct sv_serve;
struct sv_serve_options;

int sv_tools_check_options(const struct sv_serve_options *o, struct sv_err *err);
/* Chooses the formats of tool calls and reasoning by the options or the chat template, and how the
 * template takes messages. */
void sv_tools_open(struct sv_serve *s);
/* Checks the fields for tools. */
int sv_tools_check(struct sv_params *p, struct sv_api_err *e);
/* The parser of the answer and the constraint that tool_choice asks for. */
int sv_tools_begin(const struct sv_serve *s, struct sv_params *p, enum sv_dialect_kind kind,
                   struct sv_api_err *e);
/* The reasoning that may precede a constrained answer. */
enum sv_think_format sv_reasoning_before_grammar(const struct sv_serve *s);
/* Whether the parser finds calls of a tool with this name. */
bool sv_tool_name_fits(const json_t *name);

/* tool_grammar.c: the grammar of calls of tools; text is a tool or a list of tools as JSON. */
int sv_tool_grammar(struct sv_grammar **g, const struct sv_tool_constraint *f, const char *text,
                    size_t n, struct sv_err *err);

#endif
