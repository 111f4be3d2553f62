/*
 * fuzz_jinja.c - any bytes as a template over a fixed context; with a NUL in them, what follows is
 * the context.
 *
 * Called by driver.c and libFuzzer. The limits are small, so that no input takes long.
 */
#include "text/text.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct sv_template_opts o = {.now = 1753280000,
                                       .max_output_bytes = 1 << 16,
                                       .max_memory_bytes = 4 << 20,
                                       .max_steps = 20000,
                                       .max_depth = 60};
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t n_text = nul ? (size_t)(nul - data) : n;
    struct sv_template *t;
    struct sv_err err;
    struct sv_buf out;
    json_t *context;

    if (sv_template_parse(&t, (const char *)data, n_text, &err) < 0)
        return 0;
    context = nul ? sv_json_parse((const char *)nul + 1, n - n_text - 1, &err)
                  : sv_json_parse(fixed, sizeof fixed - 1, &err);
    sv_buf_init(&out);
    if (json_is_object(context) && sv_template_render(t, context, &o, &out, &err) == SV_OK)
        SV_REQUIRE(out.len <= o.max_output_bytes);
    sv_buf_fini(&out);
    json_decref(context);
    sv_template_free(t);
    return 0;
}
