/*
 * testing.h - what every test program starts with: cmocka, and a main that the runner can drive.
 *
 * A test program is tests/<area>/test_<name>.c with cmocka tests and one SV_TEST_MAIN line at its
 * end:
 *
 *     static void adds(void **state) { (void)state; assert_int_equal(1 + 1, 2); }
 *     SV_TEST_MAIN(cmocka_unit_test(adds))
 *
 * `prog --list` prints the names, `prog NAME` runs one test, `prog` runs all. The runner
 * (tests/runner.c) starts each test in its own process with a time limit of 60 s; a comment in the
 * test's source changes it, `timeout: 300` for the whole program or `timeout: NAME 300` for one
 * test. cmocka's skip() or exit code 77 means skipped (print why). Other .c files below tests/ are
 * helpers that every test program can call.
 *
 * Cases run under ASan and UBSan. Of those that a comment declares on a line of its own, `release:
 * NAME` or `release: all`, `make test` runs a part there, which walks each code path once
 * (sv_test_brief), and the whole in the release build.
 */
#ifndef SV_TESTING_H
#define SV_TESTING_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

int sv_test_main(int argc, char **argv, const char *file, const struct CMUnitTest *tests, size_t n);
/* A part is enough: the runner has the whole run in the release build. */
bool sv_test_brief(void);
/* Path below the repository root ("tests/golden/x"), in one of a few rotating static buffers. */
const char *sv_test_path(const char *relative);
/* Path in a directory of this process alone, made on first use and removed at exit. Buffers as
 * above. */
const char *sv_test_tmp(const char *name);

#define SV_TEST_MAIN(...)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        const struct CMUnitTest tests[] = {__VA_ARGS__};                                           \
        return sv_test_main(argc, argv, __FILE__, tests, sizeof tests / sizeof tests[0]);          \
    }

#endif
