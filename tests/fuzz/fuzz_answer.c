/*
 * fuzz_answer.c - any bytes as a model's answer, parsed in every format: at once and in pieces
 * it must give the same parts, in an order that clients can follow.
 *
 * The first byte chooses the format and how reasoning is marked, the second one harmony in place of
 * these and how the answer is cut.
 * Called by driver.c and libFuzzer.
 */
#include "reply/reply.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The parts as one text, and where we are in it. */
struct seen {
    struct sv_buf all;
    enum sv_part_kind last;
    int32_t n_calls;
    bool in_call, harmony;
};

static void on_part(void *user, const struct sv_part *p)
{
    struct seen *s = user;
    bool of_call = p->kind == SV_PART_ARGUMENTS || p->kind == SV_PART_CALL_END;

    SV_REQUIRE(s->in_call == of_call && p->call == s->n_calls);
    SV_REQUIRE(p->kind != SV_PART_REASONING || !s->n_calls || s->harmony);
    s->in_call = p->kind == SV_PART_CALL || p->kind == SV_PART_ARGUMENTS;
    s->n_calls += p->kind == SV_PART_CALL_END;
    if (!s->all.len || p->kind != s->last || p->kind == SV_PART_CALL || p->apart)
        sv_buf_printf(&s->all, "\n[%d]", (int)p->kind);
    s->last = p->kind;
    sv_buf_append(&s->all, p->text, p->n);
}

static void take_apart(const uint8_t *data, size_t n, size_t step, struct seen *s)
{
    static const char tools[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
                                "{\"p\":{\"type\":\"integer\"},\"q\":{\"type\":\"array\"}}}}}]";
    const char *text = (const char *)data + 2;
    struct sv_err err;
    json_t *list = sv_json_parse(tools, sizeof tools - 1, &err);
    struct sv_answer_opts o = {.tools = (enum sv_tool_format)(data[0] % 6),
                               .think = (enum sv_think_format)(data[0] / 6 % 4),
                               .within_reasoning = data[1] & 128,
                               .whole = data[1] & 32,
                               .tool_list = list,
                               .part = on_part,
                               .user = s};
    if (data[1] & 64) {
        s->harmony = true;
        o.tools = data[0] & 1 ? SV_TOOL_NONE : SV_TOOL_HARMONY;
        o.think = data[0] & 2 && o.tools ? SV_THINK_NONE : SV_THINK_HARMONY;
        o.reasoning_in_content = data[0] & 4;
    }
    struct sv_answer *a = sv_answer_new(&o);

    SV_REQUIRE(a);
    for (size_t at = 0; at < n; at += step)
        SV_REQUIRE(sv_answer_push(a, text + at, step < n - at ? step : n - at));
    SV_REQUIRE(sv_answer_end(a, data[1] & 16) && !s->in_call);
    sv_answer_free(a);
    json_decref(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct seen once = {.n_calls = 0}, pieces = {.n_calls = 0};

    if (n < 3)
        return 0;
    take_apart(data, n - 2, n, &once);
    take_apart(data, n - 2, 1 + (data[1] & 15), &pieces);
    SV_REQUIRE(once.all.len == pieces.all.len && !once.all.failed);
    SV_REQUIRE(!once.all.len || memcmp(once.all.data, pieces.all.data, once.all.len) == 0);
    sv_buf_fini(&once.all);
    sv_buf_fini(&pieces.all);
    return 0;
}
