/*
 * fuzz_index.c - any bytes as model.safetensors.index.json.
 *
 * Called by driver.c and libFuzzer. What parses is sorted, complete, and cannot name a file
 * elsewhere.
 */
#include "load/load.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sv_arena arena;
    struct sv_ckpt_index x;
    struct sv_err err = {0};
    sv_arena_init(&arena);
    if (sv_index_parse(&x, (const char *)data, n, &arena, &err)) {
        SV_REQUIRE(err.code < 0 && err.msg[0]);
    } else {
        SV_REQUIRE(x.n_entries > 0 && x.n_files > 0 && x.n_files <= x.n_entries);
        for (int32_t i = 0; i < x.n_files; i++) {
            SV_REQUIRE(x.files[i][0] != '.' && !strpbrk(x.files[i], "/\\"));
            SV_REQUIRE(i == 0 || strcmp(x.files[i - 1], x.files[i]) < 0);
        }
        for (int32_t i = 0; i < x.n_entries; i++) {
            SV_REQUIRE(x.entries[i].shard >= 0 && x.entries[i].shard < x.n_files);
            SV_REQUIRE(i == 0 || strcmp(x.entries[i - 1].name, x.entries[i].name) < 0);
        }
    }
    sv_arena_fini(&arena);
    return 0;
}
