#!/bin/sh
# The CUDA kernels on ids and accept lengths, compiled for this CPU and run lane by lane (tests/cuda/emulated).
exec tests/cuda/emulated/run.sh tests/cuda/ids_emulated.cpp src/backend/gpu/ids.cu
