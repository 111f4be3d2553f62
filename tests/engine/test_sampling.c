/*
 * test_sampling.c - sampled text has the target's distribution: chi-square on a toy vocabulary.
 *
 * timeout: 240
 * release: all
 *
 * The exact distribution of the first two tokens comes from the model's own logits, filtered in
 * double precision by a plain sort; thousands of seeded requests run through the engine with no
 * drafter, with fakes and with a DFlash draft. Both the marginal of the first token and the joint
 * of the two are tested, so that correlated draws at neighbouring positions would show. p must be
 * above 1e-3; seeds are fixed, so a pass stays one. (Thirty statistics at that level fail by chance
 * once in thirty choices of seeds; a bias shows in all.) Drafters run a part of the same requests:
 * besides the statistic, their tokens must equal drafter none's.
 * In part: a few hundred requests of each.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"
#include "model/model_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 24, DRAWS = 8000, DRAFTED = 2000, FEW = 200, BATCH = 40, LEN = 3 };

static const struct toy toy = {.vocab = V,
                               .hidden = 32,
                               .n_layers = 3,
                               .n_heads = 2,
                               .n_kv = 1,
                               .head_dim = 16,
                               .mlp = 32,
                               .max_position = 64,
                               .block = 4,
                               .draft_layers = 1,
                               .scale = 0.13f,
                               .seed = 21};

struct setting {
    double temperature, top_p, min_p;
    int64_t top_k;
    double presence, frequency, repetition; /* 0 = off */
    int32_t bias_id;
    float bias;
};

/* Logits of the token after `prefix`, with the setting's rules. */
static void with_rules(const float *logits, const struct setting *s, const int32_t *prefix,
                       int32_t n_prompt, int32_t n, float *out)
{
    for (int32_t v = 0; v < V; v++) {
        int32_t before = 0, since = 0;
        for (int32_t i = 0; i < n; i++) {
            before += i < n_prompt && prefix[i] == v;
            since += i >= n_prompt && prefix[i] == v;
        }
        float x = logits[v] + (v == s->bias_id ? s->bias : 0);
        if (s->repetition > 0 && before + since)
            x = x > 0 ? x / (float)s->repetition : x * (float)s->repetition;
        out[v] = x - (float)s->frequency * (float)since - (since ? (float)s->presence : 0);
    }
}

/* Filtered distribution of one row of logits, in the documented order. */
static void filtered(const float *logits, const struct setting *s, double *p)
{
    int order[V];
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < V; i++)
        top = fmax(top, logits[i]);
    for (int i = 0; i < V; i++)
        sum += p[i] = exp((logits[i] - top) / s->temperature);
    for (int i = 0; i < V; i++) {
        p[i] /= sum;
        int at = i;
        for (; at > 0 && p[order[at - 1]] < p[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int keep = s->top_k > 0 && s->top_k < V ? (int)s->top_k : V;
    double kept = 0, mass = 0, best = p[order[0]];
    for (int i = 0; i < keep; i++)
        kept += p[order[i]];
    int n = 0;
    while (n < keep && (n == 0 || mass / kept < s->top_p))
        mass += p[order[n++]];
    double total = 0;
    for (int i = 0; i < V; i++) {
        bool in = i < n && p[order[i]] >= s->min_p * best;
        if (!in)
            p[order[i]] = 0;
        total += p[order[i]];
    }
    for (int i = 0; i < V; i++)
        p[i] /= total;
}

/* Upper tail of the chi-square distribution by the Wilson-Hilferty cube root. */
static double tail(double x2, double df)
{
    double z = (cbrt(x2 / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
    return 0.5 * erfc(z / sqrt(2));
}

static void chi_square(const char *what, const double *expect, const int32_t *seen, int n,
                       int draws)
{
    double x2 = 0, rest_e = 0, rest_s = 0;
    int df = -1;
    for (int i = 0; i < n; i++) {
        if (expect[i] == 0 && seen[i])
            fail_msg("%s: outcome %d has probability 0 and was drawn %d times", what, i, seen[i]);
        double e = expect[i] * draws;
        if (e < 5) {
            rest_e += e;
            rest_s += seen[i];
            continue;
        }
        x2 += (seen[i] - e) * (seen[i] - e) / e;
        df++;
    }
    if (rest_e >= 5) {
        x2 += (rest_s - rest_e) * (rest_s - rest_e) / rest_e;
        df++;
    }
    if (df < 1)
        return;
    double p = tail(x2, df);
    if (!(p > 1e-3))
        fail_msg("%s: chi-square %.1f with %d degrees of freedom, p = %.2g", what, x2, df, p);
}

/* Truth for the fakes: some continuation, good enough to be accepted at times. */
static int32_t likely(void *user, uint64_t request, int32_t index)
{
    const int32_t *best = user;
    (void)request;
    return best[index % LEN];
}

static struct sv_engine *open_with(const char *target, const char *draft, int drafter,
                                   int32_t *best)
{
    struct sv_engine_options o = {
        .target_dir = target, .dtype = SV_TYPE_F32, .n_threads = 1, .max_sequences = BATCH};
    struct sv_drafter *d = NULL;
    struct sv_err err = {0};
    if (drafter == 4)
        o.draft_dir = draft;
    else if (drafter >= 0) {
        const struct sv_fake_opts f = {.kind = (enum sv_fake)drafter,
                                       .block_size = 4,
                                       .vocab_size = V,
                                       .seed = 99,
                                       .truth = likely,
                                       .user = best};
        assert_int_equal(sv_fake_open(&d, &f, &err), 0);
    }
    return run_open(&o, d);
}

static void check_setting(const char *target, const char *draft, const struct setting *s,
                          uint64_t salt)
{
    static const int32_t prompt[] = {5, 9, 7, 11};
    const int32_t n = sizeof prompt / sizeof prompt[0];
    /* Exact: p1[a] and the joint p1[a] p2[b | a]. */
    struct model_rig rig;
    double p1[V], joint[V * V], p2[V];
    float ruled[V];
    int32_t prefix[8];
    model_rig_open(&rig, target, SV_ISA_AUTO, 16);
    model_rig_run(&rig, prompt, 0, n);
    memcpy(prefix, prompt, sizeof prompt);
    with_rules(rig.logits + (n - 1) * V, s, prefix, n, n, ruled);
    filtered(ruled, s, p1);
    int32_t best[LEN] = {0};
    for (int32_t a = 0; a < V; a++) {
        model_rig_run(&rig, &a, n, 1);
        prefix[n] = a;
        with_rules(rig.logits + n * V, s, prefix, n, n + 1, ruled);
        filtered(ruled, s, p2);
        for (int b = 0; b < V; b++)
            joint[a * V + b] = p1[a] * p2[b];
        if (p1[a] > p1[best[n % LEN]])
            best[n % LEN] = a;
    }
    model_rig_close(&rig);
    best[(n + 1) % LEN] = best[n % LEN];

    static const int drafters[] = {-1, SV_FAKE_RIGHT, SV_FAKE_RANDOM, 4};
    const int draws = sv_test_brief() ? FEW : DRAWS, drafted = sv_test_brief() ? FEW : DRAFTED;
    struct run_out *plain = NULL;
    struct run_case *c = calloc((size_t)draws, sizeof *c);
    for (int i = 0; i < draws; i++)
        c[i] = (struct run_case){.prompt = (int32_t *)(uintptr_t)prompt,
                                 .n_prompt = n,
                                 .max_tokens = LEN,
                                 .req = {.top_p = s->top_p,
                                         .temperature = s->temperature,
                                         .min_p = s->min_p,
                                         .top_k = s->top_k,
                                         .presence_penalty = s->presence,
                                         .frequency_penalty = s->frequency,
                                         .repetition_penalty = s->repetition,
                                         .bias_ids = &s->bias_id,
                                         .bias = &s->bias,
                                         .n_bias = s->bias != 0,
                                         .seed = (salt + 900) * 1000000 + (uint64_t)i,
                                         .ignore_eos = true}};
    for (size_t k = 0; k < sizeof drafters / sizeof drafters[0]; k++) {
        char what[128];
        snprintf(what, sizeof what, "T %.1f top_k %d top_p %.2f min_p %.2f drafter %d",
                 s->temperature, (int)s->top_k, s->top_p, s->min_p, drafters[k]);
        int n_draws = k ? drafted : draws;
        struct sv_engine *e = open_with(target, draft, drafters[k], best);
        struct run_out *out = run_all(e, c, n_draws);
        int32_t one[V] = {0}, two[V * V] = {0};
        for (int i = 0; i < n_draws; i++) {
            one[out[i].tokens[0]]++;
            two[out[i].tokens[0] * V + out[i].tokens[1]]++;
        }
        chi_square(what, p1, one, V, n_draws);
        chi_square(what, joint, two, V * V, n_draws);
        if (k && drafters[k] != 4)
            assert_true(e->accept.n_accepted > 0);
        sv_engine_close(e);
        if (!plain) {
            plain = out;
            continue;
        }
        run_same(plain, out, n_draws, what); /* stronger than any statistic */
        run_out_free(out, n_draws);
    }
    run_out_free(plain, draws);
    free(c);
}

static void at_temperature(double t, uint64_t salt)
{
    const char *target = toy_target(&toy), *draft = toy_draft(&toy);
    const struct setting all[] = {{.temperature = t, .top_p = 1},
                                  {.temperature = t, .top_p = 1, .top_k = 6},
                                  {.temperature = t, .top_p = 0.8},
                                  {.temperature = t, .top_p = 1, .min_p = 0.2},
                                  {.temperature = t, .top_p = 0.9, .min_p = 0.05, .top_k = 12}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_setting(target, draft, &all[i], salt * 10 + i);
}

static void temperature_0_7(void **state)
{
    (void)state;
    at_temperature(0.7, 1);
}
static void temperature_1(void **state)
{
    (void)state;
    at_temperature(1.0, 2);
}
static void temperature_1_5(void **state)
{
    (void)state;
    at_temperature(1.5, 3);
}

/* Penalties and bias change the distribution before the filters, in the documented order. */
static void with_penalties_and_bias(void **state)
{
    (void)state;
    const char *target = toy_target(&toy), *draft = toy_draft(&toy);
    const struct setting all[] = {
        {.temperature = 1, .top_p = 1, .presence = 1, .frequency = 0.8, .bias_id = 9, .bias = 1.5f},
        {.temperature = 0.8, .top_p = 1, .repetition = 1.8, .bias_id = 5, .bias = -1},
        {.temperature = 1.2, .top_p = 0.9, .top_k = 12, .presence = -1.5, .repetition = 0.7}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_setting(target, draft, &all[i], 40 + i);
}

/* The statistic itself must be able to fail: a distribution off by a few per cent is noticed. */
static void statistic_notices(void **state)
{
    (void)state;
    double p[4] = {0.25, 0.25, 0.25, 0.25};
    struct sv_rng rng = {1};
    int32_t seen[4] = {0};
    for (int i = 0; i < DRAWS; i++)
        seen[sv_rng_float(&rng) < 0.28f ? 0 : 1 + sv_rng_below(&rng, 3)]++;
    double x2 = 0;
    for (int i = 0; i < 4; i++)
        x2 += pow(seen[i] - p[i] * DRAWS, 2) / (p[i] * DRAWS);
    assert_true(tail(x2, 3) < 1e-3);
    assert_true(fabs(tail(7.815, 3) - 0.05) < 0.003);
}

SV_TEST_MAIN(cmocka_unit_test(temperature_0_7), cmocka_unit_test(temperature_1),
             cmocka_unit_test(temperature_1_5), cmocka_unit_test(with_penalties_and_bias),
             cmocka_unit_test(statistic_notices))
