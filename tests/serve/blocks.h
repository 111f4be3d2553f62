/*
 * blocks.h - parses streams of /v1/messages as clients of Anthropic's API do.
 *
 * Included by tests/serve/test_*.c. Must not: know how the server makes them.
 */
#ifndef SV_TEST_SERVE_BLOCKS_H
#define SV_TEST_SERVE_BLOCKS_H

#include "base/base.h"

/* The message that the events come to, with the last usage; their order is checked. A call whose
 * arguments are no JSON has no input. */
json_t *blocks_of_stream(json_t *events);
/* Takes out what differs from answer to answer: ids, signatures, usage. */
void blocks_forget_ids(json_t *message);

#endif
