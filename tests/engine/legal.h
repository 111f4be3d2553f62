/*
 * legal.h - grammars for engine tests, and independent checks of which answers are legal.
 */
#ifndef SV_TEST_LEGAL_H
#define SV_TEST_LEGAL_H

#include "grammar/grammar.h"

#include <stdbool.h>
#include <stddef.h>

enum legal {
    LEGAL_ANY,     /* no grammar */
    LEGAL_CHOICE,  /* one of a few texts, some of which begin alike */
    LEGAL_NUMBERS, /* [1,20,7] */
    LEGAL_AFTER,   /* any text up to the first "e", then numbers */
    LEGAL_NESTED,  /* (a(bc(d))()), to any depth */
    LEGALS
};

enum legal_part {
    LEGAL_NOT,   /* no legal answer begins so */
    LEGAL_BEGIN, /* the beginning of one, */
    LEGAL_WHOLE  /* or all of one (and perhaps the beginning of a longer one) */
};

/* The caller releases it; NULL for LEGAL_ANY. Fails the test on any error. */
struct sv_grammar *legal_grammar(enum legal what);
enum legal_part legal_check(enum legal what, const char *text, size_t n);

#endif
