/*
 * schemas.h - random JSON schemas, random walks through their grammars, and values that may satisfy
 * them.
 *
 * Called by tests that hold grammars of schemas against validators. Must not: ask src/grammar what
 * a schema means.
 */
#ifndef SV_TEST_SCHEMAS_H
#define SV_TEST_SCHEMAS_H

#include "grammar/words.h"

#include <jansson.h>

struct schemas {
    struct sv_rng rng;
    bool more; /* with keywords that the validator of valid.h does not know */
};

/* A schema whose references stay inside. */
json_t *schemas_draw(struct schemas *r);
/* One random text of the grammar; false: it did not end. A walk that cannot go on fails the test.
 */
bool schemas_walk(struct schemas *r, struct sv_grammar *g, struct words *w, struct sv_buf *out,
                  const char *schema_text);
/* A value that may satisfy the schema, its members in the schema's order. NULL: no attempt is made.
 */
json_t *schemas_guess(struct schemas *r, const json_t *root);

#endif
