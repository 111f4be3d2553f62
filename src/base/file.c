/*
 * file.c - files: opening, bounded reads, atomic writes, path joining.
 *
 * Called by load, text and cli. Every system call that may fail passes the fault countdown first.
 * Must not: keep a descriptor open after the call, or trust a size it has not read from the file.
 */
#define _POSIX_C_SOURCE 200809L

#include "base/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_STEP_BYTES (64u << 10)

bool sv_file_fault(void)
{
    if (!sv_fault_hit())
        return false;
    errno = EIO;
    return true;
}

static int not_regular(const char *path, const struct stat *st, struct sv_err *err)
{
    if (S_ISDIR(st->st_mode))
        return sv_fail_errno(err, path, "cannot read", EISDIR);
    return sv_fail(err, SV_EIO, -1, "%s: cannot read: not a regular file but a %s", path,
                   S_ISFIFO(st->st_mode)   ? "pipe"
                   : S_ISSOCK(st->st_mode) ? "socket"
                                           : "device");
}

int sv_file_open(const char *path, bool only_regular, struct stat *st, struct sv_err *err)
{
    int fd, status = SV_OK;

    /* Devices and pipes are not opened: opening one can have effects or block. O_NONBLOCK is for
     * a file that is replaced by one after stat. */
    if (only_regular && stat(path, st) == 0 && !S_ISREG(st->st_mode))
        return not_regular(path, st, err);
    fd = sv_file_fault() ? -1 : open(path, O_RDONLY | O_CLOEXEC | (only_regular ? O_NONBLOCK : 0));
    if (fd < 0 && errno == EWOULDBLOCK) /* a lease, which its holder, a file server, will release */
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sv_fail_errno(err, path, "cannot open", errno);
    if (sv_file_fault() || fstat(fd, st) != 0)
        status = sv_fail_errno(err, path, "cannot stat", errno);
    else if (only_regular ? !S_ISREG(st->st_mode) : S_ISDIR(st->st_mode))
        status = not_regular(path, st, err);
    if (status < 0) {
        close(fd);
        return status;
    }
    return fd;
}

/* Reads fd to its end; fstat's size is only a hint, since it is 0 for pipes and /proc. */
static int read_all(struct sv_buf *buf, int fd, const char *path, size_t max_bytes,
                    struct sv_err *err)
{
    size_t total = 0;
    for (;;) {
        ssize_t n;
        if (sv_buf_reserve(buf, READ_STEP_BYTES) != SV_OK)
            return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
        n = sv_file_fault() ? -1 : read(fd, buf->data + buf->len, READ_STEP_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return sv_fail_errno(err, path, "cannot read", errno);
        if (n == 0)
            return SV_OK;
        if ((size_t)n > max_bytes - total)
            return sv_fail(err, SV_EINVAL, (int64_t)max_bytes, "%s: larger than %zu bytes", path,
                           max_bytes);
        total += (size_t)n;
        buf->len += (size_t)n;
        buf->data[buf->len] = 0;
    }
}

/* Reads an open file, and closes it. */
static int read_open(struct sv_buf *buf, int fd, const struct stat *st, const char *path,
                     size_t max_bytes, struct sv_err *err)
{
    int status;

    if (S_ISREG(st->st_mode) && (uint64_t)st->st_size > max_bytes)
        status = sv_fail(err, SV_EINVAL, (int64_t)max_bytes, "%s: larger than %zu bytes", path,
                         max_bytes);
    else if (st->st_size > 0 && sv_buf_reserve(buf, (size_t)st->st_size + READ_STEP_BYTES) != SV_OK)
        status = sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
    else
        status = read_all(buf, fd, path, max_bytes, err);
    close(fd);
    return status;
}

static int read_file(struct sv_buf *buf, const char *path, bool only_regular, size_t max_bytes,
                     struct sv_err *err)
{
    struct stat st;
    const int fd = sv_file_open(path, only_regular, &st, err);

    return fd < 0 ? fd : read_open(buf, fd, &st, path, max_bytes, err);
}

/* Opens a name within the open directory `at`, and closes that. */
static int step_below(int at, const char *name, bool last, const char *rest, struct stat *st,
                      struct sv_err *err)
{
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (last ? O_NONBLOCK : O_DIRECTORY);
    int fd = -1, rc = SV_OK;

    if (strcmp(name, "..") == 0)
        rc = sv_fail(err, SV_EINVAL, -1, "%s: '..' is not allowed", rest);
    else if (fstatat(at, name, st, AT_SYMLINK_NOFOLLOW) != 0)
        rc = sv_fail_errno(err, rest, "cannot open", errno);
    else if (S_ISLNK(st->st_mode))
        rc = sv_fail(err, SV_EINVAL, -1, "%s: symbolic links are not followed", rest);
    else if (last && !S_ISREG(st->st_mode)) /* opening a device can have effects */
        rc = not_regular(rest, st, err);
    else if ((fd = sv_file_fault() ? -1 : openat(at, name, flags)) < 0 || fstat(fd, st) != 0)
        rc = sv_fail_errno(err, rest, "cannot open", errno);
    close(at);
    if (!rc)
        return fd;
    if (fd >= 0)
        close(fd);
    return rc;
}

int sv_file_read_below(struct sv_buf *buf, const char *dir, const char *rest, size_t max_bytes,
                       struct sv_err *err)
{
    char name[NAME_MAX + 2]; /* a name that is too long stays too long */
    struct stat st = {.st_mode = S_IFDIR};
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return sv_fail_errno(err, dir, "cannot open", errno);
    for (const char *at = rest; fd >= 0 && at[strspn(at, "/")];) {
        at += strspn(at, "/");
        const size_t n = strcspn(at, "/");
        snprintf(name, sizeof name, "%.*s", (int)(n <= NAME_MAX ? n : NAME_MAX + 1), at);
        at += n;
        fd = step_below(fd, name, !*at, rest, &st, err);
    }
    if (fd < 0)
        return fd;
    if (S_ISREG(st.st_mode))
        return read_open(buf, fd, &st, rest, max_bytes, err);
    close(fd);
    return sv_fail(err, SV_EINVAL, -1, "'%s' names no file", rest);
}

int sv_file_read(struct sv_buf *buf, const char *path, size_t max_bytes, struct sv_err *err)
{
    return read_file(buf, path, true, max_bytes, err);
}

int sv_file_read_stream(struct sv_buf *buf, const char *path, size_t max_bytes, struct sv_err *err)
{
    return read_file(buf, path, false, max_bytes, err);
}

static int write_all(int fd, const char *path, const void *data, size_t n, bool sync,
                     struct sv_err *err)
{
    const char *p = data;
    while (n) {
        ssize_t k = sv_file_fault() ? -1 : write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sv_fail_errno(err, path, "cannot write", errno);
        p += k;
        n -= (size_t)k;
    }
    if (sync && (sv_file_fault() || fsync(fd) != 0))
        return sv_fail_errno(err, path, "cannot sync", errno);
    return SV_OK;
}

int sv_file_write(const char *path, const void *data, size_t n, struct sv_err *err)
{
    struct sv_buf tmp;
    struct stat st;
    int status, fd;
    /* a rename must not replace /dev/null */
    bool in_place = stat(path, &st) == 0 && !S_ISREG(st.st_mode);

    sv_buf_init(&tmp);
    sv_buf_printf(&tmp, "%s%s", path, in_place ? "" : ".tmp");
    if (tmp.failed) {
        sv_buf_fini(&tmp);
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
    }
    fd = sv_file_fault()
             ? -1
             : open(tmp.data, O_WRONLY | O_CLOEXEC | (in_place ? 0 : O_CREAT | O_TRUNC), 0666);
    if (fd < 0) {
        status = sv_fail_errno(err, tmp.data, "cannot create", errno);
    } else {
        status = write_all(fd, tmp.data, data, n, !in_place, err);
        if (close(fd) != 0 && status == SV_OK)
            status = sv_fail_errno(err, tmp.data, "cannot close", errno);
        if (status == SV_OK && !in_place && (sv_file_fault() || rename(tmp.data, path) != 0))
            status = sv_fail_errno(err, path, "cannot rename into place", errno);
        if (status != SV_OK && !in_place)
            unlink(tmp.data);
    }
    sv_buf_fini(&tmp);
    return status;
}

bool sv_file_exists(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0)
        return true;
    /* A dangling link, as an interrupted download leaves it, or no permission: opening it must
     * say so. */
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool sv_dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *sv_path_join(const char *dir, const char *name)
{
    size_t n_dir = strlen(dir), n_name = strlen(name);
    bool slash = n_dir && dir[n_dir - 1] != '/';
    char *path = sv_alloc_small(n_dir + slash + n_name + 1);

    if (!path)
        return NULL;
    memcpy(path, dir, n_dir);
    if (slash)
        path[n_dir] = '/';
    memcpy(path + n_dir + slash, name, n_name + 1);
    return path;
}
