/*
 * test_inbox.c - events that may wait stay packed, and come before whatever follows of the same
 * sequence.
 */
#include "serve/core/call.h"

#include "testing.h"

#include <string.h>

enum { N = 40 };
static struct sv_choice gens[N]; /* only their addresses count */

static void add(struct sv_inbox *in, int gen, int64_t at_us, bool urgent, const char *text)
{
    int32_t token = (int32_t)at_us;
    struct sv_out o = {.kind = SV_OUT_EVENT,
                       .choice = &gens[gen],
                       .at_us = at_us,
                       .urgent = urgent,
                       .n_tokens = 1,
                       .tokens = &token,
                       .text = text,
                       .n_text = (uint32_t)strlen(text)};
    sv_out_pack(&in->taken, &o, NULL, NULL);
}

/* What comes, as "gen:text " one after another. */
static void comes(struct sv_inbox *in, bool all, const char *want)
{
    struct sv_out o;
    struct sv_buf got;

    sv_buf_init(&got);
    sv_inbox_begin(in, all);
    while (sv_inbox_next(in, &o)) {
        assert_int_equal(o.n_tokens, 1);
        assert_int_equal(o.tokens[0], o.at_us);
        sv_buf_printf(&got, "%d:%.*s ", (int)(o.choice - gens), (int)o.n_text, o.text);
    }
    sv_buf_append(&got, "", 1);
    assert_string_equal(got.data, want);
    sv_buf_fini(&got);
    sv_buf_clear(&in->taken); /* as the next batch does */
}

static void order_of_each_is_kept(void **state)
{
    struct sv_inbox in = {.all = false};
    (void)state;

    comes(&in, false, "");
    add(&in, 0, 1, true, "a");
    add(&in, 1, 2, false, "b");
    add(&in, 2, 3, false, "");
    comes(&in, false, "0:a ");
    assert_int_equal(in.kept_us, 2);
    add(&in, 1, 4, false, "c");
    add(&in, 0, 5, false, "d");
    comes(&in, false, "");
    assert_int_equal(in.kept_us, 2);
    add(&in, 0, 6, false, "e");
    add(&in, 1, 7, true, "f"); /* its last: b and c come first */
    add(&in, 2, 8, false, "g");
    comes(&in, false, "1:b 1:c 1:f ");
    add(&in, 2, 9, false, "h");
    comes(&in, true, "2: 0:d 0:e 2:g 2:h ");
    assert_int_equal(in.kept_us, 0);
    comes(&in, true, "");
    sv_inbox_fini(&in);
}

/* What is no event of a sequence's middle comes at once, and so does everything when too many begin
 * or end. */
static void reports_and_crowds(void **state)
{
    struct sv_inbox in = {.all = false};
    struct sv_out o = {.kind = SV_OUT_REJECTED, .choice = &gens[3]};
    (void)state;

    add(&in, 0, 1, false, "a");
    sv_out_pack(&in.taken, &o, NULL, NULL);
    sv_inbox_begin(&in, false);
    assert_true(sv_inbox_next(&in, &o));
    assert_int_equal(o.kind, SV_OUT_REJECTED);
    assert_ptr_equal(o.choice, &gens[3]);
    assert_false(sv_inbox_next(&in, &o));
    sv_buf_clear(&in.taken);
    for (int i = 1; i <= SV_INBOX_WANTED + 1; i++)
        add(&in, i, i, true, "x");
    sv_inbox_begin(&in, false);
    for (int i = 0; i <= SV_INBOX_WANTED + 1; i++) {
        assert_true(sv_inbox_next(&in, &o));
        assert_ptr_equal(o.choice, &gens[i]);
    }
    assert_false(sv_inbox_next(&in, &o));
    assert_int_equal(in.kept_us, 0);
    sv_inbox_fini(&in);
}

SV_TEST_MAIN(cmocka_unit_test(order_of_each_is_kept), cmocka_unit_test(reports_and_crowds))
