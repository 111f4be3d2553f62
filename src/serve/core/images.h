/*
 * images.h - images of a conversation: message contents that have some, and content parts to
 * pixels.
 *
 * Called where a body is read: by prompt.c and the dialects, on any thread; images are decoded
 * beside the loop alone. Must not: open an address or a file that the options do not allow.
 */
#ifndef SV_SERVE_CORE_IMAGES_H
#define SV_SERVE_CORE_IMAGES_H

#include "serve/core/prompt.h"

/* Whether a content part is an image under one of the names that APIs have for it. */
bool sv_part_is_image(const json_t *part);

/* A message's content in the making: a text, or parts once there is an image. */
struct sv_content {
    struct sv_buf text; /* behind the last image */
    json_t *parts;      /* for the template; NULL: no image yet */
    bool open;          /* a text part has been added behind the last image */
};
void sv_content_init(struct sv_content *c);
void sv_content_fini(struct sv_content *c);
/* Text parts are joined by line breaks. */
void sv_content_text(struct sv_content *c, const json_t *text);
/* The template gets the part as it is. It is noted in p, to be decoded later; place: its place in
 * the body, for errors. */
int sv_content_image(struct sv_content *c, struct sv_params *p, json_t *part, const char *place,
                     struct sv_api_err *e);
/* The content as JSON, of which c has nothing then; NULL: memory ran out. */
json_t *sv_content_take(struct sv_content *c);

/* Refuses images where the model takes none. */
int sv_serve_images_check(const struct sv_serve *s, const struct sv_params *p,
                          struct sv_api_err *e);
/* Decodes the noted images into the prompt. On the loop's thread, which is known by its scratch, it
 * ends with e->too_slow instead; where addresses are still to be fetched, these wait in e->fetch.
 */
int sv_serve_images_load(const struct sv_serve *s, const struct sv_enc_scratch *scratch,
                         const struct sv_params *p, struct sv_prompt *out, struct sv_api_err *e);
void sv_serve_images_free(struct sv_prompt *p);

/* --media-dir as an absolute path without symbolic links, and --media-url. */
int sv_serve_images_open(struct sv_serve *s, struct sv_err *err);
void sv_serve_images_close(struct sv_serve *s);

#endif
