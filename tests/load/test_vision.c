/*
 * test_vision.c - the vision tower in configurations and checkpoints: what is read, what is
 * refused, and that a checkpoint has all of its tensors or none.
 */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

static const char dir[] = "tests/golden/tiny/qwen3_vl_bf16";

static char *config_text(void)
{
    struct sv_buf b;
    struct sv_err err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", dir);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, sv_test_path(path), 1 << 20, &err), SV_OK);
    char *text = sv_strndup(b.data, b.len);
    sv_buf_fini(&b);
    return text;
}

static void what_is_read(void **state)
{
    (void)state;
    char *text = config_text();
    struct sv_config c;
    struct sv_err err = {0};
    fake_expect(fake_parse_target(&c, text, "{}", &err), SV_OK, &err, "", "as it is");
    const struct sv_vision_config *v = &c.vision;
    assert_true(v->depth == 4 && v->hidden_size == 32 && v->n_heads == 2);
    assert_true(v->intermediate_size == 56 && v->patch == 4 && v->merge == 2 && v->temporal == 2);
    assert_true(v->side == 6 && v->n_deep == 2 && v->deep[0] == 0 && v->deep[1] == 2);
    assert_true(v->image_token == 295 && sv_vision_patch_len(v) == 96);
    assert_true(c.mrope_section[0] == 6 && c.mrope_section[1] == 5 && c.mrope_section[2] == 5);
    /* What a file leaves out is the class's. */
    fake_expect(fake_parse_target(&c, text,
                                  "{\"image_token_id\": \"<del>\", \"text_config\":"
                                  " {\"vocab_size\": 151936}, \"vision_config\":"
                                  " {\"depth\": \"<del>\", \"hidden_size\": \"<del>\","
                                  " \"num_heads\": \"<del>\", \"out_hidden_size\": \"<del>\","
                                  " \"deepstack_visual_indexes\": \"<del>\","
                                  " \"num_position_embeddings\": \"<del>\"}}",
                                  &err),
                SV_OK, &err, "", "absent fields");
    assert_true(v->depth == 27 && v->hidden_size == 1152 && v->n_heads == 16 && v->side == 48);
    assert_true(v->n_deep == 3 && v->deep[0] == 8 && v->deep[2] == 24);
    assert_int_equal(v->image_token, 151655);
    fake_expect(fake_parse_target(&c, text, "{\"image_token_id\": 300}", &err), SV_OK, &err, "",
                "an image token that is none");
    assert_int_equal(v->image_token, -1);
    fake_expect(fake_parse_target(&c, text, "{\"vision_config\": \"<del>\"}", &err), SV_OK, &err,
                "", "no tower");
    assert_int_equal(v->depth, 0);
    sv_free(text);
}

/* A rope dict that was edited, for more positions: transformers' classes take their own
 * sections, which is followed where these divide the frequencies. */
static void sections_that_a_file_leaves_out(void **state)
{
    (void)state;
    static const char edited[] =
        "{\"text_config\": {\"head_dim\": %d, \"rope_theta\": \"<del>\", \"rope_scaling\": null,"
        " \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"rope_theta\": 5e6,"
        " \"original_max_position_embeddings\": 256}}}";
    char *text = config_text(), patch[512];
    struct sv_config c;
    struct sv_err err = {0};
    snprintf(patch, sizeof patch, edited, 128);
    fake_expect(fake_parse_target(&c, text, patch, &err), SV_OK, &err, "", patch);
    assert_true(c.rope.kind == SV_ROPE_YARN && c.mrope_section[0] == 24 &&
                c.mrope_section[1] == 20 && c.mrope_section[2] == 20);
    snprintf(patch, sizeof patch, edited, 32); /* images are refused then, text runs */
    fake_expect(fake_parse_target(&c, text, patch, &err), SV_OK, &err, "", patch);
    assert_true(c.vision.depth && !c.mrope_section[0]);
    sv_free(text);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *patch, *says;
        int code;
    } cases[] = {
        {"{\"hidden_act\": \"silu\"}", "'hidden_act' 'silu' is not supported", SV_EUNSUPPORTED},
        {"{\"in_channels\": 4}", "'in_channels' 4", SV_EUNSUPPORTED},
        {"{\"num_heads\": 3}", "num_heads 3", SV_EUNSUPPORTED},
        {"{\"num_heads\": 8}", "num_heads 8", SV_EUNSUPPORTED},
        {"{\"out_hidden_size\": 64}", "'out_hidden_size' is 64", SV_EMISMATCH},
        {"{\"num_position_embeddings\": 37}", "37 is no square", SV_EINVAL},
        {"{\"deepstack_visual_indexes\": [2, 1]}", "indexes'[1]", SV_EINVAL},
        {"{\"deepstack_visual_indexes\": [4]}", "indexes'[0]", SV_EINVAL},
        {"{\"deepstack_visual_indexes\": [0, 1, 2, 3]}", "'deepstack_visual_indexes'", SV_EINVAL},
        {"{\"deepstack_visual_indexes\": \"<del>\"}", "'deepstack_visual_indexes' is missing",
         SV_EFORMAT},
        {"{\"depth\": 0}", "'depth'", SV_EINVAL},
    };
    char *text = config_text();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        char patch[160];
        snprintf(patch, sizeof patch, "{\"vision_config\": %s}", cases[i].patch);
        const int rc = fake_parse_target(&c, text, patch, &err);
        fake_expect(rc, cases[i].code, &err, cases[i].says, cases[i].patch);
        fake_expect(rc, cases[i].code, &err, "vision_config", cases[i].patch);
    }
    sv_free(text);
}

static void all_or_none(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_ckpt k;
    struct sv_err err = {0};
    if (sv_config_load(&c, sv_test_path(dir), &err) || sv_ckpt_open(&k, sv_test_path(dir), &err))
        fail_msg("%s", err.msg);
    assert_true(sv_vision_is_in(&k));
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", "as published");
    for (int32_t i = 0; i < k.n_tensors; i++) {
        struct sv_host_tensor *t = &k.tensors[i];
        if (strncmp(t->name, "visual.", 7))
            continue;
        t->dim[0]++;
        fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH, &err, t->name, "a shape");
        t->dim[0]--;
        char *last = (char *)(uintptr_t)t->name + strlen(t->name) - 1, kept = *last;
        *last = '~'; /* in place in the order */
        fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH, &err, "is missing", t->name);
        *last = kept;
    }
    /* A tower that the configuration does not describe is not read. */
    c.vision = (struct sv_vision_config){0};
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", "text alone");
    sv_ckpt_close(&k);
    /* Files without one are a text model's. */
    if (sv_config_load(&c, sv_test_path("tests/golden/tiny/qwen3_5_bf16"), &err) ||
        sv_ckpt_open(&k, sv_test_path("tests/golden/tiny/qwen3_5_bf16"), &err))
        fail_msg("%s", err.msg);
    assert_true(c.vision.depth > 0 && !sv_vision_is_in(&k));
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", "no tower");
    sv_ckpt_close(&k);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(what_is_read), cmocka_unit_test(sections_that_a_file_leaves_out),
             cmocka_unit_test(what_is_refused), cmocka_unit_test(all_or_none))
