/*
 * join_emulated.cpp - joins of 2 to 8 ranks run on a CPU by tests/cuda/emulated, each rank a process and the windows memory
 * that all of them see: sums in rank order whoever is late, in one kernel or in two, bad numbers that are no waits, best
 * tokens, whole rows of logits, for all or dealt, what was made of these, rows that one rank has, and waits that end; with
 * the argument "hosts" the same of ranks on two hosts, which exchange through a double of NCCL (nccl_double.cpp).
 *
 * Built and started by join_emulated.test.sh. What a join gives is compared bit for bit with the kernels of a device that is
 * alone, on sums that were added here. With two ranks no order can be seen.
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/nccl.h"

#include <sys/socket.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}
/* watch.cu's. */
void sv_cuda_launched(struct sv_cuda *, const char *, uint64_t)
{
}
bool sv_cuda_frees(const struct sv_cuda *)
{
    return true;
}
int sv_cuda_take(struct sv_cuda *, enum sv_mem, void **p, size_t n_bytes, struct sv_err *, const char *)
{
    *p = aligned_alloc(64, n_bytes);
    memset(*p, 0xff, n_bytes);
    return SV_OK;
}
void sv_cuda_drop(struct sv_cuda *, void *p)
{
    free(p);
}
/* gemm.cu's. */
bool sv_gemm_bytes_room(const struct sv_cuda *, int32_t, int32_t)
{
    return false;
}

namespace
{
enum { BIG = 8, ROWS = 5, D = 264, VOCAB = 101, ROUNDS = 6, WORDS = 301 /* of a row that is shared */ };

struct world {
    sv_failure failure;
    sv_progress progress[BIG];
    int n_late, n_faults[BIG];
    bool dead[BIG];
    sv_cuda_fault fault[BIG];
    alignas(64) uint8_t part[BIG][ROUNDS][2][ROWS * D * 4], out[BIG][ROUNDS][2][ROWS * D * 4], x[BIG][ROWS * D * 4];
    alignas(64) float logits[BIG][2][ROWS * VOCAB], whole[ROWS * VOCAB];
    alignas(64) uint32_t made[BIG][3 * ROWS * WORDS];
    uint64_t best[BIG][ROUNDS][ROWS];
    int32_t ids[BIG][ROUNDS][ROWS];
    alignas(64) uint8_t window[BIG][1 << 19];
};
world *w;

struct run {
    int n, n_rows;
    bool half, late, bad, two;
    int n_sms; /* more rows are sent ahead of the kernel that takes; the emulator's blocks run one after the other */
    int gone_at; /* the last rank ends before this round; -1: it stays */
    int64_t timeout_us;
    int fault_at; /* from this round on the last rank has found a fault; -1: it does not */
    int own; /* rows of a mixer are each one rank's, with kernels that join by themselves or, 2, with one in front; 0: sums */
    bool hosts; /* the first half of the ranks is on one, the others are on another */
};

bool far(const run &r, int a, int b)
{
    return (a < r.n / 2) != (b < r.n / 2);
}

/* Rank 1 of three and more has none, nobody the last row, which is padding. */
sv_slice own_of(const run &r, int rank)
{
    const int half = r.n_rows / 2;
    if (rank == 0)
        return {0, half};
    return {half, rank == r.n - 1 ? r.n_rows - 1 - half : 0};
}

int wire[BIG][BIG]; /* between ranks on different hosts; -1: on the same one */

struct device {
    sv_cuda cu = {};
    sv_cuda_peers peers = {};
    std::vector<uint8_t> sums;
    bool ok = true;
    uint4 dead = {}, stop = {};

    device(const run &r, int rank) : sums(ROWS * D * 4)
    {
        cu.act = r.half ? SV_BF16 : SV_F32;
        cu.n_sms = r.n_sms;
        cu.two_shots = r.two ? SV_TOGGLE_ON : SV_TOGGLE_OFF;
        cu.ranks.rank = rank;
        cu.ranks.n = r.n;
        cu.fault = &w->fault[rank];
        cu.peers = &peers;
        for (int k = 0; k < SV_JOINS; k++)
            peers.at[k + 1] = peers.at[k] + (size_t)r.n * 8192;
        for (int i = 0; i < r.n; i++)
            peers.window[i] = r.hosts && far(r, i, rank) ? NULL : w->window[i];
        peers.sums = sums.data();
        peers.dead = &dead;
        peers.stop = &stop;
        peers.failure = &w->failure;
        peers.timeout_us = r.timeout_us;
        if (!r.hosts || r.n == 1)
            return;
        sv_peers with = {};
        sv_err err = {};
        with.far = wire[rank];
        with.failure = &w->failure;
        ok = sv_cuda_hosts_open(&cu, &with, &err) == SV_OK;
        if (!ok)
            fprintf(stderr, "rank %d: %s\n", rank, err.msg);
    }
    ~device()
    {
        sv_cuda_hosts_close(&cu);
    }
};

size_t size_of(const run &r)
{
    return r.half ? 2 : 4;
}

float number(const run &r, const uint8_t *p, int i)
{
    float f;
    __nv_bfloat16 h;
    memcpy(&f, p + 4 * i, r.half ? 0 : 4);
    memcpy(&h, p + 2 * i, 2);
    return r.half ? __bfloat162float(h) : f;
}
void put(const run &r, uint8_t *p, int i, float f)
{
    const __nv_bfloat16 h = __float2bfloat16_rn(f);
    memcpy(p + size_of(r) * i, r.half ? (const void *)&h : (const void *)&f, size_of(r));
}

std::vector<float> weight(D + 1, 1.25f);

/* As a product that sends what it makes. */
__global__ void push_kernel(const sv_join_site s, const __nv_bfloat16 *part)
{
    part += blockIdx.x * D;
    for (int32_t i = threadIdx.x; i < D / 32 * 32; i += 32)
        sv_join_push(s, (blockIdx.x * D + i) / 8, part[i]);
    if (threadIdx.x < D % 32 / 8)
        sv_join_send(s, blockIdx.x * (D / 8) + D / 32 * 4 + threadIdx.x, ((const uint4 *)part)[D / 32 * 4 + threadIdx.x]);
}
void push(device &d, const run &r, sv_join kind, const uint8_t *part)
{
    sv_join_site s;
    if (r.n > 1 && r.n_rows && !r.own && sv_cuda_join_push(&d.cu, kind, r.n_rows, D, &s))
        sv_cuda_launch(&d.cu, "a part", push_kernel, r.n_rows, 32, 0, s, (const __nv_bfloat16 *)part);
}

void norm(device &d, const run &r, sv_join kind, const uint8_t *delta, const int32_t *index, uint8_t *x, uint8_t *out)
{
    sv_p_add_rms_norm p = {};
    p.n_rows = r.n_rows;
    p.d = D;
    p.x = x;
    p.delta = delta;
    p.row_index = r.own ? NULL : index;
    const sv_slice own = own_of(r, d.cu.ranks.rank);
    const bool before = (kind == SV_JOIN_FFN) != (r.own == 2);
    if (r.own && d.cu.ranks.n > 1)
        p.own_rows = &own;
    p.weight.data = weight.data() + before; /* not aligned: a launch in front joins */
    p.weight.fmt.elem = SV_F32;
    p.weight.rows = 1;
    p.weight.cols = D;
    p.eps = 1e-6f;
    p.out = out;
    p.join = d.cu.ranks.n > 1 ? kind : SV_JOIN_NONE;
    if (p.join || r.n_rows)
        sv_cuda_add_rms_norm((sv_dev *)&d.cu, &p);
}

void fill_index(int32_t *index, int n) /* rows in reverse, and padding at the end */
{
    for (int i = 0; i < n; i++)
        index[i] = i == n - 1 && n > 1 ? -1 : n - 1 - i;
}

int32_t first_of(const run &r, int rank) /* rank 1 of three and more has none */
{
    return rank == 0 ? 0 : rank == 1 ? VOCAB / 2 : rank == 2 && r.n > 2 ? VOCAB / 2 : rank >= r.n ? VOCAB : VOCAB / 2 + 7 * (rank - 2) + 1;
}

void nap(const run &r, sv_rng &g)
{
    if (r.late && sv_rng_below(&g, 3) == 0)
        usleep(sv_rng_below(&g, 3000));
}

/* What is made of a row: words that are negative, no numbers, or all ones. */
uint32_t made_of(int round, int which, int row, int word)
{
    static const uint32_t odd[] = {0, 0xffffffffu, 0x7fffffffu, 0x80000000u, 0xfffffffeu};
    const int i = word + row + which;
    return i % 3 ? odd[(i / 3 + round) % 5] : ((round * 3 + which) * ROWS + row) * 1000 + word;
}

/* Own rows of a token and of two arrays that lie apart; then those of all, and nothing else, must be there. */
bool share(device &d, const run &r, int rank, int round)
{
    const sv_slice own = sv_rank_rows(r.n_rows, rank, r.n);
    uint32_t *ids = w->made[rank], *rows = ids + ROWS * WORDS;
    bool ok = true;
    memset(ids, 0x55, sizeof w->made[rank]);
    const auto each = [&](const auto &fn) {
        for (int row = 0; row < ROWS; row++) {
            fn(ids[row], 0, row, 0);
            for (int k = 0; k < 2 * WORDS; k++)
                fn(rows[k / WORDS * ROWS * WORDS + row * WORDS + k % WORDS], 1 + k / WORDS, row, k % WORDS);
        }
    };
    each([&](uint32_t &at, int which, int row, int word) {
        if (row >= own.first && row < own.first + own.n)
            at = made_of(round, which, row, word);
    });
    sv_p_share_rows p = {};
    p.n_rows = r.n_rows;
    p.n_arrays = 2;
    p.array[0] = {ids, 4, 0, 1};
    p.array[1] = {rows, WORDS * 4, ROWS * WORDS * 4, 2};
    sv_cuda_share_rows((sv_dev *)&d.cu, &p);
    each([&](uint32_t at, int which, int row, int word) {
        ok &= at == (row < r.n_rows ? made_of(round, which, row, word) : 0x55555555);
    });
    return ok;
}

/* False: what it got is wrong. */
bool live(const run &r, int rank)
{
    device d(r, rank);
    bool ok = d.ok;
    sv_rng g = {(uint64_t)rank * 77 + r.n};
    emu_draws = 1 + rank * 1000;
    int32_t index[ROWS];
    fill_index(index, r.n_rows);
    for (int round = 0; round < ROUNDS; round++) {
        if (rank == r.n - 1 && round == r.gone_at)
            break;
        nap(r, g);
        if (round % 2)
            push(d, r, SV_JOIN_MIXER, w->part[rank][round][0]);
        norm(d, r, SV_JOIN_MIXER, w->part[rank][round][0], NULL, w->x[rank], w->out[rank][round][0]);
        nap(r, g);
        norm(d, r, SV_JOIN_FFN, w->part[rank][round][1], index, w->x[rank], w->out[rank][round][1]);
        nap(r, g);
        sv_p_head_argmax p = {};
        p.n_rows = r.n_rows;
        p.join = SV_JOIN_BEST;
        p.out = w->ids[rank][round];
        d.peers.best = w->best[rank][round];
        if (r.n_rows)
            sv_cuda_join_best(&d.cu, &p);
        else
            sv_cuda_join_empty(&d.cu, p.join);
        for (int twice = 0; twice < 2; twice++) {
            sv_p_gather_logits q = {};
            q.n_rows = r.n_rows;
            q.ld = VOCAB;
            q.logits = w->logits[rank][twice];
            q.deal = twice;
            q.join = twice ? SV_JOIN_LOGITS_B : SV_JOIN_LOGITS_A;
            for (int i = 0; i <= r.n; i++)
                q.first[i] = first_of(r, i);
            nap(r, g);
            sv_cuda_gather_logits((sv_dev *)&d.cu, &q);
        }
        if (rank == r.n - 1 && round == r.fault_at)
            w->fault[rank] = {SV_CUDA_FAULT_SAMPLE_NAN, 7, -1, 9};
        nap(r, g);
        ok &= share(d, r, rank, round) || d.dead.x;
        const sv_cuda_fault &f = w->fault[rank];
        if (r.fault_at >= 0 && round >= r.fault_at)
            ok &= f.code == SV_CUDA_FAULT_SAMPLE_NAN && f.a == 7 && f.b == -1 && f.c == 9;
        else if (r.fault_at >= 0)
            ok &= !f.code;
    }
    w->dead[rank] = d.dead.x;
    return ok;
}

/* Numbers of all sizes, so that another order gives other bits. */
void fill(const run &r)
{
    sv_rng g = {(uint64_t)(r.n * 100 + r.n_rows)};
    memset((void *)w, 0, sizeof *w);
    memset(w->window, 0xff, sizeof w->window);
    for (int k = 0; k < r.n; k++) {
        for (int round = 0; round < ROUNDS; round++)
            for (int which = 0; which < 2; which++)
                for (int i = 0; i < ROWS * D; i++)
                    put(r, w->part[k][round][which], i, sv_rng_normal(&g) * (float)(1 << sv_rng_below(&g, 6)));
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < ROWS; i++) /* ties, tokens 0, and parts without a number */
                w->best[k][round][i] = i == 3 ? 0 : sv_best_key((float)sv_rng_below(&g, 3) - 1, k * 10 + (i + round) % 3);
    }
    sv_rng one = {5};
    for (int k = 0; k < r.n; k++)
        for (int i = 0; i < ROWS * D; i++)
            put(r, w->x[k], i, k ? number(r, w->x[0], i) : sv_rng_normal(&one));
    for (int i = 0; i < ROWS * VOCAB; i++)
        w->whole[i] = sv_rng_normal(&one);
    for (int k = 0; k < r.n; k++)
        for (int twice = 0; twice < 2; twice++)
            for (int i = 0; i < ROWS * VOCAB; i++)
                if (i % VOCAB >= first_of(r, k) && i % VOCAB < first_of(r, k + 1))
                    w->logits[k][twice][i] = w->whole[i];
    for (int i = 0; i < ROWS * D && r.own; i += 5) /* zeros of both signs, to streams that show them */
        for (int k = 0; k < r.n; k++) {
            put(r, w->x[k], i, -0.0f);
            for (int round = 0; round < ROUNDS; round++)
                put(r, w->part[k][round][0], i, i % 2 ? -0.0f : 0.0f);
        }
    if (r.bad) /* all ones, and others that are no numbers */
        for (int round = 0; round < ROUNDS; round++) {
            memset(w->part[round % r.n][round][0] + 16, 0xff, 24);
            put(r, w->part[(round + 1) % r.n][round][1], 9, NAN);
        }
}

bool run_ranks(const run &r)
{
    pid_t pid[BIG];
    bool ok = true;
    fill(r);
    for (int k = 0; k < r.n; k++)
        for (int q = 0; q <= k; q++) {
            int fd[2] = {-1, -1};
            if (r.hosts && far(r, k, q) && socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
                return false;
            wire[k][q] = fd[0];
            wire[q][k] = fd[1];
        }
    for (int k = 0; k < r.n; k++)
        if (!(pid[k] = fork())) {
            _exit(!live(r, k));
        }
    for (int k = 0; k < r.n; k++) {
        int status = 0;
        waitpid(pid[k], &status, 0);
        ok &= status == 0;
        for (int q = 0; q < r.n; q++)
            if (wire[k][q] >= 0)
                close(wire[k][q]);
    }
    return ok;
}

int other(const char *what, const run &r, int rank, int round)
{
    printf("%s: rank %d of %d, %d rows, %s%s%s%s, round %d\n", what, rank, r.n, r.n_rows, r.half ? "bf16" : "f32",
           r.late ? ", late" : "", r.bad ? ", bad" : "", r.two ? ", two shots" : "", round);
    return 1;
}

bool same(const run &r, const uint8_t *a, const uint8_t *b, int n, bool *bad)
{
    for (int i = 0; i < n; i++) {
        const float x = number(r, a, i), y = number(r, b, i);
        *bad |= x != x;
        if ((x == x || y == y) && memcmp(a + size_of(r) * i, b + size_of(r) * i, size_of(r)))
            return false;
    }
    return true;
}

/* What the ranks' rows come to, where a row is one rank's. */
void of_owners(const run &r, int round, uint8_t *sum)
{
    for (int i = 0; i < ROWS * D; i++)
        put(r, sum, i, -0.0f);
    for (int k = 0; k < r.n; k++) {
        const sv_slice own = own_of(r, k);
        const size_t row = D * size_of(r);
        memcpy(sum + own.first * row, w->part[k][round][0], own.n * row);
    }
}

/* A rank's rows of out in the batch's order. */
void in_order(const run &r, int rank, const uint8_t *out, uint8_t *to)
{
    const sv_slice own = own_of(r, rank);
    const size_t row = D * size_of(r);
    for (int i = 0; i < r.n_rows; i++) {
        const int at = i < own.first ? i + own.n : i < own.first + own.n ? i - own.first : i;
        memcpy(to + i * row, out + at * row, row);
    }
}

/* n_seen: elements in which another order of ranks would have been seen. */
int check(const run &r, int *n_seen)
{
    run alone = r;
    alone.n = 1;
    fill(alone);
    std::vector<uint8_t> x(w->x[0], w->x[0] + sizeof w->x[0]), want(ROWS * D * 4), sum(ROWS * D * 4);
    if (!run_ranks(r))
        return other("a rank has failed", r, -1, -1);
    device d(alone, 0);
    int32_t index[ROWS];
    bool bad = false;
    fill_index(index, r.n_rows);
    for (int round = 0; round < ROUNDS; round++)
        for (int which = 0; which < 2; which++) {
            for (int i = 0; i < ROWS * D; i++) {
                float s = number(r, w->part[0][round][which], i), t = number(r, w->part[r.n - 1][round][which], i);
                for (int k = 1; k < r.n; k++) {
                    s += number(r, w->part[k][round][which], i);
                    t += number(r, w->part[r.n - 1 - k][round][which], i);
                }
                *n_seen += s == s && t == t && s != t && i < r.n_rows * D;
                put(r, sum.data(), i, s);
            }
            if (r.own && !which)
                of_owners(r, round, sum.data());
            norm(d, r, which ? SV_JOIN_FFN : SV_JOIN_MIXER, sum.data(), which ? index : NULL, x.data(), want.data());
            for (int k = 0; k < r.n && r.own && which; k++) {
                std::vector<uint8_t> out(w->out[k][round][1], w->out[k][round][1] + sizeof w->out[k][round][1]);
                in_order(r, k, out.data(), w->out[k][round][1]);
            }
            for (int k = 0; k < r.n; k++)
                if (!same(r, w->out[k][round][which], want.data(), r.n_rows * D, &bad) ||
                    memcmp(w->out[k][round][which], w->out[0][round][which], r.n_rows * D * size_of(r)))
                    return other(which ? "sums before a norm" : "norm", r, k, round);
        }
    for (int k = 0; k < r.n; k++) {
        if (w->dead[k] || w->fault[k].code > SV_CUDA_FAULT_HEAD_NAN)
            return other("a wait has ended", r, k, w->fault[k].code);
        if (!same(r, w->x[k], x.data(), r.n_rows * D, &bad))
            return other("the stream", r, k, -1);
        for (int twice = 0; twice < 2; twice++)
            for (int i = 0; i < ROWS * VOCAB; i++) {
                const sv_slice dealt = twice ? sv_rank_rows(r.n_rows, k, r.n) : sv_slice{0, r.n_rows};
                const int row = i / VOCAB - dealt.first, v = i % VOCAB;
                const bool here = (row >= 0 && row < dealt.n) || (v >= first_of(r, k) && v < first_of(r, k + 1));
                if (w->logits[k][twice][i] != (here ? w->whole[i] : 0))
                    return other("logits", r, k, twice);
            }
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < r.n_rows; i++) {
                uint64_t most = 0;
                for (int q = 0; q < r.n; q++)
                    most = sv_best_of(most, w->best[q][round][i]);
                if (w->ids[k][round][i] != (most ? (int32_t) ~(uint32_t)most : 0))
                    return other("best tokens", r, k, round);
            }
        /* What comes from another host for rows that were dealt has as many places for all ranks. */
        const size_t most = r.hosts ? (size_t)SV_JOIN_ROWS * r.n * 8192 : sizeof w->window[k];
        for (size_t i = 0; i < most; i++)
            if (w->window[k][i] != 0xff)
                return other("a place is not blank", r, k, (int)i);
    }
    return r.bad && r.n_rows && !bad ? other("nothing was bad", r, -1, -1) : 0;
}

/* A rank that is gone ends everybody's waits, once: the joins that follow do not wait. */
int check_gone(int n, bool half, bool two, bool hosts)
{
    const run r = {n, 2, half, false, false, two, 1, 3, 200000, -1, 0, hosts};
    const int64_t begin = sv_clock_us();
    if (!run_ranks(r))
        return other("a rank has failed", r, -1, -1);
    if (sv_clock_us() - begin > 100000000)
        return other("waits took too long", r, -1, -1);
    for (int k = 0; k + 1 < n; k++) {
        const sv_cuda_fault f = w->fault[k];
        if (!w->dead[k] || f.code != SV_CUDA_FAULT_PEER || f.a < 0 || f.a >= n || f.a == k || f.b <= SV_JOIN_NONE || f.b >= SV_JOINS)
            return other("the fault", r, k, f.code);
    }
    return 0;
}
/* A fault that one rank has found is one of all. */
int check_told(int n, bool hosts)
{
    const run r = {n, 2, false, false, false, false, 1, -1, 60000000, 2, 0, hosts};
    fill(r);
    return run_ranks(r) ? 0 : other("a fault that is told", r, -1, -1);
}
} // namespace

/* With another argument only sums of three ranks, in one shot and in two. */
int main(int argc, char **argv)
{
    const bool hosts = argc > 1 && !strcmp(argv[1], "hosts"), few = argc > 1 && !hosts;
    const int most = hosts ? 4 : BIG;
    int n_runs = 0, n_seen = 0, failed = 0;
    w = (world *)mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w == MAP_FAILED)
        return 1;
    for (int n = few ? 3 : 2; n <= (few ? 3 : most) && !failed; n += n < 4 ? 1 : 2)
        for (int half = 0; half < 2 && !failed; half++)
            for (int kind = 0; kind < (n > 2 ? 4 : 2) && !failed; kind++) {
                static const int rows[] = {1, ROWS, 0, 2};
                run r = {n, rows[(n + half + 2 * kind) % 4], half == 1, kind % 2 == 0, kind % 2 == 1, kind > 1};
                r.n_sms = 1 + (n + kind) % 2;
                r.gone_at = r.fault_at = -1;
                r.timeout_us = 60000000;
                r.hosts = hosts;
                if (r.two) { /* in one kernel, in two */
                    r.n_rows = kind == 2 ? ROWS : 2;
                    r.n_sms = (n / 2 + half + kind) % 2 ? ROWS : 1;
                }
                int seen = 0;
                failed |= check(r, &seen);
                /* sums of few bf16 are exact */
                if (!failed && !half && (n > 2 && r.n_rows > 0) != (seen > 0))
                    failed = other("an order that cannot be seen", r, -1, seen);
                n_seen += seen;
                n_runs++;
            }
    for (int n = 2; n <= (few ? 0 : 4) && !failed; n++)
        for (int kind = 0; kind < 16 && !failed; kind++) {
            int seen = 0;
            run r = {n, kind & 8 ? 2 : ROWS, (kind & 4) != 0, (kind & 1) != 0, (kind & 8) != 0, n > 2 && kind & 2};
            r.n_sms = kind & 1 ? ROWS : 1;
            r.gone_at = r.fault_at = -1;
            r.timeout_us = 60000000;
            r.own = 1 + (n + kind / 2) % 2;
            r.hosts = hosts;
            failed |= check(r, &seen);
            n_runs++;
        }
    for (int n = 2; n <= (few ? 0 : 5) && !failed; n += 3)
        failed |= check_told(n, hosts);
    for (int n = 2; n <= (few ? 0 : 4) && !failed; n++)
        failed |= check_gone(n, n % 2, false, hosts) || (n > 2 && check_gone(n, n % 2, true, hosts));
    if (!failed)
        printf("joins of ranks: %d runs, another order would be seen %d times\n", n_runs, n_seen);
    return failed;
}
