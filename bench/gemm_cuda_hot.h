/*
 * gemm_cuda_hot.h - products of many rows on a card that has been busy for a while: clock, power,
 * and the speed relative to a short run.
 *
 * Included by gemm_cuda.cu after its timing. Power and clock are read from NVML every ten
 * milliseconds during the work. Must not: check anything.
 */
#ifndef SV_BENCH_GEMM_CUDA_HOT_H
#define SV_BENCH_GEMM_CUDA_HOT_H

#include <dlfcn.h>

/* A sample of the card's state from NVML. */
struct reading {
    double watts, mhz;
};

static struct reading read_card(void)
{
    struct field { /* nvmlFieldValue_t */
        unsigned id, scope;
        long long when, took;
        int type, rc;
        union {
            double d;
            unsigned u;
            unsigned long long ull;
        } value;
    };
    typedef int init_fn(void);
    typedef int handle_fn(unsigned, void **);
    typedef int fields_fn(void *, int, struct field *);
    typedef int clock_fn(void *, int, unsigned *);
    enum { POWER_INSTANT = 186, SM_CLOCK = 1 };
    static fields_fn *fields;
    static clock_fn *clock;
    static void *card;
    static bool tried;
    struct reading r = {0, 0};
    if (!tried) {
        void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        init_fn *init = lib ? (init_fn *)dlsym(lib, "nvmlInit_v2") : NULL;
        handle_fn *handle = lib ? (handle_fn *)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2") : NULL;
        tried = true;
        if (init && handle && !init() && !handle(0, &card)) {
            fields = (fields_fn *)dlsym(lib, "nvmlDeviceGetFieldValues");
            clock = (clock_fn *)dlsym(lib, "nvmlDeviceGetClockInfo");
        }
    }
    struct field f = {};
    unsigned mhz = 0;
    f.id = POWER_INSTANT;
    if (fields && !fields(card, 1, &f) && !f.rc)
        r.watts = f.value.u / 1e3;
    if (clock && !clock(card, SM_CLOCK, &mhz))
        r.mhz = mhz;
    return r;
}

struct heat {
    double us, mj;     /* of a layer */
    double watts, ghz; /* means of what was read meanwhile */
};

/* Replays for `busy` milliseconds, then for as long again, reading the card all the while. */
static struct heat time_hot(struct sv_cuda *cu, const struct stack *s, int32_t n, int what,
                            int layers, double busy)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t e[2];
    float ms = 0;
    struct heat h = {};
    for (int i = 0; i < 2; i++)
        OK(cudaEventCreate(&e[i]));
    OK(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal));
    enqueue(cu, s, n, what, layers);
    OK(cudaStreamEndCapture(cu->stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, cu->stream));
    int reps = 1, n_read = 0;
    for (int round = 0; round < 3; round++) {
        OK(cudaEventRecord(e[0], cu->stream));
        for (int i = 0; i < reps; i++)
            OK(cudaGraphLaunch(exec, cu->stream));
        OK(cudaEventRecord(e[1], cu->stream));
        while (round == 2 && cudaEventQuery(e[1]) == cudaErrorNotReady) {
            const struct timespec pause = {0, 10000000};
            const struct reading r = read_card();
            h.watts += r.watts;
            h.ghz += r.mhz / 1e3;
            n_read++;
            nanosleep(&pause, NULL);
        }
        OK(cudaStreamSynchronize(cu->stream));
        OK(cudaEventElapsedTime(&ms, e[0], e[1]));
        if (round == 0)
            reps = (int)(busy / ms) + 1;
    }
    h.watts /= n_read ? n_read : 1;
    h.ghz /= n_read ? n_read : 1;
    h.us = 1e3 * ms / reps / layers;
    h.mj = h.us * h.watts / 1e3;
    spread = 0;
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++)
        OK(cudaEventDestroy(e[i]));
    return h;
}

static const struct hot_way {
    const char *name, *variant;
    int what;
    int32_t halves, whole;
} hot_ways[] = {
    {"layer gated+3 small", "built-in", ALL | FUSED | WITH_GLUE, 0, 0},
    {"qkv", "built-in", 1, 0, 0},
    {"o", "built-in", 2, 0, 0},
    {"gate_up gated", "built-in", 4 | FUSED, 0, 0},
    {"down", "built-in", 8, 0, 0},
    {"head_argmax", "built-in", WITH_HEAD, 0, 0},
    {"head_argmax", "passes", WITH_HEAD, -1, -1},
    {"layer gated+3 small", "no halves of k", ALL | FUSED | WITH_GLUE, -1, 0},
    {"layer", "library", ALL | LIBRARY, 0, 0},
    {"qkv", "library", 1 | LIBRARY, 0, 0},
    {"o", "library", 2 | LIBRARY, 0, 0},
    {"gate_up", "library", 4 | LIBRARY, 0, 0},
    {"down", "library", 8 | LIBRARY, 0, 0},
};

/* Busy first, until the card's power is what it allows over a second. rows: the counts, or none for
 * the usual. */
static void hot(struct sv_cuda *cu, struct stack *s, double busy, int n_rows, char **rows)
{
    static const int32_t counts[] = {512, 256, 192, 128};
    const int N = (int)(sizeof hot_ways / sizeof(struct hot_way));
    const bool library_too = !in_bytes && have_library(cu);
    time_hot(cu, s, 512, ALL | FUSED, LAYERS, 2 * busy);
    printf("rows: us, mJ, W, GHz, share of what the tensor cores do at that clock; of a layer\n");
    for (int i = 0; i < (n_rows ? n_rows : 4); i++) {
        const int32_t n = n_rows ? atoi(rows[i]) : counts[i];
        for (int w = 0; w < N; w++) {
            if ((n <= 256 && (hot_ways[w].halves || hot_ways[w].whole)) ||
                (hot_ways[w].what & LIBRARY && !library_too))
                continue;
            const int layers = hot_ways[w].what & ALL ? LAYERS : 1,
                      bits = hot_ways[w].what & (ALL | WITH_HEAD);
            cu->gemm->tune_halves = hot_ways[w].halves;
            cu->gemm->tune_whole = hot_ways[w].whole;
            const struct heat h = time_hot(cu, s, n, hot_ways[w].what, layers, busy);
            const double tflops = bytes_of(bits, 1) * n / h.us / 1e6;
            row(in_bytes ? "fp8" : "sm90", hot_ways[w].name, hot_ways[w].variant, n, h.us * layers,
                bits, layers);
            printf("%4d %-17s %-20s %7.2f us %6.2f mJ %4.0f W %.2f GHz %3.0f %%\n", n,
                   hot_ways[w].variant, hot_ways[w].name, h.us, h.mj, h.watts, h.ghz,
                   100 * tflops / (cu->n_sms * (in_bytes ? 8.192 : 4.096) * h.ghz));
            fflush(stdout);
        }
    }
    cu->gemm->tune_halves = cu->gemm->tune_whole = 0;
}

[[maybe_unused]] static void run_hot(struct stack *s, double busy, int n_rows, char **rows)
{
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    hot(&cu, s, busy, n_rows, rows);
    close_device(&cu);
}

#endif
