/*
 * parse_pipe.c - reads the pipeline of a tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder.
 *
 * Called by tokenizer.c with parsed JSON (these parts are small). Whatever is not known to give the
 * reference's ids is refused by name. Must not: accept a part and ignore it.
 */
#include "text/tok.h"

#include <string.h>

#define MAX_STEPS 32

static const char *type_of(const json_t *v)
{
    const char *s = json_string_value(json_object_get(v, "type"));
    return s ? s : "";
}

static int unsupported(struct sv_err *err, const char *part, const json_t *v)
{
    return sv_fail(err, SV_EUNSUPPORTED, -1, "%s of type '%.60s' is not supported", part, type_of(v));
}

static bool is_type(const json_t *v, const char *type)
{
    return strcmp(type_of(v), type) == 0;
}

/* The parts of a Sequence, or v itself as its only part. */
static size_t n_parts(const json_t *v, const char *field)
{
    return is_type(v, "Sequence") ? json_array_size(json_object_get(v, field)) : 1;
}

static const json_t *part(const json_t *v, const char *field, size_t i)
{
    return is_type(v, "Sequence") ? json_array_get(json_object_get(v, field), i) : v;
}

int sv_tok_parse_normalizer(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    if (!v || json_is_null(v))
        return SV_OK;
    for (size_t i = 0; i < n_parts(v, "normalizers"); i++) {
        const json_t *p = part(v, "normalizers", i);
        if (!is_type(p, "NFC"))
            return unsupported(err, "normalizer", p);
        tok->nfc = true;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- pre_tokenizer */

static int add_split(struct sv_tokenizer *tok, const char *pattern, size_t n, bool literal,
                     struct sv_split **out, struct sv_err *err)
{
    struct sv_split *sp = &tok->split[tok->n_splits];
    int rc;

    *out = sp;
    if (tok->n_splits == SV_MAX_SPLITS)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "pre_tokenizer: more than %d splits", SV_MAX_SPLITS);
    if (literal || !sv_scan_known(pattern, n, &sp->scan)) {
        rc = sv_regex_open(&sp->re, pattern, n, literal, err);
        if (rc < 0) {
            sv_err_prefix(err, "pre_tokenizer, split %d", tok->n_splits);
            return rc;
        }
    }
    tok->n_splits++;
    return SV_OK;
}

static int read_split(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const json_t *pattern = json_object_get(v, "pattern"), *text;
    const char *behavior = NULL;
    struct sv_split *sp;
    bool literal = false, invert = false;
    int rc, k = 0;

    text = json_object_get(pattern, "Regex");
    if (!text) {
        text = json_object_get(pattern, "String");
        literal = true;
    }
    if (!json_is_string(text))
        return sv_fail(err, SV_EFORMAT, -1, "pre_tokenizer, Split: pattern needs a Regex or a String");
    rc = sv_json_str(v, "behavior", &behavior, err);
    if (rc == SV_OK)
        rc = sv_json_bool_opt(v, "invert", &invert, err);
    if (rc < 0)
        return sv_err_prefix(err, "pre_tokenizer, Split");
    while (k < 5 && strcmp(behavior, names[k]) != 0)
        k++;
    if (k == 5)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "pre_tokenizer, Split: behavior '%.40s'", behavior);
    rc = add_split(tok, json_string_value(text), json_string_length(text), literal, &sp, err);
    if (rc < 0)
        return rc;
    sp->behavior = (enum sv_split_behavior)k;
    sp->invert = invert;
    return SV_OK;
}

static int read_byte_level(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    const char *gpt2 = sv_scan_pattern(0);
    bool prefix = true, use_regex = true; /* the reference's defaults */
    struct sv_split *sp;
    int rc = sv_json_bool_opt(v, "add_prefix_space", &prefix, err);

    if (rc == SV_OK)
        rc = sv_json_bool_opt(v, "use_regex", &use_regex, err);
    if (rc < 0)
        return sv_err_prefix(err, "pre_tokenizer, ByteLevel");
    if (prefix)
        tok->prefix_level = tok->n_splits;
    return use_regex ? add_split(tok, gpt2, strlen(gpt2), false, &sp, err) : SV_OK;
}

static int read_digits(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    bool individual = false;
    struct sv_split *sp;
    int rc = sv_json_bool_opt(v, "individual_digits", &individual, err);

    if (rc < 0)
        return sv_err_prefix(err, "pre_tokenizer, Digits");
    return individual ? add_split(tok, "\\p{N}", 5, false, &sp, err)
                      : add_split(tok, "\\p{N}+", 6, false, &sp, err);
}

int sv_tok_parse_pre(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    bool byte_level = false;
    size_t n = n_parts(v, "pretokenizers");

    tok->prefix_level = -1;
    if (n > MAX_STEPS)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "pre_tokenizer: %zu steps", n);
    for (size_t i = 0; v && !json_is_null(v) && i < n; i++) {
        const json_t *p = part(v, "pretokenizers", i);
        int rc;
        if (byte_level)
            return sv_fail(err, SV_EUNSUPPORTED, -1, "pre_tokenizer: a step after ByteLevel");
        byte_level = is_type(p, "ByteLevel");
        if (byte_level)
            rc = read_byte_level(tok, p, err);
        else if (is_type(p, "Split"))
            rc = read_split(tok, p, err);
        else if (is_type(p, "Digits"))
            rc = read_digits(tok, p, err);
        else
            rc = unsupported(err, "pre_tokenizer", p);
        if (rc < 0)
            return rc;
    }
    if (!byte_level)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "pre_tokenizer: no ByteLevel step; only byte-level models are supported");
    return SV_OK;
}

/* ---------------------------------------------------------------- post_processor */

static int append_id(int32_t **ids, int32_t *n, int32_t id)
{
    void *p = sv_realloc(*ids, (size_t)*n * sizeof **ids, (size_t)(*n + 1) * sizeof **ids);
    if (!p)
        return SV_ENOMEM;
    *ids = p;
    (*ids)[(*n)++] = id;
    return SV_OK;
}

/* Ids of a template's special token go before or after the text. */
static int add_special(struct sv_tokenizer *tok, const json_t *specials, const char *name, bool after,
                       struct sv_err *err)
{
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");

    if (!json_array_size(ids))
        return sv_fail(err, SV_EFORMAT, -1, "post_processor: special_tokens has no ids for '%.60s'", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        int rc;
        if (id < 0 || id >= tok->n_tokens || tok->name_at[id] == UINT32_MAX)
            return sv_fail(err, SV_EFORMAT, -1, "post_processor: '%.60s' has an id that no token has", name);
        rc = after ? append_id(&tok->after, &tok->n_after, (int32_t)id)
                   : append_id(&tok->before, &tok->n_before, (int32_t)id);
        if (rc < 0)
            return sv_fail(err, rc, -1, "out of memory");
    }
    return SV_OK;
}

static int read_template(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    const json_t *single = json_object_get(v, "single"), *specials = json_object_get(v, "special_tokens");
    size_t i;
    const json_t *p;
    int n_text = 0;

    if (!json_is_array(single))
        return sv_fail(err, SV_EFORMAT, -1, "post_processor: TemplateProcessing.single must be an array");
    json_array_foreach(single, i, p) {
        const char *name = json_string_value(json_object_get(json_object_get(p, "SpecialToken"), "id"));
        const char *text = json_string_value(json_object_get(json_object_get(p, "Sequence"), "id"));
        int rc = SV_OK;
        if (name)
            rc = add_special(tok, specials, name, n_text > 0, err);
        else if (text && strcmp(text, "A") == 0)
            n_text++;
        else
            rc = sv_fail(err, SV_EFORMAT, -1, "post_processor: single[%zu] is no SpecialToken or Sequence A",
                         i);
        if (rc < 0)
            return rc;
    }
    if (n_text != 1)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "post_processor: single has the text %d times", n_text);
    return SV_OK;
}

int sv_tok_parse_post(struct sv_tokenizer *tok, const json_t *v, struct sv_err *err)
{
    int n_templates = 0;

    if (!v || json_is_null(v))
        return SV_OK;
    for (size_t i = 0; i < n_parts(v, "processors"); i++) {
        const json_t *p = part(v, "processors", i);
        int rc = SV_OK;
        if (is_type(p, "TemplateProcessing"))
            rc = n_templates++ ? sv_fail(err, SV_EUNSUPPORTED, -1, "post_processor: two templates")
                               : read_template(tok, p, err);
        else if (!is_type(p, "ByteLevel")) /* ByteLevel only trims offsets */
            rc = unsupported(err, "post_processor", p);
        if (rc < 0)
            return rc;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- decoder */

int sv_tok_parse_decoder(const json_t *v, struct sv_err *err)
{
    size_t n = n_parts(v, "decoders");

    if (!v || json_is_null(v) || n == 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "decoder: only ByteLevel is supported, and there is none");
    for (size_t i = 0; i < n; i++)
        if (!is_type(part(v, "decoders", i), "ByteLevel") || i > 0)
            return unsupported(err, "decoder", part(v, "decoders", i));
    return SV_OK;
}
