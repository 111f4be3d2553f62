/*
 * policy.h - the width policy: how many rows of each sequence the next step verifies.
 *
 * Called by engine, read by bench (docs/width-policy.md). Fed with measured times and acceptance,
 * it chooses the widths with the most expected tokens per microsecond; plain decoding is one of the
 * candidates. Must not: see a token, run anything on a device, or change what is emitted.
 */
#ifndef SV_POLICY_H
#define SV_POLICY_H

#include "policy/cost.h"
#include "spec/spec.h"

/* Acceptance of a request's drafts, beside what the engine-wide record predicted. */
struct sv_record {
    float kept[SV_MAX_BLOCK], expected[SV_MAX_BLOCK]; /* [j]: draft j, 1..; fading sums */
    int64_t n_verified, probed; /* verify steps; the choice of its last probe */
    int32_t follow_ups;         /* probes still to come because the last one did well */
    int32_t n_choices;          /* choices while drafting was unprofitable */
    bool sampled;               /* tried although it was unprofitable for earlier requests */
    bool disabled;              /* drafts no more; its context K/V is not updated */
    bool draft_kv_missing;      /* in part: it cannot draft until that is recomputed */
    double missed_us;           /* time lost by the two while drafting would have paid */
    int32_t n_restored;         /* how often its context K/V was recomputed */
};

/* Reason of a sequence's width. */
enum sv_reason {
    SV_REASON_PLAIN,     /* plain decoding is best */
    SV_REASON_DRAFT,     /* drafting is best */
    SV_REASON_PRUNED,    /* drafting with pruning is best */
    SV_REASON_SAT_OUT,   /* others draft; this sequence would gain nothing */
    SV_REASON_TRIAL,     /* exploration */
    SV_REASON_REQUESTED, /* the request fixed it */
    SV_REASON_NO_ROOM,   /* one token left */
    /* unprofitable for long, or its context K/V was dropped under load */
    SV_REASON_DISABLED,
    SV_REASONS
};
const char *sv_reason_name(enum sv_reason reason);

/* Masks of a drafting pass: the whole block, or as many as rows. */
enum { SV_DRAFT_FULL, SV_DRAFT_SHORT, SV_DRAFT_MODES };

struct sv_policy_seq {
    int32_t fixed;   /* > 0: the width that the request fixed */
    int32_t block;   /* the largest width: masks of the full mode */
    int32_t cap;     /* largest useful width now: block, limited to the tokens still to come */
    int32_t context; /* positions before it */
    struct sv_record *record;
    /* out */
    int32_t width, draft_rows; /* 0 rows: not in the drafting pass */
    /* proposals: width - 1, or more to see their confidence */
    int32_t n_drafts;
    bool probe;
    float seg_us, row_us, draft_us, draft_row_us;
};

#define SV_CONFIDENCE_BINS 24
#define SV_CONFIDENCE_EDGES 6
/* Calibration of the draft confidence: fading sums. */
struct sv_confidence {
    float kept[SV_CONFIDENCE_BINS], tried[SV_CONFIDENCE_BINS]; /* by confidence */
    float at_kept[SV_MAX_BLOCK], at_expected[SV_MAX_BLOCK]; /* [j]: draft j, kept over predicted */
    /* [j]: fraction of recent blocks in which the chance of draft j was between two edges, and the
     * sum of these chances. */
    float spread[SV_MAX_BLOCK][SV_CONFIDENCE_EDGES], spread_sum[SV_MAX_BLOCK][SV_CONFIDENCE_EDGES];
    float promised, brought; /* tokens of pruned steps */
    float gain;              /* best score with pruning over that without, when most could draft */
    bool near;               /* pruning came near the best choice at the last look */
};

#define SV_OCTAVES 8
struct sv_policy {
    struct sv_cost cost;
    int32_t block, n_slots, n;
    bool drafts_on_device;
    bool prunes; /* drafts may be pruned by their confidence */
    /* the device works while the host plans: a search is free, pruning makes the device wait */
    bool ahead;
    bool confidence_free; /* drafting passes return the confidence in any case */
    /* in the step chosen last: drafts are pruned; the confidence is returned */
    bool prunes_now, confidence_now;
    struct sv_confidence confidence;
    struct sv_searched *searched; /* the last search, which serves a few steps */
    bool backoff;                 /* plain steps without a choice: sv_policy_backs_off */
    int32_t backoff_n;            /* the number of sequences it was found for */
    int32_t n_backed_off;         /* such steps since the last choice */
    /* choices in a row that found drafting unprofitable; by sequences: 1, 2.., 4.., 8.. */
    int32_t n_unprofitable[SV_OCTAVES];
    /* time of the deferred context-KV updates, due before all may draft */
    double deferred_us;
    double prompt_us; /* that of a prompt per token of its answer; 0: prompts are not deferred */
    double rate;      /* tokens per us expected of this step: the value of time */
    double promised;  /* tokens expected of drafts in the step chosen last, with pruning */
    int64_t n_pruned, n_pruned_steps; /* rows pruned so far, in so many steps */
    struct sv_policy_seq *seq;        /* (n_slots) of this step */
    struct sv_load load;              /* of the step chosen last */
    /* engine-wide record: fading counts; [j]: chance that draft j is kept once j - 1 was; the modes
     * against that, and their factors */
    float kept[SV_MAX_BLOCK], tried[SV_MAX_BLOCK], hazard[SV_MAX_BLOCK];
    float mode_kept[SV_DRAFT_MODES], mode_expected[SV_DRAFT_MODES], mode_factor[SV_DRAFT_MODES];
    /* How well requests' records predict their next drafts (sv_chance_differ): sums of products. */
    float apart_xy, apart_xx;
    float *alive; /* (n_slots, block) chance that draft j is kept, per sequence */
    struct sv_rank {
        float value;
        int32_t i;
    } * rank; /* (n_slots) */
    struct sv_trial {
        double probe_us, other_us, look_us; /* time that probes, trials and looks may still cost */
        double budget_scale[SV_OCTAVES];    /* of the budgets; by sequences, as n_unprofitable */
        int32_t n_steps;                    /* choices, up to YOUNG */
        int32_t n_postponed; /* choices in a row without a suitable moment for a probe */
        int32_t n_since;     /* steps since the last trial */
        int32_t n_left;      /* steps left of a trial */
        bool of_size;        /* a trial of drafts of another size, not of the other way */
        bool drafted;        /* the last choice, without trials */
        int32_t looked;      /* the sequence of the last look */
        /* verify steps and new requests since drafting paid */
        int64_t n_unprofitable, n_unprofitable_requests;
        int64_t n_requests;
    } trial;
    /* Choices so far: all, with a probe, plain, of trials. */
    int64_t n_steps, n_probes, n_plain, n_other;
    int32_t reason_now[SV_REASONS];                /* of the last choice */
    int64_t n_reason[SV_REASONS], n_beside_prompt; /* widths chosen; beside prompt rows */
    /* requests: drafting disabled, context K/V dropped under load, recomputed */
    int64_t n_disabled, n_dropped, n_restored;
    /* of all steps; what plain steps would have taken for their tokens */
    double expected_us, expected_plain_us;
    int64_t measured_us;   /* time of filling the cost table */
    struct sv_rng *random; /* tests: random widths; NULL = the policy */
    struct sv_arena arena;
};
int sv_policy_open(struct sv_policy **p, int32_t n_slots, int32_t block, bool drafts_on_device,
                   struct sv_err *err);
void sv_policy_close(struct sv_policy *p);
/* Forgets acceptance, but not step costs (benchmarks change the profile). */
void sv_policy_forget(struct sv_policy *p);
/* One step: begin, add every decoding sequence, choose; then seq[] holds widths in the order of
 * adding. */
void sv_policy_begin(struct sv_policy *p, int32_t n_prompt_rows, bool sampled);
void sv_policy_add(struct sv_policy *p, struct sv_policy_seq seq);
void sv_policy_choose(struct sv_policy *p);
/* Instead of the three above: one more plain step of n sequences without fixed widths, as drafting
 * has long been unprofitable. False: a choice is due. */
bool sv_policy_backs_off(struct sv_policy *p, int32_t n, bool beside_prompt);
/* Whether n requests without history would draft. */
bool sv_policy_would_draft(const struct sv_policy *p, int32_t n);
/* us saved per token of one sequence when n sequences draft instead of decoding plainly; 0:
 * nothing. record: of that sequence; NULL = one without history. */
double sv_policy_gain_us(const struct sv_policy *p, int32_t n, struct sv_record *record);
/* Time of computing n_rows again, up to this context, so that a sequence may draft again. */
double sv_policy_restore_us(const struct sv_policy *p, int32_t n_rows, int32_t context);
/* With n sequences drafting has been unprofitable for so long that their context K/V need not be
 * kept up to date. */
bool sv_policy_unprofitable(const struct sv_policy *p, int32_t n);
/* The missing context K/V of a request was recomputed: it may draft again. */
void sv_policy_restored(struct sv_policy *p, struct sv_record *record);
/* Between drafting and verifying: no more than width rows of the i-th sequence are verified. */
void sv_policy_narrow(struct sv_policy *p, int32_t i, int32_t width);
/* After that, with p->prunes_now: narrows seq[] to the rows that pay. confidence: of all drafts in
 * the order of the sequences. */
void sv_policy_prune(struct sv_policy *p, const float *confidence);
/* A block was drafted: the confidence of its n drafts, verified or not. */
void sv_policy_drafted(struct sv_policy *p, const float *confidence, int32_t n);
/* Tokens that the drafts of a pruned step brought; promised: p->promised of its choice. */
void sv_policy_brought(struct sv_policy *p, double promised, int32_t n_tokens);
/* A verify step, drafted with draft_rows masks and anchor: of n_drafts drafts width - 1 were
 * verified and yielded n_emitted tokens. confidence: of the n_drafts; NULL = not known, and nothing
 * was pruned. */
struct sv_verified {
    int32_t width, draft_rows, n_emitted;
    bool probe;
    bool refused; /* a grammar forbade the next draft, so it was dropped */
    const float *confidence;
    int32_t n_drafts;
    int32_t n_together; /* requests with drafts in that step; 0 = only this one */
};
void sv_policy_verified(struct sv_policy *p, struct sv_record *record, const struct sv_verified *v);

#endif
