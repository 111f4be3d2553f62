/*
 * grammars.h - grammars of constrained answers, compiled beside the loop and cached by their
 * source.
 *
 * Called by call.c and serve.c on the loop's thread, but for the source, which is written where the
 * body is read.
 */
#ifndef SV_SERVE_CORE_GRAMMARS_H
#define SV_SERVE_CORE_GRAMMARS_H

#include "serve/core/call.h"

/* All that the grammar depends on, as bytes; none without a constraint. */
int sv_constraint_source(const struct sv_params *p, struct sv_buf *source, struct sv_api_err *e);
/* Looks for the grammar of c->source. 0: it is c->grammar; 1: it will be, and
 * sv_call_grammar_ready is called then. */
int sv_grammars_want(struct sv_serve *s, struct sv_call *c, struct sv_api_err *e);
void sv_grammars_close(struct sv_serve *s);

#endif
