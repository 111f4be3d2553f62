/*
 * test_touched.c - each rank maps the whole checkpoint and touches only what it needs: the pages of
 * the mapped file that a rank has are counted, after an answer.
 */
#include "testing.h"

#include "engine/toy.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 4, AROUND_KIB = 64 };

/* 8.5 MiB. Ranks divide 5 of them by rows of the file, and all have something of each page of o and
 * down, 1.5, which are divided by inputs; of the embedding, 2, only rows are looked up. */
static const struct toy toy = {.vocab = 2048,
                               .hidden = 512,
                               .n_layers = 1,
                               .n_heads = 8,
                               .n_kv = 4,
                               .head_dim = 64,
                               .mlp = 1024,
                               .max_position = 256,
                               .bf16 = true,
                               .scale = 0.05f,
                               .seed = 9};

/* KiB of each mapping of a file that are in this process; how many mappings. Each rank, a thread,
 * has one of its own. */
static int resident(const char *path, long kib[MOST])
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[4400];
    int n = 0;
    bool here = false;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        unsigned long long from, to;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            here = strstr(line, path) != NULL;
        else if (here && n < MOST)
            n += sscanf(line, "Rss: %ld kB", &kib[n]) == 1;
    }
    fclose(f);
    return n;
}

/* Written anew page by page: what is written at once may be kept in folios of 2 MiB, which are
 * mapped whole. False: so are these. */
static bool in_small_folios(const char *path, int64_t *n_bytes)
{
    struct sv_buf all;
    struct sv_map map;
    struct sv_err err = {0};
    long kib[MOST];
    sv_buf_init(&all);
    assert_int_equal(sv_file_read(&all, path, (size_t)1 << 24, &err), 0);
    assert_int_equal(remove(path), 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    for (size_t at = 0, n; at < all.len; at += n) {
        n = all.len - at < 4096 ? all.len - at : 4096;
        assert_int_equal(fwrite(all.data + at, 1, n, f), n);
    }
    assert_int_equal(fclose(f), 0);
    *n_bytes = (int64_t)all.len;
    sv_buf_fini(&all);

    assert_int_equal(sv_map_open(&map, path, &err), 0);
    const volatile uint8_t *byte = (const uint8_t *)map.data + map.n_bytes / 2;
    (void)*byte;
    assert_int_equal(resident(path, kib), 1);
    sv_map_close(&map);
    return kib[0] <= AROUND_KIB;
}

static void touched(void **state)
{
    const struct run_arrangement a = {-1, 1, 16, 1, 64, 0};
    const struct run_pair pair = {toy_target(&toy), NULL};
    char path[512];
    int64_t n_bytes;
    (void)state;
    run_needs_cpu();
    snprintf(path, sizeof path, "%s/model.safetensors", pair.target);
    if (!in_small_folios(path, &n_bytes)) {
        print_message("left out: this file system's pages are mapped by more than 64 KiB\n");
        skip();
    }
    for (int32_t n = 1; n <= 2; n++) {
        struct run_case *c = run_cases(1, RUN_VOCAB, 8, 3, 1);
        struct sv_engine *e =
            run_open_ranks(&pair, &a, SV_ISA_AUTO, SV_TYPE_BF16, NULL, (struct run_ranks){.n = n});
        struct run_out *out = run_all(e, c, 1);
        long kib[MOST];
        assert_int_equal(resident(path, kib), n);
        for (int32_t r = 0; r < n; r++) {
            const int64_t percent = kib[r] * 1024 * 100 / n_bytes;
            print_message("rank %d of %d: %ld KiB, %lld %%\n", r, n, kib[r], (long long)percent);
            assert_in_range(percent, n == 1 ? 75 : 45, n == 1 ? 101 : 60);
        }
        run_out_free(out, 1);
        run_cases_free(c, 1);
        sv_engine_close(e);
    }
}

SV_TEST_MAIN(cmocka_unit_test(touched))
