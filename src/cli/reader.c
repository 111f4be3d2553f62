/*
 * reader.c - reads lines from a file or pipe, one at a time.
 *
 * Called by generate (which keeps the engine busy while a slow pipe has nothing) and by prompt
 * files. Must not: grow beyond one line of the allowed length plus one read.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 << 10)

int sv_cli_reader_open(struct sv_cli_reader *r, const char *path, struct sv_err *err)
{
    struct stat st;

    memset(r, 0, sizeof *r);
    sv_buf_init(&r->buf);
    r->max_line = SV_CLI_MAX_LINE;
    r->fd = STDIN_FILENO;
    if (strcmp(path, "-") != 0) {
        r->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (r->fd < 0)
            return sv_fail(err, SV_EIO, -1, "%s: %s", path, strerror(errno));
        r->close_fd = true;
    }
    if (fstat(r->fd, &st) == 0 && S_ISREG(st.st_mode))
        r->total_bytes = st.st_size;
    return SV_OK;
}

void sv_cli_reader_close(struct sv_cli_reader *r)
{
    if (r->close_fd)
        close(r->fd);
    r->close_fd = false;
    sv_buf_fini(&r->buf);
}

/* LINE: more bytes or the end came; LATER: nothing yet; BROKEN: err says why. */
static enum sv_cli_line fill(struct sv_cli_reader *r, bool block, struct sv_err *err)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    ssize_t n;

    if (poll(&p, 1, block ? -1 : 0) <= 0)
        return SV_CLI_LATER; /* nothing yet, or Ctrl-C, which the caller checks */
    if (r->at) {
        memmove(r->buf.data, r->buf.data + r->at, r->buf.len - r->at);
        r->buf.len -= r->at;
        r->at = 0;
    }
    if (sv_buf_reserve(&r->buf, READ_BYTES) != SV_OK) {
        sv_fail(err, SV_ENOMEM, r->line_no + 1, "line %lld: out of memory",
                (long long)r->line_no + 1);
        return SV_CLI_BROKEN;
    }
    n = read(r->fd, r->buf.data + r->buf.len, READ_BYTES);
    if (n < 0) {
        sv_fail(err, SV_EIO, r->line_no + 1, "line %lld: %s", (long long)r->line_no + 1,
                strerror(errno));
        return SV_CLI_BROKEN;
    }
    r->eof = n == 0;
    r->buf.len += (size_t)n;
    r->buf.data[r->buf.len] = 0;
    return SV_CLI_LINE;
}

/* Hands out [at, at + n), of which `eaten` bytes leave the buffer. */
static enum sv_cli_line hand_out(struct sv_cli_reader *r, size_t n, size_t eaten, const char **line,
                                 size_t *n_line)
{
    const char *p = r->buf.data + r->at;
    bool too_long = r->skipping || n > r->max_line + (n && p[n - 1] == '\r');

    r->at += eaten;
    r->scanned = 0;
    r->skipping = false;
    r->line_no++;
    r->n_bytes += (int64_t)eaten;
    while (n &&
           (p[n - 1] == '\r' || p[n - 1] == ' ' || p[n - 1] == '\t')) /* means nothing to JSON */
        n--;
    if (r->line_no == 1 && n >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0) {
        p += 3; /* a byte order mark, as some editors leave it */
        n -= 3;
    }
    *line = p;
    *n_line = n;
    return too_long ? SV_CLI_TOO_LONG : SV_CLI_LINE;
}

enum sv_cli_line sv_cli_reader_next(struct sv_cli_reader *r, bool block, const char **line,
                                    size_t *n, struct sv_err *err)
{
    for (;;) {
        size_t have = r->buf.len - r->at;
        char *end = NULL;
        enum sv_cli_line got;

        if (have > r->scanned)
            end = memchr(r->buf.data + r->at + r->scanned, '\n', have - r->scanned);
        if (end) {
            size_t len = (size_t)(end - (r->buf.data + r->at));
            return hand_out(r, len, len + 1, line, n);
        }
        r->scanned = have;
        if (r->eof) {
            if (have || r->skipping)
                return hand_out(r, have, have, line, n);
            return SV_CLI_END;
        }
        /* Two more bytes than the limit: a carriage return may be among them. */
        if (have > r->max_line + 1) {
            r->skipping = true;
            r->n_bytes += (int64_t)have;
            r->at = r->buf.len;
            r->scanned = 0;
        }
        got = fill(r, block, err);
        if (got != SV_CLI_LINE)
            return got;
    }
}

int sv_cli_reader_each(const char *path,
                       int (*take)(void *user, const char *line, size_t n, struct sv_err *err),
                       void *user, struct sv_err *err)
{
    struct sv_cli_reader r;
    const char *line;
    size_t n;
    int rc = sv_cli_reader_open(&r, path, err);

    while (!rc) {
        enum sv_cli_line got = sv_cli_reader_next(&r, true, &line, &n, err);
        if (got == SV_CLI_END)
            break;
        if (got == SV_CLI_LATER)
            rc = sv_fail(err, SV_ECANCELED, -1, "interrupted");
        else if (got == SV_CLI_BROKEN)
            rc = sv_err_prefix(err, "%s", path);
        else if (got == SV_CLI_TOO_LONG)
            rc = sv_fail(err, SV_EFORMAT, r.line_no, "%s, line %lld: longer than %zu bytes", path,
                         (long long)r.line_no, r.max_line);
        else if (n && take(user, line, n, err))
            rc = sv_err_prefix(err, "%s, line %lld", path, (long long)r.line_no);
    }
    sv_cli_reader_close(&r);
    return rc;
}
