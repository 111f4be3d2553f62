/*
 * test_device.c - the life of a device: what open refuses and how it says so, memory, copies,
 * weights in place, errors latched until sync, failing allocations, and the small functions of the
 * seam.
 */
#include "rig.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

static int try_open(const char *backend, int n_threads, enum sv_isa isa, enum sv_dtype compute,
                    struct sv_err *err)
{
    struct sv_dev_opts opts = {
        .backend = backend, .n_threads = n_threads, .tuning.isa = isa, .compute = compute};
    struct sv_dev *dev;
    memset(err, 0, sizeof *err);
    int rc = sv_dev_open(&dev, &opts, err);
    if (rc == SV_OK)
        sv_dev_close(dev);
    else
        assert_null(dev);
    return rc;
}

static void open_by_name(void **state)
{
    (void)state;
    struct sv_err err;
    assert_int_equal(try_open(NULL, 1, SV_ISA_AUTO, SV_F32, &err), SV_OK);
    assert_int_equal(try_open("cpu", 3, SV_ISA_PLAIN, SV_BF16, &err), SV_OK);
    if (try_open("cuda", 1, SV_ISA_AUTO, SV_F32, &err)) { /* not built, or no GPU */
        assert_int_equal(err.code, SV_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, "cuda"));
    } else {
        assert_int_equal(try_open("cuda", 1, SV_ISA_AVX2, SV_F32, &err), SV_EINVAL);
        assert_int_equal(try_open("cuda", 1, SV_ISA_AUTO, SV_F16, &err), SV_EUNSUPPORTED);
    }
    if (try_open("hip", 1, SV_ISA_AUTO, SV_F32, &err)) { /* likewise */
        assert_int_equal(err.code, SV_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, "hip"));
    }
    assert_int_equal(try_open("abacus", 1, SV_ISA_AUTO, SV_F32, &err), SV_EINVAL);
    assert_non_null(strstr(err.msg, "abacus"));
    assert_int_equal(try_open("cpu", -1, SV_ISA_AUTO, SV_F32, &err), SV_EINVAL);
    assert_int_equal(try_open("cpu", 1, (enum sv_isa)99, SV_F32, &err), SV_EINVAL);
    assert_int_equal(try_open("cpu", 1, SV_ISA_AUTO, SV_F16, &err), SV_EUNSUPPORTED);
    for (int isa = SV_ISA_PLAIN; isa <= SV_ISA_AMX; isa++)
        assert_int_equal(try_open("cpu", 1, (enum sv_isa)isa, SV_F32, &err),
                         sv_cpu_has_isa((enum sv_isa)isa) ? SV_OK : SV_EUNSUPPORTED);
}

static void memory(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 1, SV_F32);
    struct sv_err err;
    uint8_t *p;
    assert_int_equal(sv_dev_alloc(dev, (void **)&p, 100000, &err), SV_OK);
    assert_int_equal((uintptr_t)p % SV_ALIGN, 0);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(p[i], 0);
    sv_dev_upload(dev, p + 3, "hello", 6);
    char back[6];
    sv_dev_download(dev, back, p + 3, 6);
    assert_string_equal(back, "hello");
    sv_dev_upload(dev, p, NULL, 0);
    sv_dev_copy(dev, p + 50, p + 3, 6);
    sv_dev_copy(dev, p + 4, NULL, 2);
    sv_dev_copy(dev, p, NULL, 0);
    sv_dev_download(dev, back, p + 50, 6);
    assert_string_equal(back, "hello");
    sv_dev_download(dev, back, p + 3, 6);
    assert_memory_equal(back, "h\0\0lo", 6);
    sv_dev_free(dev, p);
    sv_dev_free(dev, NULL);

    const float host[4] = {1, 2, 3, 4};
    struct sv_weight weight;
    assert_int_equal(
        sv_dev_upload_weight(
            dev, &(struct sv_weight){.data = host, .fmt.elem = SV_F32, .rows = 1, .cols = 4},
            &weight, &err),
        SV_OK);
    assert_ptr_equal(weight.data, host);
    assert_null(weight.priv);
    assert_int_equal(sv_dev_act_dtype(dev), SV_F32);
    assert_int_equal(sv_dev_compute_dtype(dev), SV_F32);
    assert_string_equal(sv_dev_backend(dev)->name, "cpu");
    assert_memory_equal(sv_dev_describe(dev), "cpu ", 4);
    assert_non_null(strstr(sv_dev_describe(dev), "1 thread"));
    assert_true(sv_dev_measure_read(dev, 1 << 20) > 0);
    assert_true(sv_dev_measure_read(dev, 10) == 0);
    sv_dev_close(dev);
    sv_dev_close(NULL);
}

/* Whatever call fails, open and reserve say so and leave nothing behind. */
static void faults(void **state)
{
    (void)state;
    const struct sv_dev_limits lim = {.max_rows = 64,
                                      .max_logit_rows = 16,
                                      .max_k = 256,
                                      .max_n = 256,
                                      .max_heads = 8,
                                      .max_head_dim = 64,
                                      .max_vocab = 1000,
                                      .max_positions = 512};
    const struct sv_dev_opts opts = {.backend = "cpu", .n_threads = 2};
    int64_t live = sv_alloc_live();
    bool done = false;
    for (int64_t nth = 1; !done; nth++) {
        struct sv_dev *dev = NULL;
        struct sv_err err;
        void *p = NULL;
        sv_fault_arm(nth);
        int rc = sv_dev_open(&dev, &opts, &err);
        if (rc == SV_OK)
            rc = sv_dev_reserve(dev, &lim, &err);
        if (rc == SV_OK)
            rc = sv_dev_alloc(dev, &p, 1000, &err);
        done = sv_fault_calls() < nth;
        sv_fault_arm(0);
        assert_true(done ? rc == SV_OK : rc < 0);
        if (rc == SV_OK)
            sv_dev_free(dev, p);
        sv_dev_close(dev);
        assert_int_equal(sv_alloc_live(), live);
        assert_true(nth < 1000);
    }
}

static void latched(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 2, SV_F32);
    struct sv_err err = {0};
    rig_sync(dev, SV_OK);
    sv_cpu_latch(sv_cpu_of(dev), "first %d", 1);
    sv_cpu_latch(sv_cpu_of(dev), "second");
    assert_int_equal(sv_dev_sync(dev, &err), SV_EDEVICE);
    assert_string_equal(err.msg, "first 1");
    rig_sync(dev, SV_OK);
    sv_dev_close(dev);
}

static void no_rows(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 1, SV_F32);
    sv_op_block_ids(dev, &(struct sv_p_block_ids){.mask_id = 0});
    sv_op_embed(dev, &(struct sv_p_embed){.n_rows = 0});
    sv_op_add_rms_norm(dev, &(struct sv_p_add_rms_norm){.n_rows = 0});
    sv_op_gemm(dev, &(struct sv_p_gemm){.n_rows = 0});
    sv_op_gemm_act_mul(dev, &(struct sv_p_gemm_act_mul){.n_rows = 0});
    sv_op_qk_norm_rope_kv_write(dev, &(struct sv_p_qk_norm_rope_kv_write){.ld = 0});
    sv_op_attention(dev, &(struct sv_p_attention){.ldq = 0});
    sv_op_act_mul(dev, &(struct sv_p_act_mul){.n_rows = 0});
    sv_op_head_argmax(dev, &(struct sv_p_head_argmax){.n_rows = 0});
    sv_op_logit_pos(dev, &(struct sv_p_logit_pos){.n_logit_rows = 0});
    sv_op_sample(dev, &(struct sv_p_sample){.n_rows = 0});
    sv_op_verify(dev, &(struct sv_p_verify){.out_stride = 0});
    sv_op_commit(dev, &(struct sv_p_commit){.n_segs = 0});
    sv_op_draft_context_kv(dev, &(struct sv_p_draft_context_kv){.n_layers = 0});
    rig_sync(dev, SV_OK);
    sv_dev_close(dev);
}

static void dtypes(void **state)
{
    (void)state;
    assert_int_equal(sv_dtype_bytes(SV_F32), 4);
    assert_int_equal(sv_dtype_bytes(SV_BF16), 2);
    assert_int_equal(sv_dtype_bytes(SV_F16), 2);
    assert_int_equal(sv_dtype_bytes(SV_I32), 4);
    assert_string_equal(sv_dtype_name(SV_BF16), "bf16");
    for (uint32_t h = 0; h < 0x10000; h++) {
        int exp = (int)(h >> 10 & 31);
        double man = h & 0x3ff, x = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
        float f = sv_f16_to_f32((uint16_t)h);
        if (exp == 31)
            assert_true(man > 0 ? isnan(f) : isinf(f));
        else
            assert_true((double)fabsf(f) == x);
        assert_int_equal(signbit(f) != 0, h >> 15);
    }
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = sv_bf16_to_f32((uint16_t)h);
        assert_true(sv_f32_to_bf16(f) == h || isnan(f));
    }
}

/* The row kernels narrow like sv_f32_to_bf16, bit for bit: through a cache write without norm or
 * rotation. */
static void narrowing(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    struct sv_rng rng = {4};
    for (int i = 0; i < n; i++) {
        struct sv_dev *dev = rig_open(isa[i], 1, SV_F32);
        for (int round = 0; round < 200; round++) {
            uint32_t bits[3 * 56];
            float x[3 * 56], angle[1] = {0};
            uint16_t k[56], v[56];
            const int32_t zero[2] = {0, 1};
            for (int j = 0; j < 3 * 56; j++) {
                bits[j] = (uint32_t)sv_rng_next(&rng);
                if (j % 7 == 0)
                    bits[j] = (bits[j] & 0x80ffffffu) | (uint32_t)(j % 2 ? 0x7f000000 : 0);
                if (j % 5 == 0)
                    bits[j] = (bits[j] & 0xffff0000u) | 0x8000u; /* halfway */
            }
            memcpy(x, bits, sizeof x);
            struct sv_p_qk_norm_rope_kv_write p = {.rows = {1, 1, zero, zero, zero, zero, zero},
                                                   .qkv = x,
                                                   .ld = 3 * 56,
                                                   .n_heads = 1,
                                                   .rope = {angle, angle, 1, 0},
                                                   .kv = {.k = k,
                                                          .v = v,
                                                          .dtype = SV_BF16,
                                                          .n_pages = 1,
                                                          .page_size = 1,
                                                          .n_kv_heads = 1,
                                                          .head_dim = 56,
                                                          .table = zero,
                                                          .table_stride = 1}};
            sv_op_qk_norm_rope_kv_write(dev, &p);
            for (int j = 0; j < 56; j++) {
                assert_int_equal(k[j], sv_f32_to_bf16(x[56 + j]));
                assert_int_equal(v[j], sv_f32_to_bf16(x[112 + j]));
            }
        }
        sv_dev_close(dev);
    }
}

SV_TEST_MAIN(cmocka_unit_test(open_by_name), cmocka_unit_test(memory), cmocka_unit_test(faults),
             cmocka_unit_test(latched), cmocka_unit_test(no_rows), cmocka_unit_test(dtypes),
             cmocka_unit_test(narrowing))
