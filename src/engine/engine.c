/*
 * engine.c - opening an engine from a pair of directories, submitting, delivering, closing.
 *
 * Called by api.c and by tests. Everything the step will need is sized and taken here. Must not run
 * kernels other than uploads.
 */
#include "engine/engine.h"

#include "backend/quant.h"

#include <string.h>

/* Prompt rows of a step: a GPU needs more of them before it works at its full rate. */
enum { DEFAULT_CHUNK = 512, GPU_CHUNK = 2048 };
/* Rows of logits that exist at a time: on a GPU every further chunk reads the whole head again. */
enum { LOGIT_CHUNK = 64, GPU_LOGIT_CHUNK = 128 };
enum { DEFAULT_CONTEXT = 8192, DEFAULT_PAGE = 16 };
enum { USUAL_ANSWER = 128 }; /* tokens, before any was seen */

/* Positions beyond the context that rows may have: the masks of a last block, and one block more
 * when a step is planned before the host knows that the one in flight was the last. */
enum { SLACK = 2 * SV_MAX_BLOCK };

/* Options with their defaults resolved. */
struct resolved {
    int32_t n_slots, context, page_size, chunk, replicas;
    int64_t cache_bytes;
    bool keep_prefixes;
    bool kv_f8[SV_CACHE_OWNERS];
    double share;         /* of the device's memory; 0 = as usual */
    int64_t target_bytes; /* weights on the device */
    bool has_text;        /* the target comes with a tokenizer */
    const struct sv_engine_tuning *tuning;
};

/* Time by stage of opening. */
struct stages {
    int64_t begin_us, last_us;
    char text[256];
};

static void stage(struct stages *t, const char *name, double gbytes)
{
    int64_t now = sv_clock_us();
    double s = (double)(now - t->last_us) / 1e6;
    size_t n = strlen(t->text);
    t->last_us = now;
    if (s < 0.005)
        return;
    snprintf(t->text + n, sizeof t->text - n, "%s %s %.2f", n ? "," : "", name, s);
    n = strlen(t->text);
    if (gbytes > 0)
        snprintf(t->text + n, sizeof t->text - n, " (%.2f GB at %.1f GB/s)", gbytes, gbytes / s);
}

static int in_range(int64_t v, int64_t lo, int64_t hi, const char *name, struct sv_err *err)
{
    return v >= lo && v <= hi ? SV_OK
                              : sv_fail(err, SV_EINVAL, -1, "%s must be in [%lld, %lld], not %lld",
                                        name, (long long)lo, (long long)hi, (long long)v);
}

static int resolve(const struct sv_engine_options *o, struct resolved *r, struct sv_err *err)
{
    *r = (struct resolved){.n_slots = o->max_sequences ? o->max_sequences : 1,
                           .context = o->context,
                           .page_size = o->page_size ? o->page_size : DEFAULT_PAGE,
                           .share = o->gpu_memory,
                           .replicas = o->replicas > 1 ? o->replicas : 1,
                           .keep_prefixes = !o->no_prefix_cache,
                           .kv_f8 = {o->kv_dtype == SV_KV_FP8, o->draft_kv_dtype == SV_KV_FP8},
                           .chunk = o->prefill_chunk};
    int rc = in_range(r->n_slots, 1, 4096, "max_sequences", err);
    if (!rc)
        rc = in_range(r->context, 0, 1 << 24, "context", err);
    if (!rc)
        rc = in_range(r->page_size, 1, 1024, "page_size", err);
    if (!rc)
        rc = in_range(r->chunk, 0, 1 << 16, "prefill_chunk", err);
    if (!rc)
        rc = in_range(o->n_threads, 0, 1024, "n_threads", err);
    if (!rc)
        rc = in_range(o->width, 0, SV_MAX_BLOCK, "width", err);
    if (!rc)
        rc = in_range(o->cache_mib, 0, 1 << 24, "cache_mib", err);
    if (!rc)
        rc = in_range(o->device_timeout, -1, 86400, "device_timeout", err);
    if (!rc)
        rc = in_range(o->tp, 0, SV_MAX_RANKS, "tp", err);
    if (!rc)
        rc = in_range(o->replicas, 0, SV_MAX_RANKS, "replicas", err);
    if (!rc)
        rc = in_range(o->replica, 0, r->replicas - 1, "replica", err);
    if (!rc && o->ep && o->tp < 2)
        rc = sv_fail(err, SV_EINVAL, -1, "ep divides experts among ranks: it needs tp");
    if (!rc && o->dp_attention && o->tp < 2)
        rc = sv_fail(err, SV_EINVAL, -1, "dp_attention divides sequences among ranks: it needs tp");
    if (!rc && o->dp_attention && o->record_plan)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "record_plan with dp_attention");
    if (!rc && o->tp > 1 && o->copy_weights)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "copy_weights with tp: each of the ranks would copy all files");
    if (!rc)
        r->cache_bytes = (o->cache_mib << 20) / (o->tp > 1 ? o->tp : 1);
    if (!rc && !o->target_dir)
        rc = sv_fail(err, SV_EINVAL, -1, "target_dir is needed");
    if (!rc && !(o->gpu_memory >= 0 && o->gpu_memory <= 1))
        rc = sv_fail(err, SV_EINVAL, -1, "gpu_memory must be in [0, 1], not %g", o->gpu_memory);
    return rc;
}

/* Whether this is rank 0, also of one. */
static bool is_first(const struct sv_engine *e)
{
    return !e->ranks || e->ranks->world.ranks.rank == 0;
}

/* Ranks with sequences of their own. */
static int32_t n_parts(const struct sv_engine *e)
{
    const struct sv_ranks r = sv_dev_ranks(e->dev);
    return r.dp_attention ? r.n : 1;
}

void sv_engine_progress(struct sv_engine *e, enum sv_open_stage stage, double share)
{
    if (e->on_progress)
        e->on_progress(e->progress_user, stage, share < 0 ? 0 : share > 1 ? 1 : share);
}

static void on_upload(void *user, size_t n_bytes)
{
    struct sv_engine *e = user;
    e->n_loaded += (int64_t)n_bytes;
    if (e->n_to_load > 0)
        sv_engine_progress(e, SV_OPEN_WEIGHTS, (double)e->n_loaded / (double)e->n_to_load);
}

static int open_device(struct sv_engine *e, const struct sv_engine_options *o,
                       const struct sv_engine_tuning *tuning, const struct sv_config *cfg,
                       struct sv_err *err)
{
    struct sv_dev_opts d = {.backend = o->device,
                            .tuning = o->tuning,
                            .ordinal = o->gpu,
                            .n_taken = o->replica * (o->tp > 1 ? o->tp : 1),
                            .no_graphs = o->no_graphs,
                            .timeout_s = o->device_timeout,
                            .n_threads = o->n_threads,
                            .ranks = {.n = 1}};
    if (e->ranks) {
        d.ranks = e->ranks->world.ranks;
        /* The device adds the rank; each host counts its own GPUs. */
        d.ordinal += e->ranks->world.here.rank - d.ranks.rank;
        d.ordinal -= tuning->one_gpu ? d.ranks.rank : 0;
        d.ranks.by_expert = o->ep;
        d.ranks.dp_attention = o->dp_attention;
        d.n_threads = sv_ranks_threads(o, d.ranks, e->ranks->world.here);
    }
    const bool drafts = o->draft_dir && o->width != 1;
    d.usual_rows = (o->max_sequences ? o->max_sequences : 1) * (!drafts    ? 1
                                                                : o->width ? o->width
                                                                           : SV_MAX_BLOCK);
    d.weight_bytes = sv_config_n_params(cfg) * (int64_t)sv_dtype_bytes(cfg->stored_dtype);
    bool f32 =
        o->dtype == SV_TYPE_F32 || (o->dtype == SV_TYPE_AUTO && cfg->stored_dtype != SV_BF16);
    d.compute = f32 ? SV_F32 : SV_BF16;
    int rc = sv_dev_open(&e->dev, &d, err);
    if (!rc && e->ranks && e->ranks->world.hosts && !sv_dev_backend(e->dev)->joins_hosts)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "the ranks of this replica are on several hosts, and %s joins those of one: "
                     "give each host whole replicas, or --device cpu",
                     sv_dev_backend(e->dev)->name);
    if (!rc && d.tuning.draft_quant == SV_TOGGLE_ON && !sv_dev_quantizes(e->dev))
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "draft_quant: %s has no products of a draft's weights in 8 bits",
                     sv_dev_describe(e->dev));
    return rc;
}

/* Refuses what DP attention does not support. */
static int check_dp_attention(const struct sv_engine_options *o, const struct sv_config *cfg,
                              struct sv_err *err)
{
    if (!o->dp_attention)
        return SV_OK;
    for (int32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layer_kind[i] == SV_LAYER_GDN)
            return sv_fail(
                err, SV_EUNSUPPORTED, -1,
                "%s: dp_attention: layer %d has a gated delta rule, whose states are not "
                "kept by sequence on one rank",
                o->target_dir, i);
    if (cfg->vision.depth)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: dp_attention: the model has a vision tower",
                       o->target_dir);
    return SV_OK;
}

static int open_models(struct sv_engine *e, const struct sv_engine_options *o, struct resolved *r,
                       struct stages *t, struct sv_err *err)
{
    struct sv_config cfg;
    int rc = sv_config_load(&cfg, o->target_dir, err);
    if (rc)
        return rc;
    if (!r->context)
        r->context = cfg.max_position < DEFAULT_CONTEXT ? cfg.max_position : DEFAULT_CONTEXT;
    if (r->context > cfg.max_position)
        return sv_fail(err, SV_EINVAL, -1, "context %d is above the model's %d positions",
                       r->context, cfg.max_position);
    if (o->ep && !cfg.n_experts)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: ep: the model has no experts", o->target_dir);
    e->context = r->context;
    stage(t, "configuration", 0);
    rc = open_device(e, o, r->tuning, &cfg, err);
    stage(t, "device", 0);
    if (!rc)
        rc = check_dp_attention(o, &cfg, err);
    const bool made = r->tuning->random_weights;
    const struct sv_quant q = {.code = SV_CODE_MXFP4};
    const bool expanded =
        !rc && cfg.mxfp4_experts && !sv_dev_takes_codes(e->dev, &q, SV_ROLE_EXPERT_DOWN);
    const int64_t least = sv_memory_least_weights(&cfg, o->target_dir, made, expanded);
    if (!rc)
        rc = sv_memory_check_weights(e->dev, o->target_dir, least, err);
    if (!rc && e->on_progress) {
        e->n_to_load = (expanded ? least : sv_ckpt_dir_bytes(o->target_dir)) +
                       (o->draft_dir ? sv_ckpt_dir_bytes(o->draft_dir) : 0);
        e->n_to_load /= sv_dev_ranks(e->dev).n;
        sv_dev_on_upload(e->dev, on_upload, e);
    }
    const int32_t n_positions = r->context + SLACK;
    if (!rc)
        rc = (made ? sv_model_open_random : sv_model_open)(&e->model, e->dev, o->target_dir,
                                                           n_positions, err);
    r->target_bytes = rc ? 0 : sv_dev_held(e->dev, SV_MEM_WEIGHTS);
    stage(t, "target", made ? 0 : (double)e->model.weights.n_bytes / 1e9);
    if (!rc && e->drafter == &e->none && o->draft_dir)
        rc = (made ? sv_dflash_open_random : sv_dflash_open)(&e->drafter, &e->model, o->draft_dir,
                                                             n_positions, err);
    if (!rc && o->tuning.activations && !sv_dev_rounds(e->dev))
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "activations: no weight of %s is kept in a format that is multiplied with "
                     "activations in 8 bits",
                     o->target_dir);
    if (rc)
        return rc;
    stage(t, "draft", made ? 0 : (double)e->drafter->weight_bytes / 1e9);
    sv_dev_on_upload(e->dev, NULL, NULL);
    int32_t block = e->drafter->block_size;
    e->width = o->width ? o->width : block;
    if (e->width > block && is_first(e))
        return sv_fail(err, SV_EINVAL, -1, "width %d is above the drafter's block of %d", e->width,
                       block);
    rc = sv_ranks_broadcast(e, &e->width, sizeof e->width, err); /* some may lack the drafter */
    if (rc)
        return rc;
    bool graphs = sv_dev_backend(e->dev)->has_graphs;
    if (!r->chunk)
        r->chunk = graphs ? GPU_CHUNK : DEFAULT_CHUNK;
    e->pads = (graphs && !o->no_graphs) || r->tuning->pad;
    e->depth = (graphs || r->tuning->run_ahead) && !e->drafter->on_host;
    return sv_ranks_broadcast(e, &e->depth, sizeof e->depth, err);
}

/* From here on the checkpoints' files may change: a device with memory of its own has copied what
 * it needs, and the CPU, which uses weights in place, gets copies with --copy-weights. */
static int detach_files(struct sv_engine *e, bool copy, struct sv_err *err)
{
    int64_t n_free, n_total;

    sv_dev_memory(e->dev, &n_free, &n_total);
    if (n_total > 0)
        copy = false;
    else if (!copy)
        return SV_OK;
    int rc = sv_ckpt_detach(&e->model.ckpt, copy, err);
    return rc ? rc : sv_drafter_detach(e->drafter, copy, err);
}

static int open_text(struct sv_engine *e, const char *dir, struct sv_err *err)
{
    if (!sv_model_has_tokenizer(dir))
        return SV_OK; /* token ids only */
    int rc = sv_model_tokenizer(&e->tok, dir, err);
    if (rc)
        return rc;
    e->scratch = sv_enc_scratch_new();
    if (!e->scratch)
        return sv_fail(err, SV_ENOMEM, -1, "tokenizer scratch");
    for (int32_t id = 0; id < sv_tokenizer_n_tokens(e->tok); id++) {
        size_t n = 0;
        sv_tokenizer_bytes(e->tok, id, &n);
        e->max_token_bytes = n > e->max_token_bytes ? n : e->max_token_bytes;
    }
    e->max_token_bytes += 4; /* a held-back partial code point, replaced by U+FFFD */
    return SV_OK;
}

/* The tokenizer is read by a thread of its own while the weights are loaded. */
struct text_job {
    struct sv_engine *e;
    const char *dir;
    struct sv_thread *thread;
    struct sv_err err;
    int rc;
};

static void *read_text(void *arg)
{
    struct text_job *j = arg;
    j->rc = open_text(j->e, j->dir, &j->err);
    return NULL;
}

static int join_text(struct text_job *j, int rc, struct sv_err *err)
{
    if (j->thread)
        sv_thread_join(j->thread);
    if (rc || !j->rc)
        return rc;
    if (err)
        *err = j->err;
    return j->rc;
}

/* After the buffers: the pools get what is left, or what was requested. */
static int open_cache(struct sv_engine *e, const struct resolved *r, struct sv_err *err)
{
    struct sv_cache_group_desc desc[SV_MAX_GROUPS] = {{0}};
    int32_t n = sv_stack_cache_groups(&e->model.stack, SV_CACHE_TARGET, e->width, 0, desc);
    n += sv_drafter_cache_groups(e->drafter, n, desc + n);
    for (int32_t i = 0; i < n; i++) {
        desc[i].dtype = r->kv_f8[desc[i].owner] && desc[i].kind != SV_CACHE_STATE ? SV_F8
                        : sv_dev_compute_dtype(e->dev) == SV_BF16                 ? SV_BF16
                                                                                  : SV_F32;
        desc[i].page_size = r->page_size;
        desc[i].n_parts = n_parts(e);
        desc[i].own_part = n_parts(e) > 1 && desc[i].owner == SV_CACHE_TARGET;
    }
    struct sv_memory_ask ask = {.share = r->share,
                                .cache_bytes = r->cache_bytes,
                                .page_size = r->page_size,
                                .n_slots = r->n_slots,
                                .context = r->context,
                                .n_positions = r->context + (1 + e->depth) * e->width,
                                .step_rows = (1 + e->depth) * e->batch.max_rows,
                                .most_pages = r->tuning->cache_pages,
                                .n_parts = n_parts(e),
                                .keep_prefixes = r->keep_prefixes,
                                .group = desc,
                                .n_groups = n};
    sv_memory_ask_device(&ask, e, e->batch.max_rows);
    ask.ram_bytes /= r->replicas;
    int rc = sv_memory_pages(&ask, err);
    int32_t n_pages[SV_MAX_GROUPS];
    for (int32_t i = 0; i < n; i++)
        n_pages[i] = r->tuning->replay ? r->tuning->replay->head.n_pages[i] : desc[i].n_pages;
    if (!rc)
        rc = sv_ranks_least(e, n_pages, n, err);
    for (int32_t i = 0; i < n; i++)
        desc[i].n_pages = n_pages[i];
    if (!rc)
        rc = sv_cache_open(&e->cache, e->dev, desc, n, r->n_slots, ask.n_positions, err);
    if (!rc && r->keep_prefixes)
        rc = sv_cache_keep_prefixes(&e->cache, err);
    if (!rc)
        rc = sv_drafter_bind(e->drafter, &e->cache, e->batch.max_rows, err);
    if (!rc)
        sv_memory_log(e, r->target_bytes);
    return rc;
}

static int open_buffers(struct sv_engine *e, const struct resolved *r, struct sv_err *err)
{
    const struct sv_config *cfg = &e->model.cfg;
    int32_t max_logits = r->n_slots * e->width;
    int32_t max_rows = r->chunk + max_logits;
    int32_t logit_chunk = sv_dev_backend(e->dev)->has_graphs ? GPU_LOGIT_CHUNK : LOGIT_CHUNK;
    logit_chunk = max_rows < logit_chunk ? max_rows : logit_chunk;
    struct sv_needs needs;
    sv_needs_init(&needs, e->dev, max_rows);
    needs.lim.max_segs = r->n_slots;
    needs.lim.max_logit_rows = max_rows;
    needs.lim.max_positions = r->context + SLACK;
    sv_model_needs(&e->model, &needs);
    sv_drafter_needs(e->drafter, &needs);

    size_t act = sv_dtype_bytes(sv_dev_act_dtype(e->dev));
    size_t tap_row = (size_t)e->drafter->n_taps * (size_t)e->drafter->hidden;
    size_t out_bytes = (size_t)max_logits * (size_t)cfg->hidden_size * act;
    size_t slots = (size_t)r->n_slots;
    const struct {
        void **p;
        size_t n_bytes;
    } own[] = {
        {&e->taps, (size_t)max_rows * tap_row * act},
        {&e->out, (size_t)max_rows * (size_t)cfg->hidden_size * act},
        {&e->draft_out, e->width > 1 ? out_bytes : 0},
        {(void **)&e->slot_len, slots * sizeof(int32_t)},
        {(void **)&e->slot_anchor, slots * sizeof(int32_t)},
        {(void **)&e->accept_len, r->tuning->simulates ? slots * sizeof(int32_t) : 0},
        {(void **)&e->slot_sampling, slots * sizeof(struct sv_sampling)},
    };
    int rc = sv_dev_reserve(e->dev, &needs.lim, err);
    if (!rc)
        sv_model_reads(&e->model, &e->target_reads);
    if (!rc)
        sv_drafter_reads(e->drafter, &e->draft_reads);
    if (!rc)
        rc = sv_acts_open(&e->acts, e->dev, &needs, err);
    for (size_t i = 0; i < sizeof own / sizeof own[0] && !rc; i++)
        if (own[i].n_bytes)
            rc = sv_dev_alloc(e->dev, own[i].p, own[i].n_bytes, err);
    if (!rc)
        rc = sv_logits_open(&e->logits, e->dev, r->n_slots, r->context + SLACK, cfg->vocab_size,
                            logit_chunk, max_rows, err);
    if (!rc && r->has_text)
        rc = sv_token_mask_open(&e->token_masks, e->dev, cfg->vocab_size, max_logits, err);
    if (!rc)
        rc = sv_batch_open(&e->batch, e->dev, max_rows, r->n_slots, max_logits, !e->model.no_tower,
                           n_parts(e), err);
    if (!rc && e->ranks) /* later is too late for the others */
        rc = sv_token_logprobs_open(e, err);
    return rc;
}

void sv_engine_set_drafter(struct sv_engine *e, struct sv_drafter *d)
{
    e->drafter = d ? d : &e->none;
    e->sched.block = e->drafter->on_host ? 1 : e->drafter->block_size;
}

static int open_sched(struct sv_engine *e, const struct resolved *r, struct sv_err *err)
{
    size_t n = (size_t)r->n_slots;
    e->sched = (struct sv_sched){.n_slots = r->n_slots, .prefill_rows = r->chunk};
    sv_engine_set_drafter(e, e->drafter);
    e->sched.slot = sv_arena_alloc(&e->arena, n * sizeof *e->sched.slot);
    e->plan.seg = sv_arena_alloc(&e->arena, n * sizeof *e->plan.seg);
    for (int i = 0; i < 2; i++)
        e->flight[i].seg = sv_arena_alloc(&e->arena, n * sizeof *e->plan.seg);
    e->sched.new_slot = sv_arena_alloc(&e->arena, n * sizeof *e->sched.new_slot);
    return e->sched.slot && e->plan.seg && e->flight[0].seg && e->flight[1].seg && e->sched.new_slot
               ? SV_OK
               : sv_fail(err, SV_ENOMEM, -1, "scheduler arrays");
}

static int run_padding(struct sv_engine *e, struct sv_counts launch, int32_t most, bool sampled,
                       struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 2 && !rc; i++) { /* the second time is captured */
        e->plan = (struct sv_plan){.seg = e->plan.seg,
                                   .given = true,
                                   .launch = launch,
                                   .most = most,
                                   .sampled = sampled,
                                   .confidence = launch.n_draft_rows && e->prune.confidence};
        rc = sv_engine_step(e, err);
    }
    return rc;
}

/* Runs every graph of moderate size on padding alone, so that no request waits for a capture. A
 * backend without graphs (tests with sv_engine_tuning.pad) runs the small sizes only. */
static int warm_up(struct sv_engine *e, struct sv_err *err)
{
    enum { MOST = 256, MOST_EAGER = 16 };
    const int32_t n_slots = e->sched.n_slots, width = e->width,
                  limit = sv_dev_backend(e->dev)->has_graphs ? MOST : MOST_EAGER;
    const bool drafts = e->sched.block > 1 && width > 1;
    const int n_kinds = e->cache.has_state && width > 1 ? 2 : 1;
    int32_t most = n_slots * width, rc = SV_OK, last = 0;
    most = most < limit ? most : limit;
    for (int32_t n = 1; e->pads && n <= most && !rc; n++) {
        int32_t rows = sv_batch_bucket(n, n_slots * width);
        if (rows == last)
            continue;
        last = rows;
        sv_engine_progress(e, SV_OPEN_GRAPHS, (double)n / (drafts ? 2 * most : most));
        for (int kind = 0; kind < n_kinds && !rc; kind++) /* single rows, verify blocks */
            for (int sampled = 1; sampled >= 0 && !rc; sampled--)
                rc = run_padding(e, (struct sv_counts){.n_rows = rows, .n_logits = rows},
                                 e->cache.has_state * (kind ? width : 1), sampled, err);
    }
    for (int32_t n = 1; e->pads && drafts && n <= n_slots && n * width <= most && !rc; n++) {
        sv_engine_progress(e, SV_OPEN_GRAPHS, 0.5 + 0.5 * n * width / most);
        rc = run_padding(e,
                         (struct sv_counts){.n_rows = 1,
                                            .n_logits = 1,
                                            .n_draft_rows = n * width,
                                            .n_draft_out = n * (width - 1)},
                         e->cache.has_state, false, err);
    }
    e->plan = (struct sv_plan){.seg = e->plan.seg};
    memset(&e->stats, 0, sizeof e->stats);
    return rc;
}

/* Runs the deferred updates of a sequence that is about to be preempted: its full pages stay in the
 * prefix cache, together with the draft's K/V, and later its rows would have no pages. */
static void flush_deferred(void *e)
{
    sv_deferred_flush(e);
}

/* A context too short for a block has no width policy. */
static bool wants_policy(const struct sv_engine *e, const struct sv_engine_options *o)
{
    return o->auto_width && e->width >= 2 && e->context >= 2 * e->width;
}

/* Under the policy every drafting pass returns the draft confidence, where the device can. */
static int open_prune(struct sv_engine *e, const struct sv_engine_options *o, struct sv_err *err)
{
    if (e->drafter->block_size < 2)
        return SV_OK;
    int rc = sv_prune_open(&e->prune, e->dev, e->sched.n_slots * e->width, err);
    e->prune.confidence = wants_policy(e, o) && e->drafter->confidence != SV_CONFIDENCE_NONE;
    /* Among ranks a forbidden draft ends its block: no rank has all rows of the head. */
    if (!rc && e->tok && e->drafter->keeps_rows && !e->ranks)
        rc = sv_draft_repair_open(&e->repair, e->dev, e->sched.n_slots, err);
    return rc;
}

/* The width policy, with the step costs of this machine. */
static int open_policy(struct sv_engine *e, const struct sv_engine_options *o, struct sv_err *err)
{
    if (!wants_policy(e, o))
        return SV_OK;
    int rc = sv_policy_open(&e->policy, e->sched.n_slots, e->width, e->sched.block > 1, err);
    if (!rc && e->prune.confidence) {
        e->policy->prunes = true;
        e->policy->ahead = e->pads || e->depth;
        e->policy->confidence_free = e->drafter->confidence == SV_CONFIDENCE_FREE;
    }
    /* No deferred updates with sliding pages, which the taps outlive, with graphs, whose pointers
     * are fixed, or with followers, which do not see the host's copies. */
    bool hold = !e->pads && !e->depth && e->drafter->n_taps && !e->ranks;
    for (int32_t i = 0; i < e->cache.n_groups; i++)
        hold &= !e->cache.group[i].d.window;
    if (!rc && hold)
        rc = sv_deferred_open(&e->deferred, e->dev, e->sched.n_slots, e->batch.max_rows,
                              (int64_t)e->sched.n_slots * e->context,
                              (size_t)e->drafter->n_taps * (size_t)e->drafter->hidden *
                                  sv_dtype_bytes(sv_dev_act_dtype(e->dev)),
                              err);
    if (!rc)
        rc = sv_engine_calibrate(e, e->policy, err);
    e->sched.policy = e->policy;
    e->sched.before_preempt = flush_deferred;
    e->sched.user = e;
    e->sched.usual_answer = USUAL_ANSWER;
    return rc;
}

int sv_engine_open(struct sv_engine **out, const struct sv_engine_options *opts,
                   struct sv_drafter *drafter, struct sv_err *err)
{
    return sv_engine_open_tuned(out, opts, &(struct sv_engine_tuning){0}, drafter, err);
}

/* All that every rank has: models, buffers, caches. */
static int open_parts(struct sv_engine *e, const struct sv_engine_options *opts, struct resolved *r,
                      struct stages *t, struct sv_err *err)
{
    struct text_job text = {.e = e, .dir = opts->target_dir};
    int rc = is_first(e) ? sv_thread_start(&text.thread, read_text, &text, err) : SV_OK;
    if (!rc)
        rc = open_models(e, opts, r, t, err);
    r->has_text = !rc && sv_model_has_tokenizer(opts->target_dir);
    if (!rc)
        rc = detach_files(e, opts->copy_weights, err);
    rc = join_text(&text, rc, err);
    stage(t, "tokenizer", 0);
    if (!rc)
        rc = open_buffers(e, r, err);
    if (!rc)
        rc = sv_images_open(e, opts->target_dir, err);
    if (!rc)
        rc = sv_ranks_window(e, err);
    stage(t, "buffers", 0);
    if (!rc)
        rc = open_cache(e, r, err);
    stage(t, "cache", 0);
    if (!rc)
        rc = open_sched(e, r, err);
    if (!rc)
        rc = open_prune(e, opts, err);
    if (!rc)
        rc = sv_ranks_join(e, err);
    return rc ? rc : sv_places_log(e, opts, err);
}

static struct sv_engine *make_engine(struct sv_drafter *drafter, struct sv_err *err)
{
    struct sv_engine *e = sv_calloc(1, sizeof *e);
    if (!e) {
        sv_fail(err, SV_ENOMEM, -1, "engine");
        return NULL;
    }
    sv_arena_init(&e->arena);
    e->none = sv_drafter_none();
    e->drafter = drafter ? drafter : &e->none;
    e->next_id = 1;
    return e;
}

int sv_engine_open_follower(struct sv_engine **out, const struct sv_engine_options *opts,
                            const struct sv_engine_tuning *tuning, struct sv_rank_group *group,
                            struct sv_err *err)
{
    struct resolved r;
    struct stages t = {.begin_us = sv_clock_us(), .last_us = sv_clock_us()};
    struct sv_engine *e = *out = make_engine(NULL, err);
    if (!e)
        return SV_ENOMEM;
    e->ranks = group;
    int rc = resolve(opts, &r, err);
    r.tuning = tuning;
    return rc ? rc : open_parts(e, opts, &r, &t, err);
}

int sv_engine_open_tuned(struct sv_engine **out, const struct sv_engine_options *opts,
                         const struct sv_engine_tuning *tuning, struct sv_drafter *drafter,
                         struct sv_err *err)
{
    struct resolved r;
    struct stages t = {.begin_us = sv_clock_us(), .last_us = sv_clock_us()};
    struct sv_engine *e = make_engine(drafter, err);
    *out = NULL;
    if (!e) {
        sv_drafter_close(drafter);
        return SV_ENOMEM;
    }
    e->on_progress = opts->on_progress;
    e->progress_user = opts->progress_user;
    int rc = resolve(opts, &r, err);
    r.tuning = tuning;
    if (!rc && (opts->tp > 1 || opts->record_plan || tuning->replay))
        rc = sv_ranks_open(e, opts, tuning, err);
    if (!rc)
        rc = open_parts(e, opts, &r, &t, err);
    if (!rc && !tuning->replay)
        rc = warm_up(e, err);
    stage(&t, "graphs", 0);
    if (!rc)
        rc = open_policy(e, opts, err);
    stage(&t, "costs of steps", 0);
    if (!rc)
        sv_log(e->depth ? SV_LOG_INFO : SV_LOG_DEBUG, "start: %.2f s:%s",
               (double)(t.last_us - t.begin_us) / 1e6, t.text);
    if (rc) {
        sv_ranks_fail(e, err ? err->msg : "rank 0 could not open");
        sv_engine_close(e);
        return rc;
    }
    e->on_progress = NULL;
    *out = e;
    return SV_OK;
}

void sv_engine_close(struct sv_engine *e)
{
    if (!e)
        return;
    if (e->n_flight || (e->dev && e->ranks))
        sv_dev_sync(e->dev, NULL); /* its results are dropped, its stores to other ranks done */
    if (is_first(e))
        sv_ranks_leave(e);
    for (struct sv_seq *q = e->sched.head; q; q = q->next) {
        if (q->state != SV_SEQ_FINISHED)
            sv_seq_finish(q, SV_FINISH_CANCELED, NULL);
        sv_sched_release(&e->sched, &e->cache, q);
    }
    e->closing = true;
    if (e->sched.head)
        sv_engine_deliver(e);
    sv_policy_close(e->policy);
    sv_drafter_close(e->drafter);
    if (e->cache.dev)
        sv_cache_close(&e->cache);
    if (e->dev) {
        void *own[] = {e->taps,        e->out,        e->draft_out,    e->slot_len,
                       e->slot_anchor, e->accept_len, e->slot_sampling};
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
            sv_dev_free(e->dev, own[i]);
        sv_logits_close(&e->logits, e->dev);
        sv_deferred_close(&e->deferred, e->dev);
        sv_prune_close(&e->prune, e->dev);
        sv_token_mask_close(&e->token_masks, e->dev);
        sv_draft_repair_close(&e->repair, e->dev);
        sv_batch_close(&e->batch, e->dev);
        sv_acts_close(&e->acts, e->dev);
    }
    sv_model_close(&e->model);
    sv_enc_scratch_free(e->scratch);
    sv_vocab_close(e->vocab);
    sv_tokenizer_close(e->tok);
    if (e->dev && e->ranks)
        sv_dev_host_free(e->dev, e->ranks->rows);
    if (e->dev && !(e->ranks && e->ranks->stuck)) /* a rank may look at its window */
        sv_dev_close(e->dev);
    if (is_first(e))
        sv_ranks_close(e);
    sv_arena_fini(&e->arena);
    sv_free(e);
}

/* Bytes that a token adds to the text. */
static const char *text_of(void *engine, int32_t id, size_t *n)
{
    const struct sv_engine *e = engine;
    *n = 0;
    return sv_tokenizer_is_special(e->tok, id) ? NULL : sv_tokenizer_bytes(e->tok, id, n);
}

/* Called for the first grammar: takes some 50 ms for a large vocabulary. */
static int open_vocab(struct sv_engine *e, struct sv_err *err)
{
    const struct sv_config *cfg = &e->model.cfg;
    if (e->vocab)
        return SV_OK;
    if (!e->tok)
        return sv_fail(
            err, SV_EINVAL, -1,
            "grammar: the model directory has no tokenizer.json, so tokens have no text");
    return sv_vocab_open(&e->vocab, cfg->vocab_size, text_of, e, cfg->eos_ids, (size_t)cfg->n_eos,
                         err);
}

int sv_engine_submit(struct sv_engine *e, const struct sv_request *r, uint64_t *id,
                     struct sv_err *err)
{
    if (e->failed.code)
        return sv_engine_failed(e, err);
    if (e->closing)
        return sv_fail(err, SV_EINVAL, -1, "the engine is being closed");
    struct sv_images *images;
    int rc = r->grammar || r->grammar_kind ? open_vocab(e, err) : SV_OK;
    if (!rc)
        rc = sv_images_new(&images, e, r, err);
    if (rc)
        return rc;
    const struct sv_seq_limits lim = {.cfg = &e->model.cfg,
                                      .tok = e->tok,
                                      .scratch = e->scratch,
                                      .vocab = e->vocab,
                                      .context = e->context,
                                      .width = e->width,
                                      .max_token_bytes = e->max_token_bytes};
    struct sv_seq *q;
    rc = sv_seq_new(&q, e->next_id, r, &lim, images, err);
    if (rc)
        return rc;
    rc = r->n_logprob_token_ids ? sv_token_logprobs_open(e, err) : SV_OK;
    if (rc) {
        sv_seq_free(q);
        return rc;
    }
    e->next_id++;
    sv_sched_push(&e->sched, q);
    if (id)
        *id = q->id;
    return SV_OK;
}

int32_t sv_engine_known(const struct sv_engine *e, const struct sv_request *r)
{
    int32_t n = r->n_prompt_ids - 1; /* the last one is always computed */
    for (int32_t i = 0; r->n_images && i < n; i++)
        if (r->prompt_ids[i] == e->model.cfg.vision.image_token)
            n = i;
    return r->prompt_logprobs || n < 1 ? 0
                                       : sv_cache_known(&e->cache, r->cache_salt, r->prompt_ids, n);
}

void sv_engine_deliver(struct sv_engine *e)
{
    struct sv_seq *prev = NULL, *q = e->sched.head;
    while (q) {
        sv_seq_deliver(q); /* may submit: the list can grow at its tail */
        struct sv_seq *next = q->next;
        if (q->state != SV_SEQ_FINISHED) {
            prev = q;
        } else {
            *(prev ? &prev->next : &e->sched.head) = next;
            if (e->sched.tail == q)
                e->sched.tail = prev;
            e->sched.n_unfinished--;
            sv_seq_free(q);
        }
        q = next;
    }
}
