/*
 * state.c - recurrent states: one block for each slot and layer, snapshots of them for the prefix
 * index, and the commit stage.
 *
 * Called through cache.h, by pool.c and by prefix.c. A group's blocks and snapshots are in one
 * array, those of a slot contiguous, so that a snapshot is one copy. Snapshots are pages of the
 * group's pool, which has one part. Copies are enqueued in the order of the steps: a snapshot at
 * once, since it copies the result of the steps enqueued so far; a reset or restore by the next
 * upload, since a slot may be released before it is used. Must not: run a kernel, or copy a state
 * row by row.
 */
#include "cache/impl.h"

static char *block(const struct sv_cache_group *g, int64_t i)
{
    return g->state + i * g->d.n_layers * g->d.state_bytes;
}

static size_t block_bytes(const struct sv_cache_group *g)
{
    return (size_t)g->d.n_layers * (size_t)g->d.state_bytes;
}

int sv_state_open(struct sv_cache *c, struct sv_cache_group *g, struct sv_err *err)
{
    const size_t slots = (size_t)c->n_slots;
    g->snapshot = sv_arena_alloc(&c->arena, slots * sizeof *g->snapshot);
    g->restore = sv_arena_alloc(&c->arena, slots * sizeof *g->restore);
    g->pending = sv_arena_alloc(&c->arena, slots * sizeof *g->pending);
    if (!g->snapshot || !g->restore || !g->pending)
        return sv_fail(err, SV_ENOMEM, -1, "slots");
    for (size_t s = 0; s < slots; s++)
        g->snapshot[s] = g->restore[s] = g->pending[s] = SV_NO_PAGE;
    /* Cleared by the device: no slot has to be reset at first. */
    return sv_dev_alloc(c->dev, (void **)&g->state, (size_t)sv_cache_group_bytes(&g->d, c->n_slots),
                        err);
}

struct sv_state sv_cache_state(const struct sv_cache *c, int32_t group, int32_t layer)
{
    SV_REQUIRE(group < c->n_groups);
    const struct sv_cache_group *g = &c->group[group];
    SV_REQUIRE(!sv_cache_is_paged(g) && layer < g->d.n_layers);
    return (struct sv_state){.data = g->state + layer * g->d.state_bytes,
                             .n_bytes = g->d.state_bytes,
                             .slot_stride = g->d.n_layers * g->d.state_bytes};
}

static void let_go(struct sv_cache_group *g, int32_t *snapshot)
{
    if (*snapshot != SV_NO_PAGE)
        sv_cache_drop_page(g, *snapshot);
    *snapshot = SV_NO_PAGE;
}

/* ---------------------------------------------------------------- a slot's life */

void sv_cache_reset(struct sv_cache *c, int32_t slot)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots);
    for (int32_t i = 0; i < c->n_groups && c->has_state; i++)
        if (!sv_cache_is_paged(&c->group[i]))
            let_go(&c->group[i], &c->group[i].restore[slot]);
    c->reset[slot] = c->has_state;
}

void sv_state_release(struct sv_cache *c, int32_t slot)
{
    sv_cache_reset(c, slot);
    for (int32_t i = 0; i < c->n_groups && c->has_state; i++)
        if (!sv_cache_is_paged(&c->group[i])) {
            let_go(&c->group[i], &c->group[i].snapshot[slot]);
            let_go(&c->group[i], &c->group[i].pending[slot]);
        }
}

void sv_state_restore(struct sv_cache *c, int32_t slot, int32_t group, int32_t snapshot)
{
    struct sv_cache_group *g = &c->group[group];
    SV_REQUIRE(g->restore[slot] == SV_NO_PAGE);
    sv_cache_ref_page(g, snapshot);
    g->restore[slot] = snapshot;
    c->reset[slot] = true;
}

/* A slot that is assigned starts from zeros, or from the snapshot of its prefix. */
void sv_state_upload(struct sv_cache *c)
{
    for (int32_t s = 0; s < c->n_slots && c->has_state; s++) {
        if (!c->reset[s] || !c->n_backed[s])
            continue;
        for (int32_t i = 0; i < c->n_groups; i++) {
            struct sv_cache_group *g = &c->group[i];
            if (sv_cache_is_paged(g))
                continue;
            const int32_t from = g->restore[s];
            sv_dev_copy(c->dev, block(g, s),
                        from == SV_NO_PAGE ? NULL : block(g, (int64_t)c->n_slots + from),
                        block_bytes(g));
            let_go(g, &g->restore[s]);
        }
        c->reset[s] = false;
    }
}

/* ---------------------------------------------------------------- the step */

void sv_cache_commit(struct sv_cache *c, const struct sv_p_commit *p)
{
    sv_op_commit(c->dev, p);
}

void sv_cache_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && n_positions <= c->n_backed[slot]);
    if (!c->has_state || !sv_prefix_wants_snapshot(c, slot, n_positions))
        return;
    SV_REQUIRE(!c->reset[slot]); /* else the slot has nothing of its own yet */
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        if (sv_cache_is_paged(g))
            continue;
        let_go(g, &g->snapshot[slot]);
        if (!sv_cache_make_room(c, i, 0, 1))
            continue;
        const int32_t page = g->snapshot[slot] = sv_cache_take_page(g, 0);
        sv_dev_copy(c->dev, block(g, (int64_t)c->n_slots + page), block(g, slot), block_bytes(g));
    }
    c->snapshot_at[slot] = n_positions;
    sv_prefix_take_snapshot(c, slot, n_positions);
}

/* Answers' snapshots use at most half of the pages. */
static bool can_reserve(struct sv_cache *c, int32_t group)
{
    const struct sv_cache_group *g = &c->group[group];
    return sv_cache_n_free(c, group) + sv_cache_n_kept(c, group) > g->d.n_pages / 2 &&
           sv_cache_make_room(c, group, 0, 1);
}

bool sv_cache_reserve_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && n_positions <= c->n_backed[slot]);
    bool has = c->has_state && sv_prefix_wants_snapshot(c, slot, n_positions);
    for (int32_t i = 0; i < c->n_groups && has; i++) {
        struct sv_cache_group *g = &c->group[i];
        if (sv_cache_is_paged(g) || g->pending[slot] != SV_NO_PAGE)
            continue; /* what a step in flight may copy there is overwritten in its turn */
        has = can_reserve(c, i);
        if (has)
            g->pending[slot] = sv_cache_take_page(g, 0);
    }
    c->pending_at[slot] = n_positions;
    return has;
}

void sv_cache_snapshot_passed(struct sv_cache *c, int32_t slot, const int32_t *n_commit,
                              const int32_t *slot_len)
{
    for (int32_t i = 0; i < c->n_groups; i++) {
        const struct sv_cache_group *g = &c->group[i];
        if (sv_cache_is_paged(g))
            continue;
        sv_op_snapshot(
            c->dev, &(struct sv_p_snapshot){.n_commit = n_commit,
                                            .slot_len = slot_len + slot,
                                            .at = c->pending_at[slot],
                                            .src = block(g, slot),
                                            .dst = block(g, (int64_t)c->n_slots + g->pending[slot]),
                                            .n_bytes = block_bytes(g)});
    }
}

void sv_cache_passed(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(n_positions == c->pending_at[slot]);
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        if (sv_cache_is_paged(g))
            continue;
        SV_REQUIRE(g->pending[slot] != SV_NO_PAGE);
        let_go(g, &g->snapshot[slot]);
        g->snapshot[slot] = g->pending[slot];
        g->pending[slot] = SV_NO_PAGE;
    }
    c->snapshot_at[slot] = n_positions;
}

void sv_state_count(const struct sv_cache *c, int32_t group, int32_t *n_users)
{
    const struct sv_cache_group *g = &c->group[group];
    for (int32_t s = 0; s < c->n_slots; s++) {
        if (g->snapshot[s] != SV_NO_PAGE)
            n_users[g->snapshot[s]]++;
        if (g->pending[s] != SV_NO_PAGE)
            n_users[g->pending[s]]++;
        if (g->restore[s] != SV_NO_PAGE)
            n_users[g->restore[s]]++;
        SV_REQUIRE(g->restore[s] == SV_NO_PAGE || (c->reset[s] && c->n_backed[s] > 0));
    }
}
