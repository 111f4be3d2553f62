/*
 * shard.c - what each rank has of a model: ranges by role.
 *
 * Called by model at open. Plain arithmetic on a few numbers; docs/parallel.md has the rules as a
 * table. Must not: read weights, or give two ranks of the same number different answers.
 */
#include "dist/dist.h"

#include <string.h>

enum { UNIT = 64 };

static int32_t gcd(int32_t a, int32_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* The least common multiple; 0 is 1. */
static int32_t both(int32_t a, int32_t b)
{
    a = a > 1 ? a : 1;
    b = b > 1 ? b : 1;
    return a / gcd(a, b) * b;
}

void sv_shard_bind(int32_t *group, int32_t n)
{
    *group = both(*group, n);
}

/* Part r of n of `size` numbers in units that are multiples of `group`. */
static struct sv_slice divide(int32_t size, int32_t group, struct sv_ranks r)
{
    int32_t unit = both(UNIT, group);
    while (unit % 2 == 0 && unit / 2 % group == 0 && (size + unit - 1) / unit < r.n)
        unit /= 2;
    const int64_t units = (size + unit - 1) / unit;
    const int64_t begin = units * r.rank / r.n * unit, end = units * (r.rank + 1) / r.n * unit;
    return (struct sv_slice){(int32_t)begin, (int32_t)((end < size ? end : size) - begin)};
}

static struct sv_slice evenly(int32_t size, struct sv_ranks r)
{
    const int32_t n = size / r.n;
    return (struct sv_slice){r.rank * n, n};
}

struct sv_slice sv_shard_heads(const struct sv_shard_shape *s, struct sv_ranks r)
{
    return s->whole_mixers ? (struct sv_slice){0, s->n_heads} : evenly(s->n_heads, r);
}

struct sv_slice sv_shard_kv_heads(const struct sv_shard_shape *s, struct sv_ranks r)
{
    if (s->whole_mixers)
        return (struct sv_slice){0, s->n_kv_heads};
    if (s->n_kv_heads < r.n)
        return (struct sv_slice){r.rank / (r.n / s->n_kv_heads), 1};
    return evenly(s->n_kv_heads, r);
}

struct sv_slice sv_shard_key_heads(const struct sv_shard_shape *s, struct sv_ranks r)
{
    return evenly(s->gdn_k_heads, r);
}

struct sv_slice sv_shard_experts(const struct sv_shard_shape *s, struct sv_ranks r)
{
    const int32_t begin = s->n_experts * r.rank / r.n, end = s->n_experts * (r.rank + 1) / r.n;
    return s->by_expert ? (struct sv_slice){begin, end - begin}
                        : (struct sv_slice){0, s->n_experts};
}

struct sv_slice sv_shard_inner(const struct sv_shard_shape *s, int32_t size, struct sv_ranks r)
{
    return divide(size, both(s->group.inner, 1), r);
}

struct sv_slice sv_shard_vocab(const struct sv_shard_shape *s, struct sv_ranks r)
{
    return divide(s->vocab, both(s->group.vocab, 1), r);
}

/* ---------------------------------------------------------------- degrees */

static bool heads_fit(const struct sv_shard_shape *s, int32_t n)
{
    return (!s->n_heads || s->whole_mixers ||
            (s->n_heads % n == 0 && s->n_kv_heads > 0 &&
             (s->n_kv_heads % n == 0 || n % s->n_kv_heads == 0))) &&
           s->gdn_k_heads % n == 0;
}

/* The numbers of a rank's heads are whole groups, as outputs and, where they are, as inputs. */
static bool whole_groups(const struct sv_shard_shape *s, int32_t n_out, int32_t n_in)
{
    return n_out % both(s->group.head_rows, 1) == 0 && n_in % both(s->group.head_cols, 1) == 0;
}

static bool groups_fit(const struct sv_shard_shape *s, int32_t n)
{
    const int32_t kv = s->n_kv_heads < n ? 1 : s->n_kv_heads / n, heads = s->n_heads / n,
                  values = s->gdn_v_heads / n * s->gdn_v_dim;
    return n == 1 || s->whole_mixers ||
           (whole_groups(s, heads * s->head_dim, heads * (s->v_dim ? s->v_dim : s->head_dim)) &&
            whole_groups(s, kv * s->head_dim, 0) &&
            whole_groups(s, s->gdn_k_heads / n * s->gdn_k_dim, 0) &&
            whole_groups(s, values, values));
}

/* Each rank gets some of them. */
static bool inner_fits(int32_t size, int32_t group, int32_t n)
{
    return !size || (size + group - 1) / group >= n;
}

static bool fits(const struct sv_shard_shape *s, int32_t n)
{
    const int32_t group = both(s->group.inner, 1);
    return heads_fit(s, n) && groups_fit(s, n) && inner_fits(s->intermediate, group, n) &&
           (s->by_expert ? s->n_experts >= n : inner_fits(s->expert_intermediate, group, n)) &&
           inner_fits(s->shared_intermediate, group, n) && inner_fits(s->n_taps, group, n) &&
           inner_fits(s->vocab, both(s->group.vocab, 1), n);
}

static void list_degrees(const struct sv_shard_shape *s, char *list, size_t size)
{
    *list = 0;
    for (int32_t n = 1; n <= SV_MAX_RANKS; n++) {
        const size_t at = strlen(list);
        if (fits(s, n))
            snprintf(list + at, size - at, "%s%d", at ? ", " : "", n);
    }
}

/* Of what the model has. */
static void add_size(char *list, size_t size, const char *before, int32_t n, const char *after)
{
    const size_t at = strlen(list);
    if (n)
        snprintf(list + at, size - at, ", %s%d%s", before, n, after);
}

int sv_shard_check(const struct sv_shard_shape *s, int32_t n, const char *what, struct sv_err *err)
{
    char list[96], sizes[160] = "", group[64] = "";
    if (n < 1 || n > SV_MAX_RANKS)
        return sv_fail(err, SV_EINVAL, -1, "%s: %d ranks: must be 1 to %d", what, n, SV_MAX_RANKS);
    if (fits(s, n))
        return SV_OK;
    list_degrees(s, list, sizeof list);
    add_size(sizes, sizeof sizes, "", s->gdn_k_heads, " key heads of delta rules");
    add_size(sizes, sizeof sizes, "intermediate size ", s->intermediate, "");
    if (s->by_expert)
        add_size(sizes, sizeof sizes, "", s->n_experts, " experts");
    else
        add_size(sizes, sizeof sizes, "that of experts ", s->expert_intermediate, "");
    add_size(sizes, sizeof sizes, "of the shared one ", s->shared_intermediate, "");
    int32_t most = s->group.inner;
    most = s->group.head_rows > most ? s->group.head_rows : most;
    most = s->group.head_cols > most ? s->group.head_cols : most;
    if (most > 1)
        snprintf(group, sizeof group, " in groups of %d weights", most);
    return sv_fail(err, SV_EUNSUPPORTED, -1,
                   "%s: %d heads of %d, %d K/V heads%s and %d tokens%s cannot be divided among %d "
                   "ranks; the numbers of ranks that fit: %s",
                   what, s->n_heads, s->head_dim, s->n_kv_heads, sizes, s->vocab, group, n, list);
}

/* ---------------------------------------------------------------- tensors */

int32_t sv_cut_size(const struct sv_cut *c)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < c->n_ranges; i++)
        sum += c->range[i].n;
    return sum;
}

static struct sv_cut by(enum sv_cut_axis axis, struct sv_slice range, int32_t each)
{
    return (struct sv_cut){axis, 1, {{range.first * each, range.n * each}}};
}

/* A vector is cut where its matrix is cut by outputs; where that is cut by inputs, its bias is
 * added once. */
static struct sv_cut outputs(struct sv_slice range, int32_t each)
{
    return by(SV_CUT_ROWS, range, each);
}

static struct sv_cut inputs(bool is_bias, struct sv_slice range, struct sv_ranks r)
{
    if (!is_bias)
        return by(SV_CUT_COLS, range, 1);
    return (struct sv_cut){.axis = r.rank ? SV_CUT_ABSENT : SV_CUT_NONE};
}

/* The rank's share of each of the parts, which lie behind each other and together are all rows. */
static struct sv_cut of_parts(const int32_t *part, int32_t rows, struct sv_ranks r)
{
    struct sv_cut c = {.axis = SV_CUT_ROWS};
    for (int32_t at = 0; at < rows; at += part[c.n_ranges++]) {
        SV_REQUIRE(c.n_ranges < SV_CUT_RANGES && part[c.n_ranges] > 0);
        c.range[c.n_ranges] = evenly(part[c.n_ranges], r);
        c.range[c.n_ranges].first += at;
    }
    return c;
}

/* Divided by heads, with their biases. */
static bool is_attention(enum sv_role role)
{
    const int plain = role & ~(SV_ROLE_BIAS | SV_ROLE_DRAFT);
    return (plain >= SV_ROLE_Q && plain <= SV_ROLE_O) || plain == SV_ROLE_SINKS;
}

static bool is_expert(enum sv_role role)
{
    const int plain = role & ~SV_ROLE_BIAS;
    return plain >= SV_ROLE_EXPERT_GATE && plain <= SV_ROLE_EXPERT_GATE_UP;
}

struct sv_cut sv_shard_cut(const struct sv_shard_shape *s, enum sv_role role, int32_t rows,
                           int32_t cols, struct sv_ranks r)
{
    const bool is_bias = role & SV_ROLE_BIAS;
    const int32_t keys = s->gdn_k_heads * s->gdn_k_dim, values = s->gdn_v_heads * s->gdn_v_dim;
    if (r.n == 1 || (s->by_expert && is_expert(role)) || (s->whole_mixers && is_attention(role)))
        return (struct sv_cut){.axis = SV_CUT_NONE};
    switch (role & ~(SV_ROLE_BIAS | SV_ROLE_DRAFT)) {
    case SV_ROLE_Q: /* gates of gated attention are divided with their heads */
    case SV_ROLE_SINKS:
    case SV_ROLE_GDN_Z:
    case SV_ROLE_GDN_A:
    case SV_ROLE_GDN_DECAY:
    case SV_ROLE_GDN_DT_BIAS:
        return outputs(evenly(rows, r), 1);
    case SV_ROLE_GDN_QKV:
    case SV_ROLE_GDN_CONV:
        return of_parts((int32_t[SV_CUT_RANGES]){keys, keys, values, values}, rows, r);
    case SV_ROLE_GDN_B:
        return of_parts((int32_t[SV_CUT_RANGES]){s->gdn_v_heads, s->gdn_v_heads}, rows, r);
    case SV_ROLE_K:
    case SV_ROLE_V:
        return outputs(sv_shard_kv_heads(s, r), rows / s->n_kv_heads);
    case SV_ROLE_O: /* of attention and of delta rules, by their heads */
        return inputs(is_bias, evenly(cols, r), r);
    case SV_ROLE_GATE:
    case SV_ROLE_UP:
    case SV_ROLE_EXPERT_GATE:
    case SV_ROLE_EXPERT_UP:
    case SV_ROLE_SHARED_GATE:
    case SV_ROLE_SHARED_UP:
        return outputs(sv_shard_inner(s, rows, r), 1);
    case SV_ROLE_DOWN:
    case SV_ROLE_EXPERT_DOWN:
    case SV_ROLE_SHARED_DOWN:
    case SV_ROLE_TAP_PROJ:
        return inputs(is_bias, sv_shard_inner(s, cols, r), r);
    case SV_ROLE_HEAD:
        return outputs(sv_shard_vocab(s, r), 1);
    case SV_ROLE_EMBED: /* rows are looked up: dividing it would take a join more a pass */
    case SV_ROLE_FINAL_NORM:
    case SV_ROLE_IN_NORM:
    case SV_ROLE_POST_NORM:
    case SV_ROLE_Q_NORM:
    case SV_ROLE_K_NORM:
    case SV_ROLE_TAP_NORM:
    case SV_ROLE_GDN_NORM:
    case SV_ROLE_Q_A: /* latents are whole on every rank, and so is their cache */
    case SV_ROLE_Q_A_NORM:
    case SV_ROLE_KV_A:
    case SV_ROLE_KV_A_NORM:
    case SV_ROLE_K_UP: /* of a head, where a file has heads apart */
    case SV_ROLE_V_UP:
    case SV_ROLE_ROUTER:
    case SV_ROLE_CHOICE_BIAS:
    case SV_ROLE_SHARED_ROUTER:
        return (struct sv_cut){.axis = SV_CUT_NONE};
    default:
        sv_panic("no rule says how to divide a tensor of role %d", (int)role);
    }
}
