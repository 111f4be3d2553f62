/*
 * origin.c - see origin.h.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/http/origin.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>

/* The length of Host without its port. */
static size_t name_length(const char *host)
{
    const char *end = *host == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end + 1 - host) : strcspn(host, ":");
}

static bool is_address(const char *name, size_t n)
{
    bool brackets = n > 2 && *name == '[';
    unsigned char address[sizeof(struct in6_addr)];
    char text[INET6_ADDRSTRLEN] = "";

    name += brackets;
    n -= brackets ? 2 : 0;
    if (n >= sizeof text)
        return false;
    memcpy(text, name, n);
    return inet_pton(brackets ? AF_INET6 : AF_INET, text, address) == 1;
}

static bool is_name(const char *name, size_t n, const char *known, size_t n_known)
{
    return n == n_known && strncasecmp(name, known, n) == 0;
}

bool sv_host_is_allowed(const char *host, const char *names)
{
    static const char local[] = "localhost";
    size_t n = name_length(host);

    if (is_address(host, n) || is_name(host, n, local, sizeof local - 1))
        return true;
    while (names && *names) {
        names += strspn(names, ", ");
        size_t n_known = strcspn(names, ", ");
        if (n && is_name(host, n, names, n_known))
            return true;
        names += n_known;
    }
    return false;
}

bool sv_origin_is_allowed(const char *origin, const char *host, const char *cors)
{
    const char *authority = strstr(origin, "://");

    if (cors && (strcmp(cors, "*") == 0 || strcmp(cors, origin) == 0))
        return true;
    return authority && host && strcasecmp(authority + 3, host) == 0;
}
