/*
 * hybrid.c - further configuration of Gated DeltaNet hybrids: the wrapper of multimodal files,
 * recurrent layers and their sizes.
 *
 * Called by config.c for rows of the table with a `hybrid`. Must not: accept a setting that changes
 * the arithmetic and is not implemented.
 */
#include "load/impl.h"

#include "backend/ops_gdn.h"

#include <string.h>

enum { MAX_HEADS = 1024, USUAL_INTERVAL = 4 };

/* Fields beside text_config that apply to it. */
static const char *const of_wrapper[] = {"tie_word_embeddings", "dtype",
                                         "torch_dtype",         "eos_token_id",
                                         "bos_token_id",        "quantization_config",
                                         "compression_config",  "architectures",
                                         "pad_token_id",        "media_placeholder_token_id"};

int sv_hybrid_text(const json_t *root, json_t **text, struct sv_err *err)
{
    const json_t *inner = json_object_get(root, "text_config");
    *text = NULL;
    if (!json_is_object(inner))
        return sv_fail(err, SV_EFORMAT, -1, "field 'text_config' must be an object");
    *text = json_copy((json_t *)(uintptr_t)inner);
    bool ok = *text != NULL;
    for (size_t i = 0; i < sizeof of_wrapper / sizeof of_wrapper[0] && ok; i++) {
        json_t *v = json_object_get(root, of_wrapper[i]);
        if (v && !sv_json_has(*text, of_wrapper[i]))
            ok = json_object_set(*text, of_wrapper[i], v) == 0;
    }
    return ok ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
}

/* ---------------------------------------------------------------- sizes */

static int parse_sizes(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    int32_t taps = SV_GDN_TAPS;
    c->gdn_k_heads = 16;
    c->gdn_v_heads = 32;
    c->gdn_k_dim = c->gdn_v_dim = 128;
    int rc = sv_json_i32_opt(root, "linear_num_key_heads", 1, MAX_HEADS, &c->gdn_k_heads, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "linear_num_value_heads", 1, MAX_HEADS, &c->gdn_v_heads, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "linear_key_head_dim", 1, INT32_MAX, &c->gdn_k_dim, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "linear_value_head_dim", 1, INT32_MAX, &c->gdn_v_dim, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "linear_conv_kernel_dim", 1, INT32_MAX, &taps, err);
    if (!rc && taps != SV_GDN_TAPS)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "'linear_conv_kernel_dim' %d is not supported (%d is)", taps, SV_GDN_TAPS);
    return rc;
}

static int check_sizes(const struct sv_config *c, struct sv_err *err)
{
    const int32_t dim[] = {c->gdn_k_dim, c->gdn_v_dim};
    if (c->gdn_v_heads % c->gdn_k_heads)
        return sv_fail(err, SV_EINVAL, -1,
                       "linear_num_value_heads %d is not a multiple of linear_num_key_heads %d",
                       c->gdn_v_heads, c->gdn_k_heads);
    for (int i = 0; i < 2; i++)
        if (dim[i] % 16 || dim[i] > SV_GDN_MAX_DIM)
            return sv_fail(err, SV_EUNSUPPORTED, -1, "%s %d is not a multiple of 16 up to %d",
                           i ? "linear_value_head_dim" : "linear_key_head_dim", dim[i],
                           SV_GDN_MAX_DIM);
    return SV_OK;
}

/* ---------------------------------------------------------------- what is not implemented */

/* A string that must be one of two; absent: the first. */
static int must_be(const json_t *root, const char *key, const char *one, const char *other,
                   struct sv_err *err)
{
    const char *v = one;
    int rc = sv_json_str_opt(root, key, &v, err);
    if (!rc && strcmp(v, one) && strcmp(v, other))
        rc =
            sv_fail(err, SV_EUNSUPPORTED, -1, "'%s' '%.40s' is not supported (%s is)", key, v, one);
    return rc;
}

static int refuse_others(const struct sv_config *c, const json_t *root, struct sv_err *err)
{
    bool gate = true;
    int rc = must_be(root, "output_gate_type", "silu", "swish", err);
    if (!rc)
        rc = must_be(root, "mamba_ssm_dtype", "float32", "float32", err);
    if (!rc)
        rc = sv_json_bool_opt(root, "attn_output_gate", &gate, err);
    if (!rc && !gate)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "'attn_output_gate' false is not supported");
    if (!rc && c->attention_bias)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "'attention_bias' is not supported for %s",
                     sv_arch_name(c->arch));
    return rc;
}

int sv_config_sections(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    const json_t *rope = json_object_get(root, "rope_parameters");
    if (!json_is_object(rope))
        rope = json_object_get(root, "rope_scaling");
    const json_t *list = json_object_get(rope, "mrope_section");
    json_int_t sum = 0;
    bool in_turn = true; /* transformers ignores the field; vLLM does not */
    int rc =
        json_is_object(rope) ? sv_json_bool_opt(rope, "mrope_interleaved", &in_turn, err) : SV_OK;
    if (!rc && !in_turn)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "'mrope_interleaved' false is not supported: engines disagree on what it "
                     "means for images");
    if (rc || !list || json_is_null(list))
        return rc;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t n = json_integer_value(v);
        sum = json_is_integer(v) && n > 0 && n <= c->rot_dim && sum >= 0 ? sum + n : -1;
    }
    if (json_array_size(list) != 3 || sum != c->rot_dim / 2)
        return sv_fail(
            err, SV_EINVAL, -1,
            "'mrope_section' must be three positive numbers that add up to %d, half of the "
            "rotated part of a head",
            c->rot_dim / 2);
    for (size_t i = 0; i < 3; i++)
        c->mrope_section[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return SV_OK;
}

int sv_hybrid_parse(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                    struct sv_err *err)
{
    c->qk_norm = c->attn_gate = true;
    c->gdn_fused = row->gdn_fused;
    int rc = parse_sizes(c, root, err);
    if (!rc)
        rc = check_sizes(c, err);
    return rc ? rc : refuse_others(c, root, err);
}

int sv_hybrid_layers(struct sv_config *c, const json_t *root, bool given, struct sv_err *err)
{
    int32_t interval = USUAL_INTERVAL, n_attn = 0;
    int rc = sv_json_i32_opt(root, "full_attention_interval", 1, INT32_MAX, &interval, err);
    for (int32_t i = 0; i < c->n_layers && !rc; i++) {
        if (!given && (i + 1) % interval)
            c->layer_kind[i] = SV_LAYER_GDN;
        if (c->layer_kind[i] == SV_LAYER_SLIDING)
            rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                         "'layer_types'[%d]: 'sliding_attention' is not supported for %s", i,
                         sv_arch_name(c->arch));
        n_attn += c->layer_kind[i] == SV_LAYER_FULL;
    }
    if (!rc && !n_attn)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "a model without a layer of full attention is not supported");
    return rc;
}
