/*
 * test_logits.c - logit rules, log probabilities and the slots' history against a naive model; a
 * row's bits in any batch, on any number of threads; scratch left clean.
 */
#include "rig.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 96, SLOTS = 6, STRIDE = 80, MAX_ROWS = 200 };

struct world {
    struct rig_batch b;
    int32_t row_ids[MAX_ROWS], logit_row[MAX_ROWS], n_logits;
    struct sv_logit_rules rules[SLOTS];
    int32_t bias_ids[SLOTS * SV_MAX_BIAS], ban_ids[SLOTS * SV_MAX_BAN], history[SLOTS * STRIDE];
    int32_t listed[SLOTS * SV_MAX_LISTED];
    float bias[SLOTS * SV_MAX_BIAS];
    float *logits, *out;
    uint32_t *counts;
};

static void random_rules(struct sv_rng *rng, struct world *w, int32_t slot)
{
    static const float some[] = {0, 0, 0.5f, -1.25f, 2};
    static const float repetition[] = {1, 1, 1.3f, 0.6f, 2};
    struct sv_logit_rules *r = &w->rules[slot];
    *r = (struct sv_logit_rules){.presence = some[sv_rng_below(rng, 5)],
                                 .frequency = some[sv_rng_below(rng, 5)],
                                 .repetition = repetition[sv_rng_below(rng, 5)],
                                 .n_prompt = (int32_t)sv_rng_below(rng, 40),
                                 .n_bias = (int32_t)sv_rng_below(rng, 12),
                                 .n_ban = (int32_t)sv_rng_below(rng, 5),
                                 .ban_before = (int32_t)sv_rng_below(rng, STRIDE),
                                 .repeat_last = (int32_t[]){0, 1, 7, 40}[sv_rng_below(rng, 4)],
                                 .n_bad_runs = (int32_t)sv_rng_below(rng, 6),
                                 .n_allowed = sv_rng_below(rng, 3) ? 0 : 30,
                                 .n_top = -1};
    rig_lists(rng, r, w->listed + slot * SV_MAX_LISTED, 20, VOCAB);
    for (int32_t i = 0; i < r->n_bias; i++) { /* distinct ids */
        w->bias_ids[slot * SV_MAX_BIAS + i] = (i * 7 + slot) % VOCAB;
        w->bias[slot * SV_MAX_BIAS + i] = 5 * sv_rng_normal(rng);
    }
    for (int32_t i = 0; i < r->n_ban; i++)
        w->ban_ids[slot * SV_MAX_BAN + i] = (int32_t)sv_rng_below(rng, VOCAB);
}

/* Few distinct tokens, so that counts rise; now and then one outside the vocabulary. */
static int32_t random_token(struct sv_rng *rng)
{
    return sv_rng_below(rng, 40) ? (int32_t)sv_rng_below(rng, 20) : VOCAB + 5;
}

static struct world *make_world(struct sv_rng *rng)
{
    struct world *w = calloc(1, sizeof *w);
    rig_batch_init(&w->b);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        random_rules(rng, w, slot);
        for (int32_t i = 0; i < STRIDE; i++)
            w->history[slot * STRIDE + i] = random_token(rng);
    }
    for (int32_t s = 0; s < SLOTS; s++) {
        const int32_t base = (int32_t)sv_rng_below(rng, 50),
                      len = 1 + (int32_t)sv_rng_below(rng, 16);
        rig_batch_add(&w->b, (s * 5 + 2) % SLOTS, base, len);
        if (s % 2) /* a ban that ends inside the segment */
            w->rules[(s * 5 + 2) % SLOTS].ban_before =
                base + 1 + (int32_t)sv_rng_below(rng, (uint32_t)len);
    }
    for (int32_t r = 0; r < w->b.rows.n_rows; r++) {
        w->row_ids[r] = random_token(rng);
        if (sv_rng_below(rng, 4)) /* some rows want no logits */
            w->logit_row[w->n_logits++] = r;
    }
    w->logits = rig_floats(rng, (size_t)w->n_logits * VOCAB, 3);
    w->out = rig_new((size_t)w->n_logits * VOCAB * sizeof(float));
    w->counts = rig_new((size_t)w->n_logits * VOCAB * sizeof(uint32_t));
    memset(w->counts, 0, (size_t)w->n_logits * VOCAB * sizeof(uint32_t));
    return w;
}

static void free_world(struct world *w)
{
    rig_free(w->logits);
    rig_free(w->out);
    rig_free(w->counts);
    free(w);
}

static struct sv_p_logit_rules params(struct world *w, const float *src, float *dst)
{
    return (struct sv_p_logit_rules){.rows = w->b.rows,
                                     .n_logit_rows = w->n_logits,
                                     .vocab = VOCAB,
                                     .src = src,
                                     .dst = dst,
                                     .ld = VOCAB,
                                     .logit_row = w->logit_row,
                                     .row_ids = w->row_ids,
                                     .slot_rules = w->rules,
                                     .bias_ids = w->bias_ids,
                                     .bias = w->bias,
                                     .ban_ids = w->ban_ids,
                                     .listed = w->listed,
                                     .history = w->history,
                                     .history_stride = STRIDE,
                                     .counts = w->counts};
}

static int32_t token_at(const struct world *w, int32_t seg, int32_t pos)
{
    return pos < w->b.seg_base[seg] ? w->history[w->b.seg_slot[seg] * STRIDE + pos]
                                    : w->row_ids[w->b.seg_row0[seg] + pos - w->b.seg_base[seg]];
}

/* Whether the lists keep a token from position pos. */
static bool is_barred(const struct world *w, int32_t seg, int32_t pos, int32_t id)
{
    const struct sv_logit_rules *r = &w->rules[w->b.seg_slot[seg]];
    const int32_t *listed = w->listed + w->b.seg_slot[seg] * SV_MAX_LISTED;
    const int32_t *allowed = listed + (r->n_bad_runs ? listed[r->n_bad_runs - 1] : 0);
    bool found = !r->n_allowed;
    for (int32_t k = 0; k < r->n_bad_runs; k++) {
        const int32_t *run = listed + (k ? listed[k - 1] : r->n_bad_runs);
        const int32_t n = (int32_t)(listed + listed[k] - run) - 1;
        int32_t same = 0;
        while (same < n && pos - n >= r->n_prompt && token_at(w, seg, pos - n + same) == run[same])
            same++;
        if (same == n && run[n] == id)
            return true;
    }
    for (int32_t k = 0; k < r->n_allowed; k++)
        found |= allowed[k] == id;
    return !found;
}

/* The definition, token by token of the vocabulary. */
static float by_definition(const struct world *w, int32_t i, int32_t id)
{
    const int32_t row = w->logit_row[i], seg = w->b.row_seg[row], slot = w->b.seg_slot[seg];
    const struct sv_logit_rules *r = &w->rules[slot];
    const int32_t pos = rig_pos(&w->b, row) + 1;
    int32_t repeats = 0, in_answer = 0;
    for (int32_t p = 0; p < pos; p++) {
        const int32_t t = token_at(w, seg, p);
        repeats += t == id && (!r->repeat_last || p >= pos - r->repeat_last);
        in_answer += t == id && p >= r->n_prompt;
    }
    float x = w->logits[i * VOCAB + id];
    for (int32_t k = 0; k < r->n_bias; k++)
        if (w->bias_ids[slot * SV_MAX_BIAS + k] == id)
            x += w->bias[slot * SV_MAX_BIAS + k];
    for (int32_t k = 0; k < r->n_ban; k++)
        if (w->ban_ids[slot * SV_MAX_BAN + k] == id && pos < r->ban_before)
            x = -INFINITY;
    if (is_barred(w, seg, pos, id))
        x = -INFINITY;
    if (repeats && r->repetition != 1)
        x = x > 0 ? x / r->repetition : x * r->repetition;
    if (in_answer) {
        float f = r->frequency * (float)in_answer;
        x -= f;
        x -= r->presence;
    }
    return x;
}

static void rules_on(struct sv_dev *dev)
{
    struct sv_rng rng = {31};
    for (int round = 0; round < 60; round++) {
        struct world *w = make_world(&rng);
        struct sv_p_logit_rules p = params(w, w->logits, w->out);
        sv_op_logit_rules(dev, &p);
        for (int32_t i = 0; i < w->n_logits; i++)
            for (int32_t id = 0; id < VOCAB; id++) {
                float want = by_definition(w, i, id), got = w->out[i * VOCAB + id];
                if (memcmp(&want, &got, sizeof want) && want != got)
                    fail_msg("round %d row %d token %d: %.9g, not %.9g", round, i, id, (double)got,
                             (double)want);
            }
        for (int32_t i = 0; i < w->n_logits * VOCAB; i++)
            assert_int_equal(w->counts[i], 0);
        /* One row alone, and in place, gives the same bits. */
        float *one = rig_new(VOCAB * sizeof *one);
        for (int32_t i = 0; i < w->n_logits; i += 3) {
            memcpy(one, w->logits + i * VOCAB, VOCAB * sizeof *one);
            p = params(w, one, one);
            p.n_logit_rows = 1;
            p.logit_row = w->logit_row + i;
            sv_op_logit_rules(dev, &p);
            assert_memory_equal(one, w->out + i * VOCAB, VOCAB * sizeof *one);
        }
        rig_free(one);
        rig_check(w->out);
        rig_check(w->counts);
        free_world(w);
    }
}

static void rules(void **state)
{
    (void)state;
    rig_each(rules_on);
}

/* A tiny repetition penalty must not make an infinity of a finite logit; what is infinite stays
 * so. */
static void overflow_on(struct sv_dev *dev)
{
    struct sv_rng rng = {4};
    struct world *w = make_world(&rng);
    for (int32_t slot = 0; slot < SLOTS; slot++)
        w->rules[slot] =
            (struct sv_logit_rules){.repetition = 1e-30f, .n_prompt = STRIDE, .n_top = -1};
    for (int32_t i = 0; i < w->n_logits * VOCAB; i++)
        w->logits[i] = i % 3 == 0 ? -INFINITY : i % 3 == 1 ? 1e20f : NAN;
    struct sv_p_logit_rules p = params(w, w->logits, w->out);
    sv_op_logit_rules(dev, &p);
    int32_t n_clamped = 0;
    for (int32_t i = 0; i < w->n_logits * VOCAB; i++) {
        if (i % 3 == 0)
            assert_true(w->out[i] == -INFINITY);
        else if (i % 3 == 2)
            assert_true(isnan(w->out[i]));
        else
            assert_true(isfinite(w->out[i]));
        n_clamped += w->out[i] == FLT_MAX;
    }
    assert_true(n_clamped > 0);
    free_world(w);
}

static void overflow(void **state)
{
    (void)state;
    rig_each(overflow_on);
}

static void padding_on(struct sv_dev *dev)
{
    struct sv_rng rng = {5};
    struct world *w = make_world(&rng);
    w->logit_row[w->n_logits - 1] = -1;
    struct sv_p_logit_rules p = params(w, w->logits, w->logits);
    float last[VOCAB];
    memcpy(last, w->logits + (w->n_logits - 1) * VOCAB, sizeof last);
    sv_op_logit_rules(dev, &p);
    assert_memory_equal(last, w->logits + (w->n_logits - 1) * VOCAB, sizeof last);
    free_world(w);
}

static void padding(void **state)
{
    (void)state;
    rig_each(padding_on);
}

/* ---------------------------------------------------------------- masks */

enum { MASK_ROWS = 11, MASKS = 4 };

/* All, nothing, words of either kind, and bits at random. */
static void random_masks(struct sv_rng *rng, uint32_t *masks, int32_t n_words)
{
    for (int32_t w = 0; w < MASKS * n_words; w++) {
        const uint32_t bits = (uint32_t)sv_rng_below(rng, UINT32_MAX);
        const uint32_t kinds[MASKS] = {UINT32_MAX, 0, w % 3 ? 0 : w % 2 ? UINT32_MAX : bits, bits};
        masks[w] = kinds[w / n_words];
    }
}

static void mask_case(struct sv_dev *dev, struct sv_rng *rng, int32_t vocab)
{
    const int32_t n_words = sv_mask_words(vocab), ld = vocab + 5;
    const size_t cells = (size_t)MASK_ROWS * (size_t)ld;
    float *x = rig_floats(rng, cells, 3), *out = rig_new(cells * sizeof *out);
    uint32_t *masks = rig_new((size_t)(MASKS * n_words) * sizeof *masks);
    int32_t row_mask[MASK_ROWS];
    random_masks(rng, masks, n_words);
    for (int32_t i = 0; i < MASK_ROWS; i++)
        row_mask[i] = i % 4 == 1 ? -1 : (int32_t)sv_rng_below(rng, MASKS);
    memcpy(out, x, cells * sizeof *out);
    struct sv_p_logit_mask p = {.n_rows = MASK_ROWS,
                                .vocab = vocab,
                                .src = x,
                                .dst = out,
                                .ld = ld,
                                .row_mask = row_mask,
                                .masks = masks};
    sv_op_logit_mask(dev, &p);
    for (int32_t i = 0; i < MASK_ROWS; i++)
        for (int32_t v = 0; v < ld; v++) { /* what lies between rows is left alone */
            const uint32_t *m = row_mask[i] < 0 ? NULL : masks + row_mask[i] * n_words;
            const bool may = !m || v >= vocab || (m[v / 32] >> v % 32 & 1);
            assert_true(out[i * ld + v] == (may ? x[i * ld + v] : -INFINITY));
        }
    p.src = p.dst = x; /* in place: the same */
    sv_op_logit_mask(dev, &p);
    assert_memory_equal(x, out, cells * sizeof *x);
    rig_free(x), rig_free(out), rig_free(masks);
}

static void masks_on(struct sv_dev *dev)
{
    static const int32_t vocabs[] = {1, 31, 32, 33, 300, 4096, 5003};
    struct sv_rng rng = {40};
    for (size_t i = 0; i < sizeof vocabs / sizeof vocabs[0]; i++)
        mask_case(dev, &rng, vocabs[i]);
}

static void masks(void **state)
{
    (void)state;
    rig_each(masks_on);
}

/* ---------------------------------------------------------------- log probabilities */

static void logprob_case(struct sv_dev *dev, struct sv_rng *rng, int32_t vocab, bool ties)
{
    enum { ROWS = 9 };
    const int32_t ld = vocab + 3;
    float *x = rig_floats(rng, (size_t)ROWS * (size_t)ld, 4);
    struct sv_logprob_row *out = rig_new(ROWS * sizeof *out), one, skipped;
    struct sv_logit_rules r[3] = {{.n_top = -1}, {.n_top = 20}, {.n_top = 3}};
    int32_t slot[ROWS], token[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        slot[i] = i == 4 ? -1 : i % 3;
        token[i] = (int32_t)sv_rng_below(rng, (uint32_t)vocab);
    }
    for (int32_t i = 0; ties && i < ROWS * ld; i++)
        x[i] = roundf(x[i]);
    memcpy(&skipped, out, sizeof skipped);
    struct sv_p_logprobs p = {.n_rows = ROWS,
                              .vocab = vocab,
                              .logits = x,
                              .ld = ld,
                              .row_slot = slot,
                              .slot_rules = r,
                              .token = token,
                              .out = out};
    sv_op_logprobs(dev, &p);
    rig_sync(dev, SV_OK);
    for (int32_t i = 0; i < ROWS; i++) {
        const float *row = x + i * ld;
        if (slot[i] <= 0) {
            assert_memory_equal(&out[i], &skipped, sizeof skipped);
            continue;
        }
        double top = -INFINITY, sum = 0;
        for (int32_t v = 0; v < vocab; v++)
            top = fmax(top, (double)row[v]);
        for (int32_t v = 0; v < vocab; v++)
            sum += exp((double)row[v] - top);
        assert_int_equal(out[i].n_top, r[slot[i]].n_top < vocab ? r[slot[i]].n_top : vocab);
        rig_near((double)out[i].logprob, (double)row[token[i]] - top - log(sum), 2e-6, "logprob",
                 i);
        for (int32_t k = 0; k < out[i].n_top; k++) {
            const int32_t id = out[i].top_id[k];
            int32_t above = 0;
            for (int32_t v = 0; v < vocab; v++)
                above += row[v] > row[id] || (row[v] == row[id] && v < id);
            assert_int_equal(above, k); /* which is also the rank of this token */
            rig_near((double)out[i].top_logprob[k], (double)row[id] - top - log(sum), 2e-6, "top",
                     k);
            if (id == token[i])
                assert_int_equal(out[i].rank, k + 1);
        }
        int32_t rank = 1;
        for (int32_t v = 0; v < vocab; v++)
            rank += row[v] > row[token[i]] || (row[v] == row[token[i]] && v < token[i]);
        assert_int_equal(out[i].rank, rank);
        struct sv_p_logprobs q = p; /* alone: the same bits */
        q.n_rows = 1;
        q.logits = row;
        q.row_slot = slot + i;
        q.token = token + i;
        q.out = &one;
        sv_op_logprobs(dev, &q);
        assert_memory_equal(&one, &out[i], sizeof one);
    }
    rig_free(x);
    rig_free(out);
}

static void logprobs_on(struct sv_dev *dev)
{
    struct sv_rng rng = {8};
    for (int i = 0; i < 30; i++)
        logprob_case(dev, &rng, 1 + (int32_t)sv_rng_below(&rng, 300), i % 2);
    logprob_case(dev, &rng, 20000, false);
}

static void logprobs(void **state)
{
    (void)state;
    rig_each(logprobs_on);
}

/* The argmax as sampling finds it, its share of the softmax, and a row's bits alone and among
 * others. */
static void shares_on(struct sv_dev *dev)
{
    enum { ROWS = 7 };
    static const int32_t vocabs[] = {1, 3, 16, 61, 300, 5000};
    struct sv_rng rng = {12};
    for (size_t k = 0; k < sizeof vocabs / sizeof vocabs[0]; k++) {
        const int32_t vocab = vocabs[k], ld = vocab + 5;
        float *x = rig_new((size_t)(ROWS * ld) * sizeof *x), confidence[ROWS], alone;
        int32_t id[ROWS + 2], one, at[ROWS] = {3, 0, -1, 8, 1, 2, 4};
        for (int32_t i = 0; i < ROWS * ld; i++)
            x[i] = 4 * sv_rng_normal(&rng);
        for (int32_t v = 0; v < vocab; v++)
            x[v] = roundf(x[v]); /* ties */
        for (int32_t i = 0; i < ROWS + 2; i++)
            id[i] = -7;
        const struct sv_p_argmax_confidence p = {.n_rows = ROWS,
                                                 .vocab = vocab,
                                                 .logits = x,
                                                 .ld = ld,
                                                 .out_index = at,
                                                 .out = id,
                                                 .confidence = confidence};
        sv_op_argmax_confidence(dev, &p);
        rig_sync(dev, SV_OK);
        assert_int_equal(id[5], -7);
        for (int32_t i = 0; i < ROWS; i++) {
            const float *row = x + (int64_t)i * ld;
            int32_t best = 0;
            double sum = 0;
            for (int32_t v = 1; v < vocab; v++)
                best = row[v] > row[best] ? v : best;
            for (int32_t v = 0; v < vocab; v++)
                sum += exp((double)row[v] - (double)row[best]);
            if (at[i] >= 0)
                assert_int_equal(id[at[i]], best);
            rig_near((double)confidence[i], 1 / sum, 2e-6, "confidence", i);
            struct sv_p_argmax_confidence q = p;
            q.n_rows = 1;
            q.logits = row;
            q.out_index = NULL;
            q.out = &one;
            q.confidence = &alone;
            sv_op_argmax_confidence(dev, &q);
            assert_int_equal(one, best);
            assert_memory_equal(&alone, &confidence[i], sizeof alone);
        }
        rig_free(x);
    }
}

static void confidence(void **state)
{
    (void)state;
    rig_each(shares_on);
    struct sv_dev *dev = rig_open(SV_ISA_PLAIN, 1, SV_F32);
    float x[8] = {1, NAN, 3, 2, NAN, NAN, NAN, NAN}, confidence[2];
    int32_t id[2];
    struct sv_p_argmax_confidence p = {
        .n_rows = 1, .vocab = 4, .logits = x, .ld = 4, .out = id, .confidence = confidence};
    sv_op_argmax_confidence(dev, &p);
    rig_sync(dev, SV_OK);
    assert_int_equal(id[0], 2);
    p.n_rows = 2;
    sv_op_argmax_confidence(dev, &p);
    rig_sync(dev, SV_EDEVICE);
    assert_int_equal(id[1], 0);
    sv_dev_close(dev);
}

static void logprobs_of_nonsense(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_PLAIN, 1, SV_F32);
    float x[4] = {1, NAN, 2, 3};
    struct sv_logit_rules r = {.n_top = 2};
    struct sv_logprob_row out;
    int32_t slot = 0, token = 2;
    struct sv_p_logprobs p = {1, 4, x, 4, &slot, &r, &token, &out};
    sv_op_logprobs(dev, &p);
    rig_sync(dev, SV_EDEVICE);
    x[1] = 0;
    token = 4;
    sv_op_logprobs(dev, &p);
    rig_sync(dev, SV_EDEVICE);
    token = 0;
    x[1] = -INFINITY; /* impossible tokens are fine */
    sv_op_logprobs(dev, &p);
    rig_sync(dev, SV_OK);
    assert_int_equal(out.rank, 3);
    sv_dev_close(dev);
}

/* ---------------------------------------------------------------- history */

static void history_on(struct sv_dev *dev)
{
    struct sv_rng rng = {12};
    for (int round = 0; round < 40; round++) {
        struct world *w = make_world(&rng);
        int32_t want[SLOTS * STRIDE], n_commit[SLOTS];
        memcpy(want, w->history, sizeof want);
        for (int32_t s = 0; s < SLOTS; s++) {
            const int32_t len = w->b.seg_row0[s + 1] - w->b.seg_row0[s];
            n_commit[s] = (int32_t)sv_rng_below(&rng, (uint32_t)len + 1);
            for (int32_t j = 0; j < n_commit[s]; j++)
                want[w->b.seg_slot[s] * STRIDE + w->b.seg_base[s] + j] =
                    w->row_ids[w->b.seg_row0[s] + j];
        }
        struct sv_p_history p = {w->b.rows, w->row_ids, n_commit, w->history, STRIDE};
        sv_op_history(dev, &p);
        assert_memory_equal(want, w->history, sizeof want);
        /* A padding segment ends it. */
        w->b.seg_slot[1] = -1;
        w->row_ids[w->b.seg_row0[1]] ^= 1;
        sv_op_history(dev, &p);
        assert_memory_equal(want, w->history, sizeof want);
        free_world(w);
    }
}

static void history(void **state)
{
    (void)state;
    rig_each(history_on);
}

SV_TEST_MAIN(cmocka_unit_test(rules), cmocka_unit_test(overflow), cmocka_unit_test(padding),
             cmocka_unit_test(masks), cmocka_unit_test(logprobs),
             cmocka_unit_test(logprobs_of_nonsense), cmocka_unit_test(history),
             cmocka_unit_test(confidence))
