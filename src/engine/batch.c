/*
 * batch.c - the batch's host arrays, their device mirror, and the arrays only the device writes.
 *
 * Called by engine.c (open, close); step.c fills and reads them. Fixed layout, so that device pointers never
 * change after open.
 */
#include "engine/engine.h"

#include <string.h>

struct want {
    struct sv_i32_pair *pair;
    size_t n;
};

/* Lays pairs out in one host block and one device block, each array on its own cache lines. */
static int open_pairs(struct sv_dev *dev, const struct want *want, size_t n_want, int32_t **host,
                      int32_t **dev_block, size_t *n_words, struct sv_err *err)
{
    const size_t line = SV_ALIGN / sizeof(int32_t);
    size_t total = 0;
    for (size_t i = 0; i < n_want; i++)
        total += (want[i].n + line - 1) / line * line;
    *n_words = total;
    int rc = sv_dev_host_alloc(dev, (void **)host, total * sizeof **host, err);
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
                  int32_t max_draft_rows, struct sv_err *err)
{
    memset(b, 0, sizeof *b);
    b->max_rows = max_rows;
    b->max_segs = max_segs;
    b->max_draft_rows = max_draft_rows;
    b->out_stride = SV_MAX_BLOCK;
    size_t rows = (size_t)max_rows, segs = (size_t)max_segs, drafts = (size_t)max_draft_rows;
    const struct want up[] = {
        {&b->row_ids, rows},       {&b->row_seg, rows},      {&b->seg_row0, segs + 1},
        {&b->seg_slot, segs},      {&b->seg_kind, segs},     {&b->seg_logit0, segs + 1},
        {&b->logit_row, rows},     {&b->d_row_seg, drafts},  {&b->d_seg_row0, segs + 1},
        {&b->d_seg_slot, segs},    {&b->d_seg_kind, segs},   {&b->d_out_row, drafts},
        {&b->d_out_index, drafts}, {&b->forced_len, segs},
    };
    const struct want down[] = {
        {&b->n_commit, segs},
        {&b->n_emit, segs},
        {&b->out_tokens, segs * (size_t)b->out_stride},
    };
    int rc = open_pairs(dev, up, sizeof up / sizeof up[0], &b->host_block, &b->dev_block,
                        &b->block_words, err);
    if (!rc)
        rc = open_pairs(dev, down, sizeof down / sizeof down[0], &b->host_result, &b->dev_result,
                        &b->result_words, err);
    const struct {
        int32_t **p;
        size_t n;
    } own[] = {{&b->seg_base, segs}, {&b->d_seg_base, segs},  {&b->d_row_ids, drafts},
               {&b->chosen, rows},   {&b->sample_slot, rows}, {&b->sample_pos, rows}};
    for (size_t i = 0; i < sizeof own / sizeof own[0] && !rc; i++)
        rc = sv_dev_alloc(dev, (void **)own[i].p, own[i].n * sizeof(int32_t), err);
    if (rc)
        sv_batch_close(b, dev);
    return rc;
}

void sv_batch_close(struct sv_batch *b, struct sv_dev *dev)
{
    int32_t *dev_mem[] = {b->dev_block, b->dev_result, b->seg_base,    b->d_seg_base,
                          b->d_row_ids, b->chosen,     b->sample_slot, b->sample_pos};
    for (size_t i = 0; i < sizeof dev_mem / sizeof dev_mem[0]; i++)
        sv_dev_free(dev, dev_mem[i]);
    sv_dev_host_free(dev, b->host_block);
    sv_dev_host_free(dev, b->host_result);
    memset(b, 0, sizeof *b);
}
