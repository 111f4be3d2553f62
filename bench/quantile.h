/*
 * quantile.h - quantiles of a benchmark's samples.
 *
 * Included by the benchmarks of grammars. Must not: keep samples.
 */
#ifndef SV_BENCH_QUANTILE_H
#define SV_BENCH_QUANTILE_H

#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v (n); q from 0, the least, to 1. */
static double quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[(int)(q * (n - 1) + 0.5)];
}

#endif
