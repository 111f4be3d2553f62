/*
 * tool_xml.c - calls in Qwen3-Coder's tags: <function=NAME><parameter=KEY>VALUE</parameter>...
 * </function>.
 *
 * Called by tool_call.c from the name on. Values are plain text; what they become in JSON is said
 * by the tool's schema (tool_types.c). One line end after the tag and one before its end belong to
 * the tags. Texts go on while they come, other values once they are whole. Must not: guess where a
 * value ends without its tag.
 */
#include "reply/tool.h"

#include <string.h>

#define PARAMETER "<parameter="
#define END_PARAMETER "</parameter>"
#define END_FUNCTION "</function>"
#define END_CALL "</tool_call>"

static bool is_text(const struct sv_call *k)
{
    return k->types == SV_TYPE_STRING_BIT;
}

/* ---------------------------------------------------------------- values */

static void give_value(struct sv_call *k, size_t n)
{
    size_t from = !k->value_began && n && k->value.data[0] == '\n';

    if (!k->value_began)
        sv_buf_lit(&k->args, "\"");
    k->value_began = true;
    sv_escape(&k->args, k->value.data ? k->value.data + from : "", n - from);
    k->value.len -= n;
    if (k->value.len)
        memmove(k->value.data, k->value.data + n, k->value.len);
}

void sv_call_xml_settle(struct sv_call *k)
{
    size_t n = k->value.len;

    if (k->step != SV_STEP_VALUE || !is_text(k))
        return;
    n -= sv_tail_of(k->value.data, n, END_PARAMETER);
    if (n && k->value.data[n - 1] == '\n')
        n--;
    if (n)
        give_value(k, n);
}

/* The answer ends within a value. */
void sv_call_xml_cut(struct sv_call *k)
{
    if (k->step != SV_STEP_VALUE)
        return;
    if (is_text(k))
        give_value(k, k->value.len);
    else
        sv_buf_append(&k->args, k->value.data, k->value.len);
    sv_buf_clear(&k->value);
}

static void end_value(struct sv_call *k)
{
    size_t n = k->value.len - strlen(END_PARAMETER);

    if (n && k->value.data[n - 1] == '\n' && (n > 1 || k->value_began))
        n--;
    if (is_text(k)) {
        give_value(k, n);
        sv_buf_lit(&k->args, "\"");
    } else {
        size_t from = n && k->value.data[0] == '\n';
        sv_tool_value(&k->args, k->types, k->value.data + from, n - from);
    }
    sv_buf_clear(&k->value);
    k->step = SV_STEP_TAG;
}

static enum sv_call_is value_byte(struct sv_call *k, char c)
{
    size_t n = strlen(END_PARAMETER);

    sv_buf_append(&k->value, &c, 1);
    if (c == '>' && k->value.len >= n && !k->value.failed &&
        memcmp(k->value.data + k->value.len - n, END_PARAMETER, n) == 0)
        end_value(k);
    return SV_CALL_MORE;
}

/* ---------------------------------------------------------------- tags */

/* <function=NAME> or <parameter=KEY>: the word up to the bracket. */
static enum sv_call_is word_byte(struct sv_call *k, char c)
{
    if (c != '>') {
        sv_buf_append(&k->word, &c, 1);
        return k->word.len > SV_MAX_TOOL_NAME || c == '\n' || c == '<' ? SV_CALL_BAD : SV_CALL_MORE;
    }
    if (!k->word.len || k->word.failed || k->name.failed)
        return SV_CALL_BAD;
    if (k->step == SV_STEP_NAME) {
        sv_buf_append(&k->name, k->word.data, k->word.len);
        sv_buf_lit(&k->args, "{");
        k->named = k->begun = true;
        k->early = false;
        k->step = SV_STEP_TAG;
    } else {
        sv_buf_printf(&k->args, k->n_params++ ? ", \"" : "\"");
        sv_escape(&k->args, k->word.data, k->word.len);
        sv_buf_lit(&k->args, "\": ");
        k->types = sv_tool_types(k->tool_list, k->name.data, k->word.data);
        k->value_began = false;
        k->step = SV_STEP_VALUE;
    }
    sv_buf_clear(&k->word);
    return SV_CALL_MORE;
}

void sv_call_xml_close(struct sv_call *k)
{
    sv_buf_lit(&k->args, "}");
}

static enum sv_call_is tag_byte(struct sv_call *k, char c)
{
    static const char *const tags[] = {PARAMETER, END_FUNCTION, END_CALL};

    if (!k->word.len && sv_is_space(c))
        return SV_CALL_MORE;
    sv_buf_append(&k->word, &c, 1);
    for (int i = 0; i < 3 && !k->word.failed; i++) {
        size_t n = strlen(tags[i]);
        if (k->word.len > n || memcmp(k->word.data, tags[i], k->word.len) != 0)
            continue;
        if (k->word.len < n)
            return SV_CALL_MORE;
        sv_buf_clear(&k->word);
        if (!i) {
            k->step = SV_STEP_KEY;
            return SV_CALL_MORE;
        }
        sv_call_xml_close(k);
        return SV_CALL_DONE;
    }
    return SV_CALL_BAD;
}

enum sv_call_is sv_call_xml_byte(struct sv_call *k, char c)
{
    if (k->step == SV_STEP_VALUE)
        return value_byte(k, c);
    return k->step == SV_STEP_TAG ? tag_byte(k, c) : word_byte(k, c);
}
