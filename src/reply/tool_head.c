/*
 * tool_head.c - calls with the name before the arguments: Mistral's NAME{...} or
 * NAME[CALL_ID]...[ARGS]{...}, and DeepSeek's NAME<sep>{...}.
 *
 * Called by tool_call.c. Must not: hold more than a name and its marks.
 */
#include "reply/tool.h"

#include <string.h>

#define MAX_HEAD 512

#define DEEPSEEK_CALL "<｜tool▁call▁begin｜>"
#define DEEPSEEK_SEP "<｜tool▁sep｜>"

struct span {
    const char *at;
    size_t n;
};

static struct span trim(struct span s)
{
    while (s.n && sv_is_space(*s.at))
        s = (struct span){s.at + 1, s.n - 1};
    while (s.n && sv_is_space(s.at[s.n - 1]))
        s.n--;
    return s;
}

static bool starts_with(struct span s, const char *what)
{
    return s.n >= strlen(what) && memcmp(s.at, what, strlen(what)) == 0;
}

static struct span mistral_name(struct span s)
{
    const char *mark = memchr(s.at, '[', s.n);
    return trim((struct span){s.at, mark ? (size_t)(mark - s.at) : s.n});
}

/* V3: function<sep>NAME and a fence of JSON; V3.1: NAME<sep>. */
static struct span deepseek_name(struct span s)
{
    size_t n_sep = strlen(DEEPSEEK_SEP), i = 0;

    s = trim(s);
    if (starts_with(s, DEEPSEEK_CALL))
        s = (struct span){s.at + strlen(DEEPSEEK_CALL), s.n - strlen(DEEPSEEK_CALL)};
    while (i < s.n && !starts_with((struct span){s.at + i, s.n - i}, DEEPSEEK_SEP))
        i++;
    if (i == s.n)
        return (struct span){s.at, 0};
    struct span kind = trim((struct span){s.at, i});
    struct span rest = {s.at + i + n_sep, s.n - i - n_sep};
    if (kind.n != 8 || memcmp(kind.at, "function", 8) != 0)
        return kind;
    const char *line = memchr(rest.at, '\n', rest.n);
    return trim((struct span){rest.at, line ? (size_t)(line - rest.at) : rest.n});
}

static bool is_name(struct span s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.at[i] <= ' ' || strchr("<>{}[]\"'`", s.at[i]))
            return false;
    return s.n && s.n <= SV_MAX_TOOL_NAME;
}

enum sv_call_is sv_call_head_byte(struct sv_call *k, char c)
{
    if (c != '{') {
        sv_buf_append(&k->word, &c, 1);
        bool line = c == '\n' && k->format == SV_TOOL_MISTRAL;
        return k->word.len > MAX_HEAD || line ? SV_CALL_BAD : SV_CALL_MORE;
    }
    struct span head = {k->word.data ? k->word.data : "", k->word.len};
    struct span name = k->format == SV_TOOL_MISTRAL ? mistral_name(head) : deepseek_name(head);
    if (!is_name(name))
        return SV_CALL_BAD;
    sv_buf_append(&k->name, name.at, name.n);
    k->named = true;
    k->early = false;
    k->step = SV_STEP_BODY;
    return sv_call_body_byte(k, c);
}
