/*
 * grammars.c - the grammars of requests: compiled beside the loop and cached by their source, so
 * that what a matcher has computed for one request serves the next.
 *
 * Called by call.c on the loop's thread, but for the source, which is written where the body is
 * read, and the compilation, which a thread of prep.c does. Requests for a grammar that is being
 * compiled wait for it. Must not: compile on the loop's thread, or cache more than a few.
 */
#include "serve/core/grammars.h"
#include "serve/core/send.h"
#include "serve/core/tools.h"
#include "serve/core/write.h"

#include "grammar/grammar.h"

#include <string.h>

#define MAX_KEPT 32             /* not counting those that only requests hold */
#define MAX_KEPT_BYTES 67108864 /* of their rules and sources */
#define MAX_COMPILING 64

/* How a source begins. The constraint's value follows, then tools that may be called instead. */
struct head {
    uint8_t kind, compact, think, think_open;
    struct sv_tool_constraint tools;
    uint8_t zero;
    uint32_t n_value;
};

/* A grammar that is cached, or being compiled while requests wait for it. */
struct sv_compiled {
    struct sv_compiled *next; /* in order of use, the last used first */
    struct sv_serve *s;
    struct sv_buf source;
    struct sv_grammar *grammar;
    struct sv_call *waiting;
    struct sv_job job;
    int rc;
    struct sv_err err;
    int64_t took_us;
    bool ready;
    bool of_tools; /* the error concerns the tools that may be called instead */
};

/* ---------------------------------------------------------------- sources */

/* A string as its text, any other value as JSON. */
static int add_value(struct sv_buf *b, const json_t *v)
{
    if (json_is_string(v)) {
        sv_buf_append(b, json_string_value(v), json_string_length(v));
    } else if (v) {
        sv_json_tree(b, v);
    }
    return b->failed ? -1 : 0;
}

int sv_constraint_source(const struct sv_params *p, struct sv_buf *source, struct sv_api_err *e)
{
    const struct sv_constraint *f = &p->constraint;
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
    h.n_value = (uint32_t)(source->len - sizeof h);
    if (f->beside && add_value(source, f->beside))
        return sv_api_no_memory(e);
    memcpy(source->data, &h, sizeof h);
    return 0;
}

/* ---------------------------------------------------------------- making, on the other thread */

static int compile_constraint(struct sv_grammar **g, const struct head *h, const char *text,
                              struct sv_err *err)
{
    static const enum sv_grammar_kind kinds[SV_CONSTRAINT_KINDS] = {
        [SV_CONSTRAINT_JSON] = SV_GRAMMAR_JSON,
        [SV_CONSTRAINT_REGEX] = SV_GRAMMAR_REGEX,
        [SV_CONSTRAINT_GBNF] = SV_GRAMMAR_GBNF,
        [SV_CONSTRAINT_CHOICE] = SV_GRAMMAR_CHOICE};
    const struct sv_schema_style style = {.compact = h->compact};
    char why[400] = "";

    if (h->kind == SV_CONSTRAINT_SCHEMA)
        return sv_grammar_schema(g, text, h->n_value, &style, err);
    if (h->kind == SV_CONSTRAINT_TOOLS)
        return sv_tool_grammar(g, &h->tools, text, h->n_value, err);
    int rc = sv_make_grammar(g, kinds[h->kind], text, h->n_value, why, sizeof why);
    return rc ? sv_fail(err, rc, -1, "%s", why) : SV_OK;
}

/* The constrained answer, or calls of tools. */
static int add_tool_calls(struct sv_grammar **g, const struct head *h, const char *text, size_t n,
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

/* The answer after reasoning, which the prompt has opened, or which is optional. */
static int add_reasoning(struct sv_grammar **g, const struct head *h, struct sv_err *err)
{
    static const char spaces[] = "[ \\t\\r\\n]{0,8}";
    const char *open = sv_think_marker((enum sv_think_format)h->think, 0);
    const char *close = sv_think_marker((enum sv_think_format)h->think, 1);
    struct sv_grammar *part[4] = {NULL, NULL, NULL, *g}, *reasoning = NULL, *all = NULL;

    if (!close)
        return SV_OK;
    int rc = sv_grammar_literal(&part[0], open, h->think_open ? 0 : strlen(open), err);
    if (!rc)
        rc = sv_grammar_until(&part[1], close, strlen(close), err);
    if (!rc)
        rc = sv_grammar_regex(&part[2], spaces, sizeof spaces - 1, err);
    if (!rc)
        rc = sv_grammar_join(&reasoning, part, 4, err);
    if (!rc && h->think_open)
        all = sv_grammar_ref(reasoning);
    else if (!rc)
        rc = sv_grammar_either(&all, (struct sv_grammar *[]){*g, reasoning}, 2, err);
    for (int i = 0; i < 3; i++)
        sv_grammar_unref(part[i]);
    sv_grammar_unref(reasoning);
    if (rc)
        return rc;
    sv_grammar_unref(*g);
    *g = all;
    return SV_OK;
}

static void make(void *user, struct sv_enc_scratch *scratch)
{
    struct sv_compiled *m = user;
    struct head h;
    int64_t start = sv_clock_us();

    (void)scratch;
    memcpy(&h, m->source.data, sizeof h);
    const char *text = m->source.data + sizeof h;
    size_t n_beside = m->source.len - sizeof h - h.n_value;
    m->rc = compile_constraint(&m->grammar, &h, text, &m->err);
    if (!m->rc && n_beside) {
        m->rc = add_tool_calls(&m->grammar, &h, text + h.n_value, n_beside, &m->err);
        m->of_tools = m->rc;
    }
    if (!m->rc)
        m->rc = add_reasoning(&m->grammar, &h, &m->err);
    m->took_us = sv_clock_us() - start;
}

/* ---------------------------------------------------------------- what is kept */

static void compiled_free(struct sv_compiled *m)
{
    sv_grammar_unref(m->grammar);
    sv_buf_fini(&m->source);
    sv_free(m);
}

/* Drops those that were not used for longest, but none that is being compiled. */
static void evict(struct sv_serve *s)
{
    struct sv_compiled **at = &s->grammars, *m;
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
        compiled_free(m);
        n_dropped++;
    }
    s->metrics.n_grammars = n - n_dropped;
}

static void unlink_compiled(struct sv_serve *s, const struct sv_compiled *m)
{
    struct sv_compiled **at = &s->grammars;

    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
}

/* The grammar of this source, moved to the front; or NULL. */
static struct sv_compiled *find(struct sv_serve *s, const struct sv_buf *source)
{
    struct sv_compiled *m = s->grammars;

    while (m &&
           (m->source.len != source->len || memcmp(m->source.data, source->data, source->len) != 0))
        m = m->next;
    if (!m)
        return NULL;
    unlink_compiled(s, m);
    m->next = s->grammars;
    s->grammars = m;
    return m;
}

void sv_grammars_close(struct sv_serve *s)
{
    struct sv_compiled *m;

    while ((m = s->grammars)) {
        s->grammars = m->next;
        compiled_free(m);
    }
}

/* ---------------------------------------------------------------- requests */

/* Replaces a schema's place in a message by the API's own name for it. */
static void rename_schema(struct sv_api_err *e, const char *own)
{
    static const char chat[] = ".function.parameters";
    char *at = strstr(e->msg, chat), rest[sizeof e->msg];

    if (!at)
        return;
    snprintf(rest, sizeof rest, "%s", at + sizeof chat - 1);
    snprintf(at, sizeof e->msg - (size_t)(at - e->msg), "%s%s", own, rest);
}

static int say(const struct sv_compiled *m, const struct sv_call *c, struct sv_api_err *e)
{
    const struct sv_constraint *f = &c->p.constraint;
    const bool tools = m->of_tools || f->kind == SV_CONSTRAINT_TOOLS;
    const char *name = tools ? "tools" : f->name;

    if (m->rc == SV_ENOMEM)
        return sv_api_fail(e, 500, NULL, "out of memory for the grammar of '%s'", name);
    sv_api_bad(e, tools ? "tools" : f->field, "'%s': %s", name, m->err.msg);
    if (tools && c->dialect->tool_schema)
        rename_schema(e, c->dialect->tool_schema);
    const bool schema = tools || f->kind == SV_CONSTRAINT_SCHEMA;
    if (m->rc == SV_EUNSUPPORTED)
        e->code = schema ? "unsupported_schema" : "unsupported_grammar";
    else
        e->code = schema ? "invalid_schema" : "invalid_grammar";
    return -1;
}

static void on_compiled(void *user)
{
    struct sv_compiled *m = user;
    struct sv_serve *s = m->s;
    struct sv_call *c;

    m->ready = true;
    s->n_compiling--;
    sv_histogram_add(&s->metrics.making, (double)m->took_us / 1e6, 1);
    while ((c = m->waiting)) {
        struct sv_api_err e = {0};
        m->waiting = c->next_due;
        c->grammar = m->rc ? NULL : sv_grammar_ref(m->grammar);
        sv_call_grammar_ready(c, m->rc ? say(m, c, &e) : 0, &e);
    }
    if (m->rc) {
        unlink_compiled(s, m);
        compiled_free(m);
    }
    evict(s);
}

static struct sv_compiled *begin(struct sv_serve *s, struct sv_call *c, struct sv_api_err *e)
{
    if (s->n_compiling == MAX_COMPILING) {
        sv_api_fail(e, 429, "queue_full", "too many grammars are being made");
        return NULL;
    }
    struct sv_compiled *m = sv_calloc(1, sizeof *m);
    if (!m) {
        sv_api_no_memory(e);
        return NULL;
    }
    m->s = s;
    m->source = c->source;
    m->job = (struct sv_job){
        .run = make, .done = on_compiled, .user = m, .kind = SV_JOB_GRAMMAR, .cost = m->source.len};
    sv_buf_init(&c->source);
    if (!sv_prep_submit(s->prep, &m->job)) {
        sv_api_fail(e, 429, "queue_full", "too many grammars wait to be made");
        compiled_free(m);
        return NULL;
    }
    s->n_compiling++;
    m->next = s->grammars;
    s->grammars = m;
    return m;
}

int sv_grammars_want(struct sv_serve *s, struct sv_call *c, struct sv_api_err *e)
{
    struct sv_compiled *m = find(s, &c->source);

    s->metrics.n_constraints[c->p.constraint.kind]++;
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
