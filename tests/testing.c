/*
 * testing.c - the main function of every test program, and where tests find and put files.
 *
 * Linked into each tests/<area>/test_*.c; called by the runner and by hand. Must not: decide about
 * time limits or what counts as failed beyond the exit status: 0 passed, 77 skipped, anything else
 * failed.
 */
#define _GNU_SOURCE /* nftw, sigaction */

#include "testing.h"

#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char tmp_dir[64];

/* Absurd sizes must come back as NULL, as without a sanitizer, so that tests can ask for them. The
 * shadow of up to 128 MiB is cleared, not mapped anew, which costs page faults. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:clear_shadow_mmap_threshold=16777216";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1:die_after_fork=0:halt_on_error=1";
}

const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void)
{
    return "print_stacktrace=1";
}

/* The tree that this program was built from: what stands before /build in its own path. */
static const char *root(void)
{
    static char dir[PATH_MAX];
    ssize_t n;
    char *cut, *next;

    if (dir[0])
        return dir;
    n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    if (n > 0) {
        dir[n] = 0;
        cut = strstr(dir, "/build");
        while (cut && (next = strstr(cut + 1, "/build")))
            cut = next;
        if (cut) {
            *cut = 0;
            return dir;
        }
    }
    if (!realpath(".", dir)) /* absolute: tests make links to what lies there */
        strcpy(dir, ".");
    return dir;
}

/* Results rotate through a few buffers, so that one call may use several. */
static const char *keep(const char *dir, const char *name)
{
    static char paths[8][PATH_MAX];
    static unsigned turn;
    char *path = paths[turn++ % 8];

    if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX) {
        fprintf(stderr, "path too long: %s\n", name);
        abort();
    }
    return path;
}

const char *sv_test_path(const char *relative)
{
    return keep(root(), relative);
}

bool sv_test_brief(void)
{
    return getenv("SALVO_TEST_BRIEF") != NULL;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_tmp(void)
{
    nftw(tmp_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *sv_test_tmp(const char *name)
{
    if (!tmp_dir[0]) {
        strcpy(tmp_dir, "/tmp/salvo-test-XXXXXX");
        if (!mkdtemp(tmp_dir)) {
            perror("mkdtemp");
            abort();
        }
        atexit(remove_tmp);
    }
    return keep(tmp_dir, name);
}

/* cmocka catches SIGSEGV and its like, which hides the sanitizer's report of where it was. So each
 * test starts by putting back the handlers that were there before cmocka. */
static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
#define N_CRASH_SIGNALS (sizeof crash_signals / sizeof crash_signals[0])
static struct sigaction crash_actions[N_CRASH_SIGNALS];
static CMUnitTestFunction current;

static void with_own_handlers(void **state)
{
    for (size_t i = 0; i < N_CRASH_SIGNALS; i++)
        sigaction(crash_signals[i], &crash_actions[i], NULL);
    current(state);
}

static int run_one(const char *file, const struct CMUnitTest *test)
{
    struct CMUnitTest copy = *test;
    current = test->test_func;
    copy.test_func = with_own_handlers;
    return _cmocka_run_group_tests(file, &copy, 1, NULL, NULL) != 0;
}

/* A failed assertion jumps over the test's clean-up; a leak report about that would only hide the
 * reason. */
static int end(int n_failed)
{
    if (!n_failed)
        return 0;
    fflush(NULL);
    if (tmp_dir[0])
        remove_tmp();
    _exit(1);
}

int sv_test_main(int argc, char **argv, const char *file, const struct CMUnitTest *tests, size_t n)
{
    int n_failed = 0;

    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--help") == 0)) {
        printf("usage: %s [--list | NAME]\n", argv[0]);
        return argc > 2 ? 2 : 0;
    }
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < n; i++)
            puts(tests[i].name);
        return 0;
    }
    for (size_t i = 0; i < N_CRASH_SIGNALS; i++)
        sigaction(crash_signals[i], NULL, &crash_actions[i]);
    for (size_t i = 0; i < n; i++) {
        if (argc == 2 && strcmp(tests[i].name, argv[1]) == 0)
            return end(run_one(file, &tests[i]));
        if (argc == 1)
            n_failed += run_one(file, &tests[i]);
    }
    if (argc == 2) {
        fprintf(stderr, "%s: no test named '%s'\n", file, argv[1]);
        return 2;
    }
    return end(n_failed);
}
