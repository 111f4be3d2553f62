/*
 * replay.c - `salvo-bench replay FILE`: runs what --record-plan wrote again, and prints how long
 * its passes take and whether the same tokens come out.
 *
 * Called by main.c. Must not: decide anything, or print a time of passes whose tokens differ
 * without saying so.
 */
#include "bench/bench.h"

static const char usage[] =
    "Usage: salvo-bench replay FILE [-m TARGET_DIR] [-d DRAFT_DIR] [-t THREADS]\n"
    "\n"
    "Runs the uploads and passes that `salvo ... --record-plan FILE` recorded, in their order\n"
    "and without requests, with the recorded options. Directories are those of the record\n"
    "unless others are named. Fails when other tokens come out than were recorded.";

static void report(const struct sv_replay_sums *s)
{
    static const char *const name[] = {"drafting", "target"};
    for (int k = 0; k < 2; k++)
        if (s->n_passes[k])
            printf("%-8s  %lld passes, %lld rows, %.3f s, %.1f us a pass\n", name[k],
                   (long long)s->n_passes[k], (long long)s->n_rows[k], (double)s->ns[k] / 1e9,
                   (double)s->ns[k] / 1e3 / (double)s->n_passes[k]);
    printf("uploads   %lld, %.2f MB; copies on the device: %lld\n", (long long)s->n_uploads,
           (double)s->n_upload_bytes / 1e6, (long long)s->n_copies);
    printf("steps     %lld, %lld of them with other tokens than recorded%s\n",
           (long long)s->n_steps, (long long)s->n_other,
           s->ends ? "" : "; the record has no end: its engine was not closed");
}

int sv_bench_replay(int argc, char **argv)
{
    const char *target = NULL, *draft = NULL;
    int64_t threads = 0;
    struct sv_replay r;
    struct sv_replay_sums sums;
    struct sv_engine *e = NULL;
    struct sv_err err = {0};
    struct sv_cli_opts opts = {0};
    int n_files = 0;

    sv_cli_opt(&opts, "model", 'm', SV_OPT_STRING, &target, "DIR", "the target, if it has moved");
    sv_cli_opt(&opts, "draft", 'd', SV_OPT_STRING, &draft, "DIR", "its draft, if it has moved");
    sv_cli_opt(&opts, "threads", 't', SV_OPT_INT, &threads, "N", "threads, 0 = as recorded");
    int code = sv_cli_parse(&opts, "salvo-bench replay", usage, argc, argv, 1, &n_files);
    if (code < 0)
        code = sv_cli_in_range("salvo-bench replay", "threads", threads, 0, 1024);
    if (code < 0 && n_files != 1)
        code = sv_cli_usage("salvo-bench replay", "the file of a record is needed");
    if (code >= 0)
        return code;
    if (sv_replay_open(&r, argv[1], &err))
        return sv_cli_fail("%s", err.msg);
    if (draft && !*r.draft)
        sv_fail(&err, SV_EINVAL, -1, "%s: there was no draft when this was recorded", argv[1]);
    else if (!sv_replay_engine(&r, target ? target : r.target,
                               !*r.draft ? NULL
                               : draft   ? draft
                                         : r.draft,
                               (int32_t)threads, &e, &err) &&
             !sv_replay_run(&r, e, &sums, &err))
        report(&sums);
    sv_engine_close(e);
    sv_replay_close(&r);
    if (err.code)
        return sv_cli_fail("%s", err.msg);
    if (sums.n_other)
        return sv_cli_fail("%s: other tokens came out than were recorded, first in step %lld",
                           argv[1], (long long)sums.first_other);
    return SV_CLI_OK;
}
