/*
 * decode.c - ids to text, whole or as a stream of complete code points.
 *
 * Called through text.h by the engine for every token, so only the caller's buffer allocates, when
 * it grows. Both ways replace broken bytes by U+FFFD, one per maximal invalid sequence, so the
 * pieces of a stream joined together are the whole text. Must not: trust ids.
 */
#include "token/tok.h"

#include <string.h>

#define REPLACEMENT "\xEF\xBF\xBD"

const char *sv_tokenizer_bytes(const struct sv_tokenizer *tok, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= tok->n_tokens || !(tok->flags[id] & SV_TOK_KNOWN))
        return NULL;
    *n = tok->len[id];
    return tok->bytes + tok->at[id];
}

bool sv_tokenizer_is_special(const struct sv_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n_tokens && tok->flags[id] & SV_TOK_SPECIAL;
}

void sv_detok_init(struct sv_detok *d, const struct sv_tokenizer *tok, bool skip_special)
{
    memset(d, 0, sizeof *d);
    d->tok = tok;
    d->skip_special = skip_special;
}

/* Adds one byte to the held ones and emits what is decided. */
static void feed_held(struct sv_detok *d, uint8_t byte, struct sv_buf *out)
{
    d->held[d->n_held++] = byte;
    while (d->n_held > 0) {
        bool ok;
        int step = sv_utf8_step(d->held, (size_t)d->n_held, &ok);
        if (!step)
            return;
        if (ok)
            sv_buf_append(out, d->held, (size_t)step);
        else
            sv_buf_append(out, REPLACEMENT, 3);
        d->n_held -= step;
        memmove(d->held, d->held + step, (size_t)d->n_held);
    }
}

bool sv_detok_skips(const struct sv_detok *d, int32_t id)
{
    if (!d->skip_special || !sv_tokenizer_is_special(d->tok, id))
        return false;
    for (int32_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] == id)
            return false;
    return true;
}

void sv_detok_push(struct sv_detok *d, int32_t id, struct sv_buf *out)
{
    size_t n, i = 0;
    const char *s = sv_tokenizer_bytes(d->tok, id, &n);

    if (!n || sv_detok_skips(d, id))
        return;
    while (i < n) {
        if (!d->n_held) {
            size_t good = sv_utf8_valid(s + i, n - i);
            if (good)
                sv_buf_append(out, s + i, good);
            i += good;
        }
        if (i < n)
            feed_held(d, (uint8_t)s[i++], out);
    }
}

void sv_detok_end(struct sv_detok *d, struct sv_buf *out)
{
    if (d->n_held) /* a prefix of a valid sequence: one maximal sequence */
        sv_buf_append(out, REPLACEMENT, 3);
    d->n_held = 0;
}

int sv_tokenizer_decode(const struct sv_tokenizer *tok, const int32_t *ids, size_t n,
                        bool skip_special, struct sv_buf *out)
{
    struct sv_detok d;

    sv_detok_init(&d, tok, skip_special);
    for (size_t i = 0; i < n; i++)
        sv_detok_push(&d, ids[i], out);
    sv_detok_end(&d, out);
    return out->failed ? SV_ENOMEM : SV_OK;
}
