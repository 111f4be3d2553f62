/* test_ckpt.c - checkpoint directories: single, sharded, odd names, and everything that may be
 * wrong. */
#include "load/fake.h"
#include "testing.h"

#include <string.h>
#include <unistd.h>

static struct fake_list list;

/* Two tensors, or those of a prefix, as a small list. */
static void small_list(const char *a, const char *b)
{
    list.n = 0;
    fake_add(&list, a, 2, 3);
    fake_add(&list, b, 4, 0)->dtype = "F32";
}

static int open_dir(const char *dir, struct sv_ckpt *c, struct sv_err *err)
{
    memset(err, 0, sizeof *err);
    return sv_ckpt_open(c, dir, err);
}

static void a_single_file_is_opened(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = fake_dir("single");
    small_list("model.z.weight", "lm_head.weight");
    fake_write(&list, 0, 2, dir, "model.safetensors");
    fake_puts(dir, "model.safetensors.index.json", "not even JSON"); /* the single file wins */
    assert_int_equal(open_dir(dir, &c, &err), SV_OK);
    assert_int_equal(c.n_tensors, 2);
    assert_int_equal(c.n_params, 10);
    assert_int_equal(c.n_bytes, 28);
    assert_int_equal(c.n_maps, 1);
    assert_string_equal(c.tensors[0].name, "lm_head.weight"); /* sorted */
    assert_string_equal(c.tensors[1].name, "z.weight");       /* without the prefix */
    assert_ptr_equal(sv_ckpt_find(&c, "z.weight"), &c.tensors[1]);
    assert_ptr_equal(sv_ckpt_find(&c, "model.z.weight"), &c.tensors[1]);
    assert_null(sv_ckpt_find(&c, "z.weigh"));
    assert_non_null(strstr(c.tensors[0].file, "model.safetensors"));
    /* in place: the data lies inside the mapping */
    const uint8_t *p = c.tensors[1].data;
    assert_true(p > c.maps[0].data && p < c.maps[0].data + c.maps[0].n_bytes);
    sv_ckpt_close(&c);
    assert_int_equal(sv_alloc_live(), 0);
}

static void the_only_safetensors_file_is_opened(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = fake_dir("only");
    small_list("a", "b");
    fake_expect(open_dir(dir, &c, &err), SV_EIO, &err, "neither", "empty directory");
    fake_write(&list, 0, 2, dir, "weights.safetensors");
    assert_int_equal(open_dir(dir, &c, &err), SV_OK);
    assert_int_equal(c.n_tensors, 2);
    sv_ckpt_close(&c);
    fake_write(&list, 0, 2, dir, "more.safetensors");
    fake_expect(open_dir(dir, &c, &err), SV_EFORMAT, &err, "2 safetensors files", "two files");
    assert_int_equal(sv_ckpt_open(&c, dir, NULL), SV_EFORMAT);
    fake_expect(open_dir("/nonexistent/dir", &c, &err), SV_EIO, &err, "/nonexistent/dir", "no dir");
}

static void aliases_are_replaced(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = fake_dir("alias");
    list.n = 0;
    fake_add(&list, "midlayer.mlp.up_proj.weight", 1, 2);
    fake_add(&list, "encoder.fc.weight", 2, 2);
    fake_add(&list, "model.encoder.output_norm_enc.weight", 2, 0);
    fake_write(&list, 0, 3, dir, "model.safetensors");
    assert_int_equal(open_dir(dir, &c, &err), SV_OK);
    assert_non_null(sv_ckpt_find(&c, "layers.0.mlp.up_proj.weight"));
    assert_non_null(sv_ckpt_find(&c, "fc.weight"));
    assert_non_null(sv_ckpt_find(&c, "hidden_norm.weight"));
    sv_ckpt_close(&c);
}

static void two_names_for_one_tensor_are_refused(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = fake_dir("twice");
    small_list("model.a", "a");
    fake_write(&list, 0, 2, dir, "model.safetensors");
    fake_expect(open_dir(dir, &c, &err), SV_EFORMAT, &err, "'a' exists twice", "prefix twins");
    assert_int_equal(sv_alloc_live(), 0);
}

static const char index_good[] =
    "{\"metadata\": {\"total_size\": 28}, \"weight_map\": {\"model.a\": \"s-1.safetensors\","
    " \"model.b\": \"s-2.safetensors\"}}";

static const char *sharded(const char *name, const char *index)
{
    const char *dir = fake_dir(name);
    small_list("model.a", "model.b");
    fake_write(&list, 0, 1, dir, "s-1.safetensors");
    fake_write(&list, 1, 1, dir, "s-2.safetensors");
    fake_puts(dir, "model.safetensors.index.json", index);
    return dir;
}

static void shards_are_joined(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = sharded("shards", index_good);
    assert_int_equal(open_dir(dir, &c, &err), SV_OK);
    assert_int_equal(c.n_maps, 2);
    assert_int_equal(c.n_tensors, 2);
    assert_non_null(strstr(sv_ckpt_find(&c, "b")->file, "s-2.safetensors"));
    sv_ckpt_close(&c);
}

static void bad_indexes_are_refused(void **state)
{
    (void)state;
#define MAP(a, b) "{\"weight_map\": {\"model.a\": " a ", \"model.b\": " b "}}"
#define S1 "\"s-1.safetensors\""
#define S2 "\"s-2.safetensors\""
    static const struct {
        const char *index;
        int code;
        const char *part;
    } cases[] = {
        {"", SV_EFORMAT, "JSON"},
        {"[]", SV_EFORMAT, "weight_map"},
        {"{}", SV_EFORMAT, "weight_map"},
        {"{\"weight_map\": {}}", SV_EFORMAT, "weight_map"},
        {"{\"weight_map\": [1]}", SV_EFORMAT, "weight_map"},
        {MAP(S1, "1"), SV_EFORMAT, "'model.b' is not a string"},
        {MAP(S1, "\"../s-2.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"/etc/s-2.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"sub/s-2.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"sub\\\\s-2.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\".s-2.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"..\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"s-2.bin\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"s-2.safetensors\\u0000.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"s\\n-2.safetensors\""), SV_EFORMAT, "plain"},
        {MAP(S1, "\"s-3.safetensors\""), SV_EIO, "s-3.safetensors"},
        {MAP(S2, S1), SV_EMISMATCH, "which the index puts into"},
        {"{\"weight_map\": {\"model.a\": " S1 ", \"b\": " S2 "}}", SV_EMISMATCH,
         "unknown to the index"},
        {"{\"weight_map\": {\"model.a\": " S1 "}}", SV_OK, ""}, /* s-2 is then simply not used */
        {"{\"weight_map\": {\"model.a\": " S1 ", \"model.b\": " S2 ", \"model.c\": " S2 "}}",
         SV_EMISMATCH, "'model.c' is not in s-2.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_ckpt c;
        struct sv_err err;
        const char *dir = sharded("badindex", cases[i].index);
        int rc = open_dir(dir, &c, &err);
        fake_expect(rc, cases[i].code, &err, cases[i].part, cases[i].index);
        if (!rc)
            sv_ckpt_close(&c);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

static void a_damaged_shard_is_named(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = sharded("damaged", index_good);
    fake_put(dir, "s-2.safetensors", "\x10\0\0\0\0\0\0\0{", 9);
    fake_expect(open_dir(dir, &c, &err), SV_EFORMAT, &err, "s-2.safetensors", "short shard");
    fake_put(dir, "s-2.safetensors", "", 0);
    fake_expect(open_dir(dir, &c, &err), SV_EFORMAT, &err, "s-2.safetensors", "empty shard");
    assert_int_equal(sv_alloc_live(), 0);
}

/* The index must name every tensor of a shard that it uses. */
static void an_unlisted_tensor_is_refused(void **state)
{
    (void)state;
    struct sv_ckpt c;
    struct sv_err err;
    const char *dir = fake_dir("unlisted");
    small_list("a", "b");
    fake_write(&list, 0, 2, dir, "s-1.safetensors");
    fake_puts(dir, "model.safetensors.index.json", "{\"weight_map\": {\"a\": " S1 "}}");
    fake_expect(open_dir(dir, &c, &err), SV_EMISMATCH, &err, "unknown to the index", "unlisted");
}

/* The n-th fallible call fails, for every n: an error and nothing leaked. */
static void every_fault_is_survived(void **state)
{
    (void)state;
    const char *dir = sharded("faults", index_good);
    char path[512];
    snprintf(path, sizeof path, "%s", dir);
    for (int pass = 0; pass < 2; pass++) {
        int64_t nth = 1;
        for (;; nth++) {
            struct sv_ckpt c;
            struct sv_err err = {0};
            sv_fault_arm(nth);
            int rc = sv_ckpt_open(&c, path, &err);
            bool reached = sv_fault_calls() >= nth;
            sv_fault_arm(0);
            if (rc == SV_OK)
                sv_ckpt_close(&c);
            else
                assert_true(err.code == rc && err.msg[0]);
            assert_int_equal(sv_alloc_live(), 0);
            if (!reached) {
                assert_int_equal(rc, SV_OK);
                break;
            }
        }
        assert_true(nth > 20 && nth < 2000);
        /* second pass: the same directory without an index, one file, found by listing */
        unlink(sv_test_tmp("faults/model.safetensors.index.json"));
        unlink(sv_test_tmp("faults/s-2.safetensors"));
    }
}

SV_TEST_MAIN(cmocka_unit_test(a_single_file_is_opened),
             cmocka_unit_test(the_only_safetensors_file_is_opened),
             cmocka_unit_test(aliases_are_replaced),
             cmocka_unit_test(two_names_for_one_tensor_are_refused),
             cmocka_unit_test(shards_are_joined), cmocka_unit_test(bad_indexes_are_refused),
             cmocka_unit_test(a_damaged_shard_is_named),
             cmocka_unit_test(an_unlisted_tensor_is_refused),
             cmocka_unit_test(every_fault_is_survived))
