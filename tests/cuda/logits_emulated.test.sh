#!/bin/sh
# The CUDA kernels for logit rules, log probabilities and history, compiled for this CPU and run lane by lane
# (tests/cuda/emulated), against the CPU backend's.
exec tests/cuda/emulated/run.sh tests/cuda/logits_emulated.cpp src/backend/gpu/logits.cu
