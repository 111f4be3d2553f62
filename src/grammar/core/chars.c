/*
 * chars.c - compiles the two larger expressions: sets of code points as UTF-8, and text up to a
 * marker.
 *
 * Called by compile.c. Must not: accept bytes that are not UTF-8 in a set of code points.
 */
#include "grammar/core/rules.h"

#include <string.h>

/* ---------------------------------------------------------------- UTF-8 */

struct utf8 {
    struct sv_build *b;
    uint32_t next;
    uint32_t any[4];      /* any[k]: any k continuation bytes, then next; 0: not made yet */
    struct sv_list first; /* edges of the node where it begins */
};

static uint32_t any_tail(struct utf8 *u, int k)
{
    if (k == 0)
        return u->next;
    if (!u->any[k])
        u->any[k] = sv_build_byte_node(u->b, 0x80, 0xBF, any_tail(u, k - 1));
    return u->any[k];
}

static int encode(uint32_t c, uint8_t out[4])
{
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    int len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (int i = len - 1; i > 0; i--, c >>= 6)
        out[i] = 0x80 | (c & 0x3F);
    out[0] = (uint8_t)(lead[len] | c);
    return len;
}

/* lo..hi, whose sequences have one length and are a product of ranges of bytes. */
static void add_block(struct utf8 *u, uint32_t lo, uint32_t hi)
{
    uint8_t from[4], to[4];
    int len = encode(lo, from), k = 0;
    uint32_t next = u->next;
    struct sv_edge *edges = u->first.data, *edge;

    SV_REQUIRE(encode(hi, to) == len);
    while (k < len - 1 && from[len - 1 - k] == 0x80 && to[len - 1 - k] == 0xBF)
        k++;
    next = any_tail(u, k);
    for (int i = len - 1 - k; i > 0; i--)
        next = sv_build_byte_node(u->b, from[i], to[i], next);
    if (u->first.n && edges[u->first.n - 1].to == next && edges[u->first.n - 1].hi + 1 == from[0]) {
        edges[u->first.n - 1].hi = to[0];
        return;
    }
    edge = sv_build_grow(u->b, &u->first, 1, sizeof *edge, SV_MAX_NODES, "ranges of characters");
    if (edge)
        *edge = (struct sv_edge){next, from[0], to[0]};
}

/* Cuts lo..hi until each piece is a block. */
static void add_range(struct utf8 *u, uint32_t lo, uint32_t hi)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xFFFF};

    for (int i = 0; i < 3; i++) {
        if (lo <= ends[i] && hi > ends[i]) {
            add_range(u, lo, ends[i]);
            add_range(u, ends[i] + 1, hi);
            return;
        }
    }
    for (uint32_t low = 0x3F; hi > 0x7F && low < hi; low = low << 6 | 0x3F) {
        if ((lo & ~low) == (hi & ~low))
            break;
        if (lo & low) {
            add_range(u, lo, lo | low);
            add_range(u, (lo | low) + 1, hi);
            return;
        }
        if ((hi & low) != low) {
            add_range(u, lo, (hi & ~low) - 1);
            add_range(u, hi & ~low, hi);
            return;
        }
    }
    add_block(u, lo, hi);
}

uint32_t sv_build_utf8(struct sv_build *b, const struct sv_range *ranges, uint32_t n, uint32_t next)
{
    struct utf8 u = {.b = b, .next = next};
    uint32_t edge, node = 0;

    for (uint32_t i = 0; i < n && !b->err.code; i++)
        add_range(&u, ranges[i].lo, ranges[i].hi);
    edge = sv_build_new_edges(b, u.first.n);
    if (!b->err.code) {
        memcpy(sv_build_edge(b, edge), u.first.data, u.first.n * sizeof(struct sv_edge));
        node = sv_build_new_node(b, SV_NODE_BYTES, edge, u.first.n);
    }
    sv_free(u.first.data);
    return node;
}

/* ---------------------------------------------------------------- up to a marker */

#define MAX_MARKER 256

/* goes[s][c]: how much of the marker is matched after byte c, when s bytes of it were (Knuth,
 * Morris and Pratt). */
static void marker_table(const uint8_t *marker, uint32_t n, uint16_t (*goes)[256])
{
    uint32_t shorter = 0; /* the state of marker[1 .. s) */

    memset(goes[0], 0, sizeof goes[0]);
    goes[0][marker[0]] = 1;
    for (uint32_t s = 1; s < n; s++) {
        memcpy(goes[s], goes[shorter], sizeof goes[s]);
        goes[s][marker[s]] = (uint16_t)(s + 1);
        shorter = goes[shorter][marker[s]];
    }
}

/* Edges from one row of the table; place[s] is the node of state s, 0: no way there. */
static uint32_t marker_edges(struct sv_build *b, const uint16_t row[256], const uint32_t *place,
                             uint32_t *n)
{
    uint32_t first = b->edges.n;

    for (uint32_t c = 0; c < 256 && !b->err.code; c++) {
        uint32_t to = place[row[c]], edge;
        if (!to)
            continue;
        if (b->edges.n > first && sv_build_edge(b, b->edges.n - 1)->to == to &&
            sv_build_edge(b, b->edges.n - 1)->hi + 1u == c) {
            sv_build_edge(b, b->edges.n - 1)->hi = (uint8_t)c;
            continue;
        }
        edge = sv_build_new_edges(b, 1);
        if (!b->err.code)
            *sv_build_edge(b, edge) = (struct sv_edge){to, (uint8_t)c, (uint8_t)c};
    }
    *n = b->edges.n - first;
    return first;
}

static uint32_t any_bytes(struct sv_build *b, uint32_t next)
{
    uint32_t edge = sv_build_new_edges(b, 2);
    uint32_t loop = sv_build_new_node(b, SV_NODE_SPLIT, edge, 2);
    uint32_t byte = sv_build_byte_node(b, 0, 0xFF, loop);

    if (b->err.code)
        return 0;
    sv_build_edge(b, edge)->to = byte;
    sv_build_edge(b, edge + 1)->to = next;
    return loop;
}

uint32_t sv_build_marker(struct sv_build *b, const uint8_t *marker, uint32_t n, bool with,
                         uint32_t next)
{
    uint32_t place[MAX_MARKER + 1];
    uint16_t(*goes)[256];

    if (n == 0)
        return any_bytes(b, next);
    if (n > MAX_MARKER) {
        sv_build_fail(b, SV_EFULL, b->pos, "a marker has at most %d bytes", MAX_MARKER);
        return 0;
    }
    goes = sv_alloc(n * sizeof *goes);
    if (!goes) {
        sv_build_fail(b, SV_ENOMEM, -1, "grammar: out of memory");
        return 0;
    }
    marker_table(marker, n, goes);
    for (uint32_t s = 0; s < n; s++)
        place[s] = sv_build_new_node(b, with ? SV_NODE_BYTES : SV_NODE_SPLIT, 0, 0);
    place[n] = with ? next : 0;
    for (uint32_t s = 0; s < n && !b->err.code; s++) {
        uint32_t n_edges, at = marker_edges(b, goes[s], place, &n_edges), bytes = place[s];
        if (!with) { /* more bytes, or the end */
            uint32_t edge = sv_build_new_edges(b, 2);
            bytes = sv_build_new_node(b, SV_NODE_BYTES, 0, 0);
            if (b->err.code)
                break;
            sv_build_edge(b, edge)->to = bytes;
            sv_build_edge(b, edge + 1)->to = next;
            sv_build_node(b, place[s])->at = edge;
            sv_build_node(b, place[s])->n = 2;
        }
        if (!b->err.code) {
            sv_build_node(b, bytes)->at = at;
            sv_build_node(b, bytes)->n = n_edges;
        }
    }
    sv_free(goes);
    return b->err.code ? 0 : place[0];
}
