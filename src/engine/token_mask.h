/*
 * token_mask.h - which tokens may come next, row by row, for sequences under a grammar.
 *
 * Called by prune.c, draft_repair.c and the step's fill. Must not: be needed by a step without a
 * grammar.
 */
#ifndef SV_ENGINE_TOKEN_MASK_H
#define SV_ENGINE_TOKEN_MASK_H

#include "engine/batch.h"
#include "engine/seq.h"

struct sv_engine;

/* One set of host arrays suffices: a step with masks is read at once. host has one scratch mask
 * more. */
struct sv_token_masks {
    int32_t n_words, cap;   /* words of a mask; masks */
    int32_t n;              /* made for the current step */
    struct sv_i32_pair row; /* (cap) by logit row: its mask; -1: none */
    uint32_t *host, *dev;   /* (cap, n_words) */
};
int sv_token_mask_open(struct sv_token_masks *k, struct sv_dev *dev, int32_t vocab,
                       int32_t max_logits, struct sv_err *err);
void sv_token_mask_close(struct sv_token_masks *k, struct sv_dev *dev);
/* The number of rows of a verify segment with n_drafts drafts before the first draft that its
 * grammar forbids; 1 + n_drafts without a grammar. */
int32_t sv_token_mask_legal(const struct sv_engine *e, const struct sv_plan_seg *g,
                            int32_t n_drafts);
/* Whether a token ends the answer. It is never verified as a draft: the previous row chooses it. */
bool sv_token_mask_is_end(const struct sv_seq *q, int32_t id);
/* The tokens allowed n drafts after the last token. Called before masks are made; valid until the
 * next call. */
const uint32_t *sv_token_mask_try(struct sv_engine *e, const struct sv_seq *q,
                                  const int32_t *drafts, int32_t n);
/* Makes the masks of a segment under a grammar, whose drafts are legal; returns the number of its
 * logit rows with masks, or 1. */
int32_t sv_token_mask_make(struct sv_engine *e, struct sv_plan_seg *g);
/* Uploads masks and the rows they belong to. */
void sv_token_mask_fill(struct sv_engine *e);

#endif
