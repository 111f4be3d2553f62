/*
 * chat.c - messages to a prompt by a model's chat template.
 *
 * Called by talk.c, jsonl.c and generate.c. Must not: depend on a model's message format, except
 * for the header of gpt-oss's answers.
 */
#define _DEFAULT_SOURCE 1 /* tm_gmtoff */

#include "cli/cli.h"

#include "load/load.h"
#include "reply/reply.h"

#include <time.h>

/* Seconds since 1970 in local time, for strftime_now. */
static int64_t local_seconds(void)
{
    time_t now = time(NULL);
    struct tm tm;

    return localtime_r(&now, &tm) ? (int64_t)now + tm.tm_gmtoff : (int64_t)now;
}

int sv_cli_chat_open(struct sv_chat_template **t, const char *dir, struct sv_err *err)
{
    *t = NULL;
    int rc = dir ? sv_model_chat_template(t, dir, NULL, 0, err) : SV_OK;
    return rc == SV_EUNSUPPORTED ? SV_OK : rc; /* a base model: an error only with messages */
}

int sv_cli_chat_render(const struct sv_chat_template *t, const struct sv_template *plain,
                       json_t *messages, struct sv_buf *out, struct sv_err *err)
{
    const struct sv_template_opts opts = {.now = local_seconds()};
    json_t *context = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
    int rc;

    if (!context)
        return sv_fail(err, SV_ENOMEM, -1, "chat template: out of memory");
    rc = t ? sv_chat_template_render(t, context, &opts, out, err)
           : sv_template_render(plain, context, &opts, out, err);
    json_decref(context);
    return rc ? sv_err_prefix(err, "chat template") : SV_OK;
}

void sv_cli_chat_constrain(const struct sv_chat_template *t, struct sv_buf *prompt)
{
    if (t && sv_think_format_of(sv_chat_template_source(t)) == SV_THINK_HARMONY)
        sv_buf_lit(prompt, "<|channel|>final<|message|>");
}
