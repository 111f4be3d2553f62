/*
 * measure.h - repeated measurements and the rows of result files (measure.c), and plain decoding
 * beside DFlash on the same prompts (pair.c).
 *
 * Included by the commands that measure, and by salvo-bench. Must not: know what is measured.
 */
#ifndef SV_CLI_MEASURE_H
#define SV_CLI_MEASURE_H

#include "cli/cli.h"
#include "cli/lines.h"

/* Writes results to a file, or to standard output if out is NULL or "-". If the file cannot be
 * written, they are printed, since measuring again is expensive, and the exit code is that of an
 * error. */
int sv_cli_deliver(const struct sv_buf *b, const char *out);
/* Facts that every result row carries. */
struct sv_cli_machine {
    char commit[64], cpu[96], date[24];
};
void sv_cli_machine_read(struct sv_cli_machine *m);
/* Read bandwidth in GB/s for a working set like that of one step; n_bytes is clipped to 1 GiB. */
double sv_cli_bandwidth(struct sv_engine *e, int64_t n_bytes);

#define SV_CLI_MAX_SAMPLES 512

/* Repeated measurements of one thing. */
struct sv_cli_samples {
    double v[SV_CLI_MAX_SAMPLES];
    int n;
};
void sv_cli_samples_add(struct sv_cli_samples *s, double v);  /* beyond the limit: dropped */
double sv_cli_samples_median(const struct sv_cli_samples *s); /* 0 when empty */
double sv_cli_samples_min(const struct sv_cli_samples *s);
double sv_cli_samples_max(const struct sv_cli_samples *s);

/* One speed claim as it goes to csv and json. */
struct sv_cli_record {
    const char *test, *arm; /* "decode", "code"; "plain", "dflash" */
    int32_t sequences;
    const struct sv_cli_samples *samples; /* tokens per second */
    double share, limit_gbs;              /* of the read bandwidth; 0 = not given */
    double whole_share; /* had every weight been read in its own type, as bars are stated */
    const struct sv_cli_accept *accept;    /* NULL = not given */
    uint64_t hash;                         /* of all token ids; 0 = not given */
    const struct sv_cli_samples *to_plain; /* over plain, by repeat; NULL = not given */
};
/* What every record begins with: date, commit, machine, model; then the n columns of its kind. */
void sv_cli_columns_add(struct sv_cli_table *t, const struct sv_cli_column *column, size_t n);
void sv_cli_machine_add(struct sv_cli_table *t, const struct sv_cli_machine *m, const char *model,
                        const struct sv_engine_info *info, int32_t threads);
void sv_cli_record_columns(struct sv_cli_table *t);
void sv_cli_record_add(struct sv_cli_table *t, const struct sv_cli_machine *m, const char *model,
                       const struct sv_engine_info *info, int32_t threads,
                       const struct sv_cli_record *r);

/* pair.c: plain beside dflash on the same prompts. */
struct sv_cli_pair_opts {
    int32_t repeat;
    double max_seconds; /* no further repeat after this; 0 = no limit */
    int32_t concurrency[16];
    int32_t n_concurrency;
    bool keep_loops, quiet;
};
struct sv_cli_arm {
    struct sv_cli_samples rate;      /* tokens per second, prompts included */
    struct sv_cli_samples gbs;       /* weight bytes read a second, in 1e9 ... */
    struct sv_cli_samples whole_gbs; /* ... and had every weight been read in its own type */
    uint64_t hash;
};
struct sv_cli_pair_row {
    const char *kind; /* "all" last */
    int32_t concurrency, n_prompts;
    int64_t n_tokens;         /* of one repeat */
    struct sv_cli_arm arm[2]; /* plain, dflash */
    struct sv_cli_accept accept;
    struct sv_cli_samples to_plain; /* DFlash over plain, each repeat by itself */
};
struct sv_cli_pair_results {
    struct sv_cli_pair_row *row;
    int32_t n, n_loops;
    double gbs;  /* the ceiling for the pair's weights */
    bool differ; /* some answers of the two arms differ; reported on stderr */
};
/* Opens the two engines: e[0] decodes plainly, e[1] with the draft of `o`, if there is one. Prints
 * an error and returns SV_CLI_FAIL if one does not open; the caller closes both in either case. */
int sv_cli_pair_open(struct sv_engine *e[2], const struct sv_engine_options *o);
/* dflash may be NULL: plain alone. Both may be the same engine: its drafter is removed for plain
 * decoding, so that even the memory addresses are equal. */
int sv_cli_pair_measure(struct sv_engine *plain, struct sv_engine *dflash,
                        const struct sv_cli_prompts *prompts, const struct sv_cli_pair_opts *o,
                        struct sv_cli_pair_results *out, struct sv_err *err);
void sv_cli_pair_results_fini(struct sv_cli_pair_results *r);
void sv_cli_pair_table(struct sv_cli_table *t, const struct sv_cli_pair_results *r, bool drafted);
double sv_cli_pair_share(const struct sv_cli_pair_results *r, const struct sv_cli_samples *gbs);
/* Index of the first token in which two answers differ, -1 when they are the same. */
int32_t sv_cli_first_difference(const struct sv_cli_answer *a, const struct sv_cli_answer *b);

#endif
