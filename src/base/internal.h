/*
 * internal.h - declarations private to src/base.
 *
 * Included only inside src/base. Must not hold anything another folder needs: that belongs in
 * base.h.
 */
#ifndef SV_BASE_INTERNAL_H
#define SV_BASE_INTERNAL_H

#include "base/base.h"

#include <sys/stat.h>

/* sv_alloc with the alignment of malloc: for strings and JSON nodes, where 64-byte blocks would
 * double the memory of a large tokenizer.json. Counted, guarded and failed exactly like sv_alloc.
 */
void *sv_alloc_small(size_t n_bytes);

/* Allocations of this thread that have failed so far. For callers of libraries that report
 * exhausted memory as something else. */
uint64_t sv_alloc_failures(void);

/* "a/b/c: No such file or directory" with the code SV_EIO. */
int sv_fail_errno(struct sv_err *err, const char *path, const char *what, int errnum);

/* True if a test makes this file call fail; errno is set then. */
bool sv_file_fault(void);
/* A descriptor for reading and the result of fstat, or a negative status. */
int sv_file_open(const char *path, bool only_regular, struct stat *st, struct sv_err *err);

#endif
