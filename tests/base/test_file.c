/* test_file.c - errors, mappings, bounded reads, atomic writes, paths. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* usleep */
#include "testing.h"
#include "base/base.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void errors_carry_code_position_and_prefix(void **state)
{
    (void)state;
    struct sv_err err;
    char longer[2000];

    assert_int_equal(sv_fail(&err, SV_EFORMAT, 12, "bad %s", "thing"), SV_EFORMAT);
    assert_int_equal(err.code, SV_EFORMAT);
    assert_int_equal(err.pos, 12);
    assert_string_equal(err.msg, "bad thing");
    assert_int_equal(sv_err_prefix(&err, "file %d", 3), SV_EFORMAT);
    assert_string_equal(err.msg, "file 3: bad thing");
    assert_int_equal(err.pos, 12);
    assert_int_equal(sv_fail(NULL, SV_EIO, -1, "unheard"), SV_EIO);
    assert_int_equal(sv_err_prefix(NULL, "nobody"), SV_OK);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    sv_err_prefix(&err, "%s", longer);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_string_equal(sv_status_name(SV_ENOMEM), "out of memory");
    assert_string_equal(sv_status_name(-1000), "unknown status");
}

/* A file that is there but cannot be opened must be opened and complained about, not passed
 * over. */
static void a_link_to_nowhere_exists(void **state)
{
    (void)state;
    const char *link = sv_test_tmp("link"), *loop = sv_test_tmp("loop");
    struct sv_buf b;
    struct sv_err err;

    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(symlink(loop, loop), 0);
    assert_true(sv_file_exists(link));
    assert_true(sv_file_exists(loop));
    assert_false(sv_file_exists(sv_test_tmp("nowhere")));
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, link, 10, &err), SV_EIO);
    assert_non_null(strstr(err.msg, link));
    sv_buf_fini(&b);
}

/* However a name is written, nothing outside the directory is read. */
static void reads_below_a_directory_stay_there(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *message; /* NULL: it is read */
    } list[] = {{"file", NULL},
                {"in/file", NULL},
                {"//in///./file", NULL},
                {"..", "'..' is not allowed"},
                {"../out", "'..' is not allowed"},
                {"in/../file", "'..' is not allowed"},
                {"link", "symbolic links are not followed"},
                {"up/out", "symbolic links are not followed"},
                {"in", "Is a directory"},
                {"file/more", "Not a directory"},
                {"none", "cannot open"},
                {"pipe", "not a regular file but a pipe"},
                {"", "names no file"},
                {"/", "names no file"},
                {".", "Is a directory"}};
    char dir[256], path[300], longer[300];
    struct sv_buf b;
    struct sv_err err;

    snprintf(dir, sizeof dir, "%s", sv_test_tmp("below"));
    assert_int_equal(mkdir(dir, 0777), 0);
    snprintf(path, sizeof path, "%s/in", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/in/file", dir);
    assert_int_equal(sv_file_write(path, "text", 4, &err), SV_OK);
    snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(sv_file_write(path, "text", 4, &err), SV_OK);
    assert_int_equal(sv_file_write(sv_test_tmp("out"), "secret", 6, &err), SV_OK);
    snprintf(path, sizeof path, "%s/link", dir);
    assert_int_equal(symlink("../out", path), 0);
    snprintf(path, sizeof path, "%s/up", dir);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0666), 0);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        sv_buf_init(&b);
        int rc = sv_file_read_below(&b, dir, list[i].rest, 4, &err);
        if (list[i].message && (rc >= 0 || !strstr(err.msg, list[i].message)))
            fail_msg("'%s': %s", list[i].rest, rc < 0 ? err.msg : "read");
        if (!list[i].message)
            assert_true(rc == SV_OK && b.len == 4 && strcmp(b.data, "text") == 0);
        sv_buf_fini(&b);
    }
    sv_buf_init(&b);
    assert_int_equal(sv_file_read_below(&b, dir, "file", 3, &err), SV_EINVAL);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(sv_file_read_below(&b, dir, longer, 3, &err), SV_EIO);
    assert_int_equal(sv_file_read_below(&b, "/no/such", "file", 3, &err), SV_EIO);
    sv_buf_fini(&b);
    assert_int_equal(sv_alloc_live(), 0);
}

static void a_pipe_is_written_into_not_replaced(void **state)
{
    (void)state;
    const char *pipe = sv_test_tmp("pipe");
    struct stat st;
    struct sv_err err;
    char got[4] = "";
    int fd;

    assert_int_equal(mkfifo(pipe, 0600), 0);
    fd = open(pipe, O_RDWR); /* with a reader there, writing does not wait */
    assert_true(fd >= 0);
    assert_int_equal(sv_file_write(pipe, "abc", 3, &err), SV_OK);
    assert_int_equal(read(fd, got, 3), 3);
    assert_string_equal(got, "abc");
    close(fd);
    assert_int_equal(stat(pipe, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

static void a_file_written_is_the_file_mapped_and_read(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("file"), *tmp = sv_test_tmp("file.tmp");
    struct sv_map m;
    struct sv_buf b;
    struct sv_err err;
    char *data = sv_alloc(200000);

    for (int i = 0; i < 200000; i++)
        data[i] = (char)(i * 31);
    assert_false(sv_file_exists(path));
    assert_int_equal(sv_file_write(path, data, 200000, &err), SV_OK);
    assert_true(sv_file_exists(path));
    assert_false(sv_dir_exists(path));
    assert_false(sv_file_exists(tmp));
    assert_int_equal(sv_map_open(&m, path, &err), SV_OK);
    assert_int_equal(m.n_bytes, 200000);
    assert_memory_equal(m.data, data, 200000);
    assert_string_equal(m.path, path);
    sv_map_close(&m);
    sv_buf_init(&b);
    sv_buf_append(&b, "before", 6);
    assert_int_equal(sv_file_read(&b, path, 200000, &err), SV_OK);
    assert_int_equal(b.len, 200006);
    assert_memory_equal(b.data, "before", 6);
    assert_memory_equal(b.data + 6, data, 200000);
    sv_buf_fini(&b);
    sv_free(data);
    assert_int_equal(sv_alloc_live(), 0);
}

static void empty_files_map_and_read(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("empty");
    struct sv_map m;
    struct sv_buf b;
    struct sv_err err;

    assert_int_equal(sv_file_write(path, NULL, 0, &err), SV_OK);
    assert_int_equal(sv_map_open(&m, path, &err), SV_OK);
    assert_non_null(m.data);
    assert_int_equal(m.n_bytes, 0);
    sv_map_close(&m);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, path, 10, &err), SV_OK);
    assert_int_equal(b.len, 0);
    sv_buf_fini(&b);
}

static void missing_files_and_folders_are_named(void **state)
{
    (void)state;
    const char *missing = sv_test_tmp("missing"), *dir = sv_test_tmp(".");
    struct sv_map m;
    struct sv_buf b;
    struct sv_err err;

    sv_buf_init(&b);
    assert_int_equal(sv_map_open(&m, missing, &err), SV_EIO);
    assert_non_null(strstr(err.msg, missing));
    assert_non_null(strstr(err.msg, "No such file"));
    assert_int_equal(sv_file_read(&b, dir, 10, &err), SV_EIO);
    assert_non_null(strstr(err.msg, "Is a directory"));
    assert_true(sv_dir_exists(dir));
    assert_true(sv_file_exists(dir)); /* a name that something has */
    assert_int_equal(sv_file_write(sv_test_tmp("no/such"), "x", 1, &err), SV_EIO);
    assert_int_equal(sv_file_write(dir, "x", 1, &err), SV_EIO);
    assert_non_null(strstr(err.msg, "Is a directory"));
    sv_map_close(&m); /* harmless after a failed open */
    assert_int_equal(b.len, 0);
    sv_buf_fini(&b);
    assert_int_equal(sv_alloc_live(), 0);
}

static void reads_stop_at_the_limit(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("limit"), *fifo = sv_test_tmp("fifo");
    struct sv_buf b;
    struct sv_err err;

    sv_buf_init(&b);
    assert_int_equal(sv_file_write(path, "0123456789", 10, &err), SV_OK);
    assert_int_equal(sv_file_read(&b, path, 10, &err), SV_OK);
    assert_int_equal(sv_file_read(&b, path, 9, &err), SV_EINVAL);
    assert_int_equal(err.pos, 9);
    /* A file whose size fstat does not know. */
    assert_int_equal(mkfifo(fifo, 0600), 0);
    if (fork() == 0) {
        FILE *f = fopen(fifo, "w");
        for (int i = 0; f && i < 100; i++)
            fputs("0123456789", f);
        if (f)
            fclose(f);
        _exit(0);
    }
    sv_buf_clear(&b);
    assert_int_equal(sv_file_read_stream(&b, fifo, 1000, &err), SV_OK);
    assert_int_equal(b.len, 1000);
    sv_buf_fini(&b);
}

/* A pipe is not waited for, with or without a writer. */
static void only_regular_files_are_read(void **state)
{
    (void)state;
    const char *fifo = sv_test_tmp("waits"), *names[] = {fifo, "/dev/zero", "/dev/null"};
    struct sv_map m;
    struct sv_buf b;
    struct sv_err err;

    assert_int_equal(mkfifo(fifo, 0600), 0);
    sv_buf_init(&b);
    for (int k = 0; k < 2; k++) {
        int writer = k ? open(fifo, O_RDWR) : -1;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            assert_int_equal(sv_file_read(&b, names[i], 1000, &err), SV_EIO);
            assert_non_null(strstr(err.msg, names[i]));
            assert_non_null(strstr(err.msg, i ? "a device" : "a pipe"));
            assert_int_equal(sv_map_open(&m, names[i], &err), SV_EIO);
            assert_non_null(strstr(err.msg, "not a regular file"));
        }
        if (writer >= 0)
            close(writer);
    }
    assert_int_equal(b.len, 0);
    assert_int_equal(sv_file_read_stream(&b, "/dev/null", 1000, &err), SV_OK);
    sv_buf_fini(&b);
}

static void a_failed_write_leaves_the_old_file(void **state)
{
    (void)state;
    const char *path = sv_test_tmp("kept");
    struct sv_buf b;
    struct sv_err err;
    int status;

    sv_buf_init(&b);
    assert_int_equal(sv_file_write(path, "old", 3, &err), SV_OK);
    for (int n = 1; n < 20; n++) {
        sv_fault_arm(n);
        status = sv_file_write(path, "new", 3, &err);
        sv_fault_arm(0);
        assert_false(sv_file_exists(sv_test_tmp("kept.tmp")));
        sv_buf_clear(&b);
        assert_int_equal(sv_file_read(&b, path, 10, &err), SV_OK);
        assert_string_equal(b.data, status == SV_OK ? "new" : "old");
        if (status == SV_OK)
            break;
    }
    assert_int_equal(status, SV_OK);
    sv_buf_fini(&b);
}

static void paths_are_joined(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < 4; i++) {
        char *p = sv_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        sv_free(p);
    }
}

static void the_clock_goes_on_and_the_environment_is_read(void **state)
{
    (void)state;
    int64_t a = sv_clock_ns(), b = sv_clock_us();
    usleep(2000);
    assert_true(sv_clock_ns() - a >= 2000000);
    assert_true(sv_clock_us() - b >= 2000);
    assert_non_null(sv_env("PATH"));
    assert_null(sv_env("SALVO_NO_SUCH_VARIABLE"));
    assert_true(sv_cpu_count() >= 1);
}

SV_TEST_MAIN(cmocka_unit_test(errors_carry_code_position_and_prefix),
             cmocka_unit_test(a_file_written_is_the_file_mapped_and_read),
             cmocka_unit_test(a_link_to_nowhere_exists),
             cmocka_unit_test(reads_below_a_directory_stay_there),
             cmocka_unit_test(a_pipe_is_written_into_not_replaced),
             cmocka_unit_test(empty_files_map_and_read),
             cmocka_unit_test(missing_files_and_folders_are_named),
             cmocka_unit_test(reads_stop_at_the_limit),
             cmocka_unit_test(only_regular_files_are_read),
             cmocka_unit_test(a_failed_write_leaves_the_old_file),
             cmocka_unit_test(paths_are_joined),
             cmocka_unit_test(the_clock_goes_on_and_the_environment_is_read))
