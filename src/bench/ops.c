/*
 * ops.c - where the time of a step goes: phases on the host, calls on the device, and what
 * each kind of op costs inside its pass.
 *
 * Called by sim.c after a level was measured. An op's cost is reported in three ways: by itself
 * between two time stamps (too long for short ones, which overlap otherwise), as what the step
 * saves without it, and as what it takes when nothing else runs. Must not: leave a trace on a
 * device that is measured otherwise.
 */
#include "bench/sim.h"

#include <string.h>

enum { RUNS = 2 };

struct ops {
    struct sv_sim *s;
    struct sv_engine *e;
    const struct sv_sim_arm *arm;
    const struct sv_sim_profile *profile;
    struct sv_trace *trace;
    int32_t n; /* sequences */
    double us; /* a step as it is */
    double phase[SV_PHASES];
    struct sv_trace_class call[SV_TRACE_CLASSES], op[SV_TRACE_CLASSES];
    int32_t n_calls, n_ops, n_passes;
    double without[SV_TRACE_CLASSES], alone[SV_TRACE_CLASSES], empty;
    struct sv_err *err;
};

/* Microseconds a step, the least of some samples. Phases are those of the same sample. */
static int sample(struct ops *o, double *us, double *phase)
{
    const int32_t n_steps = o->s->o->steps;
    *us = 0;
    for (int k = 0; k <= RUNS; k++) { /* the first one captures */
        struct sv_sim_row row = {.n_tokens = 0};
        int64_t before[SV_PHASES];
        double rate;
        memcpy(before, o->e->phase_ns, sizeof before);
        int rc = sv_sim_sample(o->s, o->n, o->arm, o->profile, 0, &row, &rate, o->err);
        if (rc)
            return rc;
        double t = 1e3 * row.ms.v[0];
        if (k == 0 || (*us > 0 && t >= *us))
            continue;
        *us = t;
        for (int i = 0; i < SV_PHASES && phase; i++)
            phase[i] = (double)(o->e->phase_ns[i] - before[i]) / 1e3 / (n_steps + 1 + o->e->depth);
    }
    return SV_OK;
}

/* One sample in a timing mode, and what it saw a step. */
static int timed(struct ops *o, enum sv_trace_mode mode, struct sv_trace_class *out, int32_t *n)
{
    double rate;
    int32_t n_marks = 0;
    o->s->trace = o->trace;
    o->s->trace_mode = mode;
    int rc = sv_sim_sample(o->s, o->n, o->arm, o->profile, 0, NULL, &rate, o->err);
    o->s->trace = NULL;
    if (!rc)
        rc = sv_engine_settle(o->e, o->err);
    const struct sv_trace_class *c = sv_trace_read(o->trace, n);
    memcpy(out, c, (size_t)*n * sizeof *c);
    for (int32_t i = 0; i < *n; i++)
        n_marks += strcmp(c[i].name, "mark") == 0 ? c[i].n : 0;
    for (int32_t i = 0; i < *n; i++)
        out[i].us /= n_marks ? n_marks : 1;
    for (int32_t i = 0; i < *n && n_marks; i++) /* rounded: pages are not uploaded in every step */
        out[i].n = (out[i].n + n_marks / 2) / n_marks;
    sv_trace_start(o->trace, SV_TRACE_COUNT);
    return rc;
}

static bool is_op(const struct sv_trace_class *c)
{
    return strcmp(c->name, "upload") && strcmp(c->name, "download") && strcmp(c->name, "mark") &&
           strncmp(c->name, "pass ", 5);
}

static int measure(struct ops *o)
{
    uint64_t all = 0;
    int rc = sample(o, &o->us, o->phase);
    if (!rc)
        rc = sv_trace_begin(&o->trace, o->e->dev, o->err);
    if (!rc)
        rc = timed(o, SV_TRACE_CALLS, o->call, &o->n_calls);
    if (!rc)
        rc = timed(o, SV_TRACE_OPS, o->op, &o->n_ops);
    for (int32_t i = 0; i < o->n_ops; i++) {
        all |= is_op(&o->op[i]) ? 1ull << i : 0;
        o->n_passes = o->op[i].pass > o->n_passes ? o->op[i].pass : o->n_passes;
    }
    if (!rc) {
        o->s->skips = o->trace;
        o->s->skip = all;
        rc = sample(o, &o->empty, NULL);
    }
    for (int32_t i = 0; i < o->n_ops && !rc; i++) {
        if (!(all >> i & 1) || !o->op[i].n)
            continue;
        o->s->skip = 1ull << i;
        rc = sample(o, &o->without[i], NULL);
        o->s->skip = all & ~(1ull << i);
        if (!rc)
            rc = sample(o, &o->alone[i], NULL);
        if (!rc && sv_cli_interrupted())
            rc = sv_fail(o->err, SV_ECANCELED, -1, "canceled");
    }
    return rc;
}

/* Passes are numbered as they come; the last one of a step is the target's. */
static const char *pass_name(const struct ops *o, int32_t pass)
{
    return pass == 0 ? "step" : pass == o->n_passes ? "target" : "draft";
}

static void write_calls(const struct ops *o, struct sv_buf *out)
{
    static const char *const phase[] = {"plan",          "fill and upload", "launch draft",
                                        "launch target", "download, mark",  "wait",
                                        "advance"};
    double sum = 0;
    sv_buf_printf(out, "host, us a step:");
    for (int i = 0; i < SV_PHASES; i++)
        sv_buf_printf(out, "%s %s %.1f", i ? "," : "", phase[i], o->phase[i]);
    sv_buf_printf(out, "\ndevice, us a step:");
    for (int32_t i = 0; i < o->n_calls; i++) {
        if (is_op(&o->call[i]))
            continue;
        sum += o->call[i].us;
        sv_buf_printf(out, " %s (%d) %.1f,", o->call[i].name, o->call[i].n, o->call[i].us);
    }
    sv_buf_printf(out, " sum %.1f; a step without any op %.1f\n", sum, o->empty);
}

static void write_ops(const struct ops *o, struct sv_buf *out)
{
    static const char *const column[] = {
        "pass", "op", "calls", "each between stamps", "between stamps", "saved without", "alone"};
    double sum[3] = {0, 0, 0};
    int32_t n = 0;
    struct sv_cli_table t;
    sv_cli_table_init(&t);
    for (size_t i = 0; i < sizeof column / sizeof column[0]; i++)
        sv_cli_table_column(&t, column[i], i > 1);
    for (int32_t i = 0; i < o->n_ops; i++) {
        const struct sv_trace_class *c = &o->op[i];
        if (!is_op(c) || !c->n)
            continue;
        const double us[3] = {c->us, o->us - o->without[i], o->alone[i] - o->empty};
        sv_cli_table_add(&t, "%s", pass_name(o, c->pass));
        sv_cli_table_add(&t, "%s", c->name);
        sv_cli_table_add(&t, "%d", c->n);
        sv_cli_table_add(&t, "%.2f", c->us / c->n);
        n += c->n;
        for (int k = 0; k < 3; k++) {
            sv_cli_table_add(&t, "%.1f", us[k]);
            sum[k] += us[k];
        }
    }
    sv_cli_table_add(&t, "%s", "all");
    sv_cli_table_add(&t, "%s", "");
    sv_cli_table_add(&t, "%d", n);
    sv_cli_table_add(&t, "%s", "");
    for (int k = 0; k < 3; k++)
        sv_cli_table_add(&t, "%.1f", sum[k]);
    sv_cli_table_write(&t, "md", out);
    sv_cli_table_fini(&t);
}

int sv_sim_ops(struct sv_sim *s, int32_t n, const struct sv_sim_arm *a,
               const struct sv_sim_profile *p, struct sv_err *err)
{
    struct ops *o = sv_calloc(1, sizeof *o);
    if (!o)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    *o = (struct ops){.s = s, .e = s->e, .arm = a, .profile = p, .n = n, .err = err};
    int rc = measure(o);
    sv_trace_end(o->trace);
    s->skips = NULL;
    if (!rc) {
        sv_buf_printf(&s->out->ops,
                      "\n## %s, %d sequences, context %d, profile %s: %.1f us a step\n\n", a->name,
                      n, s->o->context, p->name, o->us);
        write_calls(o, &s->out->ops);
        sv_buf_printf(&s->out->ops, "\n");
        write_ops(o, &s->out->ops);
    }
    sv_free(o);
    return rc;
}
