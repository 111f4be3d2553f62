/*
 * gemm.cu - matrix products and the fused head of the CUDA backend: scratch, choice of kernel,
 * passes.
 *
 * Called through the table in device.cu. All parts of a call that tensor cores can take go into
 * one launch, 256 rows of x at a time (128 in the portable set); the others one by one to
 * gemm_plain.cu. Must not: choose by the number of rows, or allocate outside reserve.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/cuda/gemm_one.h"
#include "backend/cuda/peers.h"

static int32_t block_rows(const struct sv_cuda *cu)
{
    return cu->set == SV_CUDA_SM90 ? (int32_t)SV_SM90_BLOCK : (int32_t)SV_PORTABLE_BLOCK;
}

/* sm_90: pairs of multiprocessors share a block. Portable: so many thread blocks each. */
static int32_t max_units(const struct sv_cuda *cu)
{
    return cu->set == SV_CUDA_SM90 ? cu->gemm->sm90_units : cu->n_sms * GPU_BLOCKS;
}

static int32_t pass_rows(const struct sv_cuda *cu)
{
    return cu->set == SV_CUDA_SM90 ? (int32_t)SV_GEMM_PASS : SV_GEMM_PASS / 2;
}

static int32_t most_rows(const struct sv_cuda *cu)
{
    return cu->lim.max_rows > cu->lim.max_logit_rows ? cu->lim.max_rows : cu->lim.max_logit_rows;
}

/* Rows of x in 8 bits at once. */
static int32_t bytes_rows(const struct sv_cuda *cu)
{
    return most_rows(cu) < SV_GEMM_FP8_ROWS ? most_rows(cu) : (int32_t)SV_GEMM_FP8_ROWS;
}

bool sv_gemm_bytes_room(const struct sv_cuda *cu, int32_t n_rows, int32_t k)
{
    return cu->gemm && cu->gemm->bytes_x && n_rows <= bytes_rows(cu) && k <= cu->bytes_k &&
           k % 8 == 0;
}

/* For quantized weights. */
static int reserve_bytes(struct sv_cuda *cu, struct sv_err *err)
{
    const size_t rows = (size_t)bytes_rows(cu);
    struct sv_cuda_gemm_state *g = cu->gemm;
    void *p = NULL;
    g->bytes_ld = sv_fp8_group_ld((int32_t)rows);
    /* The widest copy reaches behind the last row's scale. */
    const size_t n_scales =
        cu->n_fp8 ? (size_t)(g->bytes_ld * sv_fp8_tiles(cu->bytes_k)) + SV_GEMM_PASS : rows;
    int rc = sv_gemm_fp8_open(cu, err);
    if (!rc && cu->n_fp8)
        rc = sv_gemm_w8a8_open(cu, err);
    if (!rc)
        rc = sv_cuda_alloc((struct sv_dev *)cu, &p, rows * (size_t)sv_fp8_row_bytes(cu->bytes_k),
                           err);
    g->bytes_x = (uint8_t *)p;
    p = NULL;
    if (!rc)
        rc = sv_cuda_alloc((struct sv_dev *)cu, &p, n_scales * sizeof *g->bytes_scale, err);
    g->bytes_scale = (float *)p;
    return rc;
}

/* Two matrices: gate and up. */
static int reserve_codes(struct sv_cuda *cu, struct sv_err *err)
{
    struct sv_cuda_gemm_state *g = cu->gemm;
    g->expanded_bytes = 2 * cu->codes_packed;
    return sv_cuda_alloc((struct sv_dev *)cu, (void **)&g->expanded, g->expanded_bytes, err);
}

/* The tuned kernels of codes of 4 bits, K-quants of 5 to 7 with their scales, and of 8 bits; and
 * those of one row. */
static const struct {
    sv_gemm_open_fn *open;
    sv_gemm_run_fn *run;
    sv_gemm_one_open_fn *one_open;
    sv_gemm_one_fn *one;
    sv_gemm_one_portable_open_fn *portable_open;
    sv_gemm_one_portable_fn *portable;
} codes_sets[] = {{sv_gemm_codes4_open, sv_gemm_codes4, sv_gemm_one4_open, sv_gemm_one4,
                   sv_gemm_one4_portable_open, sv_gemm_one4_portable},
                  {sv_gemm_codes5_open, sv_gemm_codes5, NULL, NULL, NULL, NULL},
                  {sv_gemm_codes6_open, sv_gemm_codes6, NULL, NULL, NULL, NULL},
                  {sv_gemm_codes7_open, sv_gemm_codes7, NULL, NULL, NULL, NULL},
                  {sv_gemm_codes_open, sv_gemm_codes, sv_gemm_one_open, sv_gemm_one,
                   sv_gemm_one_portable_open, sv_gemm_one_portable}};

int sv_cuda_gemm_reserve(struct sv_cuda *cu, struct sv_err *err)
{
    sv_cuda_gemm_close(cu);
    cu->gemm = (struct sv_cuda_gemm_state *)sv_calloc(1, sizeof *cu->gemm);
    if (!cu->gemm)
        return sv_fail(err, SV_ENOMEM, -1, "matrix products: no memory for their state");
    const int32_t most = most_rows(cu);
    /* Widths go up to twice the rows, less for small ones: count the widest that can run. */
    const size_t rows = (size_t)(most <= pass_rows(cu) / 4 ? pass_rows(cu) / 2 : pass_rows(cu));
    struct sv_cuda_gemm_state *g = cu->gemm;
    void *p = NULL;
    int rc = cu->set == SV_CUDA_SM90 ? sv_gemm_sm90_open(cu, err) : sv_gemm_portable_open(cu, err);
    if (!rc && cu->set == SV_CUDA_SM90)
        rc = sv_gemm_beside_open(err);
    if (!rc && cu->set == SV_CUDA_SM90)
        rc = sv_gemm_wcomp_open(cu, err);
    if (!rc && cu->bytes_k)
        rc = reserve_bytes(cu, err);
    if (cu->n_fp8)
        sv_log(SV_LOG_INFO,
               "activations in fp8: products with %d matrices; with %d of other formats, or of "
               "experts, they are exact",
               (int)cu->n_fp8, (int)cu->n_exact);
    for (int32_t bits = 4; bits <= 8 && cu->set == SV_CUDA_SM90 && !rc; bits++)
        rc = codes_sets[bits - 4].open(cu, err);
    for (int32_t bits = 4; bits <= 8 && cu->set == SV_CUDA_SM90 && !rc; bits += 4)
        rc = codes_sets[bits - 4].one_open(err);
    for (int32_t bits = 4; bits <= 8 && cu->set != SV_CUDA_SM90 && !rc; bits += 4)
        rc = codes_sets[bits - 4].portable_open(cu, err);
    if (!rc && cu->set == SV_CUDA_SM90)
        rc = sv_gemm_one12_open(err);
    if (!rc && cu->codes_packed && most > (int32_t)SV_GEMM_CODES_ROWS)
        rc = reserve_codes(cu, err);
    const size_t bands = (size_t)block_rows(cu) / SV_TILE, units = (size_t)max_units(cu);
    const size_t a_row = 2 * units * bands * SV_TILE * sizeof(float);
    const size_t n_posted = cu->set == SV_CUDA_SM90 ? 0 : SV_PORTABLE_POSTED * a_row;
    const size_t n_pieces = n_posted + rows * a_row;
    if (!rc && !(rc = sv_cuda_alloc((struct sv_dev *)cu, &p, n_pieces, err))) {
        g->posted = (float4 *)p;
        g->pieces = g->posted + n_posted / sizeof(float4);
    }
    if (!rc &&
        !(rc = sv_cuda_alloc((struct sv_dev *)cu, &p, units * bands * sizeof *g->arrived, err)))
        g->arrived = (uint32_t *)p;
    if (!rc && !(rc = sv_cuda_alloc((struct sv_dev *)cu, &p,
                                    sizeof *g->best * SV_GEMM_BEST_SLOTS * SV_GEMM_BEST_ROWS, err)))
        g->best = (uint64_t *)p;
    if (!rc && cu->set == SV_CUDA_SM90 && most > (int32_t)SV_GEMM_PASS &&
        !(rc = sv_cuda_alloc((struct sv_dev *)cu, &p, 2 * units * SV_GEMM_STASH, err)))
        g->stash = (float4 *)p;
    /* See SV_PIECE_NONE. */
    if (!rc)
        rc = sv_cuda_try(cudaMemsetAsync(g->posted, 0xff, n_pieces, cu->stream), err,
                         "clearing of partial sums");
    if (rc)
        sv_cuda_gemm_close(cu);
    return rc;
}

void sv_cuda_gemm_close(struct sv_cuda *cu)
{
    if (!cu->gemm)
        return;
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->posted);
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->stash);
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->arrived);
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->best);
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->bytes_x);
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->bytes_scale);
    sv_cuda_free((struct sv_dev *)cu, cu->gemm->expanded);
    sv_free(cu->gemm);
    cu->gemm = NULL;
}

/* By the weight alone: the same for every number of rows. */
static bool takes_tensor_cores(const struct sv_cuda *cu, const struct sv_weight *w)
{
    return cu->act == SV_BF16 && sv_cuda_is_packed(w) && w->cols % 8 == 0;
}

/* One row by itself, where a kernel takes it; false: nothing done. */
static bool run_one(struct sv_cuda *cu, const void *x, int32_t k, const struct sv_gemm_args *a)
{
    if (a->n_rows != 1)
        return false;
    const auto &set = codes_sets[a->codes ? a->codes - 4 : 0];
    if (cu->set != SV_CUDA_SM90)
        return a->codes && set.portable && set.portable(cu, x, k, a);
    if (a->codes)
        return set.one && set.one(cu, x, k, a, NULL);
    bool wcomp = !a->bytes && !a->co_resident && sv_gemm_wcomp_rows(cu) > 0;
    for (int32_t p = 0; p < a->n_parts; p++)
        wcomp = wcomp && a->part[p].wcomp;
    return wcomp && sv_gemm_one12(cu, x, k, a, NULL);
}

static void run_pass(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                     struct sv_gemm_args *a)
{
    if (run_one(cu, x, k, a))
        return;
    if (cu->set != SV_CUDA_SM90)
        sv_gemm_portable(cu, x, ldx, k, a);
    else if (a->groups)
        sv_gemm_w8a8(cu, x, ldx, k, a);
    else if (a->bytes)
        sv_gemm_fp8(cu, x, ldx, k, a);
    else if (a->codes)
        codes_sets[a->codes - 4].run(cu, x, ldx, k, a);
    else if (!sv_gemm_beside(cu, x, ldx, k, a) && !sv_gemm_wcomp(cu, x, ldx, k, a))
        sv_gemm_sm90(cu, x, ldx, k, a);
}

static int32_t tiles_of(const struct sv_gemm_args *a, int32_t k)
{
    return a->bytes ? sv_fp8_tiles(k) : sv_tiles(k);
}

static struct sv_split split_of(const struct sv_cuda *cu, int32_t n_blocks, int32_t n_k)
{
    struct sv_split s = sv_split_make(n_blocks, n_k, max_units(cu), cu->set == SV_CUDA_SM90);
    if (cu->gemm->tune_units && cu->gemm->tune_units < s.n_units)
        s.n_units = cu->gemm->tune_units, s.skew = 0;
    if (cu->gemm->tune_skew)
        s.skew = s.skew && cu->gemm->tune_skew > 0 ? cu->gemm->tune_skew : 0;
    return s;
}

/* Appends a part; col is its first column in y. */
static void add_part(const struct sv_cuda *cu, struct sv_gemm_args *a,
                     const struct sv_gemm_part *part, int32_t col, bool wide)
{
    struct sv_gemm_item *it = &a->part[a->n_parts++];
    it->w = (const uint8_t *)part->w.data;
    a->codes = sv_cuda_is_codes(&part->w) ? sv_cuda_code_bits(&part->w) : 0;
    it->wcomp = a->codes ? it->w : sv_cuda_wcomp_of(&part->w);
    it->code = sv_cuda_code_of(&part->w);
    it->scale = (const float *)(const void *)(it->w + sv_fp8_scales_at(part->w.rows, part->w.cols));
    a->groups = sv_cuda_is_w8a8(&part->w);
    a->bytes = a->groups || sv_cuda_is_bytes(&part->w);
    it->bias = part->bias.data;
    it->bias_dtype = part->bias.fmt.elem;
    it->n_out = part->w.rows;
    it->n_bands = sv_tiles(part->w.rows);
    it->col0 = col;
    it->wide = wide && col % 8 == 0;
}

/* By the weights alone: the same for every number of rows. */
static bool set_up_tall(struct sv_cuda *cu, struct sv_gemm_args *a, int32_t k)
{
    if (cu->set != SV_CUDA_SM90 || cu->gemm->tune_tall < 0)
        return false;
    if (a->mode == SV_GEMM_GATED && a->part[0].n_out % (SV_SM90_TALL / 2))
        return false;
    sv_gemm_lay_blocks(a, SV_SM90_TALL);
    a->split = sv_split_whole(a->split.n_blocks, tiles_of(a, k), cu->n_sms);
    return a->split.n_units > 0;
}

static void set_up(struct sv_cuda *cu, struct sv_gemm_args *a, int32_t k)
{
    a->tall = set_up_tall(cu, a, k);
    if (!a->tall) {
        sv_gemm_lay_blocks(a, block_rows(cu));
        a->split = split_of(cu, a->split.n_blocks, tiles_of(a, k));
    }
    a->pieces = cu->gemm->pieces;
    a->stash = cu->gemm->stash;
    a->arrived = cu->gemm->arrived;
    a->best = cu->gemm->best;
}

static uint8_t *y_row(const struct sv_gemm_args *a, void *y, int32_t row)
{
    const size_t y_bytes = a->mode == SV_GEMM_F32 ? sizeof(float) : sizeof(__nv_bfloat16);
    return (uint8_t *)y + (size_t)row * (size_t)a->ldy * y_bytes;
}

/* Many rows: codes become packed bf16, which the other kernels read. False: no room for them. */
static bool expand_codes(struct sv_cuda *cu, int32_t n_rows, int32_t k, struct sv_gemm_args *a)
{
    const struct sv_cuda_gemm_state *g = cu->gemm;
    size_t at = 0;
    for (int32_t p = 0; p < a->n_parts; p++)
        at += sv_packed_bytes(a->part[p].n_out, k);
    if (n_rows <= (int32_t)SV_GEMM_CODES_ROWS || at > g->expanded_bytes)
        return false;
    at = 0;
    for (int32_t p = 0; p < a->n_parts; p++) {
        struct sv_gemm_item *it = &a->part[p];
        sv_cuda_codes_expand(cu, it->wcomp, it->n_out, k, (enum sv_codes_code)it->code,
                             g->expanded + at);
        it->w = g->expanded + at;
        it->wcomp = NULL;
        at += sv_packed_bytes(it->n_out, k);
    }
    a->codes = 0;
    return true;
}

/* Rows of x in one launch. */
static int32_t launch_rows(const struct sv_cuda *cu, const struct sv_gemm_args *a)
{
    return a->codes || a->groups ? (int32_t)SV_GEMM_CODES_PASS : pass_rows(cu);
}

/* As run_rows, of weights that are there. */
static void run_launches(struct sv_cuda *cu, int32_t n_rows, const void *x, int64_t ldx, int32_t k,
                         struct sv_gemm_args *a, void *y)
{
    a->n_rows = n_rows;
    a->y = y;
    if (cu->set == SV_CUDA_SM90 && !a->codes && !a->groups &&
        (a->bytes ? sv_gemm_fp8_halves(cu, x, ldx, k, a) : sv_gemm_sm90_halves(cu, x, ldx, k, a)))
        return;
    if (cu->set == SV_CUDA_SM90 && !a->codes &&
        (a->groups  ? sv_gemm_w8a8_whole(cu, x, ldx, k, a)
         : a->bytes ? sv_gemm_fp8_whole(cu, x, ldx, k, a)
                    : sv_gemm_sm90_whole(cu, x, ldx, k, a)))
        return;
    const int32_t step = launch_rows(cu, a);
    for (int32_t m = 0; m < n_rows; m += step) {
        a->n_rows = n_rows - m < step ? n_rows - m : step;
        a->y = y_row(a, y, m);
        run_pass(cu, (const uint8_t *)x + m * ldx * (a->bytes ? 1 : 2), ldx, k, a);
        if (a->bytes)
            a->x_scale += a->n_rows;
    }
}

/* x and ldx as the kernels want them, in numbers of bf16 or bytes. */
static void run_rows(struct sv_cuda *cu, int32_t n_rows, const void *x, int64_t ldx, int32_t k,
                     struct sv_gemm_args *a, void *y)
{
    const bool pdl = cu->pdl;
    if (a->codes && expand_codes(cu, n_rows, k, a))
        cu->pdl = false; /* products read weights before they wait, and these have just been made */
    run_launches(cu, n_rows, x, ldx, k, a, y);
    cu->pdl = pdl;
}

static void bytes_of(struct sv_cuda *cu, const __nv_bfloat16 *x, int64_t ldx, int32_t k, int32_t n,
                     struct sv_gemm_args *a)
{
    SV_REQUIRE(sv_gemm_bytes_room(cu, n, k));
    const bool there = x == cu->bytes_of && ldx == k && k == cu->bytes_d && n <= cu->bytes_n &&
                       cu->bytes_in_groups == (bool)a->groups;
    a->x_scale = cu->gemm->bytes_scale;
    a->x_ld = cu->gemm->bytes_ld;
    if (!there && a->groups)
        sv_cuda_fp8_group_rows(cu, x, ldx, k, n, cu->gemm->bytes_x, cu->gemm->bytes_scale, a->x_ld);
    else if (!there)
        sv_cuda_fp8_rows(cu, x, ldx, k, n, cu->gemm->bytes_x, cu->gemm->bytes_scale);
}

static void run_all(struct sv_cuda *cu, int32_t n_rows, const void *x, int64_t ldx, int32_t k,
                    struct sv_gemm_args *a, void *y)
{
    SV_REQUIRE(ldx % 8 == 0 && (uintptr_t)x % 16 == 0);
    if (!a->bytes) {
        run_rows(cu, n_rows, x, ldx, k, a, y);
        return;
    }
    for (int32_t m = 0; m < n_rows; m += bytes_rows(cu)) {
        const int32_t n = n_rows - m < bytes_rows(cu) ? n_rows - m : bytes_rows(cu);
        bytes_of(cu, (const __nv_bfloat16 *)x + m * ldx, ldx, k, n, a);
        run_rows(cu, n, cu->gemm->bytes_x, sv_fp8_row_bytes(k), k, a, y_row(a, y, m));
    }
}

/* How a weight that tensor cores take lies in memory; codes by their bits, from 4 on. */
enum kind { PACKED, BYTES, W8A8, CODES4, KINDS = CODES4 + 5 };

static enum kind kind_of(const struct sv_weight *w)
{
    if (sv_cuda_is_codes(w))
        return (enum kind)(CODES4 + sv_cuda_code_bits(w) - 4);
    return sv_cuda_is_w8a8(w) ? W8A8 : sv_cuda_is_bytes(w) ? BYTES : PACKED;
}

/* Where a model has experts, few rows of an attention's products read bf16 though there is a
 * compressed copy: that kernel leaves registers and shared memory beside its thread blocks, so that
 * they begin while experts are multiplied, and a router while they run. With so few bytes this is
 * worth more than a quarter of them. */
enum { CO_RESIDENT_ROWS = 16 };

bool sv_gemm_is_co_resident(const struct sv_cuda *cu, const struct sv_weight *w, int32_t n_rows)
{
    return cu->set == SV_CUDA_SM90 && cu->lim.max_experts && n_rows <= CO_RESIDENT_ROWS &&
           w->role >= SV_ROLE_Q && w->role <= SV_ROLE_O;
}

void sv_gemm_push(struct sv_cuda *cu, struct sv_gemm_args *a)
{
    const struct sv_gemm_item *it = &a->part[0];
    /* Whole strips of 16 weight rows, of which each lane stores 16 bytes. */
    a->sends = cu->peers && a->mode == SV_GEMM_ACT && a->n_parts == 1 && it->wide &&
               it->n_out % 16 == 0 && a->ldy == it->n_out &&
               sv_cuda_join_push(cu, a->next, a->n_rows, it->n_out, &a->push);
}

/* Parts of a product of this kind that tensor cores take; false: none. */
static bool take_parts(struct sv_cuda *cu, const struct sv_p_gemm *p, enum kind kind,
                       struct sv_gemm_args *a)
{
    const bool wide = p->ldy % 8 == 0 && (uintptr_t)p->y % 16 == 0;
    *a = {};
    a->mode = p->y_f32 || cu->act == SV_F32 ? SV_GEMM_F32 : SV_GEMM_ACT;
    a->ldy = p->ldy;
    int32_t col = 0;
    for (int32_t i = 0; i < p->n_parts; i++) {
        if (takes_tensor_cores(cu, &p->parts[i].w) && kind_of(&p->parts[i].w) == kind) {
            add_part(cu, a, &p->parts[i], col, wide);
            a->co_resident =
                kind == PACKED && sv_gemm_is_co_resident(cu, &p->parts[i].w, p->n_rows);
        }
        col += p->parts[i].w.rows;
    }
    if (a->n_parts)
        set_up(cu, a, p->k);
    return a->n_parts > 0;
}

/* One row: parts in codes of one kind and packed ones, as a delta rule's input has them, in one
 * launch; false: nothing done. */
static bool run_both(struct sv_cuda *cu, const struct sv_p_gemm *p)
{
    struct sv_gemm_args packed, codes;
    if (p->n_rows != 1 || p->n_parts < 2 || cu->set != SV_CUDA_SM90 ||
        !take_parts(cu, p, PACKED, &packed))
        return false;
    for (int kind = CODES4; kind < KINDS; kind++)
        if (take_parts(cu, p, (enum kind)kind, &codes)) {
            sv_gemm_one_fn *const one = codes_sets[kind - CODES4].one;
            codes.n_rows = 1;
            codes.y = p->y;
            return packed.n_parts + codes.n_parts == p->n_parts && one &&
                   one(cu, p->x, p->k, &codes, &packed);
        }
    return false;
}

/* Parts of a product in one launch: those of this kind. */
static void run_parts(struct sv_cuda *cu, const struct sv_p_gemm *p, enum kind kind)
{
    struct sv_gemm_args a;
    if (!take_parts(cu, p, kind, &a))
        return;
    a.next = p->n_parts == 1 && p->n_rows <= SV_GEMM_SENT_ROWS ? p->push : SV_JOIN_NONE;
    run_all(cu, p->n_rows, p->x, p->ldx, p->k, &a, p->y);
}

void sv_cuda_gemm(struct sv_dev *dev, const struct sv_p_gemm *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (p->n_rows <= 0)
        return;
    SV_REQUIRE(cu->gemm && p->n_parts <= SV_GEMM_MAX_PARTS);
    int32_t col = 0;
    for (int32_t i = 0; i < p->n_parts; i++) {
        SV_REQUIRE(p->parts[i].w.cols == p->k);
        if (!takes_tensor_cores(cu, &p->parts[i].w))
            sv_gemm_plain(cu, p, i, col);
        col += p->parts[i].w.rows;
    }
    if (run_both(cu, p))
        return;
    for (int kind = 0; kind < KINDS; kind++)
        run_parts(cu, p, (enum kind)kind);
}

void sv_cuda_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (p->n_rows <= 0)
        return;
    const int32_t d = p->parts[0].w.rows;
    SV_REQUIRE(cu->gemm && p->parts[0].w.cols == p->k && p->parts[1].w.cols == p->k &&
               p->parts[1].w.rows == d);
    if (!takes_tensor_cores(cu, &p->parts[0].w) || !takes_tensor_cores(cu, &p->parts[1].w) ||
        kind_of(&p->parts[0].w) != kind_of(&p->parts[1].w)) {
        struct sv_p_gemm both = {};
        struct sv_p_act_mul act = {};
        both.n_rows = act.n_rows = p->n_rows;
        both.k = p->k;
        both.n_parts = 2;
        both.x = p->x;
        both.ldx = p->ldx;
        both.parts = p->parts;
        both.y = p->gate_up;
        both.ldy = 2 * (int64_t)d;
        sv_cuda_gemm(dev, &both);
        act.d = d;
        act.gate_up = p->gate_up;
        act.out = p->out;
        sv_cuda_act_mul(dev, &act);
        return;
    }
    struct sv_gemm_args a = {};
    a.mode = SV_GEMM_GATED;
    a.ldy = d;
    for (int i = 0; i < 2; i++)
        add_part(cu, &a, &p->parts[i], 0, d % 8 == 0 && (uintptr_t)p->out % 16 == 0);
    set_up(cu, &a, p->k);
    run_all(cu, p->n_rows, p->x, p->ldx, p->k, &a, p->out);
}

/* More rows than a pass has in one launch, which reads the weights once; false: nothing done. In 8
 * bits passes take less. */
static bool head_at_once(struct sv_cuda *cu, const __nv_bfloat16 *x, int32_t n, int32_t k,
                         struct sv_gemm_args *a)
{
    a->n_rows = n;
    return cu->set == SV_CUDA_SM90 && !a->bytes && !a->codes && n > pass_rows(cu) &&
           sv_gemm_sm90_whole(cu, x, k, k, a);
}

static void best_rows(struct sv_cuda *cu, const struct sv_p_head_argmax *p)
{
    SV_REQUIRE(cu->gemm && p->w.cols == p->k);
    const bool tensor = takes_tensor_cores(cu, &p->w);
    struct sv_gemm_args a = {};
    struct sv_gemm_part part = {};
    part.w = p->w;
    if (tensor) {
        a.mode = SV_GEMM_ARGMAX;
        add_part(cu, &a, &part, 0, false);
        set_up(cu, &a, p->k);
    }
    for (int32_t m = 0, n; m < p->n_rows; m += n) {
        n = p->n_rows - m < (int32_t)SV_GEMM_BEST_ROWS ? p->n_rows - m : (int32_t)SV_GEMM_BEST_ROWS;
        const __nv_bfloat16 *x = (const __nv_bfloat16 *)p->x + (int64_t)m * p->k;
        if (tensor && head_at_once(cu, x, n, p->k, &a)) {
            sv_gemm_best_pick(cu, p, m, n, a.n_slots);
            continue;
        }
        n = n < launch_rows(cu, &a) ? n : launch_rows(cu, &a);
        if (!tensor) {
            sv_gemm_plain_best(cu, p, m, n);
            continue;
        }
        a.n_rows = n;
        if (a.bytes)
            bytes_of(cu, x, p->k, p->k, n, &a);
        run_pass(cu, a.bytes ? (const void *)cu->gemm->bytes_x : (const void *)x,
                 a.bytes ? sv_fp8_row_bytes(p->k) : p->k, p->k, &a);
        sv_gemm_best_pick(cu, p, m, n,
                          a.split.n_units * (a.tall                    ? 12
                                             : cu->set == SV_CUDA_SM90 ? 16
                                                                       : 4));
    }
}

void sv_cuda_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    best_rows(cu, p);
    if (p->join && p->n_rows)
        sv_cuda_join_best(cu, p);
    else if (p->join)
        sv_cuda_join_empty(cu, p->join);
}
