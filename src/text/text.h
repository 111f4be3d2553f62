/*
 * text.h - text to token ids and back: byte-level BPE from tokenizer.json, streaming
 * detokenization; chat templates.
 *
 * Called by engine (stop strings, output text) and cli. Knows no device and no model. Must not:
 * allocate per token on the streaming path once its buffers have grown, or emit a partial code
 * point.
 */
#ifndef SV_TEXT_H
#define SV_TEXT_H

#include "base/base.h"

struct sv_tokenizer;

/* Reads DIR/tokenizer.json (and tokenizer_config.json when there). Errors name file, field,
 * position. */
int sv_tokenizer_open(struct sv_tokenizer **tok, const char *dir, struct sv_err *err);
/* The parsing half, for tests and fuzzing. */
int sv_tokenizer_parse(struct sv_tokenizer **tok, const char *json, size_t n, struct sv_err *err);
void sv_tokenizer_close(struct sv_tokenizer *tok);

int32_t sv_tokenizer_n_tokens(const struct sv_tokenizer *tok); /* highest id + 1 */
/* Id of an exact token (added or base vocabulary, given as published), or -1. */
int32_t sv_tokenizer_find(const struct sv_tokenizer *tok, const char *token);
/* Raw bytes of a token (byte-level decoded); *n = 0 and NULL for an unknown id. */
const char *sv_tokenizer_bytes(const struct sv_tokenizer *tok, int32_t id, size_t *n);
bool sv_tokenizer_is_special(const struct sv_tokenizer *tok, int32_t id);

struct sv_ids {
    int32_t *id;
    size_t n, cap;
};
void sv_ids_fini(struct sv_ids *ids);
int sv_ids_append(struct sv_ids *ids, const int32_t *id, size_t n);

enum {
    SV_ENC_SPECIAL = 1,    /* special tokens written in the text become their ids */
    SV_ENC_ADD_SPECIAL = 2 /* apply the post-processor (e.g. Llama's leading <|begin_of_text|>) */
};
/* Length of the longest prefix that is valid UTF-8. */
size_t sv_utf8_valid(const char *s, size_t n);
/* Appends the ids of n bytes. Bytes that are not UTF-8 are read as U+FFFD, one per maximal invalid
 * sequence, as Python's errors="replace" does. A tokenizer may be used by several threads at once;
 * each needs its own scratch (NULL = a temporary one). */
struct sv_enc_scratch;
struct sv_enc_scratch *sv_enc_scratch_new(void);
void sv_enc_scratch_free(struct sv_enc_scratch *s);
int sv_tokenizer_encode(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *text,
                        size_t n, unsigned flags, struct sv_ids *out, struct sv_err *err);
/* Appends the text of n ids. skip_special drops special tokens. */
int sv_tokenizer_decode(const struct sv_tokenizer *tok, const int32_t *ids, size_t n,
                        bool skip_special, struct sv_buf *out);

/* Streaming: feed tokens one by one; out receives only whole code points, so that concatenated
 * output is always valid UTF-8. Bytes that can never become valid turn into U+FFFD. */
struct sv_detok {
    const struct sv_tokenizer *tok;
    bool skip_special;
    const int32_t *shown; /* special tokens that are not skipped; borrowed */
    int32_t n_shown;
    uint8_t held[4]; /* an incomplete sequence */
    int32_t n_held;
};
void sv_detok_init(struct sv_detok *d, const struct sv_tokenizer *tok, bool skip_special);
bool sv_detok_skips(const struct sv_detok *d, int32_t id); /* it is left out of the text */
void sv_detok_push(struct sv_detok *d, int32_t id, struct sv_buf *out); /* appends to out */
void sv_detok_end(struct sv_detok *d, struct sv_buf *out); /* flushes what is held as U+FFFD */

/* ---------------------------------------------------------------- chat templates */

/* A Jinja template, rendered as transformers does with Python's jinja2 (docs/chat-templates.md). A
 * parsed template does not change: several threads may render it at once. */
struct sv_template;

/* 0 stands for the default in each. A template that goes beyond a limit ends with SV_EFULL. */
struct sv_template_opts {
    int64_t now;             /* strftime_now: seconds since 1970, the local zone's offset added */
    size_t max_output_bytes; /* 16 MiB */
    size_t max_memory_bytes; /* 256 MiB, of parse and render each */
    int64_t max_steps;       /* 20 million */
    int max_depth;           /* 1000 levels of nesting; a macro call takes about eight */
};

/* Errors name line and column; pos is the line. What jinja2 has and this has not gives
 * SV_EUNSUPPORTED. */
int sv_template_parse(struct sv_template **t, const char *text, size_t n, struct sv_err *err);
/* Appends the rendered text; on failure out is as before. context is a JSON object (messages,
 * tools, add_generation_prompt, ...). raise_exception gives SV_EINVAL with its message alone. opts
 * may be NULL. */
int sv_template_render(const struct sv_template *t, const json_t *context,
                       const struct sv_template_opts *opts, struct sv_buf *out, struct sv_err *err);
void sv_template_free(struct sv_template *t);

/* The chat template of a model directory: DIR/chat_template.jinja, else chat_template in
 * DIR/tokenizer_config.json (text, or a list of named ones), else DIR/chat_template.json.
 * SV_EUNSUPPORTED when there is none. */
struct sv_chat_template;
int sv_chat_template_open(struct sv_chat_template **t, const char *dir, struct sv_err *err);
/* This text instead, with the special tokens of the directory (NULL: none). */
int sv_chat_template_parse(struct sv_chat_template **t, const char *dir, const char *text, size_t n,
                           struct sv_err *err);
/* As sv_template_render, with bos_token, eos_token and their kin added where context has none. With
 * tools in the context the template named tool_use is taken when there is one, else the one named
 * default. */
int sv_chat_template_render(const struct sv_chat_template *t, const json_t *context,
                            const struct sv_template_opts *opts, struct sv_buf *out,
                            struct sv_err *err);
/* The template as it was read; of several the one named default. */
const char *sv_chat_template_source(const struct sv_chat_template *t);
/* Whether a template says "developer" anywhere: others leave such messages out, or refuse them. */
bool sv_chat_template_knows_developer(const struct sv_chat_template *t);
void sv_chat_template_close(struct sv_chat_template *t);

/* ---------------------------------------------------------------- thoughts and calls in answers */

/* How a model writes calls of tools, and what it thinks before it answers (docs/tools.md). */
enum sv_tool_format {
    SV_TOOL_NONE,
    SV_TOOL_HERMES,  /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    SV_TOOL_XML,     /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter>... */
    SV_TOOL_LLAMA,   /* the answer is {"name": ..., "parameters": {...}} */
    SV_TOOL_MISTRAL, /* [TOOL_CALLS] and a list of objects, or NAME{...} */
    SV_TOOL_DEEPSEEK
};
enum sv_think_format { SV_THINK_NONE, SV_THINK_TAG, SV_THINK_BRACKET, SV_THINK_SEED };

/* By our names and those of vLLM's and SGLang's parsers; -1: nobody's. */
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
/* Whether a text ends within a thought, as some templates let the prompt do. */
bool sv_think_is_open(enum sv_think_format f, const char *text, size_t n);

#define SV_MAX_TOOL_NAME 256 /* bytes; what calls another is content */

enum sv_part_kind {
    SV_PART_CONTENT,
    SV_PART_THOUGHT,
    SV_PART_CALL,      /* a call begins; the text is its function's name */
    SV_PART_ARGUMENTS, /* the next piece of its arguments, JSON */
    SV_PART_CALL_END
};
struct sv_part {
    enum sv_part_kind kind;
    int32_t call; /* counted from 0 */
    const char *text;
    size_t n;
};
typedef void sv_part_fn(void *user, const struct sv_part *part);

struct sv_answer_opts {
    enum sv_tool_format tools;
    enum sv_think_format think;
    bool in_thought; /* the prompt has opened it */
    bool whole;      /* a call is given once all of it has come, and is no call if it is malformed
                        then; else as soon as it is known to be one */
    const json_t *tool_list; /* a request's "tools", for the types of parameters; borrowed */
    sv_part_fn *part;
    void *user;
};

/* Takes an answer's text in any pieces. What could be the start of a marker waits, and spaces
 * around thoughts and calls are dropped; all else comes out, as content what is malformed. The
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
/* Bytes of the text up to the end of the thought, its markers included, so far. */
size_t sv_answer_n_thought(const struct sv_answer *a);

#endif
