/*
 * answer.c - collects the answers of requests, drives the engine until they are complete, and sums
 * statistics over them.
 *
 * Called by generate, run, bench, check and demo. Must not: alter the engine's results; hashes and
 * comparisons use token ids, so that a difference cannot hide in the text.
 */
#include "cli/cli.h"
#include "cli/measure.h"

#include <string.h>

/* The same rule as train/generate.py's. */
#define LOOP_PERIOD 48
#define LOOP_TOKENS 32
#define LOOP_PIECE 8
#define LOOP_SHORTEST 48

void sv_cli_answer_init(struct sv_cli_answer *a, struct sv_engine *e)
{
    memset(a, 0, sizeof *a);
    a->engine = e;
    sv_buf_init(&a->text);
    sv_buf_init(&a->ids);
    sv_buf_init(&a->accept);
    sv_buf_init(&a->logprobs);
    sv_buf_init(&a->prompt_logprobs);
    a->stop_id = a->stop_index = -1;
}

void sv_cli_answer_fini(struct sv_cli_answer *a)
{
    sv_buf_fini(&a->text);
    sv_buf_fini(&a->ids);
    sv_buf_fini(&a->accept);
    sv_buf_fini(&a->logprobs);
    sv_buf_fini(&a->prompt_logprobs);
}

void sv_cli_answer_clear(struct sv_cli_answer *a)
{
    sv_buf_clear(&a->text);
    sv_buf_clear(&a->ids);
    sv_buf_clear(&a->accept);
    sv_buf_clear(&a->logprobs);
    sv_buf_clear(&a->prompt_logprobs);
    a->stop_id = a->stop_index = -1;
    a->finish = SV_FINISH_NONE;
    a->message[0] = 0;
    a->n_prompt = 0;
    a->queue_us = a->prefill_us = a->decode_us = 0;
}

/* JSON has no infinities: an impossible token is -9999, as in other servers. */
static void put_number(struct sv_buf *b, float logprob)
{
    sv_buf_printf(b, "%.9g", logprob < -9999 ? -9999.0 : (double)logprob);
}

/* One item of a list of log probabilities; null for the first token of a prompt, which nothing
 * predicts. */
static void put_logprob(struct sv_buf *b, const struct sv_logprob *lp, int32_t id)
{
    if (b->len)
        sv_buf_append(b, ", ", 2);
    if (!lp->rank) {
        sv_buf_append(b, "null", 4);
        return;
    }
    sv_buf_append(b, "{", 1);
    if (id >= 0)
        sv_buf_printf(b, "\"token_id\": %d, ", id);
    sv_buf_append(b, "\"logprob\": ", 11);
    put_number(b, lp->logprob);
    sv_buf_printf(b, ", \"rank\": %d", lp->rank);
    for (int32_t i = 0; i < lp->n_top; i++) {
        sv_buf_printf(b, "%s[%d, ", i ? ", " : ", \"top\": [", lp->top_ids[i]);
        put_number(b, lp->top_logprobs[i]);
        sv_buf_append(b, "]", 1);
    }
    sv_buf_append(b, lp->n_top ? "]}" : "}", lp->n_top ? 2 : 1);
}

void sv_cli_answer_event(void *answer, const struct sv_event *ev)
{
    struct sv_cli_answer *a = answer;
    struct sv_request_stats s;

    for (int32_t i = 0; i < ev->n_tokens && ev->logprobs; i++)
        put_logprob(&a->logprobs, &ev->logprobs[i], ev->tokens[i]);
    if (ev->prompt_logprobs && !sv_get_request_stats(a->engine, ev->request, &s))
        for (int32_t i = 0; i < s.n_prompt_tokens; i++)
            put_logprob(&a->prompt_logprobs, &ev->prompt_logprobs[i], -1);
    a->stop_id = ev->stop_id;
    a->stop_index = ev->stop_index;
    sv_buf_append(&a->text, ev->text, ev->n_bytes);
    sv_buf_append(&a->ids, ev->tokens, (size_t)ev->n_tokens * sizeof *ev->tokens);
    if (a->painter)
        sv_cli_painter_event(a->painter, a->engine, ev);
    if (ev->finish == SV_FINISH_NONE)
        return;
    if (sv_get_request_stats(a->engine, ev->request, &s) == SV_OK) {
        sv_buf_append(&a->accept, s.accept_lengths, (size_t)s.n_steps * sizeof *s.accept_lengths);
        a->n_prompt = s.n_prompt_tokens;
        a->queue_us = s.queue_us;
        a->prefill_us = s.prefill_us;
        a->decode_us = s.decode_us;
    }
    a->finish = ev->finish;
    snprintf(a->message, sizeof a->message, "%s", ev->message ? ev->message : "");
    if (a->text.failed || a->ids.failed || a->accept.failed || a->logprobs.failed ||
        a->prompt_logprobs.failed) {
        a->finish = SV_FINISH_ERROR;
        snprintf(a->message, sizeof a->message, "out of memory while keeping the answer");
    }
}

double sv_cli_answer_rate(const struct sv_cli_answer *a)
{
    int32_t n = sv_cli_answer_n(a) - 1; /* the first one is the prompt's */
    return n > 0 && a->decode_us > 0 ? n * 1e6 / (double)a->decode_us : 0;
}

/* The end repeats with a period of at most LOOP_PERIOD, three times and over LOOP_TOKENS at
 * least. */
static bool ends_in_loop(const int32_t *id, int32_t n)
{
    for (int32_t period = 1; period <= LOOP_PERIOD; period++) {
        int32_t span = 3 * period > LOOP_TOKENS ? 3 * period : LOOP_TOKENS, i = n - span;
        if (span + period > n)
            break;
        while (i < n && id[i] == id[i - period])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

/* The answer mostly repeats itself: fewer than half of its pieces are new. */
static bool mostly_repeats(const int32_t *id, int32_t n)
{
    int32_t n_pieces = n - LOOP_PIECE + 1, n_new = 0;

    if (n < LOOP_SHORTEST)
        return false;
    for (int32_t i = 0; i < n_pieces; i++) {
        int32_t k = 0;
        while (k < i && memcmp(id + i, id + k, LOOP_PIECE * sizeof *id) != 0)
            k++;
        n_new += k == i;
    }
    return 2 * n_new < n_pieces;
}

bool sv_cli_answer_loops(const struct sv_cli_answer *a)
{
    const int32_t *id = sv_cli_answer_ids(a);
    int32_t n = sv_cli_answer_n(a);

    return ends_in_loop(id, n) || mostly_repeats(id, n);
}

uint64_t sv_cli_answer_hash(uint64_t h, const struct sv_cli_answer *a)
{
    const unsigned char *p = (const unsigned char *)a->ids.data;

    if (!h)
        h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < a->ids.len; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return (h ^ 0xff) * 0x100000001b3u; /* where one answer ends is part of it */
}

int32_t sv_cli_first_difference(const struct sv_cli_answer *a, const struct sv_cli_answer *b)
{
    int32_t na = sv_cli_answer_n(a), nb = sv_cli_answer_n(b), n = na < nb ? na : nb;

    for (int32_t i = 0; i < n; i++)
        if (sv_cli_answer_ids(a)[i] != sv_cli_answer_ids(b)[i])
            return i;
    return na == nb ? -1 : n;
}

/* ---------------------------------------------------------------- accept lengths */

void sv_cli_accept_add(struct sv_cli_accept *s, const struct sv_cli_answer *a)
{
    const uint16_t *len = (const uint16_t *)(const void *)a->accept.data;
    size_t n = a->accept.len / sizeof *len;

    for (size_t i = 0; i < n; i++) {
        s->length[len[i] < 64 ? len[i] : 64]++;
        s->n_tokens += len[i];
    }
    s->n_steps += (int64_t)n;
}

double sv_cli_accept_mean(const struct sv_cli_accept *s)
{
    return s->n_steps ? (double)s->n_tokens / (double)s->n_steps : 0;
}

void sv_cli_accept_list(const struct sv_cli_accept *s, struct sv_buf *out)
{
    bool first = true;

    for (int i = 0; i < 65; i++) {
        if (!s->length[i])
            continue;
        sv_buf_printf(out, "%s%d:%lld", first ? "" : " ", i, (long long)s->length[i]);
        first = false;
    }
}

void sv_cli_bar(double share, int cells, struct sv_buf *out)
{
    static const char *const part[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int eighths;

    share = share < 0 ? 0 : share > 1 ? 1 : share;
    eighths = (int)(share * cells * 8 + 0.5);
    for (int i = 0; i < eighths / 8; i++)
        sv_buf_append(out, "█", 3);
    sv_buf_printf(out, "%s", part[eighths % 8]);
}

void sv_cli_accept_bars(const struct sv_cli_accept *s, struct sv_buf *out)
{
    int64_t most = 1;
    int last = 1;

    for (int i = 1; i < 65; i++) {
        most = s->length[i] > most ? s->length[i] : most;
        last = s->length[i] ? i : last;
    }
    for (int i = 1; i <= last; i++) {
        sv_buf_printf(out, "  %2d  %5.1f %%  ", i,
                      s->n_steps ? 100.0 * (double)s->length[i] / (double)s->n_steps : 0);
        sv_cli_bar((double)s->length[i] / (double)most, 40, out);
        sv_buf_append(out, "\n", 1);
    }
}

/* ---------------------------------------------------------------- driving the engine */

static int32_t unfinished(const struct sv_cli_answer *a, int32_t n)
{
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++)
        left += a[i].finish == SV_FINISH_NONE;
    return left;
}

int sv_cli_answer_run(struct sv_engine *e, const struct sv_request *r, int32_t n,
                      int32_t concurrency, struct sv_cli_answer *a, struct sv_err *err)
{
    int32_t next = 0, left;
    bool canceled = false, lost = false; /* lost: the answer cannot be shown */
    char msg[512] = "";

    for (int32_t i = 0; i < n; i++)
        sv_cli_answer_clear(&a[i]);
    for (;;) {
        int rc;
        left = unfinished(a, next);
        while (next < n && left < concurrency && !canceled) {
            struct sv_request q = r[next];
            q.on_event = sv_cli_answer_event;
            q.user = &a[next];
            rc = sv_submit_request(e, &q, &a[next].request, msg, sizeof msg);
            if (rc < 0) {
                a[next].finish = SV_FINISH_ERROR;
                snprintf(a[next].message, sizeof a[next].message, "%.255s", msg);
            } else {
                left++;
            }
            next++;
        }
        if (!left)
            break;
        rc = sv_step_engine(e, msg, sizeof msg);
        if (rc < 0)
            return sv_fail(err, rc, -1, "%s", msg);
        lost = a->painter && ferror(a->painter->out);
        if ((sv_cli_interrupted() || lost) && !canceled) {
            canceled = true;
            for (int32_t i = 0; i < next; i++)
                if (a[i].finish == SV_FINISH_NONE)
                    sv_cancel_request(e, a[i].request);
        }
    }
    if (lost)
        return sv_fail(err, SV_EIO, -1, "standard output: cannot be written");
    return canceled ? sv_fail(err, SV_ECANCELED, -1, "canceled") : SV_OK;
}
