/*
 * bench.h - front header of src/bench: salvo-bench, the program that measures speed.
 *
 * Called between the files of this folder and by tests; the program salvo carries none of it. Sits
 * on top of cli.h (options, prompts, tables, the plain and DFlash arms of a pair) and engine.h.
 * Must not: be reachable from a command that answers requests.
 */
#ifndef SV_BENCH_H
#define SV_BENCH_H

#include "cli/cli.h"
#include "cli/measure.h"
#include "engine/engine.h"

/* `salvo-bench serve` (serve.c): load on a running server. */
int sv_bench_serve(int argc, char **argv);

/* `salvo-bench replay` (replay.c): a recorded engine's passes once more. */
int sv_bench_replay(int argc, char **argv);

/* random.c: decode, verify and prefill with weights that were never trained. */
struct sv_bench_random_opts {
    const char *config_dir, *tmp_dir;
    int64_t verify, prefill, repeat;
    double seconds; /* of each measurement */
};
int sv_bench_random_measure(const struct sv_bench_random_opts *o,
                            const struct sv_engine_options *eo, const char *format,
                            struct sv_buf *out);

/* random_weights.c: DIR/model.safetensors with random bf16 weights of DIR/config.json's shapes,
 * beside a copy of config.json, in a new directory below tmp_dir; its path goes to *dir (sv_alloc).
 */
int sv_bench_random_weights(const char *config_dir, const char *tmp_dir, char **dir,
                            struct sv_err *err);
void sv_bench_random_weights_remove(char *dir); /* deletes the directory and frees dir */

#endif
