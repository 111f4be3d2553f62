/*
 * ranks.c - rank 0's side of an engine that is divided among ranks, and what all ranks do when they
 * open: shared decisions, windows, the list of places that uploads go to.
 *
 * Called by engine.c (open, close), launch.c (passes) and, for uploads, by the device. A step's
 * messages are rank 0's uploads, in order, and the plan of each pass, so that whatever is uploaded
 * reaches every rank. Must not: wait for a follower in a step, or let a rank decide by itself what
 * another must decide alike.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include "engine/engine.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- open */

bool sv_ranks_bound(void)
{
    cpu_set_t set;
    return sv_mpi_ranks().n > 1 && sched_getaffinity(0, sizeof set, &set) == 0 &&
           CPU_COUNT(&set) < sysconf(_SC_NPROCESSORS_ONLN);
}

int32_t sv_ranks_threads(const struct sv_engine_options *opts, struct sv_ranks ranks,
                         struct sv_ranks here)
{
    const int32_t all = opts->n_threads ? opts->n_threads : sv_cpu_count();
    const struct sv_ranks r = opts->n_threads ? ranks : here;
    const int32_t own = all * (r.rank + 1) / r.n - all * r.rank / r.n;
    if (!opts->n_threads && sv_ranks_bound())
        return all;
    return own > 0 ? own : 1;
}

struct sv_world_opts sv_ranks_world(const struct sv_engine_options *opts, int32_t rank)
{
    const int64_t s = opts->device_timeout ? opts->device_timeout : 60;
    const struct sv_ranks ranks = {.rank = rank, .n = opts->tp};
    return (struct sv_world_opts){.n = opts->tp,
                                  /* of those that ranks share */
                                  .n_threads =
                                      sv_ranks_bound() ? 1 : sv_ranks_threads(opts, ranks, ranks),
                                  .timeout_us = s < 0 ? -1 : s * 1000000,
                                  .kills = sv_mpi_ranks().n > opts->tp};
}

/* What processes compare first: of the program, and of the files of target and draft. */
struct introduction {
    char version[16];
    uint32_t options_bytes, pass_bytes;
    int64_t program_bytes;
    uint64_t target, draft;
};

static uint64_t hash_of(uint64_t h, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return h;
}

/* Files of different hosts may have been copied at different times: their last bytes are read. */
static uint64_t file_hash(const char *path, const char *name, bool by_time)
{
    struct stat st = {0};
    char last[4096];
    size_t n = 0;
    if (stat(path, &st))
        return 0;
    FILE *f = by_time ? NULL : fopen(path, "rb");
    const long most = sizeof last, from = st.st_size > most ? st.st_size - most : 0;
    if (f && fseek(f, from, SEEK_SET) == 0)
        n = fread(last, 1, sizeof last, f);
    if (f)
        fclose(f);
    const int64_t of[3] = {st.st_size, by_time ? st.st_mtim.tv_sec : 0,
                           by_time ? st.st_mtim.tv_nsec : 0};
    const uint64_t h = hash_of(hash_of(0xcbf29ce484222325u, name, strlen(name)), of, sizeof of);
    return hash_of(h, last, n);
}

/* Hash of the names and of what file_hash reads. NULL: no model. */
static uint64_t files_hash(const char *model, bool by_time)
{
    DIR *dir = model ? opendir(model) : NULL;
    uint64_t sum = model && !dir ? file_hash(model, "", by_time) : 0;
    for (const struct dirent *d; dir && (d = readdir(dir));) {
        const char *end = strrchr(d->d_name, '.');
        char path[4096];
        if (!end || (strcmp(end, ".safetensors") && strcmp(d->d_name, "config.json")))
            continue;
        snprintf(path, sizeof path, "%s/%s", model, d->d_name);
        sum += file_hash(path, d->d_name, by_time);
    }
    if (dir)
        closedir(dir);
    return sum;
}

int sv_ranks_compare(struct sv_world *w, const struct sv_engine_options *opts, struct sv_err *err)
{
    struct introduction all[SV_MAX_RANKS];
    struct introduction own = {.version = SALVO_VERSION,
                               .options_bytes = sizeof *opts,
                               .pass_bytes = sizeof(struct sv_msg_pass),
                               .target = files_hash(opts->target_dir, !w->hosts),
                               .draft = files_hash(opts->draft_dir, !w->hosts)};
    struct stat st = {0};
    if (stat("/proc/self/exe", &st) == 0)
        own.program_bytes = st.st_size;
    int rc = sv_world_swap(w, &own, sizeof own, all, err);
    for (int32_t r = 1; r < w->ranks.n && !rc; r++) {
        const struct introduction *a = &all[0], *b = &all[r];
        if (memcmp(a, b, offsetof(struct introduction, target)) != 0)
            rc = sv_fail(err, SV_EMISMATCH, -1,
                         "ranks 0 and %d run different programs (%.15s, %lld bytes; %.15s, %lld "
                         "bytes)",
                         r, a->version, (long long)a->program_bytes, b->version,
                         (long long)b->program_bytes);
        else if (a->target != b->target || a->draft != b->draft)
            rc = sv_fail(err, SV_EMISMATCH, -1,
                         "ranks 0 and %d have different files of the %s: names, sizes or %s "
                         "differ",
                         r, a->target != b->target ? "target" : "draft",
                         w->hosts ? "last bytes" : "times");
    }
    return rc;
}

_Static_assert(sizeof(struct sv_engine_options) <= SV_SWAP_BYTES, "options fit one exchange");

int sv_ranks_open(struct sv_engine *e, const struct sv_engine_options *opts,
                  const struct sv_engine_tuning *tuning, struct sv_err *err)
{
    struct sv_rank_group *g = sv_calloc(1, sizeof *g);
    e->ranks = g;
    if (!g)
        return sv_fail(err, SV_ENOMEM, -1, "ranks");
    g->opts = opts;
    g->tuning = tuning;
    g->compares = tuning->compare_ranks;
    if (opts->record_plan) {
        int rc = sv_plan_record_open(&g->record, opts->record_plan, err);
        if (rc)
            return rc;
    }
    g->world.ranks.n = g->world.here.n = 1;
    if (opts->tp < 2)
        return SV_OK;
    struct sv_world_opts o = sv_ranks_world(opts, 0);
    if (tuning->rank_timeout_us)
        o.timeout_us = tuning->rank_timeout_us;
    if (sv_mpi_ranks().n == 1) {
        int rc = sv_world_open(&g->world, &o, err);
        return rc ? rc : sv_world_spawn(&g->world, sv_ranks_follow, g, err);
    }
    if (sv_mpi_ranks().n % o.n)
        return sv_fail(err, SV_EINVAL, -1, "tp is %d, and mpirun started %d processes", o.n,
                       sv_mpi_ranks().n);
    struct sv_engine_options sent = *opts;
    int rc = sv_world_open_mpi(&g->world, &o, err);
    if (!rc)
        rc = sv_ranks_compare(&g->world, opts, err);
    return rc ? rc : sv_world_broadcast(&g->world, &sent, sizeof sent, err);
}

static bool divided(const struct sv_engine *e)
{
    return e->ranks && e->ranks->world.ranks.n > 1;
}

int sv_ranks_broadcast(struct sv_engine *e, void *value, size_t n_bytes, struct sv_err *err)
{
    return divided(e) ? sv_world_broadcast(&e->ranks->world, value, n_bytes, err) : SV_OK;
}

int sv_ranks_least(struct sv_engine *e, int32_t *value, int32_t n, struct sv_err *err)
{
    int32_t all[SV_MAX_RANKS * SV_MAX_GROUPS];
    SV_REQUIRE(n <= SV_MAX_GROUPS);
    if (!divided(e))
        return SV_OK;
    struct sv_world *w = &e->ranks->world;
    int rc = sv_world_swap(w, value, (size_t)n * sizeof *value, all, err);
    for (int32_t i = 0; i < w->ranks.n * n && !rc; i++)
        value[i % n] = all[i] < value[i % n] ? all[i] : value[i % n];
    return rc;
}

static void add_place(struct sv_rank_group *g, void *dev, size_t n_bytes)
{
    if (!dev || !n_bytes)
        return;
    SV_REQUIRE(g->n_places < SV_MOST_PLACES);
    g->place[g->n_places++] = (struct sv_rank_place){dev, n_bytes};
}

/* Lists the buffers in the order in which a step uploads them. */
static void list_places(struct sv_engine *e)
{
    struct sv_rank_group *g = e->ranks;
    const struct sv_batch *b = &e->batch;
    const struct sv_logits *lg = &e->logits;
    const struct sv_token_masks *k = &e->token_masks;
    const size_t slots = (size_t)e->sched.n_slots, rows = (size_t)b->max_rows;
    add_place(g, e->slot_len, slots * sizeof *e->slot_len);
    add_place(g, e->slot_anchor, slots * sizeof *e->slot_anchor);
    add_place(g, e->slot_sampling, slots * sizeof *e->slot_sampling);
    add_place(g, lg->slot_rules, slots * sizeof *lg->slot_rules);
    add_place(g, lg->bias_ids, slots * SV_MAX_BIAS * sizeof *lg->bias_ids);
    add_place(g, lg->bias, slots * SV_MAX_BIAS * sizeof *lg->bias);
    add_place(g, lg->ban_ids, slots * SV_MAX_BAN * sizeof *lg->ban_ids);
    add_place(g, lg->listed, slots * SV_MAX_LISTED * sizeof *lg->listed);
    add_place(g, lg->history, slots * (size_t)lg->history_stride * sizeof *lg->history);
    for (int32_t i = 0; i < e->cache.n_groups; i++) {
        const struct sv_cache_group *c = &e->cache.group[i];
        add_place(g, c->dev_table, slots * (size_t)c->stride * sizeof *c->dev_table);
        if (c->state)
            add_place(g, c->state, (size_t)sv_cache_group_bytes(&c->d, e->sched.n_slots));
    }
    add_place(g, b->dev_block, b->block_words * sizeof *b->dev_block);
    add_place(g, b->chosen, rows * sizeof *b->chosen);
    add_place(g, lg->token.dev, 2 * SV_MAX_REQUESTED_IDS * rows * sizeof *lg->token.dev);
    add_place(g, e->accept_len, slots * sizeof *e->accept_len);
    add_place(g, k->row.dev, (size_t)k->cap * sizeof *k->row.dev);
    add_place(g, k->dev, (size_t)k->cap * (size_t)k->n_words * sizeof *k->dev);
}

/* The most bytes that a join of each kind exchanges. */
static struct sv_window_need window_need(const struct sv_engine *e)
{
    const struct sv_model *m = &e->model;
    const int32_t n = sv_dev_ranks(e->dev).n;
    const size_t rows = (size_t)e->batch.max_rows, act = sv_dtype_bytes(sv_dev_act_dtype(e->dev)),
                 hidden = (size_t)m->cfg.hidden_size, sum = rows * hidden * act;
    int32_t widest = 0;
    for (int32_t r = 0; r < n; r++) {
        const int32_t width = m->vocab0[r + 1] - m->vocab0[r];
        widest = width > widest ? width : widest;
    }
    const size_t logits = (size_t)e->logits.chunk * (size_t)widest * sizeof(float);
    /* A token, its log probability and those of requested tokens. */
    const size_t made =
        sizeof(int32_t) + (1 + SV_MAX_REQUESTED_IDS) * sizeof(struct sv_logprob_row);
    const size_t dealt = sv_dev_backend(e->dev)->share_rows ? (size_t)e->logits.chunk * made : 0;
    return (struct sv_window_need){.processes = e->ranks->world.processes,
                                   .n_bytes = {[SV_JOIN_MIXER] = sum,
                                               [SV_JOIN_FFN] = sum,
                                               [SV_JOIN_TAPS] = e->drafter->n_taps ? sum : 0,
                                               [SV_JOIN_BEST] = rows * sizeof(uint64_t),
                                               [SV_JOIN_LOGITS_A] = logits,
                                               [SV_JOIN_LOGITS_B] = logits,
                                               [SV_JOIN_ROWS] = dealt}};
}

int64_t sv_ranks_window_bytes(const struct sv_engine *e)
{
    int64_t sum = 0;
    if (!divided(e))
        return 0;
    if (e->ranks->window_bytes)
        return e->ranks->window_bytes;
    const struct sv_window_need need = window_need(e);
    for (int k = 0; k < SV_JOINS; k++)
        sum += (int64_t)need.n_bytes[k];
    return sum;
}

static sv_copy_fn on_copy;

int sv_ranks_window(struct sv_engine *e, struct sv_err *err)
{
    if (!divided(e))
        return SV_OK;
    const struct sv_window_need need = window_need(e);
    const int64_t before = sv_dev_held(e->dev, SV_MEM_ASKED);
    const int rc = sv_dev_window_open(e->dev, &need, &e->ranks->key, err);
    e->ranks->window_bytes = sv_dev_held(e->dev, SV_MEM_ASKED) - before;
    return rc;
}

static int join_windows(struct sv_engine *e, struct sv_err *err)
{
    struct sv_rank_group *g = e->ranks;
    struct sv_window_key all[SV_MAX_RANKS];
    struct sv_world *w = &g->world;
    const struct sv_window_need need = window_need(e);
    int far[SV_MAX_RANKS];
    for (int32_t r = 0; w->hosts && r < w->ranks.n; r++)
        far[r] = w->hosts->link[r].fd[SV_LINK_PARTS];
    int rc = sv_world_swap(w, &g->key, sizeof g->key, all, err);
    if (!rc)
        rc = sv_dev_window_join(e->dev,
                                &(struct sv_peers){.key = all,
                                                   .progress = w->shared->progress,
                                                   .failure = &w->shared->failure,
                                                   .far = w->hosts ? far : NULL,
                                                   .spin_us = w->spin_us,
                                                   .timeout_us = w->timeout_us},
                                err);
    /* The list must be the same everywhere, since uploads name buffers by index. */
    struct sv_rank_place sent[SV_MOST_PLACES];
    for (int32_t i = 0; i < g->n_places && !rc; i++) {
        sent[i] = g->place[i];
        rc = sv_world_broadcast(w, &sent[i], sizeof sent[i], err);
        if (!rc && sent[i].n_bytes != g->place[i].n_bytes)
            rc = sv_fail(err, SV_EMISMATCH, -1, "buffer %d has %zu bytes on rank %d and %zu on 0",
                         i, g->place[i].n_bytes, w->ranks.rank, sent[i].n_bytes);
    }
    if (!rc && g->compares)
        rc = sv_dev_host_alloc(e->dev, (void **)&g->rows, need.n_bytes[SV_JOIN_FFN], err);
    int32_t last = 0; /* no rank reads the options after this */
    return rc ? rc : sv_world_broadcast(w, &last, sizeof last, err);
}

int sv_ranks_join(struct sv_engine *e, struct sv_err *err)
{
    struct sv_rank_group *g = e->ranks;
    if (!g)
        return SV_OK;
    list_places(e);
    if (g->record)
        sv_plan_record_begin(g->record, e, g->opts);
    int rc = divided(e) ? join_windows(e, err) : SV_OK;
    if (!rc && g->world.ranks.rank == 0)
        sv_dev_on_copy(e->dev, on_copy, e);
    return rc;
}

/* ---------------------------------------------------------------- messages */

void sv_ranks_fail(struct sv_engine *e, const char *text)
{
    if (e->ranks && e->ranks->world.shared)
        sv_world_fail(&e->ranks->world, text);
}

/* A message that cannot be sent, because a follower does not read, fails the group; the next join
 * reports it and ends the step. */
static void put_message(struct sv_engine *e, uint32_t kind, const void *first, size_t n_first,
                        const void *rest, size_t n_rest)
{
    struct sv_err err = {0};
    if (e->ranks->record)
        sv_plan_record_write(e->ranks->record, kind, first, n_first, rest, n_rest);
    if (divided(e) && sv_stream_write(&e->ranks->world, kind, first, (uint32_t)n_first, rest,
                                      (uint32_t)n_rest, &err))
        sv_ranks_fail(e, err.msg);
}

static uint32_t place_of(struct sv_rank_group *g, const char *dev, size_t n_bytes)
{
    for (int32_t i = 0; i < g->n_places; i++) {
        const struct sv_rank_place *p = &g->place[i];
        if (dev >= p->dev && dev + n_bytes <= p->dev + p->n_bytes)
            return (uint32_t)i;
    }
    sv_panic("a copy of %zu bytes is of no place that other ranks have", n_bytes);
}

static uint64_t offset_in(const struct sv_rank_group *g, uint32_t place, const char *dev)
{
    return (uint64_t)(dev - g->place[place].dev);
}

static void put_copy(struct sv_engine *e, const void *dst, const void *src, size_t n_bytes)
{
    struct sv_rank_group *g = e->ranks;
    struct sv_msg_copy c = {
        .to = place_of(g, dst, n_bytes), .from = SV_NO_PLACE, .n_bytes = n_bytes};
    c.to_at = offset_in(g, c.to, dst);
    if (src) {
        c.from = place_of(g, src, n_bytes);
        c.from_at = offset_in(g, c.from, src);
    }
    put_message(e, SV_MSG_COPY, &c, sizeof c, NULL, 0);
}

static void on_copy(void *user, const void *dst, const void *src, size_t n_bytes, bool on_device)
{
    struct sv_engine *e = user;
    if (on_device) {
        put_copy(e, dst, src, n_bytes);
        return;
    }
    struct sv_rank_group *g = e->ranks;
    struct sv_msg_upload up = {.place = place_of(g, dst, n_bytes)};
    const size_t most = SV_STREAM_MOST - sizeof up;
    up.at = offset_in(g, up.place, dst);
    for (size_t i = 0; i < n_bytes; i += most, up.at += most) {
        up.n_bytes = (uint32_t)(n_bytes - i < most ? n_bytes - i : most);
        put_message(e, SV_MSG_UPLOAD, &up, sizeof up, (const char *)src + i, up.n_bytes);
    }
}

void sv_ranks_pass(struct sv_engine *e, enum sv_pass_kind kind)
{
    if (!e->ranks || sv_dev_ranks(e->dev).rank)
        return;
    const struct sv_msg_pass pass = {.kind = kind,
                                     .n_joins = sv_dev_n_joins(e->dev),
                                     .plan_bytes = sizeof pass.plan,
                                     .set = e->batch.use,
                                     .bits = e->ranks->bits,
                                     .plan = e->plan};
    put_message(e, SV_MSG_PASS, &pass, sizeof pass, NULL, 0);
    if (divided(e))
        sv_stream_flush(&e->ranks->world);
}

int64_t sv_ranks_busy_ns(const struct sv_engine *e)
{
    int64_t most = 0;
    for (int32_t r = 1; divided(e) && r < e->ranks->world.ranks.n; r++) {
        const int64_t ns = sv_world_busy_ns(&e->ranks->world, r);
        most = ns > most ? ns : most;
    }
    return most;
}

void sv_ranks_snapshot(struct sv_engine *e, int32_t seg, int32_t slot)
{
    struct sv_msg_snapshot s = {.seg = seg, .slot = slot};
    if (!e->ranks || sv_dev_ranks(e->dev).rank)
        return;
    s.at = e->cache.pending_at[slot];
    for (int32_t i = 0; i < e->cache.n_groups; i++)
        s.pending[i] = e->cache.group[i].pending ? e->cache.group[i].pending[slot] : -1;
    put_message(e, SV_MSG_SNAPSHOT, &s, sizeof s, NULL, 0);
}

void sv_ranks_read(struct sv_engine *e)
{
    if (e->ranks && e->ranks->record)
        sv_plan_record_step(e->ranks->record, &e->batch, e->plan.n_segs);
}

/* Hashes the pass's output rows, those that the head reads, without padding. */
static void add_bits(struct sv_engine *e, enum sv_pass_kind kind)
{
    struct sv_rank_group *g = e->ranks;
    const bool draft = kind == SV_PASS_DRAFT;
    const int32_t n = draft ? e->plan.n_draft_out : e->plan.n_logits + e->plan.n_prompt_logits;
    const size_t n_bytes =
        (size_t)n * (size_t)e->model.cfg.hidden_size * sv_dtype_bytes(sv_dev_act_dtype(e->dev));
    sv_dev_download(e->dev, g->rows, draft ? e->draft_out : e->out, n_bytes);
    if (sv_dev_sync(e->dev, NULL))
        return; /* the next pass reports the same error */
    for (size_t i = 0; i < n_bytes; i++)
        g->bits = (g->bits ^ ((const unsigned char *)g->rows)[i]) * 0x100000001b3u;
    g->n_bits++;
}

void sv_ranks_passed(struct sv_engine *e, enum sv_pass_kind kind)
{
    if (!divided(e))
        return;
    sv_world_passed(&e->ranks->world, sv_dev_n_joins(e->dev));
    if (e->ranks->rows)
        add_bits(e, kind);
}

/* ---------------------------------------------------------------- the end */

void sv_ranks_leave(struct sv_engine *e)
{
    struct sv_rank_group *g = e->ranks;
    if (!g || !g->world.shared)
        return;
    if (!sv_world_failed(&g->world)) {
        struct sv_err err = {0};
        sv_stream_write(&g->world, SV_MSG_END, NULL, 0, NULL, 0, &err);
        sv_stream_flush(&g->world);
    }
    if (sv_world_leave(&g->world))
        return;
    sv_log(SV_LOG_ERROR, "a rank does not end; its memory is kept");
    g->stuck = true;
}

void sv_ranks_close(struct sv_engine *e)
{
    struct sv_rank_group *g = e->ranks;
    if (g)
        sv_plan_record_close(g->record);
    if (g && g->world.shared && !g->stuck)
        sv_world_close(&g->world);
    sv_free(g);
}
