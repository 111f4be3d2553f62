/*
 * drafter.c - what all drafters share: closing, acceptance counters, the verify width.
 */
#include "spec/spec.h"

void sv_drafter_close(struct sv_drafter *d)
{
    if (d)
        d->ops->close(d);
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
