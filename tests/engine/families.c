/*
 * families.c - see families.h.
 */
#include "testing.h"

#include "engine/families.h"

#include "engine/pictures.h"
#include "engine/toy.h"

#include <string.h>

/* Fakes draft ids below RUN_VOCAB: no vocabulary is smaller. */
static const struct family families[] = {
    {"qwen3", "pair_target", NULL, "pair_draft_full_b16", false, false, false},
    {"qwen3_sliding_draft", "pair_target", NULL, "pair_draft_sliding_b8", false, false, false},
    {"llama", "llama_rope3_bf16", "{\"vocab_size\": 300}", NULL, false, false, false},
    {"qwen3_moe", "qwen3_moe_bf16", "{\"vocab_size\": 300}", NULL, false, false, false},
    {"gptoss", "gptoss_bf16", NULL, "gptoss_draft_random_b10", false, false, false},
    {"qwen3_next", "qwen3_next_bf16", NULL, NULL, false, true, false},
    {"qwen3_5", "qwen3_5_bf16", NULL, NULL, false, true, false},
    {"qwen3_5_moe", "qwen3_5_moe_bf16", NULL, NULL, false, true, false},
    {"deepseek", "deepseek_bf16", NULL, NULL, false, false, false},
    /* Heads as published, three of them. */
    {"deepseek_wide", "deepseek_bf16",
     "{\"kv_lora_rank\": 512, "
     "\"q_lora_rank\": 96, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "
     "\"v_head_dim\": 128, \"num_nextn_predict_layers\": 0}",
     NULL, false, false, true},
    {"kimi", "kimi_int4", NULL, NULL, false, false, false},
    {"qwen3_vl", "qwen3_vl_bf16", NULL, NULL, true, false, false},
    {"qwen3_vl_moe", "qwen3_vl_moe_bf16", NULL, NULL, true, false, false},
    {"qwen3_5_vl", "qwen3_5_vl_bf16", NULL, NULL, true, true, false},
    {"qwen3_5_vl_moe", "qwen3_5_vl_moe_bf16", NULL, NULL, true, true, false},
};
enum { N_FAMILIES = sizeof families / sizeof families[0], MOST_OTHERS = 64 };

const struct family *family_named(const char *name)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (!strcmp(families[i].name, name))
            return &families[i];
    fail_msg("no family %s", name);
    return NULL;
}

struct run_pair family_pair(const struct family *f)
{
    char dir[128];
    struct run_pair pair = f->patch ? toy_pair_like(f->like, f->patch) : toy_pair_of(f->like);
    if (f->draft) {
        snprintf(dir, sizeof dir, "tests/golden/tiny/%s", f->draft);
        pair.draft = run_dir(dir);
    }
    return pair;
}

struct run_case *family_cases(const struct family *f, int32_t n, int32_t max_len,
                              int32_t max_tokens, uint64_t seed)
{
    struct run_case *c = run_cases(n, RUN_VOCAB, max_len, max_tokens, seed);
    if (f->images)
        pictures_add(c, n, seed + 1);
    return c;
}

int32_t family_few(const struct family *f, int32_t n)
{
    return f->large ? n / 2 : n;
}

int32_t family_page(const struct family *f, int32_t page)
{
    return f->large && sv_env("SALVO_TEST_DEVICE") && page < 8 ? 8 : page;
}

int32_t family_more_rows(const struct family *f)
{
    return f->images ? 3 * 14 : 0;
}

int family_main(int argc, char **argv, const char *file, CMUnitTestFunction each,
                const struct CMUnitTest *others, size_t n)
{
    struct CMUnitTest tests[N_FAMILIES + MOST_OTHERS];
    size_t k = 0;
    for (; k < N_FAMILIES; k++)
        tests[k] = (struct CMUnitTest){.name = families[k].name,
                                       .test_func = each,
                                       .initial_state = (void *)(uintptr_t)&families[k]};
    for (size_t i = 0; i < n && i < MOST_OTHERS; i++)
        tests[k++] = others[i];
    return sv_test_main(argc, argv, file, tests, k);
}
