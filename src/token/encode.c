/*
 * encode.c - text to ids: repair, added tokens, normalization, splits, BPE, post-processor; the
 * scratch.
 *
 * Called through text.h. The order is the reference's: tokens with normalized=false on the raw
 * text, then each piece between them is normalized and searched for the other added tokens, and the
 * rest is split into words. On an error the output is unchanged. Must not: change the tokenizer.
 */
#include "token/tok.h"

#include <string.h>

#define MAX_TEXT_BYTES ((size_t)1 << 30) /* positions inside a word are 32 bits */

struct sv_enc_scratch *sv_enc_scratch_new(void)
{
    struct sv_enc_scratch *s = sv_calloc(1, sizeof *s);

    if (!s)
        return NULL;
    sv_buf_init(&s->repaired);
    sv_buf_init(&s->nfc);
    sv_buf_init(&s->prefixed);
    sv_buf_init(&s->name);
    s->words = sv_calloc(SV_WORD_SLOTS, sizeof *s->words);
    if (!s->words || sv_regex_work_init(&s->regex) < 0) {
        sv_enc_scratch_free(s);
        return NULL;
    }
    return s;
}

void sv_enc_scratch_free(struct sv_enc_scratch *s)
{
    if (!s)
        return;
    sv_regex_work_fini(&s->regex);
    sv_buf_fini(&s->repaired);
    sv_buf_fini(&s->nfc);
    sv_buf_fini(&s->prefixed);
    sv_buf_fini(&s->name);
    sv_free(s->cut[0].cut);
    sv_free(s->cut[1].cut);
    sv_free(s->cps);
    sv_free(s->symbol);
    sv_free(s->heap);
    sv_free(s->words);
    sv_free(s);
}

void sv_ids_fini(struct sv_ids *ids)
{
    sv_free(ids->id);
    memset(ids, 0, sizeof *ids);
}

static int no_memory(struct sv_err *err)
{
    return sv_fail(err, SV_ENOMEM, -1, "out of memory while encoding");
}

int sv_ids_append(struct sv_ids *out, const int32_t *id, size_t n)
{
    if (sv_ids_reserve(out, n) < 0)
        return SV_ENOMEM;
    if (n)
        memcpy(out->id + out->n, id, n * sizeof *id);
    out->n += n;
    return SV_OK;
}

/* A piece between raw tokens. */
static int encode_piece(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *text,
                        size_t n, bool special, struct sv_ids *out, struct sv_err *err)
{
    if (tok->nfc) {
        bool changed = false;
        sv_buf_clear(&s->nfc);
        if (sv_nfc(s, text, n, &s->nfc, &changed) < 0)
            return no_memory(err);
        if (changed) {
            text = s->nfc.data;
            n = s->nfc.len;
        }
    }
    if (sv_added_cut(tok, s, 1, &tok->normalized, text, n, special) < 0)
        return no_memory(err);
    for (size_t i = 0; i < s->cut[1].n; i++) {
        struct sv_cut c = s->cut[1].cut[i];
        int rc = c.token >= 0 ? sv_ids_append(out, &tok->added[c.token].id, 1)
                              : sv_split_run(tok, s, 0, text + c.at, c.end - c.at, out, err);
        if (rc < 0)
            return rc == SV_ENOMEM ? no_memory(err) : rc;
    }
    return SV_OK;
}

static int encode_text(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *text,
                       size_t n, unsigned flags, struct sv_ids *out, struct sv_err *err)
{
    bool special = (flags & SV_ENC_SPECIAL) != 0, around = (flags & SV_ENC_ADD_SPECIAL) != 0;
    size_t good = sv_utf8_valid(text, n);

    if (good < n) {
        sv_buf_clear(&s->repaired);
        sv_buf_append(&s->repaired, text, good);
        sv_utf8_repair(&s->repaired, text + good, n - good);
        if (s->repaired.failed)
            return no_memory(err);
        text = s->repaired.data;
        n = s->repaired.len;
    }
    if (around && sv_ids_append(out, tok->before, (size_t)tok->n_before) < 0)
        return no_memory(err);
    if (sv_added_cut(tok, s, 0, &tok->raw, text, n, special) < 0)
        return no_memory(err);
    for (size_t i = 0; i < s->cut[0].n; i++) {
        struct sv_cut c = s->cut[0].cut[i];
        int rc = c.token >= 0 ? sv_ids_append(out, &tok->added[c.token].id, 1)
                              : encode_piece(tok, s, text + c.at, c.end - c.at, special, out, err);
        if (rc < 0)
            return rc == SV_ENOMEM ? no_memory(err) : rc;
    }
    if (around && sv_ids_append(out, tok->after, (size_t)tok->n_after) < 0)
        return no_memory(err);
    return SV_OK;
}

int sv_tokenizer_encode(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *text,
                        size_t n, unsigned flags, struct sv_ids *out, struct sv_err *err)
{
    struct sv_enc_scratch *own = NULL;
    size_t n_before = out->n;
    int rc;

    if (n > MAX_TEXT_BYTES)
        return sv_fail(err, SV_EINVAL, -1, "a text of %zu bytes is too long to encode", n);
    if (!s)
        s = own = sv_enc_scratch_new();
    if (!s)
        return no_memory(err);
    if (s->stamp != tok->stamp) {
        memset(s->words, 0, SV_WORD_SLOTS * sizeof *s->words);
        s->stamp = tok->stamp;
    }
    s->regex.budget = (uint64_t)n * 64 + ((uint64_t)1 << 24);
    rc = encode_text(tok, s, n ? text : "", n, flags, out, err);
    if (rc < 0)
        out->n = n_before;
    sv_enc_scratch_free(own);
    return rc;
}
