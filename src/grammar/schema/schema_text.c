/*
 * schema_text.c - the text of values: space, strings and their escapes, numbers, and values of the
 * schema.
 *
 * Called by schema_emit.c. Unconstrained strings may escape any character as JSON can. Constrained
 * strings (a pattern, a length with it, a name) escape only characters that must be. Must not:
 * allow unbounded space or digits.
 */
#include "grammar/schema/schema.h"

#include <string.h>

/* Enough for indentation by two; small models would generate space without end. */
enum { MAX_SPACES = 20, MAX_TABS = 10 };

sv_expr sv_emit_no_memory(struct sv_emit *e)
{
    sv_build_fail(e->b, SV_ENOMEM, -1, "out of memory");
    return sv_build_empty(e->b);
}

static sv_expr bytes(struct sv_emit *e, const char *text)
{
    return sv_build_bytes(e->b, text, strlen(text));
}

static sv_expr chars(struct sv_emit *e, uint32_t lo, uint32_t hi)
{
    return sv_build_chars(e->b, &(struct sv_range){lo, hi}, 1, false);
}

static sv_expr rule(struct sv_emit *e, const char *name, sv_expr body)
{
    sv_expr r = sv_build_rule(e->b, name, strlen(name), -1);

    sv_build_define(e->b, r, body);
    return r;
}

/* ---------------------------------------------------------------- what all nodes share */

/* Nothing, a space, or a line break with indentation. */
static sv_expr make_space(struct sv_emit *e)
{
    struct sv_build *b = e->b;
    sv_expr spaces, tabs, line;

    if (e->s->style.compact)
        return sv_build_empty(b);
    spaces = sv_build_repeat(b, bytes(e, " "), 0, MAX_SPACES);
    tabs = sv_build_repeat(b, bytes(e, "\t"), 1, MAX_TABS);
    line = sv_build_then(b, bytes(e, "\n"), sv_build_or(b, spaces, tabs));
    return rule(e, "space",
                sv_build_alt(b, (sv_expr[]){sv_build_empty(b), bytes(e, " "), line}, 3));
}

/* One hexadecimal digit of lo..hi, 0 to 15. */
static sv_expr hex(struct sv_emit *e, uint32_t lo, uint32_t hi)
{
    static const struct sv_range all[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    static const uint32_t first[] = {0, 10, 10};
    struct sv_range some[3];
    size_t n = 0;

    for (int i = 0; i < 3; i++) {
        uint32_t from = lo > first[i] ? lo : first[i], last = first[i] + all[i].hi - all[i].lo;
        uint32_t to = hi < last ? hi : last;
        if (from <= to)
            some[n++] = (struct sv_range){all[i].lo + from - first[i], all[i].lo + to - first[i]};
    }
    return sv_build_chars(e->b, some, n, false);
}

/* Four digits from the ranges given. */
static sv_expr hex4(struct sv_emit *e, const uint8_t digits[4][2])
{
    sv_expr x[4];

    for (int i = 0; i < 4; i++)
        x[i] = hex(e, digits[i][0], digits[i][1]);
    return sv_build_seq(e->b, x, 4);
}

/* What may follow a backslash: a letter, or u and a code other than 0000; two codes for a pair of
 * surrogates, which are not allowed alone. */
static sv_expr make_escape(struct sv_emit *e)
{
    static const uint8_t codes[][4][2] = {
        {{0, 0}, {0, 0}, {0, 0}, {1, 15}},     {{0, 0}, {0, 0}, {1, 15}, {0, 15}},
        {{0, 0}, {1, 15}, {0, 15}, {0, 15}},   {{1, 12}, {0, 15}, {0, 15}, {0, 15}},
        {{13, 13}, {0, 7}, {0, 15}, {0, 15}},  {{14, 15}, {0, 15}, {0, 15}, {0, 15}},
        {{13, 13}, {8, 11}, {0, 15}, {0, 15}}, /* the first of a pair, */
        {{13, 13}, {12, 15}, {0, 15}, {0, 15}} /* and the second */
    };
    static const struct sv_range letters[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                                              {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
    struct sv_build *b = e->b;
    sv_expr all[7];

    for (int i = 0; i < 7; i++)
        all[i] = hex4(e, codes[i]);
    all[6] = sv_build_seq(b, (sv_expr[]){all[6], bytes(e, "\\u"), hex4(e, codes[7])}, 3);
    return rule(e, "escape",
                sv_build_or(b, sv_build_chars(b, letters, 8, false),
                            sv_build_then(b, bytes(e, "u"), sv_build_alt(b, all, 7))));
}

/* One to most digits, the first not 0; or 0. */
static sv_expr make_integer(struct sv_emit *e, int32_t most)
{
    sv_expr more = sv_build_repeat(e->b, chars(e, '0', '9'), 0, most - 1);

    return sv_build_then(e->b, chars(e, '1', '9'), more);
}

static sv_expr make_number(struct sv_emit *e)
{
    struct sv_build *b = e->b;
    sv_expr nothing = sv_build_empty(b), digit = chars(e, '0', '9');
    sv_expr minus = sv_build_or(b, nothing, bytes(e, "-"));
    sv_expr whole = sv_build_or(b, bytes(e, "0"), make_integer(e, SV_NUMBER_LONGEST));
    sv_expr fraction =
        sv_build_then(b, bytes(e, "."), sv_build_repeat(b, digit, 1, SV_NUMBER_LONGEST));
    sv_expr sign = sv_build_alt(b, (sv_expr[]){nothing, bytes(e, "+"), bytes(e, "-")}, 3);
    sv_expr mark = sv_build_or(b, bytes(e, "e"), bytes(e, "E"));
    /* two digits: no parser reads the number as infinite */
    sv_expr power = sv_build_seq(b, (sv_expr[]){mark, sign, sv_build_repeat(b, digit, 1, 2)}, 3);

    return sv_build_seq(b,
                        (sv_expr[]){minus, whole, sv_build_or(b, nothing, fraction),
                                    sv_build_or(b, nothing, power)},
                        4);
}

void sv_emit_open(struct sv_emit *e)
{
    static const struct sv_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, SV_CP_LAST}};
    struct sv_build *b = e->b;
    sv_expr quote = bytes(e, "\""), minus = sv_build_or(b, sv_build_empty(b), bytes(e, "-"));
    sv_expr integer = sv_build_then(b, minus, make_integer(e, SV_NUMBER_LONGEST));

    e->space = make_space(e);
    e->comma = sv_build_then(b, bytes(e, ","), e->space);
    e->character = sv_build_or(b, sv_build_chars(b, plain, 3, false),
                               sv_build_then(b, bytes(e, "\\"), make_escape(e)));
    e->string = rule(
        e, "string",
        sv_build_seq(b, (sv_expr[]){quote, sv_build_repeat(b, e->character, 0, -1), quote}, 3));
    e->integer = rule(e, "integer", sv_build_or(b, bytes(e, "0"), integer));
    e->number = rule(e, "number", make_number(e));
}

/* ---------------------------------------------------------------- automata */

static bool has(const struct sv_range *ranges, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n; i++)
        if (ranges[i].lo <= c && c <= ranges[i].hi)
            return true;
    return false;
}

/* The escapes of those characters of the set that must or may be escaped. */
static sv_expr escapes_of(struct sv_emit *e, const struct sv_range *ranges, size_t n)
{
    static const char named[] = "\"\"\\\\//\bb\ff\nn\rr\tt"; /* character, then its letter */
    sv_expr all[40];
    size_t n_all = 0;

    for (const char *p = named; *p; p += 2)
        if (has(ranges, n, (uint32_t)*p))
            all[n_all++] = sv_build_bytes(e->b, (char[]){'\\', p[1]}, 2);
    for (uint32_t c = SV_CP_FIRST; c < 0x20; c++) {
        char text[8];
        if (strchr(named, (int)c) || !has(ranges, n, c))
            continue;
        snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        all[n_all++] = bytes(e, text);
    }
    return sv_build_alt(e->b, all, n_all);
}

/* One character of sorted ranges, inside a string. */
static sv_expr one_of(struct sv_emit *e, const struct sv_range *ranges, size_t n)
{
    static const struct sv_range allowed[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, SV_CP_LAST}};
    struct sv_range *plain = sv_schema_alloc(e->s, n + 3, sizeof *plain);
    size_t n_plain = 0;
    sv_expr escapes;

    if (!plain)
        return sv_emit_no_memory(e);
    if (n == 2 && ranges[0].lo == SV_CP_FIRST && ranges[1].hi == SV_CP_LAST)
        return e->character; /* all except surrogates, as in automata */
    for (size_t i = 0, k = 0; i < n && k < 3;) {
        uint32_t lo = ranges[i].lo > allowed[k].lo ? ranges[i].lo : allowed[k].lo;
        uint32_t hi = ranges[i].hi < allowed[k].hi ? ranges[i].hi : allowed[k].hi;
        if (lo <= hi)
            plain[n_plain++] = (struct sv_range){lo, hi};
        if (ranges[i].hi < allowed[k].hi)
            i++;
        else
            k++;
    }
    escapes = escapes_of(e, ranges, n);
    return n_plain ? sv_build_or(e->b, sv_build_chars(e->b, plain, n_plain, false), escapes)
                   : escapes;
}

/* A digit, sign or point: what numbers are made of is not escaped. */
static sv_expr one_plainly(struct sv_emit *e, const struct sv_range *ranges, size_t n)
{
    return sv_build_chars(e->b, ranges, n, false);
}

/* The automaton as states whose arcs are sets of characters, one for each pair of states. */
static sv_expr emit_dfa(struct sv_emit *e, const struct sv_dfa *d,
                        sv_expr (*label)(struct sv_emit *, const struct sv_range *, size_t))
{
    size_t n_edges = d->n_states ? (size_t)d->first[d->n_states] : 0, n_arcs = 0;
    struct sv_arc *arcs = sv_schema_alloc(e->s, n_edges + (size_t)d->n_states, sizeof *arcs);
    struct sv_range *ranges = sv_schema_alloc(e->s, n_edges, sizeof *ranges);
    bool *done = sv_schema_alloc(e->s, n_edges, sizeof *done);

    if (!arcs || !ranges || !done)
        return sv_emit_no_memory(e);
    for (int32_t s = 0; s < d->n_states; s++) {
        if (d->final[s])
            arcs[n_arcs++] = (struct sv_arc){s, d->n_states, sv_build_empty(e->b)};
        for (int32_t i = d->first[s]; i < d->first[s + 1]; i++) {
            size_t n = 0;
            for (int32_t k = i; k < d->first[s + 1] && !done[i]; k++)
                if (d->edges[k].to == d->edges[i].to) {
                    ranges[n++] = (struct sv_range){d->edges[k].lo, d->edges[k].hi};
                    done[k] = k != i;
                }
            if (n)
                arcs[n_arcs++] = (struct sv_arc){s, d->edges[i].to, label(e, ranges, n)};
        }
    }
    return sv_build_states(e->b, d->n_states, arcs, n_arcs);
}

sv_expr sv_emit_string(struct sv_emit *e, const struct sv_dfa *strings)
{
    sv_expr quote = bytes(e, "\"");

    return strings ? sv_build_seq(e->b, (sv_expr[]){quote, emit_dfa(e, strings, one_of), quote}, 3)
                   : e->string;
}

sv_expr sv_emit_number(struct sv_emit *e, const struct sv_dfa *text)
{
    return emit_dfa(e, text, one_plainly);
}

/* ---------------------------------------------------------------- enum and const */

sv_expr sv_emit_name(struct sv_emit *e, const char *name, size_t n)
{
    struct sv_buf text;
    sv_expr x;

    sv_buf_init(&text);
    sv_json_quote(&text, name, n);
    x = text.failed ? sv_emit_no_memory(e) : sv_build_bytes(e->b, text.data, text.len);
    sv_buf_fini(&text);
    return x;
}

/* Values deeper than this have been filtered out. */
static sv_expr literal(struct sv_emit *e, const json_t *v, int depth);

static sv_expr container(struct sv_emit *e, const json_t *v, int depth)
{
    const bool object = json_is_object(v);
    sv_expr open = bytes(e, object ? "{" : "["), close = bytes(e, object ? "}" : "]");
    sv_expr all = sv_build_then(e->b, open, e->space), colon = bytes(e, ":");
    size_t n = object ? json_object_size(v) : json_array_size(v), i = 0;
    const char *key;
    json_t *value;

    if (!n)
        return sv_build_then(e->b, all, close);
    for (i = 0; i < n && !object; i++) {
        sv_expr item = literal(e, json_array_get(v, i), depth);
        all = sv_build_seq(e->b, (sv_expr[]){all, i ? e->comma : sv_build_empty(e->b), item}, 3);
    }
    json_object_foreach((json_t *)v, key, value) {
        sv_expr name = sv_emit_name(e, key, strlen(key)), item = literal(e, value, depth);
        sv_expr pair = sv_build_seq(e->b, (sv_expr[]){name, colon, e->space, item}, 4);
        all = sv_build_seq(e->b, (sv_expr[]){all, i++ ? e->comma : sv_build_empty(e->b), pair}, 3);
    }
    return sv_build_seq(e->b, (sv_expr[]){all, e->space, close}, 3);
}

static sv_expr literal(struct sv_emit *e, const json_t *v, int depth)
{
    char number[SV_NUMBER_TEXT];

    SV_REQUIRE(depth < 1000);
    if (json_is_string(v))
        return sv_emit_name(e, json_string_value(v), json_string_length(v));
    if (json_is_array(v) || json_is_object(v))
        return container(e, v, depth + 1);
    if (!json_is_number(v))
        return bytes(e, json_is_null(v) ? "null" : json_is_true(v) ? "true" : "false");
    if (sv_number_cut(v))
        sv_build_fail(e->b, SV_EUNSUPPORTED, -1, "a number in enum or const is beyond 64 bits");
    sv_number_text(v, number);
    return bytes(e, number);
}

sv_expr sv_emit_literal(struct sv_emit *e, const json_t *value)
{
    return literal(e, value, 0);
}
