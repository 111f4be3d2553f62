/*
 * measure.c - the parts of speed measurements: samples, facts about the machine, records.
 *
 * Called by bench, check and demo. Must not: leave out the limit when it was measured, or the
 * commit.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "cli/measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- where results go */

static int to_stdout(const struct sv_buf *b)
{
    const bool ok = fwrite(b->data, 1, b->len, stdout) == b->len && fflush(stdout) == 0;

    return ok ? SV_CLI_OK : sv_cli_fail("standard output: cannot be written");
}

int sv_cli_deliver(const struct sv_buf *b, const char *out)
{
    struct sv_err err = {0};

    if (b->failed)
        return sv_cli_fail("out of memory");
    if (!out || strcmp(out, "-") == 0)
        return to_stdout(b);
    if (sv_file_write(out, b->data, b->len, &err) == SV_OK)
        return SV_CLI_OK;
    sv_cli_say("%s; what was measured follows on standard output", err.msg);
    to_stdout(b);
    return SV_CLI_FAIL;
}

/* ---------------------------------------------------------------- samples */

void sv_cli_samples_add(struct sv_cli_samples *s, double v)
{
    if (s->n < SV_CLI_MAX_SAMPLES)
        s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sv_cli_samples_median(const struct sv_cli_samples *s)
{
    double v[SV_CLI_MAX_SAMPLES];

    if (!s->n)
        return 0;
    memcpy(v, s->v, (size_t)s->n * sizeof *v);
    qsort(v, (size_t)s->n, sizeof *v, by_value);
    return s->n % 2 ? v[s->n / 2] : (v[s->n / 2 - 1] + v[s->n / 2]) / 2;
}

static double quantile_of(const struct sv_cli_samples *s, double share)
{
    double v[SV_CLI_MAX_SAMPLES];

    if (!s->n)
        return 0;
    memcpy(v, s->v, (size_t)s->n * sizeof *v);
    qsort(v, (size_t)s->n, sizeof *v, by_value);
    return v[(int)(share * (s->n - 1) + 0.5)];
}

double sv_cli_samples_min(const struct sv_cli_samples *s)
{
    double best = s->n ? s->v[0] : 0;
    for (int i = 1; i < s->n; i++)
        best = s->v[i] < best ? s->v[i] : best;
    return best;
}

double sv_cli_samples_max(const struct sv_cli_samples *s)
{
    double best = s->n ? s->v[0] : 0;
    for (int i = 1; i < s->n; i++)
        best = s->v[i] > best ? s->v[i] : best;
    return best;
}

/* ---------------------------------------------------------------- the machine */

#ifndef SALVO_COMMIT
/* Built without one: ask git about the checkout that the program lies in. */
static void read_commit(char *out, size_t size)
{
    char exe[1024], command[1200];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    FILE *git;

    snprintf(out, size, "unknown");
    if (n <= 0)
        return;
    exe[n] = 0;
    if (strchr(exe, '\'') || !strrchr(exe, '/'))
        return;
    *strrchr(exe, '/') = 0;
    snprintf(command, sizeof command, "git -C '%s' describe --always --dirty 2>/dev/null", exe);
    git = popen(command, "r");
    if (!git)
        return;
    if (fgets(out, (int)size, git))
        out[strcspn(out, "\n")] = 0;
    else
        snprintf(out, size, "unknown");
    pclose(git);
}
#else
static void read_commit(char *out, size_t size)
{
    snprintf(out, size, "%s", SALVO_COMMIT);
}
#endif

static void read_cpu(char *out, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    size_t n;

    snprintf(out, size, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, size, "%.80s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f)
        fclose(f);
    n = strlen(out);
    snprintf(out + n, size - n, " x%d", sv_cpu_count());
}

void sv_cli_machine_read(struct sv_cli_machine *m)
{
    time_t now = time(NULL);
    struct tm t;

    read_commit(m->commit, sizeof m->commit);
    read_cpu(m->cpu, sizeof m->cpu);
    m->date[0] = 0;
    if (gmtime_r(&now, &t))
        strftime(m->date, sizeof m->date, "%Y-%m-%dT%H:%M:%SZ", &t);
}

double sv_cli_bandwidth(struct sv_engine *e, int64_t n_bytes)
{
    const int64_t most = (int64_t)1 << 30, least = (int64_t)1 << 20;

    n_bytes = n_bytes > most ? most : n_bytes < least ? least : n_bytes;
    return sv_measure_bandwidth(e, (size_t)n_bytes);
}

/* ---------------------------------------------------------------- records */

void sv_cli_columns_add(struct sv_cli_table *t, const struct sv_cli_column *column, size_t n)
{
    static const struct sv_cli_column machine[] = {
        {"date", false},   {"commit", false}, {"machine", false},
        {"device", false}, {"dtype", false},  {"threads", true},
        {"model", false},  {"params", true},  {"draft_params", true}};

    for (size_t i = 0; i < sizeof machine / sizeof machine[0]; i++)
        sv_cli_table_column(t, machine[i].name, machine[i].number);
    for (size_t i = 0; i < n; i++)
        sv_cli_table_column(t, column[i].name, column[i].number);
}

void sv_cli_machine_add(struct sv_cli_table *t, const struct sv_cli_machine *m, const char *model,
                        const struct sv_engine_info *info, int32_t threads)
{
    sv_cli_table_add(t, "%s", m->date);
    sv_cli_table_add(t, "%s", m->commit);
    sv_cli_table_add(t, "%s", m->cpu);
    sv_cli_table_add(t, "%s", info->device);
    sv_cli_table_add(t, "%s", info->dtype);
    sv_cli_table_add(t, "%d", threads);
    sv_cli_table_add(t, "%s", model);
    sv_cli_table_add(t, "%lld", (long long)info->target_params);
    sv_cli_table_add(t, "%lld", (long long)info->draft_params);
}

void sv_cli_record_columns(struct sv_cli_table *t)
{
    static const struct sv_cli_column column[] = {
        {"test", false},          {"arm", false},          {"sequences", true},
        {"repeats", true},        {"tok_s_median", true},  {"tok_s_min", true},
        {"tok_s_max", true},      {"limit_gb_s", true},    {"share_of_limit", true},
        {"share_if_whole", true}, {"accept_length", true}, {"accept_histogram", false},
        {"output_hash", false},   {"to_plain", true},      {"to_plain_q1", true},
        {"to_plain_q3", true}};

    sv_cli_columns_add(t, column, sizeof column / sizeof column[0]);
}

void sv_cli_record_add(struct sv_cli_table *t, const struct sv_cli_machine *m, const char *model,
                       const struct sv_engine_info *info, int32_t threads,
                       const struct sv_cli_record *r)
{
    struct sv_buf hist;

    sv_cli_machine_add(t, m, model, info, threads);
    sv_cli_table_add(t, "%s", r->test);
    sv_cli_table_add(t, "%s", r->arm);
    sv_cli_table_add(t, "%d", r->sequences);
    sv_cli_table_add(t, "%d", r->samples->n);
    sv_cli_table_add(t, "%.2f", sv_cli_samples_median(r->samples));
    sv_cli_table_add(t, "%.2f", sv_cli_samples_min(r->samples));
    sv_cli_table_add(t, "%.2f", sv_cli_samples_max(r->samples));
    sv_cli_table_add(t, r->limit_gbs > 0 ? "%.2f" : "", r->limit_gbs);
    sv_cli_table_add(t, r->share > 0 ? "%.4f" : "", r->share);
    sv_cli_table_add(t, r->whole_share > 0 ? "%.4f" : "", r->whole_share);
    sv_cli_table_add(t, r->accept ? "%.3f" : "", r->accept ? sv_cli_accept_mean(r->accept) : 0);
    sv_buf_init(&hist);
    if (r->accept)
        sv_cli_accept_list(r->accept, &hist);
    sv_cli_table_add(t, "%s", hist.data ? hist.data : "");
    sv_buf_fini(&hist);
    if (r->hash)
        sv_cli_table_add(t, "%016llx", (unsigned long long)r->hash);
    else
        sv_cli_table_add(t, "%s", "");
    const struct sv_cli_samples *x = r->to_plain;
    sv_cli_table_add(t, x ? "%.4f" : "", x ? sv_cli_samples_median(x) : 0);
    sv_cli_table_add(t, x ? "%.4f" : "", x ? quantile_of(x, 0.25) : 0);
    sv_cli_table_add(t, x ? "%.4f" : "", x ? quantile_of(x, 0.75) : 0);
}
