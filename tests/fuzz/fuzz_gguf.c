/*
 * fuzz_gguf.c - any bytes as a GGUF file.
 *
 * Called by driver.c and libFuzzer. What parses is read: every byte that a tensor claims, a row of
 * each quantized one, the configuration and the tokenizer that the metadata states.
 */
#include "load/gguf.h"

#include "token/token.h"

#include <string.h>

/* Numbers that a converter moved are moved back: all of them are read. */
static void read_checkpoint(const struct sv_gguf *g)
{
    struct sv_ckpt c = {0};
    struct sv_err err = {0};
    sv_arena_init(&c.arena);
    if (sv_gguf_ckpt_fill(&c, g, &err))
        SV_REQUIRE(err.code < 0 && err.msg[0]);
    for (int32_t i = 0; !err.code && i < c.n_tensors; i++)
        for (size_t k = 0; k < c.tensors[i].n_bytes; k++)
            SV_REQUIRE(((const uint8_t *)c.tensors[i].data)[k] <= 255);
    sv_arena_fini(&c.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_tensor(const struct sv_gguf_tensor *t)
{
    enum sv_dtype dtype;
    enum sv_quant_code code;
    uint32_t sum = 0;
    SV_REQUIRE(t->name[0] && !strcmp(t->file, "fuzz") && sv_gguf_format(t->type, &dtype, &code));
    for (size_t i = 0; i < t->n_bytes; i++)
        sum += t->data[i];
    SV_REQUIRE(sum <= UINT8_MAX * t->n_bytes);
    if (code && t->dim[0] < 1 << 16) {
        const struct sv_quant q = {
            .code = code, .rows = 1, .cols = (int32_t)t->dim[0], .data = t->data};
        float *out = sv_alloc((size_t)q.cols * sizeof *out);
        sv_quant_rows(&q, 0, 1, out);
        sv_free(out);
    }
}

static void read_metadata(const struct sv_gguf *g)
{
    struct sv_err err = {0};
    struct sv_buf text;
    struct sv_config cfg;
    json_t *config = sv_gguf_config(g, &err);
    SV_REQUIRE(config || (err.code < 0 && err.msg[0]));
    char *dump = config ? json_dumps(config, 0) : NULL;
    if (dump && !sv_config_parse(&cfg, dump, strlen(dump), &err))
        sv_gguf_config_finish(g, &cfg, &err);
    sv_free(dump);
    json_decref(config);
    config = sv_gguf_tokenizer_config(g, &err);
    SV_REQUIRE(config || (err.code < 0 && err.msg[0]));
    json_decref(config);
    sv_buf_init(&text);
    if (!sv_gguf_tokenizer_json(g, &text, &err) && text.len) {
        struct sv_tokenizer *tok;
        if (!sv_tokenizer_parse(&tok, text.data, text.len, &err))
            sv_tokenizer_close(tok);
    }
    sv_buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sv_arena arena;
    struct sv_gguf g;
    struct sv_err err = {0};
    sv_arena_init(&arena);
    if (sv_gguf_parse(&g, data, n, "fuzz", &arena, &err)) {
        SV_REQUIRE(err.code < 0 && strstr(err.msg, "fuzz"));
    } else {
        for (int32_t i = 0; i < g.n_tensors; i++)
            read_tensor(&g.tensors[i]);
        read_metadata(&g);
        read_checkpoint(&g);
    }
    sv_arena_fini(&arena);
    return 0;
}
