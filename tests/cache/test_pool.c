/*
 * test_pool.c - the page pools against a naive model: random reserve, trim, slide and release, page
 * by page.
 *
 * Every step checks the invariants, that no page is handed out twice, and that canaries written to
 * the pages a sequence holds are still there whatever the others did.
 */
#include "testing.h"

#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 7, POSITIONS = 150 };

static struct sv_dev *open_dev(void)
{
    struct sv_dev *dev = NULL;
    struct sv_err err = {0};
    struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    if (sv_dev_open(&dev, &o, &err))
        fail_msg("%s", err.msg);
    return dev;
}

/* The tag a position's first K element holds in a group. */
static float tag(int32_t group, int32_t slot, int32_t pos, int32_t generation)
{
    return (float)(((generation % 50 * SLOTS + slot) * POSITIONS + pos) * 4 + group);
}

static float *cell(const struct sv_cache *c, int32_t group, int32_t slot, int32_t pos)
{
    const struct sv_cache_group *g = &c->group[group];
    struct sv_kv kv = sv_cache_kv(c, group, g->d.n_layers - 1);
    int32_t page = g->table[(size_t)slot * (size_t)g->stride + (size_t)(pos / kv.page_size)];
    assert_in_range(page, 0, kv.n_pages - 1);
    size_t at = (size_t)page * (size_t)(kv.n_kv_heads * kv.page_size * kv.head_dim);
    return (float *)kv.k + at + (size_t)(pos % kv.page_size * kv.head_dim);
}

struct naive {
    int32_t n_backed, lowest, generation;
};

static int32_t first_kept(const struct sv_cache *c, int32_t group, const struct naive *m)
{
    const struct sv_cache_group_desc *d = &c->group[group].d;
    if (!d->window)
        return 0;
    int32_t low = m->lowest - d->window + 1;
    return low > 0 ? low / d->page_size * d->page_size : 0;
}

static void mark(struct sv_cache *c, int32_t slot, const struct naive *m, int32_t from)
{
    for (int32_t g = 0; g < c->n_groups; g++)
        for (int32_t p = from; p < m->n_backed; p++)
            if (p >= first_kept(c, g, m))
                *cell(c, g, slot, p) = tag(g, slot, p, m->generation);
}

static void check_marks(const struct sv_cache *c, const struct naive *m)
{
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t g = 0; g < c->n_groups; g++)
            for (int32_t p = first_kept(c, g, &m[s]); p < m[s].n_backed; p++)
                if (*cell(c, g, s, p) != tag(g, s, p, m[s].generation))
                    fail_msg("slot %d group %d position %d was overwritten", s, g, p);
}

static int32_t pages_of(const struct sv_cache *c, int32_t g, int32_t positions)
{
    return (positions + c->group[g].d.page_size - 1) / c->group[g].d.page_size;
}

/* Would the naive model, counting pages one by one, find room? */
static bool naive_fits(const struct sv_cache *c, const struct naive *m, int32_t slot, int32_t want)
{
    for (int32_t g = 0; g < c->n_groups; g++) {
        int32_t used = 0;
        for (int32_t s = 0; s < SLOTS; s++) {
            int32_t first = first_kept(c, g, &m[s]) / c->group[g].d.page_size;
            int32_t n = pages_of(c, g, m[s].n_backed);
            used += n > first ? n - first : 0;
        }
        int32_t more = pages_of(c, g, want) - pages_of(c, g, m[slot].n_backed);
        if (used + more > c->group[g].d.n_pages)
            return false;
    }
    return true;
}

static void random_ops(int32_t page_size, uint64_t seed)
{
    struct sv_dev *dev = open_dev();
    struct sv_err err = {0};
    const struct sv_cache_group_desc desc[] = {
        {.n_layers = 2,
         .n_kv_heads = 1,
         .head_dim = 8,
         .page_size = page_size,
         .n_pages = 400 / page_size},
        {.n_layers = 1,
         .n_kv_heads = 1,
         .head_dim = 8,
         .window = 20,
         .page_size = page_size,
         .n_pages = 400 / page_size},
    };
    struct sv_cache c;
    if (sv_cache_open(&c, dev, desc, 2, SLOTS, POSITIONS, &err))
        fail_msg("%s", err.msg);
    struct naive m[SLOTS] = {{0}};
    struct sv_rng rng = {seed};
    int n_refused = 0;
    for (int step = 0; step < 4000; step++) {
        int32_t s = (int32_t)sv_rng_below(&rng, SLOTS);
        switch (sv_rng_below(&rng, 8)) {
        case 0: /* finish or cancel */
            sv_cache_release(&c, s);
            m[s] = (struct naive){.generation = m[s].generation + 1};
            break;
        case 1: { /* reject: give back what was reserved ahead */
            int32_t n = m[s].lowest + (int32_t)sv_rng_below(&rng, 20);
            if (n < m[s].n_backed) {
                sv_cache_trim(&c, s, n);
                m[s].n_backed = n;
            }
            break;
        }
        case 2: /* accept */
            if (m[s].n_backed > m[s].lowest)
                m[s].lowest +=
                    (int32_t)sv_rng_below(&rng, (uint32_t)(m[s].n_backed - m[s].lowest + 1));
            sv_cache_slide(&c, s, m[s].lowest);
            break;
        default: { /* admit or grow */
            int32_t want = m[s].n_backed + (int32_t)sv_rng_below(&rng, 40);
            bool fits = want <= POSITIONS && naive_fits(&c, m, s, want);
            bool got = sv_cache_reserve(&c, s, want);
            assert_int_equal(got, want <= m[s].n_backed || fits);
            n_refused += !got;
            if (got) {
                int32_t from = m[s].n_backed;
                m[s].n_backed = want;
                mark(&c, s, &m[s], from);
            }
        }
        }
        sv_cache_check(&c);
        if (step % 16 == 0)
            check_marks(&c, m);
    }
    assert_true(n_refused > 10); /* the pools were really short at times */
    for (int32_t s = 0; s < SLOTS; s++)
        sv_cache_release(&c, s);
    assert_int_equal(sv_cache_n_free(&c, 0), 400 / page_size);
    assert_int_equal(sv_cache_n_free(&c, 1), 400 / page_size);
    sv_cache_check(&c);
    sv_cache_close(&c);
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

static void random_page_1(void **state)
{
    (void)state;
    random_ops(1, 1);
}

static void random_page_16(void **state)
{
    (void)state;
    random_ops(16, 2);
}

static void random_page_64(void **state)
{
    (void)state;
    random_ops(64, 3);
}

static void uploads_only_changes(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_err err = {0};
    const struct sv_cache_group_desc desc = {
        .n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_size = 4, .n_pages = 8};
    struct sv_cache c;
    assert_int_equal(sv_cache_open(&c, dev, &desc, 1, 2, 16, &err), SV_OK);
    sv_cache_upload(&c);
    for (int i = 0; i < 8; i++)
        assert_int_equal(c.group[0].dev_table[i], -1);
    assert_true(sv_cache_reserve(&c, 1, 5));
    assert_int_equal(c.group[0].dev_table[4], -1); /* not before upload */
    sv_cache_upload(&c);
    assert_int_equal(c.group[0].dev_table[0], -1);
    assert_true(c.group[0].dev_table[4] >= 0 && c.group[0].dev_table[5] >= 0);
    assert_int_equal(c.group[0].dev_table[6], -1);
    assert_false(sv_cache_reserve(&c, 1, 17)); /* above max_positions */
    assert_true(sv_cache_reserve(&c, 0, 16));
    assert_int_equal(sv_cache_n_available(&c), 2);
    sv_cache_release(&c, 0);
    sv_cache_release(&c, 1);
    struct sv_cache_need need = {{0}};
    sv_cache_add_need(&c, 0, 9, 1, &need);
    sv_cache_add_need(&c, 1, 8, 1, &need);
    assert_int_equal(need.n_pages[0], 3 + 2);
    assert_true(sv_cache_can_back(&c, 0, &need, 3) && !sv_cache_can_back(&c, 0, &need, 4));
    sv_cache_close(&c);
    sv_dev_close(dev);
}

static void open_survives_faults(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    const struct sv_cache_group_desc desc = {
        .n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .page_size = 4, .n_pages = 8};
    int64_t live = sv_alloc_live();
    for (int64_t n = 1;; n++) {
        struct sv_cache c;
        struct sv_err err = {0};
        sv_fault_arm(n);
        int rc = sv_cache_open(&c, dev, &desc, 1, 2, 16, &err);
        sv_fault_arm(0);
        if (!rc) {
            assert_true(n > 3);
            sv_cache_close(&c);
            break;
        }
        assert_true(err.msg[0]);
        assert_int_equal(sv_alloc_live(), live);
    }
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(random_page_1), cmocka_unit_test(random_page_16),
             cmocka_unit_test(random_page_64), cmocka_unit_test(uploads_only_changes),
             cmocka_unit_test(open_survives_faults))
