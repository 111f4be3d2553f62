/*
 * places.c - the table that is logged at start where there are several ranks or replicas: the
 * device and NUMA node of each rank, and how a rank reaches the others.
 *
 * Called by engine.c once the windows of all ranks are open. Rank 0 of each replica logs the rows
 * of its ranks. Must not: decide anything by what it finds.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include "engine/engine.h"

#include <ctype.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    int32_t process;
    char host[SV_HOST_NAME], device[64], node[32], link[24];
};
_Static_assert(sizeof(struct place) <= SV_SWAP_BYTES, "a place fits one exchange");

enum { MOST_NODES = 64 };

/* "cpu 0-3,8", and the nodes that these processors belong to: "0,1". */
static void find_processors(struct place *p)
{
    static const char name[] = "Cpus_allowed_list:";
    struct sv_buf b;
    cpu_set_t set;
    size_t n = 0;
    sv_buf_init(&b);
    snprintf(p->device, sizeof p->device, "cpu");
    if (sv_file_read_stream(&b, "/proc/self/status", 1 << 16, NULL) == SV_OK && b.len) {
        const char *list = strstr(b.data, name);
        list = list ? list + strlen(name) : "";
        list += strspn(list, " \t");
        snprintf(p->device, sizeof p->device, "cpu %.*s", (int)strcspn(list, "\n"), list);
    }
    sv_buf_fini(&b);
    if (sched_getaffinity(0, sizeof set, &set))
        return;
    for (int node = 0; node < MOST_NODES && n + 4 < sizeof p->node; node++) {
        bool has = false;
        for (int cpu = 0; cpu < CPU_SETSIZE && !has; cpu++) {
            char path[80];
            snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpu%d", node, cpu);
            has = CPU_ISSET(cpu, &set) && access(path, F_OK) == 0;
        }
        if (has)
            n += (size_t)snprintf(p->node + n, sizeof p->node - n, n ? ",%d" : "%d", node);
    }
}

/* With a single node the system reports -1. */
static void find_node_of_gpu(struct place *p, const char *pci)
{
    char path[80];
    struct sv_buf b;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci);
    for (char *c = path; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    sv_buf_init(&b);
    if (sv_file_read_stream(&b, path, 64, NULL) == SV_OK && b.len &&
        isdigit((unsigned char)b.data[0]))
        snprintf(p->node, sizeof p->node, "%d", atoi(b.data));
    sv_buf_fini(&b);
}

static void find(struct place *p, const struct sv_engine *e)
{
    struct sv_dev_place at;
    memset(p, 0, sizeof *p);
    sv_dev_place(e->dev, &at);
    p->process = sv_mpi_ranks().rank;
    sv_host_name(p->host);
    snprintf(p->link, sizeof p->link, "%s",
             at.gpu < 0 && e->ranks && e->ranks->world.hosts ? "TCP" : at.link);
    if (at.gpu < 0) {
        find_processors(p);
        return;
    }
    snprintf(p->device, sizeof p->device, "%s %d", sv_dev_backend(e->dev)->name, at.gpu);
    find_node_of_gpu(p, at.pci);
}

int sv_places_log(struct sv_engine *e, const struct sv_engine_options *opts, struct sv_err *err)
{
    const struct sv_ranks r = sv_dev_ranks(e->dev), all = sv_mpi_ranks();
    struct place own, table[SV_MAX_RANKS];
    int rc = SV_OK;
    if (r.n == 1 && opts->replicas < 2)
        return SV_OK;
    find(&own, e);
    table[0] = own;
    if (r.n > 1)
        rc = sv_world_swap(&e->ranks->world, &own, sizeof own, table, err);
    for (int32_t i = 0; i < r.n && r.rank == 0 && !rc; i++) {
        const struct place *p = &table[i];
        sv_log(SV_LOG_INFO, "process %d: replica %d, rank %d, host %s, %s, NUMA node %s%s%s",
               p->process, all.n > 1 ? all.rank / r.n : opts->replica, i, p->host, p->device,
               p->node[0] ? p->node : "unknown", p->link[0] ? ", " : "", p->link);
    }
    return rc;
}
