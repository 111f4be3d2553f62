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
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define PASTE_SILENCE_MS 3000

struct editor {
    EditLine *el;
    History *history;
    HistEvent event;
    char *history_file; /* NULL: none is kept */
    bool brackets;      /* the terminal may be asked for bracketed paste ... */
    bool marking;       /* ... and has been, for the line that is read */
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

/* Waits for a byte, up to timeout_ms (-1: without limit). Returns read's result; -1 also on Ctrl-C,
 * on SIGTERM or SIGHUP and after the timeout. */
static int read_byte(int timeout_ms, char *byte)
{
    /* A Ctrl-C that came before the wait is not lost, nor is the wait ended by other signals: of a
     * resized window, for example. */
    while (!sv_cli_interrupted()) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        ssize_t n = poll(&p, 1, timeout_ms);
        if (n == 0)
            return -1;
        if (n > 0)
            n = read(STDIN_FILENO, byte, 1);
        if (n >= 0 || errno != EINTR)
            return (int)n;
    }
    return -1;
}

static int read_wide(int timeout_ms, wchar_t *out)
{
    mbstate_t state = {0};

    for (;;) {
        char byte;
        int n = read_byte(timeout_ms, &byte);
        if (n <= 0)
            return n;
        switch (mbrtowc(out, &byte, 1, &state)) {
        case (size_t)-1: /* not valid in the locale's encoding: dropped */
            memset(&state, 0, sizeof state);
            break;
        case (size_t)-2:
            break;
        default:
            return 1;
        }
    }
}

/* Asks the terminal to mark what is pasted, or to stop that. Async-signal-safe. */
static void mark_pastes(bool on)
{
    const char *text = on ? "\033[?2004h" : "\033[?2004l";

    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        return; /* a terminal that is gone marks nothing */
}

/* libedit's own reader continues after the first interrupted read, and Ctrl-C would be lost.
 * Returns how many characters were read, -1 on errors. */
static int read_character(EditLine *el, wchar_t *out)
{
    struct editor *ed = NULL;

    el_get(el, EL_CLIENTDATA, &ed);
    if (ed->brackets && !ed->marking) { /* from now on, as the terminal no longer echoes */
        ed->marking = true;
        mark_pastes(true);
    }
    return read_wide(-1, out);
}

/* Inserts a bracketed paste at the cursor: its newlines become part of the message and do not send
 * it. Called by libedit after the start mark. A paste whose end mark does not come is over when the
 * terminal has sent nothing for PASTE_SILENCE_MS. */
static unsigned char insert_paste(EditLine *el, int c)
{
    static const wchar_t mark[] = L"\033[201~";
    const size_t n_mark = sizeof mark / sizeof *mark - 1;
    unsigned char result = CC_REFRESH;
    bool ended = false;
    struct sv_buf b; /* wchar_t */
    wchar_t ch;

    (void)c;
    sv_buf_init(&b);
    while (!ended && read_wide(PASTE_SILENCE_MS, &ch) == 1) {
        if (ch == L'\0')
            continue;
        if (ch == L'\r')
            ch = L'\n';
        sv_buf_append(&b, &ch, sizeof ch);
        ended = b.len >= n_mark * sizeof ch &&
                memcmp(b.data + b.len - n_mark * sizeof ch, mark, n_mark * sizeof ch) == 0;
    }
    if (ended)
        b.len -= n_mark * sizeof ch;
    sv_buf_append(&b, L"", sizeof ch);
    if (sv_cli_interrupted())
        result = CC_EOF; /* read_message drops the line */
    else if (b.failed)
        result = CC_ERROR;
    else if (b.len > sizeof ch && el_winsertstr(el, (const wchar_t *)(const void *)b.data))
        result = CC_ERROR;
    sv_buf_fini(&b);
    return result;
}

/* SIGTSTP and SIGQUIT while a line is read: the terminal does not mark pastes while the program is
 * stopped or after its end. A shell may have changed the terminal's mode when it continues. */
static void on_stop(int sig)
{
    struct sigaction normal = {.sa_handler = SIG_DFL}, ours;
    struct termios editing;
    const int error = errno;
    const bool known = tcgetattr(STDIN_FILENO, &editing) == 0;

    mark_pastes(false);
    sigaction(sig, &normal, &ours);
    raise(sig); /* comes back when the program is continued */
    sigaction(sig, &ours, NULL);
    if (known)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &editing);
    mark_pastes(true);
    errno = error;
}

/* el_gets with bracketed paste. SIGINT, SIGTERM and SIGHUP make it return (read_byte). */
static const char *read_line(struct editor *ed, int *n)
{
    static const int stops[] = {SIGTSTP, SIGQUIT};
    struct sigaction ours = {.sa_handler = on_stop, .sa_flags = SA_NODEFER}, before[2];
    const char *line;

    if (!ed->brackets)
        return el_gets(ed->el, n);
    for (int i = 0; i < 2; i++)
        if (sigaction(stops[i], NULL, &before[i]) == 0 && before[i].sa_handler == SIG_DFL)
            sigaction(stops[i], &ours, NULL);
    line = el_gets(ed->el, n);
    if (ed->marking)
        mark_pastes(false);
    ed->marking = false;
    for (int i = 0; i < 2; i++)
        sigaction(stops[i], &before[i], NULL);
    return line;
}

static int open_editor(struct editor *ed)
{
    const char *home = sv_env("HOME"), *term = sv_env("TERM");
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
    el_set(ed->el, EL_CLIENTDATA, ed);
    el_set(ed->el, EL_GETCFN, read_character);
    el_set(ed->el, EL_HIST, history, ed->history);
    el_set(ed->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(ed->el, NULL);
    /* After the user's own settings: choosing vi's keys there would remove it. */
    el_set(ed->el, EL_ADDFN, "bracketed-paste", "Insert what is pasted", insert_paste);
    el_set(ed->el, EL_BIND, "\\e[200~", "bracketed-paste", NULL);
    el_set(ed->el, EL_BIND, "\\e[201~", "ed-ignore", NULL); /* an end mark that came too late */
    ed->brackets = isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
    return SV_CLI_OK;
}

/* Written beside the old file and moved into its place, so that a full disk or an interruption
 * loses neither. Conversations are private: mkstemp's file is readable by its owner alone. */
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

/* One message: a line, with the newlines of what was pasted into it; a backslash at its end
 * continues it in the next line. */
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
        line = read_line(ed, &n);
        sv_cli_idle(false);
        if (sv_cli_interrupted()) { /* Ctrl-C at the prompt drops the line, a second one ends */
            const LineInfo *typed = el_line(ed->el);
            sv_cli_interrupted_at_prompt(!b->len && typed->lastchar == typed->buffer);
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
    sv_cli_accept_bars(&t->accept, &b);
    if (!b.failed)
        fputs(b.data, stdout);
    sv_buf_fini(&b);
}

/* True when the line was a command; *quit when it was the last one. A message of several lines is
 * none: a pasted program may begin with a slash. */
static bool command(struct sv_cli_talk *t, const char *line, bool *quit)
{
    if (line[0] != '/' || strchr(line, '\n'))
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
    while (code == SV_CLI_OK && !quit && !sv_cli_must_end()) {
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
    if (sv_cli_must_end())
        code = SV_CLI_FAIL;
    close_editor(&ed);
    sv_buf_fini(&line);
    return code;
}
