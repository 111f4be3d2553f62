/*
 * signal.c - Ctrl-C, SIGTERM and SIGHUP: the running command handles the first one, the second one
 * ends the program.
 *
 * Called by the commands that stream and by serve.c. Has the only globals of the program, since a
 * handler has no other way to reach its command. Must not: do anything in the handler that is not
 * async-signal-safe.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"
#include "serve/serve.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t pending; /* a signal that the command has not handled */
static volatile sig_atomic_t in_row;  /* signals since the last line that was entered */
static volatile sig_atomic_t ended;   /* the program is to end, a conversation too */
static volatile sig_atomic_t idle;    /* at the prompt: the conversation handles all signals */
static struct sv_serve *volatile server;

static void on_signal(int sig)
{
    if (sig != SIGINT)
        ended = 1;
    pending = 1;
    if (++in_row > 1 && !idle) {
        /* Style reset and a fresh line: the answer may have been in the middle of a colour. */
        static const char tail[] = "\033[0m\n";
        if (isatty(STDERR_FILENO) && write(STDERR_FILENO, tail, sizeof tail - 1) < 0)
            _exit(128 + sig);
        _exit(128 + sig);
    }
}

static void install(void (*handler)(int), int flags)
{
    struct sigaction sa = {.sa_handler = handler, .sa_flags = flags}, hup;

    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (handler == on_signal && sigaction(SIGHUP, NULL, &hup) == 0 &&
        hup.sa_handler != SIG_IGN) /* nohup wants it ignored */
        sigaction(SIGHUP, &sa, NULL);
}

void sv_cli_catch_interrupt(void)
{
    pending = in_row = ended = 0;
    /* Writes go on: stdio takes an interrupted one for a failed one. What reads waits with poll,
     * which comes back. */
    install(on_signal, SA_RESTART);
}

bool sv_cli_interrupted(void)
{
    return pending || ended;
}

bool sv_cli_must_end(void)
{
    return ended;
}

void sv_cli_clear_interrupt(void)
{
    pending = 0;
}

void sv_cli_idle(bool now)
{
    idle = now;
    if (!now && !pending) /* a line was entered */
        in_row = 0;
}

void sv_cli_interrupted_at_prompt(bool empty)
{
    if (!empty) /* a line was begun since the last one */
        in_row = 1;
    if (in_row > 1)
        ended = 1;
}

/* ---------------------------------------------------------------- the server */

/* The second signal ends the server by its event loop, which closes its sockets. A loop that has
 * not even seen the first one may be stuck: then the process ends here. */
static void on_server_signal(int sig)
{
    const int error = errno;

    if (++in_row > 2 || !server || (in_row == 2 && !sv_serve_is_stopping(server)))
        _exit(128 + sig);
    sv_serve_stop(server);
    errno = error;
}

void sv_cli_catch_server(struct sv_serve *s)
{
    in_row = 0;
    server = s;
    install(on_server_signal, SA_RESTART); /* a signal costs no line of the log */
}

void sv_cli_leave_server(void)
{
    server = NULL;
}
