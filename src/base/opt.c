/*
 * opt.c - command lines: one table drives parsing and --help.
 *
 * Called by src/cli, the benches and the training tools' helpers. Must not: print anything except
 * --help, or exit.
 */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A number that is out of range; else the word is not a number. */
static int bad_number(const struct sv_opt *o, const char *text, bool too_large, int at,
                      struct sv_err *err)
{
    if (too_large)
        return sv_fail(err, SV_EINVAL, at, "option --%s: %.40s is out of range", o->name, text);
    return sv_fail(err, SV_EINVAL, at, "option --%s: '%s' is not %s", o->name, text,
                   o->kind == SV_OPT_INT ? "an integer" : "a number");
}

static int set_value(const struct sv_opt *o, const char *text, int at, struct sv_err *err)
{
    char *end;

    errno = 0;
    switch (o->kind) {
    case SV_OPT_FLAG:
        *(bool *)o->value = true;
        return SV_OK;
    case SV_OPT_STRING:
        *(const char **)o->value = text;
        return SV_OK;
    case SV_OPT_INT: {
        long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno)
            return bad_number(o, text, !*end && errno == ERANGE, at, err);
        *(int64_t *)o->value = v;
        return SV_OK;
    }
    case SV_OPT_FLOAT: {
        double v = strtod(text, &end);
        /* the least of all are as good as 0 */
        const bool too_large = errno == ERANGE && (v > 1 || v < -1);
        if (end == text || *end || too_large || v != v)
            return bad_number(o, text, !*end && too_large, at, err);
        *(double *)o->value = v;
        return SV_OK;
    }
    }
    sv_panic("option --%s has an unknown kind", o->name);
}

static const struct sv_opt *find_long(const struct sv_opt *table, const char *name, size_t n)
{
    for (const struct sv_opt *o = table; o->name; o++)
        if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

static const struct sv_opt *find_letter(const struct sv_opt *table, char letter)
{
    for (const struct sv_opt *o = table; o->name; o++)
        if (o->letter && o->letter == letter)
            return o;
    return NULL;
}

/* The remaining words. */
struct words {
    char **argv;
    int argc, at;
};

static int take_value(const struct sv_opt *o, const char *inline_value, struct words *w,
                      struct sv_err *err)
{
    if (inline_value)
        return set_value(o, inline_value, w->at, err);
    if (w->at + 1 >= w->argc)
        return sv_fail(err, SV_EINVAL, w->at, "option --%s needs a value (%s)", o->name,
                       o->arg ? o->arg : "VALUE");
    w->at++;
    return set_value(o, w->argv[w->at], w->at, err);
}

/* --name, --name value, --name=value. Returns 1 for --help. */
static int parse_long(const struct sv_opt *table, struct words *w, struct sv_err *err)
{
    const char *name = w->argv[w->at] + 2;
    size_t n = strcspn(name, "=");
    const char *value = name[n] == '=' ? name + n + 1 : NULL;
    const struct sv_opt *o = find_long(table, name, n);

    if (!o && n == 4 && !value && memcmp(name, "help", 4) == 0)
        return 1;
    if (!o)
        return sv_fail(err, SV_EINVAL, w->at, "unknown option --%.*s", (int)(n < 64 ? n : 64),
                       name);
    if (o->kind != SV_OPT_FLAG)
        return take_value(o, value, w, err);
    if (value)
        return sv_fail(err, SV_EINVAL, w->at, "option --%s takes no value", o->name);
    return set_value(o, NULL, w->at, err);
}

/* -x, -x value, -xvalue, -xyz for flags. Returns 1 for -h. */
static int parse_letters(const struct sv_opt *table, struct words *w, struct sv_err *err)
{
    for (const char *p = w->argv[w->at] + 1; *p; p++) {
        const struct sv_opt *o = find_letter(table, *p);
        int status;
        if (!o && *p == 'h')
            return 1;
        if (!o)
            return sv_fail(err, SV_EINVAL, w->at, "unknown option -%c", *p);
        if (o->kind != SV_OPT_FLAG)
            return take_value(o, p[1] ? p + 1 : NULL, w, err);
        status = set_value(o, NULL, w->at, err);
        if (status != SV_OK)
            return status;
    }
    return SV_OK;
}

int sv_opt_parse(const struct sv_opt *table, const char *usage, int argc, char **argv, int *n_pos,
                 struct sv_err *err)
{
    struct words w = {argv, argc, 1};
    bool only_positional = false;

    *n_pos = 0;
    for (; w.at < argc; w.at++) {
        char *word = argv[w.at];
        int status = SV_OK;
        if (only_positional || word[0] != '-' || !word[1])
            argv[++*n_pos] = word;
        else if (strcmp(word, "--") == 0)
            only_positional = true;
        else if (word[1] == '-')
            status = parse_long(table, &w, err);
        else
            status = parse_letters(table, &w, err);
        if (status == 1)
            sv_opt_help(table, usage, stdout);
        if (status != SV_OK)
            return status;
    }
    return SV_OK;
}

enum { HELP_COLUMN = 28, HELP_WIDTH = 80 }; /* where explanations begin, and what they end before */

/* From HELP_COLUMN on, broken between words; a word that is longer than a line gets one of its
 * own. */
static void put_wrapped(FILE *out, const char *text)
{
    const size_t room = HELP_WIDTH - HELP_COLUMN;
    while (strlen(text) > room) {
        size_t n = room;
        while (n && text[n] != ' ')
            n--;
        if (!n)
            n = strcspn(text, " ");
        if (!text[n])
            break;
        fprintf(out, "%.*s\n%*s", (int)n, text, HELP_COLUMN, "");
        text += n + 1;
    }
    fprintf(out, "%s\n", text);
}

void sv_opt_help(const struct sv_opt *table, const char *usage, FILE *out)
{
    fprintf(out, "%s\n\nOptions:\n", usage);
    for (const struct sv_opt *o = table; o->name; o++) {
        int n = o->letter ? fprintf(out, "  -%c, --%s", o->letter, o->name)
                          : fprintf(out, "      --%s", o->name);
        if (o->kind != SV_OPT_FLAG)
            n += fprintf(out, " %s", o->arg ? o->arg : "VALUE");
        if (n >= HELP_COLUMN) {
            fputc('\n', out);
            n = 0;
        }
        fprintf(out, "%*s", HELP_COLUMN - n, "");
        put_wrapped(out, o->help);
    }
    fprintf(out, "  -h, --help%*s%s\n", HELP_COLUMN - 12, "", "show this text");
}
