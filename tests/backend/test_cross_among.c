/*
 * test_cross_among.c - the best of a few tokens (head_among) on every device of this machine,
 * against the matrix product over the whole head on the same device.
 */
#include "backend/cross.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 256 };

/* Lists of 1, 2, 3 ... and of MOST tokens, ascending, without a token twice. */
static int32_t make_lists(struct cross *c, int32_t n, int32_t vocab, int32_t *first, int32_t *ids)
{
    int32_t n_ids = 0;
    for (int32_t r = 0; r < n; r++) {
        int32_t len = r == n - 1 ? MOST : 1 + r * r % 67, id = 0;
        len = len < vocab ? len : vocab;
        first[r] = n_ids;
        for (int32_t i = 0; i < len; i++, id++) {
            id += (int32_t)sv_rng_below(&c->rng, (uint32_t)((vocab - id) / (len - i)));
            ids[n_ids++] = id;
        }
    }
    return first[n] = n_ids;
}

static void check_row(const float *want, const float *got, const int32_t *ids, int32_t n,
                      int32_t best, float confidence, double tol)
{
    int32_t at = -1;
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_true(fabs((double)want[ids[i]] - (double)got[i]) <
                    tol * fmax(1, fabs((double)want[ids[i]])));
        at = ids[i] == best ? i : at;
        max = fmax(max, (double)got[i]);
    }
    assert_true(at >= 0 && (double)got[at] >= max);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)got[i] - max);
    assert_true(fabs(1 / sum - (double)confidence) < 1e-4);
}

static void among_case(struct cross *c, enum sv_dtype dtype, int32_t n, int32_t k, int32_t vocab)
{
    int32_t *first = calloc((size_t)n + 1, 4), *ids = calloc((size_t)n * MOST, 4);
    int32_t *row = calloc((size_t)n, 4);
    const int32_t n_ids = make_lists(c, n, vocab, first, ids);
    for (int32_t r = 0; r < n; r++)
        row[r] = (r * 3 + 1) % n;
    struct cross_weight w = cross_weight(c, dtype, vocab, k, 2 / sqrtf((float)k), 0);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)n * (size_t)k, NULL, 1);
    struct cross_buf y = cross_new(c, CROSS_F32, (size_t)n * (size_t)vocab, NULL, 0);
    struct cross_buf rows = cross_new(c, CROSS_I32, (size_t)n, row, 0);
    struct cross_buf at = cross_new(c, CROSS_I32, (size_t)n + 1, first, 0);
    struct cross_buf list = cross_new(c, CROSS_I32, (size_t)n_ids, ids, 0);
    struct cross_buf logits = cross_new(c, CROSS_F32, (size_t)n_ids, NULL, 0);
    struct cross_buf out = cross_new(c, CROSS_I32, (size_t)n, NULL, 0);
    struct cross_buf confidence = cross_new(c, CROSS_F32, (size_t)n, NULL, 0);
    const struct sv_gemm_part part = {.w = w.dut};
    sv_op_gemm(c->dut, &(struct sv_p_gemm){.n_rows = n,
                                           .k = k,
                                           .n_parts = 1,
                                           .x = x.dut,
                                           .ldx = k,
                                           .parts = &part,
                                           .y = y.dut,
                                           .ldy = vocab,
                                           .y_f32 = true});
    sv_op_head_among(c->dut, &(struct sv_p_head_among){.n_rows = n,
                                                       .k = k,
                                                       .x = x.dut,
                                                       .row = rows.dut,
                                                       .w = w.dut,
                                                       .n_ids = n_ids,
                                                       .first = at.dut,
                                                       .ids = list.dut,
                                                       .logits = logits.dut,
                                                       .out = out.dut,
                                                       .confidence = confidence.dut});
    cross_sync(c);
    float *want = cross_floats(c, &y), *got = cross_floats(c, &logits),
          *s = cross_floats(c, &confidence);
    int32_t *best = cross_ints(c, &out);
    for (int32_t r = 0; r < n; r++)
        check_row(want + (size_t)row[r] * (size_t)vocab, got + first[r], ids + first[r],
                  first[r + 1] - first[r], best[r], s[r], c->tol);
    free(want), free(got), free(s), free(best), free(first), free(ids), free(row);
    cross_free(c, &x), cross_free(c, &y), cross_free(c, &rows), cross_free(c, &at);
    cross_free(c, &list), cross_free(c, &logits), cross_free(c, &out), cross_free(c, &confidence);
    cross_weight_free(c, &w);
}

static void among_on(struct cross *c)
{
    among_case(c, SV_BF16, 1, 64, 300);
    among_case(c, SV_BF16, 7, 320, 6144);
    among_case(c, SV_F32, 5, 100, 777);
    if (!c->quick)
        among_case(c, SV_BF16, 32, 1024, 151936);
}

static void among(void **state)
{
    (void)state;
    cross_all(among_on);
}

SV_TEST_MAIN(cmocka_unit_test(among))
