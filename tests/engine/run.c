/*
 * run.c - see run.h.
 */
#define _POSIX_C_SOURCE 200809L /* strdup */

#include "engine/run.h"

#include "testing.h"

#include <stdlib.h>
#include <string.h>

void run_on_event(void *events, const struct sv_event *ev)
{
    struct run_events *t = events;
    t->n_tokens += ev->n_tokens;
    if (ev->finish == SV_FINISH_NONE)
        return;
    t->n_ends++;
    t->finish = ev->finish;
    snprintf(t->message, sizeof t->message, "%s", ev->message ? ev->message : "");
}

struct run_case *run_cases(int32_t n, int32_t vocab, int32_t max_len, int32_t max_tokens,
                           uint64_t seed)
{
    struct sv_rng rng = {seed};
    struct run_case *c = calloc((size_t)n, sizeof *c);
    for (int32_t i = 0; i < n; i++) {
        c[i].n_prompt = 1 + (int32_t)sv_rng_below(&rng, (uint32_t)max_len);
        c[i].prompt = malloc((size_t)c[i].n_prompt * sizeof(int32_t));
        for (int32_t j = 0; j < c[i].n_prompt; j++)
            c[i].prompt[j] = 3 + (int32_t)sv_rng_below(&rng, (uint32_t)vocab - 3);
        c[i].max_tokens = max_tokens - (int32_t)sv_rng_below(&rng, (uint32_t)max_tokens / 2 + 1);
        c[i].req = (struct sv_request){.top_p = 1, .ignore_eos = true};
    }
    return c;
}

void run_cases_free(struct run_case *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        free(c[i].prompt);
    free(c);
}

int32_t run_few(int32_t n)
{
    return n > 20 && (sv_env("SALVO_TEST_QUICK") || sv_test_brief()) ? 20 : n;
}

bool run_left_out(size_t index)
{
    return sv_test_brief() && index % 4 != 1;
}

void run_needs_cpu(void)
{
    if (sv_env("SALVO_TEST_DEVICE"))
        skip();
}

static enum sv_kv_type kv_of[2];

void run_kv_dtype(enum sv_kv_type target, enum sv_kv_type draft)
{
    kv_of[0] = target;
    kv_of[1] = draft;
}

static enum sv_activations activations_of;

void run_activations(enum sv_activations type)
{
    activations_of = type;
}

static int32_t context_of;

void run_context(int32_t n)
{
    context_of = n;
}

void run_device(struct sv_engine_options *o)
{
    o->tuning.activations = activations_of ? activations_of : o->tuning.activations;
    o->kv_dtype = kv_of[0] ? kv_of[0] : o->kv_dtype;
    o->draft_kv_dtype = kv_of[1] ? kv_of[1] : o->draft_kv_dtype;
    o->context = o->context ? o->context : context_of;
    const char *want = sv_env("SALVO_TEST_DEVICE");
    if (o->device)
        return;
    o->device = "cpu";
    if (!want)
        return;
    o->device = strncmp(want, "cuda", 4) ? want : "cuda";
    o->tuning.kernels = strstr(want, "portable") ? SV_KERNELS_PORTABLE : SV_KERNELS_AUTO;
    o->no_graphs = strstr(want, "eager") != NULL;
    o->tuning.two_shots = strstr(want, "two-shots") ? SV_TOGGLE_ON : SV_TOGGLE_AUTO;
    if (!o->cache_mib) /* not most of the GPU's memory: many tests run on it at once */
        o->cache_mib = 256;
}

bool run_has_gpus(int32_t n)
{
    struct sv_dev *dev;
    const struct sv_dev_opts o = {
        .backend = "cuda", .ordinal = n - 1, .compute = SV_F32, .n_threads = 1};
    /* A kernel's code that is loaded behind one that waits may wait for it. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (sv_dev_open(&dev, &o, NULL))
        return false;
    sv_dev_close(dev);
    return true;
}

struct sv_engine *run_open(const struct sv_engine_options *o, struct sv_drafter *drafter)
{
    return run_open_tuned(o, &(struct sv_engine_tuning){0}, drafter);
}

struct sv_engine *run_open_tuned(const struct sv_engine_options *o,
                                 const struct sv_engine_tuning *t, struct sv_drafter *drafter)
{
    struct sv_engine *e = NULL;
    struct sv_err err = {0};
    struct sv_engine_options here = *o;
    struct sv_engine_tuning tuning = *t;
    run_device(&here);
    if (here.tp > 1 && strcmp(here.device, "cuda") == 0 && !run_has_gpus(here.tp))
        tuning.one_gpu = here.no_graphs = true;
    if (sv_engine_open_tuned(&e, &here, &tuning, drafter, &err))
        fail_msg("cannot open the engine: %s", err.msg);
    return e;
}

static int32_t truth_at(void *user, uint64_t request, int32_t index)
{
    const struct run_truth *t = user;
    const int32_t i = (int32_t)(request - 1), at = index - t->ref[i].n_prompt;
    return at < t->ref[i].n_tokens ? t->ref[i].tokens[at] : -1;
}

struct sv_drafter *run_fake(enum sv_fake kind, const struct run_truth *t)
{
    struct sv_drafter *d;
    struct sv_err err = {0};
    const struct sv_fake_opts f = {.kind = kind,
                                   .block_size = RUN_BLOCK,
                                   .vocab_size = RUN_VOCAB,
                                   .seed = 7,
                                   .truth = truth_at,
                                   .user = (void *)(uintptr_t)t};
    assert_int_equal(sv_fake_open(&d, &f, &err), SV_OK);
    return d;
}

struct run_pair run_gptoss(void)
{
    return (struct run_pair){run_dir("tests/golden/tiny/gptoss_bf16"),
                             run_dir("tests/golden/tiny/gptoss_draft_random_b10")};
}

struct sv_engine *run_open_as(const struct run_pair *pair, const struct run_arrangement *a,
                              enum sv_isa isa, enum sv_data_type dtype, const struct run_truth *t)
{
    return run_open_ranks(pair, a, isa, dtype, t, (struct run_ranks){.n = 0});
}

struct sv_engine *run_open_ranks(const struct run_pair *pair, const struct run_arrangement *a,
                                 enum sv_isa isa, enum sv_data_type dtype,
                                 const struct run_truth *t, struct run_ranks ranks)
{
    const int32_t most = context_of ? context_of * a->batch : a->chunk;
    const struct sv_engine_options o = {.target_dir = pair->target,
                                        .draft_dir = a->drafter == 4 ? pair->draft : NULL,
                                        .tuning.isa = isa,
                                        .dtype = dtype,
                                        .n_threads = a->threads,
                                        .max_sequences = a->batch,
                                        .page_size = a->page,
                                        .prefill_chunk = a->chunk < most ? a->chunk : most,
                                        .width = a->width,
                                        .tp = ranks.n,
                                        .ep = ranks.ep,
                                        .dp_attention = ranks.dp};
    const struct sv_engine_tuning tuning = {
        .run_ahead = a->threads > 1, .pad = a->threads > 1, .compare_ranks = ranks.n > 1};
    const bool fake = a->drafter >= 0 && a->drafter < 4;

    return run_open_tuned(&o, &tuning, fake ? run_fake((enum sv_fake)a->drafter, t) : NULL);
}

struct sink {
    struct sv_engine *e;
    struct run_out *out;
    const struct sv_request *req;
    int32_t n_prompt, n_drafted, cancel_at;
};

static struct sv_logprob_row flat(const struct sv_logprob *lp)
{
    struct sv_logprob_row row;
    memset(&row, 0, sizeof row);
    row.logprob = lp->logprob;
    row.rank = lp->rank;
    row.n_top = lp->n_top;
    assert_true(lp->n_top >= 0 && lp->n_top <= SV_MAX_TOP);
    for (int32_t i = 0; i < lp->n_top; i++) {
        row.top_id[i] = lp->top_ids[i];
        row.top_logprob[i] = lp->top_logprobs[i];
    }
    return row;
}

static void take_requested(const struct sv_logprob *lp, float *to, size_t n_requested)
{
    assert_int_equal(lp->n_requested, n_requested);
    for (size_t k = 0; k < n_requested; k++)
        to[k] = lp->requested_logprobs[k];
}

/* Exactly what was requested comes, the prompt's once and with the first tokens. */
static void collect_logprobs(struct sink *s, const struct sv_event *ev)
{
    struct run_out *o = s->out;
    assert_int_equal(ev->logprobs != NULL, s->req->logprobs && ev->n_tokens > 0);
    assert_int_equal(ev->prompt_logprobs != NULL,
                     s->req->prompt_logprobs && ev->n_tokens > 0 && o->n_tokens == 0);
    const size_t n_requested = (size_t)s->req->n_logprob_token_ids;
    if (ev->logprobs) {
        const size_t n = (size_t)(o->n_tokens + ev->n_tokens);
        o->lp = realloc(o->lp, n * sizeof *o->lp);
        o->requested = realloc(o->requested, (n * n_requested + 1) * sizeof *o->requested);
        for (int32_t i = 0; i < ev->n_tokens; i++) {
            o->lp[o->n_tokens + i] = flat(&ev->logprobs[i]);
            take_requested(&ev->logprobs[i], o->requested + (size_t)(o->n_tokens + i) * n_requested,
                           n_requested);
        }
    }
    if (!ev->prompt_logprobs)
        return;
    o->prompt_lp = malloc((size_t)s->n_prompt * sizeof *o->prompt_lp);
    o->prompt_requested =
        calloc((size_t)s->n_prompt * n_requested + 1, sizeof *o->prompt_requested);
    for (int32_t i = 0; i < s->n_prompt; i++) {
        o->prompt_lp[i] = flat(&ev->prompt_logprobs[i]);
        if (i) /* nothing is known of the first */
            take_requested(&ev->prompt_logprobs[i], o->prompt_requested + (size_t)i * n_requested,
                           n_requested);
    }
}

static void collect(void *user, const struct sv_event *ev)
{
    struct sink *s = user;
    struct run_out *o = s->out;
    collect_logprobs(s, ev);
    o->tokens = realloc(o->tokens, (size_t)(o->n_tokens + ev->n_tokens + 1) * sizeof(int32_t));
    if (ev->n_tokens)
        memcpy(o->tokens + o->n_tokens, ev->tokens, (size_t)ev->n_tokens * sizeof(int32_t));
    o->n_tokens += ev->n_tokens;
    assert_true(ev->n_drafted >= 0 && ev->n_drafted <= ev->n_tokens);
    s->n_drafted += ev->n_drafted;
    /* Each event has whole code points, however tokens cut them: a client that streams writes it
     * out at once. */
    assert_int_equal(sv_utf8_valid(ev->text, ev->n_bytes), ev->n_bytes);
    o->text = realloc(o->text, o->n_text + ev->n_bytes + 1);
    if (ev->n_bytes)
        memcpy(o->text + o->n_text, ev->text, ev->n_bytes);
    o->n_text += ev->n_bytes;
    o->text[o->n_text] = 0;
    if (!ev->finish && s->cancel_at && o->n_tokens >= s->cancel_at)
        sv_cancel_request(s->e, ev->request);
    if (!ev->finish)
        return;
    assert_int_equal(o->finish, SV_FINISH_NONE);
    o->finish = ev->finish;
    o->stop_id = ev->stop_id;
    o->stop_index = ev->stop_index;
    struct sv_request_stats st;
    assert_int_equal(sv_get_request_stats(s->e, ev->request, &st), 0);
    assert_int_equal(st.n_tokens, o->n_tokens);
    o->n_steps = st.n_steps;
    o->n_cached = st.n_cached_tokens;
    o->n_preemptions = st.n_preemptions;
    o->accept = malloc((size_t)(st.n_steps + 1) * sizeof *o->accept);
    int32_t sum = 0;
    for (int32_t i = 0; i < st.n_steps; i++) {
        sum += o->accept[i] = st.accept_lengths[i];
        assert_true(st.accept_lengths[i] <= st.widths[i]);
        if (st.accept_lengths[i] < st.widths[i])
            o->refused_at |= 1u << (o->n_prompt + sum) % 16;
    }
    if (o->finish == SV_FINISH_CANCELED)
        return;
    assert_int_equal(sum, o->n_tokens - 1); /* the first token came from the prompt */
    /* A step's last token is the target's own, but where the answer ended before it. */
    assert_in_range(s->n_drafted, sum - st.n_steps, sum - st.n_steps + 1);
}

/* Counts of acceptance by position and by length say what the totals say. */
static void check_accept(const struct sv_accept_stats *a)
{
    int64_t drafted = 0, accepted = 0, by_length = 0;
    for (size_t j = 1; j < sizeof a->drafted_at / sizeof a->drafted_at[0]; j++) {
        drafted += a->drafted_at[j];
        accepted += a->accepted_at[j];
    }
    for (size_t k = 1; k < sizeof a->length / sizeof a->length[0]; k++)
        by_length += (int64_t)(k - 1) * a->length[k];
    assert_int_equal(drafted, a->n_drafted);
    assert_int_equal(accepted, a->n_accepted);
    assert_int_equal(by_length, a->n_accepted);
}

struct run_out *run_all(struct sv_engine *e, const struct run_case *c, int32_t n)
{
    struct run_out *out = calloc((size_t)n, sizeof *out);
    struct sink *sinks = calloc((size_t)n, sizeof *sinks);
    struct sv_err err = {0};
    for (int32_t i = 0; i < n; i++) {
        sinks[i] =
            (struct sink){.e = e, .out = &out[i], .req = &c[i].req, .cancel_at = c[i].cancel_at};
        struct sv_request r = c[i].req;
        if (!r.prompt) {
            r.prompt_ids = c[i].prompt;
            r.n_prompt_ids = c[i].n_prompt;
        }
        r.max_tokens = c[i].max_tokens;
        r.on_event = collect;
        r.user = &sinks[i];
        if (sv_engine_submit(e, &r, &out[i].id, &err))
            fail_msg("case %d: %s", i, err.msg);
        out[i].n_prompt = sinks[i].n_prompt = e->sched.tail->n_prompt;
    }
    char msg[256];
    int rc;
    while ((rc = sv_step_engine(e, msg, sizeof msg)) > 0)
        sv_cache_check(&e->cache);
    if (rc < 0)
        fail_msg("step: %s", msg);
    assert_int_equal(e->n_flight, 0); /* no request is left to wait for it */
    for (int32_t i = 0; i < n; i++)
        assert_true(out[i].finish != SV_FINISH_NONE);
    for (int32_t g = 0; g < e->cache.n_groups; g++)
        assert_int_equal(sv_cache_n_free(&e->cache, g) + sv_cache_n_kept(&e->cache, g),
                         e->cache.group[g].n_pages);
    check_accept(&e->accept);
    free(sinks);
    return out;
}

void run_out_free(struct run_out *r, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        free(r[i].tokens);
        free(r[i].accept);
        free(r[i].text);
        free(r[i].lp);
        free(r[i].prompt_lp);
        free(r[i].requested);
        free(r[i].prompt_requested);
    }
    free(r);
}

static void same_logprobs(const struct sv_logprob_row *a, const struct sv_logprob_row *b, int32_t n,
                          const char *what, int32_t prompt)
{
    assert_int_equal(a != NULL, b != NULL);
    for (int32_t j = 0; a && j < n; j++)
        if (memcmp(&a[j], &b[j], sizeof a[j]))
            fail_msg(
                "%s: prompt %d, log probabilities of token %d differ: %.9g (rank %d), not %.9g "
                "(rank %d)",
                what, prompt, j, (double)b[j].logprob, b[j].rank, (double)a[j].logprob, a[j].rank);
}

void run_same(const struct run_out *a, const struct run_out *b, int32_t n, const char *what)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t m = a[i].n_tokens < b[i].n_tokens ? a[i].n_tokens : b[i].n_tokens;
        for (int32_t j = 0; j < m; j++)
            if (a[i].tokens[j] != b[i].tokens[j])
                fail_msg("%s: prompt %d token %d is %d, not %d", what, i, j, b[i].tokens[j],
                         a[i].tokens[j]);
        if (a[i].n_tokens != b[i].n_tokens || a[i].finish != b[i].finish)
            fail_msg("%s: prompt %d has %d tokens (%s), not %d (%s)", what, i, b[i].n_tokens,
                     sv_finish_name(b[i].finish), a[i].n_tokens, sv_finish_name(a[i].finish));
        same_logprobs(a[i].lp, b[i].lp, m, what, i);
        assert_int_equal(a[i].stop_id, b[i].stop_id);
        assert_int_equal(a[i].stop_index, b[i].stop_index);
    }
}

void run_same_steps(const struct run_out *a, const struct run_out *b, int32_t n, const char *what)
{
    run_same(a, b, n, what);
    for (int32_t i = 0; i < n; i++) {
        if (a[i].n_steps != b[i].n_steps)
            fail_msg("%s: prompt %d took %d steps, not %d", what, i, b[i].n_steps, a[i].n_steps);
        for (int32_t j = 0; j < a[i].n_steps; j++)
            if (a[i].accept[j] != b[i].accept[j])
                fail_msg("%s: prompt %d step %d brought %d tokens, not %d", what, i, j,
                         b[i].accept[j], a[i].accept[j]);
    }
}

const char *run_keep(const char *text)
{
    static char *kept[4096];
    static size_t n;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(kept[i], text))
            return kept[i];
    assert_true(n < sizeof kept / sizeof kept[0]);
    return kept[n++] = strdup(text);
}

const char *run_dir(const char *relative)
{
    return run_keep(sv_test_path(relative));
}

void run_set_costs(struct sv_policy *p)
{
    struct sv_cost *c = &p->cost;
    c->plain.n = c->wide.n = c->draft_rows.n = c->draft_out.n = c->thin.n = c->n_ctx = 0;
    for (int32_t n = 1; n <= p->n_slots; n++)
        sv_curve_add(&c->plain, n, 100 + n);
    sv_curve_add(&c->wide, 2, 110);
    sv_curve_add(&c->wide, p->n_slots * p->block, 110 + 2 * p->n_slots * p->block);
    sv_curve_add(&c->draft_rows, 2, 50);
    sv_curve_add(&c->draft_rows, p->n_slots * p->block, 100);
    sv_curve_add(&c->draft_out, p->block, 10);
}
