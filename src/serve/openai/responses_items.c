/*
 * responses_items.c - the items of a conversation in the Responses API, as messages of a chat and
 * as the lines that are stored.
 *
 * Called by responses_read.c and check.c, on the thread that reads the body. Each error names the
 * place. Must not: change the server, except for the store, which has a lock.
 */
#include "serve/core/images.h"
#include "serve/core/write.h"
#include "serve/openai/responses.h"

#include <string.h>

#define PLACE 96
#define MAX_ID 64 /* of an item, as OpenAI has it */

struct talk {
    struct sv_params *p;
    json_t *messages;
    json_t *turn;        /* the assistant's message to which the next item may belong, or NULL */
    bool begun;          /* an item other than instructions has come */
    struct sv_buf first; /* instructions at the beginning, as one message: most templates take only
                            one, and only there */
    const struct sv_serve *s;
    int key;          /* the client's API key */
    size_t n_found;   /* bytes of items that were given by id alone */
    const char *name; /* of new ids */
    size_t n_items;
    struct sv_buf *items; /* NULL: items are not stored */
    json_t *ids;          /* ids of the items stored here and before */
};

/* The text of a content part; NULL with an error if it has none. */
static const json_t *part_text(const json_t *part, const char *place, size_t i,
                               struct sv_api_err *e)
{
    static const char *const texts[] = {"input_text", "output_text", "text", "refusal", NULL};
    const json_t *text = sv_part_text(part);
    const char *type = json_string_value(json_object_get(part, "type"));
    char at[PLACE];

    snprintf(at, sizeof at, "%.60s[%zu]", place, i);
    if (!json_is_object(part)) {
        sv_wrong_type(e, at, "an object", part);
    } else if (text) {
        return text;
    } else if (sv_is_one_of(type, texts)) {
        snprintf(at, sizeof at, "%.60s[%zu].%s", place, i, *type == 'r' ? type : "text");
        sv_api_bad(e, at, "'%s' must be a string", at);
    } else {
        snprintf(at, sizeof at, "%.60s[%zu].type", place, i);
        sv_api_bad(e, at, "'%s': \"%.40s\" is not supported here, only text%s", at,
                   type ? type : "", sv_part_is_image(part) ? "" : " and images");
        e->code = "unsupported_parameter";
    }
    return NULL;
}

/* A string, or text parts joined by line breaks; false with an error. */
static bool take_text(const json_t *v, const char *place, struct sv_buf *b, struct sv_api_err *e)
{
    if (json_is_string(v)) {
        sv_buf_append(b, json_string_value(v), json_string_length(v));
        return true;
    }
    if (!json_is_array(v)) {
        sv_api_bad(e, place, "'%s' must be a string or an array of parts", place);
        return false;
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *text = part_text(json_array_get(v, i), place, i, e);
        if (!text)
            return false;
        if (i)
            sv_buf_lit(b, "\n");
        sv_buf_append(b, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* The same with images; has_images false: they are refused. NULL with an error. */
static json_t *content_of(struct talk *t, const json_t *v, const char *place, bool has_images,
                          struct sv_api_err *e)
{
    struct sv_content c;
    json_t *content = NULL;
    int rc = 0;

    sv_content_init(&c);
    if (!json_is_array(v))
        rc = take_text(v, place, &c.text, e) ? 0 : -1;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) {
        json_t *part = json_array_get(v, i);
        const bool image = has_images && sv_part_is_image(part);
        const json_t *text = image ? NULL : part_text(part, place, i, e);
        char at[PLACE];
        snprintf(at, sizeof at, "%.60s[%zu]", place, i);
        rc = image ? sv_content_image(&c, t->p, part, at, e) : text ? 0 : -1;
        if (text)
            sv_content_text(&c, text);
    }
    if (!rc) {
        content = sv_content_take(&c);
        if (!content)
            sv_api_no_memory(e);
    }
    sv_content_fini(&c);
    return content;
}

/* Ends the instructions at the beginning: they become one message. */
static int end_first(struct talk *t, struct sv_api_err *e)
{
    if (t->begun)
        return 0;
    t->begun = true;
    if (!t->first.len && !t->first.failed)
        return 0;
    json_t *m = t->first.failed ? NULL
                                : json_pack("{s:s,s:s%}", "role", "system", "content",
                                            t->first.data, t->first.len);
    return m && !json_array_append_new(t->messages, m) ? 0 : sv_api_no_memory(e);
}

static int add_message(struct talk *t, json_t *m, struct sv_api_err *e)
{
    if (!m || json_array_append_new(t->messages, m))
        return sv_api_no_memory(e);
    t->turn = NULL;
    return 0;
}

/* Begins an assistant's message, to which the next items may belong. */
static int begin_turn(struct talk *t, struct sv_api_err *e)
{
    json_t *m = json_pack("{s:s,s:s}", "role", "assistant", "content", "");

    if (add_message(t, m, e))
        return -1;
    t->turn = m;
    return 0;
}

static int take_message(struct talk *t, const json_t *item, const char *place, struct sv_api_err *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", NULL};
    const char *role = json_string_value(json_object_get(item, "role"));
    char at[PLACE];
    json_t *content;

    snprintf(at, sizeof at, "%s.role", place);
    if (!sv_is_one_of(role, roles))
        return sv_api_bad(e, at, "'%s' must be user, assistant, system or developer", at);
    snprintf(at, sizeof at, "%s.content", place);
    if (!t->begun && (*role == 's' || *role == 'd')) {
        if (t->first.len)
            sv_buf_lit(&t->first, "\n\n");
        return take_text(json_object_get(item, "content"), at, &t->first, e) ? 0 : -1;
    }
    if (end_first(t, e))
        return -1;
    content = content_of(t, json_object_get(item, "content"), at, *role != 'a', e);
    if (!content)
        return -1;
    if (*role != 'a')
        return add_message(t, json_pack("{s:s,s:o}", "role", role, "content", content), e);
    /* its reasoning came before it */
    bool goes_on = t->turn && !json_string_length(json_object_get(t->turn, "content")) &&
                   !json_object_get(t->turn, "tool_calls");
    if (!goes_on && begin_turn(t, e)) {
        json_decref(content);
        return -1;
    }
    return json_object_set_new(t->turn, "content", content) ? sv_api_no_memory(e) : 0;
}

/* A string that an item must have; NULL with an error. */
static const char *member(const json_t *item, const char *place, const char *name,
                          struct sv_api_err *e)
{
    const json_t *v = json_object_get(item, name);
    char at[PLACE];

    if (sv_json_is_text(v))
        return json_string_value(v);
    snprintf(at, sizeof at, "%s.%s", place, name);
    sv_api_bad(e, at, "'%s' must be a string", at);
    return NULL;
}

static int take_call(struct talk *t, const json_t *item, const char *place, struct sv_api_err *e)
{
    const char *id = member(item, place, "call_id", e);
    const char *name = id ? member(item, place, "name", e) : NULL;
    const char *arguments = name ? member(item, place, "arguments", e) : NULL;

    if (!arguments || end_first(t, e) || (!t->turn && begin_turn(t, e)))
        return -1;
    json_t *calls = json_object_get(t->turn, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(t->turn, "tool_calls", calls))
            return sv_api_no_memory(e);
    }
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:s}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return call && !json_array_append_new(calls, call) ? 0 : sv_api_no_memory(e);
}

static int take_output(struct talk *t, const json_t *item, const char *place, struct sv_api_err *e)
{
    const char *id = member(item, place, "call_id", e);
    char at[PLACE];

    snprintf(at, sizeof at, "%s.output", place);
    if (!id || end_first(t, e))
        return -1;
    json_t *shown = content_of(t, json_object_get(item, "output"), at, true, e);
    if (!shown)
        return -1;
    return add_message(
        t, json_pack("{s:s,s:s,s:o}", "role", "tool", "tool_call_id", id, "content", shown), e);
}

/* The reasoning's content, or else its summary. */
static int take_reasoning(struct talk *t, const json_t *item, const char *place,
                          struct sv_api_err *e)
{
    struct sv_buf b;
    int rc = 0;

    sv_buf_init(&b);
    for (int k = 0; k < 2 && !b.len && !rc; k++) {
        const char *name = k ? "summary" : "content";
        const json_t *parts = json_object_get(item, name);
        char at[PLACE];
        snprintf(at, sizeof at, "%s.%s", place, name);
        if (!sv_json_is_none(parts) && !json_is_array(parts))
            rc = sv_wrong_type(e, at, "an array", parts);
        for (size_t i = 0; i < json_array_size(parts) && !rc; i++) {
            const json_t *text = json_object_get(json_array_get(parts, i), "text");
            if (i)
                sv_buf_lit(&b, "\n");
            snprintf(at, sizeof at, "%.60s.%s[%zu].text", place, name, i);
            if (json_is_string(text))
                sv_buf_append(&b, json_string_value(text), json_string_length(text));
            else
                rc = sv_api_bad(e, at, "'%s' must be a string", at);
        }
    }
    if (!rc)
        rc = b.failed ? sv_api_no_memory(e) : end_first(t, e);
    if (!rc && b.len)
        rc = begin_turn(t, e);
    if (!rc && b.len &&
        json_object_set_new(t->turn, "reasoning_content", json_stringn(b.data, b.len)))
        rc = sv_api_no_memory(e);
    sv_buf_fini(&b);
    return rc;
}

static int add_item(struct talk *t, const json_t *item, const char *place, struct sv_api_err *e);

/* ---------------------------------------------------------------- what is kept of them */

/* Whether a client's id is kept. Ids are searched for as they are written and stand in paths, so an
 * id must need no quoting and must be unique in the conversation. */
static bool is_good_id(const struct talk *t, const char *id)
{
    static const char letters[] =
        "-_.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n = id ? strspn(id, letters) : 0;

    return n && n <= MAX_ID && !id[n] && !json_object_get(t->ids, id);
}

/* The item as it is stored: its id first, with its type, content as parts. */
static int keep_item(struct talk *t, const json_t *item, struct sv_api_err *e)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *id = json_string_value(json_object_get(item, "id"));
    const json_t *content = json_object_get(item, "content");
    char made[64];

    if (!t->items)
        return 0;
    type = type ? type : "message";
    if (!is_good_id(t, id)) {
        snprintf(made, sizeof made, "%s_%s_in%zu",
                 strcmp(type, "message") == 0         ? "msg"
                 : strcmp(type, "reasoning") == 0     ? "rs"
                 : strcmp(type, "function_call") == 0 ? "fc"
                                                      : "fco",
                 t->name, t->n_items);
        id = made;
    }
    t->n_items++;
    json_t *copy = json_pack("{s:s,s:s}", "id", id, "type", type), *v;
    const char *key;
    bool fine = copy && !json_object_set_new(t->ids, id, json_true());
    json_object_foreach((json_t *)(uintptr_t)item, key, v) {
        if (strcmp(key, "id") != 0 && strcmp(key, "type") != 0)
            fine = fine && !json_object_set(copy, key, v);
    }
    if (fine && strcmp(type, "message") == 0 && json_is_string(content)) {
        const char *role = json_string_value(json_object_get(item, "role"));
        v = json_pack("[{s:s,s:O}]", "type",
                      strcmp(role, "assistant") == 0 ? "output_text" : "input_text", "text",
                      content);
        fine = v && !json_object_set_new(copy, "content", v);
    }
    if (fine) {
        sv_json_tree(t->items, copy);
        sv_buf_lit(t->items, "\n");
    }
    json_decref(copy);
    return fine && !t->items->failed ? 0 : sv_api_no_memory(e);
}

static json_t *parse_line(const struct sv_kept_item *line)
{
    struct sv_err err;

    return sv_json_parse(line->text, line->n, &err);
}

static void not_found(struct sv_api_err *e, const char *place, const char *id)
{
    sv_api_fail(e, 404, "item_not_found", "'%s.id': there is no item '%.64s'", place, id);
    snprintf(e->param, sizeof e->param, "%.80s.id", place);
}

/* Finds an item by its id, which contains the name of its answer: msg_NAME_2. All items found for a
 * body together are limited to what a body may have, however often they are named. */
static int take_reference(struct talk *t, const json_t *item, const char *place,
                          struct sv_api_err *e)
{
    const char *id = member(item, place, "id", e), *name = id ? strchr(id, '_') : NULL;
    struct sv_stored *st = t->s->stored;
    char response[SV_RESPONSE_ID];
    struct sv_kept_item line;
    int rc = -1;

    if (!id)
        return -1;
    const size_t most = (size_t)t->s->o.max_body_bytes;
    snprintf(response, sizeof response, "resp%.33s", name ? name : "");
    struct sv_kept *k = sv_stored_get(st, t->key, response);
    if (!k || !sv_kept_item(k, id, &line)) {
        not_found(e, place, id);
    } else if ((t->n_found += line.n) > most) {
        sv_api_fail(e, 413, "body_too_large",
                    "'%s.id': the items named by id have more than the %zu bytes that a body may "
                    "have (--max-body)",
                    place, most);
        snprintf(e->param, sizeof e->param, "%.80s.id", place);
    } else {
        json_t *found = parse_line(&line);
        rc = found ? add_item(t, found, place, e) : sv_api_no_memory(e);
        json_decref(found);
    }
    sv_stored_let_go(st, k);
    return rc;
}

static int add_item(struct talk *t, const json_t *item, const char *place, struct sv_api_err *e)
{
    static const struct {
        const char *type;
        int (*take)(struct talk *t, const json_t *item, const char *place, struct sv_api_err *e);
    } kinds[] = {{"message", take_message},
                 {"function_call", take_call},
                 {"function_call_output", take_output},
                 {"reasoning", take_reasoning}};
    const json_t *v = json_object_get(item, "type"), *id = json_object_get(item, "id");
    const char *type = json_string_value(v);
    char at[PLACE];

    if (!json_is_object(item))
        return sv_wrong_type(e, place, "an object", item);
    if (type && strcmp(type, "item_reference") == 0)
        return take_reference(t, item, place, e);
    if (sv_json_is_none(v) && !json_object_get(item, "role") && id)
        return take_reference(t, item, place, e);
    if (sv_json_is_none(v))
        type = "message";
    if (!sv_json_is_none(id) && !sv_json_is_text(id)) {
        snprintf(at, sizeof at, "%s.id", place);
        return sv_wrong_type(e, at, "a string", id);
    }
    for (size_t i = 0; type && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(type, kinds[i].type) == 0)
            return kinds[i].take(t, item, place, e) || keep_item(t, item, e) ? -1 : 0;
    snprintf(at, sizeof at, "%s.type", place);
    sv_api_bad(e, at,
               "'%s': \"%.40s\" is no item that is supported; message, function_call, "
               "function_call_output, reasoning and item_reference are",
               at, type ? type : "");
    e->code = "unsupported_parameter";
    return -1;
}

static int add_previous(struct talk *t, const struct sv_kept *previous, struct sv_api_err *e)
{
    struct sv_buf lines, *items = t->items;
    struct sv_kept_item line;
    int rc = 0;

    t->items = NULL; /* these are stored already */
    sv_buf_init(&lines);
    sv_kept_items(previous, true, &lines);
    for (size_t at = 0; at < lines.len && !rc; at += sizeof line) {
        memcpy(&line, lines.data + at, sizeof line);
        json_t *item = parse_line(&line);
        rc = item ? add_item(t, item, "previous_response_id", e) : sv_api_no_memory(e);
        if (!rc && items &&
            json_object_set_new(t->ids, json_string_value(json_object_get(item, "id")),
                                json_true()))
            rc = sv_api_no_memory(e);
        json_decref(item);
    }
    if (!rc && lines.failed)
        rc = sv_api_no_memory(e);
    sv_buf_fini(&lines);
    t->items = items;
    return rc;
}

static int add_input(struct talk *t, json_t *input, struct sv_api_err *e)
{
    char place[32];

    if (json_is_string(input)) {
        json_t *item =
            json_pack("{s:s,s:s,s:O}", "type", "message", "role", "user", "content", input);
        int rc = item ? add_item(t, item, "input", e) : sv_api_no_memory(e);
        json_decref(item);
        return rc;
    }
    for (size_t i = 0; i < json_array_size(input); i++) {
        snprintf(place, sizeof place, "input[%zu]", i);
        if (add_item(t, json_array_get(input, i), place, e))
            return -1;
    }
    return 0;
}

int sv_responses_messages(const struct sv_serve *s, int key, struct sv_params *p,
                          const struct sv_kept *previous, const char *name, struct sv_buf *items,
                          struct sv_api_err *e)
{
    struct talk t = {
        .p = p, .messages = json_array(), .s = s, .key = key, .name = name, .items = items};

    if (!sv_params_own(p, t.messages) || (items && !(t.ids = json_object())))
        return sv_api_no_memory(e);
    sv_buf_init(&t.first);
    if (p->instructions)
        sv_buf_append(&t.first, p->instructions, strlen(p->instructions));
    int rc = previous ? add_previous(&t, previous, e) : 0;
    if (!rc)
        rc = add_input(&t, p->input, e);
    if (!rc)
        rc = end_first(&t, e);
    sv_buf_fini(&t.first);
    json_decref(t.ids);
    if (rc)
        return -1;
    p->messages = t.messages;
    return json_array_size(t.messages)
               ? 0
               : sv_api_bad(e, "input", "'input' is %s", p->input ? "empty" : "missing");
}
