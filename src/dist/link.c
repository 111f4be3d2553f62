/*
 * link.c - connections between processes: process 0 and the first process of every other replica,
 * ranks of one replica on different hosts. TCP, with messages of a kind and some bytes.
 *
 * Called by mpi.c (set-up), hosts.c and serve (messages). Both ends prove by a key, which MPI has
 * carried, that they belong to one start of the program: other connections are refused, and an
 * address that means another machine there does no harm. What is sent is not encrypted, as MPI's
 * own is not. Must not: know what is sent, or wait without end for a process that should connect.
 */
#define _GNU_SOURCE /* getifaddrs, accept4, getrandom */

#include "dist/dist.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HALF = SV_LINK_KEY / 2, CONNECT_MS = 3000, HANDSHAKE_US = 60000000 };

struct head {
    uint32_t kind, zero;
    uint64_t n_bytes;
};

/* What connects says which end it is. */
struct hello {
    unsigned char key[HALF];
    int32_t from, which, pid;
    char host[SV_HOST_NAME];
};

/* ---------------------------------------------------------------- bytes */

/* more: what follows goes in the same packet. */
static bool send_all(int fd, const void *data, size_t n, bool more)
{
    const char *p = data;
    while (n) {
        const ssize_t sent = send(fd, p, n, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

static enum sv_link_got read_all(int fd, void *to, size_t n, int64_t timeout_us)
{
    const int wait_ms = timeout_us < 0 ? -1 : (int)((timeout_us + 999) / 1000);
    char *p = to;
    while (n) {
        const int ready = poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, wait_ms);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0)
            return SV_LINK_SILENT;
        const ssize_t got = ready < 0 ? -1 : recv(fd, p, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return SV_LINK_GONE;
        p += got;
        n -= (size_t)got;
    }
    return SV_LINK_MESSAGE;
}

bool sv_link_send(int fd, uint32_t kind, const void *data, size_t n)
{
    const struct head h = {.kind = kind, .n_bytes = n};
    return send_all(fd, &h, sizeof h, n > 0) && send_all(fd, data, n, false);
}

enum sv_link_got sv_link_take(int fd, uint32_t *kind, struct sv_buf *to, int64_t timeout_us)
{
    struct head h;
    enum sv_link_got got = read_all(fd, &h, sizeof h, timeout_us);
    if (got)
        return got;
    sv_buf_clear(to);
    if (sv_buf_reserve(to, h.n_bytes))
        sv_panic("out of memory for a message of %llu bytes", (unsigned long long)h.n_bytes);
    *kind = h.kind;
    to->len = h.n_bytes;
    return read_all(fd, to->data, to->len, timeout_us);
}

void sv_link_close(struct sv_link *link)
{
    for (int i = 0; i < SV_LINK_FDS; i++) {
        if (link->fd[i] >= 0)
            close(link->fd[i]);
        link->fd[i] = SV_LINK_NONE;
    }
}

void sv_host_name(char name[SV_HOST_NAME])
{
    const char *played = sv_env("SALVO_HOST_NAME");
    memset(name, 0, SV_HOST_NAME);
    if (played && *played)
        snprintf(name, SV_HOST_NAME, "%s", played);
    else
        gethostname(name, SV_HOST_NAME - 1);
}

/* ---------------------------------------------------------------- the one that listens */

static void add_address(struct sv_link_endpoint *m, const struct sockaddr *a)
{
    const void *bytes = a->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
                            : &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (m->n_addresses < SV_LINK_ADDRESSES &&
        inet_ntop(a->sa_family, bytes, m->address[m->n_addresses], sizeof m->address[0]))
        m->n_addresses++;
}

/* Those of this machine that others may reach; link-local ones mean nothing there. */
static void find_addresses(struct sv_link_endpoint *m)
{
    struct ifaddrs *all = NULL;
    snprintf(m->address[m->n_addresses++], sizeof m->address[0], "127.0.0.1");
    if (getifaddrs(&all))
        return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        const struct sockaddr *a = i->ifa_addr;
        if (!a || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        const bool v6 = a->sa_family == AF_INET6;
        if (a->sa_family != AF_INET && !v6)
            continue;
        if (!v6 || !IN6_IS_ADDR_LINKLOCAL(
                       &((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr))
            add_address(m, a);
    }
    freeifaddrs(all);
}

static int cannot_listen(struct sv_err *err)
{
    return sv_fail(err, SV_EIO, -1, "cannot listen for other processes: %s", strerror(errno));
}

int sv_link_listen(struct sv_link_endpoint *m, int *out, bool alone, struct sv_err *err)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sockaddr_in a4 = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(alone ? INADDR_LOOPBACK : INADDR_ANY)};
    socklen_t n = sizeof a;
    *m = (struct sv_link_endpoint){0};
    if (getrandom(m->key, sizeof m->key, 0) != sizeof m->key)
        return sv_fail(err, SV_EIO, -1, "no random numbers");
    /* IPv6 takes IPv4 as well, where there is any. */
    int fd = alone ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, sizeof(int));
        if (bind(fd, (const struct sockaddr *)&a, sizeof a)) {
            close(fd);
            fd = -1;
        }
    }
    if (fd < 0) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (const struct sockaddr *)&a4, sizeof a4))
            return cannot_listen(err);
    }
    if (listen(fd, 64) || getsockname(fd, (struct sockaddr *)&a, &n))
        return cannot_listen(err);
    m->port = ntohs(a.sin6_port); /* at the place of sin_port */
    if (alone)
        snprintf(m->address[m->n_addresses++], sizeof m->address[0], "127.0.0.1");
    else
        find_addresses(m);
    *out = fd;
    return SV_OK;
}

static void set_up(int fd)
{
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){15}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){5}, sizeof(int));
}

/* Checks the key of a connection that was accepted; false: to be closed. */
static bool handshake(int fd, const struct sv_link_endpoint *m, struct sv_link *link, int32_t n)
{
    struct hello h;
    if (!send_all(fd, m->key, HALF, false) ||
        read_all(fd, &h, sizeof h, (int64_t)CONNECT_MS * 1000) ||
        memcmp(h.key, m->key + HALF, HALF) != 0 || h.from < 0 || h.from >= n || h.which < 0 ||
        h.which >= SV_LINK_FDS || link[h.from].fd[h.which] != SV_LINK_DUE)
        return false;
    set_up(fd);
    link[h.from].fd[h.which] = fd;
    link[h.from].pid = h.pid;
    snprintf(link[h.from].host, sizeof link->host, "%.*s", (int)sizeof h.host - 1, h.host);
    return true;
}

/* The first link that is due; NULL: none is. */
static const struct sv_link *find_due(const struct sv_link *link, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        for (int which = 0; which < SV_LINK_FDS; which++)
            if (link[i].fd[which] == SV_LINK_DUE)
                return &link[i];
    return NULL;
}

int sv_link_accept(int fd, const struct sv_link_endpoint *m, struct sv_link *link, int32_t n,
                   struct sv_err *err)
{
    const int64_t end = sv_clock_us() + HANDSHAKE_US;
    while (find_due(link, n) && sv_clock_us() < end) {
        if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 1000) < 1)
            continue;
        const int one = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (one >= 0 && !handshake(one, m, link, n))
            close(one);
    }
    close(fd);
    const struct sv_link *due = find_due(link, n);
    return due ? sv_fail(err, SV_EIO, -1, "process %d has not connected to port %d", due->process,
                         m->port)
               : SV_OK;
}

/* ---------------------------------------------------------------- the others */

static int connect_to(const char *address, int32_t port)
{
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const bool v4 = inet_pton(AF_INET, address, &a4.sin_addr) == 1;
    int failed = 0;
    if (!v4 && inet_pton(AF_INET6, address, &a6.sin6_addr) != 1)
        return -1;
    const int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    const int rc = v4 ? connect(fd, (const struct sockaddr *)&a4, sizeof a4)
                      : connect(fd, (const struct sockaddr *)&a6, sizeof a6);
    if ((rc == 0 || errno == EINPROGRESS) &&
        poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, CONNECT_MS) == 1 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &(socklen_t){sizeof failed}) == 0 &&
        !failed && fcntl(fd, F_SETFL, 0) == 0)
        return fd;
    close(fd);
    return -1;
}

static int try_address(const struct sv_link_endpoint *m, int32_t i, struct hello *h)
{
    unsigned char key[HALF];
    const int fd = connect_to(m->address[i], m->port);
    if (fd < 0)
        return -1;
    if (read_all(fd, key, sizeof key, (int64_t)CONNECT_MS * 1000) ||
        memcmp(key, m->key, HALF) != 0 || !send_all(fd, h, sizeof *h, false)) {
        close(fd);
        return -1;
    }
    set_up(fd);
    return fd;
}

int sv_link_connect(const struct sv_link_endpoint *m, int32_t from, int32_t pid,
                    struct sv_link *link, struct sv_err *err)
{
    struct hello h = {.from = from, .pid = pid};
    int32_t at = 0;
    memcpy(h.key, m->key + HALF, HALF);
    sv_host_name(h.host);
    for (h.which = 0; h.which < SV_LINK_FDS; h.which++)
        while (link->fd[h.which] == SV_LINK_DUE) {
            if (at == m->n_addresses)
                return sv_fail(err, SV_EIO, -1, "process %d does not answer at port %d of %s%s",
                               link->process, m->port,
                               m->n_addresses > 1 ? m->address[1] : m->address[0],
                               m->n_addresses > 2 ? " or its other addresses" : "");
            const int fd = try_address(m, at, &h);
            if (fd >= 0)
                link->fd[h.which] = fd;
            else
                at++;
        }
    return SV_OK;
}
