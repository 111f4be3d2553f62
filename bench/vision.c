/*
 * vision.c - time of a pass of a vision tower, with random weights of Qwen3-VL-8B's shape.
 *
 *     build/bench/vision [DEVICE [f32|bf16 [DEPTH [SIDE]]]]      DEVICE: cuda cpu
 *
 * Prints, for images of 256, 1,024 and 4,096 patches (or SIDE times SIDE), ms a pass (least and
 * median of some), upload included, and the device's time of each op. Must not: time anything that
 * the engine would not call.
 */
#include "model/vision.h"

#include "backend/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, ROWS = 4096 };

static void die(const char *what, const struct sv_err *err)
{
    fprintf(stderr, "vision: %s: %s\n", what, err->msg);
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void time_image(struct sv_tower *t, int32_t h, int32_t w)
{
    struct sv_err err = {0};
    const size_t len = (size_t)(h * w) * (size_t)sv_vision_patch_len(&t->cfg);
    float *patches = calloc(len, sizeof *patches);
    struct sv_rng rng = {1};
    void *rows;
    int64_t us[RUNS];
    for (size_t i = 0; i < len; i++)
        patches[i] = sv_rng_normal(&rng);
    if (sv_dev_alloc(t->dev, &rows, sv_tower_rows_bytes(t, h * w), &err))
        die("memory", &err);
    for (int i = -1; i < RUNS; i++) {
        const int64_t start = sv_clock_us();
        if (sv_tower_run(t, ROWS, h, w, patches, rows, &err) || sv_dev_sync(t->dev, &err))
            die("run", &err);
        if (i >= 0)
            us[i] = sv_clock_us() - start;
    }
    qsort(us, RUNS, sizeof *us, by_size);
    printf("%d patches: %.2f ms, median %.2f\n", h * w, (double)us[0] / 1e3,
           (double)us[RUNS / 2] / 1e3);
    struct sv_trace *trace;
    if (sv_trace_begin(&trace, t->dev, &err))
        die("trace", &err);
    sv_trace_start(trace, SV_TRACE_OPS);
    if (sv_tower_run(t, ROWS, h, w, patches, rows, &err))
        die("run", &err);
    sv_dev_mark(t->dev, 0);
    if (sv_dev_wait(t->dev, 0, &err))
        die("run", &err);
    int32_t n;
    const struct sv_trace_class *c = sv_trace_read(trace, &n);
    for (int32_t i = 0; i < n; i++)
        printf("    %-32s %5d %10.1f us\n", c[i].name, c[i].n, c[i].us);
    sv_trace_end(trace);
    sv_dev_free(t->dev, rows);
    free(patches);
}

int main(int argc, char **argv)
{
    struct sv_err err = {0};
    struct sv_dev *dev;
    struct sv_tower *t;
    const struct sv_dev_opts o = {.backend = argc > 1 ? argv[1] : NULL,
                                  .compute =
                                      argc > 2 && !strcmp(argv[2], "f32") ? SV_F32 : SV_BF16};
    struct sv_config cfg = {.hidden_size = 4096,
                            .vision = {.depth = argc > 3 ? atoi(argv[3]) : 27,
                                       .hidden_size = 1152,
                                       .intermediate_size = 4304,
                                       .n_heads = 16,
                                       .patch = 16,
                                       .temporal = 2,
                                       .merge = 2,
                                       .n_positions = 2304,
                                       .side = 48,
                                       .n_deep = 3,
                                       .deep = {8, 16, 24}}};
    if (sv_dev_open(&dev, &o, &err) || sv_tower_open(&t, dev, NULL, &cfg, &err))
        die("open", &err);
    struct sv_needs needs;
    sv_needs_init(&needs, dev, ROWS);
    needs.lim.max_logit_rows = 1;
    needs.lim.max_positions = ROWS;
    needs.lim.max_vocab = 1024;
    sv_tower_needs(t, &needs);
    if (sv_dev_reserve(dev, &needs.lim, &err))
        die("reserve", &err);
    printf("%s, %s, heads of %d\n", sv_dev_describe(dev), sv_dtype_name(o.compute), (int)t->head);
    if (argc > 4)
        time_image(t, atoi(argv[4]), atoi(argv[4]));
    for (int32_t side = 16; side <= 64 && argc <= 4; side *= 2)
        time_image(t, side, side);
    sv_tower_close(t);
    sv_dev_close(dev);
    return 0;
}
