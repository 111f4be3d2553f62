/*
 * gemm_cuda_library.h - matrix products by the vendor's library (cuBLAS), where the machine has it,
 * to be measured in the same states of the card as this project's.
 *
 * Included by gemm_cuda.cu before its layers. The library is asked for at run time; nothing else
 * needs it. Must not: check anything.
 */
#ifndef SV_BENCH_GEMM_CUDA_LIBRARY_H
#define SV_BENCH_GEMM_CUDA_LIBRARY_H

#include <dlfcn.h>

static struct {
    bool tried;
    void *handle;
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
} library;

static bool have_library(struct sv_cuda *cu)
{
    enum { ROOM = 64 << 20 };
    if (!library.tried) {
        library.tried = true;
        void *so = dlopen("libcublas.so.13", RTLD_NOW), *room = NULL;
        int (*create)(void **) = so ? (int (*)(void **))dlsym(so, "cublasCreate_v2") : NULL;
        int (*work)(void *, void *, size_t) =
            so ? (int (*)(void *, void *, size_t))dlsym(so, "cublasSetWorkspace_v2") : NULL;
        int (*stream)(void *, cudaStream_t) =
            so ? (int (*)(void *, cudaStream_t))dlsym(so, "cublasSetStream_v2") : NULL;
        library.gemm = so ? (decltype(library.gemm))dlsym(so, "cublasGemmEx") : NULL;
        if (create && work && stream && library.gemm && !create(&library.handle)) {
            OK(cudaMalloc(&room, ROOM));
            if (stream(library.handle, cu->stream) || work(library.handle, room, ROOM))
                library.handle = NULL;
        }
    }
    return library.handle != NULL;
}

/* y (n, rows) = x (n, k) times w (rows, k) turned around; what order w's numbers have does not
 * matter to time. */
static void library_gemm(int32_t n, int32_t rows, int32_t k, const bf16 *w, const bf16 *x,
                         int64_t ldx, bf16 *y)
{
    enum { TURNED = 1, BF16 = 14, SUMS_F32 = 68, ITS_CHOICE = -1 };
    const float one = 1, zero = 0;
    if (library.gemm(library.handle, TURNED, 0, rows, n, k, &one, w, BF16, k, x, BF16, (int)ldx,
                     &zero, y, BF16, rows, SUMS_F32, ITS_CHOICE)) {
        printf("the library refuses a product\n");
        exit(2);
    }
}

#endif
