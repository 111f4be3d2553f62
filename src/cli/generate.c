/*
 * generate.c - `salvo generate`: JSON lines in, JSON lines out, in the order of the input.
 *
 * Called by main.c. Finished answers wait in a window of bounded length until their turn; a line is
 * read only when the window has room, so a file of any length and a pipe whose writer waits for
 * answers both work. Must not: let a bad line affect another line's answer.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "cli/lines.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] =
    "Usage: salvo generate -m TARGET_DIR [-d DRAFT_DIR] --in FILE.jsonl --out FILE.jsonl\n"
    "\n"
    "Answers each line of FILE ('-' is standard input or output), which is\n"
    "    {\"id\": …, \"prompt\": \"text\"}, {\"id\": …, \"prompt_token_ids\": […]}\n"
    "    or {\"id\": …, \"messages\": [{\"role\": \"user\", \"content\": \"text\"}, …]}\n"
    "and may also have max_tokens, min_tokens, temperature, top_k, top_p, min_p, seed,\n"
    "presence_penalty, frequency_penalty, repetition_penalty, logit_bias, stop (a string or a\n"
    "list), stop_token_ids, include_stop, ignore_eos, logprobs, prompt_logprobs, top_logprobs,\n"
    "json, json_schema, regex, grammar, choice (one of these: what the answer must be), and kind,\n"
    "a label that is not used here. Each output line has id, text, token_ids,\n"
    "finish_reason, stop_reason, logprobs when asked for, accept_lengths and timings. A line\n"
    "that cannot be read gets {\"line\": N, \"error\": \"…\"}; the others are still answered, the\n"
    "exit code is 1. Options about choosing tokens are the defaults for lines without them.";

/* A line on its way from the input to the output. */
struct item {
    struct sv_cli_answer answer;
    json_t *id;   /* NULL when the line had none */
    json_t *stop; /* the line's, or NULL */
    int64_t line_no, end_byte;
    bool done;
    char error[512]; /* not empty: the answer is an error line */
};

struct job {
    struct sv_engine *engine;
    struct sv_cli_reader in;
    FILE *out;
    const char *in_name, *out_name;
    struct sv_request defaults;
    int32_t vocab_size;
    struct sv_chat_template *chat; /* the model directory's, or NULL */
    struct item *item;             /* ring of n_items, [head, head + used) in input order */
    int32_t n_items, head, used, running, max_running;
    int64_t n_lines, n_errors, n_tokens;
    struct sv_cli_accept accept;
    struct sv_cli_progress progress;
    struct sv_buf text;   /* one output line */
    struct sv_err broken; /* why the input could not be read on; code 0 = it could */
    bool ended;           /* no more input */
    bool canceled, quiet;
};

/* ---------------------------------------------------------------- output */

/* The stop string that ended an answer. */
static const char *stop_text(const struct job *j, const struct item *it)
{
    size_t i = (size_t)it->answer.stop_index;
    const json_t *v = json_is_array(it->stop) ? json_array_get(it->stop, i) : it->stop;

    return json_is_string(v) ? json_string_value(v) : j->defaults.stop[i];
}

static void put_list(struct sv_buf *b, const char *name, const struct sv_buf *items)
{
    if (!items->len)
        return;
    sv_buf_printf(b, ", \"%s\": [", name);
    sv_buf_append(b, items->data, items->len);
    sv_buf_append(b, "]", 1);
}

static void put_answer(struct sv_buf *b, const struct job *j, const struct item *it)
{
    const struct sv_cli_answer *a = &it->answer;
    const int32_t *ids = sv_cli_answer_ids(a);
    const uint16_t *accept = (const uint16_t *)(const void *)a->accept.data;
    size_t n_accept = a->accept.len / sizeof *accept;

    sv_buf_append(b, "{\"id\": ", 7);
    sv_cli_quote_id(b, it->id);
    sv_buf_append(b, ", \"text\": ", 10);
    sv_json_quote(b, a->text.data ? a->text.data : "", a->text.len);
    sv_buf_append(b, ", \"token_ids\": [", 16);
    for (int32_t i = 0; i < sv_cli_answer_n(a); i++)
        sv_buf_printf(b, "%s%d", i ? ", " : "", ids[i]);
    sv_buf_printf(b, "], \"finish_reason\": \"%s\"", sv_finish_name(a->finish));
    if (a->stop_id >= 0)
        sv_buf_printf(b, ", \"stop_reason\": %d", a->stop_id);
    if (a->stop_index >= 0) {
        const char *text = stop_text(j, it);
        sv_buf_append(b, ", \"stop_reason\": ", 17);
        sv_json_quote(b, text, strlen(text));
    }
    put_list(b, "logprobs", &a->logprobs);
    put_list(b, "prompt_logprobs", &a->prompt_logprobs);
    sv_buf_append(b, ", \"accept_lengths\": [", 21);
    for (size_t i = 0; i < n_accept; i++)
        sv_buf_printf(b, "%s%u", i ? ", " : "", (unsigned)accept[i]);
    sv_buf_printf(
        b,
        "], \"prompt_tokens\": %d, \"timings\": {\"queue_ms\": %.3f, \"prefill_ms\": %.3f, "
        "\"decode_ms\": %.3f, \"tokens_per_second\": %.2f}}\n",
        a->n_prompt, (double)a->queue_us / 1e3, (double)a->prefill_us / 1e3,
        (double)a->decode_us / 1e3, sv_cli_answer_rate(a));
}

static void put_error(struct sv_buf *b, const struct item *it)
{
    sv_buf_printf(b, "{\"line\": %lld", (long long)it->line_no);
    if (it->id) {
        sv_buf_append(b, ", \"id\": ", 8);
        sv_cli_quote_id(b, it->id);
    }
    sv_buf_append(b, ", \"error\": ", 11);
    sv_json_quote(b, it->error, strlen(it->error));
    sv_buf_append(b, "}\n", 2);
}

/* Writes what has become ready at the head of the window. */
static int write_ready(struct job *j, struct sv_err *err)
{
    bool wrote = false;

    while (j->used && j->item[j->head].done) {
        struct item *it = &j->item[j->head];
        sv_buf_clear(&j->text);
        if (it->error[0])
            put_error(&j->text, it);
        else
            put_answer(&j->text, j, it);
        if (j->text.failed)
            return sv_fail(err, SV_ENOMEM, it->line_no, "line %lld: out of memory",
                           (long long)it->line_no);
        if (fwrite(j->text.data, 1, j->text.len, j->out) != j->text.len)
            return sv_fail(err, SV_EIO, -1, "%s: %s", j->out_name, strerror(errno));
        wrote = true;
        j->n_lines++;
        j->n_errors += it->error[0] != 0;
        j->progress.done = (double)it->end_byte;
        j->progress.n_items = j->n_lines;
        sv_cli_answer_clear(&it->answer);
        json_decref(it->id);
        json_decref(it->stop);
        it->id = it->stop = NULL;
        j->head = (j->head + 1) % j->n_items;
        j->used--;
    }
    if (wrote && fflush(j->out) != 0)
        return sv_fail(err, SV_EIO, -1, "%s: %s", j->out_name, strerror(errno));
    return SV_OK;
}

/* ---------------------------------------------------------------- input */

static void take_line(struct job *j, const char *line, size_t n, bool too_long)
{
    struct item *it = &j->item[(j->head + j->used) % j->n_items];
    struct sv_cli_request q = {0};
    struct sv_err err = {0};

    j->used++;
    it->id = it->stop = NULL;
    it->done = false;
    it->error[0] = 0;
    it->line_no = j->in.line_no;
    it->end_byte = j->in.n_bytes;
    if (too_long)
        sv_fail(&err, SV_EFORMAT, -1, "the line is longer than %zu bytes", j->in.max_line);
    else
        sv_cli_request_parse(&q, line, n, &j->defaults, j->vocab_size, j->chat, &err);
    if (!err.code) {
        char msg[sizeof it->error] = "";
        q.r.on_event = sv_cli_answer_event;
        q.r.user = &it->answer;
        if (sv_submit_request(j->engine, &q.r, &it->answer.request, msg, sizeof msg) < 0)
            sv_fail(&err, SV_EINVAL, -1, "%.470s", msg);
    }
    if (err.code) {
        snprintf(it->error, sizeof it->error, "%s", err.msg);
        it->done = true;
    } else {
        j->running++;
    }
    it->id = json_incref((json_t *)q.id); /* the prompt itself is the engine's now */
    it->stop = json_incref(json_object_get(q.root, "stop"));
    sv_cli_request_fini(&q);
}

/* Reads lines while there is room; waits for one only when the engine has nothing to do. Lines that
 * came before the input failed still get their answers. */
static void take_lines(struct job *j)
{
    while (!j->ended && j->running < j->max_running && j->used < j->n_items) {
        const char *line;
        size_t n;
        enum sv_cli_line got = sv_cli_reader_next(&j->in, !j->used, &line, &n, &j->broken);
        if (got == SV_CLI_LATER)
            return;
        if (got == SV_CLI_BROKEN)
            sv_err_prefix(&j->broken, "%s", j->in_name);
        if (got == SV_CLI_END || got == SV_CLI_BROKEN)
            j->ended = true;
        else if (n)
            take_line(j, line, n, got == SV_CLI_TOO_LONG);
    }
}

/* ---------------------------------------------------------------- the loop */

/* Collects the answers that have ended since the last call. */
static void collect(struct job *j)
{
    int64_t n_now = 0;

    for (int32_t i = 0; i < j->used; i++) {
        struct item *it = &j->item[(j->head + i) % j->n_items];
        if (it->done)
            continue;
        if (it->answer.finish == SV_FINISH_NONE) {
            n_now += sv_cli_answer_n(&it->answer);
            continue;
        }
        it->done = true;
        j->running--;
        j->n_tokens += sv_cli_answer_n(&it->answer);
        if (it->answer.finish == SV_FINISH_ERROR)
            snprintf(it->error, sizeof it->error, "%s", it->answer.message);
        else
            sv_cli_accept_add(&j->accept, &it->answer);
    }
    j->progress.n_tokens = j->n_tokens + n_now;
}

static void cancel_all(struct job *j)
{
    j->canceled = j->ended = true;
    for (int32_t i = 0; i < j->used; i++) {
        struct item *it = &j->item[(j->head + i) % j->n_items];
        if (!it->done)
            sv_cancel_request(j->engine, it->answer.request);
    }
}

static int loop(struct job *j, struct sv_err *err)
{
    for (;;) {
        char msg[480] = "";
        int rc;
        if (sv_cli_interrupted() && !j->canceled)
            cancel_all(j);
        take_lines(j);
        if (j->running) {
            int step = sv_step_engine(j->engine, msg, sizeof msg);
            collect(j);
            if (step < 0) {
                write_ready(j, err);
                return sv_fail(err, step, -1, "%s", msg);
            }
        }
        rc = write_ready(j, err);
        if (rc)
            return rc;
        if (j->ended && !j->used) {
            if (j->broken.code)
                *err = j->broken;
            return j->broken.code;
        }
        sv_cli_progress_update(&j->progress);
    }
}

/* ---------------------------------------------------------------- opening */

/* Called once the engine is open: a model that does not open must not empty the output file. */
static int open_out(struct job *j, const char *out, struct sv_err *err)
{
    const bool standard = strcmp(out, "-") == 0;
    struct stat a, b;

    j->out_name = standard ? "standard output" : out;
    /* Compared by inode, not by name: the shell may have opened either. */
    if (fstat(j->in.fd, &a) == 0 && (standard ? fstat(STDOUT_FILENO, &b) : stat(out, &b)) == 0 &&
        a.st_dev == b.st_dev && a.st_ino == b.st_ino && S_ISREG(b.st_mode))
        return sv_fail(err, SV_EINVAL, -1, "%s: input and output are the same file", j->out_name);
    j->out = standard ? stdout : fopen(out, "wb");
    return j->out ? SV_OK : sv_fail(err, SV_EIO, -1, "%s: %s", out, strerror(errno));
}

static int open_window(struct job *j, int32_t batch, struct sv_err *err)
{
    j->max_running = 2 * batch; /* the engine always finds the next one waiting */
    j->n_items = 16 * batch > 64 ? 16 * batch : 64;
    j->item = sv_calloc((size_t)j->n_items, sizeof *j->item);
    if (!j->item)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory for %d answers", j->n_items);
    for (int32_t i = 0; i < j->n_items; i++)
        sv_cli_answer_init(&j->item[i].answer, j->engine);
    return SV_OK;
}

static int close_job(struct job *j, struct sv_err *err)
{
    int rc = SV_OK;

    sv_close_engine(j->engine); /* before the answers are freed: it still sends events */
    for (int32_t i = 0; i < j->n_items && j->item; i++) {
        sv_cli_answer_fini(&j->item[i].answer);
        json_decref(j->item[i].id);
        json_decref(j->item[i].stop);
    }
    sv_free(j->item);
    sv_buf_fini(&j->text);
    sv_chat_template_close(j->chat);
    sv_cli_reader_close(&j->in);
    if (j->out && j->out != stdout && fclose(j->out) != 0)
        rc = sv_fail(err, SV_EIO, -1, "%s: %s", j->out_name, strerror(errno));
    return rc;
}

/* Prints the summary; returns the exit code. */
static int conclude(const struct job *j, double seconds)
{
    if (!j->quiet)
        sv_cli_say("%lld lines, %lld tokens in %.2f s, %.1f tok/s; accept length %.2f",
                   (long long)j->n_lines, (long long)j->n_tokens, seconds,
                   seconds > 0 ? (double)j->n_tokens / seconds : 0, sv_cli_accept_mean(&j->accept));
    if (j->canceled)
        return sv_cli_fail("canceled at line %lld", (long long)j->in.line_no);
    if (j->n_errors)
        return sv_cli_fail("%lld of %lld lines could not be answered; their output lines say why",
                           (long long)j->n_errors, (long long)j->n_lines);
    return SV_CLI_OK;
}

static int generate(struct job *j, const struct sv_engine_options *eo, const char *in,
                    const char *out)
{
    struct sv_engine_info info;
    struct sv_err err = {0};
    int64_t start;
    int code = SV_CLI_OK, rc = sv_cli_reader_open(&j->in, in, &err);

    j->in_name = strcmp(in, "-") == 0 ? "standard input" : in;
    if (!rc && sv_cli_engine_open(&j->engine, eo) != SV_CLI_OK) {
        close_job(j, NULL);
        return SV_CLI_FAIL;
    }
    if (!rc)
        rc = sv_cli_chat_open(&j->chat, eo->target_dir, &err);
    if (!rc)
        rc = open_out(j, out, &err);
    if (!rc)
        rc = open_window(j, eo->max_sequences, &err);
    if (!rc) {
        sv_get_engine_info(j->engine, &info);
        j->vocab_size = info.vocab_size;
        sv_cli_catch_interrupt();
        sv_cli_progress_begin(&j->progress, stderr, "generate", "answers",
                              (double)j->in.total_bytes);
        j->progress.off = j->quiet;
        start = sv_clock_us();
        rc = loop(j, &err);
        if (rc || j->canceled)
            sv_cli_progress_clear(&j->progress);
        else
            sv_cli_progress_end(&j->progress);
        if (!rc)
            code = conclude(j, (double)(sv_clock_us() - start) / 1e6);
    }
    if (rc)
        code = sv_cli_fail("%s", err.msg);
    if (close_job(j, &err))
        code = sv_cli_fail("%s", err.msg);
    return code;
}

int sv_cli_generate(int argc, char **argv)
{
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_sampling s = sv_cli_sampling_default();
    struct sv_cli_grammar g = {0};
    struct sv_cli_opts opts = {.n = 0};
    struct sv_engine_options eo;
    struct job j = {0};
    const char *in = NULL, *out = NULL;
    int code;

    m.batch = 8;
    sv_cli_opt(&opts, "in", 'i', SV_OPT_STRING, &in, "FILE", "prompts, one JSON object a line");
    sv_cli_opt(&opts, "out", 'o', SV_OPT_STRING, &out, "FILE", "answers, in the same order");
    sv_cli_opt(&opts, "batch", 'b', SV_OPT_INT, &m.batch, "N",
               "sequences in flight at once (default 8)");
    sv_cli_model_rows(&opts, &m);
    sv_cli_record_row(&opts, &m);
    sv_cli_sampling_rows(&opts, &s);
    sv_cli_grammar_rows(&opts, &g);
    sv_cli_opt(&opts, "quiet", 'q', SV_OPT_FLAG, &j.quiet, NULL, "no progress and no summary");
    code = sv_cli_take_stops(&s, "generate", &argc, argv);
    if (code < 0)
        code = sv_cli_parse(&opts, "generate", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = sv_cli_in_range("generate", "batch", m.batch, 1, 4096);
    if (code < 0)
        code = sv_cli_model_options(&m, "generate", &eo);
    j.defaults = sv_default_request(NULL);
    if (code < 0)
        code = sv_cli_sampling_apply(&s, "generate", &j.defaults);
    if (code >= 0)
        return code;
    if (!in || !out)
        return sv_cli_usage("generate", "option --%s is missing", in ? "out" : "in");
    if (strcmp(in, "-") == 0 && sv_cli_grammar_takes_stdin(&g))
        return sv_cli_usage("generate", "prompts and what answers must be cannot both be '-'");
    code = sv_cli_can_write("generate", "out", out);
    if (code < 0)
        code = sv_cli_grammar_apply(&g, "generate", &j.defaults);
    sv_buf_init(&j.text);
    if (code < 0)
        code = generate(&j, &eo, in, out);
    sv_free_grammar(g.made);
    return code;
}
