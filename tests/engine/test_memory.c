/*
 * test_memory.c - how many pages the pools get, on devices with and without memory of their own, and what is
 * said when one sequence does not fit.
 */
#include "testing.h"

#include "engine/engine.h"

#include <string.h>

#define GIB ((int64_t)1 << 30)

static const struct sv_memory_ask host = {.ram_bytes = 10 * GIB,
                                          .page_bytes = 1 << 20,
                                          .page_size = 16,
                                          .n_slots = 4,
                                          .context = 1000,
                                          .n_positions = 1016,
                                          .keep_prefixes = true};

static int32_t pages(struct sv_memory_ask a)
{
    int32_t n = -1;
    struct sv_err err = {0};
    if (sv_memory_pages(&a, &n, &err))
        fail_msg("%s", err.msg);
    return n;
}

static void refused(struct sv_memory_ask a, const char *says)
{
    int32_t n = -1;
    struct sv_err err = {0};
    assert_int_equal(sv_memory_pages(&a, &n, &err), SV_ENOMEM);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

static void shared_with_the_host(void **state)
{
    (void)state;
    struct sv_memory_ask a = host;
    assert_int_equal(pages(a), 4 * 64); /* all slots at full length: 1016 positions are 64 pages */
    a.ram_bytes = GIB / 4;
    assert_int_equal(pages(a), 102); /* 40 % of 256 MiB */
    a.cache_bytes = 500 << 20;
    assert_int_equal(pages(a), 500); /* who names a size gets it, for prefixes */
    a.keep_prefixes = false;
    assert_int_equal(pages(a), 256); /* or what can be used */
    a.cache_bytes = 63 << 20;
    refused(a, "a context of 992 would fit"); /* 63 pages less the 16 beyond the context */
    a.cache_bytes = 64 << 20;
    assert_int_equal(pages(a), 64);
    a.cache_bytes = 1 << 20;
    refused(a, "no context would fit");
}

static void memory_of_its_own(void **state)
{
    (void)state;
    struct sv_memory_ask a = host;
    a.n_total = 100 * GIB;
    a.n_free = 80 * GIB;
    a.later_bytes = GIB;
    assert_int_equal(pages(a), 4 * 4 * 64);
    a.keep_prefixes = false;
    assert_int_equal(pages(a), 4 * 64);
    a.keep_prefixes = true;
    a.share = 0.9; /* asked for: all of it, less what others and later buffers hold */
    assert_int_equal(pages(a), (90 - 20 - 1) * 1024);
    a.share = 0.21;
    a.later_bytes = 0;
    assert_in_range(pages(a), 1023, 1024);
    a.later_bytes = GIB - (63 << 20);
    refused(a, "of the device's 102400 MiB");
    refused(a, "a context of 992 would fit");
    a.share = 0.1; /* others hold more than the share */
    refused(a, "no context would fit");
    a.share = 0;
    a.n_free = 2 * GIB; /* free counts, not only the share */
    a.n_total = 2 * GIB + 1;
    a.later_bytes = GIB;
    assert_in_range(pages(a), 800, 1024);
    a.cache_bytes = 100 << 20;
    assert_int_equal(pages(a), 100);
}

/* On a GPU, alone on it: the share asked for is what is taken, graphs of many sequences and all buffers included,
 * but for what is kept back for the driver. */
static void share_of_a_gpu(void **state)
{
    (void)state;
    const char *device = sv_env("SALVO_TEST_DEVICE");
    if (!device || strncmp(device, "cuda", 4) != 0)
        skip();
    for (int drafts = 0; drafts < 2; drafts++) {
        const double share = 0.15;
        const struct sv_engine_options o = {.target_dir = sv_test_path("models/demo/target"),
                                            .draft_dir =
                                                drafts ? sv_test_path("models/demo/draft") : NULL,
                                            .device = "cuda",
                                            .max_sequences = 16,
                                            .context = 1024,
                                            .gpu_memory = share};
        struct sv_engine *e;
        struct sv_err err = {0};
        int64_t n_free, n_total;
        if (sv_engine_open(&e, &o, NULL, &err))
            fail_msg("%s", err.msg);
        sv_dev_memory(e->dev, &n_free, &n_total);
        int64_t taken = n_total - n_free, asked = (int64_t)(share * (double)n_total);
        print_message("%lld of %lld MiB taken\n", (long long)(taken >> 20), (long long)(asked >> 20));
        assert_true(taken <= asked && taken > asked - ((int64_t)512 << 20));
        sv_engine_close(e);
    }
}

SV_TEST_MAIN(cmocka_unit_test(shared_with_the_host), cmocka_unit_test(memory_of_its_own),
             cmocka_unit_test(share_of_a_gpu))
