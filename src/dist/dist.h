/*
 * dist.h - front header of src/dist: how a model is divided among ranks, the stream of what the
 * first rank sends to the others, the life of a group of ranks, and how the processes of replicas
 * find each other.
 *
 * Called by model (shards), engine, serve (links) and cli (mpirun). Ranks are threads, or processes
 * under MPI, on one host or on several. What a device exchanges during a pass is backend/ranks.h.
 * Must not: depend on the messages' contents, or decide anything by measurements of one rank.
 */
#ifndef SV_DIST_H
#define SV_DIST_H

#include "backend/device.h"
#include "base/base.h"

/* ---------------------------------------------------------------- shard.c: what a rank has */

/* By what a model is divided; 0 where it has none. */
struct sv_shard_shape {
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t v_dim; /* numbers that a head gives; 0: head_dim */
    int32_t gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim; /* of a gated delta rule */
    int32_t intermediate, expert_intermediate, shared_intermediate;
    int32_t n_experts;
    bool by_expert;    /* they are shared out whole, else each of them is divided */
    bool whole_mixers; /* of attention: every rank has all heads */
    int32_t vocab;
    int32_t n_taps; /* numbers of a row's taps */
    /* Quantized weights that share a scale, of which no rank gets a part: outputs and inputs of
     * heads, numbers of intermediate sizes, tokens of the head. 0 and 1: none do. */
    struct {
        int32_t head_rows, head_cols, inner, vocab;
    } group;
};

/* Heads go to the ranks in order, each with its K/V head or, of a gated delta rule, value heads
 * with their key head, or, of whole mixers, all of them to each; where there are fewer K/V heads
 * than ranks, neighbours have the same one. Intermediate sizes, the vocabulary and taps are divided
 * evenly by units of 64 numbers (of whole groups in any case), or of fewer where there would not be
 * one for each. Of experts every rank has a slice of all, or all of some consecutive ones. */
struct sv_slice sv_shard_heads(const struct sv_shard_shape *s, struct sv_ranks r);
struct sv_slice sv_shard_kv_heads(const struct sv_shard_shape *s, struct sv_ranks r);
struct sv_slice sv_shard_key_heads(const struct sv_shard_shape *s, struct sv_ranks r);
struct sv_slice sv_shard_experts(const struct sv_shard_shape *s, struct sv_ranks r);
/* Of `size` numbers: an intermediate size, the taps; and of the vocabulary. */
struct sv_slice sv_shard_inner(const struct sv_shard_shape *s, int32_t size, struct sv_ranks r);
struct sv_slice sv_shard_vocab(const struct sv_shard_shape *s, struct sv_ranks r);

/* *group becomes a multiple of n as well. */
void sv_shard_bind(int32_t *group, int32_t n);
/* Refuses a number of ranks that does not fit, and names those that do. what: "target". */
int sv_shard_check(const struct sv_shard_shape *s, int32_t n, const char *what, struct sv_err *err);

enum sv_cut_axis {
    SV_CUT_NONE,  /* the rank has all of it */
    SV_CUT_ROWS,  /* these outputs; of a vector, these elements */
    SV_CUT_COLS,  /* these inputs: the ranks' products are added up */
    SV_CUT_ABSENT /* nothing: the first rank adds it for all */
};
/* Ascending ranges of the axis, one but for tensors in which several things lie behind each other:
 * queries, keys, values and gates of a gated delta rule. */
enum { SV_CUT_RANGES = 4 };
struct sv_cut {
    enum sv_cut_axis axis;
    int32_t n_ranges;
    struct sv_slice range[SV_CUT_RANGES];
};
int32_t sv_cut_size(const struct sv_cut *c); /* of all ranges */
/* A rank's part of a tensor of this role, whose rows are in the model's order. cols 0: a
 * vector of `rows` elements. Aborts for roles that only files have. */
struct sv_cut sv_shard_cut(const struct sv_shard_shape *s, enum sv_role role, int32_t rows,
                           int32_t cols, struct sv_ranks r);

/* ---------------------------------------------------------------- world.c: a group of ranks */

enum { SV_HOST_NAME = 64 }; /* bytes */
#define SV_SWAP_BYTES 256
#define SV_STREAM_LINES (1u << 15)
#define SV_STREAM_MOST (1u << 18) /* bytes of a message */

struct sv_stream {
    struct sv_count written;            /* lines */
    struct sv_count read[SV_MAX_RANKS]; /* lines that are not needed any more */
    char ring[(size_t)SV_STREAM_LINES * 64] __attribute__((aligned(64)));
};

/* What all ranks see. All bytes 0 at first. */
struct sv_world_memory {
    struct sv_failure failure;
    struct sv_progress progress[SV_MAX_RANKS];
    int64_t busy_ns[SV_MAX_RANKS]; /* host time of each on this host (sv_world_busy) */
    struct sv_count swapped[SV_MAX_RANKS], gone[SV_MAX_RANKS];
    struct sv_count changed;          /* there are changes to send to other hosts */
    int32_t pid[SV_MAX_RANKS];        /* of processes; 0: not there yet, or on another host */
    uint32_t heartbeat[SV_MAX_RANKS]; /* goes up as long as a process is not stopped */
    char swap[2][SV_MAX_RANKS][SV_SWAP_BYTES];
    struct sv_stream stream;
};

/* Each rank has one of its own. */
struct sv_world {
    struct sv_ranks ranks, here; /* of all, of those on this host */
    struct sv_world_memory *shared;
    struct sv_hosts *hosts;       /* some ranks are on other hosts; NULL: none is */
    struct sv_follower *follower; /* rank 0: (n) the threads of the others */
    bool processes;               /* the others are, */
    struct sv_world_watch *watch; /* and a thread sees when one of them ends */
    struct sv_shared memory;      /* then, of the first rank on this host */
    int64_t spin_us, timeout_us;
    uint32_t n_swaps, n_passes;
    uint32_t at; /* lines of the stream written or read */
};

struct sv_world_opts {
    int32_t n, n_threads; /* ranks, and processors that each keeps busy */
    int64_t timeout_us;   /* longest wait for a rank that should answer; < 0: none */
    bool kills; /* a process that has been stopped for so long is killed, not only while it opens */
};
int sv_world_open(struct sv_world *w, const struct sv_world_opts *o, struct sv_err *err);
/* The same among n consecutive processes that mpirun started: each of them calls it. */
int sv_world_open_mpi(struct sv_world *w, const struct sv_world_opts *o, struct sv_err *err);
/* Ranks 1.. run fn, each in a thread and with a world of its own. It ends with sv_world_leave,
 * before anything is freed that other ranks read. */
int sv_world_spawn(struct sv_world *w, void (*fn)(struct sv_world *world, void *user), void *user,
                   struct sv_err *err);
/* A rank has failed: all waits for ranks return an error. The first text is kept. */
void sv_world_fail(struct sv_world *w, const char *text);
bool sv_world_failed(const struct sv_world *w);
/* Returns once every rank has come here: all has n_bytes of each, in order. While ranks open. */
int sv_world_swap(struct sv_world *w, const void *own, size_t n_bytes, void *all,
                  struct sv_err *err);
/* The same: every rank's value becomes that of rank 0. */
int sv_world_broadcast(struct sv_world *w, void *value, size_t n_bytes, struct sv_err *err);
/* Changes in the memory are sent to other hosts at once; without this call, a little later. */
static inline void sv_world_changed(struct sv_world *w)
{
    if (w->hosts)
        sv_count_add(&w->shared->changed);
}
/* A pass is enqueued; the device has had so many joins by now. */
void sv_world_passed(struct sv_world *w, uint32_t n_joins);
/* For benchmarks: time that a rank's host has spent, and how much a rank of this host has so far.
 */
void sv_world_busy(struct sv_world *w, int64_t ns);
int64_t sv_world_busy_ns(const struct sv_world *w, int32_t rank);
/* Waits until no rank reads another one's memory any more. False: a rank does not end, and rank 0
 * must keep its memory. */
bool sv_world_leave(struct sv_world *w);
void sv_world_close(struct sv_world *w); /* rank 0 and processes, after leaving */

/* link.c: of this host; that of SALVO_HOST_NAME, by which tests play hosts. */
void sv_host_name(char name[SV_HOST_NAME]);

/* mpi.c: before anything else, and at the end of the process with its exit code. Of all processes;
 * not started by mpirun, or by itself: rank 0 of 1. */
int sv_mpi_begin(struct sv_err *err);
void sv_mpi_end(int code);
struct sv_ranks sv_mpi_ranks(void);
/* Memory of the first rank on this host that all ranks there have then; each of them calls it, of
 * r.n consecutive processes. s: the first one's to close. */
int sv_mpi_share(struct sv_shared *s, void **memory, size_t n_bytes, const int32_t *first,
                 struct sv_ranks r, struct sv_err *err);

/* Where its ranks are: the first rank on the host of each of r.n consecutive processes, each of
 * which calls it. And connections between those on different hosts. */
int sv_mpi_find_hosts(int32_t *first, struct sv_ranks r, struct sv_err *err);
int sv_mpi_link_hosts(struct sv_hosts *h, struct sv_ranks r, struct sv_err *err);

/* Process p is rank p % tp of replica p / tp. */
struct sv_placement {
    int32_t tp, dp;
    int32_t replica, rank; /* of this process */
    int32_t here, n_here;  /* replicas on this machine: those before this one, and all */
    int32_t pid0;          /* process 0, if it is on this machine; else 0 */
    bool alone;            /* all processes are on this machine */
};
/* Every process calls it. */
int sv_mpi_place(struct sv_placement *p, int32_t tp, int32_t dp, struct sv_err *err);
/* The end of a process among replicas, of which others may have ended in any way: exits with 0. */
void sv_mpi_leave(const struct sv_placement *p) __attribute__((noreturn));

/* link.c: two connections between two processes. Of replicas: process 0 and the first process of
 * another one. Of ranks on different hosts: parts of joins between all of them, and what the world
 * sends between rank 0 and the first rank of another host. */
enum { SV_LINK_WORK, SV_LINK_ASK, SV_LINK_FDS };
enum { SV_LINK_PARTS = SV_LINK_WORK, SV_LINK_WORLD = SV_LINK_ASK };
enum { SV_LINK_NONE = -1, SV_LINK_DUE = -2 }; /* in place of a descriptor; due: to be made */
struct sv_link {
    int fd[SV_LINK_FDS];
    int32_t process, pid; /* pid 0: on another machine */
    char host[SV_HOST_NAME];
};
/* link: (dp); process 0 has one to each other replica, their first processes the one of their own
 * replica, all others none. */
int sv_mpi_link(struct sv_link *link, const struct sv_placement *p, struct sv_err *err);
struct sv_processes {
    struct sv_placement place;
    struct sv_link link[SV_MAX_RANKS];
};
/* How other processes find the one that listens. */
enum { SV_LINK_ADDRESSES = 16, SV_LINK_KEY = 32 };
struct sv_link_endpoint {
    int32_t port, n_addresses;
    char address[SV_LINK_ADDRESSES][48]; /* as text */
    unsigned char key[SV_LINK_KEY];
};
/* alone: on the loopback interface, all processes being on this machine. */
int sv_link_listen(struct sv_link_endpoint *m, int *fd, bool alone, struct sv_err *err);
/* Accepts all that are due; link: (n), where the others' numbers begin at 0. Closes fd. */
int sv_link_accept(int fd, const struct sv_link_endpoint *m, struct sv_link *link, int32_t n,
                   struct sv_err *err);
/* Makes the connections of one link that are due, as number `from`. */
int sv_link_connect(const struct sv_link_endpoint *m, int32_t from, int32_t pid,
                    struct sv_link *link, struct sv_err *err);
void sv_link_close(struct sv_link *link);
/* Messages of a kind and some bytes. send: false: the other end is gone. take: waits for at most
 * timeout_us (< 0: for ever) without a byte; `to` becomes the bytes. */
enum sv_link_got { SV_LINK_MESSAGE, SV_LINK_GONE, SV_LINK_SILENT };
bool sv_link_send(int fd, uint32_t kind, const void *data, size_t n);
enum sv_link_got sv_link_take(int fd, uint32_t *kind, struct sv_buf *to, int64_t timeout_us);

/* hosts.c: ranks of one replica on several hosts. Each host has a world memory of its own, in which
 * those of the others are kept up to date. */
struct sv_relay;
struct sv_hosts {
    int32_t first[SV_MAX_RANKS];       /* of each rank: the first rank on its host */
    struct sv_link link[SV_MAX_RANKS]; /* to ranks on other hosts, by rank */
    struct sv_relay *relay[SV_MAX_RANKS];
};
/* Once w has its memory, in every process; w->hosts is the caller's. */
int sv_hosts_open(struct sv_world *w, struct sv_err *err);
void sv_hosts_close(struct sv_world *w); /* after leaving */

/* stream.c: rank 0 writes messages (kind > 0), the others read them in order. A message is made of
 * two pieces and lies in one: it may be used until done. flush: readers see what was written. */
int sv_stream_write(struct sv_world *w, uint32_t kind, const void *first, uint32_t n_first,
                    const void *rest, uint32_t n_rest, struct sv_err *err);
void sv_stream_flush(struct sv_world *w);
int sv_stream_read(struct sv_world *w, uint32_t *kind, const void **data, uint32_t *n_bytes,
                   struct sv_err *err);
void sv_stream_done(struct sv_world *w); /* with all that was read */

#endif
