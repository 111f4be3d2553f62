/*
 * ids_emulated.cpp - replace_drafts, verify, commit and snapshot of ids.cu run on a CPU by tests/cuda/emulated: verify
 * blocks and chunks of prompts of any length, drafts that are right or not, drawn accept lengths, padding.
 *
 * Built and started by ids_emulated.test.sh.
 */
#include "backend/cuda/cuda.h"

#include <string.h>
#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

namespace
{
enum { SLOTS = 200, STRIDE = 16, KEPT = -5 };

struct world {
    std::vector<int32_t> row_seg, row0 = {0}, slot, kind, logit0 = {0}, len, ids, chosen;
};

world make(sv_rng &rng, int32_t n_segs, int32_t n_padding, bool drawn)
{
    world w;
    for (int32_t s = 0; s < n_segs + n_padding; s++) {
        const bool real = s < n_segs, verify = sv_rng_below(&rng, 4) > 0;
        const int32_t n = real ? 1 + (int32_t)sv_rng_below(&rng, STRIDE) : 0;
        for (int32_t j = 0; j < n; j++)
            w.row_seg.push_back(s);
        w.row0.push_back(w.row0.back() + n);
        w.slot.push_back(real ? (s * 7) % SLOTS : -1);
        w.kind.push_back(verify ? SV_SEG_VERIFY : SV_SEG_PREFILL);
        w.logit0.push_back(w.logit0.back() + (verify ? n : real ? (int32_t)sv_rng_below(&rng, 2) : 0));
        w.len.push_back(drawn ? (int32_t)sv_rng_below(&rng, STRIDE + 4) : 0);
    }
    for (size_t i = 0; i < w.row_seg.size(); i++)
        w.ids.push_back((int32_t)sv_rng_below(&rng, 2));
    for (int32_t i = 0; i < w.logit0.back(); i++)
        w.chosen.push_back((int32_t)sv_rng_below(&rng, 5) ? 1 : 0);
    for (int32_t i = 0; i < 3 * n_padding; i++) {
        w.row_seg.push_back(-1);
        w.ids.push_back(KEPT);
    }
    return w;
}

/* Tokens that segment s must bring, by the definitions in ops_tokens.h. */
std::vector<int32_t> tokens_of(const world &w, size_t s, const std::vector<int32_t> &ids, bool drawn)
{
    const int32_t n = w.row0[s + 1] - w.row0[s], n_logits = w.logit0[s + 1] - w.logit0[s];
    std::vector<int32_t> out;
    if (w.slot[s] < 0 || n_logits == 0)
        return out;
    const int32_t *t = &w.chosen[(size_t)w.logit0[s]];
    if (w.kind[s] == SV_SEG_PREFILL)
        return {t[n_logits - 1]};
    for (int32_t j = 0; j < n; j++) {
        out.push_back(t[j]);
        if (drawn && w.len[s] > 0 ? j + 1 >= w.len[s] : j + 1 < n && ids[(size_t)(w.row0[s] + j + 1)] != t[j])
            break;
    }
    return out;
}

int check(sv_cuda &cu, world w, bool drawn)
{
    const size_t n_segs = w.slot.size();
    const std::vector<int32_t> ids = w.ids;
    std::vector<int32_t> n_commit(n_segs, KEPT), n_emit(n_segs, KEPT), out(n_segs * STRIDE, KEPT);
    std::vector<int32_t> len(SLOTS, 10), anchor(SLOTS, KEPT);
    sv_p_replace_drafts r = {};
    sv_p_verify v = {};
    sv_p_commit c = {};
    int bad = 0;
    r.rows.n_rows = (int32_t)w.row_seg.size();
    r.rows.n_segs = (int32_t)n_segs;
    r.rows.row_seg = w.row_seg.data();
    r.rows.seg_row0 = w.row0.data();
    r.rows.seg_slot = w.slot.data();
    v.rows = r.rows;
    v.seg_kind = r.seg_kind = w.kind.data();
    v.seg_logit0 = r.seg_logit0 = w.logit0.data();
    v.chosen = r.chosen = w.chosen.data();
    v.row_ids = r.row_ids = w.ids.data();
    r.accept_len = w.len.data();
    c.n_segs = (int32_t)n_segs;
    c.seg_slot = w.slot.data();
    c.n_commit = v.n_commit = n_commit.data();
    c.n_emit = v.n_emit = n_emit.data();
    c.out_tokens = v.out_tokens = out.data();
    c.out_stride = v.out_stride = STRIDE;
    c.slot_len = len.data();
    c.slot_anchor = anchor.data();
    if (drawn)
        sv_cuda_replace_drafts((sv_dev *)&cu, &r);
    sv_cuda_verify((sv_dev *)&cu, &v);
    sv_cuda_commit((sv_dev *)&cu, &c);
    for (size_t s = 0; s < n_segs; s++) {
        const std::vector<int32_t> want = tokens_of(w, s, ids, drawn);
        const bool real = w.slot[s] >= 0, prompt = w.kind[s] == SV_SEG_PREFILL;
        const int32_t n = w.row0[s + 1] - w.row0[s], commit = prompt ? n : (int32_t)want.size();
        bad |= n_emit[s] != (real ? (int32_t)want.size() : KEPT) || n_commit[s] != (real ? commit : KEPT);
        for (size_t j = 0; j < STRIDE; j++)
            bad |= out[s * STRIDE + j] != (j < want.size() ? want[j] : KEPT);
        if (!real)
            continue;
        bad |= len[(size_t)w.slot[s]] != 10 + commit;
        bad |= anchor[(size_t)w.slot[s]] != (want.empty() ? KEPT : want.back());
        /* Anchors and prompts stay. */
        for (int32_t j = 0; j < (prompt ? n : 1); j++)
            bad |= w.ids[(size_t)(w.row0[s] + j)] != ids[(size_t)(w.row0[s] + j)];
    }
    for (size_t i = 0; i < ids.size(); i++)
        bad |= ids[i] == KEPT && w.ids[i] != KEPT;
    if (bad)
        printf("%d segments, accept lengths %s: wrong\n", (int)n_segs, drawn ? "drawn" : "found");
    return bad;
}

/* Copied whole where the rows take their slot past the position, else not at all. */
int check_snapshot(sv_cuda &cu, int32_t len, int32_t n_commit, int32_t at, size_t n_bytes)
{
    std::vector<int64_t> src(n_bytes / 8 + 4), dst(n_bytes / 8 + 4, KEPT), want = dst;
    for (size_t i = 0; i < src.size(); i++)
        src[i] = (int64_t)i * 7;
    sv_p_snapshot p = {};
    p.n_commit = &n_commit;
    p.slot_len = &len;
    p.at = at;
    p.src = src.data();
    p.dst = dst.data();
    p.n_bytes = n_bytes;
    sv_cuda_snapshot((sv_dev *)&cu, &p);
    if (len - n_commit < at && at <= len)
        memcpy(want.data(), src.data(), n_bytes);
    if (want == dst)
        return 0;
    printf("snapshot of %d bytes at %d, length %d by %d: wrong\n", (int)n_bytes, at, len, n_commit);
    return 1;
}
} // namespace

int main()
{
    sv_cuda_fault fault = {};
    sv_cuda cu = {};
    sv_rng rng = {7};
    int bad = 0;
    cu.fault = &fault;
    for (int32_t n = 1; n < 180; n += n < 20 ? 1 : 40)
        for (int drawn = 0; drawn < 2; drawn++)
            bad |= check(cu, make(rng, n, n % 3 * 4, drawn), drawn);
    cu.n_sms = 2;
    for (int32_t n_commit = 1; n_commit < 5; n_commit++)
        for (int32_t at = 14; at < 24; at++)
            for (size_t n_bytes = 16; n_bytes < 200000; n_bytes *= 23)
                bad |= check_snapshot(cu, 20, n_commit, at, n_bytes);
    bad |= fault.code != 0;
    printf("%s\n", bad ? "FAILED" : "ok");
    return bad;
}
