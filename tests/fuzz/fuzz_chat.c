/*
 * fuzz_chat.c - any bytes as a chat template and, after a NUL, any bytes as the body of a chat:
 * messages, kwargs, documents and all go the server's way into the template. Refused with a status,
 * or rendered within the limits.
 *
 * Called by driver.c and libFuzzer. Must not: need a model.
 */
#include "serve/serve.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data, *nul = n ? memchr(text, 0, n) : NULL;
    size_t n_text = nul ? (size_t)(nul - text) : n;
    int status = sv_serve_check_chat(text, n_text, nul ? nul + 1 : "", nul ? n - n_text - 1 : 0);

    SV_REQUIRE(status == 200 || status == 400 || status == 500);
    return 0;
}
