/*
 * test_grammar.c - answers under a grammar: legal, and the same token for token in every
 * arrangement, drafted or not; allowed tokens are drawn from the model's distribution.
 *
 * timeout: 240
 * release: greedy_f32
 * release: greedy_bf16
 * release: sampled_f32
 * release: sampled_bf16
 *
 * The reference is one sequence at a time, no drafter. tests/engine/legal.c checks answers
 * independently of the grammars. tests/grammar compares masks with the grammars themselves.
 */
#include "testing.h"

#include "engine/late.h"
#include "engine/legal.h"
#include "engine/run.h"
#include "engine/toy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 60, MAX_PROMPT = 40, MAX_TOKENS = 40, CONTEXT = 96 };

/* The golden pair, trained, with its tokenizer. */
static struct run_pair golden(void)
{
    return (struct run_pair){run_dir("tests/golden/tiny/pair_target"),
                             run_dir("tests/golden/tiny/pair_draft_full_b16")};
}

/* The toy pair, whose weights are bf16. */
static struct run_pair toy(void)
{
    return (struct run_pair){toy_speaking_target(&toy_bf16), toy_draft(&toy_bf16)};
}

/* Requests with and without grammars, of which several share one. */
struct asked {
    struct run_case *c;
    enum legal *what;
    int32_t n;
    struct sv_grammar *g[LEGALS];
};

/* What else changes or forbids tokens, beside a grammar. */
static void also(struct sv_request *r, int32_t i)
{
    enum { SOME = 6, MANY = 96 };
    static const int32_t some[SOME] = {40, 77, 101, 120, 150, 200},
                         words[] = {40, -1, 77, 101, -1, 120, 150, 200, -1};
    static const float bias[SOME] = {4, -3, 6, -100, 2.5f, 5};
    static int32_t many[MANY];
    for (int32_t k = 0; k < MANY; k++)
        many[k] = 4 + 3 * k;
    r->repetition_penalty = i % 5 == 1 ? 1.3 : 0;
    r->frequency_penalty = i % 6 == 5 ? 0.4 : 0;
    if (i % 4 == 1) {
        r->bias_ids = some;
        r->bias = bias;
        r->n_bias = SOME;
    }
    if (i % 5 == 2) {
        r->bad_ids = words;
        r->n_bad_ids = sizeof words / sizeof words[0];
    }
    if (i % 6 == 3) {
        r->allowed_ids = many;
        r->n_allowed_ids = MANY;
    }
}

static struct asked ask(int32_t n, bool sampled)
{
    struct asked a = {.c = run_cases(n, RUN_VOCAB, MAX_PROMPT, MAX_TOKENS, 21), .n = n};
    a.what = calloc((size_t)n, sizeof *a.what);
    for (int k = 0; k < LEGALS; k++)
        a.g[k] = legal_grammar((enum legal)k);
    for (int32_t i = 0; i < n; i++) {
        struct sv_request *r = &a.c[i].req;
        a.what[i] = (enum legal)(i % LEGALS);
        r->grammar = a.g[a.what[i]];
        r->ignore_eos = a.what[i] == LEGAL_ANY || i % 3 == 0;
        r->min_tokens = i % 7 == 0 ? 6 : 0;
        r->presence_penalty = i % 8 == 3 ? 0.5 : 0;
        also(r, i);
        r->logprobs = i % 9 == 4;
        r->n_top_logprobs = r->logprobs ? 3 : 0;
        if (!sampled || i % 4 == 3)
            continue;
        r->temperature = 0.7 + i % 3 * 0.4;
        r->top_k = i % 3 == 0 ? 20 : 0;
        r->top_p = i % 5 < 2 ? 0.9 : 1;
        r->min_p = i % 7 == 0 ? 0.05 : 0;
        r->seed = (uint64_t)i * 1000003;
    }
    return a;
}

static void drop(struct asked *a)
{
    for (int k = 0; k < LEGALS; k++)
        sv_grammar_unref(a->g[k]);
    run_cases_free(a->c, a->n);
    free(a->what);
}

static void check_legal(const struct asked *a, const struct run_out *out)
{
    int32_t n_whole = 0;
    for (int32_t i = 0; i < a->n; i++) {
        if (a->what[i] == LEGAL_ANY)
            continue;
        const enum legal_part part = legal_check(a->what[i], out[i].text, out[i].n_text);
        const bool ended = out[i].finish == SV_FINISH_STOP;
        /* Cut off by max_tokens it may end inside a character, which is told as U+FFFD. */
        const bool torn = !ended && a->what[i] == LEGAL_CHOICE && part == LEGAL_NOT &&
                          strstr(out[i].text, "\xef\xbf\xbd");
        if (!torn && (ended ? part != LEGAL_WHOLE : part == LEGAL_NOT))
            fail_msg("answer %d (grammar %d, %s) is not legal: %s", i, (int)a->what[i],
                     sv_finish_name(out[i].finish), out[i].text);
        n_whole += ended;
    }
    assert_true(n_whole > a->n / 5);
}

static const struct run_arrangement plain = {-1, 1, 16, 1, 512, 0};

static void all_arrangements(const struct run_pair *pair, enum sv_data_type dtype, bool sampled)
{
    static const struct run_arrangement arrangements[] = {
        {-1, 32, 1, 2, 64, 0}, {-1, 5, 64, 3, 7, 0},  {0, 1, 16, 1, 512, 0}, {0, 17, 1, 2, 33, 0},
        {1, 3, 16, 2, 5, 0},   {2, 17, 16, 3, 11, 0}, {3, 1, 64, 1, 512, 0}, {3, 32, 16, 2, 64, 0},
        {4, 1, 16, 1, 512, 0}, {4, 1, 1, 2, 3, 0},    {4, 4, 64, 2, 40, 0},  {4, 32, 16, 3, 64, 5},
        {4, 2, 16, 2, 512, 2},
    };
    struct asked a = ask(run_few(N), sampled);
    struct sv_engine *e = run_open_as(pair, &plain, SV_ISA_AUTO, dtype, NULL);
    struct run_out *ref = run_all(e, a.c, a.n);
    sv_engine_close(e);
    check_legal(&a, ref);
    struct run_truth t = {a.c, ref};
    int64_t n_refused = 0;
    for (size_t i = 0; i < sizeof arrangements / sizeof arrangements[0]; i++) {
        const struct run_arrangement *r = &arrangements[i];
        if (run_left_out(i))
            continue;
        char what[128];
        e = run_open_as(pair, r, SV_ISA_AUTO, dtype, &t);
        struct run_out *out = run_all(e, a.c, a.n);
        snprintf(what, sizeof what, "drafter %d batch %d page %d threads %d chunk %d width %d",
                 r->drafter, r->batch, r->page, r->threads, r->chunk, r->width);
        run_same(ref, out, a.n, what);
        /* What a grammar forbids is not verified, so it counts as no draft. */
        if (r->drafter == SV_FAKE_RIGHT)
            assert_int_equal(e->accept.n_accepted, e->accept.n_drafted);
        if (r->drafter == SV_FAKE_WRONG)
            assert_int_equal(e->accept.n_accepted, 0);
        if (r->drafter == 4 && dtype == SV_TYPE_F32) /* trained */
            assert_true(e->accept.n_accepted > 0);
        n_refused += e->stats.n_refused;
        run_out_free(out, a.n);
        sv_engine_close(e);
    }
    assert_true(n_refused > (sv_test_brief() ? 0 : 100));
    run_out_free(ref, a.n);
    drop(&a);
    assert_int_equal(sv_alloc_live(), 0);
}

static void greedy_f32(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    all_arrangements(&pair, SV_TYPE_F32, false);
}
static void sampled_f32(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    all_arrangements(&pair, SV_TYPE_F32, true);
}
static void greedy_bf16(void **state)
{
    (void)state;
    const struct run_pair pair = toy();
    all_arrangements(&pair, SV_TYPE_BF16, false);
}
static void sampled_bf16(void **state)
{
    (void)state;
    const struct run_pair pair = toy();
    all_arrangements(&pair, SV_TYPE_BF16, true);
}

/* Little room: sequences lose their pages in prompts and answers, and find again what they had
 * published. */
static void lost_pages_and_prefixes(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    struct asked a = ask(run_few(N), true);
    struct sv_engine_options o = {
        .target_dir = pair.target, .draft_dir = pair.draft, .context = CONTEXT, .n_threads = 1};
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = run_all(e, a.c, a.n), *out;
    sv_engine_close(e);
    o.page_size = 1;
    o.max_sequences = 12;
    o.prefill_chunk = 24;
    for (int kind = 0; kind < 4; kind++) {
        const bool ahead = kind % 2, tight = kind < 2;
        const struct sv_engine_tuning t = {
            .cache_pages = tight ? CONTEXT + 2 * RUN_BLOCK : 0, .run_ahead = ahead, .pad = ahead};
        int32_t n_lost = 0, n_cached = 0;
        e = run_open_tuned(&o, &t, NULL);
        for (int again = 0; again < (tight ? 1 : 2); again++) {
            out = run_all(e, a.c, a.n);
            run_same_steps(ref, out, a.n, tight ? "lost pages" : "found again");
            for (int32_t i = 0; i < a.n; i++) {
                n_lost += out[i].n_preemptions;
                n_cached += out[i].n_cached > 0;
            }
            run_out_free(out, a.n);
        }
        print_message("%d times pages were lost, %d prompts found\n", n_lost, n_cached);
        assert_true(tight ? n_lost > 2 : n_cached > 2);
        sv_engine_close(e);
    }
    run_out_free(ref, a.n);
    drop(&a);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Any widths, rows cut by the policy too, on a device that tells its results late. Who has no
 * grammar runs a step ahead when it is alone. */
static void any_widths_late(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    struct asked a = ask(run_few(N), false);
    struct sv_engine_options o = {.target_dir = pair.target,
                                  .draft_dir = pair.draft,
                                  .device = "cpu",
                                  .max_sequences = 7,
                                  .prefill_chunk = 32,
                                  .n_threads = 1,
                                  .auto_width = true};
    const struct sv_engine_tuning tuning = {.run_ahead = true, .pad = true};
    const struct sv_engine_options alone = {
        .target_dir = pair.target, .device = "cpu", .max_sequences = 1, .n_threads = 1};
    struct sv_engine *e = run_open(&alone, NULL);
    struct run_out *ref = run_all(e, a.c, a.n);
    sv_engine_close(e);
    e = run_open_tuned(&o, &tuning, NULL);
    struct sv_rng rng = {5};
    e->policy->random = &rng;
    for (int with = 0; with < 2; with++) {
        struct late *l = late_begin(e);
        for (int32_t i = 0; i < a.n && !with; i++)
            a.c[i].req.width = i % 4 == 2 ? 1 + i % 16 : 0;
        struct run_out *out = run_all(e, a.c, a.n);
        run_same(ref, out, a.n, "late results");
        assert_true(late_end(l) > 20);
        run_out_free(out, a.n);
        e->sched.policy = with ? e->sched.policy : NULL;
    }
    assert_true(e->stats.n_refused > 100);
    sv_engine_close(e);
    run_out_free(ref, a.n);
    drop(&a);
}

/* What a grammar forbids is replaced by what the drafter thinks best of the rest: the text stays,
 * and takes fewer steps. */
static void repaired_drafts_are_worth_more(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    struct asked a = ask(run_few(N), false);
    struct run_out *ref = NULL;
    int64_t n_steps[3] = {0};
    for (int how = 0; how < 3; how++) { /* plain, cut, repaired */
        const struct run_arrangement r = {how ? 4 : -1, how + 1, 16, 1, 512, 0};
        struct sv_engine *e = run_open_as(&pair, &r, SV_ISA_AUTO, SV_TYPE_F32, NULL);
        e->repair.n_slots = how == 2 ? e->repair.n_slots : 0;
        struct run_out *out = run_all(e, a.c, a.n);
        for (int32_t i = 0; i < a.n; i++)
            n_steps[how] += a.what[i] == LEGAL_ANY ? 0 : out[i].n_steps;
        if (ref)
            run_same(ref, out, a.n, how == 2 ? "repaired" : "cut");
        assert_int_equal(e->stats.n_repaired > 100, how == 2);
        sv_engine_close(e);
        if (ref)
            run_out_free(out, a.n);
        else
            ref = out;
    }
    print_message("steps under grammars: %lld plain, %lld cut, %lld repaired\n",
                  (long long)n_steps[0], (long long)n_steps[1], (long long)n_steps[2]);
    assert_true(n_steps[1] < n_steps[0] && n_steps[2] * 10 < n_steps[1] * 9);
    run_out_free(ref, a.n);
    drop(&a);
    assert_int_equal(sv_alloc_live(), 0);
}

/* ---------------------------------------------------------------- what a mask leaves */

enum { ONES = 6, DRAWS = 2400 };
static const char ones[ONES][2] = {"a", "e", "s", " ", "I", "."};

/* One prompt, DRAWS seeds. */
static struct run_case *draws(void)
{
    static int32_t prompt[] = {40, 60, 80};
    struct run_case *c = calloc(DRAWS, sizeof *c);
    for (int32_t i = 0; i < DRAWS; i++)
        c[i] = (struct run_case){.prompt = prompt,
                                 .n_prompt = 3,
                                 .max_tokens = 1,
                                 .req = {.top_p = 1,
                                         .temperature = 1,
                                         .seed = (uint64_t)i * 7919,
                                         .logprobs = true,
                                         .ignore_eos = true}};
    return c;
}

/* A mask samples what a list of allowed tokens samples, seed for seed; reported probabilities are
 * the model's own. */
static void drawn_as_the_model_has_it(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    const struct run_arrangement many = {-1, 32, 16, 1, 512, 0};
    const char *texts[ONES];
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    struct run_case *c = draws();
    int32_t ids[ONES], seen[ONES] = {0};
    double share[ONES] = {0}, sum = 0, chi = 0;
    for (int k = 0; k < ONES; k++)
        texts[k] = ones[k];
    assert_int_equal(sv_grammar_choice(&g, texts, ONES, &err), SV_OK);
    struct sv_engine *e = run_open_as(&pair, &many, SV_ISA_AUTO, SV_TYPE_AUTO, NULL);
    for (int k = 0; k < ONES; k++) {
        int32_t *id, n;
        assert_int_equal(sv_encode_text(e, ones[k], 1, &id, &n, NULL, 0), 0);
        assert_int_equal(n, 1);
        ids[k] = id[0];
        sv_free_ids(id);
    }
    for (int32_t i = 0; i < DRAWS; i++) {
        c[i].req.allowed_ids = ids;
        c[i].req.n_allowed_ids = ONES;
    }
    struct run_out *listed = run_all(e, c, DRAWS);
    for (int32_t i = 0; i < DRAWS; i++) {
        c[i].req.n_allowed_ids = 0;
        c[i].req.grammar = g;
    }
    struct run_out *masked = run_all(e, c, DRAWS);
    run_same(listed, masked, DRAWS, "masks and lists");
    for (int32_t i = 0; i < DRAWS; i++)
        for (int k = 0; k < ONES; k++)
            if (masked[i].tokens[0] == ids[k]) {
                seen[k]++;
                share[k] = exp((double)masked[i].lp[0].logprob);
            }
    for (int k = 0; k < ONES; k++)
        sum += share[k];
    assert_true(sum > 0 && sum < 0.5); /* the model would rather say something else */
    for (int k = 0; k < ONES; k++) {
        const double want = DRAWS * share[k] / sum;
        chi += want > 0 ? (seen[k] - want) * (seen[k] - want) / want : 0;
    }
    print_message("%d draws, chi-square %.2f\n", DRAWS, chi);
    assert_true(chi < 20.5); /* p = 0.001 with 5 degrees of freedom */
    run_out_free(listed, DRAWS);
    run_out_free(masked, DRAWS);
    free(c);
    sv_grammar_unref(g);
    sv_engine_close(e);
}

/* ---------------------------------------------------------------- ends and errors */

/* One request by kind and text, drafted. */
static struct run_out answer(struct sv_engine *e, struct sv_request r)
{
    static int32_t prompt[] = {40, 60, 80, 44};
    struct run_case c = {.prompt = prompt, .n_prompt = 4, .max_tokens = 30, .req = r};
    struct run_out *out = run_all(e, &c, 1), one = *out;
    free(out);
    return one;
}

static void expect(struct run_out o, const char *text, enum sv_finish_reason finish, int32_t stop)
{
    struct run_out *kept = malloc(sizeof *kept);
    assert_string_equal(o.text, text);
    assert_int_equal(o.finish, finish);
    assert_int_equal(o.stop_id, stop);
    *kept = o;
    run_out_free(kept, 1);
}

/* Whatever else the request says, it ends where the grammar leaves nothing but the end. */
static void ends(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    const struct run_arrangement drafted = {4, 2, 16, 1, 512, 0};
    struct sv_engine *e = run_open_as(&pair, &drafted, SV_ISA_AUTO, SV_TYPE_AUTO, NULL);
    struct sv_request r = {
        .top_p = 1, .grammar_kind = SV_GRAMMAR_CHOICE, .grammar_text = "[\"the end\"]"};
    const int32_t end = e->model.cfg.eos_ids[0];
    static const char *const stops[] = {" e"};
    int32_t *id, n;
    expect(answer(e, r), "the end", SV_FINISH_STOP, end);
    r.ignore_eos = true;
    expect(answer(e, r), "the end", SV_FINISH_STOP, end);
    r.min_tokens = 20; /* the grammar wins */
    expect(answer(e, r), "the end", SV_FINISH_STOP, end);
    r.temperature = 5;
    expect(answer(e, r), "the end", SV_FINISH_STOP, end);
    r.min_tokens = 0;
    r.stop = stops;
    r.n_stop = 1;
    expect(answer(e, r), "the", SV_FINISH_STOP, -1);
    r.n_stop = 0;
    /* What is allowed besides, and what never comes, hold where they leave anything. */
    assert_int_equal(sv_encode_text(e, "x", 1, &id, &n, NULL, 0), 0);
    r.allowed_ids = id;
    r.n_allowed_ids = n;
    expect(answer(e, r), "the end", SV_FINISH_STOP, end);
    r.grammar_kind = SV_GRAMMAR_REGEX;
    r.grammar_text = "[a-z]{5}";
    expect(answer(e, r), "xxxxx", SV_FINISH_STOP, end);
    const int32_t bad[] = {id[0], id[0], -1};
    r.n_allowed_ids = 0;
    r.grammar_text = "(x|yz){4}";
    r.bias_ids = id;
    r.bias = (const float[]){100};
    r.n_bias = 1;
    r.temperature = 0;
    expect(answer(e, r), "xxxx", SV_FINISH_STOP, end);
    r.bad_ids = bad;
    r.n_bad_ids = 3;
    expect(answer(e, r), "xyzxyz", SV_FINISH_STOP, end);
    sv_free_ids(id);
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

static void refused(struct sv_engine *e, enum sv_grammar_kind kind, const char *text,
                    const char *says)
{
    static const int32_t prompt[] = {40};
    const struct sv_request r = {.top_p = 1,
                                 .prompt_ids = prompt,
                                 .n_prompt_ids = 1,
                                 .grammar_kind = kind,
                                 .grammar_text = text};
    char msg[512] = "";
    assert_true(sv_submit_request(e, &r, NULL, msg, sizeof msg) < 0);
    if (!strstr(msg, says))
        fail_msg("'%s' does not say '%s'", msg, says);
}

static void errors(void **state)
{
    (void)state;
    const struct run_pair pair = golden();
    struct sv_engine *e = run_open_as(&pair, &plain, SV_ISA_AUTO, SV_TYPE_AUTO, NULL);
    refused(e, SV_GRAMMAR_REGEX, NULL, "grammar_text: there is no text");
    refused(e, (enum sv_grammar_kind)99, "a", "grammar_text: 99 is no kind of grammar");
    refused(e, SV_GRAMMAR_REGEX, "a(b", "grammar_text: ");
    refused(e, SV_GRAMMAR_GBNF, "root ::= \"a\" other", "grammar_text: ");
    refused(e, SV_GRAMMAR_SCHEMA, "{\"type\": \"nothing\"}", "grammar_text: ");
    refused(e, SV_GRAMMAR_CHOICE, "[\"a\", 1]", "grammar_text: choice 1");
    refused(e, SV_GRAMMAR_CHOICE, "[]", "grammar_text: ");
    refused(e, SV_GRAMMAR_CHOICE, "[\"a\"", "grammar_text: JSON, byte");
    sv_engine_close(e);
    const struct run_pair bare = {toy_target(&toy_bf16), NULL};
    e = run_open_as(&bare, &plain, SV_ISA_AUTO, SV_TYPE_AUTO, NULL);
    refused(e, SV_GRAMMAR_REGEX, "a", "no tokenizer.json");
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Memory that runs out anywhere while a request with a grammar is taken costs that request alone.
 */
static void out_of_memory(void **state)
{
    (void)state;
    static const int32_t prompt[] = {40};
    const struct run_pair pair = golden();
    struct sv_engine *e = run_open_as(&pair, &plain, SV_ISA_AUTO, SV_TYPE_AUTO, NULL);
    struct sv_request r = {.top_p = 1,
                           .prompt_ids = prompt,
                           .n_prompt_ids = 1,
                           .grammar_kind = SV_GRAMMAR_REGEX,
                           .grammar_text = "(a|bc){2}"};
    int64_t nth = 0;
    int rc = -1;
    while (rc < 0) {
        char msg[256] = "";
        sv_fault_arm(++nth);
        rc = sv_submit_request(e, &r, NULL, msg, sizeof msg);
        sv_fault_arm(0);
        assert_true(rc >= 0 || msg[0]);
    }
    assert_true(nth > 20);
    r.prompt_ids = NULL;
    struct run_out o = answer(e, r);
    assert_true(o.n_text >= 2 && o.n_text <= 4);
    expect(o, o.text, SV_FINISH_STOP, e->model.cfg.eos_ids[0]);
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(greedy_f32), cmocka_unit_test(sampled_f32),
             cmocka_unit_test(greedy_bf16), cmocka_unit_test(sampled_bf16),
             cmocka_unit_test(lost_pages_and_prefixes), cmocka_unit_test(any_widths_late),
             cmocka_unit_test(repaired_drafts_are_worth_more),
             cmocka_unit_test(drawn_as_the_model_has_it), cmocka_unit_test(ends),
             cmocka_unit_test(errors), cmocka_unit_test(out_of_memory))
