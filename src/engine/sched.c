/*
 * sched.c - which sequences run next and with which rows.
 *
 * Called by step.c and engine.c. Pure host code over the lists in struct sv_sched: testable without a device.
 * First come, first served; every decoding sequence runs in every step, prompts fill the rows left over.
 * A sequence is seated only when pages for its whole length are there, so it never has to be evicted.
 * Must not allocate, and must not look at token values.
 */
#include "engine/engine.h"

void sv_sched_push(struct sv_sched *s, struct sv_seq *seq)
{
    seq->next = NULL;
    if (s->tail)
        s->tail->next = seq;
    else
        s->head = seq;
    s->tail = seq;
    s->n_unfinished++;
}

static int32_t free_slot(const struct sv_sched *s)
{
    for (int32_t i = 0; i < s->n_slots; i++)
        if (!s->slot[i])
            return i;
    return -1;
}

void sv_sched_admit(struct sv_sched *s, struct sv_cache *cache, bool *new_slot)
{
    for (struct sv_seq *q = s->head; q; q = q->next) {
        if (q->state != SV_SEQ_WAITING)
            continue;
        int32_t slot = free_slot(s);
        /* The last block may stick out past the last token by a block of rows. */
        int32_t need = q->cap_tokens + s->block;
        if (slot < 0 || !sv_cache_can_reserve(cache, need))
            return;
        SV_REQUIRE(sv_cache_reserve(cache, slot, need));
        s->slot[slot] = q;
        q->slot = slot;
        q->state = SV_SEQ_PREFILL;
        q->start_us = sv_clock_us();
        new_slot[slot] = true;
    }
}

static struct sv_plan_seg *add_seg(struct sv_plan *p, int32_t slot, int32_t kind, int32_t first,
                                   int32_t n_rows, int32_t n_logits)
{
    struct sv_plan_seg *g = &p->seg[p->n_segs++];
    *g = (struct sv_plan_seg){.slot = slot,
                              .kind = kind,
                              .row0 = p->n_rows,
                              .n_rows = n_rows,
                              .logit0 = p->n_logits,
                              .n_logits = n_logits,
                              .first = first,
                              .draft_row0 = p->n_draft_rows,
                              .draft_out0 = p->n_draft_out};
    p->n_rows += n_rows;
    p->n_logits += n_logits;
    return g;
}

static void plan_decode(const struct sv_sched *s, struct sv_plan *p, const struct sv_seq *q)
{
    int32_t w = sv_width_pick(q->width, q->cap_tokens - q->n_tokens);
    struct sv_plan_seg *g = add_seg(p, q->slot, SV_SEG_VERIFY, q->n_committed, w, w);
    if (w < 2 || s->block < 2)
        return;
    /* The draft always sees the whole block it is asked to work with, also when the last tokens of a
     * request need fewer: fewer masks would change its predictions. */
    g->n_draft_rows = q->width;
    p->n_draft_segs++;
    p->n_draft_rows += q->width;
    p->n_draft_out += w - 1;
}

void sv_sched_plan(struct sv_sched *s, struct sv_plan *p)
{
    struct sv_plan_seg *seg = p->seg;
    *p = (struct sv_plan){.seg = seg};
    for (int32_t i = 0; i < s->n_slots; i++) {
        const struct sv_seq *q = s->slot[i];
        if (!q || q->state != SV_SEQ_DECODE)
            continue;
        plan_decode(s, p, q);
        p->sampled |= !sv_sample_is_greedy(&q->sampling);
    }
    int32_t room = s->prefill_rows;
    for (const struct sv_seq *q = s->head; q && room > 0; q = q->next) {
        if (q->state != SV_SEQ_PREFILL)
            continue;
        int32_t left = q->n_prompt - q->n_committed;
        int32_t n = left < room ? left : room;
        bool last = n == left;
        add_seg(p, q->slot, SV_SEG_PREFILL, q->n_committed, n, last);
        p->sampled |= last && !sv_sample_is_greedy(&q->sampling);
        room -= n;
    }
}
