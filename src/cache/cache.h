/*
 * cache.h - the caches of sequences: a pool for each cache group, block tables, recurrent states,
 * and an index of prefixes by their tokens, so that prompts share common prefixes.
 *
 * A group is a set of layers with one geometry and one kind of memory: K and V, latents (one array
 * instead of two), or recurrent states. pool.c owns pages and block tables, state.c the states of
 * slots and their snapshots, prefix.c the index. Called by engine (reserve, slide, release,
 * commit), model and spec (views for kernels). Host bookkeeping plus device buffers; no kernel runs
 * here. Must not: hand out a page twice, lose one, or change a table row while a step that reads it
 * is in flight.
 *
 * Positions, not tokens: a sequence in slot s with pages for [0, n) may hold n positions. All
 * groups grow together, so a position is either backed in every paged group or in none (a sliding
 * group drops pages that no later row can see).
 */
#ifndef SV_CACHE_H
#define SV_CACHE_H

#include "backend/ops.h"
#include "backend/ops_tokens.h"
#include "base/base.h"

#define SV_MAX_GROUPS 8

enum sv_cache_kind {
    SV_CACHE_KV,     /* paged, K and V of each position */
    SV_CACHE_LATENT, /* paged, one vector of each position: n_kv_heads is 1, there is no V */
    SV_CACHE_STATE   /* a fixed number of bytes for each slot and layer */
};

enum sv_cache_owner { SV_CACHE_TARGET, SV_CACHE_DRAFT, SV_CACHE_OWNERS };

struct sv_cache_group_desc {
    enum sv_cache_kind kind;
    enum sv_cache_owner owner;
    int32_t n_layers;
    int32_t n_kv_heads, head_dim; /* paged */
    int32_t latent;               /* of latents: as in struct sv_kv */
    enum sv_dtype dtype;          /* paged: as in struct sv_kv */
    int32_t window;      /* paged: 0 = all positions are kept; W = the last W - 1 before a row */
    int64_t state_bytes; /* state: of a slot in a layer, a multiple of SV_ALIGN */
    int32_t page_size;   /* positions in a page; state: snapshots are at multiples of it */
    int32_t n_pages;     /* of the device's pool; state: snapshots, may be 0 */
    /* Number of parts among which slots are divided in order, each with a pool and a prefix index
     * of its own (DP attention: one for each rank); 0: one. Equal in all groups; not for states. */
    int32_t n_parts;
    bool own_part; /* a device has only the pages of its part, else those of all parts */
};

/* A page, or a snapshot of a state. Pages are numbered over all parts, part by part. */
struct sv_cache_page {
    int32_t n_refs;       /* references by slots and by the prefix index; 0 = free */
    int32_t node;         /* of the prefix index, -1 = none */
    int32_t older, newer; /* LRU list of pages that only the prefix index references */
};

struct sv_cache_group {
    struct sv_cache_group_desc d;
    /* device: (n_layers, n_pages, n_kv_heads, page_size) rows each; v NULL for latents */
    void *k, *v;
    char *state;        /* device: (n_slots + n_pages, n_layers, state_bytes): slots, snapshots */
    int32_t *table;     /* host: (n_slots, stride), -1 = no page; NULL for states */
    int32_t *dev_table; /* device mirror */
    int32_t stride;     /* pages a slot can have */
    int32_t n_pages, part_pages; /* of all parts, of one */
    struct sv_cache_page *page;  /* (n_pages) */
    struct sv_cache_pool {
        int32_t *free_page; /* host stack of free pages */
        int32_t n_free;
        int32_t n_kept; /* pages that only the prefix index references */
        int32_t oldest, newest;
    } part[SV_MAX_RANKS];
    int32_t *n_dropped; /* (n_slots) pages at the front released by slide */
    int32_t *valid_to;  /* (n_slots) positions below it are valid; INT32_MAX: all that are backed */
    int32_t *snapshot;  /* state: (n_slots) snapshot taken, to be published; -1 = none */
    int32_t
        *restore; /* state: (n_slots) snapshot to be copied to the slot by the next upload; -1 */
    int32_t *pending; /* state: (n_slots) page for a snapshot that a step may take; -1 = none */
    int32_t node_at, node_pages; /* where a prefix node has its pages of this group, how many */
    int32_t *n_users;            /* host: scratch of sv_cache_check */
};

struct sv_prefix;

struct sv_cache {
    struct sv_dev *dev;
    struct sv_cache_group group[SV_MAX_GROUPS];
    int32_t n_groups, n_slots, n_parts, max_positions;
    int32_t
        main; /* the group that fullness is measured by: the first one that keeps all positions */
    uint32_t owned[SV_CACHE_OWNERS]; /* groups of each owner, as bits */
    bool has_state;
    int32_t *n_backed; /* (n_slots) positions with pages */
    bool *dirty;       /* (n_slots) table rows that differ from the device's */
    bool *reset; /* (n_slots) states to be cleared by the next upload, if the slot is in use */
    int32_t *snapshot_at; /* (n_slots) position of the snapshot taken */
    int32_t *pending_at;  /* (n_slots) position of the snapshot that a step may take */
    int32_t *branch_at;   /* (n_slots) end of the prompt's cached pages, see sv_cache_branch; 0 */
    /* host, for copies: twice all tables; the copies of one upload may be under way while the next
     * is made, not longer */
    int32_t *stage;
    size_t stage_words;
    int32_t stage_use;
    struct sv_prefix *prefix[SV_MAX_RANKS]; /* of each part; NULL: no prefix cache */
    struct sv_arena arena;
};

/* Opens pools for n_slots sequences of at most max_positions positions each. */
int sv_cache_open(struct sv_cache *c, struct sv_dev *dev, const struct sv_cache_group_desc *groups,
                  int32_t n_groups, int32_t n_slots, int32_t max_positions, struct sv_err *err);
void sv_cache_close(struct sv_cache *c);

/* Same kind, owner and geometry: layers of both belong to one group. */
bool sv_cache_same_geometry(const struct sv_cache_group_desc *a,
                            const struct sv_cache_group_desc *b);
const char *sv_cache_group_name(const struct sv_cache_group_desc *d); /* "target K/V" */
int64_t sv_cache_position_bytes(const struct sv_cache_group_desc *d); /* paged, all layers */
/* Device bytes of the pool; state: of the slots and the snapshots. */
int64_t sv_cache_group_bytes(const struct sv_cache_group_desc *d, int32_t n_slots);

/* ---------------------------------------------------------------- pages */

/* The part that a slot belongs to: it has slots [n_slots p / n_parts, n_slots (p + 1) / n_parts).
 */
static inline int32_t sv_cache_part(const struct sv_cache *c, int32_t slot)
{
    return (int32_t)((((int64_t)slot + 1) * c->n_parts - 1) / c->n_slots);
}
/* Pages that future positions will need, by group. */
struct sv_cache_need {
    int32_t n_pages[SV_MAX_GROUPS];
};
/* Adds the pages that a slot needs for [0, n_positions) in addition to those it has, if at most
 * n_rows positions are added at a time: a sliding group releases pages before its window. */
void sv_cache_add_need(const struct sv_cache *c, int32_t slot, int32_t n_positions, int32_t n_rows,
                       struct sv_cache_need *need);
/* Whether every group has so many pages of a part available, and `spare` more. */
bool sv_cache_can_back(const struct sv_cache *c, int32_t part, const struct sv_cache_need *need,
                       int32_t spare);
/* Reserves pages for positions [0, n_positions) of a slot, evicting cached prefixes by last use.
 * False, with nothing changed, when a pool is too small even so. */
bool sv_cache_reserve(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Releases pages without a position below n_positions (published ones only by release). */
void sv_cache_trim(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* In sliding groups, releases pages that no row at position >= first_row can see. */
void sv_cache_slide(struct sv_cache *c, int32_t slot, int32_t first_row);
/* Pages at the front of a group that a row at first_row or later cannot see; 0 without a window. */
int32_t sv_cache_n_unseen(const struct sv_cache_group *g, int32_t first_row);
/* Releases all pages of the slot; published ones stay in the prefix cache. Its states are cleared
 * before the next sequence's first step. */
void sv_cache_release(struct sv_cache *c, int32_t slot);
/* Both slots have the same page of the main group for this position. */
bool sv_cache_same_page(const struct sv_cache *c, int32_t slot, int32_t other, int32_t position);
/* Available pages of the main group, evictable ones included: in all parts, in one. */
int32_t sv_cache_n_available(const struct sv_cache *c);
int32_t sv_cache_n_available_in(const struct sv_cache *c, int32_t part);
/* Pages of a group that are free; that only the prefix cache has. */
int32_t sv_cache_n_free(const struct sv_cache *c, int32_t group);
int32_t sv_cache_n_kept(const struct sv_cache *c, int32_t group);

/* ---------------------------------------------------------------- the step */

/* Enqueues the table rows that changed, and the resets and restores of states. Once per step,
 * before any kernel. */
void sv_cache_upload(struct sv_cache *c);

/* The commit stage of a step, for all groups: each segment's slot keeps the first n_commit of its
 * rows. This only advances the slot's length; there is no other count of rows. K/V and latents of
 * rows beyond the length are never read again and are overwritten by the next rows. A state follows
 * the same rule by this contract of its mixer:
 * - The block of a slot and layer is the mixer's own. It holds a state at some position m, a record
 *   of m, and the contributions of rows from m on (a ring, row of position p at p modulo its size).
 * - For a pass that begins at position b (the slot's length, seg_base) rows [m, b) of the block are
 *   committed; it reads no others, and may add them to the state. Of its own rows it may add the
 *   anchor and the rows of a prompt chunk, which are always committed. Verify rows after the anchor
 *   are only recorded: rejected ones lie beyond the length and are ignored.
 * - All bytes 0: the state of the empty text, before the pass's first row, whatever its position.
 *   Segments of slot -1 (padding) access no block.
 * So no state is copied by row, and a snapshot is a copy of the block. */
void sv_cache_commit(struct sv_cache *c, const struct sv_p_commit *p);

/* Kernel view of one layer of a paged group. */
struct sv_kv sv_cache_kv(const struct sv_cache *c, int32_t group, int32_t layer);
/* Kernel view of one layer of a state group: the block of slot s is at data + s * slot_stride. */
struct sv_state {
    void *data;
    int64_t n_bytes, slot_stride;
};
struct sv_state sv_cache_state(const struct sv_cache *c, int32_t group, int32_t layer);

/* ---------------------------------------------------------------- states and snapshots */

/* The slot's states are cleared by the next upload, as for a new sequence. */
void sv_cache_reset(struct sv_cache *c, int32_t slot);
/* Enqueues a copy of the slot's states for the prefix index. After the steps enqueued so far the
 * slot must be at exactly n_positions, a multiple of sv_cache_boundary, all of them committed. It
 * enters the index when these positions are published; without a free page there is no copy. */
void sv_cache_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions);

/* Snapshots within answers. After verify rows have moved a slot from position b to position c, its
 * block is valid for each position n in (b, c]: of the rows after b only the anchor was added, and
 * rows from n on are not read. Whether a step passes a boundary is known only on the device until
 * its results are read, so there are three calls: before, within, and after the step. A slot's
 * newest such snapshot joins the prefix index when the slot is released. */
/* Reserves pages for a snapshot at n_positions, a multiple of sv_cache_boundary that a step may
 * pass. False: none available, or the slot publishes nothing. Repeated calls reserve the same
 * pages. */
bool sv_cache_reserve_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Enqueues the copy into them, done only if the segment's n_commit (device) passes the position. */
void sv_cache_snapshot_passed(struct sv_cache *c, int32_t slot, const int32_t *n_commit,
                              const int32_t *slot_len);
/* The step passed the position, and the positions are published: makes it the slot's snapshot. */
void sv_cache_passed(struct sv_cache *c, int32_t slot, int32_t n_positions);

/* How much of the prompt given to sv_cache_attach is cached, if that is more than could be attached
 * for lack of a state: probably a common prefix of several prompts. Else 0. */
static inline int32_t sv_cache_branch(const struct sv_cache *c, int32_t slot)
{
    return c->branch_at[slot];
}

/* ---------------------------------------------------------------- prefixes */

/* Enables the prefix cache; once, after open. */
int sv_cache_keep_prefixes(struct sv_cache *c, struct sv_err *err);
/* Prefixes are cached at multiples of this number of positions: the least common multiple of all
 * page sizes. */
int32_t sv_cache_boundary(const struct sv_cache *c);
/* Sets the salt, (0, 0) at first, of an empty slot: it shares prefixes with equal salts. */
void sv_cache_set_salt(struct sv_cache *c, int32_t slot, const uint64_t salt[2]);
/* Attaches to an empty slot the longest cached prefix of tokens that can be continued: everything
 * that a following row reads is there in every group, and valid in the target's groups and in the
 * groups whose bits are in `required`. These pages are shared, so nothing may be written to them.
 * Returns the number of positions. */
int32_t sv_cache_attach(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_tokens,
                        uint32_t required);
/* How many positions attach would give a slot of this salt and part at the moment, at most.
 * Callable from any thread. */
int32_t sv_cache_known(const struct sv_cache *c, const uint64_t salt[2], const int32_t *tokens,
                       int32_t n_tokens);
int32_t sv_cache_known_in(const struct sv_cache *c, int32_t part, const uint64_t salt[2],
                          const int32_t *tokens, int32_t n_tokens);
/* Adds the slot's full pages below n_positions to the prefix cache: they are committed, with these
 * tokens. Before sv_cache_slide. Equal pages of another sequence replace the slot's own. */
void sv_cache_publish(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_positions);
/* Marks positions >= from of these groups as invalid in the slot's pages, published or not: the
 * draft's K/V of these positions was not computed. */
void sv_cache_invalidate(struct sv_cache *c, int32_t slot, uint32_t groups, int32_t from);
/* Positions below the result are valid in all of these groups; INT32_MAX: all with pages. */
int32_t sv_cache_valid_to(const struct sv_cache *c, int32_t slot, uint32_t groups);
/* Empties the prefix cache; pages of running sequences are kept and no longer published. */
void sv_cache_flush(struct sv_cache *c);

/* Aborts unless every page is either free once or referenced exactly as often as tables have it. */
void sv_cache_check(const struct sv_cache *c);

#endif
