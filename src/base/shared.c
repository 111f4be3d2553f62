/*
 * shared.c - counters that threads and processes wait for, and memory that processes share.
 *
 * A waiter polls the counter for a while and then sleeps (futex), for a few milliseconds at a time,
 * because setting the stop word wakes no one. A waiter announces itself in n_asleep and reads the
 * value again, a writer changes the value and then reads n_asleep; all four are sequentially
 * consistent, so that one of the two sees the other. Must not: allocate, or wait without end.
 */
#define _GNU_SOURCE /* syscall, memfd_create */

#include "base/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAP_US = 5000, PAUSES_PER_LOOK = 16 };

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

uint32_t sv_count_read(const struct sv_count *c)
{
    return __atomic_load_n(&c->value, __ATOMIC_ACQUIRE);
}

static void wake(struct sv_count *c)
{
    if (__atomic_load_n(&c->n_asleep, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &c->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sv_count_set(struct sv_count *c, uint32_t value)
{
    __atomic_store_n(&c->value, value, __ATOMIC_SEQ_CST);
    wake(c);
}

void sv_count_add(struct sv_count *c)
{
    __atomic_fetch_add(&c->value, 1, __ATOMIC_SEQ_CST);
    wake(c);
}

static void nap(struct sv_count *c, uint32_t value)
{
    const struct timespec t = {.tv_nsec = NAP_US * 1000L};
    __atomic_fetch_add(&c->n_asleep, 1, __ATOMIC_SEQ_CST);
    const uint32_t now = __atomic_load_n(&c->value, __ATOMIC_SEQ_CST);
    if ((int32_t)(now - value) < 0)
        syscall(SYS_futex, &c->value, FUTEX_WAIT, now, &t, NULL, 0);
    __atomic_fetch_sub(&c->n_asleep, 1, __ATOMIC_SEQ_CST);
}

enum sv_wait sv_count_wait(struct sv_count *c, uint32_t value, const uint32_t *stop,
                           int64_t spin_us, int64_t timeout_us)
{
    int64_t begin = 0;
    for (int i = 1; (int32_t)(sv_count_read(c) - value) < 0; i++) {
        if (stop && __atomic_load_n(stop, __ATOMIC_ACQUIRE))
            return SV_WAIT_STOPPED;
        pause_cpu();
        if (i % PAUSES_PER_LOOK)
            continue;
        const int64_t now = sv_clock_us();
        begin = begin ? begin : now;
        if (timeout_us >= 0 && now - begin >= timeout_us)
            return SV_WAIT_TIMEOUT;
        if (now - begin >= spin_us) {
            nap(c, value);
            i = PAUSES_PER_LOOK - 1; /* the next iteration reads the clock too */
        }
    }
    return SV_WAIT_OK;
}

/* ---------------------------------------------------------------- memory */

static int map(void **memory, size_t n_bytes, int fd, const char *name, struct sv_err *err)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return sv_fail_errno(err, name, "cannot map", errno);
    *memory = p;
    return SV_OK;
}

/* A memfd: others open it by its descriptor. Its pages are allocated at the start, so that there is
 * no SIGBUS later. */
int sv_shared_open(struct sv_shared *s, size_t n_bytes, struct sv_err *err)
{
    *s = (struct sv_shared){.n_bytes = n_bytes, .fd = -1};
    s->fd = sv_file_fault() ? -1 : memfd_create("salvo", MFD_CLOEXEC);
    if (s->fd < 0)
        return sv_fail_errno(err, "shared memory", "cannot open", errno);
    const int code = posix_fallocate(s->fd, 0, (off_t)n_bytes);
    int rc = code ? sv_fail_errno(err, "shared memory", "cannot allocate", code)
                  : map(&s->memory, n_bytes, s->fd, "shared memory", err);
    if (rc) {
        close(s->fd);
        s->fd = -1;
        return rc;
    }
    snprintf(s->name, sizeof s->name, "/proc/%ld/fd/%d", (long)getpid(), s->fd);
    return SV_OK;
}

void sv_shared_close(struct sv_shared *s)
{
    sv_shared_unmap(s->memory, s->n_bytes);
    if (s->memory)
        close(s->fd);
    *s = (struct sv_shared){.fd = -1};
}

int sv_shared_map(void **memory, size_t n_bytes, const char *name, struct sv_err *err)
{
    *memory = NULL;
    int fd = sv_file_fault() ? -1 : open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return sv_fail_errno(err, name, "cannot open", errno);
    int rc = map(memory, n_bytes, fd, name, err);
    close(fd);
    return rc;
}

void sv_shared_unmap(void *memory, size_t n_bytes)
{
    if (memory)
        munmap(memory, n_bytes);
}
