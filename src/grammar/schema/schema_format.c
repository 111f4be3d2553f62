/*
 * schema_format.c - the formats that strings may have, as regular expressions.
 *
 * Called by schema_string.c. Each is exact or a subset of what the format allows: dates exist (29
 * February in leap years only), host names are short. Must not: know how they become automata.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define HEX "[0-9A-Fa-f]"

#define YEAR "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP_YEAR                                                                                  \
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DAY_28 "(?:0[1-9]|1[0-9]|2[0-8])"
#define DAY_30 "(?:0[1-9]|[12][0-9]|30)"
#define DAY_31 "(?:0[1-9]|[12][0-9]|3[01])"
#define MONTH_DAY "(?:(?:0[13578]|1[02])-" DAY_31 "|(?:0[469]|11)-" DAY_30 "|02-" DAY_28 ")"
#define DATE "(?:" YEAR "-" MONTH_DAY "|" LEAP_YEAR "-02-29)"
#define HOUR_MINUTE "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME HOUR_MINUTE ":[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-]" HOUR_MINUTE ")"

#define COUNT "[0-9]{1,9}"
#define SECONDS COUNT "S"
#define MINUTES COUNT "M(?:" SECONDS ")?"
#define CLOCK "T(?:" SECONDS "|" MINUTES "|" COUNT "H(?:" MINUTES "|" SECONDS ")?)"
#define DAYS COUNT "D"
#define MONTHS COUNT "M(?:" DAYS ")?"
#define CALENDAR "(?:" DAYS "|" MONTHS "|" COUNT "Y(?:" MONTHS ")?)"

#define LABEL "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,29}"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define EMAIL ATOM "{1,20}(?:\\." ATOM "{1,20}){0,2}@" LABEL "(?:\\." LABEL "){1,4}"

#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define GROUP HEX "{1,4}"
/* Eight groups, or fewer and two colons once. */
#define IPV6                                                                                       \
    "(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){1,6}:" GROUP "|(?:" GROUP      \
    ":){1,5}(?::" GROUP "){1,2}|(?:" GROUP ":){1,4}(?::" GROUP "){1,3}|(?:" GROUP                  \
    ":){1,3}(?::" GROUP "){1,4}|(?:" GROUP ":){1,2}(?::" GROUP "){1,5}|" GROUP ":(?::" GROUP       \
    "){1,6}|:(?:(?::" GROUP "){1,7}|:)"

#define PATH_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX "{2})"
#define PATH "(?:/" PATH_CHAR "*)*"
#define HOST "[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[1-9][0-9]{0,3})?"
#define TAIL "(?:\\?(?:" PATH_CHAR "|[/?])*)?(?:#(?:" PATH_CHAR "|[/?])*)?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:(?://" HOST PATH "|" PATH_CHAR "+" PATH ")" TAIL

static const struct {
    const char *name, *regex; /* regex NULL: a format of the standard that is refused */
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", "P(?:" CALENDAR "(?:" CLOCK ")?|" CLOCK "|" COUNT "W)"},
    {"uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"},
    {"email", EMAIL},
    {"hostname", LABEL "(?:\\." LABEL "){0,7}"},
    {"ipv4", OCTET "(?:\\." OCTET "){3}"},
    {"ipv6", IPV6},
    {"uri", URI},
    {"url", URI},
    {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
    {"uri-reference", NULL},
    {"uri-template", NULL},
    {"iri", NULL},
    {"iri-reference", NULL},
    {"idn-email", NULL},
    {"idn-hostname", NULL},
    {"relative-json-pointer", NULL},
    {"regex", NULL},
};

bool sv_format_find(const char *name, const char **regex)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (!strcmp(name, formats[i].name)) {
            *regex = formats[i].regex;
            return true;
        }
    return false;
}
