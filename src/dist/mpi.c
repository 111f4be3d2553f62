/*
 * mpi.c - ranks that mpirun started, processes of one machine: their numbers, and the memory that
 * all of them see. Built with MPI=1.
 *
 * Called by cli (begin, end) and engine (a world). MPI tells the ranks apart, carries one name, and
 * ends all of them when one fails; everything else goes through shared memory, as between threads.
 * Must not: add numbers by MPI, whose order is the library's.
 */
#include "dist/dist.h"

#include <string.h>

/* Whether a launcher of MPI started this process together with others. */
static bool launched(void)
{
    static const char *const name[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        const char *size = sv_env(name[i]);
        if (size && *size && strcmp(size, "1"))
            return true;
    }
    return false;
}

#ifdef SV_MPI

#include <mpi.h>

int sv_mpi_begin(struct sv_err *err)
{
    MPI_Comm here;
    int level, n = 1, n_here = 1;
    if (!launched())
        return SV_OK;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (level < MPI_THREAD_SERIALIZED)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "this MPI cannot be called from several threads");
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &n_here);
    MPI_Comm_free(&here);
    if (n_here < n)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%d processes, of which %d are on this machine: ranks share memory", n,
                       n_here);
    return SV_OK;
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

int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, struct sv_err *err)
{
    char name[sizeof s->name] = "";
    int rc = SV_OK;
    *s = (struct sv_shared){.fd = -1};
    if (sv_mpi_ranks().rank == 0) {
        rc = sv_shared_open(s, n_bytes, err);
        memcpy(name, s->name, sizeof name);
        *memory = s->memory;
    }
    MPI_Bcast(name, (int)sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (sv_mpi_ranks().rank == 0)
        return rc;
    return name[0] ? sv_shared_map(memory, n_bytes, name, err)
                   : sv_fail(err, SV_ENOMEM, -1, "rank 0 has no memory to share");
}

#else

int sv_mpi_begin(struct sv_err *err)
{
    return launched() ? sv_fail(err, SV_EUNSUPPORTED, -1,
                                "started by mpirun, and this build has no MPI (make MPI=1)")
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

int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, struct sv_err *err)
{
    (void)s, (void)memory, (void)n_bytes;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no MPI");
}

#endif
