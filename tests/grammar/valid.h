/*
 * valid.h - a JSON schema validator for tests, written from the specification and nothing else: a
 * value is held against each keyword as it stands.
 *
 * Called by tests of grammars, which must never let through what it refuses. Must not: know how
 * src/grammar reads schemas.
 */
#ifndef SV_TEST_VALID_H
#define SV_TEST_VALID_H

#include <jansson.h>
#include <stdbool.h>

/* Whether v satisfies the schema, which is a part of root (for "#/..." references). */
bool schema_valid(const json_t *root, const json_t *schema, const json_t *v);
/* One JSON value, the whole of text; integers are reals. NULL: it is none. */
json_t *schema_value(const char *text, size_t n);

#endif
