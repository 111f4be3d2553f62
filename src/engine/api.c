/*
 * api.c - salvo.h on top of the engine: defaults, error text, queries. Nothing is decided here.
 */
#include "engine/engine.h"

#include <string.h>

static int report(int rc, const struct sv_err *e, char *err, size_t err_size)
{
    if (rc < 0 && err && err_size)
        snprintf(err, err_size, "%s", e->msg);
    return rc;
}

struct sv_engine_options sv_default_options(void)
{
    return (struct sv_engine_options){0};
}

int sv_open_engine(struct sv_engine **engine, const struct sv_engine_options *options, char *err,
                   size_t err_size)
{
    struct sv_err e = {0};
    return report(sv_engine_open(engine, options, NULL, &e), &e, err, err_size);
}

void sv_close_engine(struct sv_engine *engine)
{
    sv_engine_close(engine);
}

const char *sv_finish_name(enum sv_finish_reason reason)
{
    static const char *const names[] = {"none", "stop", "length", "canceled", "error"};
    return (size_t)reason < sizeof names / sizeof names[0] ? names[reason] : "?";
}

struct sv_request sv_default_request(const struct sv_engine *engine)
{
    (void)engine;
    return (struct sv_request){.top_p = 1};
}

int sv_make_grammar(struct sv_grammar **grammar, enum sv_grammar_kind kind, const char *text,
                    size_t text_bytes, char *err, size_t err_size)
{
    struct sv_err e = {0};
    return report(sv_engine_grammar(grammar, kind, text, text_bytes, &e), &e, err, err_size);
}

void sv_free_grammar(struct sv_grammar *grammar)
{
    sv_grammar_unref(grammar);
}

int sv_make_search(struct sv_search **search, const char *const *expressions, size_t n, char *err,
                   size_t err_size)
{
    struct sv_err e = {0};
    return report(sv_search_open(search, expressions, n, &e), &e, err, err_size);
}

void sv_free_search(struct sv_search *search)
{
    sv_search_unref(search);
}

int sv_submit_request(struct sv_engine *engine, const struct sv_request *request, uint64_t *id,
                      char *err, size_t err_size)
{
    struct sv_err e = {0};
    return report(sv_engine_submit(engine, request, id, &e), &e, err, err_size);
}

static struct sv_seq *find(const struct sv_engine *engine, uint64_t id)
{
    for (struct sv_seq *q = engine->sched.head; q; q = q->next)
        if (q->id == id)
            return q;
    return NULL;
}

void sv_cancel_request(struct sv_engine *engine, uint64_t id)
{
    struct sv_seq *q = find(engine, id);
    if (q)
        q->cancel = true;
}

int sv_step_engine(struct sv_engine *engine, char *err, size_t err_size)
{
    struct sv_err e = {0};
    int rc = sv_engine_step(engine, &e);
    if (rc)
        sv_log(SV_LOG_ERROR, "%s", e.msg);
    sv_engine_deliver(engine);
    return rc ? report(rc, &e, err, err_size) : engine->sched.n_unfinished;
}

void sv_flush_cache(struct sv_engine *engine)
{
    sv_cache_flush(&engine->cache);
}

int sv_get_request_stats(const struct sv_engine *engine, uint64_t id, struct sv_request_stats *out)
{
    const struct sv_seq *q = find(engine, id);
    if (!q)
        return SV_EINVAL;
    int64_t end = q->end_us ? q->end_us : sv_clock_us();
    int64_t start = q->start_us ? q->start_us : end;
    int64_t first = q->first_us ? q->first_us : end;
    *out = (struct sv_request_stats){.n_prompt_tokens = q->n_prompt,
                                     .n_tokens = q->n_tokens - q->n_prompt,
                                     .accept_lengths = q->accept_lengths,
                                     .widths = q->widths,
                                     .n_steps = q->n_steps,
                                     .n_cached_tokens = q->n_cached,
                                     .n_preemptions = q->n_preemptions,
                                     .queue_us = start - q->submit_us,
                                     .prefill_us = first - start,
                                     .decode_us = end - first};
    return SV_OK;
}

const char *sv_width_reason_name(int reason)
{
    _Static_assert(SV_WIDTH_REASONS == (int)SV_REASONS, "salvo.h counts the policy's reasons");
    return reason >= 0 && reason < SV_WIDTH_REASONS ? sv_reason_name((enum sv_reason)reason) : "?";
}

const char *sv_step_cost_name(int which)
{
    static const char *const names[SV_STEP_COSTS] = {"plain_one", "plain_all", "block",
                                                     "draft_block", "prompt_row"};
    return which >= 0 && which < SV_STEP_COSTS ? names[which] : "?";
}

/* Statistics of the width policy: choices, reasons, and the cost of each kind of step. */
static void policy_stats(const struct sv_engine *e, struct sv_engine_stats *out)
{
    const struct sv_policy *p = e->policy;
    const struct sv_cost *c = &p->cost;
    memcpy(out->width_reason, p->n_reason, sizeof out->width_reason);
    out->n_chosen_beside_prompts = p->n_beside_prompt;
    out->n_rows_pruned = p->n_pruned;
    out->n_pruned_steps = p->n_pruned_steps;
    out->n_drafting_disabled = p->n_disabled;
    out->chosen_us = p->expected_us;
    out->plain_us = p->expected_plain_us;
    memcpy(out->draft_chance, p->hazard, sizeof out->draft_chance);
    const struct sv_load load[] = {{.n_segs = 1, .n_rows = 1},
                                   {.n_segs = p->n_slots, .n_rows = p->n_slots},
                                   {.n_segs = 1, .n_rows = p->block}};
    for (int i = 0; i < 3; i++)
        out->step_cost_us[i] = (float)sv_cost_us(c, &load[i]);
    out->step_cost_us[3] =
        (float)(sv_curve_at(&c->draft_rows, p->block) + sv_curve_at(&c->draft_out, p->block - 2));
    const int32_t chunk = e->sched.prefill_rows < e->context ? e->sched.prefill_rows : e->context;
    out->step_cost_us[4] = (float)(sv_policy_restore_us(p, chunk, chunk) / chunk);
}

void sv_get_engine_stats(const struct sv_engine *engine, struct sv_engine_stats *out)
{
    const struct sv_accept_stats *a = &engine->accept;
    *out = engine->stats;
    if (engine->policy)
        policy_stats(engine, out);
    out->n_preemptions = engine->sched.n_preemptions;
    for (const struct sv_seq *q = engine->sched.head; q; q = q->next) {
        out->n_waiting += q->state == SV_SEQ_WAITING;
        out->n_running += q->slot >= 0;
    }
    const struct sv_cache *c = &engine->cache;
    out->n_pages = c->group[c->main].n_pages;
    out->n_pages_used = out->n_pages - sv_cache_n_available(c);
    out->n_pages_cached = sv_cache_n_kept(c, c->main);
    out->n_cache_queries = engine->sched.n_cache_queries;
    out->n_cache_hits = engine->sched.n_cache_hits;
    out->n_verify_steps = a->n_steps;
    out->n_drafted = a->n_drafted;
    out->n_accepted = a->n_accepted;
    memcpy(out->accept_length, a->length, sizeof out->accept_length);
    memcpy(out->accepted_at, a->accepted_at, sizeof out->accepted_at);
    memcpy(out->drafted_at, a->drafted_at, sizeof out->drafted_at);
}

void sv_get_engine_info(const struct sv_engine *e, struct sv_engine_info *out)
{
    const struct sv_config *cfg = &e->model.cfg;
    const struct sv_reads *r = &e->target_reads;
    *out = (struct sv_engine_info){
        .target_arch = sv_arch_name(cfg->arch),
        .device = sv_dev_describe(e->dev),
        .dtype = sv_dtype_name(sv_dev_compute_dtype(e->dev)),
        .target_params = sv_config_n_params(cfg),
        .draft_params = e->drafter->n_params,
        .target_step_bytes =
            sv_reads_of(r, 1) + sv_reads_experts(r, r->experts.bytes, r->experts.n_chosen),
        .draft_step_bytes = sv_reads_of(&e->draft_reads, 1),
        .vocab_size = cfg->vocab_size,
        .context = e->context,
        .block_size = e->drafter->block_size,
        .width = e->width,
        .bos_id = cfg->bos_id,
        .eos_ids = cfg->eos_ids,
        .n_eos = cfg->n_eos,
    };
    for (int32_t i = 0; i < e->cache.n_groups; i++)
        out->cache_bytes += sv_cache_group_bytes(&e->cache.group[i].d, e->cache.n_slots);
}

double sv_measure_bandwidth(struct sv_engine *engine, size_t n_bytes)
{
    return sv_dev_measure_read(engine->dev, n_bytes);
}

int sv_encode_text(const struct sv_engine *engine, const char *text, size_t n_bytes, int32_t **ids,
                   int32_t *n_ids, char *err, size_t err_size)
{
    struct sv_err e = {0};
    struct sv_ids list = {0};
    *ids = NULL;
    *n_ids = 0;
    if (!engine->tok)
        return report(sv_fail(&e, SV_EINVAL, -1, "the model directory has no tokenizer.json"), &e,
                      err, err_size);
    int rc =
        sv_tokenizer_encode(engine->tok, engine->scratch, text, n_bytes, SV_ENC_SPECIAL, &list, &e);
    if (rc) {
        sv_ids_fini(&list);
        return report(rc, &e, err, err_size);
    }
    *ids = list.id;
    *n_ids = (int32_t)list.n;
    return SV_OK;
}

void sv_free_ids(int32_t *ids)
{
    sv_free(ids);
}

const char *sv_token_bytes(const struct sv_engine *engine, int32_t id, size_t *n_bytes)
{
    *n_bytes = 0;
    return engine->tok ? sv_tokenizer_bytes(engine->tok, id, n_bytes) : NULL;
}

const char *sv_code_name(int code)
{
    return sv_status_name(code);
}
