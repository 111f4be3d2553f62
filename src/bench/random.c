/*
 * random.c - decode, verify and prefill of random weights, or of whatever a GGUF file holds, beside
 * the read bandwidth.
 *
 * Called by main.c. Runs the engine as users do, with a drafter that is always wrong, so that a
 * verify step is as long as it ever is. Each repeat measures everything once. Must not: touch the
 * shipped pair.
 */
#include "bench/bench.h"

#include <string.h>

enum { DECODE, VERIFY, PREFILL, N_TESTS };
/* Measurements of one thing, at most: contexts grow with them. */
enum { MOST_SAMPLES = 64 };

struct random_bench {
    const struct sv_bench_random_opts *o;
    struct sv_engine *e;
    struct sv_engine_info info;
    int32_t *prompt; /* (prefill) */
    struct sv_cli_samples rate[N_TESTS], ms[N_TESTS], gbs;
    double step_bytes[N_TESTS],
        whole_step_bytes[N_TESTS]; /* of weights; had each been read in its own type */
};

/* A file has weights of its own: quantized ones cannot be made at random. */
static bool is_file(const struct random_bench *b)
{
    const size_t n = strlen(b->o->config_dir);
    return n > 5 && strcmp(b->o->config_dir + n - 5, ".gguf") == 0;
}

static void ignore(void *user, const struct sv_event *ev)
{
    (void)user;
    (void)ev;
}

static int step(struct random_bench *b, double *ms, int *left, struct sv_err *err)
{
    char msg[480] = "";
    int64_t start = sv_clock_ns();

    *left = sv_step_engine(b->e, msg, sizeof msg);
    *ms = (double)(sv_clock_ns() - start) / 1e6;
    return *left < 0 ? sv_fail(err, *left, -1, "%s", msg) : SV_OK;
}

static int submit(struct random_bench *b, int32_t n_prompt, int32_t max_tokens, int32_t width,
                  uint64_t *id, struct sv_err *err)
{
    struct sv_request r = sv_default_request(b->e);
    char msg[480] = "";
    int rc;

    r.prompt_ids = b->prompt;
    r.n_prompt_ids = n_prompt;
    r.max_tokens = max_tokens;
    r.width = width;
    r.ignore_eos = true;
    r.on_event = ignore;
    rc = sv_submit_request(b->e, &r, id, msg, sizeof msg);
    return rc < 0 ? sv_fail(err, rc, -1, "%s", msg) : SV_OK;
}

/* Steps of one width until the time is over: the median step, as rows a second. */
static int measure_steps(struct random_bench *b, int test, int32_t width, struct sv_err *err)
{
    struct sv_cli_samples ms = {.n = 0};
    struct sv_engine_stats before, after;
    double warm, total = 0;
    uint64_t id;
    int left = 1, rc = submit(b, 16, 0, width, &id, err);

    for (int i = 0; i < 3 && !rc && left; i++) /* the prompt, then what loads the weights */
        rc = step(b, &warm, &left, err);
    sv_get_engine_stats(b->e, &before);
    while (!rc && left && ms.n < MOST_SAMPLES && (total < b->o->seconds * 1e3 || ms.n < 3)) {
        double t;
        rc = step(b, &t, &left, err);
        sv_cli_samples_add(&ms, t);
        total += t;
    }
    sv_get_engine_stats(b->e, &after);
    sv_cancel_request(b->e, id);
    while (!rc && left)
        rc = step(b, &warm, &left, err);
    if (rc || !ms.n)
        return rc;
    double steps = (double)(after.n_steps - before.n_steps);
    b->step_bytes[test] = (double)(after.weight_bytes - before.weight_bytes) / steps;
    b->whole_step_bytes[test] =
        (double)(after.whole_weight_bytes - before.whole_weight_bytes) / steps;
    sv_cli_samples_add(&b->ms[test], sv_cli_samples_median(&ms));
    sv_cli_samples_add(&b->rate[test], width * 1e3 / sv_cli_samples_median(&ms));
    return SV_OK;
}

static int measure_prefill(struct random_bench *b, struct sv_err *err)
{
    double total = 0, t;
    uint64_t id;
    int left = 1, rc = submit(b, (int32_t)b->o->prefill, 1, 1, &id, err);

    while (!rc && left) {
        rc = step(b, &t, &left, err);
        total += t;
    }
    if (rc)
        return rc;
    sv_cli_samples_add(&b->ms[PREFILL], total);
    sv_cli_samples_add(&b->rate[PREFILL], (double)b->o->prefill * 1e3 / total);
    return SV_OK;
}

static int measure(struct random_bench *b, struct sv_err *err)
{
    int rc = measure_prefill(b, err); /* the first one pays for touching the file's pages */

    b->rate[PREFILL].n = b->ms[PREFILL].n = 0;
    for (int64_t i = 0; i < b->o->repeat && !rc; i++) {
        if (sv_cli_interrupted())
            return sv_fail(err, SV_ECANCELED, -1, "canceled");
        sv_cli_samples_add(&b->gbs, sv_cli_bandwidth(b->e, b->info.target_step_bytes));
        rc = measure_steps(b, DECODE, 1, err);
        if (!rc)
            rc = measure_steps(b, VERIFY, (int32_t)b->o->verify, err);
        if (!rc)
            rc = measure_prefill(b, err);
    }
    return rc;
}

/* ---------------------------------------------------------------- results */

static void test_name(const struct random_bench *b, int test, char out[32])
{
    switch (test) {
    case DECODE:
        snprintf(out, 32, "decode 1 row");
        break;
    case VERIFY:
        snprintf(out, 32, "verify %lld rows", (long long)b->o->verify);
        break;
    default:
        snprintf(out, 32, "prompt of %lld", (long long)b->o->prefill);
    }
}

/* The weights pass once through the processor in each step of decode and verify. */
static double share(const struct random_bench *b, int test, double step_bytes)
{
    double ms = sv_cli_samples_median(&b->ms[test]), gbs = sv_cli_samples_max(&b->gbs);

    if (test == PREFILL || ms <= 0 || gbs <= 0)
        return 0;
    return step_bytes / ms / 1e6 / gbs;
}

static void write_people(const struct random_bench *b, int threads, const char *model,
                         struct sv_buf *out)
{
    static const char *const column[] = {"model", "size", "params",  "backend",     "threads",
                                         "test",  "t/s",  "ms/step", "of bandwidth"};
    struct sv_cli_machine m;
    struct sv_cli_table t;
    double one = sv_cli_samples_median(&b->ms[DECODE]);
    char text[32], n[24];

    sv_cli_machine_read(&m);
    sv_cli_table_init(&t);
    for (size_t i = 0; i < sizeof column / sizeof column[0]; i++)
        sv_cli_table_column(&t, column[i], i > 3 && i != 5);
    for (int test = 0; test < N_TESTS; test++) {
        const struct sv_cli_samples *r = &b->rate[test];
        sv_cli_table_add(&t, "%s", model);
        sv_cli_table_add(&t, "%s", sv_cli_bytes(b->info.target_step_bytes, n));
        sv_cli_table_add(&t, "%s", sv_cli_count(b->info.target_params, n));
        sv_cli_table_add(&t, "%s", b->info.device);
        sv_cli_table_add(&t, "%d", threads);
        test_name(b, test, text);
        sv_cli_table_add(&t, "%s", text);
        sv_cli_table_add(&t, "%.2f ± %.2f", sv_cli_samples_median(r),
                         (sv_cli_samples_max(r) - sv_cli_samples_min(r)) / 2);
        sv_cli_table_add(&t, "%.2f", sv_cli_samples_median(&b->ms[test]));
        if (test == PREFILL)
            sv_cli_table_add(&t, "%s", "");
        else
            sv_cli_table_add(&t, "%.1f %%", 100 * share(b, test, b->step_bytes[test]));
    }
    sv_cli_table_write(&t, "md", out);
    sv_cli_table_fini(&t);
    sv_buf_printf(
        out,
        "\nread bandwidth %.2f GB/s in the same run; %lld rows take %.2fx the time of one; "
        "%s; commit %s\n",
        sv_cli_samples_max(&b->gbs), (long long)b->o->verify,
        one > 0 ? sv_cli_samples_median(&b->ms[VERIFY]) / one : 0, m.cpu, m.commit);
}

static void write_records(const struct random_bench *b, int threads, const char *model,
                          const char *format, struct sv_buf *out)
{
    struct sv_cli_machine m;
    struct sv_cli_table t;
    char text[32];

    sv_cli_machine_read(&m);
    sv_cli_table_init(&t);
    sv_cli_record_columns(&t);
    for (int test = 0; test < N_TESTS; test++) {
        test_name(b, test, text);
        sv_cli_record_add(
            &t, &m, model, &b->info, threads,
            &(struct sv_cli_record){.test = text,
                                    .arm = is_file(b) ? "file" : "random weights",
                                    .sequences = 1,
                                    .samples = &b->rate[test],
                                    .share = share(b, test, b->step_bytes[test]),
                                    .whole_share = share(b, test, b->whole_step_bytes[test]),
                                    .limit_gbs = sv_cli_samples_max(&b->gbs)});
    }
    sv_cli_table_write(&t, format, out);
    sv_cli_table_fini(&t);
}

/* ---------------------------------------------------------------- opening */

/* A device with its own memory makes the weights there; the CPU uses a file in place. */
static bool on_device(const struct sv_engine_options *eo)
{
    return eo->device && strcmp(eo->device, "cpu") != 0;
}

static int open_engine(struct random_bench *b, const char *dir, const struct sv_engine_options *eo,
                       struct sv_err *err)
{
    struct sv_engine_options o = *eo;
    struct sv_drafter *wrong;
    struct sv_config cfg;
    int rc = sv_config_load(&cfg, dir, err);

    if (rc)
        return rc;
    o.no_prefix_cache = true; /* the same prompt comes again and must be computed again */
    rc = sv_fake_open(&wrong,
                      &(struct sv_fake_opts){
                          .kind = SV_FAKE_WRONG,
                          .block_size = (int32_t)b->o->verify,
                          .vocab_size = cfg.vocab_size,
                          .seed = 1,
                      },
                      err);
    if (rc)
        return rc;
    o.target_dir = dir;
    o.draft_dir = NULL;
    o.width = 0;
    if (!o.context) { /* what the tests need, not what the model could */
        o.context = (int32_t)b->o->prefill + 1;
        if (o.context < 16 + (MOST_SAMPLES + 8) * 2)
            o.context = 16 + (MOST_SAMPLES + 8) * 2;
    }
    const struct sv_engine_tuning tuning = {.random_weights = on_device(eo) && !is_file(b)};
    return sv_engine_open_tuned(&b->e, &o, &tuning, wrong, err);
}

int sv_bench_random_measure(const struct sv_bench_random_opts *o,
                            const struct sv_engine_options *eo, const char *format,
                            struct sv_buf *out)
{
    struct random_bench b = {.o = o};
    struct sv_err err = {0};
    struct sv_rng rng = {.state = 2};
    char *dir = NULL, model[64];
    int threads = eo->n_threads ? eo->n_threads : sv_cpu_count();
    int rc = SV_OK;

    sv_cli_catch_interrupt(); /* the file may take long to write and must not stay */
    if (!on_device(eo) && !is_file(&b))
        rc = sv_bench_random_weights(o->config_dir, o->tmp_dir, &dir, &err);
    if (rc)
        return sv_cli_fail("%s", err.msg);
    sv_model_name(o->config_dir, model, sizeof model);
    rc = open_engine(&b, dir ? dir : o->config_dir, eo, &err);
    /* Mapped by now; a crash from here on leaves nothing behind. */
    if (dir)
        sv_bench_random_weights_remove(dir);
    if (!rc) {
        sv_get_engine_info(b.e, &b.info);
        b.prompt = sv_alloc((size_t)(o->prefill > 16 ? o->prefill : 16) * sizeof *b.prompt);
        rc = b.prompt ? SV_OK : sv_fail(&err, SV_ENOMEM, -1, "out of memory");
    }
    for (int64_t i = 0; !rc && i < (o->prefill > 16 ? o->prefill : 16); i++)
        b.prompt[i] = (int32_t)sv_rng_below(&rng, (uint32_t)b.info.vocab_size);
    if (!rc)
        rc = measure(&b, &err);
    if (!rc && strcmp(format, "md") == 0)
        write_people(&b, threads, model, out);
    else if (!rc)
        write_records(&b, threads, model, format, out);
    sv_free(b.prompt);
    sv_close_engine(b.e);
    return rc ? sv_cli_fail("%s", err.msg) : SV_CLI_OK;
}
