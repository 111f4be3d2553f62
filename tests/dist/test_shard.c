/*
 * test_shard.c - how a model is divided: the ranks' ranges cover everything once, respect heads,
 * groups and units, and a number of ranks that does not fit is refused with those that do.
 */
#include "testing.h"

#include "dist/dist.h"
#include "load/load.h"

#include <stdlib.h>
#include <string.h>

/* Qwen3-8B, and one that no number fits by itself. */
static const struct sv_shard_shape qwen = {
    .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .intermediate = 12288, .vocab = 151936};

static struct sv_ranks of(int32_t rank, int32_t n)
{
    return (struct sv_ranks){.rank = rank, .n = n};
}

static int by_first(const void *a, const void *b)
{
    return ((const struct sv_slice *)a)->first - ((const struct sv_slice *)b)->first;
}

/* Each rank has as many ranges, in their order; those of all ranks lie side by side from 0 to size,
 * and begin at multiples of `unit`. */
static void covers(const struct sv_shard_shape *s, enum sv_role role, int32_t rows, int32_t cols,
                   enum sv_cut_axis axis, int32_t n, int32_t n_ranges, int32_t unit)
{
    struct sv_slice all[SV_MAX_RANKS * SV_CUT_RANGES];
    int32_t at = 0, sum = 0, n_all = 0;
    for (int32_t r = 0; r < n; r++) {
        const struct sv_cut c = sv_shard_cut(s, role, rows, cols, of(r, n));
        assert_int_equal(c.axis, axis);
        assert_int_equal(c.n_ranges, n_ranges);
        for (int32_t i = 0; i < c.n_ranges; i++) {
            assert_true(!i || c.range[i].first >= c.range[i - 1].first + c.range[i - 1].n);
            all[n_all++] = c.range[i];
        }
        sum += sv_cut_size(&c);
    }
    qsort(all, (size_t)n_all, sizeof *all, by_first);
    for (int32_t i = 0; i < n_all; at += all[i++].n) {
        assert_int_equal(all[i].first, at);
        assert_true(all[i].n > 0);
        assert_true(all[i].first % unit == 0);
    }
    assert_int_equal(at, axis == SV_CUT_ROWS ? rows : cols);
    assert_int_equal(sum, at);
}

static void random_shape(struct sv_rng *g, struct sv_shard_shape *s)
{
    static const int32_t dims[] = {16, 64, 80, 128, 256}, groups[] = {0, 1, 16, 32, 48, 64, 128};
    *s = (struct sv_shard_shape){0};
    s->n_kv_heads = 1 << sv_rng_below(g, 4);
    s->n_heads = s->n_kv_heads * (1 + (int32_t)sv_rng_below(g, 8));
    s->head_dim = dims[sv_rng_below(g, 5)];
    s->intermediate = 1 + (int32_t)sv_rng_below(g, 5000);
    s->expert_intermediate = 1 + (int32_t)sv_rng_below(g, 2000);
    s->vocab = 1 + (int32_t)sv_rng_below(g, 200000);
    s->n_taps = 64 * (1 + (int32_t)sv_rng_below(g, 300));
    s->group.head_rows = groups[sv_rng_below(g, 7)];
    s->group.head_cols = groups[sv_rng_below(g, 7)];
    s->group.inner = groups[sv_rng_below(g, 7)];
    s->group.vocab = groups[sv_rng_below(g, 4)];
    s->v_dim = sv_rng_below(g, 3) ? 0 : dims[sv_rng_below(g, 5)];
    if (sv_rng_below(g, 2)) {
        s->gdn_k_heads = 1 << (1 + sv_rng_below(g, 4));
        s->gdn_v_heads = s->gdn_k_heads * (1 + (int32_t)sv_rng_below(g, 4));
        s->gdn_k_dim = dims[sv_rng_below(g, 5)];
        s->gdn_v_dim = dims[sv_rng_below(g, 5)];
    }
}

/* Rows of queries, keys and values, fused with gates or not, belong to the rank's heads. */
static void delta_rules(const struct sv_shard_shape *s, int32_t n)
{
    const int32_t keys = s->gdn_k_heads * s->gdn_k_dim, values = s->gdn_v_heads * s->gdn_v_dim;
    const int32_t nv = s->gdn_v_heads, row = s->group.head_rows > 1 ? s->group.head_rows : 1,
                  col = s->group.head_cols > 1 ? s->group.head_cols : 1;
    if (!s->gdn_k_heads)
        return;
    covers(s, SV_ROLE_GDN_QKV, 2 * keys + values, 8, SV_CUT_ROWS, n, 3, row);
    covers(s, SV_ROLE_GDN_QKV, 2 * keys + 2 * values, 8, SV_CUT_ROWS, n, 4, row);
    covers(s, SV_ROLE_GDN_CONV, 2 * keys + values, 4, SV_CUT_ROWS, n, 3, row);
    covers(s, SV_ROLE_GDN_Z, values, 8, SV_CUT_ROWS, n, 1, row);
    covers(s, SV_ROLE_GDN_B, nv, 8, SV_CUT_ROWS, n, 1, 1);
    covers(s, SV_ROLE_GDN_B, 2 * nv, 8, SV_CUT_ROWS, n, 2, 1);
    covers(s, SV_ROLE_GDN_DECAY, nv, 0, SV_CUT_ROWS, n, 1, 1);
    covers(s, SV_ROLE_O, 8, values, SV_CUT_COLS, n, 1, col);
    for (int32_t r = 0; r < n; r++) {
        const struct sv_slice heads = sv_shard_key_heads(s, of(r, n));
        const struct sv_cut c =
            sv_shard_cut(s, SV_ROLE_GDN_QKV, 2 * keys + 2 * values, 8, of(r, n));
        const int32_t per = nv / s->gdn_k_heads * s->gdn_v_dim;
        for (int32_t i = 0; i < 2; i++) {
            assert_int_equal(c.range[i].first, i * keys + heads.first * s->gdn_k_dim);
            assert_int_equal(c.range[2 + i].first, 2 * keys + i * values + heads.first * per);
            assert_int_equal(c.range[2 + i].n, heads.n * per);
        }
    }
}

static void random_shapes(void **state)
{
    struct sv_rng g = {1};
    int n_fit = 0, n_refused = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct sv_shard_shape s;
        struct sv_err err = {0};
        random_shape(&g, &s);
        const int32_t n = 1 + (int32_t)sv_rng_below(&g, SV_MAX_RANKS);
        if (sv_shard_check(&s, n, "target", &err)) {
            n_refused++;
            assert_int_equal(err.code, SV_EUNSUPPORTED);
            assert_non_null(strstr(err.msg, "that fit: 1"));
            continue;
        }
        if (n == 1)
            continue;
        n_fit++;
        const int32_t group = s.group.inner > 1 ? s.group.inner : 1, hd = s.head_dim, hidden = 640,
                      col = s.group.head_cols > 1 ? s.group.head_cols : 1,
                      vocab = s.group.vocab > 1 ? s.group.vocab : 1;
        delta_rules(&s, n);
        covers(&s, SV_ROLE_Q, s.n_heads * hd, hidden, SV_CUT_ROWS, n, 1, hd);
        covers(&s, SV_ROLE_Q, s.n_heads * 2 * hd, hidden, SV_CUT_ROWS, n, 1, 2 * hd); /* gated */
        covers(&s, SV_ROLE_Q | SV_ROLE_BIAS, s.n_heads * hd, 0, SV_CUT_ROWS, n, 1, hd);
        covers(&s, SV_ROLE_SINKS, s.n_heads, 0, SV_CUT_ROWS, n, 1, 1);
        covers(&s, SV_ROLE_O, hidden, s.n_heads * (s.v_dim ? s.v_dim : hd), SV_CUT_COLS, n, 1, col);
        covers(&s, SV_ROLE_GATE, s.intermediate, hidden, SV_CUT_ROWS, n, 1, group);
        covers(&s, SV_ROLE_UP | SV_ROLE_DRAFT, s.intermediate, hidden, SV_CUT_ROWS, n, 1, group);
        covers(&s, SV_ROLE_DOWN, hidden, s.intermediate, SV_CUT_COLS, n, 1, group);
        covers(&s, SV_ROLE_EXPERT_UP, s.expert_intermediate, hidden, SV_CUT_ROWS, n, 1, group);
        covers(&s, SV_ROLE_EXPERT_DOWN, hidden, s.expert_intermediate, SV_CUT_COLS, n, 1, group);
        covers(&s, SV_ROLE_TAP_PROJ, hidden, s.n_taps, SV_CUT_COLS, n, 1, group);
        covers(&s, SV_ROLE_HEAD, s.vocab, hidden, SV_CUT_ROWS, n, 1, vocab);
        /* gate and down of one rank meet, and are even to a unit */
        for (int32_t r = 0; r < n; r++) {
            const struct sv_cut a = sv_shard_cut(&s, SV_ROLE_GATE, s.intermediate, 8, of(r, n)),
                                b = sv_shard_cut(&s, SV_ROLE_DOWN, 8, s.intermediate, of(r, n));
            assert_int_equal(a.range[0].first, b.range[0].first);
            assert_int_equal(a.range[0].n, b.range[0].n);
        }
    }
    print_message("%d fit, %d refused\n", n_fit, n_refused);
    assert_true(n_fit > 1000 && n_refused > 1000);
}

/* Experts shared out whole: consecutive ones, numbers that differ by one at most, no part of any.
 */
static void experts(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= SV_MAX_RANKS; n++)
        for (int32_t k = 1; k <= 130; k++) {
            struct sv_shard_shape s = {.n_experts = k,
                                       .by_expert = true,
                                       .expert_intermediate = 8,
                                       .shared_intermediate = 64,
                                       .vocab = 1000};
            int32_t at = 0;
            assert_int_equal(!sv_shard_check(&s, n, "x", NULL), k >= n);
            for (int32_t r = 0; r < n; at += sv_shard_experts(&s, of(r++, n)).n) {
                const struct sv_slice own = sv_shard_experts(&s, of(r, n));
                assert_int_equal(own.first, at);
                assert_in_range(own.n, k / n, (k + n - 1) / n);
                for (int bias = 0; bias < 2; bias++) {
                    const int role = SV_ROLE_EXPERT_DOWN | (bias ? SV_ROLE_BIAS : 0);
                    assert_int_equal(
                        sv_shard_cut(&s, (enum sv_role)role, 8, bias ? 0 : 8, of(r, n)).axis,
                        SV_CUT_NONE);
                }
            }
            assert_int_equal(at, k);
            s.by_expert = false;
            for (int32_t r = 0; r < n; r++)
                assert_int_equal(sv_shard_experts(&s, of(r, n)).n, k);
        }
}

/* Each query head finds its K/V head on its rank, at the place that grouped attention looks. */
/* All heads on every rank, with their biases, in numbers that heads do not fit; the rest is
 * divided.
 */
static void whole_mixers(void **state)
{
    static const enum sv_role whole[] = {SV_ROLE_Q, SV_ROLE_K, SV_ROLE_V, SV_ROLE_O, SV_ROLE_SINKS};
    struct sv_shard_shape s = qwen;
    (void)state;
    s.whole_mixers = true;
    s.n_heads = 3;
    s.n_kv_heads = 3;
    assert_int_equal(sv_shard_check(&s, 4, "target", NULL), SV_OK);
    for (int32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(sv_shard_heads(&s, of(rank, 4)).n, 3);
        assert_int_equal(sv_shard_kv_heads(&s, of(rank, 4)).n, 3);
        for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
            for (int bias = 0; bias < 2; bias++)
                assert_int_equal(sv_shard_cut(&s, whole[i] | (bias ? SV_ROLE_BIAS : 0), 384,
                                              bias ? 0 : 384, of(rank, 4))
                                     .axis,
                                 SV_CUT_NONE);
    }
    covers(&s, SV_ROLE_GATE, s.intermediate, 4096, SV_CUT_ROWS, 4, 1, 64);
    covers(&s, SV_ROLE_HEAD, s.vocab, 4096, SV_CUT_ROWS, 4, 1, 64);
}

static void heads_follow(void **state)
{
    (void)state;
    for (int32_t n_kv = 1; n_kv <= 16; n_kv *= 2)
        for (int32_t each = 1; each <= 8; each++)
            for (int32_t n = 1; n <= SV_MAX_RANKS; n++) {
                const struct sv_shard_shape s = {
                    .n_heads = n_kv * each, .n_kv_heads = n_kv, .head_dim = 64, .vocab = 1000};
                if (sv_shard_check(&s, n, "x", NULL))
                    continue;
                for (int32_t r = 0; r < n; r++) {
                    const struct sv_slice q = sv_shard_heads(&s, of(r, n)),
                                          kv = sv_shard_kv_heads(&s, of(r, n));
                    assert_int_equal(q.n % kv.n, 0);
                    for (int32_t i = 0; i < q.n; i++)
                        assert_int_equal((q.first + i) / each, kv.first + i / (q.n / kv.n));
                    const struct sv_cut c = sv_shard_cut(&s, SV_ROLE_V, n_kv * 64, 8, of(r, n));
                    assert_int_equal(c.range[0].first, n > 1 ? kv.first * 64 : 0);
                }
            }
}

/* Sums over ranks: what is added once is with the first rank. */
static void biases(void **state)
{
    (void)state;
    for (int32_t r = 0; r < 4; r++) {
        const enum sv_cut_axis want = r ? SV_CUT_ABSENT : SV_CUT_NONE;
        assert_int_equal(sv_shard_cut(&qwen, SV_ROLE_O | SV_ROLE_BIAS, 4096, 0, of(r, 4)).axis,
                         want);
        assert_int_equal(sv_shard_cut(&qwen, SV_ROLE_DOWN | SV_ROLE_BIAS, 4096, 0, of(r, 4)).axis,
                         want);
        assert_int_equal(sv_shard_cut(&qwen, SV_ROLE_EMBED, 151936, 4096, of(r, 4)).axis,
                         SV_CUT_NONE);
        assert_int_equal(sv_shard_cut(&qwen, SV_ROLE_Q_NORM, 128, 0, of(r, 4)).axis, SV_CUT_NONE);
        assert_int_equal(sv_shard_cut(&qwen, SV_ROLE_ROUTER, 128, 4096, of(r, 4)).axis,
                         SV_CUT_NONE);
    }
}

static void refuses(const struct sv_shard_shape *s, int32_t n, const char *text)
{
    struct sv_err err = {0};
    assert_true(sv_shard_check(s, n, "target", &err) < 0);
    if (!strstr(err.msg, text))
        fail_msg("'%s' is not in '%s'", text, err.msg);
}

static void refusals(void **state)
{
    struct sv_shard_shape s = qwen;
    (void)state;
    for (int32_t n = 1; n <= 16; n *= 2)
        assert_int_equal(sv_shard_check(&qwen, n, "target", NULL), SV_OK);
    refuses(&qwen, 3, "32 heads of 128, 8 K/V heads");
    refuses(&qwen, 3, "among 3 ranks; the numbers of ranks that fit: 1, 2, 4, 8, 16");
    refuses(&qwen, 0, "must be 1 to 16");
    refuses(&qwen, 17, "must be 1 to 16");
    s.n_kv_heads = 2; /* 4 ranks have each head twice */
    assert_int_equal(sv_shard_check(&s, 4, "target", NULL), SV_OK);
    s.n_heads = 12;
    s.n_kv_heads = 4; /* 3 divides the heads, not the K/V heads */
    refuses(&s, 3, "fit: 1, 2, 4");
    s = qwen;
    s.group.head_rows = s.group.inner = 256; /* two heads share a scale */
    refuses(&s, 8, "in groups of 256 weights");
    assert_int_equal(sv_shard_check(&s, 4, "target", NULL), SV_OK);
    s.intermediate = 512; /* two groups */
    refuses(&s, 4, "fit: 1, 2");
    s = qwen;
    s.group.head_cols = 4096; /* all inputs of o */
    refuses(&s, 2, "fit: 1");
    s = qwen;
    s.gdn_k_heads = 6;
    s.gdn_v_heads = 12;
    refuses(&s, 4, "6 key heads of delta rules");
    refuses(&s, 4, "fit: 1, 2");
}

static void uneven(void **state)
{
    const struct sv_shard_shape s = {
        .n_heads = 64, .n_kv_heads = 8, .head_dim = 64, .intermediate = 2880, .vocab = 300};
    (void)state;
    /* 45 units of 64 for 8 ranks, 5 of the vocabulary for 4 */
    static const int32_t units[8] = {5, 6, 5, 6, 6, 5, 6, 6}, vocab[4] = {64, 64, 64, 108};
    for (int32_t r = 0; r < 8; r++)
        assert_int_equal(sv_shard_inner(&s, 2880, of(r, 8)).n, 64 * units[r]);
    for (int32_t r = 0; r < 4; r++)
        assert_int_equal(sv_shard_vocab(&s, of(r, 4)).n, vocab[r]);
}

/* The table of tensors says the same axis, but for what is looked up, and for a draft's taps. */
static int same_axis(void *user, const struct sv_tensor_spec *t)
{
    static const enum sv_cut_axis axis[] = {[SV_SHARD_NONE] = SV_CUT_NONE,
                                            [SV_SHARD_ROWS] = SV_CUT_ROWS,
                                            [SV_SHARD_COLS] = SV_CUT_COLS};
    const struct sv_cut c =
        sv_shard_cut(user, t->role, (int32_t)t->rows, (int32_t)t->cols, of(0, 2));
    if (t->role != SV_ROLE_EMBED && t->role != SV_ROLE_TAP_PROJ)
        assert_int_equal(c.axis, axis[t->shard]);
    return 0;
}

static void table(void **state)
{
    struct sv_config c;
    struct sv_draft_config d;
    (void)state;
    assert_int_equal(sv_config_load(&c, sv_test_path("tests/golden/tiny/pair_target"), NULL), 0);
    assert_int_equal(
        sv_draft_config_load(&d, sv_test_path("tests/golden/tiny/pair_draft_full_b16"), 0, NULL),
        0);
    struct sv_shard_shape s = {.n_heads = c.n_heads,
                               .n_kv_heads = c.n_kv_heads,
                               .head_dim = c.head_dim,
                               .intermediate = c.intermediate_size,
                               .vocab = c.vocab_size};
    c.attention_bias = c.mlp_bias = true;
    assert_int_equal(sv_config_each_tensor(&c, 0, same_axis, &s), 0);
    s.n_heads = d.base.n_heads;
    s.n_kv_heads = d.base.n_kv_heads;
    s.n_taps = d.n_taps * d.base.hidden_size;
    assert_int_equal(sv_config_each_tensor(&d.base, d.n_taps, same_axis, &s), 0);
}

SV_TEST_MAIN(cmocka_unit_test(random_shapes), cmocka_unit_test(experts),
             cmocka_unit_test(heads_follow), cmocka_unit_test(whole_mixers),
             cmocka_unit_test(biases), cmocka_unit_test(refusals), cmocka_unit_test(uneven),
             cmocka_unit_test(table))
