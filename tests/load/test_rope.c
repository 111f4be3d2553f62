/* test_rope.c - rotary tables against transformers' (rope_golden.json) and against the
 * definition. */
#include "load/fake.h"
#include "testing.h"

#include <math.h>
#include <string.h>

static double at(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

/* One case of the golden file, through the configuration parser. */
static void check_case(const json_t *c)
{
    struct sv_config cfg;
    struct sv_err err = {0};
    json_t *patch =
        json_pack("{s:O, s:O, s:O, s:s}", "head_dim", json_object_get(c, "head_dim"),
                  "max_position_embeddings", json_object_get(c, "max_position_embeddings"),
                  "rope_parameters", json_object_get(c, "rope_parameters"), "rope_theta", "<del>");
    assert_non_null(patch);
    char *text = json_dumps(patch, 0);
    const char *name = json_string_value(json_object_get(c, "name"));
    fake_expect(fake_parse_target(&cfg, fake_qwen3, text, &err), SV_OK, &err, "", name);
    const json_t *pos = json_object_get(c, "positions");
    size_t n = json_array_size(pos), half = (size_t)cfg.head_dim / 2;
    int32_t n_pos = (int32_t)at(pos, n - 1) + 1;
    float *table = sv_alloc(2 * (size_t)n_pos * half * sizeof *table);
    assert_non_null(table);
    sv_rope_fill(&cfg.rope, cfg.head_dim, n_pos, table);
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        size_t row = (size_t)at(pos, i) * half;
        for (size_t k = 0; k < half; k++) {
            double dc = table[row + k] - at(json_object_get(c, "cos"), i * half + k);
            double ds =
                table[(size_t)n_pos * half + row + k] - at(json_object_get(c, "sin"), i * half + k);
            double d = fmax(fabs(dc), fabs(ds));
            /* one unit in the last place of a frequency, times the position */
            if (d > 3e-7 + 1.3e-7 * at(pos, i))
                fail_msg("%s: position %g, pair %zu: off by %g", name, at(pos, i), k, d);
            worst = fmax(worst, d);
        }
    }
    printf("%-24s worst %.2g\n", name, worst);
    sv_free(table);
    sv_free(text);
    json_decref(patch);
}

static void tables_are_those_of_transformers(void **state)
{
    (void)state;
    struct sv_err err = {0};
    json_t *root = sv_json_load(sv_test_path("tests/load/rope_golden.json"), 1 << 20, &err);
    if (!root)
        fail_msg("%s", err.msg);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) >= 14);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(json_array_get(cases, i));
    json_decref(root);
    assert_int_equal(sv_alloc_live(), 0);
}

static void default_frequencies_are_powers_of_theta(void **state)
{
    (void)state;
    struct sv_rope r = {.kind = SV_ROPE_DEFAULT, .theta = 10000};
    float t[2 * 100 * 8];
    sv_rope_fill(&r, 16, 100, t);
    for (int p = 0; p < 100; p++) {
        for (int i = 0; i < 8; i++) {
            double angle = p * pow(10000, -i / 8.0);
            assert_true(fabs(t[p * 8 + i] - cos(angle)) < 2e-5);
            assert_true(fabs(t[800 + p * 8 + i] - sin(angle)) < 2e-5);
        }
    }
}

/* The amplitude alone: cos at position 0 is the attention factor. */
static void yarn_amplitudes(void **state)
{
    (void)state;
    struct sv_rope r = {
        .kind = SV_ROPE_YARN, .theta = 10000, .factor = 64, .original_max_position = 4096};
    float t[2 * 1 * 32];
    sv_rope_fill(&r, 64, 1, t); /* betas absent: 32 and 1 */
    assert_true(fabs(t[0] - (0.1 * log(64) + 1)) < 1e-6);
    r.mscale = r.mscale_all_dim = 1;
    sv_rope_fill(&r, 64, 1, t);
    assert_true(t[0] == 1);
    r.attention_factor = 1.5;
    sv_rope_fill(&r, 64, 1, t);
    assert_true(t[31] == 1.5f && t[32] == 0);
}

SV_TEST_MAIN(cmocka_unit_test(tables_are_those_of_transformers),
             cmocka_unit_test(default_frequencies_are_powers_of_theta),
             cmocka_unit_test(yarn_amplitudes))
