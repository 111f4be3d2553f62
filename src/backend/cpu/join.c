/*
 * join.c - joins of the ranks of one model: windows in shared memory, the wait for the others'
 * parts, and the sums in rank order. Parts of ranks on other hosts come by wire.c.
 *
 * Entered through the backend table (windows, gather_logits, share_rows) and by norm.c,
 * context_kv.c and gemm.c, whose ops end in a join. A rank copies its part into its own window,
 * increments its count, waits for the others' counts and reads their windows: ranks.h says why a
 * place may be reused then. A failed wait is the device's error and is reported to all ranks, and
 * no later join waits or uses a window. Must not: add in another order than that of ranks, or
 * return before every rank's part is there.
 */
#include "backend/cpu/peers.h"
#include "backend/cpu/vec.h"

#include <string.h>

enum { LOOK_US = 20000 };

struct key {
    struct sv_cpu_window *window; /* in the process that made it */
    char name[48];                /* for others; empty: ranks are threads */
    uint32_t instructions;        /* what the bits of its parts depend on */
};

static size_t align_up(size_t n)
{
    return (n + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
}

static size_t window_bytes(const struct sv_cpu_peers *p)
{
    return sizeof(struct sv_cpu_window) + p->at[SV_JOINS];
}

/* Ranks on different hosts may have different processors; products differ in low bits then, and
 * what each rank computes of the whole stream would. */
static uint32_t instructions(const struct sv_cpu *cpu)
{
    return (uint32_t)cpu->isa | (uint32_t)sv_cpu_has_avx512_bf16() << 8 |
           (uint32_t)sv_cpu_has_avx512_vnni() << 9 | (uint32_t)sv_cpu_has_amx_int8() << 10;
}

int sv_cpu_window_open(struct sv_dev *dev, const struct sv_window_need *need,
                       struct sv_window_key *key, struct sv_err *err)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct sv_cpu_peers *p = sv_calloc(1, sizeof *p);
    SV_REQUIRE(!cpu->peers);
    cpu->peers = p;
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "table of ranks");
    for (int k = 0; k < SV_JOINS; k++)
        p->at[k + 1] = p->at[k] + align_up(need->n_bytes[k]);
    int rc = need->processes ? sv_shared_open(&p->own, window_bytes(p), err) : SV_OK;
    if (rc)
        return rc;
    struct key made = {.window = need->processes ? p->own.memory : sv_calloc(1, window_bytes(p))};
    if (!made.window)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for a window of %zu bytes", window_bytes(p));
    p->window[cpu->ranks.rank] = made.window;
    memcpy(made.name, p->own.name, sizeof made.name);
    made.instructions = instructions(cpu);
    memset(key, 0, sizeof *key);
    memcpy(key->bytes, &made, sizeof made);
    return SV_OK;
}

int sv_cpu_window_join(struct sv_dev *dev, const struct sv_peers *peers, struct sv_err *err)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct sv_cpu_peers *p = cpu->peers;
    if (peers->far && sv_cpu_wire_open(cpu, peers->far, err))
        return SV_ENOMEM;
    for (int32_t r = 0; r < cpu->ranks.n; r++) {
        struct key key;
        void *window;
        memcpy(&key, peers->key[r].bytes, sizeof key);
        if (key.instructions != instructions(cpu))
            return sv_fail(err, SV_EMISMATCH, -1,
                           "ranks %d and %d are on processors with different instructions: their "
                           "numbers would differ in low bits; --isa avx2 is the same on both",
                           r, cpu->ranks.rank);
        if (p->window[r]) /* the own one, and copies of those on other hosts */
            continue;
        window = key.window;
        if (key.name[0] && sv_shared_map(&window, window_bytes(p), key.name, err))
            return SV_EIO;
        p->window[r] = window;
    }
    p->progress = peers->progress;
    p->failure = peers->failure;
    p->spin_us = peers->spin_us;
    p->timeout_us = peers->timeout_us;
    return SV_OK;
}

void sv_cpu_window_close(struct sv_cpu *cpu)
{
    struct sv_cpu_peers *p = cpu->peers;
    if (!p)
        return;
    sv_cpu_wire_close(cpu);
    for (int32_t r = 0; p->own.memory && r < cpu->ranks.n; r++)
        if (r != cpu->ranks.rank)
            sv_shared_unmap(p->window[r], window_bytes(p));
    if (p->own.memory)
        sv_shared_close(&p->own);
    else
        sv_free(p->window[cpu->ranks.rank]);
    sv_free(p);
}

/* ---------------------------------------------------------------- meeting */

void sv_cpu_peers_fail(struct sv_cpu *cpu, const char *fmt, ...)
{
    char text[sizeof cpu->peers->failure->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cpu->peers->dead = true;
    sv_cpu_latch(cpu, "%s", text);
    sv_failure_set(cpu->peers->failure, cpu->ranks.rank, text);
}

/* Whether rank r, with its part of join i ready, is at the same join as this rank. */
static bool same(struct sv_cpu *cpu, int32_t r, uint32_t i, int32_t kind, int32_t n_rows)
{
    const struct sv_cpu_window *w = cpu->peers->window[r];
    const int32_t their_kind = w->said[i % SV_SAID].kind, their_rows = w->said[i % SV_SAID].n_rows;
    if (their_kind == kind && their_rows == n_rows)
        return true;
    sv_cpu_peers_fail(
        cpu,
        "ranks %d and %d are not in step: join %u is of %s and %d rows on the one, of %s and %d "
        "rows on the other",
        cpu->ranks.rank, r, i + 1, sv_join_name((enum sv_join)kind), n_rows,
        sv_join_name((enum sv_join)their_kind), their_rows);
    return false;
}

static uint64_t progress_of(const struct sv_cpu_peers *p, int32_t r)
{
    return __atomic_load_n(&p->progress[r].passes_joins, __ATOMIC_ACQUIRE);
}

/* Whether rank r has ended the pass that this rank is in, without a join number i in it. */
static bool passed(struct sv_cpu *cpu, int32_t r, uint32_t i)
{
    const uint64_t own = progress_of(cpu->peers, cpu->ranks.rank),
                   theirs = progress_of(cpu->peers, r);
    if ((int32_t)((uint32_t)(theirs >> 32) - (uint32_t)(own >> 32)) <= 0 ||
        (int32_t)((uint32_t)theirs - i) > 0)
        return false;
    sv_cpu_peers_fail(
        cpu,
        "ranks %d and %d are not in step: pass %u has ended after join %u on rank %d, and rank %d "
        "is at join %u",
        cpu->ranks.rank, r, (uint32_t)(theirs >> 32), (uint32_t)theirs, r, cpu->ranks.rank, i + 1);
    return true;
}

bool sv_cpu_peers_give_up(struct sv_cpu *cpu, int32_t r, uint32_t i, const struct sv_cpu_part *own,
                          int64_t since_us)
{
    struct sv_cpu_peers *p = cpu->peers;
    if (__atomic_load_n(&p->failure->stop, __ATOMIC_ACQUIRE)) {
        p->dead = true;
        sv_cpu_latch(cpu, "rank %d failed: %s", p->failure->rank, p->failure->text);
        return true;
    }
    if (passed(cpu, r, i))
        return true;
    if (p->timeout_us < 0 || sv_clock_us() - since_us < p->timeout_us)
        return false;
    sv_cpu_peers_fail(cpu,
                      "no answer from rank %d for %lld ms: rank %d is at join %u (%s, %d rows), "
                      "rank %d has come to join %u",
                      r, (long long)(p->timeout_us / 1000), cpu->ranks.rank, i + 1,
                      sv_join_name(own->kind), own->n_rows, r, sv_count_read(&p->window[r]->left));
    return true;
}

/* Waits for rank r's part of join i. Checks at times whether it can still come. */
static bool await(struct sv_cpu *cpu, int32_t r, uint32_t i, const struct sv_cpu_part *own)
{
    struct sv_cpu_peers *p = cpu->peers;
    const int64_t begin = sv_clock_us();
    while (sv_count_wait(&p->window[r]->left, i + 1, &p->failure->stop, p->spin_us, LOOK_US))
        if (sv_cpu_peers_give_up(cpu, r, i, own, begin))
            return false;
    return same(cpu, r, i, own->kind, own->n_rows);
}

static bool meet(struct sv_cpu *cpu, struct sv_cpu_part part)
{
    struct sv_cpu_peers *p = cpu->peers;
    struct sv_cpu_window *own = p->window[cpu->ranks.rank];
    const uint32_t i = p->n_joins++;
    if (p->dead)
        return false;
    own->said[i % SV_SAID].kind = part.kind;
    own->said[i % SV_SAID].n_rows = part.n_rows;
    sv_count_set(&own->left, i + 1);
    if (p->wire && !sv_cpu_wire_exchange(cpu, i, &part))
        return false;
    for (int32_t r = 0; r < cpu->ranks.n; r++)
        if (r != cpu->ranks.rank && !await(cpu, r, i, &part))
            return false;
    return true;
}

/* Rank r's part of a join. */
static void *part_of(const struct sv_cpu *cpu, int32_t r, enum sv_join kind, size_t n_bytes)
{
    const struct sv_cpu_peers *p = cpu->peers;
    SV_REQUIRE(p && n_bytes <= p->at[kind + 1] - p->at[kind]);
    return p->window[r]->part + p->at[kind];
}

/* ---------------------------------------------------------------- sums */

struct leave_job {
    float *to;
    const float *x;
    const int32_t *row_index;
    const struct sv_slice *own; /* rows of x; NULL: all */
    int32_t n_rows, d;
};

static void leave_rows(void *arg, int thread, int n)
{
    const struct leave_job *j = arg;
    int32_t begin, end;
    sv_cpu_share(j->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        const int64_t row = j->own                ? i - j->own->first
                            : !j->row_index       ? i
                            : j->row_index[i] < 0 ? 0
                                                  : j->row_index[i];
        float *to = j->to + (int64_t)i * j->d;
        if (!j->own || (row >= 0 && row < j->own->n))
            memcpy(to, j->x + row * j->d, (size_t)j->d * sizeof(float));
        else
            for (int32_t k = 0; k < j->d; k++)
                to[k] = -0.0f; /* 0 would make +0 of another rank's -0 */
    }
}

void sv_cpu_join_rows(struct sv_cpu *cpu, enum sv_join kind, const float *x,
                      const int32_t *row_index, const struct sv_slice *own, int32_t n_rows,
                      int32_t d)
{
    const size_t n_bytes = (size_t)n_rows * (size_t)d * sizeof(float);
    struct leave_job job = {
        part_of(cpu, cpu->ranks.rank, kind, n_bytes), x, row_index, own, n_rows, d};
    if (cpu->peers->dead)
        return;
    sv_cpu_run(cpu, leave_rows, &job, (int64_t)n_rows * (10 + d / 16));
    meet(cpu, (struct sv_cpu_part){kind, n_rows, n_bytes, false});
}

void sv_cpu_join_sum(const struct sv_cpu *cpu, enum sv_join kind, int32_t row, int32_t d,
                     float *sum)
{
    const size_t at = (size_t)row * (size_t)d, end = at + (size_t)d;
    if (cpu->peers->dead) {
        memset(sum, 0, (size_t)d * sizeof *sum);
        return;
    }
    const float *first = (const float *)part_of(cpu, 0, kind, end * sizeof *first) + at;
    memcpy(sum, first, (size_t)d * sizeof *sum);
    for (int32_t r = 1; r < cpu->ranks.n; r++) {
        const float *part = (const float *)part_of(cpu, r, kind, end * sizeof *part) + at;
        for (int32_t k = 0; k < d; k++)
            sum[k] += part[k];
    }
}

/* ---------------------------------------------------------------- best tokens */

/* Ordered as the numbers, both zeros equal, the lowest id largest among equals. 0: no number. */
static uint64_t key_of(float x, int32_t id)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t) ~(uint32_t)id;
}

void sv_cpu_join_leave_best(struct sv_cpu *cpu, enum sv_join kind, int32_t row, float x, int32_t id)
{
    const size_t at = (size_t)row;
    uint64_t *to = part_of(cpu, cpu->ranks.rank, kind, (at + 1) * sizeof *to);
    if (!cpu->peers->dead)
        to[at] = id < 0 ? 0 : key_of(x, id);
}

bool sv_cpu_join_best(struct sv_cpu *cpu, enum sv_join kind, int32_t n_rows)
{
    return meet(cpu, (struct sv_cpu_part){kind, n_rows, (size_t)n_rows * sizeof(uint64_t), false});
}

int32_t sv_cpu_join_best_of(const struct sv_cpu *cpu, enum sv_join kind, int32_t row)
{
    const size_t at = (size_t)row;
    uint64_t best = 0;
    for (int32_t r = 0; r < cpu->ranks.n; r++) {
        const uint64_t *part = part_of(cpu, r, kind, (at + 1) * sizeof *part);
        best = part[at] > best ? part[at] : best;
    }
    return best ? (int32_t) ~(uint32_t)best : -1;
}

/* ---------------------------------------------------------------- whole rows of logits */

struct gather_job {
    const struct sv_cpu *cpu;
    const struct sv_p_gather_logits *p;
    bool leave;           /* else take, */
    struct sv_slice take; /* these rows */
};

/* Columns of rank r: between its window, where they are contiguous, and the rows of logits. */
static void move_columns(const struct gather_job *j, int32_t r, int32_t begin, int32_t end)
{
    const struct sv_p_gather_logits *p = j->p;
    const size_t width = (size_t)(p->first[r + 1] - p->first[r]);
    float *part = part_of(j->cpu, r, p->join, (size_t)p->n_rows * width * sizeof *part);
    for (int32_t i = begin; i < end; i++) {
        float *at = p->logits + i * p->ld + p->first[r], *in_part = part + (size_t)i * width;
        memcpy(j->leave ? in_part : at, j->leave ? at : in_part, width * sizeof *at);
    }
}

static void gather_rows(void *arg, int thread, int n)
{
    const struct gather_job *j = arg;
    const int32_t own = j->cpu->ranks.rank;
    const struct sv_slice rows = j->leave ? (struct sv_slice){0, j->p->n_rows} : j->take;
    int32_t begin, end;
    sv_cpu_share(rows.n, thread, n, &begin, &end);
    for (int32_t r = 0; r < j->cpu->ranks.n; r++)
        if ((r == own) == j->leave)
            move_columns(j, r, rows.first + begin, rows.first + end);
}

void sv_cpu_gather_logits(struct sv_dev *dev, const struct sv_p_gather_logits *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct gather_job job = {
        cpu, p, true, p->deal ? sv_dealt_rows(dev, p->n_rows) : (struct sv_slice){0, p->n_rows}};
    const int64_t cost = (int64_t)p->n_rows * p->first[cpu->ranks.n] / 16;
    if (!cpu->peers->dead)
        sv_cpu_run(cpu, gather_rows, &job, cost);
    job.leave = false;
    const size_t width = (size_t)(p->first[cpu->ranks.rank + 1] - p->first[cpu->ranks.rank]),
                 n_bytes = (size_t)p->n_rows * width * sizeof(float);
    if (meet(cpu, (struct sv_cpu_part){p->join, p->n_rows, n_bytes, p->deal}))
        sv_cpu_run(cpu, gather_rows, &job, cost);
}

/* ---------------------------------------------------------------- rows that were dealt */

/* Rank r's rows of all arrays, one array after the other: into its window, or out of it. Returns
 * their bytes. */
static size_t move_rows(struct sv_cpu *cpu, const struct sv_p_share_rows *p, int32_t r, bool leave)
{
    const struct sv_slice rows = sv_rank_rows(p->n_rows, r, cpu->ranks.n);
    size_t at = 0;
    for (int32_t i = 0; i < p->n_arrays; i++) {
        const struct sv_shared_array *a = &p->array[i];
        const size_t n_bytes = (size_t)rows.n * a->row_bytes;
        char *part = (char *)part_of(cpu, r, SV_JOIN_ROWS, at + (size_t)a->n * n_bytes) + at;
        for (int32_t k = 0; k < a->n; k++, part += n_bytes, at += n_bytes) {
            char *own = (char *)a->rows + (size_t)k * a->stride + (size_t)rows.first * a->row_bytes;
            memcpy(leave ? part : own, leave ? own : part, n_bytes);
        }
    }
    return at;
}

/* An error that a rank latched concerns all: rank 0 would accept its rows' results. */
void sv_cpu_share_rows(struct sv_dev *dev, const struct sv_p_share_rows *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    if (!cpu->peers->dead && cpu->latched.code) {
        cpu->peers->dead = true;
        sv_failure_set(cpu->peers->failure, cpu->ranks.rank, cpu->latched.msg);
    }
    const size_t n_bytes = cpu->peers->dead ? 0 : move_rows(cpu, p, cpu->ranks.rank, true);
    if (!meet(cpu, (struct sv_cpu_part){SV_JOIN_ROWS, p->n_rows, n_bytes, false}))
        return;
    for (int32_t r = 0; r < cpu->ranks.n; r++)
        if (r != cpu->ranks.rank)
            move_rows(cpu, p, r, false);
}
