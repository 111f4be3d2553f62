/*
 * wcomp_expand.h - expands compressed weights (wcomp.h) to bf16, in registers or in a buffer.
 *
 * Included by gemm_wcomp_avx512.c and gemm_amx.c, which expand where they multiply. Needs gemm.h,
 * MUST_INLINE, AVX512-VBMI and VBMI2.
 */
#ifndef SV_CPU_WCOMP_EXPAND_H
#define SV_CPU_WCOMP_EXPAND_H

/* Codes of group i, in the low three bits of every byte; higher bits are ignored. */
MUST_INLINE __m512i codes_of(const uint8_t *block, const int i)
{
    const uint8_t *c = block + SV_WCOMP_CODES;
    if (i < 6) {
        const __m512i v = _mm512_load_si512(c + i / 2 * SV_WCOMP_LINE);
        return i % 2 ? _mm512_srli_epi16(v, 3) : v;
    }
    const __m512i low = _mm512_srli_epi16(_mm512_load_si512(c + (i - 6) * SV_WCOMP_LINE), 6);
    const __m512i v = _mm512_load_si512(c + 2 * SV_WCOMP_LINE);
    const __m512i high = i == 6 ? _mm512_srli_epi16(v, 4) : _mm512_srli_epi16(v, 5);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, high, 0xca);
}

/* Vectors 2i and 2i + 1 of the block; advances in the escapes. */
MUST_INLINE void expand_group(struct sv_wcomp_walk *at, const int i, __m512i *lo, __m512i *hi)
{
    const __m512i code = codes_of(at->block, i);
    const __mmask64 other = _mm512_testn_epi8_mask(code, _mm512_set1_epi8(7));
    __m512i e = _mm512_permutexvar_epi8(code, _mm512_load_si512(at->table));
    e = _mm512_mask_expand_epi8(e, other, _mm512_loadu_si512(at->escapes));
    at->escapes += __builtin_popcountll(other);
    const __m512i s = _mm512_load_si512(at->block + i * SV_WCOMP_LINE);
    *lo = _mm512_unpacklo_epi8(s, e);
    *hi = _mm512_unpackhi_epi8(s, e);
    *lo = _mm512_shrdi_epi16(*lo, *lo, 1);
    *hi = _mm512_shrdi_epi16(*hi, *hi, 1);
}

MUST_INLINE void ask_lines(const uint8_t *p, uintptr_t ahead, const int32_t near)
{
    sv_wcomp_ask_line(p, ahead);
    if (near)
        _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)near), _MM_HINT_T0);
}

/* A block to `to`, 1 KiB. Prefetches lines `ahead` of it into level 2 and, if not 0, `near` into
 * level 1: line buffers are few, and one that waits for level 2 is soon free again. */
UNCHECKED MUST_INLINE void expand_block(struct sv_wcomp_walk *at, uint8_t *to, const int32_t ahead,
                                        const int32_t near)
{
    const uintptr_t to_ask = sv_wcomp_ahead(at, ahead);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512i lo, hi;
        ask_lines(at->block + i * SV_WCOMP_LINE, to_ask, near);
        if (i < 3)
            ask_lines(at->block + SV_WCOMP_CODES + i * SV_WCOMP_LINE, to_ask, near);
        expand_group(at, i, &lo, &hi);
        _mm512_store_si512(to + 2 * i * SV_WCOMP_LINE, lo);
        _mm512_store_si512(to + (2 * i + 1) * SV_WCOMP_LINE, hi);
    }
    at->block += SV_WCOMP_BLOCK;
}

#endif
