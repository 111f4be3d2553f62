/*
 * fuzz_request.c - any bytes as the body of each POST endpoint: refused with a status, or taken.
 *
 * Called by driver.c and libFuzzer. Must not: need a model.
 */
#include "serve/serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const paths[] = {
        "/v1/chat/completions", "/v1/messages", "/v1/completions", "/generate",
        "/completion",          "/infill",      "/v1/responses"};

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        int status = sv_serve_check_body(paths[i], (const char *)data, n);
        SV_REQUIRE(status == 200 || status == 400 || (i == 6 && status == 404)); /* no such item */
    }
    return 0;
}
