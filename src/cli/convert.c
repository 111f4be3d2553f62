/*
 * convert.c - `salvo convert`: quantizes a model's projections into a new directory or file, and
 * reports the loss.
 *
 * Called by main.c. Prints the error of each tensor; with prompts, how often the new model chooses
 * the same token as the original, and how many drafts it accepts. Must not: overwrite anything.
 */
#include "cli/cli.h"
#include "cli/lines.h"
#include "cli/measure.h"
#include "load/load.h"

#include <math.h>
#include <string.h>

static const char usage[] =
    "Usage: salvo convert -m DIR --to FORMAT --out DIR [--prompts FILE.jsonl [-d DRAFT_DIR]]\n"
    "       salvo convert -m DRAFT_DIR --to FORMAT --out DIR [--prompts FILE.jsonl --target DIR]\n"
    "\n"
    "Writes a model once more with its projections and experts rounded to fewer bits: fp8 (a\n"
    "scale for each row), mxfp4, q8 and q4 (integers in groups of 32). The result is a directory\n"
    "(compressed-tensors) or, where --out ends in .gguf, a GGUF file (mxfp4, Q8_0, Q4_0).\n"
    "Embedding, head and norms stay as they are. Tells the error of each tensor; with\n"
    "prompts also how often the written model agrees with the original's greedy choice, and\n"
    "with a draft, or of one, the accept lengths of both.";

static const struct {
    const char *name;
    enum sv_quant_code code;
} formats[] = {
    {"fp8", SV_CODE_F8}, {"mxfp4", SV_CODE_MXFP4}, {"q8", SV_CODE_INT8}, {"q4", SV_CODE_INT4}};

/* A line of the report: a matrix, or all experts' of a layer. */
struct line {
    char name[128];
    struct sv_quantized sum;
    int32_t n;
};

struct report {
    struct line *lines;
    int32_t n, cap;
    struct sv_cli_progress progress;
};

static struct line *line_of(struct report *r, const char *name)
{
    static const char mark[] = ".experts.";
    const char *at = strstr(name, mark), *rest = at ? at + sizeof mark - 1 : NULL;
    char shown[128];
    if (at)
        snprintf(shown, sizeof shown, "%.*s*%s", (int)(rest - name), name,
                 rest + strspn(rest, "0123456789"));
    else
        snprintf(shown, sizeof shown, "%s", name);
    for (int32_t i = 0; at && i < r->n; i++)
        if (!strcmp(r->lines[i].name, shown))
            return &r->lines[i];
    if (r->n == r->cap) {
        const int32_t cap = r->cap ? 2 * r->cap : 64;
        struct line *more =
            sv_realloc(r->lines, (size_t)r->cap * sizeof *more, (size_t)cap * sizeof *more);
        if (!more)
            return NULL;
        r->lines = more;
        r->cap = cap;
    }
    struct line *l = &r->lines[r->n++];
    memset(l, 0, sizeof *l);
    memcpy(l->name, shown, sizeof shown);
    return l;
}

static double relative(const struct sv_quantized *q)
{
    return q->size > 0 ? sqrt(q->error / q->size) : 0;
}

static int note(void *user, const struct sv_quantized *t)
{
    struct report *r = user;
    if (sv_cli_interrupted())
        return SV_ECANCELED;
    struct line *l = line_of(r, t->name);
    if (!l)
        return SV_ENOMEM;
    l->n++;
    l->sum.rows = t->rows;
    l->sum.cols = t->cols;
    l->sum.n_bytes += t->n_bytes;
    l->sum.n_bytes_before += t->n_bytes_before;
    l->sum.error += t->error;
    l->sum.size += t->size;
    l->sum.largest = fmax(l->sum.largest, t->largest);
    r->progress.done++;
    sv_cli_progress_update(&r->progress);
    return SV_OK;
}

static void add_row(struct sv_cli_table *table, const struct line *l)
{
    const double n_weights = (double)l->n * (double)l->sum.rows * (double)l->sum.cols;
    char times[24] = "";
    if (l->n > 1)
        snprintf(times, sizeof times, "%d x ", l->n);
    sv_cli_table_add(table, "%s", l->name);
    sv_cli_table_add(table, "%s%lld x %lld", times, (long long)l->sum.rows, (long long)l->sum.cols);
    sv_cli_table_add(table, "%.5f", relative(&l->sum));
    sv_cli_table_add(table, "%.3g", l->sum.largest);
    sv_cli_table_add(table, "%.2f", 8 * (double)l->sum.n_bytes / n_weights);
}

static void print_report(const struct report *r)
{
    struct sv_cli_table table;
    struct sv_buf b;
    const struct line *worst = NULL;
    int64_t n_bytes = 0, before = 0;
    char n1[24], n2[24];
    sv_cli_table_init(&table);
    sv_cli_table_column(&table, "tensor", false);
    sv_cli_table_column(&table, "shape", true);
    sv_cli_table_column(&table, "relative error", true);
    sv_cli_table_column(&table, "largest", true);
    sv_cli_table_column(&table, "bits", true);
    for (int32_t i = 0; i < r->n; i++) {
        const struct line *l = &r->lines[i];
        add_row(&table, l);
        n_bytes += l->sum.n_bytes;
        before += l->sum.n_bytes_before;
        if (!worst || relative(&l->sum) > relative(&worst->sum))
            worst = l;
    }
    sv_buf_init(&b);
    sv_cli_table_write(&table, "md", &b);
    if (worst && !b.failed)
        printf("%s\n%lld tensors, %s instead of %s; the largest relative error is %.5f, of %s\n",
               b.data, (long long)r->progress.done, sv_cli_bytes(n_bytes, n1),
               sv_cli_bytes(before, n2), relative(&worst->sum), worst->name);
    fflush(stdout);
    sv_buf_fini(&b);
    sv_cli_table_fini(&table);
}

/* What a GGUF file leaves out. */
static void report_missing_towers(const char *dir, const char *out)
{
    struct sv_config *cfg = sv_calloc(1, sizeof *cfg);
    const size_t n = strlen(out);
    if (cfg && n > 5 && !strcmp(out + n - 5, ".gguf") && !sv_dir_is_draft(dir) &&
        !sv_config_load(cfg, dir, NULL) && cfg->vision.depth)
        printf("the vision tower is not in the file: GGUF keeps it in one of its own\n");
    sv_free(cfg);
}

static int write_model(const char *dir, enum sv_quant_code code, const char *out)
{
    struct report r = {0};
    struct sv_err err = {0};
    sv_cli_progress_begin(&r.progress, stderr, "round", "tensors", 0);
    const int rc = sv_quantize_model(dir, code, out, note, &r, &err);
    sv_cli_progress_clear(&r.progress);
    if (!rc) {
        print_report(&r);
        report_missing_towers(dir, out);
    }
    sv_free(r.lines);
    if (rc == SV_ECANCELED)
        return sv_cli_fail("interrupted; nothing was written");
    return rc ? sv_cli_fail("%s", err.msg[0] ? err.msg : "out of memory") : SV_CLI_OK;
}

/* ---------------------------------------------------------------- on prompts */

/* One engine's answers to all prompts. */
struct arm {
    struct sv_cli_answer *a; /* (n) */
    struct sv_cli_accept accept;
};

static int answer_all(struct arm *arm, const struct sv_engine_options *eo,
                      const struct sv_cli_prompts *p, struct sv_err *err)
{
    struct sv_engine *e = NULL;
    int code = sv_cli_engine_open(&e, eo);
    if (code != SV_CLI_OK)
        return code;
    arm->a = sv_calloc((size_t)p->n, sizeof *arm->a);
    int rc = arm->a ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < p->n && !rc; i++) {
        sv_cli_answer_init(&arm->a[i], e);
        rc = sv_cli_answer_run(e, &p->q[i].r, 1, 1, &arm->a[i], err);
        if (!rc && arm->a[i].finish == SV_FINISH_ERROR)
            rc = sv_fail(err, SV_EINVAL, i, "prompt %d: %s", i + 1, arm->a[i].message);
        if (!rc)
            sv_cli_accept_add(&arm->accept, &arm->a[i]);
    }
    sv_close_engine(e);
    return rc ? sv_cli_fail("%s", err->msg) : SV_CLI_OK;
}

static void compare(const struct arm *was, const struct arm *now, int32_t n, bool drafted)
{
    int64_t n_tokens = 0, n_same = 0;
    int32_t n_whole = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t at = sv_cli_first_difference(&was->a[i], &now->a[i]);
        n_tokens += sv_cli_answer_n(&was->a[i]);
        n_same += at < 0 ? sv_cli_answer_n(&was->a[i]) : at;
        n_whole += at < 0;
    }
    printf("greedy: %d of %d answers are the same; %lld of %lld tokens precede the first that "
           "differs\n",
           n_whole, n, (long long)n_same, (long long)n_tokens);
    if (drafted)
        printf("accept length: %.2f, of the original %.2f\n", sv_cli_accept_mean(&now->accept),
               sv_cli_accept_mean(&was->accept));
}

/* eo: the original's options; out replaces its directory. */
static int on_prompts(const struct sv_engine_options *eo, bool of_draft, const char *out,
                      const char *path, const struct sv_request *defaults)
{
    struct sv_engine_options converted = *eo;
    struct sv_cli_prompts prompts = {0};
    struct sv_config *cfg = sv_calloc(1, sizeof *cfg);
    struct arm arm[2] = {{0}};
    struct sv_err err = {0};
    int code = SV_CLI_OK;
    int rc = cfg ? sv_config_load(cfg, eo->target_dir, &err)
                 : sv_fail(&err, SV_ENOMEM, -1, "out of memory");

    if (!rc)
        rc = sv_cli_prompts_load(&prompts, path, eo->target_dir, defaults, cfg->vocab_size, &err);
    if (rc)
        code = sv_cli_fail("%s", err.msg);
    *(of_draft ? &converted.draft_dir : &converted.target_dir) = out;
    for (int i = 0; i < 2 && code == SV_CLI_OK; i++)
        code = answer_all(&arm[i], i ? &converted : eo, &prompts, &err);
    if (code == SV_CLI_OK)
        compare(&arm[0], &arm[1], prompts.n, eo->draft_dir != NULL);
    for (int i = 0; i < 2; i++) {
        for (int32_t k = 0; arm[i].a && k < prompts.n; k++)
            sv_cli_answer_fini(&arm[i].a[k]);
        sv_free(arm[i].a);
    }
    sv_cli_prompts_fini(&prompts);
    sv_free(cfg);
    return code;
}

/* ---------------------------------------------------------------- */

int sv_cli_convert(int argc, char **argv)
{
    struct sv_cli_model m = sv_cli_model_default();
    struct sv_cli_sampling s = sv_cli_sampling_default();
    struct sv_cli_opts opts = {.n = 0};
    struct sv_engine_options eo;
    struct sv_request defaults = sv_default_request(NULL);
    const char *to = NULL, *out = NULL, *prompts = NULL, *target = NULL;
    char target_dir[SV_CLI_MAX_DIR];
    struct sv_err err;
    const char *words[sizeof formats / sizeof formats[0] + 1] = {0};
    enum sv_quant_code code = SV_CODE_NONE;
    int rc;

    s.max_tokens = 96;
    sv_cli_opt(&opts, "to", 0, SV_OPT_STRING, &to, "FORMAT", "fp8, mxfp4, q8 or q4");
    sv_cli_opt(&opts, "out", 'o', SV_OPT_STRING, &out, "PATH",
               "directory or NAME.gguf that is written; must not exist");
    sv_cli_opt(&opts, "prompts", 0, SV_OPT_STRING, &prompts, "FILE",
               "answer these with both models and compare");
    sv_cli_opt(&opts, "target", 0, SV_OPT_STRING, &target, "DIR",
               "the model that answers where a draft is written");
    sv_cli_model_rows(&opts, &m);
    sv_cli_opt(&opts, "max-tokens", 'n', SV_OPT_INT, &s.max_tokens, "N",
               "length of these answers (default 96)");
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        words[i] = formats[i].name;
    rc = sv_cli_parse(&opts, "convert", usage, argc, argv, 0, NULL);
    if (rc < 0)
        rc = sv_cli_model_options(&m, "convert", &eo);
    if (rc < 0 && !to)
        rc = sv_cli_usage("convert", "option --to is missing: which format?");
    if (rc < 0)
        rc = sv_cli_one_of("convert", "to", to, words);
    if (rc < 0 && (!out || !*out))
        rc = sv_cli_usage("convert", "option --out is missing: which directory?");
    if (rc < 0 && eo.draft_dir && !prompts)
        rc = sv_cli_usage("convert", "option --draft needs --prompts");
    const bool of_draft = rc < 0 && sv_dir_is_draft(eo.target_dir);
    if (rc < 0 && of_draft && eo.draft_dir)
        rc = sv_cli_usage("convert", "option --draft is for targets, and what -m names is a draft");
    if (rc < 0 && of_draft && prompts && !target)
        rc = sv_cli_usage("convert", "option --target is missing: which model is it a draft of?");
    if (rc < 0 && target && !(of_draft && prompts))
        rc = sv_cli_usage("convert", "option --target needs a draft and --prompts");
    if (rc < 0)
        rc = sv_cli_sampling_apply(&s, "convert", &defaults);
    if (rc < 0 && target && sv_model_dir(target, target_dir, sizeof target_dir, &err))
        rc = sv_cli_fail("%s", err.msg);
    if (rc >= 0)
        return rc;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (!strcmp(to, formats[i].name))
            code = formats[i].code;
    eo.auto_width = false; /* acceptance at every position of the block */
    sv_cli_catch_interrupt();
    rc = write_model(eo.target_dir, code, out);
    if (of_draft) {
        eo.draft_dir = eo.target_dir;
        eo.target_dir = target_dir;
    }
    return rc == SV_CLI_OK && prompts ? on_prompts(&eo, of_draft, out, prompts, &defaults) : rc;
}
