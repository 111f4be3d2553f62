/*
 * sys.c - log lines, the clock and the environment.
 *
 * Called by everything. The only getenv of the project is here. Must not: write to stdout, which
 * belongs to the generated text.
 */
#define _POSIX_C_SOURCE 200809L

#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static _Atomic int log_level = SV_LOG_INFO;

void sv_log_set_level(enum sv_log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

void sv_log(enum sv_log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"error: ", "warning: ", "", "debug: "};
    char line[1024];
    va_list ap;

    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* One call, so that lines of different threads do not mix. */
    fprintf(stderr, "salvo: %s%s\n", names[level], line);
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t sv_clock_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

int64_t sv_clock_thread_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

int64_t sv_clock_us(void)
{
    return sv_clock_ns() / 1000;
}

const char *sv_env(const char *name)
{
    return getenv(name);
}
