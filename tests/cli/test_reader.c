/*
 * test_reader.c - lines of files and pipes: ends, limits, waiting.
 */
#define _POSIX_C_SOURCE 200809L

#include "testing.h"

#include "cli/cli.h"
#include "cli/lines.h"

#include <string.h>
#include <unistd.h>

static void open_text(struct sv_cli_reader *r, const char *text, size_t n)
{
    struct sv_err err = {0};
    const char *path = sv_test_tmp("lines");

    assert_int_equal(sv_file_write(path, text, n, &err), 0);
    assert_int_equal(sv_cli_reader_open(r, path, &err), 0);
    assert_int_equal(r->total_bytes, (int64_t)n);
}

static void expect(struct sv_cli_reader *r, enum sv_cli_line want, const char *text)
{
    struct sv_err err = {0};
    const char *line = NULL;
    size_t n = 0;

    assert_int_equal(sv_cli_reader_next(r, true, &line, &n, &err), want);
    if (!text)
        return;
    assert_int_equal(n, strlen(text));
    assert_memory_equal(line, text, n);
}

static void all_kinds_of_line_ends(void **state)
{
    static const char text[] = "\xEF\xBB\xBFone\r\ntwo\n\n\r\nfi\rve \t\r\n \t\r\n {}\nlast";
    struct sv_cli_reader r;
    (void)state;

    open_text(&r, text, sizeof text - 1);
    expect(&r, SV_CLI_LINE, "one");
    assert_int_equal(r.n_bytes, 8);
    expect(&r, SV_CLI_LINE, "two");
    expect(&r, SV_CLI_LINE, "");
    expect(&r, SV_CLI_LINE, "");
    expect(&r, SV_CLI_LINE, "fi\rve");
    assert_int_equal(r.line_no, 5);
    expect(&r, SV_CLI_LINE, ""); /* of white space */
    expect(&r, SV_CLI_LINE, " {}");
    expect(&r, SV_CLI_LINE, "last");
    assert_int_equal(r.n_bytes, (int64_t)sizeof text - 1);
    expect(&r, SV_CLI_END, NULL);
    expect(&r, SV_CLI_END, NULL);
    sv_cli_reader_close(&r);
    assert_int_equal(sv_alloc_live(), 0);
}

static void nothing_at_all(void **state)
{
    struct sv_cli_reader r;
    struct sv_err err = {0};
    (void)state;

    open_text(&r, "", 0);
    expect(&r, SV_CLI_END, NULL);
    sv_cli_reader_close(&r);
    assert_true(sv_cli_reader_open(&r, "/nonexistent/x", &err) < 0);
    assert_non_null(strstr(err.msg, "/nonexistent/x"));
    sv_cli_reader_close(&r);
}

/* Lines around the limit, and one longer than several reads; what follows is still there. */
static void long_lines_are_skipped(void **state)
{
    const size_t limit = 100000;
    size_t at = 0, len[] = {limit, limit + 1, 3 * limit, 5};
    char *text = sv_alloc(6 * limit);
    struct sv_cli_reader r;
    (void)state;

    for (size_t i = 0; i < 4; i++) {
        memset(text + at, 'a' + (int)i, len[i]);
        at += len[i];
        text[at++] = '\n';
    }
    open_text(&r, text, at);
    r.max_line = limit;
    expect(&r, SV_CLI_LINE, NULL);
    expect(&r, SV_CLI_TOO_LONG, NULL);
    expect(&r, SV_CLI_TOO_LONG, NULL);
    assert_int_equal(r.line_no, 3);
    assert_true(r.buf.cap < 5 * limit);
    expect(&r, SV_CLI_LINE, "ddddd");
    assert_int_equal(r.n_bytes, (int64_t)at);
    expect(&r, SV_CLI_END, NULL);
    sv_cli_reader_close(&r);
    sv_free(text);
}

/* As long as a line may be, and what ends it comes with the next read. */
static void the_longest_line_ends_in_the_next_read(void **state)
{
    enum { READ = 1 << 16 };
    char *text = sv_alloc(READ + 8);
    struct sv_cli_reader r;
    (void)state;

    memset(text, 'x', READ - 1);
    memcpy(text + READ - 1, "\r\nnext", 7);
    open_text(&r, text, READ + 5);
    r.max_line = READ - 1;
    expect(&r, SV_CLI_LINE, NULL);
    expect(&r, SV_CLI_LINE, "next");
    sv_cli_reader_close(&r);
    sv_free(text);
}

static void a_long_last_line_without_end(void **state)
{
    char text[5000];
    struct sv_cli_reader r;
    (void)state;

    memset(text, 'x', sizeof text);
    open_text(&r, text, sizeof text);
    r.max_line = 1000;
    expect(&r, SV_CLI_TOO_LONG, NULL);
    expect(&r, SV_CLI_END, NULL);
    sv_cli_reader_close(&r);
}

static void a_pipe_is_not_waited_for(void **state)
{
    struct sv_cli_reader r = {0};
    struct sv_err err = {0};
    const char *line;
    size_t n;
    int fd[2];
    (void)state;

    assert_int_equal(pipe(fd), 0);
    sv_buf_init(&r.buf);
    r.fd = fd[0];
    r.max_line = 100;
    assert_int_equal(sv_cli_reader_next(&r, false, &line, &n, &err), SV_CLI_LATER);
    assert_int_equal(write(fd[1], "ab", 2), 2);
    assert_int_equal(sv_cli_reader_next(&r, false, &line, &n, &err), SV_CLI_LATER);
    assert_int_equal(write(fd[1], "c\nde", 4), 4);
    expect(&r, SV_CLI_LINE, "abc");
    assert_int_equal(sv_cli_reader_next(&r, false, &line, &n, &err), SV_CLI_LATER);
    close(fd[1]);
    expect(&r, SV_CLI_LINE, "de");
    expect(&r, SV_CLI_END, NULL);
    sv_cli_reader_close(&r);
    close(fd[0]);
}

static void memory_running_out_is_said(void **state)
{
    struct sv_cli_reader r;
    struct sv_err err = {0};
    const char *line;
    size_t n;
    (void)state;

    open_text(&r, "abc\n", 4);
    sv_fault_arm(1);
    assert_int_equal(sv_cli_reader_next(&r, true, &line, &n, &err), SV_CLI_BROKEN);
    sv_fault_arm(0);
    assert_non_null(strstr(err.msg, "line 1: out of memory"));
    sv_cli_reader_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(all_kinds_of_line_ends), cmocka_unit_test(nothing_at_all),
             cmocka_unit_test(long_lines_are_skipped),
             cmocka_unit_test(the_longest_line_ends_in_the_next_read),
             cmocka_unit_test(a_long_last_line_without_end),
             cmocka_unit_test(a_pipe_is_not_waited_for),
             cmocka_unit_test(memory_running_out_is_said))
