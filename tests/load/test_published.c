/*
 * test_published.c - every published draft whose numbers are known, against its target: it loads,
 * or is refused with the reason of docs/checkpoints.md, which has the same table.
 *
 * Sizes are those of the drafts' own files, as others have read them; where the size of the file is
 * known as well, the number of parameters must give it. What is not known is that of a sister draft
 * here: mask tokens, rotary embeddings, the MLP and the kinds of layers of Qwen3.5-397B's, heads,
 * MLP and block of Ornith-35B's.
 */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

/* ---------------------------------------------------------------- targets */

#define QWEN3(h, i, more)                                                                          \
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": " #h                             \
    ", \"intermediate_size\": " #i ", \"num_hidden_layers\": 36, \"num_attention_heads\": 32,"     \
    " \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 151936,"                      \
    " \"rope_theta\": 1e6" more "}"
#define WRAPPED "\", \"vision_config\": {\"depth\": 27}, \"text_config\": {"
#define QWEN3_5(h, layers, heads, kv, v_heads, mlp)                                                \
    "\"hidden_size\": " #h ", \"num_hidden_layers\": " #layers                                     \
    ", \"num_attention_heads\": " #heads ", \"num_key_value_heads\": " #kv                         \
    ", \"head_dim\": 256, \"linear_num_value_heads\": " #v_heads                                   \
    ", \"vocab_size\": 248320, \"max_position_embeddings\": 262144, \"rope_parameters\":"          \
    " {\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10], \"partial_rotary_factor\":"   \
    " 0.25, \"rope_theta\": 10000000, \"rope_type\": \"default\"}, " mlp "}}"
#define DENSE                                                                                      \
    "{\"architectures\": [\"Qwen3_5ForConditionalGeneration\"], \"model_type\": \"qwen3_5" WRAPPED
#define EXPERTS                                                                                    \
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"model_type\":"                \
    " \"qwen3_5_moe" WRAPPED
#define GPT_OSS(layers, experts)                                                                   \
    "{\"architectures\": [\"GptOssForCausalLM\"], \"hidden_size\": 2880,"                          \
    " \"intermediate_size\": 2880, \"num_hidden_layers\": " #layers                                \
    ", \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": 64,"                 \
    " \"vocab_size\": 201088, \"num_local_experts\": " #experts                                    \
    ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}}"

static const char qwen3_4b[] = QWEN3(2560, 9728, ", \"tie_word_embeddings\": true");
static const char qwen3_8b[] = QWEN3(4096, 12288, "");
static const char coder_30b[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 2048,"
    " \"intermediate_size\": 5472, \"num_hidden_layers\": 48, \"num_attention_heads\": 32,"
    " \"num_key_value_heads\": 4, \"head_dim\": 128, \"vocab_size\": 151936, \"rope_theta\": 1e7,"
    " \"norm_topk_prob\": true, \"shared_expert_intermediate_size\": 0, \"use_qk_norm\": true}";
static const char coder_next[] =
    "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"hidden_size\": 2048,"
    " \"intermediate_size\": 5120, \"num_hidden_layers\": 48, \"num_attention_heads\": 16,"
    " \"num_key_value_heads\": 2, \"head_dim\": 256, \"vocab_size\": 151936, \"rope_theta\": 1e7}";
static const char llama_8b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096,"
    " \"intermediate_size\": 14336, \"num_hidden_layers\": 32, \"num_attention_heads\": 32,"
    " \"num_key_value_heads\": 8, \"vocab_size\": 128256, \"max_position_embeddings\": 131072,"
    " \"rope_theta\": 500000, \"rope_scaling\": {\"factor\": 8, \"low_freq_factor\": 1,"
    " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192,"
    " \"rope_type\": \"llama3\"}}";
static const char oss_20b[] = GPT_OSS(24, 32), oss_120b[] = GPT_OSS(36, 128);
static const char kimi[] =
    "{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"model_type\": \"kimi_k25\","
    " \"text_config\": {\"hidden_size\": 7168, \"intermediate_size\": 18432,"
    " \"first_k_dense_replace\": 1, \"n_routed_experts\": 384, \"n_group\": 1, \"topk_group\": 1,"
    " \"num_attention_heads\": 64, \"num_hidden_layers\": 61, \"vocab_size\": 163840}}";
static const char q35_4b[] = DENSE QWEN3_5(2560, 32, 16, 4, 32, "\"intermediate_size\": 9216");
static const char q35_9b[] = DENSE QWEN3_5(4096, 32, 16, 4, 32, "\"intermediate_size\": 12288");
static const char q35_27b[] = DENSE QWEN3_5(5120, 64, 24, 4, 48, "\"intermediate_size\": 17408");
static const char q35_35b[] = EXPERTS QWEN3_5(2048, 40, 16, 2, 32, "\"num_experts\": 256");
static const char q35_122b[] =
    EXPERTS QWEN3_5(3072, 48, 32, 2, 64, "\"moe_intermediate_size\": 1024");
static const char q35_397b[] =
    EXPERTS QWEN3_5(4096, 60, 32, 2, 64,
                    "\"num_experts\": 512, \"num_experts_per_tok\": 10, "
                    "\"moe_intermediate_size\": 1024, \"shared_expert_intermediate_size\": 1024");
/* By model_type alone: what names their classes is not known. */
static const char gemma[] = "{\"model_type\": \"gemma4\"}";
static const char minimax[] = "{\"architectures\": [\"MiniMaxM2ForCausalLM\"]}";
static const char glm[] = "{\"model_type\": \"glm_moe_dsa\"}";
static const char kimi_k3[] = "{\"architectures\": [\"KimiK3ForConditionalGeneration\"]}";

/* ---------------------------------------------------------------- drafts */

enum { S5_F1 = 51, S4_F1 = 41, S5 = 50 }; /* sliding layers, then full ones; below ten: all full */

static const struct draft {
    const char *name, *target; /* NULL: of a family that is not known here */
    const char *says;          /* why the pair is refused; NULL: it fits */
    int32_t layers;            /* 0: no numbers are known, and those of Qwen3-8B's draft stand in */
    int32_t window, hidden, inter, heads, kv, block, mask;
    const char *taps;
    int32_t vocab, target_layers;
    double gib; /* of the file; 0: not known */
    const char *more;
} drafts[] = {
    /* DFlash v1 of targets that are read */
    {"Qwen3-4B-DFlash-b16", qwen3_4b, NULL, 5, 0, 2560, 9728, 32, 8, 16, 151669, "1,9,17,25,33",
     151936, 36, 0, "{}"},
    {"Qwen3-8B-DFlash-b16", qwen3_8b, NULL, 5, 0, 4096, 12288, 32, 8, 16, 151669, "1,9,17,25,33",
     151936, 36, 1.95, "{}"},
    {"Qwen3-Coder-30B-A3B-DFlash", coder_30b, NULL, 8, 0, 2048, 6144, 32, 4, 16, 151669,
     "1,12,23,34,45", 151936, 48, 0.88, "{}"},
    {"Qwen3-Coder-Next-DFlash", coder_next, NULL, 8, 0, 2048, 6144, 32, 4, 16, 151669,
     "3,11,23,35,43", 151936, 48, 0.88, "{}"},
    {"LLaMA3.1-8B-Instruct-DFlash-UltraChat", llama_8b, NULL, 5, 0, 4096, 12288, 32, 8, 10, 128255,
     "1,8,15,22,29", 128256, 32, 1.95, "{}"},
    {"gpt-oss-20b-DFlash", oss_20b, NULL, 8, 0, 2880, 7680, 64, 8, 8, 200000, "1,6,11,16,21",
     201088, 24, 1.46,
     "{\"head_dim\": 64, \"attention_bias\": true, \"rope_theta\": 150000, \"rope_scaling\":"
     " {\"rope_type\": \"yarn\", \"factor\": 32, \"original_max_position_embeddings\": 4096}}"},
    {"gpt-oss-120b-DFlash", oss_120b, NULL, 8, 0, 2880, 7680, 64, 8, 10, 200000, "1,9,17,25,33",
     201088, 36, 1.46,
     "{\"head_dim\": 64, \"attention_bias\": true, \"rope_theta\": 150000, \"rope_scaling\":"
     " {\"rope_type\": \"yarn\", \"factor\": 32, \"original_max_position_embeddings\": 4096}}"},
    {"Kimi-K2.5-DFlash, K2.6", kimi, NULL, 6, 0, 7168, 18432, 64, 8, 8, 163838, "1,12,24,35,47,58",
     163840, 61, 6.48,
     "{\"rope_theta\": 50000, \"rms_norm_eps\": 1e-05, \"rope_scaling\": {\"type\": \"yarn\","
     " \"factor\": 64, \"mscale\": 1, \"mscale_all_dim\": 1, \"beta_fast\": 32, \"beta_slow\": 1,"
     " \"original_max_position_embeddings\": 4096}}"},
    {"Kimi-K2.7-Code-DFlash", kimi, NULL, 6, 0, 7168, 18432, 64, 8, 8, 163838, "1,12,24,35,47,58",
     163840, 61, 0, "{}"},
    {"Qwen3.5-4B-DFlash", q35_4b, NULL, S5_F1, 4096, 2560, 9216, 32, 8, 16, 248070,
     "1,5,9,13,17,21,25,29", 248320, 32, 1.18, "{}"},
    {"Qwen3.5-4B-DFlash, the first one", q35_4b, NULL, 5, 0, 2560, 9728, 32, 8, 16, 248070,
     "1,8,15,22,29", 248320, 32, 0, "{}"},
    {"Qwen3.5-9B-DFlash", q35_9b, NULL, S5_F1, 4096, 4096, 12288, 32, 8, 16, 248070,
     "1,5,9,13,17,21,25,29", 248320, 32, 2.41, "{}"},
    {"Qwen3.5-27B-DFlash", q35_27b, NULL, S5_F1, 4096, 5120, 17408, 32, 8, 16, 248070,
     "1,10,18,27,35,44,52,61", 248320, 64, 3.96, "{}"},
    {"Qwen3.5-27B-DFlash, the first one", q35_27b, NULL, 5, 0, 5120, 17408, 32, 8, 16, 248070,
     "1,16,31,46,61", 248320, 64, 0, "{}"},
    {"Qwen3.5-35B-A3B-DFlash, Qwen3.6", q35_35b, NULL, S5_F1, 4096, 2048, 6144, 32, 8, 16, 248070,
     "1,6,11,16,22,27,32,37", 248320, 40, 0.72, "{}"},
    {"Qwen3.5-35B-A3B-DFlash, the first one", q35_35b, NULL, 8, 0, 2048, 6144, 32, 4, 16, 248070,
     "1,10,19,28,37", 248320, 40, 0, "{}"},
    {"Qwen3.5-122B-A10B-DFlash", q35_122b, NULL, S5_F1, 4096, 3072, 9216, 32, 8, 16, 248070,
     "1,7,14,20,26,32,39,45", 248320, 48, 1.44, "{}"},
    {"Qwen3.5-397B-A17B-DFlash", q35_397b, NULL, S5_F1, 4096, 4096, 12288, 32, 8, 16, 248077,
     "1,9,17,25,33,41,49,57", 248320, 60, 0, "{}"},
    {"Ornith-35B", q35_35b, NULL, S5_F1, 4096, 2048, 6144, 32, 8, 16, 248070,
     "1,6,11,16,22,27,32,37", 248320, 40, 0, "{}"},
    {"Qwen3.6-27B-DFlash", q35_27b, NULL, S4_F1, 2048, 5120, 17408, 32, 8, 16, 248070,
     "1,16,31,46,61", 248320, 64, 3.22, "{}"},
    {"JetSpec for Qwen3-8B", qwen3_8b, NULL, 5, 0, 4096, 12288, 32, 8, 16, 151669, "1,9,17,25,33",
     151936, 36, 0, "{\"dflash_config\": {\"causal_head\": true}}"},
    /* of targets that are not */
    {"gemma-4-31B-it-DFlash", gemma, "'gemma4' is not supported", S4_F1, 2048, 5376, 10752, 64, 8,
     16, 4, "1,12,23,35,46,57", 262144, 60, 2.86, "{}"},
    {"gemma-4-26B-A4B-it-DFlash", gemma, "'gemma4' is not supported", S4_F1, 2048, 2816, 5632, 32,
     8, 16, 4, "1,6,11,17,22,27", 262144, 30, 0.80, "{}"},
    {"MiniMax-M2.5-DFlash, M2.7", minimax, "'MiniMaxM2ForCausalLM' is not supported", .layers = 0},
    {"GLM-5.1-DFlash, 5.2", glm, "'glm_moe_dsa' is not supported", .layers = 0},
    {"Kimi-K3-DFlash", kimi_k3, "'KimiK3ForConditionalGeneration' is not supported", .layers = 0},
    {"Alpamayo-1.5-10B-DFlash, R1", NULL, NULL, 2, 0, 4096, 12288, 32, 8, 8, 151669,
     "24,30,31,32,34", 151936, 36, 0.875, "{}"},
    {"LongCat-Flash", NULL, NULL, 5, 0, 6144, 12288, 32, 8, 16, 2, "1,7,13,19,25", 131072, 28, 0,
     "{}"},
    {"LFM2.5-1.2B", NULL, NULL, 8, 0, 2048, 6144, 32, 8, 16, 16, "1,4,7,10,13", 65536, 16, 0,
     "{\"head_dim\": 64, \"rms_norm_eps\": 1e-05}"},
    {"Muse-Glimmer-30B, v1", NULL, NULL, 5, 0, 6656, 19968, 32, 8, 16, 201818, "1,13,25,37,49",
     202048, 52, 0,
     "{\"dflash_config\": {\"output_multiplier\": 0.19611613513818404,"
     " \"final_logit_softcapping\": 20.0}}"},
    /* other drafting methods and dialects */
    {"Qwen3.8-27B-DFlash2", q35_27b, "DFlash 2", S5, 2048, 5120, 17408, 32, 8, 8, 248070,
     "5,19,33,47,61", 248320, 64, 0,
     "{\"architectures\": [\"DFlash2DraftModel\"], \"is_causal\": false, \"dflash_config\":"
     " {\"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": 256,"
     " \"selector_top_k\": 16}}"},
    {"Muse-Glimmer-30B-DFlash2", NULL, "DFlash 2", S5, 2048, 6656, 19968, 32, 8, 16, 201818,
     "1,13,25,37,49", 202048, 52, 0,
     "{\"architectures\": [\"DFlash2DraftModel\"], \"is_causal\": false, \"dflash_config\":"
     " {\"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": 256,"
     " \"selector_top_k\": 16}}"},
    {"RedHatAI, for Qwen3-8B", qwen3_8b, "the speculators dialect", 5, 0, 4096, 12288, 32, 8, 8, 4,
     "1,9,17,25,33", 151936, 36, 0,
     "{\"speculators_model_type\": \"dflash\", \"draft_vocab_size\": 32000,"
     " \"transformer_layer_config\": {}, \"aux_hidden_state_layer_ids\": [2, 10, 18, 26, 34]}"},
    {"DeepSpec, for Qwen3-4B, 8B, 14B", qwen3_8b, "DSpark", 5, 0, 4096, 12288, 32, 8, 7, 151669,
     "1,9,17,25,33", 151936, 36, 0,
     "{\"architectures\": [\"Qwen3DSparkModel\"], \"markov_rank\": 256}"},
    {"Qwen3-8B-Domino-b16", qwen3_8b, "Domino", 5, 0, 4096, 12288, 32, 8, 16, 151669,
     "1,9,17,25,33", 151936, 36, 0,
     "{\"dflash_config\": {\"projector_type\": \"domino\", \"shift_label\": true,"
     " \"gru_hidden_dim\": 1024, \"emb_dim\": 256, \"pure_draft_prefix_len\": 1}}"},
    {"MiMo-V2.5-Pro-FP4-DFlash", NULL, "a MiMo draft", .layers = 0,
     .more = "{\"attention_value_scale\": 0.5, \"partial_rotary_factor\": 0.5, \"use_swa\": true,"
             " \"add_swa_attention_sink_bias\": true}"},
    {"Laguna", NULL, "a Laguna draft", .layers = 0,
     .more = "{\"architectures\": [\"DFlashLagunaForCausalLM\"]}"},
};

static void patch_of(const struct draft *d, struct sv_buf *b)
{
    const int32_t n_sliding = d->layers / 10, n = n_sliding + d->layers % 10;
    sv_buf_init(b);
    sv_buf_printf(
        b,
        "{\"num_hidden_layers\": %d, \"sliding_window\": %d, \"hidden_size\": %d,"
        " \"intermediate_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
        " \"block_size\": %d, \"vocab_size\": %d, \"num_target_layers\": %d, \"rope_theta\": 1e7,"
        " \"dflash_config\": {\"mask_token_id\": %d, \"target_layer_ids\": [%s]},"
        " \"layer_types\": [",
        n, d->window, d->hidden, d->inter, d->heads, d->kv, d->block, d->vocab, d->target_layers,
        d->mask, d->taps);
    for (int32_t i = 0; i < n; i++)
        sv_buf_printf(b, "%s\"%s_attention\"", i ? ", " : "", i < n_sliding ? "sliding" : "full");
    sv_buf_printf(b, "]}");
    sv_buf_append(b, "", 1);
}

static void published_drafts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof drafts / sizeof drafts[0]; i++) {
        const struct draft *p = &drafts[i];
        struct sv_draft_config d;
        struct sv_config t;
        struct sv_err err = {0};
        struct sv_buf b;
        patch_of(p, &b);
        char *text = fake_json(fake_dflash, p->layers ? b.data : "{}");
        int rc = fake_parse_draft(&d, text, p->more ? p->more : "{}", &err);
        sv_free(text);
        sv_buf_fini(&b);
        if (!rc && p->gib > 0) {
            const double gib = (double)sv_draft_config_n_params(&d) * 2 / (1 << 30);
            if (gib < p->gib - 0.006 || gib > p->gib + 0.006)
                fail_msg("%s: %.3f GiB, its file has %.2f", p->name, gib, p->gib);
        }
        if (!rc && p->target)
            rc = sv_config_parse(&t, p->target, strlen(p->target), &err);
        if (!rc && p->target)
            rc = sv_pair_check(&t, &d, &err);
        fake_expect(rc, p->says ? SV_EUNSUPPORTED : SV_OK, &err, p->says ? p->says : "", p->name);
        if (rc)
            continue;
        for (int32_t l = 0; l < d.base.n_layers; l++) { /* windows and causal blocks as published */
            const bool slides = l < p->layers / 10;
            assert_int_equal(d.base.layer_kind[l], slides ? SV_LAYER_SLIDING : SV_LAYER_FULL);
            assert_int_equal(d.causal[l], slides || strstr(p->name, "JetSpec"));
        }
        assert_int_equal(d.base.sliding_window, p->window);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(published_drafts))
