/*
 * follow.c - a follower: opens its part of the model as rank 0 does, then runs rank 0's messages.
 *
 * Started by ranks.c, one thread a rank, or a process (sv_engine_follow). Uploads go to the same
 * buffers on its own device, passes are enqueued by the same code. It reads no results but its
 * device's errors. An error here fails the whole group of ranks, so that no rank waits for this
 * one. Must not: access sequences, or decide anything.
 */
#include "engine/engine.h"

#include <string.h>

/* n bytes at an offset of a buffer; NULL when out of range. */
static char *bytes_at(const struct sv_rank_group *g, uint32_t place, uint64_t at, uint64_t n)
{
    if (place >= (uint32_t)g->n_places || n > g->place[place].n_bytes ||
        at > g->place[place].n_bytes - n)
        return NULL;
    return g->place[place].dev + at;
}

/* Where an upload's bytes stay until its step is over; what finds no room is copied as it lies. */
static const void *keep_sent(struct sv_rank_group *g, const void *data, size_t n)
{
    const size_t all = (n + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
    if (all > g->sent_bytes - g->sent_at)
        return data;
    char *to = g->sent[g->sent_set] + g->sent_at;
    g->sent_at += all;
    return memcpy(to, data, n);
}

static int open_sent(struct sv_engine *e, struct sv_err *err)
{
    struct sv_rank_group *g = e->ranks;
    const size_t n_bytes = e->batch.block_words * sizeof(int32_t) + ((size_t)64 << 10);
    int rc = SV_OK;
    for (int i = 0; i < 2 && !rc; i++)
        rc = sv_dev_host_alloc(e->dev, (void **)&g->sent[i], n_bytes, err);
    g->sent_bytes = rc ? 0 : n_bytes / SV_ALIGN * SV_ALIGN;
    return rc;
}

static int take_upload(struct sv_engine *e, const void *data, uint32_t n, struct sv_err *err)
{
    struct sv_msg_upload up;
    if (n < sizeof up)
        return sv_fail(err, SV_EDEVICE, -1, "an upload message has %u bytes", n);
    memcpy(&up, data, sizeof up);
    char *to = bytes_at(e->ranks, up.place, up.at, up.n_bytes);
    if (!to || up.n_bytes != n - sizeof up)
        return sv_fail(err, SV_EDEVICE, -1, "an upload of %u bytes to place %u does not fit",
                       up.n_bytes, up.place);
    sv_dev_upload(e->dev, to, keep_sent(e->ranks, (const char *)data + sizeof up, up.n_bytes),
                  up.n_bytes);
    return SV_OK;
}

static int take_copy(struct sv_engine *e, const void *data, uint32_t n, struct sv_err *err)
{
    struct sv_msg_copy c;
    if (n != sizeof c)
        return sv_fail(err, SV_EDEVICE, -1, "a copy message has %u bytes, not %zu", n, sizeof c);
    memcpy(&c, data, sizeof c);
    const bool zeros = c.from == SV_NO_PLACE;
    char *to = bytes_at(e->ranks, c.to, c.to_at, c.n_bytes);
    char *from = zeros ? NULL : bytes_at(e->ranks, c.from, c.from_at, c.n_bytes);
    if (!to || (!from && !zeros))
        return sv_fail(err, SV_EDEVICE, -1, "a copy of %llu bytes from place %u to %u does not fit",
                       (unsigned long long)c.n_bytes, c.from, c.to);
    sv_dev_copy(e->dev, to, from, c.n_bytes);
    return SV_OK;
}

static int take_snapshot(struct sv_engine *e, const void *data, uint32_t n, struct sv_err *err)
{
    struct sv_cache *c = &e->cache;
    struct sv_msg_snapshot s;
    bool fits = n == sizeof s;
    memcpy(&s, data, fits ? sizeof s : 0);
    fits = fits && s.seg >= 0 && s.seg < e->batch.max_segs && s.slot >= 0 && s.slot < c->n_slots;
    for (int32_t i = 0; i < c->n_groups && fits; i++)
        fits = !c->group[i].pending || (s.pending[i] >= 0 && s.pending[i] < c->group[i].d.n_pages);
    if (!fits)
        return sv_fail(err, SV_EDEVICE, -1, "a snapshot does not fit the cache");
    c->pending_at[s.slot] = s.at;
    for (int32_t i = 0; i < c->n_groups; i++)
        if (c->group[i].pending)
            c->group[i].pending[s.slot] = s.pending[i];
    sv_ranks_snapshot(e, s.seg, s.slot);
    sv_cache_snapshot_passed(c, s.slot, e->batch.n_commit.dev + s.seg, e->slot_len);
    return SV_OK;
}

static int run_pass(struct sv_engine *e, const void *data, uint32_t n, struct sv_err *err)
{
    struct sv_plan_seg *seg = e->plan.seg;
    struct sv_msg_pass pass;
    if (n != sizeof pass)
        return sv_fail(err, SV_EMISMATCH, -1, "a pass message has %u bytes, not %zu", n,
                       sizeof pass);
    memcpy(&pass, data, sizeof pass);
    if (pass.n_joins != sv_dev_n_joins(e->dev))
        return sv_fail(err, SV_EDEVICE, -1,
                       "ranks are not in step: rank 0 has had %u joins before this pass, rank %d "
                       "%u",
                       pass.n_joins, sv_dev_ranks(e->dev).rank, sv_dev_n_joins(e->dev));
    if (e->ranks->rows && pass.bits != e->ranks->bits)
        return sv_fail(err, SV_EDEVICE, -1, "rank %d has other bits than rank 0 after %d passes",
                       sv_dev_ranks(e->dev).rank, e->ranks->n_bits);
    e->plan = pass.plan;
    e->plan.seg = seg;
    if (pass.plan.undrafted != (e->drafter == &e->none))
        sv_engine_set_drafter(e, pass.plan.undrafted ? NULL : e->ranks->drafter);
    sv_batch_use(&e->batch, pass.set);
    sv_step_follow(e, (enum sv_pass_kind)pass.kind);
    /* A device that runs at once reports this pass's errors here, one with graphs those of the step
     * before. */
    struct sv_rank_group *g = e->ranks;
    const bool ahead = sv_dev_backend(e->dev)->has_graphs;
    if (ahead)
        sv_dev_mark(e->dev, pass.set);
    sv_step_lap(e, SV_PHASE_BACK);
    int rc = ahead ? sv_dev_wait(e->dev, 1 - pass.set, err) : sv_dev_sync(e->dev, err);
    if (pass.kind != SV_PASS_TARGET)
        return rc;
    if (ahead && !rc && g->sent_set != pass.set) /* sets take turns, but for a step by itself */
        rc = sv_dev_wait(e->dev, pass.set, err);
    g->sent_set = 1 - pass.set;
    g->sent_at = 0;
    return rc;
}

int sv_ranks_apply(struct sv_engine *e, uint32_t kind, const void *data, uint32_t n,
                   struct sv_err *err)
{
    switch (kind) {
    case SV_MSG_UPLOAD:
        return take_upload(e, data, n, err);
    case SV_MSG_COPY:
        return take_copy(e, data, n, err);
    case SV_MSG_SNAPSHOT:
        return take_snapshot(e, data, n, err);
    default:
        SV_REQUIRE(kind == SV_MSG_PASS);
        return run_pass(e, data, n, err);
    }
}

/* False: a fault that a test injected is due, and the message is not applied. */
static bool applies(struct sv_engine *e, struct sv_rank_fault_at *f, uint32_t kind,
                    const void *data)
{
    struct sv_msg_pass pass;
    if (!f->kind || kind != SV_MSG_PASS || f->rank != sv_dev_ranks(e->dev).rank)
        return true;
    memcpy(&pass, data, sizeof pass);
    return pass.kind != SV_PASS_TARGET || f->pass-- > 0;
}

/* Runs messages until SV_MSG_END. */
static int follow(struct sv_engine *e, struct sv_rank_fault_at fault, struct sv_err *err)
{
    struct sv_world *w = &e->ranks->world;
    int64_t begin_ns = 0; /* of a pass's messages, which are told all at once */
    e->ranks->drafter = e->drafter;
    int rc = open_sent(e, err);
    while (!rc) {
        const void *data;
        uint32_t kind, n;
        rc = sv_stream_read(w, &kind, &data, &n, err);
        if (rc || kind == SV_MSG_END)
            break;
        begin_ns = begin_ns ? begin_ns : sv_clock_ns();
        const bool apply = applies(e, &fault, kind, data);
        if (!apply && fault.kind == SV_RANK_SILENT)
            return SV_OK;
        if (!apply && fault.kind == SV_RANK_FAILS)
            return sv_fail(err, SV_EDEVICE, -1, "a fault that a test asked for");
        struct sv_msg_pass other;
        if (!apply && fault.kind == SV_RANK_STRAYS) {
            memcpy(&other, data, sizeof other);
            other.plan.sampled = !other.plan.sampled;
            data = &other;
        }
        if (apply || fault.kind != SV_RANK_SKIPS)
            rc = sv_ranks_apply(e, kind, data, n, err);
        else
            sv_world_passed(w, sv_dev_n_joins(e->dev));
        sv_stream_done(w);
        if (kind != SV_MSG_PASS || rc)
            continue;
        sv_world_busy(w, e->lap_ns - begin_ns); /* to the end of the pass's launch */
        begin_ns = 0;
    }
    return rc;
}

static int live(struct sv_rank_group *own, const struct sv_engine_options *opts,
                const struct sv_engine_tuning *tuning, struct sv_err *err)
{
    const struct sv_rank_fault_at fault = tuning->rank_fault; /* copied: freed once all are open */
    struct sv_engine *e = NULL;
    int rc = sv_engine_open_follower(&e, opts, tuning, own, err);
    if (!rc)
        rc = follow(e, fault, err);
    if (rc)
        sv_world_fail(&own->world, err->msg);
    if (own->drafter)
        sv_engine_set_drafter(e, own->drafter);
    if (e && e->dev)
        sv_dev_sync(e->dev, NULL); /* it may still write to other ranks' windows */
    for (int i = 0; i < 2 && e && e->dev; i++)
        sv_dev_host_free(e->dev, own->sent[i]);
    sv_world_leave(&own->world);
    sv_engine_close(e);
    return rc;
}

void sv_ranks_follow(struct sv_world *world, void *user)
{
    const struct sv_rank_group *first = user;
    struct sv_rank_group own = {.world = *world, .compares = first->compares};
    struct sv_err err = {0};
    live(&own, first->opts, first->tuning, &err);
}

int sv_engine_follow(const struct sv_engine_options *opts, struct sv_err *err)
{
    static const struct sv_engine_tuning none = {0};
    struct sv_rank_group own = {0};
    struct sv_engine_options o = *opts, sent = *opts;
    const struct sv_world_opts w = sv_ranks_world(opts, sv_mpi_ranks().rank % opts->tp);
    int rc = sv_world_open_mpi(&own.world, &w, err);
    if (!rc)
        rc = sv_ranks_compare(&own.world, opts, err);
    if (!rc)
        rc = sv_world_broadcast(&own.world, &sent, sizeof sent, err);
    if (!rc) { /* rank 0's options; pointers are not valid in this process */
        o = sent;
        o.target_dir = opts->target_dir;
        o.draft_dir = sent.draft_dir ? opts->draft_dir : NULL;
        o.device = opts->device;
        o.on_progress = NULL;
        o.record_plan = NULL;
        rc = live(&own, &o, &none, err);
    }
    if (own.world.shared)
        sv_world_close(&own.world);
    return rc;
}
