#!/bin/sh
# Which of AMD's chips open, and what is refused by name: host code, compiled with the emulator's headers.
exec tests/cuda/emulated/run.sh tests/hip/chip_emulated.cpp
