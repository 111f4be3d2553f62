/*
 * sim.h - what the files of simulated measurements share: sim.c (running), sim_report.c
 * (telling) and ops.c (where the time of a step goes).
 *
 * Included by these and by main.c. Must not be reachable from a command that answers requests.
 */
#ifndef SV_BENCH_SIM_H
#define SV_BENCH_SIM_H

#include "backend/trace.h"
#include "bench/accept.h"
#include "bench/bench.h"

enum { SV_SIM_MAX_ARMS = 20, SV_SIM_MAX_LEVELS = 16, SV_SIM_MAX_PROFILES = 16 };

/* One way to decode: plain, verify steps without drafting, a fixed width, or the policy. */
struct sv_sim_arm {
    char name[16];
    int32_t width; /* 1 = plain, 0 = the policy */
    bool drafts;   /* else as an engine without a draft */
    bool unpruned; /* the policy, which may not prune rows once they are drafted */
};
struct sv_sim_profile {
    char name[32];
    struct sv_accept_profile p;
    struct sv_profile_step *step; /* its recorded steps, or NULL */
    bool real;                    /* no simulation: accept lengths are found */
};
struct sv_sim_opts {
    struct sv_sim_arm arm[SV_SIM_MAX_ARMS];
    struct sv_sim_profile profile[SV_SIM_MAX_PROFILES];
    int32_t concurrency[SV_SIM_MAX_LEVELS];
    int32_t n_arms, n_profiles, n_concurrency;
    int32_t context, prefill, repeat, steps; /* steps of one sample */
    double seconds;                          /* for one arm at one level at most */
    double rest;                             /* seconds of nothing before every timed sample */
    double keep; /* modes slower than this share of the best are left out after some rounds */
    bool random_weights, quiet;
    const struct sv_request *defaults; /* how tokens are chosen */
    const char *ops;      /* file for where the time of each arm's steps goes; NULL = not asked */
    const char *step_log; /* file for a line a step; NULL = not asked */
};
/* Parses lists of the command line; -1 to continue, else the exit code. */
int sv_sim_parse_modes(struct sv_sim_opts *o, const char *modes, const char *widths);
int sv_sim_parse_profiles(struct sv_sim_opts *o, const char *text);
void sv_sim_drop_profiles(struct sv_sim_opts *o);

struct sv_sim_row {
    const struct sv_sim_arm *arm;
    const struct sv_sim_profile *profile;
    int32_t sequences, context;
    struct sv_cli_samples rate, ms;       /* tokens per second, per step */
    struct sv_cli_samples follower_us;    /* host time of the busiest follower, per step */
    struct sv_cli_samples gbs, whole_gbs; /* read; and had every weight been read in its own type */
    int64_t n_tokens, n_segs, n_rows;     /* rows: verify rows */
    int64_t width[SV_MAX_BLOCK + 1];
    double ratio; /* the policy's rate over the best other arm's, by pairs in time; 0 = not said */
};
struct sv_sim_prefill {
    int32_t n;
    struct sv_cli_samples ms;
    double flops;
};
struct sv_sim_results {
    struct sv_sim_row *row;
    int32_t n, n_ranks;
    struct sv_sim_prefill prefill;
    double gbs;                     /* read bandwidth, best of the run */
    const struct sv_policy *policy; /* its table; NULL without */
    struct sv_engine_info info;
    struct sv_buf ops; /* text, with opts.ops */
};
/* A line for every step (sim_steps.c), and the counters as the step before left them. */
struct sv_sim_steps {
    struct sv_buf text;
    int64_t last_us, n_tokens, n_other, n_probes;
    int32_t step;
};
struct sv_sim {
    const struct sv_sim_opts *o;
    struct sv_engine *e;
    struct sv_drafter *drafter; /* the engine's, which arms without drafts take away; NULL = none */
    struct sv_sim_accept accept;
    int32_t *prompt; /* (context or prefill) */
    struct sv_sim_results *out;
    struct sv_cli_progress progress;
    struct sv_rng rng;
    struct sv_trace *trace; /* started anew before the steps of a sample that count; NULL = none */
    enum sv_trace_mode trace_mode;
    /* Op classes that a sample's steps leave out; the next sample starts its sequences anew. */
    struct sv_trace *skips; /* NULL = none */
    uint64_t skip;
    bool anew;
    struct sv_sim_steps steps; /* with opts.step_log */
};
/* Before the first step of a sample, and behind each. turn: -1 = warming up. */
void sv_sim_steps_begin(struct sv_sim_steps *l, const struct sv_engine *e);
void sv_sim_steps_add(struct sv_sim_steps *l, const struct sv_engine *e, const char *mode,
                      const char *profile, int32_t turn);
/* opts.steps steps of n sequences from the prompt's end, after one that is not counted, and after
 * opts.rest seconds of nothing where they are asked for and a row is kept; row NULL: nothing is
 * kept. draw: where the profile's draws begin. *rate: tokens a second. */
int sv_sim_sample(struct sv_sim *s, int32_t n, const struct sv_sim_arm *a,
                  const struct sv_sim_profile *p, uint64_t draw, struct sv_sim_row *row,
                  double *rate, struct sv_err *err);
/* ops.c: appends a table of phases, calls and ops of that arm's steps to out->ops. */
int sv_sim_ops(struct sv_sim *s, int32_t n, const struct sv_sim_arm *a,
               const struct sv_sim_profile *p, struct sv_err *err);
/* sim_report.c. The cost table, what was learnt of it and of acceptance: why widths were chosen. */
void sv_sim_policy_reasons(const struct sv_policy *p, struct sv_buf *out);
void sv_sim_write(const struct sv_sim_results *r, const struct sv_sim_opts *o, const char *model,
                  int threads, const char *format, struct sv_buf *out);
/* sim.c: measures and writes. */
int sv_sim_measure(const struct sv_sim_opts *o, const struct sv_engine_options *eo,
                   const char *format, struct sv_buf *out);

#endif
