/*
 * check.c - `salvo check`: is this directory sound, does this draft fit this target, and does it
 * help?
 *
 * Called by main.c. Prints each check, stops at the first that fails, and ends with measured
 * acceptance by position. Must not: accept a pair merely because it could be opened.
 */
#include "cli/cli.h"
#include "cli/measure.h"
#include "load/load.h"
#include "jinja/jinja.h"
#include "token/token.h"

#include <string.h>

static const char usage[] =
    "Usage: salvo check -m TARGET_DIR [-d DRAFT_DIR] [--prompts FILE.jsonl]\n"
    "\n"
    "Validates a target, a draft and whether they belong together, then answers a few\n"
    "prompts with and without the draft: same tokens? how many drafts accepted at each\n"
    "position? Exit code 1 with the reason when something does not fit; a warning when the\n"
    "draft fits but does not help.";

#define HELPS_FROM 1.3 /* mean accept length below which drafting hardly pays for itself */

static void ok(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void ok(const char *fmt, ...)
{
    va_list ap;

    fputs("ok    ", stdout);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

static void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void warn(const char *fmt, ...)
{
    char text[480];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sv_cli_say("warning: %s", text);
}

/* ---------------------------------------------------------------- files */

static int check_target(const char *dir, struct sv_config *cfg, struct sv_err *err)
{
    struct sv_ckpt c;
    char n1[24], n2[24];
    int rc;

    if (sv_dir_is_draft(dir))
        return sv_fail(err, SV_EMISMATCH, -1, "%s is a draft, not a target", dir);
    rc = sv_config_load(cfg, dir, err);
    if (rc)
        return rc;
    ok("target configuration: %s, %d layers, hidden size %d, vocabulary %d",
       sv_arch_name(cfg->arch), cfg->n_layers, cfg->hidden_size, cfg->vocab_size);
    rc = sv_ckpt_open(&c, dir, err);
    if (rc)
        return rc;
    rc = sv_ckpt_check_target(&c, cfg, err);
    if (!rc)
        ok("target tensors: %d, each with its shape, none unknown; %s parameters, %s", c.n_tensors,
           sv_cli_count(c.n_params, n1), sv_cli_bytes(c.n_bytes, n2));
    sv_ckpt_close(&c);
    return rc ? sv_err_prefix(err, "%s", dir) : SV_OK;
}

static int check_draft(const char *dir, const struct sv_config *target, struct sv_draft_config *cfg,
                       struct sv_err *err)
{
    struct sv_ckpt c;
    char n1[24], n2[24];
    int rc = sv_draft_config_load(cfg, dir, target->n_layers, err);

    if (rc)
        return rc;
    ok("draft configuration: %d layers, block of %d, %d taps, mask token %d", cfg->base.n_layers,
       cfg->block_size, cfg->n_taps, cfg->mask_id);
    rc = sv_ckpt_open(&c, dir, err);
    if (rc)
        return rc;
    rc = sv_ckpt_check_draft(&c, cfg, err);
    if (!rc)
        ok("draft tensors: %d, each with its shape, none unknown; %s parameters, %s", c.n_tensors,
           sv_cli_count(c.n_params, n1), sv_cli_bytes(c.n_bytes, n2));
    sv_ckpt_close(&c);
    if (rc)
        return sv_err_prefix(err, "%s", dir);
    rc = sv_pair_check(target, cfg, err);
    if (rc)
        return sv_err_prefix(err, "the draft does not fit the target");
    ok("pair: sizes, vocabulary, taps and mask token of the draft fit the target");
    return SV_OK;
}

/* A template that cannot be parsed would otherwise fail at the first message. */
static int check_template(const char *dir, struct sv_err *err)
{
    struct sv_chat_template *t;
    int rc = sv_cli_chat_open(&t, dir, err);

    if (t)
        ok("chat template: parsed");
    sv_chat_template_close(t);
    return rc;
}

/* *has_tokenizer stays false for directories that only take token ids. */
static int check_tokenizer(const char *dir, const struct sv_config *cfg, bool *has_tokenizer,
                           bool *has_chat, struct sv_err *err)
{
    struct sv_tokenizer *tok;
    int32_t n;
    int rc;

    if (!sv_model_has_tokenizer(dir)) {
        warn("%s has no tokenizer.json: it answers token ids only", dir);
        return SV_OK;
    }
    rc = sv_model_tokenizer(&tok, dir, err);
    if (rc)
        return rc;
    n = sv_tokenizer_n_tokens(tok);
    *has_tokenizer = true;
    *has_chat = sv_tokenizer_find(tok, "<|im_start|>") >= 0;
    sv_tokenizer_close(tok);
    if (n > cfg->vocab_size)
        return sv_fail(err, SV_EMISMATCH, -1,
                       "%s: the tokenizer has ids up to %d, the model only %d", dir, n - 1,
                       cfg->vocab_size);
    ok("tokenizer: %d tokens", n);
    return check_template(dir, err);
}

/* ---------------------------------------------------------------- probe */

static const char *const chat_probes[] = {
    "{\"id\":1,\"kind\":\"chat\",\"prompt\":\"<|im_start|>user\\nA shop sells 14 boxes of 6 apples "
    "in the morning and 9 boxes in the afternoon. How many apples is that?<|im_end|>\\n"
    "<|im_start|>assistant\\n\"}",
    "{\"id\":2,\"kind\":\"chat\",\"prompt\":\"<|im_start|>user\\nTom has 3 times as many marbles "
    "as Ann. Together they have 48. How many has Tom?<|im_end|>\\n<|im_start|>assistant\\n\"}",
    "{\"id\":3,\"kind\":\"chat\",\"prompt\":\"<|im_start|>user\\nA train leaves at 9:40 and "
    "arrives at 13:05. How long does it travel?<|im_end|>\\n<|im_start|>assistant\\n\"}"};
static const char *const text_probes[] = {
    "{\"id\":4,\"kind\":\"code\",\"prompt\":\"def fibonacci(n):\\n    \\\"\\\"\\\"Return the n-th "
    "Fibonacci number.\\\"\\\"\\\"\\n\"}",
    "{\"id\":5,\"kind\":\"code\",\"prompt\":\"static int compare(const void *a, "
    "const void *b)\\n{\\n\"}",
    "{\"id\":6,\"kind\":\"prose\",\"prompt\":\"The three most important inventions of the last "
    "century are\"}"};

static int load_probes(struct sv_cli_prompts *p, bool has_chat, const struct sv_request *defaults,
                       int32_t vocab_size, struct sv_err *err)
{
    int rc = SV_OK;

    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < 3 && has_chat && !rc; i++)
        rc = sv_cli_prompts_add(p, chat_probes[i], strlen(chat_probes[i]), defaults, vocab_size,
                                NULL, err);
    for (size_t i = 0; i < 3 && !rc; i++)
        rc = sv_cli_prompts_add(p, text_probes[i], strlen(text_probes[i]), defaults, vocab_size,
                                NULL, err);
    return rc;
}

static void show_positions(const struct sv_engine_stats *s, int32_t width)
{
    struct sv_cli_table t;
    struct sv_buf b;

    sv_cli_table_init(&t);
    sv_cli_table_column(&t, "position", true);
    sv_cli_table_column(&t, "drafted", true);
    sv_cli_table_column(&t, "accepted", true);
    sv_cli_table_column(&t, "share", true);
    sv_cli_table_column(&t, "", false);
    for (int32_t i = 1; i < width; i++) {
        double share = s->drafted_at[i] ? (double)s->accepted_at[i] / (double)s->drafted_at[i] : 0;
        sv_buf_init(&b);
        sv_cli_bar(share, 30, &b);
        sv_cli_table_add(&t, "%d", i);
        sv_cli_table_add(&t, "%lld", (long long)s->drafted_at[i]);
        sv_cli_table_add(&t, "%lld", (long long)s->accepted_at[i]);
        sv_cli_table_add(&t, "%.1f %%", 100 * share);
        sv_cli_table_add(&t, "%s", b.data ? b.data : "");
        sv_buf_fini(&b);
    }
    sv_buf_init(&b);
    sv_cli_table_write(&t, "md", &b);
    if (!b.failed)
        printf("\n%s\n", b.data);
    sv_buf_fini(&b);
    sv_cli_table_fini(&t);
}

static int judge(const struct sv_cli_pair_results *r, const struct sv_engine_stats *s,
                 const struct sv_engine_info *info)
{
    const struct sv_cli_pair_row *all = &r->row[r->n - 1];
    double mean = sv_cli_accept_mean(&all->accept);
    double plain = sv_cli_samples_median(&all->arm[0].rate);
    double dflash = sv_cli_samples_median(&all->arm[1].rate);

    if (r->differ)
        return sv_cli_fail("DFlash and plain decoding did not give the same tokens");
    ok("same tokens with and without the draft: %d prompts, %lld tokens", all->n_prompts,
       (long long)all->n_tokens);
    show_positions(s, info->width);
    printf("mean accept length %.2f of %d; plain %.1f tok/s, DFlash %.1f tok/s (%.2fx)\n", mean,
           info->width, plain, dflash, plain > 0 ? dflash / plain : 0);
    fflush(stdout);
    if (mean < HELPS_FROM)
        warn("the draft fits but does not help: mean accept length %.2f (was it trained for this "
             "target?)",
             mean);
    else if (dflash < plain)
        warn("the draft fits, but on this machine steps of %d tokens cost more than they save; "
             "--spec-width auto, the default of the other commands, takes fewer",
             info->width);
    return SV_CLI_OK;
}

/* tower: the configuration has one, so that images are expected to be read. */
static void say_opened(const struct sv_engine *e, bool tower)
{
    struct sv_engine_info info;
    const char *why = "";

    sv_get_engine_info(e, &info);
    ok("opened: %s, %s", info.device, info.dtype);
    if (!tower)
        return;
    if (sv_engine_takes_images(e, &why))
        ok("images: read");
    else
        warn("images are refused: %s", why);
}

static int probe(const struct sv_engine_options *eo, const char *path, bool has_chat, bool tower,
                 const struct sv_request *defaults)
{
    struct sv_engine *engine[2] = {NULL, NULL};
    struct sv_cli_prompts prompts = {0};
    struct sv_cli_pair_results res = {0};
    struct sv_cli_pair_opts o = {
        .repeat = 1, .concurrency = {1}, .n_concurrency = 1, .keep_loops = true};
    struct sv_engine_stats stats;
    struct sv_engine_info info;
    struct sv_err err = {0};
    int code = sv_cli_pair_open(engine, eo);

    if (code != SV_CLI_OK)
        goto out;
    sv_cli_catch_interrupt(); /* until here Ctrl-C ends the program: loading looks at no flag */
    sv_get_engine_info(engine[1], &info);
    say_opened(engine[1], tower);
    int rc =
        path ? sv_cli_prompts_load(&prompts, path, eo->target_dir, defaults, info.vocab_size, &err)
             : load_probes(&prompts, has_chat, defaults, info.vocab_size, &err);
    if (!rc)
        rc = sv_cli_pair_measure(engine[0], engine[1], &prompts, &o, &res, &err);
    if (rc) {
        code = sv_cli_fail("%s", err.msg);
        goto out;
    }
    sv_get_engine_stats(engine[1], &stats);
    code = judge(&res, &stats, &info);
out:
    sv_cli_pair_results_fini(&res);
    sv_cli_prompts_fini(&prompts);
    sv_close_engine(engine[1]);
    sv_close_engine(engine[0]);
    return code;
}

/* Whether the model can be run: memory, context and kernels are checked when an engine opens. */
static int try_open(const struct sv_engine_options *eo, bool tower)
{
    struct sv_engine *engine = NULL;
    int code = sv_cli_engine_open(&engine, eo);

    if (code == SV_CLI_OK)
        say_opened(engine, tower);
    sv_close_engine(engine);
    return code;
}

/* ---------------------------------------------------------------- */

static int check(const struct sv_engine_options *eo, const char *prompts,
                 const struct sv_request *defaults)
{
    struct sv_config *cfg = sv_calloc(1, sizeof *cfg);
    struct sv_draft_config *draft = sv_calloc(1, sizeof *draft);
    bool has_tokenizer = false, has_chat = false, tower;
    struct sv_err err = {0};
    int rc = cfg && draft ? SV_OK : sv_fail(&err, SV_ENOMEM, -1, "out of memory");
    int code;

    if (!rc)
        rc = check_target(eo->target_dir, cfg, &err);
    if (!rc)
        rc = check_tokenizer(eo->target_dir, cfg, &has_tokenizer, &has_chat, &err);
    if (!rc && eo->draft_dir)
        rc = check_draft(eo->draft_dir, cfg, draft, &err);
    tower = !rc && cfg->vision.depth;
    sv_free(cfg);
    sv_free(draft);
    if (rc) {
        fflush(stdout);
        return sv_cli_fail("%s", err.msg);
    }
    if (eo->draft_dir && (has_tokenizer || prompts))
        return probe(eo, prompts, has_chat, tower, defaults);
    code = try_open(eo, tower);
    if (code == SV_CLI_OK && eo->draft_dir)
        warn("acceptance was not probed: without a tokenizer, give prompts of token ids");
    return code;
}

int sv_cli_check(int argc, char **argv)
{
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_sampling s = sv_cli_sampling_default();
    struct sv_cli_opts opts = {.n = 0};
    struct sv_engine_options eo;
    struct sv_request defaults = sv_default_request(NULL);
    const char *prompts = NULL;
    int code;

    s.max_tokens = 96;
    sv_cli_opt(&opts, "prompts", 0, SV_OPT_STRING, &prompts, "FILE",
               "probe with these instead of the built-in ones");
    sv_cli_model_rows(&opts, &m);
    sv_cli_opt(&opts, "max-tokens", 'n', SV_OPT_INT, &s.max_tokens, "N",
               "length of the probes (default 96)");
    code = sv_cli_parse(&opts, "check", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = sv_cli_model_options(&m, "check", &eo);
    if (code < 0)
        code = sv_cli_sampling_apply(&s, "check", &defaults);
    if (code < 0 && prompts && !eo.draft_dir)
        code = sv_cli_usage("check", "option --prompts needs a draft (-d) to probe");
    if (code >= 0)
        return code;
    eo.auto_width = false; /* measures acceptance at every position of the block */
    return check(&eo, prompts, &defaults);
}
