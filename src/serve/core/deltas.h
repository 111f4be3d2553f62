/*
 * deltas.h - a chat's answer as deltas: reasoning, content and tool calls, streamed or as a
 * message.
 *
 * Called by the dialects of chats and by call.c, on the loop's thread or on the one that writes
 * long answers. The delta's kinds are enum sv_part_kind of reply/reply.h.
 */
#ifndef SV_SERVE_CORE_DELTAS_H
#define SV_SERVE_CORE_DELTAS_H

#include "serve/core/call.h"

int sv_deltas_open(struct sv_choice *ch);
void sv_deltas_close(struct sv_choice *ch);
/* Parses text of the answer; the deltas that result wait in ch->deltas. Without a parser (no tools,
 * no reasoning) all text is content. */
void sv_deltas_push(struct sv_choice *ch, const char *text, size_t n, enum sv_finish_reason finish);

/* Reads the delta at *at, which is 0 at first, and advances; false at the end. */
bool sv_deltas_read(const struct sv_choice *ch, size_t *at, struct sv_part *p);
/* Writes the text of p and of the deltas after it of the same kind and call as one JSON string. */
void sv_deltas_quote(struct sv_buf *b, const struct sv_choice *ch, size_t *at, struct sv_part p);
/* Writes the id of a tool call, or an id with another prefix: random, and the same at each call. */
void sv_deltas_call_id(struct sv_buf *b, const struct sv_choice *ch, int32_t call);
void sv_deltas_id(struct sv_buf *b, const struct sv_choice *ch, const char *prefix, int32_t which);

/* OpenAI's shape. Appends the next waiting delta as an object. False: none is left, and all are
 * dropped. */
bool sv_deltas_write_next(struct sv_choice *ch, size_t *at, struct sv_buf *b);
/* The members of a whole answer's message, parsed from ch->text. */
void sv_deltas_message(struct sv_choice *ch, struct sv_buf *b);
const char *sv_deltas_finish(const struct sv_choice *ch); /* as sv_finish_json */

int64_t sv_deltas_n_reasoning_tokens(struct sv_choice *ch);

#endif
