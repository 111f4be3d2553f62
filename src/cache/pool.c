/*
 * pool.c - the page pools and block tables behind cache.h.
 *
 * Called through cache.h only. All bookkeeping is plain host arrays indexed by page and slot;
 * nothing is allocated after open. Must not touch device memory other than by enqueueing table
 * uploads.
 */
#include "cache/impl.h"

#include <string.h>

static int32_t pages_for(const struct sv_cache_group *g, int32_t n_positions)
{
    return (n_positions + g->d.page_size - 1) / g->d.page_size;
}

int64_t sv_cache_group_bytes(const struct sv_cache_group_desc *d)
{
    return 2 * (int64_t)d->n_layers * d->n_pages * d->page_size * d->n_kv_heads * d->head_dim *
           (int64_t)sv_dtype_bytes(d->dtype);
}

static int group_open(struct sv_cache *c, struct sv_cache_group *g,
                      const struct sv_cache_group_desc *d, struct sv_err *err)
{
    g->d = *d;
    if (d->page_size < 1 || d->n_pages < 1 || d->n_layers < 1)
        return sv_fail(err, SV_EINVAL, -1, "cache group %s: page size %d, %d pages, %d layers",
                       d->name, d->page_size, d->n_pages, d->n_layers);
    g->stride = (pages_for(g, c->max_positions) + 3) / 4 * 4; /* rows of 16 bytes: copied as such */
    size_t cells = (size_t)c->n_slots * (size_t)g->stride;
    g->table = sv_arena_alloc(&c->arena, cells * sizeof *g->table);
    g->free_page = sv_arena_alloc(&c->arena, (size_t)d->n_pages * sizeof *g->free_page);
    g->n_refs = sv_arena_alloc(&c->arena, (size_t)d->n_pages * sizeof *g->n_refs);
    g->n_users = sv_arena_alloc(&c->arena, (size_t)d->n_pages * sizeof *g->n_users);
    if (!g->table || !g->free_page || !g->n_refs || !g->n_users)
        return sv_fail(err, SV_ENOMEM, -1, "cache group %s: tables", d->name);
    for (size_t i = 0; i < cells; i++)
        g->table[i] = -1;
    /* The stack hands out low pages first: a short run touches little memory. */
    for (int32_t i = 0; i < d->n_pages; i++)
        g->free_page[i] = d->n_pages - 1 - i;
    g->n_free = d->n_pages;

    size_t half = (size_t)sv_cache_group_bytes(d) / 2;
    int rc = sv_dev_alloc(c->dev, &g->k, half, err);
    if (!rc)
        rc = sv_dev_alloc(c->dev, &g->v, half, err);
    if (!rc)
        rc = sv_dev_alloc(c->dev, (void **)&g->dev_table, cells * sizeof *g->table, err);
    if (rc)
        sv_err_prefix(err, "cache group %s, %lld MiB", d->name,
                      (long long)(sv_cache_group_bytes(d) >> 20));
    return rc;
}

int sv_cache_open(struct sv_cache *c, struct sv_dev *dev, const struct sv_cache_group_desc *groups,
                  int32_t n_groups, int32_t n_slots, int32_t max_positions, struct sv_err *err)
{
    memset(c, 0, sizeof *c);
    SV_REQUIRE(n_groups >= 1 && n_groups <= SV_MAX_GROUPS && n_slots >= 1 && max_positions >= 1);
    c->dev = dev;
    c->n_groups = n_groups;
    c->n_slots = n_slots;
    c->max_positions = max_positions;
    sv_arena_init(&c->arena);
    c->n_backed = sv_arena_alloc(&c->arena, (size_t)n_slots * sizeof *c->n_backed);
    c->n_dropped = sv_arena_alloc(&c->arena, (size_t)(n_slots * n_groups) * sizeof *c->n_dropped);
    c->dirty = sv_arena_alloc(&c->arena, (size_t)n_slots * sizeof *c->dirty);
    int rc = SV_OK;
    if (!c->n_backed || !c->n_dropped || !c->dirty)
        rc = sv_fail(err, SV_ENOMEM, -1, "cache: slot arrays");
    for (int32_t i = 0; i < n_groups; i++)
        SV_REQUIRE(groups[i].page_size == groups[0].page_size);
    for (int32_t i = 0; i < n_groups && !rc; i++)
        rc = group_open(c, &c->group[i], &groups[i], err);
    for (int32_t i = 0; i < n_groups && !rc; i++)
        c->stage_words += (size_t)n_slots * (size_t)c->group[i].stride;
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
        sv_dev_free(c->dev, c->group[i].dev_table);
    }
    sv_dev_host_free(c->dev, c->stage);
    sv_arena_fini(&c->arena);
    memset(c, 0, sizeof *c);
}

int32_t sv_cache_pages_for(const struct sv_cache *c, int32_t n_positions)
{
    return pages_for(&c->group[0], n_positions);
}

int32_t sv_cache_n_available(const struct sv_cache *c)
{
    int32_t n = c->group[0].n_free;
    for (int32_t i = 1; i < c->n_groups; i++)
        n = c->group[i].n_free < n ? c->group[i].n_free : n;
    return n + sv_cache_n_kept(c);
}

bool sv_cache_reserve(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots);
    if (n_positions > c->max_positions)
        return false;
    int32_t have = c->n_backed[slot];
    if (n_positions <= have)
        return true;
    int32_t more = sv_cache_pages_for(c, n_positions) - sv_cache_pages_for(c, have);
    if (more > sv_cache_n_available(c))
        return false;
    for (int32_t i = 0; i < c->n_groups; i++)
        while (c->group[i].n_free < more)
            sv_prefix_evict(c);
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        int32_t *row = sv_cache_row(g, slot);
        for (int32_t p = pages_for(g, have); p < pages_for(g, n_positions); p++) {
            int32_t page = g->free_page[--g->n_free];
            SV_REQUIRE(g->n_refs[page] == 0 && row[p] < 0);
            g->n_refs[page] = 1;
            row[p] = page;
        }
    }
    c->n_backed[slot] = n_positions;
    c->dirty[slot] = true;
    return true;
}

void sv_cache_drop_page(struct sv_cache_group *g, int32_t page)
{
    SV_REQUIRE(page >= 0 && page < g->d.n_pages && g->n_refs[page] > 0);
    if (--g->n_refs[page] == 0)
        g->free_page[g->n_free++] = page;
}

static void drop_entry(struct sv_cache_group *g, int32_t *entry)
{
    if (*entry >= 0)
        sv_cache_drop_page(g, *entry);
    *entry = -1;
}

void sv_cache_trim(struct sv_cache *c, int32_t slot, int32_t n_positions)
{
    SV_REQUIRE(slot >= 0 && slot < c->n_slots && n_positions >= 0);
    if (n_positions >= c->n_backed[slot])
        return;
    SV_REQUIRE(sv_cache_pages_for(c, n_positions) >= sv_prefix_n_published(c, slot));
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        int32_t *row = sv_cache_row(g, slot);
        for (int32_t p = pages_for(g, n_positions); p < pages_for(g, c->n_backed[slot]); p++)
            drop_entry(g, &row[p]);
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
        int32_t *dropped = &c->n_dropped[i * c->n_slots + slot];
        int32_t *row = sv_cache_row(g, slot);
        for (int32_t p = *dropped; p < n_pages; p++) {
            drop_entry(g, &row[p]);
            c->dirty[slot] = true;
        }
        if (n_pages > *dropped)
            *dropped = n_pages;
    }
}

void sv_cache_release(struct sv_cache *c, int32_t slot)
{
    sv_prefix_leave(c, slot);
    sv_cache_trim(c, slot, 0);
    for (int32_t i = 0; i < c->n_groups; i++)
        c->n_dropped[i * c->n_slots + slot] = 0;
}

void sv_cache_upload(struct sv_cache *c)
{
    int32_t lo = 0, hi = c->n_slots;
    while (lo < hi && !c->dirty[lo])
        lo++;
    while (hi > lo && !c->dirty[hi - 1])
        hi--;
    if (lo == hi)
        return;
    /* One copy a group, from memory that stays as it is until the step after the next. */
    int32_t *stage = c->stage + (size_t)c->stage_use * c->stage_words;
    c->stage_use ^= 1;
    for (int32_t i = 0; i < c->n_groups; i++) {
        struct sv_cache_group *g = &c->group[i];
        size_t at = (size_t)lo * (size_t)g->stride, n = (size_t)(hi - lo) * (size_t)g->stride;
        memcpy(stage, g->table + at, n * sizeof *stage);
        sv_dev_upload(c->dev, g->dev_table + at, stage, n * sizeof *stage);
        stage += n;
    }
    for (int32_t s = lo; s < hi; s++)
        c->dirty[s] = false;
}

struct sv_kv sv_cache_kv(const struct sv_cache *c, int32_t group, int32_t layer)
{
    const struct sv_cache_group *g = &c->group[group];
    SV_REQUIRE(group < c->n_groups && layer < g->d.n_layers);
    size_t layer_bytes = (size_t)sv_cache_group_bytes(&g->d) / 2 / (size_t)g->d.n_layers;
    return (struct sv_kv){
        .k = (char *)g->k + (size_t)layer * layer_bytes,
        .v = (char *)g->v + (size_t)layer * layer_bytes,
        .dtype = g->d.dtype,
        .n_pages = g->d.n_pages,
        .page_size = g->d.page_size,
        .n_kv_heads = g->d.n_kv_heads,
        .head_dim = g->d.head_dim,
        .table = g->dev_table,
        .table_stride = g->stride,
    };
}

int32_t sv_cache_n_free(const struct sv_cache *c, int32_t group)
{
    return c->group[group].n_free;
}

/* Every page of a group has exactly the users that tables and the index count up to. */
static void check_group(const struct sv_cache *c, int32_t i)
{
    const struct sv_cache_group *g = &c->group[i];
    int32_t n_used = 0;
    for (int32_t p = 0; p < g->d.n_pages; p++) {
        g->n_users[p] = 0;
        n_used += g->n_refs[p] > 0;
    }
    if (n_used + g->n_free != g->d.n_pages)
        sv_panic("cache group %s: %d pages used + %d free != %d", g->d.name, n_used, g->n_free,
                 g->d.n_pages);
    for (int32_t f = 0; f < g->n_free; f++)
        SV_REQUIRE(g->n_refs[g->free_page[f]] == 0);
    for (int32_t s = 0; s < c->n_slots; s++) {
        const int32_t *row = sv_cache_row(g, s);
        int32_t first = c->n_dropped[i * c->n_slots + s];
        int32_t end = pages_for(g, c->n_backed[s]);
        for (int32_t p = 0; p < g->stride; p++) {
            SV_REQUIRE((row[p] >= 0) == (p >= first && p < end));
            if (row[p] >= 0)
                g->n_users[row[p]]++;
        }
    }
    sv_prefix_count(c, i, g->n_users);
    for (int32_t p = 0; p < g->d.n_pages; p++)
        SV_REQUIRE(g->n_users[p] == g->n_refs[p]);
}

void sv_cache_check(const struct sv_cache *c)
{
    for (int32_t i = 0; i < c->n_groups; i++)
        check_group(c, i);
    sv_prefix_check(c);
}
