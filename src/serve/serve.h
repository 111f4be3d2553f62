/*
 * serve.h - front header of src/serve: an HTTP server in the APIs of OpenAI, Anthropic, SGLang and
 * llama-server.
 *
 * Called by cli and tests. The caller's thread runs the event loop (HTTP, JSON, tokenizing,
 * templates); each replica's worker has one of its own that opens an engine and steps it. Loop and
 * worker share a bounded queue of commands, batches of results, a snapshot of statistics
 * (base/channel.c), and the engine's answer to how much of a prompt is in its prefix cache. Must
 * not: touch an engine otherwise outside its worker's thread.
 */
#ifndef SV_SERVE_H
#define SV_SERVE_H

#include "base/base.h"
#include "serve/core/options.h"

struct sv_serve;

/* Listens; the model is loaded meanwhile. Strings are borrowed until close. */
int sv_serve_open(struct sv_serve **s, const struct sv_serve_options *o, struct sv_err *err);
int sv_serve_port(const struct sv_serve *s);
/* Serves until it is stopped. An error, which the log has too, when the model could not be loaded
 * or its device failed. */
int sv_serve_run(struct sv_serve *s, struct sv_err *err);
/* From any thread or signal handler: the first call drains, the second one ends at once. */
void sv_serve_stop(struct sv_serve *s);
/* Whether the event loop has seen a call of sv_serve_stop. From any thread or signal handler. */
bool sv_serve_is_stopping(const struct sv_serve *s);
void sv_serve_close(struct sv_serve *s);
/* Whether an engine is still being opened. Close would wait for that: sv_serve_leave only
 * lets go of what others see (sockets), and the process must end with _exit. */
bool sv_serve_is_loading(const struct sv_serve *s);
void sv_serve_leave(struct sv_serve *s);

int32_t sv_serve_n_live(const struct sv_serve *s); /* replicas that have not failed */

/* In the first process of a replica other than the first one, instead of all this: its engine works
 * for process 0 until that ends it, or is gone (an error). */
int sv_serve_replica(const struct sv_serve_options *o, struct sv_err *err);

/* What a request body does before a sequence exists, for fuzzing: parse and check, no engine. path
 * is one of the POST endpoints. Returns the HTTP status it would get, 200 when it would run. */
int sv_serve_check_body(const char *path, const char *body, size_t n);
/* A chat's too, up to its prompt as text, through a template as --chat-template takes it. Small
 * limits. */
int sv_serve_check_chat(const char *template, size_t n_template, const char *body, size_t n);

#endif
