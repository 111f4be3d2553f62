/*
 * test_stored.c - the store of /v1/responses by itself, and what reads from it and writes to it:
 * bounds, what is counted, and memory that runs out.
 */
#include "serve/openai/responses.h"

#include "testing.h"

#include <string.h>

static void bodies_that_stand_for_more(void **state)
{
    static const struct {
        const char *body;
        bool more;
    } list[] = {{"{\"input\":\"a\"}", false},
                {"{\"input\":[{\"role\":\"user\",\"content\":\"\\u00e4\\u003c\"}]}", false},
                {"{\"input\":\"a\",\"previous_response_id\":\"resp_0\"}", true},
                {"{\"input\":\"a\",\"previous\\u005fresponse_id\":\"resp_0\"}", true},
                {"{\"input\":\"a\",\"previous_respons\\u0065_id\":\"resp_0\"}", true},
                {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_0_0\"}]}", true},
                {"{\"input\":[{\"id\":\"msg_0_0\"}]}", true},
                {"{\"input\":[{\"i\\u0064\":\"msg_0_0\"}]}", true}};
    (void)state;

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (sv_responses_is_long(list[i].body, strlen(list[i].body)) != list[i].more)
            fail_msg("%s", list[i].body);
}

static void put(struct sv_stored *st, const char *id, struct sv_kept *before, size_t n)
{
    struct sv_buf input, response;

    sv_buf_init(&input);
    sv_buf_init(&response);
    sv_buf_printf(&response, "%*d", (int)n, 0);
    sv_stored_put(st, -1, id, before, &input, &response, 0, 0);
    sv_buf_fini(&input);
    sv_buf_fini(&response);
}

static bool has(struct sv_stored *st, const char *id)
{
    struct sv_kept *k = sv_stored_get(st, -1, id);

    sv_stored_let_go(st, k);
    return k;
}

/* A conversation beyond the bounds leaves the others alone, and what there was of it. */
static void a_conversation_larger_than_all(void **state)
{
    static const char *const ids[] = {"1", "2", "3"};
    struct sv_stored *st;
    struct sv_kept *k = NULL;
    int64_t n, n_bytes, live = sv_alloc_live();
    struct sv_err err;
    (void)state;

    assert_int_equal(sv_stored_open(&st, 10, 10000, &err), SV_OK);
    put(st, "other", NULL, 1000);
    for (int i = 0; i < 3; i++) {
        put(st, ids[i], k, 3500);
        sv_stored_let_go(st, k);
        k = sv_stored_get(st, -1, ids[i]);
    }
    assert_null(k);
    assert_true(has(st, "other") && has(st, "1") && has(st, "2"));
    sv_stored_count(st, &n, &n_bytes);
    assert_int_equal(n, 3);
    assert_in_range(n_bytes, 8000, 9500);
    /* Deleted, and held by the turn behind it: counted until that leaves too. */
    assert_true(sv_stored_delete(st, -1, "1"));
    assert_false(sv_stored_delete(st, -1, "1"));
    sv_stored_count(st, &n, &n_bytes);
    assert_in_range(n_bytes, 8000, 9500);
    assert_true(sv_stored_delete(st, -1, "2"));
    sv_stored_count(st, &n, &n_bytes);
    assert_int_equal(n, 1);
    assert_in_range(n_bytes, 1000, 1500);
    sv_stored_close(st);
    assert_int_equal(sv_alloc_live(), live);
}

/* Whatever finds no memory: it is kept whole, or not at all. */
static void keeping_without_memory(void **state)
{
    static const char lines[] = "{\"id\":\"a\"}\n{\"id\":\"b\"}\n";
    int64_t live = sv_alloc_live(), nth = 0;
    bool kept = false, hit = true;
    struct sv_err err;
    (void)state;

    while (hit) {
        struct sv_buf input, response, items;
        struct sv_stored *st = NULL;
        sv_buf_init(&input);
        sv_buf_init(&response);
        sv_buf_init(&items);
        assert_int_equal(sv_stored_open(&st, 10, 10000, &err), SV_OK);
        sv_fault_arm(++nth);
        sv_buf_append(&input, lines, sizeof lines - 1);
        sv_buf_append(&response, lines, sizeof lines - 1);
        sv_stored_put(st, -1, "1", NULL, &input, &response, 0, response.len);
        hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        struct sv_kept *k = sv_stored_get(st, -1, "1");
        if (k) {
            sv_kept_items(k, true, &items);
            assert_int_equal(items.len, 4 * sizeof(struct sv_kept_item));
        }
        kept = k;
        sv_stored_let_go(st, k);
        sv_buf_fini(&items);
        sv_buf_fini(&input);
        sv_buf_fini(&response);
        sv_stored_close(st);
        assert_int_equal(sv_alloc_live(), live);
    }
    assert_true(kept);
    assert_in_range(nth, 4, 20);
}

/* An answer whose text found no memory is lost for its client, and is not kept as if it were whole.
 */
static void half_an_answer(void **state)
{
    static const struct sv_serve_model m;
    struct sv_serve s = {.model = &m, .model_name = "m"};
    struct sv_response own = {0};
    struct sv_prompt prompt = {0};
    struct sv_choice g = {.finish = SV_FINISH_STOP};
    struct sv_call c = {.s = &s,
                        .choices = &g,
                        .n_choices = 1,
                        .key = -1,
                        .prompts = &prompt,
                        .n_prompts = 1,
                        .p.store = true,
                        .p.n = 1,
                        .id = "resp_0",
                        .own = &own};
    struct sv_buf b;
    struct sv_err err;
    (void)state;

    assert_int_equal(sv_stored_open(&s.stored, 10, 10000, &err), SV_OK);
    for (int lost = 1; lost >= 0; lost--) {
        g.call = &c;
        sv_buf_init(&b);
        sv_buf_clear(&g.deltas);
        sv_buf_clear(&g.text);
        sv_buf_lit(&g.text, "half of");
        g.text.failed = lost;
        sv_dialect_responses.body(&c, &b);
        assert_int_equal(b.failed, lost);
        assert_int_equal(has(s.stored, "resp_0"), !lost);
        sv_buf_fini(&b);
    }
    sv_buf_fini(&g.deltas);
    sv_buf_fini(&g.text);
    sv_stored_close(s.stored);
}

/* Whatever of a conversation found no memory, it is refused, and lets go of what it went on from.
 */
static void going_on_without_memory(void **state)
{
#define NAME "0123456789abcdef0123456789abcdef"
    static const char lines[] =
        "{\"id\":\"msg_" NAME "_in0\",\"type\":\"message\",\"role\":\"user\","
        "\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]}\n",
                      said[] =
                          "{\"id\":\"msg_" NAME "_0\",\"type\":\"message\",\"role\":\"assistant\","
                          "\"content\":[{\"type\":\"output_text\",\"text\":\"b\"}]}\n";
    static const struct sv_serve_model m = {.info.context = 100, .max_token_bytes = 10};
    static struct sv_params p;
    struct sv_serve s = {.model = &m, .o.max_body_bytes = 1000};
    struct sv_buf input, response;
    struct sv_err err;
    int64_t nth = 0;
    int rc = -1;
    (void)state;

    sv_buf_init(&input);
    sv_buf_init(&response);
    sv_buf_append(&input, lines, sizeof lines - 1);
    sv_buf_append(&response, said, sizeof said - 1);
    assert_int_equal(sv_stored_open(&s.stored, 10, 10000, &err), SV_OK);
    sv_stored_put(s.stored, -1, "resp_" NAME, NULL, &input, &response, 0, response.len);
    struct sv_kept *k = sv_stored_get(s.stored, -1, "resp_" NAME);
    int64_t live = sv_alloc_live();
    while (rc) {
        struct sv_api_err e = {0};
        p = (struct sv_params){.input = json_pack("[{s:s},{s:s,s:s}]", "id", "msg_" NAME "_0",
                                                  "role", "user", "content", "c")};
        sv_buf_init(&input);
        sv_fault_arm(++nth);
        rc = sv_responses_messages(&s, -1, &p, k, "2", &input, &e);
        bool hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        assert_int_equal(!hit, !rc);
        assert_int_equal(e.status, rc ? 500 : 0);
        if (!rc)
            assert_int_equal(json_array_size(p.messages), 4);
        json_decref(p.input);
        sv_params_fini(&p);
        sv_buf_fini(&input);
        assert_int_equal(sv_alloc_live(), live);
        assert_true(nth < 1000);
    }
    assert_true(nth > 30);
    sv_stored_let_go(s.stored, k);
    sv_stored_close(s.stored);
}

SV_TEST_MAIN(cmocka_unit_test(bodies_that_stand_for_more),
             cmocka_unit_test(a_conversation_larger_than_all),
             cmocka_unit_test(keeping_without_memory), cmocka_unit_test(going_on_without_memory),
             cmocka_unit_test(half_an_answer))
