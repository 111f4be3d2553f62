/*
 * answer.h - the state of an answer under way, and the steps that all ways of framing one share.
 *
 * Included by answer.c, which owns it, and harmony.c alone. Must not: be seen by others.
 */
#ifndef SV_REPLY_ANSWER_H
#define SV_REPLY_ANSWER_H

#include "reply/tool.h"

enum sv_answer_state {
    SV_ANSWER_START,
    SV_ANSWER_HEADER, /* harmony alone */
    SV_ANSWER_REASONING,
    SV_ANSWER_TEXT,
    SV_ANSWER_CALL
};

struct sv_answer {
    struct sv_answer_opts o;
    const struct sv_tool_syntax *tool;
    const struct sv_think_syntax *think;
    enum sv_answer_state state;
    bool harmony;    /* the answer consists of messages (harmony.c) */
    bool lead;       /* nothing but spaces since the beginning, reasoning or a call ... */
    bool drop;       /* ... and these are dropped */
    bool after_call; /* what may follow a call may come */
    bool in_list;    /* of Mistral's */
    bool given;      /* the call under way */
    bool new_message, in_markers; /* harmony: no text of it was given yet; reasoning as content */
    uint32_t kinds;               /* a bit for each kind of text that was given */
    struct sv_buf held, raw;
    size_t n_opener; /* of raw: the marker */
    struct sv_call call;
    int32_t n_calls;
    size_t n_taken, n_reasoning; /* bytes of the text */
};

void sv_answer_give(struct sv_answer *a, enum sv_part_kind kind, const char *text, size_t n);
/* Removes the first n bytes of what is held. */
void sv_answer_take(struct sv_answer *a, size_t n);
/* Whether memory ran out. */
bool sv_answer_has_failed(const struct sv_answer *a);
size_t sv_answer_n_spaces(const struct sv_buf *b);
/* Where in what is held the first of the markers begins, or SIZE_MAX; *which. */
size_t sv_answer_find(const struct sv_buf *held, const char *const *markers, const char **which);
/* How many of the last bytes held may be the beginning of one of the markers. */
size_t sv_answer_tail(const struct sv_buf *held, const char *const *markers);
/* What is known of the call under way; done: all of it. */
void sv_answer_give_call(struct sv_answer *a, bool done);
/* good: the call was complete. */
void sv_answer_end_call(struct sv_answer *a, bool good);
/* Reads on in the call under way; false: more must come. */
bool sv_answer_call(struct sv_answer *a);

/* harmony.c: the state in which an answer begins. */
void sv_harmony_begin(struct sv_answer *a);
/* One step through what is held; false: more must come. */
bool sv_harmony_step(struct sv_answer *a);
/* The text is over: decides what is held and may be a header, reasoning or an empty call. */
void sv_harmony_end(struct sv_answer *a, bool cut);

#endif
