/*
 * test_verify.c - block_ids, logit_pos, replace_drafts, verify, commit and snapshot against naive
 * loops, for every accept count and every kind of segment.
 */
#include "rig.h"

#include <string.h>

static struct sv_dev *dev;

static int open_dev(void **state)
{
    (void)state;
    dev = rig_open(SV_ISA_AUTO, 2, SV_F32);
    return 0;
}

static int close_dev(void **state)
{
    (void)state;
    sv_dev_close(dev);
    return 0;
}

/* ---------------------------------------------------------------- block_ids and logit_pos */

static void ids(void **state)
{
    (void)state;
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 3, -1, 4); /* verify */
    rig_batch_add(&b, 1, -1, 5); /* prefill */
    rig_batch_add(&b, 2, -1, 0); /* nothing */
    rig_batch_add(&b, 0, -1, 3); /* draft */
    rig_batch_add(&b, 4, -1, 1); /* plain decode */
    const int32_t kind[] = {SV_SEG_VERIFY, SV_SEG_PREFILL, SV_SEG_VERIFY, SV_SEG_DRAFT,
                            SV_SEG_VERIFY};
    const int32_t len[] = {10, 0, 99, 12, 7}, anchor[] = {100, 101, 102, 103, 104};
    int32_t *row_ids = rig_new(13 * 4);
    for (int i = 0; i < 13; i++)
        row_ids[i] = 1000 + i;
    struct sv_p_block_ids p = {.rows = b.rows,
                               .seg_kind = kind,
                               .slot_len = len,
                               .slot_anchor = anchor,
                               .mask_id = 777,
                               .row_ids = row_ids};
    sv_op_block_ids(dev, &p);
    const int32_t base[] = {12, 0, 99, 10, 7};
    assert_memory_equal(b.seg_base, base, sizeof base);
    const int32_t want[] = {103,  1001, 1002, 1003, 1004, 1005, 1006,
                            1007, 1008, 100,  777,  777,  104};
    assert_memory_equal(row_ids, want, sizeof want);

    memset(b.seg_base, 0, sizeof b.seg_base);
    sv_op_block_ids(dev, &(struct sv_p_block_ids){.rows = b.rows, .slot_len = len});
    assert_memory_equal(b.seg_base, base, sizeof base); /* positions alone */
    assert_memory_equal(row_ids, want, sizeof want);

    const int32_t logit_row[] = {0, 1, 2, 3, 8, 12};
    int32_t *slot = rig_new(6 * 4), *pos = rig_new(6 * 4);
    struct sv_p_logit_pos q = {b.rows, 6, logit_row, slot, pos};
    sv_op_logit_pos(dev, &q);
    const int32_t want_slot[] = {3, 3, 3, 3, 1, 4}, want_pos[] = {13, 14, 15, 16, 5, 8};
    assert_memory_equal(slot, want_slot, sizeof want_slot);
    assert_memory_equal(pos, want_pos, sizeof want_pos);
    rig_free(row_ids), rig_free(slot), rig_free(pos);
}

/* ---------------------------------------------------------------- verify and commit */

static void expect_verify(const struct rig_batch *b, int32_t s, const int32_t *kind,
                          const int32_t *logit0, const int32_t *row_ids, const int32_t *chosen,
                          int32_t *commit, int32_t *emit, int32_t *out)
{
    int32_t n = b->seg_row0[s + 1] - b->seg_row0[s];
    *emit = 0;
    *commit = kind[s] == SV_SEG_PREFILL ? n : 0;
    if (logit0[s] == logit0[s + 1])
        return;
    if (kind[s] == SV_SEG_PREFILL) {
        *emit = 1;
        out[0] = chosen[logit0[s]];
        return;
    }
    for (int32_t j = 0;; j++) {
        int32_t t = chosen[logit0[s] + j];
        out[(*emit)++] = t;
        if (j + 1 == n || row_ids[b->seg_row0[s] + j + 1] != t)
            break;
    }
    *commit = *emit;
}

static void run_verify(const struct rig_batch *b, const int32_t *kind, const int32_t *logit0,
                       const int32_t *row_ids, const int32_t *chosen)
{
    const int32_t n = b->rows.n_segs, stride = 18;
    int32_t *commit = rig_new((size_t)n * 4), *emit = rig_new((size_t)n * 4);
    int32_t *out = rig_new((size_t)(n * stride) * 4);
    struct sv_p_verify p = {b->rows, kind, logit0, row_ids, chosen, commit, emit, out, stride};
    sv_op_verify(dev, &p);
    int32_t len[RIG_MAX_SEGS], anchor[RIG_MAX_SEGS];
    for (int i = 0; i < RIG_MAX_SEGS; i++) {
        len[i] = 50 + i;
        anchor[i] = -i;
    }
    struct sv_p_commit c = {n, b->seg_slot, commit, emit, out, stride, len, anchor};
    sv_op_commit(dev, &c);
    bool named[RIG_MAX_SEGS] = {false};
    for (int32_t s = 0; s < n; s++) {
        int32_t want_commit, want_emit, want[64], slot = b->seg_slot[s];
        expect_verify(b, s, kind, logit0, row_ids, chosen, &want_commit, &want_emit, want);
        assert_int_equal(commit[s], want_commit);
        assert_int_equal(emit[s], want_emit);
        assert_memory_equal(out + s * stride, want, (size_t)want_emit * 4);
        for (int32_t j = want_emit; j < stride; j++)
            assert_int_equal(out[s * stride + j], -1); /* still as rig_new left it */
        assert_int_equal(len[slot], 50 + slot + want_commit);
        assert_int_equal(anchor[slot], want_emit ? want[want_emit - 1] : -slot);
        named[slot] = true;
    }
    for (int i = 0; i < RIG_MAX_SEGS; i++)
        if (!named[i])
            assert_true(len[i] == 50 + i && anchor[i] == -i);
    rig_free(commit), rig_free(emit), rig_free(out);
}

/* Every width 1..16 and every accept count below it, alone. */
static void accept_counts(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 16; n++)
        for (int32_t a = 0; a < n; a++) {
            struct rig_batch b;
            int32_t ids[16], chosen[16], logit0[2] = {0, n}, kind = SV_SEG_VERIFY;
            rig_batch_init(&b);
            rig_batch_add(&b, 5, 20, n);
            for (int32_t j = 0; j < n; j++)
                ids[j] = 10 * j;
            for (int32_t j = 0; j < n; j++) /* right but at a; also right again behind it */
                chosen[j] = 10 * (j + 1) + (j == a);
            run_verify(&b, &kind, logit0, ids, chosen);
        }
}

/* As many drafts as were drawn become the target's own choices, no more than the block has, and are
 * accepted; the next one is not, even where it would have been. 0, chunks of prompts and padding
 * stay as they are. */
static void replaced_drafts(void **state)
{
    (void)state;
    enum { N = 4, SEGS = 10, CHUNK = 8, PAD = 9 };
    struct rig_batch b;
    int32_t kind[SEGS], logit0[SEGS + 1] = {0}, len[SEGS], ids[SEGS * N], chosen[SEGS * N];
    int32_t commit[SEGS], emit[SEGS], out[SEGS * N], before[SEGS * N];
    rig_batch_init(&b);
    for (int32_t s = 0; s < SEGS; s++) {
        rig_batch_add(&b, s, 20, N);
        kind[s] = s == CHUNK ? SV_SEG_PREFILL : SV_SEG_VERIFY;
        logit0[s + 1] = logit0[s] + (s == CHUNK ? 0 : N);
        len[s] = s; /* 0 .. 7, of a block of 4 */
    }
    for (int32_t i = 0; i < SEGS * N; i++)
        chosen[i] = 100 + i;
    for (int32_t s = 0; s < SEGS; s++) /* every draft is right */
        for (int32_t j = 0; j < N; j++)
            ids[s * N + j] = j ? chosen[logit0[s] + j - 1] : -7;
    ids[1] = -9; /* but of the first block none */
    b.seg_slot[PAD] = -1;
    memcpy(before, ids, sizeof ids);
    sv_op_replace_drafts(dev, &(struct sv_p_replace_drafts){.rows = b.rows,
                                                            .seg_kind = kind,
                                                            .seg_logit0 = logit0,
                                                            .chosen = chosen,
                                                            .accept_len = len,
                                                            .row_ids = ids});
    for (int32_t s = 0; s < SEGS; s++) {
        if (s == 0 || s == CHUNK || s == PAD)
            assert_memory_equal(ids + s * N, before + s * N, N * sizeof *ids);
        assert_int_equal(ids[s * N], -7); /* the anchor */
    }
    const struct sv_p_verify p = {b.rows, kind, logit0, ids, chosen, commit, emit, out, N};
    sv_op_verify(dev, &p);
    for (int32_t s = 0; s < CHUNK; s++) {
        const int32_t want = s == 0 ? 1 : s < N ? s : N;
        assert_int_equal(commit[s], want);
        assert_int_equal(emit[s], want);
        assert_memory_equal(out + s * N, chosen + s * N, (size_t)want * sizeof *out);
    }
}

static void mixed(void **state)
{
    (void)state;
    struct sv_rng rng = {31};
    for (int round = 0; round < 300; round++) {
        struct rig_batch b;
        int32_t kind[RIG_MAX_SEGS], logit0[RIG_MAX_SEGS + 1] = {0}, ids[700], chosen[700];
        rig_batch_init(&b);
        for (int32_t s = 0; s < 20; s++) {
            int32_t n = 1 + (int32_t)sv_rng_below(&rng, 16), logits = n;
            kind[s] = sv_rng_below(&rng, 3) ? SV_SEG_VERIFY : SV_SEG_PREFILL;
            if (kind[s] == SV_SEG_PREFILL)
                logits = (int32_t)sv_rng_below(&rng, 2);
            rig_batch_add(&b, (s * 7 + round) % 40, 3, n);
            logit0[s + 1] = logit0[s] + logits;
        }
        for (int i = 0; i < 700; i++) {
            ids[i] = (int32_t)sv_rng_below(&rng, 2);
            chosen[i] = sv_rng_below(&rng, 5) ? 1 : 0;
        }
        run_verify(&b, kind, logit0, ids, chosen);
    }
}

/* Copied whole where the rows take their slot past the position, else not at all. */
static void snapshots(void **state)
{
    (void)state;
    enum { MOST = 3000016, LEN = 20 };
    uint8_t *src = rig_new(MOST), *dst = rig_new(MOST);
    for (int32_t i = 0; i < MOST; i++)
        src[i] = (uint8_t)(1 + i % 251);
    for (int32_t n_commit = 1; n_commit < 5; n_commit++)
        for (int32_t at = LEN - 6; at < LEN + 4; at++)
            for (size_t n = 16; n < MOST; n = n * 13 + 16) {
                const int32_t len = LEN;
                memset(dst, 0, n + 16);
                sv_op_snapshot(dev, &(struct sv_p_snapshot){&n_commit, &len, at, src, dst, n});
                const bool copied = at > LEN - n_commit && at <= LEN;
                assert_int_equal(memcmp(dst, src, n) == 0, copied);
                assert_int_equal(dst[0] | dst[n - 1], copied ? src[0] | src[n - 1] : 0);
                assert_int_equal(dst[n], 0);
            }
    rig_free(src), rig_free(dst);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(ids, open_dev, close_dev),
    cmocka_unit_test_setup_teardown(accept_counts, open_dev, close_dev),
    cmocka_unit_test_setup_teardown(replaced_drafts, open_dev, close_dev),
    cmocka_unit_test_setup_teardown(snapshots, open_dev, close_dev),
    cmocka_unit_test_setup_teardown(mixed, open_dev, close_dev)};

int main(int argc, char **argv)
{
    return sv_test_main(argc, argv, __FILE__, tests, sizeof tests / sizeof tests[0]);
}
