/* test_safetensors.c - one image: what is accepted, what is refused, and that nothing is read
 * beyond it. */
#include "load/fake.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

/* Parses a copy of exactly n bytes, so that the sanitizer sees every overrun. shift moves it off
 * alignment. */
static int parse_copy(const void *data, size_t n, size_t shift, struct sv_arena *arena,
                      struct sv_host_tensor **t, int32_t *n_tensors, struct sv_err *err)
{
    uint8_t *copy = sv_alloc(n + shift);
    assert_non_null(copy);
    memcpy(copy + shift, data, n);
    int rc = sv_safetensors_parse(copy + shift, n, "x.safetensors", arena, t, n_tensors, err);
    if (!rc) {
        uint64_t sum = 0; /* touch every byte that the tensors claim */
        for (int32_t i = 0; i < *n_tensors; i++) {
            for (size_t k = 0; k < (*t)[i].n_bytes; k++)
                sum += ((const uint8_t *)(*t)[i].data)[k];
        }
        assert_true(sum != UINT64_MAX);
    }
    sv_free(copy);
    return rc;
}

static const char good[] =
    "{\"__metadata__\": {\"format\": \"pt\"},"
    "\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
    "\"c\": {\"dtype\": \"F16\", \"shape\": [], \"data_offsets\": [24, 26]},"
    "\"b\": {\"dtype\": \"BF16\", \"shape\": [1, 1, 5], \"data_offsets\": [26, 36]},"
    "\"none\": {\"dtype\": \"F32\", \"shape\": [0, 7], \"data_offsets\": [36, 36]}}  ";

static void codes_and_indices_keep_their_types(void **state)
{
    static const char header[] =
        "{\"i\": {\"dtype\": \"I64\", \"shape\": [2], \"data_offsets\": [0, 16]},"
        "\"u\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [16, 19]},"
        "\"s\": {\"dtype\": \"I8\", \"shape\": [1], \"data_offsets\": [19, 20]},"
        "\"e\": {\"dtype\": \"F8_E8M0\", \"shape\": [1], \"data_offsets\": [20, 21]},"
        "\"f\": {\"dtype\": \"F8_E4M3\", \"shape\": [2], \"data_offsets\": [21, 23]}}";
    static const enum sv_dtype want[] = {SV_I64, SV_U8, SV_I8, SV_U8, SV_F8};
    static const char names[] = "iusef";
    (void)state;
    struct sv_buf image;
    fake_image(&image, header, 23);
    struct sv_arena arena;
    sv_arena_init(&arena);
    struct sv_host_tensor *t = NULL;
    int32_t n = 0;
    struct sv_err err = {0};
    assert_int_equal(
        sv_safetensors_parse((const uint8_t *)image.data, image.len, "f", &arena, &t, &n, &err),
        SV_OK);
    assert_int_equal(n, 5);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(t[i].dtype, want[strchr(names, t[i].name[0]) - names]);
    sv_arena_fini(&arena);
    sv_buf_fini(&image);
}

static void a_good_image_gives_its_tensors(void **state)
{
    (void)state;
    struct sv_buf image;
    fake_image(&image, good, 36);
    struct sv_arena arena;
    sv_arena_init(&arena);
    struct sv_host_tensor *t = NULL;
    int32_t n = 0;
    struct sv_err err = {0};
    const uint8_t *base = (const uint8_t *)image.data;
    assert_int_equal(sv_safetensors_parse(base, image.len, "f", &arena, &t, &n, &err), SV_OK);
    assert_int_equal(n, 4);
    const uint8_t *data = base + 8 + strlen(good);
    for (int32_t i = 0; i < n; i++) {
        size_t at = !strcmp(t[i].name, "a") ? 0 : !strcmp(t[i].name, "c") ? 24 : 26;
        assert_string_equal(t[i].file, "f");
        assert_memory_equal(t[i].data, data + at, t[i].n_bytes);
        assert_int_equal((uintptr_t)t[i].data % (t[i].dtype == SV_F32 ? 4 : 2), 0);
        if (!strcmp(t[i].name, "a")) {
            assert_int_equal(t[i].dtype, SV_F32);
            assert_int_equal(t[i].n_dims, 2);
            assert_int_equal(t[i].dim[1], 3);
            assert_int_equal(t[i].n_elements, 6);
        } else if (!strcmp(t[i].name, "c")) {
            assert_int_equal(t[i].dtype, SV_F16);
            assert_int_equal(t[i].n_dims, 0);
            assert_int_equal(t[i].n_elements, 1);
        } else if (!strcmp(t[i].name, "b")) {
            assert_int_equal(t[i].dtype, SV_BF16);
            assert_int_equal(t[i].n_bytes, 10);
        } else {
            assert_int_equal(t[i].n_elements, 0);
        }
    }
    sv_arena_fini(&arena);
    sv_buf_fini(&image);
}

static void unaligned_data_is_copied_and_aligned_data_is_not(void **state)
{
    (void)state;
    struct sv_buf image;
    fake_image(&image, good, 36);
    for (size_t shift = 0; shift < 8; shift++) {
        struct sv_arena arena;
        struct sv_host_tensor *t = NULL;
        int32_t n = 0;
        struct sv_err err = {0};
        uint8_t *copy = sv_alloc(image.len + shift);
        memcpy(copy + shift, image.data, image.len);
        sv_arena_init(&arena);
        assert_int_equal(sv_safetensors_parse(copy + shift, image.len, "f", &arena, &t, &n, &err),
                         SV_OK);
        for (int32_t i = 0; i < n; i++) {
            size_t size = t[i].dtype == SV_F32 ? 4 : 2;
            size_t at = !strcmp(t[i].name, "a") ? 0 : !strcmp(t[i].name, "c") ? 24 : 26;
            if (t[i].n_bytes == 0)
                continue;
            const uint8_t *in_place = copy + shift + 8 + strlen(good) + at;
            assert_int_equal((uintptr_t)t[i].data % size, 0);
            assert_memory_equal(t[i].data, in_place, t[i].n_bytes);
            assert_int_equal(t[i].data == in_place, (uintptr_t)in_place % size == 0);
        }
        sv_arena_fini(&arena);
        sv_free(copy);
    }
    sv_buf_fini(&image);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct sv_buf image;
    fake_image(&image, good, 36);
    for (size_t n = 0; n < image.len; n++) {
        struct sv_arena arena;
        struct sv_host_tensor *t = (struct sv_host_tensor *)&arena; /* must stay as it is */
        int32_t n_tensors = -7;
        struct sv_err err = {0};
        sv_arena_init(&arena);
        int rc = parse_copy(image.data, n, n % 3, &arena, &t, &n_tensors, &err);
        fake_expect(rc, SV_EFORMAT, &err, "x.safetensors", "truncated");
        assert_ptr_equal(t, &arena);
        assert_int_equal(n_tensors, -7);
        sv_arena_fini(&arena);
    }
    sv_buf_fini(&image);
}

static void a_byte_too_many_is_refused(void **state)
{
    (void)state;
    struct sv_buf image;
    struct sv_arena arena;
    struct sv_host_tensor *t;
    int32_t n;
    struct sv_err err = {0};
    fake_image(&image, good, 37);
    sv_arena_init(&arena);
    fake_expect(parse_copy(image.data, image.len, 0, &arena, &t, &n, &err), SV_EFORMAT, &err,
                "belong to none", "trailing");
    assert_int_equal(err.pos, 8 + strlen(good) + 36);
    sv_arena_fini(&arena);
    sv_buf_fini(&image);
}

/* One tensor "t" with these three fields over n bytes of data. */
#define ONE(dtype, shape, offsets)                                                                 \
    "{\"t\": {\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}}"
#define OK_TENSOR(name, from, to, n)                                                               \
    "\"" name "\": {\"dtype\": \"F16\", \"shape\": [" n "], \"data_offsets\": [" from ", " to "]}"

static const struct {
    const char *header;
    size_t n_data;
    int code;
    const char *part;
} bad[] = {
    {"", 0, SV_EFORMAT, "not a JSON object"},
    {"[]", 0, SV_EFORMAT, "not a JSON object"},
    {" {}", 0, SV_EFORMAT, "not a JSON object"},
    {"{\"t\": 1}", 0, SV_EFORMAT, "'t': the entry is not an object"},
    {"{\"t\": {}}", 0, SV_EFORMAT, "'dtype' is missing"},
    {"{\"t\": {\"dtype\": 3}}", 0, SV_EFORMAT, "'dtype' is missing or not a string"},
    {"{", 0, SV_EFORMAT, "JSON"},
    {"{\"a\" 1}", 0, SV_EFORMAT, "JSON"},
    {"{} x", 0, SV_EFORMAT, "JSON"},
    {"{\"\xff\": 1}", 0, SV_EFORMAT, "JSON"},
    {"{\"t\\u0000x\": 1}", 0, SV_EFORMAT, "JSON"},
    {"{\"__metadata__\": []}", 0, SV_EFORMAT, "__metadata__"},
    {"{\"__metadata__\": {\"a\": 1}}", 0, SV_EFORMAT, "__metadata__.a"},
    {"{\"\": {}}", 0, SV_EFORMAT, "name"},
    {"{\"a\\nb\": {}}", 0, SV_EFORMAT, "name"},
    {"{" OK_TENSOR("a", "0", "2", "1") "," OK_TENSOR("a", "2", "4", "1") "}", 4, SV_EFORMAT,
     "duplicate"},
    {ONE("\"I16\"", "[1]", "[0, 2]"), 2, SV_EUNSUPPORTED, "dtype 'I16'"},
    {ONE("\"F8_E5M2\"", "[1]", "[0, 1]"), 1, SV_EUNSUPPORTED, "'t': dtype 'F8_E5M2'"},
    {ONE("\"f16\"", "[1]", "[0, 2]"), 2, SV_EFORMAT, "dtype 'f16'"},
    {ONE("\"F16\"", "1", "[0, 2]"), 2, SV_EFORMAT, "'shape'"},
    {ONE("\"F16\"", "null", "[0, 2]"), 2, SV_EFORMAT, "'shape'"},
    {ONE("\"F16\"", "[-1]", "[0, 2]"), 2, SV_EFORMAT, "'shape'[0]"},
    {ONE("\"F16\"", "[1.0]", "[0, 2]"), 2, SV_EFORMAT, "'shape'[0]"},
    {ONE("\"F16\"", "[\"1\"]", "[0, 2]"), 2, SV_EFORMAT, "'shape'[0]"},
    {ONE("\"F16\"", "[1,1,1,1,1,1,1,1,1]", "[0, 2]"), 2, SV_EFORMAT, "9 dimensions"},
    {ONE("\"F16\"", "[4294967296, 4294967296]", "[0, 2]"), 2, SV_EFORMAT, "overflows"},
    {ONE("\"F32\"", "[4611686018427387904]", "[0, 0]"), 0, SV_EFORMAT, "another size"},
    {ONE("\"F16\"", "[9223372036854775807, 2, 0]", "[0, 0]"), 0, SV_EFORMAT, "overflows"},
    {ONE("\"F16\"", "[99999999999999999999]", "[0, 2]"), 2, SV_EFORMAT, "'shape'[0]"},
    {ONE("\"F16\"", "[1]", "[0]"), 2, SV_EFORMAT, "'data_offsets'"},
    {ONE("\"F16\"", "[1]", "[0, 2, 4]"), 2, SV_EFORMAT, "'data_offsets'"},
    {ONE("\"F16\"", "[1]", "{}"), 2, SV_EFORMAT, "'data_offsets'"},
    {ONE("\"F16\"", "[1]", "[-2, 0]"), 2, SV_EFORMAT, "'data_offsets'[0]"},
    {ONE("\"F16\"", "[1]", "[2, 0]"), 2, SV_EFORMAT, "backwards"},
    {ONE("\"F16\"", "[1]", "[0, 4]"), 2, SV_EFORMAT, "truncated"},
    {ONE("\"F16\"", "[1]", "[9223372036854775805, 9223372036854775807]"), 2, SV_EFORMAT,
     "truncated"},
    {ONE("\"F16\"", "[2]", "[0, 2]"), 2, SV_EFORMAT, "another size"},
    {ONE("\"F32\"", "[1]", "[0, 2]"), 2, SV_EFORMAT, "another size"},
    {ONE("\"F16\"", "[]", "[0, 0]"), 0, SV_EFORMAT, "another size"},
    {ONE("\"F16\"", "[1]", "[2, 4]"), 4, SV_EFORMAT, "gap after the header"},
    {"{" OK_TENSOR("a", "0", "4", "2") "," OK_TENSOR("b", "2", "6", "2") "}", 6, SV_EFORMAT,
     "'b' overlaps a"},
    {"{" OK_TENSOR("a", "0", "4", "2") "," OK_TENSOR("b", "0", "4", "2") "}", 4, SV_EFORMAT,
     "overlaps"},
    {"{" OK_TENSOR("b", "6", "8", "1") "," OK_TENSOR("a", "0", "4", "2") "}", 8, SV_EFORMAT,
     "'b' leaves a gap after a"},
    {"{}", 1, SV_EFORMAT, "belong to none"},
};

static void bad_headers_are_refused_with_the_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sv_buf image;
        struct sv_arena arena;
        struct sv_host_tensor *t = NULL;
        int32_t n = 0;
        struct sv_err err = {0};
        sv_arena_init(&arena);
        fake_image(&image, bad[i].header, bad[i].n_data);
        int rc = parse_copy(image.data, image.len, 0, &arena, &t, &n, &err);
        fake_expect(rc, bad[i].code, &err, bad[i].part, bad[i].header);
        fake_expect(rc, bad[i].code, &err, "x.safetensors", bad[i].header);
        sv_arena_fini(&arena);
        sv_buf_fini(&image);
    }
}

static void a_header_length_beyond_the_file_is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3,          4,          1000,          1ull << 32,
                                       1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t image[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        struct sv_arena arena;
        struct sv_host_tensor *t;
        int32_t n;
        struct sv_err err = {0};
        for (int k = 0; k < 8; k++)
            image[k] = (uint8_t)(lengths[i] >> (8 * k));
        sv_arena_init(&arena);
        fake_expect(parse_copy(image, sizeof image, 0, &arena, &t, &n, &err), SV_EFORMAT, &err,
                    "longer than the file", "header length");
        sv_arena_fini(&arena);
    }
}

/* More than the reference implementation reads: refused by its length, before it is looked at. */
static void a_header_of_100_mb_is_too_long(void **state)
{
    (void)state;
    const uint64_t n_header = 100000001;
    uint8_t image[64] = {0}; /* what is looked at besides: whether it is a Git LFS pointer */
    struct sv_arena arena;
    struct sv_host_tensor *t;
    int32_t n;
    struct sv_err err = {0};
    for (int k = 0; k < 8; k++)
        image[k] = (uint8_t)(n_header >> (8 * k));
    sv_arena_init(&arena);
    fake_expect(sv_safetensors_parse(image, (size_t)n_header + 8, "large", &arena, &t, &n, &err),
                SV_EFORMAT, &err, "header of 100000001 bytes is too long", "header length");
    sv_arena_fini(&arena);
}

static void errors_carry_their_byte(void **state)
{
    (void)state;
    static const char header[] = "{\"a\": {\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\":"
                                 " [0, 2]}, \"b\": {\"dtype\": \"X\"}}";
    struct sv_buf image;
    struct sv_arena arena;
    struct sv_host_tensor *t;
    int32_t n;
    struct sv_err err = {0};
    fake_image(&image, header, 2);
    sv_arena_init(&arena);
    int rc = parse_copy(image.data, image.len, 0, &arena, &t, &n, &err);
    fake_expect(rc, SV_EFORMAT, &err, "tensor 'b'", header);
    assert_int_equal(err.pos, 8 + (strstr(header, "\"b\"") - header));
    /* without an error record the status still says that it failed */
    assert_int_equal(parse_copy(image.data, image.len, 0, &arena, &t, &n, NULL), SV_EFORMAT);
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    rc = parse_copy(lfs, sizeof lfs - 1, 0, &arena, &t, &n, &err);
    fake_expect(rc, SV_EFORMAT, &err, "Git LFS pointer", "lfs");
    sv_arena_fini(&arena);
    sv_buf_fini(&image);
}

static void an_empty_checkpoint_is_a_checkpoint(void **state)
{
    (void)state;
    struct sv_buf image;
    struct sv_arena arena;
    struct sv_host_tensor *t;
    int32_t n = 5;
    struct sv_err err = {0};
    fake_image(&image, "{}", 0);
    sv_arena_init(&arena);
    assert_int_equal(parse_copy(image.data, image.len, 0, &arena, &t, &n, &err), SV_OK);
    assert_int_equal(n, 0);
    sv_arena_fini(&arena);
    sv_buf_fini(&image);
}

/* Random damage: an error or consistent tensors, never a stray read. */
static void random_damage_never_reads_outside(void **state)
{
    (void)state;
    struct sv_rng rng = {12345};
    struct sv_buf image;
    fake_image(&image, good, 36);
    for (int round = 0; round < 3000; round++) {
        struct sv_arena arena;
        struct sv_host_tensor *t = NULL;
        int32_t n = 0;
        struct sv_err err = {0};
        uint8_t copy[1024];
        assert_true(image.len <= sizeof copy);
        memcpy(copy, image.data, image.len);
        for (uint32_t k = 0; k < 1 + sv_rng_below(&rng, 4); k++) {
            static const char mix[] = "0123456789{}[]\",:-eF";
            uint32_t at = sv_rng_below(&rng, (uint32_t)image.len);
            copy[at] = sv_rng_below(&rng, 2) ? (uint8_t)mix[sv_rng_below(&rng, sizeof mix - 1)]
                                             : (uint8_t)sv_rng_next(&rng);
        }
        sv_arena_init(&arena);
        int rc = parse_copy(copy, image.len, 0, &arena, &t, &n, &err);
        assert_true(rc == SV_OK || err.msg[0]);
        sv_arena_fini(&arena);
    }
    sv_buf_fini(&image);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(a_good_image_gives_its_tensors),
             cmocka_unit_test(codes_and_indices_keep_their_types),
             cmocka_unit_test(unaligned_data_is_copied_and_aligned_data_is_not),
             cmocka_unit_test(every_truncation_is_refused),
             cmocka_unit_test(a_byte_too_many_is_refused),
             cmocka_unit_test(bad_headers_are_refused_with_the_field),
             cmocka_unit_test(a_header_length_beyond_the_file_is_refused),
             cmocka_unit_test(a_header_of_100_mb_is_too_long),
             cmocka_unit_test(errors_carry_their_byte),
             cmocka_unit_test(an_empty_checkpoint_is_a_checkpoint),
             cmocka_unit_test(random_damage_never_reads_outside))
