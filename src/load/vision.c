/*
 * vision.c - the vision tower of Qwen3-VL and Qwen3.5: its part of config.json, and its tensors.
 *
 * Called by config.c, tensors.c (the check of a checkpoint) and model (loading). A checkpoint has
 * all of a tower's tensors or none of them: without one it is a text model. Must not: accept a
 * setting that changes the arithmetic and is not implemented.
 */
#include "load/impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 256, MAX_WIDTH = 1 << 16, MAX_PATCH = 64, MAX_POSITIONS = 1 << 20 };

/* ---------------------------------------------------------------- configuration */

/* Rows of deeper blocks are added after the first decoder layers. */
static int parse_deepstack(struct sv_vision_config *v, int32_t n_layers, bool needed,
                           const json_t *o, struct sv_err *err)
{
    const json_t *list = json_object_get(o, "deepstack_visual_indexes");
    if (!list || json_is_null(list)) {
        static const int32_t usual[] = {8, 16, 24}; /* the class's */
        v->n_deep = needed ? 3 : 0;
        memcpy(v->deep, usual, needed ? sizeof usual : 0);
        return !needed || v->depth > usual[2]
                   ? SV_OK
                   : sv_fail(err, SV_EFORMAT, -1, "field 'deepstack_visual_indexes' is missing");
    }
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n > SV_MAX_DEEP || n > (size_t)n_layers)
        return sv_fail(err, SV_EINVAL, -1,
                       "field 'deepstack_visual_indexes' must list at most %d blocks, not more "
                       "than the text model has layers",
                       SV_MAX_DEEP);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        const json_int_t at = json_integer_value(x), before = i ? v->deep[i - 1] : -1;
        if (!json_is_integer(x) || at <= before || at >= v->depth)
            return sv_fail(err, SV_EINVAL, -1,
                           "'deepstack_visual_indexes'[%zu] must be a block of the %d, and above "
                           "the one before it",
                           i, v->depth);
        v->deep[v->n_deep++] = (int32_t)at;
    }
    return SV_OK;
}

static int parse_widths(struct sv_vision_config *v, int32_t hidden, const json_t *o,
                        struct sv_err *err)
{
    int32_t out = hidden, channels = 3;
    int rc = sv_json_i32_opt(o, "depth", 1, MAX_DEPTH, &v->depth, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "hidden_size", 1, MAX_WIDTH, &v->hidden_size, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "intermediate_size", 1, MAX_WIDTH, &v->intermediate_size, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "num_heads", 1, MAX_WIDTH, &v->n_heads, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "patch_size", 1, MAX_PATCH, &v->patch, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "spatial_merge_size", 1, MAX_PATCH, &v->merge, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "temporal_patch_size", 1, MAX_PATCH, &v->temporal, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "num_position_embeddings", 1, MAX_POSITIONS, &v->n_positions, err);
    if (!rc)
        rc = sv_json_i32_opt(o, "in_channels", 1, MAX_WIDTH, &channels, err);
    if (!rc && channels != 3)
        rc =
            sv_fail(err, SV_EUNSUPPORTED, -1, "'in_channels' %d is not supported (3 is)", channels);
    if (!rc)
        rc = sv_json_i32_opt(o, "out_hidden_size", 1, MAX_WIDTH, &out, err);
    if (!rc && out != hidden)
        rc = sv_fail(err, SV_EMISMATCH, -1, "'out_hidden_size' is %d, the text model's is %d", out,
                     hidden);
    return rc;
}

static int check(struct sv_vision_config *v, const json_t *o, struct sv_err *err)
{
    const char *act = "gelu_pytorch_tanh";
    const int32_t head = v->hidden_size / v->n_heads;
    int rc = sv_json_str_opt(o, "hidden_act", &act, err);
    if (rc)
        return rc;
    if (strcmp(act, "gelu_pytorch_tanh") != 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "'hidden_act' '%.40s' is not supported (gelu_pytorch_tanh is)", act);
    if (v->hidden_size % v->n_heads || head % 8 || head > 256)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "hidden_size %d with num_heads %d: heads must have a multiple of 8 up to "
                       "256 numbers",
                       v->hidden_size, v->n_heads);
    while (v->side * v->side < v->n_positions)
        v->side++;
    if (v->side * v->side != v->n_positions || v->side < 2)
        return sv_fail(err, SV_EINVAL, -1, "'num_position_embeddings' %d is no square",
                       v->n_positions);
    return SV_OK;
}

int sv_vision_parse(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                    struct sv_err *err)
{
    const json_t *o = json_object_get(root, "vision_config");
    if (!row->image_token || !o || json_is_null(o))
        return SV_OK;
    if (!json_is_object(o))
        return sv_fail(err, SV_EFORMAT, -1, "field 'vision_config' must be an object");
    struct sv_vision_config *v = &c->vision;
    *v = (struct sv_vision_config){.depth = 27,
                                   .hidden_size = 1152,
                                   .intermediate_size = 4304,
                                   .n_heads = 16,
                                   .patch = 16,
                                   .temporal = 2,
                                   .merge = 2,
                                   .n_positions = 2304,
                                   .image_token = row->image_token};
    int rc = parse_widths(v, c->hidden_size, o, err);
    if (!rc)
        rc = check(v, o, err);
    if (!rc)
        rc = parse_deepstack(v, c->n_layers, row->deepstack, o, err);
    if (rc)
        return sv_err_prefix(err, "field 'vision_config'");
    static const int32_t usual[2][3] = {{11, 11, 10}, {24, 20, 20}}; /* the classes' */
    const int32_t *m = usual[row->deepstack];
    if (!c->mrope_section[0] && m[0] + m[1] + m[2] == c->rot_dim / 2)
        memcpy(c->mrope_section, m, sizeof c->mrope_section);
    rc = sv_json_i32_opt(root, "image_token_id", 0, INT32_MAX, &v->image_token, err);
    if (!rc && v->image_token >= c->vocab_size)
        v->image_token = -1;
    return rc;
}

/* ---------------------------------------------------------------- tensors */

enum repeat { ONCE, PER_BLOCK, PER_DEEP };

static const struct {
    const char *name;
    enum sv_vision_part part;
    enum repeat repeat;
    bool has_bias;
} table[] = {
    {"visual.patch_embed.proj", SV_VISION_PATCH, ONCE, true},
    {"visual.pos_embed", SV_VISION_POSITIONS, ONCE, false},
    {"visual.blocks.{layer}.norm1", SV_VISION_NORM_1, PER_BLOCK, true},
    {"visual.blocks.{layer}.norm2", SV_VISION_NORM_2, PER_BLOCK, true},
    {"visual.blocks.{layer}.attn.qkv", SV_VISION_QKV, PER_BLOCK, true},
    {"visual.blocks.{layer}.attn.proj", SV_VISION_PROJ, PER_BLOCK, true},
    {"visual.blocks.{layer}.mlp.linear_fc1", SV_VISION_FC_1, PER_BLOCK, true},
    {"visual.blocks.{layer}.mlp.linear_fc2", SV_VISION_FC_2, PER_BLOCK, true},
    {"visual.merger.norm", SV_VISION_MERGE_NORM, ONCE, true},
    {"visual.merger.linear_fc1", SV_VISION_MERGE_FC_1, ONCE, true},
    {"visual.merger.linear_fc2", SV_VISION_MERGE_FC_2, ONCE, true},
    {"visual.deepstack_merger_list.{layer}.norm", SV_VISION_MERGE_NORM, PER_DEEP, true},
    {"visual.deepstack_merger_list.{layer}.linear_fc1", SV_VISION_MERGE_FC_1, PER_DEEP, true},
    {"visual.deepstack_merger_list.{layer}.linear_fc2", SV_VISION_MERGE_FC_2, PER_DEEP, true},
};

/* Rows and columns of a part; no columns: a vector. */
static void shape_of(const struct sv_config *c, enum sv_vision_part part, bool deep, int64_t *rows,
                     int64_t *cols)
{
    const struct sv_vision_config *v = &c->vision;
    const int64_t h = v->hidden_size, joined = h * v->merge * v->merge;
    const struct {
        int64_t rows, cols;
    } shape[] = {
        [SV_VISION_PATCH] = {h, sv_vision_patch_len(v)},
        [SV_VISION_POSITIONS] = {v->n_positions, h},
        [SV_VISION_NORM_1] = {h, 0},
        [SV_VISION_NORM_2] = {h, 0},
        [SV_VISION_QKV] = {3 * h, h},
        [SV_VISION_PROJ] = {h, h},
        [SV_VISION_FC_1] = {v->intermediate_size, h},
        [SV_VISION_FC_2] = {h, v->intermediate_size},
        [SV_VISION_MERGE_NORM] = {deep ? joined : h, 0},
        [SV_VISION_MERGE_FC_1] = {joined, joined},
        [SV_VISION_MERGE_FC_2] = {c->hidden_size, joined},
    };
    *rows = shape[part].rows;
    *cols = shape[part].cols;
}

int sv_vision_each_tensor(const struct sv_config *c, sv_vision_fn *take, void *user)
{
    int rc = SV_OK;
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        const enum repeat r = table[k].repeat;
        const int32_t n = r == PER_BLOCK ? c->vision.depth : r == PER_DEEP ? c->vision.n_deep : 1;
        struct sv_tensor_spec s = {.expert = -1, .side = c->vision.patch};
        int64_t rows, cols;
        shape_of(c, table[k].part, r == PER_DEEP, &rows, &cols);
        for (int32_t i = 0; i < n && !rc; i++)
            for (int bias = 0; bias <= (int)table[k].has_bias && !rc; bias++) {
                char stem[96], name[128];
                sv_tensor_name(stem, sizeof stem, table[k].name, i, -1);
                snprintf(name, sizeof name, "%s.%s", stem, bias ? "bias" : "weight");
                s.name = name;
                s.role = SV_ROLE_VISION | (bias ? SV_ROLE_BIAS : 0);
                s.layer = r == ONCE ? -1 : i;
                s.rows = rows;
                s.cols = bias ? 0 : cols;
                s.form = table[k].part == SV_VISION_PATCH && !bias ? SV_FORM_PATCH : SV_FORM_PLAIN;
                rc = take(user, &s, table[k].part);
            }
    }
    return rc;
}

bool sv_vision_is_in(const struct sv_ckpt *ckpt)
{
    static const char begin[] = "visual.";
    for (int32_t i = 0; i < ckpt->n_tensors; i++)
        if (!strncmp(ckpt->tensors[i].name, begin, sizeof begin - 1))
            return true;
    return false;
}
