/*
 * params.h - what a request asked for, in one shape for all dialects.
 *
 * Filled by params.c from a body, read by everything that handles a request. Strings belong to the
 * parsed body or to what was made of it. Must not: know HTTP.
 */
#ifndef SV_SERVE_CORE_PARAMS_H
#define SV_SERVE_CORE_PARAMS_H

#include "base/base.h"
#include "reply/reply.h"
#include "sample/sample.h"

struct sv_api_err;
struct sv_dialect;
struct sv_serve_model;
struct sv_serve_options;

#define SV_API_STOPS 64
#define SV_API_STOP_IDS 256
#define SV_API_REGEXES 16

/* Dialects of chats come first. */
enum sv_dialect_kind {
    SV_CHAT,
    SV_MESSAGES,
    SV_RESPONSES,
    SV_COMPLETIONS,
    SV_GENERATE,
    SV_LLAMA,
    SV_INFILL
};
static inline bool sv_is_chat(enum sv_dialect_kind kind)
{
    return kind < SV_COMPLETIONS;
}

enum sv_tool_choice {
    SV_TOOL_CHOICE_AUTO,
    SV_TOOL_CHOICE_NONE,
    SV_TOOL_CHOICE_REQUIRED,
    SV_TOOL_CHOICE_NAMED
};

enum sv_constraint_kind {
    SV_CONSTRAINT_NONE,
    SV_CONSTRAINT_JSON,
    SV_CONSTRAINT_SCHEMA,
    SV_CONSTRAINT_REGEX,
    SV_CONSTRAINT_GBNF,
    SV_CONSTRAINT_CHOICE,
    SV_CONSTRAINT_TOOLS
};
#define SV_CONSTRAINT_KINDS 7
/* How an answer that calls tools is written. */
struct sv_tool_constraint {
    bool tags;      /* each call between tags; else a call is a bare object */
    bool many;      /* more than one call is allowed */
    bool free;      /* text may come with calls, or instead of them */
    bool arguments; /* the answer is the arguments of the only tool */
};
/* What an answer must be. */
struct sv_constraint {
    enum sv_constraint_kind kind;
    json_t *value; /* schema (or its text), expression, grammar, array of texts, tools; borrowed */
    bool compact;  /* JSON without spaces */
    struct sv_tool_constraint tools;
    json_t *beside;             /* tools that may be called instead; borrowed */
    enum sv_think_format think; /* reasoning that may precede the answer */
    bool think_open;            /* the prompt has opened the reasoning */
    const char *field;          /* the request's field, for errors */
    char name[64];              /* the field and the value's place in it, for errors */
};
const char *sv_constraint_name(enum sv_constraint_kind kind);

/* JSON is borrowed from the body unless it says otherwise. */
struct sv_params {
    struct sv_buf *ignored; /* collects names of unknown fields; NULL: these are refused */
    bool stream, include_usage, continuous_usage;
    bool echo, discard; /* discard: max_tokens was 0, so the one token computed is not shown */
    bool logprobs;
    bool return_ids, return_draft, return_prompt_text;
    int32_t n;
    int32_t best_of;             /* 0 = not given */
    int32_t n_top, n_prompt_top; /* n_prompt_top -1 = no log probabilities of the prompt */
    int32_t logprob_start; /* generate: first prompt position with log probabilities; -1 = none */
    bool logprob_text;     /* generate: log probabilities with the tokens' texts */
    int32_t spec;          /* enum sv_spec_metrics, -1 = the server's */
    struct sv_request r;   /* sampling, stops, limits; the prompt is filled in later */
    struct sv_constraint constraint;
    const char *model;
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition, has_max_tokens, has_seed;
    const char *stop[SV_API_STOPS];
    const char *stop_regex[SV_API_REGEXES];
    int32_t n_stop_regex;
    int32_t stop_ids[SV_API_STOP_IDS];
    int32_t bias_ids[SV_MAX_BIAS];
    float bias[SV_MAX_BIAS];
    /* chat */
    json_t *messages, *tools, *documents, *template_args;
    json_t *images; /* [part, its place in the body] for each; NULL: there are none */
    const char *reasoning_effort;
    bool add_generation_prompt, has_add_generation;
    bool continue_final;
    enum sv_tool_choice tool_choice;
    const char *tool_name; /* of SV_TOOL_CHOICE_NAMED */
    bool parallel;         /* more than one call is allowed */
    bool separate_reasoning, include_reasoning, stream_reasoning;
    bool omit_reasoning; /* messages: a thinking block without its text */
    bool skip_special;
    /* How the answer is parsed: set by sv_tools_begin, in_reasoning with the prompt. */
    enum sv_tool_format tool_format;
    enum sv_think_format think_format;
    bool in_reasoning;  /* the prompt ends within reasoning */
    const char *header; /* gpt-oss: of a constrained answer, in the prompt; NULL: none */
    int32_t shown_ids[SV_MAX_SHOWN_IDS];
    bool ids_as_tokens; /* log probabilities with vLLM's "token_id:17" for the text */
    int add_special;    /* -1 = the dialect's default */
    /* completions and generate */
    json_t *prompt;          /* text, ids, or a list of either */
    const char *prompt_name; /* the field that it came in */
    json_t *suffix;          /* the text after the cursor */
    int32_t truncate;        /* prompt tokens to keep; -1 = as many as leave room for the answer */
    bool infills;            /* the model's end-of-file tokens are stop ids already */
    bool truncates;          /* truncate was given */
    bool truncate_right;     /* keep the first tokens, not the last */
    const char *request_id;
    json_t *rids;          /* an id for each prompt */
    json_t *sampling_list; /* generate: sampling parameters for each prompt */
    bool return_prompt_ids;
    bool batched; /* the prompt is a list; generate answers with a list */
    /* llama-server's */
    json_t *input_prefix, *input_suffix, *input_extra, *response_fields;
    json_t *bad_words, *allowed_ids;
    json_t *logprob_ids; /* ids to report at each position: a list, or one for each prompt */
    const char *logprob_ids_name;
    double repeat_penalty; /* over the last repeat_last_n tokens */
    int32_t repeat_last_n;
    uint32_t samplers; /* those that sv_read_samplers found; 0 = all */
    int32_t n_indent;  /* the answer ends before a line that is indented by less; 0 = no limit */
    int32_t max_ms;    /* time from the first token, once there is a line break; 0 = no limit */
    json_t *made;      /* JSON that was made of other fields; owned, a list */
    json_t *allowed;   /* names of the tools that may be called; NULL = all */
    json_t *callable;  /* these tools */
    /* responses */
    json_t *input;
    const char *instructions, *previous_id;
    bool store;
};

/* Reads a body in a dialect. Fails for a wrong type, naming the field. Unknown fields are collected
 * in ignored, or refused if that is NULL. */
int sv_params_read(struct sv_params *p, const struct sv_dialect *d, json_t *body,
                   struct sv_buf *ignored, struct sv_api_err *e);
/* An unknown field: its name is added to ignored once, as a line of printable ASCII; or, if that is
 * NULL, the error of sv_api_unknown. */
int sv_unknown_field(struct sv_buf *ignored, const char *prefix, const char *name,
                     struct sv_api_err *e);
/* Takes v and keeps it as long as p; false if memory ran out or v is NULL. */
bool sv_params_own(struct sv_params *p, json_t *v);
/* Frees what p owns, also after an error. */
void sv_params_fini(struct sv_params *p);
/* Fills in defaults and checks what depends on the model. */
int sv_params_complete(struct sv_params *p, enum sv_dialect_kind kind,
                       const struct sv_serve_model *m, const struct sv_serve_options *o,
                       struct sv_api_err *e);
/* With sampling parameters for each prompt: a copy of p for each of them, completed. p itself must
 * not be completed yet. *each is the caller's to free, also after an error. */
int sv_params_each(struct sv_params *p, int32_t n_prompts, const struct sv_serve_model *m,
                   const struct sv_serve_options *o, struct sv_params **each, struct sv_api_err *e);

#endif
