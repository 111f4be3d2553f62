/*
 * images.h - the images of requests: where their rows stand, their rotary positions, their keys in
 * the index of prefixes, and when the vision tower makes them.
 *
 * Included by engine.h; called by seq.c, sched.c and fill.c for a sequence. docs/images.md. Must
 * not: run the tower within a step, where nothing is allocated.
 */
#ifndef SV_ENGINE_IMAGES_H
#define SV_ENGINE_IMAGES_H

#include "media/media.h"
#include "model/vision.h"
#include "salvo.h"

struct sv_engine;
struct sv_seq;
struct sv_plan_seg;

/* Of an engine: how images are prepared, and their keys. */
struct sv_image_intake {
    bool open;
    char refusal[480]; /* reason for refusing images */
    struct sv_vision_prep prep;
    struct sv_image_key {
        uint64_t hash[2];
        int32_t key;              /* below 0, as no token is; 0: none yet */
        struct sv_picture *shown; /* NULL: no request shows it */
    } * known;                    /* (SV_KNOWN_IMAGES) the newest image of each entry */
    int32_t last_key;
    struct sv_image_rows *rows; /* (max_rows) those of the step being filled */
    int32_t n_rows;
    int32_t n_held; /* pictures that have rows */
    int32_t n_full; /* so many had them when there was no memory for another; 0: there was */
};
enum { SV_KNOWN_IMAGES = 4096 };
int sv_images_open(struct sv_engine *e, const char *dir, struct sv_err *err);
/* Of the device, for the largest image: a pass of the tower, and its rows. */
int64_t sv_images_bytes(const struct sv_engine *e);

/* What all requests that show the same image, and may share prefixes, have of it, as long as there
 * is one: its pixels until a prompt gets there, then its rows. */
struct sv_picture {
    int32_t n_users;
    uint64_t salt[2];           /* of these requests: another's time to its rows tells nothing */
    struct sv_image_key *place; /* where it was put; may be another's by now */
    struct sv_pixels pixels;    /* resized; rgb NULL once there are rows */
    void *rows; /* device: n_rows of the language model and n_deep times as many, or NULL */
};

/* A request's, NULL where it has none. */
struct sv_images {
    struct sv_engine *engine;
    int32_t n, image_token;
    int32_t n_deep;
    struct sv_seq_image {
        struct sv_picture *shown;
        int32_t key;
        int32_t first, n_rows; /* in the prompt */
        int32_t per_line;      /* rows that stand side by side in the image */
        int32_t position;      /* rotary position of its first row */
        int32_t behind;        /* position minus index of later rows, below 0 */
        size_t plane_bytes;    /* of n_rows */
    } image[];
};
int sv_images_new(struct sv_images **images, struct sv_engine *e, const struct sv_request *r,
                  struct sv_err *err);
void sv_images_free(struct sv_images *images); /* NULL is fine */
/* Finds the images' places among a prompt's ids; *n becomes the number of its tokens with each
 * image's rows. Then writes these n, and their keys for the index of prefixes. */
int sv_images_place(struct sv_images *images, const int32_t *ids, int32_t *n, struct sv_err *err);
void sv_images_expand(const struct sv_images *images, const int32_t *ids, int32_t n,
                      int32_t *tokens, int32_t *keys);
/* Rows from `from` on may run up to here: rows of the next image are not there yet. */
int32_t sv_images_ready(const struct sv_images *images, int32_t from);
/* The differences between a row's three rotary positions and its index. */
void sv_images_shift(const struct sv_images *images, int32_t index, int32_t shift[3]);

/* Before a step: runs the tower for the first image that a prompt waits for. Where there is no
 * memory, it waits for a running sequence that has rows to end; without one the request fails. */
void sv_images_prepare(struct sv_engine *e);
/* The positions and the images of a segment's rows in the target's batch. */
void sv_images_fill(struct sv_engine *e, const struct sv_plan_seg *g);

#endif
