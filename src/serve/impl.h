/*
 * impl.h - what the files of src/serve share: the server, the worker's queue, calls and their
 * sequences, parameters, the writers of answers, metrics and log lines.
 *
 * Included only inside src/serve. Everything but worker.c runs on the loop's thread. A call is one
 * HTTP request that generates; it has one gen (sequence) for each prompt and choice. Must not: hold
 * globals.
 */
#ifndef SV_SERVE_IMPL_H
#define SV_SERVE_IMPL_H

#include "base/base.h"
#include "load/load.h"
#include "salvo.h"
#include "serve/http.h"
#include "serve/serve.h"
#include "text/text.h"

struct sv_call;
struct sv_gen;
struct sv_grammar;

/* ---------------------------------------------------------------- errors of the API (error.c) */

struct sv_api_err {
    int status;       /* HTTP */
    const char *type; /* "invalid_request_error", ... */
    const char *code; /* NULL = null */
    char param[96];   /* the field, "" = null */
    char msg[480];
};
/* All return -1. bad: 400 for a field (NULL = the request as a whole). */
int sv_api_bad(struct sv_api_err *e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same of what is known and not done here. */
int sv_api_unsupported(struct sv_api_err *e, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int sv_api_fail(struct sv_api_err *e, int status, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int sv_api_no_memory(struct sv_api_err *e);
/* A name nobody knows, in an object called prefix (with a dot behind it, or ""). */
int sv_api_unknown(struct sv_api_err *e, const char *prefix, const char *name);
/* {"error": {...}} without a line break. */
void sv_api_err_json(struct sv_buf *b, const struct sv_api_err *e);
/* In the shape of the API that has the request's path. */
void sv_api_reply(struct sv_http_req *q, const struct sv_api_err *e);
/* Whether a client of Anthropic's asks: by its paths, or by its header where a path is others' too.
 */
bool sv_api_is_anthropic(const struct sv_http_req *q);
/* The same for a request that never got to the engine: counted, and a line in the log. */
void sv_api_refuse(struct sv_http_req *q, const struct sv_api_err *e);
/* A whole answer, which it takes; 500 in place of one that found no memory: no half is sent. */
void sv_api_answer(struct sv_http_req *q, int status, const char *type, struct sv_buf *b);

/* ---------------------------------------------------------------- the worker (worker.c, out.c) */

/* What the loop may read once the model is loaded. Owned by the worker, unchanged until it is
 * stopped. */
struct sv_serve_model {
    struct sv_tokenizer *tok;
    struct sv_chat_template *chat; /* NULL: no template, why says so */
    char chat_why[256];
    size_t max_token_bytes;
    struct sv_gen_config gen;
    struct sv_engine_info info;
    bool drafts;
};

enum sv_out_kind { SV_OUT_EVENT, SV_OUT_REJECTED, SV_OUT_LOADED, SV_OUT_FAILED, SV_OUT_FLUSHED };

/* One thing the worker reports. Pointers are valid until the next sv_worker_next. */
struct sv_out {
    enum sv_out_kind kind;
    struct sv_gen *gen;
    enum sv_finish_reason finish;
    int32_t n_tokens, n_drafted, n_prompt_logprobs, n_steps;
    uint32_t n_text, n_message;
    bool has_logprobs;
    bool urgent; /* the sequence's first or last */
    int32_t stop_id, stop_index;
    int32_t n_cached;                /* with the first tokens, and when finished; ... */
    int32_t n_prompt, n_preemptions; /* ... these and n_steps when finished, ... */
    int64_t queue_us, prefill_us, decode_us;
    int64_t at_us;
    const int32_t *tokens;
    const char *text, *message;
    const uint16_t *accept_lengths, *widths; /* (n_steps) */
    const char *logprobs, *prompt_logprobs;  /* packed: read with sv_out_logprob */
    const char *record;                      /* all of it as it came */
    size_t n_record, n_packed;               /* bytes of that, and of log probabilities in it */
};
/* Takes the next packed entry; top_ids and top_logprobs point into it. */
void sv_out_logprob(const char **packed, struct sv_logprob *lp);
void sv_out_pack(struct sv_buf *batch, const struct sv_out *o, const struct sv_logprob *logprobs,
                 const struct sv_logprob *prompt_logprobs);
/* Reads one record at *at; false at the end. */
bool sv_out_unpack(const struct sv_buf *batch, size_t *at, struct sv_out *o);
/* The whole record once more, to be read later. */
void sv_out_copy(struct sv_buf *b, const struct sv_out *o);
/* What is needed to pass a record over. */
struct sv_out_mark {
    uint64_t n_bytes;
    struct sv_gen *gen;
    int64_t at_us;
    enum sv_out_kind kind;
    bool urgent;
};
bool sv_out_peek(const struct sv_buf *batch, size_t at, struct sv_out_mark *m);
/* Takes a record's gen out of it. */
void sv_out_forget(struct sv_buf *batch, size_t at);

/* What has come from the worker and is not done with (inbox.c). */
#define SV_INBOX_WANTED 32
struct sv_inbox {
    struct sv_buf taken, kept; /* the last batch; records of earlier ones, of no use yet */
    size_t at, kept_at;
    int64_t kept_us; /* when the first of them was reported; 0 = there is none */
    bool all;
    int n_wanted;
    struct sv_gen *wanted[SV_INBOX_WANTED];
};
/* Once taken is filled: then next until it is false. With all everything comes, else what is urgent
 * or no event, and before it what was kept of the same sequence. */
void sv_inbox_begin(struct sv_inbox *in, bool all);
bool sv_inbox_next(struct sv_inbox *in, struct sv_out *o);
void sv_inbox_fini(struct sv_inbox *in);

enum sv_load_stage {
    SV_LOAD_START,
    SV_LOAD_TOKENIZER,
    SV_LOAD_WEIGHTS, /* this and the next two are the engine's sv_open_stage */
    SV_LOAD_GRAPHS,
    SV_LOAD_COSTS,
    SV_LOAD_DONE
};
/* Of all loading, what the stages before and the share of this one come to: 0 to 1. */
double sv_load_progress(enum sv_load_stage stage, double share);
const char *sv_load_stage_name(enum sv_load_stage stage);

/* Written by the worker now and then, read for /metrics, /health and log lines. */
struct sv_snapshot {
    struct sv_engine_stats stats;
    int32_t n_live; /* sequences the engine has */
    enum sv_load_stage stage;
    double stage_share; /* of it that is done */
    int64_t busy_us;    /* time in steps */
};

struct sv_worker;
int sv_worker_start(struct sv_worker **w, const struct sv_serve_options *o, int32_t max_live,
                    struct sv_err *err);
/* Ends the thread and closes the engine; what was submitted gets its last event, to be collected.
 * Then free. */
void sv_worker_finish(struct sv_worker *w);
void sv_worker_free(struct sv_worker *w);
int sv_worker_fd(const struct sv_worker *w);
/* The gen belongs to the worker until its last event or rejection has been read. */
void sv_worker_submit(struct sv_worker *w, struct sv_gen *g);
void sv_worker_cancel(struct sv_worker *w, uint64_t serial);
void sv_worker_flush(struct sv_worker *w);
void sv_worker_snapshot(struct sv_worker *w, struct sv_snapshot *out);
/* Results of steps that end before until_us gather, each at most hold_us, which makes one wake-up
 * for many steps. A sequence's first and last event and what is no event never wait. At wake_us the
 * descriptor is readable in any case (INT64_MAX = never). */
void sv_worker_quiet(struct sv_worker *w, int64_t until_us, int64_t hold_us, int64_t wake_us);
/* What has come since the last call: collect once, then next until it is false. Without all, events
 * that are not urgent stay; kept_since is the time of the oldest of them, or 0. */
void sv_worker_collect(struct sv_worker *w, bool all);
bool sv_worker_next(struct sv_worker *w, struct sv_out *out);
int64_t sv_worker_kept_since(const struct sv_worker *w);
const struct sv_serve_model *sv_worker_model(const struct sv_worker *w);
int sv_serve_open_real_engine(struct sv_serve_engine *out, const struct sv_engine_options *o,
                              const void *arg, struct sv_err *err);

/* -------------------------------------------------------------- parameters (params.c, values.c) */

#define SV_API_STOPS 64
#define SV_API_STOP_IDS 256
#define SV_API_REGEXES 16
#define SV_API_BIAS 1024
#define SV_API_SHOWN 16

/* Chats in one API or another come first. */
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

enum sv_tool_choice { SV_CHOICE_AUTO, SV_CHOICE_NONE, SV_CHOICE_REQUIRED, SV_CHOICE_NAMED };

/* What an answer must be. value, borrowed: a schema or its text, the text of an expression or
 * grammar, an array of texts, tools or one of them. */
enum sv_form_kind {
    SV_FORM_NONE,
    SV_FORM_JSON,
    SV_FORM_SCHEMA,
    SV_FORM_REGEX,
    SV_FORM_GBNF,
    SV_FORM_CHOICE,
    SV_FORM_TOOLS
};
#define SV_FORM_KINDS 7
/* Answers that call tools. */
struct sv_tool_form {
    bool tags; /* around calls; else they are objects alone */
    bool many; /* more calls than one */
    bool free; /* text beside them, or no call at all */
};
struct sv_form {
    enum sv_form_kind kind;
    json_t *value;
    bool compact; /* JSON without spaces */
    struct sv_tool_form tools;
    json_t *beside;             /* tools that may be called instead; borrowed */
    enum sv_think_format think; /* a thought may come before it, or */
    bool think_open;            /* the prompt has begun one */
    const char *field;          /* the request's field; and where in it the value stands */
    char name[64];
};
const char *sv_form_name(enum sv_form_kind kind);

/* What a request asked for, in one shape for all dialects. Strings belong to the parsed body, or to
 * what was made of it. */
struct sv_params {
    bool stream, include_usage, continuous_usage;
    bool echo, discard; /* discard: max_tokens 0, so the one token made is not shown */
    bool logprobs;
    bool return_ids, return_draft, return_prompt_text;
    int32_t n;
    int32_t best_of;             /* 0 = not said */
    int32_t n_top, n_prompt_top; /* n_prompt_top -1 = no prompt log probabilities */
    int32_t logprob_start;       /* generate: the prompt's from here on, -1 = none */
    bool logprob_text;           /* generate: with the tokens' texts */
    int32_t spec;                /* enum sv_spec_metrics, -1 = the server's */
    struct sv_request r;         /* sampling, stops, limits; the prompt comes later */
    struct sv_form form;
    const char *model;
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_max_tokens, has_seed;
    const char *stop[SV_API_STOPS];
    const char *stop_regex[SV_API_REGEXES];
    int32_t n_stop_regex;
    int32_t stop_ids[SV_API_STOP_IDS];
    int32_t bias_ids[SV_API_BIAS];
    float bias[SV_API_BIAS];
    /* chat */
    json_t *messages, *tools, *documents, *template_args; /* borrowed */
    const char *reasoning_effort;
    bool add_generation_prompt, has_add_generation;
    bool continue_final;
    enum sv_tool_choice tool_choice;
    const char *tool_name; /* of SV_CHOICE_NAMED */
    bool parallel;         /* more than one call */
    bool separate_thoughts, include_thoughts, stream_thoughts;
    bool omit_thoughts; /* messages: a block says that there is one */
    bool skip_special;
    /* how its answers are taken apart, by sv_tools_begin and with the prompt */
    enum sv_tool_format tool_format;
    enum sv_think_format think_format;
    bool in_thought;
    int32_t shown_ids[SV_API_SHOWN];
    bool ids_as_tokens; /* in log probabilities, vLLM's token_id:17 */
    int add_special;    /* -1 = the dialect's default */
    /* completions and generate */
    json_t *prompt;   /* borrowed: text, ids, or a list of either */
    json_t *suffix;   /* what stands behind the cursor; borrowed */
    int32_t truncate; /* tokens that are kept of a prompt: -1 = as many as leave room */
    bool infills;     /* what ends a file ends the answer, too */
    bool truncates, truncate_right; /* that was said; the first ones, not the last */
    const char *request_id;
    json_t *rids;          /* of each prompt; borrowed */
    json_t *sampling_list; /* generate: settings of each prompt; borrowed */
    bool return_prompt_ids;
    bool batched; /* generate: a list was given, a list is answered */
    /* llama-server's */
    json_t *input_prefix, *input_suffix, *input_extra, *response_fields; /* borrowed */
    json_t *bad_words, *allowed_ids;                                     /* borrowed */
    json_t *asked; /* tokens to report at each place, or such a list for each prompt; borrowed */
    const char *asked_name;
    double repeat_penalty; /* over the last repeat_last_n tokens */
    int32_t repeat_last_n;
    uint32_t samplers;          /* those that were named, by sv_read_samplers; 0 = all */
    int32_t n_indent;           /* the answer ends before a line with fewer blanks; 0 = no limit */
    int32_t max_ms;             /* from the first token on, once there is a line; 0 = no limit */
    json_t *made;               /* a list of what other fields became in the chat's shape; owned */
    json_t *allowed, *callable; /* names and tools of those that may be called; NULL = all */
    /* responses; borrowed */
    json_t *input;
    const char *instructions, *previous_id;
    bool store;
};
/* Reads a body in the given dialect. Unknown fields and wrong types fail, naming the field. */
/* Takes the fields that nobody knows out of a body; their names, with commas. */
void sv_params_drop_unknown(enum sv_dialect_kind kind, json_t *body, struct sv_buf *names);
int sv_params_read(struct sv_params *p, enum sv_dialect_kind kind, json_t *body,
                   struct sv_api_err *e);
/* Keeps v, which it takes, as long as p; false without memory, or if v is NULL. */
bool sv_params_own(struct sv_params *p, json_t *v);
/* Frees what p owns, also after an error. */
void sv_params_fini(struct sv_params *p);
/* Fills what the request left open and checks what depends on the model. */
int sv_params_complete(struct sv_params *p, enum sv_dialect_kind kind,
                       const struct sv_serve_model *m, const struct sv_serve_options *o,
                       struct sv_api_err *e);

/* All that its grammar depends on, as bytes (grammars.c); none where nothing is asked for. */
int sv_form_source(const struct sv_params *p, struct sv_buf *source, struct sv_api_err *e);
/* Where each prompt has settings of its own: one of these for each of them, of p as it was read,
 * before it is completed. *each is the caller's to free, also after an error. */
int sv_params_each(struct sv_params *p, int32_t n_prompts, const struct sv_serve_model *m,
                   const struct sv_serve_options *o, struct sv_params **each, struct sv_api_err *e);

/* One prompt: text or ids. */
struct sv_prompt {
    int32_t *ids;
    int32_t n_ids;
};

/* ---------------------------------------------------------------- calls (call.c) */

#define SV_GEN_LISTS 5
/* What a token needs comes first, here and in sv_call: with many streams a step finds none of it in
 * the cache. */
struct sv_gen {
    struct sv_call *call;
    int64_t last_us;
    struct sv_buf ids;      /* int32_t */
    struct sv_buf new_text; /* of a stream, for its next chunk ... */
    int32_t n_shown;        /* ... with ids from here on */
    int32_t index, prompt;  /* choice; which of the call's prompts */
    enum sv_finish_reason finish;
    bool fresh, shown; /* there is something for a chunk; there was one */
    bool begun, done, canceled;
    bool lost_end;            /* it came while the call was written, and found no memory */
    bool newline, cut;        /* llama-server's: there is a line end; ended by its limits */
    bool in_indent, dedented; /* and: the text ends in a line's blanks, so many; one had too few */
    int32_t indent;
    struct sv_buf text;
    /* JSON pieces of log probabilities, as the dialect wants them */
    struct sv_buf lp[SV_GEN_LISTS];
    struct sv_buf prompt_lp;
    struct sv_buf unkept;         /* records with more of them, to be written on the other thread */
    struct sv_buf accept, widths; /* uint16_t for each decode step */
    struct sv_buf due, due_drafted; /* text of tokens not yet in an event; a flag for each byte */
    struct sv_detok detok;
    struct sv_answer *answer; /* takes it apart; NULL: it is all content */
    struct sv_buf parts;      /* of it, not written yet */
    struct sv_buf thoughts;   /* that are not to be streamed */
    int32_t n_calls;
    int32_t n_blocks, in_block; /* messages: blocks that are over; the open one's kind + 1, or 0 */
    int64_t n_thought_tokens;   /* counted so far, and their bytes */
    size_t n_thought_bytes;
    size_t text_offset; /* legacy log probabilities: characters before the next token */
    int32_t stop_id, stop_index;
    int32_t n_prompt, n_cached, n_preemptions;
    int64_t queue_us, prefill_us, decode_us;
    uint64_t serial;
    struct sv_request r; /* what the worker submits; all it points to lives in the call */
};

struct sv_dialect {
    const char *name; /* in log lines */
    enum sv_dialect_kind kind;
    /* What has come since the chunk before (text, tokens, finish), as frames of a stream. */
    void (*chunk)(struct sv_call *c, struct sv_gen *g, const struct sv_out *o, struct sv_buf *b);
    /* The frames after the last sequence has ended. */
    void (*tail)(struct sv_call *c, struct sv_buf *b);
    /* The whole answer. */
    void (*body)(struct sv_call *c, struct sv_buf *b);
    /* Log probabilities of an event, put aside for the answer (or this chunk). */
    void (*keep)(struct sv_call *c, struct sv_gen *g, const struct sv_out *o);
    /* The rest may be NULL. Once the fields are read, before there is a prompt; on whatever thread
     * reads the body. */
    int (*read)(struct sv_call *c, struct sv_api_err *e);
    /* An error as the end of a stream that has begun; NULL: OpenAI's, and [DONE]. */
    void (*fail)(struct sv_call *c, const struct sv_api_err *e, struct sv_buf *b);
    const char *ping;        /* for a silent stream; NULL: a comment */
    const char *tool_schema; /* where a tool has its schema; NULL: .function.parameters */
    /* Frees what it has in c->own. */
    void (*free_own)(struct sv_call *c);
    bool gathers; /* the end of a stream repeats all of it, log probabilities too */
    /* What goes out next repeats of its request or of its text, in bytes; NULL: nothing. */
    size_t (*repeated)(const struct sv_call *c);
};
extern const struct sv_dialect sv_dialect_chat, sv_dialect_messages, sv_dialect_responses,
    sv_dialect_completions, sv_dialect_generate, sv_dialect_llama, sv_dialect_infill;

/* ------------------------------------------------------------- long bodies and answers (prep.c) */

/* Work for the thread that reads long bodies and writes long answers. run is called there, with its
 * scratch; then done on the loop's thread. */
struct sv_job {
    void (*run)(void *user, struct sv_enc_scratch *scratch);
    void (*done)(void *user);
    void *user;
    bool writes; /* an answer: bodies and answers have room each */
};
/* What is longer is read there: about a millisecond of the loop's time. */
#define SV_INLINE_BYTES 8192
struct sv_prep;
int sv_prep_start(struct sv_prep **p, struct sv_err *err);
int sv_prep_fd(const struct sv_prep *p);
int32_t sv_prep_n_reading(const struct sv_prep *p); /* submitted, and not done */
int32_t sv_prep_n_writing(const struct sv_prep *p);
/* The job stays the caller's and must live until done. False: too many wait. */
bool sv_prep_submit(struct sv_prep *p, struct sv_job *job);
/* Frees a JSON tree there: a long list takes as long as it took to read. */
void sv_prep_discard(struct sv_prep *p, json_t *tree);
void sv_prep_collect(struct sv_prep *p); /* calls done */
/* Ends the thread once all jobs have run, and calls done. */
void sv_prep_finish(struct sv_prep *p);
void sv_prep_free(struct sv_prep *p);

/* ------------------------------------------- the Responses API (responses*.c, stored.c) */

#define SV_RESPONSE_ID 40
#define SV_RESPONSE_NAME_AT 5 /* behind resp_: what the ids of its items have too */
struct sv_stored;
struct sv_kept;
/* At most max answers and max_bytes; the oldest leave first, and a conversation of more bytes is
 * not kept. A store that is NULL keeps nothing. Any thread may call these. */
int sv_stored_open(struct sv_stored **st, int32_t max, int64_t max_bytes, struct sv_err *err);
void sv_stored_close(struct sv_stored *st);
/* Takes both texts. input: a line for each item; output: where the lines of the answer's own are.
 */
void sv_stored_put(struct sv_stored *st, const char *id, struct sv_kept *before,
                   struct sv_buf *input, struct sv_buf *response, size_t output, size_t n_output);
/* Into as much memory as it needs, by which kept texts are counted: as soon as one is whole. */
void sv_stored_fit(struct sv_buf *b);
/* Held until it is let go; NULL: it is not there. */
struct sv_kept *sv_stored_get(struct sv_stored *st, const char *id);
void sv_stored_let_go(struct sv_stored *st, struct sv_kept *k);
bool sv_stored_delete(struct sv_stored *st, const char *id);
void sv_stored_count(struct sv_stored *st, int64_t *n, int64_t *n_bytes);
const char *sv_kept_response(const struct sv_kept *k, size_t *n);
/* A JSON object that begins with its id. Appends those of the conversation, the oldest first, with
 * or without what the last answer added; finds the one with this id, which the server made, among
 * the answer's own. */
struct sv_kept_item {
    const char *text;
    size_t n;
};
void sv_kept_items(const struct sv_kept *k, bool output, struct sv_buf *items);
bool sv_kept_item(const struct sv_kept *k, const char *id, struct sv_kept_item *item);
bool sv_kept_is_item(const struct sv_kept_item *item, const char *id, size_t n);

/* What such a call has besides: text of its request, and how far its stream is. */
struct sv_response {
    struct sv_kept *previous;
    struct sv_buf input; /* its items, a line each, for the store */
    struct sv_buf echo;  /* the members that say what was asked for */
    size_t at, item_at;  /* in the parts: what was read, and where the open item begins */
    int32_t open;        /* its kind + 1, or 0 */
    int32_t index;       /* items that are over */
    int32_t n_events;
    int32_t n_told, first_told; /* tokens whose log probabilities are out; of this item from here */
    struct sv_buf told;         /* both, of each item that is over */
    int64_t completed;          /* Unix seconds */
    bool waits;                 /* the end of a long item, for the other thread */
};
/* responses_items.c: the chat's messages of p->input and of what it goes on from. items: where the
 * input's items go as lines with ids of this name, or NULL. */
int sv_responses_messages(const struct sv_serve *s, struct sv_params *p,
                          const struct sv_kept *previous, const char *name, struct sv_buf *items,
                          struct sv_api_err *e);
/* responses_read.c: all of that once the fields are read; and freed. */
int sv_responses_read(struct sv_call *c, struct sv_api_err *e);
void sv_responses_free(struct sv_call *c);
/* responses.c: the response without its output; what a call has while it runs. */
void sv_responses_status(struct sv_buf *b, const struct sv_call *c, const char *status);
/* The namespace of its tools that a function is in, or NULL. */
const char *sv_responses_namespace(const json_t *body, const char *name, size_t n);
/* Whether a short body may stand for a long prompt. */
bool sv_responses_goes_on(const char *body, size_t n);

struct sv_call {
    struct sv_serve *s;
    struct sv_http_req *req; /* NULL once the client has left or was answered */
    const struct sv_dialect *dialect;
    struct sv_gen *gens;
    int32_t n_gens, n_done;
    struct sv_call *next_due;
    bool due;     /* in the server's list of those with something to send or to end */
    bool started; /* stream: headers are out ... */
    bool sent;    /* ... and a chunk too */
    bool failed;  /* an error has been sent */
    bool aborted; /* by /abort_request */
    int status;
    int64_t start_us, first_us, write_us;
    struct sv_buf head; /* how every chunk begins, up to the number of its choice */
    struct sv_buf out;  /* frames that flush will send; while that runs, the server's own buffer */
    /* the other thread puts together what goes out; meanwhile all but prev, next, req, ... */
    bool writing;
    struct sv_buf held; /* ... status and times stays as it is, and what comes waits here */
    struct sv_params p;
    struct sv_call *prev, *next;
    json_t *body;
    /* writing, or reading a long body: until it is done all but prev, next, req and status ... */
    struct sv_job job;
    /* ... is the other thread's, as long as preparing is set; prepared: it was read there */
    bool preparing, prepared;
    struct evbuffer *raw; /* that body */
    int read_rc;
    struct sv_api_err read_err;
    struct sv_prompt *prompts;
    int32_t n_prompts;
    int32_t *listed;        /* tokens that never come, or that alone may */
    int32_t *asked;         /* tokens to report at each place (words.c) */
    struct sv_params *each; /* of each prompt, where they differ */
    struct sv_buf source;   /* of its grammar, until that is asked for */
    struct sv_grammar *grammar;
    struct sv_buf ignored; /* names of fields nobody knows */
    char id[64], request_id[72];
    int64_t created; /* Unix seconds */
    void *own;       /* the dialect's */
};

/* Answers the request, now or as the engine gets on. */
void sv_call_begin(struct sv_serve *s, const struct sv_dialect *d, struct sv_http_req *q,
                   const char *request_id);
/* One of the worker's reports. After a batch of them flush sends what they brought, one write a
 * client. All streams are written to at the same moments, with the step that ends nearest to a gap
 * after the last such moment, or when something has waited so long; in between only first chunks
 * and ends go out. */
void sv_call_out(struct sv_serve *s, struct sv_out *o);
bool sv_call_all_due(const struct sv_serve *s);
void sv_call_flush(struct sv_serve *s, bool all);
void sv_call_cancel_all(struct sv_serve *s);
/* Ends those of this name, or all, as they are: they get what they have. */
void sv_call_abort(struct sv_serve *s, const char *rid);
const char *sv_call_model(const struct sv_call *c);
bool sv_call_knows_model(const struct sv_serve *s, const char *name);
/* indent.c: whether the answer ends within this piece, which is cut to what is left of it. */
bool sv_indent_ends(struct sv_gen *g, int32_t least, struct sv_out *o);
/* Whether a request may call the model by this name. */
int sv_check_model(const struct sv_serve *s, enum sv_dialect_kind kind, const char *model,
                   struct sv_api_err *e);
/* What a sequence runs with. */
const struct sv_params *sv_call_params(const struct sv_call *c, const struct sv_gen *g);
/* call.c, for send.c. */
void sv_call_cancel(struct sv_call *c);
void sv_call_set_due(struct sv_call *c);
bool sv_call_has_ended(const struct sv_call *c);
void sv_call_free(struct sv_call *c);

/* send.c: log probabilities of an event are put aside, false without memory; a chunk of its own for
 * what has just come; an error; all that has come goes out, and with the last of it the call ends.
 */
bool sv_call_keep(struct sv_call *c, struct sv_gen *g, const struct sv_out *o);
void sv_call_chunk(struct sv_call *c, struct sv_gen *g);
void sv_call_fail(struct sv_call *c, const struct sv_api_err *e);
void sv_call_lose(struct sv_call *c); /* some of what came found no memory */
void sv_call_send(struct sv_call *c);
/* What comes while a call is written elsewhere; and once it is written. */
void sv_call_hold(struct sv_call *c, const struct sv_out *o);
void sv_call_replay(struct sv_call *c);
/* Calls that found no room there may try again. */
void sv_call_unblock(struct sv_serve *s);
void sv_call_tick(struct sv_serve *s, int64_t now_us); /* pings */

/* grammars.c: c->grammar, made of c->source. 0: it is there; 1: sv_call_formed will come. */
int sv_grammars_want(struct sv_serve *s, struct sv_call *c, struct sv_api_err *e);
void sv_call_formed(struct sv_call *c, int rc, struct sv_api_err *e);
void sv_grammars_close(struct sv_serve *s);

/* The prompts of a list, otherwise 1. */
int32_t sv_prompts_count(struct sv_params *p, enum sv_dialect_kind kind);
/* prompt.c: chat messages, text or ids to prompts. */
/* These touch nothing of the server that changes: any thread may call them, with a scratch of its
 * own. */
int sv_prompts_make(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                    enum sv_dialect_kind kind, struct sv_prompt **prompts, int32_t *n,
                    struct sv_api_err *e);
void sv_prompts_free(struct sv_prompt *prompts, int32_t n);
/* flags: SV_ENC_...; appends. */
/* The text of a content's part; NULL: it has none. */
const json_t *sv_part_text(const json_t *part);
int sv_encode(const struct sv_serve *s, struct sv_enc_scratch *scratch, const char *text, size_t n,
              unsigned flags, struct sv_ids *ids, struct sv_api_err *e);
/* infill.c: a text before the cursor and the request's suffix around the model's own marks. */
int sv_suffix_prompt(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                     const json_t *prefix, const char *name, struct sv_prompt *out,
                     struct sv_api_err *e);
int sv_check_prompt(const struct sv_serve *s, const struct sv_prompt *pr, const char *name,
                    struct sv_api_err *e);
int sv_check_text(const struct sv_serve *s, size_t n_bytes, const char *name, struct sv_api_err *e);
int sv_render_chat(const struct sv_serve *s, const struct sv_params *p, struct sv_buf *text,
                   struct sv_api_err *e);
/* words.c: bad_words and allowed_token_ids, as ids in *listed, which the caller frees whatever is
 * returned. */
int sv_words_take(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                  int32_t **listed, struct sv_api_err *e);
/* stop_regex of all prompts, or of each, as what their requests look for. */
int sv_stops_take(struct sv_call *c, struct sv_api_err *e);
/* Whether a short body may have some, which take time. */
bool sv_stops_said(const char *body, size_t n);
void sv_stops_drop(struct sv_call *c);
/* Tokens whose log probabilities are wanted, of one list or one for each prompt; the same of
 * *asked. */
int sv_asked_take(const struct sv_serve *s, const struct sv_params *p, int32_t n_prompts,
                  int32_t **asked, struct sv_api_err *e);
/* Those of a prompt, into its request. */
void sv_asked_give(const int32_t *asked, int32_t prompt, struct sv_request *r);
/* messages.c, messages_read.c: Anthropic's API. Fields that have another shape there, once the
 * table has seen them all; paths of that API, and errors there. */
int sv_messages_read(struct sv_params *p, json_t *body, struct sv_api_err *e);
bool sv_messages_is_path(const char *path);
void sv_messages_err_json(struct sv_buf *b, const struct sv_api_err *e, const char *request_id);
/* infill.c: prefix, suffix and what else there is around the model's own marks; its marks of ends
 * become stop ids. */
int sv_infill_prompt(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                     struct sv_prompt *out, struct sv_api_err *e);

/* tools.c: options; what the model's template shows of its ways; a chat's fields, and what follows
 * from both. */
int sv_tools_check_options(const struct sv_serve_options *o, struct sv_err *err);
void sv_tools_open(struct sv_serve *s);
int sv_tools_check(struct sv_params *p, struct sv_api_err *e);
/* What may come before an answer that must have a form. */
enum sv_think_format sv_thought_before(const struct sv_serve *s);
const json_t *sv_tool_named(const struct sv_params *p, const char *name);
/* Whether calls by this name are found in answers. */
bool sv_tool_name_fits(const json_t *name);
int sv_tools_begin(const struct sv_serve *s, struct sv_params *p, enum sv_dialect_kind kind,
                   struct sv_api_err *e);

/* tool_grammar.c: of the tools that text has as JSON, a list or one. */
int sv_tool_grammar(struct sv_grammar **g, const struct sv_tool_form *f, const char *text, size_t n,
                    struct sv_err *err);

/* parts.c: answers with thoughts and calls; what is taken apart by nothing is one content. */
int sv_parts_open(struct sv_gen *g);
void sv_parts_close(struct sv_gen *g);
void sv_parts_take(struct sv_gen *g, const char *text, size_t n, enum sv_finish_reason finish);
/* Appends the next of the deltas that have come, an object; false, and they are forgotten: there
 * is none. */
bool sv_parts_delta(struct sv_gen *g, size_t *at, struct sv_buf *b);
/* Dialects with other shapes read the parts themselves: the next one from *at, which is 0 first;
 * its text and that of those of its kind that follow, as one JSON string; a call's name in the API.
 */
bool sv_parts_read(const struct sv_gen *g, size_t *at, struct sv_part *p);
void sv_parts_quote(struct sv_buf *b, const struct sv_gen *g, size_t *at, struct sv_part p);
void sv_parts_call_id(struct sv_buf *b, const struct sv_gen *g, int32_t call);
/* The same with another prefix, and for what is counted in another way. */
void sv_parts_id(struct sv_buf *b, const struct sv_gen *g, const char *prefix, int32_t which);
/* The members of a whole answer's message, from its text. */
void sv_parts_message(struct sv_gen *g, struct sv_buf *b);
const char *sv_parts_finish(const struct sv_gen *g); /* as sv_finish_json */
int64_t sv_parts_n_thought_tokens(struct sv_gen *g);

/* -------------------------------------------------------- writers (write.c, logprobs.c, spec.c) */

void sv_json_number(struct sv_buf *b, int64_t v);
void sv_json_float(struct sv_buf *b, double v); /* never inf or nan */
void sv_json_ids(struct sv_buf *b, const int32_t *ids, int32_t n);
void sv_json_tree(struct sv_buf *b, const json_t *v); /* any value, without spaces */
void sv_json_string(struct sv_buf *b, const char *key, const char *value); /* "key":"value" */
/* A token's bytes as text; what is no UTF-8 becomes U+FFFD. */
void sv_json_token(struct sv_buf *b, const struct sv_tokenizer *tok, int32_t id);
const char *sv_finish_json(enum sv_finish_reason f); /* with quotes */
/* A server-sent event around JSON: mark, append, end. */
void sv_sse_begin(struct sv_buf *b);
void sv_sse_begin_named(struct sv_buf *b, const char *event);
void sv_sse_end(struct sv_buf *b);
void sv_sse_done(struct sv_buf *b);
#define SV_SSE_PING ": ping\n\n"
int64_t sv_n_shown_tokens(const struct sv_gen *g); /* of the answer; none with max_tokens 0 */
/* "usage":{...} over the gens of the call (or of one). */
void sv_write_usage(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *one);

/* In a chunk, after its choices: the usage so far, null where it comes later, nothing where none
 * was asked for. */
void sv_write_chunk_usage(struct sv_buf *b, const struct sv_call *c);

/* llama.c: the members of llama-server's object of settings. */
void sv_write_llama_params(struct sv_buf *b, const struct sv_params *p, uint64_t seed);
/* What stopped it: a stop string, an id of the request's own, or null, as vLLM says it; SGLang
 * names any id. */
void sv_write_stop_reason(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g);
/* What ended it, by the index that the engine tells: a stop string, an expression, or NULL. */
const char *sv_stop_named(const struct sv_params *p, int32_t index);
/* That of a sequence, if it ended so. */
const char *sv_stop_text(const struct sv_call *c, const struct sv_gen *g);
/* At most n_top alternatives each; llama-server's has ids too, and vLLM's may have them in place of
 * the texts. */
enum sv_token_shape { SV_TOKEN_TEXT, SV_TOKEN_TEXT_AND_ID, SV_TOKEN_ID };
void sv_logprobs_chat(struct sv_buf *b, const struct sv_tokenizer *tok, const struct sv_out *o,
                      int32_t n_top, enum sv_token_shape shape);
void sv_logprobs_legacy(struct sv_gen *g, const struct sv_tokenizer *tok, int32_t id,
                        const struct sv_logprob *lp, bool first_of_prompt);
void sv_logprobs_legacy_write(struct sv_buf *b, const struct sv_gen *g);
void sv_logprobs_prompt(struct sv_gen *g, const struct sv_tokenizer *tok, const struct sv_out *o);

/* Accept figures of one gen, or of all. */
struct sv_accept {
    int64_t n_steps, n_plain, n_tokens, n_accepted, n_drafted; /* plain: without drafts */
    int64_t length[66];                                        /* by accepted drafts: [0] none */
    int32_t max;
};
void sv_accept_of(const struct sv_gen *g, struct sv_accept *a);
void sv_write_spec_metrics(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g);
void sv_write_timings(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g);
void sv_take_draft_flags(struct sv_gen *g, const struct sv_out *o);
void sv_write_draft_flags(struct sv_buf *b, struct sv_gen *g, size_t n_text);

/* ---------------------------------------------------------------- metrics and log lines */

#define SV_N_BUCKETS 24

struct sv_histogram {
    int64_t n[SV_N_BUCKETS + 1];
    int64_t count;
    double sum;
};
struct sv_metrics {
    int64_t n_requests[6]; /* by enum sv_finish_reason, of sequences; [5]: rejected */
    int64_t n_refused[2];  /* requests that never got to the engine: 4xx, 5xx */
    int64_t n_full;        /* 429 */
    int64_t n_prompt_tokens, n_cached_tokens, n_tokens;
    int64_t prefill_us, decode_us; /* of ended sequences */
    int64_t n_aside;               /* answers and chunks put together beside the loop */
    int64_t most_turn_bytes;       /* put together in one turn of the loop */
    int64_t n_forms[SV_FORM_KINDS], n_grammar_hits, n_grammars; /* grammars: kept */
    struct sv_histogram ttft, itl, e2e, queue, making;
    /* of ended sequences: seconds, and tokens by count */
    struct sv_histogram prefill, decode, inference, per_token, prompt_tokens, answer_tokens;
};
void sv_histogram_add(struct sv_histogram *h, double seconds, int64_t times);
void sv_histogram_count(struct sv_histogram *h, int64_t n);
void sv_metrics_write(struct sv_serve *s, struct sv_buf *b);
void sv_metric_label(struct sv_buf *b, const char *name, const char *value);
void sv_metric_head(struct sv_buf *b, const char *name, const char *type, const char *help);
/* labels: as between braces, or "". */
void sv_metric_histogram(struct sv_buf *b, const char *name, const char *help, const char *labels,
                         const struct sv_histogram *h);
/* The same of one that was fed by sv_histogram_count. */
void sv_metric_counts(struct sv_buf *b, const char *name, const char *help, const char *labels,
                      const struct sv_histogram *h);
/* names.c */
/* Tokens a decode step brought, plain ones included: what the accept lengths of SGLang's answers
 * add up to. */
double sv_mean_accept(const struct sv_engine_stats *st);
void sv_metrics_other_names(const struct sv_serve *s, const struct sv_snapshot *snap,
                            struct sv_buf *b);

/* One line: event, then name=value pairs. Values: 's' string, 'i' int64_t, 'f' double. */
struct sv_log_field {
    const char *name;
    char kind;
    union {
        const char *s;
        int64_t i;
        double f;
    } v;
};
#define SV_LOG_S(n, x)                                                                             \
    {                                                                                              \
        .name = (n), .kind = 's', .v.s = (x)                                                       \
    }
#define SV_LOG_I(n, x)                                                                             \
    {                                                                                              \
        .name = (n), .kind = 'i', .v.i = (x)                                                       \
    }
#define SV_LOG_F(n, x)                                                                             \
    {                                                                                              \
        .name = (n), .kind = 'f', .v.f = (x)                                                       \
    }
void sv_serve_log(const struct sv_serve *s, const char *event, const struct sv_log_field *f, int n);
/* What a client named, for a line: the beginning, and nothing that a terminal obeys. */
const char *sv_log_plain(char to[128], const char *text);

/* ---------------------------------------------------------------- the server (loop.c) */

enum sv_serve_state { SV_LOADING, SV_READY, SV_DRAINING, SV_BROKEN };

struct sv_keys;
/* A file as it was last seen. Zeros: never. */
struct sv_tls_stamp {
    int64_t mtime_ns, inode, n_bytes;
};
struct sv_serve {
    struct sv_serve_options o;
    char model_name[256];
    struct event_base *base;
    struct sv_http *http;
    struct ssl_ctx_st *tls;
    struct sv_tls_stamp tls_seen[2]; /* certificate, key */
    struct sv_keys *keys;            /* NULL: everybody may */
    struct sv_worker *worker;
    const struct sv_serve_model *model; /* NULL until loaded */
    struct sv_enc_scratch *scratch;
    struct sv_prep *prep;
    struct sv_stored *stored;      /* NULL: nothing is */
    struct sv_chat_template *chat; /* given by option */
    enum sv_tool_format tool_format;
    enum sv_think_format think_format;
    bool as_reasoning, as_reasoning_content; /* what thoughts are called */
    struct sv_template_opts render;          /* limits, where they are not the usual ones */
    enum sv_serve_state state;
    char broken[480];
    struct sv_call *calls, *due, *blocked;
    struct sv_made *grammars; /* those that are kept or being made, the last used first */
    int32_t n_making;
    int32_t n_live, max_live; /* sequences with the worker */
    uint64_t next_serial;
    uint64_t random_key, n_random;
    struct sv_http_req *flushing[32]; /* waiting for the worker to flush: a ring */
    int32_t first_flushing, n_flushing;
    struct sv_metrics metrics;
    struct sv_buf frames;                /* of answers: one buffer for all stays in the cache */
    int64_t turn_bytes;                  /* put together in this turn of the loop */
    int64_t flushed_us;                  /* the end of the last step that went out to all streams */
    int64_t oldest_us, newest_us;        /* events since then that may wait; 0 = none */
    int64_t step_us;                     /* about the time between two events of a sequence */
    int64_t write_ns;                    /* about what a write to a stream costs this thread */
    int64_t start_us, drain_us, created; /* created: Unix seconds */
    int stop_fd, n_stops;
    struct event *on_mail, *on_prep, *on_stop, *on_tick, *on_term, *on_int;
    struct sv_snapshot last; /* at the last line of figures */
    int64_t last_us, last_tokens;
    bool idle_said, drain_over;
};

uint64_t sv_serve_random(struct sv_serve *s);

/* ---------------------------------------------------------------- endpoints */

/* route.c */
void sv_route(void *s, struct sv_http_req *q);
void sv_route_refused(void *s, int status, struct sv_buf *body);
/* responses_stored.c: by the id in the path */
void sv_get_response(struct sv_serve *s, struct sv_http_req *q);
void sv_delete_response(struct sv_serve *s, struct sv_http_req *q);
void sv_post_response(struct sv_serve *s, struct sv_http_req *q);
/* state.c, tokenize.c, generate.c, page.c. */
void sv_get_models(struct sv_serve *s, struct sv_http_req *q);
void sv_post_tokenize(struct sv_serve *s, struct sv_http_req *q);
/* A body that needs no engine, read and answered here or on the other thread: answer writes JSON.
 */
typedef int sv_answer_fn(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                         struct sv_buf *b, struct sv_api_err *e);
void sv_ask(struct sv_serve *s, struct sv_http_req *q, sv_answer_fn *answer);
void sv_post_count_tokens(struct sv_serve *s, struct sv_http_req *q); /* messages_read.c */
void sv_post_detokenize(struct sv_serve *s, struct sv_http_req *q);
void sv_post_apply_template(struct sv_serve *s, struct sv_http_req *q);
void sv_get_tokenizer_info(struct sv_serve *s, struct sv_http_req *q);
void sv_get_health(struct sv_serve *s, struct sv_http_req *q);
void sv_get_model_info(struct sv_serve *s, struct sv_http_req *q);
/* slots.c */
void sv_get_props(struct sv_serve *s, struct sv_http_req *q);
void sv_get_slots(struct sv_serve *s, struct sv_http_req *q);
void sv_get_version(struct sv_serve *s, struct sv_http_req *q);
void sv_get_load(struct sv_serve *s, struct sv_http_req *q);
void sv_post_abort(struct sv_serve *s, struct sv_http_req *q);
void sv_get_metrics(struct sv_serve *s, struct sv_http_req *q);
void sv_get_server_info(struct sv_serve *s, struct sv_http_req *q);
void sv_flush_prefixes(struct sv_serve *s, struct sv_http_req *q);
void sv_flushed(struct sv_serve *s);
void sv_get_page(struct sv_serve *s, struct sv_http_req *q);
/* Whether a body can be read as it came. */
int sv_check_coding(const struct sv_http_req *q, struct sv_api_err *e);
/* Hands the body, which becomes *raw, and what is to be done with it to the thread that reads long
 * ones; e: why not. */
int sv_body_later(struct sv_serve *s, struct sv_http_req *q, struct sv_job *job,
                  struct evbuffer **raw, struct sv_api_err *e);
/* The object that a body is; NULL: e says why it is none. */
json_t *sv_body_object(const char *text, size_t n, struct sv_api_err *e);

/* auth.c, tls.c */
int sv_keys_open(struct sv_keys **k, const char *key, const char *file, struct sv_err *err);
bool sv_keys_allow(const struct sv_keys *k, const char *authorization, const char *x_api_key);
void sv_keys_close(struct sv_keys *k);
int sv_tls_open(struct ssl_ctx_st **ctx, const char *cert, const char *key, struct sv_err *err);
void sv_tls_close(struct ssl_ctx_st *ctx);
/* 1: the files have changed, and *ctx is another one; 0: they have not, or this is the first look;
 * an error leaves it as it is until they change again. */
int sv_tls_refresh(struct ssl_ctx_st **ctx, struct sv_tls_stamp seen[2], const char *cert,
                   const char *key, struct sv_err *err);

#endif
