/*
 * gemm_cuda_hot.h - products of many rows on a card that has been busy for a while: its clock, its power, and what
 * they leave of the speed of a short run.
 *
 * Included by gemm_cuda.cu after its timing. The clock is that of one multiprocessor for 20 us right behind the work.
 * Must not: check anything.
 */
#ifndef SV_BENCH_GEMM_CUDA_HOT_H
#define SV_BENCH_GEMM_CUDA_HOT_H

#include <dlfcn.h>

static __global__ void clock_kernel(float *ghz)
{
    uint64_t t0, t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0));
    const long long c0 = clock64();
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    while (t - t0 < 20000);
    *ghz = (float)(clock64() - c0) / (float)(t - t0);
}

/* The card's energy so far, in mJ, from the driver's library; 0 where there is none. */
static double energy(void)
{
    typedef int init_fn(void);
    typedef int handle_fn(unsigned, void **);
    typedef int energy_fn(void *, unsigned long long *);
    static energy_fn *get;
    static void *card;
    if (!get) {
        void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        init_fn *init = lib ? (init_fn *)dlsym(lib, "nvmlInit_v2") : NULL;
        handle_fn *handle = lib ? (handle_fn *)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2") : NULL;
        if (!init || !handle || init() || handle(0, &card))
            return 0;
        get = (energy_fn *)dlsym(lib, "nvmlDeviceGetTotalEnergyConsumption");
    }
    unsigned long long mj = 0;
    return get && !get(card, &mj) ? (double)mj : 0;
}

struct heat {
    double us, mj; /* of a layer */
    float watts, ghz;
};

/* Replays for `busy` milliseconds, then for as long again with the clock running and energy counted. */
static struct heat time_hot(struct sv_cuda *cu, const struct stack *s, int32_t n, int what, int layers, double busy)
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
    int reps = 1;
    double before = 0, t = 0;
    for (int round = 0; round < 3; round++) {
        before = energy();
        t = now();
        OK(cudaEventRecord(e[0], cu->stream));
        for (int i = 0; i < reps; i++)
            OK(cudaGraphLaunch(exec, cu->stream));
        OK(cudaEventRecord(e[1], cu->stream));
        if (round == 2)
            clock_kernel<<<1, 1, 0, cu->stream>>>((float *)s->ids);
        OK(cudaStreamSynchronize(cu->stream));
        OK(cudaEventElapsedTime(&ms, e[0], e[1]));
        if (round == 0)
            reps = (int)(busy / ms) + 1;
    }
    h.watts = (float)((energy() - before) / (now() - t) / 1e3);
    OK(cudaMemcpy(&h.ghz, s->ids, sizeof h.ghz, cudaMemcpyDeviceToHost));
    h.us = 1e3 * ms / reps / layers;
    h.mj = h.us * h.watts / 1e3;
    spread = 0;
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++)
        OK(cudaEventDestroy(e[i]));
    return h;
}

/* Busy first, until the card's power is what it allows over a second. rows: the counts, or none for the usual. */
static void hot(struct stack *s, double busy, int n_rows, char **rows)
{
    static const int32_t counts[] = {512, 256, 192, 128};
    static const int whats[] = {ALL | FUSED | WITH_GLUE, 1, 2, 4 | FUSED, 8};
    static const char *names[] = {"layer gated+3 small", "qkv", "o", "gate_up gated", "down"};
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    time_hot(&cu, s, 512, 4 | FUSED, LAYERS, 4 * busy);
    printf("rows: us, mJ, W, clock in GHz behind it, share of what the tensor cores do at that clock; of a layer\n");
    for (int i = 0; i < (n_rows ? n_rows : 4) * 2; i++) {
        const int32_t n = n_rows ? atoi(rows[i / 2]) : counts[i / 2];
        const char *way = i % 2 ? "no halves of k" : "built-in";
        if (n <= 256 && i % 2)
            continue;
        cu.gemm->tune_halves = -(i % 2);
        for (int w = 0; w < 5; w++) {
            const struct heat h = time_hot(&cu, s, n, whats[w], LAYERS, busy);
            const double tflops = bytes_of(whats[w] & ALL, 1) * n / h.us / 1e6;
            row("sm90", names[w], way, n, h.us * LAYERS, whats[w] & ALL, LAYERS);
            printf("%4d %-17s %-20s %7.2f us %6.2f mJ %4.0f W %.2f GHz %3.0f %%\n", n, way, names[w], h.us, h.mj, h.watts,
                   h.ghz, 100 * tflops / (cu.n_sms * 4.096 * h.ghz));
        }
        fflush(stdout);
    }
    close_device(&cu);
}

#endif
