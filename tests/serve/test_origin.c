/*
 * test_origin.c - names in Host, and origins, of which web pages may use the server.
 */
#include "serve/http/origin.h"

#include "testing.h"

static void hosts(void **state)
{
    static const struct {
        const char *host, *names;
        bool fine;
    } tries[] = {
        {"127.0.0.1", NULL, true},
        {"127.0.0.1:8000", NULL, true},
        {"10.1.2.3", NULL, true},
        {"[::1]", NULL, true},
        {"[::1]:8000", NULL, true},
        {"[fe80::1:2]:1", "", true},
        {"localhost", NULL, true},
        {"LocalHost:8000", NULL, true},
        {"evil.example", NULL, false},
        {"evil.example:8000", NULL, false},
        {"127.0.0.1.evil.example", NULL, false},
        {"localhost.evil.example", NULL, false},
        {"evil.localhost", NULL, false},
        {"127.0.0.1x", NULL, false},
        {"127.1", NULL, false},
        {"1.2.3.4.5", NULL, false},
        {"[::1", NULL, false},
        {"[]", NULL, false},
        {"[", NULL, false},
        {"::1", NULL, false},
        {"[127.0.0.1]", NULL, false},
        {"[00000000000000000000000000000000000000000000000000000000000001]", NULL, false},
        {"", NULL, false},
        {":8000", "", false},
        {"", "a", false},
        {"a", "a", true},
        {"A:80", "b, a", true},
        {"c", "b,a", false},
        {"b", "b,a", true},
        {"ba", "b,a", false},
        {"b", "ba", false},
        {"b,a", "b,a", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        if (sv_host_is_allowed(tries[i].host, tries[i].names) != tries[i].fine)
            fail_msg("Host '%s', names '%s'", tries[i].host,
                     tries[i].names ? tries[i].names : "(none)");
}

static void origins(void **state)
{
    static const struct {
        const char *origin, *host, *cors;
        bool fine;
    } tries[] = {
        {"http://127.0.0.1:8000", "127.0.0.1:8000", NULL, true},
        {"https://Name", "name", NULL, true},
        {"http://[::1]:8000", "[::1]:8000", NULL, true},
        {"http://127.0.0.1:8001", "127.0.0.1:8000", NULL, false},
        {"http://127.0.0.1", "127.0.0.1:8000", NULL, false},
        {"http://evil.example", "127.0.0.1:8000", NULL, false},
        {"http://127.0.0.1:8000.evil.example", "127.0.0.1:8000", NULL, false},
        {"null", "127.0.0.1:8000", NULL, false},
        {"null", "null", NULL, false},
        {"", "127.0.0.1:8000", NULL, false},
        {"http://a", NULL, NULL, false},
        {"http://a", "b", "http://a", true},
        {"http://a", "b", "http://b", false},
        {"http://a", "b", "*", true},
        {"null", NULL, "*", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        if (sv_origin_is_allowed(tries[i].origin, tries[i].host, tries[i].cors) != tries[i].fine)
            fail_msg("Origin '%s', Host '%s'", tries[i].origin,
                     tries[i].host ? tries[i].host : "(none)");
}

SV_TEST_MAIN(cmocka_unit_test(hosts), cmocka_unit_test(origins))
