/*
 * unicode.c - classes of code points for the split scanners, added tokens and the NFC quick check.
 *
 * Called by scan.c, added.c and nfc.c. The table is generated from what the reference library does
 * (tools/token/make_unicode.py). Must not: hold rules of its own beyond the planes the table leaves
 * out.
 */
#include "base/base.h"
#include "base/unicode_table.h"

uint8_t sv_uni_flags(uint32_t cp)
{
    if (cp >= SV_UNI_LIMIT) /* the generator asserts that this is all there is up there */
        return cp >= 0xE0100 && cp <= 0xE01EF ? SV_UC_M | SV_UF_WORD : SV_UC_OTHER;
    return uni_combo[(uint8_t)uni_block[uni_stage[cp >> 7]][cp & 127]];
}

/* clang-format off */
#define X SV_UC_OTHER
#define W SV_UC_SPACE
#define P SV_UC_P
#define S SV_UC_S
#define N SV_UC_N | SV_UF_WORD
#define U SV_UC_LU | SV_UF_WORD
#define L SV_UC_LL | SV_UF_WORD
#define C SV_UC_P | SV_UF_WORD /* '_' */
const uint8_t sv_uni_ascii[128] = {
    X, X, X, X, X, X, X, X, X, W, W, W, W, W, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X, X,
    W, P, P, P, S, P, P, P, P, P, P, S, P, P, P, P, N, N, N, N, N, N, N, N, N, N, P, P, S, S, S, P,
    P, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, P, P, P, S, C,
    S, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, P, S, P, S, X,
};
/* clang-format on */
