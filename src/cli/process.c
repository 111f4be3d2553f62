/*
 * process.c - what every program does around its work: standard descriptors, locale, buffered
 * output.
 *
 * Called by main() of salvo and of salvo-bench. Must not: know commands or options.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"

#include <fcntl.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

/* If the caller has closed one of the three standard descriptors, the next opened file would get
 * its number, and messages on standard error could end up in that file. Opens placeholders for
 * which reading and writing fail. */
static void hold_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* For line editing; numbers stay in the C locale. Without a locale, as in a container, or with one
 * that is not installed, bytes above 127 would be no characters and be dropped. */
static void choose_locale(void)
{
    const char *name = setlocale(LC_CTYPE, "");

    if (!name || strcmp(name, "C") == 0 || strcmp(name, "POSIX") == 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

int sv_cli_process(int argc, char **argv, int (*run)(int argc, char **argv))
{
    int code;

    hold_descriptors();
    choose_locale();
    sv_map_catch_faults();
    code = run(argc, argv);
    /* An answer that did not reach its file must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == SV_CLI_OK)
        code = sv_cli_fail("standard output: cannot be written");
    /* After a failure the exit handlers of the GPU's library may wait for ever for a GPU that does
     * not answer. The program itself needs no handlers, so it exits without them. */
    if (code != SV_CLI_OK) {
        fflush(NULL);
        _exit(code);
    }
    return code;
}
