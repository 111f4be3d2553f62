/*
 * test_family.c - a Llama-like family that is one more row of the table of architectures runs: the
 * same checkpoint under another name gives the bits it gives as Llama.
 */
#include "testing.h"

#include "engine/run.h"
#include "model/model_rig.h"

#define SV_TEST_ARCH_ROWS                                                                          \
    {.architecture = "MadeUpForCausalLM",                                                          \
     .model_type = "made_up",                                                                      \
     .rope_theta = 10000,                                                                          \
     .max_position = 2048,                                                                         \
     .rms_eps = 1e-6,                                                                              \
     .tensors = target_tensors},
#include "load/arch.c" /* its functions stand for the library's here */

#include <stdlib.h>
#include <sys/stat.h>

enum { N = 40 };

/* Copies a checkpoint and renames its architecture. */
static void made_up(const char *from, const char *to)
{
    static const char was[] = "LlamaForCausalLM", is[] = "MadeUpForCausalLM";
    struct sv_buf weights, config, other;
    struct sv_err err = {0};
    char path[256];
    sv_buf_init(&weights), sv_buf_init(&config), sv_buf_init(&other);
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    if (sv_file_read(&weights, path, 64 << 20, &err))
        fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_int_equal(sv_file_read(&config, path, 1 << 20, &err), SV_OK);
    sv_buf_append(&config, "", 1);
    const char *at = strstr(config.data, was);
    assert_non_null(at);
    sv_buf_append(&other, config.data, (size_t)(at - config.data));
    sv_buf_printf(&other, "%s%s", is, at + strlen(was));
    mkdir(to, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_int_equal(sv_file_write(path, weights.data, weights.len, &err), SV_OK);
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_int_equal(sv_file_write(path, other.data, other.len, &err), SV_OK);
    sv_buf_fini(&weights), sv_buf_fini(&config), sv_buf_fini(&other);
}

static void one_row_runs(void **state)
{
    (void)state;
    const char *llama = run_dir("tests/golden/tiny/llama_bias_f16");
    const char *other = run_keep(sv_test_tmp("made_up"));
    int32_t ids[N];
    float *logits = NULL;
    made_up(llama, other);
    for (int side = 0; side < 2; side++) {
        struct model_rig r;
        model_rig_open(&r, side ? other : llama, SV_ISA_AUTO, 16);
        assert_string_equal(sv_arch_name(r.m.cfg.arch),
                            side ? "MadeUpForCausalLM" : "LlamaForCausalLM");
        const size_t n_bytes = (size_t)N * (size_t)r.m.cfg.vocab_size * sizeof(float);
        for (int32_t i = 0; i < N; i++)
            ids[i] = (i * 37 + 5) % r.m.cfg.vocab_size;
        model_rig_run(&r, ids, 0, N);
        if (side)
            assert_memory_equal(logits, r.logits, n_bytes);
        else
            logits = memcpy(malloc(n_bytes), r.logits, n_bytes);
        model_rig_close(&r);
    }
    free(logits);
}

SV_TEST_MAIN(cmocka_unit_test(one_row_runs))
