/*
 * test_table.c - a device opens only with a table that has every op: each function of the CPU's
 * table is taken out in turn, and what may be missing is what the headers say.
 */
#include "rig.h"

#include "backend/backends.h"
#include "backend/ops_gdn.h"
#include "backend/ops_mla.h"
#include "backend/ops_moe.h"
#include "backend/ops_vision.h"

#include <string.h>

enum { EACH = sizeof(void (*)(void)) };

/* Members of the table that may be NULL, by their offsets: device.h says so of each. */
static bool is_optional(size_t at)
{
    const size_t may_be_null[] = {
        offsetof(struct sv_backend, held),        offsetof(struct sv_backend, quantizes),
        offsetof(struct sv_backend, stamp),       offsetof(struct sv_backend, stamp_us),
        offsetof(struct sv_backend, moe),         offsetof(struct sv_backend, argmax_confidence),
        offsetof(struct sv_backend, gdn),         offsetof(struct sv_backend, mla),
        offsetof(struct sv_backend, window_open), offsetof(struct sv_backend, vision),
        offsetof(struct sv_backend, takes_codes), offsetof(struct sv_backend, rounds),
        offsetof(struct sv_backend, place),       offsetof(struct sv_backend, share_rows),
    };
    for (size_t i = 0; i < sizeof may_be_null / sizeof *may_be_null; i++)
        if (at == may_be_null[i])
            return true;
    return false;
}

/* Takes each function from `from` to `to` out of *table, which is part of be's, in turn. */
static int32_t take_out(const struct sv_backend *be, void *table, size_t from, size_t to)
{
    int32_t n_refused = 0;
    for (size_t at = from; at <= to; at += EACH) {
        char kept[EACH];
        struct sv_err err = {0};
        memcpy(kept, (char *)table + at, EACH);
        memset((char *)table + at, 0, EACH);
        int rc = sv_table_check(be, &err);
        if (table == be && is_optional(at)) {
            assert_int_equal(rc, SV_OK);
        } else {
            assert_int_equal(rc, SV_EUNSUPPORTED);
            assert_non_null(strstr(err.msg, "the cpu backend has no "));
            n_refused++;
        }
        memcpy((char *)table + at, kept, EACH);
    }
    return n_refused;
}

static void each_op(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 1, SV_F32);
    struct sv_backend be = *sv_dev_backend(dev);
    struct sv_moe_ops moe = *be.moe;
    struct sv_gdn_ops gdn = *be.gdn;
    struct sv_mla_ops mla = *be.mla;
    struct sv_vision_ops vision = *be.vision;
    struct sv_err err = {0};
    be.moe = &moe;
    be.gdn = &gdn;
    be.mla = &mla;
    be.vision = &vision;
    assert_int_equal(sv_table_check(&be, &err), SV_OK);
    assert_int_equal(take_out(&be, &be, offsetof(struct sv_backend, close),
                              offsetof(struct sv_backend, compute_dtype)),
                     47);
    assert_int_equal(
        take_out(&be, &moe, offsetof(struct sv_moe_ops, upload_experts), sizeof moe - EACH), 6);
    assert_int_equal(take_out(&be, &gdn, offsetof(struct sv_gdn_ops, conv), sizeof gdn - EACH), 4);
    assert_int_equal(take_out(&be, &mla, 0, sizeof mla - EACH), 2);
    assert_int_equal(
        take_out(&be, &vision, offsetof(struct sv_vision_ops, layer_norm), sizeof vision - EACH),
        3);
    sv_dev_close(dev);
}

/* The error names the op; ops of a group are only missed where the group is there. */
static void names(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 1, SV_F32);
    struct sv_backend be = *sv_dev_backend(dev);
    struct sv_moe_ops moe = *be.moe;
    struct sv_err err = {0};
    be.name = "abacus";
    be.verify = NULL;
    assert_int_equal(sv_table_check(&be, &err), SV_EUNSUPPORTED);
    assert_string_equal(err.msg, "the abacus backend has no verify");
    be.verify = sv_dev_backend(dev)->verify;
    be.moe = &moe;
    moe.down = NULL;
    assert_int_equal(sv_table_check(&be, &err), SV_EUNSUPPORTED);
    assert_string_equal(err.msg, "the abacus backend has no moe.down");
    be.moe = NULL;
    be.add_gated = NULL;
    be.vision = NULL;
    be.gdn = NULL;
    be.sigmoid_mul = NULL;
    be.snapshot = NULL;
    assert_int_equal(sv_table_check(&be, &err), SV_OK);
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(each_op), cmocka_unit_test(names))
