/*
 * memory.c - the sizes of the cache pools, and the table of the memory's use.
 *
 * Called by engine.c once weights and buffers are in place, so that the remaining memory is known.
 * sv_memory_pages is plain arithmetic, testable without a device. Must not: take memory other than
 * the pools'.
 */
#define _POSIX_C_SOURCE 200809L /* sysconf */

#include "engine/engine.h"

#include <unistd.h>

enum { KEPT_TIMES = 4, MOST_PAGES = 1 << 20 };
/* Snapshots of states get 1/4 of the memory. */
enum { SNAPSHOT_SHARE = 4 };
/* Sliding groups get 1/8 of the pages in addition, for prefixes before the windows. */
enum { INSIDE_SHARE = 8 };

/* Kept free in addition: for graphs and the driver. */
#define RESERVE_BYTES ((int64_t)256 << 20)

static long long mib(int64_t n_bytes)
{
    return (long long)(n_bytes + (1 << 19)) >> 20;
}

/* Bytes the pools may take. */
static int64_t allowed(const struct sv_memory_ask *a)
{
    if (!a->n_total)
        return a->cache_bytes ? a->cache_bytes : a->ram_bytes / 5 * 2;
    int64_t others = a->n_total - a->n_free;
    int64_t left =
        (int64_t)((double)a->n_total * (a->share > 0 ? a->share : 0.9)) - others - a->later_bytes;
    left = left < a->n_free - a->later_bytes ? left : a->n_free - a->later_bytes;
    return a->cache_bytes && a->cache_bytes < left ? a->cache_bytes : left;
}

static int32_t pages_for(const struct sv_memory_ask *a, int64_t n_positions)
{
    return (int32_t)((n_positions + a->page_size - 1) / a->page_size);
}

/* Pages of a group for n pages of the groups that keep all positions, of which a sequence has
 * `one`: a sliding group has the windows of as many sequences, the rows of steps in flight, and
 * some pages for prefixes that end inside of others. */
static int64_t pages_beside(const struct sv_memory_ask *a, const struct sv_cache_group_desc *d,
                            int64_t n, int64_t one)
{
    if (!d->window || a->most_pages)
        return n;
    int64_t live = pages_for(a, d->window - 1) + 2;
    live = live < one ? live : one;
    const int64_t most = (n * live + one - 1) / one + pages_for(a, a->step_rows) +
                         (a->keep_prefixes ? n / INSIDE_SHARE : 0);
    return n < most ? n : most;
}

static int32_t n_parts(const struct sv_memory_ask *a)
{
    return a->n_parts > 1 ? a->n_parts : 1;
}

/* The same on a device: for its own part, or for all parts. */
static int64_t device_pages(const struct sv_memory_ask *a, const struct sv_cache_group_desc *d,
                            int64_t n, int64_t one)
{
    return pages_beside(a, d, n, one) * (d->own_part ? 1 : n_parts(a));
}

/* Bytes of all paged groups if each part has n pages in the groups that keep all positions. */
static int64_t bytes_of(const struct sv_memory_ask *a, int64_t n, int64_t one)
{
    int64_t n_bytes = 0;
    for (int32_t i = 0; i < a->n_groups; i++)
        if (a->group[i].kind != SV_CACHE_STATE)
            n_bytes += device_pages(a, &a->group[i], n, one) * a->group[i].page_size *
                       sv_cache_position_bytes(&a->group[i]);
    return n_bytes;
}

/* The most pages that fit; one 0: for a single sequence that has all of them. */
static int64_t most_that_fit(const struct sv_memory_ask *a, int64_t n_bytes, int64_t one)
{
    int64_t lo = 0, hi = MOST_PAGES;
    while (bytes_of(a, hi, one ? one : hi) <= n_bytes && hi < INT32_MAX)
        hi *= 2;
    while (hi - lo > 1) {
        const int64_t n = lo + (hi - lo) / 2;
        *(bytes_of(a, n, one ? one : n) <= n_bytes ? &lo : &hi) = n;
    }
    return lo;
}

/* bytes: for pages, out of `all` allowed bytes. */
static int refuse(const struct sv_memory_ask *a, int64_t all, int64_t bytes, int64_t one,
                  struct sv_err *err)
{
    /* Rounded apart: else both may be the same number. */
    const long long need = (long long)((bytes_of(a, one, one) + (1 << 20) - 1) >> 20),
                    left = all > 0 ? (long long)(all >> 20) : 0;
    const int64_t fit = most_that_fit(a, bytes, 0) * a->page_size - (a->n_positions - a->context);
    char what[160], states[96] = "";
    if (bytes < all)
        snprintf(states, sizeof states, " beside %lld MiB for recurrent states of %d sequences,",
                 mib(all - bytes), a->n_slots);
    if (fit > 0)
        snprintf(what, sizeof what, "a context of %lld would fit", (long long)fit);
    else
        snprintf(what, sizeof what,
                 "no context would fit: fewer sequences or prompt rows a step need less");
    if (!a->n_total || a->cache_bytes)
        return sv_fail(
            err, SV_ENOMEM, -1,
            "one sequence of %d tokens needs %lld MiB of cache%s and %lld MiB are allowed; %s",
            a->context, need, states, left, what);
    return sv_fail(
        err, SV_ENOMEM, -1,
        "one sequence of %d tokens needs %lld MiB of cache%s; of the device's %lld MiB weights, "
        "buffers and other programs hold %lld, and %lld are left of the share of %.2f; %s",
        a->context, need, states, mib(a->n_total), mib(a->n_total - a->n_free), left,
        a->share > 0 ? a->share : 0.9, what);
}

/* Sizes the states of all slots, and their snapshots from a share of the rest, which leaves `need`
 * bytes for the pages of one sequence. Returns the bytes left for pages. */
static int64_t size_states(const struct sv_memory_ask *a, int64_t n_bytes, int64_t need)
{
    int64_t one = 0;
    for (int32_t i = 0; i < a->n_groups; i++) {
        struct sv_cache_group_desc *d = &a->group[i];
        if (d->kind != SV_CACHE_STATE)
            continue;
        d->n_pages = 0;
        n_bytes -= sv_cache_group_bytes(d, a->n_slots);
        one += sv_cache_group_bytes(d, 1);
    }
    if (!one || n_bytes < need || !a->keep_prefixes)
        return n_bytes;
    const int64_t share = n_bytes / SNAPSHOT_SHARE, spare = n_bytes - need,
                  fit = (share < spare ? share : spare) / one,
                  most = (int64_t)a->n_slots * KEPT_TIMES;
    for (int32_t i = 0; i < a->n_groups; i++)
        if (a->group[i].kind == SV_CACHE_STATE)
            a->group[i].n_pages = (int32_t)(fit < most ? fit : most);
    return n_bytes - one * (fit < most ? fit : most);
}

int sv_memory_pages(const struct sv_memory_ask *a, struct sv_err *err)
{
    /* Of the part with the most slots. */
    const int64_t one = pages_for(a, a->n_positions),
                  want = one * ((a->n_slots + n_parts(a) - 1) / n_parts(a));
    const int64_t all = allowed(a), bytes = size_states(a, all, bytes_of(a, one, one));
    int64_t fit = bytes > 0 ? most_that_fit(a, bytes, one) : 0;
    if (a->most_pages && fit > a->most_pages)
        fit = a->most_pages;
    if (fit < one)
        return refuse(a, all, bytes, one, err);
    if (fit < want && !a->quiet)
        sv_log(SV_LOG_INFO, "cache: room for %lld of %lld tokens of %d full sequences",
               (long long)(fit * n_parts(a) * a->page_size),
               (long long)(want * n_parts(a) * a->page_size), a->n_slots);
    /* An explicit size is used in full; otherwise cached prefixes get a few times as much as the
     * running sequences, so that memory is not filled without benefit. */
    bool sized = a->cache_bytes || a->most_pages || (a->n_total && a->share > 0);
    int64_t most = !a->keep_prefixes ? want
                   : sized           ? (want > MOST_PAGES ? want : MOST_PAGES)
                   : a->n_total      ? want * KEPT_TIMES
                                     : want;
    most = most < INT32_MAX / n_parts(a) ? most : INT32_MAX / n_parts(a); /* they are numbered */
    const int64_t n = fit < most ? fit : most;
    for (int32_t i = 0; i < a->n_groups; i++)
        if (a->group[i].kind != SV_CACHE_STATE)
            a->group[i].n_pages = (int32_t)device_pages(a, &a->group[i], n, one);
    return SV_OK;
}

int64_t sv_memory_least_weights(const struct sv_config *cfg, const char *dir, bool made,
                                bool expanded)
{
    const int64_t whole = sv_config_n_params(cfg) * (int64_t)sv_dtype_bytes(cfg->stored_dtype),
                  kept = made ? sv_config_n_bytes(cfg) : sv_ckpt_dir_bytes(dir);
    return expanded || kept > whole ? whole : kept;
}

int sv_memory_check_weights(struct sv_dev *dev, const char *what, int64_t n_bytes,
                            struct sv_err *err)
{
    const int32_t n = sv_dev_ranks(dev).n;
    const int64_t own = n_bytes / n; /* at least: some tensors are whole on every rank */
    int64_t n_free, n_total;
    sv_dev_memory(dev, &n_free, &n_total);
    if (!n_total || own <= n_free)
        return SV_OK;
    return sv_fail(err, SV_ENOMEM, -1, "%s: %s %lld MiB and %lld of the device's %lld MiB are free",
                   what, n > 1 ? "a rank's part of the weights takes" : "the weights take",
                   mib(own), mib(n_free), mib(n_total));
}

void sv_memory_ask_device(struct sv_memory_ask *a, struct sv_engine *e, int32_t max_rows)
{
    sv_dev_memory(e->dev, &a->n_free, &a->n_total);
    a->ram_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE) /
                   (e->ranks ? e->ranks->world.here.n : 1);
    a->quiet = sv_dev_ranks(e->dev).rank > 0;
    a->later_bytes = RESERVE_BYTES + e->drafter->row_bytes * max_rows + sv_images_bytes(e);
}

static void add(struct sv_memory_row *row, int32_t *n, int64_t n_bytes, const char *name,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void add(struct sv_memory_row *row, int32_t *n, int64_t n_bytes, const char *name,
                const char *fmt, ...)
{
    struct sv_memory_row *r = &row[*n];
    va_list ap;
    if (!n_bytes)
        return;
    ++*n;
    SV_REQUIRE(*n <= SV_MEMORY_ROWS);
    *r = (struct sv_memory_row){.n_bytes = n_bytes};
    snprintf(r->name, sizeof r->name, "%s", name);
    va_start(ap, fmt);
    vsnprintf(r->note, sizeof r->note, fmt, ap);
    va_end(ap);
}

int32_t sv_memory_table(const struct sv_engine *e, int64_t target_bytes,
                        struct sv_memory_row row[SV_MEMORY_ROWS])
{
    int64_t held[SV_MEM_KINDS], n_free, n_total;
    int32_t n = 0;
    sv_dev_memory(e->dev, &n_free, &n_total);
    for (int k = 0; k < SV_MEM_KINDS; k++)
        held[k] = sv_dev_held(e->dev, (enum sv_mem)k);
    /* Where the backend does not count: as published, and as they are read. */
    const int64_t draft = e->drafter->weight_bytes, published = e->model.weights.n_bytes;
    const int64_t tower_bytes = !n_total && e->model.tower ? e->model.tower->weights.n_bytes : 0;
    const int64_t kept = sv_weights_kept_bytes(&e->model.weights);
    if (!n_total && kept > published) /* codes in another order, or their values */
        add(row, &n, kept, "target weights", ", %s from %lld MiB",
            kept > published + published / 8 ? "expanded" : "packed", mib(published));
    else
        add(row, &n, n_total ? target_bytes : published, "target weights", "%s", "");
    add(row, &n, tower_bytes, "vision tower", "%s", "");
    add(row, &n, n_total ? held[SV_MEM_WEIGHTS] - target_bytes : draft, "draft weights", "%s",
        sv_dev_quantizes(e->dev) ? ", in 8 bits and with a head of their own" : "");
    add(row, &n, held[SV_MEM_SCREEN], "head screen", "%s", "");
    add(row, &n, held[SV_MEM_WCOMP], "compressed weights", "%s", "");
    for (int32_t i = 0; i < e->cache.n_groups; i++) {
        const struct sv_cache_group_desc *d = &e->cache.group[i].d;
        const int64_t n_bytes = sv_cache_group_bytes(d, e->cache.n_slots);
        if (d->kind == SV_CACHE_STATE)
            add(row, &n, n_bytes, sv_cache_group_name(d), ", %d slots and %d snapshots, %d layers",
                e->cache.n_slots, d->n_pages, d->n_layers);
        else
            add(row, &n, n_bytes, sv_cache_group_name(d),
                ", %d pages of %d positions, %d layers, %s", d->n_pages, d->page_size, d->n_layers,
                sv_dtype_name(d->dtype));
        held[SV_MEM_ASKED] -= n_bytes;
    }
    const int64_t window = sv_ranks_window_bytes(e);
    add(row, &n, window, "window", "%s", ", parts for the other ranks");
    held[SV_MEM_ASKED] -= window;
    add(row, &n, n_total ? held[SV_MEM_ASKED] : 0, "buffers", "%s", "");
    add(row, &n, n_total ? held[SV_MEM_SCRATCH] : 0, "scratch of kernels", "%s", "");
    return n;
}

/* Logs one line each; shown by default for a device with memory of its own, or several ranks. */
void sv_memory_log(const struct sv_engine *e, int64_t target_bytes)
{
    struct sv_memory_row row[SV_MEMORY_ROWS];
    int64_t n_free, n_total, sum = 0;
    const int32_t n = sv_memory_table(e, target_bytes, row);
    sv_dev_memory(e->dev, &n_free, &n_total);
    const struct sv_ranks ranks = sv_dev_ranks(e->dev);
    const enum sv_log_level level = n_total || ranks.n > 1 ? SV_LOG_INFO : SV_LOG_DEBUG;
    char rank[24] = "";
    if (ranks.n > 1)
        snprintf(rank, sizeof rank, " of rank %d", ranks.rank);
    for (int32_t i = 0; i < n; i++) {
        sum += row[i].n_bytes;
        sv_log(level, "memory%s: %s %lld MiB%s", rank, row[i].name, mib(row[i].n_bytes),
               row[i].note);
    }
    /* The owner of the rest is unknown. */
    if (n_total)
        sv_log(level,
               "memory%s: %lld MiB in all; the driver, code of kernels and other programs hold "
               "about %lld (measured), and %lld of the device's %lld MiB are free",
               rank, mib(sum), mib(n_total - n_free - sum), mib(n_free), mib(n_total));
}
