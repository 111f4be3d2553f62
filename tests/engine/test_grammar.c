/*
 * test_grammar.c - answers under a grammar: legal, and the same token for token in every
 * arrangement, drafted or not; what a mask leaves is drawn as the model has it.
 *
 * timeout: 240
 *
 * The reference is one sequence at a time, no drafter. tests/engine/legal.c says what is legal,
 * independently of the grammars. tests/grammar holds masks against the grammars themselves.
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

/* The toy pair, whose weights are bf16, with the golden pair's tokenizer. */
static struct run_pair toy(void)
{
    struct run_pair pair = {toy_target(&toy_bf16), toy_draft(&toy_bf16)};
    struct sv_buf text;
    struct sv_err err = {0};
    char path[512];
    sv_buf_init(&text);
    assert_int_equal(sv_file_read(&text, run_dir("tests/golden/tiny/pair_target/tokenizer.json"),
                                  (size_t)1 << 20, &err),
                     SV_OK);
    snprintf(path, sizeof path, "%s/tokenizer.json", pair.target);
    assert_int_equal(sv_file_write(path, text.data, text.len, &err), SV_OK);
    sv_buf_fini(&text);
    return pair;
}

/* Requests with and without grammars, of which several share one. */
struct asked {
    struct run_case *c;
    enum legal *what;
    int32_t n;
    struct sv_grammar *g[LEGALS];
};

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
    struct sv_engine *e = run_open_as(pair, &plain, "auto", dtype, NULL);
    struct run_out *ref = run_all(e, a.c, a.n);
    sv_engine_close(e);
    check_legal(&a, ref);
    struct run_truth t = {a.c, ref};
    int64_t n_refused = 0;
    for (size_t i = 0; i < sizeof arrangements / sizeof arrangements[0]; i++) {
        const struct run_arrangement *r = &arrangements[i];
        char what[128];
        e = run_open_as(pair, r, "auto", dtype, &t);
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
    assert_true(n_refused > 100);
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

SV_TEST_MAIN(cmocka_unit_test(greedy_f32), cmocka_unit_test(sampled_f32),
             cmocka_unit_test(greedy_bf16), cmocka_unit_test(sampled_bf16))
