/*
 * alloc.c - the project's only malloc: counted blocks, the fault countdown, the allocation guard.
 *
 * Called by everything that needs memory, including jansson (set by json.c). Every allocation is a
 * malloc of its own, so that AddressSanitizer detects each overrun. Must not: cache or pool blocks.
 */
/* posix_memalign, which takes sizes that are no multiple of the alignment; madvise */
#define _DEFAULT_SOURCE

#include "base/internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

/* From this size on, sv_calloc takes pages that the kernel clears when they are first touched. */
#define LARGE ((size_t)1 << 20)

static _Atomic int64_t live_blocks;
static _Atomic int64_t fault_calls;
static _Atomic int64_t fault_nth;
static _Thread_local bool guard_up;
static _Thread_local uint64_t n_failures;

void sv_fault_arm(int64_t nth)
{
    atomic_store(&fault_nth, nth);
    atomic_store(&fault_calls, 0);
}

bool sv_fault_hit(void)
{
    int64_t call = atomic_fetch_add(&fault_calls, 1) + 1;
    return call == atomic_load_explicit(&fault_nth, memory_order_relaxed);
}

int64_t sv_fault_calls(void)
{
    return atomic_load(&fault_calls);
}

void sv_alloc_guard(bool up)
{
    guard_up = up;
}

int64_t sv_alloc_live(void)
{
    return atomic_load(&live_blocks);
}

/* For all allocations: whether this one is allowed. Sizes above PTRDIFF_MAX break pointer
 * subtraction, so they count as out of memory. */
static bool may_allocate(size_t n_bytes)
{
    if (guard_up) {
        guard_up = false; /* the panic itself may allocate */
        sv_panic("allocation of %zu bytes while the allocation guard is up", n_bytes);
    }
    return !sv_fault_hit() && n_bytes <= PTRDIFF_MAX;
}

uint64_t sv_alloc_failures(void)
{
    return n_failures;
}

static void *count_block(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    else
        n_failures++;
    return p;
}

void *sv_alloc(size_t n_bytes)
{
    void *p = NULL;
    if (may_allocate(n_bytes) && posix_memalign(&p, SV_ALIGN, n_bytes ? n_bytes : 1) != 0)
        p = NULL; /* POSIX leaves it undefined */
    return count_block(p);
}

void *sv_alloc_small(size_t n_bytes)
{
    return count_block(may_allocate(n_bytes) ? malloc(n_bytes ? n_bytes : 1) : NULL);
}

/* Of a large block, whole pages are dropped rather than cleared: what is never touched, such as
 * most of a cache, costs neither memory nor time. */
static void clear(uint8_t *p, size_t n)
{
#ifdef __linux__
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), head = -(uintptr_t)p % page;
    if (n >= LARGE && madvise(p + head, (n - head) / page * page, MADV_DONTNEED) == 0) {
        memset(p, 0, head);
        p += n - (n - head) % page;
        n = (n - head) % page;
    }
#endif
    memset(p, 0, n);
}

void *sv_calloc(size_t count, size_t size)
{
    void *p;
    if (size && count > SIZE_MAX / size)
        return NULL;
    p = sv_alloc(count * size);
    if (p)
        clear(p, count * size);
    return p;
}

/* The C library cannot grow an aligned block in place, so this moves; hence old_bytes. */
void *sv_realloc(void *p, size_t old_bytes, size_t new_bytes)
{
    void *q = sv_alloc(new_bytes);
    if (q && p) {
        memcpy(q, p, old_bytes < new_bytes ? old_bytes : new_bytes);
        sv_free(p);
    }
    return q;
}

void sv_free(void *p)
{
    if (p) {
        atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
        free(p);
    }
}

void sv_alloc_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

char *sv_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = sv_alloc_small(len + 1);
    if (copy) {
        memcpy(copy, s, len);
        copy[len] = 0;
    }
    return copy;
}

char *sv_strdup(const char *s)
{
    return sv_strndup(s, strlen(s));
}
