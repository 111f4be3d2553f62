/*
 * logits_emulated.cpp - the CUDA kernels of logits.cu run on a CPU by tests/cuda/emulated, against the CPU
 * backend's: rules and history bit for bit, log probabilities within rounding.
 *
 * Built and started by logits_emulated.test.sh. tests/backend/test_logits.c holds the CPU's against the definition.
 */
#include "backend/cuda/cuda.h"

#include <vector>

/* device.cu's, which the emulator cannot take whole. */
bool sv_cuda_check(struct sv_cuda *, cudaError_t, const char *)
{
    return true;
}

namespace
{
enum { SLOTS = 5, STRIDE = 96, SEGS = 6 };

struct world {
    int32_t vocab, n_rows, n_logits;
    std::vector<int32_t> row_seg, row0, seg_slot, seg_base, row_pos, row_ids, logit_row, history, bias_ids, ban_ids, listed;
    std::vector<float> bias, logits;
    std::vector<sv_logit_rules> rules;
    std::vector<uint32_t> counts;
    sv_rows rows;
};

int32_t below(sv_rng &rng, uint32_t n)
{
    return (int32_t)sv_rng_below(&rng, n);
}

void random_lists(sv_rng &rng, const sv_logit_rules &r, int32_t *listed, int32_t vocab)
{
    int32_t at = r.n_bad_runs;
    for (int32_t k = 0; k < r.n_bad_runs; k++) {
        for (int32_t n = 1 + below(rng, 3); n > 0; n--)
            listed[at++] = below(rng, 20);
        listed[k] = at;
    }
    for (int32_t k = 0; k < r.n_allowed; k++)
        listed[at++] = below(rng, (uint32_t)vocab);
}

void random_rules(sv_rng &rng, world &w, int32_t slot)
{
    static const float some[] = {0, 0.5f, -1.25f, 2}, repetition[] = {1, 1.3f, 0.6f, 1e-30f};
    sv_logit_rules &r = w.rules[(size_t)slot];
    r = {};
    r.presence = some[below(rng, 4)];
    r.frequency = some[below(rng, 4)];
    r.repetition = repetition[below(rng, 4)];
    r.n_prompt = below(rng, 50);
    r.n_bias = below(rng, 30);
    r.n_ban = below(rng, 5);
    r.ban_before = below(rng, STRIDE);
    r.n_top = below(rng, 22) - 1;
    r.repeat_last = below(rng, 2) * below(rng, STRIDE);
    r.n_bad_runs = below(rng, 9);
    r.n_allowed = below(rng, 3) ? 0 : 20;
    random_lists(rng, r, &w.listed[(size_t)(slot * SV_MAX_LISTED)], w.vocab);
    for (int32_t i = 0; i < r.n_bias; i++) {
        w.bias_ids[(size_t)(slot * SV_MAX_BIAS + i)] = (i * 7 + slot) % w.vocab;
        w.bias[(size_t)(slot * SV_MAX_BIAS + i)] = 5 * sv_rng_normal(&rng);
    }
    r.n_bias = r.n_bias < w.vocab ? r.n_bias : w.vocab; /* no token twice */
    for (int32_t i = 0; i < r.n_ban; i++)
        w.ban_ids[(size_t)(slot * SV_MAX_BAN + i)] = below(rng, (uint32_t)w.vocab);
}

void make(sv_rng &rng, world &w, int32_t vocab)
{
    w = {};
    w.vocab = vocab;
    w.rules.resize(SLOTS);
    w.bias_ids.resize(SLOTS * SV_MAX_BIAS);
    w.bias.resize(SLOTS * SV_MAX_BIAS);
    w.ban_ids.resize(SLOTS * SV_MAX_BAN);
    w.listed.resize(SLOTS * SV_MAX_LISTED);
    for (int32_t s = 0; s < SLOTS; s++)
        random_rules(rng, w, s);
    for (int32_t i = 0; i < SLOTS * STRIDE; i++)
        w.history.push_back(below(rng, 40) ? below(rng, 20) : vocab + 3);
    for (int32_t s = 0; s < SEGS; s++) {
        const bool padding = s == SEGS - 1;
        const int32_t len = padding ? 2 : 1 + below(rng, 16);
        w.row0.push_back(w.n_rows);
        w.seg_slot.push_back(padding ? -1 : (s * 2 + 1) % SLOTS);
        w.seg_base.push_back(below(rng, 60));
        if (!padding && s % 2) /* a ban that ends inside the segment */
            w.rules[(size_t)w.seg_slot.back()].ban_before = w.seg_base.back() + 1 + below(rng, (uint32_t)len);
        for (int32_t j = 0; j < len; j++, w.n_rows++) {
            w.row_seg.push_back(padding ? -1 : s);
            w.row_pos.push_back(padding ? -1 : w.seg_base.back() + j);
            w.row_ids.push_back(below(rng, 40) ? below(rng, 20) : -2);
            if (padding || below(rng, 3))
                w.logit_row.push_back(padding ? -1 : w.n_rows);
        }
    }
    w.row0.push_back(w.n_rows);
    w.n_logits = (int32_t)w.logit_row.size();
    for (int32_t i = 0; i < w.n_logits * vocab; i++)
        w.logits.push_back(below(rng, 50) ? roundf(8 * sv_rng_normal(&rng)) / 2 : -INFINITY);
    w.counts.resize((size_t)(w.n_logits * vocab));
    w.rows = {w.n_rows, SEGS, w.row_seg.data(), w.row0.data(), w.seg_slot.data(), w.seg_base.data(), w.row_pos.data()};
}

int fail(const char *what, int32_t row, int32_t at, double got, double want)
{
    printf("%s: row %d, %d: %.9g, not %.9g\n", what, row, at, got, want);
    return 1;
}

int check_rules(sv_dev *ref, sv_dev *dut, world &w)
{
    std::vector<float> a(w.logits.size(), NAN), b(w.logits.size(), NAN);
    sv_p_logit_rules p = {w.rows, w.n_logits, w.vocab, w.logits.data(), a.data(), w.vocab,
                          w.logit_row.data(), w.row_ids.data(), w.rules.data(), w.bias_ids.data(),
                          w.bias.data(), w.ban_ids.data(), w.listed.data(), w.history.data(), STRIDE, w.counts.data()};
    sv_op_logit_rules(ref, &p);
    p.dst = b.data();
    sv_cuda_logit_rules(dut, &p);
    for (uint32_t c : w.counts)
        if (c)
            return fail("counts", 0, 0, c, 0);
    for (size_t i = 0; i < a.size(); i++)
        if (memcmp(&a[i], &b[i], 4) && a[i] != b[i])
            return fail("rules", (int32_t)i / w.vocab, (int32_t)i % w.vocab, b[i], a[i]);
    b = w.logits; /* in place */
    p.src = p.dst = b.data();
    sv_cuda_logit_rules(dut, &p);
    for (size_t i = 0; i < a.size(); i++)
        if (w.logit_row[i / (size_t)w.vocab] >= 0 && a[i] != b[i])
            return fail("rules in place", (int32_t)i / w.vocab, (int32_t)i % w.vocab, b[i], a[i]);
    return 0;
}

int check_mask(sv_rng &rng, sv_dev *ref, sv_dev *dut, world &w)
{
    const int32_t n_words = sv_mask_words(w.vocab);
    std::vector<float> a(w.logits.size(), NAN), b(w.logits.size(), NAN);
    std::vector<uint32_t> masks;
    std::vector<int32_t> which;
    for (int32_t i = 0; i < 3 * n_words; i++)
        masks.push_back(below(rng, 3) ? (uint32_t)sv_rng_below(&rng, UINT32_MAX) : UINT32_MAX);
    for (int32_t i = 0; i < w.n_logits; i++)
        which.push_back(below(rng, 4) - 1);
    sv_p_logit_mask p = {w.n_logits, w.vocab, w.logits.data(), a.data(), w.vocab, which.data(), masks.data()};
    sv_op_logit_mask(ref, &p);
    p.dst = b.data();
    sv_cuda_logit_mask(dut, &p);
    std::vector<float> c = w.logits; /* in place */
    p.src = p.dst = c.data();
    sv_cuda_logit_mask(dut, &p);
    for (size_t i = 0; i < a.size(); i++)
        if (a[i] != b[i] || a[i] != c[i])
            return fail("mask", (int32_t)i / w.vocab, (int32_t)i % w.vocab, b[i], a[i]);
    return 0;
}

int check_logprobs(sv_rng &rng, sv_dev *ref, sv_dev *dut, world &w)
{
    std::vector<sv_logprob_row> a((size_t)w.n_logits), b((size_t)w.n_logits);
    std::vector<int32_t> slot, token;
    for (int32_t i = 0; i < w.n_logits; i++) {
        w.logits[(size_t)(i * w.vocab + below(rng, (uint32_t)w.vocab))] = 30;
        slot.push_back(w.logit_row[(size_t)i] < 0 ? -1 : i % SLOTS);
        token.push_back(below(rng, (uint32_t)w.vocab));
    }
    sv_p_logprobs p = {w.n_logits, w.vocab, w.logits.data(), w.vocab, slot.data(), w.rules.data(),
                       token.data(), a.data()};
    sv_op_logprobs(ref, &p);
    p.out = b.data();
    sv_cuda_logprobs(dut, &p);
    for (int32_t i = 0; i < w.n_logits; i++) {
        const sv_logprob_row &x = a[(size_t)i], &y = b[(size_t)i];
        if (x.rank != y.rank || x.n_top != y.n_top)
            return fail("rank", i, x.n_top, y.rank, x.rank);
        if (x.logprob != y.logprob && !(fabsf(x.logprob - y.logprob) < 1e-5f))
            return fail("logprob", i, token[(size_t)i], y.logprob, x.logprob);
        for (int32_t k = 0; k < x.n_top; k++) {
            if (x.top_id[k] != y.top_id[k])
                return fail("top id", i, k, y.top_id[k], x.top_id[k]);
            if (x.top_logprob[k] != y.top_logprob[k] && !(fabsf(x.top_logprob[k] - y.top_logprob[k]) < 1e-5f))
                return fail("top", i, k, y.top_logprob[k], x.top_logprob[k]);
        }
    }
    return 0;
}

int check_history(sv_rng &rng, sv_dev *ref, sv_dev *dut, world &w)
{
    std::vector<int32_t> a = w.history, b = w.history, n_commit;
    for (int32_t s = 0; s < SEGS; s++)
        n_commit.push_back(below(rng, (uint32_t)(w.row0[(size_t)s + 1] - w.row0[(size_t)s]) + 1));
    sv_p_history p = {w.rows, w.row_ids.data(), n_commit.data(), a.data(), STRIDE};
    sv_op_history(ref, &p);
    p.history = b.data();
    sv_cuda_history(dut, &p);
    for (size_t i = 0; i < a.size(); i++)
        if (a[i] != b[i])
            return fail("history", (int32_t)i / STRIDE, (int32_t)i % STRIDE, b[i], a[i]);
    return 0;
}

/* What the kernels must complain about. */
int check_faults(sv_cuda &cu, world &w)
{
    sv_dev *dut = (sv_dev *)&cu;
    std::vector<sv_logprob_row> out((size_t)w.n_logits);
    int32_t slot = 0, token = w.vocab;
    w.rules[0].n_top = 2;
    sv_p_logprobs p = {1, w.vocab, w.logits.data(), w.vocab, &slot, w.rules.data(), &token, out.data()};
    sv_cuda_logprobs(dut, &p);
    int bad = cu.fault->code != SV_CUDA_FAULT_LOGPROB;
    *cu.fault = {};
    token = 0;
    w.logits[1] = NAN;
    sv_cuda_logprobs(dut, &p);
    bad |= cu.fault->code != SV_CUDA_FAULT_LOGPROB || cu.fault->c != 1;
    *cu.fault = {};
    std::vector<int32_t> n_commit(SEGS, 1);
    w.row_pos[0] = STRIDE;
    sv_p_history h = {w.rows, w.row_ids.data(), n_commit.data(), w.history.data(), STRIDE};
    sv_cuda_history(dut, &h);
    bad |= cu.fault->code != SV_CUDA_FAULT_HISTORY;
    *cu.fault = {};
    if (bad)
        printf("faults: not what was expected\n");
    return bad;
}
} // namespace

int main()
{
    sv_dev *ref;
    sv_err err = {};
    sv_dev_opts opts = {};
    sv_dev_limits lim = {};
    sv_cuda_fault fault = {};
    sv_cuda cu = {};
    sv_rng rng = {77};
    world w;
    int bad = 0;
    opts.n_threads = 1;
    lim.max_rows = lim.max_logit_rows = 256;
    lim.max_vocab = 4000;
    lim.max_k = lim.max_n = 64;
    lim.max_heads = 1;
    lim.max_head_dim = 64;
    lim.max_positions = 128;
    if (sv_dev_open(&ref, &opts, &err) || sv_dev_reserve(ref, &lim, &err)) {
        printf("%s\n", err.msg);
        return 1;
    }
    cu.fault = &fault;
    static const int32_t vocabs[] = {23, 64, 1500, 96, 3333, 211, 40, 1024};
    for (int32_t vocab : vocabs) {
        make(rng, w, vocab);
        bad |= check_rules(ref, (sv_dev *)&cu, w);
        bad |= check_mask(rng, ref, (sv_dev *)&cu, w);
        bad |= check_logprobs(rng, ref, (sv_dev *)&cu, w);
        bad |= check_history(rng, ref, (sv_dev *)&cu, w);
        if (fault.code)
            bad |= fail("fault", 0, fault.a, fault.code, 0);
    }
    bad |= check_faults(cu, w);
    if (sv_dev_sync(ref, &err)) {
        printf("the reference: %s\n", err.msg);
        bad = 1;
    }
    sv_dev_close(ref);
    printf("%s\n", bad ? "FAILED" : "ok");
    return bad;
}
