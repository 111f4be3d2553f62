/*
 * err.c - status names, error records and the abort for broken invariants.
 *
 * Called by everything. Must not allocate: errors must be reportable when memory is exhausted.
 */
#include "base/internal.h"

#include <stdlib.h>
#include <string.h>

const char *sv_status_name(int code)
{
    switch (code) {
#define X(name, value, text)                                                                       \
    case value:                                                                                    \
        return text;
        SV_STATUS_LIST(X)
#undef X
    default:
        return "unknown status";
    }
}

int sv_fail(struct sv_err *err, int code, int64_t pos, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        err->pos = pos;
        vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
    }
    return code;
}

int sv_err_prefix(struct sv_err *err, const char *fmt, ...)
{
    char prefix[sizeof err->msg];
    char whole[2 * sizeof err->msg + 2];
    va_list ap;

    if (!err)
        return SV_OK;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole, "%s: %s", prefix, err->msg);
    /* If both are long, the end is cut: the beginning names the place. */
    memcpy(err->msg, whole, sizeof err->msg - 1);
    err->msg[sizeof err->msg - 1] = 0;
    return err->code;
}

int sv_fail_errno(struct sv_err *err, const char *path, const char *what, int errnum)
{
    return sv_fail(err, SV_EIO, -1, "%s: %s: %s", path, what, strerror(errnum));
}

void sv_panic_at(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "salvo: %s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    fflush(stderr);
    va_end(ap);
    abort();
}
