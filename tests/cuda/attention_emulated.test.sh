#!/bin/sh
# The attention kernels, compiled for this CPU and run lane by lane (tests/cuda/emulated): results and bits.
# timeout: 400
exec tests/cuda/emulated/run.sh tests/cuda/attention_emulated.cpp src/backend/cuda/attention.cu \
    src/backend/gpu/attention_portable.cu src/backend/gpu/attention_latent.cu src/backend/cuda/attention_sm90.cu \
    src/backend/cuda/attention_few_sm90.cu src/backend/cuda/attention_latent_sm90.cu src/backend/gpu/attention_plain.cu
