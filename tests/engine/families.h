/*
 * families.h - one tiny checkpoint of each family of targets, with a draft: what test_lossless,
 * test_mates, test_preempt and test_prefix run over. A new family is one more row in families.c.
 */
#ifndef SV_TEST_FAMILIES_H
#define SV_TEST_FAMILIES_H

#include "engine/run.h"

#include <stddef.h>

struct family {
    const char *name;  /* of its cases, too */
    const char *like;  /* a directory of tests/golden/tiny */
    const char *patch; /* the configuration changed by this JSON, the weights random; or NULL */
    const char *draft; /* a directory of tests/golden/tiny; NULL: random and mostly wrong */
    bool images, states, large; /* large: heads as published, and expensive steps */
};

const struct family *family_named(const char *name);
struct run_pair family_pair(const struct family *f);
/* n, or half of them where steps are expensive. */
int32_t family_few(const struct family *f, int32_t n);
/* Random prompts as run_cases has them, some of them with images where the family sees them. */
struct run_case *family_cases(const struct family *f, int32_t n, int32_t max_len,
                              int32_t max_tokens, uint64_t seed);
/* page, or 8 where smaller pages would take other kernels than the reference's pages of 16, with
 * other low bits (docs/cuda.md): on GPUs that have tuned kernels for these heads. */
int32_t family_page(const struct family *f, int32_t page);
/* More rows than a prompt's tokens, at most. */
int32_t family_more_rows(const struct family *f);
/* sv_test_main with a case for each family, whose state it is, beside n others. */
int family_main(int argc, char **argv, const char *file, CMUnitTestFunction each,
                const struct CMUnitTest *others, size_t n);

#define FAMILY_TEST_MAIN(each, ...)                                                                \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        const struct CMUnitTest others[] = {__VA_ARGS__};                                          \
        return family_main(argc, argv, __FILE__, each, others, sizeof others / sizeof others[0]);  \
    }

#endif
