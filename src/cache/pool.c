/*
 * pool.c - the page pools and block tables behind cache.h.
 *
 * Called through cache.h, and by prefix.c and state.c for the users of pages. All bookkeeping is
 * plain host arrays indexed by page and slot; nothing is allocated after open. Must not touch
 * device memory other than by enqueueing table uploads.
 */
#include "cache/impl.h"

#include <string.h>

static int32_t pages_for(const struct sv_cache_group *g, int32_t n_positions)
{
    return (n_positions + g->d.page_size - 1) / g->d.page_size;
}

bool sv_cache_same_geometry(const struct sv_cache_group_desc *a,
                            const struct sv_cache_group_desc *b)
{
    return a->kind == b->kind && a->owner == b->owner && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->latent == b->latent && a->dtype == b->dtype &&
           a->window == b->window && a->state_bytes == b->state_bytes &&
           a->page_size == b->page_size;
}

const char *sv_cache_group_name(const struct sv_cache_group_desc *d)
{
    static const char *const name[][3] = {{"target K/V", "target latents", "target states"},
                                          {"draft K/V", "draft latents", "draft states"}};
    return name[d->owner][d->kind];
}

/* Whether rows have scales that are stored separately. */
static bool has_scales(const struct sv_cache_group_desc *d)
{
    return d->dtype == SV_F8 && d->kind == SV_CACHE_KV;
}

int64_t sv_cache_position_bytes(const struct sv_cache_group_desc *d)
{
    const int32_t n_arrays = d->kind == SV_CACHE_KV ? 2 : d->kind == SV_CACHE_LATENT ? 1 : 0;
    return (int64_t)n_arrays * d->n_layers * d->n_kv_heads *
           ((int64_t)sv_kv_row_bytes(d->dtype, d->head_dim, d->latent) + has_scales(d));
}

int64_t sv_cache_group_bytes(const struct sv_cache_group_desc *d, int32_t n_slots)
{
    if (d->kind == SV_CACHE_STATE)
        return (int64_t)(n_slots + d->n_pages) * d->n_layers * d->state_bytes;
    return (int64_t)d->n_pages * d->page_size * sv_cache_position_bytes(d);
}

/* ---------------------------------------------------------------- opening */

static int check_desc(const struct sv_cache_group_desc *d, struct sv_err *err)
{
    const bool state = d->kind == SV_CACHE_STATE;
    bool ok = d->page_size >= 1 && d->n_layers >= 1 && d->n_pages >= !state && d->window >= 0;
    if (state)
        ok = ok && d->state_bytes > 0 && d->state_bytes % SV_ALIGN == 0 && !d->window;
    else
        ok = ok && d->n_kv_heads >= 1 && d->head_dim >= 1;
    ok = ok && (d->n_parts <= 1 || (!state && (d->own_part || d->n_pages % d->n_parts == 0)));
    if (d->kind == SV_CACHE_LATENT)
        ok = ok && d->n_kv_heads == 1 && d->latent >= 0 && d->latent < d->head_dim;
    return ok ? SV_OK
              : sv_fail(err, SV_EINVAL, -1,
                        "cache group %s: page size %d, %d pages, %d layers, %d heads of %d, window "
                        "%d, %lld bytes of state",
                        sv_cache_group_name(d), d->page_size, d->n_pages, d->n_layers,
                        d->n_kv_heads, d->head_dim, d->window, (long long)d->state_bytes);
}

/* Host arrays: pages and their references, pages released by slots, valid positions. */
static int open_pages(struct sv_cache *c, struct sv_cache_group *g, struct sv_err *err)
{
    g->n_pages = g->d.n_pages * (g->d.own_part ? c->n_parts : 1);
    g->part_pages = g->n_pages / c->n_parts;
    const size_t n = (size_t)g->n_pages, slots = (size_t)c->n_slots;
    g->page = sv_arena_alloc(&c->arena, n * sizeof *g->page);
    int32_t *free_page = sv_arena_alloc(&c->arena, n * sizeof *free_page);
    g->n_users = sv_arena_alloc(&c->arena, n * sizeof *g->n_users);
    g->n_dropped = sv_arena_alloc(&c->arena, slots * sizeof *g->n_dropped);
    g->valid_to = sv_arena_alloc(&c->arena, slots * sizeof *g->valid_to);
    if (!g->page || !free_page || !g->n_users || !g->n_dropped || !g->valid_to)
        return sv_fail(err, SV_ENOMEM, -1, "cache group %s: pages", sv_cache_group_name(&g->d));
    for (int32_t i = 0; i < g->n_pages; i++)
        g->page[i] = (struct sv_cache_page){.node = SV_NO_NODE};
    for (int32_t p = 0; p < c->n_parts; p++) {
        const int32_t first = p * g->part_pages;
        g->part[p] = (struct sv_cache_pool){.free_page = free_page + first,
                                            .n_free = g->part_pages,
                                            .oldest = SV_NO_PAGE,
                                            .newest = SV_NO_PAGE};
        /* The stack hands out low pages first: a short run touches little memory. */
        for (int32_t i = 0; i < g->part_pages; i++)
            free_page[first + i] = first + g->part_pages - 1 - i;
    }
    for (int32_t s = 0; s < c->n_slots; s++)
        g->valid_to[s] = INT32_MAX;
    return SV_OK;
}

static int open_paged(struct sv_cache *c, struct sv_cache_group *g, struct sv_err *err)
{
    g->stride = (pages_for(g, c->max_positions) + 3) / 4 * 4; /* rows of 16 bytes: copied as such */
    size_t cells = (size_t)c->n_slots * (size_t)g->stride;
    g->table = sv_arena_alloc(&c->arena, cells * sizeof *g->table);
    if (!g->table)
        return sv_fail(err, SV_ENOMEM, -1, "cache group %s: tables", sv_cache_group_name(&g->d));
    for (size_t i = 0; i < cells; i++)
        g->table[i] = SV_NO_PAGE;

    const bool has_v = g->d.kind == SV_CACHE_KV;
    const size_t n_bytes =
        (size_t)sv_cache_group_bytes(&g->d, c->n_slots) / (has_v ? (size_t)2 : (size_t)1);
    int rc = sv_dev_alloc(c->dev, &g->k, n_bytes, err);
    if (!rc && has_v)
        rc = sv_dev_alloc(c->dev, &g->v, n_bytes, err);
    if (!rc)
        rc = sv_dev_alloc(c->dev, (void **)&g->dev_table, cells * sizeof *g->table, err);
    return rc;
}

static int group_open(struct sv_cache *c, struct sv_cache_group *g,
                      const struct sv_cache_group_desc *d, struct sv_err *err)
{
    g->d = *d;
    int rc = check_desc(d, err);
    if (!rc)
        rc = open_pages(c, g, err);
    if (rc)
        return rc;
    rc = sv_cache_is_paged(g) ? open_paged(c, g, err) : sv_state_open(c, g, err);
    if (rc)
        sv_err_prefix(err, "cache group %s, %lld MiB", sv_cache_group_name(d),
                      (long long)(sv_cache_group_bytes(d, c->n_slots) >> 20));
    return rc;
}

/* The group that fullness is measured by: the first one that keeps all positions, else the first
 * paged one. */
static int32_t main_group(const struct sv_cache_group_desc *d, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = n - 1; i >= 0; i--)
        best = d[i].kind != SV_CACHE_STATE ? i : best;
    for (int32_t i = n - 1; i >= 0; i--)
        best = d[i].kind != SV_CACHE_STATE && !d[i].window ? i : best;
    return best;
}

int sv_cache_open(struct sv_cache *c, struct sv_dev *dev, const struct sv_cache_group_desc *groups,
                  int32_t n_groups, int32_t n_slots, int32_t max_positions, struct sv_err *err)
{
    memset(c, 0, sizeof *c);
    SV_REQUIRE(n_groups >= 1 && n_groups <= SV_MAX_GROUPS && n_slots >= 1 && max_positions >= 1);
    c->dev = dev;
    c->n_groups = n_groups;
    c->n_slots = n_slots;
    c->n_parts = groups[0].n_parts > 1 ? groups[0].n_parts : 1;
    SV_REQUIRE(c->n_parts <= SV_MAX_RANKS);
    c->max_positions = max_positions;
    c->main = main_group(groups, n_groups);
    sv_arena_init(&c->arena);
    const size_t slots = (size_t)n_slots;
    c->n_backed = sv_arena_alloc(&c->arena, slots * sizeof *c->n_backed);
    c->dirty = sv_arena_alloc(&c->arena, slots * sizeof *c->dirty);
    c->reset = sv_arena_alloc(&c->arena, slots * sizeof *c->reset);
    c->snapshot_at = sv_arena_alloc(&c->arena, slots * sizeof *c->snapshot_at);
    c->pending_at = sv_arena_alloc(&c->arena, slots * sizeof *c->pending_at);
    c->branch_at = sv_arena_alloc(&c->arena, slots * sizeof *c->branch_at);
    int rc = SV_OK;
    if (!c->n_backed || !c->dirty || !c->reset || !c->snapshot_at || !c->pending_at ||
        !c->branch_at)
        rc = sv_fail(err, SV_ENOMEM, -1, "cache: slot arrays");
    for (int32_t i = 0; i < n_groups && !rc; i++) {
        rc = group_open(c, &c->group[i], &groups[i], err);
        c->stage_words += slots * (size_t)c->group[i].stride;
        c->owned[groups[i].owner] |= 1u << i;
        c->has_state |= groups[i].kind == SV_CACHE_STATE;
    }
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&c->stage, 2 * c->stage_words * sizeof *c->stage, err);
    for (int32_t s = 0; s < n_slots && !rc; s++)
        c->dirty[s] = true; /* the device must learn that every entry is -1 */
    if (rc)
        sv_cache_close(c);
    return rc;
}

void sv_cache_close(struct sv_cache *c)
{
    for (int32_t i = 0; i < c->n_groups; i++) {
        sv_dev_free(c->dev, c->group[i].k);
        sv_dev_free(c->dev, c->group[i].v);
        sv_dev_free(c->dev, c->group[i].state);
        sv_dev_free(c->dev, c->group[i].dev_table);
    }
    sv_dev_host_free(c->dev, c->stage);
    sv_prefix_close(c);
    sv_arena_fini(&c->arena);
    memset(c, 0, sizeof *c);
}

/* ---------------------------------------------------------------- users of a page */

static bool is_kept(const struct sv_cache_page *p)
{
    return p->n_refs == 1 && p->node != SV_NO_NODE;
}

static struct sv_cache_pool *pool_of(struct sv_cache_group *g, int32_t page)
{
    SV_REQUIRE(page >= 0 && page < g->n_pages);
    return &g->part[page / g->part_pages];
}

/* Between two pages that are side by side in the list. */
static void kept_insert(struct sv_cache_group *g, int32_t page, int32_t older, int32_t newer)
{
    struct sv_cache_pool *pool = pool_of(g, page);
    g->page[page].older = older;
    g->page[page].newer = newer;
    *(older == SV_NO_PAGE ? &pool->oldest : &g->page[older].newer) = page;
    *(newer == SV_NO_PAGE ? &pool->newest : &g->page[newer].older) = page;
    pool->n_kept++;
}

static void kept_remove(struct sv_cache_group *g, int32_t page)
{
    struct sv_cache_pool *pool = pool_of(g, page);
    struct sv_cache_page *p = &g->page[page];
    *(p->older == SV_NO_PAGE ? &pool->oldest : &g->page[p->older].newer) = p->newer;
    *(p->newer == SV_NO_PAGE ? &pool->newest : &g->page[p->newer].older) = p->older;
    pool->n_kept--;
}

int32_t sv_cache_take_page(struct sv_cache_group *g, int32_t part)
{
    struct sv_cache_pool *pool = &g->part[part];
    SV_REQUIRE(pool->n_free > 0);
    int32_t page = pool->free_page[--pool->n_free];
    struct sv_cache_page *p = &g->page[page];
    SV_REQUIRE(p->n_refs == 0 && p->node == SV_NO_NODE);
    p->n_refs = 1;
    return page;
}

void sv_cache_ref_page(struct sv_cache_group *g, int32_t page)
{
    struct sv_cache_page *p = &g->page[page];
    SV_REQUIRE(page >= 0 && page < g->n_pages && p->n_refs > 0);
    if (is_kept(p))
        kept_remove(g, page);
    p->n_refs++;
}

void sv_cache_drop_page(struct sv_cache_group *g, int32_t page)
{
    struct sv_cache_pool *pool = pool_of(g, page);
    struct sv_cache_page *p = &g->page[page];
    SV_REQUIRE(p->n_refs > 0 && !is_kept(p));
    if (--p->n_refs == 0)
        pool->free_page[pool->n_free++] = page;
    else if (is_kept(p))
        kept_insert(g, page, pool->newest, SV_NO_PAGE);
}

/* The same for a page before the window of its last sequence: it is evicted first, since prefixes
 * are mostly continued at their ends. */
static void pass_page(struct sv_cache_group *g, int32_t page)
{
    const struct sv_cache_pool *pool = pool_of(g, page);
    sv_cache_drop_page(g, page);
    if (pool->newest != page)
        return;
    kept_remove(g, page);
    kept_insert(g, page, SV_NO_PAGE, pool->oldest);
}

void sv_cache_enter_page(struct sv_cache_group *g, int32_t page, int32_t node)
{
    SV_REQUIRE(g->page[page].node == SV_NO_NODE);
    sv_cache_ref_page(g, page);
    g->page[page].node = node;
}

void sv_cache_leave_page(struct sv_cache_group *g, int32_t page)
{
    struct sv_cache_page *p = &g->page[page];
    SV_REQUIRE(p->node != SV_NO_NODE);
    if (is_kept(p))
        kept_remove(g, page);
    p->node = SV_NO_NODE;
    sv_cache_drop_page(g, page);
}

bool sv_cache_make_room(struct sv_cache *c, int32_t group, int32_t part, int32_t n)
{
    const struct sv_cache_group *g = &c->group[group];
    const struct sv_cache_pool *pool = &g->part[part];
    if (n > pool->n_free + pool->n_kept)
        return false;
    while (pool->n_free < n)
        if (sv_cache_is_apart(g))
            sv_prefix_evict_page(c, group, pool->oldest);
        else
            sv_prefix_evict(c, part);
    return true;
}

/* ---------------------------------------------------------------- backing positions */

/* The most pages that a slot can have if at most n_rows positions are added at a time. */
static int32_t most_held(const struct sv_cache_group *g, int32_t n_positions, int32_t n_rows)
{
    const int32_t n = pages_for(g, n_positions);
    if (!g->d.window)
        return n;
    const int32_t live = pages_for(g, g->d.window - 1 + n_rows) + 1;
    return n < live ? n : live;
}

void sv_cache_add_need(const struct sv_cache *c, int32_t slot, int32_t n_positions, int32_t n_rows,
                       struct sv_cache_need *need)
{
    for (int32_t i = 0; i < c->n_groups; i++) {
        const struct sv_cache_group *g = &c->group[i];
        if (!sv_cache_is_paged(g))
            continue;
        const int32_t held = pages_for(g, c->n_backed[slot]) - g->n_dropped[slot];
        const int32_t more = most_held(g, n_positions, n_rows) - held;
        need->n_pages[i] += more > 0 ? more : 0;
    }
}

static int32_t n_available(const struct sv_cache_group *g, int32_t part)
{
    return g->part[part].n_free + g->part[part].n_kept;
}

bool sv_cache_can_back(const struct sv_cache *c, int32_t part, const struct sv_cache_need *need,
                       int32_t spare)
{
    for (int32_t i = 0; i < c->n_groups; i++)
        if (sv_cache_is_paged(&c->group[i]) &&
            need->n_pages[i] + spare > n_available(&c->group[i], part))
            return false;
    return true;
}

/* Evicts whole nodes first, which frees pages in all groups and affects fewer prefixes. */
static void make_room(struct sv_cache *c, int32_t part, const struct sv_cache_need *need)
{
    for (int32_t apart = 0; apart < 2; apart++)
        for (int32_t i = 0; i < c->n_groups; i++)
            if (sv_cache_is_apart(&c->group[i]) == (apart > 0))
                SV_REQUIRE(sv_cache_make_room(c, i, part, need->n_pages[i]));
}

bool sv_cache_reserve(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots);
    if (n_positions > c->max_positions)
        return false;
    const int32_t have = c->n_backed[slot], part = sv_cache_part(c, slot);
    if (n_positions <= have)
        return true;
    struct sv_cache_need need = {{0}};
    for (int32_t i = 0; i < c->n_groups; i++)
        if (sv_cache_is_paged(&c->group[i]))
            need.n_pages[i] = pages_for(&c->group[i], n_positions) - pages_for(&c->group[i], have);
    if (!sv_cache_can_back(c, part, &need, 0))
        return false;
    make_room(c, part, &need);
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        if (!sv_cache_is_paged(g))
            continue;
        int32_t *row = sv_cache_row(g, slot);
        for (int32_t p = pages_for(g, have); p < pages_for(g, n_positions); p++) {
            SV_REQUIRE(row[p] == SV_NO_PAGE);
            row[p] = sv_cache_take_page(g, part);
        }
    }
    c->n_backed[slot] = n_positions;
    c->dirty[slot] = true;
    return true;
}

/* Releases the last page first, so that the end of a cached prefix is evicted first. */
void sv_cache_trim(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && n_positions >= 0);
    if (n_positions >= c->n_backed[slot])
        return;
    SV_REQUIRE(n_positions >= sv_prefix_n_published(c, slot));
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        if (!sv_cache_is_paged(g))
            continue;
        int32_t *row = sv_cache_row(g, slot);
        for (int32_t p = pages_for(g, c->n_backed[slot]) - 1; p >= pages_for(g, n_positions); p--) {
            if (row[p] != SV_NO_PAGE)
                sv_cache_drop_page(g, row[p]);
            row[p] = SV_NO_PAGE;
        }
    }
    c->n_backed[slot] = n_positions;
    c->dirty[slot] = true;
}

int32_t sv_cache_n_unseen(const struct sv_cache_group *g, int32_t first_row)
{
    /* The lowest position a row at first_row sees is first_row - W + 1. */
    int32_t lowest = first_row - g->d.window + 1;
    return g->d.window && lowest > 0 ? lowest / g->d.page_size : 0;
}

void sv_cache_slide(struct sv_cache *c, int32_t slot, int32_t first_row)
{
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        int32_t n_pages = sv_cache_n_unseen(g, first_row);
        int32_t *dropped = &g->n_dropped[slot];
        for (int32_t p = *dropped; p < n_pages; p++) {
            int32_t *entry = &sv_cache_row(g, slot)[p];
            pass_page(g, *entry);
            *entry = SV_NO_PAGE;
            c->dirty[slot] = true;
        }
        if (n_pages > *dropped)
            *dropped = n_pages;
    }
}

void sv_cache_release(struct sv_cache *c, int32_t slot)
{
    if (c->has_state && c->prefix[0])
        sv_prefix_take_snapshot(c, slot, c->snapshot_at[slot]);
    sv_prefix_leave(c, slot);
    sv_cache_trim(c, slot, 0);
    sv_state_release(c, slot);
    c->branch_at[slot] = 0;
    for (int32_t i = 0; i < c->n_groups; i++) {
        c->group[i].n_dropped[slot] = 0;
        c->group[i].valid_to[slot] = INT32_MAX;
    }
}

bool sv_cache_same_page(const struct sv_cache *c, int32_t slot, int32_t other, int32_t position)
{
    const struct sv_cache_group *g = &c->group[c->main];
    const int32_t p = position / g->d.page_size;
    return sv_cache_row(g, slot)[p] == sv_cache_row(g, other)[p];
}

int32_t sv_cache_n_available_in(const struct sv_cache *c, int32_t part)
{
    return n_available(&c->group[c->main], part);
}

int32_t sv_cache_n_available(const struct sv_cache *c)
{
    return sv_cache_n_free(c, c->main) + sv_cache_n_kept(c, c->main);
}

int32_t sv_cache_n_kept(const struct sv_cache *c, int32_t group)
{
    int32_t n = 0;
    for (int32_t p = 0; p < c->n_parts; p++)
        n += c->group[group].part[p].n_kept;
    return n;
}

int32_t sv_cache_n_free(const struct sv_cache *c, int32_t group)
{
    int32_t n = 0;
    for (int32_t p = 0; p < c->n_parts; p++)
        n += c->group[group].part[p].n_free;
    return n;
}

/* ---------------------------------------------------------------- the step */

static void upload_tables(struct sv_cache *c)
{
    int32_t lo = 0, hi = c->n_slots;
    while (lo < hi && !c->dirty[lo])
        lo++;
    while (hi > lo && !c->dirty[hi - 1])
        hi--;
    if (lo == hi)
        return;
    /* One copy per group, from memory that is unchanged until the step after the next. */
    int32_t *stage = c->stage + (size_t)c->stage_use * c->stage_words;
    c->stage_use ^= 1;
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        if (!sv_cache_is_paged(g))
            continue;
        size_t at = (size_t)lo * (size_t)g->stride, n = (size_t)(hi - lo) * (size_t)g->stride;
        memcpy(stage, g->table + at, n * sizeof *stage);
        /* Numbered as on the device that has them; other devices do not read them. */
        for (size_t k = 0; k < n && g->d.own_part; k++)
            stage[k] = stage[k] == SV_NO_PAGE ? SV_NO_PAGE : stage[k] % g->part_pages;
        sv_dev_upload(c->dev, g->dev_table + at, stage, n * sizeof *stage);
        stage += n;
    }
    for (int32_t s = lo; s < hi; s++)
        c->dirty[s] = false;
}

void sv_cache_upload(struct sv_cache *c)
{
    sv_state_upload(c);
    upload_tables(c);
}

struct sv_kv sv_cache_kv(const struct sv_cache *c, int32_t group, int32_t layer)
{
    SV_REQUIRE(group < c->n_groups);
    const struct sv_cache_group *g = &c->group[group];
    SV_REQUIRE(sv_cache_is_paged(g) && layer < g->d.n_layers);
    const size_t rows = (size_t)g->d.n_pages * (size_t)g->d.page_size * (size_t)g->d.n_kv_heads,
                 layer_bytes = rows * sv_kv_row_bytes(g->d.dtype, g->d.head_dim, g->d.latent);
    /* Scales follow the codes of all layers. */
    const bool scaled = has_scales(&g->d);
    const size_t own = (size_t)g->d.n_layers * layer_bytes + (size_t)layer * rows;
    return (struct sv_kv){
        .k = (char *)g->k + (size_t)layer * layer_bytes,
        .v = g->v ? (char *)g->v + (size_t)layer * layer_bytes : NULL,
        .k_own = scaled ? (uint8_t *)g->k + own : NULL,
        .v_own = scaled ? (uint8_t *)g->v + own : NULL,
        .dtype = g->d.dtype,
        .n_pages = g->d.n_pages,
        .page_size = g->d.page_size,
        .n_kv_heads = g->d.n_kv_heads,
        .head_dim = g->d.head_dim,
        .latent = g->d.latent,
        .table = g->dev_table,
        .table_stride = g->stride,
    };
}

/* ---------------------------------------------------------------- checking */

static void check_table(const struct sv_cache *c, const struct sv_cache_group *g)
{
    for (int32_t s = 0; s < c->n_slots; s++) {
        const int32_t *row = sv_cache_row(g, s);
        int32_t first = g->n_dropped[s], end = pages_for(g, c->n_backed[s]);
        for (int32_t p = 0; p < g->stride; p++) {
            SV_REQUIRE((row[p] >= 0) == (p >= first && p < end));
            if (row[p] < 0)
                continue;
            SV_REQUIRE(row[p] / g->part_pages == sv_cache_part(c, s));
            g->n_users[row[p]]++;
        }
    }
}

static void check_kept(const struct sv_cache_group *g, int32_t part)
{
    const struct sv_cache_pool *pool = &g->part[part];
    const int32_t first = part * g->part_pages;
    int32_t n_kept = 0, n_listed = 0, older = SV_NO_PAGE;
    for (int32_t p = first; p < first + g->part_pages; p++)
        n_kept += is_kept(&g->page[p]);
    for (int32_t p = pool->oldest; p != SV_NO_PAGE; p = g->page[p].newer, n_listed++) {
        SV_REQUIRE(is_kept(&g->page[p]) && g->page[p].older == older);
        SV_REQUIRE(p / g->part_pages == part);
        older = p;
    }
    SV_REQUIRE(n_kept == pool->n_kept && n_listed == n_kept && pool->newest == older);
}

/* Checks that every page of a group has the references of tables, slots and the index. */
static void check_group(const struct sv_cache *c, int32_t i)
{
    const struct sv_cache_group *g = &c->group[i];
    const int32_t n_free = sv_cache_n_free(c, i);
    int32_t n_used = 0;
    for (int32_t p = 0; p < g->n_pages; p++) {
        g->n_users[p] = 0;
        n_used += g->page[p].n_refs > 0;
    }
    if (n_used + n_free != g->n_pages)
        sv_panic("cache group %s: %d pages used + %d free != %d", sv_cache_group_name(&g->d),
                 n_used, n_free, g->n_pages);
    for (int32_t part = 0; part < c->n_parts; part++)
        for (int32_t f = 0; f < g->part[part].n_free; f++)
            SV_REQUIRE(g->page[g->part[part].free_page[f]].n_refs == 0);
    if (sv_cache_is_paged(g))
        check_table(c, g);
    else
        sv_state_count(c, i, g->n_users);
    sv_prefix_count(c, i, g->n_users);
    for (int32_t p = 0; p < g->n_pages; p++)
        SV_REQUIRE(g->n_users[p] == g->page[p].n_refs);
    for (int32_t part = 0; part < c->n_parts; part++)
        check_kept(g, part);
}

void sv_cache_check(const struct sv_cache *c)
{
    for (int32_t i = 0; i < c->n_groups; i++)
        check_group(c, i);
    sv_prefix_check(c);
}
