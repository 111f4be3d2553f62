/*
 * prefix.c - the prefix index: a tree of cached prefixes by their tokens.
 *
 * Called through cache.h by the engine (attach, publish, invalidate, flush), and by pool.c and
 * state.c (evict, leave, snapshots). A node has as many positions as the least common multiple of
 * all groups' page sizes; it has the pages of these positions in each paged group, target and draft
 * alike, and for state groups optionally a snapshot at its end. Its key is its parent and its token
 * ids, which are compared, not only hashed. The first node of a sequence has the sequence's salt in
 * its key, so that trees of different salts have nothing in common. Each part of the slots has an
 * index of its own, since pages of one part are of no use to the others.
 *
 * Pages of sliding groups and snapshots are evicted separately from their node, since only those at
 * the end of a prefix are read when it is continued. A node is valid for the groups in its mask,
 * whose pages were computed. The draft's K/V may be missing; such a prefix is still useful.
 *
 * A node is busy while a running sequence's path includes it, else idle. Idle nodes are in a list
 * by last use. A sequence that ends adds its path to it leaf first, so a child is always older than
 * its parent, the oldest idle node never has children, and it can be evicted without a search. Must
 * not: keep a page that is not full and committed, or allocate after open.
 *
 * One function may be called by another thread, sv_cache_known. What it reads (nodes in buckets,
 * their tokens, pages and masks) is written with the lock held; the engine's thread, which alone
 * writes, reads without.
 */
#include "cache/impl.h"

#include <string.h>

enum { NONE = SV_NO_NODE, LEFT_OUT = -2 /* n_path of a slot that publishes no more */ };

struct node {
    int32_t parent; /* NONE: it begins the sequence */
    int32_t n_children;
    int32_t n_seqs;       /* running sequences whose path includes it */
    int32_t next;         /* in its bucket, or in the list of unused nodes */
    int32_t older, newer; /* idle list */
    uint32_t bucket;
    uint32_t valid;   /* groups, as bits */
    uint64_t salt[2]; /* of a sequence's first node */
    bool used;
};

struct sv_prefix {
    int32_t n_nodes, grid; /* positions of a node */
    int32_t node_pages;    /* of all groups */
    struct node *node;
    int32_t *tokens; /* (n_nodes, grid) */
    int32_t *page;   /* (n_nodes, node_pages): group by group, SV_NO_PAGE: not there */
    int32_t *bucket; /* (bucket_mask + 1) */
    uint32_t bucket_mask;
    int32_t unused, oldest, newest, n_idle;
    int32_t *end;        /* (n_slots) last node of the slot's path, NONE at the beginning */
    int32_t *n_path;     /* (n_slots) nodes of it, or LEFT_OUT */
    uint64_t (*salt)[2]; /* (n_slots) */
    struct sv_lock *lock;
};

static int32_t gcd(int32_t a, int32_t b)
{
    return b ? gcd(b, a % b) : a;
}

int32_t sv_cache_boundary(const struct sv_cache *c)
{
    int32_t n = 1;
    for (int32_t i = 0; i < c->n_groups; i++)
        n = n / gcd(n, c->group[i].d.page_size) * c->group[i].d.page_size;
    return n;
}

/* The most nodes of a part. If a group keeps all positions, each node has pages of its own there.
 * Otherwise: the longest paths of all slots, and the pages that the pools have in addition. */
static int32_t most_nodes(const struct sv_cache *c, int32_t grid)
{
    int32_t n = INT32_MAX, n_apart = 0;
    for (int32_t i = 0; i < c->n_groups; i++) {
        const struct sv_cache_group *g = &c->group[i];
        const int32_t n_own = g->part_pages / (grid / g->d.page_size);
        if (sv_cache_is_apart(g))
            n_apart = n_own > n_apart ? n_own : n_apart;
        else
            n = n_own < n ? n_own : n;
    }
    if (n == INT32_MAX)
        n = c->n_slots * (c->max_positions / grid) + n_apart;
    return n > 1 ? n : 1;
}

static int open_part(struct sv_cache *c, struct sv_prefix **part, int32_t grid, int32_t node_pages,
                     struct sv_err *err)
{
    const int32_t n = most_nodes(c, grid);
    uint32_t n_buckets = 16;
    while (n_buckets < 2 * (uint32_t)n)
        n_buckets *= 2;
    const size_t nodes = (size_t)n, slots = (size_t)c->n_slots;
    struct sv_prefix *x = sv_arena_alloc(&c->arena, sizeof *x);
    if (x) {
        x->n_nodes = n;
        x->grid = grid;
        x->node_pages = node_pages;
        x->bucket_mask = n_buckets - 1;
        x->node = sv_arena_alloc(&c->arena, nodes * sizeof *x->node);
        x->tokens = sv_arena_alloc(&c->arena, nodes * (size_t)grid * sizeof *x->tokens);
        x->page = sv_arena_alloc(&c->arena, nodes * (size_t)node_pages * sizeof *x->page);
        x->bucket = sv_arena_alloc(&c->arena, n_buckets * sizeof *x->bucket);
        x->end = sv_arena_alloc(&c->arena, slots * sizeof *x->end);
        x->n_path = sv_arena_alloc(&c->arena, slots * sizeof *x->n_path);
        x->salt = sv_arena_alloc(&c->arena, slots * sizeof *x->salt);
    }
    if (!x || !x->node || !x->tokens || !x->page || !x->bucket || !x->end || !x->n_path || !x->salt)
        return sv_fail(err, SV_ENOMEM, -1, "prefix index of %d nodes", n);
    int rc = sv_lock_open(&x->lock, err);
    if (rc)
        return rc;
    *part = x;
    memset(x->salt, 0, slots * sizeof *x->salt);
    return SV_OK;
}

int sv_cache_keep_prefixes(struct sv_cache *c, struct sv_err *err)
{
    const int32_t grid = sv_cache_boundary(c);
    int32_t node_pages = 0;
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        g->node_at = node_pages;
        g->node_pages = sv_cache_is_paged(g) ? grid / g->d.page_size : 1;
        node_pages += g->node_pages;
    }
    int rc = SV_OK;
    for (int32_t p = 0; p < c->n_parts && !rc; p++)
        rc = open_part(c, &c->prefix[p], grid, node_pages, err);
    if (rc)
        sv_prefix_close(c);
    else
        sv_cache_flush(c);
    return rc;
}

void sv_prefix_close(struct sv_cache *c)
{
    for (int32_t p = 0; p < c->n_parts; p++) {
        if (c->prefix[p])
            sv_lock_close(c->prefix[p]->lock);
        c->prefix[p] = NULL;
    }
}

/* ---------------------------------------------------------------- idle list */

static void idle_remove(struct sv_prefix *x, int32_t i)
{
    struct node *n = &x->node[i];
    *(n->older == NONE ? &x->oldest : &x->node[n->older].newer) = n->newer;
    *(n->newer == NONE ? &x->newest : &x->node[n->newer].older) = n->older;
    x->n_idle--;
}

static void idle_append(struct sv_prefix *x, int32_t i)
{
    struct node *n = &x->node[i];
    n->older = x->newest;
    n->newer = NONE;
    *(x->newest == NONE ? &x->oldest : &x->node[x->newest].newer) = i;
    x->newest = i;
    x->n_idle++;
}

/* ---------------------------------------------------------------- nodes */

static uint32_t hash(const struct sv_prefix *x, int32_t parent, const uint64_t *salt,
                     const int32_t *tokens)
{
    uint64_t h = (uint64_t)(uint32_t)parent + 0x9e3779b97f4a7c15u;
    if (parent == NONE)
        h ^= salt[0];
    for (int32_t i = 0; i < x->grid; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    return (uint32_t)h & x->bucket_mask;
}

static int32_t *tokens_of(const struct sv_prefix *x, int32_t i)
{
    return x->tokens + (size_t)i * (size_t)x->grid;
}

static bool is_node(const struct sv_prefix *x, int32_t i, int32_t parent, const uint64_t *salt,
                    const int32_t *tokens)
{
    const struct node *n = &x->node[i];
    const size_t n_bytes = (size_t)x->grid * sizeof *tokens;
    return n->parent == parent && (parent != NONE || memcmp(n->salt, salt, sizeof n->salt) == 0) &&
           memcmp(tokens_of(x, i), tokens, n_bytes) == 0;
}

/* salt is only used without a parent. */
static int32_t find(const struct sv_prefix *x, int32_t parent, const uint64_t *salt,
                    const int32_t *tokens)
{
    int32_t i = x->bucket[hash(x, parent, salt, tokens)];
    while (i != NONE && !is_node(x, i, parent, salt, tokens))
        i = x->node[i].next;
    return i;
}

/* The pages of a node in a group. */
static int32_t *held_by(const struct sv_prefix *x, int32_t i, const struct sv_cache_group *g)
{
    return x->page + (size_t)i * (size_t)x->node_pages + g->node_at;
}

static bool is_valid(const struct sv_prefix *x, int32_t i, int32_t group)
{
    return x->node[i].valid >> group & 1;
}

static void hold(struct sv_cache_group *g, int32_t *held, int32_t page, int32_t node)
{
    SV_REQUIRE(*held == SV_NO_PAGE);
    if (page != SV_NO_PAGE)
        sv_cache_enter_page(g, page, node);
    *held = page;
}

static void let_go(struct sv_cache_group *g, int32_t *held)
{
    if (*held != SV_NO_PAGE)
        sv_cache_leave_page(g, *held);
    *held = SV_NO_PAGE;
}

/* Which groups a slot has computed up to the end of node p of its path. */
static uint32_t valid_of(const struct sv_cache *c, int32_t slot, int32_t p)
{
    const int32_t end = (p + 1) * sv_prefix_of(c, slot)->grid;
    uint32_t valid = 0;
    for (int32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].valid_to[slot] >= end)
            valid |= 1u << g;
    return valid;
}

/* Adds a node for part p of the slot's path, sharing the slot's pages; in sliding groups those that
 * it still has. NONE: all nodes are busy. */
static int32_t add(struct sv_cache *c, int32_t slot, int32_t p, int32_t parent,
                   const int32_t *tokens)
{
    struct sv_prefix *x = sv_prefix_of(c, slot);
    if (x->unused == NONE && x->oldest != NONE)
        sv_prefix_evict(c, sv_cache_part(c, slot));
    int32_t i = x->unused;
    if (i == NONE)
        return NONE;
    struct node *n = &x->node[i];
    sv_lock_take(x->lock);
    x->unused = n->next;
    uint32_t b = hash(x, parent, x->salt[slot], tokens);
    *n = (struct node){
        .salt = {x->salt[slot][0], x->salt[slot][1]},
        .parent = parent,
        .next = x->bucket[b],
        .bucket = b,
        .valid = valid_of(c, slot, p),
        .used = true,
    };
    x->bucket[b] = i;
    memcpy(tokens_of(x, i), tokens, (size_t)x->grid * sizeof *tokens);
    for (int32_t gi = 0; gi < c->n_groups; gi++) {
        struct sv_cache_group *g = &c->group[gi];
        int32_t *held = held_by(x, i, g);
        for (int32_t k = 0; k < g->node_pages; k++) {
            held[k] = SV_NO_PAGE;
            if (sv_cache_is_paged(g))
                hold(g, &held[k], sv_cache_row(g, slot)[p * g->node_pages + k], i);
            SV_REQUIRE(held[k] != SV_NO_PAGE || sv_cache_is_apart(g));
        }
    }
    sv_lock_leave(x->lock);
    if (parent != NONE)
        x->node[parent].n_children++;
    return i;
}

void sv_prefix_evict(struct sv_cache *c, int32_t part)
{
    struct sv_prefix *x = c->prefix[part];
    int32_t i = x->oldest;
    struct node *n = &x->node[i];
    SV_REQUIRE(n->n_seqs == 0 && n->n_children == 0);
    idle_remove(x, i);
    sv_lock_take(x->lock);
    int32_t *link = &x->bucket[n->bucket];
    while (*link != i)
        link = &x->node[*link].next;
    *link = n->next;
    if (n->parent != NONE)
        x->node[n->parent].n_children--;
    for (int32_t g = 0; g < c->n_groups; g++)
        for (int32_t k = 0; k < c->group[g].node_pages; k++)
            let_go(&c->group[g], &held_by(x, i, &c->group[g])[k]);
    n->used = false;
    n->next = x->unused;
    sv_lock_leave(x->lock);
    x->unused = i;
}

void sv_prefix_evict_page(struct sv_cache *c, int32_t group, int32_t page)
{
    struct sv_cache_group *g = &c->group[group];
    const struct sv_prefix *x = c->prefix[page / g->part_pages];
    int32_t *held = held_by(x, g->page[page].node, g);
    while (*held != page)
        held++;
    sv_lock_take(x->lock);
    let_go(g, held);
    sv_lock_leave(x->lock);
}

/* ---------------------------------------------------------------- sequences */

static void enter(struct sv_prefix *x, int32_t i)
{
    if (x->node[i].n_seqs++ == 0)
        idle_remove(x, i);
}

void sv_cache_set_salt(struct sv_cache *c, int32_t slot, const uint64_t salt[2])
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && c->n_backed[slot] == 0);
    struct sv_prefix *x = sv_prefix_of(c, slot);
    if (x)
        memcpy(x->salt[slot], salt, sizeof x->salt[slot]);
}

/* Extends by a node the run of each group's pages that can be read without a gap. */
static void extend(const struct sv_cache *c, const struct sv_prefix *x, int32_t i,
                   uint32_t required, int32_t *run)
{
    for (int32_t gi = 0; gi < c->n_groups; gi++) {
        const struct sv_cache_group *g = &c->group[gi];
        const bool valid = !(required >> gi & 1) || is_valid(x, i, gi);
        const int32_t *held = held_by(x, i, g);
        for (int32_t k = 0; k < g->node_pages; k++)
            run[gi] = valid && held[k] != SV_NO_PAGE ? run[gi] + 1 : 0;
    }
}

/* Whether everything that a row at position n reads is there in every group. */
static bool is_complete(const struct sv_cache *c, int32_t n, const int32_t *run)
{
    for (int32_t gi = 0; gi < c->n_groups; gi++) {
        const struct sv_cache_group *g = &c->group[gi];
        const int32_t need =
            sv_cache_is_paged(g) ? n / g->d.page_size - sv_cache_n_unseen(g, n) : 1;
        if (run[gi] < need)
            return false;
    }
    return true;
}

/* Shares a node's pages that a later row can see with part p of the slot, and at the end of the
 * prefix the snapshot. */
static void share(struct sv_cache *c, int32_t slot, int32_t p, int32_t i, bool last)
{
    const struct sv_prefix *x = sv_prefix_of(c, slot);
    for (int32_t gi = 0; gi < c->n_groups; gi++) {
        struct sv_cache_group *g = &c->group[gi];
        const int32_t *held = held_by(x, i, g);
        if (!sv_cache_is_paged(g) && last)
            sv_state_restore(c, slot, gi, *held);
        for (int32_t k = g->node_pages - 1; k >= 0 && sv_cache_is_paged(g); k--) {
            const int32_t at = p * g->node_pages + k;
            if (at < g->n_dropped[slot])
                break;
            sv_cache_ref_page(g, held[k]);
            sv_cache_row(g, slot)[at] = held[k];
            if (!is_valid(x, i, gi))
                g->valid_to[slot] = p * x->grid;
        }
    }
}

/* The longest path of nodes for these tokens that can be continued: its number of nodes, the last
 * of them, and the number of matching nodes in all. */
struct path {
    int32_t n, end, n_known;
};

static struct path longest(const struct sv_cache *c, const struct sv_prefix *x,
                           const uint64_t *salt, const int32_t *tokens, int32_t n_tokens,
                           uint32_t required)
{
    struct path path = {.end = NONE};
    int32_t run[SV_MAX_GROUPS] = {0}, i = NONE;
    required |= c->owned[SV_CACHE_TARGET];
    for (int32_t n = 0; (n + 1) * x->grid <= n_tokens; n++) {
        i = find(x, i, salt, tokens + (size_t)n * (size_t)x->grid);
        if (i == NONE)
            break;
        path.n_known = n + 1;
        extend(c, x, i, required, run);
        if (!is_complete(c, (n + 1) * x->grid, run))
            continue;
        path.end = i;
        path.n = n + 1;
    }
    return path;
}

int32_t sv_cache_known_in(const struct sv_cache *c, int32_t part, const uint64_t salt[2],
                          const int32_t *tokens, int32_t n_tokens)
{
    const struct sv_prefix *x = c->prefix[part];
    if (!x)
        return 0;
    sv_lock_take(x->lock);
    const struct path path = longest(c, x, salt, tokens, n_tokens, 0);
    sv_lock_leave(x->lock);
    return path.n * x->grid;
}

int32_t sv_cache_known(const struct sv_cache *c, const uint64_t salt[2], const int32_t *tokens,
                       int32_t n_tokens)
{
    int32_t most = 0;
    for (int32_t p = 0; p < c->n_parts; p++) {
        const int32_t n = sv_cache_known_in(c, p, salt, tokens, n_tokens);
        most = n > most ? n : most;
    }
    return most;
}

int32_t sv_cache_attach(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_tokens,
                        uint32_t required)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && c->n_backed[slot] == 0);
    struct sv_prefix *x = sv_prefix_of(c, slot);
    if (!x)
        return 0;
    const struct path path = longest(c, x, x->salt[slot], tokens, n_tokens, required);
    const int32_t n_path = path.n, end = path.end, n_known = path.n_known;
    int32_t i;
    for (int32_t g = 0; g < c->n_groups; g++)
        c->group[g].n_dropped[slot] = sv_cache_n_unseen(&c->group[g], n_path * x->grid);
    int32_t p = n_path - 1;
    for (i = end; i != NONE; i = x->node[i].parent, p--) {
        enter(x, i);
        share(c, slot, p, i, i == end);
    }
    x->end[slot] = end;
    x->n_path[slot] = n_path;
    c->n_backed[slot] = n_path * x->grid;
    c->branch_at[slot] = c->has_state && n_known > n_path ? n_known * x->grid : 0;
    c->dirty[slot] = true;
    return c->n_backed[slot];
}

/* Merges a page of the node and the slot's page for the same positions, which are equal bit for bit
 * if both are valid: the slot takes the node's page and releases its own, or, if the node has none
 * or `gives` is set, the node takes the slot's. Returns whether the node did. */
static bool merge(struct sv_cache_group *g, int32_t *held, int32_t *entry, int32_t node, bool gives)
{
    if (*held == SV_NO_PAGE || gives) {
        let_go(g, held);
        hold(g, held, *entry, node);
        return *entry != SV_NO_PAGE;
    }
    if (*entry == SV_NO_PAGE)
        return false; /* passed by the window */
    SV_REQUIRE(*entry != *held);
    sv_cache_drop_page(g, *entry);
    sv_cache_ref_page(g, *held);
    *entry = *held;
    return false;
}

/* Another sequence has published part p of the slot's path. The slot's pages replace those that are
 * not valid and that no running sequence reads. */
static void meet(struct sv_cache *c, int32_t slot, int32_t p, int32_t i)
{
    struct sv_prefix *x = sv_prefix_of(c, slot);
    const uint32_t valid = valid_of(c, slot, p);
    sv_lock_take(x->lock);
    for (int32_t gi = 0; gi < c->n_groups; gi++) {
        struct sv_cache_group *g = &c->group[gi];
        const bool mine = valid >> gi & 1,
                   gives = mine && !is_valid(x, i, gi) && x->node[i].n_seqs == 0;
        int32_t *held = held_by(x, i, g);
        bool given = false;
        for (int32_t k = 0; k < g->node_pages && sv_cache_is_paged(g); k++) {
            int32_t *entry = &sv_cache_row(g, slot)[p * g->node_pages + k];
            given |= merge(g, &held[k], entry, i, gives);
        }
        if (gives)
            x->node[i].valid |= 1u << gi;
        else if (given && !mine)
            x->node[i].valid &= ~(1u << gi);
        if (!is_valid(x, i, gi) && g->valid_to[slot] > p * x->grid)
            g->valid_to[slot] = p * x->grid;
    }
    sv_lock_leave(x->lock);
    c->dirty[slot] = true;
}

void sv_cache_publish(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_positions)
{
    struct sv_prefix *x = sv_prefix_of(c, slot);
    if (!x || x->n_path[slot] == LEFT_OUT)
        return;
    SV_REQUIRE(n_positions <= c->n_backed[slot]);
    while ((x->n_path[slot] + 1) * x->grid <= n_positions) {
        int32_t p = x->n_path[slot];
        const int32_t *node_tokens = tokens + (size_t)p * (size_t)x->grid;
        int32_t i = find(x, x->end[slot], x->salt[slot], node_tokens);
        if (i != NONE) {
            meet(c, slot, p, i);
            enter(x, i);
        } else {
            i = add(c, slot, p, x->end[slot], node_tokens);
            if (i == NONE)
                return;
            x->node[i].n_seqs = 1;
        }
        x->end[slot] = i;
        x->n_path[slot]++;
        if (c->has_state && c->snapshot_at[slot] == (p + 1) * x->grid)
            sv_prefix_take_snapshot(c, slot, c->snapshot_at[slot]);
    }
}

void sv_cache_invalidate(struct sv_cache *c, int32_t slot, uint32_t groups, int32_t from)
{
    const struct sv_prefix *x = sv_prefix_of(c, slot);
    uint32_t less = 0;
    for (int32_t g = 0; g < c->n_groups; g++) {
        if (!(groups >> g & 1) || c->group[g].valid_to[slot] <= from)
            continue;
        c->group[g].valid_to[slot] = from;
        less |= 1u << g;
    }
    if (!x || !less)
        return;
    int32_t n = x->n_path[slot];
    sv_lock_take(x->lock);
    for (int32_t i = x->end[slot]; i != NONE && n * x->grid > from; i = x->node[i].parent, n--)
        x->node[i].valid &= ~less;
    sv_lock_leave(x->lock);
}

int32_t sv_cache_valid_to(const struct sv_cache *c, int32_t slot, uint32_t groups)
{
    int32_t n = INT32_MAX;
    for (int32_t g = 0; g < c->n_groups; g++)
        if (groups >> g & 1 && c->group[g].valid_to[slot] < n)
            n = c->group[g].valid_to[slot];
    return n;
}

void sv_prefix_leave(struct sv_cache *c, int32_t slot)
{
    struct sv_prefix *x = sv_prefix_of(c, slot);
    if (!x)
        return;
    for (int32_t i = x->end[slot]; i != NONE; i = x->node[i].parent)
        if (--x->node[i].n_seqs == 0)
            idle_append(x, i);
    x->end[slot] = NONE;
    x->n_path[slot] = 0;
}

/* ---------------------------------------------------------------- snapshots */

/* The node of the slot's path that ends at n positions; NONE: not published. */
static int32_t node_ending_at(const struct sv_cache *c, int32_t slot, int32_t n)
{
    const struct sv_prefix *x = sv_prefix_of(c, slot);
    int32_t i = n <= x->n_path[slot] * x->grid ? x->end[slot] : NONE;
    for (int32_t p = x->n_path[slot]; i != NONE && p * x->grid > n; p--)
        i = x->node[i].parent;
    return i;
}

bool sv_prefix_wants_snapshot(const struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    const struct sv_prefix *x = sv_prefix_of(c, slot);
    if (!x || x->n_path[slot] == LEFT_OUT || n_positions <= 0)
        return false;
    SV_REQUIRE(n_positions % x->grid == 0);
    const int32_t i = node_ending_at(c, slot, n_positions);
    bool wants = i == NONE;
    for (int32_t g = 0; g < c->n_groups && i != NONE; g++)
        wants |= !sv_cache_is_paged(&c->group[g]) && *held_by(x, i, &c->group[g]) == SV_NO_PAGE;
    return wants;
}

void sv_prefix_take_snapshot(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    const int32_t i = node_ending_at(c, slot, n_positions);
    for (int32_t gi = 0; gi < c->n_groups && i != NONE; gi++) {
        struct sv_cache_group *g = &c->group[gi];
        if (sv_cache_is_paged(g) || g->snapshot[slot] == SV_NO_PAGE)
            continue;
        const struct sv_prefix *x = sv_prefix_of(c, slot);
        int32_t *held = held_by(x, i, g);
        sv_lock_take(x->lock);
        if (*held == SV_NO_PAGE)
            hold(g, held, g->snapshot[slot], i);
        sv_lock_leave(x->lock);
        sv_cache_drop_page(g, g->snapshot[slot]);
        g->snapshot[slot] = SV_NO_PAGE;
    }
}

/* ---------------------------------------------------------------- the whole index */

static void flush_part(struct sv_cache *c, struct sv_prefix *x)
{
    sv_lock_take(x->lock);
    for (int32_t i = 0; i < x->n_nodes; i++)
        for (int32_t g = 0; x->node[i].used && g < c->n_groups; g++)
            for (int32_t k = 0; k < c->group[g].node_pages; k++)
                let_go(&c->group[g], &held_by(x, i, &c->group[g])[k]);
    for (int32_t i = 0; i < x->n_nodes; i++)
        x->node[i] = (struct node){.next = i + 1 < x->n_nodes ? i + 1 : NONE};
    for (uint32_t b = 0; b <= x->bucket_mask; b++)
        x->bucket[b] = NONE;
    sv_lock_leave(x->lock);
    x->unused = 0;
    x->oldest = x->newest = NONE;
    x->n_idle = 0;
    for (int32_t s = 0; s < c->n_slots; s++) {
        x->end[s] = NONE;
        x->n_path[s] = c->n_backed[s] ? LEFT_OUT : 0;
    }
}

void sv_cache_flush(struct sv_cache *c)
{
    for (int32_t p = 0; p < c->n_parts && c->prefix[p]; p++)
        flush_part(c, c->prefix[p]);
}

int32_t sv_prefix_n_published(const struct sv_cache *c, int32_t slot)
{
    const struct sv_prefix *x = sv_prefix_of(c, slot);
    return x && x->n_path[slot] > 0 ? x->n_path[slot] * x->grid : 0;
}

static void count_part(const struct sv_prefix *x, const struct sv_cache_group *g, int32_t *n_users)
{
    for (int32_t i = 0; i < x->n_nodes; i++)
        for (int32_t k = 0; k < g->node_pages && x->node[i].used; k++) {
            const int32_t page = held_by(x, i, g)[k];
            SV_REQUIRE(page != SV_NO_PAGE || sv_cache_is_apart(g));
            if (page == SV_NO_PAGE)
                continue;
            SV_REQUIRE(g->page[page].node == i);
            n_users[page]++;
        }
}

void sv_prefix_count(const struct sv_cache *c, int32_t group, int32_t *n_users)
{
    for (int32_t p = 0; p < c->n_parts && c->prefix[p]; p++)
        count_part(c->prefix[p], &c->group[group], n_users);
}

static void check_path(const struct sv_cache *c, int32_t slot)
{
    const struct sv_prefix *x = sv_prefix_of(c, slot);
    int32_t p = x->n_path[slot];
    for (int32_t i = x->end[slot]; i != NONE; i = x->node[i].parent) {
        p--;
        for (int32_t gi = 0; gi < c->n_groups; gi++) {
            const struct sv_cache_group *g = &c->group[gi];
            for (int32_t k = 0; k < g->node_pages && sv_cache_is_paged(g); k++) {
                int32_t page = sv_cache_row(g, slot)[p * g->node_pages + k];
                SV_REQUIRE(page < 0 || page == held_by(x, i, g)[k]);
            }
        }
    }
    SV_REQUIRE(p == 0 || p == LEFT_OUT);
}

static void check_part(const struct sv_prefix *x)
{
    int32_t n_used = 0, n_unused = 0, n_idle = 0, n_busy = 0;
    int64_t children = 0, with_parent = 0;
    for (int32_t i = 0; i < x->n_nodes; i++) {
        const struct node *n = &x->node[i];
        if (!n->used)
            continue;
        n_used++;
        n_busy += n->n_seqs > 0;
        children += n->n_children;
        with_parent += n->parent != NONE;
        SV_REQUIRE(n->parent == NONE ||
                   (x->node[n->parent].used && n->n_seqs <= x->node[n->parent].n_seqs));
        SV_REQUIRE(find(x, n->parent, n->salt, tokens_of(x, i)) == i);
    }
    SV_REQUIRE(children == with_parent);
    for (int32_t i = x->unused; i != NONE; i = x->node[i].next)
        n_unused++;
    for (int32_t i = x->oldest; i != NONE; i = x->node[i].newer, n_idle++)
        SV_REQUIRE(x->node[i].used && x->node[i].n_seqs == 0);
    SV_REQUIRE(n_used + n_unused == x->n_nodes && n_idle == x->n_idle && n_busy + n_idle == n_used);
}

void sv_prefix_check(const struct sv_cache *c)
{
    for (int32_t p = 0; p < c->n_parts && c->prefix[p]; p++)
        check_part(c->prefix[p]);
    for (int32_t s = 0; s < c->n_slots && c->prefix[0]; s++)
        check_path(c, s);
}
