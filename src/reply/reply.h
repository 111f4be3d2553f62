/*
 * reply.h - front header of src/reply: a model's text into reasoning, tool calls and content, whole
 * or as it streams.
 *
 * Called by serve and cli. Knows no tokenizer, no template and no dialect of an API. Must not:
 * depend on how the text was cut into pieces, or lose a byte of it but white space around reasoning
 * and calls, and headers of messages.
 */
#ifndef SV_REPLY_H
#define SV_REPLY_H

#include "base/base.h"

/* How a model writes calls of tools, and what it thinks before it answers (docs/tools.md). */
enum sv_tool_format {
    SV_TOOL_NONE,
    SV_TOOL_HERMES,  /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    SV_TOOL_XML,     /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter>... */
    SV_TOOL_LLAMA,   /* the answer is {"name": ..., "parameters": {...}} */
    SV_TOOL_MISTRAL, /* [TOOL_CALLS] and a list of objects, or NAME{...} */
    SV_TOOL_DEEPSEEK,
    SV_TOOL_HARMONY /* a message to functions.NAME */
};
enum sv_think_format {
    SV_THINK_NONE,
    SV_THINK_TAG,
    SV_THINK_BRACKET,
    SV_THINK_SEED,
    SV_THINK_HARMONY /* messages on the channel "analysis" */
};

/* By our names and those of vLLM's and SGLang's parsers; -1: unknown. */
int sv_tool_format_named(const char *name);
int sv_think_format_named(const char *name);
const char *sv_tool_format_name(enum sv_tool_format f);
const char *sv_think_format_name(enum sv_think_format f);
/* What the text of a chat template gives away. */
enum sv_tool_format sv_tool_format_of(const char *chat_template);
enum sv_think_format sv_think_format_of(const char *chat_template);
/* The i-th text that a format needs to see, special token or not; NULL after the last. */
const char *sv_tool_marker(enum sv_tool_format f, size_t i);
const char *sv_think_marker(enum sv_think_format f, size_t i);
/* Whether a text ends within reasoning, as some templates let the prompt do. */
bool sv_think_is_open(enum sv_think_format f, const char *text, size_t n);

/* Bytes at the beginning of a text that can be a function's name in a header of harmony. */
size_t sv_harmony_n_name(const char *text, size_t n);

#define SV_MAX_TOOL_NAME 256 /* bytes; what calls another is content */

enum sv_part_kind {
    SV_PART_CONTENT,
    SV_PART_REASONING,
    SV_PART_CALL,      /* a call begins; the text is its function's name */
    SV_PART_ARGUMENTS, /* the next piece of its arguments, JSON */
    SV_PART_CALL_END
};
struct sv_part {
    enum sv_part_kind kind;
    int32_t call; /* counted from 0 */
    bool apart;   /* harmony: a message begins, and an earlier one had text of this kind */
    const char *text;
    size_t n;
};
typedef void sv_part_fn(void *user, const struct sv_part *part);

struct sv_answer_opts {
    enum sv_tool_format tools;
    enum sv_think_format think;
    bool within_reasoning;     /* the prompt has opened it */
    bool reasoning_in_content; /* harmony: with their markers, as if the format were none */
    bool whole; /* a call is given once all of it has come, and is no call if it is malformed
                   then; else as soon as it is known to be one */
    const json_t *tool_list; /* a request's "tools", for the types of parameters; borrowed */
    sv_part_fn *part;
    void *user;
};

/* Takes an answer's text in any pieces. What could be the start of a marker waits, and spaces
 * around reasoning and calls are dropped; all else comes out, as content what is malformed. The
 * parts of a text are the same however it was cut. */
struct sv_answer;
struct sv_answer *sv_answer_new(const struct sv_answer_opts *o); /* NULL: no memory */
void sv_answer_free(struct sv_answer *a);
/* False once memory is out. */
bool sv_answer_push(struct sv_answer *a, const char *text, size_t n);
/* The text is over; cut: by its length, so that a call may be incomplete. */
bool sv_answer_end(struct sv_answer *a, bool cut);
/* Whether a call's arguments are whole. It takes what is let through as such, numbers of any size
 * and halves of surrogates too, and needs no memory. */
bool sv_is_json_object(const char *text, size_t n);
/* Bytes of the text up to the end of the reasoning, its markers included, so far. Of harmony's
 * messages of reasoning those count that come first, with the header of the next message. */
size_t sv_answer_n_reasoning(const struct sv_answer *a);

#endif
