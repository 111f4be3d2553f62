/*
 * talk.c - one message answered: chat form, streaming, summary line.
 *
 * Called by run.c and converse.c. Must not: read the terminal.
 */
#include "cli/talk.h"

#include <string.h>
#include <unistd.h>

/* The id of a text that is exactly one token, -1 otherwise. */
static int32_t single_token(const struct sv_engine *e, const char *text)
{
    int32_t *ids = NULL, n = 0, id = -1;

    if (sv_encode_text(e, text, strlen(text), &ids, &n, NULL, 0) == SV_OK && n == 1)
        id = ids[0];
    sv_free_ids(ids);
    return id;
}

bool sv_cli_talk_has_chat(const struct sv_cli_talk *t)
{
    return single_token(t->engine, "<|im_start|>") >= 0 &&
           single_token(t->engine, "<|im_end|>") >= 0;
}

static void begin_history(struct sv_cli_talk *t)
{
    sv_buf_clear(&t->history);
    if (t->chat && t->system)
        sv_buf_printf(&t->history, "<|im_start|>system\n%s<|im_end|>\n", t->system);
}

int sv_cli_talk_open(struct sv_cli_talk *t)
{
    sv_buf_init(&t->history);
    sv_cli_answer_init(&t->answer, t->engine);
    sv_cli_painter_init(&t->painter, stdout, t->show_draft && t->colour);
    t->answer.painter = &t->painter;
    t->end_id = -1;
    if (t->chat && !sv_cli_talk_has_chat(t))
        return sv_cli_fail(
            "--chat: this model's tokenizer has no <|im_start|> and <|im_end|>; other "
            "chat forms are not supported yet");
    if (t->chat)
        t->end_id = single_token(t->engine, "<|im_end|>");
    else if (t->system)
        return sv_cli_fail("--system needs --chat");
    begin_history(t);
    return SV_CLI_OK;
}

void sv_cli_talk_close(struct sv_cli_talk *t)
{
    sv_close_engine(t->engine);
    sv_cli_painter_fini(&t->painter);
    sv_cli_answer_fini(&t->answer);
    sv_buf_fini(&t->history);
}

int sv_cli_talk_turn(struct sv_cli_talk *t, const char *text, size_t n)
{
    struct sv_request r = t->defaults;
    struct sv_buf prompt;
    struct sv_err err = {0};
    int rc;

    sv_buf_init(&prompt);
    if (t->chat) {
        sv_buf_append(&prompt, t->history.data, t->history.len);
        sv_buf_printf(&prompt, "<|im_start|>user\n");
        sv_buf_append(&prompt, text, n);
        sv_buf_printf(&prompt, "<|im_end|>\n<|im_start|>assistant\n");
        r.stop_ids = &t->end_id;
        r.n_stop_ids = 1;
    } else {
        sv_buf_append(&prompt, text, n);
    }
    if (prompt.failed) {
        sv_buf_fini(&prompt);
        return sv_cli_fail("out of memory");
    }
    r.prompt = prompt.data;
    r.prompt_bytes = prompt.len;
    rc = sv_cli_answer_run(t->engine, &r, 1, 1, &t->answer, &err);
    if (t->answer.text.len)
        fputc('\n', stdout);
    fflush(stdout);
    if (!rc || rc == SV_ECANCELED)
        sv_cli_accept_add(&t->accept, &t->answer);
    /* A canceled or failed answer leaves the conversation as it was before the question. */
    if (t->chat && !rc && t->answer.finish != SV_FINISH_ERROR) {
        sv_buf_clear(&t->history);
        sv_buf_append(&t->history, prompt.data, prompt.len);
        if (t->answer.text.data)
            sv_buf_append(&t->history, t->answer.text.data, t->answer.text.len);
        sv_buf_printf(&t->history, "<|im_end|>\n");
    }
    sv_buf_fini(&prompt);
    if (rc)
        return rc == SV_ECANCELED ? SV_CLI_FAIL : sv_cli_fail("%s", err.msg);
    if (t->answer.finish == SV_FINISH_ERROR)
        return sv_cli_fail("%s", t->answer.message);
    return SV_CLI_OK;
}

/* What a step had to read, over how long it took, as a share of the read bandwidth. */
static double bandwidth_share(struct sv_cli_talk *t)
{
    const struct sv_cli_answer *a = &t->answer;
    struct sv_engine_info info;
    double steps = (double)(a->accept.len / sizeof(uint16_t)), bytes;

    sv_get_engine_info(t->engine, &info);
    bytes = steps * (double)(info.target_step_bytes + info.draft_step_bytes);
    if (!steps || a->decode_us <= 0)
        return 0;
    if (t->gbs == 0)
        t->gbs = sv_cli_bandwidth(t->engine, info.target_step_bytes + info.draft_step_bytes);
    return t->gbs > 0 ? bytes / ((double)a->decode_us * 1e3) / t->gbs : 0;
}

void sv_cli_talk_summary(struct sv_cli_talk *t)
{
    const struct sv_cli_answer *a = &t->answer;
    bool colour = sv_cli_colour(stderr, NULL);
    struct sv_engine_info info;
    struct sv_cli_accept sum = {0};
    int32_t n = sv_cli_answer_n(a);
    double share;

    if (t->quiet || a->finish == SV_FINISH_NONE || a->finish == SV_FINISH_ERROR)
        return;
    sv_get_engine_info(t->engine, &info);
    sv_cli_accept_add(&sum, a);
    share = bandwidth_share(t);
    fprintf(stderr, "%s[%d tokens in %.2f s, %.1f tok/s (%s)", sv_cli_style(colour, SV_CLI_DIM), n,
            (double)(a->prefill_us + a->decode_us) / 1e6, sv_cli_answer_rate(a),
            sv_finish_name(a->finish));
    fprintf(stderr, "; prompt of %d in %.0f ms", a->n_prompt, (double)a->prefill_us / 1e3);
    if (info.block_size > 1)
        fprintf(stderr, "; accept length %.2f over %lld steps", sv_cli_accept_mean(&sum),
                (long long)sum.n_steps);
    if (share > 0)
        fprintf(stderr, "; %.0f %% of %.1f GB/s", 100 * share, t->gbs);
    fprintf(stderr, "]%s\n", sv_cli_style(colour, SV_CLI_PLAIN));
    if (!t->painter.on || t->legend_shown)
        return;
    t->legend_shown = true;
    fprintf(stderr, "[%sdrafted%s, %sthe target's own%s]\n", sv_cli_style(colour, SV_CLI_DRAFTED),
            sv_cli_style(colour, SV_CLI_PLAIN), sv_cli_style(colour, SV_CLI_OWN),
            sv_cli_style(colour, SV_CLI_PLAIN));
}
