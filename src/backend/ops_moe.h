/*
 * ops_moe.h - the ops of a mixture of experts, its weights, and the table of functions that a
 * backend fills for it.
 *
 * Called by model through the sv_op_* and sv_dev_* wrappers of ops_moe.c. The rules of ops.h hold
 * here as well: a row's result depends neither on which other rows chose its experts nor on how
 * many. All that depends on the routing stays on the device: no host in between, no launch whose
 * size follows from a choice. A device fills struct sv_moe_ops whole or not at all. Must not: fall
 * back to other ops where a device has none.
 */
#ifndef SV_OPS_MOE_H
#define SV_OPS_MOE_H

#include "backend/ops.h"

#define SV_MAX_EXPERTS 1024 /* of a layer */
#define SV_MAX_CHOSEN 16    /* of a row */

/* ---------------------------------------------------------------- weights */

/* One projection of all experts of a layer. On a device with memory of its own the experts lie one
 * behind the other: w[e].data = w[0].data + e * (w[1].data - w[0].data), and so do the scales. On
 * the CPU each may be a tensor of a mapped file. */
struct sv_experts {
    int32_t n;             /* experts; 0: no such projection */
    int32_t rows, cols;    /* n_out, n_in of each */
    struct sv_weight *w;   /* (n) of (rows, cols), all in one format; the array is host memory */
    struct sv_weight bias; /* (1, n * rows), expert e's from e * rows on; or data NULL */
    /* With routes.shared: the shared expert's, of w[0]'s shape and format; else NULL */
    const struct sv_weight *shared;
};

/* ---------------------------------------------------------------- routing */

/* Which rows go to which experts. router_topk writes it and the other ops of the layer read it;
 * device memory, which the caller lays out with sv_routes_lay_out. An *entry* is a row's j-th
 * choice, its number is row * k + j. Rows of padding have no entries. */
struct sv_routes {
    int32_t n_rows, n_experts, k;
    /* A shared expert, which all rows go through, is fused: it is the last expert and the last
     * choice of each row; n_experts and k count it. See sv_dev_takes_shared. */
    bool shared;
    /* Of the experts, those of this device, n 0: all; of others' entries it has the choice alone.
     * `first` and `active` count from own.first on. */
    struct sv_slice own;
    int32_t *expert;   /* (n_rows, k) in the order of choice: by logit, or by score and bias, the
                        * largest first, then by id; -1 in rows of padding */
    float *weight;     /* (n_rows, k) */
    int32_t *place;    /* (n_rows, k) index of the entry in list; -1 in rows of padding, and of
                        * other devices' experts */
    int32_t *list;     /* (n_rows * k) entries, expert by expert, ascending for each */
    int32_t *first;    /* (n_experts + 1) where an expert's entries begin in list */
    int32_t *active;   /* (n_experts) experts that have entries, ascending; then undefined */
    int32_t *n_active; /* (1) */
    float *logits;     /* (n_rows, n_experts) scratch of router_topk */
};
static inline int32_t sv_routes_n_own(const struct sv_routes *r)
{
    return r->own.n ? r->own.n : r->n_experts;
}
/* Sets the pointers to pieces of base, which is aligned to 256; returns the bytes of all. base
 * NULL: only that. */
size_t sv_routes_lay_out(struct sv_routes *r, void *base);

/* What a router's weights are. Both sums run in a fixed order. */
enum sv_router_norm {
    SV_ROUTER_OVER_CHOSEN, /* softmax over the k chosen logits: the weights of a row add up to 1 */
    SV_ROUTER_OVER_ALL,    /* the chosen experts' part of the softmax over all n_experts */
    SV_ROUTER_SIGMOID      /* see struct sv_router_sigmoid */
};

/* Scores are sigmoids of the logits. For the choice alone a bias is added to them, and only experts
 * of some groups can be chosen: of consecutive groups of equal size the topk_group whose two best
 * add up to most, of equal ones those of the lowest numbers. A weight is the expert's score, over
 * the sum of the chosen ones' where renorm is set, times scale. */
struct sv_router_sigmoid {
    struct sv_weight bias;       /* (1, n_experts) f32 or data NULL */
    int32_t n_group, topk_group; /* equal: there are no groups */
    bool renorm;
    float scale;
};

/* logits = x W^T + bias in f32, never rounded to act; the k largest of each row, of equal ones
 * those of the lowest ids. A NaN is less than any number. Fills all of routes. */
struct sv_p_router_topk {
    struct sv_rows rows; /* row_seg < 0: routed nowhere */
    const void *x;       /* (n_rows, w.cols) act */
    /* NULL, or what makes x first, for the same rows and without row_index: a device may do both at
     * once */
    const struct sv_p_add_rms_norm *before;
    struct sv_weight w;    /* (n_experts, hidden), not quantized */
    struct sv_weight bias; /* (1, n_experts) or data NULL */
    /* With routes.shared, which w and bias have no row for: (1, hidden) as w, the sigmoid of x with
     * it is that expert's weight; data NULL: 1 is */
    struct sv_weight shared;
    enum sv_router_norm norm;
    struct sv_router_sigmoid sigmoid; /* of SV_ROUTER_SIGMOID */
    struct sv_routes routes;
    /* (1) or NULL: grows, modulo 2^32, by the number of experts that have entries */
    uint32_t *n_chosen;
};

/* ---------------------------------------------------------------- experts */

/* What an expert does with its gate g and up u, in f32. */
enum sv_expert_act {
    SV_EXPERT_SILU,   /* silu(g) * u */
    SV_EXPERT_CLAMPED /* g = min(g, limit), u = clamp(u, -limit, limit);
                       * (u + 1) * g * sigmoid(alpha * g) */
};

/* out[p] = act(g, u) for the entry at place p of routes.list, with g = x[row] W_gate^T + bias of
 * its expert, and u likewise; rounded to act once. Places that no entry has are left alone. */
struct sv_p_moe_gate_up {
    const void *x;              /* (n_rows, gate.cols) act */
    struct sv_experts gate, up; /* (intermediate, hidden) each */
    enum sv_expert_act act;
    float limit, alpha; /* of SV_EXPERT_CLAMPED */
    struct sv_routes routes;
    void *out; /* (n_rows * k, intermediate) act */
};

/* out[r] = sum over j = 0 .. k - 1, in this order and in f32, of weight[r, j] * x[place[r, j]]
 * where there is a place; rounded to act once. Rows without one get 0, those of padding too, so
 * that what follows meets real numbers. */
struct sv_p_moe_combine {
    /* SV_JOIN_NONE, or the join that follows, of just these rows, which nothing changes in between:
     * a device may send its part at once */
    enum sv_join push;
    int32_t hidden;
    const float *x; /* (n_rows * k, hidden) f32, by place */
    struct sv_routes routes;
    void *out; /* (n_rows, hidden) act */
};

/* out[p] = x[p] W_down^T + bias of the expert of place p. */
struct sv_p_moe_down {
    const void *x;          /* (n_rows * k, down.cols) act, by place */
    struct sv_experts down; /* (hidden, intermediate) each */
    struct sv_routes routes;
    float *out; /* (n_rows * k, hidden) f32, by place */
    /* NULL, or what adds these up: done in the same op, which then need not write out */
    const struct sv_p_moe_combine *then;
};

/* ---------------------------------------------------------------- the backend's part */

struct sv_moe_ops {
    bool takes_shared; /* routes.shared */
    /* As upload_weight and random_weight, for n weights of one shape and format at once: w (n) is
     * filled or, on an error, holds nothing. */
    int (*upload_experts)(struct sv_dev *, const struct sv_weight *host, int32_t n,
                          struct sv_weight *w, struct sv_err *);
    int (*random_experts)(struct sv_dev *, const struct sv_weight *shape, int32_t n, float scale,
                          uint64_t seed, struct sv_weight *w, struct sv_err *);
    void (*free_experts)(struct sv_dev *, struct sv_weight *w, int32_t n);
    void (*router_topk)(struct sv_dev *, const struct sv_p_router_topk *);
    void (*gate_up)(struct sv_dev *, const struct sv_p_moe_gate_up *);
    void (*down)(struct sv_dev *, const struct sv_p_moe_down *);
};

/* SV_EUNSUPPORTED where the device has no mixture of experts: before a model that needs it is
 * loaded. */
int sv_dev_check_moe(const struct sv_dev *dev, struct sv_err *err);

/* Whether the device takes a shared expert as one more of x: of their shape and format. */
bool sv_dev_takes_shared(const struct sv_dev *dev, const struct sv_experts *x,
                         const struct sv_weight *shared);

/* Checked wrappers (ops_moe.c). Zero rows are a no-op everywhere. */
int sv_dev_upload_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                          struct sv_experts *out, struct sv_err *err); /* fills out->w */
int sv_dev_random_experts(struct sv_dev *dev, const struct sv_weight *shape, int32_t n, float scale,
                          uint64_t seed, struct sv_experts *out, struct sv_err *err);
void sv_dev_free_experts(struct sv_dev *dev,
                         struct sv_experts *x); /* not the array, nor the bias */
void sv_op_router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p);
void sv_op_moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p);
void sv_op_moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p);

#endif
