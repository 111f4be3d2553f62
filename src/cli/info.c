/*
 * info.c - `salvo info DIR`: what a model directory holds, read without opening an engine.
 *
 * Called by main.c. Must not: need more memory than the headers of the files.
 */
#include "cli/cli.h"
#include "load/load.h"
#include "jinja/jinja.h"
#include "media/media.h"
#include "token/token.h"

#include <string.h>

static const char usage[] =
    "Usage: salvo info DIR\n"
    "\n"
    "Says what a target or draft directory holds: architecture, sizes, parameters and bytes\n"
    "by tensor group, rotary embedding, layer kinds, experts and their router, vision tower,\n"
    "vocabulary, tokenizer; of a draft its block, taps, mask and which layers are causal.";

static void line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(const char *name, const char *fmt, ...)
{
    va_list ap;

    printf("%-18s", name);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

/* ---------------------------------------------------------------- configuration */

static void show_rope(const struct sv_rope *r)
{
    static const char *const kind[] = {"default", "linear", "llama3", "yarn", "factors"};

    switch (r->kind) {
    case SV_ROPE_LLAMA3:
        line("rotary", "%s, theta %g, factor %g, low %g, high %g, original %d", kind[r->kind],
             r->theta, r->factor, r->low_freq_factor, r->high_freq_factor,
             r->original_max_position);
        break;
    case SV_ROPE_LINEAR:
    case SV_ROPE_YARN:
        line("rotary", "%s, theta %g, factor %g", kind[r->kind], r->theta, r->factor);
        break;
    default:
        line("rotary", "%s, theta %g", kind[r->kind], r->theta);
    }
}

/* "full" or "full x 12, sliding x 12 (window 1024)". */
static void show_layer_kinds(const struct sv_config *c)
{
    int32_t n_sliding = 0, n_gdn = 0;

    if (c->kv_lora_rank) {
        line("attention", "latent, %d numbers of a position%s", c->kv_lora_rank + c->rot_dim,
             c->q_lora_rank ? ", queries of a latent too" : "");
        return;
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        n_sliding += c->layer_kind[i] == SV_LAYER_SLIDING;
        n_gdn += c->layer_kind[i] == SV_LAYER_GDN;
    }
    if (n_gdn) {
        line("attention", "%d layers full, gated, %d of %d rotated", c->n_layers - n_gdn,
             c->rot_dim, c->head_dim);
        line("delta rule", "%d layers, %d value heads of %d, %d key heads of %d", n_gdn,
             c->gdn_v_heads, c->gdn_v_dim, c->gdn_k_heads, c->gdn_k_dim);
    } else if (n_sliding)
        line("attention", "%d layers full, %d layers sliding with window %d",
             c->n_layers - n_sliding, n_sliding, c->sliding_window);
    else
        line("attention", "all layers full");
}

static void show_experts(const struct sv_config *c)
{
    int32_t n = 0;

    for (int32_t i = 0; i < c->n_layers; i++)
        n += c->layer_moe[i];
    if (!n)
        return;
    line("experts", "%d in %d layers, %d for each token, MLP %d%s", c->n_experts, n, c->n_chosen,
         c->moe_intermediate_size,
         c->mxfp4_experts ? "; in MXFP4, kept so on the CPU and on GPUs in bf16 mode, else as bf16"
                          : "");
    if (c->shared_intermediate_size)
        line("shared expert", "MLP %d%s", c->shared_intermediate_size,
             c->router_sigmoid ? "" : ", times the sigmoid of a gate");
    if (!c->router_sigmoid)
        line("router", "softmax over %s", c->norm_topk ? "the chosen experts" : "all experts");
    else if (c->topk_group < c->n_group)
        line("router", "sigmoid, a bias for the choice, %d of %d groups first; weights%s times %g",
             c->topk_group, c->n_group, c->norm_topk ? " add up to 1," : "",
             (double)c->routed_scale);
    else
        line("router", "sigmoid, a bias for the choice; weights%s times %g",
             c->norm_topk ? " add up to 1," : "", (double)c->routed_scale);
}

static void show_vision(const struct sv_config *c)
{
    const struct sv_vision_config *v = &c->vision;

    if (v->depth)
        line("vision tower", "%d blocks of %d, %d heads, MLP %d, patches of %d, %d x %d for a row",
             v->depth, v->hidden_size, v->n_heads, v->intermediate_size, v->patch, v->merge,
             v->merge);
    if (c->media_token)
        line("vision tower", "not read; no prompt may have token %d", c->media_token);
}

/* Why images are refused although the configuration has a vision tower, in the engine's words. */
static void show_images(const char *dir, const struct sv_config *c, const struct sv_ckpt *files)
{
    struct sv_vision_prep prep;
    struct sv_err err = {0};

    if (!c->vision.depth)
        return;
    const char *why = !sv_vision_is_in(files)     ? "the files have no tensors of the vision tower"
                      : c->vision.image_token < 0 ? "'image_token_id' is outside the vocabulary"
                      : !c->mrope_section[0]      ? "the configuration has no 'mrope_section'"
                      : sv_vision_prep_load(dir, &prep, &err) ? err.msg
                                                              : NULL;
    putchar('\n');
    line("images", "%s%s", why ? "none: " : "yes", why ? why : "");
}

static void show_config(const struct sv_config *c)
{
    line("architecture", "%s", sv_arch_name(c->arch));
    line("layers", "%d", c->n_layers);
    line("hidden size", "%d, MLP %d", c->hidden_size, c->intermediate_size);
    if (c->kv_lora_rank)
        line("heads", "%d of %d, values of %d%s", c->n_heads, c->head_dim, c->v_dim,
             c->attention_bias ? ", bias" : "");
    else
        line("heads", "%d of %d, %d KV heads%s%s", c->n_heads, c->head_dim, c->n_kv_heads,
             c->qk_norm ? ", q/k norm" : "", c->attention_bias ? ", bias" : "");
    show_experts(c);
    show_layer_kinds(c);
    show_vision(c);
    show_rope(&c->rope);
    line("positions", "%d", c->max_position);
    line("norm epsilon", "%g", (double)c->rms_eps);
}

static void show_vocabulary(const struct sv_config *c)
{
    struct sv_buf b;

    line("vocabulary", "%d, %s", c->vocab_size,
         c->tie_embeddings ? "head tied to the embedding" : "separate head");
    sv_buf_init(&b);
    for (int32_t i = 0; i < c->n_eos; i++)
        sv_buf_printf(&b, "%s%d", i ? ", " : "", c->eos_ids[i]);
    line("end tokens", "%s", c->n_eos ? b.data : "none");
    if (c->bos_id >= 0)
        line("begin token", "%d", c->bos_id);
    sv_buf_fini(&b);
}

static void show_draft(const struct sv_draft_config *d)
{
    struct sv_buf b;

    line("block", "%d tokens, the anchor included", d->block_size);
    line("mask token", "%d", d->mask_id);
    sv_buf_init(&b);
    for (int32_t i = 0; i < d->n_taps; i++)
        sv_buf_printf(&b, "%s%d", i ? ", " : "", d->taps[i]);
    line("taps", "after target layers %s", b.data ? b.data : "");
    if (d->n_target_layers)
        line("target", "of %d layers", d->n_target_layers);
    sv_buf_clear(&b);
    for (int32_t i = 0; i < d->base.n_layers; i++)
        sv_buf_printf(&b, "%s%s", i ? ", " : "", d->causal[i] ? "causal" : "block");
    line("mask per layer", "%s", b.data ? b.data : "");
    sv_buf_fini(&b);
}

/* ---------------------------------------------------------------- tensors */

static const char *const groups[] = {"embedding", "attention", "MLP",  "norms",
                                     "context",   "head",      "other"};
enum { N_GROUPS = sizeof groups / sizeof groups[0] };

static int group_of(const char *name)
{
    if (strstr(name, "embed_tokens"))
        return 0;
    if (strstr(name, "norm"))
        return 3;
    if (strstr(name, "self_attn"))
        return 1;
    if (strstr(name, "mlp"))
        return 2;
    if (strncmp(name, "fc.", 3) == 0)
        return 4;
    if (strstr(name, "lm_head"))
        return 5;
    return 6;
}

static void add_word(char *text, size_t size, const char *word)
{
    const size_t n = strlen(text);
    snprintf(text + n, size - n, "%s%s", n ? ", " : "", word);
}

static int show_tensors(const struct sv_ckpt *c)
{
    struct {
        int64_t n, params, bytes;
        bool seen[SV_DTYPES], coded[SV_CODES]; /* by dtype, by code */
    } sum[N_GROUPS] = {{0}};
    struct sv_cli_table t;
    struct sv_buf b;
    char n[24];
    int64_t codes = 0, values = 0;
    bool failed;

    for (int32_t i = 0; i < c->n_tensors; i++) {
        const struct sv_host_tensor *h = &c->tensors[i];
        codes += h->quant.code && !h->quant.g_idx;
        values += h->quant.code && h->quant.g_idx;
        int g = group_of(h->name);
        sum[g].n++;
        sum[g].params += h->n_elements;
        sum[g].bytes += (int64_t)h->n_bytes;
        if (h->quant.code)
            sum[g].coded[h->quant.code] = true;
        else
            sum[g].seen[h->dtype] = true;
    }
    sv_cli_table_init(&t);
    sv_cli_table_column(&t, "tensors", false);
    sv_cli_table_column(&t, "n", true);
    sv_cli_table_column(&t, "parameters", true);
    sv_cli_table_column(&t, "bytes", true);
    sv_cli_table_column(&t, "stored as", false);
    for (int g = 0; g < N_GROUPS; g++) {
        char text[48] = "";
        if (!sum[g].n)
            continue;
        for (int d = 0; d < SV_DTYPES; d++)
            if (sum[g].seen[d])
                add_word(text, sizeof text, sv_dtype_name((enum sv_dtype)d));
        for (int k = 0; k < SV_CODES; k++)
            if (sum[g].coded[k])
                add_word(text, sizeof text, sv_quant_name((enum sv_quant_code)k));
        sv_cli_table_add(&t, "%s", groups[g]);
        sv_cli_table_add(&t, "%lld", (long long)sum[g].n);
        sv_cli_table_add(&t, "%lld", (long long)sum[g].params);
        sv_cli_table_add(&t, "%s", sv_cli_bytes(sum[g].bytes, n));
        sv_cli_table_add(&t, "%s", text);
    }
    sv_cli_table_add(&t, "all");
    sv_cli_table_add(&t, "%d", c->n_tensors);
    sv_cli_table_add(&t, "%lld", (long long)c->n_params);
    sv_cli_table_add(&t, "%s", sv_cli_bytes(c->n_bytes, n));
    sv_cli_table_add(&t, "in %d file%s", c->n_maps, c->n_maps == 1 ? "" : "s");
    sv_buf_init(&b);
    sv_cli_table_write(&t, "md", &b);
    failed = b.failed;
    if (!failed)
        printf("\n%s", b.data);
    if (!failed && codes + values) { /* docs/formats.md */
        putchar('\n');
        line("kept", "%lld quantized matrices as codes on the CPU, %lld in act-order as values",
             (long long)codes, (long long)values);
    }
    sv_buf_fini(&b);
    sv_cli_table_fini(&t);
    return failed ? sv_cli_fail("out of memory") : SV_CLI_OK;
}

/* ---------------------------------------------------------------- tokenizer */

static int show_tokenizer(const char *dir, const struct sv_config *cfg)
{
    struct sv_tokenizer *tok;
    struct sv_err err = {0};
    struct sv_chat_template *chat;
    int32_t n, n_special = 0;
    int rc;

    if (!sv_model_has_tokenizer(dir)) {
        line("tokenizer", "none (token ids only)");
        return SV_CLI_OK;
    }
    if (sv_model_tokenizer(&tok, dir, &err))
        return sv_cli_fail("%s", err.msg);
    n = sv_tokenizer_n_tokens(tok);
    for (int32_t i = 0; i < n; i++)
        n_special += sv_tokenizer_is_special(tok, i);
    line("tokenizer", "byte-level BPE, %d tokens, %d of them special%s", n, n_special,
         n > cfg->vocab_size ? "; MORE THAN THE MODEL'S VOCABULARY" : "");
    for (int32_t i = 0; i < cfg->n_eos; i++) {
        size_t len;
        const char *bytes = sv_tokenizer_bytes(tok, cfg->eos_ids[i], &len);
        line("end token", "%d = %.*s", cfg->eos_ids[i], bytes ? (int)len : 1, bytes ? bytes : "?");
    }
    line("chat form", "%s",
         sv_tokenizer_find(tok, "<|im_start|>") >= 0 && sv_tokenizer_find(tok, "<|im_end|>") >= 0
             ? "<|im_start|> ... <|im_end|>"
             : "not known");
    sv_tokenizer_close(tok);
    rc = sv_model_chat_template(&chat, dir, NULL, 0, &err);
    if (rc && rc != SV_EUNSUPPORTED)
        return sv_cli_fail("%s", err.msg);
    line("chat template", "%s", rc ? "none" : "yes");
    if (!rc)
        sv_chat_template_close(chat);
    return SV_CLI_OK;
}

/* ---------------------------------------------------------------- check */

struct files {
    const struct sv_ckpt *c;
    struct sv_err *err;
};

/* Scales of MXFP4 experts, which are otherwise read when a model is opened. */
static int check_scales(void *user, const struct sv_tensor_spec *spec)
{
    const struct files *f = user;
    struct sv_packed p;
    return spec->pack == SV_PACK_MXFP4 ? sv_packed_find(&p, f->c, spec, f->err) : SV_OK;
}

static int check(const struct sv_ckpt *c, struct sv_draft_config *d, bool draft, struct sv_err *err)
{
    struct files f = {c, err};
    if (draft)
        return sv_ckpt_check_draft(c, d, err);
    int rc = sv_ckpt_check_target(c, &d->base, err);
    return rc ? rc : sv_config_each_tensor(&d->base, 0, check_scales, &f);
}

static int info(const char *dir)
{
    struct sv_draft_config d = {0};
    struct sv_ckpt c;
    struct sv_err err = {0};
    bool draft = sv_dir_is_draft(dir);
    int rc = draft ? sv_draft_config_load(&d, dir, 0, &err) : sv_config_load(&d.base, dir, &err);
    int code = SV_CLI_OK;

    if (rc)
        return sv_cli_fail("%s", err.msg);
    line("kind", "%s", draft ? "DFlash draft" : "target");
    show_config(&d.base);
    line("stored as", "%s", sv_dtype_name(d.base.stored_dtype));
    if (draft) {
        show_draft(&d);
    } else {
        show_vocabulary(&d.base);
        code = show_tokenizer(dir, &d.base);
    }
    line("parameters", "%lld by the configuration",
         (long long)(draft ? sv_draft_config_n_params(&d) : sv_config_n_params(&d.base)));
    fflush(stdout);
    if (sv_ckpt_open(&c, dir, &err))
        return sv_cli_fail("%s", err.msg);
    if (show_tensors(&c) != SV_CLI_OK)
        code = SV_CLI_FAIL;
    if (!draft)
        show_images(dir, &d.base, &c);
    if (check(&c, &d, draft, &err))
        code = sv_cli_fail("%s: %s", dir, err.msg);
    sv_ckpt_close(&c);
    return code;
}

int sv_cli_info(int argc, char **argv)
{
    struct sv_cli_opts opts = {.n = 0};
    struct sv_err err = {0};
    char dir[SV_CLI_MAX_DIR];
    int n, code = sv_cli_parse(&opts, "info", usage, argc, argv, 1, &n);

    if (code >= 0)
        return code;
    if (n != 1 || !*argv[1]) /* "": a variable that is not set */
        return sv_cli_usage("info", "which directory?");
    if (sv_model_dir(argv[1], dir, sizeof dir, &err))
        return sv_cli_fail("%s", err.msg);
    return info(dir);
}
