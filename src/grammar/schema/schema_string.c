/*
 * schema_string.c - the strings that subschemas allow together: lengths, patterns, formats, and
 * lists of member names.
 *
 * Called by schema_leaf.c and schema_keys.c. All constraints become automata over characters, whose
 * intersection is exact: a pattern with a length, or two patterns. Must not: know how characters
 * are escaped.
 */
#include "grammar/regex/regex.h"
#include "grammar/schema/schema.h"

#include <string.h>

/* Intersects *all with d; NULL is any string. */
static int meet(struct sv_schema *s, const struct sv_dfa **all, const struct sv_dfa *d)
{
    if (*all)
        return sv_dfa_both(&s->room, *all, d, all, s->err);
    *all = d;
    return SV_OK;
}

/* The expression is read into its own builder, which is not compiled. */
static int regex_dfa(struct sv_schema *s, const char *text, size_t n, bool search,
                     const struct sv_dfa **out)
{
    const struct sv_regex_style style = {.search = search};
    struct sv_build *b;
    int status = sv_build_open(&b, s->err);
    sv_expr x;

    if (status != SV_OK)
        return status;
    x = sv_regex_expr(b, text, n, &style);
    status = sv_build_error(b, s->err);
    if (status == SV_OK)
        status = sv_dfa_expr(&s->room, b, x, out, s->err);
    sv_build_close(b);
    return status;
}

/* The offset of c outside of groups, classes and escapes; n: none. */
static size_t find(const char *text, size_t n, char c)
{
    int depth = 0;
    bool in_class = false;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\') {
            i++;
        } else if (in_class) {
            in_class = text[i] != ']';
        } else if (text[i] == '[') {
            in_class = true;
            i += i + 1 < n && text[i + 1] == '^';
            i += i + 1 < n && text[i + 1] == ']'; /* a ] that comes first is a character */
        } else if (depth == 0 && text[i] == c) {
            return i;
        } else {
            depth += (text[i] == '(') - (text[i] == ')');
        }
    }
    return n;
}

/* The strings at whose beginning the expression is found. */
static int at_beginning(struct sv_schema *s, const char *text, size_t n, const struct sv_dfa **out)
{
    const bool anchored = n && text[0] == '^', several = find(text, n, '|') < n;
    struct sv_buf b;
    int status;

    sv_buf_init(&b);
    sv_buf_append(&b, "^(?:", several ? 4 : 1);
    sv_buf_append(&b, text + anchored, n - anchored);
    sv_buf_append(&b, ")", several);
    status = b.failed ? sv_schema_no_memory(s) : regex_dfa(s, b.data, b.len, true, out);
    sv_buf_fini(&b);
    return status;
}

/* Whether a lookahead group begins here, and ends. */
static bool looks_ahead(const char *text, size_t n, size_t *length)
{
    if (n < 4 || memcmp(text, "(?", 2) || (text[2] != '!' && text[2] != '='))
        return false;
    *length = 1 + find(text + 1, n - 1, ')') + 1;
    return *length <= n;
}

/* Patterns of zod and pydantic use lookahead directly after ^. There it is regular: the lookahead
 * is another set of strings, to which the text must belong, or must not. */
int sv_pattern_dfa(struct sv_schema *s, const char *text, size_t n, const char *path,
                   const struct sv_dfa **out)
{
    const struct sv_dfa *all = NULL, *ahead;
    size_t length, at = 1;
    int status = SV_OK;

    /* with alternatives, ^ and the lookahead belong to the first only */
    if (!n || text[0] != '^' || !looks_ahead(text + 1, n - 1, &length) || find(text, n, '|') < n)
        return sv_schema_at(s, regex_dfa(s, text, n, true, out), path);
    for (; status == SV_OK && looks_ahead(text + at, n - at, &length); at += length) {
        status = at_beginning(s, text + at + 3, length - 4, &ahead);
        if (status == SV_OK && !all)
            status = sv_dfa_length(&s->room, 0, -1, &all, s->err);
        if (status == SV_OK && text[at + 2] == '!')
            status = sv_dfa_without(&s->room, all, ahead, &all, s->err);
        else if (status == SV_OK)
            status = sv_dfa_both(&s->room, all, ahead, &all, s->err);
    }
    if (status == SV_OK)
        status = at_beginning(s, text + at, n - at, out);
    if (status == SV_OK)
        status = sv_dfa_both(&s->room, *out, all, out, s->err);
    return sv_schema_at(s, status, path);
}

static int meet_pattern(struct sv_schema *s, const struct sv_spot *spot, const struct sv_dfa **all)
{
    const json_t *pattern = json_object_get(spot->schema, "pattern");
    const char *path = spot->path;
    const struct sv_dfa *d;
    int status;

    if (!pattern)
        return SV_OK;
    if (!json_is_string(pattern))
        return sv_schema_fail(s, SV_EINVAL, path, "'pattern' must be a string");
    status = sv_pattern_dfa(s, json_string_value(pattern), json_string_length(pattern),
                            sv_schema_path(s, path, "pattern"), &d);
    return status == SV_OK ? sv_schema_at(s, meet(s, all, d), path) : status;
}

static int meet_format(struct sv_schema *s, const struct sv_spot *spot, const struct sv_dfa **all)
{
    const char *name = json_string_value(json_object_get(spot->schema, "format")), *regex;
    const struct sv_dfa *d;
    int status;

    /* unknown formats are ignored, as the standard requires */
    if (!name || !sv_format_find(name, &regex))
        return SV_OK;
    if (!regex)
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path, "'format' %s is not supported", name);
    status = regex_dfa(s, regex, strlen(regex), false, &d);
    if (status == SV_OK)
        status = meet(s, all, d);
    return sv_schema_at(s, status, spot->path);
}

int sv_strings_make(struct sv_schema *s, const struct sv_part *parts, int32_t n, const char *path,
                    uint32_t types, const struct sv_dfa **out)
{
    int64_t min = 0, max = -1;
    const struct sv_dfa *lengths = NULL;
    int status = SV_OK;

    *out = NULL;
    for (int32_t i = 0; i < n && status == SV_OK; i++) {
        const struct sv_spot *spot = &s->spots[parts[i].spot];
        status = sv_schema_count(s, spot, "minLength", false, &min);
        if (status == SV_OK)
            status = sv_schema_count(s, spot, "maxLength", true, &max);
        if (status == SV_OK && types & SV_STRING)
            status = meet_pattern(s, spot, out);
        if (status == SV_OK && types & SV_STRING)
            status = meet_format(s, spot, out);
    }
    if (status != SV_OK || !(types & SV_STRING))
        return status;
    if (min || max >= 0) {
        status = sv_dfa_length(&s->room, min, max, &lengths, s->err);
        if (status == SV_OK)
            status = meet(s, out, lengths);
    }
    if (status == SV_OK && *out && *out != lengths) /* lengths alone are minimal */
        status = sv_dfa_slim(&s->room, out, s->err);
    return sv_schema_at(s, status, path);
}

/* A list of names; entries that are not strings match no name. */
static int meet_list(struct sv_schema *s, const json_t *one, const json_t *list,
                     const struct sv_dfa **all)
{
    size_t n = one ? 1 : json_array_size(list), n_words = 0;
    struct sv_word *words = sv_schema_alloc(s, n, sizeof *words);
    const struct sv_dfa *d;
    int status;

    if (!words)
        return SV_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = one ? one : json_array_get(list, i);
        if (json_is_string(v))
            words[n_words++] = (struct sv_word){json_string_value(v), json_string_length(v)};
    }
    status = sv_dfa_words(&s->room, words, n_words, &d, s->err);
    return status == SV_OK ? meet(s, all, d) : status;
}

int sv_names_make(struct sv_schema *s, const struct sv_part *parts, int32_t n, const char *path,
                  const struct sv_dfa **out)
{
    int status = sv_strings_make(s, parts, n, path, SV_STRING, out);

    for (int32_t i = 0; i < n && status == SV_OK; i++) {
        const json_t *schema = s->spots[parts[i].spot].schema;
        const json_t *one = json_object_get(schema, "const"),
                     *list = json_object_get(schema, "enum");
        uint32_t types = sv_types_said(schema);
        if (json_is_array(list))
            status = meet_list(s, NULL, list, out);
        if (one && status == SV_OK)
            status = meet_list(s, one, NULL, out);
        if (types && !(types & SV_STRING) && status == SV_OK)
            status = meet_list(s, NULL, NULL, out);
    }
    return sv_schema_at(s, status, path);
}
