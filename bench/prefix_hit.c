/*
 * prefix_hit.c - the time from a prompt to its first token, for a new prompt and for a cached one
 * (recurrent models: by a snapshot of their states).
 *
 * Usage: prefix_hit CONFIG_DIR DEVICE TOKENS [ROUNDS]. Random weights of the shapes of
 * CONFIG_DIR/config.json. Prints medians in ms, and the number of cached tokens. Must not: count
 * the first round, which captures graphs.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ROUNDS 64

/* Steps until the first token, then to the request's end. Returns ms, below 0 on error. */
static double first_token(struct sv_engine *e, const int32_t *ids, int32_t n, int32_t *known,
                          struct sv_err *err)
{
    struct sv_request r = sv_default_request(e);
    double ms = -1;

    r.prompt_ids = ids;
    r.n_prompt_ids = n;
    r.max_tokens = 4;
    r.ignore_eos = true;
    *known = sv_engine_known(e, &r);

    const int64_t start = sv_clock_us();
    int rc = sv_engine_submit(e, &r, NULL, err);
    while (!rc && e->sched.n_unfinished) {
        const int64_t before = e->stats.n_tokens;
        rc = sv_engine_step(e, err);
        if (ms < 0 && e->stats.n_tokens > before)
            ms = 1e-3 * (double)(sv_clock_us() - start);
        sv_engine_deliver(e);
    }
    return rc ? -1 : ms;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: prefix_hit CONFIG_DIR DEVICE TOKENS [ROUNDS]\n");
        return 2;
    }
    const int32_t n = atoi(argv[3]), rounds = argc > 4 ? atoi(argv[4]) : 5;
    const struct sv_engine_options o = {
        .target_dir = argv[1], .device = argv[2], .context = n + 64, .max_sequences = 1};
    const struct sv_engine_tuning tuning = {.random_weights = true};
    int32_t *ids = sv_calloc((size_t)n, sizeof *ids), known[2] = {0};
    double ms[2][MAX_ROUNDS];
    struct sv_engine *e = NULL;
    struct sv_err err = {0};

    int rc = ids && rounds > 0 && rounds <= MAX_ROUNDS
                 ? sv_engine_open_tuned(&e, &o, &tuning, NULL, &err)
                 : sv_fail(&err, SV_EINVAL, -1, "1 to %d rounds", MAX_ROUNDS);
    for (int32_t i = -1; i < rounds && !rc; i++) {
        for (int32_t j = 0; j < n; j++)
            ids[j] = 100 + (j * 7919 + (i + 1) * 104729) % 100000;
        for (int32_t hit = 0; hit < 2 && !rc; hit++) {
            const double t = first_token(e, ids, n, &known[hit], &err);
            rc = t < 0 ? SV_EINVAL : SV_OK;
            if (i >= 0)
                ms[hit][i] = t;
        }
    }
    for (int32_t hit = 0; hit < 2 && !rc; hit++) {
        qsort(ms[hit], (size_t)rounds, sizeof ms[hit][0], by_size);
        printf("%s,%s,%d,%d,%.2f,%.2f,%.2f\n", argv[1], hit ? "known" : "new", n, known[hit],
               ms[hit][rounds / 2], ms[hit][0], ms[hit][rounds - 1]);
    }
    if (rc)
        fprintf(stderr, "prefix_hit: %s\n", err.msg);
    sv_engine_close(e);
    sv_free(ids);
    return rc != 0;
}
