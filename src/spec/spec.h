/*
 * spec.h - drafters, and the bookkeeping of how well they do.
 *
 * Called by engine only. A drafter proposes the tokens that follow each sequence's anchor and watches what
 * the target commits; whether a proposal is right never changes what is emitted. Device drafters (dflash)
 * enqueue; host drafters (the fakes) write ids while the batch is filled. Must not: emit a token, touch a
 * sequence, or depend on anything but the passes handed in.
 */
#ifndef SV_SPEC_H
#define SV_SPEC_H

#include "backend/backend.h"
#include "base/base.h"
#include "cache/cache.h"
#include "load/load.h"
#include "model/model.h"

#define SV_MAX_BLOCK 64 /* widest verify width, anchor included */

/* One device drafting pass over the segments whose verify width is above 1. */
struct sv_draft_pass {
    struct sv_rows rows;        /* block rows: row 0 of a segment is its anchor, the rest are masks */
    const int32_t *seg_kind;    /* (n_segs) all SV_SEG_DRAFT */
    const int32_t *slot_len, *slot_anchor; /* (n_slots) */
    int32_t *row_ids;           /* (n_rows) scratch: what the drafter reads */
    int32_t n_out;              /* rows that propose a token */
    const int32_t *out_row;     /* (n_out) block row */
    const int32_t *out_index;   /* (n_out) where its token goes in target_ids */
    int32_t *target_ids;        /* the target batch's row_ids */
    const struct sv_cache *cache;
    const struct sv_acts *acts;
    void *out;                  /* (n_out, hidden) act scratch */
};

/* What the target has just committed. */
struct sv_observe_pass {
    struct sv_rows rows;     /* the target's batch */
    const int32_t *n_commit; /* (n_segs) */
    const void *taps;        /* (n_rows, n_taps * hidden) act */
    const struct sv_cache *cache;
};

/* A sequence as a host drafter sees it while the batch is filled. */
struct sv_draft_hint {
    uint64_t request;
    const int32_t *tokens; /* prompt and output so far, the last one is the anchor */
    int32_t n_tokens;
};

struct sv_drafter;
struct sv_drafter_ops {
    void (*close)(struct sv_drafter *d);
    /* Cache groups it needs (geometry only), numbered from first_group. NULL: none. */
    int32_t (*cache_groups)(struct sv_drafter *d, int32_t first_group,
                            struct sv_cache_group_desc *desc);
    /* Widens activation sizes and device limits; called before anything is reserved. NULL: none. */
    void (*sizes)(const struct sv_drafter *d, struct sv_act_sizes *acts, struct sv_dev_limits *lim);
    /* Takes its own buffers for at most max_rows observed rows, and the opened cache. NULL: none. */
    int (*bind)(struct sv_drafter *d, const struct sv_cache *cache, int32_t max_rows,
                struct sv_err *err);
    void (*fill)(struct sv_drafter *d, const struct sv_draft_hint *hint, int32_t n, int32_t *ids);
    void (*propose)(struct sv_drafter *d, const struct sv_draft_pass *p);
    void (*observe)(struct sv_drafter *d, const struct sv_observe_pass *p);
};
struct sv_drafter {
    const struct sv_drafter_ops *ops;
    const char *name;
    int32_t block_size;     /* widest verify width; 1 = drafts nothing */
    int32_t n_taps;         /* residual streams it wants */
    const int32_t *tap_ids; /* (n_taps) ascending */
    int32_t hidden;         /* the width of a tap */
    int64_t step_bytes;     /* weight bytes one drafting pass must read, head included */
};
void sv_drafter_close(struct sv_drafter *d); /* NULL is fine */

/* A DFlash v1 draft directory for an opened target. Refuses with the reason when it does not fit. */
int sv_dflash_open(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                   int32_t n_positions, struct sv_err *err);
const struct sv_draft_config *sv_dflash_config(const struct sv_drafter *d);

/* Fakes for tests and benchmarks. truth(user, request, index) is the token that will stand at index
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

/* Acceptance so far: plain counters, summed by whoever owns them. */
struct sv_accept_stats {
    int64_t n_steps;                       /* verify steps with at least one draft */
    int64_t n_drafted, n_accepted;         /* drafts; the bonus token is in neither */
    int64_t n_emitted;                     /* tokens, bonus included */
    int64_t length[SV_MAX_BLOCK + 1];      /* steps by accept length (bonus included) */
    int64_t drafted_at[SV_MAX_BLOCK];      /* steps that verified a draft at position 1.. */
    int64_t accepted_at[SV_MAX_BLOCK];     /* and accepted it */
};
void sv_accept_add(struct sv_accept_stats *s, int32_t width, int32_t n_emitted);
double sv_accept_mean(const struct sv_accept_stats *s); /* mean accept length, bonus included; 0 if none */

/* Accept lengths drawn instead of found: speed without a trained draft (benchmarks only). Every width sees the
 * same draws: number `draw` of a sequence is cut to the width by the device. */
struct sv_accept_profile {
    float cum[SV_MAX_BLOCK]; /* P(accept length <= i + 1), bonus included */
    int32_t n;
    uint64_t seed;
};
/* share[i]: weight of accept length i + 1; any positive sum. */
int sv_profile_set(struct sv_accept_profile *p, const double *share, int32_t n, struct sv_err *err);
int32_t sv_profile_draw(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw);

/* The verify width of a sequence's next step: at most `width`, and never past `remaining` tokens. */
int32_t sv_width_pick(int32_t width, int32_t remaining);

#endif
