/*
 * ckpt.c - a checkpoint: finding the safetensors files of a directory, mapping them, one sorted
 * list (GGUF: gguf_ckpt.c).
 *
 * Called by model (weights) and cli (info). Owns the mappings and the arena of all names. Must not:
 * copy tensor data that is usable in place, accept a shard that disagrees with the index, or
 * interpret a tensor.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/gguf.h"
#include "load/quant_config.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_MAX_BYTES (256u << 20)
#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

/* One parsed file. */
struct shard {
    struct sv_host_tensor *tensors;
    int32_t n_tensors;
};

/* ---------------------------------------------------------------- names */

/* "model." removed, known aliases replaced. A string of the arena, or NULL without memory. */
static const char *canonical(struct sv_arena *arena, const char *name)
{
    static const struct {
        const char *from, *to;
    } aliases[] = {{"midlayer.", "layers.0."},
                   {"encoder.fc.", "fc."},
                   {"encoder.output_norm_enc.", "hidden_norm."}};
    if (!strncmp(name, "model.", 6))
        name += 6;
    if (!strncmp(name, "language_model.", 15)) { /* of multimodal files */
        name += 15;
        name += strncmp(name, "model.", 6) ? 0 : 6;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        size_t n = strlen(aliases[i].from);
        if (strncmp(name, aliases[i].from, n) != 0)
            continue;
        size_t n_to = strlen(aliases[i].to), n_rest = strlen(name + n);
        char *s = sv_arena_alloc(arena, n_to + n_rest + 1);
        if (s) {
            memcpy(s, aliases[i].to, n_to);
            memcpy(s + n_to, name + n, n_rest + 1);
        }
        return s;
    }
    return name; /* already in the arena */
}

static int cmp_tensor(const void *a, const void *b)
{
    const struct sv_host_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

const struct sv_host_tensor *sv_ckpt_find(const struct sv_ckpt *c, const char *name)
{
    struct sv_host_tensor key = {.name = strncmp(name, "model.", 6) ? name : name + 6};
    if (c->n_tensors == 0)
        return NULL;
    return bsearch(&key, c->tensors, (size_t)c->n_tensors, sizeof *c->tensors, cmp_tensor);
}

/* ---------------------------------------------------------------- files */

/* Whether dir/name exists; *path is the joined path then, NULL otherwise. */
static int probe(const char *dir, const char *name, char **path, struct sv_err *err)
{
    *path = sv_path_join(dir, name);
    if (!*path)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);
    if (!sv_file_exists(*path)) {
        sv_free(*path);
        *path = NULL;
    }
    return SV_OK;
}

static bool is_safetensors(const char *name)
{
    const char *end = strrchr(name, '.');
    return end && end > name && !strcmp(end, ".safetensors");
}

/* Counts the *.safetensors files of a directory and keeps the name of the first one seen. */
static int scan_dir(const char *dir, char *name, size_t n_name, int *count, struct sv_err *err)
{
    DIR *d = sv_fault_hit() ? NULL : opendir(dir);
    if (!d)
        return sv_fail(err, SV_EIO, -1, "%s: cannot list the directory: %s", dir, strerror(errno));
    *count = 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        if (!is_safetensors(e->d_name) || n >= n_name)
            continue;
        if ((*count)++ == 0)
            memcpy(name, e->d_name, n + 1);
    }
    closedir(d);
    return SV_OK;
}

int64_t sv_ckpt_dir_bytes(const char *dir)
{
    if (sv_is_gguf(dir))
        return sv_gguf_ckpt_bytes(dir);
    DIR *d = opendir(dir);
    int64_t sum = 0;

    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        char *path = is_safetensors(e->d_name) ? sv_path_join(dir, e->d_name) : NULL;
        struct stat st;
        if (path && stat(path, &st) == 0)
            sum += (int64_t)st.st_size;
        sv_free(path);
    }
    if (d)
        closedir(d);
    return sum;
}

static int only_file(const char *dir, char **path, struct sv_err *err)
{
    char name[512] = "";
    int count = 0;
    int rc = scan_dir(dir, name, sizeof name, &count, err);
    if (rc)
        return rc;
    if (count == 0)
        return sv_fail(err, SV_EIO, -1, "%s: neither %s nor %s is there", dir, SINGLE_NAME,
                       INDEX_NAME);
    if (count > 1)
        return sv_fail(err, SV_EFORMAT, -1, "%s: %d safetensors files but no %s", dir, count,
                       INDEX_NAME);
    *path = sv_path_join(dir, name);
    return *path ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);
}

static int open_shard(struct sv_ckpt *c, const char *path, struct shard *s, struct sv_err *err)
{
    struct sv_map *m = &c->maps[c->n_maps];
    int rc = sv_map_open(m, path, err);
    if (rc)
        return rc;
    c->n_maps++;
    return sv_safetensors_parse(m->data, m->n_bytes, path, &c->arena, &s->tensors, &s->n_tensors,
                                err);
}

/* ---------------------------------------------------------------- one list */

static int check_duplicates(const struct sv_ckpt *c, struct sv_err *err)
{
    for (int32_t i = 1; i < c->n_tensors; i++) {
        const struct sv_host_tensor *a = &c->tensors[i - 1], *b = &c->tensors[i];
        if (!strcmp(a->name, b->name))
            return sv_fail(err, SV_EFORMAT, -1,
                           "tensor '%.120s' exists twice: in %.120s and in %.120s", a->name,
                           a->file, b->file);
    }
    return SV_OK;
}

/* Joins the shards' tensors under their canonical names. */
static int merge(struct sv_ckpt *c, const struct shard *shards, int32_t n_shards,
                 struct sv_err *err)
{
    int64_t total = 0;
    for (int32_t i = 0; i < n_shards; i++)
        total += shards[i].n_tensors;
    if (total > INT32_MAX)
        return sv_fail(err, SV_EFORMAT, -1, "%lld tensors are too many", (long long)total);
    c->tensors = sv_arena_alloc(&c->arena, (size_t)total * sizeof *c->tensors);
    if (!c->tensors)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < n_shards; i++) {
        for (int32_t j = 0; j < shards[i].n_tensors; j++) {
            struct sv_host_tensor *t = &c->tensors[c->n_tensors++];
            *t = shards[i].tensors[j];
            t->name = canonical(&c->arena, t->name);
            if (!t->name)
                return sv_fail(err, SV_ENOMEM, -1, "out of memory");
            c->n_params += t->n_elements;
            c->n_bytes += (int64_t)t->n_bytes;
        }
    }
    return SV_OK;
}

static int cmp_entry_name(const void *key, const void *entry)
{
    return strcmp(key, ((const struct sv_index_entry *)entry)->name);
}

/* Index and shards must list the same tensors in the same files. */
static int check_index(const struct sv_ckpt_index *x, const struct shard *shards,
                       struct sv_err *err)
{
    int64_t n_found = 0;
    for (int32_t i = 0; i < x->n_files; i++) {
        for (int32_t j = 0; j < shards[i].n_tensors; j++) {
            const char *name = shards[i].tensors[j].name;
            const struct sv_index_entry *e =
                bsearch(name, x->entries, (size_t)x->n_entries, sizeof *x->entries, cmp_entry_name);
            if (!e || e->shard != i)
                return sv_fail(err, SV_EMISMATCH, -1, "%s holds tensor '%.120s', %s%.120s",
                               x->files[i], name,
                               e ? "which the index puts into " : "unknown to the index",
                               e ? x->files[e->shard] : "");
            n_found++;
        }
    }
    if (n_found == x->n_entries)
        return SV_OK;
    for (int32_t i = 0; i < x->n_entries; i++) {
        const struct shard *s = &shards[x->entries[i].shard];
        bool found = false;
        for (int32_t j = 0; j < s->n_tensors && !found; j++)
            found = !strcmp(s->tensors[j].name, x->entries[i].name);
        if (!found)
            return sv_fail(err, SV_EMISMATCH, -1,
                           "tensor '%.120s' is not in %.120s as the index says", x->entries[i].name,
                           x->files[x->entries[i].shard]);
    }
    return SV_OK;
}

static int open_single(struct sv_ckpt *c, const char *path, struct sv_err *err)
{
    struct shard s = {0};
    c->maps = sv_arena_alloc(&c->arena, sizeof *c->maps);
    if (!c->maps)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", path);
    int rc = open_shard(c, path, &s, err);
    return rc ? rc : merge(c, &s, 1, err);
}

static int read_index(struct sv_ckpt *c, const char *path, struct sv_ckpt_index *x,
                      struct sv_err *err)
{
    struct sv_buf buf;
    sv_buf_init(&buf);
    int rc = sv_file_read(&buf, path, INDEX_MAX_BYTES, err);
    if (!rc) {
        rc = sv_index_parse(x, buf.data ? buf.data : "", buf.len, &c->arena, err);
        if (rc)
            sv_err_prefix(err, "%s", path);
    }
    sv_buf_fini(&buf);
    return rc;
}

static int open_sharded(struct sv_ckpt *c, const char *dir, const char *index_path,
                        struct sv_err *err)
{
    struct sv_ckpt_index x;
    int rc = read_index(c, index_path, &x, err);
    if (rc)
        return rc;
    struct shard *shards = sv_arena_alloc(&c->arena, (size_t)x.n_files * sizeof *shards);
    c->maps = sv_arena_alloc(&c->arena, (size_t)x.n_files * sizeof *c->maps);
    if (!shards || !c->maps)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);
    for (int32_t i = 0; i < x.n_files && !rc; i++) {
        char *path = sv_path_join(dir, x.files[i]);
        if (!path)
            return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);
        rc = open_shard(c, path, &shards[i], err);
        sv_free(path);
    }
    if (!rc) {
        rc = check_index(&x, shards, err);
        if (rc)
            sv_err_prefix(err, "%s", index_path);
    }
    return rc ? rc : merge(c, shards, x.n_files, err);
}

static int open_any(struct sv_ckpt *c, const char *dir, struct sv_err *err)
{
    char *path;
    if (!sv_dir_exists(dir))
        return sv_fail(err, SV_EIO, -1, "%s: no such directory", dir);
    int rc = probe(dir, SINGLE_NAME, &path, err);
    if (rc)
        return rc;
    if (!path) {
        rc = probe(dir, INDEX_NAME, &path, err);
        if (rc)
            return rc;
        if (path) {
            rc = open_sharded(c, dir, path, err);
            sv_free(path);
            return rc;
        }
        rc = only_file(dir, &path, err);
        if (rc)
            return rc;
    }
    rc = open_single(c, path, err);
    sv_free(path);
    return rc;
}

static int sort(struct sv_ckpt *c, struct sv_err *err)
{
    qsort(c->tensors, (size_t)c->n_tensors, sizeof *c->tensors, cmp_tensor);
    return check_duplicates(c, err);
}

int sv_ckpt_open(struct sv_ckpt *c, const char *dir, struct sv_err *err)
{
    struct sv_err local;
    memset(c, 0, sizeof *c);
    sv_arena_init(&c->arena);
    err = err ? err : &local;
    int rc = sv_is_gguf(dir) ? sv_gguf_ckpt_open(c, dir, err) : open_any(c, dir, err);
    if (!rc)
        rc = sort(c, err);
    if (!rc && !sv_is_gguf(dir))
        rc = sv_quant_bind(c, dir, err);
    if (!rc) /* codes are named weights now */
        rc = sort(c, err);
    if (rc)
        sv_ckpt_close(c);
    return rc;
}

int sv_ckpt_detach(struct sv_ckpt *c, bool copy, struct sv_err *err)
{
    int rc = SV_OK;

    for (int32_t i = 0; i < c->n_maps && !rc; i++)
        rc = sv_map_detach(&c->maps[i], copy, err);
    return rc;
}

void sv_ckpt_close(struct sv_ckpt *c)
{
    for (int32_t i = 0; i < c->n_maps; i++)
        sv_map_close(&c->maps[i]);
    sv_arena_fini(&c->arena);
    memset(c, 0, sizeof *c);
}
