/*
 * chunks.c - extensions of chunks ("5;name=value"), which HTTP wants ignored and evhttp refuses:
 * they are blanked in the connection's input before evhttp reads it. And framing that evhttp reads
 * and others may read otherwise: NUL in a header (for evhttp the end of a line), sizes like 0x5 and
 * +5, lines of chunks that do not end with CR and LF, chunks that go on behind their end, lines of
 * chunks without an end, which evhttp would gather for ever.
 *
 * Called by http.c for every connection. To know where a chunk's size stands, the framing of
 * everything that comes is followed from the first byte on. What that needs is 64 bits, kept where
 * the connection keeps a mark that sockets have no use for (its high-water mark for writing), so
 * that it lives as long as the connection does: evhttp tells nobody when one ends that has not made
 * a request. Must not: touch anything but the rest of a line that began with a size; where the
 * framing is wrong all that is still to come is spoiled, so that evhttp refuses it.
 */
#include "serve/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <string.h>

enum { HEAD, BODY, SIZE, EXTENSION, DATA, AFTER, TRAILER, OFF };
enum { NO_NAME = 31 };            /* the line is another header's */
enum { MAX_LINE = 31 << 5 | 31 }; /* bytes of a chunk's line */

static const char coding_name[] = "transfer-encoding:", length_name[] = "content-length:",
                  chunked_word[] = "chunked";

struct frame {
    uint64_t left : 44; /* bytes of the body or chunk; in a line with a size or length: so far */
    uint64_t where : 3;
    uint64_t coding : 5, length : 5; /* characters of these names that the line begins with */
    /* characters of "chunked" just seen. These three in lines of chunks: how long they are, in two
     * parts, and whether the extensions have begun */
    uint64_t word : 3;
    uint64_t chunked : 1;
    uint64_t any : 1; /* the line is not empty */
    uint64_t cr : 1;  /* the byte before was one; of what is spoiled: it was no line's end */
};
_Static_assert(sizeof(struct frame) == sizeof(size_t), "is kept in a size_t");

static const uint64_t most = (uint64_t)1 << 40;

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static unsigned match(unsigned at, const char *name, char c)
{
    return at != NO_NAME && name[at] == lower(c) ? at + 1 : NO_NAME;
}

static void begin_line(struct frame *f)
{
    f->any = f->coding = f->length = f->word = 0;
}

static void begin_request(struct frame *f)
{
    *f = (struct frame){.where = HEAD};
}

static void header_byte(struct frame *f, char c)
{
    f->any = 1;
    if (f->coding == sizeof coding_name - 1) {
        f->word = lower(c) == chunked_word[f->word] ? f->word + 1u : lower(c) == 'c';
        f->chunked |= f->word == sizeof chunked_word - 1;
        f->word = f->word == sizeof chunked_word - 1 ? 0 : f->word;
    } else {
        f->coding = match(f->coding, coding_name, c);
    }
    if (f->length == sizeof length_name - 1) {
        if (c >= '0' && c <= '9' && f->left < most)
            f->left = f->left * 10 + (unsigned)(c - '0');
    } else {
        f->length = match(f->length, length_name, c);
        f->left = f->length == sizeof length_name - 1 ? 0 : f->left;
    }
}

static void header_line(struct frame *f)
{
    if (f->any) {
        begin_line(f);
    } else if (f->chunked) {
        begin_request(f);
        f->where = SIZE;
    } else if (f->left) {
        f->where = BODY;
    } else {
        begin_request(f);
    }
}

static void size_byte(struct frame *f, char *c)
{
    int digit = *c >= '0' && *c <= '9'                 ? *c - '0'
                : lower(*c) >= 'a' && lower(*c) <= 'f' ? lower(*c) - 'a' + 10
                                                       : -1;

    if (digit >= 0 && f->left < most) {
        f->left = f->left * 16 + (unsigned)digit;
        f->any = 1;
    } else if (f->any && (*c == ';' || *c == ' ' || *c == '\t')) {
        f->where = EXTENSION;
        f->word = *c == ';';
        *c = ' ';
    } else {
        f->where = OFF;
    }
}

static void extension_byte(struct frame *f, char *c)
{
    if (*c == ';')
        f->word = 1;
    else if (!f->word && *c != ' ' && *c != '\t')
        f->where = OFF;
    *c = ' ';
}

static void size_line(struct frame *f)
{
    uint64_t n = f->left, any = f->any;

    begin_request(f);
    f->left = n;
    f->where = !any ? OFF : n ? DATA : TRAILER;
}

/* A byte of a line with a chunk's size, or of the end of its data. */
static void chunk_byte(struct frame *f, char *c)
{
    bool line = *c == '\n';
    unsigned n = (unsigned)(f->length << 5 | f->coding);

    if (f->cr != line || n == MAX_LINE) {
        f->where = OFF;
        return;
    }
    f->cr = *c == '\r';
    f->coding = (n + 1) & 31;
    f->length = (n + 1) >> 5;
    if (f->cr)
        return;
    if (f->where == AFTER) {
        begin_request(f);
        f->where = line ? SIZE : OFF;
    } else if (line) {
        size_line(f);
    } else if (f->where == SIZE) {
        size_byte(f, c);
    } else {
        extension_byte(f, c);
    }
}

static void one_byte(struct frame *f, char *c)
{
    bool line = *c == '\n';

    if (f->where != HEAD && f->where != TRAILER) {
        chunk_byte(f, c);
    } else if (!*c) {
        f->where = OFF;
    } else if (*c == '\r') {
        return;
    } else if (f->where == HEAD) {
        line ? header_line(f) : header_byte(f, *c);
    } else if (line && !f->any) {
        begin_request(f);
    } else {
        f->any = !line;
    }
}

/* Lines that are no request's, header's or chunk's, however they are cut; short, so that they are
 * not gathered. */
static void spoil(struct frame *f, char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        data[i] = f->cr ? '\n' : '!';
        f->cr = !f->cr;
    }
}

static void follow(struct frame *f, char *data, size_t n)
{
    size_t i = 0;

    while (i < n && f->where != OFF) {
        if (f->where != BODY && f->where != DATA) {
            one_byte(f, &data[i]);
            f->cr = f->where != OFF && f->cr;
            i += f->where != OFF;
            continue;
        }
        size_t skip = f->left < n - i ? f->left : n - i;
        bool chunk = f->where == DATA;
        i += skip;
        f->left -= skip;
        if (!f->left) {
            begin_request(f);
            f->where = chunk ? AFTER : HEAD;
        }
    }
    spoil(f, data + i, n - i);
}

static void look(struct evbuffer *in, const struct evbuffer_cb_info *info, void *arg)
{
    struct bufferevent *bev = arg;
    struct evbuffer_iovec piece;
    struct evbuffer_ptr at;
    struct frame f;
    size_t low, mark, left = info->n_added;

    if (!left || bufferevent_getwatermark(bev, EV_WRITE, &low, &mark))
        return;
    memcpy(&f, &mark, sizeof f);
    if (evbuffer_ptr_set(in, &at, evbuffer_get_length(in) - left, EVBUFFER_PTR_SET))
        return;
    while (left && evbuffer_peek(in, 1, &at, &piece, 1) > 0 && piece.iov_len) {
        size_t n = piece.iov_len < left ? piece.iov_len : left;
        follow(&f, piece.iov_base, n);
        left -= n;
        if (left && evbuffer_ptr_set(in, &at, n, EVBUFFER_PTR_ADD))
            f.where = OFF;
    }
    memcpy(&mark, &f, sizeof mark);
    bufferevent_setwatermark(bev, EV_WRITE, low, mark);
}

void sv_chunks_watch(struct bufferevent *bev)
{
    evbuffer_add_cb(bufferevent_get_input(bev), look, bev);
}
