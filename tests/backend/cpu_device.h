/*
 * cpu_device.h - a CPU device with nothing but its products, for tests that call them by
 * themselves.
 *
 * For test_gemm, test_wcomp and test_head_screen. Must not: choose kernels; the caller names the
 * isa.
 */
#ifndef TESTS_BACKEND_CPU_DEVICE_H
#define TESTS_BACKEND_CPU_DEVICE_H

#include "testing.h"

#include "backend/cpu/gemm.h"

#include <string.h>

static inline void device_open(struct sv_cpu *cpu, enum sv_isa isa, enum sv_dtype compute,
                               int n_threads, struct sv_dev_limits lim)
{
    struct sv_err err;
    memset(cpu, 0, sizeof *cpu);
    assert_int_equal(sv_pool_open(&cpu->pool, n_threads, &err), SV_OK);
    cpu->n_threads = n_threads;
    cpu->isa = isa;
    cpu->compute = compute;
    cpu->lim = lim;
    assert_int_equal(sv_cpu_gemm_open(cpu, &err), SV_OK);
    assert_int_equal(sv_cpu_gemm_reserve(cpu, &err), SV_OK);
}

static inline void device_close(struct sv_cpu *cpu)
{
    sv_cpu_gemm_close(cpu);
    sv_pool_close(cpu->pool);
}

#endif
