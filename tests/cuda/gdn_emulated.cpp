/*
 * gdn_emulated.cpp - the GPU kernels of the gated delta rule run on a CPU by tests/cuda/emulated: every number of every op
 * within rounding of the CPU backend's, which follows the same passes with a memory of its own; and the bits of outputs,
 * states and kept rows for texts cut into single rows, prompt chunks and blocks with rejected rows, with every accept
 * length at every position modulo 16.
 *
 * Built and started by gdn_emulated.test.sh. tests/backend/test_gdn.c holds the CPU's against the definition,
 * tests/backend/test_cross_gdn.c does the same as this on a GPU.
 */
#include "backend/cuda/cuda.h"
#include "backend/gpu/gdn.h"
#include "backend/gpu/gpu.h"

#include <cmath>
#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

namespace
{
typedef std::vector<uint8_t> bytes;

float act_at(const bytes &x, bool half, size_t i)
{
    return half ? sv_bf16_to_f32(((const uint16_t *)x.data())[i]) : ((const float *)x.data())[i];
}

struct batch {
    sv_rows rows;
    std::vector<int32_t> row_seg, row0 = {0}, slot, base, row_pos;
    std::vector<int32_t> text; /* of each row; < 0: garbage, as a rejected draft */
    int32_t most;              /* rows of a segment */
    void add(int32_t s, int32_t t, int32_t at, int32_t n, int32_t n_true)
    {
        for (int32_t i = 0; i < n; i++) {
            row_seg.push_back((int32_t)slot.size());
            row_pos.push_back(at + i);
            text.push_back(i < n_true ? t : -1);
        }
        slot.push_back(s);
        base.push_back(at);
        row0.push_back((int32_t)row_seg.size());
    }
    void pad(int32_t n)
    {
        const int32_t end = row0.back();
        for (int32_t i = 0; i < n; i++) {
            row_seg.push_back(-1), row_pos.push_back(-1), text.push_back(-1);
            slot.push_back(-1), base.push_back(0x7fffff), row0.push_back(end);
        }
    }
    const sv_rows &view()
    {
        rows = {(int32_t)row_seg.size(), (int32_t)slot.size(), row_seg.data(), row0.data(), slot.data(), base.data(),
                row_pos.data()};
        most = 0;
        for (size_t g = 0; g < slot.size(); g++)
            most = std::max(most, row0[g + 1] - row0[g]);
        return rows;
    }
};

enum { TEXTS = 3, LENGTH = 80, SLOTS = 18 };

/* One side's part of a pass. */
struct mid {
    bytes room, x, out;
    sv_gdn_rows r;
    std::vector<float> scanned;
};

/* n numbers of queries or keys, heads of d; half: parts of bf16 in their place (ops_gdn.h). */
std::vector<float> whole_numbers(const void *at, size_t n, size_t d, bool half)
{
    std::vector<float> v((const float *)at, (const float *)at + n);
    for (size_t i = 0; half && i < n; i++) {
        const uint16_t *const head = (const uint16_t *)((const float *)at + i / d * d);
        v[i] = sv_bf16_to_f32(head[i % d]) + sv_bf16_to_f32(head[d + i % d]);
    }
    return v;
}

/* n kept keys: whole steps of 16 bits where rows before the convolution are bf16. */
std::vector<float> kept_keys(const void *at, size_t n, bool half)
{
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = half ? ((const int16_t *)at)[i] * SV_GDN_KEY_STEP : ((const float *)at)[i];
    return v;
}

struct lab {
    sv_cuda *cu;
    sv_dev *ref;
    sv_rng rng = {7};
    sv_gdn_shape s;
    sv_gdn_block y;
    int32_t channels, width, ld;
    bool half;
    double tol, key_tol;
    std::vector<float> conv, decay, dt_bias, norm;
    std::vector<float> text[TEXTS], want[TEXTS];
    bytes want_out[TEXTS]; /* behind the norm */
    std::vector<bool> known[TEXTS];
    bytes slots[2]; /* CPU, kernels */
    int bad = 0;
    double most = 0;

    lab(sv_cuda *c, sv_dev *r, sv_gdn_shape shape) : cu(c), ref(r), s(shape)
    {
        half = cu->act == SV_BF16;
        tol = half ? 1e-4 : 2e-5; /* numbers in two or three parts */
        key_tol = half ? 1.1 * SV_GDN_KEY_STEP : 1e-5; /* it may round the other way */
        s.conv_dtype = half ? SV_BF16 : SV_F32;
        y = sv_gdn_block_of(&s);
        channels = sv_gdn_channels(&s);
        width = s.n_v_heads * s.v_dim;
        ld = channels + width + 2 * s.n_v_heads;
        conv = draw((size_t)SV_GDN_TAPS * channels, 0.6f, 0, false);
        decay = draw(s.n_v_heads, 0, 0, false);
        for (int32_t h = 0; h < s.n_v_heads; h++)
            decay[h] = -std::exp(1.5f - 3.0f * (float)h);
        dt_bias = draw(s.n_v_heads, 1, 0, false);
        norm = draw(s.v_dim, 0.25f, 1, false);
        for (int t = 0; t < TEXTS; t++) {
            text[t] = draw((size_t)LENGTH * ld, 1, 0, half);
            want[t].resize((size_t)LENGTH * width);
            want_out[t].resize((size_t)LENGTH * width * 4);
            known[t].resize(LENGTH);
        }
        clear();
    }
    std::vector<float> draw(size_t n, float scale, float shift, bool rounded)
    {
        std::vector<float> v(n);
        for (float &x : v) {
            x = shift + scale * sv_rng_normal(&rng);
            if (rounded)
                x = sv_bf16_to_f32(sv_f32_to_bf16(x));
        }
        return v;
    }
    void clear()
    {
        for (bytes &m : slots)
            m.assign((size_t)SLOTS * y.n_bytes, 0);
    }
    bytes remembered(int side, int32_t slot) const
    {
        const auto at = slots[side].begin() + (ptrdiff_t)slot * y.n_bytes;
        return bytes(at, at + y.n_bytes);
    }
    void put(int32_t slot, const bytes (&memory)[2])
    {
        for (int side = 0; side < 2; side++)
            std::copy(memory[side].begin(), memory[side].end(), slots[side].begin() + (ptrdiff_t)slot * y.n_bytes);
    }

    static sv_weight vector_of(const std::vector<float> &v, int32_t rows)
    {
        sv_weight w = {};
        w.data = v.data();
        w.fmt.elem = SV_F32;
        w.rows = rows;
        w.cols = (int32_t)v.size() / rows;
        return w;
    }

    void ops(int side, const sv_rows &rows, int32_t most, mid &m)
    {
        const size_t n = rows.n_rows, elem = side && half ? 2 : 4;
        sv_dev *dev = side ? (sv_dev *)(void *)cu : ref;
        m.room.assign(sv_gdn_rows_lay_out(&m.r, &s, rows.n_rows, nullptr) + 256, 0xff);
        sv_gdn_rows_lay_out(&m.r, &s, rows.n_rows, (void *)(((uintptr_t)m.room.data() + 255) / 256 * 256));
        m.scanned.assign(n * width, NAN);
        m.out.assign(n * width * elem, 0xff);
        sv_p_gdn_conv c = {};
        c.rows = rows;
        c.shape = s;
        c.slots = {slots[side].data(), y.n_bytes};
        c.x = m.x.data();
        c.b = m.x.data() + (channels + width) * elem;
        c.a = m.x.data() + (channels + width + s.n_v_heads) * elem;
        c.ldx = ld;
        c.conv = vector_of(conv, SV_GDN_TAPS);
        c.decay = vector_of(decay, 1);
        c.dt_bias = vector_of(dt_bias, 1);
        c.out = m.r;
        sv_p_gdn_scan scan = {};
        scan.rows = rows;
        scan.shape = s;
        scan.slots = c.slots;
        scan.x = m.r;
        scan.out = m.scanned.data();
        sv_p_gdn_norm nm = {};
        nm.rows = rows;
        nm.shape = s;
        nm.slots = c.slots;
        nm.mid = m.r;
        nm.x = m.scanned.data();
        nm.z = m.x.data() + channels * elem;
        nm.ldz = ld;
        nm.weight = vector_of(norm, 1);
        nm.eps = 1e-6f;
        nm.out = m.out.data();
        if (side && most <= std::min((int)SV_GDN_CHUNK, s.max_block)) {
            sv_p_gdn all = {c, scan, nm, most};
            sv_cuda_gdn_few(dev, &all);
        } else if (side) {
            sv_cuda_gdn_conv(dev, &c), sv_cuda_gdn_scan(dev, &scan), sv_cuda_gdn_norm(dev, &nm);
        } else {
            sv_op_gdn_conv(dev, &c), sv_op_gdn_scan(dev, &scan), sv_op_gdn_norm(dev, &nm);
        }
    }

    /* Whether passes of so many rows a segment are one launch. */
    bool takes_few(int32_t most) const
    {
        return GPU_WAVE == 32 && half && s.k_dim == 128 && s.v_dim == 128 && most <= s.max_block &&
               (most == 1 || s.max_block <= SV_GDN_CHUNK);
    }
    void near(const char *what, const float *got, const float *ref_v, size_t n, double t, int32_t row)
    {
        for (size_t i = 0; i < n && !bad; i++) {
            const double far = std::fabs((double)got[i] - ref_v[i]) / std::max(1.0, std::fabs((double)ref_v[i]));
            most = std::max(most, far / t);
            if (!(far <= t))
                bad = 1, printf("%s: row %d, %d: %.9g, not %.9g\n", what, row, (int)i, got[i], ref_v[i]);
        }
    }
    void same(const char *what, const void *a, const void *b, size_t n, int32_t pos)
    {
        if (!bad && memcmp(a, b, n))
            bad = 1, printf("%s at position %d: other bits\n", what, pos);
    }

    /* All numbers of the kernels' pass against the CPU's. */
    void values(const sv_rows &rows, int32_t most_rows, const mid (&m)[2])
    {
        for (int32_t r = 0; r < rows.n_rows && rows.row_seg[r] >= 0; r++) {
            const size_t nv = s.n_v_heads, nk = s.n_k_heads;
            const bool in_one = takes_few(most_rows); /* nothing in between is kept */
            const int32_t line = rows.row_pos[r] % SV_GDN_CHUNK;
            const size_t n_qk = in_one ? 0 : 2 * nk * s.k_dim;
            const float *const got_row = m[1].r.qkv + (size_t)r * channels, *const row = m[0].r.qkv + (size_t)r * channels;
            near("queries and keys", whole_numbers(got_row, n_qk, s.k_dim, half).data(), row, n_qk, key_tol, r);
            near("values", got_row + n_qk, row + n_qk, in_one ? 0 : channels - n_qk, 1e-5, r);
            near("gates", m[1].r.gate + r * 2 * nv, m[0].r.gate + r * 2 * nv, in_one ? 0 : 2 * nv, 1e-5, r);
            for (size_t h = 0; h < 2 * nk && !in_one; h++)
                near("dots", m[1].r.dots + (r * 2 * nk + h) * SV_GDN_CHUNK, m[0].r.dots + (r * 2 * nk + h) * SV_GDN_CHUNK,
                     line + 1, 2 * key_tol, r);
            near("scan", m[1].scanned.data() + (size_t)r * width, m[0].scanned.data() + (size_t)r * width, width, tol, r);
            for (int32_t i = 0; i < width; i++) { /* the norm of the same numbers */
                const float got = act_at(m[1].out, half, (size_t)r * width + i),
                            is = act_at(m[0].out, false, (size_t)r * width + i);
                near("norm", &got, &is, 1, half ? 1.2e-2 : 1e-4, r);
            }
        }
        for (int32_t g = 0; g < rows.n_segs; g++) {
            if (rows.seg_slot[g] < 0)
                continue;
            const bytes a = remembered(1, rows.seg_slot[g]), b = remembered(0, rows.seg_slot[g]);
            same("position of the state", a.data(), b.data(), 4, rows.seg_base[g]);
            near("state", (const float *)&a[y.state], (const float *)&b[y.state], (size_t)width * s.k_dim, tol, g);
            const size_t n_keys = (size_t)s.n_k_heads * y.k_ring * s.k_dim;
            near("kept keys", kept_keys(&a[y.k], n_keys, half).data(), kept_keys(&b[y.k], n_keys, half).data(), n_keys, key_tol, g);
            near("kept u", (const float *)&a[y.u], (const float *)&b[y.u], (size_t)width * y.ring, tol, g);
            near("kept G", (const float *)&a[y.g], (const float *)&b[y.g], (size_t)s.n_v_heads * y.ring, 1e-5, g);
            same("rows before the convolution", &a[y.conv], &b[y.conv],
                 (size_t)y.conv_ring * channels * sv_dtype_bytes(s.conv_dtype), rows.seg_base[g]);
        }
    }

    void pass(batch &b)
    {
        const sv_rows &rows = b.view();
        mid m[2];
        for (int side = 0; side < 2; side++)
            m[side].x.resize((size_t)rows.n_rows * ld * (side && half ? 2 : 4));
        for (int32_t r = 0; r < rows.n_rows; r++)
            for (int32_t i = 0; i < ld; i++) {
                const int32_t t = b.text[r];
                float x = t < 0 ? 2 * sv_rng_normal(&rng) : text[t][(size_t)b.row_pos[r] * ld + i];
                const uint16_t h = sv_f32_to_bf16(x);
                if (half)
                    x = sv_bf16_to_f32(h);
                ((float *)m[0].x.data())[(size_t)r * ld + i] = x;
                if (half)
                    ((uint16_t *)m[1].x.data())[(size_t)r * ld + i] = h;
                else
                    ((float *)m[1].x.data())[(size_t)r * ld + i] = x;
            }
        ops(0, rows, b.most, m[0]);
        ops(1, rows, b.most, m[1]);
        values(rows, b.most, m);
        for (int32_t r = 0; r < rows.n_rows; r++) {
            const int32_t t = b.text[r], pos = b.row_pos[r];
            if (t < 0)
                continue;
            float *w = &want[t][(size_t)pos * width];
            const float *got = &m[1].scanned[(size_t)r * width];
            const size_t n_out = width * (half ? 2 : 4);
            const uint8_t *const out = m[1].out.data() + r * n_out;
            uint8_t *const o = &want_out[t][pos * n_out];
            if (known[t][pos]) {
                same("output", w, got, width * sizeof *w, pos);
                same("norm", o, out, n_out, pos);
            }
            std::copy(got, got + width, w);
            std::copy(out, out + n_out, o);
            known[t][pos] = true;
        }
    }

    void one(int32_t slot, int32_t t, int32_t at, int32_t n, int32_t n_true)
    {
        batch b;
        b.add(slot, t, at, n, n_true);
        pass(b);
    }

    /* The kernels' memory of c positions, all of which were folded as far as they can be. */
    void same_memory(int32_t slot, const bytes &want_block, int32_t c)
    {
        const bytes got = remembered(1, slot);
        const size_t row = (size_t)channels * sv_dtype_bytes(s.conv_dtype);
        auto each = [&](const char *what, int64_t at, int32_t n_heads, int32_t ring, size_t n, int32_t pos) {
            for (int32_t h = 0; h < n_heads; h++) {
                const size_t i = (size_t)at + ((size_t)h * ring + pos % ring) * n;
                same(what, &got[i], &want_block[i], n, pos);
            }
        };
        same("position", got.data(), want_block.data(), 4 * s.n_v_heads, c);
        same("state", &got[y.state], &want_block[y.state], (size_t)(y.k - y.state), c);
        for (int32_t pos = c / SV_GDN_CHUNK * SV_GDN_CHUNK; pos < c; pos++) {
            each("kept key", y.k, s.n_k_heads, y.k_ring, s.k_dim * (half ? 2 : 4), pos);
            each("kept u", y.u, s.n_v_heads, y.ring, s.v_dim * 4, pos);
            each("kept G", y.g, s.n_v_heads, y.ring, 4, pos);
        }
        for (int32_t pos = std::max(0, c - 3); pos < c; pos++) {
            const size_t i = (size_t)y.conv + pos % y.conv_ring * row;
            same("row before the convolution", &got[i], &want_block[i], row, pos);
        }
    }
};

/* Cut at random, several texts in a pass; at the end a prompt chunk folds all. */
int check_cuts(sv_cuda *cu, sv_dev *ref, sv_gdn_shape shape, int32_t length, int n_cuts)
{
    lab l(cu, ref, shape);
    const int32_t most = shape.max_block, tail = most + 1, end = length - tail;
    bytes whole[TEXTS];
    batch first; /* as one chunk each, all in one pass */
    for (int32_t t = 0; t < TEXTS; t++)
        first.add(t, t, 0, length, length);
    l.pass(first);
    for (int32_t t = 0; t < TEXTS; t++)
        whole[t] = l.remembered(1, t);
    for (int i = 0; i < n_cuts && !l.bad; i++) {
        l.clear();
        int32_t at[TEXTS] = {};
        for (int32_t open = TEXTS; open && !l.bad;) {
            batch b;
            const bool alone = i % 2 == 0 && sv_rng_below(&l.rng, 3); /* single rows, all of them */
            open = 0;
            for (int32_t t = 0; t < TEXTS; t++) {
                const int32_t left = end - at[t], kind = alone ? 0 : (int32_t)sv_rng_below(&l.rng, 4);
                if (left == 0 || kind == 3)
                    continue;
                int32_t n = kind == 0 ? 1 : kind == 1 ? most : 1 + (int32_t)sv_rng_below(&l.rng, 40);
                const int32_t n_true =
                    std::min(left, kind == 1 ? 1 + (int32_t)sv_rng_below(&l.rng, (uint32_t)n) : n);
                b.add(t, t, at[t], kind == 1 ? n : n_true, n_true);
                at[t] += n_true;
            }
            b.pad((int32_t)sv_rng_below(&l.rng, 3));
            if (b.slot.size() && b.slot[0] >= 0)
                l.pass(b);
            for (int32_t t = 0; t < TEXTS; t++)
                open += at[t] < end;
        }
        for (int32_t t = 0; t < TEXTS && !l.bad; t++) {
            l.one(t, t, end, tail, tail);
            l.same_memory(t, whole[t], length);
        }
    }
    printf("%d and %d heads, %d x %d, blocks of %d, %s: %.2f of what is allowed\n", (int)shape.n_k_heads,
           (int)shape.n_v_heads, (int)shape.k_dim, (int)shape.v_dim, (int)most, l.half ? "bf16" : "f32", l.most);
    return l.bad;
}

/* Every accept length at every position modulo 16, two blocks in a row, all lengths in one pass. */
int check_accepts(sv_cuda *cu, sv_dev *ref, sv_gdn_shape shape, int32_t step)
{
    enum { TAIL = SV_GDN_CHUNK + 1 };
    lab l(cu, ref, shape);
    const int32_t most = shape.max_block;
    std::vector<bytes> alone[2], end(LENGTH); /* before each position by single rows; after a chunk from there on */
    for (int32_t pos = 0; pos < LENGTH; pos++) {
        for (int side = 0; side < 2; side++)
            alone[side].push_back(l.remembered(side, 0));
        l.one(0, 0, pos, 1, 1);
    }
    for (int32_t pos = 0; pos + TAIL <= LENGTH; pos++) {
        l.put(0, {alone[0][pos], alone[1][pos]});
        l.one(0, 0, pos, TAIL, TAIL);
        end[pos] = l.remembered(1, 0);
    }
    for (int32_t c = 16; c < 32 && !l.bad; c += step) {
        batch b[3];
        auto second = [&](int32_t a) { return 1 + (a * 7 + c) % most; };
        for (int32_t a = 1; a <= most; a++) {
            l.put(a, {alone[0][c], alone[1][c]});
            b[0].add(a, 0, c, most, a);
            b[1].add(a, 0, c + a, most, second(a));
            b[2].add(a, 0, c + a + second(a), TAIL, TAIL);
        }
        for (batch &x : b)
            l.pass(x);
        for (int32_t a = 1; a <= most; a++)
            l.same_memory(a, end[c + a + second(a)], c + a + second(a) + TAIL);
    }
    return l.bad;
}

/* A cleared block stands before any position. */
int check_cleared(sv_cuda *cu, sv_dev *ref, const sv_gdn_shape &shape)
{
    lab l(cu, ref, shape);
    l.one(0, 0, 50, 20, 20);
    l.clear();
    for (int32_t pos = 50; pos < 70; pos++)
        l.one(0, 0, pos, 1, 1);
    return l.bad;
}
} // namespace

int main()
{
    sv_err err = {};
    sv_dev_opts opts = {};
    sv_cuda_fault fault = {};
    sv_dev *ref;
    opts.backend = "cpu";
    opts.n_threads = 1;
    if (sv_dev_open(&ref, &opts, &err)) {
        printf("%s\n", err.msg);
        return 1;
    }
    sv_cuda cu = {};
    cu.fault = &fault;
    cu.smem_block = 160 << 10;
    int bad = 0;
    const sv_gdn_shape small = {2, 4, 16, 32, 16, SV_F32}, odd = {1, 3, 48, 80, 16, SV_F32},
                       large = {1, 2, 128, 128, 16, SV_F32};
    for (bool half : {false, true}) {
        cu.act = half ? SV_BF16 : SV_F32;
        cu.n_sms = 8; /* large batches are more thread blocks */
        for (int32_t most : {1, 5, 16}) {
            sv_gdn_shape s = small;
            s.max_block = most;
            bad |= check_cuts(&cu, ref, s, 70, 3);
        }
        bad |= check_cuts(&cu, ref, odd, 60, 1);
        cu.n_sms = 16; /* prompts have waves that prepare a chunk */
        bad |= check_cuts(&cu, ref, large, LENGTH, 2); /* so long that chunks are fetched ahead */
        bad |= check_accepts(&cu, ref, {1, 2, 16, 16, 16, SV_F32}, half ? 5 : 1);
        if (half) {
            sv_gdn_shape few = large; /* without a drafter: the shortest rings */
            few.max_block = 1;
            bad |= check_cuts(&cu, ref, few, 60, 1);
            bad |= check_accepts(&cu, ref, large, 8);
            bad |= check_cleared(&cu, ref, large);
        }
        bad |= check_cleared(&cu, ref, small);
    }
    sv_dev_close(ref);
    printf("%s\n", bad ? "FAILED" : "all as they should be");
    return bad;
}
