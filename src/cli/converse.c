/*
 * converse.c - the conversation loop of `salvo run`: line editing with history, commands after a
 * slash.
 *
 * Called by run.c when a terminal is at both ends. Uses libedit. Must not: answer anything itself.
 */
#define _XOPEN_SOURCE 700 /* realpath */

#include "cli/talk.h"

#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000

struct editor {
    EditLine *el;
    History *history;
    HistEvent event;
    char *history_file; /* NULL: none is kept */
};

static char *prompt_text(EditLine *el)
{
    static char text[] = "> ";
    (void)el;
    return text;
}

static char *continued_text(EditLine *el)
{
    static char text[] = ". ";
    (void)el;
    return text;
}

/* libedit's own reader goes on after the first interrupted read, and Ctrl-C would be lost. Returns
 * how many characters were read, -1 on errors. */
static int read_character(EditLine *el, wchar_t *out)
{
    mbstate_t state = {0};

    (void)el;
    for (;;) {
        char byte;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR && !sv_cli_interrupted())
            continue; /* some other signal, a resized window perhaps */
        if (n <= 0)
            return (int)n;
        switch (mbrtowc(out, &byte, 1, &state)) {
        case (size_t)-1: /* not the locale's: drop it */
            memset(&state, 0, sizeof state);
            break;
        case (size_t)-2:
            break;
        default:
            return 1;
        }
    }
}

static int open_editor(struct editor *ed)
{
    const char *home = sv_env("HOME");
    struct stat st;

    memset(ed, 0, sizeof *ed);
    ed->el = el_init("salvo", stdin, stdout, stderr);
    ed->history = history_init();
    if (!ed->el || !ed->history)
        return sv_cli_fail("line editing could not be started");
    history(ed->history, &ed->event, H_SETSIZE, HISTORY_LINES);
    history(ed->history, &ed->event, H_SETUNIQUE, 1);
    if (home && *home)
        ed->history_file = sv_path_join(home, ".salvo_history");
    if (ed->history_file && history(ed->history, &ed->event, H_LOAD, ed->history_file) < 0 &&
        stat(ed->history_file, &st) == 0 && st.st_size > 0) {
        sv_free(ed->history_file); /* not ours to read: not ours to replace */
        ed->history_file = NULL;
    }
    el_set(ed->el, EL_PROMPT, prompt_text);
    el_set(ed->el, EL_EDITOR, "emacs");
    el_set(ed->el, EL_GETCFN, read_character);
    el_set(ed->el, EL_HIST, history, ed->history);
    el_set(ed->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(ed->el, NULL);
    return SV_CLI_OK;
}

/* Beside the old one and then in its place, so that a full disk or an end in the middle loses
 * neither. A conversation is nobody else's: mkstemp's file is its owner's alone. */
static void save_history(struct editor *ed)
{
    char linked[PATH_MAX];
    const char *path = realpath(ed->history_file, linked) ? linked : ed->history_file;
    struct sv_buf tmp;
    FILE *f = NULL;
    bool ok;
    int fd;

    sv_buf_init(&tmp);
    sv_buf_printf(&tmp, "%s.XXXXXX", path);
    fd = tmp.failed ? -1 : mkstemp(tmp.data);
    if (fd >= 0 && !(f = fdopen(fd, "w")))
        close(fd);
    ok = f && history(ed->history, &ed->event, H_SAVE_FP, f) >= 0 && fflush(f) == 0 && !ferror(f);
    ok = f && fclose(f) == 0 && ok;
    if (fd >= 0 && (!ok || rename(tmp.data, path) != 0))
        unlink(tmp.data);
    sv_buf_fini(&tmp);
}

static void close_editor(struct editor *ed)
{
    if (ed->history && ed->history_file)
        save_history(ed);
    if (ed->history)
        history_end(ed->history);
    if (ed->el)
        el_end(ed->el);
    sv_free(ed->history_file);
}

enum got { GOT_LINE, GOT_NOTHING, GOT_END };

/* One message; a backslash at a line's end goes on in the next line. */
static enum got read_message(struct editor *ed, struct sv_buf *b)
{
    bool more = true, first = true;

    sv_buf_clear(b);
    while (more) {
        int n = 0;
        const char *line;
        sv_cli_clear_interrupt(); /* one that came too late for the answer is not meant for this */
        el_set(ed->el, EL_PROMPT, first ? prompt_text : continued_text);
        sv_cli_idle(true);
        line = el_gets(ed->el, &n);
        sv_cli_idle(false);
        if (sv_cli_interrupted()) { /* Ctrl-C at the prompt drops the line */
            el_reset(ed->el);
            fputc('\n', stdout);
            return GOT_NOTHING;
        }
        if ((!line || n <= 0) && !b->len)
            return GOT_END;
        if (!line || n <= 0)
            break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        more = n > 0 && line[n - 1] == '\\';
        if (!first)
            sv_buf_append(b, "\n", 1);
        sv_buf_append(b, line, (size_t)(more ? n - 1 : n));
        first = false;
    }
    if (b->failed)
        sv_cli_say("out of memory: the message is dropped");
    if (b->failed || !b->len)
        return GOT_NOTHING;
    history(ed->history, &ed->event, H_ENTER, b->data);
    return GOT_LINE;
}

static void show_stats(const struct sv_cli_talk *t)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_printf(&b, "accept length %.2f over %lld steps\n", sv_cli_accept_mean(&t->accept),
                  (long long)t->accept.n_steps);
    sv_cli_accept_bars(&t->accept, 2, &b);
    if (!b.failed)
        fputs(b.data, stdout);
    sv_buf_fini(&b);
}

/* True when the line was a command; *quit when it was the last one. */
static bool command(struct sv_cli_talk *t, const char *line, bool *quit)
{
    if (line[0] != '/')
        return false;
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0 || strcmp(line, "/bye") == 0) {
        *quit = true;
    } else if (strcmp(line, "/stats") == 0) {
        show_stats(t);
    } else if (strcmp(line, "/draft") == 0) {
        t->painter.on = !t->painter.on && t->colour;
        printf("drafted tokens are %s\n", t->painter.on ? "coloured" : "not coloured");
    } else if (strcmp(line, "/clear") == 0) {
        sv_cli_talk_forget(t);
        puts("a new conversation");
    } else {
        if (strcmp(line, "/help") != 0)
            printf("%s is not known.\n", line);
        puts("/clear  forget the conversation\n/stats  accept lengths so far\n"
             "/draft  colour drafted tokens, or stop it\n/quit   end (also Ctrl-D)\n"
             "A backslash at the end of a line continues it.");
    }
    return true;
}

int sv_cli_talk_converse(struct sv_cli_talk *t)
{
    struct editor ed;
    struct sv_buf line;
    bool quit = false;
    int code = open_editor(&ed);

    sv_buf_init(&line);
    if (code == SV_CLI_OK && !t->chat)
        puts("Each line is continued as raw text. /help lists commands.");
    while (code == SV_CLI_OK && !quit && !sv_cli_told_to_end()) {
        enum got got = read_message(&ed, &line);
        if (got == GOT_END)
            break;
        if (got == GOT_NOTHING || command(t, line.data, &quit))
            continue;
        int turn = sv_cli_talk_turn(t, line.data, line.len); /* has said what went wrong */
        if (t->over)
            code = turn;
        sv_cli_clear_interrupt();
        sv_cli_talk_summary(t);
    }
    if (code == SV_CLI_OK && !quit)
        fputc('\n', stdout);
    if (sv_cli_told_to_end())
        code = SV_CLI_FAIL;
    close_editor(&ed);
    sv_buf_fini(&line);
    return code;
}
