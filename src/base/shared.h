/*
 * shared.h - counters that threads of one process, or processes that share memory, wait for; and
 * memory that processes share.
 *
 * Part of base.h, which includes it. Called by the CPU backend (parts of sums) and dist (plans).
 * Every wait ends: by the count, the stop word or the timeout. Must not: interpret the counts.
 */
#ifndef SV_BASE_SHARED_H
#define SV_BASE_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sv_err;

/* One thread counts up, any number wait, also in other processes that map the same memory. All
 * bytes 0: count 0. In a cache line of its own, as waiters poll it. */
struct sv_count {
    uint32_t value;
    uint32_t n_asleep;
} __attribute__((aligned(64)));

enum sv_wait {
    SV_WAIT_OK,      /* the count is reached: what was written before it was set can be read */
    SV_WAIT_STOPPED, /* the stop word is not 0 */
    SV_WAIT_TIMEOUT
};

uint32_t sv_count_read(const struct sv_count *c);
void sv_count_set(struct sv_count *c, uint32_t value);
void sv_count_add(struct sv_count *c); /* one more; from any thread */
/* Waits until the count has reached `value`, counting modulo 2^32. Polls for spin_us, then sleeps;
 * reads *stop (NULL: none) at least every few milliseconds. timeout_us < 0: no limit. */
enum sv_wait sv_count_wait(struct sv_count *c, uint32_t value, const uint32_t *stop,
                           int64_t spin_us, int64_t timeout_us);

/* Cleared memory that other processes of this user on this machine can map by its name for as long
 * as it is open here. It disappears when the processes end. */
struct sv_shared {
    void *memory;
    size_t n_bytes;
    int fd;
    char name[48];
};
int sv_shared_open(struct sv_shared *s, size_t n_bytes, struct sv_err *err);
void sv_shared_close(struct sv_shared *s);
int sv_shared_map(void **memory, size_t n_bytes, const char *name, struct sv_err *err);
void sv_shared_unmap(void *memory, size_t n_bytes); /* NULL is fine */

#endif
