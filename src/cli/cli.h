/*
 * cli.h - front header of src/cli: the commands of the salvo program and the pieces they share.
 *
 * Called by main.c and between the files of this folder only. Everything here is built on salvo.h;
 * info and check also read checkpoints through load.h and text.h. Must not: compute
 * on tensors, keep state between calls (the Ctrl-C counter in signal.c is the one exception), or
 * write anything but the answer to stdout when a command's output may be piped.
 */
#ifndef SV_CLI_H
#define SV_CLI_H

#include "base/base.h"
#include "salvo.h"
#include "cli/painter.h"
#include "jinja/jinja.h"
#include "token/token.h"

/* Exit codes. */
enum { SV_CLI_OK = 0, SV_CLI_FAIL = 1, SV_CLI_USAGE = 2 };

/* ---------------------------------------------------------------- commands (one file each) */

int sv_cli_run(int argc, char **argv);
int sv_cli_generate(int argc, char **argv);
int sv_cli_check(int argc, char **argv);
int sv_cli_convert(int argc, char **argv);
int sv_cli_info(int argc, char **argv);
int sv_cli_demo(int argc, char **argv);
int sv_cli_serve(int argc, char **argv);
/* What main() of a program does around run(): standard descriptors, locale, buffered output
 * (process.c). Returns the exit code. */
int sv_cli_process(int argc, char **argv, int (*run)(int argc, char **argv));

/* "salvo: ..." on stderr. fail returns SV_CLI_FAIL, usage SV_CLI_USAGE after a hint at --help.
 * command: one of salvo's ("run"), or the name of another program ("salvo-bench"). */
void sv_cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int sv_cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int sv_cli_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---------------------------------------------------------------- options (args.c) */

#define SV_CLI_MAX_OPTS 72

/* An option table that grows by groups of rows. */
struct sv_cli_opts {
    struct sv_opt row[SV_CLI_MAX_OPTS + 1];
    int n;
};
void sv_cli_opt(struct sv_cli_opts *o, const char *name, char letter, enum sv_opt_kind kind,
                void *value, const char *arg, const char *help);
/* If the command line has an option of another server that this table has by another name: this
 * table's name; else NULL. */
const char *sv_cli_other_name(const struct sv_cli_opts *o, int argc, char **argv,
                              const char **theirs);
/* Parses; returns -1 to go on, else the exit code (--help: 0). At most max_pos positional words,
 * moved to argv[1..]. */
int sv_cli_parse(const struct sv_cli_opts *o, const char *command, const char *usage, int argc,
                 char **argv, int max_pos, int *n_pos);

/* Which engine to open, as written on the command line. */
#define SV_CLI_MAX_DIR 4096
struct sv_cli_model {
    const char *target, *draft, *device, *kernels, *wcomp, *draft_quant, *screen_head, *isa, *dtype,
        *activations, *kv_dtype, *draft_kv_dtype, *width;
    int64_t threads, context, page_size, chunk, batch, gpu, tp, dp, device_timeout;
    struct sv_processes *processes; /* of replicas, where mpirun started them; a server's */
    const char *record_plan;
    bool ep, dp_attention, no_graphs, copy_weights;
    double gpu_memory;
    char dirs[2][SV_CLI_MAX_DIR]; /* target and draft, resolved by sv_cli_model_options */
};
struct sv_cli_model sv_cli_model_default(void);
void sv_cli_model_rows(struct sv_cli_opts *o, struct sv_cli_model *m);
/* --record-plan, of commands that answer requests. */
void sv_cli_record_row(struct sv_cli_opts *o, struct sv_cli_model *m);
/* Checks that a value is in its range, or one of the words (absent is fine): -1 to continue, else
 * the exit code. */
int sv_cli_in_range(const char *command, const char *name, int64_t v, int64_t lo, int64_t hi);
int sv_cli_num_in_range(const char *command, const char *name, double v, double lo, double hi);
int sv_cli_one_of(const char *command, const char *name, const char *value,
                  const char *const *words);
/* The next item of a comma-separated list; false after the last, when *text is NULL. */
bool sv_cli_next_item(const char **text, char *item, size_t size);
/* Checks that the file of option `name` can be written (NULL and "-" are fine), before minutes of
 * loading and measuring: -1 to continue, else the exit code. */
int sv_cli_can_write(const char *command, const char *name, const char *path);
extern const char *const sv_cli_colours[];
/* rank.c: for a program that mpirun may have started; -1 to continue, else the exit code. follow:
 * ranks other than 0 of each replica run in this call until rank 0 ends them. */
int sv_cli_begin_ranks(void);
int sv_cli_end_ranks(int code);
int sv_cli_follow(const char *command, const struct sv_cli_model *m,
                  const struct sv_engine_options *o);
/* Checks ranges, finds the directories, which *out borrows from m, and follows; -1 to continue. */
int sv_cli_model_options(struct sv_cli_model *m, const char *command,
                         struct sv_engine_options *out);
/* Appends all of standard input, or explains; returns SV_CLI_OK or SV_CLI_FAIL (run.c). */
int sv_cli_read_stdin(struct sv_buf *b);
/* Opens or explains; returns SV_CLI_OK or SV_CLI_FAIL. */
int sv_cli_engine_open(struct sv_engine **e, const struct sv_engine_options *o);
#define SV_CLI_MAX_STOP 16
/* The default answer length of commands that measure speed. */
#define SV_CLI_MEASURED_TOKENS 160
#define SV_CLI_MAX_SECONDS 86400

struct sv_cli_sampling {
    double temperature, top_p, min_p;
    double presence, frequency, repetition;
    int64_t top_k, seed, max_tokens, min_tokens;
    const char *stop[SV_CLI_MAX_STOP];
    int32_t n_stop;
    bool ignore_eos;
};
struct sv_cli_sampling sv_cli_sampling_default(void);
void sv_cli_sampling_rows(struct sv_cli_opts *o, struct sv_cli_sampling *s);
/* An option that may be given more than once: the tables keep one value an option. Takes each of
 * them out of argv. Returns -1 to go on, else the exit code. */
struct sv_cli_list {
    const char *name, *arg, *what, **values; /* "stop", "TEXT", "text" */
    int32_t most, *n;
};
int sv_cli_take_list(const struct sv_cli_list *l, const char *command, int *argc, char **argv);
int sv_cli_take_stops(struct sv_cli_sampling *s, const char *command, int *argc, char **argv);
/* Checks ranges and fills the request's fields; -1 to go on. The strings are borrowed. */
int sv_cli_sampling_apply(const struct sv_cli_sampling *s, const char *command,
                          struct sv_request *r);

/* ---------------------------------------------------------------- grammars (grammar.c) */

/* Options that constrain answers. */
struct sv_cli_grammar {
    bool json;
    const char *schema, *regex, *gbnf, *choice;
    struct sv_grammar *made; /* to be released with sv_free_grammar */
};
void sv_cli_grammar_rows(struct sv_cli_opts *o, struct sv_cli_grammar *g);
/* Whether the grammar is read from standard input, which is then used up. */
bool sv_cli_grammar_takes_stdin(const struct sv_cli_grammar *g);
/* Makes the grammar and sets it in the request; -1 to continue, else the exit code. */
int sv_cli_grammar_apply(struct sv_cli_grammar *g, const char *command, struct sv_request *r);
/* The grammar of a line's fields; *made is unchanged if they have none. */
int sv_cli_grammar_field(const json_t *root, struct sv_grammar **made, struct sv_err *err);

/* ---------------------------------------------------------------- chat templates (chat.c) */

/* The chat template of a model; *t stays NULL for a model that has none, or dir NULL. */
int sv_cli_chat_open(struct sv_chat_template **t, const char *dir, struct sv_err *err);
/* Appends the prompt for messages, a list of objects, by t, or by plain where t is NULL. */
int sv_cli_chat_render(const struct sv_chat_template *t, const struct sv_template *plain,
                       json_t *messages, struct sv_buf *out, struct sv_err *err);
/* Appends the header of a constrained answer (gpt-oss), which no grammar can produce. */
void sv_cli_chat_constrain(const struct sv_chat_template *t, struct sv_buf *prompt);

/* ---------------------------------------------------------------- Ctrl-C (signal.c) */

struct sv_serve;

/* From now on the first Ctrl-C, SIGTERM or SIGHUP sets a flag, the second one ends the process. */
void sv_cli_catch_interrupt(void);
bool sv_cli_interrupted(void);
bool sv_cli_must_end(void); /* by SIGTERM or SIGHUP */
void sv_cli_clear_interrupt(void);
/* While true, the handler ends nothing: the prompt has the terminal. False without an interrupt: a
 * line was entered, and the next Ctrl-C is a first one again. */
void sv_cli_idle(bool idle);
/* After a Ctrl-C at the prompt, on an empty line or one that is dropped: the second one in a row on
 * an empty line ends the conversation. */
void sv_cli_interrupted_at_prompt(bool empty);
/* SIGINT and SIGTERM stop this server (sv_serve_stop), and end the process if its loop does not
 * respond. After leave, which is called before sv_serve_close, the next one ends the process. */
void sv_cli_catch_server(struct sv_serve *s);
void sv_cli_leave_server(void);

/* ---------------------------------------------------------------- terminal (colour.c) */

/* Escape sequence that starts a style; "" when colours are off. */
const char *sv_cli_style(bool colour, enum sv_cli_style style);
/* mode is "auto", "always" or "never" (NULL = auto); NO_COLOR and a dumb TERM count in auto. */
bool sv_cli_colour(FILE *out, const char *mode);
int sv_cli_columns(FILE *out); /* terminal width, 80 when unknown */

/* ---------------------------------------------------------------- progress (progress.c) */

struct sv_cli_progress {
    FILE *out;
    bool tty, shown, off;
    const char *label, *unit; /* "generate", "requests" */
    double total;             /* of done's unit; 0 = unknown */
    double done;
    int64_t n_items, n_tokens;
    int64_t start_us, last_us, every_us;
};
void sv_cli_progress_begin(struct sv_cli_progress *p, FILE *out, const char *label,
                           const char *unit, double total);
/* Draws when enough time has passed: every 0.1 s on a terminal, every 10 s elsewhere. */
void sv_cli_progress_update(struct sv_cli_progress *p);
void sv_cli_progress_clear(struct sv_cli_progress *p); /* takes the bar away before other output */
void sv_cli_progress_end(struct sv_cli_progress *p);
/* One line of at most `columns` columns, without \r or \n; separate for tests. */
void sv_cli_progress_line(const struct sv_cli_progress *p, int64_t now_us, int columns,
                          struct sv_buf *out);

/* ---------------------------------------------------------------- tables (table.c) */

#define SV_CLI_MAX_COLUMNS 32

struct sv_cli_table {
    struct sv_cli_column {
        const char *name;
        bool number; /* right-aligned; bare in JSON */
    } column[SV_CLI_MAX_COLUMNS];
    int n_columns;
    char **cell; /* (n_rows, n_columns) */
    size_t n_cells, cap_cells;
    bool failed; /* memory ran out */
};
void sv_cli_table_init(struct sv_cli_table *t);
void sv_cli_table_fini(struct sv_cli_table *t);
void sv_cli_table_column(struct sv_cli_table *t, const char *name, bool number);
/* Cells are added row by row, left to right. */
void sv_cli_table_add(struct sv_cli_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* format: "md", "csv" or "json". */
void sv_cli_table_write(const struct sv_cli_table *t, const char *format, struct sv_buf *out);
bool sv_cli_table_format_known(const char *format);
/* Columns that a terminal needs for n bytes of UTF-8 (one per code point). */
int sv_cli_text_columns(const char *text, size_t n);
/* "12.3 M", "640 MiB" */
const char *sv_cli_count(int64_t n, char buf[24]);
const char *sv_cli_bytes(int64_t n, char buf[24]);

/* ---------------------------------------------------------------- answers (answer.c) */

/* A request's results, kept after it has left the engine. */
struct sv_cli_answer {
    struct sv_engine *engine;
    uint64_t request;
    struct sv_buf text, ids, accept; /* bytes; int32_t ids; uint16_t accept lengths */
    struct sv_buf logprobs,
        prompt_logprobs;          /* JSON: the items of a list, when they were asked for */
    enum sv_finish_reason finish; /* SV_FINISH_NONE while it runs */
    int32_t stop_id, stop_index;
    char message[256];
    int32_t n_prompt;
    int64_t queue_us, prefill_us, decode_us;
    struct sv_cli_painter *painter; /* streams when not NULL */
};
void sv_cli_answer_init(struct sv_cli_answer *a, struct sv_engine *e);
void sv_cli_answer_fini(struct sv_cli_answer *a);
void sv_cli_answer_clear(struct sv_cli_answer *a);
void sv_cli_answer_event(void *answer, const struct sv_event *ev); /* for sv_request.on_event */
static inline int32_t sv_cli_answer_n(const struct sv_cli_answer *a)
{
    return (int32_t)(a->ids.len / sizeof(int32_t));
}
static inline const int32_t *sv_cli_answer_ids(const struct sv_cli_answer *a)
{
    return (const int32_t *)(const void *)a->ids.data;
}
/* Tokens after the first, per second; 0 when there are none. */
double sv_cli_answer_rate(const struct sv_cli_answer *a);
/* The text ends in a loop (a period of at most 48 tokens, three times, 32 tokens at least), or
 * fewer than half of its 8-token pieces are new. */
bool sv_cli_answer_loops(const struct sv_cli_answer *a);
uint64_t sv_cli_answer_hash(uint64_t h,
                            const struct sv_cli_answer *a); /* FNV-1a 64; begin with 0 */

/* Sums over answers. */
struct sv_cli_accept {
    int64_t length[65]; /* decode steps by accept length */
    int64_t n_steps, n_tokens;
};
void sv_cli_accept_add(struct sv_cli_accept *s, const struct sv_cli_answer *a);
double sv_cli_accept_mean(const struct sv_cli_accept *s);
/* "1:12 2:30 3:8", zero entries left out. */
void sv_cli_accept_list(const struct sv_cli_accept *s, struct sv_buf *out);
/* One line per length with a bar; indent spaces before each. */
void sv_cli_accept_bars(const struct sv_cli_accept *s, struct sv_buf *out);
/* `cells` columns wide, share in [0, 1], in eighths of a column. */
void sv_cli_bar(double share, int cells, struct sv_buf *out);

/* Runs n requests with at most `concurrency` in flight; r[i].on_event and user are set here.
 * Requests that fail end in an answer with SV_FINISH_ERROR; a negative code means the engine
 * failed, SV_EIO that the answer cannot be shown, and SV_ECANCELED that Ctrl-C was pressed. */
int sv_cli_answer_run(struct sv_engine *e, const struct sv_request *r, int32_t n,
                      int32_t concurrency, struct sv_cli_answer *a, struct sv_err *err);

#endif
