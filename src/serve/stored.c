/*
 * stored.c - the answers of /v1/responses that are kept: for GET, and for turns that go on from
 * them.
 *
 * Called by responses.c on the loop's thread and by the threads that read bodies and write long
 * answers, so one lock is around the index. What is kept never changes; whoever goes on from an
 * answer holds it, and with it those before it, also when it is no longer in the index. Bounded by
 * count and bytes: the oldest leave first. Must not: parse JSON, or hold the lock while anything is
 * written.
 */
#include "serve/impl.h"

#include <string.h>

/* Lines are items, JSON objects that begin with their id. */
struct sv_kept {
    struct sv_kept *before;        /* the turn this one went on from; held */
    struct sv_kept *older, *newer; /* in the index */
    struct sv_kept *beside;        /* of the same bucket */
    int32_t n_holders;             /* the index is one of them */
    size_t n_bytes;
    char id[SV_RESPONSE_ID];
    struct sv_buf input;    /* a line for each */
    struct sv_buf response; /* the object; its output has a line for each item, from ... */
    size_t output, n_output;
};

struct sv_stored {
    struct sv_lock *lock;
    struct sv_kept **buckets, *oldest, *newest;
    uint32_t n_buckets; /* a power of two */
    int32_t n, max;
    int64_t n_bytes, max_bytes; /* of all that somebody holds */
};

/* ---------------------------------------------------------------- life */

int sv_stored_open(struct sv_stored **out, int32_t max, int64_t max_bytes, struct sv_err *err)
{
    struct sv_stored *st = sv_calloc(1, sizeof *st);
    uint32_t n = 64;

    *out = st;
    if (!st)
        return sv_fail(err, SV_ENOMEM, -1, "stored responses");
    while (n < (uint32_t)max && n < 1u << 20)
        n *= 2;
    st->max = max;
    st->max_bytes = max_bytes;
    st->n_buckets = n;
    st->buckets = sv_calloc(n, sizeof *st->buckets);
    return st->buckets ? sv_lock_open(&st->lock, err)
                       : sv_fail(err, SV_ENOMEM, -1, "stored responses");
}

static void kept_free(struct sv_kept *k)
{
    sv_buf_fini(&k->input);
    sv_buf_fini(&k->response);
    sv_free(k);
}

/* One holder less. Those that nobody holds any more are taken off the count and returned, linked by
 * before: they are freed without the lock. */
static struct sv_kept *let_go(struct sv_stored *st, struct sv_kept *k)
{
    struct sv_kept *first = k, **end = &first;

    while (*end && !--(*end)->n_holders) {
        st->n_bytes -= (int64_t)(*end)->n_bytes;
        end = &(*end)->before;
    }
    *end = NULL;
    return first;
}

static void free_all(struct sv_kept *k)
{
    while (k) {
        struct sv_kept *before = k->before;
        kept_free(k);
        k = before;
    }
}

/* ---------------------------------------------------------------- the index */

static struct sv_kept **bucket(const struct sv_stored *st, const char *id)
{
    uint32_t h = 2166136261u;

    for (const char *p = id; *p; p++)
        h = (h ^ (unsigned char)*p) * 16777619u;
    return &st->buckets[h & (st->n_buckets - 1)];
}

static struct sv_kept *find(const struct sv_stored *st, const char *id)
{
    struct sv_kept *k = *bucket(st, id);

    while (k && strcmp(k->id, id) != 0)
        k = k->beside;
    return k;
}

/* Out of the index; what becomes free of that. */
static struct sv_kept *take_out(struct sv_stored *st, struct sv_kept *k)
{
    struct sv_kept **at = bucket(st, k->id);

    while (*at != k)
        at = &(*at)->beside;
    *at = k->beside;
    *(k->older ? &k->older->newer : &st->oldest) = k->newer;
    *(k->newer ? &k->newer->older : &st->newest) = k->older;
    st->n--;
    return let_go(st, k);
}

static void put_in(struct sv_stored *st, struct sv_kept *k)
{
    struct sv_kept **at = bucket(st, k->id);

    k->beside = *at;
    *at = k;
    k->older = st->newest;
    *(st->newest ? &st->newest->newer : &st->oldest) = k;
    st->newest = k;
    st->n++;
    st->n_bytes += (int64_t)k->n_bytes;
}

void sv_stored_put(struct sv_stored *st, const char *id, struct sv_kept *before,
                   struct sv_buf *input, struct sv_buf *response, size_t output, size_t n_output)
{
    struct sv_kept *k = st ? sv_calloc(1, sizeof *k) : NULL, *out = NULL;
    size_t n = sizeof *k + input->len + response->len;

    if (!k || input->failed || response->failed || n > (size_t)st->max_bytes) {
        sv_free(k);
        return;
    }
    snprintf(k->id, sizeof k->id, "%s", id);
    k->n_holders = 1;
    k->n_bytes = n;
    k->before = before;
    k->input = *input;
    k->response = *response;
    k->output = output;
    k->n_output = n_output;
    sv_buf_init(input);
    sv_buf_init(response);
    sv_lock_take(st->lock);
    if (before)
        before->n_holders++;
    put_in(st, k);
    while (st->oldest && (st->n > st->max || st->n_bytes > st->max_bytes)) {
        struct sv_kept *gone = take_out(st, st->oldest), **end = &gone;
        while (*end)
            end = &(*end)->before;
        *end = out;
        out = gone;
    }
    sv_lock_leave(st->lock);
    free_all(out);
}

struct sv_kept *sv_stored_get(struct sv_stored *st, const char *id)
{
    struct sv_kept *k;

    if (!st)
        return NULL;
    sv_lock_take(st->lock);
    k = find(st, id);
    if (k)
        k->n_holders++;
    sv_lock_leave(st->lock);
    return k;
}

void sv_stored_let_go(struct sv_stored *st, struct sv_kept *k)
{
    if (!k)
        return;
    sv_lock_take(st->lock);
    k = let_go(st, k);
    sv_lock_leave(st->lock);
    free_all(k);
}

bool sv_stored_delete(struct sv_stored *st, const char *id)
{
    struct sv_kept *k, *out = NULL;

    if (!st)
        return false;
    sv_lock_take(st->lock);
    k = find(st, id);
    if (k)
        out = take_out(st, k);
    sv_lock_leave(st->lock);
    free_all(out);
    return k;
}

void sv_stored_count(struct sv_stored *st, int64_t *n, int64_t *n_bytes)
{
    *n = *n_bytes = 0;
    if (!st)
        return;
    sv_lock_take(st->lock);
    *n = st->n;
    *n_bytes = st->n_bytes;
    sv_lock_leave(st->lock);
}

void sv_stored_close(struct sv_stored *st)
{
    if (!st)
        return;
    while (st->oldest)
        free_all(take_out(st, st->oldest));
    sv_lock_close(st->lock);
    sv_free(st->buckets);
    sv_free(st);
}

/* ---------------------------------------------------------------- what one holds */

const char *sv_kept_response(const struct sv_kept *k, size_t *n)
{
    *n = k->response.len;
    return k->response.data;
}

static void add_lines(struct sv_buf *items, const char *text, size_t n)
{
    while (n) {
        const char *end = memchr(text, '\n', n);
        size_t line = end ? (size_t)(end - text) : n;
        struct sv_kept_item item = {text, line && text[line - 1] == ',' ? line - 1 : line};
        if (line)
            sv_buf_append(items, &item, sizeof item);
        text += line + (end != NULL);
        n -= line + (end != NULL);
    }
}

void sv_kept_items(const struct sv_kept *k, bool output, struct sv_buf *items)
{
    struct sv_buf turns;

    sv_buf_init(&turns);
    for (const struct sv_kept *t = k; t; t = t->before)
        sv_buf_append(&turns, &t, sizeof t);
    for (size_t at = turns.len; at; at -= sizeof k) {
        memcpy(&k, turns.data + at - sizeof k, sizeof k);
        add_lines(items, k->input.data, k->input.len);
        if (at > sizeof k || output)
            add_lines(items, k->response.data + k->output, k->n_output);
    }
    items->failed |= turns.failed;
    sv_buf_fini(&turns);
}

bool sv_kept_is_item(const struct sv_kept_item *item, const char *id)
{
    static const char head[] = "{\"id\":\"";
    size_t n = strlen(id), skip = sizeof head - 1;

    return item->n > skip + n && memcmp(item->text, head, skip) == 0 &&
           memcmp(item->text + skip, id, n) == 0 && item->text[skip + n] == '"';
}
