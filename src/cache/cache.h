/*
 * cache.h - what sequences remember: one page pool and one block table per cache group, and an
 * index of full pages by the tokens that led to them, so that prompts that begin alike share pages.
 *
 * A group is a set of layers with one geometry: the target's full-attention layers, its sliding
 * layers, the drafter's context K/V. Called by engine (reserve, slide, release), model and spec
 * (views for kernels). Host bookkeeping plus device buffers; no kernel runs here. Must not: hand
 * out a page twice, lose one, or change a table row while a step that reads it is in flight.
 *
 * Positions, not tokens: a sequence in slot s with pages for [0, n) may hold n positions. All
 * groups grow together, so a position is either backed in every group or in none (a sliding group
 * drops pages that no later row can see).
 */
#ifndef SV_CACHE_H
#define SV_CACHE_H

#include "backend/backend.h"
#include "base/base.h"

#define SV_MAX_GROUPS 8

struct sv_cache_group_desc {
    const char *name; /* for messages and the memory table; static */
    int32_t n_layers, n_kv_heads, head_dim;
    enum sv_dtype dtype; /* SV_F32 or SV_BF16 */
    int32_t page_size;   /* positions in a page */
    int32_t n_pages;     /* pool size */
    int32_t window; /* 0 = every position stays; W = the last W - 1 positions before a row do */
};

struct sv_cache_group {
    struct sv_cache_group_desc d;
    void *k, *v;        /* device: (n_layers, n_pages, n_kv_heads, page_size, head_dim) each */
    int32_t *table;     /* host: (n_slots, stride), -1 = no page */
    int32_t *dev_table; /* device mirror */
    int32_t stride;     /* pages a slot can have */
    int32_t *free_page; /* host stack of free pages */
    int32_t n_free;
    uint16_t *n_refs; /* host: users of each page, slots and the prefix index; 0 = free */
    int32_t *n_users; /* host: scratch of sv_cache_check */
};

struct sv_prefix;

struct sv_cache {
    struct sv_dev *dev;
    struct sv_cache_group group[SV_MAX_GROUPS];
    int32_t n_groups, n_slots, max_positions;
    int32_t *n_backed;  /* (n_slots) positions with pages */
    int32_t *n_dropped; /* (n_groups, n_slots) pages at the front given back by slide */
    bool *dirty;        /* (n_slots) table rows that differ from the device's */
    /* host, for copies: twice all tables; the copies of one upload may be under way while the next
     * is made, not longer */
    int32_t *stage;
    size_t stage_words;
    int32_t stage_use;
    bool attach_whole;        /* attach no page that lacks the draft's K/V */
    struct sv_prefix *prefix; /* NULL: pages are never kept for reuse */
    struct sv_arena arena;
};

/* Opens pools for n_slots sequences of at most max_positions positions each. */
int sv_cache_open(struct sv_cache *c, struct sv_dev *dev, const struct sv_cache_group_desc *groups,
                  int32_t n_groups, int32_t n_slots, int32_t max_positions, struct sv_err *err);
void sv_cache_close(struct sv_cache *c);

/* Pages of each group that n positions take (all groups have one page size). */
int32_t sv_cache_pages_for(const struct sv_cache *c, int32_t n_positions);
/* Pages that every group can still hand out, those kept for reuse only included. */
int32_t sv_cache_n_available(const struct sv_cache *c);
/* Backs positions [0, n_positions) of a slot; what was kept longest without use makes room. False
 * and nothing changed when a pool is short even so. */
bool sv_cache_reserve(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Gives back pages that hold no position below n_positions (published ones only by release). */
void sv_cache_trim(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* In sliding groups, gives back pages that no row at position >= first_row can see. */
void sv_cache_slide(struct sv_cache *c, int32_t slot, int32_t first_row);
/* Pages at the front of a group that a row at first_row or later cannot see; 0 without a window. */
int32_t sv_cache_n_unseen(const struct sv_cache_group *g, int32_t first_row);
/* Gives back everything the slot holds; what was published stays findable. */
void sv_cache_release(struct sv_cache *c, int32_t slot);

/* Keep full pages for prompts that begin alike; once, after open. */
int sv_cache_keep_prefixes(struct sv_cache *c, struct sv_err *err);
/* Whose prefixes an empty slot may share from now on: those of slots with the same salt. (0, 0) at
 * first. */
void sv_cache_set_salt(struct sv_cache *c, int32_t slot, const uint64_t salt[2]);
/* Gives an empty slot the pages of the longest run of whole pages of tokens that is known: those
 * positions are backed and valid in every group, and shared, so nothing may be written below them.
 * Returns how many. */
int32_t sv_cache_attach(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_tokens);
/* Makes the slot's full pages below n_positions findable: they are committed and say tokens. Before
 * sv_cache_slide. Pages that another sequence published meanwhile replace the slot's own. */
void sv_cache_publish(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_positions);
/* Both slots have the same page for this position. */
bool sv_cache_same_page(const struct sv_cache *c, int32_t slot, int32_t other, int32_t position);
/* Pages of several groups that hold positions >= from lack the last group's (the draft's) K/V: a
 * request that finds them is told by sv_cache_bare_from, and so is one that shares them later. */
void sv_cache_mark_bare(struct sv_cache *c, int32_t slot, int32_t from);
/* The first such position of a slot; INT32_MAX: none. */
int32_t sv_cache_bare_from(const struct sv_cache *c, int32_t slot);
/* Forgets every page; those that running sequences hold stay theirs and are not published any
 * more. */
void sv_cache_flush(struct sv_cache *c);
/* Pages of each group that are kept for reuse only. */
int32_t sv_cache_n_kept(const struct sv_cache *c);

/* Enqueues the table rows that changed. Once per step, before any kernel. */
void sv_cache_upload(struct sv_cache *c);

/* Kernel view of one layer of a group. */
struct sv_kv sv_cache_kv(const struct sv_cache *c, int32_t group, int32_t layer);
int64_t sv_cache_group_bytes(const struct sv_cache_group_desc *d); /* K and V, all layers */
/* Free pages of a group. */
int32_t sv_cache_n_free(const struct sv_cache *c, int32_t group);
/* Aborts unless every page is either free once or referenced exactly as often as tables say. */
void sv_cache_check(const struct sv_cache *c);

#endif
