/*
 * test_part.c - a rank's part of a checkpoint: a device that takes columns in place is given the
 * bytes that others are given in a copy.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"
#include "model/model.h"

#include <string.h>

enum { MOST = 512 };

/* What a device was given, matrix by matrix. */
static struct {
    int n, n_in_place;
    uint64_t hash[MOST];
} given;

static int take(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                struct sv_err *err)
{
    const size_t row = (size_t)host->cols * sv_dtype_bytes(host->fmt.elem),
                 stride = host->row_stride ? host->row_stride : row;
    uint64_t h = (uint64_t)host->role << 56 ^ (uint64_t)host->rows << 28 ^ (uint64_t)host->cols;
    (void)dev, (void)err;
    assert_true(given.n < MOST);
    for (size_t r = 0; r < (size_t)host->rows; r++)
        for (size_t i = 0; i < row; i++)
            h = (h ^ ((const uint8_t *)host->data)[r * stride + i]) * 1099511628211u;
    given.hash[given.n++] = h;
    given.n_in_place += stride != row;
    *out = *host;
    return SV_OK;
}

static int take_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                        struct sv_weight *out, struct sv_err *err)
{
    for (int32_t e = 0; e < n; e++)
        take(dev, &host[e], &out[e], err);
    return SV_OK;
}

static void drop(struct sv_dev *dev, struct sv_weight *w)
{
    (void)dev, (void)w;
}
static void drop_experts(struct sv_dev *dev, struct sv_weight *w, int32_t n)
{
    (void)dev, (void)w, (void)n;
}

static void open_part(const char *dir, struct sv_ranks ranks, bool takes_columns)
{
    struct sv_dev *dev;
    struct sv_model m;
    struct sv_err err = {0};
    const struct sv_dev_opts o = {
        .backend = "cpu", .n_threads = 1, .compute = SV_F32, .ranks = ranks};
    assert_int_equal(sv_dev_open(&dev, &o, &err), SV_OK);
    struct {
        SV_DEV_HEAD;
    } *head = (void *)dev;
    const struct sv_backend *cpu = head->be;
    struct sv_moe_ops moe = *cpu->moe;
    struct sv_backend be = *cpu;
    moe.upload_experts = take_experts;
    moe.free_experts = drop_experts;
    be.moe = &moe;
    be.takes_columns = takes_columns;
    be.upload_weight = take;
    be.free_weight = drop;
    head->be = &be;
    given.n = given.n_in_place = 0;
    if (sv_model_open(&m, dev, dir, 0, &err))
        fail_msg("%s: %s", dir, err.msg);
    sv_model_close(&m);
    head->be = cpu;
    sv_dev_close(dev);
}

static void columns(void **state)
{
    (void)state;
    for (int experts = 0; experts < 2; experts++) {
        struct toy t = {.vocab = RUN_VOCAB,
                        .hidden = 64,
                        .n_layers = 2,
                        .n_heads = 8,
                        .n_kv = 2,
                        .head_dim = 16,
                        .mlp = 150,
                        .max_position = 64,
                        .block = 8,
                        .draft_layers = 1,
                        .seed = 5,
                        .bf16 = !experts};
        t.n_experts = experts ? 6 : 0;
        t.n_chosen = experts ? 2 : 0;
        t.expert_mlp = experts ? 90 : 0;
        const char *dir = toy_target(&t);
        for (int32_t n = 2; n <= 4; n += 2)
            for (int32_t rank = 0; rank < n; rank++) {
                uint64_t copied[MOST];
                open_part(dir, (struct sv_ranks){.rank = rank, .n = n}, false);
                const int n_given = given.n;
                memcpy(copied, given.hash, sizeof copied);
                assert_int_equal(given.n_in_place, 0);
                open_part(dir, (struct sv_ranks){.rank = rank, .n = n}, true);
                assert_int_equal(given.n, n_given);
                assert_memory_equal(given.hash, copied, (size_t)n_given * sizeof *copied);
                /* o, and down, of which the second layer has six */
                assert_int_equal(given.n_in_place, 2 + 1 + (experts ? 6 : 1));
            }
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(columns))
