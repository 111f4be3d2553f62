/* test_alloc.c - the allocator's hooks: alignment, counting, the fault countdown, the guard. */
#include "testing.h"
#include "base/base.h"

static void blocks_are_aligned_and_counted(void **state)
{
    (void)state;
    int64_t before = sv_alloc_live();
    void *p = sv_alloc(1), *q = sv_calloc(3, 5), *z = sv_alloc(0);
    assert_int_equal((uintptr_t)p % SV_ALIGN, 0);
    assert_int_equal((uintptr_t)q % SV_ALIGN, 0);
    assert_non_null(z);
    assert_int_equal(sv_alloc_live(), before + 3);
    sv_free(p);
    sv_free(q);
    sv_free(z);
    sv_free(NULL);
    assert_int_equal(sv_alloc_live(), before);
}

SV_TEST_MAIN(cmocka_unit_test(blocks_are_aligned_and_counted))
