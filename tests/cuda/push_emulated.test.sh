#!/bin/sh
# The ends of matrix products that send parts of joins, compiled for this CPU and run lane by lane (tests/cuda/emulated).
# timeout: 120
exec tests/cuda/emulated/run.sh tests/cuda/push_emulated.cpp
