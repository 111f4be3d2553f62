/*
 * hosts.c - a group of ranks on several hosts: each host has a world memory of its own, and what
 * ranks of other hosts would write into it comes through connections.
 *
 * Called by world.c. The first rank of each host, where rank 0 is not, has a connection to rank 0,
 * and at both ends a thread that sends and one that receives. Rank 0's end sends what it knows of
 * all other hosts and the stream; the others send what their own ranks say. All of it is states,
 * which replace what was known, and failures, of which the first is kept. Parts of joins go another
 * way (sv_peers.far). Must not: be waited for where all ranks are on one host, or wait without end:
 * an end that is silent for the timeout has failed, and each end sends a message several times a
 * second.
 */
#include "dist/dist.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { LOOK_US = 10000, BEAT_US = 200000, LINE = 64 };
enum { MSG_BEAT, MSG_STATE, MSG_LINES, MSG_FAILURE };

/* Rank and text, which do not change any more. */
#define FAILURE_BYTES (sizeof(struct sv_failure) - offsetof(struct sv_failure, rank))

/* Of a rank, in the order in which others may see it. */
struct state {
    uint64_t passes_joins;
    uint32_t read, swapped, gone;
    int32_t rank;
    char swap[SV_SWAP_BYTES]; /* what it said last; left out where that is known */
};

struct sv_relay {
    struct sv_world world; /* of the process */
    int32_t to;            /* the rank at the other end */
    int fd;
    struct sv_thread *sender, *receiver;
    struct sv_count over;
    int64_t sent_us;
    struct state sent[SV_MAX_RANKS];
    uint32_t lines; /* of the stream, sent or received */
    bool failure_sent;
    struct sv_buf in;
};

/* Whether rank r's states go out here, else they come in, or are of the host's own memory. */
static bool goes_out(const struct sv_relay *x, int32_t r)
{
    const int32_t *first = x->world.hosts->first;
    return x->world.ranks.rank ? first[r] == x->world.ranks.rank : first[r] != x->to;
}

/* ---------------------------------------------------------------- sending */

static bool send_one(struct sv_relay *x, uint32_t kind, const void *data, size_t n)
{
    x->sent_us = sv_clock_us();
    return sv_link_send(x->fd, kind, data, n);
}

/* A rank may be one swap ahead of what was sent: each of them goes, in order. */
static bool send_state(struct sv_relay *x, int32_t r)
{
    struct sv_world_memory *m = x->world.shared;
    struct state *last = &x->sent[r], now = *last;
    bool ok = true;
    now.rank = r;
    now.gone = sv_count_read(&m->gone[r]);
    const uint32_t swapped = sv_count_read(&m->swapped[r]);
    now.read = sv_count_read(&m->stream.read[r]);
    now.passes_joins = __atomic_load_n(&m->progress[r].passes_joins, __ATOMIC_ACQUIRE);
    for (; now.swapped != swapped && ok; *last = now) {
        memcpy(now.swap, m->swap[now.swapped++ % 2][r], SV_SWAP_BYTES);
        ok = send_one(x, MSG_STATE, &now, sizeof now);
    }
    if (ok && memcmp(&now, last, offsetof(struct state, rank)) != 0)
        ok = send_one(x, MSG_STATE, &now, offsetof(struct state, swap));
    *last = now;
    return ok;
}

/* What rank 0 has written by now, up to the end of the ring and from its begin. */
static bool send_lines(struct sv_relay *x)
{
    const struct sv_stream *s = &x->world.shared->stream;
    const uint32_t written = sv_count_read(&s->written);
    while (x->lines != written) {
        const uint32_t at = x->lines % SV_STREAM_LINES, to_end = SV_STREAM_LINES - at,
                       left = written - x->lines, n = left < to_end ? left : to_end;
        if (!send_one(x, MSG_LINES, s->ring + (size_t)at * LINE, (size_t)n * LINE))
            return false;
        x->lines += n;
    }
    return true;
}

/* False: the other end is gone. */
static bool send_changes(struct sv_relay *x)
{
    const struct sv_failure *f = &x->world.shared->failure;
    bool ok = x->world.ranks.rank || send_lines(x);
    for (int32_t r = 0; r < x->world.ranks.n && ok; r++)
        ok = !goes_out(x, r) || send_state(x, r);
    if (ok && !x->failure_sent && __atomic_load_n(&f->stop, __ATOMIC_ACQUIRE)) {
        x->failure_sent = true;
        ok = send_one(x, MSG_FAILURE, &f->rank, FAILURE_BYTES);
    }
    if (ok && sv_clock_us() - x->sent_us >= BEAT_US)
        ok = send_one(x, MSG_BEAT, NULL, 0);
    return ok;
}

static void *sender_main(void *arg)
{
    struct sv_relay *x = arg;
    struct sv_count *changed = &x->world.shared->changed;
    bool over = false;
    while (!over) {
        const uint32_t seen = sv_count_read(changed);
        over = sv_count_read(&x->over);
        if (!send_changes(x))
            return NULL;
        if (!over)
            sv_count_wait(changed, seen + 1, NULL, 0, LOOK_US);
    }
    shutdown(x->fd, SHUT_WR);
    return NULL;
}

/* ---------------------------------------------------------------- receiving */

static bool take_state(struct sv_relay *x, const struct state *s, size_t n)
{
    struct sv_world_memory *m = x->world.shared;
    const int32_t r = s->rank;
    if (n < offsetof(struct state, swap) || r < 0 || r >= x->world.ranks.n ||
        x->world.hosts->first[r] == x->world.hosts->first[x->world.ranks.rank])
        return false;
    if (n == sizeof *s)
        memcpy(m->swap[(s->swapped - 1) % 2][r], s->swap, SV_SWAP_BYTES);
    __atomic_store_n(&m->progress[r].passes_joins, s->passes_joins, __ATOMIC_RELEASE);
    sv_count_set(&m->stream.read[r], s->read);
    sv_count_set(&m->swapped[r], s->swapped);
    sv_count_set(&m->gone[r], s->gone);
    sv_world_changed(&x->world); /* rank 0 passes it on to third hosts */
    return true;
}

static bool take_lines(struct sv_relay *x, size_t n_bytes)
{
    struct sv_stream *s = &x->world.shared->stream;
    const uint32_t at = x->lines % SV_STREAM_LINES, n = (uint32_t)(n_bytes / LINE);
    if (n_bytes % LINE || n_bytes / LINE > SV_STREAM_LINES - at || !x->world.ranks.rank)
        return false;
    memcpy(s->ring + (size_t)at * LINE, x->in.data, n_bytes);
    x->lines += n;
    sv_count_set(&s->written, x->lines);
    return true;
}

static bool take(struct sv_relay *x, uint32_t kind)
{
    struct sv_failure f;
    switch (kind) {
    case MSG_BEAT:
        return true;
    case MSG_STATE: {
        struct state s;
        memset(&s, 0, sizeof s);
        memcpy(&s, x->in.data, x->in.len < sizeof s ? x->in.len : sizeof s);
        return take_state(x, &s, x->in.len);
    }
    case MSG_LINES:
        return take_lines(x, x->in.len);
    case MSG_FAILURE:
        if (x->in.len != FAILURE_BYTES)
            return false;
        memcpy(&f.rank, x->in.data, FAILURE_BYTES);
        f.text[sizeof f.text - 1] = 0;
        sv_failure_set(&x->world.shared->failure, f.rank, f.text);
        return true;
    default:
        return false;
    }
}

/* Nothing more comes. Ranks from there look at nothing any more, and are not waited for. */
static void end(struct sv_relay *x, const char *why)
{
    struct sv_world_memory *m = x->world.shared;
    const char *host = x->world.hosts->link[x->to].host;
    bool all = true;
    char text[160];
    for (int32_t r = 0; r < x->world.ranks.n; r++)
        all &= goes_out(x, r) || sv_count_read(&m->gone[r]);
    if (all)
        return;
    snprintf(text, sizeof text, "the connection to its host%s%s %s", host[0] ? " " : "", host, why);
    sv_failure_set(&m->failure, x->to, text);
    for (int32_t r = 0; r < x->world.ranks.n; r++)
        if (!goes_out(x, r))
            sv_count_set(&m->gone[r], 1);
    sv_world_changed(&x->world);
}

static void *receiver_main(void *arg)
{
    struct sv_relay *x = arg;
    const int64_t timeout_us = x->world.timeout_us;
    enum sv_link_got got = SV_LINK_MESSAGE;
    bool fits = true;
    uint32_t kind;
    char silent[48];
    while (fits && !(got = sv_link_take(x->fd, &kind, &x->in, timeout_us)))
        fits = take(x, kind);
    snprintf(silent, sizeof silent, "is silent for %lld ms", (long long)(timeout_us / 1000));
    end(x, !fits                   ? "carries a message that does not fit"
           : got == SV_LINK_SILENT ? silent
                                   : "has ended");
    if (got == SV_LINK_SILENT || !fits)
        shutdown(x->fd, SHUT_RDWR); /* the sender may be waiting for room */
    return NULL;
}

/* ---------------------------------------------------------------- life */

int sv_hosts_open(struct sv_world *w, struct sv_err *err)
{
    struct sv_hosts *h = w->hosts;
    int rc = SV_OK;
    for (int32_t i = 0; i < w->ranks.n && !rc; i++) {
        if (h->link[i].fd[SV_LINK_WORLD] < 0)
            continue;
        struct sv_relay *x = h->relay[i] = sv_calloc(1, sizeof *x);
        if (!x)
            return sv_fail(err, SV_ENOMEM, -1, "memory for hosts");
        x->world = *w;
        x->to = i;
        x->fd = h->link[i].fd[SV_LINK_WORLD];
        sv_buf_init(&x->in);
        rc = sv_thread_start(&x->receiver, receiver_main, x, err);
        if (!rc)
            rc = sv_thread_start(&x->sender, sender_main, x, err);
    }
    return rc;
}

void sv_hosts_close(struct sv_world *w)
{
    struct sv_hosts *h = w->hosts;
    for (int32_t i = 0; i < w->ranks.n; i++) {
        struct sv_relay *x = h->relay[i];
        if (x) {
            sv_count_set(&x->over, 1);
            sv_world_changed(w);
            if (x->sender)
                sv_thread_join(x->sender);
            else
                shutdown(x->fd, SHUT_RDWR);
            if (x->receiver)
                sv_thread_join(x->receiver);
            sv_buf_fini(&x->in);
            sv_free(x);
        }
        sv_link_close(&h->link[i]);
    }
}
