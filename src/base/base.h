/*
 * base.h - front header of src/base: status codes and errors, allocation hooks, arenas, byte
 * buffers, files, the thread pool, log, clock, environment, random numbers, code points and
 * JSON access.
 *
 * Called by every other folder; includes none of them. Only this folder calls malloc, getenv, mmap
 * or pthread_create. It has all process-wide state: the log level and the fault-injection counters,
 * for tests and start-up and never for the step, and the table of mapped files (map.c).
 */
#ifndef SV_BASE_H
#define SV_BASE_H

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <jansson.h>

#include "base/shared.h"
#include "base/unicode.h"

/* ---------------------------------------------------------------- status and errors */

/* One list of codes; 0 is success, all others are negative. X(name, value, text) */
#define SV_STATUS_LIST(X)                                                                          \
    X(SV_OK, 0, "ok")                                                                              \
    X(SV_ENOMEM, -1, "out of memory")                                                              \
    X(SV_EIO, -2, "input/output error")                                                            \
    X(SV_EFORMAT, -3, "malformed file")                                                            \
    X(SV_EINVAL, -4, "invalid value")                                                              \
    X(SV_EMISMATCH, -5, "parts do not fit together")                                               \
    X(SV_EUNSUPPORTED, -6, "not supported")                                                        \
    X(SV_EFULL, -7, "no capacity left")                                                            \
    X(SV_EDEVICE, -8, "device error")                                                              \
    X(SV_ECANCELED, -9, "canceled")

enum sv_status {
#define X(name, value, text) name = value,
    SV_STATUS_LIST(X)
#undef X
};

/* Where and why something failed. pos is a byte offset or line number, -1 when there is none. */
struct sv_err {
    int code;
    int64_t pos;
    char msg[480];
};

const char *sv_status_name(int code);
/* Fills err (which may be NULL) and returns code, so that callers can `return sv_fail(...)`. */
int sv_fail(struct sv_err *err, int code, int64_t pos, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Adds "prefix: " to the message; keeps code and pos. Returns the code. */
int sv_err_prefix(struct sv_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A broken invariant: prints the message with file and line, then aborts. Never for invalid
 * input. */
void sv_panic_at(const char *file, int line, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
#define sv_panic(...) sv_panic_at(__FILE__, __LINE__, __VA_ARGS__)
#define SV_REQUIRE(cond) ((cond) ? (void)0 : sv_panic("broken invariant: %s", #cond))

/* ---------------------------------------------------------------- memory */

#define SV_ALIGN 64 /* bytes; a cache line and an AVX-512 vector */

/* All return NULL when memory is exhausted or a test's fault countdown has run out. Sizes of 0 give
 * a unique pointer. sv_alloc is aligned to SV_ALIGN and not cleared; sv_calloc is cleared. */
void *sv_alloc(size_t n_bytes);
void *sv_calloc(size_t count, size_t size); /* checks the product for overflow */
void *sv_realloc(void *p, size_t old_bytes, size_t new_bytes);
void sv_free(void *p);
void sv_alloc_trim(void); /* returns freed memory that the C library holds to the system */
char *sv_strdup(const char *s);
char *sv_strndup(const char *s, size_t n);

/* Test hooks. The n-th fallible call from now (1 = the next) fails; 0 switches it off. A fallible
 * call is an allocation, a file call or a device call that goes through this folder. */
void sv_fault_arm(int64_t nth);
bool sv_fault_hit(void);      /* counts one fallible call; true when this one must fail */
int64_t sv_fault_calls(void); /* calls counted since the last sv_fault_arm */
/* While the guard is set, any allocation on this thread aborts: the step must not allocate. */
void sv_alloc_guard(bool up);
int64_t sv_alloc_live(void); /* blocks allocated and not freed; 0 at the end of a clean run */

/* Bump allocator with one owner and one lifetime (model, engine, step). */
struct sv_arena {
    struct sv_arena_block *blocks;
    size_t n_bytes; /* handed out so far */
};
void sv_arena_init(struct sv_arena *a);
void sv_arena_fini(struct sv_arena *a);
void *sv_arena_alloc(struct sv_arena *a,
                     size_t n_bytes); /* SV_ALIGN-aligned, cleared; NULL: no memory */
char *sv_arena_strdup(struct sv_arena *a, const char *s);

/* Growing byte buffer. After a failed append `failed` stays set and later appends do nothing, so a
 * writer checks once at the end. data is NUL-terminated whenever it is not NULL. */
struct sv_buf {
    char *data;
    size_t len, cap;
    bool failed;
};
void sv_buf_init(struct sv_buf *b);
void sv_buf_fini(struct sv_buf *b);
void sv_buf_clear(struct sv_buf *b);
void sv_buf_append(struct sv_buf *b, const void *data, size_t n);
void sv_buf_printf(struct sv_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int sv_buf_reserve(struct sv_buf *b, size_t n_more);
/* A string literal. */
#define sv_buf_lit(b, text) sv_buf_append((b), "" text, sizeof(text) - 1)

/* ---------------------------------------------------------------- files */

/* A read-only private mapping of a whole regular file. data stays valid until sv_map_close. */
struct sv_map {
    const uint8_t *data;
    size_t n_bytes;
    char *path;
};
int sv_map_open(struct sv_map *m, const char *path, struct sv_err *err);
void sv_map_close(struct sv_map *m);
/* From now on the file may change: its pages are replaced by a copy at the same address, or, if
 * they will not be read any more (copy false), unmapped. */
int sv_map_detach(struct sv_map *m, bool copy, struct sv_err *err);
/* Compares every file that is mapped in this process with what it was when it was mapped, and calls
 * fn for each one that changed. changed: the mapped bytes may be different now; else the file was
 * replaced or deleted, which affects no mapping and is reported once. From any thread. */
typedef void (*sv_map_changed_fn)(void *user, const char *path, bool changed);
void sv_map_compare(sv_map_changed_fn fn, void *user);
/* From now on the process ends with a message and exit code 1 when the bytes of a mapped file
 * cannot be read, because it was truncated (SIGBUS). For programs: a library does not take signals.
 */
void sv_map_catch_faults(void);
/* Reads a whole regular file of at most max_bytes into buf (appended). */
int sv_file_read(struct sv_buf *buf, const char *path, size_t max_bytes, struct sv_err *err);
/* The same, also for a pipe or device: only for a path that the user gave, such as /dev/stdin. */
int sv_file_read_stream(struct sv_buf *buf, const char *path, size_t max_bytes, struct sv_err *err);
/* Reads the regular file DIR/rest. No part of rest may be ".." or a symbolic link, so the file is
 * below the directory. Messages name rest. */
int sv_file_read_below(struct sv_buf *buf, const char *dir, const char *rest, size_t max_bytes,
                       struct sv_err *err);
/* Writes to path.tmp, syncs, renames; writes directly to a pipe or device. */
int sv_file_write(const char *path, const void *data, size_t n, struct sv_err *err);
/* Whether the name exists, even as something that cannot be opened or read. */
bool sv_file_exists(const char *path);
bool sv_dir_exists(const char *path);
/* "dir/name" in a new sv_alloc string; NULL: out of memory. */
char *sv_path_join(const char *dir, const char *name);

/* ---------------------------------------------------------------- threads */

/* A pool of n threads counting the caller as thread 0. run calls fn(arg, i, n) once for each i and
 * returns when all are done. The callee divides the work over i, and must do so by (i, n) only,
 * never by timing. Which thread runs part i may change from run to run: the caller runs parts that
 * no worker has begun. Workers spin briefly and then sleep. One run at a time. */
struct sv_pool;
typedef void (*sv_pool_fn)(void *arg, int thread, int n_threads);
int sv_pool_open(struct sv_pool **pool, int n_threads, struct sv_err *err);
void sv_pool_close(struct sv_pool *pool);
void sv_pool_run(struct sv_pool *pool, sv_pool_fn fn, void *arg);
/* Barrier inside fn, for all n threads of the current run. */
void sv_pool_barrier(struct sv_pool *pool, int thread);
int sv_cpu_count(void); /* processors this process may use */

/* A pthread. */
struct sv_thread;
int sv_thread_start(struct sv_thread **t, void *(*fn)(void *), void *arg, struct sv_err *err);
void *sv_thread_join(struct sv_thread *t);

/* Communication between threads (channel.c). A queue of at most `capacity` items of item_bytes; pop
 * waits for at most wait_us (0: not at all). Any number of threads may push and pop. */
struct sv_queue;
int sv_queue_open(struct sv_queue **q, int32_t capacity, size_t item_bytes, struct sv_err *err);
void sv_queue_close(struct sv_queue *q);
bool sv_queue_push(struct sv_queue *q, const void *item); /* false: full */
bool sv_queue_pop(struct sv_queue *q, void *item, int64_t wait_us);
/* Batches of bytes for an event loop. post moves the batch's bytes and empties it (on failure,
 * which is out of memory only, the batch is unchanged); take replaces the contents of `out` by all
 * posted bytes, in order (buffers are swapped when the reader keeps up). A post makes the
 * descriptor readable when it is urgent or the quiet time is over; earlier posts wait, for at most
 * hold_us. The reader sets these times (on sv_clock_us; at first it is never quiet), and a time at
 * which it must wake in any case (INT64_MAX = none). take makes the descriptor unreadable. */
struct sv_mail;
int sv_mail_open(struct sv_mail **m, struct sv_err *err);
void sv_mail_close(struct sv_mail *m);
int sv_mail_fd(const struct sv_mail *m);
int sv_mail_post(struct sv_mail *m, struct sv_buf *batch, bool urgent);
void sv_mail_take(struct sv_mail *m, struct sv_buf *out);
void sv_mail_quiet(struct sv_mail *m, int64_t until_us, int64_t hold_us, int64_t wake_us);
/* A mutex for shared data that does not fit a cell. For short critical sections only. */
struct sv_lock;
int sv_lock_open(struct sv_lock **l, struct sv_err *err);
void sv_lock_close(struct sv_lock *l);
void sv_lock_take(struct sv_lock *l);
void sv_lock_leave(struct sv_lock *l);
/* The latest value of something, n_bytes of it; zeros until it is set. */
struct sv_cell;
int sv_cell_open(struct sv_cell **c, size_t n_bytes, struct sv_err *err);
void sv_cell_close(struct sv_cell *c);
void sv_cell_set(struct sv_cell *c, const void *value);
void sv_cell_get(struct sv_cell *c, void *value);

/* ---------------------------------------------------------------- log, clock, environment */

enum sv_log_level { SV_LOG_ERROR, SV_LOG_WARN, SV_LOG_INFO, SV_LOG_DEBUG };
void sv_log_set_level(enum sv_log_level level);
void sv_log(enum sv_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int64_t sv_clock_us(void); /* monotonic */
int64_t sv_clock_ns(void);
int64_t sv_clock_thread_ns(void);     /* processor time of the calling thread */
const char *sv_env(const char *name); /* the project's only getenv */

/* ---------------------------------------------------------------- command line */

enum sv_opt_kind { SV_OPT_FLAG, SV_OPT_INT, SV_OPT_FLOAT, SV_OPT_STRING };
/* One table drives parsing and --help. Tables end with a row whose name is NULL. */
struct sv_opt {
    const char *name; /* long name, without dashes */
    char letter;      /* short form, 0 for none */
    enum sv_opt_kind kind;
    void *value;     /* bool*, int64_t*, double* or const char**; keeps its default when absent */
    const char *arg; /* placeholder in --help, NULL for flags */
    const char *help;
};
/* Parses argv[1..]; positional arguments are moved to argv[1..*n_pos]. Returns 0, 1 when --help was
 * asked for (already printed to stdout), or a negative status with the offending option in err. */
int sv_opt_parse(const struct sv_opt *table, const char *usage, int argc, char **argv, int *n_pos,
                 struct sv_err *err);
void sv_opt_help(const struct sv_opt *table, const char *usage, FILE *out);

/* ---------------------------------------------------------------- random numbers */

/* Philox4x32-10 (Salmon et al., SC'11): a pure function of key and counter, so a draw depends on
 * (seed, position, stream) only. */
void sv_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi, uint32_t out[4]);
/* Uniform in [0, 1) with 24 random bits from one 32-bit word. */
static inline float sv_unit_float(uint32_t x)
{
    return (float)(x >> 8) * 0x1p-24f;
}
/* Small sequential generator for tests and set-up (splitmix64). */
struct sv_rng {
    uint64_t state;
};
uint64_t sv_rng_next(struct sv_rng *r);
uint32_t sv_rng_below(struct sv_rng *r, uint32_t n); /* uniform in [0, n), n > 0 */
float sv_rng_float(struct sv_rng *r);                /* uniform in [0, 1) */
float sv_rng_normal(struct sv_rng *r);               /* standard normal */

/* ---------------------------------------------------------------- JSON (jansson behind it) */

/* Parses n bytes (an object or an array); err names the byte. Depth and size limits apply. Free
 * with json_decref. Integers beyond 64 bits become reals. Strings may hold NUL characters: read
 * those with json_string_length; sv_json_str_opt refuses them. What json_dumps returns is freed
 * with sv_free. */
json_t *sv_json_parse(const char *text, size_t n, struct sv_err *err);
/* Parses a file of at most max_bytes; err names file and byte. */
json_t *sv_json_load(const char *path, size_t max_bytes, struct sv_err *err);
/* Field access with a clear error: "field 'x' is missing", "... must be an integer in [lo, hi]".
 * The _opt forms leave *out unchanged when the field is absent or null. */
int sv_json_int(const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out,
                struct sv_err *err);
int sv_json_int_opt(const json_t *obj, const char *key, int64_t lo, int64_t hi, int64_t *out,
                    struct sv_err *err);
int sv_json_num(const json_t *obj, const char *key, double lo, double hi, double *out,
                struct sv_err *err);
int sv_json_num_opt(const json_t *obj, const char *key, double lo, double hi, double *out,
                    struct sv_err *err);
int sv_json_bool_opt(const json_t *obj, const char *key, bool *out, struct sv_err *err);
int sv_json_str_opt(const json_t *obj, const char *key, const char **out, struct sv_err *err);
/* Appends text as a JSON string with quotes; invalid UTF-8 becomes U+FFFD. */
void sv_json_quote(struct sv_buf *b, const char *text, size_t n);

#endif
