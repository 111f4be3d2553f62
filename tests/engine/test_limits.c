/*
 * test_limits.c - where sequences end: stop ids and end tokens at every index of a block,
 * max_tokens and the context's end at every remainder, cancellation, bad requests, stop strings
 * over every split.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"

#include <string.h>

static const struct toy small = {.vocab = 48,
                                 .hidden = 32,
                                 .n_layers = 3,
                                 .n_heads = 2,
                                 .n_kv = 1,
                                 .head_dim = 16,
                                 .mlp = 48,
                                 .max_position = 96,
                                 .block = 8,
                                 .draft_layers = 1,
                                 .scale = 0.25f,
                                 .seed = 5};

struct fixture {
    const char *target, *draft;
    int32_t vocab;
    struct run_case *c;
    struct run_out *ref; /* plain, 40 tokens, nothing stops it */
};
enum { N = 6 };

static int32_t truth_at(void *user, uint64_t request, int32_t index)
{
    const struct fixture *f = user;
    int32_t i = (int32_t)((request - 1) % N), at = index - f->c[i].n_prompt;
    return at < f->ref[i].n_tokens ? f->ref[i].tokens[at] : -1;
}

/* drafter: -1 none, 0.. fakes, 4 dflash */
static struct sv_engine *open_with(const struct fixture *f, int drafter, int32_t batch)
{
    struct sv_engine_options o = {.target_dir = f->target,
                                  .dtype = SV_TYPE_F32,
                                  .n_threads = 1,
                                  .max_sequences = batch,
                                  .page_size = 4,
                                  .prefill_chunk = 8};
    struct sv_drafter *d = NULL;
    struct sv_err err = {0};
    if (drafter == 4)
        o.draft_dir = f->draft;
    else if (drafter >= 0) {
        const struct sv_fake_opts fo = {.kind = (enum sv_fake)drafter,
                                        .block_size = 8,
                                        .vocab_size = f->vocab,
                                        .truth = truth_at,
                                        .user = (void *)(uintptr_t)f};
        assert_int_equal(sv_fake_open(&d, &fo, &err), 0);
    }
    const struct sv_engine_tuning tuning = {.run_ahead = batch > 1, .pad = batch > 2};
    return run_open_tuned(&o, &tuning, d);
}

static void setup_of(struct fixture *f, struct run_pair pair, int32_t vocab)
{
    f->target = pair.target;
    f->draft = pair.draft;
    f->vocab = vocab;
    f->c = run_cases(N, vocab, 20, 40, 9);
    for (int i = 0; i < N; i++)
        f->c[i].max_tokens = 40;
    struct sv_engine *e = open_with(f, -1, 1);
    f->ref = run_all(e, f->c, N);
    sv_engine_close(e);
}

static void setup(struct fixture *f)
{
    setup_of(f, (struct run_pair){toy_target(&small), toy_draft(&small)}, small.vocab);
}

static void teardown(struct fixture *f)
{
    run_out_free(f->ref, N);
    run_cases_free(f->c, N);
}

/* Index of the first time a token stands in a text. */
static int32_t first_of(const int32_t *tokens, int32_t n, int32_t t)
{
    for (int32_t i = 0; i < n; i++)
        if (tokens[i] == t)
            return i;
    return -1;
}

static void stop_ids_at_every_index(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    for (int drafter = -1; drafter <= 4; drafter++) {
        struct sv_engine *e = open_with(&f, drafter, 3);
        for (int32_t at = 0; at < 24; at++) {
            struct run_case c[N];
            int32_t end[N];
            for (int i = 0; i < N; i++) {
                c[i] = f.c[i];
                /* Stop at whatever token stands at this index: it may stand earlier too. */
                c[i].req.stop_ids = &f.ref[i].tokens[at];
                c[i].req.n_stop_ids = 1;
                end[i] = first_of(f.ref[i].tokens, 40, f.ref[i].tokens[at]) + 1;
            }
            /* Requests are numbered on; the fakes find their truth modulo N. */
            struct run_out *out = run_all(e, c, N);
            for (int i = 0; i < N; i++) {
                assert_int_equal(out[i].n_tokens, end[i]);
                assert_int_equal(out[i].stop_id, f.ref[i].tokens[at]);
                assert_int_equal(out[i].stop_index, -1);
                assert_memory_equal(out[i].tokens, f.ref[i].tokens, (size_t)end[i] * 4);
                assert_int_equal(out[i].finish, SV_FINISH_STOP);
            }
            run_out_free(out, N);
        }
        sv_engine_close(e);
    }
    teardown(&f);
}

static void max_tokens_at_every_remainder(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    for (int drafter = -1; drafter <= 4; drafter++) {
        struct sv_engine *e = open_with(&f, drafter, 2);
        for (int32_t n = 1; n <= 26; n++) {
            struct run_case c[N];
            memcpy(c, f.c, sizeof c);
            for (int i = 0; i < N; i++)
                c[i].max_tokens = n;
            struct run_out *out = run_all(e, c, N);
            for (int i = 0; i < N; i++) {
                assert_int_equal(out[i].n_tokens, n);
                assert_memory_equal(out[i].tokens, f.ref[i].tokens, (size_t)n * 4);
                assert_int_equal(out[i].finish, SV_FINISH_LENGTH);
            }
            run_out_free(out, N);
        }
        sv_engine_close(e);
    }
    teardown(&f);
}

/* Prompts of every length up to the last position: the answer fills the context exactly. */
static void context_end_at_every_remainder(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    int32_t prompt[96];
    struct sv_rng rng = {77};
    for (int i = 0; i < 96; i++)
        prompt[i] = 3 + (int32_t)sv_rng_below(&rng, 40);
    struct sv_engine *plain = open_with(&f, -1, 1), *dflash = open_with(&f, 4, 1);
    for (int32_t n = 70; n < 96; n++) {
        struct run_case c = {
            .prompt = prompt, .n_prompt = n, .req = {.top_p = 1, .ignore_eos = true}};
        struct run_out *a = run_all(plain, &c, 1), *b = run_all(dflash, &c, 1);
        assert_int_equal(a->n_tokens, 96 - n);
        assert_int_equal(a->finish, SV_FINISH_LENGTH);
        run_same(a, b, 1, "context end");
        run_out_free(a, 1);
        run_out_free(b, 1);
    }
    sv_engine_close(plain);
    sv_engine_close(dflash);
    teardown(&f);
}

/* Without ignore_eos the model's own end token (2) stops it; with a draft in the same place. */
static void end_token(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct run_case c[N];
    memcpy(c, f.c, sizeof c);
    for (int i = 0; i < N; i++)
        c[i].req.ignore_eos = false;
    struct sv_engine *a = open_with(&f, -1, 1), *b = open_with(&f, SV_FAKE_RIGHT, 4);
    struct run_out *x = run_all(a, c, N), *y = run_all(b, c, N);
    run_same(x, y, N, "end token");
    int n_stopped = 0;
    for (int i = 0; i < N; i++) {
        int32_t at = first_of(f.ref[i].tokens, 40, 2);
        assert_int_equal(x[i].n_tokens, at < 0 ? 40 : at + 1);
        n_stopped += at >= 0;
    }
    print_message("%d of %d prompts met the end token\n", n_stopped, N);
    run_out_free(x, N);
    run_out_free(y, N);
    sv_engine_close(a);
    sv_engine_close(b);
    teardown(&f);
}

struct counter {
    struct sv_engine *e;
    int n_events, n_tokens, n_finished;
    enum sv_finish_reason finish;
    uint64_t id, cancel_other;
};

static void on_event(void *user, const struct sv_event *ev)
{
    struct counter *k = user;
    k->n_events++;
    k->n_tokens += ev->n_tokens;
    if (ev->finish) {
        k->n_finished++;
        k->finish = ev->finish;
    }
    if (k->cancel_other && k->n_tokens > 3)
        sv_cancel_request(k->e, k->cancel_other);
}

static void cancel_everywhere(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct sv_engine *e = open_with(&f, 4, 2);
    struct sv_err err = {0};
    char msg[128];
    /* Waiting, in a prompt, decoding, and from another request's callback. */
    for (int steps = 0; steps < 12; steps++) {
        struct counter k[4] = {{0}};
        for (int i = 0; i < 4; i++) {
            k[i].e = e;
            struct sv_request r = f.c[i].req;
            r.prompt_ids = f.c[i].prompt;
            r.n_prompt_ids = f.c[i].n_prompt;
            r.max_tokens = 40;
            r.on_event = on_event;
            r.user = &k[i];
            assert_int_equal(sv_engine_submit(e, &r, &k[i].id, &err), 0);
        }
        k[0].cancel_other = k[3].id;
        for (int s = 0; s < steps; s++)
            assert_true(sv_step_engine(e, msg, sizeof msg) >= 0);
        sv_cancel_request(e, k[1].id);
        sv_cancel_request(e, 123456789);
        while (sv_step_engine(e, msg, sizeof msg) > 0)
            sv_cache_check(&e->cache);
        for (int i = 0; i < 4; i++)
            assert_int_equal(k[i].n_finished, 1);
        assert_int_equal(k[0].finish, SV_FINISH_LENGTH);
        assert_int_equal(k[2].finish, SV_FINISH_LENGTH);
        assert_int_equal(k[0].n_tokens, 40);
        assert_int_equal(k[3].finish, SV_FINISH_CANCELED);
        assert_int_equal(sv_cache_n_available(&e->cache), e->cache.group[0].d.n_pages);
    }
    /* Closing with requests in flight cancels them. */
    struct counter k = {.e = e};
    struct sv_request r = f.c[0].req;
    r.prompt_ids = f.c[0].prompt;
    r.n_prompt_ids = f.c[0].n_prompt;
    r.on_event = on_event;
    r.user = &k;
    assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
    assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    sv_engine_close(e);
    assert_int_equal(k.finish, SV_FINISH_CANCELED);
    teardown(&f);
}

/* What a request is told. */
struct heard {
    uint64_t id;
    int32_t tokens[40], n;
    enum sv_finish_reason finish;
};

static void hear_tokens(void *user, const struct sv_event *ev)
{
    struct heard *h = user;
    assert_true(h->n + ev->n_tokens <= 40);
    memcpy(h->tokens + h->n, ev->tokens, (size_t)ev->n_tokens * sizeof *ev->tokens);
    h->n += ev->n_tokens;
    h->finish = ev->finish;
}

/* The case that the request's number, which fakes go by, stands for. */
static void submit_next(struct sv_engine *e, const struct fixture *f, struct heard *h)
{
    const struct run_case *c = &f->c[(e->next_id - 1) % N];
    struct sv_err err = {0};
    struct sv_request r = c->req;
    r.prompt_ids = c->prompt;
    r.n_prompt_ids = c->n_prompt;
    r.max_tokens = 40;
    r.on_event = hear_tokens;
    r.user = h;
    if (sv_engine_submit(e, &r, &h->id, &err))
        fail_msg("%s", err.msg);
}

/* A state slot, rings or latents of a sequence that was cancelled in a block tell the next one in
 * its slot, and the sequence beside it, nothing. */
static void slots_after_a_cancellation(void **state)
{
    (void)state;
    static const char *const names[] = {"pair_target", "qwen3_5_bf16", "kimi_int4"};
    static const int drafters[] = {SV_FAKE_RIGHT, SV_FAKE_PREFIX, 4};
    char msg[128];
    for (int k = 0; k < 9; k++) {
        struct fixture f;
        setup_of(&f, toy_pair_of(names[k / 3]), 298);
        struct sv_engine *e = open_with(&f, drafters[k % 3], 2);
        const int32_t n_free = sv_cache_n_available(&e->cache);
        int n_cut = 0;
        for (int steps = 1; steps < 10; steps++) {
            struct heard h[4] = {{0}};
            for (int i = 0; i < 3; i++) /* the third waits for a slot */
                submit_next(e, &f, &h[i]);
            for (int s = 0; s < steps; s++)
                assert_true(sv_step_engine(e, msg, sizeof msg) >= 0);
            sv_cancel_request(e, h[1].id);
            submit_next(e, &f, &h[3]);
            while (sv_step_engine(e, msg, sizeof msg) > 0)
                sv_cache_check(&e->cache);
            for (int i = 0; i < 4; i++) {
                const struct run_out *want = &f.ref[(h[i].id - 1) % N];
                const bool cut = h[i].finish == SV_FINISH_CANCELED;
                if ((cut ? i != 1 : h[i].n != want->n_tokens) ||
                    memcmp(h[i].tokens, want->tokens, (size_t)h[i].n * sizeof *h[i].tokens) != 0)
                    fail_msg("%s, drafter %d, cancelled after %d steps: request %d has other text",
                             names[k / 3], drafters[k % 3], steps, i);
                n_cut += cut && h[i].n > 0;
            }
            assert_int_equal(sv_cache_n_available(&e->cache), n_free);
        }
        assert_true(n_cut > 0); /* behind its prompt */
        sv_engine_close(e);
        teardown(&f);
    }
}

static void bad_requests(void **state)
{
    (void)state;
    struct fixture f;
    setup(&f);
    struct sv_engine *e = open_with(&f, 4, 1);
    static const int32_t ok[] = {3, 4, 5}, bad[] = {3, 48, 5}, neg[] = {-1};
    static int32_t longer[200];
    static const char *const stops[] = {"x"};
    const struct {
        struct sv_request r;
        const char *says;
    } cases[] = {
        {{.top_p = 1, .prompt_ids = bad, .n_prompt_ids = 3}, "prompt token 48 at index 1"},
        {{.top_p = 1, .prompt_ids = neg, .n_prompt_ids = 1}, "prompt token -1"},
        {{.top_p = 1, .prompt_ids = ok, .n_prompt_ids = 0}, "empty"},
        {{.top_p = 1, .prompt_ids = longer, .n_prompt_ids = 96}, "context of 96"},
        {{.top_p = 1}, "prompt"},
        {{.top_p = 1, .prompt = "text"}, "tokenizer"},
        {{.top_p = 0, .prompt_ids = ok, .n_prompt_ids = 3}, "top_p"},
        {{.top_p = 1, .temperature = -1, .prompt_ids = ok, .n_prompt_ids = 3}, "temperature"},
        {{.top_p = 1, .min_p = 2, .prompt_ids = ok, .n_prompt_ids = 3}, "min_p"},
        {{.top_p = 1, .top_k = -5, .prompt_ids = ok, .n_prompt_ids = 3}, "top_k"},
        {{.top_p = 1, .width = 9, .prompt_ids = ok, .n_prompt_ids = 3}, "width"},
        {{.top_p = 1, .max_tokens = -1, .prompt_ids = ok, .n_prompt_ids = 3}, "max_tokens"},
        {{.top_p = 1, .stop = stops, .n_stop = 1, .prompt_ids = ok, .n_prompt_ids = 3},
         "tokenizer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_err err = {0};
        assert_true(sv_engine_submit(e, &cases[i].r, NULL, &err) < 0);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("case %zu: \"%s\" does not mention \"%s\"", i, err.msg, cases[i].says);
    }
    /* The engine still answers. */
    struct run_out *out = run_all(e, f.c, N);
    run_same(f.ref, out, N, "after bad requests");
    run_out_free(out, N);
    sv_engine_close(e);
    teardown(&f);
}

struct progress {
    enum sv_open_stage stage;
    double share, weights;
    int n[3];
};

static void on_progress(void *user, enum sv_open_stage stage, double share)
{
    struct progress *p = user;
    assert_true(stage > p->stage || (stage == p->stage && share >= p->share));
    assert_true(share >= 0 && share <= 1);
    p->stage = stage;
    p->share = share;
    p->n[stage]++;
    if (stage == SV_OPEN_WEIGHTS)
        p->weights = share;
}

/* The progress of opening is reported: only forward, tensor by tensor, up to all of
 * them. */
static void hear(const char *target, const char *draft)
{
    struct progress p = {0};
    struct sv_engine_options o = {.target_dir = target,
                                  .draft_dir = draft,
                                  .auto_width = draft != NULL,
                                  .on_progress = on_progress,
                                  .progress_user = &p};
    sv_engine_close(run_open(&o, NULL));
    assert_true(p.n[SV_OPEN_WEIGHTS] > 20 && (p.n[SV_OPEN_COSTS] > 3 || !draft));
    assert_true(p.weights > 0.9); /* the rest is the files' headers */
}

static void opening_tells_how_far(void **state)
{
    (void)state;
    hear(toy_target(&toy_bf16), toy_draft(&toy_bf16));
    hear(run_dir("tests/golden/tiny/gptoss_mxfp4"), NULL); /* its codes */
}

/* Opening with the n-th allocation or file call failing: an error, no leak, no crash. */
static void open_survives_faults(void **state)
{
    (void)state;
    const char *target = toy_target(&small), *draft = toy_draft(&small);
    struct sv_engine_options o = {
        .target_dir = target, .draft_dir = draft, .n_threads = 2, .max_sequences = 2};
    for (int64_t n = 1;; n++) {
        struct sv_engine *e = NULL;
        struct sv_err err = {0};
        sv_fault_arm(n);
        int rc = sv_engine_open(&e, &o, NULL, &err);
        sv_fault_arm(0);
        if (!rc) {
            assert_true(n > 50);
            sv_engine_close(e);
            break;
        }
        if (!err.msg[0])
            fail_msg("fault %lld: no message", (long long)n);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

SV_TEST_MAIN(cmocka_unit_test(stop_ids_at_every_index),
             cmocka_unit_test(max_tokens_at_every_remainder),
             cmocka_unit_test(context_end_at_every_remainder), cmocka_unit_test(end_token),
             cmocka_unit_test(cancel_everywhere), cmocka_unit_test(slots_after_a_cancellation),
             cmocka_unit_test(bad_requests), cmocka_unit_test(opening_tells_how_far),
             cmocka_unit_test(open_survives_faults))
