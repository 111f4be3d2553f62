/*
 * pacing.c - when streams are written to: all at the same time, with a gap between such times that
 * keeps the cost of writing small. First chunks and ends are written at once.
 *
 * Called by serve.c after each batch of the worker's reports. Must not: delay a first chunk or an
 * end.
 */
#include "serve/core/send.h"

/* Writes to streams should take 0.8 % of a core. The cost of one write, mostly in the kernel, is
 * measured at run time: 2 to 8 us. */
#define GAP_OF_WRITES 125
#define MIN_WRITE_NS 2000
#define MAX_WRITE_NS 8000
#define MAX_GAP_US 60000

/* The gap between writes to a stream: the more streams, the longer. */
static int64_t stream_gap(const struct sv_serve *s)
{
    int32_t most = s->o.engine.max_sequences > 1 ? s->o.engine.max_sequences
                                                 : 1; /* sequences beyond these wait */
    int64_t us = (s->n_live < most ? s->n_live : most) * s->write_ns * GAP_OF_WRITES / 1000;

    if (s->o.stream_gap_us)
        return s->o.stream_gap_us > 0 ? s->o.stream_gap_us : 0;
    return us < MAX_GAP_US ? us : MAX_GAP_US;
}

/* Updates the cost of a write: n streams were written to since start_ns of the thread's clock. */
static void learn_write(struct sv_serve *s, int64_t n, int64_t start_ns)
{
    int64_t ns = (sv_clock_thread_ns() - start_ns) / n;

    ns = ns < MIN_WRITE_NS ? MIN_WRITE_NS : ns > MAX_WRITE_NS ? MAX_WRITE_NS : ns;
    s->write_ns += (ns - s->write_ns) / 8;
}

/* The next time to write to all streams: the end of the step nearest to the end of the gap, unless
 * that is much too early. */
static int64_t next_write_us(const struct sv_serve *s, int64_t gap)
{
    int64_t early = s->step_us / 2;
    return s->flushed_us + gap - (early < gap / 8 ? early : gap / 8);
}

static bool is_first(const struct sv_call *c)
{
    return !c->req || !c->sent;
}

static bool any(const struct sv_call *c)
{
    (void)c;
    return true;
}

/* Sends to the calls on the list that fit, and removes them; returns their number. */
static int64_t send_due(struct sv_serve *s, bool (*fits)(const struct sv_call *c))
{
    struct sv_call **at = &s->due, *c;
    int64_t n = 0;

    while ((c = *at)) {
        if (!fits(c)) {
            at = &c->next_due;
            continue;
        }
        *at = c->next_due;
        c->due = false;
        sv_call_send(c);
        n++;
    }
    return n;
}

bool sv_call_streams_due(const struct sv_serve *s)
{
    int64_t now = sv_clock_us(), gap = stream_gap(s);
    return now >= next_write_us(s, gap) || (s->oldest_us && now - s->oldest_us >= gap);
}

void sv_call_flush(struct sv_serve *s, bool all)
{
    int64_t kept_us = s->inbox.kept_us, gap;

    send_due(s, sv_call_has_ended);
    send_due(s, is_first);
    if (all && s->due) {
        int64_t start_ns = sv_clock_thread_ns(), n = send_due(s, any);
        learn_write(s, n, start_ns);
    }
    if (all && s->oldest_us) {
        s->flushed_us = s->newest_us;
        s->oldest_us = 0;
    }
    if (kept_us && (!s->oldest_us || kept_us < s->oldest_us))
        s->oldest_us = kept_us;
    gap = stream_gap(s);
    sv_mail_quiet(s->mail, next_write_us(s, gap), gap,
                  s->due || kept_us ? s->oldest_us + gap : INT64_MAX);
}
