/*
 * test_cross_tokens.c - the ops on ids and logits, on every device of this machine against the CPU:
 * block_ids, logit_pos, replace_drafts, verify, commit, history, draws, logit rules and log
 * probabilities, with padding rows and segments at the end.
 *
 * timeout: 120
 *
 * Integers and draws must be equal. A draw could differ where a border of the CPU's sums in double
 * and of the GPU's in integers lie further apart than the random number's distance from it: about
 * once in 10^9.
 */
#include "backend/cross.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the step's integers */

enum { SLOTS = 40, SEGS = 20, STRIDE = 18, ROOM = 300 };

struct step {
    struct rig_batch b;
    int32_t kind[SEGS + 4], logit0[SEGS + 5], accept[SEGS + 4];
    int32_t logit_row[1000], n_logits, pad_rows, pad_segs;
};

/* Verify blocks, prompt chunks with and without a last row, drafts; bases are left to block_ids. */
static void step_init(struct step *s, struct sv_rng *rng, int round, bool drafts)
{
    memset(s, 0, sizeof *s);
    rig_batch_init(&s->b);
    s->pad_rows = round % 3 * 5;
    s->pad_segs = round % 3 * 2;
    for (int32_t i = 0; i < SEGS + 4; i++) {
        const bool real = i < SEGS;
        int32_t n = real ? 1 + (int32_t)sv_rng_below(rng, 16) : 0, logits = n;
        s->kind[i] = sv_rng_below(rng, 3) ? SV_SEG_VERIFY : SV_SEG_PREFILL;
        if (drafts && real)
            s->kind[i] = SV_SEG_DRAFT;
        if (s->kind[i] == SV_SEG_PREFILL)
            logits = n ? (int32_t)sv_rng_below(rng, 2) : 0;
        s->accept[i] = round % 2 ? (int32_t)sv_rng_below(rng, 20) : 0;
        if (real)
            rig_batch_add(&s->b, (i * 7 + round) % SLOTS, -77, n);
        s->logit0[i + 1] = s->logit0[i] + logits;
        for (int32_t j = 0; j < logits; j++)
            s->logit_row[s->logit0[i] + j] =
                s->b.seg_row0[i] + (s->kind[i] == SV_SEG_PREFILL ? n - 1 : j);
    }
    s->n_logits = s->logit0[SEGS];
    for (int32_t i = 0; i < s->pad_rows; i++)
        s->logit_row[s->n_logits + i] = -1;
}

static struct cross_buf numbers(struct cross *c, size_t n, uint32_t below)
{
    int32_t *v = malloc(n * sizeof *v + 1);
    for (size_t i = 0; i < n; i++)
        v[i] = (int32_t)sv_rng_below(&c->rng, below);
    struct cross_buf b = cross_new(c, CROSS_I32, n, v, 0);
    free(v);
    return b;
}

static void step_case(struct cross *c, int round)
{
    struct step s;
    step_init(&s, &c->rng, round, round % 5 == 4);
    const size_t rows = (size_t)(s.b.rows.n_rows + s.pad_rows), segs = (size_t)(SEGS + s.pad_segs);
    const size_t logits = (size_t)(s.n_logits + s.pad_rows);
    struct cross_rows r = cross_rows(c, &s.b, s.pad_rows, s.pad_segs);
    struct cross_buf kind = cross_new(c, CROSS_I32, segs, s.kind, 0);
    struct cross_buf logit0 = cross_new(c, CROSS_I32, segs + 1, s.logit0, 0);
    struct cross_buf accept = cross_new(c, CROSS_I32, segs, s.accept, 0);
    struct cross_buf logit_row = cross_new(c, CROSS_I32, logits + 1, s.logit_row, 0);
    struct cross_buf len = numbers(c, SLOTS, ROOM - 20), anchor = numbers(c, SLOTS, 1000);
    struct cross_buf ids = numbers(c, rows, 2), chosen = numbers(c, logits + 1, 2);
    struct cross_buf slot = cross_new(c, CROSS_I32, logits + 1, NULL, 0);
    struct cross_buf pos = cross_new(c, CROSS_I32, logits + 1, NULL, 0);
    struct cross_buf commit = cross_new(c, CROSS_I32, segs, NULL, 0);
    struct cross_buf emit = cross_new(c, CROSS_I32, segs, NULL, 0);
    struct cross_buf out = cross_new(c, CROSS_I32, segs * STRIDE, NULL, 0);
    struct cross_buf history = numbers(c, SLOTS * ROOM, 1000);
    for (int side = 0; side < 2; side++) {
        struct sv_dev *dev = cross_dev(c, side);
        struct sv_p_block_ids p = {.rows = r.rows[side], .slot_len = cross_at(&len, side)};
        if (round % 4 != 3) { /* else positions alone */
            p.seg_kind = cross_at(&kind, side);
            p.slot_anchor = cross_at(&anchor, side);
            p.mask_id = 777;
            p.row_ids = cross_at(&ids, side);
        }
        sv_op_block_ids(dev, &p);
        sv_op_logit_pos(dev, &(struct sv_p_logit_pos){r.rows[side], (int32_t)logits,
                                                      cross_at(&logit_row, side),
                                                      cross_at(&slot, side), cross_at(&pos, side)});
        sv_op_replace_drafts(dev,
                             &(struct sv_p_replace_drafts){.rows = r.rows[side],
                                                           .seg_kind = cross_at(&kind, side),
                                                           .seg_logit0 = cross_at(&logit0, side),
                                                           .chosen = cross_at(&chosen, side),
                                                           .accept_len = cross_at(&accept, side),
                                                           .row_ids = cross_at(&ids, side)});
        sv_op_verify(dev, &(struct sv_p_verify){.rows = r.rows[side],
                                                .seg_kind = cross_at(&kind, side),
                                                .seg_logit0 = cross_at(&logit0, side),
                                                .row_ids = cross_at(&ids, side),
                                                .chosen = cross_at(&chosen, side),
                                                .n_commit = cross_at(&commit, side),
                                                .n_emit = cross_at(&emit, side),
                                                .out_tokens = cross_at(&out, side),
                                                .out_stride = STRIDE});
        sv_op_history(dev, &(struct sv_p_history){r.rows[side], cross_at(&ids, side),
                                                  cross_at(&commit, side), cross_at(&history, side),
                                                  ROOM});
        sv_op_commit(dev, &(struct sv_p_commit){(int32_t)segs, r.rows[side].seg_slot,
                                                cross_at(&commit, side), cross_at(&emit, side),
                                                cross_at(&out, side), STRIDE, cross_at(&len, side),
                                                cross_at(&anchor, side)});
    }
    cross_sync(c);
    cross_same(c, &r.buf[3], 0, segs, 0, "seg_base");
    cross_same(c, &r.buf[4], 0, rows, 0, "rows.row_pos");
    cross_same(c, &ids, 0, rows, 0, "row_ids");
    cross_same(c, &slot, 0, logits, 0, "row_slot");
    cross_same(c, &pos, 0, logits, 0, "row_pos");
    cross_same(c, &commit, 0, segs, 0, "n_commit");
    cross_same(c, &emit, 0, segs, 0, "n_emit");
    cross_same(c, &out, 0, segs * STRIDE, 0, "out_tokens");
    cross_same(c, &history, 0, history.n, 0, "history");
    cross_same(c, &len, 0, SLOTS, 0, "slot_len");
    cross_same(c, &anchor, 0, SLOTS, 0, "slot_anchor");
    /* What an accept length means, by its definition. */
    for (int32_t i = 0; round % 2 && i < SEGS; i++) {
        const int32_t n = s.b.seg_row0[i + 1] - s.b.seg_row0[i], len = s.accept[i];
        if (s.kind[i] == SV_SEG_VERIFY && len > 0)
            assert_int_equal(((int32_t *)commit.ref)[i], len < n ? len : n);
    }
    struct cross_buf *all[] = {&kind,   &logit0, &accept, &logit_row, &len,  &anchor, &ids,
                               &chosen, &slot,   &pos,    &commit,    &emit, &out,    &history};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cross_free(c, all[i]);
    cross_rows_free(c, &r);
}

static void steps_on(struct cross *c)
{
    for (int round = 0; round < (c->again ? 0 : c->quick ? 6 : 60); round++)
        step_case(c, round);
}

/* ---------------------------------------------------------------- draws */

static struct cross_buf samplings(struct cross *c, int n, const struct sv_sampling *sp)
{
    return cross_new(c, CROSS_I32, (size_t)n * sizeof *sp / 4, sp, 0);
}

/* 64 rows of one kind of logits (16 under a slow checker), every row with parameters of its own. */
static void sample_case(struct cross *c, int32_t vocab, int kind)
{
    enum { N = 64 };
    const int32_t n = c->quick ? 16 : N;
    static const float t[] = {1, 0.7f, 1.5f, 0, 0.01f, 100},
                       top_p[] = {1, 0.9f, 0.5f, 0.999f, 0, 1};
    static const int32_t top_k[] = {0, 20, 1, 0, 1000, 50};
    static const float min_p[] = {0, 0, 0.05f, 0, 0.5f};
    struct sv_sampling sp[N];
    int32_t slot[N], pos[N];
    const int64_t ld = vocab + 5;
    float *x = malloc((size_t)(N * ld) * sizeof *x);
    for (int i = 0; i < N; i++) {
        sp[i] = (struct sv_sampling){.temperature = t[i % 6],
                                     .top_k = top_k[i / 6 % 6],
                                     .top_p = top_p[(i + i / 6) % 6],
                                     .min_p = min_p[i % 5],
                                     .seed = sv_rng_next(&c->rng)};
        slot[i] = i % 13 == 12 ? -1 : (n - 1 - i % n);
        pos[i] = (int32_t)sv_rng_below(&c->rng, 1 << 20);
        for (int64_t j = 0; j < ld; j++) {
            float v = kind == 1 ? 0.01f * sv_rng_normal(&c->rng) : 3 * sv_rng_normal(&c->rng);
            if (kind == 2) /* many ties */
                v = rintf(v);
            if (kind == 3 && sv_rng_below(&c->rng, 2))
                v = -INFINITY; /* masked */
            x[i * ld + j] = v;
        }
    }
    struct cross_buf logits = cross_new(c, CROSS_F32, (size_t)(N * ld), x, 0);
    struct cross_buf slots = cross_new(c, CROSS_I32, N, slot, 0),
                     at = cross_new(c, CROSS_I32, N, pos, 0);
    struct cross_buf out = cross_new(c, CROSS_I32, N, NULL, 0), par = samplings(c, N, sp);
    for (int side = 0; side < 2; side++)
        sv_op_sample(cross_dev(c, side),
                     &(struct sv_p_sample){n, vocab, cross_at(&logits, side), ld,
                                           cross_at(&slots, side), cross_at(&at, side),
                                           cross_at(&par, side), cross_at(&out, side)});
    cross_sync(c);
    char what[64];
    snprintf(what, sizeof what, "draws, vocabulary %d, kind %d", (int)vocab, kind);
    cross_same(c, &out, 0, (size_t)n, 0, what);
    free(x);
    cross_free(c, &logits), cross_free(c, &slots), cross_free(c, &at), cross_free(c, &out);
    cross_free(c, &par);
}

static void sample_on(struct cross *c)
{
    static const int32_t vocab[] = {1, 7, 300, 4096, 5000, 32000, 151936};
    for (int i = 0; i < (c->again ? 0 : c->quick ? 5 : 7); i++)
        for (int kind = 0; kind < 4; kind++)
            for (int round = 0; round < (c->quick || i == 6 ? 1 : 6); round++)
                if (kind != 3 || vocab[i] > 100) /* not all masked */
                    sample_case(c, vocab[i], kind);
}

/* A row that is no distribution is reported and gives a token all the same. */
static void sample_errors_on(struct cross *c)
{
    const float bad[3][4] = {{NAN, NAN, NAN, NAN}, {1, NAN, 2, 3}, {1, INFINITY, 2, INFINITY}};
    for (int i = 0; i < 3; i++)
        for (int greedy = 0; greedy < 2; greedy++) {
            const struct sv_sampling sp = {.temperature = greedy ? 0 : 1, .top_p = 1};
            const int32_t zero = 0;
            struct cross_buf x = cross_new(c, CROSS_F32, 4, bad[i], 0), par = samplings(c, 1, &sp);
            struct cross_buf z = cross_new(c, CROSS_I32, 1, &zero, 0);
            struct cross_buf out = cross_new(c, CROSS_I32, 1, NULL, 0);
            for (int side = 0; side < 2; side++) {
                sv_op_sample(cross_dev(c, side),
                             &(struct sv_p_sample){1, 4, cross_at(&x, side), 4, cross_at(&z, side),
                                                   cross_at(&z, side), cross_at(&par, side),
                                                   cross_at(&out, side)});
                rig_sync(cross_dev(c, side), greedy && i ? SV_OK : SV_EDEVICE);
            }
            cross_same(c, &out, 0, 1, 0, "token of a bad row");
            cross_free(c, &x), cross_free(c, &par), cross_free(c, &z), cross_free(c, &out);
        }
}

/* ---------------------------------------------------------------- rules and log probabilities */

static void rules_case(struct cross *c, int round)
{
    enum { VOCAB = 500, N_SLOTS = 6, HISTORY = 80 };
    struct rig_batch b;
    struct sv_logit_rules rules[N_SLOTS];
    int32_t *bias_ids = calloc(N_SLOTS * SV_MAX_BIAS, 4), *ban = calloc(N_SLOTS * SV_MAX_BAN, 4);
    int32_t *listed = calloc(N_SLOTS * SV_MAX_LISTED, 4);
    float *bias = calloc(N_SLOTS * SV_MAX_BIAS, 4);
    rig_batch_init(&b);
    for (int32_t s = 0; s < N_SLOTS; s++) {
        rig_batch_add(&b, N_SLOTS - 1 - s, (int32_t)sv_rng_below(&c->rng, 60), 1 + s * 3);
        rules[s] = (struct sv_logit_rules){.presence = s % 2 ? 0.5f : 0,
                                           .frequency = s % 3 ? -1.25f : 0.3f,
                                           .repetition = (float[]){1, 1.3f, 0.6f}[s % 3],
                                           .n_prompt = (int32_t)sv_rng_below(&c->rng, 40),
                                           .repeat_last = s % 2 * 9,
                                           .n_bad_runs = s % 4 * 5,
                                           .n_allowed = s % 5 == 3 ? 100 : 0,
                                           .n_bias = s * 150,
                                           .n_ban = s * 2,
                                           .ban_before = (int32_t)sv_rng_below(&c->rng, HISTORY),
                                           .n_top = (int32_t[]){-1, 0, 5, 20}[(s + round) % 4]};
        rig_lists(&c->rng, &rules[s], listed + s * SV_MAX_LISTED, 30, VOCAB);
        if (s == 0)
            rules[s].frequency = rules[s].presence = 0;
        for (int32_t i = 0; i < rules[s].n_bias && i < VOCAB; i++) {
            bias_ids[s * SV_MAX_BIAS + i] = (i * 7 + s) % VOCAB;
            bias[s * SV_MAX_BIAS + i] = 5 * sv_rng_normal(&c->rng);
        }
        rules[s].n_bias = rules[s].n_bias < VOCAB ? rules[s].n_bias : VOCAB;
        for (int32_t i = 0; i < rules[s].n_ban; i++)
            ban[s * SV_MAX_BAN + i] = (int32_t)sv_rng_below(&c->rng, VOCAB);
    }
    const int32_t n = b.rows.n_rows, pad = 4;
    int32_t *row = malloc((size_t)(n + pad) * 4), *slot = malloc((size_t)(n + pad) * 4);
    for (int32_t i = 0; i < n + pad; i++) {
        row[i] = i < n ? i : -1;
        slot[i] = i < n ? b.seg_slot[b.row_seg[i]] : -1;
    }
    const size_t size = (size_t)(n + pad) * VOCAB, words = sizeof(struct sv_logprob_row) / 4;
    struct cross_rows r = cross_rows(c, &b, pad, 1);
    struct cross_buf src = cross_new(c, CROSS_F32, size, NULL, 3),
                     dst = cross_new(c, CROSS_F32, size, NULL, 0);
    struct cross_buf rule = cross_new(c, CROSS_I32, sizeof rules / 4, rules, 0);
    struct cross_buf bi = cross_new(c, CROSS_I32, N_SLOTS * SV_MAX_BIAS, bias_ids, 0);
    struct cross_buf bv = cross_new(c, CROSS_F32, N_SLOTS * SV_MAX_BIAS, bias, 0);
    struct cross_buf ba = cross_new(c, CROSS_I32, N_SLOTS * SV_MAX_BAN, ban, 0);
    struct cross_buf li = cross_new(c, CROSS_I32, N_SLOTS * SV_MAX_LISTED, listed, 0);
    struct cross_buf ids = numbers(c, (size_t)(n + pad), 30),
                     hist = numbers(c, N_SLOTS * HISTORY, 30);
    struct cross_buf rows = cross_new(c, CROSS_I32, (size_t)(n + pad), row, 0);
    struct cross_buf slots = cross_new(c, CROSS_I32, (size_t)(n + pad), slot, 0);
    struct cross_buf token = numbers(c, (size_t)(n + pad), VOCAB);
    int32_t *zero = calloc(size, 4);
    struct cross_buf counts = cross_new(c, CROSS_I32, size, zero, 0);
    struct cross_buf out = cross_new(c, CROSS_I32, (size_t)(n + pad) * words, NULL, 0);
    const bool in_place = round % 2;
    for (int side = 0; side < 2; side++) {
        sv_op_logprobs(cross_dev(c, side),
                       &(struct sv_p_logprobs){n + pad, VOCAB, cross_at(&src, side), VOCAB,
                                               cross_at(&slots, side), cross_at(&rule, side),
                                               cross_at(&token, side), cross_at(&out, side)});
        sv_op_logit_rules(cross_dev(c, side),
                          &(struct sv_p_logit_rules){.rows = r.rows[side],
                                                     .n_logit_rows = n + pad,
                                                     .vocab = VOCAB,
                                                     .src = cross_at(&src, side),
                                                     .dst = cross_at(in_place ? &src : &dst, side),
                                                     .ld = VOCAB,
                                                     .logit_row = cross_at(&rows, side),
                                                     .row_ids = cross_at(&ids, side),
                                                     .slot_rules = cross_at(&rule, side),
                                                     .bias_ids = cross_at(&bi, side),
                                                     .bias = cross_at(&bv, side),
                                                     .ban_ids = cross_at(&ba, side),
                                                     .listed = cross_at(&li, side),
                                                     .history = cross_at(&hist, side),
                                                     .history_stride = HISTORY,
                                                     .counts = cross_at(&counts, side)});
    }
    cross_sync(c);
    cross_same(c, &src, 0, size, 0, "rules: src");
    cross_same(c, &dst, 0, (size_t)n * VOCAB, 0, "rules: dst");
    cross_same(c, &counts, 0, size, 0, "rules: counts");
    struct sv_logprob_row *got = cross_bytes(c, &out, NULL), *want = out.ref;
    for (int32_t i = 0; i < n; i++) {
        if (rules[slot[i]].n_top < 0)
            continue;
        assert_int_equal(got[i].rank, want[i].rank);
        assert_int_equal(got[i].n_top, want[i].n_top);
        rig_near((double)got[i].logprob, (double)want[i].logprob, 2e-6, "logprob", i);
        for (int32_t k = 0; k < want[i].n_top; k++) {
            assert_int_equal(got[i].top_id[k], want[i].top_id[k]);
            rig_near((double)got[i].top_logprob[k], (double)want[i].top_logprob[k], 2e-6, "top", k);
        }
    }
    free(got), free(zero), free(row), free(slot), free(bias_ids), free(bias), free(ban);
    free(listed);
    struct cross_buf *all[] = {&li,  &src,  &dst,  &rule,  &bi,    &bv,     &ba,
                               &ids, &hist, &rows, &slots, &token, &counts, &out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cross_free(c, all[i]);
    cross_rows_free(c, &r);
}

static void rules_on(struct cross *c)
{
    for (int round = 0; round < (c->again ? 0 : c->quick ? 2 : 20); round++)
        rules_case(c, round);
}

/* ---------------------------------------------------------------- tests */

#define CROSS_TEST(name)                                                                           \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        cross_all(name##_on);                                                                      \
    }
CROSS_TEST(steps)
CROSS_TEST(sample)
CROSS_TEST(sample_errors)
CROSS_TEST(rules)

SV_TEST_MAIN(cmocka_unit_test(steps), cmocka_unit_test(sample), cmocka_unit_test(sample_errors),
             cmocka_unit_test(rules))
