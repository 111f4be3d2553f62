/*
 * test_rules.c - penalties, bias, min_tokens and log probabilities through the engine.
 *
 * timeout: 240
 * release: greedy_lossless
 * release: sampled_lossless
 * release: trained_lossless
 * release: greedy_under_pressure
 * release: sampled_under_pressure
 *
 * The reference decodes without a drafter, one sequence at a time; what it says is checked against
 * the definition, worked out from the model's own logits in the test. Every other arrangement must
 * give its tokens and log probabilities bit for bit: a verify row has to see exactly the drafts
 * before it.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"
#include "model/model_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = RUN_VOCAB, BLOCK = RUN_BLOCK, MAX_PROMPT = 60, MAX_TOKENS = 32 };

static const double penalty[] = {0, 0.7, 0, -0.4, 1.5};
static const double repetition[] = {0, 1.2, 1, 0.8, 1.7};
static const int32_t bias_ids[] = {7, 250, 31, 100, 4, 66};
static const float bias[] = {3, -100, 2.5f, -1, 4, 1};

/* Everything in all combinations; every third request asks for nothing, so that batches are
 * mixed. */
static void ask(struct sv_request *r, int i, bool sampled)
{
    if (sampled) {
        static const double temperature[] = {0.7, 1.0, 1.5, 0};
        r->temperature = temperature[i % 4];
        r->top_k = i % 3 == 1 ? 30 : 0;
        r->top_p = i % 5 < 2 ? 0.9 : 1;
        r->seed = (uint64_t)i * 7919;
    }
    if (i % 2 == 0) {
        r->logprobs = true;
        r->n_top_logprobs = i % 4 ? 0 : 1 + i % 20;
    }
    if (i % 3 == 0)
        return;
    r->presence_penalty = penalty[i % 5];
    r->frequency_penalty = penalty[i / 5 % 5];
    r->repetition_penalty = repetition[i / 3 % 5];
    r->repetition_last_n = i % 4 < 2 ? 0 : 1 + i % 24;
    r->n_bias = i % 7;
    r->bias_ids = bias_ids;
    r->bias = bias;
    if (i % 5 > 2) { /* runs of one, two and three tokens, the longer ones of what is often said */
        static const int32_t bad[] = {9, -1, 70, 70, -1, 21, 22, -1, 23, 23, 23, -1, 120, -1};
        r->bad_ids = bad;
        r->n_bad_ids = i % 5 == 3 ? 5 : 14;
    }
    if (i % 7 == 5) {
        static int32_t even[VOCAB / 2];
        for (int32_t k = 0; k < VOCAB / 2; k++)
            even[k] = 2 * k;
        r->allowed_ids = even;
        r->n_allowed_ids = VOCAB / 2;
    }
    if (i % 4 == 1) {
        static int32_t stops[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 40, 41, 42, 43, 44, 45};
        r->stop_ids = stops;
        r->n_stop_ids = 16;
        r->min_tokens = i % MAX_TOKENS / 2;
    }
}

/* The trained golden pair, whose drafts are often right, and one of random weights, whose logits
 * lie so close together that rules change most tokens. */
static struct run_pair trained(void)
{
    return (struct run_pair){run_dir("tests/golden/tiny/pair_target"),
                             run_dir("tests/golden/tiny/pair_draft_full_b16")};
}

static struct run_pair random_weights(void)
{
    static const struct toy toy = {.vocab = VOCAB,
                                   .hidden = 64,
                                   .n_layers = 3,
                                   .n_heads = 4,
                                   .n_kv = 1,
                                   .head_dim = 16,
                                   .mlp = 96,
                                   .max_position = 256,
                                   .block = BLOCK,
                                   .draft_layers = 1,
                                   .scale = 0.2f,
                                   .seed = 6};
    return (struct run_pair){toy_target(&toy), toy_draft(&toy)};
}

static struct sv_engine *open_as(struct run_pair pair, const struct run_arrangement *a,
                                 const struct run_truth *t)
{
    return run_open_as(&pair, a, SV_ISA_AUTO, SV_TYPE_F32, t);
}

static const struct run_arrangement plain = {-1, 1, 16, 1, 512, 0};
static const struct run_arrangement arrangements[] = {
    {-1, 9, 64, 3, 7, 0},  {0, 1, 16, 1, 512, 0}, {0, 12, 1, 2, 33, 0}, {1, 5, 16, 2, 5, 0},
    {2, 17, 16, 3, 11, 0}, {3, 1, 64, 1, 512, 0}, {3, 8, 16, 2, 19, 0}, {4, 1, 16, 1, 512, 0},
    {4, 6, 64, 2, 40, 0},  {4, 16, 16, 3, 64, 5},
};

static int32_t n_different(const struct run_out *a, const struct run_out *b, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i].n_tokens != b[i].n_tokens ||
               memcmp(a[i].tokens, b[i].tokens, (size_t)a[i].n_tokens * sizeof *a[i].tokens);
    return sum;
}

static void lossless(struct run_pair pair, bool sampled, int n)
{
    n = run_few(n);
    struct run_case *c = run_cases(n, VOCAB, MAX_PROMPT, MAX_TOKENS, 77);
    struct sv_engine *e = open_as(pair, &plain, NULL);
    struct run_out *bare = run_all(e, c, n);
    for (int i = 0; i < n; i++)
        ask(&c[i].req, i, sampled);
    struct run_out *ref = run_all(e, c, n);
    assert_true(n_different(bare, ref, n) > n / 3); /* what was asked for matters */
    run_out_free(bare, n);
    sv_engine_close(e);
    const struct run_truth t = {c, ref};
    for (size_t k = 0; k < sizeof arrangements / sizeof arrangements[0]; k++) {
        const struct run_arrangement *a = &arrangements[k];
        if (run_left_out(k))
            continue;
        char what[120];
        snprintf(what, sizeof what, "drafter %d batch %d page %d threads %d chunk %d width %d",
                 a->drafter, a->batch, a->page, a->threads, a->chunk, a->width);
        e = open_as(pair, a, &t);
        struct run_out *out = run_all(e, c, n);
        run_same(ref, out, n, what);
        if (a->drafter == SV_FAKE_RIGHT) /* it does not know what comes after a stop */
            assert_true(e->accept.n_accepted * 10 > e->accept.n_drafted * 9);
        run_out_free(out, n);
        sv_engine_close(e);
    }
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

static void greedy_lossless(void **state)
{
    (void)state;
    lossless(random_weights(), false, 60);
}

static void sampled_lossless(void **state)
{
    (void)state;
    lossless(random_weights(), true, 60);
}

static void trained_lossless(void **state)
{
    (void)state;
    lossless(trained(), true, 60);
}

/* Few pages, so that sequences lose them and resume; steps one ahead of the host, counts padded;
 * and the same requests again, whose prompts the cache then knows. */
static void under_pressure(struct run_pair pair, bool sampled, int n)
{
    n = run_few(n);
    struct run_case *c = run_cases(n, VOCAB, MAX_PROMPT, MAX_TOKENS, 81);
    for (int i = 0; i < n; i++) {
        ask(&c[i].req, i, sampled);
        c[i].req.prompt_logprobs = i % 11 == 0;
        c[i].req.logprobs |= i % 11 == 0;
    }
    struct sv_engine *e = open_as(pair, &plain, NULL);
    struct run_out *ref = run_all(e, c, n);
    sv_engine_close(e);
    const struct sv_engine_options o = {.target_dir = pair.target,
                                        .draft_dir = pair.draft,
                                        .dtype = SV_TYPE_F32,
                                        .n_threads = 2,
                                        .max_sequences = 12,
                                        .context = 128,
                                        .page_size = 4,
                                        .prefill_chunk = 24};
    for (int way = 0; way < 4; way++) {
        const struct sv_engine_tuning tuning = {
            .cache_pages = way < 3 ? 48 : 1200, .run_ahead = way & 1, .pad = way & 2};
        char what[64];
        e = run_open_tuned(&o, &tuning, NULL);
        for (int again = 0; again < 2; again++) {
            snprintf(what, sizeof what, "under pressure, way %d, time %d", way, again);
            struct run_out *out = run_all(e, c, n);
            run_same(ref, out, n, what);
            run_out_free(out, n);
        }
        struct sv_engine_stats st;
        sv_get_engine_stats(e, &st);
        assert_true(way == 3 || st.n_preemptions > 0);
        assert_true(way < 3 || st.n_cache_hits > 0);
        sv_engine_close(e);
    }
    run_out_free(ref, n);
    run_cases_free(c, n);
}

static void greedy_under_pressure(void **state)
{
    (void)state;
    under_pressure(random_weights(), false, 24);
}

static void sampled_under_pressure(void **state)
{
    (void)state;
    under_pressure(trained(), true, 40);
}

/* ---------------------------------------------------------------- against the definition */

/* Whether the request's lists keep a token from coming after n of the answer. */
static bool is_barred(const struct sv_request *r, const int32_t *answer, int32_t n, int32_t id)
{
    bool found = !r->n_allowed_ids;
    for (int32_t k = 0; k < r->n_allowed_ids; k++)
        found |= r->allowed_ids[k] == id;
    for (int32_t k = 0, run = 0; k < r->n_bad_ids; k++) {
        if (r->bad_ids[k] >= 0)
            continue;
        const int32_t m = k - run - 1;
        if (r->bad_ids[k - 1] == id && m <= n &&
            !memcmp(r->bad_ids + run, answer + n - m, (size_t)m * sizeof *answer))
            found = false;
        run = k + 1;
    }
    return !found;
}

/* Logits of every position of prompt and answer. */
static void run_model(struct model_rig *rig, const struct run_case *c, const struct run_out *out)
{
    int32_t ids[RIG_ROWS];
    memcpy(ids, c->prompt, (size_t)c->n_prompt * sizeof *ids);
    memcpy(ids + c->n_prompt, out->tokens, (size_t)out->n_tokens * sizeof *ids);
    model_rig_run(rig, ids, 0, c->n_prompt + out->n_tokens);
}

static float processed(const struct run_case *c, const int32_t *answer, int32_t n,
                       const float *logits, int32_t id, const struct sv_config *cfg)
{
    const struct sv_request *r = &c->req;
    int32_t repeats = 0, since = 0;
    const int32_t n_all = c->n_prompt + n, last = r->repetition_last_n;
    const int32_t from = last && last < n_all ? n_all - last : 0;
    float x = logits[id];
    for (int32_t k = 0; k < r->n_bias; k++)
        x += r->bias_ids[k] == id ? r->bias[k] : 0;
    for (int32_t k = 0; k < r->n_stop_ids; k++)
        if (r->stop_ids[k] == id && n < r->min_tokens)
            x = -INFINITY;
    for (int32_t k = 0; k < cfg->n_eos && !r->ignore_eos; k++)
        if (cfg->eos_ids[k] == id && n < r->min_tokens)
            x = -INFINITY;
    if (is_barred(r, answer, n, id))
        x = -INFINITY;
    for (int32_t k = from; k < n_all; k++)
        repeats += (k < c->n_prompt ? c->prompt[k] : answer[k - c->n_prompt]) == id;
    for (int32_t k = 0; k < n; k++)
        since += answer[k] == id;
    if (repeats && r->repetition_penalty > 0)
        x = x > 0 ? x / (float)r->repetition_penalty : x * (float)r->repetition_penalty;
    if (since) {
        const float f = (float)r->frequency_penalty * (float)since;
        x -= f;
        x -= (float)r->presence_penalty;
    }
    return x;
}

static double log_prob(const float *x, int32_t id)
{
    double top = -INFINITY, sum = 0;
    for (int32_t v = 0; v < VOCAB; v++)
        top = fmax(top, (double)x[v]);
    for (int32_t v = 0; v < VOCAB; v++)
        sum += exp((double)x[v] - top);
    return (double)x[id] - top - log(sum);
}

/* Another device's logits are the CPU's but for rounding: ranks and choices may then differ among
 * equals. */
static bool other_device(void)
{
    return sv_env("SALVO_TEST_DEVICE") != NULL;
}

static void check_row(const struct sv_logprob_row *row, const float *x, int32_t id, int32_t n_top)
{
    const double tol = other_device() ? 2e-3 : 1e-5;
    int32_t rank = 1;
    for (int32_t v = 0; v < VOCAB; v++)
        rank += x[v] > x[id] || (x[v] == x[id] && v < id);
    if (!other_device())
        assert_int_equal(row->rank, rank);
    assert_int_equal(row->n_top, n_top);
    if (!(fabs((double)row->logprob - log_prob(x, id)) < tol))
        fail_msg("token %d: log probability %g, not %g", id, (double)row->logprob, log_prob(x, id));
    for (int32_t k = 0; k < n_top; k++) {
        if (k == row->rank - 1)
            assert_int_equal(row->top_id[k], id);
        assert_true(fabs((double)row->top_logprob[k] - log_prob(x, row->top_id[k])) < tol);
        assert_true(!k || row->top_logprob[k] <= row->top_logprob[k - 1]);
    }
}

static void greedy_by_definition(void **state)
{
    (void)state;
    enum { N = 30 };
    struct run_case *c = run_cases(N, VOCAB, MAX_PROMPT, MAX_TOKENS, 78);
    for (int i = 0; i < N; i++) {
        ask(&c[i].req, i, false);
        c[i].req.ignore_eos = i % 2;
        c[i].req.prompt_logprobs = i % 4 < 2;
        c[i].req.n_top_logprobs = i % 4 < 3 ? 5 : 0;
    }
    static const struct run_arrangement ways[] = {{-1, 1, 16, 1, 512, 0}, {4, 4, 16, 2, 13, 0}};
    struct model_rig rig;
    model_rig_open(&rig, random_weights().target, SV_ISA_AUTO, 16);
    int32_t n_changed = 0;
    for (size_t w = 0; w < 2; w++) {
        struct sv_engine *e = open_as(random_weights(), &ways[w], NULL);
        for (int i = 0; i < N; i++)
            if (c[i].req.n_top_logprobs && !c[i].req.logprobs && !c[i].req.prompt_logprobs)
                c[i].req.n_top_logprobs = 0;
        struct run_out *out = run_all(e, c, N);
        sv_engine_close(e);
        for (int i = 0; i < N; i++) {
            run_model(&rig, &c[i], &out[i]);
            for (int32_t n = 0; n < out[i].n_tokens; n++) {
                const float *x = rig.logits + (c[i].n_prompt + n - 1) * VOCAB;
                int32_t best = 0, raw = 0;
                float top = -INFINITY;
                for (int32_t v = 0; v < VOCAB; v++) {
                    float y = processed(&c[i], out[i].tokens, n, x, v, &rig.m.cfg);
                    best = y > top ? v : best;
                    top = y > top ? y : top;
                    raw = x[v] > x[raw] ? v : raw;
                }
                n_changed += best != raw;
                const int32_t got = out[i].tokens[n];
                const float y = processed(&c[i], out[i].tokens, n, x, got, &rig.m.cfg);
                if (other_device() ? !(y > top - 1e-3f) : got != best)
                    fail_msg("way %zu prompt %d token %d is %d, not %d", w, i, n, got, best);
                if (out[i].lp)
                    check_row(&out[i].lp[n], x, got, c[i].req.n_top_logprobs);
            }
            for (int32_t n = 1; n < c[i].n_prompt && out[i].prompt_lp; n++)
                check_row(&out[i].prompt_lp[n], rig.logits + (n - 1) * VOCAB, c[i].prompt[n],
                          c[i].req.n_top_logprobs);
            assert_true(!out[i].prompt_lp ||
                        (out[i].prompt_lp[0].logprob == 0 && !out[i].prompt_lp[0].n_top));
        }
        run_out_free(out, N);
    }
    assert_true(n_changed > 100); /* the rules did something */
    model_rig_close(&rig);
    run_cases_free(c, N);
}

/* Prompt rows in any chunks and batch have the same bits, and change no other request's tokens. */
static void prompt_logprobs_in_chunks(void **state)
{
    (void)state;
    enum { N = 24 };
    struct run_case *c = run_cases(N, VOCAB, MAX_PROMPT, 12, 79);
    struct sv_engine *e = open_as(trained(), &plain, NULL);
    struct run_out *without = run_all(e, c, N);
    for (int i = 0; i < N; i++) {
        c[i].req.prompt_logprobs = i % 3 > 0;
        c[i].req.n_top_logprobs = i % 3 == 2 ? 4 : 0;
    }
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    run_same(without, ref, N, "asked for prompt log probabilities");
    static const struct run_arrangement ways[] = {
        {-1, 4, 16, 2, 1, 0}, {-1, 24, 16, 1, 200, 0}, {4, 7, 16, 2, 70, 0}, {1, 3, 1, 1, 3, 0}};
    const struct run_truth t = {c, ref};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        e = open_as(trained(), &ways[w], &t);
        struct run_out *out = run_all(e, c, N);
        run_same(ref, out, N, "prompt log probabilities in chunks");
        for (int i = 0; i < N; i++)
            for (int32_t n = 0; n < c[i].n_prompt && ref[i].prompt_lp; n++)
                assert_memory_equal(&ref[i].prompt_lp[n], &out[i].prompt_lp[n],
                                    sizeof *ref->prompt_lp);
        run_out_free(out, N);
        sv_engine_close(e);
    }
    run_out_free(ref, N);
    run_out_free(without, N);
    run_cases_free(c, N);
}

/* ---------------------------------------------------------------- min_tokens and bad requests */

static void min_tokens_hold(void **state)
{
    (void)state;
    struct run_case *c = run_cases(1, VOCAB, 20, 24, 80);
    c->max_tokens = 24;
    struct sv_engine *e = open_as(trained(), &plain, NULL);
    struct run_out *ref = run_all(e, c, 1);
    sv_engine_close(e);
    static const int drafters[] = {-1, SV_FAKE_RIGHT, 4};
    const struct run_truth t = {c, ref};
    for (size_t d = 0; d < 3; d++) {
        for (int32_t min = 0; min <= 24; min++) {
            /* Request 1 of each engine, so that the fake knows it; its truth ends where the ban
             * bites. */
            const struct run_arrangement a = {drafters[d], 2, 16, 1, 512, 0};
            e = open_as(trained(), &a, &t);
            c->req.stop_ids = ref->tokens; /* whatever the free answer consists of */
            c->req.n_stop_ids = 24;
            c->req.min_tokens = min;
            struct run_out *out = run_all(e, c, 1);
            assert_true(out->n_tokens > min || out->n_tokens == 24);
            for (int32_t n = 0; n < out->n_tokens - 1; n++)
                for (int32_t k = 0; k < 24; k++)
                    assert_true(out->tokens[n] != ref->tokens[k]);
            if (min == 0)
                assert_int_equal(out->n_tokens, 1);
            if (out->finish == SV_FINISH_STOP)
                assert_int_equal(out->stop_id, out->tokens[out->n_tokens - 1]);
            else
                assert_int_equal(out->stop_id, -1);
            run_out_free(out, 1);
            sv_engine_close(e);
        }
    }
    run_out_free(ref, 1);
    run_cases_free(c, 1);
}

static void bad_requests(void **state)
{
    (void)state;
    struct sv_engine *e = open_as(trained(), &plain, NULL);
    static const int32_t ok[] = {3, 4, 5}, out_of_range[] = {5, -1, 300}, twice[] = {5, 9, 5};
    static const float zero[1200], wild[] = {0, 101, NAN};
    static int32_t all[VOCAB], many[1200];
    for (int32_t i = 0; i < VOCAB; i++)
        all[i] = i;
    const struct {
        struct sv_request r;
        const char *says;
        int64_t pos;
    } cases[] = {
        {{.presence_penalty = 2.1}, "presence_penalty must be in [-2, 2]", -1},
        {{.presence_penalty = NAN}, "presence_penalty", -1},
        {{.frequency_penalty = -3}, "frequency_penalty must be in [-2, 2]", -1},
        {{.repetition_penalty = -0.5}, "repetition_penalty", -1},
        {{.repetition_penalty = 2.5}, "repetition_penalty", -1},
        {{.repetition_penalty = 1e-40}, "repetition_penalty", -1},
        {{.bias_ids = out_of_range, .bias = zero, .n_bias = 3}, "bias_ids[1]: token -1", 1},
        {{.bias_ids = out_of_range + 2, .bias = zero, .n_bias = 1}, "bias_ids[0]: token 300", 0},
        {{.bias_ids = twice, .bias = zero, .n_bias = 3}, "bias_ids[2]: token 5 is at index 0", 2},
        {{.bias_ids = ok, .bias = wild, .n_bias = 2}, "bias[1] must be in [-100, 100]", 1},
        {{.bias_ids = ok, .bias = wild + 2, .n_bias = 1}, "bias[0]", 0},
        {{.bias_ids = many, .bias = zero, .n_bias = 1025}, "n_bias must be in [0, 1024]", -1},
        {{.n_bias = 1}, "bias_ids and bias", -1},
        {{.n_bias = -1}, "n_bias", -1},
        {{.min_tokens = -1}, "min_tokens", -1},
        {{.min_tokens = 9, .max_tokens = 8}, "min_tokens 9 is above max_tokens 8", -1},
        {{.min_tokens = 1, .stop_ids = many, .n_stop_ids = 300},
         "min_tokens: 300 end tokens and stop ids",
         -1},
        {{.min_tokens = 1, .stop_ids = many, .n_stop_ids = 300, .ignore_eos = true},
         "min_tokens: 300",
         -1},
        {{.min_tokens = 1, .stop_ids = all, .n_stop_ids = VOCAB}, "min_tokens: ", -1},
        {{.stop_ids = out_of_range, .n_stop_ids = 2},
         "stop_ids[1]: token -1 is outside [0, 300)",
         1},
        {{.n_stop_ids = 2}, "stop_ids", -1},
        {{.repetition_last_n = -1}, "repetition_last_n", -1},
        {{.bad_ids = ok, .n_bad_ids = 3}, "bad_ids: the last run is not ended", 2},
        {{.bad_ids = out_of_range, .n_bad_ids = 3}, "bad_ids[2]: token 300", 2},
        {{.bad_ids = out_of_range + 1, .n_bad_ids = 1}, "bad_ids[0]: a run without tokens", 0},
        {{.bad_ids = many, .n_bad_ids = 1200, .allowed_ids = many, .n_allowed_ids = 849},
         "at most 2048",
         -1},
        {{.n_bad_ids = 2}, "bad_ids or allowed_ids", -1},
        {{.n_allowed_ids = 1}, "bad_ids or allowed_ids", -1},
        {{.allowed_ids = out_of_range, .n_allowed_ids = 2}, "allowed_ids[1]: token -1", 1},
        {{.bad_ids = out_of_range, .n_bad_ids = 2, .allowed_ids = twice, .n_allowed_ids = 1},
         "could leave no token",
         -1},
        {{.allowed_ids = ok, .n_allowed_ids = 2, .stop_ids = ok, .n_stop_ids = 2, .min_tokens = 1},
         "could leave no token",
         -1},
        {{.logprobs = true, .n_top_logprobs = 21}, "n_top_logprobs must be in [0, 20]", -1},
        {{.logprobs = true, .n_top_logprobs = -1}, "n_top_logprobs", -1},
        {{.n_top_logprobs = 2}, "n_top_logprobs needs logprobs", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_err err = {0};
        struct sv_request r = cases[i].r;
        r.top_p = 1;
        r.prompt_ids = ok;
        r.n_prompt_ids = 3;
        assert_true(sv_engine_submit(e, &r, NULL, &err) < 0);
        if (!strstr(err.msg, cases[i].says) || err.pos != cases[i].pos)
            fail_msg("case %zu: \"%s\" (%lld) does not mention \"%s\" (%lld)", i, err.msg,
                     (long long)err.pos, cases[i].says, (long long)cases[i].pos);
    }
    sv_engine_close(e);
}

/* A vocabulary small enough that end tokens and stop ids could be all of it. */
static void nothing_left(void **state)
{
    (void)state;
    static const struct toy tiny = {.vocab = 24,
                                    .hidden = 32,
                                    .n_layers = 3,
                                    .n_heads = 2,
                                    .n_kv = 1,
                                    .head_dim = 16,
                                    .mlp = 32,
                                    .max_position = 64,
                                    .block = 4,
                                    .draft_layers = 1,
                                    .scale = 0.2f,
                                    .seed = 3};
    const struct sv_engine_options o = {.target_dir = toy_target(&tiny), .n_threads = 1};
    struct sv_engine *e = run_open(&o, NULL);
    int32_t all[24], prompt[] = {3, 4};
    struct sv_err err = {0};
    for (int32_t i = 0; i < 24; i++)
        all[i] = 23 - i;
    struct sv_request r = {.top_p = 1,
                           .prompt_ids = prompt,
                           .n_prompt_ids = 2,
                           .max_tokens = 4,
                           .temperature = 1,
                           .min_tokens = 2,
                           .stop_ids = all,
                           .n_stop_ids = 24};
    assert_true(sv_engine_submit(e, &r, NULL, &err) < 0);
    assert_non_null(strstr(err.msg, "every token"));
    r.n_stop_ids = 23; /* token 0 is left, unless it is an end token */
    struct run_case c = {.prompt = prompt, .n_prompt = 2, .max_tokens = 4, .req = r};
    c.req.ignore_eos = true;
    c.req.prompt_ids = NULL;
    struct run_out *out = run_all(e, &c, 1);
    assert_true(out->n_tokens >= 3 && out->tokens[0] == 0 && out->tokens[1] == 0);
    run_out_free(out, 1);
    sv_engine_close(e);
}

SV_TEST_MAIN(cmocka_unit_test(greedy_lossless), cmocka_unit_test(sampled_lossless),
             cmocka_unit_test(trained_lossless), cmocka_unit_test(greedy_under_pressure),
             cmocka_unit_test(sampled_under_pressure), cmocka_unit_test(greedy_by_definition),
             cmocka_unit_test(prompt_logprobs_in_chunks), cmocka_unit_test(min_tokens_hold),
             cmocka_unit_test(bad_requests), cmocka_unit_test(nothing_left))
