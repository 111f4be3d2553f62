/*
 * map.c - memory-mapped files: mapping, replacing a mapping by a copy, files that change while they
 * are mapped.
 *
 * Called by load and text (open, close, detach), by the server, which compares, and by cli, which
 * has the SIGBUS handler installed. All mappings of files are in one table of the process: a
 * signal handler gets an address and nothing else, and a change of a file is seen from its name
 * alone. A lock keeps open, close and compare apart; the handler takes no lock: it reads only
 * begin, n_bytes and path, begin is written last when a slot is filled and first when it is
 * cleared. Must not: keep a descriptor, or call anything in the handler that is not
 * async-signal-safe.
 */
#define _GNU_SOURCE /* mremap */

#include "base/internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_SLOTS 4096 /* files that are mapped at once */

struct slot {
    _Atomic(const uint8_t *) begin; /* NULL: free */
    _Atomic size_t n_bytes;
    _Atomic(const char *) path; /* the sv_map's */
    struct stat was;            /* the file as it was mapped */
    bool replaced;              /* another file has its name; reported already */
};

static struct slot table[N_SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- the table */

static int enter(const struct sv_map *m, const struct stat *st, struct sv_err *err)
{
    struct slot *s = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_SLOTS && !s; i++)
        if (!atomic_load(&table[i].begin))
            s = &table[i];
    if (s) {
        s->was = *st;
        s->replaced = false;
        atomic_store(&s->path, m->path);
        atomic_store(&s->n_bytes, m->n_bytes);
        atomic_store(&s->begin, m->data);
    }
    pthread_mutex_unlock(&lock);
    return s ? SV_OK
             : sv_fail(err, SV_EFULL, -1, "%s: more than %d files are mapped", m->path, N_SLOTS);
}

/* Call with the lock held. NULL: detached. */
static struct slot *slot_of(const struct sv_map *m)
{
    for (int i = 0; i < N_SLOTS; i++)
        if (atomic_load(&table[i].begin) == m->data)
            return &table[i];
    return NULL;
}

static void leave(const struct sv_map *m)
{
    pthread_mutex_lock(&lock);
    struct slot *s = slot_of(m);
    if (s)
        atomic_store(&s->begin, NULL);
    pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- mapping */

int sv_map_open(struct sv_map *m, const char *path, struct sv_err *err)
{
    static const uint8_t empty[1];
    struct stat st;
    int status = SV_OK;
    int fd = sv_file_open(path, true, &st, err);

    memset(m, 0, sizeof *m);
    if (fd < 0)
        return fd;
    m->data = empty; /* mmap refuses a length of 0 */
    m->path = sv_strdup(path);
    if (!m->path) {
        status = sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
    } else if (st.st_size) {
        const size_t n = (size_t)st.st_size;
        void *p = sv_file_fault() ? MAP_FAILED : mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            status = sv_fail_errno(err, path, "cannot map", errno);
        } else {
            m->data = p;
            m->n_bytes = n;
            status = enter(m, &st, err);
        }
    }
    close(fd);
    if (status != SV_OK)
        sv_map_close(m);
    return status;
}

void sv_map_close(struct sv_map *m)
{
    if (m->n_bytes) {
        leave(m);
        munmap((void *)(uintptr_t)m->data, m->n_bytes);
    }
    sv_free(m->path);
    memset(m, 0, sizeof *m);
}

/* ---------------------------------------------------------------- files that change */

static bool same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Whether the bytes of a file may have changed between two stats. mtime can be set back (rsync
 * --times); ctime cannot, but new permissions, owners and links change it too. */
static bool content_changed(const struct stat *a, const struct stat *b)
{
    return a->st_size != b->st_size || !same_time(&a->st_mtim, &b->st_mtim) ||
           (!same_time(&a->st_ctim, &b->st_ctim) && a->st_mode == b->st_mode &&
            a->st_uid == b->st_uid && a->st_gid == b->st_gid && a->st_nlink == b->st_nlink);
}

void sv_map_compare(sv_map_changed_fn fn, void *user)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_SLOTS; i++) {
        struct slot *s = &table[i];
        const char *path = atomic_load(&s->path);
        struct stat now;
        if (!atomic_load(&s->begin))
            continue;
        const bool there = stat(path, &now) == 0;
        if (!there && errno != ENOENT && errno != ENOTDIR)
            continue;
        if (!there || now.st_dev != s->was.st_dev || now.st_ino != s->was.st_ino) {
            if (!s->replaced)
                fn(user, path, false);
            s->replaced = true;
            continue;
        }
        if (content_changed(&s->was, &now))
            fn(user, path, true);
        s->was = now;
        s->replaced = false;
    }
    pthread_mutex_unlock(&lock);
}

static int copy_to(void *to, const struct sv_map *m, struct sv_err *err)
{
    struct stat now, was;

    memcpy(to, m->data, m->n_bytes);
    pthread_mutex_lock(&lock);
    struct slot *s = slot_of(m);
    was = s->was;
    pthread_mutex_unlock(&lock);
    if (stat(m->path, &now) == 0 && now.st_dev == was.st_dev && now.st_ino == was.st_ino &&
        content_changed(&was, &now))
        return sv_fail(err, SV_EIO, -1, "%s: the file was changed while it was read", m->path);
    if (sv_file_fault() || mprotect(to, m->n_bytes, PROT_READ))
        return sv_fail_errno(err, m->path, "cannot protect the copy", errno);
    return SV_OK;
}

int sv_map_detach(struct sv_map *m, bool copy, struct sv_err *err)
{
    int rc = SV_OK;
    void *p;

    if (!m->n_bytes)
        return SV_OK;
    p = sv_file_fault() ? MAP_FAILED
                        : mmap(NULL, m->n_bytes, copy ? PROT_READ | PROT_WRITE : PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return sv_fail(err, SV_ENOMEM, -1, "%s: no memory for a copy of %zu bytes", m->path,
                       m->n_bytes);
    if (copy)
        rc = copy_to(p, m, err);
    if (!rc) {
        leave(m);
        if (mremap(p, m->n_bytes, m->n_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                   (void *)(uintptr_t)m->data) != MAP_FAILED)
            return SV_OK;
        rc = sv_fail_errno(err, m->path, "cannot replace the mapping", errno);
    }
    munmap(p, m->n_bytes);
    return rc;
}

/* ---------------------------------------------------------------- SIGBUS */

static size_t put(char *to, size_t at, size_t cap, const char *text)
{
    while (*text && at < cap)
        to[at++] = *text++;
    return at;
}

/* The kernel raises SIGBUS for a page of a mapping that is beyond the file's end, or that cannot be
 * read. Any other SIGBUS gets the default action. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    const uint8_t *at = info->si_addr;
    char text[4400];
    struct stat now;

    (void)context;
    for (int i = 0; i < N_SLOTS && info->si_code == BUS_ADRERR; i++) {
        const uint8_t *begin = atomic_load(&table[i].begin);
        const size_t n_bytes = atomic_load(&table[i].n_bytes);
        if (!begin || at < begin || at >= begin + n_bytes)
            continue;
        const char *path = atomic_load(&table[i].path);
        const bool whole = stat(path, &now) == 0 && (size_t)now.st_size >= n_bytes;
        size_t n = put(text, 0, sizeof text - 1,
                       whole ? "salvo: error: a mapped model file cannot be read: "
                             : "salvo: error: a model file was truncated while mapped: ");
        n = put(text, n, sizeof text - 1, path);
        text[n++] = '\n';
        if (write(STDERR_FILENO, text, n) < 0)
            _exit(1);
        _exit(1);
    }
    signal(sig, SIG_DFL); /* the instruction is run again, and faults again */
}

void sv_map_catch_faults(void)
{
    struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, NULL);
}
