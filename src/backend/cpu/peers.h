/*
 * peers.h - windows of the ranks of one model, as join.c and wire.c see them.
 *
 * Private to both. Must not: be included elsewhere.
 */
#ifndef SV_CPU_PEERS_H
#define SV_CPU_PEERS_H

#include "backend/cpu/cpu.h"

/* Ranks are one join apart at most, so a join's data stays until all have read it. */
enum { SV_SAID = 4 };

struct sv_cpu_window {
    struct sv_count left; /* joins whose part is ready */
    struct {
        int32_t kind, n_rows;
    } said[SV_SAID];                /* of join i at i % SV_SAID */
    _Alignas(SV_ALIGN) char part[]; /* places by kind */
};

/* A part as it goes through a connection. */
struct sv_cpu_part_head {
    uint32_t join;
    int32_t kind, n_rows, zero;
    uint64_t at, n_bytes; /* in the place of its kind */
};
struct sv_cpu_way {
    struct sv_cpu_part_head head;
    char *data;
    size_t done; /* bytes of both */
};

struct sv_cpu_peers {
    struct sv_cpu_window *window[SV_MAX_RANKS]; /* own included */
    size_t at[SV_JOINS + 1];                    /* in part */
    struct sv_shared own;                       /* between processes: memory of the own window */
    const struct sv_progress *progress;
    struct sv_failure *failure;
    int64_t spin_us, timeout_us;
    uint32_t n_joins;
    /* The device has failed: windows are not read any more, as other ranks may be at any join, and
     * sums are zero. */
    bool dead;
    /* (n) of ranks on other hosts, of whose windows there are copies here; NULL: all are on this
     * one. */
    struct sv_cpu_wire {
        int fd; /* -1: on this host */
        struct sv_cpu_way out, in;
    } * wire;
};

/* What a rank leaves at a join: n_bytes in all, of which each other rank takes its rows alone where
 * these are dealt. */
struct sv_cpu_part {
    enum sv_join kind;
    int32_t n_rows;
    size_t n_bytes;
    bool dealt;
};

/* join.c: the device fails, and the failure is set for all ranks. */
void sv_cpu_peers_fail(struct sv_cpu *cpu, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether rank r's part of join i is not waited for any more: it cannot come, or has not since a
 * time. The device has failed then. */
bool sv_cpu_peers_give_up(struct sv_cpu *cpu, int32_t r, uint32_t i, const struct sv_cpu_part *own,
                          int64_t since_us);

/* wire.c: connections to ranks on other hosts (far, see sv_peers). exchange: the own part of join
 * i goes to all of them, theirs come into the copies of their windows. False: the device has
 * failed. */
int sv_cpu_wire_open(struct sv_cpu *cpu, const int *far, struct sv_err *err);
void sv_cpu_wire_close(struct sv_cpu *cpu);
bool sv_cpu_wire_exchange(struct sv_cpu *cpu, uint32_t i, const struct sv_cpu_part *own);

#endif
