/*
 * salvo_tuning.h - how a device computes: part of the public interface (salvo.h includes it), and
 * the same struct down to the backend.
 *
 * Zero is AUTO, or EXACT, everywhere. Must not: contain options of a request.
 */
#ifndef SALVO_TUNING_H
#define SALVO_TUNING_H

enum sv_toggle { SV_TOGGLE_AUTO, SV_TOGGLE_ON, SV_TOGGLE_OFF };

/* The CPU's instruction set. AUTO = the machine's best; opening fails for one that it lacks. */
enum sv_isa { SV_ISA_AUTO, SV_ISA_PLAIN, SV_ISA_AVX2, SV_ISA_AVX512, SV_ISA_AMX };

/* GPUs. PORTABLE: no instructions that only one architecture has. */
enum sv_kernels { SV_KERNELS_AUTO, SV_KERNELS_PORTABLE };

/* Quantization of activations for matrix products, in groups of 128 with a scale each
 * (docs/formats.md). INT8: the CPU. FP8: GPUs. Opening fails where the device has no such products,
 * or no weight of the model has a type for them. */
enum sv_activations { SV_ACTIVATIONS_EXACT, SV_ACTIVATIONS_INT8, SV_ACTIVATIONS_FP8 };

struct sv_tuning {
    enum sv_isa isa;
    enum sv_kernels kernels;
    /* lossless compression of bf16 matrices, for steps with few rows; the same tokens. AUTO: on a
     * GPU (an additional copy) where a quarter of the memory stays free; on the CPU (in place of
     * the original) where it is faster: the model is larger than a cache, and usual steps have few
     * rows */
    enum sv_toggle compress_weights;
    /* the draft's weights in 8 bits, with about the same acceptance and the same text. AUTO: where
     * the device supports it and gains; ON fails where it does not support it */
    enum sv_toggle draft_quant;
    /* the CPU: finds the token of greedy rows by exact bounds first, for half the head's memory
     * again; the same tokens. AUTO: where it is faster */
    enum sv_toggle screen_head;
    /* of target and draft; the text differs from EXACT's, but not with and without a draft */
    enum sv_activations activations;
    /* ranks on GPUs: two-shot all-reduce (each rank sums one share for all) for more than two
     * ranks; the same bits. AUTO: from a measured size on */
    enum sv_toggle two_shots;
};

#endif
