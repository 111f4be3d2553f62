/*
 * grammar.c - a grammar from a request's fields: a kind and a text.
 *
 * Called by api.c and when a request is submitted. Must not: run in a step.
 */
#include "engine/engine.h"

#include <string.h>

/* A JSON array of texts. */
static int choice(struct sv_grammar **g, const char *text, size_t n, struct sv_err *err)
{
    json_t *list = sv_json_parse(text, n, err);
    if (!list)
        return err->code;
    const size_t n_texts = json_array_size(list);
    const char **texts = sv_calloc(n_texts + 1, sizeof *texts);
    int rc = SV_OK;
    if (!texts)
        rc = sv_fail(err, SV_ENOMEM, -1, "choice of %zu texts", n_texts);
    else if (!n_texts)
        rc = sv_fail(err, SV_EINVAL, 0, "a choice is a JSON array of one text at least");
    for (size_t i = 0; !rc && i < n_texts; i++) {
        const json_t *v = json_array_get(list, i);
        texts[i] = json_string_value(v);
        if (!texts[i] || strlen(texts[i]) != json_string_length(v))
            rc = sv_fail(err, SV_EINVAL, (int64_t)i, "choice %zu is no text, or has NUL bytes", i);
    }
    if (!rc)
        rc = sv_grammar_choice(g, texts, n_texts, err);
    sv_free(texts);
    json_decref(list);
    return rc;
}

int sv_engine_grammar(struct sv_grammar **g, enum sv_grammar_kind kind, const char *text,
                      size_t n_bytes, struct sv_err *err)
{
    const size_t n = n_bytes ? n_bytes : text ? strlen(text) : 0;
    *g = NULL;
    if (!text && kind != SV_GRAMMAR_JSON)
        return sv_fail(err, SV_EINVAL, -1, "there is no text");
    switch (kind) {
    case SV_GRAMMAR_JSON:
        return sv_grammar_json(g, err);
    case SV_GRAMMAR_SCHEMA:
        return sv_grammar_schema(g, text, n, NULL, err);
    case SV_GRAMMAR_REGEX:
        return sv_grammar_regex(g, text, n, err);
    case SV_GRAMMAR_GBNF:
        return sv_grammar_gbnf(g, text, n, err);
    case SV_GRAMMAR_CHOICE:
        return choice(g, text, n, err);
    default:
        return sv_fail(err, SV_EINVAL, -1, "%d is no kind of grammar", (int)kind);
    }
}
