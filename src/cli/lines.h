/*
 * lines.h - JSON lines: reading them (reader.c), and requests written in them (jsonl.c).
 *
 * Included by the commands that take a file of requests, and by salvo-bench. Must not: run a
 * request.
 */
#ifndef SV_CLI_LINES_H
#define SV_CLI_LINES_H

#include "cli/cli.h"

#define SV_CLI_MAX_LINE ((size_t)16 << 20)

enum sv_cli_line { SV_CLI_LINE, SV_CLI_LATER, SV_CLI_END, SV_CLI_TOO_LONG, SV_CLI_BROKEN };

/* Lines of a file or pipe, one at a time. Line ends are LF or CRLF. */
struct sv_cli_reader {
    int fd;
    bool close_fd, eof;
    struct sv_buf buf;
    size_t at;      /* start of the unread part of buf */
    size_t scanned; /* bytes from `at` known to hold no newline */
    bool skipping;  /* inside a line that was too long */
    size_t max_line;
    int64_t line_no;     /* of the line handed out last, from 1 */
    int64_t n_bytes;     /* of the file, up to the end of that line */
    int64_t total_bytes; /* 0 when unknown */
};
int sv_cli_reader_open(struct sv_cli_reader *r, const char *path, struct sv_err *err);
void sv_cli_reader_close(struct sv_cli_reader *r);
/* LATER only when block is false and nothing is there yet. The line is borrowed until the next
 * call. */
enum sv_cli_line sv_cli_reader_next(struct sv_cli_reader *r, bool block, const char **line,
                                    size_t *n, struct sv_err *err);
/* Hands every line of a file that is not empty to take, until one fails; errors name file and
 * line. */
int sv_cli_reader_each(const char *path,
                       int (*take)(void *user, const char *line, size_t n, struct sv_err *err),
                       void *user, struct sv_err *err);

/* A request as written in one line of JSON. */
struct sv_cli_request {
    json_t *root;     /* owns the strings */
    const json_t *id; /* a string or an integer */
    const char *kind; /* a label for bench; NULL when absent */
    int32_t *ids;     /* prompt_token_ids */
    int32_t *stop_ids, *bias_ids;
    float *bias;
    struct sv_buf text; /* messages, rendered */
    const char *stop[SV_CLI_MAX_STOP];
    struct sv_grammar *grammar; /* the line's own */
    struct sv_request r;        /* borrows from the above */
};
/* defaults gives the values of absent fields; vocab_size bounds token ids; chat (may be NULL)
 * renders messages. On errors the id is kept when it could be read, so that fini is needed in
 * either case. */
int sv_cli_request_parse(struct sv_cli_request *q, const char *line, size_t n,
                         const struct sv_request *defaults, int32_t vocab_size,
                         const struct sv_chat_template *chat, struct sv_err *err);
void sv_cli_request_fini(struct sv_cli_request *q);
void sv_cli_quote_id(struct sv_buf *b, const json_t *id);

/* A file of prompts, all at once (bench, check, demo). */
struct sv_cli_prompts {
    struct sv_cli_request *q;
    int32_t n, cap;
};
/* Messages are rendered by the template of the model in target_dir (NULL: there is none). */
int sv_cli_prompts_load(struct sv_cli_prompts *p, const char *path, const char *target_dir,
                        const struct sv_request *defaults, int32_t vocab_size, struct sv_err *err);
int sv_cli_prompts_add(struct sv_cli_prompts *p, const char *line, size_t n,
                       const struct sv_request *defaults, int32_t vocab_size,
                       const struct sv_chat_template *chat, struct sv_err *err);
void sv_cli_prompts_fini(struct sv_cli_prompts *p);

#endif
