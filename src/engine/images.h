/*
 * images.h - the images of requests: the places of their rows, their rotary positions, their keys
 * in the prefix index, and when the vision tower computes them.
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

/* An engine's image preparation, and the keys of images. */
struct sv_image_intake {
    bool open;
    char refusal[480]; /* reason for refusing images */
    struct sv_vision_prep prep;
    struct sv_image_key {
        uint64_t hash[2];
        int32_t key;              /* negative, unlike tokens; 0: none yet */
        struct sv_picture *shown; /* NULL: in no request at present */
    } * known;                    /* (SV_KNOWN_IMAGES) hash table; an entry has its newest image */
    int32_t last_key;
    struct sv_image_rows *rows; /* (max_rows) rows of images in the step being filled */
    int32_t n_rows;
    int32_t n_held; /* images whose rows are on the device */
    int32_t n_full; /* n_held when an allocation failed; 0: none has failed */
};
enum { SV_KNOWN_IMAGES = 4096 };
int sv_images_open(struct sv_engine *e, const char *dir, struct sv_err *err);
/* Device memory for the largest image: a pass of the tower, and the image's rows. */
int64_t sv_images_bytes(const struct sv_engine *e);

/* An image, shared by all requests that contain it and may share prefixes, as long as there is one:
 * its pixels until a prompt reaches it, then its rows. */
struct sv_picture {
    int32_t n_users;
    uint64_t salt[2];           /* the requests' cache salt: timing reveals nothing across salts */
    struct sv_image_key *place; /* its entry of the table; another image may have replaced it */
    struct sv_pixels pixels;    /* resized; rgb NULL once there are rows */
    void *rows; /* device: n_rows for the embedding and n_deep times as many, or NULL */
};

/* The images of a request; NULL without any. */
struct sv_images {
    struct sv_engine *engine;
    int32_t n, image_token;
    int32_t n_deep;
    struct sv_seq_image {
        struct sv_picture *shown;
        int32_t key;
        int32_t first, n_rows; /* in the prompt */
        int32_t per_line;      /* rows in one line of the image */
        int32_t position;      /* rotary position of its first row */
        int32_t behind;        /* rotary position minus index of later rows, below 0 */
        size_t plane_bytes;    /* bytes of n_rows rows */
    } image[];
};
int sv_images_new(struct sv_images **images, struct sv_engine *e, const struct sv_request *r,
                  struct sv_err *err);
void sv_images_free(struct sv_images *images); /* NULL is fine */
/* place: finds the images in a prompt's ids; *n becomes the number of tokens with each image's
 * rows. expand: writes these n tokens and their keys for the prefix index. */
int sv_images_place(struct sv_images *images, const int32_t *ids, int32_t *n, struct sv_err *err);
void sv_images_expand(const struct sv_images *images, const int32_t *ids, int32_t n,
                      int32_t *tokens, int32_t *keys);
/* The end of the rows from `from` on that may run: the next image's rows are not computed yet. */
int32_t sv_images_ready(const struct sv_images *images, int32_t from);
/* The differences between a row's three rotary positions and its index. */
void sv_images_shift(const struct sv_images *images, int32_t index, int32_t shift[3]);

/* Before a step: runs the tower for the first image that a prompt waits for. Without memory, it
 * waits until a running sequence with images ends; if there is none, the request fails. */
void sv_images_prepare(struct sv_engine *e);
/* The positions and the images of a segment's rows in the target's batch. */
void sv_images_fill(struct sv_engine *e, const struct sv_plan_seg *g);

#endif
