/*
 * test_images.c - images in requests: what is refused.
 */
#include "testing.h"

#include "engine/run.h"

#include <string.h>

static void refused(struct sv_engine *e, const struct sv_request *r, int code, const char *says)
{
    struct sv_err err = {0};
    uint64_t id;
    assert_int_equal(sv_engine_submit(e, r, &id, &err), code);
    if (!strstr(err.msg, says))
        fail_msg("'%s' does not say '%s'", err.msg, says);
}

static void a_text_model(void **state)
{
    (void)state;
    static const uint8_t rgb[3 * 64 * 64];
    static const int32_t ids[] = {5, 6, 7};
    const struct sv_image image = {rgb, 64, 64};
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/qwen3_f32")};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_request r = sv_default_request(e);
    r.prompt_ids = ids;
    r.n_prompt_ids = 3;
    r.n_images = 1;
    assert_false(sv_engine_takes_images(e));
    refused(e, &r, SV_EINVAL, "n_images 1");
    r.images = &image;
    refused(e, &r, SV_EUNSUPPORTED, "images are not supported for Qwen3ForCausalLM");
    sv_engine_close(e);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(a_text_model))
