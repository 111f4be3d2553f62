/*
 * fim.c - fill-in-the-middle prompts of /infill and of completions with a suffix: the text before
 * and after a cursor, between the model's own tokens for that.
 *
 * Called by prompt.c. The tokens are looked up in the vocabulary by the names that model families
 * use. Must not: take such tokens from the client's text.
 */
#include "serve/core/prompt.h"
#include "serve/core/server.h"
#include "token/token.h"

#include <string.h>

enum mark { PREFIX, SUFFIX, MIDDLE, REPO, FILE_MARK, PAD, N_MARKS };

/* Qwen and CodeGemma, StarCoder, Granite, DeepSeek, Code Llama, GLM. */
static const char *const names[N_MARKS][8] = {
    [PREFIX] = {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",
                "<\xef\xbd\x9c"
                "fim\xe2\x96\x81"
                "begin\xef\xbd\x9c>",
                "<PRE>", "\xe2\x96\x81<PRE>", "<|code_prefix|>"},
    [SUFFIX] = {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",
                "<\xef\xbd\x9c"
                "fim\xe2\x96\x81"
                "hole\xef\xbd\x9c>",
                "<SUF>", "\xe2\x96\x81<SUF>", "<|code_suffix|>"},
    [MIDDLE] = {"<|fim_middle|>", "<fim-middle>", "<fim_middle>",
                "<\xef\xbd\x9c"
                "fim\xe2\x96\x81"
                "end\xef\xbd\x9c>",
                "<MID>", "\xe2\x96\x81<MID>", "<|code_middle|>"},
    [REPO] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    [FILE_MARK] = {"<|file_sep|>", "<|file_separator|>", "<file_sep>"},
    [PAD] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>"},
};

static int32_t find(const struct sv_tokenizer *tok, enum mark m)
{
    for (size_t i = 0; i < sizeof names[m] / sizeof names[m][0] && names[m][i]; i++) {
        int32_t id = sv_tokenizer_find(tok, names[m][i]);
        if (id >= 0)
            return id;
    }
    return -1;
}

static int find_all(const struct sv_tokenizer *tok, int32_t mark[N_MARKS], struct sv_api_err *e)
{
    static const char *const called[] = {"prefix", "suffix", "middle"};

    for (int m = 0; m < N_MARKS; m++)
        mark[m] = find(tok, (enum mark)m);
    for (int m = PREFIX; m <= MIDDLE; m++)
        if (mark[m] < 0) {
            sv_api_fail(e, 501, "not_supported",
                        "infill is not supported by this model: its vocabulary has no %s token",
                        called[m]);
            e->type = "not_supported_error";
            return -1;
        }
    return 0;
}

/* A prompt under construction. */
struct builder {
    const struct sv_serve *s;
    struct sv_enc_scratch *scratch;
    struct sv_ids ids;
    struct sv_api_err *e;
};

static int no_memory(struct builder *b)
{
    return sv_api_no_memory(b->e);
}

static int add_mark(struct builder *b, int32_t id)
{
    return id >= 0 && sv_ids_append(&b->ids, &id, 1) ? no_memory(b) : 0;
}

static int add_text(struct builder *b, const char *text, size_t n, const char *field)
{
    if (sv_check_text(b->s, n, field, b->e))
        return -1;
    return sv_encode(b->s, b->scratch, text, n, 0, &b->ids, b->e);
}

static int add_json(struct builder *b, const json_t *text, const char *field)
{
    return text ? add_text(b, json_string_value(text), json_string_length(text), field) : 0;
}

static int add_line(struct builder *b, const char *line)
{
    return add_text(b, line, strlen(line), "input_extra");
}

/* Other files as context, with their names where the model has tokens for files. */
static int add_extra(struct builder *b, const json_t *list, const int32_t mark[N_MARKS])
{
    char field[48];

    if (mark[REPO] >= 0 && (add_mark(b, mark[REPO]) || add_line(b, "myproject\n")))
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *chunk = json_array_get(list, i), *name = json_object_get(chunk, "filename");
        const json_t *text = json_object_get(chunk, "text");
        name = json_is_null(name) ? NULL : name;
        snprintf(field, sizeof field, "input_extra[%zu]", i);
        if (!json_is_string(text) || (name && !json_is_string(name)))
            return sv_api_bad(b->e, "input_extra",
                              "'%s' must have a 'text', and a 'filename' or none, that are strings",
                              field);
        bool failed = mark[FILE_MARK] < 0
                          ? add_line(b, "\n\n--- snippet ---\n\n")
                          : add_mark(b, mark[FILE_MARK]) ||
                                (name ? add_json(b, name, field) : add_line(b, "tmp")) ||
                                add_line(b, "\n");
        if (failed || add_json(b, text, field))
            return -1;
    }
    return mark[FILE_MARK] >= 0 ? add_mark(b, mark[FILE_MARK]) || add_line(b, "filename\n") : 0;
}

/* between: text between the prefix and the cursor, or NULL. The names are for errors. */
static int add_cursor(struct builder *b, const json_t *prefix, const char *prefix_name,
                      const json_t *between, const json_t *suffix, const char *suffix_name,
                      const int32_t mark[N_MARKS])
{
    int32_t bos = b->s->model->info.bos_id;
    struct sv_ids begin = {0};

    /* A beginning-of-sequence token, if the tokenizer adds one to a text. */
    int rc = sv_encode(b->s, b->scratch, "", 0, SV_ENC_ADD_SPECIAL, &begin, b->e);
    if (!rc && begin.n && begin.id[0] == bos)
        rc = add_mark(b, bos);
    sv_ids_fini(&begin);
    return rc || add_mark(b, mark[PREFIX]) || add_json(b, prefix, prefix_name) ||
           add_json(b, between, "prompt") || add_mark(b, mark[SUFFIX]) ||
           add_json(b, suffix, suffix_name) || add_mark(b, mark[MIDDLE]);
}

/* Drops the oldest context, so that the rest and an answer fit. */
static void cut_extra(struct builder *b, size_t n_extra, int32_t max_tokens)
{
    size_t context = (size_t)b->s->model->info.context, core = b->ids.n - n_extra;
    size_t answer =
        max_tokens > 0 && (size_t)max_tokens < context / 2 ? (size_t)max_tokens : context / 4;
    size_t room = core + answer < context ? context - core - answer : 0;

    if (n_extra <= room)
        return;
    memmove(b->ids.id, b->ids.id + (n_extra - room), (core + room) * sizeof *b->ids.id);
    b->ids.n = core + room;
}

static int add_stops(struct sv_params *p, const int32_t mark[N_MARKS], struct sv_api_err *e)
{
    for (int m = REPO; m < N_MARKS; m++) {
        if (mark[m] < 0 || p->r.ignore_eos)
            continue;
        if (p->r.n_stop_ids == SV_API_STOP_IDS)
            return sv_api_bad(e, "stop_token_ids", "'stop_token_ids' has more than %d ids",
                              SV_API_STOP_IDS - 3);
        p->stop_ids[p->r.n_stop_ids++] = mark[m];
    }
    return 0;
}

int sv_infill_prompt(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                     struct sv_prompt *out, struct sv_api_err *e)
{
    struct builder b = {.s = s, .scratch = scratch, .e = e};
    int32_t mark[N_MARKS];

    if (find_all(s->model->tok, mark, e))
        return -1;
    int rc = add_extra(&b, p->input_extra, mark);
    size_t n_extra = b.ids.n;
    if (!rc)
        rc = add_cursor(&b, p->input_prefix, "input_prefix", p->prompt, p->input_suffix,
                        "input_suffix", mark);
    if (!rc)
        rc = add_stops(p, mark, e);
    if (rc) {
        sv_ids_fini(&b.ids);
        return -1;
    }
    cut_extra(&b, n_extra, p->r.max_tokens);
    out->ids = b.ids.id; /* allocated by sv_alloc: handed over */
    out->n_ids = (int32_t)b.ids.n;
    return sv_check_prompt(s, out, "input_prefix", e);
}

int sv_suffix_prompt(const struct sv_serve *s, struct sv_enc_scratch *scratch, struct sv_params *p,
                     const json_t *prefix, const char *name, struct sv_prompt *out,
                     struct sv_api_err *e)
{
    struct builder b = {.s = s, .scratch = scratch, .e = e};
    struct sv_api_err why;
    int32_t mark[N_MARKS];

    if (!json_is_string(prefix))
        return sv_api_unsupported(e, name, "'%s' must be a text where there is a 'suffix'", name);
    if (find_all(s->model->tok, mark,
                 &why)) /* the field is not supported, though the endpoint is */
        return sv_api_unsupported(e, "suffix", "'suffix': %s", why.msg);
    int rc = add_cursor(&b, prefix, name, NULL, p->suffix, "suffix", mark);
    if (!rc && !p->infills)
        rc = add_stops(p, mark, e);
    p->infills = true;
    if (rc) {
        sv_ids_fini(&b.ids);
        return -1;
    }
    out->ids = b.ids.id;
    out->n_ids = (int32_t)b.ids.n;
    return 0;
}
