/*
 * stored.c - the store of /v1/responses: answers for GET, and for turns that continue them.
 *
 * Called by responses*.c on the loop's thread and on the threads that read bodies and write long
 * answers, so the index has a lock. A stored answer never changes. A turn that continues it holds a
 * reference to it, and through it to the turns before, even when the index has dropped them.
 * Bounded by count and bytes: the oldest are dropped first. Must not: parse JSON, or write while
 * the lock is held.
 */
#include "serve/openai/responses.h"

#include <stdlib.h>
#include <string.h>

struct sv_kept {
    struct sv_kept *before;        /* the turn that this one continues; a reference */
    struct sv_kept *older, *newer; /* in the index */
    struct sv_kept *beside;        /* next in the same bucket */
    int32_t n_holders;             /* the index is one of them */
    size_t n_bytes;
    int64_t n_chain; /* bytes of this one and of those before it */
    char id[SV_RESPONSE_ID];
    int key;                       /* index of the API key it belongs to */
    struct sv_buf input, response; /* lines of items; the object */
    struct sv_buf items;           /* struct sv_kept_item: their ranges in both */
    size_t n_input;                /* number of input items, which come first */
};

struct sv_stored {
    struct sv_lock *lock;
    struct sv_kept **buckets, *oldest, *newest;
    uint32_t n_buckets; /* a power of two */
    int32_t n, max;
    int64_t n_bytes, max_bytes; /* of all that are referenced */
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
    sv_buf_fini(&k->items);
    sv_free(k);
}

/* Drops a reference. Answers without references are taken off the count and returned, linked by
 * `before`: they are freed without the lock. */
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

/* NULL also for an answer of another API key. */
static struct sv_kept *find(const struct sv_stored *st, int key, const char *id)
{
    struct sv_kept *k = *bucket(st, id);

    while (k && strcmp(k->id, id) != 0)
        k = k->beside;
    return k && k->key == key ? k : NULL;
}

/* Removes an answer from the index; returns what is to be freed. */
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

static void add_items(struct sv_buf *items, const char *text, size_t n)
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

void sv_stored_fit(struct sv_buf *b)
{
    char *data = b->data ? sv_realloc(b->data, b->len + 1, b->len + 1) : NULL;

    if (!data)
        return;
    b->data = data;
    b->cap = b->len + 1;
}

static void take(struct sv_buf *to, struct sv_buf *from)
{
    *to = *from;
    sv_buf_init(from);
}

/* A new entry, not in the index yet; NULL: memory ran out. */
static struct sv_kept *make(int key, const char *id, struct sv_kept *before, struct sv_buf *input,
                            struct sv_buf *response, size_t output, size_t n_output)
{
    struct sv_kept *k = sv_calloc(1, sizeof *k);

    if (!k)
        return NULL;
    snprintf(k->id, sizeof k->id, "%s", id);
    k->key = key;
    k->n_holders = 1;
    k->before = before;
    sv_stored_fit(response);
    bool failed = input->failed || response->failed;
    take(&k->input, input);
    take(&k->response, response);
    add_items(&k->items, k->input.data, k->input.len);
    k->n_input = k->items.len / sizeof(struct sv_kept_item);
    add_items(&k->items, k->response.data + output, n_output);
    sv_stored_fit(&k->items);
    k->n_bytes = sizeof *k + k->input.cap + k->response.cap + k->items.cap;
    k->n_chain = (int64_t)k->n_bytes + (before ? before->n_chain : 0);
    if (!failed && !k->items.failed)
        return k;
    kept_free(k);
    return NULL;
}

void sv_stored_put(struct sv_stored *st, int key, const char *id, struct sv_kept *before,
                   struct sv_buf *input, struct sv_buf *response, size_t output, size_t n_output)
{
    struct sv_kept *out = NULL;
    struct sv_kept *k = st ? make(key, id, before, input, response, output, n_output) : NULL;

    if (!k)
        return;
    if (k->n_chain > st->max_bytes) { /* it would push out all others and then itself */
        kept_free(k);
        return;
    }
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

struct sv_kept *sv_stored_get(struct sv_stored *st, int key, const char *id)
{
    struct sv_kept *k;

    if (!st)
        return NULL;
    sv_lock_take(st->lock);
    k = find(st, key, id);
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

bool sv_stored_delete(struct sv_stored *st, int key, const char *id)
{
    struct sv_kept *out = NULL;

    if (!st)
        return false;
    sv_lock_take(st->lock);
    struct sv_kept *k = find(st, key, id);
    bool found = k;
    if (found)
        out = take_out(st, k);
    sv_lock_leave(st->lock);
    free_all(out);
    return found;
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

void sv_kept_items(const struct sv_kept *k, bool output, struct sv_buf *items)
{
    const size_t size = sizeof(struct sv_kept_item);
    struct sv_buf turns;

    sv_buf_init(&turns);
    for (const struct sv_kept *t = k; t; t = t->before)
        sv_buf_append(&turns, &t, sizeof t);
    for (size_t at = turns.len; at; at -= sizeof k) {
        memcpy(&k, turns.data + at - sizeof k, sizeof k);
        bool all = at > sizeof k || output;
        sv_buf_append(items, k->items.data, all ? k->items.len : k->n_input * size);
    }
    items->failed |= turns.failed;
    sv_buf_fini(&turns);
}

/* Input and output items are numbered separately: msg_NAME_in0, msg_NAME_0. */
bool sv_kept_item(const struct sv_kept *k, const char *id, struct sv_kept_item *item)
{
    const char *count = strrchr(id, '_');
    size_t n = k->items.len / sizeof *item, at;

    if (!count)
        return false;
    bool input = strncmp(++count, "in", 2) == 0;
    at = strtoul(count + (input ? 2 : 0), NULL, 10);
    if (at >= (input ? k->n_input : n - k->n_input))
        return false;
    at += input ? 0 : k->n_input;
    memcpy(item, k->items.data + at * sizeof *item, sizeof *item);
    return sv_kept_is_item(item, id, strlen(id));
}

bool sv_kept_is_item(const struct sv_kept_item *item, const char *id, size_t n)
{
    static const char head[] = "{\"id\":\"";
    size_t skip = sizeof head - 1;

    return item->n > skip + n && memcmp(item->text, head, skip) == 0 &&
           memcmp(item->text + skip, id, n) == 0 && item->text[skip + n] == '"';
}

void sv_stored_write_metrics(struct sv_buf *b, struct sv_stored *st)
{
    int64_t n, n_bytes;

    sv_stored_count(st, &n, &n_bytes);
    sv_metric_gauge(b, "salvo_stored_responses", "Answers kept for later turns.", (double)n);
    sv_metric_gauge(b, "salvo_stored_responses_bytes",
                    "Their texts, and those of turns before them.", (double)n_bytes);
}
