/*
 * main.c - `salvo-bench`: options of the two kinds of measurement, and where the results go.
 *
 * Called by main.c. Must not: print a speed without what it was measured against.
 */
#define _POSIX_C_SOURCE 200809L

#include "bench/sim.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: salvo-bench -m TARGET_DIR [-d DRAFT_DIR] --prompts FILE.jsonl\n"
    "       salvo-bench --random-weights CONFIG_DIR [--draft-config DIR]\n"
    "       salvo-bench -m TARGET_DIR -d DRAFT_DIR --mode plain,dflash,auto\n"
    "                   [--accept-profile LIST] [--concurrency LIST]\n"
    "       salvo-bench serve --url URL ...       (load on a running server; see its --help)\n"
    "       salvo-bench replay FILE ...           (what --record-plan wrote; see its --help)\n"
    "\n"
    "With prompts: plain decoding and DFlash in turns, median and half the spread of tokens\n"
    "per second (prompts included), speedup, mean accept length, share of the read\n"
    "bandwidth measured in the same run; by the prompts' field 'kind'. Fails when the two\n"
    "do not give the same tokens. Texts that run into a loop are left out and counted.\n"
    "With random weights of CONFIG_DIR/config.json's shapes: one row, a block of rows and a\n"
    "long prompt beside the read bandwidth. The weights lie in a temporary file meanwhile.\n"
    "With --mode, --accept-profile or --draft-config: steps at fixed numbers of sequences,\n"
    "modes in turns; accept lengths may be drawn from a profile (rows marked simulated).";

enum { NO_PREFILL = -1 };

struct bench_args {
    const char *prompts, *format, *out, *concurrency, *random_dir, *draft_config, *tmp_dir;
    const char *modes, *widths, *profiles, *ops, *step_log;
    int64_t repeat, verify, prefill, limit, at_context, steps;
    double seconds, keep, rest;
    bool keep_loops, quiet, one_engine;
};

static int parse_concurrency(const char *text, struct sv_cli_pair_opts *o)
{
    const char *rest = text;
    char item[24];

    while (sv_cli_next_item(&rest, item, sizeof item)) {
        char *end;
        long v = strtol(item, &end, 10);
        if (end == item || *end || v < 1 || v > 4096 || o->n_concurrency == 16)
            return sv_cli_usage("salvo-bench",
                                "option --concurrency: '%s' is not a list of at most 16 numbers "
                                "between 1 and 4096",
                                text);
        o->concurrency[o->n_concurrency++] = (int32_t)v;
    }
    return -1;
}

/* ---------------------------------------------------------------- a pair on prompts */

static void write_people(const struct sv_cli_pair_results *r, const struct sv_engine_info *info,
                         bool drafted, struct sv_buf *b)
{
    struct sv_cli_machine m;
    struct sv_cli_table t;
    char n1[24], n2[24];
    const struct sv_cli_pair_row *all = NULL;

    sv_cli_machine_read(&m);
    sv_buf_printf(b, "%s, %s, %s; target %s parameters", m.cpu, info->device, info->dtype,
                  sv_cli_count(info->target_params, n1));
    if (drafted)
        sv_buf_printf(b, ", draft %s, verify width %d", sv_cli_count(info->draft_params, n2),
                      info->width);
    sv_buf_printf(b, "; read bandwidth %.1f GB/s; commit %s\n\n", r->gbs, m.commit);
    sv_cli_table_init(&t);
    sv_cli_pair_table(&t, r, drafted);
    sv_cli_table_write(&t, "md", b);
    sv_cli_table_fini(&t);
    if (r->n_loops)
        sv_buf_printf(b, "\n%d texts run into a loop and are left out.\n", r->n_loops);
    for (int32_t i = 0; i < r->n && !all; i++)
        all = strcmp(r->row[i].kind, "all") == 0 ? &r->row[i] : NULL;
    if (drafted && all) {
        sv_buf_printf(b, "\nAccept lengths, share of verify steps:\n");
        sv_cli_accept_bars(&all->accept, b);
        sv_buf_printf(b, "\nToken ids of all answers: plain %016llx, DFlash %016llx: %s\n",
                      (unsigned long long)all->arm[0].hash, (unsigned long long)all->arm[1].hash,
                      r->differ ? "NOT EQUAL" : "equal");
    }
}

static void write_records(const struct sv_cli_pair_results *r, const struct sv_engine_info *info,
                          const struct sv_engine_options *eo, bool drafted, const char *format,
                          struct sv_buf *b)
{
    struct sv_cli_machine m;
    struct sv_cli_table t;

    sv_cli_machine_read(&m);
    sv_cli_table_init(&t);
    sv_cli_record_columns(&t);
    for (int32_t i = 0; i < r->n; i++) {
        const struct sv_cli_pair_row *row = &r->row[i];
        for (int arm = 0; arm < 1 + drafted; arm++) {
            struct sv_cli_record rec = {.test = row->kind,
                                        .arm = arm ? "dflash" : "plain",
                                        .sequences = row->concurrency,
                                        .samples = &row->arm[arm].rate,
                                        .share = sv_cli_pair_share(r, &row->arm[arm].gbs),
                                        .whole_share =
                                            sv_cli_pair_share(r, &row->arm[arm].whole_gbs),
                                        .limit_gbs = r->gbs,
                                        .accept = arm ? &row->accept : NULL,
                                        .hash = row->arm[arm].hash,
                                        .to_plain = arm ? &row->to_plain : NULL};
            sv_cli_record_add(&t, &m, eo->target_dir, info,
                              eo->n_threads ? eo->n_threads : sv_cpu_count(), &rec);
        }
    }
    sv_cli_table_write(&t, format, b);
    sv_cli_table_fini(&t);
}

static int measure_pair(const struct bench_args *a, struct sv_engine *engine[2],
                        const struct sv_engine_options *eo, const struct sv_cli_pair_opts *o,
                        const struct sv_request *defaults)
{
    struct sv_cli_prompts prompts = {0};
    struct sv_cli_pair_results res = {0};
    struct sv_engine_info info;
    struct sv_err err = {0};
    struct sv_buf text;
    bool drafted = engine[1] != NULL;
    int code = SV_CLI_FAIL;

    sv_buf_init(&text);
    sv_get_engine_info(engine[drafted], &info);
    if (sv_cli_prompts_load(&prompts, a->prompts, eo->target_dir, defaults, info.vocab_size,
                            &err)) {
        sv_cli_say("%s", err.msg);
        goto out;
    }
    while (a->limit && prompts.n > a->limit)
        sv_cli_request_fini(&prompts.q[--prompts.n]);
    if (sv_cli_pair_measure(engine[0], engine[1], &prompts, o, &res, &err)) {
        sv_cli_say("%s", err.msg);
        goto out;
    }
    if (strcmp(a->format, "md") == 0)
        write_people(&res, &info, drafted, &text);
    if (strcmp(a->format, "md") == 0 && drafted && engine[1]->policy)
        sv_sim_policy_reasons(engine[1]->policy, &text);
    if (strcmp(a->format, "md") != 0)
        write_records(&res, &info, eo, drafted, a->format, &text);
    code = sv_cli_deliver(&text, a->out);
    if (res.differ)
        code = sv_cli_fail("DFlash and plain decoding did not give the same tokens");
out:
    sv_buf_fini(&text);
    sv_cli_pair_results_fini(&res);
    sv_cli_prompts_fini(&prompts);
    return code;
}

static int bench_pair(const struct bench_args *a, struct sv_engine_options *eo,
                      const struct sv_request *defaults)
{
    struct sv_cli_pair_opts o = {
        .repeat = (int32_t)a->repeat, .keep_loops = a->keep_loops, .quiet = a->quiet};
    struct sv_engine *engine[2] = {NULL, NULL};
    int code = parse_concurrency(a->concurrency, &o);

    if (code >= 0)
        return code;
    eo->no_prefix_cache = true; /* every run computes its prompts */
    eo->max_sequences = 1;
    for (int32_t i = 0; i < o.n_concurrency; i++)
        if (o.concurrency[i] > eo->max_sequences)
            eo->max_sequences = o.concurrency[i];
    const bool one = a->one_engine && eo->draft_dir;
    code = one ? sv_cli_engine_open(&engine[0], eo) : sv_cli_pair_open(engine, eo);
    if (one)
        engine[1] = engine[0];
    sv_cli_catch_interrupt(); /* until here Ctrl-C ends the program: loading looks at no flag */
    if (code == SV_CLI_OK)
        code = measure_pair(a, engine, eo, &o, defaults);
    sv_close_engine(one ? NULL : engine[1]);
    sv_close_engine(engine[0]);
    return code;
}

/* ---------------------------------------------------------------- */

static int bench_random(const struct bench_args *a, const struct sv_engine_options *eo)
{
    struct sv_bench_random_opts o = {
        .config_dir = eo->target_dir,
        .tmp_dir = a->tmp_dir,
        .verify = a->verify,
        .prefill = a->prefill == NO_PREFILL ? 512 : a->prefill,
        .repeat = a->repeat,
        .seconds = a->seconds,
    };
    struct sv_buf text;
    int code;

    sv_buf_init(&text);
    code = sv_bench_random_measure(&o, eo, a->format, &text);
    if (code == SV_CLI_OK)
        code = sv_cli_deliver(&text, a->out);
    sv_buf_fini(&text);
    return code;
}

/* Modes, widths and profiles at fixed numbers of sequences. */
static int bench_sim(const struct bench_args *a, struct sv_engine_options *eo,
                     const struct sv_request *defaults)
{
    struct sv_cli_pair_opts levels = {.repeat = 0};
    struct sv_sim_opts o = {
        .context = (int32_t)a->at_context,
        .prefill = (int32_t)(a->prefill == NO_PREFILL ? 0 : a->prefill),
        .repeat = (int32_t)a->repeat,
        .steps = (int32_t)a->steps,
        .seconds = a->seconds,
        .keep = a->keep,
        .rest = a->rest,
        .random_weights = a->random_dir != NULL,
        .defaults = defaults,
        .ops = a->ops,
        .step_log = a->step_log,
        .quiet = a->quiet,
    };
    struct sv_buf text;
    int code = parse_concurrency(a->concurrency, &levels);

    if (code < 0)
        code = sv_sim_parse_modes(&o, a->modes ? a->modes : "plain,dflash,auto", a->widths);
    if (code < 0)
        code = sv_sim_parse_profiles(&o, a->profiles ? a->profiles : "real");
    if (code >= 0) {
        sv_sim_drop_profiles(&o);
        return code;
    }
    o.n_concurrency = levels.n_concurrency;
    memcpy(o.concurrency, levels.concurrency, sizeof levels.concurrency);
    sv_buf_init(&text);
    code = sv_sim_measure(&o, eo, a->format, &text);
    if ((text.len || text.failed) && sv_cli_deliver(&text, a->out) != SV_CLI_OK)
        code = SV_CLI_FAIL;
    sv_buf_fini(&text);
    sv_sim_drop_profiles(&o);
    return code;
}

static bool is_sim(const struct bench_args *a)
{
    return a->modes || a->profiles || a->draft_config || a->ops || a->step_log;
}

static int check_args(const struct bench_args *a, bool has_target, bool has_draft)
{
    const int64_t most = INT32_MAX;
    int code = -1;

    if (!sv_cli_table_format_known(a->format))
        code = sv_cli_usage("salvo-bench", "option --format: '%s' is not one of md, csv, json",
                            a->format);
    if (code < 0)
        code = sv_cli_in_range("salvo-bench", "repeat", a->repeat, 1, SV_CLI_MAX_SAMPLES);
    if (code < 0)
        code = sv_cli_in_range("salvo-bench", "limit", a->limit, 0, most);
    if (code < 0)
        code = sv_cli_in_range("salvo-bench", "verify", a->verify, 2, SV_MAX_BLOCK);
    if (code < 0 && a->prefill != NO_PREFILL)
        code = sv_cli_in_range("salvo-bench", "prefill", a->prefill, 1, 1 << 16);
    if (code < 0)
        code = sv_cli_in_range("salvo-bench", "context", a->at_context, 1, 1 << 20);
    if (code < 0)
        code = sv_cli_in_range("salvo-bench", "steps", a->steps, 1, 4096);
    if (code < 0)
        code = sv_cli_num_in_range("salvo-bench", "seconds", a->seconds, 0, SV_CLI_MAX_SECONDS);
    if (code < 0)
        code = sv_cli_num_in_range("salvo-bench", "keep-within", a->keep, 0, 1);
    if (code < 0)
        code = sv_cli_num_in_range("salvo-bench", "rest", a->rest, 0, 60);
    if (code < 0 && a->rest > 0 && !is_sim(a))
        code = sv_cli_usage("salvo-bench",
                            "option --rest: only with --mode, --accept-profile or --draft-config");
    if (code >= 0)
        return code;
    if (a->random_dir && has_target)
        return sv_cli_usage("salvo-bench",
                            "options --random-weights and --model exclude each other");
    if (a->random_dir && a->prompts)
        return sv_cli_usage("salvo-bench",
                            "options --random-weights and --prompts exclude each other");
    if (a->random_dir && has_draft)
        return sv_cli_usage("salvo-bench",
                            "options --random-weights and --draft exclude each other; "
                            "a draft of random weights is --draft-config");
    if (a->draft_config && !a->random_dir)
        return sv_cli_usage("salvo-bench", "option --draft-config needs --random-weights");
    if (a->one_engine && (is_sim(a) || a->random_dir))
        return sv_cli_usage("salvo-bench", "option --one-engine: only with --prompts");
    if (is_sim(a))
        return a->prompts
                   ? sv_cli_usage("salvo-bench", "--prompts excludes --mode and --accept-profile")
                   : -1;
    if (!a->random_dir == !a->prompts)
        return sv_cli_usage("salvo-bench", "one of --prompts and --random-weights is needed");
    return -1;
}

static void option_rows(struct sv_cli_opts *o, struct bench_args *a)
{
    sv_cli_opt(o, "prompts", 0, SV_OPT_STRING, &a->prompts, "FILE",
               "prompts, one JSON object a line, as for generate");
    sv_cli_opt(o, "limit", 0, SV_OPT_INT, &a->limit, "N", "only the first N prompts, 0 = all");
    sv_cli_opt(o, "concurrency", 0, SV_OPT_STRING, &a->concurrency, "LIST",
               "sequences in flight, like 1,2,4 (default 1)");
    sv_cli_opt(o, "one-engine", 0, SV_OPT_FLAG, &a->one_engine, NULL,
               "with prompts: both in one engine, whose drafter is taken away for plain decoding");
    sv_cli_opt(o, "keep-loops", 0, SV_OPT_FLAG, &a->keep_loops, NULL,
               "measure texts that run into a loop too");
    sv_cli_opt(o, "repeat", 'r', SV_OPT_INT, &a->repeat, "N", "measurements (default 5)");
    sv_cli_opt(o, "random-weights", 0, SV_OPT_STRING, &a->random_dir, "DIR",
               "measure random weights of DIR/config.json, or the weights of a GGUF file");
    sv_cli_opt(o, "verify", 0, SV_OPT_INT, &a->verify, "N",
               "rows of a verify step with random weights (default 16)");
    sv_cli_opt(o, "prefill", 0, SV_OPT_INT, &a->prefill, "N",
               "length of a prompt to measure (with --random-weights alone: 512)");
    sv_cli_opt(o, "draft-config", 0, SV_OPT_STRING, &a->draft_config, "DIR",
               "draft with random weights of DIR/config.json");
    sv_cli_opt(o, "mode", 0, SV_OPT_STRING, &a->modes, "LIST",
               "plain, dflash (fixed widths), verify (these without drafting), auto (the width "
               "policy), on random prompts");
    sv_cli_opt(o, "widths", 0, SV_OPT_STRING, &a->widths, "LIST",
               "widths of dflash and verify (default 16)");
    sv_cli_opt(o, "accept-profile", 0, SV_OPT_STRING, &a->profiles, "LIST",
               "draw accept lengths: never, a mean, qwen3-8b, always, all, a FILE of shares or of "
               "recorded steps; or real");
    sv_cli_opt(o, "context", 0, SV_OPT_INT, &a->at_context, "N",
               "tokens before the measured ones with --mode (default 512)");
    sv_cli_opt(o, "steps", 0, SV_OPT_INT, &a->steps, "N",
               "steps in one sample with --mode (default 32)");
    sv_cli_opt(o, "profile-ops", 0, SV_OPT_STRING, &a->ops, "FILE",
               "with --mode: where the time of a step goes, op by op");
    sv_cli_opt(o, "step-log", 0, SV_OPT_STRING, &a->step_log, "FILE",
               "with --mode: a line of CSV for every step: its time, rows, and what the width "
               "policy tried in it");
    sv_cli_opt(o, "seconds", 0, SV_OPT_FLOAT, &a->seconds, "X",
               "time for each measurement (default 1)");
    sv_cli_opt(
        o, "keep-within", 0, SV_OPT_FLOAT, &a->keep, "X",
        "with --mode: after a round or two, widths slower than X times the best are left out "
        "(default 0: none)");
    sv_cli_opt(
        o, "rest", 0, SV_OPT_FLOAT, &a->rest, "SECONDS",
        "with --mode: nothing runs for so long before every timed sample, which then meets a card "
        "or a processor that has rested (default 0)");
    sv_cli_opt(o, "tmp", 0, SV_OPT_STRING, &a->tmp_dir, "DIR",
               "where random weights are written (default $TMPDIR or /tmp)");
    sv_cli_opt(o, "format", 'o', SV_OPT_STRING, &a->format, "FORMAT", "md, csv or json");
    sv_cli_opt(o, "out", 0, SV_OPT_STRING, &a->out, "FILE",
               "results go there instead of to standard output");
    sv_cli_opt(o, "quiet", 'q', SV_OPT_FLAG, &a->quiet, NULL, "no progress");
}

static int bench(int argc, char **argv)
{
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_sampling s = sv_cli_sampling_default();
    struct sv_cli_opts opts = {.n = 0};
    struct sv_engine_options eo;
    struct sv_request defaults = sv_default_request(NULL);
    struct bench_args a = {
        .format = "md",
        .concurrency = "1",
        .repeat = 5,
        .verify = 16,
        .prefill = NO_PREFILL,
        .widths = "16",
        .at_context = 512,
        .steps = 32,
        .seconds = 1,
    };
    int code;

    s.max_tokens = SV_CLI_MEASURED_TOKENS;
    option_rows(&opts, &a);
    sv_cli_model_rows(&opts, &m);
    sv_cli_sampling_rows(&opts, &s);
    code = sv_cli_take_stops(&s, "salvo-bench", &argc, argv);
    if (code < 0)
        code = sv_cli_parse(&opts, "salvo-bench", usage, argc, argv, 0, NULL);
    if (code < 0)
        code = check_args(&a, m.target != NULL, m.draft != NULL);
    if (a.random_dir && !m.target)
        m.target = a.random_dir;
    if (a.draft_config && !m.draft)
        m.draft = a.draft_config;
    if (code < 0)
        code = sv_cli_model_options(&m, "salvo-bench", &eo);
    if (code < 0)
        code = sv_cli_sampling_apply(&s, "salvo-bench", &defaults);
    const char *const files[][2] = {
        {"out", a.out}, {"profile-ops", a.ops}, {"step-log", a.step_log}};
    for (int i = 0; i < 3 && code < 0; i++)
        code = sv_cli_can_write("salvo-bench", files[i][0], files[i][1]);
    if (code >= 0)
        return code;
    if (is_sim(&a))
        return bench_sim(&a, &eo, &defaults);
    return a.random_dir ? bench_random(&a, &eo) : bench_pair(&a, &eo, &defaults);
}

static int run(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        return sv_bench_serve(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "replay") == 0)
        return sv_bench_replay(argc - 1, argv + 1);
    return bench(argc, argv);
}

int main(int argc, char **argv)
{
    return sv_cli_process(argc, argv, run);
}
