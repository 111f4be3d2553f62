/*
 * impl.h - shared by pool.c, state.c and prefix.c; included by these alone.
 */
#ifndef SV_CACHE_IMPL_H
#define SV_CACHE_IMPL_H

#include "cache/cache.h"

enum { SV_NO_PAGE = -1, SV_NO_NODE = -1 };

static inline bool sv_cache_is_paged(const struct sv_cache_group *g)
{
    return g->d.kind != SV_CACHE_STATE;
}

/* Whether pages of the group can be evicted separately from their node of the prefix index. */
static inline bool sv_cache_is_apart(const struct sv_cache_group *g)
{
    return g->d.window || g->d.kind == SV_CACHE_STATE;
}

static inline struct sv_prefix *sv_prefix_of(const struct sv_cache *c, int32_t slot)
{
    return c->prefix[sv_cache_part(c, slot)];
}

static inline int32_t *sv_cache_row(const struct sv_cache_group *g, int32_t slot)
{
    return g->table + (size_t)slot * (size_t)g->stride;
}

/* ---------------------------------------------------------------- pool.c: pages and their users */

/* Takes a free page of a part, with one reference. There must be one. */
int32_t sv_cache_take_page(struct sv_cache_group *g, int32_t part);
/* Adds a reference. */
void sv_cache_ref_page(struct sv_cache_group *g, int32_t page);
/* Removes a reference; a page without references is free. */
void sv_cache_drop_page(struct sv_cache_group *g, int32_t page);
/* Adds and removes the prefix index's reference. */
void sv_cache_enter_page(struct sv_cache_group *g, int32_t page, int32_t node);
void sv_cache_leave_page(struct sv_cache_group *g, int32_t page);
/* Evicts cached prefixes by last use until the part has n free pages. False: not enough. */
bool sv_cache_make_room(struct sv_cache *c, int32_t group, int32_t part, int32_t n);

/* ---------------------------------------------------------------- state.c */

int sv_state_open(struct sv_cache *c, struct sv_cache_group *g, struct sv_err *err);
void sv_state_release(struct sv_cache *c, int32_t slot); /* the slot becomes empty */
void sv_state_upload(struct sv_cache *c);
/* The next upload copies the snapshot to the slot's states. */
void sv_state_restore(struct sv_cache *c, int32_t slot, int32_t group, int32_t snapshot);
/* Counts the slots' references to each snapshot of a group. */
void sv_state_count(const struct sv_cache *c, int32_t group, int32_t *n_users);

/* ---------------------------------------------------------------- prefix.c */

/* Without a prefix cache these have no effect. */
void sv_prefix_close(struct sv_cache *c);
/* Evicts a part's oldest idle node, with its pages in all groups. */
void sv_prefix_evict(struct sv_cache *c, int32_t part);
void sv_prefix_evict_page(struct sv_cache *c, int32_t group, int32_t page); /* that page alone */
void sv_prefix_leave(struct sv_cache *c, int32_t slot); /* before a slot's pages are released */
/* The number of positions of the slot in the index. */
int32_t sv_prefix_n_published(const struct sv_cache *c, int32_t slot);
/* Moves a snapshot of the slot's states at n positions to the node that ends there, if any. */
void sv_prefix_take_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Whether a snapshot there is useful: the positions may be published, and there is none yet. */
bool sv_prefix_wants_snapshot(const struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Counts the index's references to each page of a group; aborts if its own lists disagree. */
void sv_prefix_count(const struct sv_cache *c, int32_t group, int32_t *n_users);
void sv_prefix_check(const struct sv_cache *c);

#endif
