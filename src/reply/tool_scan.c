/*
 * tool_scan.c - JSON byte by byte: is what has come the beginning of a value, and where in it are
 * we?
 *
 * Called by the files that read calls of tools, whose arguments go on to the client while the model
 * still writes them. Must not: allocate, or keep any of the text.
 */
#include "reply/tool.h"

#include <string.h>

bool sv_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* ---------------------------------------------------------------- numbers */

enum { MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, POWER };

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool number_may_end(int state)
{
    return state == ZERO || state == DIGITS || state == FRACTION || state == POWER;
}

/* The state after c, or -1. */
static int number_byte(int state, char c)
{
    bool whole = state == ZERO || state == DIGITS;

    if (is_digit(c))
        switch (state) {
        case MINUS:
            return c == '0' ? ZERO : DIGITS;
        case ZERO:
            return -1;
        case POINT:
            return FRACTION;
        case EXPONENT:
        case SIGN:
            return POWER;
        default:
            return state;
        }
    if (c == '.' && whole)
        return POINT;
    if ((c == 'e' || c == 'E') && (whole || state == FRACTION))
        return EXPONENT;
    if ((c == '+' || c == '-') && state == EXPONENT)
        return SIGN;
    return -1;
}

/* ---------------------------------------------------------------- values */

static bool in_array(const struct sv_scan *s)
{
    int32_t i = s->depth - 1;
    return s->arrays[i / 64] >> (i % 64) & 1;
}

static bool enter(struct sv_scan *s, bool array)
{
    int32_t i = s->depth;

    if (i == SV_SCAN_DEPTH)
        return false;
    s->arrays[i / 64] &= ~(UINT64_C(1) << (i % 64));
    s->arrays[i / 64] |= (uint64_t)array << (i % 64);
    s->depth++;
    s->at = array ? SV_AT_FIRST_VALUE : SV_AT_FIRST_KEY;
    return true;
}

static bool end_value(struct sv_scan *s)
{
    s->at = s->depth ? SV_AT_NEXT : SV_AT_END;
    return true;
}

static bool leave(struct sv_scan *s)
{
    s->depth--;
    return end_value(s);
}

static bool begin_string(struct sv_scan *s, bool key)
{
    s->at = SV_AT_STRING;
    s->in_key = key;
    return true;
}

static bool begin_value(struct sv_scan *s, char c)
{
    static const char *const literals[] = {"true", "false", "null"};

    if (c == '{' || c == '[')
        return enter(s, c == '[');
    if (c == '"')
        return begin_string(s, false);
    if (c == '-' || is_digit(c)) {
        s->at = SV_AT_NUMBER;
        s->number = (int8_t)(c == '-' ? MINUS : c == '0' ? ZERO : DIGITS);
        return true;
    }
    for (int i = 0; i < 3; i++)
        if (c == *literals[i]) {
            s->at = SV_AT_LITERAL;
            s->literal = literals[i] + 1;
            return true;
        }
    return false;
}

static bool next_byte(struct sv_scan *s, char c)
{
    bool array = in_array(s);

    if (c == (array ? ']' : '}'))
        return leave(s);
    s->at = array ? SV_AT_VALUE : SV_AT_KEY;
    return c == ',';
}

static bool string_byte(struct sv_scan *s, char c)
{
    if (c == '\\')
        s->at = SV_AT_ESCAPE;
    else if (c == '"' && s->in_key)
        s->at = SV_AT_COLON;
    else if (c == '"')
        end_value(s);
    return true;
}

static bool escape_byte(struct sv_scan *s, char c)
{
    s->at = c == 'u' ? SV_AT_HEX : SV_AT_STRING;
    s->n_hex = 0;
    return c && strchr("\"\\/bfnrtu", c);
}

static bool hex_byte(struct sv_scan *s, char c)
{
    if (++s->n_hex == 4)
        s->at = SV_AT_STRING;
    return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static bool number_step(struct sv_scan *s, char c)
{
    int state = number_byte(s->number, c);

    if (state >= 0) {
        s->number = (int8_t)state;
        return true;
    }
    return number_may_end(s->number) && end_value(s) && sv_scan_byte(s, c);
}

static bool literal_byte(struct sv_scan *s, char c)
{
    if (c != *s->literal)
        return false;
    if (!*++s->literal)
        end_value(s);
    return true;
}

bool sv_scan_byte(struct sv_scan *s, char c)
{
    switch (s->at) {
    case SV_AT_STRING:
        return string_byte(s, c);
    case SV_AT_ESCAPE:
        return escape_byte(s, c);
    case SV_AT_HEX:
        return hex_byte(s, c);
    case SV_AT_NUMBER:
        return number_step(s, c);
    case SV_AT_LITERAL:
        return literal_byte(s, c);
    default:
        break;
    }
    if (sv_is_space(c))
        return true;
    switch (s->at) {
    case SV_AT_FIRST_VALUE:
        return c == ']' ? leave(s) : begin_value(s, c);
    case SV_AT_VALUE:
        return begin_value(s, c);
    case SV_AT_FIRST_KEY:
        return c == '}' ? leave(s) : c == '"' && begin_string(s, true);
    case SV_AT_KEY:
        return c == '"' && begin_string(s, true);
    case SV_AT_COLON:
        s->at = SV_AT_VALUE;
        return c == ':';
    case SV_AT_NEXT:
        return next_byte(s, c);
    default:
        return false; /* nothing may follow the end */
    }
}

bool sv_scan_all(const char *text, size_t n)
{
    struct sv_scan s = {.at = SV_AT_VALUE};

    for (size_t i = 0; i < n; i++)
        if (!sv_scan_byte(&s, text[i]))
            return false;
    return s.at == SV_AT_END || (s.at == SV_AT_NUMBER && !s.depth && number_may_end(s.number));
}

bool sv_is_json_object(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && sv_is_space(text[i]))
        i++;
    return i < n && text[i] == '{' && sv_scan_all(text, n);
}

void sv_escape(struct sv_buf *b, const char *text, size_t n)
{
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        sv_buf_append(b, text + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\')
            sv_buf_append(b, c == '"' ? "\\\"" : "\\\\", 2);
        else if (c == '\n' || c == '\t' || c == '\r')
            sv_buf_append(b, c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r", 2);
        else
            sv_buf_printf(b, "\\u%04x", c);
    }
    sv_buf_append(b, text + from, n - from);
}

void sv_append_json(struct sv_buf *b, bool in_string, char c)
{
    if (in_string && (unsigned char)c < 0x20)
        sv_escape(b, &c, 1);
    else
        sv_buf_append(b, &c, 1);
}
