#!/bin/sh
# The waits of the CUDA backend, compiled for this CPU, with a library that does not answer (tests/cuda/emulated).
exec tests/cuda/emulated/run.sh tests/cuda/watch_emulated.cpp
