#!/bin/bash
# What codes_host.cu makes of int8 in groups of 32, on this CPU.
set -e
tests/cuda/emulated/run.sh tests/cuda/codes_host_emulated.cpp src/backend/cuda/codes_host.cu
