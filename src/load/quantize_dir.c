/*
 * quantize_dir.c - a quantized model as a directory, in layouts of compressed-tensors that
 * quant_bind.c reads.
 *
 * Called by quantize.c. Must not: leave an incomplete directory.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/quantize.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PARTS = 3, COPY_MAX_BYTES = 1 << 28 };

/* How a code is written. */
struct layout {
    enum sv_quant_code code;
    const char *format, *type, *strategy;
    int32_t bits, group; /* group 0: a scale for each row */
    const char *codes, *codes_dtype, *scale_dtype;
    int32_t per_elem, elem_bytes; /* weights and bytes of an element of codes */
};
static const struct layout layouts[] = {
    {SV_CODE_F8, "float-quantized", "float", "channel", 8, 0, "weight", "F8_E4M3", "BF16", 1, 1},
    {SV_CODE_MXFP4, "mxfp4-pack-quantized", "float", "group", 4, SV_ROUND_GROUP, "weight_packed",
     "U8", "U8", 2, 1},
    {SV_CODE_INT8, "pack-quantized", "int", "group", 8, SV_ROUND_GROUP, "weight_packed", "I32",
     "BF16", 4, 4},
    {SV_CODE_INT4, "pack-quantized", "int", "group", 4, SV_ROUND_GROUP, "weight_packed", "I32",
     "BF16", 8, 4},
};

/* One tensor of the file that is written. */
struct part {
    const char *suffix, *dtype; /* NULL: the name as it is */
    int32_t n_dims;
    int64_t dim[SV_MAX_DIMS];
    size_t n_bytes, at;
};

struct plan {
    const struct sv_model_source *m;
    const struct layout *l;
    struct part *parts; /* (n_tensors, MAX_PARTS), dtype NULL: none */
    size_t n_bytes;     /* of all data */
    struct sv_buf header;
    size_t data_at; /* where data begins in the file */
    struct sv_err *err;
};

/* ---------------------------------------------------------------- what is written where */

static void set_part(struct part *p, const char *suffix, const char *dtype, int64_t rows,
                     int64_t cols, size_t elem)
{
    *p = (struct part){.suffix = suffix,
                       .dtype = dtype,
                       .n_dims = cols ? 2 : 1,
                       .dim = {rows, cols},
                       .n_bytes = (size_t)rows * (size_t)(cols ? cols : 1) * elem};
}

static int plan_tensor(struct plan *p, const struct sv_source *s, struct part *part)
{
    const struct layout *l = p->l;
    const struct sv_host_tensor *t = &s->t;
    int rc = sv_check_source(s, l->group, p->err);
    if (rc)
        return rc;
    if (!s->rounded) {
        *part = (struct part){.dtype = t->dtype == SV_F32   ? "F32"
                                       : t->dtype == SV_F16 ? "F16"
                                                            : "BF16",
                              .n_dims = t->n_dims,
                              .n_bytes = t->n_bytes};
        memcpy(part->dim, t->dim, sizeof part->dim);
        return SV_OK;
    }
    set_part(&part[0], l->codes, l->codes_dtype, t->dim[0], t->dim[1] / l->per_elem,
             (size_t)l->elem_bytes);
    set_part(&part[1], "weight_scale", l->scale_dtype, t->dim[0],
             l->group ? t->dim[1] / l->group : 1, l->code == SV_CODE_MXFP4 ? 1 : 2);
    if (l->per_elem > 2) /* words: the number of columns may be padded */
        set_part(&part[2], "weight_shape", "I32", 2, 0, 4);
    return SV_OK;
}

/* As in published files of the family. */
static void name_of(const struct plan *p, const struct sv_host_tensor *t, const struct part *part,
                    char *buf, size_t size)
{
    static const char *const bare[] = {"mtp.", "vision_tower.", "mm_projector."};
    const struct sv_arch_row *row = sv_arch_row(p->m->cfg->arch);
    const bool outer = row->wrapped && row->latent, tower = !strncmp(t->name, "visual.", 7);
    const char *prefix = p->m->draft              ? ""
                         : outer                  ? "language_model.model."
                         : row->wrapped && !tower ? "model.language_model."
                                                  : "model.";
    if (!strncmp(t->name, "lm_head.", 8))
        prefix = outer ? "language_model." : "";
    for (size_t i = 0; i < sizeof bare / sizeof bare[0]; i++)
        if (!strncmp(t->name, bare[i], strlen(bare[i])))
            prefix = "";
    const size_t n = part->suffix ? strlen(t->name) - strlen("weight") : strlen(t->name);
    snprintf(buf, size, "%s%.*s%s", prefix, (int)n, t->name, part->suffix ? part->suffix : "");
}

static size_t elem_of(const struct part *p)
{
    return !strcmp(p->dtype, "F32") || !strcmp(p->dtype, "I32")      ? 4
           : !strcmp(p->dtype, "U8") || !strcmp(p->dtype, "F8_E4M3") ? 1
                                                                     : 2;
}

/* Offsets, wide elements first so that all are aligned, and the header. */
static int lay_out(struct plan *p)
{
    struct sv_buf *h = &p->header;
    const int32_t n = p->m->list->n * MAX_PARTS;
    for (size_t elem = 4; elem; elem /= 2)
        for (int32_t i = 0; i < n; i++)
            if (p->parts[i].dtype && elem_of(&p->parts[i]) == elem) {
                p->parts[i].at = p->n_bytes;
                p->n_bytes += p->parts[i].n_bytes;
            }
    sv_buf_lit(h, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int32_t i = 0; i < n; i++) {
        const struct part *part = &p->parts[i];
        char name[256];
        if (!part->dtype)
            continue;
        name_of(p, &p->m->list->s[i / MAX_PARTS].t, part, name, sizeof name);
        sv_buf_printf(h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, part->dtype);
        for (int32_t k = 0; k < part->n_dims; k++)
            sv_buf_printf(h, "%s%lld", k ? "," : "", (long long)part->dim[k]);
        sv_buf_printf(h, "],\"data_offsets\":[%zu,%zu]}", part->at, part->at + part->n_bytes);
    }
    sv_buf_lit(h, "}");
    while (h->len % 8 && !h->failed)
        sv_buf_lit(h, " ");
    p->data_at = 8 + h->len;
    return h->failed ? sv_fail(p->err, SV_ENOMEM, -1, "out of memory") : SV_OK;
}

static int make_plan(struct plan *p)
{
    int rc = SV_OK;
    p->parts = sv_calloc((size_t)p->m->list->n * MAX_PARTS, sizeof *p->parts);
    if (!p->parts)
        return sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < p->m->list->n && !rc; i++)
        rc = plan_tensor(p, &p->m->list->s[i], p->parts + i * MAX_PARTS);
    return rc ? rc : lay_out(p);
}

/* ---------------------------------------------------------------- files */

static int round_tensor(const struct plan *p, const struct sv_out *f,
                        const struct sv_host_tensor *t, const struct part *part)
{
    const int32_t shape[2] = {(int32_t)t->dim[0], (int32_t)t->dim[1]};
    struct sv_quantized report;
    uint8_t *codes = sv_calloc(part[0].n_bytes, 1), *scales = sv_calloc(part[1].n_bytes, 1);
    int rc = codes && scales ? SV_OK : sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", t->name);
    if (!rc)
        rc = sv_round_matrix(t, p->l->code, codes, scales, &report, p->err);
    if (!rc)
        rc = sv_out_put(f, codes, part[0].n_bytes, p->data_at + part[0].at);
    if (!rc)
        rc = sv_out_put(f, scales, part[1].n_bytes, p->data_at + part[1].at);
    if (!rc && part[2].dtype)
        rc = sv_out_put(f, shape, sizeof shape, p->data_at + part[2].at);
    sv_free(codes);
    sv_free(scales);
    if (rc)
        return rc;
    report.n_bytes_before = (int64_t)t->n_bytes;
    return p->m->on_matrix(p->m->user, &report);
}

static int write_tensors(const struct plan *p, const char *path)
{
    struct sv_out f;
    uint8_t size[8];
    int rc = sv_out_open(&f, path, p->data_at + p->n_bytes, p->err);
    if (rc)
        return rc;
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)((uint64_t)p->header.len >> (8 * i));
    rc = sv_out_put(&f, size, 8, 0);
    if (!rc)
        rc = sv_out_put(&f, p->header.data, p->header.len, 8);
    for (int32_t i = 0; i < p->m->list->n && !rc; i++) {
        const struct part *part = p->parts + i * MAX_PARTS;
        struct sv_host_tensor t;
        void *copy;
        rc = sv_source_take(&p->m->list->s[i], &t, &copy, p->err);
        if (rc)
            break;
        rc = part->suffix ? round_tensor(p, &f, &t, part)
                          : sv_out_put(&f, t.data, t.n_bytes, p->data_at + part->at);
        sv_free(copy);
    }
    return sv_out_close(&f, rc);
}

/* Linear layers left as they are: expressions and names that also transformers and vLLM match. */
static void put_ignored(const struct plan *p, struct sv_buf *b)
{
    const struct sv_config *c = p->m->cfg;
    const struct sv_arch_row *row = sv_arch_row(c->arch);
    sv_buf_lit(b, "\"lm_head\"");
    if (p->m->draft)
        sv_buf_lit(b, ",\"fc\"");
    if (c->n_experts)
        sv_buf_lit(b, ",\"re:.*mlp\\\\.(gate|router)$\"");
    if (c->shared_intermediate_size)
        sv_buf_lit(b, ",\"re:.*shared_expert_gate$\"");
    if (c->gdn_k_heads)
        sv_buf_lit(b, ",\"re:.*linear_attn\\\\.in_proj_(a|b|ba)$\"");
    for (size_t i = 0; i < sizeof row->skipped / sizeof row->skipped[0]; i++)
        if (row->skipped[i]) /* towers, and heads for further tokens */
            sv_buf_printf(b, ",\"re:.*%.*s\\\\..*\"", (int)strlen(row->skipped[i]) - 1,
                          row->skipped[i]);
}

/* Through text: json_pack omits fields when out of memory. */
static json_t *quantization_config(const struct plan *p, struct sv_err *err)
{
    const struct layout *l = p->l;
    struct sv_buf b;
    char group[16] = "null";
    if (l->group)
        snprintf(group, sizeof group, "%d", l->group);
    sv_buf_init(&b);
    sv_buf_printf(&b,
                  "{\"quant_method\":\"compressed-tensors\",\"format\":\"%s\","
                  "\"quantization_status\":\"compressed\",\"ignore\":[",
                  l->format);
    put_ignored(p, &b);
    sv_buf_printf(&b,
                  "],\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{"
                  "\"num_bits\":%d,\"type\":\"%s\",\"strategy\":\"%s\",\"group_size\":%s,"
                  "\"symmetric\":true,\"dynamic\":false}}}}",
                  l->bits, l->type, l->strategy, group);
    json_t *root = b.failed ? NULL : sv_json_parse(b.data, b.len, err);
    if (b.failed)
        sv_fail(err, SV_ENOMEM, -1, "out of memory");
    sv_buf_fini(&b);
    return root;
}

static int write_config(const struct plan *p, const char *dir, const char *to)
{
    char *from = NULL, *path = sv_path_join(to, "config.json"), *text = NULL;
    json_t *root = NULL, *again = NULL;
    json_t *quant = quantization_config(p, p->err);
    int rc = quant ? sv_dir_json(dir, "config.json", true, &from, &root, p->err) : p->err->code;
    if (!rc && json_object_set(root, "quantization_config", quant) == 0)
        text = json_dumps(root, JSON_INDENT(2));
    if (!rc && text) /* out of memory, jansson silently omits parts */
        again = sv_json_parse(text, strlen(text), p->err);
    if (!rc && (!path || !json_equal(again, root)))
        rc = sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = sv_file_write(path, text, strlen(text), p->err);
    sv_free(text);
    json_decref(quant);
    json_decref(again);
    json_decref(root);
    sv_free(path);
    sv_free(from);
    return rc;
}

/* Further files of a directory beside weights and configuration. */
static const char *const others[] = {"generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "tokenizer.model",
                                     "tiktoken.model",
                                     "preprocessor_config.json",
                                     "video_preprocessor_config.json",
                                     "chat_template.jinja",
                                     "chat_template.json",
                                     "preprocessor_config.json",
                                     "processor_config.json",
                                     "video_preprocessor_config.json"};

static int copy_file(const char *dir, const char *to, const char *name, struct sv_err *err)
{
    struct sv_buf b;
    char *from = sv_path_join(dir, name), *path = sv_path_join(to, name);
    int rc = from && path ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    sv_buf_init(&b);
    if (!rc && sv_file_exists(from)) {
        rc = sv_file_read(&b, from, COPY_MAX_BYTES, err);
        if (!rc)
            rc = sv_file_write(path, b.data ? b.data : "", b.len, err);
    }
    sv_buf_fini(&b);
    sv_free(from);
    sv_free(path);
    return rc;
}

/* Allocates nothing: memory may be exhausted. */
static void remove_all(const char *dir)
{
    char path[4096];
    for (size_t i = 0; i < sizeof others / sizeof others[0] + 2; i++) {
        const char *name = i == 0 ? "model.safetensors" : i == 1 ? "config.json" : others[i - 2];
        if (snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path)
            unlink(path);
    }
    rmdir(dir);
}

static int write_all(const struct plan *p, const char *to)
{
    const char *dir = p->m->dir;
    char *path = sv_path_join(to, "model.safetensors");
    int rc = path ? write_tensors(p, path) : sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = write_config(p, dir, to);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !rc; i++)
        rc = copy_file(dir, to, others[i], p->err);
    sv_free(path);
    return rc;
}

/* Beside out, under a temporary name until complete. */
static int write_dir(const struct plan *p, const char *out)
{
    struct sv_buf tmp;
    int rc = sv_out_partial(&tmp, out, p->err);
    if (!rc && (sv_fault_hit() || mkdir(tmp.data, 0777))) {
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot create: %s", tmp.data, strerror(errno));
        sv_buf_fini(&tmp);
        return rc;
    }
    if (!rc)
        rc = write_all(p, tmp.data);
    if (!rc && (sv_fault_hit() || rename(tmp.data, out)))
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot rename into place: %s", out, strerror(errno));
    if (rc && !tmp.failed)
        remove_all(tmp.data);
    sv_buf_fini(&tmp);
    return rc;
}

int sv_quantize_to_dir(const struct sv_model_source *m, enum sv_quant_code code, const char *out,
                       struct sv_err *err)
{
    struct plan p = {.m = m, .err = err};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].code == code)
            p.l = &layouts[i];
    SV_REQUIRE(p.l);
    sv_buf_init(&p.header);
    int rc = make_plan(&p);
    if (!rc)
        rc = write_dir(&p, out);
    sv_buf_fini(&p.header);
    sv_free(p.parts);
    return rc;
}
