/*
 * out.h - what the worker reports to the loop: records of bytes in batches (out.c), and the records
 * that have arrived and were not handled yet (inbox.c).
 *
 * Packed on the worker's thread, read on the loop's. Must not: keep anything; a record is
 * self-contained.
 */
#ifndef SV_SERVE_CORE_OUT_H
#define SV_SERVE_CORE_OUT_H

#include "base/base.h"
#include "salvo.h"

struct sv_choice;

enum sv_out_kind { SV_OUT_EVENT, SV_OUT_REJECTED, SV_OUT_LOADED, SV_OUT_FAILED, SV_OUT_FLUSHED };

/* One report. Pointers are valid until the next sv_inbox_next. */
struct sv_out {
    enum sv_out_kind kind;
    struct sv_choice *choice;
    enum sv_finish_reason finish;
    int32_t n_tokens, n_drafted, n_prompt_logprobs, n_steps;
    uint32_t n_text, n_message;
    bool has_logprobs;
    bool urgent; /* the first or last report of its sequence */
    bool lost;   /* last report: the engine has failed; the request itself is fine */
    int32_t replica;
    int32_t stop_id, stop_index;
    int32_t n_cached; /* with the first tokens and with the last report */
    /* With the last report, as is n_steps. */
    int32_t n_prompt, n_preemptions;
    int64_t queue_us, prefill_us, decode_us;
    int64_t at_us;
    const int32_t *tokens;
    const char *text, *message;
    const uint16_t *accept_lengths, *widths; /* (n_steps) */
    const char *logprobs, *prompt_logprobs;  /* packed: read with sv_out_logprob */
    const char *record;                      /* the whole record as it arrived */
    size_t n_record, n_packed;               /* its bytes; those of its log probabilities */
};
/* Takes the next packed entry; top_ids and top_logprobs point into it. */
void sv_out_logprob(const char **packed, struct sv_logprob *lp);
void sv_out_pack(struct sv_buf *batch, const struct sv_out *o, const struct sv_logprob *logprobs,
                 const struct sv_logprob *prompt_logprobs);
/* Reads the record at *at and advances; false at the end. */
bool sv_out_unpack(const struct sv_buf *batch, size_t *at, struct sv_out *o);
/* Appends a copy of the record, to be read later. */
void sv_out_copy(struct sv_buf *b, const struct sv_out *o);
/* A record's head, which is all that is needed to skip it. */
struct sv_out_mark {
    uint64_t n_bytes;
    struct sv_choice *choice;
    int64_t at_us;
    enum sv_out_kind kind;
    bool urgent, last; /* last: of its sequence */
};
bool sv_out_peek(const struct sv_buf *batch, size_t at, struct sv_out_mark *m);
/* Marks the errors among the records from this place on as lost. */
void sv_out_lose(struct sv_buf *batch, size_t from);
/* Gives the record at this place another choice and time. */
void sv_out_pass(struct sv_buf *batch, size_t at, struct sv_choice *choice, int64_t at_us);
/* Marks the record at this place as handled: it no longer has a choice. */
void sv_out_forget(struct sv_buf *batch, size_t at);

#define SV_INBOX_WANTED 32
struct sv_inbox {
    struct sv_buf taken, kept; /* the last batch; delayed records of earlier ones */
    size_t at, kept_at;
    int64_t kept_us; /* when the oldest delayed record was reported; 0 = there is none */
    bool all;
    int n_wanted;
    struct sv_choice *wanted[SV_INBOX_WANTED];
};
/* Begin once `taken` is filled, then next until it returns false. With `all` every record is
 * returned. Without, only urgent ones and those that are no event, each after the delayed records
 * of its sequence. */
void sv_inbox_begin(struct sv_inbox *in, bool all);
bool sv_inbox_next(struct sv_inbox *in, struct sv_out *o);
void sv_inbox_fini(struct sv_inbox *in);

#endif
