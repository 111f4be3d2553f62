/*
 * mpi.c - processes that mpirun started: their numbers, where they are, the memory that ranks of
 * one host see, and how replicas find process 0 and ranks those on other hosts. Built with MPI=1.
 *
 * Called by cli (begin, place, link, end) and engine (a world). MPI numbers processes, carries
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

/* The variable by which a launcher of MPI shows that this process is one of several: of Open MPI,
 * of MPICH and what comes from it, of srun (which sets the last one with PMIx as well); NULL:
 * alone.
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
                           "%s is %s, and MPI has one process: it was started by the mpirun "
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

/* Of the same machine, by its memory, and of one name: one that is played has another. */
static MPI_Comm find_host(void)
{
    char name[SV_HOST_NAME];
    uint32_t hash = 0;
    MPI_Comm machine, host;
    sv_host_name(name);
    for (const char *c = name; *c; c++)
        hash = hash * 31 + (unsigned char)*c;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_split(machine, (int)(hash & INT32_MAX), 0, &host);
    MPI_Comm_free(&machine);
    return host;
}

static MPI_Comm find_replica(struct sv_ranks r)
{
    MPI_Comm replica;
    MPI_Comm_split(MPI_COMM_WORLD, sv_mpi_ranks().rank / r.n, 0, &replica);
    return replica;
}

int sv_mpi_find_hosts(int32_t *first, struct sv_ranks r, struct sv_err *err)
{
    MPI_Comm host = find_host(), replica = find_replica(r);
    const int32_t own = sv_mpi_ranks().rank;
    int32_t least = r.rank;
    int n;
    MPI_Comm_size(host, &n);
    int32_t *process = sv_calloc((size_t)n, sizeof *process);
    if (process) {
        MPI_Allgather(&own, 1, MPI_INT32_T, process, 1, MPI_INT32_T, host);
        for (int i = n - 1; i >= 0; i--)
            least = process[i] / r.n == own / r.n ? process[i] % r.n : least;
        MPI_Allgather(&least, 1, MPI_INT32_T, first, 1, MPI_INT32_T, replica);
    }
    MPI_Comm_free(&host);
    MPI_Comm_free(&replica);
    sv_free(process);
    return process ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "%d processes", n);
}

int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, const int32_t *first,
                 struct sv_ranks r, struct sv_err *err)
{
    const int base = sv_mpi_ranks().rank - r.rank;
    char name[sizeof s->name] = "";
    int rc = SV_OK;
    *s = (struct sv_shared){.fd = -1};
    if (first[r.rank] != r.rank) {
        MPI_Recv(name, (int)sizeof name, MPI_CHAR, base + first[r.rank], 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        return name[0]
                   ? sv_shared_map(memory, n_bytes, name, err)
                   : sv_fail(err, SV_ENOMEM, -1, "rank %d has no memory to share", first[r.rank]);
    }
    rc = sv_shared_open(s, n_bytes, err);
    memcpy(name, s->name, sizeof name);
    *memory = s->memory;
    for (int i = r.rank + 1; i < r.n; i++)
        if (first[i] == r.rank)
            MPI_Send(name, (int)sizeof name, MPI_CHAR, base + i, 0, MPI_COMM_WORLD);
    return rc;
}

/* Each rank connects to those before it. */
int sv_mpi_link_hosts(struct sv_hosts *h, struct sv_ranks r, struct sv_err *err)
{
    const int32_t own = h->first[r.rank], base = sv_mpi_ranks().rank - r.rank;
    struct sv_link_endpoint m, all[SV_MAX_RANKS];
    int fd = -1;
    for (int32_t i = 0; i < r.n; i++) {
        const bool far = h->first[i] != own,
                   relays = r.rank == 0 ? h->first[i] == i : i == 0 && own == r.rank;
        h->link[i] = (struct sv_link){
            .fd = {far ? SV_LINK_DUE : SV_LINK_NONE, far && relays ? SV_LINK_DUE : SV_LINK_NONE},
            .process = base + i};
    }
    int rc = sv_link_listen(&m, &fd, false, err);
    if (rc) /* the caller ends all processes, which wait for this one */
        return rc;
    MPI_Comm replica = find_replica(r);
    MPI_Allgather(&m, sizeof m, MPI_BYTE, all, sizeof m, MPI_BYTE, replica);
    MPI_Comm_free(&replica);
    for (int32_t i = 0; i < r.rank && !rc; i++)
        rc = sv_link_connect(&all[i], r.rank, 0, &h->link[i], err);
    return rc ? rc : sv_link_accept(fd, &m, h->link, r.n, err);
}

int sv_mpi_place(struct sv_placement *p, int32_t tp, int32_t dp, struct sv_err *err)
{
    const struct sv_ranks r = sv_mpi_ranks();
    MPI_Comm host = find_host();
    const int32_t own[3] = {r.rank / tp, r.rank, (int32_t)getpid()};
    int n = 0;
    *p = (struct sv_placement){.tp = tp, .dp = dp, .replica = r.rank / tp, .rank = r.rank % tp};
    SV_REQUIRE(r.n == tp * dp);
    MPI_Comm_size(host, &n);
    int32_t(*all)[3] = sv_calloc((size_t)n, sizeof *all);
    if (!all)
        return sv_fail(err, SV_ENOMEM, -1, "%d processes", n);
    MPI_Allgather(own, 3, MPI_INT32_T, all, 3, MPI_INT32_T, host);
    for (int i = 0; i < n; i++) { /* in the order of their numbers */
        const bool first = i == 0 || all[i][0] != all[i - 1][0];
        p->n_here += first;
        p->here += first && all[i][0] < p->replica;
    }
    p->pid0 = all[0][1] == 0 ? all[0][2] : 0;
    p->alone = n == r.n;
    MPI_Comm_free(&host);
    sv_free(all);
    return SV_OK;
}

/* MPI_Finalize waits for every process, and one that has been killed does not come. */
static void *guard_main(void *arg)
{
    const int32_t *pid0 = arg;
    const struct timespec nap = {0, 100000000};
    for (int i = 0; *pid0 ? kill(*pid0, 0) == 0 : i < LEAVE_NAPS; i++)
        nanosleep(&nap, NULL);
    _exit(0);
}

void sv_mpi_leave(const struct sv_placement *p)
{
    int32_t pid0 = sv_mpi_ranks().rank ? p->pid0 : 0; /* 0: none to wait for */
    struct sv_thread *thread;
    struct sv_err err;
    fflush(NULL);
    if (sv_thread_start(&thread, guard_main, &pid0, &err) == SV_OK)
        MPI_Finalize();
    _exit(0);
}

int sv_mpi_link(struct sv_link *link, const struct sv_placement *p, struct sv_err *err)
{
    const int32_t process = sv_mpi_ranks().rank;
    struct sv_link_endpoint m = {0};
    int fd = -1, rc = SV_OK;
    for (int32_t i = 0; i < p->dp; i++) {
        const int due = i && process == 0 ? SV_LINK_DUE : SV_LINK_NONE;
        link[i] = (struct sv_link){.fd = {due, due}, .process = i * p->tp};
    }
    if (process == 0)
        rc = sv_link_listen(&m, &fd, p->alone, err);
    if (rc) /* the caller ends all processes, which wait for this one */
        return rc;
    MPI_Bcast(&m, sizeof m, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (process == 0)
        return sv_link_accept(fd, &m, link, p->dp, err);
    if (p->rank)
        return SV_OK;
    struct sv_link *own = &link[p->replica];
    *own = (struct sv_link){.fd = {SV_LINK_DUE, SV_LINK_DUE}};
    return sv_link_connect(&m, p->replica, p->pid0 ? (int32_t)getpid() : 0, own, err);
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

int sv_mpi_find_hosts(int32_t *first, struct sv_ranks r, struct sv_err *err)
{
    (void)first, (void)r;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

int sv_mpi_link_hosts(struct sv_hosts *h, struct sv_ranks r, struct sv_err *err)
{
    (void)h, (void)r;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, const int32_t *first,
                 struct sv_ranks r, struct sv_err *err)
{
    (void)s, (void)memory, (void)n_bytes, (void)first, (void)r;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

int sv_mpi_place(struct sv_placement *p, int32_t tp, int32_t dp, struct sv_err *err)
{
    (void)p, (void)tp, (void)dp;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

void sv_mpi_leave(const struct sv_placement *p)
{
    (void)p;
    exit(0);
}

int sv_mpi_link(struct sv_link *link, const struct sv_placement *p, struct sv_err *err)
{
    (void)link, (void)p;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

#endif
