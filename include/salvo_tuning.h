/*
 * salvo_tuning.h - how a device computes: part of the public interface (salvo.h includes it), and
 * the same struct down to the backend.
 *
 * Zero is AUTO, or EXACT, everywhere. Must not: hold anything that a request could ask for.
 */
#ifndef SALVO_TUNING_H
#define SALVO_TUNING_H

enum sv_toggle { SV_TOGGLE_AUTO, SV_TOGGLE_ON, SV_TOGGLE_OFF };

/* The CPU's instruction set. AUTO = the best of this machine; opening fails for one that it lacks.
 */
enum sv_isa { SV_ISA_AUTO, SV_ISA_PLAIN, SV_ISA_AVX2, SV_ISA_AVX512, SV_ISA_AMX };

/* GPUs. PORTABLE: no instructions of one chip alone. */
enum sv_kernels { SV_KERNELS_AUTO, SV_KERNELS_PORTABLE };

/* What products take of activations, by groups of 128 of a row with a scale each (docs/formats.md).
 * INT8: the CPU. FP8: GPUs. Opening fails where the device has no such products, or no weight of
 * the model takes part in one. */
enum sv_activations { SV_ACTIVATIONS_EXACT, SV_ACTIVATIONS_INT8, SV_ACTIVATIONS_FP8 };

struct sv_tuning {
    enum sv_isa isa;
    enum sv_kernels kernels;
    /* bf16 matrices in fewer bits, without loss, for steps with few rows; the same tokens. AUTO: on
     * a GPU (a copy) where it takes at most 15 % of the memory; on the CPU (instead) where it is
     * faster: the model is larger than a cache, and a step's usual rows are few */
    enum sv_toggle compress_weights;
    /* the draft's weights in 8 bits, which costs the draft about nothing and the text nothing.
     * AUTO: where the device can and gains; ON fails where it cannot */
    enum sv_toggle draft_quant;
    /* the CPU: the token of greedy rows from exact bounds first, which costs half the head's memory
     * again; the same tokens. AUTO: where it is faster */
    enum sv_toggle screen_head;
    /* of target and draft; another text than EXACT has, the same with and without a draft */
    enum sv_activations activations;
    /* ranks on GPUs: sums over more than two ranks in two shots, each of which one rank adds up for
     * all; the same bits. AUTO: from a measured size on */
    enum sv_toggle two_shots;
};

#endif
