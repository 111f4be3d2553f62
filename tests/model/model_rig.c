/*
 * model_rig.c - see model_rig.h.
 */
#include "model/model_rig.h"

#include "engine/run.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

static void *buffer(struct model_rig *r, size_t n_bytes)
{
    void *p = NULL;
    struct sv_err err = {0};
    if (sv_dev_alloc(r->dev, &p, n_bytes, &err))
        fail_msg("%s", err.msg);
    return p;
}

void model_rig_open(struct model_rig *r, const char *dir, enum sv_isa isa, int32_t page_size)
{
    struct sv_err err = {0};
    memset(r, 0, sizeof *r);
    struct sv_engine_options where = {0};
    run_device(&where);
    struct sv_dev_opts o = {.backend = where.device,
                            .tuning = {.kernels = where.tuning.kernels, .isa = isa},
                            .no_graphs = where.no_graphs,
                            .n_threads = 2,
                            .compute = SV_F32};
    if (sv_dev_open(&r->dev, &o, &err) || sv_model_open(&r->m, r->dev, dir, 0, &err))
        fail_msg("%s: %s", dir, err.msg);
    struct sv_cache_group_desc desc[SV_MAX_GROUPS] = {{0}};
    int32_t n = sv_stack_cache_groups(&r->m.stack, SV_CACHE_TARGET, 16, 0, desc);
    for (int32_t i = 0; i < n; i++) {
        desc[i].dtype = SV_F32;
        desc[i].page_size = page_size;
        desc[i].n_pages = RIG_ROWS / page_size;
    }
    if (sv_cache_open(&r->cache, r->dev, desc, n, 1, RIG_ROWS, &err))
        fail_msg("%s", err.msg);
    const struct sv_config *c = &r->m.cfg;
    struct sv_needs needs;
    sv_needs_init(&needs, r->dev, RIG_ROWS);
    needs.lim.max_logit_rows = needs.lim.max_positions = RIG_ROWS;
    sv_model_needs(&r->m, &needs);
    if (sv_dev_reserve(r->dev, &needs.lim, &err) || sv_acts_open(&r->acts, r->dev, &needs, &err))
        fail_msg("%s", err.msg);
    r->row_ids = buffer(r, RIG_ROWS * 4);
    r->row_seg = buffer(r, RIG_ROWS * 4);
    r->row_pos = buffer(r, RIG_ROWS * 4);
    r->row_shift = buffer(r, RIG_ROWS * 12);
    r->row_rope = buffer(r, RIG_ROWS * 12);
    int32_t **small[] = {&r->seg_row0, &r->seg_slot, &r->seg_kind,
                         &r->seg_base, &r->slot_len, &r->anchor};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        *small[i] = buffer(r, 64);
    size_t row = (size_t)c->hidden_size * 4;
    r->dev_taps = buffer(r, RIG_ROWS * row * (size_t)c->n_layers);
    r->dev_out = buffer(r, RIG_ROWS * row);
    r->dev_logits = buffer(r, RIG_ROWS * (size_t)c->vocab_size * 4);
    r->taps = calloc(RIG_ROWS * (size_t)c->n_layers, row);
    r->out = calloc(RIG_ROWS, row);
    r->logits = calloc(RIG_ROWS, (size_t)c->vocab_size * 4);
    for (int32_t i = 0; i < c->n_layers; i++)
        r->tap_id[i] = i;
}

void model_rig_close(struct model_rig *r)
{
    void *all[] = {r->row_ids,    r->row_seg,  r->seg_row0,  r->seg_slot, r->seg_kind,
                   r->seg_base,   r->slot_len, r->anchor,    r->dev_taps, r->dev_out,
                   r->dev_logits, r->row_pos,  r->row_shift, r->row_rope};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        sv_dev_free(r->dev, all[i]);
    free(r->taps);
    free(r->out);
    free(r->logits);
    sv_acts_close(&r->acts, r->dev);
    sv_cache_close(&r->cache);
    sv_model_close(&r->m);
    sv_dev_close(r->dev);
}

/* The parts of images that lie in [at, at + n), as rows of a pass over these. */
static int32_t cut_images(const struct model_rig *r, int32_t at, int32_t n,
                          struct sv_image_rows *out)
{
    const size_t row = (size_t)r->m.cfg.hidden_size * 4;
    int32_t n_out = 0;
    for (int32_t i = 0; i < r->n_images; i++) {
        struct sv_image_rows m = r->image[i];
        const int32_t skip = at > m.row0 ? at - m.row0 : 0;
        m.rows = (const char *)m.rows + (size_t)skip * row;
        m.row0 += skip - at;
        m.n_rows -= skip;
        m.n_rows = m.n_rows < n - m.row0 ? m.n_rows : n - m.row0;
        if (m.n_rows > 0)
            out[n_out++] = m;
    }
    return n_out;
}

/* Runs n ids that start at position `at`; taps, out and logits of row j land at row at + j. */
void model_rig_run(struct model_rig *r, const int32_t *ids, int32_t at, int32_t n)
{
    const struct sv_config *c = &r->m.cfg;
    struct sv_err err = {0};
    const int32_t bounds[] = {0, n}, zero = 0, kind = SV_SEG_PREFILL;
    assert_true(sv_cache_reserve(&r->cache, 0, at + n));
    sv_cache_upload(&r->cache);
    sv_dev_upload(r->dev, r->row_ids, ids, (size_t)n * 4);
    sv_dev_upload(r->dev, r->seg_row0, bounds, sizeof bounds);
    sv_dev_upload(r->dev, r->seg_slot, &zero, 4);
    sv_dev_upload(r->dev, r->seg_kind, &kind, 4);
    sv_dev_upload(r->dev, r->slot_len, &at, 4);
    struct sv_image_rows images[16];
    const int32_t n_images = cut_images(r, at, n, images);
    if (r->shift)
        sv_dev_upload(r->dev, r->row_shift, r->shift + 3 * (size_t)at, (size_t)n * 12);
    const struct sv_rows rows = {
        n,           1,           r->row_seg, r->seg_row0,
        r->seg_slot, r->seg_base, r->row_pos, r->shift ? r->row_rope : NULL};
    sv_op_block_ids(r->dev, &(struct sv_p_block_ids){.rows = rows,
                                                     .row_shift = r->shift ? r->row_shift : NULL,
                                                     .seg_kind = r->seg_kind,
                                                     .slot_len = r->slot_len,
                                                     .slot_anchor = r->anchor,
                                                     .row_ids = r->row_ids});
    size_t h = (size_t)c->hidden_size, first = (size_t)at;
    sv_model_forward(
        &r->m, &r->acts, r->row_ids,
        &(struct sv_pass){.rows = rows,
                          .n_images = n_images,
                          .images = images,
                          .cache = &r->cache,
                          .taps = {.n = c->n_layers,
                                   .id = r->tap_id,
                                   .out = r->dev_taps + first * h * (size_t)c->n_layers},
                          .n_out = n,
                          .out = r->dev_out + first * h});
    sv_model_logits(&r->m, n, r->dev_out + first * h,
                    r->dev_logits + first * (size_t)c->vocab_size);
    const struct {
        float *host, *dev;
        size_t width;
    } part[] = {{r->taps, r->dev_taps, h * (size_t)c->n_layers},
                {r->out, r->dev_out, h},
                {r->logits, r->dev_logits, (size_t)c->vocab_size}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        sv_dev_download(r->dev, part[i].host + first * part[i].width,
                        part[i].dev + first * part[i].width,
                        (size_t)n * part[i].width * sizeof(float));
    if (sv_dev_sync(r->dev, &err))
        fail_msg("%s", err.msg);
}
