/*
 * test_listen.c - the file of a unix socket: when it is replaced and removed.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/http/http.h"

#include "testing.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[40], path[64];

static int enter(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/salvo-listen-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/s", dir);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static bool is_socket(void)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* connect fails for a file as for a socket without a listener. */
static void no_file_is_replaced(void **state)
{
    struct sv_err err = {0};
    struct sv_buf text;
    int fd = -1;
    (void)state;

    assert_int_equal(sv_file_write(path, "dear to somebody", 16, &err), SV_OK);
    assert_int_equal(sv_listen_unix(path, &fd, &err), SV_EIO);
    assert_non_null(strstr(err.msg, path));
    sv_buf_init(&text);
    assert_int_equal(sv_file_read(&text, path, 100, &err), SV_OK);
    assert_string_equal(text.data, "dear to somebody");
    sv_buf_fini(&text);
    unlink(path);
}

static struct sv_http *begin(struct event_base *base)
{
    struct sv_http_options o = {.unix_path = path, .max_body_bytes = 1000, .idle_seconds = 1};
    struct sv_err err = {0};
    struct sv_http *h;

    if (sv_http_open(&h, base, &o, &err))
        fail_msg("%s", err.msg);
    assert_true(is_socket());
    return h;
}

/* A server that still has answers to write takes no new connections; the next one listens already.
 */
static void the_next_servers_stays(void **state)
{
    struct event_base *base = event_base_new();
    (void)state;

    struct sv_http *old = begin(base);
    sv_http_stop_listening(old);
    assert_false(is_socket());
    struct sv_http *next = begin(base);
    sv_http_close(old);
    assert_true(is_socket());
    unlink(path); /* and one that came in another way */
    struct sv_http *third = begin(base);
    sv_http_close(next);
    assert_true(is_socket());
    sv_http_close(third);
    assert_false(is_socket());
    event_base_free(base);
}

SV_TEST_MAIN(cmocka_unit_test_setup_teardown(no_file_is_replaced, enter, leave),
             cmocka_unit_test_setup_teardown(the_next_servers_stays, enter, leave))
