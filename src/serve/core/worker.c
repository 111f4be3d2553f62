/*
 * worker.c - the thread of an engine: loads the model, takes commands, steps, reports.
 *
 * Called by replicas.c for the loop (start, submit, cancel, flush, finish); everything below "the
 * thread" runs on the worker's own. Commands are read before each step, so a cancel takes effect
 * within one. Must not: block the loop, or touch a choice after its last event has been posted.
 */
#include "serve/core/worker_own.h"

#include <string.h>

#define IDLE_WAIT_US 1000000 /* longest wait on an empty queue; a command ends it */
#define SNAPSHOT_EVERY_US 20000

/* ---------------------------------------------------------------- the thread: reporting */

static void publish(struct sv_worker *w, bool now)
{
    int64_t t = sv_clock_us();

    if (!now && t - w->snap_us < SNAPSHOT_EVERY_US)
        return;
    w->snap_us = t;
    if (w->opened)
        w->engine.engine_stats(w->engine.impl, &w->snap.stats);
    sv_cell_set(w->cell, &w->snap);
}

void sv_worker_post(struct sv_worker *w)
{
    if (sv_mail_post(w->mail, &w->batch, w->urgent))
        sv_panic("out of memory for %zu bytes of results", w->batch.len);
    w->urgent = false;
}

void sv_worker_report(struct sv_worker *w, enum sv_out_kind kind, struct sv_choice *ch,
                      const char *message)
{
    struct sv_out o = {.kind = kind,
                       .choice = ch,
                       .replica = w->replica,
                       .lost = kind == SV_OUT_REJECTED && (w->broken || w->failing),
                       .message = message,
                       .at_us = sv_clock_us()};

    o.n_message = message ? (uint32_t)strlen(message) : 0;
    w->urgent = true;
    sv_out_pack(&w->batch, &o, NULL, NULL);
}

static void on_event(void *user, const struct sv_event *ev)
{
    struct sv_live *l = user;
    struct sv_worker *w = l->w;
    struct sv_out o = {.kind = SV_OUT_EVENT,
                       .choice = l->choice,
                       .replica = w->replica,
                       .finish = ev->finish,
                       .n_tokens = ev->n_tokens,
                       .n_drafted = ev->n_drafted,
                       .tokens = ev->tokens,
                       .text = ev->text,
                       .n_text = (uint32_t)ev->n_bytes,
                       .stop_id = ev->stop_id,
                       .stop_index = ev->stop_index,
                       .message = ev->message,
                       .at_us = sv_clock_us()};
    struct sv_request_stats st = {0};
    bool last = ev->finish != SV_FINISH_NONE;

    if (last && w->failing) {
        o.finish = SV_FINISH_ERROR;
        o.message = w->reason;
    }
    if (last || !l->reported || ev->prompt_logprobs)
        w->engine.request_stats(w->engine.impl, ev->request, &st);
    o.n_message = o.message ? (uint32_t)strlen(o.message) : 0;
    o.n_prompt_logprobs = ev->prompt_logprobs ? st.n_prompt_tokens : 0;
    o.n_cached = st.n_cached_tokens; /* with the first tokens and at the end */
    if (last) {
        o.accept_lengths = st.accept_lengths;
        o.widths = st.widths;
        o.n_steps = st.accept_lengths && st.widths ? st.n_steps : 0;
        o.n_prompt = st.n_prompt_tokens;
        o.n_preemptions = st.n_preemptions;
        o.queue_us = st.queue_us;
        o.prefill_us = st.prefill_us;
        o.decode_us = st.decode_us;
    }
    o.urgent = last || !l->reported;
    sv_out_pack(&w->batch, &o, ev->logprobs, ev->prompt_logprobs);
    w->urgent = w->urgent || o.urgent;
    l->reported = true;
    if (last) {
        l->choice = NULL;
        w->n_live--;
        w->ended = true;
    }
}

/* ---------------------------------------------------------------- the thread: commands */

static void take_choice(struct sv_worker *w, struct sv_choice *ch, uint64_t serial)
{
    char msg[400] = "";
    struct sv_request r = ch->r;
    int32_t i = 0;

    while (i < w->max_live && w->live[i].choice)
        i++;
    SV_REQUIRE(i < w->max_live); /* the loop limits their number */
    w->live[i] = (struct sv_live){.w = w, .choice = ch, .serial = serial};
    w->n_live++;
    r.on_event = on_event;
    r.user = &w->live[i];
    const bool broken = w->broken || w->failing;
    int rc =
        broken ? SV_EDEVICE : w->engine.submit(w->engine.impl, &r, &w->live[i].id, msg, sizeof msg);
    if (rc < 0) {
        w->live[i].choice = NULL;
        w->n_live--;
        sv_worker_report(w, SV_OUT_REJECTED, ch,
                         msg[0]       ? msg
                         : w->failing ? w->reason
                         : broken     ? w->why
                                      : sv_code_name(rc));
    }
}

/* The device works, but its answers are no longer the model's. */
static void fail(struct sv_worker *w)
{
    if (w->broken)
        return;
    w->failing = true;
    sv_worker_report(w, SV_OUT_FAILED, NULL, w->reason);
    for (int32_t i = 0; i < w->max_live; i++)
        if (w->live[i].choice)
            w->engine.cancel(w->engine.impl, w->live[i].id);
}

static void run_command(struct sv_worker *w, const struct sv_command *c)
{
    switch (c->kind) {
    case SV_COMMAND_SUBMIT:
        take_choice(w, c->choice, c->serial);
        break;
    case SV_COMMAND_CANCEL:
        for (int32_t i = 0; i < w->max_live; i++)
            if (w->live[i].choice && w->live[i].serial == c->serial)
                w->engine.cancel(w->engine.impl, w->live[i].id);
        break;
    case SV_COMMAND_FLUSH:
        if (!w->broken)
            w->engine.flush(w->engine.impl);
        sv_worker_report(w, SV_OUT_FLUSHED, NULL, NULL);
        break;
    case SV_COMMAND_FAIL:
        fail(w);
        break;
    case SV_COMMAND_STOP:
        w->stopping = true;
        break;
    }
}

static void take_commands(struct sv_worker *w)
{
    struct sv_command c;

    for (bool idle = !w->n_live; sv_queue_pop(w->commands, &c, idle ? IDLE_WAIT_US : 0);
         idle = false)
        run_command(w, &c);
}

/* Rejects what is still in the queue when the thread ends. */
void sv_worker_refuse_rest(struct sv_worker *w)
{
    struct sv_command c;

    while (sv_queue_pop(w->commands, &c, 0))
        if (c.kind == SV_COMMAND_SUBMIT)
            sv_worker_report(w, SV_OUT_REJECTED, c.choice, "the server is shutting down");
}

static void step(struct sv_worker *w)
{
    int64_t start = sv_clock_us();
    size_t before = w->batch.len;
    int rc = w->engine.step(w->engine.impl, w->why, sizeof w->why);

    w->snap.busy_us += sv_clock_us() - start;
    if (rc >= 0)
        return;
    w->broken = true; /* every running request has its error event */
    sv_out_lose(&w->batch, before);
    if (!w->why[0])
        snprintf(w->why, sizeof w->why, "%s", sv_code_name(rc));
    sv_worker_report(w, SV_OUT_FAILED, NULL, w->why);
}

/* ---------------------------------------------------------------- the thread: loading */

static void stage(struct sv_worker *w, enum sv_load_stage s)
{
    w->snap.stage = s;
    w->snap.stage_share = 0;
    publish(w, true);
}

static void on_progress(void *user, enum sv_open_stage s, double share)
{
    struct sv_worker *w = user;
    w->snap.stage = (enum sv_load_stage)((int)SV_LOAD_WEIGHTS + (int)s);
    w->snap.stage_share = share;
    publish(w, false);
}

/* tokenizer_config.json, with tokens as texts; without the file an empty object. */
static int load_tokenizer_config(json_t **config, const char *dir, struct sv_err *err)
{
    const char *key;
    json_t *value;
    int rc = sv_model_tokenizer_config(config, dir, err);

    if (rc)
        return rc;
    /* A token with its properties becomes its text, as in transformers. */
    json_object_foreach(*config, key, value) {
        json_t *content = json_object_get(value, "content");
        if (json_is_string(content))
            json_object_set(*config, key, content);
    }
    return SV_OK;
}

static int load_texts(struct sv_worker *w, struct sv_err *err)
{
    const char *dir = w->o.engine.target_dir;
    struct sv_err why = {0};
    int rc = sv_model_tokenizer(&w->model.tok, dir, err);

    w->model.max_token_bytes = 1;
    for (int32_t id = 0; !rc && id < sv_tokenizer_n_tokens(w->model.tok); id++) {
        size_t n = 0;
        sv_tokenizer_bytes(w->model.tok, id, &n);
        w->model.max_token_bytes = n > w->model.max_token_bytes ? n : w->model.max_token_bytes;
    }
    if (!rc)
        rc = sv_serve_defaults(&w->model.defaults, &w->o, err);
    if (!rc)
        rc = load_tokenizer_config(&w->model.tokenizer_config, dir, err);
    /* A base model has no template and completes texts all the same. */
    if (!rc && sv_model_chat_template(&w->model.chat, dir, NULL, 0, &why))
        snprintf(w->model.chat_why, sizeof w->model.chat_why, "%.250s", why.msg);
    return rc;
}

static int load(struct sv_worker *w, struct sv_err *err)
{
    sv_serve_open_engine_fn open = w->o.open_engine ? w->o.open_engine : sv_serve_open_real_engine;

    stage(w, SV_LOAD_TOKENIZER);
    int rc = w->replica ? SV_OK : load_texts(w, err); /* the loop uses the first replica's */
    stage(w, SV_LOAD_WEIGHTS);
    w->o.engine.on_progress = on_progress;
    w->o.engine.progress_user = w;
    if (!rc)
        rc = open(&w->engine, &w->o.engine, w->o.open_arg, err);
    if (rc)
        return rc;
    w->opened = true;
    w->engine.info(w->engine.impl, &w->model.info);
    w->model.drafts = w->model.info.block_size > 1;
    w->model.takes_images = w->engine.takes_images;
    if (!w->engine.takes_images)
        snprintf(w->model.no_images, sizeof w->model.no_images, "%.255s", w->engine.no_images);
    w->model.vision = w->engine.vision;
    stage(w, SV_LOAD_DONE);
    return SV_OK;
}

static void *run(void *arg)
{
    struct sv_worker *w = arg;
    struct sv_err err = {0};

    if (load(w, &err)) {
        snprintf(w->why, sizeof w->why, "%.399s", err.msg);
        sv_worker_report(w, SV_OUT_FAILED, NULL, err.msg);
        w->broken = true;
    } else {
        sv_worker_report(w, SV_OUT_LOADED, NULL, NULL);
    }
    sv_worker_post(w);
    while (!w->stopping) {
        take_commands(w);
        if (w->n_live && !w->broken)
            step(w);
        /* before the results, so that counters read after an answer include it */
        publish(w, !w->n_live || w->ended);
        w->ended = false;
        sv_worker_post(w);
    }
    sv_worker_refuse_rest(w);
    if (w->opened)
        w->engine.close(w->engine.impl); /* unfinished requests get their last event */
    sv_worker_post(w);
    return NULL;
}

/* ---------------------------------------------------------------- the loop's side */

int sv_worker_start(struct sv_worker **out, const struct sv_serve_options *o, int32_t replica,
                    int32_t max_live, struct sv_mail *mail, struct sv_err *err)
{
    struct sv_worker *w = sv_calloc(1, sizeof *w);

    *out = NULL;
    if (!w)
        return sv_fail(err, SV_ENOMEM, -1, "worker");
    w->o = *o;
    w->replica = replica;
    w->mail = mail;
    w->max_live = max_live;
    w->live = sv_calloc((size_t)max_live, sizeof *w->live);
    /* At most one submit and one cancel for each counted sequence, a few flushes, one failure. */
    int rc = w->live
                 ? sv_queue_open(&w->commands, 4 * max_live + 64, sizeof(struct sv_command), err)
                 : sv_fail(err, SV_ENOMEM, -1, "worker");
    if (!rc)
        rc = sv_cell_open(&w->cell, sizeof w->snap, err);
    if (!rc && o->processes && o->processes->place.replica != replica)
        rc = sv_remote_open(&w->remote, w, &o->processes->link[replica], err);
    if (!rc)
        rc = sv_thread_start(&w->thread, w->remote ? sv_remote_run : run, w, err);
    if (rc) {
        sv_worker_free(w);
        return rc;
    }
    *out = w;
    return SV_OK;
}

static void command(struct sv_worker *w, enum sv_command_kind kind, struct sv_choice *ch,
                    uint64_t serial)
{
    struct sv_command c = {kind, ch, serial};
    if (!sv_queue_push(w->commands, &c))
        sv_panic("the queue of commands is full");
}

void sv_worker_stop(struct sv_worker *w)
{
    command(w, SV_COMMAND_STOP, NULL, 0);
}

void sv_worker_join(struct sv_worker *w)
{
    sv_thread_join(w->thread);
    w->thread = NULL;
}

void sv_worker_free(struct sv_worker *w)
{
    if (!w)
        return;
    SV_REQUIRE(!w->thread);
    sv_chat_template_close(w->model.chat);
    json_decref(w->model.tokenizer_config);
    sv_tokenizer_close(w->model.tok);
    sv_remote_free(w->remote);
    sv_queue_close(w->commands);
    sv_cell_close(w->cell);
    sv_buf_fini(&w->batch);
    sv_free(w->live);
    sv_free(w);
}

void sv_worker_submit(struct sv_worker *w, struct sv_choice *ch)
{
    command(w, SV_COMMAND_SUBMIT, ch, ch->serial);
}

void sv_worker_cancel(struct sv_worker *w, uint64_t serial)
{
    command(w, SV_COMMAND_CANCEL, NULL, serial);
}

void sv_worker_flush(struct sv_worker *w)
{
    command(w, SV_COMMAND_FLUSH, NULL, 0);
}

void sv_worker_fail(struct sv_worker *w, const char *why)
{
    if (*w->reason)
        return;
    snprintf(w->reason, sizeof w->reason, "%s", why);
    command(w, SV_COMMAND_FAIL, NULL, 0);
}

void sv_worker_snapshot(struct sv_worker *w, struct sv_snapshot *out)
{
    sv_cell_get(w->cell, out);
}

int32_t sv_worker_known(const struct sv_worker *w, const struct sv_request *r)
{
    return w->remote ? sv_remote_known(w->remote, r) : w->engine.known(w->engine.impl, r);
}

const struct sv_serve_model *sv_worker_model(const struct sv_worker *w)
{
    return &w->model;
}
