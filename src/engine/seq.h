/*
 * seq.h - a request while it runs: tokens, stop conditions, text, events.
 *
 * Called by api.c, sched.c and the step. Host only. Must not: know rows, pages or plans.
 */
#ifndef SV_ENGINE_SEQ_H
#define SV_ENGINE_SEQ_H

#include "base/base.h"
#include "grammar/grammar.h"
#include "load/load.h"
#include "policy/policy.h"
#include "salvo.h"
#include "sample/sample.h"
#include "token/token.h"

enum sv_seq_state { SV_SEQ_WAITING, SV_SEQ_PREFILL, SV_SEQ_DECODE, SV_SEQ_FINISHED };

/* A request. Everything it will need is allocated when it is submitted. */
struct sv_images;
struct sv_seq {
    uint64_t id;
    enum sv_seq_state state;
    enum sv_finish_reason finish;
    const char *message;   /* static or engine-owned, with SV_FINISH_ERROR */
    bool drafts_now;       /* in the current plan */
    bool cancel;           /* requested; honoured by the next plan */
    struct sv_seq *next;   /* in the engine's list, by submission */
    struct sv_arena arena; /* owns the arrays below */

    int32_t slot;    /* index in the device arrays, -1 while waiting */
    int32_t *tokens; /* (cap_tokens) prompt, then output */
    int32_t n_tokens, n_prompt, cap_tokens;
    struct sv_images *images; /* NULL: none */
    int32_t *keys; /* (cap_tokens) keys of prefixes: tokens, and other ids for rows of images. NULL:
                      tokens */
    /* positions with valid K/V; while decoding the anchor is at n_committed */
    int32_t n_committed;
    /* positions to compute before it decodes: the prompt, or after a preemption all but the last
     * token */
    int32_t n_prefill;
    /* rows enqueued in steps not read yet: at most these many more are committed */
    int32_t n_rows_ahead;
    int32_t n_tokens_ahead; /* least number of tokens they will yield */
    int32_t grant;          /* prompt rows of the step being planned */
    int32_t n_cached;       /* prompt positions found in the prefix cache at first admission */
    int32_t n_preemptions;

    int32_t width; /* verify width, already limited by the engine's; the widest with the policy */
    bool fixed_width;        /* the request fixed it: the policy does not choose */
    struct sv_record record; /* acceptance of its drafts, for the policy */
    bool restores;           /* its missing context K/V is being recomputed */
    struct sv_sampling sampling;
    struct sv_logit_rules rules;
    int32_t *bias_ids; /* (rules.n_bias) */
    float *bias;
    /* (n_ban) tokens that min_tokens forbids: the model's end tokens, n_ban_ends of them, then stop
     * ids */
    int32_t *ban_ids;
    int32_t n_ban, n_ban_ends;
    int32_t *listed; /* (n_listed) words and allowed tokens, as struct sv_logit_rules has them */
    int32_t n_listed;
    struct sv_matcher *matcher; /* of a grammar, advanced to its last token. NULL = any text */
    /* not greedy, or rules, or log probabilities: the head's argmax is not enough */
    bool needs_logits;
    bool wants_prompt_logits; /* until its prompt is computed: every prompt row must run */
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
    uint64_t cache_salt[2];      /* prefixes are shared within one salt */
    struct sv_search *search;    /* expressions that end the answer, or NULL; */
    int32_t *search_at;          /* state of their automata */
    int32_t stop_id, stop_index; /* index of the one that was found; -1 */

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
    int32_t *requested_ids; /* (n_requested) tokens that are reported at each place */
    int32_t n_requested;
    /* (SV_LOGPROBS_HELD, n_requested), (n_prompt, n_requested) */
    float *requested_lp, *prompt_requested_lp;

    uint16_t *accept_lengths; /* (max_tokens) tokens per decode step */
    uint16_t *widths;         /* and the rows it verified */
    int32_t n_steps;
    int64_t submit_us, start_us, first_us, end_us;
    void (*on_event)(void *user, const struct sv_event *event);
    void *user;
};

/* seq.c: limits are what the engine allows; tokenizer may be NULL (ids only, no text). */
struct sv_seq_limits {
    const struct sv_config *cfg;
    const struct sv_tokenizer *tok;
    struct sv_enc_scratch *scratch;
    struct sv_vocab *vocab; /* not NULL when the request has a grammar */
    int32_t context, width;
    size_t max_token_bytes;
};
/* The ids that identify a sequence's prefixes in the cache's index. */
static inline const int32_t *sv_seq_keys(const struct sv_seq *q)
{
    return q->keys ? q->keys : q->tokens;
}
/* A grammar from a request's text (grammar.c); n_bytes 0 = strlen. Errors name the field. */
int sv_engine_grammar(struct sv_grammar **g, enum sv_grammar_kind kind, const char *text,
                      size_t n_bytes, struct sv_err *err);
/* images: the request's, or NULL; owned by the sequence from then on, also when it fails. */
int sv_seq_new(struct sv_seq **seq, uint64_t id, const struct sv_request *r,
               const struct sv_seq_limits *lim, struct sv_images *images, struct sv_err *err);
void sv_seq_free(struct sv_seq *seq);
/* At most so many tokens have log probabilities that are not delivered yet. */
#define SV_LOGPROBS_HELD (4 * SV_MAX_BLOCK)
/* Stores the log probabilities of the token appended last, or of the prompt's token at index.
 * requested: the row of the first requested token; each further one is ld rows later. */
void sv_seq_take_logprob(struct sv_seq *seq, const struct sv_logprob_row *row,
                         const struct sv_logprob_row *requested, int32_t ld);
void sv_seq_take_prompt_logprob(struct sv_seq *seq, int32_t index, const struct sv_logprob_row *row,
                                const struct sv_logprob_row *requested, int32_t ld);
/* Appends one token that the target chose: stop conditions, text. True when the sequence ended. */
bool sv_seq_append(struct sv_seq *seq, int32_t token, const struct sv_config *cfg);
void sv_seq_finish(struct sv_seq *seq, enum sv_finish_reason reason, const char *message);
/* Delivers what is ready and shifts the text buffer. */
void sv_seq_deliver(struct sv_seq *seq);

#endif
