/*
 * log.c - the server's log lines on stderr: name=value text, or JSON objects, one a line.
 *
 * Called on the loop's thread. Must not: write prompts, answers or keys.
 */
#include "serve/core/log.h"
#include "serve/core/server.h"

#include <math.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static void stamp(char out[40])
{
    struct timeval now;
    struct tm utc;
    char date[24];

    gettimeofday(&now, NULL);
    time_t seconds = now.tv_sec;
    gmtime_r(&seconds, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out, 40, "%s.%03dZ", date, (int)(now.tv_usec / 1000));
}

static void write_value(struct sv_buf *b, const struct sv_log_field *f, bool json)
{
    const char *s = f->kind == 's' ? (f->v.s ? f->v.s : "") : "";

    if (f->kind == 'i')
        sv_buf_printf(b, "%lld", (long long)f->v.i);
    else if (f->kind == 'f')
        sv_buf_printf(b, "%.2f", isfinite(f->v.f) ? f->v.f : 0);
    else if (json || !*s || strpbrk(s, " \"=\n\r\t\\"))
        sv_json_quote(b, s, strlen(s));
    else
        sv_buf_append(b, s, strlen(s));
}

const char *sv_log_plain(char to[128], const char *text)
{
    size_t n = 0;

    for (; text[n] && n < 127; n++)
        to[n] = text[n] > ' ' && text[n] < 0x7f ? text[n] : '?';
    to[n] = 0;
    return to;
}

void sv_serve_log(const struct sv_serve *s, const char *event, const struct sv_log_field *f, int n)
{
    bool json = s->o.log_json;
    struct sv_buf b;
    char when[40];

    stamp(when);
    sv_buf_init(&b);
    if (json)
        sv_buf_printf(&b, "{\"time\":\"%s\",\"event\":\"%s\"", when, event);
    else
        sv_buf_printf(&b, "%s %s", when, event);
    for (int i = 0; i < n; i++) {
        if (json)
            sv_buf_printf(&b, ",\"%s\":", f[i].name);
        else
            sv_buf_printf(&b, " %s=", f[i].name);
        write_value(&b, &f[i], json);
    }
    sv_buf_printf(&b, json ? "}\n" : "\n");
    if (!b.failed)
        fwrite(b.data, 1, b.len, stderr); /* one call, so that lines stay whole */
    sv_buf_fini(&b);
}

bool sv_has_line(const struct sv_buf *lines, const char *line)
{
    for (size_t at = 0, n = strlen(line), k; at < lines->len; at += k + 1) {
        k = strcspn(lines->data + at, "\n");
        if (k == n && memcmp(lines->data + at, line, n) == 0)
            return true;
    }
    return false;
}

/* If memory runs out, the name is logged again the next time. */
void sv_log_unknown(struct sv_serve *s, const char *id, struct sv_buf *names)
{
    for (char *line = names->data, *end; line && *line && s->n_unknown <= SV_UNKNOWN_NAMED;
         line = end + 1) {
        end = strchr(line, '\n');
        *end = 0;
        if (!sv_has_line(&s->unknown, line)) {
            struct sv_log_field f[] = {SV_LOG_S("field", line), SV_LOG_S("id", id)};
            bool full = s->n_unknown++ == SV_UNKNOWN_NAMED;
            sv_buf_printf(&s->unknown, "%s\n", line);
            sv_serve_log(s, full ? "no more unknown fields are named" : "unknown field ignored", f,
                         full ? 0 : 2);
        }
    }
    sv_buf_clear(names);
}
