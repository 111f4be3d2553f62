/*
 * engine.h - sequences, the scheduler, the batch and the step.
 *
 * Called by serve and cli (through salvo.h or directly) and by tests. An engine is driven by one
 * thread. The files in the order of a request's life: api.c, engine.c (submit), seq.c, sched.c,
 * step.c with batch.c, logits.c, held.c, cut.c and masks.c; and at open: engine.c, memory.c,
 * calibrate.c. Host state (sequences, plan) and device state (lengths, anchors, tables) meet in two
 * places only: fill uploads, fetch downloads. Must not: allocate inside a step, decide tokens on
 * the host, or keep a second path for plain decoding - it is the same step with width 1.
 */
#ifndef SV_ENGINE_H
#define SV_ENGINE_H

#include "backend/backend.h"
#include "base/base.h"
#include "cache/cache.h"
#include "grammar/grammar.h"
#include "model/model.h"
#include "salvo.h"
#include "sample/sample.h"
#include "spec/spec.h"
#include "text/text.h"

/* ---------------------------------------------------------------- sequences */

enum sv_seq_state { SV_SEQ_WAITING, SV_SEQ_PREFILL, SV_SEQ_DECODE, SV_SEQ_FINISHED };

/* A request while it lives. Everything it will need is allocated when it is submitted. */
struct sv_seq {
    uint64_t id;
    enum sv_seq_state state;
    enum sv_finish_reason finish;
    const char *message;   /* static or engine-owned, with SV_FINISH_ERROR */
    bool drafts_now;       /* in the plan at work */
    bool cancel;           /* asked for; honoured by the next plan */
    struct sv_seq *next;   /* in the engine's list, by submission */
    struct sv_arena arena; /* owns the arrays below */

    int32_t slot;    /* seat in the device arrays, -1 while waiting */
    int32_t *tokens; /* (cap_tokens) prompt, then output */
    int32_t n_tokens, n_prompt, cap_tokens;
    /* positions whose K/V is valid; the anchor is at n_committed once decoding */
    int32_t n_committed;
    /* positions to compute before it decodes: the prompt, or, after it lost its pages, all but the
     * last token */
    int32_t n_prefill;
    /* rows enqueued in steps not read yet: at most these many more are committed */
    int32_t n_rows_ahead;
    int32_t n_tokens_ahead; /* and at least these many tokens will come of them */
    int32_t grant;          /* prompt rows of the step being planned */
    int32_t n_cached;       /* prompt positions found in the prefix cache when first seated */
    int32_t n_preemptions;

    int32_t width; /* verify width, already limited by the engine's; the widest with the policy */
    bool fixed_width;        /* the request asked for it: the policy leaves it alone */
    struct sv_record record; /* how its drafts did, for the policy */
    /* first position whose context K/V nobody made; INT32_MAX: none. From then on it cannot
     * draft */
    int32_t lacks_from;
    bool restores; /* what it lacks is being computed again */
    struct sv_sampling sampling;
    struct sv_logit_rules rules;
    int32_t *bias_ids; /* (rules.n_bias) */
    float *bias;
    /* (n_ban) what min_tokens holds off: the model's end tokens, n_ban_ends of them, then stop ids
     */
    int32_t *ban_ids;
    int32_t n_ban, n_ban_ends;
    int32_t *listed; /* (n_listed) words and allowed tokens, as struct sv_logit_rules has them */
    int32_t n_listed;
    struct sv_matcher *matcher; /* of a grammar: stands behind its last token. NULL = any text */
    /* not greedy, or rules, or log probabilities: the head's argmax is not enough */
    bool needs_logits;
    bool wants_prompt_logits; /* until its prompt is through: every prompt row must run */
    bool wants_logprobs;      /* of the answer */
    int32_t min_tokens;
    bool ignore_eos;
    int32_t *stop_ids;
    int32_t n_stop_ids;
    char **stop; /* stop strings */
    size_t *stop_len;
    int32_t n_stop;
    size_t max_stop; /* longest */
    bool include_stop;
    uint64_t cache_salt[2];      /* shares prefixes with those of the same */
    struct sv_search *search;    /* what ends it when it is found, or NULL; */
    int32_t *search_at;          /* and where the text stands in it */
    int32_t stop_id, stop_index; /* what ended it; -1 */

    struct sv_detok detok;
    struct sv_buf text;    /* decoded and not yet delivered; reserved once, never grows in a step */
    size_t n_text_ready;   /* bytes of text that may go out now */
    int32_t n_delivered;   /* tokens that have been in an event */
    int32_t n_drafted_new; /* of the undelivered tokens, how many were drafts */
    /* Log probabilities not delivered yet: of the newest tokens, and of the prompt (NULL when not
     * wanted). */
    struct sv_logprob_row *lp_row, *prompt_lp_row; /* (SV_LOGPROBS_HELD), (n_prompt) */
    struct sv_logprob *lp, *prompt_lp;
    int32_t n_lp;
    int32_t *asked_ids; /* (n_asked) tokens that are reported at each place */
    int32_t n_asked;
    float *asked_lp, *prompt_asked_lp; /* (SV_LOGPROBS_HELD, n_asked), (n_prompt, n_asked) */

    uint16_t *accept_lengths; /* (max_tokens) tokens per decode step */
    uint16_t *widths;         /* and the rows it verified */
    int32_t n_steps;
    uint64_t n_draws; /* of a simulated acceptance profile */
    int64_t submit_us, start_us, first_us, end_us;
    void (*on_event)(void *user, const struct sv_event *event);
    void *user;
};

/* seq.c: limits are what the engine allows; tokenizer may be NULL (ids only, no text). */
struct sv_seq_limits {
    const struct sv_config *cfg;
    const struct sv_tokenizer *tok;
    struct sv_enc_scratch *scratch;
    struct sv_vocab *vocab; /* there is one when the request has a grammar */
    int32_t context, width;
    size_t max_token_bytes;
};
/* A grammar from a request's text (grammar.c); n_bytes 0 = strlen. Errors name the field. */
int sv_engine_grammar(struct sv_grammar **g, enum sv_grammar_kind kind, const char *text,
                      size_t n_bytes, struct sv_err *err);
int sv_seq_new(struct sv_seq **seq, uint64_t id, const struct sv_request *r,
               const struct sv_seq_limits *lim, struct sv_err *err);
void sv_seq_free(struct sv_seq *seq);
/* Tokens whose log probabilities wait for delivery, at most. */
#define SV_LOGPROBS_HELD (4 * SV_MAX_BLOCK)
/* Keeps the log probabilities of the token appended last, or of the prompt's token at index. asked:
 * the row of the first token that was asked for, those of the others ld rows behind each other. */
void sv_seq_take_logprob(struct sv_seq *seq, const struct sv_logprob_row *row,
                         const struct sv_logprob_row *asked, int32_t ld);
void sv_seq_take_prompt_logprob(struct sv_seq *seq, int32_t index, const struct sv_logprob_row *row,
                                const struct sv_logprob_row *asked, int32_t ld);
/* Appends one token of the target's choosing: stop conditions, text. True when the sequence
 * ended. */
bool sv_seq_append(struct sv_seq *seq, int32_t token, const struct sv_config *cfg);
void sv_seq_finish(struct sv_seq *seq, enum sv_finish_reason reason, const char *message);
/* Hands out what is ready and shifts the text buffer. */
void sv_seq_deliver(struct sv_seq *seq);

/* ---------------------------------------------------------------- plan and schedule */

/* One segment of the step to come. Plain numbers: comparable, loggable, sendable. */
struct sv_plan_seg {
    uint64_t request;         /* whose: the slot may have changed hands when the results are read */
    int32_t slot, kind;       /* enum sv_seg_kind */
    int32_t row0, n_rows;     /* rows in the target's batch */
    int32_t logit0, n_logits; /* rows whose next token is wanted */
    int32_t first;            /* position of the first row as the host knows it */
    int32_t draft_row0, n_draft_rows; /* rows of the drafting pass, 0 when it sits out */
    int32_t draft_out0;
    bool probe; /* by the width policy, to learn from it */
    /* proposals that the drafting pass was asked for: those past the rows go nowhere */
    int32_t n_drafts;
    uint64_t draw; /* which one of a simulated acceptance profile */
    bool gave_up;  /* it cannot draft: nobody will read its context K/V */
    bool refused;  /* its rows end where its grammar forbids a draft */
    bool steered;  /* a grammar forbade some of the drafter's choices: other drafts stand there */
    int32_t mask0; /* under a grammar: the mask of its first logit row, -1: there is none */
};
/* How much of everything a step has: of the target's pass, and of the drafting pass before it. */
struct sv_counts {
    int32_t n_segs, n_rows, n_logits;                /* n_logits: rows whose next token is wanted */
    int32_t n_draft_segs, n_draft_rows, n_draft_out; /* n_draft_out: rows that propose a token */
};
/* What a step does, decided before anything of it runs. */
struct sv_plan {
    int32_t n_segs, n_rows, n_logits;
    int32_t n_draft_segs, n_draft_rows, n_draft_out;
    struct sv_counts told; /* what the device is told: these counts, or padded up to a graph's */
    bool timed;   /* the device is waited for between the two passes: what they cost is measured */
    bool replays; /* told is padded: the target's pass is a graph */
    bool sampled; /* some logit row needs its logits, not just their argmax */
    bool shares;  /* the drafting pass tells how sure it is, */
    bool cuts;    /* and what is not sure enough is cut before it is verified */
    bool masked;  /* some logit row is under a grammar */
    bool reads;   /* the host reads the drafts before the target's pass: to cut, or for masks */
    double promised; /* tokens that drafts are to bring with the cut */
    bool no_taps;    /* nobody's context K/V is kept up */
    /* some segment's sequence has logit rules, rules that look back on its tokens, log
     * probabilities to report */
    bool ruled, remembered, logprobs;
    /* logit rows after the n_logits: prompt rows whose log probability is wanted */
    int32_t n_prompt_logits;
    int32_t n_asked; /* tokens, of the segment that asks for most, to report beside the chosen */
    struct sv_load load;     /* what the width policy expects of it */
    struct sv_plan_seg *seg; /* (max_sequences) decode segments first, then prefill chunks */
};

/* Pure host code: no device, no allocation after open. */
struct sv_sched {
    int32_t n_slots, prefill_rows; /* prefill rows a step may carry */
    int32_t block;                 /* rows a drafting segment has; 1 = no device drafter */
    struct sv_policy *policy;      /* chooses widths; NULL = every sequence has its own */
    struct sv_seq **slot;          /* (n_slots) running sequences */
    bool *new_slot;                /* (n_slots) seated since the last fill */
    struct sv_seq *head, *tail;    /* all unfinished sequences by submission */
    int32_t n_unfinished;
    int64_t n_preemptions;
    double usual_answer;                   /* tokens of an answer, lately, */
    double usual_prompt;                   /* and of its prompt those that were computed */
    int64_t n_cache_queries, n_cache_hits; /* prompt tokens looked up and found */
    void (*before_preempt)(void *user);    /* a sequence is about to lose its pages; may be NULL */
    void *user;
};
void sv_sched_push(struct sv_sched *s, struct sv_seq *seq);
/* Seats waiting sequences, backs what the next step may write, chooses its segments and rows. False
 * and nothing planned when pages are short and a step is in flight: read that one, then plan again.
 */
bool sv_sched_plan(struct sv_sched *s, struct sv_cache *cache, struct sv_plan *plan,
                   bool in_flight);
/* The draft's context K/V of a seated sequence will lack positions >= from. */
void sv_sched_lacks(struct sv_cache *cache, struct sv_seq *q, int32_t from);
/* Takes a sequence off its slot: pages back, seat free. Its tokens stay. */
void sv_sched_unseat(struct sv_sched *s, struct sv_cache *cache, struct sv_seq *seq);

/* ---------------------------------------------------------------- batch */

struct sv_i32_pair {
    int32_t *host, *dev;
};
/* n of each, by themselves: sv_dev_host_free and sv_dev_free end them, also after an error. */
int sv_i32_pair_open(struct sv_i32_pair *p, struct sv_dev *dev, size_t n, struct sv_err *err);
/* Host arrays and their device mirror; one upload a step carries all pairs. There are two sets of
 * host arrays: while a step is in flight the next one is filled. */
struct sv_batch {
    int32_t max_rows, max_segs, max_draft_rows, out_stride;
    struct sv_i32_pair row_ids, row_seg, seg_row0, seg_slot, seg_kind, seg_logit0, logit_row;
    struct sv_i32_pair forced_len; /* only read while an acceptance profile is simulated */
    struct sv_i32_pair d_row_seg, d_seg_row0, d_seg_slot, d_seg_kind, d_out_row, d_out_index;
    int32_t *host_block, *dev_block; /* what the pairs point into */
    size_t block_words;
    /* device only */
    int32_t *seg_base, *d_seg_base, *d_row_ids, *chosen, *sample_slot, *sample_pos;
    /* results: n_commit, n_emit (max_segs), out_tokens (max_segs, out_stride), share
     * (max_draft_rows) floats */
    struct sv_i32_pair n_commit, n_emit, out_tokens, share;
    int32_t *host_result, *dev_result;
    size_t result_words;
    struct sv_i32_pair *up[16], *down[4]; /* the pairs above */
    int32_t n_up, n_down;
    int32_t use; /* which set the host pointers show */
};
int sv_batch_open(struct sv_batch *b, struct sv_dev *dev, int32_t max_rows, int32_t max_segs,
                  int32_t max_draft_rows, struct sv_err *err);
void sv_batch_close(struct sv_batch *b, struct sv_dev *dev);
/* Points the host arrays at set 0 or 1. */
void sv_batch_use(struct sv_batch *b, int32_t set);
/* Fills what lies between the plan's counts and what the device is told. */
void sv_batch_pad(struct sv_batch *b, const struct sv_plan *p);
/* The next larger number of rows that has a graph, at most `most`. */
int32_t sv_batch_bucket(int32_t n, int32_t most);

/* ---------------------------------------------------------------- logits */

/* asked.c: log probabilities of tokens that requests name; opened by the first that does. */
struct sv_asked {
    struct sv_logit_rules *rules; /* device, (1) the token's own number alone */
    /* (2, n_asked, rows of the step) tokens; then 0, or -1 where a row has fewer */
    int32_t *host, *dev;
    struct sv_logprob_row *dev_rows, *host_rows; /* (n_asked, rows of the step) */
};
struct sv_engine;
int sv_asked_open(struct sv_engine *e, struct sv_err *err); /* at a submit; again is fine */
void sv_asked_close(struct sv_asked *a, struct sv_dev *dev);
void sv_asked_plan(struct sv_engine *e); /* once n_prompt_logits are known, */
void sv_asked_fill(struct sv_engine *e); /* and whose they are */
/* Of logit rows [i, i + n), whose logits are there. */
void sv_asked_report(struct sv_engine *e, int32_t i, int32_t n);
void sv_asked_fetch(struct sv_engine *e);
/* Of logit row i once it is fetched: the first one's; the others' are *ld behind each other. */
const struct sv_logprob_row *sv_asked_row(const struct sv_engine *e, int32_t i, int32_t *ld);

/* logits.c: logit rules and log probabilities, device-resident by slot. */
struct sv_logits {
    int32_t vocab, chunk; /* logit rows that exist at a time */
    int32_t history_stride;
    float *logits, *ruled;             /* device, (chunk, vocab): the model's; after the rules */
    uint32_t *counts;                  /* device, (chunk, vocab) zero between calls */
    int32_t *history;                  /* device, (n_slots, history_stride) */
    struct sv_logit_rules *slot_rules; /* device, (n_slots) */
    int32_t *bias_ids, *ban_ids;       /* device, (n_slots, SV_MAX_BIAS), (n_slots, SV_MAX_BAN) */
    int32_t *listed;                   /* device, (n_slots, SV_MAX_LISTED) */
    float *bias;
    struct sv_logprob_row *dev_rows, *host_rows; /* (max_rows) log probabilities by logit row */
    int32_t *host_next; /* (max_rows) the prompt's next token of a prompt logit row */
    int32_t *prompt_slot, *prompt_index; /* host, (max_rows) whose, and which token of the prompt */
    struct sv_asked asked;
};
int sv_logits_open(struct sv_logits *lg, struct sv_dev *dev, int32_t n_slots, int32_t n_positions,
                   int32_t vocab, int32_t chunk, int32_t max_rows, struct sv_err *err);
void sv_logits_close(struct sv_logits *lg, struct sv_dev *dev);
/* The lines of the step it stands for: */
void sv_logits_plan(struct sv_engine *e);
void sv_logits_seat(struct sv_engine *e,
                    int32_t slot); /* a sequence took the slot: before the upload */
void sv_logits_fill(struct sv_engine *e);
void sv_logits_choose(struct sv_engine *e);   /* verify, when plan.sampled */
void sv_logits_remember(struct sv_engine *e); /* commit */
void sv_logits_fetch(struct sv_engine *e);
/* advance: emitted token n of segment s has been appended; all prompt rows of the step. */
void sv_logits_take(struct sv_engine *e, int32_t s, int32_t n);
void sv_logits_take_prompts(struct sv_engine *e);

/* ---------------------------------------------------------------- taps held back */

/* held.c: taps of plain steps under the width policy, observed many at a time. */
struct sv_held_row {
    uint64_t request; /* whose it is; 0: nobody's */
    int32_t slot, base;
    int32_t at; /* where its taps lie; of entries behind the last: a free place */
};
struct sv_held {
    int32_t cap_rows; /* 0: never */
    int32_t n_rows;   /* held, */
    int32_t n_dead;   /* some of them nobody's any more */
    bool now;         /* the plan at work adds to them, */
    int32_t n_more;   /* so many rows */
    uint64_t one_in;  /* of those who run: a sample, see held.c */
    bool pays_alone;  /* one sequence with nobody else would draft, as far as was known lately */
    uint32_t n_plans;
    size_t row_bytes;
    double row_us;   /* to make context K/V of one row */
    int64_t work_ns; /* spent on that so far */
    void *taps;      /* device, (cap_rows, n_taps * hidden) act */
    /* (max_rows) where the taps of the plan at work go; -1: nobody wants them */
    struct sv_i32_pair tap_row;
    struct sv_held_row *row; /* host, (cap_rows), in the order of their coming */
    int32_t chunk_rows;
    void *chunk; /* device, (chunk_rows, n_taps * hidden): worked off together, one segment a row */
    struct sv_i32_pair row_seg, seg_row0, seg_slot, seg_base, n_commit;
};
struct sv_engine;
int sv_held_open(struct sv_held *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows,
                 int64_t n_positions, size_t row_bytes, struct sv_err *err);
void sv_held_close(struct sv_held *h, struct sv_dev *dev);
void sv_held_plan(struct sv_engine *e); /* before the plan at work is enqueued */
void sv_held_keep(struct sv_engine *e); /* its taps are there */
/* What a row takes to be worked off: before anything runs, over the pages of the first n_seqs
 * slots, below n_positions. */
void sv_held_measure(struct sv_engine *e, int32_t n_seqs, int32_t n_positions);
void sv_held_flush(
    struct sv_engine *e); /* before a sequence gives its pages back, to come back to them */
void sv_held_end(struct sv_engine *e, struct sv_seq *q); /* before it gives them back for good */

/* ---------------------------------------------------------------- rows cut after drafting */

/* What the host waits for between the two passes; 0 and 1 mark the ends of steps. */
enum { SV_CUT_MARK = 2 };

/* cut.c: what the drafter proposed and how sure it is, read before the target's pass is
 * enqueued. */
struct sv_cut {
    int32_t cap;  /* proposals, at most; 0: there is no drafter */
    int32_t *ids; /* host, (cap) proposals of the step at work */
    bool shares;  /* the drafter is asked how sure it is */
};
int sv_cut_open(struct sv_cut *c, struct sv_dev *dev, int32_t cap, struct sv_err *err);
void sv_cut_close(struct sv_cut *c, struct sv_dev *dev);
/* A drafter on the host proposes n tokens for a sequence. */
void sv_cut_ask_host(struct sv_engine *e, const struct sv_seq *q, int32_t n, int32_t *ids);
/* How sure the drafter was of its proposals in the step at work, once that is on the host. */
const float *sv_cut_shares(struct sv_engine *e);
/* The drafting pass of the plan at work is enqueued: waits for it and takes rows off the plan. */
int sv_cut_plan(struct sv_engine *e, struct sv_err *err);

/* ---------------------------------------------------------------- masks of grammars */

/* masks.c: which tokens may come, row by row, for sequences under a grammar. One set of host
 * arrays: a step with masks is read at once. host has one mask more, of scratch. */
struct sv_masks {
    int32_t n_words, cap;   /* words of a mask; masks */
    int32_t n;              /* made for the step at work */
    struct sv_i32_pair row; /* (cap) by logit row: its mask; -1: none */
    uint32_t *host, *dev;   /* (cap, n_words) */
};
int sv_masks_open(struct sv_masks *k, struct sv_dev *dev, int32_t vocab, int32_t max_logits,
                  struct sv_err *err);
void sv_masks_close(struct sv_masks *k, struct sv_dev *dev);
/* Rows of a verify segment, n_drafts drafts behind its anchor, up to the first one that its grammar
 * forbids; 1 + n_drafts without a grammar. */
int32_t sv_masks_legal(const struct sv_engine *e, const struct sv_plan_seg *g, int32_t n_drafts);
/* Whether a token ends the answer: as a draft it is left to the row before it. */
bool sv_masks_is_end(const struct sv_seq *q, int32_t id);
/* What may come where the matcher stands, n drafts behind the last token. Before masks are made;
 * until the next call. */
const uint32_t *sv_masks_try(struct sv_engine *e, const struct sv_seq *q, const int32_t *drafts,
                             int32_t n);
/* Makes the masks of a segment under a grammar, whose drafts are legal; returns for how many of its
 * logit rows there are some, or 1. */
int32_t sv_masks_make(struct sv_engine *e, struct sv_plan_seg *g);
/* Which row has which, on their way to the device. */
void sv_masks_fill(struct sv_engine *e);

/* ---------------------------------------------------------------- drafts steered by grammars */

/* steer.c: legal tokens in place of drafts that are not. */
struct sv_steer {
    int32_t n_slots;
    struct sv_i32_pair up;   /* rows (n_slots), where their tokens begin (n_slots + 1), tokens */
    struct sv_i32_pair down; /* (n_slots) tokens, then as many floats: their shares */
    float *logits;           /* device */
    int32_t *at;   /* (n_slots) by segment: drafts before it have been seen to; -1: all have */
    int32_t *asks; /* (n_slots) whose rows they are */
};
int sv_steer_open(struct sv_steer *t, struct sv_dev *dev, int32_t n_slots, struct sv_err *err);
void sv_steer_close(struct sv_steer *t, struct sv_dev *dev);
/* The drafts of the step at work are on the host. */
int sv_steer_plan(struct sv_engine *e, struct sv_err *err);

/* ---------------------------------------------------------------- the engine */

/* A step that is enqueued and not read yet. Its index is that of its host arrays and of its
 * mark. */
struct sv_flight {
    struct sv_plan plan;
    int64_t start_us;
};

/* Where a step's time goes on the host. Copies and launches are calls there; the device works on
 * them later. */
enum sv_phase {
    SV_PHASE_PLAN,
    SV_PHASE_FILL,   /* host arrays and their upload */
    SV_PHASE_DRAFT,  /* launching the drafting pass */
    SV_PHASE_TARGET, /* launching the target's */
    SV_PHASE_BACK,   /* the download and its mark */
    SV_PHASE_WAIT,
    SV_PHASE_ADVANCE,
    SV_PHASES
};

struct sv_engine {
    struct sv_dev *dev;
    void (*on_progress)(void *user, enum sv_open_stage stage, double share); /* while it opens */
    void *progress_user;
    int64_t n_loaded, n_to_load; /* bytes of weights */
    struct sv_model model;
    struct sv_drafter *drafter; /* NULL = none */
    struct sv_tokenizer *tok;   /* NULL when the directory has none */
    struct sv_enc_scratch *scratch;
    size_t max_token_bytes;
    struct sv_cache cache;
    struct sv_sched sched;
    struct sv_plan plan; /* at work: being planned and enqueued, or being read */
    struct sv_flight flight[2];
    int32_t first_flight, n_flight;
    int32_t depth;     /* steps that may be in flight when a call of the step ends: 0 or 1 */
    bool pads;         /* counts are padded and passes replayed */
    int64_t landed_us; /* when the last step was read */
    struct sv_batch batch;
    struct sv_acts acts;
    void *taps; /* (max_rows, n_taps * hidden) act */
    struct sv_held held;
    struct sv_cut cut;
    struct sv_masks masks;
    struct sv_steer steer;
    struct sv_vocab *vocab; /* for grammars; NULL until the first one comes */
    void *out, *draft_out;  /* (max_rows, hidden), (max_logits, hidden) act: final-norm rows */
    struct sv_logits logits;
    int32_t *slot_len, *slot_anchor;   /* device, (n_slots) */
    struct sv_sampling *slot_sampling; /* device, (n_slots) */
    int32_t context, width;
    struct sv_policy *policy; /* NULL = fixed widths */
    uint64_t next_id;
    struct sv_arena arena; /* engine life time */
    struct sv_engine_stats stats;
    struct sv_read_bytes target_reads, draft_reads; /* of a pass */
    int64_t phase_ns[SV_PHASES];
    struct sv_accept_stats accept;
    void (*on_step)(
        void *user); /* benchmarks: a step was read, its plan is at work; NULL = nobody looks */
    void *step_user;
    struct sv_gen_config gen; /* checked at open; what a server offers as its defaults */
    const struct sv_accept_profile *profile; /* benchmarks: accept lengths are drawn; NULL = real */
    struct sv_err failed; /* the device did, with a code then: nothing runs any more */
    bool closing;         /* its last events are told: nothing new is taken */
};

/* memory.c: what decides the size of the pools. Bytes; n_total 0: the device shares the host's
 * memory. */
struct sv_memory_ask {
    int64_t n_free, n_total, ram_bytes;
    int64_t later_bytes; /* taken after the pools */
    double share;        /* of n_total; 0 = 0.9 */
    int64_t cache_bytes; /* asked for by the user; 0 = not */
    int64_t page_bytes;  /* one page of every group */
    int32_t page_size, n_slots, context;
    int32_t n_positions; /* a sequence may need pages for: more than the context */
    bool keep_prefixes;
};
/* Pages of every pool. Refuses, and says what would fit, when one full sequence does not. */
int sv_memory_pages(const struct sv_memory_ask *a, int32_t *n_pages, struct sv_err *err);
/* Before weights are loaded onto a device with memory of its own: do they fit at all? */
int sv_memory_check_weights(struct sv_dev *dev, const char *what, int64_t n_bytes,
                            struct sv_err *err);
/* What the device has, once weights and buffers are in place. */
void sv_memory_ask_device(struct sv_memory_ask *a, struct sv_engine *e, int32_t max_rows);
/* What this process allocated on the device, target_bytes of it for the target's weights: what the
 * backend counted, where it counts (sv_dev_held), so that the rows add up to all of it. On the
 * host: weights as published, and the pools. */
enum { SV_MEMORY_ROWS = SV_MAX_GROUPS + 6 };
struct sv_memory_row {
    int64_t n_bytes;
    char name[40], note[96];
};
int32_t sv_memory_table(const struct sv_engine *e, int64_t target_bytes,
                        struct sv_memory_row row[SV_MEMORY_ROWS]);
void sv_memory_log(const struct sv_engine *e, int64_t target_bytes);

/* What tests and benchmarks set and options do not. Zeros: as a user gets it. */
struct sv_engine_tuning {
    int32_t cache_pages; /* pages of every pool; 0 = by the options */
    /* the directories hold config.json alone: weights are made on the device */
    bool random_weights;
    bool run_ahead, pad; /* also on a device without graphs */
};

/* engine.c: opts as in salvo.h; drafter, when given, is used instead of opts->draft_dir (tests,
 * bench) and owned by the engine from then on, also when opening fails. */
int sv_engine_open(struct sv_engine **e, const struct sv_engine_options *opts,
                   struct sv_drafter *drafter, struct sv_err *err);
int sv_engine_open_tuned(struct sv_engine **e, const struct sv_engine_options *opts,
                         const struct sv_engine_tuning *tuning, struct sv_drafter *drafter,
                         struct sv_err *err);
void sv_engine_close(struct sv_engine *e);
int sv_engine_submit(struct sv_engine *e, const struct sv_request *r, uint64_t *id,
                     struct sv_err *err);

/* step.c: THE STEP. The engine's state advances by one target forward; events wait in the
 * sequences. */
int sv_engine_step(struct sv_engine *e, struct sv_err *err);
/* The error of an engine whose device has failed. */
int sv_engine_failed(const struct sv_engine *e, struct sv_err *err);
/* The rows of the plan at work, as kernels see them. */
struct sv_rows sv_engine_rows(const struct sv_engine *e);
/* Its device part, fill to fetch, for the plan as it stands and nothing in flight; also what the
 * width policy measures. */
int sv_engine_run_plan(struct sv_engine *e, struct sv_err *err);
/* Reads the steps in flight. */
int sv_engine_settle(struct sv_engine *e, struct sv_err *err);
/* calibrate.c: measures what steps cost, through the step on scratch sequences. Before anything was
 * submitted. */
int sv_engine_calibrate(struct sv_engine *e, struct sv_policy *policy, struct sv_err *err);
/* Tells who opens the engine how far it is (engine.c). */
void sv_engine_progress(struct sv_engine *e, enum sv_open_stage stage, double share);
/* Delivers events and frees finished sequences; outside the step, so callbacks may allocate. */
void sv_engine_deliver(struct sv_engine *e);

#endif
