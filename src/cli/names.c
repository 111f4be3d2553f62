/*
 * names.c - other servers' names of options, for error messages.
 *
 * Called by args.c when a command line cannot be parsed. Must not: accept them as options.
 */
#include "cli/cli.h"

#include <string.h>

static const struct {
    const char *theirs, *ours;
} names[] = {
    {"model-path", "model"},
    {"model-draft", "draft"},
    {"speculative-draft-model-path", "draft"},
    {"spec-draft-model", "draft"},
    {"speculative-model", "draft"},
    {"speculative-config", "draft"},
    {"speculative-num-draft-tokens", "spec-width"},
    {"num-speculative-tokens", "spec-width"},
    {"draft-max", "spec-width"},
    {"served-model-name", "name"},
    {"alias", "name"},
    {"tensor-parallel-size", "tp"},
    {"tp-size", "tp"},
    {"data-parallel-size", "dp"},
    {"dp-size", "dp"},
    {"enable-expert-parallel", "ep"},
    {"ep-size", "ep"},
    {"enable-dp-attention", "dp-attention"},
    {"expert-parallel-size", "ep"},
    {"max-model-len", "ctx"},
    {"context-length", "ctx"},
    {"ctx-size", "ctx"},
    {"max-num-seqs", "sequences"},
    {"max-running-requests", "sequences"},
    {"parallel", "sequences"},
    {"max-queued-requests", "queue"},
    {"max-num-batched-tokens", "chunk"},
    {"chunked-prefill-size", "chunk"},
    {"block-size", "page-size"},
    {"kv-cache-dtype", "kv-dtype"},
    {"cache-type-k", "kv-dtype"},
    {"cache-type-k-draft", "draft-kv-dtype"},
    {"mem-fraction-static", "gpu-memory-utilization"},
    {"no-enable-prefix-caching", "no-prefix-cache"},
    {"disable-radix-cache", "no-prefix-cache"},
    {"tool-call-parser", "tool-parser"},
    {"chat-template-file", "chat-template"},
    {"uds", "unix"},
    {"allowed-origins", "cors"},
    {"ssl-certfile", "tls-cert"},
    {"ssl-cert-file", "tls-cert"},
    {"ssl-keyfile", "tls-key"},
    {"ssl-key-file", "tls-key"},
    {"timeout-keep-alive", "idle-timeout"},
    {"sse-ping-interval", "ping"},
    {"enable-force-include-usage", "force-usage"},
    {"disable-log-requests", "quiet"},
    {"temp", "temperature"},
    {"n-predict", "max-tokens"},
    {"max-new-tokens", "max-tokens"},
    {"prompt-file", "file"},
    {"system-prompt", "system"},
    {"json-schema-file", "json-schema"},
    {"grammar-file", "grammar"},
};

static bool has(const struct sv_cli_opts *o, const char *name, size_t n)
{
    for (int i = 0; i < o->n; i++)
        if (strncmp(o->row[i].name, name, n) == 0 && !o->row[i].name[n])
            return true;
    return false;
}

const char *sv_cli_other_name(const struct sv_cli_opts *o, int argc, char **argv,
                              const char **theirs)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i] + 2;
        size_t n = strcspn(argv[i], "=") - 2;
        if (strncmp(argv[i], "--", 2) != 0 || !n || has(o, name, n))
            continue;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            if (strlen(names[k].theirs) == n && strncmp(names[k].theirs, name, n) == 0 &&
                has(o, names[k].ours, strlen(names[k].ours))) {
                *theirs = names[k].theirs;
                return names[k].ours;
            }
        return NULL;
    }
    return NULL;
}
