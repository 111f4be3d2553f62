/*
 * batch.c - the batch's host arrays, their device mirror, the arrays only the device writes, and
 * padding.
 *
 * Called by engine.c (open, close); step.c fills and reads them. Fixed layout, so that device
 * pointers never change after open.
 */
#include "engine/batch.h"

#include <string.h>

struct want {
    struct sv_i32_pair *pair;
    size_t n;
};

int sv_i32_pair_open(struct sv_i32_pair *p, struct sv_dev *dev, size_t n, struct sv_err *err)
{
    int rc = sv_dev_host_alloc(dev, (void **)&p->host, n * sizeof(int32_t), err);
    return rc ? rc : sv_dev_alloc(dev, (void **)&p->dev, n * sizeof(int32_t), err);
}

/* Lays pairs out in two host blocks and one device block, each array on its own cache lines. */
static int open_pairs(struct sv_dev *dev, const struct want *want, size_t n_want, int32_t **host,
                      int32_t **dev_block, size_t *n_words, struct sv_err *err)
{
    const size_t line = SV_ALIGN / sizeof(int32_t);
    size_t total = 0;
    for (size_t i = 0; i < n_want; i++)
        total += (want[i].n + line - 1) / line * line;
    *n_words = total;
    int rc = sv_dev_host_alloc(dev, (void **)host, 2 * total * sizeof **host, err);
    if (!rc)
        rc = sv_dev_alloc(dev, (void **)dev_block, total * sizeof **host, err);
    if (rc)
        return rc;
    size_t at = 0;
    for (size_t i = 0; i < n_want; i++) {
        want[i].pair->host = *host + at;
        want[i].pair->dev = *dev_block + at;
        at += (want[i].n + line - 1) / line * line;
    }
    return SV_OK;
}

int sv_batch_open(struct sv_batch *b, struct sv_dev *dev, int32_t max_rows, int32_t max_segs,
                  int32_t max_draft_rows, bool images, int32_t n_parts, struct sv_err *err)
{
    memset(b, 0, sizeof *b);
    b->max_rows = max_rows;
    b->max_segs = max_segs;
    b->max_draft_rows = max_draft_rows;
    b->out_stride = SV_MAX_BLOCK;
    size_t rows = (size_t)max_rows, segs = (size_t)max_segs, drafts = (size_t)max_draft_rows;
    /* With padding, every part has the maximal number of rows and segments. */
    const size_t three = images ? 3 * rows : 0, parts = n_parts > 1 ? (size_t)n_parts : 0,
                 part_rows = parts ? rows + parts * SV_MAX_BLOCK : 0,
                 part_segs = parts ? segs + 2 * parts : 0;
    const struct want up[] = {
        {&b->row_ids, rows},           {&b->row_seg, rows},           {&b->seg_row0, segs + 1},
        {&b->seg_slot, segs},          {&b->seg_kind, segs},          {&b->seg_logit0, segs + 1},
        {&b->logit_row, rows},         {&b->d_row_seg, drafts},       {&b->d_seg_row0, segs + 1},
        {&b->d_seg_slot, segs},        {&b->d_seg_kind, segs},        {&b->d_out_row, drafts},
        {&b->d_out_index, drafts},     {&b->row_shift, three},        {&b->own_row_seg, part_rows},
        {&b->own_seg_row0, part_segs}, {&b->own_seg_slot, part_segs}, {&b->own_at, 2 * parts},
    };
    const struct want down[] = {
        {&b->n_commit, segs},
        {&b->n_emit, segs},
        {&b->out_tokens, segs * (size_t)b->out_stride},
        {&b->confidence, drafts},
        {&b->n_chosen, 1},
    };
    int rc = open_pairs(dev, up, sizeof up / sizeof up[0], &b->host_block, &b->dev_block,
                        &b->block_words, err);
    if (!rc)
        rc = open_pairs(dev, down, sizeof down / sizeof down[0], &b->host_result, &b->dev_result,
                        &b->result_words, err);
    for (size_t i = 0; i < sizeof up / sizeof up[0]; i++)
        b->up[b->n_up++] = up[i].pair;
    for (size_t i = 0; i < sizeof down / sizeof down[0]; i++)
        b->down[b->n_down++] = down[i].pair;
    const struct {
        int32_t **p;
        size_t n;
    } own[] = {{&b->seg_base, segs},          {&b->d_seg_base, segs},      {&b->row_pos, rows},
               {&b->d_row_pos, drafts},       {&b->d_row_ids, drafts},     {&b->chosen, rows},
               {&b->sample_slot, rows},       {&b->sample_pos, rows},      {&b->row_rope, three},
               {&b->own_seg_base, part_segs}, {&b->own_row_pos, part_rows}};
    for (size_t i = 0; i < sizeof own / sizeof own[0] && !rc; i++)
        if (own[i].n)
            rc = sv_dev_alloc(dev, (void **)own[i].p, own[i].n * sizeof(int32_t), err);
    if (rc)
        sv_batch_close(b, dev);
    return rc;
}

void sv_batch_close(struct sv_batch *b, struct sv_dev *dev)
{
    int32_t *dev_mem[] = {b->dev_block,   b->dev_result, b->seg_base,  b->d_seg_base,
                          b->row_pos,     b->d_row_pos,  b->d_row_ids, b->chosen,
                          b->sample_slot, b->sample_pos, b->row_rope,  b->own_seg_base,
                          b->own_row_pos};
    for (size_t i = 0; i < sizeof dev_mem / sizeof dev_mem[0]; i++)
        sv_dev_free(dev, dev_mem[i]);
    sv_dev_host_free(dev, b->host_block);
    sv_dev_host_free(dev, b->host_result);
    memset(b, 0, sizeof *b);
}

void sv_batch_use(struct sv_batch *b, int32_t set)
{
    ptrdiff_t by = set - b->use;
    for (int32_t i = 0; i < b->n_up; i++)
        b->up[i]->host += by * (ptrdiff_t)b->block_words;
    for (int32_t i = 0; i < b->n_down; i++)
        b->down[i]->host += by * (ptrdiff_t)b->result_words;
    b->use = set;
}

/* ---------------------------------------------------------------- padding */

int32_t sv_batch_bucket(int32_t n, int32_t most)
{
    int32_t step = n <= 2     ? 1
                   : n <= 4   ? 2
                   : n <= 16  ? 4
                   : n <= 32  ? 8
                   : n <= 128 ? 16
                   : n <= 256 ? 32
                              : 64;
    int32_t up = (n + step - 1) / step * step;
    return up < most ? up : most;
}

static void put(const struct sv_i32_pair *pair, int32_t from, int32_t to, int32_t value)
{
    for (int32_t i = from; i < to; i++)
        pair->host[i] = value;
}

/* Padding is at the end: rows of no segment, segments of no slot, logit rows of no row. */
void sv_batch_pad(struct sv_batch *b, const struct sv_plan *p)
{
    const struct sv_counts *t = &p->launch;
    put(&b->row_ids, p->n_rows, t->n_rows, 0);
    put(&b->row_seg, p->n_rows, t->n_rows, -1);
    put(&b->seg_row0, p->n_segs, t->n_segs + 1, p->n_rows);
    put(&b->seg_slot, p->n_segs, t->n_segs, -1);
    put(&b->seg_kind, p->n_segs, t->n_segs, SV_SEG_VERIFY);
    put(&b->seg_logit0, p->n_segs, t->n_segs + 1, p->n_logits);
    if (t->n_logits > p->n_logits)
        put(&b->logit_row, p->n_logits, t->n_logits, -1);
    put(&b->d_row_seg, p->n_draft_rows, t->n_draft_rows, -1);
    put(&b->d_seg_row0, p->n_draft_segs, t->n_draft_segs + 1, p->n_draft_rows);
    put(&b->d_seg_slot, p->n_draft_segs, t->n_draft_segs, -1);
    put(&b->d_seg_kind, p->n_draft_segs, t->n_draft_segs, SV_SEG_DRAFT);
    put(&b->d_out_row, p->n_draft_out, t->n_draft_out, -1);
    put(&b->d_out_index, p->n_draft_out, t->n_draft_out, -1);
}
