/*
 * pictures.h - images for prompts of the tiny checkpoints with a vision tower, whose rows stand for
 * 8 x 8 pixels each.
 */
#ifndef SV_TEST_PICTURES_H
#define SV_TEST_PICTURES_H

#include "engine/run.h"

enum { PICTURE_TOKEN = 295, PICTURE_UNIT = 8 };

/* Picture number i of a fixed series of random ones, of 1 to 15 rows. */
struct sv_image picture(int32_t i);
int32_t picture_rows(const struct sv_image *image);
/* Gives two of three prompts one to three pictures at random places; a token that reads like a
 * picture's becomes another. For the process's life. */
void pictures_add(struct run_case *c, int32_t n, uint64_t seed);

#endif
