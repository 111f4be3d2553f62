/*
 * parse_pipe.c - reads the pipeline of a tokenizer.json: normalizer, pre_tokenizer, post_processor,
 * decoder.
 *
 * Called by tokenizer.c with parsed JSON (these parts are small). Parts not known to give the
 * reference's ids are refused by name. Must not: accept a part and ignore it.
 */
#include "token/tok.h"

#include <string.h>

#define MAX_STEPS 32

static const char *type_of(const struct sv_tree *v)
{
    const char *s = sv_tree_text(v, "type");
    return s ? s : "";
}

static int refuse(struct sv_err *err, int code, const struct sv_tree *v, const char *what)
{
    size_t pos = v ? v->pos : 0;
    return sv_fail(err, code, (int64_t)pos, "byte %zu: %s", pos, what);
}

static int unsupported(struct sv_err *err, const char *part, const struct sv_tree *v)
{
    return sv_fail(err, SV_EUNSUPPORTED, (int64_t)v->pos,
                   "byte %zu: %s of type '%.60s' is not supported", v->pos, part, type_of(v));
}

static int no_memory(struct sv_err *err)
{
    return sv_fail(err, SV_ENOMEM, -1, "out of memory");
}

static bool is_type(const struct sv_tree *v, const char *type)
{
    return strcmp(type_of(v), type) == 0;
}

/* A flag that may be absent; anything but true and false is an error. */
static int flag_of(const struct sv_tree *v, const char *key, bool *out, struct sv_err *err)
{
    const struct sv_tree *f = sv_tree_get(v, key);

    if (!f)
        return SV_OK;
    if (f->kind != SV_TREE_BOOL)
        return sv_fail(err, SV_EFORMAT, (int64_t)f->pos, "byte %zu: %s must be true or false",
                       f->pos, key);
    *out = f->number != 0;
    return SV_OK;
}

/* The parts of a Sequence, or v itself as the only part; the rest by ->next. NULL: none. */
static const struct sv_tree *first_part(const struct sv_tree *v, const char *field, bool *more)
{
    const struct sv_tree *list;

    *more = is_type(v, "Sequence");
    if (!*more)
        return v;
    list = sv_tree_get(v, field);
    return list && list->kind == SV_TREE_ARRAY ? list->child : NULL;
}

int sv_tok_parse_normalizer(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    bool more;

    if (!v)
        return SV_OK;
    for (const struct sv_tree *p = first_part(v, "normalizers", &more); p;
         p = more ? p->next : NULL) {
        if (!is_type(p, "NFC"))
            return unsupported(err, "normalizer", p);
        tok->nfc = true;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- pre_tokenizer */

static int add_split(struct sv_tokenizer *tok, const char *pattern, size_t n, bool literal,
                     const struct sv_tree *where, struct sv_split **out, struct sv_err *err)
{
    struct sv_split *sp = &tok->split[tok->n_splits];
    int rc;

    *out = sp;
    if (tok->n_splits == SV_MAX_SPLITS)
        return refuse(err, SV_EUNSUPPORTED, where, "too many splits");
    if (literal || !sv_scan_known(pattern, n, &sp->scan)) {
        rc = sv_regex_open(&sp->re, pattern, n, literal, err);
        if (rc < 0) {
            if (err) /* the message has the position in the expression */
                err->pos = (int64_t)where->pos;
            sv_err_prefix(err, "byte %zu", where->pos);
            return rc;
        }
    }
    tok->n_splits++;
    return SV_OK;
}

static int read_split(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const struct sv_tree *pattern = sv_tree_get(v, "pattern"),
                         *text = sv_tree_get(pattern, "Regex");
    const char *behavior = sv_tree_text(v, "behavior");
    struct sv_split *sp;
    bool literal = !text, invert = false;
    int rc, k = 0;

    if (literal)
        text = sv_tree_get(pattern, "String");
    if (!text || text->kind != SV_TREE_STRING)
        return refuse(err, SV_EFORMAT, v, "Split: pattern needs a Regex or a String");
    if (!behavior)
        return refuse(err, SV_EFORMAT, v, "Split: behavior is missing");
    while (k < 5 && strcmp(behavior, names[k]) != 0)
        k++;
    if (k == 5)
        return sv_fail(err, SV_EUNSUPPORTED, (int64_t)v->pos, "byte %zu: Split: behavior '%.40s'",
                       v->pos, behavior);
    rc = flag_of(v, "invert", &invert, err);
    if (rc == SV_OK)
        rc = add_split(tok, text->text, text->n, literal, text, &sp, err);
    if (rc < 0)
        return rc;
    sp->behavior = (enum sv_split_behavior)k;
    sp->invert = invert;
    return SV_OK;
}

static int read_byte_level(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    const char *gpt2 = sv_scan_pattern(0);
    bool prefix = true, use_regex = true; /* the reference's defaults */
    struct sv_split *sp;
    int rc = flag_of(v, "add_prefix_space", &prefix, err);

    if (rc == SV_OK)
        rc = flag_of(v, "use_regex", &use_regex, err);
    if (rc < 0)
        return rc;
    if (prefix)
        tok->prefix_level = tok->n_splits;
    return use_regex ? add_split(tok, gpt2, strlen(gpt2), false, v, &sp, err) : SV_OK;
}

static int read_digits(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    bool individual = false;
    struct sv_split *sp;
    int rc = flag_of(v, "individual_digits", &individual, err);

    if (rc < 0)
        return rc;
    return individual ? add_split(tok, "\\p{N}", 5, false, v, &sp, err)
                      : add_split(tok, "\\p{N}+", 6, false, v, &sp, err);
}

int sv_tok_parse_pre(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    bool byte_level = false, more = false;
    const struct sv_tree *p = v ? first_part(v, "pretokenizers", &more) : NULL;

    tok->prefix_level = -1;
    for (int i = 0; p; p = more ? p->next : NULL) {
        int rc;
        if (i++ == MAX_STEPS)
            return refuse(err, SV_EUNSUPPORTED, p, "too many steps");
        if (byte_level)
            return refuse(err, SV_EUNSUPPORTED, p, "a step after ByteLevel");
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
        return refuse(err, SV_EUNSUPPORTED, v,
                      "no ByteLevel step; only byte-level models are supported");
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
static int add_special(struct sv_tokenizer *tok, const struct sv_tree *specials,
                       const struct sv_tree *p, const char *name, bool after, struct sv_err *err)
{
    const struct sv_tree *ids = sv_tree_get(sv_tree_get(specials, name), "ids");

    if (!ids || ids->kind != SV_TREE_ARRAY || !ids->n)
        return sv_fail(err, SV_EFORMAT, (int64_t)p->pos,
                       "byte %zu: special_tokens has no ids for '%.60s'", p->pos, name);
    for (const struct sv_tree *v = ids->child; v; v = v->next) {
        int rc;
        if (v->kind != SV_TREE_INT || v->number < 0 || v->number >= tok->n_tokens ||
            tok->name_at[v->number] == UINT32_MAX)
            return sv_fail(err, SV_EFORMAT, (int64_t)v->pos,
                           "byte %zu: '%.60s' has an id that no token has", v->pos, name);
        rc = after ? append_id(&tok->after, &tok->n_after, (int32_t)v->number)
                   : append_id(&tok->before, &tok->n_before, (int32_t)v->number);
        if (rc < 0)
            return no_memory(err);
    }
    return SV_OK;
}

static int read_template(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    const struct sv_tree *single = sv_tree_get(v, "single"),
                         *specials = sv_tree_get(v, "special_tokens");
    int n_text = 0;

    if (!single || single->kind != SV_TREE_ARRAY)
        return refuse(err, SV_EFORMAT, v, "TemplateProcessing: single must be an array");
    for (const struct sv_tree *p = single->child; p; p = p->next) {
        const char *name = sv_tree_text(sv_tree_get(p, "SpecialToken"), "id");
        const char *text = sv_tree_text(sv_tree_get(p, "Sequence"), "id");
        int rc = SV_OK;
        if (name)
            rc = add_special(tok, specials, p, name, n_text > 0, err);
        else if (text && strcmp(text, "A") == 0)
            n_text++;
        else
            rc = refuse(err, SV_EFORMAT, p, "single: neither a SpecialToken nor Sequence A");
        if (rc < 0)
            return rc;
    }
    if (n_text != 1)
        return sv_fail(err, SV_EUNSUPPORTED, (int64_t)single->pos,
                       "byte %zu: single has the text %d times", single->pos, n_text);
    return SV_OK;
}

int sv_tok_parse_post(struct sv_tokenizer *tok, const struct sv_tree *v, struct sv_err *err)
{
    int n_templates = 0;
    bool more;

    if (!v)
        return SV_OK;
    for (const struct sv_tree *p = first_part(v, "processors", &more); p;
         p = more ? p->next : NULL) {
        int rc = SV_OK;
        if (is_type(p, "TemplateProcessing"))
            rc = n_templates++ ? refuse(err, SV_EUNSUPPORTED, p, "two templates")
                               : read_template(tok, p, err);
        else if (!is_type(p, "ByteLevel")) /* ByteLevel only trims offsets */
            rc = unsupported(err, "post_processor", p);
        if (rc < 0)
            return rc;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- decoder */

int sv_tok_parse_decoder(const struct sv_tree *v, struct sv_err *err)
{
    bool more = false;
    const struct sv_tree *p = v ? first_part(v, "decoders", &more) : NULL;

    if (!p)
        return refuse(err, SV_EUNSUPPORTED, v, "only ByteLevel is supported, and there is none");
    if (!is_type(p, "ByteLevel"))
        return unsupported(err, "decoder", p);
    if (more && p->next)
        return unsupported(err, "decoder", p->next);
    return SV_OK;
}
