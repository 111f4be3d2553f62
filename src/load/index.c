/*
 * index.c - model.safetensors.index.json: which shard file holds which tensor.
 *
 * Called by ckpt.c and by the fuzz target. Must not: return a file name outside of the checkpoint's
 * directory, or open the shards.
 */
#include "load/impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FILES 4096
#define MAX_ENTRIES (1 << 20)

/* A plain file name: the index is untrusted and must not name other directories. */
static bool file_name_ok(const char *s)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(s), n_suffix = sizeof suffix - 1;
    if (n <= n_suffix || n > 255 || s[0] == '.' || strcmp(s + n - n_suffix, suffix) != 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        if (ch < 0x20 || ch == 0x7f || ch == '/' || ch == '\\')
            return false;
    }
    return true;
}

static int cmp_str(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int cmp_entry(const void *a, const void *b)
{
    const struct sv_index_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Sorts the n names and keeps one of each. */
static int32_t sort_unique(const char **names, int32_t n)
{
    int32_t kept = 0;
    qsort(names, (size_t)n, sizeof *names, cmp_str);
    for (int32_t i = 0; i < n; i++) {
        if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0)
            names[kept++] = names[i];
    }
    return kept;
}

static int check_values(json_t *map, const char **files, struct sv_err *err)
{
    const char *key;
    json_t *value;
    int32_t i = 0;
    json_object_foreach(map, key, value) {
        const char *file = json_string_value(value);
        if (!file)
            return sv_fail(err, SV_EFORMAT, -1, "'weight_map': value of '%.120s' is not a string",
                           key);
        if (strlen(file) != json_string_length(value) || !file_name_ok(file))
            return sv_fail(err, SV_EFORMAT, -1,
                           "'weight_map': '%.120s' lies in '%.120s', which is not a plain "
                           "*.safetensors file name",
                           key, file);
        files[i++] = file;
    }
    return SV_OK;
}

static int fill(struct sv_ckpt_index *x, json_t *map, const char **files, int32_t n_files,
                struct sv_arena *arena)
{
    x->files = sv_arena_alloc(arena, (size_t)n_files * sizeof *x->files);
    x->entries = sv_arena_alloc(arena, json_object_size(map) * sizeof *x->entries);
    if (!x->files || !x->entries)
        return SV_ENOMEM;
    for (int32_t i = 0; i < n_files; i++) {
        x->files[i] = sv_arena_strdup(arena, files[i]);
        if (!x->files[i])
            return SV_ENOMEM;
    }
    x->n_files = n_files;
    const char *key;
    json_t *value;
    json_object_foreach(map, key, value) {
        const char *file = json_string_value(value);
        const char **at = bsearch(&file, files, (size_t)n_files, sizeof *files, cmp_str);
        struct sv_index_entry *e = &x->entries[x->n_entries];
        e->name = sv_arena_strdup(arena, key);
        e->shard = (int32_t)(at - files);
        if (!e->name)
            return SV_ENOMEM;
        x->n_entries++;
    }
    qsort(x->entries, (size_t)x->n_entries, sizeof *x->entries, cmp_entry);
    return SV_OK;
}

static int parse_map(struct sv_ckpt_index *x, json_t *map, struct sv_arena *arena,
                     struct sv_err *err)
{
    size_t n = json_object_size(map);
    if (!json_is_object(map) || n == 0)
        return sv_fail(err, SV_EFORMAT, -1,
                       "field 'weight_map' is missing, empty or not an object");
    if (n > MAX_ENTRIES)
        return sv_fail(err, SV_EFORMAT, -1, "'weight_map': %zu tensors are too many", n);
    const char **files = sv_calloc(n, sizeof *files);
    if (!files)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    int rc = check_values(map, files, err);
    if (!rc) {
        int32_t n_files = sort_unique(files, (int32_t)n);
        if (n_files > MAX_FILES)
            rc = sv_fail(err, SV_EFORMAT, -1, "'weight_map': %d files are too many", n_files);
        else if (fill(x, map, files, n_files, arena))
            rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    sv_free(files);
    return rc;
}

int sv_index_parse(struct sv_ckpt_index *index, const char *text, size_t n, struct sv_arena *arena,
                   struct sv_err *err)
{
    struct sv_err local;
    if (!err)
        err = &local;
    memset(index, 0, sizeof *index);
    json_t *root = sv_json_parse(text, n, err);
    if (!root)
        return err->code;
    int rc = parse_map(index, json_object_get(root, "weight_map"), arena, err);
    json_decref(root);
    return rc;
}
