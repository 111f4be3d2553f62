/*
 * quantize_source.c - the tensors of a model to be quantized: those of the checkpoint, and of
 * packed experts each matrix by its own name.
 *
 * Called by quantize.c. Parts of a tensor in the right order stay in place; others are made when
 * written, one matrix at a time. Must not: hold a copy of a model.
 */
#include "load/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lister {
    struct sv_sources *out;
    const struct sv_ckpt *ckpt;
    uint8_t *taken; /* (n_tensors) of the checkpoint: listed by parts */
    int32_t cap;
    struct sv_err *err;
};

/* Whether a tensor of this name is quantized. */
static bool is_projection(const char *name)
{
    static const char *const suffixes[] = {"_proj.weight", ".kv_a_proj_with_mqa.weight",
                                           ".in_proj_qkv.weight", ".in_proj_z.weight",
                                           ".in_proj_qkvz.weight"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const size_t k = strlen(suffixes[i]);
        if (!strncmp(name, "layers.", 7) && n > k && !strcmp(name + n - k, suffixes[i]))
            return true;
    }
    return false;
}

static int add(struct lister *l, const struct sv_source *s)
{
    struct sv_sources *o = l->out;
    if (o->n == l->cap) {
        const int32_t cap = l->cap ? 2 * l->cap : 256;
        struct sv_source *more =
            sv_realloc(o->s, (size_t)l->cap * sizeof *more, (size_t)cap * sizeof *more);
        if (!more)
            return sv_fail(l->err, SV_ENOMEM, -1, "out of memory");
        o->s = more;
        l->cap = cap;
    }
    o->s[o->n] = *s;
    o->s[o->n++].rounded = is_projection(s->t.name);
    return SV_OK;
}

static size_t elem_bytes(const struct sv_host_tensor *t)
{
    return t->n_bytes / (size_t)t->n_elements;
}

/* A part of s->t with this name and shape (rows, cols). */
static int add_part(struct lister *l, const struct sv_tensor_spec *spec, const char *what,
                    int32_t expert, struct sv_source s, int64_t rows, int64_t cols)
{
    char name[96];
    const size_t size = elem_bytes(&s.t);
    if (expert < 0)
        snprintf(name, sizeof name, "layers.%d.mlp.experts.%s.bias", spec->layer, what);
    else
        snprintf(name, sizeof name, "layers.%d.mlp.experts.%d.%s.weight", spec->layer, expert,
                 what);
    s.t.name = sv_arena_strdup(&l->out->arena, name);
    s.t.n_dims = 2;
    s.t.dim[0] = rows;
    s.t.dim[1] = cols;
    s.t.n_elements = rows * cols;
    s.t.n_bytes = (size_t)s.t.n_elements * size;
    return s.t.name ? add(l, &s) : sv_fail(l->err, SV_ENOMEM, -1, "out of memory");
}

static const char *const gate_up[] = {"gate_proj", "up_proj"};

/* Of experts in one tensor: outputs first, a part of it in place; inputs first, made later. */
static int take_experts(void *user, const struct sv_tensor_spec *spec)
{
    struct lister *l = user;
    const bool in_place = spec->form >= SV_FORM_EXPERT, down = spec->role == SV_ROLE_EXPERT_DOWN;
    const bool bias = spec->role & SV_ROLE_BIAS,
               all = spec->n_experts && (spec->pack != SV_PACK_NONE || bias);
    const struct sv_host_tensor *t = sv_ckpt_find(l->ckpt, spec->name);
    if (!t || !(in_place || all))
        return SV_OK;
    struct sv_source s = {.t = *t, .step = 1};
    l->taken[t - l->ckpt->tensors] = 1;
    if (in_place) {
        const int64_t one = t->n_elements / spec->n_experts,
                      at = spec->expert * one + (spec->form == SV_FORM_UP ? one / 2 : 0);
        s.t.data = (const uint8_t *)t->data + (size_t)at * elem_bytes(t);
        return add_part(
            l, spec, spec->form == SV_FORM_EXPERT ? "down_proj" : gate_up[spec->form == SV_FORM_UP],
            spec->expert, s, spec->rows, spec->cols);
    }
    if (bias && (spec->role & ~SV_ROLE_BIAS) == SV_ROLE_EXPERT_DOWN)
        return add_part(l, spec, "down_proj", -1, s, spec->n_experts, spec->rows);
    int rc = bias ? SV_OK : sv_packed_find(&s.packed, l->ckpt, spec, l->err);
    s.made = true;
    s.step = down ? 1 : 2;
    for (int32_t e = 0; e < (bias ? 1 : spec->n_experts) && !rc; e++)
        for (s.first = 0; s.first < s.step && !rc; s.first++) {
            s.expert = e;
            rc = add_part(l, spec, down ? "down_proj" : gate_up[s.first], bias ? -1 : e, s,
                          bias ? spec->n_experts : spec->rows / s.step,
                          bias ? spec->rows / 2 : spec->cols);
        }
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sv_source *)a)->t.name, ((const struct sv_source *)b)->t.name);
}

int sv_sources_open(struct sv_sources *out, const struct sv_config *cfg, const struct sv_ckpt *ckpt,
                    struct sv_err *err)
{
    struct lister l = {.out = out, .ckpt = ckpt, .err = err};
    memset(out, 0, sizeof *out);
    sv_arena_init(&out->arena);
    l.taken = sv_calloc((size_t)ckpt->n_tensors, 1);
    int rc = l.taken ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!rc && cfg->packed_experts)
        rc = sv_config_each_tensor(cfg, 0, take_experts, &l);
    for (int32_t i = 0; i < ckpt->n_tensors && !rc; i++) {
        const struct sv_source s = {.t = ckpt->tensors[i], .step = 1};
        if (!l.taken[i])
            rc = add(&l, &s);
    }
    sv_free(l.taken);
    if (rc)
        sv_sources_close(out);
    else
        qsort(out->s, (size_t)out->n, sizeof *out->s, by_name);
    return rc;
}

void sv_sources_close(struct sv_sources *s)
{
    sv_free(s->s);
    sv_arena_fini(&s->arena);
    memset(s, 0, sizeof *s);
}

const struct sv_source *sv_sources_find(const struct sv_sources *s, const char *name)
{
    const struct sv_source key = {.t = {.name = name}};
    return s->n ? bsearch(&key, s->s, (size_t)s->n, sizeof key, by_name) : NULL;
}

/* Every step-th number of a vector for each expert. */
static void pick(const struct sv_source *s, const struct sv_host_tensor *t, uint8_t *out)
{
    const size_t size = elem_bytes(t);
    for (int64_t i = 0; i < t->n_elements; i++)
        memcpy(out + (size_t)i * size,
               (const uint8_t *)s->t.data + (size_t)(i * s->step + s->first) * size, size);
}

int sv_source_take(const struct sv_source *s, struct sv_host_tensor *t, void **copy,
                   struct sv_err *err)
{
    *t = s->t;
    *copy = NULL;
    if (!s->made)
        return SV_OK;
    *copy = sv_alloc(t->n_bytes);
    if (!*copy)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %s", t->name);
    if (s->packed.t) {
        const struct sv_packed_part part = {.first = s->first,
                                            .step = s->step,
                                            .rows = {0, (int32_t)t->dim[0]},
                                            .cols = {0, (int32_t)t->dim[1]}};
        sv_packed_expand(&s->packed, s->expert, &part, *copy);
    } else {
        pick(s, t, *copy);
    }
    t->data = *copy;
    return SV_OK;
}
