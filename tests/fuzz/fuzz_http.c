/*
 * fuzz_http.c - any bytes as what a client sends: the same bytes, cut at any points, give the same
 * requests, and no event comes that http_parse.h does not promise.
 *
 * Called by driver.c and libFuzzer. The first byte chooses the limit of bodies and the cuts.
 */
#include "serve/requests.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sv_buf whole, cut;

    if (!n)
        return 0;
    const char *text = (const char *)data + 1;
    const int64_t max_body = data[0] & 1 ? 16 : 1 << 20;
    const uint64_t cuts[] = {REQUESTS_BYTES, 2 + (uint64_t)data[0]};

    sv_buf_init(&whole);
    requests_read(&whole, text, n - 1, max_body, REQUESTS_WHOLE);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        sv_buf_init(&cut);
        requests_read(&cut, text, n - 1, max_body, cuts[i]);
        SV_REQUIRE(cut.len == whole.len && memcmp(cut.data, whole.data, cut.len) == 0);
        sv_buf_fini(&cut);
    }
    sv_buf_fini(&whole);
    return 0;
}
