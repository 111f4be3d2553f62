/*
 * test_drafter.c - all drafters have one interface: one that writes ids on the host, one that
 * writes them in a pass of its own, and none. Each describes itself, and a pass is given the
 * target's sampling.
 */
#include "testing.h"

#include "engine/run.h"

#include <string.h>

/* AHEAD: a step that is enqueued before the last one is read may draft this far past an answer's
 * end. */
enum { N = 12, SLOTS = 3, BLOCK = 8, AHEAD = 2 * BLOCK };

/* Right in every row, in a pass on the device, which is the host's own here. */
struct oracle {
    struct sv_drafter base; /* first member */
    const struct run_truth *truth;
    const struct sv_engine *e;
    int32_t n_passes, n_seeds;
};

static void oracle_close(struct sv_drafter *d)
{
    (void)d;
}

static void oracle_propose(struct sv_drafter *d, const struct sv_draft_pass *p)
{
    struct oracle *o = (struct oracle *)(void *)d;
    o->n_passes++;
    for (int32_t i = 0; i < p->n_out; i++) {
        const int32_t row = p->out_row[i], seg = row < 0 ? -1 : p->rows.row_seg[row];
        if (seg < 0 || p->out_index[i] < 0)
            continue; /* padding */
        const int32_t slot = p->rows.seg_slot[seg];
        const struct sv_seq *q = o->e->sched.slot[slot];
        const int32_t k = (int32_t)q->id - 1, n_prompt = o->truth->c[k].n_prompt;
        const int32_t at = p->slot_len[slot] + row - p->rows.seg_row0[seg] - n_prompt;
        const struct run_out *ref = &o->truth->ref[k];
        assert_true(at >= 0 && at < ref->n_tokens);
        p->target_ids[p->out_index[i]] = ref->tokens[at];
        assert_int_equal(p->slot_sampling[slot].seed, o->truth->c[k].req.seed);
        o->n_seeds += p->slot_sampling[slot].seed != 0;
    }
}

static const struct sv_drafter_ops oracle_ops = {.close = oracle_close, .propose = oracle_propose};

static void passes_on_both_sides(void **state)
{
    (void)state;
    const struct run_pair pair = {.target = run_dir("tests/golden/tiny/pair_target")};
    const struct run_arrangement plain = {-1, 1, 16, 1, 512, 0};
    const struct sv_engine_options opts = {
        .target_dir = pair.target, .max_sequences = SLOTS, .n_threads = 1, .device = "cpu"};
    struct run_case *c = run_cases(N, RUN_VOCAB, 20, 30, 5);
    for (int32_t i = 0; i < N; i++) {
        c[i].req.temperature = i % 2 ? 0.8f : 0;
        c[i].req.seed = (uint64_t)i * 31;
    }
    struct sv_engine *e = run_open_as(&pair, &plain, SV_ISA_AUTO, SV_TYPE_AUTO, NULL);
    assert_string_equal(e->drafter->name, "none");
    assert_int_equal(e->drafter->block_size, 1);
    struct run_out *ref = run_all(e, c, N), *out;
    for (int32_t i = 0; i < N; i++)
        c[i].max_tokens += AHEAD;
    struct run_out *longer = run_all(e, c, N);
    for (int32_t i = 0; i < N; i++)
        c[i].max_tokens -= AHEAD;
    const struct run_truth truth = {c, longer};
    sv_engine_close(e);
    for (int ahead = 0; ahead < 2; ahead++) {
        struct oracle o = {.base = {.ops = &oracle_ops, .name = "oracle", .block_size = BLOCK},
                           .truth = &truth};
        const struct sv_engine_tuning tuning = {.run_ahead = ahead, .pad = ahead};
        o.e = e = run_open_tuned(&opts, &tuning, &o.base);
        assert_int_equal(e->sched.block, BLOCK);
        assert_int_equal(e->depth, ahead);
        out = run_all(e, c, N);
        run_same(ref, out, N, "a pass on the device");
        assert_int_equal(e->accept.n_accepted, e->accept.n_drafted);
        assert_true(o.n_passes > 10 && o.n_seeds > 50);
        run_out_free(out, N);
        sv_engine_close(e);
    }
    struct run_arrangement right = {SV_FAKE_RIGHT, SLOTS, 16, 2, 512, 0};
    e = run_open_as(&pair, &right, SV_ISA_AUTO, SV_TYPE_AUTO, &truth);
    assert_true(e->drafter->on_host);
    assert_int_equal(e->depth, 0); /* it needs the last token */
    out = run_all(e, c, N);
    run_same(ref, out, N, "on the host");
    assert_int_equal(e->accept.n_accepted, e->accept.n_drafted);
    run_out_free(out, N);
    sv_engine_close(e);
    run_out_free(ref, N);
    run_out_free(longer, N);
    run_cases_free(c, N);
}

static void dflash_describes_itself(void **state)
{
    (void)state;
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                        .draft_dir =
                                            run_dir("tests/golden/tiny/pair_draft_full_b16"),
                                        .n_threads = 1,
                                        .device = "cpu"};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_engine_info info;
    sv_get_engine_info(e, &info);
    const struct sv_drafter *d = e->drafter;
    struct sv_draft_config c;
    struct sv_err err;
    assert_int_equal(sv_draft_config_load(&c, o.draft_dir, e->model.cfg.n_layers, &err), 0);
    assert_string_equal(d->name, "dflash");
    assert_false(d->on_host);
    assert_true(d->keeps_rows && d->n_taps > 0 && d->confidence != SV_CONFIDENCE_NONE);
    assert_int_equal(info.draft_params, sv_draft_config_n_params(&c));
    assert_int_equal(info.block_size, d->block_size);
    sv_engine_close(e);
}

SV_TEST_MAIN(cmocka_unit_test(passes_on_both_sides), cmocka_unit_test(dflash_describes_itself))
