/*
 * wire.c - parts of joins between ranks on different hosts: bytes through connections, nothing
 * else.
 *
 * Called by join.c, which adds. The thread that would wait for parts sends its own and receives the
 * others' meanwhile, so that two ranks with large parts do not wait for each other. A far rank's
 * part goes to the place that it has in its window, of which there is a copy here. Must not:
 * allocate in a join, or wait without end.
 */
#define _GNU_SOURCE /* MSG_NOSIGNAL, MSG_DONTWAIT */

#include "backend/cpu/peers.h"
#include "backend/ops.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { LOOK_MS = 20 };

static size_t window_bytes(const struct sv_cpu_peers *p)
{
    return sizeof(struct sv_cpu_window) + p->at[SV_JOINS];
}

int sv_cpu_wire_open(struct sv_cpu *cpu, const int *far, struct sv_err *err)
{
    struct sv_cpu_peers *p = cpu->peers;
    p->wire = sv_calloc((size_t)cpu->ranks.n, sizeof *p->wire);
    if (!p->wire)
        return sv_fail(err, SV_ENOMEM, -1, "table of ranks");
    for (int32_t r = 0; r < cpu->ranks.n; r++)
        p->wire[r].fd = far[r];
    for (int32_t r = 0; r < cpu->ranks.n; r++) {
        if (far[r] >= 0 && !(p->window[r] = sv_calloc(1, window_bytes(p))))
            return sv_fail(err, SV_ENOMEM, -1, "no memory for a window of %zu bytes",
                           window_bytes(p));
    }
    return SV_OK;
}

void sv_cpu_wire_close(struct sv_cpu *cpu)
{
    struct sv_cpu_peers *p = cpu->peers;
    for (int32_t r = 0; p->wire && r < cpu->ranks.n; r++)
        if (p->wire[r].fd >= 0) {
            sv_free(p->window[r]);
            p->window[r] = NULL;
        }
    sv_free(p->wire);
}

/* ---------------------------------------------------------------- one connection */

enum moved { MOVED, MOVED_NOTHING, GONE, WRONG };

static bool whole(const struct sv_cpu_way *w)
{
    return w->done >= sizeof w->head && w->done == sizeof w->head + w->head.n_bytes;
}

static enum moved moved(struct sv_cpu_way *w, ssize_t n)
{
    if (n > 0)
        w->done += (size_t)n;
    return n > 0                                                                  ? MOVED
           : n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? MOVED_NOTHING
                                                                                  : GONE;
}

static enum moved send_some(int fd, struct sv_cpu_way *w)
{
    struct iovec v[2] = {{0}, {w->data, w->head.n_bytes}};
    const size_t head = sizeof w->head, in_data = w->done > head ? w->done - head : 0;
    if (w->done < head)
        v[0] = (struct iovec){(char *)&w->head + w->done, head - w->done};
    v[1].iov_base = w->data + in_data;
    v[1].iov_len -= in_data;
    const struct msghdr msg = {.msg_iov = v, .msg_iovlen = 2};
    return moved(w, sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL));
}

/* The place in the copy of rank r's window where what comes belongs; NULL: in none. */
static char *place_of(const struct sv_cpu_peers *p, int32_t r)
{
    const struct sv_cpu_part_head *h = &p->wire[r].in.head;
    if (h->kind <= SV_JOIN_NONE || h->kind >= SV_JOINS)
        return NULL;
    const uint64_t room = p->at[h->kind + 1] - p->at[h->kind];
    return h->n_bytes <= room && h->at <= room - h->n_bytes
               ? p->window[r]->part + p->at[h->kind] + h->at
               : NULL;
}

static enum moved receive_some(const struct sv_cpu_peers *p, int32_t r)
{
    struct sv_cpu_way *w = &p->wire[r].in;
    const int fd = p->wire[r].fd;
    const size_t head = sizeof w->head;
    if (w->done < head) {
        const enum moved got =
            moved(w, recv(fd, (char *)&w->head + w->done, head - w->done, MSG_DONTWAIT));
        if (w->done < head)
            return got;
        w->data = place_of(p, r);
        return w->data ? MOVED : WRONG;
    }
    const size_t at = w->done - head;
    return moved(w, recv(fd, w->data + at, w->head.n_bytes - at, MSG_DONTWAIT));
}

/* ---------------------------------------------------------------- all of them */

static void begin(struct sv_cpu *cpu, uint32_t i, const struct sv_cpu_part *own)
{
    struct sv_cpu_peers *p = cpu->peers;
    char *part = p->window[cpu->ranks.rank]->part + p->at[own->kind];
    const size_t row_bytes = own->dealt && own->n_rows ? own->n_bytes / (size_t)own->n_rows : 0;
    for (int32_t r = 0; r < cpu->ranks.n; r++) {
        struct sv_cpu_wire *w = &p->wire[r];
        const struct sv_slice rows = sv_rank_rows(own->n_rows, r, cpu->ranks.n);
        const size_t at = own->dealt ? (size_t)rows.first * row_bytes : 0;
        w->in.done = 0;
        w->out = (struct sv_cpu_way){
            .head = {.join = i,
                     .kind = own->kind,
                     .n_rows = own->n_rows,
                     .at = at,
                     .n_bytes = own->dealt ? (size_t)rows.n * row_bytes : own->n_bytes},
            .data = part + at};
    }
}

/* Of all connections what goes at once; *waits: a rank whose part or room for the own one is
 * missing, -1: none. */
static enum moved move_some(struct sv_cpu *cpu, int32_t *waits)
{
    struct sv_cpu_peers *p = cpu->peers;
    enum moved most = MOVED_NOTHING;
    *waits = -1;
    for (int32_t r = 0; r < cpu->ranks.n; r++) {
        struct sv_cpu_wire *w = &p->wire[r];
        for (int in = 0; in < 2 && w->fd >= 0; in++) {
            struct sv_cpu_way *way = in ? &w->in : &w->out;
            if (whole(way))
                continue;
            const enum moved got = in ? receive_some(p, r) : send_some(w->fd, way);
            if (got == GONE || got == WRONG) {
                *waits = r;
                return got;
            }
            most = got == MOVED ? MOVED : most;
            *waits = whole(way) ? *waits : r;
        }
    }
    return most;
}

static void wait_some(const struct sv_cpu *cpu)
{
    struct pollfd fd[SV_MAX_RANKS];
    for (int32_t r = 0; r < cpu->ranks.n; r++) {
        const struct sv_cpu_wire *w = &cpu->peers->wire[r];
        const int events = (whole(&w->in) ? 0 : POLLIN) | (whole(&w->out) ? 0 : POLLOUT);
        fd[r] = (struct pollfd){.fd = events ? w->fd : -1, .events = (short)events};
    }
    poll(fd, (nfds_t)cpu->ranks.n, LOOK_MS);
}

bool sv_cpu_wire_exchange(struct sv_cpu *cpu, uint32_t i, const struct sv_cpu_part *own)
{
    struct sv_cpu_peers *p = cpu->peers;
    int64_t since = sv_clock_us();
    int32_t waits;
    begin(cpu, i, own);
    for (;;) {
        const enum moved got = move_some(cpu, &waits);
        if (waits < 0)
            break;
        const int64_t now = sv_clock_us();
        if (got == MOVED) {
            since = now;
        } else if (got != MOVED_NOTHING) {
            sv_cpu_peers_fail(cpu, "the connection to rank %d %s", waits,
                              got == GONE ? "has ended" : "brings what is no part of a join");
            return false;
        } else if (sv_cpu_peers_give_up(cpu, waits, i, own, since)) {
            return false;
        } else if (now - since >= p->spin_us) {
            wait_some(cpu);
        }
    }
    for (int32_t r = 0; r < cpu->ranks.n; r++)
        if (p->wire[r].fd >= 0) {
            const struct sv_cpu_part_head *h = &p->wire[r].in.head;
            p->window[r]->said[h->join % SV_SAID].kind = h->kind;
            p->window[r]->said[h->join % SV_SAID].n_rows = h->n_rows;
            sv_count_set(&p->window[r]->left, h->join + 1);
        }
    return true;
}
