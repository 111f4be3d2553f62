/*
 * tensors.c - the tensors that a configuration implies, and whether a checkpoint holds exactly
 * these.
 *
 * Called by model (loading), cli and engine (audit, parameter counts). The rows come from arch.c's
 * tables; names and shapes of tensors come only from here. Must not: skip a tensor without a row:
 * ignored tensors make models wrong.
 */
#include "load/impl.h"

#include "backend/ops_gdn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_NAME 160
#define EXPERTS "layers.{layer}.mlp.experts."

/* A checkpoint and its expected tensors. */
struct audit {
    const struct sv_ckpt *c;
    const struct sv_config *cfg;
    int32_t n_taps;
    uint8_t *seen;        /* (n_tensors) */
    enum sv_dtype expert; /* type of expert 0 */
    int32_t n_missing;
    char missing[MAX_NAME + 100]; /* the first one, with its shape */
    struct sv_err *err;
};

/* ---------------------------------------------------------------- what is expected */

static int64_t dim_value(const struct sv_config *c, int32_t n_taps, uint8_t dim)
{
    switch ((enum sv_dim)(dim % SV_DIM_PACK)) {
    case SV_DIM_HIDDEN:
        return c->hidden_size;
    case SV_DIM_INTER:
        return c->intermediate_size;
    case SV_DIM_VOCAB:
        return c->vocab_size;
    case SV_DIM_Q:
        return (int64_t)c->n_heads * c->head_dim;
    case SV_DIM_KV:
        return (int64_t)c->n_kv_heads * c->head_dim;
    case SV_DIM_HEAD:
        return c->head_dim;
    case SV_DIM_HEADS:
        return c->n_heads;
    case SV_DIM_EXPERTS:
        return c->n_experts;
    case SV_DIM_EXPERT_INTER:
        return c->moe_intermediate_size;
    case SV_DIM_GATE_UP:
        return 2 * (int64_t)c->moe_intermediate_size;
    case SV_DIM_SHARED_INTER:
        return c->shared_intermediate_size;
    case SV_DIM_Q_GATED:
        return 2 * (int64_t)c->n_heads * c->head_dim;
    case SV_DIM_GDN_QKV:
        return 2 * (int64_t)c->gdn_k_heads * c->gdn_k_dim + (int64_t)c->gdn_v_heads * c->gdn_v_dim;
    case SV_DIM_GDN_QKVZ:
        return 2 *
               ((int64_t)c->gdn_k_heads * c->gdn_k_dim + (int64_t)c->gdn_v_heads * c->gdn_v_dim);
    case SV_DIM_GDN_OUT:
        return (int64_t)c->gdn_v_heads * c->gdn_v_dim;
    case SV_DIM_GDN_HEADS:
        return c->gdn_v_heads;
    case SV_DIM_GDN_2_HEADS:
        return 2 * (int64_t)c->gdn_v_heads;
    case SV_DIM_GDN_HEAD:
        return c->gdn_v_dim;
    case SV_DIM_GDN_TAPS:
        return SV_GDN_TAPS;
    case SV_DIM_Q_LORA:
        return c->q_lora_rank;
    case SV_DIM_KV_LORA:
        return c->kv_lora_rank;
    case SV_DIM_LATENT:
        return (int64_t)c->kv_lora_rank + c->rot_dim;
    case SV_DIM_KV_UP:
        return (int64_t)c->n_heads * (c->nope_dim + c->v_dim);
    case SV_DIM_NOPE:
        return c->nope_dim;
    case SV_DIM_V_HEAD:
        return c->v_dim;
    case SV_DIM_V_OUT:
        return (int64_t)c->n_heads * c->v_dim;
    case SV_DIM_ONE:
        return 1;
    case SV_DIM_TAPS:
        return (int64_t)n_taps * c->hidden_size;
    case SV_DIM_NONE:
    case SV_DIM_PACK:
        break;
    }
    return 0;
}

static bool expected(const struct sv_config *c, uint8_t when, int32_t layer)
{
    switch ((enum sv_when)when) {
    case SV_ALWAYS:
        return true;
    case SV_IF_TIED:
        return c->tie_embeddings;
    case SV_IF_UNTIED:
        return !c->tie_embeddings;
    case SV_IF_ATTN_BIAS:
        return c->attention_bias;
    case SV_IF_MLP_BIAS:
        return c->mlp_bias;
    case SV_IF_QK_NORM:
        return c->qk_norm;
    case SV_IF_DENSE:
        return !c->layer_moe[layer];
    case SV_IF_MOE:
        return c->layer_moe[layer];
    case SV_IF_APART:
        return c->layer_moe[layer] && !c->packed_experts;
    case SV_IF_PACKED:
        return c->layer_moe[layer] && c->packed_experts;
    case SV_IF_OUTPUTS_FIRST:
        return c->layer_moe[layer] && c->packed_experts && !c->transposed_experts;
    case SV_IF_INPUTS_FIRST:
        return c->layer_moe[layer] && c->packed_experts && c->transposed_experts;
    case SV_IF_MXFP4:
        return c->packed_experts && c->mxfp4_experts;
    case SV_UNLESS_MXFP4:
        return c->packed_experts && !c->mxfp4_experts;
    case SV_IF_SHARED:
        return c->layer_moe[layer] && c->shared_intermediate_size;
    case SV_IF_ATTN:
        return c->layer_kind[layer] != SV_LAYER_GDN;
    case SV_IF_GDN:
        return c->layer_kind[layer] == SV_LAYER_GDN;
    case SV_IF_FUSED:
        return c->layer_kind[layer] == SV_LAYER_GDN && c->gdn_fused;
    case SV_IF_SPLIT:
        return c->layer_kind[layer] == SV_LAYER_GDN && !c->gdn_fused;
    case SV_IF_Q_LORA:
        return c->q_lora_rank;
    case SV_IF_Q_LORA_BIAS:
        return c->q_lora_rank && c->attention_bias;
    case SV_UNLESS_Q_LORA:
        return !c->q_lora_rank;
    case SV_IF_KV_B:
        return !c->kv_by_head;
    case SV_IF_BY_HEAD:
        return c->kv_by_head;
    }
    return false;
}

int32_t sv_tensor_shape(const struct sv_tensor_spec *s, int64_t dim[SV_SPEC_DIMS])
{
    if (s->form == SV_FORM_PATCH) {
        const int64_t side = s->side,
                      shape[SV_SPEC_DIMS] = {s->rows, 3, s->cols / (3 * side * side), side, side};
        memcpy(dim, shape, sizeof shape);
        return SV_SPEC_DIMS;
    }
    const bool first = s->pack == SV_PACK_INPUTS_FIRST || s->pack == SV_PACK_HALVES;
    const bool blocks = s->pack == SV_PACK_MXFP4 || s->pack == SV_PACK_MXFP4_SCALES;
    int32_t n = 0;
    if (s->n_experts)
        dim[n++] = s->n_experts;
    dim[n++] = first ? s->cols : s->form >= SV_FORM_GATE ? 2 * s->rows : s->rows;
    if (s->form == SV_FORM_CONV)
        dim[n++] = 1;
    if (s->cols)
        dim[n++] = first ? s->rows : blocks ? s->cols / 32 : s->cols;
    if (s->pack == SV_PACK_MXFP4)
        dim[n++] = 16;
    return n;
}

static void print_shape(char *out, size_t n, const int64_t *dim, int32_t n_dims)
{
    size_t at = (size_t)snprintf(out, n, "[");
    for (int32_t i = 0; i < n_dims && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (at < n)
        snprintf(out + at, n - at, "]");
}

void sv_tensor_name(char *out, size_t n, const char *pattern, int32_t layer, int32_t expert)
{
    static const char mark[][9] = {"{layer}", "{expert}"};
    const int32_t number[] = {layer, expert};
    size_t at = 0;
    SV_REQUIRE(n > 0);
    while (*pattern && at + 1 < n) {
        int k = 0;
        while (k < 2 && strncmp(pattern, mark[k], strlen(mark[k])))
            k++;
        if (k == 2) {
            out[at++] = *pattern++;
            continue;
        }
        at += (size_t)snprintf(out + at, n - at, "%d", number[k]);
        pattern += strlen(mark[k]);
    }
    SV_REQUIRE(!*pattern && at < n);
    out[at] = 0;
}

/* One walk over the expected tensors. */
struct walk {
    const struct sv_config *c;
    int32_t n_taps;
    sv_tensor_fn *take;
    void *user;
};

static bool is_expert(enum sv_role role)
{
    const int plain = role & ~SV_ROLE_BIAS;
    return plain >= SV_ROLE_EXPERT_GATE && plain <= SV_ROLE_EXPERT_GATE_UP;
}

/* The tensors of one row: one, or one for each expert or head. layer -1: outside the layers. */
static int walk_row(const struct walk *w, const struct sv_tensor_row *r, int32_t layer)
{
    const bool one_of_all = r->shard / SV_FORMS >= SV_FORM_EXPERT; /* of all in one tensor */
    const bool per_expert = one_of_all || strstr(r->name, "{expert}");
    const bool all_experts = is_expert(r->role) && !per_expert;
    const bool by_head = r->role == SV_ROLE_K_UP || r->role == SV_ROLE_V_UP;
    const int32_t n = by_head ? w->c->n_heads : per_expert ? w->c->n_experts : 1;
    char name[MAX_NAME];
    if (!expected(w->c, r->when, layer))
        return SV_OK;
    for (int32_t e = 0; e < n; e++) {
        sv_tensor_name(name, sizeof name, r->name, layer, e);
        const struct sv_tensor_spec spec = {.name = name,
                                            .role = r->role,
                                            .layer = layer,
                                            .expert = per_expert ? e : -1,
                                            .n_experts =
                                                all_experts || one_of_all ? w->c->n_experts : 0,
                                            .pack = (enum sv_pack)(r->cols / SV_DIM_PACK),
                                            .rows = dim_value(w->c, w->n_taps, r->rows),
                                            .cols = dim_value(w->c, w->n_taps, r->cols),
                                            .shard = (enum sv_shard)(r->shard % SV_FORMS),
                                            .form = (enum sv_form)(r->shard / SV_FORMS)};
        int rc = w->take(w->user, &spec);
        if (rc)
            return rc;
    }
    return SV_OK;
}

static bool is_per_layer(const struct sv_tensor_row *r)
{
    return r->name && strstr(r->name, "{layer}");
}

int sv_config_each_tensor(const struct sv_config *cfg, int32_t n_taps, sv_tensor_fn *take,
                          void *user)
{
    const struct walk w = {.c = cfg, .n_taps = n_taps, .take = take, .user = user};
    const struct sv_tensor_row *r = sv_arch_row(cfg->arch)->tensors, *end;
    int rc = SV_OK;
    for (; r->name && !rc; r = end) {
        end = r;
        while (is_per_layer(end))
            end++;
        for (int32_t i = 0; i < cfg->n_layers && end > r && !rc; i++)
            for (const struct sv_tensor_row *k = r; k < end && !rc; k++)
                rc = walk_row(&w, k, i);
        if (end == r)
            rc = walk_row(&w, end++, -1);
    }
    return rc;
}

struct count {
    int64_t n_params, n_mxfp4; /* of those in blocks */
};

static int count_one(void *user, const struct sv_tensor_spec *s)
{
    struct count *c = user;
    const int64_t n =
        s->rows * (s->cols ? s->cols : 1) * (s->n_experts && s->expert < 0 ? s->n_experts : 1);
    c->n_params += s->pack != SV_PACK_MXFP4_SCALES ? n : 0;
    c->n_mxfp4 += s->pack == SV_PACK_MXFP4 ? n : 0;
    return SV_OK;
}

int64_t sv_config_n_params(const struct sv_config *cfg)
{
    struct count c = {0};
    sv_config_each_tensor(cfg, 0, count_one, &c);
    return c.n_params;
}

int64_t sv_config_n_bytes(const struct sv_config *cfg)
{
    struct count c = {0};
    sv_config_each_tensor(cfg, 0, count_one, &c);
    return (c.n_params - c.n_mxfp4) * (int64_t)sv_dtype_bytes(cfg->stored_dtype) +
           c.n_mxfp4 / 32 * 17; /* a scale and 32 codes */
}

int64_t sv_draft_config_n_params(const struct sv_draft_config *cfg)
{
    struct count c = {0};
    sv_config_each_tensor(&cfg->base, cfg->n_taps, count_one, &c);
    return c.n_params;
}

/* ---------------------------------------------------------------- comparing */

/* The most likely reason for a wrong shape. */
static const char *shape_hint(enum sv_role role, enum sv_pack pack)
{
    switch (role & ~(SV_ROLE_DRAFT | SV_ROLE_BIAS)) {
    case SV_ROLE_TAP_PROJ:
        return " (number of taps x hidden_size)";
    case SV_ROLE_Q:
        return " (num_attention_heads x head_dim)";
    case SV_ROLE_O:
        return role & SV_ROLE_BIAS ? "" : " (num_attention_heads x head_dim)";
    case SV_ROLE_K:
    case SV_ROLE_V:
        return " (num_key_value_heads x head_dim)";
    case SV_ROLE_SINKS:
        return " (num_attention_heads)";
    case SV_ROLE_KV_A:
        return " (kv_lora_rank + qk_rope_head_dim)";
    case SV_ROLE_KV_B:
        return " (num_attention_heads x (qk_nope_head_dim + v_head_dim), kv_lora_rank)";
    case SV_ROLE_ROUTER:
        return " (num_experts x hidden_size)";
    case SV_ROLE_EXPERT_GATE:
    case SV_ROLE_EXPERT_UP:
    case SV_ROLE_EXPERT_DOWN:
    case SV_ROLE_EXPERT_GATE_UP:
        return pack == SV_PACK_INPUTS_FIRST || pack == SV_PACK_HALVES
                   ? " (experts x inputs x outputs)"
               : pack == SV_PACK_NONE ? " (moe_intermediate_size and hidden_size)"
                                      : "";
    }
    return "";
}

static int audit_one(void *user, const struct sv_tensor_spec *s)
{
    struct audit *a = user;
    const char *name = s->name;
    const bool packed = s->pack == SV_PACK_MXFP4 || s->pack == SV_PACK_MXFP4_SCALES;
    int64_t dim[SV_SPEC_DIMS];
    char want[96], found[192];
    if (s->form >= SV_FORM_EXPERT && (s->expert > 0 || s->form == SV_FORM_UP))
        return SV_OK; /* a part of one that was seen */
    const int32_t n_dims = sv_tensor_shape(s, dim);
    print_shape(want, sizeof want, dim, n_dims);
    const struct sv_host_tensor *t = sv_ckpt_find(a->c, name);
    if (!t) {
        if (a->n_missing++ == 0)
            snprintf(a->missing, sizeof a->missing, "'%s' %s", name, want);
        return SV_OK;
    }
    a->seen[t - a->c->tensors] = 1;
    if (t->n_dims != n_dims || memcmp(t->dim, dim, (size_t)n_dims * sizeof *dim) != 0) {
        print_shape(found, sizeof found, t->dim, t->n_dims);
        return sv_fail(a->err, SV_EMISMATCH, -1,
                       "%s: tensor '%s' has shape %s, the configuration asks for %s%s", t->file,
                       name, found, want, shape_hint(s->role, s->pack));
    }
    if (packed ? t->dtype != SV_U8 : t->quant.code ? !s->cols : t->dtype > SV_F16)
        return sv_fail(a->err, SV_EUNSUPPORTED, -1, "%s: tensor '%s' holds %s, no %s", t->file,
                       name, sv_dtype_name(t->dtype), packed ? "MXFP4 codes or scales" : "weights");
    a->expert = s->expert > 0 ? a->expert : t->dtype;
    if (t->dtype != a->expert)
        return sv_fail(
            a->err, SV_EUNSUPPORTED, -1,
            "%s: tensor '%s' is %s, that of expert 0 %s: a layer's experts have one type", t->file,
            name, sv_dtype_name(t->dtype), sv_dtype_name(a->expert));
    return SV_OK;
}

static int audit_vision(void *user, const struct sv_tensor_spec *s, enum sv_vision_part part)
{
    (void)part;
    return audit_one(user, s);
}

/* Why a tensor that is not expected may be there; turns "unknown" into a reason. */
static const char *reason_of(const char *name, bool draft)
{
    static const struct {
        const char *part, *why;
        bool draft_only;
    } table[] = {
        {"_conv.", "it belongs to DFlash 2", true},
        {"candidate_selector.", "it belongs to DFlash 2", true},
        {"markov", "it belongs to DSpark", true},
        {"confidence", "it belongs to DSpark", true},
        {"prefix_gru.", "it belongs to Domino", true},
        {"embed_proj.", "it belongs to Domino", true},
        {"attention_sink_bias", "learned attention sinks are not supported", true},
        {"d2t", "a reduced draft vocabulary is not supported", true},
        {"t2d", "a reduced draft vocabulary is not supported", true},
        {"weight_scale", "config.json has no quantization_config that asks for it", false},
        {"weight_packed", "config.json has no quantization_config that asks for it", false},
        {"qweight", "config.json has no quantization_config that asks for it", false},
        {"_proj_blocks", "config.json has no quantization_config that asks for it", false},
        {"_proj_scales", "config.json has no quantization_config that asks for it", false},
        {"lora_", "adapters must be merged first", false},
        {"_proj.bias", "the configuration says there is no bias", false},
        {"_norm.weight", "the architecture has no such norm", false},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if ((draft || !table[i].draft_only) && strstr(name, table[i].part))
            return table[i].why;
    }
    return "nothing in the configuration asks for it";
}

static bool is_inv_freq(const char *name)
{
    static const char suffix[] = "rotary_emb.inv_freq";
    size_t n = strlen(name), k = sizeof suffix - 1;
    return n >= k && !strcmp(name + n - k, suffix);
}

/* Scales of cached keys and values; read where the cache is quantized. */
static bool is_cache_scale(const char *name)
{
    const size_t n = strlen(name);
    return n > 8 && (!strcmp(name + n - 8, ".k_scale") || !strcmp(name + n - 8, ".v_scale"));
}

/* A head beside a tied embedding is a copy by some exporters; transformers ignores it too. */
static bool is_tied_head(const struct audit *a, const struct sv_host_tensor *t)
{
    return !sv_arch_is_draft(a->cfg->arch) && a->cfg->tie_embeddings &&
           !strcmp(t->name, "lm_head.weight") && t->n_dims == 2 &&
           t->dim[0] == a->cfg->vocab_size && t->dim[1] == a->cfg->hidden_size;
}

/* After the last layer: predicts one more token. */
static bool is_mtp_layer(const struct sv_config *c, const char *name)
{
    for (int32_t i = c->n_layers; i < c->n_layers + c->n_mtp_layers; i++) {
        char layer[32];
        const int n = snprintf(layer, sizeof layer, "layers.%d.", i);
        if (!strncmp(name, layer, (size_t)n))
            return true;
    }
    return false;
}

/* By the table of architectures: heads for several tokens, images without configuration. */
static bool is_skipped(const struct audit *a, const char *name)
{
    const struct sv_arch_row *row = sv_arch_row(a->cfg->arch);
    if (a->cfg->vision.depth && !strncmp(name, "visual.", 7))
        return false;
    for (size_t i = 0; i < sizeof row->skipped / sizeof row->skipped[0]; i++)
        if (row->skipped[i] && !strncmp(name, row->skipped[i], strlen(row->skipped[i])))
            return true;
    return is_mtp_layer(a->cfg, name);
}

/* -1 or 0: the layer has none. */
static int check_cache_scale(const struct sv_host_tensor *t, struct sv_err *err)
{
    for (int64_t i = 0; i < t->n_elements; i++)
        if (t->dtype > SV_F16 || !isfinite(sv_tensor_number(t, i)))
            return sv_fail(err, SV_EMISMATCH, -1,
                           "%s: tensor '%.120s' scales a cache by what is no finite number",
                           t->file, t->name);
    return SV_OK;
}

static int audit_extras(struct audit *a)
{
    bool draft = sv_arch_is_draft(a->cfg->arch);
    const struct sv_host_tensor *extra = NULL;
    for (int32_t i = 0; i < a->c->n_tensors && !extra; i++) {
        const struct sv_host_tensor *t = &a->c->tensors[i];
        if (is_cache_scale(t->name) && check_cache_scale(t, a->err))
            return a->err->code;
        if (!a->seen[i] && !is_inv_freq(t->name) && !is_cache_scale(t->name) &&
            !is_tied_head(a, t) && !is_skipped(a, t->name))
            extra = t;
    }
    if (a->n_missing > 0 && extra)
        return sv_fail(a->err, SV_EMISMATCH, -1,
                       "tensor %s is missing (%d in all), and '%.100s' is not expected: %s",
                       a->missing, a->n_missing, extra->name, reason_of(extra->name, draft));
    if (a->n_missing > 0)
        return sv_fail(a->err, SV_EMISMATCH, -1, "tensor %s is missing (%d in all)", a->missing,
                       a->n_missing);
    if (extra)
        return sv_fail(a->err, SV_EMISMATCH, -1, "%s: tensor '%.100s' is not expected: %s",
                       extra->file, extra->name, reason_of(extra->name, draft));
    return SV_OK;
}

static int run_audit(struct audit *a)
{
    a->seen = sv_calloc((size_t)a->c->n_tensors, 1);
    if (!a->seen)
        return sv_fail(a->err, SV_ENOMEM, -1, "out of memory");
    int rc = sv_config_each_tensor(a->cfg, a->n_taps, audit_one, a);
    if (!rc && a->cfg->vision.depth && sv_vision_is_in(a->c))
        rc = sv_vision_each_tensor(a->cfg, audit_vision, a);
    if (!rc)
        rc = audit_extras(a);
    sv_free(a->seen);
    return rc;
}

static const struct sv_host_tensor *find_in_layer(const struct sv_ckpt *c, const char *pattern,
                                                  int32_t layer)
{
    char name[MAX_NAME];
    sv_tensor_name(name, sizeof name, pattern, layer, 0);
    return sv_ckpt_find(c, name);
}

/* By the first layer with experts; gpt-oss's MXFP4 has one layout. When gate and up are square, the
 * order follows from down, with half as many inputs. */
static void see_experts(struct sv_config *cfg, const struct sv_ckpt *c)
{
    const struct sv_arch_row *row = sv_arch_row(cfg->arch);
    const int32_t both = 2 * cfg->moe_intermediate_size;
    int32_t i = 0;
    while (i < cfg->n_layers && !cfg->layer_moe[i])
        i++;
    if (!row->packed_experts || cfg->mxfp4_experts || i == cfg->n_layers)
        return;
    const struct sv_host_tensor *gate_up = find_in_layer(c, EXPERTS "gate_up_proj", i),
                                *down = find_in_layer(c, EXPERTS "down_proj", i),
                                *t = both == cfg->hidden_size ? down : gate_up;
    const bool apart = find_in_layer(c, EXPERTS "{expert}.gate_proj.weight", i);
    if (apart == !gate_up) /* else as assumed: the check reports the error */
        cfg->packed_experts = !apart;
    if (row->transposed_experts && t && t->n_dims == 3)
        cfg->transposed_experts = t->dim[1] != (t == down ? cfg->hidden_size : both);
}

int sv_ckpt_check_target(const struct sv_ckpt *c, struct sv_config *cfg, struct sv_err *err)
{
    see_experts(cfg, c);
    struct audit a = {.c = c, .cfg = cfg, .err = err};
    return run_audit(&a);
}

int sv_ckpt_check_draft(const struct sv_ckpt *c, const struct sv_draft_config *cfg,
                        struct sv_err *err)
{
    bool embed = sv_ckpt_find(c, "embed_tokens.weight"), head = sv_ckpt_find(c, "lm_head.weight");
    if (embed != head)
        return sv_fail(err, SV_EMISMATCH, -1,
                       "the draft has its own %s but not %s: it needs both or neither",
                       embed ? "embed_tokens.weight" : "lm_head.weight",
                       embed ? "lm_head.weight" : "embed_tokens.weight");
    if (embed) /* the target's tables would give wrong results */
        return sv_fail(
            err, SV_EUNSUPPORTED, -1,
            "the draft has its own embedding and head; only drafts that share the target's "
            "are supported");
    struct audit a = {.c = c, .cfg = &cfg->base, .n_taps = cfg->n_taps, .err = err};
    return run_audit(&a);
}
