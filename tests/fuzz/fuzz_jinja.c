/*
 * fuzz_jinja.c - any bytes as a template over a fixed context; with a NUL in them, what follows is
 * the context.
 *
 * Called by driver.c and libFuzzer. The limits are small, so that no input takes long, but let a
 * template make values that are long, deep or shared; the name "z" of the fixed context is a text
 * of 300 KB. Work that the limits do not see is found as time.
 */
#include "jinja/jinja.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char fixed[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
    "\"content\": \"caf\xC3\xA9\"},"
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
    "\"f\", \"arguments\": {\"a\": 1.5}}}]}],"
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}], "
    "\"add_generation_prompt\": true,"
    "\"s\": \"text\", \"n\": 3, \"l\": [1, \"b\", null], \"d\": {\"k\": \"v\"}}";

#define MOST_MS 4000 /* processor time for 200,000 steps, with sanitizers on a loaded machine */

static json_t *fixed_context(struct sv_err *err)
{
    json_t *context = sv_json_parse(fixed, sizeof fixed - 1, err);
    static char z[300000];

    for (size_t i = 0; i < sizeof z; i++)
        z[i] = "aab"[i % 3];
    json_object_set_new(context, "z", json_stringn(z, sizeof z));
    return context;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct sv_template_opts o = {.now = 1753280000,
                                       .max_output_bytes = 1 << 20,
                                       .max_memory_bytes = 32 << 20,
                                       .max_steps = 200000,
                                       .max_depth = 60};
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t n_text = nul ? (size_t)(nul - data) : n;
    struct sv_template *t;
    struct sv_err err;
    struct sv_buf out;
    json_t *context;
    int64_t start_ns;

    if (sv_template_parse(&t, (const char *)data, n_text, &err) < 0)
        return 0;
    context =
        nul ? sv_json_parse((const char *)nul + 1, n - n_text - 1, &err) : fixed_context(&err);
    start_ns = sv_clock_thread_ns();
    sv_buf_init(&out);
    if (json_is_object(context) && sv_template_render(t, context, &o, &out, &err) == SV_OK)
        SV_REQUIRE(out.len <= o.max_output_bytes);
    SV_REQUIRE(sv_clock_thread_ns() - start_ns < (int64_t)MOST_MS * 1000000);
    sv_buf_fini(&out);
    json_decref(context);
    sv_template_free(t);
    return 0;
}
