/*
 * fp8.h - matrices of 8 bits (fp8.cuh) on a GPU: what fp8_sm90.cu makes, and the products that read
 * them.
 *
 * Part of gemm.h. Two kinds: a draft's weights, quantized when they are loaded, with a scale for
 * each row of weights and of x; and a file's weights in FP8 with activations in fp8
 * (docs/formats.md), with scales for groups of 128 columns. Must not: be included outside
 * src/backend/cuda and its bench and tests.
 */
#ifndef SV_CUDA_FP8_H
#define SV_CUDA_FP8_H

#include "backend/cuda/cuda.h"

struct sv_gemm_args;

/* bf16 rows, row-major in device memory, into 8 bits. Of a matrix of weights n_rows from row0 on, a
 * multiple of 64; or rows of x, sv_fp8_row_bytes(k) apart, and their scales. All enqueue. */
void sv_cuda_fp8_pack(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows,
                      int32_t rows, int32_t cols, void *dst);
void sv_cuda_fp8_rows(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, int32_t n_rows,
                      void *to, float *scales);
/* The same of x in groups, scales (tiles of k, ld_scales); and codes of a file, with f32 scales for
 * each row and 64 columns, into tiles. */
void sv_cuda_fp8_group_rows(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                            int32_t n_rows, void *to, float *scales, int32_t ld_scales);
void sv_cuda_fp8_group_pack(struct sv_cuda *cu, const void *src, const void *words, int32_t row0,
                            int32_t n_rows, int32_t rows, int32_t cols, void *dst);

/* gemm_fp8_sm90.cu: as gemm_sm90.cu's (gemm.h), of a draft's weights. Bits of their own. */
int sv_gemm_fp8_open(struct sv_cuda *cu, struct sv_err *err);
void sv_gemm_fp8(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, struct sv_gemm_args *a);
bool sv_gemm_fp8_halves(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                        struct sv_gemm_args *a);
bool sv_gemm_fp8_whole(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                       struct sv_gemm_args *a);
/* gemm_w8a8_sm90.cu: likewise, of scales of groups, for up to SV_GEMM_CODES_PASS rows at once. */
int sv_gemm_w8a8_open(struct sv_cuda *cu, struct sv_err *err);
void sv_gemm_w8a8(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                  struct sv_gemm_args *a);
bool sv_gemm_w8a8_whole(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                        struct sv_gemm_args *a);

#endif
