/*
 * test_expensive.c - grammars at their limits: states too large for masks, or for many at a time.
 * Drafts that lead there change nothing, and texts that lead there end where they do without
 * drafts.
 *
 * timeout: 240
 *
 * The reference is one sequence at a time, no drafter.
 */
#include "testing.h"

#include "engine/run.h"

#include <string.h>

enum { N = 40, MAX_PROMPT = 20, MAX_TOKENS = 36 };

/* Free text in which a sign begins something expensive. Behind "#" there is no mask: what "!" leads
 * to is too large for one step. Behind "~(" each state fits, but not all of a block's. */
static const char grammar[] = "root ::= ([ -\"] | [$-}] | \"#!\" none | \"~(\" few \")\")*\n"
                              "none ::= (\"a\"?){70000}\n"
                              "few ::= (\"a\"? \"b\"?){15000}\n";

/* Right for a while, then into the expensive parts: legal as far as can be determined. */
struct tempter {
    struct sv_drafter base; /* first member */
    const struct run_truth *truth;
    struct sv_rng rng;
    int32_t sign[2], open, letter[2];
    int64_t n_led; /* blocks that lead there */
};

static void tempter_close(struct sv_drafter *d)
{
    (void)d;
}

static bool tempt(struct sv_drafter *d, const struct sv_draft_hint *hint, int32_t n, int32_t *ids)
{
    struct tempter *t = (struct tempter *)(void *)d;
    const int32_t i = (int32_t)(hint->request - 1), at = hint->n_tokens - t->truth->c[i].n_prompt;
    const struct run_out *ref = &t->truth->ref[i];
    const int32_t right = (int32_t)sv_rng_below(&t->rng, (uint32_t)n + 4);
    const bool none = sv_rng_below(&t->rng, 2);
    t->n_led += right < n;
    for (int32_t j = 0; j < n; j++) {
        const int32_t past = j - right;
        if (past < 0)
            ids[j] = at + j < ref->n_tokens ? ref->tokens[at + j] : t->letter[0];
        else
            ids[j] = past == 0            ? t->sign[!none]
                     : past == 1 && !none ? t->open
                                          : t->letter[sv_rng_below(&t->rng, 2)];
    }
    return true;
}

static const struct sv_drafter_ops tempter_ops = {.close = tempter_close, .fill = tempt};

static int32_t id_of(struct sv_engine *e, const char *text)
{
    int32_t *ids, n;
    assert_int_equal(sv_encode_text(e, text, (size_t)strlen(text), &ids, &n, NULL, 0), 0);
    assert_int_equal(n, 1);
    const int32_t id = ids[0];
    sv_free_ids(ids);
    return id;
}

static struct sv_engine *open_engine(int32_t batch, int32_t width, bool ahead, struct tempter *t)
{
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                        .max_sequences = batch,
                                        .n_threads = 1,
                                        .width = width};
    const struct sv_engine_tuning tuning = {.run_ahead = ahead, .pad = ahead};
    return run_open_tuned(&o, &tuning, t ? &t->base : NULL);
}

/* Some would write the signs by themselves, at different places; one in four has no grammar. */
static struct run_case *ask(struct sv_grammar *g, const int32_t *ids, const float *bias)
{
    struct run_case *c = run_cases(N, RUN_VOCAB, MAX_PROMPT, MAX_TOKENS, 3);
    for (int32_t i = 0; i < N; i++) {
        struct sv_request *r = &c[i].req;
        r->grammar = i % 4 ? g : NULL;
        r->ignore_eos = true;
        r->temperature = i % 3 ? 0.8f : 0;
        r->top_p = 1;
        r->seed = (uint64_t)i * 77;
        r->bias_ids = ids;
        r->bias = bias + i % 2 * 5;
        r->n_bias = 5;
    }
    return c;
}

static void drafts_that_are_too_expensive(void **state)
{
    (void)state;
    static const int32_t widths[] = {1, 2, 4, 8, 16}, batches[] = {1, 5, 40};
    struct sv_engine *e = open_engine(1, 0, false, NULL);
    struct sv_grammar *g = NULL;
    struct sv_err err = {0};
    const int32_t ids[] = {id_of(e, "#"), id_of(e, "~"), id_of(e, "("), id_of(e, "a"),
                           id_of(e, "b")};
    const int32_t end = id_of(e, ")");
    const float bias[] = {-100, -100, 0, 0, 0, 8, 9, 4, 5, 5};
    assert_int_equal(sv_grammar_gbnf(&g, grammar, strlen(grammar), &err), SV_OK);
    struct run_case *c = ask(g, ids, bias);
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    int32_t n_failed = 0, n_within = 0;
    for (int32_t i = 0; i < N; i++) {
        n_failed += ref[i].finish == SV_FINISH_ERROR;
        for (int32_t j = 0, in = 0; j < ref[i].n_tokens; j++) {
            in = ref[i].tokens[j] == ids[1] || (in && ref[i].tokens[j] != end);
            n_within += in > 0;
        }
    }
    print_message("%d of %d answers give up, %d tokens within expensive states\n", n_failed, N,
                  n_within);
    assert_true(n_failed > 2 && n_failed < N - 4 && n_within > 40);
    const struct run_truth truth = {c, ref};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
            struct tempter t = {.base = {.ops = &tempter_ops,
                                         .name = "tempter",
                                         .block_size = RUN_BLOCK,
                                         .on_host = true},
                                .truth = &truth,
                                .rng = {w * 3 + b},
                                .sign = {ids[0], ids[1]},
                                .open = ids[2],
                                .letter = {ids[3], ids[4]}};
            char what[64];
            e = open_engine(batches[b], widths[w], b == 1, &t);
            struct run_out *out = run_all(e, c, N);
            snprintf(what, sizeof what, "width %d, batch %d", widths[w], batches[b]);
            run_same(ref, out, N, what);
            assert_true(widths[w] == 1 || (t.n_led > 20 && e->accept.n_accepted > 20));
            run_out_free(out, N);
            sv_engine_close(e);
        }
    run_out_free(ref, N);
    run_cases_free(c, N);
    sv_grammar_unref(g);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(drafts_that_are_too_expensive))
