/*
 * spec.h - drafters, and the bookkeeping of how well they do.
 *
 * Called by engine only. A drafter proposes the tokens that follow each sequence's anchor and
 * watches what the target commits; whether a proposal is right never changes what is emitted.
 * Device drafters (dflash) enqueue; host drafters (the fakes) write ids while the batch is filled.
 * Must not: emit a token, touch a sequence, or depend on anything but the passes handed in.
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
    struct sv_rows rows;     /* block rows: row 0 of a segment is its anchor, the rest are masks */
    const int32_t *seg_kind; /* (n_segs) all SV_SEG_DRAFT */
    const int32_t *slot_len, *slot_anchor; /* (n_slots) */
    int32_t *row_ids;                      /* (n_rows) scratch: what the drafter reads */
    int32_t n_out;                         /* rows that propose a token */
    const int32_t *out_row;                /* (n_out) block row */
    const int32_t *out_index;              /* (n_out) where its token goes in target_ids */
    int32_t *target_ids;                   /* the target batch's row_ids */
    const struct sv_cache *cache;
    const struct sv_acts *acts;
    void *out; /* (n_out, hidden) act scratch */
    /* How sure the drafter is: about its winner's share of the softmax. NULL = nobody asks. */
    float *share;  /* (n_out) */
    float *logits; /* (logit_chunk, vocab) scratch for devices that have no head_shares */
    int32_t logit_chunk;
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
    /* Takes its own buffers for at most max_rows observed rows, and the opened cache. NULL:
     * none. */
    int (*bind)(struct sv_drafter *d, const struct sv_cache *cache, int32_t max_rows,
                struct sv_err *err);
    /* Adds the weight bytes that a drafting pass reads, head included. NULL: none. */
    void (*reads)(const struct sv_drafter *d, struct sv_read_bytes *sum);
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
    int64_t weight_bytes;   /* of its own, as the device keeps them */
    int64_t row_bytes;      /* device scratch that bind takes for each observed row */
    bool shares_free;       /* proposing tells shares without logits */
};
void sv_drafter_close(struct sv_drafter *d); /* NULL is fine */

/* A DFlash v1 draft directory for an opened target. Refuses with the reason when it does not
 * fit. */
int sv_dflash_open(struct sv_drafter **d, const struct sv_model *target, const char *dir,
                   int32_t n_positions, struct sv_err *err);
/* DIR/config.json alone: weights of its shapes made on the device (benchmarks). */
int sv_dflash_open_random(struct sv_drafter **d, const struct sv_model *target, const char *dir,
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

/* Accept lengths drawn instead of found: speed without a trained draft (benchmarks only). Every
 * width sees the same draws: number `draw` of a sequence is cut to the width by the device. */
struct sv_accept_profile {
    float cum[SV_MAX_BLOCK]; /* P(accept length <= i + 1), bonus included */
    int32_t n;
    uint64_t seed;
    /* Steps that were recorded, drawn as they are: then a drafter is as sure as it was. Borrowed;
     * 0: lengths alone. */
    const struct sv_profile_step *step;
    int32_t n_steps;
};
struct sv_profile_step {
    int32_t length;            /* bonus included */
    float share[SV_MAX_BLOCK]; /* of drafts 1.., 0 where none was recorded */
};
/* share[i]: weight of accept length i + 1; any positive sum. */
int sv_profile_set(struct sv_accept_profile *p, const double *share, int32_t n, struct sv_err *err);
int32_t sv_profile_draw(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw);
/* The same draw: how sure the drafter was of its first n drafts. Recorded steps only. */
void sv_profile_shares(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw,
                       int32_t n, float *share);

/* ---------------------------------------------------------------- what a step costs (cost.c) */

/* Time over a count, measured at some points: straight lines between them. */
#define SV_CURVE_POINTS 64
struct sv_curve {
    int32_t n;
    int32_t x[SV_CURVE_POINTS]; /* ascending */
    float us[SV_CURVE_POINTS];
};
void sv_curve_add(struct sv_curve *c, int32_t x, double us); /* x above the last */
double sv_curve_at(const struct sv_curve *c, double x);

#define SV_COST_CONTEXTS 8
/* What steps teach the table (learn.c): logarithms of how much slower than it everything is just
 * now, and how much slower than plain steps drafting ones are, by their rows: 2, 3, 4, 6, 8, 12,
 * ... 2048 and in between; and how sure of that it is. */
#define SV_LEVELS 21
struct sv_pace {
    float x[1 + SV_LEVELS], cov[1 + SV_LEVELS][1 + SV_LEVELS];
    double noise;     /* variance of one step's time */
    int32_t n_since;  /* steps since plain ones followed drafting ones or the other way round */
    int32_t n_segs;   /* of the last step */
    int32_t n_steady; /* steps that the noise was learnt from */
    bool plain;       /* so was the last step */
};
struct sv_cost {
    struct sv_curve plain;      /* by segments of one row: a plain step */
    struct sv_curve wide;       /* by rows, in segments of `block` rows, no drafting */
    struct sv_curve draft_rows; /* by rows of a drafting pass, one token wanted a segment */
    struct sv_curve draft_out;  /* by further tokens wanted */
    /* by segments of two rows: a drafting pass, one token wanted of each; empty = as draft_rows */
    struct sv_curve thin;
    /* by tokens wanted: to learn how sure the drafter is of them and to cut before verifying */
    struct sv_curve trip;
    int32_t block;
    int32_t (*padded)(
        int32_t n); /* where the engine pads counts (graphs): up to what; NULL = it does not */
    /* Over the shortest context: a segment, each of its rows, a drafting segment, each of its
     * rows. */
    int32_t n_ctx, ctx[SV_COST_CONTEXTS];
    float seg_us[SV_COST_CONTEXTS], row_us[SV_COST_CONTEXTS];
    float draft_us[SV_COST_CONTEXTS], draft_row_us[SV_COST_CONTEXTS];
    struct sv_pace pace[2];    /* greedy and sampled; what follows are its exponentials */
    float speed[2];            /* factor of all steps over the table just now; 1 at first */
    float level[2][SV_LEVELS]; /* factors of drafting steps over that, by rows */
};
/* What a step carries. The *_us fields are sums over segments of what their contexts add. */
struct sv_load {
    int32_t n_segs, n_rows; /* decoding segments, their rows */
    int32_t n_prompt_rows;
    int32_t n_draft_segs, n_draft_rows, n_draft_out;
    int32_t sampled; /* 1: some row is not greedy */
    float seg_us, row_us, draft_us;
};
double sv_cost_us(const struct sv_cost *c, const struct sv_load *l);
double sv_cost_context(const struct sv_cost *c, const float *us, int32_t context);
/* How much dearer than the table says such a step has turned out to be, against plain ones. */
double sv_cost_level(const struct sv_cost *c, const struct sv_load *l);
bool sv_load_is_plain(const struct sv_load *l);
/* Between which two of the levels a drafting step of so many rows stands: i, the share of i + 1. */
struct sv_size {
    int32_t i;
    double t;
};
struct sv_size sv_cost_size(int32_t n_rows);
int32_t sv_cost_level_rows(int32_t i);
/* How far it is one at all: 0 where it takes no longer than a plain step, 1 from a third more
 * on. */
double sv_cost_weight(const struct sv_cost *c, const struct sv_load *l);

/* Knows nothing but the table. */
void sv_cost_unlearn(struct sv_cost *c);
/* A step of this load took us. */
void sv_cost_learn(struct sv_cost *c, const struct sv_load *l, double us);
/* Standard deviation of how such a step compares with the other, as a share of the cost. NULL: with
 * a plain one. */
double sv_cost_doubt(const struct sv_cost *c, const struct sv_load *l, const struct sv_load *other);

/* ---------------------------------------------------------------- measuring that (turns.c) */

#define SV_MOST_RUNS 48
#define SV_MOST_TIMED 128
enum { SV_TIME_ALL, SV_TIME_DRAFT, SV_TIME_TARGET, SV_TIMES };
/* Something timed again and again: all of it, and its two parts. */
struct sv_timed {
    double us[SV_TIMES]; /* as usual; < 0: not run */
    float run[SV_MOST_RUNS][SV_TIMES];
    int32_t round[SV_MOST_RUNS], n_runs;
    double spent_us;
    bool needed; /* at least once, however late it is */
    bool done;   /* before: has no turns any more, and stays as it is */
};
struct sv_turns {
    struct sv_timed *of; /* (n), in the order of growing work */
    int32_t n, least;    /* rounds in any case */
    int32_t round, at;
    int64_t half_us, end_us, last_us; /* with plenty of rounds, as usual, with few quick ones */
    double share_us;                  /* of each, where not all can go on */
    bool whole;                       /* this round is everybody's */
};
/* t->of and t->n are set. least: rounds in any case, but what is not needed is left out once the
 * time is over. more_us: what may be added where few rounds were quick. */
void sv_turns_begin(struct sv_turns *t, int32_t least, int64_t now_us, int64_t budget_us,
                    int64_t more_us);
/* Whose turn it is; -1: it is over. */
int32_t sv_turns_next(struct sv_turns *t, int64_t now_us);
/* Whose turn it was took so long. */
void sv_turns_add(struct sv_turns *t, int32_t i, const double us[SV_TIMES]);
/* It is over: what counts is what the machine's quick rounds say. */
void sv_turns_end(struct sv_turns *t);

/* ---------------------------------------------------------------- width policy (policy.c) */

/* How a request's drafts did, against what the engine-wide record expected of them. */
struct sv_record {
    float kept[SV_MAX_BLOCK], expected[SV_MAX_BLOCK]; /* [j]: draft j, 1..; fading sums */
    int64_t n_verified, probed; /* verify steps; the choice that made it a probe last */
    int32_t burst;              /* probes to go on with because the last ones did well */
    int64_t epoch;              /* of the trials, when its drafts were counted last */
    int32_t n_choices;          /* while drafting was far from worth while */
    bool sampled;               /* tried though requests before it were in vain */
    bool gave_up;               /* drafts no more: its context K/V need not be kept up */
    bool lacks;                 /* a part of its context K/V was never made: it cannot draft */
    double missed_us;           /* what the two have cost it while others drafted, or could have */
    int32_t n_restored;         /* how often its context K/V was made good */
};

/* Why a sequence got the width it got. */
enum sv_why {
    SV_WHY_PLAIN,   /* plain decoding brings most */
    SV_WHY_DRAFT,   /* drafting does, */
    SV_WHY_CUT,     /* and to cut rows before they are verified is worth the host's trip */
    SV_WHY_SAT_OUT, /* but for others: this one gains nothing */
    SV_WHY_TRIAL,   /* to learn from it */
    SV_WHY_ASKED,   /* the request asked for it */
    SV_WHY_NO_ROOM, /* one token left */
    /* its drafts were in vain for long, or its context K/V was dropped under load */
    SV_WHY_GAVE_UP,
    SV_WHYS
};
const char *sv_why_name(enum sv_why why);

/* Masks: the whole block, or as many as rows. */
enum { SV_DRAFT_FULL, SV_DRAFT_SHORT, SV_DRAFT_MODES };

struct sv_policy_seq {
    int32_t fixed;   /* > 0: this width, the request asked for it */
    int32_t block;   /* widest it may be asked for: what the draft sees in full mode */
    int32_t cap;     /* widest useful now: block, cut to the tokens still wanted */
    int32_t context; /* positions behind it */
    int32_t left;    /* tokens it is likely to bring yet; 0: not known */
    struct sv_record *record;
    /* out */
    int32_t width, draft_rows; /* 0 rows: it sits the drafting pass out */
    /* asked of it: width - 1, or more to see how sure the drafter is of the others */
    int32_t n_drafts;
    bool probe;
    float seg_us, row_us, draft_us, draft_row_us;
};

#define SV_SURE_BINS 24
#define SV_SURE_EDGES 6
/* What a drafter's own probabilities are worth (sure.c): fading sums. */
struct sv_sure {
    float kept[SV_SURE_BINS], tried[SV_SURE_BINS];          /* by how sure it was */
    float at_kept[SV_MAX_BLOCK], at_expected[SV_MAX_BLOCK]; /* [j]: draft j against that */
    /* [j]: share of the last blocks whose draft j had a chance between two edges, and the sum of
     * these. */
    float spread[SV_MAX_BLOCK][SV_SURE_EDGES], spread_sum[SV_MAX_BLOCK][SV_SURE_EDGES];
    float promised, brought; /* tokens of steps that were cut */
    float gain;     /* best choice with a cut over the best without, when most could draft */
    bool near;      /* to cut came near the best choice when that was looked for last */
    int32_t looked; /* who was asked for a whole block last, */
    double look_us; /* and how long that may still take */
};

#define SV_OCTAVES 8
struct sv_policy {
    struct sv_cost cost;
    int32_t block, n_slots, n;
    bool drafts_on_device;
    bool cuts; /* rows may be cut once the drafter has said how sure it is */
    /* the device works on while the host plans: a search costs no time, and a cut makes it wait */
    bool ahead;
    bool shares_free;          /* drafting passes tell how sure they are anyway */
    bool cuts_now, shares_now; /* in the step chosen last: rows are cut; the drafter tells */
    struct sv_sure sure;
    struct sv_searched *searched; /* the last search, which serves a few steps */
    bool closed; /* at this number of sequences nothing could be gained, were every draft kept */
    int32_t closed_n, closed_steps; /* when that was looked at: for so many sequences, steps ago */
    bool rests;                     /* nothing but plain steps for a few choices, */
    int32_t rests_at;               /* at about so many sequences, */
    int32_t n_rested;               /* and so many steps since the last choice */
    double left; /* tokens that those who run are likely to bring yet; 0: not known */
    /* choices in a row that found drafting far from worth while; by sequences: 1, 2.., 4.., 8.. */
    int32_t n_far[SV_OCTAVES];
    /* what it takes to make the context K/V that is held back, before all may draft */
    double held_us;
    double prompt_us; /* and that of a prompt, by tokens of its answer; 0: it is made in any case */
    double rate;      /* tokens a us expected of this step: what time is worth */
    double promised;  /* tokens that drafts were to bring in the step chosen last, with a cut */
    int64_t n_cut, n_cut_steps; /* rows cut so far, in so many steps */
    struct sv_policy_seq *seq;  /* (n_slots) of this step */
    struct sv_load load;        /* of the step chosen last */
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
        /* time that probes, and trials of the other way, of other sizes and of the other number of
         * masks may still cost; */
        double probe_us, other_us, size_us, mode_us;
        double thrift[SV_OCTAVES]; /* how much of their share they get; by sequences, as n_far */
        int32_t n_steps;           /* choices, as long as these few matter */
        int32_t n_hemmed;          /* choices in a row that were no moment for a probe */
        int32_t n_since;           /* steps since the last trial of the other way */
        int64_t n_drafting;        /* choices to draft */
        int32_t n_left;            /* steps that a trial of the other way still goes on, */
        bool drafts;               /* which is to draft, */
        bool of_size;              /* and with another number of rows than what is used */
        bool drafted;              /* the last choice, trials aside */
        int32_t n_in_vain,
            n_requests_in_vain; /* verify steps since drafting paid; of how many requests */
        int64_t epoch;          /* how often it paid */
        int64_t n_requests;
    } trial;
    /* Choices so far: all, with a probe, plain, against the odds, with the number of masks that is
     * not thought the better one. */
    int64_t n_steps, n_probes, n_plain, n_other, n_masks;
    int32_t why_now[SV_WHYS]; /* of the last choice */
    int64_t n_why[SV_WHYS],
        n_beside_prompt; /* widths chosen, by reason; of these beside prompt rows */
    int64_t n_gave_up, n_dropped,
        n_restored; /* requests: gave up, lost their context K/V under load, got it back */
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
/* In place of the three above: n sequences, none of which asked for a width, decode plainly once
 * more, as nothing else has been worth while for long. False: it has to be asked. */
bool sv_policy_rests(struct sv_policy *p, int32_t n, bool beside_prompt);
/* Would n requests without history draft? */
bool sv_policy_would_draft(const struct sv_policy *p, int32_t n);
/* For n sequences that draft against plain decoding: us saved with each token of one; 0: nothing.
 * record: what is known of that one's drafts; NULL = one without history. */
double sv_policy_gain_us(const struct sv_policy *p, int32_t n, struct sv_record *record);
/* What it takes to compute n_rows once more, up to this context, so that a sequence may draft
 * again. */
double sv_policy_restore_us(const struct sv_policy *p, int32_t n_rows, int32_t context);
/* Were every draft kept: could n sequences gain nothing by drafting? Then nothing that might be
 * learnt changes the choice, and nothing is tried, searched or kept up. */
bool sv_policy_is_closed(const struct sv_policy *p, int32_t n);
/* Numbers of sequences of which one stands for the other while some come and go: also 16 and 15,
 * which octaves part. */
bool sv_policy_about(int32_t n, int32_t m);
/* For so many sequences drafting is so far from worth while, and has been for so long, that
 * nobody's context K/V need be kept up. */
bool sv_policy_is_far(const struct sv_policy *p, int32_t n);
/* The context K/V of a request that drafted no more has been made good: it may try again. */
void sv_policy_restored(struct sv_policy *p, struct sv_record *record);
/* Between drafting and verifying: no more than width rows of the sequence added i-th are verified.
 */
void sv_policy_narrow(struct sv_policy *p, int32_t i, int32_t width);
/* And then, with p->cuts_now: narrows seq[] to the rows that pay. share: of
 * all drafts in the order of the sequences. */
void sv_policy_cut(struct sv_policy *p, const float *share);
/* A block was drafted, whatever of it was verified: how sure the drafter was of its n drafts. */
void sv_policy_drafted(struct sv_policy *p, const float *share, int32_t n);
/* Drafts of a step that was cut brought so many tokens; promised: p->promised when it was
 * chosen. */
void sv_policy_brought(struct sv_policy *p, double promised, int32_t n_tokens);
/* A verify step, drafted with draft_rows masks and anchor: of n_drafts drafts width - 1 were
 * verified and brought n_emitted tokens. share: of the n_drafts; NULL = not known, and nothing was
 * cut. */
struct sv_verified {
    int32_t width, draft_rows, n_emitted;
    bool probe;
    bool refused; /* the next draft was dropped: that it would not be kept was known (a grammar) */
    const float *share;
    int32_t n_drafts;
    int32_t n_together; /* requests with drafts in that step; 0 = it was the only one */
};
void sv_policy_verified(struct sv_policy *p, struct sv_record *record, const struct sv_verified *v);
/* Expected accept length (bonus included) of a request without history at this width. */
double sv_policy_expect(const struct sv_policy *p, int mode, int32_t width);

/* The verify width of a sequence's next step: at most `width`, and never past `remaining`
 * tokens. */
int32_t sv_width_pick(int32_t width, int32_t remaining);

#endif
