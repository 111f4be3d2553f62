/*
 * grammar.c - a grammar from what a request says of it: a kind and a text.
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
    struct sv_err why = {0};
    const size_t n = n_bytes ? n_bytes : text ? strlen(text) : 0;
    int rc;
    *g = NULL;
    if (!text && kind != SV_GRAMMAR_JSON)
        return sv_fail(err, SV_EINVAL, -1, "grammar_text is needed for grammar_kind %d", (int)kind);
    switch (kind) {
    case SV_GRAMMAR_JSON:
        rc = sv_grammar_json(g, &why);
        break;
    case SV_GRAMMAR_SCHEMA:
        rc = sv_grammar_schema(g, text, n, NULL, &why);
        break;
    case SV_GRAMMAR_REGEX:
        rc = sv_grammar_regex(g, text, n, &why);
        break;
    case SV_GRAMMAR_GBNF:
        rc = sv_grammar_gbnf(g, text, n, &why);
        break;
    case SV_GRAMMAR_CHOICE:
        rc = choice(g, text, n, &why);
        break;
    default:
        return sv_fail(err, SV_EINVAL, -1,
                       "grammar_kind must be one of enum sv_grammar_kind, not %d", (int)kind);
    }
    return rc ? sv_fail(err, rc, why.pos, "grammar_text: %s", why.msg) : SV_OK;
}
