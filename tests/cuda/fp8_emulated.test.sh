#!/bin/sh
# The CUDA kernels that turn bf16 into 8 bits, compiled for this CPU and run lane by lane (tests/cuda/emulated), against
# the definition.
exec tests/cuda/emulated/run.sh tests/cuda/fp8_emulated.cpp src/backend/cuda/fp8_sm90.cu
