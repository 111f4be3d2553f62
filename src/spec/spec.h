/*
 * spec.h - drafters, and the bookkeeping of how well they do.
 *
 * Called by policy and engine. A drafter proposes the tokens that follow each sequence's anchor and
 * watches what the target commits; whether a proposal is right never changes what is emitted. It
 * describes itself (struct sv_drafter), so that the engine treats all drafters alike. Must not:
 * emit a token, touch a sequence, or depend on anything but the passes handed in.
 */
#ifndef SV_SPEC_H
#define SV_SPEC_H

#include "backend/ops_tokens.h"
#include "base/base.h"
#include "cache/cache.h"
#include "load/load.h"
#include "model/model.h"

/* One device drafting pass over the segments whose verify width is above 1. */
struct sv_draft_pass {
    struct sv_rows rows;     /* block rows: row 0 of a segment is its anchor, the rest are masks */
    const int32_t *seg_kind; /* (n_segs) all SV_SEG_DRAFT */
    const int32_t *slot_len, *slot_anchor; /* (n_slots) */
    /* (n_slots) How the target will choose, and the key of its noise: it draws the token at
     * position p with a number of (seed, p) alone (docs/architecture.md, Sampling). A drafter that
     * samples with the same numbers agrees most often. DFlash v1 proposes the most probable token.
     */
    const struct sv_sampling *slot_sampling;
    int32_t *row_ids;         /* (n_rows) scratch: what the drafter reads */
    int32_t n_out;            /* rows that propose a token */
    const int32_t *out_row;   /* (n_out) block row */
    const int32_t *out_index; /* (n_out) where its token goes in target_ids */
    int32_t *target_ids;      /* the target batch's row_ids */
    const struct sv_cache *cache;
    const struct sv_acts *acts;
    void *out; /* (n_out, hidden) act scratch */
    /* Draft confidence: about the winner's probability. NULL: not wanted. */
    float *confidence; /* (n_out) */
    float *logits;     /* (logit_chunk, vocab) scratch for devices that have no head_confidence */
    int32_t logit_chunk;
};

/* What the target has just committed. */
struct sv_context_pass {
    struct sv_rows rows;     /* the target's batch */
    const int32_t *n_commit; /* (n_segs) */
    const void *taps;        /* (n_rows, n_taps * hidden) act */
};

/* The host's knowledge of a sequence while the batch is filled. */
struct sv_draft_hint {
    uint64_t request;
    int32_t n_tokens; /* prompt and output so far; the last one is the anchor (on_host) */
};

/* Called through sv_drafter_* below; NULL: there is nothing to do. */
struct sv_drafter;
struct sv_drafter_ops {
    void (*close)(struct sv_drafter *d);
    /* The files it came from may change from now on: copies what it uses of them in place. */
    int (*detach)(struct sv_drafter *d, bool copy, struct sv_err *err);
    /* Cache groups it needs (geometry only), numbered from first_group. Returns how many. */
    int32_t (*cache_groups)(struct sv_drafter *d, int32_t first_group,
                            struct sv_cache_group_desc *desc);
    /* Adds what its passes need; called before anything is reserved. */
    void (*needs)(const struct sv_drafter *d, struct sv_needs *n);
    /* Takes its own buffers for at most max_rows rows a pass of update_context, and the opened
     * cache. */
    int (*bind)(struct sv_drafter *d, const struct sv_cache *cache, int32_t max_rows,
                struct sv_err *err);
    /* Adds the weight bytes that a drafting pass reads, head included. */
    void (*reads)(const struct sv_drafter *d, struct sv_reads *sum);
    /* The next n tokens of one sequence, on the host. False: they come from the drafting pass. */
    bool (*fill)(struct sv_drafter *d, const struct sv_draft_hint *hint, int32_t n, int32_t *ids);
    /* The drafting pass of all sequences, on the device. */
    void (*propose)(struct sv_drafter *d, const struct sv_draft_pass *p);
    void (*update_context)(struct sv_drafter *d, const struct sv_context_pass *p);
};
/* What a drafting pass can report of its confidence: nothing, or at the cost of logits, or for
 * nothing. */
enum sv_draft_confidence { SV_CONFIDENCE_NONE, SV_CONFIDENCE_LOGITS, SV_CONFIDENCE_FREE };

struct sv_drafter {
    const struct sv_drafter_ops *ops;
    const char *name;
    int32_t block_size; /* widest verify width; 1 = drafts nothing */
    /* Proposals come from fill, which needs the last token: there is no drafting pass, and no step
     * is enqueued before the one before it is read. */
    bool on_host;
    /* A pass leaves in sv_draft_pass.out the rows that the target's head chose its proposals by. */
    bool keeps_rows;
    enum sv_draft_confidence confidence;
    int32_t n_taps;         /* residual streams it wants; 0: it keeps no context K/V */
    const int32_t *tap_ids; /* (n_taps) ascending */
    int32_t hidden;         /* the width of a tap */
    int64_t n_params;       /* of its own */
    int64_t weight_bytes;   /* of its own, as the device keeps them */
    int64_t row_bytes;      /* device scratch that bind takes for each row of a context update */
};
/* The drafter `none`: width 1, and nothing to do. */
struct sv_drafter sv_drafter_none(void);
/* As the members of sv_drafter_ops. */
void sv_drafter_close(struct sv_drafter *d); /* NULL is fine */
int sv_drafter_detach(struct sv_drafter *d, bool copy, struct sv_err *err);
int32_t sv_drafter_cache_groups(struct sv_drafter *d, int32_t first_group,
                                struct sv_cache_group_desc *desc);
void sv_drafter_needs(const struct sv_drafter *d, struct sv_needs *n);
int sv_drafter_bind(struct sv_drafter *d, const struct sv_cache *cache, int32_t max_rows,
                    struct sv_err *err);
void sv_drafter_reads(const struct sv_drafter *d, struct sv_reads *sum);
bool sv_drafter_fill(struct sv_drafter *d, const struct sv_draft_hint *hint, int32_t n,
                     int32_t *ids);
void sv_drafter_propose(struct sv_drafter *d, const struct sv_draft_pass *p);
void sv_drafter_update_context(struct sv_drafter *d, const struct sv_context_pass *p);

/* A DFlash v1 draft directory for an opened target. Refuses with the reason when it does not
 * fit. */
int sv_dflash_open(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                   int32_t n_positions, struct sv_err *err);
/* DIR/config.json alone: weights of its shapes made on the device (benchmarks). */
int sv_dflash_open_random(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                          int32_t n_positions, struct sv_err *err);

/* Fakes for tests and benchmarks. truth(user, request, index) is the token that will be at index
 * of the sequence, or -1 when unknown (then 0 is proposed). */
enum sv_fake { SV_FAKE_RIGHT, SV_FAKE_WRONG, SV_FAKE_RANDOM, SV_FAKE_PREFIX };
struct sv_fake_opts {
    enum sv_fake kind; /* PREFIX: right for a random number of rows, then wrong */
    int32_t block_size, vocab_size;
    uint64_t seed;
    int32_t (*truth)(void *user, uint64_t request, int32_t index);
    void *user;
};
int sv_fake_open(struct sv_drafter **d, const struct sv_fake_opts *opts, struct sv_err *err);

/* Acceptance so far: plain counters, summed by their owner. */
struct sv_accept_stats {
    int64_t n_steps;                   /* verify steps with at least one draft */
    int64_t n_drafted, n_accepted;     /* drafts; the bonus token is in neither */
    int64_t n_emitted;                 /* tokens, bonus included */
    int64_t length[SV_MAX_BLOCK + 1];  /* steps by accept length (bonus included) */
    int64_t drafted_at[SV_MAX_BLOCK];  /* steps that verified a draft at position 1.. */
    int64_t accepted_at[SV_MAX_BLOCK]; /* and accepted it */
};
void sv_accept_add(struct sv_accept_stats *s, int32_t width, int32_t n_emitted);
double
sv_accept_mean(const struct sv_accept_stats *s); /* mean accept length, bonus included; 0 if none */

/* The verify width of a sequence's next step: at most `width`, and never past `remaining`
 * tokens. */
int32_t sv_width_pick(int32_t width, int32_t remaining);

#endif
