/*
 * draft.c - config.json of DFlash drafts and the fit of a pair; the rules: docs/checkpoints.md.
 *
 * Called by engine and cli. Only the plain v1 draft runs; every other dialect is refused by name,
 * because the v1 path would run them with wrong results. Must not: guess a value that engines
 * disagree about.
 */
#include "load/gguf.h"

#include <math.h>
#include <string.h>

enum { MAX_LAYERS = SV_GEMM_MAX_PARTS / 2 }; /* one product for keys and values of all layers */

/* ---------------------------------------------------------------- dialects that are refused */

enum refuse_kind { IF_PRESENT, IF_TRUE, IF_FALSE, IF_NOT_ONE };

struct refusal {
    const char *key;
    enum refuse_kind kind;
    const char *what;
};

/* Looked up in dflash_config and at top level. */
static const struct refusal refusals[] = {
    {"speculators_model_type", IF_PRESENT, "the speculators dialect"},
    {"speculators_config", IF_PRESENT, "the speculators dialect"},
    {"transformer_layer_config", IF_PRESENT, "the speculators dialect"},
    {"aux_hidden_state_layer_ids", IF_PRESENT,
     "the speculators dialect (its layer ids count differently)"},
    {"eagle_aux_hidden_state_layer_ids", IF_PRESENT,
     "an EAGLE-style dialect (its layer ids count differently)"},
    {"conv_kernel_size", IF_PRESENT, "DFlash 2"},
    {"conv_group_size", IF_PRESENT, "DFlash 2"},
    {"selector_rank", IF_PRESENT, "DFlash 2"},
    {"selector_top_k", IF_PRESENT, "DFlash 2"},
    {"sample_from_anchor", IF_TRUE, "DSpark"},
    {"dspark_config", IF_PRESENT, "DSpark"},
    {"markov_rank", IF_PRESENT, "DSpark"},
    {"markov_head_rank", IF_PRESENT, "DSpark"},
    {"enable_confidence_head", IF_TRUE, "DSpark"},
    {"projector_type", IF_PRESENT, "Domino"},
    {"shift_label", IF_TRUE, "a draft whose rows predict the next token"},
    {"attention_value_scale", IF_NOT_ONE, "a MiMo draft"},
    {"backbone_rotary_base", IF_PRESENT, "a MiMo draft"},
    {"use_swa", IF_TRUE, "a MiMo draft (windows outside layer_types)"},
    {"add_swa_attention_sink_bias", IF_TRUE, "learned attention sinks"},
    {"attention_sink_bias", IF_TRUE, "learned attention sinks"},
    {"partial_rotary_factor", IF_NOT_ONE, "partial rotary embedding"},
    {"is_neox_style", IF_FALSE, "interleaved rotary embedding"},
    {"use_aux_hidden_state", IF_FALSE, "a draft without target features"},
    {"input_embedding_scale", IF_NOT_ONE, "a scaled input embedding"},
};

/* The object with a key: dflash_config, else the top level; NULL for neither. */
static const json_t *home_of(const json_t *root, const json_t *dflash, const char *key)
{
    if (sv_json_has(dflash, key))
        return dflash;
    return sv_json_has(root, key) ? root : NULL;
}

static int apply_refusal(const struct refusal *r, const json_t *obj, struct sv_err *err)
{
    bool flag = r->kind == IF_FALSE, hit = false;
    double num = 1;
    int rc = SV_OK;
    if (r->kind == IF_PRESENT) {
        hit = sv_json_has(obj, r->key);
    } else if (r->kind == IF_NOT_ONE) {
        rc = sv_json_num_opt(obj, r->key, -1e9, 1e9, &num, err);
        hit = num != 1;
    } else {
        rc = sv_json_bool_opt(obj, r->key, &flag, err);
        hit = flag == (r->kind == IF_TRUE);
    }
    if (rc || !hit)
        return rc;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "field '%s': %s is not supported, DFlash v1 is",
                   r->key, r->what);
}

static int refuse_dialects(const json_t *root, const json_t *dflash, struct sv_err *err)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        /* An absent flag must not match: only objects with the key. */
        const json_t *places[2] = {dflash, root};
        for (int k = 0; k < 2; k++) {
            if (!sv_json_has(places[k], r->key))
                continue;
            int rc = apply_refusal(r, places[k], err);
            if (rc)
                return rc;
        }
    }
    return SV_OK;
}

static int check_architecture(const json_t *root, const json_t *dflash, struct sv_err *err)
{
    static const struct {
        const char *part, *what;
    } known[] = {{"DFlash2", "DFlash 2"},
                 {"DSpark", "DSpark"},
                 {"Laguna", "a Laguna draft"},
                 {"Nemotron", "a Nemotron draft"},
                 {"MiMo", "a MiMo draft"}};
    const char *name;
    int rc = sv_arch_string(root, &name, err);
    if (rc)
        return rc;
    if (!name && !dflash && !sv_json_has(root, "speculators_model_type"))
        return sv_fail(err, SV_EFORMAT, -1,
                       "this is no DFlash draft: neither 'architectures' nor 'dflash_config'");
    if (!name || !strcmp(name, sv_arch_dflash()->architecture))
        return SV_OK;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strstr(name, known[i].part))
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           "architecture '%.80s' (%s) is not supported, DFlashDraftModel is", name,
                           known[i].what);
    }
    if (strstr(name, "DFlash") || strstr(name, "Dflash"))
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "draft architecture '%.80s' is not supported, DFlashDraftModel is", name);
    return sv_fail(err, SV_EUNSUPPORTED, -1, "architecture '%.80s' is no DFlash draft", name);
}

/* ---------------------------------------------------------------- fields of the draft */

static int missing(const char *key, struct sv_err *err)
{
    return sv_fail(err, SV_EINVAL, -1,
                   "field '%s' is missing (looked in dflash_config and at top level)", key);
}

static int check_block(const struct sv_draft_config *d, struct sv_err *err)
{
    if (d->block_size < 2)
        return sv_fail(err, SV_EINVAL, -1, "a block of %d tokens leaves nothing to draft",
                       d->block_size);
    return d->block_size > SV_MAX_BLOCK
               ? sv_fail(err, SV_EUNSUPPORTED, -1, "block_size %d is above %d, the widest block",
                         d->block_size, SV_MAX_BLOCK)
               : SV_OK;
}

static int parse_block(struct sv_draft_config *d, const json_t *root, const json_t *dflash,
                       struct sv_err *err)
{
    const json_t *home = home_of(root, dflash, "block_size");
    int rc = home ? sv_json_i32(home, "block_size", 2, INT32_MAX, &d->block_size, err)
                  : missing("block_size", err);
    if (!rc)
        rc = check_block(d, err);
    if (rc)
        return rc;
    home = home_of(root, dflash, "mask_token_id");
    if (!home) {
        if (home_of(root, dflash, "mask_token"))
            return sv_fail(err, SV_EINVAL, -1,
                           "field 'mask_token_id' is missing ('mask_token' alone is not enough)");
        return missing("mask_token_id", err);
    }
    return sv_json_i32(home, "mask_token_id", 0, d->base.vocab_size - 1, &d->mask_id, err);
}

/* Python's round(): half to even. x is not negative. */
static int32_t round_half_even(double x)
{
    double below = floor(x), rest = x - below;
    int32_t n = (int32_t)below;
    if (rest > 0.5 || (rest == 0.5 && n % 2 != 0))
        n++;
    return n;
}

/* Spec 1.4; used only when the file has no list. */
static int default_taps(struct sv_draft_config *d, int32_t n_target_layers, struct sv_err *err)
{
    int32_t n = d->base.n_layers;
    if (n_target_layers < 4)
        return sv_fail(err, SV_EINVAL, -1,
                       "field 'target_layer_ids' is missing and cannot be computed for a target of "
                       "%d layers",
                       n_target_layers);
    if (n > SV_MAX_TAPS)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%d taps are more than %d", n, SV_MAX_TAPS);
    d->n_taps = n;
    if (n == 1)
        d->taps[0] = n_target_layers / 2;
    for (int32_t i = 0; n > 1 && i < n; i++)
        d->taps[i] = round_half_even(1 + (double)i * (n_target_layers - 4) / (n - 1));
    return SV_OK;
}

static int read_taps(struct sv_draft_config *d, const json_t *list, struct sv_err *err)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0 || n > SV_MAX_TAPS)
        return sv_fail(err, SV_EINVAL, -1, "field 'target_layer_ids' must be a list of 1 to %d ids",
                       SV_MAX_TAPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= SV_MAX_LAYERS)
            return sv_fail(err, SV_EINVAL, -1,
                           "'target_layer_ids'[%zu] is not a layer id in [0, %d]", i,
                           SV_MAX_LAYERS - 1);
        d->taps[i] = (int32_t)json_integer_value(v);
    }
    d->n_taps = (int32_t)n;
    return SV_OK;
}

/* Strictly ascending: then list order and layer order agree, in which engines concatenate. */
static int check_taps(const struct sv_draft_config *d, int32_t n_target_layers, struct sv_err *err)
{
    for (int32_t i = 0; i < d->n_taps; i++) {
        if (i > 0 && d->taps[i] <= d->taps[i - 1])
            return sv_fail(err, SV_EINVAL, -1,
                           "'target_layer_ids' must be strictly ascending, %d follows %d",
                           d->taps[i], d->taps[i - 1]);
        if (n_target_layers > 0 && d->taps[i] > n_target_layers - 2)
            return sv_fail(
                err, SV_EINVAL, -1,
                "target layer id %d is above %d, the last that can be tapped in a target "
                "of %d layers",
                d->taps[i], n_target_layers - 2, n_target_layers);
    }
    return SV_OK;
}

static int parse_taps(struct sv_draft_config *d, const json_t *root, const json_t *dflash,
                      int32_t n_target_layers, struct sv_err *err)
{
    const json_t *home = home_of(root, dflash, "num_target_layers");
    int rc =
        home ? sv_json_i32(home, "num_target_layers", 1, SV_MAX_LAYERS, &d->n_target_layers, err)
             : SV_OK;
    if (rc)
        return rc;
    if (d->n_target_layers > 0)
        n_target_layers = d->n_target_layers;
    home = home_of(root, dflash, "target_layer_ids");
    if (home)
        rc = read_taps(d, json_object_get(home, "target_layer_ids"), err);
    else
        rc = default_taps(d, n_target_layers, err);
    return rc ? rc : check_taps(d, n_target_layers, err);
}

/* Spec 2.5, from the raw JSON. layer_types decides: use_sliding_window does not disable a window,
 * and max_window_layers is ignored. */
static int parse_layers(struct sv_draft_config *d, const json_t *root, const json_t *dflash,
                        struct sv_err *err)
{
    bool given, use = false, flag = false, head = false;
    int32_t window = 0, n_sliding = 0;
    int rc = sv_config_layer_types(&d->base, root, &given, err);
    if (!rc)
        rc = sv_json_bool_opt(root, "use_sliding_window", &use, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "sliding_window", 0, 1 << 27, &window, err);
    if (!rc && use && !given && window > 0)
        rc = sv_fail(
            err, SV_EINVAL, -1,
            "'use_sliding_window' is true but 'layer_types' does not say which layers slide");
    const json_t *forced = sv_json_has(root, "is_causal") ? root : NULL;
    const char *key = forced ? "is_causal" : "causal";
    if (!forced && sv_json_has(dflash, "causal"))
        forced = dflash;
    if (!rc && forced)
        rc = sv_json_bool_opt(forced, key, &flag, err);
    if (!rc && !forced && dflash) /* JetSpec's: of full layers too */
        rc = sv_json_bool_opt(dflash, "causal_head", &head, err);
    for (int32_t i = 0; !rc && i < d->base.n_layers; i++) {
        bool slides = d->base.layer_kind[i] == SV_LAYER_SLIDING;
        if (slides && window == 0)
            rc = sv_fail(err, SV_EINVAL, -1,
                         "'layer_types'[%d] is sliding_attention but there is no positive "
                         "'sliding_window'",
                         i);
        d->causal[i] = forced ? flag : slides || head;
        n_sliding += slides;
    }
    d->base.sliding_window = n_sliding ? window : 0;
    return rc;
}

/* Values that must agree because the draft uses the target's embedding and head. */
static int check_shared(const struct sv_draft_config *d, const json_t *root, const json_t *dflash,
                        struct sv_err *err)
{
    int32_t draft_vocab = d->base.vocab_size, target_hidden = d->base.hidden_size;
    double multiplier = 1, scale = 1;
    const json_t *home = home_of(root, dflash, "target_hidden_size");
    int rc = sv_json_i32_opt(root, "draft_vocab_size", 1, INT32_MAX, &draft_vocab, err);
    if (!rc && home)
        rc = sv_json_i32(home, "target_hidden_size", 1, INT32_MAX, &target_hidden, err);
    if (!rc && (home = home_of(root, dflash, "output_multiplier")))
        rc = sv_json_num(home, "output_multiplier", -1e9, 1e9, &multiplier, err);
    if (!rc && (home = home_of(root, dflash, "logit_scale")))
        rc = sv_json_num(home, "logit_scale", -1e9, 1e9, &scale, err);
    if (rc)
        return rc;
    if (draft_vocab != d->base.vocab_size)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "a reduced draft vocabulary (draft_vocab_size %d of %d) is not supported",
                       draft_vocab, d->base.vocab_size);
    if (target_hidden != d->base.hidden_size)
        return sv_fail(
            err, SV_EUNSUPPORTED, -1,
            "target_hidden_size %d differs from hidden_size %d: the draft could not share "
            "the target's embedding",
            target_hidden, d->base.hidden_size);
    /* A v1 proposal is an argmax: a positive factor or a softcap does not change it, a negative one
     * would. */
    if (multiplier <= 0 || scale <= 0)
        return sv_fail(err, SV_EINVAL, -1,
                       "'output_multiplier' and 'logit_scale' must be positive");
    return SV_OK;
}

static int parse_draft(struct sv_draft_config *d, const json_t *root, int32_t n_target_layers,
                       struct sv_err *err)
{
    if (!json_is_object(root))
        return sv_fail(err, SV_EFORMAT, -1, "the file is not a JSON object");
    const json_t *dflash =
        sv_json_has(root, "dflash_config") ? json_object_get(root, "dflash_config") : NULL;
    if (dflash && !json_is_object(dflash))
        return sv_fail(err, SV_EFORMAT, -1, "field 'dflash_config' must be an object");
    int rc = check_architecture(root, dflash, err);
    if (!rc)
        rc = refuse_dialects(root, dflash, err);
    if (!rc)
        rc = sv_config_common(&d->base, root, sv_arch_dflash(), err);
    if (!rc)
        rc = parse_block(d, root, dflash, err);
    if (!rc)
        rc = parse_taps(d, root, dflash, n_target_layers, err);
    if (!rc)
        rc = parse_layers(d, root, dflash, err);
    return rc ? rc : check_shared(d, root, dflash, err);
}

int sv_draft_config_parse(struct sv_draft_config *cfg, const char *text, size_t n,
                          int32_t n_target_layers, struct sv_err *err)
{
    struct sv_err local;
    if (!err)
        err = &local;
    memset(cfg, 0, sizeof *cfg);
    json_t *root = sv_json_parse(text, n, err);
    if (!root)
        return err->code;
    int rc = parse_draft(cfg, root, n_target_layers, err);
    json_decref(root);
    return rc;
}

/* ---------------------------------------------------------------- files */

struct opening {
    struct sv_draft_config *cfg;
    int32_t n_target_layers;
};

static int parse_opened(void *user, const json_t *root, struct sv_err *err)
{
    const struct opening *o = user;
    return parse_draft(o->cfg, root, o->n_target_layers, err);
}

int sv_draft_config_load(struct sv_draft_config *cfg, const char *dir, int32_t n_target_layers,
                         struct sv_err *err)
{
    struct opening o = {.cfg = cfg, .n_target_layers = n_target_layers};
    memset(cfg, 0, sizeof *cfg);
    return sv_config_read(dir, parse_opened, &o, &cfg->base, err);
}

static bool gguf_is_draft(const char *path)
{
    struct sv_gguf_file f;
    struct sv_err err;
    if (sv_gguf_open(&f, path, &err)) /* opening it later reports the error */
        return false;
    const struct sv_gguf_family *family = sv_gguf_family(&f.g, &err);
    const bool draft = family && family->draft;
    sv_gguf_close(&f);
    return draft;
}

bool sv_dir_is_draft(const char *dir)
{
    struct sv_err err;
    char *path;
    json_t *root;
    if (sv_is_gguf(dir))
        return gguf_is_draft(dir);
    sv_dir_json(dir, "config.json", true, &path, &root,
                &err); /* opening it later reports the error */
    const char *name = NULL;
    bool draft = false;
    if (json_is_object(root) && sv_arch_string(root, &name, &err) == SV_OK)
        draft = sv_json_has(root, "dflash_config") ||
                (name && (strstr(name, "DFlash") || strstr(name, "Dflash")));
    const char *kind = json_string_value(json_object_get(root, "speculators_model_type"));
    if (kind && !strncmp(kind, "dflash", 6))
        draft = true;
    json_decref(root);
    sv_free(path);
    return draft;
}

/* ---------------------------------------------------------------- pairs */

static int check_pair_sizes(const struct sv_config *t, const struct sv_draft_config *d,
                            struct sv_err *err)
{
    const struct sv_config *b = &d->base;
    if (d->n_target_layers > 0 && d->n_target_layers != t->n_layers)
        return sv_fail(err, SV_EMISMATCH, -1,
                       "the draft was made for a target of %d layers, this target has %d",
                       d->n_target_layers, t->n_layers);
    if (b->hidden_size != t->hidden_size)
        return sv_fail(
            err, SV_EMISMATCH, -1,
            "hidden sizes differ: %d in the draft, %d in the target, whose embedding and "
            "head the draft uses",
            b->hidden_size, t->hidden_size);
    if (b->vocab_size != t->vocab_size)
        return sv_fail(err, SV_EMISMATCH, -1,
                       "vocabularies differ: %d tokens in the draft, %d in the target",
                       b->vocab_size, t->vocab_size);
    if (d->mask_id < 0 || d->mask_id >= t->vocab_size)
        return sv_fail(err, SV_EMISMATCH, -1,
                       "the draft's mask token %d is outside the target's vocabulary of %d",
                       d->mask_id, t->vocab_size);
    return SV_OK;
}

int sv_pair_check(const struct sv_config *target, const struct sv_draft_config *draft,
                  struct sv_err *err)
{
    const struct sv_config *b = &draft->base;
    if (sv_arch_is_draft(target->arch) || !sv_arch_is_draft(b->arch))
        return sv_fail(err, SV_EMISMATCH, -1, "a pair is a target model and a DFlash draft");
    if (b->n_layers > MAX_LAYERS)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%d draft layers; at most %d are supported",
                       b->n_layers, MAX_LAYERS);
    int rc = check_block(draft, err);
    if (!rc)
        rc = check_pair_sizes(target, draft, err);
    if (rc)
        return rc;
    if (draft->n_taps < 1 || draft->n_taps > SV_MAX_TAPS)
        return sv_fail(err, SV_EINVAL, -1, "the draft names no target layers to read");
    rc = check_taps(draft, target->n_layers, err);
    if (rc)
        return rc;
    if (b->n_heads < 1 || b->n_kv_heads < 1 || b->n_heads % b->n_kv_heads != 0)
        return sv_fail(err, SV_EINVAL, -1,
                       "the draft's %d heads are not a multiple of its %d KV heads", b->n_heads,
                       b->n_kv_heads);
    for (int32_t i = 0; i < b->n_layers; i++) {
        if (b->layer_kind[i] == SV_LAYER_SLIDING && b->sliding_window <= 0)
            return sv_fail(err, SV_EINVAL, -1, "draft layer %d slides but there is no window", i);
    }
    return SV_OK;
}
