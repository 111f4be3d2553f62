/*
 * test_keys.c - a captured graph is replayed for every later pass with the same key, so everything
 * that its launches fix must follow from the key: counts, kinds of sampling, taps, log
 * probabilities, the places of a rank's own rows.
 *
 * Uses the CPU's device with a graph_run that records the launches of each key, with requests of
 * every kind. Rows of images come from memory that no key contains.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/legal.h"
#include "engine/pictures.h"
#include "engine/run.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 4096, N = 48 };

/* What launches are made from. */
struct baked {
    struct sv_counts launch;
    bool sampled, masked, ruled, remembered, logprobs, no_taps, confidence, hooks, drafter;
    int32_t most;
    struct sv_own_place own[SV_MAX_RANKS];
};

struct graphs {
    struct sv_backend be; /* first: the device's table meanwhile */
    const struct sv_backend *real;
    struct sv_engine *e;
    int32_t n, n_replays;
    uint64_t key[KEYS];
    struct baked baked[KEYS];
};

static struct baked baked_now(const struct sv_engine *e, bool draft)
{
    const struct sv_plan *p = &e->plan;
    struct baked b;
    memset(&b, 0, sizeof b); /* compared as bytes */
    if (draft) {
        b.launch.n_draft_rows = p->launch.n_draft_rows;
        b.launch.n_draft_segs = p->launch.n_draft_segs;
        b.launch.n_draft_out = p->launch.n_draft_out;
        b.confidence = p->confidence;
        return b;
    }
    b.launch.n_rows = p->launch.n_rows;
    b.launch.n_segs = p->launch.n_segs;
    b.launch.n_logits = p->launch.n_logits;
    b.sampled = p->sampled;
    b.masked = p->masked;
    b.ruled = p->ruled;
    b.remembered = p->remembered;
    b.logprobs = p->logprobs;
    b.no_taps = p->no_taps;
    b.most = p->most;
    b.hooks = e->hooks != NULL;
    b.drafter = e->drafter != &e->none;
    for (int32_t r = 0; e->cache.n_parts > 1 && r < e->cache.n_parts; r++)
        b.own[r] = sv_engine_own_place(e, r);
    assert_int_equal(p->n_prompt_logits, 0);
    assert_int_equal(e->images.n_rows, 0);
    assert_false(e->deferred.now);
    return b;
}

static void note_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user)
{
    struct graphs *g = (struct graphs *)(uintptr_t)dev->be;
    const bool draft = key & 0x80;
    const struct baked now = baked_now(g->e, draft);
    int32_t i = 0;
    while (i < g->n && g->key[i] != key)
        i++;
    if (i < g->n) {
        g->n_replays++;
        if (memcmp(&now, &g->baked[i], sizeof now))
            fail_msg("two %s passes of %d rows have the key %llx", draft ? "drafting" : "target",
                     draft ? now.launch.n_draft_rows : now.launch.n_rows, (unsigned long long)key);
    } else {
        assert_true(g->n < KEYS);
        g->key[g->n] = key;
        g->baked[g->n++] = now;
    }
    enqueue(user);
}

static struct run_case *of_every_kind(struct sv_grammar *grammar)
{
    struct run_case *c = run_cases(N, RUN_VOCAB, 20, 25, 9);
    for (int i = 0; i < N; i++) {
        struct sv_request *r = &c[i].req;
        r->ignore_eos = true;
        r->top_p = 1;
        static const int32_t id = 7;
        static const float bias = 1;
        r->width = i % 7 == 3 ? 1 + i % 5 : 0;
        if (i % 6 == 1) { /* logits that nothing changes */
            r->temperature = 1;
            r->seed = (uint64_t)i;
        } else if (i % 6 == 2 || i % 6 == 3) { /* changed by what was written, */
            r->presence_penalty = 0.5;
        } else if (i % 6 == 4 || i % 12 == 5) { /* or the same at every place */
            r->bias_ids = &id;
            r->bias = &bias;
            r->n_bias = 1;
        }
        r->grammar = i % 5 == 2 ? grammar : NULL;
        r->logprobs = i % 12 == 11;
        r->prompt_logprobs = i % 11 == 5;
    }
    return c;
}

static void no_op(void *user)
{
    (void)user;
}

static void keys_say_all(void **state)
{
    (void)state;
    const struct sv_step_hooks hooks = {.drafted = no_op};
    static struct graphs g;
    const struct sv_engine_tuning tuning = {.pad = true, .run_ahead = true, .simulates = true};
    struct sv_grammar *grammar = legal_grammar(LEGAL_NESTED);
    struct run_case *c = of_every_kind(grammar);
    struct sv_engine_options o = {.target_dir = toy_speaking_target(&toy_bf16),
                                  .draft_dir = toy_draft(&toy_bf16),
                                  .device = "cpu",
                                  .n_threads = 1,
                                  .max_sequences = 2,
                                  .auto_width = true};
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    struct sv_rng rng = {11};
    g = (struct graphs){.be = *e->dev->be, .real = e->dev->be, .e = e};
    g.be.graph_run = note_run;
    e->dev->be = &g.be;
    e->policy->random = &rng;
    struct run_out *out[2] = {run_all(e, c, N), NULL};
    assert_true(g.n > 20 && g.n_replays > 60);
    /* And once more by itself each: other steps, the same text. */
    e->policy->random = NULL;
    e->sched.policy = NULL;
    out[1] = run_all(e, c, N);
    run_same(out[0], out[1], N, "keys");
    struct sv_drafter *d = e->drafter;
    sv_engine_set_drafter(e, NULL); /* as benchmarks take it away */
    for (int i = 0; i < N; i++)
        c[i].req.width = 1;
    run_out_free(out[1], N);
    out[1] = run_all(e, c, N);
    run_same(out[0], out[1], N, "without a drafter");
    sv_engine_set_drafter(e, d);
    e->hooks = &hooks; /* as for simulated acceptance */
    run_out_free(out[1], N);
    out[1] = run_all(e, c, N);
    run_same(out[0], out[1], N, "with hooks");
    e->hooks = NULL;
    e->dev->be = g.real;
    run_out_free(out[0], N);
    run_out_free(out[1], N);
    run_cases_free(c, N);
    sv_grammar_unref(grammar);
    sv_engine_close(e);
}

/* Ranks with sequences of their own: how many each has changes, and what is launched does not. */
static void own_rows(void **state)
{
    (void)state;
    static struct graphs g;
    const struct sv_engine_tuning tuning = {.pad = true, .run_ahead = true, .compare_ranks = true};
    struct toy even = toy_bf16;
    even.n_heads = 4;
    even.n_kv = 2;
    const struct sv_engine_options o = {.target_dir = toy_target(&even),
                                        .draft_dir = toy_draft(&even),
                                        .device = "cpu",
                                        .n_threads = 1,
                                        .max_sequences = 5,
                                        .tp = 2,
                                        .dp_attention = true};
    struct run_case *c = run_cases(N, RUN_VOCAB, 20, 25, 9);
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    g = (struct graphs){.be = *e->dev->be, .real = e->dev->be, .e = e};
    g.be.graph_run = note_run;
    e->dev->be = &g.be;
    struct run_out *together = run_all(e, c, N), *alone = calloc(N, sizeof *alone);
    assert_true(g.n > 6 && g.n_replays > 60);
    for (int i = 0; i < N; i++) {
        struct run_out *one = run_all(e, &c[i], 1);
        alone[i] = *one;
        free(one);
    }
    run_same(together, alone, N, "own rows");
    e->dev->be = g.real;
    run_out_free(together, N);
    run_out_free(alone, N);
    run_cases_free(c, N);
    sv_engine_close(e);
}

/* A prompt's last row looks like a verify block of one, also where it is an image's. */
static void no_images_in_graphs(void **state)
{
    (void)state;
    static struct graphs g;
    static int32_t ids[] = {5, 6, PICTURE_TOKEN};
    const struct sv_engine_tuning tuning = {.pad = true, .run_ahead = true};
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/qwen3_vl_bf16"),
                                        .device = "cpu",
                                        .n_threads = 1,
                                        .max_sequences = 2,
                                        .prefill_chunk = 1};
    const struct sv_image image = picture(0);
    const struct run_case c = {
        .prompt = ids,
        .n_prompt = 3,
        .max_tokens = 6,
        .req = {.top_p = 1, .ignore_eos = true, .images = &image, .n_images = 1}};
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    assert_int_equal(picture_rows(&image), 1);
    g = (struct graphs){.be = *e->dev->be, .real = e->dev->be, .e = e};
    g.be.graph_run = note_run;
    e->dev->be = &g.be;
    struct run_out *out = run_all(e, &c, 1);
    assert_int_equal(out->n_tokens, 6);
    assert_true(g.n_replays > 2);
    e->dev->be = g.real;
    run_out_free(out, 1);
    sv_engine_close(e);
}

SV_TEST_MAIN(cmocka_unit_test(keys_say_all), cmocka_unit_test(own_rows),
             cmocka_unit_test(no_images_in_graphs))
