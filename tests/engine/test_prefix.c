/*
 * test_prefix.c - the prefix cache through the engine: what is found changes neither a token nor an
 * accept length, and is what should be found.
 *
 * timeout: 240
 *
 * The reference has no prefix cache and runs one sequence at a time. Prompts form families with a
 * common beginning, come twice, and come a third time with their answer and a few tokens more, as a
 * chat does.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 300, MAX_TOKENS = 40, BLOCK = 16, CONTEXT = 192, FAMILIES = 6, PLENTY = 16000 };

/* Case i begins with as much of its family's 70 tokens as chance has it. */
static struct run_case *family_cases(int32_t n, bool sampled)
{
    struct run_case *c = run_cases(n, VOCAB, 30, MAX_TOKENS, 5);
    struct run_case *head = run_cases(FAMILIES, VOCAB, 1, 1, 6);
    struct sv_rng rng = {7};
    for (int32_t i = 0; i < n; i++) {
        int32_t family = i % FAMILIES, shared = (int32_t)sv_rng_below(&rng, 71);
        int32_t *p = malloc((size_t)(shared + c[i].n_prompt) * sizeof *p);
        struct sv_rng words = {(uint64_t)head[family].prompt[0]};
        for (int32_t j = 0; j < shared; j++)
            p[j] = 3 + (int32_t)sv_rng_below(&words, VOCAB - 3);
        memcpy(p + shared, c[i].prompt, (size_t)c[i].n_prompt * sizeof *p);
        free(c[i].prompt);
        c[i].prompt = p;
        c[i].n_prompt += shared;
        if (sampled && i % 3) {
            c[i].req.temperature = 0.8;
            c[i].req.seed = (uint64_t)i;
        }
    }
    run_cases_free(head, FAMILIES);
    return c;
}

/* The next turn: prompt, answer and a question more. */
static struct run_case *next_turn(const struct run_case *c, const struct run_out *out, int32_t n)
{
    struct run_case *d = run_cases(n, VOCAB, 1, 1, 0);
    for (int32_t i = 0; i < n; i++) {
        free(d[i].prompt);
        d[i] = c[i];
        d[i].n_prompt = c[i].n_prompt + out[i].n_tokens + 3;
        d[i].prompt = malloc((size_t)d[i].n_prompt * sizeof(int32_t));
        memcpy(d[i].prompt, c[i].prompt, (size_t)c[i].n_prompt * sizeof(int32_t));
        memcpy(d[i].prompt + c[i].n_prompt, out[i].tokens,
               (size_t)out[i].n_tokens * sizeof(int32_t));
        for (int32_t j = 1; j <= 3; j++)
            d[i].prompt[d[i].n_prompt - j] = 3 + (i * 7 + j) % 200;
        d[i].max_tokens = 12;
    }
    return d;
}

struct setting {
    int32_t batch, page, chunk, positions; /* positions: of the pools */
};
static const struct setting settings[] = {
    {1, 16, 512, PLENTY}, {12, 1, 24, PLENTY}, {4, 64, 64, PLENTY}, {32, 16, 100, PLENTY},
    {8, 1, 33, 400},      {17, 16, 64, 416},   {3, 64, 512, 512},   {1, 4, 512, 240},
};

/* With recurrent states: of a prompt that goes on from this one and its answer, what has to be
 * found. Prompts end in a snapshot at their last boundary, answers at a multiple of 64. */
static int32_t known_states(const struct run_case *c, const struct run_out *out, int32_t page)
{
    const int32_t answer = (c->n_prompt + out->n_tokens - 1) / 64 * 64;
    return answer > c->n_prompt ? answer : (c->n_prompt - 1) / page * page;
}

/* before: the turn that came before, or NULL. With recurrent states, prompts end in a snapshot and
 * answers do not in each of these settings. */
static void check_found(const struct run_out *out, const struct run_case *c, int32_t n,
                        int32_t page, const struct run_case *before, bool states)
{
    for (int32_t i = 0; i < n; i++) {
        /* All whole pages but the last token's; of a further turn, those that turns share. */
        int32_t known = !before  ? c[i].n_prompt - 1
                        : states ? before[i].n_prompt - 1
                                 : c[i].n_prompt - 4;
        if (out[i].n_cached < known / page * page)
            fail_msg("prompt %d of %d tokens: %d found", i, c[i].n_prompt, out[i].n_cached);
        assert_true(out[i].n_cached < c[i].n_prompt && out[i].n_cached % page == 0);
    }
}

/* Prompts that can be found again at the same time. */
static int32_t n_snapshots(const struct sv_cache *c)
{
    for (int32_t g = 0; g < c->n_groups; g++)
        if (c->group[g].d.kind == SV_CACHE_STATE)
            return c->group[g].d.n_pages;
    return INT32_MAX;
}

static int64_t n_prompt_tokens(const struct run_case *c, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += c[i].n_prompt;
    return sum;
}

static void turns(const struct sv_engine_options *base, bool sampled, int32_t n)
{
    struct run_case *c = family_cases(n, sampled);
    struct sv_engine_options o = *base;
    o.context = CONTEXT;
    o.n_threads = 2;
    o.no_prefix_cache = true;
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = run_all(e, c, n);
    struct run_case *c2 = next_turn(c, ref, n);
    struct run_out *ref2 = run_all(e, c2, n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(ref[i].n_cached + ref2[i].n_cached, 0);
    sv_engine_close(e);
    o.no_prefix_cache = false;
    for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        const struct setting *t = &settings[k];
        o.max_sequences = t->batch;
        o.page_size = t->page;
        o.prefill_chunk = t->chunk;
        const struct sv_engine_tuning tuning = {
            .cache_pages = t->positions / t->page, .run_ahead = t->batch > 4, .pad = t->batch > 3};
        e = run_open_tuned(&o, &tuning, NULL);
        struct run_out *a = run_all(e, c, n), *b = run_all(e, c, n), *d = run_all(e, c2, n);
        char what[96];
        snprintf(what, sizeof what, "batch %d page %d positions %d", t->batch, t->page,
                 t->positions);
        run_same_steps(ref, a, n, what);
        run_same_steps(ref, b, n, what);
        run_same_steps(ref2, d, n, what);
        const int32_t room = n_snapshots(&e->cache);
        const bool plenty = t->positions == PLENTY && room >= 2 * n; /* of prompt and answer */
        if (plenty)
            check_found(b, c, n, t->page, NULL, e->cache.has_state);
        if (plenty && room >= 3 * n)
            check_found(d, c2, n, t->page, c, e->cache.has_state);
        struct sv_engine_stats st;
        sv_get_engine_stats(e, &st);
        print_message("%s: %lld of %lld prompt tokens found, %lld preemptions\n", what,
                      (long long)st.n_cache_hits, (long long)st.n_cache_queries,
                      (long long)st.n_preemptions);
        assert_true(st.n_cache_hits > 0 || !plenty);
        assert_int_equal(st.n_cache_queries,
                         2 * n_prompt_tokens(c, n) +
                             n_prompt_tokens(c2, n)); /* once each, whoever came back */
        assert_true(st.n_pages_used == 0 && st.n_pages_cached > 0);
        if (t->positions == PLENTY)
            assert_int_equal(st.n_prompt_tokens, st.n_cache_queries - st.n_cache_hits);
        sv_flush_cache(e);
        run_out_free(b, n);
        b = run_all(e, c, 1);
        assert_int_equal(b->n_cached, 0);
        run_same_steps(ref, b, 1, what);
        run_out_free(a, n), run_out_free(b, 1), run_out_free(d, n);
        sv_engine_close(e);
    }
    run_out_free(ref, n), run_out_free(ref2, n);
    run_cases_free(c, n), run_cases_free(c2, n);
    assert_int_equal(sv_alloc_live(), 0);
}

static void trained(const char *draft, bool sampled, int32_t n)
{
    turns(&(struct sv_engine_options){.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                      .draft_dir = draft ? run_dir(draft) : NULL,
                                      .dtype = SV_TYPE_F32},
          sampled, n);
}

static void plain(void **state)
{
    (void)state;
    trained(NULL, true, 18);
}
static void greedy(void **state)
{
    (void)state;
    trained("tests/golden/tiny/pair_draft_full_b16", false, 24);
}
static void sampled(void **state)
{
    (void)state;
    trained("tests/golden/tiny/pair_draft_full_b16", true, 18);
}
static void sliding_draft(void **state)
{
    (void)state;
    trained("tests/golden/tiny/pair_draft_sliding_b8", false, 18);
}
static void bf16(void **state)
{
    (void)state;
    turns(&(struct sv_engine_options){.target_dir = toy_target(&toy_bf16),
                                      .draft_dir = toy_draft(&toy_bf16),
                                      .dtype = SV_TYPE_BF16},
          false, 18);
}

static void states(void **state)
{
    (void)state;
    const struct run_pair pair = toy_pair_of("qwen3_5_bf16");
    const struct sv_engine_options o = {
        .target_dir = pair.target, .draft_dir = pair.draft, .dtype = SV_TYPE_BF16};
    turns(&o, false, 18);
}

/* Prompts that begin alike and have no state in common yet: the second one leaves it where it parts
 * from the first, and the third goes on from there. Tokens are those without a prefix cache. */
static void branches(void **state)
{
    enum { N = 4, HEAD = 70, OWN = 21, PAGE = 16 };
    const struct run_pair pair = toy_pair_of("qwen3_5_bf16");
    struct sv_engine_options o = {.target_dir = pair.target,
                                  .draft_dir = pair.draft,
                                  .dtype = SV_TYPE_BF16,
                                  .context = CONTEXT,
                                  .max_sequences = 2, /* room for eight snapshots */
                                  .page_size = PAGE,
                                  .no_prefix_cache = true};
    (void)state;
    struct run_case *c = run_cases(N, VOCAB, 1, 12, 0);
    for (int32_t i = 0; i < N; i++) {
        free(c[i].prompt);
        c[i].n_prompt = HEAD + OWN;
        c[i].prompt = malloc((size_t)c[i].n_prompt * sizeof *c[i].prompt);
        for (int32_t j = 0; j < c[i].n_prompt; j++)
            c[i].prompt[j] = 3 + (j < HEAD ? j * 7 : 5 * j + 31 * i) % 200;
    }
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    o.no_prefix_cache = false;
    for (int ahead = 0; ahead < 2; ahead++) {
        const struct sv_engine_tuning t = {.run_ahead = ahead, .pad = ahead};
        o.prefill_chunk = ahead ? 24 : 512;
        e = run_open_tuned(&o, &t, NULL);
        for (int32_t i = 0; i < 2 * N; i++) {
            struct run_out *out = run_all(e, c + i % N, 1);
            run_same_steps(ref + i % N, out, 1, "branch");
            assert_int_equal(out->n_cached, i >= N  ? (HEAD + OWN - 1) / PAGE * PAGE
                                            : i > 1 ? HEAD / PAGE * PAGE
                                                    : 0);
            run_out_free(out, 1);
        }
        sv_engine_close(e);
    }
    run_out_free(ref, N);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

enum { CHATS = 5, TURNS = 4 };

/* Turn t of chat k is case t * CHATS + k: the turn before it, its answer and three tokens more. The
 * answers come from an engine that keeps nothing. */
static void make_chats(const struct run_pair *pair, struct run_case **cases,
                       struct run_out **answers)
{
    const struct run_arrangement plain = {
        .drafter = -1, .batch = CHATS, .page = 16, .threads = 1, .chunk = 512, .width = 1};
    struct sv_rng rng = {11};
    struct run_case *c = run_cases(CHATS * TURNS, VOCAB, 1, 1, 0);
    struct run_out *ref = calloc(CHATS * TURNS, sizeof *ref);
    struct sv_engine *e = run_open_as(pair, &plain, SV_ISA_AUTO, SV_TYPE_BF16, NULL);
    for (int32_t i = 0; i < CHATS * TURNS; i++) {
        const int32_t before = i - CHATS, n = before < 0 ? 0 : c[before].n_prompt,
                      said = before < 0 ? 0 : ref[before].n_tokens,
                      more = before < 0 ? 5 + (int32_t)sv_rng_below(&rng, 20) : 3;
        free(c[i].prompt);
        c[i].n_prompt = n + said + more;
        c[i].prompt = malloc((size_t)c[i].n_prompt * sizeof *c[i].prompt);
        if (n)
            memcpy(c[i].prompt, c[before].prompt, (size_t)n * sizeof *c[i].prompt);
        if (n)
            memcpy(c[i].prompt + n, ref[before].tokens, (size_t)said * sizeof *c[i].prompt);
        for (int32_t j = 0; j < more; j++)
            c[i].prompt[n + said + j] = 3 + (int32_t)sv_rng_below(&rng, 200);
        c[i].max_tokens = 25 + (int32_t)sv_rng_below(&rng, 30);
        struct run_out *out = run_all(e, c + i, 1);
        ref[i] = *out;
        free(out);
        sv_flush_cache(e);
    }
    sv_engine_close(e);
    *cases = c;
    *answers = ref;
}

/* Each turn goes on from the end of the answer before it: tokens and accept lengths are those of an
 * engine that keeps nothing. */
static void answers_on(const char *name)
{
    static const struct run_arrangement arrangements[] = {
        {-1, CHATS, 16, 1, 512, 1},
        {-1, CHATS, 16, 2, 40, 1},
        {SV_FAKE_RIGHT, CHATS, 16, 1, 512, 16},
        {SV_FAKE_PREFIX, CHATS, 16, 1, 512, 16},
        {SV_FAKE_PREFIX, CHATS, 1, 1, 512, 8},
        {4, CHATS, 16, 1, 512, 16},
        {4, CHATS, 64, 2, 100, 16},
        {4, CHATS, 16, 2, 512, 5},
    };
    const struct run_pair pair = toy_pair_of(name);
    struct run_case *c;
    struct run_out *ref;
    int32_t n_answers = 0;
    make_chats(&pair, &c, &ref);
    const struct run_truth truth = {c, ref};
    for (size_t k = 0; k < sizeof arrangements / sizeof arrangements[0]; k++) {
        const struct run_arrangement *a = &arrangements[k];
        struct sv_engine *e[2];
        for (int keeps = 0; keeps < 2; keeps++)
            e[keeps] = run_open_as(&pair, a, SV_ISA_AUTO, SV_TYPE_BF16, &truth);
        for (int32_t t = 0; t < TURNS; t++) {
            const struct run_case *now = c + t * CHATS;
            struct run_out *out[2];
            for (int keeps = 0; keeps < 2; keeps++)
                out[keeps] = run_all(e[keeps], now, CHATS);
            sv_flush_cache(e[0]);
            run_same(ref + t * CHATS, out[1], CHATS, name);
            if (a->drafter != SV_FAKE_PREFIX) /* how far it is right is drawn at each call */
                run_same_steps(out[0], out[1], CHATS, name);
            for (int32_t i = 0; i < CHATS && t; i++) {
                const int32_t known =
                    known_states(now + i - CHATS, ref + (t - 1) * CHATS + i, a->page);
                if (out[1][i].n_cached < known)
                    fail_msg("arrangement %zu, turn %d of chat %d: %d tokens found, not %d", k, t,
                             i, out[1][i].n_cached, known);
                n_answers += out[1][i].n_cached > now[i - CHATS].n_prompt;
            }
            run_out_free(out[0], CHATS), run_out_free(out[1], CHATS);
        }
        sv_engine_close(e[0]), sv_engine_close(e[1]);
    }
    print_message("%s: %d turns went on from inside of an answer\n", name, n_answers);
    assert_true(n_answers > 40);
    run_out_free(ref, CHATS * TURNS);
    run_cases_free(c, CHATS * TURNS);
    assert_int_equal(sv_alloc_live(), 0);
}

static void answers(void **state)
{
    (void)state;
    answers_on("qwen3_5_bf16");
    answers_on("qwen3_next_bf16");
}

static void latents(void **state)
{
    (void)state;
    const struct run_pair pair = toy_pair_of("kimi_int4");
    struct sv_engine_options o = {
        .target_dir = pair.target, .draft_dir = pair.draft, .dtype = SV_TYPE_BF16};
    turns(&o, false, 12);
    o.dtype = SV_TYPE_F32;
    turns(&o, true, 8);
}

/* A prompt is found by requests of the same salt alone, also where the one before computed all of
 * its own, as log probabilities of a prompt ask for, and in a seat that another had. */
static void salts(void **state)
{
    static const uint64_t salt[][2] = {{0, 0}, {1, 0}, {1, 2}, {0, 2}};
    enum { SALTS = sizeof salt / sizeof salt[0] };
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                        .draft_dir =
                                            run_dir("tests/golden/tiny/pair_draft_full_b16"),
                                        .dtype = SV_TYPE_F32,
                                        .context = CONTEXT,
                                        .max_sequences = 2,
                                        .page_size = 4};
    (void)state;
    for (int own = 0; own < 2; own++) {
        struct sv_engine *e = run_open(&o, NULL);
        struct run_case *c = run_cases(1, VOCAB, 1, 12, 0);
        free(c->prompt);
        c->n_prompt = 41;
        c->prompt = malloc((size_t)c->n_prompt * sizeof *c->prompt);
        for (int32_t i = 0; i < c->n_prompt; i++)
            c->prompt[i] = 3 + i * 7 % 200;
        c->max_tokens = 12;
        struct run_out *ref = NULL;
        for (int round = 0; round < 2; round++)
            for (int k = 0; k < SALTS; k++) {
                memcpy(c->req.cache_salt, salt[k], sizeof salt[k]);
                c->req.prompt_logprobs = own && !round;
                struct run_out *out = run_all(e, c, 1);
                assert_int_equal(out->n_cached, round ? 40 : 0);
                ref = ref ? ref : out;
                assert_int_equal(out->n_tokens, ref->n_tokens);
                assert_memory_equal(out->tokens, ref->tokens,
                                    (size_t)ref->n_tokens * sizeof *ref->tokens);
                if (out != ref)
                    run_out_free(out, 1);
            }
        run_out_free(ref, 1);
        run_cases_free(c, 1);
        sv_engine_close(e);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* The shipped pair: the second identical request finds its prompt and has the accept lengths of the
 * first. */
static void demo_pair_twice(void **state)
{
    (void)state;
    /* Pages below eight take the portable attention, which differs in low bits from what a GPU
     * takes else. */
    const int32_t pages[] = {sv_env("SALVO_TEST_DEVICE") ? 8 : 1, 16, 64};
    const char *prompt =
        "This is a conversation about numbers, in which every answer is explained. First the "
        "known quantities are listed, then they are put together step by step, and at "
        "the end the result stands alone.\nQuestion: Tom has 12 apples and buys 7 more. He gives "
        "5 to Ann. How many apples "
        "does Tom have now, and how many more than Ann?\nAnswer:";
    const struct run_case c = {.max_tokens = 24, .req = {.top_p = 1, .prompt = prompt}};
    struct run_out *first = NULL;
    for (int i = 0; i < 3; i++) {
        struct sv_engine *e =
            run_open(&(struct sv_engine_options){.target_dir = run_dir("models/demo/target"),
                                                 .draft_dir = run_dir("models/demo/draft"),
                                                 .context = 256,
                                                 .page_size = pages[i]},
                     NULL);
        struct run_out *a = run_all(e, &c, 1), *b = run_all(e, &c, 1);
        int32_t *ids = NULL, n_ids = 0;
        char err[128];
        assert_int_equal(sv_encode_text(e, prompt, strlen(prompt), &ids, &n_ids, err, sizeof err),
                         0);
        sv_free_ids(ids);
        assert_true(n_ids > 64 || pages[i] < 64);
        assert_int_equal(a->n_cached, 0);
        assert_int_equal(b->n_cached, (n_ids - 1) / pages[i] * pages[i]);
        run_same_steps(a, b, 1, "the second time");
        assert_string_equal(a->text, b->text);
        if (first)
            run_same_steps(first, a, 1, "another page size");
        run_out_free(b, 1);
        if (first)
            run_out_free(a, 1);
        else
            first = a;
        sv_engine_close(e);
    }
    run_out_free(first, 1);
}

/* Pages hold what was said and no more: not the drafts behind an end. */
static void only_what_was_said_is_kept(void **state)
{
    (void)state;
    enum { LONG = 24, AT = 5 };
    const struct run_pair pair = {toy_target(&toy_bf16), toy_draft(&toy_bf16)};
    const struct run_arrangement plain = {
        .drafter = -1, .batch = 1, .page = 1, .threads = 1, .chunk = 512, .width = 1};
    struct run_arrangement right = plain;
    struct run_case *c = run_cases(1, RUN_VOCAB, 20, LONG, 9);
    struct sv_engine_stats st;
    struct sv_engine *e = run_open_as(&pair, &plain, SV_ISA_AUTO, SV_TYPE_F32, NULL);
    c->max_tokens = LONG;
    struct run_out *ref = run_all(e, c, 1), *out;
    const struct run_truth truth = {c, ref};
    sv_engine_close(e);

    right.drafter = SV_FAKE_RIGHT;
    right.width = RUN_BLOCK;
    c->req.stop_ids = &ref->tokens[AT];
    c->req.n_stop_ids = 1;
    e = run_open_as(&pair, &right, SV_ISA_AUTO, SV_TYPE_F32, &truth);
    out = run_all(e, c, 1);
    assert_true(out->n_tokens > 1 && out->n_tokens <= AT + 1); /* inside the first block */
    sv_get_engine_stats(e, &st);
    assert_int_equal(st.n_pages_cached, c->n_prompt + out->n_tokens);
    run_out_free(out, 1);
    sv_engine_close(e);
    run_out_free(ref, 1);
    run_cases_free(c, 1);
}

/* Preempted, shared or found again: every reader reads what is stored. */
static void fp8_caches(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    trained("tests/golden/tiny/pair_draft_full_b16", true, 18);
    run_kv_dtype(SV_KV_FP8, SV_KV_AUTO);
    turns(&(struct sv_engine_options){.target_dir = toy_target(&toy_bf16),
                                      .draft_dir = toy_draft(&toy_bf16),
                                      .dtype = SV_TYPE_BF16},
          false, 18);
    const struct run_pair latent = toy_pair_of("kimi_int4");
    turns(&(struct sv_engine_options){.target_dir = latent.target,
                                      .draft_dir = latent.draft,
                                      .dtype = SV_TYPE_BF16},
          true, 10);
}

SV_TEST_MAIN(cmocka_unit_test(fp8_caches), cmocka_unit_test(only_what_was_said_is_kept),
             cmocka_unit_test(plain), cmocka_unit_test(greedy), cmocka_unit_test(sampled),
             cmocka_unit_test(sliding_draft), cmocka_unit_test(bf16), cmocka_unit_test(states),
             cmocka_unit_test(branches), cmocka_unit_test(answers), cmocka_unit_test(latents),
             cmocka_unit_test(salts), cmocka_unit_test(demo_pair_twice))
