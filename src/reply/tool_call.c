/*
 * tool_call.c - one call of a tool, byte by byte, from behind the marker where it begins: which of
 * the ways of writing it this is, and whether it is over.
 *
 * Called by answer.c. Must not: depend on the surrounding text.
 */
#include "reply/tool.h"

#include <string.h>

void sv_call_reset(struct sv_call *k)
{
    struct sv_call old = *k;

    sv_buf_clear(&old.name);
    sv_buf_clear(&old.args);
    sv_buf_clear(&old.word);
    sv_buf_clear(&old.value);
    *k = (struct sv_call){.format = old.format,
                          .tool_list = old.tool_list,
                          .name = old.name,
                          .args = old.args,
                          .word = old.word,
                          .value = old.value};
}

static enum sv_call_is begin_object(struct sv_call *k, char c)
{
    k->step = SV_STEP_OBJECT;
    k->early = false;
    return sv_call_object_byte(k, c);
}

/* <function= comes letter by letter. */
static enum sv_call_is open_tag(struct sv_call *k, char c)
{
    static const char tag[] = "<function=";

    sv_buf_append(&k->word, &c, 1);
    if (k->word.failed || memcmp(k->word.data, tag, k->word.len) != 0)
        return SV_CALL_BAD;
    if (k->word.len == sizeof tag - 1) {
        k->step = SV_STEP_NAME;
        sv_buf_clear(&k->word);
    }
    return SV_CALL_MORE;
}

static enum sv_call_is open_byte(struct sv_call *k, char c)
{
    bool tags = k->format == SV_TOOL_HERMES || k->format == SV_TOOL_XML;

    if (sv_is_space(c) && !k->word.len)
        return SV_CALL_MORE;
    if (k->format == SV_TOOL_DEEPSEEK || (k->format == SV_TOOL_MISTRAL && (k->list || c != '['))) {
        if (k->list)
            return c == '{' ? begin_object(k, c) : SV_CALL_BAD;
        k->step = SV_STEP_HEAD;
        return sv_call_head_byte(k, c);
    }
    if (k->format == SV_TOOL_MISTRAL) {
        k->list = true;
        return SV_CALL_MORE;
    }
    if (c == '{' && !k->word.len)
        return begin_object(k, c);
    return tags ? open_tag(k, c) : SV_CALL_BAD;
}

enum sv_call_is sv_call_byte(struct sv_call *k, char c)
{
    switch (k->step) {
    case SV_STEP_OPEN:
        return open_byte(k, c);
    case SV_STEP_OBJECT:
        return sv_call_object_byte(k, c);
    case SV_STEP_HEAD:
        return sv_call_head_byte(k, c);
    case SV_STEP_BODY:
        return sv_call_body_byte(k, c);
    default:
        return sv_call_xml_byte(k, c);
    }
}

/* Models leave out the last tags; the extent of a value without its tag is unknown. */
bool sv_call_may_end(struct sv_call *k)
{
    if (k->step != SV_STEP_TAG || k->word.len)
        return false;
    sv_call_xml_close(k);
    return true;
}
