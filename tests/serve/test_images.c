/*
 * test_images.c - images in requests of three dialects: what the engine gets, how many tokens they
 * count, their places in the template, refusals and their errors; files below a directory only.
 * timeout: 60
 */
#define _XOPEN_SOURCE 700 /* symlink */

#include "testing.h"

#include "serve/core/images.h"
#include "serve/core/server.h"
#include "serve/hub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the engine was given. */
static struct {
    struct sv_buf pixels; /* of all images of the last request */
    int32_t n_images, width[8], height[8], n_requests;
} seen;

static void look(void *user, const struct sv_request *r)
{
    (void)user;
    sv_buf_clear(&seen.pixels);
    seen.n_images = r->n_images;
    seen.n_requests++;
    assert_true(r->n_images <= 8);
    for (int32_t i = 0; i < r->n_images; i++) {
        const struct sv_image *m = &r->images[i];
        seen.width[i] = m->width;
        seen.height[i] = m->height;
        sv_buf_append(&seen.pixels, m->rgb, 3 * (size_t)m->width * (size_t)m->height);
    }
}

/* Shows texts in brackets and images as <img>; the fake engine repeats the prompt. */
static const char template[] =
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}({{ m.content }})"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<img>{% else %}[{{ p.text }}]"
    "{% endif %}{% endfor %}{% endif %};{% endfor %}";

static void begin(struct hub *r)
{
    const char *path = sv_test_tmp("shown.jinja");
    struct sv_err err;

    assert_int_equal(sv_file_write(path, template, sizeof template - 1, &err), SV_OK);
    sv_buf_init(&seen.pixels);
    seen.n_requests = 0;
    r->o.chat_template = path;
    r->fake.once = true;
    r->fake.burst = 8;
    r->fake.images = true;
    r->fake.on_submit = look;
    hub_open(r, false);
}

static void end(struct hub *r)
{
    hub_close(r);
    sv_buf_fini(&seen.pixels);
}

/* A golden file in base64. */
static const char *base64_of(const char *name)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static char text[16384];
    char path[128], *to = text;
    struct sv_buf b;
    struct sv_err err;

    snprintf(path, sizeof path, "tests/golden/images/%s", name);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, sv_test_path(path), sizeof text / 4 * 3 - 4, &err), SV_OK);
    for (size_t i = 0; i < b.len; i += 3) {
        const uint8_t *s = (const uint8_t *)b.data + i;
        const size_t left = b.len - i;
        const uint32_t v =
            (uint32_t)s[0] << 16 | (left > 1 ? (uint32_t)s[1] << 8 : 0) | (left > 2 ? s[2] : 0);
        for (size_t k = 0; k < 4; k++)
            *to++ = k <= left ? letters[v >> (18 - 6 * k) & 63] : '=';
    }
    *to = 0;
    sv_buf_fini(&b);
    return text;
}

/* A body in which %s is the image. */
static const char *body_of(const char *form, const char *image)
{
    static struct sv_buf b;

    sv_buf_fini(&b);
    sv_buf_init(&b);
    for (const char *at = form; *at; at++)
        if (at[0] == '%' && at[1] == 's') {
            sv_buf_append(&b, image, strlen(image));
            at++;
        } else {
            sv_buf_append(&b, at, 1);
        }
    assert_false(b.failed);
    return b.data;
}

#define CHAT "/v1/chat/completions"
#define MESSAGES "/v1/messages"
#define RESPONSES "/v1/responses"
#define CHAT_OF(parts) "{\"messages\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define CHAT_URL(url) "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\"}}"
#define CHAT_TEXT(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define MESSAGES_OF(parts)                                                                         \
    "{\"max_tokens\":200,\"messages\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define SOURCE                                                                                     \
    "{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/png\","            \
    "\"data\":\"%s\"}}"
#define RESPONSES_OF(parts) "{\"input\":[{\"role\":\"user\",\"content\":[" parts "]}]}"
#define INPUT_URL(url) "{\"type\":\"input_image\",\"detail\":\"auto\",\"image_url\":\"" url "\"}"
#define INPUT_TEXT(text) "{\"type\":\"input_text\",\"text\":\"" text "\"}"
#define DATA "data:image/png;base64,%s"

/* The pixels that the engine should get: decoded and resized to what it reads. */
static void expect_pixels(const char *name, int32_t width, int32_t height)
{
    char path[128];
    struct sv_buf b;
    struct sv_pixels px, fit;
    struct sv_err err;

    snprintf(path, sizeof path, "tests/golden/images/%s", name);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, sv_test_path(path), 1 << 20, &err), SV_OK);
    assert_int_equal(sv_image_decode(b.data, b.len, NULL, &px, &err), SV_OK);
    assert_int_equal(sv_pixels_resize(px.rgb, px.width, px.height, width, height, &fit, &err),
                     SV_OK);
    assert_int_equal(seen.n_images, 1);
    assert_true(seen.width[0] == width && seen.height[0] == height);
    assert_int_equal(seen.pixels.len, 3 * (size_t)width * (size_t)height);
    assert_memory_equal(seen.pixels.data, fit.rgb, seen.pixels.len);
    sv_pixels_free(&px);
    sv_pixels_free(&fit);
    sv_buf_fini(&b);
}

/* 61 x 47 pixels become 64 x 48, which are 4 x 3 blocks: 12 tokens, one of which is the prompt's.
 */
static void three_dialects(void **state)
{
    (void)state;
    struct hub r = {0};
    json_t *v;
    int64_t n_chat, n_plain;

    begin(&r);
    v = hub_json(&r, CHAT, CHAT_OF(CHAT_TEXT("a") "," CHAT_TEXT("b")), 200);
    assert_string_equal(hub_text(v, "choices.0.message.content"), "user:(a\nb);");
    n_plain = hub_number(v, "usage.prompt_tokens");
    assert_int_equal(seen.n_images, 0);

    v = hub_json(
        &r, CHAT,
        body_of(CHAT_OF(CHAT_TEXT("a") "," CHAT_TEXT("b") "," CHAT_URL(DATA) "," CHAT_TEXT("c")),
                base64_of("baseline.jpg")),
        200);
    assert_string_equal(hub_text(v, "choices.0.message.content"), "user:[a\nb]<img>[c];");
    n_chat = hub_number(v, "usage.prompt_tokens");
    expect_pixels("baseline.jpg", 64, 48);

    v = hub_json(
        &r, MESSAGES,
        body_of(MESSAGES_OF(CHAT_TEXT("a") "," CHAT_TEXT("b") "," SOURCE "," CHAT_TEXT("c")),
                base64_of("baseline.jpg")),
        200);
    assert_string_equal(hub_text(v, "content.0.text"), "user:[a\nb]<img>[c];");
    assert_int_equal(hub_number(v, "usage.input_tokens"), n_chat);
    expect_pixels("baseline.jpg", 64, 48);
    v = hub_json(
        &r, MESSAGES "/count_tokens",
        body_of(MESSAGES_OF(CHAT_TEXT("a") "," CHAT_TEXT("b") "," SOURCE "," CHAT_TEXT("c")),
                base64_of("baseline.jpg")),
        200);
    assert_int_equal(hub_number(v, "input_tokens"), n_chat);

    v = hub_json(&r, RESPONSES,
                 body_of(RESPONSES_OF(INPUT_TEXT("a") "," INPUT_TEXT("b") "," INPUT_URL(
                             DATA) "," INPUT_TEXT("c")),
                         base64_of("baseline.jpg")),
                 200);
    assert_string_equal(hub_text(v, "output.0.content.0.text"), "user:[a\nb]<img>[c];");
    assert_int_equal(hub_number(v, "usage.input_tokens"), n_chat);
    expect_pixels("baseline.jpg", 64, 48);

    /* the image's rows and nothing else: the same prompt, whose image is of one row */
    v = hub_json(
        &r, CHAT,
        body_of(CHAT_OF(CHAT_TEXT("a") "," CHAT_TEXT("b") "," CHAT_URL(DATA) "," CHAT_TEXT("c")),
                base64_of("rgb.png")),
        200);
    assert_int_equal(hub_number(v, "usage.prompt_tokens"), n_chat - 11);
    assert_true(n_chat - 11 > n_plain);
    expect_pixels("rgb.png", 16, 16);
    end(&r);
}

/* Parts that other APIs name differently, and URLs as strings, are the same everywhere. */
static void forms_of_parts(void **state)
{
    (void)state;
    static const char *const forms[] = {
        CHAT_OF(CHAT_URL(DATA)),
        CHAT_OF("{\"type\":\"image_url\",\"image_url\":\"" DATA "\"}"),
        CHAT_OF(INPUT_URL(DATA)),
        CHAT_OF(SOURCE),
        CHAT_OF(CHAT_URL("data:;base64,%s")),
        CHAT_OF(CHAT_URL("DATA:image/webp;charset=x;BASE64,%s")),
        CHAT_OF("{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"" DATA "\"}}"),
    };
    struct hub r = {0};

    begin(&r);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        json_t *v = hub_json(&r, CHAT, body_of(forms[i], base64_of("lossless.webp")), 200);
        assert_string_equal(hub_text(v, "choices.0.message.content"), "user:<img>;");
        expect_pixels("lossless.webp", 16, 16);
    }
    end(&r);
}

static void several_and_their_order(void **state)
{
    (void)state;
    struct hub r = {0};
    struct sv_buf first, body;
    json_t *v;

    begin(&r);
    sv_buf_init(&first);
    sv_buf_init(&body);
    sv_buf_printf(&first, "%s", base64_of("baseline.jpg"));
    sv_buf_printf(&body,
                  "{\"max_tokens\":200,\"messages\":[{\"role\":\"user\",\"content\":["
                  "{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"data\":\"%s\"}}]},"
                  "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\","
                  "\"name\":\"look\",\"input\":{}}]},{\"role\":\"user\",\"content\":["
                  "{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"is_error\":true,\"content\":["
                  "{\"type\":\"text\",\"text\":\"seen\"},{\"type\":\"image\",\"source\":{\"type\":"
                  "\"base64\",\"data\":\"%s\"}}]},{\"type\":\"text\",\"text\":\"and?\"}]}]}",
                  first.data, base64_of("rgb.png"));
    v = hub_json(&r, MESSAGES, body.data, 200);
    assert_string_equal(hub_text(v, "content.0.text"),
                        "user:<img>;assistant:();tool:[Error: ][seen]<img>;user:(and?);");
    assert_int_equal(seen.n_images, 2);
    assert_true(seen.width[0] == 64 && seen.height[0] == 48);
    assert_true(seen.width[1] == 16 && seen.height[1] == 16);
    sv_buf_fini(&first);
    sv_buf_fini(&body);
    end(&r);
}

/* Whatever of an image finds no memory, nothing of it is left, and nothing counts. */
static void without_memory(void **state)
{
    static const struct sv_serve_model m = {.info.context = 4096,
                                            .vision = {8, 2, 2, 256, 65536, {0.5F}, {0.5F}}};
    atomic_llong held = 0;
    struct sv_serve s = {.model = &m, .image_bytes = &held, .o.max_kept_bytes = 1 << 20};
    char scratch; /* not the loop's */
    (void)state;

    for (int64_t nth = 1, rc = -1; rc; nth++) {
        struct sv_params p = {.images = json_pack("[[{s:s,s:{s:s,s:s}},s]]", "type", "image",
                                                  "source", "type", "base64", "data",
                                                  base64_of("baseline.jpg"), "messages[0]")};
        struct sv_prompt out = {0};
        struct sv_api_err e = {0};
        const int64_t live = sv_alloc_live();
        sv_fault_arm(nth);
        rc = sv_serve_images_load(&s, (const void *)&scratch, &p, &out, &e);
        assert_true(rc ? sv_fault_calls() >= nth : sv_fault_calls() < nth && nth > 5);
        sv_fault_arm(0);
        assert_int_equal(e.status, rc ? 500 : 0);
        sv_serve_images_free(&out);
        assert_int_equal(held, 0);
        assert_int_equal(sv_alloc_live(), live);
        json_decref(p.images);
    }
}

/* A turn that follows a stored one sends its images once more to the engine, also where it names
 * them alone: far more bytes than the context has text, and no more than a body may have. */
static void stored_turns(void **state)
{
    (void)state;
    struct hub r = {.o.max_body_bytes = 65536, .o.engine.context = 200};
    char body[256];
    struct sv_buf many;
    json_t *v;

    begin(&r);
    v = hub_json(&r, RESPONSES, body_of(RESPONSES_OF(INPUT_URL(DATA)), base64_of("baseline.jpg")),
                 200);
    snprintf(body, sizeof body, "{\"previous_response_id\":\"%s\",\"input\":\"more\"}",
             hub_text(v, "id"));
    v = hub_json(&r, RESPONSES, body, 200);
    assert_non_null(strstr(hub_text(v, "output.0.content.0.text"), "user:<img>;"));
    assert_non_null(strstr(hub_text(v, "output.0.content.0.text"), "user:(more);"));
    expect_pixels("baseline.jpg", 64, 48);
    /* of an answer whose only item is the image */
    struct sv_buf image;
    sv_buf_init(&image);
    sv_buf_printf(&image, "%s", base64_of("rgb.png"));
    char *pad = strchr(image.data, '=');
    for (; pad && *pad; pad++)
        *pad = 'A';
    while (image.len < 40000)
        sv_buf_lit(&image, "AAAA");
    v = hub_json(&r, RESPONSES, body_of(RESPONSES_OF(INPUT_URL(DATA)), image.data), 200);
    sv_buf_fini(&image);
    snprintf(body, sizeof body, RESPONSES "/%s/input_items", hub_text(v, "id"));
    char *id = sv_strdup(hub_text(hub_json(&r, body, NULL, 200), "data.0.id"));
    snprintf(body, sizeof body, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"%s\"}]}", id);
    hub_json(&r, RESPONSES, body, 200);
    expect_pixels("rgb.png", 16, 16);
    sv_buf_init(&many);
    sv_buf_lit(&many, "{\"input\":[");
    for (int i = 0; i < 3; i++)
        sv_buf_printf(&many, "%s{\"type\":\"item_reference\",\"id\":\"%s\"}", i ? "," : "", id);
    sv_buf_lit(&many, "]}");
    v = hub_json(&r, RESPONSES, many.data, 413);
    assert_non_null(strstr(hub_text(v, "error.message"), "more than the 65536 bytes"));
    sv_buf_fini(&many);
    sv_free(id);
    end(&r);
}

/* Pixels of all requests are limited, whatever their files' size, and count no longer than their
 * request has them. */
static void as_many_as_there_is_room_for(void **state)
{
    (void)state;
    struct hub r = {.o.max_kept_bytes = 1024};

    begin(&r);
    for (int i = 0; i < 12; i++) { /* of 9,216 and 768 bytes, and room for 8,192 */
        json_t *v =
            hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL(DATA)), base64_of("baseline.jpg")), 503);
        assert_non_null(
            strstr(hub_text(v, "error.message"),
                   "'messages[0].content[0].image_url.url': the images of all waiting"));
        hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL(DATA)), base64_of("rgb.png")), 200);
        hub_json(&r, MESSAGES "/count_tokens", body_of(MESSAGES_OF(SOURCE), base64_of("rgb.png")),
                 200);
    }
    end(&r);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *param, *message;
    } list[] = {
        {CHAT, CHAT_OF(CHAT_URL("data:image/png;base64,AB*D")), "messages",
         "'messages[0].content[0].image_url.url': character 24 is not valid base64"},
        {CHAT, CHAT_OF(CHAT_URL("data:image/png;base64,A")), "messages", "not valid base64"},
        {CHAT, CHAT_OF(CHAT_URL("data:image/png,AAAA")), "messages",
         "must be a data: URL in base64"},
        {CHAT, CHAT_OF(CHAT_URL("data:image/png;base64")), "messages", "must be a data: URL"},
        {CHAT, CHAT_OF(CHAT_URL("data:image/png;base64,")), "messages", "empty, where an image"},
        {CHAT, CHAT_OF(CHAT_URL("data:image/png;base64,aGVsbG8=")), "messages",
         "'messages[0].content[0].image_url.url': no known image"},
        {CHAT, CHAT_OF(CHAT_URL("https://example.com/a.png")), "messages",
         "this server fetches nothing"},
        {CHAT, CHAT_OF(CHAT_URL("file:///etc/passwd")), "messages", "no --media-dir"},
        {CHAT, CHAT_OF(CHAT_URL("ftp://a/b")), "messages", "must be a data: URL"},
        {CHAT, CHAT_OF("{\"type\":\"image_url\"}"), "messages",
         "'messages[0].content[0].image_url' must be a URL"},
        {CHAT, CHAT_OF("{\"type\":\"image_url\",\"image_url\":{}}"), "messages",
         "'messages[0].content[0].image_url.url' must be a URL"},
        {CHAT, CHAT_OF(CHAT_TEXT("a") ",{\"type\":\"input_audio\"}"), "messages",
         "'messages[0].content[1]': only text and images are supported"},
        {RESPONSES, RESPONSES_OF(INPUT_TEXT("a") "," INPUT_URL("data:image/png;base64,A")),
         "input[0].content[1].image_url", "'input[0].content[1].image_url': character"},
        {RESPONSES, RESPONSES_OF("{\"type\":\"input_image\",\"file_id\":\"a\"}"),
         "input[0].content[0].image_url", "must be a URL"},
        {RESPONSES, "{\"input\":[{\"role\":\"assistant\",\"content\":[" INPUT_URL("x") "]}]}",
         "input[0].content[0].type", "\"input_image\" is not supported here, only text"},
        {RESPONSES, "{\"input\":[{\"role\":\"system\",\"content\":[" INPUT_URL("x") "]}]}",
         "input[0].content[0].type", "is not supported here"},
        {RESPONSES, RESPONSES_OF("{\"type\":\"input_file\"}"), "input[0].content[0].type",
         "\"input_file\" is not supported here, only text and images"},
        {CHAT,
         "{\"truncate_prompt_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[" CHAT_URL(
             "data:image/png;base64,A") "]}]}",
         "truncate_prompt_tokens", "is not truncated"},
        {CHAT,
         "{\"prompt_logprobs\":1,\"messages\":[{\"role\":\"user\",\"content\":[" CHAT_URL(
             "data:image/png;base64,A") "]}]}",
         "prompt_logprobs", "there are none of a prompt with images"},
    };
    static const struct {
        const char *body, *message;
    } messages[] = {
        {MESSAGES_OF("{\"type\":\"image\"}"), "'messages[0].content[0].source' must be an object"},
        {MESSAGES_OF("{\"type\":\"image\",\"source\":{\"type\":\"file\",\"file_id\":\"a\"}}"),
         "'messages[0].content[0].source.type' must be \"base64\" or \"url\""},
        {MESSAGES_OF("{\"type\":\"image\",\"source\":{\"type\":\"base64\"}}"),
         "'messages[0].content[0].source.data' must be a string"},
        {MESSAGES_OF(CHAT_TEXT("a") ",{\"type\":\"image\",\"source\":{\"type\":\"base64\","
                                    "\"data\":\"####\"}}"),
         "'messages[0].content[1].source.data': character 0 is not valid base64"},
        {MESSAGES_OF("{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"http://a/b\"}}"),
         "'messages[0].content[0].source.url': this server fetches nothing"},
        {"{\"max_tokens\":9,\"system\":[{\"type\":\"image\"}],\"messages\":[{\"role\":\"user\","
         "\"content\":\"a\"}]}",
         "'system[0].type': 'image' is not supported here; only text is"},
        {"{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
         "\"assistant\",\"content\":[{\"type\":\"image\"}]}]}",
         "it belongs to the user's turn"},
    };
    struct hub r = {0};

    begin(&r);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        json_t *v = hub_json(&r, list[i].path, list[i].body, 400);
        if (!strstr(hub_text(v, "error.message"), list[i].message) ||
            strcmp(hub_text(v, "error.param"), list[i].param) != 0)
            fail_msg("%s: %s (%s)", list[i].body, hub_text(v, "error.message"),
                     hub_text(v, "error.param"));
    }
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++) {
        json_t *v = hub_json(&r, MESSAGES, messages[i].body, 400);
        if (!strstr(hub_text(v, "error.message"), messages[i].message))
            fail_msg("%s: %s", messages[i].body, hub_text(v, "error.message"));
    }
    assert_int_equal(seen.n_requests, 0);
    end(&r);
}

/* Of a model that takes none, the first is named. */
static void a_model_without_images(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *message;
    } list[] = {
        {CHAT, CHAT_OF(CHAT_TEXT("a") "," CHAT_URL("x")), "'messages[0].content[1]'"},
        {MESSAGES, MESSAGES_OF("{\"type\":\"image\"}"), "'messages[0].content[0]'"},
        {MESSAGES "/count_tokens", MESSAGES_OF("{\"type\":\"image\"}"), "'messages[0].content[0]'"},
        {RESPONSES, RESPONSES_OF(INPUT_URL("x")), "'input[0].content[0]'"},
        {"/apply-template", CHAT_OF(CHAT_URL("x")), "'messages[0].content[0]'"},
    };
    struct hub r = {0};

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        json_t *v = hub_json(&r, list[i].path, list[i].body, 400);
        if (!strstr(hub_text(v, "error.message"), list[i].message) ||
            !strstr(hub_text(v, "error.message"),
                    "this model takes no images here: nor does any fake"))
            fail_msg("%s: %s", list[i].path, hub_text(v, "error.message"));
    }
    assert_true(json_is_false(hub_at(hub_json(&r, "/props", NULL, 200), "modalities.vision")));
    assert_int_equal(json_array_size(hub_at(hub_json(&r, "/v1/models", NULL, 200),
                                            "data.0.architecture.input_modalities")),
                     1);
    hub_close(&r);
}

static void what_is_told_of_the_model(void **state)
{
    (void)state;
    struct hub r = {0};

    begin(&r);
    assert_true(json_is_true(hub_at(hub_json(&r, "/props", NULL, 200), "modalities.vision")));
    assert_string_equal(
        hub_text(hub_json(&r, "/v1/models", NULL, 200), "data.0.architecture.input_modalities.1"),
        "image");
    /* a template's text has the place of an image */
    assert_string_equal(
        hub_text(hub_json(&r, "/apply-template", CHAT_OF(CHAT_URL("x")), 200), "prompt"),
        "user:<img>;");
    end(&r);
}

/* Beyond the context an image is refused before it is resized; the code is the one that agents look
 * for. */
static void beyond_the_context(void **state)
{
    (void)state;
    struct hub r = {0};
    json_t *v;

    r.o.engine.context = 20;
    begin(&r);
    hub_json(&r, CHAT, body_of(CHAT_OF(CHAT_URL(DATA)), base64_of("baseline.jpg")), 200);
    v = hub_json(&r, CHAT,
                 body_of(CHAT_OF(CHAT_URL(DATA) "," CHAT_URL(DATA)), base64_of("baseline.jpg")),
                 400);
    assert_string_equal(hub_text(v, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(hub_text(v, "error.message"),
                           "'messages[0].content[1].image_url.url': with this image"));
    v = hub_json(&r, CHAT,
                 body_of(CHAT_OF(CHAT_TEXT("a b c d e f g h i j k l m n o p q") "," CHAT_URL(DATA)),
                         base64_of("baseline.jpg")),
                 400);
    assert_string_equal(hub_text(v, "error.code"), "context_length_exceeded");
    end(&r);
}

/* ---------------------------------------------------------------- files */

static void copy(const char *name, const char *to)
{
    char path[128];
    struct sv_buf b;
    struct sv_err err;

    snprintf(path, sizeof path, "tests/golden/images/%s", name);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, sv_test_path(path), 1 << 20, &err), SV_OK);
    assert_int_equal(sv_file_write(to, b.data, b.len, &err), SV_OK);
    sv_buf_fini(&b);
}

static void files_below_a_directory(void **state)
{
    (void)state;
    static const struct {
        const char *url, *message; /* NULL: it is read */
    } list[] = {
        {"file://%s/a.png", NULL},
        {"file://localhost%s/a.png", NULL},
        {"file:%s/in/b%%20c.jpg", NULL},
        {"file://in/b c.jpg", NULL},
        {"file://a.png", NULL},
        {"file://%s/./in//b c.jpg", NULL},
        {"file://%s/../outside.png", "'..' is not allowed"},
        {"file://%s/in/../a.png", "'..' is not allowed"},
        {"file://in/%%2e%%2e/a.png", "'..' is not allowed"},
        {"file://%s/link.png", "symbolic links are not followed"},
        {"file://%s/linked/outside.png", "symbolic links are not followed"},
        {"file:///etc/passwd", "not in the directory of --media-dir"},
        {"file://%sx/a.png", "not in the directory of --media-dir"},
        {"file://%s/none.png", "cannot open"},
        {"file://%s/in", "Is a directory"},
        {"file://%s", "not in the directory of --media-dir"},
        {"file://%s/", "names no file"},
        {"file://%s/pipe", "not a regular file"},
        {"file://%s/a.png/b", "Not a directory"},
        {"file://%s/a%%00.png", "must be a path"},
        {"file:", "must be a path"},
        {"file://%s/text", "no known image"},
    };
    struct hub r = {0};
    char dir[256], path[512], body[1024], url[600];
    struct sv_err err;

    snprintf(dir, sizeof dir, "%s", sv_test_tmp("media"));
    assert_int_equal(mkdir(dir, 0777), 0);
    snprintf(path, sizeof path, "%s/in", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/a.png", dir);
    copy("rgb.png", path);
    snprintf(path, sizeof path, "%s/in/b c.jpg", dir);
    copy("444.jpg", path);
    copy("rgb.png", sv_test_tmp("outside.png"));
    snprintf(path, sizeof path, "%s/link.png", dir);
    assert_int_equal(symlink(sv_test_tmp("outside.png"), path), 0);
    snprintf(path, sizeof path, "%s/linked", dir);
    assert_int_equal(symlink("..", path), 0);
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0666), 0);
    snprintf(path, sizeof path, "%s/text", dir);
    assert_int_equal(sv_file_write(path, "text", 4, &err), SV_OK);

    r.o.media_dir = dir;
    begin(&r);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(url, sizeof url, list[i].url, dir);
        snprintf(body, sizeof body, CHAT_OF(CHAT_URL("%s")), url);
        json_t *v = hub_json(&r, CHAT, body, list[i].message ? 400 : 200);
        if (list[i].message && !strstr(hub_text(v, "error.message"), list[i].message))
            fail_msg("%s: %s", url, hub_text(v, "error.message"));
        if (!list[i].message)
            assert_int_equal(seen.n_images, 1);
    }
    end(&r);

    struct sv_serve_options o = {.media_dir = "/no/such/directory"};
    struct sv_serve *s;
    o.engine.target_dir = sv_test_path("models/demo/target");
    assert_true(sv_serve_open(&s, &o, &err) < 0);
    assert_non_null(strstr(err.msg, "option --media-dir: /no/such/directory"));
}

SV_TEST_MAIN(cmocka_unit_test(three_dialects), cmocka_unit_test(forms_of_parts),
             cmocka_unit_test(several_and_their_order), cmocka_unit_test(without_memory),
             cmocka_unit_test(stored_turns), cmocka_unit_test(as_many_as_there_is_room_for),
             cmocka_unit_test(what_is_refused), cmocka_unit_test(a_model_without_images),
             cmocka_unit_test(what_is_told_of_the_model), cmocka_unit_test(beyond_the_context),
             cmocka_unit_test(files_below_a_directory))
