/*
 * ops_tokens.h - the ops on logits and tokens: sampling, what a request changes in its logits, log
 * probabilities, verification of drafts and commit. One params struct per kernel family.
 *
 * Called by spec and engine through the sv_op_* wrappers of ops.c. The rules of ops.h hold here as
 * well. Must not: do arithmetic on activations.
 */
#ifndef SV_OPS_TOKENS_H
#define SV_OPS_TOKENS_H

#include "backend/ops.h"

/* Per-slot sampling, device-resident. temperature 0 = greedy. Order (sequential): scale by
 * 1/T, softmax, keep top_k (0 = all; ties at the border keep lower ids), renormalise, keep the
 * smallest most-probable set whose mass reaches top_p (1 = all), then drop p < min_p * p_max (0 =
 * off). */
struct sv_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
};

/* out[i] = a draw from logits[i] keyed by (seed, position of the token being drawn), or the
 * argmax. */
struct sv_p_sample {
    int32_t n_rows, vocab;
    const void *logits; /* (n_rows, vocab) f32 */
    int64_t ld;
    const int32_t *row_slot;                 /* (n_rows) slot of each row; < 0: padding, skipped */
    const int32_t *row_pos;                  /* (n_rows) absolute position of the drawn token */
    const struct sv_sampling *slot_sampling; /* (n_slots) */
    int32_t *out;                            /* (n_rows) */
};

/* What a slot's request changes in its logits, device-resident. Applied in this order, which is
 * vLLM's:
 * 1. bias: logit += bias of the listed tokens;
 * 2. ban: the listed tokens get -inf while the drawn token's position is below ban_before;
 * 3. bad: the last token of a listed run gets -inf where the answer ends in the run's others;
 *    where tokens are allowed by list, all others get -inf;
 * 4. repetition, for tokens of prompt and answer, of the last repeat_last of these if that is not
 *    0: logit > 0 ? logit / r : logit * r;
 * 5. frequency, presence, for the n > 0 times a token occurs in the answer: logit -= f * n; logit
 * -= p. A finite logit that overflows becomes FLT_MAX. Each operation is rounded by itself, so that
 * the bits are the same on every backend. "Answer" begins at position n_prompt. */
#define SV_MAX_BIAS 1024
#define SV_MAX_BAN 256
#define SV_MAX_LISTED 2048
#define SV_MAX_TOP 20
struct sv_logit_rules {
    float presence, frequency; /* 0 = off */
    float repetition;          /* 1 = off */
    int32_t n_prompt;
    int32_t repeat_last;
    int32_t n_bias, n_ban, ban_before;
    /* In the slot's list: where each of n_bad_runs runs ends, the runs' tokens, allowed tokens. */
    int32_t n_bad_runs, n_allowed;
    /* most probable tokens to report beside a token's log probability; -1 = nothing */
    int32_t n_top;
};

/* The device's copy of the slots' tokens: history[slot][position] = row_ids for committed rows.
 * Tokens that were in no row (a cached prefix) are uploaded. */
struct sv_p_history {
    struct sv_rows rows;
    const int32_t *row_ids;  /* (n_rows) */
    const int32_t *n_commit; /* (n_segs) */
    int32_t *history;        /* (n_slots, history_stride) token at each position */
    int32_t history_stride;
};

/* dst[i] = the rules of row i's slot applied to src[i]; src may be dst. The tokens before the drawn
 * one are history[0, seg_base) and then the segment's rows up to and including this one, which
 * have consecutive positions: row j of a verify block sees the drafts before it, as plain
 * decoding would. */
struct sv_p_logit_rules {
    struct sv_rows rows;
    int32_t n_logit_rows, vocab;
    const float *src; /* (n_logit_rows, vocab), row stride ld */
    float *dst;
    int64_t ld;
    const int32_t *logit_row; /* (n_logit_rows) row of the batch; < 0: padding, skipped */
    const int32_t *row_ids;   /* (n_rows) */
    const struct sv_logit_rules *slot_rules; /* (n_slots) */
    const int32_t *bias_ids;                 /* (n_slots, SV_MAX_BIAS) no token twice */
    const float *bias;                       /* (n_slots, SV_MAX_BIAS) */
    const int32_t *ban_ids;                  /* (n_slots, SV_MAX_BAN) */
    const int32_t *listed;                   /* (n_slots, SV_MAX_LISTED) */
    const int32_t *history;                  /* (n_slots, history_stride) */
    int32_t history_stride;
    uint32_t *counts; /* (n_logit_rows, vocab) scratch: zero before and after */
};

/* dst[i] = src[i] with -inf wherever a bit of the row's mask is 0; src may be dst. Before the
 * rules: a bias does not bring back what a mask forbids. */
static inline int32_t sv_mask_words(int32_t vocab)
{
    return (vocab + 31) / 32;
}
struct sv_p_logit_mask {
    int32_t n_rows, vocab;
    const float *src; /* (n_rows, vocab), row stride ld */
    float *dst;
    int64_t ld;
    const int32_t *row_mask; /* (n_rows) the mask of each row; < 0: none, the row is as it was */
    const uint32_t
        *masks; /* (*, sv_mask_words(vocab)) bit v % 32 of word v / 32: token v may come */
};

/* Log probability of one token under softmax(logits), its rank (1 = the most probable) and the most
 * probable tokens, best first. Equal logits rank by id, lowest first. */
struct sv_logprob_row {
    float logprob;
    int32_t rank, n_top;
    int32_t top_id[SV_MAX_TOP];
    float top_logprob[SV_MAX_TOP];
};
struct sv_p_logprobs {
    int32_t n_rows, vocab;
    const float *logits; /* (n_rows, vocab) before any rule */
    int64_t ld;
    const int32_t *row_slot;                 /* (n_rows) < 0: padding, skipped */
    const struct sv_logit_rules *slot_rules; /* (n_slots) n_top < 0: the row is skipped */
    const int32_t *token;                    /* (n_rows) */
    struct sv_logprob_row *out;              /* (n_rows) */
};

/* out[i] = argmax of logits[i], the lowest id among equals; confidence[i] = its share of the
 * softmax. NaN never wins and has no part in the sum; an all-NaN row gives 0 and latches an error.
 * A device may lack it. */
struct sv_p_argmax_confidence {
    int32_t n_rows, vocab;
    const float *logits; /* (n_rows, vocab) */
    int64_t ld;
    const int32_t *out_index; /* (n_rows) where a row's id goes in out, < 0 nowhere; NULL = i */
    int32_t *out;
    float *confidence; /* (n_rows) */
};

/* Chain verification by match (docs/architecture.md). Segment s owns logit rows
 * [seg_logit0[s], seg_logit0[s+1]). None: a prefill chunk that is not the last. Otherwise row j of
 * these chose token t_j, and its drafts are row_ids of the segment's rows 1..: accept while draft
 * j+1 == t_j. */
struct sv_p_verify {
    struct sv_rows rows;
    const int32_t *seg_kind;   /* (n_segs) */
    const int32_t *seg_logit0; /* (n_segs + 1) */
    const int32_t *row_ids;    /* (n_rows) what the target read */
    const int32_t *chosen;     /* (n_logit_rows) the target's next tokens */
    int32_t *n_commit;         /* (n_segs) rows whose K/V stays: a + 1, or the chunk's rows */
    int32_t *n_emit;           /* (n_segs) tokens that come out: a + 1, 1 or 0 */
    int32_t *out_tokens;       /* (n_segs, out_stride): d_1..d_a, t_a */
    int32_t out_stride;
};

/* Simulated acceptance, for benchmarks: writes over the drafts of verify segments what their own
 * logit rows chose, before they are verified. accept_len - 1 of them are right then, or all where
 * there are fewer; what follows is no token. */
struct sv_p_replace_drafts {
    struct sv_rows rows;
    const int32_t *seg_kind;   /* (n_segs) */
    const int32_t *seg_logit0; /* (n_segs + 1) */
    const int32_t *chosen;     /* (n_logit_rows) */
    const int32_t *accept_len; /* (n_segs) bonus included; 0 = the drafts stay */
    int32_t *row_ids;          /* (n_rows) */
};

/* slot_len[slot] += n_commit; slot_anchor[slot] = last emitted token, when there is one. */
struct sv_p_commit {
    int32_t n_segs;
    const int32_t *seg_slot, *n_commit, *n_emit, *out_tokens;
    int32_t out_stride;
    int32_t *slot_len, *slot_anchor;
};

/* Behind commit, of one segment: copies a block of memory where its rows took its slot past
 * position `at`, slot_len - n_commit < at <= slot_len; else nothing. */
struct sv_p_snapshot {
    const int32_t *n_commit, *slot_len; /* of the segment, of its slot */
    int32_t at;
    const void *src;
    void *dst;      /* aligned to 16, as src is, */
    size_t n_bytes; /* and a multiple of it */
};

/* row_slot/row_pos of logit rows for sv_p_sample: position drawn = the row's own + 1. */
struct sv_p_logit_pos {
    struct sv_rows rows;
    int32_t n_logit_rows;
    /* (n_logit_rows) row of the batch each logit row belongs to; < 0: padding, whose row_slot is
     * -1 */
    const int32_t *logit_row;
    int32_t *row_slot, *row_pos;
};

/* Checked wrappers around the backend's table (ops.c). Zero rows are a no-op everywhere. */
void sv_op_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p);
void sv_op_sample(struct sv_dev *dev, const struct sv_p_sample *p);
void sv_op_argmax_confidence(struct sv_dev *dev, const struct sv_p_argmax_confidence *p);
void sv_op_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p);
void sv_op_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p);
void sv_op_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p);
void sv_op_history(struct sv_dev *dev, const struct sv_p_history *p);
void sv_op_replace_drafts(struct sv_dev *dev, const struct sv_p_replace_drafts *p);
void sv_op_verify(struct sv_dev *dev, const struct sv_p_verify *p);
void sv_op_commit(struct sv_dev *dev, const struct sv_p_commit *p);
void sv_op_snapshot(struct sv_dev *dev, const struct sv_p_snapshot *p);

#endif
