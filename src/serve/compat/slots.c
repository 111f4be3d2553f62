/*
 * slots.c - /props and /slots: what llama-server's clients ask about the model, its settings and
 * what runs.
 *
 * Called by route.c on the loop's thread. There are as many slots as sequences run at once, and the
 * oldest sequences are shown in them. Must not: show prompts or answers, or the settings of another
 * API key's request.
 */
#include "serve/compat/compat.h"
#include "serve/core/write.h"

#include <string.h>

static int32_t n_slots(const struct sv_serve *s)
{
    return s->o.engine.max_sequences > 1 ? s->o.engine.max_sequences : 1;
}

static const char *truth(bool v)
{
    return v ? "true" : "false";
}

/* {"id":...,"id_task":...,"n_ctx":...,"speculative":...,"is_processing":..., left open. */
static void begin_slot(struct sv_buf *b, const struct sv_serve *s, int32_t id, int64_t task)
{
    sv_buf_printf(
        b, "{\"id\":%d,\"id_task\":%lld,\"n_ctx\":%d,\"speculative\":%s,\"is_processing\":%s", id,
        (long long)task, s->model->info.context, truth(s->model->drafts), truth(task >= 0));
}

/* ---------------------------------------------------------------- /props */

/* The defaults of a request without fields. */
static void write_defaults(struct sv_buf *b, const struct sv_serve *s)
{
    struct sv_params *p = sv_alloc(sizeof *p);
    json_t *body = json_pack("{s:s}", "prompt", "");
    struct sv_api_err e;

    begin_slot(b, s, 0, -1);
    sv_buf_lit(b, ",\"params\":{");
    if (p && body && !sv_params_read(p, &sv_dialect_llama, body, NULL, &e) &&
        !sv_params_complete(p, SV_LLAMA, s->model, &s->o, &e))
        sv_write_llama_params(b, p, UINT32_MAX); /* llama-server's value for a random seed */
    else
        b->failed = true;
    sv_buf_lit(b, "}}");
    json_decref(body);
    sv_free(p);
}

static void write_token(struct sv_buf *b, const struct sv_serve *s, const char *name, int32_t id)
{
    sv_buf_printf(b, ",\"%s\":", name);
    if (id >= 0)
        sv_json_token(b, s->model->tok, id);
    else
        sv_buf_lit(b, "\"\"");
}

/* The template's abilities by llama-server's names, and the parsers in use. */
static void write_caps(struct sv_buf *b, const struct sv_serve *s)
{
    const char *tools = s->tool_format != SV_TOOL_NONE ? "true" : "false";

    sv_buf_printf(b,
                  ",\"chat_template_caps\":{\"supports_tools\":%s,\"supports_tool_calls\":%s,"
                  "\"supports_parallel_tool_calls\":%s,",
                  tools, tools, tools);
    sv_json_string(b, "tool_parser", sv_tool_format_name(s->tool_format));
    sv_buf_lit(b, ",");
    sv_json_string(b, "reasoning_parser", sv_think_format_name(s->think_format));
    sv_buf_lit(b, "}");
}

void sv_get_props(struct sv_serve *s, struct sv_http_req *q)
{
    const struct sv_chat_template *t = s->chat ? s->chat : s->model->chat;
    const struct sv_engine_info *info = &s->model->info;
    const char *source = t ? sv_chat_template_source(t) : "";
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_lit(&b, "{\"default_generation_settings\":");
    write_defaults(&b, s);
    sv_buf_printf(&b, ",\"total_slots\":%d,", n_slots(s));
    sv_json_string(&b, "model_alias", s->model_name);
    sv_buf_lit(&b, ",");
    sv_json_string(&b, "model_path", s->o.engine.target_dir);
    sv_buf_lit(&b, ",");
    sv_json_string(&b, "chat_template", source);
    write_token(&b, s, "bos_token", info->bos_id);
    write_token(&b, s, "eos_token", info->n_eos ? info->eos_ids[0] : -1);
    write_caps(&b, s);
    sv_buf_printf(&b, ",\"modalities\":{\"vision\":%s,\"audio\":false},",
                  truth(s->model->takes_images));
    sv_buf_lit(&b, "\"build_info\":\"salvo " SALVO_VERSION "\",\"is_sleeping\":false}\n");
    sv_api_answer(q, 200, "application/json", &b);
}

/* ---------------------------------------------------------------- /slots */

static void write_sequence(struct sv_buf *b, const struct sv_choice *ch)
{
    int64_t n = (int64_t)(ch->ids.len / sizeof(int32_t));
    int32_t most = ch->r.max_tokens;

    sv_buf_lit(b, ",\"params\":{");
    sv_write_llama_params(b, &ch->call->p, ch->r.seed);
    sv_buf_printf(b,
                  "},\"next_token\":{\"has_next_token\":true,\"has_new_line\":%s,\"n_remain\":%lld,"
                  "\"n_decoded\":%lld}",
                  truth(ch->newline), (long long)(most && most < INT32_MAX ? most - n : -1),
                  (long long)n);
}

/* The n oldest running sequences, or fewer. */
static int32_t oldest(const struct sv_serve *s, const struct sv_choice **list, int32_t n)
{
    int32_t found = 0;

    for (const struct sv_call *c = s->calls; c; c = c->next)
        for (int32_t i = 0; i < c->n_choices; i++) {
            const struct sv_choice *ch = &c->choices[i];
            int32_t at = found < n ? found : n - 1;
            if (ch->done || (found == n && list[at]->serial < ch->serial))
                continue;
            found += found < n;
            for (; at > 0 && list[at - 1]->serial > ch->serial; at--)
                list[at] = list[at - 1];
            list[at] = ch;
        }
    return found;
}

void sv_get_slots(struct sv_serve *s, struct sv_http_req *q)
{
    int32_t n = n_slots(s);
    const struct sv_choice **list = sv_calloc((size_t)n, sizeof *list);
    int32_t busy = list ? oldest(s, list, n) : n;
    struct sv_api_err e;
    struct sv_buf b;

    if (!list || (busy == n && strstr(sv_http_query(q), "fail_on_no_slot=1"))) {
        sv_api_fail(&e, 503, "no_slot", list ? "no slot is free" : "out of memory");
        sv_api_refuse(q, &e);
        sv_free(list);
        return;
    }
    sv_buf_init(&b);
    for (int32_t i = 0; i < n; i++) {
        sv_buf_printf(&b, i ? "," : "[");
        begin_slot(&b, s, i, i < busy ? (int64_t)list[i]->serial : -1);
        if (i < busy && list[i]->call->key == sv_http_key(q))
            write_sequence(&b, list[i]);
        sv_buf_lit(&b, "}");
    }
    sv_buf_lit(&b, "]\n");
    sv_api_answer(q, 200, "application/json", &b);
    sv_free(list);
}
