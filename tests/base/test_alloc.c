/*
 * test_alloc.c - the allocator and its hooks, the arena, and the buffer.
 *
 * The fault countdown is tried on the operation that touches most of base: write, load and read
 * JSON.
 */
#define _POSIX_C_SOURCE 200809L /* fork */

#include "testing.h"
#include "base/base.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void blocks_are_aligned_and_counted(void **state)
{
    (void)state;
    int64_t before = sv_alloc_live();
    unsigned char *p = sv_alloc(1), *q = sv_calloc(3, 5), *z = sv_alloc(0);
    assert_int_equal((uintptr_t)p % SV_ALIGN, 0);
    assert_int_equal((uintptr_t)q % SV_ALIGN, 0);
    assert_non_null(z);
    for (int i = 0; i < 15; i++)
        assert_int_equal(q[i], 0);
    assert_int_equal(sv_alloc_live(), before + 3);
    sv_free(p);
    sv_free(q);
    sv_free(z);
    sv_free(NULL);
    assert_int_equal(sv_alloc_live(), before);
}

/* Blocks of over a megabyte, where others were before, between neighbours that must stay. */
static void large_blocks_are_cleared(void **state)
{
    (void)state;
    enum { MIB = 1 << 20, N = 12 };
    unsigned char *p[N];
    for (int round = 0; round < 3; round++) {
        const size_t n = (size_t)(round ? 1 : 4) * MIB + (size_t)round * 4099;
        for (int i = 0; i < N; i++) {
            assert_non_null(p[i] = sv_alloc(n));
            memset(p[i], 0xa5, n);
        }
        for (int i = 1; i < N; i += 2) {
            sv_free(p[i]);
            assert_non_null(p[i] = sv_calloc(n, 1));
        }
        for (int i = 0; i < N; i++) {
            for (size_t k = 0; k < n; k++)
                if (p[i][k] != (i % 2 ? 0 : 0xa5))
                    fail_msg("block %d, byte %zu of %zu: %d", i, k, n, p[i][k]);
            sv_free(p[i]);
        }
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void hopeless_sizes_give_null(void **state)
{
    (void)state;
    assert_null(sv_calloc(SIZE_MAX / 2, 3));
    assert_null(sv_alloc(SIZE_MAX));
    assert_null(sv_alloc((size_t)1 << 62));
    assert_int_equal(sv_alloc_live(), 0);
}

static void realloc_keeps_the_bytes(void **state)
{
    (void)state;
    char *p = sv_realloc(NULL, 0, 4), *q;
    memcpy(p, "abc", 4);
    p = sv_realloc(p, 4, 1000);
    assert_string_equal(p, "abc");
    assert_int_equal((uintptr_t)p % SV_ALIGN, 0);
    p = sv_realloc(p, 1000, 2);
    assert_memory_equal(p, "ab", 2);
    sv_fault_arm(1);
    q = sv_realloc(p, 2, 100);
    sv_fault_arm(0);
    assert_null(q);
    assert_memory_equal(p, "ab", 2); /* a failed call leaves the old block */
    sv_free(p);
    assert_int_equal(sv_alloc_live(), 0);
}

static void strings_are_copied(void **state)
{
    (void)state;
    char *a = sv_strdup("hello"), *b = sv_strndup("hello", 2), *c = sv_strndup("hi", 9);
    assert_string_equal(a, "hello");
    assert_string_equal(b, "he");
    assert_string_equal(c, "hi");
    sv_free(a);
    sv_free(b);
    sv_free(c);
}

static void the_nth_call_fails_once(void **state)
{
    (void)state;
    sv_fault_arm(2);
    void *a = sv_alloc(1), *b = sv_alloc(1), *c = sv_alloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(sv_fault_calls(), 3);
    sv_fault_arm(0);
    assert_int_equal(sv_fault_calls(), 0);
    sv_free(a);
    sv_free(c);
}

/* Write a file, map it, load it as JSON, quote into a buffer, keep it in an arena, run two
 * threads. */
static int much_of_base(struct sv_err *err)
{
    static const char text[] = "{\"a\": [1, 2.5, \"x\"], \"big\": 100000000000000000000000000}";
    const char *path = sv_test_tmp("fault.json");
    struct sv_map map = {0};
    struct sv_arena arena;
    struct sv_buf buf;
    struct sv_pool *pool = NULL;
    json_t *root = NULL;
    int status = sv_file_write(path, text, strlen(text), err);

    sv_arena_init(&arena);
    sv_buf_init(&buf);
    if (status == SV_OK)
        status = sv_map_open(&map, path, err);
    if (status == SV_OK && !(root = sv_json_load(path, 1000, err)))
        status = err->code;
    if (status == SV_OK && !sv_arena_strdup(&arena, text))
        status = sv_fail(err, SV_ENOMEM, -1, "arena");
    if (status == SV_OK) {
        sv_json_quote(&buf, text, strlen(text));
        status = buf.failed ? sv_fail(err, SV_ENOMEM, -1, "buffer") : SV_OK;
    }
    if (status == SV_OK)
        status = sv_pool_open(&pool, 2, err);
    sv_pool_close(pool);
    json_decref(root);
    sv_map_close(&map);
    sv_buf_fini(&buf);
    sv_arena_fini(&arena);
    return status;
}

static void every_single_failure_is_reported_and_leaks_nothing(void **state)
{
    (void)state;
    struct sv_err err;
    int64_t n = 0, calls;
    int status;

    sv_fault_arm(0);
    assert_int_equal(much_of_base(&err), SV_OK);
    calls = sv_fault_calls();
    assert_true(calls > 15);
    do {
        err = (struct sv_err){0};
        sv_fault_arm(++n);
        status = much_of_base(&err);
        if (status != SV_OK) {
            assert_int_equal(status, err.code);
            assert_true(err.msg[0]);
            assert_true(status == SV_ENOMEM || status == SV_EIO || status == SV_EFULL);
        }
        assert_int_equal(sv_alloc_live(), 0);
    } while (status != SV_OK);
    sv_fault_arm(0);
    assert_int_equal(n, calls + 1);
}

static int signal_of(void (*fn)(void))
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void allocate_guarded(void)
{
    sv_alloc_guard(true);
    sv_alloc(1);
}

static void parse_guarded(void)
{
    sv_alloc_guard(true);
    sv_json_parse("[]", 2, NULL);
}

static void allocate_after_guard(void)
{
    sv_alloc_guard(true);
    sv_alloc_guard(false);
    sv_free(sv_alloc(1));
}

static void the_guard_stops_allocations(void **state)
{
    (void)state;
    assert_int_equal(signal_of(allocate_guarded), SIGABRT);
    assert_int_equal(signal_of(parse_guarded), SIGABRT);
    assert_int_equal(signal_of(allocate_after_guard), 0);
}

static void arena_memory_is_clear_aligned_and_stays(void **state)
{
    (void)state;
    struct sv_arena a;
    struct sv_rng rng = {7};
    unsigned char *all[300];
    size_t sizes[300];

    sv_arena_init(&a);
    for (int i = 0; i < 300; i++) {
        sizes[i] = sv_rng_below(&rng, i % 50 == 49 ? 3000000 : 3000);
        all[i] = sv_arena_alloc(&a, sizes[i]);
        assert_non_null(all[i]);
        assert_int_equal((uintptr_t)all[i] % SV_ALIGN, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_true(all[i][k] == 0);
        memset(all[i], i + 1, sizes[i]);
    }
    for (int i = 0; i < 300; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_true(all[i][k] == (unsigned char)(i + 1));
    assert_true(a.n_bytes > 300 * SV_ALIGN);
    assert_null(sv_arena_alloc(&a, SIZE_MAX - 10));
    assert_string_equal(sv_arena_strdup(&a, "kept"), "kept");
    sv_arena_fini(&a);
    assert_int_equal(sv_alloc_live(), 0);
}

static void buffers_grow_and_stay_terminated(void **state)
{
    (void)state;
    struct sv_buf b;

    sv_buf_init(&b);
    for (int i = 0; i < 5000; i++) {
        sv_buf_append(&b, "xy", 2);
        assert_int_equal(b.data[b.len], 0);
    }
    assert_int_equal(b.len, 10000);
    sv_buf_clear(&b);
    assert_string_equal(b.data, "");
    sv_buf_printf(&b, "%d-%s", 42, "ok");
    assert_string_equal(b.data, "42-ok");
    sv_buf_printf(&b, "%500d", 7); /* longer than the stack try */
    assert_int_equal(b.len, 505);
    assert_int_equal(b.data[504], '7');
    sv_buf_append(&b, NULL, 0);
    assert_int_equal(sv_buf_reserve(&b, SIZE_MAX - 100), SV_ENOMEM);
    assert_true(b.failed);
    sv_buf_fini(&b);
    assert_int_equal(sv_alloc_live(), 0);
}

static void a_failed_buffer_stays_failed(void **state)
{
    (void)state;
    struct sv_buf b;

    sv_buf_init(&b);
    sv_fault_arm(1);
    sv_buf_append(&b, "lost", 4);
    sv_fault_arm(0);
    sv_buf_append(&b, "later", 5);
    sv_buf_printf(&b, "%d", 1);
    assert_true(b.failed);
    assert_int_equal(b.len, 0);
    sv_buf_clear(&b);
    sv_buf_append(&b, "again", 5);
    assert_string_equal(b.data, "again");
    sv_buf_fini(&b);
}

SV_TEST_MAIN(cmocka_unit_test(blocks_are_aligned_and_counted),
             cmocka_unit_test(large_blocks_are_cleared), cmocka_unit_test(hopeless_sizes_give_null),
             cmocka_unit_test(realloc_keeps_the_bytes), cmocka_unit_test(strings_are_copied),
             cmocka_unit_test(the_nth_call_fails_once),
             cmocka_unit_test(every_single_failure_is_reported_and_leaks_nothing),
             cmocka_unit_test(the_guard_stops_allocations),
             cmocka_unit_test(arena_memory_is_clear_aligned_and_stays),
             cmocka_unit_test(buffers_grow_and_stay_terminated),
             cmocka_unit_test(a_failed_buffer_stays_failed))
