/*
 * impl.h - what pool.c and prefix.c share. Nobody else includes it.
 */
#ifndef SV_CACHE_IMPL_H
#define SV_CACHE_IMPL_H

#include "cache/cache.h"

static inline int32_t *sv_cache_row(const struct sv_cache_group *g, int32_t slot)
{
    return g->table + (size_t)slot * (size_t)g->stride;
}

/* One user fewer; a page without users is free. */
void sv_cache_drop_page(struct sv_cache_group *g, int32_t page);

/* prefix.c, for pool.c. All of them do nothing useful, cheaply, when no prefixes are kept. */
void sv_prefix_evict(struct sv_cache *c);               /* frees one page of each group */
void sv_prefix_leave(struct sv_cache *c, int32_t slot); /* before a slot's pages are released */
int32_t sv_prefix_n_published(const struct sv_cache *c,
                              int32_t slot); /* pages of the slot in the index */
/* Users that the index adds to each page of a group; aborts when its own lists disagree. */
void sv_prefix_count(const struct sv_cache *c, int32_t group, int32_t *n_users);
void sv_prefix_check(const struct sv_cache *c);

#endif
