/*
 * talk.h - a conversation with an engine: chat format, streaming, summary, and the loop that reads
 * lines. Shared by run.c, talk.c and converse.c. Must not: hold anything that outlives the engine.
 */
#ifndef SV_CLI_TALK_H
#define SV_CLI_TALK_H

#include "cli/cli.h"
#include "jinja/jinja.h"
#include "reply/reply.h"

#define SV_CLI_MAX_IMAGES 16

#define SV_CLI_MAX_MARKERS 16

/* An answer as reasoning and content (reasoning.c). Reasoning is dimmed where there are colours and
 * none for drafts; else it stands between the lines <think> and </think>. */
struct sv_cli_parts {
    struct sv_answer *parser; /* NULL: all is content */
    struct sv_cli_painter *painter;
    bool colour, shown, failed; /* something was shown; memory ran out */
    int32_t last;               /* enum sv_part_kind of what is being shown, -1: none */
    struct sv_buf reasoning, content;
};
/* From now on the painter's events are divided. */
void sv_cli_parts_init(struct sv_cli_parts *p, struct sv_cli_painter *painter, bool colour);
void sv_cli_parts_fini(struct sv_cli_parts *p);
/* Of the answer to a prompt. Returns an exit code. */
int sv_cli_parts_begin(struct sv_cli_parts *p, enum sv_think_format format, const char *prompt,
                       size_t n);
/* The answer as a message of the conversation; NULL: memory ran out. */
json_t *sv_cli_parts_message(const struct sv_cli_parts *p, enum sv_think_format format);

struct sv_cli_talk {
    struct sv_engine *engine; /* owned: closed by sv_cli_talk_close */
    struct sv_request defaults;
    const char *dir, *system; /* model directory; system message */
    const char *source;       /* where the message comes from, for errors; NULL: typed */
    bool chat, raw; /* asked for: messages always, never; neither: when there is a template */
    bool show_draft, colour, quiet;
    bool legend_shown;                      /* the legend of the colours was shown */
    struct sv_chat_template *chat_template; /* the model directory's, or NULL */
    struct sv_template *plain_chat; /* <|im_start|>role ... <|im_end|>, where there is none */
    json_t *messages;               /* the conversation so far */
    struct sv_image images[SV_CLI_MAX_IMAGES]; /* of its first message, with their pixels */
    const char *image_files[SV_CLI_MAX_IMAGES];
    int32_t n_images;
    bool images_sent;                               /* the first message was answered */
    enum sv_think_format think;                     /* how the template's model writes reasoning */
    int32_t markers[SV_CLI_MAX_MARKERS], n_markers; /* tokens that the parser needs to see */
    struct sv_cli_painter painter;
    struct sv_cli_parts parts;
    struct sv_cli_answer answer; /* the latest */
    struct sv_cli_accept accept; /* of all answers */
    bool over; /* the engine has failed, or an image is refused: nothing more can be answered */
    int32_t end_id; /* <|im_end|> ends an answer in chat form, where it is a token */
    double gbs;     /* read bandwidth, measured when first needed */
};
/* A message of a chat with a text; NULL: memory ran out. */
json_t *sv_cli_message(const char *role, const char *text, size_t n);
/* Finds the chat form: the directory's template, or <|im_start|> when `talk` is a conversation (or
 * --chat was given) and the tokenizer has it. t->chat says afterwards whether there is one. Returns
 * an exit code. */
int sv_cli_talk_open(struct sv_cli_talk *t, bool conversation);
void sv_cli_talk_close(struct sv_cli_talk *t);
/* Reads an image for the first message, before open. Returns an exit code. */
int sv_cli_talk_image(struct sv_cli_talk *t, const char *path);
void sv_cli_talk_forget(struct sv_cli_talk *t); /* a new conversation */
/* Answers one message, streaming to stdout; in chat form it joins the conversation. Returns an
 * exit code. */
int sv_cli_talk_turn(struct sv_cli_talk *t, const char *text, size_t n);
void sv_cli_talk_summary(struct sv_cli_talk *t); /* of the latest answer, on stderr */
/* Reads lines from the terminal until its end. */
int sv_cli_talk_converse(struct sv_cli_talk *t);

#endif
