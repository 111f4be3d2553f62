/*
 * test_token_logprobs.c - log probabilities of tokens that a request names, through the engine.
 *
 * timeout: 240
 *
 * One sequence alone and without a drafter is compared with the numbers of chosen and of most
 * probable tokens, which another op reports; every other arrangement must give the same bits, at
 * every place of the answer and the prompt. Concurrent requests name other tokens, or none.
 */
#include "testing.h"

#include "engine/run.h"

#include <string.h>

enum { N = 24, MAX_PROMPT = 40, MAX_TOKENS = 24 };

static const struct run_pair *pair(void)
{
    static struct run_pair p;
    p = (struct run_pair){run_dir("tests/golden/tiny/pair_target"),
                          run_dir("tests/golden/tiny/pair_draft_full_b16")};
    return &p;
}

static int32_t all_ids[SV_MAX_REQUESTED_IDS];

/* A third asks for nothing of the kind, one for as many as can be, some for a token twice. */
static struct run_case *cases(void)
{
    struct run_case *c = run_cases(N, RUN_VOCAB, MAX_PROMPT, MAX_TOKENS, 91);
    for (int32_t i = 0; i < SV_MAX_REQUESTED_IDS; i++)
        all_ids[i] = i * 37 % RUN_VOCAB;
    all_ids[5] = all_ids[2];
    for (int i = 0; i < N; i++) {
        struct sv_request *r = &c[i].req;
        r->temperature = i % 2 ? 0.9 : 0;
        r->seed = (uint64_t)i;
        r->logprobs = i % 4 != 3;
        r->prompt_logprobs = i % 4 >= 2;
        r->n_top_logprobs = i % 4 ? 20 : 0;
        r->repetition_penalty = i % 5 ? 1 : 1.4; /* the numbers are those before it */
        r->logprob_token_ids = all_ids;
        r->n_logprob_token_ids = i % 3 == 0 ? 0 : i == 7 ? SV_MAX_REQUESTED_IDS : 1 + i % 9;
    }
    return c;
}

/* Where a token that was named is one of those reported anyway, the numbers are the same bits. */
static int32_t check_row(const struct sv_request *r, const struct sv_logprob_row *row, int32_t id,
                         const float *requested)
{
    int32_t n = 0;
    for (int32_t k = 0; k < r->n_logprob_token_ids; k++) {
        assert_true(requested[k] <= 0 && requested[k] > -200);
        if (r->logprob_token_ids[k] == id) {
            assert_memory_equal(&requested[k], &row->logprob, sizeof row->logprob);
            n++;
        }
        for (int32_t t = 0; t < row->n_top; t++)
            if (r->logprob_token_ids[k] == row->top_id[t]) {
                assert_memory_equal(&requested[k], &row->top_logprob[t], sizeof row->logprob);
                n++;
            }
        if (row->n_top &&
            requested[k] > row->top_logprob[row->n_top - 1]) /* it must be among them */
            assert_true(n > 0);
    }
    return n;
}

static void same_as_reported(void **state)
{
    (void)state;
    const struct run_arrangement alone = {-1, 1, 16, 1, 512, 0};
    struct run_case *c = cases();
    struct sv_engine *e = run_open_as(pair(), &alone, SV_ISA_AUTO, SV_TYPE_F32, NULL);
    struct run_out *out = run_all(e, c, N);
    int32_t n = 0, n_prompt = 0;
    for (int i = 0; i < N; i++) {
        const size_t n_requested = (size_t)c[i].req.n_logprob_token_ids;
        for (int32_t j = 0; out[i].lp && j < out[i].n_tokens; j++)
            n += check_row(&c[i].req, &out[i].lp[j], out[i].tokens[j],
                           out[i].requested + (size_t)j * n_requested);
        for (int32_t j = 1; out[i].prompt_lp && j < c[i].n_prompt; j++)
            n_prompt += check_row(&c[i].req, &out[i].prompt_lp[j], c[i].prompt[j],
                                  out[i].prompt_requested + (size_t)j * n_requested);
    }
    assert_true(n > 50 && n_prompt > 50);
    run_out_free(out, N);
    sv_engine_close(e);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

static void same(const struct run_case *c, const struct run_out *a, const struct run_out *b,
                 const char *what)
{
    run_same(a, b, N, what);
    for (int i = 0; i < N; i++) {
        const size_t row = (size_t)c[i].req.n_logprob_token_ids * sizeof(float);
        if (a[i].requested)
            assert_memory_equal(a[i].requested, b[i].requested, (size_t)a[i].n_tokens * row);
        if (a[i].prompt_requested)
            assert_memory_equal(a[i].prompt_requested, b[i].prompt_requested,
                                (size_t)c[i].n_prompt * row);
    }
}

/* Batches, chunks, drafters that are right, wrong or real; with more threads than one counts are
 * padded and steps run ahead, as on a GPU. */
static void same_in_all_arrangements(void **state)
{
    (void)state;
    static const struct run_arrangement ways[] = {
        {-1, 1, 16, 1, 512, 0}, {-1, 9, 64, 3, 7, 0},  {0, 12, 16, 2, 33, 0}, {1, 5, 16, 2, 5, 0},
        {2, 17, 16, 3, 11, 0},  {4, 1, 16, 1, 512, 0}, {4, 8, 64, 2, 40, 0},  {4, 16, 16, 3, 64, 5},
    };
    struct run_case *c = cases();
    struct run_out *ref = NULL;
    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        const struct run_truth t = {c, ref};
        char what[80];
        snprintf(what, sizeof what, "drafter %d batch %d chunk %d", ways[k].drafter, ways[k].batch,
                 ways[k].chunk);
        struct sv_engine *e = run_open_as(pair(), &ways[k], SV_ISA_AUTO, SV_TYPE_F32, &t);
        struct run_out *out = run_all(e, c, N);
        sv_engine_close(e);
        if (!ref) {
            ref = out;
            continue;
        }
        same(c, ref, out, what);
        run_out_free(out, N);
    }
    run_out_free(ref, N);
    run_cases_free(c, N);
}

/* No step has room for it before a request needs it; other requests do not pay for it. */
static void refused(void **state)
{
    (void)state;
    const struct run_arrangement alone = {-1, 1, 16, 1, 512, 0};
    struct sv_engine *e = run_open_as(pair(), &alone, SV_ISA_AUTO, SV_TYPE_F32, NULL);
    const int32_t prompt[] = {5, 6}, far[] = {3, RUN_VOCAB};
    struct sv_request r = sv_default_request(e);
    char err[256];
    r.prompt_ids = prompt;
    r.n_prompt_ids = 2;
    r.logprob_token_ids = far;
    r.n_logprob_token_ids = 1;
    assert_true(sv_submit_request(e, &r, NULL, err, sizeof err) < 0);
    assert_string_equal(err, "logprob_token_ids need logprobs or prompt_logprobs");
    r.logprobs = true;
    r.n_logprob_token_ids = 2;
    assert_true(sv_submit_request(e, &r, NULL, err, sizeof err) < 0);
    assert_string_equal(err, "logprob_token_ids[1]: token 300 is outside [0, 300)");
    r.n_logprob_token_ids = SV_MAX_REQUESTED_IDS + 1;
    assert_true(sv_submit_request(e, &r, NULL, err, sizeof err) < 0);
    assert_string_equal(err, "n_logprob_token_ids must be in [0, 64], not 65");
    assert_null(e->logits.token.host_rows);
    sv_engine_close(e);
}

SV_TEST_MAIN(cmocka_unit_test(same_as_reported), cmocka_unit_test(same_in_all_arrangements),
             cmocka_unit_test(refused))
