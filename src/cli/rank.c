/*
 * rank.c - a command that mpirun or srun started as several processes: process 0 runs the command,
 * the first process of each other replica serves process 0, and all others follow the first one of
 * their replica.
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

/* An error ends all processes, since others may wait for this one. */
static int place(const struct sv_cli_model *m, int32_t tp, struct sv_err *err)
{
    struct sv_processes one, *p = m->processes ? m->processes : &one;
    int rc = sv_mpi_place(&p->place, tp, (int32_t)m->dp, err);
    return rc || m->dp < 2 ? rc : sv_mpi_link(p->link, &p->place, err);
}

int sv_cli_follow(const char *command, const struct sv_cli_model *m,
                  const struct sv_engine_options *o)
{
    const struct sv_ranks all = sv_mpi_ranks();
    const int32_t tp = o->tp > 1 ? o->tp : 1;
    struct sv_err err = {0};
    if (all.n == 1)
        return -1;
    if (m->dp > 1 && m->dp * tp != all.n)
        return sv_cli_usage(command,
                            "options --tp and --dp: %d replicas of %d ranks are %d processes, and "
                            "mpirun started %d",
                            (int)m->dp, tp, (int)m->dp * tp, all.n);
    if (m->dp < 2 && tp != all.n)
        return sv_cli_usage(command, "option --tp: %d, and mpirun started %d processes", o->tp,
                            all.n);
    if (place(m, tp, &err))
        return sv_cli_fail("process %d: %s", all.rank, err.msg);
    if (all.rank == 0)
        return -1;
    /* Process 0 answers these, and ends all. */
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        sigaction(ignored[i], &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    if (all.rank % tp == 0)
        return -1;
    const int rc = sv_engine_follow(o, &err);
    if (rc)
        sv_cli_say("process %d: %s", all.rank, err.msg);
    if (m->dp > 1) /* other replicas go on */
        sv_mpi_leave(&m->processes->place);
    return rc ? SV_CLI_FAIL : SV_CLI_OK;
}
