/*
 * test_cuda_layout.c - the index arithmetic that the CUDA matrix products stand on, checked on the
 * host: the packed layout of weights against the swizzle of the hardware, compressed weights,
 * codes, weights in 8 bits, and the sharing out of sums.
 */
#include "rig.h"

#include "backend/gpu/codes.cuh"
#include "backend/gpu/wcomp.cuh"
#include "backend/gpu/fp8.cuh"
#include "backend/gpu/split.cuh"
#include "backend/quant.h"

#include <math.h>
#include <string.h>

/* Every element of the matrix has a place of its own inside the packed bytes. */
static void places_are_distinct(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 1},    {64, 64},  {65, 72},
                                        {200, 72}, {77, 136}, {128, 320}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t rows = shapes[i][0], cols = shapes[i][1];
        const size_t n = sv_packed_bytes(rows, cols) / 2;
        uint8_t *seen = memset(rig_new(n), 0, n);
        for (int32_t r = 0; r < rows; r++)
            for (int32_t c = 0; c < cols; c++) {
                const size_t at = sv_packed_at(r, c, cols);
                assert_true(at < n);
                assert_false(seen[at]);
                seen[at] = 1;
            }
        rig_free(seen);
    }
}

/* The hardware swizzle of 128-byte rows: bits 4..6 of a byte's place are flipped by bits 7..9. */
static void tiles_carry_the_hardware_swizzle(void **state)
{
    (void)state;
    const int32_t cols = 200;
    for (int32_t r = 0; r < 130; r++)
        for (int32_t c = 0; c < cols; c++) {
            const size_t band = (size_t)r / 64, tile = band * 4 + (size_t)c / 64;
            const size_t plain = (size_t)(r % 64) * 128 + (size_t)(c % 64) * 2;
            const size_t swizzled = plain ^ (plain >> 7 & 7) << 4;
            assert_int_equal(sv_packed_at(r, c, cols) * 2, tile * SV_TILE_BYTES + swizzled);
        }
}

/* Every bit before the scales of a strip of codes belongs to one code. */
static void codes_fill_the_strip(void **state)
{
    (void)state;
    for (int32_t bits = 4; bits <= 8; bits++) {
        uint8_t seen[8 * SV_CODES_SCALES_AT(8)] = {0};
        for (int32_t lane = 0; lane < 32; lane++)
            for (int32_t pair = 0; pair < SV_WCOMP_PAIRS; pair++)
                for (int32_t i = 0; i < 2 * (bits % 4 ? bits - 1 : bits); i++) {
                    const int32_t column = i % 2,
                                  at = bits % 4 ? sv_codes_k_bit(pair, column, i / 2, bits)
                                                : sv_codes_word(pair, bits) * 32 +
                                                      sv_codes_shift(pair, column, bits) + i / 2;
                    seen[8 * sv_codes_word_at(lane, at / 32, bits) + at % 32]++;
                }
        for (int32_t at = 0; at < 8 * SV_CODES_SCALES_AT(8); at++)
            assert_int_equal(seen[at], at < 8 * SV_CODES_SCALES_AT(bits));
        if (bits != 4 && bits != 8)
            assert_int_equal(SV_CODES_STRIP_BYTES(bits), 16 * SV_TILE * bits / 8);
        assert_int_equal(SV_CODES_TILE_BYTES(bits) % 128, 0); /* bulk copies and half tiles */
        assert_int_equal(SV_CODES_TILE_BYTES(bits) / 2 % 128, 0);
    }
}

/* NVFP4's scales with five bits of exponent are worth what they were. */
static void scales_keep_their_worth(void **state)
{
    (void)state;
    for (uint32_t code = 1; code < 0x7f; code++) {
        const uint32_t own = sv_codes_e5m3(code);
        assert_true(ldexpf(1 + (float)(own & 7) / 8, (int)(own >> 3) - 16) ==
                    sv_f8_to_f32((uint8_t)code));
    }
    assert_int_equal(sv_codes_e5m3(0), 0);
}

/* The lanes of a compressed strip hold every element of it, each once. */
static void wcomp_lanes_hold_the_strip(void **state)
{
    (void)state;
    uint8_t seen[16][64] = {{0}};
    for (int32_t t = 0; t < 32; t++)
        for (int32_t i = 0; i < SV_WCOMP_PAIRS; i++) {
            const int32_t r = sv_wcomp_row(t, i), c = sv_wcomp_col(t, i);
            assert_true(r >= 0 && r < 16 && c >= 0 && c < 63 && c % 2 == 0);
            seen[r][c]++, seen[r][c + 1]++;
        }
    for (int32_t i = 0; i < 16 * 64; i++)
        assert_int_equal(seen[i / 64][i % 64], 1);
}

/* As the tiles of bf16, with one byte a number. */
static void bytes_have_places_of_their_own(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 8}, {64, 128}, {65, 136}, {200, 320}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t rows = shapes[i][0], cols = shapes[i][1], n_k = (cols + 127) / 128;
        const size_t n = sv_fp8_scales_at(rows, cols);
        uint8_t *seen = memset(rig_new(n), 0, n);
        assert_int_equal(sv_fp8_bytes(rows, cols),
                         n + (size_t)(rows + 63) / 64 * 64 * sizeof(float));
        for (int32_t r = 0; r < rows; r++)
            for (int32_t c = 0; c < cols; c++) {
                const size_t tile = (size_t)(r / 64 * n_k + c / 128), at = sv_fp8_at(r, c, cols);
                const size_t plain = (size_t)(r % 64 * 128 + c % 128);
                assert_int_equal(at, tile * SV_TILE_BYTES + (plain ^ (plain >> 7 & 7) << 4));
                assert_true(at < n);
                assert_false(seen[at]);
                seen[at] = 1;
            }
        rig_free(seen);
    }
}

/* The nearest number, of two equally near the one whose last bit is 0; beyond the largest the
 * largest. */
static void bytes_are_the_nearest_numbers(void **state)
{
    (void)state;
    float value[127];
    for (int32_t b = 0; b < 127; b++) {
        value[b] = sv_fp8_value((uint8_t)b);
        assert_true(b == 0 ? value[b] == 0 : value[b] > value[b - 1]);
        assert_true(sv_fp8_value((uint8_t)(b | 128)) == -value[b]);
        assert_int_equal(sv_fp8_of(value[b]), b);
        assert_int_equal(sv_fp8_of(-value[b]), b | 128);
    }
    assert_true(value[126] == SV_FP8_MAX && value[1] == 0x1p-9f && value[8] == 0x1p-6f);
    for (int32_t b = 0; b < 126; b++) {
        const float middle = (value[b] + value[b + 1]) / 2; /* exact */
        assert_int_equal(sv_fp8_of(middle), b + (b & 1));
        assert_int_equal(sv_fp8_of(nextafterf(middle, 0)), b);
        assert_int_equal(sv_fp8_of(nextafterf(middle, 1000)), b + 1);
    }
    assert_int_equal(sv_fp8_of(1e30f), 126);
    assert_int_equal(sv_fp8_of(-INFINITY), 126 | 128);
    assert_int_equal(sv_fp8_of(NAN) & 127, 127);
    assert_true(isnan(sv_fp8_value(127)) && isnan(sv_fp8_value(255)));
    assert_true(isnan(sv_fp8_scale(0x7fff)) && isinf(sv_fp8_scale(0x7f80)));
    assert_true(sv_fp8_scale(0) == 0 && sv_fp8_inverse(0) == 0 && sv_fp8_scale(0x43e0) == 1);
}

static uint16_t times_power(uint32_t number, uint32_t scale)
{
    const float v = sv_bf16_to_f32((uint16_t)number) * sv_bf16_to_f32((uint16_t)scale);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    assert_int_equal(bits & 0xffff, 0); /* exact */
    return (uint16_t)(bits >> 16);
}

/* Every number that a base reaches comes back bit by bit, whatever stands beside it; all others are
 * refused. */
static void wcomp_numbers_come_back(void **state)
{
    (void)state;
    struct sv_rng rng = {.state = 5};
    for (int32_t base = 0; base <= SV_WCOMP_MAX_BASE; base += 21) {
        const uint32_t scale = (uint32_t)(base + 127) << 7;
        int32_t kept = 0;
        for (uint32_t number = 0; number < 65536; number++) {
            const int32_t e = (int32_t)(number >> 7 & 255), shifted = sv_wcomp_shift(number, base);
            const bool fits = (number & 0x7fff) == 0 || (e > base && e <= base + SV_WCOMP_SPAN);
            assert_int_equal(shifted >= 0, fits);
            if (!fits)
                continue;
            uint32_t pair[SV_WCOMP_PAIRS], word[SV_WCOMP_WORDS], back[SV_WCOMP_PAIRS];
            const int32_t at = kept++ % SV_WCOMP_PAIRS;
            for (int32_t i = 0; i < SV_WCOMP_PAIRS; i++)
                pair[i] = (uint32_t)sv_rng_next(&rng) & 0x87ff87ffu;
            pair[at] = number & 1 ? (pair[at] & 0xffffu) | (uint32_t)shifted << 16
                                  : (pair[at] & 0xffff0000u) | (uint32_t)shifted;
            sv_wcomp_encode(pair, word);
            for (int q = 0; q < 8; q++)
                sv_wcomp_decode_two(word, back, q);
            assert_memory_equal(pair, back, sizeof pair);
            assert_int_equal(times_power((uint32_t)shifted, scale), number);
        }
        assert_int_equal(kept, 2 * (SV_WCOMP_SPAN * 128 + 1));
    }
}

/* All tiles are shared out in equal runs, and every piece of a shared block has a slot of its
 * own. */
static void units_are_equal_and_slots_distinct(void **state)
{
    (void)state;
    static const int32_t cases[][3] = {{24, 64, 66},  {16, 64, 66},  {96, 64, 66},  {16, 192, 66},
                                       {594, 64, 66}, {16, 320, 66}, {1, 512, 66},  {3, 5, 66},
                                       {1, 1, 66},    {1, 2, 66},    {64, 64, 264}, {96, 64, 264},
                                       {7, 13, 1},    {1000, 3, 95}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sv_split s = sv_split_make(cases[i][0], cases[i][1], cases[i][2], i & 1);
        const int32_t all = s.n_blocks * s.n_k;
        assert_true(s.n_units >= 1 && s.n_units <= cases[i][2] && s.n_units <= all);
        assert_int_equal(sv_split_start(&s, 0), 0);
        assert_int_equal(sv_split_start(&s, s.n_units), all);
        uint8_t *used = memset(rig_new((size_t)s.n_units * 2), 0, (size_t)s.n_units * 2);
        for (int32_t u = 0; u < s.n_units; u++) {
            const int32_t t0 = sv_split_start(&s, u), t1 = sv_split_start(&s, u + 1);
            assert_true(t1 > t0);
            assert_true(t1 - t0 >= all / s.n_units - s.skew &&
                        t1 - t0 <= all / s.n_units + 1 + s.skew);
            for (int32_t t = t0; t < t1; t++)
                assert_int_equal(sv_split_unit(&s, t), u);
            for (int32_t b = t0 / s.n_k; b <= (t1 - 1) / s.n_k; b++) {
                const int32_t from = b * s.n_k > t0 ? b * s.n_k : t0;
                const int32_t to = (b + 1) * s.n_k < t1 ? (b + 1) * s.n_k : t1;
                if (to - from == s.n_k)
                    continue; /* not shared */
                const int32_t slot = sv_split_slot(&s, u, b);
                assert_true(slot >= 2 * u && slot <= 2 * u + 1);
                assert_false(used[slot]);
                used[slot] = 1;
            }
        }
        rig_free(used);
    }
}

/* Qwen3-8B on 132 multiprocessors: units as long as one another, few pieces, a launch that fills
 * the device. */
static void units_end_where_blocks_end(void **state)
{
    (void)state;
    static const struct {
        int32_t n_blocks, n_k, max, units, pieces, grid;
    } cases[] = {
        {24, 64, 66, 48, 48, 48},  {16, 64, 66, 64, 64, 66}, {96, 64, 66, 64, 64, 66},
        {16, 192, 66, 64, 64, 66}, {594, 64, 66, 66, 0, 66}, {384, 64, 264, 256, 256, 264},
        {1, 64, 66, 16, 16, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sv_split s =
            sv_split_make(cases[i].n_blocks, cases[i].n_k, cases[i].max, cases[i].max == 66);
        int32_t pieces = 0;
        assert_int_equal(s.n_units, cases[i].units);
        assert_int_equal(sv_split_grid(&s, cases[i].max), cases[i].grid);
        for (int32_t u = 0; u < s.n_units; u++)
            for (int32_t t = sv_split_start(&s, u); t < sv_split_start(&s, u + 1);) {
                const int32_t end = (t / s.n_k + 1) * s.n_k, stop = sv_split_start(&s, u + 1);
                const int32_t to = end < stop ? end : stop;
                pieces += to - t < s.n_k;
                t = to;
            }
        assert_int_equal(pieces, cases[i].pieces);
    }
}

/* Two neighbouring units can add up between themselves: both do equally many tiles, share one block
 * at most, and the sharers of a block are whole pairs. */
static void pairs_share_one_block(void **state)
{
    (void)state;
    static const int32_t cases[][4] = {
        /* blocks, tiles, units at most, sharers of a block */
        {24, 64, 66, 2},  {16, 64, 66, 4}, {96, 64, 66, 2}, {16, 192, 66, 4}, {16, 320, 66, 4},
        {594, 64, 66, 0}, {40, 64, 66, 0}, {10, 64, 66, 0}, {1, 64, 66, 0},   {3, 5, 66, 0},
        {44, 64, 66, 0},  {33, 64, 66, 2}, {33, 3, 66, 0},  {1, 4, 66, 0},    {22, 64, 66, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sv_split s = sv_split_make(cases[i][0], cases[i][1], cases[i][2], true);
        const int32_t sharers = sv_split_paired(&s);
        assert_int_equal(sharers, cases[i][3]);
        if (!sharers)
            continue;
        assert_int_equal(s.n_units % 2, 0);
        for (int32_t u = 0; u < s.n_units; u++) {
            const int32_t t0 = sv_split_start(&s, u), t1 = sv_split_start(&s, u + 1);
            assert_int_equal(t1 - t0, sv_split_start(&s, (u ^ 1) + 1) - sv_split_start(&s, u ^ 1));
            for (int32_t b = t0 / s.n_k; b <= (t1 - 1) / s.n_k; b++) {
                if (t0 <= b * s.n_k && t1 >= (b + 1) * s.n_k)
                    continue;
                const int32_t first = sv_split_unit(&s, b * s.n_k);
                const int32_t last = sv_split_unit(&s, (b + 1) * s.n_k - 1);
                assert_int_equal(last - first + 1, sharers);
                assert_int_equal(first % sharers, 0);
                /* The only cut block of this unit, in the middle of whose pieces nothing else
                 * lies. */
                assert_true(b == (u % 2 || sharers > 2 ? t0 : t1 - 1) / s.n_k);
            }
        }
    }
}

/* Blocks that nobody cuts: the gate and up of Qwen3-8B and heads of 151936 rows in blocks of
 * 192. */
static void whole_blocks_fill_the_device(void **state)
{
    (void)state;
    static const int32_t cases[][3] = {
        {128, 132, 128}, {792, 132, 132}, {22, 132, 0},  {32, 132, 0},    {64, 132, 0},
        {101, 132, 0},   {124, 132, 124}, {123, 132, 0}, {264, 132, 132}, {5, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct sv_split s = sv_split_whole(cases[i][0], 64, cases[i][1]);
        assert_int_equal(s.n_units, cases[i][2]);
        for (int32_t u = 0; u < s.n_units; u++)
            assert_int_equal(sv_split_start(&s, u) % s.n_k, 0);
    }
}

SV_TEST_MAIN(cmocka_unit_test(pairs_share_one_block),
             cmocka_unit_test(whole_blocks_fill_the_device), cmocka_unit_test(places_are_distinct),
             cmocka_unit_test(tiles_carry_the_hardware_swizzle),
             cmocka_unit_test(codes_fill_the_strip), cmocka_unit_test(scales_keep_their_worth),
             cmocka_unit_test(wcomp_lanes_hold_the_strip),
             cmocka_unit_test(bytes_have_places_of_their_own),
             cmocka_unit_test(bytes_are_the_nearest_numbers),
             cmocka_unit_test(wcomp_numbers_come_back),
             cmocka_unit_test(units_are_equal_and_slots_distinct),
             cmocka_unit_test(units_end_where_blocks_end))
