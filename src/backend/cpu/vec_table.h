/*
 * vec_table.h - template: the table of one level, filled with the kernels included before it.
 *
 * Included last by each vec_*.c. Must not: be included elsewhere.
 */

const struct sv_cpu_vec SIMD_TABLE = {
    .add_rms_norm = k_add_rms_norm,
    .stream = k_stream,
    .fence = k_fence,
    .act_mul = k_act_mul,
    .weighted_sum = k_weighted_sum,
    .widen = k_widen,
    .narrow = k_narrow,
    .norm_rope = k_norm_rope,
    .max = k_max,
    .block_max = k_block_max,
    .find_ge = k_find_ge,
    .mass_ge = k_mass_ge,
    .exp_weights = k_exp_weights,
    .sum = k_sum,
    .attn_chunk = k_attn_chunk,
    .attn_merge = k_attn_merge,
    .attn_finish = k_attn_finish,
    .dot = k_dot,
    .sigmoid_mul = k_sigmoid_mul,
    .conv_silu = k_conv_silu,
    .gdn_product = k_gdn_product,
    .gdn_row = k_gdn_row,
    .gdn_fold = k_gdn_fold,
    .read = k_read,
};
