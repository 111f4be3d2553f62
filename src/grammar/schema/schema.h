/*
 * schema.h - what the files that make grammars of JSON schemas share: sets of subschemas that one
 * value must satisfy (nodes), and the constraints of such a set on each type of value.
 *
 * Private to src/grammar/schema. The steps: schema_read.c finds subschemas and follows references;
 * schema_node.c makes a node of each set of subschemas that one value must satisfy; schema_leaf.c
 * and schema_keys.c collect the set's constraints; schema_live.c finds nodes that no value
 * satisfies; schema_emit.c writes the others as rules. Everything is in one arena for the duration
 * of one call.
 */
#ifndef SV_GRAMMAR_SCHEMA_H
#define SV_GRAMMAR_SCHEMA_H

#include "grammar/core/build.h"
#include "grammar/regex/dfa.h"

/* ---------------------------------------------------------------- numbers */

#define SV_NUMBER_DIGITS 15  /* that a double represents */
#define SV_NUMBER_LONGEST 32 /* digits of a part of a number without bounds */
#define SV_NUMBER_STEP 10000 /* the largest multipleOf, in units of its last decimal */

/* 0.d1 d2 ... x 10^point, exactly; zero has no digits. */
struct sv_decimal {
    char digits[40];
    int n_digits, point;
    bool negative;
};
/* The shortest text that parses to this number, as the schema's author wrote it. */
#define SV_NUMBER_TEXT 40
void sv_number_text(const json_t *v, char text[SV_NUMBER_TEXT]);
/* Whether the JSON reader may have lost digits of this number: an integer beyond 64 bits. */
bool sv_number_cut(const json_t *v);
/* From a JSON number. SV_EUNSUPPORTED when it has too many digits to be handled. */
int sv_decimal_read(struct sv_decimal *d, const json_t *v);
/* From the digits of an integer. */
void sv_decimal_text(struct sv_decimal *d, const char *text);
int sv_decimal_compare(const struct sv_decimal *a, const struct sv_decimal *b);

struct sv_numbers {
    bool has_lo, has_hi, has_step;
    bool over_lo, under_hi; /* the bound itself is excluded */
    struct sv_decimal lo, hi, step;
};
/* The digit of 10^place (0: units, -1: tenths). */
int sv_decimal_digit(const struct sv_decimal *d, int place);
/* The texts of these numbers; whole: of the integers among them. */
int sv_numbers_dfa(struct sv_dfa_room *room, const struct sv_numbers *spec, bool whole,
                   const struct sv_dfa **out, struct sv_err *err);

/* ---------------------------------------------------------------- subschemas and nodes */

/* A subschema that is an object, once found. */
struct sv_spot {
    const json_t *schema;
    const char *path; /* "schema/properties/a" */
    bool asserts;     /* constrains values itself, beyond $ref and allOf */
    uint8_t followed; /* enum in schema_read.c: whether its $ref, allOf and so on were followed */
    int64_t seen_by;  /* the set that last contained it */
};

/* A subschema in a set. Unions that the set has already chosen from are marked. */
struct sv_part {
    int32_t spot;
    uint32_t chosen; /* SV_CHOSEN_* */
};
#define SV_CHOSEN_ANY 1u
#define SV_CHOSEN_ONE 2u

/* Subschemas that one value must satisfy together. */
struct sv_set {
    struct sv_part *parts;
    int32_t n, cap;
    bool never;     /* `false` is among them */
    int64_t serial; /* of this set; 0 while it is empty */
};

enum sv_types {
    SV_NULL = 1,
    SV_BOOL = 2,
    SV_WHOLE = 4,  /* integers */
    SV_BROKEN = 8, /* numbers that are not integers; only used with SV_WHOLE */
    SV_STRING = 16,
    SV_ARRAY = 32,
    SV_OBJECT = 64,
    SV_ANY_TYPE = 127,
};

struct sv_member {
    const char *name; /* (n_name) */
    size_t n_name;
    int32_t node;
    bool required;
};

/* Names that are not declared, and the node of their values. */
struct sv_extra {
    const struct sv_dfa *names; /* NULL: any */
    int32_t node;
};

/* A set's constraints on values, by type. */
struct sv_leaf {
    uint32_t types;  /* that are allowed */
    bool has_values; /* enum or const: only these */
    const json_t **values;
    size_t n_values;
    struct sv_numbers numbers;
    const struct sv_dfa *number_text[2]; /* [whole], when there are bounds or a step */
    const struct sv_dfa *strings;        /* NULL: any */
    int64_t min_items, max_items;        /* max -1: none */
    int32_t *prefix;                     /* (n_prefix) nodes */
    int32_t n_prefix;
    int32_t items; /* node of the items after the prefix; SV_SCHEMA_NEVER: there are none */
    struct sv_member *members;
    int32_t n_members;
    struct sv_extra *extras;
    int32_t n_extras;
    int64_t min_members, max_members; /* max -1: none */
};

#define SV_SCHEMA_NEVER 0 /* no value */
#define SV_SCHEMA_ANY 1   /* every value */

struct sv_schema_node {
    const struct sv_part *parts; /* its set: (n_parts) */
    int32_t n_parts;
    const char *path;
    int32_t *alts; /* (n_alts) nodes: a union, when leaf is NULL */
    int32_t n_alts;
    struct sv_leaf *leaf;
    uint32_t live; /* enum sv_types: of which some value satisfies it */
    bool has_rule;
    sv_expr rule;
};

/* Two alternatives of a oneOf, and the node of both, which no value may satisfy. */
struct sv_apart {
    int32_t both, first, second;
    const char *path;
};

/* One schema being made into a grammar. */
struct sv_schema {
    const json_t *root;
    struct sv_schema_style style;
    struct sv_arena arena;
    struct sv_dfa_room room;
    struct sv_spot *spots;
    int32_t n_spots, cap_spots;
    int32_t *spot_table; /* by address of the subschema; number + 1 */
    int32_t n_spot_table;
    struct sv_schema_node *nodes;
    int32_t n_nodes, cap_nodes;
    int32_t *node_table; /* by set; number + 1 */
    int32_t n_node_table;
    struct sv_apart *aparts;
    int32_t n_aparts, cap_aparts;
    int64_t n_sets;
    struct sv_err *err;
};

#define SV_SCHEMA_NODES 20000   /* most */
#define SV_SCHEMA_REPEATS 32768 /* the largest minItems, maxLength and so on */

/* "path: message", for all errors of the schema files. Returns code. */
int sv_schema_fail(struct sv_schema *s, int code, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds the path to an automaton's error. */
int sv_schema_at(struct sv_schema *s, int status, const char *path);
int sv_schema_no_memory(struct sv_schema *s);
/* Memory of the call, cleared; NULL after recording the error. */
void *sv_schema_alloc(struct sv_schema *s, size_t count, size_t size);
/* Makes room for one more in an array that doubles in the arena. */
int sv_schema_grow(struct sv_schema *s, void *array, int32_t n, int32_t *cap, size_t size);
const char *sv_schema_path(struct sv_schema *s, const char *path, const char *key);
const char *sv_schema_path_index(struct sv_schema *s, const char *path, size_t i);

/* schema_read.c: adds a subschema and all that it refers to. */
int sv_set_add(struct sv_schema *s, struct sv_set *set, const json_t *schema, const char *path);
/* Marks the spots that a schema leads to by $ref, allOf, anyOf and oneOf, and its own, as seen by a
 * serial number of ++n_sets. */
int sv_set_beneath(struct sv_schema *s, const json_t *schema, int64_t serial);
/* Copies the parts of a node. */
int sv_set_copy(struct sv_schema *s, struct sv_set *set, const struct sv_schema_node *node);

/* schema_node.c: the node of a set, a new one when it was not seen; and all nodes made full. */
int sv_node_of(struct sv_schema *s, const struct sv_set *set, const char *path, int32_t *node);
int sv_nodes_make(struct sv_schema *s, int32_t *start);

/* What "$ref": ref stands for. */
int sv_ref_target(struct sv_schema *s, const json_t *ref, const char *path, const json_t **target,
                  const char **target_path);

/* schema_leaf.c: the types that a subschema names (0: none, or nothing valid), and those that its
 * other keywords constrain. */
uint32_t sv_types_said(const json_t *schema);
uint32_t sv_types_implied(const json_t *schema);
/* All constraints of a set. */
int sv_leaf_make(struct sv_schema *s, int32_t node);
/* A keyword that is a count: tightens *bound (-1: no bound yet) if present. */
int sv_schema_count(struct sv_schema *s, const struct sv_spot *spot, const char *key, bool is_max,
                    int64_t *bound);
/* schema_string.c: the strings that all of these subschemas allow; NULL: any. types: the types that
 * values can have; formats of other types are ignored. */
int sv_strings_make(struct sv_schema *s, const struct sv_part *parts, int32_t n, const char *path,
                    uint32_t types, const struct sv_dfa **out);
/* The same for the names that propertyNames allows. */
int sv_names_make(struct sv_schema *s, const struct sv_part *parts, int32_t n, const char *path,
                  const struct sv_dfa **out);
/* The strings in which the expression is found. */
int sv_pattern_dfa(struct sv_schema *s, const char *text, size_t n, const char *path,
                   const struct sv_dfa **out);
/* schema_format.c: false: the standard has no such format. *regex NULL: it is not supported. */
bool sv_format_find(const char *name, const char **regex);
/* schema_keys.c: members and extras of an object. */
int sv_keys_make(struct sv_schema *s, int32_t node, struct sv_leaf *leaf);
/* schema_values.c: equal as JSON values, numbers by their value. Values visited count as work;
 * false when none is left. */
bool sv_values_equal(struct sv_schema *s, const json_t *a, const json_t *b);
/* Removes values of enums that the node's other keywords do not allow. */
int sv_values_filter(struct sv_schema *s);
/* schema_apart.c: whether it is obvious that no value satisfies both. */
bool sv_plainly_apart(struct sv_schema *s, const json_t *a, const json_t *b);
/* schema_live.c */
int sv_nodes_live(struct sv_schema *s);
/* The error for a schema whose start is not live: no value satisfies it, or only values that need
 * several undeclared names, which a grammar cannot keep different. */
int sv_schema_dead(struct sv_schema *s);
/* ---------------------------------------------------------------- emission */

/* Nodes as rules of a builder, which records errors. */
struct sv_emit {
    struct sv_schema *s;
    struct sv_build *b;
    sv_expr space, comma;            /* allowed white space between two tokens; "," with it */
    sv_expr character;               /* one of any string */
    sv_expr string, integer, number; /* rules of values without bounds */
    int32_t *waiting;                /* nodes whose rule is called and not defined */
    int32_t n_waiting;
};
/* schema_emit.c: the start; defines all rules that it needs. */
sv_expr sv_node_emit(struct sv_schema *s, struct sv_build *b, int32_t node);
/* schema_text.c: sets what all nodes share. */
void sv_emit_open(struct sv_emit *e);
sv_expr sv_emit_no_memory(struct sv_emit *e);
/* With quotes; NULL: any string. */
sv_expr sv_emit_string(struct sv_emit *e, const struct sv_dfa *strings);
sv_expr sv_emit_number(struct sv_emit *e, const struct sv_dfa *text);
/* A member's name as JSON writes it, and a value of an enum. */
sv_expr sv_emit_name(struct sv_emit *e, const char *name, size_t n);
sv_expr sv_emit_literal(struct sv_emit *e, const json_t *value);

#endif
