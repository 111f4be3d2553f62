/* cuda_fp16.h (emulated) - all in cuda_runtime.h. */
#include <cuda_runtime.h>
