/*
 * body.c - request bodies: codings that are accepted, text to a JSON object, and endpoints that are
 * answered from their body without the engine.
 *
 * Called by call.c and by endpoints, on the loop's thread; long bodies are read on prep.c's thread.
 * Must not: run the engine.
 */
#include "serve/core/body.h"
#include "serve/core/log.h"
#include "serve/core/prep.h"
#include "serve/core/server.h"
#include "serve/http/fetch.h"

#include <string.h>
#include <strings.h>

int sv_check_coding(const struct sv_http_req *q, struct sv_api_err *e)
{
    const char *coding = sv_http_header(q, "Content-Encoding");

    if (!coding || strcasecmp(coding, "identity") == 0)
        return 0;
    return sv_api_fail(
        e, 415, NULL, "a body with Content-Encoding '%.40s' is not read; send it as it is", coding);
}

int sv_body_refused(struct sv_api_err *e)
{
    return sv_api_fail(e, 429, "queue_full", "too many long bodies wait to be read");
}

int sv_body_later(struct sv_serve *s, struct sv_http_req *q, struct sv_job *job,
                  struct sv_http_body **raw, struct sv_api_err *e)
{
    job->cost = sv_http_body_bytes(q);
    *raw = sv_http_take_body(q);
    if (!*raw)
        return sv_api_no_memory(e);
    if (sv_prep_submit(s->prep, job))
        return 0;
    return sv_body_refused(e);
}

json_t *sv_body_object(const char *text, size_t n, struct sv_api_err *e)
{
    struct sv_err err = {0};

    if (n >= 3 &&
        memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark, which some editors write */
        text += 3;
        n -= 3;
    }
    json_t *root = n ? sv_json_parse(text, n, &err) : NULL;

    if (!n)
        sv_api_bad(e, NULL, "the body is empty; a JSON object is needed");
    else if (!root)
        sv_api_bad(e, NULL, "the body is not valid JSON: %s", err.msg);
    else if (json_is_object(root))
        return root;
    else
        sv_api_bad(e, NULL, "the body must be a JSON object");
    json_decref(root);
    return NULL;
}

/* ---------------------------------------------------------------- questions that need no engine */

/* A request that is answered from its body, on this thread or the other one. */
struct question {
    struct sv_job job;
    struct sv_serve *s;
    struct sv_http_req *q; /* NULL once the client has left */
    struct sv_http_body *raw;
    sv_answer_fn *answer;
    struct sv_buf b, ignored;
    struct sv_api_err e;
    int rc;
};

static void read_question(struct question *a, struct sv_enc_scratch *scratch, const char *text,
                          size_t n)
{
    json_t *body = sv_body_object(text, n, &a->e);

    sv_buf_init(&a->b);
    sv_buf_init(&a->ignored);
    a->rc = body ? a->answer(a->s, scratch, body, a->s->o.refuse_unknown ? NULL : &a->ignored,
                             &a->b, &a->e)
                 : -1;
    json_decref(body);
}

static void question_gone(void *user)
{
    struct question *a = user;
    a->q = NULL;
}

static void run_question(void *user, struct sv_enc_scratch *scratch)
{
    struct question *a = user;
    size_t n;
    const char *text = sv_http_taken_text(a->raw, &n);

    read_question(a, scratch, text, n);
    if (sv_fetch_waits(a->e.fetch))
        return; /* it is read once more */
    sv_http_free_taken(a->raw);
    a->raw = NULL;
}

static void fetch_gone(void *user)
{
    struct question *a = user;
    a->q = NULL;
    sv_fetch_cancel(a->e.fetch);
}

static void ask_again(void *user);

static void answer_question(void *user)
{
    struct question *a = user;

    if (a->q && sv_fetch_waits(a->e.fetch)) {
        sv_http_on_gone(a->q, fetch_gone, a);
        sv_fetch_start(a->e.fetch, ask_again, a);
        return;
    }
    sv_fetch_free(a->e.fetch);
    if (a->q) {
        sv_http_on_gone(a->q, NULL, NULL);
        sv_log_unknown(a->s, sv_http_added_header(a->q, "x-request-id"), &a->ignored);
    }
    if (a->q && a->rc)
        sv_api_refuse(a->q, &a->e);
    else if (a->q)
        sv_api_answer(a->q, 200, "application/json", &a->b);
    sv_buf_fini(&a->b);
    sv_buf_fini(&a->ignored);
    sv_http_free_taken(a->raw);
    sv_free(a);
}

/* The addresses in the body were fetched. */
static void ask_again(void *user)
{
    struct question *a = user;

    if (a->q) {
        sv_buf_fini(&a->b);
        sv_buf_fini(&a->ignored);
        sv_http_on_gone(a->q, question_gone, a);
        if (sv_prep_submit(a->s->prep, &a->job))
            return;
        sv_body_refused(&a->e);
    }
    answer_question(a);
}

void sv_ask(struct sv_serve *s, struct sv_http_req *q, sv_answer_fn *answer)
{
    struct question *a = sv_calloc(1, sizeof *a);
    struct sv_api_err e;
    size_t n;

    if (!a) {
        sv_api_no_memory(&e);
        sv_api_refuse(q, &e);
        return;
    }
    *a = (struct question){.job = {.run = run_question, .done = answer_question, .user = a},
                           .s = s,
                           .q = q,
                           .answer = answer};
    a->rc = sv_check_coding(q, &a->e);
    bool later = !a->rc && sv_http_body_bytes(q) > SV_INLINE_BYTES;
    if (!a->rc && !later) {
        const char *text = sv_http_body(q, &n);
        read_question(a, s->scratch, text, n);
        later = a->rc && a->e.too_slow;
    }
    if (later) {
        sv_buf_fini(&a->b);
        sv_buf_fini(&a->ignored);
        a->e = (struct sv_api_err){0};
        sv_http_on_gone(q, question_gone, a);
        if (!sv_body_later(s, q, &a->job, &a->raw, &a->e))
            return; /* it belongs to the other thread now */
        a->rc = -1;
    }
    answer_question(a);
}
