/*
 * listen.c - listening sockets: a TCP port of an address or name, a unix socket.
 *
 * Called by http.c. Must not: know the protocol.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/http/http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Removes the stale socket of a server that has ended. A socket that accepts connections is kept,
 * and so is a file that is no socket, for which connect fails in the same way. */
int sv_listen_unix(const char *path, int *out, struct sv_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;

    if (strlen(path) >= sizeof a.sun_path)
        return sv_fail(err, SV_EINVAL, -1, "%s: the path of a socket has at most %zu bytes", path,
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return sv_fail(err, SV_EIO, -1, "%s: %s", path, strerror(errno));
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
        close(fd);
        return sv_fail(err, SV_EIO, -1, "%s: another server listens there", path);
    }
    if (errno == ECONNREFUSED && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(path);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 512)) {
        int code = errno;
        close(fd);
        return sv_fail(err, SV_EIO, -1, "%s: %s", path, strerror(code));
    }
    *out = fd;
    return SV_OK;
}

static int bind_tcp(const struct addrinfo *a)
{
    int one = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 512) == 0)
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

int sv_listen_tcp(const char *host, int32_t port, int *out, int *bound_port, struct sv_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    char text[16];

    snprintf(text, sizeof text, "%d", port);
    int rc = getaddrinfo(host, text, &hints, &list);
    if (rc)
        return sv_fail(err, SV_EINVAL, -1, "host %s: %s", host, gai_strerror(rc));
    int fd = bind_tcp(list);
    freeaddrinfo(list);
    if (fd < 0)
        return sv_fail(err, SV_EIO, -1, "%s port %d: %s", host, port, strerror(errno));
    if (getsockname(fd, (struct sockaddr *)&at, &n) == 0)
        *bound_port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                                     : ((struct sockaddr_in *)&at)->sin_port);
    *out = fd;
    return SV_OK;
}

bool sv_listen_is_loopback(int fd)
{
    struct sockaddr_storage at = {0};
    const struct sockaddr_in *four = (const void *)&at;
    const struct sockaddr_in6 *six = (const void *)&at;
    socklen_t n = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &n))
        return false;
    if (at.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
    return at.ss_family == AF_INET && ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}
