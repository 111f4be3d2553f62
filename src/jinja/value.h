/*
 * value.h - the values of templates: of names, expressions and JSON members.
 *
 * Included by tree.h. All values of a run are in its arena. Must not: have kinds that Python's
 * jinja2 does not have.
 */
#ifndef SV_JINJA_VALUE_H
#define SV_JINJA_VALUE_H

#include "base/base.h"
#include "jinja/jinja.h"

/* ---------------------------------------------------------------- values */

enum sv_jkind {
    /* no value at all: an argument not given, a name not set; never seen by a template */
    SV_J_MISSING,
    SV_J_UNDEF,
    SV_J_NONE,
    SV_J_BOOL,
    SV_J_INT,
    SV_J_FLOAT,
    SV_J_STR,
    SV_J_LIST,
    SV_J_TUPLE,
    SV_J_DICT,
    SV_J_RANGE,
    SV_J_GEN,  /* a list that can be iterated once: a generator */
    SV_J_VIEW, /* keys, values or items of a dict, by sub */
    SV_J_NS,
    SV_J_MACRO,
    SV_J_LOOP,
    SV_J_CYCLER,
    SV_J_JOINER,
    SV_J_FUNC,   /* a global function; i is its number */
    SV_J_METHOD, /* a method with its object */
};

enum { SV_J_KEYS, SV_J_VALUES, SV_J_ITEMS };

struct sv_jval {
    uint8_t kind;
    uint8_t sub; /* string: 1 for Markup; view: which part */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *p; /* valid UTF-8, not NUL-terminated */
            size_t n;
        } s;
        struct sv_jlist *list; /* list, tuple, generator */
        struct sv_jdict *dict; /* dict, view, namespace */
        struct sv_jrange *range;
        struct sv_jundef *undef;
        struct sv_jmacro *macro;
        struct sv_jloop *loop;
        struct sv_jcycler *cycler;
        struct sv_jmethod *method;
    } u;
};

struct sv_jlist {
    struct sv_jval *item;
    size_t n, cap;
    size_t next; /* generator: items consumed */
};

struct sv_jpair {
    struct sv_jval key, value;
    uint32_t hash;
};

struct sv_jdict { /* ordered by insertion */
    struct sv_jpair *pair;
    size_t n, cap;
};

struct sv_jrange {
    int64_t start, stop, step, n;
};

struct sv_jundef { /* the message is built when the value is used */
    const char *hint;
    struct sv_jval obj, name;
};

struct sv_jmethod {
    struct sv_jval self;
    int id;
};

struct sv_jcycler { /* cycler and joiner */
    struct sv_jval *item;
    size_t n, at;
};

#endif
