/*
 * responses_stored.c - /v1/responses/{id}: reads, deletes and cancels answers that are stored or
 * still running, and lists their input items. Each API key sees its own.
 *
 * Called by route.c, on the loop's thread. Items are lines of text (stored.c), so a list of them is
 * written without parsing JSON. Must not: show more than a page of them at once.
 */
#include "serve/openai/responses.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PAGE 100
#define USUAL_PAGE 20
#define MAX_PAGE_BYTES 262144 /* and one item more: clients ask for the rest as for any page */

/* The rest of the path after the id; the id is copied. */
static const char *split(const struct sv_http_req *q, char id[64])
{
    const char *path = sv_http_path(q) + strlen("/v1/responses/");
    size_t n = strcspn(path, "/");

    snprintf(id, 64, "%.*s", (int)(n < 63 ? n : 63), path);
    return path + n;
}

static void not_found(struct sv_http_req *q, const char *id)
{
    struct sv_api_err e;

    sv_api_fail(&e, 404, "response_not_found", "there is no response '%.64s'", id);
    snprintf(e.param, sizeof e.param, "response_id");
    sv_api_refuse(q, &e);
}

static void no_such_path(struct sv_http_req *q)
{
    struct sv_api_err e;

    sv_api_fail(&e, 404, "not_found", "there is no %.200s", sv_http_path(q));
    sv_api_refuse(q, &e);
}

static void reply(struct sv_http_req *q, struct sv_buf *b)
{
    sv_api_answer(q, 200, "application/json", b);
}

/* A response that is running or about to be stored: one that has ended may still be written on the
 * other thread. One whose body is still being read has no id yet. */
static struct sv_call *find_call(const struct sv_serve *s, int key, const char *id)
{
    struct sv_call *c = s->calls;

    while (c && (c->dialect->kind != SV_RESPONSES || !c->n_choices || c->failed || c->key != key ||
                 strcmp(c->id, id) != 0))
        c = c->next;
    return c;
}

static void refuse(struct sv_http_req *q, const char *id, const char *why)
{
    struct sv_api_err e;

    sv_api_bad(&e, "response_id", "the response '%s' %s", id, why);
    sv_api_refuse(q, &e);
}

static void reply_status(struct sv_http_req *q, const struct sv_call *c, const char *status)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_responses_status(&b, c, status);
    reply(q, &b);
}

/* ---------------------------------------------------------------- pages of items */

/* A parameter of the query; false: it is absent. */
static bool setting(const struct sv_http_req *q, const char *name, struct sv_kept_item *value)
{
    const char *query = sv_http_query(q);
    size_t n = strlen(name);

    for (; *query; query += strcspn(query, "&"), query += *query == '&') {
        if (strncmp(query, name, n) != 0 || query[n] != '=')
            continue;
        *value = (struct sv_kept_item){query + n + 1, strcspn(query + n + 1, "&")};
        return true;
    }
    return false;
}

static bool says(const struct sv_kept_item *value, const char *text)
{
    return value->n == strlen(text) && memcmp(value->text, text, value->n) == 0;
}

struct page {
    long limit;
    bool newest_first;
    struct sv_kept_item after; /* empty: from the first item on */
};

static int read_page(const struct sv_http_req *q, struct page *p, struct sv_api_err *e)
{
    struct sv_kept_item v;
    char *end;

    *p = (struct page){.limit = USUAL_PAGE, .newest_first = true};
    if (setting(q, "limit", &v)) {
        p->limit = strtol(v.text, &end, 10);
        if (!v.n || end != v.text + v.n || p->limit < 1 || p->limit > MAX_PAGE)
            return sv_api_bad(e, "limit", "'limit' must be in [1, %d]", MAX_PAGE);
    }
    if (setting(q, "order", &v)) {
        p->newest_first = says(&v, "desc");
        if (!p->newest_first && !says(&v, "asc"))
            return sv_api_bad(e, "order", "'order' must be asc or desc");
    }
    if (setting(q, "after", &v))
        p->after = v;
    return 0;
}

/* An item's id, which it begins with; NULL: it has none. */
static void write_id_of(struct sv_buf *b, const struct sv_kept_item *item)
{
    const char *id = item ? memchr(item->text, ':', item->n) : NULL, *end = NULL;

    if (id)
        end = memchr(id + 2, '"', item->n - (size_t)(id + 2 - item->text));
    if (end)
        sv_buf_append(b, id + 1, (size_t)(end - id));
    else
        sv_buf_lit(b, "null");
}

/* The i-th item in the requested order. */
static const struct sv_kept_item *item_at(const struct sv_buf *items, const struct page *p,
                                          size_t i)
{
    const struct sv_kept_item *list = (const struct sv_kept_item *)(const void *)items->data;

    return &list[p->newest_first ? items->len / sizeof *list - 1 - i : i];
}

static int write_page(struct sv_buf *b, const struct sv_buf *items, const struct page *p,
                      struct sv_api_err *e)
{
    size_t n = items->len / sizeof(struct sv_kept_item), from = 0, to, n_bytes = 0;

    if (p->after.n) {
        while (from < n && !sv_kept_is_item(item_at(items, p, from), p->after.text, p->after.n))
            from++;
        if (from++ == n)
            return sv_api_bad(e, "after", "'after': there is no item '%.*s'",
                              p->after.n < 90 ? (int)p->after.n : 90, p->after.text);
    }
    sv_buf_lit(b, "{\"object\":\"list\",\"data\":[");
    for (to = from; to < n && to - from < (size_t)p->limit && n_bytes < MAX_PAGE_BYTES; to++) {
        const struct sv_kept_item *item = item_at(items, p, to);
        if (to > from)
            sv_buf_lit(b, ",");
        sv_buf_append(b, item->text, item->n);
        n_bytes += item->n;
    }
    sv_buf_lit(b, "],\"first_id\":");
    write_id_of(b, to > from ? item_at(items, p, from) : NULL);
    sv_buf_lit(b, ",\"last_id\":");
    write_id_of(b, to > from ? item_at(items, p, to - 1) : NULL);
    sv_buf_printf(b, ",\"has_more\":%s}\n", to < n ? "true" : "false");
    return 0;
}

static void reply_items(struct sv_http_req *q, const struct sv_kept *k)
{
    struct sv_api_err e;
    struct sv_buf b, items;
    struct page p;

    sv_buf_init(&b);
    sv_buf_init(&items);
    sv_kept_items(k, false, &items);
    if (read_page(q, &p, &e) || (!items.failed && write_page(&b, &items, &p, &e))) {
        sv_api_refuse(q, &e);
        sv_buf_fini(&b);
    } else {
        b.failed |= items.failed;
        reply(q, &b);
    }
    sv_buf_fini(&items);
}

/* ---------------------------------------------------------------- endpoints */

void sv_get_response(struct sv_serve *s, struct sv_http_req *q)
{
    char id[64];
    const char *rest = split(q, id);
    bool items = strcmp(rest, "/input_items") == 0;
    struct sv_kept_item stream;

    if (*rest && !items) {
        no_such_path(q);
        return;
    }
    if (setting(q, "stream", &stream) && says(&stream, "true")) {
        struct sv_api_err e;
        sv_api_bad(&e, "stream", "'stream': an answer is streamed to who asked for it, and once");
        sv_api_refuse(q, &e);
        return;
    }
    const struct sv_call *c = find_call(s, sv_http_key(q), id);
    struct sv_kept *k = sv_stored_get(s->stored, sv_http_key(q), id);
    if (k && items) {
        reply_items(q, k);
    } else if (k) {
        size_t n;
        const char *text = sv_kept_response(k, &n);
        sv_http_reply(q, 200, "application/json", text, n);
    } else if (c && c->p.store && !items) {
        reply_status(q, c, "in_progress");
    } else {
        not_found(q, id);
    }
    sv_stored_let_go(s->stored, k);
}

void sv_delete_response(struct sv_serve *s, struct sv_http_req *q)
{
    struct sv_buf b;
    char id[64];

    if (*split(q, id)) {
        no_such_path(q);
        return;
    }
    const struct sv_call *c = find_call(s, sv_http_key(q), id);
    if (sv_stored_delete(s->stored, sv_http_key(q), id)) {
        sv_buf_init(&b);
        sv_buf_printf(&b, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}\n", id);
        reply(q, &b);
    } else if (c && c->p.store) {
        refuse(q, id, "is being made: it can be cancelled now, and deleted once it is over");
    } else {
        not_found(q, id);
    }
}

/* A waiting client gets what was generated so far. */
static void cancel(struct sv_serve *s, struct sv_http_req *q, const char *id)
{
    struct sv_call *c = find_call(s, sv_http_key(q), id);
    struct sv_kept *k = sv_stored_get(s->stored, sv_http_key(q), id);

    if (c && !sv_call_has_ended(c)) {
        c->aborted = true;
        sv_call_cancel(c);
        reply_status(q, c, "cancelled");
    } else if (c || k) {
        refuse(q, id, "is over, and cannot be cancelled");
    } else {
        not_found(q, id);
    }
    sv_stored_let_go(s->stored, k);
}

void sv_post_response(struct sv_serve *s, struct sv_http_req *q)
{
    char id[64];
    const char *rest = split(q, id);

    if (strcmp(rest, "/cancel") == 0)
        cancel(s, q, id);
    else
        no_such_path(q);
}
