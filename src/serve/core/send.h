/*
 * send.h - what call.c, pacing.c, send.c, grammars.c and serve.c share of a call's output.
 *
 * On the loop's thread. Dialects do not include it.
 */
#ifndef SV_SERVE_CORE_SEND_H
#define SV_SERVE_CORE_SEND_H

#include "serve/core/call.h"

/* call.c */
void sv_call_set_due(struct sv_call *c);
void sv_call_free(struct sv_call *c);
/* c->grammar is compiled, or rc and e say why not. */
void sv_call_grammar_ready(struct sv_call *c, int rc, struct sv_api_err *e);

/* pacing.c. After a batch of the worker's reports, flush sends their output with one write to each
 * client. First chunks and ends are sent at once. With `all` every stream is written to: after the
 * step that ends nearest to one gap since the last such flush, or when output has waited for that
 * long. streams_due: whether that time has come. */
bool sv_call_streams_due(const struct sv_serve *s);
void sv_call_flush(struct sv_serve *s, bool all);

/* send.c. keep: adds an event's log probabilities to the choice; false if memory ran out. */
bool sv_call_keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o);
/* Writes a chunk of its own for what has just come. */
void sv_call_chunk(struct sv_call *c, struct sv_choice *ch);
/* Sends an error and cancels the sequences. */
void sv_call_fail(struct sv_call *c, const struct sv_api_err *e);
void sv_call_fail_no_memory(struct sv_call *c);
/* Sends all that has come. Frees the call if its sequences have ended. */
void sv_call_send(struct sv_call *c);
/* Keeps a report while the other thread writes the call; replay handles those that were kept. */
void sv_call_hold(struct sv_call *c, const struct sv_out *o);
void sv_call_replay(struct sv_call *c);
/* Retries calls that found no room on the other thread. */
void sv_call_unblock(struct sv_serve *s);
void sv_call_tick(struct sv_serve *s, int64_t now_us); /* pings */

#endif
