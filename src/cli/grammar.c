/*
 * grammar.c - constraints on answers: options of `run` and `generate`, and fields of a line of
 * JSON.
 *
 * Called by run.c, generate.c and jsonl.c. A grammar is made here, so that a mistake in it is
 * reported with the option's or the field's name before a model is loaded. Must not: read a file
 * that is not named.
 */
#include "cli/cli.h"

#include <string.h>

enum { MOST_BYTES = 16 << 20 };

void sv_cli_grammar_rows(struct sv_cli_opts *o, struct sv_cli_grammar *g)
{
    sv_cli_opt(o, "json", 0, SV_OPT_FLAG, &g->json, NULL, "the answer is a JSON object");
    sv_cli_opt(o, "json-schema", 0, SV_OPT_STRING, &g->schema, "FILE",
               "it is JSON that satisfies the schema in FILE ('-' is standard input)");
    sv_cli_opt(o, "regex", 0, SV_OPT_STRING, &g->regex, "TEXT",
               "all of it matches this regular expression");
    sv_cli_opt(o, "grammar", 0, SV_OPT_STRING, &g->gbnf, "FILE",
               "it matches the grammar in FILE (GBNF; '-' is standard input)");
    sv_cli_opt(o, "choice", 0, SV_OPT_STRING, &g->choice, "LIST",
               "it is one of these texts: '[\"yes\", \"no\"]'");
}

bool sv_cli_grammar_takes_stdin(const struct sv_cli_grammar *g)
{
    return (g->schema && strcmp(g->schema, "-") == 0) || (g->gbnf && strcmp(g->gbnf, "-") == 0);
}

/* Reads the option's value, or the file of that name; -1 to continue. */
static int read_text(struct sv_buf *b, const char *name, const char *value, bool file)
{
    struct sv_err err = {0};
    if (file && strcmp(value, "-") == 0) {
        int code = sv_cli_read_stdin(b);
        return code == SV_CLI_OK ? -1 : code;
    }
    if (file && sv_file_read_stream(b, value, MOST_BYTES, &err))
        return sv_cli_fail("option --%s: %s", name, err.msg);
    if (!file)
        sv_buf_append(b, value, strlen(value));
    return b->failed ? sv_cli_fail("option --%s: out of memory", name) : -1;
}

static int make(struct sv_grammar **g, enum sv_grammar_kind kind, const char *text, size_t n,
                struct sv_err *err)
{
    char why[sizeof err->msg];
    int rc = sv_make_grammar(g, kind, text, n, why, sizeof why);
    return rc ? sv_fail(err, rc, -1, "%s", why) : SV_OK;
}

int sv_cli_grammar_apply(struct sv_cli_grammar *g, const char *command, struct sv_request *r)
{
    const struct {
        const char *name, *value;
        enum sv_grammar_kind kind;
        bool file;
    } all[] = {{"json", g->json ? "" : NULL, SV_GRAMMAR_JSON, false},
               {"json-schema", g->schema, SV_GRAMMAR_SCHEMA, true},
               {"regex", g->regex, SV_GRAMMAR_REGEX, false},
               {"grammar", g->gbnf, SV_GRAMMAR_GBNF, true},
               {"choice", g->choice, SV_GRAMMAR_CHOICE, false}};
    struct sv_buf text;
    struct sv_err err = {0};
    int code = -1, one = -1;

    for (int i = 0; i < 5; i++) {
        if (!all[i].value)
            continue;
        if (one >= 0)
            return sv_cli_usage(command, "options --%s and --%s exclude each other", all[one].name,
                                all[i].name);
        one = i;
    }
    if (one < 0)
        return -1;
    sv_buf_init(&text);
    code = read_text(&text, all[one].name, all[one].value, all[one].file);
    if (code < 0 && make(&g->made, all[one].kind, text.data ? text.data : "", text.len, &err))
        code = sv_cli_fail("option --%s: %s", all[one].name, err.msg);
    sv_buf_fini(&text);
    r->grammar = g->made;
    return code;
}

/* A schema may be written out, the others are texts; a choice is a list. */
static int text_of(const json_t *v, enum sv_grammar_kind kind, char **made, const char **text,
                   struct sv_err *err)
{
    const bool written =
        kind == SV_GRAMMAR_CHOICE || (kind == SV_GRAMMAR_SCHEMA && !json_is_string(v));
    if (written) {
        *made = json_dumps(v, JSON_ENCODE_ANY);
        *text = *made;
        return *made ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    *text = json_string_value(v);
    if (!*text || strlen(*text) != json_string_length(v))
        return sv_fail(err, SV_EINVAL, -1, "must be a text without NUL characters");
    return SV_OK;
}

int sv_cli_grammar_field(const json_t *root, struct sv_grammar **made, struct sv_err *err)
{
    static const struct {
        const char *name;
        enum sv_grammar_kind kind;
    } all[] = {{"json", SV_GRAMMAR_JSON},
               {"json_schema", SV_GRAMMAR_SCHEMA},
               {"regex", SV_GRAMMAR_REGEX},
               {"grammar", SV_GRAMMAR_GBNF},
               {"choice", SV_GRAMMAR_CHOICE}};
    const char *text = "", *before = NULL;
    int rc = SV_OK;

    for (int i = 0; i < 5 && !rc; i++) {
        const json_t *v = json_object_get(root, all[i].name);
        char *written = NULL;
        if (!v || json_is_null(v) || json_is_false(v))
            continue;
        if (before)
            return sv_fail(err, SV_EINVAL, -1, "fields '%s' and '%s' exclude each other", before,
                           all[i].name);
        before = all[i].name;
        if (all[i].kind == SV_GRAMMAR_JSON)
            rc = json_is_true(v) ? SV_OK : sv_fail(err, SV_EINVAL, -1, "must be true or false");
        else
            rc = text_of(v, all[i].kind, &written, &text, err);
        if (!rc)
            rc = make(made, all[i].kind, text, 0, err);
        sv_free(written);
        if (rc)
            sv_err_prefix(err, "field '%s'", all[i].name);
    }
    return rc;
}
