/*
 * hub.h - a server with the instant engine (or the demo pair) on a thread of this process, and a
 * client that sends raw bytes.
 *
 * Called by tests/serve/test_*.c. Must not: retry; what a test sends is what the server sees.
 */
#ifndef SV_TEST_SERVE_HUB_H
#define SV_TEST_SERVE_HUB_H

#include "serve/serve.h"

#include <stdatomic.h>

struct answer {
    int status;
    struct sv_buf head, body; /* body with chunks joined */
    bool chunked, closed;     /* closed: the connection ended before the answer did */
};
struct hub {
    struct sv_serve *s;
    struct sv_thread *thread;
    struct sv_serve_fake fake;
    struct sv_serve_options o;
    bool real; /* the demo pair instead, on the CPU, drafting always */
    /* Steps of the instant engine bring tokens when hub_let says so: what a test looks at is not
     * over before it has looked. Requests are taken, and end when they are canceled, all the same.
     */
    bool held;
    bool loads; /* its weights are loaded as `loaded` says, in percent, and not waited for */
    atomic_int steps_left, loaded;
    /* Replicas other than the first at the other end of links, as in processes of their own, each
     * in a thread here. */
    bool far;
    struct sv_processes processes;
    struct hub_host *host; /* (o.replicas) */
    int port, rc;
    json_t *answers; /* all that hub_json and hub_events gave */
    struct answer a; /* for whoever needs one only; from open to close */
};
/* Fill r->o and r->fake first (zeros are fine). Waits until the model is there unless no_wait, or
 * it loads. */
void hub_open(struct hub *r, bool no_wait);
void hub_close(struct hub *r);
/* As when the process of a replica ends. */
void hub_cut(struct hub *r, int replica);
/* Until the server has ended by itself; hub_close is still to come. */
void hub_wait(struct hub *r);
/* So many steps more of a server that is held; HUB_ALL: it is held no longer. */
#define HUB_ALL 1000000000
void hub_let(struct hub *r, int n_steps);
/* Tells it to stop, and waits until an idle connection sees that it takes no more. */
void hub_drain(struct hub *r, int idle);

/* A connected socket; with read time-out. */
int hub_connect(const struct hub *r);
void hub_send(int fd, const char *data, size_t n);
void hub_send_text(int fd, const char *text);
/* "POST path" with a JSON body and optional header lines ("A: b\r\n"). */
void hub_post(int fd, const char *path, const char *headers, const char *body);
void hub_get(int fd, const char *path, const char *headers);

/* Waits until what has come and was not read has this text; a minute at most. */
void hub_await(int fd, const char *text);

void answer_init(struct answer *a);
void answer_fini(struct answer *a);
/* Reads one answer. */
void answer_read(int fd, struct answer *a);
/* Whole exchange on a connection of its own. */
void hub_ask(const struct hub *r, const char *path, const char *body, struct answer *a);
void hub_nap_ms(int ms);
/* How often a text has another in it. */
size_t hub_count(const char *text, const char *what);
/* Asks, and fails unless the status is this one; the answer's JSON, borrowed until close. */
json_t *hub_json(struct hub *r, const char *path, const char *body, int status);
/* The events of a stream, without [DONE]: an array, borrowed too. */
json_t *hub_events(struct hub *r, const char *path, const char *body);
json_t *hub_events_of(const char *frames); /* of a stream's text; the caller's */
/* What lies at "a.b.0.c", or NULL; a text or integer there, or the test fails. */
json_t *hub_at(json_t *v, const char *where);
const char *hub_text(json_t *v, const char *where);
int64_t hub_number(json_t *v, const char *where);
/* Every answer of the parsers' own test (tests/reply/answers.json) that may be streamed: asked of a
 * server with its parser, which open has opened, its answers coming in bursts. Some 90 and more. */
void hub_each_answer(void (*open)(struct hub *r, const char *signs, int32_t burst),
                     void (*check)(struct hub *r, const char *text));
/* Fails unless both are there and equal. */
void hub_same(json_t *a, json_t *b, const char *what);
/* From sending a body to its answer on one connection, the longest time in which a stream on
 * another brought nothing. */
int64_t hub_silence(int stream, int asking, const struct sv_buf *body, const char *path,
                    struct answer *a, int64_t *took);
/* Closes it while eight clients wait for answers, by turns of one path and the other. */
void hub_close_amid(struct hub *r, const char *one, const char *other, const char *body);
/* Value of a metric. */
double hub_metric(const struct hub *r, const char *name);
/* Waits until it is so, however busy the machine is; a minute at most. */
void hub_metric_becomes(const struct hub *r, const char *name, double want);

#endif
