/*
 * fenced.h - memory that ends at an inaccessible page, as mapped weight files do.
 *
 * For the tests of products and of compressed weights. An includer defines _DEFAULT_SOURCE first
 * (MAP_ANONYMOUS). Must not: come from the arena or from malloc, whose neighbours can be read
 * unnoticed.
 */
#ifndef TESTS_BACKEND_FENCED_H
#define TESTS_BACKEND_FENCED_H

#include "testing.h"

#include <sys/mman.h>
#include <unistd.h>

/* Memory whose last byte is the last of a page, with an untouchable page behind it. */
struct fenced {
    uint8_t *base, *p;
    size_t mapped;
};

static inline void *fenced_open(struct fenced *f, size_t n_bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (n_bytes + page - 1) / page * page;
    f->mapped = body + page;
    f->base = mmap(NULL, f->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f->base != MAP_FAILED);
    assert_int_equal(mprotect(f->base + body, page, PROT_NONE), 0);
    f->p = f->base + body - n_bytes;
    return f->p;
}

static inline void fenced_close(struct fenced *f)
{
    munmap(f->base, f->mapped);
}

#endif
