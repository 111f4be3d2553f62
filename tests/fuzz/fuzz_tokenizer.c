/*
 * fuzz_tokenizer.c - any bytes as tokenizer.json; what parses must encode and decode without
 * surprises.
 *
 * Called by driver.c and libFuzzer. Invariants: every id is known; the same text gives the same ids
 * again from a warm scratch; the stream of pieces is the decoded text and valid UTF-8; where the
 * pipeline loses nothing, decoding gives the text back.
 */
#include <string.h>

#include "token/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Nothing in the file changes or drops bytes. */
static bool lossless(const struct sv_tokenizer *tok)
{
    if (tok->nfc || tok->lacks_bytes || tok->prefix_level >= 0 || tok->n_added)
        return false;
    for (int i = 0; i < tok->n_splits; i++)
        if (tok->split[i].behavior == SV_SPLIT_REMOVED)
            return false;
    return true;
}

static void check_decode(const struct sv_tokenizer *tok, const struct sv_ids *ids, const char *text,
                         size_t n)
{
    struct sv_buf whole, stream, want;
    struct sv_detok d;

    sv_buf_init(&whole);
    sv_buf_init(&stream);
    sv_buf_init(&want);
    sv_detok_init(&d, tok, false);
    for (size_t i = 0; i < ids->n; i++) {
        size_t before = stream.len, len;
        SV_REQUIRE(ids->id[i] >= 0 && ids->id[i] < sv_tokenizer_n_tokens(tok));
        SV_REQUIRE(sv_tokenizer_bytes(tok, ids->id[i], &len));
        sv_detok_push(&d, ids->id[i], &stream);
        SV_REQUIRE(stream.len == before ||
                   sv_utf8_valid(stream.data + before, stream.len - before) == stream.len - before);
    }
    sv_detok_end(&d, &stream);
    SV_REQUIRE(sv_tokenizer_decode(tok, ids->id, ids->n, false, &whole) == SV_OK);
    SV_REQUIRE(whole.len == stream.len &&
               (!whole.len || memcmp(whole.data, stream.data, whole.len) == 0));
    if (lossless(tok)) {
        sv_utf8_repair(&want, text, n);
        SV_REQUIRE(want.len == whole.len &&
                   (!want.len || memcmp(want.data, whole.data, want.len) == 0));
    }
    sv_buf_fini(&whole);
    sv_buf_fini(&stream);
    sv_buf_fini(&want);
}

static void check_text(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, const char *text,
                       size_t n)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct sv_ids ids = {0}, again = {0};
        struct sv_err err;
        int rc = sv_tokenizer_encode(tok, s, text, n, flags, &ids, &err);
        /* An expression may be too slow for a text; nothing else may fail. */
        SV_REQUIRE(rc == SV_OK || (rc == SV_EUNSUPPORTED && ids.n == 0));
        SV_REQUIRE(sv_tokenizer_encode(tok, s, text, n, flags, &again, &err) == rc);
        SV_REQUIRE(ids.n == again.n &&
                   (!ids.n || memcmp(ids.id, again.id, ids.n * sizeof ids.id[0]) == 0));
        if (rc == SV_OK && !(flags & SV_ENC_ADD_SPECIAL))
            check_decode(tok, &ids, text, n);
        sv_ids_fini(&ids);
        sv_ids_fini(&again);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char text[] =
        "Hello don't 123 4567\n\n  x\xC3\xA9 e\xCC\x81\xCC\xA3 \xE4\xBD\xA0\xE5\xA5\xBD "
        "\xF0\x9F\x98\x80"
        "\xFF\xE4\xBD <|x|> <b> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\t\r\n!!";
    struct sv_tokenizer *tok = NULL;
    struct sv_enc_scratch *s;
    struct sv_err err = {0};
    int rc = sv_tokenizer_parse(&tok, (const char *)data, n, &err);

    SV_REQUIRE((rc == SV_OK) == (tok != NULL));
    if (rc < 0) {
        SV_REQUIRE(err.code == rc && err.msg[0]);
        return 0;
    }
    s = sv_enc_scratch_new();
    SV_REQUIRE(s);
    check_text(tok, s, text, sizeof text - 1);
    check_text(tok, s, (const char *)data, n);
    sv_enc_scratch_free(s);
    sv_tokenizer_close(tok);
    return 0;
}
