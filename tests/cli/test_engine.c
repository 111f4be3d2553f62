/*
 * test_engine.c - the pieces of the command line that drive an engine, on the tiny pair: driving,
 * Ctrl-C, comparing two arms, painting drafted tokens.
 */
#define _POSIX_C_SOURCE 200809L

#include "testing.h"

#include "cli/cli.h"
#include "cli/measure.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct sv_engine *open_engine(const char *target, const char *draft, int32_t sequences)
{
    struct sv_engine_options o = sv_default_options();
    struct sv_engine *e = NULL;
    char err[512] = "";

    o.target_dir = sv_test_path(target);
    o.draft_dir = draft ? sv_test_path(draft) : NULL;
    o.max_sequences = sequences;
    if (sv_open_engine(&e, &o, err, sizeof err) < 0)
        fail_msg("%s", err);
    return e;
}

#define TARGET "tests/golden/tiny/pair_target"
#define DRAFT "tests/golden/tiny/pair_draft_sliding_b8"
#define OTHER "tests/golden/tiny/qwen3_tied_bf16"

static void load(struct sv_cli_prompts *p, int n, int max_tokens)
{
    struct sv_request defaults = sv_default_request(NULL);
    struct sv_err err = {0};
    char line[128];

    memset(p, 0, sizeof *p);
    defaults.max_tokens = max_tokens;
    defaults.ignore_eos = true;
    for (int i = 0; i < n; i++) {
        snprintf(line, sizeof line, "{\"id\":%d,\"prompt_token_ids\":[%d,%d],\"kind\":\"%s\"}", i,
                 3 + i, 40 + 3 * i, i % 2 ? "odd" : "even");
        assert_int_equal(sv_cli_prompts_add(p, line, strlen(line), &defaults, 290, NULL, &err), 0);
    }
}

/* ---------------------------------------------------------------- two arms */

static void equal_arms(void **state)
{
    struct sv_engine *plain = open_engine(TARGET, NULL, 3), *dflash = open_engine(TARGET, DRAFT, 3);
    struct sv_cli_pair_opts o = {
        .repeat = 2, .concurrency = {1, 3}, .n_concurrency = 2, .keep_loops = true};
    struct sv_cli_pair_results r;
    struct sv_cli_prompts p;
    struct sv_err err = {0};
    (void)state;

    load(&p, 5, 30);
    assert_int_equal(sv_cli_pair_measure(plain, dflash, &p, &o, &r, &err), 0);
    assert_false(r.differ);
    assert_int_equal(r.n, 6);
    for (int i = 0; i < 6; i++) {
        const struct sv_cli_pair_row *row = &r.row[i];
        assert_string_equal(row->kind, i % 3 == 0 ? "even" : i % 3 == 1 ? "odd" : "all");
        assert_int_equal(row->concurrency, i < 3 ? 1 : 3);
        assert_int_equal(row->n_tokens, 30 * (i % 3 == 0 ? 3 : i % 3 == 1 ? 2 : 5));
        assert_int_equal(row->arm[0].rate.n, 2);
        assert_int_equal(row->arm[1].rate.n, 2);
        assert_true(row->arm[0].hash == row->arm[1].hash);
        /* the first token of each answer comes from its prompt */
        assert_int_equal(row->accept.n_tokens, row->n_tokens - row->n_prompts);
    }
    assert_true(r.row[2].arm[0].hash == r.row[5].arm[0].hash);
    sv_cli_pair_results_fini(&r);
    sv_cli_prompts_fini(&p);
    sv_close_engine(plain);
    sv_close_engine(dflash);
    assert_int_equal(sv_alloc_live(), 0);
}

static void different_arms_are_found_out(void **state)
{
    struct sv_engine *plain = open_engine(TARGET, NULL, 1), *other = open_engine(OTHER, NULL, 1);
    struct sv_cli_pair_opts o = {
        .repeat = 1, .concurrency = {1}, .n_concurrency = 1, .keep_loops = true};
    struct sv_cli_pair_results r;
    struct sv_cli_prompts p;
    struct sv_err err = {0};
    (void)state;

    load(&p, 2, 20);
    assert_int_equal(sv_cli_pair_measure(plain, other, &p, &o, &r, &err), 0);
    assert_true(r.differ);
    assert_true(r.row[r.n - 1].arm[0].hash != r.row[r.n - 1].arm[1].hash);
    sv_cli_pair_results_fini(&r);
    sv_cli_prompts_fini(&p);
    sv_close_engine(plain);
    sv_close_engine(other);
}

static void a_prompt_that_fails_is_named(void **state)
{
    struct sv_engine *plain = open_engine(TARGET, NULL, 1);
    struct sv_cli_pair_opts o = {.repeat = 1, .concurrency = {1}, .n_concurrency = 1};
    struct sv_request defaults = sv_default_request(NULL);
    struct sv_cli_pair_results r;
    struct sv_cli_prompts p = {0};
    struct sv_err err = {0};
    static const char line[] = "{\"id\":\"empty\",\"prompt\":\"\"}";
    (void)state;

    assert_int_equal(sv_cli_prompts_add(&p, line, strlen(line), &defaults, 290, NULL, &err), 0);
    assert_true(sv_cli_pair_measure(plain, NULL, &p, &o, &r, &err) < 0);
    assert_non_null(strstr(err.msg, "prompt \"empty\": the prompt is empty"));
    sv_cli_pair_results_fini(&r);
    sv_cli_prompts_fini(&p);
    sv_close_engine(plain);
}

/* ---------------------------------------------------------------- driving */

static void interrupted_answers_are_canceled(void **state)
{
    struct sv_engine *e = open_engine(TARGET, DRAFT, 2);
    struct sv_cli_answer a[4];
    struct sv_request r[4];
    static const int32_t ids[] = {5, 6, 7};
    struct sv_err err = {0};
    (void)state;

    for (int i = 0; i < 4; i++) {
        sv_cli_answer_init(&a[i], e);
        r[i] = sv_default_request(e);
        r[i].prompt_ids = ids;
        r[i].n_prompt_ids = 3;
        r[i].max_tokens = 100;
        r[i].ignore_eos = true;
    }
    sv_cli_catch_interrupt();
    raise(SIGINT);
    assert_int_equal(sv_cli_answer_run(e, r, 4, 2, a, &err), SV_ECANCELED);
    assert_int_equal(a[0].finish, SV_FINISH_CANCELED);
    assert_int_equal(a[1].finish, SV_FINISH_CANCELED);
    assert_int_equal(a[2].finish, SV_FINISH_NONE);
    sv_cli_clear_interrupt();
    assert_int_equal(sv_cli_answer_run(e, r, 4, 2, a, &err), SV_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a[i].finish, SV_FINISH_LENGTH);
        assert_int_equal(sv_cli_answer_n(&a[i]), 100);
        assert_int_equal(sv_cli_first_difference(&a[0], &a[i]), -1);
    }
    for (int i = 0; i < 4; i++)
        sv_cli_answer_fini(&a[i]);
    sv_close_engine(e);
    assert_int_equal(sv_alloc_live(), 0);
}

/* ---------------------------------------------------------------- painting */

/* Escape sequences taken out; none may stand inside a code point. */
static void strip(char *text)
{
    char *to = text;

    for (const char *p = text; *p;) {
        if (*p == '\033') {
            assert_true(p[1] == '[');
            p += strcspn(p, "m") + 1;
            assert_true(((unsigned char)*p & 0xC0) != 0x80);
            continue;
        }
        *to++ = *p++;
    }
    *to = 0;
}

static void colours_leave_the_text_alone(void **state)
{
    struct sv_engine *e = open_engine(TARGET, DRAFT, 1);
    static const char *const stop[] = {"~~~never~~~", "e"};
    struct sv_cli_answer a;
    struct sv_err err = {0};
    int n_green = 0;
    (void)state;

    sv_cli_answer_init(&a, e);
    for (int32_t i = 0; i < 60; i++) {
        struct sv_request r = sv_default_request(e);
        struct sv_cli_painter painter;
        char *text = NULL;
        size_t n = 0;
        int32_t ids[] = {3 + i, 2 * i};
        FILE *f = open_memstream(&text, &n);
        r.prompt_ids = ids;
        r.n_prompt_ids = 2;
        r.max_tokens = 60;
        r.ignore_eos = i % 2; /* special tokens in the middle of the text */
        r.stop = stop;
        r.n_stop = i % 3; /* text that lags behind */
        r.temperature = i % 4 ? 0 : 1.5;
        r.seed = (uint64_t)i;
        sv_cli_painter_init(&painter, f, true);
        a.painter = &painter;
        assert_int_equal(sv_cli_answer_run(e, &r, 1, 1, &a, &err), 0);
        assert_int_equal(painter.due.len, 0);
        assert_int_equal(painter.now, SV_CLI_PLAIN);
        sv_cli_painter_fini(&painter);
        fclose(f);
        n_green += strstr(text, "\033[32m") != NULL;
        assert_int_equal(a.text.len, strlen(a.text.data)); /* or strip would end early */
        strip(text);
        assert_string_equal(text, a.text.data);
        free(text);
    }
    assert_true(n_green > 10);
    sv_cli_answer_fini(&a);
    sv_close_engine(e);
}

SV_TEST_MAIN(cmocka_unit_test(equal_arms), cmocka_unit_test(different_arms_are_found_out),
             cmocka_unit_test(a_prompt_that_fails_is_named),
             cmocka_unit_test(interrupted_answers_are_canceled),
             cmocka_unit_test(colours_leave_the_text_alone))
