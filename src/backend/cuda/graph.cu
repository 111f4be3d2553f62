/*
 * graph.cu - graph_run: work that the step enqueues again and again is captured once per key and
 * replayed.
 *
 * Called through the table in device.cu. A key's first run is eager, so that every kernel is
 * loaded and every attribute set before a capture; the second is captured and launched; later ones
 * are launches alone. Replayed or eager, the same kernels run with the same arguments in the same
 * order, so the bits are the same. The table is made at open and never grows: when it is full, new
 * keys stay eager. Must not: capture anything that allocates, synchronises or reads host memory
 * that moves.
 */
#include "backend/cuda/nccl.h"
#include "backend/cuda/watch.h"

#define MAX_GRAPHS 4096 /* a power of two; at most three quarters are used */

struct graph_entry {
    uint64_t key;
    bool used, broken;    /* broken: could not be captured, stays eager */
    cudaGraphExec_t exec; /* NULL until the second run */
    uint32_t n_joins;     /* in it, and the last one's kind */
    enum sv_join last_join;
};

struct sv_cuda_graphs {
    int32_t n;
    struct graph_entry entry[MAX_GRAPHS];
};

int sv_cuda_graphs_open(struct sv_cuda *cu, struct sv_err *err)
{
    cu->graphs = (struct sv_cuda_graphs *)sv_calloc(1, sizeof *cu->graphs);
    return cu->graphs ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "no memory for the table of graphs");
}

void sv_cuda_graphs_clear(struct sv_cuda *cu)
{
    if (!cu->graphs)
        return;
    for (int32_t i = 0; i < MAX_GRAPHS; i++) {
        struct graph_entry *e = &cu->graphs->entry[i];
        if (e->exec && sv_cuda_frees(cu))
            sv_cuda_check(cu, cudaGraphExecDestroy(e->exec), "cudaGraphExecDestroy");
        *e = graph_entry{};
    }
    cu->graphs->n = 0;
}

void sv_cuda_graphs_close(struct sv_cuda *cu)
{
    sv_cuda_graphs_clear(cu);
    sv_free(cu->graphs);
    cu->graphs = NULL;
}

/* Finds or adds the key's entry; NULL: the table is full. *seen: it existed before. */
static struct graph_entry *find(struct sv_cuda_graphs *g, uint64_t key, bool *seen)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    for (uint32_t i = (uint32_t)(h >> 32);; i++) {
        struct graph_entry *e = &g->entry[i & (MAX_GRAPHS - 1)];
        *seen = e->used && e->key == key;
        if (*seen)
            return e;
        if (!e->used) {
            if (g->n >= MAX_GRAPHS / 4 * 3)
                return NULL;
            g->n++;
            e->used = true;
            e->key = key;
            return e;
        }
    }
}

/* Records what enqueue does. False: nothing was recorded and nothing ran. */
static bool capture(struct sv_cuda *cu, struct graph_entry *e, void (*enqueue)(void *user),
                    void *user)
{
    cudaGraph_t graph = NULL;
    /* Making a graph may synchronise the device, which a kernel that waits for another rank must
     * not block. */
    if (cu->peers && !sv_cuda_wait_latched(cu, NULL, "the queue's end"))
        return false;
    if (!sv_cuda_check(cu, cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture"))
        return false;
    const uint32_t n_joins = cu->n_joins;
    cu->capturing = true;
    enqueue(user);
    cu->capturing = false;
    e->n_joins = cu->n_joins - n_joins;
    e->last_join = cu->last_join;
    cu->n_joins = n_joins; /* what is captured counts when it is launched */
    bool ok = sv_cuda_check(cu, cudaStreamEndCapture(cu->stream, &graph), "cudaStreamEndCapture") &&
              sv_cuda_check(cu, cudaGraphInstantiate(&e->exec, graph, 0), "cudaGraphInstantiate");
    if (graph)
        sv_cuda_check(cu, cudaGraphDestroy(graph), "cudaGraphDestroy");
    if (!ok)
        e->exec = NULL;
    return ok;
}

void sv_cuda_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    bool seen = false;
    SV_REQUIRE(!cu->capturing);
    if (sv_cuda_is_stuck(cu))
        return;
    sv_cuda_check(cu, cudaSetDevice(cu->ordinal), "cudaSetDevice");
    struct graph_entry *e = cu->graphs ? find(cu->graphs, key, &seen) : NULL;
    if (!e || !seen || e->broken) {
        enqueue(user);
        return;
    }
    if (!e->exec && !capture(cu, e, enqueue, user)) {
        e->broken = true; /* the latched error has the reason; this run has no results */
        return;
    }
    cu->n_joins += e->n_joins;
    cu->last_join = e->n_joins ? e->last_join : cu->last_join;
    if (e->n_joins && cu->peers->hosts && cu->peers->hosts->ends)
        return;
    if (sv_cuda_check(cu, cudaGraphLaunch(e->exec, cu->stream), "cudaGraphLaunch"))
        sv_cuda_launched(cu, "graph", key);
}
