/*
 * indent.c - llama-server's own limits: n_indent ends an answer before a line that is indented by
 * less, which is how editors ask for the rest of a block; t_max_predict_ms ends it after a time.
 *
 * Called by call.c with each report. Must not: check the first line, which continues the line of
 * the cursor.
 */
#include "serve/compat/compat.h"

#include <string.h>

/* Counts the leading blanks of a line. An empty line ends the answer too, as in llama-server. True:
 * the answer ends after *n bytes of the text. */
static bool ends(struct sv_choice *ch, int32_t least, const char *text, uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++) {
        bool blank = text[i] == ' ' || text[i] == '\t';
        if (ch->in_indent && blank) {
            ch->indent++;
        } else if (ch->in_indent && ch->indent < least) {
            *n = i;
            return true;
        } else {
            ch->in_indent = text[i] == '\n';
            ch->indent = 0;
        }
    }
    return false;
}

static bool is_dedented(struct sv_choice *ch, int32_t least, struct sv_out *o)
{
    if (least <= 0)
        return false;
    bool before = ch->dedented;
    if (before) /* generated after the end */
        o->n_text = o->n_tokens = 0;
    ch->dedented = before || ends(ch, least, o->text, &o->n_text);
    if (ch->dedented && o->finish == SV_FINISH_STOP)
        o->finish = SV_FINISH_LENGTH;
    return ch->dedented && !before;
}

/* The time limit counts from the first token, and applies once there is a line break. */
bool sv_llama_is_over(struct sv_call *c, struct sv_choice *ch, struct sv_out *o)
{
    ch->newline = ch->newline || (o->n_text && memchr(o->text, '\n', o->n_text));
    return is_dedented(ch, c->p.n_indent, o) ||
           (c->p.max_ms > 0 && ch->newline && c->first_us &&
            o->at_us - c->first_us >= (int64_t)c->p.max_ms * 1000);
}
