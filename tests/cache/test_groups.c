/*
 * test_groups.c - groups of several kinds, page sizes and windows in one cache, against a naive
 * model: random sequences over two tokens, so that beginnings often agree.
 *
 * Content: a position of a paged group holds a function of the tokens up to it; a state block is
 * updated by a small mixer that follows the contract of sv_cache_commit and checks at each pass
 * that its state matches the tokens. With ample pools the model predicts what attach finds, group
 * by group; with short pools whatever is found must be right and nothing may leak.
 */
#include "testing.h"

#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, POSITIONS = 128, GRID = 16, MOST_KNOWN = 8192, RING = 12, STATE_LAYERS = 2 };
enum { FULL, SLIDING, LATENT, STATE, DRAFT, DRAFT_SLIDING, GROUPS };

static const struct sv_cache_group_desc kinds[GROUPS] = {
    [FULL] = {.n_layers = 2, .n_kv_heads = 1, .head_dim = 8, .page_size = 8},
    [SLIDING] = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 8, .window = 12, .page_size = 4},
    [LATENT] =
        {.kind = SV_CACHE_LATENT, .n_layers = 1, .n_kv_heads = 1, .head_dim = 36, .page_size = 16},
    [STATE] = {.kind = SV_CACHE_STATE, .n_layers = STATE_LAYERS, .state_bytes = 64, .page_size = 8},
    [DRAFT] =
        {.owner = SV_CACHE_DRAFT, .n_layers = 1, .n_kv_heads = 2, .head_dim = 4, .page_size = 16},
    [DRAFT_SLIDING] = {.owner = SV_CACHE_DRAFT,
                       .n_layers = 4,
                       .n_kv_heads = 1,
                       .head_dim = 8,
                       .window = 20,
                       .page_size = 8},
};

static struct sv_dev *open_dev(void)
{
    struct sv_dev *dev = NULL;
    struct sv_err err = {0};
    struct sv_dev_opts o = {.n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    if (sv_dev_open(&dev, &o, &err))
        fail_msg("%s", err.msg);
    return dev;
}

/* ---------------------------------------------------------------- what is remembered */

struct text {
    uint32_t salt;
    int32_t tokens[POSITIONS], n; /* n committed */
    int32_t valid_to[GROUPS];     /* the draft's K/V is not computed from there on */
    int32_t passed;               /* a snapshot of its own, before so many tokens; 0: none */
    bool runs, left_out;
};

/* A beginning of whole nodes that the index knows, and what its last node holds. */
struct known {
    uint32_t salt;
    int32_t tokens[POSITIONS], n;
    bool has[GROUPS][GRID]; /* pages of the node; of the state group [0]: a snapshot */
    bool valid[GROUPS];
};

struct model {
    struct sv_cache c;
    struct text text[SLOTS];
    struct known *known; /* (MOST_KNOWN) with ample pools: nothing is evicted */
    int32_t n_known;
    bool ample;
    struct sv_rng rng;
    int64_t n_found, n_hits, n_lacking, n_refused, n_full[GROUPS]; /* n_full: no page was free */
    int64_t n_passed;
};

static uint32_t below(struct model *m, int32_t n)
{
    return sv_rng_below(&m->rng, (uint32_t)n);
}

/* What position p holds, or, in a state, all up to p; small enough for a float. */
static uint32_t content(const struct text *t, int32_t p, int32_t group)
{
    uint32_t h = (uint32_t)group + 1 + 16 * t->salt;
    for (int32_t i = 0; i <= p; i++)
        h = h * 31 + (uint32_t)t->tokens[i] + 7;
    return h & 0xffffff;
}

static float *cell(const struct sv_cache *c, int32_t group, int32_t slot, int32_t pos, bool v)
{
    const struct sv_cache_group *g = &c->group[group];
    struct sv_kv kv = sv_cache_kv(c, group, g->d.n_layers - 1);
    int32_t page = g->table[(size_t)slot * (size_t)g->stride + (size_t)(pos / kv.page_size)];
    assert_in_range(page, 0, kv.n_pages - 1);
    size_t at = (size_t)page * (size_t)(kv.n_kv_heads * kv.page_size * kv.head_dim);
    return (float *)(v ? kv.v : kv.k) + at + (size_t)(pos % kv.page_size * kv.head_dim);
}

static bool is_draft(int32_t group)
{
    return kinds[group].owner == SV_CACHE_DRAFT;
}

/* Rows [from, to) of a pass, of which those from t->n on are rejected. */
static void write_rows(struct model *m, int32_t s, int32_t from, int32_t to)
{
    const struct text *t = &m->text[s];
    for (int32_t g = 0; g < GROUPS; g++)
        for (int32_t p = from; p < to && g != STATE; p++) {
            const bool junk = p >= t->n || p >= t->valid_to[g];
            const float x = junk ? -1.0f : (float)content(t, p, g);
            *cell(&m->c, g, s, p, false) = x;
            if (kinds[g].kind == SV_CACHE_KV)
                *cell(&m->c, g, s, p, true) = x + 0.5f;
        }
}

/* Positions below valid_to of the draft's groups, and all of the target's, that a row at t->n
 * sees. */
static void check_content(const struct model *m, int32_t s)
{
    const struct text *t = &m->text[s];
    for (int32_t g = 0; g < GROUPS; g++) {
        const struct sv_cache_group *group = &m->c.group[g];
        int32_t end = sv_cache_valid_to(&m->c, s, 1u << g);
        assert_true(is_draft(g) || end == INT32_MAX);
        end = end < t->n ? end : t->n;
        for (int32_t p = sv_cache_n_unseen(group, t->n) * group->d.page_size; p < end && g != STATE;
             p++) {
            const float x = (float)content(t, p, g);
            if (*cell(&m->c, g, s, p, false) != x ||
                (group->v && *cell(&m->c, g, s, p, true) != x + 0.5f))
                fail_msg("slot %d group %d position %d says something else", s, g, p);
        }
    }
}

/* ---------------------------------------------------------------- a mixer */

/* A block: the state at position m (stored + 1, so that zeros mean: nothing seen), and the rows
 * recorded behind it. */
struct block {
    uint32_t begun, hash;
    int32_t m, row[RING];
};

static struct block *block_of(const struct sv_cache *c, int32_t slot, int32_t layer)
{
    const struct sv_state s = sv_cache_state(c, STATE, layer);
    assert_true(sizeof(struct block) <= (size_t)s.n_bytes);
    return (struct block *)(void *)((char *)s.data + slot * s.slot_stride);
}

static void fold(struct block *b, int32_t token)
{
    b->hash = b->hash * 31 + (uint32_t)token + 7;
    b->m++;
}

/* Rows at positions [first, first + n): all of them are folded when sure, else the anchor. */
static void mix(struct model *m, int32_t s, const int32_t *row, int32_t first, int32_t n, bool sure)
{
    const struct text *t = &m->text[s];
    for (int32_t l = 0; l < STATE_LAYERS; l++) {
        struct block *b = block_of(&m->c, s, l);
        if (!b->begun)
            *b = (struct block){.begun = 1, .hash = STATE + 1 + 16 * t->salt, .m = first};
        assert_true(b->m <= first && first - b->m < RING);
        while (b->m < first)
            fold(b, b->row[b->m % RING]);
        if (first > 0 && (b->hash & 0xffffff) != content(t, first - 1, STATE))
            fail_msg("slot %d layer %d: the state at %d is another", s, l, first);
        for (int32_t i = 0; i < n; i++)
            if (sure || i == 0)
                fold(b, row[i]);
            else
                b->row[(first + i) % RING] = row[i];
    }
}

/* ---------------------------------------------------------------- the naive index */

static struct known *known_at(const struct model *m, const struct text *t, int32_t n)
{
    for (int32_t i = 0; i < m->n_known; i++)
        if (m->known[i].n == n && m->known[i].salt == t->salt &&
            !memcmp(m->known[i].tokens, t->tokens, (size_t)n * 4))
            return &m->known[i];
    return NULL;
}

/* Another running sequence has published this. */
static bool is_read(const struct model *m, int32_t slot, const struct text *t, int32_t n)
{
    for (int32_t s = 0; s < SLOTS; s++) {
        const struct text *o = &m->text[s];
        if (s != slot && o->runs && !o->left_out && o->n / GRID * GRID >= n && o->salt == t->salt &&
            !memcmp(o->tokens, t->tokens, (size_t)n * 4))
            return true;
    }
    return false;
}

static int32_t node_pages(int32_t g)
{
    return g == STATE ? 1 : GRID / kinds[g].page_size;
}

/* A row at n, all of whose beginnings are known, finds this page of the path in the group. */
static bool page_there(const struct model *m, const struct text *t, int32_t g, int32_t page,
                       bool required)
{
    const int32_t per = node_pages(g);
    const struct known *k = known_at(m, t, (page / per + 1) * GRID);
    return k->has[g][page % per] && (k->valid[g] || !required);
}

static bool goes_on_from(const struct model *m, const struct text *t, int32_t n, uint32_t required)
{
    for (int32_t g = 0; g < GROUPS; g++) {
        const bool needed = !is_draft(g) || (required >> g & 1);
        int32_t page = g == STATE ? n / GRID - 1 : sv_cache_n_unseen(&m->c.group[g], n);
        for (; page < n / GRID * node_pages(g); page++)
            if (!page_there(m, t, g, page, needed))
                return false;
    }
    return true;
}

static int32_t predict(const struct model *m, const struct text *t, int32_t n_tokens,
                       uint32_t required)
{
    int32_t best = 0;
    for (int32_t n = GRID; n <= n_tokens && known_at(m, t, n); n += GRID)
        best = goes_on_from(m, t, n, required) ? n : best;
    return best;
}

/* Positions of the draft's group that are valid in a prefix of n. */
static int32_t predict_valid(const struct model *m, const struct text *t, int32_t g, int32_t n)
{
    int32_t page = sv_cache_n_unseen(&m->c.group[g], n);
    for (int32_t p = page / node_pages(g) * GRID; p < n; p += GRID)
        if (!known_at(m, t, p + GRID)->valid[g])
            return p;
    return INT32_MAX;
}

/* What node [n - GRID, n) holds once the slot has published it too; slid: positions below it are
 * passed by the windows. */
static void naive_publish(struct model *m, int32_t s, int32_t n, int32_t slid, int32_t *valid_to)
{
    const struct text *t = &m->text[s];
    struct known *k = known_at(m, t, n);
    const bool fresh = !k;
    if (fresh) {
        assert_true(m->n_known < MOST_KNOWN);
        k = &m->known[m->n_known++];
        *k = (struct known){.salt = t->salt, .n = n};
        memcpy(k->tokens, t->tokens, (size_t)n * 4);
    }
    for (int32_t g = 0; g < GROUPS; g++) {
        if (g == STATE) {
            k->valid[g] = true;
            continue;
        }
        const bool mine = valid_to[g] >= n;
        const bool gives = !fresh && mine && !k->valid[g] && !is_read(m, s, t, n);
        bool given = fresh;
        for (int32_t i = 0; i < node_pages(g); i++) {
            const int32_t page = (n - GRID) / kinds[g].page_size + i;
            const bool own = page >= sv_cache_n_unseen(&m->c.group[g], slid);
            if (!k->has[g][i] || gives) {
                k->has[g][i] = own;
                given |= own;
            }
        }
        if (fresh || gives)
            k->valid[g] = mine;
        else if (given && !mine)
            k->valid[g] = false;
        if (!fresh && !k->valid[g] && valid_to[g] > n - GRID)
            valid_to[g] = n - GRID;
    }
}

/* ---------------------------------------------------------------- random days */

static void note_valid(struct model *m, int32_t s)
{
    for (int32_t g = 0; g < GROUPS; g++)
        m->text[s].valid_to[g] = sv_cache_valid_to(&m->c, s, 1u << g);
}

static void arrive(struct model *m, int32_t s)
{
    struct text *t = &m->text[s];
    *t = (struct text){.runs = true};
    t->salt = below(m, 4) == 0;
    const uint64_t salt[2] = {t->salt, 7};
    sv_cache_set_salt(&m->c, s, salt);
    for (int32_t i = 0; i < POSITIONS; i++)
        t->tokens[i] = below(m, 40) == 0;
    const int32_t ask = (int32_t)below(m, POSITIONS);
    const uint32_t draft = m->c.owned[SV_CACHE_DRAFT], required = below(m, 2)   ? 0
                                                                  : below(m, 2) ? draft
                                                                                : 1u << DRAFT;
    const int32_t want = m->ample ? predict(m, t, ask, required) : 0;
    const int32_t known = sv_cache_known(&m->c, salt, t->tokens, ask);
    const int32_t n = sv_cache_attach(&m->c, s, t->tokens, ask, required);
    assert_true(required ? n <= known : n == known);
    if (m->ample)
        assert_int_equal(n, want);
    assert_true(n % GRID == 0 && n <= ask);
    assert_int_equal(sv_cache_valid_to(&m->c, s, required), INT32_MAX);
    for (int32_t g = 0; g < GROUPS && m->ample; g++)
        if (is_draft(g))
            assert_int_equal(sv_cache_valid_to(&m->c, s, 1u << g), predict_valid(m, t, g, n));
    m->n_found += n;
    m->n_hits += n > 0;
    t->n = n;
    note_valid(m, s);
    m->n_lacking += sv_cache_valid_to(&m->c, s, draft) < INT32_MAX;
    check_content(m, s);
}

/* The draft's K/V is not computed from here on. */
static void give_up(struct model *m, int32_t s)
{
    struct text *t = &m->text[s];
    const int32_t from = t->n - (int32_t)below(m, t->n + 1);
    for (int32_t n = GRID; n <= t->n && !t->left_out && m->ample; n += GRID)
        for (int32_t g = 0; g < GROUPS && n > from; g++)
            if (is_draft(g) && t->valid_to[g] > from)
                known_at(m, t, n)->valid[g] = false;
    sv_cache_invalidate(&m->c, s, m->c.owned[SV_CACHE_DRAFT], from);
    note_valid(m, s);
}

/* After a pass that committed up to t->n, beginning at `from`, and passed a snapshot; or 0. */
static void tell(struct model *m, int32_t s, int32_t from, bool takes, int32_t passed)
{
    struct text *t = &m->text[s];
    const bool first = below(m, 2);
    const struct known *here = m->ample && takes ? known_at(m, t, t->n) : NULL;
    if (takes && !t->left_out && !(here && here->has[STATE][0]))
        t->passed = 0; /* the slot has one snapshot */
    if (takes && first)
        sv_cache_snapshot(&m->c, s, t->n);
    sv_cache_publish(&m->c, s, t->tokens, t->n);
    if (takes && !first)
        sv_cache_snapshot(&m->c, s, t->n);
    if (passed) {
        sv_cache_passed(&m->c, s, passed);
        t->passed = passed;
        m->n_passed++;
    }
    if (m->ample && !t->left_out) {
        for (int32_t n = from / GRID * GRID + GRID; n <= t->n; n += GRID)
            naive_publish(m, s, n, from, t->valid_to);
        if (takes)
            known_at(m, t, t->n)->has[STATE][0] = true;
        for (int32_t g = 0; g < GROUPS; g++)
            assert_int_equal(sv_cache_valid_to(&m->c, s, 1u << g), t->valid_to[g]);
    }
    note_valid(m, s);
    sv_cache_slide(&m->c, s, t->n);
}

/* A pass: a prompt chunk, or a verify block of which some rows are rejected. */
static void grow(struct model *m, int32_t s)
{
    struct text *t = &m->text[s];
    const int32_t from = t->n, room = POSITIONS - from;
    const bool sure = below(m, 3) > 0;
    int32_t n = 1 + (int32_t)below(m, sure ? 40 : RING - 1), row[POSITIONS];
    if (room < 1)
        return;
    if (sure && below(m, 2)) /* up to a boundary, where a snapshot can be taken */
        n = GRID - from % GRID;
    n = n < room ? n : room;
    if (!sv_cache_reserve(&m->c, s, from + n)) {
        m->n_refused++;
        assert_false(m->ample);
        return;
    }
    const int32_t at = (from / GRID + 1) * GRID;
    const bool reserved = !sure && at <= from + n && sv_cache_reserve_snapshot(&m->c, s, at);
    assert_true(!m->ample || sure || at > from + n || reserved != t->left_out);
    sv_cache_upload(&m->c);
    t->n += sure ? n : 1 + (int32_t)below(m, n);
    for (int32_t i = 0; i < n; i++)
        row[i] = from + i < t->n ? t->tokens[from + i] : 9; /* rejected */
    write_rows(m, s, from, from + n);
    mix(m, s, row, from, n, sure);
    if (reserved) {
        const int32_t n_commit = t->n - from;
        int32_t len[SLOTS] = {0};
        len[s] = t->n;
        sv_cache_snapshot_passed(&m->c, s, &n_commit, len);
    }
    tell(m, s, from, sure && t->n % GRID == 0 && below(m, 3), reserved && at <= t->n ? at : 0);
    check_content(m, s);
}

static void flush(struct model *m)
{
    sv_cache_flush(&m->c);
    m->n_known = 0;
    for (int32_t s = 0; s < SLOTS; s++)
        m->text[s].left_out |= m->text[s].runs && m->c.n_backed[s] > 0;
}

static void finish(struct model *m)
{
    for (int32_t s = 0; s < SLOTS; s++)
        sv_cache_release(&m->c, s);
    sv_cache_check(&m->c);
    sv_cache_flush(&m->c);
    sv_cache_check(&m->c);
    for (int32_t g = 0; g < GROUPS; g++)
        assert_int_equal(sv_cache_n_free(&m->c, g), m->c.group[g].d.n_pages);
}

/* n_pages in the order of the groups; group scarce < 0: all pools are ample. */
static void random_days(const int32_t *n_pages, int32_t scarce, int32_t n_steps, uint64_t seed)
{
    struct sv_dev *dev = open_dev();
    struct sv_err err = {0};
    struct model *m = calloc(1, sizeof *m);
    struct sv_cache_group_desc desc[GROUPS];
    m->known = calloc(MOST_KNOWN, sizeof *m->known);
    m->rng.state = seed;
    m->ample = scarce < 0;
    for (int32_t g = 0; g < GROUPS; g++) {
        desc[g] = kinds[g];
        desc[g].n_pages = n_pages[g];
    }
    if (sv_cache_open(&m->c, dev, desc, GROUPS, SLOTS, POSITIONS, &err) ||
        sv_cache_keep_prefixes(&m->c, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(sv_cache_boundary(&m->c), GRID);
    for (int32_t step = 0; step < n_steps; step++) {
        const int32_t s = (int32_t)below(m, SLOTS);
        if (!m->text[s].runs) {
            arrive(m, s);
        } else if (below(m, 6) == 0) {
            struct text *t = &m->text[s];
            if (m->ample && t->passed && !t->left_out)
                known_at(m, t, t->passed)->has[STATE][0] = true;
            sv_cache_release(&m->c, s);
            m->text[s].runs = false;
            m->text[s].n = 0;
        } else if (below(m, 12) == 0) {
            give_up(m, s);
        } else {
            grow(m, s);
        }
        if (below(m, m->ample ? 300 : 800) == 0)
            flush(m);
        if (!m->ample || step % 16 == 0)
            sv_cache_check(&m->c);
        for (int32_t g = 0; g < GROUPS; g++)
            m->n_full[g] += sv_cache_n_free(&m->c, g) < 2;
    }
    print_message(
        "%lld positions found in %lld hits, %lld without the draft's; %lld times no room; %lld passed\n",
        (long long)m->n_found, (long long)m->n_hits, (long long)m->n_lacking,
        (long long)m->n_refused, (long long)m->n_passed);
    assert_true(m->n_hits > 60 && m->n_lacking > 20 && m->n_passed > 20);
    for (int32_t g = 0; g < GROUPS; g++)
        assert_true(m->n_full[g] > 100 ? !m->ample : g != scarce);
    finish(m);
    sv_cache_close(&m->c);
    free(m->known);
    free(m);
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

static void ample_pools(void **state)
{
    (void)state;
    static const int32_t n_pages[GROUPS] = {6000, 12000, 3000, 1000, 3000, 6000};
    for (uint64_t seed = 1; seed <= 3; seed++)
        random_days(n_pages, -1, 3000, seed);
}

/* Each group in turn is the one that is short; the others hold what all slots can have. */
static void short_pools(void **state)
{
    (void)state;
    static const int32_t plenty[GROUPS] = {160, 320, 80, 40, 80, 160};
    static const int32_t few[GROUPS] = {36, 44, 18, 2, 18, 30};
    for (int32_t g = 0; g < GROUPS; g++) {
        int32_t n_pages[GROUPS];
        memcpy(n_pages, plenty, sizeof n_pages);
        n_pages[g] = few[g];
        random_days(n_pages, g, 6000, 10 + (uint64_t)g);
    }
}

/* ---------------------------------------------------------------- one thing at a time */

static void geometry(void **state)
{
    (void)state;
    const struct sv_cache_group_desc a = kinds[SLIDING];
    struct sv_cache_group_desc b[] = {a, a, a, a, a, a, a, a, a};
    b[0].kind = SV_CACHE_LATENT;
    b[1].owner = SV_CACHE_DRAFT;
    b[2].n_kv_heads = 2;
    b[3].head_dim = 16;
    b[4].dtype = SV_BF16;
    b[5].window = 0;
    b[6].page_size = 8;
    b[7].state_bytes = 64;
    b[8].n_layers = b[8].n_pages = 7; /* of the pool, not of a layer */
    for (int i = 0; i < 9; i++)
        assert_int_equal(sv_cache_same_geometry(&a, &b[i]), i == 8);
}

static void bytes_of_each_kind(void **state)
{
    (void)state;
    const struct sv_cache_group_desc kv = {.n_layers = 3,
                                           .n_kv_heads = 2,
                                           .head_dim = 128,
                                           .dtype = SV_BF16,
                                           .page_size = 16,
                                           .n_pages = 10},
                                     latent = {.kind = SV_CACHE_LATENT,
                                               .n_layers = 3,
                                               .n_kv_heads = 1,
                                               .head_dim = 576,
                                               .dtype = SV_BF16,
                                               .page_size = 64,
                                               .n_pages = 4},
                                     states = {.kind = SV_CACHE_STATE,
                                               .n_layers = 3,
                                               .state_bytes = 4096,
                                               .page_size = 16,
                                               .n_pages = 5};
    assert_int_equal(sv_cache_position_bytes(&kv), 2 * 3 * 2 * 128 * 2);
    assert_int_equal(sv_cache_group_bytes(&kv, 9), 160 * 2 * 3 * 2 * 128 * 2);
    assert_int_equal(sv_cache_position_bytes(&latent), 3 * 576 * 2);
    assert_int_equal(sv_cache_group_bytes(&latent, 9), 4 * 64 * 3 * 576 * 2);
    struct sv_cache_group_desc f8 = latent;
    f8.latent = 512;
    f8.dtype = SV_F8;
    assert_int_equal(sv_cache_position_bytes(&f8), 3 * 656);
    assert_int_equal(sv_cache_position_bytes(&states), 0);
    assert_int_equal(sv_cache_group_bytes(&states, 9), (9 + 5) * 3 * 4096);
    assert_string_equal(sv_cache_group_name(&kv), "target K/V");

    struct sv_dev *dev = open_dev();
    struct sv_cache c;
    struct sv_err err = {0};
    const struct sv_cache_group_desc d[] = {states, latent, kv};
    assert_int_equal(sv_cache_open(&c, dev, d, 3, 2, 256, &err), SV_OK);
    assert_int_equal(c.main, 1);
    assert_int_equal(sv_cache_boundary(&c), 64);
    const struct sv_kv one = sv_cache_kv(&c, 1, 0), two = sv_cache_kv(&c, 1, 1);
    assert_int_equal((char *)two.k - (char *)one.k, 4 * 64 * 576 * 2);
    assert_true(!one.v && !two.v && sv_cache_kv(&c, 2, 0).v);
    const struct sv_state s = sv_cache_state(&c, 0, 2);
    assert_true(s.n_bytes == 4096 && s.slot_stride == 3 * 4096);
    assert_int_equal((char *)s.data - (char *)sv_cache_state(&c, 0, 0).data, 2 * 4096);
    sv_cache_close(&c);
    sv_dev_close(dev);
}

static void refuses(struct sv_cache_group_desc d, struct sv_dev *dev)
{
    struct sv_cache c;
    struct sv_err err = {0};
    assert_int_equal(sv_cache_open(&c, dev, &d, 1, 2, 64, &err), SV_EINVAL);
    assert_non_null(strstr(err.msg, "cache group"));
}

static void wrong_descriptions(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache_group_desc d = kinds[FULL];
    refuses(d, dev); /* no page */
    d.n_pages = 4;
    d.page_size = 0;
    refuses(d, dev);
    d = kinds[LATENT];
    d.n_pages = 4;
    d.n_kv_heads = 2;
    refuses(d, dev);
    d = kinds[STATE];
    d.state_bytes = 40;
    refuses(d, dev);
    d.state_bytes = 0;
    refuses(d, dev);
    d = kinds[STATE];
    d.window = 8;
    refuses(d, dev);
    sv_dev_close(dev);
}

static void open_small(struct sv_cache *c, struct sv_dev *dev, int32_t n_snapshots)
{
    struct sv_err err = {0};
    struct sv_cache_group_desc d[] = {kinds[FULL], kinds[STATE]};
    d[0].n_pages = 40;
    d[1].n_pages = n_snapshots;
    if (sv_cache_open(c, dev, d, 2, 3, 64, &err) || sv_cache_keep_prefixes(c, &err))
        fail_msg("%s", err.msg);
}

static uint8_t *bytes_of(const struct sv_cache *c, int32_t slot)
{
    const struct sv_state s = sv_cache_state(c, 1, 0);
    return (uint8_t *)s.data + slot * s.slot_stride;
}

/* All layers of a slot hold one byte. */
static void fill(const struct sv_cache *c, int32_t slot, int x)
{
    memset(bytes_of(c, slot), x, STATE_LAYERS * 64);
}

static void holds(const struct sv_cache *c, int32_t slot, int x)
{
    for (int32_t i = 0; i < STATE_LAYERS * 64; i++)
        assert_int_equal(bytes_of(c, slot)[i], x);
}

static void a_slot_starts_from_zeros(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache c;
    int32_t tokens[64] = {0};
    open_small(&c, dev, 0);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(sv_cache_attach(&c, 1, tokens, 8, 0), 0);
        assert_true(sv_cache_reserve(&c, 1, 8));
        sv_cache_upload(&c);
        holds(&c, 1, 0);
        fill(&c, 1, 7);
        fill(&c, 2, 9);
        sv_cache_upload(&c);
        holds(&c, 1, 7);             /* once only */
        sv_cache_snapshot(&c, 1, 8); /* there is no room for any */
        sv_cache_publish(&c, 1, tokens, 8);
        if (round == 1) {
            sv_cache_reset(&c, 1); /* as calibration does */
            sv_cache_upload(&c);
            holds(&c, 1, 0);
        }
        sv_cache_release(&c, 1);
        sv_cache_upload(&c);
        holds(&c, 2, 9); /* empty slots are left alone */
        sv_cache_check(&c);
    }
    sv_cache_close(&c);
    sv_dev_close(dev);
}

/* 8 tokens of x in slot 0, and states full of that byte. */
static void compute(struct sv_cache *c, int32_t x, int32_t *tokens)
{
    for (int32_t i = 0; i < 8; i++)
        tokens[i] = x;
    assert_int_equal(sv_cache_attach(c, 0, tokens, 8, 0), 0);
    assert_true(sv_cache_reserve(c, 0, 10));
    sv_cache_upload(c);
    fill(c, 0, x);
}

static void publish(struct sv_cache *c, const int32_t *tokens)
{
    sv_cache_snapshot(c, 0, 8);
    sv_cache_publish(c, 0, tokens, 8);
    fill(c, 0, 99); /* rows beyond */
    sv_cache_release(c, 0);
    sv_cache_check(c);
}

static void keep(struct sv_cache *c, int32_t x)
{
    int32_t tokens[8];
    compute(c, x, tokens);
    publish(c, tokens);
}

static int32_t find(struct sv_cache *c, int32_t slot, int32_t x)
{
    int32_t tokens[9];
    for (int32_t i = 0; i < 9; i++)
        tokens[i] = x;
    return sv_cache_attach(c, slot, tokens, 9, 0);
}

static void snapshots_are_evicted_by_last_use(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache c;
    int32_t tokens[8];
    open_small(&c, dev, 2);
    keep(&c, 1);
    keep(&c, 2);
    assert_int_equal(find(&c, 1, 1), 8);
    sv_cache_upload(&c);
    holds(&c, 1, 1);
    sv_cache_release(&c, 1);
    keep(&c, 3); /* in place of 2, whose page stays */
    assert_int_equal(sv_cache_n_kept(&c, 0), 3);
    assert_int_equal(find(&c, 1, 2), 0);
    compute(&c, 4, tokens);
    assert_int_equal(find(&c, 1, 1), 8);
    assert_int_equal(find(&c, 2, 3), 8);
    publish(&c, tokens); /* both wait to be copied: there is no room for another */
    sv_cache_upload(&c);
    holds(&c, 1, 1);
    holds(&c, 2, 3);
    assert_int_equal(find(&c, 0, 4), 0);
    sv_cache_release(&c, 0);
    sv_cache_release(&c, 1);
    sv_cache_release(&c, 2);
    keep(&c, 2); /* published, and now with a snapshot again */
    assert_int_equal(find(&c, 1, 2), 8);
    sv_cache_flush(&c); /* the copy is still to come */
    keep(&c, 5);
    sv_cache_upload(&c);
    holds(&c, 1, 2);
    assert_int_equal(find(&c, 2, 1), 0);
    assert_int_equal(find(&c, 2, 5), 8);
    sv_cache_release(&c, 2); /* and is not wanted any more */
    assert_true(sv_cache_reserve(&c, 2, 1));
    sv_cache_upload(&c);
    holds(&c, 2, 0);
    sv_cache_check(&c);
    sv_cache_close(&c);
    sv_dev_close(dev);
}

/* The commit stage moves lengths and anchors, and no byte of any group. */
static void commit(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache c;
    open_small(&c, dev, 1);
    fill(&c, 0, 5);
    int32_t len[] = {10, 20, 30}, anchor[] = {1, 2, 3};
    const int32_t slot[] = {2, 0, -1}, n_commit[] = {3, 8, 0}, n_emit[] = {3, 0, 0},
                  out[] = {7, 8, 9, 0, 0, 0, 0, 0, 0};
    sv_cache_commit(&c, &(struct sv_p_commit){.n_segs = 3,
                                              .seg_slot = slot,
                                              .n_commit = n_commit,
                                              .n_emit = n_emit,
                                              .out_tokens = out,
                                              .out_stride = 3,
                                              .slot_len = len,
                                              .slot_anchor = anchor});
    assert_true(len[0] == 18 && len[1] == 20 && len[2] == 33);
    assert_true(anchor[0] == 1 && anchor[1] == 2 && anchor[2] == 9);
    holds(&c, 0, 5);
    sv_cache_close(&c);
    sv_dev_close(dev);
}

static void open_survives_faults(void **state)
{
    (void)state;
    struct sv_dev *dev = open_dev();
    struct sv_cache_group_desc d[GROUPS];
    const int64_t live = sv_alloc_live();
    for (int32_t g = 0; g < GROUPS; g++) {
        d[g] = kinds[g];
        d[g].n_pages = 8;
    }
    for (int64_t n = 1;; n++) {
        struct sv_cache c;
        struct sv_err err = {0};
        sv_fault_arm(n);
        int rc = sv_cache_open(&c, dev, d, GROUPS, 2, 64, &err);
        sv_fault_arm(0);
        if (!rc) {
            assert_true(n > GROUPS);
            sv_cache_close(&c);
            break;
        }
        assert_true(err.msg[0]);
        assert_int_equal(sv_alloc_live(), live);
    }
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(ample_pools), cmocka_unit_test(short_pools),
             cmocka_unit_test(geometry), cmocka_unit_test(bytes_of_each_kind),
             cmocka_unit_test(wrong_descriptions), cmocka_unit_test(a_slot_starts_from_zeros),
             cmocka_unit_test(snapshots_are_evicted_by_last_use), cmocka_unit_test(commit),
             cmocka_unit_test(open_survives_faults))
