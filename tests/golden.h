/*
 * golden.h - reads golden files (safetensors, see tests/golden/README.md) for tests.
 *
 * Deliberately independent of src/load, so that a mistake there cannot hide itself. Aborts the test
 * on any trouble.
 */
#ifndef SV_GOLDEN_H
#define SV_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct golden {
    char *data; /* whole file */
    size_t n_bytes, base;
    void *header; /* json_t */
    void **given; /* what golden_get handed out */
    size_t n_given;
};
struct golden golden_open(const char *relative); /* below tests/golden/ */
void golden_close(struct golden *g);
bool golden_has(const struct golden *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The data of a tensor of the given kind ("F32", "I32", ...), valid until golden_close, and, in *n,
 * its number of elements. */
const void *golden_get(struct golden *g, const char *dtype, size_t *n, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *golden_meta(const struct golden *g, const char *key); /* or NULL */

/* Largest |a - b| over the largest |b|: the relative error the golden tests quote. */
double golden_rel_err(const float *a, const float *b, size_t n);

#endif
