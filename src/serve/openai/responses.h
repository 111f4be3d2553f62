/*
 * responses.h - what the files of the Responses API share: a call's own data, the store of answers.
 *
 * Included by responses*.c, stored.c and tests.
 */
#ifndef SV_SERVE_OPENAI_RESPONSES_H
#define SV_SERVE_OPENAI_RESPONSES_H

#include "serve/core/fields.h"
#include "serve/openai/openai.h"

#define SV_RESPONSE_ID 40
#define SV_RESPONSE_NAME_AT 5 /* where the name after "resp_" begins; ids of items have it too */

/* ---------------------------------------------------------------- the store (stored.c) */

/* Any thread may call these. key: index of the API key that an answer belongs to; with another key
 * the answer is not found. */

/* Takes both texts. input: the request's items, a line each. output: the ranges of the answer's own
 * items in response. before: the turn that this one continues, or NULL. */
void sv_stored_put(struct sv_stored *st, int key, const char *id, struct sv_kept *before,
                   struct sv_buf *input, struct sv_buf *response, size_t output, size_t n_output);
/* Shrinks a buffer to its text, so that the store's limit counts what is used. */
void sv_stored_fit(struct sv_buf *b);
/* A reference to an answer and the turns before it, until let_go; NULL: there is no such answer. */
struct sv_kept *sv_stored_get(struct sv_stored *st, int key, const char *id);
void sv_stored_let_go(struct sv_stored *st, struct sv_kept *k);
bool sv_stored_delete(struct sv_stored *st, int key, const char *id);
void sv_stored_count(struct sv_stored *st, int64_t *n, int64_t *n_bytes);
const char *sv_kept_response(const struct sv_kept *k, size_t *n);

/* A JSON object whose first member is its id. */
struct sv_kept_item {
    const char *text;
    size_t n;
};
/* Appends the items of the conversation, oldest first, with or without the last answer's output. */
void sv_kept_items(const struct sv_kept *k, bool output, struct sv_buf *items);
/* Finds an item of this answer or its input by the id that the server gave it. */
bool sv_kept_item(const struct sv_kept *k, const char *id, struct sv_kept_item *item);
bool sv_kept_is_item(const struct sv_kept_item *item, const char *id, size_t n);

/* ---------------------------------------------------------------- a call's own */

struct sv_response {
    struct sv_kept *previous; /* the turn it continues, or NULL */
    struct sv_buf input;      /* its items, a line each, for the store */
    struct sv_buf echo;       /* the members that repeat the request */
    size_t at, item_at;       /* in the deltas: what was read; where the open item begins */
    int32_t open;             /* the open item's kind + 1, or 0 */
    int32_t index;            /* closed items */
    int32_t n_events;
    int32_t n_lp_sent;     /* tokens whose log probabilities were sent; ... */
    int32_t first_lp_sent; /* ... the open item's begin here */
    struct sv_buf lp_sent; /* first_lp_sent and n_lp_sent of each closed item */
    int64_t completed;     /* Unix seconds */
    bool waits;            /* a long item is to be closed on the other thread */
};

/* responses_read.c */
extern const struct sv_field sv_responses_fields[];
int sv_responses_read(struct sv_call *c, struct sv_api_err *e);
void sv_responses_free(struct sv_call *c);
bool sv_responses_is_long(const char *body, size_t n);
/* The namespace, among the request's tools, of a function; NULL: it is in none. */
const char *sv_responses_namespace(const json_t *body, const char *name, size_t n);
/* responses.c: a response without its output, for a call that still runs. */
void sv_responses_status(struct sv_buf *b, const struct sv_call *c, const char *status);

#endif
