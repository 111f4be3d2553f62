/*
 * test_map.c - mapped files that change: how changes are reported, copies that do not change, and
 * the exit of a process that reads beyond a file's end.
 *
 * Run by the test runner.
 */
#define _DEFAULT_SOURCE
#include "testing.h"
#include "base/base.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_BYTES (3 * 65536 + 100)

struct seen {
    int n_changed, n_replaced;
    char path[512];
};

static void on_changed(void *user, const char *path, bool changed)
{
    struct seen *s = user;
    s->n_changed += changed;
    s->n_replaced += !changed;
    snprintf(s->path, sizeof s->path, "%s", path);
}

static struct seen look(void)
{
    struct seen s = {0};
    sv_map_compare(on_changed, &s);
    return s;
}

static void expect(int n_changed, int n_replaced, const char *path)
{
    struct seen s = look();
    assert_int_equal(s.n_changed, n_changed);
    assert_int_equal(s.n_replaced, n_replaced);
    if (n_changed + n_replaced)
        assert_string_equal(s.path, path);
}

static void fill(const char *path, char with)
{
    static char bytes[N_BYTES];
    int fd = open(path, O_WRONLY | O_CREAT, 0644);

    memset(bytes, with, sizeof bytes);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, sizeof bytes), N_BYTES);
    close(fd);
}

static void map(struct sv_map *m, const char *path)
{
    struct sv_err err;

    fill(path, 'a');
    usleep(20000); /* later changes have other times: file systems count in ticks of some ms */
    if (sv_map_open(m, path, &err))
        fail_msg("%s", err.msg);
}

static void changes_in_place_are_seen(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("weights"), *other = sv_test_tmp("other");
    struct timespec times[2];
    struct stat st;
    struct sv_map m, second;

    map(&m, path);
    map(&second, other);
    expect(0, 0, NULL);
    fill(path, 'b');
    expect(1, 0, path);
    expect(0, 0, NULL);
    /* the same size, and the time of modification put back */
    assert_int_equal(stat(path, &st), 0);
    times[0] = st.st_atim;
    times[1] = st.st_mtim;
    usleep(20000);
    fill(path, 'c');
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    expect(1, 0, path);
    assert_int_equal(truncate(path, 100), 0);
    expect(1, 0, path);
    sv_map_close(&m);
    fill(path, 'd');
    expect(0, 0, NULL);
    sv_map_close(&second);
}

static void what_harms_no_mapping_is_told_apart(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("kept"), *next = sv_test_tmp("next"),
               *link_name = sv_test_tmp("hard");
    struct sv_map m;

    map(&m, path);
    assert_int_equal(chmod(path, 0600), 0);
    expect(0, 0, NULL);
    assert_int_equal(link(path, link_name), 0);
    expect(0, 0, NULL);
    assert_int_equal(unlink(link_name), 0);
    expect(0, 0, NULL);
    fill(next, 'n');
    assert_int_equal(rename(next, path), 0);
    expect(0, 1, path);
    expect(0, 0, NULL);
    fill(path, 'o'); /* the new file's business */
    expect(0, 0, NULL);
    assert_int_equal(unlink(path), 0);
    expect(0, 0, NULL);
    assert_int_equal(m.data[N_BYTES - 1], 'a');
    sv_map_close(&m);
    map(&m, path);
    assert_int_equal(unlink(path), 0);
    expect(0, 1, path);
    sv_map_close(&m);
}

static void a_copy_stays_as_it_was(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("copied");
    const uint8_t *data;
    struct sv_map m;
    struct sv_err err;

    map(&m, path);
    data = m.data;
    assert_int_equal(sv_map_detach(&m, true, &err), SV_OK);
    assert_ptr_equal(m.data, data);
    fill(path, 'x');
    assert_int_equal(truncate(path, 0), 0);
    expect(0, 0, NULL);
    for (size_t i = 0; i < N_BYTES; i++)
        assert_int_equal(data[i], 'a');
    sv_map_close(&m);
    map(&m, path); /* given up: nothing is read any more */
    assert_int_equal(sv_map_detach(&m, false, &err), SV_OK);
    fill(path, 'y');
    expect(0, 0, NULL);
    sv_map_close(&m);
    map(&m, path); /* changed before it was copied */
    fill(path, 'z');
    assert_int_equal(sv_map_detach(&m, true, &err), SV_EIO);
    assert_non_null(strstr(err.msg, path));
    sv_map_close(&m);
}

static void copies_fail_like_all_else(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("faulty");
    int64_t live = sv_alloc_live(), n = 0;
    struct sv_map m;
    struct sv_err err;
    int rc;

    fill(path, 'a');
    do {
        sv_fault_arm(++n);
        rc = sv_map_open(&m, path, &err);
        if (!rc) {
            rc = sv_map_detach(&m, true, &err);
            sv_fault_arm(0);
            assert_int_equal(m.data[5], 'a');
            sv_map_close(&m);
        }
        sv_fault_arm(0);
        assert_int_equal(sv_alloc_live(), live);
    } while (rc);
    assert_true(n > 5);
    expect(0, 0, NULL);
}

static void a_truncated_file_is_named(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("short"), *said = sv_test_tmp("said");
    struct sv_map m, before;
    struct sv_buf text;
    struct sv_err err;
    int status;
    pid_t child;

    map(&before, sv_test_tmp("before"));
    map(&m, path);
    fflush(NULL);
    child = fork();
    if (!child) {
        int fd = open(said, O_WRONLY | O_CREAT, 0644);
        volatile uint8_t sum = 0;
        dup2(fd, STDERR_FILENO);
        sv_map_catch_faults();
        sum += m.data[N_BYTES - 1];
        if (truncate(path, 1000))
            _exit(9);
        sum += m.data[100]; /* still there */
        sum += m.data[2 * 65536];
        _exit(8);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    sv_buf_init(&text);
    assert_int_equal(sv_file_read(&text, said, 10000, &err), SV_OK);
    sv_buf_append(&text, "", 1);
    assert_non_null(strstr(text.data, "a model file was truncated while mapped: "));
    assert_non_null(strstr(text.data, path));
    sv_buf_fini(&text);
    sv_map_close(&m);
    sv_map_close(&before);
}

SV_TEST_MAIN(cmocka_unit_test(changes_in_place_are_seen),
             cmocka_unit_test(what_harms_no_mapping_is_told_apart),
             cmocka_unit_test(a_copy_stays_as_it_was), cmocka_unit_test(copies_fail_like_all_else),
             cmocka_unit_test(a_truncated_file_is_named))
