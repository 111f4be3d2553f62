#!/bin/bash
# The parts of scales that products of one row by NVFP4 look up, on this CPU.
set -e
tests/cuda/emulated/run.sh tests/cuda/nvfp4_emulated.cpp
