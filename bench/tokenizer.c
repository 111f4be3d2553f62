/*
 * tokenizer.c - tokenizer throughput on one core: MB/s per golden tokenizer, per kind of text, and
 * opening.
 *
 * Run by hand: build/bench/tokenizer [--dir tests/golden/tok] [--repeat N] [--file TOKENIZER.json]
 * [--text FILE]. Prints CSV on stdout: tokenizer, text, bytes, ids, then MB/s (1e6 bytes) of the
 * slowest, median and fastest round; a round encodes the text often enough to last 0.1 s. Times are
 * of this process's CPU time, so that other work on the machine disturbs less.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/token/tok_golden.h"

enum { MAX_ROUNDS = 101 };

struct text_class {
    const char *name;
    struct sv_buf text;
};

/* Kinds of documents by their code points, so that no second corpus is needed. */
enum { KIND_ALL, KIND_ASCII, KIND_LATIN, KIND_CJK, KIND_OTHER, KIND_BROKEN, N_KINDS };
static const char *const kind_names[N_KINDS] = {"mixed", "ascii",         "latin",
                                                "cjk",   "other scripts", "broken utf-8"};

static int kind_of(const char *s, size_t n)
{
    size_t wide = 0, cjk = 0, ascii = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)s[i];
        ascii += c < 0x80;
        wide += c >= 0xCC && c < 0xF8;
        cjk += c >= 0xE3 && c <= 0xED;
    }
    json_t *valid = json_stringn(s, n); /* NULL unless UTF-8 */
    json_decref(valid);
    if (!valid)
        return KIND_BROKEN;
    if (ascii == n)
        return KIND_ASCII;
    if (wide * 20 < n)
        return KIND_LATIN;
    return cjk * 2 > wide ? KIND_CJK : KIND_OTHER;
}

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, const struct sv_tokenizer *tok, const struct text_class *c,
                    int n_rounds)
{
    struct sv_enc_scratch *s = sv_enc_scratch_new();
    struct sv_ids ids = {0};
    double rate[MAX_ROUNDS];
    struct sv_err err;

    for (int r = 0; r < n_rounds; r++) {
        double start = cpu_s(), now = start;
        size_t n = 0;
        do {
            ids.n = 0;
            golden_require(sv_tokenizer_encode(tok, s, c->text.data, c->text.len, SV_ENC_SPECIAL,
                                               &ids, &err) == SV_OK,
                           "encode");
            n += c->text.len;
            now = cpu_s();
        } while (now - start < 0.1);
        rate[r] = (double)n * 1e-6 / (now - start);
    }
    qsort(rate, (size_t)n_rounds, sizeof rate[0], by_value);
    printf("%s,%s,%zu,%zu,%.1f,%.1f,%.1f\n", name, c->name, c->text.len, ids.n, rate[0],
           rate[n_rounds / 2], rate[n_rounds - 1]);
    fflush(stdout);
    sv_ids_fini(&ids);
    sv_enc_scratch_free(s);
}

static struct sv_tokenizer *open_timed(const char *name, const char *path, int n_rounds)
{
    struct sv_tokenizer *tok = NULL;
    double ms[MAX_ROUNDS];

    for (int r = 0; r < n_rounds; r++) {
        double start = cpu_s();
        sv_tokenizer_close(tok);
        tok = golden_tokenizer(path);
        ms[r] = (cpu_s() - start) * 1e3;
    }
    qsort(ms, (size_t)n_rounds, sizeof ms[0], by_value);
    printf("# %s: %d tokens, opened in %.1f / %.1f / %.1f ms (fastest, median, slowest)\n", name,
           sv_tokenizer_n_tokens(tok), ms[0], ms[n_rounds / 2], ms[n_rounds - 1]);
    return tok;
}

int main(int argc, char **argv)
{
    const char *dir = "tests/golden/tok", *file = NULL, *text = NULL;
    int64_t n_rounds = 7;
    struct sv_opt options[] = {{"dir", 0, SV_OPT_STRING, &dir, "DIR", "golden files"},
                               {"repeat", 0, SV_OPT_INT, &n_rounds, "N", "rounds"},
                               {"file", 0, SV_OPT_STRING, &file, "FILE", "another tokenizer.json"},
                               {"text", 0, SV_OPT_STRING, &text, "FILE", "another text"},
                               {NULL, 0, SV_OPT_FLAG, NULL, NULL, NULL}};
    struct text_class classes[N_KINDS + 1];
    struct golden_corpus corpus;
    struct sv_err err;
    char path[512];
    int n_pos, rc = sv_opt_parse(options, "tokenizer [options]", argc, argv, &n_pos, &err),
               n_classes = N_KINDS;

    if (rc) {
        if (rc < 0)
            fprintf(stderr, "%s\n", err.msg);
        return rc < 0 ? 2 : 0;
    }
    n_rounds = n_rounds < 1 ? 1 : n_rounds > MAX_ROUNDS ? MAX_ROUNDS : n_rounds;
    snprintf(path, sizeof path, "%s/corpus.bin", dir);
    golden_corpus_open(&corpus, path);
    for (int k = 0; k <= N_KINDS; k++) {
        sv_buf_init(&classes[k].text);
        classes[k].name = k < N_KINDS ? kind_names[k] : text;
    }
    for (uint32_t i = 0; i < corpus.n_docs; i++) {
        struct golden_doc d = golden_doc(&corpus, i);
        sv_buf_append(&classes[KIND_ALL].text, d.text, d.n);
        sv_buf_append(&classes[kind_of(d.text, d.n)].text, d.text, d.n);
    }
    if (text) {
        golden_require(sv_file_read(&classes[n_classes].text, text, 1 << 30, &err) == SV_OK,
                       err.msg);
        n_classes++;
    }
    printf("tokenizer,text,bytes,ids,MB/s slowest,MB/s median,MB/s fastest\n");
    for (int t = 0; t < N_GOLDEN + (file ? 1 : 0); t++) {
        snprintf(path, sizeof path, "%s/%s.json", dir, t < N_GOLDEN ? golden_names[t] : "");
        const char *from = t < N_GOLDEN ? path : file,
                   *name = t < N_GOLDEN ? golden_names[t] : "file";
        struct sv_tokenizer *tok = open_timed(name, from, (int)n_rounds);
        for (int k = 0; k < n_classes; k++)
            if (classes[k].text.len)
                measure(name, tok, &classes[k], (int)n_rounds);
        sv_tokenizer_close(tok);
    }
    for (int k = 0; k <= N_KINDS; k++)
        sv_buf_fini(&classes[k].text);
    sv_map_close(&corpus.map);
    return 0;
}
