/*
 * gguf_ckpt.c - a checkpoint from GGUF files: shards, mapping, names of our table, rows in our
 * order.
 *
 * Called by ckpt.c and config.c for paths that end in .gguf. Quantized tensors stay in the file as
 * they are, but for q and k of llama, whose rows the converter permutes: whole rows move back, into
 * the arena. Must not: interpret metadata other than the split and the numbers of heads.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/gguf.h"

#include "backend/ops_moe.h"

#include <string.h>
#include <sys/stat.h>

#define MAX_SHARDS 1000

bool sv_is_gguf(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

/* ---------------------------------------------------------------- names */

bool sv_gguf_tensor_name(const char *name, char *buf, size_t size)
{
    static const struct {
        const char *from, *to;
    } whole[] = {{"token_embd.weight", "embed_tokens.weight"},
                 {"output_norm.weight", "norm.weight"},
                 {"output.weight", "lm_head.weight"}},
      part[] = {{"attn_norm", "input_layernorm"},
                {"ffn_norm", "post_attention_layernorm"},
                {"attn_q_norm", "self_attn.q_norm"},
                {"attn_k_norm", "self_attn.k_norm"},
                {"attn_q", "self_attn.q_proj"},
                {"attn_k", "self_attn.k_proj"},
                {"attn_v", "self_attn.v_proj"},
                {"attn_output", "self_attn.o_proj"},
                {"ffn_gate", "mlp.gate_proj"},
                {"ffn_up", "mlp.up_proj"},
                {"ffn_down", "mlp.down_proj"},
                {"ffn_gate_inp", "mlp.gate"},
                {"ffn_gate_exps", "mlp.experts.{expert}.gate_proj"},
                {"ffn_up_exps", "mlp.experts.{expert}.up_proj"},
                {"ffn_down_exps", "mlp.experts.{expert}.down_proj"}};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (!strcmp(name, whole[i].from))
            return snprintf(buf, size, "%s", whole[i].to) > 0;
    if (strncmp(name, "blk.", 4) != 0)
        return false;
    const char *layer = name + 4, *rest = layer + strspn(layer, "0123456789");
    const int n_layer = (int)(rest - layer);
    if (n_layer < 1 || n_layer > 4 || *rest != '.')
        return false;
    const char *suffix = strrchr(++rest, '.');
    if (!suffix || (strcmp(suffix, ".weight") && strcmp(suffix, ".bias")))
        return false;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        if (strlen(part[i].from) == (size_t)(suffix - rest) &&
            !strncmp(rest, part[i].from, strlen(part[i].from)))
            return snprintf(buf, size, "layers.%.*s.%s%s", n_layer, layer, part[i].to, suffix) > 0;
    return false;
}

/* ---------------------------------------------------------------- rows of llama's q and k */

/* Heads whose rows the converter permuted: for neighbouring-pair rotary, row h * hd + 2 i + t holds
 * ours h * hd + t * hd / 2 + i. 0: not such a tensor. */
static int64_t permuted_heads(const char *name, int64_t n_heads, int64_t n_kv_heads)
{
    const char *part = strstr(name, ".self_attn.");
    if (!part)
        return 0;
    if (!strncmp(part, ".self_attn.q_proj.", 18))
        return n_heads;
    return strncmp(part, ".self_attn.k_proj.", 18) ? 0 : n_kv_heads;
}

static int unpermute(struct sv_ckpt *c, struct sv_host_tensor *t, int64_t n_heads,
                     struct sv_err *err)
{
    const int64_t rows = t->dim[0], head = rows / n_heads;
    const size_t row_bytes = t->n_bytes / (size_t)rows;
    if (rows % n_heads || head % 2)
        return sv_fail(err, SV_EFORMAT, -1,
                       "%s: tensor '%.120s': %lld rows are not %lld heads of an even size", t->file,
                       t->name, (long long)rows, (long long)n_heads);
    uint8_t *copy = sv_arena_alloc(&c->arena, t->n_bytes);
    if (!copy)
        return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for the rows of '%.120s'", t->file,
                       t->name);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t in_head = r % head, half = head / 2;
        const int64_t from = r - in_head + in_head % half * 2 + in_head / half;
        memcpy(copy + (size_t)r * row_bytes, (const uint8_t *)t->data + (size_t)from * row_bytes,
               row_bytes);
    }
    t->data = copy;
    return SV_OK;
}

/* ---------------------------------------------------------------- tensors */

/* How many matrices a tensor holds: those of a layer's experts are stacked. */
static int64_t n_stacked(const struct sv_gguf_tensor *t)
{
    char name[160];
    return t->n_dims == 3 && t->dim[2] <= SV_MAX_EXPERTS &&
                   sv_gguf_tensor_name(t->name, name, sizeof name) && strstr(name, "{expert}")
               ? t->dim[2]
               : 1;
}

static struct sv_gguf_tensor expert_of(const struct sv_gguf_tensor *t, int64_t expert, int64_t n)
{
    struct sv_gguf_tensor one = *t;
    one.n_dims = 2;
    one.n_elements /= n;
    one.n_bytes /= (size_t)n;
    one.data += (size_t)expert * one.n_bytes;
    return one;
}

static int take_tensor(struct sv_ckpt *c, const struct sv_gguf_tensor *from, int64_t expert,
                       struct sv_err *err)
{
    char pattern[160], name[192];
    struct sv_host_tensor *t = &c->tensors[c->n_tensors];
    enum sv_quant_code code;
    *t = (struct sv_host_tensor){.n_dims = from->n_dims,
                                 .n_elements = from->n_elements,
                                 .n_bytes = from->n_bytes,
                                 .data = from->data,
                                 .file = from->file};
    SV_REQUIRE(sv_gguf_format(from->type, &t->dtype, &code));
    for (int32_t i = 0; i < from->n_dims; i++) /* ours: the longest stride first */
        t->dim[i] = from->dim[from->n_dims - 1 - i];
    if (code)
        t->quant = (struct sv_quant){.code = code,
                                     .rows = (int32_t)(from->n_elements / from->dim[0]),
                                     .cols = (int32_t)from->dim[0],
                                     .data = from->data};
    /* a name that we do not know stays: the audit tells of it */
    const bool known = sv_gguf_tensor_name(from->name, pattern, sizeof pattern);
    if (known)
        sv_tensor_name(name, sizeof name, pattern, -1, (int32_t)expert);
    t->name = sv_arena_strdup(&c->arena, known ? name : from->name);
    if (!t->name)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", from->file);
    c->n_params += t->n_elements;
    c->n_bytes += (int64_t)t->n_bytes;
    c->n_tensors++;
    return SV_OK;
}

/* The number of heads, or of heads of K and V, of a file of this architecture. */
static int heads_of(const struct sv_gguf *g, const char *what, int64_t *out, struct sv_err *err)
{
    char key[80];
    snprintf(key, sizeof key, "llama.attention.%s", what);
    return sv_gguf_int_opt(g, key, 1, INT32_MAX, out, err);
}

static int undo_llama(struct sv_ckpt *c, const struct sv_gguf *g, struct sv_err *err)
{
    const char *arch = NULL;
    size_t n = 0;
    int64_t n_heads = 0, n_kv_heads = 0;
    int rc = sv_gguf_str_opt(g, "general.architecture", &arch, &n, err);
    if (rc || n != 5 || memcmp(arch, "llama", 5) != 0)
        return rc;
    rc = heads_of(g, "head_count", &n_heads, err);
    n_kv_heads = n_heads;
    if (!rc)
        rc = heads_of(g, "head_count_kv", &n_kv_heads, err);
    for (int32_t i = 0; !rc && i < c->n_tensors; i++) {
        const int64_t heads = permuted_heads(c->tensors[i].name, n_heads, n_kv_heads);
        if (heads)
            rc = unpermute(c, &c->tensors[i], heads, err);
        if (!rc && c->tensors[i].quant.code)
            c->tensors[i].quant.data = c->tensors[i].data;
    }
    return rc;
}

/* ---------------------------------------------------------------- shards */

/* Where the number of the shard stands: "NAME-00001-of-00003.gguf"; NULL: not such a name. */
static char *shard_number(char *path)
{
    const size_t n = strlen(path);
    char *at = n > 20 ? path + n - 20 : NULL;
    if (!at || at[0] != '-' || memcmp(at + 6, "-of-", 4) != 0 ||
        strspn(at + 1, "0123456789") != 5 || strspn(at + 10, "0123456789") != 5)
        return NULL;
    return at + 1;
}

/* Shard number f->n_maps. *count: the number of shards as it says, 1 when it does not. */
static int open_shard(struct sv_gguf_file *f, const char *path, struct sv_gguf *g, int64_t *count,
                      struct sv_err *err)
{
    struct sv_map *m = &f->maps[f->n_maps];
    int64_t no = 0;
    *count = 1;
    int rc = sv_map_open(m, path, err);
    if (rc)
        return rc;
    const int32_t expected = f->n_maps++;
    rc = sv_gguf_parse(g, m->data, m->n_bytes, path, &f->arena, err);
    if (!rc)
        rc = sv_gguf_int_opt(g, "split.count", 1, MAX_SHARDS, count, err);
    if (!rc)
        rc = sv_gguf_int_opt(g, "split.no", 0, MAX_SHARDS - 1, &no, err);
    if (!rc && no != expected)
        rc = sv_fail(err, SV_EMISMATCH, -1, "%s: 'split.no' is %lld, %d was expected", path,
                     (long long)no, expected);
    return rc;
}

/* The tensors of a further shard behind those of the first. */
static int append(struct sv_gguf_file *f, const struct sv_gguf *more, struct sv_err *err)
{
    struct sv_gguf *g = &f->g;
    const size_t n = (size_t)g->n_tensors + (size_t)more->n_tensors;
    struct sv_gguf_tensor *all = sv_arena_alloc(&f->arena, n * sizeof *all);
    if (!all)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", more->file);
    memcpy(all, g->tensors, (size_t)g->n_tensors * sizeof *all);
    memcpy(all + g->n_tensors, more->tensors, (size_t)more->n_tensors * sizeof *all);
    g->tensors = all;
    g->n_tensors = (int32_t)n;
    return SV_OK;
}

static int open_others(struct sv_gguf_file *f, char *path, int64_t count, struct sv_err *err)
{
    char *number = shard_number(path), digits[16];
    int64_t same = 0, total = -1;
    int rc = SV_OK;
    if (!number)
        return sv_fail(err, SV_EFORMAT, -1,
                       "%s: one of %lld shards, but its name does not end in -00001-of-%05lld.gguf",
                       path, (long long)count, (long long)count);
    for (int64_t i = 1; i < count && !rc; i++) {
        struct sv_gguf more;
        snprintf(digits, sizeof digits, "%05d", (int)(i + 1));
        memcpy(number, digits, 5);
        rc = open_shard(f, path, &more, &same, err);
        if (!rc && same != count)
            rc = sv_fail(err, SV_EMISMATCH, -1, "%s: one of %lld shards, the first of %lld", path,
                         (long long)same, (long long)count);
        if (!rc)
            rc = append(f, &more, err);
    }
    if (!rc)
        rc = sv_gguf_int_opt(&f->g, "split.tensors.count", 0, INT32_MAX, &total, err);
    if (!rc && total >= 0 && total != f->g.n_tensors)
        rc = sv_fail(err, SV_EMISMATCH, -1, "%s: 'split.tensors.count' is %lld, the shards hold %d",
                     f->g.file, (long long)total, f->g.n_tensors);
    return rc;
}

int sv_gguf_open(struct sv_gguf_file *f, const char *path, struct sv_err *err)
{
    int64_t count = 1;
    char *name = sv_strdup(path);
    memset(f, 0, sizeof *f);
    sv_arena_init(&f->arena);
    f->maps = sv_arena_alloc(&f->arena, MAX_SHARDS * sizeof *f->maps);
    int rc = name && f->maps ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
    if (!rc)
        rc = open_shard(f, path, &f->g, &count, err);
    if (!rc && count > 1)
        rc = open_others(f, name, count, err);
    sv_free(name);
    if (rc)
        sv_gguf_close(f);
    return rc;
}

void sv_gguf_close(struct sv_gguf_file *f)
{
    for (int32_t i = 0; i < f->n_maps; i++)
        sv_map_close(&f->maps[i]);
    sv_arena_fini(&f->arena);
    memset(f, 0, sizeof *f);
}

int64_t sv_gguf_ckpt_bytes(const char *path)
{
    struct stat st;
    char *name = sv_strdup(path), *number = name ? shard_number(name) : NULL, digits[16];
    int64_t sum = 0;
    for (int i = 1; name && i <= (number ? MAX_SHARDS : 1); i++) {
        if (number) {
            snprintf(digits, sizeof digits, "%05d", i);
            memcpy(number, digits, 5);
        }
        if (stat(name, &st) != 0)
            break;
        sum += (int64_t)st.st_size;
    }
    sv_free(name);
    return sum;
}

/* ---------------------------------------------------------------- the checkpoint */

static int fill(struct sv_ckpt *c, const struct sv_gguf *g, struct sv_err *err)
{
    int rc = SV_OK;
    int64_t total = 0;
    for (int32_t i = 0; i < g->n_tensors; i++)
        total += n_stacked(&g->tensors[i]);
    c->tensors = sv_arena_alloc(&c->arena, (size_t)total * sizeof *c->tensors);
    if (!c->tensors)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", g->file);
    for (int32_t i = 0; i < g->n_tensors && !rc; i++) {
        const struct sv_gguf_tensor *t = &g->tensors[i];
        const int64_t n = n_stacked(t);
        if (!strcmp(t->name, "rope_freqs.weight")) /* the configuration has it */
            continue;
        for (int64_t e = 0; e < n && !rc; e++) {
            const struct sv_gguf_tensor one = expert_of(t, e, n);
            rc = take_tensor(c, n > 1 ? &one : t, e, err);
        }
    }
    return rc ? rc : undo_llama(c, g, err);
}

int sv_gguf_ckpt_open(struct sv_ckpt *c, const char *path, struct sv_err *err)
{
    struct sv_gguf_file f;
    int rc = sv_gguf_open(&f, path, err);
    if (rc)
        return rc;
    sv_arena_fini(&c->arena);
    c->arena = f.arena; /* maps and arena are the checkpoint's from here on */
    c->maps = f.maps;
    c->n_maps = f.n_maps;
    return fill(c, &f.g, err);
}
