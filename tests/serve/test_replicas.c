/*
 * test_replicas.c - several replicas behind one server: the same text, routing of requests, and
 * what happens when one of them fails or the server ends while they work. All of it also with
 * replicas behind links, as in processes of their own.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"

/* On GPUs each replica needs one of its own (tests/gpu.sh). */
static const char *device(void)
{
    const char *name = sv_env("SALVO_TEST_DEVICE");
    return name ? name : "cpu";
}

/* ---------------------------------------------------------------- text */

#ifdef __SANITIZE_THREAD__
#define MOST "\"max_tokens\":8" /* a pass takes ten times as long there */
#else
#define MOST "\"max_tokens\":24"
#endif

static const struct {
    const char *path, *body;
} asked[] = {
    {TEXT, "{\"prompt\":\"What is 12 times 13?\"," MOST ",\"temperature\":0}"},
    {TEXT, "{\"prompt\":\"def add(a, b):\"," MOST ",\"temperature\":0,\"logprobs\":2}"},
    {TEXT, "{\"prompt\":\"Once upon\"," MOST ",\"temperature\":0.9,\"seed\":7,\"n\":3}"},
    {TEXT, "{\"prompt\":[\"a\",\"b\",\"c\"],\"max_tokens\":12,\"temperature\":1,\"seed\":3}"},
    {TEXT, "{\"prompt\":\"x\",\"max_tokens\":12,\"temperature\":0,\"prompt_logprobs\":1}"},
    /* one grammar for matchers on two threads */
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]," MOST ",\"n\":4,"
           "\"temperature\":1,\"seed\":5,\"response_format\":{\"type\":\"json_schema\","
           "\"json_schema\":{\"name\":\"s\",\"schema\":{\"type\":\"object\",\"properties\":{"
           "\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\",\"b\"],"
           "\"additionalProperties\":false}}}}"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]," MOST ",\"n\":2,"
           "\"temperature\":0,\"stop_regex\":\"[0-9]+ and\"}"},
};
enum { N_ASKED = sizeof asked / sizeof asked[0] };

/* All at once; their answers, borrowed until close. */
static void ask_all(struct hub *r, json_t *answers[N_ASKED])
{
    int fd[N_ASKED];

    for (int i = 0; i < N_ASKED; i++) {
        fd[i] = hub_connect(r);
        hub_post(fd[i], asked[i].path, "", asked[i].body);
    }
    for (int i = 0; i < N_ASKED; i++) {
        struct sv_err err = {0};
        struct answer a;
        answer_init(&a);
        answer_read(fd[i], &a);
        if (a.status != 200)
            fail_msg("%s: %d %s", asked[i].body, a.status, a.body.data);
        json_t *v = sv_json_parse(a.body.data, a.body.len, &err);
        assert_non_null(v);
        answers[i] = json_deep_copy(json_object_get(v, "choices"));
        json_decref(v);
        answer_fini(&a);
        close(fd[i]);
    }
}

/* Grammars, seeds, choices and log probabilities: every replica gives what one engine gives. */
static void the_same_text(void **state)
{
    json_t *one[N_ASKED], *two[N_ASKED];

    for (int n = 1; n <= 2; n++) {
        struct hub r = {.real = true, .o.replicas = n, .o.engine.n_threads = 2};
        r.far = *state != NULL;
        r.o.engine.device = device();
        hub_open(&r, false);
        ask_all(&r, n == 1 ? one : two);
        for (int i = 0; i < n && n > 1; i++) {
            char name[64];
            snprintf(name, sizeof name, "salvo_steps_total{replica=\"%d\"}", i);
            assert_true(hub_metric(&r, name) > 0);
        }
        hub_close(&r);
    }
    for (int i = 0; i < N_ASKED; i++) {
        hub_same(one[i], two[i], asked[i].body);
        json_decref(one[i]);
        json_decref(two[i]);
    }
}

/* ---------------------------------------------------------------- routing */

#define LONG                                                                                       \
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on; the fox then runs to "    \
    "the river, drinks, looks around, and finds nobody there but an old heron that stands on "     \
    "one leg. Neither of them says a word, as both of them know how such a tale must end: "

static int64_t cached(struct hub *r, const char *more)
{
    char body[1000];

    snprintf(body, sizeof body, "{\"prompt\":\"%s%s\",\"max_tokens\":1}", LONG, more);
    return hub_number(hub_json(r, TEXT, body, 200), "usage.prompt_tokens_details.cached_tokens");
}

/* Whether a prompt goes to replica 1, which has its prefix, though replica 0 is idle and comes
 * first. *found: of the prefix; measured costs decide whether a request that drafts can use it. */
static bool goes_to_1(struct hub *r, int64_t *found)
{
    hub_json(r, "/replicas/0/drain", "", 200);
    assert_int_equal(cached(r, "they part."), 0);
    hub_json(r, "/replicas/0/resume", "", 200);
    double queries = hub_metric(r, "salvo_prefix_queries_total{replica=\"1\"}");
    *found = cached(r, "they meet again.");
    return *found > 0 || hub_metric(r, "salvo_prefix_queries_total{replica=\"1\"}") > queries;
}

/* Costs that were measured are the policy's. */
static void prefixes(void **state)
{
    struct hub r = {.real = true, .o.replicas = 2, .o.engine.n_threads = 2};
    int64_t found;
    r.far = *state != NULL;
    r.o.engine.auto_width = true;
    r.o.engine.device = device();

    hub_open(&r, false);
    assert_true(hub_metric(&r, "salvo_step_cost_seconds{replica=\"1\",step=\"prompt_row\"}") > 0);
    bool routed = goes_to_1(&r, &found);
    /* on a busy machine a process may answer too late */
    for (int i = 0; i < 20 && r.far && !routed; i++) {
        hub_ask(&r, "/flush_cache", NULL, &r.a);
        routed = goes_to_1(&r, &found);
    }
    assert_true(routed);
    hub_metric_becomes(&r, "salvo_prefix_hits_total{replica=\"1\"}", (double)found);
    assert_int_equal(hub_metric(&r, "salvo_prefix_hits_total{replica=\"0\"}"), 0);
    /* nothing is known of this one: the lowest of two idle ones */
    double queries = hub_metric(&r, "salvo_prefix_queries_total{replica=\"0\"}");
    hub_json(&r, TEXT, "{\"prompt\":\"Another tale, of another fox\",\"max_tokens\":1}", 200);
    assert_true(hub_metric(&r, "salvo_prefix_queries_total{replica=\"0\"}") > queries);
    /* a flush is one of all replicas */
    hub_ask(&r, "/flush_cache", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    assert_int_equal(cached(&r, "they part."), 0);
    hub_close(&r);
}

/* A quarter of an hour, at a millisecond for each step. */
#define ENDLESS "{\"prompt\":\"one two\",\"max_tokens\":1000000,\"stream\":true}"

static int64_t unfinished(struct hub *r, int replica)
{
    char where[40];

    snprintf(where, sizeof where, "replicas.%d.unfinished", replica);
    return hub_number(hub_json(r, "/health", NULL, 200), where);
}

static void load_spreads(void **state)
{
    struct hub r = {.o.replicas = 3, .fake.step_us = 1000, .o.engine.max_sequences = 6};
    int fd[6];
    r.far = *state != NULL;
    r.o.engine.context = 1 << 20;

    hub_open(&r, false);
    for (int i = 0; i < 6; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], TEXT, "", ENDLESS);
        char first; /* of its answer: the prompt does not count any more */
        assert_int_equal(recv(fd[i], &first, 1, MSG_PEEK), 1);
        for (int k = 0; k < 3; k++)
            assert_int_equal(unfinished(&r, k), (i + 3 - k) / 3);
    }
    for (int i = 0; i < 6; i++)
        close(fd[i]);
    hub_close(&r);
}

/* ---------------------------------------------------------------- failures */

/* Replicas other than the first fail at fail_at_step. */
static int open_frail(struct sv_serve_engine *out, const struct sv_engine_options *o,
                      const void *arg, struct sv_err *err)
{
    struct sv_serve_fake fake = *(const struct sv_serve_fake *)arg;

    if (o->replica == 0)
        fake.fail_at_step = 0;
    return sv_serve_open_fake_engine(out, o, &fake, err);
}

static void open_two(struct hub *r, int fail_at_step)
{
    r->o.replicas = 2;
    r->o.engine.context = 1 << 20;
    r->o.open_engine = open_frail;
    r->fake.step_us = 2000;
    r->fake.fail_at_step = fail_at_step;
    hub_open(r, false);
}

/* Keeps the first replica busy. */
static int keep_busy(struct hub *r)
{
    int fd = hub_connect(r);

    hub_post(fd, TEXT, "", ENDLESS);
    while (!unfinished(r, 0))
        hub_nap_ms(1);
    return fd;
}

static void is_degraded(struct hub *r, const char *why)
{
    json_t *v = hub_json(r, "/health", NULL, 200);

    assert_string_equal(hub_text(v, "status"), "degraded");
    assert_string_equal(hub_text(v, "replicas.0.status"), "ok");
    assert_string_equal(hub_text(v, "replicas.1.status"), "failed");
    assert_string_equal(hub_text(v, "replicas.1.message"), why);
    assert_int_equal(hub_number(v, "replicas.1.unfinished"), 0);
    assert_true(hub_metric(r, "salvo_ready") == 1);
    assert_true(hub_metric(r, "salvo_replica_up{replica=\"0\"}") == 1);
    assert_true(hub_metric(r, "salvo_replica_up{replica=\"1\"}") == 0);
}

/* Whole answers, of which the client has nothing yet, and a stream before its first text: another
 * replica gives them from the start. */
static void nothing_was_sent(void **state)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"five six seven\",\"max_tokens\":9}",
        "{\"prompt\":\"five six seven\",\"max_tokens\":9,\"logprobs\":1,\"n\":2}",
        "{\"prompt\":\"five six seven\",\"max_tokens\":9,\"stream\":true}",
    };

    for (int i = 0; i < 3; i++) {
        struct hub whole = {.fake.step_us = 2000}, r = {0};
        r.far = *state != NULL;
        hub_open(&whole, false);
        open_two(&r, i == 2 ? 1 : 4);
        int fd = keep_busy(&r);
        if (i == 2) {
            hub_same(hub_at(hub_events(&r, TEXT, bodies[i]), "0.choices"),
                     hub_at(hub_events(&whole, TEXT, bodies[i]), "0.choices"), bodies[i]);
        } else {
            json_t *got = hub_json(&r, TEXT, bodies[i], 200),
                   *want = hub_json(&whole, TEXT, bodies[i], 200);
            hub_same(hub_at(got, "choices"), hub_at(want, "choices"), bodies[i]);
            assert_int_equal(hub_number(got, "usage.completion_tokens"),
                             hub_number(want, "usage.completion_tokens"));
        }
        is_degraded(&r, "the fake device failed");
        hub_json(&r, TEXT, bodies[0], 200); /* and who comes later goes there at once */
        assert_int_equal(unfinished(&r, 0), 1);
        close(fd);
        hub_close(&r);
        hub_close(&whole);
        assert_int_equal(r.rc, SV_OK);
    }
}

static void a_stream_has_begun(void **state)
{
    struct hub r = {.far = *state != NULL};

    open_two(&r, 4);
    int fd = keep_busy(&r);
    json_t *events =
        hub_events(&r, TEXT, "{\"prompt\":\"five six seven\",\"max_tokens\":9,\"stream\":true}");
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_true(json_array_size(events) > 1);
    assert_string_equal(hub_text(last, "error.message"), "replica 1: the fake device failed");
    is_degraded(&r, "the fake device failed");
    close(fd);
    hub_close(&r);
}

/* The process of a replica ends amid an answer of which nothing was sent. */
static void a_process_ends(void **state)
{
    struct hub whole = {.fake.step_us = 2000}, r = {.far = *state != NULL, .held = true};
    const char *body = "{\"prompt\":\"five six seven\",\"max_tokens\":300,\"n\":3}";
    struct answer a;

    hub_open(&whole, false);
    open_two(&r, 0);
    int busy = keep_busy(&r), fd = hub_connect(&r);
    hub_post(fd, TEXT, "", body);
    hub_metric_becomes(&r, "salvo_running_sequences{replica=\"1\"}", 2);
    hub_cut(&r, 1);
    hub_let(&r, HUB_ALL);
    answer_init(&a);
    answer_read(fd, &a);
    assert_int_equal(a.status, 200);
    struct sv_err err = {0};
    json_t *got = sv_json_parse(a.body.data, a.body.len, &err);
    hub_same(hub_at(got, "choices"), hub_at(hub_json(&whole, TEXT, body, 200), "choices"), body);
    json_decref(got);
    answer_fini(&a);
    is_degraded(&r, "process 1 on here has ended");
    hub_ask(&r, "/flush_cache", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    close(fd);
    close(busy);
    hub_close(&r);
    hub_close(&whole);
}

static void none_is_left(void **state)
{
    struct hub r = {.o.replicas = 2, .fake.step_us = 2000, .fake.fail_at_step = 3};
    r.far = *state != NULL;

    hub_open(&r, false);
    /* runs on the first, then on the second, and then nowhere */
    hub_ask(&r, TEXT, "{\"prompt\":\"five six\",\"max_tokens\":9}", &r.a);
    assert_int_equal(r.a.status, 500);
    assert_non_null(strstr(r.a.body.data, "replica 1: the fake device failed"));
    /* what the second gave as the first did is one answer */
    assert_int_equal(hub_metric(&r, "salvo_generated_tokens_total"), 2);
    assert_int_equal(hub_metric(&r, "salvo_time_to_first_token_seconds_count"), 1);
    assert_int_equal(hub_metric(&r, "salvo_inter_token_seconds_count"), 1);
    json_t *v = hub_json(&r, "/health", NULL, 503);
    assert_string_equal(hub_text(v, "status"), "failed");
    assert_string_equal(hub_text(v, "replicas.0.status"), "failed");
    hub_json(&r, TEXT, "{\"prompt\":\"five six\",\"max_tokens\":9}", 503);
    hub_close(&r);
    assert_int_equal(r.rc, SV_EDEVICE);
}

/* ---------------------------------------------------------------- drains */

static void is_replica(struct hub *r, int replica, const char *status, int n_unfinished)
{
    json_t *v = hub_json(r, "/health", NULL, 200);
    char where[40];

    assert_string_equal(hub_text(v, "status"), "ok");
    snprintf(where, sizeof where, "replicas.%d.status", replica);
    assert_string_equal(hub_text(v, where), status);
    assert_int_equal(unfinished(r, replica), n_unfinished);
}

/* It finishes what it has, gets nothing new, though it is the idle one, and takes requests again
 * once it is resumed. */
static void one_is_drained(void **state)
{
    struct hub r = {.far = *state != NULL, .held = true};
    struct answer a;
    int last[2];

    open_two(&r, 0);
    hub_json(&r, "/replicas/2/drain", "{}", 404);
    hub_json(&r, "/replicas/-1/drain", "{}", 404);
    hub_json(&r, "/replicas/1/drains", "{}", 404);
    hub_json(&r, "/replicas/1/resume/", "{}", 200);
    int busy = keep_busy(&r), fd = hub_connect(&r);
    hub_post(fd, TEXT, "", "{\"prompt\":\"one two\",\"max_tokens\":600}");
    while (!unfinished(&r, 1))
        hub_nap_ms(1);
    json_t *v = hub_json(&r, "/replicas/1/drain", "", 200);
    assert_string_equal(hub_text(v, "status"), "draining");
    assert_int_equal(hub_number(v, "unfinished"), 1);
    is_replica(&r, 1, "draining", 1);
    for (int i = 0; i < 2; i++) {
        last[i] = hub_connect(&r);
        hub_post(last[i], TEXT, "", ENDLESS);
        while (unfinished(&r, 0) < i + 2)
            hub_nap_ms(1);
    }
    hub_let(&r, HUB_ALL);
    answer_init(&a);
    answer_read(fd, &a);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"completion_tokens\":600"));
    answer_fini(&a);
    is_replica(&r, 1, "drained", 0);
    assert_true(hub_metric(&r, "salvo_replica_drained{replica=\"1\"}") == 1);
    assert_true(hub_metric(&r, "salvo_replica_up{replica=\"1\"}") == 1);
    v = hub_json(&r, "/replicas/0/drain", "", 409);
    assert_string_equal(hub_text(v, "error.message"),
                        "replica 0 is the last that takes requests: SIGTERM ends the server");
    assert_string_equal(hub_text(hub_json(&r, "/replicas/1/resume", "", 200), "status"), "ok");
    assert_true(hub_metric(&r, "salvo_replica_drained{replica=\"1\"}") == 0);
    hub_post(fd, TEXT, "", ENDLESS);
    while (!unfinished(&r, 1))
        hub_nap_ms(1);
    for (int i = 0; i < 2; i++)
        close(last[i]);
    close(fd);
    close(busy);
    hub_close(&r);
    assert_int_equal(r.rc, SV_OK);
}

/* The others fail: a drained one takes nothing in their place, before it is resumed. */
static void the_others_fail(void **state)
{
    const char *body = "{\"prompt\":\"five six\",\"max_tokens\":9}";
    struct hub r = {.far = *state != NULL};

    open_two(&r, 4);
    hub_json(&r, "/replicas/0/drain", "", 200);
    hub_ask(&r, TEXT, body, &r.a);
    assert_int_equal(r.a.status, 500);
    assert_non_null(strstr(r.a.body.data, "replica 1: the fake device failed"));
    hub_ask(&r, TEXT, body, &r.a);
    assert_int_equal(r.a.status, 503);
    assert_non_null(strstr(r.a.body.data, "the replicas that have not failed are drained"));
    json_t *v = hub_json(&r, "/health", NULL, 503);
    assert_string_equal(hub_text(v, "status"), "draining");
    assert_string_equal(hub_text(v, "replicas.0.status"), "drained");
    assert_true(hub_metric(&r, "salvo_ready") == 0);
    v = hub_json(&r, "/replicas/1/resume", "", 409);
    assert_string_equal(hub_text(v, "error.message"),
                        "replica 1 has failed: the fake device failed");
    hub_json(&r, "/replicas/0/resume", "", 200);
    hub_json(&r, TEXT, body, 200);
    is_degraded(&r, "the fake device failed");
    hub_close(&r);
}

/* ---------------------------------------------------------------- the end */

static void ends_while_they_work(void **state)
{
    enum { N = 7 };
    struct hub r = {.o.replicas = 3, .fake.step_us = 500};
    int fd[N];
    r.far = *state != NULL;
    r.o.engine.context = 1 << 20;

    hub_open(&r, false);
    for (int i = 0; i < N; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], i & 1 ? TEXT : "/completion", "",
                 "{\"prompt\":\"one two\",\"max_tokens\":1000000}");
    }
    hub_metric_becomes(&r, "salvo_running_sequences{replica=\"2\"}", 2);
    sv_serve_stop(r.s); /* and once more in hub_close: it ends at once */
    hub_close(&r);
    for (int i = 0; i < N; i++)
        close(fd[i]);
}

/* After the first stop what runs is finished, on every replica, and nothing new is taken. */
static void drains(void **state)
{
    enum { N = 4 };
    struct hub r = {.o.replicas = 2, .held = true};
    struct answer a;
    int fd[N];
    r.far = *state != NULL;

    hub_open(&r, false);
    int idle = hub_connect(&r);
    for (int i = 0; i < N; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], TEXT, "", "{\"prompt\":\"one two\",\"max_tokens\":100}");
    }
    while (unfinished(&r, 0) + unfinished(&r, 1) < N)
        hub_nap_ms(1);
    assert_int_equal(unfinished(&r, 1), N / 2);
    hub_drain(&r, idle);
    hub_let(&r, HUB_ALL);
    for (int i = 0; i < N; i++) {
        answer_init(&a);
        answer_read(fd[i], &a);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body.data, "\"completion_tokens\":100"));
        answer_fini(&a);
        close(fd[i]);
    }
    close(idle);
    hub_wait(&r);
    hub_close(&r);
    assert_int_equal(r.rc, SV_OK);
}

/* As threads of the server, and at the other end of links. */
static int far;
#define FAR(test)                                                                                  \
    {                                                                                              \
        "far_" #test, test, NULL, NULL, &far                                                       \
    }
#define BOTH(test) cmocka_unit_test(test), FAR(test)

SV_TEST_MAIN(BOTH(the_same_text), BOTH(prefixes), BOTH(load_spreads), BOTH(nothing_was_sent),
             BOTH(a_stream_has_begun), FAR(a_process_ends), BOTH(none_is_left),
             BOTH(one_is_drained), BOTH(the_others_fail), BOTH(ends_while_they_work), BOTH(drains))
