/*
 * main.c - the salvo program: picks the command.
 *
 * Called by the shell. Must not: do a command's work; each has a file of its own.
 */
#include "cli/cli.h"
#include "cli/measure.h"

#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"run", sv_cli_run, "answer a prompt or chat on the terminal, streaming"},
    {"generate", sv_cli_generate, "answer a file of prompts (JSON lines in, JSON lines out)"},
    {"serve", sv_cli_serve, "answer over HTTP: OpenAI, Anthropic, SGLang, llama-server"},
    {"check", sv_cli_check, "validate a target and its draft, probe how well they go together"},
    {"convert", sv_cli_convert, "write a model once more in fewer bits"},
    {"info", sv_cli_info, "describe a model directory"},
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

int main(int argc, char **argv)
{
    const int code = sv_cli_begin_ranks();
    return sv_cli_end_ranks(code < 0 ? sv_cli_process(argc, argv, run) : code);
}
