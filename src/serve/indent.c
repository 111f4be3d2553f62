/*
 * indent.c - llama-server's n_indent: an answer ends before a line that is indented by less, which
 * is how editors ask for the rest of a block.
 *
 * Called by call.c with what each step brings. Must not: look at the first line, which goes on from
 * the cursor.
 */
#include "serve/impl.h"

/* Blanks of the line that begins are counted until something else comes; an empty line ends the
 * answer too, as it does there. True: *n bytes of the text are left of it. */
static bool ends(struct sv_gen *g, int32_t least, const char *text, uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++) {
        bool blank = text[i] == ' ' || text[i] == '\t';
        if (g->in_indent && blank) {
            g->indent++;
        } else if (g->in_indent && g->indent < least) {
            *n = i;
            return true;
        } else {
            g->in_indent = text[i] == '\n';
            g->indent = 0;
        }
    }
    return false;
}

bool sv_indent_ends(struct sv_gen *g, int32_t least, struct sv_out *o)
{
    if (least <= 0)
        return false;
    bool before = g->dedented;
    if (before) /* what the worker still made */
        o->n_text = o->n_tokens = 0;
    g->dedented = before || ends(g, least, o->text, &o->n_text);
    if (g->dedented && o->finish == SV_FINISH_STOP)
        o->finish = SV_FINISH_LENGTH;
    return g->dedented && !before;
}
