/*
 * answer.c - parses a model's answer incrementally: reasoning, content, tool calls.
 *
 * Called by serve. What has come and is not certain waits in `held` (the beginning of a marker, the
 * spaces before it) or in `raw` (a call that may still turn out to be none). Both are bounded: a
 * call that is no call within MAX_CALL bytes is content. Must not: lose text, or let the way in
 * which it was cut decide anything.
 */
#include "reply/answer.h"

#include <string.h>

#define MAX_SPACES 64 /* before a marker; of more the first ones are content */
#define MAX_PIECE 512 /* taken at once */
#define MAX_CALL ((size_t)1 << 20)

/* ---------------------------------------------------------------- parts */

void sv_answer_give(struct sv_answer *a, enum sv_part_kind kind, const char *text, size_t n)
{
    struct sv_part p = {.kind = kind, .call = a->n_calls, .text = text ? text : "", .n = n};

    if (!n && kind != SV_PART_CALL && kind != SV_PART_CALL_END)
        return;
    if (kind == SV_PART_CONTENT || kind == SV_PART_REASONING) {
        p.apart = a->new_message && a->kinds >> kind & 1;
        a->new_message = false;
        a->kinds |= 1u << kind;
    }
    a->o.part(a->o.user, &p);
}

static void give_content(struct sv_answer *a, const char *text, size_t n)
{
    sv_answer_give(a, SV_PART_CONTENT, text, n);
    if (n)
        a->lead = a->drop = a->after_call = a->in_list = false;
}

bool sv_answer_has_failed(const struct sv_answer *a)
{
    const struct sv_call *k = &a->call;
    return a->held.failed || a->raw.failed || k->name.failed || k->args.failed || k->word.failed ||
           k->value.failed;
}

void sv_answer_take(struct sv_answer *a, size_t n)
{
    a->n_taken += n;
    a->held.len -= n;
    if (n && a->held.len)
        memmove(a->held.data, a->held.data + n, a->held.len);
}

static void put_back(struct sv_answer *a, const char *text, size_t n)
{
    size_t len = a->held.len;

    sv_buf_append(&a->held, text, n); /* for its room */
    if (a->held.failed)
        return;
    memmove(a->held.data + n, a->held.data, len);
    memcpy(a->held.data, text, n);
    a->n_taken -= n;
}

/* ---------------------------------------------------------------- markers */

size_t sv_tail_of(const char *text, size_t n, const char *marker)
{
    size_t k = strlen(marker) - 1;

    for (k = k < n ? k : n; k && memcmp(text + n - k, marker, k) != 0;)
        k--;
    return k;
}

size_t sv_answer_n_spaces(const struct sv_buf *b)
{
    size_t n = 0;

    while (n < b->len && sv_is_space(b->data[n]))
        n++;
    return n;
}

/* Spaces that end at `to`, at most MAX_SPACES. */
static size_t spaces_before(const struct sv_buf *b, size_t to)
{
    size_t n = 0;

    while (n < to && n < MAX_SPACES && sv_is_space(b->data[to - n - 1]))
        n++;
    return n;
}

/* Where in what is held the first of the markers begins, or SIZE_MAX; *which. */
size_t sv_answer_find(const struct sv_buf *held, const char *const *markers, const char **which)
{
    for (size_t i = 0; i < held->len; i++)
        for (const char *const *m = markers; *m; m++) {
            size_t n = strlen(*m);
            if (held->data[i] == **m && n <= held->len - i && memcmp(held->data + i, *m, n) == 0) {
                *which = *m;
                return i;
            }
        }
    return SIZE_MAX;
}

size_t sv_answer_tail(const struct sv_buf *held, const char *const *markers)
{
    size_t keep = 0;

    for (const char *const *m = markers; *m; m++) {
        size_t n = sv_tail_of(held->data, held->len, *m);
        keep = n > keep ? n : keep;
    }
    return keep;
}

/* How much of what is held belongs to no marker, whatever comes. */
static size_t n_certain(const struct sv_buf *held, const char *const *markers)
{
    size_t keep = sv_answer_tail(held, markers);

    return *markers ? held->len - keep - spaces_before(held, held->len - keep) : held->len;
}

/* ---------------------------------------------------------------- reasoning */

static bool begin_text(struct sv_answer *a, bool drop)
{
    a->state = SV_ANSWER_TEXT;
    a->lead = true;
    a->drop = drop;
    return true;
}

/* Reasoning is at the beginning, or there is none. */
static bool start(struct sv_answer *a)
{
    const char *open = a->think->open;
    size_t n = sv_answer_n_spaces(&a->held), rest = a->held.len - n, k = strlen(open);

    if (n > MAX_SPACES || memcmp(a->held.data + n, open, rest < k ? rest : k) != 0)
        return begin_text(a, false);
    if (rest < k)
        return false;
    sv_answer_take(a, n + k);
    a->state = SV_ANSWER_REASONING;
    a->lead = true;
    return true;
}

static bool reasoning(struct sv_answer *a)
{
    const char *const markers[] = {a->think->close, NULL};
    const char *which = "";

    if (a->lead)
        sv_answer_take(a, sv_answer_n_spaces(&a->held));
    if (!a->held.len)
        return false;
    a->lead = false;
    size_t at = sv_answer_find(&a->held, markers, &which);
    bool over = at != SIZE_MAX;
    size_t n = over ? at - spaces_before(&a->held, at) : n_certain(&a->held, markers);
    sv_answer_give(a, SV_PART_REASONING, a->held.data, n);
    sv_answer_take(a, over ? at + strlen(which) : n);
    a->n_reasoning = a->n_taken;
    return over && begin_text(a, true);
}

/* ---------------------------------------------------------------- calls */

static void begin_call(struct sv_answer *a, const char *marker, bool bare)
{
    sv_call_reset(&a->call);
    sv_buf_clear(&a->raw);
    sv_buf_append(&a->raw, marker, strlen(marker));
    a->n_opener = strlen(marker);
    a->call.early = !bare;
    a->call.bare = bare && !a->in_list;
    a->call.list = a->in_list;
    if (strcmp(marker, "<function=") == 0)
        a->call.step = SV_STEP_NAME;
    a->given = false;
    a->state = SV_ANSWER_CALL;
}

/* What is known of the call under way; done: all of it. */
void sv_answer_give_call(struct sv_answer *a, bool done)
{
    struct sv_call *k = &a->call;

    sv_call_xml_settle(k);
    if (sv_answer_has_failed(a)) /* what is cleared below would forget it */
        return;
    if (!a->given && k->named && k->begun && (done || !a->o.whole)) {
        sv_answer_give(a, SV_PART_CALL, k->name.data, k->name.len);
        a->given = true;
        sv_buf_clear(&a->raw);
    }
    if (!a->given)
        return;
    sv_answer_give(a, SV_PART_ARGUMENTS, k->args.data, k->args.len);
    sv_buf_clear(&k->args);
}

void sv_answer_end_call(struct sv_answer *a, bool good)
{
    sv_answer_give(a, SV_PART_CALL_END, NULL, 0);
    a->n_calls++;
    a->in_list = good && a->call.list;
    begin_text(a, good);
    a->lead = a->after_call = good;
}

/* It is no call; `last` is the byte that shows it, and may begin a marker. What came before cannot,
 * but for the few bytes of one that had hardly begun. */
static void no_call(struct sv_answer *a, const char *last)
{
    a->state = SV_ANSWER_TEXT;
    if (a->given) {
        sv_answer_give_call(a, false);
        sv_answer_end_call(a, false);
        if (a->call.step == SV_STEP_KEY)
            give_content(a, "<parameter=", 11);
        if (a->call.step == SV_STEP_KEY || a->call.step == SV_STEP_TAG)
            give_content(a, a->call.word.data, a->call.word.len ? a->call.word.len - 1 : 0);
        put_back(a, last, 1);
    } else if (a->call.early) {
        give_content(a, a->raw.data, a->n_opener);
        put_back(a, a->raw.data + a->n_opener, a->raw.len - a->n_opener);
    } else {
        give_content(a, a->raw.data, a->raw.len - 1);
        put_back(a, last, 1);
    }
    a->lead = a->drop = a->after_call = a->in_list = false;
}

bool sv_answer_call(struct sv_answer *a)
{
    enum sv_call_is is = SV_CALL_MORE;
    size_t i = 0;
    char c = 0;

    while (i < a->held.len && is == SV_CALL_MORE && !sv_answer_has_failed(a)) {
        c = a->held.data[i++];
        if (!a->given)
            sv_buf_append(&a->raw, &c, 1);
        is = sv_call_byte(&a->call, c);
        if (is == SV_CALL_MORE && !a->given && !a->o.whole) { /* with this byte, however it came */
            sv_answer_give_call(a, false);
            is = a->raw.len > MAX_CALL ? SV_CALL_BAD : SV_CALL_MORE;
        }
    }
    sv_answer_take(a, i);
    if (sv_answer_has_failed(a))
        return false;
    if (is == SV_CALL_DONE) {
        sv_answer_give_call(a, true);
        sv_answer_end_call(a, true);
    } else if (is == SV_CALL_BAD) {
        no_call(a, &c);
    }
    return is != SV_CALL_MORE;
}

/* ---------------------------------------------------------------- content */

/* After a call: drops insignificant text. 1: some was dropped, -1: it may be a beginning. */
static int drop_closer(struct sv_answer *a)
{
    static const char *const list[] = {",", "]", NULL};

    for (const char *const *m = a->in_list ? list : a->tool->close; *m; m++) {
        size_t n = strlen(*m), k = a->held.len < n ? a->held.len : n;
        if (memcmp(a->held.data, *m, k) != 0)
            continue;
        if (k < n)
            return -1;
        a->in_list = a->in_list && **m != ']';
        sv_answer_take(a, n);
        return 1;
    }
    return 0;
}

/* At a beginning: 1 = something was found, -1 = more must come, 0 = look for markers. */
static int lead(struct sv_answer *a)
{
    size_t n = sv_answer_n_spaces(&a->held);

    if (a->drop) {
        sv_answer_take(a, n);
        n = 0;
    }
    if (!a->held.len)
        return -1;
    int closer = a->after_call ? drop_closer(a) : 0;
    if (closer)
        return closer;
    bool bare = a->tool->bare || a->in_list;
    if (!bare || n == a->held.len || n > MAX_SPACES || a->held.data[n] != '{')
        return 0;
    sv_answer_take(a, n);
    begin_call(a, "", true);
    return 1;
}

static bool text(struct sv_answer *a)
{
    const char *which = "";

    if (a->lead) {
        int found = lead(a);
        if (found)
            return found > 0;
    }
    size_t at = sv_answer_find(&a->held, a->tool->open, &which);
    bool found = at != SIZE_MAX;
    size_t n = found ? at - spaces_before(&a->held, at) : n_certain(&a->held, a->tool->open);
    give_content(a, a->held.data, n);
    sv_answer_take(a, found ? at + strlen(which) : n);
    if (found) {
        a->in_list = false;
        begin_call(a, which, false);
    }
    return found;
}

/* ---------------------------------------------------------------- from outside */

struct sv_answer *sv_answer_new(const struct sv_answer_opts *o)
{
    struct sv_answer *a = sv_calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->o = *o;
    a->tool = sv_tool_syntax(o->tools);
    a->think = sv_think_syntax(o->think);
    a->call.format = o->tools;
    a->call.tool_list = o->tool_list;
    a->lead = true;
    a->harmony = o->tools == SV_TOOL_HARMONY || o->think == SV_THINK_HARMONY;
    a->state = !a->think->open       ? SV_ANSWER_TEXT
               : o->within_reasoning ? SV_ANSWER_REASONING
                                     : SV_ANSWER_START;
    if (a->harmony)
        sv_harmony_begin(a);
    return a;
}

void sv_answer_free(struct sv_answer *a)
{
    if (!a)
        return;
    sv_buf_fini(&a->held);
    sv_buf_fini(&a->raw);
    sv_buf_fini(&a->call.name);
    sv_buf_fini(&a->call.args);
    sv_buf_fini(&a->call.word);
    sv_buf_fini(&a->call.value);
    sv_free(a);
}

static bool step(struct sv_answer *a)
{
    if (a->harmony)
        return sv_harmony_step(a);
    switch (a->state) {
    case SV_ANSWER_START:
        return start(a);
    case SV_ANSWER_REASONING:
        return reasoning(a);
    case SV_ANSWER_TEXT:
        return text(a);
    default:
        return sv_answer_call(a);
    }
}

bool sv_answer_push(struct sv_answer *a, const char *text, size_t n)
{
    /* What is held is moved with every part that is taken: it stays short. */
    for (size_t at = 0; at < n && !sv_answer_has_failed(a); at += MAX_PIECE) {
        sv_buf_append(&a->held, text + at, n - at < MAX_PIECE ? n - at : MAX_PIECE);
        while (!sv_answer_has_failed(a) && a->held.len && step(a))
            ;
    }
    if (!sv_answer_has_failed(a) && a->state == SV_ANSWER_CALL)
        sv_answer_give_call(a, false);
    return !sv_answer_has_failed(a);
}

bool sv_answer_end(struct sv_answer *a, bool cut)
{
    struct sv_call *k = &a->call;

    if (a->harmony)
        sv_harmony_end(a, cut);
    if (sv_answer_has_failed(a))
        return false;
    if (a->state == SV_ANSWER_CALL) {
        bool whole = sv_call_may_end(k), cut_short = cut && k->named && k->begun;
        if (a->given || cut_short)
            sv_call_xml_cut(k);
        sv_answer_give_call(a, whole || cut_short);
        if (a->given)
            sv_answer_end_call(a, false);
        else
            give_content(a, a->raw.data, a->raw.len);
    }
    sv_answer_give(a, a->state == SV_ANSWER_REASONING ? SV_PART_REASONING : SV_PART_CONTENT,
                   a->held.data, a->held.len);
    sv_answer_take(a, a->held.len);
    if (a->state == SV_ANSWER_REASONING && !a->harmony)
        a->n_reasoning = a->n_taken;
    return !sv_answer_has_failed(a);
}

size_t sv_answer_n_reasoning(const struct sv_answer *a)
{
    return a->n_reasoning;
}
