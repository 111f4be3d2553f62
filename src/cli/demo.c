/*
 * demo.c - `salvo demo`: the same prompts by plain decoding and by DFlash, streaming, then a table.
 *
 * Called by main.c, mostly through `make demo`. Shows one answer after the other, checks that they
 * are the same tokens, then measures again without output. Must not: show a speed that was measured
 * while writing to a terminal.
 */
#include "cli/cli.h"
#include "cli/measure.h"

#include <string.h>

static const char usage[] =
    "Usage: salvo demo [-m TARGET_DIR] [-d DRAFT_DIR] [--prompts FILE.jsonl]\n"
    "\n"
    "Answers prompts by plain decoding and by DFlash, shows that the texts are the same and\n"
    "how fast each of them is. On a terminal drafted tokens are green, the target's own\n"
    "yellow.";

struct demo {
    struct sv_engine *engine[2]; /* plain, dflash */
    struct sv_engine_info info;
    struct sv_cli_prompts prompts;
    bool colour;
    int64_t per_kind, measured;
    double seconds;
};

/* ---------------------------------------------------------------- showing */

/* Shows the prompt as a user would type it, without the chat format. */
static void show_prompt(const struct demo *d, const char *text, size_t n)
{
    static const char head[] = "<|im_start|>user\n", tail[] = "<|im_end|>";
    const char *end;

    if (n > sizeof head - 1 && memcmp(text, head, sizeof head - 1) == 0) {
        text += sizeof head - 1;
        end = strstr(text, tail);
        n = end ? (size_t)(end - text) : strlen(text);
    }
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    printf("%s%.*s%s\n\n", sv_cli_style(d->colour, SV_CLI_BOLD), (int)n, text,
           sv_cli_style(d->colour, SV_CLI_PLAIN));
}

static int answer(const struct demo *d, const struct sv_cli_request *q, int arm,
                  struct sv_cli_answer *a)
{
    struct sv_cli_painter painter;
    struct sv_err err = {0};
    int rc;

    sv_cli_painter_init(&painter, stdout, d->colour && arm);
    printf("%s%s%s\n", sv_cli_style(d->colour, SV_CLI_DIM),
           arm ? "DFlash:" : "plain decoding:", sv_cli_style(d->colour, SV_CLI_PLAIN));
    fflush(stdout);
    sv_cli_answer_init(a, d->engine[arm]);
    a->painter = &painter;
    rc = sv_cli_answer_run(d->engine[arm], &q->r, 1, 1, a, &err);
    a->painter = NULL;
    sv_cli_painter_fini(&painter);
    puts("\n");
    if (rc)
        return sv_cli_fail("%s", err.msg);
    if (a->finish == SV_FINISH_ERROR)
        return sv_cli_fail("%s", a->message);
    return SV_CLI_OK;
}

static int show_one(const struct demo *d, const struct sv_cli_request *q)
{
    struct sv_cli_answer a[2];
    struct sv_cli_accept sum = {0};
    int code;

    if (q->r.prompt)
        show_prompt(d, q->r.prompt, q->r.prompt_bytes);
    sv_cli_answer_init(&a[1], d->engine[1]);
    code = answer(d, q, 0, &a[0]);
    if (code == SV_CLI_OK)
        code = answer(d, q, 1, &a[1]);
    if (code == SV_CLI_OK) {
        const int at = sv_cli_first_difference(&a[0], &a[1]);
        sv_cli_accept_add(&sum, &a[1]);
        printf("%s[%d tokens: plain in %d steps, DFlash in %lld, accept length %.2f; %s]%s\n\n",
               sv_cli_style(d->colour, SV_CLI_DIM), sv_cli_answer_n(&a[0]),
               sv_cli_answer_n(&a[0]) - 1, (long long)sum.n_steps, sv_cli_accept_mean(&sum),
               at < 0 ? "same tokens" : "NOT THE SAME TOKENS",
               sv_cli_style(d->colour, SV_CLI_PLAIN));
        fflush(stdout);
        if (at >= 0)
            code = sv_cli_fail("the two answers differ at token %d", at);
    }
    sv_cli_answer_fini(&a[0]);
    sv_cli_answer_fini(&a[1]);
    return code;
}

/* The i-th prompt of its kind, from 0. */
static int64_t rank_in_kind(const struct sv_cli_prompts *p, int32_t i)
{
    int64_t rank = 0;

    for (int32_t k = 0; k < i; k++) {
        const char *a = p->q[k].kind, *b = p->q[i].kind;
        rank += a == b || (a && b && strcmp(a, b) == 0);
    }
    return rank;
}

static int show_all(const struct demo *d)
{
    for (int32_t i = 0; i < d->prompts.n; i++) {
        int64_t rank = rank_in_kind(&d->prompts, i);
        int code;
        if (rank >= d->per_kind)
            continue;
        printf("%s---- %s %lld ----%s\n", sv_cli_style(d->colour, SV_CLI_DIM),
               d->prompts.q[i].kind ? d->prompts.q[i].kind : "prompt", (long long)rank + 1,
               sv_cli_style(d->colour, SV_CLI_PLAIN));
        code = show_one(d, &d->prompts.q[i]);
        if (code != SV_CLI_OK)
            return code;
    }
    return SV_CLI_OK;
}

/* ---------------------------------------------------------------- measuring */

static void write_results(const struct demo *d, const struct sv_cli_pair_results *r)
{
    const struct sv_cli_pair_row *all = &r->row[r->n - 1];
    struct sv_cli_machine m;
    struct sv_cli_table t;
    struct sv_buf b;
    char n1[24], n2[24];

    sv_cli_machine_read(&m);
    sv_buf_init(&b);
    sv_cli_table_init(&t);
    sv_cli_pair_table(&t, r, true);
    sv_cli_table_write(&t, "md", &b);
    sv_buf_printf(&b,
                  "\ntok/s: median of %d runs ± half the spread, prompts included. Bandwidth: %.1f "
                  "GB/s, reading as many\nbytes as the weights have, just now. %s, %s, %s.\n"
                  "Target of %s parameters, draft of %s, up to %d tokens verified in a step.\n",
                  all->arm[0].rate.n, r->gbs, m.cpu, d->info.device, d->info.dtype,
                  sv_cli_count(d->info.target_params, n1), sv_cli_count(d->info.draft_params, n2),
                  d->info.width);
    if (r->n_loops)
        sv_buf_printf(&b, "%d texts run into a loop and are left out.\n", r->n_loops);
    sv_buf_printf(&b, "\nTokens that a verify step brought (the target's own included):\n");
    sv_cli_accept_bars(&all->accept, &b);
    sv_buf_printf(&b, "\n%s: %016llx plain, %016llx DFlash\n",
                  r->differ ? "THE TOKENS ARE NOT THE SAME" : "all tokens are the same",
                  (unsigned long long)all->arm[0].hash, (unsigned long long)all->arm[1].hash);
    if (!b.failed)
        fputs(b.data, stdout);
    sv_cli_table_fini(&t);
    sv_buf_fini(&b);
}

/* Keeps the first `measured` prompts of each kind. */
static void trim(struct demo *d)
{
    int32_t n = 0;
    bool keep;

    for (int32_t i = 0; i < d->prompts.n; i++) {
        keep = rank_in_kind(&d->prompts, i) < d->measured;
        /* Ranks look at what lies before, so dropped entries keep their kind until the end. */
        d->prompts.q[i].r.user = keep ? d : NULL;
    }
    for (int32_t i = 0; i < d->prompts.n; i++) {
        struct sv_cli_request *q = &d->prompts.q[i];
        if (!q->r.user) {
            sv_cli_request_fini(q);
            continue;
        }
        if (n != i) {
            d->prompts.q[n] = *q;
            if (q->stop[0])
                d->prompts.q[n].r.stop = d->prompts.q[n].stop;
        }
        n++;
    }
    d->prompts.n = n;
}

static int measure(struct demo *d)
{
    struct sv_cli_pair_opts o = {
        .repeat = 9, .max_seconds = d->seconds, .concurrency = {1}, .n_concurrency = 1};
    struct sv_cli_pair_results r;
    struct sv_err err = {0};
    int code = SV_CLI_OK;

    trim(d);
    printf("%s---- measuring without showing: %d prompts, about %.0f seconds ----%s\n\n",
           sv_cli_style(d->colour, SV_CLI_DIM), d->prompts.n, d->seconds,
           sv_cli_style(d->colour, SV_CLI_PLAIN));
    fflush(stdout);
    if (sv_cli_pair_measure(d->engine[0], d->engine[1], &d->prompts, &o, &r, &err))
        code = sv_cli_fail("%s", err.msg);
    else
        write_results(d, &r);
    if (code == SV_CLI_OK && r.differ)
        code = sv_cli_fail("DFlash and plain decoding did not give the same tokens");
    sv_cli_pair_results_fini(&r);
    return code;
}

/* ---------------------------------------------------------------- */

static int demo(struct demo *d, const struct sv_engine_options *eo, const char *path,
                const struct sv_request *defaults)
{
    struct sv_err err = {0};
    int code = sv_cli_pair_open(d->engine, eo);

    sv_cli_catch_interrupt(); /* until here Ctrl-C ends the program: loading looks at no flag */
    if (code == SV_CLI_OK) {
        sv_get_engine_info(d->engine[1], &d->info);
        if (sv_cli_prompts_load(&d->prompts, path, eo->target_dir, defaults, d->info.vocab_size,
                                &err))
            code = sv_cli_fail("%s", err.msg);
    }
    if (code == SV_CLI_OK && d->colour)
        printf("%sdrafted tokens%s, %sthe target's own%s\n\n", sv_cli_style(true, SV_CLI_DRAFTED),
               sv_cli_style(true, SV_CLI_PLAIN), sv_cli_style(true, SV_CLI_OWN),
               sv_cli_style(true, SV_CLI_PLAIN));
    if (code == SV_CLI_OK)
        code = show_all(d);
    if (code == SV_CLI_OK && d->measured)
        code = measure(d);
    sv_cli_prompts_fini(&d->prompts);
    sv_close_engine(d->engine[1]);
    sv_close_engine(d->engine[0]);
    return code;
}

int sv_cli_demo(int argc, char **argv)
{
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_sampling s = sv_cli_sampling_default();
    struct sv_cli_opts opts = {.n = 0};
    struct sv_engine_options eo;
    struct sv_request defaults = sv_default_request(NULL);
    struct demo d = {.per_kind = 2, .measured = 8, .seconds = 15};
    const char *prompts = "models/demo/prompts.jsonl", *colour = "auto";
    int code;

    m.target = "models/demo/target";
    m.draft = "models/demo/draft";
    s.max_tokens = SV_CLI_MEASURED_TOKENS;
    sv_cli_opt(&opts, "prompts", 0, SV_OPT_STRING, &prompts, "FILE", "prompts, as for generate");
    sv_cli_opt(&opts, "per-kind", 0, SV_OPT_INT, &d.per_kind, "N",
               "prompts of each kind to show (default 2)");
    sv_cli_opt(&opts, "measured", 0, SV_OPT_INT, &d.measured, "N",
               "prompts of each kind in the table (default 8, 0 = no table)");
    sv_cli_opt(&opts, "seconds", 0, SV_OPT_FLOAT, &d.seconds, "X",
               "time for the table (default 15)");
    sv_cli_opt(&opts, "colour", 0, SV_OPT_STRING, &colour, "WHEN", "auto, always or never");
    sv_cli_model_rows(&opts, &m);
    sv_cli_sampling_rows(&opts, &s);
    code = sv_cli_take_stops(&s, "demo", &argc, argv);
    if (code < 0)
        code = sv_cli_parse(&opts, "demo", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = sv_cli_in_range("demo", "per-kind", d.per_kind, 0, INT32_MAX);
    if (code < 0)
        code = sv_cli_in_range("demo", "measured", d.measured, 0, INT32_MAX);
    if (code < 0)
        code = sv_cli_num_in_range("demo", "seconds", d.seconds, 0, SV_CLI_MAX_SECONDS);
    if (code < 0)
        code = sv_cli_one_of("demo", "colour", colour, sv_cli_colours);
    if (code < 0)
        code = sv_cli_model_options(&m, "demo", &eo);
    if (code < 0)
        code = sv_cli_sampling_apply(&s, "demo", &defaults);
    if (code >= 0)
        return code;
    d.colour = sv_cli_colour(stdout, colour);
    return demo(&d, &eo, prompts, &defaults);
}
