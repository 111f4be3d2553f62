/*
 * grammar_drafts.c - the benefit of drafts under a grammar: answers of the demo pair to JSON
 * schemas and as plain text, in turns: without drafts, with drafts that end where the grammar
 * forbids one (cut), and with replacements of those (repaired).
 *
 * Run by hand: build/bench/grammar_drafts [ROUNDS [THREADS [BATCH]]]; prints CSV, a line for each
 * way and kind of answer: tokens a second, median and quartiles of that over the same answers
 * without drafts just before, accept length, and of all drafts of the drafter the shares that were
 * cut, kept by the target, rejected by it, and replaced. Texts are compared. Greedy. Must not:
 * write files.
 */
#include "bench/quantile.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 6, TOKENS = 96, MOST = 64, KINDS = 5, WAYS = 3 };

static const char *const way_name[WAYS] = {"plain", "cut", "repaired"};
static const char *const kind_name[KINDS] = {"none", "record", "steps", "reasoning", "compact"};
static const char *const schema[KINDS] = {
    NULL,
    "{\"type\":\"object\",\"properties\":{\"first_name\":{\"type\":\"string\",\"maxLength\":30},"
    "\"last_name\":{\"type\":\"string\",\"maxLength\":30},\"age\":{\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":120},\"is_student\":{\"type\":\"boolean\"},\"favourite_colour\":"
    "{\"enum\":[\"red\",\"green\",\"blue\",\"yellow\"]},\"address\":{\"type\":\"object\","
    "\"properties\":{\"street\":{\"type\":\"string\",\"maxLength\":30},\"city\":{\"type\":\"string\","
    "\"maxLength\":20}},\"required\":[\"street\",\"city\"]}},\"required\":[\"first_name\","
    "\"last_name\",\"age\",\"is_student\",\"favourite_colour\",\"address\"]}",
    "{\"type\":\"object\",\"properties\":{\"steps\":{\"type\":\"array\",\"minItems\":2,\"maxItems\":4,"
    "\"items\":{\"type\":\"object\",\"properties\":{\"explanation\":{\"type\":\"string\",\"minLength\":"
    "20,\"maxLength\":120},\"output\":{\"type\":\"string\",\"maxLength\":30}},\"required\":["
    "\"explanation\",\"output\"]}},\"final_answer\":{\"type\":\"integer\"}},\"required\":[\"steps\","
    "\"final_answer\"]}",
    "{\"type\":\"object\",\"properties\":{\"reasoning\":{\"type\":\"string\",\"minLength\":150,"
    "\"maxLength\":400},\"answer\":{\"type\":\"integer\"}},\"required\":[\"reasoning\",\"answer\"]}",
    NULL};
/* The record without space between its parts. */
static const char compact[] =
    "root ::= \"{\\\"first_name\\\":\\\"\" char{1,30} \"\\\",\\\"last_name\\\":\\\"\" char{1,30} "
    "\"\\\",\\\"age\\\":\" [1-9] [0-9]? \",\\\"is_student\\\":\" (\"true\" | \"false\") "
    "\",\\\"favourite_colour\\\":\" (\"\\\"red\\\"\" | \"\\\"green\\\"\" | \"\\\"blue\\\"\") "
    "\",\\\"address\\\":{\\\"street\\\":\\\"\" char{1,30} \"\\\",\\\"city\\\":\\\"\" char{1,20} "
    "\"\\\"}}\"\nchar ::= [^\"\\\\\\x00-\\x1f]\n";
static const char *const prompts[PROMPTS] = {
    "Trent caught 180 tadpoles then let 75% of them go. How many did he keep?",
    "Oliver had $9, then he saved $5 and spent $4 on a frisbee. How much has he left?",
    "Every day the number of bedbugs tripled. After four days there were 810. How many at first?",
    "Anna Smith is 34 years old and lives in 12 Main Street in London. She likes blue.",
    "Write a short story about a dog.",
    "Tom reads 20 pages a day. How long does he take for a book of 300 pages?"};

struct turn {
    struct sv_engine *e;
    int64_t n_tokens, n_steps, us;
    uint64_t hash[PROMPTS];
    int n_done;
};
struct one {
    struct turn *t;
    int p;
};

static void on_event(void *user, const struct sv_event *ev)
{
    struct one *o = user;
    struct sv_request_stats st;
    for (int32_t i = 0; i < ev->n_tokens; i++)
        o->t->hash[o->p] = (o->t->hash[o->p] ^ (uint64_t)ev->tokens[i]) * 1099511628211u;
    if (!ev->finish || sv_get_request_stats(o->t->e, ev->request, &st))
        return;
    o->t->n_tokens += st.n_tokens - 1;
    o->t->n_steps += st.n_steps;
    o->t->us += st.decode_us;
    if (ev->message)
        fprintf(stderr, "grammar_drafts: %s\n", ev->message);
}

static void fail(const char *msg)
{
    fprintf(stderr, "grammar_drafts: %s\n", msg);
    exit(1);
}

/* All prompts, `batch` of them at a time. */
static struct turn run(struct sv_engine *e, struct sv_grammar *g, int32_t width, int batch)
{
    char err[512] = "";
    struct turn t = {.e = e};
    struct one one[PROMPTS];
    for (int p = 0; p < PROMPTS; p += batch) {
        int rc = 0;
        for (int i = p; i < p + batch && i < PROMPTS; i++) {
            char text[512];
            struct sv_request r = sv_default_request(e);
            snprintf(text, sizeof text, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n",
                     prompts[i]);
            one[i] = (struct one){&t, i};
            r.prompt = text;
            r.max_tokens = TOKENS;
            r.width = width;
            r.grammar = g;
            r.on_event = on_event;
            r.user = &one[i];
            if (sv_submit_request(e, &r, NULL, err, sizeof err) < 0)
                fail(err);
        }
        while ((rc = sv_step_engine(e, err, sizeof err)) > 0) {
        }
        if (rc < 0)
            fail(err);
    }
    return t;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 5, batch = argc > 3 ? atoi(argv[3]) : 1;
    struct sv_engine_options o = sv_default_options();
    struct sv_engine *e;
    struct sv_grammar *g[KINDS] = {NULL};
    char err[512];
    static double over[WAYS][KINDS][MOST], rate[WAYS][KINDS][MOST];
    double accept[WAYS][KINDS] = {{0}};
    struct sv_engine_stats s[2], sum[WAYS][KINDS] = {{{0}}};
    o.target_dir = "models/demo/target";
    o.draft_dir = "models/demo/draft";
    o.device = "cpu";
    o.n_threads = argc > 2 ? atoi(argv[2]) : 2;
    o.max_sequences = batch > 0 ? batch : 1;
    if (rounds < 1 || rounds > MOST || batch < 1 || batch > PROMPTS)
        fail("ROUNDS or BATCH out of range");
    for (int k = 1; k < KINDS; k++)
        if (sv_make_grammar(&g[k], schema[k] ? SV_GRAMMAR_SCHEMA : SV_GRAMMAR_GBNF,
                            schema[k] ? schema[k] : compact, 0, err, sizeof err))
            fail(err);
    if (sv_open_engine(&e, &o, err, sizeof err) < 0)
        fail(err);
    const int32_t n_slots = e->repair.n_slots;
    for (int round = -1; round < rounds; round++) /* the first one warms up */
        for (int k = 0; k < KINDS; k++) {
            struct turn plain = {0};
            for (int w = 0; w < WAYS; w++) {
                sv_get_engine_stats(e, &s[0]);
                e->repair.n_slots = w == 2 ? n_slots : 0;
                const struct turn t = run(e, g[k], w ? 16 : 1, batch);
                sv_get_engine_stats(e, &s[1]);
                plain = w ? plain : t;
                if (memcmp(t.hash, plain.hash, sizeof t.hash))
                    fprintf(stderr, "grammar_drafts: the texts differ\n");
                if (round < 0)
                    continue;
                rate[w][k][round] = (double)t.n_tokens * 1e6 / (double)t.us;
                over[w][k][round] =
                    rate[w][k][round] / ((double)plain.n_tokens * 1e6 / (double)plain.us);
                accept[w][k] = (double)t.n_tokens / (double)t.n_steps;
                sum[w][k].n_drafted += s[1].n_drafted - s[0].n_drafted;
                sum[w][k].n_accepted += s[1].n_accepted - s[0].n_accepted;
                sum[w][k].n_repaired += s[1].n_repaired - s[0].n_repaired;
                sum[w][k].n_refused += s[1].n_refused - s[0].n_refused;
            }
        }
    printf(
        "drafts,answers,tokens_per_second,of_plain,q1,q3,accept_length,refused,kept,rejected,repaired\n");
    for (int w = 0; w < WAYS; w++)
        for (int k = 0; k < KINDS; k++) {
            double *v = over[w][k];
            const struct sv_engine_stats *c = &sum[w][k];
            const double all = (double)(c->n_drafted + c->n_refused) + 1e-9;
            printf("%s,%s,%.0f,%.3f,%.3f,%.3f,%.2f,%.3f,%.3f,%.3f,%.3f\n", way_name[w],
                   kind_name[k], quantile(rate[w][k], rounds, 0.5), quantile(v, rounds, 0.5),
                   quantile(v, rounds, 0.25), quantile(v, rounds, 0.75), accept[w][k],
                   (double)c->n_refused / all, (double)c->n_accepted / all,
                   (double)(c->n_drafted - c->n_accepted) / all, (double)c->n_repaired / all);
        }
    for (int k = 0; k < KINDS; k++)
        sv_free_grammar(g[k]);
    sv_close_engine(e);
    return 0;
}
