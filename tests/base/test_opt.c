/* test_opt.c - the option table: every form a value can take, every complaint, the help text. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */

#include "testing.h"
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static struct {
    bool flag, other;
    int64_t n;
    double t;
    const char *path;
} v;

static const struct sv_opt table[] = {
    {"flag", 'f', SV_OPT_FLAG, &v.flag, NULL, "a flag"},
    {"other", 'o', SV_OPT_FLAG, &v.other, NULL, "another"},
    {"count", 'n', SV_OPT_INT, &v.n, "N", "how many"},
    {"temperature", 0, SV_OPT_FLOAT, &v.t, "T", "how warm"},
    {"a-path-with-a-long-name", 'p', SV_OPT_STRING, &v.path, "FILE", "where"},
    {NULL, 0, SV_OPT_FLAG, NULL, NULL, NULL},
};

static int n_pos;
static char *words[16];
static struct sv_err err;

/* Splits line at blanks; "_" is an empty word. */
static int parse(const char *line)
{
    static char text[256];
    int argc = 1;

    memset(&v, 0, sizeof v);
    v.n = 3;
    strcpy(text, line);
    words[0] = "prog";
    for (char *w = strtok(text, " "); w; w = strtok(NULL, " "))
        words[argc++] = strcmp(w, "_") ? w : "";
    words[argc] = NULL;
    return sv_opt_parse(table, "usage: prog", argc, words, &n_pos, &err);
}

static void values_in_all_forms(void **state)
{
    (void)state;
    assert_int_equal(parse(""), 0);
    assert_int_equal(v.n, 3);
    assert_int_equal(parse("--count 5 --flag --temperature=0.5"), 0);
    assert_true(v.n == 5 && v.flag && v.t == 0.5 && !v.other && n_pos == 0);
    assert_int_equal(parse("-n -7 -fo -pfile"), 0);
    assert_true(v.n == -7 && v.flag && v.other);
    assert_string_equal(v.path, "file");
    assert_int_equal(parse("-fn12"), 0);
    assert_true(v.flag && v.n == 12);
    assert_int_equal(parse("-n 1 --count=2"), 0);
    assert_int_equal(v.n, 2);
    assert_int_equal(parse("--temperature 1e-400"), 0);
    assert_true(v.t == 0);
    assert_int_equal(parse("--a-path-with-a-long-name="), 0);
    assert_string_equal(v.path, "");
}

static void positional_words_move_to_the_front(void **state)
{
    (void)state;
    assert_int_equal(parse("one -n 4 two - -- -f --count"), 0);
    assert_int_equal(n_pos, 5);
    assert_string_equal(words[1], "one");
    assert_string_equal(words[2], "two");
    assert_string_equal(words[3], "-");
    assert_string_equal(words[4], "-f");
    assert_string_equal(words[5], "--count");
    assert_false(v.flag);
}

static void complaints_name_the_option(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--nope", "unknown option --nope"},
        {"x -z", "unknown option -z"},
        {"--count", "option --count needs a value (N)"},
        {"-n", "option --count needs a value (N)"},
        {"--count 1x", "option --count: '1x' is not an integer"},
        {"--count _", "option --count: '' is not an integer"},
        {"--count 99999999999999999999", "option --count: 99999999999999999999 is out of range"},
        {"--count 99999999999999999999x",
         "option --count: '99999999999999999999x' is not an integer"},
        {"--temperature -1e999", "option --temperature: -1e999 is out of range"},
        {"--temperature warm", "option --temperature: 'warm' is not a number"},
        {"--temperature nan", "option --temperature: 'nan' is not a number"},
        {"--flag=1", "option --flag takes no value"},
        {"--fla", "unknown option --fla"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(parse(cases[i][0]), SV_EINVAL);
        assert_string_equal(err.msg, cases[i][1]);
    }
    parse("x -z");
    assert_int_equal(err.pos, 2);
}

static void help_lists_all(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    sv_opt_help(table, "usage: prog [options]", f);
    fclose(f);
    assert_string_equal(text, "usage: prog [options]\n\nOptions:\n"
                              "  -f, --flag                a flag\n"
                              "  -o, --other               another\n"
                              "  -n, --count N             how many\n"
                              "      --temperature T       how warm\n"
                              "  -p, --a-path-with-a-long-name FILE\n"
                              "                            where\n"
                              "  -h, --help                show this text\n");
    free(text);

    static const struct sv_opt wordy[] = {
        {"long", 0, SV_OPT_FLAG, NULL, NULL,
         "more than one line has room for, so that it goes on below where it began, until it ends "
         "with the text"},
        {"url", 0, SV_OPT_FLAG, NULL, NULL,
         "https://a-word-that-is-longer-than-what-is-left-of-a-line.example/ stays whole"},
        {0}};
    f = open_memstream(&text, &n);
    sv_opt_help(wordy, "usage", f);
    fclose(f);
    assert_string_equal(
        text, "usage\n\nOptions:\n"
              "      --long                more than one line has room for, so that it goes on\n"
              "                            below where it began, until it ends with the text\n"
              "      --url                 "
              "https://a-word-that-is-longer-than-what-is-left-of-a-line.example/\n"
              "                            stays whole\n"
              "  -h, --help                show this text\n");
    free(text);
    assert_int_equal(parse("--help"), 1);
    assert_int_equal(parse("-f -h"), 1);
}

SV_TEST_MAIN(cmocka_unit_test(values_in_all_forms),
             cmocka_unit_test(positional_words_move_to_the_front),
             cmocka_unit_test(complaints_name_the_option), cmocka_unit_test(help_lists_all))
