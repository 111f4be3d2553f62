/*
 * painter.h - writes an answer's text to a stream as it is generated, in styles (colour.c).
 *
 * Included by cli.h. Must not: know what the text means.
 */
#ifndef SV_CLI_PAINTER_H
#define SV_CLI_PAINTER_H

#include "base/base.h"
#include "salvo.h"

enum sv_cli_style { SV_CLI_PLAIN, SV_CLI_DRAFTED, SV_CLI_OWN, SV_CLI_BOLD, SV_CLI_DIM };

/* Writes event text with drafted and own tokens in their styles. Text may lag behind tokens (stop
 * strings, incomplete code points), so the painter remembers which bytes are still to come. */
struct sv_cli_painter {
    FILE *out;
    bool on; /* false: no colours */
    bool tty;
    void (*divide)(void *user, const struct sv_event *ev); /* NULL, or shows the text of ev */
    void *user;
    enum sv_cli_style now;   /* what the terminal is set to */
    struct sv_buf due;       /* token bytes whose text has not come yet */
    struct sv_buf due_style; /* one byte a byte of due */
};
void sv_cli_painter_init(struct sv_cli_painter *p, FILE *out, bool on);
void sv_cli_painter_event(struct sv_cli_painter *p, const struct sv_engine *e,
                          const struct sv_event *ev);
/* For divide: the next piece, whole code points, dimmed where drafts are not coloured; a mark that
 * is no text of the model. */
void sv_cli_painter_text(struct sv_cli_painter *p, const char *text, size_t n, bool dim);
void sv_cli_painter_mark(struct sv_cli_painter *p, const char *text);
void sv_cli_painter_fini(struct sv_cli_painter *p); /* back to plain; frees */

#endif
