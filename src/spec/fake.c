/*
 * fake.c - drafters with known behaviour, for the lossless tests and for benchmarks without a
 * trained draft.
 *
 * They write ids on the host while the batch is filled and keep no device state. Must not be
 * reachable from a user's command other than the benchmark's simulated rows.
 */
#include "spec/spec.h"

struct fake {
    struct sv_drafter base; /* first member */
    struct sv_fake_opts o;
    struct sv_rng rng;
};

static void fake_close(struct sv_drafter *d)
{
    sv_free(d);
}

static bool fake_fill(struct sv_drafter *d, const struct sv_draft_hint *hint, int32_t n,
                      int32_t *ids)
{
    struct fake *f = (struct fake *)(void *)d;
    uint32_t vocab = (uint32_t)f->o.vocab_size;
    int32_t n_right = f->o.kind == SV_FAKE_RIGHT ? n : 0;
    if (f->o.kind == SV_FAKE_PREFIX)
        n_right = (int32_t)sv_rng_below(&f->rng, (uint32_t)n + 1);
    for (int32_t j = 0; j < n; j++) {
        int32_t t = f->o.truth ? f->o.truth(f->o.user, hint->request, hint->n_tokens + j) : -1;
        if (t < 0)
            t = 0;
        if (f->o.kind == SV_FAKE_RANDOM)
            t = (int32_t)sv_rng_below(&f->rng, vocab);
        else if (j >= n_right)
            t = (int32_t)(((uint32_t)t + 1 + sv_rng_below(&f->rng, vocab - 1)) % vocab);
        ids[j] = t;
    }
    return true;
}

static const struct sv_drafter_ops fake_ops = {.close = fake_close, .fill = fake_fill};

int sv_fake_open(struct sv_drafter **d, const struct sv_fake_opts *opts, struct sv_err *err)
{
    *d = NULL;
    if (opts->block_size < 2 || opts->block_size > SV_MAX_BLOCK || opts->vocab_size < 2)
        return sv_fail(err, SV_EINVAL, -1, "fake drafter: block %d, vocabulary %d",
                       opts->block_size, opts->vocab_size);
    struct fake *f = sv_calloc(1, sizeof *f);
    if (!f)
        return sv_fail(err, SV_ENOMEM, -1, "drafter");
    static const char *const names[] = {"always-right", "always-wrong", "random", "right-prefix"};
    f->base = (struct sv_drafter){.ops = &fake_ops,
                                  .name = names[opts->kind],
                                  .block_size = opts->block_size,
                                  .on_host = true};
    f->o = *opts;
    f->rng.state = opts->seed;
    *d = &f->base;
    return SV_OK;
}
