/*
 * sched.c - which sequences run next and with which rows; allocation and release of pages.
 *
 * Called by step.c and engine.c. Pure host code over the lists in struct sv_sched: testable without
 * a device. First come, first served: every decoding sequence runs in every step; prompts share the
 * remaining rows. Pages grow with a sequence. When they run out, cached prefixes are evicted first,
 * then the sequence that arrived last is preempted: it releases its pages, keeps its tokens and
 * waits; it resumes by computing them again as a prompt, which gives the same bits. So the oldest
 * sequence always runs. Where the cache has parts (DP attention), a sequence belongs to the part of
 * its slot, where it gets its pages, and a step's rows are sorted by parts. Must not allocate, and
 * must not read token values.
 */
#include "engine/sched.h"

#include "engine/images.h"

#include <math.h>

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

static int32_t free_slot(const struct sv_sched *s, const struct sv_cache *cache, int32_t part)
{
    for (int32_t i = 0; i < s->n_slots; i++)
        if (!s->slot[i] && sv_cache_part(cache, i) == part)
            return i;
    return -1;
}

/* ---------------------------------------------------------------- pages */

void sv_sched_release(struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q)
{
    if (q->slot < 0)
        return;
    sv_cache_release(cache, q->slot);
    s->slot[q->slot] = NULL;
    q->slot = -1;
}

int32_t sv_sched_draft_end(const struct sv_cache *cache, const struct sv_seq *q)
{
    return sv_cache_valid_to(cache, q->slot, cache->owned[SV_CACHE_DRAFT]);
}

bool sv_sched_draft_kv_missing(const struct sv_cache *cache, const struct sv_seq *q)
{
    return sv_sched_draft_end(cache, q) < INT32_MAX;
}

void sv_sched_invalidate_draft(struct sv_cache *cache, struct sv_seq *q, int32_t from)
{
    sv_cache_invalidate(cache, q->slot, cache->owned[SV_CACHE_DRAFT], from);
}

/* Preempts a sequence: when it resumes, what the prefix cache does not have is computed again. */
static void put_back(struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q)
{
    SV_REQUIRE(q->n_rows_ahead == 0);
    if (s->before_preempt)
        s->before_preempt(s->user);
    sv_sched_release(s, cache, q);
    q->state = SV_SEQ_WAITING;
    q->n_committed = 0;
    q->grant = 0;
}

static void preempt(struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q)
{
    put_back(s, cache, q);
    q->n_preemptions++;
    s->n_preemptions++;
}

/* The most positions that a sequence may have after the steps in flight. */
static int32_t reach(const struct sv_seq *q)
{
    return q->n_committed + q->n_rows_ahead;
}

static bool decodes(const struct sv_seq *q)
{
    return q->slot >= 0 && reach(q) >= q->n_prefill;
}

static struct sv_seq *youngest(const struct sv_sched *s, const struct sv_cache *cache, int32_t part)
{
    struct sv_seq *best = NULL;
    for (int32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i] && sv_cache_part(cache, i) == part && (!best || s->slot[i]->id > best->id))
            best = s->slot[i];
    return best;
}

/* Reserves pages for n positions of a running sequence, preempting younger ones of its part. False:
 * it was preempted itself, or a preemption is needed and a step is in flight. */
static bool back(struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q, int32_t n,
                 bool in_flight)
{
    while (!sv_cache_reserve(cache, q->slot, n)) {
        if (in_flight)
            return false;
        struct sv_seq *victim = youngest(s, cache, sv_cache_part(cache, q->slot));
        preempt(s, cache, victim);
        if (victim == q)
            return false;
    }
    return true;
}

/* Adds the pages that a sequence in this slot needs until it decodes. */
static void add_need(const struct sv_sched *s, const struct sv_cache *cache, const struct sv_seq *q,
                     int32_t slot, struct sv_cache_need *need)
{
    const int32_t n = (reach(q) > q->n_prefill ? reach(q) : q->n_prefill) + q->width;
    const int32_t n_rows = s->prefill_rows > q->width ? s->prefill_rows : q->width;
    sv_cache_add_need(cache, slot, n, n_rows, need);
}

static int32_t n_in_slots(const struct sv_sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_slots; i++)
        n += s->slot[i] != NULL;
    return n;
}

/* Whether recomputing n_rows rows, up to this context, pays for itself by drafting the next
 * n_tokens tokens. */
static bool worth_restoring(const struct sv_sched *s, int32_t n_rows, int32_t context,
                            double n_tokens)
{
    int32_t n = n_in_slots(s) + 1;
    return sv_policy_gain_us(s->policy, n, NULL) / n * n_tokens >
           sv_policy_restore_us(s->policy, n_rows, context);
}

/* Attaches cached pages of a sequence's prefix. Where the gain is worth it, pages that lack the
 * draft's K/V are left out and recomputed as a part of the prompt. */
static void attach(const struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q, int32_t slot)
{
    /* A new prompt always computes its last token, whose row chooses the next one. */
    const int32_t most = q->n_tokens > q->n_prompt ? q->n_prefill : q->n_prefill - 1;
    const double left = q->cap_tokens - q->n_tokens,
                 expected = left < s->usual_answer ? left : s->usual_answer;
    const uint32_t draft = cache->owned[SV_CACHE_DRAFT];
    const bool whole = s->policy && (q->restores || q->fixed_width);
    sv_cache_set_salt(cache, slot, q->cache_salt);
    q->n_committed = q->wants_prompt_logits
                         ? 0
                         : sv_cache_attach(cache, slot, sv_seq_keys(q), most, whole ? draft : 0);
    const int32_t end = sv_cache_valid_to(cache, slot, draft);
    if (!s->policy || end == INT32_MAX)
        return;
    if (!worth_restoring(s, q->n_committed - end, q->n_committed, expected))
        return;
    sv_cache_release(cache, slot);
    q->n_committed = sv_cache_attach(cache, slot, sv_seq_keys(q), most, draft);
}

/* Pages that the running sequences of a part still need. */
static struct sv_cache_need owed_in(const struct sv_sched *s, const struct sv_cache *cache,
                                    int32_t part)
{
    struct sv_cache_need owed = {{0}};
    for (int32_t i = 0; i < s->n_slots; i++)
        if (s->slot[i] && sv_cache_part(cache, i) == part)
            add_need(s, cache, s->slot[i], i, &owed);
    return owed;
}

/* Attaches cached pages and reserves the remaining ones, or does nothing. */
static bool acquire_pages(const struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q,
                          int32_t slot)
{
    const int32_t part = sv_cache_part(cache, slot);
    struct sv_cache_need owed = owed_in(s, cache, part);
    if (!sv_cache_can_back(cache, part, &owed, 1))
        return false;
    attach(s, cache, q, slot);
    add_need(s, cache, q, slot, &owed);
    if (sv_cache_can_back(cache, part, &owed, 0))
        return true;
    sv_cache_release(cache, slot);
    q->n_committed = 0;
    return false;
}

/* Among the untried parts with a free slot, the one that has most of the prefix cached; on a tie
 * the one with most free pages. -1: none. */
static int32_t best_part(const struct sv_sched *s, const struct sv_cache *cache,
                         const struct sv_seq *q, uint32_t tried)
{
    int32_t best = -1, best_known = 0, best_spare = 0;
    for (int32_t p = 0; p < cache->n_parts; p++) {
        if (tried >> p & 1 || free_slot(s, cache, p) < 0)
            continue;
        if (cache->n_parts == 1)
            return p;
        const int32_t known =
            q->wants_prompt_logits
                ? 0
                : sv_cache_known_in(cache, p, q->cache_salt, sv_seq_keys(q), q->n_prefill);
        const int32_t spare =
            sv_cache_n_available_in(cache, p) - owed_in(s, cache, p).n_pages[cache->main];
        if (best >= 0 && (known < best_known || (known == best_known && spare <= best_spare)))
            continue;
        best = p;
        best_known = known;
        best_spare = spare;
    }
    return best;
}

/* Finds a slot and reserves its pages; -1: none. */
static int32_t find_slot(const struct sv_sched *s, struct sv_cache *cache, struct sv_seq *q)
{
    uint32_t tried = 0;
    for (int32_t p; (p = best_part(s, cache, q, tried)) >= 0; tried |= 1u << p) {
        const int32_t slot = free_slot(s, cache, p);
        if (acquire_pages(s, cache, q, slot))
            return slot;
    }
    return -1;
}

/* Admits waiting sequences in order of arrival while the prompts of all running ones fit: otherwise
 * two long prompts would preempt each other in turn. Answers use the remaining pages. */
static void admit(struct sv_sched *s, struct sv_cache *cache)
{
    for (struct sv_seq *q = s->head; q; q = q->next) {
        if (q->state != SV_SEQ_WAITING)
            continue;
        bool resumes = q->n_tokens > q->n_prompt;
        q->n_prefill = resumes ? q->n_tokens - 1 : q->n_prompt;
        const int32_t slot = find_slot(s, cache, q);
        if (slot < 0)
            return;
        s->slot[slot] = q;
        s->new_slot[slot] = true;
        q->slot = slot;
        q->state = q->n_committed < q->n_prefill ? SV_SEQ_PREFILL : SV_SEQ_DECODE;
        q->restores = false;
        if (q->start_us)
            continue;
        q->start_us = sv_clock_us();
        q->n_cached = q->n_committed;
        s->n_cache_queries += q->n_prompt;
        s->n_cache_hits += q->n_cached;
    }
}

/* ---------------------------------------------------------------- prompt rows */

/* Prompt rows that may run: up to an image whose rows are not computed yet (between steps). */
static int32_t prompt_left(const struct sv_seq *q)
{
    const int32_t ready = sv_images_ready(q->images, reach(q));
    const int32_t end = ready < q->n_prefill ? ready : q->n_prefill;
    return q->slot < 0 || decodes(q) ? 0 : end - reach(q) - q->grant;
}

static struct sv_seq *least_left(const struct sv_sched *s)
{
    struct sv_seq *best = NULL;
    int32_t least = 0;
    for (int32_t i = 0; i < s->n_slots; i++) {
        struct sv_seq *q = s->slot[i];
        int32_t left = q ? prompt_left(q) : 0;
        if (left && (!best || left < least || (left == least && q->id < best->id))) {
            best = q;
            least = left;
        }
    }
    return best;
}

/* Half of the rows go to the oldest prompt, so that a long one makes progress; the rest to the
 * prompt with the fewest rows left, so that short ones do not wait for a long one. */
static void grant_rows(struct sv_sched *s)
{
    int32_t room = s->prefill_rows;
    struct sv_seq *q = s->head;
    while (q && !prompt_left(q))
        q = q->next;
    int32_t most = (room + 1) / 2;
    for (; q && room > 0; q = least_left(s), most = room) {
        int32_t left = prompt_left(q), n = left < most ? left : most;
        q->grant += n;
        room -= n;
    }
}

/* A prefix with recurrent states is cached only at snapshots: where the sequence diverges from
 * others, and at the last boundary before the end of what it computes as a prompt. Returns the
 * first of these from position `from` on; 0: none. */
static int32_t snapshot_at(const struct sv_cache *cache, const struct sv_seq *q, int32_t from)
{
    const int32_t step = cache->has_state && cache->prefix[0] ? sv_cache_boundary(cache) : 0;
    const int32_t branch = sv_cache_branch(cache, q->slot);
    return from <= branch ? branch : step ? (q->n_prefill - 1) / step * step : 0;
}

/* A chunk ends where the snapshot will be taken. */
static void cut_at_snapshots(struct sv_sched *s, const struct sv_cache *cache)
{
    for (int32_t i = 0; i < s->n_slots; i++) {
        struct sv_seq *q = s->slot[i];
        const int32_t left = q && q->grant ? snapshot_at(cache, q, reach(q) + 1) - reach(q) : 0;
        if (left > 0 && left < q->grant)
            q->grant = left;
    }
}

/* Positions between snapshots of an answer; every boundary if these are further apart. */
enum { ANSWER_STEP = 64 };

/* The position of an answer's next snapshot, if the planned rows may pass it; else 0. */
static int32_t answer_snapshot_at(struct sv_cache *cache, const struct sv_seq *q)
{
    if (!cache->has_state || !cache->prefix[0])
        return 0;
    const int32_t grid = sv_cache_boundary(cache), step = (ANSWER_STEP + grid - 1) / grid * grid;
    const int32_t from = q->n_committed > q->n_prefill ? q->n_committed : q->n_prefill;
    const int32_t at = (from / step + 1) * step;
    return at <= reach(q) && sv_cache_reserve_snapshot(cache, q->slot, at) ? at : 0;
}

/* ---------------------------------------------------------------- segments */

static struct sv_plan_seg *add_seg(const struct sv_cache *cache, struct sv_plan *p,
                                   struct sv_seq *q, int32_t kind, int32_t n_rows, int32_t n_logits)
{
    struct sv_plan_seg *g = &p->seg[p->n_segs++];
    *g = (struct sv_plan_seg){.request = q->id,
                              .slot = q->slot,
                              .kind = kind,
                              .row0 = p->n_rows,
                              .n_rows = n_rows,
                              .logit0 = p->n_logits,
                              .n_logits = n_logits,
                              .first = reach(q),
                              .decode = -1,
                              .draft_row0 = p->n_draft_rows,
                              .draft_out0 = p->n_draft_out,
                              .disabled = sv_sched_draft_kv_missing(cache, q) && !q->fixed_width};
    p->n_rows += n_rows;
    p->n_logits += n_logits;
    q->n_rows_ahead += n_rows;
    q->n_tokens_ahead += n_logits > 0;
    return g;
}

/* A step in flight may yield more tokens than its minimum: then some of these rows are wasted. */
static int32_t widest(const struct sv_seq *q)
{
    return sv_width_pick(q->width, q->cap_tokens - q->n_tokens - q->n_tokens_ahead);
}

static void plan_decode(const struct sv_sched *s, struct sv_cache *cache, struct sv_plan *p,
                        struct sv_seq *q, int32_t number, const struct sv_policy_seq *chosen)
{
    int32_t w = chosen ? chosen->width : widest(q);
    struct sv_plan_seg *g = add_seg(cache, p, q, SV_SEG_VERIFY, w, w);
    g->decode = number;
    g->snapshot_at = answer_snapshot_at(cache, q);
    g->probe = chosen && chosen->probe;
    if (chosen && !chosen->fixed && q->record.disabled) {
        g->disabled = true;
        /* The results of steps in flight are unknown, but all rows of the prompt are planned. */
        sv_sched_invalidate_draft(cache, q,
                                  q->n_committed > q->n_prefill ? q->n_committed : q->n_prefill);
    }
    if (w < 2 || s->block < 2)
        return;
    /* The draft always gets the whole block, even when the last tokens of a request need fewer
     * rows: fewer mask tokens would change its predictions. Only the policy may choose fewer. */
    g->n_draft_rows = chosen ? chosen->draft_rows : q->width;
    p->n_draft_segs++;
    p->n_draft_rows += g->n_draft_rows;
    p->n_draft_out += g->n_drafts = chosen ? chosen->n_drafts : w - 1;
}

/* Whether a step can yield further tokens of a decoding sequence. */
static bool wants_step(const struct sv_seq *q)
{
    return decodes(q) && q->n_tokens + q->n_tokens_ahead < q->cap_tokens;
}

static bool all_disabled(const struct sv_plan *p)
{
    for (int32_t i = 0; i < p->n_segs; i++)
        if (!p->seg[i].disabled)
            return false;
    return p->n_segs > 0;
}

/* Lets the width policy choose for all decoding sequences, in the order of their slots. False: all
 * decode plainly, without a choice. */
static bool choose_widths(struct sv_sched *s, const struct sv_cache *cache, struct sv_plan *p)
{
    bool sampled = false, requested = false;
    int32_t n_prompt = 0, n = 0;
    for (int32_t i = 0; i < s->n_slots; i++) {
        const struct sv_seq *q = s->slot[i];
        n_prompt += q ? q->grant : 0;
        if (!q || !wants_step(q))
            continue;
        n++;
        sampled |= q->needs_logits;
        requested |= q->fixed_width;
    }
    if (!requested && sv_policy_backs_off(s->policy, n, n_prompt > 0))
        return false;
    sv_policy_begin(s->policy, n_prompt, sampled);
    for (int32_t i = 0; i < s->n_slots; i++) {
        struct sv_seq *q = s->slot[i];
        if (!q || !wants_step(q))
            continue;
        /* Without the context K/V of its pages its drafts are rarely accepted. */
        q->record.draft_kv_missing = sv_sched_draft_kv_missing(cache, q);
        sv_policy_add(s->policy, (struct sv_policy_seq){.fixed = q->fixed_width ? q->width : 0,
                                                        .block = q->width,
                                                        .cap = widest(q),
                                                        .context = reach(q),
                                                        .record = &q->record});
    }
    sv_policy_choose(s->policy);
    p->load = s->policy->load;
    p->confidence = s->policy->confidence_now && p->load.n_draft_segs;
    p->prunes = p->confidence && s->policy->prunes_now;
    p->expected_accepted = s->policy->promised;
    return true;
}

/* Reserves pages for all that the step may write, oldest sequence first. */
static bool back_all(struct sv_sched *s, struct sv_cache *cache, bool in_flight)
{
    for (struct sv_seq *q = s->head; q; q = q->next) {
        int32_t n = wants_step(q) ? q->width : q->grant;
        if (q->slot >= 0 && n && !back(s, cache, q, reach(q) + n, in_flight) && in_flight)
            return false;
    }
    return true;
}

/* A sequence that cannot draft for lack of context K/V, and has lost as much time by that as the
 * recomputation takes, recomputes it as if it had been preempted. If its drafts turn out not to be
 * worth that, it waits twice as long the next time. False: due, but a step is in flight. */
static bool restore(struct sv_sched *s, struct sv_cache *cache, bool in_flight)
{
    for (int32_t i = 0; i < s->n_slots; i++) {
        struct sv_seq *q = s->slot[i];
        if (!q || !decodes(q) || !sv_sched_draft_kv_missing(cache, q) || q->record.missed_us <= 0)
            continue;
        int32_t n_rows = q->n_tokens - sv_sched_draft_end(cache, q);
        double us = sv_policy_restore_us(s->policy, n_rows, q->n_tokens);
        if (ldexp(us, q->record.n_restored) > q->record.missed_us ||
            !worth_restoring(s, n_rows, q->n_tokens, q->cap_tokens - q->n_tokens))
            continue;
        if (in_flight)
            return false;
        put_back(s, cache, q);
        q->restores = true;
        sv_policy_restored(s->policy, &q->record);
    }
    return true;
}

static bool has_waiting(const struct sv_sched *s)
{
    return s->n_unfinished > n_in_slots(s);
}

/* Plans the segments of one part: decoding ones in the order of their slots, then prompt chunks.
 * n: decoding sequences of the previous parts. */
static void plan_part(const struct sv_sched *s, struct sv_cache *cache, struct sv_plan *p,
                      int32_t part, bool chosen, int32_t *n)
{
    const struct sv_policy_seq plain = {.width = 1};
    for (int32_t i = 0; i < s->n_slots; i++) {
        struct sv_seq *q = s->slot[i];
        if (!q || sv_cache_part(cache, i) != part || !wants_step(q))
            continue;
        plan_decode(s, cache, p, q, *n, chosen ? &s->policy->seq[*n] : s->policy ? &plain : NULL);
        ++*n;
        p->sampled |= !sv_sample_is_greedy(&q->sampling);
    }
    for (struct sv_seq *q = s->head; q; q = q->next) {
        if (q->slot < 0 || !q->grant || sv_cache_part(cache, q->slot) != part)
            continue;
        if (reach(q) > 0 && reach(q) == snapshot_at(cache, q, reach(q)))
            sv_cache_snapshot(cache, q->slot, reach(q));
        bool last = reach(q) + q->grant == q->n_prefill && q->n_tokens == q->n_prompt;
        add_seg(cache, p, q, SV_SEG_PREFILL, q->grant, last);
        p->sampled |= last && !sv_sample_is_greedy(&q->sampling);
    }
}

bool sv_sched_plan(struct sv_sched *s, struct sv_cache *cache, struct sv_plan *p, bool in_flight)
{
    struct sv_plan_seg *seg = p->seg;
    *p = (struct sv_plan){.seg = seg};
    /* Running sequences come before waiting ones, which get what is left. */
    for (struct sv_seq *q = s->head; q; q = q->next)
        q->grant = 0;
    if (s->policy && !has_waiting(s) && !restore(s, cache, in_flight))
        return false;
    if (!back_all(s, cache, in_flight))
        return false;
    admit(s, cache);
    grant_rows(s);
    cut_at_snapshots(s, cache);
    if (!back_all(s, cache, in_flight))
        return false;
    const bool chosen = s->policy && choose_widths(s, cache, p);
    for (int32_t part = 0, n = 0; part < cache->n_parts; part++)
        plan_part(s, cache, p, part, chosen, &n);
    p->no_taps = all_disabled(p);
    return true;
}
