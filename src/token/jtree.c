/*
 * jtree.c - small parts of tokenizer.json as a tree of nodes that know their positions.
 *
 * Called by tokenizer.c for normalizer, pre_tokenizer, post_processor and decoder. Not jansson,
 * whose 2.14 writes past its buffer when memory runs out inside a string, and whose nodes have no
 * positions. Must not: be used for vocabularies, whose entries would each cost a node.
 */
#include "token/tok.h"

#include <string.h>

struct reader {
    struct sv_jpull *j;
    struct sv_arena *a;
    struct sv_buf text;
};

static int no_memory(struct reader *r)
{
    return sv_fail(r->j->err, SV_ENOMEM, -1, "out of memory");
}

static const char *keep(struct reader *r)
{
    char *copy = sv_arena_alloc(r->a, r->text.len + 1); /* cleared */
    if (copy && r->text.len)
        memcpy(copy, r->text.data, r->text.len);
    return copy;
}

static int read_value(struct reader *r, int depth, struct sv_tree **out);

static int read_children(struct reader *r, int depth, struct sv_tree *v)
{
    bool object = v->kind == SV_TREE_OBJECT, first = true;
    const struct sv_tree **tail = &v->child;
    int rc = sv_jpull_enter(r->j, object ? '{' : '[');

    while (rc == SV_OK &&
           (rc = sv_jpull_more(r->j, object ? '}' : ']', &first, object ? &r->text : NULL)) == 1) {
        const char *key = object ? keep(r) : "";
        struct sv_tree *one = NULL;
        if (!key)
            return no_memory(r);
        if (object && sv_tree_get(v, key))
            return sv_jpull_fail(r->j, r->j->pos, "'%.40s' is there twice", key);
        rc = read_value(r, depth + 1, &one);
        if (rc < 0)
            return rc;
        one->key = key;
        *tail = one;
        tail = &one->next;
        v->n++;
    }
    return rc;
}

/* Integers that fit are INT, other numbers REAL: no field that is read is a fraction. */
static int read_number(struct reader *r, struct sv_tree *v)
{
    size_t start = r->j->pos;
    int rc = sv_jpull_skip(r->j);
    struct sv_jpull again = {.text = r->j->text, .n = r->j->pos, .pos = start};

    v->kind = SV_TREE_REAL;
    if (rc == SV_OK && sv_jpull_int(&again, INT64_MIN / 16, INT64_MAX / 16, &v->number) == SV_OK &&
        again.pos == again.n)
        v->kind = SV_TREE_INT;
    return rc;
}

static int read_value(struct reader *r, int depth, struct sv_tree **out)
{
    struct sv_tree *v = sv_arena_alloc(r->a, sizeof *v);
    int c = sv_jpull_peek(r->j), rc;
    bool flag = false;

    *out = v;
    if (!v)
        return no_memory(r);
    v->pos = r->j->pos;
    if (depth > SV_JPULL_DEPTH)
        return sv_jpull_fail(r->j, v->pos, "nested deeper than %d", SV_JPULL_DEPTH);
    switch (c) {
    case '{':
    case '[':
        v->kind = c == '{' ? SV_TREE_OBJECT : SV_TREE_ARRAY;
        return read_children(r, depth, v);
    case '"':
        v->kind = SV_TREE_STRING;
        rc = sv_jpull_string(r->j, &r->text);
        if (rc < 0)
            return rc;
        v->text = keep(r);
        v->n = r->text.len;
        return v->text ? SV_OK : no_memory(r);
    case 't':
    case 'f':
        v->kind = SV_TREE_BOOL;
        rc = sv_jpull_bool(r->j, &flag);
        v->number = flag;
        return rc;
    case 'n':
        rc = sv_jpull_skip(r->j);
        if (rc == SV_OK && (r->j->pos - v->pos != 4 || memcmp(r->j->text + v->pos, "null", 4) != 0))
            rc = sv_jpull_fail(r->j, v->pos, "expected a value");
        return rc;
    default:
        if (c != '-' && (c < '0' || c > '9'))
            return sv_jpull_fail(r->j, v->pos, "expected a value");
        return read_number(r, v);
    }
}

int sv_tree_read(struct sv_jpull *j, struct sv_arena *a, const struct sv_tree **out)
{
    struct reader r = {.j = j, .a = a};
    struct sv_tree *v = NULL;
    int rc;

    sv_buf_init(&r.text);
    rc = read_value(&r, 0, &v);
    sv_buf_fini(&r.text);
    *out = rc == SV_OK && v->kind != SV_TREE_NULL ? v : NULL;
    return rc;
}

const struct sv_tree *sv_tree_get(const struct sv_tree *v, const char *key)
{
    const struct sv_tree *c = v && v->kind == SV_TREE_OBJECT ? v->child : NULL;
    while (c && strcmp(c->key, key) != 0)
        c = c->next;
    return c && c->kind != SV_TREE_NULL ? c : NULL;
}

const char *sv_tree_text(const struct sv_tree *v, const char *key)
{
    const struct sv_tree *c = sv_tree_get(v, key);
    return c && c->kind == SV_TREE_STRING ? c->text : NULL;
}
