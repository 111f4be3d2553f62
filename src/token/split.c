/*
 * split.c - pre-tokenization: a piece of text through the tokenizer's split steps, word by word to
 * the BPE.
 *
 * Called by encode.c. Each step cuts its piece into matches and gaps and passes on the pieces of
 * its behaviour; the next step sees only one piece, as in the reference. Must not: keep words,
 * which go directly to the BPE.
 */
#include "token/tok.h"

/* One pending piece, until the behaviour decides on it. */
struct joiner {
    const struct sv_tokenizer *tok;
    struct sv_enc_scratch *s;
    int level;
    const char *text;
    struct sv_ids *out;
    struct sv_err *err;
    const struct sv_split *split;
    bool waiting, last_match;
    size_t at, end;
};

static int pass_on(struct joiner *j, size_t at, size_t end)
{
    if (at >= end)
        return SV_OK;
    if (j->level + 1 == j->tok->n_splits && j->tok->prefix_level != j->level + 1) {
        int rc = sv_bpe_word(j->tok, j->s, j->text + at, end - at, j->out);
        return rc < 0 ? sv_fail(j->err, rc, -1, "out of memory") : SV_OK;
    }
    return sv_split_run(j->tok, j->s, j->level + 1, j->text + at, end - at, j->out, j->err);
}

static int flush(struct joiner *j)
{
    bool was = j->waiting;
    j->waiting = false;
    return was ? pass_on(j, j->at, j->end) : SV_OK;
}

static int hold(struct joiner *j, size_t at, size_t end)
{
    int rc = flush(j);
    j->waiting = true;
    j->at = at;
    j->end = end;
    return rc;
}

/* The next piece, in order; pieces cover the text without gaps. */
static int piece(struct joiner *j, size_t at, size_t end, bool match)
{
    bool before = j->last_match;

    match ^= j->split->invert;
    j->last_match = match;
    switch (j->split->behavior) {
    case SV_SPLIT_ISOLATED:
        break;
    case SV_SPLIT_REMOVED:
        if (match)
            return SV_OK;
        break;
    case SV_SPLIT_MERGED_PREVIOUS:
        if (match && !before && j->waiting) {
            j->end = end;
            return SV_OK;
        }
        return hold(j, at, end);
    case SV_SPLIT_MERGED_NEXT:
        if (!match && before && j->waiting) {
            j->end = end;
            return flush(j);
        }
        return hold(j, at, end);
    case SV_SPLIT_CONTIGUOUS:
        if (match == before && j->waiting) {
            j->end = end;
            return SV_OK;
        }
        return hold(j, at, end);
    }
    return pass_on(j, at, end);
}

static int run_scanner(struct joiner *j, size_t n)
{
    const struct sv_scanner *sc = &j->split->scan;
    size_t gap = 0, at = 0;
    int rc = SV_OK;

    while (at < n && rc == SV_OK) {
        size_t end = sv_scan_next(sc, j->text, n, at);
        if (!end) { /* gaps only with expressions for digits */
            int len;
            (void)sv_utf8_get(j->text + at, &len);
            at += (size_t)len;
            continue;
        }
        if (gap < at)
            rc = piece(j, gap, at, false);
        if (rc == SV_OK)
            rc = piece(j, at, end, true);
        gap = at = end;
    }
    return rc == SV_OK && gap < n ? piece(j, gap, n, false) : rc;
}

/* An empty match splits the text, unless it directly follows the last match. */
static int run_regex(struct joiner *j, size_t n)
{
    size_t from = 0, gap = 0, last = SIZE_MAX;

    while (from <= n) {
        size_t at = 0, end = 0;
        int rc = sv_regex_next(&j->split->re, &j->s->regex, j->text, n, from, &at, &end, j->err);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        if (at == end && end == last) {
            do
                from++;
            while (from < n && ((uint8_t)j->text[from] & 0xC0) == 0x80);
            continue;
        }
        from = last = end;
        rc = gap < at ? piece(j, gap, at, false) : SV_OK;
        if (rc == SV_OK)
            rc = piece(j, at, end, true);
        if (rc < 0)
            return rc;
        gap = end;
    }
    return gap < n ? piece(j, gap, n, false) : SV_OK;
}

/* The piece with a space before it, unless it has one. NULL: out of memory. */
static const char *with_space(struct sv_enc_scratch *s, const char *text, size_t *n)
{
    if (text[0] == ' ')
        return text;
    sv_buf_clear(&s->prefixed);
    sv_buf_append(&s->prefixed, " ", 1);
    sv_buf_append(&s->prefixed, text, *n);
    *n += 1;
    return s->prefixed.failed ? NULL : s->prefixed.data;
}

int sv_split_run(const struct sv_tokenizer *tok, struct sv_enc_scratch *s, int level,
                 const char *text, size_t n, struct sv_ids *out, struct sv_err *err)
{
    struct joiner j = {.tok = tok, .s = s, .level = level, .text = text, .out = out, .err = err};
    int rc;

    if (!n)
        return SV_OK;
    if (level == tok->prefix_level) {
        j.text = with_space(s, text, &n);
        if (!j.text)
            return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    if (level == tok->n_splits) {
        rc = sv_bpe_word(tok, s, j.text, n, out);
        return rc < 0 ? sv_fail(err, rc, -1, "out of memory") : SV_OK;
    }
    j.split = &tok->split[level];
    rc = j.split->scan.kind != SV_SCAN_NONE ? run_scanner(&j, n) : run_regex(&j, n);
    return rc < 0 ? rc : flush(&j);
}
