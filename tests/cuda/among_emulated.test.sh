#!/bin/sh
# The CUDA kernels that weigh a few tokens, compiled for this CPU and run lane by lane (tests/cuda/emulated).
exec tests/cuda/emulated/run.sh tests/cuda/among_emulated.cpp src/backend/gpu/among.cu
