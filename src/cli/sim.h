/*
 * sim.h - what the two files of simulated measurements share: bench_sim.c (running) and
 * sim_report.c (telling).
 *
 * Included by these and by bench.c. Must not be reachable from a command that answers requests.
 */
#ifndef SV_CLI_SIM_H
#define SV_CLI_SIM_H

#include "cli/cli.h"
#include "engine/engine.h"

enum { SV_SIM_MAX_ARMS = 16, SV_SIM_MAX_LEVELS = 16, SV_SIM_MAX_PROFILES = 16 };

/* One way to decode: plain (an engine without draft), a fixed width, or the policy. */
struct sv_sim_arm {
    char name[16];
    int32_t width; /* 1 = plain, 0 = the policy */
};
struct sv_sim_profile {
    char name[32];
    struct sv_accept_profile p;
    bool real; /* no simulation: accept lengths are found */
};
struct sv_sim_opts {
    struct sv_sim_arm arm[SV_SIM_MAX_ARMS];
    struct sv_sim_profile profile[SV_SIM_MAX_PROFILES];
    int32_t concurrency[SV_SIM_MAX_LEVELS];
    int32_t n_arms, n_profiles, n_concurrency;
    int32_t context, prefill, repeat, steps; /* steps of one sample */
    double seconds;                          /* for one arm at one level at most */
    bool random_weights, quiet;
};
/* Lists as they stand on the command line; -1 to go on, else the exit code. */
int sv_sim_parse_modes(struct sv_sim_opts *o, const char *modes, const char *widths);
int sv_sim_parse_profiles(struct sv_sim_opts *o, const char *text);

struct sv_sim_row {
    const struct sv_sim_arm *arm;
    const struct sv_sim_profile *profile;
    int32_t sequences, context;
    struct sv_cli_samples rate, ms, share; /* tokens per second, per step, of the limit */
    int64_t n_tokens, n_segs, n_rows, n_steps, n_drafting; /* rows: verify rows */
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
    int32_t n;
    struct sv_sim_prefill prefill;
    double gbs;                     /* read bandwidth, best of the run */
    const struct sv_policy *policy; /* its table; NULL without */
    struct sv_engine_info info;
};
/* sim_report.c. The cost table, what was learnt of it and of acceptance: why widths were chosen. */
void sv_cli_policy_reasons(const struct sv_policy *p, struct sv_buf *out);
void sv_sim_write(const struct sv_sim_results *r, const struct sv_sim_opts *o, const char *model,
                  int threads, const char *format, struct sv_buf *out);
/* bench_sim.c: measures and writes. */
int sv_cli_sim_measure(const struct sv_sim_opts *o, const struct sv_engine_options *eo,
                       const char *format, struct sv_buf *out);

#endif
