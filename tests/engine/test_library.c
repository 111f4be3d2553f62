/*
 * test_library.c - unusual uses of salvo.h: requests from inside callbacks, no buffer for messages,
 * invalid values. The engine is driven through the public header alone.
 */
#include "testing.h"

#include "base/base.h" /* a clock */
#include "salvo.h"

#include <math.h>
#include <string.h>

static struct sv_engine *open_pair(void)
{
    struct sv_engine_options o = sv_default_options();
    struct sv_engine *e = NULL;
    char err[512] = "";

    o.target_dir = sv_test_path("tests/golden/tiny/pair_target");
    o.draft_dir = sv_test_path("tests/golden/tiny/pair_draft_full_b16");
    o.n_threads = 1;
    o.max_sequences = 2;
    if (sv_open_engine(&e, &o, err, sizeof err) < 0)
        fail_msg("%s", err);
    return e;
}

/* A chain of requests, each submitted when the one before has ended. */
struct chain {
    struct sv_engine *engine;
    int left, n_ended, n_refused, n_canceled;
    bool cancel_self;
    char err[256];
};

static void on_event(void *user, const struct sv_event *ev)
{
    struct chain *c = user;
    struct sv_request_stats stats;

    assert_int_equal(sv_get_request_stats(c->engine, ev->request, &stats), 0);
    if (c->cancel_self)
        sv_cancel_request(c->engine, ev->request);
    if (!ev->finish)
        return;
    c->n_ended++;
    c->n_canceled += ev->finish == SV_FINISH_CANCELED;
    if (c->left-- > 0) {
        struct sv_request r = sv_default_request(c->engine);
        r.prompt = "hello";
        r.max_tokens = 5;
        r.on_event = on_event;
        r.user = c;
        c->n_refused += sv_submit_request(c->engine, &r, NULL, c->err, sizeof c->err) < 0;
    }
}

static void submit(struct sv_engine *e, struct chain *c, int32_t max_tokens)
{
    struct sv_request r = sv_default_request(e);

    c->engine = e;
    r.prompt = "hello";
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.on_event = on_event;
    r.user = c;
    assert_int_equal(sv_submit_request(e, &r, NULL, NULL, 0), 0);
}

static void callbacks_may_submit_and_cancel(void **state)
{
    (void)state;
    struct sv_engine *e = open_pair();
    struct chain chain = {.left = 7}, other = {.left = 2}, self = {.cancel_self = true};

    submit(e, &chain, 20);
    submit(e, &other, 3);
    submit(e, &self, 200);
    while (sv_step_engine(e, NULL, 0) > 0)
        ;
    assert_int_equal(chain.n_ended, 8);
    assert_int_equal(other.n_ended, 3);
    assert_int_equal(self.n_ended, 1);
    assert_int_equal(self.n_canceled, 1);
    assert_int_equal(chain.n_refused + chain.n_canceled, 0);
    sv_close_engine(e);
}

/* A caller that submits again at every end gets an error while closing, and nothing is left
 * behind. */
static void closing_takes_no_more(void **state)
{
    (void)state;
    struct sv_engine *e = open_pair();
    struct chain chain = {.left = 100}, waits = {.left = 100};

    submit(e, &chain, 100);
    submit(e, &waits, 100);
    assert_true(sv_step_engine(e, NULL, 0) > 0);
    sv_close_engine(e);
    assert_int_equal(chain.n_ended, 1);
    assert_int_equal(waits.n_ended, 1);
    assert_int_equal(chain.n_canceled + waits.n_canceled, 2);
    assert_int_equal(chain.n_refused + waits.n_refused, 2);
    assert_non_null(strstr(chain.err, "closed"));
}

static void open_says_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        struct sv_engine_options o;
        const char *says;
    } cases[] = {
        {{.target_dir = NULL}, "target_dir"},
        {{.target_dir = "/nonexistent"}, "/nonexistent/config.json"},
        {{.target_dir = "/", .n_threads = -1}, "n_threads"},
        {{.target_dir = "/", .max_sequences = 5000}, "max_sequences"},
        {{.target_dir = "/", .context = -5}, "context"},
        {{.target_dir = "/", .page_size = 4096}, "page_size"},
        {{.target_dir = "/", .width = 65}, "width"},
        {{.target_dir = "/", .cache_mib = -1}, "cache_mib"},
        {{.target_dir = "/", .cache_mib = INT64_MAX}, "cache_mib"},
        {{.target_dir = "/", .prefill_chunk = -1}, "prefill_chunk"},
        {{.target_dir = "/", .gpu_memory = NAN}, "gpu_memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char err[256] = "", tiny[4] = "abc";
        struct sv_engine *e = (struct sv_engine *)(void *)err; /* must not stay what it was */
        assert_true(sv_open_engine(&e, &cases[i].o, err, sizeof err) < 0);
        if (!strstr(err, cases[i].says))
            fail_msg("case %zu: \"%s\" does not mention \"%s\"", i, err, cases[i].says);
        assert_null(e);
        assert_true(sv_open_engine(&e, &cases[i].o, tiny, sizeof tiny) < 0);
        assert_int_equal(strlen(tiny), 3); /* cut, ended */
        assert_true(sv_open_engine(&e, &cases[i].o, NULL, 0) < 0);
    }
    sv_close_engine(NULL);
}

static void submit_says_what_is_wrong(void **state)
{
    (void)state;
    struct sv_engine *e = open_pair();
    static const char *const stops[] = {"a", NULL};
    static const int32_t five[] = {5};
    static const struct {
        struct sv_request r;
        const char *says;
    } cases[] = {
        {{.top_p = NAN, .prompt = "x"}, "top_p"},
        {{.top_p = 1, .temperature = NAN, .prompt = "x"}, "temperature"},
        {{.top_p = 1, .min_p = NAN, .prompt = "x"}, "min_p"},
        {{.top_p = 1, .presence_penalty = NAN, .prompt = "x"}, "presence"},
        {{.top_p = 1, .repetition_penalty = -1, .prompt = "x"}, "repetition"},
        {{.top_p = 1, .prompt = ""}, "empty"},
        {{.top_p = 1, .stop = stops, .n_stop = 2, .prompt = "x"}, "stop string 1"},
        {{.top_p = 1, .n_stop = 2, .prompt = "x"}, "n_stop"},
        {{.top_p = 1, .n_stop_ids = -1, .prompt = "x"}, "n_stop_ids"},
        {{.top_p = 1, .n_bias = 3, .prompt = "x"}, "bias"},
        {{.top_p = 1, .n_top_logprobs = 3, .prompt = "x"}, "top"},
        {{.top_p = 1, .n_top_logprobs = 21, .logprobs = true, .prompt = "x"}, "top"},
        {{.top_p = 1, .width = -1, .prompt = "x"}, "width"},
        {{.top_p = 1, .min_tokens = -1, .prompt = "x"}, "min_tokens"},
        {{.top_p = 1, .n_prompt_ids = -1, .prompt_ids = five}, "empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char err[256] = "";
        assert_true(sv_submit_request(e, &cases[i].r, NULL, err, sizeof err) < 0);
        if (!strstr(err, cases[i].says))
            fail_msg("case %zu: \"%s\" does not mention \"%s\"", i, err, cases[i].says);
    }
    assert_int_equal(sv_step_engine(e, NULL, 0), 0); /* nothing was taken */
    sv_close_engine(e);
}

static void queries_know_their_limits(void **state)
{
    (void)state;
    struct sv_engine *e = open_pair();
    struct sv_request_stats stats;
    size_t n = 1;
    int32_t *ids, n_ids;

    assert_true(sv_get_request_stats(e, 12345, &stats) < 0);
    sv_cancel_request(e, 12345);
    sv_flush_cache(e);
    static const int32_t outside[] = {-1, INT32_MIN, 299, 300, INT32_MAX};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        assert_null(sv_token_bytes(e, outside[i], &n));
        assert_int_equal(n, 0);
    }
    assert_int_equal(sv_encode_text(e, "", 0, &ids, &n_ids, NULL, 0), 0);
    sv_free_ids(ids);
    assert_int_equal(sv_encode_text(e, "a\0b\xff", 4, &ids, &n_ids, NULL, 0), 0);
    assert_true(n_ids >= 4);
    sv_free_ids(ids);
    assert_string_equal(sv_finish_name(SV_FINISH_LENGTH), "length");
    assert_string_equal(sv_finish_name((enum sv_finish_reason)99), "?");
    assert_string_equal(sv_width_reason_name(-1), "?");
    assert_string_equal(sv_step_cost_name(SV_STEP_COSTS), "?");
    assert_non_null(sv_code_name(-12345));
    sv_close_engine(e);
}

/* When an answer's events came, and what its times were said to be. */
struct times {
    struct sv_engine *engine;
    int64_t submit_us, submitted_us, first_us, end_us; /* before and after submitting */
    struct sv_request_stats at_end;
};

static void note_times(void *user, const struct sv_event *ev)
{
    struct times *t = user;

    if (!t->first_us)
        t->first_us = sv_clock_us();
    if (!ev->finish)
        return;
    t->end_us = sv_clock_us();
    assert_int_equal(sv_get_request_stats(t->engine, ev->request, &t->at_end), 0);
}

/* Two requests in one slot, prompts a token a step: waiting, prompt and answer each take their own
 * time, and all three together the time from submitting to the end. */
static void times_add_up(void **state)
{
    (void)state;
    struct sv_engine_options o = sv_default_options();
    struct sv_engine *e = NULL;
    struct times t[2] = {{0}};
    int32_t ids[100];

    o.target_dir = sv_test_path("tests/golden/tiny/pair_target");
    o.n_threads = 1;
    o.max_sequences = o.prefill_chunk = 1;
    assert_int_equal(sv_open_engine(&e, &o, NULL, 0), 0);
    for (int i = 0; i < 100; i++)
        ids[i] = 3 + i;
    for (int i = 0; i < 2; i++) {
        struct sv_request r = sv_default_request(e);
        r.prompt_ids = ids + i; /* nothing in common */
        r.n_prompt_ids = 90;
        r.max_tokens = 60;
        r.ignore_eos = true;
        r.on_event = note_times;
        r.user = &t[i];
        t[i].engine = e;
        t[i].submit_us = sv_clock_us();
        assert_int_equal(sv_submit_request(e, &r, NULL, NULL, 0), 0);
        t[i].submitted_us = sv_clock_us();
    }
    while (sv_step_engine(e, NULL, 0) > 0)
        ;
    for (int i = 0; i < 2; i++) {
        const struct sv_request_stats *s = &t[i].at_end;
        assert_true(s->queue_us >= 0 && s->prefill_us > 0 && s->decode_us > 0);
        assert_true(s->queue_us + s->prefill_us + s->decode_us <= t[i].end_us - t[i].submit_us);
        assert_true(s->queue_us + s->prefill_us <= t[i].first_us - t[i].submit_us);
    }
    /* it waited for all of the first */
    assert_true(t[1].at_end.queue_us >= t[0].first_us - t[1].submitted_us);
    sv_close_engine(e);
}

SV_TEST_MAIN(cmocka_unit_test(callbacks_may_submit_and_cancel),
             cmocka_unit_test(closing_takes_no_more), cmocka_unit_test(open_says_what_is_wrong),
             cmocka_unit_test(submit_says_what_is_wrong),
             cmocka_unit_test(queries_know_their_limits), cmocka_unit_test(times_add_up))
