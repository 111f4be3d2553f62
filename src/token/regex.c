/*
 * regex.c - split expressions through PCRE2 with JIT: compiling, and matching with bounded work.
 *
 * Called by split.c for expressions that scan.c does not know. The expression comes from a file and
 * the text from a user, so work is bounded: attempts run over a window of the text, only one that
 * reaches the window's end is repeated over more of it, and these far attempts use a budget
 * proportional to the text. Must not: keep anything in struct sv_regex that matching changes.
 */
#include "token/tok.h"

#include <string.h>

#define WINDOW 1024          /* window of a first attempt, bytes */
#define STEPS_PER_BYTE 8     /* backtracking steps allowed per visible byte ... */
#define STEPS_FREE 20000     /* ... on top of these */
#define HEAP_KIB (64 * 1024) /* of PCRE2's interpreter */
#define MAX_PATTERN 65536

static void *take(size_t n, void *data)
{
    (void)data;
    return sv_alloc(n);
}

static void give(void *p, void *data)
{
    (void)data;
    sv_free(p);
}

static int compile(struct sv_regex *re, const struct sv_buf *text, uint32_t options,
                   pcre2_compile_context *cc, struct sv_err *err)
{
    PCRE2_UCHAR why[200];
    PCRE2_SIZE pos = 0;
    int code = 0;

    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    re->code = pcre2_compile((PCRE2_SPTR)(text->data ? text->data : ""), text->len, options, &code,
                             &pos, cc);
    if (!re->code && code == PCRE2_ERROR_HEAP_FAILED)
        return SV_ENOMEM;
    if (!re->code) {
        pcre2_get_error_message(code, why, sizeof why);
        return sv_fail(err, SV_EFORMAT, (int64_t)pos,
                       "expression, near character %zu of '%.100s': %s", (size_t)pos,
                       text->data ? text->data : "", (char *)why);
    }
    code = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    return code == PCRE2_ERROR_NOMEMORY ? SV_ENOMEM : SV_OK;
}

int sv_regex_open(struct sv_regex *re, const char *pattern, size_t n, bool literal,
                  struct sv_err *err)
{
    uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL
                               : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    pcre2_compile_context *cc = memory ? pcre2_compile_context_create(memory) : NULL;
    struct sv_buf text;
    int rc = cc ? SV_OK : SV_ENOMEM;

    memset(re, 0, sizeof *re);
    sv_buf_init(&text);
    if (rc == SV_OK && n > MAX_PATTERN)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "expression of %zu bytes", n);
    if (rc == SV_OK && literal)
        sv_buf_append(&text, pattern, n);
    else if (rc == SV_OK)
        rc = sv_regex_translate(pattern, n, &text, err);
    if (rc == SV_OK)
        rc = text.failed ? SV_ENOMEM : compile(re, &text, options, cc, err);
    if (rc == SV_ENOMEM)
        sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (rc < 0)
        sv_regex_close(re);
    pcre2_compile_context_free(cc);
    pcre2_general_context_free(memory);
    sv_buf_fini(&text);
    return rc;
}

void sv_regex_close(struct sv_regex *re)
{
    pcre2_code_free(re->code);
    re->code = NULL;
}

int sv_regex_work_init(struct sv_regex_work *w)
{
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);

    if (memory) {
        w->data = pcre2_match_data_create(1, memory);
        w->context = pcre2_match_context_create(memory);
        pcre2_general_context_free(memory);
    }
    if (!w->data || !w->context) {
        sv_regex_work_fini(w);
        return SV_ENOMEM;
    }
    pcre2_set_heap_limit(w->context, HEAP_KIB);
    return SV_OK;
}

void sv_regex_work_fini(struct sv_regex_work *w)
{
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->context);
    w->data = NULL;
    w->context = NULL;
}

/* ---------------------------------------------------------------- matching */

static size_t char_end(const char *text, size_t n, size_t at)
{
    while (at < n && ((uint8_t)text[at] & 0xC0) == 0x80)
        at++;
    return at;
}

static int attempt(const struct sv_regex *re, struct sv_regex_work *w, const char *text,
                   size_t visible, size_t n, size_t from, uint32_t options)
{
    size_t steps = STEPS_FREE + STEPS_PER_BYTE * (visible - from);
    int rc;

    options |= PCRE2_NO_UTF_CHECK | (visible < n ? PCRE2_PARTIAL_HARD : 0);
    pcre2_set_match_limit(w->context, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    rc = pcre2_match(re->code, (PCRE2_SPTR)text, visible, from, options, w->data, w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, (PCRE2_SPTR)text, visible, from, options | PCRE2_NO_JIT, w->data,
                         w->context);
    return rc;
}

static int match_error(int rc, size_t from, struct sv_err *err)
{
    PCRE2_UCHAR why[200];

    if (rc == PCRE2_ERROR_NOMEMORY)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT)
        return sv_fail(err, SV_EUNSUPPORTED, (int64_t)from,
                       "the split expression backtracks too much at byte %zu of a piece of text",
                       from);
    pcre2_get_error_message(rc, why, sizeof why);
    return sv_fail(err, SV_EUNSUPPORTED, (int64_t)from,
                   "the split expression fails at byte %zu: %s", from, (char *)why);
}

/* The attempt at exactly `from` reached the window's end: repeats it over growing windows. */
static int far_attempt(const struct sv_regex *re, struct sv_regex_work *w, const char *text,
                       size_t n, size_t from, size_t visible)
{
    int rc;
    do {
        size_t far = from + 4 * (visible - from) + WINDOW;
        visible = far < n ? char_end(text, n, far) : n;
        rc = attempt(re, w, text, visible, n, from, PCRE2_ANCHORED);
    } while (rc == PCRE2_ERROR_PARTIAL && visible < n);
    if (rc == PCRE2_ERROR_NOMATCH) {
        uint64_t cost = visible - from;
        if (cost > w->budget)
            return PCRE2_ERROR_MATCHLIMIT;
        w->budget -= cost;
    }
    return rc;
}

int sv_regex_next(const struct sv_regex *re, struct sv_regex_work *w, const char *text, size_t n,
                  size_t from, size_t *at, size_t *end, struct sv_err *err)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->data);

    for (;;) {
        size_t visible = n - from > WINDOW ? char_end(text, n, from + WINDOW) : n;
        int rc = attempt(re, w, text, visible, n, from, 0);
        if (rc == PCRE2_ERROR_PARTIAL) {
            size_t start = found[0];
            rc = far_attempt(re, w, text, n, start, visible);
            if (rc == PCRE2_ERROR_NOMATCH) {
                from = char_end(text, n, start + 1);
                if (from >= n)
                    return 0;
                continue;
            }
        }
        if (rc == PCRE2_ERROR_NOMATCH && visible < n) {
            from = visible;
            continue;
        }
        if (rc == PCRE2_ERROR_NOMATCH)
            return 0;
        if (rc < 0)
            return match_error(rc, from, err);
        *at = found[0];
        *end = found[1];
        return 1;
    }
}
