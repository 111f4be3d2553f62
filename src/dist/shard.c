/*
 * shard.c - what each rank has of a model: ranges by role.
 *
 * Called by model at open. Plain arithmetic on a few numbers; docs/parallel.md has the rules as a
 * table. Must not: look at weights, or give two ranks of the same number different answers.
 */
#include "dist/dist.h"

#include <string.h>

enum { UNIT = 64 };

static int32_t group_of(const struct sv_shard_shape *s)
{
    return s->group > 1 ? s->group : 1;
}

static int32_t gcd(int32_t a, int32_t b)
{
    return b ? gcd(b, a % b) : a;
}

/* Part r of n of `size` numbers in units that are multiples of `group`. */
static struct sv_slice divide(int32_t size, int32_t group, struct sv_ranks r)
{
    int32_t unit = UNIT / gcd(UNIT, group) * group;
    while (unit % 2 == 0 && unit / 2 % group == 0 && (size + unit - 1) / unit < r.n)
        unit /= 2;
    const int64_t units = (size + unit - 1) / unit;
    const int64_t begin = units * r.rank / r.n * unit, end = units * (r.rank + 1) / r.n * unit;
    return (struct sv_slice){(int32_t)begin, (int32_t)((end < size ? end : size) - begin)};
}

struct sv_slice sv_shard_heads(const struct sv_shard_shape *s, struct sv_ranks r)
{
    const int32_t n = s->n_heads / r.n;
    return (struct sv_slice){r.rank * n, n};
}

struct sv_slice sv_shard_kv_heads(const struct sv_shard_shape *s, struct sv_ranks r)
{
    if (s->n_kv_heads < r.n)
        return (struct sv_slice){r.rank / (r.n / s->n_kv_heads), 1};
    const int32_t n = s->n_kv_heads / r.n;
    return (struct sv_slice){r.rank * n, n};
}

struct sv_slice sv_shard_inner(const struct sv_shard_shape *s, int32_t size, struct sv_ranks r)
{
    return divide(size, group_of(s), r);
}

/* Rows of a head have their scales to themselves, or share them with rows of their own unit. */
struct sv_slice sv_shard_vocab(const struct sv_shard_shape *s, struct sv_ranks r)
{
    return divide(s->vocab, 1, r);
}

/* ---------------------------------------------------------------- degrees */

static bool heads_fit(const struct sv_shard_shape *s, int32_t n)
{
    return !s->n_heads || (s->n_heads % n == 0 && s->n_kv_heads > 0 &&
                           (s->n_kv_heads % n == 0 || n % s->n_kv_heads == 0));
}

/* The heads of a rank are whole groups of the columns of o, and of the rows of q, k and v. */
static bool groups_fit(const struct sv_shard_shape *s, int32_t n)
{
    const int32_t kv = s->n_kv_heads < n ? 1 : s->n_kv_heads / n, group = group_of(s);
    return n == 1 || !s->n_heads ||
           ((int64_t)s->n_heads / n * s->head_dim % group == 0 &&
            (int64_t)kv * s->head_dim % group == 0);
}

/* Each rank gets some of them. */
static bool inner_fits(const struct sv_shard_shape *s, int32_t size, int32_t n)
{
    const int32_t group = group_of(s);
    return !size || (size + group - 1) / group >= n;
}

static bool fits(const struct sv_shard_shape *s, int32_t n)
{
    return heads_fit(s, n) && groups_fit(s, n) && inner_fits(s, s->intermediate, n) &&
           inner_fits(s, s->expert_intermediate, n) && inner_fits(s, s->shared_intermediate, n) &&
           inner_fits(s, s->n_taps, n) && s->vocab >= n;
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

int sv_shard_check(const struct sv_shard_shape *s, int32_t n, const char *what, struct sv_err *err)
{
    char list[96], group[48] = "";
    if (n < 1 || n > SV_MAX_RANKS)
        return sv_fail(err, SV_EINVAL, -1, "%s: %d ranks: must be 1 to %d", what, n, SV_MAX_RANKS);
    if (n > 1 && s->whole)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: tensor parallel does not divide %s yet; it runs on 1 rank", what,
                       s->whole);
    if (fits(s, n))
        return SV_OK;
    list_degrees(s, list, sizeof list);
    if (group_of(s) > 1)
        snprintf(group, sizeof group, " in groups of %d weights", group_of(s));
    return sv_fail(
        err, SV_EUNSUPPORTED, -1,
        "%s: %d heads of %d, %d K/V heads, intermediate size %d and %d tokens%s cannot be divided "
        "among %d ranks; the numbers of ranks that fit: %s",
        what, s->n_heads, s->head_dim, s->n_kv_heads,
        s->intermediate ? s->intermediate : s->expert_intermediate, s->vocab, group, n, list);
}

/* ---------------------------------------------------------------- tensors */

static struct sv_cut by(enum sv_cut_axis axis, struct sv_slice range, int32_t each)
{
    return (struct sv_cut){axis, {range.first * each, range.n * each}};
}

/* A vector is cut where its matrix is cut by outputs; where that is cut by inputs, its bias is
 * added once. */
static struct sv_cut outputs(struct sv_slice range, int32_t each)
{
    return by(SV_CUT_ROWS, range, each);
}

static struct sv_cut inputs(bool is_bias, struct sv_slice range, int32_t each, struct sv_ranks r)
{
    if (!is_bias)
        return by(SV_CUT_COLS, range, each);
    return (struct sv_cut){.axis = r.rank ? SV_CUT_ABSENT : SV_CUT_NONE};
}

struct sv_cut sv_shard_cut(const struct sv_shard_shape *s, enum sv_role role, int32_t rows,
                           int32_t cols, struct sv_ranks r)
{
    const bool is_bias = role & SV_ROLE_BIAS;
    const struct sv_cut all = {.axis = SV_CUT_NONE};
    if (r.n == 1)
        return all;
    switch (role & ~(SV_ROLE_BIAS | SV_ROLE_DRAFT)) {
    case SV_ROLE_Q: /* gates of gated attention stand with their heads */
    case SV_ROLE_SINKS:
        return outputs(sv_shard_heads(s, r), rows / s->n_heads);
    case SV_ROLE_K:
    case SV_ROLE_V:
        return outputs(sv_shard_kv_heads(s, r), rows / s->n_kv_heads);
    case SV_ROLE_O:
        return inputs(is_bias, sv_shard_heads(s, r), cols / s->n_heads, r);
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
        return inputs(is_bias, sv_shard_inner(s, cols, r), 1, r);
    case SV_ROLE_HEAD:
        return outputs(sv_shard_vocab(s, r), 1);
    case SV_ROLE_EMBED: /* rows are looked up: dividing it would take a join more a pass */
    case SV_ROLE_FINAL_NORM:
    case SV_ROLE_IN_NORM:
    case SV_ROLE_POST_NORM:
    case SV_ROLE_Q_NORM:
    case SV_ROLE_K_NORM:
    case SV_ROLE_TAP_NORM:
    case SV_ROLE_ROUTER:
    case SV_ROLE_SHARED_ROUTER:
        return all;
    default:
        sv_panic("no rule says how to divide a tensor of role %d", (int)role);
    }
}
