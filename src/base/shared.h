/*
 * shared.h - counters that threads of one process, or processes that share memory, wait for.
 *
 * Part of base.h, which includes it. Called by the CPU backend (parts of sums) and dist (plans).
 * Every wait ends: with the count, with the stop word or with the time. Must not: know what is
 * counted.
 */
#ifndef SV_BASE_SHARED_H
#define SV_BASE_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One thread counts up, any number wait, also in other processes that map the same memory. All
 * bytes 0: nothing was counted. A cache line of its own, as it is watched while others write. */
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
/* Waits until the count has reached `value`, counting modulo 2^32. Watches it for spin_us, then
 * sleeps; looks at *stop (NULL: there is none) every few milliseconds at least. timeout_us < 0: no
 * limit. */
enum sv_wait sv_count_wait(struct sv_count *c, uint32_t value, const uint32_t *stop,
                           int64_t spin_us, int64_t timeout_us);

#endif
