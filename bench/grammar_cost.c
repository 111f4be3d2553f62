/*
 * grammar_cost.c - the cost of a grammar in a step: answers of the demo pair without one, with one
 * that allows any text (so the text is the same), and with one for a JSON object, plain and
 * drafted.
 *
 * Run by hand: build/bench/grammar_cost [ROUNDS [THREADS]]; prints CSV, a line for each kind of
 * answer: verify width, grammar, median and quartiles of the time a step takes in us and of that
 * over the same answer without a grammar just before, tokens a second, accept length. One sequence
 * at a time, greedy, in one engine and in turns. Must not: write files.
 */
#include "bench/quantile.h"
#include "salvo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPTS = 6, TOKENS = 96, MOST = 64 * PROMPTS, KINDS = 3, WIDTHS = 2 };

static const char *const kind_name[KINDS] = {"none", "any", "json"};
static const int32_t widths[WIDTHS] = {1, 16};
/* A schema's object of a string and an integer, without white space, which a small model likes too
 * much. */
static const char json[] =
    "root ::= \"{\\\"reasoning\\\": \\\"\" char{150,400} \"\\\", \\\"answer\\\": \" [0-9]{1,6} \"}\"\n"
    "char ::= [^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"\\\\/bfnrt]\n";
static const char *const prompts[PROMPTS] = {
    "Trent caught 180 tadpoles then let 75% of them go. How many did he keep?",
    "A train takes 4 hours at a speed of 50 miles per hour. How long would it take at 100?",
    "Oliver had $9, then he saved $5 and spent $4 on a frisbee. How much has he left?",
    "There are 18 mangoes in one basket and 10 pears in another. How many fruits are there?",
    "Every day the number of bedbugs tripled. After four days there were 810. How many at first?",
    "Ryan started with 36 tokens and wasted a third of them. How many did he keep?"};

struct turn {
    struct sv_engine *e;
    double step_us, rate, accept;
    uint64_t hash;
};

static void on_event(void *user, const struct sv_event *ev)
{
    struct turn *t = user;
    struct sv_request_stats st;
    for (int32_t i = 0; i < ev->n_tokens; i++)
        t->hash = (t->hash ^ (uint64_t)ev->tokens[i]) * 1099511628211u;
    if (!ev->finish || sv_get_request_stats(t->e, ev->request, &st) || !st.n_steps)
        return;
    t->step_us = (double)st.decode_us / st.n_steps;
    t->rate = (st.n_tokens - 1) * 1e6 / (double)st.decode_us;
    t->accept = (double)(st.n_tokens - 1) / st.n_steps;
}

static struct turn run(struct sv_engine *e, struct sv_grammar *g, int32_t width, const char *prompt)
{
    char text[512], err[512] = "";
    struct turn t = {.e = e, .hash = 14695981039346656037u};
    struct sv_request r = sv_default_request(e);
    snprintf(text, sizeof text, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", prompt);
    r.prompt = text;
    r.max_tokens = TOKENS;
    r.width = width;
    r.grammar = g;
    r.on_event = on_event;
    r.user = &t;
    int rc = sv_submit_request(e, &r, NULL, err, sizeof err);
    while (rc >= 0 && (rc = sv_step_engine(e, err, sizeof err)) > 0) {
    }
    if (rc < 0) {
        fprintf(stderr, "grammar_cost: %s\n", err);
        exit(1);
    }
    return t;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 5;
    struct sv_engine_options o = sv_default_options();
    struct sv_engine *e;
    struct sv_grammar *g[KINDS] = {NULL};
    char err[512];
    static double us[WIDTHS][KINDS][MOST], over[WIDTHS][KINDS][MOST], rate[WIDTHS][KINDS][MOST],
        accept[WIDTHS][KINDS][MOST];
    int n = 0;
    o.target_dir = "models/demo/target";
    o.draft_dir = "models/demo/draft";
    o.device = "cpu";
    o.n_threads = argc > 2 ? atoi(argv[2]) : 2;
    if (rounds < 1 || rounds * PROMPTS > MOST ||
        sv_make_grammar(&g[1], SV_GRAMMAR_REGEX, "(.|\\n)*", 0, err, sizeof err) ||
        sv_make_grammar(&g[2], SV_GRAMMAR_GBNF, json, 0, err, sizeof err) ||
        sv_open_engine(&e, &o, err, sizeof err) < 0) {
        fprintf(stderr, "grammar_cost: %s\n", err);
        return 1;
    }
    for (int round = -1; round < rounds; round++) /* the first one warms up */
        for (int p = 0; p < PROMPTS; p++, n += round >= 0)
            for (int w = 0; w < WIDTHS; w++) {
                uint64_t hash = 0;
                double plain = 0;
                for (int k = 0; k < KINDS; k++) {
                    const struct turn t = run(e, g[k], widths[w], prompts[p]);
                    plain = k ? plain : t.step_us;
                    if (k == 1 && t.hash != hash)
                        fprintf(stderr, "grammar_cost: the texts differ\n");
                    hash = t.hash;
                    us[w][k][n < MOST ? n : 0] = t.step_us;
                    over[w][k][n] = t.step_us / plain;
                    rate[w][k][n] = t.rate;
                    accept[w][k][n] = t.accept;
                }
            }
    printf("width,grammar,answers,step_us,q1,q3,of_none,q1,q3,tokens_per_second,accept_length\n");
    for (int w = 0; w < WIDTHS; w++)
        for (int k = 0; k < KINDS; k++) {
            double *u = us[w][k], *v = over[w][k];
            printf("%d,%s,%d,%.0f,%.0f,%.0f,%.3f,%.3f,%.3f,%.0f,%.2f\n", widths[w], kind_name[k], n,
                   quantile(u, n, 0.5), quantile(u, n, 0.25), quantile(u, n, 0.75),
                   quantile(v, n, 0.5), quantile(v, n, 0.25), quantile(v, n, 0.75),
                   quantile(rate[w][k], n, 0.5), quantile(accept[w][k], n, 0.5));
        }
    for (int k = 0; k < KINDS; k++)
        sv_free_grammar(g[k]);
    sv_close_engine(e);
    return 0;
}
