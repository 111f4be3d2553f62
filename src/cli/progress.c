/*
 * progress.c - the progress of a long command: a bar on a terminal, plain lines elsewhere.
 *
 * Called by generate and bench. Writes to stderr, since stdout may have the answers. Must not: be
 * redrawn so often that it takes noticeable time.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"

#include <string.h>
#include <unistd.h>

#define TTY_EVERY_US 100000
#define LINE_EVERY_US 10000000

void sv_cli_progress_begin(struct sv_cli_progress *p, FILE *out, const char *label,
                           const char *unit, double total)
{
    memset(p, 0, sizeof *p);
    p->out = out;
    p->tty = isatty(fileno(out));
    p->label = label;
    p->unit = unit;
    p->total = total;
    p->start_us = p->last_us = sv_clock_us();
    p->every_us = p->tty ? TTY_EVERY_US : LINE_EVERY_US;
}

static void put_duration(struct sv_buf *b, double s)
{
    long t = s < 0 ? 0 : s > 359999 ? 359999 : (long)(s + 0.5);

    if (t >= 3600)
        sv_buf_printf(b, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60, t % 60);
    else
        sv_buf_printf(b, "%ld:%02ld", t / 60, t % 60);
}

/* "[=====>    ]" over `cells` inner columns. */
static void put_bar(struct sv_buf *b, double share, int cells)
{
    int full = (int)(share * cells);

    sv_buf_append(b, "[", 1);
    for (int i = 0; i < cells; i++)
        sv_buf_append(b, i < full ? "=" : i == full ? ">" : " ", 1);
    sv_buf_append(b, "]", 1);
}

void sv_cli_progress_line(const struct sv_cli_progress *p, int64_t now_us, int columns,
                          struct sv_buf *out)
{
    double s = (double)(now_us - p->start_us) / 1e6;
    double share = p->total > 0 ? p->done / p->total : 0;
    struct sv_buf tail;

    share = share < 0 ? 0 : share > 1 ? 1 : share;
    sv_buf_init(&tail);
    sv_buf_printf(&tail, " %lld %s", (long long)p->n_items, p->unit);
    if (p->n_tokens && s > 0)
        sv_buf_printf(&tail, ", %.0f tok/s", (double)p->n_tokens / s);
    if (p->total > 0 && share > 0 && share < 1) {
        sv_buf_append(&tail, ", ETA ", 6);
        put_duration(&tail, s / share - s);
    } else {
        sv_buf_append(&tail, ", ", 2);
        put_duration(&tail, s);
    }
    sv_buf_printf(out, "%s", p->label);
    if (p->total > 0) {
        /* label, blank, bar, blank, "100 %", tail: the bar takes the rest, up to 40. */
        int room = columns - (int)strlen(p->label) - (int)tail.len - 9;
        if (room > 40)
            room = 40;
        if (room >= 5) {
            sv_buf_append(out, " ", 1);
            put_bar(out, share, room);
        }
        sv_buf_printf(out, " %3.0f %%", 100 * share);
    }
    if (tail.data)
        sv_buf_append(out, tail.data, tail.len);
    sv_buf_fini(&tail);
    if (out->data && out->len > (size_t)columns) {
        out->len = (size_t)columns;
        out->data[columns] = 0;
    }
}

static void draw(struct sv_cli_progress *p, int64_t now)
{
    struct sv_buf line;

    sv_buf_init(&line);
    /* The last column stays empty: some terminals wrap as soon as it is written. */
    sv_cli_progress_line(p, now, p->tty ? sv_cli_columns(p->out) - 1 : 200, &line);
    if (line.data) {
        if (p->tty)
            fprintf(p->out, "\r%s\033[K", line.data);
        else
            fprintf(p->out, "salvo: %s\n", line.data);
        fflush(p->out);
    }
    sv_buf_fini(&line);
    p->shown = true;
    p->last_us = now;
}

void sv_cli_progress_update(struct sv_cli_progress *p)
{
    int64_t now;

    if (p->off)
        return;
    now = sv_clock_us();
    if (now - p->last_us >= p->every_us)
        draw(p, now);
}

void sv_cli_progress_clear(struct sv_cli_progress *p)
{
    if (p->tty && p->shown && !p->off) {
        fputs("\r\033[K", p->out);
        fflush(p->out);
        p->shown = false;
    }
}

void sv_cli_progress_end(struct sv_cli_progress *p)
{
    if (p->off)
        return;
    draw(p, sv_clock_us());
    if (p->tty)
        fputc('\n', p->out);
    p->off = true;
}
