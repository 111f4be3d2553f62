/*
 * mpi.c - processes that mpirun started: their numbers, where they are, the memory that ranks of
 * one machine see, and how replicas find process 0. Built with MPI=1.
 *
 * Called by cli (begin, place, link, end) and engine (a world). MPI tells processes apart, carries
 * names and addresses, and ends all of them when one fails; everything else goes through shared
 * memory, as between threads, or through links. Must not: add numbers by MPI, whose order is the
 * library's, or use it once a process may have died: what MPI does then is not defined.
 */
#define _DEFAULT_SOURCE /* kill, nanosleep */

#include "dist/dist.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEAVE_NAPS = 200 }; /* of 0.1 s, for those that cannot see process 0 */

/* The variable by which a launcher of MPI says that this process is one of several: of Open MPI, of
 * MPICH and what comes from it, of srun (which sets the last one with PMIx as well); NULL: alone.
 */
static const char *launched(void)
{
    static const char *const name[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS",
                                       "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        const char *size = sv_env(name[i]);
        if (size && *size && strcmp(size, "1"))
            return name[i];
    }
    return NULL;
}

#ifdef SV_MPI

#include <mpi.h>

int sv_mpi_begin(struct sv_err *err)
{
    const char *const name = launched();
    int level, n;
    if (!name)
        return SV_OK;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (level < MPI_THREAD_SERIALIZED)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "this MPI cannot be called from several threads");
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    return n > 1 ? SV_OK
                 : sv_fail(err, SV_EUNSUPPORTED, -1,
                           "%s is %s, and MPI knows of one process: it was started by the mpirun "
                           "of another MPI than this build has, or by srun without --mpi=pmix or "
                           "--mpi=pmi2",
                           name, sv_env(name));
}

struct sv_ranks sv_mpi_ranks(void)
{
    struct sv_ranks r = {.n = 1};
    int on;
    MPI_Initialized(&on);
    if (on) {
        MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
        MPI_Comm_size(MPI_COMM_WORLD, &r.n);
    }
    return r;
}

void sv_mpi_end(int code)
{
    int on;
    MPI_Initialized(&on);
    if (on && code) /* others may still wait for this rank */
        MPI_Abort(MPI_COMM_WORLD, code);
    if (on)
        MPI_Finalize();
}

int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, struct sv_ranks r,
                 struct sv_err *err)
{
    const int first = sv_mpi_ranks().rank - r.rank;
    char name[sizeof s->name] = "";
    int rc = SV_OK;
    *s = (struct sv_shared){.fd = -1};
    if (r.rank) {
        MPI_Recv(name, (int)sizeof name, MPI_CHAR, first, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return name[0] ? sv_shared_map(memory, n_bytes, name, err)
                       : sv_fail(err, SV_ENOMEM, -1, "rank 0 has no memory to share");
    }
    rc = sv_shared_open(s, n_bytes, err);
    memcpy(name, s->name, sizeof name);
    *memory = s->memory;
    for (int i = 1; i < r.n; i++)
        MPI_Send(name, (int)sizeof name, MPI_CHAR, first + i, 0, MPI_COMM_WORLD);
    return rc;
}

int sv_mpi_place(struct sv_placement *p, int32_t tp, int32_t dp, struct sv_err *err)
{
    const struct sv_ranks r = sv_mpi_ranks();
    MPI_Comm machine;
    const int32_t own[3] = {r.rank / tp, r.rank, (int32_t)getpid()};
    int32_t n_own = 0;
    int n = 0;
    *p = (struct sv_placement){.tp = tp, .dp = dp, .replica = r.rank / tp, .rank = r.rank % tp};
    SV_REQUIRE(r.n == tp * dp);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &n);
    int32_t(*all)[3] = sv_calloc((size_t)n, sizeof *all);
    if (!all)
        return sv_fail(err, SV_ENOMEM, -1, "%d processes", n);
    MPI_Allgather(own, 3, MPI_INT32_T, all, 3, MPI_INT32_T, machine);
    for (int i = 0; i < n; i++) { /* in the order of their numbers */
        const bool first = i == 0 || all[i][0] != all[i - 1][0];
        n_own += all[i][0] == p->replica;
        p->n_here += first;
        p->here += first && all[i][0] < p->replica;
    }
    p->pid0 = all[0][1] == 0 ? all[0][2] : 0;
    MPI_Comm_free(&machine);
    sv_free(all);
    if (n_own < tp)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%d processes of replica %d, of which %d are on this machine: ranks share "
                       "memory",
                       tp, p->replica, n_own);
    return SV_OK;
}

/* MPI_Finalize waits for every process, and one that has been killed does not come. */
struct guard {
    int32_t pid0;
    int code;
};

static void *guard_main(void *arg)
{
    const struct guard *g = arg;
    const struct timespec nap = {0, 100000000};
    for (int i = 0; g->pid0 ? kill(g->pid0, 0) == 0 : i < LEAVE_NAPS; i++)
        nanosleep(&nap, NULL);
    _exit(g->code);
}

void sv_mpi_leave(const struct sv_placement *p, int code)
{
    struct guard g = {.pid0 = sv_mpi_ranks().rank ? p->pid0 : 0, .code = code};
    struct sv_thread *thread;
    struct sv_err err;
    fflush(NULL);
    if (sv_thread_start(&thread, guard_main, &g, &err) == SV_OK)
        MPI_Finalize();
    _exit(code);
}

int sv_mpi_link(struct sv_link *link, const struct sv_placement *p, struct sv_err *err)
{
    const int32_t process = sv_mpi_ranks().rank;
    struct sv_link_endpoint m = {0};
    int fd = -1, rc = SV_OK;
    for (int32_t i = 0; i < p->dp; i++)
        link[i] = (struct sv_link){.fd = {-1, -1}, .process = i * p->tp};
    if (process == 0)
        rc = sv_link_listen(&m, &fd, p->n_here == p->dp, err);
    if (rc) /* the caller ends all processes, which wait for this one */
        return rc;
    MPI_Bcast(&m, sizeof m, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (process == 0)
        return sv_link_accept(fd, &m, link, p->dp, err);
    return p->rank ? SV_OK : sv_link_connect(&m, p, &link[p->replica], err);
}

#else

int sv_mpi_begin(struct sv_err *err)
{
    const char *const name = launched();
    return name ? sv_fail(err, SV_EUNSUPPORTED, -1,
                          "started by mpirun or srun (%s is %s), and this build has no MPI "
                          "(make MPI=1)",
                          name, sv_env(name))
                : SV_OK;
}

struct sv_ranks sv_mpi_ranks(void)
{
    return (struct sv_ranks){.n = 1};
}

void sv_mpi_end(int code)
{
    (void)code;
}

int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, struct sv_ranks r,
                 struct sv_err *err)
{
    (void)s, (void)memory, (void)n_bytes, (void)r;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

int sv_mpi_place(struct sv_placement *p, int32_t tp, int32_t dp, struct sv_err *err)
{
    (void)p, (void)tp, (void)dp;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

void sv_mpi_leave(const struct sv_placement *p, int code)
{
    (void)p;
    exit(code);
}

int sv_mpi_link(struct sv_link *link, const struct sv_placement *p, struct sv_err *err)
{
    (void)link, (void)p;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

#endif
