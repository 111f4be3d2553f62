/*
 * blocks.c - what a client of Anthropic's API makes of a stream: blocks.h says how.
 *
 * Called by test_messages.c and test_deltas.c. Must not: let an event through that such a client
 * would not take.
 */
#include "serve/blocks.h"

#include "serve/hub.h"

#include "testing.h"

#include <string.h>

json_t *blocks_of_stream(json_t *events)
{
    json_t *m = json_deep_copy(hub_at(json_array_get(events, 0), "message")), *e;
    json_t *blocks = hub_at(m, "content"), *open = NULL;
    struct sv_buf piece;
    struct sv_err err;
    size_t i;

    sv_buf_init(&piece);
    assert_string_equal(hub_text(json_array_get(events, 0), "type"), "message_start");
    json_array_foreach(events, i, e) {
        const char *type = hub_text(e, "type");
        if (strcmp(type, "content_block_start") == 0) {
            assert_null(open);
            assert_int_equal(hub_number(e, "index"), json_array_size(blocks));
            open = json_deep_copy(hub_at(e, "content_block"));
            json_array_append_new(blocks, open);
            sv_buf_clear(&piece);
        } else if (strcmp(type, "content_block_delta") == 0) {
            const char *kind = hub_text(e, "delta.type"), *own = hub_text(open, "type");
            assert_int_equal(hub_number(e, "index") + 1, json_array_size(blocks));
            if (strcmp(kind, "signature_delta") == 0) {
                json_object_set(open, "signature", hub_at(e, "delta.signature"));
                continue;
            }
            const char *member = strcmp(own, "tool_use") == 0   ? "partial_json"
                                 : strcmp(own, "thinking") == 0 ? "thinking"
                                                                : "text";
            assert_string_equal(kind, strcmp(own, "tool_use") == 0   ? "input_json_delta"
                                      : strcmp(own, "thinking") == 0 ? "thinking_delta"
                                                                     : "text_delta");
            sv_buf_append(&piece, hub_text(hub_at(e, "delta"), member),
                          strlen(hub_text(hub_at(e, "delta"), member)));
            if (strcmp(own, "tool_use") != 0)
                json_object_set_new(open, member, json_string(piece.data));
        } else if (strcmp(type, "content_block_stop") == 0) {
            assert_int_equal(hub_number(e, "index") + 1, json_array_size(blocks));
            if (strcmp(hub_text(open, "type"), "tool_use") == 0)
                json_object_set_new(open, "input", sv_json_parse(piece.data, piece.len, &err));
            open = NULL;
        } else if (strcmp(type, "message_delta") == 0) {
            assert_null(open);
            json_object_update(m, hub_at(e, "delta"));
            json_object_set(m, "usage", hub_at(e, "usage"));
            assert_int_equal(i, json_array_size(events) - 2);
        } else if (strcmp(type, "message_start") != 0) {
            assert_string_equal(type, "message_stop");
            assert_int_equal(i, json_array_size(events) - 1);
        }
    }
    sv_buf_fini(&piece);
    return m;
}

void blocks_forget_ids(json_t *m)
{
    json_t *b;
    size_t i;

    json_object_del(m, "id");
    json_object_del(m, "usage");
    json_array_foreach(json_object_get(m, "content"), i, b) {
        json_object_del(b, "id");
        json_object_del(b, "signature");
    }
}
