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

int sv_cli_run(int argc, char **argv)
{
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_sampling s = sv_cli_sampling_default();
    struct sv_cli_grammar g = {0};
    struct sv_cli_opts opts = {.n = 0};
    struct sv_engine_options eo;
    struct sv_cli_talk talk = {0};
    const char *text = NULL, *file = NULL, *colour = "auto", *images[SV_CLI_MAX_IMAGES] = {NULL};
    int32_t n_images = 0;
    const struct sv_cli_list image_list = {"image",           "FILE",   "name", images,
                                           SV_CLI_MAX_IMAGES, &n_images};
    bool no_draft = false, converse;
    struct sv_buf prompt = {0};
    int code;

    sv_cli_opt(&opts, "prompt", 'p', SV_OPT_STRING, &text, "TEXT", "the prompt");
    sv_cli_opt(&opts, "file", 'f', SV_OPT_STRING, &file, "FILE", "the prompt is this file's text");
    sv_cli_opt(&opts, "image", 0, SV_OPT_STRING, &images[0], "FILE",
               "a PNG, JPEG or WebP image before the prompt; may be given more than once");
    sv_cli_opt(&opts, "chat", 0, SV_OPT_FLAG, &talk.chat, NULL,
               "the prompt is a message; also without a template, as <|im_start|>user ...");
    sv_cli_opt(&opts, "raw", 0, SV_OPT_FLAG, &talk.raw, NULL,
               "text is continued unchanged, also when there is a chat template");
    sv_cli_opt(&opts, "system", 0, SV_OPT_STRING, &talk.system, "TEXT",
               "system message of the chat");
    sv_cli_opt(&opts, "no-draft", 0, SV_OPT_FLAG, &no_draft, NULL,
               "plain decoding, whatever --draft is");
    sv_cli_opt(&opts, "show-draft", 0, SV_OPT_FLAG, &talk.show_draft, NULL,
               "colour drafted tokens and the target's own");
    sv_cli_opt(&opts, "colour", 0, SV_OPT_STRING, &colour, "WHEN", "auto, always or never");
    sv_cli_opt(&opts, "quiet", 'q', SV_OPT_FLAG, &talk.quiet, NULL, "no summary line");
    sv_cli_model_rows(&opts, &m);
    sv_cli_record_row(&opts, &m);
    sv_cli_sampling_rows(&opts, &s);
    sv_cli_grammar_rows(&opts, &g);
    code = sv_cli_take_stops(&s, "run", &argc, argv);
    if (code < 0)
        code = sv_cli_take_list(&image_list, "run", &argc, argv);
    if (code < 0)
        code = sv_cli_parse(&opts, "run", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = sv_cli_model_options(&m, "run", &eo);
    talk.defaults = sv_default_request(NULL);
    if (code < 0)
        code = sv_cli_sampling_apply(&s, "run", &talk.defaults);
    if (code >= 0)
        return code;
    if (text && file)
        return sv_cli_usage("run", "options --prompt and --file exclude each other");
    if (s.max_tokens && s.min_tokens > s.max_tokens)
        return sv_cli_usage("run", "option --min-tokens: %lld is above --max-tokens, %lld",
                            (long long)s.min_tokens, (long long)s.max_tokens);
    if (talk.chat && talk.raw)
        return sv_cli_usage("run", "options --chat and --raw exclude each other");
    code = sv_cli_one_of("run", "colour", colour, sv_cli_colours);
    if (code >= 0)
        return code;
    if (talk.raw && talk.system)
        return sv_cli_usage("run", "options --raw and --system exclude each other");
    if (talk.raw && n_images)
        return sv_cli_usage("run", "options --raw and --image exclude each other");
    const bool piped = file ? strcmp(file, "-") == 0 : !text && !isatty(STDIN_FILENO);
    if (piped && sv_cli_grammar_takes_stdin(&g))
        return sv_cli_usage("run", "prompt and what the answer must be cannot both be standard "
                                   "input; one of them needs --prompt or a file");
    if (no_draft) {
        eo.draft_dir = NULL;
        eo.width = 0; /* --spec-width was the draft's */
    }
    talk.colour = sv_cli_colour(stdout, colour);
    code = sv_cli_grammar_apply(&g, "run", &talk.defaults);
    for (int32_t i = 0; i < n_images && code < 0; i++)
        if (sv_cli_talk_image(&talk, images[i]) != SV_CLI_OK)
            code = SV_CLI_FAIL;
    converse = !text && !file && isatty(STDIN_FILENO);
    if (code < 0 && (text || file) && !piped) /* before minutes of loading and not after */
        code = take_prompt(&prompt, &talk, text, file);
    if (code < 0 && sv_cli_engine_open(&talk.engine, &eo) != SV_CLI_OK)
        code = SV_CLI_FAIL;
    talk.dir = eo.target_dir;
    if (code < 0)
        code = sv_cli_talk_open(&talk, converse);
    if (code == SV_CLI_OK)
        sv_cli_catch_interrupt();
    if (code == SV_CLI_OK && piped) {
        code = take_prompt(&prompt, &talk, NULL, NULL);
        code = code < 0 ? SV_CLI_OK : code;
    }
    if (code == SV_CLI_OK)
        code = converse ? sv_cli_talk_converse(&talk) : answer_once(&talk, &prompt);
    sv_buf_fini(&prompt);
    sv_cli_talk_close(&talk);
    sv_free_grammar(g.made);
    return code;
}
