/*
 * tool.h - what the files of src/reply share: formats, a scanner of JSON, a
 * call under way.
 *
 * Included by tool_*.c and reasoning.c, and through answer.h by answer.c and harmony.c. Must not:
 * be seen by others.
 */
#ifndef SV_REPLY_TOOL_H
#define SV_REPLY_TOOL_H

#include "reply/reply.h"

/* ---------------------------------------------------------------- formats (tool_formats.c) */

struct sv_tool_syntax {
    const char *name;
    const char *open[3];  /* where calls begin; lists end with NULL */
    const char *close[4]; /* what may follow a call and is dropped */
    const char *inner[8]; /* other markers that may be special tokens */
    bool bare;            /* an object at the beginning is a call */
};
struct sv_think_syntax {
    const char *name, *open, *close;
};
const struct sv_tool_syntax *sv_tool_syntax(enum sv_tool_format f);
const struct sv_think_syntax *sv_think_syntax(enum sv_think_format f);

/* ---------------------------------------------------------------- JSON by bytes (tool_scan.c) */

#define SV_SCAN_DEPTH 128

enum sv_scan_at {
    SV_AT_VALUE,       /* a value must come; so zeros are a fresh scanner */
    SV_AT_FIRST_VALUE, /* ... or the end of the array */
    SV_AT_FIRST_KEY,
    SV_AT_KEY,
    SV_AT_COLON,
    SV_AT_NEXT, /* a comma or the end of what is open */
    SV_AT_STRING,
    SV_AT_ESCAPE,
    SV_AT_HEX,
    SV_AT_NUMBER,
    SV_AT_LITERAL,
    SV_AT_END
};
struct sv_scan {
    enum sv_scan_at at;
    int32_t depth;
    uint64_t arrays[SV_SCAN_DEPTH / 64]; /* a bit for each level */
    bool in_key;
    int8_t n_hex, number;
    const char *literal; /* the rest of it */
};
/* False: what came is the beginning of no JSON. Line ends and the like within strings, which models
 * write, are let through. */
bool sv_scan_byte(struct sv_scan *s, char c);
/* Whether n bytes are one value. */
bool sv_scan_all(const char *text, size_t n);
bool sv_is_space(char c);
/* Appends n bytes as they are written in a JSON string. */
void sv_escape(struct sv_buf *b, const char *text, size_t n);
/* A byte of JSON unchanged, or as an escape where a string may not contain it. */
void sv_append_json(struct sv_buf *b, bool in_string, char c);

/* ---------------------------------------------------------------- a call (tool_json.c, ...) */

enum sv_call_is { SV_CALL_MORE, SV_CALL_DONE, SV_CALL_BAD };
enum sv_call_step {
    SV_STEP_OPEN,   /* after a marker */
    SV_STEP_OBJECT, /* {"name": ..., "arguments": ...} */
    SV_STEP_HEAD,   /* a name, and what else there is before the arguments */
    SV_STEP_BODY,   /* arguments and nothing else */
    SV_STEP_NAME,   /* <function=, ... */
    SV_STEP_TAG,
    SV_STEP_KEY,
    SV_STEP_VALUE
};
enum sv_call_field { SV_FIELD_OTHER, SV_FIELD_KEY, SV_FIELD_NAME, SV_FIELD_ARGUMENTS };

/* Types that a parameter's schema allows, as bits. */
enum {
    SV_TYPE_STRING_BIT = 1,
    SV_TYPE_NUMBER_BIT = 2,
    SV_TYPE_BOOLEAN_BIT = 4,
    SV_TYPE_LIST_BIT = 8, /* arrays and objects */
    SV_TYPE_NULL_BIT = 16
};

struct sv_call {
    enum sv_call_step step;
    enum sv_tool_format format;
    bool bare, early;   /* early: so far it may be anything, and is short */
    bool named, begun;  /* its name is known; its arguments have begun */
    bool list;          /* it is the first of a list */
    struct sv_buf name; /* these last from call to call, so that their memory does */
    struct sv_buf args; /* not given yet */
    struct sv_buf word, value;
    struct sv_scan scan;
    enum sv_call_field field;
    bool in_value, verbatim; /* of a field that counts */
    /* <parameter=...> */
    const json_t *tool_list;
    uint32_t types;
    int32_t n_params;
    bool value_began; /* some of it is in args */
};
void sv_call_reset(struct sv_call *k);
enum sv_call_is sv_call_byte(struct sv_call *k, char c);
/* The text is over: whether this is a call all the same. */
bool sv_call_may_end(struct sv_call *k);
/* tool_json.c */
enum sv_call_is sv_call_object_byte(struct sv_call *k, char c);
enum sv_call_is sv_call_body_byte(struct sv_call *k, char c);
/* tool_head.c */
enum sv_call_is sv_call_head_byte(struct sv_call *k, char c);
/* tool_xml.c: the steps from NAME on; moves what is certain of a value to the arguments. */
enum sv_call_is sv_call_xml_byte(struct sv_call *k, char c);
void sv_call_xml_settle(struct sv_call *k);
void sv_call_xml_close(struct sv_call *k);
void sv_call_xml_cut(struct sv_call *k);
/* tool_types.c */
uint32_t sv_tool_types(const json_t *tool_list, const char *tool, const char *key);
/* Appends a value written as plain text in the JSON that its types make of it. */
void sv_tool_value(struct sv_buf *out, uint32_t types, const char *text, size_t n);

/* How many of the last bytes of a text may be the beginning of a marker. */
size_t sv_tail_of(const char *text, size_t n, const char *marker);

#endif
