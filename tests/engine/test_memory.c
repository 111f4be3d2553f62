/*
 * test_memory.c - how many pages the pools get, on devices with and without memory of their own,
 * and the error when one sequence does not fit.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/engine.h"
#include "engine/run.h"

#include <string.h>

#define GIB ((int64_t)1 << 30)

static const struct sv_memory_ask host = {.ram_bytes = 10 * GIB,
                                          .page_size = 16,
                                          .n_slots = 4,
                                          .context = 1000,
                                          .n_positions = 1016,
                                          .keep_prefixes = true};

/* K/V of both kinds, a page of 16 positions takes 1 MiB. */
static const struct sv_cache_group_desc full = {
    .n_layers = 8, .n_kv_heads = 8, .head_dim = 128, .dtype = SV_F32, .page_size = 16};

static int32_t pages(struct sv_memory_ask a)
{
    struct sv_err err = {0};
    struct sv_cache_group_desc d = full;
    a.group = &d;
    a.n_groups = 1;
    if (sv_memory_pages(&a, &err))
        fail_msg("%s", err.msg);
    return d.n_pages;
}

static void refused(struct sv_memory_ask a, const char *says)
{
    struct sv_err err = {0};
    struct sv_cache_group_desc d = full;
    a.group = &d;
    a.n_groups = 1;
    assert_int_equal(sv_memory_pages(&a, &err), SV_ENOMEM);
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
    assert_int_equal(pages(a), 500); /* an explicit size is used in full, for prefixes */
    a.keep_prefixes = false;
    assert_int_equal(pages(a), 256); /* or what can be used */
    a.cache_bytes = 63 << 20;
    refused(a, "a context of 992 would fit"); /* 63 pages less the 16 beyond the context */
    a.cache_bytes = (64 << 20) - 1;
    refused(a, "needs 64 MiB of cache and 63 MiB are allowed");
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

/* A draft of four sliding layers out of five beside a target that keeps all positions: windows of
 * as many sequences as there is room for, and what the steps in flight add. */
static void windows_take_less(void **state)
{
    (void)state;
    struct sv_cache_group_desc d[3] = {full, full, full};
    struct sv_err err = {0};
    struct sv_memory_ask a = host;
    d[1].owner = d[2].owner = SV_CACHE_DRAFT;
    d[1].n_layers = 1;
    d[2].n_layers = 4;
    d[2].window = 2048;
    a.n_slots = 8;
    a.context = 32000;
    a.n_positions = 32064; /* 2004 pages */
    a.step_rows = 640;     /* 40 pages */
    a.group = d;
    a.n_groups = 3;
    a.n_total = a.n_free = 1000 * GIB;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_int_equal(d[0].n_pages, 4 * 8 * 2004); /* prefixes get a few times what runs */
    assert_int_equal(d[1].n_pages, d[0].n_pages);
    assert_int_equal(d[2].n_pages, 4 * 8 * (128 + 2) + 40 + 8016); /* an eighth for prefixes */

    a.n_total = a.n_free = 0; /* 16,032 full pages, at 1 + 1/8 MiB, and 1,080 of half a MiB */
    a.ram_bytes = 1000 * GIB;
    a.keep_prefixes = false;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_int_equal(d[0].n_pages, 8 * 2004);
    assert_int_equal(d[2].n_pages, 8 * 130 + 40);
    a.cache_bytes = (8 * 2004 * (int64_t)(8 + 1) + 1080 * 4) << 17;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_true(d[0].n_pages == 8 * 2004 && d[2].n_pages == 8 * 130 + 40);
    a.cache_bytes--;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_int_equal(d[0].n_pages, 8 * 2004 - 1);

    a.cache_bytes = (2004 * (int64_t)(8 + 1) + 170 * 4) << 17; /* one sequence alone */
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_true(d[0].n_pages == 2004 && d[2].n_pages == 170);
    a.cache_bytes--;
    assert_int_equal(sv_memory_pages(&a, &err), SV_ENOMEM);
    assert_non_null(strstr(err.msg, "a context of 31984 would fit"));
    d[2].window = 1 << 20; /* longer than the context: as if there was none */
    a.cache_bytes = (100 * 2004 * (int64_t)(8 + 1 + 4)) << 17;
    a.keep_prefixes = true;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_true(d[0].n_pages == 100 * 2004 && d[2].n_pages == 100 * 2004);
    d[2].window = 2048;
    a.most_pages = 3000; /* of every pool */
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_true(d[0].n_pages == 3000 && d[2].n_pages == 3000);
}

/* Ranks that have sequences of their own: each of the target's pools is one rank's, the draft's are
 * on all of them. */
static void parts_share_what_there_is(void **state)
{
    (void)state;
    struct sv_cache_group_desc d[2] = {full, full};
    struct sv_err err = {0};
    struct sv_memory_ask a = host;
    d[0].own_part = true;
    d[0].n_parts = d[1].n_parts = a.n_parts = 4;
    d[1].owner = SV_CACHE_DRAFT;
    a.group = d;
    a.n_groups = 2;
    a.n_slots = 6; /* two at most on a rank */
    a.cache_bytes = 200 * 2 * a.page_size * sv_cache_position_bytes(&full);
    a.keep_prefixes = true;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_int_equal(d[0].n_pages, 80); /* and 4 times as many of the draft's */
    assert_int_equal(d[1].n_pages, 320);
    a.cache_bytes = 0;
    a.keep_prefixes = false;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    const int32_t one = (a.n_positions + a.page_size - 1) / a.page_size;
    assert_int_equal(d[0].n_pages, 2 * one);
    assert_int_equal(d[1].n_pages, 8 * one);
}

/* Slots' states come first, snapshots get at most a quarter of the rest. */
static void states_and_snapshots(void **state)
{
    (void)state;
    struct sv_cache_group_desc d[2] = {full, full};
    struct sv_err err = {0};
    struct sv_memory_ask a = host;
    d[1].kind = SV_CACHE_STATE;
    d[1].state_bytes = 1 << 20;
    d[1].n_layers = 24;
    a.group = d;
    a.n_groups = 2;
    a.cache_bytes = (4 * 24 + 400) << 20;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_int_equal(d[1].n_pages, 4); /* 96 of 100 MiB */
    assert_int_equal(d[0].n_pages, 400 - 96);
    a.keep_prefixes = false;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_true(d[1].n_pages == 0 && d[0].n_pages == 4 * 64);
    a.keep_prefixes = true;
    a.cache_bytes = 10 * GIB; /* as many as prefixes get of what runs */
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_int_equal(d[1].n_pages, 4 * 4);
    a.cache_bytes = (4 * 24 + 63) << 20;
    assert_int_equal(sv_memory_pages(&a, &err), SV_ENOMEM);
    d[1].n_layers = 1; /* what one sequence needs is not given to snapshots */
    a.cache_bytes = (4 + 70) << 20;
    assert_int_equal(sv_memory_pages(&a, &err), SV_OK);
    assert_true(d[1].n_pages == 6 && d[0].n_pages == 64);
    d[1].n_layers = 24;
    a.cache_bytes = 20 << 20;
    assert_int_equal(sv_memory_pages(&a, &err), SV_ENOMEM);
    assert_non_null(strstr(err.msg, "beside 96 MiB for recurrent states of 4 sequences, and 20 MiB "
                                    "are allowed; no context would fit"));
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

/* Quantized weights are kept as codes: the table has what they take, about what the file does, and
 * says so where they are packed. */
static void quantized_weights_count_as_kept(void **state)
{
    (void)state;
    const struct sv_engine_options o = {
        .target_dir = sv_test_path("tests/golden/gguf/qwen3_q8.gguf"), .device = "cpu"};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_memory_row row[SV_MEMORY_ROWS];
    const int32_t n = sv_memory_table(e, 0, row);
    const int64_t kept = row_of(row, n, "target weights"), published = e->model.weights.n_bytes;
    assert_true(published < 2 * sv_config_n_params(&e->model.cfg));
    assert_true(kept >= published && kept <= published * 107 / 100);
    assert_string_equal(row[0].note, kept > published ? ", packed from 0 MiB" : "");
    sv_engine_close(e);
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
    const enum sv_mem kind[] = {SV_MEM_WEIGHTS, SV_MEM_WEIGHTS, SV_MEM_WCOMP, SV_MEM_SCRATCH};
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
    assert_int_equal(row_of(row, n, "compressed weights"), 13);
    assert_int_equal(row_of(row, n, "scratch of kernels"), 17);
    assert_int_equal(row_of(row, n, "target K/V"), sv_cache_group_bytes(&desc[0], 2));
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

/* A device of 80 GiB with 78 of them free. */
static void some_free(struct sv_dev *dev, int64_t *n_free, int64_t *n_total)
{
    (void)dev;
    *n_free = 78 * GIB;
    *n_total = 80 * GIB;
}

static void weights_of_all_ranks(void **state)
{
    (void)state;
    static const struct sv_backend be = {.memory = some_free};
    struct sv_dev dev = {.be = &be, .ranks = {.n = 1}};
    struct sv_err err = {0};
    assert_int_equal(sv_memory_check_weights(&dev, "m", 78 * GIB, &err), SV_OK);
    assert_int_equal(sv_memory_check_weights(&dev, "m", 131 * GIB, &err), SV_ENOMEM);
    assert_string_equal(err.msg,
                        "m: the weights take 134144 MiB and 79872 of the device's 81920 MiB are "
                        "free");
    dev.ranks.n = 2; /* one device alone could not have them */
    assert_int_equal(sv_memory_check_weights(&dev, "m", 131 * GIB, &err), SV_OK);
    assert_int_equal(sv_memory_check_weights(&dev, "m", 160 * GIB, &err), SV_ENOMEM);
    assert_non_null(strstr(err.msg, "a rank's part of the weights takes"));
}

/* Experts kept in MXFP4 take 17 bytes for 32 numbers, random ones too. */
static void weights_in_codes(void **state)
{
    (void)state;
    const char *dir = sv_test_path("bench/shapes/gpt-oss-120b");
    struct sv_config cfg;
    struct sv_err err = {0};
    assert_int_equal(sv_config_load(&cfg, dir, &err), SV_OK);
    const int64_t n = sv_config_n_params(&cfg), experts = (int64_t)36 * 128 * 3 * 2880 * 2880;
    assert_int_equal(n, 116829156672);
    assert_int_equal(sv_memory_least_weights(&cfg, dir, true, true), 2 * n);
    assert_int_equal(sv_memory_least_weights(&cfg, dir, true, false),
                     2 * (n - experts) + experts / 32 * 17);
    /* A file's bytes; never more than the numbers it stands for. */
    dir = sv_test_path("models/demo/target");
    assert_int_equal(sv_config_load(&cfg, dir, &err), SV_OK);
    assert_int_equal(sv_memory_least_weights(&cfg, dir, false, false),
                     2 * sv_config_n_params(&cfg));
    cfg.stored_dtype = SV_F32;
    assert_int_equal(sv_memory_least_weights(&cfg, dir, false, false), sv_ckpt_dir_bytes(dir));
}

SV_TEST_MAIN(cmocka_unit_test(shared_with_the_host), cmocka_unit_test(memory_of_its_own),
             cmocka_unit_test(windows_take_less), cmocka_unit_test(states_and_snapshots),
             cmocka_unit_test(parts_share_what_there_is),
             cmocka_unit_test(quantized_weights_count_as_kept), cmocka_unit_test(rows_add_up),
             cmocka_unit_test(ledger), cmocka_unit_test(share_of_a_gpu),
             cmocka_unit_test(weights_of_all_ranks), cmocka_unit_test(weights_in_codes))
