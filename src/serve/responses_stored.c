/*
 * responses_stored.c - /v1/responses/{id}: answers that are kept or still being made, read, deleted
 * and cancelled, and the items they were asked with.
 *
 * Called by route.c, on the loop's thread. Items are lines of text (stored.c), so a list of them is
 * put together without reading JSON. Must not: show more than a page of them at once.
 */
#include "serve/impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PAGE 100
#define USUAL_PAGE 20

/* What stands behind the id in the path; the id is copied. */
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
    sv_http_reply(q, b->failed ? 500 : 200, "application/json", b->data ? b->data : "", b->len);
    sv_buf_fini(b);
}

/* One that is being made; what is still read has no name yet, what has ended is about to be kept.
 */
static struct sv_call *find_call(const struct sv_serve *s, const char *id)
{
    struct sv_call *c = s->calls;

    while (c && (c->dialect->kind != SV_RESPONSES || !c->n_gens || sv_call_has_ended(c) ||
                 strcmp(c->id, id) != 0))
        c = c->next;
    return c;
}

static void reply_status(struct sv_http_req *q, const struct sv_call *c, const char *status)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_responses_status(&b, c, status);
    reply(q, &b);
}

/* ---------------------------------------------------------------- pages of items */

/* A setting of the query; false: it is not there, or too long to be one. */
static bool setting(const char *query, const char *name, char *value, size_t size)
{
    size_t n = strlen(name);

    for (; *query; query += strcspn(query, "&"), query += *query == '&') {
        size_t len = strcspn(query, "&");
        if (len <= n || strncmp(query, name, n) != 0 || query[n] != '=' || len - n - 1 >= size)
            continue;
        snprintf(value, size, "%.*s", (int)(len - n - 1), query + n + 1);
        return true;
    }
    return false;
}

static int read_page(const struct sv_http_req *q, long *limit, bool *newest_first, char after[96],
                     struct sv_api_err *e)
{
    const char *query = sv_http_query(q);
    char text[32], *end;

    *limit = USUAL_PAGE;
    *newest_first = true;
    if (setting(query, "limit", text, sizeof text)) {
        *limit = strtol(text, &end, 10);
        if (!*text || *end || *limit < 1 || *limit > MAX_PAGE)
            return sv_api_bad(e, "limit", "'limit' must be in [1, %d]", MAX_PAGE);
    }
    if (setting(query, "order", text, sizeof text)) {
        *newest_first = strcmp(text, "desc") == 0;
        if (!*newest_first && strcmp(text, "asc") != 0)
            return sv_api_bad(e, "order", "'order' must be asc or desc");
    }
    if (!setting(query, "after", after, 96))
        *after = 0;
    return 0;
}

/* An item begins with its id, in quotes. */
static void write_id_of(struct sv_buf *b, const struct sv_kept_item *item)
{
    const char *id = memchr(item->text, ':', item->n), *end;

    end = id ? memchr(id + 2, '"', item->n - (size_t)(id + 2 - item->text)) : NULL;
    if (end)
        sv_buf_append(b, id + 1, (size_t)(end - id));
    else
        sv_buf_lit(b, "null");
}

static int write_page(struct sv_buf *b, const struct sv_buf *lines, long limit, bool newest_first,
                      const char *after, struct sv_api_err *e)
{
    const struct sv_kept_item *items = (const struct sv_kept_item *)(const void *)lines->data;
    size_t n = lines->len / sizeof *items, from = 0, shown;

    while (*after && from < n &&
           !sv_kept_is_item(&items[newest_first ? n - 1 - from : from], after))
        from++;
    if (*after && from++ == n)
        return sv_api_bad(e, "after", "'after': there is no item '%.90s'", after);
    shown = n - from < (size_t)limit ? n - from : (size_t)limit;
    sv_buf_lit(b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = from; i < from + shown; i++) {
        const struct sv_kept_item *item = &items[newest_first ? n - 1 - i : i];
        if (i > from)
            sv_buf_lit(b, ",");
        sv_buf_append(b, item->text, item->n);
    }
    sv_buf_lit(b, "],\"first_id\":");
    if (shown)
        write_id_of(b, &items[newest_first ? n - 1 - from : from]);
    else
        sv_buf_lit(b, "null");
    sv_buf_lit(b, ",\"last_id\":");
    if (shown)
        write_id_of(b, &items[newest_first ? n - from - shown : from + shown - 1]);
    else
        sv_buf_lit(b, "null");
    sv_buf_printf(b, ",\"has_more\":%s}\n", from + shown < n ? "true" : "false");
    return 0;
}

static void reply_items(struct sv_http_req *q, const struct sv_kept *k)
{
    struct sv_api_err e;
    struct sv_buf b, lines;
    char after[96];
    bool newest_first;
    long limit;

    sv_buf_init(&b);
    sv_buf_init(&lines);
    sv_kept_items(k, false, &lines);
    if (read_page(q, &limit, &newest_first, after, &e) ||
        write_page(&b, &lines, limit, newest_first, after, &e)) {
        sv_api_refuse(q, &e);
        sv_buf_fini(&b);
    } else {
        b.failed |= lines.failed;
        reply(q, &b);
    }
    sv_buf_fini(&lines);
}

/* ---------------------------------------------------------------- endpoints */

void sv_get_response(struct sv_serve *s, struct sv_http_req *q)
{
    char id[64], stream[8];
    const char *rest = split(q, id);
    const struct sv_call *c = *rest ? NULL : find_call(s, id);
    bool items = strcmp(rest, "/input_items") == 0;

    if (*rest && !items) {
        no_such_path(q);
        return;
    }
    if (setting(sv_http_query(q), "stream", stream, sizeof stream) && strcmp(stream, "true") == 0) {
        struct sv_api_err e;
        sv_api_bad(&e, "stream", "'stream': an answer is streamed to who asked for it, and once");
        sv_api_refuse(q, &e);
        return;
    }
    struct sv_kept *k = sv_stored_get(s->stored, id);
    if (k && items) {
        reply_items(q, k);
    } else if (k) {
        size_t n;
        const char *text = sv_kept_response(k, &n);
        sv_http_reply(q, 200, "application/json", text, n);
    } else if (c && c->p.store) {
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
    } else if (!sv_stored_delete(s->stored, id)) {
        not_found(q, id);
    } else {
        sv_buf_init(&b);
        sv_buf_printf(&b, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}\n", id);
        reply(q, &b);
    }
}

/* Whoever waits for it gets what there is. */
static void cancel(struct sv_serve *s, struct sv_http_req *q, const char *id)
{
    struct sv_call *c = find_call(s, id);
    struct sv_kept *k = c ? NULL : sv_stored_get(s->stored, id);

    if (c) {
        c->aborted = true;
        sv_call_cancel(c);
        reply_status(q, c, "cancelled");
    } else if (k) {
        struct sv_api_err e;
        sv_api_bad(&e, "response_id", "the response '%s' is over, and cannot be cancelled", id);
        sv_api_refuse(q, &e);
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
