/*
 * grammars.c - the grammars of requests: made beside the loop, kept by what they were made of, so
 * that what one request learns of a grammar serves the next.
 *
 * Called by call.c on the loop's thread, but for the source, which is written where the body is
 * read, and the making, which the thread of prep.c does. Requests for a grammar that is being made
 * wait for it. Must not: make a grammar on the loop's thread, or keep more than a few.
 */
#include "serve/impl.h"

#include "grammar/grammar.h"

#include <string.h>

#define MAX_KEPT 32             /* besides those that requests hold */
#define MAX_KEPT_BYTES 67108864 /* of their rules and sources */
#define MAX_MAKING 64

/* How a source begins; the form's text follows, and that of tools that may be called instead. */
struct head {
    uint8_t kind, compact, think, think_open;
    struct sv_tool_form tools;
    uint8_t zero;
    uint32_t n_form;
};

/* A grammar that is there, or being made while requests wait for it. */
struct sv_made {
    struct sv_made *next; /* the one used before it */
    struct sv_serve *s;
    struct sv_buf source;
    struct sv_grammar *grammar;
    struct sv_call *waiting;
    struct sv_job job;
    int rc;
    struct sv_err err;
    int64_t took_us;
    bool ready;
    bool of_tools; /* the error is of those beside the form */
};

/* ---------------------------------------------------------------- sources */

/* Text as it is, anything else as JSON. */
static int add_value(struct sv_buf *b, const json_t *v)
{
    if (json_is_string(v)) {
        sv_buf_append(b, json_string_value(v), json_string_length(v));
    } else if (v) {
        sv_json_tree(b, v);
    }
    return b->failed ? -1 : 0;
}

int sv_form_source(const struct sv_params *p, struct sv_buf *source, struct sv_api_err *e)
{
    const struct sv_form *f = &p->form;
    struct head h = {.kind = (uint8_t)f->kind,
                     .compact = f->compact,
                     .tools = f->tools,
                     .think = (uint8_t)f->think,
                     .think_open = f->think_open};

    if (!f->kind)
        return 0;
    sv_buf_append(source, &h, sizeof h);
    if (add_value(source, f->value) || source->failed)
        return sv_api_no_memory(e);
    h.n_form = (uint32_t)(source->len - sizeof h);
    if (f->beside && add_value(source, f->beside))
        return sv_api_no_memory(e);
    memcpy(source->data, &h, sizeof h);
    return 0;
}

/* ---------------------------------------------------------------- making, on the other thread */

static int make_form(struct sv_grammar **g, const struct head *h, const char *text,
                     struct sv_err *err)
{
    static const enum sv_grammar_kind kinds[SV_FORM_KINDS] = {[SV_FORM_JSON] = SV_GRAMMAR_JSON,
                                                              [SV_FORM_REGEX] = SV_GRAMMAR_REGEX,
                                                              [SV_FORM_GBNF] = SV_GRAMMAR_GBNF,
                                                              [SV_FORM_CHOICE] = SV_GRAMMAR_CHOICE};
    const struct sv_schema_style style = {.compact = h->compact};
    char why[400] = "";

    if (h->kind == SV_FORM_SCHEMA)
        return sv_grammar_schema(g, text, h->n_form, &style, err);
    if (h->kind == SV_FORM_TOOLS)
        return sv_tool_grammar(g, &h->tools, text, h->n_form, err);
    int rc = sv_make_grammar(g, kinds[h->kind], text, h->n_form, why, sizeof why);
    return rc ? sv_fail(err, rc, -1, "%s", why) : SV_OK;
}

/* The form, or calls of tools. */
static int put_calls_beside(struct sv_grammar **g, const struct head *h, const char *text, size_t n,
                            struct sv_err *err)
{
    struct sv_grammar *calls = NULL, *all = NULL;
    int rc = sv_tool_grammar(&calls, &h->tools, text, n, err);

    if (!rc)
        rc = sv_grammar_either(&all, (struct sv_grammar *[]){*g, calls}, 2, err);
    sv_grammar_unref(calls);
    if (rc)
        return rc;
    sv_grammar_unref(*g);
    *g = all;
    return SV_OK;
}

/* The form behind a thought: one that the prompt has begun, or one that may come or not. */
static int put_behind_thought(struct sv_grammar **g, const struct head *h, struct sv_err *err)
{
    static const char spaces[] = "[ \\t\\r\\n]{0,8}";
    const char *open = sv_think_marker((enum sv_think_format)h->think, 0);
    const char *close = sv_think_marker((enum sv_think_format)h->think, 1);
    struct sv_grammar *part[4] = {NULL, NULL, NULL, *g}, *thought = NULL, *all = NULL;

    if (!close)
        return SV_OK;
    int rc = sv_grammar_literal(&part[0], open, h->think_open ? 0 : strlen(open), err);
    if (!rc)
        rc = sv_grammar_until(&part[1], close, strlen(close), err);
    if (!rc)
        rc = sv_grammar_regex(&part[2], spaces, sizeof spaces - 1, err);
    if (!rc)
        rc = sv_grammar_join(&thought, part, 4, err);
    if (!rc && h->think_open)
        all = sv_grammar_ref(thought);
    else if (!rc)
        rc = sv_grammar_either(&all, (struct sv_grammar *[]){*g, thought}, 2, err);
    for (int i = 0; i < 3; i++)
        sv_grammar_unref(part[i]);
    sv_grammar_unref(thought);
    if (rc)
        return rc;
    sv_grammar_unref(*g);
    *g = all;
    return SV_OK;
}

static void make(void *user, struct sv_enc_scratch *scratch)
{
    struct sv_made *m = user;
    struct head h;
    int64_t start = sv_clock_us();

    (void)scratch;
    memcpy(&h, m->source.data, sizeof h);
    const char *text = m->source.data + sizeof h;
    size_t n_beside = m->source.len - sizeof h - h.n_form;
    m->rc = make_form(&m->grammar, &h, text, &m->err);
    if (!m->rc && n_beside) {
        m->rc = put_calls_beside(&m->grammar, &h, text + h.n_form, n_beside, &m->err);
        m->of_tools = m->rc;
    }
    if (!m->rc)
        m->rc = put_behind_thought(&m->grammar, &h, &m->err);
    m->took_us = sv_clock_us() - start;
}

/* ---------------------------------------------------------------- what is kept */

static void made_free(struct sv_made *m)
{
    sv_grammar_unref(m->grammar);
    sv_buf_fini(&m->source);
    sv_free(m);
}

/* Drops those that were not used for longest; what is being made stays. */
static void evict(struct sv_serve *s)
{
    struct sv_made **at = &s->grammars, *m;
    size_t n_bytes = 0;
    int n = 0, n_dropped = 0;

    while ((m = *at)) {
        n_bytes += m->ready ? sv_grammar_bytes(m->grammar) + m->source.cap : 0;
        n += m->ready;
        if (!m->ready || (n <= MAX_KEPT && n_bytes <= MAX_KEPT_BYTES)) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        made_free(m);
        n_dropped++;
    }
    s->metrics.n_grammars = n - n_dropped;
}

static void unlink_made(struct sv_serve *s, const struct sv_made *m)
{
    struct sv_made **at = &s->grammars;

    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
}

/* The one of this source, moved to the front; or NULL. */
static struct sv_made *find(struct sv_serve *s, const struct sv_buf *source)
{
    struct sv_made *m = s->grammars;

    while (m &&
           (m->source.len != source->len || memcmp(m->source.data, source->data, source->len) != 0))
        m = m->next;
    if (!m)
        return NULL;
    unlink_made(s, m);
    m->next = s->grammars;
    s->grammars = m;
    return m;
}

void sv_grammars_close(struct sv_serve *s)
{
    struct sv_made *m;

    while ((m = s->grammars)) {
        s->grammars = m->next;
        made_free(m);
    }
}

/* ---------------------------------------------------------------- requests */

/* The place of a tool's schema, as the API calls it. */
static void rename_schema(struct sv_api_err *e, const char *own)
{
    static const char chat[] = ".function.parameters";
    char *at = strstr(e->msg, chat), rest[sizeof e->msg];

    if (!at)
        return;
    snprintf(rest, sizeof rest, "%s", at + sizeof chat - 1);
    snprintf(at, sizeof e->msg - (size_t)(at - e->msg), "%s%s", own, rest);
}

static int say(const struct sv_made *m, const struct sv_call *c, struct sv_api_err *e)
{
    const struct sv_form *f = &c->p.form;
    const bool tools = m->of_tools || f->kind == SV_FORM_TOOLS;
    const char *name = tools ? "tools" : f->name;

    if (m->rc == SV_ENOMEM)
        return sv_api_fail(e, 500, NULL, "out of memory for the grammar of '%s'", name);
    sv_api_bad(e, tools ? "tools" : f->field, "'%s': %s", name, m->err.msg);
    if (tools && c->dialect->tool_schema)
        rename_schema(e, c->dialect->tool_schema);
    const bool schema = tools || f->kind == SV_FORM_SCHEMA;
    if (m->rc == SV_EUNSUPPORTED)
        e->code = schema ? "unsupported_schema" : "unsupported_grammar";
    else
        e->code = schema ? "invalid_schema" : "invalid_grammar";
    return -1;
}

static void on_made(void *user)
{
    struct sv_made *m = user;
    struct sv_serve *s = m->s;
    struct sv_call *c;

    m->ready = true;
    s->n_making--;
    sv_histogram_add(&s->metrics.making, (double)m->took_us / 1e6, 1);
    while ((c = m->waiting)) {
        struct sv_api_err e = {0};
        m->waiting = c->next_due;
        c->grammar = m->rc ? NULL : sv_grammar_ref(m->grammar);
        sv_call_formed(c, m->rc ? say(m, c, &e) : 0, &e);
    }
    if (m->rc) {
        unlink_made(s, m);
        made_free(m);
    }
    evict(s);
}

static struct sv_made *begin(struct sv_serve *s, struct sv_call *c, struct sv_api_err *e)
{
    if (s->n_making == MAX_MAKING) {
        sv_api_fail(e, 429, "queue_full", "too many grammars are being made");
        return NULL;
    }
    struct sv_made *m = sv_calloc(1, sizeof *m);
    if (!m) {
        sv_api_no_memory(e);
        return NULL;
    }
    m->s = s;
    m->job = (struct sv_job){.run = make, .done = on_made, .user = m};
    m->source = c->source;
    sv_buf_init(&c->source);
    if (!sv_prep_submit(s->prep, &m->job)) {
        sv_api_fail(e, 429, "queue_full", "too many long bodies and grammars wait");
        made_free(m);
        return NULL;
    }
    s->n_making++;
    m->next = s->grammars;
    s->grammars = m;
    return m;
}

int sv_grammars_want(struct sv_serve *s, struct sv_call *c, struct sv_api_err *e)
{
    struct sv_made *m = find(s, &c->source);

    s->metrics.n_forms[c->p.form.kind]++;
    if (m && m->ready) {
        s->metrics.n_grammar_hits++;
        c->grammar = sv_grammar_ref(m->grammar);
        return 0;
    }
    if (!m)
        m = begin(s, c, e);
    if (!m)
        return -1;
    c->next_due = m->waiting;
    m->waiting = c;
    return 1;
}
