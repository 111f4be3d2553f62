/*
 * talk.c - one message answered: chat template, streaming, summary line.
 *
 * Called by run.c and converse.c. Must not: read the terminal.
 */
#include "cli/measure.h"
#include "cli/talk.h"

#include "load/load.h"
#include "media/media.h"

#include <string.h>

/* The id of a text that is exactly one token, -1 otherwise. */
static int32_t single_token(const struct sv_engine *e, const char *text)
{
    int32_t *ids = NULL, n = 0, id = -1;

    if (sv_encode_text(e, text, strlen(text), &ids, &n, NULL, 0) == SV_OK && n == 1)
        id = ids[0];
    sv_free_ids(ids);
    return id;
}

static const char plain_chat[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

int sv_cli_talk_image(struct sv_cli_talk *t, const char *path)
{
    struct sv_err err = {0};
    struct sv_buf bytes;
    struct sv_pixels px = {.rgb = NULL};

    SV_REQUIRE(t->n_images < SV_CLI_MAX_IMAGES);
    sv_buf_init(&bytes);
    int rc = sv_file_read_stream(&bytes, path, SV_IMAGE_MAX_BYTES, &err);
    if (!rc) {
        rc = sv_image_decode(bytes.data, bytes.len, NULL, &px, &err);
        if (rc)
            sv_err_prefix(&err, "%s", path);
    }
    sv_buf_fini(&bytes);
    if (rc)
        return sv_cli_fail("%s", err.msg);
    t->image_files[t->n_images] = path;
    t->images[t->n_images++] = (struct sv_image){px.rgb, px.width, px.height};
    return SV_CLI_OK;
}

static void drop_images(struct sv_cli_talk *t)
{
    while (t->n_images)
        sv_free((void *)(uintptr_t)t->images[--t->n_images].rgb);
}

void sv_cli_talk_forget(struct sv_cli_talk *t)
{
    if (t->images_sent)
        drop_images(t);
    json_decref(t->messages);
    t->messages = json_array();
    if (t->chat && t->system)
        json_array_append_new(t->messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", t->system));
}

/* How the model writes reasoning, and the tokens that say so. A constrained answer has none: all of
 * its text is what the grammar allows. */
static void open_reasoning(struct sv_cli_talk *t)
{
    const char *marker;

    if (!t->chat_template || t->raw)
        return;
    t->think = sv_think_format_of(sv_chat_template_source(t->chat_template));
    for (size_t i = 0; (marker = sv_think_marker(t->think, i)); i++) {
        const int32_t id = single_token(t->engine, marker);
        if (id >= 0 && t->n_markers < SV_CLI_MAX_MARKERS)
            t->markers[t->n_markers++] = id;
    }
}

static int open_chat(struct sv_cli_talk *t, bool conversation)
{
    struct sv_err err = {0};
    int rc;

    if (t->raw)
        return SV_CLI_OK;
    rc = sv_model_chat_template(&t->chat_template, t->dir, NULL, 0, &err);
    if (rc && rc != SV_EUNSUPPORTED)
        return sv_cli_fail("%s", err.msg);
    if (rc && !t->chat && !conversation)
        return SV_CLI_OK; /* a base model: the prompt is continued unchanged */
    if (rc &&
        (single_token(t->engine, "<|im_start|>") < 0 || single_token(t->engine, "<|im_end|>") < 0))
        return t->chat
                   ? sv_cli_fail("--chat: the model has no chat template, and its tokenizer has no "
                                 "<|im_start|> and <|im_end|>")
                   : SV_CLI_OK;
    if (rc && sv_template_parse(&t->plain_chat, plain_chat, sizeof plain_chat - 1, &err))
        return sv_cli_fail("%s", err.msg);
    t->chat = true;
    t->end_id = single_token(t->engine, "<|im_end|>");
    return SV_CLI_OK;
}

static int check_tokenizer(const struct sv_cli_talk *t)
{
    int32_t *ids = NULL, n;
    const int rc = sv_encode_text(t->engine, "", 0, &ids, &n, NULL, 0);

    sv_free_ids(ids);
    return rc ? sv_cli_fail("%s: no tokenizer.json, nor tokens in a GGUF file; `salvo generate` "
                            "answers prompts of token ids",
                            t->dir)
              : SV_CLI_OK;
}

int sv_cli_talk_open(struct sv_cli_talk *t, bool conversation)
{
    const char *why = "";
    int code;

    sv_cli_answer_init(&t->answer, t->engine);
    sv_cli_painter_init(&t->painter, stdout, t->show_draft && t->colour);
    sv_cli_parts_init(&t->parts, &t->painter, t->colour);
    t->answer.painter = &t->painter;
    t->end_id = -1;
    code = check_tokenizer(t);
    if (code == SV_CLI_OK)
        code = open_chat(t, conversation);
    open_reasoning(t);
    if (code == SV_CLI_OK && t->system && !t->chat)
        code = sv_cli_fail("--system needs a model with a chat template");
    if (code == SV_CLI_OK && t->n_images && !sv_engine_takes_images(t->engine, &why))
        code = sv_cli_fail("%s: option --image: %s", t->dir, why);
    if (code == SV_CLI_OK && t->n_images && !t->chat_template)
        code = sv_cli_fail("%s: option --image needs a model with a chat template", t->dir);
    sv_cli_talk_forget(t);
    return code;
}

void sv_cli_talk_close(struct sv_cli_talk *t)
{
    sv_close_engine(t->engine);
    drop_images(t);
    sv_chat_template_close(t->chat_template);
    sv_template_free(t->plain_chat);
    json_decref(t->messages);
    sv_cli_painter_fini(&t->painter);
    sv_cli_parts_fini(&t->parts);
    sv_cli_answer_fini(&t->answer);
}

json_t *sv_cli_message(const char *role, const char *text, size_t n)
{
    json_t *content = json_stringn(text, n);
    return content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
}

/* The first message has the images before its text. */
static json_t *question(const struct sv_cli_talk *t, const char *text, size_t n)
{
    json_t *parts;

    if (!t->n_images || t->images_sent)
        return sv_cli_message("user", text, n);
    parts = json_array();
    for (int32_t i = 0; i <= t->n_images; i++)
        if (json_array_append_new(parts, i < t->n_images ? json_pack("{s:s}", "type", "image")
                                                         : json_pack("{s:s, s:s%}", "type", "text",
                                                                     "text", text, n))) {
            json_decref(parts);
            return NULL;
        }
    return json_pack("{s:s, s:o}", "role", "user", "content", parts);
}

/* The conversation with the new message as the model's prompt; the message has joined it. */
static int render(struct sv_cli_talk *t, const char *text, size_t n, struct sv_buf *prompt)
{
    struct sv_err err = {0};

    if (sv_utf8_valid(text, n) < n)
        return sv_cli_fail("%s: byte %zu: not valid UTF-8", t->source ? t->source : "the message",
                           sv_utf8_valid(text, n));
    if (json_array_append_new(t->messages, question(t, text, n)))
        return sv_cli_fail("out of memory");
    return sv_cli_chat_render(t->chat_template, t->plain_chat, t->messages, prompt, &err)
               ? sv_cli_fail("%s", err.msg)
               : SV_CLI_OK;
}

/* What a failed request says; the engine counts images and knows no files. One that is refused
 * would be so with each message. */
static int say_failure(struct sv_cli_talk *t)
{
    const char *text = t->answer.message;
    int image, n = 0;

    if (sscanf(text, "image %d: %n", &image, &n) != 1 || !n || image < 0 || image >= t->n_images)
        return sv_cli_fail("%s", text);
    t->over = true;
    return sv_cli_fail("%s: %s", t->image_files[image], text + n);
}

static int answer(struct sv_cli_talk *t, struct sv_buf *prompt)
{
    struct sv_request r = t->defaults;
    const bool constrained = r.grammar || r.grammar_kind != SV_GRAMMAR_NONE;
    struct sv_err err = {0};
    int rc;

    if (constrained && t->chat)
        sv_cli_chat_constrain(t->chat_template, prompt);
    rc = sv_cli_parts_begin(&t->parts, constrained ? SV_THINK_NONE : t->think, prompt->data,
                            prompt->len);
    if (rc || prompt->failed)
        return rc ? rc : sv_cli_fail("out of memory");

    if (t->chat) {
        r.no_add_special = true;
        r.stop_ids = &t->end_id;
        r.n_stop_ids = t->end_id >= 0 && !r.ignore_eos;
    }
    r.prompt = prompt->len ? prompt->data : "";
    r.prompt_bytes = prompt->len;
    r.images = t->images;
    r.n_images = t->n_images;
    r.shown_ids = t->markers;
    r.n_shown_ids = constrained ? 0 : t->n_markers;
    rc = sv_cli_answer_run(t->engine, &r, 1, 1, &t->answer, &err);
    if (t->parts.shown)
        fputc('\n', stdout);
    fflush(stdout);
    if (!rc || rc == SV_ECANCELED)
        sv_cli_accept_add(&t->accept, &t->answer);
    t->over = rc && rc != SV_ECANCELED;
    if (rc)
        return rc == SV_ECANCELED ? SV_CLI_FAIL : sv_cli_fail("%s", err.msg);
    if (t->answer.finish == SV_FINISH_ERROR)
        return say_failure(t);
    return t->parts.failed ? sv_cli_fail("out of memory") : SV_CLI_OK;
}

int sv_cli_talk_turn(struct sv_cli_talk *t, const char *text, size_t n)
{
    const size_t before = json_array_size(t->messages);
    struct sv_buf prompt;
    int code;

    sv_buf_init(&prompt);
    if (t->chat) {
        code = render(t, text, n, &prompt);
    } else {
        sv_buf_append(&prompt, text, n);
        code = prompt.failed ? sv_cli_fail("out of memory") : SV_CLI_OK;
    }
    if (code == SV_CLI_OK)
        code = answer(t, &prompt);
    if (t->chat && code == SV_CLI_OK &&
        json_array_append_new(t->messages, sv_cli_parts_message(&t->parts, t->think)))
        code = sv_cli_fail("out of memory");
    t->images_sent = t->images_sent || code == SV_CLI_OK;
    /* A canceled or failed answer leaves the conversation as it was before the question. */
    while (code != SV_CLI_OK && json_array_size(t->messages) > before)
        json_array_remove(t->messages, before);
    sv_buf_fini(&prompt);
    return code;
}

/* What a step had to read, over how long it took, as a share of the read bandwidth. */
static double bandwidth_share(struct sv_cli_talk *t)
{
    const struct sv_cli_answer *a = &t->answer;
    struct sv_engine_info info;
    double steps = (double)(a->accept.len / sizeof(uint16_t)), bytes;

    sv_get_engine_info(t->engine, &info);
    bytes = steps * (double)(info.target_step_bytes + info.draft_step_bytes);
    if (!steps || a->decode_us <= 0)
        return 0;
    if (t->gbs == 0)
        t->gbs = sv_cli_bandwidth(t->engine, info.target_step_bytes + info.draft_step_bytes);
    return t->gbs > 0 ? bytes / ((double)a->decode_us * 1e3) / t->gbs : 0;
}

void sv_cli_talk_summary(struct sv_cli_talk *t)
{
    const struct sv_cli_answer *a = &t->answer;
    bool colour = sv_cli_colour(stderr, NULL);
    struct sv_engine_info info;
    struct sv_cli_accept sum = {0};
    int32_t n = sv_cli_answer_n(a);
    double share;

    if (t->quiet || a->finish == SV_FINISH_NONE || a->finish == SV_FINISH_ERROR)
        return;
    sv_get_engine_info(t->engine, &info);
    sv_cli_accept_add(&sum, a);
    share = bandwidth_share(t);
    fprintf(stderr, "%s[%d token%s in %.2f s", sv_cli_style(colour, SV_CLI_DIM), n,
            n == 1 ? "" : "s", (double)(a->prefill_us + a->decode_us) / 1e6);
    if (n > 1)
        fprintf(stderr, ", %.1f tok/s", sv_cli_answer_rate(a));
    fprintf(stderr, " (%s); prompt of %d in %.0f ms", sv_finish_name(a->finish), a->n_prompt,
            (double)a->prefill_us / 1e3);
    if (info.block_size > 1 && sum.n_steps)
        fprintf(stderr, "; accept length %.2f over %lld steps", sv_cli_accept_mean(&sum),
                (long long)sum.n_steps);
    if (share > 0)
        fprintf(stderr, "; %.0f %% of %.1f GB/s", 100 * share, t->gbs);
    fprintf(stderr, "]%s\n", sv_cli_style(colour, SV_CLI_PLAIN));
    if (!t->painter.on || t->legend_shown)
        return;
    t->legend_shown = true;
    fprintf(stderr, "[%sdrafted%s, %sthe target's own%s]\n", sv_cli_style(colour, SV_CLI_DRAFTED),
            sv_cli_style(colour, SV_CLI_PLAIN), sv_cli_style(colour, SV_CLI_OWN),
            sv_cli_style(colour, SV_CLI_PLAIN));
}
