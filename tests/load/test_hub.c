/*
 * test_hub.c - names and directories of the Hugging Face hub cache.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/load.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define HASH "c1899de289a04d12100db370d81485cdf75e47ca"

static void names(void **state)
{
    static const struct {
        const char *dir, *name;
    } list[] = {
        {"/models/Qwen3-0.6B", "Qwen3-0.6B"},
        {"Qwen3-0.6B///", "Qwen3-0.6B"},
        {".", "."},
        {"/", ""},
        {"", ""},
        {"/hub/models--Qwen--Qwen3-0.6B/snapshots/" HASH, "Qwen/Qwen3-0.6B"},
        {"/hub/models--Qwen--Qwen3-0.6B/snapshots/" HASH "/", "Qwen/Qwen3-0.6B"},
        {"models--Qwen--Qwen3-0.6B//snapshots//" HASH "//", "Qwen/Qwen3-0.6B"},
        {"models--Qwen--Qwen3-0.6B", "Qwen/Qwen3-0.6B"},
        {"hub/models--gpt2/snapshots/" HASH, "gpt2"},
        {"models--a--b--c", "a/b--c"},
        {"models--a--", "a--"},
        {"models----b", "--b"},
        {"models--", "models--"},
        {"/hub/models--Qwen--Qwen3-0.6B/other/" HASH, HASH},
        {"/hub/Qwen3-0.6B/snapshots/" HASH, HASH},
        {"snapshots/" HASH, HASH},
    };
    char name[256];
    (void)state;

    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        sv_model_name(list[i].dir, name, sizeof name);
        if (strcmp(name, list[i].name) != 0)
            fail_msg("%s is called %s, not %s", list[i].dir, name, list[i].name);
    }
    sv_model_name("models--Qwen--Qwen3-0.6B", name, 8); /* cut, with its end */
    assert_string_equal(name, "Qwen/Qw");
}

static const char *make_dir(const char *name)
{
    const char *dir = sv_test_tmp(name);
    assert_int_equal(mkdir(dir, 0755), 0);
    return dir;
}

static void directories(void **state)
{
    const char *plain = make_dir("plain"), *hub = make_dir("models--Org--Name");
    struct sv_err err = {0};
    char path[600], dir[600], want[700];
    (void)state;

    assert_int_equal(sv_model_dir(plain, dir, sizeof dir, &err), SV_OK);
    assert_string_equal(dir, plain);
    /* Not there: opening it reports that. */
    assert_int_equal(sv_model_dir("no/such/dir", dir, sizeof dir, &err), SV_OK);
    assert_string_equal(dir, "no/such/dir");

    assert_int_equal(sv_model_dir(hub, dir, sizeof dir, &err), SV_EIO);
    assert_non_null(strstr(err.msg, "models--Org--Name/refs/main: cannot open"));
    snprintf(path, sizeof path, "%s/refs", hub);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/refs/main", hub);
    static const struct {
        const char *text;
        size_t n;
    } bad[] = {{"", 0}, {"\n", 1}, {"../../etc", 9}, {"c1 c1", 5}, {"c1\0c1", 5}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sv_file_write(path, bad[i].text, bad[i].n, &err), SV_OK);
        assert_int_equal(sv_model_dir(hub, dir, sizeof dir, &err), SV_EFORMAT);
        assert_non_null(strstr(err.msg, "refs/main: holds no commit"));
    }
    assert_int_equal(sv_file_write(path, HASH "\n", sizeof HASH, &err), SV_OK);
    snprintf(want, sizeof want, "%s/snapshots/" HASH, hub);
    for (int i = 0; i < 2; i++) { /* with and without a slash behind it */
        snprintf(path, sizeof path, i ? "%s//" : "%s", hub);
        assert_int_equal(sv_model_dir(path, dir, sizeof dir, &err), SV_OK);
        assert_string_equal(dir, want);
    }
    assert_int_equal(sv_model_dir(hub, dir, strlen(want), &err), SV_EINVAL);
    assert_int_equal(sv_model_dir(hub, dir, strlen(want) + 1, &err), SV_OK);

    /* A directory of that name which has a model itself. */
    snprintf(path, sizeof path, "%s/config.json", hub);
    assert_int_equal(sv_file_write(path, "{}", 2, &err), SV_OK);
    assert_int_equal(sv_model_dir(hub, dir, sizeof dir, &err), SV_OK);
    assert_string_equal(dir, hub);
}

static void without_memory(void **state)
{
    const char *hub = make_dir("models--Org--Name");
    int64_t live = sv_alloc_live();
    struct sv_err err = {0};
    char path[600], dir[600];
    bool hit = true;
    (void)state;

    snprintf(path, sizeof path, "%s/refs", hub);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/refs/main", hub);
    assert_int_equal(sv_file_write(path, HASH, strlen(HASH), &err), SV_OK);
    for (int64_t nth = 1; hit; nth++) {
        sv_fault_arm(nth);
        int rc = sv_model_dir(hub, dir, sizeof dir, &err);
        hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        assert_int_equal(rc != SV_OK, hit);
        assert_int_equal(sv_alloc_live(), live);
        assert_true(nth < 100);
    }
}

SV_TEST_MAIN(cmocka_unit_test(names), cmocka_unit_test(directories),
             cmocka_unit_test(without_memory))
