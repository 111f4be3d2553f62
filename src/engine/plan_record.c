/*
 * plan_record.c - writes an engine's uploads, copies and the plan of each pass, the messages that
 * rank 0 broadcasts to followers, to a file that salvo-bench can replay (replay.c).
 *
 * Called by ranks.c. A message is written when it is sent, and the file is complete up to the last
 * step whose results were read. A write error ends the record, with one message in the log, and not
 * the engine. Must not: allocate after opening, or change a message.
 */
#include "engine/engine.h"

#include <errno.h>
#include <string.h>

enum { BUFFER_BYTES = 1 << 20 };

struct sv_plan_record {
    FILE *file;
    bool failed;
    char path[256], *buffer;
};

uint64_t sv_plan_record_sum(uint64_t sum, const void *data, size_t n_bytes)
{
    uint64_t word = 0;
    size_t i = 0;
    for (; i + sizeof word <= n_bytes; i += sizeof word) {
        memcpy(&word, (const char *)data + i, sizeof word);
        sum = (sum ^ word) * 0x100000001b3u;
        sum ^= sum >> 29;
    }
    word = 0;
    if (i < n_bytes)
        memcpy(&word, (const char *)data + i, n_bytes - i);
    return (sum ^ word ^ n_bytes) * 0x100000001b3u;
}

int sv_plan_record_open(struct sv_plan_record **out, const char *path, struct sv_err *err)
{
    struct sv_plan_record *r = *out = sv_calloc(1, sizeof *r);
    if (r)
        r->buffer = sv_alloc(BUFFER_BYTES);
    if (!r || !r->buffer)
        return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for a record", path);
    snprintf(r->path, sizeof r->path, "%s", path);
    r->file = fopen(path, "wb");
    if (!r->file)
        return sv_fail(err, SV_EIO, -1, "%s: cannot be written: %s", path, strerror(errno));
    setvbuf(r->file, r->buffer, _IOFBF, BUFFER_BYTES);
    return SV_OK;
}

static void fail(struct sv_plan_record *r)
{
    r->failed = true;
    sv_log(SV_LOG_ERROR, "%s: cannot be written (%s): the record ends here", r->path,
           strerror(errno));
}

static void put(struct sv_plan_record *r, const void *data, size_t n_bytes)
{
    if (!r->failed && n_bytes && fwrite(data, 1, n_bytes, r->file) != n_bytes)
        fail(r);
}

static void flush(struct sv_plan_record *r)
{
    if (!r->failed && fflush(r->file))
        fail(r);
}

void sv_plan_record_begin(struct sv_plan_record *r, const struct sv_engine *e,
                          const struct sv_engine_options *opts)
{
    struct sv_plan_record_head h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, SV_PLAN_RECORD_MAGIC, sizeof h.magic);
    snprintf(h.version, sizeof h.version, "%s", SALVO_VERSION);
    snprintf(h.device, sizeof h.device, "%s", sv_dev_backend(e->dev)->name);
    h.head_bytes = sizeof h;
    h.pass_bytes = sizeof(struct sv_msg_pass);
    h.options = *opts;
    h.options.target_dir = h.options.draft_dir = h.options.device = h.options.record_plan = NULL;
    h.options.on_progress = NULL;
    h.options.progress_user = NULL;
    h.n_target = (uint32_t)strlen(opts->target_dir);
    h.n_draft = opts->draft_dir ? (uint32_t)strlen(opts->draft_dir) : 0;
    for (int32_t i = 0; i < e->cache.n_groups; i++)
        h.n_pages[i] = e->cache.group[i].d.n_pages;
    h.sum = sv_plan_record_sum(sv_plan_record_sum(0, opts->target_dir, h.n_target),
                               h.n_draft ? opts->draft_dir : "", h.n_draft);
    h.sum = sv_plan_record_sum(h.sum, &h, offsetof(struct sv_plan_record_head, sum));
    put(r, &h, sizeof h);
    put(r, opts->target_dir, h.n_target);
    put(r, opts->draft_dir, h.n_draft);
}

void sv_plan_record_write(struct sv_plan_record *r, uint32_t kind, const void *first,
                          size_t n_first, const void *rest, size_t n_rest)
{
    struct sv_plan_record_message m = {.kind = kind, .n_bytes = (uint32_t)(n_first + n_rest)};
    m.sum = sv_plan_record_sum(sv_plan_record_sum(kind, first, n_first), rest, n_rest);
    m.n_first = (uint32_t)n_first;
    put(r, &m, sizeof m);
    put(r, first, n_first);
    put(r, rest, n_rest);
}

uint64_t sv_plan_record_results(const struct sv_batch *b, int32_t n_segs)
{
    uint64_t sum = 0;
    for (int32_t s = 0; s < n_segs; s++) {
        const int32_t n[] = {b->n_commit.host[s], b->n_emit.host[s]};
        const int32_t n_tokens = n[1] < 0 ? 0 : n[1] < b->out_stride ? n[1] : b->out_stride;
        sum = sv_plan_record_sum(sum, n, sizeof n);
        sum = sv_plan_record_sum(sum, b->out_tokens.host + (size_t)s * (size_t)b->out_stride,
                                 (size_t)n_tokens * sizeof(int32_t));
    }
    return sum;
}

void sv_plan_record_step(struct sv_plan_record *r, const struct sv_batch *b, int32_t n_segs)
{
    const struct sv_msg_results t = {
        .set = b->use, .n_segs = n_segs, .sum = sv_plan_record_results(b, n_segs)};
    sv_plan_record_write(r, SV_MSG_RESULTS, &t, sizeof t, NULL, 0);
    flush(r);
}

void sv_plan_record_close(struct sv_plan_record *r)
{
    if (!r)
        return;
    if (r->file) {
        sv_plan_record_write(r, SV_MSG_END, NULL, 0, NULL, 0);
        flush(r);
        fclose(r->file);
    }
    sv_free(r->buffer);
    sv_free(r);
}
