/*
 * gguf_ckpt.c - a checkpoint from GGUF files: shards, mapping, names of arch.c's table.
 *
 * Called by ckpt.c and config.c for paths that end in .gguf. Tensors stay in the file as they are;
 * gguf_undo.c reverts a converter's changes. Must not: interpret metadata other than the split and
 * the number of layers.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/gguf.h"

#include "backend/ops_moe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_SHARDS 1000

bool sv_is_gguf(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

/* ---------------------------------------------------------------- names */

struct alias {
    const char *from, *to;
};

static const char *to_of(const struct alias *a, size_t n, const char *from, size_t n_from)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(a[i].from) == n_from && !memcmp(a[i].from, from, n_from))
            return a[i].to;
    return NULL;
}
#define TO_OF(table, from, n) to_of(table, sizeof(table) / sizeof((table)[0]), from, n)

/* Names after "blk.3.", without the last part. Of two names for one tensor the first is written. */
static const struct alias parts[] = {{"attn_norm", "input_layernorm"},
                                     {"ffn_norm", "post_attention_layernorm"},
                                     {"post_attention_norm", "post_attention_layernorm"},
                                     {"attn_q_norm", "self_attn.q_norm"},
                                     {"attn_k_norm", "self_attn.k_norm"},
                                     {"attn_q", "self_attn.q_proj"},
                                     {"attn_k", "self_attn.k_proj"},
                                     {"attn_v", "self_attn.v_proj"},
                                     {"attn_output", "self_attn.o_proj"},
                                     {"attn_qkv", "linear_attn.in_proj_qkv"},
                                     {"attn_gate", "linear_attn.in_proj_z"},
                                     {"ssm_beta", "linear_attn.in_proj_b"},
                                     {"ssm_alpha", "linear_attn.in_proj_a"},
                                     {"ssm_ba", "linear_attn.in_proj_ba"},
                                     {"ssm_conv1d", "linear_attn.conv1d"},
                                     {"ssm_norm", "linear_attn.norm"},
                                     {"ssm_out", "linear_attn.out_proj"},
                                     {"ffn_gate", "mlp.gate_proj"},
                                     {"ffn_up", "mlp.up_proj"},
                                     {"ffn_down", "mlp.down_proj"},
                                     {"ffn_gate_exps", "mlp.experts.{expert}.gate_proj"},
                                     {"ffn_up_exps", "mlp.experts.{expert}.up_proj"},
                                     {"ffn_down_exps", "mlp.experts.{expert}.down_proj"},
                                     {"ffn_gate_up_exps", "mlp.experts.{expert}.gate_up_proj"},
                                     {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                     {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                     {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
                                     {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"}};
/* These come first where attention is latent. */
static const struct alias latent_parts[] = {{"attn_q_a", "self_attn.q_a_proj"},
                                            {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                            {"attn_q_b", "self_attn.q_b_proj"},
                                            {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                            {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                            {"attn_kv_b", "self_attn.kv_b_proj"},
                                            {"attn_k_b", "self_attn.k_b_proj.{expert}"},
                                            {"attn_v_b", "self_attn.v_b_proj.{expert}"},
                                            {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                            {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                            {"ffn_down_shexp", "mlp.shared_experts.down_proj"}};
/* Whole names, and those after "blk.3.". */
static const struct alias whole[] = {{"token_embd.weight", "embed_tokens.weight"},
                                     {"output_norm.weight", "norm.weight"},
                                     {"output.weight", "lm_head.weight"},
                                     {"fc.weight", "fc.weight"},
                                     {"enc.output_norm.weight", "hidden_norm.weight"}};
static const struct alias last[] = {{"attn_sinks.weight", "self_attn.sinks"},
                                    {"ssm_a", "linear_attn.A_log"},
                                    {"ssm_dt.bias", "linear_attn.dt_bias"},
                                    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
                                    {"ffn_gate_exps.bias", "mlp.experts.gate_proj.bias"},
                                    {"ffn_up_exps.bias", "mlp.experts.up_proj.bias"},
                                    {"ffn_down_exps.bias", "mlp.experts.down_proj.bias"}};

static const char router[] = "ffn_gate_inp";

static const char *part_of(const struct sv_gguf_family *f, const char *from, size_t n)
{
    const char *to = f->latent ? TO_OF(latent_parts, from, n) : NULL;
    if (to)
        return to;
    return n == sizeof router - 1 && !memcmp(from, router, n) ? f->router : TO_OF(parts, from, n);
}

bool sv_gguf_tensor_name(const struct sv_gguf_family *f, const char *name, char *buf, size_t size)
{
    const char *to = TO_OF(whole, name, strlen(name));
    if (to)
        return snprintf(buf, size, "%s", to) > 0;
    if (strncmp(name, "blk.", 4) != 0)
        return false;
    const char *layer = name + 4, *rest = layer + strspn(layer, "0123456789");
    const int n_layer = (int)(rest - layer);
    if (n_layer < 1 || n_layer > 4 || *rest != '.')
        return false;
    rest++;
    if ((to = TO_OF(last, rest, strlen(rest))))
        return snprintf(buf, size, "layers.%.*s.%s", n_layer, layer, to) > 0;
    const char *suffix = strrchr(rest, '.');
    if (!suffix || (strcmp(suffix, ".weight") && strcmp(suffix, ".bias")))
        return false;
    to = part_of(f, rest, (size_t)(suffix - rest));
    return to && snprintf(buf, size, "layers.%.*s.%s%s", n_layer, layer, to, suffix) > 0;
}

static const char *from_of(const struct alias *a, size_t n, const char *to)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(a[i].to, to))
            return a[i].from;
    return NULL;
}
#define FROM_OF(table, to) from_of(table, sizeof(table) / sizeof((table)[0]), to)

bool sv_gguf_file_name(const struct sv_gguf_family *f, const char *name, char *buf, size_t size,
                       int32_t *expert)
{
    const char *from = FROM_OF(whole, name);
    char part[96];
    int layer, at = 0, behind = 0;
    *expert = -1;
    if (from)
        return snprintf(buf, size, "%s", from) > 0;
    if (sscanf(name, "layers.%d.%n", &layer, &at) != 1 || !at)
        return false;
    name += at;
    if ((from = FROM_OF(last, name)))
        return snprintf(buf, size, "blk.%d.%s", layer, from) > 0;
    const char *suffix = strrchr(name, '.');
    if (!suffix)
        return false;
    const int n = (int)(suffix - name);
    if (sscanf(name, "mlp.experts.%d.%n", expert, &behind) == 1 && behind && behind < n)
        snprintf(part, sizeof part, "mlp.experts.{expert}.%.*s", n - behind, name + behind);
    else
        snprintf(part, sizeof part, "%.*s", n, name);
    from = f->latent ? FROM_OF(latent_parts, part) : NULL;
    if (!strcmp(part, f->router))
        from = router;
    else if ((f->hybrid || f->whole_ramp) && !strcmp(part, "post_attention_layernorm"))
        from = "post_attention_norm";
    else if (!from)
        from = FROM_OF(parts, part);
    return from && snprintf(buf, size, "blk.%d.%s%s", layer, from, suffix) > 0;
}

/* ---------------------------------------------------------------- tensors */

static const char both[] = ".gate_up_proj.";

/* Number of matrices in a tensor: experts or heads are stacked, and gate and up may be
 * concatenated. */
static int64_t n_stacked(const struct sv_gguf_family *f, const struct sv_gguf_tensor *t)
{
    char name[160];
    if (t->n_dims != 3 || t->dim[2] > SV_MAX_EXPERTS ||
        !sv_gguf_tensor_name(f, t->name, name, sizeof name) || !strstr(name, "{expert}"))
        return 1;
    return strstr(name, both) && t->dim[1] % 2 == 0 ? 2 * t->dim[2] : t->dim[2];
}

static struct sv_gguf_tensor part_of_stack(const struct sv_gguf_tensor *t, int64_t part, int64_t n)
{
    struct sv_gguf_tensor one = *t;
    one.n_dims = 2;
    one.dim[1] = t->dim[1] * t->dim[2] / n;
    one.n_elements /= n;
    one.n_bytes /= (size_t)n;
    one.data += (size_t)part * one.n_bytes;
    return one;
}

/* arch.c's name of part `part`. */
static void name_part(char *name, size_t n, char *pattern, int64_t part)
{
    char *two = strstr(pattern, both);
    if (two) { /* the first or the second half of the name */
        const char *tail = two + sizeof both - 2;
        memmove(two + 1, part % 2 ? "up_proj" : "gate_proj", part % 2 ? 7 : 9);
        memmove(two + (part % 2 ? 8 : 10), tail, strlen(tail) + 1);
        part /= 2;
    }
    sv_tensor_name(name, n, pattern, -1, (int32_t)part);
}

static int take_tensor(struct sv_ckpt *c, const struct sv_gguf_family *f,
                       const struct sv_gguf_tensor *from, int64_t part, struct sv_err *err)
{
    char pattern[160], name[192];
    struct sv_host_tensor *t = &c->tensors[c->n_tensors];
    enum sv_quant_code code;
    *t = (struct sv_host_tensor){.n_dims = from->n_dims,
                                 .n_elements = from->n_elements,
                                 .n_bytes = from->n_bytes,
                                 .data = from->data,
                                 .file = from->file};
    SV_REQUIRE(sv_gguf_format(from->type, &t->dtype, &code));
    for (int32_t i = 0; i < from->n_dims; i++) /* the longest stride first */
        t->dim[i] = from->dim[from->n_dims - 1 - i];
    if (code)
        t->quant = (struct sv_quant){.code = code,
                                     .rows = (int32_t)(from->n_elements / from->dim[0]),
                                     .cols = (int32_t)from->dim[0],
                                     .data = from->data};
    /* unknown names stay: the audit reports them */
    const bool known = sv_gguf_tensor_name(f, from->name, pattern, sizeof pattern);
    if (known)
        name_part(name, sizeof name, pattern, part);
    t->name = sv_arena_strdup(&c->arena, known ? name : from->name);
    if (!t->name)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", from->file);
    c->n_params += t->n_elements;
    c->n_bytes += (int64_t)t->n_bytes;
    c->n_tensors++;
    return SV_OK;
}

/* ---------------------------------------------------------------- shards */

/* Position of the shard's number: "NAME-00001-of-00003.gguf"; NULL: no shard. */
static char *shard_number(char *path)
{
    const size_t n = strlen(path);
    char *at = n > 20 ? path + n - 20 : NULL;
    if (!at || at[0] != '-' || memcmp(at + 6, "-of-", 4) != 0 ||
        strspn(at + 1, "0123456789") != 5 || strspn(at + 10, "0123456789") != 5)
        return NULL;
    return at + 1;
}

/* Shard number f->n_maps. *count: the number of shards it states, else 1. */
static int open_shard(struct sv_gguf_file *f, const char *path, struct sv_gguf *g, int64_t *count,
                      struct sv_err *err)
{
    struct sv_map *m = &f->maps[f->n_maps];
    int64_t no = 0;
    *count = 1;
    int rc = sv_map_open(m, path, err);
    if (rc)
        return rc;
    const int32_t expected = f->n_maps++;
    rc = sv_gguf_parse(g, m->data, m->n_bytes, path, &f->arena, err);
    if (!rc)
        rc = sv_gguf_int_opt(g, "split.count", 1, MAX_SHARDS, count, err);
    if (!rc)
        rc = sv_gguf_int_opt(g, "split.no", 0, MAX_SHARDS - 1, &no, err);
    if (!rc && no > 0 && !expected)
        rc = sv_fail(err, SV_EMISMATCH, -1,
                     "%s: 'split.no' is %lld: name the model's first file, of %lld", path,
                     (long long)no, (long long)*count);
    if (!rc && no != expected)
        rc = sv_fail(err, SV_EMISMATCH, -1, "%s: 'split.no' is %lld, %d was expected", path,
                     (long long)no, expected);
    return rc;
}

/* Appends the tensors of a further shard. */
static int append(struct sv_gguf_file *f, const struct sv_gguf *more, struct sv_err *err)
{
    struct sv_gguf *g = &f->g;
    const size_t n = (size_t)g->n_tensors + (size_t)more->n_tensors;
    struct sv_gguf_tensor *all = sv_arena_alloc(&f->arena, n * sizeof *all);
    if (!all)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", more->file);
    memcpy(all, g->tensors, (size_t)g->n_tensors * sizeof *all);
    memcpy(all + g->n_tensors, more->tensors, (size_t)more->n_tensors * sizeof *all);
    g->tensors = all;
    g->n_tensors = (int32_t)n;
    return SV_OK;
}

static int open_others(struct sv_gguf_file *f, char *path, int64_t count, struct sv_err *err)
{
    char *number = shard_number(path), digits[16];
    int64_t same = 0, total = -1;
    int rc = SV_OK;
    if (!number)
        return sv_fail(err, SV_EFORMAT, -1,
                       "%s: one of %lld shards, but its name does not end in -00001-of-%05lld.gguf",
                       path, (long long)count, (long long)count);
    for (int64_t i = 1; i < count && !rc; i++) {
        struct sv_gguf more;
        snprintf(digits, sizeof digits, "%05d", (int)(i + 1));
        memcpy(number, digits, 5);
        rc = open_shard(f, path, &more, &same, err);
        if (!rc && same != count)
            rc = sv_fail(err, SV_EMISMATCH, -1, "%s: one of %lld shards, the first of %lld", path,
                         (long long)same, (long long)count);
        if (!rc)
            rc = append(f, &more, err);
    }
    if (!rc)
        rc = sv_gguf_int_opt(&f->g, "split.tensors.count", 0, INT32_MAX, &total, err);
    if (!rc && total >= 0 && total != f->g.n_tensors)
        rc = sv_fail(err, SV_EMISMATCH, -1, "%s: 'split.tensors.count' is %lld, the shards hold %d",
                     f->g.file, (long long)total, f->g.n_tensors);
    return rc;
}

int sv_gguf_open(struct sv_gguf_file *f, const char *path, struct sv_err *err)
{
    int64_t count = 1;
    char *name = sv_strdup(path);
    memset(f, 0, sizeof *f);
    sv_arena_init(&f->arena);
    f->maps = sv_arena_alloc(&f->arena, MAX_SHARDS * sizeof *f->maps);
    int rc = name && f->maps ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
    if (!rc)
        rc = open_shard(f, path, &f->g, &count, err);
    if (!rc && count > 1)
        rc = open_others(f, name, count, err);
    sv_free(name);
    if (rc)
        sv_gguf_close(f);
    return rc;
}

void sv_gguf_close(struct sv_gguf_file *f)
{
    for (int32_t i = 0; i < f->n_maps; i++)
        sv_map_close(&f->maps[i]);
    sv_arena_fini(&f->arena);
    memset(f, 0, sizeof *f);
}

int64_t sv_gguf_ckpt_bytes(const char *path)
{
    struct stat st;
    char *name = sv_strdup(path), *number = name ? shard_number(name) : NULL, digits[16];
    int64_t sum = 0;
    for (int i = 1; name && i <= (number ? MAX_SHARDS : 1); i++) {
        if (number) {
            snprintf(digits, sizeof digits, "%05d", i);
            memcpy(number, digits, 5);
        }
        if (stat(name, &st) != 0)
            break;
        sum += (int64_t)st.st_size;
    }
    sv_free(name);
    return sum;
}

/* ---------------------------------------------------------------- the checkpoint */

/* Layers of the configuration, and those after them by the metadata. */
static bool is_elsewhere(const char *name, int64_t n_layers, int64_t extra)
{
    const int64_t layer = strncmp(name, "blk.", 4) ? -1 : strtoll(name + 4, NULL, 10);
    return !strcmp(name, "rope_freqs.weight") || (layer >= n_layers - extra && layer < n_layers);
}

int sv_gguf_ckpt_fill(struct sv_ckpt *c, const struct sv_gguf *g, struct sv_err *err)
{
    const struct sv_gguf_family *f = sv_gguf_family(g, err);
    int64_t total = g->n_tensors, n_layers = INT32_MAX, extra = 0;
    int rc = f ? sv_gguf_arch_int(g, f->arch, "block_count", &n_layers, err) : err->code;
    if (!rc && (f->hybrid || f->latent))
        rc = sv_gguf_arch_int(g, f->arch, "nextn_predict_layers", &extra, err);
    for (int32_t i = 0; i < g->n_tensors && !rc; i++)
        total += n_stacked(f, &g->tensors[i]);
    c->tensors = rc ? NULL : sv_arena_alloc(&c->arena, (size_t)total * sizeof *c->tensors);
    if (!rc && !c->tensors)
        rc = sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", g->file);
    for (int32_t i = 0; i < g->n_tensors && !rc; i++) {
        const struct sv_gguf_tensor *t = &g->tensors[i];
        const int64_t n = n_stacked(f, t);
        if (is_elsewhere(t->name, n_layers, extra))
            continue;
        for (int64_t k = 0; k < n && !rc; k++) {
            const struct sv_gguf_tensor one = part_of_stack(t, k, n);
            rc = take_tensor(c, f, n > 1 ? &one : t, k, err);
        }
    }
    return rc ? rc : sv_gguf_undo(c, g, f, err);
}

int sv_gguf_ckpt_open(struct sv_ckpt *c, const char *path, struct sv_err *err)
{
    struct sv_gguf_file f;
    int rc = sv_gguf_open(&f, path, err);
    if (rc)
        return rc;
    sv_arena_fini(&c->arena);
    c->arena = f.arena; /* maps and arena are the checkpoint's from here on */
    c->maps = f.maps;
    c->n_maps = f.n_maps;
    return sv_gguf_ckpt_fill(c, &f.g, err);
}
