/*
 * engine.h - front header of src/engine: the engine, its step, and the parts it is made of.
 *
 * Called by serve and cli (through salvo.h or directly) and by tests. An engine is driven by one
 * thread. The files in the order in which a request passes them: api.c, engine.c (submit), seq.c,
 * sched.c, step.c with fill.c, launch.c, advance.c, batch.c, logits.c, deferred_kv.c, prune.c and
 * token_mask.c; and at open: engine.c, memory.c, calibrate.c. Host state (sequences, plan) and
 * device state (lengths, anchors, tables) meet in two places only: fill uploads, fetch downloads.
 * Must not: allocate inside a step, decide tokens on the host, or keep a second path for plain
 * decoding - it is the same step with width 1.
 */
#ifndef SV_ENGINE_H
#define SV_ENGINE_H

#include "cache/cache.h"
#include "engine/batch.h"
#include "engine/draft_repair.h"
#include "engine/deferred_kv.h"
#include "engine/images.h"
#include "engine/logits.h"
#include "engine/memory.h"
#include "engine/plan.h"
#include "engine/plan_record.h"
#include "engine/prune.h"
#include "engine/ranks.h"
#include "engine/sched.h"
#include "engine/seq.h"
#include "engine/step.h"
#include "engine/token_mask.h"
#include "grammar/grammar.h"
#include "model/model.h"
#include "policy/policy.h"
#include "salvo.h"
#include "spec/spec.h"
#include "token/token.h"

struct sv_engine {
    struct sv_dev *dev;
    struct sv_rank_group *ranks; /* NULL: one rank, and no record */
    void (*on_progress)(void *user, enum sv_open_stage stage, double share); /* while opening */
    void *progress_user;
    int64_t n_loaded, n_to_load; /* bytes of weights */
    struct sv_model model;
    struct sv_drafter *drafter; /* &none without a draft */
    struct sv_drafter none;
    struct sv_tokenizer *tok; /* NULL when the directory has none */
    struct sv_enc_scratch *scratch;
    size_t max_token_bytes;
    struct sv_cache cache;
    struct sv_sched sched;
    struct sv_plan plan;      /* current plan: being made and enqueued, or being read */
    struct sv_plan flight[2]; /* plans in flight, not read yet, by set of host arrays and mark */
    int32_t first_flight, n_flight;
    int32_t depth;        /* steps that may be in flight when a call of the step ends: 0 or 1 */
    bool pads;            /* counts are padded and passes replayed as graphs */
    int64_t last_read_us; /* when a step was last read */
    struct sv_batch batch;
    struct sv_acts acts;
    void *taps; /* (max_rows, n_taps * hidden) act */
    struct sv_deferred deferred;
    struct sv_prune prune;
    struct sv_token_masks token_masks;
    struct sv_image_intake images;
    struct sv_draft_repair repair;
    struct sv_vocab *vocab; /* for grammars; NULL before the first one */
    void *out, *draft_out;  /* (max_rows, hidden), (max_logits, hidden) act: final-norm rows */
    struct sv_logits logits;
    int32_t *slot_len, *slot_anchor; /* device, (n_slots) */
    int32_t *accept_len;             /* device, (n_slots), by segment; NULL: no tuning.simulates */
    struct sv_sampling *slot_sampling; /* device, (n_slots) */
    int32_t context, width;
    struct sv_policy *policy; /* NULL = fixed widths */
    uint64_t next_id;
    struct sv_arena arena; /* of the engine's lifetime */
    struct sv_engine_stats stats;
    struct sv_reads target_reads, draft_reads; /* bytes read by a pass */
    uint32_t n_chosen; /* experts chosen by the target's passes up to the last one read */
    int64_t phase_ns[SV_PHASES], lap_ns; /* totals; the end of the last phase (sv_step_lap) */
    struct sv_accept_stats accept;
    const struct sv_step_hooks *hooks; /* set by benchmarks between steps; NULL = none */
    struct sv_err failed; /* has a code once the device failed: nothing runs any more */
    bool closing;         /* delivering the last events: no new requests */
};

/* Settings for tests and benchmarks that have no option. All zeros: the defaults. */
struct sv_engine_tuning {
    int32_t cache_pages; /* pages of every pool; 0 = by the options */
    /* the directories hold config.json alone: weights are made on the device */
    bool random_weights;
    bool simulates;      /* hooks may be set, which draw accept lengths */
    bool run_ahead, pad; /* even on a device without graphs */
    struct sv_rank_fault_at rank_fault;
    int64_t rank_timeout_us;        /* 0 = by the options */
    bool compare_ranks;             /* an error if ranks have different bits after a pass */
    bool one_gpu;                   /* all ranks on one GPU, eagerly */
    const struct sv_replay *replay; /* a record will be replayed; NULL */
};

/* engine.c: opts as in salvo.h; drafter, when given, is used instead of opts->draft_dir (tests,
 * bench) and owned by the engine from then on, also when opening fails. */
int sv_engine_open(struct sv_engine **e, const struct sv_engine_options *opts,
                   struct sv_drafter *drafter, struct sv_err *err);
int sv_engine_open_tuned(struct sv_engine **e, const struct sv_engine_options *opts,
                         const struct sv_engine_tuning *tuning, struct sv_drafter *drafter,
                         struct sv_err *err);
/* Opens the engine of a rank other than the first. The group, with the rank's own world, is
 * borrowed until the engine is closed. */
int sv_engine_open_follower(struct sv_engine **e, const struct sv_engine_options *opts,
                            const struct sv_engine_tuning *tuning, struct sv_rank_group *group,
                            struct sv_err *err);
/* Runs such an engine in a process of its own until rank 0 closes. */
int sv_engine_follow(const struct sv_engine_options *opts, struct sv_err *err);
void sv_engine_close(struct sv_engine *e);
int sv_engine_submit(struct sv_engine *e, const struct sv_request *r, uint64_t *id,
                     struct sv_err *err);
/* How many tokens of a request's prompt, given as ids, the prefix cache has at the moment, at most
 * up to the first image, whose key is not known before it is prepared. Callable from any thread
 * while the engine is open. */
int32_t sv_engine_known(const struct sv_engine *e, const struct sv_request *r);

/* Replaces the drafter, NULL = none (benchmarks). No step may be in flight. */
void sv_engine_set_drafter(struct sv_engine *e, struct sv_drafter *d);

/* step.c: THE STEP. Advances the engine's state by one target forward; events wait in the
 * sequences. A plan that is `given` is run unchanged. */
int sv_engine_step(struct sv_engine *e, struct sv_err *err);
/* The error of an engine whose device has failed. */
int sv_engine_failed(const struct sv_engine *e, struct sv_err *err);
/* Reads the steps in flight. */
int sv_engine_settle(struct sv_engine *e, struct sv_err *err);
/* calibrate.c: measures step costs, through the step on scratch sequences. Before the first submit.
 */
int sv_engine_calibrate(struct sv_engine *e, struct sv_policy *policy, struct sv_err *err);
/* Reports the progress of opening to the caller (engine.c). */
void sv_engine_progress(struct sv_engine *e, enum sv_open_stage stage, double share);
/* Delivers events and frees finished sequences; outside the step, so callbacks may allocate. */
void sv_engine_deliver(struct sv_engine *e);

#endif
