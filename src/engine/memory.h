/*
 * memory.h - the sizes of the page pools, and the owners of a device's memory.
 *
 * Called by engine.c when an engine opens.
 */
#ifndef SV_ENGINE_MEMORY_H
#define SV_ENGINE_MEMORY_H

#include "backend/device.h"
#include "cache/cache.h"

struct sv_engine;

/* memory.c: what determines the size of the pools. Bytes; n_total 0: the device shares the host's
 * memory. */
struct sv_memory_ask {
    int64_t n_free, n_total, ram_bytes;
    int64_t later_bytes; /* taken after the pools */
    double share;        /* of n_total; 0 = 0.9 */
    int64_t cache_bytes; /* the user's option; 0 = not set */
    int32_t page_size, n_slots, context;
    int32_t n_positions; /* a sequence may need pages for: more than the context */
    int32_t step_rows;   /* that the steps in flight may add to all sequences together */
    int32_t most_pages;  /* of every pool, tests: 0 = by bytes */
    int32_t n_parts;     /* of the slots, each with a pool (sv_cache_group_desc); 0 = 1 */
    bool keep_prefixes;
    bool quiet;                        /* another rank prints the messages */
    struct sv_cache_group_desc *group; /* (n_groups) all of page_size; their n_pages are set */
    int32_t n_groups;
};
/* Pages of each pool: groups that keep all positions get the same number, sliding ones the windows
 * of as many sequences, states the slots' and a share for snapshots. Refuses, with the context that
 * would fit, when one full sequence does not. */
int sv_memory_pages(const struct sv_memory_ask *a, struct sv_err *err);
/* What the weights of all ranks take at least: of a directory kept as they are there, made up or
 * expanded to their stored type. */
int64_t sv_memory_least_weights(const struct sv_config *cfg, const char *dir, bool made,
                                bool expanded);
/* Before weights of n_bytes, those of all ranks, are loaded onto a device with memory of its own:
 * does its rank's part fit at all? */
int sv_memory_check_weights(struct sv_dev *dev, const char *what, int64_t n_bytes,
                            struct sv_err *err);
/* What the device has, once weights and buffers are in place. */
void sv_memory_ask_device(struct sv_memory_ask *a, struct sv_engine *e, int32_t max_rows);
/* What this process allocated on the device, target_bytes of it for the target's weights: what the
 * backend counted, where it counts (sv_dev_held), so that the rows add up to all of it. On the
 * host: weights as published, and the pools. */
enum { SV_MEMORY_ROWS = SV_MAX_GROUPS + 8 };
struct sv_memory_row {
    int64_t n_bytes;
    char name[40], note[96];
};
int32_t sv_memory_table(const struct sv_engine *e, int64_t target_bytes,
                        struct sv_memory_row row[SV_MEMORY_ROWS]);
void sv_memory_log(const struct sv_engine *e, int64_t target_bytes);

#endif
