/*
 * tiles_avx512.h - one function for each tile of units by rows, and the choice among them, for
 * gemm_bf16_avx512.c, gemm_i8_avx512.c and gemm_wcomp_avx512.c. Needs tile(t, nu, nr) and
 * UNCHECKED, and for more than one unit at a time MOST_UNITS; without it the includer chooses
 * tiles.
 */
#define TILE(nu, nr)                                                                               \
    UNCHECKED static void tile_##nu##x##nr(const struct tile *t)                                   \
    {                                                                                              \
        tile(t, nu, nr);                                                                           \
    }
#define TILES_OF_ONE_UNIT(f)                                                                       \
    f(1, 1) f(1, 2) f(1, 3) f(1, 4) f(1, 5) f(1, 6) f(1, 7) f(1, 8) f(1, 9) f(1, 10) f(1, 11)      \
        f(1, 12) f(1, 13) f(1, 14) f(1, 15) f(1, 16)
TILES_OF_ONE_UNIT(TILE)
typedef void tile_fn(const struct tile *t);
#define ENTRY(nu, nr) [nr] = tile_##nu##x##nr,

#ifdef MOST_UNITS
TILE(2, 1)
TILE(2, 2)
TILE(2, 3)
TILE(2, 4)
TILE(2, 5)
TILE(2, 6)
TILE(2, 7)
TILE(2, 8)
TILE(4, 1)
TILE(4, 2)
TILE(4, 3)
TILE(4, 4)
TILE(8, 1)
TILE(8, 2)

/* The widest tile of at most `units` units for nr rows: six sums in flight hide the latency of one,
 * and units that share them fetch rows once. */
static tile_fn *choose(int nr, int32_t units, int *nu)
{
    static tile_fn *const one[17] = {TILES_OF_ONE_UNIT(ENTRY)};
    static tile_fn *const two[17] = {NULL,     tile_2x1, tile_2x2, tile_2x3, tile_2x4,
                                     tile_2x5, tile_2x6, tile_2x7, tile_2x8};
    static tile_fn *const four[17] = {NULL, tile_4x1, tile_4x2, tile_4x3, tile_4x4};
    static tile_fn *const eight[17] = {NULL, tile_8x1, tile_8x2};
    static tile_fn *const *const table[] = {eight, four, two, one};
    int i = 0;
    for (*nu = MOST_UNITS; *nu > 1 && (*nu > units || !table[i][nr]); *nu /= 2)
        i++;
    return table[i][nr];
}

/* Prefetch distance of the first block of rows, into level 2. Units are contiguous, so this reaches
 * into the next one, or past the last, which is harmless. Parallel units prefetch the same place in
 * the next group: nearer, they would prefetch each other's, and half of all lines never. */
#define AHEAD_BYTES 8192
#define AHEAD_MOST (128 << 10)

static size_t ahead_of(int nu, size_t unit_bytes)
{
    const size_t group = (size_t)nu * unit_bytes;
    return nu == 1 || group > AHEAD_MOST ? AHEAD_BYTES : group;
}
#endif
