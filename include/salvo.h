/*
 * salvo.h - the public C interface of libsalvo: load a target and a DFlash draft, submit requests,
 * step.
 *
 * An engine is used by one thread. Text and token pointers in events are valid during the
 * callback, which may submit and cancel requests and read statistics, but not step or close.
 * Functions that can fail return a negative code (sv_code_name gives its name) and write a message
 * that names the file, field or position to err (err_size bytes; may be NULL with 0).
 *
 *     struct sv_engine_options o = sv_default_options();
 *     o.target_dir = "models/demo/target";
 *     o.draft_dir = "models/demo/draft";
 *     struct sv_engine *e;
 *     if (sv_open_engine(&e, &o, err, sizeof err) < 0) ...
 *     struct sv_request r = sv_default_request(e);
 *     r.prompt = "Hello"; r.on_event = print; r.max_tokens = 64;
 *     sv_submit_request(e, &r, NULL, err, sizeof err);
 *     while (sv_step_engine(e, err, sizeof err) > 0) {}
 *     sv_close_engine(e);
 */
#ifndef SALVO_H
#define SALVO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "salvo_tuning.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SALVO_VERSION "0.1.0"

struct sv_engine;

enum sv_data_type { SV_TYPE_AUTO, SV_TYPE_F32, SV_TYPE_BF16 };
enum sv_kv_type { SV_KV_AUTO, SV_KV_FP8 };

/* The stages of opening an engine, in order. */
enum sv_open_stage {
    SV_OPEN_WEIGHTS, /* weights of target and draft are copied to the device; mapped on the CPU */
    SV_OPEN_GRAPHS,  /* GPUs: CUDA graphs are captured */
    SV_OPEN_COSTS    /* the width policy measures steps */
};

struct sv_engine_options {
    const char *target_dir; /* Hugging Face directory; required */
    const char *draft_dir;  /* DFlash draft directory; NULL = plain decoding */
    const char *device;     /* "cpu", "cuda", "hip"; NULL = the best available but hip */
    struct sv_tuning tuning;
    int32_t gpu;           /* which GPU */
    int32_t tp;            /* ranks that share the model (docs/parallel.md), threads here. 0 = 1 */
    bool ep, dp_attention; /* expert parallelism; data-parallel attention */
    int32_t replica, replicas; /* the engine's index, and how many share RAM and GPUs; 0 = 1 */
    const char *record_plan;   /* file for plans and uploads, for salvo-bench replay; NULL */
    bool no_graphs;            /* GPUs: launch kernels one by one, without CUDA graphs */
    /* GPUs, and ranks: seconds without progress after which the device has failed; 0 = 60, -1 =
     * no limit. A failed GPU cannot be closed: end the process with _exit */
    int32_t device_timeout;
    /* GPUs: share of the device's memory to use, weights included; 0 = at most 0.9 */
    double gpu_memory;
    bool copy_weights; /* CPU: read, not mapped, so files may be overwritten; GPUs always copy */
    enum sv_data_type dtype; /* AUTO = bf16 when the weights are bf16, else f32 */
    /* Keys and values in the cache: AUTO = the compute type, FP8 = e4m3 */
    enum sv_kv_type kv_dtype, draft_kv_dtype;
    int32_t n_threads;     /* 0 = all processors */
    int32_t max_sequences; /* running at once; others wait. 0 = 1 */
    int32_t context;       /* longest sequence in tokens; 0 = the model's, at most 8192 */
    int32_t page_size;     /* positions per cache page; 0 = 16 */
    /* K/V pages of target and draft together; 0 = all sequences at full length, at most 40 % of the
     * RAM (GPUs: four times that, limited by gpu_memory). Unused pages keep cached prefixes */
    int64_t cache_mib;
    int32_t prefill_chunk; /* prompt rows per step; 0 = 512, on a GPU 2048 */
    int32_t width;   /* verify width, anchor included; 0 = the draft's block, 1 = no drafting */
    bool auto_width; /* let the width policy choose, at most `width`, never slower than 1 */
    bool no_prefix_cache; /* do not keep pages of finished sequences for later prompts */
    /* Called while the engine opens: how much of a stage is done, 0 to 1. May be NULL. */
    void (*on_progress)(void *user, enum sv_open_stage stage, double share);
    void *progress_user;
};
struct sv_engine_options sv_default_options(void);

int sv_open_engine(struct sv_engine **engine, const struct sv_engine_options *options, char *err,
                   size_t err_size);
void sv_close_engine(struct sv_engine *engine); /* unfinished requests get a canceled event first */

enum sv_finish_reason {
    SV_FINISH_NONE,
    SV_FINISH_STOP,   /* an end token, a stop id or a stop string */
    SV_FINISH_LENGTH, /* max_tokens or the context's end */
    SV_FINISH_CANCELED,
    SV_FINISH_ERROR
};
const char *sv_finish_name(enum sv_finish_reason reason); /* "stop", "length", ... */

/* Log probabilities of one token under the model's own distribution (temperature 1, no filters or
 * penalties), and of the most probable tokens at its position, best first. */
struct sv_logprob {
    float logprob;
    int32_t rank; /* 1 = the most probable */
    int32_t n_top;
    const int32_t *top_ids;
    const float *top_logprobs;
    int32_t n_requested; /* the request's logprob_token_ids, in their order */
    const int32_t *requested_ids;
    const float *requested_logprobs;
};

/* A step's output for one request. The last event of a request has a finish reason. */
struct sv_event {
    uint64_t request;
    const int32_t *tokens; /* new token ids, n_tokens of them (0 in a bare finish) */
    int32_t n_tokens;
    /* the first n_drafted are accepted drafts; the rest are the target's own */
    int32_t n_drafted;
    const struct sv_logprob *logprobs; /* (n_tokens) when the request asked for them, else NULL */
    /* (n_prompt_tokens) once, with the first tokens, if requested; entry 0 has only logprob 0 */
    const struct sv_logprob *prompt_logprobs;
    /* new text, complete code points only; held back while it may begin a stop string */
    const char *text;
    size_t n_bytes;
    enum sv_finish_reason finish;
    const char *message; /* the error, when finish is SV_FINISH_ERROR */
    int32_t stop_id;     /* the token that ended the answer; else -1 */
    /* index of the stop string that ended the answer; for stop_search n_stop plus the expression's
     * index; else -1 */
    int32_t stop_index;
};

/* Constraints on an answer (docs/structured-output.md). A grammar may be used by many requests. */
enum sv_grammar_kind {
    SV_GRAMMAR_NONE,
    SV_GRAMMAR_JSON,   /* any JSON object; the text is not used */
    SV_GRAMMAR_SCHEMA, /* JSON that satisfies a JSON schema */
    SV_GRAMMAR_REGEX,  /* the whole answer matches a regular expression */
    SV_GRAMMAR_GBNF,   /* a grammar in llama.cpp's GBNF */
    SV_GRAMMAR_CHOICE  /* one of the texts in a JSON array */
};
struct sv_grammar;
/* text_bytes 0 = strlen. Errors name the position in the text. */
int sv_make_grammar(struct sv_grammar **grammar, enum sv_grammar_kind kind, const char *text,
                    size_t text_bytes, char *err, size_t err_size);
void sv_free_grammar(struct sv_grammar *grammar); /* NULL is fine; requests that have it keep it */

/* Regular expressions that end an answer when its text so far contains a match; at most 16. */
struct sv_search;
int sv_make_search(struct sv_search **search, const char *const *expressions, size_t n, char *err,
                   size_t err_size);
void sv_free_search(struct sv_search *search); /* NULL is fine; requests that have it keep it */

struct sv_image {
    const uint8_t *rgb; /* 8 bits each, rows without padding */
    int32_t width, height;
};

struct sv_request {
    const char *prompt;  /* UTF-8 text, or NULL when ids are given */
    size_t prompt_bytes; /* 0 = strlen */
    bool no_special;     /* text: do not parse special tokens */
    bool no_add_special; /* text: add no beginning-of-sequence token (a chat template did) */
    const int32_t *prompt_ids;
    int32_t n_prompt_ids;
    /* In the order of their image tokens: the prompt has one for each image, whatever its rows */
    const struct sv_image *images;
    int32_t n_images;
    int32_t max_tokens;               /* 0 = up to the context's end */
    double temperature, top_p, min_p; /* 0 = greedy; 1 = off; 0 = off */
    int64_t top_k;                    /* 0 = off */
    uint64_t seed;
    const char *const *stop; /* stop strings; the text ends before the match */
    int32_t n_stop;
    bool include_stop;             /* keep the matched stop string in the text */
    struct sv_search *stop_search; /* searched after each token; the match stays in the text */
    const int32_t *stop_ids;       /* besides the model's end tokens */
    int32_t n_stop_ids;
    bool ignore_eos;
    bool show_special;        /* keep the text of special tokens ... */
    const int32_t *shown_ids; /* ... or of these only, at most 16 */
    int32_t n_shown_ids;
    int32_t min_tokens; /* no end token, stop id or stop string ends the answer before */
    double presence_penalty, frequency_penalty; /* [-2, 2], on tokens of the answer so far */
    double repetition_penalty; /* (0, 2], 1 or 0 = off; on tokens of prompt and answer */
    int32_t repetition_last_n; /* only the last n of these; 0 = all */
    const int32_t *bias_ids;   /* added to the logits of these tokens, at most 1024 */
    const float *bias;         /* [-100, 100] each */
    int32_t n_bias;
    const int32_t *bad_ids; /* forbidden sequences of tokens, each ended by -1 */
    int32_t n_bad_ids;
    const int32_t *allowed_ids; /* only these tokens; at most 2048 numbers with bad_ids */
    int32_t n_allowed_ids;      /* 0 = all */
    bool logprobs;              /* of each token of the answer */
    bool prompt_logprobs;       /* of the prompt's tokens */
    int32_t n_top_logprobs;     /* and of the most probable ones there, at most 20 */
    const int32_t
        *logprob_token_ids;      /* and of these; each costs about as much as the token's own */
    int32_t n_logprob_token_ids; /* at most 64 */
    enum sv_grammar_kind grammar_kind; /* a grammar given as text; NONE = none */
    const char *grammar_text;
    size_t grammar_bytes;       /* 0 = strlen */
    struct sv_grammar *grammar; /* or one of sv_make_grammar */
    int32_t width;              /* verify width of this request; 0 = the engine's */
    /* Only prefixes of requests with the same salt are reused, because the time of a prompt reveals
     * whether another began with the same text. For untrusted users: random, or a strong hash. */
    uint64_t cache_salt[2];
    void (*on_event)(void *user, const struct sv_event *event);
    void *user;
};
/* Greedy, without limits. */
struct sv_request sv_default_request(const struct sv_engine *engine);

/* Whether requests may have images (docs/images.md). *why: the reason if not; may be NULL. */
bool sv_engine_takes_images(const struct sv_engine *engine, const char **why);
/* Copies everything it needs. The id is unique within the engine. */
int sv_submit_request(struct sv_engine *engine, const struct sv_request *request, uint64_t *id,
                      char *err, size_t err_size);
/* The request gets its last event at the next step. Unknown ids are ignored. */
void sv_cancel_request(struct sv_engine *engine, uint64_t id);
/* Runs one step and delivers its events. Returns the number of unfinished requests, or a negative
 * code when the device failed (all running requests have had an error event). */
int sv_step_engine(struct sv_engine *engine, char *err, size_t err_size);

/* Empties the prefix cache. Running sequences keep their pages. */
void sv_flush_cache(struct sv_engine *engine);

/* Statistics of a request, available until its last event has been delivered. */
struct sv_request_stats {
    int32_t n_prompt_tokens, n_tokens;
    const uint16_t *accept_lengths; /* per decode step: new tokens, bonus included */
    const uint16_t *widths;         /* per decode step: rows verified, 1 = no drafts */
    int32_t n_steps;
    int32_t n_cached_tokens; /* of the prompt, found in the prefix cache */
    int32_t n_preemptions;
    int64_t queue_us, prefill_us, decode_us; /* queued; until the first token; until the last */
};
int sv_get_request_stats(const struct sv_engine *engine, uint64_t id, struct sv_request_stats *out);

/* Names of the policy's reasons for a width and of the steps whose cost is reported. */
#define SV_WIDTH_REASONS 8
#define SV_STEP_COSTS 5
const char *sv_width_reason_name(int reason);
const char *sv_step_cost_name(int which);

/* Sums since the engine was opened. */
struct sv_engine_stats {
    int64_t n_steps, n_prompt_tokens, n_tokens;
    int64_t n_verify_steps, n_drafted, n_accepted; /* steps with drafts; draft tokens */
    int64_t accept_length[65];               /* verify steps by accept length, bonus included */
    int64_t accepted_at[64], drafted_at[64]; /* by position in the block, 1.. */
    int64_t draft_us, forward_us, context_us, host_us; /* where step time went */
    /* weight bytes that passes have read, and that they would have read without compression */
    int64_t weight_bytes, whole_weight_bytes;
    int64_t width_chosen[65]; /* verify segments by width */
    /* widths the policy chose, by reason (sv_width_reason_name) */
    int64_t width_reason[SV_WIDTH_REASONS];
    int64_t n_chosen_beside_prompts;       /* of these, in steps with prompt rows */
    int64_t n_rows_pruned, n_pruned_steps; /* drafts pruned by their confidence; steps with some */
    int64_t n_repaired; /* drafts that a grammar forbade and draft repair replaced */
    int64_t n_refused;  /* drafts not verified because a grammar forbade them or an earlier one */
    int64_t n_drafting_disabled; /* requests for which drafting was disabled as unprofitable */
    double chosen_us, plain_us;  /* expected, of the chosen steps and of plain decoding instead */
    float draft_chance[64];      /* the policy's estimate that draft j is accepted if j - 1 was */
    /* the policy's estimate of typical steps' cost (sv_step_cost_name) */
    float step_cost_us[SV_STEP_COSTS];
    int64_t n_cache_queries, n_cache_hits; /* prompt tokens looked up and found in the cache */
    int64_t n_preemptions;
    int32_t n_running, n_waiting;
    int32_t n_pages, n_pages_used, n_pages_cached; /* cached: prefixes, evicted when needed */
};
void sv_get_engine_stats(const struct sv_engine *engine, struct sv_engine_stats *out);

struct sv_engine_info {
    const char *target_arch, *device, *dtype; /* "Qwen3ForCausalLM", "cpu amx, 2 threads", "bf16" */
    int64_t target_params, draft_params;
    int64_t target_step_bytes, draft_step_bytes; /* weight bytes read by one pass of few rows */
    int64_t cache_bytes;
    int32_t vocab_size, context, block_size, width; /* block_size 1 = no drafter */
    int32_t bos_id;
    const int32_t *eos_ids;
    int32_t n_eos;
};
void sv_get_engine_info(const struct sv_engine *engine, struct sv_engine_info *out);
/* The device's read bandwidth over n_bytes of newly allocated memory, GB/s. */
double sv_measure_bandwidth(struct sv_engine *engine, size_t n_bytes);

/* Text to ids and back with the target's tokenizer. ids is allocated; free it with sv_free_ids. */
int sv_encode_text(const struct sv_engine *engine, const char *text, size_t n_bytes, int32_t **ids,
                   int32_t *n_ids, char *err, size_t err_size);
void sv_free_ids(int32_t *ids);
/* Raw bytes of a token (may be part of a code point), NULL for an unknown id. */
const char *sv_token_bytes(const struct sv_engine *engine, int32_t id, size_t *n_bytes);

const char *sv_code_name(int code);

#ifdef __cplusplus
}
#endif

#endif
