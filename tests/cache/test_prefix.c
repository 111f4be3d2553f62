/*
 * test_prefix.c - the prefix index against a naive model: random sequences over two tokens, so that
 * beginnings often agree, in pools that are always short.
 *
 * The model records, for every page-aligned prefix that was ever published, when it was last used.
 * Canaries: a position's content is a function of the tokens up to it, so attached pages must match
 * their tokens, in every group, whichever sequence wrote them.
 */
#include "testing.h"

#include "cache/cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, POSITIONS = 64, WINDOW = 12 };

static struct sv_dev *open_dev(void)
{
    struct sv_dev *dev = NULL;
    struct sv_err err = {0};
    struct sv_dev_opts o = {.n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    if (sv_dev_open(&dev, &o, &err))
        fail_msg("%s", err.msg);
    return dev;
}

static void open_cache(struct sv_cache *c, struct sv_dev *dev, int32_t page_size, int32_t n_pages,
                       bool keep)
{
    struct sv_err err = {0};
    const struct sv_cache_group_desc desc[] = {
        {.n_layers = 2, .n_kv_heads = 1, .head_dim = 8, .page_size = page_size, .n_pages = n_pages},
        {.n_layers = 1,
         .n_kv_heads = 1,
         .head_dim = 8,
         .window = WINDOW,
         .page_size = page_size,
         .n_pages = n_pages},
        {.owner = SV_CACHE_DRAFT,
         .n_layers = 1,
         .n_kv_heads = 1,
         .head_dim = 8,
         .page_size = page_size,
         .n_pages = n_pages},
    };
    if (sv_cache_open(c, dev, desc, 3, SLOTS, POSITIONS, &err) ||
        (keep && sv_cache_keep_prefixes(c, &err)))
        fail_msg("%s", err.msg);
}

static const uint64_t salts[][2] = {{0, 0}, {5, 0}, {5, 1}, {0, 1}};

/* What position p of a text holds: its salt and all of it up to there, small enough for a float. */
static float content(uint32_t salt, const int32_t *tokens, int32_t p, int32_t group)
{
    uint32_t h = (uint32_t)group + 1 + 8 * salt;
    for (int32_t i = 0; i <= p; i++)
        h = h * 31 + (uint32_t)tokens[i] + 7;
    return (float)(h & 0xffffff);
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

struct text {
    uint32_t salt;                /* which */
    int32_t tokens[POSITIONS], n; /* n committed */
    bool runs, left_out;          /* left_out: ran while the index was flushed */
};

/* Every beginning of whole pages that the index may know. */
struct known {
    uint32_t salt;
    int32_t tokens[POSITIONS], n;
    int64_t used; /* when it was last let go; busy ones are told by the texts */
};
struct model {
    struct sv_cache c;
    int32_t page, n_pages;
    struct text text[SLOTS];
    struct known known[4096];
    int32_t n_known;
    int64_t clock;
    struct sv_rng rng;
    int64_t n_found, n_evicted, n_refused;
};

static int32_t known_at(const struct model *m, const struct text *t, int32_t n)
{
    for (int32_t i = 0; i < m->n_known; i++)
        if (m->known[i].n == n && m->known[i].salt == t->salt &&
            !memcmp(m->known[i].tokens, t->tokens, (size_t)n * 4))
            return i;
    return -1;
}

static bool is_busy(const struct model *m, const struct known *k)
{
    for (int32_t s = 0; s < SLOTS; s++) {
        const struct text *t = &m->text[s];
        if (t->runs && !t->left_out && t->n / m->page * m->page >= k->n && t->salt == k->salt &&
            !memcmp(t->tokens, k->tokens, (size_t)k->n * 4))
            return true;
    }
    return false;
}

static int32_t n_idle(const struct model *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_known; i++)
        n += !is_busy(m, &m->known[i]);
    return n;
}

/* Forgets the idle beginning used longest ago; of one path the longest goes first. */
static void naive_evict(struct model *m)
{
    int32_t best = -1;
    for (int32_t i = 0; i < m->n_known; i++) {
        const struct known *k = &m->known[i], *b = best < 0 ? NULL : &m->known[best];
        if (!is_busy(m, k) && (!b || k->used < b->used || (k->used == b->used && k->n > b->n)))
            best = i;
    }
    assert_true(best >= 0);
    m->known[best] = m->known[--m->n_known];
    m->n_evicted++;
}

static void naive_publish(struct model *m, const struct text *t)
{
    if (t->left_out)
        return;
    for (int32_t n = m->page; n <= t->n; n += m->page) {
        if (known_at(m, t, n) >= 0)
            continue;
        assert_true(m->n_known < 4096);
        struct known *k = &m->known[m->n_known++];
        k->n = n;
        k->salt = t->salt;
        memcpy(k->tokens, t->tokens, (size_t)n * 4);
    }
}

static void write_from(struct model *m, int32_t s, int32_t from, int32_t to)
{
    for (int32_t g = 0; g < m->c.n_groups; g++)
        for (int32_t p = from; p < to; p++)
            *cell(&m->c, g, s, p) = content(m->text[s].salt, m->text[s].tokens, p, g);
}

static void check_content(const struct model *m, int32_t s)
{
    const struct text *t = &m->text[s];
    for (int32_t g = 0; g < m->c.n_groups; g++) {
        int32_t lowest = sv_cache_n_unseen(&m->c.group[g], t->n) * m->page;
        for (int32_t p = lowest; p < t->n; p++)
            if (*cell(&m->c, g, s, p) != content(t->salt, t->tokens, p, g))
                fail_msg("slot %d group %d position %d says something else", s, g, p);
    }
}

static void arrive(struct model *m, int32_t s)
{
    struct text *t = &m->text[s];
    *t = (struct text){.runs = true};
    t->salt = sv_rng_below(&m->rng, 3) ? 0 : sv_rng_below(&m->rng, 4);
    sv_cache_set_salt(&m->c, s, salts[t->salt]);
    for (int32_t i = 0; i < POSITIONS; i++)
        t->tokens[i] = sv_rng_below(&m->rng, 8 + 2 * (uint32_t)m->page) == 0;
    int32_t ask = (int32_t)sv_rng_below(&m->rng, POSITIONS), want = 0;
    for (int32_t n = m->page; n <= ask && known_at(m, t, n) >= 0; n += m->page)
        want = n;
    assert_int_equal(sv_cache_known(&m->c, salts[t->salt], t->tokens, ask), want);
    assert_int_equal(sv_cache_attach(&m->c, s, t->tokens, ask, 0), want);
    m->n_found += want;
    t->n = want;
    check_content(m, s);
}

static void leave(struct model *m, int32_t s)
{
    struct text *t = &m->text[s];
    sv_cache_release(&m->c, s);
    t->runs = false;
    m->clock++;
    for (int32_t n = m->page; n <= t->n && !t->left_out; n += m->page) {
        int32_t i = known_at(m, t, n);
        if (i >= 0 && !is_busy(m, &m->known[i]))
            m->known[i].used = m->clock;
    }
    t->n = 0;
}

/* A step: reserve ahead, commit fewer, publish, slide. */
static void grow(struct model *m, int32_t s)
{
    struct text *t = &m->text[s];
    int32_t room = POSITIONS - t->n, ahead = 1 + (int32_t)sv_rng_below(&m->rng, 20);
    if (room < 1)
        return;
    int32_t to = t->n + (ahead < room ? ahead : room);
    int32_t more = (to + m->page - 1) / m->page - (m->c.n_backed[s] + m->page - 1) / m->page;
    int32_t free_before = sv_cache_n_free(&m->c, 0), idle = n_idle(m);
    assert_int_equal(idle, sv_cache_n_kept(&m->c, 0));
    bool got = sv_cache_reserve(&m->c, s, to);
    if (!got) { /* the sliding group has at least as many free pages as the full ones */
        assert_true(more > free_before + idle);
        m->n_refused++;
        return;
    }
    for (int32_t i = free_before; i < more; i++)
        naive_evict(m);
    int32_t n = t->n + (int32_t)sv_rng_below(&m->rng, (uint32_t)(to - t->n + 1));
    write_from(m, s, t->n, to); /* rows that are not committed are written too */
    t->n = n;
    sv_cache_publish(&m->c, s, t->tokens, n);
    naive_publish(m, t);
    sv_cache_slide(&m->c, s, n);
    check_content(m, s);
}

static void flush(struct model *m)
{
    sv_cache_flush(&m->c);
    m->n_known = 0;
    for (int32_t s = 0; s < SLOTS; s++)
        m->text[s].left_out |= m->text[s].runs && m->c.n_backed[s] > 0;
}

static void random_days(int32_t page, int32_t n_positions, uint64_t seed)
{
    struct sv_dev *dev = open_dev();
    struct model *m = calloc(1, sizeof *m);
    m->page = page;
    m->n_pages = n_positions / page;
    m->rng.state = seed;
    open_cache(&m->c, dev, page, m->n_pages, true);
    for (int step = 0; step < 5000; step++) {
        int32_t s = (int32_t)sv_rng_below(&m->rng, SLOTS);
        if (!m->text[s].runs)
            arrive(m, s);
        else if (!sv_rng_below(&m->rng, 6))
            leave(m, s);
        else
            grow(m, s);
        if (!sv_rng_below(&m->rng, 500))
            flush(m);
        sv_cache_check(&m->c);
        assert_int_equal(sv_cache_n_kept(&m->c, 0), n_idle(m));
    }
    print_message("page %d: %lld positions found, %lld pages evicted, %lld times no room\n", page,
                  (long long)m->n_found, (long long)m->n_evicted, (long long)m->n_refused);
    assert_true(m->n_found > 1000 && m->n_evicted > 100 && m->n_refused > 10);
    for (int32_t s = 0; s < SLOTS; s++)
        sv_cache_release(&m->c, s);
    assert_int_equal(sv_cache_n_available(&m->c), m->n_pages);
    sv_cache_flush(&m->c);
    for (int32_t g = 0; g < 3; g++)
        assert_int_equal(sv_cache_n_free(&m->c, g), m->n_pages);
    sv_cache_close(&m->c);
    free(m);
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

static void random_page_1(void **state)
{
    (void)state;
    random_days(1, 150, 1);
}
static void random_page_4(void **state)
{
    (void)state;
    random_days(4, 152, 2);
}
static void random_page_16(void **state)
{
    (void)state;
    random_days(16, 160, 3);
}

/* Two sequences with the same tokens end up on one set of pages, and the second is found while both
 * run. */
static void equal_pages_are_shared(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache c;
    open_cache(&c, dev, 4, 20, true);
    int32_t tokens[POSITIONS] = {0};
    assert_true(sv_cache_reserve(&c, 0, 10) && sv_cache_reserve(&c, 1, 10));
    assert_int_equal(sv_cache_n_free(&c, 0), 14);
    sv_cache_publish(&c, 0, tokens, 9);
    assert_int_equal(sv_cache_attach(&c, 2, tokens, 9, 0), 8);
    sv_cache_publish(&c, 1, tokens, 10); /* adopts the two pages of slot 0 */
    assert_int_equal(sv_cache_n_free(&c, 0), 16);
    assert_int_equal(sv_cache_n_kept(&c, 0), 0);
    for (int32_t g = 0; g < 3; g++)
        for (int p = 0; p < 2; p++)
            assert_int_equal(c.group[g].table[p], c.group[g].table[c.group[g].stride + p]);
    sv_cache_check(&c);
    sv_cache_release(&c, 0);
    sv_cache_release(&c, 1);
    assert_int_equal(sv_cache_n_kept(&c, 0), 0); /* slot 2 runs on them */
    sv_cache_release(&c, 2);
    assert_int_equal(sv_cache_n_kept(&c, 0), 2);
    tokens[3] = 1; /* another text with the same length */
    assert_int_equal(sv_cache_attach(&c, 0, tokens, 9, 0), 0);
    sv_cache_close(&c);
    open_cache(&c, dev, 4, 20, false); /* switched off */
    assert_true(sv_cache_reserve(&c, 0, 10));
    sv_cache_publish(&c, 0, tokens, 10);
    assert_int_equal(sv_cache_attach(&c, 1, tokens, 10, 0), 0);
    sv_cache_flush(&c);
    sv_cache_release(&c, 0);
    assert_int_equal(sv_cache_n_free(&c, 0), 20);
    sv_cache_close(&c);
    sv_dev_close(dev);
}

static int32_t draft_end(const struct sv_cache *c, int32_t slot)
{
    return sv_cache_valid_to(c, slot, c->owned[SV_CACHE_DRAFT]);
}

/* Pages without the draft's K/V: sequences that find or share them are marked; a page that has it
 * replaces them as soon as no sequence reads them. */
static void without_the_drafts_part(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache c;
    open_cache(&c, dev, 4, 20, true);
    int32_t tokens[POSITIONS] = {0};
    assert_true(sv_cache_reserve(&c, 0, 12) && sv_cache_reserve(&c, 1, 12) &&
                sv_cache_reserve(&c, 2, 12));
    sv_cache_invalidate(&c, 0, c.owned[SV_CACHE_DRAFT], 6);
    sv_cache_invalidate(&c, 0, c.owned[SV_CACHE_DRAFT], 11); /* says less */
    assert_true(draft_end(&c, 0) < INT32_MAX && draft_end(&c, 1) == INT32_MAX);
    sv_cache_publish(&c, 0, tokens, 12); /* pages at 0, 4 (from 6 on not valid), 8 */
    assert_int_equal(sv_cache_attach(&c, 3, tokens, 7, 0), 4);
    assert_int_equal(draft_end(&c, 3), INT32_MAX);
    sv_cache_release(&c, 3);
    assert_int_equal(sv_cache_attach(&c, 3, tokens, 12, 0), 12);
    assert_true(draft_end(&c, 3) < INT32_MAX);
    sv_cache_release(&c, 3);
    assert_int_equal(draft_end(&c, 3), INT32_MAX);
    sv_cache_publish(&c, 1, tokens, 4);
    assert_int_equal(draft_end(&c, 1), INT32_MAX);
    sv_cache_publish(&c, 1, tokens, 8); /* adopts such a page, because slot 0 reads it */
    assert_true(draft_end(&c, 1) < INT32_MAX);
    sv_cache_release(&c, 0);
    sv_cache_release(&c, 1);
    sv_cache_check(&c);
    sv_cache_publish(&c, 2, tokens, 12); /* no sequence reads them any more */
    assert_int_equal(draft_end(&c, 2), INT32_MAX);
    sv_cache_check(&c);
    assert_int_equal(sv_cache_attach(&c, 0, tokens, 12, 0), 12);
    assert_int_equal(draft_end(&c, 0), INT32_MAX);
    sv_cache_check(&c);
    for (int32_t s = 0; s < 4; s++)
        sv_cache_release(&c, s);
    sv_cache_flush(&c);
    assert_int_equal(sv_cache_n_free(&c, 0), 20);
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
        assert_int_equal(sv_cache_open(&c, dev, &desc, 1, 2, 16, &err), SV_OK);
        sv_fault_arm(n);
        int rc = sv_cache_keep_prefixes(&c, &err);
        sv_fault_arm(0);
        sv_cache_close(&c);
        assert_int_equal(sv_alloc_live(), live);
        if (!rc)
            break;
        assert_true(err.msg[0] && n < 20);
    }
    sv_dev_close(dev);
}

struct asker {
    const struct sv_cache *c;
    const int32_t *tokens;
    atomic_bool stop;
    atomic_int n_asked;
    int32_t n_found;
    bool odd; /* an answer that was never true */
};

static void *ask(void *arg)
{
    struct asker *a = arg;

    while (!atomic_load(&a->stop)) {
        const int32_t n = sv_cache_known(a->c, salts[0], a->tokens, POSITIONS);
        a->odd |= n < 0 || n > 40 || n % 4;
        a->n_found += n > 0;
        atomic_fetch_add_explicit(&a->n_asked, 1, memory_order_relaxed);
    }
    return NULL;
}

/* While a thread publishes, evicts and flushes, another one asks what is known (make tsan). */
static void asked_by_another_thread(void **state)
{
    (void)state;
    int32_t tokens[POSITIONS] = {0}, others[POSITIONS] = {1};
    struct sv_dev *dev = open_dev();
    struct sv_err err = {0};
    struct sv_thread *thread;
    struct sv_cache c;
    open_cache(&c, dev, 4, 12, true);
    struct asker a = {.c = &c, .tokens = tokens};
    assert_int_equal(sv_thread_start(&thread, ask, &a, &err), SV_OK);
    for (int i = 0; i < 2000 || atomic_load(&a.n_asked) < 2000; i++) {
        int32_t *t = i % 3 ? tokens : others;
        const int32_t n = sv_cache_attach(&c, 0, t, 39, 0);
        assert_true(sv_cache_reserve(&c, 0, 40));
        sv_cache_publish(&c, 0, t, n + 4 < 40 ? n + 4 : 40);
        sv_cache_slide(&c, 0, 40);
        sv_cache_publish(&c, 0, t, 40);
        sv_cache_invalidate(&c, 0, c.owned[SV_CACHE_DRAFT], i % 40);
        sv_cache_release(&c, 0);
        if (i % 7 == 0)
            sv_cache_flush(&c);
    }
    atomic_store(&a.stop, true);
    sv_thread_join(thread);
    assert_true(a.n_found > 0 && !a.odd);
    sv_cache_check(&c);
    sv_cache_close(&c);
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(random_page_1), cmocka_unit_test(random_page_4),
             cmocka_unit_test(random_page_16), cmocka_unit_test(equal_pages_are_shared),
             cmocka_unit_test(without_the_drafts_part), cmocka_unit_test(asked_by_another_thread),
             cmocka_unit_test(open_survives_faults))
