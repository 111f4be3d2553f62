/*
 * wire.h - the messages between process 0 and the first process of another replica, through a link.
 *
 * Included by remote.c and hosted.c, the two ends. Both are the same build, so structures are sent
 * as they are in memory. Must not: be included elsewhere.
 */
#ifndef SV_SERVE_CORE_WIRE_H
#define SV_SERVE_CORE_WIRE_H

#include "base/base.h"
#include "salvo.h"

enum sv_wire_kind {
    SV_WIRE_SUBMIT = 1, /* struct sv_wire_choice, a request */
    SV_WIRE_CANCEL,     /* uint64_t: its serial */
    SV_WIRE_FLUSH,
    SV_WIRE_FAIL, /* the reason */
    SV_WIRE_STOP,
    SV_WIRE_REPORTS,  /* records of out.h */
    SV_WIRE_SNAPSHOT, /* struct sv_snapshot; at least one a second, as a heartbeat */
    SV_WIRE_ENDED,    /* after the last report */
    SV_WIRE_ASK,      /* struct sv_wire_ask, ids */
    SV_WIRE_KNOWN     /* struct sv_wire_known */
};
struct sv_wire_choice {
    uint64_t serial, choice; /* choice: process 0's pointer, which comes back with its reports */
};
struct sv_wire_ask {
    uint64_t number, cache_salt[2];
    int32_t n_images;
    bool prompt_logprobs;
};
struct sv_wire_known {
    uint64_t number;
    int32_t n;
};

/* The fields of a request that an engine reads. Prompts are ids. */
void sv_wire_pack(struct sv_buf *b, const struct sv_request *q);

/* Grammars of earlier requests, kept so that later requests share their matchers' caches. All bytes
 * 0 at first. */
#define SV_WIRE_GRAMMARS 32
struct sv_wire_grammars {
    struct sv_wire_grammar {
        struct sv_buf bytes;
        struct sv_grammar *grammar;
        uint64_t used;
    } list[SV_WIRE_GRAMMARS];
    uint64_t clock;
};
void sv_wire_forget(struct sv_wire_grammars *g);
/* *q points into the bytes and the arena, which must live as long; its grammar and search are
 * references of its own. */
int sv_wire_unpack(struct sv_request *q, struct sv_arena *arena, struct sv_wire_grammars *g,
                   const char *data, size_t n, struct sv_err *err);
void sv_wire_done(struct sv_request *q);

#endif
