/*
 * inbox.c - the loop's end of the worker's reports: while streams gather text, only sequences that
 * begin or end are handled, and the reports of the others stay packed.
 *
 * Called by worker.c for the loop. Handling an event costs a tenth of a microsecond, mostly waiting
 * for memory that the model has evicted from the CPU's caches; seven events of a sequence in a row
 * cost little more than one. Must not: change the order of one sequence's events, or drop any.
 */
#include "serve/core/out.h"

#include <string.h>

static bool is_wanted(const struct sv_inbox *in, const struct sv_out_mark *m)
{
    if (in->all || m->kind != SV_OUT_EVENT)
        return true;
    for (int i = 0; i < in->n_wanted; i++)
        if (in->wanted[i] == m->choice)
            return true;
    return false;
}

/* Notes the sequences that begin or end in the last batch; with too many of them, nothing is
 * delayed. */
static void choose(struct sv_inbox *in)
{
    struct sv_out_mark m;

    in->n_wanted = 0;
    for (size_t at = 0; !in->all && sv_out_peek(&in->taken, at, &m); at += m.n_bytes) {
        if (m.kind != SV_OUT_EVENT || !m.urgent)
            continue;
        if (in->n_wanted == SV_INBOX_WANTED)
            in->all = true;
        else
            in->wanted[in->n_wanted++] = m.choice;
    }
}

void sv_inbox_begin(struct sv_inbox *in, bool all)
{
    in->all = all;
    in->at = in->kept_at = 0;
    choose(in);
}

static void keep(struct sv_inbox *in, const struct sv_out_mark *m)
{
    if (!in->kept_us)
        in->kept_us = m->at_us;
    sv_buf_append(&in->kept, in->taken.data + in->at, m->n_bytes);
    if (in->kept.failed)
        sv_panic("out of memory for %llu bytes of results",
                 (unsigned long long)m->n_bytes); /* an answer must not lose text */
}

bool sv_inbox_next(struct sv_inbox *in, struct sv_out *o)
{
    struct sv_out_mark m;

    for (; sv_out_peek(&in->kept, in->kept_at, &m); in->kept_at += m.n_bytes)
        if (m.choice && is_wanted(in, &m)) {
            sv_out_unpack(&in->kept, &in->kept_at, o);
            sv_out_forget(&in->kept, in->kept_at - m.n_bytes);
            return true;
        }
    if (in->all) {
        sv_buf_clear(&in->kept);
        in->kept_at = 0;
        in->kept_us = 0;
    }
    for (; sv_out_peek(&in->taken, in->at, &m); in->at += m.n_bytes) {
        if (is_wanted(in, &m))
            return sv_out_unpack(&in->taken, &in->at, o);
        keep(in, &m);
        in->kept_at = in->kept.len;
    }
    return false;
}

void sv_inbox_fini(struct sv_inbox *in)
{
    sv_buf_fini(&in->taken);
    sv_buf_fini(&in->kept);
}
