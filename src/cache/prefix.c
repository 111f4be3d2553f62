/*
 * prefix.c - full pages by what they say: a tree of pages keyed by the tokens that led to them.
 *
 * Called through cache.h by the engine (attach, publish, flush) and by pool.c (evict, leave). A
 * node stands for one page of positions in every cache group at once, target and draft alike, so
 * what is found is complete. Its key is its parent and its page of token ids, which are compared,
 * not only hashed. What begins a sequence has the sequence's salt in its key, so that trees of
 * different salts have nothing in common.
 *
 * A node is busy while a running sequence's pages lead through it, else idle. Idle nodes stand in a
 * list by last use. A sequence that leaves puts its path there leaf first, so a child is always
 * older than its parent, the oldest idle node never has children, and evicting takes it without a
 * search. Must not: keep a page that is not full and committed, or allocate after open.
 */
#include "cache/impl.h"

#include <string.h>

enum { NONE = -1, LEFT_OUT = -2 /* n_path of a slot whose pages are no longer published */ };

struct node {
    int32_t parent; /* NONE: its page begins the sequence */
    int32_t n_children;
    int32_t n_seqs;       /* running sequences whose path leads through it */
    int32_t next;         /* in its bucket, or in the list of unused nodes */
    int32_t older, newer; /* idle list */
    uint32_t bucket;
    uint64_t salt[2]; /* of what begins a sequence */
    bool used;
    bool bare; /* without the draft's K/V */
};

struct sv_prefix {
    int32_t n_nodes, page_size;
    struct node *node;
    int32_t *tokens; /* (n_nodes, page_size) */
    int32_t *page;   /* (n_nodes, n_groups) */
    int32_t *bucket; /* (bucket_mask + 1) */
    uint32_t bucket_mask;
    int32_t unused, oldest, newest, n_idle;
    int32_t *end;        /* (n_slots) last node of the slot's path, NONE at the beginning */
    int32_t *n_path;     /* (n_slots) pages of it, or LEFT_OUT */
    int32_t *bare_from;  /* (n_slots) first position without the draft's K/V */
    uint64_t (*salt)[2]; /* (n_slots) */
};

int sv_cache_keep_prefixes(struct sv_cache *c, struct sv_err *err)
{
    int32_t n = c->group[0].d.n_pages;
    for (int32_t i = 1; i < c->n_groups; i++)
        n = c->group[i].d.n_pages < n ? c->group[i].d.n_pages : n;
    uint32_t n_buckets = 16;
    while (n_buckets < 2 * (uint32_t)n)
        n_buckets *= 2;
    size_t nodes = (size_t)n, slots = (size_t)c->n_slots;
    struct sv_prefix *x = sv_arena_alloc(&c->arena, sizeof *x);
    if (x) {
        x->n_nodes = n;
        x->page_size = c->group[0].d.page_size;
        x->bucket_mask = n_buckets - 1;
        x->node = sv_arena_alloc(&c->arena, nodes * sizeof *x->node);
        x->tokens = sv_arena_alloc(&c->arena, nodes * (size_t)x->page_size * sizeof *x->tokens);
        x->page = sv_arena_alloc(&c->arena, nodes * (size_t)c->n_groups * sizeof *x->page);
        x->bucket = sv_arena_alloc(&c->arena, n_buckets * sizeof *x->bucket);
        x->end = sv_arena_alloc(&c->arena, slots * sizeof *x->end);
        x->n_path = sv_arena_alloc(&c->arena, slots * sizeof *x->n_path);
        x->bare_from = sv_arena_alloc(&c->arena, slots * sizeof *x->bare_from);
        x->salt = sv_arena_alloc(&c->arena, slots * sizeof *x->salt);
    }
    if (!x || !x->node || !x->tokens || !x->page || !x->bucket || !x->end || !x->n_path ||
        !x->bare_from || !x->salt)
        return sv_fail(err, SV_ENOMEM, -1, "prefix index of %d pages", n);
    c->prefix = x;
    for (size_t s = 0; s < slots; s++)
        x->bare_from[s] = INT32_MAX;
    memset(x->salt, 0, slots * sizeof *x->salt);
    sv_cache_flush(c);
    return SV_OK;
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
    for (int32_t i = 0; i < x->page_size; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    return (uint32_t)h & x->bucket_mask;
}

static int32_t *tokens_of(const struct sv_prefix *x, int32_t i)
{
    return x->tokens + (size_t)i * (size_t)x->page_size;
}

static bool is_page(const struct sv_prefix *x, int32_t i, int32_t parent, const uint64_t *salt,
                    const int32_t *tokens)
{
    const struct node *n = &x->node[i];
    const size_t n_bytes = (size_t)x->page_size * sizeof *tokens;
    return n->parent == parent && (parent != NONE || memcmp(n->salt, salt, sizeof n->salt) == 0) &&
           memcmp(tokens_of(x, i), tokens, n_bytes) == 0;
}

/* salt counts where there is no parent. */
static int32_t find(const struct sv_prefix *x, int32_t parent, const uint64_t *salt,
                    const int32_t *tokens)
{
    int32_t i = x->bucket[hash(x, parent, salt, tokens)];
    while (i != NONE && !is_page(x, i, parent, salt, tokens))
        i = x->node[i].next;
    return i;
}

/* A node for the slot's page p, sharing the slot's pages. */
static int32_t add(struct sv_cache *c, int32_t slot, int32_t p, int32_t parent,
                   const int32_t *tokens)
{
    struct sv_prefix *x = c->prefix;
    int32_t i = x->unused;
    SV_REQUIRE(i != NONE); /* each node holds a page of its own, and there are as many as pages */
    struct node *n = &x->node[i];
    x->unused = n->next;
    uint32_t b = hash(x, parent, x->salt[slot], tokens);
    *n = (struct node){
        .salt = {x->salt[slot][0], x->salt[slot][1]},
        .parent = parent,
        .next = x->bucket[b],
        .bucket = b,
        .used = true,
        .bare = (p + 1) * x->page_size > x->bare_from[slot],
    };
    x->bucket[b] = i;
    memcpy(tokens_of(x, i), tokens, (size_t)x->page_size * sizeof *tokens);
    for (int32_t g = 0; g < c->n_groups; g++) {
        int32_t page = sv_cache_row(&c->group[g], slot)[p];
        SV_REQUIRE(page >= 0);
        c->group[g].n_refs[page]++;
        x->page[i * c->n_groups + g] = page;
    }
    if (parent != NONE)
        x->node[parent].n_children++;
    return i;
}

void sv_prefix_evict(struct sv_cache *c)
{
    struct sv_prefix *x = c->prefix;
    int32_t i = x->oldest;
    struct node *n = &x->node[i];
    SV_REQUIRE(n->n_seqs == 0 && n->n_children == 0);
    idle_remove(x, i);
    int32_t *link = &x->bucket[n->bucket];
    while (*link != i)
        link = &x->node[*link].next;
    *link = n->next;
    if (n->parent != NONE)
        x->node[n->parent].n_children--;
    for (int32_t g = 0; g < c->n_groups; g++)
        sv_cache_drop_page(&c->group[g], x->page[i * c->n_groups + g]);
    n->used = false;
    n->next = x->unused;
    x->unused = i;
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
    if (c->prefix)
        memcpy(c->prefix->salt[slot], salt, sizeof c->prefix->salt[slot]);
}

int32_t sv_cache_attach(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_tokens)
{
    struct sv_prefix *x = c->prefix;
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && c->n_backed[slot] == 0);
    if (!x)
        return 0;
    int32_t end = NONE, n = 0;
    for (; (n + 1) * x->page_size <= n_tokens; n++) {
        int32_t i = find(x, end, x->salt[slot], tokens + (size_t)n * (size_t)x->page_size);
        if (i == NONE || (c->attach_whole && x->node[i].bare))
            break;
        end = i;
    }
    for (int32_t g = 0; g < c->n_groups; g++)
        c->n_dropped[g * c->n_slots + slot] = sv_cache_n_unseen(&c->group[g], n * x->page_size);
    int32_t p = n - 1;
    for (int32_t i = end; i != NONE; i = x->node[i].parent, p--) {
        enter(x, i);
        if (x->node[i].bare)
            x->bare_from[slot] = p * x->page_size;
        for (int32_t g = 0; g < c->n_groups; g++) {
            if (p < c->n_dropped[g * c->n_slots + slot])
                continue;
            int32_t page = x->page[i * c->n_groups + g];
            c->group[g].n_refs[page]++;
            sv_cache_row(&c->group[g], slot)[p] = page;
        }
    }
    x->end[slot] = end;
    x->n_path[slot] = n;
    c->n_backed[slot] = n * x->page_size;
    c->dirty[slot] = true;
    return c->n_backed[slot];
}

/* A page that lacks the draft's K/V and that nobody reads just now gives way to one that has it. */
static void replace(struct sv_cache *c, int32_t slot, int32_t p, int32_t i)
{
    struct sv_prefix *x = c->prefix;
    for (int32_t g = 0; g < c->n_groups; g++) {
        int32_t *held = &x->page[i * c->n_groups + g], page = sv_cache_row(&c->group[g], slot)[p];
        SV_REQUIRE(page >= 0 && page != *held);
        sv_cache_drop_page(&c->group[g], *held);
        c->group[g].n_refs[page]++;
        *held = page;
    }
    x->node[i].bare = false;
}

/* Somebody else's page says the same, bit for bit: use it and give the own one back. */
static void adopt(struct sv_cache *c, int32_t slot, int32_t p, int32_t i)
{
    for (int32_t g = 0; g < c->n_groups; g++) {
        struct sv_cache_group *group = &c->group[g];
        int32_t *entry = &sv_cache_row(group, slot)[p], page = c->prefix->page[i * c->n_groups + g];
        SV_REQUIRE(*entry >= 0 && *entry != page);
        sv_cache_drop_page(group, *entry);
        group->n_refs[page]++;
        *entry = page;
    }
    c->dirty[slot] = true;
}

void sv_cache_publish(struct sv_cache *c, int32_t slot, const int32_t *tokens, int32_t n_positions)
{
    struct sv_prefix *x = c->prefix;
    if (!x || x->n_path[slot] == LEFT_OUT)
        return;
    SV_REQUIRE(n_positions <= c->n_backed[slot]);
    while ((x->n_path[slot] + 1) * x->page_size <= n_positions) {
        int32_t p = x->n_path[slot];
        const int32_t *page_tokens = tokens + (size_t)p * (size_t)x->page_size;
        int32_t i = find(x, x->end[slot], x->salt[slot], page_tokens);
        if (i != NONE) {
            bool bare = x->node[i].bare && x->bare_from[slot] >= (p + 1) * x->page_size;
            if (bare && x->node[i].n_seqs == 0)
                replace(c, slot, p, i);
            else
                adopt(c, slot, p, i);
            if (x->node[i].bare && bare)
                x->bare_from[slot] = p * x->page_size;
            enter(x, i);
        } else {
            i = add(c, slot, p, x->end[slot], page_tokens);
            x->node[i].n_seqs = 1;
        }
        x->end[slot] = i;
        x->n_path[slot]++;
    }
}

bool sv_cache_same_page(const struct sv_cache *c, int32_t slot, int32_t other, int32_t position)
{
    const struct sv_cache_group *g = &c->group[0];
    int32_t p = position / g->d.page_size;
    return sv_cache_row(g, slot)[p] == sv_cache_row(g, other)[p];
}

void sv_cache_mark_bare(struct sv_cache *c, int32_t slot, int32_t from)
{
    struct sv_prefix *x = c->prefix;
    if (!x || x->bare_from[slot] <= from)
        return;
    x->bare_from[slot] = from;
    /* Pages of its own that others may find already. */
    int32_t n = x->n_path[slot];
    for (int32_t i = x->end[slot]; i != NONE && n * x->page_size > from; i = x->node[i].parent, n--)
        if (x->page[i * c->n_groups] == sv_cache_row(&c->group[0], slot)[n - 1])
            x->node[i].bare = true;
}

int32_t sv_cache_bare_from(const struct sv_cache *c, int32_t slot)
{
    return c->prefix ? c->prefix->bare_from[slot] : INT32_MAX;
}

void sv_prefix_leave(struct sv_cache *c, int32_t slot)
{
    struct sv_prefix *x = c->prefix;
    if (!x)
        return;
    x->bare_from[slot] = INT32_MAX;
    for (int32_t i = x->end[slot]; i != NONE; i = x->node[i].parent)
        if (--x->node[i].n_seqs == 0)
            idle_append(x, i);
    x->end[slot] = NONE;
    x->n_path[slot] = 0;
}

/* ---------------------------------------------------------------- the whole index */

void sv_cache_flush(struct sv_cache *c)
{
    struct sv_prefix *x = c->prefix;
    if (!x)
        return;
    for (int32_t i = 0; i < x->n_nodes; i++)
        for (int32_t g = 0; x->node[i].used && g < c->n_groups; g++)
            sv_cache_drop_page(&c->group[g], x->page[i * c->n_groups + g]);
    for (int32_t i = 0; i < x->n_nodes; i++)
        x->node[i] = (struct node){.next = i + 1 < x->n_nodes ? i + 1 : NONE};
    for (uint32_t b = 0; b <= x->bucket_mask; b++)
        x->bucket[b] = NONE;
    x->unused = 0;
    x->oldest = x->newest = NONE;
    x->n_idle = 0;
    for (int32_t s = 0; s < c->n_slots; s++) {
        x->end[s] = NONE;
        x->n_path[s] = c->n_backed[s] ? LEFT_OUT : 0;
    }
}

int32_t sv_cache_n_kept(const struct sv_cache *c)
{
    return c->prefix ? c->prefix->n_idle : 0;
}

int32_t sv_prefix_n_published(const struct sv_cache *c, int32_t slot)
{
    const struct sv_prefix *x = c->prefix;
    return x && x->n_path[slot] > 0 ? x->n_path[slot] : 0;
}

void sv_prefix_count(const struct sv_cache *c, int32_t group, int32_t *n_users)
{
    const struct sv_prefix *x = c->prefix;
    for (int32_t i = 0; x && i < x->n_nodes; i++)
        if (x->node[i].used)
            n_users[x->page[i * c->n_groups + group]]++;
}

void sv_prefix_check(const struct sv_cache *c)
{
    const struct sv_prefix *x = c->prefix;
    if (!x)
        return;
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
    for (int32_t s = 0; s < c->n_slots; s++) {
        int32_t p = x->n_path[s];
        for (int32_t i = x->end[s]; i != NONE; i = x->node[i].parent) {
            p--;
            for (int32_t g = 0; g < c->n_groups; g++) {
                int32_t page = sv_cache_row(&c->group[g], s)[p];
                SV_REQUIRE(page < 0 || page == x->page[i * c->n_groups + g]);
            }
        }
        SV_REQUIRE(p == 0 || p == LEFT_OUT);
    }
}
