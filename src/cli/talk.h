/*
 * talk.h - one speaker's exchange with an engine: chat form, streaming, summary; and the loop that
 * reads lines. Shared by run.c, talk.c and converse.c. Must not: hold anything that outlives the
 * engine.
 */
#ifndef SV_CLI_TALK_H
#define SV_CLI_TALK_H

#include "cli/cli.h"

struct sv_cli_talk {
    struct sv_engine *engine; /* owned: closed by sv_cli_talk_close */
    struct sv_request defaults;
    const char *system;
    bool chat, show_draft, colour, quiet;
    bool legend_shown;     /* what the colours mean is said once */
    struct sv_buf history; /* the conversation so far, in chat form */
    struct sv_cli_painter painter;
    struct sv_cli_answer answer; /* the latest */
    struct sv_cli_accept accept; /* of all answers */
    int32_t end_id;              /* <|im_end|>, ends an answer in chat form */
    double gbs;                  /* read bandwidth, measured when first needed */
};
/* Checks that the tokenizer knows the chat form when one is wanted. Returns an exit code. */
int sv_cli_talk_open(struct sv_cli_talk *t);
void sv_cli_talk_close(struct sv_cli_talk *t);
/* Whether the tokenizer has <|im_start|> and <|im_end|> as single tokens. */
bool sv_cli_talk_has_chat(const struct sv_cli_talk *t);
/* Answers one message, streaming to stdout; in chat form it joins the history. Returns an exit
 * code. */
int sv_cli_talk_turn(struct sv_cli_talk *t, const char *text, size_t n);
void sv_cli_talk_summary(struct sv_cli_talk *t); /* of the latest answer, on stderr */
/* Reads lines from the terminal until its end. */
int sv_cli_talk_converse(struct sv_cli_talk *t);

#endif
