/*
 * call.h - a generating request, its sequences, and the interface of dialects.
 *
 * A call is one HTTP request; it has one choice, which is one sequence of the engine, for each
 * prompt and each of `n`. Dialects and the files of core include this header. Must not: know how an
 * answer is written.
 */
#ifndef SV_SERVE_CORE_CALL_H
#define SV_SERVE_CORE_CALL_H

#include "serve/core/error.h"
#include "serve/core/out.h"
#include "serve/core/params.h"
#include "serve/core/prep.h"
#include "serve/core/prompt.h"
#include "serve/core/server.h"
#include "token/token.h"

struct sv_call;
struct sv_field;
struct sv_grammar;

#define SV_CHOICE_LISTS 5
/* Members that each token needs come first, here and in struct sv_call: with many streams, none of
 * them are in the CPU's cache when a step ends. */
struct sv_choice {
    struct sv_call *call;
    int64_t last_us;
    struct sv_buf ids;      /* int32_t */
    struct sv_buf new_text; /* stream: the text of the next chunk */
    int32_t n_shown;        /* stream: ids before the next chunk */
    int32_t n_counted;      /* tokens already counted, from a replica that failed */
    int32_t index, prompt;  /* number of the choice; number of its prompt in the call */
    enum sv_finish_reason finish;
    bool fresh, shown; /* there is something for a chunk; a chunk was written */
    bool begun, done, canceled;
    bool taken;        /* the engine has its request, or refused it */
    bool lost_end;     /* its last report was lost: memory ran out while the call was written */
    bool newline, cut; /* llama-server: the text has a line break; a limit has ended it */
    bool in_indent; /* llama-server: the text ends in a line's leading blanks, `indent` of them */
    bool dedented;  /* llama-server: a line had too few */
    int32_t indent;
    struct sv_buf text;
    struct sv_buf lp[SV_CHOICE_LISTS]; /* log probabilities as the dialect writes them */
    struct sv_buf prompt_lp;
    struct sv_buf unkept;           /* reports with log probabilities not written yet */
    struct sv_buf accept, widths;   /* uint16_t for each decode step */
    struct sv_buf due, due_drafted; /* text not yet in an event; a flag for each byte */
    struct sv_detok detok;
    struct sv_answer *answer;   /* parses the text; NULL: all of it is content */
    struct sv_buf deltas;       /* parsed and not written yet (deltas.h) */
    struct sv_buf reasoning;    /* to be sent in one piece */
    int32_t n_calls;            /* tool calls */
    int32_t last_kind;          /* enum sv_part_kind of the latest part */
    int32_t n_blocks, in_block; /* messages: closed blocks; the open block's kind + 1, or 0 */
    int64_t n_reasoning_tokens; /* counted so far */
    size_t n_reasoning_bytes;
    size_t text_offset; /* legacy log probabilities: characters before the next token */
    int32_t stop_id, stop_index;
    int32_t n_prompt, n_cached, n_preemptions;
    int64_t queue_us, prefill_us, decode_us;
    int32_t replica, n_rows; /* where it runs; rows of its prompt, until they are computed */
    uint64_t serial;
    struct sv_request r; /* submitted to the worker; what it points to lives in the call */
};

/* One API's requests and answers. Functions may be NULL from `read` on. */
struct sv_dialect {
    const char *name; /* in log lines */
    enum sv_dialect_kind kind;
    const char *id_prefix;         /* of answers' ids; NULL: none */
    const struct sv_field *fields; /* rows of its own, ended by one without a name; NULL: none */
    /* Reads fields that the table cannot describe, after all others; NULL: there are none. */
    int (*read_body)(struct sv_params *p, json_t *body, struct sv_api_err *e);
    /* Whether a short body may take long to read; NULL: it does not. */
    bool (*is_long)(const char *body, size_t n);
    /* Whether a limit of this API ends the answer within this report, which is then shortened;
     * NULL: there is no such limit. */
    bool (*is_over)(struct sv_call *c, struct sv_choice *ch, struct sv_out *o);
    /* The text, tokens and finish reason since the last chunk, as frames of a stream. */
    void (*chunk)(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o,
                  struct sv_buf *b);
    /* The frames after the last sequence has ended. */
    void (*tail)(struct sv_call *c, struct sv_buf *b);
    /* The whole answer. */
    void (*body)(struct sv_call *c, struct sv_buf *b);
    /* Adds an event's log probabilities to ch->lp, for the next chunk or the whole answer. */
    void (*keep)(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o);
    /* After the fields were read and before there is a prompt, on the thread that reads the body.
     */
    int (*read)(struct sv_call *c, struct sv_api_err *e);
    /* Ends a stream that has begun with an error; NULL: OpenAI's error and [DONE]. */
    void (*fail)(struct sv_call *c, const struct sv_api_err *e, struct sv_buf *b);
    const char *ping;        /* for a silent stream; NULL: a comment */
    const char *tool_schema; /* where a tool has its schema; NULL: .function.parameters */
    /* Frees c->own. */
    void (*free_own)(struct sv_call *c);
    bool gathers; /* the end of a stream repeats the whole answer with its log probabilities */
    /* Bytes of the request or answer that the next output repeats; NULL: none. */
    size_t (*repeated)(const struct sv_call *c);
};

struct sv_call {
    struct sv_serve *s;
    struct sv_http_req *req; /* NULL once the client has left or was answered */
    const struct sv_dialect *dialect;
    int key; /* index of the client's API key, -1 when the server has none */
    struct sv_choice *choices;
    int32_t n_choices, n_done, n_taken;
    struct sv_call *next_due;
    bool due;     /* in the server's list of calls with something to send or to end */
    bool started; /* stream: headers were sent */
    bool sent;    /* stream: a chunk was sent */
    bool failed;  /* an error was sent */
    bool aborted; /* by /abort_request */
    int status;
    int64_t start_us, first_us, write_us;
    struct sv_buf head; /* how every chunk begins, up to the number of its choice */
    struct sv_buf out;  /* frames to be sent; while they are written, the server's buffer */
    /* Set while the other thread writes the answer: all but prev, next, req, status and times stay
     * as they are, and reports wait in `pending`. */
    bool writing;
    struct sv_buf pending;
    struct sv_params p;
    struct sv_call *prev, *next;
    json_t *body;
    /* The job that writes the answer or reads a long body. While `preparing` is set, all but prev,
     * next, req and status belong to the other thread. prepared: the body was read there. */
    struct sv_job job;
    bool preparing, prepared;
    struct sv_http_body *raw; /* the long body */
    int read_rc;
    struct sv_api_err read_err;
    struct sv_prompt *prompts;
    int32_t n_prompts;
    int32_t *token_lists;   /* ids of bad_words and allowed_token_ids */
    int32_t *logprob_ids;   /* of logprob_token_ids (token_lists.h) */
    struct sv_params *each; /* parameters of each prompt, where they differ */
    struct sv_buf source;   /* of its grammar, until the grammar is asked for */
    struct sv_grammar *grammar;
    struct sv_buf ignored; /* names of unknown fields */
    char id[64], request_id[72];
    int64_t created; /* Unix seconds */
    void *own;       /* the dialect's */
};

/* Reads the request and submits its sequences, now or once a long body is read. */
void sv_call_begin(struct sv_serve *s, const struct sv_dialect *d, struct sv_http_req *q,
                   const char *request_id);
/* Handles one of the worker's reports. */
void sv_call_out(struct sv_serve *s, struct sv_out *o);
void sv_call_cancel(struct sv_call *c);
void sv_call_cancel_all(struct sv_serve *s);
/* Ends the requests of an API key that have this id, or all of them (NULL). Their clients get what
 * was generated so far. */
void sv_call_abort(struct sv_serve *s, int key, const char *rid);
bool sv_call_has_ended(const struct sv_call *c);
/* The model's name in answers. */
const char *sv_call_model(const struct sv_call *c);
/* The parameters of a choice. */
const struct sv_params *sv_call_params(const struct sv_call *c, const struct sv_choice *ch);

#endif
