/*
 * harmony.c - answers of gpt-oss, which consist of messages:
 * <|channel|>analysis<|message|>...<|end|>
 * <|start|>assistant<|channel|>final<|message|>...<|return|>. The header says what a message is: a
 * call of a function, reasoning or content.
 *
 * Called by answer.c for each step, and by serve for names. The prompt ends with
 * <|start|>assistant, so an answer begins within a header; an answer without markers is content.
 * Models write malformed headers now and then: the parts that are understood count, and if
 * <|message|> is missing, the rest of the header is the message's text. Must not: hold more than a
 * header, or refuse any text.
 */
#include "reply/answer.h"

#include <string.h>

#define START "<|start|>"
#define CHANNEL "<|channel|>"
#define CONSTRAIN "<|constrain|>"
#define MESSAGE "<|message|>"
#define END "<|end|>"
#define CALL "<|call|>"
#define RETURN "<|return|>"
#define ANALYSIS CHANNEL "analysis" MESSAGE
#define TO "to="
#define FUNCTIONS "functions."

#define MAX_MARKER 13
#define MAX_HEADER 1024 /* a longer one is text */
#define MAX_SPACES 64   /* before an answer's first marker */

/* What ends the text of a message; the first two begin another one as well. */
static const char *const ends[] = {START, CHANNEL, END, CALL, RETURN, NULL};

struct span {
    const char *at;
    size_t n;
};

static bool starts_with(struct span s, const char *what)
{
    return s.n >= strlen(what) && memcmp(s.at, what, strlen(what)) == 0;
}

static bool is_beginning_of(struct span s, const char *what)
{
    return s.n <= strlen(what) && memcmp(s.at, what, s.n) == 0;
}

static struct span skip(struct span s, size_t n)
{
    return (struct span){s.at + n, s.n - n};
}

static struct span held_from(const struct sv_answer *a, size_t n)
{
    return (struct span){a->held.data ? a->held.data + n : "", a->held.len - n};
}

/* ---------------------------------------------------------------- headers */

struct header {
    bool reasoning;
    struct span name; /* of the function that is called; empty: no call */
    size_t n_read;    /* bytes up to the end of the last element that was understood */
};

static size_t n_blanks(struct span s)
{
    size_t n = 0;

    while (n < s.n && sv_is_space(s.at[n]))
        n++;
    return n;
}

static size_t n_letters(struct span s)
{
    size_t n = 0;

    while (n < s.n && s.at[n] >= 'a' && s.at[n] <= 'z')
        n++;
    return n;
}

static bool is_word(struct span s, const char *word)
{
    return starts_with(s, word) && n_letters(s) == strlen(word);
}

static bool is_tool(const json_t *tools, struct span name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        const json_t *own = json_object_get(f, "name");
        if (name.n && json_string_length(own) == name.n &&
            memcmp(json_string_value(own), name.at, name.n) == 0)
            return true;
    }
    return false;
}

size_t sv_harmony_n_name(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && (unsigned char)text[i] > ' ' && !strchr("<>{}[]\"'`", text[i]))
        i++;
    return i;
}

/* to=functions.NAME, or the name of a tool alone. 0: it is neither. */
static size_t read_recipient(const struct sv_answer *a, struct span s, struct header *h)
{
    struct span name = skip(s, strlen(TO));

    name.n = sv_harmony_n_name(name.at, name.n);
    size_t n = strlen(TO) + name.n;
    if (starts_with(name, FUNCTIONS))
        name = skip(name, strlen(FUNCTIONS));
    else if (!is_tool(a->o.tool_list, name))
        return 0;
    if (!name.n || name.n > SV_MAX_TOOL_NAME)
        return 0;
    if (a->o.tools == SV_TOOL_HARMONY)
        h->name = name;
    return n;
}

static size_t read_channel(struct span s, struct header *h)
{
    size_t n = n_blanks(s);

    s = skip(s, n);
    h->reasoning = is_word(s, "analysis");
    return h->reasoning || is_word(s, "commentary") || is_word(s, "final") ? n + n_letters(s) : 0;
}

/* Bytes of the element of a header at the beginning of s; 0: it is not understood. */
static size_t read_element(const struct sv_answer *a, struct span s, bool first, struct header *h)
{
    if (starts_with(s, CHANNEL))
        return strlen(CHANNEL) + read_channel(skip(s, strlen(CHANNEL)), h);
    if (starts_with(s, CONSTRAIN)) {
        s = skip(s, strlen(CONSTRAIN));
        return strlen(CONSTRAIN) + n_blanks(s) + n_letters(skip(s, n_blanks(s)));
    }
    if (starts_with(s, TO))
        return read_recipient(a, s, h);
    if (first && is_word(s, "assistant"))
        return n_letters(s);
    return h->name.n && is_word(s, "json") ? n_letters(s) : 0;
}

static struct header read_header(const struct sv_answer *a, struct span s)
{
    struct header h = {false, {"", 0}, 0};

    for (size_t i = 0; i < s.n;) {
        size_t n = read_element(a, skip(s, i), i == 0, &h);
        i += n ? n : 1;
        h.n_read = n ? i : h.n_read;
    }
    return h;
}

/* ---------------------------------------------------------------- messages */

/* No content and no call yet: reasoning may still come first. */
static bool is_leading(const struct sv_answer *a)
{
    return !(a->kinds >> SV_PART_CONTENT & 1) && !a->n_calls && !a->given;
}

static bool reasoning_in_content(const struct sv_answer *a)
{
    return a->o.reasoning_in_content || a->o.think != SV_THINK_HARMONY;
}

static void begin_reasoning(struct sv_answer *a)
{
    a->in_markers = reasoning_in_content(a);
    a->state = a->in_markers ? SV_ANSWER_TEXT : SV_ANSWER_REASONING;
    a->drop = false;
}

void sv_harmony_begin(struct sv_answer *a)
{
    if (a->o.within_reasoning)
        begin_reasoning(a);
    else
        a->state = SV_ANSWER_START;
}

static void begin_content(struct sv_answer *a)
{
    a->state = SV_ANSWER_TEXT;
    a->new_message = true;
    a->drop = false;
    if (a->n_reasoning && is_leading(a))
        a->n_reasoning = a->n_taken;
}

/* The first n bytes held are a header, the next n_marker are <|message|>. 0: it is missing, and the
 * end of the header that was not understood is the message's text. */
static void begin_message(struct sv_answer *a, size_t n, size_t n_marker)
{
    struct header h = read_header(a, (struct span){held_from(a, 0).at, n});

    sv_call_reset(&a->call);
    sv_buf_clear(&a->raw);
    sv_buf_append(&a->call.name, h.name.at, h.name.n);
    sv_answer_take(a, n_marker ? n + n_marker : h.n_read);
    if (!n_marker)
        sv_answer_take(a, sv_answer_n_spaces(&a->held));
    begin_content(a);
    if (h.name.n) {
        a->call.named = true;
        a->call.step = SV_STEP_BODY;
        a->given = false;
        a->n_opener = 0;
        a->state = SV_ANSWER_CALL;
    } else if (h.reasoning) {
        begin_reasoning(a);
        if (a->in_markers)
            sv_answer_give(a, SV_PART_CONTENT, ANALYSIS, strlen(ANALYSIS));
    }
}

static void end_message(struct sv_answer *a, const char *marker)
{
    if (a->in_markers)
        sv_answer_give(a, SV_PART_CONTENT, END, strlen(END));
    a->in_markers = false;
    a->state = SV_ANSWER_START;
    if (strcmp(marker, CHANNEL) == 0) /* it is left to the header */
        return;
    if (strcmp(marker, START) == 0)
        a->state = SV_ANSWER_HEADER;
    sv_answer_take(a, strlen(marker));
}

/* ---------------------------------------------------------------- steps */

/* Between messages, or at the beginning, where spaces may belong to a text without markers. */
static bool outside(struct sv_answer *a)
{
    static const char *const opens[] = {CHANNEL, CONSTRAIN, MESSAGE, TO, NULL};
    static const char *const closes[] = {START, END, CALL, RETURN, NULL};
    bool first = !a->n_taken;
    size_t n = sv_answer_n_spaces(&a->held);

    if (!first) {
        sv_answer_take(a, n);
        n = 0;
    }
    struct span s = held_from(a, n);
    bool wait = !s.n;
    for (int i = 0; i < 8 && n <= MAX_SPACES; i++) {
        const char *marker = i < 4 ? opens[i] : closes[i - 4];
        if (starts_with(s, marker)) {
            sv_answer_take(a, n);
            a->state = i < 4 ? SV_ANSWER_HEADER : SV_ANSWER_START;
            if (i >= 4)
                end_message(a, marker);
            return true;
        }
        wait = wait || is_beginning_of(s, marker);
    }
    if (wait && n <= MAX_SPACES)
        return false;
    begin_content(a);
    return true;
}

static bool header(struct sv_answer *a)
{
    static const char *const marks[] = {MESSAGE, START, END, CALL, RETURN, NULL};
    const char *which = "";
    size_t at = sv_answer_find(&a->held, marks, &which);

    if (at < MAX_HEADER)
        begin_message(a, at, strcmp(which, MESSAGE) == 0 ? strlen(MESSAGE) : 0);
    else if (a->held.len >= MAX_HEADER + MAX_MARKER)
        begin_message(a, MAX_HEADER, 0);
    else
        return false;
    return true;
}

/* The text of reasoning or of content. */
static bool body(struct sv_answer *a)
{
    bool reasoning = a->state == SV_ANSWER_REASONING;
    const char *which = "";

    if (a->drop) /* after a call */
        sv_answer_take(a, sv_answer_n_spaces(&a->held));
    if (!a->held.len)
        return false;
    a->drop = false;
    size_t at = sv_answer_find(&a->held, ends, &which);
    bool over = at != SIZE_MAX;
    size_t n = over ? at : a->held.len - sv_answer_tail(&a->held, ends);
    sv_answer_give(a, reasoning ? SV_PART_REASONING : SV_PART_CONTENT, a->held.data, n);
    sv_answer_take(a, n);
    if (over)
        end_message(a, which);
    if (reasoning && is_leading(a))
        a->n_reasoning = a->n_taken;
    return over;
}

/* A call without arguments. */
static void end_empty_call(struct sv_answer *a)
{
    a->call.begun = true;
    sv_buf_lit(&a->call.args, "{}");
    sv_answer_give_call(a, true);
    sv_answer_end_call(a, true);
}

static bool call(struct sv_answer *a)
{
    if (a->call.begun)
        return sv_answer_call(a);
    sv_answer_take(a, sv_answer_n_spaces(&a->held));
    struct span s = held_from(a, 0);
    for (const char *const *m = ends; *m; m++) {
        if (starts_with(s, *m)) {
            end_empty_call(a);
            return true;
        }
        if (is_beginning_of(s, *m))
            return false;
    }
    return sv_answer_call(a);
}

bool sv_harmony_step(struct sv_answer *a)
{
    switch (a->state) {
    case SV_ANSWER_START:
        return outside(a);
    case SV_ANSWER_HEADER:
        return header(a);
    case SV_ANSWER_CALL:
        return call(a);
    default:
        return body(a);
    }
}

/* ---------------------------------------------------------------- the end */

/* A header that was cut within its next word does not count that word. */
static bool is_cut_word(struct span s)
{
    static const char *const words[] = {"assistant", "analysis", "commentary", "final",
                                        CONSTRAIN,   MESSAGE,    TO FUNCTIONS, NULL};

    for (const char *const *w = words; *w; w++)
        if (is_beginning_of(s, *w))
            return true;
    return false;
}

void sv_harmony_end(struct sv_answer *a, bool cut)
{
    if (a->state == SV_ANSWER_START && a->n_taken)
        sv_answer_take(a, sv_answer_n_spaces(&a->held));
    if (a->state == SV_ANSWER_HEADER) {
        begin_message(a, a->held.len, 0);
        if (is_cut_word(held_from(a, 0)))
            sv_answer_take(a, a->held.len);
        while (!sv_answer_has_failed(a) && a->held.len && sv_harmony_step(a))
            ;
    }
    if (a->state == SV_ANSWER_CALL && !a->call.begun) {
        sv_answer_take(a, a->held.len); /* spaces, or the beginning of a marker */
        if (!cut)
            end_empty_call(a);
    }
    if (a->state == SV_ANSWER_REASONING) {
        sv_answer_give(a, SV_PART_REASONING, a->held.data, a->held.len);
        sv_answer_take(a, a->held.len);
        a->n_reasoning = is_leading(a) ? a->n_taken : a->n_reasoning;
    }
}
