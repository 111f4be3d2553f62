/*
 * trace.c - a device whose ops are counted, timed or left out: where does the time of a step go?
 *
 * Called by benchmarks. The device's table is replaced by one that lies in the trace, so nothing
 * above and nothing below knows. Timing op by op keeps ops from overlapping and passes from being
 * replayed, so it says too much for short ones; the time that a step saves when a class is left out
 * is its actual cost. Must not: be on while requests are answered.
 */
#include "backend/backends.h"
#include "backend/ops_gdn.h"
#include "backend/ops_mla.h"
#include "backend/ops_moe.h"
#include "backend/ops_vision.h"
#include "backend/trace.h"

#include <stdarg.h>
#include <string.h>

struct sv_trace {
    struct sv_backend be;  /* first member: the device's table while the trace is on */
    struct sv_moe_ops moe; /* the same of its mixture of experts, if it has one */
    struct sv_gdn_ops gdn; /* and of its gated delta rule */
    struct sv_mla_ops mla; /* and of its latent attention */
    struct sv_vision_ops vision;
    const struct sv_backend *real;
    struct sv_dev *dev;
    enum sv_trace_mode mode;
    uint64_t skip;
    int32_t pass, n_passes; /* the pass at work, 0 outside; passes since the last mark */
    struct sv_trace_class cls[SV_TRACE_CLASSES];
    int32_t n_cls;
    int32_t n_stamps, n_whole; /* stamps; those up to the last mark: of whole steps */
    int16_t of[SV_STAMPS];     /* class of the time between a stamp and the one before it */
    int64_t at_ns[SV_STAMPS];
};

static struct sv_trace *trace_of(struct sv_dev *dev)
{
    return (struct sv_trace *)(uintptr_t)dev->be;
}

/* What has no stamp any more is not counted either. */
static void stamp(struct sv_trace *t, int32_t cls)
{
    if (t->n_stamps == SV_STAMPS)
        return;
    t->of[t->n_stamps] = (int16_t)cls;
    if (t->real->stamp)
        t->real->stamp(t->dev, t->n_stamps);
    else
        t->at_ns[t->n_stamps] = sv_clock_ns();
    t->n_stamps++;
}

/* The class of what is about to be called; -1 when the table is full: such calls run and are not
 * counted. */
__attribute__((format(printf, 2, 3))) static int32_t find(struct sv_trace *t, const char *fmt, ...)
{
    char name[sizeof t->cls[0].name];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    for (int32_t i = 0; i < t->n_cls; i++)
        if (t->cls[i].pass == t->pass && strcmp(t->cls[i].name, name) == 0)
            return i;
    if (t->n_cls == SV_TRACE_CLASSES)
        return -1;
    t->cls[t->n_cls] = (struct sv_trace_class){.pass = t->pass};
    memcpy(t->cls[t->n_cls].name, name, sizeof name);
    return t->n_cls++;
}

static bool left_out(const struct sv_trace *t, int32_t cls)
{
    return cls >= 0 && (t->skip >> cls & 1);
}

static void done(struct sv_trace *t, int32_t cls, bool is_op)
{
    if (cls < 0)
        return;
    if (t->mode == SV_TRACE_COUNT)
        t->cls[cls].n++;
    else if (t->mode == SV_TRACE_OPS || !is_op)
        stamp(t, cls);
}

/* ---------------------------------------------------------------- ops */

#define TRACED(op, call, ...)                                                                      \
    static void trace_##op(struct sv_dev *dev, const struct sv_p_##op *p)                          \
    {                                                                                              \
        struct sv_trace *t = trace_of(dev);                                                        \
        int32_t cls = find(t, __VA_ARGS__);                                                        \
        if (left_out(t, cls))                                                                      \
            return;                                                                                \
        t->real->call(dev, p);                                                                     \
        done(t, cls, true);                                                                        \
    }
#define NAMED(op, ...) TRACED(op, op, __VA_ARGS__)
#define PLAIN(op) NAMED(op, "%s", #op)

static int32_t n_out(const struct sv_p_gemm *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        n += p->parts[i].w.rows;
    return n;
}

PLAIN(block_ids)
PLAIN(embed)
NAMED(add_rms_norm, "add_rms_norm%s%s", p->row_index ? " of chosen rows" : "",
      p->tap ? ", tap" : "")
NAMED(gemm, "gemm %d -> %d", (int)p->k, (int)n_out(p))
NAMED(gemm_act_mul, "gemm_act_mul %d -> %d", (int)p->k, (int)p->parts[0].w.rows)
PLAIN(qk_norm_rope_kv_write)
PLAIN(attention)
PLAIN(add_gated)
PLAIN(sigmoid_mul)
PLAIN(act_mul)
PLAIN(head_argmax)
PLAIN(gather_logits)
PLAIN(share_rows)
PLAIN(logit_pos)
PLAIN(sample)
PLAIN(head_among)
PLAIN(logit_mask)
PLAIN(logit_rules)
PLAIN(logprobs)
PLAIN(history)
PLAIN(replace_drafts)
PLAIN(commit)
PLAIN(snapshot)
PLAIN(draft_context_kv)
/* Never left out: the engine plans by its counts. */
static void trace_verify(struct sv_dev *dev, const struct sv_p_verify *p)
{
    struct sv_trace *t = trace_of(dev);
    const int32_t cls = find(t, "verify");
    t->real->verify(dev, p);
    done(t, cls, true);
}
TRACED(router_topk, moe->router_topk, "%srouter_topk %d", p->before ? "norm, " : "",
       (int)p->routes.n_experts)
TRACED(moe_gate_up, moe->gate_up, "moe_gate_up %d -> %d", (int)p->gate.cols, (int)p->gate.rows)
TRACED(moe_down, moe->down, "moe_down %d -> %d%s", (int)p->down.cols, (int)p->down.rows,
       p->then ? ", added up" : "")
TRACED(gdn_conv, gdn->conv, "gdn_conv")
TRACED(gdn_scan, gdn->scan, "gdn_scan")
TRACED(gdn_norm, gdn->norm, "gdn_norm")
TRACED(gdn, gdn->few, "gdn")
TRACED(mla_write, mla->write, "mla_write")
TRACED(layer_norm, vision->layer_norm, "layer_norm")
TRACED(gelu, vision->gelu, "gelu")
TRACED(add_corners, vision->add_corners, "add_corners")
TRACED(head_products, mla->head_products, "head_products %d -> %d", (int)p->w.cols, (int)p->w.rows)

/* ---------------------------------------------------------------- calls */

static void trace_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct sv_trace *t = trace_of(dev);
    t->real->upload(dev, dst, src, n_bytes);
    done(t, find(t, "upload"), false);
}

static void trace_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct sv_trace *t = trace_of(dev);
    t->real->download(dev, dst, src, n_bytes);
    done(t, find(t, "download"), false);
}

static void trace_copy(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    struct sv_trace *t = trace_of(dev);
    t->real->copy(dev, dst, src, n_bytes);
    done(t, find(t, "copy"), false);
}

static void trace_mark(struct sv_dev *dev, int32_t i)
{
    struct sv_trace *t = trace_of(dev);
    t->n_passes = 0;
    t->real->mark(dev, i);
    done(t, find(t, "mark"), false);
    if (t->n_stamps < SV_STAMPS)
        t->n_whole = t->n_stamps;
}

static int trace_wait(struct sv_dev *dev, int32_t i, struct sv_err *err)
{
    struct sv_trace *t = trace_of(dev);
    struct sv_err dropped = {0};
    if (!t->skip)
        return t->real->wait(dev, i, err);
    t->real->wait(dev, i, &dropped);
    return SV_OK;
}

static int trace_sync(struct sv_dev *dev, struct sv_err *err)
{
    struct sv_trace *t = trace_of(dev);
    struct sv_err dropped = {0};
    if (!t->skip)
        return t->real->sync(dev, err);
    t->real->sync(dev, &dropped);
    return SV_OK;
}

static void trace_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user),
                            void *user)
{
    struct sv_trace *t = trace_of(dev);
    t->pass = ++t->n_passes;
    if (t->mode == SV_TRACE_OPS)
        enqueue(user);
    else /* other ops, another graph */
        t->real->graph_run(dev, key ^ t->skip * 0x9E3779B97F4A7C15u, enqueue, user);
    t->pass = 0;
    if (t->mode != SV_TRACE_OPS)
        done(t, find(t, "pass %d", (int)t->n_passes), false);
}

/* ---------------------------------------------------------------- life */

int sv_trace_begin(struct sv_trace **out, struct sv_dev *dev, struct sv_err *err)
{
    struct sv_trace *t = *out = sv_calloc(1, sizeof *t);
    if (!t)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for a trace");
    t->dev = dev;
    t->real = dev->be;
    t->be = *dev->be;
    t->be.block_ids = trace_block_ids;
    t->be.embed = trace_embed;
    t->be.add_rms_norm = trace_add_rms_norm;
    t->be.gemm = trace_gemm;
    if (t->be.gemm_act_mul) /* may be composed of others */
        t->be.gemm_act_mul = trace_gemm_act_mul;
    t->be.qk_norm_rope_kv_write = trace_qk_norm_rope_kv_write;
    t->be.attention = trace_attention;
    if (t->be.add_gated) /* may be missing */
        t->be.add_gated = trace_add_gated;
    if (t->be.sigmoid_mul)
        t->be.sigmoid_mul = trace_sigmoid_mul;
    t->be.act_mul = trace_act_mul;
    t->be.head_argmax = trace_head_argmax;
    if (t->be.gather_logits)
        t->be.gather_logits = trace_gather_logits;
    if (t->be.share_rows)
        t->be.share_rows = trace_share_rows;
    t->be.logit_pos = trace_logit_pos;
    t->be.sample = trace_sample;
    t->be.head_among = trace_head_among;
    t->be.logit_mask = trace_logit_mask;
    t->be.logit_rules = trace_logit_rules;
    t->be.logprobs = trace_logprobs;
    t->be.history = trace_history;
    t->be.replace_drafts = trace_replace_drafts;
    t->be.verify = trace_verify;
    t->be.commit = trace_commit;
    if (t->be.snapshot)
        t->be.snapshot = trace_snapshot;
    t->be.draft_context_kv = trace_draft_context_kv;
    if (t->be.moe) {
        t->moe = *t->be.moe;
        t->moe.router_topk = trace_router_topk;
        t->moe.gate_up = trace_moe_gate_up;
        t->moe.down = trace_moe_down;
        t->be.moe = &t->moe;
    }
    if (t->be.gdn) {
        t->gdn = (struct sv_gdn_ops){t->be.gdn->max_k_dim, trace_gdn_conv, trace_gdn_scan,
                                     trace_gdn_norm, trace_gdn};
        t->be.gdn = &t->gdn;
    }
    if (t->be.mla) {
        t->mla = (struct sv_mla_ops){trace_mla_write, trace_head_products};
        t->be.mla = &t->mla;
    }
    if (t->be.vision) {
        t->vision = (struct sv_vision_ops){t->be.vision->head_step, trace_layer_norm, trace_gelu,
                                           trace_add_corners};
        t->be.vision = &t->vision;
    }
    t->be.upload = trace_upload;
    t->be.download = trace_download;
    t->be.copy = trace_copy;
    t->be.mark = trace_mark;
    t->be.sync = trace_sync;
    t->be.wait = trace_wait;
    t->be.graph_run = trace_graph_run;
    dev->be = &t->be;
    return SV_OK;
}

void sv_trace_end(struct sv_trace *t)
{
    if (!t)
        return;
    t->dev->be = t->real;
    sv_free(t);
}

void sv_trace_start(struct sv_trace *t, enum sv_trace_mode mode)
{
    t->mode = mode;
    t->n_stamps = t->n_whole = 0;
    for (int32_t i = 0; i < t->n_cls; i++) {
        t->cls[i].n = 0;
        t->cls[i].us = 0;
    }
    if (mode != SV_TRACE_COUNT)
        stamp(t, -1);
}

const struct sv_trace_class *sv_trace_read(struct sv_trace *t, int32_t *n)
{
    for (int32_t i = 1; i < t->n_whole; i++) {
        t->cls[t->of[i]].n++;
        t->cls[t->of[i]].us += t->real->stamp ? t->real->stamp_us(t->dev, i - 1, i)
                                              : (double)(t->at_ns[i] - t->at_ns[i - 1]) / 1e3;
    }
    t->n_whole = 0;
    *n = t->n_cls;
    return t->cls;
}

void sv_trace_skip(struct sv_trace *t, uint64_t classes)
{
    t->skip = classes;
}
