/*
 * http_parse.c - see http_parse.h.
 *
 * A header is collected line by line in p->head. A complete line is checked and rewritten in place
 * as NUL-terminated strings, which are never longer than the line. Chunk lines are read byte by
 * byte and not kept.
 */
#include "serve/http/http_parse.h"

#include <string.h>
#include <strings.h>

enum {
    REQUEST_LINE, /* these three are read by lines */
    FIELDS,
    TRAILERS,
    CONTENT, /* bytes of the body, or of a chunk */
    SIZE,    /* these six are read by bytes */
    SIZE_BLANK,
    EXTENSION,
    SIZE_LF,
    CONTENT_CR,
    CONTENT_LF,
    DONE,
    BAD
};

static bool refuse(struct sv_http_parser *p, int status, const char *reason)
{
    p->state = BAD;
    p->status = status;
    p->reason = reason;
    p->minor = 1; /* the version of the request is unknown or does not matter */
    return false;
}

/* ---------------------------------------------------------------- characters */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex_digit(char c)
{
    char low = (char)(c | 32);
    return is_digit(c) ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static bool is_token(char c)
{
    return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static size_t token_length(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && is_token(text[i]))
        i++;
    return i;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Characters of names, addresses and ports; none that would begin another part of a URL. */
static bool is_host(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((!is_token(text[i]) && !strchr("[]:();=", text[i])) || strchr("#^`|", text[i]))
            return false;
    return true;
}

/* Whether a comma-separated list has this word. */
static bool lists(const char *list, const char *word)
{
    for (; *list; list += strcspn(list, ",")) {
        list += strspn(list, ", \t");
        size_t n = strcspn(list, ", \t");
        if (n == strlen(word) && strncasecmp(list, word, n) == 0)
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------- the request line */

/* Moves a string down to the end of those that are kept. */
static size_t keep(struct sv_http_parser *p, const char *text, size_t n)
{
    size_t at = p->kept;

    memmove(p->head.data + at, text, n);
    p->head.data[at + n] = 0;
    p->kept += n + 1;
    return at;
}

/* Decodes %XX; an encoded NUL stays as it is, so that nothing is cut off. */
static size_t keep_decoded(struct sv_http_parser *p, const char *text, size_t n)
{
    char *to = p->head.data + p->kept;
    size_t at = p->kept;

    for (size_t i = 0; i < n; i++) {
        bool escape = text[i] == '%' && n - i > 2;
        int hi = escape ? hex_digit(text[i + 1]) : -1, lo = escape ? hex_digit(text[i + 2]) : -1;
        escape = hi >= 0 && lo >= 0 && (hi || lo);
        *to++ = escape ? (char)(hi * 16 + lo) : text[i];
        i += escape ? 2 : 0;
    }
    *to = 0;
    p->kept = (size_t)(to + 1 - p->head.data);
    return at;
}

/* Reduces slashes at the beginning of a path to one and removes one at its end: a base URL that
 * ends with a slash makes "//v1/models" of a path. */
static void keep_path(struct sv_http_parser *p, const char *text, size_t n)
{
    while (n > 1 && text[0] == '/' && text[1] == '/') {
        text++;
        n--;
    }
    if (n > 1 && text[n - 1] == '/')
        n--;
    if (n)
        p->path = keep_decoded(p, text, n);
    else
        p->path = keep(p, "/", 1);
}

/* Reads the target: a path, a URL, or "*". A blank follows. */
static bool take_target(struct sv_http_parser *p, const char *text, size_t n)
{
    const char *end = text + n;

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f)
            return refuse(p, 400, "the request target has a control character");
    p->authority = p->kept - 1; /* the method's NUL: "" */
    if (n == 1 && *text == '*' && strcmp(p->head.data, "OPTIONS") == 0) {
        n = 0;
        text = end;
    } else if (n && *text != '/') {
        size_t scheme = strncasecmp(text, "http://", 7) == 0    ? 7
                        : strncasecmp(text, "https://", 8) == 0 ? 8
                                                                : 0;
        const char *host = text + scheme;
        size_t n_host = strcspn(host, "/?# ");
        if (!scheme || !n_host || !is_host(host, n_host))
            return refuse(p, 400, "the request target is neither a path nor an http address");
        text = host + n_host;
        p->authority = keep(p, host, n_host);
    }
    size_t n_path = strcspn(text, "?# ");
    const char *query = text + n_path + (text[n_path] == '?');
    size_t n_query = text[n_path] == '?' ? strcspn(query, "# ") : 0;
    keep_path(p, text, n_path);
    p->query = keep(p, query, n_query);
    p->fields = p->kept;
    return true;
}

static bool take_request_line(struct sv_http_parser *p, const char *line, size_t n)
{
    static const char *const methods[] = {"GET",    "HEAD",    "POST", "PUT",
                                          "DELETE", "OPTIONS", "PATCH"};
    size_t n_method = token_length(line, n);

    if (!n_method || n_method == n || line[n_method] != ' ')
        return refuse(p, 400, "the request line does not begin with a method and one blank");
    const char *target = line + n_method + 1, *end = line + n;
    const char *blank = memchr(target, ' ', (size_t)(end - target));
    if (!blank || blank == target || end - blank != 9 || memcmp(blank + 1, "HTTP/", 5) != 0 ||
        !is_digit(blank[6]) || blank[7] != '.' || !is_digit(blank[8]))
        return refuse(p, 400, "the request line does not end with one blank and HTTP/1.1");
    if (blank[6] != '1')
        return refuse(p, 505, "only versions 1.0 and 1.1 of HTTP are known");
    p->minor = blank[8] > '0';
    p->keep_alive = p->minor > 0;
    keep(p, line, n_method);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(p->head.data, methods[i]) == 0)
            return take_target(p, target, (size_t)(blank - target));
    return refuse(p, 501, "the method is not known");
}

/* ---------------------------------------------------------------- header fields */

static bool take_length(struct sv_http_parser *p, const char *value)
{
    int64_t length = 0;

    if (!*value || value[strspn(value, "0123456789")])
        return refuse(p, 400, "Content-Length is not a number");
    for (const char *at = value; *at; at++) {
        int digit = *at - '0';
        length = length > (INT64_MAX - digit) / 10 ? INT64_MAX : length * 10 + digit;
    }
    if (p->has_length && length != p->length)
        return refuse(p, 400, "there are two values of Content-Length");
    p->has_length = true;
    p->length = length;
    return true;
}

/* Handles fields about the request itself. */
static bool take_meaning(struct sv_http_parser *p, const char *name, const char *value)
{
    if (strcasecmp(name, "Content-Length") == 0)
        return take_length(p, value);
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        if (p->chunked || p->minor == 0 || strcasecmp(value, "chunked") != 0)
            return refuse(p, 400, "of Transfer-Encoding only chunked is known, once, in HTTP/1.1");
        p->chunked = true;
    } else if (strcasecmp(name, "Host") == 0) {
        if (p->has_host || !is_host(value, strlen(value)))
            return refuse(p, 400, "Host is there twice, or is not a name or address with a port");
        p->has_host = true;
    } else if (strcasecmp(name, "Connection") == 0) {
        p->keep_alive = p->minor > 0 ? p->keep_alive && !lists(value, "close")
                                     : p->keep_alive || lists(value, "keep-alive");
    } else if (strcasecmp(name, "Expect") == 0 && p->minor > 0) {
        if (strcasecmp(value, "100-continue") != 0)
            return refuse(p, 417, "of Expect only 100-continue is known");
        p->expects_continue = true;
    }
    return true;
}

static bool take_field(struct sv_http_parser *p, const char *line, size_t n)
{
    size_t n_name = token_length(line, n), at = n_name + 1;

    if (is_blank(line[0]))
        return refuse(p, 400, "a header line is folded");
    if (!n_name || n_name == n || line[n_name] != ':')
        return refuse(p, 400, "a header line is not of the form 'name: value'");
    while (at < n && is_blank(line[at]))
        at++;
    while (n > at && is_blank(line[n - 1]))
        n--;
    for (size_t i = at; i < n; i++)
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 0x7f)
            return refuse(p, 400, "a header field has a control character");
    if (p->state == TRAILERS)
        return true; /* trailers are checked and discarded */
    size_t name = keep(p, line, n_name);
    size_t value = keep(p, line + at, n - at);
    return take_meaning(p, p->head.data + name, p->head.data + value);
}

/* The empty line that ends the header. */
static enum sv_http_event end_head(struct sv_http_parser *p)
{
    if (p->minor > 0 && !p->has_host)
        refuse(p, 400, "the header has no Host");
    else if (p->chunked && p->has_length)
        refuse(p, 400, "the header has both Content-Length and Transfer-Encoding");
    if (p->state == BAD)
        return SV_HTTP_BAD;
    p->left = p->chunked ? 0 : p->length;
    p->state = p->chunked ? SIZE : CONTENT;
    p->any_digit = false;
    p->n_line = 0;
    return SV_HTTP_HEAD;
}

/* A complete line, without its line end. */
static enum sv_http_event take_line(struct sv_http_parser *p, const char *line, size_t n)
{
    bool fine = true;

    if (p->state == REQUEST_LINE) {
        fine = !n || take_request_line(p, line, n); /* empty lines in front are skipped */
        p->state = fine && n ? FIELDS : p->state;
    } else if (n) {
        fine = take_field(p, line, n);
    } else if (p->state == FIELDS) {
        return end_head(p);
    } else {
        p->state = DONE;
        return SV_HTTP_END;
    }
    p->head.len = p->kept;
    return fine ? SV_HTTP_MORE : SV_HTTP_BAD;
}

/* Appends bytes up to the end of a line, or all bytes. */
static enum sv_http_event gather_line(struct sv_http_parser *p, const char *in, size_t n,
                                      size_t *used)
{
    const char *lf = memchr(in, '\n', n);
    size_t k = lf ? (size_t)(lf + 1 - in) : n;
    enum sv_http_event e = SV_HTTP_BAD;

    /* Checked at the first byte: a client of another protocol may wait for an answer. */
    if (p->state == REQUEST_LINE && p->head.len == 0 && !is_token(*in) && *in != '\r')
        refuse(p, 400, "the request line does not begin with a method");
    else if (p->n_head + k > SV_HTTP_MAX_HEAD)
        refuse(p, 431, "the header is too large");
    else
        sv_buf_append(&p->head, in, k);
    if (p->head.failed)
        refuse(p, 503, "no memory for the header");
    if (p->state == BAD)
        return e;
    *used += k;
    p->n_head += k;
    if (!lf)
        return SV_HTTP_MORE;
    const char *line = p->head.data + p->kept;
    size_t n_line = p->head.len - p->kept;
    if (n_line >= 2 && line[n_line - 2] == '\r')
        e = take_line(p, line, n_line - 2);
    else
        refuse(p, 400, "a line does not end with CR and LF");
    p->head.len = p->kept;
    return e;
}

/* ---------------------------------------------------------------- chunks */

static bool take_size(struct sv_http_parser *p)
{
    if (p->left > p->max_body - p->n_body)
        return refuse(p, 413, "the body is too large");
    p->n_body += p->left;
    p->state = p->left ? CONTENT : TRAILERS;
    return true;
}

static bool size_byte(struct sv_http_parser *p, char c)
{
    int digit = p->state == SIZE ? hex_digit(c) : -1;

    if (++p->n_line > SV_HTTP_MAX_CHUNK_LINE)
        return refuse(p, 400, "a chunk's line is too long");
    if (digit >= 0) {
        if (p->left >> 58)
            return refuse(p, 400, "a chunk's size is out of range");
        p->left = p->left * 16 + digit;
        p->any_digit = true;
    } else if (!p->any_digit) {
        return refuse(p, 400, "a chunk has no size");
    } else if (c == '\r') {
        p->state = SIZE_LF;
    } else if (p->state == EXTENSION) {
        if (((unsigned char)c < ' ' && c != '\t') || c == 0x7f)
            return refuse(p, 400, "a chunk's extension has a control character");
    } else if (c == ';' || is_blank(c)) {
        p->state = c == ';' ? EXTENSION : SIZE_BLANK;
    } else {
        return refuse(p, 400, "a chunk's size is not followed by CR and LF");
    }
    return true;
}

static bool chunk_byte(struct sv_http_parser *p, char c)
{
    if (p->state == CONTENT_CR || p->state == CONTENT_LF) {
        if (c != (p->state == CONTENT_CR ? '\r' : '\n'))
            return refuse(p, 400, "a chunk does not end with CR and LF");
        p->state = p->state == CONTENT_CR ? CONTENT_LF : SIZE;
        p->any_digit = false;
        p->n_line = 0;
        return true;
    }
    if (p->state != SIZE_LF)
        return size_byte(p, c);
    return c == '\n' ? take_size(p) : refuse(p, 400, "a chunk's size is not followed by CR and LF");
}

/* ---------------------------------------------------------------- the parser */

static enum sv_http_event take_content(struct sv_http_parser *p, size_t n, size_t *used)
{
    size_t k = (uint64_t)p->left < n ? (size_t)p->left : n;

    if (!p->chunked && p->left > p->max_body) {
        refuse(p, 413, "the body is too large");
        return SV_HTTP_BAD;
    }
    if (!p->left) {
        p->state = DONE;
        return SV_HTTP_END;
    }
    if (!k)
        return SV_HTTP_MORE;
    *used += k;
    p->n_data = k;
    p->left -= (int64_t)k;
    if (!p->left && p->chunked)
        p->state = CONTENT_CR;
    return SV_HTTP_DATA;
}

enum sv_http_event sv_http_parse(struct sv_http_parser *p, const char *in, size_t n, size_t *used)
{
    enum sv_http_event e = SV_HTTP_MORE;

    *used = 0;
    while (e == SV_HTTP_MORE) {
        if (p->state == BAD)
            return SV_HTTP_BAD;
        if (p->state == DONE)
            return SV_HTTP_END;
        if (*used == n && p->state != CONTENT)
            break;
        if (p->state == CONTENT) {
            e = take_content(p, n - *used, used);
            if (e == SV_HTTP_MORE)
                break;
        } else if (p->state <= TRAILERS) {
            e = gather_line(p, in + *used, n - *used, used);
        } else {
            chunk_byte(p, in[(*used)++]);
        }
    }
    return e;
}

void sv_http_parser_init(struct sv_http_parser *p, int64_t max_body)
{
    memset(p, 0, sizeof *p);
    sv_buf_init(&p->head);
    p->max_body = max_body;
    sv_http_parser_next(p);
}

void sv_http_parser_fini(struct sv_http_parser *p)
{
    sv_buf_fini(&p->head);
}

void sv_http_parser_next(struct sv_http_parser *p)
{
    struct sv_buf head = p->head;
    int64_t max_body = p->max_body;

    if (head.cap > 4096)
        sv_buf_fini(&head);
    sv_buf_clear(&head);
    *p = (struct sv_http_parser){.head = head, .max_body = max_body, .minor = 1};
}

bool sv_http_parser_is_idle(const struct sv_http_parser *p)
{
    return p->state == REQUEST_LINE && !p->n_head;
}

const char *sv_http_parser_text(const struct sv_http_parser *p, size_t at)
{
    return p->fields ? p->head.data + at : "";
}

const char *sv_http_find_pair(const char *pairs, size_t n, const char *name)
{
    for (size_t at = 0; at < n;) {
        const char *own = pairs + at, *value = own + strlen(own) + 1;
        if (strcasecmp(own, name) == 0)
            return value;
        at = (size_t)(value + strlen(value) + 1 - pairs);
    }
    return NULL;
}

const char *sv_http_parser_field(const struct sv_http_parser *p, const char *name)
{
    return p->fields ? sv_http_find_pair(p->head.data + p->fields, p->kept - p->fields, name)
                     : NULL;
}

const char *sv_http_parser_host(const struct sv_http_parser *p)
{
    const char *authority = sv_http_parser_text(p, p->authority);
    return *authority ? authority : sv_http_parser_field(p, "Host");
}
