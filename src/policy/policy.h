/*
 * policy.h - the width policy: how many rows of each sequence the next step verifies.
 *
 * Called by engine only (docs/width-policy.md). Fed with measured times and acceptance, it chooses
 * the widths with the most expected tokens per microsecond; plain decoding is one of the
 * candidates. Must not: see a token, run anything on a device, or change what is emitted.
 */
#ifndef SV_POLICY_H
#define SV_POLICY_H

#include "policy/cost.h"
#include "spec/spec.h"

/* How a request's drafts did, against what the engine-wide record expected of them. */
struct sv_record {
    float kept[SV_MAX_BLOCK], expected[SV_MAX_BLOCK]; /* [j]: draft j, 1..; fading sums */
    int64_t n_verified, probed; /* verify steps; the choice that made it a probe last */
    int32_t follow_ups;         /* probes still to come because the last ones did well */
    int32_t n_choices;          /* while drafting was unprofitable */
    bool sampled;               /* tried although it was unprofitable for earlier requests */
    bool disabled;              /* drafts no more: its context K/V need not be kept up */
    bool lacks;                 /* a part of its context K/V was never made: it cannot draft */
    double missed_us;           /* what the two have cost it while others drafted, or could have */
    int32_t n_restored;         /* how often its context K/V was made good */
};

/* Reason of a sequence's width. */
enum sv_reason {
    SV_REASON_PLAIN,   /* plain decoding brings most */
    SV_REASON_DRAFT,   /* drafting does, */
    SV_REASON_PRUNED,  /* and to cut rows before they are verified is worth the host's trip */
    SV_REASON_SAT_OUT, /* but for others: this one gains nothing */
    SV_REASON_TRIAL,   /* to learn from it */
    SV_REASON_ASKED,   /* the request asked for it */
    SV_REASON_NO_ROOM, /* one token left */
    /* unprofitable for long, or its context K/V was dropped under load */
    SV_REASON_DISABLED,
    SV_REASONS
};
const char *sv_reason_name(enum sv_reason reason);

/* Masks: the whole block, or as many as rows. */
enum { SV_DRAFT_FULL, SV_DRAFT_SHORT, SV_DRAFT_MODES };

struct sv_policy_seq {
    int32_t fixed;   /* > 0: this width, the request asked for it */
    int32_t block;   /* widest it may be asked for: what the draft sees in full mode */
    int32_t cap;     /* widest useful now: block, cut to the tokens still wanted */
    int32_t context; /* positions behind it */
    struct sv_record *record;
    /* out */
    int32_t width, draft_rows; /* 0 rows: it sits the drafting pass out */
    /* asked of it: width - 1, or more to see the confidence of the drafter of the others */
    int32_t n_drafts;
    bool probe;
    float seg_us, row_us, draft_us, draft_row_us;
};

#define SV_CONFIDENCE_BINS 24
#define SV_CONFIDENCE_EDGES 6
/* What a drafter's own probabilities are worth: fading sums. */
struct sv_confidence {
    float kept[SV_CONFIDENCE_BINS], tried[SV_CONFIDENCE_BINS]; /* by how sure it was */
    float at_kept[SV_MAX_BLOCK], at_expected[SV_MAX_BLOCK];    /* [j]: draft j against that */
    /* [j]: share of the last blocks whose draft j had a chance between two edges, and the sum of
     * these. */
    float spread[SV_MAX_BLOCK][SV_CONFIDENCE_EDGES], spread_sum[SV_MAX_BLOCK][SV_CONFIDENCE_EDGES];
    float promised, brought; /* tokens of steps that were cut */
    float gain; /* best choice with a cut over the best without, when most could draft */
    bool near;  /* to cut came near the best choice when that was looked for last */
};

#define SV_OCTAVES 8
struct sv_policy {
    struct sv_cost cost;
    int32_t block, n_slots, n;
    bool drafts_on_device;
    bool prunes; /* rows may be cut once the drafter has said how sure it is */
    /* the device works on while the host plans: a search costs no time, and a cut makes it wait */
    bool ahead;
    bool confidence_free;            /* drafting passes tell how sure they are anyway */
    bool prunes_now, confidence_now; /* in the step chosen last: rows are cut; the drafter tells */
    struct sv_confidence confidence;
    struct sv_searched *searched; /* the last search, which serves a few steps */
    bool backoff;                 /* plain steps without a choice: sv_policy_backs_off */
    int32_t backoff_n;            /* the number of sequences it was found for */
    int32_t n_backed_off;         /* such steps since the last choice */
    /* choices in a row that found drafting unprofitable; by sequences: 1, 2.., 4.., 8.. */
    int32_t n_unprofitable[SV_OCTAVES];
    /* what it takes to make the context K/V that is deferred, before all may draft */
    double deferred_us;
    double prompt_us; /* and that of a prompt, by tokens of its answer; 0: it is made in any case */
    double rate;      /* tokens a us expected of this step: what time is worth */
    double promised;  /* tokens that drafts were to bring in the step chosen last, with a cut */
    int64_t n_pruned, n_pruned_steps; /* rows cut so far, in so many steps */
    struct sv_policy_seq *seq;        /* (n_slots) of this step */
    struct sv_load load;              /* of the step chosen last */
    /* engine-wide record: fading counts, and the chance that draft j is kept once j - 1 was; how
     * the modes did against that, and their factors */
    float kept[SV_MAX_BLOCK], tried[SV_MAX_BLOCK], hazard[SV_MAX_BLOCK];
    float mode_kept[SV_DRAFT_MODES], mode_expected[SV_DRAFT_MODES], mode_factor[SV_DRAFT_MODES];
    /* How requests' records foretell their next drafts (sv_chance_differ): sums of products. */
    float apart_xy, apart_xx;
    float *alive; /* (n_slots, block) chance that draft j is kept, per sequence */
    struct sv_rank {
        float value;
        int32_t i;
    } * rank; /* (n_slots) */
    struct sv_trial {
        double probe_us, other_us, look_us; /* time that probes, trials, looks may still cost */
        double budget_scale[SV_OCTAVES];    /* how much of their share they get; by sequences, as
                                         n_unprofitable */
        int32_t n_steps;                    /* choices, as long as these few matter */
        int32_t n_postponed; /* choices in a row without a suitable moment for a probe */
        int32_t n_since;     /* steps since the last trial */
        int32_t n_left;      /* steps that a trial still goes on, */
        bool of_size;        /* of drafts of another size, not of the other way */
        bool drafted;        /* the last choice, trials aside */
        int32_t looked;      /* the sequence that the last look was at */
        int64_t n_unprofitable,
            n_unprofitable_requests; /* verify steps since drafting paid; new requests */
        int64_t n_requests;
    } trial;
    /* Choices so far: all, with a probe, plain, against the odds. */
    int64_t n_steps, n_probes, n_plain, n_other;
    int32_t reason_now[SV_REASONS]; /* of the last choice */
    int64_t n_reason[SV_REASONS],
        n_beside_prompt; /* widths chosen, by reason; of these beside prompt rows */
    int64_t n_disabled, n_dropped, n_restored; /* requests: drafting disabled, lost their context
                                                  K/V under load, got it back */
    double expected_us,
        expected_plain_us; /* of all steps; what their tokens would have taken plainly */
    int64_t measured_us;   /* how long filling the cost table took */
    struct sv_rng *random; /* tests: any widths at all; NULL = the policy */
    struct sv_arena arena;
};
int sv_policy_open(struct sv_policy **p, int32_t n_slots, int32_t block, bool drafts_on_device,
                   struct sv_err *err);
void sv_policy_close(struct sv_policy *p);
/* Forgets how drafts did, but not what steps cost (benchmarks: another profile is another
 * world). */
void sv_policy_forget(struct sv_policy *p);
/* One step: begin, add every decoding sequence, choose; then seq[] holds widths in the order of
 * adding. */
void sv_policy_begin(struct sv_policy *p, int32_t n_prompt_rows, bool sampled);
void sv_policy_add(struct sv_policy *p, struct sv_policy_seq seq);
void sv_policy_choose(struct sv_policy *p);
/* Instead of the three above: one more plain step of n sequences without fixed widths, as drafting
 * has long been unprofitable. False: a choice is due. */
bool sv_policy_backs_off(struct sv_policy *p, int32_t n, bool beside_prompt);
/* Would n requests without history draft? */
bool sv_policy_would_draft(const struct sv_policy *p, int32_t n);
/* For n sequences that draft against plain decoding: us saved with each token of one; 0: nothing.
 * record: what is known of that one's drafts; NULL = one without history. */
double sv_policy_gain_us(const struct sv_policy *p, int32_t n, struct sv_record *record);
/* What it takes to compute n_rows once more, up to this context, so that a sequence may draft
 * again. */
double sv_policy_restore_us(const struct sv_policy *p, int32_t n_rows, int32_t context);
/* With n sequences drafting has been unprofitable for so long that their context K/V need not be
 * kept up to date. */
bool sv_policy_unprofitable(const struct sv_policy *p, int32_t n);
/* The context K/V of a request that drafted no more has been made good: it may try again. */
void sv_policy_restored(struct sv_policy *p, struct sv_record *record);
/* Between drafting and verifying: no more than width rows of the sequence added i-th are verified.
 */
void sv_policy_narrow(struct sv_policy *p, int32_t i, int32_t width);
/* And then, with p->prunes_now: narrows seq[] to the rows that pay. confidence: of
 * all drafts in the order of the sequences. */
void sv_policy_prune(struct sv_policy *p, const float *confidence);
/* A block was drafted, whatever of it was verified: the confidence of the drafter of its n drafts.
 */
void sv_policy_drafted(struct sv_policy *p, const float *confidence, int32_t n);
/* Drafts of a step that was cut brought so many tokens; promised: p->promised when it was
 * chosen. */
void sv_policy_brought(struct sv_policy *p, double promised, int32_t n_tokens);
/* A verify step, drafted with draft_rows masks and anchor: of n_drafts drafts width - 1 were
 * verified and brought n_emitted tokens. confidence: of the n_drafts; NULL = not known, and nothing
 * was cut. */
struct sv_verified {
    int32_t width, draft_rows, n_emitted;
    bool probe;
    bool refused; /* the next draft was dropped: that it would not be kept was known (a grammar) */
    const float *confidence;
    int32_t n_drafts;
    int32_t n_together; /* requests with drafts in that step; 0 = it was the only one */
};
void sv_policy_verified(struct sv_policy *p, struct sv_record *record, const struct sv_verified *v);

#endif
