/*
 * models.c - /v1/models in OpenAI's shape, with the members that vLLM and llama-server add.
 *
 * Called by route.c. Must not: need the model; it is listed while it is loaded.
 */
#include "serve/openai/openai.h"

#include <string.h>

static void write_model(const struct sv_serve *s, struct sv_buf *b)
{
    sv_buf_printf(b, "{\"id\":");
    sv_json_quote(b, s->model_name, strlen(s->model_name));
    sv_buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"salvo\",\"root\":",
                  (long long)s->created);
    sv_json_quote(b, s->o.engine.target_dir, strlen(s->o.engine.target_dir));
    sv_buf_lit(b, ",\"parent\":null");
    if (s->model) /* the first is vLLM's, the second llama-server's, the last OpenRouter's */
        sv_buf_printf(b,
                      ",\"max_model_len\":%d,\"meta\":{\"n_vocab\":%d,\"n_ctx\":%d},"
                      "\"architecture\":{\"input_modalities\":[\"text\"%s],"
                      "\"output_modalities\":[\"text\"]}",
                      s->model->info.context, s->model->info.vocab_size, s->model->info.context,
                      s->model->takes_images ? ",\"image\"" : "");
    sv_buf_printf(b, "}");
}

void sv_openai_get_models(struct sv_serve *s, struct sv_http_req *q)
{
    const char *id = sv_model_of_path(s, q);
    struct sv_buf b;

    if (!id)
        return;
    sv_buf_init(&b);
    if (!*id)
        sv_buf_lit(&b, "{\"object\":\"list\",\"data\":[");
    write_model(s, &b);
    sv_buf_printf(&b, *id ? "\n" : "]}\n");
    sv_api_answer(q, 200, "application/json", &b);
}
