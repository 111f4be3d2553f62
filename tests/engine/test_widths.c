/*
 * test_widths.c - any verify widths give the same text: chosen at random every step, by the policy,
 * by request.
 *
 * timeout: 240
 *
 * The reference is plain decoding, one sequence at a time. The random policy also mixes full and
 * short drafting blocks. Then what the policy counts, and that a width a request asked for is kept
 * to.
 */
#include "testing.h"

#include "engine/late.h"
#include "engine/run.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

#define N run_few(60)
enum { MAX_PROMPT = 40, MAX_TOKENS = 32, VOCAB = 300, BLOCK = 16 };

/* The trained golden pair: its drafts are often right. */
static struct sv_engine_options trained(void)
{
    return (struct sv_engine_options){.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                      .draft_dir = run_dir("tests/golden/tiny/pair_draft_full_b16"),
                                      .dtype = SV_TYPE_F32};
}

static struct sv_engine_options random_pair(void)
{
    return (struct sv_engine_options){.target_dir = toy_target(&toy_bf16),
                                      .draft_dir = toy_draft(&toy_bf16)};
}

static void sample(struct run_case *c, int n)
{
    for (int i = 0; i < n; i++) {
        c[i].req.temperature = i % 3 ? 0.9 : 0;
        c[i].req.top_p = i % 5 < 2 ? 0.9 : 1;
        c[i].req.seed = (uint64_t)i * 1000003;
    }
}

static void same_under(struct sv_engine_options o, bool sampled, bool randomly)
{
    static const int32_t batches[] = {1, 3, 16};
    struct run_case *c = run_cases(N, VOCAB, MAX_PROMPT, MAX_TOKENS, 42);
    if (sampled)
        sample(c, N);
    struct sv_engine_options plain = o;
    plain.draft_dir = NULL;
    uint64_t seen = 0; /* widths, in all arrangements */
    struct sv_engine *e = run_open(&plain, NULL);
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        struct sv_rng rng = {i + 1};
        struct sv_engine_stats st;
        char what[64];
        o.max_sequences = batches[i];
        o.auto_width = true;
        o.prefill_chunk = 32;
        e = run_open_tuned(&o, &(struct sv_engine_tuning){.run_ahead = i > 0, .pad = i > 1}, NULL);
        assert_non_null(e->policy);
        const bool ahead = e->depth > 0; /* always where the device has graphs */
        assert_true(ahead || i == 0);
        if (randomly)
            e->policy->random = &rng;
        struct run_out *out = run_all(e, c, N);
        snprintf(what, sizeof what, "%s widths, batch %d", randomly ? "random" : "chosen",
                 batches[i]);
        run_same(ref, out, N, what);
        sv_get_engine_stats(e, &st);
        int64_t n_segs = 0, n_verify = 0, n_kinds = 0;
        for (int w = 0; w < 65; w++) {
            n_segs += st.width_chosen[w];
            n_verify += w > 1 ? st.width_chosen[w] : 0;
            n_kinds += st.width_chosen[w] > 0;
            seen |= (uint64_t)(st.width_chosen[w] > 0) << (w & 63);
            assert_true(w && w <= BLOCK ? true : !st.width_chosen[w]);
        }
        int64_t n_steps = 0;
        for (int k = 0; k < N; k++)
            n_steps += out[k].n_steps;
        assert_int_equal(n_segs, n_steps);
        assert_int_equal(n_verify, st.n_verify_steps);
        /* of choices; what a step run ahead brings for a request that ended is dropped */
        int64_t n_reasons = 0;
        for (int w = 0; w < SV_WIDTH_REASONS; w++)
            n_reasons += st.width_reason[w];
        assert_true(randomly || (ahead ? n_reasons >= n_segs : n_reasons == n_segs));
        if (randomly)
            assert_true(n_kinds >= BLOCK - 3); /* a block seldom escapes a cut at random whole */
        /* Rows are cut between drafting and verifying, here at random: where steps run ahead, in
         * half of them, and the others ask for drafts that nobody verifies. */
        assert_true(e->policy->prunes && e->policy->ahead == ahead);
        assert_true(!randomly || e->policy->n_pruned > (ahead ? 4 : 16) * N);
        assert_true(!randomly || !ahead || e->policy->n_pruned_steps > 3);
        run_out_free(out, N);
        sv_engine_close(e);
    }
    assert_true(!randomly || __builtin_popcountll(seen) >= BLOCK - 1);
    run_out_free(ref, N);
    run_cases_free(c, N);
}

static void random_greedy(void **state)
{
    (void)state;
    same_under(trained(), false, true);
    same_under(random_pair(), false, true);
}

static void random_sampled(void **state)
{
    (void)state;
    same_under(trained(), true, true);
}

static void chosen(void **state)
{
    (void)state;
    same_under(trained(), false, false);
    same_under(trained(), true, false);
    same_under(random_pair(), false, false);
}

/* Experts, sinks and windows, and a block of 10. */
static void chosen_gptoss(void **state)
{
    (void)state;
    const struct run_pair pair = run_gptoss();
    const struct sv_engine_options o = {.target_dir = pair.target, .draft_dir = pair.draft};
    same_under(o, false, false);
    same_under(o, true, false);
}

/* Widths decide which rows share an expert. */
static void any_experts(void **state)
{
    (void)state;
    const struct sv_engine_options o = {.target_dir = toy_target(&toy_moe),
                                        .draft_dir = toy_draft(&toy_moe)};
    same_under(o, false, true);
    same_under(o, true, true);
    same_under(o, false, false);
}

static void request_keeps_its_width(void **state)
{
    (void)state;
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(12, VOCAB, MAX_PROMPT, MAX_TOKENS, 5);
    struct sv_engine_stats st;
    for (int i = 0; i < 12; i++)
        c[i].req.width = i % 2 ? 5 : 1;
    o.max_sequences = 4;
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *out = run_all(e, c, 12);
    sv_get_engine_stats(e, &st);
    for (int w = 6; w < 65; w++)
        assert_int_equal(st.width_chosen[w], 0);
    assert_true(st.width_chosen[5] > 0 && st.width_chosen[1] > 0);
    run_out_free(out, 12);
    sv_engine_close(e);
    run_cases_free(c, 12);
}

/* Steps with a row that is not greedy have prices of their own: the policy is told. */
static void sampled_steps_are_told(void **state)
{
    (void)state;
    static const int32_t prompt[] = {5, 6, 7};
    struct sv_engine_options o = trained();
    o.max_sequences = 2;
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    for (int sampled = 0; sampled < 2; sampled++) {
        /* The first is greedy and goes on beside the other one. */
        const struct sv_request r = {.prompt_ids = prompt,
                                     .n_prompt_ids = 3,
                                     .max_tokens = 150,
                                     .ignore_eos = true,
                                     .top_p = 1,
                                     .temperature = sampled};
        struct sv_err err;
        char msg[256];
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
        for (int i = 0; i < 5; i++)
            assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
        assert_int_equal(e->policy->load.sampled, sampled);
    }
    sv_engine_close(e);
}

/* How long answers usually are is found out: what is worth computing again depends on it. */
static void usual_answers(void **state)
{
    (void)state;
    enum { SHORT = 8 };
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(60, VOCAB, MAX_PROMPT, MAX_TOKENS, 3);
    for (int i = 0; i < 60; i++)
        c[i].max_tokens = SHORT;
    o.max_sequences = 20;
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    double before = e->sched.usual_answer;
    run_out_free(run_all(e, c, 60), 60);
    assert_true(before > 4 * SHORT && e->sched.usual_answer > SHORT);
    assert_true(e->sched.usual_answer < SHORT + (before - SHORT) / 16);
    sv_engine_close(e);
    run_cases_free(c, 60);
}

/* On devices with graphs, and only there, taps are never kept. */
static void skip_unless_deferred(struct sv_engine *e, struct run_case *c, int32_t n)
{
    if (e->deferred.cap_rows > 0)
        return;
    assert_true(e->pads);
    sv_engine_close(e);
    run_cases_free(c, n);
    skip();
}

/* Taps of plain steps deferred make the same context K/V: every accept length of every request is
 * the same as when each step's taps become context K/V at once. */
static void deferred_taps(void **state)
{
    (void)state;
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(N, VOCAB, MAX_PROMPT, MAX_TOKENS, 9);
    struct run_out *out[2];
    o.auto_width = true;
    o.width = 3; /* a third of all steps is plain, some of them in a row */
    o.draft_dir = run_dir("tests/golden/tiny/pair_draft_full_b16");
    for (int deferred = 0; deferred < 2; deferred++) {
        struct sv_rng rng = {3};
        struct sv_engine *e = run_open(&o, NULL);
        e->policy->random = &rng;
        skip_unless_deferred(e, c, N);
        if (!deferred)
            e->deferred.cap_rows = 0;
        out[deferred] = run_all(e, c, N);
        sv_engine_close(e);
    }
    run_same(out[0], out[1], N, "deferred taps");
    int64_t n_kept = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(out[0][i].n_steps, out[1][i].n_steps);
        for (int32_t k = 0; k < out[0][i].n_steps; k++) {
            assert_int_equal(out[0][i].accept[k], out[1][i].accept[k]);
            n_kept += out[0][i].accept[k] > 1;
        }
    }
    assert_true(n_kept > N * 5 / 6); /* and there was something to compare */
    run_out_free(out[0], N);
    run_out_free(out[1], N);
    run_cases_free(c, N);
}

/* Sets what the policy thinks of drafts: always or never kept. */
static void believe(struct sv_policy *p, float kept)
{
    sv_policy_forget(p);
    for (int32_t j = 1; j < p->block; j++) {
        p->tried[j] = 1000;
        p->kept[j] = 1000 * kept;
    }
    p->trial.n_unprofitable = p->trial.n_unprofitable_requests = kept > 0 ? 0 : 1000;
    p->trial.n_requests = 1; /* not the one in sixteen that is tried all the same */
}

static struct run_out *run_one(struct sv_engine *e, struct run_case *c, int32_t *prompt,
                               int32_t n_prompt, int32_t max_tokens)
{
    *c = (struct run_case){.prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    c->req.ignore_eos = true;
    c->req.top_p = 1;
    return run_all(e, c, 1);
}

/* A request that drafts no more leaves no context K/V behind. What goes on from its pages does not
 * draft either, and says the same; what goes on from pages before it was disabled does. */
static void give_up(const struct sv_engine_tuning *tuning)
{
    struct sv_engine_options o = trained();
    struct run_case c;
    int32_t prompt[200] = {5, 6, 7};
    o.max_sequences = 2;
    o.auto_width = true;
    struct sv_engine *e = run_open_tuned(&o, tuning, NULL);
    for (int i = 0; i < 40; i++)
        prompt[i] = 3 + i * 7 % (VOCAB - 3);
    run_set_costs(e->policy);
    believe(e->policy, 0);
    struct run_out *first = run_one(e, &c, prompt, 40, 120);
    assert_int_equal(first->n_steps, 119);
    assert_int_equal(e->policy->n_disabled, 1);
    assert_int_equal(e->policy->n_reason[SV_REASON_DISABLED], 119);
    memcpy(prompt + 40, first->tokens, 100 * sizeof *prompt);
    struct run_out *next = run_one(e, &c, prompt, 140, 20);
    assert_true(next->n_cached >= 128);
    assert_memory_equal(next->tokens, first->tokens + 100, 20 * sizeof *prompt);
    assert_int_equal(e->accept.n_drafted, 0);
    /* Where drafting pays, the next turn computes again what lacks the draft's K/V, and drafts. */
    for (int32_t i = 0; i < e->policy->cost.plain.n; i++)
        e->policy->cost.plain.us[i] *= 100;
    believe(e->policy, 1);
    assert_true(sv_policy_would_draft(e->policy, 1));
    struct run_out *whole = run_one(e, &c, prompt, 140, 20);
    assert_true(whole->n_cached <= 48); /* nothing at all where the prompt was deferred too */
    assert_memory_equal(whole->tokens, first->tokens + 100, 20 * sizeof *prompt);
    assert_true(e->accept.n_drafted > 0);
    int64_t n_drafted = e->accept.n_drafted;
    whole = (run_out_free(whole, 1),
             run_one(e, &c, prompt, 140, 20)); /* and leaves pages that have it */
    assert_true(whole->n_cached >= 128 && e->accept.n_drafted > n_drafted);
    run_out_free(whole, 1);
    for (int32_t i = 0; i < e->policy->cost.plain.n; i++)
        e->policy->cost.plain.us[i] /= 100;
    n_drafted = e->accept.n_drafted;
    struct sv_rng rng = {2}; /* whether drafting pays is a matter of this machine */
    e->policy->random = &rng;
    struct run_out *again = run_one(e, &c, prompt, 40, 120);
    assert_memory_equal(again->tokens, first->tokens, 120 * sizeof *prompt);
    assert_true(again->n_cached >= 32);
    assert_true(e->accept.n_drafted > n_drafted);
    run_out_free(first, 1);
    run_out_free(next, 1);
    run_out_free(again, 1);
    sv_engine_close(e);
}

static void disabled(void **state)
{
    (void)state;
    give_up(&(struct sv_engine_tuning){.run_ahead = false});
}

/* The step after the prompt's is planned while the prompt's rows are still on their way. */
static void disabled_ahead(void **state)
{
    (void)state;
    give_up(&(struct sv_engine_tuning){.pad = true, .run_ahead = true});
}

/* ----------------------------------------------------- what is deferred, dropped and made good */

/* At any number of sequences drafting loses, and has for long. */
static void close_door(struct sv_policy *p)
{
    enum { LONG = 64 };
    for (int32_t i = 0; i < SV_OCTAVES; i++)
        p->n_unprofitable[i] = LONG;
    run_set_costs(p);
    for (int32_t i = 0; i < p->cost.wide.n; i++)
        p->cost.wide.us[i] *= 1000;
}

static void ignore(void *user, const struct sv_event *ev)
{
    (void)user;
    (void)ev;
}

/* Where drafting is unprofitable and there is no room left, taps go without having been
 * made use of, and the step takes none; the text is the same. */
static void dropped_under_load(void **state)
{
    (void)state;
    enum { SEQS = 4, ROOM = 48 };
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(SEQS, VOCAB, MAX_PROMPT, MAX_TOKENS, 5);
    o.max_sequences = SEQS;
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    skip_unless_deferred(e, c, SEQS);
    e->sched.policy = NULL;
    struct run_out *ref = run_all(e, c, SEQS);
    e->sched.policy = e->policy;
    sv_cache_flush(&e->cache);
    e->deferred.cap_rows = ROOM;
    close_door(e->policy);
    believe(e->policy, 1);
    int64_t n_drafted = e->accept.n_drafted;
    struct run_out *out = run_all(e, c, SEQS);
    assert_true(e->policy->n_dropped > 0 && e->deferred.n_rows <= ROOM);
    assert_int_equal(e->accept.n_drafted, n_drafted);
    assert_int_equal(e->policy->n_other + e->policy->n_probes, 0);
    run_same(ref, out, SEQS, "dropped");
    run_out_free(ref, SEQS);
    run_out_free(out, SEQS);
    sv_engine_close(e);
    run_cases_free(c, SEQS);
}

/* Nobody drafts from here on, by the table of run_set_costs. */
static void sit_idle(struct sv_policy *p)
{
    run_set_costs(p);
    believe(p, 0.02f);
    p->trial.n_steps = 1 << 20; /* nothing is tried */
    p->trial.probe_us = p->trial.other_us = -1e9;
}

/* Where drafting has been unprofitable for long, only one request in eight still holds its
 * taps, for trials. */
static void dropped_when_unprofitable(void **state)
{
    (void)state;
    enum { SEQS = 16, SAMPLES = SEQS / 8 };
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(SEQS, VOCAB, MAX_PROMPT, MAX_TOKENS, 5);
    o.max_sequences = SEQS;
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_policy *p = e->policy;
    skip_unless_deferred(e, c, SEQS);
    e->sched.policy = NULL;
    struct run_out *ref = run_all(e, c, SEQS);
    e->sched.policy = p;
    for (int unprofitable = 0; unprofitable < 2; unprofitable++) {
        sv_cache_flush(&e->cache);
        sit_idle(p);
        for (int i = 0; i < SV_OCTAVES; i++)
            p->n_unprofitable[i] = unprofitable ? 1000 : 0;
        struct run_out *out = run_all(e, c, SEQS);
        run_same(ref, out, SEQS, "unprofitable");
        assert_int_equal(p->n_dropped, unprofitable ? SEQS - SAMPLES : 0);
        run_out_free(out, SEQS);
    }
    run_out_free(ref, SEQS);
    sv_engine_close(e);
    run_cases_free(c, SEQS);
}

enum { TURN = 40, ANSWER = 150 };

/* Tokens and accept lengths of one sequence from where drafting is fixed on. */
struct rest {
    int32_t tokens[ANSWER + TURN], from, n_tokens;
    uint16_t accept[ANSWER];
    int32_t n_steps;
};

static void to_the_end(struct sv_engine *e, struct sv_seq *q, struct rest *r)
{
    char msg[256];
    int32_t n_steps = q->n_steps;
    r->from = q->n_tokens;
    e->sched.policy = NULL; /* whole blocks from here on */
    q->width = BLOCK;
    while (q->n_tokens < q->cap_tokens - 1 - q->width && sv_step_engine(e, msg, sizeof msg) > 0) {
        r->n_tokens = q->n_tokens;
        r->n_steps = q->n_steps - n_steps;
    }
    memcpy(r->tokens, q->tokens, (size_t)r->n_tokens * sizeof *r->tokens);
    memcpy(r->accept, q->accept_lengths + n_steps, (size_t)r->n_steps * sizeof *r->accept);
}

static struct sv_seq *begin_answer(struct sv_engine *e, int32_t width, int32_t n_tokens)
{
    static const int32_t prompt[TURN] = {5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9};
    struct sv_request r = {.prompt_ids = prompt,
                           .n_prompt_ids = TURN,
                           .max_tokens = ANSWER,
                           .ignore_eos = true,
                           .top_p = 1,
                           .on_event = ignore};
    struct sv_err err;
    char msg[256];
    assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
    e->sched.head->width = width;
    while (sv_step_engine(e, msg, sizeof msg) > 0 && e->sched.slot[0]->n_tokens < n_tokens)
        ;
    assert_int_equal(e->sched.slot[0]->n_tokens, n_tokens);
    return e->sched.slot[0];
}

/* Two sequences hold their taps beside one that drafts no more: what they draft later is what they
 * would have drafted. */
static void deferred_beside_disabled(void **state)
{
    (void)state;
    enum { SEQS = 3, PLAIN = 20, DRAFTING = 5 };
    struct sv_engine_options o = trained();
    uint16_t accept[2][SEQS][DRAFTING];
    int32_t prompt[SEQS][TURN], n_kept = 0;
    char msg[256];
    o.max_sequences = SEQS;
    o.auto_width = true;
    for (int deferred = 0; deferred < 2; deferred++) {
        struct sv_engine *e = run_open(&o, NULL);
        struct sv_seq *q[SEQS];
        struct sv_err err;
        if (!e->deferred.cap_rows) { /* graphs: taps are never kept */
            sv_engine_close(e);
            skip();
        }
        e->deferred.cap_rows = deferred ? e->deferred.cap_rows : 0;
        sit_idle(e->policy);
        for (int i = 0; i < SEQS; i++) {
            for (int j = 0; j < TURN; j++)
                prompt[i][j] = 5 + i + j % (6 + i);
            struct sv_request r = {.prompt_ids = prompt[i],
                                   .n_prompt_ids = TURN,
                                   .max_tokens = ANSWER,
                                   .ignore_eos = true,
                                   .top_p = 1,
                                   .on_event = ignore};
            assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
        }
        assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
        for (int i = 0; i < SEQS; i++)
            q[i] = e->sched.slot[i];
        q[0]->record.disabled = true;
        for (int k = 0; k < PLAIN; k++)
            assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
        assert_int_equal(e->deferred.n_rows, deferred ? SEQS * TURN + 2 * PLAIN : 0);
        e->sched.policy = NULL; /* whole blocks from here on */
        for (int k = 0; k < DRAFTING; k++)
            assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
        for (int i = 1; i < SEQS; i++)
            memcpy(accept[deferred][i], q[i]->accept_lengths + PLAIN, sizeof accept[deferred][i]);
        sv_engine_close(e);
    }
    for (int i = 1; i < SEQS; i++)
        for (int k = 0; k < DRAFTING; k++) {
            assert_int_equal(accept[0][i][k], accept[1][i][k]);
            n_kept += accept[0][i][k] - 1;
        }
    assert_true(n_kept > 10);
}

/* What was dropped under load is computed again once drafting pays, when that was missed for long
 * enough; what it then proposes is what it would have proposed if nothing had been dropped. */
static void make_good(const struct sv_engine_tuning *tuning)
{
    struct sv_engine_options o = trained();
    struct rest rest[2] = {{.from = 0}, {.from = 0}};
    char msg[256];
    o.max_sequences = 2;
    o.auto_width = true;
    for (int whole = 0; whole < 2; whole++) {
        struct sv_engine *e = run_open_tuned(&o, tuning, NULL);
        struct sv_policy *p = e->policy;
        close_door(p);
        believe(p, 1);
        if (whole) /* one row a step, and everything made at once */
            e->sched.policy = NULL;
        struct sv_seq *q =
            begin_answer(e, whole ? 1 : BLOCK, whole ? rest[0].from - e->depth : TURN + 30);
        if (!whole) /* the state of a sequence whose taps were dropped */
            sv_sched_invalidate_draft(&e->cache, q, 8);
        run_set_costs(p);
        for (int32_t i = 0; i < p->cost.plain.n; i++)
            p->cost.plain.us[i] *= 2;
        believe(p, 1);
        int32_t n_missed = 0;
        while (!whole && (!p->n_restored || q->state != SV_SEQ_DECODE)) {
            n_missed += q->record.draft_kv_missing;
            assert_true(sv_step_engine(e, msg, sizeof msg) > 0 && n_missed < 100);
        }
        assert_true(whole || n_missed > 0);
        assert_int_equal(sv_engine_settle(e, &(struct sv_err){0}), 0);
        to_the_end(e, q, &rest[whole]);
        assert_int_equal(e->stats.n_prompt_tokens, TURN); /* computed again is not prompted again */
        sv_engine_close(e);
    }
    assert_true(rest[0].n_steps > 3);
    assert_int_equal(rest[0].from, rest[1].from);
    assert_int_equal(rest[0].n_steps, rest[1].n_steps);
    assert_int_equal(rest[0].n_tokens, rest[1].n_tokens);
    assert_memory_equal(rest[0].tokens, rest[1].tokens, (size_t)rest[0].n_tokens * sizeof(int32_t));
    assert_memory_equal(rest[0].accept, rest[1].accept, (size_t)rest[0].n_steps * sizeof(uint16_t));
}

static void made_good(void **state)
{
    (void)state;
    make_good(&(struct sv_engine_tuning){.run_ahead = false});
}

/* The step before is still unread when it is decided. */
static void made_good_ahead(void **state)
{
    (void)state;
    make_good(&(struct sv_engine_tuning){.pad = true, .run_ahead = true});
}

/* What a step took is learnt as that of the rows that were verified, not of those that were
 * drafted. */
static void cuts_are_told(void **state)
{
    (void)state;
    struct sv_engine_options o = trained();
    struct sv_rng rng = {7};
    struct sv_err err = {0};
    char msg[256];
    int32_t prompt[20], n_cut = 0;
    o.auto_width = true;
    o.max_sequences = 3;
    struct sv_engine *e = run_open(&o, NULL);
    assert_true(e->policy->prunes);
    e->policy->random = &rng;
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 20; i++)
            prompt[i] = 3 + (i * 7 + k * 31) % 280;
        const struct sv_request r = {.top_p = 1,
                                     .ignore_eos = true,
                                     .prompt_ids = prompt,
                                     .n_prompt_ids = 20,
                                     .max_tokens = 60};
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
    }
    while (sv_step_engine(e, msg, sizeof msg) > 0) {
        const struct sv_plan *p = &e->plan; /* the one that was read last */
        int32_t rows = 0;
        for (int32_t i = 0; i < p->n_segs; i++)
            rows += p->seg[i].kind == SV_SEG_VERIFY ? p->seg[i].n_rows : 0;
        if (e->depth || !p->prunes)
            continue;
        assert_int_equal(p->load.n_rows, rows);
        n_cut += p->load.n_draft_rows > 0;
    }
    assert_true(e->depth || n_cut > 5);
    assert_true(e->policy->n_pruned > 0);
    sv_engine_close(e);
}

/* As on a device with graphs: counts padded, a step planned before the last one is read. */
static void padded_and_ahead(void **state)
{
    (void)state;
    const struct sv_engine_tuning tuning = {.pad = true, .run_ahead = true};
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(N, VOCAB, MAX_PROMPT, MAX_TOKENS, 21);
    struct sv_engine *e = run_open(&o, NULL);
    e->sched.policy = NULL;
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    for (int randomly = 0; randomly < 2; randomly++) {
        struct sv_rng rng = {17};
        struct sv_err err = {0};
        o.auto_width = true;
        o.max_sequences = 9;
        if (sv_engine_open_tuned(&e, &o, &tuning, NULL, &err))
            fail_msg("%s", err.msg);
        const struct sv_cost *cost = &e->policy->cost;
        assert_non_null(cost->padded);
        /* How much of the table is filled is a matter of time; one sequence always is. */
        assert_true(cost->plain.n > 0 && cost->plain.x[0] == 1);
        assert_true(cost->wide.n > 0 && cost->draft_rows.n > 0 && cost->draft_out.n > 0);
        assert_int_equal(e->deferred.cap_rows, 0);
        if (randomly)
            e->policy->random = &rng;
        struct run_out *out = run_all(e, c, N);
        run_same(ref, out, N, randomly ? "padded, random widths" : "padded, chosen widths");
        run_out_free(out, N);
        sv_engine_close(e);
    }
    run_out_free(ref, N);
    run_cases_free(c, N);
}

/* Results that arrive only when they are waited for, and uploads that happen as late: a step in two
 * parts waits for the drafts and for nothing else. */
static void late_results(void **state)
{
    (void)state;
    const struct sv_engine_tuning tuning = {.pad = true, .run_ahead = true};
    struct sv_engine_options o = trained();
    struct run_case *c = run_cases(N, VOCAB, MAX_PROMPT, MAX_TOKENS, 77);
    sample(c, N);
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    if (sv_dev_backend(e->dev)->has_graphs) { /* really late, in all other tests */
        sv_engine_close(e);
        run_cases_free(c, N);
        skip();
    }
    e->sched.policy = NULL;
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    o.max_sequences = 9;
    o.prefill_chunk = 32;
    e = run_open_tuned(&o, &tuning, NULL);
    struct sv_rng rng = {5};
    e->policy->random = &rng;
    struct late *l = late_begin(e);
    struct run_out *out = run_all(e, c, N);
    run_same(ref, out, N, "late results");
    assert_int_equal(late_end(l), e->policy->n_pruned_steps);
    assert_true(e->policy->n_pruned_steps > 10);
    run_out_free(out, N);
    sv_engine_close(e);
    run_out_free(ref, N);
    run_cases_free(c, N);
}

/* Too little room for anything but one short sequence: the table is made of what fits. */
static void small_context(void **state)
{
    (void)state;
    struct sv_engine_options o = trained();
    o.context = 34;
    o.auto_width = true;
    o.max_sequences = 3;
    struct run_case *c = run_cases(6, VOCAB, 12, 8, 5);
    struct sv_engine *e = run_open(&o, NULL);
    assert_true(e->policy->cost.plain.n > 0 && e->policy->cost.wide.n > 0);
    assert_true(e->policy->cost.draft_rows.n > 0);
    struct run_out *out = run_all(e, c, 6);
    run_out_free(out, 6);
    sv_engine_close(e);
    run_cases_free(c, 6);
}

SV_TEST_MAIN(cmocka_unit_test(random_greedy), cmocka_unit_test(random_sampled),
             cmocka_unit_test(chosen), cmocka_unit_test(chosen_gptoss),
             cmocka_unit_test(any_experts), cmocka_unit_test(request_keeps_its_width),
             cmocka_unit_test(sampled_steps_are_told), cmocka_unit_test(usual_answers),
             cmocka_unit_test(deferred_taps), cmocka_unit_test(deferred_beside_disabled),
             cmocka_unit_test(dropped_when_unprofitable), cmocka_unit_test(disabled),
             cmocka_unit_test(dropped_under_load), cmocka_unit_test(made_good),
             cmocka_unit_test(made_good_ahead), cmocka_unit_test(disabled_ahead),
             cmocka_unit_test(padded_and_ahead), cmocka_unit_test(late_results),
             cmocka_unit_test(cuts_are_told), cmocka_unit_test(small_context))
