/*
 * test_prefix.c - the prefix cache through the engine: hits change neither a token nor an accept
 * length, and are those that are expected.
 *
 * timeout: 240
 * release: all
 *
 * The reference has no prefix cache and runs one sequence at a time. Prompts form groups with a
 * common beginning, come twice, and come a third time with their answer and a few tokens more, as a
 * chat does. For each family.
 */
#include "testing.h"

#include "engine/families.h"
#include "engine/pictures.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = RUN_VOCAB, MAX_TOKENS = 40, CONTEXT = 192, GROUPS = 6, PLENTY = 8000 };

/* Case i begins with as much of its group's 70 tokens as chance has it. */
static struct run_case *alike_cases(const struct family *f, int32_t n)
{
    struct run_case *c = run_cases(n, VOCAB, 30, MAX_TOKENS, 5);
    struct run_case *head = run_cases(GROUPS, VOCAB, 1, 1, 6);
    struct sv_rng rng = {7};
    for (int32_t i = 0; i < n; i++) {
        int32_t shared = (int32_t)sv_rng_below(&rng, 71);
        int32_t *p = malloc((size_t)(shared + c[i].n_prompt) * sizeof *p);
        struct sv_rng words = {(uint64_t)head[i % GROUPS].prompt[0]};
        for (int32_t j = 0; j < shared; j++)
            p[j] = 3 + (int32_t)sv_rng_below(&words, VOCAB - 3);
        memcpy(p + shared, c[i].prompt, (size_t)c[i].n_prompt * sizeof *p);
        free(c[i].prompt);
        c[i].prompt = p;
        c[i].n_prompt += shared;
        if (i % 3) {
            c[i].req.temperature = 0.8;
            c[i].req.seed = (uint64_t)i;
        }
    }
    run_cases_free(head, GROUPS);
    if (f->images)
        pictures_add(c, n, 8);
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
        for (int32_t j = c[i].n_prompt; j < d[i].n_prompt; j++) /* no more images */
            d[i].prompt[j] -= c[i].req.images && d[i].prompt[j] == PICTURE_TOKEN;
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

/* Of out: the rows of a prompt, images included. before: the turn that came before, or NULL. With
 * recurrent states, prompts end in a snapshot and answers do not in each of these settings. */
static void check_found(const struct run_out *out, int32_t n, int32_t page,
                        const struct run_out *before, bool states)
{
    for (int32_t i = 0; i < n; i++) {
        /* All whole pages but the last token's; of a further turn, those that turns share. */
        int32_t known = !before  ? out[i].n_prompt - 1
                        : states ? before[i].n_prompt - 1
                                 : out[i].n_prompt - 4;
        if (out[i].n_cached < known / page * page)
            fail_msg("prompt %d of %d tokens: %d found", i, out[i].n_prompt, out[i].n_cached);
        assert_true(out[i].n_cached < out[i].n_prompt && out[i].n_cached % page == 0);
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

static int64_t n_prompt_rows(const struct run_out *out, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += out[i].n_prompt;
    return sum;
}

/* What is asked for in each setting, with the answers: all cases, all once more, and their next
 * turns; the first case in the end. */
struct script {
    struct run_case *c;
    struct run_out *ref;
    int32_t n;
};

static struct script script_of(const struct family *f, const struct sv_engine_options *o, int32_t n)
{
    struct run_case *c = alike_cases(f, n);
    struct sv_engine *e = run_open(o, NULL);
    struct run_out *ref = run_all(e, c, n);
    struct run_case *next = next_turn(c, ref, n);
    struct run_out *ref2 = run_all(e, next, n);
    struct script s = {calloc((size_t)(3 * n + 1), sizeof *c),
                       calloc((size_t)(3 * n + 1), sizeof *ref), n};
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(ref[i].n_cached + ref2[i].n_cached, 0);
    sv_engine_close(e);
    for (int32_t i = 0; i < 3 * n + 1; i++) {
        const bool again = i >= 2 * n && i < 3 * n;
        s.c[i] = again ? next[i % n] : c[i % n];
        s.ref[i] = again ? ref2[i % n] : ref[i % n];
    }
    free(c), free(next), free(ref), free(ref2);
    return s;
}

/* Cases of the first round and of the third are all there are. */
static void script_free(struct script *s)
{
    for (int32_t i = 0; i < s->n; i++)
        s->c[s->n + i].prompt = NULL, s->ref[s->n + i] = (struct run_out){.tokens = NULL};
    s->c[3 * s->n].prompt = NULL, s->ref[3 * s->n] = (struct run_out){.tokens = NULL};
    run_cases_free(s->c, 3 * s->n + 1);
    run_out_free(s->ref, 3 * s->n + 1);
}

static void play(const struct script *s, struct sv_engine_options o, const struct setting *t,
                 int32_t more, bool fake)
{
    const int32_t n = s->n;
    const struct run_truth truth = {s->c, s->ref};
    const struct sv_engine_tuning tuning = {.cache_pages = (t->positions + more) / t->page,
                                            .run_ahead = t->batch > 4,
                                            .pad = t->batch > 3};
    void (*same)(const struct run_out *, const struct run_out *, int32_t, const char *) =
        fake ? run_same : run_same_steps; /* a fake takes other steps each time */
    char what[96];
    snprintf(what, sizeof what, "batch %d page %d positions %d%s", t->batch, t->page, t->positions,
             fake ? ", fake" : "");
    o.no_prefix_cache = false;
    o.max_sequences = t->batch;
    o.page_size = t->page;
    o.prefill_chunk = t->chunk;
    o.draft_dir = fake ? NULL : o.draft_dir;
    struct sv_engine *e =
        run_open_tuned(&o, &tuning, fake ? run_fake(SV_FAKE_PREFIX, &truth) : NULL);
    struct run_out *out[3];
    for (int32_t k = 0; k < 3; k++) {
        out[k] = run_all(e, s->c + k * n, n);
        same(s->ref + k * n, out[k], n, what);
    }
    const int32_t room = n_snapshots(&e->cache);
    const bool plenty = t->positions == PLENTY && room >= 2 * n; /* of prompt and answer */
    if (plenty)
        check_found(out[1], n, t->page, NULL, e->cache.has_state);
    if (plenty && room >= 3 * n)
        check_found(out[2], n, t->page, out[0], e->cache.has_state);
    struct sv_engine_stats st;
    sv_get_engine_stats(e, &st);
    print_message("%s: %lld of %lld prompt tokens found, %lld preemptions\n", what,
                  (long long)st.n_cache_hits, (long long)st.n_cache_queries,
                  (long long)st.n_preemptions);
    assert_true(st.n_cache_hits > 0 || !plenty);
    assert_int_equal(st.n_cache_queries,
                     n_prompt_rows(s->ref, 3 * n)); /* once each, whoever came back */
    assert_true(st.n_pages_used == 0 && st.n_pages_cached > 0);
    if (t->positions == PLENTY)
        assert_int_equal(st.n_prompt_tokens, st.n_cache_queries - st.n_cache_hits);
    sv_flush_cache(e);
    struct run_out *last = run_all(e, s->c + 3 * n, 1);
    assert_int_equal(last->n_cached, 0);
    same(s->ref, last, 1, what);
    run_out_free(last, 1);
    for (int k = 0; k < 3; k++)
        run_out_free(out[k], n);
    sv_engine_close(e);
}

/* In part: one setting with the draft, one with a fake. */
static void turns(const struct family *f, enum sv_data_type dtype, bool draft, int32_t n)
{
    const struct run_pair pair = family_pair(f);
    const int32_t more = family_more_rows(f);
    const struct sv_engine_options o = {.target_dir = pair.target,
                                        .draft_dir = draft ? pair.draft : NULL,
                                        .dtype = dtype,
                                        .context = CONTEXT + more,
                                        .n_threads = 2,
                                        .no_prefix_cache = true};
    enum { N_SETTINGS = sizeof settings / sizeof settings[0] };
    n = family_few(f, sv_test_brief() ? 8 : n);
    struct script s = script_of(f, &o, n);
    for (size_t k = 0; k < N_SETTINGS; k++) {
        if (run_left_out(k))
            continue;
        struct setting t = settings[k];
        t.page = family_page(f, t.page);
        if (k < N_SETTINGS / 2 || !sv_test_brief())
            play(&s, o, &t, more, false);
        if (k >= N_SETTINGS / 2)
            play(&s, o, &t, more, true);
    }
    script_free(&s);
    assert_int_equal(sv_alloc_live(), 0);
}

static void each(void **state)
{
    turns(*state, SV_TYPE_BF16, true, 14);
}

static void plain(void **state)
{
    (void)state;
    turns(family_named("qwen3"), SV_TYPE_F32, false, 18);
}
static void f32(void **state)
{
    (void)state;
    if (!sv_test_brief())
        turns(family_named("qwen3_5"), SV_TYPE_F32, true, 8);
    turns(family_named("kimi"), SV_TYPE_F32, true, 8);
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
        if (sv_test_brief() && k % 3 != 1)
            continue;
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
    assert_true(n_answers > (sv_test_brief() ? 15 : 40));
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

/* A prompt is found by requests of the same salt alone, also where the one before computed all of
 * its own, as log probabilities of a prompt need, and in a slot that another had. */
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
    turns(family_named("qwen3"), SV_TYPE_F32, true, 18);
    run_kv_dtype(SV_KV_FP8, SV_KV_AUTO);
    turns(family_named("llama"), SV_TYPE_BF16, true, 12);
    turns(family_named("kimi"), SV_TYPE_BF16, true, 10);
}

FAMILY_TEST_MAIN(each, cmocka_unit_test(fp8_caches), cmocka_unit_test(only_what_was_said_is_kept),
                 cmocka_unit_test(plain), cmocka_unit_test(f32), cmocka_unit_test(branches),
                 cmocka_unit_test(answers), cmocka_unit_test(salts),
                 cmocka_unit_test(demo_pair_twice))
