/*
 * test_moe.c - a model with a mixture of experts opens: random weights, the bytes they take, a
 * device that has none of its ops or those of other families, and every allocation that fails.
 */
#include "testing.h"

#include "backend/backends.h"
#include "base/base.h"
#include "engine/run.h"
#include "model/model.h"

#include <string.h>

static struct sv_dev *cpu(bool compressed)
{
    struct sv_dev *dev = NULL;
    struct sv_err err = {0};
    const struct sv_dev_opts o = {.backend = "cpu",
                                  .n_threads = 1,
                                  .compute = SV_BF16,
                                  .tuning.compress_weights =
                                      compressed ? SV_TOGGLE_ON : SV_TOGGLE_OFF};
    if (sv_dev_open(&dev, &o, &err))
        fail_msg("%s", err.msg);
    return dev;
}

static void random_weights(void **state)
{
    (void)state;
    struct sv_model m;
    struct sv_err err = {0};
    struct sv_dev *dev = cpu(false);
    const char *dir = run_dir("tests/golden/tiny/qwen3_moe_bf16");
    if (sv_model_open_random(&m, dev, dir, 64, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(m.weights.n_bytes, 2 * sv_config_n_params(&m.cfg));
    assert_int_equal(sv_weights_kept_bytes(&m.weights), m.weights.n_bytes);
    const struct sv_moe *moe = &m.stack.layers[0].moe;
    assert_int_equal(m.stack.layers[0].ffn, SV_FFN_MOE);
    assert_int_equal(m.stack.layers[1].ffn, SV_FFN_DENSE);
    assert_int_equal(moe->n_experts, 11);
    const size_t n_bytes = (size_t)moe->up.rows * (size_t)moe->up.cols * 2;
    for (int32_t e = 1; e < moe->up.n; e++) /* no two alike */
        assert_true(memcmp(moe->up.w[0].data, moe->up.w[e].data, n_bytes) != 0);
    assert_true(memcmp(moe->up.w[0].data, moe->gate.w[0].data, n_bytes) != 0);
    sv_model_close(&m);
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Refused when the model opens, and nothing runs in place of what is missing. */
static void a_device_without_experts(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *message;
    } cases[] = {{"tests/golden/tiny/qwen3_moe_f32", "the cpu backend has no mixture of experts"},
                 {"tests/golden/tiny/qwen3_5_bf16", "the cpu backend has no gated delta rule"},
                 {"tests/golden/tiny/deepseek_bf16", "the cpu backend has no latent attention"},
                 {"tests/golden/tiny/kimi_int4", "the cpu backend has no latent attention"}};
    struct sv_model m;
    struct sv_dev *dev = cpu(false);
    const struct sv_backend *with = dev->be;
    struct sv_backend without = *with;
    without.moe = NULL, without.gdn = NULL, without.mla = NULL;
    dev->be = &without;
    for (int i = 0; i < 8; i++) {
        struct sv_err err = {0};
        const int random = i % 2;
        const char *dir = run_dir(cases[i / 2].dir);
        const int rc = random ? sv_model_open_random(&m, dev, dir, 64, &err)
                              : sv_model_open(&m, dev, dir, 64, &err);
        assert_int_equal(rc, SV_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, cases[i / 2].message));
        assert_non_null(strstr(err.msg, dir));
    }
    dev->be = with;
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

static void every_fault_is_survived(void **state)
{
    (void)state;
    for (int compressed = 0; compressed < 2; compressed++) {
        struct sv_dev *dev = cpu(compressed);
        const int64_t live = sv_alloc_live();
        bool opened = false;
        for (int n = 1; !opened; n += 1 + n / 8) {
            struct sv_model m;
            struct sv_err err = {0};
            sv_fault_arm(n);
            opened = !sv_model_open(&m, dev, run_dir("tests/golden/tiny/qwen3_moe_bf16"), 64, &err);
            sv_fault_arm(0);
            if (opened)
                sv_model_close(&m);
            else
                assert_true(err.msg[0] != 0);
            assert_int_equal(sv_alloc_live(), live);
        }
        sv_dev_close(dev);
    }
}

SV_TEST_MAIN(cmocka_unit_test(random_weights), cmocka_unit_test(a_device_without_experts),
             cmocka_unit_test(every_fault_is_survived))
