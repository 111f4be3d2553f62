/*
 * nccl_double.cpp - a double of NCCL for emulated kernels, whose memory is the host's: what ranks send goes through named
 * pipes, when a group ends. Where something does not come within a while nothing comes any more, as after an abort.
 *
 * Built as libnccl.so.2 by hosts_emulated.test.sh, for join_emulated.cpp. Must not: be used where an exchange is over 64 KB.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace
{
enum { MOST = 16, WAIT_MS = 500 };

struct id {
    char folder[128];
};
struct comm {
    int n, rank, to[MOST], from[MOST];
};
struct part {
    int fd;
    void *at;
    size_t n;
};
std::vector<part> sent, taken;
bool broken;

int open_pipe(const id &i, int from, int to)
{
    const std::string name = std::string(i.folder) + "/" + std::to_string(from) + "-" + std::to_string(to);
    mkfifo(name.c_str(), 0600);
    return open(name.c_str(), O_RDWR);
}

bool take(const part &p)
{
    for (size_t got = 0; got < p.n;) {
        pollfd ready = {p.fd, POLLIN, 0};
        if (poll(&ready, 1, WAIT_MS) < 1)
            return false;
        const ssize_t n = read(p.fd, (char *)p.at + got, p.n - got);
        if (n <= 0)
            return false;
        got += n;
    }
    return true;
}
} // namespace

extern "C" {
int ncclGetUniqueId(id *i)
{
    memset(i, 0, sizeof *i);
    snprintf(i->folder, sizeof i->folder, "%s/XXXXXX", getenv("NCCL_DOUBLE"));
    return mkdtemp(i->folder) ? 0 : 2;
}
int ncclCommInitRank(void **out, int n, id i, int rank)
{
    comm *c = new comm{n, rank, {}, {}};
    for (int r = 0; r < n; r++) {
        c->to[r] = open_pipe(i, rank, r);
        c->from[r] = open_pipe(i, r, rank);
        if (c->to[r] < 0 || c->from[r] < 0)
            return 2;
    }
    *out = c;
    return 0;
}
int ncclCommAbort(void *of)
{
    comm *c = (comm *)of;
    for (int r = 0; r < c->n; r++) {
        close(c->to[r]);
        close(c->from[r]);
    }
    delete c;
    return 0;
}
int ncclCommGetAsyncError(void *, int *rc)
{
    return *rc = 0;
}
const char *ncclGetErrorString(int rc)
{
    return rc ? "a system call has failed" : "no error";
}
int ncclGroupStart(void)
{
    return 0;
}
int ncclSend(const void *from, size_t n, int, int r, void *of, void *)
{
    sent.push_back({((comm *)of)->to[r], (void *)from, n});
    return 0;
}
int ncclRecv(void *to, size_t n, int, int r, void *of, void *)
{
    taken.push_back({((comm *)of)->from[r], to, n});
    return 0;
}
int ncclGroupEnd(void)
{
    for (const part &p : sent)
        if (write(p.fd, p.at, p.n) != (ssize_t)p.n)
            return 2;
    for (const part &p : taken)
        broken = broken || !take(p);
    sent.clear();
    taken.clear();
    return 0;
}
}
