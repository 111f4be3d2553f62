/*
 * gemm_portable.cu - the products of gemm_portable.cuh with packed and with compressed weights, and
 * which kernel a launch takes.
 *
 * Called by gemm.cu. Few rows take compressed weights (wcomp.cuh) where there are such. Must not:
 * let n_rows decide the order of a sum.
 */
#include "backend/gpu/gemm_portable.cuh"

/* A thread block's shared memory may be small. Compressed weights may not be known. */
enum { SMALL = GPU_SMALL_SHARED, C = GPU_WCOMP };
constexpr enum form FEW = C ? COMPRESSED : PACKED;

static const struct sv_gemm_width packed[] = {
    WIDTH(8, 4, PACKED, true),
    WIDTH(8, SMALL ? 1 : 4, PACKED, SMALL),
    WIDTH(8, 2, PACKED, false),
    WIDTH(16, 2, PACKED, false),
    WIDTH(32, 2, PACKED, false),
    WIDTH(64, SMALL ? 1 : 2, PACKED, false),
    WIDTH(128, SMALL ? 1 : 2, PACKED, false),
    WIDTH(128, 1, PACKED, false),
};
static const struct sv_gemm_width wcomp[] = {
    WIDTH(8, 4, FEW, true),           WIDTH(8, C ? 4 : 2, FEW, false), WIDTH(8, 2, FEW, false),
    WIDTH(16, C ? 4 : 2, FEW, false), WIDTH(16, 2, FEW, false),
};
enum { N_PACKED = sizeof packed / sizeof *packed, N_WCOMP = sizeof wcomp / sizeof *wcomp };

static const struct sv_gemm_kind kinds[] = {{packed, N_PACKED, tile_bytes(PACKED), 0},
                                            {wcomp, N_WCOMP, tile_bytes(FEW), 0}};

/* Thread blocks on a multiprocessor, each with a KiB of the system's and the patches. */
static size_t smem_budget(const struct sv_cuda *cu)
{
    int per_sm = 0;
    if (cudaDeviceGetAttribute(&per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cu->ordinal))
        per_sm = 100 * 1024;
    const size_t own = (size_t)per_sm / GPU_BLOCKS - 1024 - (WARPS * 2 * SV_PATCH_BYTES + 64);
    return own < 112 * 1024 ? own : 112 * 1024;
}

/* A ring's stage, and what lies behind the ring for n_rows of x and units of so many tiles. */
static int stage_bytes(const struct sv_gemm_kind *t, const struct sv_gemm_width *w)
{
    return t->tile_bytes + (w->own ? 0 : w->n * 128);
}

static int behind_bytes(const struct sv_gemm_kind *t, const struct sv_gemm_width *w, int32_t n_rows,
                        int32_t tiles)
{
    return t->expanded_bytes + (w->own ? n_rows * tiles * 128 : 0);
}

/* Rounds of the ring, 0 where there is no room for what it takes to keep memory busy. */
static int rounds_fitting(const struct sv_cuda *cu, const struct sv_gemm_kind *t,
                          const struct sv_gemm_width *w, int behind)
{
    const int rounds = ((int)cu->gemm->portable_smem - behind) / (stage_bytes(t, w) * w->round);
    return rounds < (w->own ? 3 : 2) ? 0 : rounds > MAX_ROUNDS ? (int)MAX_ROUNDS : rounds;
}

/* Wide tiles may need the multiprocessor for themselves. */
static int stages_of(const struct sv_cuda *cu, const struct sv_gemm_kind *t,
                     const struct sv_gemm_width *w, int behind)
{
    const int rounds = rounds_fitting(cu, t, w, behind);
    return (rounds ? rounds : 2) * w->round;
}

/* Of those for the same rows: taken even if it does not fit twice. */
static bool is_last(const struct sv_gemm_kind *t, const struct sv_gemm_width *w)
{
    return w + 1 == t->width + t->n || w[1].n != w->n;
}

static int open_kind(struct sv_cuda *cu, const struct sv_gemm_kind *t, struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 2 * t->n && !rc; i++) {
        const struct sv_gemm_width *w = &t->width[i / 2];
        const int behind = behind_bytes(t, w, 0, 0),
                  ring = stages_of(cu, t, w, behind) * stage_bytes(t, w);
        if (is_last(t, w) || rounds_fitting(cu, t, w, behind))
            rc = sv_cuda_try(
                cudaFuncSetAttribute((const void *)w->fn[i % 2],
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     w->own ? (int)cu->gemm->portable_smem : ring + behind),
                err, "shared memory of a matrix product");
    }
    return rc;
}

int sv_gemm_portable_open(struct sv_cuda *cu, struct sv_err *err)
{
    int rc = SV_OK;
    cu->gemm->portable_smem = smem_budget(cu);
    /* Without compressed weights the second kind's kernels are those of the first. */
    for (int k = 0; k < 1 + GPU_WCOMP && !rc; k++)
        rc = open_kind(cu, &kinds[k], err);
    for (int32_t bits = 4; bits <= 8 && !rc; bits++)
        rc = open_kind(cu, sv_gemm_portable_codes(bits), err);
    return rc;
}

int32_t sv_gemm_portable_wcomp_rows(const struct sv_cuda *cu)
{
    const int32_t tune = cu->gemm->tune_wcomp, most = GPU_WCOMP ? wcomp[N_WCOMP - 1].n : 0;
    return tune && tune < most ? tune : most;
}

/* Few rows, where all parts have compressed weights. */
static bool takes_wcomp(const struct sv_cuda *cu, const struct sv_gemm_args *a)
{
    bool all = a->n_rows <= sv_gemm_portable_wcomp_rows(cu);
    for (int32_t p = 0; p < a->n_parts; p++)
        all = all && a->part[p].wcomp;
    return all;
}

/* Tiles of x that a unit has to do with, at most. */
static int32_t unit_tiles(const struct sv_split *s)
{
    const int64_t tiles = ((int64_t)s->n_blocks * s->n_k + s->n_units - 1) / s->n_units;
    return tiles < s->n_k ? (int32_t)tiles : s->n_k;
}

void sv_gemm_portable(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                      struct sv_gemm_args *a)
{
    const struct sv_gemm_kind *t =
        a->codes ? sv_gemm_portable_codes(a->codes) : &kinds[takes_wcomp(cu, a)];
    const int32_t tiles = unit_tiles(&a->split);
    const struct sv_gemm_width *w = t->width;
    /* tune_round: a benchmark's wish. */
    while (w->n < a->n_rows ||
           (!is_last(t, w) && (cu->gemm->tune_round ||
                               !rounds_fitting(cu, t, w, behind_bytes(t, w, a->n_rows, tiles)))))
        w++;
    const int behind = behind_bytes(t, w, a->n_rows, tiles);
    const int most = stages_of(cu, t, w, behind), tune = cu->gemm->tune_stages;
    struct sv_gemm_args args = *a;
    if (posts(w->n))
        args.pieces = cu->gemm->posted;
    args.n_stages = tune >= 2 * w->round && tune < most ? tune / w->round * w->round : most;
    sv_cuda_launch_in_pass(cu, "a matrix product", w->fn[a->mode == SV_GEMM_GATED],
                           dim3((unsigned)sv_split_grid(&a->split, cu->n_sms * GPU_BLOCKS)),
                           dim3(THREADS), (size_t)(args.n_stages * stage_bytes(t, w) + behind),
                           args, (const __nv_bfloat16 *)x, ldx, k);
}
