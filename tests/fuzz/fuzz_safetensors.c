/*
 * fuzz_safetensors.c - any bytes as a safetensors file.
 *
 * Called by driver.c and libFuzzer. What parses must tile the data section: every claimed byte is
 * read, and their number is the section's.
 */
#include "load/load.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_tensor(const struct sv_host_tensor *t)
{
    const uint8_t *p = t->data;
    int64_t n_elements = 1;
    uint32_t sum = 0;
    SV_REQUIRE(t->name[0] && !strcmp(t->file, "fuzz"));
    SV_REQUIRE(t->n_dims >= 0 && t->n_dims <= SV_MAX_DIMS);
    for (int32_t i = 0; i < t->n_dims; i++)
        n_elements *= t->dim[i];
    const size_t size = sv_dtype_bytes(t->dtype);
    SV_REQUIRE(n_elements == t->n_elements && t->n_bytes == (size_t)n_elements * size);
    SV_REQUIRE(t->n_bytes == 0 || (uintptr_t)p % size == 0);
    for (size_t i = 0; i < t->n_bytes; i++)
        sum += p[i];
    SV_REQUIRE(sum <= UINT8_MAX * t->n_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sv_arena arena;
    struct sv_host_tensor *t = NULL;
    int32_t n_tensors = 0;
    struct sv_err err = {0};
    sv_arena_init(&arena);
    if (sv_safetensors_parse(data, n, "fuzz", &arena, &t, &n_tensors, &err)) {
        SV_REQUIRE(err.code < 0 && strstr(err.msg, "fuzz") && !t && n_tensors == 0);
    } else {
        uint64_t n_header, total = 0;
        memcpy(&n_header, data, sizeof n_header); /* little-endian machines only, as the tests */
        for (int32_t i = 0; i < n_tensors; i++) {
            check_tensor(&t[i]);
            total += t[i].n_bytes;
        }
        SV_REQUIRE(total == n - 8 - n_header);
    }
    sv_arena_fini(&arena);
    return 0;
}
