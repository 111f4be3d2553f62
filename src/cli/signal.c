/*
 * signal.c - Ctrl-C, and being told to end (SIGTERM, SIGHUP): the first one is counted and answered
 * by the running command, the second one ends.
 *
 * Called by the commands that stream. The only globals of the program: a handler has no other way
 * to reach its command. Must not: do anything in the handler that is not async-signal-safe.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t presses;
static volatile sig_atomic_t ended; /* not by Ctrl-C: a conversation is over too */
static volatile sig_atomic_t idle;  /* at the prompt: nothing runs that a second one could end */

static void on_signal(int sig)
{
    if (sig != SIGINT)
        ended = 1;
    if (++presses > 1 && !idle) {
        /* Style reset and a fresh line: the answer may have been in the middle of a colour. */
        static const char tail[] = "\033[0m\n";
        if (isatty(STDERR_FILENO) && write(STDERR_FILENO, tail, sizeof tail - 1) < 0)
            _exit(128 + sig);
        _exit(128 + sig);
    }
}

void sv_cli_catch_interrupt(void)
{
    struct sigaction sa = {.sa_handler = on_signal}, hup; /* no SA_RESTART: reads must come back */

    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (sigaction(SIGHUP, NULL, &hup) == 0 &&
        hup.sa_handler != SIG_IGN) /* nohup wants it ignored */
        sigaction(SIGHUP, &sa, NULL);
    presses = ended = 0;
}

bool sv_cli_interrupted(void)
{
    return presses > 0 || ended;
}

bool sv_cli_told_to_end(void)
{
    return ended;
}

void sv_cli_clear_interrupt(void)
{
    presses = 0;
}

void sv_cli_idle(bool now)
{
    idle = now;
}
