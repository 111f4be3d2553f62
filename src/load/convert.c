/*
 * convert.c - host tensors that a model reads in another form than the file's.
 *
 * Called by model at load, for rows of the tables with a form. The result is in the arena, or in
 * place where the form only selects a part of a tensor. Must not: round exact values of the file.
 */
#include "load/impl.h"

#include <math.h>
#include <string.h>

float sv_tensor_number(const struct sv_host_tensor *t, int64_t i)
{
    switch (t->dtype) {
    case SV_F32:
        return ((const float *)t->data)[i];
    case SV_BF16:
        return sv_bf16_to_f32(((const uint16_t *)t->data)[i]);
    default:
        return sv_f16_to_f32(((const uint16_t *)t->data)[i]);
    }
}

float sv_cache_scale_of(const struct sv_host_tensor *t)
{
    const float x = t->n_elements == 1 && t->dtype <= SV_F16 ? sv_tensor_number(t, 0) : 0;
    return x > 0 && x < INFINITY ? x : 0;
}

/* f32 numbers, one by one; of a convolution (channels, taps) to (taps, channels). */
static void numbers(float *out, const struct sv_host_tensor *t, const struct sv_tensor_spec *s)
{
    for (int64_t i = 0; i < t->n_elements; i++) {
        const float x = sv_tensor_number(t, i);
        switch (s->form) {
        case SV_FORM_ONE_PLUS:
            out[i] = 1.0f + x;
            break;
        case SV_FORM_DECAY:
            out[i] = -expf(x);
            break;
        case SV_FORM_CONV:
            out[i % s->cols * s->rows + i / s->cols] = x;
            break;
        default:
            out[i] = x;
        }
    }
}

/* Parts of a key head's rows, in rows: q, k, v, z, or b, a. Returns their number. */
static int32_t parts_of(enum sv_form form, const struct sv_config *c, int32_t part[4])
{
    const int32_t ratio = c->gdn_k_heads ? c->gdn_v_heads / c->gdn_k_heads : 0;
    const bool fused = form == SV_FORM_QKVZ;
    part[0] = fused ? c->gdn_k_dim : ratio;
    part[1] = part[0];
    part[2] = part[3] = ratio * c->gdn_v_dim;
    return fused ? 4 : 2;
}

int32_t sv_tensor_n_ranges(enum sv_form form, const struct sv_config *c)
{
    int32_t part[4];
    return parts_of(form, c, part) * c->gdn_k_heads;
}

struct sv_slice sv_tensor_range(enum sv_form form, const struct sv_config *c, int32_t i)
{
    int32_t part[4], all = 0, before = 0;
    const int32_t n = parts_of(form, c, part), p = i / c->gdn_k_heads, h = i % c->gdn_k_heads;
    for (int32_t k = 0; k < n; k++) {
        before += k < p ? part[k] : 0;
        all += part[k];
    }
    return (struct sv_slice){h * all + before, part[p]};
}

static void by_part(char *out, const struct sv_host_tensor *t, enum sv_form form,
                    const struct sv_config *c)
{
    const size_t row = t->n_bytes / (size_t)t->dim[0];
    const int32_t n = sv_tensor_n_ranges(form, c);
    for (int32_t i = 0; i < n; i++) {
        const struct sv_slice r = sv_tensor_range(form, c, i);
        memcpy(out, (const char *)t->data + (size_t)r.first * row, (size_t)r.n * row);
        out += (size_t)r.n * row;
    }
}

static size_t size_of(const struct sv_host_tensor *t, enum sv_form form)
{
    return form == SV_FORM_QKVZ || form == SV_FORM_BA ? t->n_bytes
                                                      : (size_t)t->n_elements * sizeof(float);
}

int sv_tensor_convert(const struct sv_tensor_spec *s, const struct sv_config *c,
                      const struct sv_host_tensor *t, struct sv_arena *arena, struct sv_weight *w,
                      struct sv_err *err)
{
    void *out = sv_arena_alloc(arena, size_of(t, s->form));
    if (!out)
        return sv_fail(err, SV_ENOMEM, -1, "tensor %s: out of memory", s->name);
    if (s->form == SV_FORM_QKVZ || s->form == SV_FORM_BA) {
        by_part(out, t, s->form, c);
    } else {
        numbers(out, t, s);
        w->fmt.elem = SV_F32;
    }
    w->data = out;
    if (s->form == SV_FORM_CONV) {
        w->rows = (int32_t)s->cols;
        w->cols = (int32_t)s->rows;
    }
    return SV_OK;
}
