/*
 * drafter.c - what all drafters share: calls that a drafter may leave out, acceptance counters, the
 * verify width.
 *
 * Called by policy and engine. Must not: know one drafter from another.
 */
#include "spec/spec.h"

struct sv_drafter sv_drafter_none(void)
{
    static const struct sv_drafter_ops none_ops = {.close = NULL};
    return (struct sv_drafter){.ops = &none_ops, .name = "none", .block_size = 1};
}

void sv_drafter_close(struct sv_drafter *d)
{
    if (d && d->ops->close)
        d->ops->close(d);
}

int sv_drafter_detach(struct sv_drafter *d, bool copy, struct sv_err *err)
{
    return d->ops->detach ? d->ops->detach(d, copy, err) : SV_OK;
}

int32_t sv_drafter_cache_groups(struct sv_drafter *d, int32_t first_group,
                                struct sv_cache_group_desc *desc)
{
    return d->ops->cache_groups ? d->ops->cache_groups(d, first_group, desc) : 0;
}

void sv_drafter_needs(const struct sv_drafter *d, struct sv_needs *n)
{
    if (d->ops->needs)
        d->ops->needs(d, n);
}

int sv_drafter_bind(struct sv_drafter *d, const struct sv_cache *cache, int32_t max_rows,
                    struct sv_err *err)
{
    return d->ops->bind ? d->ops->bind(d, cache, max_rows, err) : SV_OK;
}

void sv_drafter_reads(const struct sv_drafter *d, struct sv_reads *sum)
{
    if (d->ops->reads)
        d->ops->reads(d, sum);
}

bool sv_drafter_fill(struct sv_drafter *d, const struct sv_draft_hint *hint, int32_t n,
                     int32_t *ids)
{
    return d->ops->fill && d->ops->fill(d, hint, n, ids);
}

void sv_drafter_propose(struct sv_drafter *d, const struct sv_draft_pass *p)
{
    if (d->ops->propose)
        d->ops->propose(d, p);
}

void sv_drafter_update_context(struct sv_drafter *d, const struct sv_context_pass *p)
{
    if (d->ops->update_context)
        d->ops->update_context(d, p);
}

void sv_accept_add(struct sv_accept_stats *s, int32_t width, int32_t n_emitted)
{
    SV_REQUIRE(n_emitted >= 1 && n_emitted <= width && width <= SV_MAX_BLOCK);
    if (width < 2)
        return;
    s->n_steps++;
    s->n_drafted += width - 1;
    s->n_accepted += n_emitted - 1;
    s->n_emitted += n_emitted;
    s->length[n_emitted]++;
    for (int32_t j = 1; j < width; j++) {
        s->drafted_at[j]++;
        s->accepted_at[j] += j < n_emitted;
    }
}

double sv_accept_mean(const struct sv_accept_stats *s)
{
    return s->n_steps ? (double)s->n_emitted / (double)s->n_steps : 0;
}

int32_t sv_width_pick(int32_t width, int32_t remaining)
{
    int32_t w = width < remaining ? width : remaining;
    return w > 1 ? w : 1;
}
