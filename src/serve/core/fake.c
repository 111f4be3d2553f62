/*
 * fake.c - an engine without a model, for tests and for measuring the server alone.
 *
 * Called through the worker's table. Its events are like the real engine's: texts in whole code
 * points, stop strings and ids, one last event for each request. Must not: be reachable from the
 * command line.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/core/engine.h"
#include "token/token.h"

#include "grammar/grammar.h"

#include <string.h>
#include <time.h>

#define MAX_BURST 64
#define MAX_TOP 20
#define HELD_STEP_US 1000

struct fake_seq {
    uint64_t id;
    struct sv_request r;
    int32_t *prompt;
    int32_t n_done, n_steps;
    uint16_t *accept, *widths;
    /* log probabilities of the prompt, none for its first token; a burst's follow */
    struct sv_logprob *lp;
    struct sv_detok detok;
    struct sv_matcher *matcher; /* or NULL */
    struct sv_buf held;         /* text that may be the start of a stop string */
    char *stop[4];
    int32_t shown[16]; /* special tokens shown in the text */
    int64_t submit_us, first_us, end_us;
    bool cancel;
    enum sv_finish_reason finish;
};

struct fake {
    struct sv_serve_fake o;
    struct sv_tokenizer *tok;
    struct sv_vocab *vocab_bytes; /* with the first grammar */
    uint32_t *mask;
    struct fake_seq **seq;
    int32_t n, cap, context, vocab;
    uint64_t next_id;
    const struct fake_seq *now; /* whose event is being delivered */
    struct sv_engine_stats stats;
};

static void seq_free(struct fake_seq *q)
{
    sv_free(q->prompt);
    sv_free(q->accept);
    sv_free(q->widths);
    sv_free(q->lp);
    sv_matcher_close(q->matcher);
    sv_buf_fini(&q->held);
    for (int i = 0; i < 4; i++)
        sv_free(q->stop[i]);
    sv_free(q);
}

/* Numbers with as many digits as real ones. */
static const int32_t top_ids[MAX_TOP] = {64, 65, 66, 67, 68, 69, 70, 71, 72, 73,
                                         74, 75, 76, 77, 78, 79, 80, 81, 82, 83};
static const float top_logprobs[MAX_TOP] = {
    -0.1234567f, -1.1234567f, -2.1234567f, -3.1234567f, -4.1234567f, -5.1234567f, -6.1234567f,
    -7.1234567f, -8.1234567f, -9.1234567f, -10.123456f, -11.123456f, -12.123456f, -13.123456f,
    -14.123456f, -15.123456f, -16.123456f, -17.123456f, -18.123456f, -19.123456f};

static bool take_logprobs(struct fake_seq *q)
{
    int32_t n = q->r.n_prompt_ids > MAX_BURST ? q->r.n_prompt_ids : MAX_BURST + 1;

    const int32_t n_requested =
        q->r.n_logprob_token_ids < MAX_TOP ? q->r.n_logprob_token_ids : MAX_TOP;

    if (!q->r.logprobs && !q->r.prompt_logprobs)
        return true;
    q->lp = sv_calloc((size_t)n, sizeof *q->lp);
    for (int32_t i = 1; q->lp && i < n; i++)
        q->lp[i] = (struct sv_logprob){.logprob = -0.7654321f,
                                       .rank = 2,
                                       .n_top = q->r.n_top_logprobs < MAX_TOP ? q->r.n_top_logprobs
                                                                              : MAX_TOP,
                                       .top_ids = top_ids,
                                       .top_logprobs = top_logprobs,
                                       .n_requested = n_requested,
                                       .requested_ids = top_ids,
                                       .requested_logprobs = top_logprobs};
    return q->lp;
}

/* ---------------------------------------------------------------- grammars */

static const char *bytes_of(void *tok, int32_t id, size_t *n)
{
    *n = 0;
    return sv_tokenizer_is_special(tok, id) ? NULL : sv_tokenizer_bytes(tok, id, n);
}

static int take_grammar(struct fake *f, struct fake_seq *q, struct sv_err *err)
{
    int rc = SV_OK;

    if (!q->r.grammar)
        return SV_OK;
    if (!f->mask)
        f->mask = sv_calloc(((size_t)f->vocab + 31) / 32, sizeof *f->mask);
    if (!f->mask)
        return sv_fail(err, SV_ENOMEM, -1, "fake engine");
    if (!f->vocab_bytes)
        rc = sv_vocab_open(&f->vocab_bytes, f->vocab, bytes_of, f->tok, NULL, 0, err);
    return rc ? rc : sv_matcher_open(&q->matcher, q->r.grammar, f->vocab_bytes, err);
}

/* Under a grammar: the prompt's tokens once, where they are allowed, then the tokens that end it
 * soonest. -1: the end. */
static int32_t next_legal(struct fake *f, struct fake_seq *q)
{
    static const char *const closers[] = {"\"", "}", "]"};
    int32_t id = q->n_done < q->r.n_prompt_ids ? q->prompt[q->n_done] : -1;

    if (id >= 0 && sv_matcher_allows(q->matcher, id))
        return id;
    if (sv_matcher_may_end(q->matcher))
        return -1;
    for (int i = 0; i < 3; i++) {
        id = sv_tokenizer_find(f->tok, closers[i]);
        if (id >= 0 && sv_matcher_allows(q->matcher, id))
            return id;
    }
    sv_matcher_mask(q->matcher, f->mask);
    for (id = 0; id < f->vocab && !(f->mask[id / 32] >> id % 32 & 1);)
        id++;
    return id < f->vocab ? id : -1;
}

static int32_t next_token(struct fake *f, struct fake_seq *q)
{
    if (!q->matcher)
        return q->prompt[q->n_done % q->r.n_prompt_ids];
    int32_t id = next_legal(f, q);
    SV_REQUIRE(id < 0 || sv_matcher_advance(q->matcher, id));
    return id;
}

static int submit(void *impl, const struct sv_request *r, uint64_t *id, char *err, size_t n)
{
    struct fake *f = impl;
    int32_t room = f->context - r->n_prompt_ids;

    if (f->o.on_submit)
        f->o.on_submit(f->o.user, r);
    if (r->n_prompt_ids < 1 || room < 1 || r->n_stop > 4 || r->n_shown_ids > 16) {
        snprintf(err, n, "the fake engine takes prompts of 1 to %d tokens and 4 stop strings",
                 f->context - 1);
        return SV_EINVAL;
    }
    if (f->n == f->cap) {
        int32_t cap = f->cap ? 2 * f->cap : 64;
        void *seq =
            sv_realloc(f->seq, (size_t)f->cap * sizeof *f->seq, (size_t)cap * sizeof *f->seq);
        if (!seq)
            return SV_ENOMEM;
        f->seq = seq;
        f->cap = cap;
    }
    struct fake_seq *q = sv_calloc(1, sizeof *q);
    if (!q)
        return SV_ENOMEM;
    q->r = *r;
    if (!q->r.max_tokens || q->r.max_tokens > room)
        q->r.max_tokens = room;
    q->prompt = sv_alloc((size_t)r->n_prompt_ids * sizeof *q->prompt);
    q->accept = sv_calloc((size_t)q->r.max_tokens, sizeof *q->accept);
    q->widths = sv_calloc((size_t)q->r.max_tokens, sizeof *q->widths);
    for (int32_t i = 0; i < r->n_stop; i++)
        q->stop[i] = sv_strdup(r->stop[i]);
    if (!q->prompt || !q->accept || !q->widths || !take_logprobs(q) ||
        (r->n_stop && !q->stop[r->n_stop - 1])) {
        seq_free(q);
        return SV_ENOMEM;
    }
    memcpy(q->prompt, r->prompt_ids, (size_t)r->n_prompt_ids * sizeof *q->prompt);
    struct sv_err why = {0};
    int rc = take_grammar(f, q, &why);
    if (rc) {
        snprintf(err, n, "%s", why.msg);
        seq_free(q);
        return rc;
    }
    sv_detok_init(&q->detok, f->tok, !r->show_special);
    if (r->n_shown_ids)
        memcpy(q->shown, r->shown_ids, (size_t)r->n_shown_ids * sizeof *q->shown);
    q->detok.shown = q->shown;
    q->detok.n_shown = r->n_shown_ids;
    q->submit_us = sv_clock_us();
    *id = q->id = ++f->next_id;
    f->seq[f->n++] = q;
    return SV_OK;
}

static void cancel(void *impl, uint64_t id)
{
    struct fake *f = impl;
    for (int32_t i = 0; i < f->n; i++)
        if (f->seq[i]->id == id)
            f->seq[i]->cancel = true;
}

/* Cuts the held text at the first stop string; returns how many bytes may be sent. */
static size_t apply_stops(struct fake_seq *q, struct sv_event *ev)
{
    size_t ready = q->held.len;

    for (int32_t i = 0; i < q->r.n_stop; i++) {
        const char *at = q->held.data ? strstr(q->held.data, q->stop[i]) : NULL;
        size_t keep = strlen(q->stop[i]) - 1;
        if (at && (ev->stop_index < 0 || (size_t)(at - q->held.data) < ready)) {
            ev->finish = SV_FINISH_STOP;
            ev->stop_index = i;
            ready = (size_t)(at - q->held.data);
        } else if (ev->stop_index < 0 &&
                   q->held.len - (q->held.len < keep ? q->held.len : keep) < ready) {
            ready = q->held.len - (q->held.len < keep ? q->held.len : keep);
            while (ready && ((unsigned char)q->held.data[ready] & 0xc0) == 0x80)
                ready--; /* whole code points */
        }
    }
    return ev->finish != SV_FINISH_NONE && ev->stop_index < 0 ? q->held.len : ready;
}

static void deliver(struct fake *f, struct fake_seq *q, struct sv_event *ev)
{
    size_t ready = q->cancel ? 0 : apply_stops(q, ev);

    ev->request = q->id;
    ev->text = q->held.data ? q->held.data : "";
    ev->n_bytes = ready;
    q->finish = ev->finish;
    if (ev->finish != SV_FINISH_NONE)
        q->end_us = sv_clock_us();
    f->now = q;
    if (q->r.on_event)
        q->r.on_event(q->r.user, ev);
    f->now = NULL;
    q->held.len -= ready;
    if (q->held.data)
        memmove(q->held.data, q->held.data + ready, q->held.len + 1);
}

static void advance(struct fake *f, struct fake_seq *q)
{
    struct sv_event ev = {.stop_id = -1, .stop_index = -1};
    int32_t tokens[MAX_BURST], n = 0;

    if (q->cancel) {
        ev.finish = SV_FINISH_CANCELED;
        deliver(f, q, &ev);
        return;
    }
    bool ends = f->o.once && !q->matcher && q->r.n_prompt_ids < q->r.max_tokens;
    int32_t most = ends ? q->r.n_prompt_ids : q->r.max_tokens, id = 0;
    for (; n < f->o.burst && q->n_done < most && (id = next_token(f, q)) >= 0; n++, q->n_done++) {
        tokens[n] = id;
        sv_detok_push(&q->detok, id, &q->held);
    }
    if (q->n_done == most || id < 0) {
        ev.finish = most < q->r.max_tokens || id < 0 ? SV_FINISH_STOP : SV_FINISH_LENGTH;
        sv_detok_end(&q->detok, &q->held);
    }
    if (!q->first_us)
        q->first_us = sv_clock_us();
    if (!n) { /* the grammar ended in the step before */
        deliver(f, q, &ev);
        return;
    }
    q->widths[q->n_steps] = (uint16_t)f->o.burst;
    q->accept[q->n_steps++] = (uint16_t)n;
    ev.tokens = tokens;
    ev.n_tokens = n;
    ev.n_drafted = n - 1;
    ev.logprobs = q->r.logprobs ? q->lp + 1 : NULL;
    ev.prompt_logprobs = q->r.prompt_logprobs && q->n_steps == 1 ? q->lp : NULL;
    f->stats.n_tokens += n;
    f->stats.n_verify_steps++;
    f->stats.n_drafted += f->o.burst - 1;
    f->stats.n_accepted += n - 1;
    f->stats.accept_length[n]++;
    f->stats.width_chosen[f->o.burst]++;
    deliver(f, q, &ev);
}

/* Whether the step at hand is beyond those that are left. */
static bool is_held(struct fake *f)
{
    if (!f->o.steps_left || atomic_fetch_sub(f->o.steps_left, 1) > 0)
        return false;
    atomic_fetch_add(f->o.steps_left, 1);
    return true;
}

static int step(void *impl, char *err, size_t n)
{
    struct fake *f = impl;
    const bool held = is_held(f);
    const int32_t us = held ? HELD_STEP_US : f->o.step_us;
    struct timespec t = {us / 1000000, us % 1000000 * 1000L};
    int32_t kept = 0, n_seqs = f->n;

    if (us > 0) /* first, since results come at the end of a step */
        nanosleep(&t, NULL);
    f->stats.n_steps += !held;
    bool fail = !held && f->o.fail_at_step && f->stats.n_steps >= f->o.fail_at_step;
    for (int32_t i = 0; i < n_seqs; i++) {
        struct fake_seq *q = f->seq[i];
        struct sv_event broken = {.finish = SV_FINISH_ERROR,
                                  .message = "the fake device failed",
                                  .stop_id = -1,
                                  .stop_index = -1};
        if (fail)
            deliver(f, q, &broken);
        else if (!held || q->cancel)
            advance(f, q);
        if (q->finish == SV_FINISH_NONE)
            f->seq[kept++] = q;
        else
            seq_free(q);
    }
    f->n = kept;
    f->stats.n_running = f->n;
    if (fail)
        snprintf(err, n, "the fake device failed");
    return fail ? SV_EDEVICE : f->n;
}

static void flush(void *impl)
{
    (void)impl;
}

static int request_stats(void *impl, uint64_t id, struct sv_request_stats *out)
{
    const struct fake *f = impl;
    const struct fake_seq *q = f->now;

    if (!q || q->id != id)
        return SV_EINVAL;
    int64_t first = q->first_us ? q->first_us : q->submit_us;
    *out = (struct sv_request_stats){.n_prompt_tokens = q->r.n_prompt_ids,
                                     .n_tokens = q->n_done,
                                     .accept_lengths = q->accept,
                                     .widths = q->widths,
                                     .n_steps = q->n_steps,
                                     .prefill_us = first - q->submit_us,
                                     .decode_us = q->end_us ? q->end_us - first : 0};
    return SV_OK;
}

static void engine_stats(void *impl, struct sv_engine_stats *out)
{
    const struct fake *f = impl;
    *out = f->stats;
}

static void info(void *impl, struct sv_engine_info *out)
{
    const struct fake *f = impl;
    *out = (struct sv_engine_info){.target_arch = "fake",
                                   .device = "none",
                                   .dtype = "none",
                                   .vocab_size = f->vocab,
                                   .context = f->context,
                                   .block_size = f->o.burst,
                                   .width = f->o.burst,
                                   .bos_id = -1};
}

static void close_fake(void *impl)
{
    struct fake *f = impl;

    for (int32_t i = 0; i < f->n; i++) {
        struct sv_event ev = {.finish = SV_FINISH_CANCELED, .stop_id = -1, .stop_index = -1};
        f->seq[i]->cancel = true;
        deliver(f, f->seq[i], &ev);
        seq_free(f->seq[i]);
    }
    sv_free(f->seq);
    sv_free(f->mask);
    sv_vocab_close(f->vocab_bytes);
    sv_tokenizer_close(f->tok);
    sv_free(f);
}

/* It has no cache. */
static int32_t known(const void *impl, const struct sv_request *r)
{
    (void)impl, (void)r;
    return 0;
}

int sv_serve_open_fake_engine(struct sv_serve_engine *out, const struct sv_engine_options *o,
                              const void *arg, struct sv_err *err)
{
    struct fake *f = sv_calloc(1, sizeof *f);

    if (!f)
        return sv_fail(err, SV_ENOMEM, -1, "fake engine");
    f->o = arg ? *(const struct sv_serve_fake *)arg : (struct sv_serve_fake){0};
    f->o.burst = f->o.burst < 1 ? 1 : f->o.burst > MAX_BURST ? MAX_BURST : f->o.burst;
    f->context = o->context ? o->context : 4096;
    for (int percent = 0; f->o.loaded && percent < 100;) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        percent = atomic_load(f->o.loaded);
        if (o->on_progress)
            o->on_progress(o->progress_user, SV_OPEN_WEIGHTS, percent / 100.0);
    }
    int rc = sv_tokenizer_open(&f->tok, o->target_dir, err);
    if (rc) {
        sv_free(f);
        return rc;
    }
    f->vocab = sv_tokenizer_n_tokens(f->tok);
    f->stats.n_pages = 1;
    *out = (struct sv_serve_engine){.impl = f,
                                    .takes_images = f->o.images,
                                    .no_images = "nor does any fake",
                                    .vision = {.patch = 8,
                                               .merge = 2,
                                               .temporal = 2,
                                               .min_pixels = 256,
                                               .max_pixels = 65536,
                                               .mean = {0.5, 0.5, 0.5},
                                               .std = {0.5, 0.5, 0.5}},
                                    .submit = submit,
                                    .cancel = cancel,
                                    .step = step,
                                    .flush = flush,
                                    .request_stats = request_stats,
                                    .known = known,
                                    .engine_stats = engine_stats,
                                    .info = info,
                                    .close = close_fake};
    return SV_OK;
}
