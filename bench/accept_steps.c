/*
 * accept_steps.c - records verify steps of a real pair: the accept length and the confidence of
 * each draft. `salvo-bench --accept-profile FILE` draws from them.
 *
 * Usage: accept_steps TARGET DRAFT PROMPTS.jsonl [TOKENS] >FILE. One line a step of the draft's
 * whole block: accept length, then the confidence of each draft. Must not: prune a block.
 */
#include "engine/engine.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void print_steps(const struct sv_engine *e)
{
    for (int32_t s = 0; s < e->plan.n_segs; s++) {
        const struct sv_plan_seg *g = &e->plan.seg[s];
        const float *confidence =
            (const float *)(const void *)e->batch.confidence.host + g->draft_out0;
        if (g->n_drafts != e->width - 1 || g->n_rows != e->width)
            continue;
        printf("%d", e->batch.n_emit.host[s]);
        for (int32_t j = 0; j < g->n_drafts; j++)
            printf(" %.4g", (double)confidence[j]);
        printf("\n");
    }
}

/* All steps of one line of the file. */
static int run(struct sv_engine *e, const char *line, size_t n, int32_t max_tokens,
               struct sv_err *err)
{
    json_t *root = json_loadb(line, n, 0, NULL);
    const char *prompt = json_string_value(json_object_get(root, "prompt"));
    struct sv_request r = sv_default_request(e);
    int rc = prompt ? SV_OK : sv_fail(err, SV_EFORMAT, -1, "a line without a prompt");
    r.prompt = prompt;
    r.max_tokens = max_tokens;
    r.width = e->width; /* asked for: never cut */
    if (!rc)
        rc = sv_engine_submit(e, &r, NULL, err);
    while (!rc && e->sched.n_unfinished) {
        rc = sv_engine_step(e, err);
        print_steps(e);
        sv_engine_deliver(e);
    }
    json_decref(root);
    return rc;
}

int main(int argc, char **argv)
{
    struct sv_err err = {0};
    struct sv_engine *e = NULL;
    struct sv_buf b;
    if (argc < 4) {
        fprintf(stderr, "usage: accept_steps TARGET DRAFT PROMPTS.jsonl [TOKENS]\n");
        return 2;
    }
    const struct sv_engine_options o = {
        .target_dir = argv[1], .draft_dir = argv[2], .device = "cpu", .auto_width = true};
    sv_buf_init(&b);
    int rc = sv_engine_open(&e, &o, NULL, &err);
    if (!rc)
        rc = sv_file_read(&b, argv[3], 1 << 24, &err);
    if (!rc && !e->policy)
        rc = sv_fail(&err, SV_EINVAL, -1, "this drafter reports no confidence");
    printf("steps\n");
    for (const char *at = b.data; !rc && at && *at;) {
        size_t n = strcspn(at, "\n");
        if (n)
            rc = run(e, at, n, argc > 4 ? atoi(argv[4]) : 256, &err);
        at += n + (at[n] == '\n');
    }
    if (rc)
        fprintf(stderr, "accept_steps: %s\n", err.msg);
    sv_buf_fini(&b);
    sv_engine_close(e);
    return rc != 0;
}
