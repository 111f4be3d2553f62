/*
 * join.cu - joins of ranks that are ops of their own, or parts of them: rows sent ahead, sums of
 * rows, best tokens, whole rows of logits, what was made of rows that were dealt.
 *
 * Called by rows.cu, context_kv.cu and gemm.cu, and through the table in device.cu. Thread blocks
 * that wait must all be resident, so that the others' parts cannot depend on one that has not
 * begun: above so many rows one kernel, without a wait, sends all of them, and the next one takes.
 * So it is with any number where ranks are on several hosts, whose parts are exchanged in between.
 * Must not: leave a join out, as the order of kinds is what frees a place (ranks.h).
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/nccl.h"

enum { THREADS = 256, SHARE_THREADS = 512 };

static unsigned blocks(int64_t n)
{
    return (unsigned)((n + THREADS - 1) / THREADS);
}

struct sv_join_site sv_cuda_join_site(const struct sv_cuda *cu, enum sv_join kind, size_t n_bytes)
{
    const struct sv_cuda_peers *p = cu->peers;
    struct sv_join_site s = {};
    SV_REQUIRE(p && p->failure);
    const size_t part = (p->at[kind + 1] - p->at[kind]) / (size_t)cu->ranks.n / SV_ALIGN * SV_ALIGN;
    SV_REQUIRE(n_bytes <= part && part / sizeof(uint4) <= INT32_MAX);
    s.rank = cu->ranks.rank;
    s.n = cu->ranks.n;
    s.kind = kind;
    for (int32_t r = 0; r < s.n; r++)
        s.to[r] = (uint4 *)(p->hosts && p->hosts->far[r]
                                ? p->hosts->outgoing + p->at[kind] + (size_t)r * part
                                : p->window[r] + p->at[kind] + (size_t)s.rank * part);
    s.from = (uint4 *)(p->window[s.rank] + p->at[kind]);
    s.apart = (int32_t)(part / sizeof(uint4));
    s.dead = p->dead;
    s.stop = p->stop;
    s.timeout_us = p->timeout_us;
    s.fault = cu->fault;
    return s;
}

static void exchange_parts(struct sv_cuda *cu, const struct sv_join_site &s, size_t n_bytes)
{
    size_t n[SV_MAX_RANKS];
    for (int32_t r = 0; r < s.n; r++)
        n[r] = n_bytes;
    sv_cuda_hosts_exchange(cu, &s, n, n);
}

/* A launch that sends and takes, with other hosts one of each. */
template <typename F>
static void send_and_take(struct sv_cuda *cu, struct sv_join_site s, size_t n_bytes, F launch)
{
    if (cu->peers->hosts) {
        s.sends = true;
        launch(s);
        exchange_parts(cu, s, n_bytes);
        s.sends = false;
        s.ahead = true;
    }
    launch(s);
}

/* A join of no rows: a place is sent and taken all the same. */
static __global__ void empty_kernel(const __grid_constant__ struct sv_join_site s)
{
    sv_pdl_launch();
    sv_pdl_wait();
    if (threadIdx.x)
        return;
    if (!s.ahead)
        sv_join_send(s, 0, make_uint4(0, 0, 0, 0));
    for (int32_t r = 0; r < s.n && !s.sends; r++)
        if (r != s.rank)
            sv_join_take(s, r, 0, -1);
}

void sv_cuda_join_empty(struct sv_cuda *cu, enum sv_join kind)
{
    send_and_take(cu, sv_cuda_join_site(cu, kind, sizeof(uint4)), sizeof(uint4),
                  [cu](const struct sv_join_site &s) {
                      sv_cuda_launch_in_pass(cu, "a join of no rows", empty_kernel, 1, 32, 0, s);
                  });
}

/* ---------------------------------------------------------------- sums */

/* From how many bytes of a rank's part on two shots take less time, by the number of ranks: one
 * shot sends a part to all others, two shots a share of it to each and then the share's sums.
 * Measured on H100s with three and four (bench/join.c), guessed from five on. */
static const struct {
    int32_t n_ranks;
    int64_t n_bytes;
} two_shots[] = {{3, 64 * 8192}, {4, 32 * 8192}, {5, 16 * 8192}};

static bool in_two_shots(const struct sv_cuda *cu, int64_t n_bytes)
{
    const size_t n_known = sizeof two_shots / sizeof *two_shots;
    size_t at = n_known;
    for (size_t i = 0; i < n_known; i++)
        at = two_shots[i].n_ranks <= cu->ranks.n ? i : at;
    if (at == n_known || cu->peers->hosts) /* two ranks would send as much */
        return false;
    return cu->two_shots == SV_TOGGLE_AUTO ? n_bytes >= two_shots[at].n_bytes
                                           : cu->two_shots == SV_TOGGLE_ON;
}

struct sv_join_site sv_cuda_join_rows(const struct sv_cuda *cu, enum sv_join kind,
                                      const struct sv_slice *own, int32_t n_rows, int32_t d)
{
    const size_t n_bytes = (size_t)n_rows * (size_t)d * (cu->act == SV_BF16 ? 2 : 4);
    struct sv_join_site s = sv_cuda_join_site(cu, kind, n_bytes);
    const int32_t n_places = (int32_t)(n_bytes / (size_t)n_rows / sizeof(uint4));
    if (in_two_shots(cu, (int64_t)n_bytes))
        s.share = (n_places + s.n - 1) / s.n;
    s.own = own;
    s.ahead = cu->peers->pushed == kind;
    return s;
}

bool sv_cuda_join_push(struct sv_cuda *cu, enum sv_join kind, int32_t n_rows, int32_t d,
                       struct sv_join_site *s)
{
    if (!kind || cu->act != SV_BF16 || d % 8 || cu->peers->hosts)
        return false;
    *s = sv_cuda_join_rows(cu, kind, NULL, n_rows, d);
    if (s->share)
        return false;
    SV_REQUIRE(!cu->peers->pushed);
    cu->peers->pushed = kind;
    return true;
}

/* Row i of the part is row row_index[i] of x, or i. */
template <typename T>
static __device__ __forceinline__ const T *row_of(const struct sv_join_site &s, const T *x,
                                                  const int32_t *row_index, int32_t i, int32_t d)
{
    return sv_join_row(s, x, !row_index ? i : max(row_index[i], 0), d);
}

/* The places that a row of d numbers takes. */
template <typename T> static __device__ __forceinline__ int32_t places(int32_t d)
{
    return d / (int32_t)(sizeof(uint4) / sizeof(T));
}

template <typename T>
static __device__ __forceinline__ void send_row(const struct sv_join_site &s, const T *x,
                                                int32_t row, int32_t d)
{
    const int32_t n = places<T>(d);
    for (int32_t g = threadIdx.x; g < n; g += (int32_t)blockDim.x)
        sv_join_send_part(s, row * n, g, sv_join_part(x, g));
}

template <typename T>
static __global__ void send_kernel(const __grid_constant__ struct sv_join_site s, const T *x,
                                   const int32_t *row_index, int32_t d)
{
    sv_pdl_launch();
    sv_pdl_wait();
    send_row(s, row_of(s, x, row_index, blockIdx.x, d), blockIdx.x, d);
}

/* Both shots, up to this rank's sums, its own included; thread blocks have many rows each, so that
 * all are resident, and send all of them before they wait. */
template <typename T>
static __global__ void __launch_bounds__(SHARE_THREADS, 1)
    share_kernel(const __grid_constant__ struct sv_join_site s, const T *x,
                 const int32_t *row_index, int32_t n_rows, int32_t d)
{
    const int32_t n = places<T>(d), first = s.rank * s.share, own = min(s.share, n - first);
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t row = blockIdx.x; row < n_rows; row += (int32_t)gridDim.x)
        send_row(s, row_of(s, x, row_index, row, d), row, d);
    for (int32_t e = threadIdx.x; own > 0; e += (int32_t)blockDim.x) {
        const int64_t row = blockIdx.x + (int64_t)(e / own) * gridDim.x;
        if (row >= n_rows)
            break;
        const int32_t g = first + e % own;
        const uint4 part = sv_join_part(row_of(s, x, row_index, (int32_t)row, d), g);
        gpu_send16(s.to[s.rank] + row * n + g,
                   sv_join_words(sv_join_sum<T>(s, (int32_t)row * n, g, (int32_t)row, part)));
    }
}

template <typename T>
static __global__ void sum_kernel(const __grid_constant__ struct sv_join_site s, const T *x,
                                  const int32_t *row_index, int32_t d, T *out)
{
    const int32_t n = places<T>(d);
    sv_pdl_launch();
    sv_pdl_wait();
    x = row_of(s, x, row_index, blockIdx.x, d);
    out += (int64_t)blockIdx.x * d;
    if (!s.ahead)
        send_row(s, x, blockIdx.x, d);
    for (int32_t g = threadIdx.x; g < n; g += (int32_t)blockDim.x)
        ((uint4 *)out)[g] =
            sv_join_sum<T>(s, (int32_t)blockIdx.x * n, g, blockIdx.x, sv_join_part(x, g));
}

/* A row's thread block. */
static int32_t threads_of(int32_t d)
{
    const int32_t n = (d / 8 + 31) / 32 * 32;
    return n < (int32_t)THREADS ? n : (int32_t)THREADS;
}

template <typename T>
static void ahead_launch(struct sv_cuda *cu, struct sv_join_site *s, const T *x,
                         const int32_t *row_index, int32_t n_rows, int32_t d)
{
    if (s->share)
        sv_cuda_launch_in_pass(cu, "rows shared among ranks", share_kernel<T>,
                               n_rows < cu->n_sms ? n_rows : cu->n_sms, SHARE_THREADS, 0, *s, x,
                               row_index, n_rows, d);
    else
        sv_cuda_launch_in_pass(cu, "rows for other ranks", send_kernel<T>, n_rows, threads_of(d), 0,
                               *s, x, row_index, d);
    s->ahead = true;
    if (cu->peers->hosts)
        exchange_parts(cu, *s, (size_t)n_rows * (size_t)d * sizeof(T));
}

void sv_cuda_join_ahead(struct sv_cuda *cu, struct sv_join_site *s, const void *x,
                        const int32_t *row_index, int32_t n_rows, int32_t d, int32_t resident)
{
    if (s->ahead || (n_rows <= resident && !cu->peers->hosts))
        return;
    if (cu->act == SV_BF16)
        ahead_launch(cu, s, (const __nv_bfloat16 *)x, row_index, n_rows, d);
    else
        ahead_launch(cu, s, (const float *)x, row_index, n_rows, d);
}

template <typename T>
static void sum_launch(struct sv_cuda *cu, struct sv_join_site s, const void *x,
                       const int32_t *row_index, int32_t n_rows, int32_t d, void *out)
{
    sv_cuda_join_ahead(cu, &s, x, row_index, n_rows, d, cu->n_sms);
    sv_cuda_launch_in_pass(cu, "sums of ranks", sum_kernel<T>, n_rows, threads_of(d), 0, s,
                           (const T *)x, row_index, d, (T *)out);
    cu->peers->pushed = SV_JOIN_NONE;
}

void sv_cuda_join_sums(struct sv_cuda *cu, enum sv_join kind, const void *x,
                       const int32_t *row_index, const struct sv_slice *own, int32_t n_rows,
                       int32_t d, void *out)
{
    const struct sv_join_site s = sv_cuda_join_rows(cu, kind, own, n_rows, d);
    if (cu->act == SV_BF16)
        sum_launch<__nv_bfloat16>(cu, s, x, row_index, n_rows, d, out);
    else
        sum_launch<float>(cu, s, x, row_index, n_rows, d, out);
}

/* ---------------------------------------------------------------- best tokens */

/* A key goes as the logit's half and the id, for the inverted id 0 has all ones. */
static __device__ __forceinline__ uint4 key_words(uint64_t key)
{
    return make_uint4((uint32_t)(key >> 32), key ? ~(uint32_t)key : 0, 0, 0);
}
static __device__ __forceinline__ uint64_t words_key(uint4 v)
{
    return v.x ? (uint64_t)v.x << 32 | (uint32_t)~v.y : 0;
}

static __global__ void best_kernel(const __grid_constant__ struct sv_join_site s,
                                   const uint64_t *keys, int32_t n_rows, const int32_t *out_index,
                                   int32_t *out)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n_rows)
        return;
    uint64_t key = keys[i];
    if (!s.ahead)
        sv_join_send(s, i, key_words(key));
    if (s.sends)
        return;
    for (int32_t r = 0; r < s.n; r++)
        if (r != s.rank)
            key = sv_best_of(key, words_key(sv_join_take(s, r, i, i)));
    sv_best_give(key, i, out_index, out, s.fault);
}

void sv_cuda_join_best(struct sv_cuda *cu, const struct sv_p_head_argmax *p)
{
    /* Few threads a block: rows that wait for the same part do not wait for others. */
    enum { ROWS = 32 };
    const size_t n_bytes = (size_t)p->n_rows * sizeof(uint4);
    send_and_take(cu, sv_cuda_join_site(cu, p->join, n_bytes), n_bytes,
                  [cu, p](const struct sv_join_site &s) {
                      sv_cuda_launch(cu, "the best of all ranks", best_kernel,
                                     dim3((unsigned)((p->n_rows + ROWS - 1) / ROWS)), ROWS, 0, s,
                                     (const uint64_t *)cu->peers->best, p->n_rows, p->out_index,
                                     p->out);
                  });
}

/* ---------------------------------------------------------------- whole rows of logits */

struct columns {
    float *logits;
    int64_t ld;
    int32_t first[SV_MAX_RANKS + 1];
    struct sv_slice rows[SV_MAX_RANKS]; /* those that a rank gets */
};

/* Rank r's part of rank q's rows is its columns row by row, without gaps. */
static __host__ __device__ __forceinline__ int64_t part_size(const struct columns &c, int32_t r,
                                                             int32_t q)
{
    return (int64_t)c.rows[q].n * (c.first[r + 1] - c.first[r]);
}
static __device__ __forceinline__ float *logit_at(const struct columns &c, int32_t r, int32_t q,
                                                  int64_t e)
{
    const int32_t width = c.first[r + 1] - c.first[r];
    return c.logits + (c.rows[q].first + e / width) * c.ld + c.first[r] + e % width;
}

/* Something is sent where there are no columns, or no rows. */
static int64_t part_places(int64_t n)
{
    return (n + 3) / 4 + !n;
}

static __global__ void send_logits_kernel(const __grid_constant__ struct sv_join_site s,
                                          const __grid_constant__ struct columns c)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t q = blockIdx.y;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = part_size(c, s.rank, q);
    if (4 * i >= n && i)
        return;
    uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        w[j] = 4 * i + j < n ? __float_as_uint(*logit_at(c, s.rank, q, 4 * i + j)) : 0;
    sv_join_send_to(s, q, q + 1, i, make_uint4(w[0], w[1], w[2], w[3]));
}

static __global__ void take_logits_kernel(const __grid_constant__ struct sv_join_site s,
                                          const __grid_constant__ struct columns c)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t r = blockIdx.y;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = part_size(c, r, s.rank);
    if (r == s.rank || (4 * i >= n && i))
        return;
    const int32_t width = max(c.first[r + 1] - c.first[r], 1);
    const uint4 v = sv_join_take(s, r, i, c.rows[s.rank].first + (int32_t)(4 * i / width));
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (4 * i + j < n)
            *logit_at(c, r, s.rank, 4 * i + j) = __uint_as_float(w[j]);
}

void sv_cuda_gather_logits(struct sv_dev *dev, const struct sv_p_gather_logits *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct columns c = {p->logits, p->ld, {}, {}};
    const int32_t n = cu->ranks.n, own = cu->ranks.rank;
    int32_t widest = 0, most_rows = 0;
    if (p->n_rows == 0) {
        sv_cuda_join_empty(cu, p->join);
        return;
    }
    for (int32_t r = 0; r < n; r++) {
        const int32_t width = p->first[r + 1] - p->first[r];
        c.first[r] = p->first[r];
        c.first[r + 1] = p->first[r + 1];
        c.rows[r].n = p->n_rows;
        if (p->deal)
            c.rows[r] = sv_rank_rows(p->n_rows, r, n);
        widest = width > widest ? width : widest;
        most_rows = c.rows[r].n > most_rows ? c.rows[r].n : most_rows;
    }
    size_t to[SV_MAX_RANKS] = {}, from[SV_MAX_RANKS] = {};
    for (int32_t r = 0; r < n; r++) {
        to[r] = (size_t)part_places(part_size(c, own, r)) * sizeof(uint4);
        from[r] = (size_t)part_places(part_size(c, r, own)) * sizeof(uint4);
    }
    const int64_t sent = (int64_t)most_rows * (c.first[own + 1] - c.first[own]),
                  taken = (int64_t)c.rows[own].n * widest;
    const struct sv_join_site s =
        sv_cuda_join_site(cu, p->join, (size_t)p->n_rows * (size_t)widest * sizeof(float));
    sv_cuda_launch(cu, "logits for other ranks", send_logits_kernel,
                   dim3(blocks(part_places(sent)), (unsigned)n), THREADS, 0, s, c);
    if (cu->peers->hosts)
        sv_cuda_hosts_exchange(cu, &s, to, from);
    sv_cuda_launch(cu, "logits of other ranks", take_logits_kernel,
                   dim3(blocks(part_places(taken)), (unsigned)n), THREADS, 0, s, c);
}

/* ---------------------------------------------------------------- rows that were dealt */

struct shared_rows {
    struct sv_p_share_rows p;
    struct sv_slice of[SV_MAX_RANKS];
    int32_t places; /* the most that a rank sends: its fault, then its rows */
};

/* Word e of rank r's rows, array by array; NULL: there are not so many. */
static __device__ __forceinline__ uint32_t *word_at(const struct shared_rows &c, int32_t r,
                                                    int32_t e)
{
#pragma unroll 1
    for (int32_t i = 0; i < c.p.n_arrays; i++) {
        const auto &a = c.p.array[i];
        const int32_t words = (int32_t)(a.row_bytes / 4), n = c.of[r].n * words;
        if (e < n * a.n)
            return (uint32_t *)((char *)a.rows + e / n * a.stride) + c.of[r].first * words + e % n;
        e -= n * a.n;
    }
    return NULL;
}

/* All ones, as in a place without a token, goes as a number that no token has: of an f32, a NaN. */
#define NO_TOKEN 0x7ffffffeu
static __device__ __forceinline__ uint32_t exchanged(uint32_t w, uint32_t from, uint32_t to)
{
    return w == from ? to : w;
}
static __device__ __forceinline__ uint4 exchange(uint4 v, uint32_t from, uint32_t to)
{
    return make_uint4(exchanged(v.x, from, to), exchanged(v.y, from, to), exchanged(v.z, from, to),
                      exchanged(v.w, from, to));
}

static __device__ __forceinline__ uint4 rows_place(const struct shared_rows &c, int32_t r,
                                                   int32_t place)
{
    uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t *at = word_at(c, r, 4 * (place - 1) + j);
        w[j] = at ? *at : 0;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* What one rank has found wrong concerns all: rank 0 would accept its rows. Waits that have ended
 * report in another way. */
static __device__ __forceinline__ uint4 fault_place(const struct sv_cuda_fault *f)
{
    return f->code == SV_CUDA_FAULT_PEER
               ? make_uint4(0, 0, 0, 0)
               : make_uint4((uint32_t)f->code, (uint32_t)f->a, (uint32_t)f->b, (uint32_t)f->c);
}

/* All thread blocks are resident, and send what is theirs before they wait. */
static __global__ void __launch_bounds__(THREADS, 1)
    share_rows_kernel(const __grid_constant__ struct sv_join_site s,
                      const __grid_constant__ struct shared_rows c)
{
    const int32_t first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t i = first; i < c.places && !s.ahead; i += step)
        if (!i || word_at(c, s.rank, 4 * (i - 1)))
            sv_join_send(s, i,
                         exchange(i ? rows_place(c, s.rank, i) : fault_place(s.fault), 0xffffffffu,
                                  NO_TOKEN));
    for (int32_t r = 0; r < s.n && !s.sends; r++)
        for (int32_t i = first; i < c.places && r != s.rank; i += step) {
            if (i && !word_at(c, r, 4 * (i - 1)))
                break;
            const uint4 v = exchange(sv_join_take(s, r, i, c.of[r].first), NO_TOKEN, 0xffffffffu);
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
            if (!i && v.x)
                sv_fault_set(s.fault, (int32_t)v.x, (int32_t)v.y, (int32_t)v.z, (int32_t)v.w);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t *at = i ? word_at(c, r, 4 * (i - 1) + j) : NULL;
                if (at)
                    *at = w[j];
            }
        }
}

void sv_cuda_share_rows(struct sv_dev *dev, const struct sv_p_share_rows *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct shared_rows c = {*p, {}, 0};
    int64_t row_words = 0, most_rows = 0;
    for (int32_t r = 0; r < cu->ranks.n; r++) {
        c.of[r] = sv_rank_rows(p->n_rows, r, cu->ranks.n);
        most_rows = c.of[r].n > most_rows ? c.of[r].n : most_rows;
    }
    for (int32_t i = 0; i < p->n_arrays; i++) {
        SV_REQUIRE(p->array[i].row_bytes % 4 == 0 && p->array[i].stride % 4 == 0);
        row_words += (int64_t)(p->array[i].row_bytes / 4) * p->array[i].n;
    }
    SV_REQUIRE(most_rows * row_words <= INT32_MAX - 8);
    c.places = (int32_t)(1 + (most_rows * row_words + 3) / 4);
    const unsigned wanted = blocks(c.places), room = (unsigned)cu->n_sms;
    const size_t n_bytes = (size_t)c.places * sizeof(uint4);
    send_and_take(cu, sv_cuda_join_site(cu, SV_JOIN_ROWS, n_bytes), n_bytes,
                  [cu, &c, wanted, room](const struct sv_join_site &s) {
                      sv_cuda_launch(cu, "what ranks made of their rows", share_rows_kernel,
                                     wanted < room ? wanted : room, THREADS, 0, s, c);
                  });
}
