/*
 * convert.c - host tensors whose rows or numbers a model reads in another form than files have
 * them.
 *
 * Called by model at load, for rows of the tables with a form. The result is in memory of the
 * arena, or in place where the form only says which part of a tensor is meant. Must not: round what
 * the file has exactly.
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

/* Rows that come for each key head, `part` by `part`, to all heads' rows of the first part, then of
 * the second, ...; sizes in rows of one head. */
static void by_part(char *out, const struct sv_host_tensor *t, int32_t n_heads, const int32_t *part,
                    int n_parts)
{
    const size_t row = t->n_bytes / (size_t)t->dim[0];
    const char *from = t->data;
    int32_t before = 0;
    for (int p = 0; p < n_parts; before += part[p++])
        for (int32_t h = 0; h < n_heads; h++) {
            int32_t all = 0;
            for (int k = 0; k < n_parts; k++)
                all += part[k];
            memcpy(out, from + (size_t)(h * all + before) * row, (size_t)part[p] * row);
            out += (size_t)part[p] * row;
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
    const int32_t ratio = c->gdn_k_heads ? c->gdn_v_heads / c->gdn_k_heads : 0;
    const int32_t qkvz[] = {c->gdn_k_dim, c->gdn_k_dim, ratio * c->gdn_v_dim, ratio * c->gdn_v_dim};
    const int32_t ba[] = {ratio, ratio};
    void *out = sv_arena_alloc(arena, size_of(t, s->form));
    if (!out)
        return sv_fail(err, SV_ENOMEM, -1, "tensor %s: out of memory", s->name);
    if (s->form == SV_FORM_QKVZ) {
        by_part(out, t, c->gdn_k_heads, qkvz, 4);
    } else if (s->form == SV_FORM_BA) {
        by_part(out, t, c->gdn_k_heads, ba, 2);
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
