/*
 * run.h - drives an engine over a list of prompts for the engine and spec tests.
 */
#ifndef SV_TEST_RUN_H
#define SV_TEST_RUN_H

#include "engine/engine.h"

struct run_case {
    int32_t *prompt;
    int32_t n_prompt, max_tokens;
    struct sv_request req; /* prompt fields are filled by run_all */
    int32_t cancel_at;     /* tokens of the answer, at which the request is canceled; 0: never */
};
struct run_out {
    int32_t *tokens;
    int32_t n_tokens;
    uint16_t *accept;
    int32_t n_steps, n_cached, n_preemptions;
    int32_t n_prompt;    /* rows of images included */
    uint32_t refused_at; /* where drafts were refused: bits, positions mod 16 */
    char *text;
    size_t n_text;
    enum sv_finish_reason finish;
    int32_t stop_id, stop_index;
    uint64_t id;
    struct sv_logprob_row *lp,
        *prompt_lp; /* (n_tokens), (n_prompt) copied flat; NULL when not requested */
    float *requested, *prompt_requested; /* the same, (.., n_logprob_token_ids) of the request */
};

/* Sums of a request's events; run_on_event takes them, with one of these as the request's
 * user. */
struct run_events {
    int32_t n_tokens, n_ends;
    enum sv_finish_reason finish;
    char message[480];
};
void run_on_event(void *events, const struct sv_event *ev);

/* n random prompts of vocabulary [3, vocab): lengths from 1 to max_len, fixed by the seed. */
struct run_case *run_cases(int32_t n, int32_t vocab, int32_t max_len, int32_t max_tokens,
                           uint64_t seed);
void run_cases_free(struct run_case *c, int32_t n);
/* n, or fewer with SALVO_TEST_QUICK, where each step is expensive, and where a part is enough. */
int32_t run_few(int32_t n);
/* Of a table of arrangements, three of four where a part is enough (sv_test_brief). */
bool run_left_out(size_t index);
/* Skips the test on a GPU: for what no GPU has. */
void run_needs_cpu(void);
/* Options without a device get SALVO_TEST_DEVICE: cpu (the default), cuda, cuda-portable,
 * cuda-eager, cuda-two-shots. */
void run_device(struct sv_engine_options *o);
/* Ranks have a GPU each, or play on one. */
bool run_has_gpus(int32_t n);
/* Engines that are opened from now on have these caches, activations, and this context (0: the
 * model's): a CPU clears caches for all of it, and buffers for a chunk that no prompts fill. */
void run_kv_dtype(enum sv_kv_type target, enum sv_kv_type draft);
void run_activations(enum sv_activations type);
void run_context(int32_t n);
struct sv_engine *run_open(const struct sv_engine_options *o, struct sv_drafter *drafter);
struct sv_engine *run_open_tuned(const struct sv_engine_options *o,
                                 const struct sv_engine_tuning *t, struct sv_drafter *drafter);

/* What runs: a directory each for target and draft. */
struct run_pair {
    const char *target, *draft;
};
/* gpt-oss with a random draft: sinks, and a window shorter than the sequences. */
struct run_pair run_gptoss(void);
struct run_arrangement {
    int drafter; /* -1 none, 0..3 enum sv_fake, 4 dflash */
    int32_t batch, page, threads, chunk, width;
};
/* What fakes know: the answers, to requests that are numbered from 1 in the order of the cases. */
struct run_truth {
    const struct run_case *c;
    const struct run_out *ref;
};
/* Fakes draft blocks of RUN_BLOCK of a vocabulary of RUN_VOCAB. With more than one thread steps run
 * ahead and are padded, as on a GPU. */
enum { RUN_BLOCK = 16, RUN_VOCAB = 300 };
struct sv_drafter *run_fake(enum sv_fake kind, const struct run_truth *t);
struct sv_engine *run_open_as(const struct run_pair *pair, const struct run_arrangement *a,
                              enum sv_isa isa, enum sv_data_type dtype, const struct run_truth *t);
/* The same divided among ranks, whose bits are compared after each pass. */
struct run_ranks {
    int32_t n;
    bool ep, dp; /* experts whole; attention of a sequence on one rank */
};
struct sv_engine *run_open_ranks(const struct run_pair *pair, const struct run_arrangement *a,
                                 enum sv_isa isa, enum sv_data_type dtype,
                                 const struct run_truth *t, struct run_ranks ranks);

/* Submits all, steps until idle, checks that the caches end empty. Fails the test on any error. */
struct run_out *run_all(struct sv_engine *e, const struct run_case *c, int32_t n);
void run_out_free(struct run_out *r, int32_t n);
/* Same tokens, log probabilities and finish reasons, or the test fails naming what and where. */
void run_same(const struct run_out *a, const struct run_out *b, int32_t n, const char *what);
/* Also the accept length of every step. */
void run_same_steps(const struct run_out *a, const struct run_out *b, int32_t n, const char *what);
/* A copy kept for the process's life. */
const char *run_keep(const char *text);
/* Directory below the repository root, kept for the process's life. */
const char *run_dir(const char *relative);

/* What steps cost, whatever this machine found: in so small a model a drafting pass can look like
 * nothing. */
void run_set_costs(struct sv_policy *p);

#endif
