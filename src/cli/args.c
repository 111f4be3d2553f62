/*
 * args.c - the command lines: option rows that several commands share, range checks, messages.
 *
 * Called by every command. Must not: open anything but an engine, or decide what a command does.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "sample/sample.h"
#include "load/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- messages */

static void say(const char *fmt, va_list ap)
{
    fflush(stdout);
    fputs("salvo: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void sv_cli_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

int sv_cli_fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    return SV_CLI_FAIL;
}

int sv_cli_usage(const char *command, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
    fprintf(stderr, "Try '%s%s --help'.\n", strncmp(command, "salvo", 5) == 0 ? "" : "salvo ",
            command);
    return SV_CLI_USAGE;
}

/* ---------------------------------------------------------------- tables of options */

void sv_cli_opt(struct sv_cli_opts *o, const char *name, char letter, enum sv_opt_kind kind,
                void *value, const char *arg, const char *help)
{
    SV_REQUIRE(o->n < SV_CLI_MAX_OPTS);
    o->row[o->n++] = (struct sv_opt){name, letter, kind, value, arg, help};
    o->row[o->n] = (struct sv_opt){0};
}

/* An option of servers in the command line of another command. */
static bool wants_replicas(const struct sv_cli_opts *o, int argc, char **argv)
{
    bool wants = false;

    for (int i = 0; i < o->n; i++)
        if (strcmp(o->row[i].name, "dp") == 0)
            return false;
    for (int i = 1; i < argc; i++)
        wants |= strcmp(argv[i], "--dp") == 0 || strncmp(argv[i], "--dp=", 5) == 0;
    return wants;
}

int sv_cli_parse(const struct sv_cli_opts *o, const char *command, const char *usage, int argc,
                 char **argv, int max_pos, int *n_pos)
{
    struct sv_err err = {0};
    const char *theirs, *ours = sv_cli_other_name(o, argc, argv, &theirs);
    int n, status = sv_opt_parse(o->row, usage, argc, argv, &n, &err);

    if (status == 1)
        return SV_CLI_OK;
    if (status != SV_OK && ours)
        return sv_cli_usage(command, "unknown option --%s; here it is --%s", theirs, ours);
    if (status != SV_OK && wants_replicas(o, argc, argv))
        return sv_cli_usage(command, "option --dp: a server has replicas (salvo serve)");
    if (status != SV_OK)
        return sv_cli_usage(command, "%s", err.msg);
    if (n > max_pos && o->n && strcmp(o->row[0].name, "model") == 0)
        return sv_cli_usage(command, "unexpected argument '%s' (a model is given with -m)",
                            argv[max_pos + 1]);
    if (n > max_pos)
        return sv_cli_usage(command, "unexpected argument '%s'", argv[max_pos + 1]);
    if (n_pos)
        *n_pos = n;
    return -1;
}

int sv_cli_in_range(const char *command, const char *name, int64_t v, int64_t lo, int64_t hi)
{
    if (v >= lo && v <= hi)
        return -1;
    return sv_cli_usage(command, "option --%s: %lld is not in [%lld, %lld]", name, (long long)v,
                        (long long)lo, (long long)hi);
}

int sv_cli_num_in_range(const char *command, const char *name, double v, double lo, double hi)
{
    if (v >= lo && v <= hi)
        return -1;
    return sv_cli_usage(command, "option --%s: %g is not in [%g, %g]", name, v, lo, hi);
}

int sv_cli_one_of(const char *command, const char *name, const char *value,
                  const char *const *words)
{
    char list[128] = "";

    for (int i = 0; words[i]; i++) {
        if (!value || strcmp(value, words[i]) == 0)
            return -1;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", words[i]);
    }
    return sv_cli_usage(command, "option --%s: '%s' is not one of %s", name, value, list);
}

bool sv_cli_next_item(const char **text, char *item, size_t size)
{
    if (!*text)
        return false;
    size_t n = strcspn(*text, ",");
    snprintf(item, size, "%.*s", (int)(n < size ? n : size - 1), *text);
    *text = (*text)[n] ? *text + n + 1 : NULL;
    return true;
}

int sv_cli_can_write(const char *command, const char *name, const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    struct stat st;
    struct sv_buf dir;
    int code = -1;

    if (!path || strcmp(path, "-") == 0)
        return -1;
    if (!*path) /* an unset variable in a script */
        return sv_cli_usage(command, "option --%s: the file's name is empty", name);
    sv_buf_init(&dir);
    sv_buf_append(&dir, slash ? path : ".", slash ? (size_t)(slash - path) + 1 : 1);
    const bool there = stat(path, &st) == 0;
    if (dir.failed)
        code = sv_cli_fail("out of memory");
    else if (there && S_ISDIR(st.st_mode))
        code = sv_cli_fail("%s: %s", path, strerror(EISDIR));
    else if (access(there ? path : dir.data, W_OK) != 0)
        code = sv_cli_fail("%s: %s", path, strerror(errno));
    sv_buf_fini(&dir);
    return code;
}

const char *const sv_cli_colours[] = {"auto", "always", "never", NULL};

/* ---------------------------------------------------------------- which engine */

struct sv_cli_model sv_cli_model_default(void)
{
    return (struct sv_cli_model){.dtype = "auto", .width = "auto", .dp = 1, .device_timeout = 60};
}

void sv_cli_record_row(struct sv_cli_opts *o, struct sv_cli_model *m)
{
    sv_cli_opt(o, "record-plan", 0, SV_OPT_STRING, &m->record_plan, "FILE",
               "write all plans and uploads of the engine, which `salvo-bench replay FILE` runs "
               "once more");
}

void sv_cli_model_rows(struct sv_cli_opts *o, struct sv_cli_model *m)
{
    sv_cli_opt(o, "model", 'm', SV_OPT_STRING, &m->target, "DIR",
               "target model: a Hugging Face directory or a GGUF file");
    sv_cli_opt(o, "draft", 'd', SV_OPT_STRING, &m->draft, "DIR", "DFlash draft of that target");
    sv_cli_opt(o, "dtype", 0, SV_OPT_STRING, &m->dtype, "TYPE",
               "f32, bf16 or auto (as the weights are stored)");
    sv_cli_opt(o, "activations", 0, SV_OPT_STRING, &m->activations, "TYPE",
               "what products with quantized weights take of activations: exact, or rounded to 8 "
               "bits, for speed (another text): int8 on the CPU, fp8 on GPUs");
    sv_cli_opt(o, "kv-dtype", 0, SV_OPT_STRING, &m->kv_dtype, "TYPE",
               "cached keys and values: auto (as --dtype) or fp8 (e4m3: half the memory of bf16, "
               "another text)");
    sv_cli_opt(o, "draft-kv-dtype", 0, SV_OPT_STRING, &m->draft_kv_dtype, "TYPE",
               "the same of the draft's: other drafts, the same text");
    sv_cli_opt(o, "device", 0, SV_OPT_STRING, &m->device, "NAME",
               "cpu, cuda, or hip (AMD: never run on a card); default: a CUDA GPU if there is one");
    sv_cli_opt(o, "gpu", 0, SV_OPT_INT, &m->gpu, "N", "which GPU, counted from 0");
    sv_cli_opt(
        o, "tp", 0, SV_OPT_INT, &m->tp, "N",
        "tensor parallel: divide the model among N ranks, on as many GPUs from --gpu on, or on the "
        "CPU threads of this process (default 1)");
    sv_cli_opt(o, "ep", 0, SV_OPT_FLAG, &m->ep, NULL,
               "expert parallel: each rank of --tp has some of the experts, instead of a part of "
               "every expert");
    sv_cli_opt(
        o, "dp-attention", 0, SV_OPT_FLAG, &m->dp_attention, NULL,
        "each rank of --tp has all heads, and keys and values of some sequences alone, instead "
        "of some heads of all sequences");
    sv_cli_opt(o, "kernels", 0, SV_OPT_STRING, &m->kernels, "SET",
               "GPUs: auto or portable (no instructions of one chip alone)");
    sv_cli_opt(
        o, "compress-weights", 0, SV_OPT_STRING, &m->wcomp, "WHEN",
        "lossless weights in fewer bits, for speed: auto (where this machine gains; GPUs: a copy, "
        "where it leaves a quarter of the memory free), on or off");
    sv_cli_opt(
        o, "draft-quant", 0, SV_OPT_STRING, &m->draft_quant, "WHEN",
        "the draft's weights in 8 bits, for speed: the same text, drafts as good within a percent "
        "or so: auto (where this machine can), on or off");
    sv_cli_opt(
        o, "screen-head", 0, SV_OPT_STRING, &m->screen_head, "WHEN",
        "the CPU's greedy choice from exact bounds first, which takes half the head's memory "
        "again; the same text: auto (where this machine gains), on or off");
    sv_cli_opt(o, "no-graphs", 0, SV_OPT_FLAG, &m->no_graphs, NULL,
               "GPUs: launch every kernel of a step by itself");
    sv_cli_opt(
        o, "device-timeout", 0, SV_OPT_INT, &m->device_timeout, "S",
        "a GPU that gets no further, or a rank of --tp that does not answer, for so long has "
        "failed, 0 = wait for ever (default 60)");
    sv_cli_opt(
        o, "gpu-memory-utilization", 0, SV_OPT_FLOAT, &m->gpu_memory, "SHARE",
        "GPUs: use this share of the memory, weights included (default: what is wanted, at most "
        "0.9)");
    sv_cli_opt(o, "copy-weights", 0, SV_OPT_FLAG, &m->copy_weights, NULL,
               "the CPU: read the weights into memory, so that their files may be overwritten");
    sv_cli_opt(o, "isa", 0, SV_OPT_STRING, &m->isa, "NAME",
               "the CPU's kernels: auto, plain, avx2, avx512 or amx");
    sv_cli_opt(o, "threads", 't', SV_OPT_INT, &m->threads, "N", "threads, 0 = all processors");
    sv_cli_opt(o, "ctx", 'c', SV_OPT_INT, &m->context, "N",
               "longest sequence in tokens, 0 = the model's, at most 8192");
    sv_cli_opt(o, "page-size", 0, SV_OPT_INT, &m->page_size, "N",
               "positions in a cache page, 0 = 16");
    sv_cli_opt(o, "chunk", 0, SV_OPT_INT, &m->chunk, "N",
               "prompt tokens in a step, 0 = 512, on a GPU 2048");
    sv_cli_opt(o, "spec-width", 'w', SV_OPT_STRING, &m->width, "W",
               "tokens verified in a step: auto (default; never slower than plain), off, or a "
               "number, 0 = the draft's block");
    sv_cli_opt(o, "width", 0, SV_OPT_STRING, &m->width, "W", "the same as --spec-width");
}

/* auto, off or a number. Auto without a draft is plain decoding. */
static int width_option(const char *command, const char *text, struct sv_engine_options *o)
{
    char *end;
    long v = strtol(text, &end, 10);

    o->auto_width = strcmp(text, "auto") == 0;
    o->width = strcmp(text, "off") == 0 ? 1 : 0;
    if (o->auto_width || o->width)
        return -1;
    if (end == text || *end || v < 0 || v > SV_MAX_BLOCK)
        return sv_cli_usage(command,
                            "option --spec-width: '%s' is not auto, off or a number in [0, %d]",
                            text, SV_MAX_BLOCK);
    o->width = (int32_t)v;
    return -1;
}

/* Finds the model directories, in *m and *o. */
static int find_dirs(struct sv_cli_model *m, struct sv_engine_options *o)
{
    struct sv_err err = {0};

    if (sv_model_dir(m->target, m->dirs[0], sizeof m->dirs[0], &err) ||
        (m->draft && sv_model_dir(m->draft, m->dirs[1], sizeof m->dirs[1], &err)))
        return sv_cli_fail("%s", err.msg);
    o->target_dir = m->dirs[0];
    o->draft_dir = m->draft ? m->dirs[1] : NULL;
    return -1;
}

/* The index of an option's value in the list, which was checked; 0, auto, when absent. */
static int place_of(const char *value, const char *const *words)
{
    int i = 0;
    while (value && strcmp(value, words[i]))
        i++;
    return i;
}

/* Values of options, in the order of their enums. */
static const char *const when[] = {"auto", "on", "off", NULL};
static const char *const kernels[] = {"auto", "portable", NULL};
static const char *const dtypes[] = {"auto", "f32", "bf16", NULL};
static const char *const activations[] = {"exact", "int8", "fp8", NULL};
static const char *const kv_dtypes[] = {"auto", "fp8", NULL};
static const char *const isas[] = {"auto", "plain", "avx2", "avx512", "amx", NULL};

/* Values that are words. */
static int check_choices(const struct sv_cli_model *m, const char *command)
{
    const struct {
        const char *name, *value;
        const char *const *words;
    } choices[] = {{"dtype", m->dtype, dtypes},
                   {"kernels", m->kernels, kernels},
                   {"compress-weights", m->wcomp, when},
                   {"draft-quant", m->draft_quant, when},
                   {"screen-head", m->screen_head, when},
                   {"isa", m->isa, isas},
                   {"activations", m->activations, activations},
                   {"kv-dtype", m->kv_dtype, kv_dtypes},
                   {"draft-kv-dtype", m->draft_kv_dtype, kv_dtypes}};
    int code = -1;

    for (size_t i = 0; i < sizeof choices / sizeof choices[0] && code < 0; i++)
        code = sv_cli_one_of(command, choices[i].name, choices[i].value, choices[i].words);
    return code;
}

static int check_numbers(const struct sv_cli_model *m, const char *command)
{
    const struct {
        const char *name;
        int64_t v, most;
    } numbers[] = {{"threads", m->threads, 1024},
                   {"ctx", m->context, 1 << 24},
                   {"page-size", m->page_size, 1024},
                   {"chunk", m->chunk, 1 << 16},
                   {"gpu", m->gpu, 255},
                   {"tp", m->tp, 16},
                   {"device-timeout", m->device_timeout, 86400}};
    int code = sv_cli_num_in_range(command, "gpu-memory-utilization", m->gpu_memory, 0, 1);

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && code < 0; i++)
        code = sv_cli_in_range(command, numbers[i].name, numbers[i].v, 0, numbers[i].most);
    return code;
}

/* Options that need others. */
static int check_together(const struct sv_cli_model *m, const char *command, int32_t width)
{
    if (m->ep && m->tp < 2)
        return sv_cli_usage(command, "option --ep: experts are divided among the ranks of --tp");
    if (m->dp_attention && m->tp < 2)
        return sv_cli_usage(command,
                            "option --dp-attention: sequences are divided among the ranks of --tp");
    if (width > 1 && !m->draft)
        return sv_cli_usage(command, "option --spec-width: %d needs a draft (-d)", width);
    return -1;
}

static struct sv_tuning tuning_of(const struct sv_cli_model *m)
{
    return (struct sv_tuning){
        .isa = (enum sv_isa)place_of(m->isa, isas),
        .kernels = (enum sv_kernels)place_of(m->kernels, kernels),
        .compress_weights = (enum sv_toggle)place_of(m->wcomp, when),
        .draft_quant = (enum sv_toggle)place_of(m->draft_quant, when),
        .screen_head = (enum sv_toggle)place_of(m->screen_head, when),
        .activations = (enum sv_activations)place_of(m->activations, activations),
    };
}

int sv_cli_model_options(struct sv_cli_model *m, const char *command, struct sv_engine_options *out)
{
    struct sv_engine_options o = sv_default_options();

    if (!m->target)
        return sv_cli_usage(command, "option --model (-m) is missing: which model?");
    if (!*m->target || (m->draft && !*m->draft)) /* an unset variable in a script */
        return sv_cli_usage(command, "option --%s: the directory's name is empty",
                            *m->target ? "draft" : "model");
    int code = check_choices(m, command);
    if (code < 0)
        code = check_numbers(m, command);
    if (code < 0)
        code = width_option(command, m->width, &o);
    if (code < 0)
        code = check_together(m, command, o.width);
    if (code < 0)
        code = find_dirs(m, &o);
    if (code >= 0)
        return code;
    /* Loading a kernel's code when it is first launched may wait for the kernels of a GPU, and
     * these for those of another rank. */
    if (m->tp > 1)
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    o.dtype = (enum sv_data_type)place_of(m->dtype, dtypes);
    o.kv_dtype = (enum sv_kv_type)place_of(m->kv_dtype, kv_dtypes);
    o.draft_kv_dtype = (enum sv_kv_type)place_of(m->draft_kv_dtype, kv_dtypes);
    o.device = m->device;
    o.tuning = tuning_of(m);
    o.gpu = (int32_t)m->gpu;
    o.tp = (int32_t)m->tp;
    o.ep = m->ep;
    o.dp_attention = m->dp_attention;
    o.record_plan = m->record_plan;
    o.no_graphs = m->no_graphs;
    o.copy_weights = m->copy_weights;
    o.device_timeout = m->device_timeout ? (int32_t)m->device_timeout : -1;
    o.gpu_memory = m->gpu_memory;
    o.n_threads = (int32_t)m->threads;
    o.max_sequences = (int32_t)m->batch;
    o.context = (int32_t)m->context;
    o.page_size = (int32_t)m->page_size;
    o.prefill_chunk = (int32_t)m->chunk;
    *out = o;
    return sv_cli_follow(command, m, &o);
}

int sv_cli_engine_open(struct sv_engine **e, const struct sv_engine_options *o)
{
    char msg[512] = "";
    int status = sv_open_engine(e, o, msg, sizeof msg);

    if (status == SV_OK)
        return SV_CLI_OK;
    return sv_cli_fail("%s", msg[0] ? msg : sv_code_name(status));
}

/* ---------------------------------------------------------------- how to choose tokens */

struct sv_cli_sampling sv_cli_sampling_default(void)
{
    return (struct sv_cli_sampling){.top_p = 1, .max_tokens = 512};
}

void sv_cli_sampling_rows(struct sv_cli_opts *o, struct sv_cli_sampling *s)
{
    sv_cli_opt(o, "max-tokens", 'n', SV_OPT_INT, &s->max_tokens, "N",
               s->max_tokens == SV_CLI_MEASURED_TOKENS
                   ? "longest answer in tokens, 0 = up to the context's end (default 160)"
                   : "longest answer in tokens, 0 = up to the context's end (default 512)");
    sv_cli_opt(o, "temperature", 'T', SV_OPT_FLOAT, &s->temperature, "X", "0 = greedy (default)");
    sv_cli_opt(o, "top-k", 0, SV_OPT_INT, &s->top_k, "N", "only the N likeliest tokens, 0 = all");
    sv_cli_opt(o, "top-p", 0, SV_OPT_FLOAT, &s->top_p, "X",
               "only the likeliest tokens that hold X of the probability, 1 = all");
    sv_cli_opt(o, "min-p", 0, SV_OPT_FLOAT, &s->min_p, "X",
               "only tokens at least X as likely as the likeliest, 0 = all");
    sv_cli_opt(o, "seed", 's', SV_OPT_INT, &s->seed, "N", "same seed, same answer (default 0)");
    sv_cli_opt(o, "stop", 0, SV_OPT_STRING, &s->stop[0], "TEXT",
               "end the answer before this text; may be given more than once");
    sv_cli_opt(o, "presence-penalty", 0, SV_OPT_FLOAT, &s->presence, "X",
               "off the logits of tokens that occur in the answer, -2 to 2");
    sv_cli_opt(o, "frequency-penalty", 0, SV_OPT_FLOAT, &s->frequency, "X",
               "the same for each time they occur");
    sv_cli_opt(o, "repetition-penalty", 0, SV_OPT_FLOAT, &s->repetition, "X",
               "divides positive logits of tokens of prompt and answer, 1 = off");
    sv_cli_opt(o, "min-tokens", 0, SV_OPT_INT, &s->min_tokens, "N",
               "nothing ends the answer before these many");
    sv_cli_opt(o, "ignore-eos", 0, SV_OPT_FLAG, &s->ignore_eos, NULL,
               "go on after the model's end token");
}

int sv_cli_take_list(const struct sv_cli_list *l, const char *command, int *argc, char **argv)
{
    const size_t n_name = strlen(l->name);
    int n = 1;

    for (int i = 1; i < *argc; i++) {
        const char *name = strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
        const bool named = strncmp(name, l->name, n_name) == 0;
        const char *value = NULL;
        if (strcmp(argv[i], "--") == 0) {
            while (i < *argc)
                argv[n++] = argv[i++];
            break;
        }
        if (named && name[n_name] == '=') {
            value = name + n_name + 1;
        } else if (named && !name[n_name]) {
            if (i + 1 >= *argc)
                return sv_cli_usage(command, "option --%s needs a value (%s)", l->name, l->arg);
            value = argv[++i];
        } else {
            argv[n++] = argv[i];
            continue;
        }
        if (!*value)
            return sv_cli_usage(command, "option --%s: the %s is empty", l->name, l->what);
        if (*l->n == l->most)
            return sv_cli_usage(command, "option --%s: at most %d of them", l->name, l->most);
        l->values[(*l->n)++] = value;
    }
    *argc = n;
    argv[n] = NULL;
    return -1;
}

int sv_cli_take_stops(struct sv_cli_sampling *s, const char *command, int *argc, char **argv)
{
    const struct sv_cli_list list = {"stop", "TEXT", "text", s->stop, SV_CLI_MAX_STOP, &s->n_stop};

    return sv_cli_take_list(&list, command, argc, argv);
}

int sv_cli_sampling_apply(const struct sv_cli_sampling *s, const char *command,
                          struct sv_request *r)
{
    const struct {
        const char *name;
        double v, lo, hi;
    } reals[] = {{"temperature", s->temperature, SV_RANGE_TEMPERATURE},
                 {"top-p", s->top_p, SV_RANGE_TOP_P},
                 {"min-p", s->min_p, SV_RANGE_MIN_P},
                 {"presence-penalty", s->presence, SV_RANGE_PENALTY},
                 {"frequency-penalty", s->frequency, SV_RANGE_PENALTY},
                 {"repetition-penalty", s->repetition, SV_RANGE_REPETITION}};
    const struct {
        const char *name;
        int64_t v, most;
    } numbers[] = {{"top-k", s->top_k, INT32_MAX},
                   {"seed", s->seed, INT64_MAX},
                   {"max-tokens", s->max_tokens, INT32_MAX},
                   {"min-tokens", s->min_tokens, INT32_MAX}};
    int code = -1;

    for (size_t i = 0; i < sizeof reals / sizeof reals[0] && code < 0; i++)
        code = sv_cli_num_in_range(command, reals[i].name, reals[i].v, reals[i].lo, reals[i].hi);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && code < 0; i++)
        code = sv_cli_in_range(command, numbers[i].name, numbers[i].v, 0, numbers[i].most);
    if (code < 0 && s->top_p == 0)
        code = sv_cli_usage(command, "option --top-p: 0 would leave no token; 1 is off");
    if (code >= 0)
        return code;
    r->presence_penalty = s->presence;
    r->frequency_penalty = s->frequency;
    r->repetition_penalty = s->repetition;
    r->min_tokens = (int32_t)s->min_tokens;
    r->temperature = s->temperature;
    r->top_p = s->top_p;
    r->min_p = s->min_p;
    r->top_k = s->top_k;
    r->seed = (uint64_t)s->seed;
    r->max_tokens = (int32_t)s->max_tokens;
    r->ignore_eos = s->ignore_eos;
    r->stop = s->n_stop ? s->stop : NULL;
    r->n_stop = s->n_stop;
    return -1;
}
