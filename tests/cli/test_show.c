/*
 * test_show.c - output for people and programs: progress lines, tables, bars, samples, sums over
 * answers.
 */
#define _POSIX_C_SOURCE 200809L /* open_memstream */

#include "testing.h"

#include "bench/load.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- progress */

static void progress_fits_any_width(void **state)
{
    struct sv_cli_progress p = {.label = "generate", .unit = "answers", .total = 1000};
    struct sv_buf b;
    (void)state;

    sv_buf_init(&b);
    for (int done = 0; done <= 1000; done += 125) {
        for (int columns = 1; columns < 200; columns++) {
            p.done = done;
            p.n_items = done / 10;
            p.n_tokens = 77 * done;
            sv_buf_clear(&b);
            sv_cli_progress_line(&p, 5000000, columns, &b);
            assert_true(b.len <= (size_t)columns);
            assert_null(strpbrk(b.data, "\r\n"));
        }
    }
    sv_buf_fini(&b);
}

static void progress_says_rate_and_eta(void **state)
{
    struct sv_cli_progress p = {.label = "generate",
                                .unit = "answers",
                                .total = 1000,
                                .done = 250,
                                .n_items = 25,
                                .n_tokens = 5000};
    struct sv_buf b;
    (void)state;

    sv_buf_init(&b);
    sv_cli_progress_line(&p, 10000000, 79, &b);
    assert_non_null(strstr(b.data, " 25 %"));
    assert_non_null(strstr(b.data, "500 tok/s"));
    assert_non_null(strstr(b.data, "ETA 0:30"));
    assert_non_null(strstr(b.data, "[======"));
    p.total = 0; /* a pipe: no share, no bar, no ETA */
    sv_buf_clear(&b);
    sv_cli_progress_line(&p, 3725000000, 79, &b);
    assert_string_equal(b.data, "generate 25 answers, 1 tok/s, 1:02:05");
    sv_buf_fini(&b);
}

/* ---------------------------------------------------------------- tables */

static void fill_table(struct sv_cli_table *t)
{
    sv_cli_table_init(t);
    sv_cli_table_column(t, "name of it", false);
    sv_cli_table_column(t, "v", true);
    sv_cli_table_add(t, "a, \"b\"");
    sv_cli_table_add(t, "%.1f", 1.5);
    sv_cli_table_add(t, "µ");
    sv_cli_table_add(t, "%s", "");
    sv_cli_table_add(t, "x");
    sv_cli_table_add(t, "1 ± 2");
}

static void tables_in_three_forms(void **state)
{
    struct sv_cli_table t;
    struct sv_buf b;
    (void)state;

    fill_table(&t);
    sv_buf_init(&b);
    sv_cli_table_write(&t, "md", &b);
    assert_string_equal(b.data, "| name of it |     v |\n"
                                "| ---------- | ----: |\n"
                                "| a, \"b\"     |   1.5 |\n"
                                "| µ          |       |\n"
                                "| x          | 1 ± 2 |\n");
    sv_buf_clear(&b);
    sv_cli_table_write(&t, "csv", &b);
    assert_string_equal(b.data, "name_of_it,v\n\"a, \"\"b\"\"\",1.5\nµ,\nx,1 ± 2\n");
    sv_buf_clear(&b);
    sv_cli_table_write(&t, "json", &b);
    assert_string_equal(b.data, "[\n  {\"name_of_it\": \"a, \\\"b\\\"\", \"v\": 1.5},\n"
                                "  {\"name_of_it\": \"µ\", \"v\": null},\n"
                                "  {\"name_of_it\": \"x\", \"v\": \"1 ± 2\"}\n]\n");
    sv_buf_fini(&b);
    sv_cli_table_fini(&t);
    assert_int_equal(sv_alloc_live(), 0);
}

static void tables_without_memory(void **state)
{
    (void)state;

    for (int64_t n = 1; n < 12; n++) {
        struct sv_cli_table t;
        struct sv_buf b;
        sv_buf_init(&b);
        sv_fault_arm(n);
        fill_table(&t);
        sv_cli_table_write(&t, "md", &b);
        sv_fault_arm(0);
        sv_buf_fini(&b);
        sv_cli_table_fini(&t);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void sizes_for_people(void **state)
{
    char b[24];
    (void)state;

    assert_string_equal(sv_cli_count(9999, b), "9999");
    assert_string_equal(sv_cli_count(8600000, b), "8.60 M");
    assert_string_equal(sv_cli_count(7600000000, b), "7.60 B");
    assert_string_equal(sv_cli_bytes(1023, b), "1023 B");
    assert_string_equal(sv_cli_bytes(17 << 20, b), "17.00 MiB");
    assert_int_equal(sv_cli_text_columns("aµ€", 6), 3);
}

static void bars_in_eighths(void **state)
{
    static const struct {
        double share;
        const char *bar;
    } want[] = {{0, ""},          {-1, ""},    {0.125, "▌"}, {0.5, "██"},
                {0.53125, "██▏"}, {1, "████"}, {9, "████"}};
    struct sv_buf b;
    (void)state;

    sv_buf_init(&b);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        sv_buf_clear(&b);
        sv_cli_bar(want[i].share, 4, &b);
        assert_string_equal(b.data ? b.data : "", want[i].bar);
    }
    sv_buf_fini(&b);
}

/* ---------------------------------------------------------------- samples and answers */

static void samples(void **state)
{
    struct sv_cli_samples s = {.n = 0};
    (void)state;

    assert_true(sv_cli_samples_median(&s) == 0);
    sv_cli_samples_add(&s, 5);
    sv_cli_samples_add(&s, 1);
    assert_true(sv_cli_samples_median(&s) == 3);
    sv_cli_samples_add(&s, 9);
    assert_true(sv_cli_samples_median(&s) == 5);
    assert_true(sv_cli_samples_min(&s) == 1 && sv_cli_samples_max(&s) == 9);
    for (int i = 0; i < 2 * SV_CLI_MAX_SAMPLES; i++)
        sv_cli_samples_add(&s, 7);
    assert_int_equal(s.n, SV_CLI_MAX_SAMPLES);
}

static void put_ids(struct sv_cli_answer *a, int n, int period)
{
    sv_buf_clear(&a->ids);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = i >= 40 ? i % period : 1000 + i;
        sv_buf_append(&a->ids, &id, sizeof id);
    }
}

static void loops_are_seen(void **state)
{
    struct sv_cli_answer a;
    (void)state;

    sv_cli_answer_init(&a, NULL);
    put_ids(&a, 40, 1);
    assert_false(sv_cli_answer_loops(&a));
    put_ids(&a, 40 + 33, 1);
    assert_true(sv_cli_answer_loops(&a));
    put_ids(&a, 40 + 32, 1); /* one token short of repeating over 32 */
    assert_false(sv_cli_answer_loops(&a));
    put_ids(&a, 40 + 4 * 48, 48);
    assert_true(sv_cli_answer_loops(&a));
    put_ids(&a, 40 + 4 * 49, 49); /* too long a period, but little is new */
    assert_true(sv_cli_answer_loops(&a));
    put_ids(&a, 40 + 100, 60);
    assert_false(sv_cli_answer_loops(&a));
    sv_cli_answer_fini(&a);
}

static void differences_and_hashes(void **state)
{
    struct sv_cli_answer a, b;
    (void)state;

    sv_cli_answer_init(&a, NULL);
    sv_cli_answer_init(&b, NULL);
    assert_int_equal(sv_cli_first_difference(&a, &b), -1);
    put_ids(&a, 50, 3);
    put_ids(&b, 50, 3);
    assert_int_equal(sv_cli_first_difference(&a, &b), -1);
    assert_true(sv_cli_answer_hash(0, &a) == sv_cli_answer_hash(0, &b));
    put_ids(&b, 49, 3);
    assert_int_equal(sv_cli_first_difference(&a, &b), 49);
    assert_true(sv_cli_answer_hash(0, &a) != sv_cli_answer_hash(0, &b));
    put_ids(&b, 50, 4);
    assert_int_equal(sv_cli_first_difference(&a, &b), 40);
    sv_cli_answer_fini(&a);
    sv_cli_answer_fini(&b);
}

static void accept_lengths(void **state)
{
    static const uint16_t len[] = {1, 4, 4, 16};
    struct sv_cli_accept s = {0};
    struct sv_cli_answer a;
    struct sv_buf b;
    (void)state;

    sv_cli_answer_init(&a, NULL);
    sv_buf_append(&a.accept, len, sizeof len);
    sv_cli_accept_add(&s, &a);
    sv_cli_accept_add(&s, &a);
    assert_true(sv_cli_accept_mean(&s) == 6.25);
    sv_buf_init(&b);
    sv_cli_accept_list(&s, &b);
    assert_string_equal(b.data, "1:2 4:4 16:2");
    sv_buf_fini(&b);
    sv_cli_answer_fini(&a);
}

/* What a terminal would obey is shown; elsewhere every byte goes through as it is. */
static void control_characters_are_shown(void **state)
{
    static const char text[] = "a\033[2Jb\a\tc\n\x7F\xC2\x9B"
                               "2J\xC2\xA0\xC3\x9B";
    static const char *const want[] = {text, "a^[[2Jb^G\tc\n^?^[[2J\xC2\xA0\xC3\x9B"};
    (void)state;

    for (int tty = 0; tty < 2; tty++) {
        struct sv_cli_painter p;
        char *got = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&got, &n);
        sv_cli_painter_init(&p, f, false);
        p.tty = tty;
        sv_cli_painter_event(&p, NULL,
                             &(struct sv_event){.text = text, .n_bytes = sizeof text - 1});
        sv_cli_painter_fini(&p);
        fclose(f);
        assert_string_equal(got, want[tty]);
        free(got);
    }
}

/* `--stop` may be given more than once and stands anywhere. */
static void stops_are_taken_out(void **state)
{
    char *argv[] = {"run", "--stop", "a", "-p", "x", "--stop=b", "--", "--stop", NULL};
    struct sv_cli_sampling s = sv_cli_sampling_default();
    int argc = 8;
    (void)state;

    assert_int_equal(sv_cli_take_stops(&s, "run", &argc, argv), -1);
    assert_int_equal(argc, 5);
    assert_string_equal(argv[1], "-p");
    assert_string_equal(argv[4], "--stop");
    assert_null(argv[5]);
    assert_int_equal(s.n_stop, 2);
    assert_string_equal(s.stop[0], "a");
    assert_string_equal(s.stop[1], "b");
}

/* A load test without answers, in no time: the figures are valid numbers. */
static void a_report_of_nothing(void **state)
{
    struct sv_bench_load_request r = {.error = "refused"};
    struct sv_bench_load_result res = {.r = &r, .n = 1, .concurrency = 1};
    struct sv_err err = {0};
    struct sv_buf b;
    (void)state;

    sv_buf_init(&b);
    sv_bench_load_report(&res, true, &b);
    json_t *root = sv_json_parse(b.data, b.len, &err);
    if (!root)
        fail_msg("%s: %s", err.msg, b.data);
    assert_int_equal(json_integer_value(json_object_get(root, "failed")), 1);
    assert_true(json_number_value(json_object_get(root, "output_throughput")) == 0);
    json_decref(root);
    sv_buf_clear(&b);
    sv_bench_load_report(&res, false, &b);
    assert_null(strstr(b.data, "nan"));
    assert_non_null(strstr(b.data, "Request throughput (req/s):              0.00"));
    sv_buf_fini(&b);
}

SV_TEST_MAIN(cmocka_unit_test(progress_fits_any_width),
             cmocka_unit_test(progress_says_rate_and_eta), cmocka_unit_test(tables_in_three_forms),
             cmocka_unit_test(tables_without_memory), cmocka_unit_test(sizes_for_people),
             cmocka_unit_test(bars_in_eighths), cmocka_unit_test(samples),
             cmocka_unit_test(loops_are_seen), cmocka_unit_test(differences_and_hashes),
             cmocka_unit_test(accept_lengths), cmocka_unit_test(stops_are_taken_out),
             cmocka_unit_test(control_characters_are_shown), cmocka_unit_test(a_report_of_nothing))
