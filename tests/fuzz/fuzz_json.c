/*
 * fuzz_json.c - any bytes through the JSON parser, the field readers and the quoting.
 *
 * Called by driver.c and libFuzzer. What parses must survive being written and parsed again.
 */
#include "base/base.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const keys[] = {"a", "b", "n"};
    struct sv_err err;
    struct sv_buf b;
    json_t *root = sv_json_parse((const char *)data, n, &err), *again;

    sv_buf_init(&b);
    sv_buf_append(&b, "[", 1);
    sv_json_quote(&b, (const char *)data, n);
    sv_buf_append(&b, "]", 1);
    again = sv_json_parse(b.data, b.len, &err);
    SV_REQUIRE(again);
    json_decref(again);
    sv_buf_fini(&b);
    for (size_t i = 0; root && i < sizeof keys / sizeof keys[0]; i++) {
        int64_t v;
        double d;
        bool flag;
        const char *s = "";
        sv_json_int(root, keys[i], -5, INT64_MAX, &v, &err);
        sv_json_num(root, keys[i], -5, 1e300, &d, &err);
        sv_json_bool_opt(root, keys[i], &flag, &err);
        if (sv_json_str_opt(root, keys[i], &s, &err) == SV_OK)
            SV_REQUIRE(strlen(s) <= n);
    }
    if (root) {
        char *text = json_dumps(root, JSON_COMPACT);
        SV_REQUIRE(text);
        again = sv_json_parse(text, strlen(text), &err);
        SV_REQUIRE(again);
        json_decref(again);
        sv_free(text);
    }
    json_decref(root);
    return 0;
}
