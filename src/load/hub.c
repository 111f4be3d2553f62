/*
 * hub.c - model directories of the Hugging Face hub cache: models--ORG--NAME/snapshots/COMMIT.
 *
 * Called by cli and bench (a model's directory) and by serve and bench (a model's name). Must not:
 * download anything.
 */
#include "load/load.h"

#include <string.h>

#define PREFIX "models--"
#define N_PREFIX (sizeof PREFIX - 1)

/* The last component of the first n bytes, without slashes at the end; *n becomes its start. */
static size_t last_part(const char *path, size_t *n)
{
    size_t end = *n, start;

    while (end > 1 && path[end - 1] == '/')
        end--;
    start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    *n = start;
    return end - start;
}

static bool is_cached(const char *part, size_t n)
{
    return n > N_PREFIX && memcmp(part, PREFIX, N_PREFIX) == 0;
}

/* DIR/refs/main: the commit of the snapshot that was downloaded last. */
static int read_commit(const char *dir, struct sv_buf *commit, struct sv_err *err)
{
    char *path = sv_path_join(dir, "refs/main");
    int rc = path ? sv_file_read(commit, path, 256, err)
                  : sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);

    while (!rc && commit->len && strchr(" \r\n", commit->data[commit->len - 1]))
        commit->len--;
    if (!rc && (!commit->len || strspn(commit->data, "0123456789abcdef") < commit->len))
        rc = sv_fail(err, SV_EFORMAT, -1, "%s: holds no commit", path);
    sv_free(path);
    return rc;
}

int sv_model_dir(const char *given, char *dir, size_t size, struct sv_err *err)
{
    size_t start = strlen(given), n = last_part(given, &start);
    struct sv_buf commit, found;
    struct sv_err local;
    int rc = SV_OK;

    err = err ? err : &local;
    sv_buf_init(&commit);
    sv_buf_init(&found);
    if (is_cached(given + start, n)) {
        char *config = sv_path_join(given, "config.json");
        if (!config)
            rc = sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", given);
        else if (!sv_file_exists(config)) /* else a model is kept in a directory of that name */
            rc = read_commit(given, &commit, err);
        sv_free(config);
    }
    if (!rc && commit.len)
        sv_buf_printf(&found, "%.*s/snapshots/%.*s", (int)(start + n), given, (int)commit.len,
                      commit.data);
    else if (!rc)
        sv_buf_append(&found, given, strlen(given));
    if (!rc && found.failed)
        rc = sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", given);
    else if (!rc && found.len >= size)
        rc = sv_fail(err, SV_EINVAL, -1, "%.80s...: a path of %zu bytes is too long", given,
                     found.len);
    if (!rc)
        memcpy(dir, found.data, found.len + 1);
    sv_buf_fini(&commit);
    sv_buf_fini(&found);
    return rc;
}

void sv_model_name(const char *dir, char *name, size_t size)
{
    size_t at = strlen(dir), n = last_part(dir, &at);
    const char *part = dir + at;
    size_t up = at, n_up = last_part(dir, &up);

    if (n_up == strlen("snapshots") && memcmp(dir + up, "snapshots", n_up) == 0) {
        size_t top = up, n_top = last_part(dir, &top);
        if (is_cached(dir + top, n_top)) {
            part = dir + top;
            n = n_top;
        }
    }
    if (!is_cached(part, n)) {
        snprintf(name, size, "%.*s", (int)n, part);
        return;
    }
    part += N_PREFIX;
    n -= N_PREFIX;
    for (size_t i = 0; i + 2 < n; i++)
        if (i && part[i] == '-' && part[i + 1] == '-') {
            snprintf(name, size, "%.*s/%.*s", (int)i, part, (int)(n - i - 2), part + i + 2);
            return;
        }
    snprintf(name, size, "%.*s", (int)n, part); /* a model without organization */
}
