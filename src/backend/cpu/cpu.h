/*
 * cpu.h - shared by the files of the CPU backend: the device struct, the instruction-set levels and
 * the two halves (gemm_*.c: matrix products and the head; the rest: everything row-wise and
 * attention).
 *
 * Included only inside src/backend/cpu. Acts are f32. In compute mode SV_BF16 the inputs of a
 * product with bf16 weights are rounded to bf16 (products and sums stay f32); with f16 or f32
 * weights, and always in compute mode SV_F32, inputs stay f32. Must not: allocate outside open and
 * reserve, or let a result depend on thread count, batch, row grouping or page size.
 *
 * Files that need an instruction set are named *_avx2.c, *_avx512.c, *_amx.c: the Makefile gives
 * each the matching compiler flags, and they are entered only through tables chosen by cpuid at
 * open.
 */
#ifndef SV_CPU_H
#define SV_CPU_H

#include "backend/ops_moe.h"
#include "backend/ops_tokens.h"
#include "backend/quant.h"

/* Storage of a weight; no priv: row-major in the caller's memory. */
struct sv_codes;
struct sv_screen;
struct sv_cpu_weight {
    void *mem;                /* owner of data, freed with the weight; NULL: the caller's memory */
    bool packed;              /* in the kernels' order, not row-major */
    bool wcomp;               /* compressed (wcomp.h); then packed as well */
    struct sv_codes *codes;   /* codes.h, freed with the weight; NULL: elements */
    int64_t n_bytes;          /* bytes of data that a product reads */
    struct sv_screen *screen; /* of a head, for the argmax alone (head_screen.h), or NULL */
};

static inline bool sv_cpu_is_packed(const struct sv_weight *w)
{
    return w->priv && ((const struct sv_cpu_weight *)w->priv)->packed;
}
static inline bool sv_cpu_is_wcomp(const struct sv_weight *w)
{
    return w->priv && ((const struct sv_cpu_weight *)w->priv)->wcomp;
}
static inline const struct sv_codes *sv_cpu_codes_of(const struct sv_weight *w)
{
    return w->priv ? ((const struct sv_cpu_weight *)w->priv)->codes : NULL;
}
static inline struct sv_screen *sv_cpu_screen_of(const struct sv_weight *w)
{
    return w->priv ? ((const struct sv_cpu_weight *)w->priv)->screen : NULL;
}

struct sv_cpu_gemm; /* gemm.c's own state: packed inputs, per-thread tiles */
struct sv_cpu_slab; /* weights.c's own */
struct sv_cpu_attn_lanes;
struct sv_cpu_peers; /* join.c's own */
struct sv_cpu_vec;   /* vec.h: table of row kernels for one instruction-set level */

struct sv_cpu {
    SV_DEV_HEAD; /* first: a struct sv_cpu is a struct sv_dev */
    struct sv_pool *pool;
    int n_threads;
    enum sv_isa isa; /* resolved, never AUTO */
    enum sv_dtype compute;
    bool whole;  /* weights stay exact that may be quantized */
    bool wcomp;  /* bf16 weights are compressed (wcomp.h) where possible */
    bool screen; /* heads get a screen (head_screen.h) where possible */
    bool int8;   /* activations in int8 where weights are codes (gemm_int8.h); */
    bool rounds; /* and some are */
    struct sv_dev_limits lim;
    struct sv_cpu_gemm *gemm;
    struct sv_cpu_slab *slabs; /* weights.c: packed weights, newest first */
    int64_t screen_bytes;      /* of all head screens */
    const struct sv_cpu_vec *vec;
    const struct sv_cpu_attn_lanes *attn_lanes; /* NULL: this level has no bf16 products */
    void *scratch; /* attention, sampling, context K/V: sized by reserve, laid out in cpu.c */
    struct sv_cpu_peers *peers; /* NULL: no windows */
    struct sv_err latched;      /* first device error since the last sync */
    char text[96];              /* describe() */
};

static inline struct sv_cpu *sv_cpu_of(struct sv_dev *dev)
{
    return (struct sv_cpu *)(void *)dev;
}

/* cpu.c: keeps the first device error until the next sync; callable from any worker. */
void sv_cpu_latch(struct sv_cpu *cpu, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* cpuid.c: best level of this machine; asks the kernel for AMX tile state once. */
enum sv_isa sv_cpu_best_isa(void);
bool sv_cpu_has_isa(enum sv_isa isa);
bool sv_cpu_has_avx512_bf16(void);
bool sv_cpu_has_avx512_vnni(void);
bool sv_cpu_has_avx512_vbmi2(void); /* VBMI and VBMI2 */
bool sv_cpu_has_amx_int8(void);

/* gemm.c */
int sv_cpu_gemm_open(struct sv_cpu *cpu, struct sv_err *err);
int sv_cpu_gemm_reserve(struct sv_cpu *cpu, struct sv_err *err); /* reads cpu->lim */
void sv_cpu_gemm_close(struct sv_cpu *cpu);
void sv_cpu_gemm(struct sv_dev *dev, const struct sv_p_gemm *p);
void sv_cpu_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p);
/* Same product on a list of input rows: y[i] = x[rows[i]] W^T for i < n; used by draft_context_kv
 * so that only committed rows are computed. rows is ascending. */
void sv_cpu_gemm_gather(struct sv_cpu *cpu, const struct sv_p_gemm *p, const int32_t *rows);
/* Whether bf16 weights are multiplied in packed form (weights.c makes it). */
bool sv_cpu_gemm_packs(const struct sv_cpu *cpu);
/* Whether quantized ones are multiplied as bytes. */
bool sv_cpu_gemm_bytes(const struct sv_cpu *cpu);

/* Whether products with w round their input to int8. */
bool sv_cpu_takes_int8(const struct sv_weight *w);

/* Order of compressed weights on this device's level. */
enum sv_wcomp_order {
    SV_WCOMP_NONE,  /* not at all */
    SV_WCOMP_PAIRS, /* AVX512-BF16: by pairs of k */
    SV_WCOMP_ROWS,  /* AMX: by rows */
    SV_WCOMP_QUADS  /* codes alone, for products of bytes: by fours of k */
};
enum sv_wcomp_order sv_cpu_gemm_wcomp(const struct sv_cpu *cpu);
/* The same of packed codes (codes.h); and expansion of those in the file's layout. */
enum sv_wcomp_order sv_cpu_gemm_codes(const struct sv_cpu *cpu);
sv_quant_expand_fn *sv_cpu_gemm_expand(const struct sv_cpu *cpu);
/* Largest number of rows for a head's argmax by a screen; 0: not on this level. */
int32_t sv_cpu_gemm_screen_rows(const struct sv_cpu *cpu);

extern const struct sv_moe_ops sv_cpu_moe; /* moe.c */

/* join.c: windows, and the joins of ops that end in one. */
int sv_cpu_window_open(struct sv_dev *dev, const struct sv_window_need *need,
                       struct sv_window_key *key, struct sv_err *err);
int sv_cpu_window_join(struct sv_dev *dev, const struct sv_peers *peers, struct sv_err *err);
void sv_cpu_window_close(struct sv_cpu *cpu);
void sv_cpu_gather_logits(struct sv_dev *dev, const struct sv_p_gather_logits *p);
void sv_cpu_share_rows(struct sv_dev *dev, const struct sv_p_share_rows *p);
/* Publishes rows row_index[i] (NULL: i; below 0: row 0) of x, d wide, or -0.0 for rows of other
 * ranks (NULL: none), and waits for the others'; then any thread can get row i's sum over the
 * ranks. */
void sv_cpu_join_rows(struct sv_cpu *cpu, enum sv_join kind, const float *x,
                      const int32_t *row_index, const struct sv_slice *own, int32_t n_rows,
                      int32_t d);
void sv_cpu_join_sum(const struct sv_cpu *cpu, enum sv_join kind, int32_t row, int32_t d,
                     float *sum);
/* Publishes the best logit of a row and its id (-1: none), for each row before the wait for the
 * others' (false: the device has failed); then a row's best id of all ranks, -1: none. */
void sv_cpu_join_leave_best(struct sv_cpu *cpu, enum sv_join kind, int32_t row, float x,
                            int32_t id);
bool sv_cpu_join_best(struct sv_cpu *cpu, enum sv_join kind, int32_t n_rows);
int32_t sv_cpu_join_best_of(const struct sv_cpu *cpu, enum sv_join kind, int32_t row);

/* weights.c */
int sv_cpu_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                         struct sv_err *err);
void sv_cpu_free_weight(struct sv_dev *dev, struct sv_weight *w);
int64_t sv_cpu_weight_bytes(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows);
int sv_cpu_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                         float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err);
/* Memory for data that is read like weights; NULL: none. */
void *sv_cpu_weight_take(struct sv_cpu *cpu, size_t n_bytes, struct sv_err *err);
bool sv_cpu_weight_free(struct sv_cpu *cpu, void *p); /* false: not one taken */
/* out = row of w, times scale. */
void sv_cpu_weight_row(const struct sv_cpu *cpu, const struct sv_weight *w, int32_t row, float *out,
                       float scale);

#endif
