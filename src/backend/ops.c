/*
 * ops.c - the checked front of the device seam: opening a backend by name, and one wrapper
 * per table entry that checks shapes and pointers and drops calls without rows.
 *
 * Called by everything above. The checks are a handful of comparisons per call and always on: a
 * wrong shape is a bug here, not outside data, so it aborts. Must not: look through a device
 * pointer, or know more of a backend than its table.
 */
#include "backend/backends.h"
#include "backend/quant.h"

#include "backend/ops_mla.h"

#include <string.h>

/* ---------------------------------------------------------------- device life */

/* What this build has, in the order in which it is tried when none is named: SV_BACKENDS is
 * BACKEND(name) of each, from the Makefile. */
#define BACKEND(name) {#name, sv_##name##_present, sv_##name##_open},
static const struct {
    const char *name;
    bool (*present)(void);
    int (*open)(struct sv_dev **, const struct sv_dev_opts *, struct sv_err *);
} built[] = {SV_BACKENDS};
#undef BACKEND
#define BACKEND(name) ", " #name
static const char built_names[] = SV_BACKENDS;

/* An instruction set is a wish for the CPU. */
const char *sv_dev_name(const struct sv_dev_opts *opts)
{
    size_t i = 0;
    if (opts->backend)
        return opts->backend;
    if (opts->tuning.isa != SV_ISA_AUTO)
        return "cpu";
    while (!built[i].present()) /* the cpu is */
        i++;
    return built[i].name;
}

static int open_named(struct sv_dev **dev, const char *name, const struct sv_dev_opts *opts,
                      struct sv_err *err)
{
    if (strcmp(name, "cpu") == 0 && opts->ordinal > 0)
        return sv_fail(err, SV_EINVAL, -1, "gpu %d is asked for, and the device is the cpu",
                       opts->ordinal);
    for (size_t i = 0; i < sizeof built / sizeof *built; i++)
        if (strcmp(name, built[i].name) == 0)
            return built[i].open(dev, opts, err);
    if (strcmp(name, "cuda") == 0 || strcmp(name, "hip") == 0)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "this build has no %s backend; it has: %s", name,
                       built_names + 2);
    return sv_fail(err, SV_EINVAL, -1, "unknown backend '%s'; this build has: %s", name,
                   built_names + 2);
}

int sv_dev_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err)
{
    const char *name = sv_dev_name(opts);
    struct sv_dev_opts own = *opts;
    *dev = NULL;
    own.ordinal += strcmp(name, "cpu") == 0 ? 0 : opts->n_taken;
    int rc = open_named(dev, name, &own, err);
    if (!rc && (rc = sv_table_check((*dev)->be, err)) != SV_OK) {
        sv_dev_close(*dev);
        *dev = NULL;
    }
    if (rc)
        return rc;
    (*dev)->ranks = opts->ranks.n ? opts->ranks : (struct sv_ranks){.n = 1};
    SV_REQUIRE((*dev)->ranks.rank >= 0 && (*dev)->ranks.rank < (*dev)->ranks.n);
    if ((*dev)->ranks.n == 1 || (*dev)->be->window_open)
        return SV_OK;
    sv_dev_close(*dev);
    *dev = NULL;
    return sv_fail(err, SV_EUNSUPPORTED, -1, "the %s backend has no tensor parallel yet", name);
}

const struct sv_backend *sv_dev_backend(const struct sv_dev *dev)
{
    return dev->be;
}

enum sv_dtype sv_dev_act_dtype(const struct sv_dev *dev)
{
    return dev->be->act_dtype(dev);
}

enum sv_dtype sv_dev_compute_dtype(const struct sv_dev *dev)
{
    return dev->be->compute_dtype(dev);
}

void sv_dev_close(struct sv_dev *dev)
{
    if (dev)
        dev->be->close(dev);
}

int sv_dev_reserve(struct sv_dev *dev, const struct sv_dev_limits *lim, struct sv_err *err)
{
    SV_REQUIRE(lim->max_rows >= 0 && lim->max_logit_rows >= 0 && lim->max_k >= 0 &&
               lim->max_n >= 0);
    SV_REQUIRE(lim->max_heads >= 0 && lim->max_head_dim >= 0 && lim->max_vocab >= 0);
    SV_REQUIRE(lim->max_positions >= 0);
    SV_REQUIRE(lim->max_experts >= lim->max_chosen && lim->max_chosen >= 0);
    return dev->be->reserve(dev, lim, err);
}

int sv_dev_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    *out = NULL;
    return dev->be->alloc(dev, out, n_bytes, err);
}

void sv_dev_free(struct sv_dev *dev, void *p)
{
    if (p)
        dev->be->free(dev, p);
}

int sv_dev_host_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    *out = NULL;
    return dev->be->host_alloc(dev, out, n_bytes, err);
}

void sv_dev_host_free(struct sv_dev *dev, void *p)
{
    if (p)
        dev->be->host_free(dev, p);
}

void sv_dev_memory(struct sv_dev *dev, int64_t *n_free, int64_t *n_total)
{
    dev->be->memory(dev, n_free, n_total);
}

int64_t sv_dev_held(const struct sv_dev *dev, enum sv_mem kind)
{
    return dev->be->held ? dev->be->held(dev, kind) : 0;
}

bool sv_dev_rounds(const struct sv_dev *dev)
{
    return dev->be->rounds && dev->be->rounds(dev);
}

bool sv_dev_quantizes(const struct sv_dev *dev)
{
    return dev->be->quantizes && dev->be->quantizes(dev);
}

bool sv_dev_head_confidence(const struct sv_dev *dev, const struct sv_weight *w)
{
    return dev->be->head_confidence ||
           (dev->be->head_confidence_of && dev->be->head_confidence_of(dev, w));
}

bool sv_dev_takes_codes(const struct sv_dev *dev, const struct sv_quant *q, enum sv_role role)
{
    return dev->be->takes_codes && dev->be->takes_codes(dev, q, role);
}

int64_t sv_dev_weight_bytes(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows)
{
    return dev->be->weight_bytes(dev, w, n_rows);
}

int sv_dev_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                         struct sv_err *err)
{
    const size_t elem = sv_dtype_bytes(host->fmt.elem);
    SV_REQUIRE(host->data && host->rows > 0 && host->cols > 0 && !host->priv);
    SV_REQUIRE((uintptr_t)host->data % elem == 0 &&
               (!host->quant || sv_dev_takes_codes(dev, host->quant, host->role)) &&
               (!host->row_stride || dev->be->takes_columns));
    *out = (struct sv_weight){0};
    int rc = dev->be->upload_weight(dev, host, out, err);
    if (!rc && dev->on_upload)
        dev->on_upload(dev->upload_user, host->quant
                                             ? (size_t)sv_quant_bytes(host->quant)
                                             : (size_t)host->rows * (size_t)host->cols * elem);
    return rc;
}

void sv_dev_free_weight(struct sv_dev *dev, struct sv_weight *w)
{
    if (w->data)
        dev->be->free_weight(dev, w);
    *w = (struct sv_weight){0};
}

void sv_dev_on_upload(struct sv_dev *dev, void (*fn)(void *user, size_t n_bytes), void *user)
{
    dev->on_upload = fn;
    dev->upload_user = user;
}

int sv_dev_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                         float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err)
{
    SV_REQUIRE(shape->rows > 0 && shape->cols > 0 && shape->fmt.elem <= SV_F16);
    return dev->be->random_weight(dev, shape, scale, shift, seed, out, err);
}

void sv_dev_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    if (!n_bytes)
        return;
    if (dev->on_copy)
        dev->on_copy(dev->copy_user, dst, src, n_bytes, false);
    dev->be->upload(dev, dst, src, n_bytes);
}

void sv_dev_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    if (n_bytes)
        dev->be->download(dev, dst, src, n_bytes);
}

void sv_dev_copy(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    if (!n_bytes)
        return;
    if (dev->on_copy)
        dev->on_copy(dev->copy_user, dst, src, n_bytes, true);
    dev->be->copy(dev, dst, src, n_bytes);
}

int sv_dev_sync(struct sv_dev *dev, struct sv_err *err)
{
    return dev->be->sync(dev, err);
}

void sv_dev_mark(struct sv_dev *dev, int32_t i)
{
    SV_REQUIRE(i >= 0 && i < SV_MARKS);
    dev->be->mark(dev, i);
}

int sv_dev_wait(struct sv_dev *dev, int32_t i, struct sv_err *err)
{
    SV_REQUIRE(i >= 0 && i < SV_MARKS);
    return dev->be->wait(dev, i, err);
}

void sv_dev_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user)
{
    dev->be->graph_run(dev, key, enqueue, user);
}

/* ---------------------------------------------------------------- ranks */

struct sv_ranks sv_dev_ranks(const struct sv_dev *dev)
{
    return dev->ranks;
}

uint32_t sv_dev_n_joins(const struct sv_dev *dev)
{
    return dev->n_joins;
}

int sv_dev_window_open(struct sv_dev *dev, const struct sv_window_need *need,
                       struct sv_window_key *key, struct sv_err *err)
{
    SV_REQUIRE(dev->ranks.n > 1 && dev->be->window_open);
    return dev->be->window_open(dev, need, key, err);
}

int sv_dev_window_join(struct sv_dev *dev, const struct sv_peers *peers, struct sv_err *err)
{
    SV_REQUIRE(dev->ranks.n > 1 && dev->be->window_join);
    return dev->be->window_join(dev, peers, err);
}

void sv_dev_place(const struct sv_dev *dev, struct sv_dev_place *out)
{
    *out = (struct sv_dev_place){.gpu = -1};
    if (dev->be->place)
        dev->be->place(dev, out);
    else if (dev->ranks.n > 1)
        snprintf(out->link, sizeof out->link, "shared memory");
}

void sv_dev_on_copy(struct sv_dev *dev, sv_copy_fn *fn, void *user)
{
    dev->on_copy = fn;
    dev->copy_user = user;
}

/* See ranks.h: a window's place of this kind is free again once another kind has been joined. */
void sv_dev_begin_join(struct sv_dev *dev, enum sv_join kind)
{
    SV_REQUIRE(kind > SV_JOIN_NONE && kind < SV_JOINS && dev->ranks.n > 1);
    SV_REQUIRE(kind != dev->last_join);
    dev->last_join = kind;
    dev->n_joins++;
}

double sv_dev_measure_read(struct sv_dev *dev, size_t n_bytes)
{
    return dev->be->measure_read(dev, n_bytes);
}

const char *sv_dev_describe(struct sv_dev *dev)
{
    return dev->be->describe(dev);
}

/* ---------------------------------------------------------------- checks */

static bool pages_ok(const struct sv_kv *kv, int32_t max_dim)
{
    return kv->k && kv->table && kv->n_pages > 0 && kv->page_size > 0 && kv->n_kv_heads > 0 &&
           kv->table_stride > 0 && kv->head_dim > 0 && kv->head_dim <= max_dim &&
           kv->head_dim % 8 == 0;
}

static bool kv_ok(const struct sv_kv *kv)
{
    return kv->v &&
           (kv->dtype == SV_F32 || kv->dtype == SV_BF16 ||
            (kv->dtype == SV_F8 && kv->k_own && kv->v_own)) &&
           pages_ok(kv, 256);
}

bool sv_latent_ok(const struct sv_kv *kv)
{
    return !kv->v &&
           (kv->dtype == SV_F32 || kv->dtype == SV_BF16 ||
            (kv->dtype == SV_F8 && kv->latent > 0 && kv->latent % 8 == 0)) &&
           kv->latent < kv->head_dim && kv->n_kv_heads == 1 && pages_ok(kv, SV_MAX_LATENT);
}

static bool rope_ok(const struct sv_rope_table *t, int32_t head_dim)
{
    return t->cos && t->sin && t->max_pos > 0 && t->rot_dim >= 0 && t->rot_dim % 2 == 0 &&
           t->rot_dim <= head_dim;
}

/* Columns of y that the parts fill; -1 when a part does not fit k. */
static int64_t parts_width(const struct sv_gemm_part *parts, int32_t n_parts, int32_t k)
{
    int64_t width = 0;
    if (!parts || n_parts < 1 || n_parts > SV_GEMM_MAX_PARTS)
        return -1;
    for (int32_t i = 0; i < n_parts; i++) {
        const struct sv_weight *w = &parts[i].w;
        if (!w->data || w->fmt.elem == SV_I32 || w->cols != k || w->rows < 1 ||
            !sv_vector_ok(&parts[i].bias, w->rows))
            return -1;
        width += w->rows;
    }
    return width;
}

/* ---------------------------------------------------------------- ops */

void sv_op_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p)
{
    if (p->rows.n_segs == 0)
        return;
    SV_REQUIRE(sv_rows_ok(&p->rows) && p->rows.seg_base && p->slot_len);
    SV_REQUIRE(!p->row_ids || (p->seg_kind && p->slot_anchor));
    SV_REQUIRE(!p->rows.row_rope == !p->row_shift && (!p->row_shift || dev->be->vision));
    dev->be->block_ids(dev, p);
}

void sv_op_embed(struct sv_dev *dev, const struct sv_p_embed *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->ids && p->out && p->table.data && p->table.fmt.elem <= SV_F16);
    SV_REQUIRE(p->table.rows > 0 && p->table.cols > 0);
    dev->be->embed(dev, p);
}

void sv_op_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p)
{
    if (p->n_rows == 0 && !p->join)
        return;
    if (p->join)
        sv_dev_begin_join(dev, p->join);
    SV_REQUIRE(!p->join || p->delta);
    SV_REQUIRE(!p->own_rows || !p->row_index);
    SV_REQUIRE(p->n_rows >= 0 && p->d > 0 && p->x && p->out && p->weight.data);
    SV_REQUIRE(sv_vector_ok(&p->weight, p->d));
    SV_REQUIRE(!p->tap || (!p->row_index && p->tap_stride >= p->d));
    SV_REQUIRE(p->tap || !p->tap_row);
    dev->be->add_rms_norm(dev, p);
}

void sv_op_gemm(struct sv_dev *dev, const struct sv_p_gemm *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->k > 0 && p->x && p->y && p->ldx >= p->k);
    int64_t width = parts_width(p->parts, p->n_parts, p->k);
    SV_REQUIRE(width > 0 && p->ldy >= width);
    dev->be->gemm(dev, p);
}

void sv_op_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->k > 0 && p->x && p->gate_up && p->out && p->ldx >= p->k);
    SV_REQUIRE(parts_width(p->parts, 2, p->k) > 0 && p->parts[0].w.rows == p->parts[1].w.rows);
    dev->be->gemm_act_mul(dev, p);
}

void sv_op_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p)
{
    if (p->rows.n_rows == 0)
        return;
    SV_REQUIRE(sv_rows_ok(&p->rows) && kv_ok(&p->kv) && p->qkv && p->n_heads > 0);
    const int32_t stride = p->q_stride ? p->q_stride : p->kv.head_dim;
    SV_REQUIRE(stride >= p->kv.head_dim &&
               p->ld >= (int64_t)p->n_heads * stride + 2 * p->kv.n_kv_heads * p->kv.head_dim);
    SV_REQUIRE(sv_vector_ok(&p->q_norm, p->kv.head_dim) &&
               sv_vector_ok(&p->k_norm, p->kv.head_dim));
    SV_REQUIRE(rope_ok(&p->rope, p->kv.head_dim));
    SV_REQUIRE(dev->be->vision || !(p->rope.axis && p->rows.row_rope)); /* never ignored */
    dev->be->qk_norm_rope_kv_write(dev, p);
}

void sv_op_attention(struct sv_dev *dev, const struct sv_p_attention *p)
{
    if (p->rows.n_rows == 0)
        return;
    SV_REQUIRE(sv_rows_ok(&p->rows) && p->q && p->out && p->n_heads > 0);
    SV_REQUIRE(p->v_dim ? sv_latent_ok(&p->kv) && p->v_dim > 0 && p->v_dim <= p->kv.head_dim &&
                              p->v_dim % 8 == 0 && (!p->kv.latent || p->v_dim == p->kv.latent)
                        : kv_ok(&p->kv));
    SV_REQUIRE(p->n_heads % p->kv.n_kv_heads == 0 && p->window >= 0 && p->scale > 0);
    SV_REQUIRE(p->rows.seg_base);
    const int32_t stride = p->q_stride ? p->q_stride : p->kv.head_dim;
    SV_REQUIRE(stride >= p->kv.head_dim && p->ldq >= (int64_t)p->n_heads * stride);
    SV_REQUIRE(p->ldo >= (int64_t)p->n_heads * (p->v_dim ? p->v_dim : p->kv.head_dim));
    SV_REQUIRE(p->mask == SV_MASK_CAUSAL || p->mask == SV_MASK_BLOCK);
    SV_REQUIRE(sv_vector_ok(&p->sinks, p->n_heads));
    dev->be->attention(dev, p);
}

void sv_op_sigmoid_mul(struct sv_dev *dev, const struct sv_p_sigmoid_mul *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(dev->be->sigmoid_mul && p->n_rows > 0 && p->n_heads > 0 && p->head_dim > 0);
    SV_REQUIRE(p->x && p->gate && p->gate_stride >= p->head_dim);
    SV_REQUIRE(p->ldg >= (int64_t)(p->n_heads - 1) * p->gate_stride + p->head_dim);
    dev->be->sigmoid_mul(dev, p);
}

void sv_op_add_gated(struct sv_dev *dev, const struct sv_p_add_gated *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(dev->be->add_gated && p->n_rows > 0 && p->d > 0 && p->x && p->y);
    dev->be->add_gated(dev, p);
}

void sv_op_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->d > 0 && p->gate_up && p->out);
    dev->be->act_mul(dev, p);
}

void sv_op_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p)
{
    if (p->n_rows == 0 && !p->join)
        return;
    if (p->join)
        sv_dev_begin_join(dev, p->join);
    SV_REQUIRE(!p->join || (!p->confidence && p->first_id >= 0));
    SV_REQUIRE(p->n_rows >= 0 && p->k > 0 && p->x && p->out && p->w.data &&
               p->w.fmt.elem != SV_I32);
    SV_REQUIRE(p->w.cols == p->k && p->w.rows > 0 &&
               (!p->confidence || sv_dev_head_confidence(dev, &p->w)));
    dev->be->head_argmax(dev, p);
}

/* In a pass the first rows of logits follow another kind, so its kinds are always the same. */
void sv_op_gather_logits(struct sv_dev *dev, const struct sv_p_gather_logits *p)
{
    struct sv_p_gather_logits q = *p;
    q.join = dev->last_join == SV_JOIN_LOGITS_A ? SV_JOIN_LOGITS_B : SV_JOIN_LOGITS_A;
    sv_dev_begin_join(dev, q.join);
    SV_REQUIRE(p->n_rows >= 0 && p->logits && p->first[0] == 0 && p->ld >= p->first[dev->ranks.n]);
    for (int32_t r = 0; r < dev->ranks.n; r++)
        SV_REQUIRE(p->first[r] <= p->first[r + 1]);
    q.deal = p->deal && dev->be->share_rows;
    dev->be->gather_logits(dev, &q);
}

struct sv_slice sv_dealt_rows(const struct sv_dev *dev, int32_t n_rows)
{
    return dev->ranks.n > 1 && dev->be->share_rows
               ? sv_rank_rows(n_rows, dev->ranks.rank, dev->ranks.n)
               : (struct sv_slice){0, n_rows};
}

void sv_op_share_rows(struct sv_dev *dev, const struct sv_p_share_rows *p)
{
    if (dev->ranks.n == 1 || !dev->be->share_rows)
        return;
    sv_dev_begin_join(dev, SV_JOIN_ROWS);
    SV_REQUIRE(p->n_rows >= 0 && p->n_arrays > 0 && p->n_arrays <= SV_SHARED_ARRAYS);
    for (int32_t i = 0; i < p->n_arrays; i++)
        SV_REQUIRE(p->array[i].rows && p->array[i].row_bytes && p->array[i].n > 0);
    dev->be->share_rows(dev, p);
}

void sv_op_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p)
{
    if (p->n_logit_rows == 0)
        return;
    SV_REQUIRE(p->n_logit_rows > 0 && sv_rows_ok(&p->rows) && p->logit_row && p->row_slot &&
               p->row_pos);
    dev->be->logit_pos(dev, p);
}

void sv_op_sample(struct sv_dev *dev, const struct sv_p_sample *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->vocab > 0 && p->ld >= p->vocab && p->logits && p->out);
    SV_REQUIRE(p->row_slot && p->row_pos && p->slot_sampling);
    dev->be->sample(dev, p);
}

void sv_op_argmax_confidence(struct sv_dev *dev, const struct sv_p_argmax_confidence *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(dev->be->argmax_confidence && p->n_rows > 0 && p->vocab > 0 && p->ld >= p->vocab);
    SV_REQUIRE(p->logits && p->out && p->confidence);
    dev->be->argmax_confidence(dev, p);
}

void sv_op_head_among(struct sv_dev *dev, const struct sv_p_head_among *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->k > 0 && p->n_ids >= p->n_rows && p->x && p->row && p->first);
    SV_REQUIRE(p->ids && p->logits && p->out && p->confidence && p->w.data);
    SV_REQUIRE(p->w.cols == p->k && p->w.rows > 0 && p->w.fmt.elem <= SV_F16);
    dev->be->head_among(dev, p);
}

void sv_op_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->vocab > 0 && p->ld >= p->vocab);
    SV_REQUIRE(p->src && p->dst && p->row_mask && p->masks);
    dev->be->logit_mask(dev, p);
}

void sv_op_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p)
{
    if (p->n_logit_rows == 0)
        return;
    SV_REQUIRE(p->n_logit_rows > 0 && sv_rows_ok(&p->rows) && p->vocab > 0 && p->ld >= p->vocab);
    SV_REQUIRE(p->src && p->dst && p->logit_row && p->row_ids && p->slot_rules && p->bias_ids);
    SV_REQUIRE(p->bias && p->ban_ids && p->listed && p->history && p->counts);
    SV_REQUIRE(p->history_stride > 0 && p->rows.seg_base);
    dev->be->logit_rules(dev, p);
}

void sv_op_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(p->n_rows > 0 && p->vocab > 0 && p->ld >= p->vocab && p->logits && p->out);
    SV_REQUIRE(p->row_slot && p->slot_rules && p->token);
    dev->be->logprobs(dev, p);
}

void sv_op_history(struct sv_dev *dev, const struct sv_p_history *p)
{
    if (p->rows.n_segs == 0)
        return;
    SV_REQUIRE(sv_rows_ok(&p->rows) && p->row_ids && p->n_commit && p->history);
    SV_REQUIRE(p->history_stride > 0);
    dev->be->history(dev, p);
}

void sv_op_replace_drafts(struct sv_dev *dev, const struct sv_p_replace_drafts *p)
{
    if (p->rows.n_segs == 0)
        return;
    SV_REQUIRE(sv_rows_ok(&p->rows) && p->seg_kind && p->seg_logit0 && p->chosen);
    SV_REQUIRE(p->accept_len && p->row_ids);
    dev->be->replace_drafts(dev, p);
}

void sv_op_verify(struct sv_dev *dev, const struct sv_p_verify *p)
{
    if (p->rows.n_segs == 0)
        return;
    SV_REQUIRE(sv_rows_ok(&p->rows) && p->seg_kind && p->seg_logit0 && p->n_commit && p->n_emit);
    SV_REQUIRE(p->out_tokens && p->out_stride > 0 && p->row_ids && p->chosen);
    dev->be->verify(dev, p);
}

void sv_op_commit(struct sv_dev *dev, const struct sv_p_commit *p)
{
    if (p->n_segs == 0)
        return;
    SV_REQUIRE(p->n_segs > 0 && p->seg_slot && p->n_commit && p->n_emit && p->out_tokens);
    SV_REQUIRE(p->out_stride > 0 && p->slot_len && p->slot_anchor);
    dev->be->commit(dev, p);
}

void sv_op_snapshot(struct sv_dev *dev, const struct sv_p_snapshot *p)
{
    SV_REQUIRE(p->n_commit && p->slot_len && p->at > 0 && p->src && p->dst && p->n_bytes > 0);
    SV_REQUIRE(((uintptr_t)p->src | (uintptr_t)p->dst | p->n_bytes) % 16 == 0);
    dev->be->snapshot(dev, p);
}

void sv_op_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p)
{
    if ((p->rows.n_rows == 0 && !p->join) || p->n_layers == 0)
        return;
    if (p->join)
        sv_dev_begin_join(dev, p->join);
    SV_REQUIRE(p->n_taps ? p->first_tap >= 0 && p->first_tap <= p->n_taps - p->fc.cols
                         : !p->first_tap && !p->join);
    SV_REQUIRE(sv_rows_ok(&p->rows) && p->n_commit && p->taps && p->z && p->y && p->n_layers > 0);
    SV_REQUIRE(p->fc.data && p->fc.fmt.elem <= SV_F16 && p->fc.rows > 0 && p->fc.cols > 0);
    SV_REQUIRE(sv_vector_ok(&p->fc_bias, p->fc.rows) && p->hidden_norm.data);
    SV_REQUIRE(sv_vector_ok(&p->hidden_norm, p->fc.rows) && p->kv && p->kv_parts && p->k_norm);
    const struct sv_kv *kv = p->kv;
    const int32_t width = kv->n_kv_heads * kv->head_dim;
    SV_REQUIRE(parts_width(p->kv_parts, 2 * p->n_layers, p->fc.rows) ==
               (int64_t)p->n_layers * 2 * width);
    for (int32_t l = 0; l < p->n_layers; l++) {
        SV_REQUIRE(kv_ok(&kv[l]) && kv[l].dtype == kv->dtype && kv[l].head_dim == kv->head_dim);
        SV_REQUIRE(kv[l].n_kv_heads == kv->n_kv_heads && sv_vector_ok(&p->k_norm[l], kv->head_dim));
        SV_REQUIRE(p->kv_parts[2 * l].w.rows == width && p->kv_parts[2 * l + 1].w.rows == width);
    }
    SV_REQUIRE(rope_ok(&p->rope, kv->head_dim));
    dev->be->draft_context_kv(dev, p);
}
