/*
 * out.c - the worker's reports as bytes in a batch: packed on the worker's thread, read on the
 * loop's.
 *
 * Called by worker.c (pack), inbox.c (unpack) and the writers of log probabilities. A record is a
 * header and its arrays, padded to 8 bytes. Must not: keep anything; a record is self-contained.
 */
#include "serve/core/out.h"

#include <string.h>

struct head {
    uint64_t n_bytes;           /* of the record, this header included */
    struct sv_out o;            /* pointers are filled in by unpack */
    uint32_t n_lp, n_prompt_lp; /* bytes of the packed entries */
};

struct lp_head {
    float logprob;
    int32_t rank, n_top, n_requested;
};

static size_t lp_bytes(const struct sv_logprob *lp, int32_t n)
{
    size_t sum = 0;
    for (int32_t i = 0; lp && i < n; i++)
        sum += sizeof(struct lp_head) +
               (size_t)(lp[i].n_top + lp[i].n_requested) * (sizeof(int32_t) + sizeof(float));
    return sum;
}

static void pack_pairs(struct sv_buf *b, const int32_t *ids, const float *logprobs, int32_t n)
{
    sv_buf_append(b, ids, (size_t)n * sizeof *ids);
    sv_buf_append(b, logprobs, (size_t)n * sizeof *logprobs);
}

static void lp_pack(struct sv_buf *b, const struct sv_logprob *lp, int32_t n)
{
    for (int32_t i = 0; lp && i < n; i++) {
        struct lp_head h = {lp[i].logprob, lp[i].rank, lp[i].n_top, lp[i].n_requested};
        sv_buf_append(b, &h, sizeof h);
        pack_pairs(b, lp[i].top_ids, lp[i].top_logprobs, h.n_top);
        pack_pairs(b, lp[i].requested_ids, lp[i].requested_logprobs, h.n_requested);
    }
}

/* Every part is a multiple of 4 bytes. */
static void take_pairs(const char **packed, const int32_t **ids, const float **logprobs, int32_t n)
{
    *ids = (const int32_t *)(const void *)*packed;
    *packed += (size_t)n * sizeof(int32_t);
    *logprobs = (const float *)(const void *)*packed;
    *packed += (size_t)n * sizeof(float);
}

void sv_out_logprob(const char **packed, struct sv_logprob *lp)
{
    struct lp_head h;

    memcpy(&h, *packed, sizeof h);
    *packed += sizeof h;
    *lp = (struct sv_logprob){
        .logprob = h.logprob, .rank = h.rank, .n_top = h.n_top, .n_requested = h.n_requested};
    take_pairs(packed, &lp->top_ids, &lp->top_logprobs, h.n_top);
    take_pairs(packed, &lp->requested_ids, &lp->requested_logprobs, h.n_requested);
}

/* Arrays in the order of unpack: 4-byte ones first, so that all are aligned. */
void sv_out_pack(struct sv_buf *b, const struct sv_out *o, const struct sv_logprob *logprobs,
                 const struct sv_logprob *prompt_logprobs)
{
    static const char zeros[8];
    struct head h = {.o = *o};

    h.n_lp = (uint32_t)lp_bytes(logprobs, o->n_tokens);
    h.n_prompt_lp = (uint32_t)lp_bytes(prompt_logprobs, o->n_prompt_logprobs);
    h.o.has_logprobs = logprobs != NULL;
    size_t n = sizeof h + (size_t)o->n_tokens * sizeof(int32_t) + h.n_lp + h.n_prompt_lp +
               (size_t)o->n_steps * 2 * sizeof(uint16_t) + o->n_text + o->n_message;
    h.n_bytes = (n + 7) / 8 * 8;
    sv_buf_reserve(b, h.n_bytes);
    sv_buf_append(b, &h, sizeof h);
    sv_buf_append(b, o->tokens, (size_t)o->n_tokens * sizeof(int32_t));
    lp_pack(b, logprobs, o->n_tokens);
    lp_pack(b, prompt_logprobs, o->n_prompt_logprobs);
    sv_buf_append(b, o->accept_lengths, (size_t)o->n_steps * sizeof(uint16_t));
    sv_buf_append(b, o->widths, (size_t)o->n_steps * sizeof(uint16_t));
    sv_buf_append(b, o->text, o->n_text);
    sv_buf_append(b, o->message, o->n_message);
    sv_buf_append(b, zeros, h.n_bytes - n);
    if (b->failed)
        sv_panic("out of memory for %zu bytes of results", n); /* an answer must not lose text */
}

bool sv_out_peek(const struct sv_buf *b, size_t at, struct sv_out_mark *m)
{
    if (at >= b->len)
        return false;
    /* padded to 8 bytes */
    const struct head *h = (const struct head *)(const void *)(b->data + at);
    *m =
        (struct sv_out_mark){.n_bytes = h->n_bytes,
                             .choice = h->o.choice,
                             .at_us = h->o.at_us,
                             .kind = h->o.kind,
                             .urgent = h->o.urgent,
                             .last = h->o.kind == SV_OUT_REJECTED || h->o.finish != SV_FINISH_NONE};
    return true;
}

void sv_out_copy(struct sv_buf *b, const struct sv_out *o)
{
    size_t at = b->len;

    sv_buf_append(b, o->record, o->n_record);
    if (!b->failed)
        ((struct head *)(void *)(b->data + at))->o.choice =
            o->choice; /* NULL if it was forgotten */
}

void sv_out_lose(struct sv_buf *b, size_t from)
{
    for (size_t at = from; at < b->len;) {
        struct head *h = (struct head *)(void *)(b->data + at);
        h->o.lost = h->o.finish == SV_FINISH_ERROR;
        at += h->n_bytes;
    }
}

void sv_out_pass(struct sv_buf *b, size_t at, struct sv_choice *choice, int64_t at_us)
{
    struct head *h = (struct head *)(void *)(b->data + at);
    h->o.choice = choice;
    h->o.at_us = at_us;
}

void sv_out_forget(struct sv_buf *b, size_t at)
{
    ((struct head *)(void *)(b->data + at))->o.choice = NULL;
}

bool sv_out_unpack(const struct sv_buf *b, size_t *at, struct sv_out *o)
{
    struct head h;
    const char *p;

    if (*at >= b->len)
        return false;
    memcpy(&h, b->data + *at, sizeof h);
    p = b->data + *at + sizeof h;
    *o = h.o;
    o->record = b->data + *at;
    o->n_record = h.n_bytes;
    o->n_packed = (size_t)h.n_lp + h.n_prompt_lp;
    *at += h.n_bytes;
    o->tokens = (const int32_t *)(const void *)p;
    p += (size_t)o->n_tokens * sizeof(int32_t);
    o->logprobs = o->has_logprobs ? p : NULL;
    p += h.n_lp;
    o->prompt_logprobs = o->n_prompt_logprobs ? p : NULL;
    p += h.n_prompt_lp;
    o->accept_lengths = (const uint16_t *)(const void *)p;
    p += (size_t)o->n_steps * sizeof(uint16_t);
    o->widths = (const uint16_t *)(const void *)p;
    p += (size_t)o->n_steps * sizeof(uint16_t);
    o->text = p;
    p += o->n_text;
    o->message = p;
    return true;
}
