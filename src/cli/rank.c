/*
 * rank.c - a command that mpirun started several times: rank 0 does what it always does, the others
 * follow it.
 *
 * Called by main.c and by args.c once a command's engine is known. Must not: know what a follower
 * does.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "dist/dist.h"
#include "engine/engine.h"

#include <signal.h>

int sv_cli_begin_ranks(void)
{
    struct sv_err err = {0};
    return sv_mpi_begin(&err) ? sv_cli_fail("%s", err.msg) : -1;
}

int sv_cli_end_ranks(int code)
{
    sv_mpi_end(code);
    return code;
}

int sv_cli_follow(const char *command, const struct sv_engine_options *o)
{
    const struct sv_ranks ranks = sv_mpi_ranks();
    struct sv_err err = {0};
    if (ranks.n == 1)
        return -1;
    if (o->tp != ranks.n)
        return sv_cli_usage(command, "option --tp: %d, and mpirun started %d processes", o->tp,
                            ranks.n);
    if (ranks.rank == 0)
        return -1;
    /* Rank 0 answers these, and ends all. */
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        sigaction(ignored[i], &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    return sv_engine_follow(o, &err) ? sv_cli_fail("rank %d: %s", ranks.rank, err.msg) : SV_CLI_OK;
}
