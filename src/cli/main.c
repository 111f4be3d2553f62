/*
 * main.c - the salvo program: picks the command.
 *
 * Called by the shell. Must not: do a command's work; each has a file of its own.
 */
#define _POSIX_C_SOURCE 200809L

#include "cli/cli.h"

#include <fcntl.h>
#include <locale.h>
#include <string.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"run", sv_cli_run, "answer a prompt or chat on the terminal, streaming"},
    {"generate", sv_cli_generate, "answer a file of prompts (JSON lines in, JSON lines out)"},
    {"serve", sv_cli_serve, "answer over HTTP, in the APIs of OpenAI, SGLang and llama-server"},
    {"bench", sv_cli_bench, "measure speed: random weights, or plain decoding beside DFlash"},
    {"check", sv_cli_check, "validate a target and its draft, probe how well they go together"},
    {"info", sv_cli_info, "say what a model directory holds"},
    {"demo", sv_cli_demo, "show plain decoding and DFlash on the same prompts"},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void help(FILE *out)
{
    fputs("salvo " SALVO_VERSION " - LLM inference around DFlash speculative decoding\n\n"
          "Usage: salvo COMMAND [OPTION]...\n\nCommands:\n",
          out);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\n  --help     of each command lists its options\n  --version  print the version\n\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage.\n",
          out);
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return SV_CLI_USAGE;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (strcmp(argv[1], "help") == 0 && argc > 2) {
        char *words[] = {argv[2], "--help", NULL};
        for (size_t i = 0; i < N_COMMANDS; i++)
            if (strcmp(argv[2], commands[i].name) == 0)
                return commands[i].run(2, words);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        help(stdout);
        return SV_CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        struct sv_cli_machine m;
        sv_cli_machine_read(&m);
        printf("salvo " SALVO_VERSION " (%s)\n", m.commit);
        return SV_CLI_OK;
    }
    fprintf(stderr, "salvo: unknown command '%s'\n\n", argv[1]);
    help(stderr);
    return SV_CLI_USAGE;
}

/* One of the first three descriptors that our caller has closed would go to the next file that is
 * opened, and what is said on standard error would stand among the answers. Reading and writing
 * there still fail. */
static void hold_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/* For line editing; numbers stay in the C locale. Without a locale, as in a container, or with one
 * that is not installed, bytes above 127 would be no characters and typed in vain. */
static void choose_locale(void)
{
    const char *name = setlocale(LC_CTYPE, "");

    if (!name || strcmp(name, "C") == 0 || strcmp(name, "POSIX") == 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

int main(int argc, char **argv)
{
    int code;

    hold_descriptors();
    choose_locale();
    code = run(argc, argv);
    /* An answer that did not reach its file must not look like success. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == SV_CLI_OK)
        code = sv_cli_fail("standard output: cannot be written");
    /* A GPU that no longer answers is one reason to have failed, and what the exit handlers of its
     * library then do may wait for it for ever. Nothing of ours needs handlers, so who has failed
     * leaves without. */
    if (code != SV_CLI_OK) {
        fflush(NULL);
        _exit(code);
    }
    return code;
}
