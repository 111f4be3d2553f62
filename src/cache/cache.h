/*
 * cache.h - the caches of sequences: a pool for each cache group, block tables, recurrent states,
 * and an index of prefixes by their tokens, so that prompts that begin alike share them.
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
    int32_t window;      /* paged: 0 = every position stays; W = the last W - 1 before a row do */
    int64_t state_bytes; /* state: of a slot in a layer, a multiple of SV_ALIGN */
    int32_t page_size;   /* positions in a page; state: snapshots are of multiples of it */
    int32_t n_pages;     /* of the device's pool; state: snapshots, may be 0 */
    /* Slots are divided among so many parts in order, each with a pool and an index of prefixes of
     * its own (DP attention: a part is a rank's); 0: one. The same of all groups; not of states. */
    int32_t n_parts;
    bool own_part; /* a device has the pages of one part alone, else all of them */
};

/* A page, or a snapshot of a state. Pages have numbers in all parts together, part by part. */
struct sv_cache_page {
    int32_t n_refs;       /* users, slots and the prefix index; 0 = free */
    int32_t node;         /* of the prefix index, -1 = none */
    int32_t older, newer; /* list of those that the prefix index alone uses, by last use */
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
        int32_t n_kept; /* pages that the prefix index alone uses */
        int32_t oldest, newest;
    } part[SV_MAX_RANKS];
    int32_t *n_dropped; /* (n_slots) pages at the front given back by slide */
    int32_t *valid_to;  /* (n_slots) positions below it are valid; INT32_MAX: all that are backed */
    int32_t *snapshot;  /* state: (n_slots) taken, to be published; -1 = none */
    int32_t *restore;   /* state: (n_slots) to be copied into the slot by the next upload; or -1 */
    int32_t *pending;   /* state: (n_slots) for a snapshot that a step may bring; or -1 */
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
    int32_t *snapshot_at; /* (n_slots) positions before the snapshot taken */
    int32_t *pending_at;  /* (n_slots) and before the one that a step may bring */
    int32_t *branch_at;   /* (n_slots) where the prompt parts from what was known of it; or 0 */
    /* host, for copies: twice all tables; the copies of one upload may be under way while the next
     * is made, not longer */
    int32_t *stage;
    size_t stage_words;
    int32_t stage_use;
    struct sv_prefix *prefix[SV_MAX_RANKS]; /* of each part; NULL: nothing is kept for reuse */
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
/* Pages that positions to come will take, by group. */
struct sv_cache_need {
    int32_t n_pages[SV_MAX_GROUPS];
};
/* Adds what backing [0, n_positions) of a slot takes beyond what it has, when no more than n_rows
 * positions are added at a time: a sliding group gives back what it has passed. */
void sv_cache_add_need(const struct sv_cache *c, int32_t slot, int32_t n_positions, int32_t n_rows,
                       struct sv_cache_need *need);
/* Whether every group can hand out as many pages of a part, and `spare` more. */
bool sv_cache_can_back(const struct sv_cache *c, int32_t part, const struct sv_cache_need *need,
                       int32_t spare);
/* Backs positions [0, n_positions) of a slot; what was kept longest without use makes room. False
 * and nothing changed when a pool is short even so. */
bool sv_cache_reserve(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Gives back pages that hold no position below n_positions (published ones only by release). */
void sv_cache_trim(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* In sliding groups, gives back pages that no row at position >= first_row can see. */
void sv_cache_slide(struct sv_cache *c, int32_t slot, int32_t first_row);
/* Pages at the front of a group that a row at first_row or later cannot see; 0 without a window. */
int32_t sv_cache_n_unseen(const struct sv_cache_group *g, int32_t first_row);
/* Gives back everything the slot holds; what was published stays findable. Its states are cleared
 * before the next sequence's first step. */
void sv_cache_release(struct sv_cache *c, int32_t slot);
/* Both slots have the same page of the main group for this position. */
bool sv_cache_same_page(const struct sv_cache *c, int32_t slot, int32_t other, int32_t position);
/* Pages of the main group that can still be handed out, those kept for reuse only included: in all
 * parts, in one. */
int32_t sv_cache_n_available(const struct sv_cache *c);
int32_t sv_cache_n_available_in(const struct sv_cache *c, int32_t part);
/* Pages of a group that are free, and that are kept for reuse only. */
int32_t sv_cache_n_free(const struct sv_cache *c, int32_t group);
int32_t sv_cache_n_kept(const struct sv_cache *c, int32_t group);

/* ---------------------------------------------------------------- the step */

/* Enqueues the table rows that changed, and the resets and restores of states. Once per step,
 * before any kernel. */
void sv_cache_upload(struct sv_cache *c);

/* The commit stage of a step, for all groups: each segment's slot keeps the first n_commit of its
 * rows. What makes it so is the slot's length, which moves here: nothing else counts rows. K/V and
 * latents of rows beyond the length are never read again and are overwritten by the next rows. A
 * state follows the same rule by this contract of its mixer:
 * - The block of a slot and layer is the mixer's own. It holds a state at some position m, a record
 *   of m, and what the rows from m on contribute (a ring, row of position p at p modulo its size).
 * - A pass that begins at position b (the slot's length, seg_base) finds rows [m, b) of the block
 *   committed, reads no others, and may fold them into the state. Of its own rows it may fold the
 *   anchor and the rows of a prompt chunk, which are always committed. Verify rows behind the
 *   anchor are only recorded: those rejected are forgotten by not being counted.
 * - All bytes 0: no row has been seen, and the state is that before the pass's first row, wherever
 *   that row is. Segments of slot -1 (padding) touch no block.
 * So no state is copied by row, and a block by itself is all that a snapshot has to copy. */
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

/* What a slot's states hold is cleared by the next upload, as before a new sequence. */
void sv_cache_reset(struct sv_cache *c, int32_t slot);
/* Enqueues a copy of the slot's states for the prefix index. The steps enqueued so far leave the
 * slot at exactly n_positions, a multiple of sv_cache_boundary, all of them committed. Kept once
 * these positions are published; may be left out where there is no room. */
void sv_cache_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions);

/* Snapshots inside of answers. Where verify rows take a slot from position b to position c, its
 * states behind the pass are also those of each position n in (b, c]: nothing behind b was folded
 * but the anchor, and rows from n on are not read. Whether a step passes a boundary is known on the
 * device alone until its results are read, so there are three calls: before the step, within, and
 * behind. A slot's newest such snapshot joins the prefix index when the slot is released. */
/* Pages for a snapshot before n_positions, a multiple of sv_cache_boundary that a step may pass.
 * False: there are none to spare, or nothing is published. Asked again, it has the same ones. */
bool sv_cache_reserve_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions);
/* Enqueues the copy into them, if the segment behind n_commit (device) passes these positions. */
void sv_cache_snapshot_passed(struct sv_cache *c, int32_t slot, const int32_t *n_commit,
                              const int32_t *slot_len);
/* It did, and the positions are published: the slot's snapshot from now on. */
void sv_cache_passed(struct sv_cache *c, int32_t slot, int32_t n_positions);

/* How much of the prompt given to sv_cache_attach is cached, where that is more than could be
 * continued for lack of a state: a beginning that prompts may share. Else 0. */
static inline int32_t sv_cache_branch(const struct sv_cache *c, int32_t slot)
{
    return c->branch_at[slot];
}

/* ---------------------------------------------------------------- prefixes */

/* Keep full pages for prompts that begin alike; once, after open. */
int sv_cache_keep_prefixes(struct sv_cache *c, struct sv_err *err);
/* Prefixes are known at multiples of so many positions: the least common multiple of all page
 * sizes. */
int32_t sv_cache_boundary(const struct sv_cache *c);
/* The salt of an empty slot: it shares prefixes with slots of the same salt. (0, 0) at first. */
void sv_cache_set_salt(struct sv_cache *c, int32_t slot, const uint64_t salt[2]);
/* Attaches to an empty slot the longest known prefix of tokens that can be continued: all that a
 * row behind it sees is there in every group, and valid in the target's groups and in the groups
 * whose bits are in `required`. Those positions are backed and shared, so nothing may be written
 * below them. Returns how many. */
int32_t sv_cache_attach(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_tokens,
                        uint32_t required);
/* How many positions attach would give a slot of this salt and this part at the moment, at most.
 * Callable from any thread. */
int32_t sv_cache_known(const struct sv_cache *c, const uint64_t salt[2], const int32_t *tokens,
                       int32_t n_tokens);
int32_t sv_cache_known_in(const struct sv_cache *c, int32_t part, const uint64_t salt[2],
                          const int32_t *tokens, int32_t n_tokens);
/* Makes the slot's full pages below n_positions findable: they are committed and say tokens. Before
 * sv_cache_slide. Pages that another sequence published meanwhile replace the slot's own. */
void sv_cache_publish(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_positions);
/* Positions >= from of these groups are not valid, in what the slot holds and in what it has
 * published or will publish: the draft's K/V of these positions was not computed. */
void sv_cache_invalidate(struct sv_cache *c, int32_t slot, uint32_t groups, int32_t from);
/* Positions below it are valid in all of these groups; INT32_MAX: as many as are backed. */
int32_t sv_cache_valid_to(const struct sv_cache *c, int32_t slot, uint32_t groups);
/* Forgets every prefix; pages that running sequences hold stay theirs and are not published any
 * more. */
void sv_cache_flush(struct sv_cache *c);

/* Aborts unless every page is either free once or referenced exactly as often as tables say. */
void sv_cache_check(const struct sv_cache *c);

#endif
