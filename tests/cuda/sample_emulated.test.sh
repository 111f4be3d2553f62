#!/bin/sh
# The CUDA kernels for draws, compiled for this CPU and run lane by lane
# (tests/cuda/emulated), against the CPU backend's.
exec tests/cuda/emulated/run.sh tests/cuda/sample_emulated.cpp src/backend/gpu/sample.cu
