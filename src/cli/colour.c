/*
 * colour.c - what depends on the terminal: colours, its width, and the painter of drafted tokens.
 *
 * Called by run, demo and the progress bar. Must not: write an escape sequence inside a code point,
 * or any at all when the output is not a terminal (unless asked to).
 */
#define _DEFAULT_SOURCE 1 /* TIOCGWINSZ */

#include "cli/cli.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const char *sv_cli_style(bool colour, enum sv_cli_style style)
{
    if (!colour)
        return "";
    switch (style) {
    case SV_CLI_DRAFTED:
        return "\033[32m";
    case SV_CLI_OWN:
        return "\033[1;33m";
    case SV_CLI_BOLD:
        return "\033[1m";
    case SV_CLI_DIM:
        return "\033[2m";
    case SV_CLI_PLAIN:
        break;
    }
    return "\033[0m";
}

bool sv_cli_colour(FILE *out, const char *mode)
{
    const char *no = sv_env("NO_COLOR"), *term = sv_env("TERM");

    if (mode && strcmp(mode, "always") == 0)
        return true;
    if (mode && strcmp(mode, "never") == 0)
        return false;
    return isatty(fileno(out)) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

int sv_cli_columns(FILE *out)
{
    struct winsize w;

    if (ioctl(fileno(out), TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return 80;
}

/* ---------------------------------------------------------------- painter */

void sv_cli_painter_init(struct sv_cli_painter *p, FILE *out, bool on)
{
    memset(p, 0, sizeof *p);
    p->out = out;
    p->on = on;
    p->tty = isatty(fileno(out));
    sv_buf_init(&p->due);
    sv_buf_init(&p->due_style);
}

/* A model may write any byte; on a terminal control characters are shown, not obeyed. */
static void put_text(struct sv_cli_painter *p, const char *text, size_t n)
{
    size_t from = 0;

    for (size_t i = 0; i < n && p->tty; i++) {
        unsigned char c = (unsigned char)text[i];
        /* U+0080 to U+009F: terminals obey them like ESC and a letter. */
        const bool high = c == 0xC2 && i + 1 < n && (unsigned char)text[i + 1] < 0xA0;
        if (!high && ((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t'))
            continue;
        fwrite(text + from, 1, i - from, p->out);
        if (high)
            fprintf(p->out, "^[%c", text[++i] - 0x40);
        else
            fprintf(p->out, "^%c", c ^ 0x40);
        from = i + 1;
    }
    fwrite(text + from, 1, n - from, p->out);
}

static void set_style(struct sv_cli_painter *p, enum sv_cli_style style)
{
    if (p->now == style)
        return;
    /* Each style is complete only after a reset. */
    if (p->now != SV_CLI_PLAIN)
        fputs(sv_cli_style(true, SV_CLI_PLAIN), p->out);
    if (style != SV_CLI_PLAIN)
        fputs(sv_cli_style(true, style), p->out);
    p->now = style;
}

static void drop_due(struct sv_cli_painter *p, size_t n)
{
    if (!n)
        return;
    memmove(p->due.data, p->due.data + n, p->due.len - n);
    memmove(p->due_style.data, p->due_style.data + n, p->due_style.len - n);
    p->due.len -= n;
    p->due_style.len -= n;
}

static size_t code_point_bytes(unsigned char lead)
{
    return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Tokens that are not shown (special ones) leave bytes that never come: skip to where the text goes
 * on, if that is anywhere in sight. */
static size_t find_due(const struct sv_cli_painter *p, size_t at, const char *text, size_t n)
{
    for (size_t i = at; i + n <= p->due.len; i++)
        if (memcmp(p->due.data + i, text, n) == 0)
            return i;
    return p->due.len;
}

static void note_tokens(struct sv_cli_painter *p, const struct sv_engine *e,
                        const struct sv_event *ev)
{
    for (int32_t i = 0; i < ev->n_tokens && p->on; i++) {
        size_t n;
        const char *bytes = sv_token_bytes(e, ev->tokens[i], &n);
        char style = i < ev->n_drafted ? SV_CLI_DRAFTED : SV_CLI_OWN;
        for (size_t k = 0; bytes && k < n; k++) {
            sv_buf_append(&p->due, bytes + k, 1);
            sv_buf_append(&p->due_style, &style, 1);
        }
    }
    if (p->due.failed || p->due_style.failed) { /* no memory for styles: text comes as it is */
        sv_buf_clear(&p->due);
        sv_buf_clear(&p->due_style);
    }
}

void sv_cli_painter_text(struct sv_cli_painter *p, const char *text, size_t n, bool dim)
{
    size_t at = 0;

    if (!p->on) {
        set_style(p, dim ? SV_CLI_DIM : SV_CLI_PLAIN);
        put_text(p, text, n);
        return;
    }
    for (size_t i = 0; i < n;) {
        size_t k = code_point_bytes((unsigned char)text[i]), found;
        if (k > n - i)
            k = n - i;
        found = find_due(p, at, text + i, k);
        /* Not found: a replacement character stands for bytes of its own; keep the style. */
        if (found < p->due.len) {
            set_style(p, (enum sv_cli_style)p->due_style.data[found]);
            at = found + k;
        }
        put_text(p, text + i, k);
        i += k;
    }
    drop_due(p, at);
}

void sv_cli_painter_mark(struct sv_cli_painter *p, const char *text)
{
    set_style(p, SV_CLI_PLAIN);
    fputs(text, p->out);
}

void sv_cli_painter_event(struct sv_cli_painter *p, const struct sv_engine *e,
                          const struct sv_event *ev)
{
    note_tokens(p, e, ev);
    if (p->divide)
        p->divide(p->user, ev);
    else
        sv_cli_painter_text(p, ev->text, ev->n_bytes, false);
    if (ev->finish != SV_FINISH_NONE) {
        drop_due(p, p->due.len);
        set_style(p, SV_CLI_PLAIN);
    }
    if (ev->n_bytes || ev->finish != SV_FINISH_NONE)
        fflush(p->out);
}

void sv_cli_painter_fini(struct sv_cli_painter *p)
{
    set_style(p, SV_CLI_PLAIN);
    sv_buf_fini(&p->due);
    sv_buf_fini(&p->due_style);
}
