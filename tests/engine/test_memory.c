/*
 * test_memory.c - how many pages the pools get, on devices with and without memory of their own,
 * and what is said when one sequence does not fit.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/engine.h"
#include "engine/run.h"

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

/* ---------------------------------------------------------------- the table */

/* The CPU's device, that counts as one with memory of its own does. */
struct counted {
    struct sv_backend be; /* first: the device's table meanwhile */
    const struct sv_backend *real;
    struct sv_ledger held;
    int64_t n_free, n_total;
};

static struct counted *counted_of(const struct sv_dev *dev)
{
    return (struct counted *)(uintptr_t)dev->be;
}

static int counted_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    struct counted *c = counted_of(dev);
    int rc = sv_ledger_room(&c->held, err);
    if (!rc)
        rc = c->real->alloc(dev, out, n_bytes, err);
    if (!rc)
        sv_ledger_enter(&c->held, SV_MEM_ASKED, *out, n_bytes);
    return rc;
}

static void counted_free(struct sv_dev *dev, void *p)
{
    sv_ledger_strike(&counted_of(dev)->held, p);
    counted_of(dev)->real->free(dev, p);
}

static void counted_memory(struct sv_dev *dev, int64_t *n_free, int64_t *n_total)
{
    *n_free = counted_of(dev)->n_free;
    *n_total = counted_of(dev)->n_total;
}

static int64_t counted_held(const struct sv_dev *dev, enum sv_mem kind)
{
    return counted_of(dev)->held.bytes[kind];
}

static int64_t row_of(const struct sv_memory_row *row, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(row[i].name, name) == 0)
            return row[i].n_bytes;
    return -1;
}

/* Every byte that the device gave is in one row, whatever the rest of the GPU does meanwhile. */
static void rows_add_up(void **state)
{
    (void)state;
    const struct sv_engine_options o = {.target_dir = sv_test_path("models/demo/target"),
                                        .draft_dir = sv_test_path("models/demo/draft"),
                                        .device = "cpu",
                                        .max_sequences = 2,
                                        .context = 256};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_memory_row row[SV_MEMORY_ROWS];
    const int32_t n_host = sv_memory_table(e, 0, row);
    assert_int_equal(row_of(row, n_host, "target weights"), e->model.weights.n_bytes);
    assert_true(row_of(row, n_host, "draft weights") > 0);
    assert_int_equal(row_of(row, n_host, "buffers"), -1); /* the host's memory is not counted */

    struct counted c = {
        .be = *e->dev->be, .real = e->dev->be, .n_free = 5 << 20, .n_total = 1000 << 20};
    c.be.alloc = counted_alloc;
    c.be.free = counted_free;
    c.be.memory = counted_memory;
    c.be.held = counted_held;
    e->dev->be = &c.be;
    /* Weights of 7 and 11 bytes, 13 of copies, 17 of scratch; the pools and a buffer by the seam
     * itself. */
    const enum sv_mem kind[] = {SV_MEM_WEIGHTS, SV_MEM_WEIGHTS, SV_MEM_DENSE, SV_MEM_SCRATCH};
    const size_t size[] = {7, 11, 13, 17};
    struct sv_err err = {0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(sv_ledger_room(&c.held, &err), SV_OK);
        sv_ledger_enter(&c.held, kind[i], &size[i], size[i]);
    }
    struct sv_cache other;
    struct sv_cache_group_desc desc[SV_MAX_GROUPS];
    for (int32_t i = 0; i < e->cache.n_groups; i++)
        desc[i] = e->cache.group[i].d;
    void *buffer;
    const struct sv_cache cache = e->cache;
    assert_int_equal(sv_cache_open(&other, e->dev, desc, cache.n_groups, 2, 300, &err), SV_OK);
    assert_int_equal(sv_dev_alloc(e->dev, &buffer, 1000, &err), SV_OK);
    e->cache = other;
    const int32_t n = sv_memory_table(e, 7, row);
    int64_t sum = 0, held = 0, tables = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_true(row[i].n_bytes > 0);
        sum += row[i].n_bytes;
    }
    for (int k = 0; k < SV_MEM_KINDS; k++)
        held += c.held.bytes[k];
    for (int32_t i = 0; i < other.n_groups; i++)
        tables += 2 * other.group[i].stride * (int64_t)sizeof(int32_t);
    assert_int_equal(sum, held);
    assert_int_equal(row_of(row, n, "target weights"), 7);
    assert_int_equal(row_of(row, n, "draft weights"), 11);
    assert_int_equal(row_of(row, n, "dense weights"), 13);
    assert_int_equal(row_of(row, n, "scratch of kernels"), 17);
    assert_int_equal(row_of(row, n, "target K/V"), sv_cache_group_bytes(&desc[0]));
    assert_int_equal(row_of(row, n, "buffers"), 1000 + tables);
    sv_memory_log(e, 7);
    e->cache = cache;
    sv_dev_free(e->dev, buffer);
    sv_cache_close(&other);
    assert_int_equal(c.held.bytes[SV_MEM_ASKED], 0);
    sv_ledger_fini(&c.held);
    e->dev->be = c.real;
    sv_engine_close(e);
}

/* Pieces go in any order, and as many as there are. */
static void ledger(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct sv_ledger l = {0};
    struct sv_err err = {0};
    static char at[N];
    int64_t sum[SV_MEM_KINDS] = {0};
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(sv_ledger_room(&l, &err), SV_OK);
        sv_ledger_enter(&l, (enum sv_mem)(i % SV_MEM_KINDS), &at[i], (size_t)i << 20);
        sum[i % SV_MEM_KINDS] += (int64_t)i << 20;
    }
    for (int32_t i = 0; i < N; i++) {
        const int32_t out = i * 7 % N;
        assert_memory_equal(l.bytes, sum, sizeof sum);
        sv_ledger_strike(&l, &at[out]);
        sum[out % SV_MEM_KINDS] -= (int64_t)out << 20;
    }
    assert_memory_equal(l.bytes, sum, sizeof sum);
    assert_int_equal(l.n, 0);
    sv_ledger_fini(&l);
    sv_fault_arm(1);
    assert_int_equal(sv_ledger_room(&l, &err), SV_ENOMEM);
    sv_fault_arm(0);
}

/* On a GPU, alone on it: the share asked for is what is taken, graphs of many sequences and all
 * buffers included, but for what is kept back for the driver. */
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
        int64_t taken = n_total - n_free, asked = (int64_t)(share * (double)n_total), counted = 0;
        for (int k = 0; k < SV_MEM_KINDS; k++)
            counted += sv_dev_held(e->dev, (enum sv_mem)k);
        assert_true(counted > 0 && counted <= taken); /* what is left: context, code, graphs */
        print_message("%lld of %lld MiB taken, %lld of them counted\n", (long long)(taken >> 20),
                      (long long)(asked >> 20), (long long)(counted >> 20));
        assert_true(taken <= asked && taken > asked - ((int64_t)512 << 20));
        sv_engine_close(e);
    }
}

SV_TEST_MAIN(cmocka_unit_test(shared_with_the_host), cmocka_unit_test(memory_of_its_own),
             cmocka_unit_test(rows_add_up), cmocka_unit_test(ledger),
             cmocka_unit_test(share_of_a_gpu))
