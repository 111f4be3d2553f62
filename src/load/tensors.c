/*
 * tensors.c - does a checkpoint hold exactly the tensors that its configuration implies?
 *
 * Called by model and cli after opening. The expected names and shapes come from arch.c's tables,
 * the total from the closed formula of docs/checkpoints.md: two statements of the same thing,
 * compared. Must not: skip a tensor that nobody asked for; silently ignored tensors are how wrong
 * models run.
 */
#include "load/impl.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAME 160

/* A checkpoint on one side, what it should hold on the other. */
struct audit {
    const struct sv_ckpt *c;
    const struct sv_config *cfg;
    int32_t n_taps;
    uint8_t *seen; /* (n_tensors) */
    int64_t n_params;
    int32_t n_missing;
    char missing[MAX_NAME + 80]; /* the first one, with its shape */
    struct sv_err *err;
};

/* ---------------------------------------------------------------- counting */

/* Parameters of one transformer layer. */
static int64_t layer_params(const struct sv_config *c)
{
    int64_t h = c->hidden_size, q = (int64_t)c->n_heads * c->head_dim;
    int64_t kv = (int64_t)c->n_kv_heads * c->head_dim, inter = c->intermediate_size;
    int64_t n = 2 * q * h + 2 * kv * h + 2 * h + 3 * inter * h;
    if (c->qk_norm)
        n += 2 * (int64_t)c->head_dim;
    if (c->attention_bias)
        n += q + 2 * kv + h;
    if (c->mlp_bias)
        n += 2 * inter + h;
    return n;
}

int64_t sv_config_n_params(const struct sv_config *cfg)
{
    int64_t table = (int64_t)cfg->vocab_size * cfg->hidden_size;
    return (cfg->tie_embeddings ? 1 : 2) * table + cfg->hidden_size +
           cfg->n_layers * layer_params(cfg);
}

int64_t sv_draft_config_n_params(const struct sv_draft_config *cfg)
{
    int64_t h = cfg->base.hidden_size;
    return h * cfg->n_taps * h + 2 * h + cfg->base.n_layers * layer_params(&cfg->base);
}

/* ---------------------------------------------------------------- what is expected */

static int64_t dim_value(const struct sv_config *c, int32_t n_taps, uint8_t dim)
{
    switch ((enum sv_dim)dim) {
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
    case SV_DIM_TAPS:
        return (int64_t)n_taps * c->hidden_size;
    case SV_DIM_NONE:
        break;
    }
    return 0;
}

static bool expected(const struct sv_config *c, uint8_t when)
{
    switch ((enum sv_when)when) {
    case SV_ALWAYS:
        return true;
    case SV_IF_UNTIED:
        return !c->tie_embeddings;
    case SV_IF_ATTN_BIAS:
        return c->attention_bias;
    case SV_IF_MLP_BIAS:
        return c->mlp_bias;
    case SV_IF_QK_NORM:
        return c->qk_norm;
    }
    return false;
}

static void print_shape(char *out, size_t n, const int64_t *dim, int32_t n_dims)
{
    size_t at = (size_t)snprintf(out, n, "[");
    for (int32_t i = 0; i < n_dims && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (at < n)
        snprintf(out + at, n - at, "]");
}

static void layer_name(char *out, size_t n, const char *pattern, int32_t layer)
{
    const char *star = strchr(pattern, '*');
    if (star)
        snprintf(out, n, "%.*s%d%s", (int)(star - pattern), pattern, layer, star + 1);
    else
        snprintf(out, n, "%s", pattern);
}

/* Every tensor that a configuration implies: its row, name and dimensions (the second is 0 for a
 * vector). */
static int each_expected(const struct sv_config *c, int32_t n_taps,
                         int (*take)(void *user, const struct sv_tensor_row *row, const char *name,
                                     const int64_t dim[2]),
                         void *user)
{
    char name[MAX_NAME];
    for (const struct sv_tensor_row *r = sv_arch_row(c->arch)->tensors; r->name; r++) {
        const int64_t dim[2] = {dim_value(c, n_taps, r->rows), dim_value(c, n_taps, r->cols)};
        const bool per_layer = strchr(r->name, '*') != NULL;
        for (int32_t i = 0; expected(c, r->when) && i < (per_layer ? c->n_layers : 1); i++) {
            layer_name(name, sizeof name, r->name, i);
            int rc = take(user, r, name, dim);
            if (rc)
                return rc;
        }
    }
    return SV_OK;
}

struct visit {
    void (*take)(void *user, const char *name, int64_t rows, int64_t cols);
    void *user;
};

static int visit_one(void *user, const struct sv_tensor_row *row, const char *name,
                     const int64_t dim[2])
{
    const struct visit *v = user;
    (void)row;
    v->take(v->user, name, dim[0], dim[1]);
    return SV_OK;
}

void sv_config_each_tensor(const struct sv_config *cfg,
                           void (*take)(void *user, const char *name, int64_t rows, int64_t cols),
                           void *user)
{
    struct visit v = {.take = take, .user = user};
    each_expected(cfg, 0, visit_one, &v);
}

/* ---------------------------------------------------------------- comparing */

/* What a wrong shape most likely means. */
static const char *shape_hint(const struct sv_tensor_row *row)
{
    if (row->cols == SV_DIM_TAPS)
        return " (number of taps x hidden_size)";
    if (row->rows == SV_DIM_Q || row->cols == SV_DIM_Q)
        return " (num_attention_heads x head_dim)";
    if (row->rows == SV_DIM_KV)
        return " (num_key_value_heads x head_dim)";
    return "";
}

static int audit_one(void *user, const struct sv_tensor_row *row, const char *name,
                     const int64_t dim[2])
{
    struct audit *a = user;
    char want[64], found[192];
    int32_t n_dims = row->cols == SV_DIM_NONE ? 1 : 2;
    print_shape(want, sizeof want, dim, n_dims);
    const struct sv_host_tensor *t = sv_ckpt_find(a->c, name);
    if (!t) {
        if (a->n_missing++ == 0)
            snprintf(a->missing, sizeof a->missing, "'%s' %s", name, want);
        return SV_OK;
    }
    a->seen[t - a->c->tensors] = 1;
    if (t->n_dims != n_dims || t->dim[0] != dim[0] || (n_dims == 2 && t->dim[1] != dim[1])) {
        print_shape(found, sizeof found, t->dim, t->n_dims);
        return sv_fail(a->err, SV_EMISMATCH, -1,
                       "%s: tensor '%s' has shape %s, the configuration asks for %s%s", t->file,
                       name, found, want, shape_hint(row));
    }
    if (t->dtype == SV_I32)
        return sv_fail(a->err, SV_EUNSUPPORTED, -1, "%s: tensor '%s' holds integers", t->file,
                       name);
    a->n_params += t->n_elements;
    return SV_OK;
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
        {"attention_sink_bias", "learned attention sinks are not supported", true},
        {"d2t", "a reduced draft vocabulary is not supported", true},
        {"t2d", "a reduced draft vocabulary is not supported", true},
        {"weight_scale", "quantized weights are not supported", false},
        {"qweight", "quantized weights are not supported", false},
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

/* A head beside a tied embedding is a copy that some exporters leave; transformers ignores it
 * too. */
static bool is_tied_head(const struct audit *a, const struct sv_host_tensor *t)
{
    return a->cfg->arch != SV_ARCH_DFLASH && a->cfg->tie_embeddings &&
           !strcmp(t->name, "lm_head.weight") && t->n_dims == 2 &&
           t->dim[0] == a->cfg->vocab_size && t->dim[1] == a->cfg->hidden_size;
}

static int audit_extras(struct audit *a, int64_t want_params)
{
    bool draft = a->cfg->arch == SV_ARCH_DFLASH;
    const struct sv_host_tensor *extra = NULL;
    for (int32_t i = 0; i < a->c->n_tensors && !extra; i++) {
        const struct sv_host_tensor *t = &a->c->tensors[i];
        if (!a->seen[i] && !is_inv_freq(t->name) && !is_tied_head(a, t))
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
    if (a->n_params != want_params)
        return sv_fail(a->err, SV_EMISMATCH, -1,
                       "the tensors hold %lld parameters, the configuration implies %lld",
                       (long long)a->n_params, (long long)want_params);
    return SV_OK;
}

static int run_audit(struct audit *a, int64_t want_params)
{
    a->seen = sv_calloc((size_t)a->c->n_tensors, 1);
    if (!a->seen)
        return sv_fail(a->err, SV_ENOMEM, -1, "out of memory");
    int rc = each_expected(a->cfg, a->n_taps, audit_one, a);
    if (!rc)
        rc = audit_extras(a, want_params);
    sv_free(a->seen);
    return rc;
}

int sv_ckpt_check_target(const struct sv_ckpt *c, const struct sv_config *cfg, struct sv_err *err)
{
    struct audit a = {.c = c, .cfg = cfg, .err = err};
    return run_audit(&a, sv_config_n_params(cfg));
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
    if (embed) /* running it on the target's tables would work and be wrong */
        return sv_fail(
            err, SV_EUNSUPPORTED, -1,
            "the draft has its own embedding and head; only drafts that share the target's "
            "are supported");
    struct audit a = {.c = c, .cfg = &cfg->base, .n_taps = cfg->n_taps, .err = err};
    return run_audit(&a, sv_draft_config_n_params(cfg));
}
