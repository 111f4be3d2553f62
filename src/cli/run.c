/*
 * run.c - `salvo run`: one prompt answered on the terminal, or a conversation.
 *
 * Called by main.c. The answer goes to stdout as it comes, everything else to stderr. Must not: end
 * the program on the first Ctrl-C while an answer is running; that one only cancels the answer.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "cli/talk.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define MAX_PROMPT_BYTES ((size_t)64 << 20)

static const char usage[] =
    "Usage: salvo run -m TARGET_DIR [-d DRAFT_DIR] [-p PROMPT]\n"
    "\n"
    "Answers PROMPT, or the text of --file or standard input, as a message when the\n"
    "model has a chat template (--raw continues it as text). On a terminal without a prompt\n"
    "it is a conversation (/help lists what can be typed). Text goes to standard output, the\n"
    "summary line to standard error. Ctrl-C cancels the running answer or drops the line, a\n"
    "second one ends the program.";

int sv_cli_read_stdin(struct sv_buf *b)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    ssize_t n;

    do {
        if (sv_buf_reserve(b, 65536) != SV_OK)
            return sv_cli_fail("standard input: out of memory");
        if (b->len > MAX_PROMPT_BYTES)
            return sv_cli_fail("standard input: the text is too long");
        if (poll(&p, 1, -1) < 0 && sv_cli_interrupted())
            return sv_cli_fail("canceled");
        n = read(STDIN_FILENO, b->data + b->len, 65536);
        if (n < 0)
            return sv_cli_fail("standard input: %s", strerror(errno));
        b->len += (size_t)n;
        b->data[b->len] = 0;
    } while (n > 0);
    return SV_CLI_OK;
}

static int read_prompt(struct sv_buf *b, const char *text, const char *file)
{
    struct sv_err err = {0};

    if (text) {
        sv_buf_append(b, text, strlen(text));
        return b->failed ? sv_cli_fail("out of memory") : SV_CLI_OK;
    }
    if (file && strcmp(file, "-") != 0)
        return sv_file_read_stream(b, file, MAX_PROMPT_BYTES, &err) ? sv_cli_fail("%s", err.msg)
                                                                    : SV_CLI_OK;
    return sv_cli_read_stdin(b);
}

/* -1 to go on, else the exit code. */
static int take_prompt(struct sv_buf *prompt, struct sv_cli_talk *t, const char *text,
                       const char *file)
{
    t->source = text ? "option --prompt" : file && strcmp(file, "-") != 0 ? file : "standard input";
    if (read_prompt(prompt, text, file) != SV_CLI_OK)
        return SV_CLI_FAIL;
    /* Probably an empty pipe or variable. */
    return prompt->len ? -1 : sv_cli_fail("%s: the prompt is empty", t->source);
}

static int answer_once(struct sv_cli_talk *t, const struct sv_buf *prompt)
{
    const int code = sv_cli_talk_turn(t, prompt->data, prompt->len);

    sv_cli_talk_summary(t);
    return code;
}

/* The command line. */
struct run {
    struct sv_cli_model m;
    struct sv_cli_sampling s;
    struct sv_cli_grammar g;
    struct sv_engine_options eo;
    const char *text, *file, *colour, *images[SV_CLI_MAX_IMAGES];
    int32_t n_images;
    bool no_draft;
    bool piped; /* the prompt is standard input */
};

static void prompt_rows(struct sv_cli_opts *o, struct run *r, struct sv_cli_talk *t)
{
    sv_cli_opt(o, "prompt", 'p', SV_OPT_STRING, &r->text, "TEXT", "the prompt");
    sv_cli_opt(o, "file", 'f', SV_OPT_STRING, &r->file, "FILE", "the prompt is this file's text");
    sv_cli_opt(o, "image", 0, SV_OPT_STRING, &r->images[0], "FILE",
               "a PNG, JPEG or WebP image before the prompt; may be given more than once");
    sv_cli_opt(o, "chat", 0, SV_OPT_FLAG, &t->chat, NULL,
               "the prompt is a message; also without a template, as <|im_start|>user ...");
    sv_cli_opt(o, "raw", 0, SV_OPT_FLAG, &t->raw, NULL,
               "text is continued unchanged, also when there is a chat template");
    sv_cli_opt(o, "system", 0, SV_OPT_STRING, &t->system, "TEXT", "system message of the chat");
}

static void output_rows(struct sv_cli_opts *o, struct run *r, struct sv_cli_talk *t)
{
    sv_cli_opt(o, "no-draft", 0, SV_OPT_FLAG, &r->no_draft, NULL,
               "plain decoding, whatever --draft is");
    sv_cli_opt(o, "show-draft", 0, SV_OPT_FLAG, &t->show_draft, NULL,
               "colour drafted tokens and the target's own");
    sv_cli_opt(o, "colour", 0, SV_OPT_STRING, &r->colour, "WHEN", "auto, always or never");
    sv_cli_opt(o, "quiet", 'q', SV_OPT_FLAG, &t->quiet, NULL, "no summary line");
}

/* -1 to go on, else the exit code, in this and the next functions. */
static int parse(struct run *r, struct sv_cli_talk *t, int argc, char **argv)
{
    const struct sv_cli_list images = {"image",           "FILE",      "name", r->images,
                                       SV_CLI_MAX_IMAGES, &r->n_images};
    struct sv_cli_opts opts = {.n = 0};

    prompt_rows(&opts, r, t);
    output_rows(&opts, r, t);
    sv_cli_model_rows(&opts, &r->m);
    sv_cli_record_row(&opts, &r->m);
    sv_cli_sampling_rows(&opts, &r->s);
    sv_cli_grammar_rows(&opts, &r->g);
    int code = sv_cli_take_stops(&r->s, "run", &argc, argv);
    if (code < 0)
        code = sv_cli_take_list(&images, "run", &argc, argv);
    if (code < 0)
        code = sv_cli_parse(&opts, "run", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = sv_cli_model_options(&r->m, "run", &r->eo);
    t->defaults = sv_default_request(NULL);
    if (code < 0)
        code = sv_cli_sampling_apply(&r->s, "run", &t->defaults);
    return code;
}

static int check_together(const struct run *r, const struct sv_cli_talk *t)
{
    const struct sv_cli_sampling *s = &r->s;

    if (r->text && r->file)
        return sv_cli_usage("run", "options --prompt and --file exclude each other");
    if (s->max_tokens && s->min_tokens > s->max_tokens)
        return sv_cli_usage("run", "option --min-tokens: %lld is above --max-tokens, %lld",
                            (long long)s->min_tokens, (long long)s->max_tokens);
    if (t->chat && t->raw)
        return sv_cli_usage("run", "options --chat and --raw exclude each other");
    if (t->raw && t->system)
        return sv_cli_usage("run", "options --raw and --system exclude each other");
    if (t->raw && r->n_images)
        return sv_cli_usage("run", "options --raw and --image exclude each other");
    if (r->piped && sv_cli_grammar_takes_stdin(&r->g))
        return sv_cli_usage("run", "prompt and what the answer must be cannot both be standard "
                                   "input; one of them needs --prompt or a file");
    return sv_cli_one_of("run", "colour", r->colour, sv_cli_colours);
}

/* Reads grammar, images and prompt before minutes of loading and not after, then opens the engine.
 */
static int open_talk(struct run *r, struct sv_cli_talk *t, struct sv_buf *prompt, bool converse)
{
    int code = sv_cli_grammar_apply(&r->g, "run", &t->defaults);

    for (int32_t i = 0; i < r->n_images && code < 0; i++)
        if (sv_cli_talk_image(t, r->images[i]) != SV_CLI_OK)
            code = SV_CLI_FAIL;
    if (code < 0 && (r->text || r->file) && !r->piped)
        code = take_prompt(prompt, t, r->text, r->file);
    if (code < 0 && sv_cli_engine_open(&t->engine, &r->eo) != SV_CLI_OK)
        code = SV_CLI_FAIL;
    t->dir = r->eo.target_dir;
    return code < 0 ? sv_cli_talk_open(t, converse) : code;
}

int sv_cli_run(int argc, char **argv)
{
    struct run r = {.m = sv_cli_model_default(), .s = sv_cli_sampling_default(), .colour = "auto"};
    struct sv_cli_talk talk = {0};
    struct sv_buf prompt = {0};
    int code = parse(&r, &talk, argc, argv);

    r.piped = r.file ? strcmp(r.file, "-") == 0 : !r.text && !isatty(STDIN_FILENO);
    if (code < 0)
        code = check_together(&r, &talk);
    if (code >= 0)
        return code;
    if (r.no_draft) {
        r.eo.draft_dir = NULL;
        r.eo.width = 0; /* --spec-width was the draft's */
    }
    talk.colour = sv_cli_colour(stdout, r.colour);
    const bool converse = !r.text && !r.file && isatty(STDIN_FILENO);
    code = open_talk(&r, &talk, &prompt, converse);
    if (code == SV_CLI_OK)
        sv_cli_catch_interrupt();
    if (code == SV_CLI_OK && r.piped) {
        code = take_prompt(&prompt, &talk, NULL, NULL);
        code = code < 0 ? SV_CLI_OK : code;
    }
    if (code == SV_CLI_OK)
        code = converse ? sv_cli_talk_converse(&talk) : answer_once(&talk, &prompt);
    sv_buf_fini(&prompt);
    sv_cli_talk_close(&talk);
    sv_free_grammar(r.g.made);
    return code;
}
