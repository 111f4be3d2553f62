/*
 * test_cross_logits.c - masks, logit rules, log probabilities and history on every device of this
 * machine against the CPU: rules and history bit for bit, log probabilities within rounding; a
 * row's bits alone and in company.
 *
 * timeout: 240
 *
 * tests/backend/test_logits.c holds the CPU's against the definition. Without a GPU only the CPU's
 * plain kernels are held against its best ones, and the test says so.
 */
#include "backend/cross.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 6, STRIDE = 2100, PAD = 3, MAX_LOGITS = 64 };

struct world {
    int32_t vocab, n_logits;
    struct rig_batch b;
    struct cross_rows rows;
    struct cross_buf row_ids, logit_row, rules, bias_ids, bias, ban_ids, listed, history, counts,
        logits;
};

/* Few distinct tokens, so that counts rise; now and then one outside the vocabulary. */
static int32_t random_token(struct sv_rng *rng, int32_t vocab)
{
    return sv_rng_below(rng, 50) ? (int32_t)sv_rng_below(rng, 30) : vocab + 1;
}

static void random_slots(struct cross *c, struct world *w)
{
    static const float some[] = {0, 0.5f, -1.25f, 2}, repetition[] = {1, 1.3f, 0.6f, 1e-30f};
    struct sv_logit_rules r[SLOTS];
    int32_t *bias_ids = calloc(SLOTS * SV_MAX_BIAS, 4), *ban_ids = calloc(SLOTS * SV_MAX_BAN, 4);
    int32_t *history = calloc(SLOTS * STRIDE, 4), *listed = calloc(SLOTS * SV_MAX_LISTED, 4);
    float *bias = calloc(SLOTS * SV_MAX_BIAS, 4);
    for (int32_t s = 0; s < SLOTS; s++) {
        r[s] = (struct sv_logit_rules){.presence = some[s % 4],
                                       .frequency = some[(s + 1) % 4],
                                       .repetition = repetition[(s + 2) % 4],
                                       .n_prompt = (int32_t)sv_rng_below(&c->rng, STRIDE),
                                       .n_bias = s == 2 ? SV_MAX_BIAS : s * 9,
                                       .n_ban = s == 3 ? SV_MAX_BAN : s,
                                       .repeat_last = s % 2 * (1 + s * s * 8),
                                       .n_bad_runs = s % 3 * 40,
                                       .n_allowed = s == 4 ? 1500 : 0,
                                       .n_top = s == 4 ? SV_MAX_TOP : s - 1};
        r[s].n_bias = r[s].n_bias < w->vocab ? r[s].n_bias : w->vocab;
        for (int32_t i = 0; i < r[s].n_bias; i++) { /* no token twice */
            bias_ids[s * SV_MAX_BIAS + i] = w->vocab - 1 - i;
            bias[s * SV_MAX_BIAS + i] = 5 * sv_rng_normal(&c->rng);
        }
        for (int32_t i = 0; i < r[s].n_ban; i++)
            ban_ids[s * SV_MAX_BAN + i] = (int32_t)sv_rng_below(&c->rng, (uint32_t)w->vocab);
        rig_lists(&c->rng, &r[s], listed + s * SV_MAX_LISTED, 30, w->vocab);
        for (int32_t i = 0; i < STRIDE; i++)
            history[s * STRIDE + i] = random_token(&c->rng, w->vocab);
    }
    for (int32_t s = 0; s < SLOTS;
         s++) /* bans that end inside a segment: slot of segment s is 5 - s */
        r[SLOTS - 1 - s].ban_before = w->b.seg_base[s] + 1 + s;
    w->rules = cross_new(c, CROSS_I32, sizeof r / 4, r, 0);
    w->bias_ids = cross_new(c, CROSS_I32, SLOTS * SV_MAX_BIAS, bias_ids, 0);
    w->bias = cross_new(c, CROSS_F32, SLOTS * SV_MAX_BIAS, bias, 0);
    w->ban_ids = cross_new(c, CROSS_I32, SLOTS * SV_MAX_BAN, ban_ids, 0);
    w->listed = cross_new(c, CROSS_I32, SLOTS * SV_MAX_LISTED, listed, 0);
    w->history = cross_new(c, CROSS_I32, SLOTS * STRIDE, history, 0);
    free(bias_ids), free(bias), free(ban_ids), free(history), free(listed);
}

static void make(struct cross *c, struct world *w, int32_t vocab)
{
    static const int32_t base[] = {0, 5, 70, 700, 2000, 33}, len[] = {7, 16, 1, 16, 40, 3};
    int32_t ids[128], at[MAX_LOGITS];
    memset(w, 0, sizeof *w);
    w->vocab = vocab;
    rig_batch_init(&w->b);
    for (int32_t s = 0; s < SLOTS; s++)
        rig_batch_add(&w->b, SLOTS - 1 - s, base[s], len[s]);
    for (int32_t i = 0; i < w->b.rows.n_rows + PAD; i++)
        ids[i] = random_token(&c->rng, vocab);
    for (int32_t r = 0; r < w->b.rows.n_rows && w->n_logits < MAX_LOGITS - PAD; r++)
        if (r % 4 != 1)
            at[w->n_logits++] = r;
    for (int32_t i = 0; i < PAD; i++)
        at[w->n_logits++] = -1;
    w->rows = cross_rows(c, &w->b, PAD, 2);
    random_slots(c, w);
    const size_t cells = (size_t)w->n_logits * (size_t)vocab;
    uint32_t *zero = calloc(cells, 4);
    w->row_ids = cross_new(c, CROSS_I32, (size_t)(w->b.rows.n_rows + PAD), ids, 0);
    w->logit_row = cross_new(c, CROSS_I32, (size_t)w->n_logits, at, 0);
    w->counts = cross_new(c, CROSS_I32, cells, zero, 0);
    w->logits = cross_new(c, CROSS_F32, cells, NULL, 4);
    free(zero);
}

static void drop(struct cross *c, struct world *w)
{
    cross_rows_free(c, &w->rows), cross_free(c, &w->row_ids), cross_free(c, &w->logit_row);
    cross_free(c, &w->rules), cross_free(c, &w->bias_ids), cross_free(c, &w->bias);
    cross_free(c, &w->listed), cross_free(c, &w->ban_ids), cross_free(c, &w->history),
        cross_free(c, &w->counts);
    cross_free(c, &w->logits);
}

/* Logit rows [i, i + n) of src to row 0.. of dst. */
static void apply(struct cross *c, const struct world *w, int side, const struct cross_buf *src,
                  const struct cross_buf *dst, int32_t i, int32_t n)
{
    sv_op_logit_rules(cross_dev(c, side),
                      &(struct sv_p_logit_rules){
                          .rows = w->rows.rows[side],
                          .n_logit_rows = n,
                          .vocab = w->vocab,
                          .src = (const float *)cross_at(src, side) + (int64_t)i * w->vocab,
                          .dst = cross_at(dst, side),
                          .ld = w->vocab,
                          .logit_row = (const int32_t *)cross_at(&w->logit_row, side) + i,
                          .row_ids = cross_at(&w->row_ids, side),
                          .slot_rules = cross_at(&w->rules, side),
                          .bias_ids = cross_at(&w->bias_ids, side),
                          .bias = cross_at(&w->bias, side),
                          .ban_ids = cross_at(&w->ban_ids, side),
                          .listed = cross_at(&w->listed, side),
                          .history = cross_at(&w->history, side),
                          .history_stride = STRIDE,
                          .counts = cross_at(&w->counts, side)});
}

static void rules_on(struct cross *c)
{
    static const int32_t vocab[] = {35, 2048, 32003, 151936};
    for (int v = 0; v < (c->again ? 0 : c->quick ? 2 : 4); v++) {
        struct world w;
        make(c, &w, vocab[v]);
        const size_t cells = w.logits.n, real = (size_t)(w.n_logits - PAD) * (size_t)w.vocab;
        struct cross_buf out = cross_new(c, CROSS_F32, cells, NULL, 0);
        struct cross_buf one = cross_new(c, CROSS_F32, (size_t)w.vocab, NULL, 0);
        for (int side = 0; side < 2; side++)
            apply(c, &w, side, &w.logits, &out, 0, w.n_logits);
        cross_sync(c);
        cross_same(c, &out, 0, real, 0, "rules");
        float *whole = cross_floats(c, &out);
        for (int32_t i = 0; i < w.n_logits - PAD; i += 7) {
            apply(c, &w, 1, &w.logits, &one, i, 1);
            float *alone = cross_floats(c, &one);
            assert_memory_equal(alone, whole + (int64_t)i * w.vocab, (size_t)w.vocab * 4);
            free(alone);
        }
        for (int side = 0; side < 2; side++)
            apply(c, &w, side, &w.logits, &w.logits, 0, w.n_logits); /* in place */
        cross_same(c, &w.logits, 0, cells, 0, "rules in place"); /* padding rows are left alone */
        cross_same(c, &w.counts, 0, w.counts.n, 0, "counts");
        int32_t *counts = cross_ints(c, &w.counts);
        for (size_t i = 0; i < w.counts.n; i++)
            assert_int_equal(counts[i], 0);
        free(counts), free(whole);
        cross_free(c, &out), cross_free(c, &one);
        drop(c, &w);
    }
}

/* Rows with one of a few masks or none; the last ones stand for padding. */
static void mask_on(struct cross *c)
{
    enum { MASKS = 5 };
    static const int32_t vocab[] = {35, 2048, 32003, 151936};
    for (int v = 0; v < (c->again ? 0 : c->quick ? 2 : 4); v++) {
        struct world w;
        make(c, &w, vocab[v]);
        const int32_t n_words = sv_mask_words(w.vocab);
        uint32_t *bits = calloc((size_t)(MASKS * n_words), 4);
        int32_t which[MAX_LOGITS];
        for (int32_t i = 0; i < MASKS * n_words; i++)
            bits[i] = i / n_words == 0 || !sv_rng_below(&c->rng, 3)
                          ? UINT32_MAX
                          : (uint32_t)sv_rng_below(&c->rng, UINT32_MAX);
        for (int32_t i = 0; i < w.n_logits; i++)
            which[i] =
                i % 3 == 1 || i >= w.n_logits - PAD ? -1 : (int32_t)sv_rng_below(&c->rng, MASKS);
        struct cross_buf masks = cross_new(c, CROSS_I32, (size_t)(MASKS * n_words), bits, 0);
        struct cross_buf row = cross_new(c, CROSS_I32, (size_t)w.n_logits, which, 0);
        struct cross_buf out = cross_new(c, CROSS_F32, w.logits.n, NULL, 0);
        for (int in_place = 0; in_place < 2; in_place++)
            for (int side = 0; side < 2; side++)
                sv_op_logit_mask(
                    cross_dev(c, side),
                    &(struct sv_p_logit_mask){.n_rows = w.n_logits,
                                              .vocab = w.vocab,
                                              .src = cross_at(&w.logits, side),
                                              .dst = cross_at(in_place ? &w.logits : &out, side),
                                              .ld = w.vocab,
                                              .row_mask = cross_at(&row, side),
                                              .masks = cross_at(&masks, side)});
        cross_sync(c);
        cross_same(c, &out, 0, out.n, 0, "masked");
        cross_same(c, &w.logits, 0, w.logits.n, 0, "masked in place");
        free(bits);
        cross_free(c, &masks), cross_free(c, &row), cross_free(c, &out);
        drop(c, &w);
    }
}

static void report(struct cross *c, const struct world *w, int side, const struct cross_buf *slot,
                   const struct cross_buf *token, const struct cross_buf *out, int32_t i, int32_t n)
{
    const struct sv_p_logprobs p = {.n_rows = n,
                                    .vocab = w->vocab,
                                    .logits = (const float *)cross_at(&w->logits, side) +
                                              (int64_t)i * w->vocab,
                                    .ld = w->vocab,
                                    .row_slot = (const int32_t *)cross_at(slot, side) + i,
                                    .slot_rules = cross_at(&w->rules, side),
                                    .token = (const int32_t *)cross_at(token, side) + i,
                                    .out = cross_at(out, side)};
    sv_op_logprobs(cross_dev(c, side), &p);
}

static void near(double a, double b, const char *what, int32_t row)
{
    if (!(fabs(a - b) < 2e-5 * fmax(1, fabs(b))))
        fail_msg("%s of row %d: %.9g, not %.9g", what, row, a, b);
}

static void logprobs_on(struct cross *c)
{
    static const int32_t vocab[] = {11, 500, 32003, 151936};
    for (int v = 0; v < (c->again ? 0 : c->quick ? 2 : 4); v++) {
        struct world w;
        int32_t slot[MAX_LOGITS], token[MAX_LOGITS];
        make(c, &w, vocab[v]);
        for (int32_t i = 0; i < w.n_logits; i++) {
            slot[i] = i % 9 == 8 ? -1 : i % SLOTS;
            token[i] = (int32_t)sv_rng_below(&c->rng, (uint32_t)w.vocab);
        }
        const size_t words = sizeof(struct sv_logprob_row) / 4,
                     n_words = words * (size_t)w.n_logits;
        int32_t *blank = calloc(n_words, 4);
        struct cross_buf s = cross_new(c, CROSS_I32, (size_t)w.n_logits, slot, 0);
        struct cross_buf t = cross_new(c, CROSS_I32, (size_t)w.n_logits, token, 0);
        struct cross_buf out = cross_new(c, CROSS_I32, n_words, blank, 0);
        struct cross_buf one = cross_new(c, CROSS_I32, words, blank, 0);
        for (int side = 0; side < 2; side++)
            report(c, &w, side, &s, &t, &out, 0, w.n_logits);
        cross_sync(c);
        int32_t *got = cross_ints(c, &out);
        for (int32_t i = 0; i < w.n_logits; i++) {
            const struct sv_logprob_row *a = (const struct sv_logprob_row *)out.ref + i;
            const struct sv_logprob_row *b = (const struct sv_logprob_row *)(void *)got + i;
            assert_int_equal(a->rank, b->rank);
            assert_int_equal(a->n_top, b->n_top);
            near((double)b->logprob, (double)a->logprob, "logprob", i);
            for (int32_t k = 0; k < a->n_top; k++) {
                assert_int_equal(a->top_id[k], b->top_id[k]);
                near((double)b->top_logprob[k], (double)a->top_logprob[k], "top logprob", i);
            }
            if (i % 5 || slot[i] < 1)
                continue;
            report(c, &w, 1, &s, &t, &one, i, 1);
            int32_t *alone = cross_ints(c, &one);
            assert_memory_equal(alone, b, sizeof *b);
            free(alone);
        }
        free(got), free(blank);
        cross_free(c, &s), cross_free(c, &t), cross_free(c, &out), cross_free(c, &one);
        drop(c, &w);
    }
}

/* What is no distribution is reported by either side, and the device goes on. */
static void logprob_errors_on(struct cross *c)
{
    struct world w;
    make(c, &w, 40);
    const int32_t slot = 4, bad_token = 40, good = 3;
    int32_t blank[sizeof(struct sv_logprob_row) / 4] = {0};
    struct cross_buf s = cross_new(c, CROSS_I32, 1, &slot, 0);
    struct cross_buf t = cross_new(c, CROSS_I32, 1, &bad_token, 0);
    struct cross_buf u = cross_new(c, CROSS_I32, 1, &good, 0);
    struct cross_buf out = cross_new(c, CROSS_I32, sizeof blank / 4, blank, 0);
    for (int side = 0; side < 2; side++) {
        report(c, &w, side, &s, &t, &out, 0, 1);
        rig_sync(cross_dev(c, side), SV_EDEVICE);
        report(c, &w, side, &s, &u, &out, 0, 1);
        rig_sync(cross_dev(c, side), SV_OK);
    }
    cross_free(c, &s), cross_free(c, &t), cross_free(c, &u), cross_free(c, &out);
    drop(c, &w);
}

static void history_on(struct cross *c)
{
    struct world w;
    make(c, &w, 100);
    const int32_t keep[SLOTS + 2] = {7, 0, 1, 5, 40, 3, 99, 99};
    struct cross_buf commit = cross_new(c, CROSS_I32, SLOTS + 2, keep, 0);
    for (int side = 0; side < 2; side++)
        sv_op_history(cross_dev(c, side),
                      &(struct sv_p_history){.rows = w.rows.rows[side],
                                             .row_ids = cross_at(&w.row_ids, side),
                                             .n_commit = cross_at(&commit, side),
                                             .history = cross_at(&w.history, side),
                                             .history_stride = STRIDE});
    cross_sync(c);
    cross_same(c, &w.history, 0, w.history.n, 0, "history");
    cross_free(c, &commit);
    drop(c, &w);
}

#define CROSS_TEST(name)                                                                           \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        cross_all(name##_on);                                                                      \
    }
CROSS_TEST(rules)
CROSS_TEST(mask)
CROSS_TEST(logprobs)
CROSS_TEST(logprob_errors)
CROSS_TEST(history)

SV_TEST_MAIN(cmocka_unit_test(rules), cmocka_unit_test(mask), cmocka_unit_test(logprobs),
             cmocka_unit_test(logprob_errors), cmocka_unit_test(history))
