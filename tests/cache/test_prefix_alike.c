/*
 * test_prefix_alike.c - pages that differ in one token only, at each place of the page, and equal
 * pages after different prefixes: more of them than the index has buckets, so that a missing
 * comparison would be found.
 */
#include "testing.h"

#include "cache/cache.h"

#include <string.h>

enum { PAGE = 8, KEPT = 200, N_PAGES = 2 * KEPT + 8 };

static void open_cache(struct sv_cache *c, struct sv_dev **dev)
{
    const struct sv_dev_opts o = {.n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    const struct sv_cache_group_desc desc = {
        .n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_size = PAGE, .n_pages = N_PAGES};
    struct sv_err err = {0};

    if (sv_dev_open(dev, &o, &err) || sv_cache_open(c, *dev, &desc, 1, 2, 4 * PAGE, &err) ||
        sv_cache_keep_prefixes(c, &err))
        fail_msg("%s", err.msg);
}

static int32_t page_of(const struct sv_cache *c, int32_t page)
{
    return c->group[0].table[page];
}

/* Publishes a text of n positions from slot 0 and says which page its last one is. */
static int32_t keep(struct sv_cache *c, const int32_t *tokens, int32_t n)
{
    int32_t page;

    sv_cache_attach(c, 0, tokens, n, 0);
    assert_true(sv_cache_reserve(c, 0, n));
    sv_cache_publish(c, 0, tokens, n);
    page = page_of(c, n / PAGE - 1);
    sv_cache_release(c, 0);
    return page;
}

static void one_token_apart(void **state)
{
    (void)state;
    for (int32_t at = 0; at < PAGE; at++) {
        struct sv_cache c;
        struct sv_dev *dev;
        int32_t tokens[PAGE], page[KEPT];

        open_cache(&c, &dev);
        for (int32_t i = 0; i < PAGE; i++)
            tokens[i] = 7;
        for (int32_t k = 0; k < KEPT; k++) {
            tokens[at] = 10 + k;
            page[k] = keep(&c, tokens, PAGE);
        }
        for (int32_t k = 0; k < 8 * KEPT; k++) {
            tokens[at] = 10 + k;
            assert_int_equal(sv_cache_attach(&c, 0, tokens, PAGE, 0), k < KEPT ? PAGE : 0);
            if (k < KEPT)
                assert_int_equal(page_of(&c, 0), page[k]);
            sv_cache_release(&c, 0);
        }
        sv_cache_check(&c);
        sv_cache_close(&c);
        sv_dev_close(dev);
    }
}

/* The same page of tokens behind many beginnings: each is found behind its own alone. */
static void the_same_behind_others(void **state)
{
    (void)state;
    struct sv_cache c;
    struct sv_dev *dev;
    int32_t tokens[2 * PAGE], page[KEPT];

    open_cache(&c, &dev);
    for (int32_t i = 0; i < 2 * PAGE; i++)
        tokens[i] = 7;
    for (int32_t k = 0; k < KEPT; k++) {
        tokens[0] = 10 + k;
        page[k] = keep(&c, tokens, 2 * PAGE);
    }
    for (int32_t k = 0; k < KEPT; k++) {
        tokens[0] = 10 + k;
        assert_int_equal(sv_cache_attach(&c, 0, tokens, 2 * PAGE, 0), 2 * PAGE);
        assert_int_equal(page_of(&c, 1), page[k]);
        sv_cache_release(&c, 0);
    }
    assert_int_equal(sv_cache_attach(&c, 0, tokens + PAGE, PAGE, 0),
                     0); /* no beginning of anything */
    sv_cache_release(&c, 0);
    sv_cache_check(&c);
    sv_cache_close(&c);
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(one_token_apart), cmocka_unit_test(the_same_behind_others))
